//! The device in a thread of its own behind a vfio-user socket: the loop of the real server, with a door for tests.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ernic_emu::{
    device::{Device, DeviceConfig, Poll},
    link::Link,
    mem::GuestMemory,
    vfio::{Connection, Listener, client::Client},
};
use ionic_driver::{
    Bar, Bus, BusError, GuestRam, VfioUser,
    vfio_user::{Maps, Writes},
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{IOVA, RAM, TestBus, TestLink};

type Job = Box<dyn FnOnce(&mut Device, &mut Duration) + Send>;

/// The server's thread.
pub struct Server {
    dir: tempfile::TempDir,
    jobs: Option<Sender<Job>>,
    wake: std::sync::Arc<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start<L: Link + 'static>(config: DeviceConfig, link: impl FnOnce(&Device) -> L + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(dir.path().join("nic")).unwrap();
        let wake = std::sync::Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let (jobs, queue) = channel();
        let wake_thread = std::sync::Arc::clone(&wake);
        let thread = std::thread::spawn(move || serve(&listener, config, link, &queue, &wake_thread));
        Self { dir, jobs: Some(jobs), wake, thread: Some(thread) }
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("nic")
    }

    /// Has `f` run when the device has nothing left to do; its result comes through the channel.
    fn run<R: Send + 'static>(&self, f: impl FnOnce(&mut Device, &mut Duration) -> R + Send + 'static) -> Receiver<R> {
        let (answer, result) = channel();
        let job: Job = Box::new(move |device, skew| {
            // Whoever asked may have given up.
            let _ = answer.send(f(device, skew));
        });
        self.jobs.as_ref().unwrap().send(job).unwrap();
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).unwrap();
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server's thread panicked");
        }
    }
}

