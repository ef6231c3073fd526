//! The file of the tables: opening it, and the room that it needs even on a full disk.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError};
use rustix::fs::{FallocateFlags, fallocate};

use super::{
    accounts::Stored,
    files::{Files, is_full},
    tables::{self, BUCKETS, CONTENTS, EPOCH, NULLS, NUMBERS, PARTS, UPLOADS, VERSIONS, Version, damaged},
};
use crate::{Result, StoreError};

/// Most memory for the pages of the tables. redb's own default is 1 GiB.
const CACHE: usize = 64 << 20;

/// Most memory for pages while the file is only checked.
const CHECK_CACHE: usize = 8 << 20;

/// What is kept free for the tables on a full disk, so that deletes work there: a transaction of a hundred deletes copies
/// a few pages of 4 KiB for each.
const RESERVE: u64 = 4 << 20;

/// Name of the file that keeps it.
const RESERVE_NAME: &str = "reserve";

/// Number of transactions since the store was made.
pub(super) const TRANSACTIONS: &str = "transactions";

/// Page in which changes are kept while the file is only checked.
const PAGE: usize = 4096;

/// An error of the tables.
pub(super) fn failed(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Internal(format!("the metadata file failed: {}", error.into()))
}

/// Room that is kept for the tables.
#[derive(Debug)]
pub(super) struct Reserve {
    file: File,
    /// Whether it has been given up, for the tables.
    used: AtomicBool,
}

impl Reserve {
    fn new(root: &Path) -> io::Result<Self> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(root.join(RESERVE_NAME))?;
        let reserve = Self { file, used: AtomicBool::new(true) };
        reserve.refill();
        Ok(reserve)
    }

    /// Whether the disk is so full that only what makes room may go on.
    pub(super) fn used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes the room again, if it was given up and there is room.
    pub(super) fn refill(&self) {
        if !self.used() {
            return;
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, RESERVE) {
            Ok(()) => self.used.store(false, Ordering::Relaxed),
            // Better none than no store on a file system that cannot do it.
            Err(rustix::io::Errno::OPNOTSUPP) => self.used.store(false, Ordering::Relaxed),
            Err(_) => {}
        }
    }

    fn give_up(&self) -> bool {
        let given = self.file.set_len(0).is_ok() && !self.used.swap(true, Ordering::Relaxed);
        if given {
            tracing::warn!("the disk is full: only deletes go on");
        }
        given
    }
}

/// The file, as redb sees it.
#[derive(Debug)]
struct MetaFile {
    file: File,
    reserve: Arc<Reserve>,
}

impl StorageBackend for MetaFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(data, offset) {
            Err(error) if is_full(&error) && self.reserve.give_up() => self.file.write_all_at(data, offset),
            result => result,
        }
    }
}

/// The file, with all changes beside it, in memory: checking it changes nothing.
#[derive(Debug)]
struct Overlay {
    file: File,
    /// Length of the file itself.
    real: u64,
    len: AtomicU64,
    pages: Mutex<HashMap<u64, Box<[u8]>>>,
}

impl Overlay {
    fn pages(&self) -> MutexGuard<'_, HashMap<u64, Box<[u8]>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts of `offset..offset + len` page by page: page, place in it, length.
    fn split(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let page = PAGE as u64;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let within = usize::try_from(at % page).unwrap_or_default();
            let part = (PAGE - within).min(len - done);
            done += part;
            (part > 0).then_some((at / page, within, part))
        })
    }

    /// A page as the file has it; zeros behind its end.
    fn original(&self, page: u64) -> io::Result<Box<[u8]>> {
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        let at = page * PAGE as u64;
        let there = usize::try_from(self.real.saturating_sub(at)).unwrap_or(PAGE).min(PAGE);
        if let Some(there) = bytes.get_mut(..there) {
            self.file.read_exact_at(there, at)?;
        }
        Ok(bytes)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::Relaxed))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > self.len.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let inside = usize::try_from(self.real.saturating_sub(offset)).unwrap_or(out.len()).min(out.len());
        let (file, behind) = out.split_at_mut(inside);
        self.file.read_exact_at(file, offset)?;
        behind.fill(0);
        let pages = self.pages();
        if pages.is_empty() {
            return Ok(());
        }
        let mut rest = out;
        for (page, within, len) in Self::split(offset, rest.len()) {
            let (now, later) = rest.split_at_mut(len);
            if let Some(bytes) = pages.get(&page).and_then(|page| page.get(within..within + len)) {
                now.copy_from_slice(bytes);
            }
            rest = later;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut pages = self.pages();
        let mut rest = data;
        for (page, within, len) in Self::split(offset, data.len()) {
            let (now, later) = rest.split_at(len);
            let bytes = match pages.entry(page) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => entry.insert(self.original(page)?),
            };
            if let Some(bytes) = bytes.get_mut(within..within + len) {
                bytes.copy_from_slice(now);
            }
            rest = later;
        }
        Ok(())
    }
}

