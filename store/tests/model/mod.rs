//! A naive model of a store, and random histories that run over a real one beside it: after every step contents, errors
//! and accounts are the model's, to the byte.
//!
//! A store joins in by a [`Subject`], which says how to make one and what it does not have. A test that uses this has
//! `mod common;` and `mod model;`.
#![allow(clippy::cast_possible_truncation, dead_code, missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    rc::Rc,
};

use ernic_store::{
    Commit, Condition, Deleted, ListQuery, Metadata, Object, ObjectInfo, ObjectWriter, PartName, PutOptions, Source,
    Store, StoreError, Tags, UploadOptions, Usage, VersionQuery, Versioning,
};
use md5::{Digest, Md5};
use proptest::prelude::*;

use crate::common::{pattern, read_all, wait};

/// Limits of the stores under test: few and small, so that histories run into them.
pub const CAPACITY: u64 = 1_500_000;
/// See [`CAPACITY`].
pub const SLOTS: u64 = 6;

/// Longest content of no announced length in a store without [`Subject::FREE_SIZES`]: more, a part of an object needs one.
const LONGEST: usize = 4 << 20;

/// A store under test, empty at first.
pub trait Subject {
    /// Has versions and delete markers.
    const VERSIONS: bool = true;
    /// Has tags of objects.
    const TAGS: bool = true;
    /// Has tags of buckets.
    const BUCKET_TAGS: bool = true;
    /// Makes and deletes buckets; else there are those of [`BUCKETS`].
    const MAKES_BUCKETS: bool = true;
    /// Keeps to [`CAPACITY`] and [`SLOTS`], and its accounts are exact at any time.
    const LIMITS: bool = true;
    /// Copies by itself; else it may leave that to the caller.
    const COPIES: bool = true;
    /// Gives objects the ETags that the commit says, takes any text for a checksum, and keeps what the commit returned to the
    /// last field; else size, ETag, metadata and tags.
    const EXACT_INFO: bool = true;
    /// Content may be shorter or longer than was announced, and of any length where nothing was.
    const FREE_SIZES: bool = true;
    /// Objects are made of any parts in any order; else of one.
    const FREE_PARTS: bool = true;
    /// What was got can be read after it has been replaced or deleted.
    const HOLDS: bool = true;
    /// Checks conditions of commits and deletes.
    const CONDITIONS: bool = true;

    /// The store.
    fn store(&self) -> &dyn Store;

    /// Can be closed, when it has neither writers nor readers any more, and opened again: what was committed stays.
    const REOPENS: bool = false;

    /// Closes the store and opens it again.
    fn reopen(&mut self) {}
}

/// Names of the buckets. The first is made at first.
pub const BUCKETS: [&str; 2] = ["bucket-one", "bucket-two"];

/// Keys.
pub const KEYS: [&str; 8] = ["a", "a/1", "a/2", "b", "b/", "b/x/y", "c", "é"];

/// Chooses a version of a key.
#[derive(Debug, Clone)]
pub enum Pick {
    Current,
    Null,
    Unknown,
    One(Nth),
}

#[derive(Debug, Clone)]
pub enum Op {
    Put {
        at: At,
        size: u64,
        known: bool,
        condition: u8,
    },
    PutPart {
        upload: Nth,
        number: u16,
        size: u64,
        known: bool,
    },
    /// Asks a writer for `want` bytes and fills all or half of what it gives.
    Fill {
        writer: Nth,
        want: usize,
        half: bool,
    },
    /// Fills a writer up to its announced size, as far as there is room.
    FillUp {
        writer: Nth,
    },
    Commit {
        writer: Nth,
    },
    Drop {
        writer: Nth,
    },
    Delete {
        at: At,
        version: Pick,
        condition: u8,
    },
    Read {
        at: At,
        version: Pick,
        from: u64,
        to: u64,
    },
    Hold {
        at: At,
    },
    Release {
        held: Nth,
    },
    Copy {
        from: At,
        version: Pick,
        to: At,
        stale: bool,
        condition: u8,
    },
    SetTags {
        at: At,
        version: Pick,
        tag: u8,
    },
    List {
        bucket: usize,
        prefix: usize,
        after: usize,
        delimiter: bool,
        max: usize,
    },
    ListVersions {
        bucket: usize,
        prefix: usize,
        after: usize,
        version: Option<Nth>,
        delimiter: bool,
        max: usize,
    },
    CreateUpload {
        at: At,
    },
    Complete {
        upload: Nth,
        parts: Vec<u16>,
        condition: u8,
    },
    Abort {
        upload: Nth,
    },
    CreateBucket {
        bucket: usize,
    },
    DeleteBucket {
        bucket: usize,
    },
    SetVersioning {
        bucket: usize,
        on: bool,
    },
    SetBucketTags {
        bucket: usize,
        tag: u8,
    },
    Reopen,
}

/// Chooses one of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nth(pub usize);

impl Nth {
    fn index(self, len: usize) -> usize {
        self.0 % len
    }
}

fn nth() -> impl Strategy<Value = Nth> {
    (0usize..1000).prop_map(Nth)
}

/// Bucket and key by number.
pub type At = (usize, usize);

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..20,
        4 => 4090u64..4100,
        4 => 65_530u64..65_545,
        4 => 190_000u64..700_000,
        1 => 1_048_570u64..1_200_000,
    ]
}

fn picks() -> impl Strategy<Value = Pick> {
    prop_oneof![
        4 => Just(Pick::Current),
        1 => Just(Pick::Null),
        1 => Just(Pick::Unknown),
        4 => nth().prop_map(Pick::One),
    ]
}

