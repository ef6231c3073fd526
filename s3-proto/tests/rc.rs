//! `hipobj-rc-v2` from request to answer, over connections that are memory of this process.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use common::*;
use ernic_client::sigv4::{self, Credentials as Signer, UNSIGNED_PAYLOAD};
use ernic_store::{MemoryConfig, MemoryStore, Store};
use proptest::prelude::*;
use rdma_token::{
    RcTarget, RemoteAccess, RemoteError, Reply, Token, Transport, names,
    testing::{Arrival, Fabric, Regions, Step},
};
use s3_proto::{Credentials, Impairment, Metrics, RcConfig, RdmaConfig, S3Builder, S3Config, S3Service, Timers};

const BASE: u64 = 0x7f11_2233_4005;
const BLANK: u8 = 0xee;
const COOKIE: u32 = 0x00c0_ffee;
const PSN: u32 = 0x00_ff10;
/// 24 May 2013, 00:00:00 UTC.
const MOMENT: u64 = 1_369_353_600;

struct Lab {
    service: S3Service,
    store: Arc<MemoryStore>,
    regions: Regions,
    fabric: Fabric,
    /// Milliseconds that have passed.
    clock: Arc<AtomicU64>,
}

fn lab_with(config: S3Config, set_up: impl FnOnce(S3Builder, &Fabric, RcConfig) -> S3Builder) -> Lab {
    let (regions, clock) = (Regions::new(), Arc::new(AtomicU64::new(0)));
    let fabric = Fabric::new(&regions);
    let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 64 * MIB as u64, objects: 1000 }));
    assert!(store.create_bucket(BUCKET));
    let (start, passed) = (Instant::now(), Arc::clone(&clock));
    let rc = RcConfig {
        sessions: 4,
        per_client: 3,
        patience: Duration::from_secs(10),
        clock: Arc::new(move || start + Duration::from_millis(passed.load(SeqCst))),
    };
    let builder = S3Service::builder(Arc::clone(&store) as _, S3Config { min_part: 0, ..config });
    let service = set_up(builder, &fabric, rc).build();
    Lab { service, store, regions, fabric, clock }
}

fn lab() -> Lab {
    lab_with(S3Config::default(), |builder, fabric, rc| builder.with_rc(Arc::new(fabric.clone()), rc))
}

/// A client's queue pair and its memory.
struct Memory {
    rkey: u32,
    token: Token,
}

impl Memory {
    fn to(&self) -> RcTarget {
        RcTarget { address: self.token.address, rkey: self.rkey }
    }
}

impl Lab {
    fn memory(&self, content: &[u8]) -> Memory {
        let rkey = self.regions.register(BASE, content, &[RemoteAccess::Read, RemoteAccess::Write]);
        Memory { rkey, token: self.regions.token(rkey) }
    }

    #[track_caller]
    fn call(&self, request: &Request) -> Answer {
        Client::new(&self.service).call(request)
    }

    fn metrics(&self) -> &Metrics {
        self.service.metrics()
    }

    /// Nothing is held for anybody.
    #[track_caller]
    fn at_rest(&self) {
        assert_eq!(self.fabric.sessions(), []);
        assert_eq!((self.metrics().rdma_sessions(), self.metrics().rdma_active()), (0, 0));
        assert_eq!(self.service.reap(), None);
    }

    #[track_caller]
    fn object(&self, key: &str) -> Option<Vec<u8>> {
        let answer = self.call(&get(&format!("/{BUCKET}/{key}")));
        (answer.status == 200).then_some(answer.body)
    }

    /// Prepares a session. Returns its id.
    #[track_caller]
    fn prepared(&self, request: &Request) -> String {
        let answer = self.call(request);
        answer.expect(200);
        answer.header(names::SESSION).unwrap().to_owned()
    }

    fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_millis() as u64, SeqCst);
    }
}

fn post(path: &str) -> Request {
    request("POST", path).body("").header(names::PROTOCOL, "hipobj-rc-v2")
}

fn prepare(op: &str, target: &str, token: &Token, size: u64) -> Request {
    post(names::PREPARE)
        .header(names::TOKEN, token.to_string())
        .header(names::PSN, format!("{PSN:06x}"))
        .header(names::COOKIE, format!("{COOKIE:08x}"))
        .header(names::OP, op)
        .header(names::TARGET, target)
        .header(names::SIZE, size.to_string())
}

fn of(path: &str, session: &str) -> Request {
    post(path).header(names::SESSION, session).header(names::COOKIE, format!("{COOKIE:08x}"))
}

fn ready(session: &str) -> Request {
    of(names::READY, session)
}

fn cancel(session: &str) -> Request {
    of(names::CANCEL, session)
}

/// The request with another value of a header, or without it.
fn with(mut request: Request, name: &str, value: impl Into<Option<&'static str>>) -> Request {
    request.headers.retain(|(have, _)| have != name);
    match value.into() {
        Some(value) => request.header(name, value),
        None => request,
    }
}

/// Says where the client's memory is, as hipObject's clients do.
fn with_memory(request: Request, memory: &Memory) -> Request {
    request
        .header(names::QPN, format!("{:x}", memory.token.qpn))
        .header(names::MR_ADDR, format!("{:x}", memory.token.address))
        .header(names::MR_RKEY, format!("{:08x}", memory.rkey))
}

/// Where the answer to prepare says that a PUT goes.
#[track_caller]
fn staging(answer: &Answer) -> RcTarget {
    let number = |name: &str| u64::from_str_radix(answer.header(name).unwrap(), 16).unwrap();
    RcTarget { address: number(names::MR_ADDR), rkey: number(names::MR_RKEY) as u32 }
}

