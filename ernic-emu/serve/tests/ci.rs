//! The real binary once per documented spelling of its options (lane `s3-ci`): the store and endpoint it reports, the
//! addresses, the socket's life, and that malformed options are refused before the socket exists.

mod common;

use std::{
    collections::HashSet,
    fs,
    io::{ErrorKind, Read},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use common::{Scratch, Server, one_error, wait};
use ernic_emu::vfio::client::Client;
use pcap_file::{DataLink, pcap::PcapReader};
use rustix::process::{Signal, kill_process};

/// Starts a server, finds every text in its log, and ends it; the socket must be there in between, and not after.
fn serves(arguments: &[&str], texts: &[&str]) {
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, arguments);
    server.ready();
    for text in texts {
        server.line(text);
    }
    assert!(fs::metadata(scratch.socket()).expect("a socket").file_type().is_socket(), "{arguments:?}");
    assert_eq!(server.terminate().code(), Some(0), "{arguments:?}");
    assert!(!scratch.socket().exists(), "{arguments:?}");
    assert!(!server.whole_log().iter().any(|line| line.contains("ERROR")), "{:#?}", server.whole_log());
}

const DEFAULT_LINE: &str = "s3 bucket 'ernic' 268435456 bytes at http://192.168.200.1:9000/ mac 02:53:c0:a8:c8:01";

#[test]
fn backends() {
    for arguments in [&[][..], &["-b", "s3"], &["-bs3"], &["--backend", "s3"], &["--backend=s3"], &["-b", "s3:dhcp=on"]]
    {
        serves(arguments, &[DEFAULT_LINE, "s3 objects 256 maxpart 268435456 bytes dhcp on etag md5"]);
    }
    serves(&["-b", "none"], &["no backend: nothing answers on the wire"]);
}

#[test]
fn s3_options() {
    for (options, texts) in [
        (
            "s3:size=1G,bucket=bench",
            &["s3 bucket 'bench' 1073741824 bytes at http://192.168.200.1:9000/ mac 02:53:c0:a8:c8:01"][..],
        ),
        (
            "s3:ip=10.0.0.5,port=8080",
            &["s3 bucket 'ernic' 268435456 bytes at http://10.0.0.5:8080/ mac 02:53:0a:00:00:05"],
        ),
        ("s3:objects=16777216,maxpart=5GiB,dhcp=off", &["s3 objects 16777216 maxpart 5368709120 bytes dhcp off"]),
        ("s3:etag=md5", &["s3 objects 256 maxpart 268435456 bytes dhcp on etag md5"]),
        ("s3:etag=crc64nvme", &["s3 objects 256 maxpart 268435456 bytes dhcp on etag crc64nvme"]),
        ("s3:objects=1", &["s3 objects 1 maxpart 268435456 bytes dhcp on"]),
        ("s3:bucket=a.b-3", &["s3 bucket 'a.b-3' 268435456 bytes at "]),
    ] {
        serves(&["-b", options], texts);
    }
}

#[test]
fn sizes() {
    for (size, bytes) in [
        ("1", "1"),
        ("64K", "65536"),
        ("64k", "65536"),
        ("64KiB", "65536"),
        ("3M", "3145728"),
        ("3MiB", "3145728"),
        ("2G", "2147483648"),
        ("2GiB", "2147483648"),
        ("1T", "1099511627776"),
        ("1TiB", "1099511627776"),
    ] {
        serves(
            &["-b", &format!("s3:size={size},maxpart={size}")],
            &[&format!("s3 bucket 'ernic' {bytes} bytes at "), &format!(" maxpart {bytes} bytes ")],
        );
    }
}

