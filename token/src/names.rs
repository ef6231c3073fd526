//! Names of the headers, in lower case: clients match the reply's name case-sensitively (wire document, sections 3 and 4,
//! rule 5).

/// Request: a token of family A, B, C or D.
pub const TOKEN: &str = "x-amz-rdma-token";

/// Request, family E: the [`Descriptor`](crate::Descriptor).
pub const CUOBJ_DESCR: &str = "x-cuobj-rdma-descr";

/// Request, family E: bytes of the window, in decimal.
pub const CUOBJ_CONTENT_LENGTH: &str = "x-cuobj-content-length";

/// Request, family E: address of the window's first byte, in decimal.
pub const CUOBJ_REMOTE_BUF_START: &str = "x-cuobj-remote-buf-start";

/// Answer: how the transfer went, a [`Reply`](crate::Reply).
pub const REPLY: &str = "x-amz-rdma-reply";

/// Answer: bytes moved, in decimal. Of every success, beside [`BYTES_TRANSFERRED`] (rule 4): clients read one or the other.
pub const BYTES: &str = "x-amz-rdma-bytes";

/// Answer: bytes moved, in decimal.
pub const BYTES_TRANSFERRED: &str = "x-amz-rdma-bytes-transferred";

/// Request and answer: the protocol of a `/.hipobj-rc/` request (section 5).
pub const PROTOCOL: &str = "x-amz-rdma-protocol";

/// Value of [`PROTOCOL`].
pub const HIPOBJ_RC_V2: &str = "hipobj-rc-v2";

/// Path of `hipobj-rc-v2` that asks for a session. All three are of POST requests without a body.
pub const PREPARE: &str = "/.hipobj-rc/prepare";

/// Path of `hipobj-rc-v2` that makes a session's transfer.
pub const READY: &str = "/.hipobj-rc/ready";

/// Path of `hipobj-rc-v2` that ends a session.
pub const CANCEL: &str = "/.hipobj-rc/cancel";

/// Answer of prepare, request of ready and cancel: the session, 32 hex digits.
pub const SESSION: &str = "x-amz-rdma-session";

/// Request and answer of prepare: first packet sequence number that the side sends, 6 hex digits, not zero.
pub const PSN: &str = "x-amz-rdma-psn";

/// Request of prepare, ready and cancel, answer of ready: a number of the client's, 8 hex digits, which is the immediate of the
/// transfer.
pub const COOKIE: &str = "x-amz-rdma-cookie";

/// Request of prepare: `GET` or `PUT`.
pub const OP: &str = "x-amz-rdma-op";

/// Request of prepare: `/bucket/key`, percent-encoded, with a query if there is one.
pub const TARGET: &str = "x-amz-rdma-target";

/// Request of prepare: bytes of the transfer, in decimal, 1 to 2^31 - 1.
pub const SIZE: &str = "x-amz-rdma-size";

/// Request of prepare: where in the object the bytes begin, in decimal.
pub const OFFSET: &str = "x-amz-rdma-offset";

/// Answer of prepare, request of ready: number of the sender's queue pair, up to 8 hex digits.
pub const QPN: &str = "x-amz-rdma-qpn";

/// Answer of prepare for a PUT, request of ready: address of the sender's memory, up to 16 hex digits.
pub const MR_ADDR: &str = "x-amz-rdma-mr-addr";

/// Answer of prepare for a PUT, request of ready: key of the sender's memory, up to 8 hex digits.
pub const MR_RKEY: &str = "x-amz-rdma-mr-rkey";

/// Answer of ready: the object's or part's ETag.
pub const ETAG: &str = "x-amz-rdma-etag";

/// Answer of ready: the object's version.
pub const VERSION_ID: &str = "x-amz-rdma-version-id";

/// Answer of ready: `CRC64NVME`, a space, and that of the bytes in base64.
pub const CHECKSUM: &str = "x-amz-rdma-checksum";

/// Answer: `unsupported`, where that protocol is off (section 5).
pub const PROTOCOL_STATUS: &str = "x-amz-rdma-protocol-status";

/// Beginnings of the names of headers that must be signed where they are present (rule 17).
pub const SIGNED_PREFIXES: [&str; 2] = ["x-amz-rdma-", "x-cuobj-"];
