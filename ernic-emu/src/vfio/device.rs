//! The seam between the vfio-user transport and the device behind it.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// What a region is to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Bytes; 0 for a region that does not exist.
    pub size: u64,
    /// The client may read.
    pub read: bool,
    /// The client may write.
    pub write: bool,
}

/// What SET_IRQS asks for.
#[derive(Debug)]
pub enum IrqAction {
    /// Vectors `start..start + fds.len()` get these eventfds; `None` takes one away.
    EventFds {
        /// First vector.
        start: u32,
        /// Eventfds, in order.
        fds: Vec<Option<OwnedFd>>,
    },
    /// All vectors lose their eventfd.
    DisableAll,
    /// Trigger vectors `start..start + count` now.
    Trigger {
        /// First vector.
        start: u32,
        /// How many.
        count: u32,
    },
}

/// A device behind the vfio-user transport. Every call comes from the one thread that owns the device, in the order in
/// which the client sent the messages.
pub trait VfioDevice {
    /// Region `index` (0..=8: six BARs, ROM, configuration space, VGA).
    fn region_info(&self, index: u32) -> RegionInfo;
    /// How many interrupts index `index` has (0 INTx, 1 MSI, 2 MSI-X, 3 error, 4 request).
    fn irq_count(&self, index: u32) -> u32;
    /// Reads `data.len()` bytes; the transport has checked the range against [`VfioDevice::region_info`].
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;
    /// Writes `data`; the range is checked likewise.
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Changes interrupts; `start + len` is within [`VfioDevice::irq_count`].
    fn set_irqs(&mut self, index: u32, action: IrqAction) -> Result<(), Errno>;
    /// The client reset the device (DEVICE_RESET).
    fn reset(&mut self);
    /// A range of guest memory is about to go: no access to it may be under way once this returns.
    fn dma_unmapping(&mut self, iova: u64, size: u64);
    /// The client is gone: guest memory and interrupts with it.
    fn disconnected(&mut self);
}
