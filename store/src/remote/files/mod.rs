//! The engine for everything that OpenDAL reaches: folders of this machine, WebDAV, Azure, GCS, HDFS.
//!
//! A bucket is a folder under the root; for a folder of this machine the root is the only bucket. An object is a file. What
//! S3 has and a file has not is made up for here: ETags of size and time, listings in the order of keys, uploads in parts.

mod parts;
mod walk;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::StreamExt;
use opendal::{
    EntryMode, ErrorKind, HttpTransporter, OperationContext, Operator,
    layers::{RetryLayer, TimeoutLayer},
    options::{ReaderOptions, WriteOptions},
};
use opendal_http_transport_reqwest::ReqwestTransport;
use tokio::{
    runtime::Handle,
    sync::{Mutex, MutexGuard},
};

use self::walk::{Walk, fits};
use super::{
    Engine, PartPlace, Place,
    body::{Body, Pieces, Step, given_up},
    s3::http_client,
    url::{RemoteError, ServicePlace},
};
use crate::{
    BucketInfo, Commit, Condition, Deleted, ListPage, ListQuery, Metadata, ObjectInfo, PartInfo, PartName, PutOptions,
    Result, Source, StoreError, Tags, UploadInfo, UploadOptions, Versioning, list,
};

/// Our own folder in every bucket: parts of uploads, and files that are being written.
const OWN: &str = ".ernic-uploads/";
/// The name under which a file of this machine keeps its metadata: the extended attribute `user.ernic.meta`.
const META: &str = "ernic.meta";
/// Most bytes of it. ext4 keeps all attributes of a file in one block of 4 KiB (`xattr(7)`).
const MAX_META: usize = 3500;
/// Locks of keys, by hash.
const LOCKS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Files {
    op: Operator,
    /// The only bucket, whose root is that of `op`.
    only: Option<String>,
    /// The root, where it is a folder of this machine.
    local: Option<PathBuf>,
    /// Whether files can have attributes.
    attributes: bool,
    /// Held from the check of a condition until what it is about has been done.
    locks: Vec<Mutex<()>>,
}

impl Files {
    /// A service of OpenDAL.
    pub(super) fn service(place: &ServicePlace) -> Result<Self, RemoteError> {
        let failed = |error: &dyn std::fmt::Display| RemoteError::Service(place.name.clone(), error.to_string());
        let options = place.options.iter().map(|(key, value)| (key.clone(), value.clone()));
        let local = (place.scheme == "fs").then(|| place.options.get("root").map(PathBuf::from)).flatten();
        if let Some(root) = &local {
            return Self::local(root, None, &place.name);
        }
        opendal::init_default_registry();
        let op = Operator::via_iter(&place.scheme, options).map_err(|error| failed(&error))?;
        let http = http_client(true).map_err(|error| failed(&format!("{error:?}")))?;
        let context = OperationContext::new().with_http_transport(HttpTransporter::new(ReqwestTransport::new(http)));
        Ok(Self::new(op.with_context(context), None, None, true))
    }

    /// A folder of this machine as one bucket.
    pub(super) fn folder(path: &Path, bucket: &str) -> Result<Self, RemoteError> {
        Self::local(path, Some(bucket.to_owned()), &format!("dir:{}", path.display()))
    }

    fn local(path: &Path, only: Option<String>, name: &str) -> Result<Self, RemoteError> {
        let failed = |error: &dyn std::fmt::Display| RemoteError::Service(name.to_owned(), error.to_string());
        let root = path.canonicalize().map_err(|error| failed(&error))?;
        if !root.is_dir() {
            return Err(failed(&"it is not a folder"));
        }
        let text = root.to_str().ok_or_else(|| failed(&"its path is no UTF-8"))?;
        let own = root.join(OWN);
        // Where nothing can be written, everything can still be read.
        let writable = std::fs::create_dir_all(own.join("new")).is_ok();
        let attributes = writable && keeps_attributes(&own);
        let mut builder = opendal::services::Fs::default().root(text);
        if writable {
            builder = builder.atomic_write_dir(&own.join("new").to_string_lossy());
        }
        let op = Operator::new(builder).map_err(|error| failed(&error))?;
        Ok(Self::new(op, only, Some(root), attributes))
    }

    fn new(op: Operator, only: Option<String>, local: Option<PathBuf>, attributes: bool) -> Self {
        // Seconds without progress, and repetitions of what is idempotent: about a minute at most, as with S3.
        let timeout =
            TimeoutLayer::new().with_timeout(Duration::from_secs(30)).with_io_timeout(Duration::from_secs(30));
        let retry = RetryLayer::new()
            .with_jitter()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(Duration::from_secs(3))
            .with_max_times(4);
        let op = op.layer(timeout).layer(retry);
        let locks = (0..LOCKS).map(|_| Mutex::new(())).collect();
        Self { op, only, local, attributes, locks }
    }

