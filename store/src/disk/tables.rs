//! The tables in `meta.redb`, and the encoding of their values (docs/src/disk-format.md).

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use redb::TableDefinition;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    BucketInfo, Metadata, ObjectInfo, ObjectPart, PartInfo, Result, StoreError, Tags, UploadChecksum, UploadInfo,
    UploadOptions, Versioning,
};

/// Buckets by name: [`Bucket`].
pub(super) const BUCKETS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("buckets");

/// Versions by bucket, key and place: [`Version`]. The newest of a key comes first, as the place is [`place_of`] its serial.
pub(super) const VERSIONS: TableDefinition<'_, (&str, &str, u64), &[u8]> = TableDefinition::new("versions");

/// The serial of the version `null` of a bucket and key, where it is not 0, which it is until versioning is turned on.
pub(super) const NULLS: TableDefinition<'_, (&str, &str), u64> = TableDefinition::new("nulls");

/// Contents by id: [`Content`], followed by the bytes if they are few.
pub(super) const CONTENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("contents");

/// Uploads in progress by bucket, key and id: [`Upload`].
pub(super) const UPLOADS: TableDefinition<'_, (&str, &str, &str), &[u8]> = TableDefinition::new("uploads");

/// Parts of uploads by upload and number: [`Part`].
pub(super) const PARTS: TableDefinition<'_, (&str, u16), &[u8]> = TableDefinition::new("parts");

/// Numbers by name: [`EPOCH`].
pub(super) const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

/// How often the store has been opened: the upper bits of all serials of that time.
pub(super) const EPOCH: &str = "epoch";

/// Serials of one epoch: 2^40 writes, and 2^24 epochs.
pub(super) const EPOCH_SHIFT: u32 = 40;

/// First byte of every value. Another one is another encoding.
const ENCODING: u8 = 1;

/// Where the version of this serial is among those of its key: newest first.
pub(super) const fn place_of(serial: u64) -> u64 {
    u64::MAX - serial
}

/// The id of a version, as S3 shows it.
pub(super) fn version_id(serial: u64) -> String {
    format!("{serial:016x}")
}

/// The serial of a version's id.
pub(super) fn serial_of(version: &str) -> Option<u64> {
    let plain = version.len() == 16 && version.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u64::from_str_radix(version, 16).ok()).flatten()
}

/// A time, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Time(u64);

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Time> for SystemTime {
    fn from(time: Time) -> Self {
        Self::UNIX_EPOCH + Duration::from_nanos(time.0)
    }
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bucket {
    pub(super) created: Time,
    /// 0 off, 1 enabled, 2 suspended.
    versioning: u8,
    pub(super) tags: Tags,
}

impl Bucket {
    pub(super) fn new() -> Self {
        Self { created: SystemTime::now().into(), versioning: 0, tags: Vec::new() }
    }

    pub(super) fn versioning(&self) -> Versioning {
        match self.versioning {
            0 => Versioning::Off,
            1 => Versioning::Enabled,
            _ => Versioning::Suspended,
        }
    }

    pub(super) fn set_versioning(&mut self, versioning: Versioning) {
        self.versioning = match versioning {
            Versioning::Off => 0,
            Versioning::Enabled => 1,
            Versioning::Suspended => 2,
        };
    }

    pub(super) fn info(&self, name: &str) -> BucketInfo {
        BucketInfo { name: name.to_owned(), created: self.created.into(), versioning: self.versioning() }
    }
}

/// What a client said about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    content_type: Option<String>,
    content_encoding: Option<String>,
    content_language: Option<String>,
    content_disposition: Option<String>,
    cache_control: Option<String>,
    expires: Option<String>,
    user: BTreeMap<String, String>,
}

impl From<Metadata> for Meta {
    fn from(meta: Metadata) -> Self {
        let Metadata {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            expires,
            user,
        } = meta;
        Self { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    }
}

impl From<Meta> for Metadata {
    fn from(meta: Meta) -> Self {
        let Meta {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            expires,
            user,
        } = meta;
        Self { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    }
}

/// A version of an object, or a delete marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) modified: Time,
    /// Whether it is the one that S3 calls `null`.
    pub(super) null: bool,
    /// `None` for a delete marker.
    pub(super) object: Option<Described>,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) size: u64,
    pub(super) etag: String,
    pub(super) meta: Meta,
    pub(super) checksums: Vec<(String, String)>,
    pub(super) tags: Tags,
    /// Its content's id.
    pub(super) content: u64,
    /// Whether the content lists the object's parts.
    pub(super) multipart: bool,
}

