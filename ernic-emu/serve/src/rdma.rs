//! `--rdma`: the hardware that `ernic serve` moves payloads with.

#[cfg(feature = "verbs")]
use std::sync::Arc;
use std::{str::FromStr, time::Duration};

use s3_proto::S3Builder;

use crate::{
    backend::decimal,
    size::parse_size,
    values::{self, Item, SyntaxError},
};

/// Bytes of the name of an RDMA device: `IB_DEVICE_NAME_MAX` less its terminator (Linux, `ib_verbs.h`).
const MAX_NAME: usize = 63;
/// Bytes of the smallest buffer: one chunk of the smallest transfers that are worth an RDMA request.
const MIN_BUFFER: u64 = 64 << 10;
/// Bytes of the largest: a message has at most 2³¹ (InfiniBand Architecture Specification, section 9.7.2), and a transfer of ours
/// at most 1 GiB.
const MAX_BUFFER: u64 = 1 << 30;
/// Most buffers, queue pairs and sessions.
const MAX_COUNT: u64 = 4096;
/// Most bytes of all buffers together.
const MAX_BUFFERS: u64 = 1 << 40;
/// Longest time of an option: a day.
const MAX_TIME: Duration = Duration::from_secs(86_400);

/// How RDMA hardware is used, by libibverbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Name of the device; the first with an active port, if none.
    pub device: Option<String>,
    /// Number of its port.
    pub port: u8,
    /// Index in the port's GID table; the one that reaches the client, if none.
    pub gid: Option<u8>,
    /// How many buffers are registered.
    pub buffers: usize,
    /// Bytes of each.
    pub buffer_size: usize,
    /// Whether `hipobj-rc-v2` is spoken.
    pub v2: bool,
    /// Whether hipObject's first protocol is spoken.
    pub v1: bool,
    /// Whether tokens of families C, D and E may name reliable connections.
    pub rc_c: bool,
    /// Most bytes of a packet; the port's, if none.
    pub mtu: Option<u32>,
    /// Local ACK timeout, as an exponent.
    pub timeout: u8,
    /// Retries without an acknowledgement.
    pub retry: u8,
    /// Retries without a receive.
    pub rnr_retry: u8,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// Work requests under way on one queue pair.
    pub depth: u32,
    /// How long a connection is kept unused.
    pub idle: Duration,
    /// Longest time of one work request, and for a client to connect.
    pub wait: Duration,
    /// Most queue pairs.
    pub connections: usize,
    /// Most queue pairs, and most sessions, of one client.
    pub per_client: usize,
    /// Most sessions of `hipobj-rc-v2`.
    pub sessions: usize,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid: None,
            buffers: 4,
            buffer_size: 64 << 20,
            v2: true,
            v1: false,
            rc_c: false,
            mtu: None,
            timeout: 14,
            retry: 7,
            rnr_retry: 7,
            traffic_class: 0,
            depth: 16,
            idle: Duration::from_secs(60),
            wait: Duration::from_secs(10),
            connections: 256,
            per_client: 64,
            sessions: 64,
        }
    }
}

/// Why `--rdma` is refused. The text goes behind `--rdma: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RdmaError {
    /// Not `verbs`.
    #[error("unknown hardware '{0}': use verbs or verbs:device=NAME,…")]
    Unknown(String),
    /// No list of options.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// No `=`.
    #[error("option '{0}' has no value; write {0}=…")]
    NoValue(String),
    /// A key that does not exist.
    #[error("unknown option '{0}': known are {keys}", keys = VerbsOptions::KEYS.join(", "))]
    UnknownKey(String),
    /// A key given twice.
    #[error("option '{0}' given twice, the second time as '{1}'")]
    Duplicate(String, String),
    /// A value that the key does not take.
    #[error("bad {0} '{1}': {2}")]
    Value(&'static str, String, String),
}

impl FromStr for VerbsOptions {
    type Err = RdmaError;

