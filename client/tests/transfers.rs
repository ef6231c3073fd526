//! Sessions and measurements against the real service: what goes by RDMA, what falls back, and what is an error.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::sync::Arc;

use common::{BUCKET, MIB, Server, Setup, Table, Tamper, Trick, Tricky, change};
use ernic_client::{
    ClientError, Session, Violation,
    bench::{self, BenchError, Only, Plan, Row, Sample, Worker},
    counters::Counters,
    s3::Config,
    transfer::{Direction, Family, Signal},
};
use ernic_store::Store;
use rdma_token::testing::Regions;

/// A worker that transfers by RDMA, with a buffer of `length` bytes.
fn session(server: &Server, table: &Table, family: Family, length: usize) -> Worker {
    let session = Session::with_config(server.config(), Some(Arc::new(table.clone())), length as u64).unwrap();
    Worker::new(session.with_tokens(family)).unwrap()
}

/// One that transfers by the body.
fn plain(server: &Server, length: usize) -> Worker {
    Worker::new(Session::with_config(server.config(), None, length as u64).unwrap()).unwrap()
}

fn plan(size: usize, iterations: u32, only: Only) -> Plan {
    Plan { bucket: BUCKET.into(), key: "key".into(), size: size as u64, iterations, only }
}

fn run(plan: &Plan, sessions: &mut [Worker]) -> Result<Vec<Sample>, BenchError> {
    let mut seen = 0;
    let samples = bench::run(plan, sessions, &mut |_| seen += 1)?;
    assert_eq!(seen, samples.len());
    Ok(samples)
}

fn faulty(faults: &'static str, tamper: Option<Tamper>) -> (Server, Table) {
    let regions = Regions::new();
    let memory = Some(Arc::new(regions.clone()) as _);
    (Server::start(Setup { memory, faults: Some(faults), tamper, ..Setup::default() }), Table::new(&regions))
}

#[test]
fn iterations_go_by_rdma_and_are_counted() {
    for family in [Family::A, Family::B, Family::C] {
        let regions = Regions::new();
        let (server, table) = (Server::over(&regions), Table::new(&regions));
        let mut sessions = [session(&server, &table, family, MIB)];
        for size in [1, 7, 4096, 100_001, MIB] {
            let before = Counters::read(&mut server.client()).unwrap().unwrap();
            let samples = run(&plan(size, 3, Only::Both), &mut sessions).unwrap();
            assert_eq!(samples.len(), 6);
            assert!(samples.iter().all(|s| s.rdma && s.fell_back.is_none() && s.bytes == size as u64));
            // Every GET was compared, with a content of its own.
            let gets: Vec<_> = samples.iter().filter(|s| s.direction == Direction::Get).collect();
            assert!(gets.len() == 3 && gets.iter().all(|s| s.compared));
            assert!(size < 8 || gets[0].crc32 != gets[1].crc32);
            let after = Counters::read(&mut server.client()).unwrap().unwrap();
            assert_eq!(after.differences(&before, &bench::rise(&samples), true), Vec::<String>::new());
            assert_eq!(after.read_bytes.unwrap() - before.read_bytes.unwrap(), 3 * size as u64);
            let row = Row::new(size as u64, Direction::Get, &samples).unwrap();
            assert_eq!((row.n, row.rdma, row.http), (3, 3, 0));
            assert!(row.min_us > 0.0 && row.min_us <= row.p50_us && row.p50_us <= row.max_us && row.gbps > 0.0);
        }
        assert_eq!(sessions[0].session().client().connections(), 1, "one connection is kept");
    }
}

#[test]
fn several_connections_have_an_object_each() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    let mut sessions: Vec<_> = (0..3).map(|_| session(&server, &table, Family::A, 65_536)).collect();
    let samples = run(&plan(65_536, 4, Only::Both), &mut sessions).unwrap();
    assert_eq!(samples.len(), 2 * 3 * 4);
    for connection in 0..3 {
        assert_eq!(samples.iter().filter(|s| s.connection == connection && s.rdma).count(), 8);
    }
    // PUTs and GETs do not overlap: in each iteration the last PUT ends before the first GET begins.
    for iteration in 0..4 {
        let of = |direction| samples.iter().filter(move |s| s.direction == direction && s.iteration == iteration);
        let last = of(Direction::Put).map(|s| s.end).max().unwrap();
        assert!(of(Direction::Get).all(|s| s.begin >= last));
    }
    let keys: Vec<_> = server.client().list(BUCKET, "").unwrap().into_iter().map(|object| object.key).collect();
    assert_eq!(keys, ["key-1", "key-2", "key-3"]);
    assert_eq!(server.counts(), [12, 12 * 65_536, 12, 12 * 65_536]);
}

