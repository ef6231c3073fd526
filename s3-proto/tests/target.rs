//! Lane `s3-target`: the operations. Listings, ranges, conditions, metadata, checksums, multipart, errors. XML is read with
//! quick-xml, independently of the library that writes it.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, prelude::BASE64_STANDARD};
use common::*;
use md5::Digest;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use proptest::prelude::*;
use s3_proto::S3Config;

fn md5_hex(data: &[u8]) -> String {
    hex::encode(md5::Md5::digest(data))
}

/// The path of a key, everything escaped.
fn path(key: &str) -> String {
    format!("/ernic/{}", utf8_percent_encode(key, NON_ALPHANUMERIC))
}

// ---------------------------------------------------------------- buckets

#[test]
fn buckets_are_listed_and_found() {
    let bench = plain();
    bench.store.create_bucket("another");
    let list = bench.call(&get("/")).expect(200).xml();
    assert_eq!(list.name, "ListAllMyBucketsResult");
    assert_eq!(list.child("Buckets").texts("Bucket", "Name"), ["another", "ernic"]);
    let date = list.child("Buckets").all("Bucket")[0].text_of("CreationDate");
    assert!(date.len() == 24 && date.ends_with('Z'), "{date}");
    assert!(!list.child("Owner").text_of("ID").is_empty());
    let page = bench.call(&get("/?max-buckets=1")).expect(200).xml();
    assert_eq!(page.child("Buckets").texts("Bucket", "Name"), ["another"]);
    let token = page.text_of("ContinuationToken");
    let page = bench.call(&get(&format!("/?max-buckets=1&continuation-token={token}"))).expect(200).xml();
    assert_eq!(page.child("Buckets").texts("Bucket", "Name"), ["ernic"]);
    assert!(page.all("ContinuationToken").is_empty());
    let page = bench.call(&get("/?prefix=er")).expect(200).xml();
    assert_eq!(page.child("Buckets").texts("Bucket", "Name"), ["ernic"]);
    bench.call(&get("/?max-buckets=0")).expect_error(400, "InvalidArgument", "/");

    let head = bench.call(&request("HEAD", "/ernic"));
    assert_eq!(head.expect(200).header("x-amz-bucket-region"), Some("us-east-1"));
    bench.call(&request("HEAD", "/ernic/")).expect(200);
    let location = bench.call(&get("/ernic?location")).expect(200).xml();
    assert_eq!((location.name.as_str(), location.text.as_str()), ("LocationConstraint", ""));
    let versioning = bench.call(&get("/ernic?versioning")).expect(200).xml();
    assert_eq!((versioning.name.as_str(), versioning.children.len()), ("VersioningConfiguration", 0));
    let elsewhere = bench_of(1, 1, S3Config { region: "eu-west-9".into(), ..S3Config::default() });
    assert_eq!(elsewhere.call(&get("/ernic?location")).xml().text, "eu-west-9");
}

#[test]
fn errors_name_code_resource_and_request() {
    let bench = bench_of(1000, 3, S3Config { max_part: 500, ..S3Config::default() });
    let long = "k".repeat(1025);
    for (request, status, code) in [
        (get("/nobucket"), 404, "NoSuchBucket"),
        (get("/nobucket?list-type=2&max-keys=0"), 404, "NoSuchBucket"),
        (get("/nobucket?uploads"), 404, "NoSuchBucket"),
        (get("/nobucket?location"), 404, "NoSuchBucket"),
        (get("/nobucket/k"), 404, "NoSuchBucket"),
        (put("/nobucket/k", "x"), 404, "NoSuchBucket"),
        (request("DELETE", "/nobucket/k"), 404, "NoSuchBucket"),
        (request("POST", "/nobucket/k?uploads"), 404, "NoSuchBucket"),
        (get("/ernic/none"), 404, "NoSuchKey"),
        (get("/ernic/a%20%3Cb%3E&c"), 404, "NoSuchKey"),
        (get("/Bad_Bucket"), 400, "InvalidBucketName"),
        (get("/x/k"), 400, "InvalidBucketName"),
        (get(&format!("/ernic/{long}")), 400, "KeyTooLongError"),
        (get("/ernic/none?versionId="), 400, "InvalidArgument"),
        (put("/ernic/k", vec![0; 501]), 400, "EntityTooLarge"),
        (request("PUT", "/ernic/k").chunked(&[0; 501], 100), 400, "EntityTooLarge"),
        (request("POST", "/ernic/k"), 405, "MethodNotAllowed"),
        (request("PATCH", "/ernic/k"), 405, "MethodNotAllowed"),
        (request("OPTIONS", "/ernic"), 405, "MethodNotAllowed"),
        (request("POST", "/"), 405, "MethodNotAllowed"),
        (get("/ernic?inventory"), 501, "NotImplemented"),
        (get("/ernic/k?tagging"), 404, "NoSuchKey"),
        (request("DELETE", "/nobucket/k?tagging"), 404, "NoSuchBucket"),
        (put("/ernic/k?retention", "x"), 501, "NotImplemented"),
        (request("POST", "/ernic/k?uploads").header("x-amz-checksum-algorithm", "MD4"), 400, "InvalidRequest"),
        (request("POST", "/ernic?delete").body(""), 400, "MissingRequestBodyError"),
        (request("POST", "/ernic?delete").body("<Delete><Object>"), 400, "MalformedXML"),
        (request("POST", "/ernic?delete").body("<Delete></Delete>"), 400, "MalformedXML"),
        (request("POST", "/ernic/k?uploadId=u").body(""), 400, "MalformedXML"),
    ] {
        let answer = bench.call(&request);
        let resource = request.target.split('?').next().unwrap();
        answer.expect_error(status, code, resource);
        assert_eq!(answer.header("allow").is_some(), status == 405, "{code}");
    }
    assert_eq!(bench.call(&request("POST", "/ernic/k")).header("allow"), Some("GET, HEAD, PUT, DELETE"));
    // A HEAD has no body, whatever happens.
    for target in ["/ernic/none", "/nobucket", "/nobucket/k", "/", "/ernic?inventory", "/x"] {
        let mut client = bench.client();
        let answer = client.call(&request("HEAD", target));
        assert!((400..=501).contains(&answer.status), "{target}");
        assert_eq!(answer.header("content-type"), None);
        client.call(&get("/ernic")).expect(200);
    }
    // An HTML form is refused without being read.
    let mut client = bench.client();
    client.send(
        &request("POST", "/ernic")
            .header("content-type", "multipart/form-data; boundary=x")
            .header("expect", "100-continue")
            .body(vec![0; 400])
            .head(),
    );
    client.answer("POST").expect_error(501, "NotImplemented", "/ernic");
}

// ---------------------------------------------------------------- objects

