//! What the lanes `store-crash` and `vm-store-power` have in common: clients that write to a server until it is gone, a book
//! of what they asked for and what was acknowledged, and the check of a server that has come back against that book.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail, ensure};

/// Clients that write side by side, each to keys of its own.
pub const CLIENTS: usize = 6;
/// Keys of each client.
const KEYS: usize = 4;
/// Longest object that has no file of its own (decision 005).
const INLINE: usize = 4096;
/// The least of a part that is not the last (S3).
const PART: usize = 5 << 20;
/// Longest time without an answer, and until files are removed. Bounds a hang; nothing is expected to take as long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A generator of numbers, from a seed that a failure shows.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, less than `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(usize::MAX) % n.max(1)
    }
}

/// What an object holds: its bytes come from these. Its text is `SEED:SIZE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Makes the bytes differ from those of other contents.
    pub seed: u64,
    /// How many there are.
    pub size: usize,
}

impl Content {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        let word = |n: u64| (n ^ self.seed.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut bytes: Vec<u8> = (0..).flat_map(word).take(self.size.next_multiple_of(8)).collect();
        bytes.truncate(self.size);
        bytes
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seed, self.size)
    }
}

impl FromStr for Content {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (seed, size) = text.split_once(':').with_context(|| format!("no content: '{text}'"))?;
        Ok(Self { seed: seed.parse()?, size: size.parse()? })
    }
}

/// The text of what is there under a key: `-` for nothing.
fn show(content: Option<Content>) -> String {
    content.map_or_else(|| "-".to_owned(), |content| content.to_string())
}

fn parse(text: &str) -> Result<Option<Content>> {
    if text == "-" { Ok(None) } else { text.parse().map(Some) }
}

/// A key: that of a client, and which of its keys. Its text is `CLIENT/KEY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub usize, pub usize);

impl Slot {
    fn key(self) -> String {
        format!("client-{}/key-{}", self.0, self.1)
    }

    fn target(self) -> String {
        format!("/ernic/{}", self.key())
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

impl FromStr for Slot {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (client, key) = text.split_once('/').with_context(|| format!("no slot: '{text}'"))?;
        Ok(Self(client.parse()?, key.parse()?))
    }
}

/// What a client tells while it works. Its text is a line: `ask SLOT CONTENT`, `done SLOT` or `fail TEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is about to ask for this to be under the key; nothing: for the key to be deleted.
    Asked(Slot, Option<Content>),
    /// What it asked for last under the key was acknowledged.
    Done(Slot),
    /// The server gave a wrong answer.
    Failed(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(slot, content) => write!(f, "ask {slot} {}", show(*content)),
            Self::Done(slot) => write!(f, "done {slot}"),
            Self::Failed(text) => write!(f, "fail {}", text.replace('\n', " ")),
        }
    }
}

impl FromStr for Event {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let (word, rest) = line.split_once(' ').with_context(|| format!("no event: '{line}'"))?;
        Ok(match (word, rest.split_once(' ')) {
            ("ask", Some((slot, content))) => Self::Asked(slot.parse()?, parse(content)?),
            ("done", None) => Self::Done(rest.parse()?),
            ("fail", _) => Self::Failed(rest.to_owned()),
            _ => bail!("no event: '{line}'"),
        })
    }
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    /// What was acknowledged last; `None`: nothing is there.
    sure: Option<Content>,
    /// What was asked for since then, without an answer.
    asked: Option<Option<Content>>,
}

/// What is known of all keys. Its text is a word for each key, `SLOT=SURE` or `SLOT=SURE?ASKED`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Book(BTreeMap<Slot, Known>);