    /// Reads `verbs`, or `verbs:` and `key=value,…`, each key at most once, in any order.
    fn from_str(text: &str) -> Result<Self, RdmaError> {
        let options = match text.split_once(':') {
            None if text == "verbs" => return Ok(Self::default()),
            Some(("verbs", options)) => options,
            _ => return Err(RdmaError::Unknown(text.to_owned())),
        };
        let (mut read, mut seen) = (Self::default(), Vec::new());
        for Item { written, key, value } in values::items(options)? {
            let Some(known) = Self::KEYS.into_iter().find(|known| *known == key) else {
                return Err(RdmaError::UnknownKey(key.to_owned()));
            };
            let value = value.ok_or_else(|| RdmaError::NoValue(key.to_owned()))?;
            if seen.contains(&known) {
                return Err(RdmaError::Duplicate(key.to_owned(), written.to_owned()));
            }
            seen.push(known);
            read.set(known, &value).map_err(|why| RdmaError::Value(known, value, why))?;
        }
        Ok(read)
    }
}

impl VerbsOptions {
    /// The keys that `verbs:` takes.
    pub const KEYS: [&'static str; 18] = [
        "device",
        "port",
        "gid",
        "buffers",
        "v2",
        "v1",
        "rc-c",
        "mtu",
        "timeout",
        "retry",
        "rnr-retry",
        "tclass",
        "depth",
        "idle",
        "wait",
        "connections",
        "per-client",
        "sessions",
    ];

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "device" => self.device = Some(device(value)?),
            "port" => self.port = number(value, 1, u8::MAX.into())?,
            "gid" if value == "auto" => self.gid = None,
            "gid" => self.gid = Some(number(value, 0, u8::MAX.into()).map_err(|why| format!("{why}, or auto"))?),
            "buffers" => (self.buffers, self.buffer_size) = buffers(value)?,
            "v2" => self.v2 = switch(value)?,
            "v1" => self.v1 = switch(value)?,
            "rc-c" => self.rc_c = switch(value)?,
            "mtu" if value == "auto" => self.mtu = None,
            "mtu" => {
                let known =
                    [256, 512, 1024, 2048, 4096].into_iter().find(|mtu| decimal(value) == Some(u64::from(*mtu)));
                self.mtu = Some(known.ok_or("use auto, 256, 512, 1024, 2048 or 4096")?);
            }
            // 0 would be without end, in an option that is to end.
            "timeout" => self.timeout = number(value, 1, 31)?,
            "retry" => self.retry = number(value, 0, 7)?,
            "rnr-retry" => self.rnr_retry = number(value, 0, 7)?,
            "tclass" => self.traffic_class = number(value, 0, u8::MAX.into())?,
            "depth" => self.depth = number(value, 1, MAX_COUNT)?,
            "idle" => self.idle = time(value)?,
            "wait" => self.wait = time(value)?,
            "connections" => self.connections = number(value, 1, MAX_COUNT)?,
            "per-client" => self.per_client = number(value, 1, MAX_COUNT)?,
            "sessions" => self.sessions = number(value, 1, MAX_COUNT)?,
            _ => return Err("it is not known".to_owned()),
        }
        Ok(())
    }
}

/// A number of a range.
fn number<N: TryFrom<u64>>(value: &str, least: u64, most: u64) -> Result<N, String> {
    let number =
        decimal(value).filter(|number| (least..=most).contains(number)).and_then(|number| number.try_into().ok());
    number.ok_or_else(|| format!("use a number from {least} to {most}"))
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("use on or off".to_owned()),
    }
}

fn device(value: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if (1..=MAX_NAME).contains(&value.len()) && value.bytes().all(plain) {
        Ok(value.to_owned())
    } else {
        Err("use a name that ibv_devices shows, as in mlx5_0".to_owned())
    }
}

