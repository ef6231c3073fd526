//! The objects of a bucket: the current ones, and what else their keys have.

use std::{
    collections::{
        BTreeMap, HashMap,
        btree_map::{Entry as Slot, Range},
    },
    iter::{Peekable, Rev},
    mem,
    ops::Bound::{self, Excluded, Included, Unbounded},
    sync::Arc,
    time::SystemTime,
};

use super::content::Content;
use crate::{
    ByteStream, ObjectData, ObjectInfo, Result, StoreError, VersionEntry,
    list::{Cursor, VersionCursor},
};

/// How S3 spells the version without an id.
pub(super) const NULL: &str = "null";

/// A committed object or part, shared with its readers.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) info: Arc<ObjectInfo>,
    pub(super) content: Content,
    /// Orders the versions of a key: newer ones have larger numbers.
    pub(super) serial: u64,
}

pub(super) type Entry = Arc<Stored>;

impl ObjectData for Stored {
    fn read(&self, range: std::ops::Range<u64>) -> ByteStream {
        self.content.read(range)
    }
}

/// A delete marker.
#[derive(Debug)]
pub(super) struct Marker {
    /// `None` for the one that S3 calls `null`.
    pub(super) id: Option<String>,
    pub(super) modified: SystemTime,
    pub(super) serial: u64,
}

/// A version of a key.
#[derive(Debug)]
pub(super) enum Version {
    Object(Entry),
    Marker(Marker),
}

impl Version {
    /// Bytes of content.
    pub(super) fn size(&self) -> u64 {
        self.as_ref().size()
    }

    fn as_ref(&self) -> VersionRef<'_> {
        match self {
            Self::Object(entry) => VersionRef::Object(entry),
            Self::Marker(marker) => VersionRef::Marker(marker),
        }
    }
}

/// Refers to a version of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum VersionRef<'a> {
    Object(&'a Entry),
    Marker(&'a Marker),
}

impl<'a> VersionRef<'a> {
    pub(super) fn id(self) -> Option<&'a str> {
        match self {
            Self::Object(entry) => entry.info.version.as_deref(),
            Self::Marker(marker) => marker.id.as_deref(),
        }
    }

    fn serial(self) -> u64 {
        match self {
            Self::Object(entry) => entry.serial,
            Self::Marker(marker) => marker.serial,
        }
    }

    /// Bytes of content.
    pub(super) fn size(self) -> u64 {
        match self {
            Self::Object(entry) => entry.info.size,
            Self::Marker(_) => 0,
        }
    }

    /// ETag of an object.
    pub(super) fn etag(self) -> Option<&'a str> {
        match self {
            Self::Object(entry) => Some(&entry.info.etag),
            Self::Marker(_) => None,
        }
    }

    fn is(self, id: &str) -> bool {
        self.id().unwrap_or(NULL) == id
    }
}

/// The serial number in a version's id: its last 16 digits.
fn serial_of(id: &str) -> Option<u64> {
    let digits = id.get(16..).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// What a key has besides its current object; if it has none of these, everything, and then the newest is a delete marker.
#[derive(Debug, Default)]
struct History {
    /// By serial number.
    versions: BTreeMap<u64, Version>,
    /// Serial number of the one without an id, if it is one of these.
    null: Option<u64>,
}

impl History {
    fn insert(&mut self, version: Version) {
        let serial = version.as_ref().serial();
        if version.as_ref().id().is_none() {
            self.null = Some(serial);
        }
        self.versions.insert(serial, version);
    }

    fn remove(&mut self, serial: u64) -> Option<Version> {
        self.null = self.null.filter(|null| *null != serial);
        self.versions.remove(&serial)
    }

    fn newest(&self) -> Option<VersionRef<'_>> {
        self.versions.last_key_value().map(|(_, version)| version.as_ref())
    }
}

