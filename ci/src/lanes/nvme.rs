//! The lane `vm-nvme`: an in-kernel user of verbs, which registers memory by work requests. A block device of the guest is
//! exported by nvmet-rdma and mounted by nvme-rdma, over the NIC.

use anyhow::{Result, ensure};

use super::rdma::{resources, start};
use super::transfers::metric;
use super::verbs::{Site, finish};
use super::vms::{Rig, Setup};
use super::{Bench, rdma};
use crate::server::ENDPOINT;

/// The kernel's interface to the target (`Documentation/admin-guide/nvme-fabrics` and `drivers/nvme/target/configfs.c`).
const TARGET: &str = "/sys/kernel/config/nvmet";
/// KiB of the RAM disk.
const DISK: u32 = 64 << 10;
/// Bytes that are written and read.
const BYTES: u64 = 32 << 20;

/// The NIC's counters that such a user moves.
#[derive(Debug, Clone, Copy)]
struct Counted {
    registered: u64,
    invalidated: u64,
    read: u64,
    written: u64,
    bytes: u64,
    failed: u64,
    frames: u64,
}

impl Counted {
    fn ask(rig: &mut Rig<'_>) -> Result<Self> {
        let page = rig.ok(&format!("curl -sSf -m 20 {ENDPOINT}/metrics"))?;
        let operation = |name: &str| metric(&page, &format!("ernic_nic_rdma_operations_total{{operation=\"{name}\"}}"));
        Ok(Self {
            registered: operation("register")?,
            invalidated: operation("invalidate")? + operation("send_inv")?,
            read: operation("read")?,
            written: operation("write")?,
            bytes: metric(&page, "ernic_nic_rdma_bytes_total")?,
            failed: metric(&page, "ernic_nic_rdma_requests_total{outcome=\"failed\"}")?,
            frames: metric(&page, "ernic_nic_bytes_total")?,
        })
    }
}

/// Exports the RAM disk at the interface's address.
fn export(rig: &mut Rig<'_>, address: &str) -> Result<()> {
    rig.ok(&format!("modprobe nvmet_rdma && modprobe nvme_rdma && modprobe brd rd_nr=1 rd_size={DISK}"))?;
    rig.ok("mount -t configfs configfs /sys/kernel/config")?;
    rig.ok(&format!(
        "cd {TARGET} && mkdir subsystems/disk && echo 1 >subsystems/disk/attr_allow_any_host && mkdir subsystems/disk/namespaces/1 && \
         echo /dev/ram0 >subsystems/disk/namespaces/1/device_path && echo 1 >subsystems/disk/namespaces/1/enable"
    ))?;
    rig.ok(&format!(
        "cd {TARGET} && mkdir ports/1 && cd ports/1 && echo rdma >addr_trtype && echo ipv4 >addr_adrfam && echo {address} >addr_traddr && \
         echo 4420 >addr_trsvcid && ln -s {TARGET}/subsystems/disk subsystems/disk"
    ))?;
    Ok(())
}

/// Connects; returns the block device's name.
fn connect(rig: &mut Rig<'_>, address: &str) -> Result<String> {
    rig.ok(&format!("echo transport=rdma,traddr={address},trsvcid=4420,nqn=disk,nr_io_queues=2 >/dev/nvme-fabrics"))?;
    let name = rig.ok(
        "n=0; until [ -b /dev/nvme?n1 ]; do n=$((n+1)); [ $n -lt 100 ] || { dmesg | tail -n 20; exit 9; }; sleep 0.1; done; echo /dev/nvme?n1",
    )?;
    Ok(name.trim().to_owned())
}

/// Disconnects, and waits until the device has gone.
fn disconnect(rig: &mut Rig<'_>) -> Result<()> {
    rig.ok("for c in /sys/class/nvme/nvme*; do echo 1 >$c/delete_controller; done")?;
    rig.ok("n=0; while [ -b /dev/nvme?n1 ]; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done")?;
    Ok(())
}

