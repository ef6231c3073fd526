//! What the disk store does that the memory store does not: the directory, snapshots in files, what is left behind.

use std::{fs, path::Path, time::Instant};

use ernic_store::{
    Commit, Condition, DiskConfig, DiskStore, Durability, ListQuery, PartName, PutOptions, Source, Store, StoreError,
    UploadOptions,
};
use futures_util::{FutureExt, future::join_all};

use super::support::{commit, config, content, dir, open, pattern, put, read, wait, write};

const MIB: u64 = 1 << 20;

fn refusal(path: &Path) -> String {
    DiskStore::open(config(path)).unwrap_err().to_string()
}

/// The files with objects, and their bytes.
fn files(path: &Path) -> (usize, u64) {
    let mut all = (0, 0);
    for sub in ["objects", "tmp"] {
        let mut dirs = vec![path.join(sub)];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else {
                    all.0 += 1;
                    all.1 += entry.metadata().unwrap().len();
                }
            }
        }
    }
    all
}

/// Removing files is nobody's to wait for.
fn settles(path: &Path, expected: (usize, u64)) {
    let begin = Instant::now();
    while files(path) != expected {
        assert!(begin.elapsed().as_secs() < 60, "{:?}, {expected:?} expected", files(path));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn directories_that_are_refused() {
    let dir = dir();
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("letter"), "x").unwrap();
    let shown = other.display();
    assert_eq!(
        refusal(&other),
        format!("'{shown}' is not empty and holds no store (there is 'letter'): use an empty or a new directory")
    );
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1, "nothing was made there");

    let path = dir.path().join("store");
    let store = open(&path);
    let shown = path.display();
    assert_eq!(refusal(&path), format!("'{shown}' is in use by another server (pid {})", std::process::id()));
    drop(store);
    fs::write(path.join("format"), "ernic disk store, format 7\n").unwrap();
    assert_eq!(
        refusal(&path),
        format!(
            "'{shown}' has the disk store's format \"7\", and this program knows only 1: use the program that made it"
        )
    );
    fs::write(path.join("format"), "a diary\n").unwrap();
    assert_eq!(refusal(&path), format!("'{shown}' holds no store: its file 'format' says \"a diary\""));

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refusal(&file).starts_with(&format!("cannot make the directory '{}': ", file.display())));
    let nowhere = dir.path().join("no/where");
    assert!(refusal(&nowhere).contains("no/where"));
}

#[test]
fn a_directory_of_a_server_that_ended_while_it_was_made() {
    let dir = dir();
    let path = dir.path().join("store");
    drop(open(&path));
    // Only what the first steps make.
    for name in ["meta.redb", "clean", "reserve"] {
        fs::remove_file(path.join(name)).unwrap();
    }
    fs::write(path.join("meta.new"), "half").unwrap();
    let store = open(&path);
    put(&store, "k", b"abc", true).unwrap();
    assert_eq!(content(&store, "k"), b"abc");
    drop(store);
    assert!(!path.join("meta.new").exists());
    let empty = dir.path().join("empty");
    fs::create_dir_all(empty.join("lost+found")).unwrap();
    fs::write(empty.join("lock"), "").unwrap();
    fs::write(empty.join("format.new"), "er").unwrap();
    drop(open(&empty));
}

#[test]
fn small_objects_have_no_file_and_large_ones_have_one() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    for (size, expected) in [(0, 0), (1, 0), (4096, 0), (4097, 1), (300_000, 1), (3 * MIB + 1, 1)] {
        for known in [true, false] {
            let bytes = pattern(size, size);
            put(&store, "k", &bytes, known).unwrap();
            assert!(content(&store, "k") == bytes, "{size} {known}");
            settles(&path, (expected, if expected == 0 { 0 } else { size }));
        }
    }
    wait(store.delete("b", "k", None, Condition::None)).unwrap();
    settles(&path, (0, 0));
}

/// An announced size is what the accounts know; it need not be what comes.
#[test]
fn less_or_more_than_announced() {
    let dir = dir();
    let store = open(&dir.path().join("store"));
    for announced in [10u64, 5000, 300_000] {
        for came in [0u64, 5, 20, 4096, 4097, 6000, 700_000] {
            let options = PutOptions { size: Some(announced), ..Default::default() };
            let mut writer = wait(store.put("b", "k", options)).unwrap();
            let bytes = pattern(came, 3);
            write(&mut *writer, &bytes).unwrap();
            assert_eq!(wait(writer.commit(commit("e"))).unwrap().size, came);
            assert!(content(&store, "k") == bytes, "{announced} {came}");
        }
    }
}

