//! In front of S3.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ernic_store::{
    Commit, Condition, Credentials, ListQuery, MemoryConfig, MemoryStore, Metadata, PartName, PutOptions, RemoteStore,
    RemoteUrl, Store, StoreError, UploadOptions,
};

use crate::{
    server::Server,
    wait::{content, drain, pattern, put, wait, write},
};

const MIB: u64 = 1 << 20;

struct Lab {
    behind: Arc<MemoryStore>,
    server: Server,
    remote: RemoteStore,
}

fn open(server: &Server) -> RemoteStore {
    let url: RemoteUrl = server.url().parse().unwrap();
    let credentials = Credentials { key: "k".into(), secret: "s".into(), token: None };
    RemoteStore::open(&url, Some(credentials)).unwrap()
}

fn lab() -> Lab {
    let behind = Arc::new(MemoryStore::new(MemoryConfig { capacity: 1 << 30, objects: 10_000 }));
    wait(Store::create_bucket(&*behind, "data")).unwrap();
    let server = Server::start(Arc::clone(&behind) as Arc<dyn Store>);
    let remote = open(&server);
    Lab { behind, server, remote }
}

fn sized(content: &[u8]) -> PutOptions {
    PutOptions { size: Some(content.len() as u64), ..PutOptions::default() }
}

fn part(store: &dyn Store, key: &str, upload: &str, number: u16, bytes: &[u8]) -> PartName {
    let mut writer = wait(store.put_part("data", key, upload, number, Some(bytes.len() as u64))).unwrap();
    write(&mut *writer, bytes).unwrap();
    PartName { number, etag: wait(writer.commit(Commit::default())).unwrap().etag.clone() }
}

#[test]
fn objects_of_all_sizes_are_the_same_on_both_sides() {
    let Lab { behind, remote, server } = lab();
    for (n, size) in [0, 1, 1000, MIB - 1, MIB, MIB + 1, 3 * MIB, 5 * MIB, 12 * MIB + 3].into_iter().enumerate() {
        for known in [true, false] {
            let bytes = pattern(size, n as u64);
            let key = format!("a b/ü+{size}-{known}");
            let mut options = PutOptions {
                size: known.then_some(size),
                meta: Metadata {
                    content_type: Some("text/x".into()),
                    content_language: Some("de".into()),
                    cache_control: Some("no-cache".into()),
                    content_disposition: Some("inline".into()),
                    user: BTreeMap::from([("one".into(), "two  three".into())]),
                    ..Metadata::default()
                },
                ..PutOptions::default()
            };
            options.meta.content_encoding = (size > 0).then(|| "gzip".into());
            let meta = options.meta.clone();
            let info = put(&remote, "data", &key, &bytes, options).unwrap();
            let there = wait(behind.get("data", &key, None)).unwrap();
            assert!(content(&there).unwrap() == bytes, "{key}");
            assert_eq!((info.size, &info.etag, &there.info.meta), (size, &there.info.etag, &meta));
            // Through us, from a file that the remote has by other means too.
            let object = wait(remote.get("data", &key, None)).unwrap();
            assert!(content(&object).unwrap() == bytes, "{key}");
            assert_eq!((&object.info.meta, &object.info.etag), (&meta, &there.info.etag));
            let to_second = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            assert_eq!(to_second(object.info.modified), to_second(there.info.modified));
            let range = size / 3..size / 3 + 100_000;
            let end = range.end.min(size);
            let bytes = &bytes[range.start as usize..end as usize];
            assert!(drain(object.data.read(range.clone())).unwrap() == bytes);
        }
    }
    // Content of known size is one PUT, whose ETag is its MD5.
    let etag = &wait(remote.head("data", &format!("a b/ü+{}-true", 12 * MIB + 3), None)).unwrap().etag;
    assert_eq!((etag.len(), etag.contains('-')), (32, false));
    let etag = &wait(remote.head("data", &format!("a b/ü+{}-false", 12 * MIB + 3), None)).unwrap().etag;
    assert!(etag.ends_with("-3"), "{etag}");
    assert!(wait(behind.list_uploads("data")).unwrap().is_empty());
    // Connections are kept.
    let connections = server.connections.load(Relaxed);
    assert!(connections <= 20, "{connections}");
}

