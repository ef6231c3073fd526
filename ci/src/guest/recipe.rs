//! What the guest consists of, as data: packages, programs, files, kernel modules.

/// The Debian suites that packages come from; the pins say which gives what.
pub const SUITES: [&str; 3] = ["trixie", "trixie-backports", "forky"];

/// apt_preferences(5): everything from trixie, except QEMU and the kernel (backports) and rdma-core (forky, the first
/// with libionic).
pub const PINS: &str = "\
Package: *
Pin: release n=forky
Pin-Priority: 50

Package: *
Pin: release n=trixie-backports
Pin-Priority: 60

Package: src:rdma-core src:libnl3
Pin: release n=forky
Pin-Priority: 900

Package: src:linux src:linux-signed-amd64 src:qemu src:seabios
Pin: release n=trixie-backports
Pin-Priority: 900
";

/// QEMU and its firmware.
pub const QEMU_PACKAGES: [&str; 2] = ["qemu-system-x86", "seabios"];

/// The guest's user space. The host runs `depmod` and `tcpdump` from it too.
pub const USER_PACKAGES: [&str; 14] = [
    "busybox-static",
    "dash",
    "curl",
    "iproute2",
    "ethtool",
    "pciutils",
    "kmod",
    "tcpdump",
    "strace",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "libc6",
    "libgcc-s1",
];

/// User space that a guest can do without.
pub const USER_EXTRAS: [&str; 1] = ["perftest"];

/// Packages of one kernel; the version and [`KERNEL_FLAVOUR`] follow. `linux-base` has the tables of built-in modules.
pub const KERNEL_PACKAGES: [&str; 3] = ["linux-binary-", "linux-modules-", "linux-base-"];

/// The kernels to choose from: backports', the flavour for virtual machines, which has ionic and boots without help.
pub const KERNEL_FLAVOUR: &str = "+deb13-cloud-amd64";

/// boto3, and what it needs for CRC64NVME.
pub const BOTO3_PACKAGES: [&str; 2] = ["python3-boto3", "python3-awscrt"];

/// Files and folders of Python's library that are left out, wherever they are.
pub const PYTHON_LEFT_OUT: [&str; 6] = ["__pycache__", "test", "tests", "idlelib", "pydoc_data", "turtledemo"];

/// Goes up with every change to how the boto3 archive is put together.
pub const BOTO3_VERSION: u32 = 1;

/// What the RDMA drivers are compiled with, beside the kernel's headers, which ask for their compiler themselves.
pub const BUILD_PACKAGES: [&str; 16] = [
    "make",
    "bash",
    "dash",
    "coreutils",
    "sed",
    "grep",
    "findutils",
    "mawk",
    "diffutils",
    "xz-utils",
    "perl-base",
    "kmod",
    "binutils",
    "libc6-dev",
    "libelf1t64",
    "base-files",
];

/// Links in the build tree that maintainer scripts would make: name and target.
pub const BUILD_LINKS: [(&str, &str); 2] = [("usr/bin/awk", "mawk"), ("usr/bin/sh", "dash")];

/// Goes up with every change to how the RDMA drivers are built.
pub const DRIVER_VERSION: u32 = 2;

/// Programs and libraries of [`USER_PACKAGES`] that go into the image, with all libraries that they need.
pub const PROGRAMS: &[&str] = &[
    "/usr/bin/busybox",
    "/usr/bin/dash",
    "/usr/bin/curl",
    "/usr/bin/ip",
    "/usr/bin/ss",
    "/usr/sbin/tc",
    "/usr/bin/rdma",
    "/usr/sbin/devlink",
    "/usr/bin/lspci",
    "/usr/bin/setpci",
    "/usr/bin/kmod",
    "/usr/sbin/ethtool",
    "/usr/bin/strace",
    "/usr/bin/tcpdump",
    "/usr/bin/ibv_devices",
    "/usr/bin/ibv_devinfo",
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/ibv_ud_pingpong",
    "/usr/bin/ibv_uc_pingpong",
    "/usr/bin/ibv_srq_pingpong",
    "/usr/bin/rping",
    "/usr/bin/rstream",
    "/usr/bin/riostream",
    "/usr/bin/ucmatose",
    "/usr/bin/udaddy",
    "/usr/bin/rdma_server",
    "/usr/bin/rdma_client",
    // Loaded at run time, so no program names them.
    "/usr/lib/x86_64-linux-gnu/libnss_files.so.2",
    "/usr/lib/x86_64-linux-gnu/libnss_dns.so.2",
    "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
];

