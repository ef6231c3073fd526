//! Ethernet rings: transmit and receive descriptors, scatter-gather elements, completions.

use bitflags::bitflags;

use crate::{ADDR_MASK, Status, U16, U32, U64, open_enum, wire};

open_enum! {
    /// What a transmit descriptor asks for (`enum ionic_txq_desc_opcode`).
    pub struct TxqOpcode(u8) {
        /// No checksum.
        CSUM_NONE = 0,
        /// Checksum from `csum_start` to the end, stored at `csum_start + csum_offset`.
        CSUM_PARTIAL = 1,
        /// Full checksum by the hardware; Linux never asks.
        CSUM_HW = 2,
        /// One segment of a TCP super-packet.
        TSO = 3,
    }
}

bitflags! {
    /// Flags of a transmit descriptor (`IONIC_TXQ_DESC_FLAG_*`); bits 2 and 3 depend on the opcode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TxqFlags: u8 {
        /// Insert `vlan_tci`.
        const VLAN = 0x1;
        /// Encapsulated packet.
        const ENCAP = 0x2;
        /// CSUM_HW: compute the IP checksum.
        const CSUM_L3 = 0x4;
        /// CSUM_HW: compute the TCP/UDP checksum.
        const CSUM_L4 = 0x8;
        /// TSO: first descriptor of the super-packet.
        const TSO_SOT = 0x4;
        /// TSO: last descriptor of the super-packet.
        const TSO_EOT = 0x8;
    }
}

wire! {
    /// Transmit descriptor (`struct ionic_txq_desc`).
    pub struct TxqDesc, 16 {
        /// Flags (0–3), opcode (4–7), number of scatter-gather elements (8–11), address of the first buffer (12–63).
        pub cmd: U64,
        /// Bytes of the *first buffer*, not of the frame.
        pub len: U16,
        /// VLAN tag to insert with [`TxqFlags::VLAN`].
        pub vlan_tci: U16,
        /// `csum_start` (CSUM_PARTIAL) or `hdr_len` (TSO), bytes.
        pub hword1: U16,
        /// `csum_offset` (CSUM_PARTIAL) or `mss` (TSO), bytes.
        pub hword2: U16,
    }

    /// Transmit scatter-gather element (`struct ionic_txq_sg_elem`).
    pub struct TxqSgElem, 16 {
        /// DMA address.
        pub addr: U64,
        /// Bytes.
        pub len: U16,
        /// Reserved, stale.
        pub rsvd: [U16; 3],
    }

    /// Transmit scatter-gather descriptor, version 1 (`struct ionic_txq_sg_desc_v1`); [`TX_MAX_SG_ELEMS`] are usable.
    pub struct TxqSgDesc, 256 {
        /// Elements; only the first `nsge` of the descriptor are valid.
        pub elems: [TxqSgElem; 16],
    }

    /// Transmit completion (`struct ionic_txq_comp`).
    pub struct TxqComp, 16 {
        /// Ignored by Linux.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Ring index of the last descriptor that this completes.
        pub comp_index: U16,
        /// Reserved.
        pub rsvd2: [u8; 11],
        /// [`COMP_COLOR`].
        pub color: u8,
    }

    /// Receive descriptor (`struct ionic_rxq_desc`).
    pub struct RxqDesc, 16 {
        /// Whether scatter-gather elements follow.
        pub opcode: RxqOpcode,
        /// Reserved, stale.
        pub rsvd: [u8; 5],
        /// Bytes of the first buffer.
        pub len: U16,
        /// Address of the first buffer.
        pub addr: U64,
    }

    /// Receive scatter-gather element (`struct ionic_rxq_sg_elem`); length 0 ends the list.
    pub struct RxqSgElem, 16 {
        /// DMA address.
        pub addr: U64,
        /// Bytes.
        pub len: U16,
        /// Reserved, stale.
        pub rsvd: [U16; 3],
    }

    /// Receive scatter-gather descriptor (`struct ionic_rxq_sg_desc`).
    pub struct RxqSgDesc, 128 {
        /// Elements.
        pub elems: [RxqSgElem; 8],
    }

    /// Receive completion (`struct ionic_rxq_comp`).
    pub struct RxqComp, 16 {
        /// Other than success: the driver drops the frame.
        pub status: Status,
        /// Scatter-gather elements that hold at least one byte.
        pub num_sg_elems: u8,
        /// Ring index of the descriptor.
        pub comp_index: U16,
        /// Toeplitz hash, or 0.
        pub rss_hash: U32,
        /// With [`RxqCsumFlags::CALC`]: one's-complement sum of everything after the Ethernet header, not inverted.
        pub csum: U16,
        /// Stripped tag with [`RxqCsumFlags::VLAN`].
        pub vlan_tci: U16,
        /// Bytes written.
        pub len: U16,
        /// [`RxqCsumFlags`].
        pub csum_flags: u8,
        /// [`PktType`] (bits 0–6) and [`COMP_COLOR`].
        pub pkt_type_color: u8,
    }
}

