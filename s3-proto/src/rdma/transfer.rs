//! Moving the bytes.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use ernic_store::{ByteStream, ObjectWriter};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rdma_token::{AnswerFirst, CHUNK, RemoteAccess, RemoteError, RemoteWindow, Task};
use s3s::{S3Error, S3ErrorCode};

use super::{Action, Exchange, Paired, Way};
use crate::{
    checksum::Digests,
    error::{custom, not_implemented, report, store as refused, too_large},
    turn::Turn,
};

/// Most bytes that are read and hashed before the thread is given back, for each [`CHUNK`] of the window's stride: MD5 takes 0.2 ms
/// for them.
const HASHED: usize = 128 * 1024;

/// How long a client is to wait before it tries again, in seconds (`retry-after` of rule 11).
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// One transfer between the store and a client's memory.
///
/// It ends with [`Transfer::complete`], or with an error that one of the other methods has made; dropped before that, it
/// has been given up by the client. However it ends, it is counted and logged once.
pub(crate) struct Transfer {
    exchange: Arc<Exchange>,
    access: RemoteAccess,
    window: Option<Reached>,
    started: Instant,
    /// Bytes moved so far.
    moved: u64,
    /// What is made to go wrong with it.
    fault: Option<Fault>,
    verdict: &'static str,
    /// What runs the transfer when its request has been answered.
    later: Option<Spawn>,
}

/// See [`AnswerFirst::spawn`].
type Spawn = Box<dyn FnOnce(Task) + Send + Sync>;

/// The client's memory, once it can be reached.
enum Reached {
    Window(Box<dyn RemoteWindow>),
    /// By way of a buffer, whose content goes over a connection.
    Paired(Paired),
}

impl Reached {
    fn window(&mut self) -> &mut dyn RemoteWindow {
        match self {
            Self::Window(window) => &mut **window,
            Self::Paired(paired) => &mut *paired.session,
        }
    }

    /// See [`RemoteWindow::stride`].
    fn stride(&self) -> usize {
        match self {
            Self::Window(window) => window.stride(),
            Self::Paired(paired) => paired.session.stride(),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Window(window) => window.len(),
            Self::Paired(paired) => paired.session.len(),
        }
    }
}

/// What is made to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It fails after half of its bytes.
    Fail,
    /// It ends one byte too early.
    Short,
}

/// The verdict on a transfer that has succeeded.
const OK: &str = "ok";
/// The verdict as long as there is none.
const ABORTED: &str = "aborted";

impl Transfer {
    /// Opens the client's memory. This is where a transfer is declined (rule 10), or refused because of what the token names
    /// (rule 12). `first` says whether the request may be answered before its bytes have moved.
    pub(crate) async fn open(exchange: &Arc<Exchange>, access: RemoteAccess, first: bool) -> Result<Self, S3Error> {
        exchange.rdma.metrics.rdma_started();
        let mut transfer = Self {
            exchange: Arc::clone(exchange),
            access,
            window: None,
            started: Instant::now(),
            moved: 0,
            fault: None,
            verdict: ABORTED,
            later: None,
        };
        transfer.impair().await?;
        let reached = match exchange.take_way() {
            Way::Token => transfer.reach(first).await.map(Reached::Window),
            Way::Paired(paired) => Ok(Reached::Paired(paired)),
            Way::Taken => Err(RemoteError::Transport("the connection has served a transfer".to_owned())),
        };
        match reached {
            Ok(reached) => {
                transfer.window = Some(reached);
                Ok(transfer)
            }
            Err(error) => Err(transfer.not_opened(&error)),
        }
    }

