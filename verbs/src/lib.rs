//! S3 over RDMA on real NICs: the server's end of reliable connections, by libibverbs.
//!
//! A [`Fabric`] opens a device and implements [`RcFabric`](rdma_token::RcFabric): it moves payloads with RDMA WRITE and READ between
//! buffers of its own and the memory that clients' tokens name. Everything about S3 is elsewhere.
//!
//! ```text
//!  a session of hipobj-rc-v2   queue pair ─ in the domain of one buffer ─ which the client of a PUT may write
//!  a connection of v1          queue pair ─ in the device's domain ─ any buffer, and nothing that clients can reach
//! ```
//!
//! # Memory
//!
//! Buffers are registered when the device is opened and lent from then on: there is no other memory, and who finds none is told to
//! come again ([`RemoteError::Exhausted`](rdma_token::RemoteError::Exhausted)). Each has a protection domain of its own in which
//! clients may write, so that a key that a client has learnt opens nothing but what its own queue pair is for; and it is
//! lent again only once that queue pair is destroyed, so that no late packet reaches it.
//!
//! # Threads
//!
//! Futures run on tokio's. Calls of the driver that may sleep are made on tokio's blocking threads; one thread reads completions,
//! another destroys what is done with. Both sleep while nothing happens.
//!
//! # Building
//!
//! [`sideway`] needs cmake and libclang to build. It loads `libibverbs.so.1` when it is first used, so that a program starts
//! without it.

mod completions;
mod config;
mod connections;
mod counters;
mod device;
mod fabric;
mod gid;
mod places;
mod pool;
mod status;

pub use config::{Config, Mtu};
pub use counters::Metrics;
pub use fabric::{Fabric, Facts};

/// Why a device cannot be used. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such device, or none whose port is active.
    #[error("{}: {there}", match wanted { Some(name) => format!("no RDMA device '{name}'"), None => "no usable RDMA device".to_owned() })]
    Device {
        /// The name, if one was given.
        wanted: Option<String>,
        /// What there is.
        there: String,
    },
    /// The port does not exist or is down.
    #[error("port {port} of '{device}': {reason}")]
    Port {
        /// The device's name.
        device: String,
        /// Number of the port.
        port: u8,
        /// Why.
        reason: String,
    },
    /// The port has no address, or not the one that was asked for.
    #[error("port {port} of '{device}' has no GID{}; it has {table}", match index { Some(index) => format!(" {index}"), None => String::new() })]
    Gid {
        /// The device's name.
        device: String,
        /// Number of the port.
        port: u8,
        /// What was asked for.
        index: Option<u8>,
        /// What there is.
        table: String,
    },
    /// The limits are more than the device has room for.
    #[error(
        "{entries} completions are more than the {most} that the device takes: use fewer connections or less depth"
    )]
    Queue {
        /// Completions that the limits make possible.
        entries: u32,
        /// The device's limit.
        most: u32,
    },
    /// There is no memory.
    #[error("there is no memory for a buffer")]
    NoMemory,
    /// A call of the library or the system failed.
    #[error("cannot {what}: {error}{hint}")]
    Verb {
        /// What was to be done.
        what: &'static str,
        /// What came of it.
        error: String,
        /// What may help, if anything: `; …`.
        hint: &'static str,
    },
}
