//! The server's end of a connection: what a client asks for, and what it is told.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::FileType;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::channel::{Batch, Channel, ConnError, Frame};
use super::proto::{self, Command, Header};
use super::{IrqAction, VfioDevice};
use crate::mem::{GuestMemory, MAP_ALIGN, MAX_MAPS, MessageDma, Prot};

/// How long a DMA_READ or DMA_WRITE may take. Below QEMU's own patience for a register access (5 s, `x-msg-timeout`), so that a
/// client which cannot answer in the middle of one gets the register's reply before it gives up.
pub const DMA_TIMEOUT: Duration = Duration::from_secs(3);
/// A writable map at least this long without a descriptor is the guest's RAM, and RAM without a descriptor is a mistake in
/// QEMU's command line. ROMs are shorter or read-only.
const RAM_SIZED: u64 = 1 << 20;

/// What one [`Connection::process`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Messages handled.
    pub messages: usize,
    /// More messages are there already: call again before waiting for [`Connection::fd`]. They stay there until then
    /// ([`Connection::has_input`]).
    pub more: bool,
}

/// One client. It never waits for the client, except in a DMA message ([`DMA_TIMEOUT`]).
///
/// The owner polls [`Connection::fd`] for [`Connection::poll_events`] and calls [`Connection::process`].
#[derive(Debug)]
pub struct Connection {
    batch: Batch,
    session: Session,
    over: Option<ConnError>,
}

#[derive(Debug)]
struct Session {
    channel: Arc<Channel>,
    /// The reply under construction: header, then body.
    out: Vec<u8>,
    negotiated: bool,
    /// "RAM without a descriptor" was logged.
    said_no_fd: bool,
    dma_timeout: Duration,
}

/// How a command ends that is not answered with a body.
#[derive(Debug)]
enum Failure {
    /// An error reply; the connection goes on.
    Refuse(Errno),
    /// An error reply; the connection ends.
    Fatal(Errno, ConnError),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Refuse(errno)
    }
}

impl Connection {
    /// A connection over a socket that is connected already.
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            batch: Batch::default(),
            session: Session {
                channel: Arc::new(Channel::new(fd, false)),
                out: Vec::new(),
                negotiated: false,
                said_no_fd: false,
                dma_timeout: DMA_TIMEOUT,
            },
            over: None,
        }
    }

    /// The socket, to wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.session.channel.fd()
    }

    /// What to wait for: always [`PollFlags::IN`], and [`PollFlags::OUT`] while replies could not be sent.
    pub fn poll_events(&self) -> PollFlags {
        if self.session.channel.is_pending() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Whether messages lie here that [`Connection::process`] has not handled: its budget ended before them, or they came
    /// while a DMA message was waited for. [`Connection::fd`] says nothing of them, and a client that waits for the answer to
    /// one sends nothing more, so call [`Connection::process`] before waiting.
    pub fn has_input(&self) -> bool {
        self.over.is_none() && (!self.batch.is_empty() || self.session.channel.inbox().has_frames())
    }

    /// Changes [`DMA_TIMEOUT`] for this connection, as long as no version is negotiated.
    pub fn set_dma_timeout(&mut self, timeout: Duration) {
        self.session.dma_timeout = timeout;
    }

    /// Receives once and handles up to `budget` messages, without waiting. DMA_MAP and DMA_UNMAP change `mem`, all else goes to `dev`.
    ///
    /// # Errors
    /// The connection is over, with the reason. Before this returns, `dev` was told ([`VfioDevice::disconnected`]) and `mem` is empty. Every
    /// later call returns the same.
    pub fn process(
        &mut self,
        dev: &mut dyn VfioDevice,
        mem: &GuestMemory,
        budget: usize,
    ) -> Result<Progress, ConnError> {
        if let Some(over) = self.over {
            return Err(over);
        }
        self.run(dev, mem, budget).inspect_err(|e| self.end(*e, dev, mem))
    }

    fn run(&mut self, dev: &mut dyn VfioDevice, mem: &GuestMemory, budget: usize) -> Result<Progress, ConnError> {
        let Self { batch, session, .. } = self;
        let mut progress = Progress::default();
        if session.channel.is_pending() {
            session.channel.flush()?;
        }
        if batch.is_empty() {
            session.channel.receive().take_batch(batch);
        }
        while progress.messages < budget {
            let Some((frame, body)) = batch.next() else { break };
            progress.messages += 1;
            session.message(frame, body, dev, mem)?;
        }
        if batch.is_empty() {
            let (bad, over) = {
                let inbox = session.channel.inbox();
                progress.more = inbox.has_frames();
                (inbox.bad_header(), inbox.over())
            };
            if let Some(over) = over {
                if let Some(header) = bad {
                    let _ = session.reply_error(&header, Errno::INVAL);
                }
                return Err(over);
            }
        } else {
            progress.more = true;
        }
        Ok(progress)
    }

    fn end(&mut self, reason: ConnError, dev: &mut dyn VfioDevice, mem: &GuestMemory) {
        self.over = Some(reason);
        dev.disconnected();
        mem.set_message_dma(None);
        mem.clear();
        // Whoever still holds a descriptor of it: the client sees the end now.
        let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Both);
    }

    /// Ends the connection from our side; as if the client had closed it. Does nothing if it is over.
    pub fn close(&mut self, dev: &mut dyn VfioDevice, mem: &GuestMemory) {
        if self.over.is_none() {
            self.end(ConnError::Closed, dev, mem);
        }
    }

    /// Sends the client away before it has negotiated anything: its first message gets an error reply with `errno` (`EBUSY` when
    /// another client is attached). QEMU then prints that error instead of waiting for an answer.
    pub fn refuse(self, errno: Errno) -> Refusal {
        Refusal { connection: self, errno }
    }
}

