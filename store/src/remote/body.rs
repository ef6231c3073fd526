//! Content between the caller's executor and the runtime: channels of pieces, both ways.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{runtime::Handle, sync::mpsc};

use super::Task;
use crate::{ByteStream, Commit, ObjectInfo, ObjectWriter, Result, StoreError};

/// Pieces that a channel holds. With the one that is being filled and the one that the network has, a transfer holds four.
pub(super) const QUEUE: usize = 2;

/// Most bytes of a piece.
pub(super) const PIECE: usize = 1024 * 1024;

/// First piece of content of unknown size.
const FIRST_PIECE: usize = 64 * 1024;

/// What a writer says to its engine.
#[derive(Debug)]
pub(super) enum Step {
    /// Content; more follows.
    Piece(Bytes),
    /// The rest of the content, perhaps none, and how it is to become visible.
    Last(Bytes, Commit),
}

/// The content of an object or part, on its way in.
#[derive(Debug)]
pub(super) struct Body {
    steps: mpsc::Receiver<Step>,
}

impl Body {
    pub(super) fn new(steps: mpsc::Receiver<Step>) -> Self {
        Self { steps }
    }

    /// What comes next; `None` if the writer was dropped without a commit, and then nothing may become visible.
    pub(super) async fn next(&mut self) -> Option<Step> {
        self.steps.recv().await
    }

    pub(super) fn poll_next(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Step>> {
        self.steps.poll_recv(cx)
    }
}

/// The error that nobody sees: the writer is gone.
pub(super) fn given_up() -> StoreError {
    StoreError::Internal("the writer was dropped".into())
}

/// See [`ObjectWriter`]. The last piece is kept back until the commit, so that the remote never has all of the content
/// before.
#[derive(Debug)]
pub(super) struct Writer {
    size: Option<u64>,
    written: u64,
    piece: Vec<u8>,
    /// Bytes of content in `piece`.
    filled: usize,
    /// Length of the last buffer.
    lent: usize,
    steps: mpsc::Sender<Step>,
    taker: Taker,
}

/// What takes the content.
#[derive(Debug)]
enum Taker {
    Runs(Task<Arc<ObjectInfo>>),
    /// It has refused the content, and nothing else is said of it from then on.
    Refused(StoreError),
}

impl Writer {
    pub(super) fn new(size: Option<u64>, steps: mpsc::Sender<Step>, task: Task<Arc<ObjectInfo>>) -> Self {
        Self { size, written: 0, piece: Vec::new(), filled: 0, lent: 0, steps, taker: Taker::Runs(task) }
    }

    /// Hands a step to the engine. If that has ended, it says why.
    async fn send(&mut self, step: Step) -> Result<()> {
        if self.steps.send(step).await.is_ok() { Ok(()) } else { self.end().await.map(drop) }
    }

    /// Waits for what comes of it.
    async fn end(&mut self) -> Result<Arc<ObjectInfo>> {
        let task = match std::mem::replace(&mut self.taker, Taker::Refused(given_up())) {
            Taker::Runs(task) => task,
            Taker::Refused(error) => {
                self.taker = Taker::Refused(error.clone());
                return Err(error);
            }
        };
        let result = task.end().await;
        if let Err(error) = &result {
            self.taker = Taker::Refused(error.clone());
        }
        result
    }

    fn take_piece(&mut self) -> Bytes {
        let mut piece = std::mem::take(&mut self.piece);
        piece.truncate(self.filled);
        (self.filled, self.lent) = (0, 0);
        piece.into()
    }

    /// Length of the next piece.
    fn next_len(&self, want: usize) -> usize {
        let left = match self.size {
            Some(size) => usize::try_from(size.saturating_sub(self.written)).unwrap_or(usize::MAX),
            None if self.written == 0 => FIRST_PIECE,
            None => PIECE,
        };
        left.max(want.min(FIRST_PIECE)).clamp(1, PIECE)
    }
}

#[async_trait]
impl ObjectWriter for Writer {
    async fn buffer(&mut self, want: usize) -> Result<&mut [u8]> {
        if let Taker::Refused(error) = &self.taker {
            return Err(error.clone());
        }
        if self.filled == self.piece.len() {
            if self.filled > 0 {
                let piece = self.take_piece();
                self.send(Step::Piece(piece)).await?;
            }
            self.piece = vec![0; self.next_len(want)];
        }
        let end = self.piece.len().min(self.filled.saturating_add(want.max(1)));
        self.lent = end - self.filled;
        Ok(&mut self.piece[self.filled..end])
    }

    fn advance(&mut self, n: usize) {
        assert!(n <= self.lent, "{n} bytes of a buffer of {}", self.lent);
        self.filled += n;
        self.lent -= n;
        self.written += n as u64;
    }

    fn written(&self) -> u64 {
        self.written
    }

    async fn commit(mut self: Box<Self>, commit: Commit) -> Result<Arc<ObjectInfo>> {
        let piece = self.take_piece();
        self.send(Step::Last(piece, commit)).await?;
        self.end().await
    }
}

/// Where a reader sends what it gets.
#[derive(Debug)]
pub(super) struct Pieces {
    out: mpsc::Sender<Result<Bytes>>,
}

impl Pieces {
    /// Sends content, in pieces of at most [`PIECE`]. Returns whether anybody still listens.
    pub(super) async fn send(&self, mut content: Bytes) -> bool {
        while !content.is_empty() {
            let piece = content.split_to(content.len().min(PIECE));
            if self.out.send(Ok(piece)).await.is_err() {
                return false;
            }
        }
        true
    }
}

/// A stream of what `read` sends from a task of its own, which ends with the stream.
pub(super) fn stream<F>(handle: &Handle, read: impl FnOnce(Pieces) -> F) -> ByteStream
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let (out, mut pieces) = mpsc::channel(QUEUE);
    let read = read(Pieces { out: out.clone() });
    let task = Task::new(handle.spawn(async move {
        if let Err(error) = read.await {
            // It fails only if nobody listens any more.
            let _ = out.send(Err(error)).await;
        }
        Ok(())
    }));
    Box::pin(futures_util::stream::poll_fn(move |cx| {
        let _task: &Task<()> = &task;
        pieces.poll_recv(cx)
    }))
}

/// Collects up to `most` bytes. The commit comes with them if that was all.
pub(super) async fn collect(body: &mut Body, most: usize) -> Result<(Vec<Bytes>, usize, Option<Commit>)> {
    let (mut pieces, mut len) = (Vec::new(), 0);
    while len < most {
        match body.next().await {
            None => return Err(given_up()),
            Some(Step::Piece(piece)) => {
                len += piece.len();
                pieces.push(piece);
            }
            Some(Step::Last(piece, commit)) => {
                len += piece.len();
                pieces.push(piece);
                return Ok((pieces, len, Some(commit)));
            }
        }
    }
    Ok((pieces, len, None))
}
