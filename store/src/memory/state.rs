//! What the store holds, and the accounts of it. All of it is behind one lock.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    ops::Range,
    sync::Arc,
    time::SystemTime,
};

use super::{MemoryConfig, content::Content};
use crate::{
    BucketInfo, ByteStream, Commit, Condition, ObjectData, ObjectInfo, ObjectPart, PartName, Result, StoreError,
    UploadInfo, Usage, Versioning,
};

/// Where a writer's content goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) bucket: String,
    pub(super) key: String,
    /// Upload and number, for a part.
    pub(super) part: Option<(String, u16)>,
}

/// A committed object or part, shared with its readers.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) info: Arc<ObjectInfo>,
    pub(super) content: Content,
}

pub(super) type Entry = Arc<Stored>;

impl ObjectData for Stored {
    fn read(&self, range: Range<u64>) -> ByteStream {
        self.content.read(range)
    }
}

/// Objects by key, twice: a look-up touches a handful of cache lines however many keys there are, which a descent of a
/// tree does not; listing needs the order.
#[derive(Debug, Default)]
pub(super) struct Objects {
    by_key: HashMap<Arc<str>, Entry>,
    pub(super) sorted: BTreeMap<Arc<str>, Entry>,
}

impl Objects {
    fn get(&self, key: &str) -> Option<&Entry> {
        self.by_key.get(key)
    }

    fn len(&self) -> usize {
        self.by_key.len()
    }

    fn insert(&mut self, key: &str, entry: Entry) -> Option<Entry> {
        if let (Some(one), Some(other)) = (self.by_key.get_mut(key), self.sorted.get_mut(key)) {
            *other = Arc::clone(&entry);
            return Some(mem::replace(one, entry));
        }
        let key: Arc<str> = key.into();
        self.sorted.insert(Arc::clone(&key), Arc::clone(&entry));
        self.by_key.insert(key, entry)
    }

    fn remove(&mut self, key: &str) -> Option<Entry> {
        self.sorted.remove(key);
        self.by_key.remove(key)
    }
}

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) info: UploadInfo,
    pub(super) parts: BTreeMap<u16, Entry>,
}

#[derive(Debug)]
pub(super) struct Bucket {
    created: SystemTime,
    pub(super) objects: Objects,
    /// By key and id.
    pub(super) uploads: BTreeMap<(String, String), Upload>,
}

/// What is of no use any more once an upload is complete: the object that was replaced, and the upload.
pub(super) type Leftovers = (Option<Entry>, Upload);

/// What a writer holds of the accounts.
#[derive(Debug)]
pub(super) struct Claim {
    /// Bytes.
    pub(super) bytes: u64,
    /// Whether the writer has the credit of its place.
    credited: bool,
}

/// What a place is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Charge {
    bytes: u64,
    slots: u64,
}

#[derive(Debug)]
pub(super) struct State {
    config: MemoryConfig,
    buckets: BTreeMap<String, Bucket>,
    /// Bytes of the credited writer of a place. The place is charged for these or for what is there, whichever is more.
    /// Writers without credit are charged in full.
    credits: HashMap<Place, u64>,
    /// All charges.
    used: Charge,
}

impl State {
    pub(super) fn new(config: MemoryConfig) -> Self {
        Self { config, buckets: BTreeMap::new(), credits: HashMap::new(), used: Charge { bytes: 0, slots: 0 } }
    }

    pub(super) fn create_bucket(&mut self, name: &str) -> bool {
        if self.buckets.contains_key(name) {
            return false;
        }
        let bucket = Bucket { created: SystemTime::now(), objects: Objects::default(), uploads: BTreeMap::new() };
        self.buckets.insert(name.to_owned(), bucket);
        true
    }

    pub(super) fn delete_bucket(&mut self, name: &str) -> Result<()> {
        let bucket = self.bucket(name)?;
        if bucket.objects.len() > 0 {
            return Err(StoreError::BucketNotEmpty);
        }
        let uploads: Vec<_> = bucket.uploads.keys().cloned().collect();
        for (key, upload) in uploads {
            self.remove_upload(name, &key, &upload)?;
        }
        self.buckets.remove(name);
        Ok(())
    }

    pub(super) fn bucket_infos(&self) -> Vec<BucketInfo> {
        let info = |(name, bucket): (&String, &Bucket)| BucketInfo {
            name: name.clone(),
            created: bucket.created,
            versioning: Versioning::Off,
        };
        self.buckets.iter().map(info).collect()
    }

