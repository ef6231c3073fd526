//! The directory of a store, and the files with the bytes of objects in it.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, IoSliceMut, Write as _},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{FlockOperation, flock, statvfs},
    io::{Errno, ReadWriteFlags, preadv2},
};

use super::pool::Pool;
use crate::{Result, StoreError, memory::arena::Arena};

/// What stands in the file [`FORMAT`].
const FORMAT_LINE: &str = "ernic disk store, format 1\n";
/// What every format's line begins with.
const FORMAT_START: &str = "ernic disk store, format ";

/// Names in the directory.
const FORMAT: &str = "format";
const FORMAT_NEW: &str = "format.new";
const LOCK: &str = "lock";
const OBJECTS: &str = "objects";
const TMP: &str = "tmp";
const META: &str = "meta.redb";
const META_NEW: &str = "meta.new";
const CLEAN: &str = "clean";

/// Mode of files and directories: objects are nobody else's business.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// The longest format line that is read, and the longest process id.
const LINE: u64 = 128;

/// The directory.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    /// Whether what is acknowledged survives a power cut.
    pub(super) durable: bool,
}

impl Files {
    /// Opens the directory, and makes it if need be. It is locked as long as the file is open that comes with it.
    pub(super) fn open(root: &Path, durable: bool) -> Result<(Self, File)> {
        let shown = root.display();
        let failed = |what: &str, error: io::Error| StoreError::Internal(format!("cannot {what} '{shown}': {error}"));
        make_dir(root).map_err(|error| failed("make the directory", error))?;
        let names = names(root).map_err(|error| failed("read the directory", error))?;
        if !names.iter().any(|name| name == FORMAT)
            && let Some(other) = names.iter().find(|name| *name != LOCK && *name != FORMAT_NEW)
        {
            return Err(StoreError::Internal(format!(
                "'{shown}' is not empty and holds no store (there is '{other}'): use an empty or a new directory"
            )));
        }
        let lock = open_lock(root, &shown)?;
        let files = Self { root: root.to_owned(), durable };
        files.check_format().map_err(|error| match error {
            Ok(refusal) => StoreError::Internal(refusal),
            Err(error) => failed("read the format of the store in", error),
        })?;
        files.make_dirs().map_err(|error| failed("make directories in", error))?;
        Ok((files, lock))
    }

