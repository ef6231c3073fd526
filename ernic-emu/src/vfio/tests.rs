#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use super::client::{Client, ClientError, message};
use super::proto::{Command, DmaAccess, DmaMap, DmaUnmap, Header, IrqSet, IrqSetFlags, RegionAccess, WriteOne};
use super::*;
use crate::mem::{DmaError, GuestMemory, MessageDma, Prot};

const RW: Prot = Prot::READ.union(Prot::WRITE);
const LONG: Duration = Duration::from_secs(20);
const BAR_SIZE: usize = 0x10000;
/// A write of 8 bytes here makes the device double the 8 bytes at that guest address, in the middle of the message.
const DOORBELL: u64 = 0x800;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Read(u32, u64, usize),
    Write(u32, u64, Vec<u8>),
    Irq(u32, String),
    Reset,
    /// The range, and how many maps there were when the device was told.
    Unmapping(u64, u64, usize),
    Disconnected,
    Dma(u64, Result<(), DmaError>),
}

/// A device with a RAM-backed BAR0, a read-only BAR2 of 2 MiB, a configuration space, and 20 MSI-X vectors.
struct Device {
    mem: GuestMemory,
    bar: Vec<u8>,
    config: [u8; 256],
    irqs: IrqTable,
    events: Vec<Event>,
}

impl VfioDevice for Device {
    fn region_info(&self, index: u32) -> RegionInfo {
        match index {
            0 => RegionInfo { size: BAR_SIZE as u64, read: true, write: true },
            2 => RegionInfo { size: 2 << 20, read: true, write: false },
            7 => RegionInfo { size: 256, read: true, write: true },
            8 => RegionInfo { size: 16, read: false, write: true },
            _ => RegionInfo::default(),
        }
    }
    fn irq_count(&self, index: u32) -> u32 {
        if index == 2 { 20 } else { 0 }
    }
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.events.push(Event::Read(index, offset, data.len()));
        let offset = offset as usize;
        match index {
            0 => data.copy_from_slice(&self.bar[offset..][..data.len()]),
            7 => data.copy_from_slice(&self.config[offset..][..data.len()]),
            2 => data.iter_mut().enumerate().for_each(|(i, b)| *b = ((offset + i) / 4096) as u8),
            _ => panic!("region {index}"),
        }
        Ok(())
    }
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.events.push(Event::Write(index, offset, data.to_vec()));
        match (index, offset) {
            (0, DOORBELL) if data.len() == 8 => {
                let iova = u64::from_ne_bytes(data.try_into().unwrap());
                let result =
                    self.mem.read_plain::<u64>(iova).and_then(|v| self.mem.write_plain(iova, &v.wrapping_mul(2)));
                self.events.push(Event::Dma(iova, result));
            }
            (0, _) => self.bar[offset as usize..][..data.len()].copy_from_slice(data),
            (7, 0xff) => return Err(Errno::PERM),
            (7, _) => self.config[offset as usize..][..data.len()].copy_from_slice(data),
            (8, _) => {}
            _ => panic!("region {index}"),
        }
        Ok(())
    }
    fn set_irqs(&mut self, index: u32, action: IrqAction) -> Result<(), Errno> {
        let what = match &action {
            IrqAction::EventFds { start, fds } => {
                let fds: String = fds.iter().map(|f| if f.is_some() { '+' } else { '-' }).collect();
                format!("{start}{fds}")
            }
            IrqAction::DisableAll => "off".to_owned(),
            IrqAction::Trigger { start, count } => format!("{start}*{count}"),
        };
        self.events.push(Event::Irq(index, what));
        self.irqs.apply(action)
    }
    fn reset(&mut self) {
        self.events.push(Event::Reset);
    }
    fn dma_unmapping(&mut self, iova: u64, size: u64) {
        self.events.push(Event::Unmapping(iova, size, self.mem.map_count()));
    }
    fn disconnected(&mut self) {
        self.events.push(Event::Disconnected);
        self.irqs.disable_all();
    }
}

impl Device {
    fn new() -> Self {
        Self {
            mem: GuestMemory::new(),
            bar: vec![0; BAR_SIZE],
            config: [0; 256],
            irqs: IrqTable::new(20),
            events: Vec::new(),
        }
    }
    fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn memfd(len: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}

/// The server's side and a raw socket, in one thread: what is sent is handled by [`Raw::run`].
struct Raw {
    sock: UnixStream,
    connection: Connection,
    dev: Device,
    mem: GuestMemory,
    over: Option<ConnError>,
    next_id: u16,
}

impl Raw {
    fn unnegotiated() -> Self {
        let (ours, theirs) = pair();
        let sock = UnixStream::from(ours);
        sock.set_read_timeout(Some(LONG)).unwrap();
        let dev = Device::new();
        let mem = dev.mem.clone();
        Self { sock, connection: Connection::new(theirs), dev, mem, over: None, next_id: 0x100 }
    }

    fn new() -> Self {
        let mut raw = Self::unnegotiated();
        raw.send(Command::VERSION, 0, VERSION_BODY, &[]);
        let (header, _) = raw.reply();
        assert!(!header.is_error());
        raw
    }

