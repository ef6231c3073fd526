//! The real service of this project on loopback TCP, over a table of memory in this process: real HTTP, real tokens, real bytes.
//! What a server may do wrong is done by what lies between the two: a stream that rewrites heads, memory that is not where it
//! should be.
#![allow(dead_code, clippy::cast_possible_truncation, missing_debug_implementations)]

use std::{
    cell::Cell,
    future::Future,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle},
};

use async_trait::async_trait;
use ernic_client::{
    memory::{Arrived, Layout, MemoryError, PAGE, Port, QueuePair, Region, Registrar},
    s3::{Client, Config},
};
use ernic_store::{MemoryConfig, MemoryStore};
use hyper::rt::ReadBufCursor;
use rdma_token::{
    RcTarget, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token, TokenHeader, Window,
    testing::{Fabric, Regions},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use s3_proto::{Credentials, Impairment, RcConfig, RdmaConfig, S3Config, S3Service, Timers};

pub const BUCKET: &str = "bench";
pub const MIB: usize = 1 << 20;

// ---------------------------------------------------------------- the service

/// Rewrites the head of an answer, given without its empty line.
pub type Tamper = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// How a [`Server`] is made.
pub struct Setup {
    /// Access and secret key that requests must be signed with; anybody may do anything without.
    pub keys: Option<(&'static str, &'static str)>,
    /// What tokens name; RDMA is off without.
    pub memory: Option<Arc<dyn RemoteMemory>>,
    /// What makes connections; `hipobj-rc-v2` is off without.
    pub fabric: Option<Fabric>,
    /// As of the server's `--fault`.
    pub faults: Option<&'static str>,
    pub tamper: Option<Tamper>,
    pub max_part: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { keys: None, memory: None, fabric: None, faults: None, tamper: None, max_part: 256 << 20 }
    }
}