/// One step. The second bucket and the later keys are rare, so that steps meet.
pub fn ops() -> impl Strategy<Value = Op> {
    let bucket = || prop_oneof![5 => Just(0), 1 => Just(1usize)];
    let at = move || (bucket(), prop_oneof![3 => 0..2usize, 2 => 0..KEYS.len()]);
    let key = || 0..KEYS.len();
    let index = nth;
    let condition = || 0u8..14;
    prop_oneof![
        9 => (at(), sizes(), any::<bool>(), condition())
            .prop_map(|(at, size, known, condition)| Op::Put { at, size, known, condition }),
        5 => (index(), 1u16..4, sizes(), any::<bool>())
            .prop_map(|(upload, number, size, known)| Op::PutPart { upload, number, size, known }),
        3 => (index(), 1usize..2_000_000, any::<bool>())
            .prop_map(|(writer, want, half)| Op::Fill { writer, want, half }),
        9 => index().prop_map(|writer| Op::FillUp { writer }),
        12 => index().prop_map(|writer| Op::Commit { writer }),
        2 => index().prop_map(|writer| Op::Drop { writer }),
        6 => (at(), picks(), condition())
            .prop_map(|(at, version, condition)| Op::Delete { at, version, condition }),
        3 => (at(), picks(), 0u64..300_000, 0u64..300_000)
            .prop_map(|(at, version, from, to)| Op::Read { at, version, from, to }),
        1 => at().prop_map(|at| Op::Hold { at }),
        1 => index().prop_map(|held| Op::Release { held }),
        3 => (at(), picks(), at(), prop::bool::weighted(0.1), condition())
            .prop_map(|(from, version, to, stale, condition)| Op::Copy { from, version, to, stale, condition }),
        2 => (at(), picks(), 0u8..3).prop_map(|(at, version, tag)| Op::SetTags { at, version, tag }),
        2 => (bucket(), key(), key(), any::<bool>(), 0usize..5).prop_map(|(bucket, prefix, after, delimiter, max)| {
            Op::List { bucket, prefix, after, delimiter, max }
        }),
        2 => (bucket(), key(), key(), prop::option::of(nth()), any::<bool>(), 0usize..6).prop_map(
            |(bucket, prefix, after, version, delimiter, max)| {
                Op::ListVersions { bucket, prefix, after, version, delimiter, max }
            }
        ),
        2 => at().prop_map(|at| Op::CreateUpload { at }),
        3 => (index(), prop::collection::vec(1u16..4, 0..4), condition())
            .prop_map(|(upload, parts, condition)| Op::Complete { upload, parts, condition }),
        1 => index().prop_map(|upload| Op::Abort { upload }),
        1 => (0..BUCKETS.len()).prop_map(|bucket| Op::CreateBucket { bucket }),
        1 => (0..BUCKETS.len()).prop_map(|bucket| Op::DeleteBucket { bucket }),
        2 => (bucket(), any::<bool>()).prop_map(|(bucket, on)| Op::SetVersioning { bucket, on }),
        1 => (bucket(), 0u8..3).prop_map(|(bucket, tag)| Op::SetBucketTags { bucket, tag }),
        1 => Just(Op::Reopen),
    ]
}

/// Bucket, key, and upload and number of a part.
type Place = (String, String, Option<(String, u16)>);

/// An object or part.
#[derive(Debug, Clone)]
struct Item {
    info: ObjectInfo,
    content: Rc<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Version {
    id: Option<String>,
    /// `None` for a delete marker.
    item: Option<Item>,
}

impl Version {
    fn size(&self) -> u64 {
        self.item.as_ref().map_or(0, |item| item.content.len() as u64)
    }

    fn spelled(&self) -> &str {
        self.id.as_deref().unwrap_or("null")
    }
}

#[derive(Debug, Clone, Default)]
struct Upload {
    options: UploadOptions,
    parts: BTreeMap<u16, Item>,
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    versioning: Versioning,
    tags: Tags,
    /// Oldest first; never empty.
    keys: BTreeMap<String, Vec<Version>>,
    /// By key and id.
    uploads: BTreeMap<(String, String), Upload>,
}

impl Bucket {
    fn current(&self, key: &str) -> Option<&Version> {
        self.keys.get(key)?.last()
    }

    fn object(&self, key: &str) -> Option<&Item> {
        self.current(key)?.item.as_ref()
    }

    fn find(&self, key: &str, version: Option<&str>) -> Option<&Version> {
        match version {
            None => self.current(key),
            Some(id) => self.keys.get(key)?.iter().find(|version| version.spelled() == id),
        }
    }

    fn null(&self, key: &str) -> Option<&Version> {
        self.find(key, Some("null"))
    }