#[test]
fn nothing_is_visible_before_the_commit_and_without_it() {
    let Lab { behind, remote, server } = lab();
    for size in [0, 1000, MIB, 2 * MIB, 6 * MIB] {
        for known in [true, false] {
            let bytes = pattern(size, 1);
            let options = PutOptions { size: known.then_some(size), ..PutOptions::default() };
            let mut writer = wait(remote.put("data", "k", options)).unwrap();
            write(&mut *writer, &bytes).unwrap();
            assert_eq!(writer.written(), size);
            drop(writer);
        }
    }
    // The uploads of content without a length are aborted; by tasks of the store.
    for _ in 0..1000 {
        if wait(behind.list_uploads("data")).unwrap().is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(wait(behind.list_uploads("data")).unwrap().is_empty());
    drop(remote);
    drop(server);
    assert!(matches!(wait(behind.head("data", "k", None)), Err(StoreError::NoSuchKey)));
    assert_eq!(behind.usage().objects, 0);
}

#[test]
fn content_that_is_damaged_on_the_way_is_deleted() {
    let Lab { behind, remote, server: _server } = lab();
    for size in [100, 2 * MIB] {
        let bytes = pattern(size, 1);
        let mut writer = wait(remote.put("data", "k", sized(&bytes))).unwrap();
        write(&mut *writer, &bytes).unwrap();
        let commit = Commit { etag: "0".repeat(32), ..Commit::default() };
        let error = wait(writer.commit(commit)).unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("has been deleted"), "{error}");
        assert!(matches!(wait(behind.head("data", "k", None)), Err(StoreError::NoSuchKey)));
    }
}

#[test]
fn conditions_are_the_remotes() {
    let Lab { remote, server: _server, .. } = lab();
    for size in [10, 2 * MIB] {
        let bytes = pattern(size, 1);
        let with = |condition| PutOptions { condition, ..sized(&bytes) };
        let first = put(&remote, "data", "k", &bytes, with(Condition::Absent)).unwrap();
        let again = put(&remote, "data", "k", &bytes, with(Condition::Absent));
        assert!(matches!(again, Err(StoreError::PreconditionFailed)), "{again:?}");
        put(&remote, "data", "k", &bytes, with(Condition::Match(first.etag.clone()))).unwrap();
        put(&remote, "data", "k", &bytes, with(Condition::Present)).unwrap();
        let other = put(&remote, "data", "k", &bytes, with(Condition::Match("0".repeat(32))));
        assert!(matches!(other, Err(StoreError::PreconditionFailed)), "{other:?}");
        let same = put(&remote, "data", "k", &bytes, with(Condition::Differs(first.etag.clone())));
        assert!(matches!(same, Err(StoreError::PreconditionFailed)), "{same:?}");
        wait(remote.delete("data", "k", None, Condition::None)).unwrap();
        let gone = put(&remote, "data", "k", &bytes, with(Condition::Present));
        assert!(matches!(gone, Err(StoreError::NoSuchKey)), "{gone:?}");
        put(&remote, "data", "k", &bytes, with(Condition::Differs(first.etag.clone()))).unwrap();
        wait(remote.delete("data", "k", None, Condition::None)).unwrap();
    }
}

