#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use super::*;
use proptest::prelude::*;
use rustix::fs::MemfdFlags;

const PAGE: u64 = MAP_ALIGN;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// A memfd as QEMU makes it: `pages` long, sealed.
fn memfd(pages: u64) -> OwnedFd {
    let fd = unsealed(pages, MemfdFlags::ALLOW_SEALING);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).unwrap();
    fd
}

fn unsealed(pages: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest", flags | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, pages * PAGE).unwrap();
    fd
}

fn copy(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap()
}

/// What the guest sees: the file itself.
fn file_bytes(fd: &OwnedFd, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    assert_eq!(rustix::io::pread(fd, &mut buf, offset).unwrap(), len);
    buf
}

fn set_file_bytes(fd: &OwnedFd, offset: u64, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(fd, bytes, offset).unwrap(), bytes.len());
}

/// Memory behind messages.
struct Client {
    base: u64,
    bytes: Mutex<Vec<u8>>,
    calls: AtomicUsize,
    /// Address and length of each write.
    writes: Mutex<Vec<(u64, usize)>>,
}

impl Client {
    fn new(base: u64, len: usize) -> Arc<Self> {
        Arc::new(Self { base, bytes: Mutex::new(vec![0; len]), calls: AtomicUsize::new(0), writes: Mutex::default() })
    }
    fn range(&self, iova: u64, len: usize) -> Range<usize> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let start = usize::try_from(iova - self.base).unwrap();
        start..start + len
    }
}

impl MessageDma for Client {
    fn read(&self, iova: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = self.range(iova, buf.len());
        buf.copy_from_slice(&self.bytes.lock().unwrap()[range]);
        Ok(())
    }
    fn write(&self, iova: u64, buf: &[u8]) -> io::Result<()> {
        let range = self.range(iova, buf.len());
        self.bytes.lock().unwrap()[range].copy_from_slice(buf);
        self.writes.lock().unwrap().push((iova, buf.len()));
        Ok(())
    }
}

