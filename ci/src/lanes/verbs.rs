//! The lanes `vm-verbs`, `vm-perftest` and `vm-rdmacm`: programs of others that use verbs between themselves, in the guest; and
//! `vm-iommu`, all of them once more behind a virtual IOMMU.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::rdma::{drivers_content, load, released, resources, start};
use super::transfers::metric;
use super::vms::{Rig, Setup};
use super::{Bench, Skip, rdma};
use crate::server::ENDPOINT;

/// Where both ends of a program meet.
const PORT: u16 = 18_700;

/// What the device counts for a program: the operation, how many requests, and their bytes.
type Work = (&'static str, u64, u64);

/// The verbs examples, whose data they check themselves (`-c`), by polling and by events. Each end sends as often as it says.
const PINGPONGS: [(&str, Work); 6] = [
    ("ibv_rc_pingpong -c", ("send", 2000, 2000 * 4096)),
    ("ibv_rc_pingpong -c -e", ("send", 2000, 2000 * 4096)),
    ("ibv_rc_pingpong -c -s 1000000 -n 20", ("send", 40, 40 * 1_000_000)),
    ("ibv_rc_pingpong -c -s 1 -n 500 -r 5", ("send", 1000, 1000)),
    ("ibv_ud_pingpong -c", ("send", 2000, 2000 * 1024)),
    ("ibv_ud_pingpong -c -e", ("send", 2000, 2000 * 1024)),
];

/// What the stock driver does not offer, and how the examples say so.
const REFUSED: [(&str, &str); 2] =
    [("ibv_uc_pingpong", "Couldn't create QP"), ("ibv_srq_pingpong", "Couldn't create SRQ")];

/// All sizes of perftest's `-a`, 2 bytes to 8 MiB, added up.
const ALL: u64 = (16 << 20) - 2;
/// How many they are.
const SIZES: u64 = 23;

/// perftest's programs, both ends alike: all sizes, several queue pairs, completions for every 50th request, inline data, events,
/// datagrams, both directions at once.
const PERFTESTS: [(&str, Work); 19] = [
    ("ib_send_bw -n 20 -a", ("send", 20 * SIZES, 20 * ALL)),
    ("ib_send_bw -n 500 -s 4096 -q 4", ("send", 2000, 2000 * 4096)),
    ("ib_send_bw -n 200 -e", ("send", 200, 200 << 16)),
    ("ib_send_bw -n 500 -s 1024 -c UD", ("send", 500, 500 * 1024)),
    ("ib_send_bw -n 100 -s 65536 -b", ("send", 200, 200 << 16)),
    ("ib_send_lat -n 500 -s 64", ("send", 1000, 1000 * 64)),
    ("ib_send_lat -n 200 -s 64 -e", ("send", 400, 400 * 64)),
    ("ib_send_lat -n 200 -s 64 -c UD", ("send", 400, 400 * 64)),
    ("ib_write_bw -n 20 -a", ("write", 20 * SIZES, 20 * ALL)),
    ("ib_write_bw -n 100 -s 65536 -q 16", ("write", 1600, 1600 << 16)),
    ("ib_write_bw -n 1000 -s 8 -q 8 -Q 50 -I 64", ("write", 8000, 8000 * 8)),
    ("ib_write_bw -n 100 -s 65536 -b -q 2", ("write", 400, 400 << 16)),
    ("ib_write_lat -n 500 -s 8", ("write", 1000, 1000 * 8)),
    ("ib_read_bw -n 20 -a", ("read", 20 * SIZES, 20 * ALL)),
    ("ib_read_bw -n 100 -s 65536 -q 4 -e", ("read", 400, 400 << 16)),
    ("ib_read_lat -n 200", ("read", 200, 200 * 2)),
    ("ib_atomic_bw -n 200 -A FETCH_AND_ADD", ("fetch_add", 200, 200 * 8)),
    ("ib_atomic_bw -n 100 -A CMP_AND_SWAP -q 4", ("compare_swap", 400, 400 * 8)),
    ("ib_atomic_lat -n 200 -A CMP_AND_SWAP", ("compare_swap", 200, 200 * 8)),
];

/// Programs that find each other by the connection manager, with datagrams of the queue pair for management: server, client, and
/// what the client says at the end. rping, rstream and riostream compare what they get (`-V`, `-T v`).
const MANAGED: [(&str, &str, &str); 13] = [
    ("rping -s -a {a} -p {p} -v -V -C 20", "rping -c -a {a} -p {p} -v -V -C 20", "ping data: rdma-ping-19:"),
    (
        "rping -s -a {a} -p {p} -v -V -C 10 -S 60000",
        "rping -c -a {a} -p {p} -v -V -C 10 -S 60000",
        "ping data: rdma-ping-9:",
    ),
    ("ucmatose -b {a} -p {p} -c 8 -C 20 -S 1000", "ucmatose -s {a} -p {p} -c 8 -C 20 -S 1000", "return status 0"),
    ("udaddy -b {a} -c 4 -C 20 -S 1000", "udaddy -s {a} -c 4 -C 20 -S 1000", "return status 0"),
    ("rstream -b {a} -p {p} -T v -S all -C 5 -I 5", "rstream -s {a} -p {p} -T v -S all -C 5 -I 5", "custom"),
    ("riostream -b {a} -p {p} -T v -C 5 -I 5", "riostream -s {a} -p {p} -T v -C 5 -I 5", "custom"),
    ("rdma_server -p {p}", "rdma_client -s {a} -p {p}", "rdma_client: end 0"),
    ("ib_send_bw -R {x} -n 200 -s 4096 -q 2", "ib_send_bw -R {x} -n 200 -s 4096 -q 2 {a}", "#bytes"),
    ("ib_send_lat -R {x} -n 200 -s 64", "ib_send_lat -R {x} -n 200 -s 64 {a}", "#bytes"),
    ("ib_write_bw -R {x} -n 200", "ib_write_bw -R {x} -n 200 {a}", "#bytes"),
    ("ib_write_lat -R {x} -n 200", "ib_write_lat -R {x} -n 200 {a}", "#bytes"),
    ("ib_read_bw -R {x} -n 200 -q 4", "ib_read_bw -R {x} -n 200 -q 4 {a}", "#bytes"),
    ("ib_atomic_lat -R {x} -n 100", "ib_atomic_lat -R {x} -n 100 {a}", "#bytes"),
];

/// A device of the guest, and how its programs find it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) device: String,
    /// Index of the GID that is the address.
    pub(super) gid: u32,
    /// IPv4 address of the device's interface.
    pub(super) address: String,
}

