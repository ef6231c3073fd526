//! Pages of a sorted sequence of keys: the listing that all stores share.
//!
//! A store gives a [`Cursor`] over its keys; [`page`] and [`version_page`] do the rest. They step over the keys of a page
//! and seek behind each group, so that a page costs the same however many keys there are, and however many a group has.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, btree_map::Range},
    ops::Bound::{self, Excluded, Included, Unbounded},
};

use crate::{ListQuery, Result, StoreError, VersionEntry, VersionPage, VersionQuery};

/// A position in a sequence of keys in ascending byte order. A key may come several times in a row, which only the
/// listing of versions uses.
pub trait Cursor {
    /// A key.
    type Key: AsRef<str> + Into<String>;
    /// What is listed of a key.
    type Item;

    /// Moves in front of the first key that `from`, a lower bound, admits.
    fn seek(&mut self, from: Bound<&str>) -> Result<()>;

    /// Steps over the next key and returns it; `None` at the end.
    fn next(&mut self) -> Result<Option<Self::Key>>;

    /// What belongs to the key that was last stepped over. Called at most once for each.
    fn item(&mut self) -> Result<Self::Item>;
}

/// A [`Cursor`] over all versions, those of a key newest first.
pub trait VersionCursor: Cursor<Item = VersionEntry> {
    /// Moves behind the version `version` (as S3 spells it) of `key`. Where it is not known any more what came behind it,
    /// moves in front of all versions of the key: better one twice than one never.
    fn seek_version(&mut self, key: &str, version: &str) -> Result<()>;
}

/// One page: keys with what is listed of them, and groups.
#[derive(Debug)]
pub struct Page<T> {
    /// Keys, ascending, and what is listed of each.
    pub entries: Vec<(String, T)>,
    /// Groups, ascending, each ending in the delimiter.
    pub prefixes: Vec<String>,
    /// What the last entry is, if more follow.
    more: Option<Last>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Key,
    Group,
}

impl<T> Page<T> {
    /// Where the next page begins ([`ListQuery::after`]).
    pub fn next(&self) -> Option<String> {
        match self.more? {
            Last::Key => self.entries.last().map(|(key, _)| key.clone()),
            Last::Group => self.prefixes.last().cloned(),
        }
    }
}

/// One page of the keys of `cursor`. Errors: the cursor's.
pub fn page<C: Cursor>(cursor: &mut C, query: &ListQuery) -> Result<Page<C::Item>> {
    let ListQuery { prefix, delimiter, after, max } = query;
    if *max > 0 {
        cursor.seek(start(prefix, after))?;
    }
    fill(cursor, prefix, delimiter, after, *max)
}

/// One page of the versions of `cursor`. Errors: the cursor's.
pub fn version_page<C: VersionCursor>(cursor: &mut C, query: &VersionQuery) -> Result<VersionPage> {
    let VersionQuery { prefix, delimiter, after, after_version, max } = query;
    if *max > 0 {
        match after_version {
            Some(version) if !after.is_empty() && after >= prefix => cursor.seek_version(after, version)?,
            _ => cursor.seek(start(prefix, after))?,
        }
    }
    let page = fill(cursor, prefix, delimiter, after, *max)?;
    let versions: Vec<VersionEntry> = page.entries.into_iter().map(|(_, entry)| entry).collect();
    let next = page.more.and_then(|last| match last {
        Last::Key => {
            let last = versions.last()?;
            Some((last.key.clone(), Some(last.version.clone().unwrap_or_else(|| "null".to_owned()))))
        }
        Last::Group => Some((page.prefixes.last()?.clone(), None)),
    });
    Ok(VersionPage { versions, prefixes: page.prefixes, next })
}

/// Where a listing begins.
fn start<'a>(prefix: &'a str, after: &'a str) -> Bound<&'a str> {
    if after.is_empty() || after < prefix { Included(prefix) } else { Excluded(after) }
}

