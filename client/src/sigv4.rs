//! AWS Signature Version 4 in the `Authorization` header ("Signature Calculations for the Authorization Header" in the S3 API
//! reference).

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// `x-amz-content-sha256` of a request whose content is not hashed.
pub const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// What is not encoded in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What is not encoded in a path.
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Who signs, and for which region.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Access key.
    pub access: String,
    /// Secret key.
    pub secret: String,
    /// Region.
    pub region: String,
}

/// Without the secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("access", &self.access)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// A path as it is sent and signed: encoded once, slashes as they are.
#[must_use]
pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// A query as it is sent and signed: encoded, in order. Empty if there are no parameters.
#[must_use]
pub fn encode_query(query: &[(&str, &str)]) -> String {
    let encode = |text: &str| utf8_percent_encode(text, QUERY).to_string();
    let mut pairs: Vec<_> = query.iter().map(|(name, value)| (encode(name), encode(value))).collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// The time in `x-amz-date`: `20130524T000000Z`.
#[must_use]
pub fn date(time: OffsetDateTime) -> String {
    let (y, mo, d) = (time.year(), u8::from(time.month()), time.day());
    let (h, mi, s) = time.to_hms();
    format!("{y:04}{mo:02}{d:02}T{h:02}{mi:02}{s:02}Z")
}

/// The `Authorization` header of a request.
///
/// `path` and `query` are as they are sent. All of `headers` are signed; `host`, `x-amz-date` and `x-amz-content-sha256` must be
/// among them. `date` is the value of `x-amz-date`.
#[must_use]
pub fn authorization(
    credentials: &Credentials,
    date: &str,
    method: &str,
    path: &str,
    query: &str,
    headers: &[(String, String)],
    payload: &str,
) -> String {
    let mut headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    headers.sort();
    let signed = headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
    let canonical: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{method}\n{path}\n{query}\n{canonical}\n{signed}\n{payload}");

    let Credentials { access, secret, region } = credentials;
    let day = date.get(..8).unwrap_or(date);
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex::encode(Sha256::digest(request)));
    let mut key = mac(format!("AWS4{secret}").as_bytes(), day);
    for part in [region.as_str(), "s3", "aws4_request"] {
        key = mac(&key, part);
    }
    let signature = hex::encode(mac(&key, &text));
    format!("AWS4-HMAC-SHA256 Credential={access}/{scope},SignedHeaders={signed},Signature={signature}")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    // HMAC takes keys of every length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The four examples of the S3 API reference, "Signature Calculations for the Authorization Header: Transferring Payload
    /// in a Single Chunk".
    fn example(method: &str, path: &str, query: &[(&str, &str)], more: &[(&str, &str)], payload: &str) -> String {
        let credentials = Credentials {
            access: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
        };
        let date = date(OffsetDateTime::from_unix_timestamp(1_369_353_600).unwrap());
        assert_eq!(date, "20130524T000000Z");
        let mut headers =
            vec![("Host", "examplebucket.s3.amazonaws.com"), ("x-amz-content-sha256", payload), ("x-amz-date", &date)];
        headers.extend(more);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        authorization(&credentials, &date, method, &encode_path(path), &encode_query(query), &headers, payload)
    }

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn example_get_object() {
        assert_eq!(
            example("GET", "/test.txt", &[], &[("Range", "bytes=0-9")], EMPTY),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn example_put_object() {
        let payload = hex::encode(Sha256::digest("Welcome to Amazon S3."));
        let more = [("Date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
        let authorization = example("PUT", "/test$file.text", &[], &more, &payload);
        assert!(authorization.contains("SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class,"));
        assert!(
            authorization.ends_with("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            "{authorization}"
        );
    }

    #[test]
    fn example_get_bucket_lifecycle() {
        let authorization = example("GET", "/", &[("lifecycle", "")], &[], EMPTY);
        assert!(
            authorization.ends_with("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            "{authorization}"
        );
    }

    #[test]
    fn example_list_objects() {
        let authorization = example("GET", "/", &[("prefix", "J"), ("max-keys", "2")], &[], EMPTY);
        assert!(
            authorization.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{authorization}"
        );
    }

    #[test]
    fn paths_and_queries_are_encoded_once() {
        assert_eq!(encode_path("/b/a+ b/é!'()*~.txt"), "/b/a%2B%20b/%C3%A9%21%27%28%29%2A~.txt");
        assert_eq!(
            encode_query(&[("prefix", "a/{b}"), ("list-type", "2"), ("a", "")]),
            "a=&list-type=2&prefix=a%2F%7Bb%7D"
        );
        assert_eq!(encode_query(&[]), "");
    }

    #[test]
    fn secrets_are_not_shown() {
        let credentials = Credentials { access: "a".into(), secret: "hidden".into(), region: "r".into() };
        assert!(!format!("{credentials:?}").contains("hidden"));
    }
}
