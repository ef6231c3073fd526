//! Objects by RDMA in the guest: the client's own checks, and the lanes `vm-rdma-faults` and `vm-rdma-clients`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::vms::{Rig, Setup};
use super::{Bench, rdma};
use crate::server::{BUCKET, ENDPOINT};

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

/// Runs the client in the background and waits until the server moves bytes for it.
fn start(rig: &mut Rig<'_>, options: &str) -> Result<()> {
    rig.ok(&format!("ernic-bench -n 1 {options} </dev/null >/tmp/client.out 2>&1 & echo $! >/tmp/client"))?;
    rig.ok(&format!(
        "n=0; until curl -sSf -m 20 {ENDPOINT}/metrics | grep -q '^ernic_rdma_transfers_active 1'; do n=$((n+1)); [ $n -lt 300 ] || {{ cat /tmp/client.out; exit 9; }}; sleep 0.1; done; sleep 0.5"
    ))?;
    Ok(())
}

/// Ends what is left of it.
fn end(rig: &mut Rig<'_>) -> Result<()> {
    rig.ok("kill -9 $(cat /tmp/client) 2>/dev/null; true")?;
    Ok(())
}

/// Waits until the server has given the transfer up, and checks that it counts one failure and nothing as moved.
fn given_up(rig: &mut Rig<'_>, before: Counted, after: &str) -> Result<()> {
    let expected = Counted { failures: before.failures + 1, active: 0, ..before };
    let mut now = before;
    for _ in 0..100 {
        now = Counted::ask(rig)?;
        if now.active == 0 {
            ensure!(now == expected, "after {after}: the server counts {now:?} instead of {expected:?}");
            return Ok(());
        }
        rig.ok("sleep 0.1")?;
    }
    bail!("after {after}: a transfer is still under way: {now:?}")
}

/// The next client works: two objects out and in, compared.
fn next_client(rig: &mut Rig<'_>, after: &str) -> Result<()> {
    rdma::check(rig, after)?;
    let before = Counted::ask(rig)?;
    let said = rig.ok_for("ernic-bench -size 1M -n 2", CLIENT_LIMIT)?;
    ensure!(said.contains("transfers: 4 by RDMA, 0 by HTTP"), "after {after}: {said}");
    let (now, due) = (Counted::ask(rig)?, Counted { reads: before.reads + 2, writes: before.writes + 2, ..before });
    ensure!(now == due, "after {after}: the server counts {now:?} instead of {due:?}");
    Ok(())
}

/// Bytes of the object that is under way when something happens: 32 s at [`RATE`], of which a busy machine may need some until
/// it happens.
const LARGE: &str = "256M";
/// Bytes per second that the server moves.
const RATE: &str = "8M";
/// Bytes of the object whose upload is interrupted: 8 s.
const UPLOAD: &str = "64M";

