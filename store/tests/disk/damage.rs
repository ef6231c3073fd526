//! A damaged file of the tables: a clear refusal, and nothing is overwritten.

use std::{collections::BTreeMap, fs, path::Path};

use ernic_store::DiskStore;

use super::support::{config, content, dir, open, pattern, put};

/// Everything in a directory.
fn state(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![path.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.file_name() != "lock" {
                all.insert(entry.path().display().to_string(), fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}

#[test]
fn damaged_tables_are_refused_and_stay_as_they_are() {
    let dir = dir();
    let path = dir.path().join("store");
    let store = open(&path);
    for n in 0..300 {
        put(&store, &format!("key-{n:04}"), &pattern(n * 40, n), true).unwrap();
    }
    drop(store);
    let meta = path.join("meta.redb");
    let sound = fs::read(&meta).unwrap();
    let len = sound.len();
    let mut damages: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), Vec::new()),
        ("zeroed header".into(), [&vec![0; 4096][..], &sound[4096..]].concat()),
        ("zeroed".into(), vec![0; len]),
        ("another file".into(), vec![b'x'; len]),
        ("a byte".into(), vec![7]),
    ];
    for cut in [1, 100, 4096, 5000, len / 2, len - 4096, len - 1] {
        damages.push((format!("cut to {cut}"), sound[..cut].to_vec()));
    }
    // Places all over the file. What belongs to nothing may be anything, so that not each of them is noticed.
    let mut random = fastrand(99);
    for _ in 0..150 {
        let mut bytes = sound.clone();
        let at = random() % len;
        bytes[at] ^= 1 << (random() % 8);
        damages.push((format!("bit at {at:#x}"), bytes));
    }
    for _ in 0..20 {
        let mut bytes = sound.clone();
        let at = random() % (len / 4096) * 4096;
        bytes[at..at + 4096].fill(0);
        damages.push((format!("page at {at:#x}"), bytes));
    }
    let mut refused = 0;
    for unclean in [false, true] {
        for (what, bytes) in &damages {
            fs::write(&meta, bytes).unwrap();
            let mark = path.join("clean");
            let kept = fs::read(&mark).ok();
            if unclean {
                let _ = fs::remove_file(&mark);
            }
            let before = state(&path);
            match DiskStore::open(config(&path)) {
                Err(error) => {
                    let error = error.to_string();
                    assert!(
                        error.starts_with(&format!("the metadata file '{}' is damaged (", meta.display())),
                        "{error}"
                    );
                    assert!(state(&path) == before, "{what}: something was changed");
                    refused += 1;
                }
                Ok(store) => {
                    // The damage is in a page that is not used, or in one of the commit before the last.
                    assert!(what.starts_with("bit") || what.starts_with("page"), "{what} is taken for sound");
                    if !unclean {
                        for n in 0..300 {
                            assert!(content(&store, &format!("key-{n:04}")) == pattern(n * 40, n), "{what}: {n}");
                        }
                    }
                    drop(store);
                    // It may have changed files.
                    let _ = fs::remove_dir_all(&path);
                    for (name, bytes) in &before {
                        fs::create_dir_all(Path::new(name).parent().unwrap()).unwrap();
                        fs::write(name, bytes).unwrap();
                    }
                    fs::create_dir_all(path.join("tmp")).unwrap();
                    for n in 0..=255u8 {
                        fs::create_dir_all(path.join(format!("objects/{n:02x}"))).unwrap();
                    }
                }
            }
            if let Some(kept) = kept {
                fs::write(&mark, kept).unwrap();
            }
        }
    }
    assert!(refused > 60, "only {refused} damages were noticed");
    // It is gone, but what it described is there.
    fs::remove_file(&meta).unwrap();
    let error = DiskStore::open(config(&path)).unwrap_err().to_string();
    assert!(error.contains("it is missing, although there are objects"), "{error}");
    fs::write(&meta, &sound).unwrap();
    let store = open(&path);
    assert!(content(&store, "key-0299") == pattern(299 * 40, 299));
}

/// Numbers from a seed.
fn fastrand(mut seed: u64) -> impl FnMut() -> usize {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    }
}
