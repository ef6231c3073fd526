//! `hipobj-rc-v2`: S3 over reliable connections of the server's own (wire document "S3 over RDMA", section 5).
//!
//! A reliably connected queue pair has to be connected before anything moves. So a client first *prepares* a session: it says
//! which queue pair it has, and what it wants to do with which object. The server connects a queue pair and a buffer of its own
//! to it and answers who it is. Then the client says that it is *ready*, and the server runs the S3 operation: of a GET it fills
//! the buffer and writes it to the client's memory, of a PUT it waits until the client has written into the buffer, and stores
//! what is there. A session makes one transfer, and can be *cancelled*.
//!
//! The operation is an ordinary request to this service: the target's path and query, the headers that came with prepare, and
//! the session in the place of what a token names. Nothing about objects is decided here.

mod headers;
mod sessions;

use std::{
    fmt,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{Either, select};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use rdma_token::{RcEndpoint, RcFabric, RcTarget, RemoteAccess, RemoteError, Reply, Token, names};
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode};

use self::{
    headers::{Cancel, Operation, Prepare, Ready, malformed, too_large},
    sessions::{Denied, Peer, Prepared, Sessions},
};
use crate::{
    Inner,
    checksum::Algorithm,
    error::{custom, error, report},
    own::unsupported,
    payload::Payload,
    rdma::{Exchange, Paired, Rdma, busy, transfer_error},
    request::Surroundings,
    route::method_not_allowed,
};

/// How `hipobj-rc-v2` is served.
#[derive(Clone)]
pub struct RcConfig {
    /// Most sessions at once; one more is told to come again (503). Default 64.
    pub sessions: usize,
    /// Most sessions at once of one client: of one access key, or where nobody signs, of one address. Default 16.
    pub per_client: usize,
    /// How long a session waits to be made ready. Default 10 s, which is what hipObject's clients give a connection.
    pub patience: Duration,
    /// What tells the time. Default: the system's.
    pub clock: Arc<dyn Fn() -> Instant + Send + Sync>,
}

impl Default for RcConfig {
    fn default() -> Self {
        Self { sessions: 64, per_client: 16, patience: Duration::from_secs(10), clock: Arc::new(Instant::now) }
    }
}

impl fmt::Debug for RcConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcConfig")
            .field("sessions", &self.sessions)
            .field("per_client", &self.per_client)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// Which of the three requests one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Prepare,
    Ready,
    Cancel,
}

impl Route {
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            names::PREPARE => Some(Self::Prepare),
            names::READY => Some(Self::Ready),
            names::CANCEL => Some(Self::Cancel),
            _ => None,
        }
    }
}

/// The server's side of the protocol.
pub(crate) struct Rc {
    fabric: Arc<dyn RcFabric>,
    config: RcConfig,
    rdma: Arc<Rdma>,
    sessions: Arc<Sessions>,
}

impl Rc {
    pub(crate) fn new(fabric: Arc<dyn RcFabric>, config: RcConfig, rdma: Arc<Rdma>) -> Self {
        let sessions = Sessions::new(config.sessions, config.per_client, Arc::clone(rdma.metrics()));
        Self { fabric, config, rdma, sessions }
    }

    /// As of [`S3Service::reap`](crate::S3Service::reap).
    pub(crate) fn reap(&self) -> Option<Duration> {
        self.sessions.reap((self.config.clock)())
    }

    /// Answers one request, whose signature has been checked: `access` is whose it is.
    pub(crate) async fn answer(
        &self,
        service: &Inner,
        route: Route,
        parts: &Parts,
        access: Option<String>,
        payload: &Arc<Payload>,
        around: &Surroundings<'_>,
    ) -> Result<HttpResponse, S3Error> {
        self.reap();
        let answer = if parts.method != Method::POST {
            Err(method_not_allowed("POST"))
        } else {
            match route {
                Route::Prepare => self.prepare(service, parts, access, payload, around).await,
                Route::Ready => self.ready(service, parts, access.as_deref(), payload, around).await,
                Route::Cancel => self.cancel(parts, access.as_deref()),
            }
        };
        let mut answer = answer.or_else(S3Error::to_http_response).map_err(|error| {
            report(&error);
            S3Error::new(S3ErrorCode::InternalError)
        })?;
        // Everybody who speaks the protocol is told that it was understood; the others must not take the answer for it.
        if !answer.headers().contains_key(names::PROTOCOL_STATUS) {
            put(answer.headers_mut(), names::PROTOCOL, names::HIPOBJ_RC_V2);
        }
        Ok(answer)
    }

