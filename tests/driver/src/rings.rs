//! Transmit and receive rings as the stock driver keeps them (`ionic_txrx.c`, `ionic_dev.c`).

use std::ops::Range;

use ionic_abi::{
    COMP_COLOR, RX_MAX_SG_ELEMS, RxqComp, RxqDesc, RxqOpcode, RxqSgElem, Status, TX_MAX_SG_ELEMS, TxqComp, TxqDesc,
    TxqFlags, TxqOpcode, TxqSgElem, U64,
};

use crate::{
    error::DriverError,
    ram::{DmaBuf, GuestRam, PAGE},
};

/// Bytes of a descriptor, of a completion and of a scatter-gather element.
const ENTRY: usize = 16;
/// Bytes between transmit SG descriptors (version 1) and receive SG descriptors.
const TX_SG_STRIDE: usize = size_of::<ionic_abi::TxqSgDesc>();
const RX_SG_STRIDE: usize = size_of::<ionic_abi::RxqSgDesc>();
/// Descriptors that are free before the driver posts receive buffers again (`ionic_rx_fill`): at most this many.
const RX_FILL_THRESHOLD: u16 = 16;

/// How doorbells name a queue (the completion of Q_INIT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HwQueue {
    /// Queue number.
    pub index: u32,
    /// Slot in the doorbell page.
    pub type_: u8,
}

/// How the bytes of a frame lie in memory: `first` bytes, then pieces of `rest` bytes, each a buffer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxLayout {
    /// Bytes of the linear part.
    pub first: usize,
    /// Bytes of each fragment.
    pub rest: usize,
}

impl TxLayout {
    /// Everything in one piece.
    pub const LINEAR: Self = Self { first: usize::MAX, rest: usize::MAX };

    /// Cuts `at..end` of a frame where its buffers end.
    fn pieces(self, at: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut at = at;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let rest = self.rest.max(1);
            let edge = if at < self.first {
                self.first
            } else {
                self.first.saturating_add(((at - self.first) / rest + 1).saturating_mul(rest))
            };
            let piece = (at, edge.min(end) - at);
            at += piece.1;
            Some(piece)
        })
    }
}

/// What the NIC is asked to do to a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TxOffload {
    /// Nothing.
    #[default]
    None,
    /// Sum from `start` to the end, into `start + offset`, which holds the pseudo-header's sum.
    Csum {
        /// First byte of the sum.
        start: u16,
        /// Where it goes, from `start`.
        offset: u16,
    },
    /// Cut into TCP segments.
    Tso {
        /// Bytes before the TCP payload.
        hdr_len: u16,
        /// Payload bytes per segment.
        mss: u16,
    },
}

/// A frame in the buffer space.
#[derive(Debug, Clone, Copy)]
struct Frame {
    base: u64,
    len: usize,
    layout: TxLayout,
    tci: Option<u16>,
}

/// One descriptor that is with the device.
#[derive(Debug, Clone, Copy, Default)]
struct Posted {
    /// Where the buffer space ends that is free once this is completed; `None` in the middle of a packet.
    end: Option<usize>,
}

/// Reads completion `index` if it is a new one.
///
/// The colour is read first, the rest after it, as the driver does (`dma_rmb`): the last word holds both.
fn completion(ring: &DmaBuf, index: u16, color: bool) -> Option<[u64; 2]> {
    let at = usize::from(index) * ENTRY;
    let last = ring.load_acquire(at + 8);
    let [.., byte] = last.to_le_bytes();
    ((byte & COMP_COLOR != 0) == color).then(|| [ring.load_acquire(at).to_le(), last.to_le()])
}

/// Where completions are looked for.
#[derive(Debug, Clone, Copy)]
struct CompIndex {
    index: u16,
    color: bool,
}

impl CompIndex {
    const START: Self = Self { index: 0, color: true };

    fn advance(&mut self, len: u16) {
        self.index = (self.index + 1) % len;
        if self.index == 0 {
            self.color = !self.color;
        }
    }
}

