//! Sessions and connections: what the S3 service moves payloads by.

use std::{
    collections::VecDeque,
    fmt,
    net::Ipv6Addr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rdma_mummy_sys::ibv_wc_status::{IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS};
use rdma_token::{
    AnswerFirst, CHUNK, RcEndpoint, RcFabric, RcSession, RcStaging, RcTarget, RemoteAccess, RemoteError, RemoteMemory,
    RemoteWindow, Task, Token, TokenHeader, Transport, Window,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::{
    Config, Mtu, OpenError,
    completions::{Completion, Completions, Pending},
    connections::{Connections, Key},
    counters::{Counters, Metrics, Now},
    device::{Buffer, Device, Held, Peer, QueuePairOf, What, Wish, Work},
    gid::{self, Entry},
    places::{Place, Places},
    pool::{Lease, Pool},
    status,
};

/// Largest queue pair number: 24 bits.
const MAX_QPN: u32 = 0xff_ffff;

/// How long hipObject's first client has to read the answer before its queue pair is looked for. It is looked for again later.
const HEAD_START: Duration = Duration::from_millis(2);

/// Bytes that are copied before a thread of tokio's is given back, 4 MiB: some 0.4 ms.
const STRIDE: usize = 16 * CHUNK;

/// Between two looks for a place that is about to be free.
const LOOK: Duration = Duration::from_millis(5);

/// A device, and the connections that are made with it. Clones share it.
#[derive(Clone)]
pub struct Fabric {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    device: Arc<Device>,
    pool: Pool<Buffer>,
    places: Places,
    connections: Arc<Connections<Link>>,
    counters: Arc<Counters>,
    reaper: Sender<Job>,
}

/// What a device is and how it is used, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its name.
    pub device: String,
    /// Number of the port.
    pub port: u8,
    /// The address that the server calls itself by, as `ibv_devinfo -v` shows it.
    pub gid: String,
    /// Most bytes of a packet.
    pub mtu: u32,
    /// Those of the port.
    pub active_mtu: u32,
    /// Those of connections to hipObject's first client, which asks for 4096 whatever the port has.
    pub v1_mtu: u32,
}

/// What only a queue pair's end makes free.
struct With {
    /// Buffers that work requests name which nobody waits for any more.
    leases: Mutex<Vec<Lease<Buffer>>>,
    /// A permit for each work request that the send queue has room for.
    sends: Arc<Semaphore>,
    _place: Place,
}

/// A queue pair that is destroyed by the thread for that.
struct Link {
    /// Empty only while it is dropped.
    held: Option<Held<With>>,
    reaper: Sender<Job>,
}

/// What the thread is told.
enum Job {
    /// To destroy it: the driver may sleep.
    Bury(Held<With>),
    /// That there is a connection to be closed later.
    Kept,
}

impl Link {
    fn held(&self) -> &Held<With> {
        match &self.held {
            Some(held) => held,
            None => unreachable!("taken out by drop alone"),
        }
    }

    fn qp(&self) -> &QueuePairOf {
        self.held().qp()
    }

    /// What the send queue has room for.
    fn sends(&self) -> Arc<Semaphore> {
        Arc::clone(&self.held().with().sends)
    }

    /// Keeps a buffer until the queue pair is no more.
    fn hold(&self, lease: Lease<Buffer>) {
        self.held().with().leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // Without the thread, it is destroyed here.
            let _ = self.reaper.send(Job::Bury(held));
        }
    }
}

