//! The memory store against a naive model: after every step of a random history contents, errors and accounts are the
//! model's, to the byte.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{now, pattern, read};
use ernic_store::{
    Commit, Condition, ListQuery, MemoryConfig, MemoryStore, Object, ObjectWriter, PartName, PutOptions, Store,
    StoreError, UploadOptions, Usage,
};
use proptest::{prelude::*, sample::Index, test_runner::FileFailurePersistence};

const CAPACITY: u64 = 1_500_000;
const SLOTS: u64 = 6;

#[derive(Debug, Clone)]
enum Op {
    Put {
        key: usize,
        size: u64,
        known: bool,
    },
    PutPart {
        upload: Index,
        number: u16,
        size: u64,
        known: bool,
    },
    /// Asks a writer for `want` bytes and fills all or half of what it gives.
    Fill {
        writer: Index,
        want: usize,
        half: bool,
    },
    /// Fills a writer up to its announced size, as far as there is room.
    FillUp {
        writer: Index,
    },
    Commit {
        writer: Index,
        condition: u8,
    },
    Drop {
        writer: Index,
    },
    Delete {
        key: usize,
    },
    Read {
        key: usize,
        from: u64,
        to: u64,
    },
    Hold {
        key: usize,
    },
    Release {
        held: Index,
    },
    List {
        prefix: usize,
        after: usize,
        delimiter: bool,
        max: usize,
    },
    CreateUpload {
        key: usize,
    },
    Complete {
        upload: Index,
        parts: Vec<u16>,
        condition: u8,
    },
    Abort {
        upload: Index,
    },
}

const KEYS: [&str; 8] = ["a", "a/1", "a/2", "b", "b/", "b/x/y", "c", "é"];

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..20,
        4 => 4090u64..4100,
        4 => 65_530u64..65_545,
        4 => 190_000u64..700_000,
        1 => 1_048_570u64..1_200_000,
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    let key = || 0..KEYS.len();
    let index = any::<Index>;
    prop_oneof![
        6 => (key(), sizes(), any::<bool>()).prop_map(|(key, size, known)| Op::Put { key, size, known }),
        5 => (index(), 1u16..4, sizes(), any::<bool>())
            .prop_map(|(upload, number, size, known)| Op::PutPart { upload, number, size, known }),
        3 => (index(), 1usize..2_000_000, any::<bool>())
            .prop_map(|(writer, want, half)| Op::Fill { writer, want, half }),
        6 => index().prop_map(|writer| Op::FillUp { writer }),
        8 => (index(), 0u8..8).prop_map(|(writer, condition)| Op::Commit { writer, condition }),
        2 => index().prop_map(|writer| Op::Drop { writer }),
        2 => key().prop_map(|key| Op::Delete { key }),
        2 => (key(), 0u64..300_000, 0u64..300_000).prop_map(|(key, from, to)| Op::Read { key, from, to }),
        1 => key().prop_map(|key| Op::Hold { key }),
        1 => index().prop_map(|held| Op::Release { held }),
        2 => (key(), key(), any::<bool>(), 0usize..5)
            .prop_map(|(prefix, after, delimiter, max)| Op::List { prefix, after, delimiter, max }),
        2 => key().prop_map(|key| Op::CreateUpload { key }),
        3 => (index(), prop::collection::vec(1u16..4, 0..4), 0u8..8)
            .prop_map(|(upload, parts, condition)| Op::Complete { upload, parts, condition }),
        1 => index().prop_map(|upload| Op::Abort { upload }),
    ]
}

/// Key, and upload and number of a part.
type Place = (String, Option<(String, u16)>);

#[derive(Debug, Clone, PartialEq)]
struct Item {
    etag: String,
    content: Vec<u8>,
    parts: Vec<u64>,
}

struct Writing {
    real: Box<dyn ObjectWriter>,
    place: Place,
    size: Option<u64>,
    /// What a drop or commit would have to fill.
    goal: u64,
    claim: u64,
    credited: bool,
    content: Vec<u8>,
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<String, Item>,
    /// By key and id.
    uploads: BTreeMap<(String, String), BTreeMap<u16, Item>>,
    writers: Vec<Writing>,
    held: Vec<(Object, Item)>,
    serial: u64,
}

