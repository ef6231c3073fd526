//! The disk store is like the memory store: in every answer and in every account, also after it was opened again, and after
//! the end of the process.

use std::{fs, path::Path, sync::Arc};

use ernic_store::{
    Commit, Condition, DiskConfig, DiskStore, Durability, ListQuery, MemoryConfig, MemoryStore, Metadata, Object,
    ObjectInfo, ObjectWriter, PartName, PutOptions, Result, Source, Store, StoreError, UploadOptions, VersionQuery,
    Versioning,
};
use proptest::{prelude::*, sample::Index, test_runner::FileFailurePersistence};

use super::support::{pattern, read, wait};

const CAPACITY: u64 = 900_000;
const SLOTS: u64 = 12;
const BUCKETS: [&str; 3] = ["a", "a-b", "ab"];
const KEYS: [&str; 6] = ["a", "a/1", "a/2", "b/x/y", "c", "é"];

#[derive(Debug, Clone)]
enum Op {
    Bucket { bucket: usize, delete: bool },
    Versioning { bucket: usize, on: u8 },
    Put { bucket: usize, key: usize, size: u64, known: bool },
    Part { upload: Index, number: u16, size: u64, known: bool },
    Fill { writer: Index, most: u64 },
    Commit { writer: Index, condition: u8 },
    Drop { writer: Index },
    Whole { bucket: usize, key: usize, size: u64, known: bool },
    Delete { bucket: usize, key: usize, version: Option<Index>, condition: u8 },
    Get { bucket: usize, key: usize, version: Option<Index>, from: u64, to: u64 },
    Hold { bucket: usize, key: usize },
    Copy { from: (usize, usize), version: Option<Index>, to: (usize, usize), condition: u8 },
    Tags { bucket: usize, key: usize, version: Option<Index>, tag: u8 },
    BucketTags { bucket: usize, tag: u8 },
    List { bucket: usize, prefix: usize, after: usize, delimiter: bool, max: usize },
    Versions { bucket: usize, prefix: usize, after: usize, version: Option<Index>, delimiter: bool, max: usize },
    CreateUpload { bucket: usize, key: usize },
    Complete { upload: Index, parts: Vec<u16>, condition: u8 },
    Abort { upload: Index },
    Reopen { crash: bool },
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..20,
        4 => 4090u64..4100,
        3 => 16_380u64..16_390,
        3 => 65_530u64..65_545,
        3 => 190_000u64..400_000,
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    let (bucket, key, index) =
        (|| prop_oneof![4 => Just(0usize), 1 => 1..BUCKETS.len()], || 0..KEYS.len(), any::<Index>);
    let version = || prop::option::weighted(0.4, index());
    prop_oneof![
        1 => (bucket(), any::<bool>()).prop_map(|(bucket, delete)| Op::Bucket { bucket, delete }),
        2 => (bucket(), 0u8..3).prop_map(|(bucket, on)| Op::Versioning { bucket, on }),
        4 => (bucket(), key(), sizes(), any::<bool>())
            .prop_map(|(bucket, key, size, known)| Op::Put { bucket, key, size, known }),
        4 => (index(), 1u16..4, sizes(), any::<bool>())
            .prop_map(|(upload, number, size, known)| Op::Part { upload, number, size, known }),
        5 => (index(), sizes()).prop_map(|(writer, most)| Op::Fill { writer, most }),
        6 => (index(), 0u8..10).prop_map(|(writer, condition)| Op::Commit { writer, condition }),
        1 => index().prop_map(|writer| Op::Drop { writer }),
        8 => (bucket(), key(), sizes(), any::<bool>())
            .prop_map(|(bucket, key, size, known)| Op::Whole { bucket, key, size, known }),
        4 => (bucket(), key(), version(), 0u8..10)
            .prop_map(|(bucket, key, version, condition)| Op::Delete { bucket, key, version, condition }),
        4 => (bucket(), key(), version(), 0u64..300_000, 0u64..300_000)
            .prop_map(|(bucket, key, version, from, to)| Op::Get { bucket, key, version, from, to }),
        1 => (bucket(), key()).prop_map(|(bucket, key)| Op::Hold { bucket, key }),
        3 => ((bucket(), key()), version(), (bucket(), key()), 0u8..10)
            .prop_map(|(from, version, to, condition)| Op::Copy { from, version, to, condition }),
        1 => (bucket(), key(), version(), 0u8..3)
            .prop_map(|(bucket, key, version, tag)| Op::Tags { bucket, key, version, tag }),
        1 => (bucket(), 0u8..3).prop_map(|(bucket, tag)| Op::BucketTags { bucket, tag }),
        2 => (bucket(), key(), key(), any::<bool>(), 0usize..5)
            .prop_map(|(bucket, prefix, after, delimiter, max)| Op::List { bucket, prefix, after, delimiter, max }),
        2 => (bucket(), key(), key(), version(), any::<bool>(), 0usize..6).prop_map(
            |(bucket, prefix, after, version, delimiter, max)| Op::Versions { bucket, prefix, after, version, delimiter, max }
        ),
        2 => (bucket(), key()).prop_map(|(bucket, key)| Op::CreateUpload { bucket, key }),
        3 => (index(), prop::collection::vec(1u16..4, 0..4), 0u8..10)
            .prop_map(|(upload, parts, condition)| Op::Complete { upload, parts, condition }),
        1 => index().prop_map(|upload| Op::Abort { upload }),
        1 => any::<bool>().prop_map(|crash| Op::Reopen { crash }),
    ]
}

