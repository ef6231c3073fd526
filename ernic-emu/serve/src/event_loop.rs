//! The one thread: it waits for the transport, the wire and signals, and gives the device its turns.

use std::{
    fmt,
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
use ernic_store::Store;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};
use s3_proto::{Impairment, RdmaConfig, S3Service, Timers};
use tcp_inband::Endpoint;

use crate::{
    Parts,
    backend::{Backend, S3Options},
    cable::Cable,
    control::{self, Control, Request, Status},
    counters::{self, Counters},
    credentials,
    options::{LinkState, Options},
    recent::Recent,
    signals::Signals,
    stores,
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
    cable: Cable,
    s3: Option<S3>,
    /// Deadlines of requests, where something makes them wait.
    timers: Option<Timers>,
    control: Option<Control>,
    wake: Arc<OwnedFd>,
    signals: Signals,
    options: Options,
    recent: Recent,
    origin: Instant,
    /// Drivers that were there at the last turn: for Ethernet, for RDMA.
    drivers: [bool; 2],
}

/// What is to be told of the S3 service.
struct S3 {
    store: Arc<dyn Store>,
    service: S3Service,
    counters: counters::Shared,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3").field("usage", &self.store.usage()).field("service", &self.service).finish_non_exhaustive()
    }
}

impl Server {
    /// Joins the parts; nothing runs yet.
    pub fn new(parts: Parts) -> anyhow::Result<Self> {
        let Parts { options, signals, listener, control, tap, pcap, recent } = parts;
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
        let config = DeviceConfig {
            mac: options.nic_mac().octets(),
            device_id: options.device_id.number(),
            max_mtu: options.mtu,
        };
        let mem = GuestMemory::new();
        let mut server = Self {
            listener,
            connection: None,
            refusals: Vec::new(),
            device: Device::new(config, mem.clone()),
            mem,
            wire: Wire::new(),
            cable: Cable::default(),
            s3: None,
            timers: None,
            control,
            wake: Arc::new(wake),
            signals,
            options,
            recent,
            origin: Instant::now(),
            drivers: [false; 2],
        };
        if let Some(pcap) = pcap {
            server.wire.record(pcap);
        }
        if let Some(tap) = tap {
            server.wire.attach(tap);
        }
        if let Backend::S3(s3) = &server.options.backend {
            let s3 = s3.clone();
            server.serve_s3(&s3)?;
        }
        Ok(server)
    }

