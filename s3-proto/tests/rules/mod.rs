//! The rules of S3 over RDMA (wire document, section 4), each under its number.
#![allow(clippy::cast_possible_truncation)]

use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use proptest::prelude::*;
use rdma_token::{
    CHUNK, Family, RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Reply, Token, TokenHeader, Transport, Window,
    names,
};
use s3_proto::{RdmaConfig, S3Config};

use crate::{common::*, lab::*};

const AB: [Family; 2] = [Family::A, Family::B];
const CDE: [Family; 3] = [Family::C, Family::D, Family::E];

fn crc64(data: &[u8]) -> String {
    BASE64_STANDARD.encode(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data).to_be_bytes())
}

fn md5(data: &[u8]) -> String {
    use md5::Digest;
    format!("\"{}\"", hex::encode(md5::Md5::digest(data)))
}

fn start_upload(lab: &Lab, key: &str) -> String {
    lab.call(&request("POST", &format!("/ernic/{key}?uploads")).body("")).expect(200).xml().text_of("UploadId")
}

fn complete(lab: &Lab, key: &str, upload: &str, parts: &[String]) -> Answer {
    let document = format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", parts.concat());
    lab.call(&request("POST", &format!("/ernic/{key}?uploadId={upload}")).body(document))
}

/// Memory that no token can reach.
struct Broken(RemoteError);

#[async_trait]
impl RemoteMemory for Broken {
    async fn open(&self, _: &TokenHeader, _: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError> {
        Err(self.0.clone())
    }
}

fn broken(error: RemoteError) -> Lab {
    lab_with(S3Config::default(), |builder, _| builder.with_remote(Arc::new(Broken(error)), RdmaConfig::new(ENDPOINT)))
}

// ---------------------------------------------------------------- rule 1: tokens

#[test]
fn s3_rdma_rule_01_every_family_is_taken_in_either_case() {
    let lab = lab();
    let content = pattern(10_000);
    for family in FAMILIES {
        for upper in [false, true] {
            let (source, target) = (lab.region(&content), lab.blank(content.len()));
            let cased = |request: Request, token: &TokenHeader| {
                token.headers().into_iter().fold(request, |request, (name, value)| {
                    request.header(name, if upper { value.to_uppercase() } else { value })
                })
            };
            let before = lab.counts();
            let key = format!("/ernic/{family}");
            lab.call(&cased(put(&key, ""), &source.whole(family))).expect_moved(family, 200, 10_000);
            lab.call(&cased(get(&key), &target.whole(family))).expect_moved(family, 200, 10_000);
            assert_eq!(lab.memory.content(target.rkey), content, "{family}");
            assert_eq!(lab.memory.content(source.rkey), content);
            let after = lab.counts();
            assert_eq!(after.reads, plus(before.reads, [1, 10_000]));
            assert_eq!(after.writes, plus(before.writes, [1, 10_000]));
        }
    }
}

fn plus(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] + b[0], a[1] + b[1]]
}

#[test]
fn s3_rdma_rule_01_a_suffix_overrides_unless_it_is_zero() {
    let lab = lab();
    let content = pattern(1000);
    lab.put("k", &content);
    let own = |region: Region| region.first(Family::A, 600);
    let TokenHeader::A(token) = own(lab.blank(1000)) else { panic!() };
    // Address and length that are meant, offsets from the region's beginning.
    for (address, length, from, moved) in
        [(0, 0, 0, 600), (BASE + 100, 0, 100, 600), (0, 50, 0, 50), (BASE + 700, 200, 700, 200), (BASE, 1000, 0, 1000)]
    {
        let region = lab.blank(1000);
        let header = TokenHeader::B(Token { rkey: region.rkey, ..token }, Window { address, length });
        lab.call(&get("/ernic/k").token(&header)).expect_moved(Family::B, 200, moved as u64);
        let mut expected = vec![BLANK; 1000];
        expected[from..from + moved].copy_from_slice(&content[..moved]);
        assert_eq!(lab.memory.content(region.rkey), expected, "{address:x}:{length:x}");
    }
}

#[test]
fn s3_rdma_rule_01_a_window_is_cut_where_the_registration_ends() {
    let lab = lab();
    let content = pattern(1000);
    lab.put("k", &content);
    for family in AB {
        let region = lab.blank(700);
        let token = region.token(family, BASE + 200, 5000);
        lab.call(&get("/ernic/k").token(&token)).expect_moved(family, 200, 500);
        assert_eq!(lab.memory.content(region.rkey), [&[BLANK; 200], &content[..500]].concat());
        // To the end of the address space, and beyond.
        let region = lab.region_at(u64::MAX - 99, &[BLANK; 100]);
        let token = region.token(family, u64::MAX - 49, u64::MAX);
        lab.call(&get("/ernic/k").token(&token)).expect_moved(family, 200, 50);
        assert_eq!(lab.memory.content(region.rkey), [&[BLANK; 50], &content[..50]].concat());
    }
    // What fits is written, whatever the token says beyond.
    for family in CDE {
        let region = lab.blank(1300);
        let token = region.token(family, BASE + 300, 5000);
        lab.call(&get("/ernic/k").token(&token)).expect_moved(family, 200, 1000);
        assert_eq!(lab.memory.content(region.rkey), [&[BLANK; 300], &content[..]].concat());
    }
}

#[test]
fn s3_rdma_rule_01_the_token_header_wins_over_the_three_others() {
    let lab = lab();
    let content = pattern(100);
    lab.put("k", &content);
    let (named, other) = (lab.blank(100), lab.blank(100));
    for broken in [false, true] {
        let mut get = get("/ernic/k").token(&named.whole(Family::A)).token(&other.whole(Family::E));
        if broken {
            get.headers.retain(|(name, _)| name != names::CUOBJ_CONTENT_LENGTH);
        }
        lab.call(&get).expect_moved(Family::A, 200, 100);
    }
    assert_eq!(lab.memory.content(named.rkey), content);
    assert_eq!(lab.memory.content(other.rkey), [BLANK; 100]);
}

#[test]
fn s3_rdma_rule_01_a_presigned_query_may_carry_the_token() {
    let lab = lab();
    lab.put("k", &pattern(100));
    let region = lab.blank(100);
    let (_, token) = region.whole(Family::C).headers().remove(0);
    let target = format!("/ernic/k?X-Amz-Rdma-Token={token}&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00");
    lab.call(&get(&target)).expect_moved(Family::C, 200, 100);
    assert_eq!(lab.memory.content(region.rkey), pattern(100));
}

// ---------------------------------------------------------------- rules 2 to 5: what a success looks like

#[test]
fn s3_rdma_rule_02_successes_have_no_body_and_an_etag() {
    let lab = lab();
    let content = pattern(5000);
    let tag = md5(&content);
    let upload = start_upload(&lab, "parts");
    for (family, number) in FAMILIES.into_iter().zip(1..) {
        let source = lab.region(&content);
        let answer = lab.call(&token_put("/ernic/k", &source.whole(family)));
        assert_eq!(answer.expect_moved(family, 200, 5000).header("etag"), Some(&*tag));
        let part = format!("/ernic/parts?partNumber={number}&uploadId={upload}");
        let answer = lab.call(&token_put(&part, &source.whole(family)));
        assert_eq!(answer.expect_moved(family, 200, 5000).header("etag"), Some(&*tag));
        let target = lab.blank(5000);
        let answer = lab.call(&get("/ernic/k").token(&target.whole(family)));
        assert_eq!(answer.expect_moved(family, 200, 5000).header("etag"), Some(&*tag));
        // A 206 has a bare reply for everybody.
        let answer = lab.call(&get("/ernic/k").header("range", "bytes=0-9").token(&target.whole(family)));
        assert_eq!(answer.expect_moved(family, 206, 10).header("etag"), Some(&*tag));
    }
    assert_eq!(lab.counts(), Counts { reads: [10, 25_050], writes: [10, 50_000] });
}

