//! Lane `s3-http`: HTTP itself. Requests, query strings, headers, bodies with a length, chunked and aws-chunked, in any
//! pieces; what is refused, and what becomes of the connection then.
#![allow(clippy::cast_possible_truncation)]

mod common;

use common::*;
use proptest::prelude::*;
use s3_proto::{Phase, S3Config};

// ---------------------------------------------------------------- requests in pieces

/// Sends `bytes` in pieces cut at `cuts` and gives the answers to `methods`.
fn in_pieces(bench: &Bench, bytes: &[u8], cuts: &[usize], methods: &[&str]) -> Vec<Answer> {
    let mut client = bench.client();
    let mut from = 0;
    for &cut in cuts.iter().chain([&bytes.len()]) {
        client.send(&bytes[from..cut]);
        from = cut;
    }
    let answers = methods.iter().map(|method| client.answer(method)).collect();
    assert_eq!(client.output(), b"");
    answers
}

#[test]
fn an_exchange_split_at_every_byte() {
    let bench = plain();
    let body = pattern(100);
    let bytes = [
        put("/ernic/split", body.clone()).header("x-amz-meta-a", "b").bytes(),
        get("/ernic/split").header("range", "bytes=10-19").bytes(),
        request("DELETE", "/ernic/split").bytes(),
    ]
    .concat();
    for cut in 0..=bytes.len() {
        let answers = in_pieces(&bench, &bytes, &[cut], &["PUT", "GET", "DELETE"]);
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 206, 204], "cut at {cut}");
        assert_eq!(answers[1].body, body[10..20]);
        assert_eq!(answers[1].header("x-amz-meta-a"), Some("b"));
    }
}

#[test]
fn a_chunked_put_split_at_every_byte() {
    let bench = plain();
    let body = pattern(70);
    let bytes = [request("PUT", "/ernic/c").chunked(&body, 33).bytes(), get("/ernic/c").bytes()].concat();
    for cut in 0..=bytes.len() {
        let answers = in_pieces(&bench, &bytes, &[cut], &["PUT", "GET"]);
        assert_eq!((answers[0].status, answers[1].status), (200, 200), "cut at {cut}");
        assert_eq!(answers[1].body, body);
    }
}

#[test]
fn case_07_small_writes_bytes_and_two_in_one_segment() {
    let bench = plain();
    let body = pattern(50);
    let two = [put("/ernic/k", body.clone()).bytes(), get("/ernic/k").bytes()].concat();
    let head = put("/ernic/k", body.clone()).head().len();
    let every: Vec<usize> = (0..two.len()).collect();
    for cuts in [&[head][..], &[20], &every, &[]] {
        let answers = in_pieces(&bench, &two, cuts, &["PUT", "GET"]);
        answers[0].expect(200);
        assert_eq!(answers[1].expect(200).body, body);
    }
    // Each answer goes out as soon as its request is whole, not with the next one.
    let mut client = bench.client();
    let request = get("/ernic/k").bytes();
    for byte in &request[..request.len() - 1] {
        client.send(&[*byte]);
        assert_eq!(client.output_len(), 0);
    }
    client.send(&request[request.len() - 1..]);
    assert_eq!(client.answer("GET").body, body);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let bench = plain();
    let mut client = bench.client();
    for i in 0..40 {
        client.push(&put(&format!("/ernic/{i}"), format!("content {i}")).bytes());
    }
    client.run();
    for _ in 0..40 {
        client.answer("PUT").expect(200);
    }
    let all: Vec<u8> = (0..40).flat_map(|i| get(&format!("/ernic/{i}")).bytes()).collect();
    client.send(&all);
    for i in 0..40 {
        assert_eq!(client.answer("GET").expect(200).text(), format!("content {i}"));
    }
    assert!(client.ended.is_none());
}

#[test]
fn nothing_happens_while_nothing_arrives() {
    let bench = plain();
    let mut client = bench.client();
    client.run();
    let idle = client.turns;
    client.run();
    assert_eq!(client.turns, idle);
    // A request that arrives slowly wakes the server once for each piece.
    let bytes = put("/ernic/slow", pattern(300)).bytes();
    for piece in bytes.chunks(7) {
        let before = client.turns;
        client.send(piece);
        assert!(client.turns - before <= 4, "{} turns for 7 bytes", client.turns - before);
        let before = client.turns;
        client.run();
        assert_eq!(client.turns, before, "polled without cause");
    }
    client.answer("PUT").expect(200);
    assert!(client.ended.is_none(), "a slow client is kept");
}

// ---------------------------------------------------------------- heads

