//! `hipobj-rc-v2` from the client's side: two requests around one RDMA WRITE (wire document, section 5).
//!
//! ```text
//!  client                                     server
//!    POST prepare: queue pair, operation  ──►   queue pair and buffer
//!    connect  ◄── queue pair, session, and where to write a PUT
//!    POST ready ──►
//!    GET:   ◄── RDMA WRITE with the cookie      the object is in the client's memory
//!    PUT:   RDMA WRITE with the cookie ──►      the object is in the buffer
//!    ◄── what came of it
//! ```

use std::{fmt, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::CrcAlgorithm;
use rdma_token::{RcTarget, Reply, Token, Transport, Window, names};

use crate::{
    ClientError, Violation,
    memory::{QueuePair, Region, Registrar},
    s3::{Answer, Client, Request},
    sigv4,
    transfer::{Asked, Direction, Moved, Signal, Verdict, count},
};

/// Longest wait for the completion of a GET, once the server has said that it has sent everything: its own completion is the
/// acknowledgment of the last packet.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of one transfer: 2^31 - 1.
pub const MAX_SIZE: u64 = 0x7fff_ffff;

/// Bytes that are hashed at a time.
const PIECE: usize = 256 * 1024;

/// How bytes are asked to go by RDMA.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// A token in the S3 request; the server reaches the memory by it, or over a connection that is there already.
    #[default]
    Token,
    /// `hipobj-rc-v2`: a connection for each transfer.
    RcV2,
    /// `hipobj-rc-v2` if the server speaks it, and tokens if not. It is asked until it says that it does not.
    Auto,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Token => "token",
            Self::RcV2 => names::HIPOBJ_RC_V2,
            Self::Auto => "auto",
        })
    }
}

/// A session, as the answer to prepare describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its id, 32 hex digits.
    pub session: String,
    /// The server's queue pair.
    pub peer: Token,
    /// The first packet that the server sends.
    pub psn: u32,
    /// Where a PUT is written to.
    pub staging: Option<RcTarget>,
}

/// What the answer to prepare means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// There is a session.
    Prepared(Prepared),
    /// The bytes have to go another way.
    FallBack(Signal, crate::Refusal),
}

/// Whether the answer is one of this protocol. Errors: it says that it is of another.
fn speaks(answer: &Answer) -> Result<bool, Violation> {
    match answer.header(names::PROTOCOL)? {
        None => Ok(false),
        Some(names::HIPOBJ_RC_V2) => Ok(true),
        Some(other) => Err(Violation::Protocol(other.to_owned())),
    }
}