    fn remove(&mut self, key: &str, id: &str) {
        if let Some(versions) = self.keys.get_mut(key) {
            versions.retain(|version| version.spelled() != id);
            if versions.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    fn push(&mut self, key: &str, version: Version) {
        if version.id.is_none() {
            self.remove(key, "null");
        }
        self.keys.entry(key.to_owned()).or_default().push(version);
    }
}

/// What a writer is charged for.
#[derive(Debug, Clone)]
struct Claim {
    place: Place,
    bytes: u64,
    /// It is the writer that shares the charge of what it replaces.
    credited: bool,
    /// Takes a slot of its own, as it makes a version.
    version: bool,
}

/// What is there, and who writes.
#[derive(Debug, Clone, Default)]
struct World {
    buckets: BTreeMap<String, Bucket>,
    claims: BTreeMap<u64, Claim>,
}

impl World {
    /// Bytes of what a writer to a place would replace.
    fn replaceable(&self, place: &Place) -> Option<u64> {
        let bucket = self.buckets.get(&place.0)?;
        match &place.2 {
            None => bucket.null(&place.1).map(Version::size),
            Some((upload, number)) => {
                let upload = bucket.uploads.get(&(place.1.clone(), upload.clone()))?;
                upload.parts.get(number).map(|part| part.content.len() as u64)
            }
        }
    }

    fn credit(&self, place: &Place) -> Option<u64> {
        self.claims.values().find(|claim| claim.credited && claim.place == *place).map(|claim| claim.bytes)
    }

    /// Bytes and slots, by their definition.
    fn used(&self) -> (u64, u64) {
        let mut places: BTreeSet<Place> =
            self.claims.values().filter(|claim| claim.credited).map(|claim| claim.place.clone()).collect();
        let (mut bytes, mut slots) = (0, 0);
        for (name, bucket) in &self.buckets {
            for (key, versions) in &bucket.keys {
                for version in versions {
                    if version.id.is_none() {
                        places.insert((name.clone(), key.clone(), None));
                    } else {
                        bytes += version.size();
                        slots += 1;
                    }
                }
            }
            for ((key, id), upload) in &bucket.uploads {
                slots += 1;
                let place = |&number: &u16| (name.clone(), key.clone(), Some((id.clone(), number)));
                places.extend(upload.parts.keys().map(place));
            }
        }
        for place in &places {
            bytes += self.replaceable(place).unwrap_or(0).max(self.credit(place).unwrap_or(0));
            slots += u64::from(place.2.is_none());
        }
        for claim in self.claims.values().filter(|claim| !claim.credited) {
            bytes += claim.bytes;
            slots += u64::from(claim.version);
        }
        (bytes, slots)
    }

    fn upload(&self, place: &Place) -> Option<&Upload> {
        let (id, _) = place.2.as_ref()?;
        self.buckets.get(&place.0)?.uploads.get(&(place.1.clone(), id.clone()))
    }

    /// Ends an upload. Its writers have no claim any more.
    fn end(&mut self, bucket: &str, id: &(String, String)) {
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.uploads.remove(id);
        }
        for claim in self.claims.values_mut() {
            let of_it = claim.place.2.as_ref().is_some_and(|part| part.0 == id.1);
            if of_it && claim.place.0 == bucket && claim.place.1 == id.0 {
                (claim.bytes, claim.credited) = (0, false);
            }
        }
    }
}

struct Writing {
    real: Box<dyn ObjectWriter>,
    id: u64,
    place: Place,
    size: Option<u64>,
    /// Bytes that it is to get.
    goal: u64,
    options: PutOptions,
    content: Vec<u8>,
}

/// The model beside its subject.
struct Model<S> {
    subject: S,
    world: World,
    writers: Vec<Writing>,
    held: Vec<(Object, Item)>,
    /// Ids that versions have had.
    ids: BTreeSet<String>,
    serial: u64,
}

/// Runs a history.
pub fn run<S: Subject>(subject: S, history: Vec<Op>) {
    let mut model = Model {
        subject,
        world: World::default(),
        writers: Vec::new(),
        held: Vec::new(),
        ids: BTreeSet::new(),
        serial: 0,
    };
    for name in if S::MAKES_BUCKETS { &BUCKETS[..1] } else { &BUCKETS[..] } {
        if S::MAKES_BUCKETS {
            assert!(wait(model.store().create_bucket(name)).unwrap());
        }
        model.world.buckets.insert((*name).into(), Bucket::default());
    }
    for op in history {
        model.step(op);
        model.check_usage();
    }
    model.check_all();
    if S::REOPENS {
        model.held.clear();
        model.writers.clear();
        model.world.claims.clear();
        model.subject.reopen();
        model.check_usage();
        model.check_all();
    }
    model.empty();
}

fn condition_holds(condition: &Condition, there: Option<&str>) -> Result<(), StoreError> {
    let holds = match condition {
        Condition::None => true,
        Condition::Absent => there.is_none(),
        Condition::Present => there.is_some(),
        Condition::Match(etag) => there == Some(etag),
        Condition::Differs(etag) => there != Some(etag),
    };
    match (holds, condition, there) {
        (true, ..) => Ok(()),
        (false, Condition::Match(_) | Condition::Present, None) => Err(StoreError::NoSuchKey),
        _ => Err(StoreError::PreconditionFailed),
    }
}

fn tags(tag: u8) -> Tags {
    (0..tag).map(|n| (format!("key-{n}"), format!("value {tag}"))).collect()
}

/// The versions of both sides are equal, and so are the errors.
fn agree<T: std::fmt::Debug>(what: &str, real: Result<T, StoreError>, model: Result<(), StoreError>) -> Option<T> {
    match (real, model) {
        (Ok(real), Ok(())) => Some(real),
        (
            Err(StoreError::DeleteMarker { version: v, current: c, .. }),
            Err(StoreError::DeleteMarker { version, current, .. }),
        ) => {
            assert_eq!((v, c), (version, current), "{what}");
            None
        }
        (Err(real), Err(model)) => {
            assert_eq!(real.to_string(), model.to_string(), "{what}");
            None
        }
        (real, model) => panic!("{what}: the store says {real:?}, the model {model:?}"),
    }
}

impl<S: Subject> Model<S> {
    fn store(&self) -> &dyn Store {
        self.subject.store()
    }

    fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn bucket(&self, name: &str) -> Result<&Bucket, StoreError> {
        self.world.buckets.get(name).ok_or(StoreError::NoSuchBucket)
    }

    /// Changes the world, if there is room.
    fn change(&mut self, change: impl FnOnce(&mut World)) -> Result<(), StoreError> {
        let old = self.world.clone();
        let before = old.used();
        change(&mut self.world);
        let after = self.world.used();
        let refusal = if !S::LIMITS {
            None
        } else if after.0 > before.0 && after.0 > CAPACITY {
            Some(StoreError::InsufficientStorage { needed: after.0 - before.0, free: CAPACITY - before.0 })
        } else if after.1 > before.1 && after.1 > SLOTS {
            Some(StoreError::NoSlots(SLOTS))
        } else {
            None
        };
        match refusal {
            Some(refusal) => {
                self.world = old;
                Err(refusal)
            }
            None => Ok(()),
        }
    }

    /// A condition on a key, by number.
    fn condition(&self, bucket: &str, key: &str, choice: u8) -> Condition {
        let there = self.world.buckets.get(bucket).and_then(|bucket| bucket.object(key));
        let etag = there.map_or_else(|| hex::encode(Md5::digest("none")), |item| item.info.etag.clone());
        let other = hex::encode(Md5::digest("other"));
        if !S::CONDITIONS {
            return Condition::None;
        }
        match choice {
            0 => Condition::Absent,
            1 => Condition::Match(etag),
            2 => Condition::Match(other),
            3 => Condition::Present,
            4 => Condition::Differs(etag),
            5 => Condition::Differs(other),
            _ => Condition::None,
        }
    }

    /// Checks a condition as the commit does.
    fn check_condition(&self, bucket: &str, key: &str, condition: &Condition) -> Result<(), StoreError> {
        condition_holds(condition, self.bucket(bucket)?.object(key).map(|item| item.info.etag.as_str()))
    }

    fn pick(&self, bucket: &str, key: &str, pick: &Pick) -> Option<String> {
        if !S::VERSIONS {
            return None;
        }
        match pick {
            Pick::Current => None,
            Pick::Null => Some("null".into()),
            Pick::Unknown => Some("unknown".into()),
            Pick::One(index) => {
                let versions = self.world.buckets.get(bucket)?.keys.get(key)?;
                Some(versions[index.index(versions.len())].spelled().to_owned())
            }
        }
    }