fn serve<L: Link>(
    listener: &Listener,
    config: DeviceConfig,
    link: impl FnOnce(&Device) -> L,
    jobs: &Receiver<Job>,
    wake: &std::os::fd::OwnedFd,
) {
    let mem = GuestMemory::new();
    let mut device = Device::new(config, mem.clone());
    let mut link = link(&device);
    let mut connection: Option<Connection> = None;
    let (origin, mut skew) = (Instant::now(), Duration::ZERO);
    let mut turn = Poll { more: true, deadline: None };
    loop {
        let now = origin.elapsed() + skew;
        // A link with timers is looked at every millisecond; it says nothing of them itself.
        let idle = Duration::from_millis(1);
        let limit =
            if turn.more { Duration::ZERO } else { turn.deadline.map_or(idle, |at| at.saturating_sub(now).min(idle)) };
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        let mut fds = vec![PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        fds.extend(connection.as_ref().map(|c| PollFd::from_borrowed_fd(c.fd(), c.poll_events())));
        let _ = poll(&mut fds, Some(&limit));
        let readable = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        let (accept, woken) = (readable(0), readable(1));
        if accept && let Ok(Some(new)) = listener.accept() {
            // The old client is gone, or is sent away.
            if let Some(mut old) = connection.take() {
                old.close(&mut device, &mem);
            }
            connection = Some(new);
        }
        if woken {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let mut behind = false;
        // Also when nothing is to be read: messages may have come while the device waited for a DMA message of its own.
        if let Some(open) = &mut connection {
            match open.process(&mut device, &mem, 256) {
                Ok(progress) => behind = progress.more,
                Err(_) => connection = None,
            }
        }
        turn = device.poll(origin.elapsed() + skew, &mut link);
        turn.more |= behind;
        if turn.more {
            continue;
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => {
                    // What was sent before the job was asked for is done before it runs.
                    if let Some(open) = &mut connection {
                        while matches!(open.process(&mut device, &mem, 256), Ok(p) if p.more || p.messages > 0) {}
                    }
                    while device.poll(origin.elapsed() + skew, &mut link).more {}
                    job(&mut device, &mut skew);
                    while device.poll(origin.elapsed() + skew, &mut link).more {}
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
    }
}

/// The device behind a socket.
pub struct SocketBus {
    pub inner: VfioUser,
    pub server: Server,
    wire: TestLink,
}

impl SocketBus {
    /// Runs `f` in the device's thread and waits for it, answering the device's DMA messages meanwhile.
    fn job<R: Send + 'static>(&mut self, f: impl FnOnce(&mut Device, &mut Duration) -> R + Send + 'static) -> R {
        self.inner.flush().unwrap();
        let result = self.server.run(f);
        let end = Instant::now() + super::LONG;
        loop {
            let by_message = self.inner.maps() == Maps::Messages;
            let patience = if by_message { Duration::ZERO } else { super::LONG };
            match result.recv_timeout(patience) {
                Ok(result) => return result,
                Err(_) if by_message && Instant::now() < end => {
                    self.inner.client.serve(Duration::from_micros(200)).unwrap();
                }
                Err(error) => panic!("the server's thread is gone or hangs: {error}"),
            }
        }
    }

    /// As [`TestBus::make`], with another way to map memory and to write.
    pub fn shaped(config: DeviceConfig, maps: Maps, writes: Writes) -> Self {
        Self::shaped_with(config, RAM, maps, writes)
    }

    /// As [`SocketBus::shaped`], with `ram` bytes of guest memory.
    pub fn shaped_with(config: DeviceConfig, ram: usize, maps: Maps, writes: Writes) -> Self {
        let wire = TestLink::default();
        let link = wire.clone();
        Self::start(config, ram, wire, move |_| link, maps, writes)
    }

    fn start<L: Link + 'static>(
        config: DeviceConfig,
        ram: usize,
        wire: TestLink,
        link: impl FnOnce(&Device) -> L + Send + 'static,
        maps: Maps,
        writes: Writes,
    ) -> Self {
        let server = Server::start(config, link);
        let ram = GuestRam::new(ram, IOVA).unwrap();
        let client = Client::connect(server.path()).unwrap();
        let mut inner = VfioUser::start(client, ram, maps).unwrap();
        inner.set_writes(writes).unwrap();
        Self { inner, server, wire }
    }
}

impl Bus for SocketBus {
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.inner.read(bar, offset, data)
    }
    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.inner.write(bar, offset, data)
    }
    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.inner.config_read(offset, data)
    }
    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.inner.config_write(offset, data)
    }
    fn reset(&mut self) -> Result<(), BusError> {
        self.inner.reset()
    }
    fn ram(&self) -> &GuestRam {
        self.inner.ram()
    }
    fn set_vectors(&mut self, count: u16) -> Result<(), BusError> {
        self.inner.set_vectors(count)
    }
    fn take_irq(&mut self, vector: u16) -> Result<u64, BusError> {
        self.inner.take_irq(vector)
    }
    fn take_irqs(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), BusError> {
        self.inner.take_irqs(count, f)
    }
    fn wait(&mut self, limit: Duration) -> Result<bool, BusError> {
        self.inner.wait(limit)
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
}

impl TestBus for SocketBus {
    const EXACT: bool = false;

    fn make_for<L: Link + 'static>(
        config: DeviceConfig,
        ram: usize,
        wire: TestLink,
        link: impl FnOnce(&Device) -> L + Send + 'static,
    ) -> Self {
        Self::start(config, ram, wire, link, Maps::Whole, Writes::Posted)
    }

    fn wire(&self) -> TestLink {
        self.wire.clone()
    }

    fn with_device<R: Send + 'static>(&mut self, f: impl FnOnce(&mut Device) -> R + Send + 'static) -> R {
        self.job(move |device, _| f(device))
    }

    fn settle(&mut self) {
        self.with_device(|_| {});
    }

    fn pass(&mut self, time: Duration) {
        self.job(move |_, skew| *skew += time);
        // The device has had a turn since; whoever waited for the job sees its effect after this.
        self.settle();
    }

    fn unmap_ram(&mut self) {
        self.inner.unmap_ram().unwrap();
    }

    fn map_ram(&mut self) {
        self.inner.map_ram().unwrap();
    }
}

impl SocketBus {
    /// Closes the connection as a virtual machine that is killed, and connects again.
    pub fn reconnect(self) -> Self {
        let Self { inner, server, wire } = self;
        drop(inner);
        let ram = GuestRam::new(RAM, IOVA).unwrap();
        let inner = VfioUser::connect(server.path(), ram).unwrap();
        Self { inner, server, wire }
    }
}
