//! The device's two drivers out of Debian's kernel source: their headers say what the structures on the wire are, and the
//! guest's RDMA driver is built of them, since Debian's kernels come without it. And soft-RoCE, for the same reason.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, Deb};
use crate::cache::Cache;
use crate::guest::digest;
use crate::process;
use crate::progress::{Step, megabytes, watching};

/// The Ethernet driver's folder in the kernel source.
pub const ETHERNET: &str = "drivers/net/ethernet/pensando/ionic";
/// The RDMA driver's.
pub const RDMA: &str = "drivers/infiniband/hw/ionic";
/// Soft-RoCE's.
pub const RXE: &str = "drivers/infiniband/sw/rxe";
/// What is taken.
const FOLDERS: [&str; 3] = [ETHERNET, RDMA, RXE];

/// Unpacks the drivers' folders from the tar archive `source`, in which every name starts with a folder of its own. Reading
/// stops behind the last of them: the rest of the kernel takes half the time.
fn unpack(source: impl Read, into: &Path) -> Result<()> {
    let mut found = [false; FOLDERS.len()];
    let mut archive = tar::Archive::new(source);
    for entry in archive.entries()? {
        let mut entry = entry.context("the kernel source is not an xz-compressed tar archive")?;
        let path = entry.path()?.into_owned();
        let name: PathBuf = path.components().skip(1).collect();
        match FOLDERS.iter().position(|folder| name.starts_with(folder)) {
            Some(driver) => {
                found[driver] = true;
                let target = into.join(&name);
                if entry.header().entry_type().is_dir() {
                    std::fs::create_dir_all(&target)?;
                } else {
                    std::fs::create_dir_all(target.parent().unwrap_or(into))?;
                    entry.unpack(&target)?;
                }
            }
            // A folder's files follow each other in the archive.
            None if found.iter().all(|f| *f) => return Ok(()),
            None => {}
        }
    }
    if let Some(missing) = FOLDERS.iter().zip(found).find_map(|(folder, found)| (!found).then_some(folder)) {
        bail!("the kernel source has no {missing}");
    }
    Ok(())
}

/// The drivers of the package `package`, whose file `deb` is: a folder in which they have their paths in the kernel
/// source. Kept in the cache; the package is not.
///
/// # Errors
/// When the package cannot be fetched, or does not have them.
pub fn drivers(cache: &Cache, apt: &Apt, package: &str, deb: &Deb) -> Result<PathBuf> {
    // Another choice of folders is another name.
    let name = format!("source/{}-{}", deb.file.trim_end_matches(".deb"), digest(&FOLDERS.concat()));
    cache.folder(&name, |partial| {
        let step = Step::begin(format!("{package} {}", deb.name_version().1));
        let fetched = tempfile::tempdir_in(cache.path(""))?;
        watching("downloading the kernel source", fetched.path(), deb.size, || {
            apt.fetch(&[package], false, fetched.path())
        })?;
        let mut command = Command::new("dpkg-deb");
        command.arg("--fsys-tarfile").arg(fetched.path().join(&deb.file));
        // dpkg-deb complains of the pipe that is closed when enough was read.
        let mut child = process::end_with_parent(&mut command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut package_tar = tar::Archive::new(child.stdout.take().context("no pipe to dpkg-deb")?);
        let inner = format!("{package}.tar.xz");
        let mut unpacked = Err(anyhow::anyhow!("{} has no {inner}", deb.file));
        for entry in package_tar.entries()? {
            let entry = entry?;
            if entry.path()?.ends_with(&inner) {
                let xz = lzma_rust2::XzReader::new(BufReader::with_capacity(1 << 20, entry), true);
                unpacked = unpack(BufReader::with_capacity(1 << 20, xz), partial);
                break;
            }
        }
        drop(package_tar);
        child.wait()?;
        unpacked?;
        step.done(&megabytes(deb.size));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[&str]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for name in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(name.len()).unwrap());
            header.set_mode(0o644);
            builder.append_data(&mut header, format!("linux-source-9.9/{name}"), name.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn all_drivers_are_taken_and_nothing_else() {
        let (a, b, c) = (format!("{RDMA}/a.c"), format!("{ETHERNET}/sub/b.h"), format!("{RXE}/c.c"));
        let bytes = archive(&["Makefile", &a, &c, "drivers/net/c.c", &b, "drivers/net/d.c"]);
        let dir = tempfile::tempdir().unwrap();
        unpack(&bytes[..], dir.path()).unwrap();
        for name in [a, b, c] {
            assert_eq!(std::fs::read_to_string(dir.path().join(&name)).unwrap(), name);
        }
        assert!(!dir.path().join("Makefile").exists() && !dir.path().join("drivers/net/c.c").exists());
    }

    #[test]
    fn reading_stops_behind_the_last_driver() {
        let names = [RDMA, RXE, ETHERNET].map(|folder| format!("{folder}/a.c"));
        let mut bytes = archive(&[&names[0], &names[1], &names[2], "drivers/net/d.c"]);
        // Rubbish where the next header would be.
        let end = bytes.len() - 1024;
        bytes[end..].fill(0xff);
        let dir = tempfile::tempdir().unwrap();
        unpack(&bytes[..], dir.path()).unwrap();
    }

    #[test]
    fn a_source_without_one_of_them_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            unpack(&archive(&[&format!("{RDMA}/a.c"), &format!("{ETHERNET}/b.h")])[..], dir.path()).unwrap_err();
        assert_eq!(error.to_string(), format!("the kernel source has no {RXE}"));
    }
}