    /// A version that has content.
    fn readable(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<&Item, StoreError> {
        let found = self.bucket(bucket)?.find(key, version);
        let missing = || if version.is_none() { StoreError::NoSuchKey } else { StoreError::NoSuchVersion };
        let found = found.ok_or_else(missing)?;
        found.item.as_ref().ok_or_else(|| StoreError::DeleteMarker {
            version: found.spelled().to_owned(),
            current: version.is_none(),
            modified: std::time::SystemTime::UNIX_EPOCH,
        })
    }

    fn versioned(&self, bucket: &str) -> bool {
        self.world.buckets.get(bucket).is_some_and(|bucket| bucket.versioning == Versioning::Enabled)
    }

    /// Notes the id of a new version.
    fn note(&mut self, id: Option<&String>, versioned: bool) {
        assert_eq!(id.is_some(), versioned);
        if let Some(id) = id {
            assert!(self.ids.insert(id.clone()), "{id} comes twice");
        }
    }

    /// Checks what a commit returned against what it should be, and returns what is to be expected from now on.
    fn committed(&self, real: &ObjectInfo, mut expected: ObjectInfo) -> ObjectInfo {
        expected.modified = real.modified;
        expected.version.clone_from(&real.version);
        if S::EXACT_INFO {
            assert_eq!(*real, expected);
        } else {
            assert_eq!(real.size, expected.size);
            // What is made of content is known to be the same by its own hash, unless a store makes parts of it.
            assert!(real.etag == expected.etag || real.etag.contains('-'), "{} {}", real.etag, expected.etag);
        }
        real.clone()
    }

    /// Starts a writer on both sides.
    fn open(&mut self, place: Place, goal: u64, known: bool, condition: Condition) {
        let size = known.then_some(goal);
        let serial = self.serial();
        let options = PutOptions {
            size,
            meta: Metadata {
                content_type: Some(format!("type/{serial}")),
                user: [("serial".to_owned(), serial.to_string())].into(),
                ..Metadata::default()
            },
            tags: if S::TAGS { tags((serial % 3) as u8) } else { Tags::new() },
            condition,
        };
        let real = match &place.2 {
            None => wait(self.store().put(&place.0, &place.1, options.clone())),
            Some((upload, number)) => wait(self.store().put_part(&place.0, &place.1, upload, *number, size)),
        };
        let versioned = place.2.is_none() && self.versioned(&place.0);
        let claim = Claim {
            credited: !versioned && self.world.credit(&place).is_none(),
            place: place.clone(),
            bytes: size.unwrap_or(0),
            version: versioned,
        };
        let there = match (self.bucket(&place.0), &place.2) {
            (Err(error), _) => Err(error),
            (Ok(_), Some(_)) if self.world.upload(&place).is_none() => Err(StoreError::NoSuchUpload),
            _ => Ok(()),
        };
        let expected = there.and_then(|()| {
            self.change(|world| {
                world.claims.insert(serial, claim);
            })
        });
        let real = real.map(Unseen);
        if let Some(Unseen(real)) = agree("put", real, expected) {
            self.writers.push(Writing { real, id: serial, place, size, goal, options, content: Vec::new() });
        }
    }

    /// One buffer of a writer. Returns whether there was room.
    fn fill(&mut self, at: usize, want: usize, half: bool) -> bool {
        let writer = &self.writers[at];
        let written = writer.content.len() as u64;
        let gone = writer.place.2.is_some() && self.world.upload(&writer.place).is_none();
        let claim = &self.world.claims[&writer.id];
        // The most that this writer's claim can be.
        let (total, charge) = (
            self.world.used().0,
            match claim.credited {
                true => claim.bytes.max(self.world.replaceable(&claim.place).unwrap_or(0)),
                false => claim.bytes,
            },
        );
        let most = if S::LIMITS { CAPACITY - (total - charge) } else { u64::MAX };
        let writer = &mut self.writers[at];
        let announced = writer.size.unwrap_or(0).saturating_sub(written);
        let buffer = match wait(writer.real.buffer(want)) {
            Ok(buffer) => buffer,
            Err(StoreError::InsufficientStorage { .. }) => {
                assert!(!gone && announced == 0 && written == most, "{written} of {most}");
                return false;
            }
            Err(StoreError::NoSuchUpload) if gone => return false,
            Err(error) => panic!("{error}"),
        };
        assert!(!gone || !S::LIMITS);
        let len = buffer.len() as u64;
        assert!((1..=want.min(1 << 20) as u64).contains(&len));
        if announced > 0 {
            assert!(len <= announced);
        } else {
            assert!(written + len <= most);
            self.world.claims.get_mut(&writer.id).unwrap().bytes = written + len;
        }
        let filled = if half { len / 2 } else { len };
        let content = pattern(filled, written + writer.id);
        buffer[..content.len()].copy_from_slice(&content);
        writer.real.advance(content.len());
        writer.content.extend(content);
        assert_eq!(writer.real.written(), writer.content.len() as u64);
        true
    }

    /// Fills a writer up to its goal, as far as there is room.
    fn fill_up(&mut self, at: usize) {
        while let left @ 1.. = self.writers[at].goal.saturating_sub(self.writers[at].content.len() as u64) {
            if !self.fill(at, left as usize, false) {
                break;
            }
        }
    }

    fn commit(&mut self, at: usize) {
        let Writing { real, id, place, options, content, .. } = self.writers.swap_remove(at);
        let etag = hex::encode(Md5::digest(&content));
        let condition = if place.2.is_none() { options.condition.clone() } else { Condition::None };
        let checksums = if S::EXACT_INFO { vec![("CRC32".to_owned(), id.to_string())] } else { Vec::new() };
        let commit = Commit { etag: etag.clone(), checksums: checksums.clone(), condition: condition.clone() };
        let part = place.2.is_some();
        let info = ObjectInfo {
            size: content.len() as u64,
            etag,
            modified: std::time::SystemTime::UNIX_EPOCH,
            meta: if part { Metadata::default() } else { options.meta },
            checksums,
            parts: Vec::new(),
            tags: if part { Tags::new() } else { options.tags },
            version: None,
        };
        let real = wait(real.commit(commit));
        let mut item = Item { info, content: Rc::new(content) };
        let expected = match &place.2 {
            Some(_) if self.bucket(&place.0).is_err() => Err(StoreError::NoSuchBucket),
            Some(_) if self.world.upload(&place).is_none() => Err(StoreError::NoSuchUpload),
            Some((upload, number)) => {
                if let Ok(info) = &real {
                    item.info = self.committed(info, item.info);
                }
                let bucket = self.world.buckets.get_mut(&place.0).unwrap();
                let upload = bucket.uploads.get_mut(&(place.1.clone(), upload.clone())).unwrap();
                upload.parts.insert(*number, item);
                Ok(())
            }
            None => self.insert(&place.0, &place.1, &condition, item, real.as_deref().ok(), |world| {
                world.claims.remove(&id);
            }),
        };
        // Also where it failed.
        self.world.claims.remove(&id);
        agree("commit", real, expected);
    }

    /// Makes an object; `real` is what the store made. `ends` takes away what ends with it.
    fn insert(
        &mut self,
        bucket: &str,
        key: &str,
        condition: &Condition,
        mut item: Item,
        real: Option<&ObjectInfo>,
        ends: impl FnOnce(&mut World),
    ) -> Result<(), StoreError> {
        self.check_condition(bucket, key, condition)?;
        let versioned = self.versioned(bucket);
        if let Some(real) = real {
            item.info = self.committed(real, item.info);
            self.note(real.version.as_ref(), versioned);
        } else if versioned {
            // It is refused below, or the two do not agree.
            item.info.version = Some("refused".into());
        }
        let version = Version { id: item.info.version.clone(), item: Some(item) };
        self.change(|world| {
            ends(world);
            world.buckets.get_mut(bucket).unwrap().push(key, version);
        })
    }

    fn upload(&self, index: Nth) -> Option<(String, (String, String))> {
        let all: Vec<_> = self
            .world
            .buckets
            .iter()
            .flat_map(|(name, bucket)| bucket.uploads.keys().map(|id| (name.clone(), id.clone())))
            .collect();
        (!all.is_empty()).then(|| all[index.index(all.len())].clone())
    }

    fn writer(&self, index: Nth) -> Option<usize> {
        (!self.writers.is_empty()).then(|| index.index(self.writers.len()))
    }

    #[allow(clippy::too_many_lines)]
    fn step(&mut self, op: Op) {
        let name = |at: At| (BUCKETS[at.0], KEYS[at.1]);
        match op {
            Op::Put { at, size, known, condition } => {
                let (bucket, key) = name(at);
                let condition = self.condition(bucket, key, condition);
                self.open((bucket.into(), key.into(), None), size, known, condition);
            }
            Op::PutPart { upload, number, size, known } => {
                if let Some((bucket, (key, id))) = self.upload(upload) {
                    self.open((bucket, key, Some((id, number))), size, known, Condition::None);
                }
            }
            Op::Fill { writer, want, half } => {
                if let Some(at) = self.writer(writer) {
                    let Writing { size, content, .. } = &self.writers[at];
                    let left = size.map_or(LONGEST, |size| size as usize).saturating_sub(content.len());
                    let want = if S::FREE_SIZES { want } else { want.min(left) };
                    if want > 0 {
                        self.fill(at, want, half);
                    }
                }
            }
            Op::FillUp { writer } => {
                if let Some(at) = self.writer(writer) {
                    self.fill_up(at);
                }
            }
            Op::Commit { writer } => {
                if let Some(at) = self.writer(writer) {
                    // One whose upload has gone does not become full, and its commit says so.
                    if !S::FREE_SIZES && self.writers[at].size.is_some() {
                        self.fill_up(at);
                    }
                    self.commit(at);
                }
            }
            Op::Drop { writer } => {
                if let Some(at) = self.writer(writer) {
                    let writer = self.writers.swap_remove(at);
                    self.world.claims.remove(&writer.id);
                }
            }
            Op::Delete { at, version, condition } => {
                let (bucket, key) = name(at);
                let version = self.pick(bucket, key, &version);
                let condition = self.condition(bucket, key, condition);
                self.delete(bucket, key, version.as_deref(), condition);
            }
            Op::Read { at, version, from, to } => {
                let (bucket, key) = name(at);
                let version = self.pick(bucket, key, &version);
                let real = wait(self.store().get(bucket, key, version.as_deref()));
                let head = wait(self.store().head(bucket, key, version.as_deref()));
                let item = self.readable(bucket, key, version.as_deref()).cloned();
                let there = item.as_ref().map(|_| ()).map_err(same);
                agree("head", head, item.as_ref().map(|_| ()).map_err(same));
                if let (Some(object), Ok(item)) = (agree("get", real, there), item) {
                    alike::<S>(&object.info, &item.info);
                    let len = item.content.len() as u64;
                    let range = from.min(len) as usize..to.clamp(from.min(len), len) as usize;
                    assert!(read_all(&object, from..to) == item.content[range]);
                }
            }
            Op::Hold { at } => {
                let (bucket, key) = name(at);
                if S::HOLDS
                    && let Ok(item) = self.readable(bucket, key, None).cloned()
                {
                    self.held.push((wait(self.store().get(bucket, key, None)).unwrap(), item));
                }
            }
            Op::Release { held } => {
                if !self.held.is_empty() {
                    let (object, item) = self.held.swap_remove(held.index(self.held.len()));
                    verify::<S>(&object, &item);
                }
            }
            Op::Copy { from, version, to, stale, condition } => {
                self.copy(name(from), &version, name(to), stale, condition)
            }
            Op::SetTags { at, version, tag } => {
                let (bucket, key) = name(at);
                if S::TAGS {
                    let version = self.pick(bucket, key, &version);
                    self.set_tags(bucket, key, version.as_deref(), tags(tag));
                }
            }
            Op::List { bucket, prefix, after, delimiter, max } => {
                let query = ListQuery {
                    prefix: if prefix < 4 { String::new() } else { KEYS[prefix].into() },
                    after: if after < 2 { String::new() } else { KEYS[after].into() },
                    delimiter: if delimiter { "/".into() } else { String::new() },
                    max,
                };
                self.list(BUCKETS[bucket], &query);
            }
            Op::ListVersions { bucket, prefix, after, version, delimiter, max } => {
                let bucket = BUCKETS[bucket];
                let after = if after < 2 { "" } else { KEYS[after] };
                let version = version.and_then(|index| self.pick(bucket, after, &Pick::One(index)));
                let query = VersionQuery {
                    prefix: if prefix < 4 { String::new() } else { KEYS[prefix].into() },
                    after: after.into(),
                    after_version: version,
                    delimiter: if delimiter { "/".into() } else { String::new() },
                    max,
                };
                if S::VERSIONS {
                    self.list_versions(bucket, &query);
                }
            }
            Op::CreateUpload { at } => {
                let (bucket, key) = name(at);
                self.create_upload(bucket, key);
            }
            Op::Complete { upload, parts, condition } => {
                if let Some((bucket, id)) = self.upload(upload) {
                    self.complete(&bucket, &id, &parts, condition);
                }
            }
            Op::Abort { upload } => {
                if let Some((bucket, id)) = self.upload(upload) {
                    self.world.end(&bucket, &id);
                    wait(self.store().abort_upload(&bucket, &id.0, &id.1)).unwrap();
                    let again = wait(self.store().abort_upload(&bucket, &id.0, &id.1));
                    agree("abort", again, Err(StoreError::NoSuchUpload));
                }
            }
            Op::CreateBucket { bucket } => {
                if S::MAKES_BUCKETS {
                    let bucket = BUCKETS[bucket];
                    let new = !self.world.buckets.contains_key(bucket);
                    assert_eq!(wait(self.store().create_bucket(bucket)).unwrap(), new);
                    self.world.buckets.entry(bucket.into()).or_default();
                }
            }
            Op::DeleteBucket { bucket } => {
                if S::MAKES_BUCKETS {
                    self.delete_bucket(BUCKETS[bucket]);
                }
            }
            Op::SetVersioning { bucket, on } => {
                if S::VERSIONS {
                    let versioning = if on { Versioning::Enabled } else { Versioning::Suspended };
                    let real = wait(self.store().set_versioning(BUCKETS[bucket], versioning));
                    agree("set_versioning", real, self.bucket(BUCKETS[bucket]).map(|_| ()));
                    if let Some(bucket) = self.world.buckets.get_mut(BUCKETS[bucket]) {
                        bucket.versioning = versioning;
                    }
                }
            }
            Op::SetBucketTags { bucket, tag } => {
                if S::BUCKET_TAGS {
                    let real = wait(self.store().set_bucket_tags(BUCKETS[bucket], tags(tag)));
                    agree("set_bucket_tags", real, self.bucket(BUCKETS[bucket]).map(|_| ()));
                    if let Some(bucket) = self.world.buckets.get_mut(BUCKETS[bucket]) {
                        bucket.tags = tags(tag);
                    }
                }
            }
            Op::Reopen => {
                let (writers, held) = (std::mem::take(&mut self.writers), std::mem::take(&mut self.held));
                drop((writers, held));
                self.world.claims.clear();
                self.subject.reopen();
            }
        }
    }

    fn delete(&mut self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) {
        let real = wait(self.store().delete(bucket, key, version, condition.clone()));
        let Ok(there) = self.bucket(bucket) else {
            agree("delete", real, Err(StoreError::NoSuchBucket));
            return;
        };
        let versioning = there.versioning;
        let found = there.find(key, version);
        let etag = found.and_then(|version| version.item.as_ref()).map(|item| item.info.etag.as_str());
        let holds = condition_holds(&condition, etag);
        let (object, marker) = (found.is_some_and(|found| found.item.is_some()), found.is_some());
        let expected = if holds.is_err() {
            (holds, Deleted::default())
        } else if version.is_none() && versioning != Versioning::Off {
            let versioned = versioning == Versioning::Enabled;
            let id = real.as_ref().ok().and_then(|deleted| deleted.version.clone());
            let marker = Version {
                id: if versioned { id.clone().or_else(|| Some("refused".into())) } else { None },
                item: None,
            };
            let spelled = if versioned { id } else { Some("null".into()) };
            let done = self.change(|world| world.buckets.get_mut(bucket).unwrap().push(key, marker.clone()));
            if done.is_ok() {
                self.note(marker.id.as_ref(), versioned);
            }
            (done, Deleted { existed: object, marker: true, version: spelled })
        } else {
            let existed = if version.is_none() { object } else { marker };
            let spelled = version.unwrap_or("null");
            self.world.buckets.get_mut(bucket).unwrap().remove(key, spelled);
            let named = (existed && versioning != Versioning::Off).then(|| spelled.to_owned());
            (Ok(()), Deleted { existed, marker: existed && !object, version: named })
        };
        if let Some(mut deleted) = agree("delete", real, expected.0) {
            if !S::EXACT_INFO {
                // S3 itself does not say whether there was something.
                deleted.existed = expected.1.existed;
            }
            assert_eq!(deleted, expected.1);
        }
    }

    fn copy(&mut self, from: (&str, &str), version: &Pick, to: (&str, &str), stale: bool, condition: u8) {
        let version = self.pick(from.0, from.1, version);
        let source = self.readable(from.0, from.1, version.as_deref()).cloned();
        let known = source.as_ref().map_or_else(|_| "none".to_owned(), |item| item.info.etag.clone());
        let etag = if stale { hex::encode(Md5::digest("stale")) } else { known };
        let serial = self.serial();
        let options = PutOptions {
            meta: Metadata { content_type: Some(format!("copy/{serial}")), ..Metadata::default() },
            tags: if S::TAGS { tags(1) } else { Tags::new() },
            ..PutOptions::default()
        };
        let condition = self.condition(to.0, to.1, condition);
        let content = source.as_ref().map(|item| Rc::clone(&item.content)).unwrap_or_default();
        let info = ObjectInfo {
            size: content.len() as u64,
            etag: hex::encode(Md5::digest(&*content)),
            modified: std::time::SystemTime::UNIX_EPOCH,
            meta: options.meta.clone(),
            checksums: if S::EXACT_INFO { vec![("CRC32".into(), serial.to_string())] } else { Vec::new() },
            parts: Vec::new(),
            tags: options.tags.clone(),
            version: None,
        };
        let commit =
            Commit { etag: info.etag.clone(), checksums: info.checksums.clone(), condition: condition.clone() };
        let named = Source { bucket: from.0.into(), key: from.1.into(), version, etag };
        let real = match wait(self.store().copy(&named, to.0, to.1, &options, &commit)) {
            Ok(Some(info)) => Ok(info),
            Ok(None) => {
                assert!(!S::COPIES);
                return;
            }
            Err(error) => Err(error),
        };
        let expected = match source {
            Err(error) => Err(error),
            Ok(_) if stale => Err(StoreError::PreconditionFailed),
            Ok(_) => self.insert(to.0, to.1, &condition, Item { info, content }, real.as_deref().ok(), |_| ()),
        };
        agree("copy", real, expected);
    }

    fn set_tags(&mut self, bucket: &str, key: &str, version: Option<&str>, tags: Tags) {
        let real = wait(self.store().set_tags(bucket, key, version, tags.clone()));
        let there = self.readable(bucket, key, version).map(|item| item.info.clone());
        if let Some(real) = agree("set_tags", real, there.as_ref().map(|_| ()).map_err(same)) {
            let expected = ObjectInfo { tags, ..there.unwrap() };
            alike::<S>(&real, &expected);
            let versions = self.world.buckets.get_mut(bucket).unwrap().keys.get_mut(key).unwrap();
            let found = match version {
                None => versions.last_mut(),
                Some(id) => versions.iter_mut().find(|version| version.spelled() == id),
            };
            found.unwrap().item.as_mut().unwrap().info = expected;
        }
    }

    fn create_upload(&mut self, bucket: &str, key: &str) {
        let serial = self.serial();
        let options = UploadOptions {
            meta: Metadata { content_type: Some(format!("upload/{serial}")), ..Metadata::default() },
            tags: if S::TAGS { tags((serial % 3) as u8) } else { Tags::new() },
            checksum: None,
        };
        let real = wait(self.store().create_upload(bucket, key, options.clone()));
        let id = (key.to_owned(), real.as_ref().cloned().unwrap_or_default());
        let expected = self.bucket(bucket).map(|_| ()).and_then(|()| {
            let upload = Upload { options, parts: BTreeMap::new() };
            self.change(|world| {
                let old = world.buckets.get_mut(bucket).unwrap().uploads.insert(id, upload);
                assert!(old.is_none(), "an id comes twice");
            })
        });
        agree("create_upload", real, expected);
    }

    fn complete(&mut self, bucket: &str, id: &(String, String), parts: &[u16], choice: u8) {
        let condition = self.condition(bucket, &id.0, choice);
        let upload = self.world.buckets[bucket].uploads[id].clone();
        let one: Vec<u16> = parts.iter().copied().filter(|number| upload.parts.contains_key(number)).take(1).collect();
        let parts = if S::FREE_PARTS { parts } else { &one };
        if parts.is_empty() && !S::FREE_PARTS {
            return;
        }
        let mut seen = BTreeSet::new();
        let missing = parts.iter().find(|number| !seen.insert(**number) || !upload.parts.contains_key(number));
        let name = |&number: &u16| PartName {
            number,
            etag: upload.parts.get(&number).map_or_else(String::new, |part| part.info.etag.clone()),
        };
        let names: Vec<PartName> = parts.iter().map(name).collect();
        let chosen: Vec<&Item> = parts.iter().filter_map(|number| upload.parts.get(number)).collect();
        let content: Vec<u8> = chosen.iter().flat_map(|part| part.content.iter().copied()).collect();
        let digests: Vec<u8> = names.iter().flat_map(|name| hex::decode(&name.etag).unwrap_or_default()).collect();
        let object_part = |(&number, part): (&u16, &&Item)| ernic_store::ObjectPart {
            number,
            size: part.content.len() as u64,
            checksums: part.info.checksums.clone(),
        };
        let info = ObjectInfo {
            size: content.len() as u64,
            etag: format!("{}-{}", hex::encode(Md5::digest(&digests)), parts.len()),
            modified: std::time::SystemTime::UNIX_EPOCH,
            meta: upload.options.meta.clone(),
            checksums: Vec::new(),
            parts: parts.iter().zip(&chosen).map(object_part).collect(),
            tags: upload.options.tags.clone(),
            version: None,
        };
        let commit = Commit { etag: info.etag.clone(), checksums: Vec::new(), condition: condition.clone() };
        let real = wait(self.store().complete_upload(bucket, &id.0, &id.1, &names, commit));
        let expected = match (self.check_condition(bucket, &id.0, &condition), missing) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(&number)) => Err(StoreError::NoSuchPart(number)),
            (Ok(()), None) => {
                let item = Item { info, content: Rc::new(content) };
                self.insert(bucket, &id.0, &condition, item, real.as_deref().ok(), |world| world.end(bucket, id))
            }
        };
        agree("complete_upload", real, expected);
    }

