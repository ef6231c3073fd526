//! Writing one object or part.

use std::{collections::VecDeque, fs::File, os::unix::fs::FileExt, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_channel::oneshot;

use super::{
    Core,
    accounts::{Charge, Claim, Place},
    batch::{NewContent, NewObject},
    files::{Disk, write_back},
    look::Tables,
    pool::lost,
    tables::{DataFile, Part},
};
use crate::{Commit, ObjectInfo, ObjectWriter, PutOptions, Result, StoreError, memory::arena::Chunk};

/// Longest object that stands in the tables (decision 005).
pub(super) const INLINE: u64 = 4 << 10;

/// Longest chunk that is written at once. A writer has at most three: one that is being filled, two on their way.
const CHUNK: usize = 256 << 10;

/// First chunk of an object whose size is unknown.
const FIRST_CHUNK: usize = 16 << 10;

/// Most chunks on their way to the disk.
const IN_FLIGHT: usize = 2;

/// A writer's claim, which it gives back.
#[derive(Debug)]
pub(super) struct Held {
    // Not the store itself: dropped, that waits for the thread which may drop this.
    core: Arc<Core>,
    pub(super) claim: Claim,
}

impl Held {
    pub(super) fn new(core: Arc<Core>, claim: Claim) -> Self {
        Self { core, claim }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.core.accounts().release(&self.claim);
    }
}

/// A data file that no table names yet, and that goes away unless it is kept.
#[derive(Debug)]
struct NewFile {
    disk: Arc<Disk>,
    id: u64,
    file: File,
    /// Whether it has its own name.
    finished: bool,
    kept: bool,
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (disk, id, finished) = (Arc::clone(&self.disk), self.id, self.finished);
        // Removing a large file takes its time.
        self.disk.pool.spawn(move || {
            if finished {
                disk.files.remove(id);
            } else {
                disk.files.remove_temporary(id);
            }
        });
    }
}

/// See [`ObjectWriter`].
#[derive(Debug)]
pub(super) struct Writer {
    held: Held,
    options: PutOptions,
    /// Bytes of content.
    written: u64,
    current: Option<Chunk>,
    /// Bytes of content in `current`.
    filled: usize,
    /// Length of the last buffer.
    lent: usize,
    /// Full chunks that wait, with their places.
    full: VecDeque<(u64, Chunk)>,
    /// Chunks on their way, oldest first.
    flying: VecDeque<oneshot::Receiver<Result<()>>>,
    file: Option<Arc<NewFile>>,
}

impl Writer {
    pub(super) fn new(held: Held, options: PutOptions) -> Self {
        Self {
            held,
            options,
            written: 0,
            current: None,
            filled: 0,
            lent: 0,
            full: VecDeque::new(),
            flying: VecDeque::new(),
            file: None,
        }
    }

    fn core(&self) -> &Arc<Core> {
        &self.held.core
    }

    fn disk(&self) -> &Arc<Disk> {
        &self.held.core.disk
    }

    /// Bytes that were announced and have not come.
    fn announced(&self) -> u64 {
        self.options.size.unwrap_or(0).saturating_sub(self.written)
    }

    fn is_part(&self) -> bool {
        self.held.claim.place.part.is_some()
    }

    fn take(&self) -> Result<Chunk> {
        let written = usize::try_from(self.written).unwrap_or(usize::MAX);
        let want = match self.announced() {
            0 => written.clamp(FIRST_CHUNK, CHUNK),
            left => usize::try_from(left).unwrap_or(CHUNK).min(CHUNK),
        };
        let failed = |error| StoreError::Internal(format!("no memory for {want} bytes of an object: {error}"));
        self.disk().arena.take(want).map_err(failed)
    }

    /// The result of the oldest chunk on its way.
    async fn land(&mut self) -> Result<()> {
        // It stays here until it has landed, whatever becomes of this future.
        let Some(oldest) = self.flying.front_mut() else { return Ok(()) };
        let landed = oldest.await.unwrap_or_else(|_| Err(lost()));
        self.flying.pop_front();
        landed
    }

    /// Makes the file, if there is none.
    async fn file(&mut self) -> Result<Arc<NewFile>> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let (disk, id, needed) = (Arc::clone(self.disk()), self.core().serial(), self.written);
        let made = self.disk().pool.run(move || {
            let file = disk.files.create(id).map_err(|error| disk.files.error("make a file", needed, &error))?;
            Ok(NewFile { file, id, finished: false, kept: false, disk })
        });
        let made = Arc::new(made.await?);
        self.file = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The current chunk is full, if there is one.
    fn close_chunk(&mut self) {
        if let Some(chunk) = self.current.take() {
            self.full.push_back((self.written - self.filled as u64, chunk));
            self.filled = 0;
        }
    }

    /// Sends a full chunk on its way.
    fn fly(&mut self, file: Arc<NewFile>) {
        let Some((offset, chunk)) = self.full.pop_front() else { return };
        let write = move || {
            let disk = &file.disk;
            let len = chunk.as_ref().len() as u64;
            file.file.write_all_at(chunk.as_ref(), offset).map_err(|e| disk.files.error("write an object", len, &e))?;
            if disk.files.durable {
                write_back::start(&file.file, offset, len);
            }
            Ok(())
        };
        self.flying.push_back(self.disk().pool.start(write));
    }

    /// Has as much written as may be on its way at a time, and waits until there is place for another chunk.
    async fn make_place(&mut self) -> Result<()> {
        while !self.full.is_empty() {
            if self.flying.len() >= IN_FLIGHT {
                self.land().await?;
            }
            let file = self.file().await?;
            self.fly(file);
        }
        Ok(())
    }

