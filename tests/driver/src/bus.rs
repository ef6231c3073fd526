//! How the driver reaches the device: registers, memory, interrupts.

use std::{io, time::Duration};

use ernic_emu::vfio::client::ClientError;
use rustix::io::Errno;

use crate::ram::GuestRam;

/// A memory BAR of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    /// BAR 0: registers.
    Registers,
    /// BAR 2: doorbell pages.
    Doorbells,
}

impl Bar {
    /// Its region index (`VFIO_PCI_BAR0_REGION_INDEX`, `VFIO_PCI_BAR2_REGION_INDEX`).
    #[must_use]
    pub const fn region(self) -> u32 {
        match self {
            Self::Registers => 0,
            Self::Doorbells => 2,
        }
    }
}

/// Region index of the configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`).
pub const CONFIG_REGION: u32 = 7;
/// Interrupt index of MSI-X (`VFIO_PCI_MSIX_IRQ_INDEX`).
pub const MSIX_INDEX: u32 = 2;

/// Why the device could not be reached. What the device *does* is never such an error.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The device refused a register access or an interrupt change.
    #[error("the device refused: {0}")]
    Refused(Errno),
    /// The vfio-user server refused, or is gone.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Memory, eventfds or polling failed here.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for BusError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A device, as a guest reaches it.
///
/// Reads are exact; a write may be posted, but a read (and everything else) comes after all writes before it.
pub trait Bus {
    /// Reads any number of bytes of a BAR, in one access.
    ///
    /// # Errors
    /// See [`BusError`].
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes any number of bytes of a BAR, in one access.
    ///
    /// # Errors
    /// See [`BusError`].
    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), BusError>;

    /// Reads the configuration space.
    ///
    /// # Errors
    /// See [`BusError`].
    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes the configuration space.
    ///
    /// # Errors
    /// See [`BusError`].
    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError>;

    /// Resets the function as the virtual machine does (DEVICE_RESET), not by a register.
    ///
    /// # Errors
    /// See [`BusError`].
    fn reset(&mut self) -> Result<(), BusError>;

    /// The guest's memory.
    fn ram(&self) -> &GuestRam;

    /// Gives the first `count` vectors an eventfd each and takes those of all others away. Signals that were not taken are lost.
    ///
    /// # Errors
    /// See [`BusError`].
    fn set_vectors(&mut self, count: u16) -> Result<(), BusError>;

    /// How often vector `vector` was signalled since it was last asked for.
    ///
    /// # Errors
    /// See [`BusError`].
    fn take_irq(&mut self, vector: u16) -> Result<u64, BusError>;

    /// Takes the signals of all vectors below `count`: `f` gets each vector that was signalled, and how often.
    ///
    /// # Errors
    /// See [`BusError`].
    fn take_irqs(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), BusError> {
        for vector in 0..count {
            match self.take_irq(vector)? {
                0 => {}
                signals => f(vector, signals),
            }
        }
        Ok(())
    }

    /// Lets the device run, until a vector has been signalled (`true`) or `limit` is over (`false`).
    ///
    /// # Errors
    /// See [`BusError`].
    fn wait(&mut self, limit: Duration) -> Result<bool, BusError>;

    /// The time, from any origin.
    fn now(&self) -> Duration;

    /// Reads a register of one byte.
    ///
    /// # Errors
    /// See [`BusError`].
    fn read8(&mut self, bar: Bar, offset: u64) -> Result<u8, BusError> {
        let mut data = [0; 1];
        self.read(bar, offset, &mut data)?;
        Ok(data[0])
    }

    /// Reads a register of four bytes.
    ///
    /// # Errors
    /// See [`BusError`].
    fn read32(&mut self, bar: Bar, offset: u64) -> Result<u32, BusError> {
        let mut data = [0; 4];
        self.read(bar, offset, &mut data)?;
        Ok(u32::from_le_bytes(data))
    }

    /// Writes a register of four bytes.
    ///
    /// # Errors
    /// See [`BusError`].
    fn write32(&mut self, bar: Bar, offset: u64, value: u32) -> Result<(), BusError> {
        self.write(bar, offset, &value.to_le_bytes())
    }

    /// Writes a register of eight bytes.
    ///
    /// # Errors
    /// See [`BusError`].
    fn write64(&mut self, bar: Bar, offset: u64, value: u64) -> Result<(), BusError> {
        self.write(bar, offset, &value.to_le_bytes())
    }
}