    fn delete_bucket(&mut self, bucket: &str) {
        let real = wait(self.store().delete_bucket(bucket));
        let expected = match self.bucket(bucket) {
            Err(error) => Err(error),
            Ok(there) if !there.keys.is_empty() => Err(StoreError::BucketNotEmpty),
            Ok(there) => {
                for id in there.uploads.keys().cloned().collect::<Vec<_>>() {
                    self.world.end(bucket, &id);
                }
                self.world.buckets.remove(bucket);
                Ok(())
            }
        };
        agree("delete_bucket", real, expected);
    }

    fn list(&self, bucket: &str, query: &ListQuery) {
        let real = wait(self.store().list(bucket, query));
        let Some(page) = agree("list", real, self.bucket(bucket).map(|_| ())) else {
            return;
        };
        let mut entries = BTreeMap::new();
        for (key, versions) in &self.world.buckets[bucket].keys {
            let Some(item) = versions.last().and_then(|version| version.item.as_ref()) else {
                continue;
            };
            match group(key, &query.prefix, &query.delimiter) {
                None => {}
                Some(None) => drop(entries.insert(key.clone(), Some(item.info.clone()))),
                Some(Some(group)) => drop(entries.insert(group, None)),
            }
        }
        entries.retain(|entry, _| *entry > query.after);
        let expected: Vec<_> = entries.iter().take(query.max).collect();
        let mut got: Vec<_> = page.objects.iter().map(|(key, info)| (key.clone(), Some((**info).clone()))).collect();
        assert!(got.is_sorted_by_key(|(key, _)| key) && page.prefixes.is_sorted());
        got.extend(page.prefixes.into_iter().map(|group| (group, None)));
        got.sort_by(|(one, _), (other, _)| one.cmp(other));
        if S::EXACT_INFO {
            assert_eq!(got.iter().map(|(entry, info)| (entry, info)).collect::<Vec<_>>(), expected);
        } else {
            // Listings of other stores say less of an object.
            let brief = |entry: &String, info: &Option<ObjectInfo>| {
                (entry.clone(), info.as_ref().map(|info| (info.size, info.etag.clone())))
            };
            let got: Vec<_> = got.iter().map(|(entry, info)| brief(entry, info)).collect();
            assert_eq!(got, expected.iter().map(|(entry, info)| brief(entry, info)).collect::<Vec<_>>());
        }
        let next = expected.last().filter(|_| expected.len() < entries.len()).map(|(entry, _)| (*entry).clone());
        assert_eq!(page.next, next);
    }

