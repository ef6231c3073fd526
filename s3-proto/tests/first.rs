//! Clients that connect only once they have read the answer, as hipObject's first ones do.

mod common;
#[path = "common/lab.rs"]
mod lab;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use common::*;
use futures_util::FutureExt;
use lab::*;
use rdma_token::{
    AnswerFirst, Family, RcEndpoint, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Reply, Task, Token,
    TokenHeader, names, testing::Regions,
};
use s3_proto::{RdmaConfig, S3Config};

fn memory() -> Box<dyn ClientMemory> {
    Box::new(Regions::new())
}

/// Memory that is reached only by tasks that run after the answer.
struct Later {
    of: Arc<Probe>,
    tasks: Arc<Mutex<Vec<Task>>>,
}

const END: RcEndpoint = RcEndpoint { qpn: 0x1234, gid: [7; 16], lid: 9, psn: 0, staging: None };

#[async_trait]
impl RemoteMemory for Later {
    async fn open(&self, _: &TokenHeader, _: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        Err(RemoteError::Unsupported("tokens of queue pairs that are not connected".to_owned()))
    }

    async fn answer_first(&self, header: &TokenHeader) -> Result<Option<AnswerFirst>, RemoteError> {
        if header.family() == Family::C {
            return Ok(None);
        }
        let window = self.of.open(header, RemoteAccess::Write).await?;
        let tasks = Arc::clone(&self.tasks);
        Ok(Some(AnswerFirst { endpoint: END, window, spawn: Box::new(move |task| tasks.lock().unwrap().push(task)) }))
    }
}

fn later() -> (Lab, Arc<Mutex<Vec<Task>>>) {
    let tasks = Arc::<Mutex<Vec<Task>>>::default();
    let theirs = Arc::clone(&tasks);
    let lab = lab_with(S3Config::default(), |builder, of| {
        builder.with_remote(Arc::new(Later { of, tasks: theirs }), RdmaConfig::new(ENDPOINT))
    });
    (lab, tasks)
}

/// Runs what was left to run, to its end: nothing here waits for anything but its turn.
fn run(tasks: &Mutex<Vec<Task>>) -> usize {
    let tasks = std::mem::take(&mut *tasks.lock().unwrap());
    let count = tasks.len();
    for mut task in tasks {
        while (&mut task).now_or_never().is_none() {}
    }
    count
}

#[test]
fn the_answer_names_the_endpoint_and_the_bytes_come_behind_it() {
    let (lab, tasks) = later();
    // More than one turn's worth.
    let content = pattern(MIB + 5);
    lab.put("k", &content);
    let target = lab.blank(content.len());
    let answer = lab.call(&get("/ernic/k").token(&target.whole(Family::A)));
    answer.expect(200);
    let reply = answer.header(names::REPLY).expect("a reply").parse::<Reply>().unwrap();
    assert_eq!(reply, Reply::Token(Token::endpoint(END.qpn, END.gid, END.lid)));
    assert_eq!(answer.header(names::BYTES), Some(content.len().to_string().as_str()));
    assert!(
        lab.memory.content(target.rkey).iter().all(|byte| *byte == BLANK),
        "nothing before the client has read the answer"
    );
    assert_eq!((lab.counts().reads, lab.service.metrics().rdma_active()), ([0, 0], 1));
    assert_eq!(run(&tasks), 1);
    assert_eq!(lab.memory.content(target.rkey), content);
    assert_eq!((lab.counts().reads, lab.service.metrics().rdma_active()), ([1, content.len() as u64], 0));
}

#[test]
fn what_cannot_be_answered_first_is_declined() {
    let (lab, tasks) = later();
    lab.put("k", b"0123456789");
    let target = lab.blank(10);
    let token = target.whole(Family::A);
    for request in [
        // Its answer is 206, behind which there is no token.
        get("/ernic/k").token(&token).header("range", "bytes=0-3"),
        get("/ernic/k").token(&target.whole(Family::C)),
        token_put("/ernic/new", &token),
    ] {
        let answer = lab.call(&request);
        answer.expect(501);
        assert_eq!(answer.header(names::REPLY), Some("501"));
    }
    // What S3 refuses needs no connection.
    lab.call(&get("/ernic/none").token(&token)).expect(404);
    assert_eq!((run(&tasks), lab.service.metrics().rdma_failures("unsupported")), (0, 3));
    assert!(lab.memory.content(target.rkey).iter().all(|byte| *byte == BLANK));
}

#[test]
fn a_task_that_is_dropped_is_a_transfer_given_up() {
    let (lab, tasks) = later();
    lab.put("k", b"0123456789");
    let target = lab.blank(10);
    lab.call(&get("/ernic/k").token(&target.whole(Family::A))).expect(200);
    tasks.lock().unwrap().clear();
    let metrics = lab.service.metrics();
    assert_eq!((metrics.rdma_failures("aborted"), metrics.rdma_active(), metrics.rdma_reads()), (1, 0, 0));
}