/// A client that is being sent away. Drop it to cut it off at once.
#[derive(Debug)]
pub struct Refusal {
    connection: Connection,
    errno: Errno,
}

impl Refusal {
    /// The socket, to wait for until it is readable.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.connection.fd()
    }

    /// Answers the client's first message if it is there. `true`: done, drop this. Never waits.
    pub fn process(&mut self) -> bool {
        let Connection { batch, session, .. } = &mut self.connection;
        let bad = {
            let mut inbox = session.channel.receive();
            inbox.take_batch(batch);
            if batch.is_empty() && inbox.over().is_none() {
                return false;
            }
            inbox.bad_header()
        };
        if let Some(header) = batch.next().map(|(frame, _)| frame.header).or(bad) {
            let _ = session.reply_error(&header, self.errno);
        }
        true
    }
}

/// The bytes of a message after its header, as a wire struct of exactly that length.
fn exactly<T: FromBytes>(body: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(body).map_err(|_| Errno::INVAL)
}

/// The bytes of a message after its header, as a wire struct and what follows it.
fn prefix<T: FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// The size of a wire struct, for `argsz` fields.
fn size_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}

impl Session {
    /// Handles one message and answers it.
    fn message(
        &mut self,
        frame: Frame,
        body: &[u8],
        dev: &mut dyn VfioDevice,
        mem: &GuestMemory,
    ) -> Result<(), ConnError> {
        let header = frame.header;
        self.out.clear();
        self.out.resize(proto::HEADER_LEN, 0);
        let result = self.command(frame, body, dev, mem);
        match result {
            Ok(()) if header.no_reply() => Ok(()),
            Ok(()) => self.reply(&header),
            Err(Failure::Refuse(errno)) => {
                crate::warn_limited!(command = %header.command, id = header.id, %errno, posted = header.no_reply(), "vfio-user command refused");
                if header.no_reply() { Ok(()) } else { self.reply_error(&header, errno) }
            }
            Err(Failure::Fatal(errno, reason)) => {
                let _ = self.reply_error(&header, errno);
                Err(reason)
            }
        }
    }

    /// Sends what `out` holds.
    fn reply(&mut self, to: &Header) -> Result<(), ConnError> {
        let size = u32::try_from(self.out.len()).unwrap_or(u32::MAX);
        let header = Header { id: to.id, command: to.command, size, flags: proto::TYPE_REPLY, error: 0 };
        if let Some(start) = self.out.first_chunk_mut::<{ proto::HEADER_LEN }>() {
            start.copy_from_slice(header.as_bytes());
        }
        self.channel.post(&self.out)
    }

    /// An error reply is a header and nothing else (specification, "Header").
    fn reply_error(&mut self, to: &Header, errno: Errno) -> Result<(), ConnError> {
        let header = Header {
            id: to.id,
            command: to.command,
            size: size_u32::<Header>(),
            flags: proto::TYPE_REPLY | proto::ERROR,
            error: errno.raw_os_error().unsigned_abs(),
        };
        self.channel.post(header.as_bytes())
    }

    fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.out.extend_from_slice(value.as_bytes());
    }

    fn command(
        &mut self,
        frame: Frame,
        body: &[u8],
        dev: &mut dyn VfioDevice,
        mem: &GuestMemory,
    ) -> Result<(), Failure> {
        let Frame { header, fds, fds_lost, .. } = frame;
        if !self.negotiated {
            if header.command != Command::VERSION || !header.is_command() || header.no_reply() {
                let reason = "the first message is not a VERSION that wants a reply";
                return Err(Failure::Fatal(Errno::INVAL, ConnError::Version(reason)));
            }
            return self.version(body, mem).map_err(|why| Failure::Fatal(Errno::INVAL, ConnError::Version(why)));
        }
        if !header.is_command() || fds_lost {
            return Err(Errno::INVAL.into());
        }
        match header.command {
            Command::DMA_MAP => self.dma_map(body, fds, mem)?,
            Command::DMA_UNMAP => self.dma_unmap(body, dev, mem)?,
            Command::DEVICE_GET_INFO => self.device_info(body)?,
            Command::DEVICE_GET_REGION_INFO => self.region_info(body, dev)?,
            Command::DEVICE_GET_IRQ_INFO => self.irq_info(body, dev)?,
            Command::DEVICE_SET_IRQS => set_irqs(body, fds, dev)?,
            Command::REGION_READ => self.region_read(body, dev)?,
            Command::REGION_WRITE => self.region_write(body, dev)?,
            Command::REGION_WRITE_MULTI => self.region_write_multi(body, dev)?,
            Command::DEVICE_RESET if body.is_empty() => dev.reset(),
            Command::DEVICE_RESET | Command::VERSION => return Err(Errno::INVAL.into()),
            _ => return Err(Errno::OPNOTSUPP.into()),
        }
        Ok(())
    }

    fn version(&mut self, body: &[u8], mem: &GuestMemory) -> Result<(), &'static str> {
        let (version, json) = prefix::<proto::Version>(body).map_err(|_| "its VERSION has no version")?;
        if version.major != proto::VERSION.0 {
            return Err("the major version is not 0");
        }
        if json.len() > proto::MAX_VERSION_JSON {
            return Err("the capabilities are longer than 4096 bytes");
        }
        let offered = match json.split_last() {
            None => proto::Capabilities::default(),
            Some((0, json)) => {
                let data: proto::VersionData =
                    serde_json::from_slice(json).map_err(|_| "the capabilities are not the JSON that is expected")?;
                data.capabilities
            }
            Some(_) => return Err("the capabilities do not end with a NUL"),
        };
        let default_xfer = proto::MAX_DATA_XFER as u64;
        let max_xfer = match offered.max_data_xfer_size.unwrap_or(default_xfer).min(default_xfer) {
            0..8 => return Err("max_data_xfer_size is below 8"),
            size => usize::try_from(size).unwrap_or(proto::MAX_DATA_XFER),
        };
        // What we take goes out always; what both sides must agree on only if the client knows it ("the capability list must be a
        // subset of those proposed").
        let ours = proto::VersionData {
            capabilities: proto::Capabilities {
                max_msg_fds: Some(proto::MAX_MSG_FDS as u64),
                max_data_xfer_size: Some(default_xfer),
                max_dma_maps: offered.max_dma_maps.map(|_| MAX_MAPS as u64),
                pgsizes: offered.pgsizes.map(|_| MAP_ALIGN),
                write_multiple: offered.write_multiple.filter(|known| *known),
            },
        };
        self.put(&proto::Version { major: proto::VERSION.0, minor: version.minor.min(proto::VERSION.1) });
        serde_json::to_writer(&mut self.out, &ours).map_err(|_| "our own capabilities cannot be written")?;
        self.out.push(0);
        mem.set_message_dma(Some(Arc::new(ChannelDma {
            channel: Arc::downgrade(&self.channel),
            max_xfer,
            timeout: self.dma_timeout,
        })));
        self.negotiated = true;
        Ok(())
    }

    fn dma_map(&mut self, body: &[u8], fds: Vec<OwnedFd>, mem: &GuestMemory) -> Result<(), Errno> {
        let map: proto::DmaMap = exactly(body)?;
        let prot = Prot::from_bits(map.flags).filter(|p| !p.is_empty()).ok_or(Errno::INVAL)?;
        let mut fds = fds.into_iter();
        let result = match (fds.next(), fds.next()) {
            (Some(fd), None) => mem.map_fd(map.address, map.size, prot, fd, map.offset),
            (None, _) => {
                let mapped = mem.map_message(map.address, map.size, prot);
                if mapped.is_ok() && map.size >= RAM_SIZED && prot.contains(Prot::WRITE) && !self.said_no_fd {
                    self.said_no_fd = true;
                    tracing::error!(
                        iova = format_args!("{:#x}", map.address),
                        bytes = map.size,
                        "guest memory came without a file descriptor: every DMA becomes a message, far too slow for a NIC. \
                         Start QEMU with -object memory-backend-memfd,id=mem0,size=<as -m>,share=on -machine memory-backend=mem0"
                    );
                }
                mapped
            }
            (Some(_), Some(_)) => return Err(Errno::INVAL),
        };
        result.map_err(|e| {
            crate::warn_limited!(error = %e, "DMA_MAP refused");
            e.errno()
        })
    }

    fn dma_unmap(&mut self, body: &[u8], dev: &mut dyn VfioDevice, mem: &GuestMemory) -> Result<(), Errno> {
        // The dirty bitmap's descriptor may follow the struct; the flag decides what is wrong with that.
        let (unmap, rest) = prefix::<proto::DmaUnmap>(body)?;
        if unmap.flags & proto::UNMAP_DIRTY_BITMAP != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let size = size_u32::<proto::DmaUnmap>();
        if !rest.is_empty() || unmap.argsz < size {
            return Err(Errno::INVAL);
        }
        match unmap.flags {
            proto::UNMAP_ALL if unmap.address == 0 && unmap.size == 0 => {
                dev.dma_unmapping(0, u64::MAX);
                mem.clear();
            }
            0 => {
                let aligned = unmap.address.is_multiple_of(MAP_ALIGN) && unmap.size.is_multiple_of(MAP_ALIGN);
                let last = unmap.size.checked_sub(1).and_then(|n| unmap.address.checked_add(n));
                if !aligned || last.is_none() || mem.cuts(unmap.address, unmap.size) {
                    return Err(Errno::INVAL);
                }
                dev.dma_unmapping(unmap.address, unmap.size);
                mem.unmap(unmap.address, unmap.size);
            }
            _ => return Err(Errno::INVAL),
        }
        self.put(&proto::DmaUnmap { argsz: size, ..unmap });
        Ok(())
    }

    fn device_info(&mut self, body: &[u8]) -> Result<(), Errno> {
        let asked: proto::DeviceInfo = exactly(body)?;
        let argsz = size_u32::<proto::DeviceInfo>();
        if asked.argsz < argsz {
            return Err(Errno::INVAL);
        }
        self.put(&proto::DeviceInfo {
            argsz,
            flags: proto::DEVICE_RESET | proto::DEVICE_PCI,
            num_regions: proto::NUM_REGIONS,
            num_irqs: proto::NUM_IRQS,
        });
        Ok(())
    }

    fn region_info(&mut self, body: &[u8], dev: &dyn VfioDevice) -> Result<(), Errno> {
        let asked: proto::RegionInfoMsg = exactly(body)?;
        let argsz = size_u32::<proto::RegionInfoMsg>();
        if asked.argsz < argsz || asked.index >= proto::NUM_REGIONS {
            return Err(Errno::INVAL);
        }
        let info = dev.region_info(asked.index);
        let mut flags = 0;
        if info.read {
            flags |= proto::REGION_READ;
        }
        if info.write {
            flags |= proto::REGION_WRITE;
        }
        self.put(&proto::RegionInfoMsg { argsz, flags, index: asked.index, cap_offset: 0, size: info.size, offset: 0 });
        Ok(())
    }

    fn irq_info(&mut self, body: &[u8], dev: &dyn VfioDevice) -> Result<(), Errno> {
        let asked: proto::IrqInfoMsg = exactly(body)?;
        let argsz = size_u32::<proto::IrqInfoMsg>();
        if asked.argsz < argsz || asked.index >= proto::NUM_IRQS {
            return Err(Errno::INVAL);
        }
        let count = dev.irq_count(asked.index);
        let flags = if count > 0 { proto::IRQ_EVENTFD } else { 0 };
        self.put(&proto::IrqInfoMsg { argsz, flags, index: asked.index, count });
        Ok(())
    }

    fn region_read(&mut self, body: &[u8], dev: &mut dyn VfioDevice) -> Result<(), Errno> {
        let access: proto::RegionAccess = exactly(body)?;
        let count = check_access(&access, dev, |info| info.read)?;
        self.put(&access);
        let start = self.out.len();
        self.out.resize(start + count, 0);
        match self.out.get_mut(start..) {
            Some(data) if count > 0 => dev.region_read(access.region, access.offset, data),
            _ => Ok(()),
        }
    }

    fn region_write(&mut self, body: &[u8], dev: &mut dyn VfioDevice) -> Result<(), Errno> {
        let (access, data) = prefix::<proto::RegionAccess>(body)?;
        let count = check_access(&access, dev, |info| info.write)?;
        if data.len() != count {
            return Err(Errno::INVAL);
        }
        if count > 0 {
            dev.region_write(access.region, access.offset, data)?;
        }
        self.put(&access);
        Ok(())
    }

    /// The writes of one message have nothing to do with each other (the client merely found its queue long), so a bad one does not
    /// stop those behind it; the first error is the reply.
    fn region_write_multi(&mut self, body: &[u8], dev: &mut dyn VfioDevice) -> Result<(), Errno> {
        let (count, writes) = prefix::<u64>(body)?;
        let expected = usize::try_from(count).ok().and_then(|n| n.checked_mul(size_of::<proto::WriteOne>()));
        if expected != Some(writes.len()) {
            return Err(Errno::INVAL);
        }
        let mut result = Ok(());
        for one in writes.chunks_exact(size_of::<proto::WriteOne>()) {
            let done = exactly::<proto::WriteOne>(one).and_then(|one| {
                let access = proto::RegionAccess { offset: one.offset, region: one.region, count: one.count };
                let count = check_access(&access, dev, |info| info.write)?;
                match one.data.get(..count).ok_or(Errno::INVAL)? {
                    [] => Ok(()),
                    data => dev.region_write(one.region, one.offset, data),
                }
            });
            result = result.and(done);
        }
        result?;
        self.put(&count);
        Ok(())
    }
}

