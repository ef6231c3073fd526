//! The memory store from outside: contents, limits, snapshots, uploads.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::sync::Arc;

use common::{bytes, now, pattern, put, read, write};
use ernic_store::{
    Commit, Condition, ListQuery, MemoryConfig, MemoryStore, Metadata, ObjectInfo, PartName, PutOptions, Store,
    StoreError, UploadOptions, Usage,
};

const MIB: u64 = 1 << 20;

fn store(capacity: u64, objects: u64) -> MemoryStore {
    let store = MemoryStore::new(MemoryConfig { capacity, objects });
    assert!(store.create_bucket("b"));
    store
}

fn used(store: &MemoryStore) -> (u64, u64, u64) {
    let Usage { objects, bytes, uploads, .. } = store.usage();
    (objects, bytes, uploads)
}

fn commit(etag: &str) -> Commit {
    Commit { etag: etag.into(), ..Default::default() }
}

fn options(size: impl Into<Option<u64>>) -> PutOptions {
    PutOptions { size: size.into(), ..Default::default() }
}

#[test]
fn contents_come_back_in_pieces_of_at_most_a_mebibyte() {
    let store = store(u64::MAX, 100);
    for size in [0, 1, 4096, 65_535, 65_536, 65_537, MIB - 1, MIB, MIB + 1, 5 * MIB + 123_456] {
        for known in [true, false] {
            let content = pattern(size, size);
            let info = put(&store, "k", &content, known);
            assert_eq!(info.size, size);
            assert_eq!(used(&store), (1, size, 0));
            let object = now(store.get("b", "k", None)).unwrap();
            assert_eq!(object.info, info);
            let pieces = read(&object, 0..u64::MAX);
            assert!(pieces.iter().all(|piece| (1..=1 << 20).contains(&piece.len())));
            assert!(pieces.concat() == content, "{size} {known}");
            let (from, to) = (size / 3, size / 2 + 1);
            let middle = read(&object, from..to).concat();
            assert_eq!(middle, content[from as usize..to.min(size) as usize], "{size} {known}");
        }
    }
}

#[test]
fn what_the_client_said_is_given_back() {
    let store = store(u64::MAX, 10);
    let meta = Metadata {
        content_type: Some("text/plain".into()),
        expires: Some("never".into()),
        user: [("a".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    };
    let mut writer =
        now(store.put("b", "k", PutOptions { size: Some(3), meta: meta.clone(), ..Default::default() })).unwrap();
    write(&mut *writer, b"abc").unwrap();
    assert!(matches!(now(store.head("b", "k", None)), Err(StoreError::NoSuchKey)), "not visible before commit");
    let checksums = vec![("CRC64NVME".to_owned(), "x".to_owned())];
    let commit = Commit { etag: "e".into(), checksums: checksums.clone(), ..Default::default() };
    let info = now(writer.commit(commit)).unwrap();
    let expected = ObjectInfo {
        size: 3,
        etag: "e".into(),
        modified: info.modified,
        meta,
        checksums,
        parts: Vec::new(),
        tags: Vec::new(),
        version: None,
    };
    assert_eq!(*now(store.head("b", "k", None)).unwrap(), expected);
}

#[test]
fn buckets() {
    let store = store(1, 1);
    assert!(!store.create_bucket("b"));
    assert!(store.create_bucket("a"));
    let names: Vec<_> = now(store.list_buckets()).unwrap().into_iter().map(|bucket| bucket.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(now(store.head_bucket("b")).unwrap().name, "b");
    assert!(matches!(now(store.head_bucket("c")), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.get("c", "k", None)), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.put("c", "k", options(1))), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.delete("c", "k", None, Condition::None)), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.list("c", &ListQuery::default())), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.create_upload("c", "k", UploadOptions::default())), Err(StoreError::NoSuchBucket)));
    assert!(matches!(now(store.put_part("b", "k", "u", 1, None)), Err(StoreError::NoSuchUpload)));
}

