//! `ernic status` and `ernic link`: questions to a server that runs.

use std::{
    fmt::{self, Write as _},
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};

use crate::{
    control::{self, Refused, Request, S3, Status},
    options::{LinkState, Options},
    recent::Line,
};

/// How long a server may take; it answers between two turns of its loop.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const MAX_ANSWER: u64 = 1 << 20;

/// `ernic status`: prints on standard output how the server is.
pub fn status(options: &Options, json: bool) -> anyhow::Result<()> {
    let socket = options.absolute_socket();
    let answer = ask(&socket, Request::Status)?;
    let status: Status = serde_json::from_str(&answer).with_context(|| unknown(&socket))?;
    if json {
        return print(&answer);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    print(&report(&status, now))
}

/// `ernic link`: plugs in or pulls the guest's cable, and says so on standard output.
pub fn link(options: &Options, state: LinkState) -> anyhow::Result<()> {
    ask(&options.absolute_socket(), Request::Link(state))?;
    print(&format!("link {}\n", state.name()))
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the answer"),
    }
}

/// Asks the server at `socket`; the answer is a line of JSON that is no refusal.
fn ask(socket: &Path, request: Request) -> anyhow::Result<String> {
    let path = control::path(socket);
    let shown = path.display();
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            bail!("no server listens at {shown}: start one, or name the socket of another with --socket")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot connect to {shown}")),
    };
    let mut answer = String::new();
    let exchanged = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(request.line().as_bytes()))
        .and_then(|()| stream.take(MAX_ANSWER).read_to_string(&mut answer));
    match exchanged {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            bail!("the server at {shown} does not answer within {} s", PATIENCE.as_secs())
        }
        Err(error) => return Err(error).with_context(|| format!("the server at {shown} does not answer")),
    }
    if let Ok(Refused { error }) = serde_json::from_str(&answer) {
        bail!("the server at {shown} refuses: {error}");
    }
    if !answer.ends_with('\n') {
        bail!(unknown(socket));
    }
    Ok(answer)
}

fn unknown(socket: &Path) -> String {
    format!("the server at {} answers what this ernic does not know: is it of another version?", socket.display())
}

/// The status for people. `now` is the time since 1970.
fn report(status: &Status, now: Duration) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut text, status, now);
    text
}

fn write_report(out: &mut String, status: &Status, now: Duration) -> fmt::Result {
    let Status { version, pid, uptime_s, socket, nic, rdma, s3, errors } = status;
    let uptime = age(*uptime_s);
    writeln!(out, "ernic {version}, process {pid}, up {uptime}, at {socket}")?;
    let guest = match (nic.guest_attached, nic.driver_attached) {
        (false, _) => "none",
        (true, false) => "attached, its driver has not set the NIC up",
        (true, true) => "attached, its driver has set the NIC up",
    };
    writeln!(out, "guest   {guest}")?;
    writeln!(out, "nic     {} mac {} link {} mtu {}", nic.pci_id, nic.mac, nic.link, nic.mtu)?;
    for (what, traffic) in [("sent", nic.sent), ("received", nic.received)] {
        let control::Traffic { frames, bytes, lost } = traffic;
        writeln!(out, "        guest {what} {frames} frames, {bytes} bytes; {lost} lost")?;
    }
    writeln!(out, "        {} interrupts, {} errors of the guest's driver", nic.interrupts, nic.guest_errors)?;
    writeln!(
        out,
        "rdma    {} memory regions, {} queue pairs, {} completion queues, {} event queues, {} address handles",
        rdma.mrs, rdma.qps, rdma.cqs, rdma.eqs, rdma.ahs
    )?;
    writeln!(
        out,
        "        GET {} with {} bytes, PUT {} with {} bytes; {} under way",
        rdma.reads, rdma.bytes_read, rdma.writes, rdma.bytes_written, rdma.active
    )?;
    writeln!(
        out,
        "        {} work requests with {} bytes, {} failed",
        rdma.work_requests, rdma.work_bytes, rdma.work_failed
    )?;
    match s3 {
        None => writeln!(out, "s3      none")?,
        Some(S3 { url, bucket, connections, waiting, requests, objects, bytes, capacity, uploads }) => {
            writeln!(out, "s3      bucket '{bucket}' at {url}")?;
            writeln!(out, "        {objects} objects, {bytes} of {capacity} bytes, {uploads} uploads in progress")?;
            writeln!(out, "        {connections} connections, {waiting} waiting; {requests} requests so far")?;
        }
    }
    if errors.is_empty() {
        return writeln!(out, "errors  none");
    }
    for (i, Line { unix_ms, level, target, message }) in errors.iter().enumerate() {
        let head = if i == 0 { "errors" } else { "" };
        let ago = age(now.saturating_sub(Duration::from_millis(*unix_ms)).as_secs());
        // What a guest has a say in must not move the cursor.
        let message: String =
            message.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        writeln!(out, "{head:7} {ago} ago {level} {target}: {}", message.trim_start())?;
    }
    Ok(())
}

