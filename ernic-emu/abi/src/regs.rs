//! Registers: BAR layout, device information, device-command mailbox, interrupt control, doorbells.

use core::ops::Range;

use bitflags::bitflags;

use crate::{AdminCmd, AdminComp, U32, open_enum, wire};

/// PCI vendor id (`PCI_VENDOR_ID_PENSANDO`, `include/linux/pci_ids.h`).
pub const PCI_VENDOR_ID: u16 = 0x1dd8;
/// PCI device id of the Ethernet physical function (`PCI_DEVICE_ID_PENSANDO_IONIC_ETH_PF`, `ionic.h`).
pub const PCI_DEVICE_ID_ETH_PF: u16 = 0x1002;
/// PCI device id of the Ethernet virtual function (`PCI_DEVICE_ID_PENSANDO_IONIC_ETH_VF`, `ionic.h`).
pub const PCI_DEVICE_ID_ETH_VF: u16 = 0x1003;

/// The driver's dense number of the doorbell BAR (`IONIC_PCI_BAR_DBELL`): memory BARs are counted without gaps, so with
/// 64-bit BARs 0 and 2 this is BAR 2 of the configuration space.
pub const PCI_BAR_DBELL: usize = 1;
/// Smallest BAR 0 that the driver accepts, bytes (`IONIC_BAR0_SIZE`).
pub const BAR0_SIZE: u64 = 0x8000;

/// Bits of a DMA address (`IONIC_ADDR_LEN`).
pub const ADDR_LEN: u32 = 52;
/// The bits of a DMA address (`IONIC_ADDR_MASK`).
pub const ADDR_MASK: u64 = (1 << ADDR_LEN) - 1;

/// Device information registers in BAR 0 (`IONIC_BAR0_DEV_INFO_REGS_OFFSET`, `union ionic_dev_info_regs`).
pub const BAR0_DEV_INFO: Range<u64> = 0x0000..0x0800;
/// Device-command registers in BAR 0 (`IONIC_BAR0_DEV_CMD_REGS_OFFSET`, `union ionic_dev_cmd_regs`).
pub const BAR0_DEV_CMD: Range<u64> = 0x0800..0x1000;
/// Interrupt status in BAR 0 (`IONIC_BAR0_INTR_STATUS_OFFSET`); Linux never reads it.
pub const BAR0_INTR_STATUS: Range<u64> = 0x1000..0x2000;
/// Interrupt control blocks in BAR 0 (`IONIC_BAR0_INTR_CTRL_OFFSET`), [`INTR_CTRL_STRIDE`] bytes per vector.
pub const BAR0_INTR_CTRL: Range<u64> = 0x2000..0x8000;

/// `signature` of [`DevInfoRegs`] (`IONIC_DEV_INFO_SIGNATURE`).
pub const DEV_INFO_SIGNATURE: u32 = 0x4445_5649;
/// `version` of [`DevInfoRegs`] (`IONIC_DEV_INFO_VERSION`).
pub const DEV_INFO_VERSION: u8 = 1;
/// `fw_status`: the firmware runs (`IONIC_FW_STS_F_RUNNING`).
pub const FW_STS_F_RUNNING: u8 = 0x01;
/// `fw_status`: generation, a change means a restart (`IONIC_FW_STS_F_GENERATION`).
pub const FW_STS_F_GENERATION: u8 = 0xf0;

/// Offset of [`DevInfoRegs::fw_status`] in BAR 0.
pub const DEV_INFO_FW_STATUS: u64 = BAR0_DEV_INFO.start + core::mem::offset_of!(DevInfoRegs, fw_status) as u64;
/// Offset of the command doorbell in BAR 0: writing 1 runs the command.
pub const DEV_CMD_DOORBELL: u64 = BAR0_DEV_CMD.start + core::mem::offset_of!(DevCmdRegs, doorbell) as u64;
/// Offset of the done register in BAR 0: the device sets [`DEV_CMD_DONE_BIT`].
pub const DEV_CMD_DONE: u64 = BAR0_DEV_CMD.start + core::mem::offset_of!(DevCmdRegs, done) as u64;
/// Offset of the 64-byte command in BAR 0.
pub const DEV_CMD_CMD: u64 = BAR0_DEV_CMD.start + core::mem::offset_of!(DevCmdRegs, cmd) as u64;
/// Offset of the 16-byte completion in BAR 0.
pub const DEV_CMD_COMP: u64 = BAR0_DEV_CMD.start + core::mem::offset_of!(DevCmdRegs, comp) as u64;
/// Offset of the data window in BAR 0. (The header's `IONIC_BAR0_DEV_CMD_DATA_REGS_OFFSET` is not used by anything.)
pub const DEV_CMD_DATA: u64 = BAR0_DEV_CMD.start + core::mem::offset_of!(DevCmdRegs, data) as u64;
/// Bytes of the data window, and of every identity.
pub const DEV_CMD_DATA_SIZE: usize = 1912;
/// The bit of the done register (`IONIC_DEV_CMD_DONE`).
pub const DEV_CMD_DONE_BIT: u32 = 0x0000_0001;