/// The number that 1 to `most` hexadecimal digits are.
fn hexadecimal(answer: &Answer, name: &'static str, most: usize) -> Result<Option<u64>, Violation> {
    let Some(text) = answer.header(name)? else { return Ok(None) };
    let fits = (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = fits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
    number.map(Some).ok_or_else(|| Violation::MalformedHeader { name, value: text.to_owned() })
}

/// A header of exactly `digits` digits, which must be there.
fn exactly(answer: &Answer, name: &'static str, digits: usize) -> Result<u32, Violation> {
    let malformed = |value: &str| Violation::MalformedHeader { name, value: value.to_owned() };
    let text = answer.header(name)?.unwrap_or_default();
    let number = hexadecimal(answer, name, digits)?.filter(|_| text.len() == digits);
    number.and_then(|number| u32::try_from(number).ok()).ok_or_else(|| malformed(text))
}

/// What a failure means: a signal to go another way, or final. An error of a server that does not speak the protocol at all, or of
/// one that did not come to it (a signature, a proxy in between), is a signal as an S3 error without a reply is one to tokens.
fn failed(answer: &Answer) -> Result<(Signal, crate::Refusal), ClientError> {
    let refusal = answer.refusal()?;
    if answer.header(names::PROTOCOL_STATUS)? == Some("unsupported") && answer.status == 501 {
        return Ok((Signal::Declined, refusal));
    }
    if refusal.status == 503 && refusal.code == "RDMATransferError" {
        return Ok((Signal::Failed, refusal));
    }
    // As a server declines a transfer by token.
    if answer.status == 501 && refusal.code == "NotImplemented" {
        return Ok((Signal::Declined, refusal));
    }
    if speaks(answer)? { Err(refusal.into()) } else { Ok((Signal::NoReply, refusal)) }
}

/// Judges the answer to prepare.
///
/// A session must be one all over: status 200, this protocol, a reliably connected queue pair with an address, a session, a packet
/// number, for a PUT a place to write to, and no body.
///
/// Errors: [`ClientError::Refused`], [`ClientError::Violation`].
pub fn judge_prepare(answer: &Answer, direction: Direction) -> Result<Answered, ClientError> {
    if !answer.is_success() {
        let (signal, refusal) = failed(answer)?;
        return Ok(Answered::FallBack(signal, refusal));
    }
    if answer.status != 200 {
        return Err(Violation::Status { got: answer.status, expected: 200 }.into());
    }
    if !speaks(answer)? {
        return Err(Violation::NoProtocol.into());
    }
    let malformed = |name: &'static str, value: &str| Violation::MalformedHeader { name, value: value.to_owned() };
    let session = answer.header(names::SESSION)?.unwrap_or_default().to_owned();
    if session.len() != 32 || !session.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(malformed(names::SESSION, &session).into());
    }
    let reply = answer.reply()?.ok_or(Violation::NoReply(200))?;
    let Reply::Token(peer) = reply else { return Err(malformed(names::REPLY, &reply.to_string()).into()) };
    if peer.transport != Transport::Rc || peer.gid == [0; 16] || peer.qpn == 0 || peer.qpn > 0xff_ffff {
        return Err(malformed(names::REPLY, &reply.to_string()).into());
    }
    if let Some(qpn) = hexadecimal(answer, names::QPN, 8)?
        && qpn != u64::from(peer.qpn)
    {
        return Err(malformed(names::QPN, &format!("{qpn:x}")).into());
    }
    let psn = exactly(answer, names::PSN, 6)?;
    if psn == 0 {
        return Err(malformed(names::PSN, "000000").into());
    }
    let staging = match (hexadecimal(answer, names::MR_ADDR, 16)?, hexadecimal(answer, names::MR_RKEY, 8)?) {
        (Some(address), Some(rkey)) if address != 0 => {
            Some(RcTarget { address, rkey: u32::try_from(rkey).map_err(|_| Violation::NoStaging)? })
        }
        _ => None,
    };
    if direction == Direction::Put && staging.is_none() {
        return Err(Violation::NoStaging.into());
    }
    if answer.length != 0 {
        return Err(Violation::Body(answer.length).into());
    }
    Ok(Answered::Prepared(Prepared { session, peer, psn, staging }))
}

/// Judges the answer to ready.
///
/// A success must be one all over: status 200 (or 204, which servers of earlier days gave to a PUT), this protocol, the cookie, one
/// number of bytes that is the number due and fits the window, the range that was asked for if it names one, an ETag, and no
/// body.
///
/// Errors: [`ClientError::Refused`], [`ClientError::Violation`].
pub fn judge_ready(answer: &Answer, asked: &Asked, cookie: u32) -> Result<Verdict, ClientError> {
    if !answer.is_success() {
        let (signal, refusal) = failed(answer)?;
        return Ok(Verdict::FallBack(signal, refusal));
    }
    if answer.status != 200 && (answer.status, asked.direction) != (204, Direction::Put) {
        return Err(Violation::Status { got: answer.status, expected: 200 }.into());
    }
    if !speaks(answer)? {
        return Err(Violation::NoProtocol.into());
    }
    let got = exactly(answer, names::COOKIE, 8)?;
    if got != cookie {
        return Err(Violation::Cookie { got, due: cookie }.into());
    }
    let counted = count(answer)?;
    if counted > asked.window {
        return Err(Violation::Overrun { counted, window: asked.window }.into());
    }
    if let Some(expected) = asked.bytes
        && counted != expected
    {
        return Err(Violation::WrongCount { counted, expected }.into());
    }
    if let (Some((first, last)), Some(got)) = (asked.range, answer.header("content-range")?) {
        // A range that ends behind the object ends with it; how much that is has been counted.
        let last = if counted == 0 { last } else { last.min(first.saturating_add(counted - 1)) };
        let expected = format!("bytes {first}-{last}");
        if got.split_once('/').is_none_or(|(range, _)| range != expected) {
            return Err(Violation::ContentRange { got: got.to_owned(), expected }.into());
        }
    }
    if answer.length != 0 {
        return Err(Violation::Body(answer.length).into());
    }
    let etag = match (answer.header("etag")?, answer.header(names::ETAG)?) {
        (Some(etag), _) | (None, Some(etag)) => etag.to_owned(),
        (None, None) => return Err(Violation::NoEtag.into()),
    };
    Ok(Verdict::Moved(Moved { reply: Reply::Status(rdma_token::Status::OK), bytes: counted, etag }))
}

