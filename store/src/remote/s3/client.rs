//! Requests to an S3 server: signed, timed, repeated.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use reqwest::{Client, Response, Url};
use rusty_s3::{Bucket, Method, UrlStyle, signing};
use tokio::time::{Instant, sleep, timeout};

use super::xml;
use crate::{
    Commit, Result, StoreError,
    remote::{
        body::{Body, Step, given_up},
        url::{Credentials, RemoteError, S3Place},
    },
};

/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest time without a byte from the remote while one is due, or without it taking one.
pub(super) const IDLE: Duration = Duration::from_secs(30);
/// Longest time of a request with its repetitions, where the remote does nothing.
pub(super) const TOTAL: Duration = Duration::from_secs(60);
/// Most attempts at one request.
const ATTEMPTS: u32 = 6;
/// Pause before the first repetition; each further one doubles it. With six attempts these are 6 s, in which a server
/// restarts.
const PAUSE: Duration = Duration::from_millis(200);
/// Most bytes of an answer that is a document. 1,000 keys of 1,024 bytes, percent-encoded, with what comes with each.
const DOCUMENT: usize = 8 * 1024 * 1024;
/// How long a signature counts: the clocks may differ by some of it.
const EXPIRES: u64 = 900;

/// Why an attempt has failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// For good.
    Final(StoreError),
    /// The remote was not reached, or asked to come back: it has not done anything.
    Untouched(String),
    /// It may have done what was asked, or not.
    Unknown(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    /// What it is once nothing is tried any more.
    pub(super) fn end(self) -> StoreError {
        match self {
            Self::Final(error) => error,
            Self::Untouched(why) | Self::Unknown(why) => StoreError::Unavailable(why),
        }
    }

    /// What `error` of the HTTP client means.
    pub(super) fn of(error: &reqwest::Error) -> Self {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // reqwest repeats the URL, whose query has the signature.
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        if error.is_connect() { Self::Untouched(text) } else { Self::Unknown(text) }
    }
}

/// A request without its content.
#[derive(Debug, Clone)]
pub(super) struct Request {
    method: Method,
    bucket: Option<String>,
    key: Option<String>,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

impl Request {
    pub(super) fn service(method: Method) -> Self {
        Self { method, bucket: None, key: None, query: BTreeMap::new(), headers: BTreeMap::new() }
    }

    pub(super) fn bucket(method: Method, bucket: &str) -> Self {
        Self { bucket: Some(bucket.to_owned()), ..Self::service(method) }
    }

    pub(super) fn object(method: Method, bucket: &str, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..Self::bucket(method, bucket) }
    }

    pub(super) fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.insert(name.to_owned(), value.into());
        self
    }

    /// A header, in lower case. One that no header can be is left out by [`Request::headers`].
    pub(super) fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    pub(super) fn version(self, version: Option<&str>) -> Self {
        match version {
            Some(version) => self.query("versionId", version),
            None => self,
        }
    }

    pub(super) fn headers(mut self, headers: impl IntoIterator<Item = (String, String)>) -> Self {
        self.headers.extend(headers);
        self
    }
}

/// Content of a request.
#[derive(Debug)]
pub(super) enum Payload {
    None,
    /// A document, or content that is all there.
    Whole(Bytes),
}

/// An S3 server.
#[derive(Debug)]
pub(super) struct Server {
    http: Client,
    endpoint: Url,
    region: String,
    style: UrlStyle,
    credentials: Option<Credentials>,
}

impl Server {
    pub(super) fn new(place: &S3Place, credentials: Option<Credentials>) -> Result<Self, RemoteError> {
        let http = http_client(place.endpoint.scheme() == "https")
            .map_err(|error| RemoteError::Service(place.endpoint.to_string(), format!("{error:?}")))?;
        let style = if place.virtual_host { UrlStyle::VirtualHost } else { UrlStyle::Path };
        Ok(Self { http, endpoint: place.endpoint.clone(), region: place.region.clone(), style, credentials })
    }

    pub(super) fn region(&self) -> &str {
        &self.region
    }

