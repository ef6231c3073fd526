//! The lanes `vm-hw-ionic` and `vm-hw-rxe`: the store on hardware verbs (`ernic serve --rdma verbs`) and its client as two
//! processes of the guest, over the NIC's own device and over soft-RoCE.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rdma_token::{Token, Transport};
use serde_json::Value;

use super::rdma::{drivers_content, released_of, resources_of, start};
use super::transfers::metric;
use super::verbs::Site;
use super::vms::{Rig, Setup};
use super::{Bench, Skip, rdma};
use crate::guest::payload;
use crate::process;
use crate::vm::Accel;

/// Port of the store in the guest.
const PORT: u16 = 9100;
/// Bytes of one buffer of the store, and how many there are.
const BUFFER: u64 = 64 << 20;
const BUFFERS: u64 = 4;
/// Longest time that a client may take to connect.
const WAIT: &str = "5s";
/// Longest run of the client. Measured under TCG: a minute for its checks.
const LIMIT: Duration = Duration::from_secs(400);
/// What the client says of all its transfers.
const BY_RDMA: &str = " by RDMA, 0 by HTTP";

/// What is not the same on the two devices.
struct Kind {
    name: &'static str,
    /// Bytes of the object that is fetched while something dies.
    large: &'static str,
    /// Seconds of the soak.
    soak: u32,
    /// Bytes of its objects.
    soaked: &'static str,
    /// How often the client is killed.
    kills: u32,
}

/// The store in the guest.
struct Store {
    pid: String,
    endpoint: String,
}

impl Store {
    /// Starts it with options of `--rdma verbs:` behind the device's name, and waits until it answers.
    fn start(rig: &mut Rig<'_>, site: &Site, options: &str) -> Result<Self> {
        let endpoint = format!("http://{}:{PORT}", site.address);
        let pid = rig.ok(&format!(
            "ernic serve --insecure -l {}:{PORT} -b s3:size=600M --rdma verbs:device={},{options} </dev/null >>/tmp/store.log 2>&1 & echo $!",
            site.address, site.device
        ))?;
        let pid = pid.trim().to_owned();
        rig.ok(&format!(
            "n=0; until curl -sSf -m 5 {endpoint}/metrics >/dev/null 2>&1; do n=$((n+1)); [ $n -lt 100 ] && kill -0 {pid} || {{ cat /tmp/store.log; exit 9; }}; sleep 0.2; done"
        ))?;
        Ok(Self { pid, endpoint })
    }

    /// Ends it in order.
    fn stop(self, rig: &mut Rig<'_>) -> Result<()> {
        let pid = &self.pid;
        rig.ok(&format!(
            "kill {pid}; n=0; while kill -0 {pid} 2>/dev/null; do n=$((n+1)); [ $n -lt 200 ] || {{ tail -n 20 /tmp/store.log; exit 9; }}; sleep 0.1; done"
        ))?;
        Ok(())
    }

    fn page(&self, rig: &mut Rig<'_>) -> Result<String> {
        rig.ok(&format!("curl -sSf -m 20 {}/metrics", self.endpoint))
    }

    /// Bytes that left and came by RDMA, as the device's side counts them.
    fn moved(&self, rig: &mut Rig<'_>) -> Result<[u64; 2]> {
        let page = self.page(rig)?;
        let bytes = |direction: &str| metric(&page, &format!("ernic_verbs_bytes_total{{direction=\"{direction}\"}}"));
        Ok([bytes("out")?, bytes("in")?])
    }

    /// Waits until no queue pair, session or buffer is in use.
    fn idle(&self, rig: &mut Rig<'_>, after: &str) -> Result<()> {
        let mut last = String::new();
        for _ in 0..150 {
            let page = self.page(rig)?;
            let used = metric(&page, "ernic_verbs_buffers{state=\"used\"}")?;
            let free = metric(&page, "ernic_verbs_buffers{state=\"free\"}")?;
            let (pairs, sessions) = (metric(&page, "ernic_verbs_queue_pairs")?, metric(&page, "ernic_verbs_sessions")?);
            last = format!("{pairs} queue pairs, {sessions} sessions, {used} buffers in use and {free} free");
            if (pairs, sessions, used) == (0, 0, 0) && free > 0 {
                return Ok(());
            }
            rig.ok("sleep 0.2")?;
        }
        let said = rig.ok("tail -n 20 /tmp/store.log")?;
        bail!("after {after}: {last}\n{said}")
    }