/// Current objects by key, twice: a look-up touches a handful of cache lines however many keys there are, which a descent
/// of a tree does not; listing needs the order. The rest is aside, so that it costs nothing where there is none.
#[derive(Debug, Default)]
pub(super) struct Objects {
    by_key: HashMap<Arc<str>, Entry>,
    pub(super) sorted: BTreeMap<Arc<str>, Entry>,
    history: BTreeMap<Arc<str>, History>,
    /// Objects in `history`.
    older: u64,
}

impl Objects {
    /// Objects, their older versions included.
    pub(super) fn count(&self) -> u64 {
        self.by_key.len() as u64 + self.older
    }

    /// Whether there is not even a delete marker.
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty() && self.history.is_empty()
    }

    /// What is current of a key.
    pub(super) fn current(&self, key: &str) -> Option<VersionRef<'_>> {
        match self.by_key.get(key) {
            Some(entry) => Some(VersionRef::Object(entry)),
            None => self.aside(key)?.newest(),
        }
    }

    /// The history of a key. The map is empty in most buckets.
    fn aside(&self, key: &str) -> Option<&History> {
        if self.history.is_empty() { None } else { self.history.get(key) }
    }

    /// The version `id`, as S3 spells it.
    pub(super) fn version(&self, key: &str, id: &str) -> Option<VersionRef<'_>> {
        let current = self.by_key.get(key).map(VersionRef::Object);
        if let Some(current) = current.filter(|current| current.is(id)) {
            return Some(current);
        }
        let history = self.aside(key)?;
        let serial = if id == NULL { history.null } else { serial_of(id) };
        history.versions.get(&serial?).map(Version::as_ref).filter(|version| version.is(id))
    }

    fn put_current(&mut self, key: &str, entry: Entry) -> Option<Entry> {
        if let (Some(one), Some(other)) = (self.by_key.get_mut(key), self.sorted.get_mut(key)) {
            *other = Arc::clone(&entry);
            return Some(mem::replace(one, entry));
        }
        let key: Arc<str> = key.into();
        self.sorted.insert(Arc::clone(&key), Arc::clone(&entry));
        self.by_key.insert(key, entry)
    }

    fn take_current(&mut self, key: &str) -> Option<Entry> {
        self.sorted.remove(key);
        self.by_key.remove(key)
    }

    fn put_aside(&mut self, key: &str, version: Version) {
        self.older += u64::from(matches!(version, Version::Object(_)));
        self.history.entry(key.into()).or_default().insert(version);
    }

    fn take_aside(&mut self, key: &str, serial: u64) -> Option<Version> {
        let Slot::Occupied(mut slot) = self.history.entry(key.into()) else {
            return None;
        };
        let version = slot.get_mut().remove(serial);
        if slot.get().versions.is_empty() {
            slot.remove();
        }
        self.older -= u64::from(matches!(version, Some(Version::Object(_))));
        version
    }

    /// Makes `version`, which is newer than all others, the current one of its key.
    pub(super) fn push(&mut self, key: &str, version: Version) {
        let old = match version {
            Version::Object(entry) => self.put_current(key, entry),
            Version::Marker(marker) => {
                self.put_aside(key, Version::Marker(marker));
                self.take_current(key)
            }
        };
        if let Some(old) = old {
            self.put_aside(key, Version::Object(old));
        }
    }

    /// Like [`Objects::push`] of a version without an id, which replaces the one that there is. Returns that.
    pub(super) fn push_null(&mut self, key: &str, version: Version) -> Option<Version> {
        let current_is_null = self.by_key.get(key).is_some_and(|entry| entry.info.version.is_none());
        match version {
            Version::Object(entry) if current_is_null => self.put_current(key, entry).map(Version::Object),
            version => {
                let old = self.remove(key, NULL);
                self.push(key, version);
                old
            }
        }
    }

    /// Removes the version `id`, as S3 spells it; what was behind it becomes current, if it was.
    pub(super) fn remove(&mut self, key: &str, id: &str) -> Option<Version> {
        let serial = self.version(key, id)?.serial();
        let removed = if self.by_key.get(key).is_some_and(|current| current.serial == serial) {
            self.take_current(key).map(Version::Object)
        } else {
            self.take_aside(key, serial)
        };
        if !self.by_key.contains_key(key)
            && let Some(VersionRef::Object(next)) = self.aside(key).and_then(History::newest)
        {
            let next = next.serial;
            if let Some(Version::Object(entry)) = self.take_aside(key, next) {
                self.put_current(key, entry);
            }
        }
        removed
    }

    /// Puts `entry` in place of the object of the same serial number.
    pub(super) fn replace(&mut self, key: &str, entry: Entry) {
        if self.by_key.get(key).is_some_and(|current| current.serial == entry.serial) {
            self.put_current(key, entry);
        } else if let Some(there) =
            self.history.get_mut(key).and_then(|history| history.versions.get_mut(&entry.serial))
        {
            *there = Version::Object(entry);
        }
    }

    /// Goes through all versions.
    pub(super) fn versions(&self) -> Versions<'_> {
        let (current, history) = (self.sorted.range::<str, _>(..), self.history.range::<str, _>(..));
        Versions { objects: self, current: current.peekable(), history: history.peekable(), rest: None, item: None }
    }
}

