//! `-b/--backend`: what answers on the other end of the wire.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use s3_proto::{Etag, RESERVED_BUCKETS};

use crate::{
    mac::Mac,
    size::{SizeError, parse_size},
};

/// Most object slots: 2²⁴. A slot costs memory only once it is used.
pub const MAX_OBJECTS: u64 = 1 << 24;

/// What is on the other end of the wire, besides a TAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Nothing.
    None,
    /// The S3 endpoint.
    S3(S3Options),
}

/// How the S3 endpoint and its store are set up. One line of [`S3Options::KEYS`] for each field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Options {
    /// The bucket's name.
    pub bucket: String,
    /// Bytes of object content that the store takes.
    pub size: u64,
    /// Objects that the store takes, 1..=[`MAX_OBJECTS`].
    pub objects: u64,
    /// Where the endpoint answers. Its /24 is the guest's network.
    pub ip: Ipv4Addr,
    /// TCP port of the endpoint.
    pub port: u16,
    /// Bytes of the largest single transfer, and so of the largest part of a multipart upload.
    pub maxpart: u64,
    /// Whether the endpoint leases addresses.
    pub dhcp: bool,
    /// What ETags are made of.
    pub etag: Etag,
}

impl Default for S3Options {
    fn default() -> Self {
        Self {
            bucket: "ernic".to_owned(),
            size: 256 << 20,
            objects: 256,
            ip: Ipv4Addr::new(192, 168, 200, 1),
            port: 9000,
            maxpart: 256 << 20,
            dhcp: true,
            etag: Etag::Md5,
        }
    }
}

/// Why a backend is refused. The text is complete: it names the option and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Neither `none` nor `s3`.
    #[error("--backend: unknown backend '{0}': use none or s3")]
    Unknown(String),
    /// `none` with options.
    #[error("none backend: takes no options, got '{0}'")]
    NoneTakesNone(String),
    /// Two commas in a row, one at an end, or nothing behind `s3:`.
    #[error("s3 backend: empty option in '{0}'")]
    Empty(String),
    /// No `=`.
    #[error("s3 backend: option '{0}' has no value; write {0}=…")]
    NoValue(String),
    /// A key that does not exist.
    #[error("s3 backend: unknown option '{0}': known are {keys}", keys = S3Options::KEYS.join(", "))]
    UnknownKey(String),
    /// A key given twice.
    #[error("s3 backend: option '{0}' given twice, the second time as '{1}'")]
    Duplicate(String, String),
    /// A value that the key does not take.
    #[error("s3 backend: bad {0} '{1}'{2}")]
    Value(&'static str, String, ValueError),
}

/// What is wrong with a value, to follow the value itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueError {
    /// A size.
    Size(SizeError),
    /// The rule that it breaks.
    Rule(&'static str),
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(error) => error.fmt(f),
            Self::Rule(rule) => write!(f, ": {rule}"),
        }
    }
}

impl FromStr for Backend {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        let (name, options) = text.split_once(':').map_or((text, None), |(name, options)| (name, Some(options)));
        match (name, options) {
            ("none", None) => Ok(Self::None),
            ("none", Some(options)) => Err(BackendError::NoneTakesNone(options.to_owned())),
            ("s3", None) => Ok(Self::S3(S3Options::default())),
            ("s3", Some(options)) => options.parse().map(Self::S3),
            _ => Err(BackendError::Unknown(text.to_owned())),
        }
    }
}

impl S3Options {
    /// The keys that `s3:` takes.
    pub const KEYS: [&'static str; 8] = ["bucket", "size", "objects", "ip", "port", "maxpart", "dhcp", "etag"];

    /// The endpoint's Ethernet address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        Mac::of_endpoint(self.ip)
    }

    /// Where the endpoint answers.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}:{}/", self.ip, self.port)
    }

    fn set(&mut self, key: &'static str, value: &str) -> Result<(), BackendError> {
        let bad = |why| BackendError::Value(key, value.to_owned(), why);
        let rule = |rule| bad(ValueError::Rule(rule));
        match key {
            "bucket" => self.bucket = bucket(value).map_err(rule)?,
            "size" => self.size = parse_size(value).map_err(|error| bad(ValueError::Size(error)))?,
            "maxpart" => self.maxpart = parse_size(value).map_err(|error| bad(ValueError::Size(error)))?,
            "objects" => {
                self.objects = decimal(value)
                    .filter(|n| (1..=MAX_OBJECTS).contains(n))
                    .ok_or_else(|| rule("use a number from 1 to 16777216"))?;
            }
            "ip" => self.ip = ip(value).map_err(rule)?,
            "port" => {
                self.port = decimal(value)
                    .and_then(|n| u16::try_from(n).ok())
                    .filter(|&n| n != 0)
                    .ok_or_else(|| rule("use a number from 1 to 65535"))?;
            }
            "dhcp" => {
                self.dhcp = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(rule("use on or off")),
                };
            }
            "etag" => self.etag = value.parse().map_err(|_| rule("use md5 or crc64nvme"))?,
            _ => return Err(BackendError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }
}

