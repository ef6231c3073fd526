//! Counters: what the driver reads in its statistics block, and what else a test or operator wants to know.

use ionic_abi::{LifStats, PortStats};

use crate::{link::Offload, mem::DmaError};

/// Guest misbehaviour, counted by kind. Nothing of it stops the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestErrors {
    /// Doorbells for a page, type, queue or index that does not exist.
    pub doorbells: u64,
    /// Register accesses of a size or alignment that no register has.
    pub accesses: u64,
    /// Device or admin commands with an unknown opcode.
    pub unknown_commands: u64,
    /// Device or admin commands refused for their fields.
    pub bad_commands: u64,
    /// Admin queue descriptors or completions outside guest memory.
    pub admin_dma: u64,
    /// RDMA admin commands refused.
    pub rdma_commands: u64,
    /// RDMA queues or tables outside guest memory.
    pub rdma_dma: u64,
    /// Information blocks or notify entries outside guest memory.
    pub info_dma: u64,
}

impl GuestErrors {
    /// Every kind, by its name.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { doorbells, accesses, unknown_commands, bad_commands, admin_dma, rdma_commands, rdma_dma, info_dma } =
            *self;
        [
            ("doorbells", doorbells),
            ("accesses", accesses),
            ("unknown_commands", unknown_commands),
            ("bad_commands", bad_commands),
            ("admin_dma", admin_dma),
            ("rdma_commands", rdma_commands),
            ("rdma_dma", rdma_dma),
            ("info_dma", info_dma),
        ]
        .into_iter()
    }

    /// All of them together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_kind().map(|(_, count)| count).sum()
    }
}

/// Which of the three kinds a destination address is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cast {
    Unicast,
    Multicast,
    Broadcast,
}

pub(super) fn cast(frame: &[u8]) -> Cast {
    match frame.first_chunk::<6>() {
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => Cast::Broadcast,
        Some([first, ..]) if first & 1 == 1 => Cast::Multicast,
        _ => Cast::Unicast,
    }
}

/// Why a received frame went nowhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RxDrop {
    /// The filters do not want it. Not an error: not counted as dropped.
    Filtered,
    /// No queue is enabled.
    Disabled,
    /// No buffer is posted.
    Empty,
    /// The buffers are too small.
    TooLong,
    /// Not guest memory.
    Dma,
}

/// All counters of the device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stats {
    pub(super) lif: LifStats,
    pub(super) port: PortStats,
    pub(super) guest: GuestErrors,
    /// Something changed since the block was last written to guest memory.
    pub(super) dirty: bool,
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl Stats {
    /// A frame that goes out; a super-frame counts as its segments.
    pub(super) fn tx_frame(&mut self, frame: &[u8], offload: Offload) {
        let (mut packets, mut bytes) = (1, count(frame.len()));
        if let Offload::Segment { hdr_len, mss } = offload
            && mss > 0
        {
            let payload = frame.len().saturating_sub(hdr_len.into());
            packets = count(payload.div_ceil(mss.into()).max(1));
            bytes += (packets - 1) * u64::from(hdr_len);
        }
        let (lif, port) = (&mut self.lif, &mut self.port);
        match cast(frame) {
            Cast::Unicast => {
                lif.tx_ucast_packets += packets;
                lif.tx_ucast_bytes += bytes;
                port.frames_tx_unicast += packets;
            }
            Cast::Multicast => {
                lif.tx_mcast_packets += packets;
                lif.tx_mcast_bytes += bytes;
                port.frames_tx_multicast += packets;
            }
            Cast::Broadcast => {
                lif.tx_bcast_packets += packets;
                lif.tx_bcast_bytes += bytes;
                port.frames_tx_broadcast += packets;
            }
        }
        port.frames_tx_ok += packets;
        port.frames_tx_all += packets;
        port.octets_tx_ok += bytes;
        port.octets_tx_total += bytes;
        self.dirty = true;
    }

    /// A frame that was not sent: its memory could not be read, or it makes no sense.
    pub(super) fn tx_refused(&mut self, dma: bool) {
        if dma {
            self.lif.tx_dma_error += 1;
        } else {
            self.lif.tx_desc_data_error += 1;
        }
        self.port.frames_tx_all += 1;
        self.port.frames_tx_bad += 1;
        self.dirty = true;
    }

    pub(super) fn tx_ring_unreadable(&mut self) {
        self.lif.tx_desc_fetch_error += 1;
        self.lif.tx_queue_error += 1;
        self.dirty = true;
    }

    pub(super) fn tx_comp_unwritable(&mut self) {
        self.lif.tx_queue_error += 1;
        self.dirty = true;
    }

    /// An information block, named by `what`, that cannot be written. The caller forgets where it is.
    pub(super) fn info_unwritable(&mut self, what: &'static str, error: DmaError) {
        crate::warn_limited!(what, %error, "information block is not in guest memory");
        self.guest.info_dma += 1;
    }

    pub(super) fn rx_frame(&mut self, frame: &[u8], tagged: bool) {
        let bytes = count(frame.len());
        let (lif, port) = (&mut self.lif, &mut self.port);
        match cast(frame) {
            Cast::Unicast => {
                lif.rx_ucast_packets += 1;
                lif.rx_ucast_bytes += bytes;
                port.frames_rx_unicast += 1;
            }
            Cast::Multicast => {
                lif.rx_mcast_packets += 1;
                lif.rx_mcast_bytes += bytes;
                port.frames_rx_multicast += 1;
            }
            Cast::Broadcast => {
                lif.rx_bcast_packets += 1;
                lif.rx_bcast_bytes += bytes;
                port.frames_rx_broadcast += 1;
            }
        }
        port.frames_rx_ok += 1;
        port.frames_rx_all += 1;
        port.octets_rx_ok += bytes;
        port.octets_rx_all += bytes;
        if tagged {
            port.frames_rx_vlan_good += 1;
        }
        self.dirty = true;
    }

    pub(super) fn rx_drop(&mut self, frame: &[u8], why: RxDrop) {
        let bytes = count(frame.len());
        let lif = &mut self.lif;
        // Each loss is counted in exactly one of the fields that `ip -s link` adds up (02 §6).
        match why {
            RxDrop::Filtered => {}
            RxDrop::Disabled => lif.rx_queue_disabled += 1,
            RxDrop::Empty => lif.rx_queue_empty += 1,
            RxDrop::Dma => lif.rx_dma_error += 1,
            RxDrop::TooLong => match cast(frame) {
                Cast::Unicast => {
                    lif.rx_ucast_drop_packets += 1;
                    lif.rx_ucast_drop_bytes += bytes;
                }
                Cast::Multicast => {
                    lif.rx_mcast_drop_packets += 1;
                    lif.rx_mcast_drop_bytes += bytes;
                }
                Cast::Broadcast => {
                    lif.rx_bcast_drop_packets += 1;
                    lif.rx_bcast_drop_bytes += bytes;
                }
            },
        }
        self.port.frames_rx_all += 1;
        self.port.octets_rx_all += bytes;
        self.port.frames_rx_dropped += 1;
        self.dirty = true;
    }
}
