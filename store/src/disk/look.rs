//! Looking things up in the tables, in a transaction of either kind.

use std::{ops::Bound, sync::Arc};

use redb::{ReadTransaction, ReadableDatabase, ReadableTable};

use super::{
    meta::failed,
    tables::{
        self, BUCKETS, Bucket, CONTENTS, Described, NULLS, PARTS, Part, UPLOADS, Upload, VERSIONS, Version, VersionOf,
        damaged, place_of, serial_of,
    },
};
use crate::{
    ObjectInfo, ObjectPart, Result, StoreError, VersionEntry, Versioning,
    list::{Cursor, VersionCursor},
};

/// How S3 spells the version without an id.
pub(super) const NULL: &str = "null";

type Text = &'static str;
type Value = &'static [u8];

/// Tables that can be looked into.
pub(super) trait Tables {
    fn buckets(&self) -> &impl ReadableTable<Text, Value>;
    fn versions(&self) -> &impl ReadableTable<(Text, Text, u64), Value>;
    fn nulls(&self) -> &impl ReadableTable<(Text, Text), u64>;
    fn uploads(&self) -> &impl ReadableTable<(Text, Text, Text), Value>;
    fn parts(&self) -> &impl ReadableTable<(Text, u16), Value>;

    fn bucket(&self, name: &str) -> Result<Bucket> {
        let value = self.buckets().get(name).map_err(failed)?.ok_or(StoreError::NoSuchBucket)?;
        tables::decode(value.value())
    }

    fn upload(&self, bucket: &str, key: &str, upload: &str) -> Result<Upload> {
        let value = self.uploads().get((bucket, key, upload)).map_err(failed)?;
        match value {
            Some(value) => tables::decode(value.value()),
            // What is missing first is what is said.
            None => self.bucket(bucket).and(Err(StoreError::NoSuchUpload)),
        }
    }

    fn part(&self, upload: &str, number: u16) -> Result<Option<Part>> {
        let value = self.parts().get((upload, number)).map_err(failed)?;
        value.map(|value| tables::decode(value.value())).transpose()
    }

    fn parts_of(&self, upload: &str) -> Result<Vec<(u16, Part)>> {
        let range = self.parts().range((upload, 0)..=(upload, u16::MAX)).map_err(failed)?;
        let mut parts = Vec::new();
        for entry in range {
            let (key, value) = entry.map_err(failed)?;
            parts.push((key.value().1, tables::decode(value.value())?));
        }
        Ok(parts)
    }

    /// The newest version of a key.
    fn current(&self, bucket: &str, key: &str) -> Result<Option<Found>> {
        let mut range = self.versions().range((bucket, key, 0)..=(bucket, key, u64::MAX)).map_err(failed)?;
        let Some(entry) = range.next() else { return Ok(None) };
        let (key, value) = entry.map_err(failed)?;
        Found::new(key.value().2, value.value()).map(Some)
    }

    /// The version of a key with this serial.
    fn by_serial(&self, bucket: &str, key: &str, serial: u64) -> Result<Option<Found>> {
        let place = place_of(serial);
        let value = self.versions().get((bucket, key, place)).map_err(failed)?;
        value.map(|value| Found::new(place, value.value())).transpose()
    }

    /// The version of a key without an id.
    fn null(&self, bucket: &str, key: &str) -> Result<Option<Found>> {
        let serial = self.nulls().get((bucket, key)).map_err(failed)?.map_or(0, |serial| serial.value());
        Ok(self.by_serial(bucket, key, serial)?.filter(|found| found.version.null))
    }

    /// The version of a key with this id, as S3 spells it.
    fn version(&self, bucket: &str, key: &str, id: &str) -> Result<Option<Found>> {
        if id == NULL {
            return self.null(bucket, key);
        }
        let Some(serial) = serial_of(id) else { return Ok(None) };
        Ok(self.by_serial(bucket, key, serial)?.filter(|found| !found.version.null))
    }

    /// An object. Errors: those of [`Store::head`](crate::Store::head).
    fn object(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<(VersionOf, Described)> {
        self.bucket(bucket)?;
        let found = match version {
            None => self.current(bucket, key)?.ok_or(StoreError::NoSuchKey)?,
            Some(id) => self.version(bucket, key, id)?.ok_or(StoreError::NoSuchVersion)?,
        };
        let of = found.of();
        match found.version.object {
            Some(object) => Ok((of, object)),
            None => Err(StoreError::DeleteMarker {
                version: of.spelled(),
                current: version.is_none(),
                modified: of.modified.into(),
            }),
        }
    }

    /// Bytes of what a writer may replace at a place.
    fn replaceable(&self, bucket: &str, key: &str, part: Option<(&str, u16)>) -> Result<Option<u64>> {
        match part {
            None => Ok(self.null(bucket, key)?.map(|found| found.size())),
            Some((upload, number)) => Ok(self.part(upload, number)?.map(|part| part.size())),
        }
    }
}

/// A version of a key.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) serial: u64,
    pub(super) version: Version,
}

