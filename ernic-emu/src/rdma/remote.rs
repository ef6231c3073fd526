//! The guest's registered memory, as whoever holds a token sees it.

use async_trait::async_trait;
use ionic_abi::MrFlags;
use rdma_token::{RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, TokenHeader, Window};

use super::{MemoryRegions, RegionError};
use crate::mem::GuestMemory;

/// The memory of the one guest. A copy runs inside the call: callers cut a transfer into pieces.
///
/// Whose queue pair the token names is not looked at: the NIC owns every registration, and only a registration's own rights
/// count.
#[derive(Debug, Clone)]
pub struct NicMemory {
    regions: MemoryRegions,
    mem: GuestMemory,
}

impl NicMemory {
    /// The regions of a device ([`crate::device::Device::regions`]) in the memory of its guest.
    #[must_use]
    pub fn new(regions: MemoryRegions, mem: GuestMemory) -> Self {
        Self { regions, mem }
    }
}

fn right(access: RemoteAccess) -> MrFlags {
    match access {
        RemoteAccess::Read => MrFlags::REMOTE_READ,
        RemoteAccess::Write => MrFlags::REMOTE_WRITE,
    }
}

fn refused(error: RegionError, rkey: u32, access: RemoteAccess, range: Window) -> RemoteError {
    match error {
        RegionError::Reserved => RemoteError::ReservedKey,
        RegionError::Unknown => RemoteError::UnknownKey(rkey),
        RegionError::Stale => RemoteError::Stale(rkey),
        RegionError::Access => RemoteError::Access(access),
        RegionError::Bounds => RemoteError::Bounds(range),
        RegionError::Dma(error) => RemoteError::Transport(error.to_string()),
    }
}

#[async_trait]
impl RemoteMemory for NicMemory {
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let (rkey, asked) = (header.rkey(), header.window());
        let region = self.regions.extent(rkey, right(access)).map_err(|error| refused(error, rkey, access, asked))?;
        let window = asked.clip(region).ok_or(RemoteError::Bounds(asked))?;
        Ok(Box::new(NicWindow { memory: self.clone(), rkey, access, window, failed: None }))
    }
}

/// An open window.
struct NicWindow {
    memory: NicMemory,
    rkey: u32,
    access: RemoteAccess,
    window: Window,
    failed: Option<RemoteError>,
}

impl NicWindow {
    /// Does one transfer; after a failure every other fails likewise.
    fn transfer(
        &mut self,
        access: RemoteAccess,
        offset: u64,
        len: usize,
        copy: impl FnOnce(&NicMemory, u32, u64) -> Result<(), RegionError>,
    ) -> Result<(), RemoteError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let done = self.try_transfer(access, offset, len, copy);
        self.failed = done.clone().err();
        done
    }

    fn try_transfer(
        &self,
        access: RemoteAccess,
        offset: u64,
        len: usize,
        copy: impl FnOnce(&NicMemory, u32, u64) -> Result<(), RegionError>,
    ) -> Result<(), RemoteError> {
        if access != self.access {
            return Err(RemoteError::Access(access));
        }
        let length = u64::try_from(len).unwrap_or(u64::MAX);
        let range = self.window.part(offset, length);
        let asked = Window { address: self.window.address.wrapping_add(offset), length };
        let range = range.ok_or(RemoteError::Bounds(asked))?;
        copy(&self.memory, self.rkey, range.address).map_err(|error| match error {
            // It was there when the window was opened.
            RegionError::Unknown => RemoteError::Stale(self.rkey),
            error => refused(error, self.rkey, access, range),
        })
    }
}

#[async_trait]
impl RemoteWindow for NicWindow {
    fn len(&self) -> u64 {
        self.window.length
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        self.transfer(RemoteAccess::Read, offset, into.len(), |memory, rkey, address| {
            memory.regions.read(&memory.mem, rkey, address, into)
        })
    }

    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        self.transfer(RemoteAccess::Write, offset, from.len(), |memory, rkey, address| {
            memory.regions.store(&memory.mem, rkey, address, from)
        })
    }
}
