//! Lane `s3-auth`: signatures, from request to answer, made by the client's own signer. The examples of the S3 API reference
//! are in the unit tests of the module.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{sync::Arc, time::Duration, time::SystemTime};

use common::*;
use ernic_client::sigv4::{self, Credentials as Signer, UNSIGNED_PAYLOAD};
use ernic_store::{MemoryConfig, MemoryStore};
use hmac::{Hmac, KeyInit, Mac};
use proptest::prelude::*;
use s3_proto::{Credentials, S3Config, S3Service};
use sha2::{Digest, Sha256};

/// 24 May 2013, 00:00:00 UTC.
const MOMENT: u64 = 1_369_353_600;
const DATE: &str = "20130524T000000Z";
const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";
const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";

fn signer() -> Signer {
    Signer { access: "access/key".into(), secret: "secret+/key".into(), region: "us-east-1".into() }
}

/// A service that stands at [`MOMENT`] and knows two keys.
fn bench_with(config: S3Config) -> Bench {
    let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 64 * MIB as u64, objects: 1000 }));
    assert!(store.create_bucket(BUCKET));
    let mut credentials = Credentials::new();
    credentials.add("another", "one").unwrap();
    credentials.add(&signer().access, &signer().secret).unwrap();
    let service = S3Service::builder(Arc::clone(&store) as _, config)
        .with_credentials(credentials)
        .with_clock(Arc::new(|| SystemTime::UNIX_EPOCH + Duration::from_secs(MOMENT)))
        .build();
    Bench { service, store }
}

fn bench() -> Bench {
    bench_with(S3Config::default())
}

fn sha256(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

/// Signs a request with the client's signer: its headers, and `x-amz-content-sha256` as `payload`.
fn sign_as(mut request: Request, signer: &Signer, date: &str, payload: &str) -> Request {
    if !request.headers.iter().any(|(name, _)| name == "host") {
        request = request.header("host", "s3.test");
    }
    request = request.header("x-amz-date", date).header("x-amz-content-sha256", payload);
    let headers: Vec<_> = request
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), String::from_utf8(value.clone()).expect("UTF-8")))
        .collect();
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let authorization = sigv4::authorization(signer, date, &request.method, path, query, &headers, payload);
    request.header("authorization", authorization)
}

fn sign(request: Request) -> Request {
    let payload = sha256(&request.body);
    sign_as(request, &signer(), DATE, &payload)
}

fn authorization(request: &Request) -> String {
    let (_, value) = request.headers.iter().find(|(name, _)| name == "authorization").expect("signed");
    String::from_utf8(value.clone()).unwrap()
}

fn signature(request: &Request) -> String {
    authorization(request).rsplit('=').next().unwrap().to_owned()
}

/// The request with another value of a header.
fn with(mut request: Request, name: &str, value: &str) -> Request {
    let header = request.headers.iter_mut().find(|(have, _)| have == name).expect("there");
    header.1 = value.into();
    request
}

fn without(mut request: Request, name: &str) -> Request {
    let before = request.headers.len();
    request.headers.retain(|(have, _)| have != name);
    assert!(request.headers.len() < before);
    request
}

#[test]
fn signed_requests_are_served() {
    let bench = bench();
    let body = pattern(300_000);
    let mut client = bench.client();
    client.call(&sign(put("/ernic/key", body.clone()).header("x-amz-meta-a", " a   b "))).expect(200);
    let answer = client.call(&sign(get("/ernic/key").header("range", "bytes=1-100")));
    assert_eq!((answer.status, answer.body.as_slice()), (206, &body[1..101]));
    client.call(&sign(get("/ernic?list-type=2&prefix="))).expect(200);
    client.call(&sign_as(put("/ernic/unsigned", body.clone()), &signer(), DATE, UNSIGNED_PAYLOAD)).expect(200);
    // Any region, and the other key.
    let other = Signer { access: "another".into(), secret: "one".into(), region: "mars".into() };
    client.call(&sign_as(get("/ernic/unsigned"), &other, DATE, UNSIGNED_PAYLOAD)).expect(200);
    let document = b"<Delete><Object><Key>unsigned</Key></Object></Delete>".to_vec();
    client.call(&sign(request("POST", "/ernic?delete=").body(document.clone()))).expect(200);
    let forged = sign(request("POST", "/ernic?delete=").body(document))
        .body(b"<Delete><Object><Key>key</Key></Object></Delete>");
    bench.call(&forged).expect_error(400, "XAmzContentSHA256Mismatch", "/ernic");
    bench.call(&sign(get("/ernic/key"))).expect(200);
    bench.call(&sign(get("/ernic/unsigned"))).expect(404);
}