#[test]
fn nic_options() {
    serves(&["-m", "02:aa:bb:cc:dd:ee"], &["nic 1dd8:1002 mac 02:aa:bb:cc:dd:ee mtu up to 9000 "]);
    serves(&["--mac=02-AA-BB-CC-DD-EE"], &["nic 1dd8:1002 mac 02:aa:bb:cc:dd:ee "]);
    serves(&["--device-id", "1002"], &["nic 1dd8:1002 "]);
    serves(&["--device-id=100a"], &["nic 1dd8:100a "]);
    for mtu in ["68", "1500", "9198"] {
        serves(&["--mtu", mtu], &[&format!(" mtu up to {mtu} ")]);
    }
}

#[test]
fn impairments() {
    serves(&["--rdma-rate", "100M"], &["rdma rate 104857600 bytes/s for all transfers together"]);
    serves(&["--rdma-rate=1"], &["rdma rate 1 bytes/s"]);
    serves(&["--fault", "decline"], &["rdma faults on demand: decline"]);
    serves(
        &["--fault=fail@3,short@every:2,no-reply@1,delay=250ms,link-down=2s@4", "--rdma-rate", "2KiB"],
        &["rdma faults on demand: fail@3, short@every:2, no-reply@1, delay=250ms, link-down=2s@4", "rdma rate 2048 "],
    );
    // Nothing of it where nothing of it was asked for.
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    assert_eq!(server.terminate().code(), Some(0));
    assert!(!server.whole_log().iter().any(|line| line.contains("rdma rate") || line.contains("fault")));
}

#[test]
fn log_options() {
    for arguments in
        [&["-L", "debug"][..], &["--log-level", "info,ernic_emu=trace"], &["-v"], &["--verbose", "-v"], &["-vv"]]
    {
        serves(arguments, &[DEFAULT_LINE]);
    }
    // The line as a program reads it.
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &["--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(&server.line("s3 bucket")).expect("JSON");
    assert_eq!((line["message"].as_str(), line["level"].as_str()), (Some(DEFAULT_LINE), Some("INFO")));
    server.ready();
    assert_eq!(server.terminate().code(), Some(0));
    for line in server.whole_log() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    }
    // The environment counts where no option is given.
    for (option, expected) in [(None, false), (Some("info"), true)] {
        let scratch = Scratch::new();
        let mut command = scratch.command(&[]);
        command.env("ERNIC_LOG_LEVEL", "warn");
        if let Some(level) = option {
            command.args(["-L", level]);
        }
        let mut server = Server::spawn(command);
        while UnixStream::connect(scratch.socket()).is_err() {
            thread::yield_now();
        }
        assert_eq!(server.terminate().code(), Some(0));
        assert_eq!(server.whole_log().iter().any(|line| line.contains(DEFAULT_LINE)), expected, "{option:?}");
    }
}

#[test]
fn pcap_is_readable_from_start_to_end() {
    let scratch = Scratch::new();
    let file = scratch.path().join("wire.pcap");
    let mut server = Server::start(&scratch, &["--pcap", file.to_str().expect("UTF-8")]);
    server.ready();
    assert_eq!(server.terminate().code(), Some(0));
    let mut reader = PcapReader::new(fs::File::open(&file).expect("the recording")).expect("a recording");
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    assert!(reader.next_packet().is_none(), "nobody sent anything");
}

#[test]
fn socket_spellings_and_the_qemu_command() {
    let scratch = Scratch::new();
    let other = scratch.path().join("other.sock");
    let text = other.to_str().expect("UTF-8");
    for arguments in [&["-s", text][..], &["--socket", text], &[&format!("--socket={text}")]] {
        let mut server = Server::start(&scratch, arguments);
        let line = server.line("attach QEMU");
        assert!(
            line.contains("-object memory-backend-memfd,id=mem0,share=on,size=1G -machine q35,memory-backend=mem0")
        );
        let json = line.split('\'').nth(1).expect("the device in quotes");
        let device: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!((device["driver"].as_str(), device["socket"]["path"].as_str()), (Some("vfio-user-pci"), Some(text)));
        assert!(other.exists() && !scratch.socket().exists());
        assert_eq!(server.terminate().code(), Some(0));
    }
    // A relative path is relative to where the server was started; what it prints is not.
    let mut command = scratch.command(&["-s", "here.sock"]);
    command.current_dir(scratch.path());
    let mut server = Server::spawn(command);
    let line = server.line("attach QEMU");
    assert!(line.contains(&format!("\"path\":\"{}\"", scratch.path().join("here.sock").display())), "{line}");
}

