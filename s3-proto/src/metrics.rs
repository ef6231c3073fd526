//! Counters that the owner of the service reads, and their page in Prometheus' text format.

use std::{fmt, sync::Arc, time::Duration};

use ernic_store::Store;
use http::StatusCode;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, prometheus_text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};
use rdma_token::RemoteAccess;

/// Upper bounds of the buckets of transfer times, in seconds: from a small object (2–4 µs frames to frames) to what clients
/// give up on (10 s).
const SECONDS: [f64; 14] =
    [10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 10e-3, 50e-3, 250e-3, 1.0, 5.0, 10.0];

/// One label.
type Label = [(&'static str, &'static str); 1];

/// What the service has done since it was made. Every counter only grows, except [`Metrics::open_connections`],
/// [`Metrics::rdma_active`] and [`Metrics::rdma_sessions`].
///
/// Body bytes are those of HTTP bodies without their framing: a chunk header of `transfer-encoding: chunked` does not
/// count, one of `aws-chunked` does, because to HTTP it is content. Operations and bytes of RDMA count when the request has
/// succeeded: what a failed transfer moved counts nowhere. "Read" is GetObject and "write" is PutObject and UploadPart, as
/// in AIStor's metrics.
pub struct Metrics {
    registry: Registry,
    /// Only what AIStor has.
    aistor: Registry,
    connections: Counter,
    open: Gauge,
    requests: Counter,
    client_errors: Counter,
    server_errors: Counter,
    body_in: Counter,
    body_out: Counter,
    body_reads: Counter,
    body_writes: Counter,
    rdma: [OfOperation; 2],
    rdma_active: Gauge,
    rdma_sessions: Gauge,
    rdma_failures: Family<Label, Counter>,
}

/// What is counted for GetObject and for PutObject with UploadPart.
struct OfOperation {
    done: Counter,
    bytes: Counter,
    seconds: Histogram,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("connections", &self.connections())
            .field("requests", &self.requests())
            .field("rdma_reads", &self.rdma_reads())
            .field("rdma_writes", &self.rdma_writes())
            .finish_non_exhaustive()
    }
}

impl Metrics {
    /// All zero. The page shows what `store` holds and what `collectors` say, too.
    pub(crate) fn new(store: &Arc<dyn Store>, collectors: Vec<Box<dyn Collector>>) -> Self {
        let mut registry = Registry::default();
        let mut aistor = Registry::default();
        let http = registry.sub_registry_with_prefix("ernic_http");
        let [connections, requests] = [Counter::default(), Counter::default()];
        let open = Gauge::default();
        http.register("connections", "Connections served", connections.clone());
        http.register("connections_open", "Connections being served", open.clone());
        http.register("requests", "Requests whose head was understood", requests.clone());
        let errors = Family::<Label, Counter>::default();
        http.register("errors", "Requests answered with an error, by class", errors.clone());
        let bytes = Family::<Label, Counter>::default();
        http.register("body_bytes", "Bytes of HTTP bodies, by direction", bytes.clone());
        let body = Family::<Label, Counter>::default();
        http.register("body_operations", "Objects and parts moved by HTTP body, by operation", body.clone());

        let rdma = registry.sub_registry_with_prefix("ernic_rdma");
        let moved = Family::<Label, Counter>::default();
        rdma.register("bytes", "Bytes moved by RDMA, by operation", moved.clone());
        let seconds = Family::<Label, Histogram, fn() -> Histogram>::new_with_constructor(|| Histogram::new(SECONDS));
        rdma.register("transfer_seconds", "Times of RDMA transfers that succeeded, by operation", seconds.clone());
        let rdma_active = Gauge::default();
        rdma.register("transfers_active", "RDMA transfers under way", rdma_active.clone());
        let rdma_sessions = Gauge::default();
        rdma.register("sessions", "Sessions of hipobj-rc-v2, prepared or under way", rdma_sessions.clone());
        let rdma_failures = Family::<Label, Counter>::default();
        rdma.register("failures", "Requests with a token that RDMA did not serve, by reason", rdma_failures.clone());
        let rdma = [
            ("read", "minio_api_rdma_read_ops", "GetObject requests served by RDMA"),
            ("write", "minio_api_rdma_write_ops", "PutObject and UploadPart requests served by RDMA"),
        ]
        .map(|(operation, name, help)| {
            let done = Counter::default();
            registry.register(name, help, done.clone());
            aistor.register(name, help, done.clone());
            let label = [("operation", operation)];
            OfOperation { done, bytes: moved.get_or_create_owned(&label), seconds: seconds.get_or_create_owned(&label) }
        });
        registry.register_collector(Box::new(StoreUsage(Arc::clone(store))));
        for collector in collectors {
            registry.register_collector(collector);
        }
        Self {
            registry,
            aistor,
            connections,
            open,
            requests,
            client_errors: errors.get_or_create_owned(&[("class", "4xx")]),
            server_errors: errors.get_or_create_owned(&[("class", "5xx")]),
            body_in: bytes.get_or_create_owned(&[("direction", "in")]),
            body_out: bytes.get_or_create_owned(&[("direction", "out")]),
            body_reads: body.get_or_create_owned(&[("operation", "read")]),
            body_writes: body.get_or_create_owned(&[("operation", "write")]),
            rdma,
            rdma_active,
            rdma_sessions,
            rdma_failures,
        }
    }

    /// Connections served, including those still open.
    pub fn connections(&self) -> u64 {
        self.connections.get()
    }

    /// Connections being served now.
    pub fn open_connections(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or(0)
    }

    /// Requests whose head was understood. A head that is no HTTP is answered by the HTTP layer and not counted.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Requests answered with 4xx.
    pub fn client_errors(&self) -> u64 {
        self.client_errors.get()
    }

