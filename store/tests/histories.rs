//! The stores against a naive model: see [`model`].

mod common;
mod model;

use ernic_store::{DiskConfig, DiskStore, Durability, MemoryConfig, MemoryStore, Store};
use model::{CAPACITY, Nth, Op, SLOTS, Subject, ops, run};
use proptest::{prelude::*, test_runner::FileFailurePersistence};

/// Failing seeds are kept in the package's `proptest-regressions`.
fn config(cases: u32, seeds: &'static str) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct(seeds);
    ProptestConfig { cases, failure_persistence: Some(Box::new(seeds)), ..Default::default() }
}

struct Memory(MemoryStore);

impl Memory {
    fn new() -> Self {
        Self(MemoryStore::new(MemoryConfig { capacity: CAPACITY, objects: SLOTS }))
    }
}

impl Subject for Memory {
    fn store(&self) -> &dyn Store {
        &self.0
    }
}

struct Disk {
    /// None only while it is opened again.
    store: Option<DiskStore>,
    dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        // In memory where there is such a file system: thousands of stores are opened.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut disk = Self { store: None, dir };
        disk.reopen();
        disk
    }
}

impl Subject for Disk {
    const REOPENS: bool = true;

    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        drop(self.store.take());
        let path = self.dir.path().join("store");
        let config = DiskConfig { path, capacity: CAPACITY, objects: SLOTS, durability: Durability::Full };
        self.store = Some(DiskStore::open(config).unwrap());
    }
}

proptest! {
    #![proptest_config(config(1000, "proptest-regressions/disk.txt"))]

    #[test]
    fn disk(history in prop::collection::vec(ops(), 1..80)) {
        run(Disk::new(), history);
    }
}

proptest! {
    #![proptest_config(config(2000, "proptest-regressions/model.txt"))]

    #[test]
    fn memory(history in prop::collection::vec(ops(), 1..80)) {
        run(Memory::new(), history);
    }
}

/// The history that once left a late writer's charge beside the object that its upload had become.
#[test]
fn a_part_is_written_while_its_upload_becomes_an_object() {
    let first = || Nth(0);
    let history = vec![
        Op::CreateUpload { at: (0, 0) },
        Op::CreateUpload { at: (0, 0) },
        Op::PutPart { upload: first(), number: 3, size: 0, known: false },
        Op::Complete { upload: first(), parts: Vec::new(), condition: 0 },
        Op::Fill { writer: first(), want: 524_288, half: false },
        Op::Commit { writer: first() },
        Op::PutPart { upload: first(), number: 2, size: 0, known: false },
        Op::Put { at: (0, 0), size: 0, known: false, condition: 9 },
        Op::Fill { writer: first(), want: 1_048_576, half: false },
        Op::Commit { writer: first() },
        Op::PutPart { upload: first(), number: 2, size: 1, known: true },
        Op::Complete { upload: first(), parts: vec![2], condition: 1 },
    ];
    run(Memory::new(), history);
}