    async fn prepare(
        &self,
        service: &Inner,
        parts: &Parts,
        access: Option<String>,
        payload: &Arc<Payload>,
        around: &Surroundings<'_>,
    ) -> Result<HttpResponse, S3Error> {
        let metrics = self.rdma.metrics();
        let Prepare { token, psn, cookie, size, operation } = Prepare::read(parts).inspect_err(|_| {
            metrics.rdma_failed("malformed");
        })?;
        if size > self.rdma.max_part() {
            metrics.rdma_failed("too_large");
            return Err(too_large(self.rdma.max_part()));
        }
        let get = operation.method == Method::GET;
        if get {
            // A client waits for bytes, and not for an answer, once it is ready.
            let head = service.run(operation.parts(parts, Method::HEAD), payload, around, &mut None).await?;
            if !head.status().is_success() {
                return Ok(head);
            }
        }
        let peer = access.clone().map_or(Peer::Gid(token.gid), Peer::Key);
        let Some(slot) = self.sessions.slot(peer) else {
            metrics.rdma_failed("sessions");
            return Err(busy("There are too many sessions by RDMA."));
        };
        let direction = if get { RemoteAccess::Write } else { RemoteAccess::Read };
        let session = self.fabric.prepare(&token, psn, size, direction).await.map_err(|error| self.refused(&error))?;
        let local = session.local();
        if !get && local.staging.is_none() {
            report(&"the RDMA device offers no buffer to write to");
            return Err(S3ErrorCode::InternalError.into());
        }
        let id = random()?;
        let until = (self.config.clock)() + self.config.patience;
        if !self.sessions.insert(id, access, cookie, Prepared { token, operation, session, slot }, until) {
            report(&"a session's random id is taken");
            return Err(S3ErrorCode::InternalError.into());
        }
        tracing::debug!(qpn = local.qpn, peer = token.qpn, size, get, "rdma session prepared");
        let mut answer = empty(StatusCode::OK);
        describe(answer.headers_mut(), id, &local, !get);
        Ok(answer)
    }

    async fn ready(
        &self,
        service: &Inner,
        parts: &Parts,
        access: Option<&str>,
        payload: &Arc<Payload>,
        around: &Surroundings<'_>,
    ) -> Result<HttpResponse, S3Error> {
        let ready = Ready::read(parts)?;
        let now = (self.config.clock)();
        let (prepared, running) = self.sessions.begin(ready.session, access, ready.cookie, now).map_err(denied)?;
        let (work, cancelled) =
            (pin!(self.transfer(service, parts, ready, prepared, payload, around)), pin!(running.cancelled()));
        match select(work, cancelled).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), _)) => {
                self.rdma.metrics().rdma_failed("cancelled");
                Err(denied(Denied::State))
            }
        }
    }

    /// Runs the operation over the session.
    async fn transfer(
        &self,
        service: &Inner,
        parts: &Parts,
        ready: Ready,
        prepared: Box<Prepared>,
        payload: &Arc<Payload>,
        around: &Surroundings<'_>,
    ) -> Result<HttpResponse, S3Error> {
        let Prepared { token, operation, mut session, slot } = *prepared;
        let cookie = ready.cookie;
        if ready.qpn.is_some_and(|qpn| qpn != token.qpn) {
            return Err(malformed(names::QPN, "the queue pair that the session was prepared for"));
        }
        let size = session.len();
        let get = operation.method == Method::GET;
        let to = match ready.to {
            Some(to) => to,
            // What has no end here is as long as need be: a client that names memory in its token may leave out its length.
            None if get && token.length != 0 && token.length < size => {
                return Err(malformed(names::MR_ADDR, "memory that has room for the transfer"));
            }
            None => RcTarget { address: token.address, rkey: token.rkey },
        };
        if get && to.rkey == 0 {
            return Err(malformed(names::MR_RKEY, "the key of the memory to write to"));
        }
        if !get {
            let (count, immediate) = session.received().await.map_err(|error| self.refused(&error))?;
            if count != size || immediate != cookie {
                tracing::debug!(count, size, immediate, cookie, "rdma session: not what was prepared");
                self.rdma.metrics().rdma_failed("transport");
                return Err(transfer_error());
            }
        }
        let window = Token { address: to.address, rkey: to.rkey, length: size, ..token };
        let paired = Paired { session, to, cookie };
        let exchange = Exchange::paired(&self.rdma, window, around.connection, paired);
        let around = Surroundings { paired: Some(&exchange), ..*around };
        let method = operation.method.clone();
        let answer = service.run(operation.parts(parts, method), payload, &around, &mut None).await;
        let moved = exchange.moved();
        // First the connection and the buffer, if no transfer has had them, then the place.
        drop(exchange);
        drop(slot);
        let mut answer = answer?;
        if answer.status().is_success() {
            conclude(&mut answer, cookie, moved);
        }
        Ok(answer)
    }

    fn cancel(&self, parts: &Parts, access: Option<&str>) -> Result<HttpResponse, S3Error> {
        let Cancel { session, cookie } = Cancel::read(parts)?;
        self.sessions.cancel(session, access, cookie).map_err(denied)?;
        Ok(empty(StatusCode::NO_CONTENT))
    }

    /// What the device refused, to the client.
    fn refused(&self, error: &RemoteError) -> S3Error {
        tracing::debug!(%error, "rdma session: refused by the device");
        self.rdma.metrics().rdma_failed(error.reason());
        match error {
            RemoteError::Unsupported(_) => unsupported(),
            RemoteError::Exhausted(_) => busy(&format!("For a session by RDMA, {error}.")),
            RemoteError::TooLarge { most, .. } => too_large(*most),
            RemoteError::Transport(_) => transfer_error(),
            _ => S3ErrorCode::InternalError.into(),
        }
    }
}

