//! What a store can refuse.

use std::time::SystemTime;

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such bucket.
    #[error("no such bucket")]
    NoSuchBucket,
    /// There is no such object.
    #[error("no such key")]
    NoSuchKey,
    /// The object has no such version.
    #[error("no such version")]
    NoSuchVersion,
    /// What was asked for is a delete marker.
    #[error("a delete marker")]
    DeleteMarker {
        /// Its version as S3 spells it.
        version: String,
        /// Whether it was found as the current version; else it was named.
        current: bool,
        /// When it was made.
        modified: SystemTime,
    },
    /// A bucket that is to be deleted still has something in it.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// There are as many buckets as there may be.
    #[error("there are {0} buckets, and there may be no more")]
    TooManyBuckets(usize),
    /// The store cannot do that at all.
    #[error("this store has no {0}")]
    NotSupported(&'static str),
    /// The store cannot hold a key, or something else that was said, although S3 allows it: what, and why not.
    #[error("{0}")]
    Unfit(String),
    /// A store behind this one refuses: it says why.
    #[error("refused by the store behind this one: {0}")]
    Denied(String),
    /// A store behind this one does not answer, or asks for patience.
    #[error("the store behind this one is not available: {0}")]
    Unavailable(String),
    /// There is no such multipart upload.
    #[error("no such upload")]
    NoSuchUpload,
    /// The upload has no such part.
    #[error("no such part {0}")]
    NoSuchPart(u16),
    /// The store's bytes are used up: `needed` more bytes, `free` left.
    #[error("not enough room: {needed} bytes needed, {free} free")]
    InsufficientStorage {
        /// Bytes that the operation would add.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// The store's object slots are used up.
    #[error("all {0} object slots are in use")]
    NoSlots(u64),
    /// A condition of the commit does not hold.
    #[error("precondition failed")]
    PreconditionFailed,
    /// The store itself failed.
    #[error("store failure: {0}")]
    Internal(String),
}