impl Book {
    /// Takes an event down.
    ///
    /// # Errors
    /// When it cannot come after the events before, or is a failure.
    pub fn note(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Asked(slot, content) => self.0.entry(*slot).or_default().asked = Some(*content),
            Event::Done(slot) => {
                let known = self.0.entry(*slot).or_default();
                let sure = known.asked.with_context(|| format!("{slot} is acknowledged and was not asked for"))?;
                *known = Known { sure, asked: None };
            }
            Event::Failed(text) => bail!("{text}"),
        }
        Ok(())
    }

    /// The objects that are known to be there.
    fn objects(&self) -> impl Iterator<Item = (Slot, Content)> {
        self.0.iter().filter_map(|(slot, known)| Some((*slot, known.sure?)))
    }

    /// How many keys have objects that are known to be there, and how many were being changed.
    pub fn counts(&self) -> (usize, usize) {
        (self.objects().count(), self.0.values().filter(|known| known.asked.is_some()).count())
    }
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (slot, known)) in self.0.iter().enumerate() {
            write!(f, "{}{slot}={}", if number == 0 { "" } else { " " }, show(known.sure))?;
            if let Some(asked) = known.asked {
                write!(f, "?{}", show(asked))?;
            }
        }
        Ok(())
    }
}

impl FromStr for Book {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = |word: &str| -> Result<(Slot, Known)> {
            let (slot, known) = word.split_once('=').with_context(|| format!("no entry: '{word}'"))?;
            let (sure, asked) = known.split_once('?').map_or((known, None), |(sure, asked)| (sure, Some(asked)));
            Ok((slot.parse()?, Known { sure: parse(sure)?, asked: asked.map(parse).transpose()? }))
        };
        Ok(Self(text.split_whitespace().map(known).collect::<Result<_>>()?))
    }
}

/// An answer: its status, its head in lower case, and its content.
type Answer = (u16, String, Vec<u8>);

/// One connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// A line without its end. An error, too, when the stream ends in it.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(line.to_owned())
    }

    fn ask(&mut self, method: &str, target: &str, content: &[u8]) -> io::Result<Answer> {
        let head = format!("{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", content.len());
        self.0.get_mut().write_all(head.as_bytes())?;
        self.0.get_mut().write_all(content)?;
        let mut head = String::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            head.push_str(&line.to_lowercase());
            head.push('\n');
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(Ok(0), str::parse).map_err(io::Error::other)?;
        let mut back = vec![0; length];
        self.0.read_exact(&mut back)?;
        if head.contains("transfer-encoding: chunked") {
            back = self.chunks()?;
        }
        Ok((status, head, back))
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; size];
            self.0.read_exact(&mut chunk)?;
            all.append(&mut chunk);
            self.line()?;
            if size == 0 {
                return Ok(all);
            }
        }
    }

    /// An answer that must be this one. An [`io::Error`]: the server is gone.
    fn expect(&mut self, status: u16, method: &str, target: &str, content: &[u8]) -> Result<(String, String)> {
        let (got, head, back) = self.ask(method, target, content)?;
        let back = String::from_utf8(back).context("an answer that is no text")?;
        ensure!(got == status, "{method} {target}: {head}{back}");
        Ok((head, back))
    }

    fn multipart(&mut self, target: &str, bytes: &[u8]) -> Result<()> {
        let (_, back) = self.expect(200, "POST", &format!("{target}?uploads"), &[])?;
        let upload = text(&back, "UploadId").next().context("no UploadId")?.to_owned();
        let mut list = String::from("<CompleteMultipartUpload>");
        for (part, number) in bytes.chunks(PART).zip(1..) {
            let to = format!("{target}?partNumber={number}&uploadId={upload}");
            let (head, _) = self.expect(200, "PUT", &to, part)?;
            let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).context("no ETag")?.to_owned();
            list.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
        }
        list.push_str("</CompleteMultipartUpload>");
        let (_, back) = self.expect(200, "POST", &format!("{target}?uploadId={upload}"), list.as_bytes())?;
        ensure!(back.contains("<CompleteMultipartUploadResult"), "{back}");
        Ok(())
    }
}

/// The contents of all elements of a name.
fn text<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).filter_map(|rest| rest.split(&close).next()).collect::<Vec<_>>().into_iter()
}

/// What a client does with its events: it goes on when this returns.
pub type Notes<'a> = dyn Fn(Event) -> Result<()> + Sync + 'a;

/// One client's writes, until `stop`, or the server is gone: PUTs small and large, multipart uploads, deletes.
///
/// # Errors
/// When the server gives a wrong answer, and those of `note`.
pub fn load(address: SocketAddr, client: usize, seed: u64, note: &Notes<'_>, stop: &AtomicBool) -> Result<()> {
    match writes(address, client, seed, note, stop) {
        Err(error) if error.is::<io::Error>() => Ok(()),
        result => result,
    }
}