/// Fills a page from where `cursor` is.
fn fill<C: Cursor>(cursor: &mut C, prefix: &str, delimiter: &str, after: &str, max: usize) -> Result<Page<C::Item>> {
    let mut page = Page { entries: Vec::new(), prefixes: Vec::new(), more: None };
    let mut last = None;
    while let Some(key) = if max == 0 { None } else { cursor.next()? } {
        let name = key.as_ref();
        let Some(behind) = name.strip_prefix(prefix) else {
            break;
        };
        let group = match behind.find(delimiter) {
            Some(at) if !delimiter.is_empty() => name.get(..prefix.len() + at + delimiter.len()),
            _ => None,
        };
        let beyond = group.map(successor);
        let passed = group.is_some_and(|group| group <= after);
        if !passed {
            if page.entries.len() + page.prefixes.len() == max {
                page.more = last;
                break;
            }
            if let Some(group) = group {
                page.prefixes.push(group.to_owned());
                last = Some(Last::Group);
            } else {
                let item = cursor.item()?;
                page.entries.push((key.into(), item));
                last = Some(Last::Key);
            }
        }
        match beyond {
            Some(Some(beyond)) => cursor.seek(Included(&beyond))?,
            // The group is the end of all strings.
            Some(None) => break,
            None => {}
        }
    }
    Ok(page)
}

/// A [`Cursor`] over a sorted map.
#[derive(Debug)]
pub struct MapCursor<'a, K, V> {
    map: &'a BTreeMap<K, V>,
    rest: Range<'a, K, V>,
    value: Option<&'a V>,
}

impl<'a, K: Ord, V> MapCursor<'a, K, V> {
    /// A cursor in front of the first key.
    pub fn new(map: &'a BTreeMap<K, V>) -> Self {
        Self { map, rest: map.range(..), value: None }
    }
}

impl<'a, K: Borrow<str> + Ord, V> Cursor for MapCursor<'a, K, V> {
    type Key = &'a str;
    type Item = &'a V;

    fn seek(&mut self, from: Bound<&str>) -> Result<()> {
        self.rest = self.map.range::<str, _>((from, Unbounded));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<&'a str>> {
        let next = self.rest.next();
        self.value = next.map(|(_, value)| value);
        Ok(next.map(|(key, _)| key.borrow()))
    }

    fn item(&mut self) -> Result<&'a V> {
        self.value.take().ok_or_else(|| StoreError::Internal("a listing asks for an item in front of all keys".into()))
    }
}