#[test]
fn an_object_comes_back_as_it_went() {
    let bench = plain();
    for len in [0, 1, 4096, MIB + 1] {
        let body = pattern(len);
        let answer = bench.call(&put("/ernic/dir/obj", body.clone()));
        let etag = format!("\"{}\"", md5_hex(&body));
        assert_eq!(answer.expect(200).header("etag"), Some(etag.as_str()));
        assert!(answer.body.is_empty());
        let got = bench.call(&get("/ernic/dir/obj"));
        let head = bench.call(&request("HEAD", "/ernic/dir/obj"));
        assert_eq!(got.expect(200).body, body);
        for answer in [&got, head.expect(200)] {
            assert_eq!(answer.header("etag"), Some(etag.as_str()));
            assert_eq!(answer.header("content-length"), Some(len.to_string().as_str()));
            assert_eq!(answer.header("content-type"), Some("binary/octet-stream"));
            assert_eq!(answer.header("accept-ranges"), Some("bytes"));
            assert!(answer.header("last-modified").unwrap().ends_with(" GMT"));
            assert_eq!(answer.header("transfer-encoding"), None);
            assert_eq!(answer.header("content-range"), None);
        }
        let strip = |answer: &Answer| {
            let mut headers = answer.headers.clone();
            headers.retain(|(name, _)| name != "x-amz-request-id" && name != "date");
            headers.sort();
            headers
        };
        assert_eq!(strip(&got), strip(&head), "HEAD says exactly what GET says");
    }
    for _ in 0..2 {
        let answer = bench.call(&request("DELETE", "/ernic/dir/obj"));
        assert!(answer.expect(204).body.is_empty());
    }
    bench.call(&get("/ernic/dir/obj")).expect_error(404, "NoSuchKey", "/ernic/dir/obj");
    bench.call(&request("HEAD", "/ernic/dir/obj")).expect(404);
}

#[test]
fn metadata_comes_back_as_it_went() {
    let bench = plain();
    let headers = [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-encoding", "gzip, br"),
        ("content-language", "de, en"),
        ("content-disposition", "attachment; filename=\"a b\""),
        ("cache-control", "max-age=1, no-transform"),
        ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
        ("x-amz-meta-plain", "value"),
        ("x-amz-meta-encoded", "=?UTF-8?Q?=C3=A4?="),
        ("x-amz-meta-inner", "a  b\tc"),
    ];
    let with = |request: Request| headers.iter().fold(request, |request, (name, value)| request.header(name, value));
    bench.call(&with(put("/ernic/m", "x"))).expect(200);
    for method in ["GET", "HEAD"] {
        let answer = bench.call(&request(method, "/ernic/m"));
        for (name, value) in headers {
            assert_eq!(answer.header(name), Some(value), "{method}");
        }
    }
    // Raw UTF-8 comes back as the same bytes (the reader takes bytes for Latin-1), `expires` as it was written, names in
    // lower case, repeated fields as one.
    let odd = put("/ernic/odd", "x")
        .header("x-amz-meta-utf8", "ä".as_bytes())
        .header("X-Amz-Meta-UPPER", "Value")
        .header("expires", "0")
        .header("x-amz-meta-twice", "1")
        .header("x-amz-meta-twice", "2");
    bench.call(&odd).expect(200);
    let answer = bench.call(&get("/ernic/odd"));
    assert_eq!(answer.header("x-amz-meta-utf8"), Some("Ã¤"));
    assert_eq!(answer.header("x-amz-meta-upper"), Some("Value"));
    assert_eq!(answer.header("x-amz-meta-twice"), Some("1,2"));
    assert_eq!(answer.header("expires"), Some("0"));
    // An overwrite replaces all of it.
    bench.call(&put("/ernic/m", "y")).expect(200);
    let answer = bench.call(&get("/ernic/m"));
    assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("x-amz-meta-")));
    assert_eq!(answer.header("content-language"), None);

    bench.call(&put("/ernic/m", "z").header("x-amz-meta-big", "v".repeat(2045))).expect(200);
    bench.call(&put("/ernic/m", "z").header("x-amz-meta-big", "v".repeat(2046))).expect_error(
        400,
        "MetadataTooLarge",
        "/ernic/m",
    );
    bench.call(&put("/ernic/m", "z").header("x-amz-meta-b", b"\xff")).expect_error(400, "InvalidArgument", "/ernic/m");
    // The client may ask for other headers.
    for method in ["GET", "HEAD"] {
        let target = "/ernic/odd?response-content-type=a%2Fb&response-cache-control=no-store&response-content-disposition=inline&response-content-language=x&response-content-encoding=y";
        let answer = bench.call(&request(method, target));
        assert_eq!(answer.expect(200).header("content-type"), Some("a/b"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("content-disposition"), Some("inline"));
        assert_eq!(answer.header("content-language"), Some("x"));
        assert_eq!(answer.header("content-encoding"), Some("y"));
    }
}

#[test]
fn ranges() {
    let bench = plain();
    let body = pattern(3 * MIB);
    bench.call(&put("/ernic/r", body.clone())).expect(200);
    let size = body.len();
    for (range, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=1024-1535", 1024, 1536),
        ("bytes=1048575-1048576", MIB - 1, MIB + 1),
        ("bytes=100-2999999", 100, 3_000_000),
        ("bytes=3145727-", size - 1, size),
        ("bytes=0-", 0, size),
        ("bytes=0-99999999999999999999", 0, size),
        ("bytes=-1", size - 1, size),
        ("bytes=-2000000", size - 2_000_000, size),
        ("bytes=-99999999999", 0, size),
    ] {
        let answer = bench.call(&get("/ernic/r").header("range", range));
        let content_range = format!("bytes {from}-{}/{size}", to - 1);
        assert!(answer.expect(206).body == body[from..to], "{range}");
        assert_eq!(answer.header("content-range"), Some(content_range.as_str()));
        assert_eq!(answer.header("content-length"), Some((to - from).to_string().as_str()));
        let head = bench.call(&request("HEAD", "/ernic/r").header("range", range));
        assert_eq!(head.expect(206).header("content-range"), Some(content_range.as_str()));
        assert_eq!(head.header("content-length"), Some((to - from).to_string().as_str()));
    }
    for range in ["bytes=3145728-", "bytes=3145728-3145729", "bytes=-0", "bytes=99999999999999999999-"] {
        let answer = bench.call(&get("/ernic/r").header("range", range));
        answer.expect_error(416, "InvalidRange", "/ernic/r");
        assert_eq!(answer.header("content-range"), Some("bytes */3145728"), "{range}");
        let head = bench.call(&request("HEAD", "/ernic/r").header("range", range));
        assert_eq!(head.expect(416).header("content-range"), Some("bytes */3145728"));
    }
    for range in ["bytes=0-1,3-4", "bytes=5-1", "lines=0-1", "bytes=x-", "bytes"] {
        let answer = bench.call(&get("/ernic/r").header("range", range));
        assert!(answer.expect(200).body == body, "{range} is ignored");
    }
    bench.call(&put("/ernic/empty", "")).expect(200);
    bench.call(&get("/ernic/empty").header("range", "bytes=0-")).expect_error(416, "InvalidRange", "/ernic/empty");
}

