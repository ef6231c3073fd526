//! A user-space ionic driver that plays the guest.
//!
//! [`Ionic`] does to the device what the stock Linux driver does, in its order and with its accesses, over a [`Bus`]:
//! [`InProcess`] calls the device directly, [`VfioUser`] reaches it over the vfio-user socket as QEMU does. It is strict: what
//! would hang or corrupt the real driver is a [`DriverError::Violation`], what would be found only by luck is
//! [`DriverError::LostInterrupt`]. [`Verbs`] does the same for the RDMA half, as `ionic_rdma` and libionic do. [`GuestNet`] is
//! the guest's network stack on top, as strict as Linux about every checksum.
//!
//! Written from the facts of the driver's interface, not from its text; the structures come from `ionic-abi`, whose layout is
//! checked against the kernel's own headers.

pub mod bus;
pub mod check;
pub mod error;
pub mod http;
pub mod in_process;
pub mod ionic;
pub mod net;
pub mod ram;
pub mod rings;
pub mod user;
pub mod verbs;
pub mod vfio_user;

pub use bus::{Bar, Bus, BusError};
pub use error::DriverError;
pub use in_process::InProcess;
pub use ionic::{Config, Filter, Ionic, RxFrame};
pub use net::GuestNet;
pub use ram::{DmaBuf, GuestRam};
pub use rings::{TxLayout, TxOffload};
pub use user::UserMem;
pub use verbs::Verbs;
pub use vfio_user::VfioUser;