#[test]
fn refusals_have_the_codes_of_s3() {
    let bench = bench();
    let good = sign(get("/ernic/key"));
    let bearer = |value: &str| with(good.clone(), "authorization", value);
    let edit = |from: &str, to: &str| bearer(&authorization(&good).replace(from, to));
    let later = sign_as(get("/ernic/key"), &signer(), "20130524T001501Z", UNSIGNED_PAYLOAD);
    let of_date = |date: &str| with(good.clone(), "x-amz-date", date);
    for (what, request, status, code) in [
        ("nothing", get("/ernic/key"), 403, "AccessDenied"),
        ("another key", edit("access/key", "nobody"), 403, "InvalidAccessKeyId"),
        ("another signature", edit("Signature=", "Signature=0"), 403, "SignatureDoesNotMatch"),
        ("another region", edit("us-east-1", "us-east-2"), 403, "SignatureDoesNotMatch"),
        ("another day", edit("20130524", "20130525"), 400, "AuthorizationHeaderMalformed"),
        ("another service", edit("/s3/", "/iam/"), 400, "AuthorizationHeaderMalformed"),
        ("no scope", edit(&format!("/{SCOPE}"), ""), 400, "AuthorizationHeaderMalformed"),
        ("a field less", edit("Signature=", "Signatures="), 400, "AuthorizationHeaderMalformed"),
        (
            "a field twice",
            bearer(&format!("{},Signature=1", authorization(&good))),
            400,
            "AuthorizationHeaderMalformed",
        ),
        ("no fields", bearer("AWS4-HMAC-SHA256"), 400, "AuthorizationHeaderMalformed"),
        ("no host", edit("SignedHeaders=host;", "SignedHeaders="), 403, "AccessDenied"),
        ("version 2", bearer("AWS access:abcdef="), 400, "InvalidRequest"),
        ("asymmetric", bearer("AWS4-ECDSA-P256-SHA256 Credential=a"), 400, "InvalidRequest"),
        ("a password", bearer("Basic YTpi"), 400, "InvalidArgument"),
        ("two of them", good.clone().header("authorization", "Basic YTpi"), 400, "InvalidArgument"),
        ("header and query", sign(get("/ernic/key?X-Amz-Algorithm=AWS4-HMAC-SHA256")), 400, "InvalidArgument"),
        ("version 2 in the query", get("/ernic/key?AWSAccessKeyId=a&Signature=b&Expires=1"), 400, "InvalidRequest"),
        ("a query without the rest", get("/ernic/key?X-Amz-Signature=b"), 400, "AuthorizationQueryParametersError"),
        ("a clock that is wrong", later, 403, "RequestTimeTooSkewed"),
        ("another time", of_date("20130524T000001Z"), 403, "SignatureDoesNotMatch"),
        ("no time", of_date("yesterday"), 403, "AccessDenied"),
        ("no date at all", without(good.clone(), "x-amz-date"), 403, "AccessDenied"),
        ("no hash", without(good.clone(), "x-amz-content-sha256"), 400, "MissingSecurityHeader"),
        ("a hash that is none", sign_as(get("/ernic/key"), &signer(), DATE, "abc"), 400, "InvalidArgument"),
        ("a header that is not signed", good.clone().header("x-amz-meta-a", "b"), 403, "AccessDenied"),
        ("a token that is not signed", good.clone().header("x-amz-rdma-token", "0".repeat(60)), 403, "AccessDenied"),
        ("another token that is not", good.clone().header("x-cuobj-token", "0"), 403, "AccessDenied"),
    ] {
        let answer = bench.call(&request);
        assert_eq!((answer.status, answer.xml().text_of("Code").as_str()), (status, code), "{what}: {}", answer.text());
        assert_eq!(answer.header("x-amz-rdma-reply"), None, "rule 14: {what}");
    }
    assert!(bench.call(&get("/ernic/key?AWSAccessKeyId=a&Signature=b&Expires=1")).text().contains("AWS4-HMAC-SHA256"));
    // The one that all of them were made of.
    bench.call(&good).expect_error(404, "NoSuchKey", "/ernic/key");
    // A signed token reaches the rules of RDMA, which is off here.
    let token = bench.call(&sign(get("/ernic/key").header("x-amz-rdma-token", "0".repeat(60))));
    assert_eq!((token.status, token.header("x-amz-rdma-reply")), (501, Some("501")));
}

