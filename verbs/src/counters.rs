//! The device's figures on the metrics page.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

use crate::status;

/// What has been done since the device was opened, and what is under way.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes that completions say were written into clients' memory.
    pub(crate) written: AtomicU64,
    /// Bytes that completions say were read from clients' memory, or were written by clients into buffers.
    pub(crate) read: AtomicU64,
    /// Queue pairs that were connected.
    pub(crate) connected: AtomicU64,
    /// Queue pairs that could not be made or connected.
    pub(crate) refused: AtomicU64,
    /// Sessions of `hipobj-rc-v2` that are open.
    pub(crate) sessions: AtomicU64,
    /// Completions by status, at [`status::index`].
    completions: [AtomicU64; status::COUNT],
    /// Transfers that no completion ended in time.
    pub(crate) overdue: AtomicU64,
}

impl Counters {
    /// Counts a completion.
    pub(crate) fn completed(&self, status: u32) {
        if let Some(count) = self.completions.get(status::index(status)) {
            count.fetch_add(1, Relaxed);
        }
    }
}

/// What there is at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Queue pairs.
    pub(crate) queue_pairs: usize,
    /// Connections that are kept for later requests.
    pub(crate) connections: usize,
    /// Buffers.
    pub(crate) buffers: usize,
    /// Those of them that are free.
    pub(crate) free: usize,
}

/// Puts the figures of a [`Fabric`](crate::Fabric) on a metrics page.
pub struct Metrics {
    pub(crate) counters: Arc<Counters>,
    pub(crate) now: Box<dyn Fn() -> Now + Send + Sync>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("counters", &self.counters).field("now", &(self.now)()).finish()
    }
}

fn encode(counters: &Counters, now: Now, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let mut metric = |kind, name: &str, help: &str, label: Option<&str>, values: &[(&'static str, u64)]| {
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for &(value, number) in values {
            match label {
                Some(label) => put(kind, &mut metric.encode_family(&[(label, value)])?, number)?,
                None => put(kind, &mut metric, number)?,
            }
        }
        fmt::Result::Ok(())
    };
    let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let one = |value: u64| [("", value)];
    let of = |value: &AtomicU64| value.load(Relaxed);
    let bytes = [("out", of(&counters.written)), ("in", of(&counters.read))];
    let buffers = [("free", count(now.free)), ("used", count(now.buffers.saturating_sub(now.free)))];
    // The first is success.
    let errors: Vec<_> =
        status::names().zip(&counters.completions).skip(1).map(|(name, count)| (name, of(count))).collect();
    metric(gauge, "ernic_verbs_queue_pairs", "Queue pairs there are", None, &one(count(now.queue_pairs)))?;
    let kept = one(count(now.connections));
    metric(gauge, "ernic_verbs_connections", "Connections kept for later requests", None, &kept)?;
    metric(
        gauge,
        "ernic_verbs_sessions",
        "Sessions of hipobj-rc-v2 that are open",
        None,
        &one(of(&counters.sessions)),
    )?;
    metric(gauge, "ernic_verbs_buffers", "Registered buffers, by state", Some("state"), &buffers)?;
    metric(counter, "ernic_verbs_bytes", "Bytes moved to and from clients' memory", Some("direction"), &bytes)?;
    metric(counter, "ernic_verbs_connected", "Queue pairs connected", None, &one(of(&counters.connected)))?;
    metric(counter, "ernic_verbs_refused", "Queue pairs not connected", None, &one(of(&counters.refused)))?;
    metric(
        counter,
        "ernic_verbs_overdue",
        "Work requests without a completion in time",
        None,
        &one(of(&counters.overdue)),
    )?;
    metric(counter, "ernic_verbs_errors", "Work completions with an error, by status", Some("status"), &errors)
}

fn put(kind: MetricType, metric: &mut MetricEncoder<'_>, number: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&number, None),
        _ => metric.encode_gauge(&number),
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode(&self.counters, (self.now)(), encoder)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::prometheus_text, registry::Registry};

    use super::*;

    #[test]
    fn the_page_has_every_figure_in_its_place() {
        let counters = Arc::new(Counters::default());
        for (counter, n) in [
            (&counters.written, 1),
            (&counters.read, 2),
            (&counters.connected, 3),
            (&counters.refused, 4),
            (&counters.sessions, 5),
            (&counters.overdue, 6),
        ] {
            counter.store(n, Relaxed);
        }
        for status in [0, 0, 12, 12, 10, 99] {
            counters.completed(status);
        }
        let now = Now { queue_pairs: 7, connections: 8, buffers: 10, free: 4 };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Metrics { counters, now: Box::new(move || now) }));
        let mut page = String::new();
        prometheus_text::encode(&mut page, &registry).unwrap();
        for line in [
            r#"ernic_verbs_bytes_total{direction="out"} 1"#,
            r#"ernic_verbs_bytes_total{direction="in"} 2"#,
            "ernic_verbs_connected_total 3",
            "ernic_verbs_refused_total 4",
            "ernic_verbs_sessions 5",
            "ernic_verbs_overdue_total 6",
            "ernic_verbs_queue_pairs 7",
            "ernic_verbs_connections 8",
            r#"ernic_verbs_buffers{state="free"} 4"#,
            r#"ernic_verbs_buffers{state="used"} 6"#,
            r#"ernic_verbs_errors_total{status="RETRY_EXC_ERR"} 2"#,
            r#"ernic_verbs_errors_total{status="REM_ACCESS_ERR"} 1"#,
            r#"ernic_verbs_errors_total{status="WR_FLUSH_ERR"} 0"#,
            r#"ernic_verbs_errors_total{status="UNKNOWN"} 1"#,
        ] {
            assert!(page.lines().any(|have| have == line), "{line} in\n{page}");
        }
        assert!(!page.contains("SUCCESS"), "{page}");
    }
}
