#!/bin/sh
# ernic-net: loads the NIC's driver, brings its interface up and asks DHCP for an address.
modprobe ionic || exit 1
tries=0
while :; do
    for net in /sys/class/net/*; do
        case $(readlink "$net/device/driver") in
        */ionic) nic=${net##*/} && break 2 ;;
        esac
    done
    tries=$((tries + 1))
    if [ $tries -gt 100 ]; then
        echo "ernic-net: the driver is loaded but there is no interface; dmesg says:" >&2
        dmesg | grep ionic | tail -n 5 >&2
        exit 1
    fi
    sleep 0.1
done
ip link set "$nic" up
udhcpc -i "$nic" -n -q -t 6 -T 2 -O mtu -s /usr/share/udhcpc/ernic.script || exit 1
ip -br addr show dev "$nic"
