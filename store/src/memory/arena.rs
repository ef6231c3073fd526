//! Where the bytes of objects live: chunks whose memory is reused.
//!
//! The first touch of fresh memory costs a page fault and a cleared page per 4 KiB, several times what copying 4 KiB
//! costs; reused memory costs neither. Large chunks are therefore anonymous mappings of a few sizes that go back to a
//! pool when their last reader lets go. The pool is bounded, and a thread that sleeps while there is nothing to do
//! unmaps what is above the bound, and what nobody needed for a while. Small chunks are ordinary heap memory.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use memmap2::{MmapMut, MmapOptions};

/// Longest chunk, and so the longest piece that a reader sees: what the [`Store`](crate::Store) trait allows.
pub(crate) const MAX_CHUNK: usize = 1 << 20;

/// Shortest mapped chunk; shorter ones come from the heap. Half of glibc's threshold for mapping an allocation by
/// itself (`M_MMAP_THRESHOLD`, 128 KiB), so that the heap recycles all of them.
const MIN_MAPPED: usize = 64 << 10;

/// Sizes of mapped chunks: the powers of two from [`MIN_MAPPED`] to [`MAX_CHUNK`].
const CLASSES: usize = 5;

/// Most bytes that the pool keeps: the largest object that the benchmarks replace over and over.
const POOL_BYTES: usize = 64 << 20;

/// Chunks that the pool did not need for this long are unmapped.
const TICK: Duration = Duration::from_secs(1);

/// Freed heap bytes from which on asking the allocator to give pages back is worth its walk over the heap.
const TRIM_BYTES: u64 = 4 << 20;

/// Chunks that are unmapped before the reaper looks at the pool again.
const BATCH: usize = 16;

/// Hands out chunks and takes them back.
#[derive(Debug)]
pub(crate) struct Arena {
    pool: Mutex<Pool>,
    /// Wakes the reaper.
    wake: Condvar,
    /// Bytes of heap chunks freed since the allocator was last asked to give pages back.
    heap_freed: AtomicU64,
}

#[derive(Debug, Default)]
struct Pool {
    free: [Vec<MmapMut>; CLASSES],
    /// Bytes in `free`.
    bytes: usize,
    /// Shortest that each list of `free` has been in this tick: chunks that nobody needed.
    unneeded: [usize; CLASSES],
    /// Nothing is kept any more.
    closed: bool,
}

impl Pool {
    fn pop(&mut self, class: usize) -> Option<MmapMut> {
        let list = self.free.get_mut(class)?;
        let map = list.pop()?;
        self.bytes -= map.len();
        let len = list.len();
        if let Some(unneeded) = self.unneeded.get_mut(class) {
            *unneeded = len.min(*unneeded);
        }
        Some(map)
    }

    fn push(&mut self, map: MmapMut) {
        if let Some(list) = class_of(map.len()).and_then(|class| self.free.get_mut(class)) {
            self.bytes += map.len();
            list.push(map);
        }
    }

    /// A few of the chunks above the bound, largest first.
    fn excess(&mut self) -> Vec<MmapMut> {
        let mut out = Vec::new();
        for class in (0..CLASSES).rev() {
            while self.bytes > POOL_BYTES && out.len() < BATCH {
                match self.pop(class) {
                    Some(map) => out.push(map),
                    None => break,
                }
            }
        }
        out
    }

    /// Ends a tick: the chunks that were not needed in it.
    fn tick(&mut self) -> Vec<MmapMut> {
        let mut out = Vec::new();
        for (list, unneeded) in self.free.iter_mut().zip(&mut self.unneeded) {
            // The oldest are at the front.
            out.extend(list.drain(..(*unneeded).min(list.len())));
            *unneeded = list.len();
        }
        self.bytes -= out.iter().map(|map| map.len()).sum::<usize>();
        out
    }
}

/// Class of a mapped chunk of exactly `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    (0..CLASSES).find(|class| MIN_MAPPED << class == len)
}

/// Length of the chunk that serves best for `want` more bytes: never more than `want`, so that objects have no slack.
fn chunk_len(want: usize) -> usize {
    if want < MIN_MAPPED { want } else { 1 << want.min(MAX_CHUNK).ilog2() }
}