/// The same thing in both stores: what the memory store calls it, and what the disk store does.
type Pair = (String, String);

struct Upload {
    bucket: &'static str,
    key: &'static str,
    id: Pair,
}

struct Writing {
    writers: [Box<dyn ObjectWriter>; 2],
    goal: u64,
}

struct Both {
    memory: MemoryStore,
    disk: Option<DiskStore>,
    dir: tempfile::TempDir,
    generation: u32,
    /// Versions of objects and delete markers, the gone ones too.
    versions: Vec<Pair>,
    /// Uploads, the gone ones too.
    uploads: Vec<Upload>,
    writers: Vec<Writing>,
    held: Vec<[Object; 2]>,
    serial: u64,
}

fn disk_config(path: &Path) -> DiskConfig {
    DiskConfig { path: path.to_owned(), capacity: CAPACITY, objects: SLOTS, durability: Durability::Os }
}

/// A copy of the directory as it is, like what the end of the process leaves behind.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

impl Both {
    fn new() -> Self {
        let dir = super::support::dir();
        let memory = MemoryStore::new(MemoryConfig { capacity: CAPACITY, objects: SLOTS });
        let disk = DiskStore::open(disk_config(&dir.path().join("0"))).unwrap();
        let mut both = Self {
            memory,
            disk: Some(disk),
            dir,
            generation: 0,
            versions: Vec::new(),
            uploads: Vec::new(),
            writers: Vec::new(),
            held: Vec::new(),
            serial: 0,
        };
        both.step(Op::Bucket { bucket: 0, delete: false });
        both.step(Op::Bucket { bucket: 1, delete: false });
        both
    }

    fn disk(&self) -> &DiskStore {
        self.disk.as_ref().unwrap()
    }

    fn stores(&self) -> [&dyn Store; 2] {
        [&self.memory, self.disk()]
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join(self.generation.to_string())
    }

    /// What both call a version.
    fn version(&self, index: Option<&Index>) -> [Option<String>; 2] {
        let Some(index) = index else { return [None, None] };
        match index.index(self.versions.len() + 1) {
            0 => [Some("null".into()), Some("null".into())],
            n => [Some(self.versions[n - 1].0.clone()), Some(self.versions[n - 1].1.clone())],
        }
    }