    /// Opens what the token names, and notes what the answer has of it.
    async fn reach(&mut self, first: bool) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let Exchange { rdma, header, .. } = &*self.exchange;
        let early = if first { rdma.memory.answer_first(header).await? } else { None };
        let (window, endpoint) = match early {
            Some(AnswerFirst { endpoint, window, spawn }) => {
                self.later = Some(spawn);
                (window, Some(endpoint))
            }
            None => {
                let window = rdma.memory.open(header, self.access).await?;
                let endpoint = window.endpoint();
                (window, endpoint)
            }
        };
        self.exchange.outcome().endpoint = endpoint;
        Ok(window)
    }

    /// Makes the faults that are due.
    async fn impair(&mut self) -> Result<(), S3Error> {
        let rdma = &self.exchange.rdma;
        let Some(impairment) = &rdma.config.impairment else { return Ok(()) };
        let number = 1 + rdma.transfers.fetch_add(1, Relaxed);
        let (mut declined, mut fault) = (false, None);
        for due in impairment.faults.at(number) {
            tracing::info!(fault = %due, transfer = number, "rdma: fault on demand");
            match due.action {
                Action::Decline => declined = true,
                Action::Fail => fault = Some(Fault::Fail),
                Action::Short => fault = fault.or(Some(Fault::Short)),
                Action::NoReply => self.exchange.outcome().dropped = true,
                Action::Delay(by) => impairment.pacer.until(impairment.pacer.now().saturating_add(by)).await,
                Action::LinkDown(time) => {
                    if let Some(link_down) = &impairment.link_down {
                        link_down(time);
                    }
                }
            }
        }
        self.fault = fault;
        if declined { Err(self.refuse("fault", not_implemented("This transfer by RDMA"))) } else { Ok(()) }
    }

    /// How many of `wanted` bytes a GetObject writes (rules 7 and 19). Clients of two families know what it means that there
    /// are fewer, the others are told to come back without a token.
    pub(crate) fn fit(&mut self, wanted: u64) -> Result<u64, S3Error> {
        let room = self.room().min(self.exchange.rdma.max_part);
        if wanted > room && !self.exchange.takes_less() {
            self.exchange.outcome().silent = true;
            let message = format!("{wanted} bytes do not fit into the {room} bytes of the RDMA window.");
            return Err(self.refuse("window", S3Error::with_message(S3ErrorCode::InvalidRequest, message)));
        }
        Ok(wanted.min(room))
    }

    /// Refuses a PutObject or UploadPart of more bytes than there are (rule 8).
    pub(crate) fn check_fits(&mut self, size: u64) -> Result<(), S3Error> {
        let room = self.room();
        if size > room { Err(self.refuse("window", too_large(room))) } else { Ok(()) }
    }

    /// Bytes that are moved before the thread is given back.
    fn stride(&self) -> usize {
        self.window.as_ref().map_or(CHUNK, Reached::stride).max(CHUNK)
    }

    fn room(&self) -> u64 {
        self.window.as_ref().map_or(0, Reached::len)
    }

    /// Writes `count` bytes of `content` to the client's memory and completes the transfer. Where the client is to be answered
    /// first, it begins; what becomes of it, the client does not hear from us.
    pub(crate) async fn deliver(mut self, content: ByteStream, count: u64, turn: &Turn) -> Result<(), S3Error> {
        let Some(spawn) = self.later.take() else {
            self.write(content, count, turn).await?;
            self.complete();
            return Ok(());
        };
        self.exchange.outcome().moved = self.stop(count);
        let turn = Turn::default();
        let rounds = turn.clone();
        let mut work = Box::pin(async move {
            // Why it failed is in the metrics and in the log.
            if self.write(content, count, &turn).await.is_ok() {
                self.complete();
            }
        });
        spawn(Box::pin(poll_fn(move |cx| {
            rounds.begin();
            work.as_mut().poll(cx)
        })));
        Ok(())
    }

    /// Writes `count` bytes of `content` to the beginning of the window, straight from where the store has them, and sends them
    /// off where the window is a buffer in front of a connection.
    async fn write(&mut self, mut content: ByteStream, count: u64, turn: &Turn) -> Result<(), S3Error> {
        let stop = self.stop(count);
        let stride = self.stride();
        let mut step = 0;
        while self.moved < stop {
            let piece = match content.next().await {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => return Err(self.refuse("store", refused(error))),
                None => {
                    report(&format!("the store gave {} bytes too few", count - self.moved));
                    return Err(self.refuse("store", S3ErrorCode::InternalError.into()));
                }
            };
            let mut rest = &piece[..];
            while !rest.is_empty() && self.moved < stop {
                if step == stride {
                    step = 0;
                    turn.pass().await;
                }
                let left = usize::try_from(stop - self.moved).unwrap_or(usize::MAX);
                let (now, later) = rest.split_at(rest.len().min(CHUNK - step % CHUNK).min(left));
                self.pace(now.len()).await;
                let Some(window) = &mut self.window else { break };
                window.window().write(self.moved, now).await.map_err(|error| self.failed(&error))?;
                self.moved += now.len() as u64;
                step += now.len();
                rest = later;
            }
        }
        if let Some(Reached::Window(window)) = &mut self.window {
            window.flush().await.map_err(|error| self.failed(&error))?;
        }
        match (self.fault, &mut self.window) {
            (Some(Fault::Fail), _) => Err(self.failed_on_demand()),
            (_, Some(Reached::Paired(Paired { session, to, cookie }))) => {
                let sent = session.send(*to, self.moved, *cookie).await;
                sent.map_err(|error| self.failed(&error))
            }
            _ => Ok(()),
        }
    }

    /// Reads `size` bytes from the beginning of the window into the object's own storage, and hashes them there.
    pub(crate) async fn read(
        &mut self,
        writer: &mut dyn ObjectWriter,
        size: u64,
        digests: &mut Digests,
        turn: &Turn,
    ) -> Result<(), S3Error> {
        let stop = self.stop(size);
        let hashed = HASHED * (self.stride() / CHUNK);
        let mut step = 0;
        while self.moved < stop {
            if step == hashed {
                step = 0;
                turn.pass().await;
            }
            let left = usize::try_from(stop - self.moved).unwrap_or(usize::MAX);
            let buffer = writer.buffer(left.min(HASHED - step % HASHED)).await;
            let buffer = buffer.map_err(|error| self.refuse("store", refused(error)))?;
            let n = buffer.len();
            self.pace(n).await;
            let Some(window) = &mut self.window else { break };
            window.window().read(self.moved, buffer).await.map_err(|error| self.failed(&error))?;
            digests.update(buffer);
            writer.advance(n);
            self.moved += n as u64;
            step += n;
        }
        match self.fault {
            None => Ok(()),
            Some(_) => Err(self.failed_on_demand()),
        }
    }

    /// Where a transfer of `count` bytes ends.
    fn stop(&self, count: u64) -> u64 {
        match self.fault {
            None => count,
            Some(Fault::Short) => count.saturating_sub(1),
            Some(Fault::Fail) => count / 2,
        }
    }

    async fn pace(&self, bytes: usize) {
        let rdma = &self.exchange.rdma;
        if let Some(impairment) = &rdma.config.impairment
            && let Some(rate) = impairment.rate
        {
            rdma.line.send(bytes, rate, &*impairment.pacer).await;
        }
    }

    /// The transfer has succeeded, and so has the operation.
    pub(crate) fn complete(mut self) {
        self.verdict = OK;
        self.exchange.outcome().moved = self.moved;
    }

    /// The transfer comes to nothing, for a reason that stands in the metrics.
    pub(crate) fn refuse(&mut self, reason: &'static str, error: S3Error) -> S3Error {
        self.verdict = reason;
        error
    }

    /// The window could not be opened.
    fn not_opened(&mut self, error: &RemoteError) -> S3Error {
        match error {
            RemoteError::Unsupported(_) => {
                let message = format!("{error}.");
                self.refuse(error.reason(), S3Error::with_message(S3ErrorCode::NotImplemented, message))
            }
            RemoteError::Transport(_) => self.failed(error),
            RemoteError::Exhausted(_) => {
                self.refuse(error.reason(), busy(&format!("For a transfer by RDMA, {error}.")))
            }
            RemoteError::TooLarge { most, .. } => self.refuse(error.reason(), too_large(*most)),
            // The client's mistake, and yet, by rule 12, an error of ours. Which of its keys there are is not told.
            _ => {
                tracing::debug!(%error, "rdma: refused");
                let message = "The memory that the RDMA token names cannot be reached.";
                self.refuse(error.reason(), S3Error::with_message(S3ErrorCode::InternalError, message))
            }
        }
    }

    /// The transfer broke on its way (rule 11).
    fn failed(&mut self, error: &RemoteError) -> S3Error {
        tracing::debug!(%error, moved = self.moved, "rdma: transfer failed");
        self.refuse(error.reason(), transfer_error())
    }

    fn failed_on_demand(&mut self) -> S3Error {
        self.refuse("fault", transfer_error())
    }
}

