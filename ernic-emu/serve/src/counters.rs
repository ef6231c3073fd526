//! The NIC's figures on the metrics page.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use ernic_emu::{
    device::{Device, GuestErrors},
    rdma::{self, OPERATIONS, Objects},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Frames of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames; a super-frame counts as its segments.
    pub frames: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Frames that were lost: not sent because the guest's descriptors or memory were wrong, or not received because it had
    /// no buffer, or none large enough.
    pub lost: u64,
}

/// The device's figures at one moment. All but the objects and states count from the last reset of the device, the guest's
/// errors from the start of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// The cable is plugged in.
    pub link_up: bool,
    /// A driver has initialised the interface.
    pub driver: bool,
    /// What the guest sent.
    pub sent: Traffic,
    /// What the guest received.
    pub received: Traffic,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// RDMA objects there are.
    pub objects: Objects,
    /// What work requests did; from the start of the server.
    pub work: rdma::Traffic,
    /// What the guest did wrong.
    pub guest_errors: GuestErrors,
}

impl Counters {
    /// Those of `device` now.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        let lif = device.lif_stats();
        Self {
            link_up: device.link_is_up(),
            driver: device.attached(),
            sent: Traffic {
                frames: (lif.tx_ucast_packets + lif.tx_mcast_packets + lif.tx_bcast_packets).get(),
                bytes: (lif.tx_ucast_bytes + lif.tx_mcast_bytes + lif.tx_bcast_bytes).get(),
                lost: (lif.tx_dma_error + lif.tx_desc_data_error).get(),
            },
            received: Traffic {
                frames: (lif.rx_ucast_packets + lif.rx_mcast_packets + lif.rx_bcast_packets).get(),
                bytes: (lif.rx_ucast_bytes + lif.rx_mcast_bytes + lif.rx_bcast_bytes).get(),
                // Each loss is in exactly one of these.
                lost: (lif.rx_queue_disabled
                    + lif.rx_queue_empty
                    + lif.rx_dma_error
                    + lif.rx_ucast_drop_packets
                    + lif.rx_mcast_drop_packets
                    + lif.rx_bcast_drop_packets)
                    .get(),
            },
            interrupts: device.interrupts_total(),
            objects: device.rdma_objects(),
            work: device.rdma_traffic(),
            guest_errors: device.guest_errors(),
        }
    }

    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
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
        let one = |value| [("", value)];
        let both = |of: fn(&Traffic) -> u64| [("from_guest", of(&self.sent)), ("to_guest", of(&self.received))];
        let Objects { eqs, cqs, qps, ahs, regions } = self.objects;
        let objects =
            [("mr", regions.into()), ("qp", count(qps)), ("cq", count(cqs)), ("eq", count(eqs)), ("ah", count(ahs))];
        let rdma::Traffic { by_operation, failed, bytes: moved, dropped, waits } = self.work;
        let operations: Vec<_> = OPERATIONS.into_iter().zip(by_operation).collect();
        let outcomes = [("ok", self.work.requests()), ("failed", failed)];
        let errors: Vec<_> = self.guest_errors.by_kind().collect();
        let (frames, bytes, lost) = (both(|t| t.frames), both(|t| t.bytes), both(|t| t.lost));
        let (kind, direction) = (Some("kind"), Some("direction"));
        metric(gauge, "ernic_nic_link_up", "Whether the guest's cable is in", None, &one(self.link_up.into()))?;
        metric(gauge, "ernic_nic_driver_attached", "Whether a driver uses the NIC", None, &one(self.driver.into()))?;
        metric(gauge, "ernic_nic_rdma_objects", "RDMA objects of the guest, by kind", kind, &objects)?;
        metric(counter, "ernic_nic_frames", "Ethernet frames, by direction", direction, &frames)?;
        metric(counter, "ernic_nic_bytes", "Bytes of Ethernet frames, by direction", direction, &bytes)?;
        metric(counter, "ernic_nic_frames_lost", "Frames lost at the rings, by direction", direction, &lost)?;
        metric(counter, "ernic_nic_interrupts", "Interrupts delivered to the guest", None, &one(self.interrupts))?;
        metric(counter, "ernic_nic_rdma_requests", "RDMA work requests, by outcome", Some("outcome"), &outcomes)?;
        metric(
            counter,
            "ernic_nic_rdma_operations",
            "RDMA work requests that succeeded, by operation",
            Some("operation"),
            &operations,
        )?;
        metric(counter, "ernic_nic_rdma_bytes", "Bytes moved by RDMA work requests", None, &one(moved))?;
        metric(counter, "ernic_nic_rdma_datagrams_dropped", "RDMA datagrams that went nowhere", None, &one(dropped))?;
        metric(counter, "ernic_nic_rdma_waits", "Times that an RDMA work request had to wait", None, &one(waits))?;
        metric(counter, "ernic_nic_guest_errors", "What the guest's driver did wrong, by kind", kind, &errors)
    }
}

