//! `cargo xtask bench`: builds the server and `tests/bench` in the product's profile and runs the latter.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{peers, process, say};

/// What to measure.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Fewer server starts and repeats: for a look, not for the record
    #[arg(long)]
    quick: bool,
    /// Only the figures whose key matches
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Write everything that was measured to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Cargo profile; figures are those of `release`
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
}

/// Measures the figures of the benchmark schema.
///
/// # Errors
/// When something cannot be built, or the benchmark fails.
pub fn run(args: &BenchArgs) -> Result<()> {
    say!("building the server and the benchmark, profile {}", args.profile);
    let mut build = crate::cargo();
    build.args(["build", "--package", "ernic", "--package", "ernic-figures", "--bins", "--profile", &args.profile]);
    build.arg("--message-format=json-render-diagnostics");
    let output = process::end_with_parent(&mut build)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`{}`: {}", process::display(&build), output.status);
    }
    let server = program(&output.stdout, "ernic")?;
    let mut bench = std::process::Command::new(program(&output.stdout, "ernic-figures")?);
    bench.arg("--server").arg(server);
    if args.quick {
        bench.arg("--quick");
    }
    if let Some(only) = &args.only {
        bench.args(["--only", only]);
    }
    if compares(&bench)? {
        let peers = peers::find()?;
        bench.arg("--s3s-fs").arg(peers.s3s_fs);
        if let Some(rclone) = peers.rclone {
            bench.arg("--rclone").arg(rclone);
        }
    }
    if let Some(json) = &args.json {
        bench.arg("--json").arg(json);
    }
    let status = process::end_with_parent(&mut bench).status().context("cannot run the benchmark")?;
    if !status.success() {
        bail!("`{}`: {status}", process::display(&bench));
    }
    Ok(())
}

/// Whether the benchmark compares with other servers: it tells its keys.
fn compares(bench: &std::process::Command) -> Result<bool> {
    let mut keys = std::process::Command::new(bench.get_program());
    keys.args(bench.get_args()).arg("--keys");
    Ok(process::stdout(&mut keys)?.lines().any(|key| key.starts_with("serve_put_") || key.starts_with("serve_get_")))
}

/// The path of a program that Cargo's messages name.
fn program(messages: &[u8], name: &str) -> Result<PathBuf> {
    let messages = messages.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let path = messages.filter(|m| m.pointer("/target/name").and_then(Value::as_str) == Some(name)).find_map(|m| {
        let path = m.get("executable")?.as_str()?;
        Some(Path::new(path).to_owned())
    });
    path.with_context(|| format!("cargo names no program '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_name() {
        let messages = br#"{"reason":"compiler-artifact","target":{"name":"ernic"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"ernic-figures"},"executable":"/t/release/ernic-figures"}
{"reason":"compiler-artifact","target":{"name":"ernic"},"executable":"/t/release/ernic"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(program(messages, "ernic").unwrap(), Path::new("/t/release/ernic"));
        assert_eq!(program(messages, "ernic-figures").unwrap(), Path::new("/t/release/ernic-figures"));
        assert_eq!(program(messages, "other").unwrap_err().to_string(), "cargo names no program 'other'");
    }
}
