//! Checks of a server, byte for byte.
//!
//! Each check makes requests, compares every byte of the memory that was involved, also of the bytes that must not have been
//! touched, and then asks the server for its counters: they must have risen by exactly what was moved.

use std::{fmt, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::CrcAlgorithm;
use rdma_token::{RcTarget, TokenHeader, Window, names};

use crate::{
    ClientError,
    counters::{Counters, Rise},
    memory::{Layout, MemoryError, QueuePair, Region, Registrar, Rights},
    rc::{self, Answered, Place, Prepared, Protocol},
    s3::{Answer, Body, Client, Part, Request},
    size,
    transfer::{Asked, Direction, Family, Moved, Verdict, mint, whole},
};

/// Bytes on either side of a window, in the same registration, that nobody may touch.
const GUARD: usize = 4096;

/// What a region holds before a transfer.
const POISON: u8 = 0xd7;

/// Longest wait for what the server has said to have sent.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Bytes that are compared at a time.
const PIECE: usize = 16 << 20;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Smallest part of a multipart upload but the last (S3 user guide, "Amazon S3 multipart upload limits").
const PART: usize = 5 * MIB;

/// What to check.
#[derive(Debug, Clone)]
pub struct Plan {
    /// A bucket; it is made if it does not exist.
    pub bucket: String,
    /// How RDMA is asked for: [`Protocol::RcV2`], or else by token.
    pub protocol: Protocol,
    /// Form of the tokens.
    pub family: Family,
    /// Bytes of the largest round trip.
    pub large: usize,
}

impl Plan {
    /// Checks in that bucket, with tokens of family A and a largest round trip of 64 MiB.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), protocol: Protocol::Token, family: Family::A, large: 64 * MIB }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Checks that passed.
    pub passed: usize,
    /// Checks that did not.
    pub failed: usize,
}

/// Why a check failed.
#[derive(Debug)]
enum Failure {
    Client(ClientError),
    Wrong(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Wrong(text) => f.write_str(text),
        }
    }
}

impl<E: Into<ClientError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Client(error.into())
    }
}

fn wrong<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Wrong(text.into()))
}

type Check = Result<(), Failure>;

/// Runs all checks. Each line of the report, without its end, goes to `line`: `ok` or `FAIL`, the check, and in the latter
/// case what failed.
///
/// Errors: the server cannot be reached, or has no such bucket and makes none.
pub fn run(
    client: &mut Client,
    registrar: &dyn Registrar,
    plan: &Plan,
    line: &mut dyn FnMut(&str),
) -> Result<Summary, ClientError> {
    client.create_bucket(&plan.bucket)?;
    let before = Snapshot::take(client, &plan.bucket)?;
    line(match before.counters {
        Some(Counters { read_bytes: Some(_), write_bytes: Some(_), .. }) => {
            "the server's counters of operations and bytes are checked, exactly"
        }
        Some(_) => "the server's counters of operations are checked, exactly; it counts no bytes",
        None => "the server has no counters at /minio/metrics/v3/api/rdma: they are not checked",
    });
    let prefix = format!("ernic-functional-{:016x}/", fastrand::u64(..));
    let seed = fastrand::u64(..);
    let mut suite = Suite {
        client,
        registrar,
        plan,
        prefix,
        seed,
        counters: before.counters,
        due: Rise::default(),
        summary: Summary::default(),
        line,
    };

    for length in [4 * KIB, MIB, plan.large] {
        suite.check(&format!("round trip of {}", size::text(length as u64)), |suite| suite.round_trip(length, 0, 0));
    }
    for (length, page, window) in [
        (1, 1, 0),
        (511, 0, 1),
        (4095, 13, 0),
        (4097, 4095, 0),
        (65_537, 7, 5),
        (1_000_003, 2049, 4093),
        (3 * MIB + 1, 1, 1),
    ] {
        suite.check(
            &format!("unaligned buffer, odd size: {length} bytes, {page} into a page, {window} into the region"),
            |suite| suite.round_trip(length, page, window),
        );
    }
    suite.check("ranged GET: bytes=1024-1535", Suite::ranged);
    suite.check("a window shorter than the object", Suite::short_window);
    suite.check("body path", Suite::body_path);
    suite.check("multipart by token, two parts, CRC64NVME", Suite::multipart);
    suite.check("listing", Suite::listing);
    suite.check("deletion, and 404 after it", Suite::deletion);
    suite.check("error: missing key", Suite::missing_key);
    if plan.protocol == Protocol::RcV2 {
        suite.check("error: wrong bucket", Suite::wrong_bucket_of_session);
        suite.check("error: malformed session", Suite::malformed_session);
        suite.check("error: too large", Suite::too_large);
        suite.check("error: another cookie", Suite::other_cookie);
        suite.check("error: a session is made ready once", Suite::ready_once);
        suite.check("a session is cancelled", Suite::cancelled);
        suite.check("error: rkey 0", Suite::session_without_key);
        suite.check("error: unknown rkey", |suite| suite.session_to(Rights::ALL, |to| to.rkey ^= 0x7f3a_5c00));
        suite.check("error: window outside the registration", |suite| {
            suite.session_to(Rights::ALL, |to| to.address ^= 1 << 40)
        });
        suite.check("error: buffer registered without remote rights", |suite| suite.session_to(Rights::NONE, |_| {}));
    } else {
        suite.check("error: malformed token", Suite::malformed_token);
        suite.check("error: wrong bucket", Suite::wrong_bucket);
        suite.check("error: rkey 0", |suite| suite.bad_rkey(|_| 0));
        suite.check("error: unknown rkey", |suite| suite.bad_rkey(|rkey| rkey ^ 0x7f3a_5c00));
        suite.check("error: window outside the registration", Suite::outside);
        suite.check("error: buffer registered without remote rights", Suite::no_rights);
        suite.check("error: deregistered buffer", Suite::deregistered);
    }
    // What failed checks have left behind is not theirs to find.
    suite.sweep();
    suite.check("the store is empty at the end", |suite| suite.empty(&before));
    Ok(suite.summary)
}

