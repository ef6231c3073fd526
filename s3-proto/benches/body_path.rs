//! The body path without a network: requests through [`S3Service::serve`] over a pipe in memory.
//!
//! `cargo bench -p s3-proto`. One operation is a whole exchange on a kept connection: the request's bytes are handed to the
//! server, and it is polled until the answer is complete. Answers are counted, not copied.

mod common;

use std::{sync::Arc, time::Duration};

use common::{Connection, request};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ernic_store::{MemoryConfig, MemoryStore};
use s3_proto::{S3Config, S3Service};

fn body_path(c: &mut Criterion) {
    const SMALL: usize = 4096;
    const LARGE: usize = 64 << 20;
    let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 1 << 30, objects: 1000 }));
    store.create_bucket("ernic");
    let service = S3Service::new(store, S3Config::default());
    let mut connection = Connection::new(&service);
    connection.exchange(&request("PUT", "/ernic/small", "", SMALL));
    connection.exchange(&request("PUT", "/ernic/large", "", LARGE));

    let mut group = c.benchmark_group("s3_body_path");
    for (name, target, size) in [("get_4k", "/ernic/small", SMALL), ("get_64m", "/ernic/large", LARGE)] {
        let get = request("GET", target, "", 0);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(name, |b| b.iter(|| assert!(connection.exchange(&get) > size)));
    }
    for (name, target, size) in [("put_4k", "/ernic/small", SMALL), ("put_64m", "/ernic/large", LARGE)] {
        let put = request("PUT", target, "", size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(name, |b| b.iter(|| connection.exchange(&put)));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(4));
    targets = body_path
}
criterion_main!(benches);