/// A time in its two largest units.
fn age(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Nic, Rdma, Traffic};

    fn status() -> Status {
        Status {
            version: "1.2.3".into(),
            pid: 4,
            uptime_s: 3_725,
            socket: "/x/y.sock".into(),
            nic: Nic {
                guest_attached: true,
                driver_attached: false,
                link: "down".into(),
                mac: "02:1d:00:00:00:01".into(),
                pci_id: "1dd8:1002".into(),
                mtu: 1500,
                sent: Traffic { frames: 1, bytes: 60, lost: 2 },
                received: Traffic { frames: 3, bytes: 180, lost: 0 },
                interrupts: 5,
                guest_errors: 6,
            },
            rdma: Rdma {
                mrs: 7,
                qps: 8,
                cqs: 9,
                eqs: 10,
                ahs: 11,
                active: 1,
                reads: 12,
                bytes_read: 13,
                writes: 14,
                bytes_written: 15,
                work_requests: 16,
                work_failed: 17,
                work_bytes: 18,
            },
            s3: Some(S3 {
                url: "http://192.168.200.1:9000/".into(),
                bucket: "ernic".into(),
                connections: 2,
                waiting: 0,
                requests: 99,
                objects: 3,
                bytes: 4096,
                capacity: 1 << 20,
                uploads: 1,
            }),
            errors: vec![
                Line {
                    unix_ms: 1_000_000,
                    level: "WARN".into(),
                    target: "ernic_emu::x".into(),
                    message: "a\u{1b}b".into(),
                },
                Line { unix_ms: 1_059_999, level: "ERROR".into(), target: "ernic".into(), message: " error=c".into() },
            ],
        }
    }

    #[test]
    fn the_report_says_everything() {
        let expected = "\
ernic 1.2.3, process 4, up 1 h 2 min, at /x/y.sock
guest   attached, its driver has not set the NIC up
nic     1dd8:1002 mac 02:1d:00:00:00:01 link down mtu 1500
        guest sent 1 frames, 60 bytes; 2 lost
        guest received 3 frames, 180 bytes; 0 lost
        5 interrupts, 6 errors of the guest's driver
rdma    7 memory regions, 8 queue pairs, 9 completion queues, 10 event queues, 11 address handles
        GET 12 with 13 bytes, PUT 14 with 15 bytes; 1 under way
        16 work requests with 18 bytes, 17 failed
s3      bucket 'ernic' at http://192.168.200.1:9000/
        3 objects, 4096 of 1048576 bytes, 1 uploads in progress
        2 connections, 0 waiting; 99 requests so far
errors  1 min 1 s ago WARN ernic_emu::x: a\u{fffd}b
        1 s ago ERROR ernic: error=c
";
        assert_eq!(report(&status(), Duration::from_millis(1_061_000)), expected);
        let quiet = Status { s3: None, errors: Vec::new(), ..status() };
        let report = report(&quiet, Duration::ZERO);
        assert!(report.ends_with("\ns3      none\nerrors  none\n"), "{report}");
    }

    #[test]
    fn the_answer_reads_back() {
        let line = control::json(&status());
        assert_eq!(serde_json::from_str::<Status>(&line).unwrap(), status());
        assert!(serde_json::from_str::<Refused>(&line).is_err(), "no answer is taken for a refusal");
    }

    #[test]
    fn ages() {
        let ages = [0, 59, 60, 3599, 3600, 86_399, 86_400, 200_000].map(age);
        assert_eq!(ages, ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "23 h 59 min", "1 d 0 h", "2 d 7 h"]);
    }
}
