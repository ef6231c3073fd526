//! Lane `s3-http`: what the service answers that is no S3, and ETags that are no MD5.
#![allow(clippy::cast_possible_truncation)]

mod common;
#[path = "common/lab.rs"]
mod lab;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use common::*;
use lab::*;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::counter::ConstCounter,
};
use rdma_token::{Family, names, testing::Regions};
use s3_proto::{Etag, Impairment, LOG_FILTER, RESERVED_BUCKETS, RdmaConfig, S3Config, Timers};

/// The client's memory.
fn memory() -> Box<dyn ClientMemory> {
    Box::new(Regions::new())
}

/// The samples of a page in Prometheus' text format. Checks that each has its help and type before it, and none comes twice.
fn samples(page: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let mut types: HashMap<String, String> = HashMap::new();
    let mut helped = String::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').expect("help").0.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, helped);
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
        } else {
            let (series, value) = line.rsplit_once(' ').expect("sample");
            let name = series.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let kind = types.get(name).or_else(|| types.get(base.unwrap_or_default())).expect("typed");
            assert!(kind != "counter" || name.ends_with("_total"), "{name}");
            assert!(samples.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series} twice");
        }
    }
    samples
}

#[derive(Debug)]
struct Device;

impl Collector for Device {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let doorbells = ConstCounter::new(42_u64);
        doorbells.encode(encoder.encode_descriptor(
            "ernic_device_doorbells",
            "Doorbells rung",
            None,
            doorbells.metric_type(),
        )?)
    }
}

