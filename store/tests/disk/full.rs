//! A disk that is full, in a small file system of its own: in a mount namespace, which needs no rights where users may make
//! one.

use std::{fs, path::Path, process::Command, time::Instant};

use ernic_store::{Condition, DiskConfig, DiskStore, Durability, PutOptions, Result, Store, StoreError, UploadOptions};

use super::support::{commit, config, content, dir, pattern, put, wait, write};

/// Names the file system to the process that is to fill it.
const FOLDER: &str = "ERNIC_TEST_FULL";
const MIB: u64 = 1 << 20;

#[test]
fn a_full_disk() {
    let dir = dir();
    let output = Command::new("unshare")
        .args([
            "-rm",
            "sh",
            "-c",
            "mount -t tmpfs -o size=24m tmpfs \"$ERNIC_TEST_FULL\" || exit 77; exec \"$0\" \"$@\"",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full::inside", "--nocapture"])
        .env(FOLDER, dir.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("the disk was full"), "{said}");
        }
        result => {
            let why = match &result {
                Ok(output) => format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
                Err(error) => error.to_string(),
            };
            let no_namespace = result.as_ref().map_or(true, |output| matches!(output.status.code(), Some(1 | 77)));
            assert!(no_namespace && std::env::var_os("CI").is_none(), "{why}");
            println!("SKIPPED: no mount namespace for a full disk: {}", why.lines().last().unwrap_or_default());
        }
    }
}

fn full(result: Result<impl std::fmt::Debug>) {
    assert!(matches!(result, Err(StoreError::InsufficientStorage { .. })), "{result:?}");
}

/// Not a test of its own: what runs in the namespace.
#[test]
fn inside() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = Path::new(&folder).join("store");
    let open = || DiskStore::open(DiskConfig { durability: Durability::Full, ..config(&path) }).unwrap();
    let store = open();
    wait(store.create_bucket("b")).unwrap();
    let old = pattern(3 * MIB, 1);
    put(&store, "k", &old, true).unwrap();
    let usage = store.usage();

    // Larger than the disk, over what is there, announced or not.
    for known in [true, false] {
        full(put(&store, "k", &vec![7; 30 << 20], known));
        assert!(content(&store, "k") == old);
        assert_eq!(store.usage(), usage);
    }
    // Files are removed by a thread of the store's: until then they take room.
    let nothing_unfinished = || {
        let begin = Instant::now();
        while fs::read_dir(path.join("tmp")).unwrap().next().is_some() {
            assert!(begin.elapsed().as_secs() < 60, "what was unfinished stays");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    nothing_unfinished();
    // The room is there again.
    put(&store, "l", &pattern(2 * MIB, 2), true).unwrap();
    let upload = wait(store.create_upload("b", "m", UploadOptions::default())).unwrap();
    let mut part = wait(store.put_part("b", "m", &upload, 1, None)).unwrap();
    full(write(&mut *part, &vec![7; 30 << 20]));
    drop(part);
    nothing_unfinished();

    // Full to the last byte, by others and by small objects.
    let other = fs::File::create(Path::new(&folder).join("other")).unwrap();
    let mut small = 0;
    let mut size = 8 * MIB;
    while size >= 4096 {
        let len = other.metadata().unwrap().len();
        match rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), len, size) {
            Ok(()) => {}
            Err(_) => size /= 2,
        }
    }
    let refused = loop {
        match put(&store, &format!("small-{small:05}"), &pattern(4000, small), true) {
            Ok(_) => small += 1,
            Err(error) => break error,
        }
        assert!(small < 20_000, "it is never full");
    };
    full(Err::<(), _>(refused));
    // The tables give a page or two back now and then, and then there is room for a little; but only then.
    for n in 0..50 {
        let upload = wait(store.create_upload("b", "n", UploadOptions::default())).map(drop);
        for result in [put(&store, &format!("tiny-{n}"), b"", true).map(drop), upload] {
            assert!(matches!(result, Ok(()) | Err(StoreError::InsufficientStorage { .. })), "{result:?}");
        }
    }
    for n in 0..small {
        assert!(content(&store, &format!("small-{n:05}")) == pattern(4000, n), "{n} of {small}");
    }
    assert!(content(&store, "k") == old);
    // Deletes go on, until there is room.
    for n in 0..small / 2 {
        assert!(wait(store.delete("b", &format!("small-{n:05}"), None, Condition::None)).unwrap().existed);
    }
    assert!(wait(store.delete("b", "l", None, Condition::None)).unwrap().existed);
    fs::remove_file(Path::new(&folder).join("other")).unwrap();
    let begin = Instant::now();
    while put(&store, "again", &pattern(MIB, 3), true).is_err() {
        assert!(begin.elapsed().as_secs() < 60, "it stays full");
        let _ = wait(store.delete("b", "nothing", None, Condition::None));
    }
    drop(store);
    let store = open();
    assert!(content(&store, "k") == old);
    assert!(content(&store, "again") == pattern(MIB, 3));
    for n in small / 2..small {
        assert!(content(&store, &format!("small-{n:05}")) == pattern(4000, n));
    }
    drop(wait(store.put("b", "x", PutOptions::default())).unwrap());
    drop(wait(wait(store.put("b", "x", PutOptions::default())).unwrap().commit(commit("e"))).unwrap());
    println!("the disk was full with {small} small objects");
}