    /// The folder of a bucket: empty, or with a slash behind it.
    fn root(&self, bucket: &str) -> Result<String> {
        match &self.only {
            Some(only) if only == bucket => Ok(String::new()),
            Some(_) => Err(StoreError::NoSuchBucket),
            None if bucket.starts_with('.') || bucket.contains('/') => Err(StoreError::NoSuchBucket),
            None => Ok(format!("{bucket}/")),
        }
    }

    /// The path of a key, if it can be one.
    async fn path(&self, bucket: &str, key: &str) -> Result<String> {
        let root = self.root(bucket)?;
        if !fits(key) {
            return Err(StoreError::Unfit(format!(
                "The key '{key}' cannot be a path here: no segment may be empty, '.', '..' or longer than 255 bytes, it \
                 must not start or end with white space, have a zero byte, or start with '{OWN}'"
            )));
        }
        let path = format!("{root}{key}");
        self.inside(&path).await?;
        Ok(path)
    }

    /// Refuses a path that a symbolic link leads out of the tree.
    async fn inside(&self, path: &str) -> Result<()> {
        let Some(root) = &self.local else { return Ok(()) };
        let (root, mut path) = (root.clone(), root.join(path));
        let outside = tokio::task::spawn_blocking(move || {
            loop {
                match path.canonicalize() {
                    Ok(real) => return !real.starts_with(&root),
                    // A link to nowhere may become one to somewhere.
                    Err(_) if path.symlink_metadata().is_ok_and(|there| there.is_symlink()) => return true,
                    // What is not there yet is where its parent is.
                    Err(_) if path.pop() && path.starts_with(&root) => {}
                    Err(_) => return true,
                }
            }
        });
        if outside.await.unwrap_or(true) {
            return Err(StoreError::Unfit("A symbolic link leads out of the folder".into()));
        }
        Ok(())
    }

    async fn lock(&self, path: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let at = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or_default();
        self.locks[at].lock().await
    }

    async fn stat(&self, path: &str) -> Result<ObjectInfo> {
        let there = self.op.stat(path).await.map_err(|error| failed(&error))?;
        if there.mode() != EntryMode::FILE {
            return Err(StoreError::NoSuchKey);
        }
        self.info(path, &there).await
    }

    /// What a file is as an object.
    async fn info(&self, path: &str, there: &opendal::Metadata) -> Result<ObjectInfo> {
        let modified = there.last_modified().map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
        let etag = match &self.local {
            Some(root) => {
                let there = tokio::task::spawn_blocking({
                    let path = root.join(path);
                    move || path.metadata()
                });
                let there = there.await.map_err(|error| StoreError::Internal(error.to_string()))?;
                let there = there.map_err(|error| io_failed(&error))?;
                format!("{:x}{:08x}-{:x}-{:x}", there.mtime(), there.mtime_nsec(), there.size(), there.ino())
            }
            None => match there.etag() {
                Some(etag) => etag.trim_start_matches("W/").trim_matches('"').to_owned(),
                None => made_etag(modified, there.content_length()),
            },
        };
        let user = |meta: &opendal::Metadata| {
            let pairs = meta.user_metadata().into_iter().flat_map(|pairs| pairs.into_iter());
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<std::collections::BTreeMap<_, _>>()
        };
        let meta = if self.local.is_some() {
            user(there).get(META).and_then(|text| parts::read_meta(text)).unwrap_or_default()
        } else {
            let own = |text: Option<&str>| text.map(str::to_owned);
            Metadata {
                content_type: own(there.content_type()),
                content_encoding: own(there.content_encoding()),
                content_disposition: own(there.content_disposition()),
                cache_control: own(there.cache_control()),
                user: user(there),
                ..Metadata::default()
            }
        };
        Ok(ObjectInfo {
            size: there.content_length(),
            etag,
            modified,
            meta,
            checksums: Vec::new(),
            parts: Vec::new(),
            tags: Tags::new(),
            version: None,
        })
    }