#[test]
fn readers_keep_what_they_read() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    let old = pattern(2 * MIB, 1);
    put(&store, "k", &old, true).unwrap();
    let object = wait(store.get("b", "k", None)).unwrap();
    let other = wait(store.get("b", "k", None)).unwrap();
    put(&store, "k", &pattern(700_000, 2), true).unwrap();
    assert!(read(&object, 0..u64::MAX) == old);
    wait(store.delete("b", "k", None, Condition::None)).unwrap();
    drop(object);
    assert!(read(&other, MIB..u64::MAX) == old[MIB as usize..]);
    drop(store);
    assert!(read(&other, 0..MIB) == old[..MIB as usize], "the store need not be there");
    drop(other);
    assert_eq!(files(&path), (0, 0));
}

#[test]
fn parts_become_the_object_without_a_copy() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    let upload = wait(store.create_upload("b", "k", UploadOptions::default())).unwrap();
    let part = |number: u16, bytes: &[u8]| {
        let mut writer = wait(store.put_part("b", "k", &upload, number, None)).unwrap();
        write(&mut *writer, bytes).unwrap();
        wait(writer.commit(commit(&format!("p{number}")))).unwrap();
    };
    let parts = [pattern(MIB, 1), Vec::new(), pattern(10, 2), pattern(600_000, 3), pattern(70_000, 4)];
    for (number, bytes) in parts.iter().enumerate() {
        part(number as u16 + 1, bytes);
    }
    settles(&path, (4, MIB + 10 + 670_000));
    assert_eq!(store.usage().bytes, MIB + 10 + 670_000);
    let names: Vec<_> = [1, 2, 3, 5].map(|number| PartName { number, etag: format!("p{number}") }).into();
    let info = wait(store.complete_upload("b", "k", &upload, &names, commit("whole"))).unwrap();
    let whole = [&parts[0][..], &parts[2], &parts[4]].concat();
    assert_eq!((info.size, info.parts.len()), (whole.len() as u64, 4));
    settles(&path, (3, whole.len() as u64));
    assert_eq!(store.usage().bytes, whole.len() as u64);
    let object = wait(store.get("b", "k", None)).unwrap();
    for (from, to) in [(0, u64::MAX), (MIB - 1, MIB + 1), (MIB + 5, MIB + 20), (MIB + 9, MIB + 10), (7, 7), (9, 3)] {
        let range = from.min(whole.len() as u64) as usize..to.clamp(from, from.max(whole.len() as u64)) as usize;
        let expected = whole.get(range).unwrap_or_default();
        assert!(read(&object, from..to) == expected, "{from}..{to}");
    }
    // A copy shares all of it, and outlives it.
    let source = Source { bucket: "b".into(), key: "k".into(), version: None, etag: "whole".into() };
    let copied = wait(store.copy(&source, "b", "copy", &PutOptions::default(), &commit("c"))).unwrap().unwrap();
    assert_eq!((copied.size, copied.parts.len()), (whole.len() as u64, 0));
    assert_eq!(store.usage().bytes, 2 * whole.len() as u64);
    settles(&path, (3, whole.len() as u64));
    wait(store.delete("b", "k", None, Condition::None)).unwrap();
    drop(object);
    assert!(content(&store, "copy") == whole);
    wait(store.delete("b", "copy", None, Condition::None)).unwrap();
    settles(&path, (0, 0));
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    let mut writer = wait(store.put("b", "k", PutOptions::default())).unwrap();
    write(&mut *writer, &pattern(3 * MIB, 1)).unwrap();
    drop(writer);
    settles(&path, (0, 0));
    // Refused at the end.
    put(&store, "k", b"there", true).unwrap();
    let mut writer = wait(store.put("b", "k", PutOptions::default())).unwrap();
    write(&mut *writer, &pattern(MIB, 1)).unwrap();
    let refused = wait(writer.commit(Commit { condition: Condition::Absent, ..commit("x") }));
    assert!(matches!(refused, Err(StoreError::PreconditionFailed)));
    settles(&path, (0, 0));
    assert_eq!(content(&store, "k"), b"there");
    // Nobody waits for the answer: it is made or not, and the accounts know.
    let mut writer = wait(store.put("b", "k", PutOptions::default())).unwrap();
    write(&mut *writer, &pattern(MIB, 7)).unwrap();
    let mut commit = writer.commit(commit("y"));
    let _ = commit.as_mut().now_or_never();
    drop(commit);
    drop(store);
    let store = open(&path);
    let size = content(&store, "k").len() as u64;
    assert!(size == 5 || size == MIB, "{size}");
    assert_eq!(store.usage().bytes, size);
}