/// The least string that is greater than every string that starts with `prefix`, if there is one. Strings compare like
/// their code points, so this is `prefix` with its last one incremented.
fn successor(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        if last < char::MAX {
            // A range of `char` steps over the surrogates.
            chars.extend((last..=char::MAX).nth(1));
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// The definition, by a scan over everything.
    fn naive(keys: &BTreeMap<String, ()>, query: &ListQuery) -> (Vec<String>, Vec<String>, Option<String>) {
        let mut all: BTreeSet<(String, bool)> = BTreeSet::new();
        for key in keys.keys().filter(|key| key.starts_with(&query.prefix)) {
            let behind = &key[query.prefix.len()..];
            let entry = match behind.find(&query.delimiter) {
                Some(at) if !query.delimiter.is_empty() => {
                    (key[..query.prefix.len() + at + query.delimiter.len()].to_owned(), true)
                }
                _ => (key.clone(), false),
            };
            if entry.0 > query.after || query.after.is_empty() {
                all.insert(entry);
            }
        }
        let shown: Vec<_> = all.iter().take(query.max).cloned().collect();
        let next = (all.len() > shown.len()).then(|| shown.last().map(|entry| entry.0.clone())).flatten();
        let names = |group| shown.iter().filter(|entry| entry.1 == group).map(|entry| entry.0.clone()).collect();
        (names(false), names(true), next)
    }

    fn page_of<'a, K: Borrow<str> + Ord>(map: &'a BTreeMap<K, ()>, query: &ListQuery) -> Page<&'a ()> {
        page(&mut MapCursor::new(map), query).unwrap()
    }

    fn shown(map: &BTreeMap<String, ()>, query: &ListQuery) -> (Vec<String>, Vec<String>, Option<String>) {
        let page = page_of(map, query);
        let keys = page.entries.iter().map(|(key, _)| key.clone()).collect();
        (keys, page.prefixes.clone(), page.next())
    }

    fn map<'a>(keys: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, ()> {
        keys.into_iter().map(|key| (key.to_owned(), ())).collect()
    }

    #[test]
    fn groups_and_pages() {
        let map = map(["a", "b/1", "b/2", "b0", "c/x/1", "c/y", "d"]);
        let mut query = ListQuery { delimiter: "/".into(), max: 2, ..Default::default() };
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(shown(&map, &query), (own(&["a"]), own(&["b/"]), Some("b/".into())));
        query.after = "b/".into();
        assert_eq!(shown(&map, &query), (own(&["b0"]), own(&["c/"]), Some("c/".into())));
        query.after = "c/".into();
        assert_eq!(shown(&map, &query), (own(&["d"]), own(&[]), None));
        query.max = 0;
        query.after.clear();
        assert_eq!(shown(&map, &query), (own(&[]), own(&[]), None));
        query = ListQuery { delimiter: "/".into(), prefix: "c/".into(), max: 9, ..Default::default() };
        assert_eq!(shown(&map, &query), (own(&["c/y"]), own(&["c/x/"]), None));
    }

    /// A key that counts how often the map looks at a key.
    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Counted(String);

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    impl Borrow<str> for Counted {
        fn borrow(&self) -> &str {
            LOOKS.set(LOOKS.get() + 1);
            &self.0
        }
    }

    #[test]
    fn a_page_looks_at_few_keys_however_many_there_are() {
        let mut map: BTreeMap<Counted, ()> = (0..100_000).map(|n| (Counted(format!("group/{n:06}")), ())).collect();
        map.extend((0..60_000).map(|n| (Counted(format!("key{n:06}")), ())));
        let looks = |prefix: &str, delimiter: &str, after: &str, max, shown| {
            LOOKS.set(0);
            let query = ListQuery { prefix: prefix.into(), delimiter: delimiter.into(), after: after.into(), max };
            let page = page_of(&map, &query);
            assert_eq!((page.entries.len(), page.prefixes.len()), shown);
            LOOKS.get()
        };
        // A descent of a tree of 160,000 keys, in nodes of at most 11, passes at most 7 nodes.
        let descent = 7 * 11;
        // Besides the page's own keys: the descent to the first one, and one for each group that is passed.
        for (used, most) in [
            (looks("", "/", "", 10, (9, 1)), 12 + 2 * descent),
            (looks("", "/", "group/050000", 10, (10, 0)), 12 + 2 * descent),
            (looks("", "", "key050000", 1000, (1000, 0)), 1001 + descent),
            (looks("key", "", "", 10, (10, 0)), 11 + descent),
            (looks("group/", "/", "group/099990", 1000, (9, 0)), 10 + descent),
        ] {
            assert!(used <= most, "{used} looks, at most {most} expected");
        }
    }

    #[test]
    fn successors() {
        assert_eq!(successor("a/").as_deref(), Some("a0"));
        assert_eq!(successor("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(successor("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(successor("\u{10ffff}"), None);
        assert_eq!(successor(""), None);
    }

    #[test]
    fn a_group_at_the_end_of_all_strings() {
        let map = map(["a", "\u{10ffff}", "\u{10ffff}x"]);
        let query = ListQuery { delimiter: "\u{10ffff}".into(), max: 5, ..Default::default() };
        assert_eq!(shown(&map, &query), naive(&map, &query));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn pages_are_as_defined(
            keys in prop::collection::btree_set("[ab/é]{1,5}", 0..30),
            prefix in "[ab/é]{0,2}",
            delimiter in "(/|a|ab|//|é|)",
            after in "[ab/é]{0,3}",
            max in 0usize..6,
        ) {
            let map = map(keys.iter().map(String::as_str));
            let mut query = ListQuery { prefix, delimiter, after, max };
            prop_assert_eq!(shown(&map, &query), naive(&map, &query));
            // Following `next` shows every entry once.
            query.after.clear();
            query.max = usize::MAX;
            let (mut objects, mut groups, _) = naive(&map, &query);
            query.max = max.max(1);
            loop {
                let (some, others, next) = shown(&map, &query);
                prop_assert_eq!(&some[..], &objects.drain(..some.len()).collect::<Vec<_>>()[..]);
                prop_assert_eq!(&others[..], &groups.drain(..others.len()).collect::<Vec<_>>()[..]);
                match next {
                    Some(next) => query.after = next,
                    None => break,
                }
            }
            prop_assert!(objects.is_empty() && groups.is_empty());
        }
    }
}
