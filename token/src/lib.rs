//! S3 over RDMA: what a client says about its memory, what a server replies, and the seam behind which that memory is
//! reached.
//!
//! A client that registered memory for RDMA sends a token with a request. The server moves the payload by RDMA and answers
//! with an `x-amz-rdma-reply` header. [`TokenHeader`] is the former, [`Reply`] the latter, [`names`] are the headers' names.
//! [`RemoteMemory`] is implemented by whoever can reach what a token names, and used by whoever has or wants the bytes.
//!
//! Tokens come in families, named as in the project's wire document "S3 over RDMA":
//!
//! | family | form |
//! |---|---|
//! | A | 88 hex digits: the 44 bytes of a [`Token`] |
//! | B | A, then `:address:length`, 1 to 16 hex digits each, which override the token's where they are not zero |
//! | C | a [`Descriptor`]: seven fields `address:size:rkey:lid:qpn:gid_present:gid` of 16, 8, 8, 4, 6, 1 and 32 hex digits |
//! | D | C, then `:address:length`, exactly 16 hex digits each, which override as in B |
//! | E | no token header, but three: a [`Descriptor`], and length and address in decimal |
//!
//! They are told apart by their shape alone. Hex digits may be of either case; lower case is written.

mod descriptor;
mod header;
pub mod names;
mod rc;
mod remote;
mod reply;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
mod window;

pub use descriptor::{Descriptor, Qpn};
pub use header::{Family, MAX_HEADER, Malformed, TokenHeader};
pub use rc::{RcEndpoint, RcFabric, RcSession, RcStaging, RcTarget};
pub use remote::{AnswerFirst, CHUNK, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Task};
pub use reply::{MalformedReply, Reply, Status};
pub use token::{Token, Transport};
pub use window::Window;
