//! `-b/--backend`: what answers on the other end of the wire.

use std::{fmt, net::Ipv4Addr, path::PathBuf, str::FromStr};

use s3_proto::{Etag, RESERVED_BUCKETS};

use crate::{
    mac::Mac,
    size::{SizeError, parse_size},
    values::{self, Item, SyntaxError},
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
    /// Where the objects are.
    pub store: StoreKind,
    /// What a write has survived when it is answered.
    pub durability: Durability,
    /// File of the keys that requests must be signed with.
    pub credentials: Option<PathBuf>,
    /// Domain whose subdomains are buckets.
    pub domain: Option<String>,
    /// Whether browsers get a page.
    pub web: bool,
}

/// Where the objects are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// `memory`: in this process, gone with it.
    Memory,
    /// `disk:PATH`: in a folder of this machine, in a form of the server's own.
    Disk(PathBuf),
    /// `dir:PATH`: the files of a folder, as they are.
    Dir(PathBuf),
    /// `remote:URL`: in another store, which this one is a front of.
    Remote(String),
}

impl FromStr for StoreKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some((_, "")) => Err("a path or URL is missing behind the colon"),
            Some(("disk", path)) => Ok(Self::Disk(path.into())),
            Some(("dir", path)) => Ok(Self::Dir(path.into())),
            Some(("remote", url)) => Ok(Self::Remote(url.to_owned())),
            _ => Err("use memory, disk:PATH, dir:PATH or remote:URL"),
        }
    }
}

/// As the option has it.
impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Disk(path) => write!(f, "disk:{}", path.display()),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
            Self::Remote(url) => write!(f, "remote:{url}"),
        }
    }
}