/// Anybody may say when a request was made in HTTP's own header.
#[test]
fn the_date_header_will_do() {
    let bench = bench();
    // The second way is botocore's.
    for date in ["Fri, 24 May 2013 00:00:00 GMT", "Fri, 24 May 2013 00:00:00 -0000"] {
        let request = get("/ernic").header("host", "s3.test").header("date", date);
        let request = request.header("x-amz-content-sha256", UNSIGNED_PAYLOAD);
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let headers: Vec<_> = request.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let authorization = sigv4::authorization(&signer(), DATE, "GET", "/ernic", "", &headers, UNSIGNED_PAYLOAD);
        bench.call(&request.header("authorization", authorization)).expect(200);
    }
}

#[test]
fn case_19_awkward_paths_and_queries() {
    let bench = bench();
    for key in ["a/b c", "!'()*", "{x}", "é+%&=?", "//", "a/../b"] {
        let path = sigv4::encode_path(&format!("/ernic/{key}"));
        bench.call(&sign(put(&path, key))).expect(200);
        assert_eq!(bench.call(&sign(get(&path))).body, key.as_bytes(), "{key}");
        let query = sigv4::encode_query(&[
            ("list-type", "2"),
            ("prefix", key),
            ("delimiter", "!'()*/ {}"),
            ("start-after", ""),
        ]);
        let list = bench.call(&sign(get(&format!("/ernic?{query}"))));
        assert_eq!(list.expect(200).xml().text_of("Prefix"), key);
    }
    // Clients that leave in the target what they encode when they sign.
    let signed = sign(get("/ernic/%21%27%28%29%2A?list=a%2Fb%21%28&x=a%20b"));
    bench.call(&Request { target: "/ernic/!'()*?list=a/b!(&x=a+b".into(), ..signed }).expect(200);
}

/// A presigned request, as SDKs make it: nothing but the host is signed with it.
fn presign(method: &str, path: &str, more: &[(&str, &str)], expires: &str) -> Request {
    let signer = signer();
    let credential = format!("{}/{SCOPE}", signer.access);
    let mut query = vec![
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", DATE),
        ("X-Amz-Expires", expires),
        ("X-Amz-SignedHeaders", "host"),
    ];
    query.extend(more);
    let query = sigv4::encode_query(&query);
    let headers = [("host".to_owned(), "s3.test".to_owned())];
    let signed = sigv4::authorization(&signer, DATE, method, path, &query, &headers, UNSIGNED_PAYLOAD);
    let signature = signed.rsplit('=').next().unwrap();
    request(method, &format!("{path}?{query}&X-Amz-Signature={signature}"))
}

