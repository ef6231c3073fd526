//! The header that carries a token.

use std::{fmt, str::FromStr};

use crate::Token;

/// Longest token header that is looked at, in bytes (wire document, section 1).
pub const MAX_HEADER: usize = 1024;

/// Hex digits of the fields of family C, in order (wire document, section 1).
const C_WIDTHS: [usize; 7] = [16, 8, 8, 4, 6, 1, 32];

/// Most hex digits of an overriding address or length.
const OVERRIDE_DIGITS: usize = 16;

/// Form of a token header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// 88 hex digits.
    A,
    /// A with an overriding address and length.
    B,
    /// Seven fields.
    C,
    /// C with an overriding address and length.
    D,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
        })
    }
}

/// Why a token header is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is a token of no family.
    #[error("malformed token: {0}")]
    Malformed(#[from] Malformed),
    /// It has the form of a family that is not supported.
    #[error("tokens of family {0} are not supported")]
    UnsupportedFamily(Family),
}

/// What is wrong with a token. Fields are separated by colons and counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It is longer than [`MAX_HEADER`].
    #[error("{0} bytes are more than {MAX_HEADER}")]
    TooLong(usize),
    /// No family has that many fields.
    #[error("no token has {0} fields")]
    Fields(usize),
    /// A field has too few or too many digits.
    #[error("field {field} is {digits} digits long")]
    Width {
        /// Which field.
        field: usize,
        /// Its length.
        digits: usize,
    },
    /// A field holds something other than hex digits.
    #[error("field {field} is not hexadecimal")]
    Digit {
        /// Which field.
        field: usize,
    },
    /// The transport is neither 0 (DC) nor 1 (RC).
    #[error("unknown transport {0}")]
    Transport(u8),
}

/// A range of the client's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Virtual address of the first byte, in the client.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// Content of an `x-amz-rdma-token` header of family A or B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHeader {
    /// The token.
    pub token: Token,
    /// The suffix of family B, as it came: a zero overrides nothing.
    pub overriding: Option<Window>,
}

impl TokenHeader {
    /// Reads a header's value. Nothing around it is skipped: HTTP has removed outer spaces before.
    pub fn parse(value: impl AsRef<[u8]>) -> Result<Self, TokenError> {
        let value = value.as_ref();
        if value.len() > MAX_HEADER {
            return Err(Malformed::TooLong(value.len()).into());
        }
        let fields: Vec<&[u8]> = value.split(|&byte| byte == b':').collect();
        match fields[..] {
            [token] => Ok(Self { token: Token::from_digits(token)?, overriding: None }),
            [token, address, length] => Ok(Self {
                token: Token::from_digits(token)?,
                overriding: Some(Window { address: number(2, address)?, length: number(3, length)? }),
            }),
            [_, _, _, _, _, _, _] => {
                c_shape(&fields)?;
                Err(TokenError::UnsupportedFamily(Family::C))
            }
            [_, _, _, _, _, _, _, address, length] => {
                c_shape(&fields)?;
                number(8, address)?;
                number(9, length)?;
                Err(TokenError::UnsupportedFamily(Family::D))
            }
            _ => Err(Malformed::Fields(fields.len()).into()),
        }
    }

    /// Form of the header.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.overriding.is_some() { Family::B } else { Family::A }
    }

    /// The memory that is meant: the token's, where nothing overrides it. It may be larger than what is registered.
    #[must_use]
    pub fn window(&self) -> Window {
        let Window { address, length } = self.overriding.unwrap_or_default();
        Window {
            address: if address == 0 { self.token.address } else { address },
            length: if length == 0 { self.token.length } else { length },
        }
    }
}

impl From<Token> for TokenHeader {
    fn from(token: Token) -> Self {
        Self { token, overriding: None }
    }
}

impl FromStr for TokenHeader {
    type Err = TokenError;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        Self::parse(value)
    }
}

/// The header's value: lower case, the suffix without leading zeros.
impl fmt::Display for TokenHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.token.fmt(f)?;
        match self.overriding {
            Some(Window { address, length }) => write!(f, ":{address:x}:{length:x}"),
            None => Ok(()),
        }
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

/// Checks that the first seven fields have the widths of family C.
fn c_shape(fields: &[&[u8]]) -> Result<(), Malformed> {
    for (field, (digits, width)) in (1..).zip(fields.iter().zip(C_WIDTHS)) {
        if digits.len() != width {
            return Err(Malformed::Width { field, digits: digits.len() });
        }
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Malformed::Digit { field });
        }
    }
    Ok(())
}