/// An eventfd per vector, for buses.
pub(crate) mod vectors {
    use std::{
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        time::Duration,
    };

    use rustix::{
        event::{
            EventfdFlags, Timespec,
            epoll::{self, CreateFlags, Event, EventData, EventFlags},
            eventfd,
        },
        io::Errno,
    };

    /// The epoll key of the descriptor that is waited for beside the vectors; theirs are their numbers.
    const ALSO: u64 = u64::MAX;

    /// The eventfds of the vectors in use, and one epoll that names those that were signalled: asking each of them would cost
    /// more than what is waited for.
    #[derive(Debug)]
    pub(crate) struct Vectors {
        epoll: OwnedFd,
        fds: Vec<OwnedFd>,
        /// Signals that were read and not yet taken.
        read: Vec<u64>,
    }

    /// What there is to do after waiting.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Ready {
        pub(crate) signal: bool,
        pub(crate) also: bool,
    }

    impl Vectors {
        /// Eventfds for `count` vectors; [`Vectors::wait`] looks at `also` too.
        pub(crate) fn new(count: u16, also: Option<BorrowedFd<'_>>) -> Result<Self, Errno> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            let make = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
            let fds = std::iter::repeat_with(make).take(count.into()).collect::<Result<Vec<_>, _>>()?;
            for (fd, key) in fds.iter().map(AsFd::as_fd).zip(0..).chain(also.map(|fd| (fd, ALSO))) {
                epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)?;
            }
            Ok(Self { epoll, read: vec![0; fds.len()], fds })
        }

        pub(crate) fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
            self.fds.iter().map(AsFd::as_fd)
        }

        /// Signals of one vector.
        pub(crate) fn take(&mut self, vector: u16) -> Result<u64, Errno> {
            self.collect(Duration::ZERO)?;
            Ok(self.read.get_mut(usize::from(vector)).map_or(0, std::mem::take))
        }

        /// Signals of all vectors below `count` that have any.
        pub(crate) fn take_all(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), Errno> {
            self.collect(Duration::ZERO)?;
            for (vector, read) in (0..count).zip(&mut self.read).filter(|(_, read)| **read > 0) {
                f(vector, std::mem::take(read));
            }
            Ok(())
        }

        /// Waits until a vector has been signalled, or the other descriptor is readable.
        pub(crate) fn wait(&mut self, limit: Duration) -> Result<Ready, Errno> {
            let signalled = |v: &Self| v.read.iter().any(|n| *n > 0);
            let limit = if signalled(self) { Duration::ZERO } else { limit };
            let also = self.collect(limit)?;
            Ok(Ready { signal: signalled(self), also })
        }

        /// Reads the eventfds that were signalled, waiting for one at most `limit`; whether the other descriptor is readable.
        fn collect(&mut self, limit: Duration) -> Result<bool, Errno> {
            let limit = Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            // More than that are named by the next call.
            let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 16];
            let found = match epoll::wait(&self.epoll, &mut events, Some(&limit)) {
                Ok(found) => found,
                Err(Errno::INTR) => 0,
                Err(errno) => return Err(errno),
            };
            let mut also = false;
            for event in events.iter().take(found) {
                let key = event.data;
                let at = usize::try_from(key.u64()).unwrap_or(usize::MAX);
                also |= key.u64() == ALSO;
                let mut count = [0; 8];
                if let (Some(fd), Some(read)) = (self.fds.get(at), self.read.get_mut(at))
                    && rustix::io::read(fd, &mut count) == Ok(8)
                {
                    *read += u64::from_ne_bytes(count);
                }
            }
            Ok(also)
        }
    }
}