    /// Sends a command; its id.
    fn send(&mut self, command: Command, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> u16 {
        self.next_id += 1;
        let mut bytes = message(command, flags, body);
        bytes[..2].copy_from_slice(&self.next_id.to_ne_bytes());
        self.send_bytes(&bytes, fds);
        self.next_id
    }

    fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(&self.sock, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Lets the server handle everything that was sent; how many messages that were.
    fn run(&mut self) -> usize {
        let mut messages = 0;
        while self.over.is_none() {
            match self.connection.process(&mut self.dev, &self.mem, 64) {
                // Bytes of an incomplete message may have come, and more after them.
                Ok(Progress { messages: 0, more: false }) if !readable(&self.connection) => break,
                Ok(progress) => messages += progress.messages,
                Err(e) => self.over = Some(e),
            }
        }
        messages
    }

    /// The next reply, which is there.
    fn reply(&mut self) -> (Header, Vec<u8>) {
        self.run();
        let mut header = [0; 16];
        self.sock.read_exact(&mut header).unwrap();
        let header = Header::read_from_bytes(&header).unwrap();
        assert!(header.is_reply());
        let mut body = vec![0; header.size as usize - 16];
        self.sock.read_exact(&mut body).unwrap();
        (header, body)
    }

    /// Everything that the server has sent.
    fn everything(&mut self) -> Vec<u8> {
        self.run();
        self.sock.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        let mut chunk = [0; 65536];
        while let Ok(n @ 1..) = self.sock.read(&mut chunk) {
            all.extend_from_slice(&chunk[..n]);
            self.run();
        }
        self.sock.set_nonblocking(false).unwrap();
        all
    }

    /// Sends a command; its error (0: none) and the reply's body.
    fn ask_with(&mut self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> (u32, Vec<u8>) {
        let id = self.send(command, 0, body, fds);
        let (header, body) = self.reply();
        assert_eq!((header.id, header.command), (id, command));
        assert_eq!(header.is_error(), header.error != 0);
        if header.is_error() {
            assert_eq!(body, b"", "an error reply is a header only");
        }
        (header.error, body)
    }

    fn ask(&mut self, command: Command, body: &[u8]) -> (u32, Vec<u8>) {
        self.ask_with(command, body, &[])
    }

    /// The stream is in step: the next command gets its own, right answer.
    fn in_step(&mut self) {
        let body = [16_u32, 0, 0, 0].as_bytes().to_vec();
        assert_eq!(self.ask(Command::DEVICE_GET_INFO, &body), (0, [16_u32, 3, 9, 5].as_bytes().to_vec()));
    }
}

const VERSION_BODY: &[u8] = b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":16,\"write_multiple\":true}}\0";
const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;
const EEXIST: u32 = 17;

fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    RegionAccess { offset, region, count }.as_bytes().to_vec()
}

fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    [access(region, offset, data.len() as u32).as_slice(), data].concat()
}

fn map_body(iova: u64, len: u64, flags: u32, offset: u64) -> Vec<u8> {
    DmaMap { argsz: 32, flags, offset, address: iova, size: len }.as_bytes().to_vec()
}

fn unmap_body(iova: u64, len: u64, flags: u32) -> Vec<u8> {
    DmaUnmap { argsz: 24, flags, address: iova, size: len }.as_bytes().to_vec()
}

fn irq_body(flags: IrqSetFlags, index: u32, start: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let set = IrqSet { argsz: 20 + data.len() as u32, flags: flags.bits(), index, start, count };
    [set.as_bytes(), data].concat()
}

fn multi_body(writes: &[(u32, u64, u32, u64)]) -> Vec<u8> {
    let mut body = (writes.len() as u64).as_bytes().to_vec();
    for (region, offset, count, data) in writes {
        let one = WriteOne { offset: *offset, region: *region, count: *count, data: data.to_ne_bytes() };
        body.extend_from_slice(one.as_bytes());
    }
    body
}

fn readable(fd: &impl AsFd) -> bool {
    let mut poll = [PollFd::new(fd, PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// The number that lies in an eventfd; `None`: nothing.
fn signalled(fd: &OwnedFd) -> Option<u64> {
    if !readable(fd) {
        return None;
    }
    let mut buf = [0; 8];
    rustix::io::read(fd, &mut buf).unwrap();
    Some(u64::from_ne_bytes(buf))
}

/// Lines that this thread logs at WARN and above while `f` runs.
fn logged<T>(f: impl FnOnce() -> T) -> (T, Vec<String>) {
    use std::fmt::Write as _;
    use tracing::field::{Field, Visit};
    use tracing::span;
    #[derive(Clone, Default)]
    struct Capture(Arc<Mutex<Vec<String>>>);
    struct Line(String);
    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                write!(self.0, " {value:?}").unwrap();
            } else {
                write!(self.0, " {}={value:?}", field.name()).unwrap();
            }
        }
    }
    impl tracing::Subscriber for Capture {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }
    let capture = Capture::default();
    let value = tracing::subscriber::with_default(capture.clone(), f);
    let lines = capture.0.lock().unwrap().clone();
    (value, lines)
}

// ---------------------------------------------------------------------------------------------------------------------
// Version

#[test]
fn qemus_version_is_answered_with_what_is_offered() {
    let mut raw = Raw::unnegotiated();
    let qemu = br#"{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,"max_data_xfer_size":1048576,"migration":{"max_bitmap_size":268435456,"pgsize":4096},"write_multiple":true}}"#;
    let body = [b"\0\0\x01\0".as_slice(), qemu, b"\0"].concat();
    let (error, reply) = raw.ask(Command::VERSION, &body);
    assert_eq!(error, 0);
    let expected = br#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096,"write_multiple":true}}"#;
    assert_eq!(reply, [b"\0\0\x01\0".as_slice(), expected, b"\0"].concat());
    assert!(reply.len() <= body.len(), "QEMU's buffer for the reply is its own request");
    raw.in_step();
}

#[test]
fn capabilities_that_the_client_does_not_know_are_not_in_the_reply() {
    let expected: &[u8] = br#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}"#;
    for json in
        ["", "{}\0", "{\"capabilities\":{}}\0", "{\"capabilities\":{\"write_multiple\":false,\"x\":[1]},\"y\":0}\0"]
    {
        let mut raw = Raw::unnegotiated();
        let (error, reply) = raw.ask(Command::VERSION, &[b"\0\0\x07\0", json.as_bytes()].concat());
        assert_eq!((error, reply), (0, [b"\0\0\x01\0", expected, b"\0"].concat()), "{json}");
        raw.in_step();
    }
    let mut raw = Raw::unnegotiated();
    let (_, reply) = raw.ask(Command::VERSION, b"\0\0\0\0");
    assert_eq!(reply[..4], [0; 4], "minor 0 stays minor 0");
}

#[test]
fn a_version_that_does_not_work_ends_the_connection_with_a_reason() {
    let long = [b"\0\0\x01\0\"".as_slice(), &[b'x'; 5000], b"\"\0"].concat();
    let deep = [b"\0\0\x01\0{\"capabilities\":".as_slice(), &[b'['; 3000], b"\0"].concat();
    let cases: [(&[u8], &str); 9] = [
        (b"\x01\0\0\0", "the major version is not 0"),
        (b"\0\0\x01", "its VERSION has no version"),
        (b"\0\0\x01\0{}", "the capabilities do not end with a NUL"),
        (b"\0\0\x01\0{\0", "the capabilities are not the JSON that is expected"),
        (b"\0\0\x01\0\0", "the capabilities are not the JSON that is expected"),
        (b"\0\0\x01\0\xff\xfe{}\0", "the capabilities are not the JSON that is expected"),
        (b"\0\0\x01\0{\"capabilities\":{\"max_data_xfer_size\":4}}\0", "max_data_xfer_size is below 8"),
        (&long, "the capabilities are longer than 4096 bytes"),
        (&deep, "the capabilities are not the JSON that is expected"),
    ];
    for (body, reason) in cases {
        let mut raw = Raw::unnegotiated();
        assert_eq!(raw.ask(Command::VERSION, body), (EINVAL, Vec::new()), "{reason}");
        assert_eq!(raw.over, Some(ConnError::Version(reason)));
        assert_eq!(raw.sock.read(&mut [0]).unwrap(), 0, "closed");
        assert_eq!(raw.dev.take_events(), [Event::Disconnected]);
    }
}

#[test]
fn nothing_comes_before_the_version() {
    for (command, flags) in [(Command::DEVICE_GET_INFO, 0), (Command::VERSION, proto::NO_REPLY), (Command(99), 0)] {
        let mut raw = Raw::unnegotiated();
        let id = raw.send(command, flags, b"\0\0\x01\0", &[]);
        let (header, _) = raw.reply();
        assert_eq!((header.id, header.error), (id, EINVAL));
        assert!(matches!(raw.over, Some(ConnError::Version(_))));
    }
    let mut raw = Raw::new();
    assert_eq!(raw.ask(Command::VERSION, VERSION_BODY).0, EINVAL, "and a second one is refused");
    raw.in_step();
}

// ---------------------------------------------------------------------------------------------------------------------
// Information

#[test]
fn infos_say_what_the_device_is() {
    let mut raw = Raw::new();
    raw.in_step();
    let region = |raw: &mut Raw, argsz: u32, index: u32| {
        raw.ask(Command::DEVICE_GET_REGION_INFO, [argsz, 0, index, 0, 0, 0, 0, 0].as_bytes())
    };
    let sizes = [BAR_SIZE as u32, 0, 2 << 20, 0, 0, 0, 0, 256, 16];
    let flags = [3, 0, 1, 0, 0, 0, 0, 3, 2];
    for index in 0..9 {
        let at = index as usize;
        let expected = [32, flags[at], index, 0, sizes[at], 0, 0, 0].as_bytes().to_vec();
        assert_eq!(region(&mut raw, 32, index), (0, expected), "never mappable, no capabilities");
    }
    assert_eq!(region(&mut raw, 4096, 0).0, 0);
    assert_eq!(region(&mut raw, 31, 0).0, EINVAL);
    assert_eq!(region(&mut raw, 32, 9).0, EINVAL);
    assert_eq!(region(&mut raw, 32, u32::MAX).0, EINVAL);
    for index in 0..5 {
        let (flags, count) = if index == 2 { (1, 20) } else { (0, 0) };
        let reply = raw.ask(Command::DEVICE_GET_IRQ_INFO, [16_u32, 0, index, 0].as_bytes());
        assert_eq!(reply, (0, [16, flags, index, count].as_bytes().to_vec()));
    }
    assert_eq!(raw.ask(Command::DEVICE_GET_IRQ_INFO, [16_u32, 0, 5, 0].as_bytes()).0, EINVAL);
    assert_eq!(raw.ask(Command::DEVICE_GET_IRQ_INFO, [15_u32, 0, 2, 0].as_bytes()).0, EINVAL);
    assert_eq!(raw.ask(Command::DEVICE_GET_INFO, [15_u32, 0, 0, 0].as_bytes()).0, EINVAL);
    assert_eq!(raw.dev.take_events(), []);
}

#[test]
fn bodies_of_another_length_are_refused() {
    let mut raw = Raw::new();
    let right: [(Command, Vec<u8>); 9] = [
        (Command::DEVICE_GET_INFO, [16_u32, 0, 0, 0].as_bytes().to_vec()),
        (Command::DEVICE_GET_REGION_INFO, [32_u32, 0, 0, 0, 0, 0, 0, 0].as_bytes().to_vec()),
        (Command::DEVICE_GET_IRQ_INFO, [16_u32, 0, 2, 0].as_bytes().to_vec()),
        (Command::DMA_MAP, map_body(0x1000, 0x1000, 3, 0)),
        (Command::DMA_UNMAP, unmap_body(0x1000, 0x1000, 0)),
        (Command::DEVICE_SET_IRQS, irq_body(IrqSetFlags::DATA_NONE | IrqSetFlags::ACTION_TRIGGER, 2, 0, 0, &[])),
        (Command::REGION_READ, access(0, 0, 4)),
        (Command::REGION_WRITE, write_body(0, 0, &[1, 2, 3, 4])),
        (Command::REGION_WRITE_MULTI, multi_body(&[(0, 0, 4, 5)])),
    ];
    for (command, body) in right {
        for len in 0..body.len() {
            assert_eq!(raw.ask(command, &body[..len]).0, EINVAL, "{command} of {len}");
        }
        assert_eq!(raw.ask(command, &[body.as_slice(), &[0]].concat()).0, EINVAL, "{command}, one more");
        assert_eq!(raw.ask(command, &body).0, 0, "{command}");
    }
    assert_eq!(raw.ask(Command::DEVICE_RESET, &[0]).0, EINVAL);
    assert_eq!(raw.ask(Command::DEVICE_RESET, &[]).0, 0);
    raw.in_step();
}

// ---------------------------------------------------------------------------------------------------------------------
// Regions

#[test]
fn regions_are_read_and_written_within_their_bounds() {
    let mut raw = Raw::new();
    assert_eq!(raw.ask(Command::REGION_WRITE, &write_body(0, 0x10, b"\x01\x02\x03\x04")), (0, access(0, 0x10, 4)));
    let expected = [access(0, 0xe, 8).as_slice(), b"\0\0\x01\x02\x03\x04\0\0"].concat();
    assert_eq!(raw.ask(Command::REGION_READ, &access(0, 0xe, 8)), (0, expected));
    assert_eq!(
        raw.dev.take_events(),
        [Event::Write(0, 0x10, vec![1, 2, 3, 4]), Event::Read(0, 0xe, 8)],
        "one call per message, unsplit"
    );
    let end = BAR_SIZE as u64;
    assert_eq!(raw.ask(Command::REGION_READ, &access(0, end - 4, 4)).0, 0);
    assert_eq!(raw.ask(Command::REGION_READ, &access(0, end, 0)), (0, access(0, end, 0)));
    raw.dev.take_events();
    for (region, offset, count) in [
        (0, end - 4, 5),
        (0, end, 1),
        (0, u64::MAX, 1),
        (0, u64::MAX - 3, 8),
        (1, 0, 1),
        (8, 0, 1), // not readable
        (9, 0, 1),
        (u32::MAX, 0, 1),
        (2, 0, (1 << 20) + 1),
        (2, 0, u32::MAX),
        (0, 0, 0x7fff_ffff),
    ] {
        assert_eq!(raw.ask(Command::REGION_READ, &access(region, offset, count)).0, EINVAL);
    }
    for (region, offset) in [(0, end), (0, u64::MAX), (1, 0), (2, 0), (9, 0)] {
        assert_eq!(raw.ask(Command::REGION_WRITE, &write_body(region, offset, &[1])).0, EINVAL);
    }
    assert_eq!(
        raw.ask(Command::REGION_WRITE, &[access(0, 0, 9), vec![0; 8]].concat()).0,
        EINVAL,
        "count is not the data"
    );
    assert_eq!(raw.ask(Command::REGION_WRITE, &[access(0, 0, u32::MAX), vec![0; 8]].concat()).0, EINVAL);
    assert_eq!(raw.dev.take_events(), [], "the device sees none of it");
    assert_eq!(raw.ask(Command::REGION_WRITE, &write_body(7, 0xff, &[1])).0, 1, "the device's own error");
    raw.in_step();
}

#[test]
fn the_longest_messages_work_both_ways() {
    let mut raw = Raw::new();
    let id = raw.send(Command::REGION_READ, 0, &access(2, 4096, 1 << 20), &[]);
    let all = raw.everything();
    let (header, rest) = Header::read_from_prefix(&all).unwrap();
    assert_eq!((header.id, header.size as usize, all.len()), (id, 32 + (1 << 20), 32 + (1 << 20)));
    let want: Vec<u8> = (0..1 << 20).map(|i: usize| ((4096 + i) / 4096) as u8).collect();
    assert!(rest[16..] == want);
    // A write of 1 MiB does not fit into the socket at once; the device refuses nothing but the range.
    let body = write_body(0, 0, &vec![7; 1 << 20]);
    let bytes = message(Command::REGION_WRITE, 0, &body);
    assert_eq!(bytes.len(), proto::MAX_MESSAGE);
    raw.sock.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while sent < bytes.len() {
        match raw.sock.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
        }
        raw.run();
    }
    raw.sock.set_nonblocking(false).unwrap();
    let (header, _) = raw.reply();
    assert_eq!((header.command, header.error), (Command::REGION_WRITE, EINVAL));
    raw.in_step();
}

#[test]
fn case_06_posted_and_unknown_commands_keep_the_stream_in_step() {
    let mut raw = Raw::new();
    // BAR write with the no-reply flag: no reply. Configuration write without it: a reply.
    raw.send(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0x20, &[1; 8]), &[]);
    assert_eq!(raw.everything(), b"");
    assert_eq!(raw.ask(Command::REGION_WRITE, &write_body(7, 4, &[6, 0])), (0, access(7, 4, 2)));
    // Posted writes are done before a later read is answered.
    for n in 0..100_u64 {
        raw.send(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0x28, &n.to_ne_bytes()), &[]);
    }
    let (_, body) = raw.ask(Command::REGION_READ, &access(0, 0x28, 8));
    assert_eq!(body[16..], 99_u64.to_ne_bytes());
    raw.dev.take_events();
    // Errors of posted writes are not answered either.
    for _ in 0..50 {
        raw.send(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, u64::MAX, &[1]), &[]);
    }
    assert_eq!(raw.everything(), b"");
    raw.send(Command::DEVICE_RESET, proto::NO_REPLY, &[], &[]);
    assert_eq!(raw.everything(), b"");
    assert_eq!(raw.dev.take_events(), [Event::Reset]);
    // Unknown commands, with bodies of all kinds.
    let known = [1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 15];
    for command in (0..40).chain([0xff, 0x7fff, 0xffff]).filter(|c| !known.contains(c)) {
        for len in [0, 1, 15, 16, 17, 4096] {
            // The body looks like a header of another message.
            let body: Vec<u8> = message(Command::DEVICE_RESET, 0, &[]).into_iter().cycle().take(len).collect();
            assert_eq!(raw.ask(Command(command), &body), (EOPNOTSUPP, Vec::new()), "command {command}");
            raw.send(Command(command), proto::NO_REPLY, &body, &[]);
        }
    }
    raw.in_step();
    assert_eq!(raw.dev.take_events(), []);
}