/// A session of `hipobj-rc-v2` that is made step by step.
struct HandMade {
    key: String,
    content: Vec<u8>,
    memory: Memory,
    prepared: Prepared,
    cookie: u32,
    pair: Box<dyn QueuePair>,
}

impl HandMade {
    /// Where its bytes go.
    fn to(&self) -> RcTarget {
        RcTarget { address: self.memory.window().address, rkey: self.memory.region.rkey() }
    }
}

/// What a bucket and the server hold.
#[derive(Debug)]
struct Snapshot {
    keys: Vec<String>,
    counters: Option<Counters>,
}

impl Snapshot {
    fn take(client: &mut Client, bucket: &str) -> Result<Self, ClientError> {
        let keys = client.list(bucket, "")?.into_iter().map(|object| object.key).collect();
        Ok(Self { keys, counters: Counters::read(client)? })
    }
}

struct Suite<'a> {
    client: &'a mut Client,
    registrar: &'a dyn Registrar,
    plan: &'a Plan,
    /// Of all keys.
    prefix: String,
    /// Of the next content.
    seed: u64,
    /// What the server said last, if it says anything.
    counters: Option<Counters>,
    /// By how much that is to have risen.
    due: Rise,
    summary: Summary,
    line: &'a mut dyn FnMut(&str),
}

/// A region, the window in it that a token names, and what all of it should hold.
struct Memory {
    region: Box<dyn Region>,
    /// Where the window begins.
    start: usize,
    length: usize,
}

impl Memory {
    fn window(&self) -> Window {
        Window { address: self.region.address() + self.start as u64, length: self.length as u64 }
    }

    /// Writes `content` to the window's start.
    fn fill(&mut self, content: &[u8]) {
        self.region.write(self.start, content);
    }

    /// Writes the poison everywhere.
    fn poison(&mut self) {
        let poison = vec![POISON; self.region.length().min(PIECE)];
        let mut at = 0;
        while at < self.region.length() {
            let n = poison.len().min(self.region.length() - at);
            self.region.write(at, poison.get(..n).unwrap_or_default());
            at += n;
        }
    }

    /// Compares the region: `content` at the window's start, poison everywhere else.
    fn expect(&self, content: &[u8]) -> Check {
        let mut piece = vec![0; self.region.length().min(PIECE)];
        let mut at = 0;
        while at < self.region.length() {
            let n = piece.len().min(self.region.length() - at);
            let part = piece.get_mut(..n).unwrap_or_default();
            self.region.read(at, part);
            // Whole pieces are compared at once, and looked at byte by byte only if they differ.
            let due = |place: usize| place.checked_sub(self.start).and_then(|i| content.get(i)).copied();
            let inside = at.checked_sub(self.start).and_then(|from| content.get(from..)?.get(..n));
            if inside.is_none_or(|inside| inside != part) {
                for (i, &got) in part.iter().enumerate() {
                    let place = at + i;
                    match due(place) {
                        Some(due) if due != got => {
                            return wrong(format!("byte {} is {got:02x} where {due:02x} was due", place - self.start));
                        }
                        None if got != POISON => {
                            let (place, start) = (place as i128, self.start as i128);
                            return wrong(format!("byte {} was touched: {got:02x}", place - start));
                        }
                        _ => {}
                    }
                }
            }
            at += n;
        }
        Ok(())
    }
}