/// What a write has survived when it is answered, in stores that outlive the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// `full`: the loss of power.
    Full,
    /// `os`: nothing yet; it is on the disk about a second later.
    Os,
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
            store: StoreKind::Memory,
            durability: Durability::Full,
            credentials: None,
            domain: None,
            web: false,
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
    /// No list of options.
    #[error("s3 backend: {0}")]
    Syntax(#[from] SyntaxError),
    /// `none` with `serve`.
    #[error("--backend: bad backend '{0}': 'serve' needs s3")]
    NotServed(String),
    /// An option of the NIC's wire with `serve`.
    #[error("s3 backend: option '{0}' is about the guest's network; 'serve' has --listen instead")]
    NotOfServe(&'static str),
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
    pub const KEYS: [&'static str; 13] = [
        "bucket",
        "size",
        "objects",
        "ip",
        "port",
        "maxpart",
        "dhcp",
        "etag",
        "store",
        "durability",
        "credentials",
        "domain",
        "web",
    ];
    /// Those of them that are about the guest's network.
    const OF_THE_WIRE: [&'static str; 3] = ["ip", "port", "dhcp"];

    /// The defaults of `ernic serve`: room for what is not one guest's.
    #[must_use]
    pub fn of_serve() -> Self {
        Self { size: 4 << 30, objects: 1_000_000, ..Self::default() }
    }

    /// Reads the backend of `ernic serve`: `s3`, or `s3:` and options.
    ///
    /// # Errors
    ///
    /// See [`BackendError`].
    pub fn serve(text: &str) -> Result<Self, BackendError> {
        let options = match text.split_once(':') {
            None if text == "s3" => return Ok(Self::of_serve()),
            Some(("s3", options)) => options,
            _ if text == "none" => return Err(BackendError::NotServed(text.to_owned())),
            _ => return Err(BackendError::Unknown(text.to_owned())),
        };
        let mut read = Self::of_serve();
        for key in read.take(options)? {
            if Self::OF_THE_WIRE.contains(&key) {
                return Err(BackendError::NotOfServe(key));
            }
        }
        Ok(read)
    }

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
            "dhcp" => self.dhcp = switch(value).map_err(rule)?,
            "web" => self.web = switch(value).map_err(rule)?,
            "credentials" if value.is_empty() => return Err(rule("a file's name is missing")),
            "credentials" => self.credentials = Some(value.into()),
            "domain" => self.domain = Some(domain(value).map_err(rule)?),
            "store" => self.store = value.parse().map_err(rule)?,
            "durability" => {
                self.durability = match value {
                    "full" => Durability::Full,
                    "os" => Durability::Os,
                    _ => return Err(rule("use full or os")),
                };
            }
            "etag" => self.etag = value.parse().map_err(|_| rule("use md5 or crc64nvme"))?,
            _ => return Err(BackendError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// Takes `key=value,…` over, each key at most once, in any order. Returns the keys.
    fn take(&mut self, text: &str) -> Result<Vec<&'static str>, BackendError> {
        let mut seen = Vec::new();
        for Item { written, key, value } in values::items(text)? {
            let Some(known) = Self::KEYS.into_iter().find(|known| *known == key) else {
                return Err(BackendError::UnknownKey(key.to_owned()));
            };
            let value = value.ok_or_else(|| BackendError::NoValue(key.to_owned()))?;
            if seen.contains(&known) {
                return Err(BackendError::Duplicate(key.to_owned(), written.to_owned()));
            }
            seen.push(known);
            self.set(known, &value)?;
        }
        Ok(seen)
    }
}

impl FromStr for S3Options {
    type Err = BackendError;

    /// Reads `key=value,…`, each key at most once, in any order.
    fn from_str(text: &str) -> Result<Self, BackendError> {
        let mut options = Self::default();
        options.take(text)?;
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

fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off"),
    }
}

/// A domain: labels of letters, digits and dashes (RFC 1123, section 2.1), and no address.
fn domain(text: &str) -> Result<String, &'static str> {
    let fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() > 253 || !text.split('.').all(fits) {
        return Err("use a name, as in s3.example.com");
    }
    if text.parse::<Ipv4Addr>().is_ok() {
        return Err("an address has no subdomains");
    }
    Ok(text.to_ascii_lowercase())
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
        let text = "s3:bucket=my.bucket-1,size=1G,objects=16777216,ip=10.0.0.5,port=8080,maxpart=5GiB,dhcp=off,etag=crc64nvme,\
             store=disk:\"/a,b\",durability=os,credentials=/etc/k,domain=S3.test,web=on";
        let expected = S3Options {
            bucket: "my.bucket-1".to_owned(),
            size: 1 << 30,
            objects: 16_777_216,
            ip: Ipv4Addr::new(10, 0, 0, 5),
            port: 8080,
            maxpart: 5 << 30,
            dhcp: false,
            etag: Etag::Crc64Nvme,
            store: StoreKind::Disk("/a,b".into()),
            durability: Durability::Os,
            credentials: Some("/etc/k".into()),
            domain: Some("s3.test".to_owned()),
            web: true,
        };
        assert_eq!(text.parse(), Ok(Backend::S3(expected)));
        assert_eq!("s3:dhcp=on,etag=md5,store=memory,durability=full".parse(), Ok(Backend::S3(S3Options::default())));
    }

    #[test]
    fn stores() {
        for (text, store) in [
            ("memory", StoreKind::Memory),
            ("disk:/var/lib/ernic", StoreKind::Disk("/var/lib/ernic".into())),
            ("dir:.", StoreKind::Dir(".".into())),
            (
                "remote:https://host:9000/bucket?region=x",
                StoreKind::Remote("https://host:9000/bucket?region=x".to_owned()),
            ),
        ] {
            assert_eq!(text.parse(), Ok(store.clone()), "{text}");
            assert_eq!(store.to_string(), text);
            let options = S3Options::serve(&format!("s3:store={text}")).unwrap();
            assert_eq!((options.store, options.size, options.objects), (store, 4 << 30, 1_000_000));
        }
    }

    #[test]
    fn serve_takes_no_wire() {
        assert_eq!(S3Options::serve("s3"), Ok(S3Options::of_serve()));
        assert_eq!(
            S3Options::serve("s3:size=1M").map(|options| (options.size, options.objects)),
            Ok((1 << 20, 1_000_000))
        );
        for (text, expected) in [
            ("none", "--backend: bad backend 'none': 'serve' needs s3"),
            ("tape", "--backend: unknown backend 'tape': use none or s3"),
            ("s3:", "s3 backend: empty option in ''"),
            ("s3:port=80", "s3 backend: option 'port' is about the guest's network; 'serve' has --listen instead"),
            (
                "s3:size=1M,ip=10.0.0.1",
                "s3 backend: option 'ip' is about the guest's network; 'serve' has --listen instead",
            ),
        ] {
            assert_eq!(S3Options::serve(text).map_err(|error| error.to_string()), Err(expected.to_owned()), "{text}");
        }
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
                "s3 backend: unknown option 'colour': known are bucket, size, objects, ip, port, maxpart, dhcp, etag, store, \
                 durability, credentials, domain, web",
            ),
            (
                "s3:SIZE=1M",
                "s3 backend: unknown option 'SIZE': known are bucket, size, objects, ip, port, maxpart, dhcp, etag, store, \
                 durability, credentials, domain, web",
            ),
            ("s3:store=tape", "s3 backend: bad store 'tape': use memory, disk:PATH, dir:PATH or remote:URL"),
            ("s3:store=disk:", "s3 backend: bad store 'disk:': a path or URL is missing behind the colon"),
            ("s3:credentials=", "s3 backend: bad credentials '': a file's name is missing"),
            ("s3:web=yes", "s3 backend: bad web 'yes': use on or off"),
            ("s3:domain=a..b", "s3 backend: bad domain 'a..b': use a name, as in s3.example.com"),
            ("s3:domain=-a", "s3 backend: bad domain '-a': use a name, as in s3.example.com"),
            ("s3:domain=10.0.0.1", "s3 backend: bad domain '10.0.0.1': an address has no subdomains"),
            ("s3:durability=none", "s3 backend: bad durability 'none': use full or os"),
            ("s3:store=\"disk:/a", "s3 backend: the quote in '\"disk:/a' does not end"),
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
            items in prop::collection::vec(("bucket|size|objects|ip|port|maxpart|dhcp|etag|store|durability|x", "md5|minio|[a-z0-9.=-]{0,12}"), 0..4),
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
