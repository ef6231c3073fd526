//! Changes of the tables, many in one transaction.

use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
    time::SystemTime,
};

use bytes::Bytes;
use redb::{ReadableTable, ReadableTableMetadata, Table, WriteTransaction};

use super::{
    Core,
    accounts::{Accounts, Charge, Claim, Place, Step, Stored},
    look::{Found, NULL, Tables},
    meta::{TRANSACTIONS, failed},
    tables::{
        self, BUCKETS, Bucket, CONTENTS, Content, ContentPart, DataFile, Described, NULLS, NUMBERS, PARTS, Part,
        UPLOADS, Upload, VERSIONS, Version, VersionOf, damaged, place_of, version_id,
    },
};
use crate::{
    Commit, Condition, Deleted, ObjectInfo, ObjectPart, PartName, PutOptions, Result, Source, StoreError, Tags,
    UploadOptions, Versioning,
};

/// Most buckets: S3 answers with all of them at once, and 1,000 is the most that it lists of anything at once.
const BUCKETS_AT_MOST: u64 = 1000;

type Text = &'static str;
type Value = &'static [u8];

/// A transaction, and what belongs to it.
pub(super) struct Batch<'t> {
    core: &'t Core,
    buckets: Table<'t, Text, Value>,
    versions: Table<'t, (Text, Text, u64), Value>,
    nulls: Table<'t, (Text, Text), u64>,
    contents: Table<'t, u64, Value>,
    uploads: Table<'t, (Text, Text, Text), Value>,
    parts: Table<'t, (Text, u16), Value>,
    numbers: Table<'t, Text, u64>,
    outcome: Outcome,
    /// A failure of the tables themselves, which nothing in this transaction survives.
    broken: Option<StoreError>,
}

/// What a transaction brings with it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Changes of the accounts.
    pub(super) steps: Vec<Step>,
    /// Contents that no object has any more, with their files.
    pub(super) discarded: Vec<(u64, Vec<u64>)>,
    /// Whether there is anything to commit.
    pub(super) changed: bool,
}

/// An object that is about to be: all but its version.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) info: ObjectInfo,
    pub(super) content: NewContent,
}

/// The content of a new object.
#[derive(Debug)]
pub(super) enum NewContent {
    /// Bytes that stand in the table.
    Inline(Bytes),
    /// Files.
    Files(Vec<DataFile>),
    /// What another object has.
    Shared(u64),
}

impl Tables for Batch<'_> {
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

