//! A TAP interface of the host: the other frames of the wire.
#![allow(unsafe_code)] // two ioctls

use std::{
    ffi::c_short,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    ioctl::{Opcode, Updater, ioctl, opcode},
    net::{AddressFamily, SocketType},
};

use crate::options::MAX_IFNAME;

/// Bytes of the longest frame that an interface can give: the largest MTU that the kernel allows (`ETH_MAX_MTU`, 65,535,
/// of which TAP takes off the header) with its Ethernet header and one VLAN tag, rounded up.
pub const MAX_FRAME: usize = 65_536 + 18;

const DEVICE: &str = "/dev/net/tun";
/// `TUNSETIFF` (linux/if_tun.h): `_IOW('T', 202, int)`, though it takes a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
/// `SIOCGIFFLAGS` and `SIOCSIFFLAGS` (linux/sockios.h).
const SIOCGIFFLAGS: Opcode = 0x8913;
const SIOCSIFFLAGS: Opcode = 0x8914;
/// linux/if_tun.h: Ethernet frames, without the 4 bytes of packet information in front.
const IFF_TAP: c_short = 0x0002;
const IFF_NO_PI: c_short = 0x1000;
/// linux/if.h.
const IFF_UP: c_short = 0x0001;

/// `struct ifreq` (linux/if.h) in its use for flags: name, flags, and the rest of a union of 24 bytes.
#[repr(C)]
struct IfReq {
    name: [u8; 16],
    flags: c_short,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<IfReq>() == 40);

impl IfReq {
    fn new(name: &str, flags: c_short) -> Self {
        let mut request = Self { name: [0; 16], flags, rest: [0; 22] };
        // One byte at least stays zero; options::interface_name has checked the length.
        for (to, from) in request.name.iter_mut().take(MAX_IFNAME).zip(name.bytes()) {
            *to = from;
        }
        request
    }
}

/// Why a TAP cannot be used. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// There is no tun driver.
    #[error("--tap: '{name}': {DEVICE} is missing: load it with `modprobe tun`, or pass the device into the container")]
    NoDriver {
        /// The interface.
        name: String,
    },
    /// This user may not open the driver.
    #[error("--tap: '{name}': no permission to open {DEVICE}: run as root, or let your user read and write it")]
    NoAccess {
        /// The interface.
        name: String,
    },
    /// This user may not create or attach.
    #[error(
        "--tap: '{name}': no permission to create or attach it: run as root, or make it yours first: \
         `sudo ip tuntap add dev {name} mode tap user $USER; sudo ip link set {name} up`"
    )]
    NotAllowed {
        /// The interface.
        name: String,
    },
    /// Somebody else has it.
    #[error("--tap: '{name}': another process is attached to it: give each server a TAP of its own")]
    Busy {
        /// The interface.
        name: String,
    },
    /// There is an interface of that name that is something else.
    #[error("--tap: '{name}': it exists and is not a TAP interface with one queue: choose another name")]
    NotTap {
        /// The interface.
        name: String,
    },
    /// Anything else.
    #[error("--tap: '{name}': {error}")]
    Other {
        /// The interface.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// The interface was deleted under us.
    #[error("--tap: '{name}': the interface is gone ({error}): restart the server to attach it again")]
    Gone {
        /// The interface.
        name: String,
        /// What the read or write said.
        error: io::Error,
    },
}

/// A TAP interface that this process is attached to. Non-blocking.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
    dropped: u64,
}

impl Tap {
    /// Attaches to the TAP interface `name` of the host, and creates it and brings it up where there is none. An
    /// interface that was there is left as it is. One that was created here goes when the process ends.
    pub fn open(name: &str) -> Result<Self, TapError> {
        let fail = |error: Errno| TapError::Other { name: name.to_owned(), error: error.into() };
        let fd = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(
            |error| match error {
                Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::NoDriver { name: name.to_owned() },
                Errno::ACCESS | Errno::PERM => TapError::NoAccess { name: name.to_owned() },
                error => fail(error),
            },
        )?;
        let control = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(fail)?;
        let existed = flags(control.as_fd(), name).is_ok();

        let mut request = IfReq::new(name, IFF_TAP | IFF_NO_PI);
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `IfReq` is laid out as.
        unsafe { ioctl(&fd, Updater::<TUNSETIFF, IfReq>::new(&mut request)) }.map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => TapError::NotAllowed { name: name.to_owned() },
            Errno::BUSY => TapError::Busy { name: name.to_owned() },
            Errno::INVAL => TapError::NotTap { name: name.to_owned() },
            error => fail(error),
        })?;

        let up = flags(control.as_fd(), name).map_err(fail)?;
        if !existed {
            // Whoever may create an interface may bring it up.
            set_flags(control.as_fd(), name, up | IFF_UP).map_err(fail)?;
        } else if up & IFF_UP == 0 {
            tracing::warn!(tap = name, "TAP interface is down: bring it up with `ip link set {name} up`");
        }
        Ok(Self { fd, name: name.to_owned(), dropped: 0 })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Frames that the host did not take: its interface is down, or it is out of memory.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes one frame that the host sends, from its destination address on, and returns its length; `None` if there is
    /// none now. A frame longer than `buffer` is cut, so `buffer` should have [`MAX_FRAME`] bytes. Checksums are
    /// complete: we ask the kernel for no offload. Errors: [`TapError::Gone`].
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TapError> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.gone(error)),
            }
        }
    }

    /// Gives the host one frame, with checksums complete. Returns whether the host took it; what it does not take is
    /// counted and lost, as on any wire. Errors: [`TapError::Gone`].
    pub fn write(&mut self, frame: &[u8]) -> Result<bool, TapError> {
        loop {
            match rustix::io::write(&self.fd, frame) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                // Down (tun_get_user), too short for a header, out of memory, queue full.
                Err(Errno::IO | Errno::INVAL | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN) => {
                    self.dropped += 1;
                    return Ok(false);
                }
                Err(error) => return Err(self.gone(error)),
            }
        }
    }

    fn gone(&self, error: Errno) -> TapError {
        TapError::Gone { name: self.name.clone(), error: error.into() }
    }
}

impl AsFd for Tap {
    /// Readable while the host has frames for us.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn flags(control: BorrowedFd<'_>, name: &str) -> Result<c_short, Errno> {
    let mut request = IfReq::new(name, 0);
    // SAFETY: SIOCGIFFLAGS reads and writes one `struct ifreq`, which `IfReq` is laid out as.
    unsafe { ioctl(control, Updater::<SIOCGIFFLAGS, IfReq>::new(&mut request)) }?;
    Ok(request.flags)
}

fn set_flags(control: BorrowedFd<'_>, name: &str, flags: c_short) -> Result<(), Errno> {
    let mut request = IfReq::new(name, flags);
    // SAFETY: SIOCSIFFLAGS reads one `struct ifreq`, which `IfReq` is laid out as.
    unsafe { ioctl(control, Updater::<SIOCSIFFLAGS, IfReq>::new(&mut request)) }
}