    /// Resident KiB and open descriptors.
    fn usage(&self, rig: &mut Rig<'_>) -> Result<[u64; 2]> {
        let pid = &self.pid;
        let text = rig.ok(&format!(
            "sed -n 's/VmRSS:[^0-9]*\\([0-9]*\\) kB/\\1/p' /proc/{pid}/status; ls /proc/{pid}/fd | wc -l"
        ))?;
        let mut numbers = text.split_whitespace().map(str::parse);
        let mut next = || numbers.next().context("too few numbers")?.context("a number");
        Ok([next()?, next()?])
    }

    /// The client's command line.
    fn client(&self, site: &Site, options: &str) -> String {
        format!(
            "ernic-bench -endpoint {} --device {} --gid-index {} --protocol rc-v2 {options}",
            self.endpoint, site.device, site.gid
        )
    }
}

/// As of the one device, with the patience that the ends of clients take.
fn released(rig: &mut Rig<'_>, site: &Site, before: &str, after: &str) -> Result<()> {
    released_of(rig, &site.device, before, after, 150)
}

/// The client's own checks, and what both sides have counted for them.
fn functional(rig: &mut Rig<'_>, site: &Site, store: &Store) -> Result<()> {
    let before = store.moved(rig)?;
    let said = rig.ok_for(&store.client(site, "--functional"), LIMIT)?;
    ensure!(said.trim_end().ends_with("all checks passed"), "{said}");
    let passed = said.lines().filter(|l| l.starts_with("ok ")).count();
    ensure!(passed >= 26 && said.contains("counters of operations and bytes are checked, exactly"), "{said}");
    let after = store.moved(rig)?;
    ensure!(after[0] > before[0] + (65 << 20) && after[1] > before[1] + (65 << 20), "{before:?} {after:?}");
    store.idle(rig, "the client's checks")
}

/// Objects of 64 MiB out and in: bytes compared by the client, and counted by the server on both layers. Returns GET's bytes per second.
fn exact(rig: &mut Rig<'_>, site: &Site, store: &Store) -> Result<f64> {
    const N: u64 = 4;
    let before = store.moved(rig)?;
    let said = rig.ok_for(&store.client(site, &format!("-size 64M -n {N} --json /tmp/rows")), LIMIT)?;
    ensure!(said.contains(&format!("transfers: {}{BY_RDMA}", 2 * N)), "{said}");
    ensure!(said.contains("the server's counters agree"), "{said}");
    let after = store.moved(rig)?;
    let due = N * BUFFER;
    ensure!(
        after == [before[0] + due, before[1] + due],
        "the device counts {before:?} and then {after:?} for {due} bytes in either direction"
    );
    let rows: Value = serde_json::from_str(&rig.ok("cat /tmp/rows")?)?;
    let rows = rows.get("results").and_then(Value::as_array).context("no results")?;
    let get = rows.iter().find(|row| row.get("op").and_then(Value::as_str) == Some("GET")).context("no GET")?;
    let fastest = get.get("min_us").and_then(Value::as_f64).context("no time of GET")?;
    store.idle(rig, "64 MiB objects")?;
    #[expect(clippy::cast_precision_loss, reason = "64 MiB")]
    Ok(BUFFER as f64 / fastest * 1e6)
}

/// `ib_write_bw` at 1 MiB, in bytes per second: the best of its average and peak, so that it is not the slower of two tries.
fn write_bandwidth(rig: &mut Rig<'_>, site: &Site) -> Result<f64> {
    let end = format!("ib_write_bw -d {} -x {} -F -p 18700 -s 1048576 -n 300", site.device, site.gid);
    rig.ok(&format!("({end} </dev/null >/tmp/server 2>&1) &"))?;
    rig.ok("n=0; until ss -ltn | grep -q :18700; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done")?;
    let said = rig.ok_for(&format!("timeout 90 {end} {}", site.address), Duration::from_secs(100))?;
    let line = said.lines().find(|l| l.trim_start().starts_with("1048576 ")).context("ib_write_bw says nothing")?;
    // Bytes, iterations, peak, average in MiB/s, messages.
    let average: f64 = line.split_whitespace().nth(3).and_then(|w| w.parse().ok()).with_context(|| line.to_owned())?;
    Ok(average * 1_048_576.0)
}

