//! The device itself: what is made of it, and the thread that reads its completions.
#![allow(unsafe_code)] // libibverbs is called, and memory is shared with a device

use std::{
    error::Error,
    ffi::c_void,
    io,
    mem::{self, ManuallyDrop},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError, RwLock},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use memmap2::MmapMut;
use rdma_mummy_sys::{
    ibv_ack_cq_events, ibv_cq, ibv_destroy_qp, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq, ibv_wc, ibv_wc_flags,
};
use rdma_token::RemoteError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sideway::ibverbs::{
    AccessFlags,
    address::{AddressHandleAttribute, Gid, GidType},
    completion::{BasicCompletionQueue, CompletionChannel, CompletionQueue},
    device::{DeviceInfo, DeviceList},
    device_context::{DeviceContext, LinkLayer, Mtu as WireMtu, PortAttr, PortState},
    memory_region::MemoryRegion,
    protection_domain::ProtectionDomain,
    queue_pair::{
        BasicQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
        WorkRequestFlags,
    },
};
use tracing::error;

use crate::{
    Config, Mtu, OpenError,
    completions::{Completion, Completions, Kind, Pending},
    gid::{self, Entry},
};

/// Completions that are taken at a time.
const BATCH: i32 = 32;

/// How long the thread looks for more completions before it sleeps, if any are due: less than waking it takes.
const SPIN: Duration = Duration::from_micros(20);

/// Completions that a queue has room for beyond those that the limits allow.
const SPARE: u32 = 64;

/// RDMA READs that a queue pair may have under way: as many as hipObject's takes (wire document, section 5, `max_rd_atomic`).
const READS: u8 = 1;

/// Routers that a packet may pass, as `ib_write_bw` and others set it.
const HOP_LIMIT: u8 = 64;

/// How long a client waits that finds no receive: 0.64 ms (InfiniBand Architecture Specification, table 45, code 12).
const RNR_TIMER: u8 = 12;

/// Least time between two looks at the GID table.
const GID_PAUSE: Duration = Duration::from_secs(1);

/// A device that is open, with what all its queue pairs share.
pub(crate) struct Device {
    name: String,
    port: Port,
    context: Arc<DeviceContext>,
    /// The domain of queue pairs that nobody else reaches memory by: no region in it allows remote access.
    requesters: Arc<ProtectionDomain>,
    queue: Arc<BasicCompletionQueue>,
    completions: Arc<Completions>,
    gids: RwLock<(Instant, Vec<Entry>)>,
    depth: u32,
    /// Ends the thread.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What a port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) number: u8,
    /// Local identifier; 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) active_mtu: Mtu,
    pub(crate) ethernet: bool,
}

/// The client's side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) gid: [u8; 16],
    pub(crate) qpn: u32,
    pub(crate) lid: u16,
}

/// How a queue pair is to be connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) peer: Peer,
    /// From where.
    pub(crate) source: Entry,
    /// Whether the client may write to the domain's buffer.
    pub(crate) writable: bool,
    /// The first packet that the client sends, and the first that the server sends.
    pub(crate) expected: u32,
    pub(crate) first: u32,
    pub(crate) mtu: Mtu,
    pub(crate) timeout: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) traffic_class: u8,
}

/// An error and all that it is about, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        // Some say what they are made of.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// The system's error at the root. What kind of error a call of sideway's has is `#[error(transparent)]`, so that the chain ends
/// before the `io::Error` in it: its number is read from its text, which `std` ends with `(os error N)`.
fn number(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut root = error;
    while let Some(error) = root.source() {
        root = error;
    }
    let text = root.to_string();
    let (_, number) = text.rsplit_once("(os error ")?;
    number.strip_suffix(')')?.parse().ok()
}

fn failed(what: &'static str, error: &(dyn Error + 'static)) -> OpenError {
    let hint = match number(error) {
        // rdma-mummy-sys' answer where it has not found the library.
        Some(95) if what == "list the devices" => "; install libibverbs.so.1 (rdma-core) and the device's provider",
        Some(38) => "; this kernel has no RDMA: modprobe ib_uverbs and the device's driver",
        Some(12) if what == "register a buffer" => {
            "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK), or have fewer or smaller buffers"
        }
        Some(13 | 1) => "; may this user open /dev/infiniband/uverbs*?",
        _ => "",
    };
    OpenError::Verb { what, error: chain(error), hint }
}

