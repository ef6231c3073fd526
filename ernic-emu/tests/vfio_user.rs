//! The vfio-user codec against an independent one: the crate `vfio_user` (Cloud Hypervisor's). Its `Client` drives our server, and our
//! client drives its `Server`.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use ernic_emu::mem::{GuestMemory, Prot};
use ernic_emu::vfio::client::{Client, ClientError, message};
use ernic_emu::vfio::{ConnError, Connection, IrqAction, IrqTable, Listener, Progress, RegionInfo, VfioDevice, proto};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

const BAR_SIZE: usize = 0x10000;
const VECTORS: u32 = 64;
/// Writing a guest address here makes the device copy 4 KiB from there to the BAR at 0x2000, and write "done" over its start.
const REG_DMA: u64 = 0x1000;
/// Writing a vector here triggers it.
const REG_IRQ: u64 = 0x1008;

/// A small device: a RAM-backed BAR 0 with two registers, a configuration space, MSI-X.
struct Ram {
    bar: Vec<u8>,
    config: Vec<u8>,
    irqs: IrqTable,
    mem: GuestMemory,
    events: Sender<&'static str>,
}

impl Ram {
    fn region(&mut self, index: u32) -> Result<&mut Vec<u8>, Errno> {
        match index {
            0 => Ok(&mut self.bar),
            7 => Ok(&mut self.config),
            _ => Err(Errno::INVAL),
        }
    }
}

impl VfioDevice for Ram {
    fn region_info(&self, index: u32) -> RegionInfo {
        let size = match index {
            0 => BAR_SIZE as u64,
            7 => 256,
            _ => return RegionInfo::default(),
        };
        RegionInfo { size, read: true, write: true }
    }
    fn irq_count(&self, index: u32) -> u32 {
        if index == 2 { VECTORS } else { 0 }
    }
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        data.copy_from_slice(&self.region(index)?[offset as usize..][..data.len()]);
        Ok(())
    }
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match (index, offset, <[u8; 8]>::try_from(data)) {
            (0, REG_DMA, Ok(value)) => {
                let iova = u64::from_le_bytes(value);
                let result =
                    self.mem.read(iova, &mut self.bar[0x2000..0x3000]).and_then(|()| self.mem.write(iova, b"done"));
                result.map_err(|_| Errno::FAULT)
            }
            (0, REG_IRQ, Ok(value)) => {
                let vector = u32::try_from(u64::from_le_bytes(value)).map_err(|_| Errno::INVAL)?;
                if self.irqs.trigger(vector) { Ok(()) } else { Err(Errno::NODEV) }
            }
            _ => {
                self.region(index)?[offset as usize..][..data.len()].copy_from_slice(data);
                Ok(())
            }
        }
    }
    fn set_irqs(&mut self, _: u32, action: IrqAction) -> Result<(), Errno> {
        self.irqs.apply(action)
    }
    fn reset(&mut self) {
        self.bar.fill(0);
        self.events.send("reset").unwrap();
    }
    fn dma_unmapping(&mut self, _: u64, _: u64) {
        self.events.send("unmapping").unwrap();
    }
    fn disconnected(&mut self) {
        self.irqs.disable_all();
        self.events.send("disconnected").unwrap();
    }
}

fn device() -> (Ram, Receiver<&'static str>) {
    let (events, seen) = channel();
    let mut config = vec![0; 256];
    config[..4].copy_from_slice(&[0xd8, 0x1d, 0x02, 0x10]);
    let irqs = IrqTable::new(VECTORS as usize);
    (Ram { bar: vec![0; BAR_SIZE], config, irqs, mem: GuestMemory::new(), events }, seen)
}

/// Serves clients one after another, `clients` of them; returns why each left.
fn serve(listener: Listener, mut dev: Ram, clients: usize) -> Vec<ConnError> {
    let mem = dev.mem.clone();
    let mut reasons = Vec::new();
    while reasons.len() < clients {
        let mut poll = [PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN)];
        rustix::event::poll(&mut poll, None).unwrap();
        let Some(mut connection) = listener.accept().unwrap() else { continue };
        reasons.push(loop {
            match connection.process(&mut dev, &mem, 64) {
                Ok(Progress { more: true, .. }) => {}
                Ok(_) => {
                    let events = connection.poll_events();
                    rustix::event::poll(&mut [PollFd::new(&connection, events)], None).unwrap();
                }
                Err(reason) => break reason,
            }
        });
    }
    reasons
}

fn memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

