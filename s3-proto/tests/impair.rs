//! Lane `s3-rdma`: faults on demand, and a line of limited rate.
#![allow(clippy::cast_possible_truncation)]

mod common;
#[path = "common/lab.rs"]
mod lab;

use std::{
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};

use common::*;
use lab::*;
use rdma_token::{Family, names, testing::Regions};
use s3_proto::{Impairment, RdmaConfig, S3Config, Timers};

/// The client's memory.
fn memory() -> Box<dyn ClientMemory> {
    Box::new(Regions::new())
}

fn impaired(faults: &str, rate: u64) -> (Lab, Timers) {
    let timers = Timers::new();
    let mut impairment = Impairment::new(Arc::new(timers.clone()));
    if !faults.is_empty() {
        impairment.faults = faults.parse().unwrap();
    }
    impairment.rate = NonZeroU64::new(rate);
    let rdma = RdmaConfig { impairment: Some(impairment), ..RdmaConfig::new(ENDPOINT) };
    (lab_of(S3Config::default(), rdma), timers)
}

#[test]
fn the_nth_transfer_is_declined_or_fails() {
    let (lab, _) = impaired("decline@2,fail@every:3", 0);
    let content = pattern(1000);
    lab.put("k", &content);
    let source = lab.region(&content);
    let mut statuses = Vec::new();
    for i in 0..7 {
        // What S3 refuses is no transfer.
        lab.call(&get("/ernic/none").token(&source.whole(Family::A))).expect(404);
        let request = match i % 2 {
            0 => get("/ernic/k").token(&source.whole(Family::A)),
            _ => token_put("/ernic/new", &source.whole(Family::C)),
        };
        let (before, moved) = (lab.counts(), lab.probe.moved());
        let answer = lab.call(&request);
        statuses.push(answer.status);
        match answer.status {
            200 => {}
            501 => {
                answer.expect_error(501, "NotImplemented", "/ernic/new");
                answer.expect_reply(Some("501"), Some(0));
                assert_eq!((lab.counts(), lab.probe.moved()), (before, moved), "nothing has moved");
                lab.call(&get("/ernic/new")).expect(404);
            }
            _ => {
                answer.expect_reply(Some("503"), Some(0));
                assert_eq!(answer.header("retry-after"), Some("1"));
                assert_eq!(answer.xml().text_of("Code"), "RDMATransferError");
                let half: u64 = lab.probe.moved().iter().sum::<u64>() - moved.iter().sum::<u64>();
                assert_eq!((lab.counts(), half), (before, 500), "half of it has moved, and counts nowhere");
            }
        }
    }
    assert_eq!(statuses, [200, 501, 503, 200, 200, 503, 200]);
    assert_eq!(lab.failures("fault"), 3);
}

#[test]
fn a_short_transfer_moves_one_byte_less() {
    let (lab, _) = impaired("short", 0);
    let content = pattern(1000);
    lab.put("k", &content);
    for family in FAMILIES {
        let target = lab.blank(1000);
        lab.call(&get("/ernic/k").token(&target.whole(family))).expect_moved(family, 200, 999);
        assert_eq!(lab.memory.content(target.rkey), [&content[..999], &[BLANK]].concat());
        let source = lab.region(&content);
        let answer = lab.call(&token_put("/ernic/k", &source.whole(family)));
        answer.expect_error(503, "RDMATransferError", "/ernic/k");
        answer.expect_reply(Some("503"), Some(0));
    }
    assert_eq!(lab.get("k"), content);
    assert_eq!(lab.counts(), Counts { reads: [5, 5 * 999], writes: [0, 0] });
    // There is nothing to take away from nothing.
    lab.put("empty", b"");
    lab.call(&get("/ernic/empty").token(&lab.blank(5).whole(Family::A))).expect_moved(Family::A, 200, 0);
}

#[test]
fn a_reply_gets_lost() {
    let (lab, _) = impaired("no-reply@every:2", 0);
    let content = pattern(1000);
    let source = lab.region(&content);
    for lost in [false, true] {
        let answer = lab.call(&token_put("/ernic/k", &source.whole(Family::C)));
        answer.expect(200);
        assert_eq!(answer.header(names::REPLY), if lost { None } else { Some("200") });
        assert_eq!(answer.header(names::BYTES), Some("1000"));
        assert_eq!(lab.get("k"), content, "it happened all the same");
    }
    assert_eq!(lab.counts().writes, [2, 2000]);
}

#[test]
fn a_delay_waits_and_holds_nobody_else() {
    let (lab, timers) = impaired("delay=250ms@1", 0);
    lab.put("k", b"content");
    let target = lab.blank(10);
    let get = get("/ernic/k").token(&target.whole(Family::A));
    let mut slow = lab.client();
    slow.send(&get.bytes());
    assert_eq!((slow.output_len(), lab.probe.moved()), (0, [0, 0]));
    assert_eq!(timers.next(), Some(Duration::from_millis(250)));
    let turns = slow.turns;
    lab.call(&get).expect_moved(Family::A, 200, 7);
    timers.advance(Duration::from_millis(249));
    slow.run();
    assert_eq!((slow.output_len(), slow.turns), (0, turns), "it sleeps");
    timers.advance(Duration::from_millis(250));
    slow.run();
    slow.answer("GET").expect_moved(Family::A, 200, 7);
    // A client that does not wait leaves no timer behind.
    let (lab, timers) = impaired("delay=1s", 0);
    lab.put("k", b"content");
    let mut client = lab.client();
    client.send(&get.bytes());
    assert!(timers.next().is_some());
    drop(client);
    assert_eq!((timers.next(), lab.failures("aborted")), (None, 1));
}

#[test]
fn the_link_goes_down() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let of_service = Arc::clone(&seen);
    let impairment = Impairment {
        faults: "link-down=2s@2".parse().unwrap(),
        link_down: Some(Arc::new(move |time| of_service.lock().unwrap().push(time))),
        ..Impairment::new(Arc::new(Timers::new()))
    };
    let rdma = RdmaConfig { impairment: Some(impairment), ..RdmaConfig::new(ENDPOINT) };
    let lab = lab_of(S3Config::default(), rdma);
    let source = lab.region(&pattern(10));
    for expected in [0, 1, 1] {
        lab.call(&token_put("/ernic/k", &source.whole(Family::A))).expect_moved(Family::A, 200, 10);
        assert_eq!(*seen.lock().unwrap(), vec![Duration::from_secs(2); expected]);
    }
}

#[test]
fn a_rate_is_shared_by_all_transfers() {
    let (lab, timers) = impaired("", 1_000_000);
    let content = pattern(MIB);
    lab.put("k", &content);
    let (source, target) = (lab.region(&content), lab.blank(MIB));
    let mut clients = [lab.client(), lab.client()];
    clients[0].send(&get("/ernic/k").token(&target.whole(Family::A)).bytes());
    clients[1].send(&token_put("/ernic/new", &source.whole(Family::A)).bytes());
    while let Some(next) = timers.next() {
        timers.advance(next);
        clients.iter_mut().for_each(Client::run);
    }
    for (client, method) in clients.iter_mut().zip(["GET", "PUT"]) {
        client.answer(method).expect_moved(Family::A, 200, MIB as u64);
    }
    // Two MiB at 1 MB/s, but for the slack of 2 ms.
    use s3_proto::Pacer;
    let took = timers.now();
    assert!(took.abs_diff(Duration::from_micros(2 * MIB as u64)) <= Duration::from_millis(3), "{took:?}");
    assert!(lab.memory.content(target.rkey) == content && lab.get("new") == content);
    // Bodies are not throttled.
    assert_eq!(timers.next(), None);
}
