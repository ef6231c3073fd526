//! The whole way: driver, vfio-user socket, the real server in a process of its own, TCP through its endpoint.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ionic_abi::MrFlags;
use ionic_driver::{
    Bus, Config, DriverError, GuestNet, GuestRam, Ionic, UserMem, Verbs, VfioUser,
    http::Response,
    net::NetConfig,
    user::{HUGE_PAGE, Placement},
    verbs::{Mr, RegMr},
    vfio_user::Maps,
};
use rdma_token::{Family, TokenHeader, Window};
use rustix::process::{Pid, Signal, kill_process};
use smoltcp::iface::SocketHandle;

use super::{
    IOVA, RAM,
    common::pattern,
    lab::{BASE, BLANK, FAMILIES, token},
};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);
const PORT: u16 = 9000;
/// Bounds a hang; nothing depends on it.
const LONG: Duration = Duration::from_secs(30);
/// Names the command line of the server to the process that is to be it.
const ARGUMENTS: &str = "ERNIC_TEST_SERVER";
const ALL: MrFlags = MrFlags::LOCAL_WRITE.union(MrFlags::REMOTE_READ).union(MrFlags::REMOTE_WRITE);

/// Not a test of its own: the server, in the process that [`Server::start`] makes of this test program.
#[test]
fn server_process() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let options = ernic::options::Options::read(arguments.split('\n')).unwrap();
    ernic::run(options).unwrap();
}

