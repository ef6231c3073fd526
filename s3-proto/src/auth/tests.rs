//! The examples of the S3 API reference, to the byte.

use bytes::Bytes;
use http::Request;

use super::*;
use crate::chunked::{ChunkedError, Decoder};

const ACCESS: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// 24 May 2013, 00:00:00 UTC.
const MOMENT: u64 = 1_369_353_600;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn auth(now: u64) -> Auth {
    let mut credentials = Credentials::new();
    credentials.add(ACCESS, SECRET).unwrap();
    Auth::new(credentials, Arc::new(move || at(now)))
}

fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let request = headers
        .iter()
        .fold(Request::builder().method(method).uri(target), |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

/// An example with the date, the payload's hash and the signature of its page.
fn example(method: &str, target: &str, signed: &str, payload: &str, signature: &str, more: &[(&str, &str)]) -> Parts {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={ACCESS}/20130524/us-east-1/s3/aws4_request,SignedHeaders={signed},Signature={signature}"
    );
    let mut headers = vec![
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-content-sha256", payload),
        ("authorization", authorization.as_str()),
    ];
    if !more.iter().any(|(name, _)| *name == "host") {
        headers.push(("host", "examplebucket.s3.amazonaws.com"));
    }
    headers.extend(more);
    parts(method, target, &headers)
}

fn code(result: Result<Admitted, S3Error>) -> String {
    match result {
        Ok(signed) => panic!("let in: {signed:?}"),
        Err(error) => error.code().as_str().to_owned(),
    }
}