impl Operation {
    /// The S3 request that it is, with what is left of the request that came.
    fn parts(&self, came: &Parts, method: Method) -> Parts {
        let mut request = http::Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = self.target.clone();
        *request.version_mut() = came.version;
        *request.headers_mut() = self.headers.clone();
        request.into_parts().0
    }
}

/// Why a session cannot be had, to the client.
fn denied(why: Denied) -> S3Error {
    match why {
        Denied::State => custom(
            "InvalidRDMASession",
            StatusCode::CONFLICT,
            "There is no such RDMA session, or none any more, or its transfer has begun.".to_owned(),
        ),
        Denied::Foreign => {
            error(S3ErrorCode::AccessDenied, "The RDMA session is another client's, or has another cookie.")
        }
    }
}

/// The id of a session: whoever knows it, and signs as its owner, has the session.
fn random() -> Result<u128, S3Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| {
        report(&error);
        S3Error::new(S3ErrorCode::InternalError)
    })?;
    Ok(u128::from_be_bytes(id))
}

fn empty(status: StatusCode) -> HttpResponse {
    let mut response = HttpResponse::new(Body::empty());
    *response.status_mut() = status;
    if status != StatusCode::NO_CONTENT {
        response.headers_mut().insert(header::CONTENT_LENGTH, 0.into());
    }
    response
}

fn put(headers: &mut HeaderMap, name: &'static str, value: impl AsRef<str>) {
    if let Ok(value) = HeaderValue::from_str(value.as_ref()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Says what a client needs to connect, and for a PUT, where it is to write.
fn describe(headers: &mut HeaderMap, id: u128, local: &RcEndpoint, with_buffer: bool) {
    put(headers, names::REPLY, Reply::Token(Token::endpoint(local.qpn, local.gid, local.lid)).to_string());
    put(headers, names::SESSION, format!("{id:032x}"));
    put(headers, names::PSN, format!("{:06x}", local.psn));
    put(headers, names::QPN, format!("{:x}", local.qpn));
    if let Some(staging) = local.staging.filter(|_| with_buffer) {
        put(headers, names::MR_ADDR, format!("{:x}", staging.address));
        put(headers, names::MR_RKEY, format!("{:x}", staging.rkey));
    }
}

/// Makes the answer to ready out of that to the operation: a range is no other status here.
fn conclude(answer: &mut HttpResponse, cookie: u32, moved: u64) {
    *answer.status_mut() = StatusCode::OK;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_LENGTH, 0.into());
    put(headers, names::COOKIE, format!("{cookie:08x}"));
    for name in [names::BYTES, names::BYTES_TRANSFERRED] {
        put(headers, name, moved.to_string());
    }
    for (from, to) in [("etag", names::ETAG), ("x-amz-version-id", names::VERSION_ID)] {
        if let Some(value) = headers.get(from).cloned() {
            headers.insert(HeaderName::from_static(to), value);
        }
    }
    // Clients refuse an answer with any other checksum in it, such as the composite one of an object of several parts.
    let sum = headers.get(Algorithm::Crc64Nvme.header()).and_then(|sum| sum.to_str().ok()).map(str::to_owned);
    if let Some(sum) = sum.filter(|sum| Algorithm::Crc64Nvme.valid(sum)) {
        put(headers, names::CHECKSUM, format!("CRC64NVME {sum}"));
    }
}
