//! The client's interface for programs: buffers that are registered once, and objects that go from and to them.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use ernic_client::{Carrier, Session, verbs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = verbs::Device::open(&verbs::Options::default())?;
//! let mut session = Session::new("http://192.168.200.1:9000".parse()?, None, Some(Arc::new(device)), 1 << 20)?;
//! let mut buffer = session.buffer()?;
//! buffer.write(0, b"hello");
//! let sent = session.upload("ernic", "greeting", &buffer, 5)?;
//! let came = session.download("ernic", "greeting", &mut buffer)?;
//! assert_eq!((came.bytes, came.etag), (5, sent.etag));
//! if came.carrier == Carrier::Http {
//!     eprintln!("by HTTP: {:?}", came.fell_back);
//! }
//! session.close();
//! # Ok(())
//! # }
//! ```
//!
//! # One thread at a time
//!
//! A session has one connection and makes one transfer at a time. It may be moved to another thread, but two threads can
//! never use it at once: every transfer takes `&mut self`, so that this does not compile,
//!
//! ```compile_fail,E0499
//! fn both(session: &mut ernic_client::Session) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| session.create_upload("bucket", "one"));
//!         scope.spawn(|| session.create_upload("bucket", "two"));
//!     });
//! }
//! ```
//!
//! and it is not `Sync`, so that neither does this:
//!
//! ```compile_fail,E0277
//! fn share<T: Sync>() {}
//! share::<ernic_client::Session>();
//! ```
//!
//! Nor is a [`Buffer`]:
//!
//! ```compile_fail,E0277
//! fn share<T: Sync>() {}
//! share::<ernic_client::Buffer>();
//! ```
//!
//! Both may be moved:
//!
//! ```
//! fn send<T: Send>() {}
//! send::<ernic_client::Session>();
//! send::<ernic_client::Buffer>();
//! ```

use std::{cell::Cell, collections::BTreeMap, fmt, marker::PhantomData, ptr::NonNull, sync::Arc, time::Instant};

use rdma_token::Window;

use crate::{
    ClientError, Refusal,
    memory::{Layout, MemoryError, PAGE, Plain, Region, Registrar},
    rc::{Place, Protocol},
    s3::{Answer, Body, Client, Config, Endpoint, Request},
    sigv4::Credentials,
    size::MAX_TRANSFER,
    transfer::{Asked, Direction, Family, Signal, Verdict, judge_body, mint, whole},
    verbs,
};

/// Bytes that are copied at a time by [`Buffer::fill`] and [`Buffer::look`].
const PIECE: usize = 256 * 1024;

/// What the names of an object's metadata begin with, in headers.
const METADATA: &str = "x-amz-meta-";

/// Highest number of a part ("Amazon S3 multipart upload limits" in the S3 user guide).
const MAX_PART_NUMBER: u32 = 10_000;

/// Whether this machine has an RDMA device that a session could use: the first that there is, with an active port and an address.
/// Whether a server uses it is another question, see [`Session::rdma_available`].
///
/// Errors: why not; [`MemoryError::Platform`] where there are no verbs at all.
pub fn rdma_available() -> Result<(), MemoryError> {
    verbs::Device::open(&verbs::Options::default()).map(drop)
}

/// What carried the bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// The server read or wrote the buffer by RDMA.
    Rdma,
    /// The body of an HTTP message.
    Http,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rdma => "RDMA",
            Self::Http => "HTTP",
        })
    }
}

/// A transfer that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes that moved.
    pub bytes: u64,
    /// ETag of the object, or of the part.
    pub etag: String,
    /// What carried them.
    pub carrier: Carrier,
    /// Which protocol, if that was RDMA.
    pub protocol: Option<Protocol>,
    /// Why that was not RDMA, if RDMA was tried: the signal, and the answer that gave it.
    pub fell_back: Option<(Signal, Refusal)>,
    /// When the request began; of both, if it fell back.
    pub begin: Instant,
    /// When the answer was complete.
    pub end: Instant,
    /// The object's metadata, on a download: names in lower case and without `x-amz-meta-`, and values.
    pub metadata: Vec<(String, String)>,
}

