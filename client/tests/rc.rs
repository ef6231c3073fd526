//! `hipobj-rc-v2`, from a session of the client to the real service, over connections that are memory of this process.
#![allow(clippy::cast_possible_truncation)]

#[path = "common/buffers.rs"]
mod buffers;
mod common;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use buffers::{bytes, content, fill};
use common::{BUCKET, MIB, PairFault, Server, Setup, Table, Tamper, change};
use ernic_client::{
    Carrier, ClientError, Protocol, Session, Violation,
    functional::{self, Plan},
    memory::{MemoryError, Registrar},
    s3::Request,
    sigv4::Credentials,
    transfer::Signal,
};
use rdma_token::{
    RemoteError, names,
    testing::{Fabric, Regions, Step},
};

struct Lab {
    server: Server,
    fabric: Fabric,
    table: Table,
    device: Arc<dyn Registrar>,
}

fn lab_of(set_up: impl FnOnce(Setup, &Fabric) -> Setup) -> Lab {
    let regions = Regions::new();
    let fabric = Fabric::new(&regions);
    let memory = Some(Arc::new(fabric.clone()) as _);
    let setup = Setup { memory, fabric: Some(fabric.clone()), ..Setup::default() };
    let server = Server::start(set_up(setup, &fabric));
    let table = Table::connecting(&regions, &fabric);
    Lab { server, fabric, device: Arc::new(table.clone()), table }
}

fn lab() -> Lab {
    lab_of(|setup, _| setup)
}

impl Lab {
    fn session(&self, protocol: Protocol, size: usize) -> Session {
        let device = Some(Arc::clone(&self.device));
        Session::new(self.server.address.into(), None, device, size as u64).unwrap().with_protocol(protocol)
    }

    /// By RDMA: reads, their bytes, writes, their bytes; and by body: reads and writes.
    fn counts(&self) -> ([u64; 4], [u64; 2]) {
        let metrics = self.server.service.metrics();
        (self.server.counts(), [metrics.body_reads(), metrics.body_writes()])
    }

    /// Nothing is held on either side: at once by the client, and by the server once a transfer that was cancelled has heard of it.
    #[track_caller]
    fn at_rest(&self) {
        assert_eq!(self.table.pairs.lock().unwrap().1, 0);
        let held = || (self.fabric.sessions().len(), self.server.service.metrics().rdma_sessions());
        for _ in 0..1000 {
            if held() == (0, 0) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(held(), (0, 0));
    }

    fn breaks(&self, fault: impl Into<Option<PairFault>>) {
        *self.table.fault.lock().unwrap() = fault.into();
    }
}

#[test]
fn objects_go_over_a_connection_of_their_own() {
    for protocol in [Protocol::RcV2, Protocol::Auto] {
        let lab = lab();
        let mut session = lab.session(protocol, MIB);
        let mut buffer = session.buffer().unwrap();
        let mut due = [0; 4];
        for (seed, length) in [(1, 1), (2, 4097), (3, MIB - 1), (4, MIB)] {
            let content = content(length, seed);
            buffer.write(0, &content);
            let sent = session.upload(BUCKET, "a key/+é", &buffer, length as u64).unwrap();
            assert_eq!((sent.bytes, sent.carrier, sent.protocol), (length as u64, Carrier::Rdma, Some(Protocol::RcV2)));
            for whole in [true, false] {
                fill(&mut buffer, 0xd7);
                let came = match whole {
                    true => session.download(BUCKET, "a key/+é", &mut buffer),
                    false => session.download_exact(BUCKET, "a key/+é", &mut buffer, length as u64),
                };
                let came = came.unwrap();
                assert_eq!((came.bytes, came.carrier, &came.etag), (length as u64, Carrier::Rdma, &sent.etag));
                assert_eq!((came.protocol, came.fell_back), (Some(Protocol::RcV2), None));
                assert_eq!(bytes(&buffer, length), content);
                // Not a byte behind the object.
                buffer
                    .look(length as u64, (MIB - length) as u64, |rest| assert!(rest.iter().all(|byte| *byte == 0xd7)));
            }
            due = [due[0] + 2, due[1] + 2 * length as u64, due[2] + 1, due[3] + length as u64];
            assert_eq!(lab.counts(), (due, [0, 0]));
            lab.at_rest();
        }
        assert!(session.rdma_available());
        assert_eq!(lab.table.pairs.lock().unwrap().0, 12, "a queue pair for each transfer");
    }
}

#[test]
fn ranges_parts_metadata_and_conditions_are_those_of_s3() {
    let lab = lab();
    let size = 5 * MIB;
    let mut session = lab.session(Protocol::RcV2, size);
    let mut buffer = session.buffer().unwrap();
    let first = content(size, 7);
    buffer.write(0, &first);
    let mut upload = session.create_upload(BUCKET, "parts").unwrap();
    let part = session.upload_part(&mut upload, 1, &buffer, size as u64).unwrap();
    assert_eq!((part.carrier, part.protocol), (Carrier::Rdma, Some(Protocol::RcV2)));
    session.upload_part(&mut upload, 2, &buffer, 5).unwrap();
    session.complete_upload(&upload).unwrap();
    // From the middle, over the seam, and from the beginning.
    let whole = [&first[..], &first[..5]].concat();
    for (offset, length) in [(1000, 512), (size - 3, 8), (0, 17)] {
        fill(&mut buffer, 0xd7);
        let came = session.download_range(BUCKET, "parts", offset as u64, length as u64, &mut buffer).unwrap();
        assert_eq!((came.bytes, came.carrier), (length as u64, Carrier::Rdma));
        assert_eq!(bytes(&buffer, length), whole[offset..][..length]);
    }
    let error = session.download_range(BUCKET, "parts", size as u64, 6, &mut buffer).unwrap_err();
    assert!(matches!(error, ClientError::Violation(Violation::WrongCount { counted: 5, expected: 6 })), "{error}");
    let error = session.download(BUCKET, "parts", &mut buffer).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the object of {} bytes is longer than the buffer of {size} bytes", size + 5)
    );
    // Metadata there and back, and a condition that does not hold.
    let headers = [("x-amz-meta-color", "green"), ("if-none-match", "*")];
    session.upload_with(BUCKET, "meta", &buffer, 3, &headers).unwrap();
    let error = session.upload_with(BUCKET, "meta", &buffer, 4, &headers).unwrap_err();
    assert!(matches!(&error, ClientError::Refused(refusal) if refusal.status == 412), "{error}");
    let came = session.download(BUCKET, "meta", &mut buffer).unwrap();
    assert_eq!((came.bytes, came.metadata("color")), (3, Some("green")));
    // Nothing at all goes by HTTP: there is no transfer to make.
    let sent = session.upload(BUCKET, "empty", &buffer, 0).unwrap();
    let came = session.download(BUCKET, "empty", &mut buffer).unwrap();
    assert_eq!((sent.carrier, came.carrier, came.bytes), (Carrier::Http, Carrier::Http, 0));
    lab.at_rest();
}

