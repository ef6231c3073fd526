//! TAP interfaces against the host's own network stack, in a network namespace of their own (lane `tap`).
//!
//! `main` moves the process into the namespace while it has one thread only; the tests, and the servers that they start,
//! inherit it. Where the machine does not allow that, the reason is printed and nothing is run.
#![allow(unsafe_code)] // one unshare

mod common;

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use common::{Scratch, Server, TIMEOUT};
use ernic::tap::{MAX_FRAME, Tap, TapError};
use etherparse::{ArpOperation, EtherType, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{getegid, geteuid},
    thread::{UnshareFlags, unshare_unsafe},
};

/// The station that the tests play at the far end of the TAP.
const PEER: [u8; 6] = [0x02, 0x1d, 0, 0, 0, 0x77];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = geteuid().is_root();
    if let Err(reason) = own_network() {
        println!("SKIPPED: {reason}");
        return ExitCode::SUCCESS;
    }
    let mut trials = vec![
        Trial::test("host_frames_come_out_whole", host_frames_come_out_whole),
        Trial::test("frames_reach_the_host", frames_reach_the_host),
        Trial::test("jumbo_frames_pass_both_ways", jumbo_frames_pass_both_ways),
        Trial::test("a_new_interface_is_up_and_goes_with_us", a_new_interface_is_up_and_goes_with_us),
        Trial::test("an_existing_interface_is_left_as_it_is", an_existing_interface_is_left_as_it_is),
        Trial::test(
            "frames_for_an_interface_that_is_down_are_counted",
            frames_for_an_interface_that_is_down_are_counted,
        ),
        Trial::test("a_deleted_interface_is_an_error_once_touched", a_deleted_interface_is_an_error_once_touched),
        Trial::test("refusals_say_what_to_do", refusals_say_what_to_do),
        Trial::test("the_server_attaches_and_lets_go", the_server_attaches_and_lets_go),
    ];
    if root {
        // Only root can become somebody who may not.
        trials.push(Trial::test("the_server_without_permission_says_so", the_server_without_permission_says_so));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Moves into a new network namespace: as root directly, as anybody else inside a new user namespace.
fn own_network() -> Result<(), String> {
    let (uid, gid) = (geteuid(), getegid());
    // SAFETY: no descriptor table is unshared, and this process has no other thread yet.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => {}
        Err(Errno::PERM) => {
            // SAFETY: as above.
            unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
                .map_err(|error| format!("no network namespace without root, and no user namespace: {error}"))?;
            for (file, text) in [
                ("setgroups", "deny".to_owned()),
                ("uid_map", format!("0 {} 1", uid.as_raw())),
                ("gid_map", format!("0 {} 1", gid.as_raw())),
            ] {
                fs::write(format!("/proc/self/{file}"), text)
                    .map_err(|error| format!("user namespace, {file}: {error}"))?;
            }
        }
        Err(error) => return Err(format!("no network namespace: {error}")),
    }
    ip("link set lo up")
        .map_err(|error| format!("`ip` (package iproute2) is needed: {}", error.message().unwrap_or_default()))?;
    match Tap::open("probe0") {
        Ok(_) => Ok(()),
        Err(error @ (TapError::NoDriver { .. } | TapError::NoAccess { .. } | TapError::NotAllowed { .. })) => {
            Err(error.to_string())
        }
        Err(error) => Err(format!("TAP does not work here: {error}")),
    }
}

/// Runs `ip` and returns what it prints.
fn ip(arguments: &str) -> Result<String, Failed> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if !output.status.success() {
        return Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether `ip` shows the interface, and as up.
fn state(name: &str) -> Option<bool> {
    ip(&format!("-o link show dev {name}"))
        .ok()
        .map(|line| line.split(['<', '>']).nth(1).unwrap_or("").split(',').any(|flag| flag == "UP"))
}

/// An interface with the host at 10.9.`net`.1 and, behind it, the test at 10.9.`net`.2.
fn segment(name: &str, net: u8) -> Result<Tap, Failed> {
    let tap = Tap::open(name)?;
    ip(&format!("addr add 10.9.{net}.1/24 dev {name}"))?;
    Ok(tap)
}

/// The next ARP or IPv4 frame from the host; what it says of itself in IPv6 is passed over.
fn next(tap: &mut Tap) -> Result<Vec<u8>, Failed> {
    let mut buffer = vec![0; MAX_FRAME];
    loop {
        match tap.read(&mut buffer)? {
            Some(length) => {
                let frame = &buffer[..length];
                if [EtherType::ARP.0, EtherType::IPV4.0].iter().any(|t| frame[12..14] == t.to_be_bytes()) {
                    return Ok(frame.to_vec());
                }
            }
            None => wait(tap)?,
        }
    }
}

fn wait(tap: &Tap) -> Result<(), Failed> {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs().try_into()?, tv_nsec: 0 };
    match poll(&mut [PollFd::new(tap, PollFlags::IN)], Some(&timeout))? {
        0 => Err("no frame from the host".into()),
        _ => Ok(()),
    }
}

