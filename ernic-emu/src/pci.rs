//! The PCI function: configuration space with its PCI Express and MSI-X capabilities.
//!
//! Layout of ours: PCI Express capability at 0x40, MSI-X at 0x80. BAR0 (64-bit, 64 KiB) holds the registers, the MSI-X
//! table and PBA; BAR2 (64-bit, 4 MiB) the doorbell pages. There is no BAR4: the stock driver takes a third memory BAR
//! for controller memory (`ionic_dev.c: ionic_map_cmb`).

use std::ops::Range;

/// AMD Pensando (`PCI_VENDOR_ID_PENSANDO`).
pub const VENDOR_ID: u16 = 0x1dd8;
/// The ionic Ethernet physical function, which the stock driver binds (`ionic_id_table`).
pub const DEVICE_ID_ETH_PF: u16 = 0x1002;
/// The id that rocm-ernic presents; the stock driver binds it only by `new_id` or `driver_override`.
pub const DEVICE_ID_ERNIC: u16 = 0x100a;

/// Bytes of the configuration space (PCI Express).
pub const CONFIG_SIZE: usize = 4096;
/// Bytes of BAR0.
pub const BAR0_SIZE: u64 = 64 << 10;
/// Bytes of BAR2: [`DOORBELL_PAGES`] pages of 4 KiB.
pub const BAR2_SIZE: u64 = (DOORBELL_PAGES as u64) << 12;
/// Doorbell pages per LIF (`ndbpgs_per_lif`): one for the kernel, the rest for verbs contexts.
pub const DOORBELL_PAGES: u32 = 1024;
/// MSI-X vectors.
pub const VECTORS: u16 = 64;
const MSIX_TABLE_OFFSET: u32 = 0x8000;
const MSIX_PBA_OFFSET: u32 = 0xc000;
/// MSI-X table in BAR0, 16 bytes an entry.
pub const MSIX_TABLE: Range<u64> = MSIX_TABLE_OFFSET as u64..MSIX_TABLE_OFFSET as u64 + 16 * VECTORS as u64;
/// MSI-X pending bits in BAR0.
pub const MSIX_PBA: Range<u64> = MSIX_PBA_OFFSET as u64..MSIX_PBA_OFFSET as u64 + VECTORS as u64 / 8;

/// Offsets of the capabilities, as they stand in the capability list.
const CAP_PCIE_PTR: u8 = 0x40;
const CAP_MSIX_PTR: u8 = 0x80;
const CAP_PCIE: usize = CAP_PCIE_PTR as usize;
const CAP_MSIX: usize = CAP_MSIX_PTR as usize;
const DEVCTL: usize = CAP_PCIE + 8;
const MSIX_CTRL: usize = CAP_MSIX + 2;
const COMMAND: usize = 0x04;
const BAR: usize = 0x10;

const COMMAND_BUS_MASTER: u16 = 1 << 2;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;
/// Bit 15 of Device Control, in its high byte.
const DEVCTL_FLR_HIGH: u8 = 0x80;

/// What a configuration write means to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfigEffect {
    /// The guest asked for a function-level reset.
    pub flr: bool,
    /// Bus mastering or MSI-X may have changed.
    pub gate: bool,
}

/// The configuration space.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_SIZE]>,
    writable: Box<[u8; CONFIG_SIZE]>,
    device_id: u16,
}

