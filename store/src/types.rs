//! The values that stores take and give.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use crate::{ObjectData, Result, StoreError};

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Name.
    pub name: String,
    /// When it was created.
    pub created: SystemTime,
    /// Whether it keeps what is overwritten and deleted.
    pub versioning: Versioning,
}

/// Whether a bucket keeps what is overwritten and deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Versioning {
    /// It never has.
    #[default]
    Off,
    /// Every write makes a version with an id of its own.
    Enabled,
    /// Writes replace the version `null`; others stay.
    Suspended,
}

/// Tags: keys and values, in the order in which they were given. The caller has checked them.
pub type Tags = Vec<(String, String)>;

/// What a client said about an object, given back as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// `content-type`.
    pub content_type: Option<String>,
    /// `content-encoding`, without `aws-chunked`.
    pub content_encoding: Option<String>,
    /// `content-language`.
    pub content_language: Option<String>,
    /// `content-disposition`.
    pub content_disposition: Option<String>,
    /// `cache-control`.
    pub cache_control: Option<String>,
    /// `expires`, as the client wrote it.
    pub expires: Option<String>,
    /// `x-amz-meta-*`, without the prefix, in lower case.
    pub user: BTreeMap<String, String>,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: String,
    /// When it was committed.
    pub modified: SystemTime,
    /// What the client said about it.
    pub meta: Metadata,
    /// Checksums in S3's spelling, e.g. `("CRC64NVME", "<base64>")`.
    pub checksums: Vec<(String, String)>,
    /// The parts of a multipart object, in order; empty for a simple one.
    pub parts: Vec<ObjectPart>,
    /// Tags.
    pub tags: Tags,
    /// The version's id; `None` for the version that S3 calls `null`.
    pub version: Option<String>,
}

/// A part of a complete multipart object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPart {
    /// The number that it was uploaded under.
    pub number: u16,
    /// Bytes.
    pub size: u64,
    /// Checksums, as in [`ObjectInfo::checksums`].
    pub checksums: Vec<(String, String)>,
}

/// An object: what it is, and its content.
#[derive(Debug, Clone)]
pub struct Object {
    /// What it is.
    pub info: Arc<ObjectInfo>,
    /// Its content.
    pub data: Arc<dyn ObjectData>,
}

/// How an object is started.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Bytes that will come, where the client said.
    pub size: Option<u64>,
    /// What the client said about it.
    pub meta: Metadata,
    /// Tags.
    pub tags: Tags,
    /// The condition that the commit will have, where it is known by now: a store that passes the content on as it comes
    /// has to say it first. [`Commit::condition`] is what counts.
    pub condition: Condition,
}

/// The object that is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Bucket.
    pub bucket: String,
    /// Key.
    pub key: String,
    /// Version.
    pub version: Option<String>,
    /// ETag that it must have, without quotes.
    pub etag: String,
}

/// How a multipart upload is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UploadOptions {
    /// What the client said about the object.
    pub meta: Metadata,
    /// Tags of the object.
    pub tags: Tags,
    /// The checksum that the client said it would use.
    pub checksum: Option<UploadChecksum>,
}

/// The checksum of a multipart upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadChecksum {
    /// Algorithm in S3's spelling, e.g. `CRC64NVME`.
    pub algorithm: String,
    /// Whether it is of the whole object; else it is composed of the parts' checksums.
    pub full_object: bool,
}

/// A part that goes into a complete object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartName {
    /// 1..=10,000.
    pub number: u16,
    /// ETag without quotes.
    pub etag: String,
}

/// What a delete did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Whether there was something to delete.
    pub existed: bool,
    /// Whether a delete marker was made, or, with a version named, deleted.
    pub marker: bool,
    /// The version that was made or deleted, as S3 spells it (`null` too); `None` in a bucket that never had versioning.
    pub version: Option<String>,
}

/// How an object or part becomes visible.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// ETag without quotes.
    pub etag: String,
    /// Checksums to keep, in S3's spelling.
    pub checksums: Vec<(String, String)>,
    /// Checked in the same step that makes the object visible.
    pub condition: Condition,
}