#[test]
fn s3_rdma_rule_03_the_reply_names_a_queue_pair_of_the_endpoint() {
    let lab = lab();
    lab.put("k", b"content");
    let region = lab.blank(10);
    let request = get("/ernic/k").token(&region.whole(Family::A));
    let mut qpns = Vec::new();
    for _ in 0..2 {
        let mut client = lab.client();
        for _ in 0..2 {
            let answer = client.call(&request);
            let reply = answer.header(names::REPLY).unwrap();
            let Ok(Reply::Token(token)) = Reply::parse(reply) else { panic!("{reply}") };
            let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 200, 1];
            assert_eq!(token, Token::endpoint(token.qpn, gid, 0));
            assert_eq!(reply, reply.to_lowercase());
            qpns.push(token.qpn);
        }
    }
    // The object was put on the first connection.
    assert_eq!(qpns, [0xd0_0002, 0xd0_0002, 0xd0_0003, 0xd0_0003]);
}

#[test]
fn s3_rdma_rule_04_successes_count_what_they_moved_in_both_spellings() {
    let lab = lab();
    for size in [1, 512, 4096, 300_001] {
        let content = pattern(size);
        let (source, target) = (lab.region(&content), lab.blank(size + 100));
        for family in FAMILIES {
            let answer = lab.call(&token_put("/ernic/k", &source.whole(family)));
            for name in ["x-amz-rdma-bytes", "x-amz-rdma-bytes-transferred"] {
                assert_eq!(answer.header(name), Some(&*size.to_string()), "{family}");
            }
            let answer = lab.call(&get("/ernic/k").token(&target.whole(family)));
            for name in ["x-amz-rdma-bytes", "x-amz-rdma-bytes-transferred"] {
                assert_eq!(answer.header(name), Some(&*size.to_string()), "{family}");
            }
        }
        assert_eq!(lab.memory.content(target.rkey)[size..], [BLANK; 100], "not one byte more");
    }
}

#[test]
fn s3_rdma_rule_05_names_are_in_lower_case_on_the_wire() {
    let lab = lab();
    lab.put("k", b"content");
    let region = lab.blank(10);
    for request in [
        get("/ernic/k").token(&region.whole(Family::A)),
        get("/ernic/k").token(&region.whole(Family::C)),
        get("/ernic/none").token(&region.whole(Family::C)),
        token_put("/ernic/k", &region.whole(Family::B)),
    ] {
        let mut client = lab.client();
        client.send(&request.bytes());
        let output = String::from_utf8(client.take_output()).unwrap();
        for name in ["x-amz-rdma-reply", "x-amz-rdma-bytes", "x-amz-rdma-bytes-transferred"] {
            assert_eq!(output.matches(&format!("\r\n{name}: ")).count(), 1, "{output}");
        }
        assert_eq!(output.to_lowercase().matches("x-amz-rdma").count(), 3);
    }
}

// ---------------------------------------------------------------- rules 6 and 7: what of an object

#[test]
fn s3_rdma_rule_06_ranges_go_to_the_beginning_of_the_window() {
    let lab = lab();
    let content = pattern(10_000);
    lab.put("k", &content);
    for family in FAMILIES {
        for (range, from, to) in [
            ("1024-1535", 1024, 1536),
            ("0-0", 0, 1),
            ("9990-", 9990, 10_000),
            ("-7", 9993, 10_000),
            ("5-99999", 5, 10_000),
        ] {
            let region = lab.blank(10_000);
            let before = lab.counts().reads;
            let answer =
                lab.call(&get("/ernic/k").header("range", format!("bytes={range}")).token(&region.whole(family)));
            answer.expect_moved(family, 206, to - from);
            assert_eq!(answer.header("content-range"), Some(&*format!("bytes {from}-{}/10000", to - 1)));
            let mut expected = vec![BLANK; 10_000];
            expected[..(to - from) as usize].copy_from_slice(&content[from as usize..to as usize]);
            assert_eq!(lab.memory.content(region.rkey), expected, "{family} {range}");
            assert_eq!(lab.counts().reads, plus(before, [1, to - from]));
        }
    }
}

