//! The S3 service of `ernic` on any byte stream.
//!
//! [`S3Service::serve`] runs HTTP/1.1 on a stream that implements hyper's I/O traits: an in-band TCP connection in the product,
//! a pair of buffers in tests. hyper frames the requests, `s3s` types the operations and writes their XML, a
//! [`Store`] holds the objects. Nothing here needs a runtime: the futures may be polled by any executor, on one
//! thread, without timers.
//!
//! ```text
//!  bytes ⇄ hyper ⇄ this crate: signatures, aws-chunked, routing, limits ⇄ s3s: operations, XML ⇄ this crate: the
//!                  operations ⇄ store
//! ```
//!
//! Authentication is off by default: signatures in headers and in presigned queries are accepted and ignored. With
//! [`S3Builder::with_credentials`] they are required and checked, before anything else is done. Addressing is path-style
//! (`/bucket/key`), and with [`S3Config::domain`] also by virtual host. What a client may believe to have been done and has not (an unknown sub-resource, encryption,
//! tags) is refused with `NotImplemented`, never ignored.
//!
//! # Payloads by RDMA
//!
//! With [`S3Builder::with_remote`], GetObject, PutObject and UploadPart with an RDMA token move their payload between the
//! store and the client's memory, in chunks of at most 256 KiB with a turn of the executor in between, straight from and into
//! the object's own storage. Without it they are declined.
//!
//! With [`S3Builder::with_rc`], the same operations are there for clients of `hipobj-rc-v2`, who first let the server connect
//! to them: `prepare` makes a session with a connection and a buffer, `ready` runs the operation over it.
//!
//! # Pages
//!
//! With [`S3Config::web`], `/` is a page of buckets, objects and figures for browsers (`Accept: text/html`).
//!
//! `/metrics` is [`Metrics::page`], `/minio/metrics/v3/api/rdma` has the counters that AIStor has there: no bucket may have
//! one of the names [`RESERVED_BUCKETS`]. Where `hipobj-rc-v2` is off, requests under `/.hipobj-rc` are told so.
//!
//! # Logs
//!
//! `s3s` logs every refused request at `error`, which clients can cause at will: add [`LOG_FILTER`] to the filter of the
//! log. This crate logs its own failures at `error`, at most one a second; faults that it was told to make at `info`; requests
//! and transfers by RDMA at `debug`, a line each.

mod auth;
mod checksum;
mod chunked;
mod conditions;
mod error;
mod metrics;
mod ops;
mod own;
mod payload;
mod phase;
mod range;
mod rc;
mod rdma;
mod request;
mod response;
mod route;
mod tags;
mod turn;
mod vhost;
mod web;

use std::{
    collections::hash_map::RandomState,
    convert::Infallible,
    future::{Future, pending, poll_fn},
    hash::{BuildHasher, Hasher},
    net::Ipv4Addr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use ernic_store::Store;
use http::{HeaderValue, Method, Request};
use hyper::{
    body::Incoming,
    rt::{Read, Write},
    server::conn::http1,
    service::service_fn,
};
use prometheus_client::collector::Collector;
use rdma_token::{RcFabric, RemoteMemory};
use s3s::{Body, S3Error, service::S3ServiceBuilder};

pub use auth::{Clock, Credentials, CredentialsError};
pub use checksum::{Etag, EtagError};
pub use metrics::Metrics;
pub use own::RESERVED_BUCKETS;
pub use phase::Phase;
pub use rc::RcConfig;
pub use rdma::{Action, Fault, FaultError, Faults, Impairment, Pacer, RdmaConfig, Timers, When};
pub use response::{ResponseBody, ResponseBodyError};

use crate::{
    auth::{Admitted, Auth},
    ops::Operations,
    payload::Payload,
    phase::Listener,
    rc::{Rc, Route},
    rdma::{Exchange, Rdma},
    request::Surroundings,
    response::Response,
    route::Op,
    turn::Turn,
};

/// What to add to a `tracing` filter: `s3s` logs at `error` what any client can cause.
pub const LOG_FILTER: &str = "s3s=off";

/// Most bytes of a request's head, its request line included; more is answered with 431. S3 itself allows 8 KiB of headers
/// and a key of 1,024 bytes, which percent-encoding triples.
pub const MAX_HEAD: usize = 64 * 1024;

/// Most header fields of a request; more is answered with 431. It is hyper's default, which keeps them on the stack.
pub const MAX_HEADERS: usize = 100;

/// Most bytes that a connection buffers of what it reads, and of what it has to write before it asks the body for more.
/// It bounds the memory of a connection whose peer is slow.
const MAX_BUFFER: usize = 256 * 1024;

/// How an [`S3Service`] behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Config {
    /// Most bytes of one PUT or part; more is refused with `EntityTooLarge`. Default 256 MiB.
    pub max_part: u64,
    /// Least bytes of a part that is not the last; a multipart upload with less cannot be completed (`EntityTooSmall`).
    /// Default 5 MiB ("Amazon S3 multipart upload limits" in the S3 user guide).
    pub min_part: u64,
    /// Region that buckets are said to be in. Default `us-east-1`.
    pub region: String,
    /// The `server` header. Default `ernic`; left out if it is no header value.
    pub server: String,
    /// What ETags are made of. Default MD5.
    pub etag: Etag,
    /// Whether the service's own pages need no signature where everything else does. Default `true`.
    pub open_pages: bool,
    /// Whether a browser gets a page for people at `/`. Default `false`.
    pub web: bool,
    /// The domain whose subdomains name buckets (`Host: bucket.domain`). Default none: only paths name them.
    pub domain: Option<String>,
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            max_part: 256 * 1024 * 1024,
            min_part: 5 * 1024 * 1024,
            region: "us-east-1".into(),
            server: "ernic".into(),
            etag: Etag::Md5,
            open_pages: true,
            web: false,
            domain: None,
        }
    }
}