/// Destroys queue pairs, and closes connections that nobody uses. It ends when nobody can send jobs any more.
fn reap(jobs: &Receiver<Job>, connections: &Connections<Link>) {
    loop {
        let job = match connections.next_sweep(Instant::now()) {
            Some(time) => jobs.recv_timeout(time),
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match job {
            Ok(Job::Bury(held)) => drop(held),
            Ok(Job::Kept) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Each comes back as a job.
        drop(connections.sweep(Instant::now()));
    }
}

impl Fabric {
    /// Opens the device and registers the buffers. Errors: see [`OpenError`].
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let counters = Arc::new(Counters::default());
        let completions = Arc::new(Completions::new(Arc::clone(&counters)));
        let device = Device::open(&config, completions)?;
        let gids = device.gids();
        let has = match config.gid {
            Some(index) => gids.iter().any(|entry| entry.index == index),
            None => !gids.is_empty(),
        };
        if !has {
            let table = gids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Err(OpenError::Gid {
                device: device.name().to_owned(),
                port: config.port,
                index: config.gid,
                table: if table.is_empty() { "none: give its network interface an address".to_owned() } else { table },
            });
        }
        let buffers = (0..config.buffers).map(|_| device.buffer(config.buffer_size)).collect::<Result<Vec<_>, _>>()?;
        let connections = Arc::new(Connections::new(config.idle));
        let (reaper, jobs) = mpsc::channel();
        let kept = Arc::clone(&connections);
        let thread = thread::Builder::new().name("ernic-verbs-end".to_owned()).spawn(move || reap(&jobs, &kept));
        thread.map_err(|error| OpenError::Verb { what: "start a thread", error: error.to_string(), hint: "" })?;
        let inner = Inner {
            places: Places::new(config.connections, config.per_client),
            pool: Pool::new(buffers),
            device: Arc::new(device),
            connections,
            counters,
            reaper,
            config,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What was opened.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let Inner { device, .. } = &*self.inner;
        let port = device.port();
        Facts {
            device: device.name().to_owned(),
            port: port.number,
            gid: self.inner.own_gid().map_or_else(|| "no GID".to_owned(), |entry| entry.to_string()),
            mtu: self.inner.mtu().bytes(),
            active_mtu: port.active_mtu.bytes(),
            v1_mtu: self.inner.v1_mtu().bytes(),
        }
    }

    /// Its figures, for a metrics page.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let inner = Arc::clone(&self.inner);
        let now = move || Now {
            queue_pairs: inner.places.taken(),
            connections: inner.connections.len(),
            buffers: inner.pool.total(),
            free: inner.pool.free(),
        };
        Metrics { counters: Arc::clone(&self.inner.counters), now: Box::new(now) }
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("config", &self.inner.config)
            .field("facts", &self.facts())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.connections.clear();
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {:#x} at {}", self.qpn, Ipv6Addr::from(self.gid))
    }
}

/// The client's side, if it can be one.
fn peer(qpn: u32, gid: [u8; 16], lid: u16) -> Result<Peer, RemoteError> {
    // 0 and 1 are for management (InfiniBand Architecture Specification, section 3.9.4).
    if !(2..=MAX_QPN).contains(&qpn) {
        return Err(RemoteError::Transport(format!("{qpn:#x} is no number of a queue pair")));
    }
    Ok(Peer { gid, qpn, lid })
}

impl Inner {
    /// Most bytes of a packet: both ends take the port's active MTU, or what the options say.
    fn mtu(&self) -> Mtu {
        let active = self.device.port().active_mtu;
        self.config.mtu.map_or(active, |mtu| mtu.min(active))
    }

    /// hipObject's first client always connects with 4096 (wire document, section 5).
    fn v1_mtu(&self) -> Mtu {
        self.config.mtu.unwrap_or(Mtu::Mtu4096)
    }

    fn own_gid(&self) -> Option<Entry> {
        let gids = self.device.gids();
        match self.config.gid {
            Some(index) => gids.into_iter().find(|entry| entry.index == index),
            None => gid::own(&gids),
        }
    }

    /// From where a client is reached.
    fn source(&self, peer: &Peer) -> Result<Entry, RemoteError> {
        let find = || {
            let gids = self.device.gids();
            match self.config.gid {
                Some(index) => {
                    let only: Vec<_> = gids.into_iter().filter(|entry| entry.index == index).collect();
                    gid::source(&only, peer.gid)
                }
                None => gid::source(&gids, peer.gid),
            }
        };
        let found = find().or_else(|| if self.device.refresh() { find() } else { None });
        found.ok_or_else(|| {
            let has: Vec<_> = self.device.gids().iter().map(ToString::to_string).collect();
            let only = self.config.gid.map_or_else(String::new, |index| format!(" (gid={index})"));
            let error = format!("no GID of the server's reaches {peer}; it has {}{only}", has.join(", "));
            ernic_emu::warn_limited!("rdma: {error}");
            RemoteError::Transport(error)
        })
    }

    /// A place for a queue pair of a client's. Where there is none, an idle connection has to go.
    async fn place(&self, client: [u8; 16]) -> Result<Place, RemoteError> {
        if let Some(place) = self.places.take(client) {
            return Ok(place);
        }
        drop(self.connections.evict(client));
        let freed = async {
            loop {
                sleep(LOOK).await;
                if let Some(place) = self.places.take(client) {
                    return place;
                }
            }
        };
        timeout(self.config.buffer_wait, freed).await.map_err(|_| RemoteError::Exhausted("queue pair"))
    }

    async fn buffer(&self) -> Result<Lease<Buffer>, RemoteError> {
        self.pool.take(self.config.buffer_wait).await.ok_or(RemoteError::Exhausted("buffer"))
    }

    fn wish(&self, peer: Peer, source: Entry) -> Wish {
        Wish {
            peer,
            source,
            writable: false,
            expected: 0,
            first: 0,
            mtu: self.mtu(),
            timeout: self.config.timeout,
            retry: self.config.retry,
            rnr_retry: self.config.rnr_retry,
            traffic_class: self.config.traffic_class,
        }
    }

    /// Makes a queue pair and connects it: in the domain of `lease`, or else in the device's.
    async fn connect(
        &self,
        wish: Wish,
        lease: Option<Lease<Buffer>>,
        receive: bool,
        place: Place,
    ) -> Result<(Link, Option<Lease<Buffer>>, Option<Pending>), RemoteError> {
        let (device, reaper) = (Arc::clone(&self.device), self.reaper.clone());
        let made = spawn_blocking(move || {
            let domain = lease.as_ref().map_or_else(|| device.requesters(), |lease| lease.domain());
            let (qp, pending) = device.connect(domain, &wish, receive)?;
            let sends = Arc::new(Semaphore::new(usize::try_from(device.depth()).unwrap_or(1)));
            let held = Held::new(qp, With { leases: Mutex::default(), sends, _place: place });
            Ok((Link { held: Some(held), reaper }, lease, pending))
        });
        let made = made.await.unwrap_or_else(|_| Err(RemoteError::Transport("the server is about to stop".to_owned())));
        match &made {
            Ok(_) => {
                self.counters.connected.fetch_add(1, Relaxed);
            }
            Err(error) => {
                self.counters.refused.fetch_add(1, Relaxed);
                self.device.refresh();
                ernic_emu::warn_limited!(%error, "rdma: cannot connect to {} from {}", wish.peer, wish.source);
            }
        }
        made
    }

    /// Waits for the end of a work request.
    async fn end(&self, peer: &Peer, pending: &mut Pending) -> Result<Completion, Ended> {
        let completion = match timeout(self.config.wait, pending.done()).await {
            Ok(Some(completion)) => completion,
            Ok(None) => return Err(Ended::new(None, "the device was closed".to_owned())),
            Err(_) => {
                self.counters.overdue.fetch_add(1, Relaxed);
                let error = format!("{peer} has not ended a transfer within {:?} (wait=)", self.config.wait);
                return Err(Ended::new(None, error));
            }
        };
        if completion.status == IBV_WC_SUCCESS {
            return Ok(completion);
        }
        let (name, means) = status::describe(completion.status);
        Err(Ended::new(Some(completion.status), format!("{name} from {peer}: {means}")))
    }
}

/// Why a work request did not succeed.
struct Ended {
    /// The status of its completion, if it has one: then the device is done with it.
    status: Option<u32>,
    error: RemoteError,
}

impl Ended {
    fn new(status: Option<u32>, error: String) -> Self {
        Self { status, error: RemoteError::Transport(error) }
    }
}

/// Says that a transfer broke, and why. Clients can cause as many as they like.
fn log(error: &RemoteError) {
    ernic_emu::warn_limited!("rdma: {error}");
}

#[async_trait]
impl RemoteMemory for Fabric {
    /// Only what is connected already can be reached: the connection is found by the token's GID and queue pair number.
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        let inner = &self.inner;
        let peer = inner.claim(header)?;
        let Some(link) = inner.connections.get(peer.key(), Instant::now()) else {
            let what = match (inner.config.v1, access) {
                (true, RemoteAccess::Read) => {
                    "PutObject needs the client's queue pair connected, and v1 connects it for GetObject alone"
                }
                (true, RemoteAccess::Write) => "such a GetObject is answered first",
                (false, _) => "v1=off",
            };
            ernic_emu::warn_limited!("rdma: declined, as {peer} is not connected: {what}");
            return Err(RemoteError::Unsupported("tokens of queue pairs that are not connected".to_owned()));
        };
        Ok(Box::new(ConnectionWindow::new(inner, link, peer, header, access, None).await?))
    }

    async fn answer_first(&self, header: &TokenHeader) -> Result<Option<AnswerFirst>, RemoteError> {
        let inner = &self.inner;
        if !inner.config.v1 || header.transport() != Some(Transport::Rc) {
            return Ok(None);
        }
        let peer = inner.claim(header)?;
        if inner.connections.get(peer.key(), Instant::now()).is_some() {
            return Ok(None);
        }
        let source = inner.source(&peer)?;
        let place = inner.place(peer.gid).await?;
        let wish = Wish { mtu: inner.v1_mtu(), ..inner.wish(peer, source) };
        let (link, ..) = inner.connect(wish, None, false, place).await?;
        let endpoint = RcEndpoint {
            qpn: link.qp().number(),
            gid: source.gid,
            lid: inner.device.port().lid,
            psn: 0,
            staging: None,
        };
        let window =
            ConnectionWindow::new(inner, Arc::new(link), peer, header, RemoteAccess::Write, Some(wish)).await?;
        // Handles of tasks that are not waited for are of no use.
        let spawn = |task: Task| drop(tokio::spawn(task));
        Ok(Some(AnswerFirst { endpoint, window: Box::new(window), spawn: Box::new(spawn) }))
    }
}

impl Inner {
    /// Who a token is from, if it may be reached over a reliable connection (wire document, section 4, rule 10).
    fn claim(&self, header: &TokenHeader) -> Result<Peer, RemoteError> {
        match header.transport() {
            Some(Transport::Rc) => {}
            Some(Transport::Dc) => return Err(dynamic()),
            None if self.config.rc_c => {}
            None => {
                let family = header.family();
                return Err(RemoteError::Unsupported(format!(
                    "tokens of family {family}, which name no reliable connection,"
                )));
            }
        }
        let gid = header.gid().ok_or_else(|| RemoteError::Unsupported("tokens without a GID".to_owned()))?;
        if header.rkey() == 0 {
            return Err(RemoteError::ReservedKey);
        }
        peer(header.qpn(), gid, header.lid())
    }
}

fn dynamic() -> RemoteError {
    RemoteError::Unsupported("tokens of dynamically connected queue pairs (transport 0)".to_owned())
}

#[async_trait]
impl RcFabric for Fabric {
    async fn prepare(
        &self,
        token: &Token,
        psn: u32,
        size: u64,
        access: RemoteAccess,
    ) -> Result<Box<dyn RcSession>, RemoteError> {
        let inner = &self.inner;
        match token.transport {
            Transport::Rc => {}
            Transport::Dc => return Err(dynamic()),
        }
        let most = inner.config.buffer_size as u64;
        if size > most {
            return Err(RemoteError::TooLarge { size, most });
        }
        let peer = peer(token.qpn, token.gid, token.lid)?;
        let source = inner.source(&peer)?;
        let place = inner.place(peer.gid).await?;
        let lease = inner.buffer().await?;
        let first = fastrand::u32(1..=MAX_QPN);
        let receive = access == RemoteAccess::Read;
        let wish = Wish { writable: receive, expected: psn & MAX_QPN, first, ..inner.wish(peer, source) };
        let (link, lease, arrival) = inner.connect(wish, Some(lease), receive, place).await?;
        let staging = lease.as_ref().filter(|_| receive).map(|lease| RcStaging {
            address: lease.address(),
            rkey: lease.rkey(),
            length: size,
        });
        let local =
            RcEndpoint { qpn: link.qp().number(), gid: source.gid, lid: inner.device.port().lid, psn: first, staging };
        inner.counters.sessions.fetch_add(1, Relaxed);
        Ok(Box::new(Session {
            inner: Arc::clone(inner),
            link,
            lease,
            peer,
            local,
            size,
            access,
            arrival,
            busy: false,
            failed: None,
        }))
    }
}

/// One transfer of `hipobj-rc-v2`.
struct Session {
    inner: Arc<Inner>,
    link: Link,
    /// Empty only while it is dropped.
    lease: Option<Lease<Buffer>>,
    peer: Peer,
    local: RcEndpoint,
    size: u64,
    access: RemoteAccess,
    /// What the client of a PUT sends.
    arrival: Option<Pending>,
    /// Whether a work request is under way.
    busy: bool,
    failed: Option<RemoteError>,
}

impl Session {
    /// Where in the buffer a transfer of `length` bytes is.
    fn check(&self, access: RemoteAccess, offset: u64, length: usize) -> Result<(&Lease<Buffer>, usize), RemoteError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if access != self.access {
            return Err(RemoteError::Access(access));
        }
        let whole = Window { address: 0, length: self.size };
        let part = whole.part(offset, length as u64);
        let out = || RemoteError::Bounds(Window { address: offset, length: length as u64 });
        let at = part.and_then(|part| usize::try_from(part.address).ok()).ok_or_else(out)?;
        Ok((self.lease.as_ref().ok_or_else(out)?, at))
    }

    fn fail(&mut self, ended: Ended) -> RemoteError {
        log(&ended.error);
        self.busy = ended.status.is_none();
        self.failed = Some(ended.error.clone());
        ended.error
    }
}