/// The color bit in the last byte of every completion (`IONIC_COMP_COLOR_MASK`).
pub const COMP_COLOR: u8 = 0x80;
/// Scatter-gather elements that a transmit descriptor may use (`IONIC_TX_MAX_SG_ELEMS_V1`).
pub const TX_MAX_SG_ELEMS: usize = 15;
/// Scatter-gather elements that a receive descriptor may use (`IONIC_RX_MAX_SG_ELEMS`).
pub const RX_MAX_SG_ELEMS: usize = 8;

impl TxqDesc {
    /// Shift of the opcode in `cmd` (`IONIC_TXQ_DESC_OPCODE_SHIFT`).
    pub const OPCODE_SHIFT: u32 = 4;
    /// Shift of the element count (`IONIC_TXQ_DESC_NSGE_SHIFT`).
    pub const NSGE_SHIFT: u32 = 8;
    /// Shift of the address (`IONIC_TXQ_DESC_ADDR_SHIFT`).
    pub const ADDR_SHIFT: u32 = 12;

    /// Packs `cmd` (`encode_txq_desc_cmd`); values beyond their field are cut.
    #[must_use]
    #[inline]
    pub const fn pack(opcode: TxqOpcode, flags: TxqFlags, nsge: u8, addr: u64) -> u64 {
        (flags.bits() & 0xf) as u64
            | ((opcode.0 & 0xf) as u64) << Self::OPCODE_SHIFT
            | ((nsge & 0xf) as u64) << Self::NSGE_SHIFT
            | (addr & ADDR_MASK) << Self::ADDR_SHIFT
    }

    fn nibble(&self, shift: u32) -> u8 {
        ((self.cmd.get() >> shift) & 0xf).to_le_bytes()[0]
    }

    /// Flags.
    #[must_use]
    #[inline]
    pub fn flags(&self) -> TxqFlags {
        TxqFlags::from_bits_retain(self.nibble(0))
    }

    /// Opcode.
    #[must_use]
    #[inline]
    pub fn opcode(&self) -> TxqOpcode {
        TxqOpcode(self.nibble(Self::OPCODE_SHIFT))
    }

    /// Number of scatter-gather elements, 0–15.
    #[must_use]
    #[inline]
    pub fn nsge(&self) -> u8 {
        self.nibble(Self::NSGE_SHIFT)
    }

    /// Address of the first buffer, 52 bits.
    #[must_use]
    #[inline]
    pub fn addr(&self) -> u64 {
        self.cmd.get() >> Self::ADDR_SHIFT
    }

    /// `csum_start` of CSUM_PARTIAL: first byte of the sum, from the start of the frame.
    #[must_use]
    #[inline]
    pub fn csum_start(&self) -> u16 {
        self.hword1.get()
    }

    /// `csum_offset` of CSUM_PARTIAL: where the sum goes, from `csum_start`.
    #[must_use]
    #[inline]
    pub fn csum_offset(&self) -> u16 {
        self.hword2.get()
    }