#[test]
fn a_server_without_it_is_asked_once_by_auto() {
    let regions = Regions::new();
    let fabric = Fabric::new(&regions);
    let device: Arc<dyn Registrar> = Arc::new(Table::connecting(&regions, &fabric));
    let asked = Arc::new(AtomicUsize::new(0));
    let count: Tamper = {
        let asked = Arc::clone(&asked);
        Arc::new(move |head| {
            asked.fetch_add(usize::from(head.contains(names::PROTOCOL_STATUS)), SeqCst);
            head.to_owned()
        })
    };
    let memory = Some(Arc::new(regions.clone()) as _);
    let server = Server::start(Setup { memory, tamper: Some(count), ..Setup::default() });
    let session = |protocol| {
        Session::new(server.address.into(), None, Some(Arc::clone(&device)), 4096).unwrap().with_protocol(protocol)
    };
    let mut auto = session(Protocol::Auto);
    let buffer = auto.buffer().unwrap();
    for _ in 0..3 {
        let sent = auto.upload(BUCKET, "key", &buffer, 100).unwrap();
        assert_eq!((sent.carrier, sent.protocol, sent.fell_back), (Carrier::Rdma, Some(Protocol::Token), None));
    }
    assert_eq!(asked.load(SeqCst), 1);
    // Who wants nothing else has the body instead, and asks each time.
    let mut strict = session(Protocol::RcV2);
    for _ in 0..2 {
        let sent = strict.upload(BUCKET, "key", &buffer, 100).unwrap();
        assert_eq!((sent.carrier, sent.protocol), (Carrier::Http, None));
        assert_eq!(sent.fell_back.unwrap().0, Signal::Declined);
        assert!(!strict.rdma_available());
    }
    assert_eq!(asked.load(SeqCst), 3);
    // A device that only registers memory.
    let plain: Arc<dyn Registrar> = Arc::new(Table::new(&regions));
    let of = |protocol| {
        Session::new(server.address.into(), None, Some(Arc::clone(&plain)), 4096).unwrap().with_protocol(protocol)
    };
    let mut auto = of(Protocol::Auto);
    let buffer = auto.buffer().unwrap();
    assert_eq!(auto.upload(BUCKET, "key", &buffer, 1).unwrap().protocol, Some(Protocol::Token));
    let error = of(Protocol::RcV2).upload(BUCKET, "key", &buffer, 1).unwrap_err();
    assert!(matches!(error, ClientError::Memory(MemoryError::NotConnectable)), "{error}");
}

