//! S3 over RDMA from host memory: a client, and what the tool `ernic-bench` is made of.
//!
//! A client registers memory with a verbs device, names a window of it in the `x-amz-rdma-token` header of an ordinary S3
//! request, and finds the object there when the answer comes, or has the object taken from there. What the answer says is
//! believed only if all of it fits together.
//!
//! ```text
//!  bench, functional          what ernic-bench does
//!  transfer                   tokens, replies, byte counts, falling back to the body
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
pub mod memory;
pub mod s3;
pub mod sigv4;
pub mod size;
pub mod transfer;
pub mod verbs;
mod xml;

pub use error::{ClientError, Refusal, Violation};
