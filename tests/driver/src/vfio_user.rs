//! The device behind a vfio-user socket, reached as QEMU reaches it.

use std::{
    os::fd::BorrowedFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ernic_emu::{mem::Prot, vfio::client::Client};

use crate::{
    bus::{Bar, Bus, BusError, CONFIG_REGION, MSIX_INDEX, vectors::Vectors},
    ram::{GuestRam, PAGE},
};

/// How BAR writes are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Writes {
    /// Posted, one message each: QEMU with an idle socket.
    #[default]
    Posted,
    /// Posted, gathered into WRITE_MULTI messages of up to this many (QEMU under a burst) and sent before anything that
    /// is not a BAR write.
    Multi(usize),
    /// Waiting for each reply: QEMU with `x-no-posted-writes`.
    Synchronous,
}

/// How guest memory is mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Maps {
    /// One map.
    #[default]
    Whole,
    /// Maps of this many bytes (a multiple of 4096), each with a descriptor of its own: a guest with a virtual IOMMU.
    Pieces(usize),
    /// Without a descriptor: the device asks for every byte by message.
    Messages,
}

/// How long DMA messages are answered, once one has come, before interrupts are looked at again.
const SERVE: Duration = Duration::from_micros(200);

/// Where QEMU has its ROMs: mapped read-only, without a descriptor.
const ROMS: [(u64, u64); 2] = [(0xc_0000, 0x2_0000), (0xfffc_0000, 0x4_0000)];

/// A client of a vfio-user server.
#[derive(Debug)]
pub struct VfioUser {
    /// The connection.
    pub client: Client,
    ram: GuestRam,
    vectors: Vectors,
    writes: Writes,
    batch: Vec<(u32, u64, [u8; 8], usize)>,
    maps: Maps,
    origin: Instant,
}

impl VfioUser {
    /// Connects to the server at `path` and does what QEMU does at start: version, regions, interrupts, ROMs without a
    /// descriptor, memory, reset.
    ///
    /// # Errors
    /// Nobody listens, or the server refuses.
    pub fn connect(path: impl AsRef<Path>, ram: GuestRam) -> Result<Self, BusError> {
        Self::start(Client::connect(path)?, ram, Maps::Whole)
    }

    /// As [`VfioUser::connect`], over a connected and negotiated client, with memory mapped as `maps` says.
    ///
    /// # Errors
    /// The server refuses.
    pub fn start(client: Client, ram: GuestRam, maps: Maps) -> Result<Self, BusError> {
        client.set_memory(Some(Arc::new(ram.clone())));
        client.device_info()?;
        for region in 0..9 {
            client.region_info(region)?;
        }
        for index in 0..5 {
            client.irq_info(index)?;
        }
        for (iova, len) in ROMS {
            client.dma_map_message(iova, len, Prot::READ)?;
        }
        let mut bus = Self {
            vectors: Vectors::new(0, Some(client.fd()))?,
            client,
            ram,
            writes: Writes::default(),
            batch: Vec::new(),
            maps,
            origin: Instant::now(),
        };
        bus.map_ram()?;
        bus.client.reset()?;
        Ok(bus)
    }

    /// Chooses how BAR writes are sent.
    ///
    /// # Errors
    /// Writes that wait cannot be sent.
    pub fn set_writes(&mut self, writes: Writes) -> Result<(), BusError> {
        self.flush()?;
        self.writes = writes;
        Ok(())
    }

    /// Takes all of the guest's memory from the device and gives it back in another shape: what a guest's change of its
    /// IOMMU domain looks like. Nothing of it may be in use by the device.
    ///
    /// # Errors
    /// The server refuses.
    pub fn remap(&mut self, maps: Maps) -> Result<(), BusError> {
        self.unmap_ram()?;
        self.maps = maps;
        self.map_ram()
    }

    /// How memory is mapped.
    #[must_use]
    pub fn maps(&self) -> Maps {
        self.maps
    }

    /// Takes the guest's memory away.
    ///
    /// # Errors
    /// The server refuses.
    pub fn unmap_ram(&mut self) -> Result<(), BusError> {
        self.flush()?;
        Ok(self.client.dma_unmap(self.ram.iova(), self.ram.len() as u64)?)
    }

    /// Gives the guest's memory back.
    ///
    /// # Errors
    /// The server refuses.
    pub fn map_ram(&mut self) -> Result<(), BusError> {
        let (iova, len, prot) = (self.ram.iova(), self.ram.len() as u64, Prot::READ | Prot::WRITE);
        let piece = match self.maps {
            Maps::Whole => len,
            Maps::Pieces(piece) => piece.next_multiple_of(PAGE) as u64,
            Maps::Messages => return Ok(self.client.dma_map_message(iova, len, prot)?),
        };
        let mut at = 0;
        while at < len {
            let here = piece.min(len - at);
            self.client.dma_map(iova + at, here, prot, self.ram.fd(), at)?;
            at += here;
        }
        Ok(())
    }

    /// Sends the writes that wait to be gathered.
    ///
    /// # Errors
    /// The connection is over.
    pub fn flush(&mut self) -> Result<(), BusError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let writes: Vec<(u32, u64, &[u8])> =
            self.batch.iter().map(|(region, offset, data, len)| (*region, *offset, &data[..*len])).collect();
        self.client.region_write_multi(&writes, true)?;
        self.batch.clear();
        Ok(())
    }
}

impl Bus for VfioUser {
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.flush()?;
        Ok(self.client.region_read(bar.region(), offset, data)?)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), BusError> {
        let region = bar.region();
        match self.writes {
            Writes::Multi(most) if data.len() <= 8 => {
                let mut bytes = [0; 8];
                bytes[..data.len()].copy_from_slice(data);
                self.batch.push((region, offset, bytes, data.len()));
                if self.batch.len() >= most { self.flush() } else { Ok(()) }
            }
            Writes::Posted | Writes::Multi(_) => {
                self.flush()?;
                Ok(self.client.region_write_posted(region, offset, data)?)
            }
            Writes::Synchronous => Ok(self.client.region_write(region, offset, data)?),
        }
    }

    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.flush()?;
        Ok(self.client.region_read(CONFIG_REGION, offset, data)?)
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.flush()?;
        Ok(self.client.region_write(CONFIG_REGION, offset, data)?)
    }

    fn reset(&mut self) -> Result<(), BusError> {
        self.flush()?;
        Ok(self.client.reset()?)
    }

    fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// In QEMU's way: at MSI-X enable one vector without a descriptor, then all gone, then all there.
    fn set_vectors(&mut self, count: u16) -> Result<(), BusError> {
        self.flush()?;
        self.vectors = Vectors::new(count, Some(self.client.fd()))?;
        if count > 0 {
            self.client.remove_irqs(MSIX_INDEX, 0, 1)?;
        }
        self.client.disable_irqs(MSIX_INDEX)?;
        let fds: Vec<BorrowedFd<'_>> = self.vectors.iter().collect();
        Ok(self.client.install_irqs(MSIX_INDEX, 0, &fds)?)
    }

    fn take_irq(&mut self, vector: u16) -> Result<u64, BusError> {
        Ok(self.vectors.take(vector)?)
    }

    fn take_irqs(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), BusError> {
        Ok(self.vectors.take_all(count, f)?)
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, BusError> {
        self.flush()?;
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let ready = self.vectors.wait(left)?;
            if ready.also {
                // DMA by message, or the end of the connection.
                self.client.serve(SERVE)?;
            }
            if ready.signal {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}
