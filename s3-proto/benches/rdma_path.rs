//! The RDMA path without a network and without a device: requests with tokens over a pipe in memory, the client's memory a
//! table in this process, which moves bytes with one copy under a lock.
//!
//! `cargo bench -p s3-proto`. One operation is a whole exchange on a kept connection, as in `body_path`. `memcpy` copies as
//! much as a transfer does, in the same chunks.

mod common;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use common::{Connection, request};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ernic_store::{MemoryConfig, MemoryStore};
use rdma_token::{CHUNK, RemoteAccess, TokenHeader, testing::Regions};
use s3_proto::{Etag, RdmaConfig, S3Config, S3Service};

const SIZES: [(&str, usize); 3] = [("4k", 4096), ("1m", 1 << 20), ("16m", 16 << 20)];

fn rdma_path(c: &mut Criterion) {
    let mut group = c.benchmark_group("s3_rdma_path");
    for (name, size) in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        let (from, mut to) = (vec![1; size], vec![2; size]);
        group.bench_function(format!("memcpy_{name}"), |b| {
            b.iter(|| to.chunks_mut(CHUNK).zip(from.chunks(CHUNK)).for_each(|(to, from)| to.copy_from_slice(from)));
        });
    }
    for (kind, etag) in [("", Etag::Md5), ("crc64_", Etag::Crc64Nvme)] {
        let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 1 << 30, objects: 1000 }));
        store.create_bucket("ernic");
        let memory = Regions::new();
        let config = S3Config { etag, ..S3Config::default() };
        let rdma = RdmaConfig::new(Ipv4Addr::new(192, 168, 200, 1));
        let service = S3Service::builder(store, config).with_remote(Arc::new(memory.clone()), rdma).build();
        let mut connection = Connection::new(&service);
        for (name, size) in SIZES {
            let rkey = memory.register(0x7f00_0000_0000, &vec![3; size], &[RemoteAccess::Read, RemoteAccess::Write]);
            let (header, token) = TokenHeader::A(memory.token(rkey)).headers().remove(0);
            let token = format!("{header}: {token}\r\n");
            let put = request("PUT", &format!("/ernic/{name}"), &token, 0);
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(format!("put_{kind}{name}"), |b| b.iter(|| connection.exchange(&put)));
            if etag == Etag::Md5 {
                let get = request("GET", &format!("/ernic/{name}"), &token, 0);
                group.bench_function(format!("get_{name}"), |b| b.iter(|| connection.exchange(&get)));
            }
        }
        assert_eq!(service.metrics().rdma_failures("aborted"), 0);
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2));
    targets = rdma_path
}
criterion_main!(benches);