/// A transmit ring with its completion ring, SG ring and buffer space.
#[derive(Debug)]
pub struct TxRing {
    /// Descriptors.
    pub desc: DmaBuf,
    /// Completions.
    pub comp: DmaBuf,
    /// SG descriptors.
    pub sg: DmaBuf,
    /// How doorbells name it.
    pub hw: HwQueue,
    data: DmaBuf,
    /// The space in `data` between these two is in use; both 0 when nothing is.
    used: (usize, usize),
    posted: Vec<Posted>,
    len: u16,
    head: u16,
    tail: u16,
    rung: u16,
    next: CompIndex,
    number: usize,
}

impl TxRing {
    pub(crate) fn new(ram: &GuestRam, number: usize, len: u16, data: usize) -> Result<Self, DriverError> {
        let n = usize::from(len);
        let alloc = |bytes| ram.alloc(bytes).ok_or(DriverError::NoMemory(bytes));
        Ok(Self {
            desc: alloc(n * ENTRY)?,
            comp: alloc(n * ENTRY)?,
            sg: alloc(n * TX_SG_STRIDE)?,
            data: ram.alloc_dirty(data).ok_or(DriverError::NoMemory(data))?,
            hw: HwQueue { index: 0, type_: 0 },
            used: (0, 0),
            posted: vec![Posted::default(); n],
            len,
            head: 0,
            tail: 0,
            rung: 0,
            next: CompIndex::START,
            number,
        })
    }