/// The tables, opened.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) db: Database,
    pub(super) reserve: Arc<Reserve>,
    pub(super) stored: Stored,
    pub(super) epoch: u64,
    /// Transactions so far.
    pub(super) transactions: u64,
}

/// Opens the tables, makes them if the store is new, and removes what the last server has left behind.
pub(super) fn open(files: &Files) -> Result<Meta> {
    let path = files.meta();
    let shown = path.display();
    let there = match fs::metadata(&path) {
        Ok(meta) => Some(meta.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(StoreError::Internal(format!("cannot open '{shown}': {error}"))),
    };
    let clean = files.clean().map_err(|error| files.error("read the mark of an orderly end", 0, &error))?;
    match there {
        None => make(files)?,
        Some(_) => check(&path, clean)?,
    }
    let reserve =
        Arc::new(Reserve::new(files.root()).map_err(|error| files.error("make the reserve", RESERVE, &error))?);
    let db = open_file(&path, &reserve).map_err(|error| refusal(&path, &error.to_string()))?;
    let (stored, epoch, transactions) = start(&db)?;
    if clean.is_none() && there.is_some() {
        let known = data_files(&db)?;
        let (removed, missing) =
            files.sweep(&known).map_err(|error| files.error("remove unfinished files", 0, &error))?;
        if removed > 0 {
            tracing::info!(removed, "removed what was unfinished when the last server ended");
        }
        if missing > 0 {
            tracing::error!(missing, "files of objects are missing: reading these objects will fail");
        }
    }
    files.remove_clean().map_err(|error| files.error("remove the mark of an orderly end", 0, &error))?;
    Ok(Meta { db, reserve, stored, epoch, transactions })
}

/// Says that the file cannot be used.
fn refusal(path: &Path, why: &str) -> StoreError {
    StoreError::Internal(format!(
        "the metadata file '{}' is damaged ({why}): nothing has been changed; restore it from a copy of the whole directory",
        path.display()
    ))
}

fn open_file(path: &Path, reserve: &Arc<Reserve>) -> Result<Database, DatabaseError> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    Builder::new().set_cache_size(CACHE).create_with_backend(MetaFile { file, reserve: Arc::clone(reserve) })
}

/// Makes the tables of a new store.
fn make(files: &Files) -> Result<()> {
    let failed_to = |what: &str, error: io::Error| files.error(what, 0, &error);
    if files.any_object().map_err(|error| failed_to("look for objects", error))? {
        let why = "it is missing, although there are objects";
        return Err(refusal(&files.meta(), why));
    }
    let new = files.meta_new();
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed_to("remove a file", error)),
        _ => {}
    }
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new);
    let file = file.map_err(|error| failed_to("make the metadata file", error))?;
    let backend = redb::backends::FileBackend::new(file).map_err(failed)?;
    let db = Builder::new().set_cache_size(CACHE).create_with_backend(backend).map_err(failed)?;
    let transaction = db.begin_write().map_err(failed)?;
    {
        transaction.open_table(BUCKETS).map_err(failed)?;
        transaction.open_table(VERSIONS).map_err(failed)?;
        transaction.open_table(NULLS).map_err(failed)?;
        transaction.open_table(CONTENTS).map_err(failed)?;
        transaction.open_table(UPLOADS).map_err(failed)?;
        transaction.open_table(PARTS).map_err(failed)?;
        let mut numbers = transaction.open_table(NUMBERS).map_err(failed)?;
        numbers.insert(EPOCH, 0).map_err(failed)?;
        numbers.insert(TRANSACTIONS, 0).map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    db.close().map_err(failed)?;
    fs::rename(&new, files.meta()).map_err(|error| failed_to("rename the metadata file", error))?;
    files.sync_root().map_err(|error| failed_to("make the metadata file permanent", error))
}