impl Described {
    /// What the object is, as the store says it.
    pub(super) fn info(self, version: &VersionOf, parts: Vec<ObjectPart>) -> ObjectInfo {
        ObjectInfo {
            size: self.size,
            etag: self.etag,
            modified: version.modified.into(),
            meta: self.meta.into(),
            checksums: self.checksums,
            parts,
            tags: self.tags,
            version: version.id(),
        }
    }
}

/// Which version something is.
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionOf {
    pub(super) serial: u64,
    pub(super) null: bool,
    pub(super) modified: Time,
}

impl VersionOf {
    /// The id; `None` for `null`.
    pub(super) fn id(&self) -> Option<String> {
        (!self.null).then(|| version_id(self.serial))
    }

    /// The id as S3 spells it.
    pub(super) fn spelled(&self) -> String {
        self.id().unwrap_or_else(|| "null".to_owned())
    }
}

/// Where the bytes of objects are. An object and its copies share one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    /// Versions that have it.
    pub(super) refs: u32,
    /// Its parts, if it was uploaded in parts.
    pub(super) parts: Vec<ContentPart>,
    /// Its files, in order; without any, the bytes follow this value.
    pub(super) files: Vec<DataFile>,
}

/// A part of an object that was uploaded in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContentPart {
    number: u16,
    size: u64,
    checksums: Vec<(String, String)>,
}

impl From<ObjectPart> for ContentPart {
    fn from(part: ObjectPart) -> Self {
        Self { number: part.number, size: part.size, checksums: part.checksums }
    }
}

impl From<ContentPart> for ObjectPart {
    fn from(part: ContentPart) -> Self {
        Self { number: part.number, size: part.size, checksums: part.checksums }
    }
}

/// A file in `objects/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DataFile {
    pub(super) id: u64,
    /// Bytes.
    pub(super) size: u64,
}

/// An upload in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Upload {
    started: Time,
    pub(super) meta: Meta,
    pub(super) tags: Tags,
    /// Algorithm, and whether it is of the whole object.
    checksum: Option<(String, bool)>,
}

impl Upload {
    pub(super) fn new(options: UploadOptions) -> Self {
        Self {
            started: SystemTime::now().into(),
            meta: options.meta.into(),
            tags: options.tags,
            checksum: options.checksum.map(|checksum| (checksum.algorithm, checksum.full_object)),
        }
    }

    pub(super) fn info(self, key: &str, upload: &str) -> UploadInfo {
        let checksum = self.checksum.map(|(algorithm, full_object)| UploadChecksum { algorithm, full_object });
        UploadInfo {
            upload: upload.to_owned(),
            key: key.to_owned(),
            started: self.started.into(),
            options: UploadOptions { meta: self.meta.into(), tags: self.tags, checksum },
        }
    }
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) etag: String,
    pub(super) modified: Time,
    pub(super) checksums: Vec<(String, String)>,
    /// Its file; an empty part has none.
    pub(super) file: Option<DataFile>,
}

impl Part {
    pub(super) fn size(&self) -> u64 {
        self.file.map_or(0, |file| file.size)
    }

    pub(super) fn info(self, number: u16) -> PartInfo {
        let info = ObjectInfo {
            size: self.size(),
            etag: self.etag,
            modified: self.modified.into(),
            meta: Metadata::default(),
            checksums: self.checksums,
            parts: Vec::new(),
            tags: Vec::new(),
            version: None,
        };
        PartInfo { number, info: info.into() }
    }
}

/// The encoding of a value.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_extend(value, vec![ENCODING]).map_err(|error| damaged(&format!("a value cannot be encoded: {error}")))
}

/// The value that is encoded in the whole of `bytes`.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let (value, rest) = decode_some(bytes)?;
    if rest.is_empty() { Ok(value) } else { Err(damaged("a value is followed by something")) }
}

fn decode_some<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8])> {
    match bytes.split_first() {
        Some((&ENCODING, rest)) => {
            postcard::take_from_bytes(rest).map_err(|error| damaged(&format!("a value is malformed: {error}")))
        }
        Some((encoding, _)) => Err(damaged(&format!("a value has the unknown encoding {encoding}"))),
        None => Err(damaged("a value is empty")),
    }
}

/// A content with its bytes, which are only there if it has no files.
pub(super) fn encode_content(content: &Content, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut value = encode(content)?;
    value.extend_from_slice(bytes);
    Ok(value)
}

pub(super) fn decode_content(value: &[u8]) -> Result<(Content, Bytes)> {
    let (content, bytes): (Content, _) = decode_some(value)?;
    if !content.files.is_empty() && !bytes.is_empty() {
        return Err(damaged("a content has files, and bytes too"));
    }
    Ok((content, Bytes::copy_from_slice(bytes)))
}