#[test]
fn room_runs_out_at_the_exact_byte() {
    let store = store(1000, 10);
    put(&store, "a", &pattern(600, 1), true);
    assert!(matches!(
        now(store.put("b", "c", options(401))),
        Err(StoreError::InsufficientStorage { needed: 401, free: 400 })
    ));
    let whole = now(store.put("b", "c", options(400))).unwrap();
    assert_eq!(used(&store), (1, 1000, 0));
    assert!(matches!(
        now(store.put("b", "d", options(1))),
        Err(StoreError::InsufficientStorage { needed: 1, free: 0 })
    ));
    drop(now(store.put("b", "d", options(0))).unwrap());
    drop(whole);
    assert_eq!(used(&store), (1, 600, 0));

    // Without a size, the last buffer is as short as the room that is left.
    let mut writer = now(store.put("b", "c", options(None))).unwrap();
    assert_eq!(now(writer.buffer(300)).unwrap().len(), 300);
    assert_eq!(used(&store), (1, 900, 0));
    writer.advance(300);
    assert_eq!(now(writer.buffer(300)).unwrap().len(), 100);
    writer.advance(100);
    assert!(matches!(now(writer.buffer(1)), Err(StoreError::InsufficientStorage { needed: 1, free: 0 })));
    assert_eq!(writer.written(), 400);
    assert_eq!(now(writer.commit(commit("e"))).unwrap().size, 400);
    assert_eq!(used(&store), (2, 1000, 0));
}

#[test]
fn an_overwrite_needs_room_only_for_the_difference() {
    let store = store(1000, 1);
    put(&store, "k", &pattern(900, 1), true);
    assert!(matches!(
        now(store.put("b", "k", options(1001))),
        Err(StoreError::InsufficientStorage { needed: 101, free: 100 })
    ));
    for known in [true, false] {
        put(&store, "k", &pattern(1000, 2), known);
        assert_eq!(used(&store), (1, 1000, 0));
        put(&store, "k", &pattern(900, 3), known);
        assert_eq!(used(&store), (1, 900, 0));
    }
    let writer = now(store.put("b", "k", options(950))).unwrap();
    assert_eq!(used(&store), (1, 950, 0));
    drop(writer);
    assert_eq!(used(&store), (1, 900, 0));
}

#[test]
fn two_overwrites_do_not_share_a_credit() {
    let store = store(1000, 10);
    put(&store, "k", &pattern(600, 1), true);
    let mut first = now(store.put("b", "k", options(600))).unwrap();
    assert_eq!(used(&store), (1, 600, 0));
    assert!(matches!(
        now(store.put("b", "k", options(600))),
        Err(StoreError::InsufficientStorage { needed: 600, free: 400 })
    ));
    let mut second = now(store.put("b", "k", options(400))).unwrap();
    assert_eq!(used(&store), (1, 1000, 0));
    // The object that both would replace goes away: what they write still has its room.
    assert!(now(store.delete("b", "k", None, Condition::None)).unwrap().existed);
    assert_eq!(used(&store), (0, 1000, 0));
    write(&mut *first, &pattern(600, 2)).unwrap();
    write(&mut *second, &pattern(400, 3)).unwrap();
    now(first.commit(commit("1"))).unwrap();
    assert_eq!(used(&store), (1, 1000, 0));
    now(second.commit(commit("2"))).unwrap();
    assert_eq!(used(&store), (1, 400, 0));
    assert_eq!(now(store.head("b", "k", None)).unwrap().etag, "2");
    // With the first one gone, the credit is free again.
    drop(now(store.put("b", "k", options(1000))).unwrap());
    assert_eq!(used(&store), (1, 400, 0));
}

#[test]
fn slots_run_out() {
    let store = store(1000, 2);
    put(&store, "a", b"1", true);
    let new = now(store.put("b", "n", options(1))).unwrap();
    assert!(matches!(now(store.put("b", "m", options(1))), Err(StoreError::NoSlots(2))));
    assert!(matches!(now(store.create_upload("b", "m", UploadOptions::default())), Err(StoreError::NoSlots(2))));
    put(&store, "a", b"22", true);
    drop(new);
    let upload = now(store.create_upload("b", "m", UploadOptions::default())).unwrap();
    assert_eq!(used(&store), (1, 2, 1));
    assert!(matches!(now(store.put("b", "n", options(1))), Err(StoreError::NoSlots(2))));
    // The object takes the upload's slot.
    now(store.complete_upload("b", "m", &upload, &[], commit("e"))).unwrap();
    assert_eq!(used(&store), (2, 2, 0));
    assert!(matches!(now(store.put("b", "n", options(1))), Err(StoreError::NoSlots(2))));
    assert!(now(store.delete("b", "m", None, Condition::None)).unwrap().existed);
    put(&store, "n", b"3", true);
}