    pub(super) fn bucket_info(&self, name: &str) -> Result<BucketInfo> {
        Ok(BucketInfo { name: name.to_owned(), created: self.bucket(name)?.created, versioning: Versioning::Off })
    }

    pub(super) fn bucket(&self, name: &str) -> Result<&Bucket> {
        self.buckets.get(name).ok_or(StoreError::NoSuchBucket)
    }

    fn bucket_mut(&mut self, name: &str) -> Result<&mut Bucket> {
        self.buckets.get_mut(name).ok_or(StoreError::NoSuchBucket)
    }

    pub(super) fn object(&self, bucket: &str, key: &str) -> Result<&Entry> {
        self.bucket(bucket)?.objects.get(key).ok_or(StoreError::NoSuchKey)
    }

    pub(super) fn upload(&self, bucket: &str, key: &str, upload: &str) -> Result<&Upload> {
        let id = (key.to_owned(), upload.to_owned());
        self.bucket(bucket)?.uploads.get(&id).ok_or(StoreError::NoSuchUpload)
    }

    pub(super) fn usage(&self) -> Usage {
        let count = |of: fn(&Bucket) -> usize| self.buckets.values().map(|bucket| of(bucket) as u64).sum();
        Usage {
            objects: count(|bucket| bucket.objects.len()),
            bytes: self.used.bytes,
            capacity: self.config.capacity,
            uploads: count(|bucket| bucket.uploads.len()),
        }
    }

    /// What is at a place. Errors: its bucket or upload is gone.
    fn live(&self, place: &Place) -> Result<Option<&Entry>> {
        match &place.part {
            None => Ok(self.bucket(&place.bucket)?.objects.get(&place.key)),
            Some((upload, number)) => Ok(self.upload(&place.bucket, &place.key, upload)?.parts.get(number)),
        }
    }

    fn charge(&self, place: &Place) -> Charge {
        let live = self.live(place).ok().flatten().map(|entry| entry.info.size);
        let credit = self.credits.get(place).copied();
        let occupied = place.part.is_none() && (live.is_some() || credit.is_some());
        Charge { bytes: live.unwrap_or(0).max(credit.unwrap_or(0)), slots: occupied.into() }
    }

    /// Changes what is at `place` and keeps the accounts.
    fn change<R>(&mut self, place: &Place, change: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.charge(place);
        let result = change(self);
        let after = self.charge(place);
        // What is taken away was added before.
        self.used.bytes = self.used.bytes - before.bytes + after.bytes;
        self.used.slots = self.used.slots - before.slots + after.slots;
        result
    }

    fn room(&self, needed: u64) -> Result<()> {
        let free = self.config.capacity.saturating_sub(self.used.bytes);
        if needed > free { Err(StoreError::InsufficientStorage { needed, free }) } else { Ok(()) }
    }

    fn slot(&self, needed: u64) -> Result<()> {
        if self.used.slots.saturating_add(needed) > self.config.objects {
            return Err(StoreError::NoSlots(self.config.objects));
        }
        Ok(())
    }

    /// Starts a writer of `size` bytes, as far as that is known.
    pub(super) fn claim(&mut self, place: &Place, size: u64) -> Result<Claim> {
        let live = self.live(place)?.map(|entry| entry.info.size);
        let credited = !self.credits.contains_key(place);
        if credited {
            self.room(size.saturating_sub(live.unwrap_or(0)))?;
            if place.part.is_none() && live.is_none() {
                self.slot(1)?;
            }
            self.change(place, |state| state.credits.insert(place.clone(), size));
        } else {
            self.room(size)?;
            self.used.bytes += size;
        }
        Ok(Claim { bytes: size, credited })
    }

    /// Makes a claim larger or smaller: at least `least` and at most `want` bytes, as there is room.
    pub(super) fn resize(&mut self, place: &Place, claim: &mut Claim, least: u64, want: u64) -> Result<()> {
        let free = self.config.capacity.saturating_sub(self.used.bytes);
        // The most that this claim can be.
        let most = if claim.credited {
            free.saturating_add(self.charge(place).bytes)
        } else {
            free.saturating_add(claim.bytes)
        };
        if least > most {
            return Err(StoreError::InsufficientStorage { needed: least - most + free, free });
        }
        let bytes = want.min(most);
        if claim.credited {
            self.change(place, |state| state.credits.insert(place.clone(), bytes));
        } else {
            self.used.bytes = self.used.bytes - claim.bytes + bytes;
        }
        claim.bytes = bytes;
        Ok(())
    }