/// Memory that a transfer goes from or to.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The registered memory.
    pub region: &'a dyn Region,
    /// Which part of it.
    pub window: Window,
}

impl Place<'_> {
    /// CRC64NVME of the first `length` bytes, in base64.
    fn crc64nvme(&self, length: u64) -> String {
        let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
        let mut at = usize::try_from(self.window.address - self.region.address()).unwrap_or(usize::MAX);
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        let mut piece = vec![0; left.min(PIECE)];
        while left > 0 {
            let part = piece.get_mut(..left.min(PIECE)).unwrap_or_default();
            self.region.read(at, part);
            digest.update(part);
            (at, left) = (at + part.len(), left - part.len());
        }
        BASE64_STANDARD.encode(digest.finalize().to_be_bytes())
    }
}

/// The sum that a header says is that of the bytes: `CRC64NVME` and base64.
fn check_sum(answer: &Answer, place: &Place<'_>, bytes: u64) -> Result<(), Violation> {
    let Some(value) = answer.header(names::CHECKSUM)? else { return Ok(()) };
    let sum = value.strip_prefix("CRC64NVME ").map(str::trim);
    let sum = sum.ok_or_else(|| Violation::MalformedHeader { name: names::CHECKSUM, value: value.to_owned() })?;
    let due = place.crc64nvme(bytes);
    if sum == due { Ok(()) } else { Err(Violation::Checksum { got: sum.to_owned(), due }) }
}

/// A number that is not 0.
pub(crate) fn random(bits: u32) -> u32 {
    fastrand::u32(1..=u32::MAX >> (32 - bits))
}

impl Client {
    /// Makes a transfer by `hipobj-rc-v2`: GetObject, PutObject or UploadPart, as the request says it, between an object and
    /// memory of the device's. All of the window is asked for, or as much as the object has.
    ///
    /// Errors: as of [`Client::call`], [`judge_prepare`] and [`judge_ready`]; [`ClientError::Memory`] if no queue pair can be made
    /// or connected, or the bytes did not go over it: then nobody knows what became of a PUT.
    pub fn by_rc(
        &mut self,
        request: &Request<'_>,
        device: &dyn Registrar,
        place: Place<'_>,
        asked: &Asked,
    ) -> Result<(Verdict, Answer), ClientError> {
        let mut pair = device.queue_pair()?;
        let (psn, cookie) = (random(24), random(32));
        let prepare = prepare(request, &*pair, place, asked, psn, cookie);
        let answer = self.call(&prepare, None)?;
        let prepared = match judge_prepare(&answer, asked.direction)? {
            Answered::Prepared(prepared) => prepared,
            Answered::FallBack(signal, refusal) => return Ok((Verdict::FallBack(signal, refusal), answer)),
        };
        let done = self.ready(&mut *pair, &prepared, place, asked, psn, cookie);
        if !matches!(done, Ok((Verdict::Moved(_), _))) {
            // The server need not wait for its own patience to end. Whether it hears of this is its own business.
            let cancel = of_session("cancel", &prepared.session, cookie);
            let _ = self.call(&cancel, None);
        }
        done
    }