#[test]
fn uploads_are_the_remotes() {
    let Lab { behind, remote, server: _server } = lab();
    let options = UploadOptions {
        meta: Metadata { content_type: Some("text/x".into()), ..Metadata::default() },
        ..UploadOptions::default()
    };
    let upload = wait(remote.create_upload("data", "m", options.clone())).unwrap();
    assert_eq!(wait(behind.list_uploads("data")).unwrap()[0].upload, upload);
    assert_eq!(wait(remote.head_upload("data", "m", &upload)).unwrap().options, options);
    let (small, big) = (pattern(5 * MIB, 1), pattern(7 * MIB, 2));
    // Out of order, one of them twice, one for nothing.
    let third = part(&remote, "m", &upload, 3, &small[..1000]);
    part(&remote, "m", &upload, 1, &small[..10]);
    part(&remote, "m", &upload, 9, &small[..10]);
    let second = part(&remote, "m", &upload, 2, &big);
    let first = part(&remote, "m", &upload, 1, &small);
    let parts = wait(remote.list_parts("data", "m", &upload)).unwrap();
    let of = |part: &ernic_store::PartInfo| (part.number, part.info.size, part.info.etag.clone());
    let there = wait(behind.list_parts("data", "m", &upload)).unwrap();
    assert_eq!(parts.iter().map(of).collect::<Vec<_>>(), there.iter().map(of).collect::<Vec<_>>());
    assert_eq!(wait(remote.list_uploads("data")).unwrap().len(), 1);
    let names = [first, second, third];
    let info = wait(remote.complete_upload("data", "m", &upload, &names, Commit::default())).unwrap();
    let object = wait(behind.get("data", "m", None)).unwrap();
    assert!(content(&object).unwrap() == [&small[..], &big, &small[..1000]].concat());
    assert_eq!((&info.etag, info.size), (&object.info.etag, object.info.size));
    assert_eq!(info.meta.content_type.as_deref(), Some("text/x"));
    assert!(matches!(wait(remote.list_parts("data", "m", &upload)), Err(StoreError::NoSuchUpload)));
    assert!(matches!(wait(remote.head_upload("data", "m", &upload)), Err(StoreError::NoSuchUpload)));

    let upload = wait(remote.create_upload("data", "m", UploadOptions::default())).unwrap();
    wait(remote.abort_upload("data", "m", &upload)).unwrap();
    assert!(wait(remote.list_uploads("data")).unwrap().is_empty());
    let mut late = wait(remote.put_part("data", "m", &upload, 1, Some(3))).unwrap();
    write(&mut *late, b"abc").unwrap();
    assert!(matches!(wait(late.commit(Commit::default())), Err(StoreError::NoSuchUpload)));
}

#[test]
fn a_part_of_an_upload_that_ends_while_it_is_sent() {
    let Lab { behind, remote, server } = lab();
    let size = 24 * MIB;
    // Before the part, so that the remote answers without reading it, and in the middle of it.
    for sent in [0, 12 * MIB] {
        for _ in 0..3 {
            let upload = wait(remote.create_upload("data", "m", UploadOptions::default())).unwrap();
            let mut writer = wait(remote.put_part("data", "m", &upload, 1, Some(size))).unwrap();
            write(&mut *writer, &pattern(sent, 1)).unwrap();
            wait(behind.abort_upload("data", "m", &upload)).unwrap();
            let rest = write(&mut *writer, &pattern(size - sent, 2));
            if let Err(error) = rest {
                assert!(matches!(error, StoreError::NoSuchUpload), "{sent} {error}");
                // Who goes on all the same hears the same.
                let error = wait(writer.buffer(1)).unwrap_err();
                assert!(matches!(error, StoreError::NoSuchUpload), "{sent} {error}");
            }
            let error = wait(writer.commit(Commit::default())).unwrap_err();
            assert!(matches!(error, StoreError::NoSuchUpload), "{sent} {error}");
        }
    }
    assert_eq!(behind.usage().bytes, 0);

    // One that hangs up in the middle of a part without an answer. What is behind that is asked once.
    let rude = Rude::start(server.address);
    let remote = RemoteStore::open(&rude.url(), None).unwrap();
    let bytes = pattern(8 * MIB, 3);
    let send = |upload: &str| {
        let mut writer = wait(remote.put_part("data", "m", upload, 1, Some(8 * MIB))).unwrap();
        write(&mut *writer, &bytes)?;
        wait(writer.commit(Commit::default()))
    };
    let upload = wait(remote.create_upload("data", "m", UploadOptions::default())).unwrap();
    let error = send(&upload).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    wait(remote.abort_upload("data", "m", &upload)).unwrap();
    let error = send(&upload).unwrap_err();
    assert!(matches!(error, StoreError::NoSuchUpload), "{error}");
    assert_eq!(rude.hung_up.load(Relaxed), 2);
}

/// On the way to a server: what is no PUT goes through, a PUT ends with its first bytes.
struct Rude {
    address: SocketAddr,
    hung_up: Arc<AtomicU64>,
}

