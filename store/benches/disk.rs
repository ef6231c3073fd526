//! The disk store: what durable writes cost, and how much depends on the number of objects.
//!
//! `cargo bench -p ernic-store --bench disk -- [DIRECTORY [OBJECTS]]` measures in a directory of a real disk (the build's own
//! unless one is named), with as many objects as are wanted (100,000). It prints one line for each figure.
#![allow(clippy::cast_precision_loss)]

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ernic_store::{Commit, DiskConfig, DiskStore, Durability, ListQuery, PutOptions, Store};
use futures_executor::block_on;
use futures_util::{TryStreamExt, future::join_all};

const MIB: usize = 1 << 20;

fn open(path: &Path, durability: Durability) -> DiskStore {
    let config = DiskConfig { path: path.to_owned(), capacity: u64::MAX, objects: u64::MAX, durability };
    let store = DiskStore::open(config).unwrap();
    block_on(store.create_bucket("b")).unwrap();
    store
}

async fn put(store: &DiskStore, key: &str, mut content: &[u8]) {
    let options = PutOptions { size: Some(content.len() as u64), ..Default::default() };
    let mut writer = store.put("b", key, options).await.unwrap();
    while !content.is_empty() {
        let buffer = writer.buffer(content.len()).await.unwrap();
        let (head, tail) = content.split_at(buffer.len());
        buffer.copy_from_slice(head);
        writer.advance(head.len());
        content = tail;
    }
    let etag = "d41d8cd98f00b204e9800998ecf8427e".into();
    writer.commit(Commit { etag, ..Default::default() }).await.unwrap();
}

/// Objects of `size` bytes per second, written by `clients` at a time.
fn small(dir: &Path, size: usize, clients: usize) -> f64 {
    let store = open(&dir.join("small"), Durability::Full);
    let content = vec![7; size];
    let (rounds, start) = (320 / clients, Instant::now());
    let client = |client: usize| {
        let (store, content) = (&store, &content);
        async move {
            for round in 0..rounds {
                put(store, &format!("{client}-{round}"), content).await;
            }
        }
    };
    block_on(join_all((0..clients).map(client)));
    let rate = (rounds * clients) as f64 / start.elapsed().as_secs_f64();
    drop(store);
    std::fs::remove_dir_all(dir.join("small")).unwrap();
    rate
}

/// MiB per second of one write of `size` bytes: as `dd conv=fsync` does it, and as an object.
fn large(dir: &Path, size: usize) -> (f64, f64) {
    let piece = vec![7; MIB];
    let rate = |took: Duration| (size / MIB) as f64 / took.as_secs_f64();
    let start = Instant::now();
    let mut file = File::create(dir.join("plain")).unwrap();
    (0..size / MIB).for_each(|_| file.write_all(&piece).unwrap());
    file.sync_all().unwrap();
    let plain = rate(start.elapsed());
    std::fs::remove_file(dir.join("plain")).unwrap();
    let store = open(&dir.join("large"), Durability::Full);
    let content = vec![7; size];
    let start = Instant::now();
    block_on(put(&store, "k", &content));
    let object = rate(start.elapsed());
    drop(store);
    std::fs::remove_dir_all(dir.join("large")).unwrap();
    (plain, object)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn many(dir: &Path, objects: usize) {
    let path = dir.join("many");
    let store = open(&path, Durability::Os);
    let start = Instant::now();
    for from in (0..objects).step_by(1000) {
        let store = &store;
        let one = |n: usize| async move { put(store, &format!("folder-{:03}/object-{n:09}", n % 1000), &[]).await };
        block_on(join_all((from..objects.min(from + 1000)).map(one)));
    }
    println!("{objects} empty objects made (os)        {:8.1} s", start.elapsed().as_secs_f64());
    let list = |query: &ListQuery, expected: usize| {
        let start = Instant::now();
        let page = block_on(store.list("b", query)).unwrap();
        assert_eq!(page.objects.len() + page.prefixes.len(), expected);
        start.elapsed()
    };
    let pages = (0..50).map(|n| {
        let after = format!("folder-{:03}/object-{:09}", n * 17 % 900, 0);
        list(&ListQuery { after, max: 1000, ..Default::default() }, 1000)
    });
    println!("list 1,000 of them, median              {:8.2} ms", median(pages.collect()).as_secs_f64() * 1e3);
    let groups = (0..10).map(|_| list(&ListQuery { delimiter: "/".into(), max: 1000, ..Default::default() }, 1000));
    println!("list 1,000 folders, median              {:8.2} ms", median(groups.collect()).as_secs_f64() * 1e3);
    let start = Instant::now();
    drop(store);
    println!("close                                   {:8.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    drop(open(&path, Durability::Full));
    println!("open after an orderly end, and close    {:8.2} s", start.elapsed().as_secs_f64());
    std::fs::remove_file(path.join("clean")).unwrap();
    let start = Instant::now();
    drop(open(&path, Durability::Full));
    println!("open after a kill, and close            {:8.2} s", start.elapsed().as_secs_f64());
    let meta = std::fs::metadata(path.join("meta.redb")).unwrap().len();
    println!("metadata file                           {:8.1} MiB", meta as f64 / MIB as f64);
    std::fs::remove_dir_all(path).unwrap();
}

fn main() {
    // cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let dir = arguments.first().map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let objects = arguments.get(1).map_or(100_000, |objects| objects.parse().expect("a number of objects"));
    for size in [1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10] {
        for clients in [1, 16] {
            println!(
                "PUT {:3} KiB, {clients:2} at a time              {:8.0} /s",
                size >> 10,
                small(&dir, size, clients)
            );
        }
    }
    let (plain, object) = large(&dir, 512 * MIB);
    println!("512 MiB as a file, and fsync            {plain:8.0} MiB/s");
    println!("512 MiB as an object                    {object:8.0} MiB/s");
    let store = open(&dir.join("read"), Durability::Full);
    block_on(put(&store, "k", &vec![7; 512 * MIB]));
    let start = Instant::now();
    let object = block_on(store.get("b", "k", None)).unwrap();
    let read = block_on(object.data.read(0..u64::MAX).try_fold(0, |sum, piece| async move { Ok(sum + piece.len()) }));
    assert_eq!(read.unwrap(), 512 * MIB);
    println!("512 MiB read from the system's memory   {:8.0} MiB/s", 512.0 / start.elapsed().as_secs_f64());
    drop((object, store));
    std::fs::remove_dir_all(dir.join("read")).unwrap();
    many(&dir, objects);
}
