//! A walk over the files of a bucket in the order of their keys, folder by folder.

use std::{
    ops::Bound::{self, Excluded, Included, Unbounded},
    path::PathBuf,
};

use opendal::{EntryMode, ErrorKind, Metadata, Operator};
use tokio::runtime::Handle;

use super::{OWN, failed, io_failed};
use crate::{Result, StoreError, list::Cursor};

/// Longest name of a file (`NAME_MAX` of Linux), for all services alike.
const MAX_NAME: usize = 255;

/// Whether a key can be a path, and the same key again when it is listed.
pub(super) fn fits(key: &str) -> bool {
    let segment = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME;
    // OpenDAL trims white space off paths and drops empty segments.
    key.trim() == key
        && !key.contains('\0')
        && key.split('/').all(segment)
        && !key.starts_with(OWN)
        && key != ".ernic-uploads"
}

/// A folder, and how far it has been walked through.
#[derive(Debug)]
struct Level {
    /// Empty for the bucket's root; else with a slash behind it.
    path: String,
    /// Keys of files, and of folders with a slash behind them, sorted. A folder's key sorts like the keys in it.
    entries: Vec<(String, Option<Metadata>)>,
    at: usize,
}

/// A file that is listed: its path from the root of the service, and what the listing has told of it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: String,
    pub(super) metadata: Option<Metadata>,
}

/// A [`Cursor`] over files. One folder after the other is read as a whole: its length is what a page costs.
#[derive(Debug)]
pub(super) struct Walk {
    op: Operator,
    /// The service's root, where that is a folder of this machine.
    local: Option<PathBuf>,
    handle: Handle,
    /// The bucket's folder, with a slash behind it, or empty.
    root: String,
    levels: Vec<Level>,
    from: Bound<String>,
    item: Option<Found>,
}

impl Walk {
    pub(super) fn new(op: Operator, local: Option<PathBuf>, handle: Handle, root: String) -> Self {
        Self { op, local, handle, root, levels: Vec::new(), from: Unbounded, item: None }
    }

    fn read(&self, path: &str) -> Result<Level> {
        let mut entries = match &self.local {
            Some(root) => Self::read_local(&root.join(&self.root), path)?,
            None => self.read_service(path)?,
        };
        // A folder lists itself, and what no client could ask for is not shown.
        entries.retain(|(key, _)| key != path && fits(key.strip_suffix('/').unwrap_or(key)));
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Level { path: path.to_owned(), entries, at: 0 })
    }

    /// OpenDAL's own listing of a folder of this machine takes a link to a folder for both a file and a folder, and ends
    /// there with a panic in builds with checks.
    fn read_local(root: &std::path::Path, path: &str) -> Result<Vec<(String, Option<Metadata>)>> {
        let gone = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        let folder = match std::fs::read_dir(root.join(path)) {
            Ok(folder) => folder,
            Err(error) if gone(&error) => return Ok(Vec::new()),
            Err(error) => return Err(io_failed(&error)),
        };
        let mut entries = Vec::new();
        for entry in folder {
            let entry = entry.map_err(|error| io_failed(&error))?;
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
            // Not: links, sockets, devices.
            if kind.is_file() {
                entries.push((format!("{path}{name}"), None));
            } else if kind.is_dir() {
                entries.push((format!("{path}{name}/"), None));
            }
        }
        Ok(entries)
    }

    fn read_service(&self, path: &str) -> Result<Vec<(String, Option<Metadata>)>> {
        let folder = format!("{}{path}", self.root);
        let entries = match self.handle.block_on(self.op.list(if folder.is_empty() { "/" } else { &folder })) {
            Ok(entries) => entries,
            // It was there a moment ago.
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(&error)),
        };
        let known = entries.into_iter().filter(|entry| entry.metadata().mode() != EntryMode::Unknown);
        let keys = known.filter_map(|entry| {
            let (path, metadata) = entry.into_parts();
            Some((path.strip_prefix(&self.root)?.to_owned(), Some(metadata)))
        });
        Ok(keys.collect())
    }
}

/// Whether a folder or file may have a key that `from` admits.
fn admits(from: &Bound<String>, key: &str) -> bool {
    match from {
        Unbounded => true,
        Included(from) => key >= from.as_str() || key.ends_with('/') && from.starts_with(key),
        Excluded(from) => key > from.as_str() || key.ends_with('/') && from.starts_with(key),
    }
}

