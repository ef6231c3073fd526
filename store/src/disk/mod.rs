//! The store that keeps everything in a directory: what objects are in tables, their bytes in files.
//!
//! The page "Objects on disk" (docs/src/disk-format.md) describes the directory, and why what is acknowledged is there after a power
//! cut.

mod accounts;
mod batch;
mod committer;
mod data;
mod files;
mod look;
mod meta;
mod pool;
mod tables;
mod writer;

use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use async_trait::async_trait;
use redb::ReadableTable;

use self::{
    accounts::{Accounts, Place},
    committer::Queue,
    data::{Content, InFiles, Inline},
    files::{Disk, Files},
    look::{Current, Snapshot, Tables, Versions},
    meta::{Meta, failed},
    tables::{EPOCH_SHIFT, damaged},
    writer::{Held, Writer},
};
use crate::{
    BucketInfo, Commit, Condition, Deleted, ListPage, ListQuery, Object, ObjectData, ObjectInfo, ObjectWriter,
    PartInfo, PartName, PutOptions, Result, Source, Store, StoreError, Tags, UploadInfo, UploadOptions, Usage,
    VersionPage, VersionQuery, Versioning, list,
};

/// When a change is acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Once it is on the disk: it is there after a power cut.
    #[default]
    Full,
    /// Once it is made. It is on the disk about a second later; a power cut, or the end of the process by a signal, takes
    /// what was acknowledged since then, and damages nothing else.
    Os,
}

/// Where a [`DiskStore`] is, and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Directory, which is made if it is not there. It holds nothing else.
    pub path: PathBuf,
    /// Most bytes of objects and parts, those being written included.
    pub capacity: u64,
    /// Most objects and uploads in progress together.
    pub objects: u64,
    /// When a change is acknowledged.
    pub durability: Durability,
}

/// Why a store cannot be opened: says what is wrong, and with which path.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Internal(why) => Self(why),
            error => Self(error.to_string()),
        }
    }
}

/// A [`Store`] in a directory.
///
/// Room and slots are accounted for like those of a [`MemoryStore`](crate::MemoryStore); small objects stand in the tables,
/// the others each have a file, or one for each of their parts. A copy shares the bytes of its source.
///
/// No method waits for the disk on the thread that calls it: threads of the store's own do that, and wake the caller.
/// Dropped, the store first finishes what was asked of it.
#[derive(Debug)]
pub struct DiskStore {
    inner: Arc<Inner>,
}

/// The store with its thread. Writers keep only what they share, and fail when it is gone.
#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    committer: Option<JoinHandle<()>>,
}

/// What all threads share.
#[derive(Debug)]
struct Core {
    disk: Arc<Disk>,
    meta: Meta,
    accounts: Mutex<Accounts>,
    queue: Queue,
    /// The next serial: of versions, contents, files and uploads.
    serial: AtomicU64,
    /// Makes upload ids that cannot be guessed.
    ids: RandomState,
    /// Keeps other servers from the directory. Closed behind the tables.
    _lock: File,
}