#[test]
fn messages_of_no_type_and_replies_to_nothing_do_not_disturb() {
    let mut raw = Raw::new();
    for kind in 2..16 {
        let id = raw.send(Command::DEVICE_RESET, kind, &[], &[]);
        let (header, body) = raw.reply();
        assert_eq!((header.id, header.error, body.len()), (id, EINVAL, 0));
    }
    raw.send(Command::DMA_READ, proto::TYPE_REPLY, &[0; 24], &[]);
    raw.send(Command::VERSION, proto::TYPE_REPLY | proto::ERROR, &[], &[]);
    raw.in_step();
    assert_eq!(raw.dev.take_events(), []);
}

#[test]
fn one_message_carries_many_writes() {
    let mut raw = Raw::new();
    let body = multi_body(&[(0, 8, 8, 0x0102_0304_0506_0708), (0, 0, 4, 0xffff_ffff_1111_2222), (7, 0x40, 1, 0xee)]);
    assert_eq!(raw.ask(Command::REGION_WRITE_MULTI, &body), (0, 3_u64.as_bytes().to_vec()));
    assert_eq!(
        raw.dev.take_events(),
        [
            Event::Write(0, 8, 0x0102_0304_0506_0708_u64.to_ne_bytes().to_vec()),
            Event::Write(0, 0, 0x1111_2222_u32.to_ne_bytes().to_vec()),
            Event::Write(7, 0x40, vec![0xee]),
        ]
    );
    raw.send(Command::REGION_WRITE_MULTI, proto::NO_REPLY, &multi_body(&[(0, 1, 2, 3); 200]), &[]);
    assert_eq!(raw.everything(), b"");
    assert_eq!(raw.dev.take_events().len(), 200);
    // A bad one among good ones: the good ones are done, the message fails.
    let body = multi_body(&[(0, 0, 8, 1), (0, 0, 9, 2), (3, 0, 1, 3), (0, u64::MAX, 8, 4), (0, 16, 8, 5)]);
    assert_eq!(raw.ask(Command::REGION_WRITE_MULTI, &body).0, EINVAL);
    let done: Vec<u64> =
        raw.dev.take_events().into_iter().map(|e| if let Event::Write(_, at, _) = e { at } else { 99 }).collect();
    assert_eq!(done, [0, 16]);
    // Counts that are not those of the message.
    for count in [0_u64, 1, 3, 1 << 32, u64::MAX, u64::MAX / 24 + 1] {
        let mut body = multi_body(&[(0, 0, 8, 1); 2]);
        body[..8].copy_from_slice(count.as_bytes());
        assert_eq!(raw.ask(Command::REGION_WRITE_MULTI, &body).0, EINVAL);
    }
    assert_eq!(raw.ask(Command::REGION_WRITE_MULTI, 0_u64.as_bytes()).0, 0);
    assert_eq!(raw.dev.take_events(), []);
    raw.in_step();
}

// ---------------------------------------------------------------------------------------------------------------------
// Interrupts

#[test]
fn case_05_interrupts_come_go_and_come_again() {
    let mut raw = Raw::new();
    let eventfd_trigger = IrqSetFlags::DATA_EVENTFD | IrqSetFlags::ACTION_TRIGGER;
    let none_trigger = IrqSetFlags::DATA_NONE | IrqSetFlags::ACTION_TRIGGER;
    let bool_trigger = IrqSetFlags::DATA_BOOL | IrqSetFlags::ACTION_TRIGGER;
    let fds: Vec<OwnedFd> =
        (0..16).map(|_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()).collect();
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let install = |raw: &mut Raw, start: u32, fds: &[BorrowedFd<'_>]| {
        raw.ask_with(Command::DEVICE_SET_IRQS, &irq_body(eventfd_trigger, 2, start, fds.len() as u32, &[]), fds).0
    };
    let state = |raw: &Raw| {
        fds.iter()
            .enumerate()
            .map(|(v, fd)| {
                let sent = raw.dev.irqs.trigger(v as u32);
                assert_eq!(sent, signalled(fd).is_some(), "vector {v}");
                if sent { '+' } else { '-' }
            })
            .collect::<String>()
    };

    // As QEMU does at MSI-X enable: remove vector 0, disable all, install a set.
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(eventfd_trigger, 2, 0, 1, &[])).0, 0);
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(none_trigger, 2, 0, 0, &[])).0, 0);
    assert_eq!(state(&raw), "----------------");
    assert_eq!(install(&mut raw, 0, &borrowed), 0);
    assert_eq!(state(&raw), "++++++++++++++++");
    // One vector disabled.
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(eventfd_trigger, 2, 3, 1, &[])).0, 0);
    assert_eq!(state(&raw), "+++-++++++++++++");
    // A range without eventfds.
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(eventfd_trigger, 2, 8, 4, &[])).0, 0);
    assert_eq!(state(&raw), "+++-++++----++++");
    assert_eq!(install(&mut raw, 3, &borrowed[3..4]), 0);
    assert_eq!(state(&raw), "++++++++----++++");
    // All disabled, twice; then again.
    for _ in 0..2 {
        assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(none_trigger, 2, 0, 0, &[])).0, 0);
        assert_eq!(state(&raw), "----------------");
    }
    assert_eq!(install(&mut raw, 0, &borrowed[..2]), 0);
    assert_eq!(state(&raw), "++--------------");
    raw.dev.take_events();

    // The client triggers.
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(none_trigger, 2, 1, 2, &[])).0, 0);
    assert_eq!((signalled(&fds[0]), signalled(&fds[1])), (None, Some(1)));
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(bool_trigger, 2, 0, 3, &[1, 0, 2])).0, 0);
    assert_eq!((signalled(&fds[0]), signalled(&fds[1])), (Some(1), None));
    let irq = |s: &str| Event::Irq(2, s.to_owned());
    assert_eq!(raw.dev.take_events(), [irq("1*2"), irq("0*1"), irq("2*1")]);

    // What is wrong is refused and changes nothing.
    let f = IrqSetFlags::from_bits_retain;
    let mut bad = vec![
        irq_body(none_trigger, 2, 0, 21, &[]),
        irq_body(none_trigger, 2, 20, 1, &[]),
        irq_body(none_trigger, 2, u32::MAX, 1, &[]),
        irq_body(none_trigger, 2, 1, u32::MAX, &[]),
        irq_body(none_trigger, 2, 1, 0, &[]),
        irq_body(none_trigger, 2, 0, 1, &[0]),
        irq_body(none_trigger, 1, 0, 1, &[]),
        irq_body(none_trigger, 5, 0, 0, &[]),
        irq_body(none_trigger, u32::MAX, 0, 0, &[]),
        irq_body(bool_trigger, 2, 0, 3, &[1, 1]),
        irq_body(bool_trigger, 2, 0, 3, &[1, 1, 1, 1]),
        irq_body(bool_trigger, 2, 0, 0, &[]),
        irq_body(eventfd_trigger, 2, 0, 0, &[]),
        irq_body(eventfd_trigger, 2, 19, 2, &[]),
        irq_body(f(0), 2, 0, 1, &[]),
        irq_body(f(0x7), 2, 0, 1, &[]),
        irq_body(f(0x20), 2, 0, 1, &[]),
        irq_body(f(0x40) | none_trigger, 2, 0, 1, &[]),
        irq_body(f(u32::MAX), 2, 0, 1, &[]),
    ];
    for data in [IrqSetFlags::DATA_NONE, IrqSetFlags::DATA_BOOL, IrqSetFlags::DATA_EVENTFD] {
        for action in [IrqSetFlags::ACTION_MASK, IrqSetFlags::ACTION_UNMASK] {
            bad.push(irq_body(data | action, 2, 0, 1, if data == IrqSetFlags::DATA_BOOL { &[1] } else { &[] }));
            bad.push(irq_body(data | action | IrqSetFlags::ACTION_TRIGGER, 2, 0, 1, &[]));
        }
    }
    for body in &bad {
        assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, body).0, EINVAL, "{body:?}");
    }
    // Not as many eventfds as vectors, and things that are no eventfds.
    let set = |start, count| irq_body(eventfd_trigger, 2, start, count, &[]);
    assert_eq!(raw.ask_with(Command::DEVICE_SET_IRQS, &set(0, 3), &borrowed[..2]).0, EINVAL);
    assert_eq!(raw.ask_with(Command::DEVICE_SET_IRQS, &set(0, 1), &borrowed[..2]).0, EINVAL);
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(raw.ask_with(Command::DEVICE_SET_IRQS, &set(0, 1), &[writer.as_fd()]).0, EINVAL);
    let file = memfd(4096);
    assert_eq!(raw.ask_with(Command::DEVICE_SET_IRQS, &set(0, 1), &[file.as_fd()]).0, EINVAL);
    let (socket, _other) = pair();
    assert_eq!(raw.ask_with(Command::DEVICE_SET_IRQS, &set(0, 1), &[socket.as_fd()]).0, EINVAL);
    assert_eq!(raw.dev.take_events(), []);
    assert_eq!(state(&raw), "++--------------");
    // DisableAll is fine for an index without interrupts.
    assert_eq!(raw.ask(Command::DEVICE_SET_IRQS, &irq_body(none_trigger, 0, 0, 0, &[])).0, 0);
    raw.in_step();
}