    /// `hdr_len` of TSO: bytes before the TCP payload.
    #[must_use]
    #[inline]
    pub fn hdr_len(&self) -> u16 {
        self.hword1.get()
    }

    /// `mss` of TSO: payload bytes of a full segment.
    #[must_use]
    #[inline]
    pub fn mss(&self) -> u16 {
        self.hword2.get()
    }
}

open_enum! {
    /// What a receive descriptor offers (`enum ionic_rxq_desc_opcode`).
    pub struct RxqOpcode(u8) {
        /// One buffer.
        SIMPLE = 0,
        /// Scatter-gather elements follow in the SG ring.
        SG = 1,
    }
}

bitflags! {
    /// `csum_flags` of [`RxqComp`] (`IONIC_RXQ_COMP_CSUM_F_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RxqCsumFlags: u8 {
        /// TCP checksum right.
        const TCP_OK = 0x01;
        /// TCP checksum wrong.
        const TCP_BAD = 0x02;
        /// UDP checksum right.
        const UDP_OK = 0x04;
        /// UDP checksum wrong.
        const UDP_BAD = 0x08;
        /// IPv4 header checksum right.
        const IP_OK = 0x10;
        /// IPv4 header checksum wrong.
        const IP_BAD = 0x20;
        /// A VLAN tag was stripped into `vlan_tci`.
        const VLAN = 0x40;
        /// `csum` is valid (CHECKSUM_COMPLETE); the only checksum flag that Linux acts on.
        const CALC = 0x80;
    }
}

open_enum! {
    /// Packet type in [`RxqComp::pkt_type_color`] (`enum ionic_pkt_type`).
    pub struct PktType(u8) {
        NON_IP = 0x00,
        IPV4 = 0x01,
        IPV4_TCP = 0x03,
        IPV4_UDP = 0x05,
        IPV6 = 0x08,
        IPV6_TCP = 0x18,
        IPV6_UDP = 0x28,
        ENCAP_NON_IP = 0x40,
        ENCAP_IPV4 = 0x41,
        ENCAP_IPV4_TCP = 0x43,
        ENCAP_IPV4_UDP = 0x45,
        ENCAP_IPV6 = 0x48,
        ENCAP_IPV6_TCP = 0x58,
        ENCAP_IPV6_UDP = 0x68,
    }
}
/// The packet type bits of [`RxqComp::pkt_type_color`] (`IONIC_RXQ_COMP_PKT_TYPE_MASK`).
pub const RXQ_COMP_PKT_TYPE_MASK: u8 = 0x7f;

impl RxqComp {
    /// Checksum flags.
    #[must_use]
    #[inline]
    pub fn flags(&self) -> RxqCsumFlags {
        RxqCsumFlags::from_bits_retain(self.csum_flags)
    }

    /// Packet type.
    #[must_use]
    #[inline]
    pub fn pkt_type(&self) -> PktType {
        PktType(self.pkt_type_color & RXQ_COMP_PKT_TYPE_MASK)
    }

    /// Whether the color bit is set.
    #[must_use]
    #[inline]
    pub fn color(&self) -> bool {
        self.pkt_type_color & COMP_COLOR != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tx_command_word_round_trips() {
        let addr = 0x000f_edcb_a987_6543;
        let d = TxqDesc {
            cmd: U64::new(TxqDesc::pack(TxqOpcode::TSO, TxqFlags::VLAN | TxqFlags::TSO_EOT, 15, addr)),
            ..TxqDesc::default()
        };
        assert_eq!(
            (d.opcode(), d.flags(), d.nsge(), d.addr()),
            (TxqOpcode::TSO, TxqFlags::VLAN | TxqFlags::TSO_EOT, 15, addr)
        );
        assert_eq!(d.cmd.get(), 0xfedc_ba98_7654_3f39);
        // Nothing wider than its field reaches its neighbour.
        assert_eq!(TxqDesc::pack(TxqOpcode(0xf0), TxqFlags::from_bits_retain(0xf0), 0xf0, 1 << 52), 0);
    }
}