/// A client that prepares a GET with a queue pair of a number that does not exist, and is never heard of again: the only buffer is
/// its until its time is over, others are told so, and then it is given back.
fn never_connects(rig: &mut Rig<'_>, site: &Site, idle: &str) -> Result<()> {
    let store = Store::start(rig, site, &format!("buffers=1x64M,wait={WAIT}"))?;
    let said = rig.ok_for(&store.client(site, "-size 1M -n 1 -key there"), LIMIT)?;
    ensure!(said.contains(BY_RDMA), "{said}");
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&site.address.parse::<std::net::Ipv4Addr>()?.octets());
    let token = Token {
        transport: Transport::Rc,
        qpn: 0xab_cdef,
        gid,
        rkey: 0x1234,
        address: 0x10000,
        length: 1 << 20,
        port: 1,
        lid: 0,
    };
    let post = |what: &str, more: &str| {
        format!(
            "curl -sS -m 20 -o /tmp/answer -D /tmp/head -w '%{{http_code}}' -X POST -H 'x-amz-rdma-protocol: hipobj-rc-v2' -H 'x-amz-rdma-cookie: 0badcafe' \
             {more} {}/.hipobj-rc/{what}",
            store.endpoint
        )
    };
    let prepare_of = |size: u64| {
        post(
            "prepare",
            &format!(
                "-H 'x-amz-rdma-token: {token}' -H 'x-amz-rdma-psn: 123456' -H 'x-amz-rdma-op: GET' \
                 -H 'x-amz-rdma-target: /ernic/there' -H 'x-amz-rdma-size: {size}'"
            ),
        )
    };
    let prepare = prepare_of(1 << 20);
    let before = store.moved(rig)?;
    let status = rig.ok(&prepare)?;
    ensure!(status.trim() == "200", "prepare: {status} {}", rig.ok("cat /tmp/answer")?);
    // The pool has one buffer.
    let second = rig.ok(&prepare)?;
    let said = rig.ok("cat /tmp/answer")?;
    ensure!(second.trim() == "503" && said.contains("<Code>SlowDown</Code>"), "a second prepare: {second} {said}");
    let outcome = rig.guest.sh_for(&store.client(site, "-size 1M -n 1 -key there -get-only"), LIMIT)?;
    ensure!(outcome.rc == 1 && outcome.text.contains("SlowDown"), "with all buffers in use: {outcome:?}");
    store.idle(rig, "a client that never made its session ready")?;

    // Another one says that it is ready, without a queue pair at its end.
    let status = rig.ok(&prepare)?;
    ensure!(status.trim() == "200", "prepare: {status}");
    let session = rig.ok("sed -n 's/^x-amz-rdma-session: *\\([0-9a-f]*\\).*/\\1/ip' /tmp/head")?;
    let ready = post("ready", &format!("-H 'x-amz-rdma-session: {}'", session.trim()));
    let status = rig.ok(&ready)?;
    let said = rig.ok("cat /tmp/answer")?;
    ensure!(
        status.trim() == "503" && said.contains("RDMATransferError"),
        "ready of a queue pair that does not exist: {status} {said}"
    );
    let page = store.page(rig)?;
    let exceeded = metric(&page, "ernic_verbs_errors_total{status=\"RETRY_EXC_ERR\"}")?;
    // Soft-RoCE tries for longer than the store waits.
    let overdue = metric(&page, "ernic_verbs_overdue_total")?;
    ensure!(
        exceeded + overdue == 1,
        "{exceeded} completions say that nobody acknowledges, and {overdue} work requests were given up"
    );
    ensure!(store.moved(rig)? == before, "bytes are counted that did not arrive");
    store.idle(rig, "a queue pair that does not exist")?;
    let said = rig.ok_for(&store.client(site, "-size 1M -n 1 -key there"), LIMIT)?;
    ensure!(said.contains(BY_RDMA), "{said}");
    let status = rig.ok(&prepare_of(BUFFER + 1))?;
    ensure!(status.trim() == "413", "prepare of more than a buffer: {status}");
    store.idle(rig, "too large a transfer")?;
    store.stop(rig)?;
    released(rig, site, idle, "clients that do not connect")
}