impl Rude {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hung_up = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&hung_up);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, count) = (client.unwrap(), Arc::clone(&count));
                std::thread::spawn(move || Self::pass(&client, server, &count));
            }
        });
        Self { address, hung_up }
    }

    fn url(&self) -> RemoteUrl {
        format!("s3+http://{}", self.address).parse().unwrap()
    }

    /// Ends both ways with either, or with a PUT.
    fn pass(mut client: &TcpStream, server: SocketAddr, hung_up: &AtomicU64) {
        let server = TcpStream::connect(server).unwrap();
        let (mut back, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut buffer = [0; 64 * 1024];
        while let Ok(len @ 1..) = client.read(&mut buffer) {
            // The client waits for an answer before it asks again: a request is at the beginning.
            if buffer.starts_with(b"PUT ") {
                hung_up.fetch_add(1, Relaxed);
                break;
            }
            if (&server).write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}

/// The whole answer of the server at `address`.
fn ask(address: SocketAddr, method: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn a_get_is_two_requests_to_the_remote_and_a_head_is_one() {
    let Lab { behind, remote, server } = lab();
    let bytes = pattern(MIB + 1, 1);
    put(&*behind, "data", "k", &bytes, PutOptions::default()).unwrap();
    let front = Server::start(Arc::new(remote));
    let requests = || server.service.metrics().requests();
    let before = requests();
    let answer = ask(front.address, "GET", "/data/k");
    assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(&bytes));
    // What the object is, and its content.
    assert_eq!(requests() - before, 2);
    let before = requests();
    assert!(ask(front.address, "HEAD", "/data/k").starts_with(b"HTTP/1.1 200 "));
    assert_eq!(requests() - before, 1);
}

#[test]
fn listing_pages_without_reading_everything() {
    let Lab { behind, remote, server: _server } = lab();
    for n in 0..2500 {
        put(&*behind, "data", &format!("dir{}/key {n:04}+", n % 7), b"x", PutOptions::default()).unwrap();
    }
    for key in ["a", "dir3", "dir30", "z/z"] {
        put(&*behind, "data", key, b"x", PutOptions::default()).unwrap();
    }
    for (prefix, delimiter, max) in
        [("", "", 1000), ("", "", 300), ("", "/", 1), ("", "/", 3), ("", "/", 100), ("dir3", "/", 2), ("dir5/", "", 77)]
    {
        let mut query = ListQuery { prefix: prefix.into(), delimiter: delimiter.into(), after: String::new(), max };
        loop {
            let (here, there) =
                (wait(remote.list("data", &query)).unwrap(), wait(behind.list("data", &query)).unwrap());
            let objects = |page: &ernic_store::ListPage| {
                page.objects.iter().map(|(key, info)| (key.clone(), info.etag.clone(), info.size)).collect::<Vec<_>>()
            };
            assert_eq!(objects(&here), objects(&there), "{query:?}");
            assert_eq!((&here.prefixes, &here.next), (&there.prefixes, &there.next), "{query:?}");
            match here.next {
                Some(next) => query.after = next,
                None => break,
            }
        }
    }
    let nowhere = wait(remote.list("nowhere", &ListQuery { max: 1, ..ListQuery::default() }));
    assert!(matches!(nowhere, Err(StoreError::NoSuchBucket)), "{nowhere:?}");
}

#[test]
fn what_is_not_there() {
    let Lab { remote, server, .. } = lab();
    assert!(matches!(wait(remote.get("data", "k", None)), Err(StoreError::NoSuchKey)));
    assert!(matches!(wait(remote.get("nowhere", "k", None)), Err(StoreError::NoSuchBucket)));
    assert!(matches!(wait(remote.head_bucket("nowhere")), Err(StoreError::NoSuchBucket)));
    let lost = put(&remote, "nowhere", "k", b"x", PutOptions::default());
    assert!(matches!(lost, Err(StoreError::NoSuchBucket)), "{lost:?}");
    let lost = put(&remote, "nowhere", "k", &pattern(9 * MIB, 1), sized(&pattern(9 * MIB, 1)));
    assert!(matches!(lost, Err(StoreError::NoSuchBucket)), "{lost:?}");
    for key in ["..", "a/../b", "./a", "a/."] {
        let unfit = put(&remote, "data", key, b"x", PutOptions::default());
        assert!(matches!(unfit, Err(StoreError::Unfit(_))), "{key} {unfit:?}");
    }
    assert_eq!(
        wait(remote.list_buckets()).unwrap().iter().map(|bucket| &bucket.name[..]).collect::<Vec<_>>(),
        ["data"]
    );

    let url: RemoteUrl = format!("{}/data", server.url()).parse().unwrap();
    let one = RemoteStore::open(&url, None).unwrap();
    assert_eq!(one.only_bucket(), Some("data"));
    put(&one, "data", "k", b"x", PutOptions::default()).unwrap();
    assert!(matches!(wait(one.get("other", "k", None)), Err(StoreError::NoSuchBucket)));
    assert_eq!(wait(one.list_buckets()).unwrap().len(), 1);
    assert!(!wait(one.create_bucket("data")).unwrap());
}

#[test]
fn an_object_that_is_replaced_while_it_is_read() {
    let Lab { behind, remote, server: _server } = lab();
    let bytes = pattern(3 * MIB, 1);
    put(&*behind, "data", "k", &bytes, PutOptions::default()).unwrap();
    let object = wait(remote.get("data", "k", None)).unwrap();
    assert!(content(&object).unwrap() == bytes);
    let mut writer = wait(behind.put("data", "k", PutOptions::default())).unwrap();
    write(&mut *writer, b"other").unwrap();
    wait(writer.commit(Commit { etag: "other".into(), ..Commit::default() })).unwrap();
    let error = content(&object).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(why) if why.contains("replaced")), "{error}");
}

