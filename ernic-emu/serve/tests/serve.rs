//! `ernic serve`: the store on the host's own TCP, as clients see it.

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
};

use common::{Scratch, Server, TIMEOUT, one_error};
use ernic_client::sigv4::{self, Credentials as Signer, UNSIGNED_PAYLOAD};
use rustix::process::{Signal, kill_process};

/// A server on a free port, and where it is.
fn start(scratch: &Scratch, arguments: &[&str]) -> (Server, SocketAddr) {
    let mut server = Server::start(scratch, &[&["serve"], arguments].concat());
    let line = server.line(" bytes at http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.strip_suffix('/')).expect("an address");
    let address = address.parse().expect("an address");
    server.line("authentication is");
    (server, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// An answer: status, head in lower case, content.
type Answer = (u16, String, Vec<u8>);

/// Reads one answer with a `content-length`.
fn answer(stream: &mut TcpStream) -> Answer {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("ASCII").to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut content = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    stream.read_exact(&mut content).expect("content");
    (status, head, content)
}

fn ask(stream: &mut TcpStream, method: &str, target: &str, headers: &str, content: &[u8]) -> Answer {
    let head = format!("{method} {target} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {}\r\n\r\n", content.len());
    stream.write_all(&[head.as_bytes(), content].concat()).expect("sent");
    answer(stream)
}

fn rest(mut stream: &TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// CPU time of a process, in clock ticks (proc(5), fields 14 and 15).
fn ticks(server: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid().as_raw_nonzero())).expect("it runs");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")
}

#[test]
fn objects_over_ipv4_and_ipv6() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        let scratch = Scratch::new();
        let (mut server, address) = start(&scratch, &["--listen", listen, "-b", "s3:bucket=bench,size=64M"]);
        assert_ne!(address.port(), 0);
        assert!(server.line("s3 bucket 'bench' 67108864 bytes at ").ends_with(&format!("http://{address}/")));
        server.line("s3 objects 1000000 maxpart 268435456 bytes etag md5 store memory");
        server.line("no RDMA: no hardware backend configured");
        let mut stream = connect(address);
        let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 251) as u8).collect();
        assert_eq!(ask(&mut stream, "PUT", "/bench/a%20key", "", &content).0, 200);
        let (status, _, back) = ask(&mut stream, "GET", "/bench/a%20key", "", &[]);
        assert_eq!((status, back.len()), (200, content.len()));
        assert_eq!(back, content);
        let (status, head, _) = ask(&mut stream, "GET", "/bench/a%20key", "range: bytes=1-2\r\n", &[]);
        assert_eq!((status, head.contains("content-range: bytes 1-2/3145728")), (206, true));
        assert_eq!(server.terminate().code(), Some(0));
        assert!(!scratch.socket().exists(), "there is no NIC");
        assert!(!server.whole_log().iter().any(|line| line.contains("ERROR")), "{:#?}", server.whole_log());
    }
}

#[test]
fn a_token_is_declined_and_idling_costs_nothing() {
    let scratch = Scratch::new();
    let (mut server, address) = start(&scratch, &["-l", "127.0.0.1:0"]);
    let mut stream = connect(address);
    let token = format!("x-amz-rdma-token: {}\r\n", "0".repeat(60));
    let (status, head, _) = ask(&mut stream, "GET", "/ernic/key", &token, &[]);
    assert_eq!((status, head.contains("x-amz-rdma-reply: 501")), (501, true), "{head}");
    // Many turns of large transfers, and then a connection that stays: threads that did not sleep would show.
    let content = vec![7; 8 << 20];
    assert_eq!(ask(&mut stream, "PUT", "/ernic/key", "", &content).0, 200);
    let before = ticks(&server);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(ticks(&server) - before <= 5, "at most 50 ms of CPU while nothing happens");
    assert_eq!(server.signal(Signal::INT).code(), Some(0));
    server.line("SIGINT received, stopping");
}