impl Arena {
    /// An arena with its reaper. Without a thread for that, nothing is pooled.
    pub(crate) fn new() -> Arc<Self> {
        let arena = Arc::new(Self { pool: Mutex::default(), wake: Condvar::new(), heap_freed: AtomicU64::new(0) });
        let of_reaper = Arc::clone(&arena);
        let spawned = thread::Builder::new().name("store-reaper".into()).spawn(move || of_reaper.reap());
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for giving memory back: freed memory is not reused");
            arena.pool().closed = true;
        }
        arena
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // Nothing panics while holding the lock in a way that leaves the pool inconsistent.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk of at least 1 and at most `want` bytes, with unspecified content: exactly `want` below 64 KiB, else the
    /// largest power of two that fits, at most 1 MiB. Errors: the system has no memory.
    pub(crate) fn take(self: &Arc<Self>, want: usize) -> io::Result<Chunk> {
        let len = chunk_len(want.max(1));
        let memory = match class_of(len) {
            None => Memory::Heap(vec![0; len].into_boxed_slice()),
            Some(class) => {
                let pooled = self.pool().pop(class);
                Memory::Mapped(match pooled {
                    Some(map) => map,
                    // Populated by one call: a fault for each page would cost twice as much.
                    None => MmapOptions::new().len(len).populate().map_anon()?,
                })
            }
        };
        Ok(Chunk { memory, arena: Arc::clone(self) })
    }

    /// Unmaps what is free now, and from now on whatever becomes free at once.
    pub(crate) fn close(&self) {
        let mut pool = self.pool();
        pool.closed = true;
        let free = std::mem::take(&mut pool.free);
        pool.bytes = 0;
        drop(pool);
        self.wake.notify_one();
        drop(free);
    }

    /// Bytes that the pool holds for reuse.
    pub(crate) fn pooled(&self) -> usize {
        self.pool().bytes
    }

    fn give_back(&self, map: MmapMut) {
        let mut pool = self.pool();
        if pool.closed {
            drop(pool);
            drop(map);
            return;
        }
        let was_empty = pool.bytes == 0;
        pool.push(map);
        let notify = was_empty || pool.bytes > POOL_BYTES;
        drop(pool);
        if notify {
            self.wake.notify_one();
        }
    }

    fn heap_freed(&self, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        let before = self.heap_freed.fetch_add(len, Ordering::Relaxed);
        if before < TRIM_BYTES && before.saturating_add(len) >= TRIM_BYTES {
            // Under the lock, or the reaper might miss it between its check and its sleep.
            let _pool = self.pool();
            self.wake.notify_one();
        }
    }

    /// Body of the reaper. It sleeps without a timeout while there is nothing to give back.
    fn reap(&self) {
        let mut next = Instant::now() + TICK;
        let mut heap_seen = 0;
        let mut pool = self.pool();
        while !pool.closed {
            let mut free = pool.excess();
            if free.is_empty() {
                if pool.bytes == 0 && self.heap_freed.load(Ordering::Relaxed) < TRIM_BYTES {
                    pool = self.wake.wait(pool).unwrap_or_else(PoisonError::into_inner);
                    next = Instant::now() + TICK;
                    continue;
                }
                let left = next.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    pool = self.wake.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                next = Instant::now() + TICK;
                free = pool.tick();
            }
            drop(pool);
            drop(free);
            self.trim_heap(&mut heap_seen);
            pool = self.pool();
        }
    }

    /// Asks the allocator to give free pages back once enough was freed and the freeing has calmed down.
    fn trim_heap(&self, seen: &mut u64) {
        let freed = self.heap_freed.load(Ordering::Relaxed);
        if freed >= TRIM_BYTES && freed.saturating_sub(*seen) < TRIM_BYTES / 4 {
            self.heap_freed.fetch_sub(freed, Ordering::Relaxed);
            *seen = 0;
            trim::trim();
        } else {
            *seen = freed;
        }
    }
}

/// Memory of one piece of an object. Goes back to where it came from when dropped.
#[derive(Debug)]
pub(crate) struct Chunk {
    memory: Memory,
    arena: Arc<Arena>,
}

