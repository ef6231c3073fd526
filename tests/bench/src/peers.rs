//! Servers on the loopback device: `ernic serve`, and others that do the same.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::{load, server};

/// The bucket that there is.
pub const BUCKET: &str = "bench";

/// The programs of other servers.
#[derive(Debug, Default, Clone)]
pub struct Programs {
    /// `s3s-fs`: files, served by the library that the S3 layer of this project is made with.
    pub s3s_fs: Option<PathBuf>,
    /// `rclone`, whose `serve s3` keeps objects in memory.
    pub rclone: Option<PathBuf>,
}

/// A server that others are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// See [`Programs::s3s_fs`].
    S3sFs,
    /// See [`Programs::rclone`].
    Rclone,
}

impl Peer {
    /// How it is called in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::S3sFs => "s3s-fs",
            Self::Rclone => "rclone",
        }
    }

    /// Starts it with [`BUCKET`], which is in memory.
    pub fn start(self, program: &Path) -> anyhow::Result<Tcp> {
        match self {
            // Files in memory: what a disk does is not the server's doing.
            Self::S3sFs => Tcp::start(memory_dir()?, |dir, address| {
                fs::create_dir(dir.join(BUCKET))?;
                let mut command = Command::new(program);
                command.args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()]);
                command.arg(dir).env("RUST_LOG", "error");
                Ok(command)
            }),
            Self::Rclone => {
                let server = Tcp::start(tempfile::tempdir()?, |dir, address| {
                    let mut command = Command::new(program);
                    command.args(["serve", "s3", "--addr", &address.to_string(), "--log-level", "ERROR", ":memory:"]);
                    command.env("RCLONE_CONFIG", dir.join("none")).env("XDG_CACHE_HOME", dir);
                    Ok(command)
                })?;
                let head = load::head("PUT", &format!("/{BUCKET}"), Some(0));
                let job = load::Job { head: &head, body: &[], answer: None };
                load::run(server.address, 1, [job], &mut |_, _| ()).context("making a bucket")?;
                Ok(server)
            }
        }
    }
}

/// A folder whose files are in memory.
fn memory_dir() -> anyhow::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").context("no folder in memory at /dev/shm")
}

/// Starts `ernic serve` with these options of its backend besides the bucket.
pub fn ernic(program: &Path, options: &str) -> anyhow::Result<Tcp> {
    Tcp::start(tempfile::tempdir()?, |_, address| {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", &address.to_string(), "--log-level", "warn"]);
        command.args(["--backend", &format!("s3:bucket={BUCKET},{options}")]);
        Ok(command)
    })
}

/// A server process that listens on the loopback device, ended when dropped.
#[derive(Debug)]
pub struct Tcp {
    child: Child,
    /// Goes with it.
    _dir: tempfile::TempDir,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Tcp {
    /// Starts what `command` makes of a folder and an address, and waits until it listens there.
    fn start(
        dir: tempfile::TempDir,
        command: impl FnOnce(&Path, SocketAddr) -> anyhow::Result<Command>,
    ) -> anyhow::Result<Self> {
        let log = tempfile::Builder::new().prefix("bench-").tempfile()?;
        // Free now, and the kernel does not give the same port away again soon.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = command(dir.path(), address)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(File::options().append(true).open(log.path())?)
            .stderr(File::options().append(true).open(log.path())?)
            .spawn()
            .with_context(|| format!("cannot start '{}'", command.get_program().display()))?;
        let mut server = Self { child, _dir: dir, address };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if server.child.try_wait()?.is_some() || start.elapsed() > Duration::from_secs(60) {
                let said = fs::read_to_string(log.path())?;
                bail!("'{}' did not start: {said}", command.get_program().display());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// See [`server::rss_kib`].
    pub fn rss_kib(&self) -> anyhow::Result<u64> {
        server::rss_kib(self.child.id())
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