/// What is left of the key that was stepped over last.
#[derive(Debug)]
struct Rest<'a> {
    key: &'a str,
    /// Newest first.
    versions: Rev<Range<'a, u64, Version>>,
    /// Whether the first of these is the current version.
    latest: bool,
}

/// A cursor over all versions of all keys.
#[derive(Debug)]
pub(super) struct Versions<'a> {
    objects: &'a Objects,
    /// Keys that come next, with their current objects.
    current: Peekable<Range<'a, Arc<str>, Entry>>,
    /// Keys that come next, with whatever else they have.
    history: Peekable<Range<'a, Arc<str>, History>>,
    rest: Option<Rest<'a>>,
    item: Option<(&'a str, VersionRef<'a>, bool)>,
}

impl<'a> Cursor for Versions<'a> {
    type Key = &'a str;
    type Item = VersionEntry;

    fn seek(&mut self, from: Bound<&str>) -> Result<()> {
        self.current = self.objects.sorted.range::<str, _>((from, Unbounded)).peekable();
        self.history = self.objects.history.range::<str, _>((from, Unbounded)).peekable();
        self.rest = None;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<&'a str>> {
        self.item = loop {
            if let Some(rest) = &mut self.rest {
                if let Some((_, version)) = rest.versions.next() {
                    break Some((rest.key, version.as_ref(), mem::take(&mut rest.latest)));
                }
                self.rest = None;
            }
            let current = self.current.peek().map(|(key, _)| &***key);
            let older = self.history.peek().map(|(key, _)| &***key);
            let has_current = current.is_some_and(|current| older.is_none_or(|older| current <= older));
            if current.is_none_or(|current| older.is_some_and(|older| older <= current)) {
                let Some((key, history)) = self.history.next() else {
                    break None;
                };
                self.rest = Some(Rest { key, versions: history.versions.range(..).rev(), latest: !has_current });
            }
            if has_current && let Some((key, entry)) = self.current.next() {
                break Some((key, VersionRef::Object(entry), true));
            }
        };
        Ok(self.item.map(|(key, ..)| key))
    }

    fn item(&mut self) -> Result<VersionEntry> {
        let (key, version, latest) = self
            .item
            .take()
            .ok_or_else(|| StoreError::Internal("a listing asks for an item in front of all keys".into()))?;
        let (modified, info) = match version {
            VersionRef::Object(entry) => (entry.info.modified, Some(Arc::clone(&entry.info))),
            VersionRef::Marker(marker) => (marker.modified, None),
        };
        Ok(VersionEntry { key: key.to_owned(), latest, version: version.id().map(str::to_owned), modified, info })
    }
}

