//! Connecting, transferring and disconnecting, over and over: what a program that does so for days must not leave behind.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{Carrier, ClientError, Session, bench::BenchError, transfer::Direction};

/// Rounds before memory and descriptors are looked at for the first time: by then everything has been allocated once.
const WARM_UP: u32 = 20;

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The bucket.
    pub bucket: String,
    /// The object.
    pub key: String,
    /// Bytes of the object, at most those of each session's buffer.
    pub size: u64,
    /// Rounds.
    pub rounds: u32,
    /// No round begins after this time.
    pub most: Option<Duration>,
}

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Open descriptors; `None` where the system does not tell.
    pub descriptors: Option<u64>,
    /// Resident memory in KiB; `None` where the system does not tell.
    pub rss_kib: Option<u64>,
}

impl Usage {
    /// That of this process, from `/proc/self`.
    #[must_use]
    pub fn now() -> Self {
        // The folder that is being read has a descriptor of its own.
        let descriptors = fs::read_dir("/proc/self/fd").ok().map(|entries| (entries.count() as u64).saturating_sub(1));
        let status = fs::read_to_string("/proc/self/status").ok();
        let line = status.as_deref().and_then(|status| status.lines().find_map(|line| line.strip_prefix("VmRSS:")));
        let rss_kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        Self { descriptors, rss_kib }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Rounds that were made, each with a session of its own, a PUT and a GET.
    pub rounds: u32,
    /// Transfers by RDMA.
    pub rdma: u64,
    /// Transfers by HTTP.
    pub http: u64,
    /// Bytes that were stored and fetched back.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// After the first rounds.
    pub start: Usage,
    /// After the last.
    pub end: Usage,
}

/// Runs the plan. Each round takes a new session from `connect`, with a new buffer, stores an object that no other round stores,
/// fetches it back, compares every byte, and lets go of all of it. `each` hears of every hundredth round.
///
/// Errors: the first that a round meets.
pub fn run(
    plan: &Plan,
    connect: &mut dyn FnMut() -> Result<Session, ClientError>,
    each: &mut dyn FnMut(u32),
) -> Result<Report, BenchError> {
    let begin = Instant::now();
    let mut report =
        Report { rounds: 0, rdma: 0, http: 0, bytes: 0, seconds: 0.0, start: Usage::now(), end: Usage::now() };
    for round in 1..=plan.rounds {
        if plan.most.is_some_and(|most| begin.elapsed() >= most) {
            break;
        }
        let failed = |direction| {
            let key = plan.key.clone();
            move |source| BenchError::Request { direction, key, source: Box::new(source) }
        };
        let mut session = connect().map_err(failed(Direction::Put))?;
        let mut buffer = session.buffer().map_err(|error| failed(Direction::Put)(error.into()))?;
        let seed = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(seed);
        buffer.fill(0, plan.size, |piece| rng.fill(piece));
        let sent = session.upload(&plan.bucket, &plan.key, &buffer, plan.size).map_err(failed(Direction::Put))?;
        buffer.fill(0, plan.size, |piece| piece.fill(0xd7));
        let came = session.download_exact(&plan.bucket, &plan.key, &mut buffer, plan.size);
        let came = came.map_err(failed(Direction::Get))?;
        let (mut rng, mut due, mut at, mut wrong) = (fastrand::Rng::with_seed(seed), Vec::new(), 0, None);
        buffer.look(0, plan.size, |piece| {
            due.resize(piece.len(), 0);
            rng.fill(&mut due);
            let differs = piece.iter().zip(&due).position(|(got, due)| got != due);
            if let (None, Some(differs)) = (wrong, differs) {
                wrong = Some(at + differs as u64);
            }
            at += piece.len() as u64;
        });
        if let Some(byte) = wrong {
            return Err(BenchError::Byte { key: plan.key.clone(), byte, round });
        }
        for transfer in [&sent, &came] {
            match transfer.carrier {
                Carrier::Rdma => report.rdma += 1,
                Carrier::Http => report.http += 1,
            }
        }
        report.bytes += plan.size;
        report.rounds = round;
        drop(buffer);
        session.close();
        if round <= WARM_UP {
            report.start = Usage::now();
        }
        if round % 100 == 0 {
            each(round);
        }
    }
    report.end = Usage::now();
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_what_it_holds() {
        let before = Usage::now();
        let file = fs::File::open("/dev/null");
        let during = Usage::now();
        drop(file);
        if let (Some(before), Some(during)) = (before.descriptors, during.descriptors) {
            // Other tests open files meanwhile.
            assert!(before > 0 && during > 0);
        }
        assert_eq!(before.rss_kib.is_some(), cfg!(target_os = "linux"));
        assert_ne!(before.rss_kib, Some(0));
    }
}
