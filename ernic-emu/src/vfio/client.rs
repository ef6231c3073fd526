//! The client's end of a connection: what QEMU does, for tests that play the guest, and for those that misbehave.
//!
//! A call sends one command and waits for its reply. Any number of threads may use one client. Commands from the server (DMA_READ and
//! DMA_WRITE, for memory that was mapped without a descriptor) are answered from the memory given to [`Client::set_memory`] by whichever
//! thread waits for something; [`Client::serve`] does so while nothing else is waited for.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::channel::{Channel, Message};
use super::proto::{self, Command, Header, IrqSetFlags};
use crate::mem::{MessageDma, Prot};

/// How long a call waits for its reply unless [`Client::set_timeout`] says otherwise. Generous: it only bounds hangs.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with an error.
    #[error("{command} refused: {errno}")]
    Refused {
        /// What was asked.
        command: Command,
        /// What it said.
        errno: Errno,
    },
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server's reply does not fit the command.
    #[error("reply to {command} does not fit: {what}")]
    BadReply {
        /// What was asked.
        command: Command,
        /// What is wrong.
        what: &'static str,
    },
    /// The socket failed, or there was no reply in time.
    #[error(transparent)]
    Io(io::Error),
}

impl ClientError {
    /// What the server said, if it did.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

impl From<io::Error> for ClientError {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::ConnectionAborted { Self::Closed } else { Self::Io(e) }
    }
}

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawMessage {
    /// Its header.
    pub header: Header,
    /// What follows.
    pub body: Vec<u8>,
}

