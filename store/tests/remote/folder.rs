//! A folder of this machine as a bucket.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

use ernic_store::{
    Commit, Condition, ListQuery, Metadata, PartName, PutOptions, RemoteStore, RemoteUrl, Store, StoreError,
    UploadOptions,
};
use tempfile::TempDir;

use crate::wait::{content, drain, pattern, put, wait, write};

const MIB: u64 = 1 << 20;

fn open() -> (TempDir, RemoteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = RemoteStore::folder(folder.path(), "files").unwrap();
    (folder, store)
}

fn keys(store: &RemoteStore, prefix: &str, delimiter: &str) -> (Vec<String>, Vec<String>) {
    let query = ListQuery { prefix: prefix.into(), delimiter: delimiter.into(), after: String::new(), max: 100 };
    let page = wait(store.list("files", &query)).unwrap();
    (page.objects.into_iter().map(|(key, _)| key).collect(), page.prefixes)
}

/// Files below a folder, and how many of them are leftovers of our own.
fn own_files(folder: &TempDir) -> usize {
    fn count(path: &std::path::Path) -> usize {
        fs::read_dir(path).map_or(0, |entries| {
            entries.map(|entry| entry.unwrap().path()).map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
        })
    }
    count(&folder.path().join(".ernic-uploads"))
}

#[test]
fn files_are_objects_and_objects_are_files() {
    let (folder, store) = open();
    fs::create_dir_all(folder.path().join("a/b")).unwrap();
    fs::write(folder.path().join("a/b/c"), pattern(3 * MIB, 1)).unwrap();
    let object = wait(store.get("files", "a/b/c", None)).unwrap();
    assert!(content(&object).unwrap() == pattern(3 * MIB, 1));
    assert_eq!(drain(object.data.read(5..8)).unwrap(), pattern(3 * MIB, 1)[5..8]);
    assert!(drain(object.data.read(MIB..MIB)).unwrap().is_empty());
    // No tool takes it for an MD5.
    assert!(object.info.etag.contains('-'), "{}", object.info.etag);

    let meta = Metadata {
        content_type: Some("text/x".into()),
        user: BTreeMap::from([("one".into(), "two".into())]),
        ..Metadata::default()
    };
    for size in [0, 1, MIB, 5 * MIB + 1] {
        let bytes = pattern(size, 2);
        let options = PutOptions { size: Some(size), meta: meta.clone(), ..PutOptions::default() };
        let info = put(&store, "files", "new/folder/k", &bytes, options).unwrap();
        assert!(fs::read(folder.path().join("new/folder/k")).unwrap() == bytes);
        let there = wait(store.head("files", "new/folder/k", None)).unwrap();
        assert_eq!((&there.etag, there.size), (&info.etag, size));
        // Not every file system keeps attributes; where this one does, nothing of the metadata is lost.
        if rustix_attributes(&folder) {
            assert_eq!(there.meta, meta);
        }
    }
    assert_eq!(keys(&store, "", ""), (vec!["a/b/c".to_owned(), "new/folder/k".to_owned()], vec![]));
    assert_eq!(keys(&store, "", "/"), (vec![], vec!["a/".to_owned(), "new/".to_owned()]));
    assert!(wait(store.delete("files", "new/folder/k", None, Condition::None)).unwrap().existed);
    assert!(!wait(store.delete("files", "new/folder/k", None, Condition::None)).unwrap().existed);
    // An empty folder is nothing in S3.
    assert_eq!(keys(&store, "", "/"), (vec![], vec!["a/".to_owned()]));
    assert_eq!(own_files(&folder), 0);
    assert_eq!(store.only_bucket(), Some("files"));
    assert!(matches!(wait(store.head("other", "a/b/c", None)), Err(StoreError::NoSuchBucket)));
    assert!(matches!(wait(store.head("files", "a/b", None)), Err(StoreError::NoSuchKey)));
}

fn rustix_attributes(folder: &TempDir) -> bool {
    let path = folder.path().join("probe");
    fs::write(&path, b"").unwrap();
    let kept = rustix::fs::setxattr(&path, "user.probe", b"x", rustix::fs::XattrFlags::empty()).is_ok();
    fs::remove_file(path).unwrap();
    kept
}

