#!/bin/sh
# What udhcpc calls with an event and the lease in the environment: applies address, MTU, routes and name servers.
case $1 in
deconfig)
    ip addr flush dev "$interface" scope global
    ip link set "$interface" up
    ;;
bound | renew)
    if [ -n "$mtu" ] && [ "$mtu" != "$(cat "/sys/class/net/$interface/mtu")" ]; then
        ip link set "$interface" mtu "$mtu"
    fi
    ip addr replace "$ip/$mask" dev "$interface"
    for gateway in $router; do ip route replace default via "$gateway" dev "$interface"; done
    for server in $dns; do echo "nameserver $server"; done >/etc/resolv.conf
    ;;
esac
exit 0
