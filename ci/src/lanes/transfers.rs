//! Objects by RDMA in the guest: the client's own checks, and the lanes `vm-rdma-faults` and `vm-rdma-clients`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::vms::Rig;
use crate::server::ENDPOINT;

/// Longest time of a run of the client. Measured under TCG: half a minute for its checks.
const CLIENT_LIMIT: Duration = Duration::from_secs(300);

/// A value of the server's page of metrics, its series added up.
pub(super) fn metric(page: &str, name: &str) -> Result<u64> {
    let mut sum = None;
    for line in page.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        if series == name || series.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')) {
            let value: u64 = value.parse().with_context(|| format!("the metric {line}"))?;
            sum = Some(sum.unwrap_or(0) + value);
        }
    }
    sum.with_context(|| format!("the server has no metric {name}"))
}

/// What the server has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    reads: u64,
    writes: u64,
    failures: u64,
    active: u64,
}

impl Counted {
    pub(super) fn ask(rig: &mut Rig<'_>) -> Result<Self> {
        let page = rig.ok(&format!("curl -sSf -m 20 {ENDPOINT}/metrics"))?;
        Ok(Self {
            reads: metric(&page, "minio_api_rdma_read_ops_total")?,
            writes: metric(&page, "minio_api_rdma_write_ops_total")?,
            // Reasons that have not come up have no series yet.
            failures: metric(&page, "ernic_rdma_failures_total").unwrap_or(0),
            active: metric(&page, "ernic_rdma_transfers_active")?,
        })
    }
}

/// The client's own checks, byte for byte, with tokens of a family.
pub(super) fn functional(rig: &mut Rig<'_>, family: char) -> Result<()> {
    let before = Counted::ask(rig)?;
    let said = rig.ok_for(&format!("ernic-bench --functional --token {family}"), CLIENT_LIMIT)?;
    ensure!(said.trim_end().ends_with("all checks passed"), "{said}");
    let passed = said.lines().filter(|l| l.starts_with("ok ")).count();
    ensure!(passed >= 24 && said.contains("counters of operations and bytes are checked, exactly"), "{said}");
    let after = Counted::ask(rig)?;
    ensure!(after.reads > before.reads && after.writes > before.writes && after.active == 0, "{before:?} {after:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_and_their_series_added_up() {
        let page = "# HELP a_total b\n# TYPE a_total counter\na_total 7\na_total_more 9\nf_total{reason=\"x\"} 1\nf_total{reason=\"y\"} 2\n# EOF\n";
        assert_eq!(metric(page, "a_total").unwrap(), 7);
        assert_eq!(metric(page, "f_total").unwrap(), 3);
        assert!(metric(page, "f").is_err() && metric("a_total 1.5\n", "a_total").is_err());
    }
}
