//! The VM lanes: the stock driver in a stock guest, against the real server.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Bench, Skip};
use crate::demo::{self, Parts, VmArgs};
use crate::process;
use crate::server::{ADDRESS, BUCKET, ENDPOINT, Server};
use crate::vm::{self, Config, Guest, Outcome};

/// A guest on a server.
pub(super) struct Rig<'a> {
    parts: &'a Parts,
    name: &'static str,
    server: Server,
    /// That of the second NIC, if there is one.
    pub(super) second: Option<Server>,
    pub(super) guest: Guest,
    /// The guest's name of the NIC's interface.
    nic: String,
    /// Objects that must stay as they are: key and SHA-256.
    objects: Vec<(&'static str, String)>,
}

/// What is not as usual on a rig.
pub(super) struct Setup {
    /// Archives unpacked over the guest's image.
    pub(super) payloads: Vec<PathBuf>,
    /// The server's back end.
    pub(super) backend: &'static str,
    /// Options of the server.
    pub(super) options: &'static [&'static str],
    /// Back end of a second server, for a second NIC.
    pub(super) second: Option<&'static str>,
    /// Guest memory.
    pub(super) memory: &'static str,
    /// Whether the guest uses a virtual IOMMU.
    pub(super) iommu: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { payloads: Vec::new(), backend: "s3", options: &[], second: None, memory: vm::MEMORY, iommu: false }
    }
}

impl<'a> Rig<'a> {
    /// Starts server and guest, and brings the NIC up.
    pub(super) fn start(bench: &'a Bench<'_>, name: &'static str) -> Result<Self> {
        Self::start_with(bench, name, Setup::default())
    }

    /// [`Rig::start`], with what is not as usual.
    pub(super) fn start_with(bench: &'a Bench<'_>, name: &'static str, setup: Setup) -> Result<Self> {
        let Setup { payloads, backend, options, second, memory, iommu } = setup;
        let parts = bench.parts()?;
        vm::clear_logs(name)?;
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let server = Server::start(&parts.program, name, backend, &options)?;
        let second =
            second.map(|backend| Server::start(&parts.program, &format!("{name}/second"), backend, &[])).transpose()?;
        let mut config =
            Config { payloads, memory, iommu, ..Config::new(name, parts.chosen.accel).nic(server.socket()) };
        config.nics.extend(second.as_ref().map(|server| server.socket().to_owned()));
        let guest = Guest::boot(&parts.image, &config)?;
        let mut rig = Self { parts, name, server, second, guest, nic: String::new(), objects: Vec::new() };
        rig.up()?;
        Ok(rig)
    }

    /// Loads the driver, brings the interface up and gets a lease.
    pub(super) fn up(&mut self) -> Result<()> {
        let text = self.ok("ernic-net")?;
        self.nic = interface(&text, "192.168.200.")?;
        Ok(())
    }

    pub(super) fn ok(&mut self, line: &str) -> Result<String> {
        let text = self.guest.ok(line);
        self.explain(text)
    }

    /// [`Rig::ok`] with another limit.
    pub(super) fn ok_for(&mut self, line: &str, limit: Duration) -> Result<String> {
        let text = self.guest.ok_for(line, limit);
        self.explain(text)
    }