#[test]
fn nothing_is_visible_before_the_commit_and_nothing_stays_without_it() {
    let (folder, store) = open();
    fs::write(folder.path().join("k"), b"before").unwrap();
    let mut writer = wait(store.put("files", "k", PutOptions::default())).unwrap();
    write(&mut *writer, &pattern(5 * MIB, 1)).unwrap();
    assert_eq!(fs::read(folder.path().join("k")).unwrap(), b"before");
    drop(writer);
    // The file that was being written goes away; on a thread of the store.
    for _ in 0..1000 {
        if own_files(&folder) == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(own_files(&folder), 0);
    assert_eq!(fs::read(folder.path().join("k")).unwrap(), b"before");
}

#[test]
fn names_that_are_no_paths_and_links_that_lead_out() {
    let (folder, store) = open();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    symlink(outside.path(), folder.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
    symlink(outside.path().join("later"), folder.path().join("dangling")).unwrap();
    fs::create_dir(folder.path().join("in")).unwrap();
    fs::write(folder.path().join("in/k"), b"inside").unwrap();
    symlink("in", folder.path().join("link")).unwrap();
    for key in ["..", "../x", "a/../../x", "a//b", "/etc/x", "a/", " a", ".ernic-uploads/x", &"x".repeat(300)] {
        let unfit = put(&store, "files", key, b"x", PutOptions::default());
        assert!(matches!(unfit, Err(StoreError::Unfit(_))), "{key} {unfit:?}");
        assert!(matches!(wait(store.head("files", key, None)), Err(StoreError::NoSuchKey)), "{key}");
        assert!(!wait(store.delete("files", key, None, Condition::None)).unwrap().existed, "{key}");
    }
    for key in ["out/secret", "out/new", "file", "dangling"] {
        let unfit = put(&store, "files", key, b"x", PutOptions::default());
        assert!(matches!(unfit, Err(StoreError::Unfit(_))), "{key} {unfit:?}");
        assert!(matches!(wait(store.get("files", key, None)), Err(StoreError::NoSuchKey)), "{key}");
    }
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    // One that stays inside may be read, and is not listed twice.
    assert_eq!(content(&wait(store.get("files", "link/k", None)).unwrap()).unwrap(), b"inside");
    assert_eq!(keys(&store, "", "").0, ["in/k"]);
    // A file and a folder of one name.
    put(&store, "files", "f", b"x", PutOptions::default()).unwrap();
    for key in ["f/g", "in"] {
        let unfit = put(&store, "files", key, b"x", PutOptions::default());
        assert!(matches!(unfit, Err(StoreError::Unfit(_))), "{key} {unfit:?}");
    }
    assert_eq!(own_files(&folder), 0);
}

#[test]
fn conditions_and_changes_by_others() {
    let (folder, store) = open();
    let with = |condition| PutOptions { condition, ..PutOptions::default() };
    let first = put(&store, "files", "k", b"one", with(Condition::Absent)).unwrap();
    let again = put(&store, "files", "k", b"two", with(Condition::Absent));
    assert!(matches!(again, Err(StoreError::PreconditionFailed)), "{again:?}");
    put(&store, "files", "k", b"two", with(Condition::Match(first.etag.clone()))).unwrap();
    let stale = wait(store.delete("files", "k", None, Condition::Match(first.etag.clone())));
    assert!(matches!(stale, Err(StoreError::PreconditionFailed)), "{stale:?}");
    assert_eq!(fs::read(folder.path().join("k")).unwrap(), b"two");
    // Another program replaces the file between the head and the read.
    let object = wait(store.get("files", "k", None)).unwrap();
    fs::write(folder.path().join("other"), b"new").unwrap();
    fs::rename(folder.path().join("other"), folder.path().join("k")).unwrap();
    let error = content(&object).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(why) if why.contains("replaced")), "{error}");
    assert_eq!(own_files(&folder), 0);
}

