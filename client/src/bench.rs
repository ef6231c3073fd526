//! Measuring transfers: every iteration stores an object and fetches it back, and checks that it is the same.

use std::{
    fmt,
    io::{self, Write},
    sync::{Barrier, mpsc},
    thread,
    time::{Duration, Instant},
};

use crc_fast::CrcAlgorithm;
use serde::Serialize;

use crate::{
    Buffer, Carrier, ClientError, Session, Transfer,
    counters::Rise,
    memory::MemoryError,
    size,
    transfer::{Direction, Signal},
};

/// Bytes at an object's beginning that are others in each iteration, so that an object of the iteration before is not taken
/// for this one's.
const STAMP: u64 = 8;

/// What a region holds before a GET.
const POISON: u8 = 0xd7;

/// The CRC32 of zip and Ethernet, as cuobjtest uses it.
const CRC32: CrcAlgorithm = CrcAlgorithm::Crc32IsoHdlc;

/// The header with which objects are stored together with their CRC32, eight hex digits.
const CRC32_HEADER: &str = "x-amz-meta-crc32";
/// Its name among an object's metadata.
const CRC32_NAME: &str = "crc32";

/// A connection that is measured, and its buffer. Objects go from and to the buffer's first byte.
#[derive(Debug)]
pub struct Worker {
    session: Session,
    buffer: Buffer,
}

impl Worker {
    /// With a buffer of its own. Errors: those of [`Session::buffer`].
    pub fn new(session: Session) -> Result<Self, MemoryError> {
        let buffer = session.buffer()?;
        Ok(Self { session, buffer })
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// Which transfers are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    /// PUT and GET.
    Both,
    /// PUT alone.
    Put,
    /// GET alone, of objects that are there.
    Get,
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The bucket.
    pub bucket: String,
    /// The object; with several connections each has its own, with a dash and its number behind.
    pub key: String,
    /// Bytes of the object, at most those of each session's buffer.
    pub size: u64,
    /// Iterations.
    pub iterations: u32,
    /// Which transfers.
    pub only: Only,
}

/// One transfer.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Which way.
    pub direction: Direction,
    /// Connection, from 0.
    pub connection: usize,
    /// Iteration, from 0.
    pub iteration: u32,
    /// Bytes.
    pub bytes: u64,
    /// When the request began.
    pub begin: Instant,
    /// When its answer was complete.
    pub end: Instant,
    /// Whether it went by RDMA.
    pub rdma: bool,
    /// Why it did not, if it should have.
    pub fell_back: Option<Signal>,
    /// CRC32 of the object.
    pub crc32: u32,
    /// Whether that was compared with one that was known: always, unless an object that somebody else has stored is fetched.
    pub compared: bool,
}

impl Sample {
    /// From the request to the end of its answer.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.end.saturating_duration_since(self.begin)
    }
}

/// `iteration 1: PUT 4194304 bytes in 1234.5 us, 3.398 GB/s, crc32 0123abcd`.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, bytes, crc32, .. } = self;
        let seconds = self.latency().as_secs_f64();
        write!(f, "iteration {}", self.iteration + 1)?;
        if self.connection > 0 {
            write!(f, " connection {}", self.connection + 1)?;
        }
        write!(f, ": {direction} {bytes} bytes in {:.1} us, {:.3} GB/s", seconds * 1e6, gbps(*bytes, seconds))?;
        write!(f, ", crc32 {crc32:08x}")?;
        match (direction, self.compared) {
            (Direction::Get, true) => f.write_str(" ok")?,
            (Direction::Get, false) => f.write_str(" not compared")?,
            (Direction::Put, _) => {}
        }
        match self.fell_back {
            Some(signal) => write!(f, " (by HTTP: {signal})"),
            None => Ok(()),
        }
    }
}

/// 10⁹ bytes per second, as in the project's benchmarks. 0 for no time.
#[allow(clippy::cast_precision_loss)] // sizes are far below 2^53
fn gbps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 }
}

/// What a number of transfers of the same kind come to. Times are in microseconds, from the request to the end of its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of the object.
    pub size: u64,
    /// `GET` or `PUT`.
    pub op: String,
    /// Transfers.
    pub n: usize,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Fastest.
    pub min_us: f64,
    /// Slowest.
    pub max_us: f64,
    /// 10⁹ bytes per second of the time in which at least one of them was under way.
    pub gbps: f64,
    /// How many went by RDMA.
    pub rdma: usize,
    /// How many went by HTTP body.
    pub http: usize,
}

