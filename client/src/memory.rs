//! Memory that a server may reach.

use std::{io, ptr::NonNull, time::Duration};

use rdma_token::{RcTarget, Token, Window};

use crate::mapping::Mapping;

/// Bytes of a page, on the machines that this client runs on.
pub const PAGE: usize = 4096;

/// Why there is no memory to transfer to or from. The text says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The verbs library is not there, or is too old.
    #[error("cannot use libibverbs.so.1: {0}; install rdma-core 32 or newer (Debian: libibverbs1, ibverbs-providers)")]
    Library(String),
    /// There is no such device.
    #[error("no RDMA device{wanted}; {found}", wanted = match .wanted { Some(name) => format!(" '{name}'"), None => String::new() })]
    Device {
        /// The name that was asked for.
        wanted: Option<String>,
        /// Which there are, or how to get one.
        found: String,
    },
    /// The port cannot be used.
    #[error("{device} port {port}: {reason}")]
    Port {
        /// The device.
        device: String,
        /// The port's number.
        port: u8,
        /// What is wrong with it.
        reason: String,
    },
    /// No usable entry in the port's GID table.
    #[error("{device} port {port}: {reason}; the table: {table}")]
    Gid {
        /// The device.
        device: String,
        /// The port's number.
        port: u8,
        /// What is wrong.
        reason: String,
        /// Its entries.
        table: String,
    },
    /// A verb failed.
    #[error("{verb} failed: {source}{hint}")]
    Verb {
        /// The function.
        verb: &'static str,
        /// Why.
        source: io::Error,
        /// What to do, where that is known.
        hint: &'static str,
    },
    /// This program runs where there are no verbs.
    #[error(
        "RDMA is not supported on this platform ({0}): verbs are there on 64-bit Linux; transfers by HTTP work everywhere"
    )]
    Platform(String),
    /// The device registers memory, and that is all that it does.
    #[error("this device has no queue pairs that could be connected: transfer by token")]
    NotConnectable,
    /// A transfer over a queue pair did not succeed.
    #[error("the {what} over queue pair {qpn:#x} failed: {status}")]
    Completion {
        /// Which transfer.
        what: &'static str,
        /// The queue pair.
        qpn: u32,
        /// What its completion says.
        status: String,
    },
    /// Nothing was heard of a transfer over a queue pair.
    #[error("the {what} over queue pair {qpn:#x} did not complete within {patience:?}")]
    Silence {
        /// Which transfer.
        what: &'static str,
        /// The queue pair.
        qpn: u32,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The device registers memory that does not start with a page.
    #[error("the buffer is at {0:#x}, which is not the start of a page")]
    Unaligned(u64),
    /// No memory from the system.
    #[error("cannot map {length} bytes: {source}")]
    Map {
        /// How many.
        length: usize,
        /// Why.
        source: io::Error,
    },
}

/// What a server may do to a region. The client itself can always read and write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Read it: for PUT.
    pub remote_read: bool,
    /// Write it: for GET.
    pub remote_write: bool,
}

impl Rights {
    /// Both.
    pub const ALL: Self = Self { remote_read: true, remote_write: true };
    /// Neither.
    pub const NONE: Self = Self { remote_read: false, remote_write: false };
}

/// A region that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, at least 1.
    pub length: usize,
    /// Bytes between the start of a page and the region's first byte, less than [`PAGE`].
    pub offset: usize,
    /// What a server may do.
    pub rights: Rights,
}

impl Layout {
    /// A region that starts with a page and that a server may read and write.
    #[must_use]
    pub fn aligned(length: usize) -> Self {
        Self { length, offset: 0, rights: Rights::ALL }
    }
}

/// Where the client is reached: what a token says beside its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// Address of the port, as it is on the wire.
    pub gid: [u8; 16],
    /// Number of the port, from 1.
    pub number: u8,
    /// Local identifier; 0 for RoCE.
    pub lid: u16,
}