    /// Entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.len
    }

    /// Descriptors that may be posted now; one is always kept free.
    #[must_use]
    pub fn room(&self) -> u16 {
        (self.tail + self.len - self.head - 1) % self.len
    }

    /// Index of the next descriptor.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Descriptors that the device has not completed.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        (self.head + self.len - self.tail) % self.len
    }

    /// Buffer space for a frame of `len` bytes in `segments` descriptors: its offset, if it can be posted now.
    pub(crate) fn reserve(&self, len: usize, segments: u16) -> Option<usize> {
        if self.room() < segments {
            return None;
        }
        let (start, end) = self.used;
        let size = self.data.len();
        if start <= end {
            if size - end >= len {
                return Some(end);
            }
            // Not up to the start: then it would look empty.
            return (len < start).then_some(0);
        }
        (end + len < start).then_some(end)
    }

    /// Lends reserved space to be filled.
    pub(crate) fn fill<R>(&self, at: usize, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        self.data.with_bytes_mut(at, len, f)
    }

    /// Posts the `len` bytes in the space reserved at `at`. The doorbell is not rung.
    pub(crate) fn commit(
        &mut self,
        at: usize,
        len: usize,
        layout: TxLayout,
        offload: TxOffload,
        tci: Option<u16>,
    ) -> Result<(), DriverError> {
        let before = self.head;
        let end = at + len;
        let frame = Frame { base: self.data.iova() + at as u64, len, layout, tci };
        let posted = match offload {
            TxOffload::Tso { hdr_len, mss } => self.post_tso(frame, hdr_len, mss),
            TxOffload::Csum { start, offset } => {
                self.post_one(frame, 0..len, TxqOpcode::CSUM_PARTIAL, TxqFlags::empty(), (start, offset))
            }
            TxOffload::None => self.post_one(frame, 0..len, TxqOpcode::CSUM_NONE, TxqFlags::empty(), (0, 0)),
        };
        if let Err(error) = posted {
            self.head = before;
            return Err(error);
        }
        let last = (self.head + self.len - 1) % self.len;
        if let Some(posted) = self.posted.get_mut(usize::from(last)) {
            posted.end = Some(end);
        }
        self.used.1 = end;
        Ok(())
    }

    /// Posts a frame; the doorbell is not rung.
    pub(crate) fn post(
        &mut self,
        frame: &[u8],
        layout: TxLayout,
        offload: TxOffload,
        tci: Option<u16>,
    ) -> Result<(), DriverError> {
        let at = self.reserve(frame.len(), 1).ok_or(DriverError::Full(self.number))?;
        self.fill(at, frame.len(), |to| to.copy_from_slice(frame));
        self.commit(at, frame.len(), layout, offload, tci)
    }

    /// One descriptor a segment, each with exactly the bytes of one segment (`ionic_tx_tso`): the first has the header too.
    fn post_tso(&mut self, frame: Frame, hdr_len: u16, mss: u16) -> Result<(), DriverError> {
        let (header, step) = (usize::from(hdr_len), usize::from(mss).max(1));
        let segments = frame.len.saturating_sub(header).div_ceil(step).max(1);
        if segments > usize::from(self.room()) {
            return Err(DriverError::Full(self.number));
        }
        for k in 0..segments {
            let start = if k == 0 { 0 } else { header + k * step };
            let end = (header + (k + 1) * step).min(frame.len);
            let mut flags = TxqFlags::empty();
            flags.set(TxqFlags::TSO_SOT, k == 0);
            flags.set(TxqFlags::TSO_EOT, k + 1 == segments);
            self.post_one(frame, start..end, TxqOpcode::TSO, flags, (hdr_len, mss))?;
        }
        Ok(())
    }

    fn post_one(
        &mut self,
        frame: Frame,
        range: Range<usize>,
        opcode: TxqOpcode,
        mut flags: TxqFlags,
        words: (u16, u16),
    ) -> Result<(), DriverError> {
        let mut pieces = frame.layout.pieces(range.start, range.end).map(|(from, n)| (frame.base + from as u64, n));
        let (addr, first) = pieces.next().unwrap_or((frame.base, 0));
        let mut sg = [TxqSgElem::default(); TX_MAX_SG_ELEMS];
        let mut nsge = 0u8;
        for (addr, n) in pieces {
            // The stock driver linearizes such a packet; here it is the caller's mistake.
            let elem = sg
                .get_mut(usize::from(nsge))
                .ok_or_else(|| DriverError::Violation("frame of too many pieces".into()))?;
            (elem.addr, elem.len) = (addr.into(), length(n));
            nsge += 1;
        }
        flags.set(TxqFlags::VLAN, frame.tci.is_some());
        let desc = TxqDesc {
            cmd: U64::new(TxqDesc::pack(opcode, flags, nsge, addr)),
            len: length(first),
            vlan_tci: frame.tci.unwrap_or(0).into(),
            hword1: words.0.into(),
            hword2: words.1.into(),
        };
        self.post_raw(&desc, sg.get(..nsge.into()).unwrap_or_default())
    }

    /// Posts a descriptor as it is, with its SG elements; the doorbell is not rung.
    ///
    /// # Errors
    /// The ring is full.
    pub fn post_raw(&mut self, desc: &TxqDesc, sg: &[TxqSgElem]) -> Result<(), DriverError> {
        if self.room() == 0 {
            return Err(DriverError::Full(self.number));
        }
        let index = usize::from(self.head);
        for (i, elem) in sg.iter().enumerate() {
            self.sg.store(index * TX_SG_STRIDE + i * ENTRY, elem);
        }
        self.desc.store(index * ENTRY, desc);
        let end = match desc.opcode() {
            TxqOpcode::TSO if !desc.flags().contains(TxqFlags::TSO_EOT) => None,
            _ => Some(self.used.1),
        };
        if let Some(posted) = self.posted.get_mut(index) {
            posted.end = end;
        }
        self.head = (self.head + 1) % self.len;
        Ok(())
    }

    /// The doorbell's producer index, if the device does not know it yet.
    pub(crate) fn doorbell(&mut self) -> Option<u16> {
        let new = self.head != self.rung;
        self.rung = self.head;
        new.then_some(self.head)
    }

    /// Whether a completion is there.
    pub(crate) fn has_completion(&self) -> bool {
        completion(&self.comp, self.next.index, self.next.color).is_some()
    }

    /// Takes completions, at most `budget` (`ionic_tx_cq_service`); how many descriptors became free.
    pub(crate) fn service(&mut self, budget: usize) -> Result<u16, DriverError> {
        let mut freed = 0;
        for _ in 0..budget {
            let Some(words) = completion(&self.comp, self.next.index, self.next.color) else { break };
            let comp: TxqComp = zerocopy::transmute!(words);
            let index = comp.comp_index.get();
            // The driver frees everything up to and including this index; any other index walks around the whole ring.
            let count = (u32::from(index) + u32::from(self.len) - u32::from(self.tail)) % u32::from(self.len) + 1;
            if index >= self.len || count > u32::from(self.in_flight()) {
                return Err(DriverError::Violation(format!(
                    "tx {}: completion of descriptor {index}, in flight are {} from {}",
                    self.number,
                    self.in_flight(),
                    self.tail
                )));
            }
            let Some(end) = self.posted.get(usize::from(index)).and_then(|p| p.end) else {
                // The skb hangs at the first descriptor: its memory would be freed while the rest is still read.
                return Err(DriverError::Violation(format!(
                    "tx {}: descriptor {index} completed in the middle of a TSO packet",
                    self.number
                )));
            };
            self.tail = (index + 1) % self.len;
            self.used.0 = end;
            if self.in_flight() == 0 {
                self.used = (0, 0);
            }
            freed += u16::try_from(count).unwrap_or(self.len);
            self.next.advance(self.len);
        }
        Ok(freed)
    }
}

