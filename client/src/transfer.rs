//! Transfers by token: what the request says, what the answer must say, and when to take the body instead.

use std::fmt;

use rdma_token::{Descriptor, Qpn, Reply, Status, Token, TokenHeader, Transport, Window, names};

use crate::{
    ClientError, Refusal, Violation,
    memory::{Port, Region},
    s3::{Answer, Client, Request},
};

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
    due(answer, asked)?;
    let counted = count(answer, asked)?;
    if answer.length != 0 {
        return Err(Violation::Body(answer.length).into());
    }
    Ok(Verdict::Moved(Moved { reply, bytes: counted, etag: answer.etag()? }))
}

/// Whether a success is the one that was asked for: 206 with the range in `content-range`, or 200.
fn due(answer: &Answer, asked: &Asked) -> Result<(), Violation> {
    let (got, expected) = (answer.status, if asked.range.is_some() { 206 } else { 200 });
    if got != expected {
        return Err(Violation::Status { got, expected });
    }
    if let Some((first, last)) = asked.range {
        let expected = format!("bytes {first}-{last}");
        let got = answer.header("content-range")?.unwrap_or_default();
        if got.split_once('/').is_none_or(|(range, _)| range != expected) {
            return Err(Violation::ContentRange { got: got.to_owned(), expected });
        }
    }
    Ok(())
}

/// Judges the answer to a GET without a token: its status, its range, and the bytes of its body. A body of which nobody says
/// where it ends may be cut off anywhere, and is none.
///
/// Errors: [`ClientError::Refused`], [`ClientError::Violation`], [`ClientError::BadAnswer`].
pub fn judge_body(answer: Answer, asked: &Asked) -> Result<Answer, ClientError> {
    let answer = answer.check()?;
    due(&answer, asked)?;
    if let Some(expected) = asked.bytes.filter(|bytes| *bytes != answer.length) {
        return Err(Violation::WrongCount { counted: answer.length, expected }.into());
    }
    if answer.header("content-length")?.is_none() && answer.header("transfer-encoding")?.is_none() {
        return Err(ClientError::BadAnswer("a body without content-length or transfer-encoding".into()));
    }
    Ok(answer)
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

/// The number of bytes, from one header or from both: no more than there is memory for, and those that were asked for.
pub(crate) fn count(answer: &Answer, asked: &Asked) -> Result<u64, Violation> {
    let read = |name: &'static str| match answer.header(name)? {
        None => Ok(None),
        Some(value) => {
            let plain = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|_| plain);
            number.map(Some).ok_or_else(|| Violation::MalformedCount { name, value: value.to_owned() })
        }
    };
    let counted = match (read(names::BYTES)?, read(names::BYTES_TRANSFERRED)?) {
        (Some(bytes), Some(transferred)) if bytes != transferred => {
            return Err(Violation::TwoCounts { bytes, transferred });
        }
        (Some(bytes), _) | (None, Some(bytes)) => bytes,
        (None, None) => return Err(Violation::NoCount),
    };
    if counted > asked.window {
        return Err(Violation::Overrun { counted, window: asked.window });
    }
    match asked.bytes {
        Some(expected) if counted != expected => Err(Violation::WrongCount { counted, expected }),
        _ => Ok(counted),
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
    fn bodies_are_judged_by_status_range_and_length() {
        let body = |status, headers: &[(&str, &str)], length| Answer { length, ..answer(status, headers, "") };
        let whole = body(200, &[("content-length", "4096")], 4096);
        assert_eq!(judge_body(whole.clone(), &GET).unwrap(), whole);
        assert!(judge_body(body(200, &[("transfer-encoding", "chunked")], 4096), &GET).is_ok());
        let violation = |answer, asked: &Asked| match judge_body(answer, asked) {
            Err(ClientError::Violation(violation)) => violation,
            other => panic!("{other:?}"),
        };
        let short = body(200, &[("content-length", "4095")], 4095);
        assert_eq!(violation(short, &GET), Violation::WrongCount { counted: 4095, expected: 4096 });
        assert_eq!(
            violation(Answer { status: 206, ..whole.clone() }, &GET),
            Violation::Status { got: 206, expected: 200 }
        );
        let ranged = Asked { range: Some((1024, 1535)), bytes: Some(512), ..GET };
        let part = |range| body(206, &[("content-length", "512"), ("content-range", range)], 512);
        assert!(judge_body(part("bytes 1024-1535/4096"), &ranged).is_ok());
        assert!(matches!(violation(part("bytes 0-511/4096"), &ranged), Violation::ContentRange { .. }));
        assert_eq!(violation(whole, &ranged), Violation::Status { got: 200, expected: 206 });
        // One that ends with the connection.
        let error = judge_body(body(200, &[], 4096), &GET).unwrap_err().to_string();
        assert_eq!(error, "bad answer: a body without content-length or transfer-encoding");
    }
}
