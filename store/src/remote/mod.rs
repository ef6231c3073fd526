//! The remote store: objects stay in another store, and this process is a gateway in front of it.
//!
//! ```text
//!  S3 layer, on any executor ⇄ RemoteStore: tasks and channels ⇄ engine, on a tokio runtime of its own ⇄ the network
//! ```
//!
//! [`RemoteStore`] takes every call to a tokio runtime of its own with two threads, and the caller waits for a channel:
//! its thread never blocks, and needs no runtime. Content moves through channels of two pieces of at most 1 MiB each way,
//! so that a slow side holds up the other instead of filling memory.
//!
//! There are two engines. [S3](s3) speaks S3 to S3: buckets, uploads, parts, ETags, metadata, versions are the remote's own.
//! [OpenDAL](files) reaches everything else, and makes objects of what is there: folders, WebDAV, Azure, GCS, HDFS.

mod body;
mod files;
mod s3;
mod url;

use std::{fmt, future::Future, ops::Range, sync::Arc};

use async_trait::async_trait;
use tokio::{
    runtime::{Handle, Runtime},
    sync::mpsc,
    task::JoinHandle,
};

pub use self::url::{Credentials, RemoteError, RemoteUrl};
use self::{
    body::{Body, Pieces, QUEUE, Writer},
    files::Files,
    s3::S3,
};
use crate::{
    BucketInfo, ByteStream, Commit, Condition, Deleted, ListPage, ListQuery, Object, ObjectData, ObjectInfo,
    ObjectWriter, PartInfo, PartName, PutOptions, Result, Source, Store, StoreError, Tags, UploadInfo, UploadOptions,
    Usage, Versioning,
};

/// Threads of the runtime. One would do for the network; TLS and hashes want a second one.
const THREADS: usize = 2;

/// A store in front of another store. Clones of its handles keep it going; dropping it ends what is under way.
pub struct RemoteStore {
    engine: Arc<dyn Engine>,
    /// They end with the store.
    _threads: Threads,
    handle: Handle,
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// The runtime's threads.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Whoever drops a store, or fails to open one, may be on an executor, where waiting for the threads is not
            // allowed.
            runtime.shutdown_background();
        }
    }
}

impl RemoteStore {
    /// A store in front of what `url` names. Nothing is asked of it yet: it may come up later.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] where the URL names a service that is not built in, or the runtime cannot be had.
    pub fn open(url: &RemoteUrl, credentials: Option<Credentials>) -> Result<Self, RemoteError> {
        let (threads, handle) = runtime()?;
        let inside = handle.enter();
        let engine: Arc<dyn Engine> = match url {
            RemoteUrl::S3(place) => Arc::new(S3::new(place, credentials)?),
            RemoteUrl::Other(service) => Arc::new(Files::service(service)?),
        };
        drop(inside);
        Ok(Self { engine, handle, _threads: threads })
    }

    /// The folder `path` of this machine as the one bucket `bucket`: see the guide for what a file is as an object. The
    /// folder must be there.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] where it is not, or cannot be read.
    pub fn folder(path: &std::path::Path, bucket: &str) -> Result<Self, RemoteError> {
        let (threads, handle) = runtime()?;
        let inside = handle.enter();
        let engine = Arc::new(Files::folder(path, bucket)?);
        drop(inside);
        Ok(Self { engine, handle, _threads: threads })
    }

    /// The only bucket that this store can have, where there is but one.
    #[must_use]
    pub fn only_bucket(&self) -> Option<&str> {
        self.engine.only_bucket()
    }

    /// Runs `work` on the runtime and waits for it. Dropping the future ends the work.
    async fn run<T, F>(&self, work: impl FnOnce(Arc<dyn Engine>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.task(work).end().await
    }

    fn task<T, F>(&self, work: impl FnOnce(Arc<dyn Engine>) -> F) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        Task::new(self.handle.spawn(work(Arc::clone(&self.engine))))
    }

