//! Archives that a lane adds to the guest's initramfs: the kernel unpacks one after the other.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{GuestArgs, add_programs, digest, list, recipe, write_archive};
use crate::apt::{Apt, Deb};
use crate::cache::Cache;
use crate::cpio::{Archive, Node};
use crate::progress::{Step, megabytes, tree_bytes, watching};
use crate::tree::Tree;
use crate::{formats, process, vm};

/// The payload's script, which the guest runs as `python3 /root/case_20.py`.
const CASE_20: &str = include_str!("case_20.py");

/// An archive with Python and boto3, from Debian packages: made once for each version of them.
///
/// # Errors
/// When the packages cannot be fetched or the archive cannot be made, and there is none of an earlier day.
pub fn boto3(args: &GuestArgs) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let apt = Apt::open(cache.path("apt"), args.mirror.as_deref(), &recipe::SUITES, recipe::PINS)?;
    let attempt = || -> Result<PathBuf> {
        let debs = apt.resolve(&recipe::BOTO3_PACKAGES, true)?;
        let name = format!("boto3-{}", digest(&format!("{}{CASE_20}{}", list(&debs), recipe::BOTO3_VERSION)));
        let folder = cache.folder(&format!("payloads/{name}"), |partial| make_boto3(&apt, &debs, partial))?;
        cache.prune("payloads", &[name]);
        Ok(folder)
    };
    Ok(apt.newest(&cache, "boto3", ("payloads", ARCHIVE), attempt)?.join(ARCHIVE))
}

/// An archive with the client. It loads libibverbs by itself.
///
/// # Errors
/// Those of [`built`].
pub fn client(program: &Path) -> Result<PathBuf> {
    built(&[program], "client")
}

/// An archive with programs that were built on this machine, for the guest's `/usr/bin`, in the log folder `name`. The image
/// has the libraries that they need, Debian's.
///
/// # Errors
/// When a program needs another library, or the archive cannot be written.
pub fn built(programs: &[&Path], name: &str) -> Result<PathBuf> {
    let mut archive = Archive::default();
    for program in programs {
        let data = fs::read(program).with_context(|| program.display().to_string())?;
        for library in formats::needed(&data).with_context(|| program.display().to_string())? {
            // The C library's own parts, and the compiler's.
            let here = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"].contains(&library.as_str());
            ensure!(here, "{}: the guest has no {library}", program.display());
        }
        let file = program.file_name().context("a program without a name")?.to_string_lossy();
        archive.add(&format!("usr/bin/{file}"), Node::File(0o755, data));
    }
    let path = vm::log_folder(name)?.join(ARCHIVE);
    write_archive(&archive, &path)?;
    Ok(path)
}

/// An archive with programs of `tree` and the libraries that they need, in the log folder `name`.
///
/// # Errors
/// When the tree lacks one, or the archive cannot be written.
pub fn programs(tree: &Tree, programs: &[&str], name: &str) -> Result<PathBuf> {
    let mut archive = Archive::default();
    add_programs(&mut archive, tree, programs.iter().map(|p| (*p).to_owned()).collect())?;
    let path = vm::log_folder(name)?.join(ARCHIVE);
    write_archive(&archive, &path)?;
    Ok(path)
}

const ARCHIVE: &str = "payload.cpio";

fn make_boto3(apt: &Apt, debs: &[Deb], partial: &Path) -> Result<()> {
    let into = partial.join("debs");
    let step = Step::begin("boto3: download");
    let total = debs.iter().map(|d| d.size).sum();
    watching("boto3: download", &into, total, || apt.fetch(&recipe::BOTO3_PACKAGES, true, &into))?;
    step.done(&format!("{} in {} packages", megabytes(tree_bytes(&into)), debs.len()));
    let step = Step::begin("boto3: archive");
    let root = partial.join("tree");
    let tree = Tree::unpack(&into, &root)?;
    fs::remove_dir_all(&into)?;
    let python = interpreter(&tree)?;
    let folders = [format!("usr/lib/{python}"), "usr/lib/python3/dist-packages".to_owned()];
    for folder in &folders {
        leave_out(&tree.path(folder), &["s3"])?;
    }
    compile(&tree, &python, &folders)?;

    let mut archive = Archive::default();
    let mut programs = vec![format!("/usr/bin/{python}")];
    for folder in &folders {
        collect(&tree, folder, &mut archive, &mut programs)?;
    }
    archive.add("usr/bin/python3", Node::Link(python));
    // boto3 loads requests, which loads this even for plain HTTP. The package's maintainer script makes it, in this way.
    let mut certificates = Vec::new();
    for entry in fs::read_dir(tree.path("usr/share/ca-certificates/mozilla")).context("no certificates")?.flatten() {
        certificates.extend(fs::read(entry.path())?);
    }
    archive.add("etc/ssl/certs/ca-certificates.crt", Node::File(0o644, certificates));
    archive.add("root/case_20.py", Node::File(0o644, CASE_20.as_bytes().to_vec()));
    add_programs(&mut archive, &tree, programs)?;
    write_archive(&archive, &partial.join(ARCHIVE))?;
    fs::remove_dir_all(root)?;
    step.done(&megabytes(fs::metadata(partial.join(ARCHIVE))?.len()));
    Ok(())
}

/// The interpreter's file name: `python3.13`.
///
/// # Errors
/// When there is none.
pub fn interpreter(tree: &Tree) -> Result<String> {
    let names = fs::read_dir(tree.path("usr/bin"))?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let minor = |n: &String| n.strip_prefix("python3.").is_some_and(|m| m.chars().all(|c| c.is_ascii_digit()));
    names.into_iter().find(minor).context("the packages have no python3.N")
}

/// Removes what the lanes have no use for, most of it botocore's tables of some four hundred services, but for `services`.
///
/// # Errors
/// Those of the file system.
pub fn leave_out(folder: &Path, services: &[&str]) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let service = folder.ends_with("dist-packages/botocore/data") && entry.file_type()?.is_dir();
        if service && !services.contains(&name.as_str()) || recipe::PYTHON_LEFT_OUT.contains(&name.as_str()) {
            if entry.file_type()?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        } else if entry.file_type()?.is_dir() {
            leave_out(&path, services)?;
        }
    }
    Ok(())
}

/// Compiles the Python files, which the guest would do on every boot and ten times slower. The compiled files do not say
/// when their source was changed: in the archive, everything has time stamp 0.
///
/// # Errors
/// When Python cannot be run or finds a file that it cannot compile.
pub fn compile(tree: &Tree, python: &str, folders: &[String]) -> Result<()> {
    let mut command = tree.command(&format!("usr/bin/{python}"), python);
    command.env("PYTHONHOME", tree.path("usr")).args([
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "unchecked-hash",
    ]);
    // Tracebacks name files by these.
    command.arg("-s").arg(tree.path("")).arg("-p").arg("/");
    command.args(folders.iter().map(|f| tree.path(f)));
    process::output(&mut command)?;
    Ok(())
}

/// Adds the files below `folder`; extension modules go to `programs`, since they need libraries.
fn collect(tree: &Tree, folder: &str, archive: &mut Archive, programs: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(tree.path(folder))?.flatten() {
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(tree, &name, archive, programs)?;
        } else if name.ends_with(".so") {
            programs.push(format!("/{name}"));
        } else if kind.is_file() {
            archive.add_file(&name, &entry.path(), 0o644)?;
        }
    }
    Ok(())
}