impl Device {
    /// Opens the device that `config` names, and starts its thread. The completion queue has room for all that the limits allow.
    pub(crate) fn open(config: &Config, completions: Arc<Completions>) -> Result<Self, OpenError> {
        let (name, context, attributes) = choose(config)?;
        let port = Port {
            number: config.port,
            lid: attributes.lid(),
            active_mtu: from_wire(attributes.active_mtu()),
            ethernet: attributes.link_layer() == LinkLayer::Ethernet,
        };
        let limits = context.query_device().map_err(|error| failed("ask for the device's limits", &error))?;
        let limit = |of: i32| u32::try_from(of).unwrap_or(u32::MAX);
        let depth = config.depth.min(limit(limits.max_qp_wr()));
        let connections = u32::try_from(config.connections).unwrap_or(u32::MAX);
        let entries = connections.saturating_mul(depth.saturating_add(1)).saturating_add(SPARE);
        let most = limit(limits.max_cqe());
        if entries > most {
            return Err(OpenError::Queue { entries, most });
        }
        let channel = context.create_comp_channel().map_err(|error| failed("make a completion channel", &error))?;
        channel.set_nonblocking(true).map_err(|error| failed("set up a completion channel", &error))?;
        let queue = context.create_cq_builder().setup_cqe(entries).setup_comp_channel(&channel, 0).build();
        let queue = queue.map_err(|error| failed("make a completion queue", &error))?;
        let requesters = context.alloc_pd().map_err(|error| failed("make a protection domain", &error))?;
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed("make an eventfd", &io::Error::from(error)))?;
        let stop = Arc::new(stop);
        let reader = Reader {
            queue: Arc::clone(&queue),
            channel,
            completions: Arc::clone(&completions),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new().name("ernic-verbs".to_owned()).spawn(move || reader.run());
        let thread = thread.map_err(|error| failed("start a thread", &error))?;
        let gids = gids(&context, config.port, &attributes)?;
        Ok(Self {
            name,
            port,
            context,
            requesters,
            queue,
            completions,
            gids: RwLock::new((Instant::now(), gids)),
            depth,
            stop,
            thread: Some(thread),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn port(&self) -> Port {
        self.port
    }

    /// Work requests that one may have.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The domain of queue pairs for the server's own reads and writes.
    pub(crate) fn requesters(&self) -> &Arc<ProtectionDomain> {
        &self.requesters
    }

    /// The port's addresses.
    pub(crate) fn gids(&self) -> Vec<Entry> {
        self.gids.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Looks at them again, as they come and go with the interface's, but not too often. Whether they are others now.
    pub(crate) fn refresh(&self) -> bool {
        let mut gids = self.gids.write().unwrap_or_else(PoisonError::into_inner);
        if gids.0.elapsed() < GID_PAUSE {
            return false;
        }
        gids.0 = Instant::now();
        let Ok(attributes) = self.context.query_port(self.port.number) else { return false };
        match self::gids(&self.context, self.port.number, &attributes) {
            Ok(new) if new != gids.1 => {
                gids.1 = new;
                true
            }
            _ => false,
        }
    }

    /// Registers a buffer of `size` bytes.
    pub(crate) fn buffer(&self, size: usize) -> Result<Buffer, OpenError> {
        let mut memory = MmapMut::map_anon(size).map_err(|error| failed("get memory for a buffer", &error))?;
        let start = NonNull::new(memory.as_mut_ptr()).ok_or(OpenError::NoMemory)?;
        let domain = self.context.alloc_pd().map_err(|error| failed("make a protection domain", &error))?;
        let register = |domain: &Arc<ProtectionDomain>, access| {
            // SAFETY: the mapping is `size` bytes long and stays until both registrations are gone: `Buffer` drops it last. No Rust
            // reference to its bytes is ever made.
            unsafe { domain.reg_mr(start.addr().get(), size, access) }
                .map_err(|error| failed("register a buffer", &error))
        };
        let staging = register(&domain, AccessFlags::LocalWrite | AccessFlags::RemoteWrite)?;
        let own = register(&self.requesters, AccessFlags::LocalWrite)?;
        Ok(Buffer { staging, own, domain, start, length: size, _memory: memory })
    }

    /// Makes a queue pair in `domain` and connects it. With `receive`, one work request waits for what the client sends.
    ///
    /// This takes several calls of the driver, each of which may sleep.
    pub(crate) fn connect(
        &self,
        domain: &Arc<ProtectionDomain>,
        wish: &Wish,
        receive: bool,
    ) -> Result<(QueuePairOf, Option<Pending>), RemoteError> {
        let mut builder = domain.create_qp_builder();
        builder.setup_max_send_wr(self.depth).setup_max_recv_wr(1).setup_max_send_sge(1).setup_max_recv_sge(1);
        builder.setup_send_cq(Arc::clone(&self.queue)).setup_recv_cq(Arc::clone(&self.queue));
        let qp = builder.build().map_err(|error| transport("the queue pair cannot be made", &error))?;
        let number = qp.qp_number();
        let qp = QueuePairOf {
            qp: ManuallyDrop::new(Mutex::new(qp)),
            number,
            completions: Arc::clone(&self.completions),
            gone: false,
        };
        let pending = self.join(&qp, wish, receive)?;
        Ok((qp, pending))
    }

    /// Connects a queue pair anew, with everything as at first.
    pub(crate) fn reconnect(&self, qp: &QueuePairOf, wish: &Wish) -> Result<(), RemoteError> {
        let mut reset = QueuePairAttribute::new();
        reset.setup_state(QueuePairState::Reset);
        qp.modify(&reset, "the queue pair cannot be reset")?;
        self.join(qp, wish, false).map(drop)
    }

    /// RESET to RTS.
    fn join(&self, qp: &QueuePairOf, wish: &Wish, receive: bool) -> Result<Option<Pending>, RemoteError> {
        let access = match wish.writable {
            true => AccessFlags::LocalWrite | AccessFlags::RemoteWrite,
            false => AccessFlags::LocalWrite,
        };
        let mut init = QueuePairAttribute::new();
        init.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(self.port.number)
            .setup_access_flags(access);
        qp.modify(&init, "the queue pair cannot be set up")?;
        let pending = if receive { Some(qp.post_receive()?) } else { None };

        let mut address = AddressHandleAttribute::new();
        address.setup_port(self.port.number).setup_dest_lid(wish.peer.lid);
        if self.port.ethernet || wish.peer.lid == 0 {
            address.setup_grh(&Gid { raw: wish.peer.gid }, 0, wish.source.index, HOP_LIMIT, wish.traffic_class);
        }
        let mut receive = QueuePairAttribute::new();
        receive
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(to_wire(wish.mtu))
            .setup_dest_qp_num(wish.peer.qpn)
            .setup_rq_psn(wish.expected)
            .setup_max_dest_read_atomic(READS)
            .setup_min_rnr_timer(RNR_TIMER)
            .setup_address_vector(&address);
        qp.modify(&receive, "the queue pair cannot be connected to the client's")?;

        let mut send = QueuePairAttribute::new();
        send.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(wish.first)
            .setup_timeout(wish.timeout)
            .setup_retry_cnt(wish.retry)
            .setup_rnr_retry(wish.rnr_retry)
            .setup_max_read_atomic(READS);
        qp.modify(&send, "the queue pair cannot be connected to the client's")?;
        Ok(pending)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if rustix::io::write(&*self.stop, &1_u64.to_ne_bytes()).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // It has nothing to say, and no panic of its own.
            let _ = thread.join();
        }
    }
}

fn transport(what: &str, error: &dyn Error) -> RemoteError {
    RemoteError::Transport(format!("{what}: {}", chain(error)))
}

fn from_wire(mtu: WireMtu) -> Mtu {
    match mtu {
        WireMtu::Mtu256 => Mtu::Mtu256,
        WireMtu::Mtu512 => Mtu::Mtu512,
        WireMtu::Mtu1024 => Mtu::Mtu1024,
        WireMtu::Mtu2048 => Mtu::Mtu2048,
        WireMtu::Mtu4096 => Mtu::Mtu4096,
    }
}

fn to_wire(mtu: Mtu) -> WireMtu {
    match mtu {
        Mtu::Mtu256 => WireMtu::Mtu256,
        Mtu::Mtu512 => WireMtu::Mtu512,
        Mtu::Mtu1024 => WireMtu::Mtu1024,
        Mtu::Mtu2048 => WireMtu::Mtu2048,
        Mtu::Mtu4096 => WireMtu::Mtu4096,
    }
}

/// The device of the name, or the first with an active port.
fn choose(config: &Config) -> Result<(String, Arc<DeviceContext>, PortAttr), OpenError> {
    let list = DeviceList::new().map_err(|error| failed("list the devices", &error))?;
    let mut why = Vec::new();
    for device in &list {
        let name = device.name();
        if config.device.as_ref().is_some_and(|wanted| *wanted != name) {
            why.push(name);
            continue;
        }
        let opened = device.open().map_err(|error| failed("open the device", &error)).and_then(|context| {
            let port = |reason| OpenError::Port { device: name.clone(), port: config.port, reason };
            let attributes = context.query_port(config.port).map_err(|error| port(chain(&error)))?;
            match attributes.port_state() {
                PortState::Active | PortState::ActiveDefer => Ok((context, attributes)),
                state => Err(port(format!("it is not active ({state:?}); set its network interface up"))),
            }
        });
        match opened {
            Ok((context, attributes)) => return Ok((name, context, attributes)),
            Err(error) if config.device.is_some() => return Err(error),
            Err(error) => why.push(format!("{name}: {error}")),
        }
    }
    let there = match (why.is_empty(), &config.device) {
        (true, _) => "there is none: is its driver loaded? See ibv_devices".to_owned(),
        (false, Some(_)) => format!("there is {}", why.join(", ")),
        (false, None) => why.join("; "),
    };
    Err(OpenError::Device { wanted: config.device.clone(), there })
}

/// Reads a port's GID table.
fn gids(context: &Arc<DeviceContext>, port: u8, attributes: &PortAttr) -> Result<Vec<Entry>, OpenError> {
    let mut entries = Vec::new();
    // Address handles name the source by 8 bits.
    for index in 0..u8::try_from(attributes.gid_tbl_len()).unwrap_or(u8::MAX) {
        match context.query_gid_ex(port, index.into()) {
            Ok(entry) => entries.push(Entry {
                index,
                gid: entry.gid().raw,
                kind: match entry.gid_type() {
                    GidType::InfiniBand => gid::Kind::Ib,
                    GidType::RoceV1 => gid::Kind::RoceV1,
                    GidType::RoceV2 => gid::Kind::RoceV2,
                },
            }),
            // ENODATA: an empty entry.
            Err(error) if number(&error) == Some(61) => {}
            Err(error) => return Err(failed("read the GID table", &error)),
        }
    }
    Ok(entries)
}

/// Registered memory. It is copied in and out and never borrowed: devices write to it at any time.
pub(crate) struct Buffer {
    /// For the client of a session: it may write, and only by the queue pair of this buffer's own domain.
    staging: Arc<MemoryRegion>,
    /// For the server's reads and writes of clients' memory.
    own: Arc<MemoryRegion>,
    domain: Arc<ProtectionDomain>,
    start: NonNull<u8>,
    length: usize,
    /// Dropped last.
    _memory: MmapMut,
}

// SAFETY: the memory belongs to this structure alone, and regions are `Send` and `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: bytes are copied by raw pointers, and who holds a buffer keeps its own copies apart from each other.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The domain of queue pairs that reach this buffer alone.
    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Virtual address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// The key that the client writes with.
    pub(crate) fn rkey(&self) -> u32 {
        self.staging.rkey()
    }

    /// The key of work requests, in this buffer's own domain or in that of the device.
    pub(crate) fn lkey(&self, session: bool) -> u32 {
        if session { self.staging.lkey() } else { self.own.lkey() }
    }

    /// Whether `length` bytes at `offset` are in it.
    fn holds(&self, offset: usize, length: usize) -> bool {
        self.length.checked_sub(offset).is_some_and(|room| length <= room)
    }

    /// Copies `from` to `offset`. Panics if it does not fit there.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(self.holds(offset, from.len()), "{} bytes at {offset} of {}", from.len(), self.length);
        // SAFETY: within the mapping, as was just checked; `from` is no part of it, as nothing borrows from it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(offset), from.len()) }
    }

    /// Copies from `offset` to all of `into`. Panics if there are not as many bytes.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(self.holds(offset, into.len()), "{} bytes at {offset} of {}", into.len(), self.length);
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), into.as_mut_ptr(), into.len()) }
    }
}

