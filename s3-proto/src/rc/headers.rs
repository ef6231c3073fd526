//! What requests of `hipobj-rc-v2` say, in headers alone. All of it is the client's word: what is not exactly as it should be is
//! refused.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request::Parts};
use percent_encoding::percent_decode_str;
use rdma_token::{RcTarget, Token, TokenHeader, Transport, names};
use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::{
    own::unsupported,
    route::{self, Op},
};

/// Most bytes that one transfer may have: 2^31 - 1 (section 5).
const MAX_SIZE: u64 = 0x7fff_ffff;

/// Digits of 2^64 - 1.
const MAX_DECIMAL: usize = 20;

/// Highest number of a queue pair, or of a packet: 24 bits.
const MAX_24: u32 = 0xff_ffff;

/// What is asked of the object.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) method: Method,
    pub(super) target: Uri,
    /// Those of the S3 request: conditions, metadata, checksums. A range is among them.
    pub(super) headers: HeaderMap,
}

/// A request of prepare.
#[derive(Debug)]
pub(super) struct Prepare {
    pub(super) token: Token,
    pub(super) psn: u32,
    pub(super) cookie: u32,
    pub(super) size: u64,
    pub(super) operation: Operation,
}

/// A request of ready.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) session: u128,
    pub(super) cookie: u32,
    /// Number of the client's queue pair, if it says that again.
    pub(super) qpn: Option<u32>,
    /// Its memory, if it says that here.
    pub(super) to: Option<RcTarget>,
}

/// A request of cancel.
#[derive(Debug)]
pub(super) struct Cancel {
    pub(super) session: u128,
    pub(super) cookie: Option<u32>,
}

/// `InvalidArgument` (400).
pub(super) fn malformed(name: &str, due: &str) -> S3Error {
    s3_error!(InvalidArgument, "{name}: {due} is due.")
}

/// The value of a header, which must not be there twice. Spaces around it are none of its.
fn optional<'a>(headers: &'a HeaderMap, name: &str, due: &str) -> Result<Option<&'a str>, S3Error> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(|text| Some(text.trim())).map_err(|_| malformed(name, due)),
        (Some(_), Some(_)) => Err(malformed(name, &format!("{due}, once,"))),
    }
}

fn required<'a>(headers: &'a HeaderMap, name: &str, due: &str) -> Result<&'a str, S3Error> {
    optional(headers, name, due)?.ok_or_else(|| malformed(name, due))
}