    /// Adds the server's last words to an error.
    pub(super) fn explain<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|error| anyhow!("{error:#}\n{}", self.server.last_words()))
    }

    /// Reboots the guest from inside.
    pub(super) fn reboot(&mut self) -> Result<()> {
        let result = self.guest.reboot();
        self.explain(result)
    }

    /// A command on the interface: `{nic}` in it becomes the interface's name.
    pub(super) fn nic(&mut self, line: &str) -> Result<String> {
        let line = line.replace("{nic}", &self.nic);
        self.ok(&line)
    }

    /// Stores `bytes` random bytes as `key`.
    pub(super) fn store(&mut self, key: &'static str, bytes: u64) -> Result<()> {
        let line = format!(
            "head -c {bytes} /dev/urandom >/tmp/o && curl -sSf -m 100 -T /tmp/o {BUCKET}/{key} && sha256sum </tmp/o && rm /tmp/o"
        );
        let sum = self.ok(&line)?;
        self.objects.push((key, sum.trim().to_owned()));
        Ok(())
    }

    /// Carrier is on, curl lists and fetches, and every object is what it was.
    pub(super) fn check(&mut self, after: &str) -> Result<()> {
        self.look().with_context(|| format!("after {after}"))
    }

    fn look(&mut self) -> Result<()> {
        // A reset driver reports its link a moment later.
        self.nic("n=0; until [ \"$(cat /sys/class/net/{nic}/carrier 2>/dev/null)\" = 1 ]; do n=$((n+1)); [ $n -lt 200 ] || exit 9; sleep 0.1; done")?;
        let listing = self.ok(&format!("curl -sSf -m 60 {BUCKET}/"))?;
        for (key, sum) in self.objects.clone() {
            ensure!(listing.contains(&format!("<Key>{key}</Key>")), "{key} is not listed: {listing}");
            let now = self.ok(&format!("curl -sSf -m 100 {BUCKET}/{key} | sha256sum"))?;
            ensure!(now.trim() == sum, "{key} has changed: {} instead of {sum}", now.trim());
        }
        self.server.check()
    }

    /// The kernel must have nothing to complain about.
    pub(super) fn dmesg(&mut self) -> Result<()> {
        let text = self.ok("dmesg")?;
        for bad in [
            "WARNING:",
            "BUG:",
            "Oops",
            "Call Trace",
            "hw csum failure",
            "NETDEV WATCHDOG",
            "transmit queue",
            "refcount",
        ] {
            if let Some(line) = text.lines().find(|l| l.contains(bad)) {
                bail!("the guest's kernel complains: {line}");
            }
        }
        Ok(())
    }

    /// A value of `ethtool -S`.
    fn counter(&mut self, name: &str) -> Result<u64> {
        let text = self.nic("ethtool -S {nic}")?;
        let line = text.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'));
        line.with_context(|| format!("ethtool -S has no {name}"))?.trim().parse().context("a counter")
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.dmesg()?;
        self.guest.poweroff()?;
        if let Some(second) = self.second {
            second.stop()?;
        }
        self.server.stop()
    }
}

/// The interface with an address of the network, as `ernic-net` says at the end.
pub(super) fn interface(said: &str, network: &str) -> Result<String> {
    let line = said.lines().rfind(|l| l.contains(network) && l.contains(" UP "));
    let line = line.with_context(|| format!("ernic-net says of no interface with an address of {network}0: {said}"))?;
    line.split_whitespace().next().map(str::to_owned).context("ernic-net names no interface")
}

/// The harness itself, without a NIC: commands, statuses, large output, reboot, power-off.
pub fn agent(bench: &Bench<'_>) -> Result<()> {
    let (image, chosen) = bench.image()?;
    vm::clear_logs("vm-agent")?;
    let mut guest = Guest::boot(image, &Config::new("vm-agent", chosen.accel))?;
    let outcome = guest.sh("echo out; echo err >&2; exit 7")?;
    ensure!(outcome == Outcome { rc: 7, text: "out\nerr\n".to_owned() }, "{outcome:?}");
    ensure!(guest.sh("true")? == Outcome { rc: 0, text: String::new() }, "no output is no output");
    let text = guest.ok("seq 200000")?;
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == 200_000 && lines.last() == Some(&"200000"), "{} lines", lines.len());
    guest.ok("modprobe ionic && touch /tmp/before")?;
    guest.reboot()?;
    ensure!(guest.sh("test -e /tmp/before")?.rc == 1, "the guest did not start anew");
    guest.poweroff()
}

/// Boot, lease, ping, PUT, GET, list, range, delete.
pub fn basic(bench: &Bench<'_>) -> Result<()> {
    let mut rig = Rig::start(bench, "vm-basic")?;
    let ping = rig.ok(&format!("ping -c 3 {ADDRESS}"))?;
    ensure!(ping.contains("3 packets received"), "{ping}");
    let speed = rig.nic("cat /sys/class/net/{nic}/speed /sys/class/net/{nic}/operstate")?;
    ensure!(speed.contains("up") && speed.trim() != "-1", "{speed}");
    let buckets = rig.ok(&format!("curl -sSf {ENDPOINT}/"))?;
    ensure!(buckets.contains("<Name>ernic</Name>"), "{buckets}");
    rig.store("small", 1)?;
    rig.store("four-k", 4096)?;
    rig.store("large.bin", 32 << 20)?;
    rig.check("storing")?;
    let status = rig.ok(&format!("curl -sS -o /dev/null -w '%{{http_code}}' {BUCKET}/none"))?;
    ensure!(status == "404", "GET of a key that is not there: {status}");
    let range = rig.ok(&format!("curl -sSf -r 1048576-1048579 {BUCKET}/large.bin | wc -c"))?;
    ensure!(range.trim() == "4", "{range}");
    let listing = rig.ok(&format!("curl -sSf '{BUCKET}/?list-type=2&prefix=l'"))?;
    ensure!(listing.contains("<Size>33554432</Size>") && !listing.contains("small"), "{listing}");
    rig.ok(&format!("curl -sSf -X DELETE {BUCKET}/small"))?;
    let status = rig.ok(&format!("curl -sS -o /dev/null -w '%{{http_code}}' {BUCKET}/small"))?;
    ensure!(status == "404", "GET of a deleted key: {status}");
    rig.objects.retain(|(key, _)| *key != "small");
    // As many connections as the endpoint has, and then some.
    rig.ok(&format!("for i in $(seq 80); do curl -sSf -m 100 {BUCKET}/four-k -o /tmp/p$i & done; wait; for i in $(seq 80); do cmp /tmp/p1 /tmp/p$i || exit 1; done; rm /tmp/p*"))?;
    rig.check("80 connections at once")?;
    rig.stop()
}

