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
    let counted = count(answer, asked)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refusal;

    const SESSION: &str = "0123456789abcdef0123456789ABCDEF";
    /// RC, queue pair 0x123456, ::ffff:192.168.200.9: a vector of the wire document, without its memory.
    const TOKEN: &str = "015634120000000000000000000000ffffc0a8c8090000000000000000000000000000000000000000000000";
    const COOKIE: u32 = 0x00c0_ffee;
    const GET: Asked = Asked { direction: Direction::Get, range: None, window: 65_536, bytes: Some(65_536) };

    fn answer(status: u16, headers: &[(&str, &str)], document: &str) -> Answer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Answer { status, headers, document: document.into(), length: document.len() as u64 }
    }

    /// An answer with one header replaced, or left out where the value is empty.
    fn changed(good: &[(&str, &str)], status: u16, name: &str, value: &str) -> Answer {
        let mut headers = good.to_vec();
        headers.retain(|(have, _)| !have.eq_ignore_ascii_case(name));
        if !value.is_empty() {
            headers.push((name, value));
        }
        answer(status, &headers, "")
    }

    fn prepared() -> Vec<(&'static str, String)> {
        // Names in any case, as servers write them.
        vec![
            ("X-Amz-Rdma-Protocol", "hipobj-rc-v2".to_owned()),
            ("x-amz-rdma-reply", format!("200:{TOKEN}")),
            ("X-AMZ-RDMA-SESSION", SESSION.to_owned()),
            ("x-aMz-rDmA-pSn", "01ab01".to_owned()),
        ]
    }

    fn prepare_of(direction: Direction, name: &str, value: &str) -> Result<Answered, ClientError> {
        let good = prepared();
        let good: Vec<_> = good.iter().map(|(name, value)| (*name, value.as_str())).collect();
        judge_prepare(&changed(&good, 200, name, value), direction)
    }

    #[test]
    fn a_session_is_one_all_over() {
        let Ok(Answered::Prepared(session)) = prepare_of(Direction::Get, "", "") else { panic!("a session") };
        assert_eq!((session.session.as_str(), session.psn, session.staging), (SESSION, 0x01_ab01, None));
        assert_eq!(
            (session.peer.qpn, session.peer.gid[10..].to_vec()),
            (0x12_3456, vec![0xff, 0xff, 192, 168, 200, 9])
        );
        let Ok(Answered::Prepared(session)) = prepare_of(Direction::Get, names::PSN, "ffffff") else {
            panic!("a session")
        };
        assert_eq!(session.psn, 0xff_ffff);
        // The same, said twice.
        assert!(prepare_of(Direction::Get, names::QPN, "123456").is_ok());
        for (name, values) in [
            (names::PROTOCOL, &["", "hipobj-rc-v1"][..]),
            (names::SESSION, &["", "0123", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "0123456789abcdef0123456789abcdef0"]),
            (names::PSN, &["", "000000", "1", "1000000", "zzzzzz", "+00001"]),
            (names::QPN, &["123457", "x", "000123456"]),
            (names::REPLY, &["", "200", "ok", "200:tooshort"]),
        ] {
            for value in values {
                let result = prepare_of(Direction::Get, name, value);
                assert!(matches!(result, Err(ClientError::Violation(_))), "{name} '{value}': {result:?}");
            }
        }
        // Of queue pairs that cannot be connected: DC, no number, no address.
        let zeros = "0".repeat(88);
        for token in [&*zeros, &TOKEN.replacen("01", "00", 1), &TOKEN.replace("56341200", "00000000")] {
            let result = prepare_of(Direction::Get, names::REPLY, &format!("200:{token}"));
            assert!(matches!(result, Err(ClientError::Violation(Violation::MalformedHeader { .. }))), "{result:?}");
        }
        // A PUT needs a place.
        let place = |address: &str, rkey: &str| {
            let mut good = prepared();
            good.push((names::MR_ADDR, address.to_owned()));
            good.push((names::MR_RKEY, rkey.to_owned()));
            good.retain(|(_, value)| !value.is_empty());
            let good: Vec<_> = good.iter().map(|(name, value)| (*name, value.as_str())).collect();
            judge_prepare(&answer(200, &good, ""), Direction::Put)
        };
        let Ok(Answered::Prepared(session)) = place("7F1122334000", "deadbeef") else { panic!("a session") };
        assert_eq!(session.staging, Some(RcTarget { address: 0x7f11_2233_4000, rkey: 0xdead_beef }));
        for (address, rkey) in [("", ""), ("1000", ""), ("", "1"), ("0", "1"), ("0x10", "1"), ("1000", "123456789")] {
            assert!(matches!(place(address, rkey), Err(ClientError::Violation(_))), "{address} {rkey}");
        }
    }

    #[test]
    fn errors_are_signals_if_the_server_does_not_speak_it() {
        let document = |code: &str| format!("<Error><Code>{code}</Code></Error>");
        let ours = (names::PROTOCOL, names::HIPOBJ_RC_V2);
        let marked = (names::PROTOCOL_STATUS, "unsupported");
        let of = |status, headers: &[(&str, &str)], code: &str| {
            judge_prepare(&answer(status, headers, &document(code)), Direction::Get)
        };
        for (status, headers, code, due) in [
            (501, &[marked][..], "NotImplemented", Signal::Declined),
            (501, &[], "NotImplemented", Signal::Declined),
            (503, &[ours], "RDMATransferError", Signal::Failed),
            // Servers of S3 that take it for a bucket, a proxy, a signature that is not right.
            (404, &[], "NoSuchBucket", Signal::NoReply),
            (405, &[], "MethodNotAllowed", Signal::NoReply),
            (502, &[], "", Signal::NoReply),
            (403, &[], "SignatureDoesNotMatch", Signal::NoReply),
        ] {
            match of(status, headers, code) {
                Ok(Answered::FallBack(signal, refusal)) => {
                    assert_eq!((signal, refusal.status, refusal.code.as_str()), (due, status, code));
                }
                other => panic!("{status} {code}: {other:?}"),
            }
        }
        for (status, code) in [
            (400, "InvalidArgument"),
            (403, "AccessDenied"),
            (404, "NoSuchKey"),
            (409, "InvalidRDMASession"),
            (413, "EntityTooLarge"),
            (503, "SlowDown"),
        ] {
            let result = of(status, &[ours], code);
            assert!(
                matches!(&result, Err(ClientError::Refused(Refusal { status: s, .. })) if *s == status),
                "{result:?}"
            );
        }
    }

    fn ready_of(asked: &Asked, status: u16, name: &str, value: &str) -> Result<Verdict, ClientError> {
        let good = [
            ("X-Amz-Rdma-Protocol", "hipobj-rc-v2"),
            ("X-Amz-Rdma-Cookie", "00C0FFEE"),
            ("X-Amz-Rdma-Bytes-Transferred", "65536"),
            ("X-Amz-Rdma-Etag", "\"abc123\""),
        ];
        judge_ready(&changed(&good, status, name, value), asked, COOKIE)
    }

    #[test]
    fn the_final_answer_is_one_all_over() {
        let Ok(Verdict::Moved(moved)) = ready_of(&GET, 200, "", "") else { panic!("a transfer") };
        assert_eq!((moved.bytes, moved.etag.as_str()), (65_536, "\"abc123\""));
        // S3's own header wins, and servers of earlier days answered a PUT without content.
        let Ok(Verdict::Moved(moved)) = ready_of(&GET, 200, "etag", "\"other\"") else { panic!("a transfer") };
        assert_eq!(moved.etag, "\"other\"");
        let put = Asked { direction: Direction::Put, ..GET };
        assert!(matches!(ready_of(&put, 204, "", ""), Ok(Verdict::Moved(_))));
        for status in [204, 206] {
            let result = ready_of(&GET, status, "", "");
            assert!(
                matches!(result, Err(ClientError::Violation(Violation::Status { expected: 200, .. }))),
                "{result:?}"
            );
        }
        for (name, values) in [
            (names::PROTOCOL, &["", "other"][..]),
            (names::COOKIE, &["", "c0ffee", "00c0ffef", "00c0ffeg"]),
            (names::BYTES_TRANSFERRED, &["", "65535", "65537", "0", "-1", "0x10000"]),
            (names::BYTES, &["65535"]),
            (names::ETAG, &[""]),
        ] {
            for value in values {
                let result = ready_of(&GET, 200, name, value);
                assert!(matches!(result, Err(ClientError::Violation(_))), "{name} '{value}': {result:?}");
            }
        }
        // A range that names another one, and one that ends with the object.
        let ranged = Asked { range: Some((10, 65_545)), ..GET };
        assert!(ready_of(&ranged, 200, "", "").is_ok());
        assert!(ready_of(&ranged, 200, "content-range", "bytes 10-65545/70000").is_ok());
        assert!(ready_of(&ranged, 200, "content-range", "bytes 11-65546/70000").is_err());
        let longer = Asked { range: Some((10, 99_999)), window: 99_990, bytes: None, ..GET };
        assert!(ready_of(&longer, 200, "content-range", "bytes 10-65545/65546").is_ok());
        let failed =
            answer(503, &[(names::PROTOCOL, names::HIPOBJ_RC_V2)], "<Error><Code>RDMATransferError</Code></Error>");
        assert!(matches!(judge_ready(&failed, &GET, COOKIE), Ok(Verdict::FallBack(Signal::Failed, _))));
    }

    #[test]
    fn checksums_are_of_the_bytes() {
        let mut region = crate::memory::Plain::new(4096).unwrap();
        region.write(100, b"123456789");
        let place = Place { region: &region, window: Window { address: region.address() + 100, length: 9 } };
        let of = |value: &str| check_sum(&answer(200, &[(names::CHECKSUM, value)], ""), &place, 9);
        // The check value of CRC64NVME, as hipObject's tests have it.
        assert_eq!(of("CRC64NVME rosUhgp5mIg="), Ok(()));
        assert_eq!(check_sum(&answer(200, &[], ""), &place, 9), Ok(()));
        for wrong in ["CRC64NVME AAAAAAAAAAA=", "CRC64NVME rosUhgp5mIg", "CRC64NV rosUhgp5mIg=", "rosUhgp5mIg=", ""] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_are_encoded_as_they_are_signed() {
        struct Nowhere;
        impl QueuePair for Nowhere {
            fn port(&self) -> crate::memory::Port {
                crate::memory::Port { qpn: 7, gid: [1; 16], number: 1, lid: 0 }
            }
            fn connect(&mut self, _: &Token, _: u32, _: u32) -> Result<(), crate::memory::MemoryError> {
                Ok(())
            }
            fn write(
                &mut self,
                _: &dyn Region,
                _: Window,
                _: RcTarget,
                _: u32,
            ) -> Result<(), crate::memory::MemoryError> {
                Ok(())
            }
            fn arrived(&mut self, _: Duration) -> Result<crate::memory::Arrived, crate::memory::MemoryError> {
                Ok(crate::memory::Arrived { bytes: 0, immediate: 0 })
            }
        }
        let region = crate::memory::Plain::new(4096).unwrap();
        let place = Place { region: &region, window: Window { address: region.address(), length: 9 } };
        let target = |request: Request<'static>| {
            let request = prepare(&request, &Nowhere, place, &GET, 1, 0xdead_beef);
            let of = |name: &str| request.headers.iter().find(|(have, _)| *have == name).unwrap().1.clone();
            assert_eq!(
                (of(names::PSN), of(names::COOKIE), of(names::SIZE)),
                ("000001".into(), "deadbeef".into(), "9".into())
            );
            assert_eq!((request.path.as_str(), of(names::OP).as_str()), (names::PREPARE, "GET"));
            of(names::TARGET)
        };
        assert_eq!(target(Request::new("GET", "b", "k")), "/b/k");
        assert_eq!(target(Request::new("GET", "bucket", "key name")), "/bucket/key%20name");
        assert_eq!(target(Request::new("GET", "b", "a/b")), "/b/a/b");
        assert_eq!(target(Request::new("GET", "b", "k").query("partNumber", "1")), "/b/k?partNumber=1");
        let part = Request::new("PUT", "b", "k").query("uploadId", "a/b").query("partNumber", "2");
        assert_eq!(target(part), "/b/k?partNumber=2&uploadId=a%2Fb");
    }
}