/// A connected client.
pub struct Client {
    channel: Channel,
    memory: RwLock<Option<Arc<dyn MessageDma>>>,
    timeout: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("channel", &self.channel).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the server at `path` and agrees on version 0.1 with QEMU's capabilities.
    ///
    /// # Errors
    /// Nobody listens, or there is no agreement.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let client = Self::connect_unnegotiated(path)?;
        client.negotiate()?;
        Ok(client)
    }

    /// Connects to the server at `path` and sends nothing.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect_unnegotiated(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        Ok(Self::new(UnixStream::connect(path).map_err(ClientError::Io)?.into()))
    }

    /// A client over a socket that is connected already. Sends nothing.
    pub fn new(fd: OwnedFd) -> Self {
        Self { channel: Channel::new(fd, true), memory: RwLock::new(None), timeout: TIMEOUT }
    }

    /// The socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Changes how long a call waits.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// What the server's DMA_READ and DMA_WRITE get to. Without it they are refused with EFAULT.
    pub fn set_memory(&self, memory: Option<Arc<dyn MessageDma>>) {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Agrees on version 0.1; offers what QEMU 11 offers. The server's capabilities.
    ///
    /// # Errors
    /// The server refuses.
    pub fn negotiate(&self) -> Result<proto::Capabilities, ClientError> {
        let json = br#"{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,"max_data_xfer_size":1048576,"migration":{"max_bitmap_size":268435456,"pgsize":4096},"write_multiple":true}}"#;
        let (_, capabilities) = self.negotiate_with(proto::VERSION, &[json.as_slice(), b"\0"].concat())?;
        Ok(capabilities)
    }

    /// Proposes `version` (major, minor) with `data` (JSON and a NUL, or nothing). The server's version and capabilities.
    ///
    /// # Errors
    /// The server refuses.
    pub fn negotiate_with(
        &self,
        version: (u16, u16),
        data: &[u8],
    ) -> Result<((u16, u16), proto::Capabilities), ClientError> {
        let command = Command::VERSION;
        let head = proto::Version { major: version.0, minor: version.1 };
        let body = self.call(command, &[head.as_bytes(), data].concat(), &[])?;
        let bad = |what| ClientError::BadReply { command, what };
        let (head, json) = proto::Version::read_from_prefix(&body).map_err(|_| bad("no version"))?;
        let json = json.strip_suffix(b"\0").ok_or_else(|| bad("no NUL"))?;
        let data: proto::VersionData = serde_json::from_slice(json).map_err(|_| bad("not JSON"))?;
        Ok(((head.major, head.minor), data.capabilities))
    }

    /// Flags and numbers of regions and interrupt indexes.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn device_info(&self) -> Result<proto::DeviceInfo, ClientError> {
        let argsz = size_u32::<proto::DeviceInfo>();
        self.ask(Command::DEVICE_GET_INFO, &proto::DeviceInfo { argsz, flags: 0, num_regions: 0, num_irqs: 0 })
    }

    /// Size and rights of region `index`.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn region_info(&self, index: u32) -> Result<proto::RegionInfoMsg, ClientError> {
        let argsz = size_u32::<proto::RegionInfoMsg>();
        let ask = proto::RegionInfoMsg { argsz, flags: 0, index, cap_offset: 0, size: 0, offset: 0 };
        self.ask(Command::DEVICE_GET_REGION_INFO, &ask)
    }

    /// Number of interrupts of index `index`.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn irq_info(&self, index: u32) -> Result<proto::IrqInfoMsg, ClientError> {
        let argsz = size_u32::<proto::IrqInfoMsg>();
        self.ask(Command::DEVICE_GET_IRQ_INFO, &proto::IrqInfoMsg { argsz, flags: 0, index, count: 0 })
    }

    /// Gives `len` bytes of `fd` from `offset` to the device, at guest address `iova`.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn dma_map(&self, iova: u64, len: u64, prot: Prot, fd: BorrowedFd<'_>, offset: u64) -> Result<(), ClientError> {
        self.map(iova, len, prot, &[fd], offset)
    }

    /// Gives `len` bytes at guest address `iova` to the device without a descriptor: it asks for them ([`Client::set_memory`]).
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn dma_map_message(&self, iova: u64, len: u64, prot: Prot) -> Result<(), ClientError> {
        self.map(iova, len, prot, &[], 0)
    }

    fn map(&self, address: u64, size: u64, prot: Prot, fds: &[BorrowedFd<'_>], offset: u64) -> Result<(), ClientError> {
        let argsz = size_u32::<proto::DmaMap>();
        let map = proto::DmaMap { argsz, flags: prot.bits(), offset, address, size };
        self.nothing(Command::DMA_MAP, map.as_bytes(), fds)
    }

    /// Takes the maps in `len` bytes at `iova` back.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), ClientError> {
        self.unmap(0, iova, len)
    }

    /// Takes all maps back.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn dma_unmap_all(&self) -> Result<(), ClientError> {
        self.unmap(proto::UNMAP_ALL, 0, 0)
    }

    fn unmap(&self, flags: u32, address: u64, size: u64) -> Result<(), ClientError> {
        let unmap = proto::DmaUnmap { argsz: size_u32::<proto::DmaUnmap>(), flags, address, size };
        let reply: proto::DmaUnmap = self.ask(Command::DMA_UNMAP, &unmap)?;
        if reply != unmap {
            return Err(ClientError::BadReply { command: Command::DMA_UNMAP, what: "not the range that was sent" });
        }
        Ok(())
    }

    /// Reads a region.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let access = proto::RegionAccess { offset, region, count: len_u32(data.len()) };
        let body = self.call(Command::REGION_READ, access.as_bytes(), &[])?;
        match proto::RegionAccess::read_from_prefix(&body) {
            Ok((answer, read)) if answer == access && read.len() == data.len() => data.copy_from_slice(read),
            _ => {
                return Err(ClientError::BadReply {
                    command: Command::REGION_READ,
                    what: "not the range that was sent",
                });
            }
        }
        Ok(())
    }

    /// Reads an integer from a region, little-endian: `N` is 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn region_read_uint<const N: usize>(&self, region: u32, offset: u64) -> Result<u64, ClientError> {
        let mut data = [0; N];
        self.region_read(region, offset, &mut data)?;
        Ok(data.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Writes a region and waits until it is done.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let access = proto::RegionAccess { offset, region, count: len_u32(data.len()) };
        let body = self.call(Command::REGION_WRITE, &[access.as_bytes(), data].concat(), &[])?;
        if body != access.as_bytes() {
            return Err(ClientError::BadReply { command: Command::REGION_WRITE, what: "not the range that was sent" });
        }
        Ok(())
    }

    /// Writes a region and does not wait: what QEMU does for BARs.
    ///
    /// # Errors
    /// The socket failed or stayed full.
    pub fn region_write_posted(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let access = proto::RegionAccess { offset, region, count: len_u32(data.len()) };
        self.post(Command::REGION_WRITE, &[access.as_bytes(), data].concat(), &[])
    }

    /// Writes of at most 8 bytes, as one message; posted, or with a reply that says how many were done.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn region_write_multi(&self, writes: &[(u32, u64, &[u8])], posted: bool) -> Result<(), ClientError> {
        let command = Command::REGION_WRITE_MULTI;
        let count = writes.len() as u64;
        let mut body = count.as_bytes().to_vec();
        for (region, offset, bytes) in writes {
            let mut data = [0; 8];
            data.iter_mut().zip(*bytes).for_each(|(to, from)| *to = *from);
            let one = proto::WriteOne { offset: *offset, region: *region, count: len_u32(bytes.len()), data };
            body.extend_from_slice(one.as_bytes());
        }
        if posted {
            return self.post(command, &body, &[]);
        }
        if self.call(command, &body, &[])? != count.as_bytes() {
            return Err(ClientError::BadReply { command, what: "not the number of writes" });
        }
        Ok(())
    }

    /// One DEVICE_SET_IRQS: `data` are the booleans of `DATA_BOOL`, `fds` the eventfds of `DATA_EVENTFD`.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn set_irqs(
        &self,
        index: u32,
        flags: IrqSetFlags,
        start: u32,
        count: u32,
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let argsz = len_u32(size_of::<proto::IrqSet>() + data.len());
        let set = proto::IrqSet { argsz, flags: flags.bits(), index, start, count };
        self.nothing(Command::DEVICE_SET_IRQS, &[set.as_bytes(), data].concat(), fds)
    }

    /// Gives vectors `start..` of index `index` these eventfds, in messages of at most 16.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn install_irqs(&self, index: u32, start: u32, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let flags = IrqSetFlags::DATA_EVENTFD | IrqSetFlags::ACTION_TRIGGER;
        for (start, fds) in (start..).step_by(proto::MAX_MSG_FDS).zip(fds.chunks(proto::MAX_MSG_FDS)) {
            self.set_irqs(index, flags, start, len_u32(fds.len()), &[], fds)?;
        }
        Ok(())
    }

    /// Takes the eventfds of vectors `start..start + count` away.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn remove_irqs(&self, index: u32, start: u32, count: u32) -> Result<(), ClientError> {
        self.set_irqs(index, IrqSetFlags::DATA_EVENTFD | IrqSetFlags::ACTION_TRIGGER, start, count, &[], &[])
    }

    /// Takes all eventfds of an index away.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn disable_irqs(&self, index: u32) -> Result<(), ClientError> {
        self.set_irqs(index, IrqSetFlags::DATA_NONE | IrqSetFlags::ACTION_TRIGGER, 0, 0, &[], &[])
    }

    /// Resets the device.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn reset(&self) -> Result<(), ClientError> {
        self.nothing(Command::DEVICE_RESET, &[], &[])
    }

    /// Answers the server's DMA messages for `time`.
    ///
    /// # Errors
    /// The connection is over.
    pub fn serve(&self, time: Duration) -> Result<(), ClientError> {
        Ok(self.channel.serve(Instant::now() + time, &mut || self.answer())?)
    }

    /// Sends any command and waits for its reply; the reply's body.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn call(&self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, ClientError> {
        let mut message = message(command, 0, body);
        let reply = self.channel.call(&mut message, fds, self.timeout, false, &mut || self.answer())?;
        let Message { header, body } = reply;
        if header.command != command {
            return Err(ClientError::BadReply { command, what: "another command" });
        }
        if header.is_error() {
            let errno = i32::try_from(header.error).map_or(Errno::INVAL, Errno::from_raw_os_error);
            return Err(ClientError::Refused { command, errno });
        }
        Ok(body)
    }

    /// Sends any command with the no-reply flag.
    ///
    /// # Errors
    /// The socket failed or stayed full.
    pub fn post(&self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        self.send_raw(&message(command, proto::NO_REPLY, body), fds)
    }

    /// Sends bytes as they are, in one `sendmsg` if the socket takes them.
    ///
    /// # Errors
    /// The socket failed or stayed full.
    pub fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        Ok(self.channel.send_all(bytes, fds, Instant::now() + self.timeout)?)
    }

    /// The next reply that no call waited for: those to [`Client::send_raw`].
    ///
    /// # Errors
    /// The connection is over, or nothing came within `timeout`.
    pub fn receive_raw(&self, timeout: Duration) -> Result<RawMessage, ClientError> {
        let Message { header, body } = self.channel.any_reply(Instant::now() + timeout, &mut || self.answer())?;
        Ok(RawMessage { header, body })
    }

    fn ask<T: FromBytes + IntoBytes + zerocopy::Immutable>(
        &self,
        command: Command,
        body: &T,
    ) -> Result<T, ClientError> {
        let reply = self.call(command, body.as_bytes(), &[])?;
        T::read_from_bytes(&reply).map_err(|_| ClientError::BadReply { command, what: "length" })
    }

    fn nothing(&self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        if self.call(command, body, fds)?.is_empty() {
            Ok(())
        } else {
            Err(ClientError::BadReply { command, what: "length" })
        }
    }

    /// Answers the server's commands that have come.
    fn answer(&self) {
        while let Some(Message { header, body }) = self.channel.take_command() {
            let (error, body) = match self.serve_dma(&header, &body) {
                Ok(body) => (None, body),
                Err(errno) => (Some(errno), Vec::new()),
            };
            let flags = proto::TYPE_REPLY | if error.is_some() { proto::ERROR } else { 0 };
            let mut reply = message(header.command, flags, &body);
            let head = Header {
                id: header.id,
                command: header.command,
                size: len_u32(reply.len()),
                flags,
                error: error.map_or(0, |e| e.raw_os_error().unsigned_abs()),
            };
            if let Some(start) = reply.first_chunk_mut::<{ proto::HEADER_LEN }>() {
                start.copy_from_slice(head.as_bytes());
            }
            // A connection that ends here is reported by what is waited for.
            let _ = self.channel.post(&reply);
        }
    }

    fn serve_dma(&self, header: &Header, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let (access, data) = proto::DmaAccess::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Errno::FAULT)?;
        let count = usize::try_from(access.count).ok().filter(|n| *n <= proto::MAX_DATA_XFER).ok_or(Errno::INVAL)?;
        let mut reply = access.as_bytes().to_vec();
        match header.command {
            Command::DMA_READ if data.is_empty() => {
                let mut read = vec![0; count];
                memory.read(access.address, &mut read).map_err(|_| Errno::FAULT)?;
                reply.extend_from_slice(&read);
            }
            Command::DMA_WRITE if data.len() == count => {
                memory.write(access.address, data).map_err(|_| Errno::FAULT)?;
            }
            Command::DMA_READ | Command::DMA_WRITE => return Err(Errno::INVAL),
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(reply)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// A message with id 0: header and body.
pub fn message(command: Command, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = len_u32(proto::HEADER_LEN + body.len());
    [Header { id: 0, command, size, flags, error: 0 }.as_bytes(), body].concat()
}

fn size_u32<T>() -> u32 {
    len_u32(size_of::<T>())
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
