//! The memory store: whole operations, and how they depend on the number of objects.
//!
//! `cargo bench -p ernic-store --profile quick` measures without the slow link of a release.

use std::{fmt::Write, future::Future, hint::black_box, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ernic_store::{Commit, ListQuery, MemoryConfig, MemoryStore, PutOptions, Store};
use futures_util::{FutureExt, TryStreamExt};

const SIZES: [(&str, usize); 2] = [("4K", 4 << 10), ("64M", 64 << 20)];

/// The result of a future that does not wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the memory store never waits")
}

fn store() -> MemoryStore {
    let store = MemoryStore::new(MemoryConfig { capacity: u64::MAX, objects: u64::MAX });
    store.create_bucket("b");
    store
}

fn put(store: &MemoryStore, key: &str, mut content: &[u8]) {
    let options = PutOptions { size: Some(content.len() as u64), ..Default::default() };
    let mut writer = now(store.put("b", key, options)).unwrap();
    while !content.is_empty() {
        let buffer = now(writer.buffer(content.len())).unwrap();
        let (head, tail) = content.split_at(buffer.len());
        buffer.copy_from_slice(head);
        writer.advance(head.len());
        content = tail;
    }
    let etag = "d41d8cd98f00b204e9800998ecf8427e".into();
    now(writer.commit(Commit { etag, ..Default::default() })).unwrap();
}

/// Reads an object; the bytes themselves are not touched, as nothing copies them. Returns their number.
fn get(store: &MemoryStore, key: &str) -> usize {
    let object = now(store.get("b", key, None)).unwrap();
    let pieces = object.data.read(0..u64::MAX).try_fold(0, |sum, piece| async move { Ok(sum + piece.len()) });
    now(pieces).unwrap()
}

fn whole_operations(c: &mut Criterion) {
    let store = store();
    let mut group = c.benchmark_group("memory");
    for (name, size) in SIZES {
        let content = vec![7; size];
        let mut target = vec![0; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("memcpy", name), |b| {
            b.iter(|| black_box(&mut target[..]).copy_from_slice(black_box(&content)));
        });
        group.bench_function(BenchmarkId::new("put_over", name), |b| b.iter(|| put(&store, name, &content)));
        group.bench_function(BenchmarkId::new("get", name), |b| b.iter(|| get(&store, name)));
        // Nothing is freed meanwhile: fresh memory each time.
        let mut serial = 0;
        group.bench_function(BenchmarkId::new("put_new", name), |b| {
            b.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    serial += 1;
                    let fresh = self::store();
                    let start = std::time::Instant::now();
                    put(&fresh, "k", &content);
                    total += start.elapsed();
                }
                total
            });
        });
        black_box(serial);
    }
    group.finish();
}

fn many_objects(c: &mut Criterion) {
    let mut group = c.benchmark_group("objects");
    for count in [60usize, 60_000] {
        let store = store();
        for n in 0..count {
            put(&store, &format!("object-{n:08}"), &[7; 4096]);
        }
        // All keys in an order that no cache guesses: 7,919 is prime to both counts. The key comes from a request, so it
        // is in the cache.
        let mut at = 0;
        let mut key = String::new();
        let mut next = || {
            at = (at + 7919) % count;
            key.clear();
            write!(key, "object-{at:08}").unwrap();
            get(&store, &key)
        };
        group.bench_function(BenchmarkId::new("get_4K", count), |b| b.iter(&mut next));
    }
    let store = store();
    for n in 0..60_000 {
        put(&store, &format!("object-{n:08}"), &[]);
    }
    let query = ListQuery { after: "object-00030000".into(), max: 10_000, ..Default::default() };
    group.bench_function("list_10000_of_60000", |b| {
        b.iter(|| {
            let page = now(store.list("b", &query)).unwrap();
            assert_eq!(page.objects.len(), 10_000);
            page
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = whole_operations, many_objects
}
criterion_main!(benches);