/// The number that `digits` hexadecimal digits of either case are.
fn hexadecimal(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u128> {
    let fits = digits.contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn decimal(text: &str) -> Option<u64> {
    let fits = (1..=MAX_DECIMAL).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

/// The header says that this protocol is spoken.
pub(super) fn check_protocol(headers: &HeaderMap) -> Result<(), S3Error> {
    match required(headers, names::PROTOCOL, names::HIPOBJ_RC_V2)? {
        names::HIPOBJ_RC_V2 => Ok(()),
        _ => Err(unsupported()),
    }
}

fn cookie(headers: &HeaderMap) -> Result<Option<u32>, S3Error> {
    const DUE: &str = "a number of 8 hexadecimal digits";
    let Some(text) = optional(headers, names::COOKIE, DUE)? else { return Ok(None) };
    let number = hexadecimal(text, 8..=8).and_then(|number| number.try_into().ok());
    number.map(Some).ok_or_else(|| malformed(names::COOKIE, DUE))
}

fn required_cookie(headers: &HeaderMap) -> Result<u32, S3Error> {
    cookie(headers)?.ok_or_else(|| malformed(names::COOKIE, "a number of 8 hexadecimal digits"))
}

fn session(headers: &HeaderMap) -> Result<u128, S3Error> {
    const DUE: &str = "a session of 32 hexadecimal digits";
    let text = required(headers, names::SESSION, DUE)?;
    hexadecimal(text, 32..=32).ok_or_else(|| malformed(names::SESSION, DUE))
}

/// A 32-bit number of 1 to 8 digits, or a 64-bit one of 1 to 16.
fn number<T: TryFrom<u128>>(headers: &HeaderMap, name: &str, digits: usize) -> Result<Option<T>, S3Error> {
    let due = format!("a number of 1 to {digits} hexadecimal digits");
    let Some(text) = optional(headers, name, &due)? else { return Ok(None) };
    let number = hexadecimal(text, 1..=digits).and_then(|number| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| malformed(name, &due))
}

/// The token of a client whose queue pair can be connected.
fn token(headers: &HeaderMap) -> Result<Token, S3Error> {
    const DUE: &str = "a token of 88 hexadecimal digits";
    let token = match TokenHeader::parse(required(headers, names::TOKEN, DUE)?) {
        Ok(TokenHeader::A(token)) => token,
        Ok(header @ TokenHeader::B(token, _)) => {
            let window = header.window();
            Token { address: window.address, length: window.length, ..token }
        }
        Ok(_) => return Err(malformed(names::TOKEN, DUE)),
        Err(error) => return Err(s3_error!(InvalidArgument, "{}: {error}.", names::TOKEN)),
    };
    if token.transport != Transport::Rc {
        // Among them the token of zeros, with which hipObject's test server is told that the client is on the same adapter.
        return Err(unsupported());
    }
    if token.qpn == 0 || token.qpn > MAX_24 {
        return Err(malformed(names::TOKEN, "a queue pair of 24 bits, not 0,"));
    }
    if token.gid == [0; 16] {
        return Err(malformed(names::TOKEN, "the address of the client's port"));
    }
    Ok(token)
}

impl Prepare {
    pub(super) fn read(parts: &Parts) -> Result<Self, S3Error> {
        const PSN: &str = "a number of 6 hexadecimal digits, not 0,";
        const SIZE: &str = "a decimal number from 1 on";
        let headers = &parts.headers;
        check_protocol(headers)?;
        let token = token(headers)?;
        let psn = hexadecimal(required(headers, names::PSN, PSN)?, 6..=6).and_then(|psn| u32::try_from(psn).ok());
        let psn = psn.filter(|psn| *psn != 0).ok_or_else(|| malformed(names::PSN, PSN))?;
        let cookie = required_cookie(headers)?;
        let put = match required(headers, names::OP, "GET or PUT")? {
            "GET" => false,
            "PUT" => true,
            _ => return Err(malformed(names::OP, "GET or PUT")),
        };
        let size = decimal(required(headers, names::SIZE, SIZE)?).filter(|size| *size > 0);
        let size = size.ok_or_else(|| malformed(names::SIZE, SIZE))?;
        let target = target(required(headers, names::TARGET, "/bucket/key")?, put)?;
        let mut operation =
            Operation { method: if put { Method::PUT } else { Method::GET }, target, headers: of_operation(headers) };
        if let Some(range) = range(headers, size, put)? {
            operation.headers.insert(header::RANGE, range);
        }
        if size > MAX_SIZE {
            return Err(too_large(MAX_SIZE));
        }
        Ok(Self { token, psn, cookie, size, operation })
    }
}

/// `EntityTooLarge`, with the status that this protocol has for it: 413.
pub(super) fn too_large(most: u64) -> S3Error {
    let mut error = s3_error!(EntityTooLarge, "{}: a transfer has at most {most} bytes here.", names::SIZE);
    error.set_status_code(http::StatusCode::PAYLOAD_TOO_LARGE);
    error
}

/// The object, as the target of an S3 request.
fn target(text: &str, put: bool) -> Result<Uri, S3Error> {
    let bad = |due: &str| malformed(names::TARGET, due);
    let uri = Uri::try_from(text).ok().filter(|uri| uri.authority().is_none() && text.starts_with('/'));
    let uri = uri.ok_or_else(|| bad("/bucket/key, percent-encoded,"))?;
    let path = percent_decode_str(uri.path()).decode_utf8().map_err(|_| bad("a key in UTF-8"))?;
    let query: Vec<_> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    // Such parameters stand for headers, and those are beside the target.
    if query.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("x-amz-")) {
        return Err(bad("a query without x-amz- parameters"));
    }
    let method = if put { Method::PUT } else { Method::GET };
    match route::resolve(&method, &path, &query, false) {
        Ok(Op::GetObject | Op::PutObject | Op::UploadPart) => Ok(uri),
        _ => Err(bad(if put { "an object, or a part of an upload," } else { "an object" })),
    }
}

/// The range that an offset and a size are.
fn range(headers: &HeaderMap, size: u64, put: bool) -> Result<Option<HeaderValue>, S3Error> {
    const DUE: &str = "a decimal number";
    let Some(text) = optional(headers, names::OFFSET, DUE)? else { return Ok(None) };
    let offset = decimal(text).ok_or_else(|| malformed(names::OFFSET, DUE))?;
    if put {
        return if offset == 0 { Ok(None) } else { Err(malformed(names::OFFSET, "nothing but 0 for a PUT")) };
    }
    let last = offset.checked_add(size - 1).ok_or_else(|| malformed(names::OFFSET, "a range in front of 2^64"))?;
    HeaderValue::try_from(format!("bytes={offset}-{last}"))
        .map(Some)
        .map_err(|_| S3Error::new(S3ErrorCode::InternalError))
}

/// The headers of the S3 request: all that are not about this one, which has been read and whose signature has been checked.
fn of_operation(headers: &HeaderMap) -> HeaderMap {
    let ours = |name: &HeaderName| {
        names::SIGNED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))
            || matches!(
                name.as_str(),
                "authorization"
                    | "connection"
                    | "content-length"
                    | "content-md5"
                    | "expect"
                    | "range"
                    | "transfer-encoding"
                    | "x-amz-content-sha256"
                    | "x-amz-copy-source"
                    | "x-amz-date"
                    | "x-amz-decoded-content-length"
                    | "x-amz-trailer"
            )
    };
    headers.iter().filter(|(name, _)| !ours(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Ready {
    pub(super) fn read(parts: &Parts) -> Result<Self, S3Error> {
        let headers = &parts.headers;
        check_protocol(headers)?;
        let (session, cookie) = (session(headers)?, required_cookie(headers)?);
        let qpn = number(headers, names::QPN, 8)?;
        let to = match (number(headers, names::MR_ADDR, 16)?, number(headers, names::MR_RKEY, 8)?) {
            (Some(address), Some(rkey)) => Some(RcTarget { address, rkey }),
            (None, None) => None,
            (None, _) => return Err(malformed(names::MR_ADDR, "an address with the key")),
            (_, None) => return Err(malformed(names::MR_RKEY, "a key with the address")),
        };
        Ok(Self { session, cookie, qpn, to })
    }
}

impl Cancel {
    pub(super) fn read(parts: &Parts) -> Result<Self, S3Error> {
        check_protocol(&parts.headers)?;
        Ok(Self { session: session(&parts.headers)?, cookie: cookie(&parts.headers)? })
    }
}
