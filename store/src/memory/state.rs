//! What the store holds, and the accounts of it. All of it is behind one lock.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use super::{
    MemoryConfig,
    content::Content,
    objects::{Entry, Marker, NULL, Objects, Stored, Version, VersionRef},
};
use crate::{
    BucketInfo, Commit, Condition, Deleted, ObjectInfo, ObjectPart, PartName, PutOptions, Result, Source, StoreError,
    Tags, UploadInfo, UploadOptions, Usage, Versioning,
};

/// Most buckets: S3 answers with all of them at once, and 1,000 is the most that it lists of anything at once.
const BUCKETS: usize = 1000;

/// Where a writer's content goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) bucket: String,
    pub(super) key: String,
    /// Upload and number, for a part.
    pub(super) part: Option<(String, u16)>,
}

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) info: UploadInfo,
    pub(super) parts: BTreeMap<u16, Entry>,
    /// Bytes of the credited writers of its parts; see [`State::credits`].
    credits: HashMap<u16, u64>,
    /// All that its parts and their writers are charged for.
    charged: u64,
    /// Tells its writers that it has ended. They have no claim any more.
    ended: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) struct Bucket {
    created: SystemTime,
    pub(super) versioning: Versioning,
    pub(super) tags: Tags,
    pub(super) objects: Objects,
    /// By key and id.
    pub(super) uploads: BTreeMap<(String, String), Upload>,
}

/// What is of no use any more once an upload is complete: the object that was replaced, and the upload.
pub(super) type Leftovers = (Option<Version>, Upload);

/// What a writer holds of the accounts.
#[derive(Debug)]
pub(super) struct Claim {
    /// Bytes.
    pub(super) bytes: u64,
    /// Slots that it takes by itself: that of a new version.
    slots: u64,
    /// Whether the writer has the credit of its place.
    credited: bool,
    /// Set once the upload has ended whose part is written.
    ended: Option<Arc<AtomicBool>>,
}

impl Claim {
    /// Errors: what is written has nowhere to go any more.
    pub(super) fn check(&self) -> Result<()> {
        match &self.ended {
            Some(ended) if ended.load(Ordering::Relaxed) => Err(StoreError::NoSuchUpload),
            _ => Ok(()),
        }
    }

    /// What it is charged for besides its place.
    fn aside(&self) -> Charge {
        if self.credited { Charge::default() } else { Charge { bytes: self.bytes, slots: self.slots } }
    }
}

/// What something is charged for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Charge {
    bytes: u64,
    slots: u64,
}

impl Charge {
    /// What the place of an object is charged for that has a version without an id of `null` bytes, and a credited writer.
    fn of(null: Option<u64>, credit: Option<u64>) -> Self {
        let slots = (null.is_some() || credit.is_some()).into();
        Self { bytes: null.unwrap_or(0).max(credit.unwrap_or(0)), slots }
    }
}

/// An object that is about to be: all but its version.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) info: ObjectInfo,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) struct State {
    config: MemoryConfig,
    buckets: BTreeMap<String, Bucket>,
    /// Bytes of the credited writer of an object's place. The place is charged for these or for the version without an id
    /// that is there and that they would replace, whichever is more. Writers without credit are charged in full.
    credits: HashMap<Place, u64>,
    /// All charges.
    used: Charge,
    /// Makes ids that cannot be guessed.
    ids: RandomState,
    /// Of the last version or upload.
    serial: u64,
}

impl State {
    pub(super) fn new(config: MemoryConfig) -> Self {
        Self {
            config,
            buckets: BTreeMap::new(),
            credits: HashMap::new(),
            used: Charge::default(),
            ids: RandomState::new(),
            serial: 0,
        }
    }

    /// The next id, and the serial number that is the second half of it.
    fn next_id(&mut self) -> (String, u64) {
        self.serial += 1;
        (format!("{:016x}{:016x}", self.ids.hash_one(self.serial), self.serial), self.serial)
    }

    pub(super) fn create_bucket(&mut self, name: &str) -> Result<bool> {
        if self.buckets.contains_key(name) {
            return Ok(false);
        }
        if self.buckets.len() >= BUCKETS {
            return Err(StoreError::TooManyBuckets(BUCKETS));
        }
        let bucket = Bucket {
            created: SystemTime::now(),
            versioning: Versioning::Off,
            tags: Tags::new(),
            objects: Objects::default(),
            uploads: BTreeMap::new(),
        };
        self.buckets.insert(name.to_owned(), bucket);
        Ok(true)
    }