#[test]
fn bytes_go_where_the_guest_sees_them() {
    let fd = memfd(4);
    let mem = GuestMemory::new();
    mem.map_fd(0x10_0000, 2 * PAGE, RW, copy(&fd), PAGE).unwrap();
    mem.write(0x10_0003, b"hello").unwrap();
    assert_eq!(file_bytes(&fd, PAGE + 3, 5), b"hello");
    set_file_bytes(&fd, PAGE + 0x18, &0x0123_4567_89ab_cdef_u64.to_le_bytes());
    assert_eq!(mem.read_plain::<u64>(0x10_0018).unwrap(), 0x0123_4567_89ab_cdef_u64.to_le());
    mem.write_plain(0x10_0020, &[7_u32, 8, 9]).unwrap();
    assert_eq!(mem.read_plain::<[u32; 3]>(0x10_0020).unwrap(), [7, 8, 9]);
    mem.store_u64(0x10_0038, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(file_bytes(&fd, PAGE + 0x38, 8), 0x1122_3344_5566_7788_u64.to_le_bytes());
    let entry: Vec<u8> = (0..64).collect();
    mem.write_completion(0x10_1000, &entry).unwrap();
    assert_eq!(file_bytes(&fd, 2 * PAGE, 64), entry);
    // Large and crooked copies take the other path.
    let big: Vec<u8> = (0..2 * PAGE as usize - 3).map(|i| (i * 7) as u8).collect();
    mem.write(0x10_0001, &big).unwrap();
    assert_eq!(file_bytes(&fd, PAGE + 1, big.len()), big);
    let mut back = vec![0; big.len()];
    mem.read(0x10_0001, &mut back).unwrap();
    assert!(back == big);
    // Nothing of the file's other pages was touched.
    assert!(file_bytes(&fd, 0, PAGE as usize).iter().all(|b| *b == 0));
    assert!(file_bytes(&fd, 3 * PAGE, PAGE as usize).iter().all(|b| *b == 0));
}

#[test]
fn refusals_name_the_first_bad_byte() {
    let fd = memfd(8);
    let mem = GuestMemory::new();
    mem.map_fd(0x1000, PAGE, RW, copy(&fd), 0).unwrap();
    mem.map_fd(0x2000, PAGE, Prot::READ, copy(&fd), PAGE).unwrap();
    mem.map_fd(0x4000, PAGE, Prot::WRITE, copy(&fd), 2 * PAGE).unwrap();
    let mut buf = [0_u8; 32];
    let unmapped = |iova| Err(DmaError::Unmapped { iova });
    let denied = |iova, want| Err(DmaError::Denied { iova, want });
    assert_eq!(mem.read(0xff0, &mut buf), unmapped(0xff0));
    assert_eq!(mem.read(0x2ff0, &mut buf), unmapped(0x3000));
    assert_eq!(mem.read(0x1ff0, &mut buf), Ok(()), "across two maps");
    assert_eq!(mem.write(0x1ff0, &[1; 32]), denied(0x2000, Prot::WRITE));
    assert_eq!(file_bytes(&fd, PAGE - 16, 16), [0; 16], "a refused write wrote nothing");
    assert_eq!(mem.write_completion(0x1ff0, &[1; 32]), denied(0x2000, Prot::WRITE));
    assert_eq!(file_bytes(&fd, PAGE - 16, 16), [0; 16]);
    assert_eq!(mem.read(0x4008, &mut buf), denied(0x4008, Prot::READ));
    assert_eq!(mem.write(0x4008, &[1; 8]), Ok(()));
    assert_eq!(mem.store_u64(0x2000, 1), denied(0x2000, Prot::WRITE));
    assert_eq!(mem.read(u64::MAX - 3, &mut buf), Err(DmaError::Wrap { iova: u64::MAX - 3, len: 32 }));
    assert_eq!(mem.check(0x1000, 0x2000, Prot::READ), Ok(()));
    assert_eq!(mem.check(0x1000, 0x2001, Prot::READ), unmapped(0x3000));
    for (iova, len) in [(0x1004, 8), (0x1000, 12), (0x1000, 0)] {
        assert_eq!(mem.write_completion(iova, &vec![1; len]), Err(DmaError::Misaligned { iova, len }));
    }
    assert_eq!(mem.store_u64(0x1001, 1), Err(DmaError::Misaligned { iova: 0x1001, len: 8 }));
    // Nothing to copy is never refused.
    assert_eq!(mem.read(0xdead_0000, &mut []), Ok(()));
    assert_eq!(mem.write(u64::MAX, &[]), Ok(()));
}

#[test]
fn maps_that_make_no_sense_are_refused() {
    let fd = memfd(4);
    let mem = GuestMemory::new();
    let bad = |iova, len, offset| Err(MapError::BadRange { iova, len, offset });
    for (iova, len, offset) in [
        (0x1001, PAGE, 0),
        (0x1000, PAGE + 1, 0),
        (0x1000, PAGE, 8),
        (0x1000, 0, 0),
        (0u64.wrapping_sub(PAGE), 2 * PAGE, 0),
        (0x1000, PAGE, u64::MAX - PAGE + 1),
    ] {
        assert_eq!(mem.map_fd(iova, len, RW, copy(&fd), offset), bad(iova, len, offset));
    }
    assert_eq!(mem.map_message(0x1000, 0x800, RW), bad(0x1000, 0x800, 0));
    let short = MapError::FileTooShort { size: 4 * PAGE, end: 5 * PAGE };
    assert_eq!(mem.map_fd(0x1000, 4 * PAGE, RW, copy(&fd), PAGE), Err(short));
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(mem.map_fd(0x1000, PAGE, Prot::READ, reader, 0), Err(MapError::NotAFile));
    assert_eq!(mem.map_fd(0x1000, PAGE, RW, writer, 0), Err(MapError::NotAFile));
    let read_only: OwnedFd = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)),
        OFlags::RDONLY | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    assert_eq!(mem.map_fd(0x1000, PAGE, RW, copy(&read_only), 0), Err(MapError::ReadOnlyFile));
    mem.map_fd(0x1000, PAGE, Prot::READ, read_only, 0).unwrap();
    // The same file again, this time writable: the read-only mapping is not reused for it.
    mem.map_fd(0x2000, PAGE, RW, copy(&fd), 0).unwrap();
    mem.write(0x2000, b"x").unwrap();
    assert_eq!(mem.read_plain::<u8>(0x1000).unwrap(), b'x');
    let overlap = |iova, existing| Err(MapError::Overlap { iova, existing });
    assert_eq!(mem.map_message(0x2000, PAGE, RW), overlap(0x2000, 0x2000));
    assert_eq!(mem.map_fd(0, 2 * PAGE, RW, copy(&fd), 0), overlap(0, 0x1000));
    assert_eq!(mem.map_fd(0, 4 * PAGE, RW, fd, 0).unwrap_err().errno(), Errno::EXIST);
    assert_eq!(mem.map_count(), 2);
}