/// What is done with a part of a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) what: What,
    pub(crate) offset: usize,
    pub(crate) length: u32,
    /// In the client's memory.
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Write,
    /// With an immediate, as a number.
    WriteWith(u32),
    Read,
}

/// A queue pair of this device's.
pub(crate) struct QueuePairOf {
    qp: ManuallyDrop<Mutex<BasicQueuePair>>,
    number: u32,
    completions: Arc<Completions>,
    gone: bool,
}

impl QueuePairOf {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn modify(&self, attribute: &QueuePairAttribute, what: &str) -> Result<(), RemoteError> {
        let mut qp = self.qp.lock().unwrap_or_else(PoisonError::into_inner);
        qp.modify(attribute).map_err(|error| transport(what, &error))
    }

    /// Lets it do nothing any more: what is under way is given up.
    pub(crate) fn fail(&self) {
        let mut attribute = QueuePairAttribute::new();
        attribute.setup_state(QueuePairState::Error);
        if let Err(error) = self.modify(&attribute, "the queue pair cannot be stopped") {
            ernic_emu::warn_limited!(%error, qpn = format_args!("{:#x}", self.number), "rdma");
        }
    }

    /// Waits for one message, which has no bytes of its own: what a WRITE with immediate needs.
    fn post_receive(&self) -> Result<Pending, RemoteError> {
        let (id, pending) = self.completions.expect(Kind::Receive);
        let mut qp = self.qp.lock().unwrap_or_else(PoisonError::into_inner);
        let mut receive = qp.start_post_recv();
        receive.construct_wr(id);
        receive.post().map_err(|error| transport("a receive cannot be posted", &error))?;
        Ok(pending)
    }

