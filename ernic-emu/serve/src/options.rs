//! The command line.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::{
    ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    builder::{PathBufValueParser, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use s3_proto::Faults;

use crate::{
    backend::{Backend, S3Options, decimal},
    credentials,
    logging::{self, LogFilter, LogFormat},
    mac::Mac,
    rdma::VerbsOptions,
    recent::Recent,
    size::parse_size,
};

/// Smallest MTU that Linux lets the driver set: `ETH_MIN_MTU`, which is IPv4's minimum (RFC 791, section 3.2).
pub const MIN_MTU: u16 = 68;
/// Largest MTU of the device: frames of 9216 bytes less Ethernet header and VLAN tag (driver: `ionic_lif_alloc`).
pub const MAX_MTU: u16 = 9198;
/// Bytes that a Unix socket's path may have: `sun_path` less its terminator (unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;
/// Bytes that a network interface's name may have: `IFNAMSIZ` less its terminator (netdevice(7)).
pub const MAX_IFNAME: usize = 15;

const EXAMPLES: &str = "\
Examples:
  ernic                                       256 MiB, bucket 'ernic', http://192.168.200.1:9000/
  ernic -s /run/vm1.sock -b s3:size=1G,bucket=bench
  ernic -b s3:ip=10.0.0.5,port=8080,dhcp=off  somewhere else on the guest's segment
  ernic -T tap0 --pcap /tmp/vm1.pcap          other traffic to the host's tap0, all of it recorded
  ernic -b none -T tap0 --mtu 1500            a plain NIC on a TAP
  ernic --rdma-rate 100M --fault decline@2    a slower fabric, and a client's fallback put to the test
  ernic status --json                         ask the running server how it is
  ernic link down -s /run/vm1.sock            pull the guest's cable
  ernic serve --listen 127.0.0.1:9000         the store alone, on this machine's own TCP

Options of the s3 backend (defaults in brackets):
  bucket=NAME   the bucket [ernic]             ip=ADDR      address of the endpoint [192.168.200.1]
  size=SIZE     bytes of objects [256M]        port=N       TCP port [9000]
  objects=N     objects, 1..16777216 [256]     maxpart=SIZE largest transfer or part [256M]
  dhcp=on|off   lease addresses to the guest [on]
  etag=KIND     what ETags are made of, md5 or crc64nvme [md5]
  store=STORE   memory, disk:PATH, dir:PATH or remote:URL [memory]
  credentials=FILE  keys that requests must be signed with, lines ACCESS:SECRET [none: everybody may do everything]
  web=on|off    a page of buckets, objects and figures for browsers at / [off]
  domain=NAME   makes bucket.NAME a way to name a bucket [none]
  durability=D  what a write has survived when it is answered, full (power loss) or os [full]
A value with a comma, a quote or a percent sign is written in \"quotes\" (\\\" and \\\\ within) or with %XX.
A SIZE is a number and K, M, G, T, KiB, MiB, GiB or TiB, in powers of 1024, upper or lower case alike.

Faults: ACTION[=TIME][@N|@every:N], at the Nth transfer by RDMA or at every Nth, else at each. Actions:
  decline       answer 501                     no-reply       leave the reply header out
  fail          fail halfway, answer 503       delay=TIME     wait before the transfer
  short         move one byte less             link-down=TIME pull the guest's cable for a time
A TIME is a number and us, ms or s.

Exit status: 0 after SIGINT or SIGTERM, 1 if the server could not start or go on, 2 for a malformed option.";

const SERVE_EXAMPLES: &str = "\
Examples:
  ernic serve                                      4 GiB, bucket 'ernic', http://127.0.0.1:9000/
  ernic serve -l [::1]:0 -b s3:size=1G             a free port, which the log names
  ernic serve -l 0.0.0.0:9000 -b s3:credentials=keys   for those who have a key
  ernic serve -l 0.0.0.0:9000 --insecure           for everybody who can reach this machine
  ernic serve --rdma verbs:device=mlx5_0           with payloads by RDMA, in a build with the feature 'verbs'

Options of the verbs hardware (defaults in brackets):
  device=NAME    [the first with an active port]   port=N        of the device, 1..255 [1]
  gid=N|auto     index of the source GID [auto]    mtu=auto|256..4096  bytes of a packet [auto: the port's]
  buffers=NxSIZE registered, of 64K to 1G [4x64M]  depth=N       requests under way on a queue pair [16]
  v2=on|off      hipobj-rc-v2 [on]                 v1=on|off     hipObject's first protocol, for GET [off]
  rc-c=on|off    tokens C, D, E name connections that there are [off]
  timeout=N      4.096 us * 2^N for an answer, 1..31 [14]        retry=N, rnr-retry=N  0..7 [7]
  wait=TIME      for one request, or a client to connect [10s]   idle=TIME  until a connection is closed [60s]
  connections=N  queue pairs in all [256]          per-client=N  queue pairs and sessions of one [64]
  sessions=N     sessions of hipobj-rc-v2 [64]    tclass=N      traffic class of packets, 0..255 [0]
A TIME is a number and ms, s or m.

The backend's options are those of 'ernic --help' but for ip=, port= and dhcp=; size=4G and objects=1000000 are the defaults.";

/// Serves an AMD Pensando ionic NIC to QEMU over vfio-user, with an S3 store on the other end of its wire.
#[derive(Debug, Clone, Parser)]
#[command(name = "ernic", version, after_help = EXAMPLES, max_term_width = 110, disable_help_subcommand = true)]
pub struct Options {
    /// Unix socket that QEMU connects to; created with mode 0600
    #[arg(short, long, value_name = "PATH", global = true, default_value_os_t = default_socket(),
          value_parser = PathBufValueParser::new().try_map(socket_path))]
    pub socket: PathBuf,

    /// What answers on the other end of the wire: none, or s3[:key=value,…]
    #[arg(short, long, value_name = "BACKEND", default_value = "s3")]
    pub backend: Backend,

    /// Send frames that are not for the endpoint to this host TAP interface, and take frames from it
    #[arg(short = 'T', long, value_name = "IFNAME", value_parser = interface_name)]
    pub tap: Option<String>,

    /// The NIC's Ethernet address [default: 02:1d: and a hash of the socket's path]
    #[arg(short, long, value_name = "MAC")]
    pub mac: Option<Mac>,

    /// PCI device id: 1002 is what Linux's driver binds, 100a needs a patched one
    #[arg(long, value_name = "ID", value_enum, default_value_t = DeviceId::Ionic, ignore_case = true,
          hide_possible_values = true)]
    pub device_id: DeviceId,

    /// Largest MTU that the driver is offered, 68..9198
    #[arg(long, value_name = "N", default_value = "9000", value_parser = mtu)]
    pub mtu: u16,

    /// Record every frame in both directions to this file, for tcpdump and Wireshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Most bytes that all transfers by RDMA together move in a second [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    pub rdma_rate: Option<NonZeroU64>,

    /// Make transfers by RDMA go wrong on purpose, to test a client's fallbacks; see below
    #[arg(long, value_name = "SPEC[,SPEC…]")]
    pub fault: Option<Faults>,

    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogOptions,

    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LogOptions {
    /// off, error, warn, info, debug or trace, or module=level, or several of them separated by commas
    #[arg(short = 'L', long, value_name = "LEVEL", default_value = "info", env = "ERNIC_LOG_LEVEL")]
    pub log_level: LogFilter,

    /// How log lines are written: text, or json with one object a line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, hide_possible_values = true)]
    pub log_format: LogFormat,

    /// One log level more, each time it is given
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

impl LogOptions {
    /// What is logged: `--log-level` and as many levels more as there are `-v`.
    #[must_use]
    pub fn filter(&self) -> LogFilter {
        self.log_level.clone().raised(self.verbose)
    }

    /// Starts the log of this process.
    ///
    /// # Errors
    ///
    /// It was started before.
    pub fn start(&self) -> anyhow::Result<Recent> {
        logging::start(&self.filter(), self.log_format).context("cannot start the log")
    }
}

/// How `ernic serve` serves.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeOptions {
    /// Address and port to listen on; port 0 takes a free one, and the log says which
    #[arg(short, long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9000", value_parser = listen_address)]
    pub listen: SocketAddr,

    /// The store: s3[:key=value,…]
    #[arg(short, long, value_name = "BACKEND", default_value = "s3", value_parser = S3Options::serve)]
    pub backend: S3Options,

    /// Move payloads with RDMA hardware: verbs[:key=value,…]
    #[arg(long, value_name = "HARDWARE")]
    pub rdma: Option<VerbsOptions>,

    /// Serve others than this machine although anybody may read and write
    #[arg(long)]
    pub insecure: bool,

    /// Most connections at a time, 1..65536; one more is answered 503
    #[arg(long, value_name = "N", default_value = "1024", value_parser = connections)]
    pub max_connections: usize,

    /// Seconds that a connection may be quiet between requests
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub idle_timeout: Duration,

    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogOptions,
}

