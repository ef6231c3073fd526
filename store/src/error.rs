//! What a store can refuse.

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such bucket.
    #[error("no such bucket")]
    NoSuchBucket,
    /// There is no such object.
    #[error("no such key")]
    NoSuchKey,
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