#[derive(Debug)]
enum Memory {
    Heap(Box<[u8]>),
    Mapped(MmapMut),
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(map) => map,
        }
    }
}

impl AsMut<[u8]> for Chunk {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Mapped(map) => map,
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.memory, Memory::Heap(Box::default())) {
            Memory::Heap(bytes) => self.arena.heap_freed(bytes.len()),
            Memory::Mapped(map) => self.arena.give_back(map),
        }
    }
}

/// The one call that Rust has no safe name for.
mod trim {
    #![allow(unsafe_code)] // `malloc_trim` is a C function without a wrapper.

    /// Gives the free pages of the heap back to the system, as far as the allocator can.
    pub(crate) fn trim() {
        #[cfg(target_env = "gnu")]
        // SAFETY: `malloc_trim` takes glibc's own locks, may be called from any thread at any time, and touches only
        // memory that is free.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(mut done: impl FnMut() -> bool) -> bool {
        let limit = Instant::now() + Duration::from_secs(60);
        while !done() {
            if Instant::now() > limit {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    #[test]
    fn chunks_never_exceed_what_is_wanted() {
        for (want, len) in [
            (1, 1),
            (4096, 4096),
            (MIN_MAPPED - 1, MIN_MAPPED - 1),
            (MIN_MAPPED, MIN_MAPPED),
            (MIN_MAPPED + 1, MIN_MAPPED),
            (MAX_CHUNK - 1, MAX_CHUNK / 2),
            (MAX_CHUNK, MAX_CHUNK),
            (usize::MAX, MAX_CHUNK),
        ] {
            assert_eq!(chunk_len(want), len, "{want}");
        }
        let arena = Arena::new();
        assert_eq!(arena.take(0).unwrap().as_ref().len(), 1);
        assert_eq!(arena.take(100_000).unwrap().as_ref().len(), MIN_MAPPED);
        arena.close();
    }

    #[test]
    fn freed_chunks_are_reused() {
        let arena = Arena::new();
        let mut chunk = arena.take(MAX_CHUNK).unwrap();
        chunk.as_mut().fill(7);
        let at = chunk.as_ref().as_ptr();
        drop(chunk);
        assert_eq!(arena.pooled(), MAX_CHUNK);
        let again = arena.take(MAX_CHUNK).unwrap();
        assert_eq!(again.as_ref().as_ptr(), at);
        assert_eq!(arena.pooled(), 0);
        arena.close();
    }

    #[test]
    fn the_pool_is_bounded_and_empties_when_unused() {
        let arena = Arena::new();
        let chunks: Vec<_> = (0..100).map(|_| arena.take(MAX_CHUNK).unwrap()).collect();
        drop(chunks);
        assert!(wait_for(|| arena.pooled() <= POOL_BYTES), "{} bytes stay pooled", arena.pooled());
        assert!(wait_for(|| arena.pooled() == 0), "{} bytes stay pooled", arena.pooled());
        arena.close();
    }

    #[test]
    fn a_tick_frees_only_what_was_not_needed() {
        let mut pool = Pool::default();
        let map = || MmapOptions::new().len(MIN_MAPPED).map_anon().unwrap();
        for _ in 0..4 {
            pool.push(map());
        }
        assert_eq!(pool.tick().len(), 0, "all four came in this tick");
        let used = [pool.pop(0), pool.pop(0), pool.pop(0)];
        used.into_iter().flatten().for_each(|map| pool.push(map));
        assert_eq!(pool.tick().len(), 1, "three of the four were needed");
        assert_eq!(pool.bytes, 3 * MIN_MAPPED);
        assert_eq!(pool.tick().len(), 3);
        assert_eq!(pool.bytes, 0);
    }

    #[test]
    fn a_closed_arena_keeps_nothing() {
        let arena = Arena::new();
        let late = arena.take(MAX_CHUNK).unwrap();
        drop(arena.take(MAX_CHUNK).unwrap());
        arena.close();
        assert_eq!(arena.pooled(), 0);
        drop(late);
        assert_eq!(arena.pooled(), 0);
    }
}
