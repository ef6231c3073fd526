//! Lane `ionic`: the driver against the device in one thread, without a transport.

mod common;

lane!(crate::common::Direct);