/// Reads the whole file, and compares it with its checksums, without changing anything.
fn check(path: &Path, clean: Option<u64>) -> Result<()> {
    let cannot = |error: io::Error| StoreError::Internal(format!("cannot read '{}': {error}", path.display()));
    let file = File::open(path).map_err(cannot)?;
    let real = file.metadata().map_err(cannot)?.len();
    if real == 0 {
        return Err(refusal(path, "it is empty"));
    }
    let overlay = Overlay { file, real, len: AtomicU64::new(real), pages: Mutex::default() };
    let db = Builder::new()
        .set_cache_size(CHECK_CACHE)
        .set_check_integrity_on_open(true)
        .create_with_backend(overlay)
        .map_err(|error| match error {
            DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                refusal(path, "it is no metadata file")
            }
            DatabaseError::UpgradeRequired(version) => {
                refusal(path, &format!("it has the unknown version {version} of redb's format"))
            }
            error => refusal(path, &error.to_string()),
        })?;
    let transaction = db.begin_read().map_err(failed)?;
    let numbers = transaction.open_table(NUMBERS).map_err(|error| refusal(path, &error.to_string()))?;
    let number = |name| Ok(numbers.get(name).map_err(failed)?.map(|value| value.value()));
    let (epoch, transactions) = (number(EPOCH)?, number(TRANSACTIONS)?);
    if epoch.is_none() || transactions.is_none() {
        return Err(refusal(path, "it does not say how often it was opened"));
    }
    if clean.is_some() && transactions != clean {
        let why = "it is not as the last server left it";
        return Err(refusal(path, why));
    }
    Ok(())
}

/// Counts what is stored, and begins an epoch.
fn start(db: &Database) -> Result<(Stored, u64, u64)> {
    let transaction = db.begin_write().map_err(failed)?;
    let mut stored = Stored::default();
    let numbers = {
        let versions = transaction.open_table(VERSIONS).map_err(failed)?;
        for entry in versions.iter().map_err(failed)? {
            let (_, value) = entry.map_err(failed)?;
            let version: Version = tables::decode(value.value())?;
            stored.slots += 1;
            if let Some(object) = version.object {
                stored.objects += 1;
                stored.bytes = stored.bytes.checked_add(object.size).ok_or_else(|| damaged("sizes overflow"))?;
            }
        }
        let parts = transaction.open_table(PARTS).map_err(failed)?;
        for entry in parts.iter().map_err(failed)? {
            let (_, value) = entry.map_err(failed)?;
            let part: tables::Part = tables::decode(value.value())?;
            stored.bytes = stored.bytes.checked_add(part.size()).ok_or_else(|| damaged("sizes overflow"))?;
        }
        let uploads = transaction.open_table(UPLOADS).map_err(failed)?;
        for entry in uploads.iter().map_err(failed)? {
            entry.map_err(failed)?;
            stored.uploads += 1;
            stored.slots += 1;
        }
        let mut numbers = transaction.open_table(NUMBERS).map_err(failed)?;
        let number = |name| Ok(numbers.get(name).map_err(failed)?.map_or(0, |value| value.value()));
        let (epoch, transactions) = (number(EPOCH)? + 1, number(TRANSACTIONS)? + 1);
        numbers.insert(EPOCH, epoch).map_err(failed)?;
        numbers.insert(TRANSACTIONS, transactions).map_err(failed)?;
        (epoch, transactions)
    };
    transaction.commit().map_err(failed)?;
    Ok((stored, numbers.0, numbers.1))
}

/// The files that the tables name, sorted.
fn data_files(db: &Database) -> Result<Vec<u64>> {
    let transaction = db.begin_read().map_err(failed)?;
    let mut known = Vec::new();
    for entry in transaction.open_table(CONTENTS).map_err(failed)?.iter().map_err(failed)? {
        let (_, value) = entry.map_err(failed)?;
        known.extend(tables::content_files(value.value())?);
    }
    for entry in transaction.open_table(PARTS).map_err(failed)?.iter().map_err(failed)? {
        let (_, value) = entry.map_err(failed)?;
        let part: tables::Part = tables::decode(value.value())?;
        known.extend(part.file.map(|file| file.id));
    }
    known.sort_unstable();
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_reads_like_a_file_and_leaves_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let original: Vec<u8> = (0..10_000u32).map(|n| n.to_le_bytes()[0]).collect();
        fs::write(&path, &original).unwrap();
        let file = File::open(&path).unwrap();
        let real = original.len() as u64;
        let overlay = Overlay { file, real, len: AtomicU64::new(real), pages: Mutex::default() };
        let mut model = original.clone();
        model.resize(20_000, 0);
        overlay.set_len(20_000).unwrap();
        for (offset, len, byte) in [(0, 10, 1), (4090, 20, 2), (9_990, 5_000, 3), (19_999, 1, 4), (4_096, 4_096, 5)] {
            overlay.write(offset, &vec![byte; len]).unwrap();
            let from = usize::try_from(offset).unwrap();
            model[from..from + len].fill(byte);
        }
        for (offset, len) in [(0, 20_000), (5, 4_091), (9_000, 2_000), (12_287, 2), (19_999, 1)] {
            let mut got = vec![0; len];
            overlay.read(offset, &mut got).unwrap();
            let from = usize::try_from(offset).unwrap();
            assert!(got == model[from..from + len], "{offset} {len}");
        }
        assert!(overlay.read(19_999, &mut [0; 2]).is_err());
        assert_eq!(fs::read(&path).unwrap(), original);
    }
}
