//! Memory of the whole process, which therefore runs nothing else: little beside the contents, and given back.
#![cfg(target_os = "linux")]

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{now, pattern, put, read};
use ernic_store::{Condition, MemoryConfig, MemoryStore, Store};

const MIB: usize = 1 << 20;

/// What an idle server may have beside its contents.
const BESIDE: usize = 40 * MIB;

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// Waits until no more than `limit` bytes are resident; the time limit only bounds a hang.
fn settles_at(limit: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    while resident() > limit {
        assert!(Instant::now() < end, "{} KiB resident, {} expected", resident() >> 10, limit >> 10);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_is_given_back() {
    let store = MemoryStore::new(MemoryConfig { capacity: u64::MAX, objects: u64::MAX });
    store.create_bucket("b");
    let empty = resident();

    // Many small objects, on the heap.
    let content = pattern(4096, 1);
    for n in 0..60_000 {
        put(&store, &format!("small-{n:05}"), &content, n % 2 == 0);
    }
    settles_at(empty + 60_000 * 4096 + BESIDE);
    println!("60,000 objects of 4 KiB: {} bytes each beside the content", (resident() - empty) / 60_000 - 4096);
    // One in a hundred stays, so that the heap has no large hole at its end.
    for n in (0..60_000).filter(|n| n % 100 != 0) {
        assert!(now(store.delete("b", &format!("small-{n:05}"), None, Condition::None)).unwrap().existed);
    }
    settles_at(empty + BESIDE);

    // Large objects, replaced over and over and read meanwhile.
    let content = pattern(64 << 20, 2);
    let with_content = resident();
    for _ in 0..8 {
        put(&store, "large", &content, true);
        let object = now(store.get("b", "large", None)).unwrap();
        assert_eq!(read(&object, 0..u64::MAX).len(), 64);
    }
    settles_at(with_content + (64 << 20) + BESIDE);
    assert!(store.pooled_bytes() <= 64 << 20);
    assert!(now(store.delete("b", "large", None, Condition::None)).unwrap().existed);
    settles_at(with_content + BESIDE / 4);
    assert_eq!(store.pooled_bytes(), 0);
}
