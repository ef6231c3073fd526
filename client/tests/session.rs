//! Sessions, as programs use them, against the real service: bytes, carriers and the server's counters.
#![allow(clippy::cast_possible_truncation)]

#[path = "common/buffers.rs"]
mod buffers;
mod common;
#[allow(dead_code)]
#[path = "../examples/sdk.rs"]
mod example;

use std::sync::{Arc, Mutex};

use buffers::{bytes, content, fill};
use common::{BUCKET, MIB, Server, Setup, Table, Tamper, change};
use ernic_client::{
    Carrier, ClientError, Session, Violation,
    memory::{Layout, MemoryError, PAGE, Port, Region, Registrar},
    s3::Request,
    sigv4::Credentials,
    transfer::{Family, Signal},
};
use rdma_token::testing::Regions;

fn over(server: &Server, device: &Arc<dyn Registrar>, family: Family, size: usize) -> Session {
    let device = Some(Arc::clone(device));
    Session::new(server.address.into(), None, device, size as u64).unwrap().with_tokens(family)
}

fn plain(server: &Server, size: usize) -> Session {
    Session::new(server.address.into(), None, None, size as u64).unwrap()
}

/// A server with RDMA and a device whose memory it reaches.
fn rdma() -> (Server, Arc<dyn Registrar>, Regions) {
    let regions = Regions::new();
    (Server::over(&regions), Arc::new(Table::new(&regions)), regions)
}

fn faulty(faults: &'static str, tamper: Option<Tamper>) -> (Server, Arc<dyn Registrar>) {
    let regions = Regions::new();
    let memory = Some(Arc::new(regions.clone()) as _);
    (Server::start(Setup { memory, faults: Some(faults), tamper, ..Setup::default() }), Arc::new(Table::new(&regions)))
}

/// Operations with a body: reads, then writes.
fn bodies(server: &Server) -> [u64; 2] {
    let metrics = server.service.metrics();
    [metrics.body_reads(), metrics.body_writes()]
}

#[test]
fn objects_go_by_rdma_and_come_back_the_same() {
    for family in [Family::A, Family::B, Family::C] {
        let (server, device, regions) = rdma();
        let mut session = over(&server, &device, family, MIB);
        assert!(session.rdma_available());
        let mut buffer = session.buffer().unwrap();
        for (seed, length) in [(1, 1), (2, 4097), (3, MIB - 1), (4, MIB)] {
            let due = content(length, seed);
            buffer.write(0, &due);
            let sent = session.upload(BUCKET, "key", &buffer, length as u64).unwrap();
            assert_eq!((sent.bytes, sent.carrier, sent.fell_back), (length as u64, Carrier::Rdma, None));
            fill(&mut buffer, 0xd7);
            let came = session.download(BUCKET, "key", &mut buffer).unwrap();
            assert_eq!((came.bytes, came.carrier, &came.etag), (length as u64, Carrier::Rdma, &sent.etag));
            assert_eq!(bytes(&buffer, length), due);
            // Not a byte behind the object.
            assert!(bytes(&buffer, MIB)[length..].iter().all(|byte| *byte == 0xd7));
        }
        let all = (1 + 4097 + 2 * MIB - 1) as u64;
        assert_eq!((server.counts(), bodies(&server)), ([4, all, 4, all], [0, 0]));
        assert_eq!((regions.moved().read, regions.moved().written), (all, all));
        assert_eq!(session.client().connections(), 1);
        session.close();
    }
}