#[test]
fn one_file_is_mapped_once_and_given_back() {
    let fd = memfd(64);
    let mem = GuestMemory::new();
    for page in 0..64 {
        // A descriptor of its own per map, as QEMU with a virtual IOMMU sends them.
        mem.map_fd((100 - page) * PAGE, PAGE, RW, copy(&fd), page * PAGE).unwrap();
    }
    let file = {
        let files = mem.0.files.lock().unwrap();
        assert_eq!(files.len(), 1);
        files.values().next().unwrap().clone()
    };
    assert_eq!(file.strong_count(), 64);
    assert_eq!(file.upgrade().unwrap().len, 64 * PAGE as usize);
    // Contiguous in guest addresses, backwards in the file.
    let all: Vec<u8> = (0..64 * PAGE as usize).map(|i| (i / 16) as u8).collect();
    mem.write(37 * PAGE, &all).unwrap();
    assert_eq!(file_bytes(&fd, 0, 4096), all[63 * 4096..]);
    assert_eq!(file_bytes(&fd, 63 * PAGE, 4096), all[..4096]);
    assert_eq!(mem.unmap(37 * PAGE, 63 * PAGE), 63);
    assert_eq!(file.strong_count(), 1);
    assert_eq!(mem.unmap(0, 1000 * PAGE), 1);
    assert_eq!(file.strong_count(), 0, "the mapping is gone");
    assert_eq!(mem.unmap(0, 1000 * PAGE), 0);
    assert_eq!(mem.read_plain::<u8>(50 * PAGE), Err(DmaError::Unmapped { iova: 50 * PAGE }));
}

#[test]
fn a_file_that_grew_is_mapped_anew() {
    let fd = unsealed(1, MemfdFlags::ALLOW_SEALING);
    let mem = GuestMemory::new();
    mem.map_fd(0, PAGE, RW, copy(&fd), 0).unwrap();
    rustix::fs::ftruncate(&fd, 3 * PAGE).unwrap();
    mem.map_fd(PAGE, PAGE, RW, copy(&fd), 2 * PAGE).unwrap();
    mem.write(PAGE - 2, b"abcd").unwrap();
    assert_eq!(file_bytes(&fd, PAGE - 2, 2), b"ab");
    assert_eq!(file_bytes(&fd, 2 * PAGE, 2), b"cd");
}

#[test]
fn a_file_that_can_be_sealed_is_and_cannot_shrink() {
    let fd = unsealed(2, MemfdFlags::ALLOW_SEALING);
    let mem = GuestMemory::new();
    mem.map_fd(0, PAGE, RW, copy(&fd), 0).unwrap();
    assert!(matches!(mem.table().maps[0].backing, Backing::Direct { .. }));
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
}

/// A client that truncates what it gave us must not end this process by SIGBUS.
#[test]
fn a_truncated_file_is_an_error_and_not_a_signal() {
    let fd = unsealed(4, MemfdFlags::empty());
    let mem = GuestMemory::new();
    mem.map_fd(0x10000, 4 * PAGE, RW, copy(&fd), 0).unwrap();
    assert!(matches!(mem.table().maps[0].backing, Backing::Guarded { .. }));
    let data: Vec<u8> = (0..3 * PAGE as usize + 5).map(|i| (i * 3) as u8).collect();
    mem.write(0x10001, &data).unwrap();
    assert!(file_bytes(&fd, 1, data.len()) == data);
    let mut back = vec![0; data.len()];
    mem.read(0x10001, &mut back).unwrap();
    assert!(back == data);
    mem.write_completion(0x10008, &[0xa5; 16]).unwrap();
    mem.store_u64(0x10020, 0x0102).unwrap();
    assert_eq!(file_bytes(&fd, 8, 16), [0xa5; 16]);
    assert_eq!(file_bytes(&fd, 0x20, 2), [2, 1]);

    rustix::fs::ftruncate(&fd, PAGE).unwrap();
    let fault = Err(DmaError::Fault { iova: 0x11000 });
    assert_eq!(mem.read(0x11000, &mut [0; 8]), fault);
    assert_eq!(mem.write(0x11000, &[0; 64]), fault);
    assert_eq!(mem.store_u64(0x11000, 0), fault);
    assert_eq!(mem.read(0x10000, &mut back), Err(DmaError::Fault { iova: 0x10000 }), "reaches beyond the end");
    assert_eq!(mem.read(0x10000, &mut back[..PAGE as usize]), Ok(()), "what is left works");
}