    /// Notes or compares what both call a version.
    fn same_version(&mut self, memory: Option<&str>, disk: Option<&str>) {
        match (memory, disk) {
            (None, None) | (Some("null"), Some("null")) => {}
            (Some(memory), Some(disk)) => match self.versions.iter().find(|pair| pair.0 == memory || pair.1 == disk) {
                Some(pair) => assert_eq!((pair.0.as_str(), pair.1.as_str()), (memory, disk)),
                None => self.versions.push((memory.into(), disk.into())),
            },
            other => panic!("{other:?}"),
        }
    }

    fn same_info(&mut self, memory: &ObjectInfo, disk: &ObjectInfo) {
        self.same_version(memory.version.as_deref(), disk.version.as_deref());
        let expected = ObjectInfo { modified: disk.modified, version: disk.version.clone(), ..memory.clone() };
        assert_eq!(*disk, expected);
    }

    /// Both answers are errors of the same kind, or none.
    fn same<T: std::fmt::Debug>(&mut self, results: [Result<T>; 2]) -> Option<[T; 2]> {
        match results {
            [Ok(memory), Ok(disk)] => Some([memory, disk]),
            [Err(memory), Err(disk)] => {
                if let (
                    StoreError::DeleteMarker { version: a, current: b, .. },
                    StoreError::DeleteMarker { version: c, current: d, .. },
                ) = (&memory, &disk)
                {
                    assert_eq!(b, d);
                    self.same_version(Some(a), Some(c));
                }
                assert_eq!(memory.to_string(), disk.to_string());
                None
            }
            [memory, disk] => panic!("memory: {memory:?}\ndisk: {disk:?}"),
        }
    }

    fn condition(&self, bucket: &str, key: &str, choice: u8) -> Condition {
        let there = wait(self.memory.head(bucket, key, None));
        match (choice, there) {
            (0, _) => Condition::Absent,
            (1, Ok(info)) => Condition::Match(info.etag.clone()),
            (2, _) => Condition::Match("none".into()),
            (3, _) => Condition::Present,
            (4, Ok(info)) => Condition::Differs(info.etag.clone()),
            _ => Condition::None,
        }
    }

    fn commit_of(&mut self, condition: Condition) -> Commit {
        self.serial += 1;
        let checksums = vec![("CRC32".to_owned(), format!("c{}", self.serial))];
        Commit { etag: format!("e{}", self.serial), checksums, condition }
    }

    fn options(&mut self, size: Option<u64>) -> PutOptions {
        self.serial += 1;
        let meta = Metadata {
            content_type: Some(format!("t{}", self.serial)),
            user: [("n".to_owned(), self.serial.to_string())].into(),
            ..Metadata::default()
        };
        PutOptions { size, meta, tags: vec![("s".into(), self.serial.to_string())], ..PutOptions::default() }
    }

    /// Writes up to `most` bytes to both writers; the same number of bytes fits in both.
    fn fill(&mut self, at: usize, most: u64) {
        let Writing { writers, goal } = &mut self.writers[at];
        let results = writers.each_mut().map(|writer| {
            let end = goal.saturating_sub(0).min(writer.written().saturating_add(most));
            while let left @ 1.. = end.saturating_sub(writer.written()) {
                let place = writer.written();
                let buffer = wait(writer.buffer(left as usize))?;
                let n = buffer.len();
                assert!(n as u64 <= left && (1..=1 << 20).contains(&n));
                buffer.copy_from_slice(&pattern(place + n as u64, *goal)[place as usize..]);
                writer.advance(n);
            }
            Ok(())
        });
        let written = [writers[0].written(), writers[1].written()];
        if self.same(results).is_some() {
            assert_eq!(written[0], written[1]);
        }
    }

    fn open(&mut self, results: [Result<Box<dyn ObjectWriter>>; 2], goal: u64) -> bool {
        match results {
            [Ok(memory), Ok(disk)] => {
                self.writers.push(Writing { writers: [memory, disk], goal });
                true
            }
            [Err(memory), Err(disk)] => {
                assert_eq!(memory.to_string(), disk.to_string());
                false
            }
            [memory, disk] => panic!("memory: {:?}\ndisk: {:?}", memory.err(), disk.err()),
        }
    }