impl FromStr for S3Options {
    type Err = BackendError;

    /// Reads `key=value,…`, each key at most once, in any order.
    fn from_str(text: &str) -> Result<Self, BackendError> {
        let mut options = Self::default();
        let mut seen = [false; Self::KEYS.len()];
        for item in text.split(',') {
            if item.is_empty() {
                return Err(BackendError::Empty(text.to_owned()));
            }
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let Some((known, seen)) = Self::KEYS.iter().zip(&mut seen).find(|(known, _)| **known == key) else {
                return Err(BackendError::UnknownKey(key.to_owned()));
            };
            if !item.contains('=') {
                return Err(BackendError::NoValue(key.to_owned()));
            }
            if std::mem::replace(seen, true) {
                return Err(BackendError::Duplicate(key.to_owned(), item.to_owned()));
            }
            options.set(known, value)?;
        }
        Ok(options)
    }
}

/// A number of plain digits; `u64::from_str` alone would take a `+`.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A bucket's name, by the rules that S3 clients and `s3s` (`path.rs`, `check_bucket_name`) hold it to.
fn bucket(name: &str) -> Result<String, &'static str> {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    if !(3..=63).contains(&bytes.len()) {
        return Err("use 3 to 63 characters");
    }
    if !bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-')) {
        return Err("use lower case, digits, dots and dashes only");
    }
    if !edge(bytes.first()) || !edge(bytes.last()) {
        return Err("it must not start or end with a dot or a dash");
    }
    if name.contains("..") {
        return Err("two dots in a row are not allowed");
    }
    if name.parse::<Ipv4Addr>().is_ok() {
        return Err("it must not look like an IP address");
    }
    if RESERVED_BUCKETS.contains(&name) {
        return Err("a page of the server's own has that name");
    }
    if name.starts_with("xn--") {
        return Err("it must not start with xn--");
    }
    Ok(name.to_owned())
}