#[test]
fn what_a_server_leaves_behind_when_it_is_killed_goes_away() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    put(&store, "k", &pattern(MIB, 1), true).unwrap();
    drop(store);
    // As if the server had been killed: without the mark of its end, with files that no table names.
    fs::remove_file(path.join("clean")).unwrap();
    fs::write(path.join("tmp/0000010000000007"), "unfinished").unwrap();
    fs::write(path.join("objects/07/0000010000000007"), "never committed").unwrap();
    fs::write(path.join("objects/07/README"), "not ours").unwrap();
    let store = open(&path);
    assert_eq!(files(&path), (2, MIB + 8));
    assert!(content(&store, "k") == pattern(MIB, 1));
    drop(store);
    assert!(path.join("clean").exists());
}

#[test]
fn a_file_that_is_missing_is_an_error_of_its_object_only() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    put(&store, "k", &pattern(MIB, 1), true).unwrap();
    put(&store, "l", &pattern(9000, 2), true).unwrap();
    drop(store);
    fs::remove_file(path.join("clean")).unwrap();
    let objects = (0..=255u8).flat_map(|n| fs::read_dir(path.join(format!("objects/{n:02x}"))).unwrap());
    let large = objects.map(|entry| entry.unwrap()).find(|entry| entry.metadata().unwrap().len() == MIB).unwrap();
    fs::remove_file(large.path()).unwrap();
    let store = open(&path);
    assert!(content(&store, "l") == pattern(9000, 2));
    match wait(store.get("b", "k", None)) {
        Err(StoreError::Internal(why)) => assert!(why.starts_with("cannot open the object file "), "{why}"),
        other => panic!("{other:?}"),
    }
    // It can still be deleted.
    assert!(wait(store.delete("b", "k", None, Condition::None)).unwrap().existed);
}

#[test]
fn durable_stores_are_the_same() {
    let dir = dir();
    let path = dir.path().join("store");
    let full = || DiskStore::open(DiskConfig { durability: Durability::Full, ..config(&path) }).unwrap();
    let store = full();
    wait(store.create_bucket("b")).unwrap();
    put(&store, "small", b"abc", true).unwrap();
    put(&store, "large", &pattern(MIB, 1), true).unwrap();
    // Killed: a copy of what is there by now.
    let copy = dir.path().join("copy");
    assert!(std::process::Command::new("cp").arg("-r").arg(&path).arg(&copy).status().unwrap().success());
    drop(store);
    for path in [&path, &copy] {
        let store = open(path);
        assert_eq!(content(&store, "small"), b"abc");
        assert!(content(&store, "large") == pattern(MIB, 1));
        assert_eq!(store.usage().bytes, MIB + 3);
    }
}

#[test]
fn many_writers_share_transactions() {
    let dir = dir();
    let path = dir.path().join("store");
    let full = || DiskStore::open(DiskConfig { durability: Durability::Full, ..config(&path) }).unwrap();
    let store = full();
    wait(store.create_bucket("b")).unwrap();
    let put = |n: usize| {
        let store = &store;
        async move {
            let mut writer = store.put("b", &format!("k{n}"), PutOptions::default()).await.unwrap();
            let buffer = writer.buffer(3).await.unwrap();
            buffer.copy_from_slice(b"abc");
            writer.advance(3);
            writer.commit(commit("e")).await.unwrap();
        }
    };
    wait(join_all((0..500).map(put)));
    let page = wait(store.list("b", &ListQuery { max: 1000, ..Default::default() })).unwrap();
    assert_eq!(page.objects.len(), 500);
    drop(store);
    // The mark of the end says how many transactions there were.
    let transactions: u64 = fs::read_to_string(path.join("clean")).unwrap().trim().parse().unwrap();
    assert!(transactions < 250, "{transactions} transactions for 500 objects written side by side");
}