impl Site {
    /// The NIC's own device: loads its driver.
    pub(super) fn nic(rig: &mut Rig<'_>) -> Result<Self> {
        load(rig)?;
        let device = rdma::check(rig, "modprobe ionic_rdma")?.name;
        let text = rig.nic("ip -4 -o addr show dev {nic}")?;
        Self::find(rig, &device, &text)
    }

    /// The device `device`, of the interface of which `ip -4 -o addr show` says `addresses`. Its GIDs are waited for.
    pub(super) fn find(rig: &mut Rig<'_>, device: &str, addresses: &str) -> Result<Self> {
        let mut words = addresses.split_whitespace().skip_while(|word| *word != "inet");
        let address = words.nth(1).and_then(|a| a.split('/').next()).context("the interface has no IPv4 address")?;
        let bytes: std::net::Ipv4Addr = address.parse().context("the interface's address")?;
        let [a, b, c, d] = bytes.octets();
        let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        // Work queues of the kernel fill the table. Entries that are free can be read, too.
        let path = rig.ok(&format!(
            "n=0; until grep -lx {gid} /sys/class/infiniband/{device}/ports/1/gids/* | head -n 1 | grep .; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done"
        ))?;
        let gid = path.trim().rsplit('/').next().and_then(|n| n.parse().ok()).context("the GID's index")?;
        Ok(Self { device: device.to_owned(), gid, address: address.to_owned() })
    }

    /// Puts device, GID, address and port in.
    fn fill(&self, line: &str) -> String {
        line.replace("{x}", "-d {d} -x {g} -F -p {p}")
            .replace("{d}", &self.device)
            .replace("{g}", &self.gid.to_string())
            .replace("{a}", &self.address)
            .replace("{p}", &PORT.to_string())
    }
}