impl ServeOptions {
    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_loopback(self.listen.ip())
    }

    /// What no single option can say. The text is for one line.
    fn check(&self) -> Result<(), String> {
        if self.is_local() || self.insecure || credentials::are_given(&self.backend) {
            return Ok(());
        }
        Err(format!(
            "--listen: bad address '{}': others than this machine could read and write everything; add credentials=FILE to \
             --backend, or listen on 127.0.0.1, or say --insecure",
            self.listen
        ))
    }
}

/// Loopback, also as IPv6 writes IPv4.
fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// What is asked of a server that runs; or another way of serving.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Serve the same S3 store on this machine's own TCP: no NIC, no QEMU, and no RDMA
    Serve(Box<ServeOptions>),
    /// Ask a running server how it is: guest, link, connections, memory regions, objects, last errors
    Status {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Plug in or pull the guest's cable, at a running server
    Link {
        /// up or down
        #[arg(value_enum, hide_possible_values = true)]
        state: LinkState,
    },
}

/// Whether the guest's cable is plugged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinkState {
    /// It is.
    Up,
    /// It is not.
    Down,
}

impl LinkState {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// PCI device id under vendor 1dd8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceId {
    /// 0x1002, the Ethernet physical function that Linux's `ionic` binds (`ionic_id_table`).
    #[value(name = "1002")]
    Ionic,
    /// 0x100a, which rocm-ernic presents to drivers that know it.
    #[value(name = "100a")]
    Rocm,
}