/// A received frame that is still in its buffer.
#[derive(Debug, Clone, Copy)]
pub struct RxInfo {
    /// Queue.
    pub queue: usize,
    /// Its completion.
    pub comp: RxqComp,
    /// Where it is in the ring's buffers.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A receive ring with its completion ring, SG ring and buffers. Descriptor `i` always has buffer `i`, whose pieces follow each
/// other in memory, so that a frame is contiguous.
#[derive(Debug)]
pub struct RxRing {
    /// Descriptors.
    pub desc: DmaBuf,
    /// Completions.
    pub comp: DmaBuf,
    /// SG descriptors.
    pub sg: DmaBuf,
    /// How doorbells name it.
    pub hw: HwQueue,
    /// Buffers.
    pub bufs: DmaBuf,
    len: u16,
    head: u16,
    tail: u16,
    next: CompIndex,
    /// Bytes of a buffer, of each of its pieces, and from one buffer to the next.
    total: usize,
    piece: usize,
    stride: usize,
    number: usize,
}

impl RxRing {
    pub(crate) fn new(
        ram: &GuestRam,
        number: usize,
        len: u16,
        total: usize,
        piece: usize,
    ) -> Result<Self, DriverError> {
        let n = usize::from(len);
        let alloc = |bytes| ram.alloc(bytes).ok_or(DriverError::NoMemory(bytes));
        // Two to a page where they fit, as the page pool does.
        let stride = if total <= PAGE / 2 { PAGE / 2 } else { total.next_multiple_of(PAGE) };
        let bytes = n * stride;
        Ok(Self {
            desc: alloc(n * ENTRY)?,
            comp: alloc(n * ENTRY)?,
            sg: alloc(n * RX_SG_STRIDE)?,
            bufs: ram.alloc_dirty(bytes).ok_or(DriverError::NoMemory(bytes))?,
            hw: HwQueue { index: 0, type_: 0 },
            len,
            head: 0,
            tail: 0,
            next: CompIndex::START,
            total,
            piece,
            stride,
            number,
        })
    }

    /// Entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.len
    }

    /// Index of the next descriptor.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Buffers that the device has.
    #[must_use]
    pub fn posted(&self) -> u16 {
        (self.head + self.len - self.tail) % self.len
    }

    /// Posts buffers if enough are free (`ionic_rx_fill`); the producer index to ring, if any were posted.
    pub(crate) fn fill(&mut self) -> Option<u16> {
        let free = self.len - 1 - self.posted();
        if free < RX_FILL_THRESHOLD.min(self.len / 8).max(1) {
            return None;
        }
        for _ in 0..free {
            self.post();
        }
        Some(self.head)
    }