/// How a server is seen to wait for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meet {
    /// It listens with TCP.
    Tcp,
    /// It listens by the connection manager.
    Manager,
}

impl Meet {
    fn listens(self) -> String {
        match self {
            Self::Tcp => format!("ss -ltn | grep -q :{PORT}"),
            Self::Manager => "rdma resource show cm_id | grep -q 'state LISTEN'".to_owned(),
        }
    }

    /// Waits until it does; shows what the server said if that does not come.
    fn wait(self, rig: &mut Rig<'_>) -> Result<()> {
        let listens = self.listens();
        rig.ok(&format!(
            "n=0; until {listens}; do n=$((n+1)); [ $n -lt 200 ] || {{ cat /tmp/server; exit 9; }}; sleep 0.1; done"
        ))?;
        Ok(())
    }
}

/// Runs both ends of a program; both succeed, and the client says `says`.
fn both_ends(rig: &mut Rig<'_>, server: &str, client: &str, meet: Meet, says: &str) -> Result<()> {
    rig.ok(&format!("({server}; echo status $?) </dev/null >/tmp/server 2>&1 &"))?;
    meet.wait(rig)?;
    let limit = Duration::from_secs(100);
    let said = rig.ok_for(&format!("timeout 90 {client} 2>&1; echo status $?"), limit)?;
    let wait = "n=0; until grep -q '^status' /tmp/server || [ $n -ge 100 ]; do n=$((n+1)); sleep 0.1; done";
    let other = rig.ok(&format!("{wait}; cat /tmp/server"))?;
    for (who, text) in [("client", &said), ("server", &other)] {
        let good = text.trim_end().ends_with("status 0") && (who == "server" || text.contains(says));
        ensure!(good, "{client}: the {who} failed: client: {said}\nserver: {other}");
    }
    Ok(())
}

/// What the device has counted so far of an operation: requests, bytes of all operations, failures.
fn counted(rig: &mut Rig<'_>, operation: &str) -> Result<[u64; 3]> {
    let page = rig.ok(&format!("curl -sSf -m 20 {ENDPOINT}/metrics"))?;
    Ok([
        metric(&page, &format!("ernic_nic_rdma_operations_total{{operation=\"{operation}\"}}"))?,
        metric(&page, "ernic_nic_rdma_bytes_total")?,
        metric(&page, "ernic_nic_rdma_requests_total{outcome=\"failed\"}")?,
    ])
}

/// Runs both ends of `program`, and compares what the device has counted with what they should have asked it for.
fn exactly(rig: &mut Rig<'_>, idle: &str, server: &str, client: &str, says: &str, work: Work) -> Result<()> {
    let (operation, requests, bytes) = work;
    let before = counted(rig, operation)?;
    both_ends(rig, server, client, Meet::Tcp, says)?;
    let after = counted(rig, operation)?;
    let [done, moved, failed] = std::array::from_fn(|at| after[at] - before[at]);
    ensure!(
        (done, moved, failed) == (requests, bytes, 0),
        "{client}: {done} of {operation} with {moved} bytes, {failed} failed, instead of {requests} with {bytes}"
    );
    released(rig, idle, client)
}

