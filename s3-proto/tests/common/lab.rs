//! A service with RDMA on, and the memory of a client.
#![allow(dead_code, clippy::cast_possible_truncation, missing_debug_implementations)]

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use ernic_store::{MemoryConfig, MemoryStore, Store};
use rdma_token::{
    Descriptor, Family, Qpn, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token, TokenHeader, Transport,
    Window, names, testing::Regions,
};
use s3_proto::{RdmaConfig, S3Builder, S3Config, S3Service};

use crate::common::{Answer, BUCKET, Client, MIB, Request, get, put};

/// Where the service says that it is.
pub const ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);
/// Where most regions begin: unaligned, so that nothing relies on pages.
pub const BASE: u64 = 0x7f11_2233_4005;
/// What untouched memory holds.
pub const BLANK: u8 = 0xee;

pub const FAMILIES: [Family; 5] = [Family::A, Family::B, Family::C, Family::D, Family::E];

/// A client's memory. Each test binary says which in `crate::memory`: a table in this process, or that of a device.
pub trait ClientMemory {
    /// What the service is given.
    fn remote(&self) -> Arc<dyn RemoteMemory>;
    /// Registers memory at `address` that holds `content` and returns its rkey.
    fn register(&self, address: u64, content: &[u8], rights: &[RemoteAccess]) -> u32;
    /// Gives a registration up.
    fn deregister(&self, rkey: u32);
    /// What a region holds. Checks that nothing beside it was touched.
    fn content(&self, rkey: u32) -> Vec<u8>;
}

impl ClientMemory for Regions {
    fn remote(&self) -> Arc<dyn RemoteMemory> {
        Arc::new(self.clone())
    }

    fn register(&self, address: u64, content: &[u8], rights: &[RemoteAccess]) -> u32 {
        Regions::register(self, address, content, rights)
    }

    fn deregister(&self, rkey: u32) {
        Regions::deregister(self, rkey);
    }

    fn content(&self, rkey: u32) -> Vec<u8> {
        Regions::content(self, rkey)
    }
}

/// Stands before a client's memory, counts what is moved, and breaks transfers.
#[derive(Clone)]
pub struct Probe {
    memory: Arc<dyn RemoteMemory>,
    state: Arc<Mutex<ProbeState>>,
}

#[derive(Debug, Default, Clone)]
struct ProbeState {
    /// Bytes read and written, those of failed transfers among them.
    moved: [u64; 2],
    largest: usize,
    fault: Option<(u64, RemoteError)>,
}

impl Probe {
    fn new(memory: Arc<dyn RemoteMemory>) -> Self {
        Self { memory, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, ProbeState> {
        self.state.lock().unwrap()
    }

    /// Bytes read out of and written into the memory, those of failed transfers among them.
    pub fn moved(&self) -> [u64; 2] {
        self.state().moved
    }

    /// Bytes of the largest single transfer.
    pub fn largest(&self) -> usize {
        self.state().largest
    }

    /// Lets byte number `bytes` from now on fail.
    pub fn fail_after(&self, bytes: u64, error: RemoteError) {
        self.state().fault = Some((bytes, error));
    }

    /// How many of `length` bytes may move, and what becomes of the transfer then.
    fn moving(&self, index: usize, length: usize) -> (usize, Result<(), RemoteError>) {
        let mut state = self.state();
        state.largest = state.largest.max(length);
        let (moves, end) = match state.fault.take() {
            Some((left, error)) if left < length as u64 => (left as usize, Err(error)),
            Some((left, error)) => {
                state.fault = Some((left - length as u64, error));
                (length, Ok(()))
            }
            None => (length, Ok(())),
        };
        state.moved[index] += moves as u64;
        (moves, end)
    }
}

#[async_trait]
impl RemoteMemory for Probe {
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let window = self.memory.open(header, access).await?;
        Ok(Box::new(ProbedWindow { probe: self.clone(), window }))
    }
}

struct ProbedWindow {
    probe: Probe,
    window: Box<dyn RemoteWindow>,
}

#[async_trait]
impl RemoteWindow for ProbedWindow {
    fn len(&self) -> u64 {
        self.window.len()
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        let (moves, end) = self.probe.moving(0, into.len());
        self.window.read(offset, &mut into[..moves]).await?;
        end
    }

    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        let (moves, end) = self.probe.moving(1, from.len());
        self.window.write(offset, &from[..moves]).await?;
        end
    }
}

