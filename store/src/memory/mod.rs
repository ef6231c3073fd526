//! The store that keeps everything in memory.

pub(crate) mod arena;
mod content;
mod objects;
mod state;
mod writer;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;

use self::{
    arena::Arena,
    state::{Place, State},
    writer::Writer,
};
use crate::{
    BucketInfo, Commit, Condition, Deleted, ListPage, ListQuery, Object, ObjectInfo, ObjectWriter, PartInfo, PartName,
    PutOptions, Result, Source, Store, StoreError, Tags, UploadInfo, UploadOptions, Usage, VersionPage, VersionQuery,
    Versioning,
    list::{self, MapCursor},
};

/// Limits of a [`MemoryStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Most bytes of objects and parts, those being written included.
    pub capacity: u64,
    /// Most objects and uploads in progress together.
    pub objects: u64,
}

/// A [`Store`] in memory.
///
/// **Room.** A writer takes room when it starts if the size is known, else as it goes, and gives everything back when
/// dropped. What replaces an object (or part) needs room only for the difference: the key is charged for the longer of
/// the two until the writer ends. Of several writers of one key only the first is credited like that, so that neither
/// the accounts nor the memory behind them can grow without bound; [`Usage::bytes`] never exceeds the capacity. What
/// makes a new version needs room for all of it, and a copy is charged like its source, although they share memory.
/// Readers keep the memory of what they read, also after it was replaced; that is not counted. An upload that ends takes
/// the room of those who still write parts of it: their next call fails.
///
/// **Slots.** Every version of an object, every delete marker, every upload in progress, and every new key and version
/// being written takes one of [`MemoryConfig::objects`].
///
/// **Memory.** Contents are kept in chunks of at most 1 MiB without slack. Freed chunks are reused; at most 64 MiB
/// wait for that, and what was not needed for a second or two goes back to the system, by a thread that otherwise
/// sleeps.
#[derive(Debug)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: RwLock<State>,
    arena: Arc<Arena>,
}

impl Inner {
    // No code panics between two dependent changes of the state, so that a poisoned lock guards a sound state.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.arena.close();
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        Self { inner: Arc::new(Inner { state: RwLock::new(State::new(config)), arena: Arena::new() }) }
    }

    /// Makes a bucket. Returns whether it is new: one that is there stays as it is, and there are at most 1,000.
    pub fn create_bucket(&self, name: &str) -> bool {
        self.inner.write().create_bucket(name).unwrap_or(false)
    }

    /// Bytes of freed chunks that are kept for reuse.
    #[must_use]
    pub fn pooled_bytes(&self) -> usize {
        self.inner.arena.pooled()
    }

    fn writer(&self, place: Place, options: PutOptions) -> Result<Box<dyn ObjectWriter>> {
        let claim = self.inner.write().claim(&place, options.size.unwrap_or(0))?;
        Ok(Box::new(Writer::new(Arc::clone(&self.inner), place, claim, options)))
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        Ok(self.inner.read().bucket_infos())
    }

    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo> {
        self.inner.read().bucket_info(bucket)
    }

    async fn versioning(&self, bucket: &str) -> Result<Versioning> {
        Ok(self.inner.read().bucket(bucket)?.versioning)
    }

    async fn create_bucket(&self, bucket: &str) -> Result<bool> {
        self.inner.write().create_bucket(bucket)
    }

    async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        let _freed = self.inner.write().delete_bucket(bucket)?;
        Ok(())
    }

    async fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<()> {
        self.inner.write().set_versioning(bucket, versioning)
    }

    async fn bucket_tags(&self, bucket: &str) -> Result<Tags> {
        Ok(self.inner.read().bucket(bucket)?.tags.clone())
    }

    async fn set_bucket_tags(&self, bucket: &str, tags: Tags) -> Result<()> {
        self.inner.write().bucket_mut(bucket)?.tags = tags;
        Ok(())
    }

    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>> {
        Ok(Arc::clone(&self.inner.read().object(bucket, key, version)?.info))
    }

    async fn get(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object> {
        let state = self.inner.read();
        let entry = state.object(bucket, key, version)?;
        Ok(Object { info: Arc::clone(&entry.info), data: Arc::clone(entry) as _ })
    }

    async fn put(&self, bucket: &str, key: &str, options: PutOptions) -> Result<Box<dyn ObjectWriter>> {
        let place = Place { bucket: bucket.into(), key: key.into(), part: None };
        self.writer(place, options)
    }

    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted> {
        // Freed without the lock.
        let (deleted, _old) = self.inner.write().delete(bucket, key, version, &condition)?;
        Ok(deleted)
    }

    async fn copy(
        &self,
        source: &Source,
        bucket: &str,
        key: &str,
        options: &PutOptions,
        commit: &Commit,
    ) -> Result<Option<Arc<ObjectInfo>>> {
        let place = Place { bucket: bucket.into(), key: key.into(), part: None };
        // What it replaces is freed without the lock.
        let (info, _old) = self.inner.write().copy(source, &place, options, commit)?;
        Ok(Some(info))
    }

    async fn set_tags(&self, bucket: &str, key: &str, version: Option<&str>, tags: Tags) -> Result<Arc<ObjectInfo>> {
        self.inner.write().set_tags(bucket, key, version, tags)
    }

    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage> {
        let state = self.inner.read();
        let page = list::page(&mut MapCursor::new(&state.bucket(bucket)?.objects.sorted), query)?;
        let next = page.next();
        let objects = page.entries.into_iter().map(|(key, entry)| (key, Arc::clone(&entry.info))).collect();
        Ok(ListPage { objects, prefixes: page.prefixes, next })
    }

    async fn list_versions(&self, bucket: &str, query: &VersionQuery) -> Result<VersionPage> {
        let state = self.inner.read();
        list::version_page(&mut state.bucket(bucket)?.objects.versions(), query)
    }

    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        self.inner.write().create_upload(bucket, key, options)
    }

    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        Ok(self.inner.read().upload(bucket, key, upload)?.info.clone())
    }

    async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u16,
        size: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>> {
        if !(1..=10_000).contains(&number) {
            return Err(StoreError::NoSuchPart(number));
        }
        let place = Place { bucket: bucket.into(), key: key.into(), part: Some((upload.into(), number)) };
        self.writer(place, PutOptions { size, ..PutOptions::default() })
    }

    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>> {
        let state = self.inner.read();
        let parts = &state.upload(bucket, key, upload)?.parts;
        Ok(parts.iter().map(|(&number, part)| PartInfo { number, info: Arc::clone(&part.info) }).collect())
    }

    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        Ok(self.inner.read().bucket(bucket)?.uploads.values().map(|upload| upload.info.clone()).collect())
    }

    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        // What it replaces is freed without the lock.
        let (info, _old) = self.inner.write().complete(bucket, key, upload, parts, commit)?;
        Ok(info)
    }

    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        let _freed = self.inner.write().abort(bucket, key, upload)?;
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.inner.read().usage()
    }
}