// ---------------------------------------------------------------------------------------------------------------------
// Guest memory

#[test]
fn case_04_maps_and_unmaps() {
    let mut raw = Raw::new();
    let fd = memfd(0x10000);
    let map = |raw: &mut Raw, body: &[u8]| raw.ask_with(Command::DMA_MAP, body, &[fd.as_fd()]);
    assert_eq!(map(&mut raw, &map_body(0x1000, 0x4000, 3, 0x2000)), (0, Vec::new()));
    raw.mem.write(0x1004, b"dma").unwrap();
    let mut seen = [0; 3];
    rustix::io::pread(&fd, &mut seen, 0x2004).unwrap();
    assert_eq!(&seen, b"dma");
    for (iova, len) in [(0x1000, 0x4000), (0, 0x2000), (0x4000, 0x1000), (0x2000, 0x1000)] {
        assert_eq!(map(&mut raw, &map_body(iova, len, 3, 0)).0, EEXIST);
    }
    let big = 0x10000;
    for body in [
        map_body(0x8000, 0, 3, 0),
        map_body(0x8001, 0x1000, 3, 0),
        map_body(0x8000, 0x1001, 3, 0),
        map_body(0x8000, 0x1000, 3, 1),
        map_body(0x8000, 0x1000, 0, 0),
        map_body(0x8000, 0x1000, 4, 0),
        map_body(0x8000, 0x1000, 7, 0),
        map_body(0x8000, big + 0x1000, 3, 0),
        map_body(0x8000, 0x1000, 3, big),
        map_body(0x8000, 0x1000, 3, u64::MAX - 0xfff),
        map_body(u64::MAX - 0xfff, 0x2000, 3, 0),
        map_body(0x8000, u64::MAX - 0xfff, 3, 0),
    ] {
        assert_eq!(map(&mut raw, &body).0, EINVAL);
    }
    let two = [fd.as_fd(), fd.as_fd()];
    assert_eq!(raw.ask_with(Command::DMA_MAP, &map_body(0x8000, 0x1000, 3, 0), &two).0, EINVAL);
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(raw.ask_with(Command::DMA_MAP, &map_body(0x8000, 0x1000, 3, 0), &[reader.as_fd()]).0, EINVAL);
    assert_eq!(raw.mem.map_count(), 1);
    // A read-only map.
    assert_eq!(map(&mut raw, &map_body(0x8000, 0x1000, 1, 0)).0, 0);
    let denied = DmaError::Denied { iova: 0x8000, want: Prot::WRITE };
    assert_eq!(raw.mem.write(0x8000, &[1]), Err(denied));

    // Unmaps. One that cuts a map in two is refused; one that meets nothing, or many, succeeds (QEMU with a virtual IOMMU).
    let unmap = |raw: &mut Raw, body: &[u8]| raw.ask(Command::DMA_UNMAP, body);
    for body in [
        unmap_body(0x1000, 0x1000, 0),
        unmap_body(0x2000, 0x8000, 0),
        unmap_body(0, 0x2000, 0),
        unmap_body(0x1000, 0, 0),
        unmap_body(0x1001, 0x4000, 0),
        unmap_body(0x1000, 0x4001, 0),
        unmap_body(u64::MAX - 0xfff, 0x2000, 0),
        unmap_body(0x1000, 0x4000, 4),
        unmap_body(0x1000, 0x4000, 2),
        unmap_body(0, 0x4000, 2),
    ] {
        assert_eq!(unmap(&mut raw, &body).0, EINVAL);
    }
    assert_eq!(unmap(&mut raw, &unmap_body(0x1000, 0x4000, 1)).0, EOPNOTSUPP, "no dirty bitmap");
    let with_bitmap = [unmap_body(0x1000, 0x4000, 1).as_slice(), &[0; 16]].concat();
    assert_eq!(unmap(&mut raw, &with_bitmap).0, EOPNOTSUPP);
    assert_eq!((raw.mem.map_count(), raw.dev.take_events()), (2, vec![]));
    let nothing_there = unmap_body(0x10_0000, 0x1000, 0);
    assert_eq!(unmap(&mut raw, &nothing_there), (0, nothing_there.clone()));
    let one = unmap_body(0x1000, 0x4000, 0);
    assert_eq!(unmap(&mut raw, &one), (0, one.clone()));
    assert_eq!(raw.mem.read(0x1000, &mut [0]), Err(DmaError::Unmapped { iova: 0x1000 }));
    assert_eq!(
        raw.dev.take_events(),
        [Event::Unmapping(0x10_0000, 0x1000, 2), Event::Unmapping(0x1000, 0x4000, 2)],
        "the device is told first"
    );
    for page in 0..500 {
        assert_eq!(map(&mut raw, &map_body(0xf000_0000 - page * 0x1000, 0x1000, 3, 0)).0, 0);
    }
    assert_eq!(raw.mem.map_count(), 501);
    let all = unmap_body(0xf000_0000 - 499 * 0x1000, 500 * 0x1000, 0);
    assert_eq!(unmap(&mut raw, &all), (0, all.clone()));
    assert_eq!(raw.mem.map_count(), 1);
    let everything = unmap_body(0, 0, 2);
    assert_eq!(unmap(&mut raw, &everything), (0, everything.clone()));
    assert_eq!(raw.mem.map_count(), 0);
    assert_eq!(raw.dev.take_events().last(), Some(&Event::Unmapping(0, u64::MAX, 1)));
    // And again after all.
    assert_eq!(map(&mut raw, &map_body(0x1000, 0x4000, 3, 0)).0, 0);
    assert_eq!(raw.mem.read_plain::<[u8; 3]>(0x3004).unwrap(), *b"dma");
    raw.in_step();
}

#[test]
fn case_04_ram_without_a_descriptor_is_said_once() {
    let mut raw = Raw::new();
    let (_, lines) = logged(|| {
        assert_eq!(raw.ask(Command::DMA_MAP, &map_body(0xfffc_0000, 0x4_0000, 1, 0)).0, 0, "a BIOS");
        assert_eq!(raw.ask(Command::DMA_MAP, &map_body(0xff00_0000, 0x40_0000, 1, 0)).0, 0, "a large ROM");
        assert_eq!(raw.ask(Command::DMA_MAP, &map_body(0xc_0000, 0xf_f000, 3, 0)).0, 0, "just below 1 MiB");
    });
    assert_eq!(lines, [""; 0]);
    let (_, lines) = logged(|| {
        assert_eq!(raw.ask(Command::DMA_MAP, &map_body(0x1000_0000, 0x10_0000, 3, 0)).0, 0);
        assert_eq!(raw.ask(Command::DMA_MAP, &map_body(0x1_0000_0000, 0x4000_0000, 3, 0)).0, 0);
    });
    assert_eq!(
        lines,
        [
            "ERROR guest memory came without a file descriptor: every DMA becomes a message, far too slow for a NIC. Start QEMU \
          with -object memory-backend-memfd,id=mem0,size=<as -m>,share=on -machine memory-backend=mem0 iova=0x10000000 bytes=1048576"
        ]
    );
}

#[test]
fn case_03_a_new_client_finds_nothing_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listener::bind(dir.path().join("s")).unwrap();
    let mut dev = Device::new();
    let mem = dev.mem.clone();
    let (old, new) = (memfd(0x4000), memfd(0x4000));
    rustix::io::pwrite(&old, b"old", 0x1000).unwrap();
    rustix::io::pwrite(&new, b"new", 0x1000).unwrap();
    let first_event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();

    let session = |listener: &Listener, dev: &mut Device, fd: &OwnedFd, event: Option<&OwnedFd>| {
        let client = UnixStream::connect(listener.path()).unwrap();
        let connection = listener.accept().unwrap().unwrap();
        let mut raw = Raw {
            sock: client,
            connection,
            dev: std::mem::replace(dev, Device::new()),
            mem: mem.clone(),
            over: None,
            next_id: 1,
        };
        assert_eq!(raw.ask(Command::VERSION, VERSION_BODY).0, 0);
        assert_eq!(raw.ask_with(Command::DMA_MAP, &map_body(0x1000, 0x2000, 3, 0x1000), &[fd.as_fd()]).0, 0);
        assert_eq!(raw.ask(Command::DMA_MAP, &map_body(0x10_0000, 0x1000, 3, 0)).0, 0);
        if let Some(event) = event {
            let flags = IrqSetFlags::DATA_EVENTFD | IrqSetFlags::ACTION_TRIGGER;
            let body = irq_body(flags, 2, 5, 1, &[]);
            assert_eq!(raw.ask_with(Command::DEVICE_SET_IRQS, &body, &[event.as_fd()]).0, 0);
            assert!(raw.dev.irqs.trigger(5));
            assert_eq!(signalled(event), Some(1));
        }
        raw
    };

    let mut raw = session(&listener, &mut dev, &old, Some(&first_event));
    assert_eq!(mem.read_plain::<[u8; 3]>(0x1000).unwrap(), *b"old");
    // It vanishes in the middle of a message.
    raw.send_bytes(&[1, 2, 3], &[]);
    raw.sock.shutdown(std::net::Shutdown::Both).unwrap();
    raw.run();
    assert_eq!(raw.over, Some(ConnError::ClosedInMessage));
    assert_eq!(raw.connection.process(&mut raw.dev, &mem, 1), Err(ConnError::ClosedInMessage), "and stays over");
    assert_eq!(raw.dev.take_events().last(), Some(&Event::Disconnected));
    assert_eq!(mem.map_count(), 0);
    assert_eq!(mem.read(0x1000, &mut [0]), Err(DmaError::Unmapped { iova: 0x1000 }));
    assert!(!raw.dev.irqs.trigger(5));
    assert_eq!(signalled(&first_event), None);
    dev = raw.dev;

    // The new one maps an overlapping range.
    let mut raw = session(&listener, &mut dev, &new, None);
    assert_eq!(mem.read_plain::<[u8; 3]>(0x1000).unwrap(), *b"new");
    assert!(!raw.dev.irqs.trigger(5), "the old interrupts are gone");
    assert_eq!(raw.dev.take_events(), []);
    raw.connection.close(&mut raw.dev, &mem);
    assert_eq!(raw.dev.take_events(), [Event::Disconnected]);
    raw.connection.close(&mut raw.dev, &mem);
    assert_eq!((raw.dev.take_events(), mem.map_count()), (vec![], 0), "once");
    assert_eq!(raw.connection.process(&mut raw.dev, &mem, 1), Err(ConnError::Closed));
}