    /// Posts one buffer without ringing the doorbell; the producer index.
    pub fn post(&mut self) -> u16 {
        let index = usize::from(self.head);
        let at = self.bufs.iova() + (index * self.stride) as u64;
        let first = self.total.min(self.piece);
        let more = self.total > first;
        let mut sg = 0;
        let mut done = first;
        while done < self.total {
            let n = (self.total - done).min(self.piece);
            let elem = RxqSgElem { addr: (at + done as u64).into(), len: length(n), ..RxqSgElem::default() };
            self.sg.store(index * RX_SG_STRIDE + sg * ENTRY, &elem);
            done += n;
            sg += 1;
        }
        if more && sg < RX_MAX_SG_ELEMS {
            self.sg.store(index * RX_SG_STRIDE + sg * ENTRY, &RxqSgElem::default());
        }
        let desc = RxqDesc {
            opcode: if more { RxqOpcode::SG } else { RxqOpcode::SIMPLE },
            len: length(first),
            addr: at.into(),
            ..RxqDesc::default()
        };
        self.desc.store(index * ENTRY, &desc);
        self.head = (self.head + 1) % self.len;
        self.head
    }

    /// Posts a descriptor as it is, with its SG elements; the producer index.
    pub fn post_raw(&mut self, desc: &RxqDesc, sg: &[RxqSgElem]) -> u16 {
        let index = usize::from(self.head);
        for (i, elem) in sg.iter().enumerate() {
            self.sg.store(index * RX_SG_STRIDE + i * ENTRY, elem);
        }
        self.desc.store(index * ENTRY, desc);
        self.head = (self.head + 1) % self.len;
        self.head
    }

    /// Whether a completion is there.
    pub(crate) fn has_completion(&self) -> bool {
        completion(&self.comp, self.next.index, self.next.color).is_some()
    }

    /// Takes the next completion (`ionic_rx_cq_service`, `__ionic_rx_service`).
    pub fn pop(&mut self) -> Result<Option<RxInfo>, DriverError> {
        let Some(words) = completion(&self.comp, self.next.index, self.next.color) else { return Ok(None) };
        let comp: RxqComp = zerocopy::transmute!(words);
        let violation = |text: String| Err(DriverError::Violation(format!("rx {}: {text}", self.number)));
        if self.posted() == 0 {
            return violation("completion while no buffer is posted".into());
        }
        // The driver waits for its own tail for ever.
        if comp.comp_index.get() != self.tail {
            return violation(format!("completion of descriptor {}, not of {}", comp.comp_index.get(), self.tail));
        }
        let len = usize::from(comp.len.get());
        let offset = usize::from(self.tail) * self.stride;
        if comp.status == Status::SUCCESS {
            if len > self.total {
                return violation(format!("{len} bytes in a buffer of {}", self.total));
            }
            // The driver takes that many fragments, each of at least one byte.
            let used = len.saturating_sub(self.total.min(self.piece)).div_ceil(self.piece);
            if usize::from(comp.num_sg_elems) != used {
                return violation(format!("{} SG elements for {len} bytes, not {used}", comp.num_sg_elems));
            }
        }
        self.tail = (self.tail + 1) % self.len;
        self.next.advance(self.len);
        Ok(Some(RxInfo { queue: self.number, comp, offset, len }))
    }
}

