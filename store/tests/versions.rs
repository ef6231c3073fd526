//! Versions, tags, copies and buckets of the memory store from outside.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{collections::HashSet, sync::Arc};

use common::{now, put, read, write};
use ernic_store::{
    Commit, Condition, Deleted, ListQuery, MemoryConfig, MemoryStore, Metadata, ObjectInfo, PutOptions, Source, Store,
    StoreError, UploadOptions, VersionQuery, Versioning,
};

fn store(capacity: u64, objects: u64, versioning: Versioning) -> MemoryStore {
    let store = MemoryStore::new(MemoryConfig { capacity, objects });
    assert!(store.create_bucket("b"));
    now(store.set_versioning("b", versioning)).unwrap();
    store
}

fn used(store: &MemoryStore) -> (u64, u64) {
    let usage = store.usage();
    (usage.objects, usage.bytes)
}

fn content(store: &MemoryStore, key: &str, version: Option<&str>) -> Result<Vec<u8>, StoreError> {
    now(store.get("b", key, version)).map(|object| read(&object, 0..u64::MAX).concat())
}

fn id(info: &ObjectInfo) -> &str {
    info.version.as_deref().expect("a version with an id")
}

fn delete(store: &MemoryStore, key: &str, version: Option<&str>) -> Deleted {
    now(store.delete("b", key, version, Condition::None)).unwrap()
}

/// Versions of all keys: key, id as S3 spells it, whether current, size of an object.
fn versions(store: &MemoryStore) -> Vec<(String, String, bool, Option<u64>)> {
    let page = now(store.list_versions("b", &VersionQuery { max: 1000, ..Default::default() })).unwrap();
    assert!(page.next.is_none() && page.prefixes.is_empty());
    let entry = |entry: ernic_store::VersionEntry| {
        let id = entry.version.unwrap_or_else(|| "null".into());
        (entry.key, id, entry.latest, entry.info.map(|info| info.size))
    };
    page.versions.into_iter().map(entry).collect()
}