#[test]
fn a_second_writer_of_a_new_key_needs_a_slot_of_its_own_once_the_first_is_gone() {
    let store = store(1000, 1);
    let first = now(store.put("b", "k", options(0))).unwrap();
    let second = now(store.put("b", "k", options(0))).unwrap();
    drop(first);
    put(&store, "other", b"", true);
    assert!(matches!(now(second.commit(commit("e"))), Err(StoreError::NoSlots(1))));
    assert_eq!(used(&store), (1, 0, 0));
}

#[test]
fn conditions_hold_at_commit() {
    let store = store(1000, 10);
    let attempt = |condition: Condition| {
        let mut writer = now(store.put("b", "k", options(1))).unwrap();
        write(&mut *writer, b"x").unwrap();
        let result = now(writer.commit(Commit { etag: "new".into(), checksums: Vec::new(), condition }));
        result.map(|info| info.etag.clone())
    };
    assert!(matches!(attempt(Condition::Match("old".into())), Err(StoreError::NoSuchKey)));
    assert_eq!(used(&store), (0, 0, 0));
    assert_eq!(attempt(Condition::Absent).unwrap(), "new");
    assert!(matches!(attempt(Condition::Absent), Err(StoreError::PreconditionFailed)));
    assert!(matches!(attempt(Condition::Match("old".into())), Err(StoreError::PreconditionFailed)));
    assert_eq!(attempt(Condition::Match("new".into())).unwrap(), "new");
    assert_eq!(used(&store), (1, 1, 0));
}

#[test]
fn snapshots_outlive_overwrite_and_delete() {
    let store = store(u64::MAX, 10);
    let old = pattern(3 * MIB + 77, 1);
    put(&store, "k", &old, true);
    let snapshot = now(store.get("b", "k", None)).unwrap();
    let stream = snapshot.data.read(0..u64::MAX);
    for seed in 2..6 {
        put(&store, "k", &pattern(3 * MIB + 77, seed), true);
    }
    assert!(now(store.delete("b", "k", None, Condition::None)).unwrap().existed);
    assert!(!now(store.delete("b", "k", None, Condition::None)).unwrap().existed);
    put(&store, "other", &pattern(8 * MIB, 9), true);
    assert_eq!(used(&store), (1, 8 * MIB, 0));
    assert!(read(&snapshot, 0..u64::MAX).concat() == old);
    drop(snapshot);
    assert!(bytes(stream).concat() == old);
}

#[test]
fn readers_share_the_memory_and_it_is_reused_after_the_last() {
    let store = store(u64::MAX, 10);
    put(&store, "k", &pattern(MIB, 1), true);
    let at = |key: &str| read(&now(store.get("b", key, None)).unwrap(), 0..MIB)[0].as_ptr();
    assert_eq!(at("k"), at("k"));
    let held = read(&now(store.get("b", "k", None)).unwrap(), 10..20);
    let first = at("k");
    now(store.delete("b", "k", None, Condition::None)).unwrap();
    assert_eq!(store.pooled_bytes(), 0);
    put(&store, "m", &pattern(MIB, 2), true);
    assert_ne!(at("m"), first);
    drop(held);
    assert_eq!(store.pooled_bytes(), 1 << 20);
    put(&store, "n", &pattern(MIB, 3), true);
    assert_eq!(at("n"), first);
}