impl Core {
    fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that cannot be guessed.
    fn secret(&self) -> u64 {
        self.ids.hash_one(self.serial.load(Ordering::Relaxed))
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        // No code panics between two dependent changes of the accounts, so that a poisoned lock guards sound ones.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a writer of `size` bytes, as far as that is known.
    fn claim(&self, place: Place, size: u64) -> Result<accounts::Claim> {
        loop {
            let generation = self.accounts().generation();
            let snapshot = Snapshot::new(&self.meta.db)?;
            let part = place.part.as_ref().map(|(upload, number)| (upload.as_str(), *number));
            let versioned = match part {
                None => snapshot.bucket(&place.bucket)?.versioning() == Versioning::Enabled,
                Some((upload, _)) => {
                    snapshot.upload(&place.bucket, &place.key, upload)?;
                    false
                }
            };
            let there = snapshot.replaceable(&place.bucket, &place.key, part)?;
            let mut accounts = self.accounts();
            if let Some(there) = accounts.moving(&place) {
                return accounts.claim(place, size, there, versioned);
            }
            // Else another transaction may have changed the place since the look at it.
            if accounts.generation() == generation {
                return accounts.claim(place, size, there, versioned);
            }
        }
    }

    /// What an object is, and its content.
    fn get(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object> {
        loop {
            let snapshot = Snapshot::new(&self.meta.db)?;
            let (of, object) = snapshot.object(bucket, key, version)?;
            let id = object.content;
            let (content, bytes) = {
                let contents = snapshot.contents()?;
                let value = contents.get(id).map_err(failed)?.ok_or_else(|| damaged("an object has no content"))?;
                tables::decode_content(value.value())?
            };
            let parts = if object.multipart { content.parts.into_iter().map(Into::into).collect() } else { Vec::new() };
            let info = Arc::new(object.info(&of, parts));
            if content.files.is_empty() {
                return Ok(Object { info, data: Arc::new(Inline(bytes)) });
            }
            let pin = self.disk.pin(id);
            // What was removed before the pin was made is not kept by it.
            if Snapshot::new(&self.meta.db)?.contents()?.get(id).map_err(failed)?.is_none() {
                continue;
            }
            let only = match content.files.as_slice() {
                [only] => Some(self.disk.files.read(only.id).map_err(|error| {
                    self.disk.files.error(&format!("open the object file {:016x}", only.id), 0, &error)
                })?),
                _ => None,
            };
            let data: Arc<dyn ObjectData> =
                Arc::new(Content(InFiles::new(Arc::clone(&self.disk), &content.files, only, pin)));
            return Ok(Object { info, data });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.queue.close();
        if let Some(committer) = self.committer.take()
            && committer.thread().id() != thread::current().id()
        {
            // A panic in it has been reported by the panic itself.
            let _ = committer.join();
        }
        self.core.disk.pool.close();
    }
}

impl DiskStore {
    /// Opens a store, and makes it if the directory is new or empty. This reads all tables, and what the last server has left
    /// unfinished is removed.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, holds something else, is of another format, or is in use; or the tables are damaged,
    /// and then nothing has been changed.
    pub fn open(config: DiskConfig) -> Result<Self, OpenError> {
        let (files, lock) = Files::open(&config.path, config.durability == Durability::Full)?;
        let meta = meta::open(&files)?;
        let core = Arc::new(Core {
            disk: Disk::new(files),
            accounts: Mutex::new(Accounts::new(config.capacity, config.objects, meta.stored)),
            queue: Queue::default(),
            serial: AtomicU64::new((meta.epoch << EPOCH_SHIFT) + 1),
            ids: RandomState::new(),
            meta,
            _lock: lock,
        });
        let of_committer = Arc::clone(&core);
        let committer = thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || committer::run(&of_committer))
            .map_err(|error| OpenError(format!("no thread for the disk store: {error}")))?;
        Ok(Self { inner: Arc::new(Inner { core, committer: Some(committer) }) })
    }

    /// Runs a job that may wait for the disk.
    async fn run<T: Send + 'static>(&self, job: impl FnOnce(&Core) -> Result<T> + Send + 'static) -> Result<T> {
        let core = Arc::clone(&self.inner.core);
        self.inner.core.disk.pool.run(move || job(&core)).await
    }

    /// Runs a job with a snapshot of the tables.
    async fn look<T: Send + 'static>(&self, job: impl FnOnce(&Snapshot) -> Result<T> + Send + 'static) -> Result<T> {
        self.run(move |core| job(&Snapshot::new(&core.meta.db)?)).await
    }

    async fn writer(&self, place: Place, options: PutOptions) -> Result<Box<dyn ObjectWriter>> {
        let size = options.size.unwrap_or(0);
        let core = Arc::clone(&self.inner.core);
        // The claim is held by the job: if nobody waits for it any more, it is given back.
        let held = self.inner.core.disk.pool.run(move || {
            let claim = core.claim(place, size)?;
            Ok(Held::new(core, claim))
        });
        Ok(Box::new(Writer::new(held.await?, options)))
    }
}