#[test]
fn two_servers_have_addresses_of_their_own() {
    let scratch = Scratch::new();
    let mut macs = HashSet::new();
    let mut servers: Vec<_> = ["one.sock", "two.sock"]
        .map(|name| Server::start(&scratch, &["-s", scratch.path().join(name).to_str().expect("UTF-8")]))
        .into();
    for server in &mut servers {
        let line = server.line("nic 1dd8:1002 mac ");
        let mac = line.split(" mac ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
        assert!(mac.starts_with("02:1d:") && mac.len() == 17, "{mac}");
        macs.insert(mac.to_owned());
    }
    assert_eq!(macs.len(), 2);
}

#[test]
fn the_socket_is_its_users_alone() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 000; exec \"$0\"", env!("CARGO_BIN_EXE_ernic")])
        .env("XDG_RUNTIME_DIR", scratch.path())
        .env_remove("ERNIC_LOG_LEVEL")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = Server::spawn(command);
    server.ready();
    assert_eq!(fs::metadata(scratch.socket()).expect("a socket").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_stale_socket_is_replaced() {
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.socket()).expect("a socket"));
    assert!(scratch.socket().exists());
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    UnixStream::connect(scratch.socket()).expect("it is the server's now");
    // A server that was killed leaves one behind, too.
    server.kill();
    assert!(scratch.socket().exists());
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn a_live_socket_is_refused() {
    let scratch = Scratch::new();
    let mut first = Server::start(&scratch, &[]);
    first.ready();
    let (code, line) = one_error(scratch.command(&[]));
    assert_eq!(code, Some(1));
    assert!(line.contains(scratch.socket().to_str().expect("UTF-8")), "{line}");
    UnixStream::connect(scratch.socket()).expect("the first still serves");
    assert_eq!(first.terminate().code(), Some(0));
    assert!(!scratch.socket().exists());
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let scratch = Scratch::new();
    fs::write(scratch.socket(), "mine").expect("a file");
    let (code, line) = one_error(scratch.command(&[]));
    assert_eq!(code, Some(1));
    assert!(line.contains(scratch.socket().to_str().expect("UTF-8")), "{line}");
    assert_eq!(fs::read_to_string(scratch.socket()).expect("still there"), "mine");
}

#[test]
fn signals_end_it_with_and_without_a_client() {
    for signal in [Signal::INT, Signal::TERM] {
        for attached in [false, true] {
            let scratch = Scratch::new();
            let mut server = Server::start(&scratch, &[]);
            server.ready();
            let client = attached.then(|| UnixStream::connect(scratch.socket()).expect("the server listens"));
            assert_eq!(server.signal(signal).code(), Some(0), "{signal:?}, attached: {attached}");
            assert!(!scratch.socket().exists());
            if let Some(mut client) = client {
                // Reset, where the server had not taken it in yet.
                match client.read(&mut [0; 1]) {
                    Ok(0) => {}
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                    other => panic!("the client does not see the end: {other:?}"),
                }
            }
        }
    }
}