#[async_trait]
impl RemoteWindow for Session {
    fn len(&self) -> u64 {
        self.size
    }

    fn stride(&self) -> usize {
        STRIDE
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        let (lease, at) = self.check(RemoteAccess::Read, offset, into.len())?;
        lease.read(at, into);
        Ok(())
    }

    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        let (lease, at) = self.check(RemoteAccess::Write, offset, from.len())?;
        lease.write(at, from);
        Ok(())
    }
}

#[async_trait]
impl RcSession for Session {
    fn local(&self) -> RcEndpoint {
        self.local
    }

    async fn send(&mut self, to: RcTarget, length: u64, immediate: u32) -> Result<(), RemoteError> {
        let out = RemoteError::Bounds(Window { address: to.address, length });
        let bytes = u32::try_from(length).map_err(|_| out.clone())?;
        let (lease, offset) = self.check(RemoteAccess::Write, 0, usize::try_from(length).map_err(|_| out)?)?;
        let RcTarget { address, rkey } = to;
        let work = Work { what: What::WriteWith(immediate), offset, length: bytes, address, rkey };
        let mut pending = self.link.qp().post(lease, true, work)?;
        self.busy = true;
        match self.inner.end(&self.peer, &mut pending).await {
            Ok(_) => {
                self.busy = false;
                Ok(())
            }
            Err(ended) => Err(self.fail(ended)),
        }
    }

