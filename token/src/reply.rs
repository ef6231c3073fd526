//! The header that tells a client how a transfer went.

use std::{fmt, str::FromStr};

use crate::Token;

/// Content of an `x-amz-rdma-reply` header (wire document, section 3): `ok`, `err`, a status of three digits, or
/// `200:` and the server's token. Words are in lower case; hex digits may be of either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// `ok`.
    Ok,
    /// `err`.
    Err,
    /// A bare status.
    Status(Status),
    /// Status 200 with the server's token.
    Token(Token),
}

/// A status of three digits, 100 to 599.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

/// The text is not a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed reply")]
pub struct MalformedReply;

impl Status {
    /// 200.
    pub const OK: Self = Self(200);

    /// A status, if it is 100 to 599.
    #[must_use]
    pub fn new(status: u16) -> Option<Self> {
        (100..=599).contains(&status).then_some(Self(status))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Reply {
    /// Reads a header's value. Nothing around it is skipped.
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, MalformedReply> {
        match value.as_ref() {
            b"ok" => Ok(Self::Ok),
            b"err" => Ok(Self::Err),
            [b'2', b'0', b'0', b':', digits @ ..] => {
                Token::from_digits(digits).map(Self::Token).map_err(|_| MalformedReply)
            }
            [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                let digit = |byte: &u8| u16::from(byte - b'0');
                Status::new(digit(a) * 100 + digit(b) * 10 + digit(c)).map(Self::Status).ok_or(MalformedReply)
            }
            _ => Err(MalformedReply),
        }
    }
}

impl FromStr for Reply {
    type Err = MalformedReply;

    fn from_str(value: &str) -> Result<Self, MalformedReply> {
        Self::parse(value)
    }
}

/// The header's value.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Err => f.write_str("err"),
            Self::Status(status) => write!(f, "{}", status.0),
            Self::Token(token) => write!(f, "200:{token}"),
        }
    }
}
