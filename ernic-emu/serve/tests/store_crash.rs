//! Lane `store-crash`: `kill -9` of a server with a disk store, over and over, under load. What was acknowledged is there,
//! byte for byte; what was not is wholly there or not at all; and the room of what came to nothing comes back.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Scratch, Server, TIMEOUT};

/// Clients that write side by side, each to keys of its own.
const CLIENTS: usize = 6;
const KEYS: usize = 4;
/// Longest object that has no file of its own (decision 005).
const INLINE: usize = 4096;
/// The least of a part that is not the last (S3).
const PART: usize = 5 << 20;

/// A generator of numbers, from a seed that a failure shows.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }
}

/// What an object holds: its bytes come from these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    seed: u64,
    size: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        let word = |n: u64| (n ^ self.seed.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut bytes: Vec<u8> = (0..self.size.div_ceil(8) as u64).flat_map(word).collect();
        bytes.truncate(self.size);
        bytes
    }
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// What was acknowledged last; `None`: nothing is there.
    sure: Option<Content>,
    /// What was asked for since then, without an answer.
    asked: Option<Option<Content>>,
}

/// One connection.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Status, head and content of the answer.
    fn ask(&mut self, method: &str, target: &str, content: &[u8]) -> io::Result<(u16, String, Vec<u8>)> {
        let head = format!("{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", content.len());
        self.0.write_all(head.as_bytes())?;
        self.0.write_all(content)?;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).map_err(io::Error::other)?.to_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut back = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        self.0.read_exact(&mut back)?;
        if head.contains("transfer-encoding: chunked") {
            back = self.chunks()?;
        }
        Ok((status, head, back))
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let (mut line, mut byte) = (Vec::new(), [0]);
            while !line.ends_with(b"\r\n") {
                self.0.read_exact(&mut byte)?;
                line.push(byte[0]);
            }
            let line = String::from_utf8_lossy(&line);
            let size = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk)?;
            if size == 0 {
                return Ok(all);
            }
            all.extend_from_slice(&chunk[..size]);
        }
    }

    /// An answer that must be this one. An error: the server is gone.
    fn expect(&mut self, status: u16, method: &str, target: &str, content: &[u8]) -> io::Result<(String, Vec<u8>)> {
        let (got, head, back) = self.ask(method, target, content)?;
        assert_eq!(got, status, "{method} {target}: {head}{}", String::from_utf8_lossy(&back));
        Ok((head, back))
    }

    fn multipart(&mut self, target: &str, bytes: &[u8]) -> io::Result<()> {
        let (_, back) = self.expect(200, "POST", &format!("{target}?uploads"), &[])?;
        let back = String::from_utf8(back).map_err(io::Error::other)?;
        let upload = text(&back, "UploadId").next().expect("an upload").to_owned();
        let mut list = String::from("<CompleteMultipartUpload>");
        for (part, number) in bytes.chunks(PART).zip(1..) {
            let to = format!("{target}?partNumber={number}&uploadId={upload}");
            let (head, _) = self.expect(200, "PUT", &to, part)?;
            let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("an ETag").to_owned();
            list.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
        }
        list.push_str("</CompleteMultipartUpload>");
        let (_, back) = self.expect(200, "POST", &format!("{target}?uploadId={upload}"), list.as_bytes())?;
        let back = String::from_utf8_lossy(&back).into_owned();
        assert!(back.contains("<CompleteMultipartUploadResult"), "{back}");
        Ok(())
    }
}

/// The contents of all elements of a name.
fn text<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).filter_map(|rest| rest.split(&close).next()).collect::<Vec<_>>().into_iter()
}

fn target(client: usize, key: usize) -> String {
    format!("/ernic/client-{client}/key-{key}")
}