    fn put(&mut self, bucket: &str, key: &str, size: u64, known: bool) -> bool {
        let options = self.options(known.then_some(size));
        let results = self.stores().map(|store| wait(store.put(bucket, key, options.clone())));
        self.open(results, size)
    }

    fn commit(&mut self, at: usize, condition: Condition) {
        let commit = self.commit_of(condition);
        let Writing { writers, .. } = self.writers.swap_remove(at);
        let results = writers.map(|writer| wait(writer.commit(commit.clone())));
        if let Some([memory, disk]) = self.same(results) {
            self.same_info(&memory, &disk);
        }
    }

    fn get(&mut self, bucket: &str, key: &str, version: &[Option<String>; 2]) -> Option<[Object; 2]> {
        let objects = [0, 1].map(|n| wait(self.stores()[n].get(bucket, key, version[n].as_deref())));
        let heads = [0, 1].map(|n| wait(self.stores()[n].head(bucket, key, version[n].as_deref())));
        let objects = self.same(objects)?;
        let heads = self.same(heads).unwrap();
        self.same_info(&objects[0].info, &objects[1].info);
        assert_eq!(heads[1], objects[1].info);
        Some(objects)
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Bucket { bucket, delete: false } => {
                let results = self.stores().map(|store| wait(Store::create_bucket(store, BUCKETS[bucket])));
                if let Some([memory, disk]) = self.same(results) {
                    assert_eq!(memory, disk);
                }
            }
            Op::Bucket { bucket, delete: true } => {
                let results = self.stores().map(|store| wait(store.delete_bucket(BUCKETS[bucket])));
                self.same(results);
            }
            Op::Versioning { bucket, on } => {
                let versioning = [Versioning::Off, Versioning::Enabled, Versioning::Suspended][usize::from(on)];
                let results = self.stores().map(|store| wait(store.set_versioning(BUCKETS[bucket], versioning)));
                self.same(results);
            }
            Op::Put { bucket, key, size, known } => {
                self.put(BUCKETS[bucket], KEYS[key], size, known);
            }
            Op::Part { upload, number, size, known } => {
                if let Some(at) = pick(&upload, self.uploads.len()) {
                    let Upload { bucket, key, id } = &self.uploads[at];
                    let ids = [&id.0, &id.1];
                    let size_known = known.then_some(size);
                    let results =
                        [0, 1].map(|n| wait(self.stores()[n].put_part(bucket, key, ids[n], number, size_known)));
                    self.open(results, size);
                }
            }
            Op::Fill { writer, most } => {
                if let Some(at) = pick(&writer, self.writers.len()) {
                    self.fill(at, most);
                }
            }
            Op::Commit { writer, condition } => {
                if let Some(at) = pick(&writer, self.writers.len()) {
                    let condition = self.condition("a", KEYS[usize::from(condition) % KEYS.len()], condition);
                    self.commit(at, condition);
                }
            }
            Op::Drop { writer } => {
                if let Some(at) = pick(&writer, self.writers.len()) {
                    self.writers.swap_remove(at);
                }
            }
            Op::Whole { bucket, key, size, known } => {
                if self.put(BUCKETS[bucket], KEYS[key], size, known) {
                    let at = self.writers.len() - 1;
                    self.fill(at, u64::MAX);
                    self.commit(at, Condition::None);
                }
            }
            Op::Delete { bucket, key, version, condition } => {
                let condition = self.condition(BUCKETS[bucket], KEYS[key], condition);
                let version = self.version(version.as_ref());
                let results = [0, 1].map(|n| {
                    wait(self.stores()[n].delete(BUCKETS[bucket], KEYS[key], version[n].as_deref(), condition.clone()))
                });
                if let Some([memory, disk]) = self.same(results) {
                    assert_eq!((memory.existed, memory.marker), (disk.existed, disk.marker));
                    self.same_version(memory.version.as_deref(), disk.version.as_deref());
                }
            }
            Op::Get { bucket, key, version, from, to } => {
                let version = self.version(version.as_ref());
                if let Some([memory, disk]) = self.get(BUCKETS[bucket], KEYS[key], &version) {
                    assert!(read(&memory, from..to) == read(&disk, from..to), "{from}..{to}");
                }
            }
            Op::Hold { bucket, key } => {
                let held = self.get(BUCKETS[bucket], KEYS[key], &[None, None]);
                self.held.extend(held);
            }
            Op::Copy { from, version, to, condition } => {
                let version = self.version(version.as_ref());
                let condition = self.condition(BUCKETS[to.0], KEYS[to.1], condition);
                let (commit, options) = (self.commit_of(condition), self.options(None));
                let heads =
                    [0, 1].map(|n| wait(self.stores()[n].head(BUCKETS[from.0], KEYS[from.1], version[n].as_deref())));
                let etag = self.same(heads).map_or_else(|| "none".to_owned(), |heads| heads[0].etag.clone());
                let results = [0, 1].map(|n| {
                    let source = Source {
                        bucket: BUCKETS[from.0].into(),
                        key: KEYS[from.1].into(),
                        version: version[n].clone(),
                        etag: etag.clone(),
                    };
                    wait(self.stores()[n].copy(&source, BUCKETS[to.0], KEYS[to.1], &options, &commit))
                });
                if let Some([memory, disk]) = self.same(results) {
                    self.same_info(&memory.unwrap(), &disk.unwrap());
                }
            }
            Op::Tags { bucket, key, version, tag } => {
                let version = self.version(version.as_ref());
                let tags: Vec<_> = (0..tag).map(|n| (format!("k{n}"), format!("v{}", self.serial))).collect();
                let results = [0, 1].map(|n| {
                    wait(self.stores()[n].set_tags(BUCKETS[bucket], KEYS[key], version[n].as_deref(), tags.clone()))
                });
                if let Some([memory, disk]) = self.same(results) {
                    self.same_info(&memory, &disk);
                }
            }
            Op::BucketTags { bucket, tag } => {
                let tags: Vec<_> = (0..tag).map(|n| (format!("k{n}"), "v".to_owned())).collect();
                let results = self.stores().map(|store| wait(store.set_bucket_tags(BUCKETS[bucket], tags.clone())));
                self.same(results);
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
            Op::Versions { bucket, prefix, after, version, delimiter, max } => {
                // Elsewhere, an id says nothing of the order, and each store may take it as it likes.
                let after_key = if after < 2 { "" } else { KEYS[after] };
                let known = |[memory, _]: &[Option<String>; 2]| {
                    let there = wait(self.memory.head(BUCKETS[bucket], after_key, memory.as_deref()));
                    matches!(there, Ok(_) | Err(StoreError::DeleteMarker { .. }))
                };
                let versions = Some(self.version(version.as_ref())).filter(known).unwrap_or_default();
                let query = |n: usize| VersionQuery {
                    prefix: if prefix < 4 { String::new() } else { KEYS[prefix].into() },
                    after: after_key.into(),
                    after_version: versions[n].clone(),
                    delimiter: if delimiter { "/".into() } else { String::new() },
                    max,
                };
                let queries = [query(0), query(1)];
                self.list_versions(BUCKETS[bucket], &queries);
            }
            Op::CreateUpload { bucket, key } => {
                let options = self.options(None);
                let options = UploadOptions { meta: options.meta, tags: options.tags, checksum: None };
                let results =
                    self.stores().map(|store| wait(store.create_upload(BUCKETS[bucket], KEYS[key], options.clone())));
                if let Some([memory, disk]) = self.same(results) {
                    self.uploads.push(Upload { bucket: BUCKETS[bucket], key: KEYS[key], id: (memory, disk) });
                }
            }
            Op::Complete { upload, parts, condition } => {
                if let Some(at) = pick(&upload, self.uploads.len()) {
                    let Upload { bucket, key, id } = &self.uploads[at];
                    let (bucket, key, ids) = (*bucket, *key, [id.0.clone(), id.1.clone()]);
                    let condition = self.condition(bucket, key, condition);
                    let commit = self.commit_of(condition);
                    let there = wait(self.memory.list_parts(bucket, key, &ids[0])).unwrap_or_default();
                    let etag = |number: u16| there.iter().find(|p| p.number == number).map(|p| p.info.etag.clone());
                    let names: Vec<PartName> = parts
                        .iter()
                        .map(|&number| PartName { number, etag: etag(number).unwrap_or_default() })
                        .collect();
                    let results = [0, 1]
                        .map(|n| wait(self.stores()[n].complete_upload(bucket, key, &ids[n], &names, commit.clone())));
                    if let Some([memory, disk]) = self.same(results) {
                        self.same_info(&memory, &disk);
                    }
                }
            }
            Op::Abort { upload } => {
                if let Some(at) = pick(&upload, self.uploads.len()) {
                    let Upload { bucket, key, id } = &self.uploads[at];
                    let ids = [&id.0, &id.1];
                    let results = [0, 1].map(|n| wait(self.stores()[n].abort_upload(bucket, key, ids[n])));
                    self.same(results);
                }
            }
            Op::Reopen { crash } => self.reopen(crash),
        }
        assert_eq!(self.memory.usage(), self.disk().usage());
    }

