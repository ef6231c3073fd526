//! The lane `vm-two-nics`: two NICs, of two servers, in one guest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::rdma::{load, resources_of, start};
use super::transfers::metric;
use super::verbs::Site;
use super::vms::{Rig, Setup, interface};

/// The second server's back end, in a network of its own.
const BACKEND: &str = "s3:ip=192.168.201.1";
/// Networks of the two, without the last number.
const NETWORKS: [&str; 2] = ["192.168.200.", "192.168.201."];
/// Messages of either end while nothing happens, and their bytes.
const MESSAGES: u64 = 2000;
const SIZE: u64 = 4096;

/// One of the two.
struct Card {
    site: Site,
    /// Its server's URL.
    endpoint: String,
    /// Port at which its programs meet.
    port: u32,
}

impl Card {
    fn find(rig: &mut Rig<'_>, said: &str, number: u32, network: &str) -> Result<Self> {
        let nic = interface(said, network)?;
        // link ionic_0/1 state ACTIVE physical_state LINK_UP netdev eth0
        let links = rig.ok("rdma link show")?;
        let link = links.lines().find(|l| l.split_whitespace().last() == Some(nic.as_str()));
        let link = link.with_context(|| format!("no RDMA device of {nic}: {links}"))?;
        ensure!(link.contains("state ACTIVE"), "{link}");
        let device = link.split_whitespace().nth(1).and_then(|w| w.split('/').next()).context("rdma link show")?;
        let addresses = rig.ok(&format!("ip -4 -o addr show dev {nic}"))?;
        let site = Site::find(rig, device, &addresses)?;
        Ok(Self { site, endpoint: format!("http://{network}1:9000"), port: 18_700 + number })
    }

    /// Both ends of a program that counts `messages` of each, in the background; `/tmp/done.PORT` gets both statuses.
    fn pingpong(&self, messages: u64) -> String {
        let Self { site: Site { device, gid, .. }, port, .. } = self;
        // By events: four programs that poll leave the guest's processors to nobody.
        let end = format!("ibv_rc_pingpong -c -e -d {device} -g {gid} -p {port} -n {messages} -s {SIZE}");
        format!(
            "rm -f /tmp/*.{port}; ({end} </dev/null >/tmp/server.{port} 2>&1; echo $? >>/tmp/done.{port}) & \
             (n=0; until ss -ltn | grep -q :{port}; do n=$((n+1)); [ $n -lt 200 ] || exit 9; sleep 0.1; done; \
             {end} 127.0.0.1 </dev/null >/tmp/client.{port} 2>&1; echo $? >>/tmp/done.{port}) &"
        )
    }

    /// Waits until both ends have succeeded.
    fn succeeded(&self, rig: &mut Rig<'_>) -> Result<()> {
        let port = self.port;
        let line = format!(
            "n=0; until [ \"$(wc -l </tmp/done.{port} 2>/dev/null)\" = 2 ] || [ $n -ge 1200 ]; do n=$((n+1)); sleep 0.1; done; \
             cat /tmp/server.{port} /tmp/client.{port}; echo $(cat /tmp/done.{port})"
        );
        let said = rig.ok_for(&line, Duration::from_secs(400))?;
        ensure!(said.trim_end().ends_with("\n0 0"), "{}: {said}", self.site.device);
        Ok(())
    }

    /// Operations, bytes and failures that the NIC has counted.
    fn counted(&self, rig: &mut Rig<'_>) -> Result<[u64; 3]> {
        let page = rig.ok(&format!("curl -sSf -m 20 {}/metrics", self.endpoint))?;
        Ok([
            metric(&page, "ernic_nic_rdma_operations_total{operation=\"send\"}")?,
            metric(&page, "ernic_nic_rdma_bytes_total")?,
            metric(&page, "ernic_nic_rdma_requests_total{outcome=\"failed\"}")?,
        ])
    }

    /// The client's transfers, through this NIC, compared by the client with what it sent and with the server's counters.
    fn client(&self) -> String {
        let Self { site: Site { device, gid, .. }, endpoint, port } = self;
        format!(
            "ernic-bench -endpoint {endpoint} --device {device} --gid-index {gid} -key k{port} -size 4M -n 3 >/tmp/bench.{port} 2>&1"
        )
    }
}

/// Both bind, both work at once, each counts its own. The death of one server is left out: QEMU 11.1 now and then ends, or keeps its
/// lock, when the other end of a vfio-user socket is gone, and takes the whole guest along.
pub fn two_nics(bench: &Bench<'_>) -> Result<()> {
    let mut rig = start(bench, "vm-two-nics", Setup { second: Some(BACKEND), ..Setup::default() })?;
    rig.store("kept.bin", 1 << 20)?;
    load(&mut rig)?;
    let said = rig.ok("ernic-net")?;
    let cards = [Card::find(&mut rig, &said, 0, NETWORKS[0])?, Card::find(&mut rig, &said, 1, NETWORKS[1])?];
    ensure!(cards[0].site.device != cards[1].site.device, "both are {}", cards[0].site.device);
    let mut idle = Vec::new();
    for card in &cards {
        idle.push((resources_of(&mut rig, &card.site.device)?, card.counted(&mut rig)?));
    }

    for card in &cards {
        rig.ok(&card.pingpong(MESSAGES))?;
    }
    for (card, (objects, before)) in cards.iter().zip(&idle) {
        card.succeeded(&mut rig)?;
        let after = card.counted(&mut rig)?;
        let moved: [u64; 3] = std::array::from_fn(|at| after[at] - before[at]);
        ensure!(
            moved == [2 * MESSAGES, 2 * MESSAGES * SIZE, 0],
            "{} counts {moved:?} of {MESSAGES} messages from either end",
            card.site.device
        );
        let now = resources_of(&mut rig, &card.site.device)?;
        ensure!(now == *objects, "{}: {now} instead of {objects}", card.site.device);
    }

    let both = cards.iter().map(Card::client).collect::<Vec<_>>().join(" & ");
    rig.ok(&format!("({both} & wait)"))?;
    for Card { port, .. } in &cards {
        let said = rig.ok(&format!("cat /tmp/bench.{port}"))?;
        ensure!(said.contains("transfers: 6 by RDMA, 0 by HTTP"), "{said}");
    }

    rig.check("two NICs at work")?;
    let now = resources_of(&mut rig, &cards[0].site.device)?;
    ensure!(now == idle[0].0, "{}: {now} instead of {}", cards[0].site.device, idle[0].0);
    rig.stop()
}