/// An S3 service over a [`Store`]. Clones share everything.
#[derive(Clone)]
pub struct S3Service {
    inner: Arc<Inner>,
}

struct Inner {
    s3s: s3s::service::S3Service,
    config: S3Config,
    /// The `server` header.
    server: Option<HeaderValue>,
    metrics: Arc<Metrics>,
    /// `None` while tokens are declined.
    rdma: Option<Arc<Rdma>>,
    /// `None` while `hipobj-rc-v2` is off.
    rc: Option<Rc>,
    /// `None` while everybody may do everything.
    auth: Option<Auth>,
    /// Request ids: a random start and a count.
    boot: u64,
    requests: AtomicU64,
}

impl std::fmt::Debug for S3Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Service")
            .field("config", &self.inner.config)
            .field("metrics", &self.inner.metrics)
            .finish_non_exhaustive()
    }
}

/// Makes an [`S3Service`].
pub struct S3Builder {
    store: Arc<dyn Store>,
    config: S3Config,
    remote: Option<(Arc<dyn RemoteMemory>, RdmaConfig)>,
    rc: Option<(Arc<dyn RcFabric>, RcConfig)>,
    credentials: Option<Credentials>,
    clock: Clock,
    collectors: Vec<Box<dyn Collector>>,
}

impl std::fmt::Debug for S3Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Builder")
            .field("config", &self.config)
            .field("remote", &self.remote.as_ref().map(|(_, config)| config))
            .field("rc", &self.rc.as_ref().map(|(_, config)| config))
            .field("credentials", &self.credentials)
            .field("collectors", &self.collectors)
            .finish_non_exhaustive()
    }
}

impl S3Builder {
    /// Serves requests with RDMA tokens: `memory` is what tokens name.
    #[must_use]
    pub fn with_remote(mut self, memory: Arc<dyn RemoteMemory>, config: RdmaConfig) -> Self {
        self.remote = Some((memory, config));
        self
    }

    /// Serves the protocol `hipobj-rc-v2`: `fabric` makes the connections. The owner of the service calls [`S3Service::reap`] from
    /// time to time.
    #[must_use]
    pub fn with_rc(mut self, fabric: Arc<dyn RcFabric>, config: RcConfig) -> Self {
        self.rc = Some((fabric, config));
        self
    }

    /// Serves only requests that are signed with one of these keys.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Tells the time by `clock`, against which the dates of signatures are checked. The system's is the default.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Adds figures of the owner's to [`Metrics::page`], such as a device's counters.
    #[must_use]
    pub fn with_collector(mut self, collector: impl Collector) -> Self {
        self.collectors.push(Box::new(collector));
        self
    }