    /// Puts the store and its endpoint on the wire. What tokens name are rows of the NIC's own table.
    fn serve_s3(&mut self, s3: &S3Options) -> anyhow::Result<()> {
        let store = stores::open_blocking(s3)?;
        let memory = NicMemory::new(self.device.regions().clone(), self.mem.clone());
        let rdma = RdmaConfig { endpoint: s3.ip, impairment: self.impairment() };
        let config = stores::service_config(s3);
        let counters = counters::Shared::default();
        let service = stores::service(Arc::clone(&store), config, credentials::load(s3)?)
            .with_remote(Arc::new(memory), rdma)
            .with_collector(counters.clone())
            .build();
        let config =
            tcp_inband::Config { dhcp: s3.dhcp, buffer: TCP_BUFFER, ..tcp_inband::Config::new(s3.ip, s3.port) };
        let endpoint = Endpoint::new(config, Duration::ZERO).context("s3 backend")?;
        let wake = Arc::clone(&self.wake);
        let notify = move || {
            // Only a full counter can refuse, and that is a wake-up too.
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        self.wire.serve(endpoint, service.clone(), Arc::new(notify));
        self.s3 = Some(S3 { store, service, counters });
        Ok(())
    }

    /// What makes transfers slower or worse than they are, if the options ask for it.
    fn impairment(&mut self) -> Option<Impairment> {
        let (rate, faults) = (self.options.rdma_rate, self.options.fault.clone());
        if rate.is_none() && faults.is_none() {
            return None;
        }
        let timers = self.timers.get_or_insert_default();
        let fault = self.cable.fault().clone();
        self.wire.heed(fault.clone());
        Some(Impairment {
            rate,
            faults: faults.unwrap_or_default(),
            link_down: Some(Arc::new(move |time| fault.request(time))),
            ..Impairment::new(Arc::new(timers.clone()))
        })
    }
}

/// What there is to read after waiting.
#[derive(Default)]
struct Ready {
    signal: bool,
    client: bool,
    listener: bool,
    control: bool,
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
            if ready.control {
                self.serve_control();
            }
            turn = self.turn();
        }
    }

    /// Gives everything its turn.
    fn turn(&mut self) -> Poll {
        let now = self.origin.elapsed();
        if let Some(timers) = &self.timers {
            timers.advance(now);
        }
        self.set_link(now);
        if let Some(s3) = &self.s3
            && self.wire.is_busy()
        {
            s3.counters.set(Counters::of(&self.device));
        }
        let polled = self.device.poll(now, &mut self.wire);
        self.tell_of_drivers();
        polled
    }

    /// Says which drivers of the guest have come up, and gone.
    fn tell_of_drivers(&mut self) {
        let ethernet = self.device.attached();
        // The RDMA driver makes its event queues first, and keeps them (`ionic_create_rdma_admin`).
        let rdma = ethernet && self.device.rdma_objects().eqs > 0;
        let [had_ethernet, had_rdma] = std::mem::replace(&mut self.drivers, [ethernet, rdma]);
        if ethernet && !had_ethernet {
            ernic_emu::info_limited!("guest: driver up, mac {} mtu {}", self.options.nic_mac(), self.device.mtu());
        }
        if rdma && !had_rdma {
            ernic_emu::info_limited!("guest: RDMA driver up, tokens of this guest can be served");
        }
        if had_ethernet && !ethernet {
            ernic_emu::info_limited!("guest: driver down");
        }
    }

    /// Tells the device of the cable.
    fn set_link(&mut self, now: Duration) {
        let up = self.cable.is_up(now);
        if up != self.device.link_is_up() {
            tracing::info!("link {}", if up { LinkState::Up } else { LinkState::Down }.name());
            self.device.set_link(up);
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, turn: &Poll) -> anyhow::Result<Ready> {
        let now = self.origin.elapsed();
        let timers = self.timers.as_ref().and_then(Timers::next);
        let deadlines = [turn.deadline, self.wire.deadline(now), timers, self.cable.deadline()];
        let deadline = deadlines.into_iter().flatten().min();
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
        let control = fds.len();
        let of_control = self.control.iter().flat_map(Control::fds);
        fds.extend(of_control.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        let readable = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        let ready = Ready {
            signal: readable(0),
            listener: readable(1),
            client: behind || (self.connection.is_some() && readable(3)),
            control: (control..fds.len()).any(readable),
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

    /// Serves whoever is at the control socket.
    fn serve_control(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        control.serve(&mut |request| match request {
            Request::Status => control::json(&self.status()),
            Request::Link(state) => {
                self.cable.set(state == LinkState::Up);
                self.set_link(self.origin.elapsed());
                "{}".to_owned()
            }
        });
        self.control = Some(control);
    }

    /// How the server is now.
    fn status(&self) -> Status {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let Counters { link_up, driver, sent, received, interrupts, objects, work, guest_errors } =
            Counters::of(&self.device);
        let traffic = |of: counters::Traffic| control::Traffic { frames: of.frames, bytes: of.bytes, lost: of.lost };
        let metrics = self.s3.as_ref().map(|s3| s3.service.metrics());
        let s3 = match (&self.options.backend, &self.s3) {
            (Backend::S3(options), Some(S3 { store, service, .. })) => {
                let (usage, metrics) = (store.usage(), service.metrics());
                Some(control::S3 {
                    url: options.url(),
                    bucket: options.bucket.clone(),
                    connections: metrics.open_connections(),
                    waiting: self.wire.endpoint_stats().map_or(0, |stats| count(stats.parked)),
                    requests: metrics.requests(),
                    objects: usage.objects,
                    bytes: usage.bytes,
                    capacity: usage.capacity,
                    uploads: usage.uploads,
                })
            }
            _ => None,
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.origin.elapsed().as_secs(),
            socket: self.options.absolute_socket().display().to_string(),
            nic: control::Nic {
                guest_attached: self.connection.is_some(),
                driver_attached: driver,
                link: if link_up { LinkState::Up } else { LinkState::Down }.name().to_owned(),
                mac: self.options.nic_mac().to_string(),
                pci_id: format!("1dd8:{:04x}", self.options.device_id.number()),
                mtu: self.device.mtu(),
                sent: traffic(sent),
                received: traffic(received),
                interrupts,
                guest_errors: guest_errors.total(),
            },
            rdma: control::Rdma {
                mrs: objects.regions.into(),
                qps: count(objects.qps),
                cqs: count(objects.cqs),
                eqs: count(objects.eqs),
                ahs: count(objects.ahs),
                active: metrics.map_or(0, s3_proto::Metrics::rdma_active),
                reads: metrics.map_or(0, s3_proto::Metrics::rdma_reads),
                bytes_read: metrics.map_or(0, s3_proto::Metrics::rdma_bytes_read),
                writes: metrics.map_or(0, s3_proto::Metrics::rdma_writes),
                bytes_written: metrics.map_or(0, s3_proto::Metrics::rdma_bytes_written),
                work_requests: work.requests(),
                work_failed: work.failed,
                work_bytes: work.bytes,
            },
            s3,
            errors: self.recent.lines(),
        }
    }
}