/// Traffic both ways that the guest keeps up in the background: `key` is fetched and stored again as `copy.bin`. The
/// checksums of what came go to `/tmp/loop`.
fn start_loop(rig: &mut Rig<'_>, key: &str) -> Result<()> {
    rig.ok(&format!(
        "rm -f /tmp/loop /tmp/end; (until [ -e /tmp/end ]; do curl -sSf -m 100 -o /tmp/down {BUCKET}/{key} && sha256sum </tmp/down && curl -sSf -m 100 -T /tmp/down {BUCKET}/copy.bin; done >/tmp/loop 2>&1; touch /tmp/ended) </dev/null >/dev/null 2>&1 &"
    ))?;
    Ok(())
}

/// Ends it: every round must have given the object, and the copy must be the same.
fn end_loop(rig: &mut Rig<'_>, key: &str) -> Result<()> {
    rig.ok("touch /tmp/end; until [ -e /tmp/ended ]; do sleep 0.1; done; rm /tmp/ended")?;
    let mut sums = rig.ok("cat /tmp/loop")?;
    ensure!(!sums.trim().is_empty(), "the background traffic did not run");
    sums.push_str(&rig.ok(&format!("curl -sSf -m 100 {BUCKET}/copy.bin | sha256sum"))?);
    let sum = rig.objects.iter().find(|(k, _)| *k == key).map(|(_, s)| s.clone()).context("an object of the lane")?;
    for line in sums.lines() {
        ensure!(line.trim() == sum, "the background traffic gave {line} instead of {sum}");
    }
    Ok(())
}

/// Everything that stops or resets the device, and after each that curl works and the objects are intact.
pub fn lifecycle(bench: &Bench<'_>) -> Result<()> {
    let mut rig = Rig::start(bench, "vm-lifecycle")?;
    rig.store("kept.bin", 1 << 20)?;
    rig.store("big.bin", 24 << 20)?;
    rig.check("storing")?;
    let quick = |rig: &mut Rig<'_>, after: &str| -> Result<()> {
        // The small object each time; the large one at the end of each group.
        let all = rig.objects.clone();
        rig.objects.truncate(1);
        let result = rig.check(after);
        rig.objects = all;
        result
    };

    for round in 1..=20 {
        rig.ok("rmmod ionic")?;
        rig.up()?;
        quick(&mut rig, &format!("rmmod and modprobe, round {round}"))?;
    }
    rig.check("rmmod and modprobe")?;

    for round in 1..=20 {
        rig.nic("ip link set {nic} down && ip link set {nic} up")?;
        quick(&mut rig, &format!("link down and up, round {round}"))?;
    }
    rig.check("link down and up")?;

    for method in ["flr", "bus"] {
        for round in 1..=15 {
            rig.nic(&format!("cd -P /sys/class/net/{{nic}}/device && echo {method} >reset_method && echo 1 >reset"))?;
            quick(&mut rig, &format!("{method} reset, round {round}"))?;
        }
        rig.check(&format!("{method} resets"))?;
    }

    for round in 1..=3 {
        rig.nic("d=$(readlink -f /sys/class/net/{nic}/device) && echo 1 >$d/remove && sleep 0.2 && echo 1 >/sys/bus/pci/rescan")?;
        rig.up()?;
        rig.check(&format!("PCI remove and rescan, round {round}"))?;
    }

    for rings in ["rx 512 tx 512", "rx 64 tx 64", "rx 4096 tx 1024"] {
        rig.nic(&format!("ethtool -G {{nic}} {rings}"))?;
        rig.check(&format!("ring sizes {rings}"))?;
    }
    for channels in ["combined 1", "combined 2", "rx 2 tx 2 combined 0", "rx 0 tx 0 combined 4"] {
        rig.nic(&format!("ethtool -L {{nic}} {channels}"))?;
        rig.check(&format!("channels {channels}"))?;
    }

    start_loop(&mut rig, "big.bin")?;
    for mtu in [9000, 1500, 9000, 1500] {
        rig.nic(&format!("sleep 1; ip link set {{nic}} mtu {mtu}"))?;
        quick(&mut rig, &format!("MTU {mtu} under traffic"))?;
    }
    end_loop(&mut rig, "big.bin").context("MTU changes under traffic")?;
    rig.check("MTU changes under traffic")?;
    rig.dmesg()?;

    for round in 1..=2 {
        start_loop(&mut rig, "big.bin")?;
        rig.ok("sleep 0.5")?;
        rig.reboot()?;
        rig.up()?;
        rig.check(&format!("a reboot with a download running, round {round}"))?;
    }

    for round in 1..=2 {
        start_loop(&mut rig, "big.bin")?;
        rig.ok("sleep 0.5")?;
        rig.guest.kill()?;
        rig.server.check()?;
        let config = Config::new(rig.name, rig.parts.chosen.accel).nic(rig.server.socket());
        let guest = Guest::boot(&rig.parts.image, &config);
        rig.guest = rig.explain(guest)?;
        rig.up()?;
        rig.check(&format!("QEMU killed and started again, round {round}"))?;
    }
    rig.stop()
}

