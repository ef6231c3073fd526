//! Reading the content of objects.

use std::{
    fs::File,
    io,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_channel::oneshot;
use futures_util::{FutureExt, Stream, stream};

use super::{
    files::{self, Disk},
    pool::lost,
    tables::DataFile,
};
use crate::{ByteStream, ObjectData, Result, memory::arena::Chunk};

/// Longest piece. A reader has at most two of them at a time, the one that it gave and the one that it reads ahead: 100
/// readers are 50 MiB.
const PIECE: u64 = 256 << 10;

/// Few bytes, which came with the tables.
#[derive(Debug)]
pub(super) struct Inline(pub(super) Bytes);

impl ObjectData for Inline {
    fn read(&self, range: Range<u64>) -> ByteStream {
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(self.0.len());
        let (start, end) = (within(range.start), within(range.end));
        Box::pin(stream::iter((start < end).then(|| Ok(self.0.slice(start..end)))))
    }
}

/// Bytes in files, which stay as long as this is there.
#[derive(Debug)]
pub(super) struct InFiles {
    disk: Arc<Disk>,
    /// Where each file ends in the object, and its id. Files that are empty are none.
    files: Vec<(u64, u64)>,
    /// The first file, opened, if there is only one.
    only: Option<Arc<File>>,
    /// Keeps the files.
    _pin: files::Pin,
}

impl InFiles {
    pub(super) fn new(disk: Arc<Disk>, files: &[DataFile], only: Option<File>, pin: files::Pin) -> Arc<Self> {
        let mut end = 0;
        let files = files.iter().filter(|file| file.size > 0).map(|file| {
            end += file.size;
            (end, file.id)
        });
        Arc::new(Self { files: files.collect(), only: only.map(Arc::new), _pin: pin, disk })
    }

    fn len(&self) -> u64 {
        self.files.last().map_or(0, |(end, _)| *end)
    }
}

/// A snapshot of the content, which its readers share.
#[derive(Debug, Clone)]
pub(super) struct Content(pub(super) Arc<InFiles>);

impl ObjectData for Content {
    fn read(&self, range: Range<u64>) -> ByteStream {
        let end = range.end.min(self.0.len());
        let open = self.0.only.as_ref().map(|file| (0, Arc::clone(file)));
        Box::pin(Reader { content: Arc::clone(&self.0), at: range.start, end, open, ahead: None })
    }
}

/// A file of the content, by its place, and the bytes at the reader's place.
type Read = (usize, Arc<File>, Bytes);

struct Reader {
    content: Arc<InFiles>,
    at: u64,
    end: u64,
    /// The file that was read last.
    open: Option<(usize, Arc<File>)>,
    /// The piece at `at`, which is being read.
    ahead: Option<oneshot::Receiver<Result<Read>>>,
}

/// A piece to be read.
struct Piece {
    /// Place of the file among those of the content, and its id.
    index: usize,
    id: u64,
    /// Where it begins in the file.
    offset: u64,
    len: u64,
}

impl Reader {
    /// The piece at `at`. None at the end.
    fn piece(&self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let files = &self.content.files;
        let index = files.partition_point(|(end, _)| *end <= self.at);
        let start = index.checked_sub(1).and_then(|before| files.get(before)).map_or(0, |(end, _)| *end);
        let (end, id) = *files.get(index)?;
        Some(Piece { index, id, offset: self.at - start, len: (end.min(self.end) - self.at).min(PIECE) })
    }

    fn file(&self, index: usize) -> Option<Arc<File>> {
        self.open.as_ref().filter(|(open, _)| *open == index).map(|(_, file)| Arc::clone(file))
    }

    /// Reads the piece where the system has it in memory.
    fn cached(&self, piece: &Piece) -> Option<Bytes> {
        let file = self.file(piece.index)?;
        let mut chunk = self.content.disk.arena.take(usize::try_from(piece.len).ok()?).ok()?;
        let n = files::read_cached(&file, chunk.as_mut(), piece.offset)?;
        Some(bytes(chunk, n))
    }

    /// Has the piece read.
    fn start(&self, piece: &Piece) -> oneshot::Receiver<Result<Read>> {
        let (disk, file) = (Arc::clone(&self.content.disk), self.file(piece.index));
        let Piece { index, id, offset, len } = *piece;
        self.content.disk.pool.start(move || {
            let read = || {
                let file = match file {
                    Some(file) => file,
                    None => Arc::new(disk.files.read(id)?),
                };
                let mut chunk = disk.arena.take(usize::try_from(len).unwrap_or(usize::MAX))?;
                files::read_all(&file, chunk.as_mut(), offset)?;
                let n = chunk.as_ref().len();
                Ok((index, file, bytes(chunk, n)))
            };
            read().map_err(|error: io::Error| disk.files.error(&format!("read the object file {id:016x}"), 0, &error))
        })
    }
}

fn bytes(chunk: Chunk, n: usize) -> Bytes {
    let mut bytes = Bytes::from_owner(chunk);
    bytes.truncate(n);
    bytes
}

impl Stream for Reader {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ahead.is_none() {
            let Some(piece) = this.piece() else { return Poll::Ready(None) };
            if let Some(bytes) = this.cached(&piece) {
                this.at += bytes.len() as u64;
                return Poll::Ready(Some(Ok(bytes)));
            }
            this.ahead = Some(this.start(&piece));
        }
        let Some(ahead) = &mut this.ahead else { return Poll::Ready(None) };
        let read = ready!(ahead.poll_unpin(cx)).unwrap_or_else(|_| Err(lost()));
        this.ahead = None;
        match read {
            Ok((index, file, bytes)) => {
                this.open = Some((index, file));
                this.at += bytes.len() as u64;
                // While the caller has this one.
                this.ahead = this.piece().map(|piece| this.start(&piece));
                Poll::Ready(Some(Ok(bytes)))
            }
            Err(error) => {
                this.end = this.at;
                Poll::Ready(Some(Err(error)))
            }
        }
    }
}
