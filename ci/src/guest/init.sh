#!/bin/sh
# First process of the ernic test guest. Talks to the host on the virtio-serial port "ctl": a line in is a shell
# command, its output comes back followed by a line "@@rc=STATUS". Words on the kernel command line: "shell" (or
# shell=ROWSxCOLUMNS) gives a shell on the console, "net" brings the NIC up first.
export PATH=/usr/sbin:/usr/bin HOME=/root TERM=linux
# Programs of the packages stay; busybox fills the gaps.
/usr/bin/busybox --install -s /usr/bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
# RDMA programs lock the memory that they register.
ulimit -l unlimited
ip link set lo up
hostname guest

control=
for port in /sys/class/virtio-ports/*; do
    if [ "$(cat "$port/name" 2>/dev/null)" = ctl ]; then control=/dev/${port##*/}; fi
done

shell=
net=
for word in $(cat /proc/cmdline); do
    case $word in
    shell) shell=24x80 ;;
    shell=*) shell=${word#shell=} ;;
    net) net=yes ;;
    esac
done

agent() {
    exec 3<>"$control"
    read -r up rest </proc/uptime
    echo "READY $up" >&3
    while IFS= read -r line <&3; do
        (eval "$line") </dev/null >&3 2>&1 3>&-
        printf '\n@@rc=%d\n' $? >&3
    done
}

if [ -n "$net" ]; then ernic-net; fi
if [ -n "$shell" ] || [ -z "$control" ]; then
    if [ -n "$control" ]; then agent & fi
    stty rows "${shell%x*}" cols "${shell#*x}" 2>/dev/null
    cd /root
    setsid cttyhack sh -l
else
    agent
fi
sync
poweroff -f
