//! Object stores behind one trait.
//!
//! [`Store`] is what the S3 service needs from "whoever holds the objects": buckets, objects, multipart uploads. Every
//! method may be called at any time from any task; a store never blocks the thread it is called on for longer than a
//! memory copy (disk and network stores do their I/O elsewhere and wake the caller).
//!
//! Bytes stream in both directions: reading yields cheap clones of [`Bytes`], writing fills pieces of the
//! object's own storage ([`ObjectWriter::buffer`]), so that a payload that comes by RDMA is copied exactly once.

mod error;
mod memory;
mod types;

use std::{ops::Range, pin::Pin, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;

pub use error::{Result, StoreError};
pub use memory::{MemoryConfig, MemoryStore};
pub use types::*;

/// Pieces of an object's content, in order.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send + Sync>>;

/// A store of buckets and objects.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// All buckets, in the order of their names.
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>>;

    /// One bucket. Errors: [`StoreError::NoSuchBucket`].
    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo>;

    /// What the object is, without its content.
    async fn head(&self, bucket: &str, key: &str) -> Result<Arc<ObjectInfo>>;

    /// A snapshot of the object: what it is, and its content. A later overwrite or delete does not change it.
    async fn get(&self, bucket: &str, key: &str) -> Result<Object>;

    /// Starts an object. Nothing is visible until [`ObjectWriter::commit`]; dropping the writer gives everything back.
    ///
    /// With [`PutOptions::size`] known, a store that cannot hold the object refuses here, before any byte is read.
    async fn put(&self, bucket: &str, key: &str, options: PutOptions) -> Result<Box<dyn ObjectWriter>>;

    /// Deletes an object; deleting what is not there is no error. Returns whether it was there.
    async fn delete(&self, bucket: &str, key: &str) -> Result<bool>;

    /// One page of a bucket's keys in ascending byte order.
    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage>;

    /// Starts a multipart upload and returns its id.
    async fn create_upload(&self, bucket: &str, key: &str, meta: Metadata) -> Result<String>;

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
    /// checked order and ETags against [`Store::list_parts`]; a part that is gone is [`StoreError::NoSuchPart`].
    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[u16],
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