/// `COUNTxSIZE`.
fn buffers(value: &str) -> Result<(usize, usize), String> {
    let (count, size) = value.split_once('x').ok_or("use COUNTxSIZE, as in 4x64M")?;
    let count: u64 = number(count, 1, MAX_COUNT).map_err(|why| format!("for the count, {why}"))?;
    let size = parse_size(size).ok().filter(|size| (MIN_BUFFER..=MAX_BUFFER).contains(size));
    let size = size.ok_or("for each, use 64K to 1G")?;
    if count * size > MAX_BUFFERS {
        return Err("that is more than 1T".to_owned());
    }
    let fits = usize::try_from(count).ok().zip(usize::try_from(size).ok());
    fits.ok_or_else(|| "that is more than this machine can address".to_owned())
}

/// A whole number with a unit.
fn time(value: &str) -> Result<Duration, String> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = Some(digits).filter(|digits| !digits.is_empty()).and_then(decimal);
    let time = number.and_then(|number| match value.get(digits.len()..)? {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    });
    let known = time.filter(|time| (Duration::from_millis(1)..=MAX_TIME).contains(time));
    known.ok_or_else(|| "use a time from 1ms to 86400s, as in 500ms, 60s or 5m".to_owned())
}

/// Hardware that is open.
#[derive(Debug)]
pub struct Hardware {
    #[cfg(feature = "verbs")]
    fabric: Arc<ernic_verbs::Fabric>,
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "there is none in such a build"))]
    options: VerbsOptions,
}

impl Hardware {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// This build has no such hardware; or what [`ernic_verbs::OpenError`] says.
    #[cfg(feature = "verbs")]
    pub fn open(options: &VerbsOptions) -> anyhow::Result<Self> {
        use anyhow::Context as _;

        let VerbsOptions { port, gid, buffers, buffer_size, v1, rc_c, .. } = *options;
        let VerbsOptions {
            timeout, retry, rnr_retry, traffic_class, depth, idle, wait, connections, per_client, ..
        } = *options;
        let config = ernic_verbs::Config {
            device: options.device.clone(),
            port,
            gid,
            buffers,
            buffer_size,
            v1,
            rc_c,
            mtu: options.mtu.and_then(|mtu| ernic_verbs::Mtu::new(mtu.into())),
            timeout,
            retry,
            rnr_retry,
            traffic_class,
            depth,
            idle,
            wait,
            connections,
            per_client,
            ..ernic_verbs::Config::default()
        };
        let fabric = ernic_verbs::Fabric::open(config).context("--rdma")?;
        Ok(Self { fabric: Arc::new(fabric), options: options.clone() })
    }

    /// Says that this build has none.
    ///
    /// # Errors
    ///
    /// Always.
    #[cfg(not(feature = "verbs"))]
    pub fn open(_: &VerbsOptions) -> anyhow::Result<Self> {
        anyhow::bail!(
            "--rdma: this build has no hardware backend; make one with cargo build --release -p ernic --features verbs, which needs \
             cmake and libclang"
        )
    }

    /// Lets the service move payloads with it.
    #[cfg(feature = "verbs")]
    #[must_use]
    pub fn serve(&self, service: S3Builder) -> S3Builder {
        use std::net::Ipv4Addr;

        use s3_proto::{RcConfig, RdmaConfig};

        // Replies name the queue pair and the GID of the connection that carried the bytes.
        let config = RdmaConfig::new(Ipv4Addr::UNSPECIFIED);
        let service = service.with_remote(Arc::clone(&self.fabric) as _, config).with_collector(self.fabric.metrics());
        if !self.options.v2 {
            return service;
        }
        let VerbsOptions { sessions, per_client, wait: patience, .. } = self.options;
        let config = RcConfig { sessions, per_client, patience, ..RcConfig::default() };
        service.with_rc(Arc::clone(&self.fabric) as _, config)
    }

    /// As above.
    #[cfg(not(feature = "verbs"))]
    #[must_use]
    pub fn serve(&self, service: S3Builder) -> S3Builder {
        service
    }