/// The two ends have not the same MTU, which soft-RoCE minds: transfers fail at once and fall back, and nothing is left.
fn other_mtu(rig: &mut Rig<'_>, site: &Site, idle: &str) -> Result<()> {
    let store = Store::start(rig, site, &format!("buffers=1x64M,mtu=256,wait={WAIT}"))?;
    rig.ok(&format!(
        "head -c 100000 /dev/urandom >/tmp/there; curl -sSf -m 20 -T /tmp/there {}/ernic/there",
        store.endpoint
    ))?;
    for options in ["-size 100000 -n 1 -key there -get-only", "-size 100000 -n 1 -key here"] {
        let outcome = rig.guest.sh_for(&store.client(site, options), LIMIT)?;
        ensure!(outcome.rc == 1 && outcome.text.contains("fell back to HTTP"), "with another MTU: {outcome:?}");
        store.idle(rig, "transfers between ends of different MTUs")?;
    }
    let page = store.page(rig)?;
    let refused = metric(&page, "ernic_verbs_errors_total{status=\"REM_INV_REQ_ERR\"}")?;
    ensure!(refused >= 1 && store.moved(rig)? == [0, 0], "{refused} completions say that the client refuses: {page}");
    rig.ok(&format!("curl -sSf -m 20 {}/ernic/there | cmp - /tmp/there", store.endpoint))?;
    store.stop(rig)?;
    released(rig, site, idle, "ends of different MTUs")
}

/// Starts a client in the background, and waits until its bytes move.
fn under_load(rig: &mut Rig<'_>, site: &Site, store: &Store, large: &str) -> Result<()> {
    let before = store.moved(rig)?;
    let line = store.client(site, &format!("-size {large} -n 1000000"));
    rig.ok(&format!(
        "rm -f /tmp/client.status; ({line} </dev/null >/tmp/client 2>&1 & echo $! >/tmp/client.pid; wait $!; echo $? >/tmp/client.status) &"
    ))?;
    for _ in 0..300 {
        let now = store.moved(rig)?;
        if now[0] > before[0] && now[1] > before[1] {
            return Ok(());
        }
        rig.ok("sleep 0.1")?;
    }
    bail!("nothing moves: {}", rig.ok("tail -n 20 /tmp/client /tmp/store.log")?)
}

/// Either side is killed in the middle of transfers: the other ends or goes on, and nothing is left.
fn killed(rig: &mut Rig<'_>, site: &Site, idle: &str, kind: &Kind) -> Result<()> {
    let store = Store::start(rig, site, &format!("buffers={BUFFERS}x64M,wait={WAIT}"))?;
    let serving = resources_of(rig, &site.device)?;
    for round in 1..=kind.kills {
        let after = format!("the client was killed, round {round}");
        under_load(rig, site, &store, kind.large)?;
        rig.ok("kill -9 $(cat /tmp/client.pid)")?;
        store.idle(rig, &after)?;
        released(rig, site, &serving, &after)?;
        let said = rig.ok_for(&store.client(site, "-size 1M -n 2"), LIMIT)?;
        ensure!(said.contains(&format!("transfers: 4{BY_RDMA}")), "{after}: {said}");
    }
    under_load(rig, site, &store, kind.large)?;
    rig.ok(&format!("kill -9 {}", store.pid))?;
    let said = rig.ok("n=0; until [ -s /tmp/client.status ]; do n=$((n+1)); [ $n -lt 600 ] || exit 9; sleep 0.1; done; cat /tmp/client /tmp/client.status")?;
    ensure!(said.trim_end().ends_with("\n1") && said.contains("Error"), "the client without its server: {said}");
    released(rig, site, idle, "the server was killed")?;
    let store = Store::start(rig, site, &format!("buffers={BUFFERS}x64M"))?;
    let said = rig.ok_for(&store.client(site, "-size 1M -n 2"), LIMIT)?;
    ensure!(said.contains(&format!("transfers: 4{BY_RDMA}")), "the server after that: {said}");
    store.stop(rig)?;
    released(rig, site, idle, "the server's end")
}

