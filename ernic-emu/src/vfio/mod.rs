//! The vfio-user transport.

mod device;

pub use device::{IrqAction, RegionInfo, VfioDevice};