    /// Starts a writer whose content `work` takes.
    fn writer<F>(&self, size: Option<u64>, work: impl FnOnce(Arc<dyn Engine>, Body) -> F) -> Box<dyn ObjectWriter>
    where
        F: Future<Output = Result<Arc<ObjectInfo>>> + Send + 'static,
    {
        let (steps, body) = mpsc::channel(QUEUE);
        let task = self.task(|engine| work(engine, Body::new(body))).left_alone();
        Box::new(Writer::new(size, steps, task))
    }
}

fn runtime() -> Result<(Threads, Handle), RemoteError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        // Files of `dir:` are read and written there.
        .max_blocking_threads(16)
        .thread_name("ernic-remote")
        .enable_all()
        .build()
        .map(|runtime| {
            let handle = runtime.handle().clone();
            (Threads(Some(runtime)), handle)
        })
        .map_err(|error| RemoteError::Runtime(error.to_string()))
}

/// A task of the runtime, which ends when this is dropped.
#[derive(Debug)]
struct Task<T> {
    handle: JoinHandle<Result<T>>,
    alone: bool,
}

impl<T> Task<T> {
    fn new(handle: JoinHandle<Result<T>>) -> Self {
        Self { handle, alone: false }
    }

    /// Lets it come to its own end: it has something to clear away. Its channel tells it that nobody waits any more.
    fn left_alone(mut self) -> Self {
        self.alone = true;
        self
    }

    async fn end(mut self) -> Result<T> {
        match (&mut self.handle).await {
            Ok(result) => result,
            Err(error) => Err(StoreError::Internal(format!("a task of the remote store has ended: {error}"))),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if !self.alone {
            self.handle.abort();
        }
    }
}

/// What a kind of remote does. Its methods run on the runtime; see [`Store`] for what they mean.
#[async_trait]
trait Engine: fmt::Debug + Send + Sync + 'static {
    fn only_bucket(&self) -> Option<&str>;
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>>;
    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo>;
    async fn create_bucket(&self, bucket: &str) -> Result<bool>;
    async fn delete_bucket(&self, bucket: &str) -> Result<()>;
    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>>;
    /// Sends the bytes of `range` of the object that `info` is, until they are through or nobody listens.
    async fn read(&self, at: &Place, info: &ObjectInfo, range: Range<u64>, out: &Pieces) -> Result<()>;
    async fn put(&self, bucket: &str, key: &str, options: PutOptions, body: Body) -> Result<Arc<ObjectInfo>>;
    async fn copy(
        &self,
        source: &Source,
        bucket: &str,
        key: &str,
        options: &PutOptions,
        commit: &Commit,
    ) -> Result<Option<Arc<ObjectInfo>>>;
    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted>;
    async fn set_tags(&self, bucket: &str, key: &str, version: Option<&str>, tags: Tags) -> Result<Arc<ObjectInfo>>;
    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage>;
    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String>;
    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo>;
    async fn put_part(&self, at: &PartPlace, size: Option<u64>, body: Body) -> Result<Arc<ObjectInfo>>;
    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>>;
    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>>;
    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>>;
    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()>;
}

/// Where an object is.
#[derive(Debug, Clone)]
struct Place {
    bucket: String,
    key: String,
    version: Option<String>,
}

/// Where a part is.
#[derive(Debug, Clone)]
struct PartPlace {
    bucket: String,
    key: String,
    upload: String,
    number: u16,
}

/// The content of an object, as it was when it was asked for.
#[derive(Debug)]
struct Content {
    engine: Arc<dyn Engine>,
    handle: Handle,
    at: Place,
    info: Arc<ObjectInfo>,
}

impl ObjectData for Content {
    fn read(&self, range: Range<u64>) -> ByteStream {
        let end = range.end.min(self.info.size);
        let range = range.start.min(end)..end;
        if range.is_empty() {
            return Box::pin(futures_util::stream::empty());
        }
        let (engine, at, info) = (Arc::clone(&self.engine), self.at.clone(), Arc::clone(&self.info));
        body::stream(&self.handle, |pieces| async move { engine.read(&at, &info, range, &pieces).await })
    }
}