/// Whoever registers memory for remote access.
pub trait Registrar: Send + Sync {
    /// Where the client is reached.
    fn port(&self) -> Port;

    /// Allocates and registers memory. Its content is zeros. Errors: [`MemoryError::Map`], [`MemoryError::Verb`].
    fn register(&self, layout: Layout) -> Result<Box<dyn Region>, MemoryError>;

    /// Makes a queue pair for one transfer, with a server that connects to it. Errors: [`MemoryError::Verb`];
    /// [`MemoryError::NotConnectable`], which is what this says unless the device says otherwise.
    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, MemoryError> {
        Err(MemoryError::NotConnectable)
    }
}

/// A completion of the server's RDMA WRITE with immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes that it wrote.
    pub bytes: u64,
    /// The immediate, as a number.
    pub immediate: u32,
}

/// A reliably connected queue pair. Dropped, it is gone.
pub trait QueuePair: Send {
    /// Where it is reached.
    fn port(&self) -> Port;

    /// Lets one RDMA WRITE with immediate come, and connects to the server's queue pair. `psn` is the first packet that this side
    /// sends, `peer_psn` the first that the server does.
    ///
    /// Errors: [`MemoryError::Verb`]. That nobody is there is seen by what is transferred.
    fn connect(&mut self, peer: &Token, psn: u32, peer_psn: u32) -> Result<(), MemoryError>;

    /// Writes the window, which lies in the region, to the server's memory with an immediate, and waits for the completion.
    ///
    /// Errors: [`MemoryError::Verb`], [`MemoryError::Completion`], [`MemoryError::Silence`].
    fn write(&mut self, region: &dyn Region, window: Window, to: RcTarget, immediate: u32) -> Result<(), MemoryError>;

    /// Waits for the server's RDMA WRITE. Errors: as of [`QueuePair::write`].
    fn arrived(&mut self, patience: Duration) -> Result<Arrived, MemoryError>;
}

/// Registered memory. Dropping it gives the registration up first and the memory then.
///
/// It is copied in and out, never borrowed: a server may write into it at any time.
pub trait Region: Send {
    /// Address of the first byte, as the server names it.
    fn address(&self) -> u64;

    /// Bytes.
    fn length(&self) -> usize;

    /// The key that a server needs.
    fn rkey(&self) -> u32;

    /// The key that work requests of this side need; 0 where there are none.
    fn lkey(&self) -> u32 {
        0
    }

    /// Copies `bytes` to `offset`. Panics if they do not fit there.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// Copies from `offset`. Panics if there are not as many bytes.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// The first byte in this process, for programs that fill memory in place. The pointer is good for [`Region::length`] bytes and
    /// as long as the region; what it is used for is up to the caller. `None` if the memory is not this process's.
    fn pointer(&mut self) -> Option<NonNull<u8>> {
        None
    }

    /// Gives the registration up and keeps the memory. It stays readable here; its key must be worthless from now on.
    fn deregister(&mut self) -> Result<(), MemoryError>;
}

impl std::fmt::Debug for dyn Region + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:#x}, {} bytes, rkey {:#x})", self.address(), self.length(), self.rkey())
    }
}

impl std::fmt::Debug for dyn Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registrar({:?})", self.port())
    }
}

/// Memory that no server can reach, for transfers in HTTP bodies. It starts with a page.
#[derive(Debug)]
pub struct Plain(Mapping);

impl Plain {
    /// `length` zeros, at least 1. Errors: [`MemoryError::Map`].
    pub fn new(length: usize) -> Result<Self, MemoryError> {
        Mapping::new(length, 0).map(Self)
    }
}

impl Region for Plain {
    fn address(&self) -> u64 {
        self.0.start().addr().get() as u64
    }

    fn length(&self) -> usize {
        self.0.length()
    }

    /// 0, which every server refuses.
    fn rkey(&self) -> u32 {
        0
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    fn pointer(&mut self) -> Option<NonNull<u8>> {
        Some(self.0.start())
    }

    fn deregister(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }
}