#[test]
fn conditional_reads() {
    let bench = plain();
    let etag =
        bench.call(&put("/ernic/c", "content").header("cache-control", "max-age=9")).header("etag").unwrap().to_owned();
    let modified = bench.call(&get("/ernic/c")).header("last-modified").unwrap().to_owned();
    let (past, future) = ("Thu, 01 Dec 1994 16:00:00 GMT", "Fri, 01 Dec 2194 16:00:00 GMT");
    for method in ["GET", "HEAD"] {
        for (name, value, status) in [
            ("if-match", etag.as_str(), 200),
            ("if-match", etag.trim_matches('"'), 200),
            ("if-match", "*", 200),
            ("if-match", "\"x\"", 412),
            ("if-none-match", &etag, 304),
            ("if-none-match", "\"x\", \"y\"", 200),
            ("if-modified-since", &modified, 304),
            ("if-modified-since", past, 200),
            ("if-modified-since", "not a date", 200),
            ("if-unmodified-since", &modified, 200),
            ("if-unmodified-since", future, 200),
            ("if-unmodified-since", past, 412),
        ] {
            let mut client = bench.client();
            let answer = client.call(&request(method, "/ernic/c").header(name, value));
            assert_eq!(answer.expect(status).status, status, "{name}: {value}");
            if status == 304 {
                assert_eq!(answer.header("etag"), Some(etag.as_str()));
                assert_eq!(answer.header("last-modified"), Some(modified.as_str()));
                assert_eq!(answer.header("cache-control"), Some("max-age=9"));
            }
            if status == 412 && method == "GET" {
                answer.expect_error(412, "PreconditionFailed", "/ernic/c");
            }
            client.call(&get("/ernic/c")).expect(200);
        }
    }
    bench.call(&get("/ernic/none").header("if-match", "*")).expect_error(404, "NoSuchKey", "/ernic/none");
    let range =
        |if_range: &str| bench.call(&get("/ernic/c").header("range", "bytes=0-1").header("if-range", if_range)).status;
    assert_eq!([range(&etag), range("\"x\""), range(&modified), range(past)], [206, 200, 206, 200]);
    // A failed precondition is told before an unsatisfiable range.
    bench.call(&get("/ernic/c").header("range", "bytes=99-").header("if-match", "\"x\"")).expect(412);
}

#[test]
fn conditional_writes() {
    let bench = plain();
    let absent = |body: &str| bench.call(&put("/ernic/w", body).header("if-none-match", "*"));
    let first = absent("1");
    let etag = first.expect(200).header("etag").unwrap().to_owned();
    absent("2").expect_error(412, "PreconditionFailed", "/ernic/w");
    let matching = |etag: &str, body: &str| bench.call(&put("/ernic/w", body).header("if-match", etag));
    matching("\"00\"", "3").expect_error(412, "PreconditionFailed", "/ernic/w");
    matching(&etag, "4").expect(200);
    matching(&etag, "5").expect_error(412, "PreconditionFailed", "/ernic/w");
    bench.call(&put("/ernic/none", "x").header("if-match", "\"00\"")).expect_error(404, "NoSuchKey", "/ernic/none");
    bench.call(&put("/ernic/none", "x").header("if-match", "*")).expect_error(404, "NoSuchKey", "/ernic/none");
    let there = bench.call(&get("/ernic/w"));
    assert_eq!(there.text(), "4");
    bench.call(&put("/ernic/w", "6").header("if-none-match", there.header("etag").unwrap())).expect_error(
        412,
        "PreconditionFailed",
        "/ernic/w",
    );
    bench.call(&put("/ernic/w", "7").header("if-none-match", "\"x\"")).expect(200);
    bench.call(&put("/ernic/w", "8").header("if-match", "*")).expect(200);
    for value in ["\"a\", \"b\"", "*, \"a\""] {
        bench.call(&put("/ernic/w", "x").header("if-none-match", value)).expect_error(
            501,
            "NotImplemented",
            "/ernic/w",
        );
    }
    let both = put("/ernic/w", "x").header("if-match", "*").header("if-none-match", "*");
    bench.call(&both).expect_error(501, "NotImplemented", "/ernic/w");
    assert_eq!(bench.call(&get("/ernic/w")).text(), "8");

    // Deletes know if-match.
    let delete = |etag: &str| bench.call(&request("DELETE", "/ernic/w").header("if-match", etag));
    delete(&etag).expect_error(412, "PreconditionFailed", "/ernic/w");
    bench.call(&request("DELETE", "/ernic/w").header("if-none-match", "*")).expect_error(
        501,
        "NotImplemented",
        "/ernic/w",
    );
    let now = bench.call(&get("/ernic/w")).header("etag").unwrap().to_owned();
    delete(&now).expect(204);
    delete("*").expect_error(404, "NoSuchKey", "/ernic/w");

    // Two writers that both may: the one that ends second finds that it may no more.
    let (mut a, mut b) = (bench.client(), bench.client());
    let put = |body: &str| put("/ernic/race", body).header("if-none-match", "*").bytes();
    let (one, two) = (put("one"), put("two"));
    a.send(&one[..one.len() - 1]);
    b.send(&two[..two.len() - 1]);
    b.send(&two[two.len() - 1..]);
    b.answer("PUT").expect(200);
    a.send(&one[one.len() - 1..]);
    a.answer("PUT").expect_error(412, "PreconditionFailed", "/ernic/race");
    assert_eq!(bench.call(&get("/ernic/race")).text(), "two");
}

// ---------------------------------------------------------------- digests

/// (header, value) of every checksum of `data`.
fn checksums(data: &[u8]) -> Vec<(&'static str, String)> {
    let crc = |algorithm| crc_fast::checksum(algorithm, data);
    let crc32 = |algorithm| BASE64_STANDARD.encode((crc(algorithm) as u32).to_be_bytes());
    vec![
        ("x-amz-checksum-crc32", crc32(crc_fast::CrcAlgorithm::Crc32IsoHdlc)),
        ("x-amz-checksum-crc32c", crc32(crc_fast::CrcAlgorithm::Crc32Iscsi)),
        ("x-amz-checksum-crc64nvme", BASE64_STANDARD.encode(crc(crc_fast::CrcAlgorithm::Crc64Nvme).to_be_bytes())),
        ("x-amz-checksum-sha1", BASE64_STANDARD.encode(sha1::Sha1::digest(data))),
        ("x-amz-checksum-sha256", BASE64_STANDARD.encode(sha2::Sha256::digest(data))),
    ]
}

#[test]
fn content_md5_is_verified() {
    let bench = plain();
    let right = BASE64_STANDARD.encode(md5::Md5::digest(b"data"));
    bench.call(&put("/ernic/d", "data").header("content-md5", &right)).expect(200);
    bench.call(&put("/ernic/d", "Data").header("content-md5", &right)).expect_error(400, "BadDigest", "/ernic/d");
    for bad in ["", "AAAA", "not base64", &md5_hex(b"data")] {
        bench.call(&put("/ernic/d", "data").header("content-md5", bad)).expect_error(400, "InvalidDigest", "/ernic/d");
    }
    assert_eq!(bench.call(&get("/ernic/d")).text(), "data");
}

