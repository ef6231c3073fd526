//! `ernic serve`: the S3 service on the host's own TCP, without a NIC.
//!
//! Requests run on tokio's threads, one for each core. A connection that has nothing to say for `--idle-timeout` is closed;
//! so is one that is at work and does not move a byte in either direction for five minutes. Beyond `--max-connections`, a
//! connection is answered 503 `SlowDown` and closed.

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use anyhow::Context as _;
use futures_util::future::{Either, select};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use s3_proto::{Credentials, Phase, S3Config, S3Service};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    signal::unix::{Signal, SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{credentials, options::ServeOptions, rdma::Hardware, startup, stores};

/// Connections that wait to be accepted (`listen`(2)); the kernel may take fewer (`net.core.somaxconn`).
const BACKLOG: u32 = 1024;
/// How long a connection at work may go without a byte in either direction. Stores on other machines take their time.
const STALL: Duration = Duration::from_secs(300);
/// How long requests may take to end once the server is to stop.
const GRACE: Duration = Duration::from_secs(10);
/// How long to wait when there is no descriptor for a connection.
const RETRY: Duration = Duration::from_millis(100);
/// Connections that are being refused at a time; more are cut off.
const MAX_REFUSALS: usize = 64;
/// How long a connection that is refused may take to hear of it, and how many bytes of it are read meanwhile.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// How often sessions that nobody has made ready are looked for where none is known to wait.
const REAP: Duration = Duration::from_secs(5);
/// See [`REFUSAL_TIME`].
const REFUSAL_BYTES: u64 = 64 << 10;

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
///
/// The store cannot be opened, or the address not be listened on.
pub fn run(options: &ServeOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("ernic-serve")
        .build()
        .context("cannot start threads")?;
    let result = runtime.block_on(serve(options));
    // What is still at work has had its time.
    runtime.shutdown_background();
    result
}

/// Ends the sessions of `hipobj-rc-v2` that nobody has made ready in time, for ever.
async fn reap(service: S3Service) {
    loop {
        let next = service.reap().unwrap_or(REAP).min(REAP);
        // A moment later than the first is due, so that it is.
        sleep(next + Duration::from_millis(1)).await;
    }
}

async fn serve(options: &ServeOptions) -> anyhow::Result<()> {
    let mut signals = Signals::install().context("cannot take over SIGINT and SIGTERM")?;
    let s3 = &options.backend;
    let credentials = credentials::load(s3)?;
    let listener = listen(options.listen)?;
    let address = listener.local_addr().context("cannot ask for the address")?;
    let store = stores::open(s3).await?;
    // Others than this machine may not even see the figures, if they have no key.
    let config = S3Config { open_pages: options.is_local(), ..stores::service_config(s3) };
    let keys = credentials.as_ref().map_or(0, Credentials::len);
    let hardware = options.rdma.as_ref().map(Hardware::open).transpose()?;
    let mut service = stores::service(store, config, credentials);
    if let Some(hardware) = &hardware {
        service = hardware.serve(service);
    }
    let service = service.build();
    startup::announce_serve(options, address, keys, hardware.as_ref());
    if hardware.is_some() {
        tokio::spawn(reap(service.clone()));
    }

    let origin = Instant::now();
    let limit = u32::try_from(options.max_connections).unwrap_or(u32::MAX);
    let places = Arc::new(Semaphore::new(options.max_connections));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    let (stop, stopping) = watch::channel(false);
    let signal = loop {
        let accepted = match select(pin!(signals.next()), pin!(listener.accept())).await {
            Either::Left((signal, _)) => break signal,
            Either::Right((accepted, _)) => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // The peer's doing, before it was its turn.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {
                continue;
            }
            Err(error) => {
                ernic_emu::warn_limited!(%error, "cannot accept a connection");
                sleep(RETRY).await;
                continue;
            }
        };
        // Whatever is wrong with the socket, its first read says it.
        let _ = stream.set_nodelay(true);
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                let connection = Connection {
                    service: service.clone(),
                    idle: options.idle_timeout,
                    origin,
                    stopping: stopping.clone(),
                    place,
                };
                tokio::spawn(connection.serve(stream));
            }
            Err(_) => {
                ernic_emu::warn_limited!("a connection was turned away: there are {limit} already (--max-connections)");
                if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                    tokio::spawn(refuse(stream, place));
                }
            }
        }
    };

    tracing::info!("{signal} received, stopping");
    drop(listener);
    // There are receivers, and nobody else sends.
    let _ = stop.send(true);
    let ended = async {
        // All places are free when all connections have ended.
        let _ = timeout(GRACE, places.acquire_many(limit)).await;
    };
    if let Either::Left((signal, _)) = select(pin!(signals.next()), pin!(ended)).await {
        tracing::info!("{signal} received again, stopping at once");
    }
    let left = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(places.available_permits());
    if left > 0 {
        tracing::warn!("{left} connections were cut off at work");
    }
    Ok(())
}