    /// Reads the format, or writes it, as the first of all files. Errors: a refusal, or an error of the system.
    fn check_format(&self) -> Result<(), Result<String, io::Error>> {
        let path = self.root.join(FORMAT);
        let line = match File::open(&path) {
            Ok(file) => read_line(&file).map_err(Err)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let new = self.root.join(FORMAT_NEW);
                self.write_new(&new, FORMAT_LINE.as_bytes()).map_err(Err)?;
                fs::rename(&new, &path).map_err(Err)?;
                self.sync_dir(&self.root).map_err(Err)?;
                FORMAT_LINE.to_owned()
            }
            Err(error) => return Err(Err(error)),
        };
        if line == FORMAT_LINE {
            return Ok(());
        }
        let shown = self.root.display();
        Err(Ok(match line.strip_prefix(FORMAT_START).map(str::trim_end) {
            Some(version) => format!(
                "'{shown}' has the disk store's format {version:?}, and this program knows only 1: use the program that made it"
            ),
            None => format!("'{shown}' holds no store: its file '{FORMAT}' says {:?}", line.trim_end()),
        }))
    }

    fn make_dirs(&self) -> io::Result<()> {
        make_dir(&self.root.join(TMP))?;
        let objects = self.root.join(OBJECTS);
        make_dir(&objects)?;
        if !objects.join("ff").exists() {
            for n in 0..=u8::MAX {
                make_dir(&objects.join(format!("{n:02x}")))?;
            }
            self.sync_dir(&objects)?;
            self.sync_dir(&self.root)?;
        }
        Ok(())
    }

    /// The directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The file of the tables.
    pub(super) fn meta(&self) -> PathBuf {
        self.root.join(META)
    }

    /// The file of the tables while it is being made.
    pub(super) fn meta_new(&self) -> PathBuf {
        self.root.join(META_NEW)
    }

    /// Where a data file is.
    pub(super) fn object(&self, id: u64) -> PathBuf {
        self.object_dir(id).join(format!("{id:016x}"))
    }

    fn object_dir(&self, id: u64) -> PathBuf {
        self.root.join(OBJECTS).join(format!("{:02x}", id & 0xff))
    }

    /// Where a data file is while it is being written.
    pub(super) fn temporary(&self, id: u64) -> PathBuf {
        self.root.join(TMP).join(format!("{id:016x}"))
    }

    /// Makes a data file.
    pub(super) fn create(&self, id: u64) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(self.temporary(id))
    }

    /// Makes a data file permanent that is fully written. Only the tables make it an object's.
    pub(super) fn finish(&self, id: u64, file: &File) -> io::Result<()> {
        // Renamed first: the file system's journal then has both in the same commit. In either order, no table names the
        // file before all three steps are done.
        fs::rename(self.temporary(id), self.object(id))?;
        if self.durable {
            file.sync_data()?;
            self.sync_dir(&self.object_dir(id))?;
        }
        Ok(())
    }

    /// Opens a data file for reading.
    pub(super) fn read(&self, id: u64) -> io::Result<File> {
        File::open(self.object(id))
    }

    /// Removes a data file.
    pub(super) fn remove(&self, id: u64) {
        remove(&self.object(id));
    }

    /// Removes a data file that has not been made permanent.
    pub(super) fn remove_temporary(&self, id: u64) {
        remove(&self.temporary(id));
    }

    /// Makes a small file permanent.
    fn write_new(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
        file.write_all(content)?;
        if self.durable { file.sync_all() } else { Ok(()) }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.durable { File::open(dir)?.sync_all() } else { Ok(()) }
    }

    /// Makes the names in the directory itself permanent.
    pub(super) fn sync_root(&self) -> io::Result<()> {
        self.sync_dir(&self.root)
    }

    /// Makes everything permanent that has been written to the file system so far.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }

    /// Says that the store was closed in order, after so many transactions.
    pub(super) fn write_clean(&self, transactions: u64) -> io::Result<()> {
        self.write_new(&self.root.join(CLEAN), format!("{transactions}\n").as_bytes())?;
        self.sync_root()
    }

    /// What [`Files::write_clean`] said, if the store was closed in order.
    pub(super) fn clean(&self) -> io::Result<Option<u64>> {
        match File::open(self.root.join(CLEAN)) {
            Ok(file) => Ok(read_line(&file)?.trim_end().parse().ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes [`Files::write_clean`] back.
    pub(super) fn remove_clean(&self) -> io::Result<()> {
        match fs::remove_file(self.root.join(CLEAN)) {
            Ok(()) => self.sync_root(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether there is any data file.
    pub(super) fn any_object(&self) -> io::Result<bool> {
        for n in 0..=u8::MAX {
            if self.list(n)?.next().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn list(&self, n: u8) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
        fs::read_dir(self.root.join(OBJECTS).join(format!("{n:02x}")))
    }

    /// Removes what was being written, and every data file that is not among `known`, which is sorted. Returns how many
    /// files it has removed, and how many are missing.
    pub(super) fn sweep(&self, known: &[u64]) -> io::Result<(u64, u64)> {
        let mut removed = 0;
        for entry in fs::read_dir(self.root.join(TMP))? {
            removed += u64::from(remove(&entry?.path()));
        }
        let mut found = 0;
        for n in 0..=u8::MAX {
            for entry in self.list(n)? {
                let entry = entry?;
                let name = entry.file_name();
                let id =
                    name.to_str().filter(|name| name.len() == 16).and_then(|name| u64::from_str_radix(name, 16).ok());
                // A file of another kind is not ours.
                let Some(id) = id else { continue };
                if known.binary_search(&id).is_ok() {
                    found += 1;
                } else {
                    removed += u64::from(remove(&entry.path()));
                }
            }
        }
        Ok((removed, (known.len() as u64).saturating_sub(found)))
    }

    /// An error of the file system as the store says it.
    pub(super) fn error(&self, what: &str, needed: u64, error: &io::Error) -> StoreError {
        if is_full(error) {
            let free = statvfs(&self.root).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
            return StoreError::InsufficientStorage { needed, free: free.min(needed.saturating_sub(1)) };
        }
        StoreError::Internal(format!("cannot {what} in '{}': {error}", self.root.display()))
    }
}

/// Whether the disk, or the share of it that the user may have, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn make_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(DIR_MODE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}

fn names(root: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A file system of its own has this from the beginning.
        if name != "lost+found" {
            names.push(name);
        }
    }
    Ok(names)
}

fn read_line(file: &File) -> io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    file.take(LINE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Locks the directory.
fn open_lock(root: &Path, shown: &std::path::Display<'_>) -> Result<File> {
    let failed = |error: io::Error| StoreError::Internal(format!("cannot lock '{shown}': {error}"));
    let path = root.join(LOCK);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path)
        .map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let pid = read_line(&lock).unwrap_or_default();
            let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
            return Err(StoreError::Internal(format!("'{shown}' is in use by another server (pid {pid})")));
        }
        Err(error) => return Err(failed(error.into())),
    }
    let id = format!("{}\n", std::process::id());
    lock.set_len(0).and_then(|()| lock.write_all(id.as_bytes())).map_err(failed)?;
    Ok(lock)
}

/// Whether the file is gone because of this.
fn remove(path: &Path) -> bool {
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a file of the disk store");
            false
        }
    }
}

/// Reads up to the whole of `buffer` from the cache of the system. `None`: it is not there, or that cannot be told.
pub(super) fn read_cached(file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
    preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).ok().filter(|n| *n > 0)
}

