//! Client memory for tests: a table in this process. And the device of a server that reaches it over connections.

mod fabric;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use crate::{
    Descriptor, Qpn, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token, TokenHeader, Transport, Window,
};

pub use fabric::{Arrival, Fabric, Peer, Step};

/// Bytes on either side of a region that no transfer may touch.
const CANARY: usize = 4096;

/// What they hold.
const CANARY_BYTE: u8 = 0xc5;

/// GID of the client in the tokens that are made: ::ffff:192.168.200.9.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 9];

/// Its queue pair.
const QPN: u32 = 0x12_3456;

/// Registered memory of one client. Clones share it.
///
/// Keys, bounds, rights and staleness are checked as [`RemoteMemory`] says. Keys are never used twice. The methods of the table
/// itself panic on a key that it did not give out: a test that does so is wrong.
#[derive(Debug, Clone, Default)]
pub struct Regions(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    regions: BTreeMap<u32, Region>,
    moved: Moved,
    fault: Option<(u64, RemoteError)>,
}

#[derive(Debug)]
struct Region {
    window: Window,
    /// The region's bytes with [`CANARY`] others on either side.
    memory: Vec<u8>,
    rights: Vec<RemoteAccess>,
    valid: bool,
}

/// What has been done to the memory of a [`Regions`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Windows that were opened.
    pub opened: u64,
    /// Bytes that were read out of the client's memory, those of failed transfers among them.
    pub read: u64,
    /// Bytes that were written into the client's memory, those of failed transfers among them.
    pub written: u64,
    /// Bytes of the largest transfer.
    pub largest: usize,
}

impl Regions {
    /// No memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers memory at `address` that holds `content`, and returns its rkey. Panics if it leaves the address space.
    #[must_use]
    pub fn register(&self, address: u64, content: &[u8], rights: &[RemoteAccess]) -> u32 {
        let window = Window { address, length: content.len() as u64 };
        assert!(window.length == 0 || address.checked_add(window.length - 1).is_some(), "{window:x?} wraps");
        let canary = [CANARY_BYTE; CANARY];
        let memory = [&canary, content, &canary].concat();
        let mut table = self.table();
        // As a NIC makes them: an index above a byte that varies.
        let rkey = table.regions.last_key_value().map_or(0x0000_01a7, |(last, _)| last + 0x101);
        table.regions.insert(rkey, Region { window, memory, rights: rights.to_vec(), valid: true });
        rkey
    }

    /// Gives a registration up: from now on its key is stale, in open windows as well.
    pub fn deregister(&self, rkey: u32) {
        self.table().region_mut(rkey).valid = false;
    }

    /// What a region holds. Panics if its canaries were touched.
    #[must_use]
    pub fn content(&self, rkey: u32) -> Vec<u8> {
        self.table().region_mut(rkey).content().to_vec()
    }

    /// Replaces what a region holds, from its beginning.
    pub fn fill(&self, rkey: u32, content: &[u8]) {
        self.table().region_mut(rkey).memory[CANARY..][..content.len()].copy_from_slice(content);
    }

    /// What has been moved.
    #[must_use]
    pub fn moved(&self) -> Moved {
        self.table().moved
    }

    /// Makes the transfer fail in which, counted over all of them from now on, byte number `bytes` (from 0) would move. The bytes
    /// before it do. Later windows work.
    pub fn fail_after(&self, bytes: u64, error: RemoteError) {
        self.table().fault = Some((bytes, error));
    }

    /// Family A token of a whole region.
    #[must_use]
    pub fn token(&self, rkey: u32) -> Token {
        let Window { address, length } = self.table().region_mut(rkey).window;
        Token { transport: Transport::Rc, qpn: QPN, gid: GID, rkey, address, length, port: 1, lid: 0 }
    }