    fn list_versions(&self, bucket: &str, query: &VersionQuery) {
        let real = wait(self.store().list_versions(bucket, query));
        let Some(page) = agree("list_versions", real, self.bucket(bucket).map(|_| ())) else {
            return;
        };
        // Name of the entry, number of the version from the newest on, and the version.
        let mut entries = BTreeMap::new();
        for (key, versions) in &self.world.buckets[bucket].keys {
            for (n, version) in versions.iter().rev().enumerate() {
                match group(key, &query.prefix, &query.delimiter) {
                    None => {}
                    Some(None) => drop(entries.insert((key.clone(), n), Some(version))),
                    Some(Some(group)) => drop(entries.insert((group, 0), None)),
                }
            }
        }
        let from = match &query.after_version {
            _ if query.after.is_empty() => Bound::Unbounded,
            Some(id) => {
                let of_key = self.world.buckets[bucket].keys.get(&query.after);
                let at = of_key.and_then(|all| all.iter().rev().position(|version| version.spelled() == id));
                Bound::Excluded((query.after.clone(), at.unwrap_or(usize::MAX)))
            }
            None => Bound::Excluded((query.after.clone(), usize::MAX)),
        };
        // A group that the marker is in, or is, was listed before.
        let rest: Vec<_> = entries.range((from, Bound::Unbounded)).collect();
        let expected: Vec<_> = rest.iter().take(query.max).collect();
        let mut versions = Vec::new();
        let mut groups = Vec::new();
        for ((name, n), version) in &expected {
            match version {
                Some(version) => versions.push((name.clone(), *n == 0, version.id.clone(), version.item.clone())),
                None => groups.push(name.clone()),
            }
        }
        assert_eq!(page.prefixes, groups);
        assert_eq!(page.versions.len(), versions.len());
        for (real, (key, latest, id, item)) in page.versions.iter().zip(versions) {
            assert_eq!((&real.key, real.latest, &real.version), (&key, latest, &id));
            assert_eq!(real.info.as_deref(), item.as_ref().map(|item| &item.info));
            if let Some(item) = item {
                assert_eq!(real.modified, item.info.modified);
            }
        }
        let last = expected.last().filter(|_| expected.len() < rest.len());
        let next = last.map(|((name, _), version)| (name.clone(), version.map(|version| version.spelled().to_owned())));
        assert_eq!(page.next, next);
    }