/// Passes a call on: owned copies of the borrowed arguments, and the method of the engine.
macro_rules! pass {
    ($self:ident.$method:ident($($argument:ident),*)) => {{
        $(let $argument = $argument.to_owned();)*
        $self.run(|engine| async move { engine.$method($(&$argument),*).await }).await
    }};
}

fn owned(version: Option<&str>) -> Option<String> {
    version.map(str::to_owned)
}

#[async_trait]
impl Store for RemoteStore {
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.run(|engine| async move { engine.list_buckets().await }).await
    }

    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo> {
        pass!(self.head_bucket(bucket))
    }

    /// Always off: versions are the remote's, and whether it has any comes with each answer of its own. So it is not asked.
    async fn versioning(&self, _bucket: &str) -> Result<Versioning> {
        Ok(Versioning::Off)
    }

    async fn create_bucket(&self, bucket: &str) -> Result<bool> {
        pass!(self.create_bucket(bucket))
    }

    async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        pass!(self.delete_bucket(bucket))
    }

    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), owned(version));
        self.run(|engine| async move { engine.head(&bucket, &key, version.as_deref()).await }).await
    }

    async fn get(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object> {
        let info = self.head(bucket, key, version).await?;
        // The version that is there now, where there are versions: a later one does not get in between.
        let version = version.map(str::to_owned).or_else(|| info.version.clone());
        let at = Place { bucket: bucket.to_owned(), key: key.to_owned(), version };
        let (engine, handle) = (Arc::clone(&self.engine), self.handle.clone());
        Ok(Object { data: Arc::new(Content { engine, handle, at, info: Arc::clone(&info) }), info })
    }

    async fn put(&self, bucket: &str, key: &str, options: PutOptions) -> Result<Box<dyn ObjectWriter>> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let size = options.size;
        Ok(self.writer(size, |engine, body| async move { engine.put(&bucket, &key, options, body).await }))
    }

    async fn copy(
        &self,
        source: &Source,
        bucket: &str,
        key: &str,
        options: &PutOptions,
        commit: &Commit,
    ) -> Result<Option<Arc<ObjectInfo>>> {
        pass!(self.copy(source, bucket, key, options, commit))
    }

    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), owned(version));
        self.run(|engine| async move { engine.delete(&bucket, &key, version.as_deref(), condition).await }).await
    }

    async fn set_tags(&self, bucket: &str, key: &str, version: Option<&str>, tags: Tags) -> Result<Arc<ObjectInfo>> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), owned(version));
        self.run(|engine| async move { engine.set_tags(&bucket, &key, version.as_deref(), tags).await }).await
    }

    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage> {
        pass!(self.list(bucket, query))
    }

    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.run(|engine| async move { engine.create_upload(&bucket, &key, options).await }).await
    }

    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        pass!(self.head_upload(bucket, key, upload))
    }

    async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u16,
        size: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>> {
        let at = PartPlace { bucket: bucket.to_owned(), key: key.to_owned(), upload: upload.to_owned(), number };
        Ok(self.writer(size, |engine, body| async move { engine.put_part(&at, size, body).await }))
    }

    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>> {
        pass!(self.list_parts(bucket, key, upload))
    }

    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        pass!(self.list_uploads(bucket))
    }

    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        let (bucket, key, upload, parts) = (bucket.to_owned(), key.to_owned(), upload.to_owned(), parts.to_owned());
        self.run(|engine| async move { engine.complete_upload(&bucket, &key, &upload, &parts, commit).await }).await
    }

    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        pass!(self.abort_upload(bucket, key, upload))
    }

    /// Nothing is held here, and what the remote holds is not known.
    fn usage(&self) -> Usage {
        Usage { capacity: u64::MAX, ..Usage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_may_be_dropped_on_an_executor_and_fail_to_open_there() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let error = RemoteStore::folder(std::path::Path::new("/nonexistent"), "b").unwrap_err();
            assert!(error.to_string().contains("/nonexistent"), "{error}");
            let folder = tempfile::tempdir().unwrap();
            drop(RemoteStore::folder(folder.path(), "b").unwrap());
        });
    }
}