#[test]
fn examples_of_signed_headers() {
    let plain = "host;x-amz-content-sha256;x-amz-date";
    let hello = hex::encode(Sha256::digest("Welcome to Amazon S3."));
    let put = "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class";
    let date = [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
    let range = [("range", "bytes=0-9")];
    for (method, target, signed, payload, signature, more) in [
        (
            "GET",
            "/test.txt",
            "host;range;x-amz-content-sha256;x-amz-date",
            EMPTY,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            &range[..],
        ),
        (
            "PUT",
            "/test$file.text",
            put,
            &hello,
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            &date,
        ),
        ("GET", "/?lifecycle", plain, EMPTY, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543", &[]),
        (
            "GET",
            "/?max-keys=2&prefix=J",
            plain,
            EMPTY,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            &[],
        ),
    ] {
        let request = example(method, target, signed, payload, signature, more);
        let admitted = auth(MOMENT).check(&request).unwrap();
        assert!(matches!(admitted.signed, Signed::Hash(_)), "{method} {target}");
        assert_eq!(admitted.access.as_deref(), Some(ACCESS));
        // A quarter of an hour either way, and not a second more.
        for (now, allowed) in [(MOMENT - 900, true), (MOMENT + 900, true), (MOMENT - 901, false), (MOMENT + 901, false)]
        {
            match auth(now).check(&request) {
                Ok(_) => assert!(allowed, "{now}"),
                refused => assert!(!allowed && code(refused) == "RequestTimeTooSkewed", "{now}"),
            }
        }
        let wrong = example(method, target, signed, payload, &signature.replace('b', "c"), more);
        assert_eq!(code(auth(MOMENT).check(&wrong)), "SignatureDoesNotMatch", "{method} {target}");
    }
}

#[test]
fn example_of_a_presigned_query() {
    let target = format!(
        "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={ACCESS}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
         &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    );
    let check =
        |now, target: &str| auth(now).check(&parts("GET", target, &[("host", "examplebucket.s3.amazonaws.com")]));
    for now in [MOMENT, MOMENT - 900, MOMENT + 86_400] {
        assert!(matches!(check(now, &target), Ok(Admitted { signed: Signed::Unsigned, .. })), "{now}");
    }
    for (now, message) in [(MOMENT + 86_401, "Request has expired."), (MOMENT - 901, "Request is not valid yet.")] {
        let error = check(now, &target).unwrap_err();
        assert_eq!((error.code(), error.message()), (&S3ErrorCode::AccessDenied, Some(message)));
    }
    for (from, to, expected) in [
        ("X-Amz-Expires=86400", "X-Amz-Expires=604801", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=86400", "X-Amz-Expires=-1", "AuthorizationQueryParametersError"),
        ("X-Amz-Expires=86400", "X-Amz-Expires=604800", "SignatureDoesNotMatch"),
        ("&X-Amz-Expires=86400", "", "AuthorizationQueryParametersError"),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=20130524", "AuthorizationQueryParametersError"),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=20130525T000000Z", "AuthorizationQueryParametersError"),
        ("SHA256&", "SHA1&", "AuthorizationQueryParametersError"),
        ("%2Fs3%2F", "%2Fiam%2F", "AuthorizationQueryParametersError"),
        ("us-east-1", "us-east-2", "SignatureDoesNotMatch"),
        ("AKIA", "AKIB", "InvalidAccessKeyId"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=range", "AccessDenied"),
        ("test.txt", "test.txt2", "SignatureDoesNotMatch"),
        ("X-Amz-Signature=", "X-Amz-Signature=a&X-Amz-Signature=", "AuthorizationQueryParametersError"),
        ("?", "?versionId=1&", "SignatureDoesNotMatch"),
    ] {
        let changed = target.replacen(from, to, 1);
        assert_ne!(changed, target);
        assert_eq!(code(check(MOMENT, &changed)), expected, "{from} → {to}");
    }
}

const CHUNK_HEADERS: [(&str, &str); 5] = [
    ("host", "s3.amazonaws.com"),
    ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ("content-encoding", "aws-chunked"),
    ("x-amz-decoded-content-length", "66560"),
    ("content-length", "66824"),
];

/// The body of both examples: 65,536 and 1,024 times `a`.
fn chunked(signatures: [&str; 3], end: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (size, signature) in [65_536, 1024, 0].into_iter().zip(signatures) {
        body.extend_from_slice(format!("{size:x};chunk-signature={signature}\r\n").as_bytes());
        body.resize(body.len() + size, b'a');
        if size > 0 {
            body.extend_from_slice(b"\r\n");
        }
    }
    body.extend_from_slice(end.as_bytes());
    body
}

fn chain(request: &Parts) -> Box<Chain> {
    match auth(MOMENT).check(request) {
        Ok(Admitted { signed: Signed::Chunks(chain), .. }) => chain,
        other => panic!("{other:?}"),
    }
}

/// Decodes a body in pieces of `size` bytes; gives how many bytes of data it held.
fn decode(request: &Parts, body: &[u8], size: usize) -> Result<usize, ChunkedError> {
    let mut decoder = Decoder::new(66_560, Some(chain(request)));
    let mut seen = 0;
    for piece in body.chunks(size) {
        let mut input = Bytes::copy_from_slice(piece);
        while let Some(data) = decoder.decode(&mut input)? {
            assert!(data.iter().all(|&byte| byte == b'a'));
            seen += data.len();
        }
    }
    decoder.finish()?;
    Ok(seen)
}

#[test]
fn example_of_signed_chunks() {
    let signed = "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
                  x-amz-storage-class";
    let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
    let request = example("PUT", "/examplebucket/chunkObject.txt", signed, SIGNED_CHUNKS, seed, &CHUNK_HEADERS);
    let signatures = [
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ];
    let body = chunked(signatures, "\r\n");
    assert_eq!(body.len(), 66_824);
    for size in [1, 100, 64 << 10, 1 << 20] {
        assert_eq!(decode(&request, &body, size), Ok(66_560), "pieces of {size}");
    }
    let [a, b, c] = signatures;
    for (signatures, end) in [
        ([b, a, c], "\r\n"),
        ([a, b, b], "\r\n"),
        ([a, "", c], "\r\n"),
        ([a, &b.to_uppercase(), c], "\r\n"),
        // Trailers that nobody signed.
        ([a, b, c], "x-amz-checksum-crc32c:sOO8/Q==\r\n\r\n"),
    ] {
        assert_eq!(decode(&request, &chunked(signatures, end), 64 << 10), Err(ChunkedError::Signature));
    }
    let unsigned = body.iter().copied().filter(|&byte| byte != b';').collect::<Vec<_>>();
    assert!(decode(&request, &unsigned, 1000).is_err());
    let mut one = body.clone();
    one[70_000 - 4000] = b'a' ^ 1;
    let mut decoder = Decoder::new(66_560, Some(chain(&request)));
    let mut input = Bytes::from(one);
    let refused = loop {
        match decoder.decode(&mut input) {
            Ok(Some(_)) => {}
            Ok(None) => break decoder.finish().err(),
            Err(error) => break Some(error),
        }
    };
    assert_eq!(refused, Some(ChunkedError::Signature));
}

#[test]
fn example_of_signed_trailers() {
    let signed = "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;\
                  x-amz-trailer";
    let seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e";
    let headers = [&CHUNK_HEADERS[..], &[("x-amz-trailer", "x-amz-checksum-crc32c")]].concat();
    let request = example("PUT", "/examplebucket/chunkObject.txt", signed, SIGNED_CHUNKS_TRAILER, seed, &headers);
    let signatures = [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ];
    let trailer = "x-amz-checksum-crc32c:sOO8/Q==\r\n";
    let last = "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n";
    for size in [1, 64 << 10] {
        assert_eq!(decode(&request, &chunked(signatures, &format!("{trailer}{last}")), size), Ok(66_560));
    }
    for end in [
        format!("{trailer}\r\n"),
        last.to_owned(),
        format!("{}{last}", trailer.replace('Q', "R")),
        format!("{trailer}x-amz-meta: a\r\n{last}"),
        format!("{trailer}{last}{last}"),
    ] {
        assert_eq!(decode(&request, &chunked(signatures, &end), 64 << 10), Err(ChunkedError::Signature), "{end}");
    }
}

#[test]
fn times_are_read_and_written() {
    for (text, seconds) in [("20130524T000000Z", MOMENT), ("19700101T000000Z", 0), ("20240229T235959Z", 1_709_251_199)]
    {
        assert_eq!(key::time(text), Some(at(seconds)));
        assert_eq!(key::date(at(seconds)), text);
    }
    for text in [
        "",
        "20130524T000000",
        "2013-05-24T00:00Z",
        "20130532T000000Z",
        "20130524T240000Z",
        "+0130524T000000Z",
        "é130524T00000Z",
    ] {
        assert_eq!(key::time(text), None, "{text}");
    }
}

#[test]
fn keys_and_secrets() {
    let mut credentials = Credentials::new();
    assert_eq!(credentials.add("a/b", "hidden"), Ok(()));
    for (access, secret, error) in [
        ("a/b", "x", "access key 'a/b' is given twice"),
        ("", "x", "bad access key '': use printable ASCII without spaces, commas and quotes"),
        ("a b", "x", "bad access key 'a b': use printable ASCII without spaces, commas and quotes"),
        ("c", "", "the secret of access key 'c' is empty"),
    ] {
        assert_eq!(credentials.add(access, secret).map_err(|error| error.to_string()), Err(error.to_owned()));
    }
    assert_eq!(format!("{credentials:?}"), "Credentials { keys: 1, .. }");
    assert_eq!(
        Scope::read("a/b/20130524/r/s3/aws4_request"),
        Ok(Scope { access: "a/b", day: "20130524", region: "r" })
    );
}