    /// The service.
    pub fn build(self) -> S3Service {
        let Self { store, config, remote, rc, credentials, clock, collectors } = self;
        let metrics = Arc::new(Metrics::new(&store, collectors));
        let rdma =
            remote.map(|(memory, rdma)| Arc::new(Rdma::new(memory, rdma, config.max_part, Arc::clone(&metrics))));
        let rc = rc.map(|(fabric, rc)| {
            // Where tokens are served, transfers of both kinds have the same faults and share one line.
            let rdma = rdma.clone().unwrap_or_else(|| {
                let (memory, of) =
                    (Arc::clone(&fabric) as Arc<dyn RemoteMemory>, RdmaConfig::new(Ipv4Addr::UNSPECIFIED));
                Arc::new(Rdma::new(memory, of, config.max_part, Arc::clone(&metrics)))
            });
            Rc::new(fabric, rc, rdma)
        });
        let operations = Operations::new(store, config.clone(), Arc::clone(&metrics));
        let inner = Inner {
            s3s: S3ServiceBuilder::new(operations).build(),
            server: HeaderValue::from_str(&config.server).ok(),
            config,
            metrics,
            rdma,
            rc,
            auth: credentials.map(|credentials| Auth::new(credentials, clock)),
            boot: RandomState::new().build_hasher().finish(),
            requests: AtomicU64::new(0),
        };
        S3Service { inner: Arc::new(inner) }
    }
}

impl S3Service {
    /// A service over `store` that declines requests with RDMA tokens.
    pub fn new(store: Arc<dyn Store>, config: S3Config) -> Self {
        Self::builder(store, config).build()
    }

    /// A service over `store` that is still to be set up.
    pub fn builder(store: Arc<dyn Store>, config: S3Config) -> S3Builder {
        let clock = Arc::new(SystemTime::now);
        S3Builder { store, config, remote: None, rc: None, credentials: None, clock, collectors: Vec::new() }
    }

    /// What the service has done so far.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Ends the prepared sessions of `hipobj-rc-v2` that nobody has made ready in time, and gives back what they hold. Returns how
    /// long it is until the next may be due; `None` if none is waited for. So does every request of that protocol; the owner
    /// calls this where there may be none.
    pub fn reap(&self) -> Option<Duration> {
        self.inner.rc.as_ref()?.reap()
    }

    /// Serves HTTP/1.1 on `io` until either side ends the connection. The future needs no runtime, and is `Send` where `io`
    /// is.
    ///
    /// Errors: the connection broke, or what came is no HTTP. A peer that closes between requests is no error. Requests
    /// that are refused are answered, and no error here.
    pub fn serve<I>(&self, io: I) -> impl Future<Output = Result<(), hyper::Error>> + use<I>
    where
        I: Read + Write + Unpin + 'static,
    {
        self.serve_with(io, |_| {})
    }

    /// Like [`S3Service::serve`]; `on` hears when a request begins to be served and when it has been answered, so that the
    /// owner of the stream can tell a connection that waits for a request from one that is at work. It is called while the
    /// future is polled or dropped.
    pub fn serve_with<I, F>(&self, io: I, on: F) -> impl Future<Output = Result<(), hyper::Error>> + use<I, F>
    where
        I: Read + Write + Unpin + 'static,
        F: Fn(Phase) + 'static,
    {
        self.serve_until(io, on, pending())
    }