impl Row {
    /// Sums up the samples of one direction. `None` if there are none.
    #[must_use]
    pub fn new(size: u64, direction: Direction, samples: &[Sample]) -> Option<Self> {
        let samples: Vec<_> = samples.iter().filter(|sample| sample.direction == direction).collect();
        let mut times: Vec<f64> = samples.iter().map(|sample| sample.latency().as_secs_f64() * 1e6).collect();
        times.sort_by(f64::total_cmp);
        let (min_us, max_us) = (*times.first()?, *times.last()?);
        let spans = samples.iter().map(|sample| (sample.begin, sample.end)).collect();
        let bytes = samples.iter().map(|sample| sample.bytes).sum();
        let rdma = samples.iter().filter(|sample| sample.rdma).count();
        Some(Self {
            size,
            op: direction.to_string(),
            n: samples.len(),
            p50_us: percentile(&times, 50),
            p90_us: percentile(&times, 90),
            p99_us: percentile(&times, 99),
            min_us,
            max_us,
            gbps: gbps(bytes, busy(spans).as_secs_f64()),
            rdma,
            http: samples.len() - rdma,
        })
    }
}

/// The smallest of the sorted values that at least `percent` percent of them do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// How long at least one of the spans lasted.
fn busy(mut spans: Vec<(Instant, Instant)>) -> Duration {
    spans.sort();
    let mut total = Duration::ZERO;
    let mut until: Option<Instant> = None;
    for (begin, end) in spans {
        let begin = until.map_or(begin, |until| begin.max(until));
        total += end.saturating_duration_since(begin);
        until = Some(until.map_or(end, |until| end.max(until)));
    }
    total
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A request failed.
    #[error("{direction} of '{key}': {source}")]
    Request {
        /// Which way.
        direction: Direction,
        /// The object.
        key: String,
        /// What failed.
        source: Box<ClientError>,
    },
    /// The object that came is not the one that was stored.
    #[error("GET of '{key}': crc32 is {got:08x} where {due:08x} was due")]
    Crc32 {
        /// The object.
        key: String,
        /// Of what came.
        got: u32,
        /// Of what was stored.
        due: u32,
    },
    /// One of its bytes is not the one that was stored.
    #[error("GET of '{key}' in round {round}: byte {byte} is not the one that was stored")]
    Byte {
        /// The object.
        key: String,
        /// Which byte.
        byte: u64,
        /// In which round.
        round: u32,
    },
}

