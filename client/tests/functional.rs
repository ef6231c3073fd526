//! The functional checks against the real service, and against services that do one thing wrong: each of those must be found, by
//! the check that is there for it.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use common::{BUCKET, Server, Setup, Table, Tamper, Trick, Tricky, change};
use ernic_client::{
    functional::{self, Plan, Summary},
    s3::{Body, Client, Config, Request},
    sigv4::Credentials,
    transfer::Family,
};
use ernic_store::Store;
use rdma_token::testing::Regions;

fn run(config: Config, regions: &Regions, plan: &Plan) -> (Summary, Vec<String>) {
    let mut lines = Vec::new();
    let mut client = Client::new(config).unwrap();
    let summary =
        functional::run(&mut client, &Table::new(regions), plan, &mut |line| lines.push(line.to_owned())).unwrap();
    (summary, lines)
}

/// The checks, in their order.
const CHECKS: [&str; 25] = [
    "round trip of 4 KiB",
    "round trip of 1 MiB",
    "round trip of 64 MiB",
    "unaligned buffer, odd size: 1 bytes, 1 into a page, 0 into the region",
    "unaligned buffer, odd size: 511 bytes, 0 into a page, 1 into the region",
    "unaligned buffer, odd size: 4095 bytes, 13 into a page, 0 into the region",
    "unaligned buffer, odd size: 4097 bytes, 4095 into a page, 0 into the region",
    "unaligned buffer, odd size: 65537 bytes, 7 into a page, 5 into the region",
    "unaligned buffer, odd size: 1000003 bytes, 2049 into a page, 4093 into the region",
    "unaligned buffer, odd size: 3145729 bytes, 1 into a page, 1 into the region",
    "ranged GET: bytes=1024-1535",
    "a window shorter than the object",
    "body path",
    "multipart by token, two parts, CRC64NVME",
    "listing",
    "deletion, and 404 after it",
    "error: missing key",
    "error: malformed token",
    "error: wrong bucket",
    "error: rkey 0",
    "error: unknown rkey",
    "error: window outside the registration",
    "error: buffer registered without remote rights",
    "error: deregistered buffer",
    "the store is empty at the end",
];

#[track_caller]
fn all_pass(config: Config, regions: &Regions, family: Family) {
    let (summary, lines) = run(config, regions, &Plan { family, ..Plan::new(BUCKET) });
    assert_eq!(lines[0], "the server's counters of operations and bytes are checked, exactly");
    let due: Vec<_> = CHECKS.iter().map(|check| format!("ok   {check}")).collect();
    assert_eq!(lines[1..], due);
    assert_eq!(summary, Summary { passed: CHECKS.len(), failed: 0 });
}

/// GETs and PUTs that the checks make by token: a pair for each of ten round trips, and then what the other checks make.
/// C leaves one GET out, because the window that is too short is refused.
fn made(family: Family) -> [u64; 2] {
    let gets = 10 + 2 + u64::from(family != Family::C) + 1 + 1;
    let puts = 10 + 1 + 2 + 3 + 1 + 1;
    [gets, puts]
}

#[test]
fn family_a_passes() {
    let regions = Regions::new();
    let server = Server::over(&regions);
    all_pass(server.config(), &regions, Family::A);
    let [reads, read_bytes, writes, written_bytes] = server.counts();
    assert_eq!([reads, writes], made(Family::A));
    // Every byte that was counted was moved, and none of the refused requests moved one; the part with the wrong checksum was
    // read and not counted.
    let moved = regions.moved();
    assert_eq!((moved.written, moved.read), (read_bytes, written_bytes + (5 << 20)));
    let usage = server.store.usage();
    assert_eq!((usage.objects, usage.bytes, usage.uploads), (0, 0, 0));
}

#[test]
fn family_b_passes_with_a_connection_for_each_request() {
    let regions = Regions::new();
    let server = Server::over(&regions);
    all_pass(Config { keep_alive: false, ..server.config() }, &regions, Family::B);
    let [reads, _, writes, _] = server.counts();
    assert_eq!([reads, writes], made(Family::B));
    let metrics = server.service.metrics();
    assert_eq!(metrics.connections(), metrics.requests());
}

