//! A guest with a TCP of its own (smoltcp again, with a link layer and checksums verified), joined to the endpoint by
//! queues of frames that may lose, repeat, reorder and split them.

use std::{collections::VecDeque, future::poll_fn, io, pin::Pin, rc::Rc, sync::Arc, task::Poll, time::Duration};

use hyper::rt::{Read, ReadBuf, Write};
use smoltcp::{
    iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet},
    phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken},
    socket::tcp::{Socket, SocketBuffer, State},
    time::Instant,
    wire::{EthernetAddress, HardwareAddress, IpCidr},
};
use tcp_inband::{
    Config, Endpoint, Stream,
    exec::{Executor, Task},
};

use super::{GUEST, IP, PORT, Queue, dissect};

/// The guest's network card.
pub struct Wire {
    pub rx: VecDeque<Vec<u8>>,
    pub tx: VecDeque<Vec<u8>>,
    pub mtu: usize,
}

pub struct Rx(Vec<u8>);
pub struct Tx<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        Some((Rx(self.rx.pop_front()?), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = self.mtu + 14;
        caps
    }
}

/// What the wire does to frames; chances in 1/1000.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    pub drop: u64,
    pub repeat: u64,
    pub delay: u64,
    pub split: u64,
    pub state: u64,
    pub held: Vec<Vec<u8>>,
}

impl Faults {
    pub fn new(seed: u64) -> Self {
        Self { state: seed | 1, ..Self::default() }
    }

    fn chance(&mut self, of: u64) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        of > 0 && (self.state >> 11) % 1000 < of
    }

    fn pass(&mut self, frame: Vec<u8>, out: &mut Vec<Vec<u8>>) {
        if self.chance(self.drop) {
            return;
        }
        if self.chance(self.delay) {
            self.held.push(frame);
            return;
        }
        let copies = 1 + usize::from(self.chance(self.repeat));
        for _ in 0..copies {
            match self.chance(self.split).then(|| split(&frame)).flatten() {
                Some((first, second)) => out.extend([first, second]),
                None => out.push(frame.clone()),
            }
        }
        // What was held back comes late.
        if self.chance(500) {
            out.append(&mut self.held);
        }
    }
}

/// A TCP segment as two of half the size, the checksums left as they were.
fn split(frame: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let headers = 14 + 20 + usize::from(frame.get(46)? >> 4) * 4;
    let is_data = frame[12..14] == [8, 0] && frame[23] == 6 && frame[47] & 0b111 == 0;
    let payload = frame.len().checked_sub(headers)?;
    if !is_data || payload < 2 {
        return None;
    }
    let middle = headers + payload / 2;
    let mut first = frame[..middle].to_vec();
    let mut second = [&frame[..headers], &frame[middle..]].concat();
    let seq = u32::from_be_bytes(frame[38..42].try_into().unwrap()).wrapping_add((payload / 2) as u32);
    second[38..42].copy_from_slice(&seq.to_be_bytes());
    for part in [&mut first, &mut second] {
        let total = (part.len() - 14) as u16;
        part[16..18].copy_from_slice(&total.to_be_bytes());
    }
    Some((first, second))
}

/// One connection of the guest: sends all of `send`, then waits for `expect` bytes or end of file.
pub struct Job {
    pub handle: SocketHandle,
    pub send: Vec<u8>,
    pub sent: usize,
    pub received: Vec<u8>,
    /// Bytes after which it closes; `None`: it waits for the server to close.
    pub expect: Option<usize>,
    /// Close our half when all is sent.
    pub half_close: bool,
    /// Bytes per turn that it reads.
    pub appetite: usize,
    pub finished: bool,
    pub established: bool,
    pub was_reset: bool,
}

pub struct Net {
    pub endpoint: Endpoint,
    pub executor: Executor,
    pub now: Duration,
    pub queue: Queue,
    /// Receive buffers that the guest posts a turn.
    pub room: usize,
    pub iface: Interface,
    pub sockets: SocketSet<'static>,
    pub wire: Wire,
    pub jobs: Vec<Job>,
    pub to_server: Faults,
    pub to_client: Faults,
    pub serve: Rc<dyn Fn(Stream) -> Task>,
    pub turns: u64,
}

impl Net {
    pub fn new(config: Config, serve: impl Fn(Stream) -> Task + 'static) -> Self {
        let now = Duration::from_secs(1);
        let mut wire = Wire { rx: VecDeque::new(), tx: VecDeque::new(), mtu: config.mtu };
        let mut settings = InterfaceConfig::new(HardwareAddress::Ethernet(EthernetAddress(GUEST.mac)));
        settings.random_seed = 7;
        let mut iface = Interface::new(settings, &mut wire, Instant::from_secs(1));
        iface.update_ip_addrs(|a| a.push(IpCidr::new(GUEST.ip.into(), 24)).unwrap());
        Self {
            endpoint: Endpoint::new(config, now).unwrap(),
            executor: Executor::new(Arc::new(|| {})),
            now,
            queue: Queue::default(),
            room: 1_000_000,
            iface,
            sockets: SocketSet::new(Vec::new()),
            wire,
            jobs: Vec::new(),
            to_server: Faults::new(1),
            to_client: Faults::new(2),
            serve: Rc::new(serve),
            turns: 0,
        }
    }

