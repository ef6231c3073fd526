//! S3 over RDMA: requests whose payload is in the client's registered memory.
//!
//! A client names the memory with a token in the request's headers. GetObject writes the object's bytes there, PutObject and
//! UploadPart read theirs from there, and the answer has an empty body and says how it went. The rules, by number, are those
//! of the project's wire document "S3 over RDMA", section 4; the book's page on the protocol has them in other words.
//!
//! [`claim`] finds the token before `s3s` sees the request. The [`Exchange`] that it makes goes along with the request; the
//! operation, once nothing speaks against it any more, opens a [`Transfer`](transfer::Transfer). The answer is completed by
//! [`Exchange::reply`], whatever has become of it.

mod faults;
mod pace;
mod transfer;

use std::{
    fmt,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rdma_token::{Family, RcEndpoint, RcSession, RcTarget, RemoteMemory, Reply, Status, Token, TokenHeader, names};
use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::{Metrics, error::not_implemented, route::Op};

pub use faults::{Action, Fault, FaultError, Faults, When};
pub use pace::{Impairment, Pacer, Timers};
pub(crate) use transfer::{Transfer, busy, transfer_error};

/// First of the queue pair numbers that the service says it has (rule 3).
const QPN_BASE: u32 = 0xd0_0000;
/// How many there are: a queue pair number has 24 bits.
const QPNS: u64 = 0x30_0000;

/// How requests with tokens are served.
#[derive(Debug, Clone)]
pub struct RdmaConfig {
    /// The address that clients know the service by. It is in the token of replies, as an IPv4-mapped GID (rule 3).
    pub endpoint: Ipv4Addr,
    /// Makes transfers slower and less reliable than they are.
    pub impairment: Option<Impairment>,
}

impl RdmaConfig {
    /// A service at `endpoint` that does what it can.
    pub fn new(endpoint: Ipv4Addr) -> Self {
        Self { endpoint, impairment: None }
    }
}

/// What all requests that move bytes by RDMA share.
pub(crate) struct Rdma {
    memory: Arc<dyn RemoteMemory>,
    config: RdmaConfig,
    /// Most bytes of one transfer.
    max_part: u64,
    metrics: Arc<Metrics>,
    /// Transfers so far, for the faults.
    transfers: AtomicU64,
    line: pace::Line,
}

impl Rdma {
    pub(crate) fn new(memory: Arc<dyn RemoteMemory>, config: RdmaConfig, max_part: u64, metrics: Arc<Metrics>) -> Self {
        Self { memory, config, max_part, metrics, transfers: AtomicU64::new(0), line: pace::Line::default() }
    }

    pub(crate) fn max_part(&self) -> u64 {
        self.max_part
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

/// One request with a well-formed token.
pub(crate) struct Exchange {
    rdma: Arc<Rdma>,
    header: TokenHeader,
    /// Number of the connection that it came on.
    connection: u64,
    way: Mutex<Way>,
    outcome: Mutex<Outcome>,
}

/// How the client's memory is reached.
enum Way {
    /// It is what the token names.
    Token,
    /// Over a connection that was made for this request alone.
    Paired(Paired),
    /// The transfer has the connection.
    Taken,
}

/// A connection of `hipobj-rc-v2`.
pub(crate) struct Paired {
    pub(crate) session: Box<dyn RcSession>,
    /// Where a GET's bytes go.
    pub(crate) to: RcTarget,
    /// The immediate that goes with them.
    pub(crate) cookie: u32,
}

/// What has come of it so far.
#[derive(Debug, Default)]
struct Outcome {
    /// Bytes of a transfer that has succeeded.
    moved: u64,
    /// The server's end of the connection, if the client's memory is reached over one.
    endpoint: Option<RcEndpoint>,
    /// Whether the answer says nothing of RDMA.
    silent: bool,
    /// Whether its reply header gets lost.
    dropped: bool,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("header", &self.header)
            .field("connection", &self.connection)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

/// Whether a request has a token, or a part of one: a client that sends one of family E's headers means RDMA, and what came
/// in its body must not be taken for its object.
fn has_token(headers: &HeaderMap) -> bool {
    [names::TOKEN, names::CUOBJ_DESCR, names::CUOBJ_CONTENT_LENGTH, names::CUOBJ_REMOTE_BUF_START]
        .iter()
        .any(|name| headers.contains_key(*name))
}

/// Finds the token of a request, if its operation looks at tokens at all. Errors: there is one, and it is malformed (rule
/// 13) or RDMA is off (rule 10).
pub(crate) fn claim(
    headers: &HeaderMap,
    op: Op,
    rdma: Option<&Arc<Rdma>>,
    metrics: &Metrics,
    connection: u64,
) -> Result<Option<Arc<Exchange>>, S3Error> {
    if !op.has_rdma_path() || !has_token(headers) {
        return Ok(None);
    }
    let Some(rdma) = rdma else {
        metrics.rdma_failed("off");
        let mut error = not_implemented("S3 over RDMA");
        let mut headers = HeaderMap::new();
        write_reply(&mut headers, Some(Reply::Status(status(StatusCode::NOT_IMPLEMENTED))), 0);
        error.set_headers(headers);
        return Err(error);
    };
    let header = token(headers).map_err(|reason| {
        metrics.rdma_failed("malformed");
        tracing::debug!(%reason, "rdma: malformed token");
        s3_error!(InvalidArgument, "The RDMA token is malformed: {reason}.")
    })?;
    let (rdma, way) = (Arc::clone(rdma), Mutex::new(Way::Token));
    Ok(Some(Arc::new(Exchange { rdma, header, connection, way, outcome: Mutex::default() })))
}

/// The one token of the headers: that of [`names::TOKEN`], or else family E's.
fn token(headers: &HeaderMap) -> Result<TokenHeader, String> {
    // What is not there is as malformed as what is empty.
    let single = |name| -> Result<&[u8], String> {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (value, None) => Ok(value.map_or(&[], HeaderValue::as_bytes)),
            _ => Err(format!("{name} is there more than once")),
        }
    };
    let token = if headers.contains_key(names::TOKEN) {
        TokenHeader::parse(single(names::TOKEN)?)
    } else {
        TokenHeader::from_cuobj(
            single(names::CUOBJ_DESCR)?,
            single(names::CUOBJ_CONTENT_LENGTH)?,
            single(names::CUOBJ_REMOTE_BUF_START)?,
        )
    };
    // It begins with these words.
    token.map_err(|error| error.to_string().trim_start_matches("malformed token: ").to_owned())
}

/// Writes what the answer says of RDMA: the reply, and in both spellings how many bytes were moved (rules 4 and 5).
fn write_reply(headers: &mut HeaderMap, reply: Option<Reply>, moved: u64) {
    if let Some(reply) = reply
        && let Ok(value) = HeaderValue::try_from(reply.to_string())
    {
        headers.insert(HeaderName::from_static(names::REPLY), value);
    }
    for name in [names::BYTES, names::BYTES_TRANSFERRED] {
        headers.insert(HeaderName::from_static(name), moved.into());
    }
}

/// The status of an answer, as replies have it. hyper's are 100 to 999, those of an answer of ours 200 to 599.
fn status(status: StatusCode) -> Status {
    Status::new(status.as_u16()).unwrap_or(Status::OK)
}

impl Exchange {
    /// A request whose bytes go over a connection of its own. The token's window is what is moved at most.
    pub(crate) fn paired(rdma: &Arc<Rdma>, token: Token, connection: u64, paired: Paired) -> Arc<Self> {
        let (rdma, way) = (Arc::clone(rdma), Mutex::new(Way::Paired(paired)));
        Arc::new(Self { rdma, header: TokenHeader::A(token), connection, way, outcome: Mutex::default() })
    }

    /// The way to the client's memory, which is given out once if it is a connection.
    fn take_way(&self) -> Way {
        let mut way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        match *way {
            Way::Token => Way::Token,
            _ => std::mem::replace(&mut way, Way::Taken),
        }
    }

    /// Bytes of the transfer, once it has succeeded.
    pub(crate) fn moved(&self) -> u64 {
        self.outcome().moved
    }

    /// Whether its client can be told that it got less than it asked for (rules 7 and 8).
    fn takes_less(&self) -> bool {
        matches!(self.header.family(), Family::A | Family::B)
    }

    /// Completes the answer to the request: what became of it, and of its transfer (rules 2, 4, 5 and 14).
    pub(crate) fn reply(&self, answer: StatusCode, headers: &mut HeaderMap) {
        let outcome = self.outcome();
        if outcome.silent {
            return;
        }
        let reply = match answer {
            // Strict clients of the other families take nothing but a number here, and of no family a token behind a 206.
            StatusCode::OK if self.takes_less() => Reply::Token(self.endpoint(outcome.endpoint)),
            answer => Reply::Status(status(answer)),
        };
        let moved = if answer.is_success() { outcome.moved } else { 0 };
        write_reply(headers, Some(reply).filter(|_| !outcome.dropped), moved);
    }

    /// What the service says of itself (rule 3). Without a connection, nothing will ever connect to it: whoever can reach the
    /// memory that a token names needs no queue pair.
    fn endpoint(&self, connection: Option<RcEndpoint>) -> Token {
        if let Some(RcEndpoint { qpn, gid, lid, .. }) = connection {
            return Token::endpoint(qpn, gid, lid);
        }
        let number = u32::try_from(self.connection % QPNS).unwrap_or(0);
        Token::endpoint(QPN_BASE + number, self.rdma.config.endpoint.to_ipv6_mapped().octets(), 0)
    }

    /// How many bytes a PutObject or UploadPart moves (rule 8): what the token says, and not more than `declared`.
    pub(crate) fn size(&self, declared: Option<u64>) -> Result<u64, S3Error> {
        let declared = declared.filter(|declared| *declared > 0);
        let size = match (self.header.window().length, declared) {
            (0, None) => {
                self.rdma.metrics.rdma_failed("length");
                return Err(S3ErrorCode::MissingContentLength.into());
            }
            // The window is empty, so that any size is too much for it.
            (0, Some(declared)) => declared,
            (length, declared) => declared.map_or(length, |declared| declared.min(length)),
        };
        if size > self.rdma.max_part {
            self.rdma.metrics.rdma_failed("too_large");
            return Err(crate::error::too_large(self.rdma.max_part));
        }
        Ok(size)
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "015634120000000000000000000000ffffc0a8c809efbeadde00403322117f00000000100000000000010000";
    const C: &str = "000073967e5ff000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0f0f0fdf";

    fn read(list: &[(&'static str, &'static str)]) -> Result<Family, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_static(value));
        }
        assert!(has_token(&headers));
        token(&headers).map(|token| token.family())
    }

    #[test]
    fn s3_rdma_rule_01_the_token_header_wins_and_nothing_is_taken_twice() {
        let e = [(names::CUOBJ_DESCR, C), (names::CUOBJ_CONTENT_LENGTH, "5"), (names::CUOBJ_REMOTE_BUF_START, "7")];
        assert_eq!(read(&[(names::TOKEN, A)]), Ok(Family::A));
        assert_eq!(read(&[(names::TOKEN, C)]), Ok(Family::C));
        assert_eq!(read(&e), Ok(Family::E));
        assert_eq!(read(&[&e[..], &[(names::TOKEN, A)]].concat()), Ok(Family::A));
        assert_eq!(read(&[(names::TOKEN, A), (names::CUOBJ_DESCR, "nonsense")]), Ok(Family::A));
        assert_eq!(read(&[(names::TOKEN, A); 2]), Err("x-amz-rdma-token is there more than once".into()));
        for (i, (name, _)) in e.iter().enumerate() {
            let mut twice = e.to_vec();
            twice.push(e[i]);
            assert_eq!(read(&twice), Err(format!("{name} is there more than once")));
            let mut without = e.to_vec();
            without.remove(i);
            read(&without).unwrap_err();
            read(&[e[i]]).unwrap_err();
        }
        assert_eq!(read(&[(names::TOKEN, "")]), Err("field 1 is 0 digits long".into()));
    }
}