#[test]
fn the_body_path_moves_the_same_bytes_without_rdma() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    let mut sessions = [plain(&server, 3 * MIB + 5)];
    let samples = run(&plan(3 * MIB + 5, 2, Only::Both), &mut sessions).unwrap();
    assert!(samples.iter().all(|s| !s.rdma && s.fell_back.is_none()));
    assert_eq!(server.counts(), [0; 4]);
    let metrics = server.service.metrics();
    assert_eq!((metrics.body_reads(), metrics.body_writes()), (2, 2));
    // What another run has stored is fetched and compared with the CRC32 that it left: by RDMA, and by the body.
    let stored = samples.last().unwrap().crc32;
    for mut other in [session(&server, &table, Family::A, 3 * MIB + 5), plain(&server, 3 * MIB + 5)] {
        let samples = run(&plan(3 * MIB + 5, 1, Only::Get), std::slice::from_mut(&mut other)).unwrap();
        assert_eq!((samples[0].crc32, samples[0].compared), (stored, true));
    }
}

#[test]
fn only_one_direction_is_made_where_only_one_is_wanted() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    let mut sessions = [session(&server, &table, Family::A, 4096)];
    assert_eq!(run(&plan(4096, 2, Only::Put), &mut sessions).unwrap().len(), 2);
    assert_eq!(server.counts(), [0, 0, 2, 8192]);
    assert_eq!(run(&plan(4096, 2, Only::Get), &mut sessions).unwrap().len(), 2);
    assert_eq!(server.counts(), [2, 8192, 2, 8192]);
}

#[test]
fn an_object_of_somebody_else_is_fetched_and_not_compared() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    let request =
        ernic_client::s3::Request::new("PUT", BUCKET, "key").body(ernic_client::s3::Body::Bytes(b"123456789"));
    assert_eq!(server.client().call(&request, None).unwrap().status, 200);
    let mut sessions = [session(&server, &table, Family::A, 9)];
    let samples = run(&plan(9, 1, Only::Get), &mut sessions).unwrap();
    // CRC32("123456789") = cbf43926, the check value of its definition.
    assert_eq!((samples[0].crc32, samples[0].compared), (0xcbf4_3926, false));
}

#[test]
fn declined_and_failed_transfers_fall_back_and_say_so() {
    // Transfers are counted from 1: PUT, GET, PUT, GET, …
    for (faults, signals) in [
        ("decline@1", [Some(Signal::Declined), None, None, None]),
        ("decline@2", [None, Some(Signal::Declined), None, None]),
        ("fail@3", [None, None, Some(Signal::Failed), None]),
        ("fail@4,decline@1", [Some(Signal::Declined), None, None, Some(Signal::Failed)]),
    ] {
        let (server, table) = faulty(faults, None);
        let mut sessions = [session(&server, &table, Family::A, 100_000)];
        let samples = run(&plan(100_000, 2, Only::Both), &mut sessions).unwrap();
        assert_eq!(samples.iter().map(|s| s.fell_back).collect::<Vec<_>>(), signals, "{faults}");
        assert!(samples.iter().all(|s| s.rdma == s.fell_back.is_none()));
        let http = signals.iter().flatten().count();
        let rows = [Direction::Put, Direction::Get].map(|d| Row::new(100_000, d, &samples).unwrap());
        assert_eq!(rows.iter().map(|row| row.http).sum::<usize>(), http);
        let [reads, _, writes, _] = server.counts();
        assert_eq!(reads + writes, 4 - http as u64);
    }
}

#[test]
fn everything_falls_back_where_rdma_is_off() {
    let server = Server::start(Setup::default());
    let table = Table::new(&Regions::new());
    let mut sessions = [session(&server, &table, Family::C, 4096)];
    let samples = run(&plan(4096, 2, Only::Both), &mut sessions).unwrap();
    assert!(samples.iter().all(|s| !s.rdma && s.fell_back == Some(Signal::Declined)));
    assert_eq!(table.regions.moved().opened, 0);
}

#[test]
fn an_error_without_a_reply_falls_back_too() {
    // The third signal: the first transfer fails, and nothing says how.
    let tamper: Tamper = Arc::new(|head| match head.starts_with("HTTP/1.1 501") {
        true => change(head, "x-amz-rdma-reply", |_| None),
        false => head.to_owned(),
    });
    let (server, table) = faulty("decline@1", Some(tamper));
    let mut sessions = [session(&server, &table, Family::A, 4096)];
    let samples = run(&plan(4096, 1, Only::Both), &mut sessions).unwrap();
    assert_eq!(samples.iter().map(|s| s.fell_back).collect::<Vec<_>>(), [Some(Signal::NoReply), None]);
}