fn keys(store: &MemoryStore) -> Vec<String> {
    let page = now(store.list("b", &ListQuery { max: 1000, ..Default::default() })).unwrap();
    page.objects.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn versions_stay_until_they_are_deleted_by_name() {
    let store = store(1000, 10, Versioning::Enabled);
    let one = put(&store, "k", b"1", true);
    let two = put(&store, "k", b"22", false);
    let three = put(&store, "k", b"333", true);
    assert_eq!(used(&store), (3, 6));
    for (info, bytes) in [(&one, &b"1"[..]), (&two, b"22"), (&three, b"333")] {
        assert_eq!(content(&store, "k", Some(id(info))).unwrap(), bytes);
        assert_eq!(now(store.head("b", "k", Some(id(info)))).unwrap(), *info);
    }
    assert_eq!(content(&store, "k", None).unwrap(), b"333");
    for unknown in ["null", "", "x", "é", &"0".repeat(32), &id(&one).to_uppercase().replace('0', "O")] {
        assert!(matches!(content(&store, "k", Some(unknown)), Err(StoreError::NoSuchVersion)), "{unknown}");
        assert_eq!(delete(&store, "k", Some(unknown)), Deleted::default());
    }
    assert!(matches!(content(&store, "other", Some(id(&one))), Err(StoreError::NoSuchVersion)));

    let marker = delete(&store, "k", None);
    assert!(marker.existed && marker.marker);
    let marked = marker.version.unwrap();
    match content(&store, "k", None) {
        Err(StoreError::DeleteMarker { version, current: true, .. }) => assert_eq!(version, marked),
        other => panic!("{other:?}"),
    }
    assert!(matches!(content(&store, "k", Some(&marked)), Err(StoreError::DeleteMarker { current: false, .. })));
    assert_eq!(used(&store), (3, 6));
    assert!(keys(&store).is_empty());
    let again = delete(&store, "k", None);
    assert!(!again.existed && again.marker);
    let named = |version: &str, latest, size: Option<u64>| ("k".to_owned(), version.to_owned(), latest, size);
    assert_eq!(
        versions(&store),
        [
            named(again.version.as_deref().unwrap(), true, None),
            named(&marked, false, None),
            named(id(&three), false, Some(3)),
            named(id(&two), false, Some(2)),
            named(id(&one), false, Some(1)),
        ]
    );

    // What is left becomes current, once it is the newest.
    let gone = delete(&store, "k", again.version.as_deref());
    assert_eq!(gone, Deleted { existed: true, marker: true, version: again.version });
    assert!(matches!(content(&store, "k", None), Err(StoreError::DeleteMarker { .. })));
    assert!(!delete(&store, "k", Some(id(&three))).marker);
    assert!(delete(&store, "k", Some(&marked)).marker);
    assert_eq!(content(&store, "k", None).unwrap(), b"22");
    assert_eq!(keys(&store), ["k"]);
    delete(&store, "k", Some(id(&two)));
    assert_eq!(content(&store, "k", None).unwrap(), b"1");
    assert!(matches!(now(store.delete_bucket("b")), Err(StoreError::BucketNotEmpty)));
    delete(&store, "k", Some(id(&one)));
    assert!(matches!(content(&store, "k", None), Err(StoreError::NoSuchKey)));
    assert_eq!(used(&store), (0, 0));
    now(store.delete_bucket("b")).unwrap();
}

#[test]
fn a_suspended_bucket_replaces_the_version_null() {
    let store = store(1000, 10, Versioning::Off);
    assert_eq!(put(&store, "k", b"old", true).version, None);
    now(store.set_versioning("b", Versioning::Enabled)).unwrap();
    assert_eq!(now(store.head_bucket("b")).unwrap().versioning, Versioning::Enabled);
    assert_eq!(now(store.list_buckets()).unwrap()[0].versioning, Versioning::Enabled);
    let kept = put(&store, "k", b"kept", true);
    now(store.set_versioning("b", Versioning::Suspended)).unwrap();
    assert_eq!(content(&store, "k", Some("null")).unwrap(), b"old");
    assert_eq!(put(&store, "k", b"newer", true).version, None);
    assert_eq!(content(&store, "k", None).unwrap(), b"newer");
    assert_eq!(content(&store, "k", Some("null")).unwrap(), b"newer");
    assert_eq!(used(&store), (2, 9), "the old one is gone");
    put(&store, "k", b"newest", false);
    assert_eq!(used(&store), (2, 10));

    let marker = delete(&store, "k", None);
    assert_eq!(marker, Deleted { existed: true, marker: true, version: Some("null".into()) });
    assert_eq!(used(&store), (1, 4));
    let named = |version: &str, latest, size: Option<u64>| ("k".to_owned(), version.to_owned(), latest, size);
    assert_eq!(versions(&store), [named("null", true, None), named(id(&kept), false, Some(4))]);
    put(&store, "k", b"back", true);
    assert_eq!(versions(&store), [named("null", true, Some(4)), named(id(&kept), false, Some(4))]);
    delete(&store, "k", Some("null"));
    assert_eq!(content(&store, "k", None).unwrap(), b"kept");
    assert!(matches!(content(&store, "k", Some("null")), Err(StoreError::NoSuchVersion)));
    assert!(matches!(now(store.set_versioning("b", Versioning::Off)), Err(StoreError::Unfit(_))));
    assert!(matches!(now(store.set_versioning("c", Versioning::Enabled)), Err(StoreError::NoSuchBucket)));
}

#[test]
fn without_versioning_a_delete_names_no_version() {
    let store = store(1000, 10, Versioning::Off);
    put(&store, "k", b"1", true);
    assert_eq!(delete(&store, "k", None), Deleted { existed: true, ..Default::default() });
    assert_eq!(delete(&store, "k", None), Deleted::default());
    put(&store, "k", b"1", true);
    assert_eq!(delete(&store, "k", Some("null")), Deleted { existed: true, ..Default::default() });
    assert_eq!(used(&store), (0, 0));
}

#[test]
fn every_version_and_marker_takes_a_slot_and_its_bytes() {
    let store = store(100, 4, Versioning::Enabled);
    put(&store, "k", &[0; 40], true);
    let two = put(&store, "k", &[0; 40], true);
    let options = |size| PutOptions { size: Some(size), ..Default::default() };
    assert!(matches!(
        now(store.put("b", "k", options(21))),
        Err(StoreError::InsufficientStorage { needed: 21, free: 20 })
    ));
    delete(&store, "k", None);
    // A writer has its slot from the start.
    let writer = now(store.put("b", "k", options(1))).unwrap();
    assert_eq!(used(&store), (2, 81));
    assert!(matches!(now(store.put("b", "k", options(1))), Err(StoreError::NoSlots(4))));
    assert!(matches!(now(store.delete("b", "k", None, Condition::None)), Err(StoreError::NoSlots(4))));
    assert!(matches!(now(store.create_upload("b", "k", UploadOptions::default())), Err(StoreError::NoSlots(4))));
    drop(writer);
    let marker = delete(&store, "k", None);
    assert!(matches!(now(store.put("b", "k", options(1))), Err(StoreError::NoSlots(4))));
    delete(&store, "k", marker.version.as_deref());
    delete(&store, "k", Some(id(&two)));
    assert_eq!(used(&store), (1, 40));
    drop(now(store.put("b", "k", options(60))).unwrap());
}

#[test]
fn what_would_have_replaced_an_object_needs_its_own_room_once_versions_stay() {
    let store = store(100, 2, Versioning::Off);
    put(&store, "k", &[1; 60], true);
    let start = |size| now(store.put("b", "k", PutOptions { size: Some(size), ..Default::default() })).unwrap();
    let (mut long, mut short) = (start(60), start(40));
    write(&mut *long, &[2; 60]).unwrap();
    write(&mut *short, &[3; 40]).unwrap();
    now(store.set_versioning("b", Versioning::Enabled)).unwrap();
    assert_eq!(used(&store), (1, 100));
    let commit = |etag: &str| Commit { etag: etag.into(), ..Default::default() };
    let refused = now(long.commit(commit("long")));
    assert!(matches!(refused, Err(StoreError::InsufficientStorage { needed: 60, free: 0 })), "{refused:?}");
    assert_eq!(used(&store), (1, 100));
    assert!(now(short.commit(commit("short"))).unwrap().version.is_some());
    assert_eq!(used(&store), (2, 100));
}

#[test]
fn conditions_of_deletes() {
    let store = store(100, 10, Versioning::Off);
    let attempt = |condition: Condition| now(store.delete("b", "k", None, condition)).map(|deleted| deleted.existed);
    assert!(matches!(attempt(Condition::Match("1".into())), Err(StoreError::NoSuchKey)));
    put(&store, "k", b"1", true);
    assert!(matches!(attempt(Condition::Match("2".into())), Err(StoreError::PreconditionFailed)));
    assert_eq!(used(&store), (1, 1));
    assert!(attempt(Condition::Match("1".into())).unwrap());
    now(store.set_versioning("b", Versioning::Enabled)).unwrap();
    let one = put(&store, "k", b"1", true);
    put(&store, "k", b"22", true);
    let named = |etag: &str| now(store.delete("b", "k", Some(id(&one)), Condition::Match(etag.into())));
    assert!(matches!(named("2"), Err(StoreError::PreconditionFailed)));
    assert!(named("1").unwrap().existed);
    assert!(attempt(Condition::Match("2".into())).unwrap());
    // A delete marker is no object.
    assert!(matches!(attempt(Condition::Present), Err(StoreError::NoSuchKey)));
    let mut writer = now(store.put("b", "k", PutOptions::default())).unwrap();
    write(&mut *writer, b"x").unwrap();
    let commit = Commit { etag: "x".into(), condition: Condition::Absent, ..Default::default() };
    now(writer.commit(commit)).unwrap();
}

#[test]
fn tags_change_nothing_else() {
    let store = store(100, 10, Versioning::Enabled);
    let tags = |value: &str| vec![("z".to_owned(), value.to_owned()), ("a".to_owned(), String::new())];
    let options = PutOptions { size: Some(1), tags: tags("1"), ..Default::default() };
    let mut writer = now(store.put("b", "k", options)).unwrap();
    write(&mut *writer, b"x").unwrap();
    let one = now(writer.commit(Commit { etag: "1".into(), ..Default::default() })).unwrap();
    assert_eq!(one.tags, tags("1"));
    let two = put(&store, "k", b"22", true);
    let tagged = now(store.set_tags("b", "k", Some(id(&one)), tags("2"))).unwrap();
    assert_eq!(*tagged, ObjectInfo { tags: tags("2"), ..(*one).clone() });
    assert_eq!(now(store.head("b", "k", Some(id(&one)))).unwrap(), tagged);
    let current = now(store.set_tags("b", "k", None, tags("3"))).unwrap();
    assert_eq!(*current, ObjectInfo { tags: tags("3"), ..(*two).clone() });
    assert_eq!(now(store.get("b", "k", None)).unwrap().info, current);
    let page = now(store.list("b", &ListQuery { max: 1, ..Default::default() })).unwrap();
    assert!(Arc::ptr_eq(&page.objects[0].1, &current));
    assert_eq!(content(&store, "k", Some(id(&one))).unwrap(), b"x");
    assert_eq!(used(&store), (2, 3));
    delete(&store, "k", None);
    assert!(matches!(now(store.set_tags("b", "k", None, tags("4"))), Err(StoreError::DeleteMarker { .. })));
    assert!(matches!(now(store.set_tags("b", "n", None, tags("4"))), Err(StoreError::NoSuchKey)));

    assert!(now(store.bucket_tags("b")).unwrap().is_empty());
    now(store.set_bucket_tags("b", tags("5"))).unwrap();
    assert_eq!(now(store.bucket_tags("b")).unwrap(), tags("5"));
    assert!(matches!(now(store.bucket_tags("c")), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.set_bucket_tags("c", tags("5"))), Err(StoreError::NoSuchBucket)));
}