impl Transfer {
    /// A value of the object's metadata, by its name without `x-amz-meta-`.
    #[must_use]
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.metadata.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// A multipart upload. It is the server's until [`Session::complete_upload`] or [`Session::abort_upload`]: dropping this changes
/// nothing there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    bucket: String,
    key: String,
    id: String,
    parts: BTreeMap<u32, String>,
}

impl Upload {
    /// Its id on the server.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Number and ETag of the parts that are there, in order.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &str)> {
        self.parts.iter().map(|(number, etag)| (*number, etag.as_str()))
    }
}

/// Memory of a [`Session`], registered with its device until it is dropped. It starts with a page.
///
/// It is copied in and out, never borrowed: a server may write into it at any time.
pub struct Buffer {
    // Dropped before the device that it is registered with.
    region: Box<dyn Region>,
    device: Option<Arc<dyn Registrar>>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.region).finish()
    }
}

impl Buffer {
    /// Bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.region.length()
    }

    /// Copies `bytes` to `offset`. Panics if they do not fit there.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    /// Copies from `offset`. Panics if there are not as many bytes.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.region.read(offset, into);
    }

    /// The first byte, for programs that fill memory in place; see [`Region::pointer`].
    #[must_use]
    pub fn pointer(&mut self) -> Option<NonNull<u8>> {
        self.region.pointer()
    }

    /// Fills `length` bytes from `offset` on with what `next` makes, piece by piece. Panics if they do not fit there.
    pub fn fill(&mut self, offset: u64, length: u64, mut next: impl FnMut(&mut [u8])) {
        let mut piece = vec![0; PIECE];
        pieces(offset, length, |at, n| {
            let part = piece.get_mut(..n).unwrap_or_default();
            next(part);
            self.region.write(at, part);
        });
    }

    /// Shows `length` bytes from `offset` on to `see`, piece by piece. Panics if there are not as many.
    pub fn look(&self, offset: u64, length: u64, mut see: impl FnMut(&[u8])) {
        let mut piece = vec![0; PIECE];
        pieces(offset, length, |at, n| {
            let part = piece.get_mut(..n).unwrap_or_default();
            self.region.read(at, part);
            see(part);
        });
    }
}

/// Calls `each` with place and length of the pieces of `length` bytes from `offset` on.
fn pieces(offset: u64, length: u64, mut each: impl FnMut(usize, usize)) {
    let mut at = offset;
    let end = offset.saturating_add(length);
    while at < end {
        let n = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        each(usize::try_from(at).unwrap_or(usize::MAX), n);
        at += n as u64;
    }
}

/// A connection to a server, and a device that it may reach memory through.
///
/// With a device, a transfer asks for RDMA first. Where the answer is one of the three signals to fall back ([`Signal`]), the same
/// request is made again without a token, and the bytes go through the HTTP body. Anything else that is not a success all over
/// is an error, and nothing is known about the bytes then: see [`judge`](crate::transfer::judge).
pub struct Session {
    client: Client,
    device: Option<Arc<dyn Registrar>>,
    family: Family,
    protocol: Protocol,
    /// Whether the server has said that it does not speak `hipobj-rc-v2`.
    no_rc: bool,
    size: u64,
    /// Whether the server has declined the last transfer that asked for RDMA.
    declined: bool,
    /// Keeps it from being `Sync`.
    one_thread: PhantomData<Cell<()>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("client", &self.client)
            .field("device", &self.device)
            .field("family", &self.family)
            .field("protocol", &self.protocol)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// What became of the attempt to transfer by RDMA.
enum ByRdma {
    NotAsked,
    FallBack(Signal, Refusal),
    Done(Transfer),
}

impl Session {
    /// A session with the server at `endpoint`, signed if there are `credentials`, with buffers of `size` bytes, 1 to 1 GiB.
    /// Without a `device` all transfers go by HTTP. Nothing is sent yet.
    ///
    /// Errors: [`ClientError::BadSize`]; [`ClientError::Connect`] if the server's name cannot be resolved.
    pub fn new(
        endpoint: Endpoint,
        credentials: Option<Credentials>,
        device: Option<Arc<dyn Registrar>>,
        size: u64,
    ) -> Result<Self, ClientError> {
        Self::with_config(Config { credentials, ..Config::new(endpoint) }, device, size)
    }

