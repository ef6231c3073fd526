//! Transfers by token: what the request says, what the answer must say, and when to take the body instead.

use std::{fmt, time::Instant};

use rdma_token::{Descriptor, Qpn, Reply, Status, Token, TokenHeader, Transport, Window, names};

use crate::{
    ClientError, Refusal, Violation,
    memory::{Port, Region},
    s3::{Answer, Body, Client, Request},
};

/// Bytes that are copied at a time between a region and an HTTP body.
const PIECE: usize = 256 * 1024;

/// Which form of token is sent (wire document, section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// 88 hex digits that name the window.
    A,
    /// 88 hex digits that name the whole registration, and a suffix that names the window in it.
    B,
    /// Seven fields that name the window.
    C,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
        })
    }
}

/// The token of `window`, in the registration that `rkey` and `whole` are.
///
/// `None` if a number has more digits than the family: a queue pair of over 24 bits or a window of 4 GiB or more, in C.
#[must_use]
pub fn mint(family: Family, port: &Port, rkey: u32, whole: Window, window: Window) -> Option<TokenHeader> {
    let token = |Window { address, length }| Token {
        transport: Transport::Rc,
        qpn: port.qpn,
        gid: port.gid,
        rkey,
        address,
        length,
        port: port.number,
        lid: port.lid,
    };
    Some(match family {
        Family::A => TokenHeader::A(token(window)),
        Family::B => TokenHeader::B(token(whole), window),
        Family::C => TokenHeader::C(Descriptor {
            address: window.address,
            length: window.length.try_into().ok()?,
            rkey,
            lid: port.lid,
            qpn: Qpn::new(port.qpn)?,
            gid: Some(port.gid),
        }),
    })
}

/// All of a region.
#[must_use]
pub fn whole(region: &dyn Region) -> Window {
    Window { address: region.address(), length: region.length() as u64 }
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// GetObject: into the client's memory.
    Get,
    /// PutObject and UploadPart: out of it.
    Put,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        })
    }
}

/// What a request asked for, to measure its answer by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Which way.
    pub direction: Direction,
    /// First and last byte of a range.
    pub range: Option<(u64, u64)>,
    /// Bytes of the window.
    pub window: u64,
    /// Bytes that must move, where that is known.
    pub bytes: Option<u64>,
}

/// A transfer that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// What the server replied.
    pub reply: Reply,
    /// Bytes that moved.
    pub bytes: u64,
    /// The object's or part's ETag.
    pub etag: String,
}

/// Which of AIStor's three signals says that the request is to be repeated without its token ("Handle the fallback" in "Transfer
/// Objects over RDMA").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// `x-amz-rdma-reply: 501`: the server declined.
    Declined,
    /// `RDMATransferError` with status 503: the transfer started and failed.
    Failed,
    /// An S3 error without a reply: a malformed token, or a window that does not fit the object.
    NoReply,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Declined => "declined",
            Self::Failed => "failed",
            Self::NoReply => "no reply",
        })
    }
}

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are where they belong.
    Moved(Moved),
    /// They have to go through the body.
    FallBack(Signal, Refusal),
}