fn writes(address: SocketAddr, client: usize, seed: u64, note: &Notes<'_>, stop: &AtomicBool) -> Result<()> {
    let mut random = Random(seed);
    let mut connection = Client::connect(address)?;
    while !stop.load(Ordering::Relaxed) {
        let slot = Slot(client, random.below(KEYS));
        let size = match random.below(20) {
            0..8 => random.below(INLINE + 1),
            8..14 => random.below(100_000),
            14..18 => random.below(2 << 20),
            _ => PART + random.below(200_000),
        };
        let content = Content { seed: seed ^ random.0, size };
        let delete = random.below(8) == 0;
        // An upload has at least one part, and a part of nothing is none.
        let multipart = size > PART || size > 0 && random.below(6) == 0;
        note(Event::Asked(slot, (!delete).then_some(content)))?;
        let to = slot.target();
        if delete {
            connection.expect(204, "DELETE", &to, &[])?;
        } else if multipart {
            connection.multipart(&to, &content.bytes())?;
        } else {
            connection.expect(200, "PUT", &to, &content.bytes())?;
        }
        note(Event::Done(slot))?;
    }
    Ok(())
}

/// Everything must be as the book has it: each key has the bytes that were acknowledged last, or those that were asked for
/// since, whole; the listing and the server's figures have these objects and nothing else. What had no answer is known
/// afterwards, and uploads that were not completed are aborted.
///
/// # Errors
/// When something is not so.
pub fn check(address: SocketAddr, book: &mut Book) -> Result<()> {
    let mut client = Client::connect(address)?;
    let (_, uploads) = client.expect(200, "GET", "/ernic?uploads", &[])?;
    for (key, id) in text(&uploads, "Key").zip(text(&uploads, "UploadId")) {
        client.expect(204, "DELETE", &format!("/ernic/{key}?uploadId={id}"), &[])?;
    }
    for (slot, known) in &mut book.0 {
        let (status, _, back) = client.ask("GET", &slot.target(), &[])?;
        let is = |content: Option<Content>| match content {
            None => status == 404,
            Some(content) => status == 200 && back == content.bytes(),
        };
        let found = [Some(known.sure), known.asked].into_iter().flatten().find(|content| is(*content));
        let Some(found) = found else {
            bail!(
                "{slot}: acknowledged is {}, asked for since {}, but there are status {status} and {} bytes",
                show(known.sure),
                known.asked.map_or_else(|| "nothing".to_owned(), show),
                back.len()
            );
        };
        *known = Known { sure: found, asked: None };
    }
    let objects: BTreeMap<String, usize> = book.objects().map(|(slot, content)| (slot.key(), content.size)).collect();
    let (_, page) = client.expect(200, "GET", "/ernic?list-type=2", &[])?;
    let sizes = text(&page, "Size").map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let listed: BTreeMap<String, usize> = text(&page, "Key").map(str::to_owned).zip(sizes).collect();
    ensure!(listed == objects, "listed: {listed:?}; there should be: {objects:?}");
    let (_, page) = client.expect(200, "GET", "/metrics", &[])?;
    let figure = |name: &str| -> Result<usize> {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("the server has no figure {name}"))?.parse()?)
    };
    let figures = [figure("ernic_store_objects")?, figure("ernic_store_bytes")?, figure("ernic_store_uploads")?];
    let due = [objects.len(), objects.values().sum(), 0];
    ensure!(figures == due, "objects, bytes and uploads are {figures:?} in the server's figures and should be {due:?}");
    Ok(())
}

/// Deletes what the book has.
///
/// # Errors
/// When the server refuses.
pub fn clear(address: SocketAddr, book: &mut Book) -> Result<()> {
    let mut client = Client::connect(address)?;
    for (slot, known) in &mut book.0 {
        client.expect(204, "DELETE", &slot.target(), &[])?;
        *known = Known::default();
    }
    Ok(())
}

