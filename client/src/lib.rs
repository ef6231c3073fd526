//! S3 over RDMA from host memory: a client, and what the tool `ernic-bench` is made of.
//!
//! A client registers memory with a verbs device, names a window of it in the `x-amz-rdma-token` header of an ordinary S3
//! request, and finds the object there when the answer comes, or has the object taken from there. What the answer says is
//! believed only if all of it fits together.
//!
//! Programs use [`Session`]; what it is made of is public as well.
//!
//! ```text
//!  bench, functional, soak    what ernic-bench does
//!  session                    buffers, uploads, downloads, parts
//!  transfer · rc              tokens, connections, replies, byte counts, when to take the body instead
//!  s3 · sigv4 · http · xml    requests over TCP            memory · verbs · gid    memory that a server may reach
//! ```
//!
//! [`Registrar`](memory::Registrar) is the seam between the two halves: a [`Device`](verbs::Device), or in tests a table of
//! memory in the same process.

#![deny(unsafe_code)]

pub mod bench;
pub mod counters;
mod error;
pub mod functional;
pub mod gid;
mod http1;
mod mapping;
pub mod memory;
pub mod rc;
pub mod s3;
pub mod session;
pub mod sigv4;
pub mod size;
pub mod soak;
pub mod transfer;
pub mod verbs;
mod xml;

pub use error::{ClientError, Refusal, Violation};
pub use rc::Protocol;
pub use session::{Buffer, Carrier, Session, Transfer, Upload, rdma_available};