    /// Like [`S3Service::serve_with`]; once `stop` is there, the connection ends with the answer to the request that is being
    /// served, or at once if there is none.
    pub fn serve_until<I, F, S>(
        &self,
        io: I,
        on: F,
        stop: S,
    ) -> impl Future<Output = Result<(), hyper::Error>> + use<I, F, S>
    where
        I: Read + Write + Unpin + 'static,
        F: Fn(Phase) + 'static,
        S: Future<Output = ()>,
    {
        let inner = Arc::clone(&self.inner);
        async move {
            let open = inner.metrics.connection();
            let (turn, listener) = (Turn::default(), Listener::new(on));
            let service = service_fn(|request| {
                let (inner, turn, connection, serving) = (&inner, turn.clone(), open.number(), listener.start());
                async move { Ok::<_, Infallible>(inner.answer(request, turn, connection, serving).await) }
            });
            let connection = http1::Builder::new()
                // Without it, a client that sends a request and closes its side gets no answer.
                .half_close(true)
                .keep_alive(true)
                .writev(true)
                .max_header_size(MAX_HEAD)
                .max_buf_size(MAX_BUFFER)
                .serve_connection(io, service);
            let (mut connection, mut stop, mut stopping) = (pin!(connection), pin!(stop), false);
            poll_fn(|cx| {
                turn.begin();
                if !stopping && stop.as_mut().poll(cx).is_ready() {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                connection.as_mut().poll(cx)
            })
            .await
        }
    }
}

impl Inner {
    /// Answers one request.
    async fn answer<G>(&self, request: Request<Incoming>, turn: Turn, connection: u64, serving: G) -> Response<G> {
        self.metrics.request();
        let id = self.next_id();
        let (mut parts, body) = request.into_parts();
        let method = parts.method.clone();
        // Signatures are about what came, everything else is about the path-style form of it.
        let path_style = self.config.domain.as_ref().and_then(|domain| vhost::path_style(&parts, domain));
        let uri = path_style.clone().unwrap_or_else(|| parts.uri.clone());
        let expects = parts.headers.contains_key(http::header::EXPECT);
        let payload = request::payload(body, &self.metrics);
        // hyper says no 100 where there is no content. botocore then keeps the status line of this answer for the next one
        // on the connection, takes that one's for a header, and waits for the end of the connection.
        let unsaid = expects && payload.ended();

        let mut exchange = None;
        let rc = self.rc.as_ref().and_then(|rc| Some((rc, Route::of(uri.path())?)));
        let own = if self.config.web && web::is_wanted(&method, uri.path(), uri.query(), &parts.headers) {
            Some(Ok(web::page(self.auth.is_some())))
        } else if rc.is_some() {
            None
        } else {
            own::answer(&method, uri.path(), &self.metrics)
        };
        let allowed = match &self.auth {
            Some(auth) if own.is_none() || !self.config.open_pages => auth.check(&parts),
            _ => Ok(Admitted::UNSIGNED),
        };
        let answer = match (allowed, own) {
            (Err(error), _) => Err(error),
            (Ok(_), Some(answer)) => answer,
            (Ok(Admitted { access, signed }), None) => {
                payload.check(signed);
                let around = Surroundings {
                    turn: &turn,
                    max_part: self.config.max_part,
                    rdma: self.rdma.as_ref(),
                    paired: None,
                    metrics: &self.metrics,
                    connection,
                };
                match rc {
                    Some((rc, route)) => rc.answer(self, route, &parts, access, &payload, &around).await,
                    None => {
                        parts.uri = uri.clone();
                        self.run(parts, &payload, &around, &mut exchange).await
                    }
                }
            }
        };

        let mut response =
            response::finish(answer, &method, uri.path(), id, self.server.as_ref(), &self.metrics, serving);
        if let Some(exchange) = exchange {
            exchange.reply(response.status(), response.headers_mut());
        }
        // A body that nobody reads would be taken for the next request. Polling it would ask a client that expects
        // 100-continue to send it.
        let settled = if expects { payload.ended() } else { payload.settle(&turn).await };
        if !settled || unsaid {
            response::close(&mut response);
        }
        self.metrics.answer(response.status());
        tracing::debug!(%method, path = uri.path(), status = response.status().as_u16(), id = %format_args!("{id:016X}"), "s3");
        response
    }

    async fn run(
        &self,
        mut parts: http::request::Parts,
        payload: &Arc<Payload>,
        around: &Surroundings<'_>,
        exchange: &mut Option<Arc<Exchange>>,
    ) -> Result<s3s::HttpResponse, S3Error> {
        let head = parts.method == Method::HEAD;
        let prepared = request::prepare(&mut parts, payload, around, exchange)?;
        let body =
            if prepared.op.takes_document() { Body::from(request::document(&prepared).await?) } else { Body::empty() };
        let op = prepared.op;
        let mut response = self.s3s.call(Request::from_parts(parts, body)).await.map_err(|error| {
            error::report(&format!("{error:?}"));
            S3Error::new(s3s::S3ErrorCode::InternalError)
        })?;
        if head
            && response.status() == http::StatusCode::OK
            && response.headers().contains_key(http::header::CONTENT_RANGE)
        {
            // `s3s` sets 206 for a GET only.
            *response.status_mut() = http::StatusCode::PARTIAL_CONTENT;
        }
        if op == Op::GetObjectAttributes {
            response::bare_etag(&mut response);
        }
        Ok(response)
    }

    fn next_id(&self) -> u64 {
        self.boot.wrapping_add(self.requests.fetch_add(1, Relaxed))
    }
}
