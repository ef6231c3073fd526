//! The program itself, against the real service.

mod common;

use std::{
    fs,
    process::{Command, Output},
    sync::Arc,
};

use common::{BUCKET, Server, Setup, Tamper};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ernic-bench"));
    for variable in ["VGWRDMA_RDMA_DEV", "VGWRDMA_RDMA_PORT", "VGWRDMA_GID_INDEX"] {
        command.env_remove(variable);
    }
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_soak_says_what_it_held() {
    let server = Server::start(Setup::default());
    let endpoint = format!("http://{}", server.address);
    let output = bench(&["-endpoint", &endpoint, "-bucket", BUCKET, "-std-s3", "--soak", "200", "-size", "100K"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("\nround 200\n"), "{stdout}");
    let report: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&report["rounds"], &report["rdma"], &report["http"]), (&200.into(), &0.into(), &400.into()));
    assert_eq!(report["bytes"], 200 * 102_400);
    let held = |when: &str| report[when]["descriptors"].as_u64().unwrap();
    assert_eq!(held("start"), held("end"), "{report}");
    assert_eq!((server.service.metrics().body_reads(), server.service.metrics().body_writes()), (200, 200));
    // One that is short of time makes fewer.
    let output = bench(&[
        "-endpoint",
        &endpoint,
        "-bucket",
        BUCKET,
        "-std-s3",
        "--soak",
        "1000000",
        "--soak-seconds",
        "1",
        "-size",
        "1",
    ]);
    let report: serde_json::Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    let rounds = report["rounds"].as_u64().unwrap();
    assert!((1..1_000_000).contains(&rounds), "{report}");
}

#[test]
fn standard_s3_is_measured_and_written_down() {
    let server = Server::start(Setup::default());
    let folder = tempfile::tempdir().unwrap();
    let (csv, json) = (folder.path().join("a.csv"), folder.path().join("a.json"));
    let endpoint = format!("http://{}", server.address);
    let output = bench(&[
        "-endpoint",
        &endpoint,
        "-bucket",
        BUCKET,
        "-n",
        "2",
        "-std-s3",
        "--sweep",
        "4K,64K",
        "--connections",
        "2",
        "--csv",
        csv.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert!(stdout.contains("\nmode=standard-s3\n"), "{stdout}");
    assert!(stdout.contains("iteration 2 connection 2: GET 65536 bytes in "), "{stdout}");
    assert!(stdout.contains("transfers: 0 by RDMA, 16 by HTTP, 0 of these fell back\n"), "{stdout}");
    assert!(stdout.ends_with("the server's counters agree\n"), "{stdout}");

    let csv = fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0].join(","), "size,op,n,p50_us,p90_us,p99_us,min_us,max_us,gbps,rdma,http");
    let kinds: Vec<_> = rows[1..].iter().map(|row| (row[0], row[1], row[2], row[9], row[10])).collect();
    let due = [("4096", "PUT"), ("4096", "GET"), ("65536", "PUT"), ("65536", "GET")];
    assert_eq!(kinds, due.map(|(size, op)| (size, op, "4", "0", "4")));
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(json["meta"]["mode"], "standard-s3");
    assert_eq!(json["meta"]["connections"], 2);
    assert_eq!(json["results"].as_array().unwrap().len(), 4);
    assert_eq!(json["results"][3]["size"], 65_536);
    assert!(json["results"][3]["gbps"].as_f64().unwrap() > 0.0);
}

#[test]
fn counters_that_disagree_end_with_status_1() {
    // A second client stores an object while this one measures.
    let server = Server::start(Setup::default());
    let (address, other) = (server.address, std::sync::Once::new());
    let tamper: Tamper = Arc::new(move |head| {
        if head.contains("etag: ") {
            other.call_once(|| {
                let mut client = ernic_client::s3::Client::new(ernic_client::s3::Config::new(address.into())).unwrap();
                let body = ernic_client::s3::Body::Bytes(b"x");
                let request = ernic_client::s3::Request::new("PUT", BUCKET, "other").body(body);
                assert_eq!(client.call(&request, None).unwrap().status, 200);
            });
        }
        head.to_owned()
    });
    let front = Server::front(&server, tamper);
    let endpoint = format!("http://{}", front.address);
    let bad = bench(&["-endpoint", &endpoint, "-bucket", BUCKET, "-n", "1", "-std-s3"]);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(text(&bad.stderr), "Error: the server counted 2 body PUTs where 1 were made\n");
    let shared = bench(&["-endpoint", &endpoint, "-bucket", BUCKET, "-n", "1", "-std-s3", "-shared"]);
    assert!(shared.status.success(), "{}", text(&shared.stderr));
}

#[test]
fn what_fails_ends_with_status_1_and_says_what() {
    let server = Server::start(Setup::default());
    let endpoint = format!("http://{}", server.address);
    let output = bench(&["-endpoint", &endpoint, "-bucket", BUCKET, "-std-s3", "-get-only", "-key", "none"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("Error: GET of 'none': refused with status 404 NoSuchKey"), "{stderr}");
    let output = bench(&["-endpoint", "http://127.0.0.1:1", "-std-s3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("Error: cannot connect to http://127.0.0.1:1: "));
}

#[test]
fn wrong_options_end_with_status_2() {
    let output = bench(&["-size", "4KB"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("bad size '4KB'"));
}

#[test]
fn without_a_device_it_says_what_is_missing() {
    let server = Server::start(Setup::default());
    let endpoint = format!("http://{}", server.address);
    for mode in ["-functional", "-put-only"] {
        let output = bench(&["-endpoint", &endpoint, "-bucket", BUCKET, "--device", "no_such_device", mode]);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
        assert!(stdout.contains("mode=host-memory-cuobject-token\n"), "{stdout}");
        // What is missing differs from machine to machine: the library, the kernel's half of it, or the device.
        let missing = ["libibverbs.so.1", "this kernel has no RDMA: modprobe", "no RDMA device 'no_such_device'"];
        assert!(missing.iter().any(|what| stderr.contains(what)), "{stderr}");
    }
}
