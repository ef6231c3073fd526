//! `store=remote:` with real processes: a gateway in front of another server, both `ernic serve`, over loopback, with
//! signatures. The client is `RemoteStore` itself, so that contents can be compared through the gateway and directly.
//!
//! With `ERNIC_MOTO_SERVER`, which names moto's program `moto_server`, the same is done in front of moto.

#![allow(clippy::cast_possible_truncation)]

mod common;
#[path = "../../../store/tests/common/wait.rs"]
mod wait;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{Scratch, Server, TIMEOUT};
use ernic_store::{
    Commit, Condition, Credentials, ListQuery, Metadata, PartName, PutOptions, RemoteStore, RemoteUrl, Store,
    StoreError, UploadOptions,
};
use wait::{content, drain, pattern, put, wait, write};

const MIB: u64 = 1 << 20;
const KEY: &str = "gateway";
const SECRET: &str = "a secret of the test";

/// A server that keeps its objects on disk, at a port that stays the same.
struct Behind {
    scratch: Scratch,
    address: SocketAddr,
    server: Server,
}

fn spawn(scratch: &Scratch, listen: &str, backend: &str, environment: &[(&str, &str)]) -> (Server, SocketAddr) {
    let mut command = scratch.command(&["serve", "--listen", listen, "-b", backend]);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").env_remove("AWS_SESSION_TOKEN");
    command.envs(environment.iter().copied());
    let mut server = Server::spawn(command);
    let line = server.line(" at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    (server, address.parse().expect("an address"))
}

impl Behind {
    fn start() -> Self {
        let scratch = Scratch::new();
        let (server, address) = Self::serve(&scratch, "127.0.0.1:0");
        Self { scratch, address, server }
    }

    fn serve(scratch: &Scratch, listen: &str) -> (Server, SocketAddr) {
        let backend = format!("s3:bucket=data,store=disk:{}", scratch.path().join("objects").display());
        spawn(scratch, listen, &backend, &[("ERNIC_ACCESS_KEY", KEY), ("ERNIC_SECRET_KEY", SECRET)])
    }

    /// `kill -9`, and another one in its place.
    fn restart(&mut self) {
        self.server.kill();
        self.server = Self::serve(&self.scratch, &self.address.to_string()).0;
    }
}

fn gateway(behind: SocketAddr, secret: &str) -> (Scratch, Server, RemoteStore) {
    let scratch = Scratch::new();
    let environment = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", secret)];
    let (server, address) =
        spawn(&scratch, "127.0.0.1:0", &format!("s3:store=remote:s3+http://{behind}"), &environment);
    (scratch, server, client(address))
}

fn client(address: SocketAddr) -> RemoteStore {
    let url: RemoteUrl = format!("s3+http://{address}").parse().expect("a URL");
    let credentials = Credentials { key: KEY.into(), secret: SECRET.into(), token: None };
    RemoteStore::open(&url, Some(credentials)).expect("a store")
}

fn sized(content: &[u8]) -> PutOptions {
    PutOptions { size: Some(content.len() as u64), ..PutOptions::default() }
}

/// What clients do, through the gateway and directly.
fn both_ways(through: &RemoteStore, directly: &RemoteStore) {
    for (n, size) in [0, 1, MIB, 3 * MIB + 1, 9 * MIB].into_iter().enumerate() {
        let bytes = pattern(size, n as u64);
        let key = format!("sizes/ü {size}+&?");
        let meta = Metadata {
            content_type: Some("text/x".into()),
            cache_control: Some("no-cache".into()),
            user: [("one".to_owned(), "two".to_owned())].into(),
            ..Metadata::default()
        };
        let info =
            put(through, "data", &key, &bytes, PutOptions { meta: meta.clone(), ..sized(&bytes) }).expect("stored");
        for store in [directly, through] {
            let object = wait(store.get("data", &key, None)).expect("there");
            assert!(content(&object).expect("content") == bytes, "{key}");
            assert_eq!((&object.info.etag, object.info.size), (&info.etag, size));
            let there = &object.info.meta;
            assert_eq!(
                (&there.content_type, &there.cache_control, &there.user),
                (&meta.content_type, &meta.cache_control, &meta.user)
            );
            let (start, end) = (size / 3, size / 2);
            assert!(drain(object.data.read(start..end)).expect("a range") == bytes[start as usize..end as usize]);
        }
        // The other way round.
        let bytes = pattern(size, 99);
        put(directly, "data", &key, &bytes, sized(&bytes)).expect("stored");
        assert!(content(&wait(through.get("data", &key, None)).expect("there")).expect("content") == bytes);
    }

    // A multipart upload with its parts out of order, one of them replaced.
    let upload = wait(through.create_upload("data", "parts", UploadOptions::default())).expect("an upload");
    let part = |number: u16, bytes: &[u8]| {
        let mut writer =
            wait(through.put_part("data", "parts", &upload, number, Some(bytes.len() as u64))).expect("a part");
        write(&mut *writer, bytes).expect("written");
        PartName { number, etag: wait(writer.commit(Commit::default())).expect("kept").etag.clone() }
    };
    let (small, big) = (pattern(5 * MIB, 1), pattern(6 * MIB, 2));
    let third = part(3, b"the end");
    part(1, &big);
    let second = part(2, &big);
    let first = part(1, &small);
    let listed = wait(directly.list_parts("data", "parts", &upload)).expect("parts");
    assert_eq!(listed.iter().map(|part| part.number).collect::<Vec<_>>(), [1, 2, 3]);
    let names = [first, second, third];
    let info = wait(through.complete_upload("data", "parts", &upload, &names, Commit::default())).expect("complete");
    assert!(info.etag.ends_with("-3"), "{}", info.etag);
    let object = wait(directly.get("data", "parts", None)).expect("there");
    assert!(content(&object).expect("content") == [&small[..], &big, b"the end"].concat());

    // Conditions.
    let absent = PutOptions { condition: Condition::Absent, ..PutOptions::default() };
    put(through, "data", "once", b"1", absent.clone()).expect("stored");
    let again = put(through, "data", "once", b"2", absent);
    assert!(matches!(again, Err(StoreError::PreconditionFailed)), "{again:?}");

    wait(through.delete("data", "once", None, Condition::None)).expect("deleted");
    assert!(matches!(wait(directly.head("data", "once", None)), Err(StoreError::NoSuchKey)));
}

fn pages(through: &RemoteStore, directly: &RemoteStore, keys: usize) {
    for n in 0..keys {
        put(directly, "data", &format!("many/{}/{n:05}", n % 9), b"x", sized(b"x")).expect("stored");
    }
    for (prefix, delimiter, max, expected) in [("many/", "", 1000, keys), ("many/", "/", 2, 9)] {
        let mut query = ListQuery { prefix: prefix.into(), delimiter: delimiter.into(), after: String::new(), max };
        let mut seen = Vec::new();
        loop {
            let page = wait(through.list("data", &query)).expect("a page");
            assert!(page.objects.len() + page.prefixes.len() <= max);
            seen.extend(page.objects.into_iter().map(|(key, _)| key));
            seen.extend(page.prefixes);
            match page.next {
                Some(next) => query.after = next,
                None => break,
            }
        }
        assert!(seen.is_sorted() && seen.len() == expected, "{} of {expected}", seen.len());
    }
}

#[test]
fn in_front_of_ernic() {
    let behind = Behind::start();
    let (_scratch, _server, through) = gateway(behind.address, SECRET);
    let directly = client(behind.address);
    both_ways(&through, &directly);
    pages(&through, &directly, 2500);
    // Wrong credentials of the gateway are its own affair, and said so.
    let (_scratch, _server, denied) = gateway(behind.address, "another secret");
    let error = wait(denied.head("data", "parts", None)).expect_err("denied");
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
}

#[test]
fn the_remote_is_killed_and_comes_back() {
    let mut behind = Behind::start();
    let (_scratch, _server, through) = gateway(behind.address, SECRET);
    let bytes = pattern(64 * MIB, 1);
    put(&through, "data", "big", &bytes, sized(&bytes)).expect("stored");

    // In the middle of a GET: the rest comes from the new server.
    let object = wait(through.get("data", "big", None)).expect("there");
    let mut stream = object.data.read(0..u64::MAX);
    let first = wait(futures_util::StreamExt::next(&mut stream)).expect("a piece").expect("content");
    behind.restart();
    assert!([&first[..], &drain(stream).expect("the rest")].concat() == bytes);

    // In the middle of a PUT: an error, and what was there before.
    let start = Instant::now();
    let mut writer = wait(through.put("data", "big", PutOptions { size: Some(64 * MIB), ..PutOptions::default() }))
        .expect("a writer");
    write(&mut *writer, &pattern(20 * MIB, 2)).expect("written");
    behind.server.kill();
    let failed = write(&mut *writer, &pattern(44 * MIB, 3));
    let failed = match failed {
        Ok(()) => wait(writer.commit(Commit::default())).map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");

    // While it is away: clear errors.
    let away = wait(through.head("data", "big", None)).expect_err("away");
    assert!(matches!(away, StoreError::Unavailable(_)), "{away}");
    // Two tries of a minute at most, and what the machine takes for them.
    assert!(start.elapsed() < Duration::from_secs(180), "{:?}", start.elapsed());
    behind.restart();
    assert!(content(&wait(through.get("data", "big", None)).expect("there")).expect("content") == bytes);
    put(&through, "data", "big", b"new", sized(b"new")).expect("stored");
    assert_eq!(content(&wait(through.get("data", "big", None)).expect("there")).expect("content"), b"new");
}

/// moto, which dies with the test.
struct Moto(Child);

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn in_front_of_moto() {
    let Some(program) = std::env::var_os("ERNIC_MOTO_SERVER").map(PathBuf::from) else {
        println!("not tried: ERNIC_MOTO_SERVER names no moto_server");
        return;
    };
    // A port that is free now; moto can take none by itself.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let moto = Command::new(program)
        .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _moto = Moto(moto.expect("moto starts"));
    let deadline = Instant::now() + TIMEOUT;
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "moto does not listen on {address}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let directly = client(address);
    assert!(wait(directly.create_bucket("data")).expect("a bucket"));
    assert!(!wait(directly.create_bucket("data")).expect("a bucket"));
    let (_scratch, _server, through) = gateway(address, SECRET);
    both_ways(&through, &directly);
    pages(&through, &directly, 1100);
    // Of the remote's own: copies and tags, which this gateway's clients see as it does.
    let info = wait(directly.head("data", "parts", None)).expect("there");
    let source =
        ernic_store::Source { bucket: "data".into(), key: "parts".into(), version: None, etag: info.etag.clone() };
    let copied = wait(directly.copy(&source, "data", "copy é+", &PutOptions::default(), &Commit::default()));
    assert_eq!(copied.expect("copied").expect("by moto").size, info.size);
    let tags = vec![("a b".to_owned(), "c+d=e".to_owned())];
    assert_eq!(wait(directly.set_tags("data", "parts", None, tags.clone())).expect("tagged").tags, tags);
}