    fn url(&self, request: &Request) -> Result<Url> {
        let Some(name) = &request.bucket else { return Ok(self.endpoint.clone()) };
        let bucket = Bucket::new(self.endpoint.clone(), self.style, name.clone(), self.region.clone())
            .map_err(|error| StoreError::Unfit(format!("The remote cannot have a bucket '{name}': {error}")))?;
        match &request.key {
            None => Ok(bucket.base_url().clone()),
            Some(key) => {
                // A URL's parser resolves them, and then they name something else.
                if key.is_empty() || key.split('/').any(|segment| matches!(segment, "." | "..")) {
                    return Err(StoreError::Unfit(format!(
                        "The key '{key}' has a segment '.' or '..', which a URL to the remote cannot have"
                    )));
                }
                Ok(bucket.object_url(key))
            }
        }
    }

    /// The request, signed.
    fn build(&self, request: &Request) -> Result<reqwest::RequestBuilder> {
        let mut url = self.url(request)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &request.headers {
            let name = HeaderName::try_from(name.as_str());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
                headers.insert(name, value);
            }
        }
        match &self.credentials {
            Some(Credentials { key, secret, token }) => {
                let signed = request.headers.iter().filter(|(name, _)| {
                    // S3 wants all of its own to be signed; others may be changed on the way by proxies.
                    name.starts_with("x-amz-") && headers.contains_key(name.as_str())
                });
                url = signing::sign(
                    &jiff::Timestamp::now(),
                    request.method,
                    url,
                    key,
                    secret,
                    token.as_deref(),
                    &self.region,
                    EXPIRES,
                    request.query.iter().map(|(name, value)| (name.as_str(), value.as_str())),
                    signed.map(|(name, value)| (name.as_str(), value.as_str())),
                );
            }
            None if request.query.is_empty() => {}
            None => {
                url.query_pairs_mut().extend_pairs(&request.query);
            }
        }
        let method = match request.method {
            Method::Head => http::Method::HEAD,
            Method::Get => http::Method::GET,
            Method::Post => http::Method::POST,
            Method::Put => http::Method::PUT,
            Method::Delete => http::Method::DELETE,
        };
        Ok(self.http.request(method, url).headers(headers))
    }

    /// One attempt; the answer is a success, and its content is still to be read.
    pub(super) async fn once(&self, request: &Request, payload: &Payload) -> Result<Response, Failure> {
        let mut builder = self.build(request)?;
        if let Payload::Whole(bytes) = payload {
            // reqwest leaves it out where there are no bytes, and S3 wants to be told that.
            builder = builder.header(http::header::CONTENT_LENGTH, bytes.len()).body(bytes.clone());
        }
        let response = match timeout(IDLE, builder.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Failure::of(&error.without_url())),
            Err(_) => return Err(Failure::Unknown(format!("no answer within {} s", IDLE.as_secs()))),
        };
        refused(response).await
    }

    /// One attempt with its document.
    async fn document_once(&self, request: &Request, payload: &Payload) -> Result<(HeaderMap, Bytes), Failure> {
        let response = self.once(request, payload).await?;
        let headers = response.headers().clone();
        Ok((headers, document(response).await?))
    }

    /// The answer to a request that may be repeated: it asks for something, or says what is to be.
    pub(super) async fn call(&self, request: &Request, payload: &Payload) -> Result<(HeaderMap, Bytes)> {
        let mut patience = Patience::new();
        loop {
            match self.document_once(request, payload).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(failure) => patience.again(failure).await?,
            }
        }
    }

    /// The answer to a request that must not be done twice; it is repeated only where it has not been done.
    pub(super) async fn call_once(&self, request: &Request, payload: &Payload) -> Result<(HeaderMap, Bytes)> {
        let mut patience = Patience::new();
        loop {
            match self.document_once(request, payload).await {
                Ok(answer) => return Ok(answer),
                Err(failure @ Failure::Untouched(_)) => patience.again(failure).await?,
                Err(failure) => return Err(failure.end()),
            }
        }
    }

    /// Passes `body` on as it comes, `size` bytes. Returns the answer's headers and the commit. There is no second attempt.
    pub(super) async fn pass(&self, request: &Request, size: u64, body: Body) -> Result<(HeaderMap, Commit)> {
        let progress = Arc::new(Progress::default());
        let content = Passing { body, size, left: size, progress: Arc::clone(&progress), done: false };
        // hyper takes the length from the body's size.
        let builder = self.build(request)?.body(reqwest::Body::wrap(content));
        let mut send = std::pin::pin!(builder.send());
        let mut last = progress.polls.load(Relaxed);
        let response = loop {
            match timeout(IDLE, &mut send).await {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) => {
                    if let Some(why) = progress.take_fault() {
                        return Err(why);
                    }
                    return Err(Failure::of(&error.without_url()).end());
                }
                Err(_) => {
                    let polls = progress.polls.load(Relaxed);
                    // While our own client is slow, there is nothing that the remote could take.
                    if polls == last && !progress.waiting.load(Relaxed) {
                        return Err(StoreError::Unavailable(format!(
                            "it has taken nothing and answered nothing for {} s",
                            IDLE.as_secs()
                        )));
                    }
                    last = polls;
                }
            }
        };
        let response = refused(response).await.map_err(Failure::end)?;
        let headers = response.headers().clone();
        document(response).await.map_err(Failure::end)?;
        let commit = progress.commit.lock().ok().and_then(|mut commit| commit.take());
        let commit =
            commit.ok_or_else(|| StoreError::Unavailable("it has answered before it had everything".into()))?;
        Ok((headers, commit))
    }
}