#[test]
fn case_20_checksums_in_headers_and_trailers() {
    let bench = plain();
    let data = pattern(200_000);
    let wrong = checksums(b"other");
    for (i, (name, value)) in checksums(&data).into_iter().enumerate() {
        let algorithm = name.rsplit('-').next().unwrap().to_uppercase();
        let unsigned = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
        let good = [
            put("/ernic/s", data.clone()).header(name, &value).header("x-amz-sdk-checksum-algorithm", &algorithm),
            request("PUT", "/ernic/s")
                .aws_chunked(&data, 65_536, unsigned, &[(name, &value)])
                .header("x-amz-sdk-checksum-algorithm", &algorithm),
        ];
        for put in &good {
            let answer = bench.call(put);
            assert_eq!(answer.expect(200).header(name), Some(value.as_str()));
            assert_eq!(answer.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
            for method in ["GET", "HEAD"] {
                let plain = bench.call(&request(method, "/ernic/s"));
                assert_eq!(plain.header(name), None, "only who asks is told");
                let asked = bench.call(&request(method, "/ernic/s").header("x-amz-checksum-mode", "ENABLED"));
                assert_eq!(asked.header(name), Some(value.as_str()), "{method}");
                assert_eq!(asked.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
                let part = bench.call(
                    &request(method, "/ernic/s").header("x-amz-checksum-mode", "ENABLED").header("range", "bytes=0-9"),
                );
                assert_eq!(part.header(name), None, "not of these bytes");
            }
        }
        let bad = &wrong[i].1;
        for put in [
            put("/ernic/s", data.clone()).header(name, bad),
            request("PUT", "/ernic/s").aws_chunked(&data, 65_536, unsigned, &[(name, bad)]),
        ] {
            bench.call(&put).expect_error(400, "BadDigest", "/ernic/s");
        }
        bench.call(&put("/ernic/s", "x").header(name, "AAA")).expect_error(400, "InvalidRequest", "/ernic/s");
    }
    // Without any, CRC64NVME is computed; with only its name, the named one.
    let answer = bench.call(&put("/ernic/s", "123456789"));
    assert_eq!(answer.header("x-amz-checksum-crc64nvme"), Some("rosUhgp5mIg="));
    let answer = bench.call(&put("/ernic/s", "123456789").header("x-amz-sdk-checksum-algorithm", "CRC32"));
    assert_eq!(answer.header("x-amz-checksum-crc32"), Some("y/Q5Jg=="));
    assert_eq!(answer.header("x-amz-checksum-crc64nvme"), None);
    let two = put("/ernic/s", "x")
        .header("x-amz-checksum-crc32", "y/Q5Jg==")
        .header("x-amz-checksum-crc64nvme", "rosUhgp5mIg=");
    bench.call(&two).expect_error(400, "InvalidRequest", "/ernic/s");
    bench.call(&put("/ernic/s", "x").header("x-amz-checksum-xxh3", "AA==")).expect_error(
        400,
        "InvalidRequest",
        "/ernic/s",
    );
    bench.call(&put("/ernic/s", "x").header("x-amz-trailer", "x-amz-checksum-crc32")).expect_error(
        400,
        "InvalidRequest",
        "/ernic/s",
    );
}

// ---------------------------------------------------------------- listings

fn fill(bench: &Bench, keys: &[&str]) {
    for key in keys {
        bench.call(&put(&path(key), key.as_bytes())).expect(200);
    }
}

fn keys(list: &Node) -> Vec<String> {
    list.texts("Contents", "Key")
}

fn groups(list: &Node) -> Vec<String> {
    list.texts("CommonPrefixes", "Prefix")
}

#[test]
fn listings_of_both_versions() {
    let bench = plain();
    let all = ["a", "b/1", "b/2", "b/c/3", "d", "é/x"];
    fill(&bench, &all);
    for version in ["", "list-type=2&"] {
        let list = |query: &str| bench.call(&get(&format!("/ernic?{version}{query}"))).expect(200).xml();
        let whole = list("");
        assert_eq!(whole.name, "ListBucketResult");
        assert_eq!(keys(&whole), all);
        assert_eq!(whole.text_of("Name"), "ernic");
        assert_eq!(whole.text_of("Prefix"), "");
        assert_eq!(whole.text_of("MaxKeys"), "1000");
        assert_eq!(whole.text_of("IsTruncated"), "false");
        assert!(whole.all("Delimiter").is_empty() && whole.all("EncodingType").is_empty());
        let entry = whole.all("Contents")[1].clone();
        assert_eq!(entry.text_of("Size"), "3");
        assert_eq!(entry.text_of("ETag"), format!("\"{}\"", md5_hex(b"b/1")));
        assert_eq!(entry.text_of("StorageClass"), "STANDARD");
        assert_eq!(entry.text_of("LastModified").len(), 24);
        assert_eq!(entry.all("Owner").len(), usize::from(version.is_empty()));

        let top = list("delimiter=/");
        assert_eq!((keys(&top), groups(&top)), (vec!["a".into(), "d".into()], vec!["b/".into(), "é/".into()]));
        assert_eq!(top.text_of("Delimiter"), "/");
        let inner = list("delimiter=/&prefix=b/");
        assert_eq!((keys(&inner), groups(&inner)), (vec!["b/1".into(), "b/2".into()], vec!["b/c/".into()]));
        assert_eq!(keys(&list("prefix=b")), ["b/1", "b/2", "b/c/3"]);
        assert_eq!(groups(&list("delimiter=b/c")), ["b/c"]);
        assert!(keys(&list("prefix=zzz")).is_empty());
        assert_eq!(keys(&list("delimiter=&prefix=b/c")), ["b/c/3"]);

        let none = list("max-keys=0");
        assert_eq!(
            (keys(&none).len(), none.text_of("IsTruncated"), none.text_of("MaxKeys")),
            (0, "false".into(), "0".into())
        );
        assert_eq!(list("max-keys=5000").text_of("MaxKeys"), "1000");
        for bad in ["-1", "abc", "2147483648", "1.5"] {
            bench.call(&get(&format!("/ernic?{version}max-keys={bad}"))).expect_error(400, "InvalidArgument", "/ernic");
        }
    }
    let list = bench.call(&get("/ernic?list-type=2&fetch-owner=true&start-after=b/2&delimiter=/")).xml();
    assert_eq!((keys(&list), groups(&list)), (vec!["d".into()], vec!["é/".into()]));
    assert_eq!(list.text_of("StartAfter"), "b/2");
    assert_eq!(list.text_of("KeyCount"), "2");
    assert_eq!(list.all("Contents")[0].all("Owner").len(), 1);
    let list = bench.call(&get("/ernic?marker=b/2")).xml();
    assert_eq!((keys(&list), list.text_of("Marker")), (vec!["b/c/3".into(), "d".into(), "é/x".into()], "b/2".into()));
    // An empty one is that of the beginning.
    let list = bench.call(&get("/ernic?list-type=2&continuation-token=&max-keys=1")).expect(200).xml();
    assert_eq!((keys(&list), list.text_of("ContinuationToken")), (vec!["a".into()], String::new()));
    for token in ["x", "a", "k!!", "kA"] {
        bench.call(&get(&format!("/ernic?list-type=2&continuation-token={token}"))).expect_error(
            400,
            "InvalidArgument",
            "/ernic",
        );
    }
}

#[test]
fn ten_thousand_keys_in_pages_each_exactly_once() {
    let bench = bench_of(MIB as u64, 20_000, S3Config::default());
    let mut client = bench.client();
    let all: Vec<String> = (0..10_000).map(|i| format!("{:02}/{i:05}", i % 37)).collect();
    for key in &all {
        client.call(&put(&format!("/ernic/{key}"), "")).expect(200);
    }
    let sorted: BTreeSet<&String> = all.iter().collect();
    for size in [1000, 999] {
        let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let query = if token.is_empty() { String::new() } else { format!("&continuation-token={token}") };
            let page = client.call(&get(&format!("/ernic?list-type=2&max-keys={size}{query}"))).expect(200).xml();
            seen.extend(keys(&page));
            pages += 1;
            if page.text_of("IsTruncated") == "false" {
                assert!(page.all("NextContinuationToken").is_empty());
                break;
            }
            token = page.text_of("NextContinuationToken");
        }
        assert_eq!(pages, 10_000_usize.div_ceil(size));
        assert!(seen.iter().eq(sorted.iter().copied()), "every key once and in order");
    }
}

#[test]
fn case_17_odd_keys_are_encoded_exactly_once() {
    let bench = plain();
    let odd = [
        "a+ b.txt",
        "\u{1}",
        "x\u{1}y",
        "per%20cent",
        "a&b<c>d\"e'",
        "tab\tcr\rlf\n",
        "ümläut/日本",
        "q?#[]@!$()*,;=",
        "~-_./",
    ];
    fill(&bench, &odd);
    let sorted: Vec<&str> = BTreeSet::from(odd).into_iter().collect();
    for version in ["", "&list-type=2"] {
        let list = bench.call(&get(&format!("/ernic?encoding-type=url{version}"))).expect(200).xml();
        assert_eq!(list.text_of("EncodingType"), "url");
        let decoded: Vec<String> =
            keys(&list).iter().map(|key| percent_decode_str(key).decode_utf8().unwrap().into_owned()).collect();
        assert_eq!(decoded, sorted);
        for key in keys(&list) {
            assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~/%".contains(&b)), "{key}");
        }
        assert!(keys(&list).contains(&"a%2B%20b.txt".to_owned()) && keys(&list).contains(&"%01".to_owned()));
        // What else carries keys is encoded, too.
        let list = bench
            .call(&get(&format!("/ernic?encoding-type=url{version}&prefix=a%2B%20&delimiter=%20b&max-keys=1")))
            .xml();
        assert_eq!((list.text_of("Prefix"), list.text_of("Delimiter")), ("a%2B%20".into(), "%20b".into()));
        for unknown in ["", "URL", "base64"] {
            bench.call(&get(&format!("/ernic?encoding-type={unknown}{version}"))).expect_error(
                400,
                "InvalidArgument",
                "/ernic",
            );
        }
    }
    let list = bench.call(&get("/ernic?encoding-type=url&marker=%01&max-keys=1")).xml();
    assert_eq!((list.text_of("Marker"), list.text_of("NextMarker")), ("%01".into(), "a%26b%3Cc%3Ed%22e%27".into()));
    let list = bench.call(&get("/ernic?list-type=2&encoding-type=url&start-after=%01%20")).xml();
    assert_eq!(list.text_of("StartAfter"), "%01%20");
    // Without encoding, an XML reader still gets the key, line ends included.
    let list = bench.call(&get("/ernic")).expect(200).xml();
    assert_eq!(keys(&list), sorted);
    for key in odd {
        assert_eq!(bench.call(&get(&path(key))).expect(200).text(), key);
        let upload = bench.call(&request("POST", &format!("{}?uploads", path(key)))).expect(200).xml();
        assert_eq!(upload.text_of("Key"), key);
    }
    let uploads = bench.call(&get("/ernic?uploads&encoding-type=url")).xml();
    assert!(uploads.texts("Upload", "Key").contains(&"tab%09cr%0Dlf%0A".to_owned()));
    bench.call(&get("/ernic?uploads&encoding-type=x")).expect_error(400, "InvalidArgument", "/ernic");
    for key in odd {
        bench.call(&request("DELETE", &path(key))).expect(204);
    }
    assert!(keys(&bench.call(&get("/ernic")).xml()).is_empty());
}

/// A page by definition: entries after `after`, in order, at most `max`.
fn model_page(
    all: &BTreeSet<String>,
    prefix: &str,
    delimiter: &str,
    after: &str,
    max: usize,
) -> (Vec<String>, Vec<String>, bool) {
    let mut entries = BTreeMap::new();
    for key in all.iter().filter(|key| key.starts_with(prefix)) {
        let cut = Some(&key[prefix.len()..]).filter(|_| !delimiter.is_empty()).and_then(|rest| rest.find(delimiter));
        let entry = cut.map_or_else(|| key.clone(), |at| key[..prefix.len() + at + delimiter.len()].to_owned());
        if entry.as_str() > after {
            entries.insert(entry, cut.is_some());
        }
    }
    let page: Vec<_> = entries.iter().take(max).collect();
    let pick = |group: bool| page.iter().filter(|(_, is)| **is == group).map(|(entry, _)| (*entry).clone()).collect();
    (pick(false), pick(true), max > 0 && entries.len() > max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Any listing of any keys, followed page by page, is what the definition says.
    #[test]
    fn listings_are_what_the_definition_says(
        all in prop::collection::btree_set("[ab/+ ]{1,5}", 0..12),
        prefix in "[ab/]{0,2}",
        delimiter in prop::sample::select(vec!["", "/", "a", "b/"]),
        max in 0usize..5,
        v2: bool,
    ) {
        let bench = plain();
        let mut client = bench.client();
        for key in &all {
            client.call(&put(&path(key), "")).expect(200);
        }
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (mut after, mut token) = (String::new(), String::new());
        loop {
            let (want_keys, want_groups, more) = model_page(&all, &prefix, delimiter, &after, max);
            let mut query = format!("encoding-type=url&prefix={}&delimiter={}&max-keys={max}", encode(&prefix), encode(delimiter));
            match (v2, after.is_empty()) {
                (true, true) => query.push_str("&list-type=2"),
                (true, false) => query.push_str(&format!("&list-type=2&continuation-token={token}")),
                (false, _) => query.push_str(&format!("&marker={}", encode(&after))),
            }
            let page = client.call(&get(&format!("/ernic?{query}"))).expect(200).xml();
            let decode = |list: Vec<String>| -> Vec<String> {
                list.iter().map(|text| percent_decode_str(text).decode_utf8().unwrap().into_owned()).collect()
            };
            prop_assert_eq!(decode(keys(&page)), want_keys.clone());
            prop_assert_eq!(decode(groups(&page)), want_groups.clone());
            prop_assert_eq!(page.text_of("IsTruncated"), more.to_string());
            if v2 {
                prop_assert_eq!(page.text_of("KeyCount"), (want_keys.len() + want_groups.len()).to_string());
            }
            if !more {
                break;
            }
            after = want_keys.into_iter().chain(want_groups).max().unwrap();
            if v2 {
                token = page.text_of("NextContinuationToken");
            } else {
                prop_assert_eq!(decode(vec![page.text_of("NextMarker")]), vec![after.clone()]);
            }
        }
    }
}

// ---------------------------------------------------------------- multipart

fn start(bench: &Bench, key: &str) -> String {
    let answer = bench.call(
        &request("POST", &format!("/ernic/{key}?uploads")).header("x-amz-meta-of", key).header("content-type", "a/b"),
    );
    let xml = answer.expect(200).xml();
    assert_eq!(xml.name, "InitiateMultipartUploadResult");
    assert_eq!((xml.text_of("Bucket"), xml.text_of("Key")), ("ernic".into(), key.into()));
    xml.text_of("UploadId")
}

fn part(bench: &Bench, key: &str, upload: &str, number: u32, body: &[u8]) -> String {
    let answer = bench.call(&put(&format!("/ernic/{key}?partNumber={number}&uploadId={upload}"), body));
    let etag = answer.expect(200).header("etag").unwrap().to_owned();
    assert_eq!(etag, format!("\"{}\"", md5_hex(body)));
    etag
}

fn completion(parts: &[(u32, &str)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"))
        .collect();
    format!(
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{parts}</CompleteMultipartUpload>"
    )
}

fn complete(bench: &Bench, key: &str, upload: &str, parts: &[(u32, &str)]) -> Answer {
    bench.call(&request("POST", &format!("/ernic/{key}?uploadId={upload}")).body(completion(parts)))
}

#[test]
fn multipart_from_start_to_end() {
    let bench = plain();
    let upload = start(&bench, "multi");
    let bodies = [pattern(MIB + 5), pattern(70_000), b"end".to_vec()];
    let replaced = part(&bench, "multi", &upload, 2, b"replaced later");
    let etags: Vec<String> = [(1, 0), (2, 1), (7, 2)]
        .iter()
        .map(|(number, i)| part(&bench, "multi", &upload, *number, &bodies[*i]))
        .collect();
    bench.call(&get("/ernic/multi")).expect_error(404, "NoSuchKey", "/ernic/multi");

    let list = bench.call(&get(&format!("/ernic/multi?uploadId={upload}"))).expect(200).xml();
    assert_eq!(list.name, "ListPartsResult");
    assert_eq!(list.texts("Part", "PartNumber"), ["1", "2", "7"]);
    assert_eq!(list.texts("Part", "ETag"), etags);
    assert_eq!(list.texts("Part", "Size"), bodies.each_ref().map(|body| body.len().to_string()));
    assert_eq!(list.text_of("IsTruncated"), "false");
    let page = bench.call(&get(&format!("/ernic/multi?uploadId={upload}&max-parts=2"))).xml();
    assert_eq!(
        (page.texts("Part", "PartNumber"), page.text_of("IsTruncated")),
        (vec!["1".into(), "2".into()], "true".into())
    );
    let marker = page.text_of("NextPartNumberMarker");
    let page =
        bench.call(&get(&format!("/ernic/multi?uploadId={upload}&max-parts=2&part-number-marker={marker}"))).xml();
    assert_eq!((page.texts("Part", "PartNumber"), page.text_of("IsTruncated")), (vec!["7".into()], "false".into()));

    complete(&bench, "multi", &upload, &[(1, &etags[0]), (2, &replaced), (7, &etags[2])]).expect_error(
        400,
        "InvalidPart",
        "/ernic/multi",
    );
    let answer = complete(&bench, "multi", &upload, &[(1, &etags[0]), (2, &etags[1]), (7, &etags[2])]);
    let xml = answer.expect(200).xml();
    let digests: Vec<u8> = etags.iter().flat_map(|etag| hex::decode(etag.trim_matches('"')).unwrap()).collect();
    let etag = format!("\"{}-3\"", md5_hex(&digests));
    assert_eq!(xml.name, "CompleteMultipartUploadResult");
    assert_eq!(xml.text_of("ETag"), etag);
    assert_eq!((xml.text_of("Bucket"), xml.text_of("Key")), ("ernic".into(), "multi".into()));
    assert_eq!(xml.text_of("Location"), "http://s3.test/ernic/multi");
    let whole = bodies.concat();
    assert_eq!(xml.text_of("ChecksumCRC64NVME"), checksums(&whole)[2].1, "of the whole object, from the parts'");
    assert_eq!(xml.text_of("ChecksumType"), "FULL_OBJECT");

    let got = bench.call(&get("/ernic/multi").header("x-amz-checksum-mode", "ENABLED"));
    assert!(got.expect(200).body == whole);
    assert_eq!(got.header("etag"), Some(etag.as_str()));
    assert_eq!(got.header("x-amz-meta-of"), Some("multi"));
    assert_eq!(got.header("content-type"), Some("a/b"));
    assert_eq!(got.header("x-amz-checksum-crc64nvme"), Some(checksums(&whole)[2].1.as_str()));
    // Ranges over the seam, and by part.
    let seam = bench.call(&get("/ernic/multi").header("range", "bytes=1048579-1048582"));
    assert_eq!(seam.expect(206).body, whole[MIB + 3..MIB + 7]);
    for (number, body) in bodies.iter().enumerate() {
        for method in ["GET", "HEAD"] {
            let one = bench.call(&request(method, &format!("/ernic/multi?partNumber={}", number + 1)));
            assert_eq!(one.expect(206).header("x-amz-mp-parts-count"), Some("3"));
            assert_eq!(one.header("content-length"), Some(body.len().to_string().as_str()));
            assert!(method == "HEAD" || one.body == *body);
        }
    }
    bench.call(&get("/ernic/multi?partNumber=4")).expect_error(416, "InvalidPartNumber", "/ernic/multi");
    bench.call(&get("/ernic/multi?partNumber=0")).expect_error(400, "InvalidArgument", "/ernic/multi");
    bench.call(&get("/ernic/multi?partNumber=1").header("range", "bytes=0-1")).expect_error(
        400,
        "InvalidRequest",
        "/ernic/multi",
    );
    // The upload is gone.
    for request in [
        get(&format!("/ernic/multi?uploadId={upload}")),
        put(&format!("/ernic/multi?partNumber=1&uploadId={upload}"), "x"),
        request("POST", &format!("/ernic/multi?uploadId={upload}")).body(completion(&[(1, &etags[0])])),
        request("DELETE", &format!("/ernic/multi?uploadId={upload}")),
    ] {
        bench.call(&request).expect_error(404, "NoSuchUpload", "/ernic/multi");
    }
    let simple = bench.call(&put("/ernic/simple", "abc"));
    assert_eq!(simple.status, 200);
    let one = bench.call(&get("/ernic/simple?partNumber=1"));
    assert_eq!((one.status, one.text(), one.header("content-range")), (206, "abc".into(), Some("bytes 0-2/3")));
}

#[test]
fn case_18_completions() {
    let bench = plain();
    let upload = start(&bench, "k");
    let (a, b) = (part(&bench, "k", &upload, 1, b"aaa"), part(&bench, "k", &upload, 2, b"bb"));
    let unlisted = part(&bench, "k", &upload, 3, b"never listed");
    let wrong = "\"00000000000000000000000000000000\"";
    for (parts, code) in [
        (&[(2, b.as_str()), (1, a.as_str())][..], "InvalidPartOrder"),
        (&[(1, &a), (1, &a)], "InvalidPartOrder"),
        (&[(1, &a), (2, wrong)], "InvalidPart"),
        (&[(1, &a), (4, &b)], "InvalidPart"),
        (&[(1, &b), (2, &a)], "InvalidPart"),
        (&[(0, &a)], "InvalidPartOrder"),
        (&[(10_001, &a)], "InvalidArgument"),
        (&[], "MalformedXML"),
    ] {
        complete(&bench, "k", &upload, parts).expect_error(400, code, "/ernic/k");
    }
    bench
        .call(
            &request("POST", &format!("/ernic/k?uploadId={upload}"))
                .body(completion(&[(1, &a)]))
                .header("x-amz-mp-object-size", "4"),
        )
        .expect_error(400, "InvalidRequest", "/ernic/k");
    bench.call(&request("POST", &format!("/ernic/other?uploadId={upload}")).body(completion(&[(1, &a)]))).expect_error(
        404,
        "NoSuchUpload",
        "/ernic/other",
    );
    bench.call(&get("/ernic/k")).expect_error(404, "NoSuchKey", "/ernic/k");
    // After all these the upload still is what it was. Unquoted ETags are ETags; only the listed parts are used.
    let xml =
        complete(&bench, "k", &upload, &[(1, a.trim_matches('"')), (2, &b.replace('"', "&quot;"))]).expect(200).xml();
    let digests = [md5::Md5::digest(b"aaa"), md5::Md5::digest(b"bb")].concat();
    assert_eq!(xml.text_of("ETag"), format!("\"{}-2\"", md5_hex(&digests)));
    assert_eq!(bench.call(&get("/ernic/k")).text(), "aaabb");
    let usage = ernic_store::Store::usage(&*bench.store);
    assert_eq!((usage.objects, usage.bytes, usage.uploads), (1, 5, 0), "{unlisted} is given back");

    for number in ["0", "10001", "-1", "x"] {
        let upload = start(&bench, "k");
        bench.call(&put(&format!("/ernic/k?partNumber={number}&uploadId={upload}"), "x")).expect_error(
            400,
            "InvalidArgument",
            "/ernic/k",
        );
    }
}

#[test]
fn case_15_part_checksums_at_completion() {
    let bench = plain();
    let body = |checks: &[(&str, &str, &str)]| {
        let parts: String = checks
            .iter()
            .enumerate()
            .map(|(i, (etag, name, value))| {
                let check = if name.is_empty() { String::new() } else { format!("<{name}>{value}</{name}>") };
                format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag>{check}</Part>", i + 1)
            })
            .collect();
        format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
    };
    let (one, two) = (pattern(100_000), b"123456789".to_vec());
    let (sum1, sum2) = (checksums(&one)[2].1.clone(), checksums(&two)[2].1.clone());
    assert_eq!(hex::encode(BASE64_STANDARD.decode(&sum2).unwrap()), "ae8b14860a799888");
    let name = "ChecksumCRC64NVME";
    let run = |with: bool, second: &str| {
        let upload = start(&bench, "k");
        let (a, b) = (part(&bench, "k", &upload, 1, &one), part(&bench, "k", &upload, 2, &two));
        let name = if with { name } else { "" };
        let document = body(&[(&a, name, &sum1), (&b, name, second)]);
        bench.call(&request("POST", &format!("/ernic/k?uploadId={upload}")).body(document))
    };
    assert_eq!(run(true, &sum2).expect(200).xml().text_of(name), checksums(&[one.clone(), two.clone()].concat())[2].1);
    run(false, &sum2).expect(200);
    run(true, &sum1).expect_error(400, "InvalidPart", "/ernic/k");

    // What the client sent with the parts decides; composite and full-object values as S3 computes them.
    for (i, header) in ["x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-sha1", "x-amz-checksum-sha256"]
        .iter()
        .enumerate()
    {
        let index = [0, 1, 3, 4][i];
        let element = ["ChecksumCRC32", "ChecksumCRC32C", "ChecksumSHA1", "ChecksumSHA256"][i];
        let upload = start(&bench, "k");
        let mut etags = Vec::new();
        let mut sums = Vec::new();
        for (number, body) in [&one, &two].iter().enumerate() {
            let (_, sum) = &checksums(body)[index];
            let answer = bench.call(
                &put(&format!("/ernic/k?partNumber={}&uploadId={upload}", number + 1), (*body).clone())
                    .header(header, sum),
            );
            assert_eq!(answer.expect(200).header(header), Some(sum.as_str()));
            etags.push(answer.header("etag").unwrap().to_owned());
            sums.push(sum.clone());
        }
        let list = bench.call(&get(&format!("/ernic/k?uploadId={upload}"))).xml();
        assert_eq!(list.texts("Part", element), sums);
        let of_sums: Vec<u8> = sums.iter().flat_map(|sum| BASE64_STANDARD.decode(sum).unwrap()).collect();
        let composite = format!("{}-2", checksums(&of_sums)[index].1);
        let document = body(&[(&etags[0], element, &sums[0]), (&etags[1], element, &sums[1])]);
        let complete = |header: &str, value: &str, kind: &str| {
            let mut request = request("POST", &format!("/ernic/k?uploadId={upload}")).body(document.clone());
            if !value.is_empty() {
                request = request.header(header, value);
            }
            if !kind.is_empty() {
                request = request.header("x-amz-checksum-type", kind);
            }
            bench.call(&request)
        };
        complete(header, &sums[0], "").expect_error(400, "BadDigest", "/ernic/k");
        complete("x-amz-checksum-crc64nvme", &sum1, "").expect_error(400, "InvalidRequest", "/ernic/k");
        let full = i == 0;
        let whole = checksums(&[one.clone(), two.clone()].concat())[index].1.clone();
        let (kind, expected) = if full { ("FULL_OBJECT", whole) } else { ("COMPOSITE", composite) };
        let xml = complete(header, &expected, kind).expect(200).xml();
        assert_eq!((xml.text_of(element), xml.text_of("ChecksumType")), (expected.clone(), kind.to_owned()));
        let head = bench.call(&request("HEAD", "/ernic/k").header("x-amz-checksum-mode", "enabled"));
        assert_eq!((head.header(header), head.header("x-amz-checksum-type")), (Some(expected.as_str()), Some(kind)));
    }
}

#[test]
fn uploads_are_listed_and_aborted() {
    let bench = plain();
    let mut uploads: Vec<(String, String)> =
        ["a", "dir/x", "dir/y", "e", "e"].iter().map(|key| ((*key).to_owned(), start(&bench, key))).collect();
    uploads.sort();
    let list = bench.call(&get("/ernic?uploads")).expect(200).xml();
    assert_eq!(list.name, "ListMultipartUploadsResult");
    let shown = |list: &Node| -> Vec<(String, String)> {
        list.texts("Upload", "Key").into_iter().zip(list.texts("Upload", "UploadId")).collect()
    };
    assert_eq!(shown(&list), uploads);
    assert_eq!(list.text_of("IsTruncated"), "false");
    let list = bench.call(&get("/ernic?uploads&delimiter=/")).xml();
    assert_eq!((list.texts("Upload", "Key").len(), groups(&list)), (3, vec!["dir/".into()]));
    let list = bench.call(&get("/ernic?uploads&prefix=dir/")).xml();
    assert_eq!(list.texts("Upload", "Key"), ["dir/x", "dir/y"]);
    // Page by page, one at a time, also within a key.
    let (mut key, mut id, mut seen) = (String::new(), String::new(), Vec::new());
    loop {
        let page =
            bench.call(&get(&format!("/ernic?uploads&max-uploads=1&key-marker={key}&upload-id-marker={id}"))).xml();
        seen.extend(shown(&page));
        if page.text_of("IsTruncated") == "false" {
            break;
        }
        (key, id) = (page.text_of("NextKeyMarker"), page.text_of("NextUploadIdMarker"));
        assert!(seen.len() < 10);
    }
    assert_eq!(seen, uploads);
    let page = bench.call(&get("/ernic?uploads&max-uploads=2&delimiter=/&key-marker=a")).xml();
    assert_eq!(
        (groups(&page), page.texts("Upload", "Key"), page.text_of("IsTruncated")),
        (vec!["dir/".into()], vec!["e".into()], "true".into())
    );

    part(&bench, "a", &uploads[0].1, 1, &[0; 1000]);
    for (key, upload) in &uploads {
        bench.call(&request("DELETE", &format!("/ernic/{key}?uploadId={upload}"))).expect(204);
        bench.call(&request("DELETE", &format!("/ernic/{key}?uploadId={upload}"))).expect_error(
            404,
            "NoSuchUpload",
            &format!("/ernic/{key}"),
        );
    }
    let usage = ernic_store::Store::usage(&*bench.store);
    assert_eq!((usage.bytes, usage.uploads), (0, 0));
}

// ---------------------------------------------------------------- room

#[test]
fn a_full_store_says_so() {
    let bench = bench_of(1000, 2, S3Config::default());
    bench.call(&put("/ernic/a", vec![1; 600])).expect(200);
    bench.call(&put("/ernic/b", vec![2; 401])).expect_error(507, "InsufficientStorage", "/ernic/b");
    bench.call(&request("PUT", "/ernic/b").chunked(&[2; 401], 50)).expect_error(507, "InsufficientStorage", "/ernic/b");
    bench.call(&put("/ernic/a", vec![3; 1000])).expect(200);
    bench.call(&put("/ernic/a", vec![3; 1001])).expect_error(507, "InsufficientStorage", "/ernic/a");
    bench.call(&put("/ernic/a", "small")).expect(200);
    let upload = start(&bench, "b");
    // Slots: one object and one upload.
    bench.call(&put("/ernic/c", "")).expect_error(507, "InsufficientStorage", "/ernic/c");
    bench.call(&request("POST", "/ernic/c?uploads")).expect_error(507, "InsufficientStorage", "/ernic/c");
    bench.call(&put(&format!("/ernic/b?partNumber=1&uploadId={upload}"), vec![0; 996])).expect_error(
        507,
        "InsufficientStorage",
        "/ernic/b",
    );
    part(&bench, "b", &upload, 1, &[0; 995]);
    bench.call(&request("DELETE", &format!("/ernic/b?uploadId={upload}"))).expect(204);
    bench.call(&put("/ernic/c", vec![0; 995])).expect(200);
    assert_eq!(bench.call(&get("/ernic/a")).text(), "small");
}

// ---------------------------------------------------------------- many deletes

#[test]
fn many_deletes_in_one_request() {
    let bench = plain();
    fill(&bench, &["a", "b&c", "d", "e"]);
    let delete = |inner: &str| format!("<Delete>{inner}</Delete>");
    let object = |key: &str| format!("<Object><Key>{key}</Key></Object>");
    let post = |body: String| request("POST", "/ernic?delete").body(body);
    let answer =
        bench.call(&post(delete(&[object("a"), object("b&amp;c"), object("none")].concat()))).expect(200).xml();
    assert_eq!(answer.name, "DeleteResult");
    assert_eq!(answer.texts("Deleted", "Key"), ["a", "b&c", "none"]);
    let quiet =
        delete(&format!("<Quiet>true</Quiet>{}<Object><Key>e</Key><VersionId>7</VersionId></Object>", object("d")));
    let answer = bench.call(&post(quiet)).expect(200).xml();
    assert!(answer.all("Deleted").is_empty());
    assert_eq!(
        (answer.texts("Error", "Key"), answer.texts("Error", "Code")),
        (Vec::<String>::new(), Vec::<String>::new()),
        "a version that is not there is deleted, like a key that is not"
    );
    assert_eq!(keys(&bench.call(&get("/ernic")).xml()), ["e"]);

    let body = delete(&object("e"));
    let md5 = BASE64_STANDARD.encode(md5::Md5::digest(body.as_bytes()));
    bench.call(&post(body.clone()).header("content-md5", BASE64_STANDARD.encode([0; 16]))).expect_error(
        400,
        "BadDigest",
        "/ernic",
    );
    bench.call(&post(body.clone()).header("x-amz-checksum-crc32", "AAAAAA==")).expect_error(400, "BadDigest", "/ernic");
    bench.call(&request("POST", "/nobucket?delete").body(body.clone())).expect_error(404, "NoSuchBucket", "/nobucket");
    assert_eq!(keys(&bench.call(&get("/ernic")).xml()), ["e"]);
    // Chunked and aws-chunked documents are documents.
    let sum = checksums(body.as_bytes())[0].1.clone();
    bench.call(&request("POST", "/ernic?delete").chunked(body.as_bytes(), 10).header("content-md5", &md5)).expect(200);
    let coded = request("POST", "/ernic?delete").aws_chunked(
        body.as_bytes(),
        11,
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        &[("x-amz-checksum-crc32", &sum)],
    );
    fill(&bench, &["e"]);
    bench.call(&coded).expect(200);
    assert!(keys(&bench.call(&get("/ernic")).xml()).is_empty());

    bench.call(&post(delete(&object("k").repeat(1000)))).expect(200);
    bench.call(&post(delete(&object("k").repeat(1001)))).expect_error(400, "MalformedXML", "/ernic");
    let mut huge = request("POST", "/ernic?delete").header("expect", "100-continue");
    huge.length = Some(5 * MIB);
    let mut client = bench.client();
    client.send(&huge.head());
    client.answer("POST").expect_error(400, "MaxMessageLengthExceeded", "/ernic");
    bench.call(&request("POST", "/ernic?delete").chunked(&vec![b' '; 5 * MIB], MIB)).expect_error(
        400,
        "MaxMessageLengthExceeded",
        "/ernic",
    );
}