/// Programs of [`USER_EXTRAS`].
pub const EXTRA_PROGRAMS: &[&str] = &[
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_write_lat",
    "/usr/bin/ib_send_bw",
    "/usr/bin/ib_send_lat",
    "/usr/bin/ib_read_bw",
    "/usr/bin/ib_read_lat",
    "/usr/bin/ib_atomic_bw",
    "/usr/bin/ib_atomic_lat",
];

/// Verbs providers: `lib<name>-rdmav*.so` and `<name>.driver`.
pub const PROVIDERS: [&str; 2] = ["ionic", "rxe"];

/// Files of the packages that are copied as they are, where they exist.
pub const FILES: &[&str] = &["/usr/share/misc/pci.ids"];

/// Kernel modules that must be there, with all that they depend on.
pub const MODULES: &[&str] = &[
    "ionic",
    "8021q",
    "ib_core",
    "ib_uverbs",
    "ib_cm",
    "iw_cm",
    "rdma_cm",
    "rdma_ucm",
    "ib_umad",
    "virtio_blk",
    "nvme_rdma",
    "nvmet_rdma",
    "brd",
];

/// Kernel modules that some kernels have built in or not at all.
pub const OPTIONAL_MODULES: &[&str] = &["ib_uverbs_support", "virtio_pci", "virtio_console", "pktgen"];

/// Tables of the kernel packages that depmod reads.
pub const MODULE_TABLES: [&str; 3] = ["modules.builtin", "modules.builtin.modinfo", "modules.order"];

/// Our own files in the image: name, permission bits, contents.
pub const OWN_FILES: &[(&str, u32, &str)] = &[
    ("init", 0o755, include_str!("init.sh")),
    ("usr/sbin/ernic-net", 0o755, include_str!("ernic-net.sh")),
    ("usr/sbin/ernic-rxe", 0o755, include_str!("ernic-rxe.sh")),
    ("usr/share/udhcpc/ernic.script", 0o755, include_str!("udhcpc.sh")),
    ("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n"),
    ("etc/group", 0o644, "root:x:0:\n"),
    ("etc/hosts", 0o644, "127.0.0.1 localhost guest\n::1 localhost\n"),
    ("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("etc/profile", 0o644, "export PATH=/usr/sbin:/usr/bin PS1='guest# '\n"),
];

/// Links in the image: name and target.
pub const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("usr/bin/sh", "dash"),
    ("usr/lib64/ld-linux-x86-64.so.2", "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
    ("usr/sbin/modprobe", "../bin/kmod"),
    ("usr/sbin/insmod", "../bin/kmod"),
    ("usr/sbin/rmmod", "../bin/kmod"),
    ("usr/sbin/lsmod", "../bin/kmod"),
    ("usr/sbin/modinfo", "../bin/kmod"),
];

/// Empty folders of the image.
pub const FOLDERS: &[&str] = &["dev", "proc", "sys", "tmp", "run", "root", "usr/lib64", "mnt"];

/// Packages whose versions are printed.
pub const SHOWN: &[&str] = &["qemu-system-x86", "busybox-static", "curl", "iproute2", "ethtool", "libibverbs1"];

/// Goes up with every change to how the image is put together that the lists above do not show.
pub const VERSION: u32 = 1;