    /// Connects, and makes the transfer.
    fn ready(
        &mut self,
        pair: &mut dyn QueuePair,
        prepared: &Prepared,
        place: Place<'_>,
        asked: &Asked,
        psn: u32,
        cookie: u32,
    ) -> Result<(Verdict, Answer), ClientError> {
        pair.connect(&prepared.peer, psn, prepared.psn)?;
        let ready = of_session("ready", &prepared.session, cookie)
            .header(names::QPN, format!("{:06x}", pair.port().qpn))
            .header(names::MR_ADDR, format!("{:016x}", place.window.address))
            .header(names::MR_RKEY, format!("{:08x}", place.region.rkey()));
        let (mut answer, mut broken) = (None, None);
        match (asked.direction, prepared.staging) {
            (Direction::Get, _) => answer = Some(self.call(&ready, None)?),
            (Direction::Put, Some(to)) => {
                let mut write = || {
                    let result = pair.write(place.region, place.window, to, cookie);
                    let done = result.is_ok();
                    broken = result.err();
                    done
                };
                match self.call_while(&ready, &mut write) {
                    Ok(came) => answer = Some(came),
                    // What broke first is the reason.
                    Err(error) if broken.is_none() => return Err(error),
                    Err(_) => {}
                }
            }
            (Direction::Put, None) => return Err(Violation::NoStaging.into()),
        }
        let answer = match (answer, broken) {
            // A server that refuses says why, and that is better than what the queue pair says of it.
            (Some(answer), None) => answer,
            (Some(answer), Some(_)) if !answer.is_success() => answer,
            (_, Some(broken)) => return Err(broken.into()),
            (None, None) => return Err(Violation::NoProtocol.into()),
        };
        let verdict = judge_ready(&answer, asked, cookie)?;
        if let Verdict::Moved(moved) = &verdict {
            if asked.direction == Direction::Get {
                let arrived = pair.arrived(PATIENCE)?;
                if (arrived.bytes, arrived.immediate) != (moved.bytes, cookie) {
                    let (bytes, immediate) = (arrived.bytes, arrived.immediate);
                    return Err(Violation::Arrival { bytes, counted: moved.bytes, immediate, due: cookie }.into());
                }
            }
            check_sum(&answer, &place, moved.bytes)?;
        }
        Ok((verdict, answer))
    }
}

/// A request about a session.
pub(crate) fn of_session<'a>(what: &str, session: &str, cookie: u32) -> Request<'a> {
    Request::new("POST", ".hipobj-rc", what)
        .header(names::PROTOCOL, names::HIPOBJ_RC_V2)
        .header(names::SESSION, session)
        .header(names::COOKIE, format!("{cookie:08x}"))
}

/// The request of prepare for an S3 request, whose own headers go with it.
pub(crate) fn prepare<'a>(
    of: &Request<'a>,
    pair: &dyn QueuePair,
    place: Place<'_>,
    asked: &Asked,
    psn: u32,
    cookie: u32,
) -> Request<'a> {
    let port = pair.port();
    let token = Token {
        transport: Transport::Rc,
        qpn: port.qpn,
        gid: port.gid,
        rkey: place.region.rkey(),
        address: place.window.address,
        length: place.window.length,
        port: port.number,
        lid: port.lid,
    };
    let query: Vec<_> = of.query.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let (path, query) = (sigv4::encode_path(&of.path), sigv4::encode_query(&query));
    let target = if query.is_empty() { path } else { format!("{path}?{query}") };
    let mut request = Request::new("POST", ".hipobj-rc", "prepare")
        .header(names::PROTOCOL, names::HIPOBJ_RC_V2)
        .header(names::TOKEN, token.to_string())
        .header(names::PSN, format!("{psn:06x}"))
        .header(names::COOKIE, format!("{cookie:08x}"))
        .header(names::OP, asked.direction.to_string())
        .header(names::TARGET, target)
        .header(names::SIZE, place.window.length.to_string());
    if let Some((first, _)) = asked.range {
        request = request.header(names::OFFSET, first.to_string());
    }
    request.headers.extend(of.headers.iter().cloned());
    request
}
