//! The lane `vm-verbs`: programs of others that use verbs between themselves, in the guest.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::rdma::{drivers_content, load, released, resources, start};
use super::vms::{Rig, Setup};
use super::{Bench, Skip, rdma};

/// Where both ends of a program meet.
const PORT: u16 = 18_700;

/// perftest's programs, both ends alike: several queue pairs, all sizes up to 8 MiB, completions for every 50th request, inline
/// data, events, datagrams, and by the connection manager (`-R`).
const PERFTESTS: [&str; 14] = [
    "ib_send_bw -n 500 -s 4096 -q 4",
    "ib_send_bw -n 200 -e",
    "ib_send_bw -n 500 -s 1024 -c UD",
    "ib_send_lat -n 500 -s 64",
    "ib_send_lat -n 200 -s 64 -e",
    "ib_send_lat -n 200 -s 64 -c UD",
    "ib_write_bw -n 40 -a",
    "ib_write_bw -n 1000 -s 8 -q 8 -Q 50 -I 64",
    "ib_write_lat -n 500 -s 8",
    "ib_read_bw -n 40 -a",
    "ib_read_lat -n 200",
    "ib_atomic_bw -n 200 -A FETCH_AND_ADD",
    "ib_atomic_lat -n 200 -A CMP_AND_SWAP",
    "ib_write_bw -n 200 -R",
];

/// The interface's IPv4 address.
pub(super) fn address(rig: &mut Rig<'_>) -> Result<String> {
    let text = rig.nic("ip -4 -o addr show dev {nic}")?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "inet");
    let address = words.nth(1).and_then(|a| a.split('/').next()).context("the interface has no IPv4 address")?;
    Ok(address.to_owned())
}

/// Runs both ends of a program; both succeed, and the client says `says`. `tcp`: the server listens on [`PORT`] with TCP.
pub(super) fn both_ends(rig: &mut Rig<'_>, server: &str, client: &str, tcp: bool, says: &str) -> Result<()> {
    rig.ok(&format!("({server}; echo status $?) </dev/null >/tmp/peer 2>&1 &"))?;
    // The connection manager does not listen with TCP.
    let listens = if tcp { format!("ss -ltn | grep -q :{PORT}") } else { "sleep 1; true".to_owned() };
    rig.ok(&format!(
        "n=0; until {listens}; do n=$((n+1)); [ $n -lt 100 ] || {{ cat /tmp/peer; exit 9; }}; sleep 0.1; done"
    ))?;
    let limit = Duration::from_secs(100);
    let said = rig.ok_for(&format!("timeout 90 {client} 2>&1; echo status $?"), limit)?;
    let wait = "n=0; until grep -q '^status' /tmp/peer || [ $n -ge 100 ]; do n=$((n+1)); sleep 0.1; done";
    let other = rig.ok(&format!("{wait}; cat /tmp/peer"))?;
    for (who, text) in [("client", &said), ("server", &other)] {
        let good = text.trim_end().ends_with("status 0") && (who == "server" || text.contains(says));
        ensure!(good, "{client}: the {who} failed: client: {said}\nserver: {other}");
    }
    Ok(())
}

/// Every program succeeds and leaves nothing; one that loses its peer ends, and leaves nothing either.
pub fn verbs(bench: &Bench<'_>) -> Result<()> {
    let mut rig = start(bench, "vm-verbs", Setup::default())?;
    if rig.guest.sh("command -v ib_write_bw")?.rc != 0 {
        bail!(Skip("the guest has no perftest".to_owned()));
    }
    load(&mut rig)?;
    rdma::check(&mut rig, "modprobe ionic_rdma")?;
    let idle = resources(&mut rig)?;
    let address = address(&mut rig)?;
    for program in PERFTESTS {
        let program = format!("{program} -x 1 -F -p {PORT}");
        both_ends(&mut rig, &program, &format!("{program} {address}"), !program.contains("-R"), "#bytes")?;
        released(&mut rig, &idle, &program)?;
    }
    // Either side is killed in the middle: the other ends with an error, in a time that its retries give.
    for (killed, other) in [("server", "client"), ("client", "server")] {
        let program = format!("ib_write_bw -x 1 -F -p {PORT} -D 60 -s 65536");
        rig.ok(&format!("{program} </dev/null >/tmp/server 2>&1 & echo $! >/tmp/server.pid"))?;
        rig.ok(&format!(
            "n=0; until ss -ltn | grep -q :{PORT}; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done"
        ))?;
        rig.ok(&format!("{program} {address} </dev/null >/tmp/client 2>&1 & echo $! >/tmp/client.pid; sleep 3"))?;
        rig.ok(&format!("kill -0 $(cat /tmp/{other}.pid) && kill -9 $(cat /tmp/{killed}.pid)"))?;
        let gone = "n=0; while kill -0 $(cat /tmp/{other}.pid) 2>/dev/null; do n=$((n+1)); [ $n -lt 300 ] || exit 9; sleep 0.1; done";
        rig.ok(&gone.replace("{other}", other)).with_context(|| format!("the {other} goes on without its {killed}"))?;
        released(&mut rig, &idle, &format!("the {killed} was killed"))?;
    }
    rig.check("verbs programs")?;
    rig.ok("rmmod ionic_rdma")?;
    drivers_content(&mut rig)?;
    rig.stop()
}
