//! The `ernic` server as a child process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use tempfile::TempDir;

use crate::native::Native;
use crate::{process, say, vm};

/// Address, port and bucket of the S3 endpoint with default options.
pub const ENDPOINT: &str = "http://192.168.200.1:9000";
/// The endpoint's address.
pub const ADDRESS: &str = "192.168.200.1";
/// The endpoint's bucket, with its URL.
pub const BUCKET: &str = "http://192.168.200.1:9000/ernic";

/// Which server to run.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// Build server and client with this Cargo profile [default: quick, which is release without LTO]
    #[arg(long, value_name = "NAME", conflicts_with = "server")]
    pub profile: Option<String>,
    /// Run this server instead of building one
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,
}

impl ServerArgs {
    /// The path of the server's program, built if need be with the profile asked for or else `profile`.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn program(&self, profile: &str) -> Result<PathBuf> {
        if let Some(server) = &self.server {
            if !server.is_file() {
                bail!("{}: no such file (--server)", server.display());
            }
            return Ok(std::path::absolute(server)?);
        }
        build("ernic", "ernic", self.profile_or(profile), |_| {})
    }

    /// The server with the hardware backend as well, which needs more than Rust to be built. It is built where the one without it is,
    /// and replaces it there until that is built again.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn hardware(&self, profile: &str, native: &Native) -> Result<PathBuf> {
        build("ernic", "ernic", self.profile_or(profile), |command| native.apply(command.arg("--features=ernic/verbs")))
    }

    /// The path of the client `ernic-bench`, built with the same profile as the server.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn client(&self, profile: &str) -> Result<PathBuf> {
        build("ernic-client", "ernic-bench", self.profile_or(profile), |_| {})
    }

    /// The path of the load `ernic-load`, built with the same profile as the server.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn load(&self, profile: &str) -> Result<PathBuf> {
        build("ernic-load", "ernic-load", self.profile_or(profile), |_| {})
    }

    fn profile_or<'a>(&'a self, profile: &'a str) -> &'a str {
        self.profile.as_deref().unwrap_or(profile)
    }
}

/// Builds the program `name` of `package`, with what `more` adds to the command, if need be, and returns its path.
fn build(package: &str, name: &str, profile: &str, more: impl FnOnce(&mut Command)) -> Result<PathBuf> {
    let start = Instant::now();
    let mut command = crate::cargo();
    command.args(["build", "--package", package, "--bin", name, "--profile", profile]);
    command.arg("--message-format=json-render-diagnostics");
    more(&mut command);
    let output = process::end_with_parent(&mut command)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`{}`: {}", process::display(&command), output.status);
    }
    for line in output.stdout.split(|b| *b == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else { continue };
        let built = message.pointer("/target/name").and_then(Value::as_str) == Some(name);
        if let (true, Some(path)) = (built, message.get("executable").and_then(Value::as_str)) {
            say!("{name}: profile {profile}, {:.1} s", start.elapsed().as_secs_f64());
            return Ok(PathBuf::from(path));
        }
    }
    bail!("`{}` names no program", process::display(&command))
}

/// A server process and its log.
#[derive(Debug)]
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts `command`, with its log in the log folder `name`, and waits until `ready` finds in the log, or elsewhere, what
    /// it waits for.
    fn start<T>(command: &mut Command, name: &str, ready: impl Fn(&str) -> Option<T>) -> Result<(Self, T)> {
        let log = vm::log_folder(name)?.join("server.log");
        let file = File::create(&log)?;
        let child = process::end_with_parent(command)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", process::display(command)))?;
        let mut server = Self { child, log };
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(found) = ready(&server.log()) {
                return Ok((server, found));
            }
            server.check().with_context(|| format!("`{}`", process::display(command)))?;
            if Instant::now() >= end {
                let last = process::tail(&server.log(), 20);
                bail!("`{}` does not say in 30 s that it listens:\n{last}", process::display(command));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server has ended with {status}:\n{}", process::tail(&self.log(), 20));
        }
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        self.check()?;
        let obeyed = process::terminate(&mut self.child, Duration::from_secs(10))?;
        let status = self.child.wait()?;
        if !obeyed || !status.success() {
            bail!("the server did not end well on SIGTERM ({status}):\n{}", process::tail(&self.log(), 20));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = process::terminate(&mut self.child, Duration::from_secs(5));
    }
}

/// A running server with a NIC.
#[derive(Debug)]
pub struct Server {
    running: Running,
    socket: PathBuf,
    _folder: TempDir,
}

