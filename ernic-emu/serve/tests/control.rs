//! A running server as its user sees it: `ernic status`, `ernic link`, the metrics page, faults on demand, over a guest that
//! is driven as Linux does.

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::Ipv4Addr,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use common::{Scratch, Server, TIMEOUT, one_error};
use ionic_abi::MrFlags;
use ionic_driver::{
    Bus, Config, GuestNet, GuestRam, Ionic, UserMem, Verbs, VfioUser, net::NetConfig, user::Placement, verbs::RegMr,
};
use rdma_token::{Token, Transport};
use serde_json::Value;

const ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);

type Net = GuestNet<VfioUser>;

/// A guest on the server's socket, with an address.
fn guest(scratch: &Scratch) -> Net {
    let ram = GuestRam::new(32 << 20, 1 << 32).expect("guest memory");
    let bus = VfioUser::connect(scratch.socket(), ram).expect("attached");
    let config = Config { queues: 1, tx_entries: 256, rx_entries: 256, ..Config::default() };
    let mut net = GuestNet::new(Ionic::attach(bus, config).expect("bound"), NetConfig::default()).expect("up");
    net.dhcp().expect("an address");
    net
}

/// Runs the program to its end, which must be a success that says nothing on standard error.
fn output(scratch: &Scratch, arguments: &[&str]) -> String {
    let output = scratch.command(arguments).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn status(scratch: &Scratch) -> Value {
    let text = output(scratch, &["status", "--json"]);
    assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("JSON")
}

fn control(scratch: &Scratch) -> PathBuf {
    ernic::control::path(&scratch.socket())
}

/// Waits until the driver has seen the link go up or down.
fn wait_for_link(net: &mut Net, up: bool) {
    net.wait_for("link", TIMEOUT, &mut |net| Ok((net.nic.running() == up).then_some(())))
        .expect("the driver hears of it");
}

/// The value of a line of the metrics page.
fn figure(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().expect("a number")
}

#[test]
fn a_server_without_a_guest() {
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &["-b", "s3:bucket=bench,size=1M,port=80", "--device-id", "100a"]);
    server.ready();
    let status = status(&scratch);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["pid"], server.pid().as_raw_nonzero().get());
    assert_eq!(status["socket"], scratch.socket().to_str().expect("UTF-8"));
    assert_eq!((&status["nic"]["guest_attached"], &status["nic"]["driver_attached"]), (&false.into(), &false.into()));
    assert_eq!((&status["nic"]["link"], &status["nic"]["pci_id"]), (&"up".into(), &"1dd8:100a".into()));
    assert_eq!(status["s3"]["url"], "http://192.168.200.1:80/");
    assert_eq!((&status["s3"]["bucket"], &status["s3"]["capacity"]), (&"bench".into(), &(1 << 20).into()));
    assert_eq!((&status["s3"]["objects"], &status["s3"]["connections"]), (&0.into(), &0.into()));
    assert_eq!(status["errors"], Value::Array(Vec::new()));
    let text = output(&scratch, &["status"]);
    for line in ["guest   none", "s3      bucket 'bench' at http://192.168.200.1:80/", "errors  none"] {
        assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
    }
    // The other spelling of the same, and of a path of one's own.
    let socket = scratch.socket();
    let socket = socket.to_str().expect("UTF-8");
    for arguments in [["status", "-s", socket], ["--socket", socket, "status"]] {
        assert!(output(&scratch, &arguments).starts_with("ernic "), "{arguments:?}");
    }
    assert_eq!(server.terminate().code(), Some(0));
    assert!(!control(&scratch).exists());

    let mut server = Server::start(&scratch, &["-b", "none"]);
    server.ready();
    assert_eq!(self::status(&scratch)["s3"], Value::Null);
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn a_guest_at_work_is_seen() {
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    let mut net = guest(&scratch);
    assert!(server.line("guest: driver up, mac ").ends_with(" mtu 1500"));
    let http = net.connect(ENDPOINT, 9000).expect("connected");
    let put = net.http_put(http, "/ernic/object", &[7; 5000]).expect("an answer");
    assert_eq!(put.status, 200);
    let status = status(&scratch);
    let (nic, s3) = (&status["nic"], &status["s3"]);
    assert_eq!(
        (&nic["guest_attached"], &nic["driver_attached"], &nic["mtu"]),
        (&true.into(), &true.into(), &1500.into())
    );
    assert_eq!((&s3["objects"], &s3["bytes"], &s3["requests"]), (&1.into(), &5000.into(), &1.into()));
    assert_eq!((&s3["connections"], &s3["waiting"]), (&1.into(), &0.into()));
    assert!(nic["sent"]["bytes"].as_u64().expect("a number") > 5000);
    assert!(nic["interrupts"].as_u64() > Some(0));
    assert_eq!(
        (&nic["sent"]["lost"], &nic["received"]["lost"], &nic["guest_errors"]),
        (&0.into(), &0.into(), &0.into())
    );

    // The same figures, one request later.
    let mut page = Vec::new();
    let answer = net.http_get(http, "/metrics", &mut |piece| page.extend_from_slice(piece)).expect("an answer");
    assert_eq!(answer.status, 200);
    let page = String::from_utf8(page).expect("UTF-8");
    for (name, value) in [
        ("ernic_nic_link_up", 1),
        ("ernic_nic_driver_attached", 1),
        (r#"ernic_nic_frames_lost_total{direction="to_guest"}"#, 0),
        (r#"ernic_nic_frames_lost_total{direction="from_guest"}"#, 0),
        (r#"ernic_nic_rdma_objects{kind="mr"}"#, 0),
        (r#"ernic_nic_guest_errors_total{kind="doorbells"}"#, 0),
        ("ernic_store_bytes", 5000),
        ("minio_api_rdma_read_ops_total", 0),
    ] {
        assert_eq!(figure(&page, name), value, "{name}");
    }
    for (name, least) in [
        (r#"ernic_nic_bytes_total{direction="from_guest"}"#, &nic["sent"]["bytes"]),
        (r#"ernic_nic_frames_total{direction="from_guest"}"#, &nic["sent"]["frames"]),
        (r#"ernic_nic_bytes_total{direction="to_guest"}"#, &nic["received"]["bytes"]),
        ("ernic_nic_interrupts_total", &nic["interrupts"]),
    ] {
        let least = least.as_u64().expect("a number");
        let now = figure(&page, name);
        assert!(now >= least && now < least + 10_000, "{name}: {now}, before {least}");
    }
    drop(net);
    server.line("the client detached");
    let status = self::status(&scratch);
    assert_eq!((&status["nic"]["guest_attached"], &status["nic"]["driver_attached"]), (&false.into(), &false.into()));
    assert_eq!(status["s3"]["objects"], 1, "objects stay");
}

#[test]
fn the_cable_is_pulled_and_plugged_in() {
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    let mut net = guest(&scratch);
    let http = net.connect(ENDPOINT, 9000).expect("connected");
    assert_eq!(net.http_put(http, "/ernic/object", b"before").expect("an answer").status, 200);
    for _ in 0..3 {
        assert_eq!(output(&scratch, &["link", "down"]), "link down\n");
        assert_eq!(output(&scratch, &["link", "down"]), "link down\n", "it may be down already");
        assert_eq!(status(&scratch)["nic"]["link"], "down");
        wait_for_link(&mut net, false);
        assert_eq!(output(&scratch, &["link", "up"]), "link up\n");
        assert_eq!(status(&scratch)["nic"]["link"], "up");
        wait_for_link(&mut net, true);
        let mut body = Vec::new();
        let got = net.http_get(http, "/ernic/object", &mut |piece| body.extend_from_slice(piece)).expect("an answer");
        assert_eq!((got.status, body.as_slice()), (200, &b"before"[..]), "the connection goes on");
    }
    assert_eq!(net.nic.stats.link_events, 6);
    assert_eq!(server.terminate().code(), Some(0));
    let log = server.whole_log();
    for text in [" link down", " link up"] {
        assert_eq!(log.iter().filter(|line| line.ends_with(text)).count(), 3, "{log:#?}");
    }
}

/// Real transfers: what the user sees of them, and that the rate holds.
#[test]
fn transfers_are_seen_and_slowed() {
    const SIZE: usize = 300_000;
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &["--rdma-rate", "4M", "-v", "-b", "s3:etag=crc64nvme"]);
    server.ready();
    let mut net = guest(&scratch);
    let mut verbs = Verbs::open(&mut net.nic).expect("RDMA");
    let memory = UserMem::new(net.nic.bus.ram(), 0x7f00_0000_0123, SIZE, Placement::Scattered).expect("memory");
    let rights = MrFlags::LOCAL_WRITE | MrFlags::REMOTE_READ | MrFlags::REMOTE_WRITE;
    let pd = verbs.create_pd();
    let mr = verbs.reg_mr(&mut net.nic, pd, &RegMr::all(&memory, rights)).expect("registered");
    let content: Vec<u8> = (0..SIZE).map(|i| u8::try_from(i % 251).expect("below 251")).collect();
    memory.write(0, &content);
    let http = net.connect(ENDPOINT, 9000).expect("connected");
    let (transport, gid, length) = (Transport::Rc, [0; 16], SIZE as u64);
    let token = Token { transport, qpn: 2, gid, rkey: mr.key, address: mr.va, length, port: 1, lid: 0 };
    let token: String = token.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let ask = |net: &mut Net, method: &str| {
        let head = format!(
            "{method} /ernic/object HTTP/1.1\r\nhost: ernic\r\ncontent-length: 0\r\nx-amz-rdma-token: {token}\r\n\r\n"
        );
        let answer = net.http(http, &head, &[], &mut |_| {}).expect("an answer");
        let header = |name| answer.header(name).unwrap_or_default();
        assert_eq!((answer.status, header("x-amz-rdma-bytes")), (200, "300000"), "{method}");
        assert!(header("etag").ends_with("-crc64nvme\""), "{answer:?}");
    };
    ask(&mut net, "PUT");
    memory.write(0, &vec![0; SIZE]);
    ask(&mut net, "GET");
    assert!(memory.content() == content && memory.intact());
    let rdma = status(&scratch)["rdma"].clone();
    for (name, value) in
        [("mrs", 1), ("reads", 1), ("bytes_read", SIZE), ("writes", 1), ("bytes_written", SIZE), ("active", 0)]
    {
        assert_eq!(rdma[name], value, "{name} in {rdma}");
    }
    let mut page = Vec::new();
    net.http_get(http, "/metrics", &mut |piece| page.extend_from_slice(piece)).expect("an answer");
    let page = String::from_utf8(page).expect("UTF-8");
    assert_eq!(figure(&page, r#"ernic_nic_rdma_objects{kind="mr"}"#), 1);
    assert_eq!(figure(&page, r#"ernic_rdma_bytes_total{operation="read"}"#), SIZE as u64);
    verbs.dereg_mr(&mut net.nic, mr.key).expect("given up");
    assert_eq!(status(&scratch)["rdma"]["mrs"], 0);
    assert_eq!(server.terminate().code(), Some(0));
    let log = server.whole_log();
    for operation in ["write", "read"] {
        let text =
            format!("rdma transfer operation=\"{operation}\" family=A rkey={:#x} address=0x7f0000000123", mr.key);
        let line = log.iter().find(|line| line.contains(&text)).unwrap_or_else(|| panic!("no {text} in {log:#?}"));
        assert!(line.contains(" length=300000 bytes=300000 verdict=\"ok\" micros="), "{line}");
        // 300,000 bytes at 4 MiB a second are 71.5 ms. The loop's clock is that of its turn, and it may be 2 ms late.
        let micros: u64 = line.rsplit('=').next().and_then(|micros| micros.parse().ok()).expect("microseconds");
        assert!(micros > 60_000, "{line}");
    }
}

/// Faults count transfers, and one begins where the client's memory is to be reached, whether or not it is there.
#[test]
fn faults_fire_in_their_turn_and_are_logged() {
    let scratch = Scratch::new();
    let faults = "link-down=50ms@1,decline@2,delay=20ms@3,no-reply@4";
    let mut server = Server::start(&scratch, &["--fault", faults, "-v"]);
    server.ready();
    let mut net = guest(&scratch);
    let http = net.connect(ENDPOINT, 9000).expect("connected");
    assert_eq!(net.http_put(http, "/ernic/object", &[1; 100]).expect("an answer").status, 200);
    // RC, some queue pair and GID, rkey 0x0badf00d of which there is no region, 100 bytes at 0x1000 (family A).
    let token = format!("01{:06}00{}0df0ad0b0010000000000000{}010000", 0, "00".repeat(16), "6400000000000000");
    assert_eq!(token.len(), 88);
    let request = format!("GET /ernic/object HTTP/1.1\r\nhost: ernic\r\nx-amz-rdma-token: {token}\r\n\r\n");
    let ask = |net: &mut Net| {
        let answer = net.http(http, &request, &[], &mut |_| {}).expect("an answer");
        (answer.status, answer.header("x-amz-rdma-reply").map(str::to_owned))
    };
    assert_eq!(ask(&mut net), (500, Some("500".into())));
    assert_eq!(net.nic.stats.link_events, 2, "the answer came when the link was up again");
    assert_eq!(ask(&mut net), (501, Some("501".into())));
    assert_eq!(ask(&mut net), (500, Some("500".into())));
    assert_eq!(ask(&mut net), (500, None));
    assert_eq!(ask(&mut net), (500, Some("500".into())));
    let rdma = &status(&scratch)["rdma"];
    assert_eq!((&rdma["reads"], &rdma["bytes_read"], &rdma["active"]), (&0.into(), &0.into(), &0.into()));
    assert_eq!(server.terminate().code(), Some(0));
    let log = server.whole_log();
    let fired: Vec<_> = log.iter().filter(|line| line.contains("fault on demand fault=")).collect();
    assert_eq!(fired.len(), 4, "{fired:#?}");
    for (line, (fault, transfer)) in fired.iter().zip(faults.split(',').zip(1..)) {
        assert!(line.contains(&format!("fault={fault} transfer={transfer}")), "{line}");
    }
    let down = log.iter().position(|line| line.ends_with(" link down")).expect("it went down");
    assert!(log.iter().skip(down).any(|line| line.ends_with(" link up")), "{log:#?}");
    // One line a transfer.
    let transfers: Vec<_> = log.iter().filter(|line| line.contains("rdma transfer operation=")).collect();
    assert_eq!(transfers.len(), 5, "{transfers:#?}");
    for (line, verdict) in transfers.iter().zip(["unknown_key", "fault", "unknown_key", "unknown_key", "unknown_key"]) {
        let fields = "operation=\"read\" family=A rkey=0xbadf00d address=0x1000 length=100 bytes=0 verdict=";
        assert!(line.contains(&format!("{fields}\"{verdict}\" micros=")), "{line}");
    }
}

#[test]
fn the_last_errors_are_kept_whatever_is_shown() {
    let scratch = Scratch::new();
    let mut server = Server::start(&scratch, &["-L", "off"]);
    while UnixStream::connect(scratch.socket()).is_err() {
        std::thread::yield_now();
    }
    // A client that speaks something else.
    let mut stream = UnixStream::connect(scratch.socket()).expect("connected");
    let _ = stream.write_all(&[0x55; 64]);
    let _ = stream.read_to_end(&mut Vec::new());
    let mut errors = Value::Null;
    for _ in 0..1000 {
        errors = status(&scratch)["errors"].clone();
        if errors.as_array().is_some_and(|errors| !errors.is_empty()) {
            break;
        }
    }
    let last = errors.as_array().and_then(|errors| errors.last()).expect("an error");
    assert_eq!(last["level"], "WARN");
    assert!(last["target"].as_str().is_some_and(|target| target.starts_with("ernic")), "{last}");
    assert!(last["unix_ms"].as_u64() > Some(1_600_000_000_000));
    let text = output(&scratch, &["status"]);
    assert!(text.contains(last["message"].as_str().expect("a text").trim()), "{text}");
    assert_eq!(server.terminate().code(), Some(0));
    assert_eq!(server.whole_log(), &[] as &[String]);
}

#[test]
fn nobody_to_ask() {
    let scratch = Scratch::new();
    let expected = format!(
        "Error: no server listens at {}: start one, or name the socket of another with --socket",
        control(&scratch).display()
    );
    for command in [&["status"][..], &["status", "--json"], &["link", "up"]] {
        assert_eq!(one_error(scratch.command(command)), (Some(1), expected.clone()));
    }
    // What a killed server left behind, too.
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    server.kill();
    assert!(control(&scratch).exists());
    assert_eq!(one_error(scratch.command(&["status"])), (Some(1), expected));
    // Somebody who is no server.
    fs::remove_file(control(&scratch)).expect("removed");
    let other = UnixListener::bind(control(&scratch)).expect("a socket");
    let answering = std::thread::spawn(move || {
        for answer in [&b""[..], b"hello\n", b"{\"pid\":1}\n", b"{\"error\":\"not today\"}\n"] {
            let (mut stream, _) = other.accept().expect("a client");
            let mut request = [0; 7];
            stream.read_exact(&mut request).expect("a request");
            assert_eq!(&request, b"status\n");
            stream.write_all(answer).expect("answered");
        }
    });
    for text in ["does not know", "does not know", "does not know", "refuses: not today"] {
        let (code, line) = one_error(scratch.command(&["status"]));
        assert_eq!(code, Some(1));
        assert!(line.contains(text), "{line}");
    }
    answering.join().expect("all were asked");
}

#[test]
fn the_control_socket_keeps_to_itself() {
    let scratch = Scratch::new();
    let path = control(&scratch);
    drop(UnixListener::bind(&path).expect("a stale socket"));
    let mut server = Server::start(&scratch, &[]);
    server.ready();
    let meta = fs::metadata(&path).expect("a socket");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    // Silent clients, and such as go in the middle, hold nobody up.
    let silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&path).expect("connected")).collect();
    for stream in &silent {
        let _ = (&mut &*stream).write_all(b"stat");
    }
    assert_eq!(status(&scratch)["nic"]["link"], "up");
    drop(silent);
    assert_eq!(status(&scratch)["nic"]["link"], "up");
    assert_eq!(server.terminate().code(), Some(0));
    assert!(!path.exists());
    // A file of that name is somebody's.
    fs::write(&path, "mine").expect("a file");
    let (code, line) = one_error(scratch.command(&[]));
    assert_eq!(code, Some(1));
    assert!(line.contains(path.to_str().expect("UTF-8")), "{line}");
    assert_eq!(fs::read_to_string(&path).expect("still there"), "mine");
    assert!(!scratch.socket().exists());
    // Where there is no room for the name, the server serves all the same.
    let long = scratch.path().join("x".repeat(105 - scratch.path().as_os_str().len()));
    let mut server = Server::start(&scratch, &["-s", long.to_str().expect("UTF-8")]);
    server.ready();
    server.line("no control socket");
    assert!(Path::new(&long).exists());
    assert_eq!(server.terminate().code(), Some(0));
}