/// Fills `buffer`, and may wait for it.
pub(super) fn read_all(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}

/// What readers and writers share, and what outlives the store as long as there are readers.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) files: Files,
    pub(super) pool: Pool,
    pub(super) arena: Arc<Arena>,
    pins: Mutex<HashMap<u64, Pinned>>,
}

/// A content that is being read.
#[derive(Debug, Default)]
struct Pinned {
    readers: usize,
    /// Its files, once no object has it any more.
    doomed: Vec<u64>,
}

impl Disk {
    pub(super) fn new(files: Files) -> Arc<Self> {
        Arc::new(Self { files, pool: Pool::new(), arena: Arena::new(), pins: Mutex::default() })
    }

    fn pins(&self) -> MutexGuard<'_, HashMap<u64, Pinned>> {
        // Nothing panics under the lock.
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the files of a content as long as the pin is there. Whoever makes it must look afterwards whether the tables
    /// still have the content.
    pub(super) fn pin(self: &Arc<Self>, content: u64) -> Pin {
        self.pins().entry(content).or_default().readers += 1;
        Pin { disk: Arc::clone(self), content }
    }

    /// Removes the files of a content that no table has any more, once nobody reads them.
    pub(super) fn discard(&self, content: u64, files: Vec<u64>) {
        let files = match self.pins().get_mut(&content) {
            Some(pinned) => {
                pinned.doomed = files;
                return;
            }
            None => files,
        };
        files.into_iter().for_each(|id| self.files.remove(id));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Its thread ends.
        self.arena.close();
    }
}

/// Keeps the files of a content.
#[derive(Debug)]
pub(super) struct Pin {
    disk: Arc<Disk>,
    content: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.disk.pins();
        let Some(pinned) = pins.get_mut(&self.content) else { return };
        pinned.readers -= 1;
        if pinned.readers > 0 {
            return;
        }
        let doomed = pins.remove(&self.content).map(|pinned| pinned.doomed).unwrap_or_default();
        drop(pins);
        if !doomed.is_empty() {
            let disk = Arc::clone(&self.disk);
            self.disk.pool.spawn(move || doomed.into_iter().for_each(|id| disk.files.remove(id)));
        }
    }
}

/// The one call that rustix has no name for.
pub(super) mod write_back {
    #![allow(unsafe_code)] // `sync_file_range` is a C function without a wrapper.

    use std::{fs::File, os::fd::AsRawFd};

    /// Starts to write a part of a file to its disk, without waiting: what is written early need not be waited for at the
    /// end. Whether it works is of no importance.
    pub(in crate::disk) fn start(file: &File, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        // SAFETY: `sync_file_range` takes no pointers; the descriptor is open.
        unsafe {
            libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE);
        }
    }
}