    /// Returns what is of no use any more.
    pub(super) fn delete_bucket(&mut self, name: &str) -> Result<Vec<Upload>> {
        let bucket = self.bucket(name)?;
        if !bucket.objects.is_empty() {
            return Err(StoreError::BucketNotEmpty);
        }
        let uploads: Vec<_> = bucket.uploads.keys().cloned().collect();
        let removed = uploads.iter().map(|(key, upload)| self.abort(name, key, upload)).collect();
        self.buckets.remove(name);
        removed
    }

    pub(super) fn bucket_infos(&self) -> Vec<BucketInfo> {
        self.buckets.iter().map(|(name, bucket)| bucket.info(name)).collect()
    }

    pub(super) fn bucket_info(&self, name: &str) -> Result<BucketInfo> {
        Ok(self.bucket(name)?.info(name))
    }

    pub(super) fn set_versioning(&mut self, name: &str, versioning: Versioning) -> Result<()> {
        let bucket = self.bucket_mut(name)?;
        if versioning == Versioning::Off && bucket.versioning != Versioning::Off {
            return Err(StoreError::Unfit("versioning can be suspended, but not turned off again".into()));
        }
        bucket.versioning = versioning;
        Ok(())
    }

    pub(super) fn bucket(&self, name: &str) -> Result<&Bucket> {
        self.buckets.get(name).ok_or(StoreError::NoSuchBucket)
    }

    pub(super) fn bucket_mut(&mut self, name: &str) -> Result<&mut Bucket> {
        self.buckets.get_mut(name).ok_or(StoreError::NoSuchBucket)
    }

    pub(super) fn object(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<&Entry> {
        let objects = &self.bucket(bucket)?.objects;
        let found = match version {
            None => objects.current(key).ok_or(StoreError::NoSuchKey)?,
            Some(id) => objects.version(key, id).ok_or(StoreError::NoSuchVersion)?,
        };
        match found {
            VersionRef::Object(entry) => Ok(entry),
            VersionRef::Marker(marker) => Err(StoreError::DeleteMarker {
                version: marker.id.as_deref().unwrap_or(NULL).to_owned(),
                current: version.is_none(),
                modified: marker.modified,
            }),
        }
    }

    pub(super) fn set_tags(
        &mut self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        tags: Tags,
    ) -> Result<Arc<ObjectInfo>> {
        let old = self.object(bucket, key, version)?;
        let info = Arc::new(ObjectInfo { tags, ..ObjectInfo::clone(&old.info) });
        let entry = Stored { info: Arc::clone(&info), content: old.content.clone(), serial: old.serial };
        self.bucket_mut(bucket)?.objects.replace(key, Arc::new(entry));
        Ok(info)
    }

    pub(super) fn upload(&self, bucket: &str, key: &str, upload: &str) -> Result<&Upload> {
        let id = (key.to_owned(), upload.to_owned());
        self.bucket(bucket)?.uploads.get(&id).ok_or(StoreError::NoSuchUpload)
    }

    fn upload_mut(&mut self, bucket: &str, key: &str, upload: &str) -> Result<&mut Upload> {
        let id = (key.to_owned(), upload.to_owned());
        self.bucket_mut(bucket)?.uploads.get_mut(&id).ok_or(StoreError::NoSuchUpload)
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            objects: self.buckets.values().map(|bucket| bucket.objects.count()).sum(),
            bytes: self.used.bytes,
            capacity: self.config.capacity,
            uploads: self.buckets.values().map(|bucket| bucket.uploads.len() as u64).sum(),
        }
    }

    /// Bytes of what a writer to a place may replace: a part, or the version without an id. Errors: its bucket or upload
    /// is gone.
    fn replaceable(&self, place: &Place) -> Result<Option<u64>> {
        match &place.part {
            None => Ok(self.bucket(&place.bucket)?.objects.version(&place.key, NULL).map(VersionRef::size)),
            Some((upload, number)) => {
                let parts = &self.upload(&place.bucket, &place.key, upload)?.parts;
                Ok(parts.get(number).map(|part| part.info.size))
            }
        }
    }

    fn credit(&self, place: &Place) -> Option<u64> {
        match &place.part {
            None => self.credits.get(place).copied(),
            Some((upload, number)) => self.upload(&place.bucket, &place.key, upload).ok()?.credits.get(number).copied(),
        }
    }

    fn set_credit(&mut self, place: &Place, bytes: Option<u64>) {
        match (&place.part, bytes) {
            (None, Some(bytes)) => {
                self.credits.insert(place.clone(), bytes);
            }
            (None, None) => {
                self.credits.remove(place);
            }
            (Some((upload, number)), bytes) => {
                if let Ok(upload) = self.upload_mut(&place.bucket, &place.key, upload) {
                    match bytes {
                        Some(bytes) => upload.credits.insert(*number, bytes),
                        None => upload.credits.remove(number),
                    };
                }
            }
        }
    }

