//! Lane `s3-rdma`: the rules of S3 over RDMA, over a client's memory that is a table in this process.

mod common;
#[path = "common/lab.rs"]
mod lab;
mod rules;

/// The client's memory.
fn memory() -> Box<dyn lab::ClientMemory> {
    Box::new(rdma_token::testing::Regions::new())
}