open_enum! {
    /// `asic_type` of [`DevInfoRegs`] (`IONIC_ASIC_TYPE_*`). `NONE` and `ELBA` switch on the driver's doorbell
    /// workaround, which can panic the guest on repeated PCI resets.
    pub struct AsicType(u8) {
        NONE = 0,
        CAPRI = 1,
        ELBA = 2,
        GIGLIO = 3,
        SALINA = 4,
    }
}

wire! {
    /// Device information registers (`union ionic_dev_info_regs`), read-only to the driver.
    pub struct DevInfoRegs, 2048 {
        /// [`DEV_INFO_SIGNATURE`].
        pub signature: U32,
        /// [`DEV_INFO_VERSION`].
        pub version: u8,
        /// Which chip this claims to be.
        pub asic_type: AsicType,
        /// Chip revision.
        pub asic_rev: u8,
        /// [`FW_STS_F_RUNNING`] and the generation; 0xff: the device is gone.
        pub fw_status: u8,
        /// 0, or a number that changes at least every 5 s.
        pub fw_heartbeat: U32,
        /// Firmware version, NUL-padded ASCII.
        pub fw_version: [u8; 32],
        /// Serial number, NUL-padded ASCII.
        pub serial_num: [u8; 32],
        /// Reserved.
        pub rsvd_pad1024: [u8; 948],
        /// Low half of the hardware clock (only read with a PHC).
        pub hwstamp_tick_low: U32,
        /// High half of the hardware clock.
        pub hwstamp_tick_high: U32,
        /// Reserved.
        pub rsvd: [u8; 1016],
    }

    /// Device-command registers (`union ionic_dev_cmd_regs`).
    pub struct DevCmdRegs, 2048 {
        /// Writing 1 runs the command; the driver also writes 0, which does nothing.
        pub doorbell: U32,
        /// [`DEV_CMD_DONE_BIT`] once `comp` and `data` are valid; cleared by the driver.
        pub done: U32,
        /// The command.
        pub cmd: AdminCmd,
        /// Its completion.
        pub comp: AdminComp,
        /// Reserved.
        pub rsvd: [u8; 48],
        /// Data in (driver identity, port configuration) or out (identities).
        pub data: [u8; DEV_CMD_DATA_SIZE],
    }

    /// One interrupt control block (`struct ionic_intr`, `ionic_regs.h`).
    pub struct Intr, 32 {
        /// Initial coalescing timer, device units, at most [`INTR_CTRL_COAL_MAX`].
        pub coal_init: U32,
        /// 1: masked.
        pub mask: U32,
        /// Write: [`IntrCredits`] bits and a count; read: the count of unreturned credits.
        pub credits: U32,
        /// 1: the device masks the vector when it asserts it.
        pub mask_assert: U32,
        /// Remaining coalescing time, device units.
        pub coal: U32,
        /// Reserved.
        pub rsvd: [U32; 3],
    }
}

/// Bytes of one interrupt control block.
pub const INTR_CTRL_STRIDE: u64 = size_of::<Intr>() as u64;
/// Offset of `coal_init` in an interrupt control block.
pub const INTR_COAL_INIT: u64 = core::mem::offset_of!(Intr, coal_init) as u64;
/// Offset of `mask` in an interrupt control block.
pub const INTR_MASK: u64 = core::mem::offset_of!(Intr, mask) as u64;
/// Offset of `credits` in an interrupt control block.
pub const INTR_CREDITS: u64 = core::mem::offset_of!(Intr, credits) as u64;
/// Offset of `mask_assert` in an interrupt control block.
pub const INTR_MASK_ASSERT: u64 = core::mem::offset_of!(Intr, mask_assert) as u64;
/// Offset of `coal` in an interrupt control block.
pub const INTR_COAL: u64 = core::mem::offset_of!(Intr, coal) as u64;
/// Largest coalescing timer, device units (`IONIC_INTR_CTRL_COAL_MAX`).
pub const INTR_CTRL_COAL_MAX: u32 = 0x3f;

/// The offset in BAR 0 of a register of interrupt `vector`; `reg` is one of the `INTR_*` offsets.
#[must_use]
pub const fn intr_reg(vector: u16, reg: u64) -> u64 {
    BAR0_INTR_CTRL.start + vector as u64 * INTR_CTRL_STRIDE + reg
}

