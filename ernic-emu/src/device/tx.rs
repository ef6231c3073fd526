//! Transmit queues: descriptors in, frames out.

use ionic_abi::{TxqComp, TxqDesc, TxqFlags, TxqOpcode, TxqSgElem};

use super::{
    ring::{CompRing, Ring},
    stats::Stats,
};
use crate::{
    link::{Link, Offload, TxFrame},
    mem::{Access, DmaError, GuestMemory},
    offload::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN},
};

/// Bytes of a TX descriptor, an SG descriptor of version 1 (16 elements) and an SG element (`ionic_if.h`).
const DESC: u64 = 16;
const SG_DESC: u64 = 256;
const SG_ELEM: u64 = 16;
/// Room for an inserted VLAN tag in front of the gathered bytes.
const TAG: usize = 4;
/// An Ethernet header.
const ETH: usize = 14;
/// Most bytes of a TSO super-frame: an IP packet of 65,535 bytes behind an Ethernet header and an in-band tag.
const MAX_SUPER: usize = 65_535 + ETH + TAG;

/// What is gathered so far of a TSO packet.
#[derive(Debug, Clone, Copy)]
struct Chain {
    hdr_len: u16,
    mss: u16,
    tci: Option<u16>,
    len: usize,
    /// Something was wrong with it: it ends without a frame.
    broken: bool,
}

/// One transmit queue.
#[derive(Debug)]
pub(super) struct TxQueue {
    pub(super) enabled: bool,
    pub(super) intr: u16,
    ring: Ring,
    comp: CompRing,
    sg_base: u64,
    chain: Option<Chain>,
    /// [`TAG`] spare bytes, then the frame.
    buf: Vec<u8>,
}

/// Where a queue is, in guest memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rings {
    pub(super) log2: u8,
    pub(super) base: u64,
    pub(super) comp: u64,
    pub(super) sg: u64,
    pub(super) intr: u16,
}

/// Why a frame was not sent.
enum Refused {
    Dma(DmaError),
    Data,
}

impl From<DmaError> for Refused {
    fn from(error: DmaError) -> Self {
        Self::Dma(error)
    }
}

/// Counts a frame that was not sent for what its descriptor says.
fn refuse(stats: &mut Stats, refused: &Refused) {
    match refused {
        Refused::Dma(error) => {
            crate::warn_limited!(%error, "TX buffer or scatter list is not in guest memory");
            stats.tx_refused(true);
        }
        Refused::Data => stats.tx_refused(false),
    }
}

impl TxQueue {
    pub(super) fn new(rings: Rings) -> Option<Self> {
        Some(Self {
            enabled: false,
            intr: rings.intr,
            ring: Ring::new(rings.base, rings.log2)?,
            comp: CompRing::new(rings.comp, rings.log2)?,
            sg_base: rings.sg,
            chain: None,
            buf: vec![0; TAG + MAX_SUPER],
        })
    }

    pub(super) fn doorbell(&mut self, prod: u16) -> bool {
        self.ring.set_producer(prod)
    }

    pub(super) fn has_work(&self) -> bool {
        self.enabled && self.ring.available() > 0
    }

    /// Processes at most `budget` descriptors; returns how many completions were written (0 or 1: one covers the
    /// whole batch, as the driver frees everything up to its index).
    pub(super) fn process(
        &mut self,
        mem: &GuestMemory,
        stats: &mut Stats,
        max_frame: usize,
        link: &mut dyn Link,
        budget: &mut usize,
    ) -> u32 {
        let mut complete = None;
        while *budget > 0 && self.ring.available() > 0 {
            *budget -= 1;
            let desc = match mem.read_plain::<TxqDesc>(self.ring.descriptor(DESC)) {
                Ok(desc) => desc,
                Err(error) => {
                    // The ring itself is not memory. Nothing that waits in it can be known; the queue starts again with
                    // the next Q_INIT.
                    crate::warn_limited!(%error, "TX ring is not in guest memory");
                    stats.tx_ring_unreadable();
                    self.ring.discard();
                    self.enabled = false;
                    break;
                }
            };
            let index = self.ring.index();
            if self.descriptor(mem, stats, max_frame, link, &desc) {
                complete = Some(index);
            }
            self.ring.advance();
        }
        let Some(index) = complete else { return 0 };
        let comp = TxqComp { comp_index: index.into(), ..TxqComp::default() };
        if let Err(error) = self.comp.post(&mut mem.access(), zerocopy::transmute!(comp)) {
            crate::warn_limited!(%error, "TX completion ring is not in guest memory");
            stats.tx_comp_unwritable();
            return 0;
        }
        1
    }

