//! Writing one object or part.

use std::{sync::Arc, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Inner,
    arena::{Chunk, MAX_CHUNK},
    content::Content,
    state::{Claim, NewObject, Place},
};
use crate::{Commit, ObjectInfo, ObjectWriter, PutOptions, Result, StoreError};

/// First chunk of an object whose size is unknown; the following ones double what is there, up to 1 MiB.
const FIRST_CHUNK: usize = 4096;

/// See [`ObjectWriter`].
#[derive(Debug)]
pub(super) struct Writer {
    inner: Arc<Inner>,
    place: Place,
    claim: Claim,
    options: PutOptions,
    full: Vec<Bytes>,
    /// Bytes of content.
    written: u64,
    current: Option<Chunk>,
    /// Bytes of content in `current`.
    filled: usize,
    /// Length of the last buffer.
    lent: usize,
    /// The claim has been turned into an object.
    committed: bool,
}

impl Writer {
    pub(super) fn new(inner: Arc<Inner>, place: Place, claim: Claim, options: PutOptions) -> Self {
        Self {
            inner,
            place,
            claim,
            options,
            full: Vec::new(),
            written: 0,
            current: None,
            filled: 0,
            lent: 0,
            committed: false,
        }
    }

    /// Bytes that were announced and have not come.
    fn announced(&self) -> u64 {
        self.options.size.unwrap_or(0).saturating_sub(self.written)
    }

    fn take(&self, want: usize) -> Result<Chunk> {
        let failed = |error| StoreError::Internal(format!("no memory for {want} bytes of an object: {error}"));
        self.inner.arena.take(want).map_err(failed)
    }

    /// Turns what is filled of the current chunk into a piece.
    fn close_chunk(&mut self) -> Result<()> {
        let Some(chunk) = self.current.take() else {
            return Ok(());
        };
        let filled = std::mem::take(&mut self.filled);
        if filled == chunk.as_ref().len() {
            self.full.push(Bytes::from_owner(chunk));
            return Ok(());
        }
        // Objects have no slack. Only what came shorter than announced, or without a size, is copied, and only its end.
        let mut left = chunk.as_ref().get(..filled).unwrap_or_default();
        while !left.is_empty() {
            let mut exact = self.take(left.len())?;
            let (now, later) = left.split_at(exact.as_ref().len());
            exact.as_mut().copy_from_slice(now);
            self.full.push(Bytes::from_owner(exact));
            left = later;
        }
        Ok(())
    }
}

#[async_trait]
impl ObjectWriter for Writer {
    async fn buffer(&mut self, want: usize) -> Result<&mut [u8]> {
        self.lent = 0;
        if let Err(error) = self.claim.check() {
            // Nobody is charged for what it holds.
            self.full.clear();
            self.current = None;
            self.filled = 0;
            return Err(error);
        }
        if self.current.is_none() {
            let grown = usize::try_from(self.written).unwrap_or(usize::MAX).max(want).clamp(FIRST_CHUNK, MAX_CHUNK);
            let len = match self.announced() {
                0 => grown,
                left => usize::try_from(left).unwrap_or(usize::MAX),
            };
            self.current = Some(self.take(len)?);
        }
        let announced = self.announced();
        let space = self.current.as_ref().map_or(0, |chunk| chunk.as_ref().len()) - self.filled;
        let mut len = want.clamp(1, space);
        if announced > 0 {
            len = len.min(usize::try_from(announced).unwrap_or(usize::MAX));
        } else {
            let end = self.written.saturating_add(len as u64);
            self.inner.write().resize(&self.place, &mut self.claim, self.written + 1, end)?;
            len = usize::try_from(self.claim.bytes - self.written).unwrap_or(len);
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
        if let Some(chunk) = self.current.take_if(|chunk| chunk.as_ref().len() == self.filled) {
            self.filled = 0;
            self.full.push(Bytes::from_owner(chunk));
        }
    }

    fn written(&self) -> u64 {
        self.written
    }

    async fn commit(mut self: Box<Self>, commit: Commit) -> Result<Arc<ObjectInfo>> {
        self.close_chunk()?;
        let content = Content::new(std::mem::take(&mut self.full));
        let info = ObjectInfo {
            size: self.written,
            etag: commit.etag,
            modified: SystemTime::now(),
            meta: std::mem::take(&mut self.options.meta),
            checksums: commit.checksums,
            parts: Vec::new(),
            tags: std::mem::take(&mut self.options.tags),
            version: None,
        };
        let object = NewObject { info, content };
        // What it replaces is freed without the lock.
        let (info, _old) = self.inner.write().commit(&self.place, &self.claim, &commit.condition, object)?;
        self.committed = true;
        Ok(info)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.committed {
            self.inner.write().release(&self.place, &self.claim);
        }
    }
}