/// A condition on what is there at commit time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// Replace whatever is there.
    #[default]
    None,
    /// Only if there is nothing (`if-none-match: *`).
    Absent,
    /// Only over an object of this ETag (`if-match`).
    Match(String),
    /// Only over an object, whatever it is (`if-match: *`).
    Present,
    /// Only if there is nothing of this ETag (`if-none-match`).
    Differs(String),
}

impl Condition {
    /// Checks the condition against the ETag of what is there.
    ///
    /// # Errors
    ///
    /// [`StoreError::PreconditionFailed`]; and [`StoreError::NoSuchKey`] where an object was to be there and is not, as
    /// in S3.
    pub fn check(&self, there: Option<&str>) -> Result<()> {
        match (self, there) {
            (Self::None, _) | (Self::Absent | Self::Differs(_), None) | (Self::Present, Some(_)) => Ok(()),
            (Self::Match(etag), Some(there)) if etag == there => Ok(()),
            (Self::Differs(etag), Some(there)) if etag != there => Ok(()),
            (Self::Match(_) | Self::Present, None) => Err(StoreError::NoSuchKey),
            (Self::Absent | Self::Match(_) | Self::Differs(_), Some(_)) => Err(StoreError::PreconditionFailed),
        }
    }
}

/// Which keys to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// Keys must start with this.
    pub prefix: String,
    /// Groups keys up to its first occurrence behind the prefix; empty for none.
    pub delimiter: String,
    /// Only keys (and groups) after this one; empty for the beginning.
    pub after: String,
    /// At most this many keys and groups together.
    pub max: usize,
}

/// One page of a listing.
#[derive(Debug, Clone, Default)]
pub struct ListPage {
    /// Keys, ascending.
    pub objects: Vec<(String, Arc<ObjectInfo>)>,
    /// Groups, ascending, each ending in the delimiter.
    pub prefixes: Vec<String>,
    /// Where the next page begins ([`ListQuery::after`]): the last key or group of this page, if there is more.
    pub next: Option<String>,
}

/// Which versions to list.
#[derive(Debug, Clone, Default)]
pub struct VersionQuery {
    /// Keys must start with this.
    pub prefix: String,
    /// Groups keys up to its first occurrence behind the prefix; empty for none.
    pub delimiter: String,
    /// Only what comes after this key, or after this group; empty for the beginning.
    pub after: String,
    /// With it, the versions of the key `after` itself that come after this one, as S3 spells it.
    pub after_version: Option<String>,
    /// At most this many versions and groups together.
    pub max: usize,
}

/// One page of a listing of versions.
#[derive(Debug, Clone, Default)]
pub struct VersionPage {
    /// Versions: keys ascending, newest first.
    pub versions: Vec<VersionEntry>,
    /// Groups, ascending, each ending in the delimiter.
    pub prefixes: Vec<String>,
    /// Where the next page begins ([`VersionQuery::after`] and [`VersionQuery::after_version`]), if there is more: the last
    /// entry of this page; a group has no version.
    pub next: Option<(String, Option<String>)>,
}

/// A version of an object, or a delete marker.
#[derive(Debug, Clone)]
pub struct VersionEntry {
    /// Key.
    pub key: String,
    /// Whether it is the current one.
    pub latest: bool,
    /// The version's id; `None` for the version that S3 calls `null`.
    pub version: Option<String>,
    /// When it was made.
    pub modified: SystemTime,
    /// What it is; `None` for a delete marker.
    pub info: Option<Arc<ObjectInfo>>,
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartInfo {
    /// 1..=10,000.
    pub number: u16,
    /// What it is.
    pub info: Arc<ObjectInfo>,
}

/// An upload in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadInfo {
    /// Id.
    pub upload: String,
    /// Key that it will make.
    pub key: String,
    /// When it was started.
    pub started: SystemTime,
    /// What the object will carry.
    pub options: UploadOptions,
}

/// What a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects, their older versions included. Delete markers are none.
    pub objects: u64,
    /// Bytes of objects and parts, including those being written as far as they exceed what they replace.
    pub bytes: u64,
    /// Most bytes that it takes; `u64::MAX` for no limit.
    pub capacity: u64,
    /// Uploads in progress.
    pub uploads: u64,
}