    /// The disk store begins anew. Writers and readers in progress end.
    fn reopen(&mut self, crash: bool) {
        self.verify_held();
        self.held.clear();
        if crash {
            let from = self.path();
            self.writers.clear();
            drop(self.disk.take());
            let disk = DiskStore::open(disk_config(&from)).unwrap();
            // What is being written is there, unfinished.
            let mut unfinished = wait(disk.put("a", "unfinished", PutOptions::default()));
            if let Ok(writer) = &mut unfinished {
                let _ = super::support::write(&mut **writer, &pattern(300_000, 1));
            }
            self.generation += 1;
            copy_dir(&from, &self.path());
        } else {
            self.writers.clear();
            drop(self.disk.take());
        }
        self.disk = Some(DiskStore::open(disk_config(&self.path())).unwrap());
        self.check();
    }

    fn list(&mut self, bucket: &str, query: &ListQuery) {
        let results = self.stores().map(|store| wait(store.list(bucket, query)));
        if let Some([memory, disk]) = self.same(results) {
            assert_eq!((&memory.prefixes, &memory.next), (&disk.prefixes, &disk.next));
            assert_eq!(memory.objects.len(), disk.objects.len());
            for (memory, disk) in memory.objects.iter().zip(&disk.objects) {
                assert_eq!(memory.0, disk.0);
                self.same_info(&memory.1, &disk.1);
            }
        }
    }

