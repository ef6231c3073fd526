//! The lane `vm-boto3`: Amazon's own client for Python, as it is, in the guest.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::vms::{Rig, Setup};
use super::{Bench, Skip};
use crate::guest::payload;
use crate::server::ENDPOINT;

/// The oldest boto3 that sends and wants checksums by default.
const OLDEST: [u32; 2] = [1, 36];

/// boto3 ≥ 1.36 with its default settings: put, get, head, list, multipart, ranges, presigned URLs, delete.
pub fn case_20_boto3(bench: &Bench<'_>) -> Result<()> {
    if bench.args().guest.initrd.is_some() {
        bail!(Skip("boto3 comes with Debian's packages, and --initrd does without them".to_owned()));
    }
    // The image first: it looks the packages up where they are not.
    bench.image()?;
    let archive = payload::boto3(&bench.args().guest).map_err(|error| Skip(format!("{error:#}")))?;
    let mut rig = Rig::start_with(bench, "vm-boto3", Setup { payloads: vec![archive], ..Setup::default() })?;
    let line = format!("python3 /root/case_20.py {ENDPOINT} ernic");
    let said = rig.ok_for(&line, Duration::from_secs(600))?;
    let version = said.lines().next().and_then(|l| l.strip_prefix("boto3 ")).context("the script names no version")?;
    let numbers: Vec<u32> = version.split(['.', ' ']).take(2).filter_map(|n| n.parse().ok()).collect();
    ensure!(numbers >= OLDEST.to_vec(), "boto3 {version} is older than {OLDEST:?}");
    let passed = said.lines().filter(|l| l.starts_with("case_20_") && l.ends_with(" ok")).count();
    ensure!(said.trim_end().ends_with(&format!("{passed} checks passed")) && passed >= 10, "{said}");
    rig.stop()
}