    /// How a file of that metadata is written.
    fn options(&self, meta: &Metadata, tags: &Tags, condition: &Condition) -> Result<WriteOptions> {
        if !tags.is_empty() {
            return Err(StoreError::NotSupported("object tags"));
        }
        let mut options = WriteOptions::default();
        if self.local.is_some() {
            if self.attributes && *meta != Metadata::default() {
                let text = parts::write_meta(meta);
                if text.len() > MAX_META {
                    return Err(StoreError::Unfit(format!(
                        "The metadata takes {} bytes, and a file here can keep {MAX_META}",
                        text.len()
                    )));
                }
                options.user_metadata = Some([(META.to_owned(), text)].into());
            }
            return Ok(options);
        }
        let can = self.op.info().capability();
        let take = |can: bool, value: &Option<String>| value.clone().filter(|_| can);
        options.content_type = take(can.write_with_content_type, &meta.content_type);
        options.content_encoding = take(can.write_with_content_encoding, &meta.content_encoding);
        options.content_disposition = take(can.write_with_content_disposition, &meta.content_disposition);
        options.cache_control = take(can.write_with_cache_control, &meta.cache_control);
        if can.write_with_user_metadata && !meta.user.is_empty() {
            options.user_metadata = Some(meta.user.clone().into_iter().collect());
        }
        match condition {
            Condition::None => {}
            Condition::Absent if can.write_with_if_not_exists => options.if_not_exists = true,
            Condition::Match(etag) if can.write_with_if_match => options.if_match = Some(format!("\"{etag}\"")),
            _ => return Err(StoreError::NotSupported("such a condition on a write")),
        }
        Ok(options)
    }

    /// Checks a condition in the moment that counts. Elsewhere than on this machine the service does it.
    async fn check(&self, path: &str, started: &Condition, condition: &Condition) -> Result<()> {
        if *condition == Condition::None {
            return Ok(());
        }
        if self.local.is_none() {
            return if started == condition {
                Ok(())
            } else {
                Err(StoreError::NotSupported("a condition that comes behind the content"))
            };
        }
        match self.stat(path).await {
            Ok(info) => condition.check(Some(&info.etag)),
            Err(StoreError::NoSuchKey) => condition.check(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a file. `fill` gives it its content, and says how it is to become visible.
    async fn write(
        &self,
        path: &str,
        options: WriteOptions,
        started: &Condition,
        content: &mut (dyn Fill + '_),
    ) -> Result<(ObjectInfo, Commit)> {
        let mut writer = self.op.writer_options(path, options).await.map_err(|error| failed(&error))?;
        let done = async {
            let commit = content.fill(&mut writer).await?;
            let lock = self.lock(path).await;
            self.check(path, started, &commit.condition).await?;
            let made = writer.close().await.map_err(|error| failed(&error))?;
            drop(lock);
            Ok::<_, StoreError>((made, commit))
        };
        match done.await {
            Ok((_, commit)) => Ok((self.stat(path).await?, commit)),
            Err(error) => {
                // The reason is the first error.
                let _ = writer.abort().await;
                Err(error)
            }
        }
    }

    async fn delete_path(&self, path: &str) -> Result<()> {
        match self.op.delete(path).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Sends the bytes of `range` of a file to `out`, after `check` has looked at it. Returns whether somebody listens.
    async fn stream(&self, path: &str, etag: Option<&str>, range: Range<u64>, out: &Pieces) -> Result<bool> {
        let can = self.op.info().capability();
        let options = ReaderOptions {
            if_match: etag.filter(|_| can.read_with_if_match && self.local.is_none()).map(|etag| format!("\"{etag}\"")),
            ..ReaderOptions::default()
        };
        let changed = || StoreError::Unavailable(format!("'{path}' was replaced or deleted while it was being read"));
        let gone = |error: &opendal::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConditionNotMatch => changed(),
            _ => failed(error),
        };
        let reader = self.op.reader_options(path, options).await.map_err(|error| gone(&error))?;
        let mut left = range.end - range.start;
        let mut stream = reader.into_stream(range).await.map_err(|error| gone(&error))?;
        let mut first = true;
        while let Some(piece) = stream.next().await {
            let mut piece = piece.map_err(|error| gone(&error))?;
            if std::mem::take(&mut first)
                && let Some(etag) = etag
            {
                // It is open now, and what is open is what had this name a moment ago.
                match self.stat(path).await {
                    Ok(info) if info.etag == etag => {}
                    Ok(_) | Err(StoreError::NoSuchKey) => return Err(changed()),
                    Err(error) => return Err(error),
                }
            }
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= piece.len() as u64;
            for piece in piece {
                if !out.send(piece).await {
                    return Ok(false);
                }
            }
        }
        if left > 0 {
            return Err(StoreError::Unavailable(format!("'{path}' ended {left} bytes early")));
        }
        Ok(true)
    }

    /// One page, by a walk on a thread that may wait.
    async fn walk(&self, bucket: &str, query: ListQuery) -> Result<list::Page<walk::Found>> {
        let root = self.root(bucket)?;
        let (op, local, handle) = (self.op.clone(), self.local.clone(), Handle::current());
        tokio::task::spawn_blocking(move || list::page(&mut Walk::new(op, local, handle, root), &query))
            .await
            .map_err(|error| StoreError::Internal(format!("a listing has ended: {error}")))?
    }
}

/// Gives a file its content.
#[async_trait]
trait Fill: Send {
    async fn fill(&mut self, writer: &mut opendal::Writer) -> Result<Commit>;
}

#[async_trait]
impl Fill for Body {
    async fn fill(&mut self, writer: &mut opendal::Writer) -> Result<Commit> {
        loop {
            let (piece, commit) = match self.next().await {
                None => return Err(given_up()),
                Some(Step::Piece(piece)) => (piece, None),
                Some(Step::Last(piece, commit)) => (piece, Some(commit)),
            };
            if !piece.is_empty() {
                writer.write(piece).await.map_err(|error| failed(&error))?;
            }
            if let Some(commit) = commit {
                return Ok(commit);
            }
        }
    }
}

/// Whether a file in that folder keeps attributes.
fn keeps_attributes(folder: &Path) -> bool {
    let path = folder.join("attributes");
    let kept = std::fs::write(&path, b"").is_ok()
        && rustix::fs::setxattr(&path, "user.ernic.meta", b"{}", rustix::fs::XattrFlags::empty()).is_ok();
    let _ = std::fs::remove_file(&path);
    kept
}

/// The ETag of what has none: seconds, nanoseconds and size. The dashes tell that it is no MD5.
fn made_etag(modified: SystemTime, size: u64) -> String {
    let time = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}{:08x}-{size:x}-0", time.as_secs(), time.subsec_nanos())
}

/// What an error of the system means.
fn io_failed(error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::NotFound => StoreError::NoSuchKey,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreError::Denied(error.to_string()),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StoreError::InsufficientStorage { needed: 0, free: 0 }
        }
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::DirectoryNotEmpty
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::InvalidFilename => StoreError::Unfit(format!(
            "A file and a folder cannot have the same name, or the name is too long: {error}"
        )),
        _ => StoreError::Internal(error.to_string()),
    }
}

/// What an error of OpenDAL means.
fn failed(error: &opendal::Error) -> StoreError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>()
            && error.raw_os_error().is_some()
        {
            return io_failed(error);
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::NotFound => StoreError::NoSuchKey,
        ErrorKind::PermissionDenied => StoreError::Denied(error.to_string()),
        ErrorKind::RateLimited => StoreError::Unavailable(error.to_string()),
        ErrorKind::ConditionNotMatch => StoreError::PreconditionFailed,
        ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            StoreError::Unfit("A file and a folder cannot have the same name here".into())
        }
        ErrorKind::Unsupported => StoreError::NotSupported("what the store behind it does not have"),
        // What goes on after all repetitions, and what never reached the service.
        _ if error.is_temporary() || error.is_persistent() => StoreError::Unavailable(error.to_string()),
        _ => StoreError::Internal(error.to_string()),
    }
}