#[test]
fn copies_share_their_bytes_and_are_charged_in_full() {
    const MIB: u64 = 1 << 20;
    let store = store(4 * MIB, 10, Versioning::Off);
    assert!(store.create_bucket("c"));
    let bytes = common::pattern(MIB + MIB / 2, 1);
    let source = put(&store, "k", &bytes, true);
    let from = |etag: &str| Source { bucket: "b".into(), key: "k".into(), version: None, etag: etag.into() };
    let options = PutOptions {
        meta: Metadata { content_type: Some("t".into()), ..Default::default() },
        tags: vec![("a".into(), "b".into())],
        ..Default::default()
    };
    let commit = |condition| Commit { etag: "new".into(), checksums: vec![("SHA1".into(), "x".into())], condition };
    let copy = |source: &Source, key: &str, condition| {
        now(store.copy(source, "c", key, &options, &commit(condition))).map(Option::unwrap)
    };
    assert!(matches!(copy(&from("old"), "m", Condition::None), Err(StoreError::PreconditionFailed)));
    let info = copy(&from(&source.etag), "m", Condition::Absent).unwrap();
    let expected = ObjectInfo {
        size: source.size,
        etag: "new".into(),
        modified: info.modified,
        meta: options.meta.clone(),
        checksums: commit(Condition::None).checksums,
        parts: Vec::new(),
        tags: options.tags.clone(),
        version: None,
    };
    assert_eq!(*info, expected);
    assert_eq!(used(&store), (2, 3 * MIB));
    assert!(matches!(copy(&from(&source.etag), "m", Condition::Absent), Err(StoreError::PreconditionFailed)));
    copy(&from(&source.etag), "m", Condition::None).unwrap();
    assert_eq!(used(&store), (2, 3 * MIB), "in place of itself");
    let refused = copy(&from(&source.etag), "n", Condition::None);
    assert!(matches!(refused, Err(StoreError::InsufficientStorage { needed: 1_572_864, free: 1_048_576 })));
    let at = |bucket: &str, key: &str| read(&now(store.get(bucket, key, None)).unwrap(), 0..MIB)[0].as_ptr();
    assert_eq!(at("b", "k"), at("c", "m"));
    delete(&store, "k", None);
    assert_eq!(used(&store), (1, 3 * MIB / 2));
    assert!(read(&now(store.get("c", "m", None)).unwrap(), 0..u64::MAX).concat() == bytes);
    let gone = copy(&from(&source.etag), "m", Condition::None);
    assert!(matches!(gone, Err(StoreError::NoSuchKey)));
    let itself = Source { bucket: "c".into(), key: "m".into(), version: Some("null".into()), etag: "new".into() };
    copy(&itself, "m", Condition::None).unwrap();
    assert_eq!(used(&store), (1, 3 * MIB / 2));
}