#[async_trait]
impl Store for DiskStore {
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.look(|tables| {
            let mut all = Vec::new();
            for entry in tables.buckets().iter().map_err(failed)? {
                let (name, value) = entry.map_err(failed)?;
                let bucket: tables::Bucket = tables::decode(value.value())?;
                all.push(bucket.info(name.value()));
            }
            Ok(all)
        })
        .await
    }

    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo> {
        let bucket = bucket.to_owned();
        self.look(move |tables| Ok(tables.bucket(&bucket)?.info(&bucket))).await
    }

    async fn create_bucket(&self, bucket: &str) -> Result<bool> {
        let bucket = bucket.to_owned();
        self.inner.core.queue.change(move |batch| batch.create_bucket(&bucket)).await
    }

    async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        let bucket = bucket.to_owned();
        self.inner.core.queue.change(move |batch| batch.delete_bucket(&bucket)).await
    }

    async fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<()> {
        let bucket = bucket.to_owned();
        self.inner.core.queue.change(move |batch| batch.set_versioning(&bucket, versioning)).await
    }

    async fn bucket_tags(&self, bucket: &str) -> Result<Tags> {
        let bucket = bucket.to_owned();
        self.look(move |tables| Ok(tables.bucket(&bucket)?.tags)).await
    }

    async fn set_bucket_tags(&self, bucket: &str, tags: Tags) -> Result<()> {
        let bucket = bucket.to_owned();
        self.inner.core.queue.change(move |batch| batch.set_bucket_tags(&bucket, tags)).await
    }

    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), version.map(str::to_owned));
        self.look(move |tables| {
            let (of, object) = tables.object(&bucket, &key, version.as_deref())?;
            tables.info(&of, object).map(Arc::new)
        })
        .await
    }

    async fn get(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), version.map(str::to_owned));
        self.run(move |core| core.get(&bucket, &key, version.as_deref())).await
    }

    async fn put(&self, bucket: &str, key: &str, options: PutOptions) -> Result<Box<dyn ObjectWriter>> {
        let place = Place { bucket: bucket.into(), key: key.into(), part: None };
        self.writer(place, options).await
    }

    async fn copy(
        &self,
        source: &Source,
        bucket: &str,
        key: &str,
        options: &PutOptions,
        commit: &Commit,
    ) -> Result<Option<Arc<ObjectInfo>>> {
        let (source, options, commit) = (source.clone(), options.clone(), commit.clone());
        let place = Place { bucket: bucket.into(), key: key.into(), part: None };
        let info = self.inner.core.queue.change(move |batch| batch.copy(&source, &place, options, commit)).await?;
        Ok(Some(Arc::new(info)))
    }

    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), version.map(str::to_owned));
        self.inner.core.queue.change(move |batch| batch.delete(&bucket, &key, version.as_deref(), &condition)).await
    }

    async fn set_tags(&self, bucket: &str, key: &str, version: Option<&str>, tags: Tags) -> Result<Arc<ObjectInfo>> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), version.map(str::to_owned));
        let change = move |batch: &mut batch::Batch<'_>| batch.set_tags(&bucket, &key, version.as_deref(), tags);
        self.inner.core.queue.change(change).await.map(Arc::new)
    }

    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage> {
        let (bucket, query) = (bucket.to_owned(), query.clone());
        self.look(move |tables| {
            let versioning = tables.bucket(&bucket)?.versioning();
            let page = list::page(&mut Current::new(tables, &bucket, versioning)?, &query)?;
            let next = page.next();
            Ok(ListPage { objects: page.entries, prefixes: page.prefixes, next })
        })
        .await
    }

    async fn list_versions(&self, bucket: &str, query: &VersionQuery) -> Result<VersionPage> {
        let (bucket, query) = (bucket.to_owned(), query.clone());
        self.look(move |tables| {
            tables.bucket(&bucket)?;
            list::version_page(&mut Versions::new(tables, &bucket)?, &query)
        })
        .await
    }

    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.inner.core.queue.change(move |batch| batch.create_upload(&bucket, &key, options)).await
    }

    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        let (bucket, key, upload) = (bucket.to_owned(), key.to_owned(), upload.to_owned());
        self.look(move |tables| Ok(tables.upload(&bucket, &key, &upload)?.info(&key, &upload))).await
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
        self.writer(place, PutOptions { size, ..PutOptions::default() }).await
    }

    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>> {
        let (bucket, key, upload) = (bucket.to_owned(), key.to_owned(), upload.to_owned());
        self.look(move |tables| {
            tables.upload(&bucket, &key, &upload)?;
            Ok(tables.parts_of(&upload)?.into_iter().map(|(number, part)| part.info(number)).collect())
        })
        .await
    }

    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        let bucket = bucket.to_owned();
        self.look(move |tables| {
            tables.bucket(&bucket)?;
            let mut all = Vec::new();
            for entry in tables.uploads().range((bucket.as_str(), "", "")..).map_err(failed)? {
                let (id, value) = entry.map_err(failed)?;
                let (of, key, upload) = id.value();
                if of != bucket {
                    break;
                }
                let found: tables::Upload = tables::decode(value.value())?;
                all.push(found.info(key, upload));
            }
            Ok(all)
        })
        .await
    }

    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        let (bucket, key, upload, parts) = (bucket.to_owned(), key.to_owned(), upload.to_owned(), parts.to_vec());
        let change = move |batch: &mut batch::Batch<'_>| batch.complete(&bucket, &key, &upload, &parts, commit);
        self.inner.core.queue.change(change).await.map(Arc::new)
    }

    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        let (bucket, key, upload) = (bucket.to_owned(), key.to_owned(), upload.to_owned());
        self.inner.core.queue.change(move |batch| batch.abort(&bucket, &key, &upload)).await
    }

    fn usage(&self) -> Usage {
        self.inner.core.accounts().usage()
    }
}
