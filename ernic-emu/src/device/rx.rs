//! Receive queues: frames into the guest's buffers.

use ionic_abi::{RX_MAX_SG_ELEMS, RxqComp, RxqCsumFlags, RxqDesc, RxqOpcode, RxqSgElem, Status};

use super::{
    ring::{CompRing, Ring},
    tx::Rings,
};
use crate::mem::{Access, DmaError, GuestMemory};

/// Bytes of an RX descriptor and of its SG descriptor, 8 elements of 16 bytes (`ionic_if.h`).
const DESC: u64 = 16;
const SG_DESC: u64 = 128;
const SG_ELEM: u64 = 16;

/// How many frames ahead the rings are fetched: a cache line has four descriptors or completions.
const AHEAD: u16 = 4;

/// What goes into a completion beside the frame.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RxMeta {
    pub(super) hash: u32,
    pub(super) pkt_type: u8,
    /// Folded one's-complement sum of what follows the Ethernet header, little-endian; `None` if it is not offered.
    pub(super) csum: Option<u16>,
    /// Tag that was stripped.
    pub(super) tci: Option<u16>,
}

/// What became of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It is in the guest's buffers, with a completion.
    Done,
    /// The posted buffers are too small for it; the descriptor was completed with an error.
    TooLong,
    /// There is no buffer.
    Empty,
    /// The ring, a buffer or the completion is not guest memory.
    Dma,
}

/// One receive queue.
#[derive(Debug)]
pub(super) struct RxQueue {
    pub(super) enabled: bool,
    pub(super) intr: u16,
    ring: Ring,
    comp: CompRing,
    sg_base: u64,
}

/// Completion status of a frame longer than its buffers; the driver drops and counts any but success.
const STATUS_TOO_LONG: Status = Status(2);

impl RxQueue {
    pub(super) fn new(rings: Rings) -> Option<Self> {
        Some(Self {
            enabled: false,
            intr: rings.intr,
            ring: Ring::new(rings.base, rings.log2)?,
            comp: CompRing::new(rings.comp, rings.log2)?,
            sg_base: rings.sg,
        })
    }

    pub(super) fn doorbell(&mut self, prod: u16) -> bool {
        self.ring.set_producer(prod)
    }

    /// Buffers that wait for frames.
    pub(super) fn posted(&self) -> u16 {
        self.ring.available()
    }

    /// Puts one frame into the next buffer.
    pub(super) fn deliver(&mut self, mem: &GuestMemory, frame: &[u8], meta: RxMeta) -> Delivery {
        if self.ring.available() == 0 {
            return Delivery::Empty;
        }
        let mem = &mut mem.access();
        let desc = match mem.read_plain::<RxqDesc>(self.ring.descriptor(DESC)) {
            Ok(desc) => desc,
            Err(error) => {
                // As for transmit: the ring is lost until the next Q_INIT.
                crate::warn_limited!(%error, "RX ring is not in guest memory");
                self.ring.discard();
                self.enabled = false;
                return Delivery::Dma;
            }
        };
        self.prefetch(mem);
        let index = self.ring.index();
        let scattered = self.scatter(mem, &desc, frame);
        self.ring.advance();

        let len = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        let mut comp = RxqComp { comp_index: index.into(), len: len.into(), ..RxqComp::default() };
        let delivery = match scattered {
            Ok(Some(used)) => {
                comp.num_sg_elems = used;
                comp.rss_hash = meta.hash.into();
                let mut flags = RxqCsumFlags::empty();
                if let Some(csum) = meta.csum {
                    comp.csum = csum.into();
                    flags |= RxqCsumFlags::CALC;
                }
                if let Some(tci) = meta.tci {
                    comp.vlan_tci = tci.into();
                    flags |= RxqCsumFlags::VLAN;
                }
                comp.csum_flags = flags.bits();
                comp.pkt_type_color = meta.pkt_type;
                Delivery::Done
            }
            Ok(None) => {
                comp.status = STATUS_TOO_LONG;
                Delivery::TooLong
            }
            Err(error) => {
                crate::warn_limited!(%error, "RX buffer or scatter list is not in guest memory");
                comp.status = Status::BAD_ADDR;
                Delivery::Dma
            }
        };
        if let Err(error) = self.comp.post(mem, zerocopy::transmute!(comp)) {
            crate::warn_limited!(%error, "RX completion ring is not in guest memory");
            return Delivery::Dma;
        }
        delivery
    }

    /// Begins to fetch what the next frames need of the rings.
    fn prefetch(&self, mem: &mut Access<'_>) {
        if let Some(at) = self.ring.descriptor_ahead(DESC, AHEAD) {
            mem.prefetch(at, 16);
        }
        if let Some(at) = self.ring.entry_ahead(self.sg_base, SG_DESC, AHEAD) {
            mem.prefetch(at, 64);
        }
        self.comp.prefetch(mem, AHEAD);
    }

    /// Fills the buffers in order; how many SG elements were used, or `None` if the frame does not fit.
    fn scatter(&self, mem: &mut Access<'_>, desc: &RxqDesc, frame: &[u8]) -> Result<Option<u8>, DmaError> {
        let first = frame.len().min(desc.len.get().into());
        let (head, mut rest) = frame.split_at(first);
        mem.write(desc.addr.get(), head)?;
        let mut used = 0;
        if desc.opcode == RxqOpcode::SG {
            let sg = self.ring.entry(self.sg_base, SG_DESC);
            while !rest.is_empty() && usize::from(used) < RX_MAX_SG_ELEMS {
                let elem = mem.read_plain::<RxqSgElem>(sg.wrapping_add(u64::from(used) * SG_ELEM))?;
                let n = rest.len().min(elem.len.get().into());
                if n == 0 {
                    break;
                }
                let (piece, after) = rest.split_at(n);
                mem.write(elem.addr.get(), piece)?;
                rest = after;
                used += 1;
            }
        }
        Ok(rest.is_empty().then_some(used))
    }
}
