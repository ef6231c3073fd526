//! A disk that can lose power. It has a volatile write cache, as disks do: a write is on the medium once the guest has
//! flushed the cache, and not before. QEMU reaches it by NBD, the protocol of network block devices
//! (`doc/proto.md` of the NBD project), on a Unix socket.
//!
//! Killing QEMU alone loses nothing that the guest has written, as the host's page cache outlives it. Here the cache is
//! this process's, and [`Disk::lose`] drops it, wholly or sector by sector, as a disk without power does: nobody says
//! in which order a disk writes what it was not told to flush.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, ensure};

use crate::say;

/// What a disk writes wholly or not at all, in bytes: the smallest sector that there is.
pub const SECTOR: usize = 512;

/// The longest request that is taken, in bytes: what the protocol has clients assume.
const LONGEST: u32 = 32 << 20;

/// The protocol's numbers.
mod nbd {
    pub const MAGIC: &[u8; 8] = b"NBDMAGIC";
    pub const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
    pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
    pub const REQUEST_MAGIC: u32 = 0x2560_9513;
    pub const REPLY_MAGIC: u32 = 0x6744_6698;
    /// `NBD_FLAG_FIXED_NEWSTYLE` and `NBD_FLAG_NO_ZEROES`.
    pub const HANDSHAKE: u16 = 1 | 2;
    /// `NBD_FLAG_HAS_FLAGS` and `NBD_FLAG_SEND_FLUSH`: the disk has a cache.
    pub const EXPORT: u16 = 1 | 4;
    pub const OPTION_EXPORT_NAME: u32 = 1;
    pub const OPTION_ABORT: u32 = 2;
    pub const OPTION_GO: u32 = 7;
    pub const REPLY_ACK: u32 = 1;
    pub const REPLY_INFO: u32 = 3;
    pub const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
    pub const INFO_EXPORT: u16 = 0;
    pub const INFO_BLOCK_SIZE: u16 = 3;
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const EINVAL: u32 = 22;
}

/// A medium, and the cache in front of it.
#[derive(Debug)]
pub struct Disk {
    medium: File,
    sectors: u64,
    /// What was written since the last flush, by sector.
    cache: BTreeMap<u64, [u8; SECTOR]>,
    most: usize,
}

impl Disk {
    /// A disk whose medium is a file, without what is beyond its last whole sector.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(medium: &Path) -> Result<Self> {
        let medium = File::options().read(true).write(true).open(medium)?;
        let sectors = medium.metadata()?.len() / u64::try_from(SECTOR)?;
        Ok(Self { medium, sectors, cache: BTreeMap::new(), most: 0 })
    }

    /// The most sectors that were in the cache at one time.
    pub fn most(&self) -> usize {
        self.most
    }

    fn size(&self) -> u64 {
        self.sectors.saturating_mul(SECTOR as u64)
    }

    /// The first sector of a request and how many they are.
    fn span(&self, offset: u64, length: usize) -> Option<(u64, u64)> {
        let sector = SECTOR as u64;
        let length = u64::try_from(length).ok()?;
        let whole = offset.is_multiple_of(sector) && length.is_multiple_of(sector);
        (whole && offset.checked_add(length)? <= self.size()).then_some((offset / sector, length / sector))
    }

    /// Reads whole sectors; `None` when there are none of these.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<Option<()>> {
        let Some((first, count)) = self.span(offset, bytes.len()) else { return Ok(None) };
        self.medium.read_exact_at(bytes, offset)?;
        let mut cached = self.cache.range(first..first + count).peekable();
        for (number, sector) in (first..).zip(bytes.chunks_exact_mut(SECTOR)) {
            if let Some((_, newer)) = cached.next_if(|(at, _)| **at == number) {
                sector.copy_from_slice(newer);
            }
        }
        Ok(Some(()))
    }

    /// Writes whole sectors into the cache; `None` when there are none of these.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<()> {
        let (first, _) = self.span(offset, bytes.len())?;
        let (sectors, _) = bytes.as_chunks::<SECTOR>();
        self.cache.extend((first..).zip(sectors.iter().copied()));
        self.most = self.most.max(self.cache.len());
        Some(())
    }

    /// What is in the cache goes to the medium.
    fn flush(&mut self) -> io::Result<()> {
        // Neighbours go together.
        let mut run: (u64, Vec<u8>) = (0, Vec::new());
        for (number, sector) in std::mem::take(&mut self.cache) {
            let offset = number * SECTOR as u64;
            if run.0 + run.1.len() as u64 != offset {
                self.medium.write_all_at(&run.1, run.0)?;
                run = (offset, Vec::new());
            }
            run.1.extend_from_slice(&sector);
        }
        self.medium.write_all_at(&run.1, run.0)
    }

    /// The power goes: of what is in the cache, the sectors for which `kept` says so have made it to the medium, and the others
    /// have not. Returns how many sectors were kept and how many lost.
    ///
    /// # Errors
    /// When the medium cannot be written.
    pub fn lose(&mut self, mut kept: impl FnMut() -> bool) -> Result<(usize, usize)> {
        let all = self.cache.len();
        self.cache.retain(|_, _| kept());
        let left = self.cache.len();
        self.flush()?;
        Ok((left, all - left))
    }

    /// Serves the disk on a Unix socket, which must not exist, to one client after the other.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn power_on(self, socket: &Path) -> Result<Powered> {
        let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
        let state = Arc::new(State::default());
        let thread = thread::spawn({
            let (state, disk) = (Arc::clone(&state), self);
            move || listen(&listener, &state, disk)
        });
        Ok(Powered { socket: socket.to_owned(), state, thread: Some(thread) })
    }
}