/// The HTTP client of an S3 server and of OpenDAL's services.
pub(in crate::remote) fn http_client(tls: bool) -> reqwest::Result<Client> {
    // Fails where one is installed already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .connect_timeout(CONNECT)
        .pool_idle_timeout(Duration::from_secs(20))
        .http1_only()
        // The endpoint is what the operator named: no detours by the environment, and no redirects to elsewhere.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none());
    // The system's certificates need not be there for plain HTTP.
    if tls { builder.build() } else { builder.tls_certs_only([]).build() }
}

/// When to try again.
#[derive(Debug)]
pub(super) struct Patience {
    start: Instant,
    attempts: u32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), attempts: 1 }
    }

    /// Waits for the next attempt. Errors: there is none.
    pub(super) async fn again(&mut self, failure: Failure) -> Result<()> {
        let pause = PAUSE * 2_u32.saturating_pow(self.attempts - 1);
        // Many clients at once must not come back at once.
        let pause = pause.mul_f64(0.75 + fastrand::f64() / 2.0);
        if matches!(failure, Failure::Final(_))
            || self.attempts == ATTEMPTS
            || self.start.elapsed() + pause + IDLE > TOTAL
        {
            return Err(failure.end());
        }
        self.attempts += 1;
        sleep(pause).await;
        Ok(())
    }
}

/// Reads a document.
async fn document(mut response: Response) -> Result<Bytes, Failure> {
    let mut document = Vec::new();
    while let Some(piece) = chunk(&mut response).await? {
        if document.len() + piece.len() > DOCUMENT {
            return Err(StoreError::Internal(format!("the remote's answer has more than {DOCUMENT} bytes")).into());
        }
        document.extend_from_slice(&piece);
    }
    Ok(document.into())
}

/// The next piece of an answer.
pub(super) async fn chunk(response: &mut Response) -> Result<Option<Bytes>, Failure> {
    match timeout(IDLE, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => match Failure::of(&error.without_url()) {
            Failure::Untouched(why) => Err(Failure::Unknown(why)),
            failure => Err(failure),
        },
        Err(_) => Err(Failure::Unknown(format!("no more of its answer for {} s", IDLE.as_secs()))),
    }
}

/// Takes an answer that is none for what it means.
async fn refused(response: Response) -> Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let headers = response.headers().clone();
    let document = document(response).await.unwrap_or_default();
    let error = xml::error(&document);
    Err(failure(status, &headers, error.as_ref()))
}