#[test]
fn metrics_count_exactly() {
    let lab = lab_with(S3Config::default(), |builder, memory| {
        builder.with_remote(memory, RdmaConfig::new(ENDPOINT)).with_collector(Device)
    });
    let page = || {
        let answer = lab.call(&get("/metrics"));
        assert_eq!(answer.expect(200).header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        answer.expect_reply(None, None);
        let page = answer.text();
        assert_eq!(answer.header("content-length"), Some(&*page.len().to_string()));
        samples(&page)
    };
    let aistor = || {
        let page = samples(&lab.call(&get("/minio/metrics/v3/api/rdma")).expect(200).text());
        assert_eq!(page.len(), 2);
        [page["minio_api_rdma_read_ops_total"], page["minio_api_rdma_write_ops_total"]]
    };
    let zero = page();
    for series in [
        "ernic_rdma_bytes_total{operation=\"read\"}",
        "ernic_rdma_bytes_total{operation=\"write\"}",
        "minio_api_rdma_read_ops_total",
        "minio_api_rdma_write_ops_total",
        "ernic_rdma_transfers_active",
        "ernic_http_body_operations_total{operation=\"read\"}",
        "ernic_store_objects",
    ] {
        assert_eq!(zero[series], 0.0, "{series}");
    }
    assert_eq!(zero["ernic_device_doorbells_total"], 42.0);
    assert_eq!(aistor(), [0.0, 0.0]);

    let source = lab.region(&pattern(700));
    lab.call(&token_put("/ernic/k", &source.whole(Family::A))).expect_moved(Family::A, 200, 700);
    lab.call(&token_put("/ernic/k", &source.first(Family::C, 100))).expect_moved(Family::C, 200, 100);
    let target = lab.blank(700);
    lab.call(&get("/ernic/k").token(&target.whole(Family::D))).expect_moved(Family::D, 200, 100);
    lab.call(&get("/ernic/k").token(&token(Family::A, 0, target.window))).expect(500);
    lab.call(&get("/ernic/k").token(&token(Family::A, 0, target.window))).expect(500);
    lab.call(&get("/ernic/k").header(names::TOKEN, "nonsense")).expect(400);
    lab.put("body", b"12345");
    lab.get("body");
    let now = page();
    for (series, value) in [
        ("minio_api_rdma_read_ops_total", 1.0),
        ("minio_api_rdma_write_ops_total", 2.0),
        ("ernic_rdma_bytes_total{operation=\"read\"}", 100.0),
        ("ernic_rdma_bytes_total{operation=\"write\"}", 800.0),
        ("ernic_rdma_failures_total{reason=\"reserved_key\"}", 2.0),
        ("ernic_rdma_failures_total{reason=\"malformed\"}", 1.0),
        ("ernic_rdma_transfers_active", 0.0),
        ("ernic_rdma_transfer_seconds_count{operation=\"read\"}", 1.0),
        ("ernic_rdma_transfer_seconds_count{operation=\"write\"}", 2.0),
        ("ernic_rdma_transfer_seconds_bucket{operation=\"write\",le=\"+Inf\"}", 2.0),
        ("ernic_http_body_operations_total{operation=\"read\"}", 1.0),
        ("ernic_http_body_operations_total{operation=\"write\"}", 1.0),
        ("ernic_http_body_bytes_total{direction=\"in\"}", 5.0),
        ("ernic_http_errors_total{class=\"4xx\"}", 1.0),
        ("ernic_http_errors_total{class=\"5xx\"}", 2.0),
        ("ernic_http_connections_open", 1.0),
        ("ernic_store_objects", 2.0),
        ("ernic_store_bytes", 105.0),
        ("ernic_store_capacity_bytes", 64.0 * MIB as f64),
    ] {
        assert_eq!(now.get(series), Some(&value), "{series}");
    }
    assert_eq!(aistor(), [1.0, 2.0]);
    assert_eq!(now["ernic_http_requests_total"], zero["ernic_http_requests_total"] + 10.0);
    assert_eq!(samples(&lab.service.metrics().page()).len(), now.len());
}

#[test]
fn pages_are_read_only_and_nothing_else_is_there() {
    let lab = lab();
    let head = lab.call(&request("HEAD", "/metrics"));
    assert!(head.expect(200).header("content-length").unwrap().parse::<u64>().unwrap() > 1000);
    for path in ["/metrics", "/minio/metrics/v3/api/rdma"] {
        for method in ["PUT", "DELETE", "POST", "BREW"] {
            let answer = lab.call(&request(method, path).body("x"));
            answer.expect_error(405, "MethodNotAllowed", path);
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
        }
        // A query changes nothing, as with every scraper's parameters.
        lab.call(&get(&format!("{path}?a=b"))).expect(200);
    }
    lab.call(&get("/metrics/k")).expect_error(404, "NoSuchBucket", "/metrics/k");
    lab.call(&get("/minio/metrics")).expect_error(404, "NoSuchBucket", "/minio/metrics");
    assert_eq!(RESERVED_BUCKETS, ["metrics", "minio"]);
}

#[test]
fn hipobj_rc_is_told_that_it_is_off() {
    let lab = lab();
    for path in ["/.hipobj-rc/prepare", "/.hipobj-rc/ready", "/.hipobj-rc/cancel", "/.hipobj-rc/x/y", "/.hipobj-rc"] {
        for method in ["POST", "GET"] {
            let token = lab.blank(10).whole(Family::A);
            let answer =
                lab.call(&request(method, path).body("").header(names::PROTOCOL, "hipobj-rc-v2").token(&token));
            answer.expect_error(501, "NotImplemented", path);
            assert_eq!(answer.header("x-amz-rdma-protocol-status"), Some("unsupported"));
            answer.expect_reply(None, None);
        }
    }
    // Names that only begin like it are keys and buckets.
    let answer = lab.call(&get("/.hipobj-rcx/prepare"));
    assert_eq!((answer.status == 501, answer.header("x-amz-rdma-protocol-status")), (false, None));
    lab.put(".hipobj-rc/prepare", b"an object");
    assert_eq!(lab.get(".hipobj-rc/prepare"), b"an object");
}

// ---------------------------------------------------------------- the log

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_transfer_is_one_line_of_the_log() {
    let impairment = Impairment { faults: "decline@3".parse().unwrap(), ..Impairment::new(Arc::new(Timers::new())) };
    let rdma = RdmaConfig { impairment: Some(impairment), ..RdmaConfig::new(ENDPOINT) };
    let lab = lab_of(S3Config::default(), rdma);
    let log = Log::default();
    let of_subscriber = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_env_filter(format!("debug,{LOG_FILTER}"))
        .with_writer(move || of_subscriber.clone())
        .finish();
    let source = lab.region(&pattern(700));
    tracing::subscriber::with_default(subscriber, || {
        lab.call(&token_put("/ernic/k", &source.whole(Family::A))).expect(200);
        lab.call(&get("/ernic/k").token(&token(Family::C, 0xbad, source.window))).expect(500);
        lab.call(&get("/ernic/k").token(&source.whole(Family::E))).expect(501);
        lab.call(&get("/ernic/none").token(&source.whole(Family::A))).expect(404);
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |message: &str| -> Vec<&serde_json::Value> {
        lines.iter().map(|line| &line["fields"]).filter(|fields| fields["message"] == message).collect()
    };
    let transfers = of("rdma transfer");
    assert_eq!(transfers.len(), 3, "{log}");
    for (line, (operation, family, rkey, bytes, verdict)) in transfers.iter().zip([
        ("write", "A", source.rkey, 700, "ok"),
        ("read", "C", 0xbad, 0, "unknown_key"),
        ("read", "E", source.rkey, 0, "fault"),
    ]) {
        assert_eq!(line["operation"], operation);
        assert_eq!(line["family"], family);
        assert_eq!(line["rkey"], format!("{rkey:#x}"));
        assert_eq!((&line["address"], &line["length"]), (&format!("{BASE:#x}").into(), &700.into()));
        assert_eq!((&line["bytes"], &line["verdict"]), (&bytes.into(), &verdict.into()));
        assert!(line["micros"].is_u64(), "{line}");
    }
    let faults = of("rdma: fault on demand");
    assert_eq!(faults.len(), 1);
    assert_eq!((&faults[0]["fault"], &faults[0]["transfer"]), (&"decline@3".into(), &3.into()));
    // Mistakes of the client's are no errors of the server's.
    assert!(!log.contains("\"ERROR\"") && !log.contains("\"WARN\""), "{log}");
}

// ---------------------------------------------------------------- ETags

fn crc64(data: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data)
}

#[test]
fn etags_of_crc64nvme() {
    let config = S3Config { etag: Etag::Crc64Nvme, ..S3Config::default() };
    let lab = lab_of(config, RdmaConfig::new(ENDPOINT));
    let tag = |data: &[u8]| format!("\"{:016x}-crc64nvme\"", crc64(data));
    let content = pattern(400_000);
    assert_eq!(lab.put("check", b"123456789"), "\"ae8b14860a799888-crc64nvme\"");
    assert_eq!(lab.put("k", &content), tag(&content));
    let source = lab.region(&content);
    for name in ["", "CRC32", "SHA1", "CRC64NVME"] {
        let mut put = token_put("/ernic/k", &source.whole(Family::A));
        if !name.is_empty() {
            put = put.header("x-amz-sdk-checksum-algorithm", name);
        }
        let answer = lab.call(&put);
        assert_eq!(answer.expect_moved(Family::A, 200, 400_000).header("etag"), Some(&*tag(&content)), "{name}");
    }
    // It is an ETag like any other.
    lab.call(&get("/ernic/k").header("if-none-match", tag(&content))).expect(304);
    lab.call(&get("/ernic/k").header("if-match", tag(&content))).expect(200);
    let listed = lab.call(&get("/ernic")).expect(200).xml();
    assert!(listed.texts("Contents", "ETag").contains(&tag(&content)));
    // Content-MD5 is checked all the same.
    let md5 = "1B2M2Y8AsgTpgAmY7PhCfg==";
    lab.call(&put("/ernic/l", "x").header("content-md5", md5)).expect_error(400, "BadDigest", "/ernic/l");
    lab.call(&put("/ernic/l", "").header("content-md5", md5)).expect(200);

    let upload = lab.call(&request("POST", "/ernic/p?uploads").body("")).expect(200).xml().text_of("UploadId");
    let mut parts = String::new();
    for (number, part) in [(1, &content[..300_000]), (2, &content[300_000..])] {
        let source = lab.region(part);
        let target = format!("/ernic/p?partNumber={number}&uploadId={upload}");
        let answer = lab.call(&token_put(&target, &source.whole(Family::C)));
        assert_eq!(answer.expect_moved(Family::C, 200, part.len() as u64).header("etag"), Some(&*tag(part)));
        parts += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", tag(part));
    }
    let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let done = lab.call(&request("POST", &format!("/ernic/p?uploadId={upload}")).body(document)).expect(200).xml();
    assert_eq!(done.text_of("ETag"), tag(&content));
    assert_eq!(done.text_of("ChecksumCRC64NVME"), BASE64_STANDARD.encode(crc64(&content).to_be_bytes()));
    assert!(lab.get("p") == content);
}