#[test]
fn presigned_requests() {
    let bench = bench();
    bench.call(&presign("PUT", "/ernic/key", &[("x-amz-meta-a", "b")], "604800").body(b"content")).expect(200);
    let answer = bench.call(&presign("GET", "/ernic/key", &[("response-content-type", "text/x")], "0"));
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"content"[..]));
    assert_eq!((answer.header("content-type"), answer.header("x-amz-meta-a")), (Some("text/x"), Some("b")));
    bench.call(&presign("GET", "/ernic/key", &[], "604801")).expect_error(
        400,
        "AuthorizationQueryParametersError",
        "/ernic/key",
    );
    let unsigned = presign("PUT", "/ernic/key", &[], "60").body(b"x").header("x-amz-meta-a", "b");
    bench.call(&unsigned).expect_error(403, "AccessDenied", "/ernic/key");
    // One that is for reading is not for writing.
    let read = presign("GET", "/ernic/key", &[], "60");
    bench.call(&Request { method: "DELETE".into(), ..read }).expect_error(403, "SignatureDoesNotMatch", "/ernic/key");
}

#[test]
fn the_body_is_the_one_that_was_signed() {
    let bench = bench();
    bench.call(&sign(put("/ernic/key", b"before"))).expect(200);
    let mut client = bench.client();
    let forged = sign(put("/ernic/key", pattern(100_000)));
    let mut body = forged.body.clone();
    body[99_999] ^= 1;
    client.call(&forged.body(body)).expect_error(400, "XAmzContentSHA256Mismatch", "/ernic/key");
    assert_eq!(client.call(&sign(get("/ernic/key"))).body, b"before", "nothing is stored, and the connection goes on");
    let shorter = sign(put("/ernic/key", b"content")).body(b"conten");
    bench.call(&shorter).expect_error(400, "XAmzContentSHA256Mismatch", "/ernic/key");
}