#[test]
fn a_writer_fills_the_objects_own_memory() {
    let store = store(u64::MAX, 10);
    for size in [100, MIB] {
        let mut writer = now(store.put("b", "k", options(size))).unwrap();
        let buffer = now(writer.buffer(usize::MAX)).unwrap();
        assert_eq!(buffer.len() as u64, size);
        buffer.fill(3);
        let at = buffer.as_ptr();
        writer.advance(size as usize);
        now(writer.commit(commit("e"))).unwrap();
        assert_eq!(read(&now(store.get("b", "k", None)).unwrap(), 0..size)[0].as_ptr(), at);
    }
}

#[test]
#[should_panic(expected = "6 bytes written into a buffer of 5")]
fn advancing_beyond_the_buffer_panics() {
    let store = store(1000, 10);
    let mut writer = now(store.put("b", "k", options(5))).unwrap();
    now(writer.buffer(10)).unwrap();
    writer.advance(6);
}

#[test]
fn sizes_that_were_announced_wrongly() {
    let store = store(1000, 10);
    let mut long = now(store.put("b", "long", options(10))).unwrap();
    write(&mut *long, &pattern(25, 1)).unwrap();
    assert_eq!(used(&store).1, 25);
    assert_eq!(now(long.commit(commit("e"))).unwrap().size, 25);
    let mut short = now(store.put("b", "short", options(900))).unwrap();
    write(&mut *short, &pattern(5, 2)).unwrap();
    assert_eq!(used(&store).1, 925);
    now(short.commit(commit("e"))).unwrap();
    assert_eq!(used(&store), (2, 30, 0));
    assert_eq!(read(&now(store.get("b", "long", None)).unwrap(), 0..99).concat(), pattern(25, 1));
    assert_eq!(read(&now(store.get("b", "short", None)).unwrap(), 0..99).concat(), pattern(5, 2));
}

#[test]
fn uploads_are_spliced_without_copying() {
    let store = store(u64::MAX, 10);
    let meta = Metadata { content_type: Some("t".into()), ..Default::default() };
    let upload =
        now(store.create_upload("b", "k", UploadOptions { meta: meta.clone(), ..Default::default() })).unwrap();
    let part = |number: u16, content: &[u8]| {
        let size = Some(content.len() as u64);
        let mut writer = now(store.put_part("b", "k", &upload, number, size)).unwrap();
        write(&mut *writer, content).unwrap();
        now(writer.commit(commit(&format!("p{number}")))).unwrap()
    };
    let (one, two, three) = (pattern(5 * MIB, 1), pattern(MIB + 5, 2), pattern(100, 3));
    part(2, &pattern(77, 9));
    part(7, &three);
    part(1, &one);
    part(2, &two);
    part(9, &pattern(1000, 4));
    assert_eq!(used(&store), (0, 6 * MIB + 1105, 1));
    let listed = now(store.list_parts("b", "k", &upload)).unwrap();
    let listed: Vec<_> = listed.iter().map(|part| (part.number, part.info.size, part.info.etag.as_str())).collect();
    assert_eq!(listed, [(1, 5 * MIB, "p1"), (2, MIB + 5, "p2"), (7, 100, "p7"), (9, 1000, "p9")]);
    let uploads = now(store.list_uploads("b")).unwrap();
    assert_eq!((uploads[0].key.as_str(), &uploads[0].upload, &uploads[0].options.meta), ("k", &upload, &meta));
    assert!(matches!(now(store.list_parts("b", "other", &upload)), Err(StoreError::NoSuchUpload)));

    let complete = |parts: &[u16]| {
        let names: Vec<_> = parts.iter().map(|&number| PartName { number, etag: format!("p{number}") }).collect();
        now(store.complete_upload("b", "k", &upload, &names, commit("whole-3")))
    };
    assert!(matches!(complete(&[1, 3]), Err(StoreError::NoSuchPart(3))));
    assert!(matches!(complete(&[1, 1]), Err(StoreError::NoSuchPart(1))));
    let another = [PartName { number: 1, etag: "p2".into() }];
    let refused = now(store.complete_upload("b", "k", &upload, &another, commit("e")));
    assert!(matches!(refused, Err(StoreError::NoSuchPart(1))), "not the part that the caller has seen");
    assert_eq!(used(&store).2, 1);
    let mut late = now(store.put_part("b", "k", &upload, 10, Some(50))).unwrap();
    write(&mut *late, &[0; 50]).unwrap();
    let mut again = now(store.put_part("b", "k", &upload, 1, Some(50))).unwrap();
    write(&mut *again, &[0; 50]).unwrap();
    let info = complete(&[1, 2, 7]).unwrap();
    let of_parts: Vec<_> = info.parts.iter().map(|part| (part.number, part.size)).collect();
    assert_eq!((info.size, of_parts.as_slice()), (6 * MIB + 105, &[(1, 5 * MIB), (2, MIB + 5), (7, 100)][..]));
    assert_eq!((info.etag.as_str(), &info.meta), ("whole-3", &meta));
    assert_eq!(used(&store), (1, 6 * MIB + 105, 0), "the writers that come too late have no claim");
    assert!(matches!(now(late.buffer(1)), Err(StoreError::NoSuchUpload)));
    assert!(matches!(now(late.commit(commit("e"))), Err(StoreError::NoSuchUpload)));
    assert!(matches!(now(again.buffer(1)), Err(StoreError::NoSuchUpload)));
    drop(again);
    assert_eq!(used(&store), (1, 6 * MIB + 105, 0));
    let whole = read(&now(store.get("b", "k", None)).unwrap(), 0..u64::MAX).concat();
    assert!(whole == [one, two, three].concat());
    assert!(matches!(complete(&[1]), Err(StoreError::NoSuchUpload)));
}