#[test]
fn family_c_passes_signed() {
    let regions = Regions::new();
    let server = Server::over(&regions);
    let credentials = Credentials { access: "a".into(), secret: "s".into(), region: "us-east-1".into() };
    all_pass(Config { credentials: Some(credentials), ..server.config() }, &regions, Family::C);
    let [reads, _, writes, _] = server.counts();
    assert_eq!([reads, writes], made(Family::C));
}

/// The checks without the large round trip, of which those that are to fail have no need.
fn small() -> Plan {
    Plan { large: 2 << 20, ..Plan::new(BUCKET) }
}

/// What the checks say of a service that is not as it should be. There must be a failure.
fn failures(setup: Setup, regions: &Regions) -> Vec<String> {
    let server = Server::start(setup);
    let (summary, lines) = run(server.config(), regions, &small());
    let failures: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("FAIL ")).map(str::to_owned).collect();
    assert_eq!(summary, Summary { passed: CHECKS.len() - failures.len(), failed: failures.len() }, "{lines:#?}");
    assert!(!failures.is_empty(), "{lines:#?}");
    failures
}

#[track_caller]
fn says(failures: &[String], check: &str, what: &str) {
    assert!(
        failures.iter().any(|line| line.starts_with(check) && line.contains(what)),
        "no '{check}' with '{what}' in {failures:#?}"
    );
}

/// Whatever has failed, nothing of it stays in the store.
#[track_caller]
fn nothing_stays(failures: &[String]) {
    assert!(!failures.iter().any(|line| line.starts_with("the store is empty at the end")), "{failures:#?}");
}

#[test]
fn a_server_without_rdma_is_found_out() {
    let failures = failures(Setup::default(), &Regions::new());
    says(&failures, "round trip of 4 KiB", "not by RDMA (declined): refused with status 501 NotImplemented");
    says(&failures, "error: rkey 0: GET", "501 NotImplemented");
    nothing_stays(&failures);
}

fn tampered(tamper: impl Fn(&str) -> String + Send + Sync + 'static) -> Vec<String> {
    let regions = Regions::new();
    let tamper: Tamper = Arc::new(tamper);
    failures(Setup { memory: Some(Arc::new(regions.clone())), tamper: Some(tamper), ..Setup::default() }, &regions)
}

#[test]
fn wrong_counts_are_found() {
    // One less, in both headers.
    let fewer = |value: &str| value.parse::<u64>().ok().map(|count| count.saturating_sub(1).to_string());
    let failures = tampered(move |head| {
        let head = change(head, "x-amz-rdma-bytes", fewer);
        change(&head, "x-amz-rdma-bytes-transferred", fewer)
    });
    says(&failures, "round trip of 4 KiB", "4095 bytes moved where 4096 were due");
    says(&failures, "ranged GET", "511 bytes moved where 512 were due");
    nothing_stays(&failures);
    // In one of them.
    let failures = tampered(move |head| change(head, "x-amz-rdma-bytes-transferred", fewer));
    says(&failures, "round trip of 1 MiB", "x-amz-rdma-bytes is 1048576, but x-amz-rdma-bytes-transferred is 1048575");
    // A count in an error.
    let failures = tampered(|head| {
        let error = head.starts_with("HTTP/1.1 500");
        change(head, "x-amz-rdma-bytes", |count| Some(if error { "1024".into() } else { count.into() }))
    });
    says(&failures, "error: rkey 0", "x-amz-rdma-bytes is 1024 in an error");
}

#[test]
fn missing_replies_are_found() {
    let failures = tampered(|head| change(head, "x-amz-rdma-reply", |_| None));
    says(
        &failures,
        "round trip of 4 KiB",
        "status 200 without x-amz-rdma-reply: the server took no notice of the token",
    );
    says(&failures, "error: missing key", "the reply is none, where 404 was due");
    nothing_stays(&failures);
}

#[test]
fn malformed_and_contradicting_replies_are_found() {
    // A 206 that carries the server's token, which clients of hipObject cannot read.
    let token = "0".repeat(88);
    let failures = tampered(move |head| {
        let token = token.clone();
        change(head, "x-amz-rdma-reply", move |reply| {
            Some(if reply == "206" { format!("206:{token}") } else { reply.into() })
        })
    });
    says(&failures, "ranged GET", "malformed x-amz-rdma-reply '206:");
    assert_eq!(failures.len(), 1, "{failures:#?}");
    let failures = tampered(|head| change(head, "x-amz-rdma-reply", |_| Some("200".into())));
    says(&failures, "ranged GET", "status 206, but x-amz-rdma-reply 200");
    says(&failures, "error: wrong bucket", "the reply is 200, where 404 was due");
    let failures = tampered(|head| head.replace("x-amz-rdma-reply", "X-Amz-Rdma-Reply"));
    says(&failures, "round trip of 4 KiB", "the header X-Amz-Rdma-Reply is not in lower case");
}

