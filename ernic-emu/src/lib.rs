//! .

pub mod mem;
pub mod ratelimit;
pub mod vfio;