    /// The content, in a file of its own or not.
    async fn content(&mut self) -> Result<(NewContent, Option<Arc<NewFile>>)> {
        let rest = self.current.take();
        let filled = std::mem::take(&mut self.filled);
        let rest = rest.filter(|_| filled > 0);
        if self.file.is_none()
            && self.full.is_empty()
            && (self.written == 0 || !self.is_part() && self.written <= INLINE)
        {
            let bytes = rest.as_ref().and_then(|chunk| chunk.as_ref().get(..filled));
            return Ok((NewContent::Inline(bytes.map_or(Bytes::new(), Bytes::copy_from_slice)), None));
        }
        self.make_place().await?;
        while !self.flying.is_empty() {
            self.land().await?;
        }
        let file = self.file().await?;
        // All chunks have landed: nobody else has the file.
        self.file = None;
        let size = self.written;
        let finish = move || {
            let mut file = file;
            let tail = rest.as_ref().and_then(|chunk| chunk.as_ref().get(..filled)).unwrap_or_default();
            let error = |error| file.disk.files.error("write an object", size, &error);
            file.file.write_all_at(tail, size - tail.len() as u64).map_err(error)?;
            file.disk.files.finish(file.id, &file.file).map_err(error)?;
            if let Some(file) = Arc::get_mut(&mut file) {
                file.finished = true;
            }
            Ok(file)
        };
        let file = self.disk().pool.run(finish).await?;
        Ok((NewContent::Files(vec![DataFile { id: file.id, size }]), Some(file)))
    }
}

/// Keeps the file of a content that a table names now.
fn keep(file: Option<Arc<NewFile>>) {
    if let Some(mut file) = file
        && let Some(file) = Arc::get_mut(&mut file)
    {
        file.kept = true;
    }
}

#[async_trait]
impl ObjectWriter for Writer {
    async fn buffer(&mut self, want: usize) -> Result<&mut [u8]> {
        self.lent = 0;
        if let Err(error) = self.held.claim.check() {
            // Nobody is charged for what it holds.
            self.full.clear();
            self.file = None;
            self.current = None;
            self.filled = 0;
            return Err(error);
        }
        if self.current.as_ref().is_none_or(|chunk| chunk.as_ref().len() == self.filled) {
            self.close_chunk();
            self.make_place().await?;
            self.current = Some(self.take()?);
        }
        let announced = self.announced();
        let space = self.current.as_ref().map_or(0, |chunk| chunk.as_ref().len()) - self.filled;
        let mut len = want.clamp(1, space);
        if announced > 0 {
            len = len.min(usize::try_from(announced).unwrap_or(usize::MAX));
        } else {
            let end = self.written.saturating_add(len as u64);
            let core = Arc::clone(&self.held.core);
            core.accounts().resize(&mut self.held.claim, self.written + 1, end)?;
            len = usize::try_from(self.held.claim.bytes - self.written).unwrap_or(len);
        }
        self.lent = len;
        let filled = self.filled;
        let buffer = self.current.as_mut().and_then(|chunk| chunk.as_mut().get_mut(filled..filled + len));
        buffer.ok_or_else(|| StoreError::Internal("a chunk is shorter than itself".into()))
    }

    fn advance(&mut self, n: usize) {
        assert!(n <= self.lent, "{n} bytes written into a buffer of {}", self.lent);
        self.lent = 0;
        self.filled += n;
        self.written += n as u64;
        // An object that may stand in the tables stays here until it is known whether it does.
        let inline = !self.is_part() && self.written <= INLINE;
        if !inline && self.current.as_ref().is_some_and(|chunk| chunk.as_ref().len() == self.filled) {
            self.close_chunk();
            if self.flying.len() < IN_FLIGHT
                && let Some(file) = &self.file
            {
                self.fly(Arc::clone(file));
            }
        }
    }

    fn written(&self) -> u64 {
        self.written
    }

    async fn commit(mut self: Box<Self>, commit: Commit) -> Result<Arc<ObjectInfo>> {
        if let Err(error) = self.held.claim.check() {
            let Place { bucket, key, part } = self.held.claim.place.clone();
            // Whether the bucket has gone with the upload is for the tables to say.
            let upload = part.map(|(upload, _)| upload).unwrap_or_default();
            let look = self.core().queue.change(move |batch| batch.upload(&bucket, &key, &upload).map(drop));
            return look.await.and(Err(error));
        }
        let (content, file) = self.content().await?;
        let Self { held, options, written, .. } = *self;
        let core = Arc::clone(&held.core);
        let info = ObjectInfo {
            size: written,
            etag: commit.etag,
            modified: SystemTime::now(),
            meta: options.meta,
            checksums: commit.checksums,
            parts: Vec::new(),
            tags: options.tags,
            version: None,
        };
        let condition = commit.condition;
        let change = core.queue.change(move |batch| {
            let info = if held.claim.place.part.is_none() {
                let object = NewObject { info, content };
                batch.put(&held.claim.place, object, &condition, Some(&held.claim), Charge::default())
            } else {
                let data = match content {
                    NewContent::Files(files) => files.first().copied(),
                    _ => None,
                };
                let part = Part {
                    etag: info.etag.clone(),
                    modified: info.modified.into(),
                    checksums: info.checksums.clone(),
                    file: data,
                };
                batch.put_part(&held.claim, part).map(|()| info)
            };
            // Whether a transaction that fails is on the disk cannot be told: then the next start finds out.
            let refused = matches!(&info, Err(error) if !matches!(error, StoreError::Internal(_)));
            if !refused {
                keep(file);
            }
            info
        });
        change.await.map(Arc::new)
    }
}
