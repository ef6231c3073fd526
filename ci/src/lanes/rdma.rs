//! The lane `vm-rdma`: the stock RDMA driver and rdma-core's own tools in the guest.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

use super::vms::{Rig, Setup};
use super::{Bench, Skip, transfers};

/// How many `ibv_rc_pingpong` wait for a peer at once.
const HOLDERS: u32 = 4;

/// What `ibv_devinfo -v` says of one device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DevInfo {
    pub(super) name: String,
    state: String,
    active_mtu: String,
    /// The GIDs in use, in the notation of IP addresses.
    gids: BTreeSet<String>,
}

/// Reads the output of `ibv_devinfo -v` for a machine with one device with one port.
fn parse(text: &str) -> Result<DevInfo> {
    let value = |name: &str| {
        let mut values = text.lines().filter_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let first = values.next().with_context(|| format!("ibv_devinfo says no {name}: {text}"))?;
        ensure!(values.next().is_none(), "ibv_devinfo says {name} twice: {text}");
        Ok(first.split_whitespace().next().unwrap_or_default().to_owned())
    };
    // GID[  1]:		::ffff:192.168.200.2, RoCE v2
    let gid =
        |line: &str| Some(line.trim().strip_prefix("GID[")?.split_once("]:")?.1.split(',').next()?.trim().to_owned());
    Ok(DevInfo {
        name: value("hca_id")?,
        state: value("state")?,
        active_mtu: value("active_mtu")?,
        gids: text.lines().filter_map(gid).collect(),
    })
}

/// The GIDs that an interface's addresses make, from `ip -o addr show`: an IPv4 address is mapped into IPv6.
fn expected_gids(addresses: &str) -> BTreeSet<String> {
    let mut gids = BTreeSet::new();
    for line in addresses.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let address = pair[1].split('/').next().unwrap_or_default();
            match pair[0] {
                "inet" => gids.insert(format!("::ffff:{address}")),
                "inet6" => gids.insert(address.to_owned()),
                _ => false,
            };
        }
    }
    gids
}

/// Objects of the one device that its driver holds, as `rdma resource show` counts them.
pub(super) fn resources(rig: &mut Rig<'_>) -> Result<String> {
    resources_of(rig, "")
}

/// Objects of `device`, of which there may be others.
pub(super) fn resources_of(rig: &mut Rig<'_>, device: &str) -> Result<String> {
    let text = rig.ok(&format!("rdma resource show {device}"))?;
    // `3: ionic_0: pd 1 cq 1 …`, where the number goes up each time the driver is loaded.
    let (_, device) = text.trim().split_once(": ").with_context(|| format!("rdma resource show: {text:?}"))?;
    Ok(device.to_owned())
}

/// Loads the driver.
pub(super) fn load(rig: &mut Rig<'_>) -> Result<()> {
    rig.ok("modprobe ionic_rdma")?;
    Ok(())
}

/// A guest that has the RDMA driver and the client.
pub(super) fn start<'a>(bench: &'a Bench<'_>, name: &'static str, mut setup: Setup) -> Result<Rig<'a>> {
    if let Some(why) = &bench.image()?.0.no_rdma {
        bail!(Skip(format!("the guest has no RDMA driver: {why}")));
    }
    setup.payloads.push(bench.client()?);
    let mut rig = Rig::start_with(bench, name, setup)?;
    if rig.guest.sh("modinfo ionic_rdma")?.rc != 0 {
        bail!(Skip("the guest has no RDMA driver: there is none in the --initrd".to_owned()));
    }
    Ok(rig)
}

/// The device is there with an active port and the GIDs of the interface's addresses; and TCP goes on beside it. The GID
/// table is filled by work queues of the kernel, so that these are waited for.
pub(super) fn check(rig: &mut Rig<'_>, after: &str) -> Result<DevInfo> {
    let info = settled(rig, "PORT_ACTIVE", true).with_context(|| format!("after {after}"))?;
    rig.check(after)?;
    Ok(info)
}

/// Waits until the port is in `state`, with the addresses' GIDs if `gids`.
fn settled(rig: &mut Rig<'_>, state: &str, gids: bool) -> Result<DevInfo> {
    let mut last = String::new();
    for _ in 0..100 {
        let outcome = rig.guest.sh("ibv_devinfo -v")?;
        if outcome.rc == 0 {
            let info = parse(&outcome.text)?;
            let expected = expected_gids(&rig.nic("ip -o addr show dev {nic}")?);
            if info.state == state && (!gids || info.gids == expected && !expected.is_empty()) {
                return Ok(info);
            }
            last = format!("{info:?} with addresses {expected:?}");
        } else {
            last = outcome.text;
        }
        rig.ok("sleep 0.2")?;
    }
    let said = rig.ok("dmesg | grep ionic | tail -n 20")?;
    bail!("the RDMA device does not come to {state} with the interface's GIDs: {last}\nthe guest's kernel:\n{said}")
}

