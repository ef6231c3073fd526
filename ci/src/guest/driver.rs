//! The guest's RDMA drivers. Debian's kernels come without `ionic_rdma`, and the flavour for virtual machines without
//! soft-RoCE, so both are built from their own source, unpatched, with the compiler and headers that they were built with: in
//! an unpacked tree of Debian packages, where the build sees nothing of the host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde::{Deserialize, Serialize};

use super::{digest, list, recipe};
use crate::apt::{Apt, Deb};
use crate::cache::{self, Cache};
use crate::progress::{Step, megabytes, tree_bytes, watching};
use crate::tree::Tree;
use crate::{process, say, source};

/// The device's module.
pub const MODULE: &str = "ionic_rdma";
/// Soft-RoCE's.
pub const SOFT: &str = "rdma_rxe";

/// A module to build: its name, its folder in the kernel's source, and the option that its Makefile asks for.
struct Module {
    name: &'static str,
    folder: &'static str,
    option: &'static str,
}

/// What is built, the device's own first.
const MODULES: [Module; 2] = [
    Module { name: MODULE, folder: source::RDMA, option: "CONFIG_INFINIBAND_IONIC" },
    Module { name: SOFT, folder: source::RXE, option: "CONFIG_RDMA_RXE" },
];

/// The packages that the driver is built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packages {
    /// The name of the kernel source package.
    source_name: String,
    source: Deb,
    build: Vec<Deb>,
}

/// `linux-source-7.3` has the source of kernel `7.3.4+deb13-cloud-amd64`.
fn source_name(kernel_version: &str) -> String {
    let series: Vec<&str> = kernel_version.splitn(3, '.').take(2).collect();
    format!("linux-source-{}", series.join("."))
}

fn build_names(kernel_version: &str) -> Vec<String> {
    let mut names: Vec<String> = recipe::BUILD_PACKAGES.iter().map(|p| (*p).to_owned()).collect();
    names.push(format!("linux-headers-{kernel_version}"));
    names
}

impl Packages {
    /// Looks them up for a kernel.
    ///
    /// # Errors
    /// When one of them is not there.
    pub fn resolve(apt: &Apt, kernel_version: &str) -> Result<Self> {
        let source_name = source_name(kernel_version);
        let source = apt.resolve(&[&source_name], false)?.pop().context("apt names no file for it")?;
        let names = build_names(kernel_version);
        let build = apt.resolve(&names.iter().map(String::as_str).collect::<Vec<_>>(), true)?;
        Ok(Self { source_name, source, build })
    }

    /// The version of the source.
    pub fn source_version(&self) -> String {
        self.source.name_version().1
    }

    /// Names what is made of them.
    pub fn id(&self, kernel_version: &str) -> String {
        let facts = format!("{} {}{}", self.source.file, list(&self.build), recipe::DRIVER_VERSION);
        format!("driver-{kernel_version}-{}", digest(&facts))
    }
}

/// How a program is run with a folder as its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jail {
    /// In a user and a mount namespace of its own.
    Namespace,
    /// As root, who needs no namespace for it.
    Root,
}

/// The options of unshare(1) that make the caller root over nothing but its own mounts.
const UNSHARE: [&str; 3] = ["--user", "--map-root-user", "--mount"];

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    // A user's PATH may lack the folders of mount and chroot.
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(UNSHARE).env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"));
    command
}

impl Jail {
    /// What this machine allows.
    ///
    /// # Errors
    /// When it allows neither; the error says why, and how to go on.
    pub fn find() -> Result<Self> {
        // A mount of its own is what some machines allow in no user namespace, though they allow the namespace.
        match process::output(unshare().args(["mount", "--bind", "/dev/null", "/dev/null"])) {
            Ok(_) => Ok(Self::Namespace),
            Err(_) if rustix::process::geteuid().is_root() => Ok(Self::Root),
            Err(error) => bail!(
                "user namespaces are off on this machine ({}). How to go on: run `cargo xtask guest` once as root with ERNIC_CACHE={}; or \
                 allow them (the sysctls are user.max_user_namespaces, kernel.unprivileged_userns_clone and \
                 kernel.apparmor_restrict_unprivileged_userns); or bring --kernel PATH --initrd PATH made by `cargo xtask guest` on \
                 another machine",
                error.to_string().lines().last().unwrap_or_default(),
                cache::dir()?.display()
            ),
        }
    }

    /// A command that runs `program` inside `tree`, with the host's `/dev/null` and `/proc` and nothing else of it.
    ///
    /// # Errors
    /// When they cannot be made.
    fn command(self, tree: &Tree, program: &str) -> Result<Command> {
        let null = tree.path("dev/null");
        for folder in ["dev", "proc"] {
            fs::create_dir_all(tree.path(folder))?;
        }
        let mut command = match self {
            Self::Namespace => {
                if !null.exists() {
                    File::create(&null)?;
                }
                let script =
                    "mount --bind /dev/null \"$1/dev/null\" && mount --rbind /proc \"$1/proc\" && exec chroot \"$@\"";
                let mut command = unshare();
                command.args(["sh", "-c", script, "sh"]);
                command
            }
            Self::Root => {
                if !null.exists() {
                    mknodat(CWD, &null, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3))
                        .and_then(|()| rustix::fs::chmod(&null, Mode::from_raw_mode(0o666)))
                        .context("cannot make /dev/null in the build tree")?;
                }
                // On a file system mounted with `nodev` it is there and cannot be used.
                File::options().write(true).open(&null).with_context(|| {
                    format!("devices do not work below {}; set ERNIC_CACHE to another folder", null.display())
                })?;
                // Mounting may be forbidden even to root. All that is read of /proc is where a stack is: objtool looks at
                // its own to tell an overflow from another error.
                fs::create_dir_all(tree.path("proc/self"))?;
                fs::write(tree.path("proc/self/maps"), fs::read("/proc/self/maps")?)?;
                Command::new("chroot")
            }
        };
        command.arg(tree.path("")).arg(program);
        Ok(command)
    }
}