/// Offloads on and off, VLAN tags, several queues, and what ethtool tells.
pub fn offload(bench: &Bench<'_>) -> Result<()> {
    let mut rig = Rig::start(bench, "vm-offload")?;
    let driver = rig.nic("ethtool -i {nic}")?;
    ensure!(
        driver.contains("driver: ionic") && driver.contains("firmware-version: ") && driver.contains("bus-info: 0000:"),
        "{driver}"
    );
    let features = rig.nic("ethtool -k {nic}")?;
    for feature in [
        "rx-checksumming",
        "tx-checksumming",
        "scatter-gather",
        "tcp-segmentation-offload",
        "generic-receive-offload",
        "rx-vlan-offload",
        "tx-vlan-offload",
        "receive-hashing",
    ] {
        ensure!(
            features.lines().any(|l| l.trim().starts_with(&format!("{feature}: on"))),
            "{feature} is not on:\n{features}"
        );
    }
    let rings = rig.nic("ethtool -g {nic}")?;
    ensure!(rings.contains("RX:") && rings.contains("TX:"), "{rings}");
    let channels = rig.nic("ethtool -l {nic}")?;
    let combined: Vec<&str> = channels.lines().filter_map(|l| l.strip_prefix("Combined:")).map(str::trim).collect();
    ensure!(combined == ["4", "4"], "four processors get four queue pairs: {channels}");

    rig.store("a.bin", 8 << 20)?;
    ensure!(rig.counter("tx_tso")? > 0, "an upload of 8 MiB made no segmented packet");
    ensure!(rig.counter("tx_csum")? > 0 && rig.counter("rx_csum_error")? == 0, "checksum counters");
    let (packets, bytes) = (rig.counter("rx_packets")?, rig.counter("rx_bytes")?);
    rig.check("storing")?;
    ensure!(
        rig.counter("rx_packets")? > packets && rig.counter("rx_bytes")? >= bytes + (8 << 20),
        "rx counters do not follow the download"
    );

    for (off, on) in [
        ("tso off", "tso on"),
        ("tx off", "tx on tso on"),
        ("sg off", "sg on tso on"),
        ("rx off", "rx on"),
        ("gro off", "gro on"),
        ("rxhash off", "rxhash on"),
    ] {
        rig.nic(&format!("ethtool -K {{nic}} {off}"))?;
        let tso = rig.counter("tx_tso")?;
        rig.objects.clear();
        rig.store("b.bin", 4 << 20)?;
        rig.check(&format!("ethtool -K {off}"))?;
        if off == "tso off" {
            ensure!(rig.counter("tx_tso")? == tso, "segmented packets with tso off");
        }
        rig.nic(&format!("ethtool -K {{nic}} {on}"))?;
        rig.store("c.bin", 4 << 20)?;
        rig.check(&format!("ethtool -K {on}"))?;
    }
    rig.nic("ip link set {nic} mtu 9000")?;
    rig.store("jumbo.bin", 8 << 20)?;
    rig.check("MTU 9000")?;
    rig.nic("ip link set {nic} mtu 1500")?;
    rig.check("MTU 1500 again")?;

    vlan(&mut rig)?;
    queues(&mut rig)?;
    rig.stop()
}