impl Model {
    fn live(&self, place: &Place) -> Option<&Item> {
        match &place.1 {
            None => self.objects.get(&place.0),
            Some((upload, number)) => self.uploads.get(&(place.0.clone(), upload.clone()))?.get(number),
        }
    }

    fn live_len(&self, place: &Place) -> u64 {
        self.live(place).map_or(0, |item| item.content.len() as u64)
    }

    fn credit(&self, place: &Place) -> Option<u64> {
        self.writers.iter().find(|writer| writer.credited && writer.place == *place).map(|writer| writer.claim)
    }

    /// The definition of `Usage::bytes`.
    fn bytes(&self) -> u64 {
        let mut places: BTreeSet<Place> = self.objects.keys().map(|key| (key.clone(), None)).collect();
        for ((key, upload), parts) in &self.uploads {
            places.extend(parts.keys().map(|&number| (key.clone(), Some((upload.clone(), number)))));
        }
        places.extend(self.writers.iter().map(|writer| writer.place.clone()));
        let charged: u64 = places.iter().map(|place| self.live_len(place).max(self.credit(place).unwrap_or(0))).sum();
        let uncredited: u64 = self.writers.iter().filter(|writer| !writer.credited).map(|writer| writer.claim).sum();
        charged + uncredited
    }

    fn slots(&self) -> u64 {
        let mut keys: BTreeSet<&str> = self.objects.keys().map(String::as_str).collect();
        let new = self.writers.iter().filter(|writer| writer.credited && writer.place.1.is_none());
        keys.extend(new.map(|writer| writer.place.0.as_str()));
        (keys.len() + self.uploads.len()) as u64
    }

    fn usage(&self) -> Usage {
        Usage {
            objects: self.objects.len() as u64,
            bytes: self.bytes(),
            capacity: CAPACITY,
            uploads: self.uploads.len() as u64,
        }
    }

    fn etag(&mut self) -> String {
        self.serial += 1;
        self.serial.to_string()
    }

    fn condition(&self, key: &str, choice: u8) -> (Condition, Option<&'static str>) {
        let live = self.objects.get(key);
        match (choice, live) {
            (0, None) => (Condition::Absent, None),
            (0, Some(_)) => (Condition::Absent, Some("precondition failed")),
            (1, None) => (Condition::Match("1".into()), Some("no such key")),
            (1, Some(item)) => (Condition::Match(item.etag.clone()), None),
            (2, Some(_)) => (Condition::Match("none".into()), Some("precondition failed")),
            _ => (Condition::None, None),
        }
    }

    /// Starts a writer on both sides. `exists`: whether the place's upload does.
    fn open(&mut self, store: &MemoryStore, place: Place, goal: u64, known: bool) {
        let size = known.then_some(goal);
        let real = match &place.1 {
            None => now(store.put("b", &place.0, PutOptions { size, ..Default::default() })),
            Some((upload, number)) => now(store.put_part("b", &place.0, upload, *number, size)),
        };
        let claim = size.unwrap_or(0);
        let credited = self.credit(&place).is_none();
        let needed = if credited { claim.saturating_sub(self.live_len(&place)) } else { claim };
        let free = CAPACITY - self.bytes();
        let new = credited && place.1.is_none() && self.live(&place).is_none();
        match real {
            Ok(real) => {
                assert!(needed <= free && !(new && self.slots() == SLOTS));
                self.writers.push(Writing { real, place, size, goal, claim, credited, content: Vec::new() });
            }
            Err(StoreError::InsufficientStorage { needed: n, free: f }) => {
                assert_eq!((n, f), (needed, free));
                assert!(needed > free);
            }
            Err(StoreError::NoSlots(SLOTS)) => assert!(new && self.slots() == SLOTS),
            Err(error) => panic!("{error}"),
        }
    }

