//! The device in the same thread, without a transport.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use ernic_emu::{
    device::{Device, DeviceConfig, Poll},
    link::Link,
    mem::{GuestMemory, Prot},
    vfio::{IrqAction, VfioDevice},
};

use crate::{
    bus::{Bar, Bus, BusError, CONFIG_REGION, MSIX_INDEX, vectors::Vectors},
    ram::GuestRam,
};

/// How far the clock moves on while nothing else does.
const STEP: Duration = Duration::from_millis(1);

/// A device and what is on its wire, driven directly: a register write is a call, and the device gets its turns in
/// [`Bus::wait`] and [`InProcess::turn`].
///
/// Its clock is real time plus what was skipped: waiting for something that does not happen jumps ahead in steps of a
/// millisecond instead of sleeping, unless [`InProcess::sleep`] is set.
#[derive(Debug)]
pub struct InProcess<L> {
    /// The device.
    pub device: Device,
    /// What is on its wire.
    pub link: L,
    /// Sleep instead of skipping time: for links that wait for other threads.
    pub sleep: bool,
    ram: GuestRam,
    vectors: Vectors,
    origin: Instant,
    skipped: Duration,
}

impl<L: Link> InProcess<L> {
    /// A device after power-on, with `ram` mapped at its address.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub fn new(config: DeviceConfig, link: L, ram: GuestRam) -> Result<Self, BusError> {
        let mem = GuestMemory::new();
        let mut bus = Self {
            device: Device::new(config, mem),
            link,
            sleep: false,
            ram,
            vectors: Vectors::new(0, None)?,
            origin: Instant::now(),
            skipped: Duration::ZERO,
        };
        bus.map_ram()?;
        Ok(bus)
    }

    /// Maps the guest's memory again, in one piece.
    ///
    /// # Errors
    /// It is mapped already.
    pub fn map_ram(&mut self) -> Result<(), BusError> {
        let fd = self.ram.fd().try_clone_to_owned()?;
        self.device
            .memory()
            .map_fd(self.ram.iova(), self.ram.len() as u64, Prot::READ | Prot::WRITE, fd, 0)
            .map_err(|e| BusError::Refused(e.errno()))
    }

    /// Takes the guest's memory away from the device, as DMA_UNMAP does.
    pub fn unmap_ram(&mut self) {
        let (iova, len) = (self.ram.iova(), self.ram.len() as u64);
        self.device.dma_unmapping(iova, len);
        self.device.memory().unmap(iova, len);
    }

    /// Gives the device one turn.
    pub fn turn(&mut self) -> Poll {
        let now = self.now();
        self.device.poll(now, &mut self.link)
    }

    /// Gives the device turns until it has nothing left to do now.
    pub fn settle(&mut self) {
        while self.turn().more {}
    }

    /// Moves the clock ahead.
    pub fn skip(&mut self, time: Duration) {
        self.skipped += time;
    }
}

impl<L: Link> Bus for InProcess<L> {
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.device.region_read(bar.region(), offset, data).map_err(BusError::Refused)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.device.region_write(bar.region(), offset, data).map_err(BusError::Refused)
    }

    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.device.region_read(CONFIG_REGION, offset, data).map_err(BusError::Refused)
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.device.region_write(CONFIG_REGION, offset, data).map_err(BusError::Refused)
    }

    fn reset(&mut self) -> Result<(), BusError> {
        VfioDevice::reset(&mut self.device);
        Ok(())
    }

    fn ram(&self) -> &GuestRam {
        &self.ram
    }

    fn set_vectors(&mut self, count: u16) -> Result<(), BusError> {
        self.vectors = Vectors::new(count, None)?;
        let fds = self.vectors.iter().map(|fd| fd.as_fd().try_clone_to_owned().map(Some)).collect::<Result<_, _>>()?;
        let set = |device: &mut Device, action| device.set_irqs(MSIX_INDEX, action).map_err(BusError::Refused);
        set(&mut self.device, IrqAction::DisableAll)?;
        set(&mut self.device, IrqAction::EventFds { start: 0, fds })
    }

    fn take_irq(&mut self, vector: u16) -> Result<u64, BusError> {
        Ok(self.vectors.take(vector)?)
    }

    fn take_irqs(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), BusError> {
        Ok(self.vectors.take_all(count, f)?)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, BusError> {
        let end = self.now() + limit;
        loop {
            let more = self.turn().more;
            if self.vectors.wait(Duration::ZERO)?.signal {
                return Ok(true);
            }
            if more {
                continue;
            }
            let now = self.now();
            if now >= end {
                return Ok(false);
            }
            let step = STEP.min(end - now);
            if self.sleep {
                std::thread::sleep(step);
            } else {
                self.skip(step);
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed() + self.skipped
    }
}