impl<'a> VersionCursor for Versions<'a> {
    fn seek_version(&mut self, key: &str, version: &str) -> Result<()> {
        // An id tells the order even of a version that is gone.
        let serial = match self.objects.version(key, version) {
            Some(version) => Some(version.serial()),
            None => serial_of(version),
        };
        let newest = self.objects.current(key).map(VersionRef::serial);
        match serial.filter(|serial| newest.is_some_and(|newest| newest >= *serial)) {
            Some(serial) => {
                self.seek(Excluded(key))?;
                let history = self.objects.history.get_key_value(key);
                let rest = |(key, history): (&'a Arc<str>, &'a History)| Rest {
                    key,
                    versions: history.versions.range(..serial).rev(),
                    latest: false,
                };
                self.rest = history.map(rest);
                Ok(())
            }
            None => self.seek(Included(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Metadata, VersionQuery, list};

    fn object(serial: u64) -> Version {
        let info = ObjectInfo {
            size: 0,
            etag: String::new(),
            modified: SystemTime::UNIX_EPOCH,
            meta: Metadata::default(),
            checksums: Vec::new(),
            parts: Vec::new(),
            tags: Vec::new(),
            version: Some(format!("{:016x}{serial:016x}", !serial)),
        };
        Version::Object(Arc::new(Stored { info: Arc::new(info), content: Content::new(vec![Bytes::new()]), serial }))
    }

    fn marker(serial: u64) -> Version {
        let id = Some(format!("{:016x}{serial:016x}", !serial));
        Version::Marker(Marker { id, modified: SystemTime::UNIX_EPOCH, serial })
    }

    /// Counts what a listing does.
    struct Counted<'a> {
        versions: Versions<'a>,
        steps: usize,
        seeks: usize,
    }

    impl<'a> Cursor for Counted<'a> {
        type Key = &'a str;
        type Item = VersionEntry;

        fn seek(&mut self, from: Bound<&str>) -> Result<()> {
            self.seeks += 1;
            self.versions.seek(from)
        }

        fn next(&mut self) -> Result<Option<&'a str>> {
            self.steps += 1;
            self.versions.next()
        }

        fn item(&mut self) -> Result<VersionEntry> {
            self.versions.item()
        }
    }

    impl VersionCursor for Counted<'_> {
        fn seek_version(&mut self, key: &str, version: &str) -> Result<()> {
            self.seeks += 1;
            self.versions.seek_version(key, version)
        }
    }

    #[test]
    fn groups_of_versions_are_passed_by_a_seek() {
        let mut objects = Objects::default();
        for n in 0..20_000 {
            let key = format!("group/{n:05}");
            objects.push(&key, object(3 * n));
            objects.push(&key, object(3 * n + 1));
            objects.push(&key, if n % 2 == 0 { marker(3 * n + 2) } else { object(3 * n + 2) });
        }
        for n in 0..1000 {
            objects.push("key", object(100_000 + n));
        }
        assert_eq!(objects.count(), 20_000 * 5 / 2 + 1000);
        let page = |query: &VersionQuery| {
            let mut cursor = Counted { versions: objects.versions(), steps: 0, seeks: 0 };
            let page = list::version_page(&mut cursor, query).unwrap();
            (page, cursor.steps, cursor.seeks)
        };
        let mut query = VersionQuery { delimiter: "/".into(), max: 10, ..VersionQuery::default() };
        let (first, steps, seeks) = page(&query);
        assert_eq!((first.versions.len(), first.prefixes.len(), steps, seeks), (9, 1, 11, 2));
        let (key, version) = first.next.unwrap();
        assert_eq!((key.as_str(), version.as_deref()), ("key", first.versions[8].version.as_deref()));
        // The next page begins in the middle of a key.
        (query.after, query.after_version) = (key, version);
        let (second, steps, seeks) = page(&query);
        assert_eq!((second.versions.len(), second.prefixes.len(), steps, seeks), (10, 0, 11, 1));
        assert!(second.versions.iter().all(|entry| !entry.latest) && first.versions[0].latest);
        let serial = |entry: &VersionEntry| serial_of(entry.version.as_deref().unwrap()).unwrap();
        let serials: Vec<u64> = first.versions.iter().chain(&second.versions).map(serial).collect();
        assert_eq!(serials, (100_000..101_000).rev().take(19).collect::<Vec<_>>());
    }
}