/// Fails with all that went wrong, so that one run tells of every program.
fn all_well(wrong: Vec<String>) -> Result<()> {
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn pingpongs(rig: &mut Rig<'_>, site: &Site, idle: &str) -> Result<()> {
    let mut wrong = Vec::new();
    for (program, work) in PINGPONGS {
        let server = site.fill(&format!("{program} -d {{d}} -g {{g}} -p {{p}}"));
        let run = exactly(rig, idle, &server, &format!("{server} 127.0.0.1"), " iters in ", work);
        wrong.extend(run.err().map(|error| format!("{error:#}")));
    }
    all_well(wrong)
}

/// perftest's programs, or one of each `every` of them.
fn perftests(rig: &mut Rig<'_>, site: &Site, idle: &str, every: usize) -> Result<()> {
    let mut wrong = Vec::new();
    for (program, work) in PERFTESTS.into_iter().step_by(every) {
        let server = site.fill(&format!("{program} {{x}}"));
        let run = exactly(rig, idle, &server, &site.fill(&format!("{server} {{a}}")), "#bytes", work);
        wrong.extend(run.err().map(|error| format!("{error:#}")));
    }
    all_well(wrong)
}

/// The connection manager's programs, or one of each `every` of them.
fn managed(rig: &mut Rig<'_>, site: &Site, idle: &str, every: usize) -> Result<()> {
    let mut wrong = Vec::new();
    for (server, client, says) in MANAGED.into_iter().step_by(every) {
        let run = one_managed(rig, idle, &site.fill(server), &site.fill(client), says);
        wrong.extend(run.err().map(|error| format!("{error:#}")));
    }
    all_well(wrong)
}

fn one_managed(rig: &mut Rig<'_>, idle: &str, server: &str, client: &str, says: &str) -> Result<()> {
    let before = counted(rig, "send")?;
    both_ends(rig, server, client, Meet::Manager, says)?;
    let after = counted(rig, "send")?;
    // Request, reply and ready-to-use of a connection, as datagrams, and its data.
    ensure!(after[0] >= before[0] + 3 && after[1] > before[1], "{client}: {before:?} before and {after:?} after");
    released(rig, idle, client)
}

/// What the end that is left does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It ends: its requests fail, or it is told by the connection manager or by TCP.
    Ends,
    /// It ends with a request that fails. One that waits for a message waits for ever: nothing on a reliable connection says that
    /// the peer has gone.
    EndsOrWaits,
}

/// Kills one of two ends in the middle of their work: the other ends, in a time that its retries give, and nothing of either is
/// left.
fn killed(rig: &mut Rig<'_>, idle: &str, server: &str, client: &str, meet: Meet, left: Left) -> Result<()> {
    for (killed, other) in [("server", "client"), ("client", "server")] {
        rig.ok("rm -f /tmp/server /tmp/client /tmp/*.status")?;
        let run = |who: &str, line: &str| {
            format!(
                "({line} </dev/null >/tmp/{who} 2>&1 & echo $! >/tmp/{who}.pid; wait $!; echo $? >/tmp/{who}.status) &"
            )
        };
        let before = counted(rig, "send")?;
        rig.ok(&run("server", server))?;
        meet.wait(rig)?;
        rig.ok(&run("client", client))?;
        let mut now = before;
        for _ in 0..100 {
            rig.ok("sleep 0.1")?;
            now = counted(rig, "send")?;
            if now[1] >= before[1] + 100_000 {
                break;
            }
        }
        ensure!(now[1] >= before[1] + 100_000, "{client}: {before:?} before and {now:?} ten seconds later");
        rig.ok(&format!("kill -0 $(cat /tmp/{other}.pid) && kill -9 $(cat /tmp/{killed}.pid)"))?;
        let (tries, late) = match left {
            Left::Ends => (300, "exit 9".to_owned()),
            Left::EndsOrWaits => (50, format!("{{ kill -9 $(cat /tmp/{other}.pid); break; }}")),
        };
        let said = rig
            .ok(&format!(
                "n=0; until [ -s /tmp/{other}.status ]; do n=$((n+1)); [ $n -lt {tries} ] || {late}; sleep 0.1; done; cat /tmp/{other}"
            ))
            .with_context(|| format!("{client}: the {other} goes on without its {killed}"))?;
        // IBV_WC_RETRY_EXC_ERR, which perftest gives as its number.
        let retried = said.contains("retry counter exceeded") || said.contains("Failed status 12:");
        ensure!(retried || !said.contains("Failed status"), "{client}: the {other} without its {killed}: {said}");
        released(rig, idle, &format!("the {killed} was killed"))?;
    }
    Ok(())
}

/// A guest with the NIC's device, ready for programs.
fn begin<'a>(bench: &'a Bench<'_>, name: &'static str, setup: Setup) -> Result<(Rig<'a>, Site, String)> {
    let mut rig = start(bench, name, setup)?;
    if rig.guest.sh("command -v ib_write_bw")?.rc != 0 {
        bail!(Skip("the guest has no perftest".to_owned()));
    }
    let site = Site::nic(&mut rig)?;
    let idle = resources(&mut rig)?;
    Ok((rig, site, idle))
}