/// Judges the answer to a request with a token.
///
/// A success must be one all over: a well-formed reply that agrees with the status, 206 for a range and 200 otherwise, one number of
/// bytes that is the number due and fits the window, an ETag, and no body. A success without a reply is none: the
/// server has not understood the token. A failure is a signal to fall back, or final.
///
/// Errors: [`ClientError::Refused`], [`ClientError::Violation`].
pub fn judge(answer: &Answer, asked: &Asked) -> Result<Verdict, ClientError> {
    let status = answer.status;
    let reply = answer.reply()?;
    if reply == Status::new(501).map(Reply::Status) {
        return Ok(Verdict::FallBack(Signal::Declined, answer.refusal()?));
    }
    if let Some(reply) = reply
        && !agrees(reply, status)
    {
        return Err(Violation::Contradiction { status, reply }.into());
    }
    if !answer.is_success() {
        let refusal = answer.refusal()?;
        return match reply {
            _ if status == 503 && refusal.code == "RDMATransferError" => Ok(Verdict::FallBack(Signal::Failed, refusal)),
            None => Ok(Verdict::FallBack(Signal::NoReply, refusal)),
            Some(_) => Err(refusal.into()),
        };
    }
    let reply = reply.ok_or(Violation::NoReply(status))?;
    let expected = if asked.range.is_some() { 206 } else { 200 };
    if status != expected {
        return Err(Violation::Status { got: status, expected }.into());
    }
    if let Some((first, last)) = asked.range {
        let expected = format!("bytes {first}-{last}");
        let got = answer.header("content-range")?.unwrap_or_default();
        if got.split_once('/').is_none_or(|(range, _)| range != expected) {
            return Err(Violation::ContentRange { got: got.to_owned(), expected }.into());
        }
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
    if answer.length != 0 {
        return Err(Violation::Body(answer.length).into());
    }
    Ok(Verdict::Moved(Moved { reply, bytes: counted, etag: answer.etag()? }))
}

/// Whether a reply and an HTTP status say the same.
fn agrees(reply: Reply, status: u16) -> bool {
    match reply {
        Reply::Ok => (200..300).contains(&status),
        Reply::Err => !(200..300).contains(&status),
        Reply::Token(_) => status == 200,
        Reply::Status(reply) => reply.get() == status,
    }
}

/// The number of bytes, from one header or from both.
fn count(answer: &Answer) -> Result<u64, Violation> {
    let read = |name: &'static str| match answer.header(name)? {
        None => Ok(None),
        Some(value) => {
            let plain = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|_| plain);
            number.map(Some).ok_or_else(|| Violation::MalformedCount { name, value: value.to_owned() })
        }
    };
    match (read(names::BYTES)?, read(names::BYTES_TRANSFERRED)?) {
        (Some(bytes), Some(transferred)) if bytes != transferred => Err(Violation::TwoCounts { bytes, transferred }),
        (Some(bytes), _) | (None, Some(bytes)) => Ok(bytes),
        (None, None) => Err(Violation::NoCount),
    }
}

impl Client {
    /// Sends a request that carries a token, GetObject, PutObject or UploadPart, and judges the answer. A PUT is sent with
    /// `content-length: 0`. Errors: as of [`Client::call`] and [`judge`].
    pub fn by_token(
        &mut self,
        mut request: Request<'_>,
        token: &TokenHeader,
        asked: &Asked,
    ) -> Result<(Verdict, Answer), ClientError> {
        request.headers.extend(token.headers());
        if let Some((first, last)) = asked.range {
            request.headers.push(("range", format!("bytes={first}-{last}")));
        }
        // A body that should not be there is counted, and not kept.
        let answer = self.call(&request, Some(&mut |_| Ok(())))?;
        Ok((judge(&answer, asked)?, answer))
    }
}

/// How the bytes of a [`Session`] go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// By RDMA, and by the body where a signal says so.
    Rdma(Family, Port),
    /// By the body.
    Http,
}

/// A transfer of a [`Session`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes.
    pub bytes: u64,
    /// The object's ETag.
    pub etag: String,
    /// Why it went by the body, if it should not have.
    pub fell_back: Option<(Signal, Refusal)>,
    /// Whether it went by RDMA.
    pub rdma: bool,
    /// When the request began.
    pub begin: Instant,
    /// When its answer was complete.
    pub end: Instant,
    /// `x-amz-meta-crc32`, on a GET.
    pub crc32: Option<String>,
}

/// A client, a region, and the way between server and region. Objects go from or to the region's first byte.
pub struct Session {
    client: Client,
    region: Box<dyn Region>,
    route: Route,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("region", &self.region).field("route", &self.route).finish_non_exhaustive()
    }
}

/// What became of the attempt to transfer by RDMA.
enum ByRdma {
    NotAsked,
    FallBack(Signal, Refusal),
    Done(Transfer),
}

