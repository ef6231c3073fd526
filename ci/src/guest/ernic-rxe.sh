#!/bin/sh
# ernic-rxe: soft-RoCE (rdma_rxe) as device rxe0 on the NIC's interface, which ernic-net has brought up.
modprobe rdma_rxe || exit 1
for net in /sys/class/net/*; do
    case $(readlink "$net/device/driver") in
    */ionic) nic=${net##*/} && break ;;
    esac
done
if [ -z "$nic" ]; then
    echo "ernic-rxe: there is no interface of the NIC; ernic-net brings it up" >&2
    exit 1
fi
rdma link show rxe0/1 >/dev/null 2>&1 || rdma link add rxe0 type rxe netdev "$nic" || exit 1
rdma link show rxe0/1