impl Suite<'_> {
    /// Runs one check and compares the server's counters.
    fn check(&mut self, name: &str, check: impl FnOnce(&mut Self) -> Check) {
        self.due = Rise::default();
        let result = check(self);
        let result = match (result, self.counted()) {
            (Ok(()), counted) => counted,
            // Counters that are wrong after a failure say nothing more.
            (Err(failure), _) => Err(failure),
        };
        match result {
            Ok(()) => {
                self.summary.passed += 1;
                (self.line)(&format!("ok   {name}"));
            }
            Err(failure) => {
                self.summary.failed += 1;
                (self.line)(&format!("FAIL {name}: {failure}"));
            }
        }
    }

    fn counted(&mut self) -> Check {
        let Some(before) = self.counters else { return Ok(()) };
        let Some(now) = Counters::read(self.client)? else { return wrong("the server's counters are gone") };
        self.counters = Some(now);
        match now.differences(&before, &self.due, true).as_slice() {
            [] => Ok(()),
            texts => wrong(texts.join("; ")),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Bytes that no other call gives.
    fn content(&mut self, length: usize) -> Vec<u8> {
        self.seed = self.seed.wrapping_add(1);
        let mut content = vec![0; length];
        fastrand::Rng::with_seed(self.seed).fill(&mut content);
        // A byte that memory holds before the transfer would not tell whether it came.
        content.iter_mut().filter(|byte| **byte == POISON).for_each(|byte| *byte = !POISON);
        content
    }

    /// A region that begins `page` bytes into a page, with a window `window` bytes behind its guard.
    fn memory(&self, length: usize, page: usize, window: usize, rights: Rights) -> Result<Memory, MemoryError> {
        let layout = Layout { length: GUARD + window + length + GUARD, offset: page, rights };
        let mut memory = Memory { region: self.registrar.register(layout)?, start: GUARD + window, length };
        memory.poison();
        Ok(memory)
    }

    fn token(&self, memory: &Memory, window: Window) -> Result<TokenHeader, Failure> {
        self.token_of(memory, memory.region.rkey(), window)
    }

    fn token_of(&self, memory: &Memory, rkey: u32, window: Window) -> Result<TokenHeader, Failure> {
        let port = self.registrar.port();
        let token = mint(self.plan.family, &port, rkey, whole(&*memory.region), window);
        token
            .map_or_else(|| wrong(format!("no token of family {} names {} bytes", self.plan.family, window.length)), Ok)
    }

    fn request(&self, method: &'static str, key: &str) -> Request<'static> {
        Request::new(method, &self.plan.bucket, key)
    }

    /// A transfer of the whole window that is to succeed.
    fn transfer(&mut self, request: Request<'_>, direction: Direction, memory: &Memory) -> Result<Moved, Failure> {
        let asked = Asked { direction, range: None, window: memory.length as u64, bytes: Some(memory.length as u64) };
        self.moved(request, memory, &asked)
    }

    /// Asks for a transfer of the whole window, by the protocol that is checked.
    fn attempt(&mut self, request: Request<'_>, memory: &Memory, asked: &Asked) -> Result<(Verdict, Answer), Failure> {
        if self.plan.protocol == Protocol::RcV2 {
            let place = Place { region: &*memory.region, window: memory.window() };
            return Ok(self.client.by_rc(&request, self.registrar, place, asked)?);
        }
        let token = self.token(memory, memory.window())?;
        Ok(self.client.by_token(request, &token, asked)?)
    }

    /// A transfer that is to succeed.
    fn moved(&mut self, request: Request<'_>, memory: &Memory, asked: &Asked) -> Result<Moved, Failure> {
        let (verdict, answer) = self.attempt(request, memory, asked)?;
        // Some clients match these names in lower case only (wire document, section 3).
        for (name, _) in &answer.headers {
            if name.to_ascii_lowercase().starts_with("x-amz-rdma") && *name != name.to_ascii_lowercase() {
                return wrong(format!("the header {name} is not in lower case"));
            }
        }
        match verdict {
            Verdict::Moved(moved) => {
                match asked.direction {
                    Direction::Get => {
                        self.due.read_ops += 1;
                        self.due.read_bytes += moved.bytes;
                    }
                    Direction::Put => {
                        self.due.write_ops += 1;
                        self.due.write_bytes += moved.bytes;
                    }
                }
                Ok(moved)
            }
            Verdict::FallBack(signal, refusal) => wrong(format!("not by RDMA ({signal}): {refusal}")),
        }
    }

    fn put(&mut self, key: &str, memory: &Memory) -> Result<Moved, Failure> {
        self.transfer(self.request("PUT", key), Direction::Put, memory)
    }

    fn get(&mut self, key: &str, memory: &Memory) -> Result<Moved, Failure> {
        self.transfer(self.request("GET", key), Direction::Get, memory)
    }

    /// Stores `content` by the body. Returns its ETag.
    fn put_body(&mut self, key: &str, content: &[u8]) -> Result<String, Failure> {
        let request = self.request("PUT", key).body(Body::Bytes(content));
        let etag = self.client.call(&request, None)?.check()?.etag()?;
        self.due.body_writes += 1;
        Ok(etag)
    }

    /// Fetches an object by the body.
    fn get_body(&mut self, key: &str) -> Result<(Vec<u8>, String), Failure> {
        let mut content = Vec::new();
        let mut sink = |piece: &[u8]| {
            content.extend_from_slice(piece);
            Ok(())
        };
        let etag = self.client.call(&self.request("GET", key), Some(&mut sink))?.check()?.etag()?;
        self.due.body_reads += 1;
        Ok((content, etag))
    }

    fn delete(&mut self, key: &str) -> Check {
        Ok(self.client.delete(&self.plan.bucket, key)?)
    }

    /// PUT and GET by token, with another region each.
    fn round_trip(&mut self, length: usize, page: usize, window: usize) -> Check {
        let key = self.key("round-trip");
        let content = self.content(length);
        let mut from = self.memory(length, page, window, Rights { remote_read: true, remote_write: false })?;
        from.fill(&content);
        let put = self.put(&key, &from)?;
        from.expect(&content)?;
        drop(from);
        let into = self.memory(length, page, window, Rights { remote_read: false, remote_write: true })?;
        let got = self.get(&key, &into)?;
        into.expect(&content)?;
        same_etag(&put.etag, &got.etag)?;
        self.delete(&key)
    }

    fn ranged(&mut self) -> Check {
        let key = self.key("ranged");
        let content = self.content(4 * KIB);
        self.put_body(&key, &content)?;
        // With a window of the range's length, and with a longer one: both begin with the range's first byte.
        for length in [512, 4 * KIB] {
            let into = self.memory(length, 0, 0, Rights::ALL)?;
            let rc = self.plan.protocol == Protocol::RcV2;
            // A session's range is as long as its window; the longer one ends behind the object, which ends it.
            let (last, part) = match rc {
                true => (1024 + length as u64 - 1, content.get(1024..).unwrap_or_default()),
                false => (1535, content.get(1024..1536).unwrap_or_default()),
            };
            let part = part.get(..length).unwrap_or(part);
            let (window, bytes) = (length as u64, Some(part.len() as u64));
            let asked = Asked { direction: Direction::Get, range: Some((1024, last)), window, bytes };
            let moved = self.moved(self.request("GET", &key), &into, &asked)?;
            if !rc && moved.reply.to_string() != "206" {
                return wrong(format!("the reply is '{}', not '206'", moved.reply));
            }
            into.expect(part)?;
        }
        self.delete(&key)
    }

    fn short_window(&mut self) -> Check {
        let key = self.key("short-window");
        let content = self.content(8 * KIB);
        self.put_body(&key, &content)?;
        let into = self.memory(3000, 0, 0, Rights::ALL)?;
        if self.plan.family == Family::C && self.plan.protocol != Protocol::RcV2 {
            // Wire document, section 4, rule 7: refused, where A and B are filled up.
            let token = self.token(&into, into.window())?;
            let answer = self.ask(self.request("GET", &key), &token.headers())?;
            refused(&answer, 400, "InvalidRequest", None)?;
            into.expect(&[])?;
        } else {
            self.get(&key, &into)?;
            into.expect(content.get(..3000).unwrap_or_default())?;
        }
        self.delete(&key)
    }

    fn body_path(&mut self) -> Check {
        let key = self.key("body");
        let content = self.content(MIB + 17);
        // In by the body, out by token.
        let etag = self.put_body(&key, &content)?;
        let into = self.memory(content.len(), 0, 0, Rights::ALL)?;
        let got = self.get(&key, &into)?;
        into.expect(&content)?;
        same_etag(&etag, &got.etag)?;
        // In by token, out by the body.
        let content = self.content(MIB + 17);
        let mut from = into;
        from.fill(&content);
        self.put(&key, &from)?;
        let (got, _) = self.get_body(&key)?;
        same_bytes(&got, &content)?;
        // In and out by the body.
        let content = self.content(MIB - 1);
        self.put_body(&key, &content)?;
        let (got, _) = self.get_body(&key)?;
        same_bytes(&got, &content)?;
        self.delete(&key)
    }

    fn multipart(&mut self) -> Check {
        let (bucket, key) = (self.plan.bucket.clone(), self.key("multipart"));
        let content = self.content(PART + 2 * MIB + 7);
        let id = self.client.create_upload(&bucket, &key)?;
        let (first, second) = content.split_at(PART);
        let mut parts = Vec::new();
        for (number, piece) in (1..).zip([first, second]) {
            let mut from = self.memory(piece.len(), 0, 0, Rights::ALL)?;
            from.fill(piece);
            let request = |sum: &str| {
                Request::new("PUT", &bucket, &key)
                    .query("partNumber", number.to_string())
                    .query("uploadId", &*id)
                    .header("x-amz-checksum-crc64nvme", sum)
            };
            if number == 1 {
                // One that is not the part's is refused.
                let request = request(&crc64nvme(second));
                self.transfer_is_refused(request, Direction::Put, &from, 400, "BadDigest")?;
            }
            let sum = crc64nvme(piece);
            let moved = self.transfer(request(&sum), Direction::Put, &from)?;
            parts.push(Part { number, etag: moved.etag, crc64nvme: sum });
        }
        let sum = crc64nvme(&content);
        let (etag, said) = self.client.complete_upload(&bucket, &key, &id, &parts, &sum)?;
        if said.as_deref().is_some_and(|said| said != sum) {
            return wrong(format!("CRC64NVME is {} where {sum} was due", said.unwrap_or_default()));
        }
        let into = self.memory(content.len(), 0, 0, Rights::ALL)?;
        let got = self.get(&key, &into)?;
        into.expect(&content)?;
        same_etag(&etag, &got.etag)?;
        self.delete(&key)
    }

    fn listing(&mut self) -> Check {
        let names = ["list/a", "list/b c", "list/d&e+<f>"];
        let mut due = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let (key, content) = (self.key(name), self.content(100 + i));
            let mut from = self.memory(content.len(), 0, 0, Rights::ALL)?;
            from.fill(&content);
            self.put(&key, &from)?;
            due.push((key, content.len() as u64));
        }
        let listed = self.client.list(&self.plan.bucket, &self.key("list/"))?;
        let listed: Vec<_> = listed.into_iter().map(|object| (object.key, object.size)).collect();
        if listed != due {
            return wrong(format!("{listed:?} are listed where {due:?} were due"));
        }
        due.into_iter().try_for_each(|(key, _)| self.delete(&key))
    }

    fn deletion(&mut self) -> Check {
        let key = self.key("deletion");
        let content = self.content(KIB);
        let mut memory = self.memory(content.len(), 0, 0, Rights::ALL)?;
        memory.fill(&content);
        self.put(&key, &memory)?;
        memory.poison();
        self.delete(&key)?;
        let answer = self.client.call(&self.request("GET", &key), None)?;
        refused(&answer, 404, "NoSuchKey", None)?;
        self.get_is_refused(&key, &memory, 404, "NoSuchKey")?;
        self.no_key(&key)
    }

    fn missing_key(&mut self) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        self.get_is_refused(&self.key("missing"), &memory, 404, "NoSuchKey")
    }

    fn malformed_token(&mut self) -> Check {
        let key = self.key("malformed");
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let good: String =
            self.token(&memory, memory.window())?.headers().into_iter().map(|(_, value)| value).collect();
        // What is in front of a suffix, of which a digit more or less would be as good.
        let base = if self.plan.family == Family::B { good.split(':').next().unwrap_or_default() } else { &*good };
        let malformed = [
            base.get(..base.len() - 1).unwrap_or_default().to_owned(),
            format!("{base}00"),
            base.replacen(|c: char| c.is_ascii_hexdigit(), "g", 1),
            format!("{good}:"),
            "f".repeat(88),
            "token".to_owned(),
        ];
        let content = self.content(KIB);
        self.put_body(&key, &content)?;
        for token in &malformed {
            for method in ["GET", "PUT"] {
                let answer = self.ask(self.request(method, &key), &[(names::TOKEN, token.clone())])?;
                refused(&answer, 400, "InvalidArgument", None)
                    .map_err(|failure| at(format!("{method} '{token}'"), failure))?;
            }
        }
        memory.expect(&[])?;
        self.still(&key, &content)
    }

    fn wrong_bucket(&mut self) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let token = self.token(&memory, memory.window())?;
        let bucket = format!("no-such-{:016x}", fastrand::u64(..));
        for method in ["GET", "PUT"] {
            let answer = self.ask(Request::new(method, &bucket, "key"), &token.headers())?;
            refused(&answer, 404, "NoSuchBucket", Some(404)).map_err(|failure| at(method, failure))?;
        }
        memory.expect(&[])
    }

    fn bad_rkey(&mut self, change: impl FnOnce(u32) -> u32) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let token = self.token_of(&memory, change(memory.region.rkey()), memory.window())?;
        self.unreachable(&memory, &token)
    }

    fn outside(&mut self) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let Window { address, length } = whole(&*memory.region);
        // Directly behind, directly in front (and then into it), far away, and around the end of the address space.
        for (place, address) in [
            ("behind", address + length),
            ("before", address - 1),
            ("far away", address ^ 1 << 40),
            ("at the end", u64::MAX - 511),
        ] {
            let token = self.token(&memory, Window { address, length: memory.length as u64 })?;
            self.unreachable(&memory, &token).map_err(|failure| at(place, failure))?;
        }
        Ok(())
    }

    fn no_rights(&mut self) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::NONE)?;
        let token = self.token(&memory, memory.window())?;
        self.unreachable(&memory, &token)
    }

    fn deregistered(&mut self) -> Check {
        let mut memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let key = self.key("deregistered");
        let content = self.content(KIB);
        memory.fill(&content);
        self.put(&key, &memory)?;
        memory.poison();
        // The same token worked a moment ago.
        let token = self.token(&memory, memory.window())?;
        memory.region.deregister()?;
        self.unreachable(&memory, &token)?;
        self.still(&key, &content)
    }

    /// Memory that the server cannot reach, by GET and by PUT, over an object and where there is none (wire document, section 4,
    /// rule 12). Nothing changes anywhere.
    fn unreachable(&mut self, memory: &Memory, token: &TokenHeader) -> Check {
        let key = self.key("unreachable");
        let content = self.content(KIB);
        self.put_body(&key, &content)?;
        for method in ["GET", "PUT"] {
            let answer = self.ask(self.request(method, &key), &token.headers())?;
            refused(&answer, 500, "InternalError", Some(500)).map_err(|failure| at(method, failure))?;
        }
        memory.expect(&[])?;
        self.still(&key, &content)?;
        let answer = self.ask(self.request("PUT", &key), &token.headers())?;
        refused(&answer, 500, "InternalError", Some(500)).map_err(|failure| at("PUT of a new key", failure))?;
        self.no_key(&key)
    }

    /// Sends a request with these token headers.
    fn ask(&mut self, mut request: Request<'_>, token: &[(&'static str, String)]) -> Result<Answer, Failure> {
        request.headers.extend(token.iter().cloned());
        Ok(self.client.call(&request, None)?)
    }

    fn get_is_refused(&mut self, key: &str, memory: &Memory, status: u16, code: &str) -> Check {
        self.transfer_is_refused(self.request("GET", key), Direction::Get, memory, status, code)?;
        memory.expect(&[])
    }

    /// A transfer of the whole window that S3 is to refuse.
    fn transfer_is_refused(
        &mut self,
        request: Request<'_>,
        direction: Direction,
        memory: &Memory,
        status: u16,
        code: &str,
    ) -> Check {
        if self.plan.protocol != Protocol::RcV2 {
            let token = self.token(memory, memory.window())?;
            let answer = self.ask(request, &token.headers())?;
            return refused(&answer, status, code, Some(status));
        }
        let length = memory.length as u64;
        let asked = Asked { direction, range: None, window: length, bytes: Some(length) };
        match self.attempt(request, memory, &asked) {
            Err(Failure::Client(ClientError::Refused(refusal)))
                if (refusal.status, refusal.code.as_str()) == (status, code) =>
            {
                Ok(())
            }
            Err(failure) => wrong(format!("{failure}, where {status} {code} was due")),
            Ok((Verdict::FallBack(signal, refusal), _)) => {
                wrong(format!("{refusal} ({signal}), where {status} {code} was due"))
            }
            Ok((Verdict::Moved(_), _)) => wrong(format!("a transfer where {status} {code} was due")),
        }
    }

    fn wrong_bucket_of_session(&mut self) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let bucket = format!("no-such-{:016x}", fastrand::u64(..));
        for (method, direction) in [("GET", Direction::Get), ("PUT", Direction::Put)] {
            let request = Request::new(method, &bucket, "key");
            self.transfer_is_refused(request, direction, &memory, 404, "NoSuchBucket")
                .map_err(|failure| at(method, failure))?;
        }
        memory.expect(&[])
    }

    /// A request of prepare for the whole window, and the queue pair that it names.
    fn preparation(
        &self,
        direction: Direction,
        key: &str,
        memory: &Memory,
    ) -> Result<(Request<'static>, Box<dyn QueuePair>, u32, u32), Failure> {
        let pair = self.registrar.queue_pair()?;
        let (psn, cookie) = (rc::random(24), rc::random(32));
        let length = memory.length as u64;
        let asked = Asked { direction, range: None, window: length, bytes: Some(length) };
        let place = Place { region: &*memory.region, window: memory.window() };
        let request = rc::prepare(&self.request("GET", key), &*pair, place, &asked, psn, cookie);
        Ok((request, pair, psn, cookie))
    }

    /// A connected session for a GET of a new object of a KiB, the object and its content.
    fn session(&mut self, rights: Rights) -> Result<HandMade, Failure> {
        let key = self.key("session");
        let content = self.content(KIB);
        self.put_body(&key, &content)?;
        let memory = self.memory(KIB, 0, 0, rights)?;
        let (request, mut pair, psn, cookie) = self.preparation(Direction::Get, &key, &memory)?;
        let answer = self.client.call(&request, None)?;
        let Answered::Prepared(prepared) = rc::judge_prepare(&answer, Direction::Get)? else {
            return wrong(format!("no session: {}", answer.refusal()?));
        };
        pair.connect(&prepared.peer, psn, prepared.psn)?;
        Ok(HandMade { key, content, memory, prepared, cookie, pair })
    }

    /// Makes it ready, with its memory at `to`.
    fn ready(&mut self, session: &HandMade, cookie: u32, to: RcTarget) -> Result<Answer, Failure> {
        let request = rc::of_session("ready", &session.prepared.session, cookie)
            .header(names::MR_ADDR, format!("{:x}", to.address))
            .header(names::MR_RKEY, format!("{:x}", to.rkey));
        Ok(self.client.call(&request, None)?)
    }

    fn cancel(&mut self, session: &HandMade) -> Check {
        let request = rc::of_session("cancel", &session.prepared.session, session.cookie);
        let answer = self.client.call(&request, None)?;
        if answer.status == 204 { Ok(()) } else { wrong(format!("cancel gives {} where 204 was due", answer.status)) }
    }

    /// Makes it ready as it should be: it still can be.
    fn finish(&mut self, mut session: HandMade) -> Check {
        let answer = self.ready(&session, session.cookie, session.to())?;
        let length = session.content.len() as u64;
        let asked = Asked { direction: Direction::Get, range: None, window: length, bytes: Some(length) };
        let Verdict::Moved(_) = rc::judge_ready(&answer, &asked, session.cookie)? else {
            return wrong(format!("not by RDMA: {}", answer.refusal()?));
        };
        self.due.read_ops += 1;
        self.due.read_bytes += length;
        let arrived = session.pair.arrived(ARRIVAL)?;
        if (arrived.bytes, arrived.immediate) != (length, session.cookie) {
            return wrong(format!("{arrived:?} where {length} bytes with {:08x} were due", session.cookie));
        }
        session.memory.expect(&session.content)?;
        // Its answer was the last: there is no such session any more.
        let again = self.ready(&session, session.cookie, session.to())?;
        session_error(&again, 409, "InvalidRDMASession")?;
        session.memory.expect(&session.content)?;
        self.delete(&session.key)
    }

    fn malformed_session(&mut self) -> Check {
        let key = self.key("malformed-session");
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        let content = self.content(KIB);
        self.put_body(&key, &content)?;
        for (name, value) in [
            (names::TOKEN, "token"),
            (names::PSN, "000000"),
            (names::PSN, "1234567"),
            (names::COOKIE, "0123"),
            (names::OP, "POST"),
            (names::TARGET, "bucket/key"),
            (names::TARGET, "/bucket"),
            (names::SIZE, "0"),
            (names::SIZE, "-1"),
            (names::OFFSET, "x"),
        ] {
            let (mut request, _pair, ..) = self.preparation(Direction::Get, &key, &memory)?;
            request.headers.retain(|(have, _)| *have != name);
            request.headers.push((name, value.to_owned()));
            let answer = self.client.call(&request, None)?;
            session_error(&answer, 400, "InvalidArgument")
                .map_err(|failure| at(format!("{name}: {value}"), failure))?;
        }
        memory.expect(&[])?;
        self.still(&key, &content)
    }

    fn too_large(&mut self) -> Check {
        let memory = self.memory(KIB, 0, 0, Rights::ALL)?;
        for size in [rc::MAX_SIZE, rc::MAX_SIZE + 1] {
            let (mut request, _pair, ..) = self.preparation(Direction::Put, &self.key("too-large"), &memory)?;
            request.headers.retain(|(name, _)| *name != names::SIZE);
            request.headers.push((names::SIZE, size.to_string()));
            let answer = self.client.call(&request, None)?;
            session_error(&answer, 413, "EntityTooLarge").map_err(|failure| at(size, failure))?;
        }
        Ok(())
    }

    fn other_cookie(&mut self) -> Check {
        let session = self.session(Rights::ALL)?;
        let answer = self.ready(&session, session.cookie ^ 1, session.to())?;
        session_error(&answer, 403, "AccessDenied")?;
        session.memory.expect(&[])?;
        self.finish(session)
    }

    fn ready_once(&mut self) -> Check {
        let session = self.session(Rights::ALL)?;
        self.finish(session)
    }

    fn cancelled(&mut self) -> Check {
        let session = self.session(Rights::ALL)?;
        self.cancel(&session)?;
        let answer = self.ready(&session, session.cookie, session.to())?;
        session_error(&answer, 409, "InvalidRDMASession")?;
        // Of what has ended already, too.
        self.cancel(&session)?;
        session.memory.expect(&[])?;
        self.still(&session.key, &session.content)
    }

    fn session_without_key(&mut self) -> Check {
        let session = self.session(Rights::ALL)?;
        let answer = self.ready(&session, session.cookie, RcTarget { rkey: 0, ..session.to() })?;
        session_error(&answer, 400, "InvalidArgument")?;
        session.memory.expect(&[])?;
        self.still(&session.key, &session.content)
    }

    /// The server is told of memory that it may not write: the transfer fails, and nothing changes.
    fn session_to(&mut self, rights: Rights, change: impl FnOnce(&mut RcTarget)) -> Check {
        let session = self.session(rights)?;
        let mut to = session.to();
        change(&mut to);
        let answer = self.ready(&session, session.cookie, to)?;
        session_error(&answer, 503, "RDMATransferError")?;
        session.memory.expect(&[])?;
        self.still(&session.key, &session.content)
    }

    /// The object is what it was. It is deleted then.
    fn still(&mut self, key: &str, content: &[u8]) -> Check {
        let (got, _) = self.get_body(key)?;
        same_bytes(&got, content)?;
        self.delete(key)
    }

    /// There is no such object.
    fn no_key(&mut self, key: &str) -> Check {
        let answer = self.client.call(&self.request("HEAD", key), None)?;
        if answer.status == 404 { Ok(()) } else { wrong(format!("HEAD gives {} where 404 was due", answer.status)) }
    }

    /// Deletes what is left of the checks, as far as that goes.
    fn sweep(&mut self) {
        for object in self.client.list(&self.plan.bucket, &self.prefix).unwrap_or_default() {
            let _ = self.client.delete(&self.plan.bucket, &object.key);
        }
        for (key, id) in self.client.uploads(&self.plan.bucket).unwrap_or_default() {
            if key.starts_with(&self.prefix) {
                let _ = self.client.abort_upload(&self.plan.bucket, &key, &id);
            }
        }
    }

    fn empty(&mut self, before: &Snapshot) -> Check {
        let now = Snapshot::take(self.client, &self.plan.bucket)?;
        if now.keys != before.keys {
            let more: Vec<_> = now.keys.iter().filter(|key| !before.keys.contains(key)).collect();
            return wrong(format!("{} keys where {} were before; new: {more:?}", now.keys.len(), before.keys.len()));
        }
        let uploads = self.client.uploads(&self.plan.bucket)?;
        if let Some((upload, _)) = uploads.iter().find(|(key, _)| key.starts_with(&self.prefix)) {
            return wrong(format!("an upload of '{upload}' is left"));
        }
        if let (Some(before), Some(now)) = (before.counters, now.counters)
            && (before.objects, before.uploads) != (now.objects, now.uploads)
        {
            return wrong(format!(
                "the server counts {:?} objects and {:?} uploads where it had {:?} and {:?}",
                now.objects, now.uploads, before.objects, before.uploads
            ));
        }
        Ok(())
    }
}