    /// One descriptor; whether it may be completed. A TSO packet's descriptors may only be completed with its last.
    fn descriptor(
        &mut self,
        mem: &GuestMemory,
        stats: &mut Stats,
        max_frame: usize,
        link: &mut dyn Link,
        desc: &TxqDesc,
    ) -> bool {
        let flags = desc.flags();
        let tci = flags.contains(TxqFlags::VLAN).then(|| desc.vlan_tci.get());
        if desc.opcode() != TxqOpcode::TSO {
            if self.chain.take().is_some() {
                stats.tx_refused(false);
            }
            match self.gather(mem, desc, 0, max_frame) {
                Ok(len) => {
                    let offload = match desc.opcode() {
                        TxqOpcode::CSUM_PARTIAL => {
                            Offload::Checksum { start: desc.csum_start(), offset: desc.csum_offset() }
                        }
                        _ => Offload::None,
                    };
                    self.send(stats, link, len, tci, offload);
                }
                Err(refused) => refuse(stats, &refused),
            }
            return true;
        }
        if flags.contains(TxqFlags::TSO_SOT) {
            if self.chain.is_some() {
                stats.tx_refused(false);
            }
            self.chain = Some(Chain { hdr_len: desc.hdr_len(), mss: desc.mss(), tci, len: 0, broken: false });
        }
        // A continuation without a start carries nothing that could be sent; it is counted once, however long it goes on.
        let mut chain = self.chain.take().unwrap_or_else(|| {
            stats.tx_refused(false);
            Chain { hdr_len: 0, mss: 0, tci, len: 0, broken: true }
        });
        if !chain.broken {
            match self.gather(mem, desc, chain.len, MAX_SUPER) {
                Ok(len) => chain.len = len,
                Err(refused) => {
                    refuse(stats, &refused);
                    chain.broken = true;
                }
            }
        }
        if !flags.contains(TxqFlags::TSO_EOT) {
            self.chain = Some(chain);
            return false;
        }
        if !chain.broken {
            self.send_super(stats, link, chain);
        }
        true
    }

    /// Copies the descriptor's buffers behind the `at` bytes that are there; the new length.
    fn gather(&mut self, mem: &GuestMemory, desc: &TxqDesc, at: usize, limit: usize) -> Result<usize, Refused> {
        let mut end = at;
        let mem = &mut mem.access();
        let mut take = |mem: &mut Access<'_>, addr: u64, len: usize| -> Result<(), Refused> {
            let next = end + len;
            if next > limit {
                return Err(Refused::Data);
            }
            let room = self.buf.get_mut(TAG + end..TAG + next).ok_or(Refused::Data)?;
            mem.read(addr, room)?;
            end = next;
            Ok(())
        };
        take(mem, desc.addr(), desc.len.get().into())?;
        let sg = self.ring.entry(self.sg_base, SG_DESC);
        for i in 0..u64::from(desc.nsge()) {
            let elem = mem.read_plain::<TxqSgElem>(sg.wrapping_add(i * SG_ELEM))?;
            take(mem, elem.addr.get(), elem.len.get().into())?;
        }
        Ok(end)
    }

    fn send_super(&mut self, stats: &mut Stats, link: &mut dyn Link, chain: Chain) {
        let frame = &mut self.buf[TAG..TAG + chain.len];
        // Behind more tags than that nobody could segment it, the one that is put in included.
        let deepest = if chain.tci.is_some() { 18 } else { 22 };
        let fixed = offload::layers(frame).filter(|found| found.l3 <= deepest).and_then(|found| {
            let (field, len) = match found.ethertype {
                ETHERTYPE_IPV4 => (found.l3 + 2, chain.len - found.l3),
                ETHERTYPE_IPV6 => (found.l3 + 4, (chain.len - found.l3).checked_sub(40)?),
                _ => return None,
            };
            // The driver zeroes the length of IPv4; whoever takes the frame whole needs it.
            frame.get_mut(field..field + 2)?.copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
            (found.l4?.0 == offload::PROTO_TCP && usize::from(chain.hdr_len) < chain.len && chain.mss > 0).then_some(())
        });
        if fixed.is_none() {
            stats.tx_refused(false);
            return;
        }
        self.send(stats, link, chain.len, chain.tci, Offload::Segment { hdr_len: chain.hdr_len, mss: chain.mss });
    }

    fn send(&mut self, stats: &mut Stats, link: &mut dyn Link, len: usize, tci: Option<u16>, mut offload: Offload) {
        if len < ETH {
            stats.tx_refused(false);
            return;
        }
        let mut start = TAG;
        if let Some(tci) = tci {
            self.buf.copy_within(TAG..TAG + 12, 0);
            self.buf[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            self.buf[14..16].copy_from_slice(&tci.to_be_bytes());
            start = 0;
            // Offsets count without the tag (03 §2.3).
            const SHIFT: u16 = 4;
            match &mut offload {
                Offload::None => {}
                Offload::Checksum { start, .. } => *start = start.saturating_add(SHIFT),
                Offload::Segment { hdr_len, .. } => *hdr_len = hdr_len.saturating_add(SHIFT),
            }
        }
        let bytes = &mut self.buf[start..TAG + len];
        stats.tx_frame(bytes, offload);
        link.transmit(&mut TxFrame { bytes, offload });
    }
}