    fn charge(&self, place: &Place) -> Charge {
        let charge = Charge::of(self.replaceable(place).ok().flatten(), self.credit(place));
        // The parts of an upload share its slot.
        if place.part.is_some() { Charge { slots: 0, ..charge } } else { charge }
    }

    /// Replaces a charge of a place by another.
    fn recharge(&mut self, place: &Place, before: Charge, after: Charge) {
        // What is taken away was added before.
        self.used.bytes = self.used.bytes - before.bytes + after.bytes;
        self.used.slots = self.used.slots - before.slots + after.slots;
        if let Some((upload, _)) = &place.part
            && let Ok(upload) = self.upload_mut(&place.bucket, &place.key, upload)
        {
            upload.charged = upload.charged - before.bytes + after.bytes;
        }
    }

    /// Sets the credit of a place.
    fn recredit(&mut self, place: &Place, bytes: Option<u64>) {
        let before = self.charge(place);
        self.set_credit(place, bytes);
        let after = self.charge(place);
        self.recharge(place, before, after);
    }

    fn room(&self, needed: u64) -> Result<()> {
        let free = self.config.capacity.saturating_sub(self.used.bytes);
        if needed > free { Err(StoreError::InsufficientStorage { needed, free }) } else { Ok(()) }
    }

    fn slots(&self, needed: u64) -> Result<()> {
        if needed > 0 && self.used.slots.saturating_add(needed) > self.config.objects {
            return Err(StoreError::NoSlots(self.config.objects));
        }
        Ok(())
    }

    /// Starts a writer of `size` bytes, as far as that is known.
    pub(super) fn claim(&mut self, place: &Place, size: u64) -> Result<Claim> {
        let there = self.replaceable(place)?;
        let (versioned, ended) = match &place.part {
            None => (self.bucket(&place.bucket)?.versioning == Versioning::Enabled, None),
            Some((upload, _)) => (false, Some(Arc::clone(&self.upload(&place.bucket, &place.key, upload)?.ended))),
        };
        let credited = !versioned && self.credit(place).is_none();
        let claim = Claim { bytes: size, slots: versioned.into(), credited, ended };
        if credited {
            self.room(size.saturating_sub(there.unwrap_or(0)))?;
            self.slots((place.part.is_none() && there.is_none()).into())?;
            self.recredit(place, Some(size));
        } else {
            self.room(size)?;
            self.slots(claim.slots)?;
            self.recharge(place, Charge::default(), claim.aside());
        }
        Ok(claim)
    }

    /// Makes a claim larger or smaller: at least `least` and at most `want` bytes, as there is room.
    pub(super) fn resize(&mut self, place: &Place, claim: &mut Claim, least: u64, want: u64) -> Result<()> {
        claim.check()?;
        let free = self.config.capacity.saturating_sub(self.used.bytes);
        // The most that this claim can be.
        let most = free.saturating_add(if claim.credited { self.charge(place).bytes } else { claim.bytes });
        if least > most {
            return Err(StoreError::InsufficientStorage { needed: least - most + free, free });
        }
        let bytes = want.min(most);
        let before = claim.aside();
        claim.bytes = bytes;
        if claim.credited {
            self.recredit(place, Some(bytes));
        } else {
            self.recharge(place, before, claim.aside());
        }
        Ok(())
    }

    /// Ends a writer that commits nothing.
    pub(super) fn release(&mut self, place: &Place, claim: &Claim) {
        if claim.check().is_err() {
            return;
        }
        if claim.credited {
            self.recredit(place, None);
        } else {
            self.recharge(place, claim.aside(), Charge::default());
        }
    }

    /// Ends a writer: puts `object`, which is not longer than the claim, where it belongs. Returns what was there. On an
    /// error the claim still stands.
    pub(super) fn commit(
        &mut self,
        place: &Place,
        claim: &Claim,
        condition: &Condition,
        object: NewObject,
    ) -> Result<(Arc<ObjectInfo>, Option<Version>)> {
        let Some((upload, number)) = &place.part else {
            return self.put(place, object, condition, claim.credited, claim.aside());
        };
        self.upload(&place.bucket, &place.key, upload)?;
        let before = self.charge(place);
        let NewObject { info, content } = object;
        let info = Arc::new(info);
        let part = Arc::new(Stored { info: Arc::clone(&info), content, serial: 0 });
        if claim.credited {
            self.set_credit(place, None);
        }
        let old = self.upload_mut(&place.bucket, &place.key, upload)?.parts.insert(*number, part);
        let after = self.charge(place);
        self.recharge(place, before, after);
        self.recharge(place, claim.aside(), Charge::default());
        Ok((info, old.map(Version::Object)))
    }

