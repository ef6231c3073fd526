//! What these tests share.

use std::{future::Future, path::Path, sync::Arc};

use ernic_store::{
    Commit, DiskConfig, DiskStore, Durability, Object, ObjectInfo, ObjectWriter, PutOptions, Result, Store,
};
use futures_util::TryStreamExt;

/// The result of a future, which this thread sleeps for.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    futures_executor::block_on(future)
}

/// A directory for a test, in memory where there is such a file system: thousands of stores are opened there.
pub fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// `size` bytes that depend on `seed` and on their place.
pub fn pattern(size: u64, seed: u64) -> Vec<u8> {
    (0..size).map(|at| ((at + (at >> 8) * 31 + (at >> 16) * 7) ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}

pub fn config(path: &Path) -> DiskConfig {
    DiskConfig { path: path.to_owned(), capacity: u64::MAX, objects: u64::MAX, durability: Durability::Os }
}

/// A store with bucket `b`.
pub fn open(path: &Path) -> DiskStore {
    let store = DiskStore::open(config(path)).unwrap();
    wait(store.create_bucket("b")).unwrap();
    store
}

/// Fills a writer, as much as a buffer takes at a time.
pub fn write(writer: &mut dyn ObjectWriter, mut content: &[u8]) -> Result<()> {
    while !content.is_empty() {
        let buffer = wait(writer.buffer(content.len()))?;
        let (head, tail) = content.split_at(buffer.len());
        buffer.copy_from_slice(head);
        writer.advance(head.len());
        content = tail;
    }
    Ok(())
}

pub fn commit(etag: &str) -> Commit {
    Commit { etag: etag.into(), ..Default::default() }
}

/// Stores an object in bucket `b`.
pub fn put(store: &dyn Store, key: &str, content: &[u8], known: bool) -> Result<Arc<ObjectInfo>> {
    let options = PutOptions { size: known.then_some(content.len() as u64), ..Default::default() };
    let mut writer = wait(store.put("b", key, options))?;
    write(&mut *writer, content)?;
    wait(writer.commit(commit(&content.len().to_string())))
}

/// The bytes of a range.
pub fn read(object: &Object, range: std::ops::Range<u64>) -> Vec<u8> {
    wait(object.data.read(range).try_collect::<Vec<_>>()).unwrap().concat()
}

/// The whole content of an object in bucket `b`.
pub fn content(store: &dyn Store, key: &str) -> Vec<u8> {
    read(&wait(store.get("b", key, None)).unwrap(), 0..u64::MAX)
}