/// Runs the plan with one thread for each worker. Each iteration, all store, and when the last has, all fetch: transfers of
/// different kinds do not overlap. `each` sees the samples as they come.
///
/// Errors: the first that one of them meets; the others end their iteration.
pub fn run(plan: &Plan, workers: &mut [Worker], each: &mut dyn FnMut(&Sample)) -> Result<Vec<Sample>, BenchError> {
    let barrier = Barrier::new(workers.len());
    let (sender, receiver) = mpsc::channel();
    let several = workers.len() > 1;
    thread::scope(|scope| {
        for (connection, worker) in workers.iter_mut().enumerate() {
            let (barrier, sender) = (&barrier, sender.clone());
            let key = if several { format!("{}-{}", plan.key, connection + 1) } else { plan.key.clone() };
            scope.spawn(move || work(plan, worker, connection, &key, barrier, &sender));
        }
        drop(sender);
        let mut samples = Vec::new();
        let mut failed = None;
        for message in receiver {
            match message {
                Ok(sample) => {
                    each(&sample);
                    samples.push(sample);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(samples), Err)
    })
}

/// One worker's transfers. After an error it only keeps the others from waiting for it.
fn work(
    plan: &Plan,
    worker: &mut Worker,
    connection: usize,
    key: &str,
    barrier: &Barrier,
    sender: &mpsc::Sender<Result<Sample, BenchError>>,
) {
    let mut content = (plan.only != Only::Get).then(|| Content::new(&mut worker.buffer, plan.size));
    let mut alive = true;
    for iteration in 0..plan.iterations {
        for direction in [Direction::Put, Direction::Get] {
            let skipped = match direction {
                Direction::Put => plan.only == Only::Get,
                Direction::Get => plan.only == Only::Put,
            };
            if skipped {
                continue;
            }
            let ready = alive.then(|| prepare(plan, &mut worker.buffer, direction, content.as_mut()));
            barrier.wait();
            if ready.is_some() {
                let result =
                    transfer(plan, worker, direction, key, content.as_ref()).map(|(transfer, crc32, compared)| {
                        Sample {
                            direction,
                            connection,
                            iteration,
                            bytes: transfer.bytes,
                            begin: transfer.begin,
                            end: transfer.end,
                            rdma: transfer.carrier == Carrier::Rdma,
                            fell_back: transfer.fell_back.map(|(signal, _)| signal),
                            crc32,
                            compared,
                        }
                    });
                alive = result.is_ok();
                // Nobody receives any more only if the main thread is gone.
                let _ = sender.send(result);
            }
            // Nobody's memory is filled while another's transfer is measured.
            barrier.wait();
        }
    }
}

/// Makes the buffer ready, before the clock starts.
fn prepare(plan: &Plan, buffer: &mut Buffer, direction: Direction, content: Option<&mut Content>) {
    match direction {
        Direction::Put => {
            if let Some(content) = content {
                content.write(buffer);
            }
        }
        Direction::Get => buffer.fill(0, plan.size, |piece| piece.fill(POISON)),
    }
}

/// Makes one transfer and checks it. Returns it, the object's CRC32, and whether that was compared.
fn transfer(
    plan: &Plan,
    worker: &mut Worker,
    direction: Direction,
    key: &str,
    content: Option<&Content>,
) -> Result<(Transfer, u32, bool), BenchError> {
    let Worker { session, buffer } = worker;
    let request = |source| BenchError::Request { direction, key: key.to_owned(), source: Box::new(source) };
    match direction {
        Direction::Put => {
            let crc32 = content.map_or(0, Content::crc32);
            let headers = [(CRC32_HEADER, &*format!("{crc32:08x}"))];
            let transfer = session.upload_with(&plan.bucket, key, buffer, plan.size, &headers).map_err(request)?;
            Ok((transfer, crc32, false))
        }
        Direction::Get => {
            let transfer = session.download_exact(&plan.bucket, key, buffer, plan.size).map_err(request)?;
            let mut digest = crc_fast::Digest::new(CRC32);
            buffer.look(0, plan.size, |piece| digest.update(piece));
            let got = low(digest.finalize());
            // What this run has stored is known; what another one has stored says it itself.
            let stored = transfer.metadata(CRC32_NAME).and_then(|text| u32::from_str_radix(text, 16).ok());
            match content.map(Content::crc32).or(stored) {
                Some(due) if due != got => Err(BenchError::Crc32 { key: key.to_owned(), got, due }),
                due => Ok((transfer, got, due.is_some())),
            }
        }
    }
}

/// A CRC32 as the library gives it, in 64 bits.
fn low(crc: u64) -> u32 {
    u32::try_from(crc & u64::from(u32::MAX)).unwrap_or_default()
}

/// What a worker stores: random bytes that stay the same, behind a stamp that changes.
struct Content {
    size: u64,
    stamp: [u8; 8],
    /// CRC32 of all but the stamp.
    rest: u64,
}

impl Content {
    /// Fills the buffer.
    fn new(buffer: &mut Buffer, size: u64) -> Self {
        let mut rng = fastrand::Rng::new();
        let mut digest = crc_fast::Digest::new(CRC32);
        let stamp = STAMP.min(size);
        buffer.fill(stamp, size - stamp, |piece| {
            rng.fill(piece);
            digest.update(piece);
        });
        Self { size, stamp: [0; 8], rest: digest.finalize() }
    }

    /// Writes a new stamp. The rest is still there: what a GET has written over it was the same.
    fn write(&mut self, buffer: &mut Buffer) {
        self.stamp = fastrand::u64(..).to_le_bytes();
        buffer.write(0, &self.stamped());
    }

    /// As much of the stamp as the object has room for.
    fn stamped(&self) -> Vec<u8> {
        let n = usize::try_from(STAMP.min(self.size)).unwrap_or_default();
        self.stamp.iter().copied().take(n).collect()
    }

    /// CRC32 of the object.
    fn crc32(&self) -> u32 {
        let stamp = self.stamped();
        let rest = self.size - stamp.len() as u64;
        low(crc_fast::checksum_combine(CRC32, crc_fast::checksum(CRC32, &stamp), self.rest, rest))
    }
}

/// What the server's counters are to have risen by.
#[must_use]
pub fn rise(samples: &[Sample]) -> Rise {
    let mut rise = Rise::default();
    for Sample { direction, rdma, bytes, .. } in samples {
        match (direction, rdma) {
            (Direction::Get, true) => {
                rise.read_ops += 1;
                rise.read_bytes += bytes;
            }
            (Direction::Put, true) => {
                rise.write_ops += 1;
                rise.write_bytes += bytes;
            }
            (Direction::Get, false) => rise.body_reads += 1,
            (Direction::Put, false) => rise.body_writes += 1,
        }
    }
    rise
}

/// Writes rows as a table.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:>10}  {:<3} {:>5} {:>12} {:>12} {:>12} {:>9} {:>6} {:>6}\n",
        "size", "op", "n", "p50 us", "p90 us", "p99 us", "GB/s", "rdma", "http"
    );
    for Row { size, op, n, p50_us, p90_us, p99_us, gbps, rdma, http, .. } in rows {
        let size = size::text(*size);
        text.push_str(&format!(
            "{size:>10}  {op:<3} {n:>5} {p50_us:>12.1} {p90_us:>12.1} {p99_us:>12.1} {gbps:>9.3} {rdma:>6} {http:>6}\n"
        ));
    }
    text
}