/// A driver's device command is some hundred posted writes (an identify buffer is 478) and then a read. While the server does
/// something else they pile up, and arrive in one piece, more than it handles in one turn.
#[test]
fn a_read_behind_a_burst_of_posted_writes_is_answered() {
    const CONFIG: u32 = 7;
    const CACHE_LINE_SIZE: u64 = 0x0c;
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    let mut client = Client::connect(scratch.socket()).expect("the server takes a client");
    client.set_timeout(common::TIMEOUT);
    for writes in [255_u32, 256, 257, 1000, 3000] {
        kill_process(server.pid(), Signal::STOP).expect("the server runs");
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                for n in 0..writes {
                    let value = [u8::try_from(n % 251).expect("a byte")];
                    client.region_write_posted(CONFIG, CACHE_LINE_SIZE, &value).expect("room in the socket");
                }
                client.region_read_uint::<1>(CONFIG, CACHE_LINE_SIZE)
            });
            // Not needed for the result, but for the writes to come in one piece.
            thread::sleep(Duration::from_millis(100));
            kill_process(server.pid(), Signal::CONT).expect("the server is stopped");
            let value = reading.join().expect("the client").expect("an answer to the read behind the writes");
            assert_eq!(value, u64::from((writes - 1) % 251), "the last of {writes} writes");
        });
    }
}

