//! Threads of the whole process, which therefore runs nothing else: they end with their stores.
#![cfg(target_os = "linux")]

mod common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::{pattern, put, wait};
use ernic_store::{Commit, DiskConfig, DiskStore, Durability, MemoryConfig, MemoryStore, PutOptions, Store};
use futures_util::StreamExt;

/// Names of this process's threads, sorted.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // One may end in the meantime.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    names.sort();
    names
}

/// Waits until there are these threads only; the time limit only bounds a hang.
fn settles_at(expected: &[String]) {
    let end = Instant::now() + Duration::from_secs(60);
    while threads() != expected {
        assert!(Instant::now() < end, "{:?}", threads());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn threads_end_with_their_stores() {
    let before = threads();

    let store = MemoryStore::new(MemoryConfig { capacity: 1 << 24, objects: 10 });
    store.create_bucket("b");
    put(&store, "k", &pattern(100_000, 1), true);
    drop(store);
    settles_at(&before);

    let dir = tempfile::tempdir().unwrap();
    let config =
        DiskConfig { path: dir.path().join("store"), capacity: 1 << 24, objects: 10, durability: Durability::Full };
    for round in 0..3 {
        let store = DiskStore::open(config.clone()).unwrap();
        if round == 0 {
            wait(Store::create_bucket(&store, "b")).unwrap();
        }
        let content = pattern(3_000_000, round);
        let mut writer = wait(store.put("b", "k", PutOptions::default())).unwrap();
        // The buffers of a disk store's writer may have to be waited for.
        let mut rest = &content[..];
        while !rest.is_empty() {
            let buffer = wait(writer.buffer(rest.len())).unwrap();
            let (head, tail) = rest.split_at(buffer.len());
            buffer.copy_from_slice(head);
            let len = head.len();
            writer.advance(len);
            rest = tail;
        }
        wait(writer.commit(Commit::default())).unwrap();
        let object = wait(store.get("b", "k", None)).unwrap();
        let mut stream = object.data.read(0..u64::MAX);
        let first = wait(stream.next()).unwrap().unwrap();
        assert!(content.starts_with(&first));
        assert!(threads().iter().any(|name| name == "store-reaper"));
        // Whoever still reads when the store is dropped keeps the memory's thread, and it ends with them.
        drop(store);
        if round == 1 {
            let rest = wait(stream.map(Result::unwrap).collect::<Vec<_>>()).concat();
            assert!([&first[..], &rest].concat() == content);
        } else {
            drop(stream);
        }
        drop((object, first));
        settles_at(&before);
    }
}