#[test]
fn more_connections_than_there_may_be_are_told_so() {
    let scratch = Scratch::new();
    let (server, address) = start(&scratch, &["-l", "127.0.0.1:0", "--max-connections", "2"]);
    let (mut first, mut second) = (connect(address), connect(address));
    for stream in [&mut first, &mut second] {
        assert_eq!(ask(stream, "GET", "/ernic", "", &[]).0, 200);
    }
    let mut third = connect(address);
    // The answer comes before anything is asked, or after it.
    let _ = third.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    let (status, head, content) = answer(&mut third);
    assert_eq!(status, 503);
    assert!(head.contains("retry-after: 1") && head.contains("connection: close"), "{head}");
    assert!(String::from_utf8_lossy(&content).contains("<Code>SlowDown</Code>"));
    assert_eq!(rest(&third), "");
    // A place that becomes free is taken.
    drop(first);
    let mut tries = 0;
    loop {
        let mut next = connect(address);
        let (status, ..) = ask(&mut next, "GET", "/ernic", "", &[]);
        if status == 200 {
            break;
        }
        tries += 1;
        assert!(status == 503 && tries < 6000, "{status}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(ask(&mut second, "GET", "/ernic", "", &[]).0, 200, "those that were there stay");
    drop(server);
}

#[test]
fn quiet_connections_are_closed() {
    let scratch = Scratch::new();
    let (_server, address) = start(&scratch, &["-l", "127.0.0.1:0", "--idle-timeout", "1"]);
    let silent = connect(address);
    let mut trickles = connect(address);
    trickles.write_all(b"GET / HT").expect("sent");
    let mut between = connect(address);
    assert_eq!(ask(&mut between, "GET", "/ernic", "", &[]).0, 200);
    for stream in [silent, trickles, between] {
        assert_eq!(rest(&stream), "");
    }
}

#[test]
fn requests_under_way_end_before_the_server_does() {
    let scratch = Scratch::new();
    let (mut server, address) = start(&scratch, &["-l", "127.0.0.1:0"]);
    let idle = connect(address);
    let mut at_work = connect(address);
    at_work
        .write_all(b"PUT /ernic/key HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 6\r\n\r\n")
        .expect("sent");
    let mut interim = [0; 25];
    at_work.read_exact(&mut interim).expect("the request is being served");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    at_work.write_all(b"abc").expect("sent");
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    server.line("SIGTERM received, stopping");
    assert_eq!(rest(&idle), "", "a connection without a request ends at once");
    assert!(TcpStream::connect(address).is_err(), "nobody else is let in");
    at_work.write_all(b"def").expect("sent");
    let (status, head, _) = answer(&mut at_work);
    assert_eq!((status, head.contains("connection: close")), (200, true), "{head}");
    assert_eq!(rest(&at_work), "");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!server.whole_log().iter().any(|line| line.contains("cut off")), "{:#?}", server.whole_log());
}

#[test]
fn a_second_signal_does_not_wait() {
    let scratch = Scratch::new();
    let (mut server, address) = start(&scratch, &["-l", "127.0.0.1:0"]);
    let mut at_work = connect(address);
    at_work.write_all(b"PUT /ernic/key HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\nabc").expect("sent");
    // Served after it: the other request has been taken up.
    assert_eq!(ask(&mut connect(address), "GET", "/ernic", "", &[]).0, 200);
    kill_process(server.pid(), Signal::TERM).expect("it runs");
    server.line("SIGTERM received, stopping");
    at_work.shutdown(Shutdown::Read).expect("connected");
    assert_eq!(server.signal(Signal::INT).code(), Some(0));
    let log = server.whole_log().join("\n");
    assert!(log.contains("received again, stopping at once") || !log.contains("cut off"), "{log}");
}

/// A file of keys with the mode.
fn keys(scratch: &Scratch, mode: u32) -> String {
    let path = scratch.path().join("keys");
    fs::write(&path, "# for a test\nalice:hidden\n").expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    path.to_str().expect("UTF-8").to_owned()
}

/// A request for the list of the bucket, signed now.
fn signed(address: SocketAddr, access: &str, secret: &str) -> String {
    let signer = Signer { access: access.into(), secret: secret.into(), region: "us-east-1".into() };
    let now = sigv4::date(std::time::SystemTime::now().into());
    let headers =
        [("host", address.to_string()), ("x-amz-content-sha256", UNSIGNED_PAYLOAD.into()), ("x-amz-date", now.clone())]
            .map(|(name, value)| (name.to_owned(), value));
    let authorization = sigv4::authorization(&signer, &now, "GET", "/ernic", "", &headers, UNSIGNED_PAYLOAD);
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET /ernic HTTP/1.1\r\n{lines}authorization: {authorization}\r\n\r\n")
}

#[test]
fn with_credentials_only_signed_requests_are_served() {
    let scratch = Scratch::new();
    let backend = format!("s3:credentials={}", keys(&scratch, 0o600));
    let mut command =
        scratch.command(&["serve", "-l", "0.0.0.0:0", "-b", &backend, "-L", "trace,s3s=trace,hyper=trace"]);
    command.envs([("ERNIC_ACCESS_KEY", "bob"), ("ERNIC_SECRET_KEY", "concealed")]);
    let mut server = Server::spawn(command);
    let line = server.line(" bytes at http://0.0.0.0:");
    let port = line.trim_end_matches('/').rsplit(':').next().expect("a port");
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
    server.line("authentication is on: requests must be signed with one of 2 access keys");
    server.line("--user \"$ERNIC_ACCESS_KEY\":\"$ERNIC_SECRET_KEY\" http://127.0.0.1:");
    let mut stream = connect(address);
    let (status, _, body) = ask(&mut stream, "GET", "/ernic", "", &[]);
    assert!(status == 403 && String::from_utf8_lossy(&body).contains("<Code>AccessDenied</Code>"));
    assert_eq!(ask(&mut stream, "GET", "/metrics", "", &[]).0, 403, "others can connect, too");
    for (access, secret, expected) in [("alice", "hidden", 200), ("bob", "concealed", 200), ("alice", "concealed", 403)]
    {
        stream.write_all(signed(address, access, secret).as_bytes()).expect("sent");
        assert_eq!(answer(&mut stream).0, expected, "{access}");
    }
    assert_eq!(server.terminate().code(), Some(0));
    let log = server.whole_log().join("\n");
    assert!(!log.contains("hidden") && !log.contains("concealed"), "no secret in the log");
    // On loopback the figures stay open.
    let (_local, address) = start(&scratch, &["-l", "127.0.0.1:0", "-b", &backend]);
    assert_eq!(ask(&mut connect(address), "GET", "/metrics", "", &[]).0, 200);
}

#[test]
fn credentials_that_will_not_do_are_one_line() {
    let scratch = Scratch::new();
    let path = keys(&scratch, 0o644);
    let expected = format!(
        "Error: s3 backend: bad credentials '{path}': others than its owner have rights to it (mode 0644); run: chmod 600 {path}"
    );
    let backend = format!("s3:credentials={path}");
    for arguments in [&["serve", "-l", "127.0.0.1:0", "-b", &backend][..], &["-b", &backend]] {
        let mut command = scratch.command(arguments);
        command.env("ERNIC_LOG_LEVEL", "off");
        assert_eq!(one_error(command), (Some(1), expected.clone()));
    }
    for (set, missing) in [("ERNIC_ACCESS_KEY", "ERNIC_SECRET_KEY"), ("ERNIC_SECRET_KEY", "ERNIC_ACCESS_KEY")] {
        let mut command = scratch.command(&["serve", "-l", "0.0.0.0:0"]);
        command.env(set, "concealed");
        let line = format!("Error: {set} is set without {missing}: set both, or neither");
        assert_eq!(one_error(command), (Some(1), line));
    }
}

#[test]
fn what_cannot_be_served_is_one_line() {
    let scratch = Scratch::new();
    let (_server, address) = start(&scratch, &["-l", "127.0.0.1:0"]);
    let (code, line) = one_error(scratch.command(&["serve", "-l", &address.to_string()]));
    assert_eq!(code, Some(1));
    assert!(line.starts_with(&format!("Error: --listen: cannot listen on {address}: ")), "{line}");
    let (code, line) = one_error(scratch.command(&["serve", "-l", "0.0.0.0:0"]));
    assert!(code == Some(2) && line.contains("--insecure"), "{line}");
    let (mut open, _) = start(&scratch, &["-l", "0.0.0.0:0", "--insecure"]);
    assert!(open.line("authentication is off: everybody who can reach 0.0.0.0:").contains("WARN"));
}