    pub fn connect(&mut self, port: u16, send: Vec<u8>, expect: Option<usize>) -> usize {
        let buffer = || SocketBuffer::new(vec![0; 64 << 10]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        let handle = self.sockets.add(socket);
        self.sockets.get_mut::<Socket<'_>>(handle).connect(self.iface.context(), (IP, PORT), port).unwrap();
        self.jobs.push(Job {
            handle,
            send,
            sent: 0,
            received: Vec::new(),
            expect,
            half_close: false,
            appetite: usize::MAX,
            finished: false,
            established: false,
            was_reset: false,
        });
        self.jobs.len() - 1
    }

    fn work(&mut self) {
        for job in &mut self.jobs {
            let socket = self.sockets.get_mut::<Socket<'_>>(job.handle);
            job.established |= socket.may_send();
            if socket.may_send() && job.sent < job.send.len() {
                job.sent += socket.send_slice(&job.send[job.sent..]).unwrap();
            }
            if job.sent == job.send.len() && job.half_close && socket.may_send() {
                socket.close();
            }
            let mut left = job.appetite;
            while left > 0 && socket.can_recv() {
                let received = &mut job.received;
                left -= socket
                    .recv(|bytes| {
                        let count = bytes.len().min(left);
                        received.extend(&bytes[..count]);
                        (count, count)
                    })
                    .unwrap();
            }
            let done = match job.expect {
                Some(expect) => job.received.len() >= expect,
                // The server's FIN came.
                None => {
                    !socket.can_recv()
                        && matches!(
                            socket.state(),
                            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
                        )
                }
            };
            if done && !job.finished {
                job.finished = true;
                socket.close();
            }
            if job.established && !job.finished && socket.state() == State::Closed {
                job.was_reset = true;
            }
        }
    }

    /// One turn of everything; whether anything moved.
    pub fn turn(&mut self) -> bool {
        self.turns += 1;
        let time = Instant::from_micros(self.now.as_micros() as i64);
        self.work();
        self.iface.poll(time, &mut self.wire, &mut self.sockets);
        self.work();
        let mut moved = !self.wire.tx.is_empty();
        let mut frames = Vec::new();
        while let Some(frame) = self.wire.tx.pop_front() {
            self.to_server.pass(frame, &mut frames);
        }
        for batch in frames.chunks(64) {
            for frame in batch {
                assert!(self.endpoint.wants(frame));
                self.endpoint.ingress(self.now, frame);
            }
            while self.executor.has_room() {
                let Some(stream) = self.endpoint.accept() else { break };
                assert!(self.executor.spawn((self.serve)(stream)).is_ok());
            }
            self.executor.run_ready();
        }
        moved |= self.executor.run_ready() > 0;
        self.queue.room = self.room;
        moved |= self.endpoint.poll(self.now, &mut self.queue).more;
        moved |= !self.queue.frames.is_empty();
        let mut frames = Vec::new();
        while let Some(frame) = self.queue.frames.pop_front() {
            dissect(&frame);
            self.to_client.pass(frame, &mut frames);
        }
        self.wire.rx.extend(frames);
        moved
    }

    /// Until `done`, or for `limit` of (virtual) time; whether it was done.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            let mut quiet = 0;
            while quiet < 2 {
                quiet = if self.turn() { 0 } else { quiet + 1 };
                if done(self) {
                    return true;
                }
            }
            if self.now >= end {
                return false;
            }
            let time = Instant::from_micros(self.now.as_micros() as i64);
            let client = self.iface.poll_at(time, &self.sockets);
            let client = client.map_or(end, |at| Duration::from_micros(at.total_micros() as u64));
            let server = self.endpoint.poll_at().unwrap_or(end);
            // At least a microsecond, so that the loop ends; at most to where the guest may have something new.
            let next = client.min(server).max(self.now + Duration::from_micros(1));
            self.now = next.min(end);
        }
    }

    pub fn finish(&mut self, limit: Duration) {
        let done = self.run(limit, |net| net.jobs.iter().all(|job| job.finished));
        let states = |net: &Self| -> Vec<(usize, usize, bool)> {
            let open = net.jobs.iter().filter(|job| !job.finished);
            open.map(|job| (job.sent, job.received.len(), job.was_reset)).collect()
        };
        assert!(done, "{:?} unfinished: {:?}", self.endpoint.stats(), states(self));
        assert!(self.jobs.iter().all(|job| !job.was_reset), "a connection was reset");
    }
}

// Streams in async functions.

pub async fn read_some(stream: &mut Stream, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; max];
    let count = poll_fn(|cx| {
        let mut buf = ReadBuf::new(&mut bytes);
        match Pin::new(&mut *stream).poll_read(cx, buf.unfilled()) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| buf.filled().len())),
            Poll::Pending => Poll::Pending,
        }
    })
    .await?;
    bytes.truncate(count);
    Ok(bytes)
}

pub async fn read_exact(stream: &mut Stream, count: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < count {
        let bytes = read_some(stream, count - all.len()).await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        all.extend(bytes);
    }
    Ok(all)
}

pub async fn write_all(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, bytes)).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

pub async fn shut_down(mut stream: Stream) {
    poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await.unwrap();
}
