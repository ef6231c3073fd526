//! Command line: cuobjtest's options, with one dash or two, and some more.

use std::{ffi::OsString, net::IpAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, ValueEnum};
use ernic_client::{
    Protocol,
    bench::Only,
    s3::{Config, Endpoint},
    sigv4::Credentials,
    size,
    transfer::Family,
    verbs,
};

/// Stores and fetches objects by S3 over RDMA from host memory, checks them, and measures it.
#[derive(Debug, Clone, Parser)]
#[command(name = "ernic-bench", version, after_help = AFTER_HELP, max_term_width = 120)]
pub(crate) struct Options {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://192.168.200.1:9000", allow_hyphen_values = true)]
    pub(crate) endpoint: Endpoint,
    /// Bucket; it is made if it does not exist
    #[arg(long, default_value = "ernic", allow_hyphen_values = true)]
    pub(crate) bucket: String,
    /// Object; with several connections, each has one with a dash and its number behind
    #[arg(long, default_value = "ernic-bench", allow_hyphen_values = true)]
    pub(crate) key: String,
    /// Bytes of the object: a number, with K, M, G, KiB, MiB or GiB behind it; at most 1 GiB
    #[arg(long, default_value = "4MiB", value_parser = size::parse, allow_hyphen_values = true)]
    pub(crate) size: u64,
    /// Iterations
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,
    /// Only store
    #[arg(long, conflicts_with = "get_only")]
    pub(crate) put_only: bool,
    /// Only fetch what an earlier run has stored
    #[arg(long)]
    pub(crate) get_only: bool,
    /// Move the bytes in HTTP bodies; no RDMA device is needed
    #[arg(long)]
    pub(crate) std_s3: bool,
    /// Access key; without it requests are not signed
    #[arg(long, value_name = "KEY", requires = "secret", allow_hyphen_values = true)]
    access: Option<String>,
    /// Secret key
    #[arg(long, value_name = "KEY", requires = "access", allow_hyphen_values = true)]
    secret: Option<String>,
    /// Region to sign for
    #[arg(long, default_value = "us-east-1", allow_hyphen_values = true)]
    region: String,
    /// Check the server, byte for byte, instead of measuring
    #[arg(long, conflicts_with_all = ["put_only", "get_only", "std_s3", "sweep", "csv", "json"])]
    pub(crate) functional: bool,
    /// Measure these sizes, one after the other, instead of one
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse, conflicts_with = "size", allow_hyphen_values = true)]
    sweep: Vec<u64>,
    /// Write the results as comma-separated values
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) csv: Option<PathBuf>,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(crate) json: Option<PathBuf>,
    /// Connections, each with a buffer and an object of its own, at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) connections: u16,
    /// Whether a connection is used for more than one request
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) keep_alive: Switch,
    /// Form of the token: A and B are hipObject's, C is cuObject's
    #[arg(long, value_enum, default_value = "A", ignore_case = true)]
    pub(crate) token: TokenFamily,
    /// How RDMA is asked for: a token in the request; a connection for each transfer; or the latter where the server speaks it
    #[arg(long, value_enum, default_value = "token")]
    pub(crate) protocol: ProtocolName,
    /// Connect, store, fetch, compare and disconnect so often, instead of measuring; says as JSON what this process held
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["functional", "put_only", "get_only", "sweep", "csv", "json"])]
    pub(crate) soak: Option<u32>,
    /// Begin no more rounds of --soak after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "soak", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) soak_seconds: Option<u64>,
    /// Do not fail when the server lets transfers fall back to HTTP
    #[arg(long)]
    pub(crate) allow_fallback: bool,
    /// Others use the server at the same time: its counters rise by at least what was moved, not exactly
    #[arg(long)]
    pub(crate) shared: bool,
    /// Longest silence of the server, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// RDMA device; the first one that there is
    #[arg(long, value_name = "NAME", env = "VGWRDMA_RDMA_DEV", hide_env_values = true)]
    device: Option<String>,
    /// Port of the device
    #[arg(long, value_name = "N", env = "VGWRDMA_RDMA_PORT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..), hide_env_values = true)]
    port: u8,
    /// Index in the port's GID table; the RoCE v2 entry with the IPv4 address that reaches the server
    #[arg(long, value_name = "N", env = "VGWRDMA_GID_INDEX", hide_env_values = true)]
    gid_index: Option<u32>,
}

const AFTER_HELP: &str = "\
Options may be written with one dash, as of cuobjtest: -size 64M is --size 64M.

Examples:
  ernic-bench -bucket ernic -size 1MiB -n 20
  ernic-bench --sweep 4K,64K,1M,16M,256M -n 10 --csv sweep.csv
  ernic-bench --functional
  ernic-bench --protocol rc-v2 --soak 5000 -size 64K

