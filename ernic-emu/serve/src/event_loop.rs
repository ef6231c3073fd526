//! The one thread: it waits for the transport, the wire and signals, and gives the device its turns.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use ernic_emu::{
    device::{Device, DeviceConfig, Poll},
    mem::GuestMemory,
    rdma::NicMemory,
    vfio::{ConnError, Connection, Listener, Refusal},
};
use ernic_store::{MemoryConfig, MemoryStore};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};
use s3_proto::{RdmaConfig, S3Config, S3Service};
use tcp_inband::Endpoint;

use crate::{
    Parts,
    backend::{Backend, S3Options},
    signals::Signals,
    wire::Wire,
};

/// Messages taken from the client between two turns of the device: a burst of doorbells becomes one turn, and a register
/// read never waits behind more than this.
const MESSAGE_BUDGET: usize = 256;

/// Bytes of each of a connection's two TCP buffers: with 64 KiB guest and server wait for each other's window in turns, and
/// more than this brings no more bulk (`docs/decisions/002-s3s-and-hyper.md`).
const TCP_BUFFER: usize = 256 << 10;

/// Clients that wait to be told that this NIC has one already; more are cut off at once.
const MAX_REFUSALS: usize = 8;

/// Everything that the thread owns.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    connection: Option<Connection>,
    refusals: Vec<Refusal>,
    device: Device,
    mem: GuestMemory,
    wire: Wire,
    wake: Arc<OwnedFd>,
    signals: Signals,
    origin: Instant,
}

impl Server {
    /// Joins the parts; nothing runs yet.
    pub fn new(parts: Parts) -> anyhow::Result<Self> {
        let Parts { options, signals, listener, tap, pcap } = parts;
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
        let wake = Arc::new(wake);
        let mut wire = Wire::new();
        if let Some(pcap) = pcap {
            wire.record(pcap);
        }
        if let Some(tap) = tap {
            wire.attach(tap);
        }
        let config = DeviceConfig {
            mac: options.nic_mac().octets(),
            device_id: options.device_id.number(),
            max_mtu: options.mtu,
        };
        let mem = GuestMemory::new();
        let device = Device::new(config, mem.clone());
        if let Backend::S3(s3) = &options.backend {
            // What a token names is a row of the NIC's own table.
            let memory = NicMemory::new(device.regions().clone(), mem.clone());
            serve_s3(&mut wire, s3, memory, &wake)?;
        }
        Ok(Self {
            listener,
            connection: None,
            refusals: Vec::new(),
            device,
            mem,
            wire,
            wake,
            signals,
            origin: Instant::now(),
        })
    }
}

/// Puts the store and its endpoint on the wire; payloads with a token move from and to `memory`.
fn serve_s3(wire: &mut Wire, s3: &S3Options, memory: NicMemory, wake: &Arc<OwnedFd>) -> anyhow::Result<()> {
    let store = MemoryStore::new(MemoryConfig { capacity: s3.size, objects: s3.objects });
    store.create_bucket(&s3.bucket);
    let service = S3Service::builder(Arc::new(store), S3Config { max_part: s3.maxpart, ..S3Config::default() })
        .with_remote(Arc::new(memory), RdmaConfig::new(s3.ip))
        .build();
    let config = tcp_inband::Config { dhcp: s3.dhcp, buffer: TCP_BUFFER, ..tcp_inband::Config::new(s3.ip, s3.port) };
    let endpoint = Endpoint::new(config, Duration::ZERO).context("s3 backend")?;
    let wake = Arc::clone(wake);
    wire.serve(
        endpoint,
        service,
        Arc::new(move || {
            // Only a full counter can refuse, and that is a wake-up too.
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        }),
    );
    Ok(())
}

/// What there is to read after waiting.
#[derive(Default)]
struct Ready {
    signal: bool,
    client: bool,
    listener: bool,
}

impl Server {
    /// Serves until SIGINT or SIGTERM.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let mut turn = Poll { more: true, deadline: None };
        loop {
            let ready = self.wait(&turn)?;
            if ready.signal
                && let Some(signal) = self.signals.take()
            {
                tracing::info!("{} received, stopping", signal.name());
                return Ok(());
            }
            if ready.listener {
                self.accept();
            }
            self.refusals.retain_mut(|refused| !refused.process());
            if ready.client {
                self.serve_client();
            }
            let now = self.origin.elapsed();
            turn = self.device.poll(now, &mut self.wire);
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, turn: &Poll) -> anyhow::Result<Ready> {
        let now = self.origin.elapsed();
        let deadline = [turn.deadline, self.wire.deadline(now)].into_iter().flatten().min();
        // Messages beyond the last turn's budget, or that came while the device waited for a DMA message: the socket does not
        // become readable for them again.
        let behind = self.connection.as_ref().is_some_and(Connection::has_input);
        let timeout =
            if turn.more || behind { Some(Duration::ZERO) } else { deadline.map(|at| at.saturating_sub(now)) };
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut fds = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.fd(), PollFlags::IN),
            PollFd::new(&*self.wake, PollFlags::IN),
        ];
        if let Some(connection) = &self.connection {
            fds.push(PollFd::from_borrowed_fd(connection.fd(), connection.poll_events()));
        }
        if let Some(tap) = self.wire.readable_tap() {
            fds.push(PollFd::new(tap, PollFlags::IN));
        }
        fds.extend(self.refusals.iter().map(|refused| PollFd::from_borrowed_fd(refused.fd(), PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let readable = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        let ready = Ready {
            signal: readable(0),
            listener: readable(1),
            client: behind || (self.connection.is_some() && readable(3)),
        };
        if readable(2) {
            let mut count = [0; 8];
            // Taken by nobody else; "would block" cannot happen and would not matter.
            let _ = rustix::io::read(&*self.wake, &mut count);
        }
        Ok(ready)
    }

    /// Takes a client, or turns it away while there is one.
    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(connection)) if self.connection.is_none() => {
                tracing::info!("a client attached");
                self.connection = Some(connection);
            }
            Ok(Some(second)) => {
                ernic_emu::warn_limited!("a second client was turned away: this NIC serves one guest");
                if self.refusals.len() < MAX_REFUSALS {
                    self.refusals.push(second.refuse(Errno::BUSY));
                }
            }
            Err(error) => ernic_emu::warn_limited!(%error, "cannot accept a client"),
        }
    }

    /// Serves what the client sent, up to a budget.
    fn serve_client(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        if let Err(end) = connection.process(&mut self.device, &self.mem, MESSAGE_BUDGET) {
            match end {
                ConnError::Closed => tracing::info!("the client detached; waiting for the next"),
                end => tracing::warn!(error = %end, "the client was disconnected; waiting for the next"),
            }
            self.connection = None;
        }
    }
}