    /// Requests answered with 5xx.
    pub fn server_errors(&self) -> u64 {
        self.server_errors.get()
    }

    /// Bytes of request bodies taken.
    pub fn body_bytes_in(&self) -> u64 {
        self.body_in.get()
    }

    /// Bytes of response bodies handed to the connection.
    pub fn body_bytes_out(&self) -> u64 {
        self.body_out.get()
    }

    /// GetObject requests answered with a body.
    pub fn body_reads(&self) -> u64 {
        self.body_reads.get()
    }

    /// PutObject and UploadPart requests that took their content from the body.
    pub fn body_writes(&self) -> u64 {
        self.body_writes.get()
    }

    /// GetObject requests served by RDMA.
    pub fn rdma_reads(&self) -> u64 {
        self.of(RemoteAccess::Write).done.get()
    }

    /// PutObject and UploadPart requests served by RDMA.
    pub fn rdma_writes(&self) -> u64 {
        self.of(RemoteAccess::Read).done.get()
    }

    /// Bytes that [`Metrics::rdma_reads`] moved into clients' memory.
    pub fn rdma_bytes_read(&self) -> u64 {
        self.of(RemoteAccess::Write).bytes.get()
    }

    /// Bytes that [`Metrics::rdma_writes`] moved out of clients' memory.
    pub fn rdma_bytes_written(&self) -> u64 {
        self.of(RemoteAccess::Read).bytes.get()
    }

    /// RDMA transfers under way.
    pub fn rdma_active(&self) -> u64 {
        u64::try_from(self.rdma_active.get()).unwrap_or(0)
    }

    /// Sessions of `hipobj-rc-v2` that hold a connection and a buffer: prepared, or under way.
    pub fn rdma_sessions(&self) -> u64 {
        u64::try_from(self.rdma_sessions.get()).unwrap_or(0)
    }

    /// Requests with a token that RDMA did not serve, for one of the reasons of the metrics page: those of
    /// [`RemoteError::reason`](rdma_token::RemoteError::reason); `off` and `malformed`; `length`, `too_large` and `window`, where
    /// a size is missing, or too large for the service or the window; `checksum` and `store`, where the bytes have come and
    /// were not kept; `aborted`, by a client that went away; `fault`, on demand; and of sessions of `hipobj-rc-v2`: `sessions`, where
    /// there are too many, `expired` and `cancelled`. What S3 refuses before it comes to a
    /// transfer is none of these.
    pub fn rdma_failures(&self, reason: &'static str) -> u64 {
        self.rdma_failures.get(&[("reason", reason)]).map_or(0, |counter| counter.get())
    }

    /// All of it in Prometheus' text format, version 0.0.4, with the store's usage and the owner's collectors.
    pub fn page(&self) -> String {
        page(&self.registry)
    }

    /// What AIStor's `/minio/metrics/v3/api/rdma` has.
    pub(crate) fn aistor_page(&self) -> String {
        page(&self.aistor)
    }

    pub(crate) fn request(&self) {
        self.requests.inc();
    }

    pub(crate) fn answer(&self, status: StatusCode) {
        if status.is_client_error() {
            self.client_errors.inc();
        } else if status.is_server_error() {
            self.server_errors.inc();
        }
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.body_in.inc_by(bytes as u64);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.body_out.inc_by(bytes as u64);
    }

    pub(crate) fn body_read(&self) {
        self.body_reads.inc();
    }

    pub(crate) fn body_write(&self) {
        self.body_writes.inc();
    }

    /// Counts a transfer as under way until it is counted as over.
    pub(crate) fn rdma_started(&self) {
        self.rdma_active.inc();
    }

    pub(crate) fn rdma_over(&self) {
        self.rdma_active.dec();
    }

    pub(crate) fn rdma_session(&self, more: bool) {
        if more {
            self.rdma_sessions.inc()
        } else {
            self.rdma_sessions.dec()
        };
    }

    pub(crate) fn rdma_done(&self, access: RemoteAccess, bytes: u64, took: Duration) {
        let of = self.of(access);
        of.done.inc();
        of.bytes.inc_by(bytes);
        of.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn rdma_failed(&self, reason: &'static str) {
        self.rdma_failures.get_or_create(&[("reason", reason)]).inc();
    }

    fn of(&self, access: RemoteAccess) -> &OfOperation {
        let [read, write] = &self.rdma;
        match access {
            RemoteAccess::Write => read,
            RemoteAccess::Read => write,
        }
    }

    /// Counts a connection for as long as the returned guard lives.
    pub(crate) fn connection(&self) -> Open<'_> {
        let number = self.connections.inc() + 1;
        self.open.inc();
        Open { metrics: self, number }
    }
}

fn page(registry: &Registry) -> String {
    let mut page = String::with_capacity(4096);
    if prometheus_text::encode(&mut page, registry).is_err() {
        // Writing to a string does not fail; a collector of the owner's may say that it did.
        page.push_str("# a collector failed\n");
    }
    page
}

/// A connection that is being served.
pub(crate) struct Open<'a> {
    metrics: &'a Metrics,
    number: u64,
}

impl Open<'_> {
    /// The how-manieth connection of the service it is, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.metrics.open.dec();
    }
}

/// What the store holds.
struct StoreUsage(Arc<dyn Store>);

impl fmt::Debug for StoreUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUsage").field(&self.0.usage()).finish()
    }
}

impl Collector for StoreUsage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let usage = self.0.usage();
        for (name, help, value) in [
            ("ernic_store_objects", "Objects", usage.objects),
            ("ernic_store_bytes", "Bytes of objects and parts", usage.bytes),
            ("ernic_store_capacity_bytes", "Most bytes that the store takes", usage.capacity),
            ("ernic_store_uploads", "Multipart uploads in progress", usage.uploads),
        ] {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