impl DeviceId {
    /// The number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Ionic => 0x1002,
            Self::Rocm => 0x100a,
        }
    }
}

/// Why the program ends before it has begun.
#[derive(Debug)]
pub enum Stop {
    /// `--help` or `--version`: the text is for standard output, the exit code is 0.
    Answer(Box<clap::Error>),
    /// A malformed command line: one line for standard error, without `Error: `; the exit code is 2.
    Malformed(String),
}

impl Options {
    /// Reads a command line, whose first item is the program's name, and `ERNIC_LOG_LEVEL`.
    pub fn read<I, T>(args: I) -> Result<Self, Stop>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let command = Self::command();
        let matches = command.clone().try_get_matches_from(args).map_err(stop)?;
        if let Some((name, _)) = matches.subcommand() {
            // All other options are for a server, which would not get them.
            let given = |id| id != "socket" && matches.value_source(id) == Some(ValueSource::CommandLine);
            if let Some(option) = command.get_arguments().find(|argument| given(argument.get_id().as_str())) {
                let option = option.get_long().unwrap_or_default();
                return Err(Stop::Malformed(format!("--{option}: does not go with '{name}'")));
            }
        }
        let options = Self::from_arg_matches(&matches).map_err(stop)?;
        if let Some(Command::Serve(serve)) = &options.command {
            if matches.subcommand().is_some_and(|(_, of)| of.value_source("socket") == Some(ValueSource::CommandLine)) {
                return Err(Stop::Malformed("--socket: does not go with 'serve': there is no NIC".to_owned()));
            }
            serve.check().map_err(Stop::Malformed)?;
        }
        if options.backend == Backend::None {
            let given = [("--rdma-rate", options.rdma_rate.is_some()), ("--fault", options.fault.is_some())];
            if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
                return Err(Stop::Malformed(format!("{option}: there are no transfers without the s3 backend")));
            }
        }
        if let (Backend::S3(s3), mac) = (&options.backend, options.nic_mac())
            && s3.mac() == mac
        {
            return Err(Stop::Malformed(format!("--mac: bad address '{mac}': it is the endpoint's own")));
        }
        Ok(options)
    }

    /// The NIC's address: the one given, else the one that follows from the socket's path.
    #[must_use]
    pub fn nic_mac(&self) -> Mac {
        self.mac.unwrap_or_else(|| Mac::of_socket(&self.absolute_socket()))
    }

    /// The socket's path as QEMU, wherever it is started, can use it.
    #[must_use]
    pub fn absolute_socket(&self) -> PathBuf {
        std::path::absolute(&self.socket).unwrap_or_else(|_| self.socket.clone())
    }
}

