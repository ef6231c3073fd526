//! The vfio-user transport.

mod device;
mod irq;

pub use device::{IrqAction, RegionInfo, VfioDevice};
pub use irq::IrqTable;
