//! The header, or the headers, that carry a token.

use std::{fmt, str::FromStr};

use crate::{Descriptor, Token, Transport, Window, descriptor::bytes, names};

/// Longest value of a header that is looked at, in bytes (wire document, section 1).
pub const MAX_HEADER: usize = 1024;

/// Most hex digits of an overriding address or length of family B.
const OVERRIDE_DIGITS: usize = 16;

/// Most digits of a decimal number of family E: those of 2^64 - 1.
const DECIMAL_DIGITS: usize = 20;

/// Form of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// 88 hex digits.
    A,
    /// A with an overriding address and length.
    B,
    /// Seven fields.
    C,
    /// C with an overriding address and length.
    D,
    /// C with a length and an address in headers of their own.
    E,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::E => "E",
        })
    }
}

/// What is wrong with a token. Fields are separated by colons and counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A header is longer than [`MAX_HEADER`].
    #[error("malformed token: {0} bytes are more than {MAX_HEADER}")]
    TooLong(usize),
    /// No family has that many fields.
    #[error("malformed token: no token has {0} fields")]
    Fields(usize),
    /// A field has too few or too many digits.
    #[error("malformed token: field {field} is {digits} digits long")]
    Width {
        /// Which field.
        field: usize,
        /// Its length.
        digits: usize,
    },
    /// A field holds something other than hex digits.
    #[error("malformed token: field {field} is not hexadecimal")]
    Digit {
        /// Which field.
        field: usize,
    },
    /// The transport is neither 0 (DC) nor 1 (RC).
    #[error("malformed token: unknown transport {0}")]
    Transport(u8),
    /// The field that says whether there is a GID is neither 0 nor 1.
    #[error("malformed token: field 6 is neither 0 nor 1")]
    GidPresent,
    /// A header of family E is not a decimal number of 64 bits.
    #[error("malformed token: {0} is not a decimal number of 64 bits")]
    Decimal(&'static str),
    /// The window of a token of family C, D or E is empty.
    #[error("malformed token: the length is zero")]
    ZeroLength,
}

/// What a client says about its memory, in one header or three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenHeader {
    /// 88 hex digits.
    A(Token),
    /// The same and a suffix, as it came: a zero in it overrides nothing.
    B(Token, Window),
    /// Seven fields.
    C(Descriptor),
    /// The same and a suffix, as it came: a zero in it overrides nothing.
    D(Descriptor, Window),
    /// Seven fields, and the window from `X-CuObj-Remote-Buf-Start` (the address itself, not an offset) and
    /// `X-CuObj-Content-Length`. It stands for the descriptor's whatever it says: an address of zero is an address.
    E(Descriptor, Window),
}

impl TokenHeader {
    /// Reads the value of an `x-amz-rdma-token` header: family A, B, C or D. Nothing around it is skipped: HTTP has removed
    /// outer spaces before.
    ///
    /// A length of zero, after the suffix, is malformed in C and D, and allowed in A and B (wire document, section 4, rule 19).
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, Malformed> {
        let fields = Fields::split(value.as_ref())?;
        match *fields.get() {
            [token] => Ok(Self::A(Token::from_digits(token)?)),
            [token, address, length] => {
                let token = Token::from_digits(token)?;
                Ok(Self::B(token, Window { address: number(2, address)?, length: number(3, length)? }))
            }
            [a, b, c, d, e, f, g] => Self::C(Descriptor::from_fields([a, b, c, d, e, f, g])?).not_empty(),
            [a, b, c, d, e, f, g, address, length] => {
                let descriptor = Descriptor::from_fields([a, b, c, d, e, f, g])?;
                let address = u64::from_be_bytes(bytes(8, address)?);
                let length = u64::from_be_bytes(bytes(9, length)?);
                Self::D(descriptor, Window { address, length }).not_empty()
            }
            _ => Err(Malformed::Fields(fields.count)),
        }
    }

    /// Reads the values of the three headers of family E: [`names::CUOBJ_DESCR`], [`names::CUOBJ_CONTENT_LENGTH`] and
    /// [`names::CUOBJ_REMOTE_BUF_START`]. The numbers are 1 to 20 decimal digits and nothing else. A length of zero is
    /// malformed, as is a descriptor of any other form.
    pub fn from_cuobj(
        descr: impl AsRef<[u8]>,
        content_length: impl AsRef<[u8]>,
        remote_buf_start: impl AsRef<[u8]>,
    ) -> Result<Self, Malformed> {
        let fields = Fields::split(descr.as_ref())?;
        let &[a, b, c, d, e, f, g] = fields.get() else {
            return Err(Malformed::Fields(fields.count));
        };
        let descriptor = Descriptor::from_fields([a, b, c, d, e, f, g])?;
        let length = decimal(names::CUOBJ_CONTENT_LENGTH, content_length.as_ref())?;
        let address = decimal(names::CUOBJ_REMOTE_BUF_START, remote_buf_start.as_ref())?;
        Self::E(descriptor, Window { address, length }).not_empty()
    }