/// The files of an encoded content.
pub(super) fn content_files(value: &[u8]) -> Result<impl Iterator<Item = u64> + use<>> {
    let (content, _): (Content, _) = decode_some(value)?;
    Ok(content.files.into_iter().map(|file| file.id))
}

/// The metadata is not what this program writes.
pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Internal(format!("the metadata file is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        "\\PC{0,12}"
    }

    fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
        prop::collection::vec((text(), text()), 0..4)
    }

    fn meta() -> impl Strategy<Value = Meta> {
        let some = || prop::option::of(text());
        let user = prop::collection::btree_map(text(), text(), 0..4);
        (some(), some(), some(), some(), some(), some(), user).prop_map(|(a, b, c, d, e, f, user)| Meta {
            content_type: a,
            content_encoding: b,
            content_language: c,
            content_disposition: d,
            cache_control: e,
            expires: f,
            user,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn versions_come_back(
            modified: u64, null: bool, size: u64, etag in text(), meta in meta(), checksums in pairs(), tags in pairs(),
            content: u64, multipart: bool, marker: bool,
        ) {
            let object = Described { size, etag, meta: meta.clone(), checksums, tags, content, multipart };
            prop_assert_eq!(&Meta::from(Metadata::from(meta.clone())), &meta);
            let version = Version { modified: Time(modified), null, object: (!marker).then_some(object) };
            let bytes = encode(&version).unwrap();
            prop_assert_eq!(&decode::<Version>(&bytes).unwrap(), &version);
            // Whatever is missing is noticed.
            for cut in 0..bytes.len() {
                prop_assert!(decode::<Version>(&bytes[..cut]).is_err(), "{}", cut);
            }
        }

        #[test]
        fn contents_come_back(refs: u32, files in prop::collection::vec((any::<u64>(), any::<u64>()), 0..4), inline: Vec<u8>) {
            let files: Vec<_> = files.into_iter().map(|(id, size)| DataFile { id, size }).collect();
            let inline = if files.is_empty() { inline } else { Vec::new() };
            let content = Content { refs, parts: Vec::new(), files };
            let (got, bytes) = decode_content(&encode_content(&content, &inline).unwrap()).unwrap();
            prop_assert_eq!(got, content);
            prop_assert_eq!(&bytes[..], &inline[..]);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let mut bytes = bytes;
            for first in [None, Some(ENCODING)] {
                if let (Some(first), Some(byte)) = (first, bytes.first_mut()) {
                    *byte = first;
                }
                let _ = (decode::<Version>(&bytes), decode::<Part>(&bytes), decode::<Upload>(&bytes));
                let _ = (decode::<Bucket>(&bytes), decode_content(&bytes));
            }
        }
    }

    /// What was written once must be read for ever: this is the encoding 1, byte for byte.
    #[test]
    fn the_encoding_stays() {
        let meta =
            Metadata { content_type: Some("t".into()), user: [("a".into(), "1".into())].into(), ..Metadata::default() };
        let object = Described {
            size: 300,
            etag: "e".into(),
            meta: meta.into(),
            checksums: vec![("CRC32".into(), "x".into())],
            tags: vec![("k".into(), "v".into())],
            content: 5,
            multipart: true,
        };
        let version = Version { modified: Time(7), null: true, object: Some(object) };
        let expected = b"\x01\x07\x01\x01\xac\x02\x01e\x01\x01t\x00\x00\x00\x00\x00\x01\x01a\x011\x01\x05CRC32\x01x\x01\x01k\x01v\x05\x01";
        assert_eq!(encode(&version).unwrap(), expected);
        let content = Content { refs: 1, parts: Vec::new(), files: vec![DataFile { id: 200, size: 9 }] };
        assert_eq!(encode_content(&content, b"").unwrap(), b"\x01\x01\x00\x01\xc8\x01\x09");
        assert_eq!(decode_content(b"\x01\x01\x00\x00abc").unwrap().1, "abc");
        assert!(
            matches!(decode::<Bucket>(b"\x02"), Err(StoreError::Internal(why)) if why.contains("unknown encoding 2"))
        );
    }

    #[test]
    fn version_ids() {
        for serial in [0, 1, 1 << EPOCH_SHIFT, u64::MAX] {
            assert_eq!(serial_of(&version_id(serial)), Some(serial));
        }
        for no in ["", "null", "+000000000000001", "000000000000000G", "000000000000000A", "00000000000000001"] {
            assert_eq!(serial_of(no), None, "{no}");
        }
        assert!(place_of(2) < place_of(1), "newest first");
    }
}