    fn list_versions(&mut self, bucket: &str, queries: &[VersionQuery; 2]) {
        let results = [0, 1].map(|n| wait(self.stores()[n].list_versions(bucket, &queries[n])));
        let Some([memory, disk]) = self.same(results) else { return };
        assert_eq!(memory.prefixes, disk.prefixes);
        assert_eq!(memory.versions.len(), disk.versions.len(), "{memory:?}\n{disk:?}");
        for (memory, disk) in memory.versions.iter().zip(&disk.versions) {
            assert_eq!((&memory.key, memory.latest), (&disk.key, disk.latest));
            self.same_version(memory.version.as_deref(), disk.version.as_deref());
            match (&memory.info, &disk.info) {
                (Some(memory), Some(disk)) => self.same_info(memory, disk),
                (None, None) => {}
                other => panic!("{other:?}"),
            }
        }
        match (&memory.next, &disk.next) {
            (Some(memory), Some(disk)) => {
                assert_eq!(memory.0, disk.0);
                self.same_version(memory.1.as_deref(), disk.1.as_deref());
            }
            (None, None) => {}
            other => panic!("{other:?}"),
        }
    }

    fn verify_held(&self) {
        for [memory, disk] in &self.held {
            assert!(read(memory, 0..u64::MAX) == read(disk, 0..u64::MAX));
        }
    }