/// Answers the host's question for 10.9.`net`.2, and returns the host's Ethernet address.
fn answer_arp(tap: &mut Tap, net: u8) -> Result<[u8; 6], Failed> {
    let question = next(tap)?;
    let Some(NetSlice::Arp(arp)) = SlicedPacket::from_ethernet(&question)?.net else {
        return Err(format!("no ARP first: {question:02x?}").into());
    };
    assert_eq!(question[..6], [0xff; 6]);
    assert_eq!(arp.operation(), ArpOperation::REQUEST);
    assert_eq!(arp.sender_protocol_addr(), [10, 9, net, 1]);
    assert_eq!(arp.target_protocol_addr(), [10, 9, net, 2]);
    let host: [u8; 6] = arp.sender_hw_addr().try_into()?;

    let mut answer = Vec::new();
    answer.extend(host);
    answer.extend(PEER);
    answer.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2]);
    answer.extend(PEER);
    answer.extend([10, 9, net, 2]);
    answer.extend(host);
    answer.extend([10, 9, net, 1]);
    answer.resize(60, 0);
    assert!(tap.write(&answer)?);
    Ok(host)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from(i % 251).unwrap_or(0)).collect()
}

/// A datagram from the host's own socket: ARP first, then the frame, byte for byte and with its checksums right.
fn outward(name: &str, net: u8, length: usize, mtu: Option<u16>) -> Result<(), Failed> {
    let mut tap = segment(name, net)?;
    if let Some(mtu) = mtu {
        ip(&format!("link set {name} mtu {mtu}"))?;
    }
    let socket = UdpSocket::bind((Ipv4Addr::new(10, 9, net, 1), 5000))?;
    socket.send_to(&pattern(length), (Ipv4Addr::new(10, 9, net, 2), 6000))?;
    let host = answer_arp(&mut tap, net)?;

    let frame = next(&mut tap)?;
    assert_eq!(frame.len(), 14 + 20 + 8 + length);
    assert_eq!(frame[..6], PEER);
    assert_eq!(frame[6..12], host);
    let packet = SlicedPacket::from_ethernet(&frame)?;
    let (Some(NetSlice::Ipv4(ipv4)), Some(TransportSlice::Udp(udp))) = (&packet.net, &packet.transport) else {
        return Err(format!("no datagram: {packet:?}").into());
    };
    let header = ipv4.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    assert_eq!((udp.source_port(), udp.destination_port()), (5000, 6000));
    assert_eq!(udp.payload(), pattern(length));
    assert_eq!(
        udp.checksum(),
        udp.to_header().calc_checksum_ipv4(&header, udp.payload())?,
        "complete, not left to a NIC"
    );
    Ok(())
}

/// A frame of ours is read from the host's own socket.
fn inward(name: &str, net: u8, length: usize, mtu: Option<u16>) -> Result<(), Failed> {
    let mut tap = segment(name, net)?;
    if let Some(mtu) = mtu {
        ip(&format!("link set {name} mtu {mtu}"))?;
    }
    let socket = UdpSocket::bind((Ipv4Addr::new(10, 9, net, 1), 5000))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    // The host's own address comes from its question for ours.
    socket.send_to(b"?", (Ipv4Addr::new(10, 9, net, 2), 6000))?;
    let host = answer_arp(&mut tap, net)?;

    let mut frame = Vec::new();
    PacketBuilder::ethernet2(PEER, host)
        .ipv4([10, 9, net, 2], [10, 9, net, 1], 64)
        .udp(6000, 5000)
        .write(&mut frame, &pattern(length))?;
    assert!(tap.write(&frame)?);
    let mut buffer = vec![0; MAX_FRAME];
    let (received, from) = socket.recv_from(&mut buffer)?;
    assert_eq!(buffer[..received], pattern(length));
    assert_eq!(from.to_string(), format!("10.9.{net}.2:6000"));
    assert_eq!(tap.dropped(), 0);
    Ok(())
}

