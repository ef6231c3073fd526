//! Wire formats of S3 over RDMA: what a client says about its memory, and what a server replies.
//!
//! A client that registered memory for RDMA sends an `x-amz-rdma-token` header with a request. The server moves the
//! payload by RDMA and answers with an `x-amz-rdma-reply` header. [`TokenHeader`] is the former, [`Reply`] the latter.
//!
//! Tokens come in families, named as in the project's wire document "S3 over RDMA":
//!
//! | family | form |
//! |---|---|
//! | A | 88 hex digits: the 44 bytes of a [`Token`] |
//! | B | A, then `:address:length`, 1 to 16 hex digits each, which override the token's where they are not zero |
//! | C | seven fields `address:size:rkey:lid:qpn:gid_present:gid` of 16, 8, 8, 4, 6, 1 and 32 hex digits |
//! | D | C, then `:address:length` as in B |
//!
//! A and B are read and written; C and D are recognised and refused as [`TokenError::UnsupportedFamily`].

mod header;
mod reply;
mod token;

pub use header::{Family, MAX_HEADER, Malformed, TokenError, TokenHeader, Window};
pub use reply::{MalformedReply, Reply, Status};
pub use token::{Token, Transport};