// ---------------------------------------------------------------------------------------------------------------------
// Descriptors

/// A pipe whose writer is sent away: [`Sent::closed`] says whether all copies of it are closed.
struct Sent {
    reader: OwnedFd,
}

impl Sent {
    fn new() -> (Self, OwnedFd) {
        let (reader, writer) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        (Self { reader }, writer)
    }
    fn closed(&self) -> bool {
        rustix::io::read(&self.reader, &mut [0]) == Ok(0)
    }
}

#[test]
fn descriptors_that_nobody_wants_are_closed() {
    let mut raw = Raw::new();
    // With a command that takes none.
    let (sent, writer) = Sent::new();
    assert_eq!(raw.ask_with(Command::REGION_READ, &access(0, 0, 4), &[writer.as_fd()]).0, 0);
    drop(writer);
    assert!(sent.closed());
    // With an unknown command, a refused one, a reply, and a posted one.
    for (command, flags, body) in [
        (Command(77), 0, vec![0; 9]),
        (Command::DMA_MAP, 0, map_body(1, 2, 3, 4)),
        (Command::DMA_READ, proto::TYPE_REPLY, vec![0; 16]),
        (Command::REGION_WRITE, proto::NO_REPLY, write_body(0, 0, &[1])),
    ] {
        let (sent, writer) = Sent::new();
        raw.send(command, flags, &body, &[writer.as_fd()]);
        drop(writer);
        raw.everything();
        assert!(sent.closed(), "{command}");
    }
    // In the middle of a message: they are nobody's.
    let bytes = message(Command::DMA_MAP, 0, &map_body(0x1000, 0x1000, 3, 0));
    let fd = memfd(0x1000);
    raw.send_bytes(&bytes[..20], &[]);
    raw.run();
    let (sent, writer) = Sent::new();
    raw.send_bytes(&bytes[20..30], &[writer.as_fd()]);
    drop(writer);
    raw.run();
    assert!(sent.closed());
    raw.send_bytes(&bytes[30..], &[fd.as_fd()]);
    assert_eq!(raw.reply().0.error, 0);
    raw.mem.set_message_dma(None);
    assert!(raw.mem.read(0x1000, &mut [0]).is_err(), "mapped without a descriptor");
    // More than 16 (17, and the most that the kernel lets through) with one message.
    for count in [17, 253] {
        let (sent, writer) = Sent::new();
        let all: Vec<BorrowedFd<'_>> = (0..count).map(|_| writer.as_fd()).collect();
        assert_eq!(raw.ask_with(Command::DMA_MAP, &map_body(0x9000, 0x1000, 3, 0), &all).0, EINVAL);
        drop(writer);
        assert!(sent.closed());
    }
    raw.in_step();
}

#[test]
fn a_flood_of_descriptors_is_not_kept() {
    let mut raw = Raw::new();
    let (sent, writer) = Sent::new();
    // One byte at a time, each with 16 descriptors.
    let bytes = message(Command::DMA_MAP, 0, &map_body(0x1000, 0x1000, 3, 0));
    let all = [writer.as_fd(); 16];
    for byte in &bytes {
        raw.send_bytes(&[*byte], &all);
        raw.run();
    }
    let (header, _) = raw.reply();
    assert_eq!(header.error, EINVAL, "the 16 of its first byte are its own");
    // Many messages at once.
    for _ in 0..40 {
        raw.send(Command::DEVICE_RESET, proto::NO_REPLY, &[], &all);
    }
    raw.run();
    drop(writer);
    assert!(sent.closed());
    assert_eq!(raw.dev.take_events(), vec![Event::Reset; 40]);
    raw.in_step();
}

/// Several messages in one receive: descriptors belong to the last that starts in it.
#[test]
fn descriptors_find_their_message_among_many() {
    let mut raw = Raw::new();
    let fds: Vec<OwnedFd> = (0..5)
        .map(|n| {
            let fd = memfd(0x1000);
            rustix::io::pwrite(&fd, &[n + 1], 0).unwrap();
            fd
        })
        .collect();
    for (n, fd) in fds.iter().enumerate() {
        for _ in 0..3 {
            raw.send(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0, &[1; 8]), &[]);
        }
        raw.send(Command::DMA_MAP, 0, &map_body(0x1000 * (n as u64 + 1), 0x1000, 3, 0), &[fd.as_fd()]);
        raw.send(Command::REGION_READ, 0, &access(0, 0, 1), &[]);
    }
    for _ in 0..5 {
        assert_eq!(raw.reply().0.error, 0);
        assert_eq!(raw.reply().0.error, 0);
    }
    for n in 0..5_u8 {
        assert_eq!(raw.mem.read_plain::<u8>(0x1000 * (u64::from(n) + 1)).unwrap(), n + 1);
    }
    // A header in two pieces, the descriptor with the first.
    let bytes = message(Command::DMA_MAP, 0, &map_body(0x10_0000, 0x1000, 3, 0));
    raw.send_bytes(&bytes[..7], &[fds[3].as_fd()]);
    raw.run();
    raw.send_bytes(&bytes[7..], &[]);
    assert_eq!(raw.reply().0.error, 0);
    assert_eq!(raw.mem.read_plain::<u8>(0x10_0000).unwrap(), 4);
    // A client that puts two messages into one sendmsg: the last one gets it.
    let mut two = message(Command::DEVICE_RESET, 0, &[]);
    two.extend(message(Command::DMA_MAP, 0, &map_body(0x20_0000, 0x1000, 3, 0)));
    raw.send_bytes(&two, &[fds[4].as_fd()]);
    assert_eq!((raw.reply().0.error, raw.reply().0.error), (0, 0));
    assert_eq!(raw.mem.read_plain::<u8>(0x20_0000).unwrap(), 5);
}

// ---------------------------------------------------------------------------------------------------------------------
// The stream

/// One of each, all good, with a few replies and errors; no descriptors.
fn transcript() -> Vec<Vec<u8>> {
    let none_trigger = IrqSetFlags::DATA_NONE | IrqSetFlags::ACTION_TRIGGER;
    let mut all = vec![
        message(Command::VERSION, 0, VERSION_BODY),
        message(Command::DMA_MAP, 0, &map_body(0x1000, 0x1000, 3, 0)),
        message(Command::DMA_UNMAP, 0, &unmap_body(0x1000, 0x1000, 0)),
        message(Command::DEVICE_GET_INFO, 0, [16_u32, 0, 0, 0].as_bytes()),
        message(Command::DEVICE_GET_REGION_INFO, 0, [32_u32, 0, 7, 0, 0, 0, 0, 0].as_bytes()),
        message(Command::DEVICE_GET_IRQ_INFO, 0, [16_u32, 0, 2, 0].as_bytes()),
        message(Command::DEVICE_SET_IRQS, 0, &irq_body(none_trigger, 2, 0, 0, &[])),
        message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0, &[1, 2, 3, 4, 5, 6, 7, 8])),
        message(Command::REGION_READ, 0, &access(0, 0, 8)),
        message(Command::REGION_WRITE, 0, &write_body(7, 4, &[7, 0])),
        message(Command::DEVICE_GET_REGION_IO_FDS, 0, [16_u32, 0, 0, 0].as_bytes()),
        message(Command::REGION_WRITE_MULTI, 0, &multi_body(&[(0, 8, 8, 9), (0, 16, 4, 1)])),
        message(Command::DMA_READ, proto::TYPE_REPLY, &[0; 20]),
        message(Command::DEVICE_FEATURE, 0, &[0; 8]),
        message(Command::DEVICE_RESET, 0, &[]),
    ];
    for (id, m) in all.iter_mut().enumerate() {
        m[..2].copy_from_slice(&(id as u16 + 0x40).to_ne_bytes());
    }
    all
}

#[test]
fn a_stream_cut_anywhere_does_what_is_complete_and_ends() {
    let messages = transcript();
    let bytes = messages.concat();
    let mut ends = vec![0];
    for m in &messages {
        ends.push(ends.last().unwrap() + m.len());
    }
    for cut in 0..=bytes.len() {
        let mut raw = Raw::unnegotiated();
        raw.send_bytes(&bytes[..cut], &[]);
        raw.sock.shutdown(std::net::Shutdown::Write).unwrap();
        let handled = raw.run();
        let complete = ends.iter().filter(|e| **e <= cut).count() - 1;
        // The reply among them is not counted: nobody asked.
        assert_eq!(handled, complete - usize::from(complete >= 13), "cut at {cut}");
        let expected = if ends.contains(&cut) { ConnError::Closed } else { ConnError::ClosedInMessage };
        assert_eq!(raw.over, Some(expected), "cut at {cut}");
        assert_eq!(raw.dev.take_events().last(), Some(&Event::Disconnected));
    }
}