/// TCP went on beside it, both drivers are content, and the device has nothing left without them.
pub(super) fn finish(mut rig: Rig<'_>) -> Result<()> {
    rig.check("verbs programs")?;
    rig.ok("rmmod ionic_rdma")?;
    let page = rig.ok(&format!("curl -sSf -m 20 {ENDPOINT}/metrics"))?;
    let left = metric(&page, "ernic_nic_rdma_objects")?;
    ensure!(left == 0, "{left} objects are left without the driver: {page}");
    // All but doorbells of queues that have gone: the driver rings them on its way out.
    let wrong = metric(&page, "ernic_nic_guest_errors_total")?;
    let late = metric(&page, "ernic_nic_guest_errors_total{kind=\"doorbells\"}")?;
    ensure!(wrong == late, "the device says that the driver did something wrong: {page}");
    drivers_content(&mut rig)?;
    rig.stop()
}

/// Every example succeeds and leaves nothing; what the driver does not offer is refused; one that loses its peer ends.
pub fn verbs(bench: &Bench<'_>) -> Result<()> {
    let (mut rig, site, idle) = begin(bench, "vm-verbs", Setup::default())?;
    pingpongs(&mut rig, &site, &idle)?;
    for (program, says) in REFUSED {
        let outcome = rig.guest.sh(&site.fill(&format!("{program} -d {{d}} -g {{g}} -p {{p}}")))?;
        ensure!(outcome.rc == 1 && outcome.text.contains(says), "{program}: {outcome:?}");
        released(&mut rig, &idle, program)?;
    }
    for events in ["", " -e"] {
        let program = site.fill(&format!("ibv_rc_pingpong{events} -n 100000000 -d {{d}} -g {{g}} -p {{p}}"));
        killed(&mut rig, &idle, &program, &format!("{program} 127.0.0.1"), Meet::Tcp, Left::EndsOrWaits)?;
    }
    finish(rig)
}

/// perftest's programs do, and either side is killed under load.
pub fn perftest(bench: &Bench<'_>) -> Result<()> {
    let (mut rig, site, idle) = begin(bench, "vm-perftest", Setup::default())?;
    perftests(&mut rig, &site, &idle, 1)?;
    for program in ["ib_write_bw -D 60 -s 65536", "ib_read_bw -D 60 -s 65536 -q 2"] {
        let program = site.fill(&format!("{program} {{x}}"));
        killed(&mut rig, &idle, &program, &site.fill(&format!("{program} {{a}}")), Meet::Tcp, Left::Ends)?;
    }
    finish(rig)
}

/// Programs of the connection manager do, and either side is killed.
pub fn rdmacm(bench: &Bench<'_>) -> Result<()> {
    let (mut rig, site, idle) = begin(bench, "vm-rdmacm", Setup::default())?;
    managed(&mut rig, &site, &idle, 1)?;
    let (server, client) =
        ("rping -s -a {a} -p {p} -S 1000 -C 100000000", "rping -c -a {a} -p {p} -S 1000 -C 100000000");
    killed(&mut rig, &idle, &site.fill(server), &site.fill(client), Meet::Manager, Left::Ends)?;
    finish(rig)
}

/// These programs where the guest maps its memory page by page through a virtual IOMMU: all of them with `--full`, else some of
/// each kind.
pub fn iommu(bench: &Bench<'_>) -> Result<()> {
    let (mut rig, site, idle) = begin(bench, "vm-iommu", Setup { iommu: true, ..Setup::default() })?;
    let domain = rig.nic("cat $(readlink -f /sys/class/net/{nic}/device)/iommu_group/type")?;
    ensure!(domain.trim().starts_with("DMA"), "the NIC's memory is not mapped by an IOMMU: {domain:?}");
    rig.store("mapped.bin", 8 << 20)?;
    pingpongs(&mut rig, &site, &idle)?;
    // Sends of all sizes, writes of several queue pairs, reads; rping and perftest.
    let (perftest, manager) = if bench.args().full { (1, 1) } else { (5, 7) };
    perftests(&mut rig, &site, &idle, perftest)?;
    managed(&mut rig, &site, &idle, manager)?;
    super::transfers::functional(&mut rig, 'A')?;
    released(&mut rig, &idle, "the client's checks")?;
    finish(rig)
}