/// What the thread that serves a disk is told.
#[derive(Debug, Default)]
struct State {
    /// Nothing is read, written or answered any more.
    cut: AtomicBool,
    /// The thread's end is wanted.
    end: AtomicBool,
    /// The client. It is held open beyond the cut: to QEMU, a closed one is a disk with errors.
    client: Mutex<Option<UnixStream>>,
}

/// A disk that is being served.
#[derive(Debug)]
pub struct Powered {
    socket: PathBuf,
    state: Arc<State>,
    thread: Option<JoinHandle<Disk>>,
}

impl Powered {
    /// From here on the disk does not answer. What it was doing is done; QEMU is to be killed now.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// Ends the service, with QEMU's if it still runs. The cache is as it was at the end or at the cut.
    ///
    /// # Errors
    /// When the thread has panicked.
    pub fn off(mut self) -> Result<Disk> {
        self.stop().context("the disk's thread was gone")
    }

    fn stop(&mut self) -> Option<Disk> {
        let thread = self.thread.take()?;
        {
            let client = self.state.client.lock().unwrap_or_else(PoisonError::into_inner);
            self.state.end.store(true, Ordering::SeqCst);
            if let Some(client) = client.as_ref() {
                // A client that is gone needs no more.
                let _ = client.shutdown(Shutdown::Both);
            }
        }
        // It may wait for a client.
        drop(UnixStream::connect(&self.socket));
        let disk = thread.join().ok();
        let _ = std::fs::remove_file(&self.socket);
        disk
    }
}