#[test]
fn a_stream_in_pieces_gives_the_same_replies() {
    let bytes = transcript().concat();
    let run = |pieces: &[&[u8]]| {
        let mut raw = Raw::unnegotiated();
        let mut replies = Vec::new();
        for piece in pieces {
            raw.send_bytes(piece, &[]);
            raw.run();
            replies.extend(raw.everything());
        }
        assert_eq!(raw.over, None);
        (replies, raw.dev.take_events())
    };
    let whole = run(&[&bytes]);
    for cut in 1..bytes.len() {
        assert_eq!(run(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(run(&single), whole);
}

#[test]
fn a_size_that_cannot_be_followed_ends_the_connection() {
    for size in [0, 1, 15, proto::MAX_MESSAGE as u32 + 1, 0x7fff_ffff, u32::MAX] {
        let mut raw = Raw::new();
        raw.send(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0x40, b"before"), &[]);
        let mut bad = message(Command::REGION_READ, 0, &access(0, 0, 4));
        bad[..2].copy_from_slice(&0xbad_u16.to_ne_bytes());
        bad[4..8].copy_from_slice(&size.to_ne_bytes());
        raw.send_bytes(&bad, &[]);
        raw.run();
        assert_eq!(raw.over, Some(ConnError::BadSize { size, command: Command::REGION_READ }));
        assert_eq!(raw.dev.bar[0x40..0x46], *b"before", "what came before it is done");
        let (header, _) = raw.reply();
        assert_eq!((header.id, header.error), (0xbad, EINVAL));
        assert_eq!(raw.sock.read(&mut [0]).unwrap(), 0, "closed");
        assert_eq!(raw.dev.take_events().last(), Some(&Event::Disconnected));
    }
}

#[test]
fn the_budget_is_kept_and_more_says_that_there_is_more() {
    let mut raw = Raw::new();
    for n in 0..10_u8 {
        raw.send(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, u64::from(n), &[n]), &[]);
    }
    let Raw { connection, dev, mem, .. } = &mut raw;
    let mut steps = Vec::new();
    for _ in 0..5 {
        let progress = connection.process(dev, mem, 3).unwrap();
        assert_eq!(connection.has_input(), progress.more, "and it stays so");
        steps.push((progress.messages, progress.more, dev.take_events().len()));
    }
    assert_eq!(steps, [(3, true, 3), (3, true, 3), (3, true, 3), (1, false, 1), (0, false, 0)]);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let mut raw = Raw::new();
    let mut asked = 0_usize;
    // Replies of 1 MiB each; the client never reads one.
    while raw.over.is_none() {
        raw.send(Command::REGION_READ, 0, &access(2, 0, 1 << 20), &[]);
        asked += 1;
        raw.run();
        assert!(asked < 50);
        if raw.over.is_none() && asked > 1 {
            assert_eq!(raw.connection.poll_events(), PollFlags::IN | PollFlags::OUT);
        }
    }
    assert_eq!(raw.over, Some(ConnError::NotReading));
    assert!((8..=10).contains(&asked), "8 MiB are kept for it, not more: {asked}");
    assert_eq!(raw.dev.take_events().last(), Some(&Event::Disconnected));
}

#[test]
fn a_client_that_reads_late_gets_everything_in_order() {
    let mut raw = Raw::new();
    for n in 0..4 {
        raw.send(Command::REGION_READ, 0, &access(2, n * 4096, 1 << 20), &[]);
        raw.send(Command::DEVICE_GET_IRQ_INFO, 0, [16_u32, 0, 2, 0].as_bytes(), &[]);
    }
    let all = raw.everything();
    let mut rest = all.as_slice();
    for n in 0..4 {
        let (header, body) = Header::read_from_prefix(rest).unwrap();
        assert_eq!((header.command, header.size as usize), (Command::REGION_READ, 32 + (1 << 20)));
        assert_eq!(body[16], n);
        let (header, _) = Header::read_from_prefix(&rest[header.size as usize..]).unwrap();
        assert_eq!((header.command, header.size), (Command::DEVICE_GET_IRQ_INFO, 32));
        rest = &rest[32 + (1 << 20) + 32..];
    }
    assert_eq!(rest, b"");
    assert_eq!(raw.connection.poll_events(), PollFlags::IN);
}

#[test]
fn a_second_client_is_sent_away_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let listener = Listener::bind(dir.path().join("s")).unwrap();
    let client = Client::connect_unnegotiated(listener.path()).unwrap();
    let mut refusal = listener.accept().unwrap().unwrap().refuse(Errno::BUSY);
    assert!(!refusal.process(), "waits for its first message, without waiting");
    let answer = std::thread::scope(|s| {
        let answer = s.spawn(|| client.negotiate());
        let mut poll = [PollFd::new(&refusal, PollFlags::IN)];
        rustix::event::poll(&mut poll, None).unwrap();
        assert!(refusal.process());
        answer.join().unwrap()
    });
    drop(refusal);
    assert_eq!(answer.unwrap_err().errno(), Some(Errno::BUSY));
    assert!(matches!(client.receive_raw(LONG), Err(ClientError::Closed)));
    // One that leaves by itself, and one that talks nonsense.
    for bytes in [b"".as_slice(), &[0; 16]] {
        let mut client = UnixStream::connect(listener.path()).unwrap();
        let mut refusal = listener.accept().unwrap().unwrap().refuse(Errno::BUSY);
        client.write_all(bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(refusal.process());
    }
}

impl AsFd for Refusal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Any bytes

#[derive(Debug, Clone)]
struct AnyMessage {
    command: u16,
    flags: u32,
    body: Vec<u8>,
}

fn any_message() -> impl Strategy<Value = AnyMessage> {
    let interesting = prop_oneof![
        Just(0_u32),
        Just(1),
        Just(2),
        Just(8),
        Just(16),
        Just(24),
        Just(32),
        Just(0x1000),
        Just(0x2000),
        Just(u32::MAX),
        any::<u32>(),
        0..40_u32
    ];
    let words = prop::collection::vec(interesting, 0..14)
        .prop_flat_map(|w| {
            let bytes = w.as_bytes().to_vec();
            (0..4_usize.min(bytes.len() + 1), Just(bytes))
        })
        .prop_map(|(less, mut bytes)| {
            bytes.truncate(bytes.len() - less);
            bytes
        });
    let body = prop_oneof![words, prop::collection::vec(any::<u8>(), 0..300)];
    let good = (0..transcript().len()).prop_map(|n| transcript()[n][16..].to_vec());
    let flags = prop_oneof![6 => Just(0), 2 => Just(proto::NO_REPLY), 1 => any::<u32>()];
    (prop_oneof![0..20_u16, any::<u16>()], flags, prop_oneof![3 => body, 1 => good])
        .prop_map(|(command, flags, body)| AnyMessage { command, flags, body })
}

/// What a client may expect of any message: one reply with its id, or none if it is posted or a reply itself.
fn wants_reply(flags: u32) -> bool {
    flags & proto::NO_REPLY == 0 && flags & proto::TYPE_MASK != proto::TYPE_REPLY
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Whatever the messages say, as long as their sizes are right: every one gets exactly its reply, in order, and the stream
    /// stays in step.
    #[test]
    fn any_messages_of_right_size_stay_in_step(messages in prop::collection::vec(any_message(), 1..12), pieces in prop::collection::vec(1..200_usize, 0..6)) {
        let mut raw = Raw::new();
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (n, m) in messages.iter().enumerate() {
            let id = n as u16;
            let mut one = message(Command(m.command), m.flags, &m.body);
            one[..2].copy_from_slice(&id.to_ne_bytes());
            bytes.extend(one);
            if wants_reply(m.flags) {
                expected.push((id, m.command));
            }
        }
        let mut rest = bytes.as_slice();
        for n in pieces {
            let (now, later) = rest.split_at(n.min(rest.len()));
            raw.send_bytes(now, &[]);
            raw.run();
            rest = later;
        }
        raw.send_bytes(rest, &[]);
        let replies = raw.everything();
        prop_assert_eq!(raw.over, None);
        let mut seen = Vec::new();
        let mut rest = replies.as_slice();
        while !rest.is_empty() {
            let (header, _) = Header::read_from_prefix(rest).unwrap();
            prop_assert!(header.is_reply());
            prop_assert_eq!(header.is_error(), header.error != 0);
            prop_assert!(!header.is_error() || header.size == 16);
            seen.push((header.id, header.command.0));
            rest = &rest[header.size as usize..];
        }
        prop_assert_eq!(seen, expected);
        raw.in_step();
    }

    /// A good conversation with a few bytes changed, removed or added: it goes on in step, waits for the rest of a message, or ends
    /// with a reason; it never panics, and nothing of it is left afterwards.
    #[test]
    fn a_damaged_stream_ends_with_a_reason_or_goes_on(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, any::<u8>()), 1..8),
        negotiated in any::<bool>(),
    ) {
        let all = transcript();
        let mut bytes = if negotiated { all[1..].concat() } else { all.concat() };
        for (at, kind, value) in damage {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = value,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, value),
            }
        }
        let mut raw = if negotiated { Raw::new() } else { Raw::unnegotiated() };
        raw.send_bytes(&bytes, &[]);
        raw.everything();
        raw.sock.shutdown(std::net::Shutdown::Write).unwrap();
        raw.run();
        let over = raw.over;
        prop_assert!(matches!(
            over,
            Some(ConnError::Closed | ConnError::ClosedInMessage | ConnError::BadSize { .. } | ConnError::Version(_))
        ), "{:?}", over);
        prop_assert_eq!(raw.dev.take_events().iter().filter(|e| **e == Event::Disconnected).count(), 1);
        prop_assert_eq!(raw.mem.map_count(), 0);
    }

    /// Noise.
    #[test]
    fn noise_never_panics(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..100), 1..6), negotiated in any::<bool>()) {
        let mut raw = if negotiated { Raw::new() } else { Raw::unnegotiated() };
        for piece in pieces {
            if raw.over.is_none() {
                raw.send_bytes(&piece, &[]);
                raw.run();
            }
        }
        drop(raw.sock);
        raw.sock = UnixStream::pair().unwrap().0;
        raw.run();
        prop_assert!(raw.over.is_some());
        prop_assert_eq!(raw.mem.map_count(), 0);
    }

    /// Guest writes through any messages never reach beyond the region.
    #[test]
    fn accesses_outside_of_a_region_never_reach_the_device(region in 0..12_u32, offset in prop_oneof![0..0x20_0010_u64, any::<u64>()], count in prop_oneof![0..64_u32, any::<u32>()]) {
        let mut raw = Raw::new();
        let (error, body) = raw.ask(Command::REGION_READ, &access(region, offset, count));
        let size = if region < 9 { raw.dev.region_info(region) } else { RegionInfo::default() };
        let fits = size.read && count <= 1 << 20 && offset.checked_add(u64::from(count)).is_some_and(|end| end <= size.size);
        prop_assert_eq!(error == 0, fits);
        prop_assert_eq!(body.len(), if fits { 16 + count as usize } else { 0 });
        prop_assert_eq!(raw.dev.events.len(), usize::from(fits && count > 0));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// DMA by messages

/// Runs `f` against a server in a thread of its own; returns the device and why the connection ended (by the client's end).
fn with_server(f: impl FnOnce(&Client)) -> (Device, ConnError) {
    let (ours, theirs) = pair();
    std::thread::scope(|s| {
        let server = s.spawn(|| {
            let mut connection = Connection::new(theirs);
            connection.set_dma_timeout(LONG);
            let mut dev = Device::new();
            let mem = dev.mem.clone();
            loop {
                match connection.process(&mut dev, &mem, 16) {
                    Ok(Progress { more: true, .. }) => {}
                    Ok(_) => {
                        let events = connection.poll_events();
                        let mut poll = [PollFd::new(&connection, events)];
                        rustix::event::poll(&mut poll, None).unwrap();
                    }
                    Err(e) => return (dev, e),
                }
            }
        });
        let client = Client::new(ours);
        f(&client);
        drop(client);
        server.join().unwrap()
    })
}

/// The client's memory, without a descriptor.
struct Ram {
    base: u64,
    bytes: Mutex<Vec<u8>>,
    reads: AtomicUsize,
    writes: AtomicUsize,
}

impl Ram {
    fn new(base: u64, len: usize) -> Arc<Self> {
        let bytes = (0..len).map(|i| (i / 8) as u8).collect();
        Arc::new(Self { base, bytes: Mutex::new(bytes), reads: AtomicUsize::new(0), writes: AtomicUsize::new(0) })
    }
    fn part<T>(&self, iova: u64, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> io::Result<T> {
        let mut bytes = self.bytes.lock().unwrap();
        let at = usize::try_from(iova.wrapping_sub(self.base)).map_err(io::Error::other)?;
        let end = at.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(f(bytes.get_mut(at..end).ok_or(io::ErrorKind::InvalidInput)?))
    }
}

impl MessageDma for Ram {
    fn read(&self, iova: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.part(iova, buf.len(), |from| buf.copy_from_slice(from))
    }
    fn write(&self, iova: u64, buf: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.part(iova, buf.len(), |to| to.copy_from_slice(buf))
    }
}

#[test]
fn case_04_memory_without_a_descriptor_works_by_messages() {
    let ram = Ram::new(0x10_0000, 0x2000);
    let (dev, over) = with_server(|client| {
        client.negotiate().unwrap();
        client.set_memory(Some(ram.clone()));
        client.dma_map_message(0x10_0000, 0x2000, RW).unwrap();
        // Posted, so nothing waits for a reply but a later call: that one answers.
        client.region_write_posted(0, DOORBELL, &0x10_0008_u64.to_ne_bytes()).unwrap();
        client.region_write_posted(0, 0, &[1]).unwrap();
        assert_eq!(client.region_read_uint::<1>(0, 0).unwrap(), 1);
        assert_eq!(ram.bytes.lock().unwrap()[8..16], (0x0101_0101_0101_0101_u64 * 2).to_le_bytes());
        assert_eq!((ram.reads.load(Ordering::Relaxed), ram.writes.load(Ordering::Relaxed)), (1, 1));
        // In the middle of a synchronous write.
        client.region_write(0, DOORBELL, &0x10_1ff8_u64.to_ne_bytes()).unwrap();
        // The client refuses: an error, at once, and the connection goes on.
        client.set_memory(None);
        client.region_write(0, DOORBELL, &0x10_0010_u64.to_ne_bytes()).unwrap();
        client.set_memory(Some(ram.clone()));
        client.region_write(0, DOORBELL, &0x10_0010_u64.to_ne_bytes()).unwrap();
        assert_eq!(ram.bytes.lock().unwrap()[16..24], (0x0202_0202_0202_0202_u64 * 2).to_le_bytes());
        // A client that only serves.
        client.region_write_posted(0, DOORBELL, &0x10_0018_u64.to_ne_bytes()).unwrap();
        while ram.writes.load(Ordering::Relaxed) < 4 {
            client.serve(Duration::from_millis(20)).unwrap();
        }
        client.dma_unmap(0x10_0000, 0x2000).unwrap();
        client.region_write(0, DOORBELL, &0x10_0008_u64.to_ne_bytes()).unwrap();
    });
    assert_eq!(over, ConnError::Closed);
    let dma: Vec<_> =
        dev.events.iter().filter_map(|e| if let Event::Dma(_, result) = e { Some(*result) } else { None }).collect();
    let refused = DmaError::Message { iova: 0x10_0010, kind: io::Error::from_raw_os_error(14).kind() };
    let gone = DmaError::Unmapped { iova: 0x10_0008 };
    assert_eq!(dma, [Ok(()), Ok(()), Err(refused), Ok(()), Ok(()), Err(gone)]);
}

#[test]
fn long_dma_by_message_is_cut_to_what_the_client_takes() {
    let ram = Ram::new(0, 0x30_0000);
    let (ours, theirs) = pair();
    let mem = GuestMemory::new();
    std::thread::scope(|s| {
        let served = ram.clone();
        s.spawn(move || {
            let client = Client::new(ours);
            client.set_memory(Some(served));
            client.negotiate_with((0, 1), b"{\"capabilities\":{\"max_data_xfer_size\":65536}}\0").unwrap();
            client.dma_map_message(0, 0x30_0000, RW).unwrap();
            // Until the server closes.
            let _ = client.serve(LONG);
        });
        let mut connection = Connection::new(theirs);
        let mut dev = Device::new();
        while mem.map_count() == 0 {
            connection.process(&mut dev, &mem, 16).unwrap();
        }
        let data: Vec<u8> = (0..0x20_0001_usize).map(|i| (i % 253) as u8).collect();
        mem.write(0x1001, &data).unwrap();
        assert_eq!(ram.writes.load(Ordering::Relaxed), 0x20 + 1);
        assert!(ram.bytes.lock().unwrap()[0x1001..][..data.len()] == data);
        let mut back = vec![0; data.len()];
        mem.read(0x1001, &mut back).unwrap();
        assert_eq!(ram.reads.load(Ordering::Relaxed), 0x20 + 1);
        assert!(back == data);
        connection.close(&mut dev, &mem);
    });
}

/// A client that plays its part by hand: `script` sees each DMA command.
fn by_hand(
    timeout: Duration,
    drive: impl FnOnce(&mut Connection, &mut Device, &GuestMemory),
    script: impl FnOnce(&mut UnixStream) + Send,
) -> Device {
    let (ours, theirs) = pair();
    let mut dev = Device::new();
    let mem = dev.mem.clone();
    let mut connection = Connection::new(theirs);
    connection.set_dma_timeout(timeout);
    let mut sock = UnixStream::from(ours);
    sock.set_read_timeout(Some(LONG)).unwrap();
    let hello =
        [message(Command::VERSION, 0, VERSION_BODY), message(Command::DMA_MAP, 0, &map_body(0, 0x1000, 3, 0))].concat();
    sock.write_all(&hello).unwrap();
    while mem.map_count() == 0 {
        connection.process(&mut dev, &mem, 16).unwrap();
    }
    for _ in 0..2 {
        read_message(&mut sock).unwrap();
    }
    std::thread::scope(|s| {
        // The socket stays open until `drive` is done, unless the script fails: then it closes, and `drive` fails too.
        s.spawn(move || match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| script(&mut sock))) {
            Ok(()) => sock,
            Err(panic) => {
                drop(sock);
                std::panic::resume_unwind(panic)
            }
        });
        drive(&mut connection, &mut dev, &mem);
    });
    dev
}