/// The server as a process.
struct Server {
    dir: tempfile::TempDir,
    child: Child,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        Self::with("s3:size=256M", options)
    }

    fn with(backend: &str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nic").to_str().unwrap().to_owned();
        let arguments = [&["ernic", "-s", &socket, "-b", backend, "-L", "debug"], options].concat();
        Self::spawn(dir, &arguments, "attach QEMU")
    }

    /// The service without a NIC, and where on the loopback it is.
    fn on_loopback(backend: &str) -> (Self, SocketAddr) {
        let arguments = ["ernic", "serve", "--listen", "127.0.0.1:0", "-b", backend, "-L", "info"];
        let server = Self::spawn(tempfile::tempdir().unwrap(), &arguments, "try: curl");
        let log = server.log();
        let address = log.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
        let address = address.parse().unwrap();
        (server, address)
    }

    fn spawn(dir: tempfile::TempDir, arguments: &[&str], ready: &str) -> Self {
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
            command.env_remove(name);
        }
        let child = command
            .args(["--exact", "server::server_process", "--nocapture"])
            .env(ARGUMENTS, arguments.join("\n"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self { dir, child };
        let end = Instant::now() + LONG;
        while !server.log().contains(ready) {
            assert!(server.child.try_wait().unwrap().is_none() && Instant::now() < end, "{}", server.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        server
    }

    /// Memory of its own, bytes: guest memory and what it shares with others do not count.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// A guest with an address and its verbs device open. Its memory is mapped in pieces of huge pages.
    fn guest(&self) -> Client {
        let client = ernic_emu::vfio::client::Client::connect(self.dir.path().join("nic")).unwrap();
        let ram = GuestRam::new(RAM, IOVA).unwrap();
        Client::new(VfioUser::start(client, ram, Maps::Pieces(HUGE_PAGE)).unwrap())
    }

    /// Stops it; it must end as it should. Its log.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        self.log()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program in the guest.
struct Client {
    net: GuestNet<VfioUser>,
    verbs: Verbs,
    pd: u32,
    connection: SocketHandle,
}

/// Registered memory.
struct Buffer {
    mem: UserMem,
    mr: Mr,
}

impl Buffer {
    fn token(&self, family: Family, from: u64, length: u64) -> TokenHeader {
        token(family, self.mr.key, Window { address: self.mr.va + from, length })
    }

    fn whole(&self, family: Family) -> TokenHeader {
        self.token(family, 0, self.mr.length)
    }
}

impl Client {
    fn new(bus: VfioUser) -> Self {
        let mut net = GuestNet::new(Ionic::attach(bus, Config::default()).unwrap(), NetConfig::default()).unwrap();
        net.dhcp().unwrap();
        let mut verbs = Verbs::open(&mut net.nic).unwrap();
        let pd = verbs.create_pd();
        let connection = net.connect(SERVER, PORT).unwrap();
        Self { net, verbs, pd, connection }
    }

    fn buffer(&mut self, content: &[u8], placement: Placement) -> Buffer {
        let mem = UserMem::new(self.net.nic.bus.ram(), BASE, content.len(), placement).unwrap();
        mem.write(0, content);
        let mr = self.verbs.reg_mr(&mut self.net.nic, self.pd, &RegMr::all(&mem, ALL)).unwrap();
        Buffer { mem, mr }
    }

    /// The head of a request with a token.
    fn head(method: &str, path: &str, token: Option<&TokenHeader>, more: &str) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: ernic\r\n{more}");
        if method != "GET" {
            head.push_str("content-length: 0\r\n");
        }
        for (name, value) in token.into_iter().flat_map(TokenHeader::headers) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    }

    fn call(&mut self, method: &str, path: &str, token: Option<&TokenHeader>, more: &str) -> (Response, Vec<u8>) {
        let mut body = Vec::new();
        let head = Self::head(method, path, token, more);
        let response = self.net.http(self.connection, &head, &[], &mut |b| body.extend_from_slice(b)).unwrap();
        if response.header("connection") == Some("close") {
            self.reconnect();
        }
        (response, body)
    }

    fn reconnect(&mut self) {
        self.net.forget(self.connection);
        self.connection = self.net.connect(SERVER, PORT).unwrap();
    }

    /// Sends a request and does not wait for its answer.
    fn send(&mut self, head: &str) {
        let sent = self.net.socket(self.connection).send_slice(head.as_bytes()).unwrap();
        assert_eq!(sent, head.len());
        self.turn();
    }

    /// The answer to what was sent.
    fn answer(&mut self) -> Response {
        self.net.http(self.connection, "", &[], &mut |_| {}).unwrap()
    }

    /// Lets frames move for a moment.
    fn turn(&mut self) {
        let moment = Duration::from_millis(1);
        match self.net.wait_for("moment", moment, &mut |_| Ok(None::<()>)) {
            // The server writes frames first and signals them afterwards: at any one moment a signal may be on its way.
            Err(DriverError::Timeout { .. } | DriverError::LostInterrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Lets frames move until it is so.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + LONG;
        while !done(self) {
            assert!(Instant::now() < end, "{what}");
            self.turn();
        }
    }

    /// The samples of the metrics page.
    fn metrics(&mut self) -> BTreeMap<String, f64> {
        let (response, body) = self.call("GET", "/metrics", None, "");
        assert_eq!(response.status, 200);
        let page = String::from_utf8(body).unwrap();
        let samples = page.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
        samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
    }

    /// Operations and bytes by token: GET, then PUT and parts; what was not served, by any reason; transfers under way.
    fn counts(&mut self) -> [f64; 6] {
        let page = self.metrics();
        let (response, body) = self.call("GET", "/minio/metrics/v3/api/rdma", None, "");
        assert_eq!(response.status, 200);
        let aistor = String::from_utf8(body).unwrap();
        for name in ["minio_api_rdma_read_ops_total", "minio_api_rdma_write_ops_total"] {
            assert!(aistor.contains(&format!("\n{name} {}\n", page[name])), "{aistor}");
        }
        let failures = page.iter().filter(|(name, _)| name.starts_with("ernic_rdma_failures_total"));
        [
            page["minio_api_rdma_read_ops_total"],
            page["ernic_rdma_bytes_total{operation=\"read\"}"],
            page["minio_api_rdma_write_ops_total"],
            page["ernic_rdma_bytes_total{operation=\"write\"}"],
            failures.map(|(_, count)| count).sum(),
            page["ernic_rdma_transfers_active"],
        ]
    }

    fn put_body(&mut self, path: &str, body: &[u8]) {
        assert_eq!(self.net.http_put(self.connection, path, body).unwrap().status, 200);
    }

    fn get_body(&mut self, path: &str) -> Vec<u8> {
        let (response, body) = self.call("GET", path, None, "");
        assert_eq!(response.status, 200);
        body
    }
}

fn moved(response: &Response, status: u16, bytes: usize) {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!((response.header("content-length"), response.length), (Some("0"), 0));
    for name in ["x-amz-rdma-bytes", "x-amz-rdma-bytes-transferred"] {
        assert_eq!(response.header(name), Some(&*bytes.to_string()), "{response:?}");
    }
    assert!(response.header("x-amz-rdma-reply").unwrap().starts_with(&status.to_string()));
    assert!(response.header("etag").is_some());
}

#[test]
fn a_token_takes_the_whole_way() {
    let server = Server::start(&[]);
    let mut client = server.guest();
    let content = pattern(3_000_001);
    client.put_body("/ernic/k", &content);
    let mut expected = client.counts();
    assert_eq!(expected, [0.0; 6]);
    for (family, placement) in FAMILIES.into_iter().zip([
        Placement::Scattered,
        Placement::Contiguous,
        Placement::Huge,
        Placement::Scattered,
        Placement::Huge,
    ]) {
        // GET: the whole, with room behind it, and a range.
        let target = client.buffer(&vec![BLANK; content.len() + 5000], placement);
        let (response, _) = client.call("GET", "/ernic/k", Some(&target.whole(family)), "");
        moved(&response, 200, content.len());
        assert!(target.mem.content()[..content.len()] == content, "{family}");
        assert!(target.mem.content()[content.len()..].iter().all(|byte| *byte == BLANK));
        let window = target.token(family, 100, 2000);
        let (response, _) = client.call("GET", "/ernic/k", Some(&window), "range: bytes=1024-1535\r\n");
        moved(&response, 206, 512);
        let got = target.mem.content();
        assert!(got[..100] == content[..100] && got[100..612] == content[1024..1536]);
        assert!(got[612..content.len()] == content[612..] && target.mem.intact());
        // PUT and parts: bytes read, nothing written.
        let bytes = pattern(700_003);
        let source = client.buffer(&bytes, placement);
        let (response, _) = client.call("PUT", "/ernic/put", Some(&source.token(family, 3, 700_000)), "");
        moved(&response, 200, 700_000);
        assert!(client.get_body("/ernic/put") == bytes[3..]);
        let (_, body) = client.call("POST", "/ernic/parts?uploads", None, "");
        let body = String::from_utf8(body).unwrap();
        let upload = body.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        let part = format!("/ernic/parts?partNumber=1&uploadId={upload}");
        let (response, _) = client.call("PUT", &part, Some(&source.whole(family)), "");
        moved(&response, 200, bytes.len());
        assert!(source.mem.content() == bytes && source.mem.intact());
        let now = client.counts();
        for (count, more) in expected.iter_mut().zip([2.0, 3_000_513.0, 2.0, 1_400_003.0, 0.0, 0.0]) {
            *count += more;
        }
        assert_eq!(now, expected, "{family}");
    }
    // Nothing of it went by the other way.
    let page = client.metrics();
    assert_eq!(page["ernic_http_body_operations_total{operation=\"write\"}"], 1.0);
    assert_eq!(page["ernic_http_body_operations_total{operation=\"read\"}"], 5.0);
    let log = server.stop();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
}

/// A store waits for what is behind it, and the device for nothing: payloads move between guest memory and the store while
/// registers and the admin queue answer, through little memory. Returns the store's object.
fn a_store_that_waits_takes_the_whole_way(server: &Server) -> Vec<u8> {
    let mut client = server.guest();
    let content = pattern(40_000_001);
    let source = client.buffer(&content, Placement::Scattered);
    let target = client.buffer(&vec![BLANK; content.len()], Placement::Huge);
    let small = UserMem::new(client.net.nic.bus.ram(), BASE, 4096, Placement::Contiguous).unwrap();
    for (method, buffer) in [("PUT", &source), ("GET", &target)] {
        let before = server.memory();
        client.send(&Client::head(method, "/ernic/k", Some(&buffer.whole(Family::C)), ""));
        let (mut asked, mut most) = (0, before);
        let end = Instant::now() + LONG;
        while !client.net.socket(client.connection).can_recv() {
            assert!(Instant::now() < end, "no answer to the {method}");
            let mr = client.verbs.reg_mr(&mut client.net.nic, client.pd, &RegMr::all(&small, ALL)).unwrap();
            client.verbs.dereg_mr(&mut client.net.nic, mr.key).unwrap();
            asked += 1;
            most = most.max(server.memory());
            client.turn();
        }
        moved(&client.answer(), 200, content.len());
        assert!(asked > 1, "the device answered only {asked} times while the bytes moved");
        assert!(most - before < 16 << 20, "{method} of 40 MB took {} bytes of memory", most - before);
        assert!(buffer.mem.content() == content && buffer.mem.intact());
    }
    let size = content.len() as f64;
    assert_eq!(client.counts(), [1.0, size, 1.0, size, 0.0, 0.0]);
    content
}

/// What a server said must be nothing to worry about.
fn quiet(server: Server) {
    let log = server.stop();
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
}

#[test]
fn a_store_on_disk_takes_the_whole_way() {
    let dir = tempfile::tempdir().unwrap();
    let backend = format!("s3:size=256M,store=disk:{}", dir.path().join("store").display());
    let server = Server::with(&backend, &[]);
    let content = a_store_that_waits_takes_the_whole_way(&server);
    quiet(server);
    // It outlives the server.
    let server = Server::with(&backend, &[]);
    assert!(server.guest().get_body("/ernic/k") == content);
}

#[test]
fn a_store_elsewhere_takes_the_whole_way() {
    let (behind, address) = Server::on_loopback("s3:size=256M");
    let server = Server::with(&format!("s3:store=remote:s3+http://{address}"), &[]);
    let content = a_store_that_waits_takes_the_whole_way(&server);
    quiet(server);
    // It is there, and not here.
    let server = Server::with(&format!("s3:store=remote:s3+http://{address}"), &[]);
    assert!(server.guest().get_body("/ernic/k") == content);
    quiet(server);
    quiet(behind);
}

#[test]
fn a_store_in_a_folder_takes_the_whole_way() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::with(&format!("s3:store=dir:{}", dir.path().display()), &[]);
    let content = a_store_that_waits_takes_the_whole_way(&server);
    quiet(server);
    assert!(fs::read(dir.path().join("k")).unwrap() == content);
}

/// Tokens that reach for what they may not: refused by the rules, nothing moves, nothing counts as moved.
#[test]
fn case_01_tokens_that_reach_too_far_take_the_whole_way() {
    let server = Server::start(&[]);
    let mut client = server.guest();
    let content = pattern(10_000);
    client.put_body("/ernic/k", &content);
    let buffer = client.buffer(&[BLANK; 20_000], Placement::Scattered);
    let only = |client: &mut Client, access| {
        let reg = RegMr::all(&buffer.mem, access);
        client.verbs.reg_mr(&mut client.net.nic, client.pd, &reg).unwrap().key
    };
    let (read, write) = (only(&mut client, MrFlags::REMOTE_READ), only(&mut client, MrFlags::REMOTE_WRITE));
    let local = only(&mut client, MrFlags::LOCAL_WRITE);
    let gone = only(&mut client, ALL);
    client.verbs.dereg_mr(&mut client.net.nic, gone).unwrap();
    let window = Window { address: buffer.mr.va, length: 10_000 };
    let outside = Window { address: buffer.mr.va - 1, length: 10_000 };
    let bus = Window { address: IOVA, length: 10_000 };
    let mut failures = 0.0;
    for family in FAMILIES {
        for (method, rkey, window) in [
            ("GET", 0, window),
            ("GET", 0, bus),
            ("PUT", 0, bus),
            ("PUT", 0xdead_beef, window),
            ("GET", buffer.mr.key ^ 1, window),
            ("PUT", buffer.mr.key ^ 0x100_0000, window),
            ("GET", buffer.mr.key, outside),
            ("PUT", buffer.mr.key, outside),
            ("GET", buffer.mr.key, bus),
            ("GET", read, window),
            ("PUT", write, window),
            ("GET", local, window),
            ("PUT", local, window),
            ("GET", gone, window),
            ("PUT", gone, window),
        ] {
            let path = if method == "GET" { "/ernic/k" } else { "/ernic/new" };
            let (response, _) = client.call(method, path, Some(&token(family, rkey, window)), "");
            failures += 1.0;
            assert_eq!(response.status, 500, "{family} {method} {rkey:#x} {window:x?}: {response:?}");
            assert_eq!(response.header("x-amz-rdma-reply"), Some("500"));
            assert_eq!(response.header("x-amz-rdma-bytes"), Some("0"));
            let (missing, _) = client.call("GET", "/ernic/new", None, "");
            assert_eq!(missing.status, 404);
        }
    }
    assert!(buffer.mem.content().iter().all(|byte| *byte == BLANK) && buffer.mem.intact());
    assert_eq!(client.counts(), [0.0, 0.0, 0.0, 0.0, failures, 0.0]);
    let (response, _) = client.call("GET", "/ernic/k", Some(&token(Family::A, write, window)), "");
    moved(&response, 200, 10_000);
    assert!(buffer.mem.content()[..10_000] == content);
    assert_eq!(client.counts(), [1.0, 10_000.0, 0.0, 0.0, failures, 0.0]);
}

/// Bytes of an object whose transfer takes seconds, so that a busy machine has the time to do something meanwhile.
const SLOW: usize = 16 << 20;
/// Part of it that is asked for where all of it would take too long.
const PART: usize = 1 << 20;

/// A server whose transfers take their time, an object, and a GET of it into memory, under way.
fn under_way() -> (Server, Client, Buffer, Vec<u8>) {
    let server = Server::start(&["--rdma-rate", "4M"]);
    let mut client = server.guest();
    let content = pattern(SLOW);
    client.put_body("/ernic/k", &content);
    let (client, buffer) = start(client, content.len());
    (server, client, buffer, content)
}

fn start(mut client: Client, length: usize) -> (Client, Buffer) {
    // Whole huge pages of guest memory, so that a part of them can be unmapped alone.
    let mem = UserMem::new(client.net.nic.bus.ram(), 0x7f00_0000_0000, length, Placement::Huge).unwrap();
    mem.write(0, &vec![BLANK; length]);
    let mr = client.verbs.reg_mr(&mut client.net.nic, client.pd, &RegMr::all(&mem, ALL)).unwrap();
    let buffer = Buffer { mem, mr };
    client.send(&Client::head("GET", "/ernic/k", Some(&buffer.whole(Family::A)), ""));
    client.until("the first bytes", |_| first(&buffer) != BLANK);
    (client, buffer)
}

/// A GET of a part of the object works, into its place in a buffer.
fn part_works(client: &mut Client, buffer: &Buffer, content: &[u8], from: usize) {
    let token = buffer.token(Family::C, from as u64, PART as u64);
    let range = format!("range: bytes={from}-{}\r\n", from + PART - 1);
    let (response, _) = client.call("GET", "/ernic/k", Some(&token), &range);
    moved(&response, 206, PART);
    let mut got = vec![0; PART];
    buffer.mem.read(from, &mut got);
    assert!(got == content[from..from + PART] && buffer.mem.intact());
}

fn first(buffer: &Buffer) -> u8 {
    // The object's second byte is not what untouched memory holds.
    let mut bytes = [0; 2];
    buffer.mem.read(0, &mut bytes);
    bytes[1]
}

fn failed(response: &Response) {
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("x-amz-rdma-reply"), Some("503"));
    assert_eq!(response.header("x-amz-rdma-bytes"), Some("0"));
    assert!(response.header("retry-after").is_some());
}

#[test]
fn case_02_memory_that_goes_during_a_get_ends_it_with_an_error() {
    let (server, mut client, buffer, content) = under_way();
    // A huge page in the middle goes, as by a guest's IOMMU, and the GET runs into the gap.
    let gap = 3 * HUGE_PAGE;
    let page = buffer.mem.pages()[gap / 4096];
    let ram = client.net.nic.bus.ram().clone();
    client.net.nic.bus.client.dma_unmap(page, HUGE_PAGE as u64).unwrap();
    failed(&client.answer());
    let got = buffer.mem.content();
    assert!(got[..gap] == content[..gap], "what came before");
    assert!(got[gap..].iter().all(|byte| *byte == BLANK), "what was unmapped, and what is behind it");
    assert!(buffer.mem.intact());
    let counts = client.counts();
    assert_eq!((counts[0], counts[1], counts[4], counts[5]), (0.0, 0.0, 1.0, 0.0));
    // It comes back, and so do the bytes.
    let prot = ernic_emu::mem::Prot::READ | ernic_emu::mem::Prot::WRITE;
    client.net.nic.bus.client.dma_map(page, HUGE_PAGE as u64, prot, ram.fd(), page - IOVA).unwrap();
    part_works(&mut client, &buffer, &content, gap + HUGE_PAGE - PART);
    drop(server);
}

#[test]
fn deregistration_during_a_get_ends_it_and_nothing_is_written_afterwards() {
    let (server, mut client, buffer, content) = under_way();
    client.verbs.dereg_mr(&mut client.net.nic, buffer.mr.key).unwrap();
    // The memory is the program's own again, from this moment on.
    buffer.mem.write(0, &vec![0x5a; content.len()]);
    failed(&client.answer());
    assert!(buffer.mem.content().iter().all(|byte| *byte == 0x5a) && buffer.mem.intact());
    let counts = client.counts();
    assert_eq!((counts[0], counts[1], counts[4], counts[5]), (0.0, 0.0, 1.0, 0.0));
    // The same index under another key.
    let again = client.verbs.reg_mr(&mut client.net.nic, client.pd, &RegMr::all(&buffer.mem, ALL)).unwrap();
    assert_eq!(again.key >> 8, buffer.mr.key >> 8);
    let (response, _) = client.call("GET", "/ernic/k", Some(&buffer.whole(Family::A)), "");
    assert_eq!((response.status, response.header("x-amz-rdma-reply")), (500, Some("500")));
    let again = Buffer { mem: buffer.mem, mr: again };
    part_works(&mut client, &again, &content, 77);

    // The other way: the source of a PUT goes, and the object stays what it was.
    let putting = client.connection;
    client.send(&Client::head("PUT", "/ernic/k", Some(&again.whole(Family::A)), ""));
    client.connection = client.net.connect(SERVER, PORT).unwrap();
    client.until("the PUT", |client| client.counts()[5] > 0.0);
    client.verbs.dereg_mr(&mut client.net.nic, again.mr.key).unwrap();
    let other = std::mem::replace(&mut client.connection, putting);
    failed(&client.answer());
    client.connection = other;
    assert!(client.get_body("/ernic/k") == content);
    assert_eq!(client.counts(), [1.0, PART as f64, 0.0, 0.0, 3.0, 0.0]);
    drop(server);
}

/// `rmmod ionic_rdma`, a function-level reset and a reset of the machine, each with a GET under way: not a byte comes
/// afterwards, the server goes on, and the next driver works.
#[test]
fn resets_during_a_get_end_it() {
    let (server, client, buffer, content) = under_way();
    let silent = |buffer: &Buffer| {
        buffer.mem.write(0, &vec![0x5a; content.len()]);
        // Time enough for several chunks at the rate.
        std::thread::sleep(Duration::from_millis(300));
        assert!(buffer.mem.content().iter().all(|byte| *byte == 0x5a) && buffer.mem.intact());
    };
    // The RDMA driver goes; the network stays, and the answer comes by it.
    let Client { mut net, verbs, pd: _, connection } = client;
    verbs.close(&mut net.nic).unwrap();
    silent(&buffer);
    let mut verbs = Verbs::open(&mut net.nic).unwrap();
    let pd = verbs.create_pd();
    let mut client = Client { net, verbs, pd, connection };
    failed(&client.answer());
    drop(buffer);

    // The function is reset, and its driver starts again.
    let (client, buffer) = start(client, content.len());
    let Client { mut net, verbs, .. } = client;
    net.nic.flr().unwrap();
    silent(&buffer);
    drop((verbs, buffer));

    // The guest reboots.
    let (client, buffer) = start(Client::new(net.into_nic().into_bus()), content.len());
    let mut bus = client.net.into_nic().into_bus();
    bus.reset().unwrap();
    // Posted or not: what the reset answers comes after it.
    silent(&buffer);
    drop(buffer);

    // The guest is killed, and another one comes.
    let (client, buffer) = start(Client::new(bus), content.len());
    drop(client);
    let mut client = loop {
        // The server hears of the end of the old connection when it hears of it.
        match VfioUser::connect(server.dir.path().join("nic"), GuestRam::new(RAM, IOVA).unwrap()) {
            Ok(bus) => break Client::new(bus),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    silent(&buffer);
    let counts = client.counts();
    assert_eq!((counts[0], counts[1], counts[5]), (0.0, 0.0, 0.0), "nothing counts as moved");
    let target = client.buffer(&vec![BLANK; content.len()], Placement::Scattered);
    part_works(&mut client, &target, &content, 0);
    let log = server.stop();
    assert!(!log.contains("panicked"), "{log}");
}

/// Case 14 the whole way: one byte less than asked is a failure, and the object stays what it was.
#[test]
fn case_14_a_short_transfer_leaves_the_old_object() {
    let server = Server::start(&["--fault", "short@2"]);
    let mut client = server.guest();
    let (old, new) = (pattern(500_000), vec![7; 600_000]);
    let source = client.buffer(&old, Placement::Scattered);
    let (response, _) = client.call("PUT", "/ernic/k", Some(&source.whole(Family::C)), "");
    moved(&response, 200, old.len());
    let other = client.buffer(&new, Placement::Huge);
    let (response, _) = client.call("PUT", "/ernic/k", Some(&other.whole(Family::C)), "");
    failed(&response);
    assert!(client.get_body("/ernic/k") == old);
    assert_eq!(client.counts(), [0.0, 0.0, 1.0, 500_000.0, 1.0, 0.0]);
    let (response, _) = client.call("PUT", "/ernic/k", Some(&other.whole(Family::C)), "");
    moved(&response, 200, new.len());
    assert!(client.get_body("/ernic/k") == new);
}