/// A service that listens until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub service: S3Service,
    pub store: Arc<MemoryStore>,
    stop: Arc<AtomicBool>,
    accept: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(setup: Setup) -> Self {
        let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 512 << 20, objects: 1000 }));
        assert!(store.create_bucket(BUCKET));
        let config = S3Config { max_part: setup.max_part, ..S3Config::default() };
        let mut builder = S3Service::builder(Arc::clone(&store) as _, config);
        if let Some((access, secret)) = setup.keys {
            let mut credentials = Credentials::new();
            credentials.add(access, secret).unwrap();
            builder = builder.with_credentials(credentials);
        }
        if let Some(fabric) = setup.fabric {
            builder = builder.with_rc(Arc::new(fabric), RcConfig::default());
        }
        if let Some(memory) = setup.memory {
            let mut rdma = RdmaConfig::new(Ipv4Addr::LOCALHOST);
            if let Some(faults) = setup.faults {
                let mut impairment = Impairment::new(Arc::new(Timers::new()));
                impairment.faults = faults.parse().unwrap();
                rdma.impairment = Some(impairment);
            }
            builder = builder.with_remote(memory, rdma);
        }
        Self::listen(builder.build(), store, setup.tamper)
    }

    /// Another way to the same service, on which heads are rewritten.
    pub fn front(server: &Self, tamper: Tamper) -> Self {
        Self::listen(server.service.clone(), Arc::clone(&server.store), Some(tamper))
    }

    fn listen(service: S3Service, store: Arc<MemoryStore>, tamper: Option<Tamper>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let accept = {
            let (service, stop) = (service.clone(), Arc::clone(&stop));
            thread::spawn(move || {
                let mut threads = Vec::new();
                for stream in listener.incoming() {
                    if stop.load(SeqCst) {
                        break;
                    }
                    let (service, stop, tamper) = (service.clone(), Arc::clone(&stop), tamper.clone());
                    threads.push(thread::spawn(move || serve(&service, stream.unwrap(), tamper, &stop)));
                }
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            })
        };
        Self { address, service, store, stop, accept: Some(accept) }
    }

    /// With RDMA on, over `memory`.
    pub fn over(memory: &Regions) -> Self {
        Self::start(Setup { memory: Some(Arc::new(memory.clone())), ..Setup::default() })
    }

    pub fn config(&self) -> Config {
        Config::new(self.address.into())
    }

    pub fn client(&self) -> Client {
        Client::new(self.config()).unwrap()
    }

    /// With `hipobj-rc-v2` on, and tokens too.
    pub fn connecting(fabric: &Fabric) -> Self {
        let memory = Some(Arc::new(fabric.clone()) as _);
        Self::start(Setup { memory, fabric: Some(fabric.clone()), ..Setup::default() })
    }

    /// Operations by RDMA, and their bytes: reads, then writes.
    pub fn counts(&self) -> [u64; 4] {
        let metrics = self.service.metrics();
        [metrics.rdma_reads(), metrics.rdma_bytes_read(), metrics.rdma_writes(), metrics.rdma_bytes_written()]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        let ended = self.accept.take().unwrap().join();
        if !thread::panicking() {
            ended.unwrap();
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Runs one connection to its end.
fn serve(service: &S3Service, stream: TcpStream, tamper: Option<Tamper>, stop: &AtomicBool) {
    stream.set_nonblocking(true).unwrap();
    stream.set_nodelay(true).unwrap();
    let stream = Rc::new(stream);
    let wants = Rc::new(Cell::new(PollFlags::empty()));
    let rewriter = tamper.map(|tamper| Rewriter { tamper, head: Vec::new(), body: 0 });
    let io = Io { stream: Rc::clone(&stream), wants: Rc::clone(&wants), rewriter, out: Vec::new() };
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut connection = std::pin::pin!(service.serve(io));
    while !stop.load(SeqCst) {
        if flag.0.swap(false, SeqCst) {
            wants.set(PollFlags::empty());
            // How a connection ends is the client's business to see.
            if connection.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                return;
            }
            continue;
        }
        let mut fds = [PollFd::new(&*stream, wants.get())];
        let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if poll(&mut fds, Some(&timeout)).unwrap() > 0 {
            flag.0.store(true, SeqCst);
        }
    }
}

struct Io {
    stream: Rc<TcpStream>,
    /// What to wait for.
    wants: Rc<Cell<PollFlags>>,
    rewriter: Option<Rewriter>,
    /// Rewritten, and not sent yet.
    out: Vec<u8>,
}

impl Io {
    fn want(&self, flags: PollFlags) {
        self.wants.set(self.wants.get() | flags);
    }

    /// Sends what has been rewritten.
    fn drain(&mut self) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            match (&*self.stream).write(&self.out) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.want(PollFlags::OUT);
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Read for Io {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut piece = vec![0; buf.remaining().min(256 * 1024)];
        match (&*self.stream).read(&mut piece) {
            Ok(n) => {
                buf.put_slice(&piece[..n]);
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.want(PollFlags::IN);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl hyper::rt::Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some(rewriter) = &mut this.rewriter {
            rewriter.push(buf, &mut this.out);
            return match this.drain() {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => Poll::Ready(Ok(buf.len())),
            };
        }
        match (&*this.stream).write(buf) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                this.want(PollFlags::OUT);
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.drain()
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.drain() {
            Poll::Ready(Ok(())) => Poll::Ready(self.stream.shutdown(std::net::Shutdown::Write)),
            other => other,
        }
    }
}

/// Follows a stream of answers and rewrites their heads.
struct Rewriter {
    tamper: Tamper,
    head: Vec<u8>,
    /// Bytes of a body that are still to pass.
    body: usize,
}

impl Rewriter {
    fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.body > 0 {
                let (body, rest) = bytes.split_at(self.body.min(bytes.len()));
                out.extend_from_slice(body);
                self.body -= body.len();
                bytes = rest;
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            if self.head.ends_with(b"\r\n\r\n") {
                let head = String::from_utf8(std::mem::take(&mut self.head)).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                self.body = length.map_or(0, |length| length.parse().unwrap());
                let head = (self.tamper)(head.trim_end_matches("\r\n"));
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(b"\r\n\r\n");
            }
        }
    }
}

/// The head with the value of one header changed, if it is there.
pub fn change(head: &str, name: &str, new: impl Fn(&str) -> Option<String>) -> String {
    let lines = head.split("\r\n").filter_map(|line| match line.split_once(": ") {
        Some((n, value)) if n == name => new(value).map(|value| format!("{name}: {value}")),
        _ => Some(line.to_owned()),
    });
    lines.collect::<Vec<_>>().join("\r\n")
}

// ---------------------------------------------------------------- the memory

/// Registers memory in a table of this process.
#[derive(Clone)]
pub struct Table {
    pub regions: Regions,
    next: Arc<Mutex<u64>>,
    /// The server's device, if this one's queue pairs can be connected to it.
    fabric: Option<Fabric>,
    /// What is wrong with the connections that are made.
    pub fault: Arc<Mutex<Option<PairFault>>>,
    /// Queue pairs that have been made, and those that there are.
    pub pairs: Arc<Mutex<(u32, u32)>>,
}

/// What is wrong with a client's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairFault {
    /// Its RDMA WRITE is not acknowledged.
    Write,
    /// It has another immediate.
    Immediate,
    /// It has a byte less.
    Short,
    /// What comes has another immediate.
    ArrivedImmediate,
    /// What comes is a byte less.
    ArrivedShort,
    /// Nothing comes.
    Silence,
}

impl Table {
    pub fn new(regions: &Regions) -> Self {
        let next = Arc::new(Mutex::new(0x7f11_2233_4000));
        Self { regions: regions.clone(), next, fabric: None, fault: Arc::default(), pairs: Arc::default() }
    }

    /// One whose queue pairs can be connected.
    pub fn connecting(regions: &Regions, fabric: &Fabric) -> Self {
        Self { fabric: Some(fabric.clone()), ..Self::new(regions) }
    }
}

impl Registrar for Table {
    fn port(&self) -> Port {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 9];
        Port { qpn: 0x12_3456, gid, number: 1, lid: 0 }
    }

    fn register(&self, layout: Layout) -> Result<Box<dyn Region>, MemoryError> {
        let page = PAGE as u64;
        let mut next = self.next.lock().unwrap();
        let address = *next + layout.offset as u64;
        *next = (address + layout.length as u64).next_multiple_of(page) + 16 * page;
        let mut rights = Vec::new();
        rights.extend(layout.rights.remote_read.then_some(RemoteAccess::Read));
        rights.extend(layout.rights.remote_write.then_some(RemoteAccess::Write));
        let rkey = self.regions.register(address, &vec![0; layout.length], &rights);
        Ok(Box::new(Row { regions: self.regions.clone(), rkey, address, length: layout.length }))
    }

    fn queue_pair(&self) -> Result<Box<dyn QueuePair>, MemoryError> {
        let Some(fabric) = &self.fabric else { return Err(MemoryError::NotConnectable) };
        let mut pairs = self.pairs.lock().unwrap();
        *pairs = (pairs.0 + 1, pairs.1 + 1);
        let port = Port { qpn: 0x5000 + pairs.0, ..self.port() };
        Ok(Box::new(Pair { table: self.clone(), fabric: fabric.clone(), port, connected: None }))
    }
}