/// Programs that hold a protection domain, a region, a completion queue with its channel and a queue pair.
fn hold(rig: &mut Rig<'_>, before: &str) -> Result<()> {
    rig.ok(&format!(
        "for i in $(seq {HOLDERS}); do ibv_rc_pingpong -e -g 1 -p $((18600+i)) </dev/null >/tmp/hold$i 2>&1 & echo $! >>/tmp/holders; done"
    ))?;
    let count = |text: &str, word: &str| -> Result<u32> {
        let mut words = text.split_whitespace().skip_while(|w| *w != word);
        words.nth(1).and_then(|n| n.parse().ok()).with_context(|| format!("rdma resource counts no {word}: {text}"))
    };
    let mut now = String::new();
    for _ in 0..100 {
        now = resources(rig)?;
        let mut all = true;
        for word in ["pd", "cq", "qp", "mr", "ctx"] {
            all &= count(&now, word)? == count(before, word)? + HOLDERS;
        }
        if all {
            return Ok(());
        }
        rig.ok("sleep 0.2")?;
    }
    let said = rig.ok("cat /tmp/hold?")?;
    bail!("{HOLDERS} ibv_rc_pingpong hold {now} instead of {HOLDERS} more than {before}; they say: {said}")
}

/// Kills them, as a crash would.
fn kill_holders(rig: &mut Rig<'_>) -> Result<()> {
    rig.ok("kill -9 $(cat /tmp/holders) 2>/dev/null; rm -f /tmp/holders /tmp/hold?")?;
    Ok(())
}

/// Waits until the one device has the objects that it had `before`.
pub(super) fn released(rig: &mut Rig<'_>, before: &str, after: &str) -> Result<()> {
    released_of(rig, "", before, after, 100)
}

/// Waits until `device` has the objects that it had `before`; looks `tries` times, five a second.
pub(super) fn released_of(rig: &mut Rig<'_>, device: &str, before: &str, after: &str, tries: u32) -> Result<()> {
    let mut now = String::new();
    for _ in 0..tries {
        now = resources_of(rig, device)?;
        if now == before {
            return Ok(());
        }
        rig.ok("sleep 0.2")?;
    }
    bail!("after {after}: objects are left: {now} instead of {before}")
}

/// The two drivers must have nothing to complain about either.
pub(super) fn drivers_content(rig: &mut Rig<'_>) -> Result<()> {
    rig.dmesg()?;
    let text = rig.ok("dmesg")?;
    let words = ["timed out", "timeout", "failed", "error", "cannot", "couldn't", "unexpected", "invalid"];
    for line in text.lines().filter(|l| l.contains("ionic")) {
        let lower = line.to_lowercase();
        // Debian signs its own modules, and this one is ours.
        if words.iter().any(|w| lower.contains(w)) && !lower.contains("module verification failed") {
            bail!("the driver complains: {line}");
        }
    }
    Ok(())
}

