//! Counters that the owner of the service reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::StatusCode;

/// What the service has done since it was made. Every counter only grows, except [`Metrics::open_connections`].
///
/// Body bytes are those of HTTP bodies without their framing: a chunk header of `transfer-encoding: chunked` does not
/// count, one of `aws-chunked` does, because to HTTP it is content.
#[derive(Debug, Default)]
pub struct Metrics {
    connections: AtomicU64,
    open: AtomicU64,
    requests: AtomicU64,
    client_errors: AtomicU64,
    server_errors: AtomicU64,
    body_in: AtomicU64,
    body_out: AtomicU64,
}

impl Metrics {
    /// Connections served, including those still open.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// Connections being served now.
    pub fn open_connections(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// Requests whose head was understood. A head that is no HTTP is answered by the HTTP layer and not counted.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Requests answered with 4xx.
    pub fn client_errors(&self) -> u64 {
        self.client_errors.load(Relaxed)
    }

    /// Requests answered with 5xx.
    pub fn server_errors(&self) -> u64 {
        self.server_errors.load(Relaxed)
    }

    /// Bytes of request bodies taken.
    pub fn body_bytes_in(&self) -> u64 {
        self.body_in.load(Relaxed)
    }

    /// Bytes of response bodies handed to the connection.
    pub fn body_bytes_out(&self) -> u64 {
        self.body_out.load(Relaxed)
    }

    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn answer(&self, status: StatusCode) {
        if status.is_client_error() {
            self.client_errors.fetch_add(1, Relaxed);
        } else if status.is_server_error() {
            self.server_errors.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.body_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.body_out.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a connection for as long as the returned guard lives.
    pub(crate) fn connection(&self) -> Open<'_> {
        self.connections.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        Open(self)
    }
}

/// A connection that is being served.
pub(crate) struct Open<'a>(&'a Metrics);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