Exit status: 0; 1 if a request, a check or a comparison failed, or a transfer fell back to HTTP; 2 if an option is wrong.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenFamily {
    #[value(name = "A")]
    A,
    #[value(name = "B")]
    B,
    #[value(name = "C")]
    C,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProtocolName {
    Token,
    RcV2,
    Auto,
}

impl From<ProtocolName> for Protocol {
    fn from(name: ProtocolName) -> Self {
        match name {
            ProtocolName::Token => Self::Token,
            ProtocolName::RcV2 => Self::RcV2,
            ProtocolName::Auto => Self::Auto,
        }
    }
}

impl From<TokenFamily> for Family {
    fn from(family: TokenFamily) -> Self {
        match family {
            TokenFamily::A => Self::A,
            TokenFamily::B => Self::B,
            TokenFamily::C => Self::C,
        }
    }
}

impl Options {
    /// Reads a command line, the program's name first.
    pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        command.build();
        let matches = command.clone().try_get_matches_from(two_dashes(&command, arguments))?;
        Self::from_arg_matches(&matches)
    }

    pub(crate) fn config(&self) -> Config {
        let credentials = match (&self.access, &self.secret) {
            (Some(access), Some(secret)) => {
                Some(Credentials { access: access.clone(), secret: secret.clone(), region: self.region.clone() })
            }
            _ => None,
        };
        Config {
            credentials,
            keep_alive: self.keep_alive == Switch::On,
            patience: Duration::from_secs(self.timeout),
            ..Config::new(self.endpoint.clone())
        }
    }

    pub(crate) fn device(&self, local: Option<IpAddr>) -> verbs::Options {
        verbs::Options { device: self.device.clone(), port: self.port, gid_index: self.gid_index, local }
    }

    pub(crate) fn sizes(&self) -> Vec<u64> {
        if self.sweep.is_empty() { vec![self.size] } else { self.sweep.clone() }
    }

    pub(crate) fn only(&self) -> Only {
        match (self.put_only, self.get_only) {
            (true, _) => Only::Put,
            (_, true) => Only::Get,
            _ => Only::Both,
        }
    }
}