/// The header with which [`Session::put`] stores the CRC32 of an object, eight hex digits.
const CRC32: &str = "x-amz-meta-crc32";

impl Session {
    /// Transfers between `client`'s server and `region`.
    #[must_use]
    pub fn new(client: Client, region: Box<dyn Region>, route: Route) -> Self {
        Self { client, region, route }
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &dyn Region {
        &*self.region
    }

    /// The region, to be filled.
    pub fn region_mut(&mut self) -> &mut dyn Region {
        &mut *self.region
    }

    /// The client.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Stores the first `length` bytes of the region, with their CRC32 as metadata.
    pub fn put(&mut self, bucket: &str, key: &str, length: u64, crc32: &str) -> Result<Transfer, ClientError> {
        let begin = Instant::now();
        let request = || Request::new("PUT", bucket, key).header(CRC32, crc32);
        let fell_back = match self.by_rdma(request(), Direction::Put, length, begin)? {
            ByRdma::Done(transfer) => return Ok(transfer),
            ByRdma::NotAsked => None,
            ByRdma::FallBack(signal, refusal) => Some((signal, refusal)),
        };
        let region = &self.region;
        let source = |offset: u64, piece: &mut [u8]| region.read(usize::try_from(offset).unwrap_or(usize::MAX), piece);
        let answer = self.client.call(&request().body(Body::Stream(length, &source)), None)?.check()?;
        let (etag, end) = (answer.etag()?, Instant::now());
        Ok(Transfer { bytes: length, etag, fell_back, rdma: false, begin, end, crc32: None })
    }

    /// Fetches an object of `length` bytes into the region.
    pub fn get(&mut self, bucket: &str, key: &str, length: u64) -> Result<Transfer, ClientError> {
        let begin = Instant::now();
        let request = || Request::new("GET", bucket, key);
        let fell_back = match self.by_rdma(request(), Direction::Get, length, begin)? {
            ByRdma::Done(transfer) => return Ok(transfer),
            ByRdma::NotAsked => None,
            ByRdma::FallBack(signal, refusal) => Some((signal, refusal)),
        };
        let (region, mut offset) = (&mut self.region, 0);
        let mut sink = |piece: &[u8]| {
            // Never behind the bytes that the object should have.
            if piece.len() as u64 > length.saturating_sub(offset) {
                return Err(format!("more than the {length} bytes that the object should have"));
            }
            region.write(usize::try_from(offset).unwrap_or(usize::MAX), piece);
            offset += piece.len() as u64;
            Ok(())
        };
        let answer = self.client.call(&request(), Some(&mut sink))?.check()?;
        let end = Instant::now();
        if answer.length != length {
            return Err(Violation::WrongCount { counted: answer.length, expected: length }.into());
        }
        let (etag, crc32) = (answer.etag()?, answer.header(CRC32)?.map(str::to_owned));
        Ok(Transfer { bytes: length, etag, fell_back, rdma: false, begin, end, crc32 })
    }

    fn by_rdma(
        &mut self,
        request: Request<'_>,
        direction: Direction,
        length: u64,
        begin: Instant,
    ) -> Result<ByRdma, ClientError> {
        let Route::Rdma(family, port) = self.route else { return Ok(ByRdma::NotAsked) };
        let window = Window { address: self.region.address(), length };
        let token = mint(family, &port, self.region.rkey(), whole(self.region()), window);
        let token = token.ok_or(ClientError::NoToken { family, qpn: port.qpn, length })?;
        let asked = Asked { direction, range: None, window: length, bytes: Some(length) };
        let (verdict, answer) = self.client.by_token(request, &token, &asked)?;
        let end = Instant::now();
        Ok(match verdict {
            Verdict::FallBack(signal, refusal) => ByRdma::FallBack(signal, refusal),
            Verdict::Moved(Moved { bytes, etag, .. }) => {
                let crc32 = answer.header(CRC32)?.map(str::to_owned);
                ByRdma::Done(Transfer { bytes, etag, fell_back: None, rdma: true, begin, end, crc32 })
            }
        })
    }

    /// Fills `length` bytes of the region from `offset` on with what `next` makes.
    pub fn fill(&mut self, offset: u64, length: u64, mut next: impl FnMut(&mut [u8])) {
        let mut piece = vec![0; PIECE];
        pieces(offset, length, |at, n| {
            let part = piece.get_mut(..n).unwrap_or_default();
            next(part);
            self.region.write(at, part);
        });
    }

    /// Shows `length` bytes of the region from `offset` on to `see`.
    pub fn look(&self, offset: u64, length: u64, mut see: impl FnMut(&[u8])) {
        let mut piece = vec![0; PIECE];
        pieces(offset, length, |at, n| {
            let part = piece.get_mut(..n).unwrap_or_default();
            self.region.read(at, part);
            see(part);
        });
    }
}

/// Calls `each` with place and length of the pieces of `length` bytes from `offset` on.
fn pieces(offset: u64, length: u64, mut each: impl FnMut(usize, usize)) {
    let mut at = offset;
    let end = offset.saturating_add(length);
    while at < end {
        let n = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        each(usize::try_from(at).unwrap_or(usize::MAX), n);
        at += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Asked = Asked { direction: Direction::Get, range: None, window: 4096, bytes: Some(4096) };
    const PORT: Port =
        Port { qpn: 0x12_3456, gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 9], number: 1, lid: 0 };

    fn answer(status: u16, headers: &[(&str, &str)], document: &str) -> Answer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Answer { status, headers, document: document.into(), length: document.len() as u64 }
    }