fn host_frames_come_out_whole() -> Result<(), Failed> {
    outward("et1", 1, 1400, None)
}

fn frames_reach_the_host() -> Result<(), Failed> {
    inward("et2", 2, 1400, None)
}

fn jumbo_frames_pass_both_ways() -> Result<(), Failed> {
    outward("et3", 3, 8900, Some(9000))?;
    inward("et4", 4, 8900, Some(9000))
}

fn a_new_interface_is_up_and_goes_with_us() -> Result<(), Failed> {
    assert_eq!(state("et5"), None);
    let mut tap = Tap::open("et5")?;
    assert_eq!(state("et5"), Some(true));
    assert_eq!(tap.name(), "et5");
    // Non-blocking: with nothing to read, an answer at once. The host may say something in IPv6 first.
    let mut buffer = vec![0; MAX_FRAME];
    while tap.read(&mut buffer)?.is_some() {}
    drop(tap);
    assert_eq!(state("et5"), None);
    Ok(())
}

fn an_existing_interface_is_left_as_it_is() -> Result<(), Failed> {
    ip("tuntap add dev et6 mode tap")?;
    assert_eq!(state("et6"), Some(false));
    let tap = Tap::open("et6")?;
    assert_eq!(state("et6"), Some(false), "not brought up");
    drop(tap);
    assert_eq!(state("et6"), Some(false), "still there");
    ip("link del et6")?;
    Ok(())
}

fn frames_for_an_interface_that_is_down_are_counted() -> Result<(), Failed> {
    let mut tap = Tap::open("et7")?;
    ip("link set et7 down")?;
    assert!(!tap.write(&[0; 60])?);
    assert!(!tap.write(&[0; 60])?);
    assert_eq!(tap.dropped(), 2);
    ip("link set et7 up")?;
    assert!(tap.write(&[0; 60])?);
    assert!(!tap.write(&[0; 5])?, "no Ethernet header");
    assert_eq!(tap.dropped(), 3);
    Ok(())
}

fn a_deleted_interface_is_an_error_once_touched() -> Result<(), Failed> {
    let mut tap = Tap::open("et8")?;
    ip("link del et8")?;
    let mut buffer = vec![0; MAX_FRAME];
    for result in [tap.read(&mut buffer).err(), tap.write(&[0; 60]).err()] {
        let error = result.ok_or("no error")?;
        assert!(matches!(error, TapError::Gone { .. }), "{error:?}");
        assert!(error.to_string().starts_with("--tap: 'et8': the interface is gone ("), "{error}");
    }
    Ok(())
}

fn refusals_say_what_to_do() -> Result<(), Failed> {
    let held = Tap::open("et9")?;
    let error = Tap::open("et9").err().ok_or("attached twice")?;
    assert_eq!(error.to_string(), "--tap: 'et9': another process is attached to it: give each server a TAP of its own");
    drop(held);
    let error = Tap::open("lo").err().ok_or("attached to lo")?;
    assert_eq!(
        error.to_string(),
        "--tap: 'lo': it exists and is not a TAP interface with one queue: choose another name"
    );
    Ok(())
}

fn the_server_attaches_and_lets_go() -> Result<(), Failed> {
    let scratch = Scratch::new();
    for (arguments, name) in [(["-T", "et10"], "et10"), (["--tap", "et11"], "et11")] {
        let mut server = Server::start(&scratch, &arguments);
        server.ready();
        assert_eq!(state(name), Some(true));
        assert_eq!(server.terminate().code(), Some(0));
        assert_eq!(state(name), None);
    }
    Ok(())
}

fn the_server_without_permission_says_so() -> Result<(), Failed> {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["-T", "et12"]);
    command.uid(65534).gid(65534);
    let (code, line) = common::one_error(command);
    assert_eq!(code, Some(1));
    assert!(line.starts_with("Error: --tap: 'et12': no permission to "), "{line}");
    assert!(!scratch.socket().exists());
    Ok(())
}