#[test]
fn every_answer_has_an_id_a_server_and_a_date() {
    let bench = plain();
    let mut client = bench.client();
    let mut ids = std::collections::HashSet::new();
    for (method, target) in [("GET", "/"), ("GET", "/ernic"), ("GET", "/ernic/none"), ("BREW", "/"), ("HEAD", "/ernic")]
    {
        let answer = client.call(&request(method, target));
        let id = answer.header("x-amz-request-id").unwrap().to_owned();
        assert_eq!(id.len(), 16);
        assert!(ids.insert(id));
        assert_eq!(answer.header("server"), Some("ernic"));
        assert!(answer.header("date").unwrap().ends_with(" GMT"));
        assert_eq!(answer.header("connection"), None);
    }
    assert_eq!(bench.service.metrics().requests(), 5);
    assert_eq!(bench.service.metrics().client_errors(), 2);
}

#[test]
fn too_many_or_too_large_headers_are_431() {
    let bench = plain();
    // Host and 99 more are 100.
    let many = |n| (0..n).fold(get("/ernic"), |request, i| request.header(&format!("x-{i}"), "v"));
    bench.call(&many(99)).expect(200);
    let mut client = bench.client();
    client.send(&many(100).bytes());
    assert_eq!(client.answer("GET").status, 431);
    assert!(client.closed());

    bench.call(&get("/ernic").header("x-long", "v".repeat(60_000))).expect(200);
    let mut client = bench.client();
    client.send(&get("/ernic").header("x-long", "v".repeat(70_000)).bytes());
    assert_eq!(client.answer("GET").status, 431);
    assert!(client.closed());

    // A head that never ends is refused when it is too long, not kept for ever.
    let mut client = bench.client();
    let mut sent = 0;
    client.send(b"GET / HTTP/1.1\r\nx: ");
    while client.output_len() == 0 {
        client.send(&[b'v'; 1000]);
        sent += 1000;
        assert!(sent <= 70_000, "nothing refused after {sent} bytes");
    }
    assert_eq!(client.answer("GET").status, 431);
    // The next connection works.
    bench.call(&get("/ernic")).expect(200);
}

#[test]
fn truncated_heads_and_garbage() {
    let bench = plain();
    for garbage in [
        &b"\x00\x01\x02\x03\r\n\r\n"[..],
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
    ] {
        let mut client = bench.client();
        client.send(garbage);
        let answer = client.answer("GET");
        assert_eq!(answer.status, 400, "{}", garbage.escape_ascii());
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.closed());
    }
    for bad in
        ["content-length: x", "content-length: 1\r\ncontent-length: 2", "content-length: -1", "transfer-encoding: gzip"]
    {
        let mut client = bench.client();
        client.send(format!("PUT /ernic/k HTTP/1.1\r\nhost: x\r\n{bad}\r\n\r\nabc").as_bytes());
        assert_eq!(client.answer("PUT").status, 400, "{bad}");
        assert!(client.closed());
    }
    let whole = get("/ernic").bytes();
    for cut in 1..whole.len() {
        let mut client = bench.client();
        client.send(&whole[..cut]);
        client.finish();
        assert!(client.ended.is_some(), "cut at {cut}: the connection ends");
        assert!(client.output_len() == 0 || client.output().starts_with(b"HTTP/1.1 400"), "cut at {cut}");
    }
    // Closing between requests is no error.
    let mut client = bench.client();
    client.call(&get("/ernic")).expect(200);
    client.finish();
    assert!(matches!(client.ended, Some(Ok(()))));
    assert_eq!(bench.service.metrics().open_connections(), 0);
    assert!(bench.store_is_empty());
}