fn read_message(sock: &mut UnixStream) -> io::Result<(Header, Vec<u8>)> {
    let mut header = [0; 16];
    sock.read_exact(&mut header)?;
    let header = Header::read_from_bytes(&header).unwrap();
    let mut body = vec![0; header.size as usize - 16];
    sock.read_exact(&mut body)?;
    Ok((header, body))
}

fn reply_to(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = message(header.command, proto::TYPE_REPLY, body);
    bytes[..2].copy_from_slice(&header.id.to_ne_bytes());
    bytes
}

#[test]
fn commands_that_come_during_a_dma_message_are_handled_later_and_in_order() {
    let mut dev = by_hand(
        LONG,
        |connection, dev, mem| {
            // The doorbell's DMA waits; nothing that came meanwhile is handled before it is done.
            let mut came_meanwhile = false;
            while dev.events.len() < 26 {
                let handled = connection.process(dev, mem, 4).unwrap().messages;
                came_meanwhile |= handled > 0 && connection.has_input();
            }
            // The socket says nothing of them: a loop that waits for it alone would never handle them.
            assert!(came_meanwhile && !connection.has_input());
        },
        |sock| {
            let ring =
                message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, DOORBELL, &0x100_u64.to_ne_bytes()));
            sock.write_all(&ring).unwrap();
            let (header, body) = read_message(sock).unwrap();
            assert_eq!((header.command, header.is_command()), (Command::DMA_READ, true));
            assert_eq!(body, DmaAccess { address: 0x100, count: 8 }.as_bytes());
            for n in 0..10_u8 {
                sock.write_all(&message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0, &[n]))).unwrap();
            }
            // The reply in two pieces, with another half command before it.
            let split = message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0, &[10]));
            sock.write_all(&split[..9]).unwrap();
            sock.write_all(&split[9..]).unwrap();
            let reply = reply_to(&header, &[body.as_slice(), &21_u64.to_le_bytes()].concat());
            sock.write_all(&reply[..20]).unwrap();
            sock.write_all(&reply[20..]).unwrap();
            let (header, body) = read_message(sock).unwrap();
            assert_eq!((header.command, &body[16..]), (Command::DMA_WRITE, 42_u64.to_le_bytes().as_slice()));
            for n in 11..24_u8 {
                sock.write_all(&message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0, &[n]))).unwrap();
            }
            // The reply as the specification's table has it, with a count of 4 bytes.
            sock.write_all(&reply_to(&header, &body[..12])).unwrap();
        },
    );
    let mut expected = vec![Event::Write(0, DOORBELL, 0x100_u64.to_ne_bytes().to_vec()), Event::Dma(0x100, Ok(()))];
    expected.extend((0..24).map(|n| Event::Write(0, 0, vec![n])));
    assert_eq!(dev.take_events(), expected);
}