fn at(place: impl fmt::Display, failure: Failure) -> Failure {
    Failure::Wrong(format!("{place}: {failure}"))
}

/// An error of `hipobj-rc-v2` must have this status and code, and say of which protocol it is.
fn session_error(answer: &Answer, status: u16, code: &str) -> Check {
    refused(answer, status, code, None)?;
    match answer.header(names::PROTOCOL)? {
        Some(names::HIPOBJ_RC_V2) => Ok(()),
        other => wrong(format!("{} is {other:?}", names::PROTOCOL)),
    }
}

/// An error must have this status and code, and this reply, or none; and say that nothing moved, if it says anything.
fn refused(answer: &Answer, status: u16, code: &str, reply: Option<u16>) -> Check {
    let refusal = answer.refusal()?;
    if (refusal.status, refusal.code.as_str()) != (status, code) {
        return wrong(format!("{refusal}, where {status} {code} was due"));
    }
    let text = |reply: Option<String>| reply.unwrap_or_else(|| "none".into());
    let (got, due) = (refusal.reply.map(|reply| reply.to_string()), reply.map(|reply| reply.to_string()));
    if got != due {
        return wrong(format!("the reply is {}, where {} was due", text(got), text(due)));
    }
    for name in [names::BYTES, names::BYTES_TRANSFERRED] {
        if let Some(count) = answer.header(name)?
            && count != "0"
        {
            return wrong(format!("{name} is {count} in an error"));
        }
    }
    if answer.header("etag")?.is_some() && answer.status == 501 {
        return wrong("a declined transfer has an etag");
    }
    Ok(())
}