/// Whether an access lies in its region and is allowed; its length.
fn check_access(
    access: &proto::RegionAccess,
    dev: &dyn VfioDevice,
    allowed: impl Fn(&super::RegionInfo) -> bool,
) -> Result<usize, Errno> {
    let count = usize::try_from(access.count).map_err(|_| Errno::INVAL)?;
    if access.region >= proto::NUM_REGIONS || count > proto::MAX_DATA_XFER {
        return Err(Errno::INVAL);
    }
    let info = dev.region_info(access.region);
    let end = access.offset.checked_add(u64::from(access.count)).ok_or(Errno::INVAL)?;
    if end > info.size || !allowed(&info) {
        return Err(Errno::INVAL);
    }
    Ok(count)
}

fn set_irqs(body: &[u8], fds: Vec<OwnedFd>, dev: &mut dyn VfioDevice) -> Result<(), Errno> {
    use proto::IrqSetFlags as Flags;
    let (set, data) = prefix::<proto::IrqSet>(body)?;
    let flags = Flags::from_bits(set.flags).ok_or(Errno::INVAL)?;
    let size = usize::try_from(set.argsz).map_err(|_| Errno::INVAL)?;
    // QEMU counts the booleans in argsz and leaves the eventfds out; others count those too.
    if size < size_of::<proto::IrqSet>() || set.index >= proto::NUM_IRQS {
        return Err(Errno::INVAL);
    }
    let total = dev.irq_count(set.index);
    let end = set.start.checked_add(set.count).filter(|end| *end <= total).ok_or(Errno::INVAL)?;
    // No index says that it can be masked.
    let data_type = flags - Flags::ACTION_TRIGGER;
    if !flags.contains(Flags::ACTION_TRIGGER) {
        return Err(Errno::INVAL);
    }
    match (data_type, set.count) {
        (Flags::DATA_NONE, 0) if set.start == 0 && data.is_empty() => dev.set_irqs(set.index, IrqAction::DisableAll),
        (Flags::DATA_NONE, 1..) if data.is_empty() => {
            dev.set_irqs(set.index, IrqAction::Trigger { start: set.start, count: set.count })
        }
        (Flags::DATA_BOOL, 1..) if u32::try_from(data.len()) == Ok(set.count) => {
            for (vector, _) in (set.start..end).zip(data).filter(|(_, on)| **on != 0) {
                dev.set_irqs(set.index, IrqAction::Trigger { start: vector, count: 1 })?;
            }
            Ok(())
        }
        (Flags::DATA_EVENTFD, 1..) if fds.is_empty() => {
            let fds = (set.start..end).map(|_| None).collect();
            dev.set_irqs(set.index, IrqAction::EventFds { start: set.start, fds })
        }
        (Flags::DATA_EVENTFD, 1..) if u32::try_from(fds.len()) == Ok(set.count) => {
            if !fds.iter().all(could_be_eventfd) {
                return Err(Errno::INVAL);
            }
            let fds = fds.into_iter().map(Some).collect();
            dev.set_irqs(set.index, IrqAction::EventFds { start: set.start, fds })
        }
        _ => Err(Errno::INVAL),
    }
}