    async fn received(&mut self) -> Result<(u64, u32), RemoteError> {
        self.check(RemoteAccess::Read, 0, 0)?;
        let Some(mut arrival) = self.arrival.take() else {
            return Err(RemoteError::Transport("what the client sent was taken already".to_owned()));
        };
        let came = self.inner.end(&self.peer, &mut arrival).await.and_then(|completion| match completion.immediate {
            Some(immediate) => Ok((completion.bytes.into(), immediate)),
            None => {
                Err(Ended::new(Some(IBV_WC_SUCCESS), format!("{} has sent a message without an immediate", self.peer)))
            }
        });
        came.map_err(|ended| self.fail(ended))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.inner.counters.sessions.fetch_sub(1, Relaxed);
        if self.busy {
            // A packet that is under way ends now, not when the queue pair's turn to be destroyed has come.
            self.link.qp().fail();
        }
        if let Some(lease) = self.lease.take() {
            self.link.hold(lease);
        }
    }
}

/// A client's memory, over a connection.
struct ConnectionWindow {
    inner: Arc<Inner>,
    link: Arc<Link>,
    /// Empty only while it is dropped.
    lease: Option<Lease<Buffer>>,
    peer: Peer,
    window: Window,
    rkey: u32,
    access: RemoteAccess,
    /// How it was made, as long as the client may not have connected yet.
    fresh: Option<Wish>,
    /// The buffer's parts: how large they are, how many, and which is next.
    slot: usize,
    slots: usize,
    next: usize,
    /// Work requests under way, in the order of their parts of the buffer.
    pending: VecDeque<(Pending, OwnedSemaphorePermit)>,
    failed: Option<RemoteError>,
}