    /// As [`Session::new`], with everything that can be said about the connection.
    pub fn with_config(config: Config, device: Option<Arc<dyn Registrar>>, size: u64) -> Result<Self, ClientError> {
        if !(1..=MAX_TRANSFER).contains(&size) {
            return Err(ClientError::BadSize(size));
        }
        let client = Client::new(config)?;
        let (family, protocol) = (Family::A, Protocol::Token);
        let (no_rc, declined) = (false, false);
        Ok(Self { client, device, family, protocol, no_rc, size, declined, one_thread: PhantomData })
    }

    /// With another form of token than [`Family::A`].
    #[must_use]
    pub fn with_tokens(self, family: Family) -> Self {
        Self { family, ..self }
    }

    /// By another protocol than [`Protocol::Token`].
    #[must_use]
    pub fn with_protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// As [`Session::with_protocol`], from the next transfer on.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Bytes of each of its buffers.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether the next transfer has reason to expect RDMA: there is a device, and the server has not declined the last transfer
    /// that asked for it. Every transfer asks again, whatever this says.
    #[must_use]
    pub fn rdma_available(&self) -> bool {
        self.device.is_some() && !self.declined
    }

    /// The client that makes the requests, for those that move no payload: listing, deleting.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Allocates a buffer of the session's size, zeros, and registers it. That takes time and locks memory: a buffer is made once
    /// and used for many transfers.
    ///
    /// Errors: [`MemoryError::Map`], [`MemoryError::Verb`], [`MemoryError::Unaligned`].
    pub fn buffer(&self) -> Result<Buffer, MemoryError> {
        let length = usize::try_from(self.size).unwrap_or(usize::MAX);
        let region: Box<dyn Region> = match &self.device {
            Some(device) => device.register(Layout::aligned(length))?,
            None => Box::new(Plain::new(length)?),
        };
        if !region.address().is_multiple_of(PAGE as u64) {
            return Err(MemoryError::Unaligned(region.address()));
        }
        Ok(Buffer { region, device: self.device.clone() })
    }

    /// Stores the first `length` bytes of the buffer as an object. An empty one goes by HTTP: a token names at least
    /// one byte.
    ///
    /// Errors: what is wrong with the buffer; all that a request can meet. If there is one, the object is what it was, or is what it
    /// was to be, unless it is a [`ClientError::Violation`].
    pub fn upload(&mut self, bucket: &str, key: &str, buffer: &Buffer, length: u64) -> Result<Transfer, ClientError> {
        self.upload_with(bucket, key, buffer, length, &[])
    }

    /// As [`Session::upload`], with headers: `content-type`, `x-amz-meta-…`, `if-none-match`. Names are in lower case.
    pub fn upload_with(
        &mut self,
        bucket: &str,
        key: &str,
        buffer: &Buffer,
        length: u64,
        headers: &[(&str, &str)],
    ) -> Result<Transfer, ClientError> {
        let request = || {
            let request = Request::new("PUT", bucket, key);
            headers.iter().fold(request, |request, (name, value)| request.header(name, *value))
        };
        self.send(request, buffer, length)
    }

    /// Fetches a whole object into the beginning of the buffer; [`Transfer::bytes`] says how long it is. The rest of the buffer may be
    /// anything.
    ///
    /// Where RDMA fills the buffer to its last byte, a HEAD request follows: the object may be longer, and only that tells (wire
    /// document, section 4, rule 7). By `hipobj-rc-v2`, one goes in front of every download, and the object must still be the same
    /// when it is fetched. Who knows the length uses [`Session::download_exact`] and is spared that.
    ///
    /// Errors: [`ClientError::TooLong`]; as of [`Session::upload`], but if there is one the buffer may hold anything.
    pub fn download(&mut self, bucket: &str, key: &str, buffer: &mut Buffer) -> Result<Transfer, ClientError> {
        let size = self.size;
        if self.asks_rc() {
            // A session takes a buffer of the server's: none that is larger than the object.
            let answer = self.client.call(&Request::new("HEAD", bucket, key), None)?.check()?;
            let length = answer.header("content-length")?.and_then(|length| length.parse().ok());
            let length: u64 = length.ok_or_else(|| ClientError::BadAnswer("a HEAD without content-length".into()))?;
            if length > size {
                return Err(ClientError::TooLong { object: Some(length), size });
            }
            let asked = Asked { direction: Direction::Get, range: None, window: length, bytes: Some(length) };
            return self.fetch(bucket, key, buffer, &asked, Some(answer.etag()?));
        }
        let asked = Asked { direction: Direction::Get, range: None, window: size, bytes: None };
        let transfer = self.fetch(bucket, key, buffer, &asked, None)?;
        if transfer.carrier == Carrier::Rdma && transfer.bytes == size {
            // That of the very object that came, or of none.
            let request = Request::new("HEAD", bucket, key).header("if-match", transfer.etag.as_str());
            let answer = self.client.call(&request, None)?.check()?;
            let object = answer.header("content-length")?.and_then(|length| length.parse().ok());
            if object != Some(size) {
                return Err(ClientError::TooLong { object, size });
            }
        }
        Ok(transfer)
    }