/// Copies the files of folder `from` into the new folder `to`.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Builds (or finds) the modules for kernel `version`; returns the folder of their files, without debugging information. It
/// has the device's; a [`SOFT`] that does not compile is said and left out.
///
/// # Errors
/// When a package cannot be fetched, or the source does not compile; the error has the end of the compiler's output. That
/// of `jail` when it is needed.
pub fn build(cache: &Cache, apt: &Apt, packages: &Packages, version: &str, jail: &Result<Jail>) -> Result<PathBuf> {
    cache.folder(&format!("parts/{}", packages.id(version)), |partial| {
        let jail = *jail.as_ref().map_err(|why| anyhow!("{why:#}"))?;
        let drivers = source::drivers(cache, apt, &packages.source_name, &packages.source)?;
        let names = build_names(version);
        let debs = partial.join("debs");
        let step = Step::begin("compiler and kernel headers: download");
        let total = packages.build.iter().map(|d| d.size).sum();
        watching("compiler and kernel headers: download", &debs, total, || {
            apt.fetch(&names.iter().map(String::as_str).collect::<Vec<_>>(), true, &debs)
        })?;
        step.done(&format!("{} in {} packages", megabytes(tree_bytes(&debs)), packages.build.len()));
        let step = Step::begin("compiler and kernel headers: unpack");
        let root = partial.join("tree");
        let tree = Tree::unpack(&debs, &root)?;
        fs::remove_dir_all(&debs)?;
        step.done(&megabytes(tree_bytes(&root)));

        // What a maintainer script would have linked.
        for (name, target) in recipe::BUILD_LINKS {
            let link = tree.path(name);
            if fs::symlink_metadata(&link).is_err() {
                std::os::unix::fs::symlink(target, link)?;
            }
        }
        copy_folder(&drivers, &tree.path("build"))?;
        fs::create_dir_all(tree.path("tmp"))?;
        for module in &MODULES {
            let step = Step::begin(module.name);
            match compile(&tree, module, version, jail, partial)
                .with_context(|| format!("{} of {} does not compile for {version}", module.name, packages.source.file))
            {
                Ok(made) => {
                    step.done(&format!("{} of {}", megabytes(fs::metadata(&made)?.len()), packages.source.file));
                }
                Err(error) if module.name == SOFT => {
                    drop(step);
                    say!("the guest goes without {SOFT}: {error:#}");
                }
                Err(error) => return Err(error),
            }
        }
        fs::remove_dir_all(&root)?;
        Ok(())
    })
}

/// Compiles a module in `tree` and moves it, without debugging information, to the folder `into`.
fn compile(tree: &Tree, module: &Module, version: &str, jail: Jail, into: &Path) -> Result<PathBuf> {
    let environment = |command: &mut Command| {
        command.env_clear().envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/tmp"), ("LC_ALL", "C")]);
    };
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut make = jail.command(tree, "make")?;
    environment(&mut make);
    // The driver's own Makefile, outside the kernel's tree: ionic_rdma finds the Ethernet driver's headers by KCFLAGS.
    make.args(["-s", "-C", &format!("/usr/lib/modules/{version}/build"), &format!("M=/build/{}", module.folder)])
        .args([&format!("{}=m", module.option), &format!("KCFLAGS=-I/build/{}", source::ETHERNET)])
        .args([&format!("-j{jobs}"), "modules"]);
    process::output(&mut make)?;
    let built = format!("/build/{}/{}.ko", module.folder, module.name);
    let mut strip = jail.command(tree, "strip")?;
    environment(&mut strip);
    process::output(strip.args(["--strip-debug", &built]))?;
    let made = into.join(format!("{}.ko", module.name));
    fs::rename(tree.path(&built), &made)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_package_is_that_of_the_kernels_series() {
        assert_eq!(source_name("7.3.4+deb13-cloud-amd64"), "linux-source-7.3");
        assert_eq!(source_name("7.10.12+deb13-cloud-amd64"), "linux-source-7.10");
        assert_eq!(build_names("7.3.4+deb13-cloud-amd64").pop().unwrap(), "linux-headers-7.3.4+deb13-cloud-amd64");
    }

    #[test]
    fn another_compiler_makes_another_module() {
        let deb = |file: &str| Deb { file: file.to_owned(), size: 1 };
        let packages = |gcc: &str| Packages {
            source_name: "linux-source-7.3".into(),
            source: deb("linux-source-7.3_7.3.4-1_all.deb"),
            build: vec![deb(gcc)],
        };
        let (a, b) = (packages("gcc-14_1_amd64.deb").id("7.3.4-x"), packages("gcc-14_2_amd64.deb").id("7.3.4-x"));
        assert!(a.starts_with("driver-7.3.4-x-") && a != b, "{a} {b}");
    }

    #[test]
    fn a_folder_is_copied_with_what_is_below() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/c"), "x").unwrap();
        copy_folder(&dir.path().join("a"), &dir.path().join("d")).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("d/b/c")).unwrap(), "x");
    }
}
