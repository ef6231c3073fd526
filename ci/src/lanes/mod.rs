//! `cargo xtask test`: the lanes, in the manner of ctest. A lane is a name and what it runs.

mod boto3;
mod cargo;
mod hardware;
mod nvme;
mod power;
mod rdma;
mod tools;
mod transfers;
mod two_nics;
mod verbs;
mod vms;
mod web;

use std::cell::OnceCell;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use regex::Regex;

use crate::demo::Parts;
use crate::guest::{self, GuestArgs, Image};
use crate::native::Native;
use crate::server::ServerArgs;
use crate::vm::{self, Accel, Chosen};
use crate::{abi, apt, process, say};

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Only lanes whose names match this regular expression
    #[arg(short = 'R', long = "tests-regex", value_name = "REGEX")]
    pub regex: Option<Regex>,
    /// List the lanes instead of running them
    #[arg(short = 'N', long = "show-only")]
    pub show_only: bool,
    /// Also long lanes, and tests that are marked as long
    #[arg(long)]
    pub full: bool,
    /// The guest of the VM lanes.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The server of the VM lanes.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Accelerator of the VM lanes [default: KVM if a short probing boot works, else TCG]
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
}

/// A test target of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All test targets of a package.
    All(&'static str),
    /// The unit tests of a package's library.
    Lib(&'static str),
    /// One integration test of a package.
    Test(&'static str, &'static str),
}

/// What a lane does.
#[derive(Clone, Copy)]
enum Run {
    /// Runs test programs that Cargo has built.
    Programs(&'static [Target]),
    /// Runs the test programs that no other lane names, so that none is forgotten.
    Rest,
    /// Runs the examples in the documentation.
    Doc,
    /// Compares the wire structures with the kernel's headers.
    Abi,
    /// Runs stock S3 tools against the server; the text says what they were.
    Tools(fn(&Bench<'_>) -> Result<String>),
    /// Runs a function against a server, mostly in a VM.
    Vm(fn(&Bench<'_>) -> Result<()>),
}

struct Lane {
    name: &'static str,
    run: Run,
}

const fn lane(name: &'static str, run: Run) -> Lane {
    Lane { name, run }
}

const LANES: &[Lane] = &[
    lane("s3-token", Run::Programs(&[Target::All("rdma-token")])),
    lane("s3-http", Run::Programs(&[Target::Test("s3-proto", "http")])),
    lane("s3-target", Run::Programs(&[Target::Test("s3-proto", "target"), Target::Test("s3-proto", "surface")])),
    lane("s3-auth", Run::Programs(&[Target::Test("s3-proto", "auth")])),
    lane("s3-tcp", Run::Programs(&[Target::All("tcp-inband")])),
    lane("s3-ci", Run::Programs(&[Target::Test("ernic", "ci")])),
    lane("s3-rdma", Run::Programs(&[Target::Test("s3-proto", "rdma"), Target::Test("ionic-driver", "s3_rdma")])),
    lane("store", Run::Programs(&[Target::All("ernic-store")])),
    lane("store-crash", Run::Programs(&[Target::Test("ernic", "store_crash")])),
    lane("store-remote", Run::Programs(&[Target::Test("ernic-store", "remote"), Target::Test("ernic", "remote")])),
    lane("ionic", Run::Programs(&[Target::Test("ionic-driver", "inprocess"), Target::Lib("ernic-emu")])),
    lane("vfio-user", Run::Programs(&[Target::Test("ionic-driver", "socket"), Target::Test("ernic-emu", "vfio_user")])),
    lane("rdma", Run::Programs(&[Target::Test("ionic-driver", "rdma")])),
    lane("rdma-faults", Run::Programs(&[Target::Test("ionic-driver", "rdma_faults")])),
    lane("tap", Run::Programs(&[Target::Test("ernic", "tap")])),
    lane("abi", Run::Abi),
    lane("other", Run::Rest),
    lane("doc", Run::Doc),
    lane("s3-conformance", Run::Tools(tools::conformance)),
    lane("s3-tools", Run::Tools(tools::s3_tools)),
    lane("web", Run::Vm(web::web)),
    lane("vm-agent", Run::Vm(vms::agent)),
    lane("vm-basic", Run::Vm(vms::basic)),
    lane("vm-lifecycle", Run::Vm(vms::lifecycle)),
    lane("vm-offload", Run::Vm(vms::offload)),
    lane("vm-pcap", Run::Vm(vms::pcap)),
    lane("vm-boto3", Run::Vm(boto3::case_20_boto3)),
    lane("vm-s3-tools", Run::Vm(tools::vm_tools)),
    lane("vm-store-power", Run::Vm(power::store)),
    lane("vm-rdma", Run::Vm(rdma::control)),
    lane("vm-rdma-faults", Run::Vm(transfers::faults)),
    lane("vm-rdma-clients", Run::Vm(transfers::clients)),
    lane("vm-verbs", Run::Vm(verbs::verbs)),
    lane("vm-perftest", Run::Vm(verbs::perftest)),
    lane("vm-rdmacm", Run::Vm(verbs::rdmacm)),
    lane("vm-iommu", Run::Vm(verbs::iommu)),
    lane("vm-two-nics", Run::Vm(two_nics::two_nics)),
    lane("vm-nvme", Run::Vm(nvme::nvme)),
    lane("vm-hw-ionic", Run::Vm(hardware::ionic)),
    lane("vm-hw-rxe", Run::Vm(hardware::rxe)),
];

/// A lane cannot run here; the text says why.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// What the VM lanes share: made when the first of them runs.
#[derive(Debug)]
pub struct Bench<'a> {
    args: &'a TestArgs,
    image: OnceCell<(Image, Chosen)>,
    parts: OnceCell<Parts>,
    client: OnceCell<PathBuf>,
    hardware: OnceCell<PathBuf>,
    native: OnceCell<Result<Native, String>>,
}

impl<'a> Bench<'a> {
    /// The options of the run.
    pub fn args(&self) -> &'a TestArgs {
        self.args
    }

    /// The guest image and the accelerator.
    ///
    /// # Errors
    /// [`Skip`] when this machine cannot have a guest.
    pub fn image(&self) -> Result<&(Image, Chosen)> {
        if let Some(made) = self.image.get() {
            return Ok(made);
        }
        let image = guest::acquire(&self.args.guest, self.args.accel).map_err(|error| Skip(format!("{error:#}")))?;
        let chosen = vm::choose(&image, self.args.accel)?;
        say!("VM lanes use {chosen}");
        Ok(self.image.get_or_init(|| (image, chosen)))
    }

    /// What VMs with the NIC are made of.
    ///
    /// # Errors
    /// [`Skip`] when this machine cannot have a guest; others when the server does not build.
    pub fn parts(&self) -> Result<&Parts> {
        if let Some(parts) = self.parts.get() {
            return Ok(parts);
        }
        let (image, chosen) = self.image()?.clone();
        let program = self.server()?;
        Ok(self.parts.get_or_init(|| Parts { image, chosen, program }))
    }

    /// What `ernic-verbs` is built with; or why there is nothing to build it with.
    fn native(&self) -> Result<&Native, &str> {
        let acquire = || Native::acquire(self.args.guest.mirror.as_deref()).map_err(|error| format!("{error:#}"));
        self.native.get_or_init(acquire).as_ref().map_err(String::as_str)
    }

    /// The server. Where another lane of this run needs the hardware backend, it has that too, so that it is built once.
    ///
    /// # Errors
    /// When it does not build.
    pub fn server(&self) -> Result<PathBuf> {
        // `quick` is the release code without its slow link.
        let wanted =
            self.args.server.server.is_none() && selected(self.args).iter().any(|l| l.name.starts_with("vm-hw"));
        match wanted.then(|| self.native()) {
            Some(Ok(native)) => self.args.server.hardware("quick", native),
            _ => self.args.server.program("quick"),
        }
    }

    /// The server with the hardware backend.
    ///
    /// # Errors
    /// [`Skip`] when this machine lacks what it is built with; others when it does not build.
    pub fn hardware(&self) -> Result<PathBuf> {
        if let Some(program) = self.hardware.get() {
            return Ok(program.clone());
        }
        let native =
            self.native().map_err(|why| Skip(format!("a server with the hardware backend cannot be built {why}")))?;
        let built = self.args.server.hardware("quick", native)?;
        let program = vm::log_folder("hardware")?.join("ernic");
        std::fs::copy(&built, &program)?;
        Ok(self.hardware.get_or_init(|| program).clone())
    }

    /// An archive with the client for guests.
    ///
    /// # Errors
    /// When it does not build.
    pub fn client(&self) -> Result<PathBuf> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let client = guest::payload::client(&self.args.server.client("quick")?)?;
        Ok(self.client.get_or_init(|| client).clone())
    }
}

/// The lane `abi`.
fn abi_lane(mirror: Option<&str>) -> Result<String> {
    apt::source(mirror).map_err(|error| Skip(format!("{error:#}")))?;
    abi::run(&abi::AbiArgs { mirror: mirror.map(str::to_owned), ..abi::AbiArgs::default() })?;
    Ok(String::new())
}

fn selected(args: &TestArgs) -> Vec<&'static Lane> {
    LANES.iter().filter(|l| args.regex.as_ref().is_none_or(|r| r.is_match(l.name))).collect()
}

/// `cargo xtask test`.
///
/// # Errors
/// When a lane fails, no lane is selected, or in CI (`CI=true`) a lane is skipped.
pub fn test(args: &TestArgs) -> Result<()> {
    let lanes = selected(args);
    if args.show_only {
        for (number, lane) in lanes.iter().enumerate() {
            println!("{:>2}/{} {}", number + 1, lanes.len(), lane.name);
        }
        return Ok(());
    }
    if lanes.is_empty() {
        bail!("no lane matches; `cargo xtask test -N` lists them");
    }
    let bench = Bench {
        args,
        image: OnceCell::new(),
        parts: OnceCell::new(),
        client: OnceCell::new(),
        hardware: OnceCell::new(),
        native: OnceCell::new(),
    };
    let programs = if lanes.iter().any(|l| matches!(l.run, Run::Programs(_) | Run::Rest)) {
        cargo::build(bench.native())?
    } else {
        cargo::Programs::default()
    };
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), Vec::new());
    for (number, lane) in lanes.iter().enumerate() {
        let head = format!(
            "{:>2}/{} {} {}",
            number + 1,
            lanes.len(),
            lane.name,
            ".".repeat(24_usize.saturating_sub(lane.name.len()))
        );
        let start = Instant::now();
        let result = match lane.run {
            Run::Programs(targets) => {
                cargo::run(&programs, lane.name, |p| targets.iter().any(|t| p.is(*t)), targets, args.full)
            }
            Run::Rest => {
                let named = |p: &cargo::Program| {
                    LANES.iter().any(|l| matches!(l.run, Run::Programs(t) if t.iter().any(|t| p.is(*t))))
                };
                cargo::run(&programs, lane.name, |p| !named(p), &[], args.full)
            }
            Run::Doc => cargo::doc(bench.native()),
            Run::Abi => abi_lane(args.guest.mirror.as_deref()),
            Run::Tools(lane) => lane(&bench),
            Run::Vm(lane) => lane(&bench).map(|()| String::new()),
        };
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(detail) => {
                passed += 1;
                println!("{head} Passed {seconds:.2} sec{detail}");
            }
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(reason) => {
                    skipped.push(lane.name);
                    println!("{head} Skipped {seconds:.2} sec: {reason}");
                }
                None => {
                    failed.push(lane.name);
                    println!("{head} Failed {seconds:.2} sec");
                    println!("{}", process::tail(&format!("{error:#}"), 60));
                }
            },
        }
        std::io::stdout().flush()?;
    }
    if !failed.is_empty() {
        println!("failed: {}", failed.join(" "));
    }
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    if !failed.is_empty() {
        std::process::exit(1);
    }
    if !skipped.is_empty() && std::env::var("CI").is_ok_and(|v| v == "true") {
        eprintln!("in CI every lane must run; skipped: {}", skipped.join(" "));
        std::process::exit(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: TestArgs,
    }

    fn names(words: &[&str]) -> Vec<&'static str> {
        let args = Cli::try_parse_from([&["test"], words].concat()).unwrap().args;
        selected(&args).iter().map(|l| l.name).collect()
    }

    #[test]
    fn the_s3_lanes_are_selected_by_their_prefix() {
        assert_eq!(
            names(&["-R", "^s3-"]),
            ["s3-token", "s3-http", "s3-target", "s3-auth", "s3-tcp", "s3-ci", "s3-rdma", "s3-conformance", "s3-tools"]
        );
    }

    #[test]
    fn selection_is_by_search_and_everything_by_default() {
        assert_eq!(names(&["-R", "o.ic$"]), ["ionic", "vm-hw-ionic"]);
        assert_eq!(names(&[]).len(), LANES.len());
        assert!(names(&["-R", "^ic"]).is_empty());
    }

    #[test]
    fn lanes_have_names_of_their_own() {
        let all: std::collections::BTreeSet<_> = LANES.iter().map(|l| l.name).collect();
        assert_eq!(all.len(), LANES.len());
    }
}