/// A queue pair of the client's.
struct Pair {
    table: Table,
    fabric: Fabric,
    port: Port,
    /// The server's queue pair.
    connected: Option<u32>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.table.pairs.lock().unwrap().1 -= 1;
    }
}

impl Pair {
    fn fault(&self, fault: PairFault) -> bool {
        *self.table.fault.lock().unwrap() == Some(fault)
    }
}

impl QueuePair for Pair {
    fn port(&self) -> Port {
        self.port
    }

    fn connect(&mut self, peer: &Token, psn: u32, peer_psn: u32) -> Result<(), MemoryError> {
        let sessions = self.fabric.sessions();
        let session =
            sessions.iter().find(|session| session.local.qpn == peer.qpn).expect("a queue pair of the server's");
        // Both sides know of each other what a connection needs.
        assert_eq!((session.token.qpn, session.token.gid, session.psn), (self.port.qpn, self.port.gid, psn));
        assert_eq!((session.local.gid, session.local.psn), (peer.gid, peer_psn));
        self.connected = Some(peer.qpn);
        Ok(())
    }

    fn write(&mut self, region: &dyn Region, window: Window, to: RcTarget, immediate: u32) -> Result<(), MemoryError> {
        self.connected.expect("connected");
        let start = (window.address - region.address()) as usize;
        let mut bytes = vec![0; window.length as usize - usize::from(self.fault(PairFault::Short))];
        region.read(start, &mut bytes);
        let immediate = if self.fault(PairFault::Immediate) { immediate ^ 1 } else { immediate };
        if self.fault(PairFault::Write) || !self.fabric.write(to, &bytes, immediate) {
            let status = "transport retry counter exceeded".to_owned();
            return Err(MemoryError::Completion { what: "RDMA WRITE", qpn: self.port.qpn, status });
        }
        Ok(())
    }