#[test]
fn host_is_needed_once() {
    let bench = plain();
    let mut client = bench.client();
    client.send(b"GET /ernic HTTP/1.1\r\n\r\n");
    client.answer("GET").expect_error(400, "InvalidRequest", "/ernic");
    client.send(b"GET /ernic HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n");
    client.answer("GET").expect_error(400, "InvalidRequest", "/ernic");
    client.send(b"GET http://a:9000/ernic?location HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer("GET").expect(200).xml().name, "LocationConstraint");
}

#[test]
fn http_1_0_and_connection_close() {
    let bench = plain();
    let mut client = bench.client();
    client.send(b"GET /ernic?location HTTP/1.0\r\n\r\n");
    let output = String::from_utf8(client.take_output()).unwrap();
    assert!(output.starts_with("HTTP/1.0 200 OK\r\n") && output.contains("LocationConstraint"), "{output}");
    assert!(client.closed());

    let mut client = bench.client();
    let answer = client.call(&get("/ernic").header("connection", "close"));
    assert_eq!(answer.expect(200).header("connection"), Some("close"));
    assert!(client.closed());
}

#[test]
fn a_client_that_closes_its_side_gets_its_answer() {
    let bench = plain();
    let body = pattern(3 * MIB);
    bench.call(&put("/ernic/big", body.clone())).expect(200);
    let mut client = bench.client();
    client.push(&get("/ernic/big").bytes());
    client.finish();
    assert_eq!(client.answer("GET").expect(200).body, body);
    assert!(client.closed());
    assert!(matches!(client.ended, Some(Ok(()))));
}

#[test]
fn query_strings_are_decoded_as_s3_does() {
    let bench = plain();
    for key in ["a b", "a+b", "a%2Bb", "ä/ö", "%", "x&y=z", "?#"] {
        let target: String = key.bytes().map(|b| format!("%{b:02x}")).collect();
        bench.call(&put(&format!("/ernic/{target}"), key.as_bytes())).expect(200);
        // `+` is a space in a query, not in a path.
        let prefix = target.replace("%20", "+");
        for query in [
            format!("prefix={target}"),
            format!("prefix={prefix}&&max-keys=5&"),
            format!("list-type=2&prefix={target}"),
        ] {
            let listing = bench.call(&get(&format!("/ernic?{query}"))).expect(200).xml();
            assert_eq!(listing.texts("Contents", "Key"), [key], "{query}");
            assert_eq!(listing.text_of("Prefix"), key);
        }
    }
    assert_eq!(bench.call(&get("/ernic/a+b")).expect(200).text(), "a+b");
    bench.call(&get("/ernic?max-keys=1&max-keys=2")).expect_error(400, "InvalidRequest", "/ernic");
    bench.call(&get("/ernic/%ff")).expect_error(400, "InvalidURI", "/ernic/%ff");
    // An encoded slash is a slash.
    assert_eq!(bench.call(&get("/ernic%2Fa+b")).expect(200).text(), "a+b");
}

#[test]
fn signatures_are_taken_off() {
    let bench = plain();
    let v4 = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00ff";
    for authorization in [v4, "AWS AKIA:c2ln", "Bearer x", "nonsense"] {
        let signed = |request: Request| {
            request
                .header("authorization", authorization)
                .header("x-amz-date", "yesterday")
                .header("x-amz-security-token", "t")
                .header("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        };
        bench.call(&signed(put("/ernic/signed", "s"))).expect(200);
        assert_eq!(bench.call(&signed(get("/ernic/signed"))).expect(200).text(), "s");
    }
    let v4 = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A%2F2&X-Amz-Date=20260101T000000Z&X-Amz-Expires=1\
              &X-Amz-SignedHeaders=host&X-Amz-Signature=00";
    let v2 = "AWSAccessKeyId=A&Signature=c2ln&Expires=1";
    for query in [v4, v2] {
        bench.call(&put(&format!("/ernic/pre?{query}&x-id=PutObject"), "p")).expect(200);
        assert_eq!(bench.call(&get(&format!("/ernic/pre?{query}"))).expect(200).text(), "p");
        let listing = bench.call(&get(&format!("/ernic?{query}&prefix=pre&list-type=2"))).expect(200).xml();
        assert_eq!(listing.text_of("KeyCount"), "1");
    }
    // Presigning moves headers into the query.
    bench.call(&put(&format!("/ernic/hoist?x-amz-meta-colour=r%20d&{v4}"), "p")).expect(200);
    assert_eq!(bench.call(&get("/ernic/hoist")).header("x-amz-meta-colour"), Some("r d"));
    bench.call(&put(&format!("/ernic/hoist?x-amz-copy-source=%2Fernic%2Fsigned&{v4}"), "")).expect(200);
    assert_eq!(bench.call(&get("/ernic/hoist")).text(), "s", "a copy, because the hoisted header says so");
}

// ---------------------------------------------------------------- bodies

#[test]
fn bodies_of_every_framing_arrive_whole() {
    let bench = plain();
    for len in [0, 1, 65_535, 65_536, 65_537, MIB, 3 * MIB + 17] {
        let body = pattern(len);
        for (i, put) in [
            put("/ernic/body", body.clone()),
            request("PUT", "/ernic/body").chunked(&body, 60_000),
            request("PUT", "/ernic/body").chunked(&body, 2 * MIB),
        ]
        .iter()
        .enumerate()
        {
            let mut client = bench.client();
            client.call(put).expect(200);
            assert_eq!(client.call(&get("/ernic/body")).expect(200).body, body, "{len} bytes, framing {i}");
            client.call(&request("DELETE", "/ernic/body")).expect(204);
        }
    }
    assert!(bench.store_is_empty());
}

#[test]
fn chunk_extensions_and_trailers_are_taken() {
    let bench = plain();
    let mut client = bench.client();
    client.send(
        b"PUT /ernic/k HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
          5;a=b\r\nhello\r\n0003 \r\n, w\r\n4\r\norld\r\n0\r\nx-trailer: y\r\n\r\n",
    );
    client.answer("PUT").expect(200);
    assert_eq!(client.call(&get("/ernic/k")).text(), "hello, world");
}

#[test]
fn broken_bodies_store_nothing_and_end_the_connection() {
    let bench = plain();
    bench.call(&put("/ernic/k", "old")).expect(200);
    for body in ["z\r\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "ffffffffffffffffff\r\n", "3\r\nabc\r\n-1\r\n\r\n"]
    {
        let mut client = bench.client();
        client.push(b"PUT /ernic/k HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
        client.send(body.as_bytes());
        client.answer("PUT").expect_error(400, "IncompleteBody", "/ernic/k");
        assert!(client.closed(), "{body:?}");
    }
    // The client closes in the middle.
    let whole = put("/ernic/k", pattern(1000)).bytes();
    for cut in [whole.len() - 1000, whole.len() - 999, whole.len() - 1] {
        let mut client = bench.client();
        client.send(&whole[..cut]);
        client.finish();
        client.answer("PUT").expect_error(400, "IncompleteBody", "/ernic/k");
        assert!(client.closed() && client.ended.is_some());
    }
    assert_eq!(bench.call(&get("/ernic/k")).text(), "old");
    assert_eq!(bench.store_usage(), (1, 3));
}

#[test]
fn case_09_expect_100_continue() {
    let bench = plain();
    let body = pattern(1000);
    let nothing = || put("/ernic/nothing", Vec::new());
    let put = put("/ernic/expect", body.clone()).header("Expect", "100-Continue");
    let mut client = bench.client();
    client.send(&put.head());
    assert_eq!(client.take_output(), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(&body);
    client.answer("PUT").expect(200);
    assert_eq!(client.call(&get("/ernic/expect")).body, body);

    // The client need not wait.
    client.send(&put.bytes());
    assert_eq!(client.answer("PUT").status, 100);
    client.answer("PUT").expect(200);

    // Without content there is nothing to wait for, and no 100. That is the end of the connection: botocore would take
    // the next answer on it for its own. Without the expectation it goes on.
    client.send(&nothing().header("expect", "100-continue").bytes());
    let answer = client.answer("PUT");
    assert_eq!(answer.expect(200).header("connection"), Some("close"));
    assert!(client.closed());
    let mut client = bench.client();
    assert_eq!(client.call(&nothing()).expect(200).header("connection"), None);
    assert_eq!(client.call(&get("/ernic/nothing")).body, b"");

    // A request that is refused gets the refusal alone, at once.
    let huge = 300 * MIB;
    let small = S3Config { max_part: 2000, ..S3Config::default() };
    let tight = bench_of(1500, 10, small);
    for (bench, target, length, status, code) in [
        (&bench, "/nobucket/k", 10, 404, "NoSuchBucket"),
        (&bench, "/ernic/k", huge, 400, "EntityTooLarge"),
        (&bench, "/ernic/k?retention", 10, 501, "NotImplemented"),
        (&bench, "/ernic/k?partNumber=1&uploadId=none", 10, 404, "NoSuchUpload"),
        (&bench, "/ernic?cors", 10, 501, "NotImplemented"),
        (&tight, "/ernic/k", 1501, 507, "InsufficientStorage"),
        (&tight, "/ernic/k", 2001, 400, "EntityTooLarge"),
    ] {
        let mut client = bench.client();
        let mut refused = request("PUT", target).header("expect", "100-continue");
        refused.length = Some(length);
        client.send(&refused.head());
        let answer = client.answer("PUT");
        answer.expect_error(status, code, target.split('?').next().unwrap());
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(client.output(), b"", "the refusal alone");
        assert!(client.closed());
    }
    // A condition that fails already.
    let mut client = bench.client();
    client.send(&put.clone().header("if-none-match", "*").head());
    client.answer("PUT").expect_error(412, "PreconditionFailed", "/ernic/expect");
}

#[test]
fn case_10_aws_chunked() {
    let bench = plain();
    let body = pattern(100_000);
    let crc32 = |data: &[u8]| {
        use base64::Engine;
        base64::prelude::BASE64_STANDARD
            .encode((crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, data) as u32).to_be_bytes())
    };
    let sum = crc32(&body);
    let base = || request("PUT", "/ernic/aws").header("content-type", "text/x");
    let signed = base().aws_chunked(&body, 65_536, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", &[]);
    let unsigned =
        base().aws_chunked(&body, 8192, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", &[("x-amz-checksum-crc32", &sum)]);
    let both = base().aws_chunked(
        &body,
        10_000,
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        &[("x-amz-checksum-crc32", &sum)],
    );
    for (i, put) in [signed, unsigned, both].iter().enumerate() {
        for size in [1, 7, 1000, 1_000_000] {
            let mut client = bench.client();
            for piece in put.bytes().chunks(size) {
                client.push(piece);
            }
            client.run();
            client.answer("PUT").expect(200);
            let answer = client.call(&get("/ernic/aws"));
            assert_eq!(answer.body, body, "kind {i}, pieces of {size}");
            assert_eq!(answer.header("content-encoding"), None, "aws-chunked is not kept");
            assert_eq!(answer.header("content-type"), Some("text/x"));
        }
    }
    // Other codings are kept, whichever way they are written.
    for codings in
        [&["aws-chunked,gzip"][..], &["gzip, aws-chunked"], &["gzip", "aws-chunked"], &["AWS-Chunked", "gzip"]]
    {
        let mut put = base().aws_chunked(&body, 9999, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", &[]);
        put.headers.retain(|(name, _)| name != "content-encoding");
        let put = codings.iter().fold(put, |put, coding| put.header("content-encoding", coding));
        bench.call(&put).expect(200);
        let answer = bench.call(&get("/ernic/aws"));
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{codings:?}");
        assert_eq!(answer.body, body);
    }
    // Inside transfer-encoding: chunked, and without content-encoding.
    let mut put = base().aws_chunked(&body, 9999, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", &[]);
    put.headers.retain(|(name, _)| name != "content-encoding");
    let coded = put.body.clone();
    bench.call(&put.chunked(&coded, 777)).expect(200);
    assert_eq!(bench.call(&get("/ernic/aws")).body, body);
}

#[test]
fn case_10_wrong_aws_chunked_is_refused() {
    let bench = plain();
    let body = pattern(1000);
    let good = || request("PUT", "/ernic/aws").aws_chunked(&body, 300, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", &[]);
    let with = |name: &str, value: &str| {
        let mut put = good();
        put.headers.retain(|(have, _)| have != name);
        if value.is_empty() { put } else { put.header(name, value) }
    };
    let mut cut = good();
    cut.body.truncate(900);
    cut.length = Some(900);
    let mut garbage = good();
    garbage.body[..3].copy_from_slice(b"zzz");
    let trailer = |name, value| {
        request("PUT", "/ernic/aws").aws_chunked(&body, 300, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", &[(name, value)])
    };
    let missing = good().header("x-amz-trailer", "x-amz-checksum-crc32");
    for (put, status, code) in [
        (with("x-amz-decoded-content-length", ""), 411, "MissingContentLength"),
        (with("x-amz-decoded-content-length", "999"), 400, "InvalidRequest"),
        (with("x-amz-decoded-content-length", "1001"), 400, "IncompleteBody"),
        (with("x-amz-decoded-content-length", "many"), 400, "InvalidArgument"),
        (with("x-amz-decoded-content-length", "268435457"), 400, "EntityTooLarge"),
        (with("x-amz-content-sha256", "STREAMING-FOO"), 400, "InvalidArgument"),
        (cut, 400, "IncompleteBody"),
        (garbage, 400, "InvalidRequest"),
        (trailer("x-amz-checksum-crc32", "AAAAAA=="), 400, "BadDigest"),
        (trailer("x-amz-checksum-foo", "AAAAAA=="), 400, "InvalidRequest"),
        (trailer("x amz", "v"), 400, "MalformedTrailerError"),
        (missing, 400, "MalformedTrailerError"),
    ] {
        let mut client = bench.client();
        client.send(&put.bytes());
        client.answer("PUT").expect_error(status, code, "/ernic/aws");
        // Whatever was wrong inside, HTTP's own framing was right, so that the connection is still in step.
        assert!(!client.closed(), "{code}");
        client.call(&get("/ernic/aws")).expect_error(404, "NoSuchKey", "/ernic/aws");
    }
    assert!(bench.store_is_empty());
}

#[test]
fn case_11_an_error_in_a_body_does_not_shift_the_next_request() {
    let bench = bench_of(MIB as u64, 100, S3Config { max_part: 1000, ..S3Config::default() });
    let next = |client: &mut Client| {
        if client.closed() {
            return false;
        }
        client.call(&get("/ernic/none")).expect_error(404, "NoSuchKey", "/ernic/none");
        true
    };
    // The body is there: it is taken and the connection kept.
    for (put, status) in [
        (put("/ernic/k", "abc").header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="), 400),
        (put("/ernic/k", "abc").header("content-md5", "bogus"), 400),
        (put("/nobucket/k", pattern(900)), 404),
        (put("/ernic/k", pattern(1001)), 400),
        (request("PUT", "/ernic/k").chunked(&pattern(50_000), 900), 400),
        (put("/ernic/k?retention", pattern(100_000)), 501),
        (request("POST", "/ernic/k").body(pattern(10)), 405),
        (request("BREW", "/ernic/k").body(pattern(10)), 405),
        (get("/ernic/k").body("GET with a body"), 404),
        (request("DELETE", "/ernic/k").chunked(b"DELETE, too", 4), 204),
    ] {
        let mut client = bench.client();
        let answer = client.call(&put);
        answer.expect(status);
        assert_eq!(answer.header("connection"), None, "{status}");
        assert!(next(&mut client));
    }
    // A request in the same segment behind the body is the next request.
    let mut client = bench.client();
    client.send(&[put("/nobucket/k", pattern(900)).bytes(), get("/ernic").bytes()].concat());
    client.answer("PUT").expect(404);
    client.answer("GET").expect(200);

    // The rest is not there, or is too long: the answer comes at once, says close, and nothing of the body is answered.
    let smuggled = get("/ernic").bytes();
    for (head, first) in [
        (put("/nobucket/k", vec![0; 900]).head(), pattern(100)),
        (put("/nobucket/k", vec![0; 10 * MIB]).head(), pattern(MIB)),
        (request("PUT", "/ernic/k").header("transfer-encoding", "chunked").head(), b"7d0\r\n".to_vec()),
        (
            request("PUT", "/ernic/k").header("transfer-encoding", "chunked").head(),
            [b"7d0\r\n".to_vec(), pattern(1500)].concat(),
        ),
    ] {
        let mut client = bench.client();
        client.push(&head);
        client.send(&first);
        if client.output_len() == 0 {
            client.send(&smuggled.repeat(50));
        }
        let answer = client.answer("PUT");
        assert!((400..500).contains(&answer.status));
        assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
        client.send(&smuggled);
        assert_eq!(client.output(), b"", "the body is not taken for a request");
        assert!(!next(&mut client));
    }
    assert!(bench.store_is_empty());
}

#[test]
fn a_put_without_any_length_is_411() {
    let bench = plain();
    for target in ["/ernic/k", "/ernic/k?partNumber=1&uploadId=x"] {
        bench.call(&request("PUT", target)).expect_error(411, "MissingContentLength", "/ernic/k");
    }
    bench.call(&put("/ernic/k", "")).expect(200);
}

// ---------------------------------------------------------------- streaming

#[test]
fn a_slow_reader_gets_everything_and_holds_little() {
    let bench = plain();
    let body = pattern(16 * MIB);
    bench.call(&put("/ernic/big", body.clone())).expect(200);
    let mut client = bench.client();
    client.set_room(64 * 1024);
    client.send(&get("/ernic/big").bytes());
    assert_eq!(client.output_len(), 64 * 1024);
    // What hyper has taken from the store and not written: its buffer and one slice.
    let taken = bench.service.metrics().body_bytes_out();
    assert!(taken <= (64 + 256 + 128) * 1024, "{taken} bytes taken for a stalled reader");
    let turns = client.turns;
    client.run();
    assert_eq!(client.turns, turns, "a stalled connection is not polled");

    // An overwrite and a delete change nothing for who reads already.
    bench.call(&put("/ernic/big", "new")).expect(200);
    bench.call(&request("DELETE", "/ernic/big")).expect(204);
    let mut rounds = 1;
    while client.output_len() < body.len() {
        client.set_room(100_000);
        client.run();
        rounds += 1;
        assert!(rounds < 1000);
        let ahead = bench.service.metrics().body_bytes_out().saturating_sub(client.output_len() as u64);
        assert!(ahead <= (256 + 128) * 1024, "{ahead} bytes taken ahead");
    }
    assert_eq!(client.answer("GET").body, body);
    assert!(client.vectored_writes() > 0);
    assert_eq!(bench.service.metrics().body_bytes_out(), body.len() as u64);
    assert_eq!(bench.service.metrics().body_bytes_in(), body.len() as u64 + 3);
}

#[test]
fn a_large_put_gives_the_thread_back() {
    let bench = plain();
    let mut client = bench.client();
    let put = put("/ernic/big", pattern(8 * MIB));
    // Everything is there at once, and still no turn may take more than 256 KiB and what was on its way.
    client.push(&put.bytes());
    let mut last = 0;
    while client.turn() {
        let taken = bench.service.metrics().body_bytes_in();
        assert!(taken - last <= 768 * 1024, "{} bytes in one turn", taken - last);
        last = taken;
    }
    client.answer("PUT").expect(200);
    assert!(client.turns >= 32, "{} turns", client.turns);
}

#[test]
fn a_dropped_connection_gives_everything_back() {
    let bench = plain();
    let mut client = bench.client();
    let put = put("/ernic/k", pattern(5 * MIB)).bytes();
    client.send(&put[..3 * MIB]);
    assert!(bench.store_usage().1 >= 2 * MIB as u64, "room is taken");
    drop(client);
    assert!(bench.store_is_empty());
    assert_eq!(bench.service.metrics().open_connections(), 0);
    assert_eq!(bench.service.metrics().connections(), 1);
}

// ---------------------------------------------------------------- phases

/// A connection, and the phases that it has gone through since the list was last taken.
fn watched(bench: &Bench) -> (Client, impl Fn() -> Vec<Phase> + use<>) {
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let of_client = std::rc::Rc::clone(&seen);
    let client = Client::watched(&bench.service, move |phase| of_client.borrow_mut().push(phase));
    (client, move || seen.take())
}

#[test]
fn the_owner_hears_where_requests_are() {
    use Phase::{Finished, Started};
    let bench = plain();
    let (mut client, phases) = watched(&bench);
    assert_eq!(phases(), []);
    // A head is complete with its last byte, and a body is not part of it.
    let put = put("/ernic/k", pattern(600_000));
    let head = put.head();
    client.send(&head[..head.len() - 1]);
    assert_eq!(phases(), []);
    client.send(&head[head.len() - 1..]);
    assert_eq!(phases(), [Started]);
    client.send(&put.body[..500_000]);
    assert_eq!(phases(), []);
    client.send(&put.body[500_000..]);
    assert_eq!(phases(), [Finished]);
    client.answer("PUT").expect(200);

    // An answer that the peer does not take is not finished.
    client.set_room(1000);
    client.send(&get("/ernic/k").bytes());
    assert_eq!(phases(), [Started]);
    client.set_room(100_000);
    client.run();
    assert_eq!(phases(), []);
    client.set_room(usize::MAX);
    client.run();
    assert_eq!(phases(), [Finished]);
    assert_eq!(client.answer("GET").expect(200).body, put.body);

    // Answers without a body, refusals, several requests at once.
    for (method, target) in [("HEAD", "/ernic/k"), ("GET", "/ernic/none"), ("DELETE", "/ernic/k"), ("BREW", "/")] {
        client.call(&request(method, target));
        assert_eq!(phases(), [Started, Finished], "{method} {target}");
    }
    client.send(&get("/ernic?location").bytes().repeat(3));
    assert_eq!(phases(), [Started, Finished].repeat(3));
    assert!(client.ended.is_none());
    drop(client);
    assert_eq!(phases(), []);
}

#[test]
fn a_connection_that_ends_finishes_its_request() {
    use Phase::{Finished, Started};
    let bench = plain();
    bench.call(&put("/ernic/k", pattern(2 * MIB))).expect(200);
    // Dropped in the middle of a body, and of an answer.
    let (mut client, phases) = watched(&bench);
    client.send(&put("/ernic/new", pattern(10)).head());
    drop(client);
    assert_eq!(phases(), [Started, Finished]);
    let (mut client, phases) = watched(&bench);
    client.set_room(10);
    client.send(&get("/ernic/k").bytes());
    assert_eq!(phases(), [Started]);
    drop(client);
    assert_eq!(phases(), [Finished]);
    // What is no request has no phase.
    let (mut client, phases) = watched(&bench);
    client.send(b"nonsense\r\n\r\n");
    assert_eq!(client.answer("GET").status, 400);
    assert_eq!(phases(), []);
}

// ---------------------------------------------------------------- what is not done

#[test]
fn case_13_tokens_are_declined_while_rdma_is_off() {
    let bench = plain();
    let token = "0156341200".to_owned() + &"00".repeat(39);
    for (request, resource) in [
        (put("/ernic/k", ""), "/ernic/k"),
        (get("/ernic/k"), "/ernic/k"),
        (put("/ernic/k?partNumber=1&uploadId=u", ""), "/ernic/k"),
    ] {
        for header in ["x-amz-rdma-token", "X-CuObj-RDMA-Descr"] {
            let answer = bench.call(&request.clone().header(header, &token));
            answer.expect_error(501, "NotImplemented", resource);
            assert_eq!(answer.header("x-amz-rdma-reply"), Some("501"));
            assert_eq!(answer.header("etag"), None);
        }
    }
    bench.call(&get("/ernic/k")).expect_error(404, "NoSuchKey", "/ernic/k");
    // Elsewhere a token means nothing.
    bench.call(&request("HEAD", "/ernic").header("x-amz-rdma-token", &token)).expect(200);
    assert!(bench.store_is_empty());
}

#[test]
fn features_that_would_be_ignored_are_refused() {
    let bench = plain();
    for header in [
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-object-lock-mode",
        "x-amz-website-redirect-location",
        "x-amz-write-offset-bytes",
        "x-amz-copy-source-range",
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
        "x-amz-if-match-size",
        "x-amz-rename-source",
    ] {
        let answer = bench.call(&put("/ernic/k", "x").header(header, "v"));
        answer.expect_error(501, "NotImplemented", "/ernic/k");
        assert_eq!(answer.header("x-amz-rdma-reply"), None);
    }
    bench.call(&put("/ernic/k", "x").header("x-amz-storage-class", "GLACIER")).expect_error(
        400,
        "InvalidStorageClass",
        "/ernic/k",
    );
    assert!(bench.store_is_empty());
    bench
        .call(&put("/ernic/k", "x").header("x-amz-storage-class", "STANDARD").header("x-amz-acl", "private"))
        .expect(200);
}

// ---------------------------------------------------------------- properties

#[derive(Debug, Clone)]
enum Step {
    Put { key: u8, body: Vec<u8>, framing: u8 },
    Get { key: u8 },
    Range { key: u8, first: u8, last: u8 },
    Delete { key: u8 },
    Refused { body: Vec<u8> },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..3;
    let body = prop::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        3 => (key.clone(), body.clone(), 0u8..3).prop_map(|(key, body, framing)| Step::Put { key, body, framing }),
        3 => key.clone().prop_map(|key| Step::Get { key }),
        1 => (key.clone(), any::<u8>(), any::<u8>()).prop_map(|(key, first, last)| Step::Range { key, first, last }),
        1 => key.prop_map(|key| Step::Delete { key }),
        1 => body.prop_map(|body| Step::Refused { body }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Any requests, pipelined and in any pieces, are answered in order and right.
    #[test]
    fn any_requests_in_any_pieces(
        steps in prop::collection::vec(step(), 1..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let bench = plain();
        let mut model = std::collections::HashMap::new();
        let mut bytes = Vec::new();
        let mut expected: Vec<(&str, u16, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Put { key, body, framing } => {
                    let target = format!("/ernic/{key}");
                    let put = match framing {
                        0 => put(&target, body.clone()),
                        1 => request("PUT", &target).chunked(&body, 13),
                        _ => request("PUT", &target).aws_chunked(&body, 17, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", &[]),
                    };
                    bytes.extend(put.bytes());
                    expected.push(("PUT", 200, Vec::new()));
                    model.insert(key, body);
                }
                Step::Get { key } => {
                    bytes.extend(get(&format!("/ernic/{key}")).bytes());
                    expected.push(match model.get(&key) {
                        Some(body) => ("GET", 200, body.clone()),
                        None => ("GET", 404, Vec::new()),
                    });
                }
                Step::Range { key, first, last } => {
                    bytes.extend(get(&format!("/ernic/{key}")).header("range", format!("bytes={first}-{last}")).bytes());
                    let (first, last) = (usize::from(first), usize::from(last));
                    expected.push(match model.get(&key) {
                        None => ("GET", 404, Vec::new()),
                        Some(body) if first > last => ("GET", 200, body.clone()),
                        Some(body) if first >= body.len() => ("GET", 416, Vec::new()),
                        Some(body) => ("GET", 206, body[first..body.len().min(last + 1)].to_vec()),
                    });
                }
                Step::Delete { key } => {
                    bytes.extend(request("DELETE", &format!("/ernic/{key}")).bytes());
                    expected.push(("DELETE", 204, Vec::new()));
                    model.remove(&key);
                }
                Step::Refused { body } => {
                    bytes.extend(put("/nobucket/k", body).bytes());
                    expected.push(("PUT", 404, Vec::new()));
                }
            }
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        // Everything in one burst of pieces: a refused request's body is there when it is drained.
        let mut client = bench.client();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            client.push(&bytes[from..cut]);
            from = cut;
        }
        client.run();
        for (method, status, body) in expected {
            let answer = client.answer(method);
            prop_assert_eq!(answer.status, status);
            if status < 400 {
                prop_assert_eq!(answer.body, body);
            }
        }
        prop_assert_eq!(client.output_len(), 0);
        prop_assert!(client.ended.is_none());
    }

    /// Whatever arrives, in whatever pieces, the server neither panics nor spins, and it serves the next connection.
    #[test]
    fn any_bytes_in_any_pieces(
        pieces in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            prop::sample::select(vec![
                &b"GET /ernic HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"PUT /ernic/k HTTP/1.1\r\n", b"host: x\r\n", b"content-length: 5\r\n",
                b"transfer-encoding: chunked\r\n", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", b"expect: 100-continue\r\n",
                b"x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n", b"x-amz-decoded-content-length: 5\r\n",
                b"range: bytes=", b"POST /ernic?delete HTTP/1.1\r\n", b"<Delete>", b"content-type: multipart/form-data; boundary=x\r\n",
            ]).prop_map(<[u8]>::to_vec),
        ], 0..25),
        end: bool,
    ) {
        let bench = plain();
        let mut client = bench.client();
        for piece in &pieces {
            client.send(piece);
        }
        if end {
            client.finish();
            prop_assert!(client.ended.is_some());
        }
        let output = String::from_utf8_lossy(&client.output()).into_owned();
        prop_assert!(!output.contains("HTTP/1.1 500"), "{}", output);
        drop(client);
        prop_assert_eq!(bench.call(&get("/ernic?location")).status, 200);
    }
}

impl Bench {
    fn store_usage(&self) -> (u64, u64) {
        let usage = ernic_store::Store::usage(&*self.store);
        (usage.objects, usage.bytes)
    }

    fn store_is_empty(&self) -> bool {
        self.store_usage() == (0, 0)
    }
}