/// A registration.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    pub rkey: u32,
    pub window: Window,
}

impl Region {
    /// A token of `family` for a part of the region, or for something else.
    pub fn token(&self, family: Family, address: u64, length: u64) -> TokenHeader {
        token(family, self.rkey, Window { address, length })
    }

    /// A token of `family` for the first `length` bytes.
    pub fn first(&self, family: Family, length: u64) -> TokenHeader {
        self.token(family, self.window.address, length)
    }

    /// A token of `family` for all of it.
    pub fn whole(&self, family: Family) -> TokenHeader {
        self.first(family, self.window.length)
    }
}

/// A token of `family` for `window`. Families that can override their fields do.
pub fn token(family: Family, rkey: u32, window: Window) -> TokenHeader {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 9];
    let Window { address, length } = window;
    let a = Token { transport: Transport::Rc, qpn: 0x12_3456, gid, rkey, address, length, port: 1, lid: 0 };
    let qpn = Qpn::new(0x7a03).unwrap();
    let c = Descriptor { address, length: length as u32, rkey, lid: 0, qpn, gid: Some(gid) };
    let (elsewhere, more) = (address ^ 0xffff_0000, 0x0bad_cafe);
    match family {
        Family::A => TokenHeader::A(a),
        Family::B => {
            TokenHeader::B(Token { address: elsewhere, length: if length == 0 { 0 } else { more }, ..a }, window)
        }
        Family::C => TokenHeader::C(c),
        Family::D => TokenHeader::D(Descriptor { address: elsewhere, length: more as u32, ..c }, window),
        Family::E => TokenHeader::E(Descriptor { address: elsewhere, length: more as u32, ..c }, window),
    }
}

impl Request {
    /// The request with a token.
    pub fn token(self, token: &TokenHeader) -> Self {
        token.headers().into_iter().fold(self, |request, (name, value)| request.header(name, value))
    }
}

/// A PUT of what a token names, as clients send it.
pub fn token_put(target: &str, token: &TokenHeader) -> Request {
    put(target, "").token(token)
}

/// What the counters say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// GetObject requests and their bytes.
    pub reads: [u64; 2],
    /// PutObject and UploadPart requests and their bytes.
    pub writes: [u64; 2],
}

pub struct Lab {
    pub service: S3Service,
    pub store: Arc<MemoryStore>,
    pub memory: Box<dyn ClientMemory>,
    pub probe: Probe,
}

/// A service with RDMA on over an empty store with the bucket [`BUCKET`].
pub fn lab() -> Lab {
    lab_of(S3Config::default(), RdmaConfig::new(ENDPOINT))
}

pub fn lab_of(config: S3Config, rdma: RdmaConfig) -> Lab {
    lab_with(config, |builder, probe| builder.with_remote(probe, rdma))
}

/// Multipart uploads may have small parts.
pub fn lab_with(config: S3Config, set_up: impl FnOnce(S3Builder, Arc<Probe>) -> S3Builder) -> Lab {
    let memory = crate::memory();
    let probe = Probe::new(memory.remote());
    let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 64 * MIB as u64, objects: 1000 }));
    assert!(store.create_bucket(BUCKET));
    let config = S3Config { min_part: 0, ..config };
    let builder = S3Service::builder(Arc::clone(&store) as _, config);
    let service = set_up(builder, Arc::new(probe.clone())).build();
    Lab { service, store, memory, probe }
}

