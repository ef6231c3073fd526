//! Debian packages unpacked into a folder, and their programs run from there: no chroot, no root, nothing installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// Where amd64 Debian keeps shared libraries.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A folder with unpacked packages.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// A tree that is there already.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Unpacks every `.deb` in `debs` below `root`, without maintainer scripts.
    ///
    /// # Errors
    /// When a package cannot be unpacked.
    pub fn unpack(debs: &Path, root: &Path) -> Result<Self> {
        // Debian's merged /usr: some packages still have files under /lib.
        for dir in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(dir))?;
            std::os::unix::fs::symlink(format!("usr/{dir}"), root.join(dir))?;
        }
        let mut files: Vec<PathBuf> = fs::read_dir(debs)?.flatten().map(|e| e.path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "deb"));
        files.sort();
        for file in &files {
            process::output(Command::new("dpkg-deb").arg("-x").arg(file).arg(root))
                .with_context(|| format!("cannot unpack {}", file.display()))?;
        }
        Ok(Self::at(root))
    }

    /// The path of `name` on the host.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name.trim_start_matches('/'))
    }

    /// A command that runs the tree's `program` with the tree's own dynamic loader and libraries, under the name `argv0`.
    pub fn command(&self, program: &str, argv0: &str) -> Command {
        let libraries = self.path(LIBRARIES);
        let mut path = libraries.clone().into_os_string();
        // libpulsecommon lives in a folder of its own; QEMU links to it.
        path.push(":");
        path.push(libraries.join("pulseaudio"));
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(path).arg("--argv0").arg(argv0).arg(self.path(program));
        command
    }

    /// The tree's path of library `file_name`, with a leading slash.
    ///
    /// # Errors
    /// When no folder has it.
    pub fn library(&self, file_name: &str) -> Result<String> {
        for dir in [LIBRARIES, "usr/lib/x86_64-linux-gnu/libibverbs", "usr/lib64"] {
            if self.root.join(dir).join(file_name).exists() {
                return Ok(format!("/{dir}/{file_name}"));
            }
        }
        bail!("no package has the library {file_name}")
    }
}