#[test]
fn a_part_is_replaced_within_its_room_and_an_aborted_upload_gives_everything_back() {
    let store = store(100, 10);
    let upload = now(store.create_upload("b", "k", UploadOptions::default())).unwrap();
    for number in [0, 10_001] {
        assert!(matches!(now(store.put_part("b", "k", &upload, number, None)), Err(StoreError::NoSuchPart(_))));
    }
    let start = |number, size| now(store.put_part("b", "k", &upload, number, Some(size)));
    let mut writer = start(10_000, 80).unwrap();
    write(&mut *writer, &[1; 80]).unwrap();
    now(writer.commit(commit("e"))).unwrap();
    assert!(matches!(start(1, 21), Err(StoreError::InsufficientStorage { needed: 21, free: 20 })));
    let mut writer = start(10_000, 100).unwrap();
    write(&mut *writer, &[1; 100]).unwrap();
    now(writer.commit(commit("e"))).unwrap();
    assert_eq!(used(&store), (0, 100, 1));
    now(store.abort_upload("b", "k", &upload)).unwrap();
    assert_eq!(used(&store), (0, 0, 0));
    assert!(matches!(now(store.abort_upload("b", "k", &upload)), Err(StoreError::NoSuchUpload)));
}

#[test]
fn a_writer_that_outlives_its_upload_has_no_claim() {
    // With its claim, the object that the upload becomes would not fit.
    let store = store(100, 10);
    let upload = now(store.create_upload("b", "k", UploadOptions::default())).unwrap();
    let part = |number, size| now(store.put_part("b", "k", &upload, number, size)).unwrap();
    let mut writer = part(1, Some(60));
    write(&mut *writer, &[1; 60]).unwrap();
    now(writer.commit(commit("p1"))).unwrap();
    let mut same = part(1, Some(100));
    write(&mut *same, &[2; 10]).unwrap();
    assert_eq!(used(&store), (0, 100, 1), "the longer of the part and its writer");
    let names = [PartName { number: 1, etag: "p1".into() }];
    now(store.complete_upload("b", "k", &upload, &names, commit("e"))).unwrap();
    assert_eq!(used(&store), (1, 60, 0));
    // Neither its announced bytes nor more of them.
    assert!(matches!(now(same.buffer(10)), Err(StoreError::NoSuchUpload)));
    assert!(matches!(now(same.buffer(10)), Err(StoreError::NoSuchUpload)));
    drop(same);
    assert_eq!(used(&store), (1, 60, 0));

    // Writers without the credit of their part, and of unknown size, when it is aborted.
    let upload = now(store.create_upload("b", "k", UploadOptions::default())).unwrap();
    let part = |number, size| now(store.put_part("b", "k", &upload, number, size)).unwrap();
    let (first, mut second, mut third) = (part(1, Some(20)), part(1, Some(10)), part(2, None));
    write(&mut *third, &[3; 10]).unwrap();
    assert_eq!(used(&store), (1, 100, 1));
    now(store.abort_upload("b", "k", &upload)).unwrap();
    assert_eq!(used(&store), (1, 60, 0));
    assert!(matches!(now(third.buffer(1)), Err(StoreError::NoSuchUpload)));
    assert!(matches!(now(second.buffer(1)), Err(StoreError::NoSuchUpload)));
    assert!(matches!(now(second.commit(commit("e"))), Err(StoreError::NoSuchUpload)));
    drop((first, third));
    assert_eq!(used(&store), (1, 60, 0));
    assert_eq!(put(&store, "m", &[4; 40], true).size, 40);
}