impl Found {
    fn new(place: u64, value: &[u8]) -> Result<Self> {
        // The inverse of itself.
        Ok(Self { serial: place_of(place), version: tables::decode(value)? })
    }

    pub(super) fn of(&self) -> VersionOf {
        VersionOf { serial: self.serial, null: self.version.null, modified: self.version.modified }
    }

    /// Bytes of content.
    pub(super) fn size(&self) -> u64 {
        self.version.object.as_ref().map_or(0, |object| object.size)
    }

    /// ETag of an object.
    pub(super) fn etag(&self) -> Option<&str> {
        self.version.object.as_ref().map(|object| object.etag.as_str())
    }
}

type Only<K, V> = redb::ReadOnlyTable<K, V>;

/// A snapshot of the tables.
pub(super) struct Snapshot {
    transaction: ReadTransaction,
    buckets: Only<Text, Value>,
    versions: Only<(Text, Text, u64), Value>,
    nulls: Only<(Text, Text), u64>,
    uploads: Only<(Text, Text, Text), Value>,
    parts: Only<(Text, u16), Value>,
}

impl Snapshot {
    pub(super) fn new(db: &redb::Database) -> Result<Self> {
        let transaction = db.begin_read().map_err(failed)?;
        Ok(Self {
            buckets: transaction.open_table(BUCKETS).map_err(failed)?,
            versions: transaction.open_table(VERSIONS).map_err(failed)?,
            nulls: transaction.open_table(NULLS).map_err(failed)?,
            uploads: transaction.open_table(UPLOADS).map_err(failed)?,
            parts: transaction.open_table(PARTS).map_err(failed)?,
            transaction,
        })
    }

    pub(super) fn contents(&self) -> Result<Only<u64, Value>> {
        self.transaction.open_table(CONTENTS).map_err(failed)
    }

    /// What an object is, with its parts.
    pub(super) fn info(&self, of: &VersionOf, object: Described) -> Result<ObjectInfo> {
        let parts = if object.multipart { self.parts_of_content(object.content)? } else { Vec::new() };
        Ok(object.info(of, parts))
    }

    fn parts_of_content(&self, content: u64) -> Result<Vec<ObjectPart>> {
        let contents = self.contents()?;
        let value = contents.get(content).map_err(failed)?.ok_or_else(|| damaged("an object has no content"))?;
        let (content, _) = tables::decode_content(value.value())?;
        Ok(content.parts.into_iter().map(ObjectPart::from).collect())
    }
}

impl Tables for Snapshot {
    fn buckets(&self) -> &impl ReadableTable<Text, Value> {
        &self.buckets
    }

    fn versions(&self) -> &impl ReadableTable<(Text, Text, u64), Value> {
        &self.versions
    }

    fn nulls(&self) -> &impl ReadableTable<(Text, Text), u64> {
        &self.nulls
    }

    fn uploads(&self) -> &impl ReadableTable<(Text, Text, Text), Value> {
        &self.uploads
    }

    fn parts(&self) -> &impl ReadableTable<(Text, u16), Value> {
        &self.parts
    }
}

/// A cursor over the versions of a bucket.
pub(super) struct Versions<'a> {
    snapshot: &'a Snapshot,
    bucket: &'a str,
    range: redb::Range<'static, (Text, Text, u64), Value>,
    /// The key that was stepped over last.
    key: Option<String>,
    item: Option<(bool, Found)>,
    /// The next version of that key is the current one. Only not so where the cursor was put behind a version.
    behind: Option<String>,
}

