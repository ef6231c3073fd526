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

/// Answer: `unsupported`, where that protocol is off (section 5).
pub const PROTOCOL_STATUS: &str = "x-amz-rdma-protocol-status";

/// Beginnings of the names of headers that must be signed where they are present (rule 17).
pub const SIGNED_PREFIXES: [&str; 2] = ["x-amz-rdma-", "x-cuobj-"];