#[test]
fn ids_say_nothing_and_fit_into_a_url() {
    let store = store(1000, 1000, Versioning::Enabled);
    let ids: Vec<_> = (0..200).map(|_| id(&put(&store, "k", b"", true)).to_owned()).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 200);
    assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
    let heads: HashSet<_> = ids.iter().map(|id| &id[..8]).collect();
    assert!(heads.len() > 190, "{} different beginnings of 200", heads.len());
}

#[test]
fn at_most_a_thousand_buckets() {
    let store = store(1000, 1000, Versioning::Off);
    for n in 1..1000 {
        assert!(now(Store::create_bucket(&store, &format!("bucket-{n}"))).unwrap());
    }
    assert!(matches!(now(Store::create_bucket(&store, "more")), Err(StoreError::TooManyBuckets(1000))));
    assert!(!now(Store::create_bucket(&store, "b")).unwrap());
    now(store.delete_bucket("bucket-7")).unwrap();
    assert!(now(Store::create_bucket(&store, "more")).unwrap());
    assert!(matches!(now(store.delete_bucket("bucket-7")), Err(StoreError::NoSuchBucket)));
}

#[test]
fn a_deleted_bucket_takes_its_uploads_along() {
    let store = store(100, 10, Versioning::Off);
    let upload = now(store.create_upload("b", "k", UploadOptions::default())).unwrap();
    let mut writer = now(store.put_part("b", "k", &upload, 1, Some(50))).unwrap();
    now(store.delete_bucket("b")).unwrap();
    assert_eq!(store.usage().bytes, 0);
    assert_eq!(store.usage().uploads, 0);
    assert!(matches!(now(writer.buffer(1)), Err(StoreError::NoSuchUpload)));
    assert!(store.create_bucket("b"));
    assert!(matches!(now(store.head_upload("b", "k", &upload)), Err(StoreError::NoSuchUpload)));
    drop(writer);
    assert_eq!(store.usage().bytes, 0);
}