#[async_trait]
impl Engine for Files {
    fn only_bucket(&self) -> Option<&str> {
        self.only.as_deref()
    }

    async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        if let Some(only) = &self.only {
            return Ok(vec![self.head_bucket(only).await?]);
        }
        let entries = self.op.list("/").await.map_err(|error| failed(&error))?;
        let mut buckets = Vec::new();
        for entry in entries {
            let name = entry.name().trim_end_matches('/');
            if entry.metadata().mode() == EntryMode::DIR && !name.is_empty() && !name.starts_with('.') {
                let created = entry.metadata().last_modified().map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
                buckets.push(BucketInfo { name: name.to_owned(), created, versioning: Versioning::Off });
            }
        }
        buckets.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(buckets)
    }

    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo> {
        let root = self.root(bucket)?;
        let there = match self.op.stat(if root.is_empty() { "/" } else { &root }).await {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(StoreError::NoSuchBucket),
            Err(error) => return Err(failed(&error)),
        };
        let created = there.last_modified().map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
        Ok(BucketInfo { name: bucket.to_owned(), created, versioning: Versioning::Off })
    }

    async fn create_bucket(&self, bucket: &str) -> Result<bool> {
        match self.head_bucket(bucket).await {
            Ok(_) => return Ok(false),
            Err(StoreError::NoSuchBucket) if self.only.is_some() => {
                return Err(StoreError::NotSupported("buckets other than the one that it is"));
            }
            Err(StoreError::NoSuchBucket) => {}
            Err(error) => return Err(error),
        }
        self.op.create_dir(&self.root(bucket)?).await.map_err(|error| failed(&error))?;
        Ok(true)
    }

    async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        if self.only.is_some() {
            self.root(bucket)?;
            return Err(StoreError::NotSupported("leave to delete its only bucket"));
        }
        self.head_bucket(bucket).await?;
        let page = self.walk(bucket, ListQuery { max: 1, ..ListQuery::default() }).await?;
        if !page.entries.is_empty() {
            return Err(StoreError::BucketNotEmpty);
        }
        self.op.delete_with(&self.root(bucket)?).recursive(true).await.map_err(|error| failed(&error))
    }

    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>> {
        if !matches!(version, None | Some("null")) {
            return Err(StoreError::NoSuchVersion);
        }
        // What cannot be written cannot be there.
        let found = match self.path(bucket, key).await {
            Ok(path) => self.stat(&path).await,
            Err(StoreError::Unfit(_)) if !fits(key) => Err(StoreError::NoSuchKey),
            Err(error) => Err(error),
        };
        match found {
            Ok(info) => Ok(Arc::new(info)),
            Err(StoreError::NoSuchKey | StoreError::Unfit(_)) => {
                self.head_bucket(bucket).await?;
                Err(StoreError::NoSuchKey)
            }
            Err(error) => Err(error),
        }
    }

    async fn read(&self, at: &Place, info: &ObjectInfo, range: Range<u64>, out: &Pieces) -> Result<()> {
        let path = self.path(&at.bucket, &at.key).await?;
        self.stream(&path, Some(&info.etag), range, out).await.map(drop)
    }

    async fn put(&self, bucket: &str, key: &str, options: PutOptions, mut body: Body) -> Result<Arc<ObjectInfo>> {
        let path = self.path(bucket, key).await?;
        self.head_bucket(bucket).await?;
        let write = self.options(&options.meta, &options.tags, &options.condition)?;
        let (info, commit) = self.write(&path, write, &options.condition, &mut body).await?;
        Ok(Arc::new(ObjectInfo { checksums: commit.checksums, meta: options.meta, ..info }))
    }

    /// The services that can copy cannot say what the source must be, or cannot do it in one step.
    async fn copy(&self, _: &Source, _: &str, _: &str, _: &PutOptions, _: &Commit) -> Result<Option<Arc<ObjectInfo>>> {
        Ok(None)
    }

    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted> {
        if !matches!(version, None | Some("null")) {
            return Err(StoreError::NoSuchVersion);
        }
        if condition != Condition::None && self.local.is_none() {
            return Err(StoreError::NotSupported("conditions on a delete"));
        }
        self.head_bucket(bucket).await?;
        if !fits(key) {
            return condition.check(None).map(|()| Deleted::default());
        }
        let path = self.path(bucket, key).await?;
        let _lock = self.lock(&path).await;
        let existed = match self.stat(&path).await {
            Ok(info) => condition.check(Some(&info.etag)).map(|()| true)?,
            Err(StoreError::NoSuchKey | StoreError::Unfit(_)) => condition.check(None).map(|()| false)?,
            Err(error) => return Err(error),
        };
        if existed {
            self.delete_path(&path).await?;
        }
        Ok(Deleted { existed, ..Deleted::default() })
    }

    async fn set_tags(&self, _: &str, _: &str, _: Option<&str>, _: Tags) -> Result<Arc<ObjectInfo>> {
        Err(StoreError::NotSupported("object tags"))
    }

    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage> {
        self.head_bucket(bucket).await?;
        let page = self.walk(bucket, query.clone()).await?;
        let next = page.next();
        let mut objects = Vec::with_capacity(page.entries.len());
        for (key, found) in page.entries {
            let info = match &found.metadata {
                Some(metadata) => self.info(&found.path, metadata).await,
                None => self.stat(&found.path).await,
            };
            match info {
                Ok(info) => objects.push((key, Arc::new(info))),
                // It was there a moment ago.
                Err(StoreError::NoSuchKey) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ListPage { objects, prefixes: page.prefixes, next })
    }

    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        self.start_upload(bucket, key, options).await
    }

    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        self.upload(bucket, key, upload).await
    }

    async fn put_part(&self, at: &PartPlace, _: Option<u64>, body: Body) -> Result<Arc<ObjectInfo>> {
        self.write_part(at, body).await
    }

    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>> {
        Ok(self.parts(bucket, key, upload).await?.iter().map(parts::PartFile::info).collect())
    }

    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        self.uploads(bucket).await
    }

    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        self.join_parts(bucket, key, upload, parts, commit).await
    }

    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        self.upload(bucket, key, upload).await?;
        self.remove_upload(bucket, upload).await
    }
}