#[test]
fn s3_rdma_rule_06_part_numbers_answer_206_too() {
    let lab = lab();
    let content = pattern(3000);
    let upload = start_upload(&lab, "parts");
    let mut parts = Vec::new();
    for (number, part) in [(1, &content[..1000]), (2, &content[1000..])] {
        let target = format!("/ernic/parts?partNumber={number}&uploadId={upload}");
        let etag = lab.call(&put(&target, part)).expect(200).header("etag").unwrap().to_owned();
        parts.push(format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
    }
    complete(&lab, "parts", &upload, &parts).expect(200);
    lab.put("simple", &content);
    for family in FAMILIES {
        for (target, from, to) in [
            ("/ernic/parts?partNumber=1", 0, 1000),
            ("/ernic/parts?partNumber=2", 1000, 3000),
            ("/ernic/simple?partNumber=1", 0, 3000),
        ] {
            let region = lab.blank(3000);
            let answer = lab.call(&get(target).token(&region.whole(family)));
            answer.expect_moved(family, 206, (to - from) as u64);
            assert_eq!(answer.header("content-range"), Some(&*format!("bytes {from}-{}/3000", to - 1)));
            let mut expected = vec![BLANK; 3000];
            expected[..to - from].copy_from_slice(&content[from..to]);
            assert_eq!(lab.memory.content(region.rkey), expected, "{family} {target}");
        }
    }
}

#[test]
fn s3_rdma_rule_07_a_short_window_is_filled_and_counted() {
    let lab = lab();
    let content = pattern(600_000);
    lab.put("k", &content);
    for family in AB {
        for window in [1, 4095, 262_144, 599_999] {
            let region = lab.blank(700_000);
            let before = lab.counts().reads;
            let answer = lab.call(&get("/ernic/k").token(&region.first(family, window)));
            answer.expect_moved(family, 200, window);
            let window = window as usize;
            let mut expected = vec![BLANK; 700_000];
            expected[..window].copy_from_slice(&content[..window]);
            assert!(lab.memory.content(region.rkey) == expected, "{family}: not one byte past {window}");
            assert_eq!(lab.counts().reads, plus(before, [1, window as u64]));
        }
    }
}

#[test]
fn s3_rdma_rule_07_strict_clients_are_sent_away_without_a_reply() {
    let lab = lab();
    lab.put("k", &pattern(1000));
    for family in CDE {
        let region = lab.blank(2000);
        for get in [
            get("/ernic/k").token(&region.first(family, 999)),
            get("/ernic/k").token(&region.token(family, BASE + 1001, 1000)),
            get("/ernic/k").header("range", "bytes=10-109").token(&region.first(family, 99)),
        ] {
            lab.refused(&get, 400, "InvalidRequest", None, "window");
        }
        assert_eq!(lab.memory.content(region.rkey), [BLANK; 2000]);
        lab.call(&get("/ernic/k").token(&region.first(family, 1000))).expect_moved(family, 200, 1000);
    }
}

#[test]
fn s3_rdma_rule_07_maxpart_caps_a_transfer_like_a_window() {
    let lab = lab_of(S3Config { max_part: 1000, ..S3Config::default() }, RdmaConfig::new(ENDPOINT));
    let content = pattern(1800);
    let upload = start_upload(&lab, "big");
    let mut parts = Vec::new();
    for (number, part) in [(1, &content[..900]), (2, &content[900..])] {
        let target = format!("/ernic/big?partNumber={number}&uploadId={upload}");
        let etag = lab.call(&put(&target, part)).expect(200).header("etag").unwrap().to_owned();
        parts.push(format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
    }
    complete(&lab, "big", &upload, &parts).expect(200);
    let region = lab.blank(1800);
    lab.call(&get("/ernic/big").token(&region.whole(Family::A))).expect_moved(Family::A, 200, 1000);
    assert_eq!(lab.memory.content(region.rkey), [&content[..1000], &[BLANK; 800]].concat());
    lab.refused(&get("/ernic/big").token(&region.whole(Family::C)), 400, "InvalidRequest", None, "window");
    let range = get("/ernic/big").header("range", "bytes=800-1799").token(&region.whole(Family::C));
    lab.call(&range).expect_moved(Family::C, 206, 1000);
}

// ---------------------------------------------------------------- rules 8 and 9: sizes and bodies of a PUT

#[test]
fn s3_rdma_rule_08_the_token_says_the_size() {
    let lab = lab();
    let content = pattern(3000);
    let source = lab.region(&content);
    for family in FAMILIES {
        for (from, size) in [(0, 3000), (0, 1), (1000, 1500)] {
            let token = source.token(family, BASE + from as u64, size as u64);
            lab.call(&token_put("/ernic/k", &token)).expect_moved(family, 200, size as u64);
            assert_eq!(lab.get("k"), content[from..from + size], "{family}");
            // Without any Content-Length, too.
            lab.call(&request("PUT", "/ernic/l").token(&token)).expect_moved(family, 200, size as u64);
            assert_eq!(lab.get("l"), content[from..from + size]);
        }
    }
    // A suffix whose length is zero leaves the token's.
    let TokenHeader::A(token) = source.first(Family::A, 700) else { panic!() };
    let header = TokenHeader::B(token, Window { address: BASE + 5, length: 0 });
    lab.call(&token_put("/ernic/k", &header)).expect_moved(Family::B, 200, 700);
    assert_eq!(lab.get("k"), content[5..705]);
}

#[test]
fn s3_rdma_rule_08_a_content_length_caps_it() {
    let lab = lab();
    let content = pattern(3000);
    let source = lab.region(&content);
    for family in FAMILIES {
        for (declared, size) in [(1, 1), (2999, 2999), (3000, 3000), (3001, 3000), (1 << 40, 3000)] {
            let mut client = lab.client();
            let mut put = token_put("/ernic/k", &source.whole(family));
            put.length = Some(declared);
            client.send(&put.head());
            let answer = client.answer("PUT");
            answer.expect(200).expect_reply(answer.header(names::REPLY), Some(size as u64));
            assert_eq!(lab.get("k"), content[..size], "{family}");
        }
    }
    // What is declared of an aws-chunked body is its decoded length.
    let put = token_put("/ernic/k", &source.whole(Family::C))
        .header("content-encoding", "aws-chunked")
        .header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        .header("x-amz-decoded-content-length", "10");
    lab.call(&put).expect_moved(Family::C, 200, 10);
    assert_eq!(lab.get("k"), content[..10]);
}

#[test]
fn s3_rdma_rule_08_too_much_is_refused() {
    let lab = lab_of(S3Config { max_part: 2000, ..S3Config::default() }, RdmaConfig::new(ENDPOINT));
    let source = lab.region(&pattern(3000));
    let upload = start_upload(&lab, "p");
    let part = format!("/ernic/p?partNumber=1&uploadId={upload}");
    for family in FAMILIES {
        for target in ["/ernic/k", &part] {
            let too_large = token_put(target, &source.first(family, 2001));
            lab.refused(&too_large, 400, "EntityTooLarge", Some("400"), "too_large");
            // More than is left of the registration.
            let too_short = token_put(target, &source.token(family, BASE + 2000, 1001));
            lab.refused(&too_short, 400, "EntityTooLarge", Some("400"), "window");
            lab.call(&token_put(target, &source.token(family, BASE + 2000, 1000))).expect_moved(family, 200, 1000);
        }
        // A declared length may bring it below the limits.
        let mut put = token_put("/ernic/k", &source.whole(family));
        put.length = Some(2000);
        put.body = pattern(2000);
        lab.call(&put).expect_moved(family, 200, 2000);
    }
}

#[test]
fn s3_rdma_rule_08_no_size_at_all_is_411() {
    let lab = lab();
    let source = lab.region(&pattern(100));
    for family in AB {
        let nothing = source.first(family, 0);
        for put in [token_put("/ernic/k", &nothing), request("PUT", "/ernic/k").token(&nothing)] {
            lab.refused(&put, 411, "MissingContentLength", Some("411"), "length");
        }
        // One that only the request declares does not fit into an empty window.
        let mut put = token_put("/ernic/k", &nothing);
        put.length = Some(3);
        put.body = b"abc".to_vec();
        lab.refused(&put, 400, "EntityTooLarge", Some("400"), "window");
    }
    assert_eq!(lab.usage(), (0, 0));
}

#[test]
fn s3_rdma_rule_09_a_body_is_not_waited_for() {
    let lab = lab();
    let content = pattern(4096);
    let source = lab.region(&content);
    for (family, expect) in [(Family::A, false), (Family::C, false), (Family::A, true), (Family::E, true)] {
        let mut put = token_put("/ernic/k", &source.whole(family));
        put.length = Some(4096);
        if expect {
            put = put.header("expect", "100-continue");
        }
        let mut client = lab.client();
        client.send(&put.head());
        let answer = client.answer("PUT");
        answer.expect(200);
        assert_eq!(answer.header(names::BYTES), Some("4096"));
        assert_eq!(answer.header("connection"), Some("close"), "{family}");
        assert!(client.closed());
        assert_eq!(client.output(), b"", "the answer alone, no 100");
        assert_eq!(lab.get("k"), content);
        // What comes late is not taken for a request.
        client.send(&get("/ernic/k").bytes());
        assert_eq!(client.output(), b"");
    }
    // Chunked, without an end.
    let put = request("PUT", "/ernic/k").header("transfer-encoding", "chunked").token(&source.whole(Family::A));
    let mut client = lab.client();
    client.send(&[put.head(), b"5\r\nhello\r\n".to_vec()].concat());
    assert_eq!(client.answer("PUT").expect(200).header("connection"), Some("close"));
    assert_eq!(lab.get("k"), content);
}

#[test]
fn s3_rdma_rule_09_a_body_that_is_there_is_drained_within_bounds() {
    let lab = lab();
    let content = pattern(4096);
    let source = lab.region(&content);
    // In the same burst: the connection is kept, and what was in the body is nowhere.
    for (len, kept) in [(1, true), (4096, true), (200_000, true), (64 * MIB, false)] {
        let mut put = token_put("/ernic/k", &source.whole(Family::A));
        put.length = Some(len);
        let mut client = lab.client();
        client.push(&put.head());
        for piece in vec![b'x'; len.min(MIB)].chunks(60_000) {
            client.push(piece);
        }
        client.run();
        let answer = client.answer("PUT");
        answer.expect(200);
        assert_eq!(answer.header("connection"), if kept { None } else { Some("close") }, "{len}");
        assert_eq!(client.closed(), !kept);
        assert_eq!(lab.get("k"), content[..len.min(4096)]);
        if kept {
            assert_eq!(client.call(&get("/ernic/k")).expect(200).body, content[..len.min(4096)]);
        }
    }
    // Refused ones, likewise.
    let mut client = lab.client();
    let put = put("/nobucket/k", vec![b'x'; 1000]).token(&source.whole(Family::A));
    client.call(&put).expect_error(404, "NoSuchBucket", "/nobucket/k");
    client.call(&get("/ernic/k")).expect(200);
    assert_eq!(lab.counts().writes, [4, 1 + 4096 * 3]);
}

// ---------------------------------------------------------------- rules 10 to 13: what does not work

#[test]
fn s3_rdma_rule_10_case_13_everything_is_declined_while_rdma_is_off() {
    let lab = lab_with(S3Config::default(), |builder, _| builder);
    lab.put("k", b"old");
    let region = lab.region(&pattern(10));
    let upload = start_upload(&lab, "p");
    for family in FAMILIES {
        let token = region.whole(family);
        lab.refused(&get("/ernic/k").token(&token), 501, "NotImplemented", Some("501"), "off");
        lab.refused(&token_put("/ernic/k", &token), 501, "NotImplemented", Some("501"), "off");
        let part = format!("/ernic/p?partNumber=1&uploadId={upload}");
        lab.refused(&token_put(&part, &token), 501, "NotImplemented", Some("501"), "off");
        lab.refused(&token_put("/ernic/new", &token), 501, "NotImplemented", Some("501"), "off");
    }
    assert_eq!(lab.get("k"), b"old");
    lab.call(&get("/ernic/new")).expect(404);
}

#[test]
fn s3_rdma_rule_10_tokens_that_cannot_be_served_are_declined() {
    let lab = broken(RemoteError::Unsupported("DC tokens".into()));
    lab.put("k", b"old");
    let region = lab.region(&pattern(10));
    for family in FAMILIES {
        let token = region.whole(family);
        lab.refused(&get("/ernic/k").token(&token), 501, "NotImplemented", Some("501"), "unsupported");
        lab.refused(&token_put("/ernic/k", &token), 501, "NotImplemented", Some("501"), "unsupported");
        lab.refused(&token_put("/ernic/new", &token), 501, "NotImplemented", Some("501"), "unsupported");
    }
    assert_eq!(lab.get("k"), b"old");
    lab.call(&get("/ernic/new")).expect(404);
}

/// A transfer of 600,000 bytes that breaks at byte `at`.
fn breaks(at: u64, error: &RemoteError) {
    let lab = lab();
    let (old, new) = (pattern(600_000), vec![7; 600_000]);
    let etag = lab.put("k", &old);
    let upload = start_upload(&lab, "p");
    for family in FAMILIES {
        let region = lab.region(&new);
        let part = format!("/ernic/p?partNumber=1&uploadId={upload}");
        for request in [
            get("/ernic/k").token(&region.whole(family)),
            token_put("/ernic/k", &region.whole(family)),
            token_put(&part, &region.whole(family)),
        ] {
            let (before, usage, failures) = (lab.counts(), lab.usage(), lab.failures(error.reason()));
            lab.probe.fail_after(at, error.clone());
            let answer = lab.call(&request);
            answer.expect_error(503, "RDMATransferError", request.target.split('?').next().unwrap());
            answer.expect_reply(Some("503"), Some(0));
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(answer.header("etag"), None);
            assert_eq!((lab.counts(), lab.usage()), (before, usage), "nothing counts as moved");
            assert_eq!(lab.failures(error.reason()), failures + 1);
            assert_eq!(lab.service.metrics().rdma_active(), 0);
        }
        // The previous object is untouched, and the next transfer works.
        let answer = lab.call(&get("/ernic/k"));
        assert_eq!((answer.header("etag"), answer.body == old), (Some(&*etag), true));
        lab.call(&get("/ernic/k").token(&region.whole(family))).expect_moved(family, 200, 600_000);
    }
    let listed = lab.call(&get(&format!("/ernic/p?uploadId={upload}"))).expect(200).xml();
    assert!(listed.all("Part").is_empty());
}

#[test]
fn s3_rdma_rule_11_a_broken_transfer_changes_nothing() {
    for at in [0, 1, 262_144, 300_000] {
        breaks(at, &RemoteError::Transport("the cable was pulled".into()));
    }
    breaks(5000, &RemoteError::Stale(1));
}

#[test]
fn s3_rdma_rule_11_case_14_one_byte_too_few_is_a_failure() {
    breaks(599_999, &RemoteError::Transport("one byte less than asked".into()));
}

#[test]
fn s3_rdma_rule_11_a_connection_that_cannot_be_made_is_a_broken_transfer() {
    let lab = broken(RemoteError::Transport("no route".into()));
    lab.put("k", b"old");
    let region = lab.region(&pattern(10));
    for family in FAMILIES {
        for request in [get("/ernic/k").token(&region.whole(family)), token_put("/ernic/k", &region.whole(family))] {
            let answer = lab.refused(&request, 503, "RDMATransferError", Some("503"), "transport");
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
    }
    assert_eq!(lab.get("k"), b"old");
}

#[test]
fn s3_rdma_rule_12_case_01_what_cannot_be_reached_is_500_and_nothing_moves() {
    let lab = lab();
    lab.put("k", b"old");
    let content = pattern(1000);
    let (good, gone) = (lab.region(&content), lab.region(&content));
    lab.memory.deregister(gone.rkey);
    let only = |right| Region { rkey: lab.memory.register(BASE, &content, &[right]), ..good };
    let (readable, writable) = (only(RemoteAccess::Read), only(RemoteAccess::Write));
    let none = Region { rkey: lab.memory.register(BASE, &content, &[]), ..good };
    let window = |address, length| Window { address, length };
    for family in FAMILIES {
        for (token, reason, get_works, put_works) in [
            (token(family, 0x00de_ad00, good.window), "unknown_key", false, false),
            (token(family, u32::MAX, good.window), "unknown_key", false, false),
            (token(family, 0, good.window), "reserved_key", false, false),
            (gone.whole(family), "stale", false, false),
            (none.whole(family), "access", false, false),
            (readable.whole(family), "access", false, true),
            (writable.whole(family), "access", true, false),
            (token(family, good.rkey, window(BASE - 1, 1000)), "bounds", false, false),
            (token(family, good.rkey, window(BASE + 1000, 1)), "bounds", false, false),
            (token(family, good.rkey, window(u64::MAX, 1000)), "bounds", false, false),
            (token(family, good.rkey, window(1, 0xffff_ffff)), "bounds", false, false),
        ] {
            if !get_works {
                lab.refused(&get("/ernic/k").token(&token), 500, "InternalError", Some("500"), reason);
            }
            if !put_works && token.window().length <= 1000 {
                lab.refused(&token_put("/ernic/k", &token), 500, "InternalError", Some("500"), reason);
                lab.refused(&token_put("/ernic/new", &token), 500, "InternalError", Some("500"), reason);
            }
        }
    }
    for region in [good, gone, readable, none] {
        assert_eq!(lab.memory.content(region.rkey), content);
    }
    assert_eq!((lab.get("k"), lab.usage()), (b"old".to_vec(), (1, 3)));
    assert_eq!(lab.counts(), Counts::default());
    // The rights that are there are enough.
    lab.call(&token_put("/ernic/k", &readable.whole(Family::A))).expect_moved(Family::A, 200, 1000);
    lab.call(&get("/ernic/k").token(&writable.whole(Family::A))).expect_moved(Family::A, 200, 1000);
}

#[test]
fn s3_rdma_rule_13_case_08_malformed_tokens() {
    let lab = lab();
    lab.put("k", b"old");
    let region = lab.region(&pattern(100));
    let text = |family| region.whole(family).headers().remove(0).1;
    let (a, b, c, d) = (text(Family::A), text(Family::B), text(Family::C), text(Family::D));
    let mut values = vec![
        String::new(),
        "ok".into(),
        a[1..].into(),
        format!("{a}0"),
        format!("02{}", &a[2..]),
        format!("ff{}", &a[2..]),
        format!("{}g{}", &a[..40], &a[41..]),
        format!("{} {}", &a[..40], &a[41..]),
        format!("{a}:"),
        format!(":{a}"),
        format!("{a}:1"),
        format!("{a}::1"),
        format!("{a}:1:2:3"),
        format!("{a}:12345678901234567:1"),
        format!("{b}:"),
        c[1..].into(),
        format!("{c}:"),
        format!("{c}:1"),
        format!("{c}:0000000000000001:1"),
        c.replacen(':', " :", 1),
        c.replacen(':', "::", 1),
        c.replace(":1:", ":2:"),
        format!("{d}:"),
        "0".repeat(1025),
        format!("{a}:{}", "0".repeat(1000)),
    ];
    // Families that have to have a length.
    values.push(region.first(Family::C, 0).headers().remove(0).1);
    for value in &values {
        for (method, target) in [("GET", "/ernic/k"), ("PUT", "/ernic/k"), ("PUT", "/ernic/new")] {
            let mut request = request(method, target).header(names::TOKEN, value);
            request.length = Some(0);
            lab.refused(&request, 400, "InvalidArgument", None, "malformed");
        }
    }
    // The same with the three headers, and what is there twice.
    let e = region.whole(Family::E).headers();
    for leave in 0..3 {
        let some = e.iter().enumerate().filter(|(i, _)| *i != leave);
        let some = some.fold(get("/ernic/k"), |get, (_, (name, value))| get.header(name, value));
        lab.refused(&some, 400, "InvalidArgument", None, "malformed");
        let twice =
            e.iter().chain([&e[leave]]).fold(put("/ernic/new", ""), |put, (name, value)| put.header(name, value));
        lab.refused(&twice, 400, "InvalidArgument", None, "malformed");
        for bad in ["", "x", "-1", "0x10", "18446744073709551616"] {
            let e = e.iter().enumerate();
            let bad = e.fold(get("/ernic/k"), |get, (i, (name, value))| {
                get.header(name, if i == leave { bad } else { value })
            });
            lab.refused(&bad, 400, "InvalidArgument", None, "malformed");
        }
    }
    let twice = get("/ernic/k").header(names::TOKEN, &a).header(names::TOKEN, &a);
    lab.refused(&twice, 400, "InvalidArgument", None, "malformed");
    assert_eq!(lab.memory.content(region.rkey), pattern(100));
    assert_eq!((lab.get("k"), lab.usage()), (b"old".to_vec(), (1, 3)));
    // Spaces around a value are HTTP's and not the token's.
    lab.call(&get("/ernic/k").header(names::TOKEN, format!("  {a} \t"))).expect_moved(Family::A, 200, 3);
}

// ---------------------------------------------------------------- rules 14 to 17: S3's own

#[test]
fn s3_rdma_rule_14_errors_of_s3_carry_their_status() {
    let lab = lab();
    lab.put("k", b"old");
    let region = lab.region(&pattern(100));
    let full = lab.region(&vec![0; 65 * MIB]);
    for family in FAMILIES {
        let token = region.whole(family);
        for (request, status, code) in [
            (get("/ernic/none"), 404, "NoSuchKey"),
            (get("/nobucket/k"), 404, "NoSuchBucket"),
            (get("/ernic/k?versionId=7"), 404, "NoSuchVersion"),
            (get("/ernic/k?partNumber=0"), 400, "InvalidArgument"),
            (get("/ernic/k?partNumber=9"), 416, "InvalidPartNumber"),
            (get("/ernic/k").header("range", "bytes=3-"), 416, "InvalidRange"),
            (put("/nobucket/k", ""), 404, "NoSuchBucket"),
            (put("/ernic/k?partNumber=1&uploadId=none", ""), 404, "NoSuchUpload"),
            (put("/ernic/k", "").header("if-match", "\"x\""), 412, "PreconditionFailed"),
            (put("/ernic/k", "").header("x-amz-server-side-encryption", "AES256"), 501, "NotImplemented"),
            (put("/ernic/k", "").header("x-amz-storage-class", "GLACIER"), 400, "InvalidStorageClass"),
            (put("/ernic/k", "").header("x-amz-checksum-crc32", "bogus"), 400, "InvalidRequest"),
        ] {
            lab.refused(&request.token(&token), status, code, Some(&status.to_string()), "");
        }
        let put = token_put("/ernic/k", &full.whole(family));
        lab.refused(&put, 507, "InsufficientStorage", Some("507"), "");
    }
    // Other operations take no notice of tokens, not even of malformed ones.
    for value in [region.whole(Family::A).headers().remove(0).1, "nonsense".into()] {
        for (method, target, status) in [
            ("HEAD", "/ernic/k", 200),
            ("HEAD", "/ernic/none", 404),
            ("GET", "/ernic", 200),
            ("GET", "/", 200),
            ("GET", "/ernic/k?uploadId=none", 404),
            ("POST", "/ernic/m?uploads", 200),
            ("DELETE", "/ernic/none", 204),
            ("GET", "/ernic/k?acl", 200),
        ] {
            let answer = lab.call(&request(method, target).header(names::TOKEN, &value));
            answer.expect(status).expect_reply(None, None);
        }
        let head = lab.call(&request("HEAD", "/ernic/k").header(names::TOKEN, &value));
        assert_eq!(head.header("content-length"), Some("3"));
    }
    assert_eq!(lab.memory.content(region.rkey), pattern(100));
    assert_eq!(lab.counts(), Counts::default());
}

/// By token as by body: versions, conditions on what is there, tags, declared checksums.
#[test]
fn s3_rdma_rule_14_what_the_service_knows_holds_for_tokens() {
    let lab = lab();
    let versioning = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    lab.call(&put("/ernic?versioning", versioning)).expect(200);
    for family in FAMILIES {
        let key = format!("/ernic/{family}");
        let (one, two) = (pattern(2000), vec![7; 3000]);
        let (first, second) = (lab.region(&one), lab.region(&two));
        let before = lab.counts();
        let put_one = token_put(&key, &first.whole(family)).header("x-amz-tagging", "by=token");
        let answer = lab.call(&put_one.header("if-none-match", "*"));
        let etag = answer.expect_moved(family, 200, 2000).header("etag").unwrap().to_owned();
        let version = answer.header("x-amz-version-id").expect("a version").to_owned();
        // A condition that does not hold is told before a byte moves.
        let refused = token_put(&key, &second.whole(family)).header("if-none-match", "*");
        lab.call(&refused).expect(412).expect_reply(Some("412"), Some(0));
        let other = token_put(&key, &second.whole(family)).header("if-match", &etag);
        let newer = lab.call(&other);
        newer.expect_moved(family, 200, 3000);
        assert_ne!(newer.header("x-amz-version-id"), Some(&*version));
        // The older version, and a part of the newer one by its id.
        let target = lab.blank(4000);
        let answer = lab.call(&get(&format!("{key}?versionId={version}")).token(&target.first(family, 2000)));
        answer.expect_moved(family, 200, 2000);
        assert_eq!(answer.header("x-amz-version-id"), Some(&*version));
        assert_eq!(answer.header("x-amz-tagging-count"), Some("1"));
        assert_eq!(lab.memory.content(target.rkey), [&one[..], &[BLANK; 2000]].concat());
        let newer = newer.header("x-amz-version-id").unwrap();
        let range = get(&format!("{key}?versionId={newer}")).header("range", "bytes=2990-");
        lab.call(&range.token(&target.whole(family))).expect_moved(family, 206, 10);
        assert_eq!(lab.memory.content(target.rkey)[..10], [7; 10]);
        // Nothing moves for a version that is not there, a delete marker, or what has not changed.
        lab.call(&get(&format!("{key}?versionId=none")).token(&target.whole(family)))
            .expect(404)
            .expect_reply(Some("404"), Some(0));
        let unchanged = get(&format!("{key}?versionId={version}")).header("if-none-match", &etag);
        lab.call(&unchanged.token(&target.whole(family))).expect(304).expect_reply(Some("304"), Some(0));
        let marker = lab.call(&request("DELETE", &key)).header("x-amz-version-id").unwrap().to_owned();
        lab.call(&get(&key).token(&target.whole(family))).expect(404).expect_reply(Some("404"), Some(0));
        lab.call(&get(&format!("{key}?versionId={marker}")).token(&target.whole(family)))
            .expect(405)
            .expect_reply(Some("405"), Some(0));
        let after = lab.counts();
        assert_eq!(after.writes, plus(before.writes, [2, 5000]));
        assert_eq!(after.reads, plus(before.reads, [2, 2010]));

        // An upload that was declared to have SHA-256: it is computed for parts that come by token.
        let create = request("POST", &format!("{key}?uploads")).header("x-amz-checksum-algorithm", "SHA256");
        let upload = lab.call(&create).expect(200).xml().text_of("UploadId");
        let part = format!("{key}?partNumber=1&uploadId={upload}");
        let other = token_put(&part, &first.whole(family)).header("x-amz-checksum-crc64nvme", crc64(&one));
        lab.call(&other).expect(400).expect_reply(Some("400"), Some(0));
        let answer = lab.call(&token_put(&part, &first.whole(family)));
        answer.expect_moved(family, 200, 2000);
        assert!(answer.header("x-amz-checksum-sha256").is_some());
        lab.call(&request("DELETE", &format!("{key}?uploadId={upload}"))).expect(204);
    }
}

#[test]
fn s3_rdma_rule_15_case_16_an_empty_object() {
    let lab = lab();
    let etag = lab.put("empty", b"");
    for family in FAMILIES {
        let region = lab.blank(100);
        let before = lab.counts().reads;
        for target in ["/ernic/empty", "/ernic/empty?partNumber=1"] {
            let answer = lab.call(&get(target).token(&region.whole(family)));
            assert_eq!(answer.expect_moved(family, 200, 0).header("etag"), Some(&*etag));
        }
        assert_eq!(lab.memory.content(region.rkey), [BLANK; 100]);
        assert_eq!(lab.counts().reads, plus(before, [2, 0]));
        // There is nothing in it that a range could mean.
        let range = get("/ernic/empty").header("range", "bytes=0-0").token(&region.whole(family));
        lab.refused(&range, 416, "InvalidRange", Some("416"), "");
    }
}

#[test]
fn s3_rdma_rule_16_checksums_are_of_what_was_read() {
    let lab = lab();
    let content = pattern(300_000);
    let old = lab.put("k", b"old");
    let upload = start_upload(&lab, "p");
    let part = format!("/ernic/p?partNumber=1&uploadId={upload}");
    let crc32 = |data: &[u8]| {
        BASE64_STANDARD.encode((crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, data) as u32).to_be_bytes())
    };
    let sha256 = |data: &[u8]| {
        use sha2::Digest;
        BASE64_STANDARD.encode(sha2::Sha256::digest(data))
    };
    let source = lab.region(&content);
    for family in FAMILIES {
        for (name, good, of_nothing) in [
            ("x-amz-checksum-crc64nvme", crc64(&content), crc64(b"")),
            ("x-amz-checksum-crc32", crc32(&content), crc32(b"")),
            ("x-amz-checksum-sha256", sha256(&content), sha256(b"")),
        ] {
            for target in ["/ernic/k", &part] {
                let put = || token_put(target, &source.whole(family));
                let (before, usage, failures) = (lab.counts(), lab.usage(), lab.failures("checksum"));
                let answer = lab.call(&put().header(name, &of_nothing));
                answer.expect_error(400, "BadDigest", target.split('?').next().unwrap());
                answer.expect_reply(Some("400"), Some(0));
                assert_eq!((lab.counts(), lab.usage()), (before, usage));
                assert_eq!(lab.failures("checksum"), failures + 1);
                // Of the empty body, which nobody asks about: ignored, as is nonsense.
                for content_md5 in ["1B2M2Y8AsgTpgAmY7PhCfg==", "bogus"] {
                    let answer = lab.call(&put().header(name, &good).header("content-md5", content_md5));
                    answer.expect_moved(family, 200, 300_000);
                    assert_eq!(answer.header(name), Some(&*good));
                    assert_eq!(answer.header("etag"), Some(&*md5(&content)));
                }
                lab.call(&request("DELETE", "/ernic/k")).expect(204);
                assert_eq!(lab.put("k", b"old"), old);
            }
        }
        // Only the first bytes: the checksum is theirs.
        let put = token_put("/ernic/k", &source.first(family, 7)).header("x-amz-checksum-crc32", crc32(&content[..7]));
        lab.call(&put).expect_moved(family, 200, 7);
        lab.put("k", b"old");
        // One that would come behind a body cannot come.
        let put = token_put("/ernic/k", &source.whole(family))
            .header("x-amz-trailer", "x-amz-checksum-crc32")
            .header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
            .header("x-amz-decoded-content-length", "0");
        lab.refused(&put, 400, "InvalidRequest", Some("400"), "");
    }
    assert_eq!(lab.get("k"), b"old");
}

#[test]
fn s3_rdma_rule_16_a_get_tells_the_checksum_of_what_it_wrote() {
    let lab = lab();
    let content = pattern(5000);
    let source = lab.region(&content);
    lab.call(&token_put("/ernic/k", &source.whole(Family::A))).expect_moved(Family::A, 200, 5000);
    let region = lab.blank(5000);
    let get = || get("/ernic/k").header("x-amz-checksum-mode", "ENABLED");
    let answer = lab.call(&get().token(&region.whole(Family::A)));
    assert_eq!(answer.header("x-amz-checksum-crc64nvme"), Some(&*crc64(&content)));
    assert_eq!(answer.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
    // That of the object is not that of a part of it.
    let answer = lab.call(&get().token(&region.first(Family::A, 4999)));
    assert_eq!(answer.expect_moved(Family::A, 200, 4999).header("x-amz-checksum-crc64nvme"), None);
    let answer = lab.call(&get().header("range", "bytes=1-").token(&region.whole(Family::A)));
    assert_eq!(answer.expect_moved(Family::A, 206, 4999).header("x-amz-checksum-crc64nvme"), None);
}

#[test]
fn case_15_parts_by_token_with_and_without_their_checksums() {
    let lab = lab();
    let content = pattern(700_000);
    let halves = [&content[..500_000], &content[500_000..]];
    for (family, sums, wrong) in [
        (Family::A, true, false),
        (Family::B, false, false),
        (Family::C, true, false),
        (Family::D, true, true),
        (Family::E, false, true),
    ] {
        let upload = start_upload(&lab, "k");
        let mut parts = Vec::new();
        for (number, half) in (1..).zip(halves) {
            let source = lab.region(half);
            let target = format!("/ernic/k?partNumber={number}&uploadId={upload}");
            let mut put = token_put(&target, &source.whole(family));
            if sums {
                put = put.header("x-amz-checksum-crc64nvme", crc64(half));
            }
            let answer = lab.call(&put);
            answer.expect_moved(family, 200, half.len() as u64);
            assert_eq!(answer.header("x-amz-checksum-crc64nvme"), Some(&*crc64(half)));
            let sum = if wrong { crc64(b"other") } else { crc64(half) };
            let sum =
                if sums || wrong { format!("<ChecksumCRC64NVME>{sum}</ChecksumCRC64NVME>") } else { String::new() };
            let etag = answer.header("etag").unwrap();
            parts.push(format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>{sum}</Part>"));
        }
        let answer = complete(&lab, "k", &upload, &parts);
        if wrong {
            answer.expect_error(400, "InvalidPart", "/ernic/k");
            continue;
        }
        let done = answer.expect(200).xml();
        assert_eq!(done.text_of("ChecksumCRC64NVME"), crc64(&content));
        assert_eq!(done.text_of("ChecksumType"), "FULL_OBJECT");
        let target = lab.blank(content.len());
        let answer = lab.call(&get("/ernic/k").header("x-amz-checksum-mode", "ENABLED").token(&target.whole(family)));
        answer.expect_moved(family, 200, 700_000);
        assert_eq!(answer.header("x-amz-checksum-crc64nvme"), Some(&*crc64(&content)));
        assert!(lab.memory.content(target.rkey) == content);
    }
    assert_eq!(crc64(b"123456789"), BASE64_STANDARD.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes()));
}

#[test]
fn s3_rdma_rule_17_nothing_moves_before_the_request_may_proceed() {
    let lab = lab();
    let etag = lab.put("k", b"old");
    let region = lab.region(&pattern(100));
    // Authentication is off: signatures are taken off, whatever they cover.
    let signed = |request: Request| {
        request
            .header(
                "authorization",
                "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00",
            )
            .header("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
            .header("x-amz-date", "20260101T000000Z")
    };
    for family in FAMILIES {
        let token = region.whole(family);
        for (request, status, code) in [
            (put("/ernic/k", "").header("if-none-match", "*"), 412, "PreconditionFailed"),
            (put("/ernic/none", "").header("if-match", &etag), 404, "NoSuchKey"),
            (get("/ernic/k").header("if-match", "\"x\""), 412, "PreconditionFailed"),
        ] {
            lab.refused(&signed(request).token(&token), status, code, Some(&status.to_string()), "");
        }
    }
    assert_eq!(lab.probe.moved(), [0, 0]);
    assert_eq!(lab.memory.content(region.rkey), pattern(100));
    let put = signed(put("/ernic/k", "").header("if-match", &etag)).token(&region.whole(Family::C));
    lab.call(&put).expect_moved(Family::C, 200, 100);
    lab.call(&signed(get("/ernic/k")).token(&region.whole(Family::A))).expect_moved(Family::A, 200, 100);
}

#[test]
fn s3_rdma_rule_17_a_condition_is_checked_again_when_the_bytes_are_there() {
    let lab = lab();
    let region = lab.region(&pattern(MIB));
    let mut client = lab.client();
    client.push(&token_put("/ernic/k", &region.whole(Family::C)).header("if-none-match", "*").bytes());
    for _ in 0..3 {
        client.turn();
    }
    assert!(lab.probe.moved()[0] > 0 && client.output_len() == 0, "in the middle of it");
    lab.put("k", b"first");
    client.run();
    let answer = client.answer("PUT");
    answer.expect_error(412, "PreconditionFailed", "/ernic/k");
    answer.expect_reply(Some("412"), Some(0));
    assert_eq!((lab.get("k"), lab.usage(), lab.counts()), (b"first".to_vec(), (1, 5), Counts::default()));
    assert_eq!(lab.failures("store"), 1);
}

// ---------------------------------------------------------------- rules 18 to 20

#[test]
fn s3_rdma_rule_18_who_the_token_says_it_is_does_not_matter() {
    let lab = lab();
    lab.put("k", &pattern(100));
    let region = lab.blank(100);
    let TokenHeader::A(token) = region.whole(Family::A) else { panic!() };
    for token in [
        Token { transport: Transport::Dc, ..token },
        Token { qpn: 0, ..token },
        Token { qpn: u32::MAX, ..token },
        Token { gid: [0; 16], port: 0, lid: 0xffff, ..token },
        Token { gid: [0xff; 16], port: 255, ..token },
    ] {
        lab.call(&get("/ernic/k").token(&TokenHeader::A(token))).expect_moved(Family::A, 200, 100);
        lab.call(&token_put("/ernic/l", &TokenHeader::A(token))).expect_moved(Family::A, 200, 100);
    }
    let TokenHeader::C(c) = region.whole(Family::C) else { panic!() };
    for gid in [None, Some([0; 16])] {
        let header = TokenHeader::C(rdma_token::Descriptor { gid, lid: 7, qpn: rdma_token::Qpn::MAX, ..c });
        lab.call(&get("/ernic/k").token(&header)).expect_moved(Family::C, 200, 100);
    }
}

#[test]
fn s3_rdma_rule_19_conditions_that_end_a_get() {
    let lab = lab();
    let etag = lab.put("k", &pattern(100));
    let region = lab.blank(100);
    for family in FAMILIES {
        let token = region.whole(family);
        let answer = lab.call(&get("/ernic/k").header("if-none-match", &etag).token(&token));
        answer.expect(304).expect_reply(Some("304"), Some(0));
        assert_eq!((answer.header("etag"), answer.body.len()), (Some(&*etag), 0));
        let answer = lab.call(&get("/ernic/k").header("if-match", "\"other\"").token(&token));
        answer.expect_error(412, "PreconditionFailed", "/ernic/k");
        answer.expect_reply(Some("412"), Some(0));
        let answer = lab.call(&get("/ernic/k").header("if-match", &etag).header("range", "bytes=0-9").token(&token));
        answer.expect_moved(family, 206, 10);
    }
    assert_eq!(lab.counts().reads, [5, 50]);
    assert_eq!(lab.probe.moved(), [0, 50]);
}

#[test]
fn s3_rdma_rule_19_a_range_longer_than_the_window() {
    let lab = lab();
    let content = pattern(1000);
    lab.put("k", &content);
    for family in AB {
        let region = lab.blank(1000);
        let answer = lab.call(&get("/ernic/k").header("range", "bytes=100-599").token(&region.first(family, 200)));
        answer.expect_moved(family, 206, 200);
        assert_eq!(answer.header("content-range"), Some("bytes 100-599/1000"));
        assert_eq!(lab.memory.content(region.rkey), [&content[100..300], &[BLANK; 800]].concat());
    }
}

#[test]
fn s3_rdma_rule_19_windows_of_no_bytes() {
    let lab = lab();
    lab.put("k", &pattern(1000));
    let region = lab.blank(100);
    for family in AB {
        lab.call(&get("/ernic/k").token(&region.first(family, 0))).expect_moved(family, 200, 0);
        let range = get("/ernic/k").header("range", "bytes=1-2").token(&region.first(family, 0));
        lab.call(&range).expect_moved(family, 206, 0);
    }
    for family in CDE {
        // The other families' lengths may be overridden by theirs, but all of it is nothing.
        let nothing = match region.first(family, 0) {
            TokenHeader::D(descriptor, window) => {
                TokenHeader::D(rdma_token::Descriptor { length: 0, ..descriptor }, window)
            }
            other => other,
        };
        lab.refused(&get("/ernic/k").token(&nothing), 400, "InvalidArgument", None, "malformed");
        lab.refused(&token_put("/ernic/k", &nothing), 400, "InvalidArgument", None, "malformed");
    }
    assert_eq!(lab.memory.content(region.rkey), [BLANK; 100]);
    assert_eq!(lab.counts().reads, [4, 0]);
}

#[test]
fn s3_rdma_rule_20_both_paths_carry_the_same_bytes() {
    let lab = lab();
    for size in [1, 4095, 4096, 65_537, MIB, 2 * MIB + 3] {
        let content = pattern(size);
        let source = lab.region(&content);
        let by_body = lab.call(&put("/ernic/body", content.clone()).header("x-amz-meta-a", "b"));
        let by_rdma = lab.call(&token_put("/ernic/rdma", &source.whole(Family::A)).header("x-amz-meta-a", "b"));
        by_rdma.expect_moved(Family::A, 200, size as u64);
        assert_eq!(by_body.expect(200).header("etag"), by_rdma.header("etag"));
        assert_eq!(by_body.header("x-amz-checksum-crc64nvme"), by_rdma.header("x-amz-checksum-crc64nvme"));
        for (key, range) in [("body", None), ("rdma", None), ("body", Some("bytes=1-")), ("rdma", Some("bytes=-77"))] {
            let get = range.into_iter().fold(get(&format!("/ernic/{key}")), |get, range| get.header("range", range));
            let target = lab.blank(size);
            let body = lab.call(&get);
            let rdma = lab.call(&get.clone().token(&target.whole(Family::A)));
            if size == 1 && range == Some("bytes=1-") {
                assert_eq!((body.status, rdma.status), (416, 416));
                continue;
            }
            let written = lab.memory.content(target.rkey);
            assert!(written[..body.body.len()] == body.body, "{key} {range:?} {size}");
            assert!(written[body.body.len()..].iter().all(|&byte| byte == BLANK));
            // Apart from what is about the payload's way, the answers are the same.
            let same = |answer: &Answer| {
                let mut headers = answer.headers.clone();
                headers.retain(|(name, _)| {
                    !name.starts_with("x-amz-rdma")
                        && !["content-length", "x-amz-request-id", "date"].contains(&name.as_str())
                });
                headers.sort();
                (answer.status, headers)
            };
            if key == "body" || range.is_none() {
                assert_eq!(same(&body), same(&rdma));
            }
        }
    }
    let metrics = lab.service.metrics();
    assert_eq!((metrics.body_writes(), metrics.rdma_writes()), (6, 6));
    assert_eq!(metrics.body_reads(), 23);
    assert_eq!(metrics.rdma_reads(), 23);
}

// ---------------------------------------------------------------- the thread, and clients that go away

#[test]
fn transfers_are_cut_into_chunks_with_turns_in_between() {
    let lab = lab();
    let content = pattern(5 * MIB + 12_345);
    let source = lab.region(&content);
    for (request, index) in
        [(token_put("/ernic/k", &source.whole(Family::A)), 0), (get("/ernic/k").token(&source.whole(Family::A)), 1)]
    {
        let mut client = lab.client();
        client.push(&request.bytes());
        let mut last = lab.probe.moved()[index];
        let mut turns = 0;
        while client.turn() {
            let moved = lab.probe.moved()[index];
            assert!(moved - last <= CHUNK as u64, "{} bytes in one turn", moved - last);
            turns += u64::from(moved > last);
            last = moved;
        }
        client.answer(&request.method).expect_moved(Family::A, 200, content.len() as u64);
        assert!(turns >= content.len() as u64 / CHUNK as u64, "{turns} turns");
    }
    assert!(lab.probe.largest() <= CHUNK && lab.probe.largest() >= 64 * 1024, "{}", lab.probe.largest());
}

#[test]
fn a_client_that_goes_away_ends_its_transfer() {
    let lab = lab();
    let content = pattern(4 * MIB);
    lab.put("old", &content);
    let region = lab.region(&vec![1; 4 * MIB]);
    let usage = lab.usage();
    for request in
        [token_put("/ernic/old", &region.whole(Family::C)), get("/ernic/old").token(&region.whole(Family::C))]
    {
        let mut client = lab.client();
        client.push(&request.bytes());
        for _ in 0..4 {
            assert!(client.turn());
        }
        assert_eq!(lab.service.metrics().rdma_active(), 1);
        drop(client);
        assert_eq!(lab.service.metrics().rdma_active(), 0);
    }
    assert_eq!((lab.failures("aborted"), lab.counts(), lab.usage()), (2, Counts::default(), usage));
    let [read, written] = lab.probe.moved();
    assert!(read > 0 && read < 4 * MIB as u64 && written > 0 && written < 4 * MIB as u64);
    assert!(lab.get("old") == content);
}

#[test]
fn a_get_reads_a_snapshot() {
    let lab = lab();
    let content = pattern(2 * MIB);
    lab.put("k", &content);
    let region = lab.blank(2 * MIB);
    let mut client = lab.client();
    client.push(&get("/ernic/k").token(&region.whole(Family::A)).bytes());
    client.turn();
    client.turn();
    lab.put("k", b"new");
    client.run();
    client.answer("GET").expect_moved(Family::A, 200, 2 * MIB as u64);
    assert!(lab.memory.content(region.rkey) == content);
}

// ---------------------------------------------------------------- properties

#[derive(Debug, Clone)]
struct Step {
    family: Family,
    /// Which of the regions; the last is not registered.
    region: usize,
    /// Address relative to the region's.
    from: i64,
    length: u64,
    /// GetObject with a range, or PutObject with a Content-Length.
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Get(Option<(u64, u64)>),
    Put(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![0u64..20, 0u64..1500, Just(700u64)];
    let kind = prop_oneof![
        prop::option::of((number(), number())).prop_map(Kind::Get),
        prop_oneof![Just(0), number()].prop_map(Kind::Put),
    ];
    let from = prop_oneof![Just(0i64), -5i64..1000, Just(i64::MIN)];
    let length = prop_oneof![number(), Just(u64::from(u32::MAX))];
    (prop::sample::select(&FAMILIES[..]), 0usize..4, from, length, kind)
        .prop_map(|(family, region, from, length, kind)| Step { family, region, from, length, kind })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Any windows, ranges and sizes, against what the rules say of plain arrays: statuses, counts, every byte of every
    /// region, and the object.
    #[test]
    fn any_windows_ranges_and_sizes(steps in prop::collection::vec(step(), 1..8), size in 0usize..1200) {
        let config = S3Config { max_part: 1000, ..S3Config::default() };
        let lab = lab_of(config, RdmaConfig::new(ENDPOINT));
        let mut object = pattern(size.min(1000));
        lab.put("k", &object);
        let mut regions: Vec<Vec<u8>> = vec![pattern(700), vec![BLANK; 1400], vec![BLANK; 1]];
        let registered: Vec<Region> =
            (1..).zip(&regions).map(|(i, content)| lab.region_at(BASE * i, content)).collect();
        let mut counts = Counts::default();
        let mut client = lab.client();
        for Step { family, region, from, length, kind } in steps {
            let strict = CDE.contains(&family);
            let (rkey, base) = registered.get(region).map_or((0xbad, BASE), |region| (region.rkey, region.window.address));
            let address = base.wrapping_add_signed(from);
            // A suffix of zero says nothing.
            let length = if family == Family::B || family == Family::D { length.max(1) } else { length };
            let header = token(family, rkey, Window { address, length });
            // What of the window is there.
            let there = regions.get(region).and_then(|content| {
                if length == 0 {
                    return Some(0..0);
                }
                let from = usize::try_from(from).ok().filter(|from| *from < content.len())?;
                Some(from..content.len().min(from.saturating_add(length as usize)))
            });
            let malformed = strict && length == 0;
            let expected: Result<(u16, u64), u16>;
            let request = match kind {
                Kind::Get(range) => {
                    let mut request = get("/ernic/k").token(&header);
                    let mut bytes = 0..object.len();
                    let mut satisfiable = true;
                    if let Some((first, last)) = range {
                        request = request.header("range", format!("bytes={first}-{last}"));
                        if first <= last {
                            bytes = (first as usize).min(object.len())..object.len().min(last as usize + 1);
                            satisfiable = !bytes.is_empty();
                        }
                    }
                    let partial = range.is_some_and(|(first, last)| first <= last);
                    expected = if malformed {
                        Err(400)
                    } else if !satisfiable {
                        Err(416)
                    } else if let Some(window) = there {
                        let room = window.len().min(1000);
                        if strict && bytes.len() > room {
                            Err(400)
                        } else {
                            let count = bytes.len().min(room);
                            regions[region][window.start..window.start + count]
                                .copy_from_slice(&object[bytes.start..bytes.start + count]);
                            counts.reads = plus(counts.reads, [1, count as u64]);
                            Ok((if partial { 206 } else { 200 }, count as u64))
                        }
                    } else {
                        Err(500)
                    };
                    request
                }
                Kind::Put(declared) => {
                    let mut request = token_put("/ernic/k", &header);
                    request.length = Some(declared as usize);
                    request.body = vec![b'x'; declared as usize];
                    let size = match (length, declared) {
                        (0, declared) => declared,
                        (length, 0) => length,
                        (length, declared) => length.min(declared),
                    };
                    expected = if malformed {
                        Err(400)
                    } else if size == 0 {
                        Err(411)
                    } else if size > 1000 {
                        Err(400)
                    } else if let Some(window) = there {
                        if size > window.len() as u64 {
                            Err(400)
                        } else {
                            object = regions[region][window.start..window.start + size as usize].to_vec();
                            counts.writes = plus(counts.writes, [1, size]);
                            Ok((200, size))
                        }
                    } else {
                        Err(500)
                    };
                    request
                }
            };
            let answer = client.call(&request);
            match expected {
                Ok((status, count)) => {
                    answer.expect_moved(family, status, count);
                }
                Err(status) => {
                    prop_assert_eq!(answer.status, status, "{:?}", answer);
                    prop_assert_eq!(answer.header(names::BYTES).unwrap_or("0"), "0");
                }
            }
            for (region, content) in registered.iter().zip(&regions) {
                prop_assert!(lab.memory.content(region.rkey) == *content);
            }
            prop_assert!(lab.get("k") == object);
            prop_assert_eq!(lab.counts(), counts);
        }
    }

    /// Any token header at all: an answer, and never a byte outside of a registration.
    #[test]
    fn any_token_header(
        value in prop_oneof![
            "[0-9a-fA-F:]{0,200}",
            "[0-9a-f]{88}",
            "[0-9a-f]{88}:[0-9a-f]{1,17}:[0-9a-f]{1,17}",
            "[0-9a-f]{16}:[0-9a-f]{8}:[0-9a-f]{8}:[0-9a-f]{4}:[0-9a-f]{6}:[01]:[0-9a-f]{32}",
            "[ -~]{0,100}",
        ],
        mutate in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        family in prop::sample::select(&FAMILIES[..4]),
    ) {
        let lab = lab();
        lab.put("k", b"content");
        let region = lab.region(&pattern(50));
        // Half of them are a good token with one character changed.
        let value = match mutate {
            None => value,
            Some((at, to)) => {
                let mut good = region.whole(family).headers().remove(0).1.into_bytes();
                let at = at.index(good.len());
                good[at] = *to.get(b"0123456789abcdefF:g ");
                String::from_utf8(good).unwrap()
            }
        };
        for method in ["GET", "PUT"] {
            let mut request = request(method, "/ernic/k").header(names::TOKEN, &value);
            request.length = Some(0);
            let answer = lab.call(&request);
            let status = answer.status;
            prop_assert!([200, 400, 411, 500, 507].contains(&status), "{} {}", status, value);
            if status != 200 {
                prop_assert!(answer.header(names::BYTES).is_none_or(|bytes| bytes == "0"));
            }
            // The canaries around it are checked, too.
            let content = lab.memory.content(region.rkey);
            prop_assert!(status == 200 || method == "PUT" || content == pattern(50));
        }
        prop_assert_eq!(lab.service.metrics().rdma_active(), 0);
    }
}
