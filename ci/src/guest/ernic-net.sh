#!/bin/sh
# ernic-net: loads the NIC's driver, brings its interfaces up, one of each NIC, and asks DHCP for their addresses.
modprobe ionic || exit 1
tries=0
while :; do
    nics=
    for net in /sys/class/net/*; do
        case $(readlink "$net/device/driver") in
        */ionic) nics="$nics ${net##*/}" ;;
        esac
    done
    # Each function that the driver has taken makes an interface.
    set -- $nics
    functions=$(ls -d /sys/bus/pci/drivers/ionic/*:* 2>/dev/null | wc -l)
    if [ $# -gt 0 ] && [ $# -ge "$functions" ]; then break; fi
    tries=$((tries + 1))
    if [ $tries -gt 100 ]; then
        echo "ernic-net: the driver is loaded but there is no interface; dmesg says:" >&2
        dmesg | grep ionic | tail -n 5 >&2
        exit 1
    fi
    sleep 0.1
done
for nic; do
    ip link set "$nic" up
    udhcpc -i "$nic" -n -q -t 6 -T 2 -O mtu -s /usr/share/udhcpc/ernic.script || exit 1
done
for nic; do
    ip -br addr show dev "$nic"
done