#[test]
fn versions_are_listed_page_by_page_and_groups_are_passed_by_a_seek() {
    let store = store(u64::MAX, u64::MAX, Versioning::Enabled);
    let mut expected = Vec::new();
    for key in ["a", "b", "g/1", "g/2", "h"] {
        let mut all: Vec<_> = (0..4)
            .map(|n| {
                if n == 2 && key != "b" {
                    return (key.to_owned(), delete(&store, key, None).version.unwrap());
                }
                (key.to_owned(), id(&put(&store, key, &vec![0; n], true)).to_owned())
            })
            .collect();
        all.reverse();
        expected.extend(all);
    }
    for max in 1..=21 {
        let mut query = VersionQuery { max, ..Default::default() };
        let mut got = Vec::new();
        loop {
            let page = now(store.list_versions("b", &query)).unwrap();
            assert!(page.versions.len() <= max && (page.versions.len() == max || page.next.is_none()));
            got.extend(page.versions.into_iter().map(|entry| (entry.key, entry.version.unwrap())));
            let Some((after, after_version)) = page.next else {
                break;
            };
            (query.after, query.after_version) = (after, after_version);
        }
        assert_eq!(got, expected, "{max}");
    }
    let query = VersionQuery { delimiter: "/".into(), max: 9, after: "a".into(), ..Default::default() };
    let page = now(store.list_versions("b", &query)).unwrap();
    let shown: Vec<_> = page.versions.iter().map(|entry| (entry.key.as_str(), entry.latest)).collect();
    let of = |key, latest| (key, latest);
    let four = |key| [of(key, true), of(key, false), of(key, false), of(key, false)];
    assert_eq!((shown, page.prefixes), ([four("b"), four("h")].concat(), vec!["g/".to_owned()]));
    // Pages go on behind a version that has been deleted meanwhile.
    let after = |version: &str| {
        let query =
            VersionQuery { after: "b".into(), after_version: Some(version.into()), max: 3, ..Default::default() };
        let page = now(store.list_versions("b", &query)).unwrap();
        page.versions.into_iter().map(|entry| (entry.key, entry.version.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(after(&expected[5].1), expected[6..9]);
    delete(&store, "b", Some(&expected[5].1));
    assert_eq!(after(&expected[5].1), expected[6..9]);
    delete(&store, "b", Some(&expected[4].1));
    assert_eq!(after(&expected[4].1), expected[6..9]);
    // Nobody knows where this one was.
    assert_eq!(after("null"), expected[6..9]);
}
