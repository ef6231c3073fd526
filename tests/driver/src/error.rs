//! What can go wrong.

use ionic_abi::{AdminOp, AdminStatus, Opcode, Status};

use crate::bus::BusError;

/// Why the driver gave up.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The device could not be reached.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The device says something of itself that the stock driver does not accept.
    #[error("the driver does not accept {what} = {value:#x}")]
    Identity {
        /// Which value.
        what: &'static str,
        /// What it is.
        value: u64,
    },
    /// A command was refused.
    #[error("{opcode} refused: {status}")]
    Refused {
        /// The command.
        opcode: Opcode,
        /// Its completion's status.
        status: Status,
    },
    /// An RDMA admin command was refused.
    #[error("RDMA {op} refused: {status}")]
    Verb {
        /// The command.
        op: AdminOp,
        /// Its completion's status.
        status: AdminStatus,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen in time")]
    Timeout {
        /// What.
        what: &'static str,
    },
    /// Something is there, and no interrupt said so.
    #[error("{what}, and vector {vector} was not signalled")]
    LostInterrupt {
        /// What is there.
        what: &'static str,
        /// The vector.
        vector: u16,
    },
    /// The device did what the stock driver cannot cope with: hang, memory corruption, lost packets.
    #[error("the device broke the rules: {0}")]
    Violation(String),
    /// Guest memory is used up.
    #[error("no guest memory for {0} bytes")]
    NoMemory(usize),
    /// A transmit ring, or its buffer, is full.
    #[error("transmit queue {0} is full")]
    Full(usize),
    /// A connection of the guest's stack failed.
    #[error("connection: {0}")]
    Connection(&'static str),
    /// An HTTP answer makes no sense.
    #[error("HTTP answer: {0}")]
    Http(String),
}