#[test]
fn upload_ids_differ() {
    let store = store(100, 100);
    let ids: std::collections::HashSet<_> =
        (0..50).map(|_| now(store.create_upload("b", "k", UploadOptions::default())).unwrap()).collect();
    assert_eq!(ids.len(), 50);
    assert_eq!(now(store.list_uploads("b")).unwrap().len(), 50);
}

#[test]
fn writers_outlive_the_store() {
    let store = store(100, 10);
    put(&store, "k", b"abc", true);
    let object = now(store.get("b", "k", None)).unwrap();
    let mut writer = now(store.put("b", "m", options(MIB.min(50)))).unwrap();
    drop(store);
    write(&mut *writer, &[1; 50]).unwrap();
    now(writer.commit(commit("e"))).unwrap();
    assert_eq!(read(&object, 0..9).concat(), b"abc");
}

#[test]
fn pages_of_sixty_thousand_keys_and_of_a_group_of_a_hundred_thousand() {
    let store = store(u64::MAX, 200_000);
    let name = |n: usize| format!("k{n:06}");
    for n in 0..60_000 {
        put(&store, &name(n), b"", true);
    }
    for n in 0..100_000 {
        put(&store, &format!("g/{n}"), b"", true);
    }
    let mut query = ListQuery { delimiter: "/".into(), max: 1000, ..Default::default() };
    let (mut keys, mut groups, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let page = now(store.list("b", &query)).unwrap();
        pages += 1;
        assert!(page.objects.len() + page.prefixes.len() <= 1000);
        keys.extend(page.objects.into_iter().map(|(key, _)| key));
        groups.extend(page.prefixes);
        match page.next {
            Some(next) => query.after = next,
            None => break,
        }
    }
    assert_eq!(groups, ["g/"]);
    assert_eq!(pages, 61);
    assert_eq!(keys, (0..60_000).map(name).collect::<Vec<_>>());
}

#[test]
fn tasks_on_many_threads_leave_exact_accounts() {
    let store = Arc::new(store(4 * MIB, 8));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                for round in 0..300u64 {
                    let key = format!("k{}", (thread + round) % 3);
                    let content = pattern(round * 1711 % 700_000, round);
                    let Ok(mut writer) = now(store.put("b", &key, options(content.len() as u64))) else {
                        continue;
                    };
                    write(&mut *writer, &content).unwrap();
                    if round % 4 > 0 {
                        now(writer.commit(commit(&round.to_string()))).unwrap();
                    }
                    if let Ok(object) = now(store.get("b", &key, None)) {
                        let seed = object.info.etag.parse().unwrap();
                        assert!(read(&object, 0..u64::MAX).concat() == pattern(object.info.size, seed));
                    }
                    assert!(store.usage().bytes <= 4 * MIB);
                }
            });
        }
    });
    let page = now(store.list("b", &ListQuery { max: 9, ..Default::default() })).unwrap();
    let bytes = page.objects.iter().map(|(_, info)| info.size).sum();
    assert_eq!(used(&store), (page.objects.len() as u64, bytes, 0));
    for (key, _) in page.objects {
        now(store.delete("b", &key, None, Condition::None)).unwrap();
    }
    assert_eq!(used(&store), (0, 0, 0));
}