    /// Fetches a whole object of `length` bytes, of which there is at least one. By RDMA, a longer object that is not the one that
    /// was expected cannot be told from one of `length` bytes.
    ///
    /// Errors: as of [`Session::download`]; [`Violation::WrongCount`](crate::Violation::WrongCount) if the object is shorter.
    pub fn download_exact(
        &mut self,
        bucket: &str,
        key: &str,
        buffer: &mut Buffer,
        length: u64,
    ) -> Result<Transfer, ClientError> {
        let asked = Asked { direction: Direction::Get, range: None, window: length, bytes: Some(length) };
        self.fetch(bucket, key, buffer, &asked, None)
    }

    /// Fetches `length` bytes of an object from its byte `offset` on into the beginning of the buffer. All of them must be there.
    ///
    /// Errors: as of [`Session::download`]; [`ClientError::BadRange`].
    pub fn download_range(
        &mut self,
        bucket: &str,
        key: &str,
        offset: u64,
        length: u64,
        buffer: &mut Buffer,
    ) -> Result<Transfer, ClientError> {
        let last = length.checked_sub(1).and_then(|more| offset.checked_add(more));
        let last = last.ok_or(ClientError::BadRange { offset, length })?;
        let range = Some((offset, last));
        let asked = Asked { direction: Direction::Get, range, window: length, bytes: Some(length) };
        self.fetch(bucket, key, buffer, &asked, None)
    }

    /// Begins a multipart upload.
    pub fn create_upload(&mut self, bucket: &str, key: &str) -> Result<Upload, ClientError> {
        let id = self.client.create_plain_upload(bucket, key)?;
        Ok(Upload { bucket: bucket.to_owned(), key: key.to_owned(), id, parts: BTreeMap::new() })
    }

    /// Stores the first `length` bytes of the buffer as a part, in place of one of the same number. `number` is 1 to 10,000; all parts
    /// but the last have at least 5 MiB (as of S3).
    ///
    /// Errors: [`ClientError::BadPart`]; as of [`Session::upload`].
    pub fn upload_part(
        &mut self,
        upload: &mut Upload,
        number: u32,
        buffer: &Buffer,
        length: u64,
    ) -> Result<Transfer, ClientError> {
        if !(1..=MAX_PART_NUMBER).contains(&number) {
            return Err(ClientError::BadPart(number));
        }
        let request = || {
            Request::new("PUT", &upload.bucket, &upload.key)
                .query("partNumber", number.to_string())
                .query("uploadId", upload.id.as_str())
        };
        let transfer = self.send(request, buffer, length)?;
        upload.parts.insert(number, transfer.etag.clone());
        Ok(transfer)
    }

    /// Makes an object of the parts, in the order of their numbers. Returns its ETag.
    pub fn complete_upload(&mut self, upload: &Upload) -> Result<String, ClientError> {
        let Upload { bucket, key, id, .. } = upload;
        self.client.complete_plain_upload(bucket, key, id, upload.parts())
    }

    /// Gives the upload up, with all of its parts.
    pub fn abort_upload(&mut self, upload: &Upload) -> Result<(), ClientError> {
        self.client.abort_upload(&upload.bucket, &upload.key, &upload.id)
    }

    /// Ends the connection, and lets go of the device. Its buffers stay registered until they are dropped, and the device stays open
    /// until the last of them is.
    pub fn close(self) {}