impl Answer {
    /// The final answer of a transfer of so many bytes.
    #[track_caller]
    fn expect_final(&self, bytes: usize) -> &Self {
        self.expect(200);
        assert_eq!(self.body, b"");
        assert_eq!(self.header("content-length"), Some("0"));
        assert_eq!(self.header(names::PROTOCOL), Some("hipobj-rc-v2"));
        assert_eq!(self.header(names::COOKIE), Some("00c0ffee"));
        let bytes = bytes.to_string();
        assert_eq!(self.header(names::BYTES), Some(&*bytes));
        assert_eq!(self.header(names::BYTES_TRANSFERRED), Some(&*bytes));
        assert_eq!(self.header(names::ETAG), self.header("etag"));
        assert!(self.header("etag").is_some());
        self
    }

    /// An error of the protocol.
    #[track_caller]
    fn refused(&self, status: u16, code: &str) -> &Self {
        self.expect(status);
        assert_eq!(self.xml().text_of("Code"), code, "{}", self.text());
        assert_eq!(self.header(names::PROTOCOL), Some("hipobj-rc-v2"));
        assert_eq!(self.header(names::PROTOCOL_STATUS), None);
        self
    }

    #[track_caller]
    fn unsupported(&self) {
        self.expect(501);
        assert_eq!(self.xml().text_of("Code"), "NotImplemented");
        assert_eq!(self.header(names::PROTOCOL_STATUS), Some("unsupported"));
        assert_eq!(self.header(names::PROTOCOL), None);
    }
}

const PLACE: &str = "/ernic/key";