fn put(kind: MetricType, metric: &mut MetricEncoder<'_>, number: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&number, None),
        _ => metric.encode_gauge(&number),
    }
}

/// The figures as of the current turn of the loop: the page is written while the device is at work, and cannot ask it.
#[derive(Debug, Clone, Default)]
pub struct Shared(Arc<Mutex<Counters>>);

impl Shared {
    /// Replaces them.
    pub fn set(&self, counters: Counters) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    fn get(&self) -> Counters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Shared {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.get().encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::prometheus_text, registry::Registry};

    use super::*;

    #[test]
    fn the_page_has_every_figure_in_its_place() {
        let shared = Shared::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(shared.clone()));
        shared.set(Counters {
            link_up: true,
            driver: false,
            sent: Traffic { frames: 1, bytes: 2, lost: 3 },
            received: Traffic { frames: 4, bytes: 5, lost: 6 },
            interrupts: 7,
            objects: Objects { eqs: 8, cqs: 9, qps: 10, ahs: 11, regions: 12 },
            work: rdma::Traffic {
                by_operation: std::array::from_fn(|at| 20 + u64::try_from(at).unwrap()),
                failed: 16,
                bytes: 17,
                dropped: 18,
                waits: 19,
            },
            guest_errors: GuestErrors { doorbells: 13, info_dma: 14, ..GuestErrors::default() },
        });
        let mut page = String::new();
        prometheus_text::encode(&mut page, &registry).unwrap();
        for line in [
            "ernic_nic_link_up 1",
            "ernic_nic_driver_attached 0",
            r#"ernic_nic_rdma_objects{kind="mr"} 12"#,
            r#"ernic_nic_rdma_objects{kind="qp"} 10"#,
            r#"ernic_nic_rdma_objects{kind="cq"} 9"#,
            r#"ernic_nic_rdma_objects{kind="eq"} 8"#,
            r#"ernic_nic_rdma_objects{kind="ah"} 11"#,
            r#"ernic_nic_frames_total{direction="from_guest"} 1"#,
            r#"ernic_nic_bytes_total{direction="from_guest"} 2"#,
            r#"ernic_nic_frames_lost_total{direction="from_guest"} 3"#,
            r#"ernic_nic_frames_total{direction="to_guest"} 4"#,
            r#"ernic_nic_bytes_total{direction="to_guest"} 5"#,
            r#"ernic_nic_frames_lost_total{direction="to_guest"} 6"#,
            "ernic_nic_interrupts_total 7",
            r#"ernic_nic_rdma_requests_total{outcome="ok"} 275"#,
            r#"ernic_nic_rdma_requests_total{outcome="failed"} 16"#,
            r#"ernic_nic_rdma_operations_total{operation="send"} 20"#,
            r#"ernic_nic_rdma_operations_total{operation="read"} 23"#,
            r#"ernic_nic_rdma_operations_total{operation="register"} 28"#,
            r#"ernic_nic_rdma_operations_total{operation="bind"} 30"#,
            "ernic_nic_rdma_bytes_total 17",
            "ernic_nic_rdma_datagrams_dropped_total 18",
            "ernic_nic_rdma_waits_total 19",
            r#"ernic_nic_guest_errors_total{kind="doorbells"} 13"#,
            r#"ernic_nic_guest_errors_total{kind="info_dma"} 14"#,
            r#"ernic_nic_guest_errors_total{kind="rdma_commands"} 0"#,
            "# TYPE ernic_nic_frames_total counter",
            "# TYPE ernic_nic_link_up gauge",
        ] {
            assert!(page.lines().any(|have| have == line), "{line} in\n{page}");
        }
    }
}