/// Data written and read in large and small requests, connected twice, disconnected in order and by the removal of the target.
pub fn nvme(bench: &Bench<'_>) -> Result<()> {
    let mut rig = start(bench, "vm-nvme", Setup::default())?;
    let site = Site::nic(&mut rig)?;
    export(&mut rig, &site.address)?;
    let idle = without_queues(&resources(&mut rig)?);
    let disk = connect(&mut rig, &site.address)?;
    let always = rig.ok("cat /sys/module/nvme_rdma/parameters/register_always")?;
    ensure!(always.trim() == "Y", "nvme_rdma does not register every request's memory: {always}");

    let before = Counted::ask(&mut rig)?;
    let sum = rig.ok(&format!("head -c {BYTES} /dev/urandom >/tmp/data && sha256sum </tmp/data"))?;
    rig.ok(&format!("dd if=/tmp/data of={disk} bs=1M oflag=direct 2>&1"))?;
    let kept = rig.ok(&format!("head -c {BYTES} /dev/ram0 | sha256sum"))?;
    ensure!(kept == sum, "the disk has {kept} and was sent {sum}");
    let wrote = Counted::ask(&mut rig)?;
    for (size, count) in [("1M", BYTES >> 20), ("4k", BYTES >> 12)] {
        let read = rig.ok(&format!("dd if={disk} bs={size} count={count} iflag=direct 2>/dev/null | sha256sum"))?;
        ensure!(read == sum, "read back in pieces of {size}: {read} instead of {sum}");
    }
    let after = Counted::ask(&mut rig)?;
    ensure!(
        wrote.read > before.read && wrote.bytes >= before.bytes + BYTES,
        "the target reads what is written: {before:?} {wrote:?}"
    );
    let small = BYTES >> 12;
    ensure!(
        after.written >= wrote.written + small && after.bytes >= wrote.bytes + 2 * BYTES,
        "the target writes what is read: {wrote:?} {after:?}"
    );
    ensure!(
        after.registered >= wrote.registered + small && after.invalidated >= wrote.invalidated + small,
        "every request has a registration of its own: {wrote:?} {after:?}"
    );
    ensure!(after.failed == before.failed, "{before:?} {after:?}");
    ensure!(after.frames < before.frames + BYTES / 8, "no data goes as frames: {before:?} {after:?}");

    // Sectors in the middle, and what is around them stays.
    rig.ok(&format!(
        "dd if=/dev/zero of={disk} bs=512 seek=1001 count=3 oflag=direct 2>/dev/null && dd if=/dev/zero of=/tmp/data bs=512 seek=1001 count=3 conv=notrunc 2>/dev/null"
    ))?;
    let expected = rig.ok("sha256sum </tmp/data")?;
    disconnect(&mut rig)?;
    nothing_left(&mut rig, &idle, "disconnecting")?;
    let disk = connect(&mut rig, &site.address)?;
    let read = rig.ok(&format!("dd if={disk} bs=64k count={} iflag=direct 2>/dev/null | sha256sum", BYTES >> 16))?;
    ensure!(read == expected, "after connecting again: {read} instead of {expected}");

    disconnect(&mut rig)?;
    rig.ok(&format!(
        "cd {TARGET} && rm ports/1/subsystems/disk && rmdir ports/1 && rmdir subsystems/disk/namespaces/1 subsystems/disk && rmmod nvme_rdma nvmet_rdma"
    ))?;
    rdma::check(&mut rig, "nvme over RDMA")?;
    rig.ok("rmmod ionic_rdma")?;
    rig.ok("modprobe ionic_rdma")?;
    rdma::check(&mut rig, "ionic_rdma again")?;
    finish(rig)
}

/// Without the completion queues: the kernel keeps those of its own users with the device (`ib_cq_pool_get`,
/// `drivers/infiniband/core/cq.c`).
fn without_queues(resources: &str) -> String {
    let words: Vec<&str> = resources.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "cq");
    let kept = words.iter().enumerate().filter(|(n, _)| at.is_none_or(|at| *n != at && *n != at + 1));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

fn nothing_left(rig: &mut Rig<'_>, idle: &str, after: &str) -> Result<()> {
    let mut now = String::new();
    for _ in 0..100 {
        now = without_queues(&resources(rig)?);
        if now == idle {
            return Ok(());
        }
        rig.ok("sleep 0.2")?;
    }
    anyhow::bail!("after {after}: {now} instead of {idle}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_queues_are_left_out() {
        assert_eq!(without_queues("ionic_0: pd 1 cq 5 qp 1 mr 0"), "ionic_0: pd 1 qp 1 mr 0");
        assert_eq!(without_queues("ionic_0: pd 1"), "ionic_0: pd 1");
    }
}
