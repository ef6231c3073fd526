//! The S3 service of `ernic` on any byte stream.
//!
//! [`S3Service::serve`] runs HTTP/1.1 on a stream that implements hyper's I/O traits: an in-band TCP connection in the product,
//! a pair of buffers in tests. hyper frames the requests, `s3s` types the operations and writes their XML, a
//! [`Store`] holds the objects. Nothing here needs a runtime: the futures may be polled by any executor, on one
//! thread, without timers.
//!
//! ```text
//!  bytes ⇄ hyper ⇄ this crate: signature off, aws-chunked, routing, limits ⇄ s3s: operations, XML ⇄ this crate: the
//!                  operations ⇄ store
//! ```
//!
//! Authentication is off: signatures in headers and in presigned queries are accepted and ignored. Addressing is
//! path-style (`/bucket/key`). What a client may believe to have been done and has not (an unknown sub-resource, encryption,
//! tags) is refused with `NotImplemented`, never ignored.
//!
//! # Logs
//!
//! `s3s` logs every refused request at `error`, which clients can cause at will: add [`LOG_FILTER`] to the filter of the
//! log. This crate logs its own failures at `error`, at most one a second, and requests at `debug`.

mod checksum;
mod chunked;
mod conditions;
mod error;
mod metrics;
mod ops;
mod payload;
mod phase;
mod range;
mod request;
mod response;
mod route;
mod turn;

use std::{
    collections::hash_map::RandomState,
    convert::Infallible,
    future::{Future, poll_fn},
    hash::{BuildHasher, Hasher},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ernic_store::Store;
use http::{HeaderValue, Method, Request};
use hyper::{
    body::Incoming,
    rt::{Read, Write},
    server::conn::http1,
    service::service_fn,
};
use s3s::{Body, S3Error, service::S3ServiceBuilder};

pub use metrics::Metrics;
pub use phase::Phase;
pub use response::{ResponseBody, ResponseBodyError};

use crate::{
    ops::Operations,
    payload::Payload,
    phase::{Listener, Serving},
    response::Response,
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
    /// Region that buckets are said to be in. Default `us-east-1`.
    pub region: String,
    /// The `server` header. Default `ernic`; left out if it is no header value.
    pub server: String,
}

impl Default for S3Config {
    fn default() -> Self {
        Self { max_part: 256 * 1024 * 1024, region: "us-east-1".into(), server: "ernic".into() }
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

impl S3Service {
    /// A service over `store`.
    pub fn new(store: Arc<dyn Store>, config: S3Config) -> Self {
        let operations = Operations::new(store, config.clone());
        let inner = Inner {
            s3s: S3ServiceBuilder::new(operations).build(),
            server: HeaderValue::from_str(&config.server).ok(),
            config,
            metrics: Arc::default(),
            boot: RandomState::new().build_hasher().finish(),
            requests: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What the service has done so far.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Serves HTTP/1.1 on `io` until either side ends the connection. The future needs no runtime and is not `Send`.
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
        let inner = Arc::clone(&self.inner);
        async move {
            let _open = inner.metrics.connection();
            let (turn, listener) = (Turn::default(), Listener::new(on));
            let service = service_fn(|request| {
                let (inner, turn, serving) = (&inner, turn.clone(), listener.start());
                async move { Ok::<_, Infallible>(inner.answer(request, turn, serving).await) }
            });
            let connection = http1::Builder::new()
                // Without it, a client that sends a request and closes its side gets no answer.
                .half_close(true)
                .keep_alive(true)
                .writev(true)
                .max_header_size(MAX_HEAD)
                .max_buf_size(MAX_BUFFER)
                .serve_connection(io, service);
            let mut connection = pin!(connection);
            poll_fn(|cx| {
                turn.begin();
                connection.as_mut().poll(cx)
            })
            .await
        }
    }
}

impl Inner {
    /// Answers one request.
    async fn answer(&self, request: Request<Incoming>, turn: Turn, serving: Serving) -> Response {
        self.metrics.request();
        let id = self.next_id();
        let (parts, body) = request.into_parts();
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        let expects = parts.headers.contains_key(http::header::EXPECT);
        let payload = request::payload(body, &self.metrics);

        let answer = self.run(parts, &payload, &turn).await;

        let mut response =
            response::finish(answer, &method, uri.path(), id, self.server.as_ref(), &self.metrics, serving);
        // A body that nobody reads would be taken for the next request. Polling it would ask a client that expects
        // 100-continue to send it.
        let settled = if expects { payload.ended() } else { payload.settle(&turn).await };
        if !settled {
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
        turn: &Turn,
    ) -> Result<s3s::HttpResponse, S3Error> {
        let head = parts.method == Method::HEAD;
        let prepared = request::prepare(&mut parts, payload, turn, self.config.max_part)?;
        let body =
            if prepared.op.takes_document() { Body::from(request::document(&prepared).await?) } else { Body::empty() };
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
        Ok(response)
    }

    fn next_id(&self) -> u64 {
        self.boot.wrapping_add(self.requests.fetch_add(1, Relaxed))
    }
}