/// Connects, stores, fetches, compares and disconnects over and over: neither side grows.
fn soak(rig: &mut Rig<'_>, site: &Site, store: &Store, kind: &Kind, full: bool) -> Result<()> {
    let run = |options: String| store.client(site, &format!("-size {} {options}", kind.soaked));
    // By then everything has been allocated once.
    rig.ok_for(&run("--soak 30".to_owned()), LIMIT)?;
    store.idle(rig, "the first rounds of the soak")?;
    let (objects, before) = (resources_of(rig, &site.device)?, store.usage(rig)?);
    let (options, limit) = if full {
        ("--soak 5000".to_owned(), Duration::from_secs(3600))
    } else {
        (format!("--soak 1000000 --soak-seconds {}", kind.soak), LIMIT)
    };
    let said = rig.ok_for(&run(options), limit)?;
    let report: Value =
        serde_json::from_str(said.trim_end().lines().last().unwrap_or_default()).with_context(|| said.clone())?;
    let number = |path: &str| report.pointer(path).and_then(Value::as_u64).with_context(|| format!("{path}: {report}"));
    let rounds = number("/rounds")?;
    ensure!(rounds >= 20 && number("/rdma")? == 2 * rounds && number("/http")? == 0, "{report}");
    ensure!(!full || rounds == 5000, "{report}");
    ensure!(number("/start/descriptors")? == number("/end/descriptors")?, "the client's descriptors: {report}");
    // Pages that an allocator keeps come and go; what each round left would be many times this.
    let grown = number("/end/rss_kib")?.saturating_sub(number("/start/rss_kib")?);
    ensure!(grown < 2048, "the client has grown by {grown} KiB: {report}");
    store.idle(rig, "the soak")?;
    released(rig, site, &objects, "the soak")?;
    let after = store.usage(rig)?;
    ensure!(
        after[1] <= before[1] && after[0] < before[0] + 4096,
        "the server had {before:?} KiB and descriptors and has {after:?} after {rounds} rounds"
    );
    println!("soak on {}: {rounds} rounds in {} s", site.device, report.get("seconds").unwrap_or(&Value::Null));
    Ok(())
}

fn hardware(bench: &Bench<'_>, kind: &Kind) -> Result<()> {
    let server = bench.hardware()?;
    let payloads = vec![payload::built(&[server.as_path()], "hardware")?];
    let setup = Setup { payloads, memory: "2G", ..Setup::default() };
    let mut rig = start(bench, kind.name, setup)?;
    let ionic = kind.name == "vm-hw-ionic";
    let site = if ionic {
        Site::nic(&mut rig)?
    } else {
        if rig.guest.sh("modinfo rdma_rxe")?.rc != 0 {
            bail!(Skip("the guest has no soft-RoCE".to_owned()));
        }
        let said = rig.ok("ernic-rxe")?;
        ensure!(said.contains("rxe0/1 state ACTIVE"), "{said}");
        let addresses = rig.nic("ip -4 -o addr show dev {nic}")?;
        Site::find(&mut rig, "rxe0", &addresses)?
    };
    let idle = resources_of(&mut rig, &site.device)?;

    // Soft-RoCE under TCG moves some megabytes in a second.
    let store = Store::start(&mut rig, &site, &format!("buffers={BUFFERS}x64M,wait=90s"))?;
    functional(&mut rig, &site, &store)?;
    let get = exact(&mut rig, &site, &store)?;
    if ionic {
        let write = write_bandwidth(&mut rig, &site)?;
        println!(
            "GET of 64 MiB: {:.2} GB/s, ib_write_bw at 1 MiB: {:.2} GB/s, ratio {:.2}",
            get / 1e9,
            write / 1e9,
            get / write
        );
        // Under TCG the processor's work on the bytes, a copy and a checksum on either side, is ten times slower than the device's.
        let least = if bench.image()?.1.accel == Accel::Kvm { 0.5 } else { 0.01 };
        ensure!(get >= least * write, "GET of 64 MiB has {get:.0} bytes/s, and ib_write_bw at 1 MiB {write:.0}");
    }
    soak(&mut rig, &site, &store, kind, bench.args().full)?;
    store.stop(&mut rig)?;
    released(&mut rig, &site, &idle, "the server's end")?;
    never_connects(&mut rig, &site, &idle)?;
    if !ionic {
        other_mtu(&mut rig, &site, &idle)?;
    }
    killed(&mut rig, &site, &idle, kind)?;

    rig.check("a store on hardware verbs")?;
    if ionic {
        rdma::check(&mut rig, "a store on hardware verbs")?;
        rig.ok("rmmod ionic_rdma")?;
        drivers_content(&mut rig)?;
    } else {
        rig.ok("rdma link delete rxe0 && rmmod rdma_rxe")?;
    }
    let log = rig.ok("cat /tmp/store.log")?;
    ensure!(!log.contains("panicked"), "{}", process::tail(&log, 20));
    rig.stop()
}

/// On the NIC's own device.
pub fn ionic(bench: &Bench<'_>) -> Result<()> {
    hardware(bench, &Kind { name: "vm-hw-ionic", large: "16M", soak: 60, soaked: "64K", kills: 3 })
}

/// On soft-RoCE, whose packets are all the kernel's work.
pub fn rxe(bench: &Bench<'_>) -> Result<()> {
    hardware(bench, &Kind { name: "vm-hw-rxe", large: "16M", soak: 10, soaked: "16K", kills: 1 })
}
