//! The values that stores take and give.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use crate::ObjectData;

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Name.
    pub name: String,
    /// When it was created.
    pub created: SystemTime,
}

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
    /// Sizes of the parts of a multipart object, in order; empty for a simple one.
    pub parts: Vec<u64>,
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
    pub meta: Metadata,
}

/// What a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Visible objects.
    pub objects: u64,
    /// Bytes of objects and parts, including those being written as far as they exceed what they replace.
    pub bytes: u64,
    /// Most bytes that it takes; `u64::MAX` for no limit.
    pub capacity: u64,
    /// Uploads in progress.
    pub uploads: u64,
}
