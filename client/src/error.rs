//! What can go wrong, in the kinds that a caller treats differently.

use std::{fmt, io};

use rdma_token::{Reply, names};

use crate::{memory::MemoryError, transfer::Family};

/// Why a request did not do what it was for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No connection was made.
    #[error("cannot connect to {endpoint}: {source}")]
    Connect {
        /// Where to.
        endpoint: String,
        /// What the system says.
        source: io::Error,
    },
    /// The connection broke, or nothing came in time.
    #[error("connection broke while {during}: {source}")]
    Broken {
        /// `sending the request` or `waiting for the answer`.
        during: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// What came is not HTTP/1.1, or not as a server of S3 writes it.
    #[error("bad answer: {0}")]
    BadAnswer(String),
    /// The server said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server's answer contradicts itself, the request, or S3 over RDMA.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
    /// A token of this kind cannot say it.
    #[error("no token of family {family} says queue pair {qpn:#x} and {length} bytes")]
    NoToken {
        /// The family.
        family: Family,
        /// Number of the queue pair.
        qpn: u32,
        /// Bytes of the window.
        length: u64,
    },
    /// Memory for the transfer is missing.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Not a size of a session.
    #[error("bad session size {0}: 1 byte to 1 GiB is what one transfer can have")]
    BadSize(u64),
    /// A buffer of another session, of another size.
    #[error("a buffer of {got} bytes in a session of {due} bytes: take one from this session")]
    BufferSize {
        /// Bytes of the buffer.
        got: u64,
        /// Bytes that the session's buffers have.
        due: u64,
    },
    /// A buffer whose key means nothing to the session's device.
    #[error("the buffer is registered with another device than the session's: take one from this session")]
    OtherDevice,
    /// More bytes than the buffer has.
    #[error("{length} bytes of a buffer of {size} bytes")]
    BadLength {
        /// Bytes that are to be moved.
        length: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// No range of an object.
    #[error("bad range of {length} bytes from {offset} on: a range has 1 byte or more, all in front of 2^64")]
    BadRange {
        /// Its first byte.
        offset: u64,
        /// Its bytes.
        length: u64,
    },
    /// Not a part's number ("Amazon S3 multipart upload limits" in the S3 user guide).
    #[error("bad part number {0}: parts are numbered from 1 to 10000")]
    BadPart(u32),
    /// The object is longer than the buffer: what is in the buffer is not all of it.
    #[error("the object{} is longer than the buffer of {size} bytes", match .object { Some(bytes) => format!(" of {bytes} bytes"), None => String::new() })]
    TooLong {
        /// Bytes of the object, where they are known.
        object: Option<u64>,
        /// Bytes of the buffer.
        size: u64,
    },
}

/// An S3 error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// `Code` of the document; empty if there is none.
    pub code: String,
    /// `Message` of the document.
    pub message: String,
    /// What the reply header says, if there is one.
    pub reply: Option<Reply>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused with status {}", self.status)?;
        if !self.code.is_empty() {
            write!(f, " {}", self.code)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        match &self.reply {
            Some(reply) => write!(f, " ({} {reply})", names::REPLY),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

/// What is wrong with an answer. Each of these means that nothing is known about the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A success that says nothing about RDMA: the server ignored the token, and a PUT has stored an empty object at best.
    #[error("status {0} without {reply}: the server took no notice of the token", reply = names::REPLY)]
    NoReply(u16),
    /// The reply has none of the documented forms.
    #[error("malformed {name} '{0}'", name = names::REPLY)]
    MalformedReply(String),
    /// The reply and the HTTP status are not the same.
    #[error("status {status}, but {name} {reply}", name = names::REPLY)]
    Contradiction {
        /// HTTP status.
        status: u16,
        /// The reply.
        reply: Reply,
    },
    /// A success of the wrong kind: 206 where no range was asked for, or 200 where one was.
    #[error("status {got} where {expected} was due")]
    Status {
        /// HTTP status.
        got: u16,
        /// What the request asked for.
        expected: u16,
    },
    /// Neither header with the number of bytes.
    #[error("no {}", names::BYTES)]
    NoCount,
    /// The number is none.
    #[error("{name} is '{value}', which is no number")]
    MalformedCount {
        /// Which header.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The two headers with the number of bytes differ.
    #[error("{} is {bytes}, but {} is {transferred}", names::BYTES, names::BYTES_TRANSFERRED)]
    TwoCounts {
        /// The former.
        bytes: u64,
        /// The latter.
        transferred: u64,
    },
    /// Another number of bytes than there had to be.
    #[error("{counted} bytes moved where {expected} were due")]
    WrongCount {
        /// What the server says.
        counted: u64,
        /// What was due.
        expected: u64,
    },
    /// More bytes than there is room for.
    #[error("{counted} bytes moved in a window of {window}")]
    Overrun {
        /// What the server says.
        counted: u64,
        /// Bytes of the window.
        window: u64,
    },
    /// Content came in the body as well.
    #[error("{0} bytes of body beside an RDMA transfer")]
    Body(u64),
    /// A success without an ETag.
    #[error("no etag")]
    NoEtag,
    /// A part of an object that is not the part that was asked for.
    #[error("content-range is '{got}' where '{expected}/…' was due")]
    ContentRange {
        /// The header.
        got: String,
        /// What was asked for.
        expected: String,
    },
    /// The answer is of another protocol.
    #[error("{name} is '{0}'", name = names::PROTOCOL)]
    Protocol(String),
    /// A success that does not say which protocol it is of.
    #[error("a success without {}", names::PROTOCOL)]
    NoProtocol,
    /// A header that does not have the form that it should.
    #[error("malformed {name} '{value}'")]
    MalformedHeader {
        /// Its name.
        name: &'static str,
        /// What it says; nothing, if it is not there.
        value: String,
    },
    /// A session for a PUT without a place to write to.
    #[error("no {} and {}", names::MR_ADDR, names::MR_RKEY)]
    NoStaging,
    /// The answer is about another transfer.
    #[error("cookie {got:08x} where {due:08x} was due")]
    Cookie {
        /// What the server says.
        got: u32,
        /// What the client has said.
        due: u32,
    },
    /// What came over the queue pair is not what the answer says.
    #[error("{bytes} bytes with immediate {immediate:08x} arrived where {counted} with {due:08x} were due")]
    Arrival {
        /// Bytes that came.
        bytes: u64,
        /// Bytes that the server says it sent.
        counted: u64,
        /// The immediate that came with them.
        immediate: u32,
        /// The cookie.
        due: u32,
    },
    /// The server's checksum is not that of the bytes.
    #[error("CRC64NVME {got} where {due} was due")]
    Checksum {
        /// What the server says.
        got: String,
        /// That of the bytes in the buffer.
        due: String,
    },
    /// A header that is there twice, with different values.
    #[error("two different values of {0}")]
    Twice(String),
}