#[test]
fn a_client_that_does_not_answer_costs_one_timeout_until_it_does() {
    let timeout = Duration::from_secs(2);
    let timed_out = DmaError::Message { iova: 0x10, kind: io::ErrorKind::TimedOut };
    by_hand(
        timeout,
        |connection, dev, mem| {
            let start = std::time::Instant::now();
            assert_eq!(mem.read(0x10, &mut [0; 4]), Err(timed_out));
            assert!(start.elapsed() >= timeout);
            // A hundred more do not take a hundred timeouts: they send nothing (the script checks that).
            for _ in 0..100 {
                assert_eq!(mem.write(0x10, &[0; 4]), Err(timed_out));
            }
            // The late answer comes; from then on it works again.
            connection.process(dev, mem, 1).unwrap();
            let mut poll = [PollFd::new(&*connection, PollFlags::IN)];
            rustix::io::write(&dev_signal().1, &[1]).unwrap();
            rustix::event::poll(&mut poll, None).unwrap();
            connection.process(dev, mem, 1).unwrap();
            let mut value = [0; 4];
            let result = mem.read(0x10, &mut value);
            assert_eq!((result, value), (Ok(()), *b"late"));
        },
        |sock| {
            let (first, body) = read_message(sock).unwrap();
            rustix::io::read(&dev_signal().0, &mut [0]).unwrap();
            sock.write_all(&reply_to(&first, &[body.as_slice(), b"drop"].concat())).unwrap();
            let (second, body) = read_message(sock).unwrap();
            assert_eq!(second.id, first.id.wrapping_add(1), "nothing was sent in between");
            assert_eq!(body, DmaAccess { address: 0x10, count: 4 }.as_bytes());
            sock.write_all(&reply_to(&second, &[body.as_slice(), b"late"].concat())).unwrap();
        },
    );
}

/// A pipe between the two halves of the test above.
fn dev_signal() -> &'static (OwnedFd, OwnedFd) {
    static PIPE: std::sync::OnceLock<(OwnedFd, OwnedFd)> = std::sync::OnceLock::new();
    PIPE.get_or_init(|| rustix::pipe::pipe().unwrap())
}

#[test]
fn answers_that_do_not_fit_are_errors() {
    let good = DmaAccess { address: 0x20, count: 4 };
    let other = DmaAccess { address: 0x24, count: 4 };
    let huge = DmaAccess { address: 0x20, count: u64::MAX };
    let answers: Vec<Vec<u8>> = vec![
        vec![],
        good.as_bytes().to_vec(),
        [good.as_bytes(), b"abc"].concat(),
        [good.as_bytes(), b"abcde"].concat(),
        [other.as_bytes(), b"abcd"].concat(),
        [huge.as_bytes(), b"abcd"].concat(),
    ];
    let invalid = DmaError::Message { iova: 0x20, kind: io::ErrorKind::InvalidData };
    let count = answers.len();
    by_hand(
        LONG,
        |_, _, mem| {
            for _ in 0..count {
                assert_eq!(mem.read(0x20, &mut [0; 4]), Err(invalid));
            }
            // Another command than the one that was sent.
            assert_eq!(mem.read(0x20, &mut [0; 4]), Err(invalid));
            // An error reply without a number, and with one.
            let kind = io::ErrorKind::Other;
            assert_eq!(mem.read(0x20, &mut [0; 4]), Err(DmaError::Message { iova: 0x20, kind }));
            let kind = io::ErrorKind::PermissionDenied;
            assert_eq!(mem.write(0x20, &[0; 4]), Err(DmaError::Message { iova: 0x20, kind }));
            assert_eq!(mem.write(0x20, &[0; 4]), Err(invalid));
            assert_eq!(mem.write(0x20, &[0; 4]), Ok(()));
            // And the client goes in the middle of one.
            let kind = io::ErrorKind::ConnectionAborted;
            assert_eq!(mem.read(0x20, &mut [0; 4]), Err(DmaError::Message { iova: 0x20, kind }));
        },
        |sock| {
            for answer in &answers {
                let (header, _) = read_message(sock).unwrap();
                sock.write_all(&reply_to(&header, answer)).unwrap();
            }
            let (header, body) = read_message(sock).unwrap();
            let header = Header { command: Command::DMA_WRITE, ..header };
            sock.write_all(&reply_to(&header, &[body.as_slice(), b"abcd"].concat())).unwrap();
            for errno in [0_u32, 13] {
                let (header, _) = read_message(sock).unwrap();
                let mut reply = reply_to(&header, &[]);
                reply[8..12].copy_from_slice(&(proto::TYPE_REPLY | proto::ERROR).to_ne_bytes());
                reply[12..16].copy_from_slice(&errno.to_ne_bytes());
                sock.write_all(&reply).unwrap();
            }
            for good in [false, true] {
                let (header, mut body) = read_message(sock).unwrap();
                body.truncate(16);
                body[8] += u8::from(!good);
                sock.write_all(&reply_to(&header, &body)).unwrap();
            }
            read_message(sock).unwrap();
            sock.shutdown(std::net::Shutdown::Both).unwrap();
        },
    );
}

#[test]
fn a_flood_instead_of_an_answer_is_cut_off() {
    let mut dev = by_hand(
        LONG,
        |connection, dev, mem| {
            let error = mem.read(0x20, &mut [0; 4]).unwrap_err();
            assert_eq!(error, DmaError::Message { iova: 0x20, kind: io::ErrorKind::Other });
            let over = loop {
                if let Err(over) = connection.process(dev, mem, 1 << 20) {
                    break over;
                }
            };
            assert_eq!(over, ConnError::NotReplying);
        },
        |sock| {
            let flood = message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 0x1000, &[0; 0x8000]));
            while sock.write_all(&flood).is_ok() {}
        },
    );
    let writes = dev.take_events().iter().filter(|e| matches!(e, Event::Write(0, 0x1000, _))).count();
    assert!((250..=300).contains(&writes), "what was kept (8 to 9 MiB) was done: {writes}");
}

#[test]
fn descriptors_of_commands_that_have_to_wait_are_limited() {
    let (sent, writer) = Sent::new();
    let answers = Mutex::new(Vec::new());
    by_hand(
        LONG,
        |connection, dev, mem| {
            assert_eq!(mem.read(0x20, &mut [0; 4]), Ok(()));
            while answers.lock().unwrap().len() < 60 {
                // The client hangs up behind the last answer, which may be noticed before this loop looks again.
                if let Err(over) = connection.process(dev, mem, 16) {
                    assert_eq!((over, answers.lock().unwrap().len()), (ConnError::Closed, 60));
                }
            }
        },
        |sock| {
            use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
            let (header, body) = read_message(sock).unwrap();
            let fds = [writer.as_fd(); 16];
            for _ in 0..60 {
                let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                let reset = message(Command::DEVICE_RESET, 0, &[]);
                sendmsg(&*sock, &[io::IoSlice::new(&reset)], &mut control, SendFlags::NOSIGNAL).unwrap();
            }
            sock.write_all(&reply_to(&header, &[body.as_slice(), b"late"].concat())).unwrap();
            for _ in 0..60 {
                let (header, _) = read_message(sock).unwrap();
                answers.lock().unwrap().push(header.error);
            }
        },
    );
    let answers = answers.into_inner().unwrap();
    assert_eq!(answers[..16], [0; 16], "256 are kept");
    assert_eq!(answers[16..], [EINVAL; 44], "the others are closed, and their commands refused");
    drop(writer);
    assert!(sent.closed());
}

#[test]
fn many_threads_share_one_client() {
    let (dev, over) = with_server(|client| {
        client.negotiate().unwrap();
        std::thread::scope(|s| {
            for n in 0..4_u64 {
                s.spawn(move || {
                    for round in 0..200_u64 {
                        client.region_write_posted(0, 0x1000 + n * 8, &(round << 8 | n).to_ne_bytes()).unwrap();
                        assert_eq!(client.region_read_uint::<8>(0, 0x1000 + n * 8).unwrap(), round << 8 | n);
                    }
                });
            }
        });
    });
    assert_eq!(over, ConnError::Closed);
    assert_eq!(dev.events.len(), 4 * 200 * 2 + 1);
}

/// Figures, not a test: `cargo test -p ernic-emu --profile quick -- --ignored --nocapture figures_of_transport`.
#[test]
#[ignore = "prints figures"]
fn figures_of_transport() {
    use std::time::Instant;
    const N: usize = 20_000;
    with_server(|client| {
        client.negotiate().unwrap();
        let mut reads: Vec<f64> = (0..N)
            .map(|_| {
                let start = Instant::now();
                client.region_read_uint::<4>(0, 0).unwrap();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        reads.sort_by(f64::total_cmp);
        println!("register read round trip: p50 {:.2} us, p90 {:.2} us", reads[N / 2], reads[N * 9 / 10]);
        for burst in [1_usize, 16, 256] {
            let start = Instant::now();
            for _ in 0..N / burst {
                for _ in 0..burst {
                    client.region_write_posted(0, 8, &[1; 8]).unwrap();
                }
                client.region_read_uint::<4>(0, 0).unwrap();
            }
            let each = start.elapsed().as_secs_f64() * 1e6 / N as f64;
            println!("posted write, {burst} before each read: {each:.2} us each, the read's share included");
        }
    });
    // Without a client in the way: what one message costs the server.
    let mut raw = Raw::new();
    let one = message(Command::REGION_WRITE, proto::NO_REPLY, &write_body(0, 8, &[1; 8]));
    let batch = one.repeat(1000);
    let mut best = f64::INFINITY;
    for _ in 0..50 {
        raw.send_bytes(&batch, &[]);
        let start = Instant::now();
        assert_eq!(raw.run(), 1000);
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / 1000.0);
        raw.dev.take_events();
    }
    println!("posted write, 1000 in the socket: {best:.0} ns each in the server (an event is recorded for each)");
}