/// The numbers that lie in eventfds; `None`: nothing.
fn signalled(fds: &[OwnedFd]) -> Vec<Option<u64>> {
    let one = |fd: &OwnedFd| {
        let mut poll = [PollFd::new(fd, PollFlags::IN)];
        if rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0 {
            return None;
        }
        let mut value = [0; 8];
        rustix::io::read(fd, &mut value).unwrap();
        Some(u64::from_ne_bytes(value))
    };
    fds.iter().map(one).collect()
}

#[test]
fn cloud_hypervisors_client_drives_our_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    let (dev, events) = device();
    let server = std::thread::spawn(move || serve(listener, dev, 2));

    for round in 0..2_u8 {
        // Version, device and region information.
        let mut client = vfio_user::Client::new(&path).unwrap();
        // `resettable()` of 0.1.7 is inverted (src/lib.rs: `flags & RESET != RESET`): false says that we can be reset.
        assert!(!client.resettable());
        for index in 0..9 {
            let region = client.region(index).unwrap();
            let (size, flags) = match index {
                0 => (BAR_SIZE as u64, 3),
                7 => (256, 3),
                _ => (0, 0),
            };
            assert_eq!((region.size, region.flags), (size, flags), "region {index}");
            assert!(region.file_offset.is_none() && region.sparse_areas.is_empty());
        }
        assert!(client.region(9).is_none());
        for index in 0..5 {
            let info = client.get_irq_info(index).unwrap();
            assert_eq!((info.index, info.count), (index, if index == 2 { VECTORS } else { 0 }));
            assert_eq!(info.flags, if index == 2 { 1 } else { 0 });
        }

        // BAR and configuration space.
        let mut id = [0; 4];
        client.region_read(7, 0, &mut id).unwrap();
        assert_eq!(id, [0xd8, 0x1d, 0x02, 0x10]);
        client.region_write(7, 4, &[6, 0]).unwrap();
        client.region_read(7, 2, &mut id).unwrap();
        assert_eq!(id, [0x02, 0x10, 6, 0]);
        for len in [1, 2, 4, 8, 4096] {
            let data: Vec<u8> = (0..len).map(|i| i as u8 ^ round).collect();
            client.region_write(0, 0x4000 + len as u64, &data).unwrap();
            let mut back = vec![0xee; len];
            client.region_read(0, 0x4000 + len as u64, &mut back).unwrap();
            assert_eq!(back, data);
        }

        // Guest memory: a different file each round, at the same addresses.
        let ram = memfd(0x20000);
        let page: Vec<u8> = (0..4096_u32).map(|i| (i % 251) as u8 + round).collect();
        rustix::io::pwrite(&ram, &page, 0x8000).unwrap();
        client.dma_map(0, 0x10_0000, 0x20000, ram.as_raw_fd()).unwrap();
        client.region_write(0, REG_DMA, &0x10_8000_u64.to_le_bytes()).unwrap();
        let mut copied = vec![0; 4096];
        client.region_read(0, 0x2000, &mut copied).unwrap();
        assert!(copied == page);
        let mut answer = [0; 4];
        rustix::io::pread(&ram, &mut answer, 0x8000).unwrap();
        assert_eq!(&answer, b"done");

        // Interrupts: by the device, by the client; one vector removed; all disabled.
        let eventfds: Vec<OwnedFd> = (0..3).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        let raw: Vec<_> = eventfds.iter().map(AsRawFd::as_raw_fd).collect();
        let (eventfd_trigger, none_trigger) = (0x24, 0x21);
        client.set_irqs(2, eventfd_trigger, 4, 3, &raw).unwrap();
        client.region_write(0, REG_IRQ, &5_u64.to_le_bytes()).unwrap();
        assert_eq!(signalled(&eventfds), [None, Some(1), None]);
        client.set_irqs(2, none_trigger, 4, 3, &[]).unwrap();
        assert_eq!(signalled(&eventfds), [Some(1); 3]);
        client.set_irqs(2, eventfd_trigger, 5, 1, &[]).unwrap();
        client.set_irqs(2, none_trigger, 4, 3, &[]).unwrap();
        assert_eq!(signalled(&eventfds), [Some(1), None, Some(1)]);
        client.set_irqs(2, none_trigger, 0, 0, &[]).unwrap();
        client.set_irqs(2, none_trigger, 4, 3, &[]).unwrap();
        assert_eq!(signalled(&eventfds), [None; 3]);

        // Unmap, reset.
        client.dma_unmap(0x10_0000, 0x20000).unwrap();
        assert_eq!(events.recv().unwrap(), "unmapping");
        client.reset().unwrap();
        assert_eq!(events.recv().unwrap(), "reset");
        client.region_read(0, 0x2000, &mut copied).unwrap();
        assert!(copied.iter().all(|b| *b == 0));
        client.shutdown().unwrap();
        drop(client);
        assert_eq!(events.recv().unwrap(), "disconnected");
    }
    assert_eq!(server.join().unwrap(), [ConnError::Closed; 2]);
    assert!(!path.exists(), "the socket goes with its listener");
}

