//! The real server process.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// A running `ernic`, ended when dropped.
pub struct Server {
    child: Child,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts `binary` with `backend` on a socket of its own and waits until it listens.
    pub fn start(binary: &Path, backend: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let log = File::create(dir.path().join("log"))?;
        let child = Command::new(binary)
            .arg("--socket")
            .arg(dir.path().join("s"))
            .args(["--backend", backend, "--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start '{}'", binary.display()))?;
        let mut server = Self { child, dir };
        let start = Instant::now();
        while !server.socket().exists() {
            if server.child.try_wait()?.is_some() || start.elapsed() > Duration::from_secs(20) {
                bail!("the server did not start: {}", fs::read_to_string(server.dir.path().join("log"))?);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Its vfio-user socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// See [`rss_kib`].
    pub fn rss_kib(&self) -> anyhow::Result<u64> {
        rss_kib(self.child.id())
    }

    /// Processor time used so far, from the scheduler's own count in nanoseconds.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut total = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = fs::read_to_string(task?.path().join("schedstat"))?;
            total += stat.split_whitespace().next().context("no schedstat")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(total))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process, KiB, without shared mappings such as those of guest memory.
pub fn rss_kib(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let file = status.lines().find_map(|l| l.strip_prefix("RssFile:")).context("no RssFile")?;
    let kib = |text: &str| text.trim().trim_end_matches(" kB").parse::<u64>();
    Ok(kib(line)? + kib(file)?)
}