impl<'t> Batch<'t> {
    pub(super) fn new(core: &'t Core, transaction: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            core,
            buckets: transaction.open_table(BUCKETS).map_err(failed)?,
            versions: transaction.open_table(VERSIONS).map_err(failed)?,
            nulls: transaction.open_table(NULLS).map_err(failed)?,
            contents: transaction.open_table(CONTENTS).map_err(failed)?,
            uploads: transaction.open_table(UPLOADS).map_err(failed)?,
            parts: transaction.open_table(PARTS).map_err(failed)?,
            numbers: transaction.open_table(NUMBERS).map_err(failed)?,
            outcome: Outcome::default(),
            broken: None,
        })
    }

    /// Makes one change. One that is refused has changed nothing; one that fails halfway breaks the transaction.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.broken.is_some() {
            return Err(StoreError::Internal("an earlier change of the same transaction has failed".into()));
        }
        let result = change(self);
        if let Err(StoreError::Internal(why)) = &result {
            self.broken = Some(StoreError::Internal(why.clone()));
        }
        result
    }

    /// Ends the transaction: what it brings, and how it has gone.
    pub(super) fn finish(mut self, transactions: u64) -> (Outcome, Result<()>) {
        let result = match self.broken.take() {
            Some(error) => Err(error),
            None if self.outcome.changed => self.numbers.insert(TRANSACTIONS, transactions).map(drop).map_err(failed),
            None => Ok(()),
        };
        (self.outcome, result)
    }

    fn accounts(&self) -> MutexGuard<'t, Accounts> {
        self.core.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&mut self, step: Step) {
        self.accounts().apply(&step);
        self.outcome.steps.push(step);
    }

    /// Errors: the disk is so full that only what makes room may go on.
    fn may_grow(&self, needed: u64) -> Result<()> {
        if self.core.meta.reserve.used() {
            return Err(StoreError::InsufficientStorage { needed: needed.max(1), free: 0 });
        }
        Ok(())
    }

    fn put_bucket(&mut self, name: &str, bucket: &Bucket) -> Result<()> {
        self.buckets.insert(name, tables::encode(bucket)?.as_slice()).map_err(failed)?;
        self.outcome.changed = true;
        Ok(())
    }

    pub(super) fn create_bucket(&mut self, name: &str) -> Result<bool> {
        if self.buckets.get(name).map_err(failed)?.is_some() {
            return Ok(false);
        }
        if self.buckets.len().map_err(failed)? >= BUCKETS_AT_MOST {
            return Err(StoreError::TooManyBuckets(usize::try_from(BUCKETS_AT_MOST).unwrap_or(usize::MAX)));
        }
        self.may_grow(0)?;
        self.put_bucket(name, &Bucket::new())?;
        Ok(true)
    }

    pub(super) fn delete_bucket(&mut self, name: &str) -> Result<()> {
        self.bucket(name)?;
        if self
            .versions
            .range((name, "", 0)..)
            .map_err(failed)?
            .next()
            .transpose()
            .map_err(failed)?
            .is_some_and(|(key, _)| key.value().0 == name)
        {
            return Err(StoreError::BucketNotEmpty);
        }
        let uploads: Vec<(String, String)> = self.uploads_of(name)?;
        for (key, upload) in uploads {
            self.abort(name, &key, &upload)?;
        }
        self.buckets.remove(name).map_err(failed)?;
        self.outcome.changed = true;
        Ok(())
    }

    /// Keys and ids of the uploads of a bucket.
    fn uploads_of(&self, bucket: &str) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for entry in self.uploads.range((bucket, "", "")..).map_err(failed)? {
            let (key, _) = entry.map_err(failed)?;
            let (of, key, upload) = key.value();
            if of != bucket {
                break;
            }
            all.push((key.to_owned(), upload.to_owned()));
        }
        Ok(all)
    }

    pub(super) fn set_versioning(&mut self, name: &str, versioning: Versioning) -> Result<()> {
        let mut bucket = self.bucket(name)?;
        if versioning == Versioning::Off && bucket.versioning() != Versioning::Off {
            return Err(StoreError::Unfit("versioning can be suspended, but not turned off again".into()));
        }
        bucket.set_versioning(versioning);
        self.put_bucket(name, &bucket)
    }

    pub(super) fn set_bucket_tags(&mut self, name: &str, tags: Tags) -> Result<()> {
        let mut bucket = self.bucket(name)?;
        bucket.tags = tags;
        self.put_bucket(name, &bucket)
    }

    pub(super) fn set_tags(
        &mut self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        tags: Tags,
    ) -> Result<ObjectInfo> {
        let (of, mut object) = self.object(bucket, key, version)?;
        object.tags = tags;
        self.put_version(bucket, key, &of, Some(object.clone()))?;
        let parts = if object.multipart { self.parts_of_content(object.content)? } else { Vec::new() };
        Ok(object.info(&of, parts))
    }

    fn content(&self, id: u64) -> Result<(Content, Bytes)> {
        let value = self.contents.get(id).map_err(failed)?.ok_or_else(|| damaged("an object has no content"))?;
        tables::decode_content(value.value())
    }

    fn parts_of_content(&self, id: u64) -> Result<Vec<ObjectPart>> {
        Ok(self.content(id)?.0.parts.into_iter().map(ObjectPart::from).collect())
    }

    fn put_version(&mut self, bucket: &str, key: &str, of: &VersionOf, object: Option<Described>) -> Result<()> {
        let version = Version { modified: of.modified, null: of.null, object };
        let place = place_of(of.serial);
        self.versions.insert((bucket, key, place), tables::encode(&version)?.as_slice()).map_err(failed)?;
        self.outcome.changed = true;
        Ok(())
    }

    /// Removes a version from its table.
    fn take_version(&mut self, bucket: &str, key: &str, found: &Found) -> Result<()> {
        self.versions.remove((bucket, key, place_of(found.serial))).map_err(failed)?;
        if found.version.null && found.serial != 0 {
            self.nulls.remove((bucket, key)).map_err(failed)?;
        }
        self.outcome.changed = true;
        self.discard(found)
    }

    /// Gives back the content of a version that is gone.
    fn discard(&mut self, found: &Found) -> Result<()> {
        let Some(object) = &found.version.object else { return Ok(()) };
        let (mut content, bytes) = self.content(object.content)?;
        if content.refs > 1 {
            content.refs -= 1;
            let value = tables::encode_content(&content, &bytes)?;
            self.contents.insert(object.content, value.as_slice()).map_err(failed)?;
            return Ok(());
        }
        self.contents.remove(object.content).map_err(failed)?;
        if !content.files.is_empty() {
            let files = content.files.iter().map(|file| file.id).collect();
            self.outcome.discarded.push((object.content, files));
        }
        Ok(())
    }

    fn add_content(&mut self, content: NewContent, parts: &[ObjectPart]) -> Result<u64> {
        let parts = parts.iter().cloned().map(ContentPart::from).collect();
        let (content, bytes) = match content {
            NewContent::Inline(bytes) => (Content { refs: 1, parts, files: Vec::new() }, bytes),
            NewContent::Files(files) => (Content { refs: 1, parts, files }, Bytes::new()),
            NewContent::Shared(id) => {
                let (mut content, bytes) = self.content(id)?;
                content.refs = content.refs.checked_add(1).ok_or_else(|| damaged("too many copies"))?;
                let value = tables::encode_content(&content, &bytes)?;
                self.contents.insert(id, value.as_slice()).map_err(failed)?;
                return Ok(id);
            }
        };
        let id = self.core.serial();
        let value = tables::encode_content(&content, &bytes)?;
        self.contents.insert(id, value.as_slice()).map_err(failed)?;
        Ok(id)
    }

    /// Makes an object. With it end `claim`, and the charge `ends`, which the caller takes away. Nothing has changed if it is
    /// refused.
    pub(super) fn put(
        &mut self,
        place: &Place,
        object: NewObject,
        condition: &Condition,
        claim: Option<&Claim>,
        ends: Charge,
    ) -> Result<ObjectInfo> {
        let Place { bucket, key, .. } = place;
        let NewObject { mut info, content } = object;
        self.may_grow(info.size)?;
        let versioning = self.bucket(bucket)?.versioning();
        condition.check(self.current(bucket, key)?.as_ref().and_then(Found::etag))?;
        let versioned = versioning == Versioning::Enabled;
        let null = self.null(bucket, key)?;
        let there = null.as_ref().map(Found::size);
        {
            let mut accounts = self.accounts();
            accounts.fits(place, info.size, there, versioned, claim, ends)?;
            if let Some(claim) = claim {
                accounts.release(claim);
            }
        }
        let of = self.push(place, null, versioning, Some(info.size))?;
        info.version = of.id();
        info.modified = of.modified.into();
        let content = self.add_content(content, &info.parts)?;
        let described = Described {
            size: info.size,
            etag: info.etag.clone(),
            meta: info.meta.clone().into(),
            checksums: info.checksums.clone(),
            tags: info.tags.clone(),
            content,
            multipart: !info.parts.is_empty(),
        };
        self.put_version(bucket, key, &of, Some(described))?;
        Ok(info)
    }

    /// Makes place for a new version, of so many bytes or a delete marker, in the tables and the accounts.
    fn push(
        &mut self,
        place: &Place,
        null: Option<Found>,
        versioning: Versioning,
        size: Option<u64>,
    ) -> Result<VersionOf> {
        let Place { bucket, key, .. } = place;
        let versioned = versioning == Versioning::Enabled;
        let serial = if versioning == Versioning::Off { 0 } else { self.core.serial() };
        let of = VersionOf { serial, null: !versioned, modified: SystemTime::now().into() };
        let new = u64::from(size.is_some());
        if versioned {
            let stored = Stored { bytes: size.unwrap_or(0), slots: 1, objects: new, uploads: 0 };
            self.account(Step::Added(stored));
            return Ok(of);
        }
        let before = null.as_ref().map(Found::size);
        if let Some(null) = &null {
            self.take_version(bucket, key, null)?;
            self.count_objects(u64::from(null.version.object.is_some()), 0);
        }
        if serial != 0 {
            self.nulls.insert((bucket.as_str(), key.as_str()), serial).map_err(failed)?;
        }
        self.account(Step::Replaced { place: place.clone(), before, after: Some(size.unwrap_or(0)) });
        self.count_objects(0, new);
        Ok(of)
    }

    /// Counts objects that are gone or new, whose bytes are accounted for otherwise.
    fn count_objects(&mut self, gone: u64, new: u64) {
        if gone > 0 {
            self.account(Step::Removed(Stored { objects: gone, ..Stored::default() }));
        }
        if new > 0 {
            self.account(Step::Added(Stored { objects: new, ..Stored::default() }));
        }
    }

    /// Makes a part.
    pub(super) fn put_part(&mut self, claim: &Claim, part: Part) -> Result<()> {
        let place = &claim.place;
        let Some((upload, number)) = &place.part else { return Err(damaged("a part without a number")) };
        self.may_grow(part.size())?;
        self.upload(&place.bucket, &place.key, upload)?;
        let old = self.part(upload, *number)?;
        self.accounts().release(claim);
        let (before, after) = (old.as_ref().map(Part::size), Some(part.size()));
        self.account(Step::Replaced { place: place.clone(), before, after });
        self.discard_file(old.and_then(|old| old.file));
        self.parts.insert((upload.as_str(), *number), tables::encode(&part)?.as_slice()).map_err(failed)?;
        self.outcome.changed = true;
        Ok(())
    }

    /// Nobody reads the file of a part.
    fn discard_file(&mut self, file: Option<DataFile>) {
        if let Some(file) = file {
            // No content has this id, and so no reader.
            self.outcome.discarded.push((file.id, vec![file.id]));
        }
    }

    /// Makes an object with the content of another.
    pub(super) fn copy(
        &mut self,
        source: &Source,
        place: &Place,
        options: PutOptions,
        commit: Commit,
    ) -> Result<ObjectInfo> {
        let (_, from) = self.object(&source.bucket, &source.key, source.version.as_deref())?;
        if from.etag != source.etag {
            return Err(StoreError::PreconditionFailed);
        }
        let info = ObjectInfo {
            size: from.size,
            etag: commit.etag,
            modified: SystemTime::now(),
            meta: options.meta,
            checksums: commit.checksums,
            parts: Vec::new(),
            tags: options.tags,
            version: None,
        };
        // Replacing the only object that has it must not take it away before it is shared.
        let content = self.content(from.content)?;
        self.raise(from.content, content)?;
        let object = NewObject { info, content: NewContent::Shared(from.content) };
        let result = self.put(place, object, &commit.condition, None, Charge::default());
        self.lower(from.content)?;
        result
    }

    /// One more reference to a content.
    fn raise(&mut self, id: u64, (mut content, bytes): (Content, Bytes)) -> Result<()> {
        content.refs = content.refs.checked_add(1).ok_or_else(|| damaged("too many copies"))?;
        let value = tables::encode_content(&content, &bytes)?;
        self.contents.insert(id, value.as_slice()).map_err(failed)?;
        Ok(())
    }

    /// One reference less, which is not the last.
    fn lower(&mut self, id: u64) -> Result<()> {
        let (mut content, bytes) = self.content(id)?;
        content.refs = content.refs.checked_sub(1).filter(|refs| *refs > 0).ok_or_else(|| damaged("no copy"))?;
        let value = tables::encode_content(&content, &bytes)?;
        self.contents.insert(id, value.as_slice()).map_err(failed)?;
        Ok(())
    }

    /// Deletes an object, a version, or makes a delete marker.
    pub(super) fn delete(
        &mut self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        condition: &Condition,
    ) -> Result<Deleted> {
        let versioning = self.bucket(bucket)?.versioning();
        let found = match version {
            None => self.current(bucket, key)?,
            Some(id) => self.version(bucket, key, id)?,
        };
        condition.check(found.as_ref().and_then(Found::etag))?;
        let existed = found.as_ref().is_some_and(|found| version.is_some() || found.version.object.is_some());
        let place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: None };
        if version.is_none() && versioning != Versioning::Off {
            return self.mark(&place, versioning, existed);
        }
        let mut marker = false;
        if let Some(found) = found {
            self.take_version(bucket, key, &found)?;
            let object = u64::from(found.version.object.is_some());
            marker = object == 0;
            if found.version.null {
                self.account(Step::Replaced { place, before: Some(found.size()), after: None });
                self.count_objects(object, 0);
            } else {
                let stored = Stored { bytes: found.size(), slots: 1, objects: object, uploads: 0 };
                self.account(Step::Removed(stored));
            }
        }
        let version = (existed && versioning != Versioning::Off).then(|| version.unwrap_or(NULL).to_owned());
        Ok(Deleted { existed, marker, version })
    }

    /// Makes a delete marker.
    fn mark(&mut self, place: &Place, versioning: Versioning, existed: bool) -> Result<Deleted> {
        let null = self.null(&place.bucket, &place.key)?;
        let versioned = versioning == Versioning::Enabled;
        let taken = !versioned && (null.is_some() || self.accounts().is_credited(place));
        self.accounts().slots(u64::from(!taken))?;
        let of = self.push(place, null, versioning, None)?;
        self.put_version(&place.bucket, &place.key, &of, None)?;
        Ok(Deleted { existed, marker: true, version: Some(of.spelled()) })
    }

    /// Starts an upload and returns its id.
    pub(super) fn create_upload(&mut self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        self.bucket(bucket)?;
        self.may_grow(0)?;
        self.accounts().slots(1)?;
        let id = format!("{:016x}{}", self.core.secret(), version_id(self.core.serial()));
        let value = tables::encode(&Upload::new(options))?;
        self.uploads.insert((bucket, key, id.as_str()), value.as_slice()).map_err(failed)?;
        self.outcome.changed = true;
        self.account(Step::Added(Stored { slots: 1, uploads: 1, ..Stored::default() }));
        Ok(id)
    }

    /// Takes an upload out of its tables and the accounts.
    fn take_upload(&mut self, bucket: &str, key: &str, upload: &str, parts: &[(u16, Part)]) -> Result<()> {
        self.uploads.remove((bucket, key, upload)).map_err(failed)?;
        for (number, _) in parts {
            self.parts.remove((upload, *number)).map_err(failed)?;
        }
        self.outcome.changed = true;
        self.accounts().end_writing(upload);
        let bytes = parts.iter().map(|(_, part)| part.size()).sum();
        self.account(Step::Removed(Stored { bytes, slots: 1, objects: 0, uploads: 1 }));
        Ok(())
    }

    pub(super) fn abort(&mut self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        self.upload(bucket, key, upload)?;
        let parts = self.parts_of(upload)?;
        self.take_upload(bucket, key, upload, &parts)?;
        parts.into_iter().for_each(|(_, part)| self.discard_file(part.file));
        Ok(())
    }

    /// Makes an object out of parts: their files become its own.
    pub(super) fn complete(
        &mut self,
        bucket: &str,
        key: &str,
        upload: &str,
        names: &[PartName],
        commit: Commit,
    ) -> Result<ObjectInfo> {
        let options = self.upload(bucket, key, upload)?;
        commit.condition.check(self.current(bucket, key)?.as_ref().and_then(Found::etag))?;
        let parts = self.parts_of(upload)?;
        let mut left: BTreeMap<u16, &Part> = parts.iter().map(|(number, part)| (*number, part)).collect();
        let chosen = names
            .iter()
            .map(|name| {
                let there = left.remove(&name.number).filter(|there| there.etag == name.etag);
                Ok((name.number, there.ok_or(StoreError::NoSuchPart(name.number))?))
            })
            .collect::<Result<Vec<_>>>()?;
        let object_part = |(number, part): &(u16, &Part)| ObjectPart {
            number: *number,
            size: part.size(),
            checksums: part.checksums.clone(),
        };
        let info = ObjectInfo {
            size: chosen.iter().map(|(_, part)| part.size()).sum(),
            etag: commit.etag,
            modified: SystemTime::now(),
            meta: options.meta.into(),
            checksums: commit.checksums,
            parts: chosen.iter().map(object_part).collect(),
            tags: options.tags,
            version: None,
        };
        let files: Vec<DataFile> = chosen.iter().filter_map(|(_, part)| part.file).collect();
        let unused: Vec<DataFile> = left.into_values().filter_map(|part| part.file).collect();
        let content = if files.is_empty() { NewContent::Inline(Bytes::new()) } else { NewContent::Files(files) };
        let charged: u64 = parts.iter().map(|(_, part)| part.size()).sum();
        let ends = Charge { bytes: charged + self.accounts().writing(upload), slots: 1 };
        let place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: None };
        let info = self.put(&place, NewObject { info, content }, &commit.condition, None, ends)?;
        self.take_upload(bucket, key, upload, &parts)?;
        unused.into_iter().for_each(|file| self.discard_file(Some(file)));
        Ok(info)
    }
}