/// What the crate's server saw.
#[derive(Default)]
struct Seen {
    calls: Vec<String>,
    files: Vec<File>,
    bar: Vec<u8>,
}

struct Backend(Arc<Mutex<Seen>>);

impl vfio_user::ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        assert_eq!(region, 0);
        data.copy_from_slice(&self.0.lock().unwrap().bar[offset as usize..][..data.len()]);
        Ok(())
    }
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        assert_eq!(region, 0);
        self.0.lock().unwrap().bar[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn dma_map(
        &mut self,
        flags: vfio_user::DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        let mut seen = self.0.lock().unwrap();
        seen.calls.push(format!("map {} {offset:#x} {address:#x} {size:#x} {}", flags.bits(), fd.is_some()));
        seen.files.extend(fd);
        Ok(())
    }
    fn dma_unmap(&mut self, flags: vfio_user::DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.0.lock().unwrap().calls.push(format!("unmap {} {address:#x} {size:#x}", flags.bits()));
        Ok(())
    }
    fn reset(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().calls.push("reset".to_owned());
        Ok(())
    }
    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        self.0.lock().unwrap().calls.push(format!("irqs {index} {flags:#x} {start} {count} {}", fds.len()));
        Ok(())
    }
}

#[test]
fn our_client_drives_cloud_hypervisors_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let irq = |index| vfio_user::IrqInfo { index, flags: 1, count: if index == 2 { 8 } else { 0 } };
    let region = |index| {
        let mut region =
            vfio_user::ServerRegion { region_info: Default::default(), sparse_areas: vec![], mmap_fd: None };
        region.region_info.argsz = 32;
        region.region_info.index = index;
        if index == 0 {
            region.region_info.flags = 3;
            region.region_info.size = 0x1000;
        }
        region
    };
    let server = vfio_user::Server::new(&path, true, (0..5).map(irq).collect(), (0..9).map(region).collect()).unwrap();
    let seen = Arc::new(Mutex::new(Seen { bar: vec![0; 0x1000], ..Seen::default() }));
    let backend = seen.clone();
    let server = std::thread::spawn(move || server.run(&mut Backend(backend)).is_ok());

    let client = Client::connect_unnegotiated(&path).unwrap();
    let capabilities = client.negotiate().unwrap();
    assert_eq!((capabilities.max_msg_fds, capabilities.max_data_xfer_size), (Some(1), Some(1 << 20)));
    assert_eq!(capabilities.write_multiple, None);
    let info = client.device_info().unwrap();
    assert_eq!((info.flags, info.num_regions, info.num_irqs), (3, 9, 5));
    let region = client.region_info(0).unwrap();
    assert_eq!((region.flags, region.size), (3, 0x1000));
    assert_eq!(client.irq_info(2).unwrap().count, 8);
    client.region_write(0, 0x10, &[1, 2, 3, 4]).unwrap();
    client.region_write_posted(0, 0x14, &[5, 6, 7, 8]).unwrap();
    assert_eq!(client.region_read_uint::<8>(0, 0x10).unwrap(), 0x0807_0605_0403_0201);
    let ram = memfd(0x4000);
    client.dma_map(0x10_0000, 0x2000, Prot::READ | Prot::WRITE, ram.as_fd(), 0x1000).unwrap();
    client.dma_map_message(0x20_0000, 0x1000, Prot::READ).unwrap();
    client.dma_unmap(0x10_0000, 0x2000).unwrap();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    client.install_irqs(2, 3, &[event.as_fd()]).unwrap();
    client.remove_irqs(2, 3, 1).unwrap();
    client.disable_irqs(2).unwrap();
    client.reset().unwrap();
    drop(client);
    server.join().unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(
        seen.calls,
        [
            "map 3 0x1000 0x100000 0x2000 true",
            "map 1 0x0 0x200000 0x1000 false",
            "unmap 0 0x100000 0x2000",
            "irqs 2 0x24 3 1 1",
            "irqs 2 0x24 3 1 0",
            "irqs 2 0x21 0 0 0",
            "reset",
        ]
    );
    rustix::io::pwrite(&ram, b"same", 0).unwrap();
    let mut same = [0; 4];
    rustix::io::pread(&seen.files[0], &mut same, 0).unwrap();
    assert_eq!(&same, b"same", "the descriptor that arrived is the one that was sent");
}