/// `$XDG_RUNTIME_DIR/ernic.sock`, else `/tmp/ernic.sock`. A relative directory is ignored, as the XDG base directory
/// specification asks.
fn default_socket() -> PathBuf {
    socket_under(env::var_os("XDG_RUNTIME_DIR").as_deref())
}

fn socket_under(runtime_dir: Option<&OsStr>) -> PathBuf {
    runtime_dir.map(Path::new).filter(|dir| dir.is_absolute()).unwrap_or_else(|| Path::new("/tmp")).join("ernic.sock")
}

fn socket_path(path: PathBuf) -> Result<PathBuf, String> {
    let shown = path.display();
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        return Err(format!("bad path '{shown}': {length} bytes, but a socket's path has at most {MAX_SOCKET_PATH}"));
    }
    if path.to_str().is_none() {
        return Err(format!("bad path '{shown}': it is not UTF-8, and QEMU could not name it"));
    }
    if path.file_name().is_none() {
        return Err(format!("bad path '{shown}': it names a directory"));
    }
    Ok(path)
}

/// An interface name by the kernel's rule (`dev_valid_name`), and without `%`, which asks the kernel to make one up.
fn interface_name(name: &str) -> Result<String, String> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_IFNAME {
        "an interface's name has at most 15 bytes"
    } else if name == "." || name == ".." || name.contains(|c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace())
    {
        "an interface's name has no '/', ':', '%' or space in it"
    } else {
        return Ok(name.to_owned());
    };
    Err(format!("bad interface name '{name}': {why}"))
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    let bytes = parse_size(text).map_err(|error| format!("bad rate '{text}'{error}"))?;
    NonZeroU64::new(bytes).ok_or_else(|| format!("bad rate '{text}'"))
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("bad address '{text}': use ADDR:PORT, as in 127.0.0.1:9000 or [::1]:9000"))
}

/// Most of `--max-connections`: no more fit into the ports of one address.
const MAX_CONNECTIONS: u64 = 1 << 16;

fn connections(text: &str) -> Result<usize, String> {
    decimal(text)
        .filter(|n| (1..=MAX_CONNECTIONS).contains(n))
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| format!("bad number '{text}': use a number from 1 to {MAX_CONNECTIONS}"))
}

/// Most of `--idle-timeout`: a day.
const MAX_IDLE: u64 = 86_400;

fn seconds(text: &str) -> Result<Duration, String> {
    decimal(text)
        .filter(|n| (1..=MAX_IDLE).contains(n))
        .map(Duration::from_secs)
        .ok_or_else(|| format!("bad number '{text}': use a number of seconds from 1 to {MAX_IDLE}"))
}

fn mtu(text: &str) -> Result<u16, String> {
    decimal(text)
        .and_then(|mtu| u16::try_from(mtu).ok())
        .filter(|mtu| (MIN_MTU..=MAX_MTU).contains(mtu))
        .ok_or_else(|| format!("bad MTU '{text}': use a number from {MIN_MTU} to {MAX_MTU}"))
}

/// Turns clap's report into one line that names option and value.
fn stop(error: clap::Error) -> Stop {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let list = |kind| match error.get(kind) {
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    // clap names an option as `--mtu <N>` or `--verbose...`.
    let option = text(ContextKind::InvalidArg)
        .map_or("option", |arg| arg.split(' ').next().unwrap_or(arg).trim_end_matches("..."));
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let mut line = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Stop::Answer(Box::new(error)),
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            match option {
                // Its errors name the backend themselves.
                "--backend" => why,
                "--mac" => format!("--mac: bad address '{value}': {why}"),
                "--log-level" => format!("--log-level (or ERNIC_LOG_LEVEL): {why}"),
                _ => format!("{option}: {why}"),
            }
        }
        // clap's form of "the value is missing"
        ErrorKind::InvalidValue if value.is_empty() => format!("{option}: a value is missing"),
        ErrorKind::InvalidValue => {
            format!("{option}: bad value '{value}': use one of {}", list(ContextKind::ValidValue))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("{} is missing: see --help", list(ContextKind::InvalidArg))
        }
        // clap's idea of what was meant is too free: `stray` would be `status`.
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("unknown option or argument '{word}': see --help")
        }
        ErrorKind::ArgumentConflict => format!("{option}: given more than once"),
        ErrorKind::TooManyValues => format!("{option}: takes no value, got '{value}'"),
        ErrorKind::UnknownArgument => {
            let mut line = format!("unknown option or argument '{option}'");
            if let Some(ContextValue::String(near)) = error.get(ContextKind::SuggestedArg) {
                // Writing to a string cannot fail.
                let _ = write!(line, ": did you mean {near}?");
            } else {
                line.push_str(": see --help");
            }
            line
        }
        _ => {
            let whole = error.to_string();
            let first = whole.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    };
    if line.contains(char::is_control) {
        line = line.chars().flat_map(printable).collect();
    }
    Stop::Malformed(line)
}

