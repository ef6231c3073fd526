//! The simplest executor: a thread that sleeps until it is woken. And what tests do with any store.
#![allow(dead_code, clippy::cast_possible_truncation)]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use ernic_store::{ByteStream, Commit, Object, ObjectInfo, ObjectWriter, PutOptions, Result, Store};
use futures_util::StreamExt;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The result of a future. It fails the test if that takes two minutes.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = Instant::now();
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let left = Duration::from_secs(120).checked_sub(start.elapsed()).expect("it has come to an end by now");
        thread::park_timeout(left);
    }
}

/// `size` bytes that depend on `seed` and on their place.
pub fn pattern(size: u64, seed: u64) -> Vec<u8> {
    (0..size).map(|at| ((at + (at >> 8) * 31 + (at >> 16) * 7) ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}

/// Fills a writer.
pub fn write(writer: &mut dyn ObjectWriter, mut content: &[u8]) -> Result<()> {
    while !content.is_empty() {
        let buffer = wait(writer.buffer(content.len().min(100_000)))?;
        let (head, tail) = content.split_at(buffer.len());
        buffer.copy_from_slice(head);
        writer.advance(head.len());
        content = tail;
    }
    Ok(())
}

/// Stores an object.
pub fn put(store: &dyn Store, bucket: &str, key: &str, content: &[u8], options: PutOptions) -> Result<Arc<ObjectInfo>> {
    let condition = options.condition.clone();
    let mut writer = wait(store.put(bucket, key, options))?;
    write(&mut *writer, content)?;
    wait(writer.commit(Commit { condition, ..Commit::default() }))
}

/// All bytes of a stream, or its error.
pub fn drain(mut stream: ByteStream) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    while let Some(piece) = wait(stream.next()) {
        let piece = piece?;
        assert!(!piece.is_empty() && piece.len() <= 1 << 20);
        content.extend_from_slice(&piece);
    }
    Ok(content)
}

/// The whole content of an object.
pub fn content(object: &Object) -> Result<Vec<u8>> {
    drain(object.data.read(0..u64::MAX))
}