bitflags! {
    /// Bits of a write to `credits` (`enum ionic_intr_credits_bits`); the count is in bits 0–14.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IntrCredits: u32 {
        /// Unmask the vector (`IONIC_INTR_CRED_UNMASK`).
        const UNMASK = 0x1_0000;
        /// Restart the coalescing timer (`IONIC_INTR_CRED_RESET_COALESCE`).
        const RESET_COALESCE = 0x2_0000;
        /// Both (`IONIC_INTR_CRED_REARM`).
        const REARM = 0x3_0000;
    }
}
/// The count in a write to `credits` (`IONIC_INTR_CRED_COUNT`).
pub const INTR_CRED_COUNT: u32 = 0x7fff;
/// The count in a read of `credits`, with its sign (`IONIC_INTR_CRED_COUNT_SIGNED`).
pub const INTR_CRED_COUNT_SIGNED: u32 = 0xffff;

/// Bytes of one doorbell page; the driver uses the guest's page size, 4 KiB on x86 (`ionic_bus_pci.c:
/// ionic_bus_map_dbpage`).
pub const DB_PAGE_SIZE: u64 = 4096;
/// Doorbell slots that a queue type can name: 8-byte slots in the first 64 bytes of a page.
pub const DB_QTYPE_COUNT: usize = 8;

/// A doorbell value (`struct ionic_doorbell`, `enum ionic_dbell_bits`): what an 8-byte write to a doorbell page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Doorbell {
    /// New producer (or consumer) index, bits 0–15.
    pub p_index: u16,
    /// Ring of the queue, bits 16–18.
    pub ring: u8,
    /// Hardware queue number, bits 24–47.
    pub qid: u32,
}

impl Doorbell {
    /// Bits of the queue number (`IONIC_DBELL_QID_MASK`).
    pub const QID_MASK: u32 = 0xff_ffff;
    /// Its shift (`IONIC_DBELL_QID_SHIFT`).
    pub const QID_SHIFT: u32 = 24;
    /// Bits of the ring (`IONIC_DBELL_RING_MASK`).
    pub const RING_MASK: u8 = 0x7;
    /// Its shift (`IONIC_DBELL_RING_SHIFT`).
    pub const RING_SHIFT: u32 = 16;

    /// Takes a written value apart; bits that mean nothing are ignored.
    #[must_use]
    #[inline]
    pub const fn from_value(value: u64) -> Self {
        let b = value.to_le_bytes();
        Self {
            p_index: u16::from_le_bytes([b[0], b[1]]),
            ring: b[2] & Self::RING_MASK,
            qid: u32::from_le_bytes([b[3], b[4], b[5], 0]),
        }
    }

    /// The value to write; a queue number or ring beyond its field is cut.
    #[must_use]
    #[inline]
    pub const fn value(self) -> u64 {
        self.p_index as u64
            | ((self.ring & Self::RING_MASK) as u64) << Self::RING_SHIFT
            | ((self.qid & Self::QID_MASK) as u64) << Self::QID_SHIFT
    }

    /// The offset in the doorbell BAR of the slot for a queue type (`ionic_db_page_num`, `ionic_dbell_ring`).
    ///
    /// `page` is `hw_index * ndbpgs_per_lif + pid`, `hw_type` what Q_INIT answered.
    #[must_use]
    #[inline]
    pub const fn offset(page: u32, hw_type: u8) -> u64 {
        page as u64 * DB_PAGE_SIZE + hw_type as u64 * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_fields_do_not_leak_into_each_other() {
        for d in [
            Doorbell { p_index: 0xffff, ring: 0, qid: 0 },
            Doorbell { p_index: 0, ring: 7, qid: 0 },
            Doorbell { p_index: 0, ring: 0, qid: 0xff_ffff },
            Doorbell { p_index: 0x1234, ring: 2, qid: 0x56_789a },
        ] {
            assert_eq!(Doorbell::from_value(d.value()), d);
        }
        assert_eq!(Doorbell { p_index: 0x1234, ring: 2, qid: 0x56_789a }.value(), 0x0000_5678_9a02_1234);
        // Bits 19-23 and 48-63 mean nothing.
        assert_eq!(Doorbell::from_value(0xffff_0000_00f8_0000), Doorbell { p_index: 0, ring: 0, qid: 0 });
    }

    #[test]
    fn doorbell_slots() {
        assert_eq!(Doorbell::offset(0, 3), 24);
        assert_eq!(Doorbell::offset(5, 2), 5 * 4096 + 16);
    }

    #[test]
    fn interrupt_registers() {
        assert_eq!(intr_reg(0, INTR_COAL_INIT), 0x2000);
        assert_eq!(intr_reg(3, INTR_CREDITS), 0x2068);
        assert_eq!(intr_reg(767, INTR_COAL), 0x7ff0);
    }
}