#[test]
fn without_a_device_everything_goes_by_http() {
    let (server, ..) = rdma();
    let mut session = plain(&server, MIB);
    assert!(!session.rdma_available());
    let mut buffer = session.buffer().unwrap();
    let due = content(100_001, 1);
    buffer.write(0, &due);
    let sent = session.upload(BUCKET, "key", &buffer, 100_001).unwrap();
    assert_eq!((sent.carrier, sent.fell_back), (Carrier::Http, None));
    fill(&mut buffer, 0xd7);
    let came = session.download(BUCKET, "key", &mut buffer).unwrap();
    assert_eq!((came.bytes, came.carrier), (100_001, Carrier::Http));
    assert_eq!(bytes(&buffer, 100_002), [&due[..], &[0xd7]].concat());
    let part = session.download_range(BUCKET, "key", 1000, 5, &mut buffer).unwrap();
    assert_eq!((part.bytes, part.carrier), (5, Carrier::Http));
    assert_eq!(bytes(&buffer, 6), [&due[1000..1005], &due[5..6]].concat());
    assert_eq!((server.counts(), bodies(&server)), ([0; 4], [2, 1]));
}

#[test]
fn ranges_come_to_the_beginning_of_the_buffer() {
    for family in [Family::A, Family::B, Family::C] {
        let (server, device, _) = rdma();
        let mut session = over(&server, &device, family, 8192);
        let mut buffer = session.buffer().unwrap();
        let due = content(8192, 7);
        buffer.write(0, &due);
        session.upload(BUCKET, "key", &buffer, 8192).unwrap();
        for (offset, length) in [(0, 1), (1024, 512), (8191, 1), (0, 8192)] {
            fill(&mut buffer, 0xd7);
            let part = session.download_range(BUCKET, "key", offset, length, &mut buffer).unwrap();
            assert_eq!((part.bytes, part.carrier), (length, Carrier::Rdma));
            let length = length as usize;
            assert_eq!(bytes(&buffer, length), due[offset as usize..][..length]);
            assert!(bytes(&buffer, 8192)[length..].iter().all(|byte| *byte == 0xd7));
        }
        assert_eq!((server.counts()[0], server.counts()[1], bodies(&server)), (4, 1 + 512 + 1 + 8192, [0, 0]));
        // Not all of it is there.
        let error = session.download_range(BUCKET, "key", 8190, 4, &mut buffer).unwrap_err();
        let ClientError::Violation(violation) = &error else { panic!("{error}") };
        assert!(matches!(violation, Violation::ContentRange { .. }), "{violation}");
        for (offset, length) in [(0, 0), (u64::MAX, 2)] {
            let error = session.download_range(BUCKET, "key", offset, length, &mut buffer).unwrap_err();
            assert!(matches!(error, ClientError::BadRange { .. }), "{error}");
        }
    }
}