#[test]
fn a_remote_that_comes_back() {
    let Lab { behind, mut server, remote } = lab();
    let bytes = pattern(64 * MIB, 1);
    put(&remote, "data", "k", &bytes, sized(&bytes)).unwrap();
    let address = server.address;

    // In the middle of a GET. It goes on where it was once the server is back.
    let object = wait(remote.get("data", "k", None)).unwrap();
    let mut stream = object.data.read(0..u64::MAX);
    let first = wait(futures_util::StreamExt::next(&mut stream)).unwrap().unwrap();
    server.kill();
    let mut server = Server::start_at(Arc::clone(&behind) as Arc<dyn Store>, address);
    let rest = drain(stream).unwrap();
    assert!([&first[..], &rest].concat() == bytes);

    // In the middle of a PUT: an error, and what was there before.
    let mut writer =
        wait(remote.put("data", "k", PutOptions { size: Some(64 * MIB), ..PutOptions::default() })).unwrap();
    write(&mut *writer, &pattern(20 * MIB, 2)).unwrap();
    server.kill();
    let failed = write(&mut *writer, &pattern(44 * MIB, 3));
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    drop(writer);

    // It stays away: an error within the bound, not a hang.
    let away = wait(remote.head("data", "k", None)).unwrap_err();
    assert!(matches!(away, StoreError::Unavailable(_)), "{away}");
    let away = wait(remote.get("data", "k", None)).unwrap_err();
    assert!(matches!(away, StoreError::Unavailable(_)), "{away}");
    let text = away.to_string();
    assert!(!text.contains("Signature"), "{text}");

    let _server = Server::start_at(Arc::clone(&behind) as Arc<dyn Store>, address);
    assert!(content(&wait(remote.get("data", "k", None)).unwrap()).unwrap() == bytes);
    put(&remote, "data", "k", b"new", PutOptions::default()).unwrap();
    assert!(content(&wait(remote.get("data", "k", None)).unwrap()).unwrap() == b"new");
}

#[test]
fn copies_are_made_by_the_remote_or_left_to_the_caller() {
    let Lab { remote, server: _server, .. } = lab();
    let info = put(&remote, "data", "k", &pattern(MIB, 1), PutOptions::default()).unwrap();
    let source = ernic_store::Source { bucket: "data".into(), key: "k".into(), version: None, etag: info.etag.clone() };
    let copied = wait(remote.copy(&source, "data", "l", &PutOptions::default(), &Commit::default())).unwrap();
    if let Some(copied) = copied {
        assert_eq!((&copied.etag, copied.size), (&info.etag, MIB));
        assert!(content(&wait(remote.get("data", "l", None)).unwrap()).unwrap() == pattern(MIB, 1));
    } else {
        assert!(matches!(wait(remote.head("data", "l", None)), Err(StoreError::NoSuchKey)));
    }
}