    fn check_usage(&self) {
        if !S::LIMITS {
            return;
        }
        let buckets = || self.world.buckets.values();
        let objects = buckets().flat_map(|bucket| bucket.keys.values().flatten());
        let usage = self.store().usage();
        let expected = Usage {
            objects: objects.filter(|version| version.item.is_some()).count() as u64,
            bytes: self.world.used().0,
            capacity: CAPACITY,
            uploads: buckets().map(|bucket| bucket.uploads.len() as u64).sum(),
        };
        assert_eq!(usage, expected);
        assert!(usage.bytes <= CAPACITY);
    }

    fn check_all(&self) {
        let store = self.store();
        let buckets: Vec<_> = wait(store.list_buckets()).unwrap();
        let real: Vec<_> = buckets.iter().map(|bucket| (bucket.name.clone(), bucket.versioning)).collect();
        let expected = self.world.buckets.iter().map(|(name, bucket)| (name.clone(), bucket.versioning));
        assert_eq!(real, expected.collect::<Vec<_>>());
        for (name, bucket) in &self.world.buckets {
            assert_eq!(wait(store.head_bucket(name)).unwrap().versioning, bucket.versioning);
            if S::BUCKET_TAGS {
                assert_eq!(wait(store.bucket_tags(name)).unwrap(), bucket.tags);
            }
            for (key, versions) in &bucket.keys {
                for version in versions {
                    if let Some(item) = &version.item {
                        let named = S::VERSIONS.then(|| version.spelled());
                        verify::<S>(&wait(store.get(name, key, named)).unwrap(), item);
                    }
                }
            }
            self.list(name, &ListQuery { max: 1000, ..ListQuery::default() });
            if S::VERSIONS {
                self.list_versions(name, &VersionQuery { max: 1000, ..VersionQuery::default() });
            }
            let uploads = wait(store.list_uploads(name)).unwrap();
            let ids: Vec<_> = uploads.iter().map(|upload| (upload.key.clone(), upload.upload.clone())).collect();
            assert_eq!(ids, bucket.uploads.keys().cloned().collect::<Vec<_>>());
            for ((key, id), upload) in &bucket.uploads {
                if S::EXACT_INFO {
                    assert_eq!(wait(store.head_upload(name, key, id)).unwrap().options, upload.options);
                }
                let real = wait(store.list_parts(name, key, id)).unwrap();
                let brief = |number: u16, info: &ObjectInfo| (number, info.etag.clone(), info.size);
                let real: Vec<_> = real.iter().map(|part| brief(part.number, &part.info)).collect();
                let parts: Vec<_> = upload.parts.iter().map(|(&number, part)| brief(number, &part.info)).collect();
                assert_eq!(real, parts);
            }
        }
        for (object, item) in &self.held {
            verify::<S>(object, item);
        }
    }