    /// The answer to a GET of 4096 bytes, with one header replaced, or left out where the value is empty.
    fn changed(status: u16, name: &str, value: &str) -> Answer {
        let mut good = vec![
            ("x-amz-rdma-reply", "200"),
            ("x-amz-rdma-bytes", "4096"),
            ("x-amz-rdma-bytes-transferred", "4096"),
            ("etag", "\"e\""),
        ];
        good.retain(|(n, _)| *n != name);
        if !value.is_empty() {
            good.push((name, value));
        }
        answer(status, &good, "")
    }

    fn violation(answer: &Answer, asked: &Asked) -> Violation {
        match judge(answer, asked) {
            Err(ClientError::Violation(violation)) => violation,
            other => panic!("{other:?}"),
        }
    }

    fn signal(answer: &Answer) -> Signal {
        match judge(answer, &GET) {
            Ok(Verdict::FallBack(signal, _)) => signal,
            other => panic!("{other:?}"),
        }
    }

    /// A server's token in a reply: RC, queue pair 0xd00001, ::ffff:192.168.200.1.
    fn peer() -> Token {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 1];
        Token::endpoint(0xd0_0001, gid, 0)
    }

    #[test]
    fn tokens_name_the_window() {
        let (whole, window) = (
            Window { address: 0x7f11_2233_4000, length: 1 << 20 },
            Window { address: 0x7f11_2233_5000, length: 0x1000 },
        );
        let text = |family, window| mint(family, &PORT, 0xdead_beef, whole, window).unwrap().headers();
        // The vectors of the wire document.
        let a = "015634120000000000000000000000ffffc0a8c809efbeadde00403322117f000000001000000000000100 00"
            .replace(' ', "");
        assert_eq!(text(Family::A, whole), [("x-amz-rdma-token", a.clone())]);
        assert_eq!(text(Family::B, window), [("x-amz-rdma-token", format!("{a}:7f1122335000:1000"))]);
        assert_eq!(
            text(Family::C, window),
            [(
                "x-amz-rdma-token",
                "00007f1122335000:00001000:deadbeef:0000:123456:1:00000000000000000000ffffc0a8c809".into()
            )]
        );
        let wide = Window { address: 0, length: 1 << 32 };
        assert_eq!(mint(Family::C, &PORT, 1, wide, wide), None);
        assert_eq!(mint(Family::C, &Port { qpn: 1 << 24, ..PORT }, 1, whole, window), None);
        assert!(mint(Family::A, &PORT, 1, wide, wide).is_some());
    }

    #[test]
    fn a_success_is_one_all_over() {
        for reply in ["200", "ok", &Reply::Token(peer()).to_string()] {
            let Ok(Verdict::Moved(moved)) = judge(&changed(200, "x-amz-rdma-reply", reply), &GET) else {
                panic!("{reply}")
            };
            assert_eq!((moved.bytes, moved.etag.as_str(), moved.reply.to_string().as_str()), (4096, "\"e\"", reply));
        }
        // One of the two numbers is enough.
        for name in ["x-amz-rdma-bytes", "x-amz-rdma-bytes-transferred"] {
            assert!(matches!(judge(&changed(200, name, ""), &GET), Ok(Verdict::Moved(_))));
        }
        // Where the size is not known, what fits is believed.
        let shorter = Asked { bytes: None, ..GET };
        let fewer = answer(200, &[("x-amz-rdma-reply", "200"), ("x-amz-rdma-bytes", "0"), ("etag", "e")], "");
        assert!(matches!(judge(&fewer, &shorter), Ok(Verdict::Moved(Moved { bytes: 0, .. }))));
    }

    #[test]
    fn a_range_is_answered_with_206_and_nothing_but_206() {
        let ranged = Asked { range: Some((1024, 1535)), bytes: Some(512), ..GET };
        let with = |status, reply: &str, range: &str| {
            answer(
                status,
                &[("x-amz-rdma-reply", reply), ("x-amz-rdma-bytes", "512"), ("etag", "e"), ("content-range", range)],
                "",
            )
        };
        assert!(matches!(judge(&with(206, "206", "bytes 1024-1535/4096"), &ranged), Ok(Verdict::Moved(_))));
        let token = peer().to_string();
        for malformed in [format!("206:{token}"), format!("404:{token}"), "206 ".into(), "0206".into()] {
            assert_eq!(
                violation(&with(206, &malformed, "bytes 1024-1535/4096"), &ranged),
                Violation::MalformedReply(malformed)
            );
        }
        assert!(matches!(
            violation(&with(206, "200", "bytes 1024-1535/4096"), &ranged),
            Violation::Contradiction { status: 206, .. }
        ));
        let handshake = format!("200:{token}");
        assert!(matches!(
            violation(&with(206, &handshake, "bytes 1024-1535/4096"), &ranged),
            Violation::Contradiction { .. }
        ));
        assert_eq!(violation(&with(200, "200", ""), &ranged), Violation::Status { got: 200, expected: 206 });
        assert_eq!(
            violation(&with(206, "206", "bytes 0-511/4096"), &GET),
            Violation::Status { got: 206, expected: 200 }
        );
        for range in ["", "bytes 0-511/4096", "bytes 1024-1535", "1024-1535/4096"] {
            assert!(matches!(violation(&with(206, "206", range), &ranged), Violation::ContentRange { .. }), "{range}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_a_violation() {
        let reply = |value: &str| violation(&changed(200, "x-amz-rdma-reply", value), &GET);
        assert_eq!(reply(""), Violation::NoReply(200));
        for malformed in ["OK", "200 ", "2000", "+20", "200:", "200:00", "200:xyz", "600"] {
            assert_eq!(reply(malformed), Violation::MalformedReply(malformed.into()));
        }
        for contradiction in ["206", "404", "503", "err"] {
            assert!(matches!(reply(contradiction), Violation::Contradiction { status: 200, .. }), "{contradiction}");
        }
        let count = |value: &str| violation(&changed(200, "x-amz-rdma-bytes", value), &GET);
        assert_eq!(count("4095"), Violation::TwoCounts { bytes: 4095, transferred: 4096 });
        for malformed in ["-1", "+4096", "0x1000", "4096.0", "99999999999999999999", " "] {
            assert_eq!(
                count(malformed),
                Violation::MalformedCount { name: "x-amz-rdma-bytes", value: malformed.into() }
            );
        }
        let counted =
            |bytes: &str| answer(200, &[("x-amz-rdma-reply", "200"), ("x-amz-rdma-bytes", bytes), ("etag", "e")], "");
        assert_eq!(violation(&counted("4095"), &GET), Violation::WrongCount { counted: 4095, expected: 4096 });
        assert_eq!(violation(&counted("0"), &GET), Violation::WrongCount { counted: 0, expected: 4096 });
        assert_eq!(violation(&counted("4097"), &GET), Violation::Overrun { counted: 4097, window: 4096 });
        assert_eq!(
            violation(&answer(200, &[("x-amz-rdma-reply", "200"), ("etag", "e")], ""), &GET),
            Violation::NoCount
        );
        assert_eq!(violation(&changed(200, "etag", ""), &GET), Violation::NoEtag);
        let mut twice = changed(200, "x-amz-rdma-reply", "200");
        twice.headers.push(("X-Amz-Rdma-Reply".into(), "501".into()));
        assert_eq!(violation(&twice, &GET), Violation::Twice("x-amz-rdma-reply".into()));
        let mut body = changed(200, "", "");
        body.length = 4096;
        assert_eq!(violation(&body, &GET), Violation::Body(4096));
    }

    #[test]
    fn the_three_signals_fall_back_and_nothing_else_does() {
        let document = |code: &str| format!("<Error><Code>{code}</Code></Error>");
        assert_eq!(signal(&answer(501, &[("x-amz-rdma-reply", "501")], &document("NotImplemented"))), Signal::Declined);
        assert_eq!(signal(&answer(200, &[("x-amz-rdma-reply", "501")], "")), Signal::Declined);
        assert_eq!(
            signal(&answer(503, &[("x-amz-rdma-reply", "503")], &document("RDMATransferError"))),
            Signal::Failed
        );
        assert_eq!(signal(&answer(503, &[], &document("RDMATransferError"))), Signal::Failed);
        assert_eq!(signal(&answer(400, &[], &document("InvalidArgument"))), Signal::NoReply);
        assert_eq!(signal(&answer(403, &[], &document("SignatureDoesNotMatch"))), Signal::NoReply);
        assert_eq!(signal(&answer(501, &[], &document("NotImplemented"))), Signal::NoReply);
        for (status, reply, code) in [
            (404, "404", "NoSuchKey"),
            (500, "500", "InternalError"),
            (500, "err", "InternalError"),
            (503, "503", "SlowDown"),
            (304, "304", ""),
            (412, "412", "PreconditionFailed"),
        ] {
            match judge(&answer(status, &[("x-amz-rdma-reply", reply)], &document(code)), &GET) {
                Err(ClientError::Refused(refusal)) => {
                    assert_eq!((refusal.status, refusal.code.as_str()), (status, code))
                }
                other => panic!("{other:?}"),
            }
        }
        let lie = answer(500, &[("x-amz-rdma-reply", "200")], &document("InternalError"));
        assert!(matches!(violation(&lie, &GET), Violation::Contradiction { status: 500, .. }));
    }

    #[test]
    fn regions_are_filled_and_seen_in_pieces() {
        let mut config = crate::s3::Config::new("http://127.0.0.1:9".parse().unwrap());
        config.keep_alive = false;
        let size = PIECE * 2 + 17;
        let plain = Box::new(crate::memory::Plain::new(size));
        let mut session = Session::new(Client::new(config).unwrap(), plain, Route::Http);
        let mut lengths = Vec::new();
        session.fill(10, (size - 10) as u64, |piece| {
            lengths.push(piece.len());
            piece.fill(u8::try_from(lengths.len()).unwrap());
        });
        assert_eq!(lengths, [PIECE, PIECE, 7]);
        let mut seen = Vec::new();
        session.look(0, size as u64, |piece| seen.extend_from_slice(piece));
        assert_eq!((seen.len(), &seen[..10], seen[10], seen[size - 1]), (size, &[0; 10][..], 1, 3));
    }
}