    /// One buffer of a writer. Returns whether there was room.
    fn fill(&mut self, at: usize, want: usize, half: bool) -> bool {
        let total = self.bytes();
        let writer = &self.writers[at];
        let (place, written) = (writer.place.clone(), writer.content.len() as u64);
        let charge = if writer.credited { self.live_len(&place).max(writer.claim) } else { writer.claim };
        // The most that this writer's claim can be.
        let most = CAPACITY - (total - charge);
        let gone = place.1.as_ref().is_some_and(|part| !self.uploads.contains_key(&(place.0.clone(), part.0.clone())));
        let writer = &mut self.writers[at];
        let announced = writer.size.unwrap_or(0).saturating_sub(written);
        let buffer = match now(writer.real.buffer(want)) {
            Ok(buffer) => buffer,
            Err(StoreError::InsufficientStorage { .. }) => {
                assert!(announced == 0 && written == most, "{written} of {most}");
                return false;
            }
            Err(StoreError::NoSuchUpload) if gone => return false,
            Err(error) => panic!("{error}"),
        };
        assert!(!gone);
        let len = buffer.len() as u64;
        assert!((1..=want.min(1 << 20) as u64).contains(&len));
        if announced > 0 {
            assert!(len <= announced);
        } else {
            assert!(written + len <= most);
            writer.claim = written + len;
        }
        let filled = if half { len / 2 } else { len };
        let content = pattern(filled, written + 7);
        buffer[..content.len()].copy_from_slice(&content);
        writer.real.advance(content.len());
        writer.content.extend(content);
        assert_eq!(writer.real.written(), writer.content.len() as u64);
        true
    }

    fn commit(&mut self, at: usize, choice: u8) {
        let etag = self.etag();
        let writer = self.writers.swap_remove(at);
        let place = writer.place;
        let (condition, mut refusal) = self.condition(&place.0, choice);
        let gone = match &place.1 {
            None => {
                let held = self.live(&place).is_some() || self.credit(&place).is_some() || writer.credited;
                if refusal.is_none() && !held && self.slots() == SLOTS {
                    refusal = Some("all 6 object slots are in use");
                }
                false
            }
            Some((upload, _)) => !self.uploads.contains_key(&(place.0.clone(), upload.clone())),
        };
        if place.1.is_some() {
            refusal = gone.then_some("no such upload");
        }
        let commit = Commit { etag: etag.clone(), checksums: Vec::new(), condition };
        match (now(writer.real.commit(commit)), refusal) {
            (Ok(info), None) => {
                assert_eq!((info.size, info.etag.as_str()), (writer.content.len() as u64, etag.as_str()));
                let item = Item { etag, content: writer.content, parts: Vec::new() };
                match place.1 {
                    None => self.objects.insert(place.0, item),
                    Some((upload, number)) => self.uploads.get_mut(&(place.0, upload)).unwrap().insert(number, item),
                };
            }
            (Err(error), Some(refusal)) => assert_eq!(error.to_string(), refusal),
            (result, refusal) => panic!("{result:?} {refusal:?}"),
        }
    }

    /// The writers of parts of an upload that has ended have no claim any more.
    fn ended(&mut self, id: &(String, String)) {
        for writer in &mut self.writers {
            if writer.place.0 == id.0 && writer.place.1.as_ref().is_some_and(|part| part.0 == id.1) {
                (writer.claim, writer.credited) = (0, false);
            }
        }
    }

    fn upload(&self, index: &Index) -> Option<(String, String)> {
        (!self.uploads.is_empty()).then(|| self.uploads.keys().nth(index.index(self.uploads.len())).unwrap().clone())
    }

    fn writer(&self, index: &Index) -> Option<usize> {
        (!self.writers.is_empty()).then(|| index.index(self.writers.len()))
    }