#[test]
fn limits_hold_and_room_comes_back() {
    let mem = GuestMemory::new();
    for n in 0..MAX_MAPS as u64 {
        mem.map_message((1 << 40) - 2 * n * PAGE, PAGE, RW).unwrap();
    }
    assert_eq!(mem.map_message(1 << 41, PAGE, RW), Err(MapError::TooManyMaps));
    assert_eq!(mem.map_count(), MAX_MAPS);
    assert_eq!(mem.unmap(1 << 40, PAGE), 1);
    mem.map_message(1 << 41, PAGE, RW).unwrap();
    assert_eq!(mem.clear(), MAX_MAPS);

    let sample = memfd(1);
    for n in 0..MAX_FILES as u64 {
        mem.map_fd(n * PAGE, PAGE, RW, memfd(1), 0).unwrap();
    }
    assert_eq!(mem.map_fd(1 << 41, PAGE, RW, copy(&sample), 0), Err(MapError::TooManyFiles));
    assert_eq!(mem.unmap(0, PAGE), 1);
    mem.map_fd(1 << 41, PAGE, RW, sample, 0).unwrap();
}

#[test]
fn case_04_a_dma_across_maps_with_and_without_descriptor_is_split() {
    let fd = memfd(2);
    let mem = GuestMemory::new();
    let client = Client::new(0x2000, 0x1000);
    mem.map_fd(0x1000, PAGE, RW, copy(&fd), 0).unwrap();
    mem.map_message(0x2000, PAGE, RW).unwrap();
    mem.map_fd(0x3000, PAGE, RW, copy(&fd), PAGE).unwrap();
    let kind = io::ErrorKind::NotConnected;
    assert_eq!(mem.write(0x2000, b"x"), Err(DmaError::Message { iova: 0x2000, kind }), "nobody to ask");
    mem.set_message_dma(Some(client.clone()));
    let data: Vec<u8> = (0..0x1020).map(|i| (i * 11) as u8).collect();
    mem.write(0x1ff0, &data).unwrap();
    assert_eq!(file_bytes(&fd, PAGE - 16, 16), data[..16]);
    assert_eq!(*client.bytes.lock().unwrap(), data[16..16 + 0x1000]);
    assert_eq!(file_bytes(&fd, PAGE, 16), data[16 + 0x1000..]);
    let mut back = vec![0; data.len()];
    mem.read(0x1ff0, &mut back).unwrap();
    assert!(back == data);
    assert_eq!(client.calls.load(Ordering::Relaxed), 2, "one message per map and direction");
    mem.write_completion(0x2ff8, &[9; 16]).unwrap();
    assert_eq!(client.bytes.lock().unwrap()[0xff8..], [9; 8]);
    assert_eq!(file_bytes(&fd, PAGE, 8), [9; 8]);
    client.writes.lock().unwrap().clear();
    mem.write_completion(0x2100, &[9; 32]).unwrap();
    assert_eq!(*client.writes.lock().unwrap(), [(0x2100, 24), (0x2118, 8)], "the word with the colour last");
    // A gap: refused before the first message goes out.
    let calls = client.calls.load(Ordering::Relaxed);
    assert_eq!(mem.write(0x2ff0, &vec![1; 0x1020]), Err(DmaError::Unmapped { iova: 0x4000 }));
    assert_eq!(client.calls.load(Ordering::Relaxed), calls);
    assert_eq!(client.bytes.lock().unwrap()[0xff0], data[16 + 0xff0]);
}

