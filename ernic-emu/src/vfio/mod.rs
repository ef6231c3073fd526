//! The vfio-user transport: how QEMU (or a test) reaches the device.
//!
//! [`Listener`] gives out [`Connection`]s; a connection turns the client's messages into calls of a [`VfioDevice`] and into maps of
//! [`crate::mem::GuestMemory`]. [`client`] is the other end, for tests that play QEMU. [`proto`] holds the messages as bytes.
//!
//! What is offered, and why: no region can be mapped (one mappable region makes every write of the device wait for its reply in
//! QEMU), `write_multiple`, 16 descriptors per message, 1 MiB of data per message, 65,535 maps of whole 4 KiB pages; no migration, no
//! ioeventfds (they would lose the value that an ionic doorbell carries).
//!
//! What a client can get wrong never ends the server: a command that cannot be carried out gets an error reply, its body is skipped and
//! the stream stays in step; a header that cannot be followed ends the connection. A posted write is never answered; what is wrong with
//! it is logged, with a rate limit.

mod channel;
pub mod client;
mod device;
mod irq;
mod listener;
pub mod proto;
mod server;

pub use channel::ConnError;
pub use device::{IrqAction, RegionInfo, VfioDevice};
pub use irq::IrqTable;
pub use listener::{BindError, Listener};
pub use server::{Connection, DMA_TIMEOUT, Progress, Refusal};

#[cfg(test)]
mod tests;