/// Writes `-name` as `--name` and `-name=value` as `--name=value`, and `-flag=true` as `--flag`, as Go's `flag` reads them. What is
/// an option's value is left alone, whatever it begins with.
fn two_dashes(command: &clap::Command, arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let takes_value = |name: &str| {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        argument.map(|argument| matches!(argument.get_action(), ArgAction::Set | ArgAction::Append))
    };
    let mut arguments = arguments.into_iter();
    let mut all: Vec<OsString> = arguments.next().into_iter().collect();
    while let Some(argument) = arguments.next() {
        let Some(text) = argument.to_str() else {
            all.push(argument);
            continue;
        };
        let Some(bare) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).filter(|bare| !bare.is_empty())
        else {
            all.push(argument);
            continue;
        };
        let (name, value) = bare.split_once('=').map_or((bare, None), |(name, value)| (name, Some(value)));
        match (takes_value(name), value) {
            (Some(false), Some("true")) => all.push(format!("--{name}").into()),
            (Some(false), Some("false")) => {}
            (Some(true), None) => {
                all.push(format!("--{name}").into());
                all.extend(arguments.next());
            }
            // A single letter may be a short option, and an unknown name is refused under the name that was meant.
            (None, _) if bare.len() == 1 => all.push(argument),
            _ => all.push(format!("--{bare}").into()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, clap::Error> {
        Options::read(std::iter::once("ernic-bench").chain(line.split_whitespace()).map(OsString::from))
    }

    #[test]
    fn the_command_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn cuobjtests_command_line_is_understood() {
        // The example of vgwrdma's user documentation.
        let line = "-endpoint http://host:7070 -bucket cuobjtest -key obj -size 256MiB -n 5 -access admin -secret s -region eu";
        for line in [line.to_owned(), line.replace(" -", " --").replace("--n ", "-n ").replacen("-e", "--e", 1)] {
            let options = read(&line).unwrap();
            assert_eq!(options.endpoint.to_string(), "http://host:7070");
            assert_eq!((options.bucket.as_str(), options.key.as_str()), ("cuobjtest", "obj"));
            assert_eq!((options.sizes(), options.iterations), (vec![256 << 20], 5));
            let credentials = Credentials { access: "admin".into(), secret: "s".into(), region: "eu".into() };
            assert_eq!(options.config().credentials, Some(credentials));
            assert_eq!((options.only(), options.std_s3), (Only::Both, false));
        }
        assert_eq!(read("-put-only").unwrap().only(), Only::Put);
        assert_eq!(read("--get-only").unwrap().only(), Only::Get);
        assert!(read("-std-s3").unwrap().std_s3);
        // As Go writes them.
        assert_eq!(read("-size=4K -n=7 -std-s3=true -put-only=false").unwrap().sizes(), [4096]);
        assert_eq!(read("--n 7").unwrap().iterations, 7);
        assert_eq!(read("-n7").unwrap_err().kind(), clap::error::ErrorKind::UnknownArgument);
    }

    #[test]
    fn values_may_begin_with_a_dash() {
        let options = read("-access -key -secret --size -bucket b").unwrap();
        let credentials = options.config().credentials.unwrap();
        assert_eq!((credentials.access.as_str(), credentials.secret.as_str()), ("-key", "--size"));
        assert_eq!((options.bucket.as_str(), options.key.as_str()), ("b", "ernic-bench"));
    }

    #[test]
    fn defaults_are_those_of_the_server() {
        let options = read("").unwrap();
        assert_eq!(options.endpoint.to_string(), "http://192.168.200.1:9000");
        assert_eq!((options.bucket.as_str(), options.key.as_str()), ("ernic", "ernic-bench"));
        assert_eq!((options.sizes(), options.iterations, options.connections), (vec![4 << 20], 5, 1));
        assert_eq!(Family::from(options.token), Family::A);
        let config = options.config();
        assert!(config.keep_alive && config.credentials.is_none());
        assert_eq!(options.region, "us-east-1");
    }

    #[test]
    fn sweeps_connections_and_tokens_are_read() {
        let options = read(
            "--sweep 4K,64K,1M,16M,256M --csv a.csv --json b.json --connections 4 --keep-alive off --token c -n 2",
        )
        .unwrap();
        assert_eq!(options.sizes(), [4096, 65_536, 1 << 20, 16 << 20, 256 << 20]);
        assert_eq!((options.csv, options.json), (Some("a.csv".into()), Some("b.json".into())));
        assert_eq!((options.connections, options.keep_alive, Family::from(options.token)), (4, Switch::Off, Family::C));
        assert!(read("-functional").unwrap().functional);
        for (name, due) in [("token", Protocol::Token), ("rc-v2", Protocol::RcV2), ("auto", Protocol::Auto)] {
            assert_eq!(Protocol::from(read(&format!("--protocol {name}")).unwrap().protocol), due);
        }
        assert_eq!(Protocol::from(read("").unwrap().protocol), Protocol::Token);
        let options = read("--soak 5000 --soak-seconds 60 --protocol rc-v2").unwrap();
        assert_eq!((options.soak, options.soak_seconds), (Some(5000), Some(60)));
        assert_eq!(read("--timeout 7").unwrap().config().patience, Duration::from_secs(7));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, says) in [
            ("-size 2G", "'2G'"),
            ("-size 4KB", "'4KB'"),
            ("-size 0", "'0'"),
            ("--sweep 4K,x", "'x'"),
            ("--sweep 4K -size 4K", "cannot be used with"),
            ("-put-only -get-only", "cannot be used with"),
            ("-functional -std-s3", "cannot be used with"),
            ("-access a", "--secret"),
            ("-secret a", "--access"),
            ("-n 0", "0 is not in"),
            ("--connections 0", "0 is not in"),
            ("--token D", "possible values: A, B, C"),
            ("--keep-alive maybe", "possible values: on, off"),
            ("--protocol v2", "possible values: token, rc-v2, auto"),
            ("--soak 0", "0 is not in"),
            ("--soak-seconds 5", "--soak"),
            ("--soak 5 -functional", "cannot be used with"),
            ("-endpoint https://host", "bad endpoint 'https://host'"),
            ("-wat 5", "'--wat'"),
            ("stray", "'stray'"),
        ] {
            let text = read(line).unwrap_err().to_string();
            assert!(text.contains(says), "{line}: {text}");
        }
    }

    #[test]
    fn the_device_is_chosen_by_environment_too() {
        let names: Vec<_> = Options::command()
            .get_arguments()
            .filter_map(|argument| Some((argument.get_long()?.to_owned(), argument.get_env()?.to_str()?.to_owned())))
            .collect();
        let due = [("device", "VGWRDMA_RDMA_DEV"), ("port", "VGWRDMA_RDMA_PORT"), ("gid-index", "VGWRDMA_GID_INDEX")];
        assert_eq!(names, due.map(|(name, variable)| (name.to_owned(), variable.to_owned())));
        let options = read("--device ionic_0 --port 2 --gid-index 3").unwrap().device(None);
        let due = verbs::Options { device: Some("ionic_0".into()), port: 2, gid_index: Some(3), local: None };
        assert_eq!(options, due);
    }
}