    /// Moves bytes between `buffer` and the client's memory. The buffer must be lent until the work is done or the queue pair is
    /// gone. `session` says in whose domain the queue pair is: the buffer's own, or the device's.
    pub(crate) fn post(&self, buffer: &Buffer, session: bool, work: Work) -> Result<Pending, RemoteError> {
        let Work { what, offset, length, address, rkey } = work;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        assert!(buffer.holds(offset, bytes), "{length} bytes at {offset} of {}", buffer.length);
        let kind = match what {
            What::Read => Kind::Read(length.into()),
            _ => Kind::Write(length.into()),
        };
        let (id, pending) = self.completions.expect(kind);
        let mut qp = self.qp.lock().unwrap_or_else(PoisonError::into_inner);
        let mut post = qp.start_post_send();
        let request = post.construct_wr(id, WorkRequestFlags::Signaled);
        let request = match what {
            What::Write => request.setup_write(rkey, address),
            What::WriteWith(immediate) => request.setup_write_imm(rkey, address, immediate.to_be()),
            What::Read => request.setup_read(rkey, address),
        };
        if length > 0 {
            // SAFETY: within the buffer, as was checked, which its holder keeps until the device is done with it.
            unsafe { request.setup_sge(buffer.lkey(session), buffer.address() + offset as u64, length) };
        }
        post.post().map_err(|error| transport("a work request cannot be posted", &error))?;
        Ok(pending)
    }