    /// Compares everything.
    fn check(&mut self) {
        let results = self.stores().map(|store| wait(store.list_buckets()));
        let [memory, disk] = self.same(results).unwrap();
        let names = |all: &[ernic_store::BucketInfo]| {
            all.iter().map(|bucket| (bucket.name.clone(), bucket.versioning)).collect::<Vec<_>>()
        };
        assert_eq!(names(&memory), names(&disk));
        for bucket in BUCKETS {
            self.list(bucket, &ListQuery { max: 1000, ..Default::default() });
            let all = VersionQuery { max: 1000, ..Default::default() };
            self.list_versions(bucket, &[all.clone(), all]);
            let results = self.stores().map(|store| wait(store.bucket_tags(bucket)));
            if let Some([memory, disk]) = self.same(results) {
                assert_eq!(memory, disk);
            }
            let uploads = self.stores().map(|store| wait(store.list_uploads(bucket)));
            if let Some([memory, disk]) = self.same(uploads) {
                assert_eq!(memory.len(), disk.len());
            }
            for key in KEYS {
                let mut versions = vec![[None, None], [Some("null".to_owned()), Some("null".to_owned())]];
                versions.extend(self.versions.iter().map(|pair| [Some(pair.0.clone()), Some(pair.1.clone())]));
                for version in versions {
                    if let Some([memory, disk]) = self.get(bucket, key, &version) {
                        assert!(read(&memory, 0..u64::MAX) == read(&disk, 0..u64::MAX));
                    }
                }
            }
        }
        for at in 0..self.uploads.len() {
            let Upload { bucket, key, id } = &self.uploads[at];
            let ids = [&id.0, &id.1];
            let heads = [0, 1].map(|n| wait(self.stores()[n].head_upload(bucket, key, ids[n])));
            let parts = [0, 1].map(|n| wait(self.stores()[n].list_parts(bucket, key, ids[n])));
            if let Some([memory, disk]) = self.same(heads) {
                assert_eq!((&memory.key, &memory.options), (&disk.key, &disk.options));
            }
            if let Some([memory, disk]) = self.same(parts) {
                assert_eq!(memory.len(), disk.len());
                for (memory, disk) in memory.iter().zip(&disk) {
                    assert_eq!(memory.number, disk.number);
                    let strip = |info: &Arc<ObjectInfo>| (info.size, info.etag.clone(), info.checksums.clone());
                    assert_eq!(strip(&memory.info), strip(&disk.info));
                }
            }
        }
        self.verify_held();
        assert_eq!(self.memory.usage(), self.disk().usage());
    }
}

fn pick(index: &Index, len: usize) -> Option<usize> {
    (len > 0).then(|| index.index(len))
}

/// Failing seeds are kept in the package's `proptest-regressions`.
fn proptest_config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("proptest-regressions/alike.txt");
    ProptestConfig { cases, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

/// Bytes of all files in `objects` and `tmp`.
fn data_bytes(path: &Path) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        sum += if meta.is_dir() { data_bytes(&entry.path()) } else { meta.len() };
    }
    sum
}

proptest! {
    #![proptest_config(proptest_config(1000))]

    #[test]
    fn histories(history in prop::collection::vec(ops(), 1..70)) {
        let mut both = Both::new();
        for op in history {
            both.step(op);
        }
        both.check();
        both.reopen(false);
        // Everything can be taken away again, and then nothing is left.
        both.reopen(true);
        for upload in std::mem::take(&mut both.uploads) {
            let _ = wait(both.disk().abort_upload(upload.bucket, upload.key, &upload.id.1));
        }
        for bucket in BUCKETS {
            let all = VersionQuery { max: 1000, ..Default::default() };
            for entry in wait(both.disk().list_versions(bucket, &all)).map(|page| page.versions).unwrap_or_default() {
                let version = entry.version.as_deref().unwrap_or("null");
                wait(both.disk().delete(bucket, &entry.key, Some(version), Condition::None)).unwrap();
            }
        }
        prop_assert_eq!((both.disk().usage().bytes, both.disk().usage().objects), (0, 0));
        drop(both.disk.take());
        prop_assert_eq!(data_bytes(&both.path().join("objects")) + data_bytes(&both.path().join("tmp")), 0);
    }
}