/// What the remote's refusal is for the caller.
pub(super) fn failure(status: StatusCode, headers: &HeaderMap, error: Option<&xml::Refusal>) -> Failure {
    let code = error.map_or("", |error| error.code.as_str());
    let text = match error {
        Some(error) => format!("{} {}: {}", status.as_u16(), error.code, error.message),
        None => status.to_string(),
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("x-amz-delete-marker") == Some("true") && matches!(status.as_u16(), 404 | 405) {
        let modified = header("last-modified").and_then(|date| httpdate::parse_http_date(date).ok());
        return Failure::Final(StoreError::DeleteMarker {
            version: header("x-amz-version-id").unwrap_or("null").to_owned(),
            current: status == StatusCode::NOT_FOUND,
            modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
        });
    }
    Failure::Final(match (status.as_u16(), code) {
        (_, "NoSuchBucket") => StoreError::NoSuchBucket,
        (_, "NoSuchUpload") => StoreError::NoSuchUpload,
        (_, "NoSuchVersion") => StoreError::NoSuchVersion,
        (_, "BucketNotEmpty") => StoreError::BucketNotEmpty,
        (_, "TooManyBuckets") => StoreError::TooManyBuckets(0),
        (_, "InvalidPart" | "InvalidPartOrder") => StoreError::NoSuchPart(0),
        (412, _) => StoreError::PreconditionFailed,
        (404, _) => StoreError::NoSuchKey,
        (507, _) => StoreError::InsufficientStorage { needed: 0, free: 0 },
        // A write of somebody else is under way: S3 asks to repeat it.
        (409, "ConditionalRequestConflict" | "OperationAborted") | (429 | 503, _) => return Failure::Untouched(text),
        (501, _) => StoreError::NotSupported("what the store behind it does not have"),
        (500 | 502 | 504, _) => return Failure::Unknown(text),
        (408, _) | (400, "RequestTimeout") => return Failure::Unknown(text),
        (401 | 403, _) => StoreError::Denied(text),
        (300..=399, _) => StoreError::Denied(format!("{text} (a redirect: is the region right?)")),
        (400 | 409 | 416, _) => StoreError::Unfit(format!("The store behind this one says {text}")),
        _ => StoreError::Internal(format!("the remote says {text}")),
    })
}

/// What is known about content on its way.
#[derive(Debug, Default)]
struct Progress {
    /// Pieces asked for by the HTTP client.
    polls: AtomicU64,
    /// Whether it waits for one.
    waiting: AtomicBool,
    commit: Mutex<Option<Commit>>,
    fault: Mutex<Option<StoreError>>,
}

impl Progress {
    fn take_fault(&self) -> Option<StoreError> {
        self.fault.lock().ok()?.take()
    }

    fn fail(&self, error: StoreError) -> std::io::Error {
        let text = error.to_string();
        if let Ok(mut fault) = self.fault.lock() {
            *fault = Some(error);
        }
        std::io::Error::other(text)
    }
}

/// Content that goes on as it comes.
#[derive(Debug)]
struct Passing {
    body: Body,
    size: u64,
    left: u64,
    progress: Arc<Progress>,
    done: bool,
}

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let progress = Arc::clone(&self.progress);
        progress.polls.fetch_add(1, Relaxed);
        progress.waiting.store(true, Relaxed);
        let step = ready!(self.body.poll_next(cx));
        progress.waiting.store(false, Relaxed);
        let piece = match step {
            Some(Step::Piece(piece)) => piece,
            Some(Step::Last(piece, commit)) => {
                self.done = true;
                if self.left == piece.len() as u64
                    && let Ok(mut place) = progress.commit.lock()
                {
                    *place = Some(commit);
                }
                piece
            }
            None => {
                self.done = true;
                return Poll::Ready(Some(Err(progress.fail(given_up()))));
            }
        };
        let len = piece.len() as u64;
        let whole = if self.done { len == self.left } else { len < self.left };
        if !whole {
            self.done = true;
            let error = StoreError::Unfit(format!("The content is not the {} bytes that were announced", self.size));
            return Poll::Ready(Some(Err(progress.fail(error))));
        }
        self.left -= len;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