    /// Everything can be taken away again.
    fn empty(mut self) {
        self.writers.clear();
        self.world.claims.clear();
        self.check_usage();
        let buckets = std::mem::take(&mut self.world.buckets);
        for (name, bucket) in &buckets {
            for (key, id) in bucket.uploads.keys() {
                wait(self.store().abort_upload(name, key, id)).unwrap();
            }
            for (key, versions) in &bucket.keys {
                for version in versions {
                    let named = S::VERSIONS.then(|| version.spelled());
                    let deleted = wait(self.store().delete(name, key, named, Condition::None)).unwrap();
                    assert!(deleted.existed || !S::EXACT_INFO);
                }
            }
            if S::MAKES_BUCKETS {
                wait(self.store().delete_bucket(name)).unwrap();
            }
        }
        if S::LIMITS {
            assert_eq!(self.store().usage(), Usage { capacity: CAPACITY, ..Usage::default() });
        }
        for (object, item) in &self.held {
            verify::<S>(object, item);
        }
    }
}

/// Shows nothing of what it holds.
struct Unseen<T>(T);

impl<T> std::fmt::Debug for Unseen<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a writer")
    }
}

/// The same error once more.
fn same(error: &StoreError) -> StoreError {
    match error {
        StoreError::NoSuchBucket => StoreError::NoSuchBucket,
        StoreError::NoSuchKey => StoreError::NoSuchKey,
        StoreError::NoSuchVersion => StoreError::NoSuchVersion,
        StoreError::DeleteMarker { version, current, modified } => {
            StoreError::DeleteMarker { version: version.clone(), current: *current, modified: *modified }
        }
        error => panic!("{error}"),
    }
}

/// What a key is listed as: not at all, as itself, or as its group.
#[allow(clippy::option_option)]
fn group(key: &str, prefix: &str, delimiter: &str) -> Option<Option<String>> {
    let behind = key.strip_prefix(prefix)?;
    let at = behind.find(delimiter).filter(|_| !delimiter.is_empty());
    Some(at.map(|at| key[..prefix.len() + at + delimiter.len()].to_owned()))
}

/// What is known of an object is what is expected, as far as the store keeps it.
fn alike<S: Subject>(real: &ObjectInfo, expected: &ObjectInfo) {
    if S::EXACT_INFO {
        assert_eq!(real, expected);
    } else {
        let kept = |info: &ObjectInfo| (info.size, info.etag.clone(), info.meta.clone(), info.tags.clone());
        assert_eq!(kept(real), kept(expected));
    }
}

fn verify<S: Subject>(object: &Object, item: &Item) {
    alike::<S>(&object.info, &item.info);
    assert!(read_all(object, 0..u64::MAX) == *item.content);
}
