//! The way to the device, with interrupts taken as a hypervisor takes them.
//!
//! [`VfioUser`] asks each of its 33 eventfds after every wait, which costs more than the answer it waits for. Here one
//! `epoll_wait` names those that were signalled. Everything else is [`VfioUser`]'s.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use ionic_driver::{
    Bar, Bus, BusError, GuestRam, VfioUser,
    bus::{CONFIG_REGION, MSIX_INDEX},
};
use rustix::{
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
};

use crate::stats::Samples;

/// The epoll key of the socket; those of vectors are their numbers.
const SOCKET: u64 = u64::MAX;

/// A guest's view of the device.
#[derive(Debug)]
pub struct GuestBus {
    inner: VfioUser,
    epoll: OwnedFd,
    vectors: Vec<OwnedFd>,
    /// Signals of each vector that were read and not yet taken.
    signals: Vec<u64>,
    waiting: bool,
    /// While set, a wait does not sleep but reads a register now and then; how long each read took.
    pub probes: Option<Samples>,
}

/// Pause between two reads of a register that nobody has asked for: they come at moments that have nothing to do with what the
/// server does.
const PAUSE: Duration = Duration::from_micros(50);

impl GuestBus {
    /// Takes over the interrupts of a bus whose vectors are not yet set.
    pub fn new(inner: VfioUser) -> Result<Self, BusError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inner.client.fd(), EventData::new_u64(SOCKET), EventFlags::IN)?;
        Ok(Self { inner, epoll, vectors: Vec::new(), signals: Vec::new(), waiting: false, probes: None })
    }

    /// Reads the eventfds that were signalled, waiting for one at most `limit`.
    fn collect(&mut self, limit: Duration) -> Result<(), BusError> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; 8];
        let found = match epoll::wait(&self.epoll, &mut events, Some(&limit)) {
            Ok(found) => found,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        for event in events.iter().take(found) {
            let key = event.data;
            if key.u64() == SOCKET {
                // DMA by message, or the end of the connection.
                self.inner.client.serve(Duration::ZERO)?;
                continue;
            }
            let at = usize::try_from(key.u64()).unwrap_or(usize::MAX);
            let mut count = [0; 8];
            if let (Some(fd), Some(signals)) = (self.vectors.get(at), self.signals.get_mut(at))
                && rustix::io::read(fd, &mut count) == Ok(8)
            {
                *signals += u64::from_ne_bytes(count);
                self.waiting = true;
            }
        }
        Ok(())
    }
}

impl Bus for GuestBus {
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.inner.read(bar, offset, data)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.inner.write(bar, offset, data)
    }

    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        Ok(self.inner.client.region_read(CONFIG_REGION, offset, data)?)
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        Ok(self.inner.client.region_write(CONFIG_REGION, offset, data)?)
    }

    fn reset(&mut self) -> Result<(), BusError> {
        self.inner.reset()
    }

    fn ram(&self) -> &GuestRam {
        self.inner.ram()
    }

    fn set_vectors(&mut self, count: u16) -> Result<(), BusError> {
        let make = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let fds = std::iter::repeat_with(make).take(count.into()).collect::<Result<Vec<_>, _>>()?;
        for (fd, key) in fds.iter().zip(0..) {
            epoll::add(&self.epoll, fd, EventData::new_u64(key), EventFlags::IN)?;
        }
        let client = &self.inner.client;
        client.disable_irqs(MSIX_INDEX)?;
        client.install_irqs(MSIX_INDEX, 0, &fds.iter().map(AsFd::as_fd).collect::<Vec<BorrowedFd<'_>>>())?;
        self.signals = vec![0; fds.len()];
        // Closing the old ones takes them out of the epoll set: the server has let go of its copies.
        self.vectors = fds;
        Ok(())
    }

    /// The driver asks for all vectors in turn, from 0 on.
    fn take_irq(&mut self, vector: u16) -> Result<u64, BusError> {
        if vector == 0 {
            if !self.waiting {
                self.collect(Duration::ZERO)?;
            }
            self.waiting = false;
        }
        Ok(self.signals.get_mut(usize::from(vector)).map_or(0, std::mem::take))
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, BusError> {
        let end = Instant::now().checked_add(limit);
        while !self.waiting && self.probes.is_some() {
            self.collect(Duration::ZERO)?;
            let (mut signature, start) = ([0; 4], Instant::now());
            self.inner.read(Bar::Registers, 0, &mut signature)?;
            if let Some(probes) = &mut self.probes {
                probes.push(start.elapsed());
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        while !self.waiting {
            let left = end.map_or(limit, |end| end.saturating_duration_since(Instant::now()));
            self.collect(left)?;
            if left.is_zero() {
                break;
            }
        }
        Ok(self.waiting)
    }

    fn now(&self) -> Duration {
        self.inner.now()
    }
}