fn same_bytes(got: &[u8], due: &[u8]) -> Check {
    match got.iter().zip(due).position(|(got, due)| got != due) {
        Some(at) => wrong(format!("byte {at} of the body differs")),
        None if got.len() == due.len() => Ok(()),
        None => wrong(format!("a body of {} bytes where {} were due", got.len(), due.len())),
    }
}

/// Quotes do not count: a document may be without.
fn same_etag(a: &str, b: &str) -> Check {
    let bare = |etag: &str| etag.trim_matches('"').to_owned();
    if bare(a) == bare(b) { Ok(()) } else { wrong(format!("the etag is {b} where {a} was due")) }
}

/// CRC64NVME in base64, as S3 writes it.
fn crc64nvme(content: &[u8]) -> String {
    BASE64_STANDARD.encode(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, content).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Plain;

    fn memory() -> Memory {
        let mut memory = Memory { region: Box::new(Plain::new(GUARD * 2 + 10).unwrap()), start: GUARD, length: 10 };
        memory.poison();
        memory
    }

    #[test]
    fn every_byte_of_a_region_is_compared() {
        let mut memory = memory();
        memory.expect(&[]).unwrap();
        memory.fill(b"0123456789");
        memory.expect(b"0123456789").unwrap();
        let text = |failure: Check| failure.unwrap_err().to_string();
        assert_eq!(text(memory.expect(b"0123456780")), "byte 9 is 39 where 30 was due");
        assert_eq!(text(memory.expect(b"012345678")), "byte 9 was touched: 39");
        assert_eq!(text(memory.expect(&[])), "byte 0 was touched: 30");
        for (place, says) in [(0, -4096), (GUARD - 1, -1), (GUARD + 10, 10), (2 * GUARD + 9, 4105)] {
            memory.region.write(place, &[1]);
            assert_eq!(text(memory.expect(b"0123456789")), format!("byte {says} was touched: 01"));
            memory.region.write(place, &[POISON]);
        }
        memory.expect(b"0123456789").unwrap();
    }

    #[test]
    fn crc64nvme_has_the_value_of_its_definition() {
        // Case 15: CRC64NVME("123456789") = ae8b14860a799888.
        assert_eq!(crc64nvme(b"123456789"), BASE64_STANDARD.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes()));
    }

    #[test]
    fn bodies_and_etags_are_compared() {
        assert!(same_bytes(b"abc", b"abc").is_ok());
        assert_eq!(same_bytes(b"abd", b"abc").unwrap_err().to_string(), "byte 2 of the body differs");
        assert_eq!(same_bytes(b"ab", b"abc").unwrap_err().to_string(), "a body of 2 bytes where 3 were due");
        assert!(same_etag("\"a\"", "a").is_ok());
        assert!(same_etag("\"a\"", "\"b\"").is_err());
    }
}