impl Server {
    /// Starts `program` with an S3 back end (`backend`, as for `--backend`) and `options`, and waits until its socket
    /// listens. Its log goes to the log folder `name`.
    ///
    /// # Errors
    /// When it ends, or does not listen within half a minute; the error has its log.
    pub fn start(program: &Path, name: &str, backend: &str, options: &[String]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ernic-").tempdir()?;
        let socket = folder.path().join("ernic.sock");
        let mut command = Command::new(program);
        command.arg("--socket").arg(&socket).arg("--backend").arg(backend).args(options);
        let (running, ()) = Running::start(&mut command, name, |_| listens(&socket).then_some(()))?;
        Ok(Self { running, socket, _folder: folder })
    }

    /// Its vfio-user socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.running.log()
    }

    /// The end of its log, for errors.
    pub fn last_words(&self) -> String {
        let log = &self.running.log;
        format!("the server's last lines:\n{}\n(logs in {})", process::tail(&self.log(), 12), log.display())
    }

    /// Whether it is still running.
    ///
    /// # Errors
    /// When it has ended; the error has its log.
    pub fn check(&mut self) -> Result<()> {
        self.running.check()
    }

    /// Ends it with SIGTERM and checks that it ended well and took its socket away.
    ///
    /// # Errors
    /// When it did not.
    pub fn stop(self) -> Result<()> {
        self.running.stop()?;
        if self.socket.exists() {
            bail!("the server left its socket {} behind", self.socket.display());
        }
        Ok(())
    }
}

/// Credentials of a [`Listener`].
pub const KEYS: (&str, &str) = ("ERNICLANEKEY", "lane/secret+with=signs");

/// A running `ernic serve` on a free port of the loopback, which asks for [`KEYS`].
#[derive(Debug)]
pub struct Listener {
    running: Running,
    /// Its URL, without a slash at the end.
    pub endpoint: String,
}

impl Listener {
    /// Starts `program` with an S3 back end (`backend`, as for `--backend`) and waits until it says where it listens. Its
    /// log goes to the log folder `name`.
    ///
    /// # Errors
    /// When it ends, or says nothing within half a minute; the error has its log.
    pub fn start(program: &Path, name: &str, backend: &str) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--backend", backend]);
        command.env("ERNIC_ACCESS_KEY", KEYS.0).env("ERNIC_SECRET_KEY", KEYS.1);
        let (running, endpoint) = Running::start(&mut command, name, listening)?;
        Ok(Self { running, endpoint })
    }

    /// Whether it is still running.
    ///
    /// # Errors
    /// When it has ended; the error has its log.
    pub fn check(&mut self) -> Result<()> {
        self.running.check()
    }

    /// Ends it with SIGTERM and checks that it ended well.
    ///
    /// # Errors
    /// When it did not.
    pub fn stop(self) -> Result<()> {
        self.running.stop()
    }
}

/// The first URL on the loopback, with a port, in whole lines of a log.
fn listening(log: &str) -> Option<String> {
    const START: &str = "http://127.0.0.1:";
    log.split_inclusive('\n').filter(|l| l.ends_with('\n')).find_map(|line| {
        let (_, rest) = line.split_once(START)?;
        let port = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        port.parse::<u16>().ok().filter(|p| *p != 0).map(|port| format!("{START}{port}"))
    })
}

/// Whether a process listens on the socket. Connecting would take the server's one client; the kernel's table tells too:
/// flag `__SO_ACCEPTCON` (Linux `include/uapi/linux/net.h`) in the fourth column.
fn listens(socket: &Path) -> bool {
    let path = socket.display().to_string();
    fs::read_to_string("/proc/net/unix").unwrap_or_default().lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.last() == Some(&path.as_str())
            && words.get(3).and_then(|f| u32::from_str_radix(f, 16).ok()).is_some_and(|f| f & 0x0001_0000 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_bound_socket_is_seen_to_listen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        assert!(!listens(&path));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(listens(&path));
        let _client = UnixStream::connect(&path).unwrap();
        drop(listener);
        assert!(!listens(&path));
    }

    #[test]
    fn the_port_is_read_from_whole_lines() {
        let log = "INFO listening on http://127.0.0.1:0/\nINFO try http://127.0.0.1:41234/ernic\n";
        assert_eq!(listening(log).as_deref(), Some("http://127.0.0.1:41234"));
        assert_eq!(listening("INFO http://127.0.0.1:412"), None);
        assert_eq!(listening("INFO http://127.0.0.1:99999/\n"), None);
    }

    #[test]
    fn a_server_that_ends_is_reported_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("ernic");
        fs::write(&program, "#!/bin/sh\necho \"Error: $4 is bad\" >&2\nexit 2\n").unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let error = Server::start(&program, "unit-server", "s3:size=bogus", &[]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("exit status: 2") && error.contains("Error: s3:size=bogus is bad"), "{error}");
    }
}