    /// Refuses a buffer that is not this session's, and a length that it does not have.
    fn check(&self, buffer: &Buffer, length: u64) -> Result<(), ClientError> {
        let (got, due) = (buffer.size() as u64, self.size);
        if got != due {
            return Err(ClientError::BufferSize { got, due });
        }
        let same = match (&self.device, &buffer.device) {
            (Some(mine), Some(its)) => Arc::ptr_eq(mine, its),
            // Without a device, memory is memory.
            (None, _) => true,
            (Some(_), None) => false,
        };
        if !same {
            return Err(ClientError::OtherDevice);
        }
        if length > due { Err(ClientError::BadLength { length, size: due }) } else { Ok(()) }
    }

    /// A PUT of the first `length` bytes of the buffer.
    fn send<'a>(
        &mut self,
        request: impl Fn() -> Request<'a>,
        buffer: &Buffer,
        length: u64,
    ) -> Result<Transfer, ClientError> {
        let begin = Instant::now();
        self.check(buffer, length)?;
        let asked = Asked { direction: Direction::Put, range: None, window: length, bytes: Some(length) };
        let fell_back = match self.by_rdma(request(), buffer, &asked, begin)? {
            ByRdma::Done(transfer) => return Ok(transfer),
            ByRdma::NotAsked => None,
            ByRdma::FallBack(signal, refusal) => Some((signal, refusal)),
        };
        let region = &buffer.region;
        let source = |offset: u64, piece: &mut [u8]| region.read(usize::try_from(offset).unwrap_or(usize::MAX), piece);
        let answer = self.client.call(&request().body(Body::Stream(length, &source)), None)?.check()?;
        let (etag, end) = (answer.etag()?, Instant::now());
        let (carrier, metadata) = (Carrier::Http, Vec::new());
        Ok(Transfer { bytes: length, etag, carrier, protocol: None, fell_back, begin, end, metadata })
    }

    /// A GET into the beginning of the buffer; of the object with that ETag alone, if there is one.
    fn fetch(
        &mut self,
        bucket: &str,
        key: &str,
        buffer: &mut Buffer,
        asked: &Asked,
        etag: Option<String>,
    ) -> Result<Transfer, ClientError> {
        let begin = Instant::now();
        self.check(buffer, asked.window)?;
        let request = || {
            let request = Request::new("GET", bucket, key);
            etag.iter().fold(request, |request, etag| request.header("if-match", etag.as_str()))
        };
        let fell_back = match self.by_rdma(request(), buffer, asked, begin)? {
            ByRdma::Done(transfer) => return Ok(transfer),
            ByRdma::NotAsked => None,
            ByRdma::FallBack(signal, refusal) => Some((signal, refusal)),
        };
        let mut request = request();
        if let Some((first, last)) = asked.range {
            request = request.header("range", format!("bytes={first}-{last}"));
        }
        let (region, most) = (&mut buffer.region, asked.window);
        let (mut offset, mut overrun) = (0, false);
        let mut sink = |piece: &[u8]| {
            // Never behind the bytes that there is room for.
            if piece.len() as u64 > most.saturating_sub(offset) {
                overrun = true;
                return Err(format!("more than the {most} bytes that the object should have"));
            }
            region.write(usize::try_from(offset).unwrap_or(usize::MAX), piece);
            offset += piece.len() as u64;
            Ok(())
        };
        let answer = self.client.call(&request, Some(&mut sink));
        if overrun && asked.bytes.is_none() {
            return Err(ClientError::TooLong { object: None, size: most });
        }
        let answer = answer?;
        let end = Instant::now();
        let answer = judge_body(answer, asked)?;
        let (bytes, etag, carrier) = (answer.length, answer.etag()?, Carrier::Http);
        Ok(Transfer { bytes, etag, carrier, protocol: None, fell_back, begin, end, metadata: metadata(&answer) })
    }

    /// Whether the next transfer begins with prepare.
    fn asks_rc(&self) -> bool {
        self.device.is_some() && (self.protocol == Protocol::RcV2 || self.protocol == Protocol::Auto && !self.no_rc)
    }