/// The driver binds, the port is active, GIDs follow the addresses; removal, resets and reboot leave a device that works.
pub fn control(bench: &Bench<'_>) -> Result<()> {
    let mut rig = start(bench, "vm-rdma", Setup::default())?;
    rig.store("kept.bin", 1 << 20)?;
    let auxiliary = rig.ok("ls /sys/bus/auxiliary/devices")?;
    ensure!(auxiliary.contains("ionic.rdma."), "the Ethernet driver offers no RDMA device: {auxiliary:?}");
    load(&mut rig)?;
    let info = check(&mut rig, "modprobe ionic_rdma")?;
    let devices = rig.ok("ibv_devices")?;
    ensure!(devices.lines().any(|l| l.trim().starts_with(&info.name)), "{devices}");
    let link = rig.nic("rdma link show")?;
    ensure!(link.contains("state ACTIVE physical_state LINK_UP"), "{link}");
    // What the driver itself holds: the queue pair for management datagrams.
    let idle = resources(&mut rig)?;
    for family in ['A', 'B', 'C'] {
        transfers::functional(&mut rig, family)?;
        released(&mut rig, &idle, &format!("the client's checks with tokens {family}"))?;
    }

    for address in ["192.168.200.77/24", "fd00:200::77/64"] {
        rig.nic(&format!("ip addr add {address} dev {{nic}} nodad 2>/dev/null || ip addr add {address} dev {{nic}}"))?;
        let with = check(&mut rig, &format!("adding {address}"))?;
        ensure!(with.gids.len() == info.gids.len() + 1, "{address} added one GID to {:?}: {:?}", info.gids, with.gids);
        rig.nic(&format!("ip addr del {address} dev {{nic}}"))?;
        let without = check(&mut rig, &format!("removing {address}"))?;
        ensure!(without.gids == info.gids, "{:?} instead of {:?}", without.gids, info.gids);
    }
    ensure!(info.active_mtu == "1024", "an MTU of 1500 holds RDMA packets of 1024: {}", info.active_mtu);
    rig.nic("ip link set {nic} mtu 9000")?;
    let jumbo = check(&mut rig, "MTU 9000")?;
    ensure!(jumbo.active_mtu == "4096", "an MTU of 9000 holds RDMA packets of 4096: {}", jumbo.active_mtu);
    rig.nic("ip link set {nic} mtu 1500")?;
    rig.nic("ip link set {nic} down")?;
    settled(&mut rig, "PORT_DOWN", false).context("after link down")?;
    rig.nic("ip link set {nic} up")?;
    check(&mut rig, "link up")?;

    for round in 1..=5 {
        hold(&mut rig, &idle)?;
        kill_holders(&mut rig)?;
        released(&mut rig, &idle, &format!("programs were killed, round {round}"))?;
        rig.ok("rmmod ionic_rdma")?;
        ensure!(rig.ok("ibv_devices")?.lines().count() == 2, "a device is left without its driver");
        rig.check("rmmod ionic_rdma")?;
        load(&mut rig)?;
        check(&mut rig, &format!("rmmod and modprobe ionic_rdma, round {round}"))?;
        released(&mut rig, &idle, &format!("rmmod and modprobe ionic_rdma, round {round}"))?;
    }

    for method in ["flr", "bus"] {
        for round in 1..=5 {
            let after = format!("{method} reset with RDMA loaded, round {round}");
            // Every other time, while programs hold objects of the device.
            let held = round % 2 == 0;
            if held {
                hold(&mut rig, &idle)?;
            }
            rig.nic(&format!("cd -P /sys/class/net/{{nic}}/device && echo {method} >reset_method && echo 1 >reset"))?;
            check(&mut rig, &after)?;
            if held {
                kill_holders(&mut rig)?;
            }
            released(&mut rig, &idle, &after)?;
        }
    }

    rig.ok("rmmod ionic_rdma && rmmod ionic")?;
    rig.up()?;
    load(&mut rig)?;
    check(&mut rig, "rmmod and modprobe of both drivers")?;
    drivers_content(&mut rig)?;

    for round in 1..=2 {
        hold(&mut rig, &idle)?;
        rig.reboot()?;
        rig.up()?;
        load(&mut rig)?;
        check(&mut rig, &format!("a reboot with RDMA loaded, round {round}"))?;
        released(&mut rig, &idle, &format!("a reboot with RDMA loaded, round {round}"))?;
    }
    transfers::functional(&mut rig, 'A')?;
    rig.ok("rmmod ionic_rdma")?;
    drivers_content(&mut rig)?;
    rig.stop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ibv_devinfo_says_is_read() {
        let text = "hca_id:\tionic_0\n\ttransport:\t\t\tInfiniBand (0)\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tactive_mtu:\t\t1024 (3)\n\
                    \t\t\tphys_state:\t\tLINK_UP (5)\n\t\t\tGID[  0]:\t\tfe80::1d:97ff:fe77:5d6, RoCE v2\n\t\t\tGID[  1]:\t\t::ffff:192.168.200.2, RoCE v2\n";
        let info = parse(text).unwrap();
        assert_eq!(
            (info.name.as_str(), info.state.as_str(), info.active_mtu.as_str()),
            ("ionic_0", "PORT_ACTIVE", "1024")
        );
        let addresses = "2: eth0    inet 192.168.200.2/24 scope global eth0\\       valid_lft forever preferred_lft forever\n\
                         2: eth0    inet6 fe80::1d:97ff:fe77:5d6/64 scope link \\       valid_lft forever\n";
        assert_eq!(info.gids, expected_gids(addresses));
        assert!(parse("").is_err());
        assert!(parse(&text.replace("ionic_0", "ionic_0\nhca_id:\tionic_1")).is_err());
    }
}