#[test]
fn our_client_drives_our_server_as_qemu_does() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listener::bind(dir.path().join("s")).unwrap();
    let path = listener.path().to_owned();
    let (dev, events) = device();
    let server = std::thread::spawn(move || serve(listener, dev, 1));
    let client = Client::connect(&path).unwrap();
    assert_eq!(client.device_info().unwrap(), proto::DeviceInfo { argsz: 16, flags: 3, num_regions: 9, num_irqs: 5 });

    // One map per page, each with its own descriptor of the same memory, addresses downwards; then one unmap for all.
    let ram = memfd(256 * 4096);
    for page in 0..256_u64 {
        let fd = ram.try_clone().unwrap();
        client.dma_map(0xffff_f000 - page * 4096, 4096, Prot::READ | Prot::WRITE, fd.as_fd(), page * 4096).unwrap();
    }
    rustix::io::pwrite(&ram, b"tail", 100 * 4096).unwrap();
    rustix::io::pwrite(&ram, b"head", 101 * 4096 + 4092).unwrap();
    let iova = 0xffff_f000_u64 - 101 * 4096 + 4092;
    client.region_write(0, REG_DMA, &iova.to_le_bytes()).unwrap();
    assert_eq!(client.region_read_uint::<8>(0, 0x2000).unwrap(), u64::from_le_bytes(*b"headtail"));
    client.dma_unmap(0xffff_f000 - 255 * 4096, 256 * 4096).unwrap();
    assert_eq!(events.recv().unwrap(), "unmapping");
    let gone = client.region_write(0, REG_DMA, &iova.to_le_bytes()).unwrap_err();
    assert!(matches!(gone, ClientError::Refused { command: proto::Command::REGION_WRITE, errno: Errno::FAULT }));

    // 40 vectors need three messages; doorbells come one by one or many in a message.
    let eventfds: Vec<OwnedFd> =
        (0..40).map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()).collect();
    let borrowed: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
    client.install_irqs(2, 0, &borrowed).unwrap();
    let values: Vec<[u8; 8]> = (0..40_u64).map(u64::to_le_bytes).collect();
    let writes: Vec<(u32, u64, &[u8])> = values.iter().map(|v| (0, REG_IRQ, v.as_slice())).collect();
    client.region_write_multi(&writes, true).unwrap();
    client.region_write_posted(0, REG_IRQ, &values[7]).unwrap();
    client.region_write_multi(&writes[..7], false).unwrap();
    let expected: Vec<Option<u64>> = (0..40).map(|v| Some(if v < 8 { 2 } else { 1 })).collect();
    assert_eq!(signalled(&eventfds), expected);
    client.disable_irqs(2).unwrap();
    assert_eq!(client.region_write(0, REG_IRQ, &values[0]).unwrap_err().errno(), Some(Errno::NODEV));
    client.reset().unwrap();
    assert_eq!(events.recv().unwrap(), "reset");
    drop(client);
    assert_eq!(server.join().unwrap(), [ConnError::Closed]);
}

/// Lines that this thread logs at WARN and above.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Capture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line.push_str(&format!(" {}={value:?}", field.name()));
        });
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn case_06_refused_posted_writes_are_logged_at_a_limited_rate() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut dev, _events) = device();
    let mem = dev.mem.clone();
    let mut connection = Connection::new(theirs.into());
    let client = Client::new(ours.into());
    client.send_raw(&message(proto::Command::VERSION, 0, b"\0\0\x01\0{}\0"), &[]).unwrap();
    for n in 0..100 {
        client.region_write_posted(0, BAR_SIZE as u64 + n, &[1]).unwrap();
    }
    client.region_write_posted(0, 5, &[0x55]).unwrap();
    let capture = Capture::default();
    let handled = tracing::subscriber::with_default(capture.clone(), || {
        let mut handled = 0;
        while handled < 102 {
            handled += connection.process(&mut dev, &mem, 64).unwrap().messages;
        }
        handled
    });
    assert_eq!((handled, dev.bar[5]), (102, 0x55), "the next good request works");
    let lines = capture.0.lock().unwrap().clone();
    // The other tests here use the same limit a little, and one of its intervals may end in the middle.
    assert!((5..=20).contains(&lines.len()), "{lines:?}");
    for line in &lines {
        assert!(line.contains("message=vfio-user command refused command=REGION_WRITE id="), "{line}");
        assert!(line.contains(" errno=Invalid argument (os error 22) posted=true"), "{line}");
    }
}
