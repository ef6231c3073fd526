//! Object stores behind one trait.
//!
//! [`Store`] is what the S3 service needs from "whoever holds the objects": buckets, objects, multipart uploads. Every
//! method may be called at any time from any task; a store never blocks the thread it is called on for longer than a
//! memory copy (disk and network stores do their I/O elsewhere and wake the caller).
//!
//! Bytes stream in both directions: reading yields cheap clones of [`Bytes`], writing fills pieces of the
//! object's own storage ([`ObjectWriter::buffer`]), so that a payload that comes by RDMA is copied exactly once.

mod disk;
mod error;
pub mod list;
mod memory;
#[cfg(feature = "remote")]
mod remote;
mod types;

use std::{ops::Range, pin::Pin, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;

pub use disk::{DiskConfig, DiskStore, Durability, OpenError};
pub use error::{Result, StoreError};
pub use memory::{MemoryConfig, MemoryStore};
#[cfg(feature = "remote")]
pub use remote::{Credentials, RemoteError, RemoteStore, RemoteUrl};
pub use types::*;

/// Pieces of an object's content, in order.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send + Sync>>;

/// A store of buckets and objects.
///
/// A *version* is named as S3 names it: `None` is the current one, `Some("null")` the one that was written while
/// versioning was off or suspended, anything else the id in [`ObjectInfo::version`]. A store that cannot do what a method
/// asks says [`StoreError::NotSupported`], which is what the methods with a body here do.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// All buckets, in the order of their names.
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>>;

    /// One bucket. Errors: [`StoreError::NoSuchBucket`].
    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo>;

    /// Makes a bucket, whose name the caller has checked. Returns whether it is new; one that is there stays as it is.
    async fn create_bucket(&self, bucket: &str) -> Result<bool>;

    /// Deletes a bucket and its uploads in progress. Errors: [`StoreError::BucketNotEmpty`] while it has any object,
    /// version or delete marker.
    async fn delete_bucket(&self, bucket: &str) -> Result<()>;

    /// Whether a bucket keeps versions. Asked for with most requests, so that a store for which [`Store::head_bucket`] is far
    /// should know it without. Errors: [`StoreError::NoSuchBucket`], where that is known.
    async fn versioning(&self, bucket: &str) -> Result<Versioning> {
        Ok(self.head_bucket(bucket).await?.versioning)
    }

    /// Turns versioning on, or suspends it. It can never be [`Versioning::Off`] again.
    async fn set_versioning(&self, _bucket: &str, _versioning: Versioning) -> Result<()> {
        Err(StoreError::NotSupported("versioning"))
    }

    /// The bucket's tags; empty if it has none.
    async fn bucket_tags(&self, _bucket: &str) -> Result<Tags> {
        Err(StoreError::NotSupported("bucket tags"))
    }

    /// Replaces the bucket's tags; an empty list removes them.
    async fn set_bucket_tags(&self, _bucket: &str, _tags: Tags) -> Result<()> {
        Err(StoreError::NotSupported("bucket tags"))
    }

    /// What the object is, without its content. Errors: [`StoreError::NoSuchKey`], [`StoreError::NoSuchVersion`],
    /// [`StoreError::DeleteMarker`].
    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>>;

    /// A snapshot of the object: what it is, and its content. A later overwrite or delete does not change it. Errors are
    /// those of [`Store::head`].
    async fn get(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object>;

    /// Starts an object. Nothing is visible until [`ObjectWriter::commit`]; dropping the writer gives everything back.
    ///
    /// With [`PutOptions::size`] known, a store that cannot hold the object refuses here, before any byte is read.
    async fn put(&self, bucket: &str, key: &str, options: PutOptions) -> Result<Box<dyn ObjectWriter>>;

    /// Makes an object with the content of another, without moving its bytes, where the store can: `None` if it cannot,
    /// and then the caller streams. The source must still be the one of `source.etag`, else
    /// [`StoreError::PreconditionFailed`].
    async fn copy(
        &self,
        _source: &Source,
        _bucket: &str,
        _key: &str,
        _options: &PutOptions,
        _commit: &Commit,
    ) -> Result<Option<Arc<ObjectInfo>>> {
        Ok(None)
    }

    /// Deletes an object; deleting what is not there is no error. With versioning on or suspended and no `version` this
    /// makes a delete marker (a suspended bucket's replaces the null version); with a `version` that one is gone for good.
    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted>;

    /// Replaces the tags of an object; an empty list removes them. Returns what it is now. Errors are those of
    /// [`Store::head`].
    async fn set_tags(
        &self,
        _bucket: &str,
        _key: &str,
        _version: Option<&str>,
        _tags: Tags,
    ) -> Result<Arc<ObjectInfo>> {
        Err(StoreError::NotSupported("object tags"))
    }

    /// One page of a bucket's keys in ascending byte order: the current versions that are no delete markers.
    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage>;

    /// One page of all versions and delete markers: keys in ascending byte order, the newest version of each first.
    async fn list_versions(&self, _bucket: &str, _query: &VersionQuery) -> Result<VersionPage> {
        Err(StoreError::NotSupported("versions"))
    }

    /// Starts a multipart upload and returns its id.
    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String>;

    /// What an upload is.
    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo>;

    /// Starts one part (1..=10,000) of an upload; an earlier part of that number is replaced at commit.
    async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u16,
        size: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>>;

    /// The parts that an upload has so far, by number.
    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>>;

    /// The uploads in progress of a bucket, by key and id.
    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>>;

    /// Makes the object out of the named parts, in that order; parts that are not named are discarded. The caller has
    /// checked order and ETags against [`Store::list_parts`]; a part that is gone, or whose ETag is not the named one any
    /// more, is [`StoreError::NoSuchPart`].
    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>>;

    /// Discards an upload and its parts.
    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()>;

    /// What is in use, for metrics and tests.
    fn usage(&self) -> Usage;
}

/// An object's content: a snapshot that can be read any number of times.
pub trait ObjectData: Send + Sync + std::fmt::Debug {
    /// The bytes of `range`, which is clipped to the object, as a stream of pieces of at most 1 MiB.
    fn read(&self, range: Range<u64>) -> ByteStream;
}

/// Receives the content of one object or part.
#[async_trait]
pub trait ObjectWriter: Send + Sync {
    /// A piece of the object's own storage to be filled next: at least 1 byte, at most `want` (and at most 1 MiB).
    /// Call [`ObjectWriter::advance`] with what was filled. Errors: [`StoreError::InsufficientStorage`].
    async fn buffer(&mut self, want: usize) -> Result<&mut [u8]>;

    /// Says that the first `n` bytes of the last buffer are content. Panics if `n` is longer than that buffer.
    fn advance(&mut self, n: usize);

    /// Bytes taken so far.
    fn written(&self) -> u64;

    /// Makes the object (or part) visible, replacing what was there in one step.
    async fn commit(self: Box<Self>, commit: Commit) -> Result<Arc<ObjectInfo>>;
}