#[test]
fn a_get_is_prepared_and_sent_with_the_cookie() {
    let lab = lab();
    let content = pattern(300_001);
    lab.call(&put(PLACE, content.clone()).header("x-amz-meta-color", "green")).expect(200);
    let memory = lab.memory(&vec![BLANK; content.len() + 10]);
    // hipObject's token says no memory; ready does.
    let token = Token { rkey: 0, address: 0, length: 0, ..memory.token };
    let answer = lab.call(&prepare("GET", PLACE, &token, content.len() as u64));
    answer.expect(200);
    assert_eq!((answer.header(names::PROTOCOL), answer.body.len()), (Some("hipobj-rc-v2"), 0));
    let [peer] = lab.fabric.sessions()[..] else { panic!("one session") };
    assert_eq!((peer.token, peer.psn, peer.access), (token, PSN, RemoteAccess::Write));
    assert_eq!(peer.size, content.len() as u64);
    let reply = Reply::parse(answer.header(names::REPLY).unwrap()).unwrap();
    assert_eq!(reply, Reply::Token(Token::endpoint(peer.local.qpn, peer.local.gid, 0)));
    assert_eq!(answer.header(names::PSN), Some(&*format!("{:06x}", peer.local.psn)));
    assert_eq!(answer.header(names::QPN), Some(&*format!("{:x}", peer.local.qpn)));
    assert_eq!((answer.header(names::MR_ADDR), answer.header(names::MR_RKEY)), (None, None));
    let session = answer.header(names::SESSION).unwrap();
    assert!(session.len() == 32 && session.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
    assert_eq!(lab.metrics().rdma_sessions(), 1);
    assert_eq!(lab.service.reap(), Some(Duration::from_secs(10)));

    let answer = lab.call(&with_memory(ready(session), &memory).header("x-amz-checksum-mode", "ENABLED"));
    answer.expect_final(content.len());
    assert_eq!(answer.header("x-amz-meta-color"), Some("green"));
    let arrival = Arrival { from: peer.local.qpn, bytes: content.len() as u64, immediate: COOKIE };
    assert_eq!(lab.fabric.arrival(token.qpn, Duration::ZERO), Some(arrival));
    let got = lab.regions.content(memory.rkey);
    assert_eq!(got[..content.len()], content);
    assert_eq!(got[content.len()..], [BLANK; 10]);
    assert_eq!((lab.metrics().rdma_reads(), lab.metrics().rdma_bytes_read()), (1, content.len() as u64));
    lab.at_rest();
    // Once and never again.
    lab.call(&ready(session)).refused(409, "InvalidRDMASession");
    assert_eq!(lab.fabric.arrival(token.qpn, Duration::ZERO), None);
}

#[test]
fn a_put_is_what_the_client_has_written() {
    let lab = lab();
    let memory = lab.memory(b"");
    let content = pattern(70_000);
    let request = prepare("PUT", PLACE, &memory.token, content.len() as u64)
        .header("content-type", "text/x-rust")
        .header("x-amz-meta-color", "blue");
    let answer = lab.call(&request);
    let session = answer.expect(200).header(names::SESSION).unwrap().to_owned();
    let [peer] = lab.fabric.sessions()[..] else { panic!("one session") };
    assert_eq!(
        (peer.access, peer.local.staging.map(|staging| staging.address)),
        (RemoteAccess::Read, Some(staging(&answer).address))
    );
    // The client writes while the answer to ready is awaited.
    let mut client = Client::new(&lab.service);
    client.send(&ready(&session).bytes());
    assert_eq!(client.output(), b"", "nothing has come yet");
    assert_eq!(lab.object("key"), None);
    assert!(lab.fabric.write(staging(&answer), &content, COOKIE));
    client.run();
    let answer = client.answer("POST");
    answer.expect_final(content.len());
    let sum = answer.header("x-amz-checksum-crc64nvme").unwrap();
    assert_eq!(answer.header(names::CHECKSUM), Some(&*format!("CRC64NVME {sum}")));
    let stored = lab.call(&get(PLACE));
    assert_eq!(stored.expect(200).body, content);
    assert_eq!(stored.header("etag"), answer.header("etag"));
    assert_eq!((stored.header("content-type"), stored.header("x-amz-meta-color")), (Some("text/x-rust"), Some("blue")));
    assert_eq!((lab.metrics().rdma_writes(), lab.metrics().rdma_bytes_written()), (1, content.len() as u64));
    lab.at_rest();

    // Or before it asks: the buffer is there from prepare on.
    let answer = lab.call(&prepare("PUT", PLACE, &memory.token, 4));
    assert!(lab.fabric.write(staging(&answer), b"more", COOKIE));
    lab.call(&ready(answer.header(names::SESSION).unwrap())).expect_final(4);
    assert_eq!(lab.object("key").unwrap(), b"more");
    lab.at_rest();
}

#[test]
fn ranges_parts_and_versions_are_those_of_s3() {
    let lab = lab();
    let content = pattern(10_000);
    let memory = lab.memory(&[BLANK; 4096]);
    let token = memory.token;
    let session = |request: &Request| lab.prepared(request);
    let fetched = |n: usize| lab.regions.content(memory.rkey)[..n].to_vec();
    lab.call(&put(PLACE, content.clone())).expect(200);
    // A range, one beyond the end, and one behind it.
    for (offset, size, due) in [(1024, 512, 1024..1536), (9_990, 100, 9_990..10_000), (0, 7, 0..7)] {
        let request = prepare("GET", PLACE, &token, size).header(names::OFFSET, offset.to_string());
        let answer = lab.call(&ready(&session(&request)));
        let range = format!("bytes {}-{}/10000", due.start, due.end - 1);
        assert_eq!(answer.expect_final(due.len()).header("content-range"), Some(&*range));
        assert_eq!(fetched(due.len()), content[due]);
        let arrival = lab.fabric.arrival(token.qpn, Duration::ZERO).unwrap();
        assert_eq!(arrival.bytes.to_string(), answer.header(names::BYTES).unwrap());
    }
    lab.call(&prepare("GET", PLACE, &token, 1).header(names::OFFSET, "10000")).refused(416, "InvalidRange");
    // An object that is longer than what was prepared: as much as that, as with tokens.
    lab.call(&ready(&session(&prepare("GET", PLACE, &token, 4000)))).expect_final(4000);
    assert_eq!(fetched(4000), content[..4000]);
    // One that is shorter.
    lab.call(&put("/ernic/short", "abc")).expect(200);
    let short = prepare("GET", "/ernic/short", &token, 4096).header("x-amz-checksum-mode", "ENABLED");
    let answer = lab.call(&ready(&session(&short)));
    assert!(answer.expect_final(3).header(names::CHECKSUM).unwrap().starts_with("CRC64NVME "));
    assert_eq!(fetched(3), b"abc");
    lab.call(&put("/ernic/empty", "")).expect(200);
    lab.call(&ready(&session(&prepare("GET", "/ernic/empty", &token, 1)))).expect_final(0);

    // Parts.
    let upload = lab.call(&request("POST", "/ernic/parts?uploads").body("")).xml().text_of("UploadId");
    let mut document = "<CompleteMultipartUpload>".to_owned();
    for (number, piece) in (1..).zip([&content[..6000], &content[6000..]]) {
        let target = format!("/ernic/parts?partNumber={number}&uploadId={upload}");
        let answer = lab.call(&prepare("PUT", &target, &token, piece.len() as u64));
        assert!(lab.fabric.write(staging(&answer), piece, COOKIE));
        let answer = lab.call(&ready(answer.header(names::SESSION).unwrap()));
        let etag = answer.expect_final(piece.len()).header("etag").unwrap();
        document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    document += "</CompleteMultipartUpload>";
    lab.call(&request("POST", &format!("/ernic/parts?uploadId={upload}")).body(document)).expect(200);
    assert_eq!(lab.object("parts").unwrap(), content);
    // The second part, by its number.
    let answer = lab.call(&ready(&session(&prepare("GET", "/ernic/parts?partNumber=2", &token, 4000))));
    assert_eq!(answer.expect_final(4000).header("content-range"), Some("bytes 6000-9999/10000"));
    assert_eq!(fetched(4000), content[6000..]);

    // Versions.
    let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    lab.call(&put("/ernic?versioning", on)).expect(200);
    let answer = lab.call(&prepare("PUT", PLACE, &token, 2));
    assert!(lab.fabric.write(staging(&answer), b"v1", COOKIE));
    let answer = lab.call(&ready(answer.header(names::SESSION).unwrap()));
    let version = answer.expect_final(2).header("x-amz-version-id").unwrap().to_owned();
    assert_eq!(answer.header(names::VERSION_ID), Some(&*version));
    lab.call(&put(PLACE, "v2")).expect(200);
    lab.call(&ready(&session(&prepare("GET", &format!("{PLACE}?versionId={version}"), &token, 4096)))).expect_final(2);
    assert_eq!(fetched(2), b"v1");
    lab.at_rest();
}

#[test]
fn a_key_is_encoded_in_the_target() {
    let lab = lab();
    let memory = lab.memory(&[BLANK; 16]);
    let target = "/ernic/a%20b%2Bc%2F%C3%A9/d";
    let answer = lab.call(&prepare("PUT", target, &memory.token, 3));
    assert!(lab.fabric.write(staging(&answer), b"xyz", COOKIE));
    lab.call(&ready(answer.header(names::SESSION).unwrap())).expect_final(3);
    let keys = lab.call(&get("/ernic?list-type=2")).xml().texts("Contents", "Key");
    assert_eq!(keys, ["a b+c/é/d"]);
    lab.call(&ready(&lab.prepared(&prepare("GET", target, &memory.token, 16)))).expect_final(3);
}

#[test]
fn what_s3_refuses_is_refused_with_its_own_status() {
    let lab = lab();
    let memory = lab.memory(&[BLANK; 16]);
    let token = memory.token;
    let etag = lab.call(&put(PLACE, "before")).expect(200).header("etag").unwrap().to_owned();
    // A client that waits for bytes hears of it at once.
    lab.call(&prepare("GET", "/ernic/none", &token, 16)).refused(404, "NoSuchKey");
    lab.call(&prepare("GET", "/none/key", &token, 16)).refused(404, "NoSuchBucket");
    lab.call(&prepare("GET", PLACE, &token, 16).header("if-match", "\"x\"")).refused(412, "PreconditionFailed");
    let answer = lab.call(&prepare("GET", PLACE, &token, 16).header("if-none-match", &etag));
    assert_eq!((answer.status, answer.header("etag")), (304, Some(&*etag)));
    lab.at_rest();
    // One that writes, when it has written. What was there stays.
    let put_of = |request: Request, content: &[u8]| {
        let answer = lab.call(&request);
        assert!(lab.fabric.write(staging(&answer), content, COOKIE));
        lab.call(&ready(answer.header(names::SESSION).unwrap()))
    };
    put_of(prepare("PUT", "/none/key", &token, 3), b"abc").refused(404, "NoSuchBucket");
    put_of(prepare("PUT", PLACE, &token, 3).header("if-none-match", "*"), b"abc").refused(412, "PreconditionFailed");
    let sum = "x-amz-checksum-crc32";
    put_of(prepare("PUT", PLACE, &token, 3).header(sum, "AAAAAA=="), b"abc").refused(400, "BadDigest");
    put_of(prepare("PUT", "/ernic/key?partNumber=1&uploadId=none", &token, 3), b"abc").refused(404, "NoSuchUpload");
    put_of(prepare("PUT", PLACE, &token, 3).header("x-amz-server-side-encryption", "AES256"), b"abc")
        .refused(501, "NotImplemented");
    assert_eq!(lab.object("key").unwrap(), b"before");
    assert_eq!(lab.metrics().rdma_failures("checksum"), 1);
    // And what it may, it may.
    put_of(prepare("PUT", PLACE, &token, 3).header("if-match", &etag).header(sum, "NSRBwg=="), b"abc").expect_final(3);
    assert_eq!(lab.object("key").unwrap(), b"abc");
    // Deleted in between: a transfer that has begun ends with an answer and no bytes.
    let session = lab.prepared(&prepare("GET", PLACE, &token, 16));
    lab.call(&request("DELETE", PLACE)).expect(204);
    lab.call(&ready(&session)).refused(404, "NoSuchKey");
    assert_eq!(lab.fabric.arrival(token.qpn, Duration::ZERO), None);
    lab.at_rest();
}

#[test]
fn malformed_requests_are_refused_and_hold_nothing() {
    let lab = lab();
    lab.call(&put(PLACE, "content")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let good = || prepare("GET", PLACE, &memory.token, 16);
    for (name, values) in [
        (names::PROTOCOL, &[None][..]),
        (
            names::TOKEN,
            &[
                None,
                Some(""),
                Some("00"),
                Some("000073967e5ff000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0f0f0fdf"),
            ],
        ),
        (
            names::PSN,
            &[
                None,
                Some(""),
                Some("000000"),
                Some("1"),
                Some("00ff1"),
                Some("000ff10"),
                Some("zzzzzz"),
                Some("0x0001"),
                Some("+00001"),
            ],
        ),
        (names::COOKIE, &[None, Some(""), Some("c0ffee"), Some("000c0ffee"), Some("-0c0ffee"), Some("00c0ffeg")]),
        (names::OP, &[None, Some(""), Some("get"), Some("POST"), Some("HEAD"), Some("DELETE"), Some("GET,PUT")]),
        (
            names::SIZE,
            &[
                None,
                Some(""),
                Some("0"),
                Some("-1"),
                Some("+1"),
                Some("0x10"),
                Some("1.0"),
                Some("1e3"),
                Some("99999999999999999999"),
                Some("999999999999999999999"),
            ],
        ),
        (names::OFFSET, &[Some(""), Some("-1"), Some("x"), Some("18446744073709551615"), Some("99999999999999999999")]),
        (
            names::TARGET,
            &[
                None,
                Some(""),
                Some("ernic/key"),
                Some("/"),
                Some("/ernic"),
                Some("/ernic/"),
                Some("http://host/ernic/key"),
                Some("//host/key x"),
                Some("/ernic/%FF"),
                Some("/ernic/key?acl"),
                Some("/ernic/key?uploads"),
                Some("/ernic/key?uploadId=1"),
                Some("/ernic/key?X-Amz-Rdma-Token=1"),
                Some("/ernic/key?torrent"),
                Some("*"),
            ],
        ),
    ] {
        for value in values {
            let answer = lab.call(&with(good(), name, *value));
            answer.refused(400, "InvalidArgument");
            assert!(answer.text().contains(name), "{}", answer.text());
        }
        let twice = good().header(name, "1").header(name, "1");
        lab.call(&twice).refused(400, "InvalidArgument");
    }
    // A PUT has no offset, and no target that is none of its.
    lab.call(&with(good(), names::OP, "PUT").header(names::OFFSET, "1")).refused(400, "InvalidArgument");
    lab.call(&with(with(good(), names::OP, "PUT"), names::TARGET, "/ernic/key?partNumber=1"))
        .refused(400, "InvalidArgument");
    // Tokens that are none of a queue pair that could be connected.
    for token in [
        Token { qpn: 0, ..memory.token },
        Token { qpn: 1 << 24, ..memory.token },
        Token { gid: [0; 16], ..memory.token },
    ] {
        lab.call(&prepare("GET", PLACE, &token, 16)).refused(400, "InvalidArgument");
    }
    lab.call(&prepare("GET", PLACE, &Token { transport: Transport::Dc, ..memory.token }, 16)).unsupported();
    lab.call(&with(good(), names::TOKEN, Some(&*"0".repeat(88).leak()))).unsupported();
    lab.call(&with(good(), names::PROTOCOL, "hipobj-rc-v3")).unsupported();
    // Too much: of the protocol, of the service, of a buffer.
    lab.call(&with(good(), names::SIZE, "2147483648")).refused(413, "EntityTooLarge");
    lab.call(&with(good(), names::SIZE, "2147483647")).refused(413, "EntityTooLarge");
    lab.fabric.limit(16, 15);
    let answer = lab.call(&good());
    assert!(answer.refused(413, "EntityTooLarge").text().contains("15 bytes"), "{}", answer.text());
    assert_eq!(lab.metrics().rdma_failures("too_large"), 2);
    lab.fabric.limit(16, 1 << 20);

    // Ready and cancel.
    let session = lab.prepared(&good());
    for (name, values) in [
        (names::PROTOCOL, &[None][..]),
        (names::SESSION, &[None, Some(""), Some("0123"), Some("zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz")]),
        (names::COOKIE, &[Some(""), Some("c0ffee"), Some("00c0ffeg")]),
    ] {
        for value in values {
            lab.call(&with(ready(&session), name, *value)).refused(400, "InvalidArgument");
            lab.call(&with(cancel(&session), name, *value)).refused(400, "InvalidArgument");
        }
    }
    lab.call(&with(ready(&session), names::COOKIE, None)).refused(400, "InvalidArgument");
    for (name, value) in [
        (names::QPN, "123456789"),
        (names::MR_ADDR, "g"),
        (names::MR_ADDR, "1"),
        (names::MR_RKEY, "1"),
        (names::MR_RKEY, ""),
    ] {
        lab.call(&ready(&session).header(name, value)).refused(400, "InvalidArgument");
    }
    for path in [names::READY, names::CANCEL] {
        lab.call(&with(of(path, &session), names::PROTOCOL, "other")).unsupported();
        let answer = lab.call(&request("GET", path));
        assert_eq!(answer.refused(405, "MethodNotAllowed").header("allow"), Some("POST"));
    }
    // None of that has ended the session.
    assert_eq!(lab.fabric.sessions().len(), 1);
    lab.call(&ready(&session)).expect_final(7);
    lab.at_rest();
}

#[test]
fn memory_that_is_not_the_clients_gets_nothing() {
    let lab = lab();
    lab.call(&put(PLACE, "content")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let bare = Token { rkey: 0, address: 0, length: 0, ..memory.token };
    let session = |token: &Token| lab.prepared(&prepare("GET", PLACE, token, 16));
    lab.call(&ready(&session(&bare))).refused(400, "InvalidArgument");
    lab.call(&ready(&session(&bare)).header(names::QPN, "7")).refused(400, "InvalidArgument");
    // Shorter than what was prepared.
    lab.call(&ready(&session(&Token { length: 15, ..memory.token }))).refused(400, "InvalidArgument");
    let to = |address: u64, rkey: u32| {
        ready(&session(&bare))
            .header(names::MR_ADDR, format!("{address:x}"))
            .header(names::MR_RKEY, format!("{rkey:x}"))
    };
    let RcTarget { address, rkey } = memory.to();
    for (address, rkey) in [(address, rkey ^ 0x5500), (address - 1, rkey), (address + 16, rkey), (u64::MAX, rkey)] {
        let answer = lab.call(&to(address, rkey));
        assert_eq!(answer.refused(503, "RDMATransferError").header("retry-after"), Some("1"));
    }
    assert_eq!(lab.regions.content(memory.rkey), [BLANK; 16]);
    assert_eq!(lab.metrics().rdma_failures("transport"), 4);
    assert_eq!(lab.metrics().rdma_reads(), 0);
    lab.at_rest();
}

#[test]
fn what_breaks_is_said_and_changes_nothing() {
    let lab = lab();
    lab.call(&put(PLACE, "before")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let get_of = || prepare("GET", PLACE, &memory.token, 16);
    let broken = || RemoteError::Transport("RETRY_EXC_ERR".into());
    // While it is prepared.
    lab.fabric.fail(Step::Prepare, broken());
    assert_eq!(lab.call(&get_of()).refused(503, "RDMATransferError").header("retry-after"), Some("1"));
    lab.fabric.fail(Step::Prepare, RemoteError::Unsupported("this GID".into()));
    lab.call(&get_of()).unsupported();
    lab.fabric.fail(Step::Prepare, RemoteError::Stale(7));
    lab.call(&get_of()).refused(500, "InternalError");
    lab.fabric.limit(0, 1 << 20);
    assert_eq!(lab.call(&get_of()).refused(503, "SlowDown").header("retry-after"), Some("1"));
    assert_eq!(lab.metrics().rdma_failures("exhausted"), 1);
    lab.fabric.limit(16, 1 << 20);
    lab.at_rest();
    // While it is sent.
    lab.fabric.fail(Step::Send, broken());
    lab.call(&ready(&lab.prepared(&get_of()))).refused(503, "RDMATransferError");
    // While it is awaited.
    let put_of = || prepare("PUT", PLACE, &memory.token, 16);
    lab.fabric.fail(Step::Receive, broken());
    lab.call(&ready(&lab.prepared(&put_of()))).refused(503, "RDMATransferError");
    // When it came, and was not what was due.
    for (bytes, cookie) in [
        (&b"fifteen bytes.."[..], COOKIE),
        (b"sixteen bytes...", COOKIE ^ 1),
        (b"", COOKIE),
        (b"sixteen bytes...", COOKIE.swap_bytes()),
    ] {
        let answer = lab.call(&put_of());
        assert!(lab.fabric.write(staging(&answer), bytes, cookie));
        lab.call(&ready(answer.header(names::SESSION).unwrap())).refused(503, "RDMATransferError");
    }
    assert_eq!(lab.object("key").unwrap(), b"before");
    assert_eq!(lab.regions.content(memory.rkey), [BLANK; 16]);
    assert_eq!((lab.metrics().rdma_reads(), lab.metrics().rdma_writes()), (0, 0));
    lab.at_rest();
}

#[test]
fn faults_on_demand_are_made_here_too() {
    let lab = lab_with(S3Config::default(), |builder, fabric, rc| {
        let mut rdma = RdmaConfig::new([192, 168, 200, 1].into());
        let mut impairment = Impairment::new(Arc::new(Timers::new()));
        impairment.faults = "decline@1,fail@2,short@3,fail@4".parse().unwrap();
        rdma.impairment = Some(impairment);
        let fabric = Arc::new(fabric.clone());
        builder.with_remote(Arc::clone(&fabric) as _, rdma).with_rc(fabric, rc)
    });
    lab.call(&put(PLACE, "content")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let fetch = || lab.call(&ready(&lab.prepared(&prepare("GET", PLACE, &memory.token, 16))));
    fetch().refused(501, "NotImplemented");
    fetch().refused(503, "RDMATransferError");
    fetch().expect_final(6);
    assert_eq!(&lab.regions.content(memory.rkey)[..7], b"conten\xee");
    let answer = lab.call(&prepare("PUT", PLACE, &memory.token, 2));
    assert!(lab.fabric.write(staging(&answer), b"no", COOKIE));
    lab.call(&ready(answer.header(names::SESSION).unwrap())).refused(503, "RDMATransferError");
    // And tokens are served as ever.
    let answer = lab.call(&get(PLACE).header(names::TOKEN, memory.token.to_string()));
    assert_eq!(answer.expect(200).header(names::BYTES), Some("7"));
    lab.at_rest();
}

#[test]
fn a_session_is_run_once_whoever_asks_first() {
    let lab = lab();
    let memory = lab.memory(&[BLANK; 16]);
    let answer = lab.call(&prepare("PUT", PLACE, &memory.token, 5));
    let session = answer.header(names::SESSION).unwrap();
    let mut first = Client::new(&lab.service);
    first.send(&ready(session).bytes());
    lab.call(&ready(session)).refused(409, "InvalidRDMASession");
    // Digits may be of either case.
    lab.call(&ready(&session.to_uppercase())).refused(409, "InvalidRDMASession");
    assert!(lab.fabric.write(staging(&answer), b"first", COOKIE));
    first.run();
    first.answer("POST").expect_final(5);
    lab.call(&ready(session)).refused(409, "InvalidRDMASession");
    lab.call(&ready(&"0".repeat(32))).refused(409, "InvalidRDMASession");
    lab.at_rest();
}

#[test]
fn a_session_can_be_cancelled_at_any_time() {
    let lab = lab();
    lab.call(&put(PLACE, "before")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let done = |answer: &Answer| {
        assert_eq!((answer.status, answer.header(names::PROTOCOL)), (204, Some("hipobj-rc-v2")));
        lab.at_rest();
    };
    // None of that name.
    done(&lab.call(&cancel(&"0".repeat(32))));
    // Prepared; with another cookie not, and without one too.
    for cookie in [Some("00c0ffee"), None] {
        let session = lab.prepared(&prepare("PUT", PLACE, &memory.token, 3));
        lab.call(&with(cancel(&session), names::COOKIE, "00c0ffef")).refused(403, "AccessDenied");
        assert_eq!(lab.fabric.sessions().len(), 1);
        done(&lab.call(&with(cancel(&session), names::COOKIE, cookie)));
        lab.call(&ready(&session)).refused(409, "InvalidRDMASession");
        done(&lab.call(&cancel(&session)));
    }
    // Under way: the client's writes come to nothing.
    let answer = lab.call(&prepare("PUT", PLACE, &memory.token, 3));
    let session = answer.header(names::SESSION).unwrap();
    let mut running = Client::new(&lab.service);
    running.send(&ready(session).bytes());
    assert_eq!(lab.call(&cancel(session)).status, 204);
    running.run();
    running.answer("POST").refused(409, "InvalidRDMASession");
    assert!(!lab.fabric.write(staging(&answer), b"new", COOKIE));
    lab.at_rest();
    assert_eq!(lab.metrics().rdma_failures("cancelled"), 3);
    // Over.
    let session = lab.prepared(&prepare("GET", PLACE, &memory.token, 16));
    lab.call(&ready(&session)).expect_final(6);
    done(&lab.call(&cancel(&session)));
    assert_eq!(lab.object("key").unwrap(), b"before");
}

#[test]
fn a_client_that_goes_away_leaves_nothing_behind() {
    let lab = lab();
    let memory = lab.memory(&[BLANK; 16]);
    let answer = lab.call(&prepare("PUT", PLACE, &memory.token, 3));
    let mut client = Client::new(&lab.service);
    client.send(&ready(answer.header(names::SESSION).unwrap()).bytes());
    assert_eq!(lab.fabric.sessions().len(), 1);
    drop(client);
    lab.at_rest();
    lab.call(&ready(answer.header(names::SESSION).unwrap())).refused(409, "InvalidRDMASession");
}

#[test]
fn sessions_that_are_not_made_ready_are_reaped() {
    let lab = lab();
    lab.call(&put(PLACE, "content")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let second = Duration::from_secs(1);
    let early = lab.prepared(&prepare("GET", PLACE, &memory.token, 16));
    lab.pass(6 * second);
    let late = lab.prepared(&prepare("GET", PLACE, &memory.token, 16));
    assert_eq!(lab.service.reap(), Some(4 * second));
    lab.pass(4 * second - Duration::from_millis(1));
    assert_eq!((lab.service.reap(), lab.fabric.sessions().len()), (Some(Duration::from_millis(1)), 2));
    lab.pass(Duration::from_millis(1));
    lab.call(&ready(&early)).refused(409, "InvalidRDMASession");
    assert_eq!((lab.service.reap(), lab.fabric.sessions().len()), (Some(6 * second), 1));
    lab.pass(6 * second - Duration::from_millis(1));
    lab.call(&ready(&late)).expect_final(7);
    assert_eq!(lab.metrics().rdma_failures("expired"), 1);
    lab.at_rest();
    // Any request of the protocol does it. One that runs is not waited for by this clock.
    lab.prepared(&prepare("GET", PLACE, &memory.token, 16));
    let answer = lab.call(&prepare("PUT", PLACE, &memory.token, 3));
    let mut running = Client::new(&lab.service);
    running.send(&ready(answer.header(names::SESSION).unwrap()).bytes());
    lab.pass(100 * second);
    lab.call(&cancel(&"0".repeat(32))).expect(204);
    assert_eq!(lab.fabric.sessions().len(), 1);
    assert!(lab.fabric.write(staging(&answer), b"new", COOKIE));
    running.run();
    running.answer("POST").expect_final(3);
    lab.at_rest();
}

#[test]
fn sessions_are_limited_of_one_client_and_of_all() {
    let lab = lab();
    lab.call(&put(PLACE, "content")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let other = Token { gid: [7; 16], ..memory.token };
    let of = |token: &Token| prepare("GET", PLACE, token, 16);
    let mut sessions: Vec<_> = (0..3).map(|_| lab.prepared(&of(&memory.token))).collect();
    assert_eq!(lab.call(&of(&memory.token)).refused(503, "SlowDown").header("retry-after"), Some("1"));
    sessions.push(lab.prepared(&of(&other)));
    lab.call(&of(&other)).refused(503, "SlowDown");
    assert_eq!((lab.metrics().rdma_failures("sessions"), lab.metrics().rdma_sessions()), (2, 4));
    // One that ends makes room, however it does.
    lab.call(&ready(&sessions[0])).expect_final(7);
    sessions[0] = lab.prepared(&of(&memory.token));
    lab.call(&cancel(&sessions[1])).expect(204);
    sessions[1] = lab.prepared(&of(&other));
    lab.pass(Duration::from_secs(10));
    sessions.push(lab.prepared(&of(&memory.token)));
    assert_eq!(lab.fabric.sessions().len(), 1);
    for session in &sessions {
        lab.call(&cancel(session)).expect(204);
    }
    lab.at_rest();
}

/// Threads that prepare, make ready and cancel sessions of each other's: each is run once at most, and none is left.
#[test]
fn threads_that_race_run_each_session_once() {
    const ROUNDS: u64 = 400;
    let lab = lab_with(S3Config::default(), |builder, fabric, rc| {
        let rc = RcConfig { sessions: 12, per_client: 12, ..rc };
        builder.with_rc(Arc::new(fabric.clone()), rc)
    });
    lab.call(&put(PLACE, "content")).expect(200);
    let memory = lab.memory(&[BLANK; 16]);
    let (sessions, runs) = (Mutex::new(Vec::<String>::new()), Mutex::new(BTreeMap::<String, u32>::new()));
    thread::scope(|scope| {
        for seed in 0..4_u64 {
            let (service, sessions, runs, token, fabric) = (&lab.service, &sessions, &runs, memory.token, &lab.fabric);
            scope.spawn(move || {
                let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed;
                let mut random = move |n: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % n
                };
                for _ in 0..ROUNDS {
                    let known = sessions.lock().unwrap();
                    let session = known.get(random(known.len().max(1) as u64) as usize).cloned();
                    drop(known);
                    let answer = |request: &Request| Client::new(service).call(request);
                    match (random(3), session) {
                        (0, _) | (_, None) => {
                            let put = random(2) == 0;
                            let request = prepare(if put { "PUT" } else { "GET" }, PLACE, &token, 7);
                            let answer = answer(&request);
                            assert!(matches!(answer.status, 200 | 503), "{answer:?}");
                            if answer.status == 200 {
                                if put {
                                    fabric.write(staging(&answer), b"content", COOKIE);
                                }
                                let session = answer.header(names::SESSION).unwrap().to_owned();
                                let mut known = sessions.lock().unwrap();
                                known.push(session);
                                if known.len() > 24 {
                                    known.remove(0);
                                }
                            }
                        }
                        (1, Some(session)) => {
                            let answer = answer(&ready(&session));
                            assert!(matches!(answer.status, 200 | 409), "{answer:?}");
                            if answer.status == 200 {
                                *runs.lock().unwrap().entry(session).or_default() += 1;
                            }
                        }
                        (_, Some(session)) => assert_eq!(answer(&cancel(&session)).status, 204),
                    }
                }
            });
        }
    });
    let runs = runs.into_inner().unwrap();
    assert!(runs.len() > 50, "{} sessions were run", runs.len());
    assert!(runs.values().all(|times| *times == 1), "{runs:?}");
    let metrics = lab.metrics();
    assert_eq!(metrics.rdma_reads() + metrics.rdma_writes(), runs.len() as u64);
    lab.pass(Duration::from_secs(10));
    assert_eq!(lab.service.reap(), None);
    lab.at_rest();
    assert_eq!(lab.object("key").unwrap(), b"content");
}

// ---------------------------------------------------------------- who asks

fn signer(access: &str) -> Signer {
    Signer { access: access.into(), secret: format!("{access}+secret"), region: "us-east-1".into() }
}

/// Signs all headers of a request but those in `not`.
fn sign(mut request: Request, access: &str, not: &[&str]) -> Request {
    let host = ("host".to_owned(), b"s3.test".to_vec());
    request.headers.push(host);
    request = request.header("x-amz-date", "20130524T000000Z").header("x-amz-content-sha256", UNSIGNED_PAYLOAD);
    let headers: Vec<_> = request
        .headers
        .iter()
        .filter(|(name, _)| !not.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), String::from_utf8(value.clone()).unwrap()))
        .collect();
    let signer = signer(access);
    let date = "20130524T000000Z";
    let authorization =
        sigv4::authorization(&signer, date, &request.method, &request.target, "", &headers, UNSIGNED_PAYLOAD);
    request.header("authorization", authorization)
}

fn guarded() -> Lab {
    lab_with(S3Config::default(), |builder, fabric, rc| {
        let mut credentials = Credentials::new();
        for access in ["alice", "bob"] {
            credentials.add(access, &signer(access).secret).unwrap();
        }
        builder
            .with_rc(Arc::new(fabric.clone()), rc)
            .with_credentials(credentials)
            .with_clock(Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(MOMENT)))
    })
}

#[test]
fn a_session_is_its_owners() {
    let lab = guarded();
    let memory = lab.memory(&[BLANK; 16]);
    let prepare_of = |access: &str| sign(prepare("PUT", PLACE, &memory.token, 5), access, &[]);
    // Nobody, somebody unknown, and somebody who has not signed it all. They are not told that the protocol is there.
    let anonymous = prepare("PUT", PLACE, &memory.token, 5);
    let signed = prepare_of("alice");
    let mallory = sign(anonymous.clone(), "mallory", &[]);
    let tampered = with(signed.clone(), names::TARGET, "/ernic/other");
    let half = sign(anonymous.clone(), "alice", &[names::TARGET]);
    for (request, code) in [
        (&anonymous, "AccessDenied"),
        (&mallory, "InvalidAccessKeyId"),
        (&tampered, "SignatureDoesNotMatch"),
        (&half, "AccessDenied"),
    ] {
        let answer = lab.call(request);
        answer.expect(403);
        assert_eq!(answer.xml().text_of("Code"), code);
        assert_eq!((answer.header(names::PROTOCOL), answer.header(names::PROTOCOL_STATUS)), (None, None));
    }
    lab.at_rest();
    let answer = lab.call(&signed);
    let session = answer.expect(200).header(names::SESSION).unwrap().to_owned();
    assert!(lab.fabric.write(staging(&answer), b"hello", COOKIE));
    for path in [names::READY, names::CANCEL] {
        lab.call(&of(path, &session)).expect(403);
        lab.call(&sign(of(path, &session), "bob", &[])).refused(403, "AccessDenied");
        lab.call(&sign(with(of(path, &session), names::COOKIE, "00000000"), "alice", &[])).refused(403, "AccessDenied");
    }
    assert_eq!(lab.fabric.sessions().len(), 1);
    lab.call(&sign(ready(&session), "alice", &[])).expect_final(5);
    lab.at_rest();
    // Limits are of keys, not of addresses.
    for _ in 0..3 {
        lab.prepared(&prepare_of("bob"));
    }
    lab.call(&prepare_of("bob")).refused(503, "SlowDown");
    lab.prepared(&prepare_of("alice"));
}

#[test]
fn off_is_off_and_on_is_only_what_it_is() {
    let off = plain();
    let token =
        Token { transport: Transport::Rc, qpn: 1, gid: [1; 16], rkey: 1, address: 1, length: 1, port: 1, lid: 0 };
    off.call(&prepare("GET", PLACE, &token, 1)).unsupported();
    let lab = lab();
    for path in ["/.hipobj-rc", "/.hipobj-rc/", "/.hipobj-rc/prepare/", "/.hipobj-rc/status"] {
        lab.call(&post(path)).unsupported();
    }
    // Tokens have their own switch.
    let memory = lab.memory(&[BLANK; 16]);
    let answer = lab.call(&get(PLACE).header(names::TOKEN, memory.token.to_string()));
    assert_eq!(answer.expect(501).header(names::REPLY), Some("501"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Whatever comes in the headers is answered, with a status of the protocol, and holds nothing longer than a session may.
    #[test]
    fn hostile_headers_are_answered(
        path in prop::sample::select(vec![names::PREPARE, names::READY, names::CANCEL]),
        values in prop::collection::vec((
            prop::sample::select(vec![
                names::PROTOCOL, names::TOKEN, names::PSN, names::COOKIE, names::OP, names::TARGET, names::SIZE, names::OFFSET,
                names::SESSION, names::QPN, names::MR_ADDR, names::MR_RKEY, "range", "content-length", "if-match", "x-amz-copy-source",
                "x-amz-meta-a", "content-md5", "expect", "x-amz-checksum-crc32", "x-amz-trailer", "x-amz-decoded-content-length",
            ]),
            prop_oneof!["[0-9a-f]{0,40}", "[ -~]{0,60}", "/ernic/[ -~]{0,20}", "[0-9]{1,20}", Just("bytes=0-1".to_owned())],
        ), 0..4),
        replace in any::<bool>(),
    ) {
        let lab = lab();
        lab.call(&put(PLACE, "content")).expect(200);
        let memory = lab.memory(&[BLANK; 16]);
        let mut request = match path {
            names::PREPARE => prepare("GET", PLACE, &memory.token, 16),
            _ => {
                let session = lab.prepared(&prepare("GET", PLACE, &memory.token, 16));
                of(path, &session)
            }
        };
        for (name, value) in values {
            if name == "content-length" || name == "expect" {
                continue;
            }
            if replace {
                request.headers.retain(|(have, _)| have != name);
            }
            request = request.header(name, value.trim());
        }
        let answer = lab.call(&request);
        prop_assert!(
            matches!(answer.status, 200 | 204 | 304 | 400 | 403 | 404 | 409 | 412 | 413 | 416 | 501 | 503),
            "{} {}", answer.status, String::from_utf8_lossy(&answer.body)
        );
        prop_assert!(lab.fabric.sessions().len() <= 1);
        lab.pass(Duration::from_secs(10));
        prop_assert_eq!(lab.service.reap(), None);
        lab.at_rest();
        prop_assert_eq!(lab.object("key").unwrap(), b"content");
        let stored = lab.store.usage();
        prop_assert_eq!((stored.objects, stored.bytes), (1, 7));
    }
}
