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
        event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
        io::Errno,
    };

    /// The eventfds of the vectors in use.
    #[derive(Debug, Default)]
    pub(crate) struct Vectors {
        fds: Vec<OwnedFd>,
        /// Signals that were read while waiting and not yet taken.
        read: Vec<u64>,
    }

    impl Vectors {
        pub(crate) fn new(count: u16) -> Result<Self, Errno> {
            let make = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
            let fds = std::iter::repeat_with(make).take(count.into()).collect::<Result<Vec<_>, _>>()?;
            Ok(Self { read: vec![0; fds.len()], fds })
        }

        pub(crate) fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
            self.fds.iter().map(AsFd::as_fd)
        }

        pub(crate) fn take(&mut self, vector: u16) -> u64 {
            let at = usize::from(vector);
            self.collect(at);
            self.read.get_mut(at).map_or(0, std::mem::take)
        }

        fn collect(&mut self, at: usize) {
            let mut count = [0; 8];
            if let Some(fd) = self.fds.get(at)
                && rustix::io::read(fd, &mut count) == Ok(8)
                && let Some(read) = self.read.get_mut(at)
            {
                *read += u64::from_ne_bytes(count);
            }
        }

        /// Waits until a vector has been signalled, or `also` is readable.
        pub(crate) fn wait(&self, also: Option<BorrowedFd<'_>>, limit: Duration) -> Result<Ready, Errno> {
            if self.read.iter().any(|n| *n > 0) {
                return Ok(Ready { signal: true, also: false });
            }
            let mut fds: Vec<PollFd<'_>> = self.fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            fds.extend(also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let limit = Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            match poll(&mut fds, Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let (signals, others) = fds.split_at(self.fds.len());
            Ok(Ready { signal: signals.iter().any(ready), also: others.iter().any(ready) })
        }
    }

    /// What there is to do after waiting.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Ready {
        pub(crate) signal: bool,
        pub(crate) also: bool,
    }
}