#[test]
fn signals_fall_back_and_errors_do_not() {
    let lab = lab();
    let mut session = lab.session(Protocol::RcV2, 4096);
    let mut buffer = session.buffer().unwrap();
    buffer.write(0, b"content");
    session.upload(BUCKET, "key", &buffer, 7).unwrap();
    let broken = || RemoteError::Transport("RETRY_EXC_ERR".into());
    // A transfer that failed on the server's side goes by the body.
    for step in [Step::Prepare, Step::Receive] {
        lab.fabric.fail(step, broken());
        let sent = session.upload(BUCKET, "key", &buffer, 7).unwrap();
        assert_eq!((sent.carrier, sent.protocol, sent.bytes), (Carrier::Http, None, 7));
        let (signal, refusal) = sent.fell_back.unwrap();
        assert_eq!((signal, refusal.code.as_str()), (Signal::Failed, "RDMATransferError"));
        lab.at_rest();
    }
    lab.fabric.fail(Step::Send, broken());
    fill(&mut buffer, 0xd7);
    let came = session.download(BUCKET, "key", &mut buffer).unwrap();
    assert_eq!((came.carrier, came.fell_back.unwrap().0), (Carrier::Http, Signal::Failed));
    assert_eq!(bytes(&buffer, 7), b"content");
    lab.at_rest();
    // No room is no signal, and neither is what S3 refuses.
    let refused = |result: Result<ernic_client::Transfer, ClientError>| match result {
        Err(ClientError::Refused(refusal)) => (refusal.status, refusal.code),
        other => panic!("{other:?}"),
    };
    lab.fabric.limit(0, 1 << 20);
    assert_eq!(refused(session.upload(BUCKET, "key", &buffer, 7)), (503, "SlowDown".into()));
    lab.fabric.limit(16, 6);
    assert_eq!(refused(session.upload(BUCKET, "key", &buffer, 7)), (413, "EntityTooLarge".into()));
    lab.fabric.limit(16, 1 << 20);
    assert_eq!(refused(session.download_exact(BUCKET, "none", &mut buffer, 1)), (404, "NoSuchKey".into()));
    assert_eq!(refused(session.upload("none", "key", &buffer, 7)), (404, "NoSuchBucket".into()));
    lab.at_rest();
}

#[test]
fn what_breaks_on_the_clients_side_is_an_error() {
    let lab = lab();
    let mut session = lab.session(Protocol::RcV2, 4096);
    let mut buffer = session.buffer().unwrap();
    buffer.write(0, b"content");
    session.upload(BUCKET, "key", &buffer, 7).unwrap();
    let stored = |session: &mut Session| {
        let answer = session.client().call(&Request::new("GET", BUCKET, "key"), None).unwrap();
        answer.check().unwrap().length
    };
    // The write is not acknowledged: the server is told, and does not wait for ever.
    lab.breaks(PairFault::Write);
    let error = session.upload(BUCKET, "key", &buffer, 9).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the RDMA WRITE over queue pair {:#x} failed: transport retry counter exceeded", 0x5002)
    );
    lab.at_rest();
    assert_eq!(stored(&mut session), 7);
    // The server refuses what came, and the body takes its place.
    for fault in [PairFault::Immediate, PairFault::Short] {
        lab.breaks(fault);
        let sent = session.upload(BUCKET, "other", &buffer, 7).unwrap();
        assert_eq!((sent.carrier, sent.fell_back.unwrap().0), (Carrier::Http, Signal::Failed));
    }
    for (fault, due) in [
        (PairFault::ArrivedImmediate, "with immediate"),
        (PairFault::ArrivedShort, "6 bytes with immediate"),
        (PairFault::Silence, "did not complete within 5s"),
    ] {
        lab.breaks(fault);
        let error = session.download_exact(BUCKET, "key", &mut buffer, 7).unwrap_err().to_string();
        assert!(error.contains(due), "{error}");
        lab.at_rest();
    }
    lab.breaks(None);
    assert_eq!(session.download(BUCKET, "key", &mut buffer).unwrap().carrier, Carrier::Rdma);
}

/// What becomes of a header's value.
type New = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A way to the same service on which the answers to one request are changed.
fn changed(lab: &Lab, name: &'static str, new: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Session {
    let front = Box::leak(Box::new(Server::front(&lab.server, Arc::new(move |head| change(head, name, &new)))));
    let device = Some(Arc::clone(&lab.device));
    Session::new(front.address.into(), None, device, 4096).unwrap().with_protocol(Protocol::RcV2)
}