/// An eventfd is an inode without a type. Files, pipes and sockets are not signalled: writing to them could wait, or destroy something.
fn could_be_eventfd(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Unknown)
}

/// Guest memory without a descriptor, through the client. Ends with the connection.
#[derive(Debug)]
struct ChannelDma {
    channel: Weak<Channel>,
    max_xfer: usize,
    timeout: Duration,
}

impl ChannelDma {
    fn call(&self, command: Command, access: proto::DmaAccess, data: &[u8]) -> io::Result<Vec<u8>> {
        let channel = self.channel.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let size = proto::HEADER_LEN + size_of::<proto::DmaAccess>() + data.len();
        let header = Header {
            id: 0,
            command,
            size: u32::try_from(size).map_err(io::Error::other)?,
            flags: proto::TYPE_COMMAND,
            error: 0,
        };
        let mut message = Vec::with_capacity(size);
        message.extend_from_slice(header.as_bytes());
        message.extend_from_slice(access.as_bytes());
        message.extend_from_slice(data);
        let result = channel.call(&mut message, &[], self.timeout, true, &mut || {});
        let reply = result.inspect_err(|e| {
            crate::warn_limited!(%command, iova = format_args!("{:#x}", access.address), error = %e, "DMA message failed");
        })?;
        if reply.header.command != command {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "reply to another command"));
        }
        if reply.header.is_error() {
            return Err(match i32::try_from(reply.header.error) {
                Ok(errno @ 1..) => io::Error::from_raw_os_error(errno),
                _ => io::Error::other("refused by the client"),
            });
        }
        Ok(reply.body)
    }

    /// The parts of `len` bytes at `iova` that one message may carry.
    fn parts(&self, iova: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
        (0..len).step_by(self.max_xfer).map(move |at| (iova + at as u64, at..len.min(at + self.max_xfer)))
    }
}

impl MessageDma for ChannelDma {
    fn read(&self, iova: u64, buf: &mut [u8]) -> io::Result<()> {
        for (address, range) in self.parts(iova, buf.len()) {
            let access = proto::DmaAccess { address, count: range.len() as u64 };
            let body = self.call(Command::DMA_READ, access, &[])?;
            let part = buf.get_mut(range).unwrap_or_default();
            match proto::DmaAccess::read_from_prefix(&body) {
                Ok((answer, data)) if answer == access && data.len() == part.len() => part.copy_from_slice(data),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "reply does not fit its DMA_READ")),
            }
        }
        Ok(())
    }

    fn write(&self, iova: u64, buf: &[u8]) -> io::Result<()> {
        for (address, range) in self.parts(iova, buf.len()) {
            let access = proto::DmaAccess { address, count: range.len() as u64 };
            let body = self.call(Command::DMA_WRITE, access, buf.get(range).unwrap_or_default())?;
            // The count of this reply has 8 bytes with QEMU and libvfio-user, and 4 in the specification's table.
            let short: &[u8] = access.as_bytes().get(..12).unwrap_or_default();
            if body != access.as_bytes() && body != short {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "reply does not fit its DMA_WRITE"));
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}