#[test]
fn parts_become_an_object() {
    let (server, device, _) = rdma();
    let mut session = over(&server, &device, Family::A, 5 * MIB);
    let mut buffer = session.buffer().unwrap();
    let due = content(5 * MIB + 1234, 3);
    let mut upload = session.create_upload(BUCKET, "key").unwrap();
    assert!(!upload.id().is_empty());
    // The second one first.
    for (number, part) in [(2, &due[5 * MIB..]), (1, &due[..5 * MIB])] {
        buffer.write(0, part);
        let sent = session.upload_part(&mut upload, number, &buffer, part.len() as u64).unwrap();
        assert_eq!((sent.bytes, sent.carrier), (part.len() as u64, Carrier::Rdma));
    }
    assert_eq!(upload.parts().map(|(number, _)| number).collect::<Vec<_>>(), [1, 2]);
    for number in [0, 10_001] {
        let error = session.upload_part(&mut upload, number, &buffer, 1).unwrap_err();
        assert!(matches!(error, ClientError::BadPart(bad) if bad == number), "{error}");
    }
    let etag = session.complete_upload(&upload).unwrap();
    assert!(etag.contains("-2"), "{etag}");
    let mut got = Vec::new();
    let mut sink = |piece: &[u8]| {
        got.extend_from_slice(piece);
        Ok(())
    };
    session.client().call(&Request::new("GET", BUCKET, "key"), Some(&mut sink)).unwrap();
    assert!(got == due, "the object is its parts");
    // It is longer than the buffer, and RDMA alone does not tell.
    match session.download(BUCKET, "key", &mut buffer).unwrap_err() {
        ClientError::TooLong { object, size } => {
            assert_eq!((object, size), (Some(due.len() as u64), 5 * MIB as u64));
        }
        other => panic!("{other}"),
    }
    let mut http = plain(&server, MIB);
    let error = http.download(BUCKET, "key", &mut http.buffer().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the object is longer than the buffer of 1048576 bytes");

    let upload = session.create_upload(BUCKET, "other").unwrap();
    session.abort_upload(&upload).unwrap();
    assert_eq!(session.client().uploads(BUCKET).unwrap(), []);
}

#[test]
fn buffers_are_this_sessions_or_refused() {
    let (server, device, regions) = rdma();
    let mut session = over(&server, &device, Family::A, 8192);
    let buffer = session.buffer().unwrap();
    assert_eq!(buffer.size(), 8192);
    let other = over(&server, &device, Family::A, 4096).buffer().unwrap();
    let text = |error: ClientError| error.to_string();
    assert_eq!(
        text(session.upload(BUCKET, "key", &other, 1).unwrap_err()),
        "a buffer of 4096 bytes in a session of 8192 bytes: take one from this session"
    );
    let another: Arc<dyn Registrar> = Arc::new(Table::new(&Regions::new()));
    let foreign = over(&server, &another, Family::A, 8192).buffer().unwrap();
    let bare = plain(&server, 8192).buffer().unwrap();
    for mut buffer in [foreign, bare] {
        let error = session.download(BUCKET, "key", &mut buffer).unwrap_err();
        assert!(matches!(error, ClientError::OtherDevice), "{error}");
    }
    let error = text(session.upload(BUCKET, "key", &buffer, 8193).unwrap_err());
    assert_eq!(error, "8193 bytes of a buffer of 8192 bytes");
    assert_eq!((session.client().connections(), server.counts(), regions.moved().opened), (0, [0; 4], 0));
}

/// A device whose memory does not start with a page, and that counts what it registers.
struct Odd {
    table: Table,
    offset: usize,
    registered: Mutex<u32>,
}

impl Registrar for Odd {
    fn port(&self) -> Port {
        self.table.port()
    }

    fn register(&self, layout: Layout) -> Result<Box<dyn Region>, MemoryError> {
        *self.registered.lock().unwrap() += 1;
        assert_eq!(layout.offset, 0);
        self.table.register(Layout { offset: self.offset, ..layout })
    }
}

#[test]
fn memory_starts_with_a_page_and_is_registered_once() {
    let (server, _, regions) = rdma();
    let odd = |offset| Arc::new(Odd { table: Table::new(&regions), offset, registered: Mutex::new(0) });
    let device: Arc<dyn Registrar> = odd(8);
    let error = over(&server, &device, Family::A, 4096).buffer().unwrap_err();
    assert!(matches!(error, MemoryError::Unaligned(address) if address % PAGE as u64 == 8), "{error}");
    let counted = odd(0);
    let device: Arc<dyn Registrar> = counted.clone();
    let mut session = over(&server, &device, Family::A, 4096);
    let mut buffer = session.buffer().unwrap();
    for _ in 0..5 {
        session.upload(BUCKET, "key", &buffer, 4096).unwrap();
        session.download(BUCKET, "key", &mut buffer).unwrap();
    }
    assert_eq!((*counted.registered.lock().unwrap(), server.counts()[0]), (1, 5));
    // The device lives as long as the buffer.
    session.close();
    drop(device);
    assert_eq!(Arc::strong_count(&counted), 2);
    drop(buffer);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn the_three_signals_fall_back_and_the_result_says_so() {
    // The third one is an error without a reply.
    let silent: Tamper = Arc::new(|head| match head.starts_with("HTTP/1.1 501") {
        true => change(head, "x-amz-rdma-reply", |_| None),
        false => head.to_owned(),
    });
    for (faults, tamper, due, status) in [
        ("decline@1,decline@3", None, Signal::Declined, 501),
        ("fail@1,fail@3", None, Signal::Failed, 503),
        ("decline@1,decline@3", Some(silent), Signal::NoReply, 501),
    ] {
        let (server, device) = faulty(faults, tamper);
        let mut session = over(&server, &device, Family::A, 10_000);
        let mut buffer = session.buffer().unwrap();
        let object = content(10_000, 5);
        buffer.write(0, &object);
        let sent = session.upload(BUCKET, "key", &buffer, 10_000).unwrap();
        let (signal, refusal) = sent.fell_back.unwrap();
        assert_eq!((sent.bytes, sent.carrier, signal, refusal.status), (10_000, Carrier::Http, due, status));
        // A server that declines is not expected to do it, and asked again.
        assert_eq!(session.rdma_available(), due != Signal::Declined);
        fill(&mut buffer, 0);
        // Without the HEAD that `download` makes of a full buffer, whose answer the stream that rewrites heads does not understand.
        let came = session.download_exact(BUCKET, "key", &mut buffer, 10_000).unwrap();
        assert_eq!((came.bytes, came.carrier, came.fell_back), (10_000, Carrier::Rdma, None));
        assert!(session.rdma_available());
        assert!(bytes(&buffer, 10_000) == object);
        fill(&mut buffer, 0);
        let part = session.download_range(BUCKET, "key", 100, 50, &mut buffer).unwrap();
        assert_eq!((part.carrier, part.fell_back.unwrap().0), (Carrier::Http, due));
        assert_eq!(bytes(&buffer, 51), [&object[100..150], &[0]].concat());
        let [reads, read, writes, _] = server.counts();
        assert_eq!((reads, read, writes, bodies(&server)), (1, 10_000, 0, [1, 1]));
    }
}

#[test]
fn what_contradicts_itself_is_an_error_and_not_made_again() {
    let (server, device) = faulty("no-reply@1,short@3", None);
    let mut session = over(&server, &device, Family::A, 4096);
    let mut buffer = session.buffer().unwrap();
    let error = session.upload(BUCKET, "key", &buffer, 4096).unwrap_err();
    assert!(matches!(error, ClientError::Violation(Violation::NoReply(200))), "{error}");
    session.upload(BUCKET, "key", &buffer, 4096).unwrap();
    let error = session.download_exact(BUCKET, "key", &mut buffer, 4096).unwrap_err();
    let due = Violation::WrongCount { counted: 4095, expected: 4096 };
    assert!(matches!(&error, ClientError::Violation(violation) if *violation == due), "{error}");
    assert_eq!(bodies(&server), [0, 0]);
    // An error of S3 that replies is final, too.
    let error = session.download(BUCKET, "none", &mut buffer).unwrap_err();
    assert!(matches!(&error, ClientError::Refused(refusal) if refusal.code == "NoSuchKey"), "{error}");
    assert_eq!(bodies(&server), [0, 0]);
}

#[test]
fn empty_objects_need_no_memory() {
    let (server, device, regions) = rdma();
    let mut session = over(&server, &device, Family::C, 4096);
    let mut buffer = session.buffer().unwrap();
    fill(&mut buffer, 0xd7);
    let sent = session.upload(BUCKET, "key", &buffer, 0).unwrap();
    assert_eq!((sent.bytes, sent.carrier, sent.fell_back), (0, Carrier::Http, None));
    let came = session.download(BUCKET, "key", &mut buffer).unwrap();
    assert_eq!((came.bytes, came.carrier), (0, Carrier::Rdma));
    assert_eq!(bytes(&buffer, 4096), [0xd7; 4096]);
    assert_eq!(regions.moved().written, 0);
}

#[test]
fn metadata_and_conditions_go_with_an_upload() {
    let (server, device, _) = rdma();
    let mut session = over(&server, &device, Family::A, 4096);
    let mut buffer = session.buffer().unwrap();
    let headers = [("x-amz-meta-colour", "blue"), ("if-none-match", "*")];
    session.upload_with(BUCKET, "key", &buffer, 4096, &headers).unwrap();
    for mut session in [over(&server, &device, Family::A, 4096), plain(&server, 4096)] {
        let mut buffer = session.buffer().unwrap();
        let came = session.download(BUCKET, "key", &mut buffer).unwrap();
        assert_eq!((came.metadata("colour"), came.metadata("color")), (Some("blue"), None));
    }
    let error = session.upload_with(BUCKET, "key", &buffer, 1, &headers).unwrap_err();
    assert!(matches!(&error, ClientError::Refused(refusal) if refusal.status == 412), "{error}");
    assert_eq!(session.download(BUCKET, "key", &mut buffer).unwrap().bytes, 4096);
}

#[test]
fn tokens_are_signed() {
    let regions = Regions::new();
    let memory = Some(Arc::new(regions.clone()) as _);
    let server = Server::start(Setup { keys: Some(("me", "secret/+key")), memory, ..Setup::default() });
    let device: Arc<dyn Registrar> = Arc::new(Table::new(&regions));
    let keys =
        |secret: &str| Some(Credentials { access: "me".into(), secret: secret.into(), region: "us-east-1".into() });
    let session = |keys| Session::new(server.address.into(), keys, Some(Arc::clone(&device)), 4096).unwrap();
    let mut good = session(keys("secret/+key"));
    let mut buffer = good.buffer().unwrap();
    // With SigV4 on, the server refuses a token that is not among the signed headers (wire document, section 4, rule 17).
    assert_eq!(good.upload(BUCKET, "a key/ä", &buffer, 4096).unwrap().carrier, Carrier::Rdma);
    assert_eq!(good.download(BUCKET, "a key/ä", &mut buffer).unwrap().carrier, Carrier::Rdma);
    for keys in [keys("another"), None] {
        let mut bad = session(keys);
        let error = bad.upload(BUCKET, "key", &bad.buffer().unwrap(), 4096).unwrap_err();
        assert!(matches!(&error, ClientError::Refused(refusal) if refusal.status == 403), "{error}");
    }
    assert_eq!((server.counts(), bodies(&server)), ([1, 4096, 1, 4096], [0, 0]));
}

#[test]
fn a_session_may_move_to_another_thread() {
    let (server, device, _) = rdma();
    let mut session = over(&server, &device, Family::A, 4096);
    let mut buffer = session.buffer().unwrap();
    let (mut session, mut buffer) = std::thread::spawn(move || {
        buffer.write(0, b"there");
        session.upload(BUCKET, "key", &buffer, 5).unwrap();
        (session, buffer)
    })
    .join()
    .unwrap();
    fill(&mut buffer, 0);
    assert_eq!(session.download(BUCKET, "key", &mut buffer).unwrap().bytes, 5);
    assert_eq!(bytes(&buffer, 6), b"there\0");
}

#[test]
fn the_example_of_the_guide_runs_both_ways() {
    let (server, device, _) = rdma();
    let run = |device| example::move_objects(server.address.into(), BUCKET, device).unwrap();
    assert_eq!(run(Some(device)), [Carrier::Rdma; 2]);
    assert_eq!((server.counts(), bodies(&server)), ([2, 13 + 6, 1, 13], [0, 0]));
    assert_eq!(run(None), [Carrier::Http; 2]);
    assert_eq!((server.counts(), bodies(&server)), ([2, 13 + 6, 1, 13], [2, 1]));
    // What the guide shows is what has run.
    let guide = include_str!("../../docs/src/guide/sdk.md");
    assert!(guide.contains(&format!("```rust,ignore\n{}```", include_str!("../examples/sdk.rs"))));
}