    /// What it is, in lines for the log.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        #[cfg(not(feature = "verbs"))]
        return Vec::new();
        #[cfg(feature = "verbs")]
        {
            let facts = self.fabric.facts();
            let VerbsOptions { v2, v1, rc_c, buffers, buffer_size, connections, per_client, .. } = self.options;
            let on = |on| if on { "on" } else { "off" };
            let ernic_verbs::Facts { device, port, gid, mtu, active_mtu, v1_mtu } = facts;
            let mut lines = vec![
                format!(
                    "rdma device '{device}' port {port} {gid} mtu {mtu} v2 {} v1 {} rc-c {}",
                    on(v2),
                    on(v1),
                    on(rc_c)
                ),
                format!(
                    "rdma buffers {buffers} of {buffer_size} bytes, at most {connections} connections, {per_client} of one client"
                ),
            ];
            if v1 && v1_mtu > active_mtu {
                lines.push(format!(
                    "rdma v1 clients use packets of {v1_mtu} bytes, but the port's MTU is {active_mtu}: their transfers will fail; raise \
                     the MTU of the network interface, or set mtu={active_mtu} for clients that use it"
                ));
            }
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        text.parse::<VerbsOptions>().unwrap_err().to_string()
    }

    #[test]
    fn every_option_is_read() {
        assert_eq!("verbs".parse(), Ok(VerbsOptions::default()));
        assert_eq!("verbs:gid=auto,mtu=auto,v2=on".parse(), Ok(VerbsOptions::default()));
        let text = "verbs:device=mlx5_0,port=2,gid=3,buffers=8x16M,v2=off,v1=on,rc-c=on,mtu=1024,timeout=18,retry=3,rnr-retry=0,tclass=106,\
                    depth=32,idle=5m,wait=500ms,connections=9,per-client=8,sessions=7";
        let all = VerbsOptions {
            device: Some("mlx5_0".to_owned()),
            port: 2,
            gid: Some(3),
            buffers: 8,
            buffer_size: 16 << 20,
            v2: false,
            v1: true,
            rc_c: true,
            mtu: Some(1024),
            timeout: 18,
            retry: 3,
            rnr_retry: 0,
            traffic_class: 106,
            depth: 32,
            idle: Duration::from_secs(300),
            wait: Duration::from_millis(500),
            connections: 9,
            per_client: 8,
            sessions: 7,
        };
        assert_eq!(text.parse(), Ok(all));
        // Each of them.
        assert_eq!(text.split_once(':').unwrap().1.split(',').count(), VerbsOptions::KEYS.len());
    }