/// A buffer length as descriptors have it.
fn length(n: usize) -> ionic_abi::U16 {
    u16::try_from(n).unwrap_or(u16::MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_the_layout() {
        let cut = |first, rest, at, end| TxLayout { first, rest }.pieces(at, end).collect::<Vec<_>>();
        assert_eq!(cut(usize::MAX, usize::MAX, 0, 1514), [(0, 1514)]);
        assert_eq!(cut(54, 1000, 0, 1514), [(0, 54), (54, 1000), (1054, 460)]);
        assert_eq!(cut(54, 1000, 1500, 3000), [(1500, 554), (2054, 946)]);
        assert_eq!(cut(54, 1000, 10, 54), [(10, 44)]);
        assert_eq!(cut(0, 1, 0, 3), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(cut(10, 10, 5, 5), []);
    }

    /// Puts a completion where the device would.
    fn complete(ring: &TxRing, slot: u16, index: u16, color: bool) {
        let comp =
            TxqComp { comp_index: index.into(), color: if color { COMP_COLOR } else { 0 }, ..TxqComp::default() };
        ring.comp.store(usize::from(slot) * ENTRY, &comp);
    }

    #[test]
    fn transmit_space_is_a_ring() {
        let ram = GuestRam::new(1 << 20, 0x10_0000).unwrap();
        let mut ring = TxRing::new(&ram, 0, 8, 8192).unwrap();
        let post = |ring: &mut TxRing, n| ring.post(&vec![0; n], TxLayout::LINEAR, TxOffload::None, None);
        let addr = |ring: &TxRing, i: usize| ring.desc.load::<TxqDesc>(i * ENTRY).addr() - ring.data.iova();
        for _ in 0..2 {
            post(&mut ring, 3000).unwrap();
        }
        assert!(matches!(post(&mut ring, 3000), Err(DriverError::Full(0))));
        assert_eq!(ring.service(256).unwrap(), 0);
        complete(&ring, 0, 0, true);
        assert_eq!(ring.service(256).unwrap(), 1);
        post(&mut ring, 2999).unwrap();
        assert_eq!([addr(&ring, 0), addr(&ring, 1), addr(&ring, 2)], [0, 3000, 0]);
        assert!(matches!(post(&mut ring, 1), Err(DriverError::Full(0))));
        complete(&ring, 1, 2, true);
        assert_eq!(ring.service(256).unwrap(), 2);
        assert_eq!(ring.in_flight(), 0);
        post(&mut ring, 8192).unwrap();
        assert_eq!(ring.doorbell(), Some(4));
        assert_eq!(ring.doorbell(), None);
    }

    #[test]
    fn completions_that_would_corrupt_the_driver_are_violations() {
        let ram = GuestRam::new(1 << 20, 0).unwrap();
        let mut ring = TxRing::new(&ram, 3, 8, 8192).unwrap();
        complete(&ring, 0, 0, true);
        let text = ring.service(256).unwrap_err().to_string();
        assert_eq!(text, "the device broke the rules: tx 3: completion of descriptor 0, in flight are 0 from 0");
        let tso = TxOffload::Tso { hdr_len: 54, mss: 100 };
        ring.post(&[0; 54 + 250], TxLayout::LINEAR, tso, None).unwrap();
        assert_eq!(ring.in_flight(), 3);
        complete(&ring, 0, 1, true);
        assert!(ring.service(256).unwrap_err().to_string().contains("in the middle of a TSO packet"));
        complete(&ring, 0, 2, true);
        assert_eq!(ring.service(256).unwrap(), 3);
    }

    #[test]
    fn tso_descriptors_carry_one_segment_each() {
        let ram = GuestRam::new(1 << 20, 0).unwrap();
        let mut ring = TxRing::new(&ram, 0, 64, 65536).unwrap();
        let tso = TxOffload::Tso { hdr_len: 54, mss: 1000 };
        ring.post(&[0; 54 + 2001], TxLayout { first: 54, rest: 700 }, tso, Some(7)).unwrap();
        let desc = |i: usize| ring.desc.load::<TxqDesc>(i * ENTRY);
        let bytes = |i: usize| {
            let sg = (0..usize::from(desc(i).nsge())).map(|e| ring.sg.load::<TxqSgElem>(i * TX_SG_STRIDE + e * ENTRY));
            u32::from(desc(i).len.get()) + sg.map(|e| u32::from(e.len.get())).sum::<u32>()
        };
        assert_eq!([bytes(0), bytes(1), bytes(2)], [1054, 1000, 1]);
        let flags = |i: usize| desc(i).flags() - TxqFlags::VLAN;
        assert_eq!([flags(0), flags(1), flags(2)], [TxqFlags::TSO_SOT, TxqFlags::empty(), TxqFlags::TSO_EOT]);
        for i in 0..3 {
            assert_eq!(
                (desc(i).opcode(), desc(i).hdr_len(), desc(i).mss(), desc(i).vlan_tci.get()),
                (TxqOpcode::TSO, 54, 1000, 7)
            );
        }
    }
}
