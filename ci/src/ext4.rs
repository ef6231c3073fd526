//! File systems for the disks of guests, by Debian's e2fsprogs, run from the cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::apt::Apt;
use crate::cache::Cache;
use crate::guest::{self, recipe};
use crate::process;
use crate::progress::{Step, megabytes, tree_bytes};
use crate::tree::Tree;

/// The package with the programs.
const PACKAGE: &str = "e2fsprogs";

/// The programs that make and check file systems.
#[derive(Debug)]
pub struct Ext4(Tree);

impl Ext4 {
    /// Finds or fetches them.
    ///
    /// # Errors
    /// When the package cannot be had and none of an earlier day is kept.
    pub fn acquire(mirror: Option<&str>) -> Result<Self> {
        let cache = Cache::open()?;
        let apt = Apt::open(cache.path("apt"), mirror, &recipe::SUITES, recipe::PINS)?;
        let attempt = || -> Result<PathBuf> {
            let debs = apt.resolve(&[PACKAGE], true)?;
            let name = format!("{PACKAGE}-{}", guest::digest(&guest::list(&debs)));
            let folder = cache.folder(&format!("ext4/{name}"), |partial| {
                let step = Step::begin("e2fsprogs");
                let into = partial.join("debs");
                apt.fetch(&[PACKAGE], true, &into)?;
                Tree::unpack(&into, &partial.join("tree"))?;
                fs::remove_dir_all(&into)?;
                step.done(&megabytes(tree_bytes(partial)));
                Ok(())
            })?;
            cache.prune("ext4", &[name]);
            Ok(folder)
        };
        let folder = apt.newest(&cache, PACKAGE, ("ext4", "tree/usr/sbin/mke2fs"), attempt)?;
        Ok(Self(Tree::at(folder.join("tree"))))
    }

    /// Makes a file of `bytes` bytes with an empty file system with a journal.
    ///
    /// # Errors
    /// When there is no room.
    pub fn make(&self, file: &Path, bytes: u64) -> Result<()> {
        File::create(file)?.set_len(bytes)?;
        let mut command = self.0.command("usr/sbin/mke2fs", "mke2fs");
        // The package's own settings; and nothing is left to be done in the background of the guest.
        command.env("MKE2FS_CONFIG", self.0.path("etc/mke2fs.conf"));
        command.args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(file);
        process::output(&mut command)?;
        Ok(())
    }

    /// Checks a file system that is not in use, without changing it.
    ///
    /// # Errors
    /// When something is wrong with it; the error says what.
    pub fn check(&self, file: &Path) -> Result<()> {
        process::output(self.0.command("usr/sbin/e2fsck", "e2fsck").arg("-fn").arg(file))?;
        Ok(())
    }
}