    /// Family C token of a whole region. Panics if it is 4 GiB or larger.
    #[must_use]
    pub fn descriptor(&self, rkey: u32) -> Descriptor {
        let Window { address, length } = self.table().region_mut(rkey).window;
        let length = u32::try_from(length).expect("a region of less than 4 GiB");
        Descriptor { address, length, rkey, lid: 0, qpn: Qpn::new(QPN).expect("24 bits"), gid: Some(GID) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn region_mut(&mut self, rkey: u32) -> &mut Region {
        self.regions.get_mut(&rkey).unwrap_or_else(|| panic!("rkey {rkey:#x} was not given out"))
    }

    /// A registration that a client may use.
    fn find(&mut self, rkey: u32, access: RemoteAccess) -> Result<&mut Region, RemoteError> {
        if rkey == 0 {
            return Err(RemoteError::ReservedKey);
        }
        let region = self.regions.get_mut(&rkey).ok_or(RemoteError::UnknownKey(rkey))?;
        if !region.valid {
            return Err(RemoteError::Stale(rkey));
        }
        if !region.rights.contains(&access) {
            return Err(RemoteError::Access(access));
        }
        Ok(region)
    }

    /// How many of `length` bytes move before a fault, and the fault.
    fn fault(&mut self, length: usize) -> (usize, Option<RemoteError>) {
        match self.fault.take() {
            Some((left, error)) => match (length as u64).checked_sub(left) {
                None | Some(0) => {
                    self.fault = Some((left - length as u64, error));
                    (length, None)
                }
                Some(_) => (usize::try_from(left).unwrap_or(length), Some(error)),
            },
            None => (length, None),
        }
    }
}

impl Region {
    fn content(&self) -> &[u8] {
        let (before, rest) = self.memory.split_at(CANARY);
        let (content, after) = rest.split_at(rest.len() - CANARY);
        for canary in [before, after] {
            assert!(canary.iter().all(|&byte| byte == CANARY_BYTE), "bytes beside {:x?} were touched", self.window);
        }
        content
    }

    /// The bytes of a part of the region.
    fn bytes(&mut self, part: Window) -> Option<&mut [u8]> {
        if part.length == 0 {
            return Some(&mut []);
        }
        let offset = usize::try_from(part.address.checked_sub(self.window.address)?).ok()?;
        let length = usize::try_from(part.length).ok()?;
        self.memory.get_mut(CANARY..)?.get_mut(offset..)?.get_mut(..length)
    }
}

#[async_trait]
impl RemoteMemory for Regions {
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let mut table = self.table();
        let region = table.find(header.rkey(), access)?;
        let window = header.window().clip(region.window).ok_or_else(|| RemoteError::Bounds(header.window()))?;
        table.moved.opened += 1;
        Ok(Box::new(Open { regions: self.clone(), rkey: header.rkey(), access, window, failed: None }))
    }
}

/// A window of a [`Regions`].
#[derive(Debug)]
struct Open {
    regions: Regions,
    rkey: u32,
    access: RemoteAccess,
    window: Window,
    failed: Option<RemoteError>,
}

impl Open {
    /// Lets `copy` have the bytes that it may move.
    fn transfer(
        &mut self,
        access: RemoteAccess,
        offset: u64,
        length: usize,
        copy: impl FnOnce(&mut [u8]),
    ) -> Result<(), RemoteError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.try_transfer(access, offset, length, copy);
        self.failed = result.clone().err();
        result
    }

    fn try_transfer(
        &self,
        access: RemoteAccess,
        offset: u64,
        length: usize,
        copy: impl FnOnce(&mut [u8]),
    ) -> Result<(), RemoteError> {
        if access != self.access {
            return Err(RemoteError::Access(access));
        }
        let all = Window { address: self.window.address.saturating_add(offset), length: length as u64 };
        let all = self.window.part(offset, all.length).ok_or(RemoteError::Bounds(all))?;
        let mut table = self.regions.table();
        table.find(self.rkey, access)?;
        let (moves, fault) = table.fault(length);
        let region = table.region_mut(self.rkey);
        copy(region.bytes(Window { length: moves as u64, ..all }).ok_or(RemoteError::Bounds(all))?);
        let moved = &mut table.moved;
        match access {
            RemoteAccess::Read => moved.read += moves as u64,
            RemoteAccess::Write => moved.written += moves as u64,
        }
        moved.largest = moved.largest.max(length);
        fault.map_or(Ok(()), Err)
    }
}

#[async_trait]
impl RemoteWindow for Open {
    fn len(&self) -> u64 {
        self.window.length
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        self.transfer(RemoteAccess::Read, offset, into.len(), |bytes| into[..bytes.len()].copy_from_slice(bytes))
    }

    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        self.transfer(RemoteAccess::Write, offset, from.len(), |bytes| bytes.copy_from_slice(&from[..bytes.len()]))
    }
}
