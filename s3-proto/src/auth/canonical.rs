//! A request in the one form that is signed.

use http::{HeaderMap, request::Parts};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// What is not encoded in a query.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What is not encoded in a path.
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// A parameter of a query, decoded, and as it is signed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    /// Encoded.
    canonical: (String, String),
    pub(super) name: String,
    pub(super) value: String,
}

/// The parameters of a query.
pub(super) fn pairs(query: &str) -> Vec<Pair> {
    query.split('&').filter(|pair| !pair.is_empty()).map(Pair::read).collect()
}

impl Pair {
    fn read(text: &str) -> Self {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        // In a query, a plus sign is a space (the form encoding, with which the operations read it, too).
        let decode = |text: &str| -> Vec<u8> { percent_decode_str(&text.replace('+', " ")).collect() };
        let (name, value) = (decode(name), decode(value));
        let encode = |bytes: &[u8]| percent_encode(bytes, QUERY).to_string();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { canonical: (encode(&name), encode(&value)), name: text(name), value: text(value) }
    }
}

/// The canonical request.
pub(super) fn request(parts: &Parts, query: &[Pair], signed: &[&str], signed_headers: &str, payload: &str) -> String {
    let path: Vec<u8> = percent_decode_str(parts.uri.path()).collect();
    let path = percent_encode(&path, PATH);
    let mut pairs: Vec<_> = query.iter().map(|pair| &pair.canonical).collect();
    pairs.sort();
    let query = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
    let mut headers = String::new();
    for name in signed {
        headers.push_str(name);
        headers.push(':');
        append_values(&mut headers, &parts.headers, name);
        headers.push('\n');
    }
    format!("{}\n{path}\n{query}\n{headers}\n{signed_headers}\n{payload}", parts.method)
}

/// The values of a header, with single spaces and separated by commas; nothing if it is not there.
fn append_values(out: &mut String, headers: &HeaderMap, name: &str) {
    for (i, value) in headers.get_all(name).iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        let text = String::from_utf8_lossy(value.as_bytes());
        for (i, word) in text.split_ascii_whitespace().enumerate() {
            if i > 0 {
                out.push(' ');
            }
            out.push_str(word);
        }
    }
}