/// Writes rows as comma-separated values with a line of names.
pub fn csv(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "size,op,n,p50_us,p90_us,p99_us,min_us,max_us,gbps,rdma,http")?;
    for Row { size, op, n, p50_us, p90_us, p99_us, min_us, max_us, gbps, rdma, http } in rows {
        writeln!(
            out,
            "{size},{op},{n},{p50_us:.3},{p90_us:.3},{p99_us:.3},{min_us:.3},{max_us:.3},{gbps:.6},{rdma},{http}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;

    fn sample(direction: Direction, base: Instant, begin_us: u64, end_us: u64, rdma: bool) -> Sample {
        let at = |us| base + Duration::from_micros(us);
        Sample {
            direction,
            connection: 0,
            iteration: 0,
            bytes: 1000,
            begin: at(begin_us),
            end: at(end_us),
            rdma,
            fell_back: (!rdma).then_some(Signal::Declined),
            crc32: 0x12ab,
            compared: true,
        }
    }

    #[test]
    fn time_is_counted_once_where_transfers_overlap() {
        let base = Instant::now();
        let at = |us| base + Duration::from_micros(us);
        assert_eq!(busy(vec![]), Duration::ZERO);
        assert_eq!(busy(vec![(at(0), at(10)), (at(20), at(25))]), Duration::from_micros(15));
        assert_eq!(busy(vec![(at(5), at(15)), (at(0), at(10)), (at(2), at(3))]), Duration::from_micros(15));
        assert_eq!(busy(vec![(at(0), at(10)), (at(10), at(12))]), Duration::from_micros(12));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([50, 90, 99, 100].map(|p| percentile(&values, p)), [50.0, 90.0, 99.0, 100.0]);
        assert_eq!([50, 99].map(|p| percentile(&[7.0], p)), [7.0, 7.0]);
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 50), 2.0);
    }

    #[test]
    fn rows_sum_up_one_direction() {
        let base = Instant::now();
        let samples = [
            sample(Direction::Get, base, 0, 10, true),
            sample(Direction::Get, base, 5, 25, true),
            sample(Direction::Get, base, 100, 115, false),
            sample(Direction::Put, base, 0, 1, true),
        ];
        let row = Row::new(1000, Direction::Get, &samples).unwrap();
        assert_eq!((row.n, row.rdma, row.http, row.op.as_str()), (3, 2, 1, "GET"));
        let round = |x: f64| (x * 1000.0).round() / 1000.0;
        assert_eq!(
            [row.min_us, row.p50_us, row.p90_us, row.p99_us, row.max_us].map(round),
            [10.0, 15.0, 20.0, 20.0, 20.0]
        );
        // 3000 bytes in 25 + 15 µs.
        assert_eq!(round(row.gbps), 0.075);
        assert_eq!(Row::new(1000, Direction::Get, &samples[3..]), None);
        let rise = rise(&samples);
        assert_eq!((rise.read_ops, rise.read_bytes, rise.body_reads), (2, 2000, 1));
        assert_eq!((rise.write_ops, rise.write_bytes, rise.body_writes), (1, 1000, 0));

        let mut text = Vec::new();
        csv(std::slice::from_ref(&row), &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "size,op,n,p50_us,p90_us,p99_us,min_us,max_us,gbps,rdma,http\n\
             1000,GET,3,15.000,20.000,20.000,10.000,20.000,0.075000,2,1\n"
        );
        let table = table(&[row]);
        assert!(table.contains("1000 B  GET     3") && table.contains("0.075      2      1"), "{table}");
        assert_eq!(
            samples[2].to_string(),
            "iteration 1: GET 1000 bytes in 15.0 us, 0.067 GB/s, crc32 000012ab ok (by HTTP: declined)"
        );
    }

    #[test]
    fn content_is_stamped_and_its_crc32_is_that_of_all_of_it() {
        for size in [1, 7, 8, 9, 1000, 600_000] {
            let session = Session::new("http://127.0.0.1:9".parse().unwrap(), None, None, size).unwrap();
            let mut buffer = session.buffer().unwrap();
            let mut content = Content::new(&mut buffer, size);
            let mut seen = Vec::new();
            for _ in 0..2 {
                content.write(&mut buffer);
                let mut bytes = Vec::new();
                buffer.look(0, size, |piece| bytes.extend_from_slice(piece));
                assert_eq!(u64::from(content.crc32()), crc_fast::checksum(CRC32, &bytes), "{size}");
                seen.push(bytes);
            }
            if size >= 8 {
                assert_ne!(seen[0], seen[1], "the stamp changes");
                assert_eq!(seen[0][8..], seen[1][8..], "the rest does not");
            }
        }
    }
}