#[test]
fn case_02_unmap_and_map_again_under_running_copies() {
    let fd = memfd(256);
    let mem = GuestMemory::new();
    let len = 256 * PAGE;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let mut buf = vec![0; len as usize];
                while !stop.load(Ordering::Relaxed) {
                    match mem.read(0, &mut buf).and_then(|()| mem.write(0, &buf[..4096])) {
                        Ok(()) | Err(DmaError::Unmapped { .. }) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
        for _ in 0..200 {
            mem.map_fd(0, len, RW, copy(&fd), 0).unwrap();
            mem.read_plain::<u64>(len - 8).unwrap();
            assert_eq!(mem.unmap(0, len), 1);
            // The mapping is gone for good: a copy that still ran in it would fault.
            assert_eq!(mem.0.files.lock().unwrap().values().filter(|f| f.strong_count() > 0).count(), 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    mem.map_fd(0, len, RW, fd, 0).unwrap();
    mem.write(0, b"works").unwrap();
}

/// The guest polls the colour in the last word and then reads the rest. The entry is as long as a page, so that a wrong order shows.
#[test]
fn a_completion_is_whole_once_its_colour_shows() {
    const ROUNDS: u64 = 5_000;
    const WORDS: usize = 512;
    let fd = memfd(2);
    let device = GuestMemory::new();
    device.map_fd(0, 2 * PAGE, RW, copy(&fd), 0).unwrap();
    let guest = GuestMemory::new();
    guest.map_fd(0, 2 * PAGE, RW, fd, 0).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=ROUNDS {
                device.write_completion(0, [n.to_le(); WORDS].as_bytes()).unwrap();
                // The guest gives the slot back before it is written again.
                while guest.read_plain::<u64>(PAGE).unwrap() != n.to_le() {
                    std::thread::yield_now();
                }
            }
        });
        let mut torn = 0;
        for n in 1..=ROUNDS {
            let mut asked = 0;
            while guest.read_plain::<u64>(PAGE - 8).unwrap() != n.to_le() {
                asked += 1;
                if asked % 1000 == 0 {
                    std::thread::yield_now();
                }
            }
            fence(Ordering::Acquire);
            let seen = guest.read_plain::<[u64; WORDS]>(0).unwrap();
            torn += u64::from(seen != [n.to_le(); WORDS]);
            guest.store_u64(PAGE, n).unwrap();
        }
        assert_eq!(torn, 0);
    });
}

#[derive(Debug, Clone)]
enum Op {
    Map { page: u64, pages: u64, prot: u32, file: usize, offset: u64 },
    MapMessage { page: u64, pages: u64, prot: u32 },
    Unmap { page: u64, pages: u64 },
    Clear,
    Read { at: u64, len: usize },
    Write { at: u64, len: usize, seed: u8 },
    Completion { at: u64, words: usize, seed: u8 },
}

const SPACE: u64 = 24; // pages
const FILES: usize = 3;
const FILE_PAGES: u64 = 8;

fn op() -> impl Strategy<Value = Op> {
    let page = 0..SPACE;
    let pages = 1..6_u64;
    let at = 0..SPACE * PAGE + 64;
    let len = prop_oneof![0..80_usize, 0..5 * PAGE as usize];
    prop_oneof![
        4 => (page.clone(), pages.clone(), 1..4_u32, 0..FILES, 0..FILE_PAGES)
            .prop_map(|(page, pages, prot, file, offset)| Op::Map { page, pages, prot, file, offset }),
        1 => (page.clone(), pages.clone(), 1..4_u32).prop_map(|(page, pages, prot)| Op::MapMessage { page, pages, prot }),
        2 => (page, 1..SPACE).prop_map(|(page, pages)| Op::Unmap { page, pages }),
        1 => Just(Op::Clear),
        5 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Read { at, len }),
        5 => (at.clone(), len, any::<u8>()).prop_map(|(at, len, seed)| Op::Write { at, len, seed }),
        2 => (at, 1..9_usize, any::<u8>()).prop_map(|(at, words, seed)| Op::Completion { at: at & !7, words, seed }),
    ]
}

/// First address, bytes, rights; the file and its offset, or none.
type ModelMap = (u64, u64, Prot, Option<(usize, u64)>);

/// The obvious implementation: a list of maps and byte arrays.
struct Model {
    base: u64,
    maps: Vec<ModelMap>,
    files: Vec<Vec<u8>>,
    message: Vec<u8>,
}