    /// The headers that say this, names and values: one, or three of family E. What [`TokenHeader::parse`] calls malformed for
    /// its length of zero is written as it is.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::A(token) => vec![(names::TOKEN, token.to_string())],
            Self::B(token, Window { address, length }) => {
                vec![(names::TOKEN, format!("{token}:{address:x}:{length:x}"))]
            }
            Self::C(descriptor) => vec![(names::TOKEN, descriptor.to_string())],
            Self::D(descriptor, Window { address, length }) => {
                vec![(names::TOKEN, format!("{descriptor}:{address:016x}:{length:016x}"))]
            }
            Self::E(descriptor, Window { address, length }) => vec![
                (names::CUOBJ_DESCR, descriptor.to_string()),
                (names::CUOBJ_CONTENT_LENGTH, length.to_string()),
                (names::CUOBJ_REMOTE_BUF_START, address.to_string()),
            ],
        }
    }

    /// Form of the token.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::A(_) => Family::A,
            Self::B(..) => Family::B,
            Self::C(_) => Family::C,
            Self::D(..) => Family::D,
            Self::E(..) => Family::E,
        }
    }

    /// The memory that is meant. It may be larger than what is registered, and lie anywhere.
    #[must_use]
    pub fn window(&self) -> Window {
        let (own, overriding) = match self {
            Self::A(token) => (token.window(), Window::default()),
            Self::B(token, overriding) => (token.window(), *overriding),
            Self::C(descriptor) => (descriptor.window(), Window::default()),
            Self::D(descriptor, overriding) => (descriptor.window(), *overriding),
            Self::E(_, window) => return *window,
        };
        Window {
            address: if overriding.address == 0 { own.address } else { overriding.address },
            length: if overriding.length == 0 { own.length } else { overriding.length },
        }
    }

    /// Remote key of the registered memory.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        match self {
            Self::A(token) | Self::B(token, _) => token.rkey,
            Self::C(descriptor) | Self::D(descriptor, _) | Self::E(descriptor, _) => descriptor.rkey,
        }
    }

    /// Number of the client's queue pair: 32 bits in A and B, 24 in the others.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        match self {
            Self::A(token) | Self::B(token, _) => token.qpn,
            Self::C(descriptor) | Self::D(descriptor, _) | Self::E(descriptor, _) => descriptor.qpn.get(),
        }
    }

    /// Address of the client's port; `None` where a token of family C, D or E says that there is none.
    #[must_use]
    pub fn gid(&self) -> Option<[u8; 16]> {
        match self {
            Self::A(token) | Self::B(token, _) => Some(token.gid),
            Self::C(descriptor) | Self::D(descriptor, _) | Self::E(descriptor, _) => descriptor.gid,
        }
    }

    /// Local identifier of the client's port.
    #[must_use]
    pub fn lid(&self) -> u16 {
        match self {
            Self::A(token) | Self::B(token, _) => token.lid,
            Self::C(descriptor) | Self::D(descriptor, _) | Self::E(descriptor, _) => descriptor.lid,
        }
    }

    /// How the client's queue pair is connected, where the token says so: A and B. The others are from clients whose queue
    /// pairs are connected dynamically (section 4, rule 10).
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Self::A(token) | Self::B(token, _) => Some(token.transport),
            Self::C(_) | Self::D(..) | Self::E(..) => None,
        }
    }

    /// Refuses an empty window.
    fn not_empty(self) -> Result<Self, Malformed> {
        if self.window().length == 0 { Err(Malformed::ZeroLength) } else { Ok(self) }
    }
}

/// Family A, B, C or D.
impl FromStr for TokenHeader {
    type Err = Malformed;

    fn from_str(value: &str) -> Result<Self, Malformed> {
        Self::parse(value)
    }
}

/// What is between the colons of a value: all of it, or as much as any family has.
struct Fields<'a> {
    fields: [&'a [u8]; 9],
    count: usize,
}

impl<'a> Fields<'a> {
    fn split(value: &'a [u8]) -> Result<Self, Malformed> {
        if value.len() > MAX_HEADER {
            return Err(Malformed::TooLong(value.len()));
        }
        let mut fields: [&[u8]; 9] = Default::default();
        let mut count = 0;
        for field in value.split(|&byte| byte == b':') {
            if let Some(to) = fields.get_mut(count) {
                *to = field;
            }
            count += 1;
        }
        Ok(Self { fields, count })
    }

    /// The fields; none, if there are more than nine.
    fn get(&self) -> &[&'a [u8]] {
        self.fields.get(..self.count).unwrap_or_default()
    }
}

/// Value of 1 to 16 hex digits of either case.
fn number(field: usize, digits: &[u8]) -> Result<u64, Malformed> {
    if !(1..=OVERRIDE_DIGITS).contains(&digits.len()) {
        return Err(Malformed::Width { field, digits: digits.len() });
    }
    digits.iter().try_fold(0, |value: u64, &byte| {
        let digit = char::from(byte).to_digit(16).ok_or(Malformed::Digit { field })?;
        Ok(value << 4 | u64::from(digit))
    })
}

/// Value of 1 to 20 decimal digits.
fn decimal(name: &'static str, digits: &[u8]) -> Result<u64, Malformed> {
    let value = match digits.len() {
        1..=DECIMAL_DIGITS => digits.iter().try_fold(0u64, |value, &byte| {
            let digit = char::from(byte).to_digit(10)?;
            value.checked_mul(10)?.checked_add(digit.into())
        }),
        _ => None,
    };
    value.ok_or(Malformed::Decimal(name))
}