    fn step(&mut self, store: &MemoryStore, op: Op) {
        match op {
            Op::Put { key, size, known } => self.open(store, (KEYS[key].into(), None), size, known),
            Op::PutPart { upload, number, size, known } => {
                if let Some((key, id)) = self.upload(&upload) {
                    self.open(store, (key, Some((id, number))), size, known);
                }
            }
            Op::Fill { writer, want, half } => {
                if let Some(at) = self.writer(&writer) {
                    self.fill(at, want, half);
                }
            }
            Op::FillUp { writer } => {
                if let Some(at) = self.writer(&writer) {
                    while let left @ 1.. = self.writers[at].goal.saturating_sub(self.writers[at].content.len() as u64) {
                        if !self.fill(at, left as usize, false) {
                            break;
                        }
                    }
                }
            }
            Op::Commit { writer, condition } => {
                if let Some(at) = self.writer(&writer) {
                    self.commit(at, condition);
                }
            }
            Op::Drop { writer } => {
                if let Some(at) = self.writer(&writer) {
                    self.writers.swap_remove(at);
                }
            }
            Op::Delete { key } => {
                let there = self.objects.remove(KEYS[key]).is_some();
                assert_eq!(now(store.delete("b", KEYS[key], None, Condition::None)).unwrap().existed, there);
            }
            Op::Read { key, from, to } => match (now(store.get("b", KEYS[key], None)), self.objects.get(KEYS[key])) {
                (Ok(object), Some(item)) => {
                    let len = item.content.len() as u64;
                    let range = from.min(len) as usize..to.clamp(from.min(len), len) as usize;
                    assert!(read(&object, from..to).concat() == item.content[range]);
                }
                (Err(StoreError::NoSuchKey), None) => {}
                (result, _) => panic!("{result:?}"),
            },
            Op::Hold { key } => {
                if let Some(item) = self.objects.get(KEYS[key]) {
                    self.held.push((now(store.get("b", KEYS[key], None)).unwrap(), item.clone()));
                }
            }
            Op::Release { held } => {
                if !self.held.is_empty() {
                    let (object, item) = self.held.swap_remove(held.index(self.held.len()));
                    verify(&object, &item);
                }
            }
            Op::List { prefix, after, delimiter, max } => self.list(store, prefix, after, delimiter, max),
            Op::CreateUpload { key } => {
                let full = self.slots() == SLOTS;
                match now(store.create_upload("b", KEYS[key], UploadOptions::default())) {
                    Ok(id) => {
                        assert!(!full);
                        assert!(self.uploads.insert((KEYS[key].into(), id), BTreeMap::new()).is_none());
                    }
                    Err(error) => assert!(full && matches!(error, StoreError::NoSlots(SLOTS)), "{error}"),
                }
            }
            Op::Complete { upload, parts, condition } => {
                if let Some(id) = self.upload(&upload) {
                    self.complete(store, &id, &parts, condition);
                }
            }
            Op::Abort { upload } => {
                if let Some(id) = self.upload(&upload) {
                    self.uploads.remove(&id);
                    self.ended(&id);
                    now(store.abort_upload("b", &id.0, &id.1)).unwrap();
                }
            }
        }
    }

    fn complete(&mut self, store: &MemoryStore, id: &(String, String), parts: &[u16], choice: u8) {
        let etag = self.etag();
        let (condition, refusal) = self.condition(&id.0, choice);
        let commit = Commit { etag: etag.clone(), checksums: Vec::new(), condition };
        let there = &self.uploads[id];
        let mut seen = BTreeSet::new();
        let missing = parts.iter().find(|number| !seen.insert(**number) || !there.contains_key(number));
        let name = |&number: &u16| PartName {
            number,
            etag: there.get(&number).map_or_else(String::new, |part| part.etag.clone()),
        };
        let names: Vec<PartName> = parts.iter().map(name).collect();
        match now(store.complete_upload("b", &id.0, &id.1, &names, commit)) {
            Ok(info) => {
                assert!(refusal.is_none() && missing.is_none());
                let there = self.uploads.remove(id).unwrap();
                self.ended(id);
                let content: Vec<u8> = parts.iter().flat_map(|number| there[number].content.clone()).collect();
                let parts = parts.iter().map(|number| there[number].content.len() as u64).collect();
                assert_eq!((info.size, &info.etag), (content.len() as u64, &etag));
                self.objects.insert(id.0.clone(), Item { etag, content, parts });
            }
            Err(StoreError::NoSuchPart(number)) => assert_eq!(Some(&number), missing),
            Err(error) => assert_eq!(Some(error.to_string().as_str()), refusal),
        }
    }

