//! The body of a request: plain or `aws-chunked`, counted, and drained when nobody wanted it.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use s3s::{S3Error, s3_error};
use sha2::{Digest, Sha256};

use crate::{
    Metrics,
    auth::{self, Chain, Signed},
    chunked::{ChunkedError, Decoder},
    error::malformed_trailer,
    turn::Turn,
};

/// Most bytes of an unwanted body that are read to keep the connection.
const DRAIN_BYTES: usize = 256 * 1024;
/// Turns without news after which a body is taken not to be under way.
const DRAIN_TURNS: u32 = 3;

/// Why a body could not be read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PayloadError {
    /// The connection ended first, or HTTP's own framing is broken.
    Incomplete,
    /// `aws-chunked` framing is broken.
    Chunked(ChunkedError),
    /// It is not what was signed.
    Hash,
}

impl From<PayloadError> for S3Error {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::Incomplete => s3_error!(IncompleteBody),
            PayloadError::Chunked(error @ ChunkedError::Truncated { .. }) => s3_error!(IncompleteBody, "{error}."),
            PayloadError::Chunked(ChunkedError::Trailer) => malformed_trailer(),
            PayloadError::Chunked(ChunkedError::Signature) => auth::mismatch(),
            PayloadError::Hash => auth::hash_mismatch(),
            PayloadError::Chunked(error) => s3_error!(InvalidRequest, "{error}."),
        }
    }
}

/// The body of one request.
///
/// It stays with the request while `s3s` runs the operation, so that what the operation left is known afterwards.
#[derive(Debug)]
pub(crate) struct Payload {
    state: Mutex<State>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    body: Incoming,
    decoder: Option<Decoder>,
    /// The hash of what has come, and what it is to be at the end.
    hash: Option<(Sha256, [u8; 32])>,
    /// For the decoder.
    chain: Option<Box<Chain>>,
    /// What the decoder has not taken yet.
    input: Bytes,
    /// Trailers of `aws-chunked`.
    trailers: Vec<(String, String)>,
    end: End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// There may be more.
    Open,
    /// HTTP's end of the body was seen.
    Reached,
    /// It cannot be read on.
    Failed,
}

impl Payload {
    pub(crate) fn new(body: Incoming, metrics: Arc<Metrics>) -> Self {
        let end = if body.is_end_stream() { End::Reached } else { End::Open };
        let state =
            State { body, decoder: None, hash: None, chain: None, input: Bytes::new(), trailers: Vec::new(), end };
        Self { state: Mutex::new(state), metrics }
    }

    /// Says how the body is signed: reading it to its end checks that.
    pub(crate) fn check(&self, signed: Signed) {
        let mut state = self.lock();
        match signed {
            Signed::Unsigned => {}
            Signed::Hash(hash) => state.hash = Some((Sha256::new(), hash)),
            Signed::Chunks(chain) => state.chain = Some(chain),
        }
    }

    /// Says that the body is `aws-chunked` and holds `length` bytes of data.
    pub(crate) fn decode(&self, length: u64) {
        let mut state = self.lock();
        state.decoder = Some(Decoder::new(length, state.chain.take()));
    }

    /// The next piece of data, never an empty one; `None` at the end, where `aws-chunked` has been checked.
    pub(crate) async fn next(&self) -> Result<Option<Bytes>, PayloadError> {
        poll_fn(|cx| self.lock().poll_data(cx, &self.metrics)).await
    }

    /// The trailers of an `aws-chunked` body that was read to its end.
    pub(crate) fn trailer(&self, name: &str) -> Option<String> {
        self.lock().trailers.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone())
    }

    /// Whether the body was read to HTTP's end, so that the next request can follow. What is left is read if it is short
    /// and there already; nobody is waited for.
    pub(crate) async fn settle(&self, turn: &Turn) -> bool {
        let (mut left, mut quiet) = (DRAIN_BYTES, 0);
        while self.lock().end == End::Open {
            match poll_fn(|cx| Poll::Ready(self.lock().poll_raw(cx, &self.metrics))).await {
                Poll::Ready(Ok(Some(data))) => {
                    quiet = 0;
                    match left.checked_sub(data.len()) {
                        Some(less) => left = less,
                        None => return false,
                    }
                }
                Poll::Ready(_) => break,
                Poll::Pending if quiet == DRAIN_TURNS => return false,
                Poll::Pending => {
                    quiet += 1;
                    turn.pass().await;
                }
            }
        }
        self.ended()
    }

    /// Whether HTTP's end of the body was seen.
    pub(crate) fn ended(&self) -> bool {
        self.lock().end == End::Reached
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn poll_data(&mut self, cx: &mut Context<'_>, metrics: &Metrics) -> Poll<Result<Option<Bytes>, PayloadError>> {
        loop {
            if let Some(decoder) = &mut self.decoder
                && !self.input.is_empty()
            {
                match decoder.decode(&mut self.input) {
                    Ok(Some(data)) => return Poll::Ready(Ok(Some(data))),
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(PayloadError::Chunked(error))),
                }
            }
            let raw = ready!(self.poll_raw(cx, metrics))?;
            match (&raw, &mut self.hash) {
                (Some(data), Some((hash, _))) => hash.update(data),
                // The end may be asked for again.
                (None, Some((hash, expected))) if hash.clone().finalize().as_slice() != expected.as_slice() => {
                    return Poll::Ready(Err(PayloadError::Hash));
                }
                _ => {}
            }
            match (raw, &mut self.decoder) {
                (Some(data), None) => return Poll::Ready(Ok(Some(data))),
                (Some(data), Some(_)) => self.input = data,
                (None, None) => return Poll::Ready(Ok(None)),
                (None, Some(decoder)) => {
                    self.trailers = decoder.finish().map_err(PayloadError::Chunked)?;
                    self.decoder = None;
                    return Poll::Ready(Ok(None));
                }
            }
        }
    }

    /// The next piece of the HTTP body.
    fn poll_raw(&mut self, cx: &mut Context<'_>, metrics: &Metrics) -> Poll<Result<Option<Bytes>, PayloadError>> {
        loop {
            match self.end {
                End::Open => {}
                End::Reached => return Poll::Ready(Ok(None)),
                End::Failed => return Poll::Ready(Err(PayloadError::Incomplete)),
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => self.end = End::Reached,
                Some(Err(_)) => self.end = End::Failed,
                // HTTP's own trailers mean nothing to S3.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        metrics.received(data.len());
                        return Poll::Ready(Ok(Some(data)));
                    }
                }
            }
        }
    }
}