/// A client killed in the middle of a transfer, the driver removed, the device unbound, the guest rebooted: the transfer ends,
/// no byte of it lands in memory that is somebody else's by then, and the next client works.
pub fn faults(bench: &Bench<'_>) -> Result<()> {
    let setup = Setup { backend: "s3:size=1G", options: &["--rdma-rate", RATE], ..Setup::default() };
    let mut rig = rdma::start(bench, "vm-rdma-faults", setup)?;
    rdma::load(&mut rig)?;
    rdma::check(&mut rig, "modprobe ionic_rdma")?;
    rig.store("kept.bin", 1 << 20)?;
    // Random bytes are slow to make here, so the large object is a piece of them, repeated.
    rig.ok("dd if=/dev/urandom of=/tmp/piece bs=1M count=16 2>/dev/null && for i in $(seq 16); do cat /tmp/piece; done >/tmp/big")?;
    rig.ok(&format!("curl -sSf -m 100 -T /tmp/big {BUCKET}/big && rm /tmp/big"))?;

    // A process that holds some memory, for whose sum it is asked at the end: dd has read the piece, and nobody takes it off it.
    let sum = rig.ok("sha256sum </tmp/piece")?;
    rig.ok("mkfifo /tmp/fifo; (until [ -e /tmp/tell ]; do sleep 0.1; done; sha256sum) </tmp/fifo >/tmp/sum 2>&1 & dd if=/tmp/piece of=/tmp/fifo bs=16M count=1 iflag=fullblock </dev/null 2>/dev/null & echo $! >/tmp/holder")?;
    rig.ok("n=0; until [ $(sed -n 's/VmRSS:[^0-9]*\\([0-9]*\\) kB/\\1/p' /proc/$(cat /tmp/holder)/status) -ge 16384 ]; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done; rm /tmp/piece")?;

    let get = format!("-key big -size {LARGE} -get-only");
    let before = Counted::ask(&mut rig)?;
    start(&mut rig, &get)?;
    // The kernel gives the memory of a dead process to the next that asks: here, to a file of zeros.
    rig.ok("kill -9 $(cat /tmp/client) && dd if=/dev/zero of=/tmp/fresh bs=1M count=128 2>/dev/null")?;
    given_up(&mut rig, before, "the client was killed")?;
    let others = rig.ok("tr -d '\\0' </tmp/fresh | wc -c; rm /tmp/fresh")?;
    ensure!(others.trim() == "0", "{} bytes came into memory that was no longer the client's", others.trim());
    next_client(&mut rig, "the client was killed")?;

    let before = Counted::ask(&mut rig)?;
    start(&mut rig, &get)?;
    rig.ok("rmmod ionic_rdma")?;
    ensure!(rig.ok("ibv_devices")?.lines().count() == 2, "a device is left without its driver");
    end(&mut rig)?;
    given_up(&mut rig, before, "rmmod ionic_rdma under load")?;
    rdma::load(&mut rig)?;
    next_client(&mut rig, "rmmod ionic_rdma under load")?;

    let before = Counted::ask(&mut rig)?;
    start(&mut rig, &get)?;
    let device = rig.nic("basename $(readlink -f /sys/class/net/{nic}/device)")?;
    let device = device.trim();
    rig.ok(&format!("echo {device} >/sys/bus/pci/drivers/ionic/unbind"))?;
    end(&mut rig)?;
    rig.ok(&format!("echo {device} >/sys/bus/pci/drivers/ionic/bind"))?;
    rig.up()?;
    given_up(&mut rig, before, "the device was unbound under load")?;
    next_client(&mut rig, "the device was unbound under load")?;

    let told = rig.ok("touch /tmp/tell; n=0; until [ -s /tmp/sum ]; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done; cat /tmp/sum")?;
    ensure!(told == sum, "another process's memory has changed: {told} instead of {sum}");
    rig.dmesg()?;

    let before = Counted::ask(&mut rig)?;
    start(&mut rig, &format!("-key upload -size {UPLOAD} -put-only"))?;
    rig.reboot()?;
    rig.up()?;
    rdma::load(&mut rig)?;
    given_up(&mut rig, before, "a reboot during a PUT")?;
    let status = rig.ok(&format!("curl -sS -o /dev/null -w '%{{http_code}}' {BUCKET}/upload"))?;
    ensure!(status == "404", "an upload that was interrupted is there: {status}");
    next_client(&mut rig, "a reboot during a PUT")?;
    rig.stop()
}

/// Sizes that the four clients move, and how often in one run.
const CLIENTS: [(&str, u32); 4] = [("4K", 40), ("64K", 40), ("1000003", 10), ("16M", 2)];

/// Four clients at once, each with objects and memory of its own, and every object that comes back compared.
pub fn clients(bench: &Bench<'_>) -> Result<()> {
    let setup = Setup { backend: "s3:size=1G", ..Setup::default() };
    let mut rig = rdma::start(bench, "vm-rdma-clients", setup)?;
    rdma::load(&mut rig)?;
    rdma::check(&mut rig, "modprobe ionic_rdma")?;
    let seconds = if bench.args().full { 60 } else { 10 };
    let before = Counted::ask(&mut rig)?;
    let mut line = format!("end=$(($(date +%s)+{seconds}));");
    for (size, n) in CLIENTS {
        // Each runs at least once, and then for as long as there is time.
        line.push_str(&format!(
            " (while ernic-bench --shared -key c{size} -size {size} -n {n} && [ $(date +%s) -lt $end ]; do :; done) </dev/null >/tmp/c{size} 2>&1 &"
        ));
    }
    rig.ok_for(&format!("{line} wait"), CLIENT_LIMIT)?;
    let (mut reads, mut writes) = (0, 0);
    for (size, n) in CLIENTS {
        let said = rig.ok(&format!("cat /tmp/c{size}"))?;
        let count = |test: &dyn Fn(&str) -> bool| u64::try_from(said.lines().filter(|l| test(l)).count());
        let gets = count(&|l| l.contains(": GET ") && l.ends_with(" ok"))?;
        let puts = count(&|l| l.contains(": PUT "))?;
        let runs = count(&|l| *l == format!("transfers: {} by RDMA, 0 by HTTP, 0 of these fell back", 2 * n))?;
        let begun = count(&|l| l.starts_with("device="))?;
        ensure!(
            runs > 0 && runs == begun && gets == runs * u64::from(n) && puts == gets && !said.contains("Error"),
            "the client of {size}: {}",
            crate::process::tail(&said, 20)
        );
        reads += gets;
        writes += puts;
    }
    let (now, due) =
        (Counted::ask(&mut rig)?, Counted { reads: before.reads + reads, writes: before.writes + writes, ..before });
    ensure!(now == due, "the server counts {now:?} instead of {due:?}");
    rdma::check(&mut rig, "four clients at once")?;
    rdma::drivers_content(&mut rig)?;
    rig.stop()
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