#[test]
fn a_lost_reader_of_the_log_does_not_end_it() {
    let scratch = Scratch::new();
    let mut child = scratch.command(&["-L", "trace"]).spawn().expect("the server starts");
    drop(child.stderr.take());
    while UnixStream::connect(scratch.socket()).is_err() {
        assert!(child.try_wait().expect("a child of ours").is_none(), "it ended");
        thread::yield_now();
    }
    kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn malformed_options_are_refused_before_the_socket_exists() {
    let long = format!("/{}", "x".repeat(110));
    // Arguments, and what the line must name: the option and the value.
    let table: &[(&[&str], &[&str])] = &[
        (&["--backend", "s3:size=bogus"], &["Error: s3 backend: bad size 'bogus'"]),
        (&["-b", "s3:size="], &["s3 backend: bad size ''"]),
        (&["-b", "s3:size=0"], &["s3 backend: bad size '0'", "zero"]),
        (&["-b", "s3:size=-1"], &["s3 backend: bad size '-1'"]),
        (&["-b", "s3:size=1.5G"], &["s3 backend: bad size '1.5G'"]),
        (&["-b", "s3:size=256MB"], &["s3 backend: bad size '256MB'"]),
        (&["-b", "s3:size=256 M"], &["s3 backend: bad size '256 M'"]),
        (&["-b", "s3:size=99999999999T"], &["s3 backend: bad size '99999999999T'", "2^64"]),
        (&["-b", "s3:maxpart=big"], &["s3 backend: bad maxpart 'big'"]),
        (&["-b", "s3:maxpart=0K"], &["s3 backend: bad maxpart '0K'"]),
        (&["-b", "s3:objects=0"], &["s3 backend: bad objects '0'"]),
        (&["-b", "s3:objects=16777217"], &["s3 backend: bad objects '16777217'"]),
        (&["-b", "s3:objects=many"], &["s3 backend: bad objects 'many'"]),
        (&["-b", "s3:bucket=ab"], &["s3 backend: bad bucket 'ab'"]),
        (&["-b", "s3:bucket=Upper"], &["s3 backend: bad bucket 'Upper'"]),
        (&["-b", "s3:bucket=-dash"], &["s3 backend: bad bucket '-dash'"]),
        (&["-b", "s3:bucket=dot."], &["s3 backend: bad bucket 'dot.'"]),
        (&["-b", "s3:bucket=under_score"], &["s3 backend: bad bucket 'under_score'"]),
        (
            &["-b", "s3:bucket=a123456789012345678901234567890123456789012345678901234567890123"],
            &["s3 backend: bad bucket 'a123", "3 to 63"],
        ),
        (&["-b", "s3:bucket=metrics"], &["s3 backend: bad bucket 'metrics'", "page of the server's own"]),
        (&["-b", "s3:bucket=minio"], &["s3 backend: bad bucket 'minio'", "page of the server's own"]),
        (&["-b", "s3:etag=sha256"], &["s3 backend: bad etag 'sha256'", "md5 or crc64nvme"]),
        (&["-b", "s3:etag="], &["s3 backend: bad etag ''"]),
        (&["--rdma-rate", "fast"], &["--rdma-rate: bad rate 'fast'"]),
        (&["--rdma-rate", "0"], &["--rdma-rate: bad rate '0'", "zero"]),
        (&["--rdma-rate", "1.5G"], &["--rdma-rate: bad rate '1.5G'"]),
        (&["--rdma-rate", "99999999999T"], &["--rdma-rate: bad rate '99999999999T'", "2^64"]),
        (&["--rdma-rate"], &["--rdma-rate: a value is missing"]),
        (&["--rdma-rate", "1M", "-b", "none"], &["--rdma-rate: ", "s3 backend"]),
        (&["--fault", "explode@3"], &["--fault: bad fault 'explode@3': use decline, fail, short"]),
        (&["--fault", "fail@0"], &["--fault: bad fault 'fail@0'"]),
        (&["--fault", "decline,delay"], &["--fault: bad fault 'delay': delay needs a time, as in delay=250ms"]),
        (&["--fault", "decline,"], &["--fault: bad fault ''"]),
        (&["--fault", "link-down=2h"], &["--fault: bad fault 'link-down=2h'"]),
        (&["--fault="], &["--fault: "]),
        (&["--fault", "decline", "--backend", "none"], &["--fault: ", "s3 backend"]),
        (&["--mtu", "1500", "status"], &["--mtu: does not go with 'status'"]),
        (&["status", "--mtu", "1500"], &["unknown option or argument '--mtu'"]),
        (&["link"], &["<STATE> is missing"]),
        (&["link", "sideways"], &["<STATE>: bad value 'sideways': use one of up, down"]),
        (&["stats"], &["'stats'"]),
        (&["-b", "s3:ip=300.1.1.1"], &["s3 backend: bad ip '300.1.1.1'"]),
        (&["-b", "s3:ip=::1"], &["s3 backend: bad ip '::1'"]),
        (&["-b", "s3:ip=0.0.0.0"], &["s3 backend: bad ip '0.0.0.0'"]),
        (&["-b", "s3:ip=239.1.2.3"], &["s3 backend: bad ip '239.1.2.3'"]),
        (&["-b", "s3:ip=192.168.200.0"], &["s3 backend: bad ip '192.168.200.0'"]),
        (&["-b", "s3:port=0"], &["s3 backend: bad port '0'"]),
        (&["-b", "s3:port=65536"], &["s3 backend: bad port '65536'"]),
        (&["-b", "s3:port=http"], &["s3 backend: bad port 'http'"]),
        (&["-b", "s3:dhcp=maybe"], &["s3 backend: bad dhcp 'maybe'"]),
        (&["-b", "s3:speed=11"], &["s3 backend: unknown option 'speed'"]),
        (&["-b", "s3:size=1M,size=2M"], &["s3 backend: option 'size' given twice", "size=2M"]),
        (&["-b", "s3:dhcp"], &["s3 backend: option 'dhcp' has no value"]),
        (&["-b", "s3:"], &["s3 backend: empty option"]),
        (&["-b", "s3:size=1M,,port=1"], &["s3 backend: empty option in 'size=1M,,port=1'"]),
        (&["-b", "none:size=1M"], &["none backend: ", "'size=1M'"]),
        (&["-b", "nvmeof"], &["--backend: unknown backend 'nvmeof'"]),
        (&["-b"], &["--backend: a value is missing"]),
        (&["-b", "s3", "-b", "none"], &["--backend: given more than once"]),
        (&["--mtu", "67"], &["--mtu: ", "'67'"]),
        (&["--mtu", "9199"], &["--mtu: ", "'9199'"]),
        (&["--mtu", "jumbo"], &["--mtu: ", "'jumbo'"]),
        (&["--mtu", "-1"], &["-1"]),
        (&["-m", "02:1d"], &["--mac: ", "'02:1d'"]),
        (&["--mac", "ff:ff:ff:ff:ff:ff"], &["--mac: ", "'ff:ff:ff:ff:ff:ff'"]),
        (&["--mac", "00:00:00:00:00:00"], &["--mac: ", "'00:00:00:00:00:00'"]),
        (&["--mac", "02:53:c0:a8:c8:01"], &["--mac: ", "'02:53:c0:a8:c8:01'"]),
        (&["--device-id", "1003"], &["--device-id: ", "'1003'"]),
        (&["-T", "much-too-long-name"], &["--tap: ", "'much-too-long-name'"]),
        (&["-T", "a b"], &["--tap: ", "'a b'"]),
        (&["--tap", ".."], &["--tap: ", "'..'"]),
        (&["--tap", "two\nlines"], &["--tap: ", r"'two\nlines'"]),
        (&["-L", "loud"], &["--log-level", "'loud'"]),
        (&["--log-level", "ernic=loud"], &["--log-level", "'ernic=loud'"]),
        (&["--log-format", "xml"], &["--log-format: ", "'xml'"]),
        (&["-s", &long], &["--socket: ", "xxx'", "107"]),
        (&["-s", "/"], &["--socket: ", "'/'"]),
        (&["--sokcet", "x"], &["'--sokcet'"]),
        (&["-x"], &["'-x'"]),
        (&["stray"], &["'stray'"]),
    ];
    for (arguments, texts) in table {
        let scratch = Scratch::new();
        let (code, line) = one_error(scratch.command(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {line}");
        for text in *texts {
            assert!(line.contains(text), "{arguments:?}: {line}");
        }
        assert!(fs::read_dir(scratch.path()).expect("a folder").next().is_none(), "{arguments:?} left something");
    }
    // The documented example, to the letter.
    let scratch = Scratch::new();
    let (_, line) = one_error(scratch.command(&["--backend", "s3:size=bogus"]));
    assert_eq!(line, "Error: s3 backend: bad size 'bogus'");
    // The environment is checked as the option is.
    let mut command = scratch.command(&[]);
    command.env("ERNIC_LOG_LEVEL", "loud");
    let (code, line) = one_error(command);
    assert_eq!(code, Some(2));
    assert!(line.contains("ERNIC_LOG_LEVEL") && line.contains("'loud'"), "{line}");
}

#[test]
fn what_cannot_start_says_why_and_leaves_nothing() {
    let scratch = Scratch::new();
    let missing = scratch.path().join("missing").join("file");
    let missing = missing.to_str().expect("UTF-8");
    for (arguments, option) in [(["--pcap", missing], "--pcap"), (["--socket", missing], "missing")] {
        let (code, line) = one_error(scratch.command(&arguments));
        assert_eq!(code, Some(1), "{line}");
        assert!(line.contains(option) && line.contains(missing), "{line}");
        assert!(fs::read_dir(scratch.path()).expect("a folder").next().is_none());
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let scratch = Scratch::new();
    for (argument, words) in [
        ("--help", &["Examples:", "ernic -s /run/vm1.sock", "--backend", "s3", "ERNIC_LOG_LEVEL", "Exit status"][..]),
        ("-h", &["Examples:", "--socket"]),
        ("--version", &["ernic ", env!("CARGO_PKG_VERSION")]),
        ("-V", &["ernic ", env!("CARGO_PKG_VERSION")]),
    ] {
        let output = scratch.command(&[argument]).output().expect("the server runs");
        assert_eq!(output.status.code(), Some(0), "{argument}");
        assert!(output.stderr.is_empty());
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        for word in words {
            assert!(text.contains(word), "{argument}: {word:?} in {text}");
        }
    }
    assert!(fs::read_dir(scratch.path()).expect("a folder").next().is_none());
}