impl Model {
    /// Every byte of the range: where it lives, or the error.
    fn locate(&self, at: u64, len: usize, want: Prot) -> Result<Vec<(Option<usize>, usize)>, DmaError> {
        let iova = self.base.wrapping_add(at);
        if len > 0 && iova.checked_add(len as u64 - 1).is_none() {
            return Err(DmaError::Wrap { iova, len });
        }
        (0..len as u64)
            .map(|i| {
                let iova = iova + i;
                let map = self.maps.iter().find(|(start, len, ..)| iova >= *start && iova - start < *len);
                let Some((start, _, prot, file)) = map else { return Err(DmaError::Unmapped { iova }) };
                if !prot.contains(want) {
                    return Err(DmaError::Denied { iova, want });
                }
                Ok(match file {
                    Some((file, offset)) => (Some(*file), (offset + (iova - start)) as usize),
                    None => (None, (iova - self.base) as usize),
                })
            })
            .collect()
    }
    fn byte(&mut self, (file, at): (Option<usize>, usize)) -> &mut u8 {
        match file {
            Some(file) => &mut self.files[file][at],
            None => &mut self.message[at],
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn behaves_like_a_list_of_maps(top in any::<bool>(), ops in prop::collection::vec(op(), 1..40)) {
        // Either at 0, or up to the very last byte of the address space.
        let base = if top { 0_u64.wrapping_sub(SPACE * PAGE) } else { 0 };
        let files: Vec<OwnedFd> = (0..FILES).map(|n| if n == 2 {
            unsealed(FILE_PAGES, MemfdFlags::empty())
        } else {
            memfd(FILE_PAGES)
        }).collect();
        let mem = GuestMemory::new();
        let client = Client::new(base, ((SPACE + 6) * PAGE) as usize);
        mem.set_message_dma(Some(client.clone()));
        let mut model = Model {
            base,
            maps: Vec::new(),
            files: vec![vec![0; (FILE_PAGES * PAGE) as usize]; FILES],
            message: vec![0; ((SPACE + 6) * PAGE) as usize],
        };
        for op in ops {
            match op {
                Op::Map { page, pages, prot, .. } | Op::MapMessage { page, pages, prot } => {
                    let (iova, len) = (base + page * PAGE, pages * PAGE);
                    let prot = Prot::from_bits_truncate(prot);
                    let file = if let Op::Map { file, offset, .. } = op { Some((file, offset * PAGE)) } else { None };
                    let result = match file {
                        Some((file, offset)) => mem.map_fd(iova, len, prot, copy(&files[file]), offset),
                        None => mem.map_message(iova, len, prot),
                    };
                    let hit = model.maps.iter().filter(|(s, l, ..)| iova.checked_add(len - 1).is_some_and(|last| *s <= last) && iova <= s + (l - 1));
                    let highest = hit.map(|(s, ..)| *s).max();
                    match (iova.checked_add(len - 1), highest, file) {
                        (None, ..) => prop_assert_eq!(result.is_err_and(|e| matches!(e, MapError::BadRange { .. })), true),
                        (_, Some(existing), _) => prop_assert_eq!(result, Err(MapError::Overlap { iova, existing })),
                        (_, _, Some((_, offset))) if offset + len > FILE_PAGES * PAGE => prop_assert_eq!(
                            result,
                            Err(MapError::FileTooShort { size: FILE_PAGES * PAGE, end: offset + len })
                        ),
                        _ => {
                            prop_assert_eq!(result, Ok(()));
                            model.maps.push((iova, len, prot, file));
                        }
                    }
                }
                Op::Unmap { page, pages } => {
                    let (iova, len) = (base + page * PAGE, pages * PAGE);
                    let last = iova.saturating_add(len - 1);
                    let inside = |s: u64, l: u64| s >= iova && s + (l - 1) <= last;
                    let touches = |s: u64, l: u64| s <= last && iova <= s + (l - 1);
                    let cuts = model.maps.iter().any(|(s, l, ..)| touches(*s, *l) && !inside(*s, *l));
                    prop_assert_eq!(mem.cuts(iova, len), cuts);
                    let before = model.maps.len();
                    model.maps.retain(|(s, l, ..)| !inside(*s, *l));
                    prop_assert_eq!(mem.unmap(iova, len), before - model.maps.len());
                }
                Op::Clear => {
                    prop_assert_eq!(mem.clear(), model.maps.len());
                    model.maps.clear();
                }
                Op::Read { at, len } => {
                    let mut buf = vec![0; len];
                    let result = mem.read(base.wrapping_add(at), &mut buf);
                    match model.locate(at, len, Prot::READ) {
                        Err(e) => prop_assert_eq!(result, Err(e)),
                        Ok(places) => {
                            prop_assert_eq!(result, Ok(()));
                            let want: Vec<u8> = places.into_iter().map(|p| *model.byte(p)).collect();
                            prop_assert!(buf == want);
                        }
                    }
                }
                Op::Write { at, len, seed } => {
                    let data: Vec<u8> = (0..len).map(|i| seed.wrapping_add((i % 251) as u8)).collect();
                    let result = mem.write(base.wrapping_add(at), &data);
                    match model.locate(at, len, Prot::WRITE) {
                        Err(e) => prop_assert_eq!(result, Err(e)),
                        Ok(places) => {
                            prop_assert_eq!(result, Ok(()));
                            // The same file page may appear twice in one range. Copies by message come last, all others in order.
                            places.into_iter().zip(data).for_each(|(p, b)| *model.byte(p) = b);
                        }
                    }
                }
                Op::Completion { at, words, seed } => {
                    let entry: Vec<u8> = (0..words * 8).map(|i| seed.wrapping_mul(3).wrapping_add(i as u8)).collect();
                    let result = mem.write_completion(base.wrapping_add(at), &entry);
                    match model.locate(at, entry.len(), Prot::WRITE) {
                        Err(e) => prop_assert_eq!(result, Err(e)),
                        Ok(places) => {
                            prop_assert_eq!(result, Ok(()));
                            places.into_iter().zip(entry).for_each(|(p, b)| *model.byte(p) = b);
                        }
                    }
                }
            }
            prop_assert_eq!(mem.map_count(), model.maps.len());
        }
        for (fd, want) in files.iter().zip(&model.files) {
            prop_assert!(file_bytes(fd, 0, want.len()) == *want);
        }
        prop_assert!(*client.bytes.lock().unwrap() == model.message);
    }
}

/// Figures, not a test: `cargo test -p ernic-emu --profile quick -- --ignored --nocapture figures_of_memory`.
#[test]
#[ignore = "prints figures"]
fn figures_of_memory() {
    use std::hint::black_box;
    use std::time::Instant;
    let fd = memfd(64 << 8);
    let mem = GuestMemory::new();
    let time = |what: &str, rounds: u32, mut f: Box<dyn FnMut(u64) + '_>| {
        let best = (0..5)
            .map(|_| {
                let start = Instant::now();
                (0..u64::from(rounds)).for_each(&mut f);
                start.elapsed().as_secs_f64() / f64::from(rounds) * 1e9
            })
            .fold(f64::INFINITY, f64::min);
        println!("{what}: {best:.1} ns");
    };
    mem.map_fd(0, 64 << 20, RW, copy(&fd), 0).unwrap();
    let at = |i: u64| (i * 64) & ((1 << 14) - 1);
    time("read 8", 1 << 20, Box::new(|i| _ = black_box(mem.read_plain::<u64>(at(i)).unwrap())));
    time("read 16", 1 << 20, Box::new(|i| _ = black_box(mem.read_plain::<[u8; 16]>(at(i)).unwrap())));
    time("read 64", 1 << 20, Box::new(|i| _ = black_box(mem.read_plain::<[u8; 64]>(at(i)).unwrap())));
    time("completion 16", 1 << 20, Box::new(|i| mem.write_completion(at(i), &[1; 16]).unwrap()));
    time("store_u64", 1 << 20, Box::new(|i| mem.store_u64(at(i), i).unwrap()));
    let mut buf = vec![0_u8; 1500];
    time("read 1500", 1 << 18, Box::new(|i| mem.read(at(i) + 2, black_box(&mut buf)).unwrap()));
    let mut buf = vec![1_u8; 16 << 20];
    time("read 16 MiB", 8, Box::new(|_| mem.read(0, black_box(&mut buf)).unwrap()));
    let (src, mut dst) = (vec![1_u8; 16 << 20], vec![2_u8; 16 << 20]);
    time("write 16 MiB", 8, Box::new(|_| mem.write(0, black_box(&src)).unwrap()));
    time("memcpy 16 MiB", 8, Box::new(|_| black_box(&mut dst).copy_from_slice(black_box(&src))));
    mem.clear();
    for n in 0..3392 {
        mem.map_fd((1 << 32) - (n + 1) * PAGE, PAGE, RW, copy(&fd), n * PAGE).unwrap();
    }
    let spread = |i: u64| (1 << 32) - (i.wrapping_mul(0x9e37_79b9) % 3392 + 1) * PAGE;
    time(
        "read 16 of 3392 maps, random",
        1 << 20,
        Box::new(|i| _ = black_box(mem.read_plain::<[u8; 16]>(spread(i)).unwrap())),
    );
}

/// Memory in the three ways it can be there, one page of each beside the next: direct, guarded, by message.
fn three_kinds() -> (GuestMemory, Arc<Client>) {
    let mem = GuestMemory::new();
    mem.map_fd(0, PAGE, RW, memfd(1), 0).unwrap();
    mem.map_fd(PAGE, PAGE, RW, unsealed(1, MemfdFlags::empty()), 0).unwrap();
    mem.map_message(2 * PAGE, PAGE, RW).unwrap();
    let client = Client::new(2 * PAGE, PAGE as usize);
    mem.set_message_dma(Some(client.clone()));
    (mem, client)
}

#[test]
fn guest_memory_is_copied_to_guest_memory() {
    let (mem, _client) = three_kinds();
    let all: Vec<u8> = (0..3 * PAGE).map(|i| (i * 7 % 251) as u8).collect();
    let lens = [1, 2, 7, 8, 9, 63, 64, 65, 1000, PAGE as usize + 100, 2 * PAGE as usize];
    for from in [0, 1, 8, PAGE - 3, PAGE, 2 * PAGE + 8] {
        for to in [0, 5, 16, PAGE - 8, PAGE + 1, 2 * PAGE] {
            for len in lens {
                mem.write(0, &all).unwrap();
                let fits = from.max(to) + len as u64 <= 3 * PAGE;
                assert_eq!(mem.access().copy(from, to, len).is_ok(), fits, "{from} {to} {len}");
                let mut got = vec![0; all.len()];
                mem.read(0, &mut got).unwrap();
                let mut expected = all.clone();
                // Where both lie in one direct map they may overlap; elsewhere only what does not is promised.
                let apart = from.abs_diff(to) >= len as u64;
                let direct = from.max(to) + len as u64 <= PAGE;
                if fits && (apart || direct) {
                    expected.copy_within(from as usize..from as usize + len, to as usize);
                    assert!(got == expected, "{from} {to} {len}");
                } else if !fits {
                    assert!(got == expected, "nothing moves: {from} {to} {len}");
                }
            }
        }
    }
    assert_eq!(mem.access().copy(u64::MAX, u64::MAX, 0), Ok(()));
}

#[test]
fn atomics_give_the_number_before() {
    let (mem, _client) = three_kinds();
    for at in [0, 4088, PAGE + 8, 2 * PAGE + 16] {
        mem.write(at, &5_u64.to_le_bytes()).unwrap();
        assert_eq!(mem.atomic(at, AtomicOp::Add(u64::MAX)), Ok(5));
        assert_eq!(mem.atomic(at, AtomicOp::Swap { compare: 5, swap: 1 }), Ok(4));
        assert_eq!(mem.atomic(at, AtomicOp::Swap { compare: 4, swap: 0x0102_0304_0506_0708 }), Ok(4));
        let mut bytes = [0; 8];
        mem.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(mem.atomic(at + 4, AtomicOp::Add(1)), Err(DmaError::Misaligned { iova: at + 4, len: 8 }));
    }
    assert_eq!(mem.atomic(3 * PAGE, AtomicOp::Add(1)), Err(DmaError::Unmapped { iova: 3 * PAGE }));
    // Two threads count to the sum of both.
    mem.write(0, &[0; 8]).unwrap();
    let other = mem.clone();
    let count = |mem: &GuestMemory| {
        for _ in 0..100_000 {
            mem.atomic(0, AtomicOp::Add(1)).unwrap();
        }
    };
    let thread = std::thread::spawn(move || count(&other));
    count(&mem);
    thread.join().unwrap();
    assert_eq!(mem.atomic(0, AtomicOp::Add(0)), Ok(200_000));
}