    fn arrived(&mut self, patience: std::time::Duration) -> Result<Arrived, MemoryError> {
        let qpn = self.port.qpn;
        let arrival = self.fabric.arrival(qpn, patience).filter(|_| !self.fault(PairFault::Silence));
        let arrival = arrival.ok_or(MemoryError::Silence { what: "server's RDMA WRITE", qpn, patience })?;
        assert_eq!(Some(arrival.from), self.connected);
        Ok(Arrived {
            bytes: arrival.bytes - u64::from(self.fault(PairFault::ArrivedShort)),
            immediate: arrival.immediate ^ u32::from(self.fault(PairFault::ArrivedImmediate)),
        })
    }
}

struct Row {
    regions: Regions,
    rkey: u32,
    address: u64,
    length: usize,
}

impl Region for Row {
    fn address(&self) -> u64 {
        self.address
    }

    fn length(&self) -> usize {
        self.length
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if offset == 0 {
            return self.regions.fill(self.rkey, bytes);
        }
        let mut content = self.regions.content(self.rkey);
        content[offset..][..bytes.len()].copy_from_slice(bytes);
        self.regions.fill(self.rkey, &content);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.regions.content(self.rkey)[offset..][..into.len()]);
    }

    fn deregister(&mut self) -> Result<(), MemoryError> {
        self.regions.deregister(self.rkey);
        Ok(())
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.regions.deregister(self.rkey);
    }
}

/// What is wrong with a server's memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// One byte of what is written is another.
    Flip,
    /// The window begins a byte too late.
    Shift,
    /// It ends a byte too late.
    Longer,
    /// A key that is not known names the region that was registered last.
    AnyKey,
    /// So does a window outside of its registration.
    AnyWindow,
}

/// Memory that is reached wrongly.
pub struct Tricky {
    pub regions: Regions,
    pub trick: Trick,
}

#[async_trait]
impl RemoteMemory for Tricky {
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let Window { mut address, mut length } = header.window();
        let mut rkey = header.rkey();
        match self.trick {
            Trick::Flip => {}
            Trick::Shift => address += 1,
            Trick::Longer => length += 1,
            Trick::AnyKey | Trick::AnyWindow => {
                let known = self.regions.open(header, access).await;
                let due = match known {
                    Err(RemoteError::UnknownKey(_) | RemoteError::ReservedKey) => self.trick == Trick::AnyKey,
                    Err(RemoteError::Bounds(_)) => self.trick == Trick::AnyWindow,
                    _ => false,
                };
                if due {
                    let newest = self.newest().await;
                    (rkey, address) = (newest.rkey, newest.address);
                }
            }
        }
        let token = Token { rkey, address, length, ..self.any_token() };
        let inner = self.regions.open(&TokenHeader::A(token), access).await?;
        Ok(Box::new(TrickyWindow { inner, trick: self.trick }))
    }
}

impl Tricky {
    fn any_token(&self) -> Token {
        self.regions.token(0x1a7)
    }

    /// The region that was registered last: keys rise by 0x101.
    async fn newest(&self) -> Token {
        let mut newest = self.any_token();
        loop {
            let next = Token { rkey: newest.rkey + 0x101, ..newest };
            match self.regions.open(&TokenHeader::A(next), RemoteAccess::Read).await {
                Err(RemoteError::UnknownKey(_)) => return newest,
                _ => newest = self.regions.token(next.rkey),
            }
        }
    }
}

struct TrickyWindow {
    inner: Box<dyn RemoteWindow>,
    trick: Trick,
}

#[async_trait]
impl RemoteWindow for TrickyWindow {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        self.inner.read(offset, into).await
    }

    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        let mut from = from.to_vec();
        if self.trick == Trick::Flip
            && let Some(byte) = from.last_mut()
        {
            *byte ^= 1;
        }
        self.inner.write(offset, &from).await
    }
}