#[test]
fn bytes_in_the_wrong_place_are_found() {
    for (trick, check, what) in [
        (Trick::Flip, "round trip of 4 KiB", "byte 4095 is"),
        (Trick::Shift, "ranged GET", "byte 0 is d7"),
        (Trick::Longer, "a window shorter than the object", "3001 bytes moved in a window of 3000"),
        (Trick::AnyKey, "error: rkey 0", "where 500 InternalError was due"),
        (Trick::AnyKey, "error: unknown rkey", "where 500 InternalError was due"),
        (Trick::AnyWindow, "error: window outside the registration", "where 500 InternalError was due"),
    ] {
        let regions = Regions::new();
        let memory = Arc::new(Tricky { regions: regions.clone(), trick });
        let failures = failures(Setup { memory: Some(memory), ..Setup::default() }, &regions);
        says(&failures, check, what);
    }
    // A byte too many that is not even counted: the guard behind the window has it.
    let regions = Regions::new();
    let memory = Arc::new(Tricky { regions: regions.clone(), trick: Trick::Longer });
    let tamper: Tamper = Arc::new(|head| {
        let head = change(head, "x-amz-rdma-bytes", |count| Some(count.replace("3001", "3000")));
        change(&head, "x-amz-rdma-bytes-transferred", |count| Some(count.replace("3001", "3000")))
    });
    let failures = failures(Setup { memory: Some(memory), tamper: Some(tamper), ..Setup::default() }, &regions);
    says(&failures, "a window shorter than the object", "byte 3000 was touched");
}

#[test]
fn counters_that_rise_otherwise_and_objects_that_stay_are_found() {
    // Another client stores an object while the first PUT by token is answered, and leaves it there.
    let regions = Regions::new();
    let server = Server::over(&regions);
    let (address, answers) = (server.address, AtomicU64::new(0));
    let tamper: Tamper = Arc::new(move |head| {
        if head.contains("x-amz-rdma-bytes: 4096") && answers.fetch_add(1, SeqCst) == 0 {
            let mut other = Client::new(Config::new(address.into())).unwrap();
            let request = Request::new("PUT", BUCKET, "other").body(Body::Bytes(b"x"));
            assert_eq!(other.call(&request, None).unwrap().status, 200);
        }
        head.to_owned()
    });
    // The same service, with the other stream in front of it.
    let front = Server::front(&server, tamper);
    let (summary, lines) = run(front.config(), &regions, &small());
    assert_eq!(summary, Summary { passed: CHECKS.len() - 2, failed: 2 });
    assert_eq!(lines[1], "FAIL round trip of 4 KiB: the server counted 1 body PUTs where 0 were made");
    let last = lines.last().unwrap();
    assert_eq!(last, "FAIL the store is empty at the end: 1 keys where 0 were before; new: [\"other\"]");
}

#[test]
fn what_was_in_the_store_before_stays_there() {
    // The first PUT fails in the middle.
    let regions = Regions::new();
    let server =
        Server::start(Setup { memory: Some(Arc::new(regions.clone())), faults: Some("fail@1"), ..Setup::default() });
    let mut client = server.client();
    let request = Request::new("PUT", BUCKET, "there before").body(Body::Bytes(b"x"));
    assert_eq!(client.call(&request, None).unwrap().status, 200);
    let (summary, lines) = run(server.config(), &regions, &small());
    // What was there before is nobody's fault, and it is still there.
    assert_eq!(summary, Summary { passed: CHECKS.len() - 1, failed: 1 });
    assert_eq!(lines.last().unwrap(), "ok   the store is empty at the end");
    assert!(
        lines[1]
            .starts_with("FAIL round trip of 4 KiB: not by RDMA (failed): refused with status 503 RDMATransferError")
    );
    assert_eq!(server.client().list(BUCKET, "").unwrap().len(), 1);
}