    /// Ends a writer that commits nothing.
    pub(super) fn release(&mut self, place: &Place, claim: &Claim) {
        if claim.credited {
            self.change(place, |state| state.credits.remove(place));
        } else {
            self.used.bytes -= claim.bytes;
        }
    }

    /// Ends a writer: puts `entry`, which is not longer than the claim, where it belongs. Returns what was there. On an
    /// error the claim still stands.
    pub(super) fn commit(
        &mut self,
        place: &Place,
        claim: &Claim,
        condition: &Condition,
        entry: Entry,
    ) -> Result<Option<Entry>> {
        let live = self.live(place)?;
        if place.part.is_none() {
            condition.check(live.map(|entry| entry.info.etag.as_str()))?;
            if live.is_none() && !self.credits.contains_key(place) {
                self.slot(1)?;
            }
        }
        if !claim.credited {
            self.used.bytes -= claim.bytes;
        }
        Ok(self.change(place, |state| {
            if claim.credited {
                state.credits.remove(place);
            }
            state.insert(place, entry)
        }))
    }

    /// Replaces what is at a place that exists.
    fn insert(&mut self, place: &Place, entry: Entry) -> Option<Entry> {
        let bucket = self.buckets.get_mut(&place.bucket)?;
        match &place.part {
            None => bucket.objects.insert(&place.key, entry),
            Some((upload, number)) => {
                let id = (place.key.clone(), upload.clone());
                bucket.uploads.get_mut(&id)?.parts.insert(*number, entry)
            }
        }
    }

    pub(super) fn delete(&mut self, bucket: &str, key: &str, condition: &Condition) -> Result<Option<Entry>> {
        condition.check(self.bucket(bucket)?.objects.get(key).map(|entry| entry.info.etag.as_str()))?;
        let place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: None };
        Ok(self.change(&place, |state| state.buckets.get_mut(bucket)?.objects.remove(key)))
    }

    pub(super) fn create_upload(&mut self, bucket: &str, info: UploadInfo) -> Result<()> {
        self.bucket(bucket)?;
        self.slot(1)?;
        self.used.slots += 1;
        let id = (info.key.clone(), info.upload.clone());
        self.bucket_mut(bucket)?.uploads.insert(id, Upload { info, parts: BTreeMap::new() });
        Ok(())
    }

    /// Removes an upload, and the charges of its parts.
    fn remove_upload(&mut self, bucket: &str, key: &str, upload: &str) -> Result<Upload> {
        let numbers: Vec<u16> = self.upload(bucket, key, upload)?.parts.keys().copied().collect();
        let mut place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: Some((upload.to_owned(), 0)) };
        let mut charged = |state: &Self| -> u64 {
            let charge = |number: &u16| {
                if let Some(part) = &mut place.part {
                    part.1 = *number;
                }
                state.charge(&place).bytes
            };
            numbers.iter().map(charge).sum()
        };
        let before = charged(self);
        let id = (key.to_owned(), upload.to_owned());
        let removed = self.bucket_mut(bucket)?.uploads.remove(&id).ok_or(StoreError::NoSuchUpload)?;
        // Writers of its parts that still go on.
        let after = charged(self);
        self.used.bytes = self.used.bytes - before + after;
        self.used.slots -= 1;
        Ok(removed)
    }

    pub(super) fn abort(&mut self, bucket: &str, key: &str, upload: &str) -> Result<Upload> {
        self.remove_upload(bucket, key, upload)
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
        commit.condition.check(self.bucket(bucket)?.objects.get(key).map(|entry| entry.info.etag.as_str()))?;
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
        let info = Arc::new(info);
        let entry = Arc::new(Stored { info: Arc::clone(&info), content: Content::new(pieces) });
        let freed = self.remove_upload(bucket, key, upload)?;
        let place = Place { bucket: bucket.to_owned(), key: key.to_owned(), part: None };
        let old = self.change(&place, |state| state.insert(&place, entry));
        Ok((info, (old, freed)))
    }
}