/// Listens, also where connections of an earlier server still wait for their end.
fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().with_context(|| format!("--listen: cannot listen on {address}"))
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn install() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        match select(pin!(self.interrupt.recv()), pin!(self.terminate.recv())).await {
            Either::Left(_) => "SIGINT",
            Either::Right(_) => "SIGTERM",
        }
    }
}

/// What a connection is given.
struct Connection {
    service: S3Service,
    idle: Duration,
    origin: Instant,
    stopping: watch::Receiver<bool>,
    /// Given back when the connection has ended.
    place: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let Self { service, idle, origin, mut stopping, place } = self;
        let progress = Arc::new(Progress::new(origin));
        let on = {
            let progress = Arc::clone(&progress);
            move |phase| progress.phase(phase)
        };
        let io = Watched { io: TokioIo::new(stream), progress: Arc::clone(&progress) };
        let stop = async move {
            // The sender outlives all connections.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        let served = service.serve_until(io, on, stop);
        match select(pin!(served), pin!(progress.overdue(idle))).await {
            // The peer's doing: a reset, a garbled head, half a body.
            Either::Left((Err(error), _)) => tracing::debug!(%error, "connection ended"),
            Either::Left((Ok(()), _)) => {}
            Either::Right(_) => tracing::debug!("connection closed: nothing came for too long"),
        }
        drop(place);
    }
}

/// Says that there are too many connections.
async fn refuse(mut stream: TcpStream, place: OwnedSemaphorePermit) {
    const BODY: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>The server has as many \
                        connections as it may have (--max-connections). Try again.</Message></Error>";
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nserver: ernic\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: \
         application/xml\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let told = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with bytes unread would reset the connection, and the answer might be lost.
        tokio::io::copy(&mut (&mut stream).take(REFUSAL_BYTES), &mut tokio::io::sink()).await
    };
    // Whether it heard is its own matter.
    let _ = timeout(REFUSAL_TIME, told).await;
    drop(place);
}

/// When a connection last moved, in milliseconds since the start.
struct Progress {
    origin: Instant,
    /// The last byte in either direction.
    moved: AtomicU64,
    /// The last byte of an answer, or the connection's beginning.
    answered: AtomicU64,
    serving: AtomicBool,
}

impl Progress {
    fn new(origin: Instant) -> Self {
        let new = Self { origin, moved: 0.into(), answered: 0.into(), serving: false.into() };
        new.wrote();
        new
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn read(&self) {
        self.moved.store(self.now(), Relaxed);
    }

    fn wrote(&self) {
        let now = self.now();
        self.moved.store(now, Relaxed);
        self.answered.store(now, Relaxed);
    }

    fn phase(&self, phase: Phase) {
        self.serving.store(phase == Phase::Started, Relaxed);
        if phase == Phase::Finished {
            self.answered.store(self.now(), Relaxed);
        }
    }

    /// Completes when the connection has been quiet for too long. A head that trickles does not count as news: between
    /// requests, only what was answered does.
    async fn overdue(&self, idle: Duration) {
        loop {
            let (since, patience) =
                if self.serving.load(Relaxed) { (&self.moved, STALL) } else { (&self.answered, idle) };
            let deadline = self.origin + Duration::from_millis(since.load(Relaxed)) + patience;
            if Instant::now() >= deadline {
                return;
            }
            // What happens meanwhile moves the deadline, but never before `idle` from now.
            sleep_until(deadline.min(Instant::now() + idle)).await;
        }
    }
}

/// A stream that notes when it moves.
struct Watched {
    io: TokioIo<TcpStream>,
    progress: Arc<Progress>,
}

impl Read for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        self.progress.read();
        Poll::Ready(result)
    }
}

impl Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        self.progress.wrote();
        Poll::Ready(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs));
        self.progress.wrote();
        Poll::Ready(result)
    }
}