fn request_error(result: Result<Vec<Sample>, BenchError>) -> ClientError {
    match result {
        Err(BenchError::Request { source, .. }) => *source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_success_without_a_reply_is_an_error_and_no_reason_to_fall_back() {
    let (server, table) = faulty("no-reply@2", None);
    let mut sessions = [session(&server, &table, Family::A, 4096)];
    let error = request_error(run(&plan(4096, 3, Only::Both), &mut sessions));
    assert!(matches!(error, ClientError::Violation(Violation::NoReply(200))), "{error}");
    assert_eq!(server.service.metrics().body_reads(), 0);
}

#[test]
fn a_short_transfer_is_an_error() {
    let (server, table) = faulty("short@2", None);
    let mut sessions = [session(&server, &table, Family::A, 4096)];
    let error = request_error(run(&plan(4096, 1, Only::Both), &mut sessions));
    let due = Violation::WrongCount { counted: 4095, expected: 4096 };
    assert!(matches!(error, ClientError::Violation(ref violation) if *violation == due), "{error}");
    // Of a PUT, the server itself finds it and says so: that is a signal.
    let (server, table) = faulty("short@1", None);
    let mut sessions = [session(&server, &table, Family::A, 4096)];
    let samples = run(&plan(4096, 1, Only::Both), &mut sessions).unwrap();
    assert_eq!(samples[0].fell_back, Some(Signal::Failed));
    assert_eq!(server.counts(), [1, 4096, 0, 0]);
}

#[test]
fn an_object_that_differs_is_found_by_its_crc32() {
    let regions = Regions::new();
    let memory = Arc::new(Tricky { regions: regions.clone(), trick: Trick::Flip });
    let server = Server::start(Setup { memory: Some(memory), ..Setup::default() });
    let table = Table::new(&regions);
    let mut stored = [plain(&server, 5000)];
    let samples = run(&plan(5000, 1, Only::Put), &mut stored).unwrap();
    let mut sessions = [session(&server, &table, Family::A, 5000)];
    match run(&plan(5000, 1, Only::Get), &mut sessions) {
        Err(BenchError::Crc32 { got, due, .. }) => assert_eq!((due, got == due), (samples[0].crc32, false)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_session_that_fails_does_not_keep_the_others_waiting() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    let mut sessions: Vec<_> = (0..2).map(|_| session(&server, &table, Family::A, 4096)).collect();
    let lost = Session::new("http://127.0.0.1:1".parse().unwrap(), None, None, 4096).unwrap();
    sessions.push(Worker::new(lost).unwrap());
    let error = request_error(run(&plan(4096, 5, Only::Both), &mut sessions));
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert_eq!(server.counts()[0], 10, "the others made all of theirs");
}

#[test]
fn errors_of_s3_are_no_reason_to_fall_back() {
    let regions = Regions::new();
    let server = Server::start(Setup { memory: Some(Arc::new(regions.clone())), max_part: 4096, ..Setup::default() });
    let table = Table::new(&regions);
    let mut sessions = [session(&server, &table, Family::A, 8192)];
    for (plan, status, code) in [
        (plan(8192, 1, Only::Get), 404, "NoSuchKey"),
        (plan(8192, 1, Only::Put), 400, "EntityTooLarge"),
        (Plan { bucket: "none".into(), ..plan(4096, 1, Only::Put) }, 404, "NoSuchBucket"),
    ] {
        match request_error(run(&plan, &mut sessions)) {
            ClientError::Refused(refusal) => assert_eq!((refusal.status, refusal.code.as_str()), (status, code)),
            other => panic!("{other}"),
        }
    }
    let metrics = server.service.metrics();
    assert_eq!((metrics.body_reads(), metrics.body_writes(), server.store.usage().objects), (0, 0, 0));
}

#[test]
fn an_object_of_another_size_is_an_error() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    run(&plan(4096, 1, Only::Put), &mut [session(&server, &table, Family::A, 4096)]).unwrap();
    // Shorter than due, by RDMA and by the body.
    let error = request_error(run(&plan(5000, 1, Only::Get), &mut [session(&server, &table, Family::A, 5000)]));
    assert_eq!(error.to_string(), "protocol violation: 4096 bytes moved where 5000 were due");
    let error = request_error(run(&plan(5000, 1, Only::Get), &mut [plain(&server, 5000)]));
    assert_eq!(error.to_string(), "protocol violation: 4096 bytes moved where 5000 were due");
    // Longer than due, by the body: not a byte is written behind the region.
    let error = request_error(run(&plan(4000, 1, Only::Get), &mut [plain(&server, 4000)]));
    assert_eq!(error.to_string(), "bad answer: more than the 4000 bytes that the object should have");
}

#[test]
fn connections_are_kept_or_not() {
    let regions = Regions::new();
    let (server, table) = (Server::over(&regions), Table::new(&regions));
    let config = Config { keep_alive: false, ..server.config() };
    let session = Session::with_config(config, Some(Arc::new(table)), 4096).unwrap();
    let mut sessions = [Worker::new(session).unwrap()];
    run(&plan(4096, 3, Only::Both), &mut sessions).unwrap();
    assert_eq!(sessions[0].session().client().connections(), 6);
    assert_eq!(server.service.metrics().connections(), 6);
}