    /// Makes an object. With it end the credit of its place, if it is `credited`, and the charge `ends`. Returns what it
    /// is, and what it replaced. Nothing has changed if it is refused.
    fn put(
        &mut self,
        place: &Place,
        object: NewObject,
        condition: &Condition,
        credited: bool,
        ends: Charge,
    ) -> Result<(Arc<ObjectInfo>, Option<Version>)> {
        let bucket = self.bucket(&place.bucket)?;
        condition.check(bucket.objects.current(&place.key).and_then(VersionRef::etag))?;
        let versioned = bucket.versioning == Versioning::Enabled;
        let null = bucket.objects.version(&place.key, NULL).map(VersionRef::size);
        let credit = self.credit(place);
        let before = Charge::of(null, credit);
        let size = object.info.size;
        let (null, version) = if versioned { (null, Some(size)) } else { (Some(size), None) };
        let after = Charge::of(null, credit.filter(|_| !credited));
        let freed = Charge { bytes: before.bytes + ends.bytes, slots: before.slots + ends.slots };
        let taken =
            Charge { bytes: after.bytes + version.unwrap_or(0), slots: after.slots + u64::from(version.is_some()) };
        // A writer has its room; a copy does not, nor what was to replace something before versioning was turned on.
        self.room(taken.bytes.saturating_sub(freed.bytes))?;
        self.slots(taken.slots.saturating_sub(freed.slots))?;

        self.used.bytes = self.used.bytes - freed.bytes + taken.bytes;
        self.used.slots = self.used.slots - freed.slots + taken.slots;
        if credited {
            self.set_credit(place, None);
        }
        let (id, serial) = self.version_id(versioned);
        let NewObject { mut info, content } = object;
        info.version = id;
        let info = Arc::new(info);
        let new = Version::Object(Arc::new(Stored { info: Arc::clone(&info), content, serial }));
        let old = self.bucket_mut(&place.bucket)?.push(&place.key, new, versioned);
        Ok((info, old))
    }

    /// Id and serial number of a new version.
    fn version_id(&mut self, versioned: bool) -> (Option<String>, u64) {
        if versioned {
            let (id, serial) = self.next_id();
            return (Some(id), serial);
        }
        self.serial += 1;
        (None, self.serial)
    }

    /// Makes an object with the content of another.
    pub(super) fn copy(
        &mut self,
        source: &Source,
        place: &Place,
        options: &PutOptions,
        commit: &Commit,
    ) -> Result<(Arc<ObjectInfo>, Option<Version>)> {
        let from = self.object(&source.bucket, &source.key, source.version.as_deref())?;
        if from.info.etag != source.etag {
            return Err(StoreError::PreconditionFailed);
        }
        let info = ObjectInfo {
            size: from.info.size,
            etag: commit.etag.clone(),
            modified: SystemTime::now(),
            meta: options.meta.clone(),
            checksums: commit.checksums.clone(),
            parts: Vec::new(),
            tags: options.tags.clone(),
            version: None,
        };
        let object = NewObject { info, content: from.content.clone() };
        self.put(place, object, &commit.condition, false, Charge::default())
    }