impl Drop for Powered {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(listener: &UnixListener, state: &State, mut disk: Disk) -> Disk {
    for client in listener.incoming() {
        let served = client.and_then(|client| Ok((client.try_clone()?, client))).map_err(Into::into).and_then(
            |(handle, mut client)| -> Result<()> {
                {
                    let mut slot = state.client.lock().unwrap_or_else(PoisonError::into_inner);
                    if state.end.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    *slot = Some(handle);
                }
                if greet(&mut client, disk.size())? { serve(&mut client, state, &mut disk) } else { Ok(()) }
            },
        );
        if state.end.load(Ordering::SeqCst) || state.cut.load(Ordering::SeqCst) {
            break;
        }
        // To a client that asks for what it may not, the connection ends.
        state.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Err(error) = served {
            say!("the disk's client: {error:#}");
        }
    }
    disk
}

/// The next `N` bytes.
fn take<const N: usize>(client: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn be32(client: &mut impl Read) -> io::Result<u32> {
    take(client).map(u32::from_be_bytes)
}

/// An answer to an option.
fn answer(client: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> Result<()> {
    let mut bytes = nbd::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u32::try_from(data.len())?.to_be_bytes());
    bytes.extend(data);
    Ok(client.write_all(&bytes)?)
}

/// The handshake ("fixed newstyle"): the disk has one export, whatever the name. `false` when the client leaves.
fn greet(client: &mut (impl Read + Write), size: u64) -> Result<bool> {
    let mut hello = nbd::MAGIC.to_vec();
    hello.extend(nbd::OPTION_MAGIC);
    hello.extend(nbd::HANDSHAKE.to_be_bytes());
    client.write_all(&hello)?;
    let flags = be32(client)?;
    let mut export = size.to_be_bytes().to_vec();
    export.extend(nbd::EXPORT.to_be_bytes());
    loop {
        let magic: [u8; 8] = take(client)?;
        ensure!(&magic == nbd::OPTION_MAGIC, "{magic:02x?} is no option");
        let (option, length) = (be32(client)?, be32(client)?);
        // The longest name is 4096 bytes, and what comes with it in GO is short.
        ensure!(length <= 65536, "an option of {length} bytes");
        let mut data = vec![0; usize::try_from(length)?];
        client.read_exact(&mut data)?;
        match option {
            nbd::OPTION_EXPORT_NAME => {
                if flags & 2 == 0 {
                    export.extend([0; 124]);
                }
                client.write_all(&export)?;
                return Ok(true);
            }
            nbd::OPTION_GO => {
                let info: Vec<u8> = nbd::INFO_EXPORT.to_be_bytes().into_iter().chain(export.iter().copied()).collect();
                answer(client, option, nbd::REPLY_INFO, &info)?;
                let mut info = nbd::INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                // The least, the best and the most.
                for bytes in [u32::try_from(SECTOR)?, 4096, LONGEST] {
                    info.extend(bytes.to_be_bytes());
                }
                answer(client, option, nbd::REPLY_INFO, &info)?;
                answer(client, option, nbd::REPLY_ACK, &[])?;
                return Ok(true);
            }
            nbd::OPTION_ABORT => {
                answer(client, option, nbd::REPLY_ACK, &[])?;
                return Ok(false);
            }
            _ => answer(client, option, nbd::REPLY_UNSUPPORTED, &[])?,
        }
    }
}

/// Requests one by one, until the client leaves or the power is cut.
fn serve(client: &mut (impl Read + Write), state: &State, disk: &mut Disk) -> Result<()> {
    let mut bytes = Vec::new();
    loop {
        let magic = match take(client) {
            Ok(magic) => u32::from_be_bytes(magic),
            // QEMU was killed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ensure!(magic == nbd::REQUEST_MAGIC, "{magic:#x} is no request");
        // Flags, which nobody asked for.
        let _: [u8; 2] = take(client)?;
        let kind = u16::from_be_bytes(take(client)?);
        let cookie: [u8; 8] = take(client)?;
        let offset = u64::from_be_bytes(take(client)?);
        let length = be32(client)?;
        bytes.clear();
        if kind == nbd::READ || kind == nbd::WRITE {
            ensure!(length <= LONGEST, "a request of {length} bytes");
            bytes.resize(usize::try_from(length)?, 0);
        }
        if kind == nbd::WRITE {
            client.read_exact(&mut bytes)?;
        }
        if state.cut.load(Ordering::SeqCst) {
            return Ok(());
        }
        let done = match kind {
            nbd::READ => disk.read(offset, &mut bytes)?,
            nbd::WRITE => disk.write(offset, &bytes),
            nbd::FLUSH => Some(disk.flush()?),
            nbd::DISCONNECT => return Ok(()),
            _ => None,
        };
        let mut reply = nbd::REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend(if done.is_some() { 0 } else { nbd::EINVAL }.to_be_bytes());
        reply.extend(cookie);
        if kind == nbd::READ && done.is_some() {
            reply.extend(&bytes);
        }
        client.write_all(&reply).map_err(|error| anyhow!("an answer: {error}"))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 64 * SECTOR;

    fn medium() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("medium");
        std::fs::write(&path, vec![0; SIZE + 100]).unwrap();
        (folder, path)
    }

    /// A client, with numbers from the protocol's text.
    struct Client(UnixStream);

    impl Client {
        fn connect(socket: &Path) -> Self {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
            let hello: [u8; 18] = take(&mut stream).unwrap();
            assert_eq!(&hello, b"NBDMAGICIHAVEOPT\0\x03");
            // Both flags back.
            stream.write_all(&[0, 0, 0, 3]).unwrap();
            // Structured replies, which the disk does not know.
            stream.write_all(b"IHAVEOPT\0\0\0\x08\0\0\0\0").unwrap();
            let no: [u8; 20] = take(&mut stream).unwrap();
            assert_eq!(no, *b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\x80\0\0\x01\0\0\0\0");
            stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").unwrap();
            let export: [u8; 10] = take(&mut stream).unwrap();
            assert_eq!(export, *b"\0\0\0\0\0\0\x80\0\0\x05");
            Self(stream)
        }

        fn send(&mut self, kind: u8, offset: u64, length: usize, data: &[u8]) {
            let mut request = b"\x25\x60\x95\x13\0\0\0".to_vec();
            request.push(kind);
            request.extend(b"a cookie");
            request.extend(offset.to_be_bytes());
            request.extend(u32::try_from(length).unwrap().to_be_bytes());
            request.extend(data);
            self.0.write_all(&request).unwrap();
        }

        fn ask(&mut self, kind: u8, offset: u64, length: usize, data: &[u8]) -> u32 {
            self.send(kind, offset, length, data);
            let reply: [u8; 16] = take(&mut self.0).unwrap();
            assert_eq!((&reply[..4], &reply[8..]), (&b"\x67\x44\x66\x98"[..], &b"a cookie"[..]));
            u32::from_be_bytes(reply[4..8].try_into().unwrap())
        }

        fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
            assert_eq!(self.ask(0, offset, length, &[]), 0);
            let mut bytes = vec![0; length];
            self.0.read_exact(&mut bytes).unwrap();
            bytes
        }
    }

    #[test]
    fn what_was_not_flushed_is_lost_with_the_power() {
        let (folder, path) = medium();
        let socket = folder.path().join("socket");
        let powered = Disk::open(&path).unwrap().power_on(&socket).unwrap();
        let mut client = Client::connect(&socket);
        assert_eq!(client.ask(1, 512, 1024, &[1; 1024]), 0);
        assert_eq!(client.ask(3, 0, 0, &[]), 0);
        assert_eq!(client.ask(1, 1024, 1024, &[2; 1024]), 0);
        // Read back from the cache, the medium, and both.
        assert_eq!(client.read(0, 2048), [vec![0; 512], vec![1; 512], vec![2; 1024]].concat());
        // Another client of the same disk: QEMU was started again.
        drop(client);
        let mut client = Client::connect(&socket);
        assert_eq!(client.read(1024, 512), [2; 512]);
        powered.cut();
        client.send(3, 0, 0, &[]);
        let mut disk = powered.off().unwrap();
        assert!(take::<1>(&mut client.0).is_err(), "no answer after the cut");
        assert_eq!((disk.lose(|| false).unwrap(), disk.most()), ((0, 2), 2));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..2048], [vec![0; 512], vec![1; 1024], vec![0; 512]].concat());
        assert!(!socket.exists());
        // And the same disk with power again.
        let powered = disk.power_on(&socket).unwrap();
        assert_eq!(Client::connect(&socket).read(512, 1024), [1; 1024]);
        drop(powered);
    }

    #[test]
    fn sectors_that_are_not_there_are_refused() {
        let (folder, path) = medium();
        let socket = folder.path().join("socket");
        let _powered = Disk::open(&path).unwrap().power_on(&socket).unwrap();
        let mut client = Client::connect(&socket);
        assert_eq!(client.ask(0, SIZE as u64, 512, &[]), 22);
        assert_eq!(client.ask(1, SIZE as u64 - 512, 1024, &[0; 1024]), 22);
        assert_eq!(client.ask(1, 100, 512, &[0; 512]), 22);
        assert_eq!(client.ask(0, u64::MAX - 511, 512, &[]), 22);
        assert_eq!(client.ask(0, 0, 100, &[]), 22);
        // Trim, which the disk does not offer.
        assert_eq!(client.ask(4, 0, 512, &[]), 22);
        assert_eq!(client.read(0, SIZE), vec![0; SIZE]);
        // Too long to be taken: the connection ends.
        client.send(0, 0, (32 << 20) + 1, &[]);
        assert!(take::<1>(&mut client.0).is_err());
    }

    #[test]
    fn the_block_size_is_told_to_who_asks_with_go() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut theirs = theirs;
        ours.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0").unwrap();
        assert!(greet(&mut theirs, 1 << 29).unwrap());
        drop(theirs);
        let mut said = Vec::new();
        ours.read_to_end(&mut said).unwrap();
        let head = |kind: u8, length: u8| {
            [&b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0"[..], &[kind, 0, 0, 0, length]].concat()
        };
        let expected = [
            b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
            head(3, 12),
            b"\0\0\0\0\0\0\x20\0\0\0\0\x05".to_vec(),
            head(3, 14),
            b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0".to_vec(),
            head(1, 0),
        ];
        assert_eq!(said, expected.concat());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(usize, usize, u8),
        Flush,
        /// The power goes; of each sector it is told in turn whether it is kept.
        Lose(Vec<bool>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..64_usize, 1..9_usize, any::<u8>()).prop_map(|(at, count, byte)| Step::Write(at, count.min(64 - at), byte)),
            1 => Just(Step::Flush),
            1 => proptest::collection::vec(any::<bool>(), 1..9).prop_map(Step::Lose),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Against a model with two arrays: what is read, and what is on the medium.
        #[test]
        fn a_disk_is_what_was_written_and_after_a_loss_what_was_flushed(steps in proptest::collection::vec(step(), 1..30)) {
            let (_folder, path) = medium();
            let mut disk = Disk::open(&path).unwrap();
            let (mut seen, mut safe) = (vec![0; SIZE], vec![0; SIZE]);
            // Whether a sector was written since the last flush.
            let mut dirty = [false; 64];
            for step in steps {
                match step {
                    Step::Write(at, count, byte) => {
                        let bytes: Vec<u8> = (0..count * SECTOR).map(|n| byte.wrapping_add(u8::try_from(n % 251).unwrap())).collect();
                        prop_assert!(disk.write((at * SECTOR) as u64, &bytes).is_some());
                        seen[at * SECTOR..(at + count) * SECTOR].copy_from_slice(&bytes);
                        dirty[at..at + count].fill(true);
                    }
                    Step::Flush => {
                        disk.flush().unwrap();
                        safe.clone_from(&seen);
                        dirty.fill(false);
                    }
                    Step::Lose(coins) => {
                        let mut mine = coins.iter().cycle();
                        let mut kept = 0;
                        let all = dirty.iter().filter(|d| **d).count();
                        for sector in (0..64).filter(|n| dirty[*n]) {
                            if *mine.next().unwrap() {
                                kept += 1;
                                let span = sector * SECTOR..(sector + 1) * SECTOR;
                                safe[span.clone()].copy_from_slice(&seen[span]);
                            }
                        }
                        let mut coins = coins.iter().cycle();
                        prop_assert_eq!(disk.lose(|| *coins.next().unwrap()).unwrap(), (kept, all - kept));
                        seen.clone_from(&safe);
                        dirty.fill(false);
                    }
                }
                let mut now = vec![0; SIZE];
                prop_assert!(disk.read(0, &mut now).unwrap().is_some());
                prop_assert!(now == seen);
                prop_assert!(std::fs::read(&path).unwrap()[..SIZE] == safe);
            }
        }
    }
}