impl Cursor for Walk {
    type Key = String;
    type Item = Found;

    fn seek(&mut self, from: Bound<&str>) -> Result<()> {
        self.from = from.map(str::to_owned);
        let to = match from {
            Included(key) | Excluded(key) => key,
            Unbounded => "",
        };
        // Folders on the way to it need not be read again.
        while self.levels.last().is_some_and(|level| !to.starts_with(&level.path)) {
            self.levels.pop();
        }
        if self.levels.is_empty() {
            let root = self.read("")?;
            self.levels.push(root);
        }
        if let Some(level) = self.levels.last_mut() {
            let from = &self.from;
            level.at = level.entries.partition_point(|(key, _)| !admits(from, key));
        }
        // The folders above go on behind the one that was entered.
        let paths: Vec<String> = self.levels.iter().skip(1).map(|level| level.path.clone()).collect();
        for (level, below) in self.levels.iter_mut().zip(paths) {
            level.at = level.entries.partition_point(|(key, _)| *key <= below);
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<String>> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            let Some((key, metadata)) = level.entries.get(level.at).cloned() else {
                self.levels.pop();
                continue;
            };
            level.at += 1;
            if !admits(&self.from, &key) {
                continue;
            }
            if key.ends_with('/') {
                let mut below = self.read(&key)?;
                let from = &self.from;
                below.at = below.entries.partition_point(|(key, _)| !admits(from, key));
                self.levels.push(below);
            } else {
                self.item = Some(Found { path: format!("{}{key}", self.root), metadata });
                return Ok(Some(key));
            }
        }
    }

    fn item(&mut self) -> Result<Found> {
        self.item.take().ok_or_else(|| StoreError::Internal("a listing asks for an item in front of all keys".into()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        ListQuery,
        list::{MapCursor, page},
    };

    #[test]
    fn keys_that_cannot_be_paths() {
        for key in ["a", "a/b c/ü", ".a", "a..b", "...", ".ernic-uploadsx", &"x".repeat(255)] {
            assert!(fits(key), "{key}");
        }
        for key in
            ["", "/a", "a/", "a//b", ".", "a/../b", "./a", " a", "a\n", "a\0b", ".ernic-uploads", &"x".repeat(256)]
        {
            assert!(!fits(key), "{key:?}");
        }
        assert!(!fits(".ernic-uploads/x"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// The walk shows what a sorted map of the same keys shows.
        #[test]
        fn a_walk_is_in_the_order_of_keys(
            keys in prop::collection::btree_set("[a-b](-|0|/[ab!]|/[ab]/[ab])?", 0..14),
            prefix in "[ab]?(/|/a)?",
            after in "[ab]?(/|-|/a)?",
            delimiter in "(/|)",
            max in 1usize..5,
            local: bool,
        ) {
            // A file and a folder cannot have one name.
            let keys: BTreeMap<String, ()> = keys
                .iter()
                .filter(|key| !keys.iter().any(|other| other.starts_with(&format!("{key}/"))))
                .map(|key| (key.clone(), ()))
                .collect();
            // In memory where there is such a file system: a thousand trees are made and taken away.
            let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
            for key in keys.keys() {
                let path = folder.path().join(key);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, b"").unwrap();
            }
            std::fs::create_dir_all(folder.path().join("a0empty/deeper")).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let op = Operator::new(opendal::services::Fs::default().root(folder.path().to_str().unwrap())).unwrap();
            let local = local.then(|| folder.path().to_owned());
            let mut walk = Walk::new(op, local, runtime.handle().clone(), String::new());
            let mut query = ListQuery { prefix, delimiter, after, max };
            loop {
                let shown = page(&mut walk, &query).unwrap();
                let expected = page(&mut MapCursor::new(&keys), &query).unwrap();
                prop_assert!(shown.entries.iter().map(|(key, _)| key).eq(expected.entries.iter().map(|(key, _)| key)));
                prop_assert_eq!(&shown.prefixes, &expected.prefixes);
                prop_assert_eq!(shown.next(), expected.next());
                match shown.next() {
                    Some(next) => query.after = next,
                    None => break,
                }
            }
        }
    }
}
