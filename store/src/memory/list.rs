//! Listing a sorted map of keys, page by page.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
};

use crate::ListQuery;

/// One page: keys with their values, groups, and where the next page begins.
#[derive(Debug)]
pub(super) struct Page<'a, V> {
    pub(super) objects: Vec<(&'a str, &'a V)>,
    pub(super) prefixes: Vec<String>,
    pub(super) next: Option<String>,
}

/// One page of `map`. Takes a descent of the tree for each group and otherwise a step for each key of the page, however
/// many keys a group has.
pub(super) fn page<'a, K: Borrow<str> + Ord, V>(map: &'a BTreeMap<K, V>, query: &ListQuery) -> Page<'a, V> {
    let mut page = Page { objects: Vec::new(), prefixes: Vec::new(), next: None };
    if query.max == 0 {
        return page;
    }
    let start = if query.after.is_empty() || query.after < query.prefix {
        Included(query.prefix.as_str())
    } else {
        Excluded(query.after.as_str())
    };
    let mut rest = map.range::<str, _>((start, Unbounded));
    let mut last: Option<&str> = None;
    while let Some((key, value)) = rest.next() {
        let key = key.borrow();
        let Some(behind) = key.strip_prefix(&query.prefix) else {
            break;
        };
        let group = match behind.find(&query.delimiter) {
            Some(at) if !query.delimiter.is_empty() => key.get(..query.prefix.len() + at + query.delimiter.len()),
            _ => None,
        };
        if let Some(group) = group {
            rest = match successor(group) {
                Some(beyond) => map.range::<str, _>((Included(beyond.as_str()), Unbounded)),
                None => Default::default(),
            };
            if group <= query.after.as_str() {
                continue;
            }
        }
        if page.objects.len() + page.prefixes.len() == query.max {
            page.next = last.map(str::to_owned);
            break;
        }
        match group {
            Some(group) => page.prefixes.push(group.to_owned()),
            None => page.objects.push((key, value)),
        }
        last = Some(group.unwrap_or(key));
    }
    page
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

    fn shown(page: &Page<'_, ()>) -> (Vec<String>, Vec<String>, Option<String>) {
        let objects = page.objects.iter().map(|(key, ())| (*key).to_owned()).collect();
        (objects, page.prefixes.clone(), page.next.clone())
    }

    fn map<'a>(keys: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, ()> {
        keys.into_iter().map(|key| (key.to_owned(), ())).collect()
    }

    #[test]
    fn groups_and_pages() {
        let map = map(["a", "b/1", "b/2", "b0", "c/x/1", "c/y", "d"]);
        let mut query = ListQuery { delimiter: "/".into(), max: 2, ..Default::default() };
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(shown(&page(&map, &query)), (own(&["a"]), own(&["b/"]), Some("b/".into())));
        query.after = "b/".into();
        assert_eq!(shown(&page(&map, &query)), (own(&["b0"]), own(&["c/"]), Some("c/".into())));
        query.after = "c/".into();
        assert_eq!(shown(&page(&map, &query)), (own(&["d"]), own(&[]), None));
        query.max = 0;
        query.after.clear();
        assert_eq!(shown(&page(&map, &query)), (own(&[]), own(&[]), None));
        query = ListQuery { delimiter: "/".into(), prefix: "c/".into(), max: 9, ..Default::default() };
        assert_eq!(shown(&page(&map, &query)), (own(&["c/y"]), own(&["c/x/"]), None));
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
            let page = page(&map, &query);
            assert_eq!((page.objects.len(), page.prefixes.len()), shown);
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
        assert_eq!(shown(&page(&map, &query)), naive(&map, &query));
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
            prop_assert_eq!(shown(&page(&map, &query)), naive(&map, &query));
            // Following `next` shows every entry once.
            query.after.clear();
            query.max = usize::MAX;
            let (mut objects, mut groups, _) = naive(&map, &query);
            query.max = max.max(1);
            loop {
                let (some, others, next) = shown(&page(&map, &query));
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