/// `SlowDown` (503), which a client may try again.
pub(crate) fn busy(why: &str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::SlowDown, format!("{why} Try again."));
    error.set_headers(HeaderMap::from_iter([(header::RETRY_AFTER, RETRY_AFTER)]));
    error
}

/// `RDMATransferError` (503), which a client may try again.
pub(crate) fn transfer_error() -> S3Error {
    let message = "The transfer by RDMA failed. Nothing has been changed. Try again.";
    let mut error = custom("RDMATransferError", StatusCode::SERVICE_UNAVAILABLE, message.into());
    error.set_headers(HeaderMap::from_iter([(header::RETRY_AFTER, RETRY_AFTER)]));
    error
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let Exchange { rdma, header, .. } = &*self.exchange;
        rdma.metrics.rdma_over();
        match self.verdict {
            OK => rdma.metrics.rdma_done(self.access, self.moved, took),
            reason => rdma.metrics.rdma_failed(reason),
        }
        let window = header.window();
        tracing::debug!(
            operation = match self.access {
                RemoteAccess::Write => "read",
                RemoteAccess::Read => "write",
            },
            family = %header.family(),
            rkey = format_args!("{:#x}", header.rkey()),
            address = format_args!("{:#x}", window.address),
            length = window.length,
            bytes = self.moved,
            verdict = self.verdict,
            micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            "rdma transfer"
        );
    }
}