    /// Deletes an object, a version, or makes a delete marker. Returns what is of no use any more, too.
    pub(super) fn delete(
        &mut self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        condition: &Condition,
    ) -> Result<(Deleted, Option<Version>)> {
        let place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: None };
        let there = self.bucket(bucket)?;
        let versioning = there.versioning;
        let found = match version {
            None => there.objects.current(key),
            Some(id) => there.objects.version(key, id),
        };
        condition.check(found.and_then(VersionRef::etag))?;
        let existed = found.is_some_and(|found| version.is_some() || matches!(found, VersionRef::Object(_)));
        if version.is_none() && versioning != Versioning::Off {
            return self.mark(&place, versioning == Versioning::Enabled, existed);
        }
        let id = version.unwrap_or(NULL);
        let before = self.charge(&place);
        let old = self.bucket_mut(bucket)?.objects.remove(key, id);
        let after = self.charge(&place);
        self.recharge(&place, before, after);
        if id != NULL
            && let Some(old) = &old
        {
            self.recharge(&place, Charge { bytes: old.size(), slots: 1 }, Charge::default());
        }
        let marker = matches!(old, Some(Version::Marker(_)));
        let version = (existed && versioning != Versioning::Off).then(|| id.to_owned());
        Ok((Deleted { existed, marker, version }, old))
    }

    /// Makes a delete marker.
    fn mark(&mut self, place: &Place, versioned: bool, existed: bool) -> Result<(Deleted, Option<Version>)> {
        let before = self.charge(place);
        self.slots(if versioned { 1 } else { 1 - before.slots })?;
        let (id, serial) = self.version_id(versioned);
        let version = Some(id.as_deref().unwrap_or(NULL).to_owned());
        let marker = Version::Marker(Marker { id, modified: SystemTime::now(), serial });
        let old = self.bucket_mut(&place.bucket)?.push(&place.key, marker, versioned);
        let after = self.charge(place);
        self.recharge(place, before, after);
        self.used.slots += u64::from(versioned);
        Ok((Deleted { existed, marker: true, version }, old))
    }

    /// Starts an upload and returns its id.
    pub(super) fn create_upload(&mut self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        self.bucket(bucket)?;
        self.slots(1)?;
        self.used.slots += 1;
        let (upload, _) = self.next_id();
        let id = (key.to_owned(), upload.clone());
        let info = UploadInfo { upload, key: key.to_owned(), started: SystemTime::now(), options };
        let new = Upload {
            info,
            parts: BTreeMap::new(),
            credits: HashMap::new(),
            charged: 0,
            ended: Arc::new(AtomicBool::new(false)),
        };
        let upload = id.1.clone();
        self.bucket_mut(bucket)?.uploads.insert(id, new);
        Ok(upload)
    }

    /// Takes an upload out, which stays charged. Its writers have no claim any more.
    fn take_upload(&mut self, bucket: &str, key: &str, upload: &str) -> Result<Upload> {
        let id = (key.to_owned(), upload.to_owned());
        let removed = self.bucket_mut(bucket)?.uploads.remove(&id).ok_or(StoreError::NoSuchUpload)?;
        removed.ended.store(true, Ordering::Relaxed);
        Ok(removed)
    }

    pub(super) fn abort(&mut self, bucket: &str, key: &str, upload: &str) -> Result<Upload> {
        let removed = self.take_upload(bucket, key, upload)?;
        self.used.bytes -= removed.charged;
        self.used.slots -= 1;
        Ok(removed)
    }

    /// Makes an object out of parts. Returns it, and everything that is of no use any more.
    pub(super) fn complete(
        &mut self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<(Arc<ObjectInfo>, Leftovers)> {
        let found = self.upload(bucket, key, upload)?;
        let objects = &self.bucket(bucket)?.objects;
        commit.condition.check(objects.current(key).and_then(VersionRef::etag))?;
        let mut left: BTreeMap<u16, &Entry> = found.parts.iter().map(|(&number, part)| (number, part)).collect();
        let chosen = parts
            .iter()
            .map(|part| {
                let there = left.remove(&part.number).filter(|there| there.info.etag == part.etag);
                there.ok_or(StoreError::NoSuchPart(part.number))
            })
            .collect::<Result<Vec<_>>>()?;
        let object_part = |(name, part): (&PartName, &&Entry)| ObjectPart {
            number: name.number,
            size: part.info.size,
            checksums: part.info.checksums.clone(),
        };
        let parts: Vec<ObjectPart> = parts.iter().zip(&chosen).map(object_part).collect();
        let mut pieces = Vec::new();
        chosen.iter().for_each(|part| part.content.append_to(&mut pieces));
        let info = ObjectInfo {
            size: parts.iter().map(|part| part.size).sum(),
            etag: commit.etag,
            modified: SystemTime::now(),
            meta: found.info.options.meta.clone(),
            checksums: commit.checksums,
            parts,
            tags: found.info.options.tags.clone(),
            version: None,
        };
        let object = NewObject { info, content: Content::new(pieces) };
        let ends = Charge { bytes: found.charged, slots: 1 };
        let place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: None };
        let (info, old) = self.put(&place, object, &commit.condition, false, ends)?;
        let freed = self.take_upload(bucket, key, upload)?;
        Ok((info, (old, freed)))
    }
}

impl Bucket {
    fn info(&self, name: &str) -> BucketInfo {
        BucketInfo { name: name.to_owned(), created: self.created, versioning: self.versioning }
    }

    /// Makes a version the current one. Returns the one that it replaced.
    fn push(&mut self, key: &str, version: Version, versioned: bool) -> Option<Version> {
        if versioned {
            self.objects.push(key, version);
            return None;
        }
        self.objects.push_null(key, version)
    }
}