impl<'a> Versions<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, bucket: &'a str) -> Result<Self> {
        let range = Self::range(snapshot, bucket, Bound::Included((bucket, "", 0)))?;
        Ok(Self { snapshot, bucket, range, key: None, item: None, behind: None })
    }

    fn range(
        snapshot: &Snapshot,
        bucket: &str,
        from: Bound<(&str, &str, u64)>,
    ) -> Result<redb::Range<'static, (Text, Text, u64), Value>> {
        // The least name behind the bucket's.
        let end = format!("{bucket}\0");
        snapshot.versions.range::<(&str, &str, u64)>((from, Bound::Excluded((end.as_str(), "", 0)))).map_err(failed)
    }

    fn put(&mut self, from: Bound<(&str, &str, u64)>, behind: Option<String>) -> Result<()> {
        self.range = Self::range(self.snapshot, self.bucket, from)?;
        self.key = None;
        self.item = None;
        self.behind = behind;
        Ok(())
    }

    /// Steps over the next version: whether it is the current one of its key, and what it is.
    fn step(&mut self) -> Result<bool> {
        let Some(entry) = self.range.next() else {
            self.item = None;
            return Ok(false);
        };
        let (place, value) = entry.map_err(failed)?;
        let (_, key, place) = place.value();
        let same = |other: &Option<String>| other.as_deref() == Some(key);
        let latest = !same(&self.key) && !same(&self.behind);
        if !same(&self.key) {
            self.key = Some(key.to_owned());
        }
        self.item = Some((latest, Found::new(place, value.value())?));
        Ok(true)
    }

    fn take(&mut self) -> Result<(bool, Found)> {
        self.item.take().ok_or_else(|| StoreError::Internal("a listing asks for an item in front of all keys".into()))
    }

    fn info(&self, of: &VersionOf, object: Option<Described>) -> Result<Option<Arc<ObjectInfo>>> {
        object.map(|object| self.snapshot.info(of, object).map(Arc::new)).transpose()
    }
}

impl Cursor for Versions<'_> {
    type Key = String;
    type Item = VersionEntry;

    fn seek(&mut self, from: Bound<&str>) -> Result<()> {
        let bucket = self.bucket;
        let from = match from {
            Bound::Included(key) => Bound::Included((bucket, key, 0)),
            Bound::Excluded(key) => Bound::Excluded((bucket, key, u64::MAX)),
            Bound::Unbounded => Bound::Included((bucket, "", 0)),
        };
        self.put(from, None)
    }

    fn next(&mut self) -> Result<Option<String>> {
        Ok(if self.step()? { self.key.clone() } else { None })
    }

    fn item(&mut self) -> Result<VersionEntry> {
        let (latest, found) = self.take()?;
        let of = found.of();
        let key = self.key.clone().unwrap_or_default();
        let info = self.info(&of, found.version.object)?;
        Ok(VersionEntry { key, latest, version: of.id(), modified: of.modified.into(), info })
    }
}

impl VersionCursor for Versions<'_> {
    fn seek_version(&mut self, key: &str, version: &str) -> Result<()> {
        // An id tells the order even of a version that is gone.
        let serial = match self.snapshot.version(self.bucket, key, version)? {
            Some(found) => Some(found.serial),
            None => serial_of(version),
        };
        let newest = self.snapshot.current(self.bucket, key)?.map(|found| found.serial);
        match serial.filter(|serial| newest.is_some_and(|newest| newest >= *serial)) {
            Some(serial) => self.put(Bound::Excluded((self.bucket, key, place_of(serial))), Some(key.to_owned())),
            None => self.seek(Bound::Included(key)),
        }
    }
}

/// A cursor over the current objects of a bucket: keys whose newest version is no delete marker.
pub(super) struct Current<'a> {
    versions: Versions<'a>,
    /// Whether a key can have more than one version.
    versioned: bool,
}

impl<'a> Current<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, bucket: &'a str, versioning: Versioning) -> Result<Self> {
        Ok(Self { versions: Versions::new(snapshot, bucket)?, versioned: versioning != Versioning::Off })
    }
}

impl Cursor for Current<'_> {
    type Key = String;
    type Item = Arc<ObjectInfo>;

    fn seek(&mut self, from: Bound<&str>) -> Result<()> {
        self.versions.seek(from)
    }

    fn next(&mut self) -> Result<Option<String>> {
        // Steps over a few old versions are cheaper than a descent of the tree.
        let mut old = 0;
        while self.versions.step()? {
            match &self.versions.item {
                Some((true, found)) => {
                    old = 0;
                    if found.version.object.is_some() {
                        return Ok(self.versions.key.clone());
                    }
                }
                _ => {
                    old += 1;
                    if self.versioned && old == 8 {
                        let key = self.versions.key.clone().unwrap_or_default();
                        self.versions.seek(Bound::Excluded(&key))?;
                    }
                }
            }
        }
        Ok(None)
    }

    fn item(&mut self) -> Result<Arc<ObjectInfo>> {
        let (_, found) = self.versions.take()?;
        let of = found.of();
        self.versions.info(&of, found.version.object)?.ok_or_else(|| damaged("an object is none"))
    }
}