    #[test]
    fn bad_values_are_named() {
        let buffers = "bad buffers";
        for (text, expected) in [
            ("ofi", "unknown hardware 'ofi': use verbs or verbs:device=NAME,…"),
            ("verbs,device=x", "unknown hardware 'verbs,device=x': use verbs or verbs:device=NAME,…"),
            ("verbs:", "empty option in ''"),
            ("verbs:v1", "option 'v1' has no value; write v1=…"),
            ("verbs:v1=on,v1=on", "option 'v1' given twice, the second time as 'v1=on'"),
            ("verbs:v1=yes", "bad v1 'yes': use on or off"),
            ("verbs:device=", "bad device '': use a name that ibv_devices shows, as in mlx5_0"),
            ("verbs:device=../x", "bad device '../x': use a name that ibv_devices shows, as in mlx5_0"),
            ("verbs:port=0", "bad port '0': use a number from 1 to 255"),
            ("verbs:port=257", "bad port '257': use a number from 1 to 255"),
            ("verbs:gid=256", "bad gid '256': use a number from 0 to 255, or auto"),
            ("verbs:gid=-1", "bad gid '-1': use a number from 0 to 255, or auto"),
            ("verbs:mtu=1500", "bad mtu '1500': use auto, 256, 512, 1024, 2048 or 4096"),
            ("verbs:mtu=0", "bad mtu '0': use auto, 256, 512, 1024, 2048 or 4096"),
            ("verbs:timeout=0", "bad timeout '0': use a number from 1 to 31"),
            ("verbs:timeout=32", "bad timeout '32': use a number from 1 to 31"),
            ("verbs:retry=8", "bad retry '8': use a number from 0 to 7"),
            ("verbs:rnr-retry=264", "bad rnr-retry '264': use a number from 0 to 7"),
            ("verbs:tclass=256", "bad tclass '256': use a number from 0 to 255"),
            ("verbs:depth=0", "bad depth '0': use a number from 1 to 4096"),
            ("verbs:depth=4294967297", "bad depth '4294967297': use a number from 1 to 4096"),
            ("verbs:connections=0", "bad connections '0': use a number from 1 to 4096"),
            (
                "verbs:per-client=18446744073709551616",
                "bad per-client '18446744073709551616': use a number from 1 to 4096",
            ),
            ("verbs:sessions=", "bad sessions '': use a number from 1 to 4096"),
            ("verbs:idle=0s", "bad idle '0s': use a time from 1ms to 86400s, as in 500ms, 60s or 5m"),
            ("verbs:wait=60", "bad wait '60': use a time from 1ms to 86400s, as in 500ms, 60s or 5m"),
            ("verbs:wait=ms", "bad wait 'ms': use a time from 1ms to 86400s, as in 500ms, 60s or 5m"),
            (
                "verbs:wait=18446744073709551615m",
                "bad wait '18446744073709551615m': use a time from 1ms to 86400s, as in 500ms, 60s or 5m",
            ),
        ] {
            assert_eq!(error(text), expected, "{text:?}");
        }
        for (value, why) in [
            ("0x64M", "for the count, use a number from 1 to 4096"),
            ("4097x64M", "for the count, use a number from 1 to 4096"),
            ("x64M", "for the count, use a number from 1 to 4096"),
            ("4x0", "for each, use 64K to 1G"),
            ("4x1K", "for each, use 64K to 1G"),
            ("4x2G", "for each, use 64K to 1G"),
            ("4x18446744073709551615G", "for each, use 64K to 1G"),
            ("4096x1G", "that is more than 1T"),
            ("64M", "use COUNTxSIZE, as in 4x64M"),
        ] {
            assert_eq!(error(&format!("verbs:buffers={value}")), format!("{buffers} '{value}': {why}"));
        }
        assert!(error("verbs:colour=red").starts_with("unknown option 'colour': known are device, port, gid, "));
    }

    #[cfg(not(feature = "verbs"))]
    #[test]
    fn a_build_without_it_says_how_to_make_one() {
        let error = Hardware::open(&VerbsOptions::default()).unwrap_err().to_string();
        assert!(
            error.contains("cargo build --release -p ernic --features verbs") && error.contains("libclang"),
            "{error}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever comes, an answer that keeps to the ranges.
        #[test]
        fn accepted_options_keep_the_ranges(
            items in prop::collection::vec(
                ("device|port|gid|buffers|v1|mtu|timeout|retry|depth|idle|wait|connections|per-client", "[0-9]{1,20}(ms|s|m|x[0-9]{1,4}[KMG])?|auto|on"),
                0..4,
            ),
        ) {
            let text = items.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
            if let Ok(options) = format!("verbs:{text}").parse::<VerbsOptions>() {
                prop_assert!(options.port > 0 && (1..=31).contains(&options.timeout) && options.retry <= 7);
                prop_assert!(options.buffers > 0 && (MIN_BUFFER..=MAX_BUFFER).contains(&(options.buffer_size as u64)));
                prop_assert!(options.buffers as u64 * options.buffer_size as u64 <= MAX_BUFFERS);
                prop_assert!(options.depth > 0 && options.connections > 0 && options.per_client > 0);
                prop_assert!(!options.idle.is_zero() && options.idle <= MAX_TIME && !options.wait.is_zero());
            }
        }
    }
}