impl ConfigSpace {
    /// The space as after power-on.
    #[must_use]
    pub fn new(device_id: u16) -> Self {
        let mut space = Self { bytes: Box::new([0; CONFIG_SIZE]), writable: Box::new([0; CONFIG_SIZE]), device_id };
        space.reset();
        space
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Back to power-on values.
    pub fn reset(&mut self) {
        self.bytes.fill(0);
        self.writable.fill(0);
        self.put(0x00, &VENDOR_ID.to_le_bytes());
        self.put(0x02, &self.device_id.to_le_bytes());
        self.put(0x06, &0x0010u16.to_le_bytes()); // Status: capability list
        self.put(0x09, &[0x00, 0x00, 0x02]); // class 0x020000, Ethernet controller
        self.put(0x2c, &VENDOR_ID.to_le_bytes());
        self.put(0x2e, &self.device_id.to_le_bytes());
        self.put(0x34, &[CAP_PCIE_PTR]);
        // Memory space, bus master, parity, SERR, INTx disable.
        self.allow(COMMAND, &0x0546u16.to_le_bytes());
        self.allow(0x0c, &[0xff]); // cache line size
        self.allow(0x3c, &[0xff]); // interrupt line
        for (slot, size) in [(0, BAR0_SIZE), (2, BAR2_SIZE)] {
            self.put(BAR + 4 * slot, &[0x04]); // memory, 64-bit, not prefetchable
            self.allow(BAR + 4 * slot, &(!(size - 1)).to_le_bytes());
        }
        // PCI Express capability, version 2, endpoint (PCIe 3.0 §7.8). Device Capabilities: role-based error
        // reporting, FLR. Link: 8 GT/s x16, with Link Capabilities 2, without which Linux prints an unknown speed.
        self.put(CAP_PCIE, &[0x10, CAP_MSIX_PTR, 0x02, 0x00]);
        self.put(CAP_PCIE + 0x04, &0x1000_8000u32.to_le_bytes());
        self.allow(DEVCTL, &0x7fffu16.to_le_bytes());
        self.put(CAP_PCIE + 0x0c, &0x0000_0103u32.to_le_bytes());
        self.allow(CAP_PCIE + 0x10, &0x0fffu16.to_le_bytes());
        self.put(CAP_PCIE + 0x12, &0x0103u16.to_le_bytes());
        self.allow(CAP_PCIE + 0x28, &0xffffu16.to_le_bytes());
        self.put(CAP_PCIE + 0x2c, &0x0000_000eu32.to_le_bytes());
        self.put(CAP_PCIE + 0x30, &0x0003u16.to_le_bytes());
        // MSI-X: table and PBA in BAR0 (BIR 0).
        self.put(CAP_MSIX, &[0x11, 0x00]);
        self.put(MSIX_CTRL, &(VECTORS - 1).to_le_bytes());
        self.allow(MSIX_CTRL, &(MSIX_ENABLE | MSIX_FUNCTION_MASK).to_le_bytes());
        self.put(CAP_MSIX + 4, &MSIX_TABLE_OFFSET.to_le_bytes());
        self.put(CAP_MSIX + 8, &MSIX_PBA_OFFSET.to_le_bytes());
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// The device may read and write guest memory and send MSI-X.
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_BUS_MASTER != 0
    }

    /// MSI-X is enabled and the function is not masked.
    #[must_use]
    pub fn msix_enabled(&self) -> bool {
        self.u16_at(MSIX_CTRL) & (MSIX_ENABLE | MSIX_FUNCTION_MASK) == MSIX_ENABLE
    }

    /// Reads; bytes beyond the space are 0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Ok(at) = usize::try_from(offset)
            && let Some(rest) = self.bytes.get(at..)
        {
            let n = rest.len().min(data.len());
            data[..n].copy_from_slice(&rest[..n]);
        }
    }

    /// Writes the writable bits.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::default();
        let Ok(start) = usize::try_from(offset) else { return effect };
        for (at, &value) in (start..CONFIG_SIZE).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = (self.bytes[at] & !mask) | (value & mask);
            // Initiate Function Level Reset is bit 15 of Device Control, and always reads 0.
            effect.flr |= at == DEVCTL + 1 && value & DEVCTL_FLR_HIGH != 0;
            effect.gate |= at == COMMAND || at == MSIX_CTRL + 1;
        }
        effect
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;

    fn read32(c: &ConfigSpace, at: u64) -> u32 {
        let mut b = [0; 4];
        c.read(at, &mut b);
        u32::from_le_bytes(b)
    }

    #[test]
    fn identity_and_capability_list() {
        let c = ConfigSpace::new(DEVICE_ID_ETH_PF);
        assert_eq!(read32(&c, 0), 0x1002_1dd8);
        assert_eq!(read32(&c, 8), 0x0200_0000);
        let mut at = u64::from(read32(&c, 0x34) as u8);
        let mut ids = Vec::new();
        while at != 0 {
            let v = read32(&c, at);
            ids.push(v as u8);
            at = u64::from((v >> 8) as u8);
        }
        assert_eq!(ids, [0x10, 0x11]);
        assert_eq!(read32(&c, 0x4c) & 0x3ff, 0x103);
        assert_eq!(read32(&c, 0x80) >> 16 & 0x7ff, 63);
    }

    #[test]
    fn bars_can_be_sized() {
        let mut c = ConfigSpace::new(DEVICE_ID_ETH_PF);
        c.write(0x10, &[0xff; 24]);
        assert_eq!(read32(&c, 0x10), 0xffff_0004);
        assert_eq!(read32(&c, 0x14), 0xffff_ffff);
        assert_eq!(read32(&c, 0x18), 0xffc0_0004);
        assert_eq!(read32(&c, 0x20), 0, "no BAR4");
        assert_eq!(read32(&c, 0x24), 0);
    }

    #[test]
    fn flr_bit_reads_zero_and_gates_follow() {
        let mut c = ConfigSpace::new(DEVICE_ID_ETH_PF);
        assert!(c.write(0x48, &0x8000u16.to_le_bytes()).flr);
        assert_eq!(read32(&c, 0x48) & 0x8000, 0);
        assert!(c.write(0x04, &[0x06, 0x00]).gate && c.bus_master());
        assert!(c.write(0x82, &0xc000u16.to_le_bytes()).gate && !c.msix_enabled());
        c.write(0x82, &0x8000u16.to_le_bytes());
        assert!(c.msix_enabled());
        c.write(0, &[0; 4]);
        assert_eq!(read32(&c, 0), 0x1002_1dd8, "read-only");
        assert_eq!(c.write(u64::MAX, &[1]), ConfigEffect::default());
    }
}