#[test]
fn uploads_are_hidden_files() {
    let (folder, store) = open();
    let options = UploadOptions {
        meta: Metadata { content_type: Some("text/x".into()), ..Metadata::default() },
        ..UploadOptions::default()
    };
    let upload = wait(store.create_upload("files", "d/m", options.clone())).unwrap();
    let info = wait(store.head_upload("files", "d/m", &upload)).unwrap();
    assert_eq!((info.options, info.key.as_str()), (options, "d/m"));
    let part = |number: u16, bytes: &[u8]| {
        let mut writer = wait(store.put_part("files", "d/m", &upload, number, None)).unwrap();
        write(&mut *writer, bytes).unwrap();
        let checksums = vec![("CRC32".to_owned(), format!("{number}"))];
        let commit = Commit { etag: format!("etag{number}"), checksums, ..Commit::default() };
        PartName { number, etag: wait(writer.commit(commit)).unwrap().etag.clone() }
    };
    let third = part(3, b"end");
    part(1, b"wrong");
    let second = part(2, b"");
    let first = part(1, &pattern(2 * MIB, 7));
    part(9, b"for nothing");
    let parts = wait(store.list_parts("files", "d/m", &upload)).unwrap();
    let seen: Vec<_> = parts.iter().map(|part| (part.number, part.info.size, part.info.checksums.len())).collect();
    assert_eq!(seen, [(1, 2 * MIB, 1), (2, 0, 1), (3, 3, 1), (9, 11, 1)]);
    assert_eq!(wait(store.list_uploads("files")).unwrap().len(), 1);
    assert_eq!(keys(&store, "", ""), (vec![], vec![]));
    let wrong = [PartName { number: 1, etag: "other".into() }];
    let error = wait(store.complete_upload("files", "d/m", &upload, &wrong, Commit::default()));
    assert!(matches!(error, Err(StoreError::NoSuchPart(1))), "{error:?}");
    let names = [first, second, third];
    let info = wait(store.complete_upload("files", "d/m", &upload, &names, Commit::default())).unwrap();
    assert_eq!(info.size, 2 * MIB + 3);
    assert!(fs::read(folder.path().join("d/m")).unwrap() == [&pattern(2 * MIB, 7)[..], b"end"].concat());
    assert_eq!(own_files(&folder), 0);
    assert!(matches!(wait(store.list_parts("files", "d/m", &upload)), Err(StoreError::NoSuchUpload)));

    let upload = wait(store.create_upload("files", "x", UploadOptions::default())).unwrap();
    assert!(matches!(wait(store.head_upload("files", "y", &upload)), Err(StoreError::NoSuchUpload)));
    assert!(matches!(wait(store.head_upload("files", "x", "../../etc")), Err(StoreError::NoSuchUpload)));
    let mut late = wait(store.put_part("files", "x", &upload, 1, None)).unwrap();
    write(&mut *late, b"abc").unwrap();
    wait(store.abort_upload("files", "x", &upload)).unwrap();
    assert!(matches!(wait(late.commit(Commit::default())), Err(StoreError::NoSuchUpload)));
    assert_eq!(own_files(&folder), 0);
}

#[test]
fn buckets_are_folders_below_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let url: RemoteUrl = format!("fs://{}", folder.path().display()).parse().unwrap();
    let store = RemoteStore::open(&url, None).unwrap();
    assert!(wait(store.create_bucket("files")).unwrap() && !wait(store.create_bucket("files")).unwrap());
    assert!(matches!(wait(store.head_bucket("nowhere")), Err(StoreError::NoSuchBucket)));
    put(&store, "files", "a/k", b"x", PutOptions::default()).unwrap();
    assert_eq!(fs::read(folder.path().join("files/a/k")).unwrap(), b"x");
    let lost = put(&store, "nowhere", "a/k", b"x", PutOptions::default());
    assert!(matches!(lost, Err(StoreError::NoSuchBucket)), "{lost:?}");
    assert_eq!(keys(&store, "a", "").0, ["a/k"]);
    let names: Vec<_> = wait(store.list_buckets()).unwrap().into_iter().map(|bucket| bucket.name).collect();
    assert_eq!(names, ["files"]);
    assert!(matches!(wait(store.delete_bucket("files")), Err(StoreError::BucketNotEmpty)));
    wait(store.delete("files", "a/k", None, Condition::None)).unwrap();
    wait(store.create_upload("files", "u", UploadOptions::default())).unwrap();
    wait(store.delete_bucket("files")).unwrap();
    assert!(wait(store.list_buckets()).unwrap().is_empty());
    assert!(!folder.path().join("files").exists());
}

#[test]
fn a_folder_must_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let error = RemoteStore::folder(&folder.path().join("not"), "files").unwrap_err().to_string();
    assert!(error.contains("not") && error.contains("No such file"), "{error}");
    fs::write(folder.path().join("file"), b"").unwrap();
    let error = RemoteStore::folder(&folder.path().join("file"), "files").unwrap_err().to_string();
    assert!(error.ends_with("it is not a folder"), "{error}");
}