impl ConnectionWindow {
    async fn new(
        inner: &Arc<Inner>,
        link: Arc<Link>,
        peer: Peer,
        header: &TokenHeader,
        access: RemoteAccess,
        fresh: Option<Wish>,
    ) -> Result<Self, RemoteError> {
        let lease = inner.buffer().await?;
        let slot = CHUNK.min(lease.length());
        let depth = usize::try_from(inner.device.depth()).unwrap_or(usize::MAX);
        let slots = (lease.length() / slot).min(depth).max(1);
        let (window, rkey) = (header.window(), header.rkey());
        let inner = Arc::clone(inner);
        let (pending, failed) = (VecDeque::with_capacity(slots), None);
        Ok(Self {
            inner,
            link,
            lease: Some(lease),
            peer,
            window,
            rkey,
            access,
            fresh,
            slot,
            slots,
            next: 0,
            pending,
            failed,
        })
    }

    fn key(&self) -> Key {
        self.peer.key()
    }

    /// Where in the client's memory a transfer is.
    fn check(&self, access: RemoteAccess, offset: u64, length: usize) -> Result<Window, RemoteError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if access != self.access {
            return Err(RemoteError::Access(access));
        }
        let length = length as u64;
        let out = Window { address: self.window.address.saturating_add(offset), length };
        self.window.part(offset, length).ok_or(RemoteError::Bounds(out))
    }

    /// The connection is of no more use.
    fn fail(&mut self, ended: Ended) -> RemoteError {
        log(&ended.error);
        if ended.status.is_none() || !self.pending.is_empty() {
            self.link.qp().fail();
        }
        self.failed = Some(ended.error.clone());
        drop(self.inner.connections.forget(self.key(), &self.link));
        ended.error
    }

    /// Room in the send queue, which other transfers of the same client use, too. `None` if there is none until one of this
    /// window's own work requests has been settled.
    async fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, RemoteError> {
        if self.pending.len() == self.slots {
            return Ok(None);
        }
        let sends = self.link.sends();
        match Arc::clone(&sends).try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) if !self.pending.is_empty() => Ok(None),
            Err(_) => match timeout(self.inner.config.wait, sends.acquire_owned()).await {
                Ok(Ok(permit)) => Ok(Some(permit)),
                _ => Err(RemoteError::Exhausted("place in a send queue")),
            },
        }
    }

    fn post(
        &mut self,
        permit: OwnedSemaphorePermit,
        what: What,
        address: u64,
        length: usize,
    ) -> Result<(), RemoteError> {
        let lease = self.lease.as_ref().ok_or(RemoteError::Exhausted("buffer"))?;
        let offset = self.next % self.slots * self.slot;
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let work = Work { what, offset, length, address, rkey: self.rkey };
        let pending = self.link.qp().post(lease, false, work)?;
        self.pending.push_back((pending, permit));
        self.next += 1;
        Ok(())
    }

    /// Waits for the oldest work request.
    async fn settle(&mut self) -> Result<(), RemoteError> {
        let Some((pending, _)) = self.pending.front_mut() else { return Ok(()) };
        let ended = self.inner.end(&self.peer, pending).await;
        self.pending.pop_front();
        ended.map(drop).map_err(|ended| self.fail(ended))
    }

    /// Waits until the client has connected, which it does once it has read the answer: an empty RDMA WRITE, which touches no
    /// memory, is acknowledged from then on.
    async fn established(&mut self) -> Result<(), RemoteError> {
        let Some(wish) = self.fresh else { return Ok(()) };
        let deadline = Instant::now() + self.inner.config.wait;
        sleep(HEAD_START).await;
        loop {
            let Some(permit) = self.permit().await? else { return Ok(()) };
            self.post(permit, What::Write, self.window.address, 0)?;
            let Some((pending, _)) = self.pending.front_mut() else { return Ok(()) };
            let ended = self.inner.end(&self.peer, pending).await;
            self.pending.pop_front();
            match ended {
                Ok(_) => break,
                Err(Ended { status: Some(IBV_WC_RETRY_EXC_ERR), .. }) if Instant::now() < deadline => {
                    let (device, link) = (Arc::clone(&self.inner.device), Arc::clone(&self.link));
                    let again = spawn_blocking(move || device.reconnect(link.qp(), &wish)).await;
                    again.unwrap_or_else(|_| Err(RemoteError::Transport("the server is about to stop".to_owned())))?;
                }
                Err(ended) => return Err(self.fail(ended)),
            }
        }
        self.fresh = None;
        let old = self.inner.connections.keep(self.key(), Arc::clone(&self.link), Instant::now());
        drop(old);
        // It ends with the last of those who send.
        let _ = self.inner.reaper.send(Job::Kept);
        Ok(())
    }
}