    fn list(&self, store: &MemoryStore, prefix: usize, after: usize, delimiter: bool, max: usize) {
        let query = ListQuery {
            prefix: if prefix < 4 { String::new() } else { KEYS[prefix].into() },
            after: if after < 2 { String::new() } else { KEYS[after].into() },
            delimiter: if delimiter { "/".into() } else { String::new() },
            max,
        };
        let mut entries = BTreeMap::new();
        for (key, item) in self.objects.iter().filter(|(key, _)| key.starts_with(&query.prefix)) {
            match key[query.prefix.len()..].find('/').filter(|_| delimiter) {
                Some(at) => entries.insert(key[..=query.prefix.len() + at].to_owned(), None),
                None => entries.insert(key.clone(), Some(item.etag.clone())),
            };
        }
        entries.retain(|entry, _| *entry > query.after);
        let expected: Vec<_> = entries.iter().take(max).collect();
        let page = now(store.list("b", &query)).unwrap();
        let mut got: Vec<_> = page.objects.iter().map(|(key, info)| (key.clone(), Some(info.etag.clone()))).collect();
        got.extend(page.prefixes.into_iter().map(|group| (group, None)));
        got.sort();
        assert_eq!(got.iter().map(|(entry, etag)| (entry, etag)).collect::<Vec<_>>(), expected);
        let next = expected.last().filter(|_| expected.len() < entries.len()).map(|(entry, _)| (*entry).clone());
        assert_eq!(page.next, next);
    }

    fn check(&self, store: &MemoryStore) {
        let usage = store.usage();
        assert_eq!(usage, self.usage());
        assert!(usage.bytes <= CAPACITY);
    }

    fn check_all(&self, store: &MemoryStore) {
        for (key, item) in &self.objects {
            verify(&now(store.get("b", key, None)).unwrap(), item);
        }
        let uploads = now(store.list_uploads("b")).unwrap();
        let uploads: Vec<_> = uploads.into_iter().map(|upload| (upload.key, upload.upload)).collect();
        assert_eq!(uploads, self.uploads.keys().cloned().collect::<Vec<_>>());
        for ((key, id), parts) in &self.uploads {
            let real = now(store.list_parts("b", key, id)).unwrap();
            let real: Vec<_> = real.iter().map(|part| (part.number, part.info.etag.clone(), part.info.size)).collect();
            let parts: Vec<_> =
                parts.iter().map(|(&number, part)| (number, part.etag.clone(), part.content.len() as u64)).collect();
            assert_eq!(real, parts);
        }
        for (object, item) in &self.held {
            verify(object, item);
        }
    }
}

fn verify(object: &Object, item: &Item) {
    assert_eq!((&object.info.etag, object.info.size), (&item.etag, item.content.len() as u64));
    let sizes: Vec<u64> = object.info.parts.iter().map(|part| part.size).collect();
    assert_eq!(sizes, item.parts);
    assert!(read(object, 0..u64::MAX).concat() == item.content);
}

/// Failing seeds are kept in the package's `proptest-regressions`.
fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("proptest-regressions/model.txt");
    ProptestConfig { cases, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn histories(history in prop::collection::vec(ops(), 1..60)) {
        let store = MemoryStore::new(MemoryConfig { capacity: CAPACITY, objects: SLOTS });
        store.create_bucket("b");
        let mut model = Model::default();
        for op in history {
            model.step(&store, op);
            model.check(&store);
        }
        model.check_all(&store);
        // Everything can be taken away again.
        model.writers.clear();
        model.check(&store);
        for (key, id) in std::mem::take(&mut model.uploads).into_keys() {
            now(store.abort_upload("b", &key, &id)).unwrap();
        }
        for key in std::mem::take(&mut model.objects).into_keys() {
            prop_assert!(now(store.delete("b", &key, None, Condition::None)).unwrap().existed);
        }
        prop_assert_eq!(store.usage().bytes, 0);
        for (object, item) in &model.held {
            verify(object, item);
        }
    }
}
