//! The real server as a child process.
#![allow(dead_code)] // each test binary uses a part of it

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Bounds a hang; nothing is expected to take as long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder of its own for sockets and files.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        // Servers of other users must get in.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("permissions");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where [`Scratch::command`] has its socket.
    pub fn socket(&self) -> PathBuf {
        self.path().join("ernic.sock")
    }

    /// The server with its socket by default in this folder, and with nothing of the tester's own environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ernic"));
        command
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.path())
            .env_remove("ERNIC_LOG_LEVEL")
            .env_remove("ERNIC_ACCESS_KEY")
            .env_remove("ERNIC_SECRET_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// A running server. Dropping it kills it.
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Server {
    pub fn start(scratch: &Scratch, arguments: &[&str]) -> Self {
        Self::spawn(scratch.command(arguments))
    }

    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the server starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let (send, lines) = channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines, log: Vec::new() }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The first line of the log that contains `text`, earlier ones included.
    pub fn line(&mut self, text: &str) -> String {
        if let Some(line) = self.log.iter().find(|line| line.contains(text)) {
            return line.clone();
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.log.push(line);
                    let line = self.log.last().expect("just pushed");
                    if line.contains(text) {
                        return line.clone();
                    }
                }
                Err(error) => panic!("no line with {text:?} ({error}); the log is {:#?}", self.log),
            }
        }
    }

    /// Waits until QEMU could attach.
    pub fn ready(&mut self) {
        self.line("attach QEMU");
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM)
    }

    /// Sends the signal and waits for the end.
    pub fn signal(&mut self, signal: Signal) -> ExitStatus {
        kill_process(self.pid(), signal).expect("the server runs");
        wait(&mut self.child)
    }

    /// Waits for an end that was asked for.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Every line of a server that has ended.
    pub fn whole_log(&mut self) -> &[String] {
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.log.push(line),
                Err(RecvTimeoutError::Disconnected) => return &self.log,
                Err(RecvTimeoutError::Timeout) => panic!("the log does not end"),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a child's end, for at most [`TIMEOUT`].
pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the server does not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a server that is to refuse: its exit code and the one line that it says.
pub fn one_error(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("the server starts");
    let status = wait(&mut child);
    let output = child.wait_with_output().expect("its output");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(text.matches('\n').count(), 1, "one line: {text:?}");
    assert!(text.starts_with("Error: ") && text.ends_with('\n'), "{text:?}");
    (status.code(), text.trim_end().to_owned())
}