#[test]
fn answers_that_do_not_fit_are_violations() {
    let lab = lab();
    let mut session = lab.session(Protocol::RcV2, 4096);
    let mut buffer = session.buffer().unwrap();
    buffer.write(0, b"content");
    session.upload(BUCKET, "key", &buffer, 7).unwrap();
    let set = |value: &'static str| move |_: &str| Some(value.to_owned());
    let cases: Vec<(&'static str, New, &str)> = vec![
        (names::PROTOCOL, Box::new(set("hipobj-rc-v3")), "x-amz-rdma-protocol is 'hipobj-rc-v3'"),
        (names::PROTOCOL, Box::new(|_| None), "a success without x-amz-rdma-protocol"),
        (names::REPLY, Box::new(set("200")), "malformed x-amz-rdma-reply '200'"),
        (names::REPLY, Box::new(|_| None), "status 200 without x-amz-rdma-reply"),
        (names::SESSION, Box::new(set("0123")), "malformed x-amz-rdma-session '0123'"),
        (names::PSN, Box::new(set("000000")), "malformed x-amz-rdma-psn '000000'"),
        (names::PSN, Box::new(set("1000000")), "malformed x-amz-rdma-psn '1000000'"),
        (names::QPN, Box::new(set("1")), "malformed x-amz-rdma-qpn '1'"),
        (names::MR_ADDR, Box::new(set("0")), "no x-amz-rdma-mr-addr and x-amz-rdma-mr-rkey"),
        (names::MR_RKEY, Box::new(|_| None), "no x-amz-rdma-mr-addr and x-amz-rdma-mr-rkey"),
        (names::MR_RKEY, Box::new(set("0x12")), "malformed x-amz-rdma-mr-rkey '0x12'"),
        (names::COOKIE, Box::new(set("00000000")), "cookie 00000000 where"),
        (names::COOKIE, Box::new(|_| None), "malformed x-amz-rdma-cookie ''"),
        (names::BYTES, Box::new(set("6")), "x-amz-rdma-bytes is 6, but x-amz-rdma-bytes-transferred is 7"),
        (names::CHECKSUM, Box::new(set("CRC64NVME AAAAAAAAAAA=")), "CRC64NVME AAAAAAAAAAA= where"),
        (names::CHECKSUM, Box::new(set("CRC32 AAAA")), "malformed x-amz-rdma-checksum 'CRC32 AAAA'"),
    ];
    for (name, new, due) in cases {
        let mut session = changed(&lab, name, new);
        let error = session.upload(BUCKET, "other", &buffer, 7);
        let error = error.unwrap_err();
        assert!(matches!(error, ClientError::Violation(_)), "{name}: {error}");
        assert!(error.to_string().contains(due), "{name}: {error}");
    }
    // A range that is not the one.
    let mut session = changed(&lab, "content-range", set("bytes 2-3/7"));
    let error = session.download_range(BUCKET, "key", 1, 2, &mut buffer).unwrap_err();
    assert!(matches!(error, ClientError::Violation(Violation::ContentRange { .. })), "{error}");
}

#[test]
fn sessions_are_signed() {
    let lab = lab_of(|setup, _| Setup { keys: Some(("access", "secret")), ..setup });
    let of = |secret: &str| {
        let credentials = Credentials { access: "access".into(), secret: secret.into(), region: "eu-north-1".into() };
        let device = Some(Arc::clone(&lab.device));
        let session = Session::new(lab.server.address.into(), Some(credentials), device, 4096).unwrap();
        session.with_protocol(Protocol::RcV2)
    };
    let mut session = of("secret");
    let mut buffer = session.buffer().unwrap();
    buffer.write(0, b"content");
    assert_eq!(session.upload(BUCKET, "key", &buffer, 7).unwrap().carrier, Carrier::Rdma);
    assert_eq!(session.download(BUCKET, "key", &mut buffer).unwrap().carrier, Carrier::Rdma);
    let error = of("other").upload(BUCKET, "key", &buffer, 7).unwrap_err();
    assert!(matches!(&error, ClientError::Refused(refusal) if refusal.code == "SignatureDoesNotMatch"), "{error}");
    lab.at_rest();
}

#[test]
fn the_checks_pass_over_connections() {
    let lab = lab();
    let mut client = lab.server.client();
    let lines = Mutex::new(Vec::new());
    let plan = Plan { protocol: Protocol::RcV2, large: 8 * MIB, ..Plan::new(BUCKET) };
    let summary =
        functional::run(&mut client, &*lab.device, &plan, &mut |line| lines.lock().unwrap().push(line.to_owned()))
            .unwrap();
    let lines = lines.into_inner().unwrap();
    assert_eq!(summary.failed, 0, "{lines:#?}");
    assert_eq!(summary.passed, lines.len() - 1);
    for due in
        ["ranged GET", "multipart", "error: another cookie", "error: a session is made ready once", "error: too large"]
    {
        assert!(lines.iter().any(|line| line.starts_with("ok ") && line.contains(due)), "{due}: {lines:#?}");
    }
    lab.at_rest();
}
