//! The remote store in front of a real S3 server on loopback. Its futures are polled by an executor that knows nothing of
//! tokio, as the NIC's loop does.
#![allow(clippy::cast_possible_truncation, missing_debug_implementations)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../model/mod.rs"]
mod model;
#[path = "../common/server.rs"]
mod server;
#[path = "../common/wait.rs"]
mod wait;

mod folder;
mod histories;
mod s3;
