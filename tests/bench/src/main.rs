//! Measures the figures of the benchmark schema: a guest (`tests/driver`) attaches to the real server's vfio-user socket
//! and uses it as Linux does. `cargo xtask bench` builds both in the release profile and runs this.

mod bus;
mod figures;
mod guest;
mod limits;
mod load;
mod peers;
mod rdma;
mod report;
mod serve;
mod server;
mod stats;
mod verbs;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::Parser;
use regex::Regex;

use crate::{peers::Programs, report::Report};

/// Measures the figures of the benchmark schema against a server.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    /// The server's program, built with the profile whose figures are wanted
    #[arg(long, value_name = "PATH")]
    server: PathBuf,
    /// The program of s3s-fs, which the figures `serve_…` are compared with
    #[arg(long, value_name = "PATH")]
    s3s_fs: Option<PathBuf>,
    /// The program of rclone, with the same purpose; the faster of the two counts
    #[arg(long, value_name = "PATH")]
    rclone: Option<PathBuf>,
    /// Print the keys that would be measured, and end
    #[arg(long)]
    keys: bool,
    /// Two server starts instead of five, and fewer repeats: for a look, not for the record
    #[arg(long)]
    quick: bool,
    /// Only the figures whose key matches
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,
    /// Write everything that was measured to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is measured, and how thoroughly.
#[derive(Debug)]
pub struct Bench {
    /// The server's program.
    pub server: PathBuf,
    /// The programs of other servers.
    pub peers: Programs,
    /// Server starts of each figure.
    pub starts: usize,
    /// Divides the number of repeats within a start.
    pub thrift: usize,
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let server = fs::canonicalize(&cli.server).with_context(|| format!("--server: '{}'", cli.server.display()))?;
    let wanted = |key: &str| cli.only.as_ref().is_none_or(|only| only.is_match(key));
    let figures: Vec<_> = figures::all().filter(|figure| wanted(figure.key)).collect();
    if figures.is_empty() {
        let keys: Vec<_> = figures::all().map(|figure| figure.key).collect();
        bail!(
            "--only: no key matches '{}'; there are {}",
            cli.only.map_or_else(String::new, |r| r.to_string()),
            keys.join(", ")
        );
    }
    if cli.keys {
        figures.iter().for_each(|figure| println!("{}", figure.key));
        return Ok(());
    }
    let peers = Programs { s3s_fs: cli.s3s_fs, rclone: cli.rclone };
    let (starts, thrift) = if cli.quick { (2, 4) } else { (5, 1) };
    let bench = Bench { server, peers, starts, thrift };
    let mut report = Report::new(&bench);
    for figure in figures {
        let result = (figure.run)(&bench).with_context(|| figure.key)?;
        report.add(figure, result);
    }
    report.finish();
    if let Some(path) = cli.json {
        fs::write(&path, report.json()).with_context(|| format!("--json: cannot write '{}'", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