/// An address that a host on a /24 may have.
fn ip(text: &str) -> Result<Ipv4Addr, &'static str> {
    let ip: Ipv4Addr = text.parse().map_err(|_| "use an IPv4 address, as in 192.168.200.1")?;
    let [net, .., host] = ip.octets();
    // RFC 6890: "this network", loopback; RFC 5771: multicast; RFC 1112: reserved, with the limited broadcast address.
    if net == 0 || ip.is_loopback() || net >= 224 {
        return Err("it is not an address that a host can have");
    }
    if host == 0 || host == 255 {
        return Err("it is the network or broadcast address of its /24");
    }
    Ok(ip)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        match text.parse::<Backend>() {
            Ok(backend) => panic!("{text:?} accepted as {backend:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn defaults() {
        assert_eq!("none".parse(), Ok(Backend::None));
        assert_eq!("s3".parse(), Ok(Backend::S3(S3Options::default())));
        let options = S3Options::default();
        assert_eq!((options.size, options.maxpart), (268_435_456, 268_435_456));
        assert_eq!(options.mac().to_string(), "02:53:c0:a8:c8:01");
    }

    #[test]
    fn every_key() {
        let text =
            "s3:bucket=my.bucket-1,size=1G,objects=16777216,ip=10.0.0.5,port=8080,maxpart=5GiB,dhcp=off,etag=crc64nvme";
        let expected = S3Options {
            bucket: "my.bucket-1".to_owned(),
            size: 1 << 30,
            objects: 16_777_216,
            ip: Ipv4Addr::new(10, 0, 0, 5),
            port: 8080,
            maxpart: 5 << 30,
            dhcp: false,
            etag: Etag::Crc64Nvme,
        };
        assert_eq!(text.parse(), Ok(Backend::S3(expected)));
        assert_eq!("s3:dhcp=on,etag=md5".parse(), Ok(Backend::S3(S3Options::default())));
    }

    #[test]
    fn refusals_name_option_and_value() {
        for (text, expected) in [
            ("s3:size=bogus", "s3 backend: bad size 'bogus'"),
            ("s3:size=0", "s3 backend: bad size '0': it must not be zero"),
            ("s3:size=16777216T", "s3 backend: bad size '16777216T': it is 2^64 bytes or more"),
            ("s3:maxpart=", "s3 backend: bad maxpart ''"),
            ("s3:objects=0", "s3 backend: bad objects '0': use a number from 1 to 16777216"),
            ("s3:objects=16777217", "s3 backend: bad objects '16777217': use a number from 1 to 16777216"),
            ("s3:port=65536", "s3 backend: bad port '65536': use a number from 1 to 65535"),
            ("s3:port=+1", "s3 backend: bad port '+1': use a number from 1 to 65535"),
            ("s3:dhcp=yes", "s3 backend: bad dhcp 'yes': use on or off"),
            ("s3:ip=10.0.0.255", "s3 backend: bad ip '10.0.0.255': it is the network or broadcast address of its /24"),
            ("s3:ip=127.0.0.1", "s3 backend: bad ip '127.0.0.1': it is not an address that a host can have"),
            ("s3:ip=224.0.0.1", "s3 backend: bad ip '224.0.0.1': it is not an address that a host can have"),
            ("s3:ip=10.1", "s3 backend: bad ip '10.1': use an IPv4 address, as in 192.168.200.1"),
            ("s3:bucket=ab", "s3 backend: bad bucket 'ab': use 3 to 63 characters"),
            ("s3:bucket=Abc", "s3 backend: bad bucket 'Abc': use lower case, digits, dots and dashes only"),
            ("s3:bucket=-abc", "s3 backend: bad bucket '-abc': it must not start or end with a dot or a dash"),
            ("s3:bucket=abc.", "s3 backend: bad bucket 'abc.': it must not start or end with a dot or a dash"),
            ("s3:bucket=a..b", "s3 backend: bad bucket 'a..b': two dots in a row are not allowed"),
            ("s3:bucket=metrics", "s3 backend: bad bucket 'metrics': a page of the server's own has that name"),
            ("s3:bucket=minio", "s3 backend: bad bucket 'minio': a page of the server's own has that name"),
            ("s3:etag=sha1", "s3 backend: bad etag 'sha1': use md5 or crc64nvme"),
            ("s3:etag=MD5", "s3 backend: bad etag 'MD5': use md5 or crc64nvme"),
            ("s3:bucket=1.2.3.4", "s3 backend: bad bucket '1.2.3.4': it must not look like an IP address"),
            ("s3:", "s3 backend: empty option in ''"),
            ("s3:size=1M,", "s3 backend: empty option in 'size=1M,'"),
            ("s3:size", "s3 backend: option 'size' has no value; write size=…"),
            (
                "s3:colour=red",
                "s3 backend: unknown option 'colour': known are bucket, size, objects, ip, port, maxpart, dhcp, etag",
            ),
            (
                "s3:SIZE=1M",
                "s3 backend: unknown option 'SIZE': known are bucket, size, objects, ip, port, maxpart, dhcp, etag",
            ),
            ("s3:size=1M,size=1M", "s3 backend: option 'size' given twice, the second time as 'size=1M'"),
            ("none:x", "none backend: takes no options, got 'x'"),
            ("nvmeof", "--backend: unknown backend 'nvmeof': use none or s3"),
            ("S3", "--backend: unknown backend 'S3': use none or s3"),
            ("", "--backend: unknown backend '': use none or s3"),
        ] {
            assert_eq!(error(text), expected, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever comes, an answer that keeps to the rules.
        #[test]
        fn accepted_options_keep_the_rules(
            items in prop::collection::vec(("bucket|size|objects|ip|port|maxpart|dhcp|etag|x", "md5|minio|[a-z0-9.=-]{0,12}"), 0..4),
        ) {
            let text = items.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
            match text.parse::<S3Options>() {
                Ok(options) => {
                    prop_assert!(options.size > 0 && options.maxpart > 0 && options.port > 0);
                    prop_assert!((1..=MAX_OBJECTS).contains(&options.objects));
                    prop_assert!((3..=63).contains(&options.bucket.len()) && options.bucket != "minio");
                    prop_assert!(!items.is_empty() && items.iter().all(|(key, _)| key != "x"));
                }
                Err(error) => prop_assert!(error.to_string().starts_with("s3 backend: ")),
            }
        }
    }
}
