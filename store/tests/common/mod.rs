//! What the tests of the stores share. The memory store never waits, so its futures are ready at once.
#![allow(clippy::cast_possible_truncation, dead_code)]

use std::{future::Future, ops::Range, sync::Arc};

use bytes::Bytes;
use ernic_store::{ByteStream, Commit, MemoryStore, Object, ObjectInfo, ObjectWriter, PutOptions, Result, Store};
use futures_util::{FutureExt, TryStreamExt};

/// The result of a future that does not wait.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the memory store never waits")
}

/// The result of a future that may wait.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    futures_executor::block_on(future)
}

/// `size` bytes that depend on `seed` and on their place.
pub fn pattern(size: u64, seed: u64) -> Vec<u8> {
    (0..size).map(|at| ((at + (at >> 8) * 31 + (at >> 16) * 7) ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}

/// Fills a writer, as much as a buffer takes at a time.
pub fn write(writer: &mut dyn ObjectWriter, mut content: &[u8]) -> Result<()> {
    while !content.is_empty() {
        let buffer = now(writer.buffer(content.len()))?;
        let (head, tail) = content.split_at(buffer.len());
        buffer.copy_from_slice(head);
        writer.advance(head.len());
        content = tail;
    }
    Ok(())
}

/// Stores an object in bucket `b`.
pub fn put(store: &MemoryStore, key: &str, content: &[u8], known: bool) -> Arc<ObjectInfo> {
    let options = PutOptions { size: known.then_some(content.len() as u64), ..Default::default() };
    let mut writer = now(store.put("b", key, options)).unwrap();
    write(&mut *writer, content).unwrap();
    now(writer.commit(Commit { etag: format!("{}", content.len()), ..Default::default() })).unwrap()
}

/// All pieces of a stream.
pub fn bytes(stream: ByteStream) -> Vec<Bytes> {
    now(stream.try_collect()).unwrap()
}

/// The pieces of a range.
pub fn read(object: &Object, range: Range<u64>) -> Vec<Bytes> {
    bytes(object.data.read(range))
}

/// The bytes of a range, of any store.
pub fn read_all(object: &Object, range: Range<u64>) -> Vec<u8> {
    let pieces: Vec<Bytes> = wait(object.data.read(range).try_collect()).unwrap();
    assert!(pieces.iter().all(|piece| (1..=1 << 20).contains(&piece.len())));
    pieces.concat()
}