    /// Destroys it, once. Whether that was possible: if not, the device may go on to use its buffers.
    fn destroy(&mut self) -> bool {
        if mem::replace(&mut self.gone, true) {
            return true;
        }
        let qp = self.qp.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: called once. sideway's own destructor, which would panic where the driver refuses, never runs: what it holds are
        // counts of references to things that live as long as the device.
        let result = unsafe { ibv_destroy_qp(qp.qp().as_ptr()) };
        if result != 0 {
            let error = io::Error::from_raw_os_error(result.abs());
            error!(%error, qpn = format_args!("{:#x}", self.number), "rdma: a queue pair cannot be destroyed");
        }
        result == 0
    }
}

impl Drop for QueuePairOf {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A queue pair, and what is free again only when it is no more: buffers that its work requests name.
pub(crate) struct Held<T> {
    qp: QueuePairOf,
    with: ManuallyDrop<T>,
}

impl<T> Held<T> {
    pub(crate) fn new(qp: QueuePairOf, with: T) -> Self {
        Self { qp, with: ManuallyDrop::new(with) }
    }

    pub(crate) fn qp(&self) -> &QueuePairOf {
        &self.qp
    }

    pub(crate) fn with(&self) -> &T {
        &self.with
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if self.qp.destroy() {
            // SAFETY: dropped once, here. Where the queue pair is still there, it is not, and stays lost.
            unsafe { ManuallyDrop::drop(&mut self.with) }
        }
    }
}

/// Reads the completions of all queue pairs.
struct Reader {
    queue: Arc<BasicCompletionQueue>,
    channel: Arc<CompletionChannel>,
    completions: Arc<Completions>,
    stop: Arc<OwnedFd>,
}

impl Reader {
    /// Until `stop` is readable. It sleeps while nothing comes.
    fn run(self) {
        // SAFETY: the queue was made, and lives as long as this.
        let queue = unsafe { self.queue.cq() }.as_ptr();
        loop {
            self.spin(queue);
            // SAFETY: as above. What comes from now on makes an event; what came before is looked for once more.
            if unsafe { ibv_req_notify_cq(queue, 0) } != 0 {
                error!("rdma: the completion queue cannot be armed");
                return;
            }
            if self.drain(queue) {
                continue;
            }
            // SAFETY: the channel is open as long as this has it.
            let channel = unsafe { BorrowedFd::borrow_raw(self.channel.as_raw_fd()) };
            let mut fds = [PollFd::new(&channel, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
            if let Err(error) = poll(&mut fds, None)
                && error != rustix::io::Errno::INTR
            {
                error!(%error, "rdma: cannot wait for completions");
                return;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            self.acknowledge();
        }
    }

    /// Takes completions as long as they come in quick succession.
    fn spin(&self, queue: *mut ibv_cq) {
        let mut last = Instant::now();
        loop {
            if self.drain(queue) {
                last = Instant::now();
            } else if last.elapsed() > SPIN || !self.completions.any() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Takes those that are there. Whether there were any.
    fn drain(&self, queue: *mut ibv_cq) -> bool {
        let mut any = false;
        loop {
            // SAFETY: the structure is made of numbers.
            let mut batch: [ibv_wc; BATCH as usize] = unsafe { mem::zeroed() };
            // SAFETY: room for as many as are asked for; this thread alone polls.
            let count = unsafe { ibv_poll_cq(queue, BATCH, batch.as_mut_ptr()) };
            for wc in batch.iter().take(usize::try_from(count).unwrap_or(0)) {
                // SAFETY: both members of the union are numbers.
                let immediate = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
                let immediate = (wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0).then(|| u32::from_be(immediate));
                self.completions.settle(wc.wr_id, Completion { status: wc.status, bytes: wc.byte_len, immediate });
            }
            any |= count > 0;
            if count < BATCH {
                return any;
            }
        }
    }

    /// Takes the events that the channel has.
    fn acknowledge(&self) {
        // SAFETY: the channel and its queue live as long as this; the pointers are written by the call.
        unsafe {
            let channel = self.channel.comp_channel().as_ptr();
            let (mut queue, mut context): (*mut ibv_cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
            while ibv_get_cq_event(channel, &raw mut queue, &raw mut context) == 0 {
                ibv_ack_cq_events(queue, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_all_that_they_are_about() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::from_raw_os_error(12));
        assert_eq!(chain(&error), "outer: Cannot allocate memory (os error 12)");
        assert_eq!(number(&error), Some(12));
        let text = failed("register a buffer", &error).to_string();
        assert!(
            text.starts_with("cannot register a buffer: outer: Cannot allocate memory") && text.contains("ulimit -l"),
            "{text}"
        );
        assert!(!failed("make a completion queue", &error).to_string().contains("ulimit"));
        let text = failed("list the devices", &io::Error::from_raw_os_error(95)).to_string();
        assert!(text.contains("install libibverbs.so.1"), "{text}");
        // As sideway gives it: the kind in between hides the system's error.
        #[derive(Debug, thiserror::Error)]
        #[error(transparent)]
        struct Kind(io::Error);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner(#[source] Kind);
        assert_eq!(number(&Inner(Kind(io::Error::from_raw_os_error(61)))), Some(61));
        assert_eq!(number(&io::Error::other("no number")), None);
    }

    /// Where there is no library or no device, which is usual where tests run, the error says so; else this name is not among
    /// the devices.
    #[test]
    fn what_is_missing_is_said() {
        let config = Config { device: Some("no_such_device".to_owned()), ..Config::default() };
        let completions = Arc::new(Completions::new(Arc::default()));
        let text = Device::open(&config, completions).err().map(|error| error.to_string()).unwrap();
        assert!(
            text.starts_with("cannot list the devices: ") || text.starts_with("no RDMA device 'no_such_device': "),
            "{text}"
        );
    }
}