#[test]
fn case_09_a_refusal_comes_before_the_body_is_asked_for() {
    let bench = bench();
    let mut client = bench.client();
    let request = put("/ernic/key", pattern(1000)).header("expect", "100-continue");
    client.send(&request.head());
    client.answer("PUT").expect_error(403, "AccessDenied", "/ernic/key");
    assert_eq!(client.output(), b"");
    let mut client = bench.client();
    let request = sign(put("/ernic/key", pattern(1000))).header("expect", "100-continue");
    client.send(&request.head());
    assert_eq!(client.take_output(), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(&request.body);
    client.answer("PUT").expect(200);
}

// ---------------------------------------------------------------- signed chunks

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Signs `body` in chunks of `size` bytes; with a trailer, that, too.
fn sign_chunks(request: Request, body: &[u8], size: usize, trailer: Option<(&str, &str)>) -> Request {
    let payload = if trailer.is_some() { format!("{SIGNED_CHUNKS}-TRAILER") } else { SIGNED_CHUNKS.to_owned() };
    let mut request = request
        .header("content-encoding", "aws-chunked")
        .header("x-amz-decoded-content-length", body.len().to_string());
    if let Some((name, _)) = trailer {
        request = request.header("x-amz-trailer", name);
    }
    let request = sign_as(request, &signer(), DATE, &payload);
    let key = ["20130524", "us-east-1", "s3", "aws4_request"]
        .iter()
        .fold(format!("AWS4{}", signer().secret).into_bytes(), |key, part| hmac(&key, part));
    let mut previous = signature(&request);
    let mut out = Vec::new();
    let (nothing, empty) = (sha256(b""), &b""[..]);
    for chunk in body.chunks(size).chain([empty]) {
        let text = format!("AWS4-HMAC-SHA256-PAYLOAD\n{DATE}\n{SCOPE}\n{previous}\n{nothing}\n{}", sha256(chunk));
        previous = hex::encode(hmac(&key, &text));
        out.extend_from_slice(format!("{:x};chunk-signature={previous}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        if !chunk.is_empty() {
            out.extend_from_slice(b"\r\n");
        }
    }
    if let Some((name, value)) = trailer {
        let hash = sha256(format!("{name}:{value}\n").as_bytes());
        let text = format!("AWS4-HMAC-SHA256-TRAILER\n{DATE}\n{SCOPE}\n{previous}\n{hash}");
        let signature = hex::encode(hmac(&key, &text));
        out.extend_from_slice(format!("{name}:{value}\r\nx-amz-trailer-signature:{signature}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    request.body(out)
}

#[test]
fn case_10_signed_chunks_in_any_pieces() {
    let bench = bench();
    let body = pattern(200_000);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &body) as u32;
    let crc = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, crc.to_be_bytes());
    for trailer in [None, Some(("x-amz-checksum-crc32", crc.as_str()))] {
        for piece in [1, 64 << 10] {
            let request =
                sign_chunks(request("PUT", "/ernic/key").header("content-type", "text/x"), &body, 65_536, trailer);
            let mut client = bench.client();
            // One byte a read, many a turn: what is under test is where the pieces end.
            for pieces in request.bytes().chunks(piece).collect::<Vec<_>>().chunks(512) {
                pieces.iter().for_each(|piece| client.push(piece));
                client.run();
            }
            client.answer("PUT").expect(200);
            let answer = client.call(&sign(get("/ernic/key")));
            assert!(answer.body == body, "pieces of {piece}");
            assert_eq!(answer.header("content-encoding"), None);
        }
    }
    bench.call(&sign_chunks(request("PUT", "/ernic/empty"), b"", 10, None)).expect(200);
}

#[test]
fn case_11_a_bad_chunk_ends_the_request_and_stores_nothing() {
    let bench = bench();
    let body = pattern(3000);
    for trailer in [None, Some(("x-amz-checksum-crc32", "AAAAAA=="))] {
        let good = sign_chunks(request("PUT", "/ernic/key"), &body, 1000, trailer);
        for at in (0..good.body.len()).step_by(97) {
            let mut bad = good.clone();
            bad.body[at] ^= 0x11;
            let mut client = bench.client();
            client.send(&bad.bytes());
            let answer = client.answer("PUT");
            assert!((400..500).contains(&answer.status), "{at}: {answer:?}");
            if client.closed() {
                continue;
            }
            client.call(&sign(get("/ernic/key"))).expect_error(404, "NoSuchKey", "/ernic/key");
        }
    }
    // The name of the encoding alone does not let a body pass.
    let unsigned = request("PUT", "/ernic/key").aws_chunked(&body, 1000, SIGNED_CHUNKS, &[]);
    let (length, encoded) = (unsigned.length, unsigned.body.clone());
    let head = without(without(unsigned, "x-amz-content-sha256"), "content-encoding")
        .header("content-encoding", "aws-chunked");
    let signed = sign_as(head, &signer(), DATE, SIGNED_CHUNKS);
    let answer = bench.call(&Request { length, body: encoded, ..signed });
    answer.expect_error(403, "SignatureDoesNotMatch", "/ernic/key");
    bench.call(&sign(get("/ernic/key"))).expect_error(404, "NoSuchKey", "/ernic/key");
}

// ---------------------------------------------------------------- around it

#[test]
fn pages_are_open_unless_they_are_closed() {
    bench().call(&get("/metrics")).expect(200);
    let closed = bench_with(S3Config { open_pages: false, ..S3Config::default() });
    closed.call(&get("/metrics")).expect_error(403, "AccessDenied", "/metrics");
    closed.call(&sign(get("/metrics"))).expect(200);
    assert!(!format!("{:?}", closed.service).contains("secret"));
}

#[test]
fn the_page_is_for_browsers() {
    let browser = |target: &str| get(target).header("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
    let off = plain();
    off.call(&browser("/")).expect(200).xml();
    let web = S3Config { web: true, ..S3Config::default() };
    let on = bench_of(MIB as u64, 10, web.clone());
    let page = on.call(&browser("/"));
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    let text = page.text();
    let script = text.split("<script>").nth(1).and_then(|rest| rest.split("</script>").next()).expect("a script");
    let hash = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, Sha256::digest(script));
    assert!(policy.contains(&format!("script-src 'sha256-{hash}'")) && text.contains("data-auth=\"off\""));
    // Programs get what they always got, at every path.
    for request in [get("/").header("accept", "*/*"), get("/"), browser("/?x-id=ListBuckets"), browser("/ernic")] {
        on.call(&request).expect(200).xml();
    }
    on.call(&browser("/ernic/none")).expect_error(404, "NoSuchKey", "/ernic/none");
    let head = on.call(&request("HEAD", "/").header("accept", "text/html"));
    assert_eq!((head.status, head.body.len()), (200, 0));
    // With authentication it has nothing to show but figures, and not even these where they are closed.
    let signed = bench_with(web.clone());
    assert!(signed.call(&browser("/")).expect(200).text().contains("data-auth=\"on\""));
    signed.call(&browser("/?x-id=ListBuckets")).expect_error(403, "AccessDenied", "/");
    bench_with(S3Config { open_pages: false, ..web }).call(&browser("/")).expect_error(403, "AccessDenied", "/");
}

#[test]
fn buckets_by_virtual_host() {
    let domain = S3Config { domain: Some("s3.test".into()), ..S3Config::default() };
    let bench = bench_with(domain.clone());
    // The signature is over what was sent, not over what it stands for.
    bench.call(&sign(put("/a%20key", b"content").header("host", "ernic.s3.test:9000"))).expect(200);
    assert_eq!(bench.call(&sign(get("/ernic/a%20key").header("host", "s3.test:9000"))).body, b"content");
    let list = bench.call(&sign(get("/?list-type=2&prefix=a").header("host", "ERNIC.S3.test")));
    assert_eq!(list.expect(200).xml().texts("Contents", "Key"), ["a key"]);
    let moved = with(sign(get("/a%20key").header("host", "ernic.s3.test")), "host", "other.s3.test");
    bench.call(&moved).expect_error(403, "SignatureDoesNotMatch", "/other/a%20key");
    bench.call(&sign(get("/metrics").header("host", "ernic.s3.test"))).expect_error(404, "NoSuchKey", "/ernic/metrics");

    let open = bench_of(MIB as u64, 10, domain);
    open.call(&put("/k", b"x").header("host", "ernic.s3.test")).expect(200);
    assert_eq!(open.call(&get("/ernic/k").header("host", "10.0.0.1")).body, b"x");
    open.call(&get("/").header("host", "nowhere.s3.test")).expect_error(404, "NoSuchBucket", "/nowhere/");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any byte of what was signed: the target, a header, the signature, the body. Refused, and nothing is stored.
    #[test]
    fn any_tampered_byte_is_refused(at: prop::sample::Index, bit in 0..8u32, field in 0..4) {
        let bench = bench();
        let mut request = sign(put("/ernic/key?x-id=PutObject", b"the content").header("x-amz-meta-name", "value"));
        let bytes = match field {
            0 => None,
            1 => Some(&mut request.body),
            _ => {
                let index = at.index(request.headers.len());
                Some(&mut request.headers[index].1)
            }
        };
        match bytes {
            Some(bytes) => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
                // A name of a header in another case, or a field of `Authorization` in another place, says the same.
                let text = String::from_utf8_lossy(bytes).into_owned();
                prop_assume!(field == 1 || text.trim() == text && !text.contains(['\r', '\n', '\0']));
            }
            None => {
                let at = at.index(request.target.len());
                let mut target = request.target.clone().into_bytes();
                target[at] ^= 1 << bit;
                let target = String::from_utf8(target);
                prop_assume!(target.is_ok());
                request.target = target.unwrap();
            }
        }
        let mut client = bench.client();
        client.send(&request.bytes());
        let output = String::from_utf8_lossy(&client.take_output()).into_owned();
        prop_assert!(!output.contains("HTTP/1.1 2"), "{output}");
        let usage = ernic_store::Store::usage(&*bench.store);
        prop_assert_eq!((usage.objects, usage.bytes), (0, 0));
    }
}