/// The character itself, or an escape for it: a value must not break the line, or the terminal.
fn printable(c: char) -> impl Iterator<Item = char> {
    let escape = c.is_control().then(|| c.escape_default());
    let plain = (!c.is_control()).then_some(c);
    escape.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use clap::CommandFactory;

    use super::*;
    use crate::backend::S3Options;

    fn read(args: &[&str]) -> Options {
        match Options::read([&["ernic"], args].concat()) {
            Ok(options) => options,
            Err(stop) => panic!("{args:?}: {stop:?}"),
        }
    }

    fn refused(args: &[&str]) -> String {
        match Options::read([&["ernic"], args].concat()) {
            Err(Stop::Malformed(line)) => line,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    #[test]
    fn the_command_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn defaults() {
        let options = read(&[]);
        assert_eq!(options.backend, Backend::S3(S3Options::default()));
        assert_eq!((options.mtu, options.device_id.number()), (9000, 0x1002));
        assert_eq!((options.tap.clone(), options.pcap.clone(), options.mac), (None, None, None));
        assert_eq!(options.socket, default_socket());
        assert_eq!(options.log.log_format, LogFormat::Text);
    }

    #[test]
    fn socket_default_follows_the_runtime_directory() {
        assert_eq!(socket_under(Some(OsStr::new("/run/user/7"))), Path::new("/run/user/7/ernic.sock"));
        for unusable in [None, Some(OsStr::new("")), Some(OsStr::new("run/user"))] {
            assert_eq!(socket_under(unusable), Path::new("/tmp/ernic.sock"));
        }
    }

    #[test]
    fn every_spelling() {
        let short =
            read(&["-s", "/x/y.sock", "-b", "none", "-T", "tap0", "-m", "02:00:00:00:00:07", "-L", "debug", "-v"]);
        let long = read(&[
            "--socket=/x/y.sock",
            "--backend=none",
            "--tap=tap0",
            "--mac=02:00:00:00:00:07",
            "--log-level=debug",
            "--verbose",
        ]);
        for options in [short, long] {
            assert_eq!(options.socket, Path::new("/x/y.sock"));
            assert_eq!(options.backend, Backend::None);
            assert_eq!(options.tap.as_deref(), Some("tap0"));
            assert_eq!(options.nic_mac().to_string(), "02:00:00:00:00:07");
            assert_eq!(options.log.filter(), "trace".parse().unwrap());
        }
        let rest = read(&["--device-id", "100A", "--mtu", "9198", "--pcap", "/x/y.pcap", "--log-format", "json"]);
        assert_eq!((rest.device_id.number(), rest.mtu, rest.log.log_format), (0x100a, 9198, LogFormat::Json));
        assert_eq!(rest.pcap.as_deref(), Some(Path::new("/x/y.pcap")));
        assert_eq!(read(&["--mtu", "68"]).mtu, 68);
        assert_eq!(read(&["-vv"]).log.filter(), "trace".parse().unwrap());
    }

    #[test]
    fn impairments() {
        let options = read(&["--rdma-rate", "3M", "--fault", "decline@2,delay=5ms"]);
        assert_eq!(options.rdma_rate.map(NonZeroU64::get), Some(3 << 20));
        assert_eq!(options.fault, Some("decline@2,delay=5ms".parse().unwrap()));
        let none = read(&[]);
        assert!(none.rdma_rate.is_none() && none.fault.is_none());
    }

    #[test]
    fn commands_and_whom_they_ask() {
        assert_eq!(read(&[]).command, None);
        assert_eq!(read(&["status"]).command, Some(Command::Status { json: false }));
        assert_eq!(read(&["link", "down"]).command, Some(Command::Link { state: LinkState::Down }));
        assert_eq!(read(&["link", "up"]).command, Some(Command::Link { state: LinkState::Up }));
        assert_eq!(read(&["status"]).socket, default_socket());
        for arguments in [&["status", "--json", "-s", "/x/y"][..], &["-s", "/x/y", "status", "--json"]] {
            let options = read(arguments);
            assert_eq!(options.command, Some(Command::Status { json: true }));
            assert_eq!(options.socket, Path::new("/x/y"), "{arguments:?}");
        }
    }

    fn serve(args: &[&str]) -> ServeOptions {
        match read(&[&["serve"], args].concat()).command {
            Some(Command::Serve(serve)) => *serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn serving_without_a_nic() {
        let defaults = serve(&[]);
        assert_eq!(defaults.rdma, None);
        assert_eq!(serve(&["--rdma", "verbs"]).rdma, Some(VerbsOptions::default()));
        assert_eq!((defaults.listen, &defaults.backend), ("127.0.0.1:9000".parse().unwrap(), &S3Options::of_serve()));
        assert_eq!((defaults.max_connections, defaults.idle_timeout), (1024, Duration::from_secs(60)));
        assert!(defaults.is_local() && !defaults.insecure);
        let given = serve(&["-l", "[::1]:0", "-b", "s3:bucket=bench", "-L", "warn", "-v", "--log-format", "json"]);
        assert_eq!((given.listen, given.backend.bucket.as_str()), ("[::1]:0".parse().unwrap(), "bench"));
        assert_eq!((given.log.filter(), given.log.log_format), ("info".parse().unwrap(), LogFormat::Json));
        let open = serve(&["--listen=[::]:80", "--insecure", "--max-connections", "1", "--idle-timeout=5"]);
        assert_eq!((open.max_connections, open.idle_timeout), (1, Duration::from_secs(5)));
        assert!(!open.is_local() && serve(&["-l", "[::ffff:127.0.0.1]:1"]).is_local());
    }

    #[test]
    fn nic_address_follows_the_socket() {
        let one = read(&["-s", "/x/one.sock"]).nic_mac();
        assert_eq!(one, read(&["-s", "/x/one.sock"]).nic_mac());
        assert_ne!(one, read(&["-s", "/x/two.sock"]).nic_mac());
        let here = env::current_dir().unwrap().join("one.sock");
        assert_eq!(read(&["-s", "one.sock"]).nic_mac(), read(&["-s", here.to_str().unwrap()]).nic_mac());
        assert_eq!(read(&["-s", "./one.sock"]).nic_mac(), read(&["-s", "one.sock"]).nic_mac());
    }

    #[test]
    fn refusals_are_one_line_that_names_option_and_value() {
        for (args, expected) in [
            (&["-b", "s3:size=bogus"][..], "s3 backend: bad size 'bogus'"),
            (&["--backend", "tape"], "--backend: unknown backend 'tape': use none or s3"),
            (
                &["serve", "--rdma", "verbs:buffers=0x64M"],
                "--rdma: bad buffers '0x64M': for the count, use a number from 1 to 4096",
            ),
            (&["serve", "--rdma", "ofi"], "--rdma: unknown hardware 'ofi': use verbs or verbs:device=NAME,…"),
            (&["--mtu", "67"], "--mtu: bad MTU '67': use a number from 68 to 9198"),
            (&["--mtu", "9199"], "--mtu: bad MTU '9199': use a number from 68 to 9198"),
            (&["--mtu", "1k"], "--mtu: bad MTU '1k': use a number from 68 to 9198"),
            (&["--mtu"], "--mtu: a value is missing"),
            (&["--mtu="], "--mtu: bad MTU '': use a number from 68 to 9198"),
            (&["--mtu", "1500", "--mtu", "1500"], "--mtu: given more than once"),
            (
                &["-m", "bogus"],
                "--mac: bad address 'bogus': six pairs of hexadecimal digits are wanted, as in 02:1d:00:00:00:01",
            ),
            (
                &["-m", "03:00:00:00:00:01"],
                "--mac: bad address '03:00:00:00:00:01': it is a group address; the first byte must be even",
            ),
            (&["-m", "02:53:c0:a8:c8:01"], "--mac: bad address '02:53:c0:a8:c8:01': it is the endpoint's own"),
            (&["--device-id", "1003"], "--device-id: bad value '1003': use one of 1002, 100a"),
            (&["--log-format", "xml"], "--log-format: bad value 'xml': use one of text, json"),
            (
                &["-T", "0123456789abcdef"],
                "--tap: bad interface name '0123456789abcdef': an interface's name has at most 15 bytes",
            ),
            (
                &["-T", "a/b"],
                "--tap: bad interface name 'a/b': an interface's name has no '/', ':', '%' or space in it",
            ),
            (
                &["-T", "tap%d"],
                "--tap: bad interface name 'tap%d': an interface's name has no '/', ':', '%' or space in it",
            ),
            (&["-T", ""], "--tap: bad interface name '': it is empty"),
            (&["-s", ""], "--socket: a value is missing"),
            (&["-s", "/"], "--socket: bad path '/': it names a directory"),
            (&["--pcap", ""], "--pcap: a value is missing"),
            (&["--verbose=3"], "--verbose: takes no value, got '3'"),
            (&["--sockets", "x"], "unknown option or argument '--sockets': did you mean --socket?"),
            (&["-z"], "unknown option or argument '-z': see --help"),
            (&["stray"], "unknown option or argument 'stray': see --help"),
            (&["statu"], "unknown option or argument 'statu': see --help"),
            (&["link"], "<STATE> is missing: see --help"),
            (&["link", "left"], "<STATE>: bad value 'left': use one of up, down"),
            (&["-b", "none", "status"], "--backend: does not go with 'status'"),
            (&["-b", "s3", "serve"], "--backend: does not go with 'serve'"),
            (&["serve", "-s", "/x"], "--socket: does not go with 'serve': there is no NIC"),
            (&["-s", "/x", "serve"], "--socket: does not go with 'serve': there is no NIC"),
            (&["serve", "--mtu", "1500"], "unknown option or argument '--mtu': see --help"),
            (&["serve", "-b", "s3:size=bogus"], "s3 backend: bad size 'bogus'"),
            (
                &["serve", "-l", "9000"],
                "--listen: bad address '9000': use ADDR:PORT, as in 127.0.0.1:9000 or [::1]:9000",
            ),
            (
                &["serve", "-l", "0.0.0.0:9000"],
                "--listen: bad address '0.0.0.0:9000': others than this machine could read and write everything; add \
                 credentials=FILE to --backend, or listen on 127.0.0.1, or say --insecure",
            ),
            (&["serve", "--max-connections", "0"], "--max-connections: bad number '0': use a number from 1 to 65536"),
            (
                &["serve", "--idle-timeout", "1m"],
                "--idle-timeout: bad number '1m': use a number of seconds from 1 to 86400",
            ),
            (&["-v", "link", "up"], "--verbose: does not go with 'link'"),
            (&["--rdma-rate", "1", "link", "up"], "--rdma-rate: does not go with 'link'"),
            (&["--rdma-rate", "x"], "--rdma-rate: bad rate 'x'"),
            (&["--rdma-rate", "0K"], "--rdma-rate: bad rate '0K': it must not be zero"),
            (&["--rdma-rate", "1", "-b", "none"], "--rdma-rate: there are no transfers without the s3 backend"),
            (&["--fault", "fail", "-b", "none"], "--fault: there are no transfers without the s3 backend"),
            (&["--fault", "short=1s"], "--fault: bad fault 'short=1s': short takes no value"),
            (
                &["-T", "a\nb\u{1b}"],
                "--tap: bad interface name 'a\\nb\\u{1b}': an interface's name has no '/', ':', '%' or space in it",
            ),
        ] {
            assert_eq!(refused(args), expected, "{args:?}");
        }
        let long = format!("/{}", "x".repeat(107));
        assert_eq!(
            refused(&["-s", &long]),
            format!("--socket: bad path '{long}': 108 bytes, but a socket's path has at most 107")
        );
        assert_eq!(read(&["-s", &long[..107]]).socket, Path::new(&long[..107]));
        let bytes = [OsStr::new("ernic"), OsStr::new("-s"), OsStr::from_bytes(b"/x/\xff")];
        match Options::read(bytes) {
            Err(Stop::Malformed(line)) => {
                assert_eq!(line, "--socket: bad path '/x/\u{fffd}': it is not UTF-8, and QEMU could not name it");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn help_and_version_are_answers() {
        for (arg, word) in [("--help", "Examples:"), ("-h", "Examples:"), ("--version", "ernic "), ("-V", "ernic ")] {
            match Options::read(["ernic", arg]) {
                Err(Stop::Answer(answer)) => assert!(answer.to_string().contains(word), "{arg}"),
                other => panic!("{arg}: {other:?}"),
            }
        }
    }
}