/// Tagged traffic, with the tag put in and taken out by the NIC and by the kernel.
fn vlan(rig: &mut Rig<'_>) -> Result<()> {
    let plain = rig.nic.clone();
    let address = rig.nic("ip -o -4 addr show dev {nic} | sed 's/.*inet \\([^ ]*\\) .*/\\1/'")?;
    let address = address.trim().to_owned();
    rig.ok(&format!("modprobe 8021q && ip addr flush dev {plain} && ip link add link {plain} name tagged type vlan id 7 && ip addr add {address} dev tagged && ip link set tagged up"))?;
    for offload in ["txvlan on rxvlan on", "txvlan off rxvlan off", "txvlan on rxvlan off", "txvlan off rxvlan on"] {
        rig.ok(&format!("ethtool -K {plain} {offload}"))?;
        let ping = rig.ok(&format!("ping -c 2 {ADDRESS}"))?;
        ensure!(ping.contains("2 packets received"), "{offload}: {ping}");
        rig.nic = "tagged".to_owned();
        let result = rig.store("tagged.bin", 4 << 20).and_then(|()| rig.check(&format!("VLAN with {offload}")));
        rig.nic.clone_from(&plain);
        result?;
        rig.objects.pop();
    }
    rig.ok(&format!(
        "ethtool -K {plain} txvlan on rxvlan on && ip link del tagged && ip addr add {address} dev {plain}"
    ))?;
    rig.check("VLAN")
}

/// Many connections are spread over the receive queues.
fn queues(rig: &mut Rig<'_>) -> Result<()> {
    let table = rig.nic("ethtool -x {nic}")?;
    ensure!(table.contains("RSS hash key"), "{table}");
    let received =
        |rig: &mut Rig<'_>| -> Result<Vec<u64>> { (0..4).map(|q| rig.counter(&format!("rx_{q}_pkts"))).collect() };
    let before = received(rig)?;
    rig.ok(&format!(
        "for i in $(seq 32); do curl -sSf -m 100 {BUCKET}/jumbo.bin -r 0-65535 -o /dev/null & done; wait"
    ))?;
    let after = received(rig)?;
    let busy = before.iter().zip(&after).filter(|(b, a)| a > b).count();
    ensure!(busy >= 3, "32 connections moved only {busy} of 4 receive queues: {before:?} {after:?}");
    Ok(())
}

/// The capture of a demo run, read by tcpdump, has every checksum right.
pub fn pcap(bench: &Bench<'_>) -> Result<()> {
    let parts = bench.parts()?;
    let Some(user) = &parts.image.user else {
        bail!(Skip("tcpdump comes with Debian's packages, and --initrd does without them".to_owned()));
    };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("demo.pcap");
    let args = VmArgs {
        guest: bench.args().guest.clone(),
        server: bench.args().server.clone(),
        accel: bench.args().accel,
        pcap: Some(file.clone()),
    };
    demo::run(&args, parts, "vm-pcap", None, false, &mut std::io::sink())?;
    let mut command = user.command("usr/bin/tcpdump", "tcpdump");
    // -vv checks the checksums of IP, ICMP, UDP and TCP. Started by root, tcpdump would become a user of its own that only
    // an installed package makes.
    command.args(["-n", "-vv", "-Z", "root", "-r"]).arg(&file);
    let log = vm::log_folder("vm-pcap")?.join("tcpdump.err");
    let mut child = process::end_with_parent(&mut command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log)?)
        .spawn()?;
    let (mut frames, mut right) = (0_u64, 0_u64);
    let mut wrong = Vec::new();
    for line in BufReader::new(child.stdout.take().context("tcpdump's output")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        frames += u64::from(!line.starts_with([' ', '\t']) && !line.is_empty());
        right += u64::from(line.contains("(correct)"));
        if ["incorrect", "bad cksum", "wrong", "[|"].iter().any(|bad| line.contains(bad)) && wrong.len() < 5 {
            wrong.push(line);
        }
    }
    ensure!(process::wait_for(&mut child, Duration::from_secs(10))?, "tcpdump does not end");
    let status = child.wait()?;
    ensure!(status.success(), "tcpdump: {status}: {}", std::fs::read_to_string(&log).unwrap_or_default());
    ensure!(wrong.is_empty(), "tcpdump finds bad frames:\n{}", wrong.join("\n"));
    // 64 MiB each way is at least this many full frames to the guest.
    ensure!(frames > 10_000 && right > 10_000, "only {frames} frames, {right} with a checked TCP checksum");
    Ok(())
}