#[async_trait]
impl RemoteWindow for ConnectionWindow {
    fn len(&self) -> u64 {
        self.window.length
    }

    fn stride(&self) -> usize {
        STRIDE
    }

    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        let part = self.check(RemoteAccess::Read, offset, into.len())?;
        let mut address = part.address;
        let lengths: Vec<usize> = into.chunks(self.slot).map(<[u8]>::len).collect();
        let mut wanted = lengths.into_iter().peekable();
        let first = self.next;
        for (i, piece) in into.chunks_mut(self.slot).enumerate() {
            // As many as there is room for, and then the oldest of them.
            while let Some(length) = wanted.peek().copied() {
                let Some(permit) = self.permit().await? else { break };
                wanted.next();
                self.post(permit, What::Read, address, length)?;
                address = address.wrapping_add(length as u64);
            }
            self.settle().await?;
            if let Some(lease) = &self.lease {
                lease.read((first + i) % self.slots * self.slot, piece);
            }
        }
        Ok(())
    }

    /// What is written is under way when this returns, and there when [`RemoteWindow::flush`] does.
    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError> {
        let part = self.check(RemoteAccess::Write, offset, from.len())?;
        self.established().await?;
        let mut address = part.address;
        for piece in from.chunks(self.slot) {
            let permit = loop {
                match self.permit().await? {
                    Some(permit) => break permit,
                    None => self.settle().await?,
                }
            };
            if let Some(lease) = &self.lease {
                lease.write(self.next % self.slots * self.slot, piece);
            }
            self.post(permit, What::Write, address, piece.len())?;
            address = address.wrapping_add(piece.len() as u64);
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), RemoteError> {
        while !self.pending.is_empty() {
            self.settle().await?;
        }
        Ok(())
    }

    fn endpoint(&self) -> Option<RcEndpoint> {
        let gid = self.inner.source(&self.peer).map_or([0; 16], |entry| entry.gid);
        let lid = self.inner.device.port().lid;
        Some(RcEndpoint { qpn: self.link.qp().number(), gid, lid, psn: 0, staging: None })
    }
}

impl Drop for ConnectionWindow {
    fn drop(&mut self) {
        let unsettled = !self.pending.is_empty();
        if unsettled && self.failed.is_none() {
            self.link.qp().fail();
            drop(self.inner.connections.forget(self.key(), &self.link));
        }
        self.inner.connections.used(self.key(), Instant::now());
        if let Some(lease) = self.lease.take()
            && (unsettled || self.failed.is_some())
        {
            self.link.hold(lease);
        }
    }
}