    fn by_rdma(
        &mut self,
        request: Request<'_>,
        buffer: &Buffer,
        asked: &Asked,
        begin: Instant,
    ) -> Result<ByRdma, ClientError> {
        // A window of no bytes is a malformed token, or names a whole registration (wire document, section 4, rules 8 and 19).
        let Some(device) = self.device.clone().filter(|_| asked.window > 0) else { return Ok(ByRdma::NotAsked) };
        let (family, region, length) = (self.family, &*buffer.region, asked.window);
        let window = Window { address: region.address(), length };
        let mut by_rc = None;
        if self.asks_rc() {
            let done = self.client.by_rc(&request, &*device, Place { region, window }, asked);
            by_rc = match (done, self.protocol) {
                // The device has nothing that could be connected: tokens are what is left.
                (Err(ClientError::Memory(MemoryError::NotConnectable)), Protocol::Auto) => {
                    self.no_rc = true;
                    None
                }
                (
                    Ok((Verdict::FallBack(signal @ (Signal::Declined | Signal::NoReply), refusal), _)),
                    Protocol::Auto,
                ) => {
                    // A server that lets nobody in may speak it all the same.
                    self.no_rc = signal == Signal::Declined || refusal.status != 403;
                    None
                }
                (done, _) => Some(done?),
            };
        }
        let (protocol, (verdict, answer)) = match by_rc {
            Some(done) => (Protocol::RcV2, done),
            None => {
                let port = device.port();
                let token = mint(family, &port, region.rkey(), whole(region), window);
                let token = token.ok_or(ClientError::NoToken { family, qpn: port.qpn, length })?;
                (Protocol::Token, self.client.by_token(request, &token, asked)?)
            }
        };
        let end = Instant::now();
        self.declined = matches!(verdict, Verdict::FallBack(Signal::Declined, _));
        Ok(match verdict {
            Verdict::FallBack(signal, refusal) => ByRdma::FallBack(signal, refusal),
            Verdict::Moved(moved) => ByRdma::Done(Transfer {
                bytes: moved.bytes,
                etag: moved.etag,
                carrier: Carrier::Rdma,
                protocol: Some(protocol),
                fell_back: None,
                begin,
                end,
                metadata: metadata(&answer),
            }),
        })
    }
}

/// The metadata in an answer's headers.
fn metadata(answer: &Answer) -> Vec<(String, String)> {
    let named = |(name, value): &(String, String)| {
        let name = name.to_ascii_lowercase();
        name.strip_prefix(METADATA).map(|name| (name.to_owned(), value.clone()))
    };
    answer.headers.iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(size: u64) -> Result<Session, ClientError> {
        Session::new("http://127.0.0.1:9".parse().unwrap(), None, None, size)
    }

    #[test]
    fn sizes_are_those_of_one_transfer() {
        for size in [0, MAX_TRANSFER + 1, u64::MAX] {
            assert!(matches!(session(size), Err(ClientError::BadSize(bad)) if bad == size));
        }
        assert_eq!(session(MAX_TRANSFER).unwrap().size(), 1 << 30);
    }

    #[test]
    fn buffers_are_filled_and_seen_in_pieces() {
        let size = PIECE * 2 + 17;
        let mut buffer = session(size as u64).unwrap().buffer().unwrap();
        let mut lengths = Vec::new();
        buffer.fill(10, (size - 10) as u64, |piece| {
            lengths.push(piece.len());
            piece.fill(u8::try_from(lengths.len()).unwrap());
        });
        assert_eq!(lengths, [PIECE, PIECE, 7]);
        let mut seen = Vec::new();
        buffer.look(0, size as u64, |piece| seen.extend_from_slice(piece));
        assert_eq!((seen.len(), &seen[..10], seen[10], seen[size - 1]), (size, &[0; 10][..], 1, 3));
        assert_eq!(buffer.pointer().unwrap().addr().get() % PAGE, 0);
    }

    #[test]
    fn metadata_is_what_the_prefix_says() {
        let headers = [("X-Amz-Meta-CRC32", "0a"), ("etag", "e"), ("x-amz-meta-", ""), ("x-amz-metal", "no")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let answer = Answer { status: 200, headers, document: Vec::new(), length: 0 };
        let due = [("crc32", "0a"), ("", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(metadata(&answer), due);
    }
}
