//! The emulated NIC of `ernic`: an AMD Pensando *ionic* device behind vfio-user.
//!
//! The stock Linux driver `ionic` binds to it. [`vfio`] is the transport to QEMU, [`device`] the device itself, [`mem`]
//! the guest's memory, [`link`] the seam to whatever is on the wire. Nothing here knows TCP or S3.
//!
//! Three kinds of failure never mix: a *status* on the wire for the driver, *guest misbehaviour* (counted in
//! [`device::GuestErrors`], logged at a limited rate, never fatal), and *our own failures* (errors up the stack).

pub mod device;
pub mod intr;
pub mod link;
pub mod mem;
pub mod offload;
pub mod pci;
pub mod ratelimit;
pub mod rdma;
mod ring;
pub mod rss;
pub mod vfio;