/// One client's writes, until the server is gone.
fn load(
    address: SocketAddr,
    client: usize,
    seed: u64,
    known: &Mutex<BTreeMap<(usize, usize), Known>>,
    acknowledged: &AtomicUsize,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut random = Random(seed);
    let mut connection = Client::connect(address)?;
    while !stop.load(Ordering::Relaxed) {
        let key = random.below(KEYS);
        let size = match random.below(20) {
            0..8 => random.below(INLINE + 1),
            8..14 => random.below(100_000),
            14..18 => random.below(2 << 20),
            _ => PART + random.below(200_000),
        };
        let content = Content { seed: seed ^ random.0, size };
        let delete = random.below(8) == 0;
        let asked = (!delete).then_some(content);
        let note = |change: &dyn Fn(&mut Known)| {
            change(known.lock().expect("no client panics here").entry((client, key)).or_default());
        };
        note(&|known| known.asked = Some(asked));
        let to = target(client, key);
        if delete {
            connection.expect(204, "DELETE", &to, &[])?;
        } else if size > PART || random.below(6) == 0 {
            connection.multipart(&to, &content.bytes())?;
        } else {
            connection.expect(200, "PUT", &to, &content.bytes())?;
        }
        note(&|known| *known = Known { sure: asked, asked: None });
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Bytes and number of the files below a folder.
fn files(path: &Path) -> (u64, u64) {
    let mut all = (0, 0);
    for entry in fs::read_dir(path).expect("a folder") {
        let Ok(entry) = entry else { continue };
        let Ok(meta) = entry.metadata() else { continue };
        let (bytes, number) = if meta.is_dir() { files(&entry.path()) } else { (meta.len(), 1) };
        all = (all.0 + bytes, all.1 + number);
    }
    all
}

/// Everything must be as it is known. What had no answer is known afterwards.
fn check(address: SocketAddr, known: &mut BTreeMap<(usize, usize), Known>, round: usize) {
    let mut client = Client::connect(address).expect("connected");
    let (_, uploads) = client.expect(200, "GET", "/ernic?uploads", &[]).expect("an answer");
    let uploads = String::from_utf8(uploads).expect("UTF-8");
    for (key, id) in text(&uploads, "Key").zip(text(&uploads, "UploadId")) {
        client.expect(204, "DELETE", &format!("/ernic/{key}?uploadId={id}"), &[]).expect("an answer");
    }
    for (&(owner, key), known) in known {
        let (status, _, back) = client.ask("GET", &target(owner, key), &[]).expect("an answer");
        let is = |content: Option<Content>| match content {
            None => status == 404,
            Some(content) => status == 200 && back == content.bytes(),
        };
        let found = [Some(known.sure), known.asked].into_iter().flatten().find(|content| is(*content));
        let Some(found) = found else {
            panic!("round {round}, client {owner}, key {key}: {known:?}, but {status} and {} bytes", back.len());
        };
        *known = Known { sure: found, asked: None };
    }
}

/// The files have the bytes of the objects, and nothing else. Removing them is nobody's to wait for.
fn settles(store: &Path, known: &BTreeMap<(usize, usize), Known>) {
    let objects = known.values().filter_map(|known| known.sure);
    let expected: usize = objects.map(|content| content.size).filter(|size| *size > INLINE).sum();
    let begin = Instant::now();
    loop {
        let there = files(&store.join("objects")).0;
        // The small parts of a large object have files, and those of a small one too.
        let small: usize = known.values().filter_map(|k| k.sure).map(|c| c.size).filter(|size| *size <= INLINE).sum();
        let range = expected as u64..=(expected + small) as u64;
        let left = files(&store.join("tmp"));
        if range.contains(&there) && left == (0, 0) {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{there} bytes in files, {range:?} expected; unfinished: {left:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn start(scratch: &Scratch, store: &Path) -> (Server, SocketAddr) {
    let backend = format!("s3:size=1G,store=disk:{}", store.display());
    let mut server = Server::start(scratch, &["serve", "--listen", "127.0.0.1:0", "-b", &backend]);
    let line = server.line(" bytes at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.strip_suffix('/')).expect("an address");
    (server, address.parse().expect("an address"))
}

fn crashes(rounds: usize) {
    let scratch = Scratch::new();
    let store = scratch.path().join("store");
    let mut random = Random(0x00c0_ffee);
    let mut known = BTreeMap::new();
    let mut total = 0;
    for round in 0..rounds {
        let (mut server, address) = start(&scratch, &store);
        check(address, &mut known, round);
        settles(&store, &known);
        let shared = Mutex::new(std::mem::take(&mut known));
        let (acknowledged, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        // The end comes after so many answers, and a bit: anywhere in the work of the others.
        let (enough, bit) = (random.below(60), Duration::from_micros(random.below(20_000) as u64));
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let seed = (round * CLIENTS + client) as u64 * 7919;
                let (shared, acknowledged, stop) = (&shared, &acknowledged, &stop);
                scope.spawn(move || load(address, client, seed, shared, acknowledged, stop).map_or_else(drop, drop));
            }
            let begin = Instant::now();
            while acknowledged.load(Ordering::Relaxed) < enough {
                assert!(begin.elapsed() < TIMEOUT, "only {acknowledged:?} of {enough} answers");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(bit);
            server.kill();
            stop.store(true, Ordering::Relaxed);
        });
        total += acknowledged.into_inner();
        known = shared.into_inner().expect("no client has panicked");
    }
    assert!(total >= rounds, "the load was none: {total} answers in {rounds} rounds");
    let (mut server, address) = start(&scratch, &store);
    check(address, &mut known, rounds);
    settles(&store, &known);
    let mut client = Client::connect(address).expect("connected");
    for &(owner, key) in known.keys() {
        client.expect(204, "DELETE", &target(owner, key), &[]).expect("an answer");
    }
    known.clear();
    settles(&store, &known);
    assert_eq!(server.terminate().code(), Some(0));
    // What is left is the tables, with nothing in them.
    let (bytes, number) = files(&store);
    assert!(bytes < 32 << 20, "{bytes} bytes in {number} files of an empty store");
    println!("{rounds} kills, {total} answers");
}

#[test]
fn nothing_that_was_acknowledged_is_lost_in_20_kills() {
    crashes(20);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --full"]
fn nothing_that_was_acknowledged_is_lost_in_200_kills() {
    crashes(200);
}