impl Lab {
    pub fn client(&self) -> Client {
        Client::new(&self.service)
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn call(&self, request: &Request) -> Answer {
        self.client().call(request)
    }

    /// A region of `length` blank bytes with all rights.
    pub fn blank(&self, length: usize) -> Region {
        self.region(&vec![BLANK; length])
    }

    /// A region that holds `content`, with all rights.
    pub fn region(&self, content: &[u8]) -> Region {
        self.region_at(BASE, content)
    }

    pub fn region_at(&self, address: u64, content: &[u8]) -> Region {
        let rkey = self.memory.register(address, content, &[RemoteAccess::Read, RemoteAccess::Write]);
        Region { rkey, window: Window { address, length: content.len() as u64 } }
    }

    pub fn counts(&self) -> Counts {
        let metrics = self.service.metrics();
        Counts {
            reads: [metrics.rdma_reads(), metrics.rdma_bytes_read()],
            writes: [metrics.rdma_writes(), metrics.rdma_bytes_written()],
        }
    }

    /// Objects and bytes in the store.
    pub fn usage(&self) -> (u64, u64) {
        let usage = self.store.usage();
        (usage.objects, usage.bytes)
    }

    /// Stores an object by the body path.
    #[track_caller]
    pub fn put(&self, key: &str, content: &[u8]) -> String {
        let answer = self.call(&put(&format!("/{BUCKET}/{key}"), content));
        answer.expect(200).header("etag").unwrap().to_owned()
    }

    /// What an object holds, by the body path.
    #[track_caller]
    pub fn get(&self, key: &str) -> Vec<u8> {
        self.call(&get(&format!("/{BUCKET}/{key}"))).expect(200).body.clone()
    }

    /// A request with a token that must not change anything: it is refused with `status` and `code`, its reply is
    /// `reply`, no counter of transfers moves but that of the failures for `reason`, no byte of the client's memory is
    /// touched, and the store stays as it is.
    #[track_caller]
    pub fn refused(
        &self,
        request: &Request,
        status: u16,
        code: &str,
        reply: Option<&str>,
        reason: &'static str,
    ) -> Answer {
        let before = (self.counts(), self.usage(), self.probe.moved(), self.failures(reason));
        let answer = self.call(request);
        answer.expect_error(status, code, request.target.split('?').next().unwrap());
        answer.expect_reply(reply, reply.map(|_| 0));
        assert_eq!(answer.header("etag"), None);
        let after = (self.counts(), self.usage(), self.probe.moved(), self.failures(reason));
        let failures = before.3 + u64::from(!reason.is_empty());
        assert_eq!(after, (before.0, before.1, before.2, failures), "{code}");
        assert_eq!(self.service.metrics().rdma_active(), 0);
        answer
    }

    pub fn failures(&self, reason: &'static str) -> u64 {
        self.service.metrics().rdma_failures(reason)
    }
}

impl Answer {
    /// Checks what the answer says of RDMA.
    #[track_caller]
    pub fn expect_reply(&self, reply: Option<&str>, bytes: Option<u64>) -> &Self {
        let bytes = bytes.map(|bytes| bytes.to_string());
        assert_eq!(self.header(names::REPLY), reply, "{self:?}");
        assert_eq!(self.header(names::BYTES), bytes.as_deref(), "{self:?}");
        assert_eq!(self.header(names::BYTES_TRANSFERRED), bytes.as_deref(), "{self:?}");
        self
    }

    /// Checks that the answer is of a transfer that has succeeded: the status, `bytes` moved, no body, an ETag, and the
    /// reply that clients of `family` take.
    #[track_caller]
    pub fn expect_moved(&self, family: Family, status: u16, bytes: u64) -> &Self {
        self.expect(status);
        assert_eq!(self.header("content-length"), Some("0"), "{self:?}");
        assert_eq!(self.header("connection"), None, "{self:?}");
        assert_eq!(self.body, b"");
        assert!(self.header("etag").is_some());
        let reply = self.header(names::REPLY).unwrap().to_owned();
        match (family, status) {
            (Family::A | Family::B, 200) => assert!(reply.starts_with("200:") && reply.len() == 92, "{reply}"),
            (_, status) => assert_eq!(reply, status.to_string()),
        }
        self.expect_reply(Some(&reply), Some(bytes))
    }
}