/// Bytes and number of the files below a folder.
///
/// # Errors
/// When there is no folder.
pub fn files(path: &Path) -> Result<(usize, usize)> {
    let mut all = (0, 0);
    for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
        // Gone since.
        let Ok(entry) = entry else { continue };
        let Ok(meta) = entry.metadata() else { continue };
        let (bytes, number) = if meta.is_dir() { files(&entry.path())? } else { (usize::try_from(meta.len())?, 1) };
        all = (all.0 + bytes, all.1 + number);
    }
    Ok(all)
}

/// The files below the store's folder have the bytes of the objects, and nothing else. Removing files is nobody's to wait for,
/// so they have a while for it.
///
/// # Errors
/// When it is not so at the end of that.
pub fn settles(store: &Path, book: &Book) -> Result<()> {
    // The small parts of a large object have files, and those of a small one too.
    let (mut least, mut most) = ((0, 0), (0, 0));
    for (_, Content { size, .. }) in book.objects() {
        most = (most.0 + size, most.1 + size.div_ceil(PART));
        if size > INLINE {
            least = (least.0 + size, least.1 + 1);
        }
    }
    let begin = Instant::now();
    loop {
        let there = files(&store.join("objects"))?;
        let left = files(&store.join("tmp"))?;
        let right = (least.0..=most.0).contains(&there.0) && (least.1..=most.1).contains(&there.1);
        if right && left == (0, 0) {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < TIMEOUT,
            "objects have {there:?} bytes and files, and should have {least:?} to {most:?}; unfinished are {left:?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content() -> impl Strategy<Value = Option<Content>> {
        proptest::option::of((any::<u64>(), any::<usize>()).prop_map(|(seed, size)| Content { seed, size }))
    }

    fn slot() -> impl Strategy<Value = Slot> {
        (0..9_usize, 0..9_usize).prop_map(|(client, key)| Slot(client, key))
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (slot(), content()).prop_map(|(slot, content)| Event::Asked(slot, content)),
            slot().prop_map(Event::Done),
            "[a-z: ]{0,20}".prop_map(Event::Failed),
        ]
    }

    #[test]
    fn a_book_tells_what_was_acknowledged_from_what_was_asked_for() {
        let mut book = Book::default();
        for line in ["ask 0/1 7:3", "ask 2/0 8:4", "done 0/1", "ask 0/1 -", "ask 3/3 -", "done 3/3"] {
            book.note(&line.parse().unwrap()).unwrap();
        }
        assert_eq!(book.to_string(), "0/1=7:3?- 2/0=-?8:4 3/3=-");
        assert_eq!(book.counts(), (1, 2));
        assert!(book.note(&Event::Done(Slot(3, 3))).is_err());
        assert!(book.note(&"fail PUT: 500".parse().unwrap()).unwrap_err().to_string().contains("PUT: 500"));
    }

    #[test]
    fn contents_differ_in_every_word() {
        let (a, b) = (Content { seed: 1, size: 1001 }.bytes(), Content { seed: 2, size: 1001 }.bytes());
        assert_eq!((a.len(), b.len()), (1001, 1001));
        assert!(a.chunks_exact(8).zip(b.chunks_exact(8)).all(|(a, b)| a != b));
        assert_eq!(Content { seed: 1, size: 20 }.bytes(), a[..20]);
        assert!(Content { seed: 1, size: 0 }.bytes().is_empty());
    }

    #[test]
    fn what_is_no_event_or_book_is_refused() {
        for line in ["", "ask", "ask 1/2", "ask 1/2 x", "ask 1 -", "done 1/2 3", "done x/1", "gone 1/2"] {
            assert!(line.parse::<Event>().is_err(), "{line}");
        }
        for text in ["1/2", "1/2=", "1/2=-?", "x=-"] {
            assert!(text.parse::<Book>().is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn events_and_books_read_back(events in proptest::collection::vec(event(), 0..30)) {
            let mut book = Book::default();
            for event in events {
                prop_assert_eq!(&event.to_string().parse::<Event>().unwrap(), &event);
                let _ = book.note(&event);
            }
            prop_assert_eq!(book.to_string().parse::<Book>().unwrap(), book);
        }
    }
}
