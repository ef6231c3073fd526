//! Virtual machines: QEMU started with or without the NIC, and a handle that runs commands in the guest.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::guest::Image;
use crate::{process, say};

/// How QEMU runs the guest's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accel {
    /// The CPU's virtualisation.
    Kvm,
    /// QEMU's own translator: works everywhere, ten times slower.
    Tcg,
}

impl Accel {
    /// QEMU's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// Longest time from power-on to the agent's READY. Measured under TCG: 4.4 s on an idle machine, 14.5 s at load 6.
    fn boot_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Kvm => 60,
            Self::Tcg => 120,
        })
    }
}

/// An accelerator and why it was chosen.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The accelerator.
    pub accel: Accel,
    why: String,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.accel.name(), self.why)
    }
}

/// Longest time that the probing boot under KVM may take.
const KVM_PROBE: Duration = Duration::from_secs(10);

/// Chooses KVM if `wanted` says so, or if a guest boots with it within [`KVM_PROBE`]: on a nested host that lacks part of
/// it, `/dev/kvm` opens and the guest then dies. The verdict is kept in the cache per image and host kernel.
///
/// # Errors
/// When the image cannot be booted for a reason that KVM has no part in.
pub fn choose(image: &Image, wanted: Option<Accel>) -> Result<Chosen> {
    if let Some(accel) = wanted {
        return Ok(Chosen { accel, why: "asked for with --accel".to_owned() });
    }
    let tcg = |why: String| Ok(Chosen { accel: Accel::Tcg, why });
    if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
        return tcg(format!("/dev/kvm: {error}"));
    }
    let host = rustix::system::uname();
    let key = format!("{} {}", image.id, host.release().to_string_lossy());
    let path = crate::cache::dir()?.join("kvm.json");
    let known: Option<(String, String)> = fs::read(&path).ok().and_then(|t| serde_json::from_slice(&t).ok());
    let failure = match known {
        Some((known, failure)) if known == key => failure,
        _ => {
            say!("trying KVM with a short boot (at most {} s)", KVM_PROBE.as_secs());
            let config = Config::new("kvm-probe", Accel::Kvm);
            let failure = match Guest::start(image, &config, KVM_PROBE) {
                Ok(mut guest) => guest.kill().err().map_or_else(String::new, |e| e.to_string()),
                Err(error) => {
                    let qemu = fs::read_to_string(log_folder(&config.name)?.join("qemu.log")).unwrap_or_default();
                    let cause =
                        error.downcast_ref::<NotReady>().map_or_else(|| format!("{error:#}"), |e| e.cause.clone());
                    complaint(&qemu).map_or_else(|| cause.clone(), |line| format!("{cause}: {line}"))
                }
            };
            fs::create_dir_all(crate::cache::dir()?)?;
            fs::write(&path, serde_json::to_vec(&(key, &failure))?)?;
            failure
        }
    };
    if failure.is_empty() {
        Ok(Chosen { accel: Accel::Kvm, why: "a probing boot worked".to_owned() })
    } else {
        tcg(format!("a probing boot with KVM failed: {failure}"))
    }
}

/// The line with which QEMU says what went wrong, if it says so: not its warnings, of which KVM has some on any machine.
fn complaint(messages: &str) -> Option<&str> {
    messages.lines().map(str::trim).find(|l| l.to_ascii_lowercase().contains("error") && !l.contains("warning:"))
}

/// Boots a new image once, without a NIC, and checks that it runs commands and has the driver.
///
/// # Errors
/// When it does not.
pub fn trial(image: &Image, wanted: Option<Accel>) -> Result<()> {
    let step = crate::progress::Step::begin("trial boot");
    let chosen = choose(image, wanted)?;
    let mut guest = Guest::boot(image, &Config::new("trial", chosen.accel))?;
    let kernel = guest.ok("modprobe ionic && uname -r")?;
    guest.poweroff()?;
    step.done(&format!("linux {}, {chosen}", kernel.trim()));
    Ok(())
}

/// What a VM is to be like.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names the folder of its logs, `target/xtask/<name>`.
    pub name: String,
    /// Accelerator.
    pub accel: Accel,
    /// Sockets of vfio-user servers, each one a NIC behind its own root port.
    pub nics: Vec<PathBuf>,
    /// Archives that the guest's kernel unpacks over the image.
    pub payloads: Vec<PathBuf>,
    /// Guest memory, as QEMU writes it.
    pub memory: &'static str,
    /// Whether the devices' addresses go through a virtual IOMMU, which the guest's kernel uses for all of them.
    pub iommu: bool,
    /// Words added to the kernel command line.
    pub append: String,
    /// Options added to QEMU's.
    pub extra: Vec<String>,
}

impl Config {
    /// A VM without a NIC.
    pub fn new(name: impl Into<String>, accel: Accel) -> Self {
        Self {
            name: name.into(),
            accel,
            nics: Vec::new(),
            payloads: Vec::new(),
            memory: MEMORY,
            iommu: false,
            append: String::new(),
            extra: Vec::new(),
        }
    }

    /// The same with the NIC that is served on `socket`.
    #[must_use]
    pub fn nic(mut self, socket: &Path) -> Self {
        self.nics.push(socket.to_owned());
        self
    }

    /// The initramfs to boot: the image's own file, or that and the payloads one after the other in a file in `folder`.
    fn initramfs(&self, image: &Image, folder: &Path) -> io::Result<PathBuf> {
        if self.payloads.is_empty() {
            return Ok(image.initrd.clone());
        }
        let path = folder.join("initramfs");
        let mut file = File::create(&path)?;
        for part in std::iter::once(&image.initrd).chain(&self.payloads) {
            io::copy(&mut File::open(part)?, &mut file)?;
        }
        Ok(path)
    }
}

/// The folder for logs of `name`, below Cargo's target folder.
///
/// # Errors
/// When it cannot be made.
pub fn log_folder(name: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::workspace().join("target"), PathBuf::from);
    let folder = std::path::absolute(target.join("xtask").join(name))?;
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Empties the folder for logs of `name`.
///
/// # Errors
/// When it cannot be made.
pub fn clear_logs(name: &str) -> Result<()> {
    fs::remove_dir_all(log_folder(name)?)?;
    log_folder(name)?;
    Ok(())
}

/// What a command in the guest came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Exit status.
    pub rc: i32,
    /// Standard output and error, as they came.
    pub text: String,
}

/// A running VM whose agent answers.
#[derive(Debug)]
pub struct Guest {
    process: Process,
    control: Lines,
    monitor: Monitor,
    console: PathBuf,
    boot_limit: Duration,
    boot_seconds: f64,
    _sockets: TempDir,
}

/// How many more boots are tried when one fails before the agent is ready: about 2 of 100 do under TCG with four CPUs,
/// by a guest panic or a hang in early boot, with any device or none.
const BOOT_RETRIES: u32 = 2;

/// Longest time of a command, unless told otherwise.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

impl Guest {
    /// Boots, waiting for the agent. A boot that fails before the agent is ready is tried again, at most twice, and said.
    ///
    /// # Errors
    /// When the last try fails, or QEMU cannot be started at all. The error ends with the console's last lines.
    pub fn boot(image: &Image, config: &Config) -> Result<Self> {
        let mut tries = 0;
        loop {
            match Self::start(image, config, config.accel.boot_limit()) {
                Err(error) if tries < BOOT_RETRIES && !error.is::<NotStarted>() => {
                    tries += 1;
                    Process::keep_logs(&log_folder(&config.name)?, tries);
                    say!(
                        "boot failed before the agent was ready; try {} of {}: {error:#}",
                        tries + 1,
                        BOOT_RETRIES + 1
                    );
                }
                result => return result,
            }
        }
    }

    fn start(image: &Image, config: &Config, limit: Duration) -> Result<Self> {
        let start = Instant::now();
        let logs = log_folder(&config.name)?;
        // Socket paths are limited to 107 bytes, so they are not below the target folder.
        let sockets = tempfile::Builder::new().prefix("ernic-").tempdir()?;
        let socket = |name: &str| sockets.path().join(name);
        let console_log = logs.join("console.log");
        let mut command = image.qemu.command();
        let initramfs = config.initramfs(image, sockets.path()).context("cannot make the initramfs")?;
        arguments(&mut command, image, &initramfs, config, sockets.path(), &console_log);
        fs::write(logs.join("qemu.cmd"), process::display(&command))?;
        // Of a run before.
        let _ = fs::remove_file(&console_log);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| NotStarted(format!("cannot start {}: {error}", process::display(&command))))?;
        if let Some(errors) = child.stderr.take() {
            keep_log(errors, File::create(logs.join("qemu.log"))?);
        }
        let end = start + limit;
        let mut process = Process { child, logs };
        let connected = Monitor::connect(&socket("qmp"), &mut process.child, end).and_then(|monitor| {
            let control = Lines::new(connect(&socket("ctl"), &mut process.child, end)?);
            Ok((monitor, control))
        });
        let (monitor, control) = match connected {
            Ok(both) => both,
            Err(error) => bail!(NotStarted(format!("{error:#}; {}", process.last_words()))),
        };
        let mut guest = Self {
            process,
            control,
            monitor,
            console: socket("console"),
            boot_limit: config.accel.boot_limit(),
            boot_seconds: 0.0,
            _sockets: sockets,
        };
        if let Err(error) = guest.wait_ready(end.saturating_duration_since(Instant::now())) {
            let words = guest.process.last_words();
            let cause = match guest.process.child.try_wait()? {
                Some(status) => format!("QEMU ended with {status} before the agent was ready"),
                None if Instant::now() >= end => format!("no READY within {} s", limit.as_secs()),
                None => format!("{error:#}"),
            };
            bail!(NotReady { cause, words });
        }
        guest.boot_seconds = start.elapsed().as_secs_f64();
        Ok(guest)
    }

    /// Seconds from starting QEMU to the agent's READY.
    pub fn boot_seconds(&self) -> f64 {
        self.boot_seconds
    }

    /// Waits for the agent's READY line.
    ///
    /// # Errors
    /// When it does not come in time or QEMU ends.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let line = self.control.line(end).context("waiting for the guest's agent")?;
            if line.starts_with(b"READY ") {
                return Ok(());
            }
        }
    }

    /// Runs one line of shell in the guest, for at most two minutes.
    ///
    /// # Errors
    /// When no answer comes: the guest hangs, has panicked or has rebooted.
    pub fn sh(&mut self, line: &str) -> Result<Outcome> {
        self.sh_for(line, COMMAND_LIMIT)
    }

    /// [`Guest::sh`] with another limit. After a timeout the guest is of no more use.
    ///
    /// # Errors
    /// As [`Guest::sh`].
    pub fn sh_for(&mut self, line: &str, limit: Duration) -> Result<Outcome> {
        if line.contains('\n') {
            bail!("a guest command must be one line: {line:?}");
        }
        let end = Instant::now() + limit;
        let answer: Result<Outcome> = (|| {
            self.control.send(format!("{line}\n").as_bytes(), end)?;
            let mut text = Vec::new();
            loop {
                let line = self.control.line(end)?;
                if let Some(rc) = line.strip_prefix(b"@@rc=") {
                    let rc = String::from_utf8_lossy(rc).trim().parse().context("the agent's status line")?;
                    // The agent puts a line break before its status line.
                    text.pop();
                    return Ok(Outcome { rc, text: String::from_utf8_lossy(&text).into_owned() });
                }
                if line.starts_with(b"READY ") {
                    bail!("the guest rebooted");
                }
                text.extend_from_slice(&line);
            }
        })();
        self.process.record(line, &answer);
        answer.map_err(|error| anyhow!("guest command `{line}`: {error:#}; {}", self.process.last_words()))
    }

    /// Runs a command that must succeed; returns its output.
    ///
    /// # Errors
    /// As [`Guest::sh`], and when its status is not 0: the error has its output.
    pub fn ok(&mut self, line: &str) -> Result<String> {
        self.ok_for(line, COMMAND_LIMIT)
    }

    /// [`Guest::ok`] with another limit.
    ///
    /// # Errors
    /// As [`Guest::ok`].
    pub fn ok_for(&mut self, line: &str, limit: Duration) -> Result<String> {
        let outcome = self.sh_for(line, limit)?;
        if outcome.rc != 0 {
            bail!("guest command `{line}` ended with status {}:\n{}", outcome.rc, process::tail(&outcome.text, 20));
        }
        Ok(outcome.text)
    }

    /// Reboots the guest from inside and waits for its agent. A reboot that does not get that far is repeated from
    /// outside, at most twice, and said, as in [`Guest::boot`].
    ///
    /// # Errors
    /// When the last try fails.
    pub fn reboot(&mut self) -> Result<()> {
        self.monitor.execute("set-action", json!({"reboot": "reset"}))?;
        let end = Instant::now() + COMMAND_LIMIT;
        self.control.send(b"reboot -f\n", end)?;
        let mut tries = 0;
        loop {
            match self.wait_ready(self.boot_limit) {
                Ok(()) => break,
                Err(error) if tries < BOOT_RETRIES && self.process.child.try_wait()?.is_none() => {
                    tries += 1;
                    say!(
                        "reboot failed before the agent was ready; try {} of {}: {error:#}",
                        tries + 1,
                        BOOT_RETRIES + 1
                    );
                    self.monitor.execute("system_reset", json!({}))?;
                }
                Err(error) => bail!("{error:#}; {}", self.process.last_words()),
            }
        }
        // From here on a panic, which reboots, ends QEMU instead of going unseen.
        self.monitor.execute("set-action", json!({"reboot": "shutdown"}))?;
        Ok(())
    }

    /// Ends QEMU at once, as if the host had crashed.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        let _ = self.process.child.kill();
        self.process.child.wait()?;
        Ok(())
    }

    /// Switches the guest off and waits until QEMU has ended.
    ///
    /// # Errors
    /// When that takes longer than half a minute.
    pub fn poweroff(&mut self) -> Result<()> {
        self.control.send(b"sync; poweroff -f\n", Instant::now() + Duration::from_secs(5))?;
        if !process::wait_for(&mut self.process.child, Duration::from_secs(30))? {
            bail!("the guest did not switch off\n{}", self.process.last_words());
        }
        Ok(())
    }

    /// Connects the terminal to the guest's console until the guest is switched off or Ctrl-] is typed.
    ///
    /// # Errors
    /// When the console cannot be reached.
    pub fn terminal(&mut self) -> Result<()> {
        let stream = connect(&self.console, &mut self.process.child, Instant::now() + Duration::from_secs(5))?;
        stream.set_read_timeout(None)?;
        crate::terminal::attach(stream)
    }
}

/// QEMU, and the folder of its logs.
#[derive(Debug)]
struct Process {
    child: Child,
    logs: PathBuf,
}

impl Process {
    /// What QEMU and the guest's console last said, for errors.
    fn last_words(&mut self) -> String {
        // A QEMU that is ending closes its sockets first.
        let ended = process::wait_for(&mut self.child, Duration::from_millis(300)).unwrap_or(false);
        let state = match self.child.try_wait() {
            Ok(Some(status)) if ended => format!("QEMU ended with {status}"),
            _ => "QEMU is running".to_owned(),
        };
        let console = fs::read(self.logs.join("console.log")).unwrap_or_default();
        let qemu = fs::read_to_string(self.logs.join("qemu.log")).unwrap_or_default();
        let mut words = state;
        for (what, text) in [("its messages", qemu.as_str()), ("the console", &String::from_utf8_lossy(&console))] {
            if !text.trim().is_empty() {
                words.push_str(&format!("; {what}:\n{}", process::tail(text, 12)));
            }
        }
        words.push_str(&format!("\n(logs in {})", self.logs.display()));
        words
    }

    /// Adds a command and what came of it to `commands.log`.
    fn record(&self, line: &str, answer: &Result<Outcome>) {
        let text = match answer {
            Ok(outcome) => format!("# {line}\n{}[{}]\n", process::tail(&outcome.text, 100), outcome.rc),
            Err(error) => format!("# {line}\n[{error:#}]\n"),
        };
        if let Ok(mut file) = File::options().append(true).create(true).open(self.logs.join("commands.log")) {
            let _ = file.write_all(text.as_bytes());
        }
    }

    /// Keeps the logs of a failed boot from being overwritten by the next one.
    fn keep_logs(folder: &Path, number: u32) {
        for log in ["console", "qemu"] {
            let _ =
                fs::rename(folder.join(format!("{log}.log")), folder.join(format!("{log}.failed-boot-{number}.log")));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Without its owner the VM has no use.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The agent did not become ready.
#[derive(Debug)]
struct NotReady {
    cause: String,
    words: String,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.words)
    }
}

impl std::error::Error for NotReady {}

/// QEMU did not start: no retry helps.
#[derive(Debug)]
struct NotStarted(String);

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotStarted {}

/// Guest memory, unless told otherwise, and processors: `ionic_rdma` wants four event queues, one per processor.
pub const MEMORY: &str = "1G";
const PROCESSORS: &str = "4";

fn arguments(
    command: &mut Command,
    image: &Image,
    initramfs: &Path,
    config: &Config,
    sockets: &Path,
    console_log: &Path,
) {
    let socket = |name: &str| sockets.join(name).display().to_string();
    let mut add = |words: &[&str]| {
        command.args(words);
    };
    add(&["-nodefaults", "-no-user-config", "-display", "none"]);
    // The server reads and writes guest memory through this file.
    add(&["-object", &format!("memory-backend-memfd,id=mem0,share=on,size={}", config.memory)]);
    add(&[
        "-machine",
        "q35,memory-backend=mem0",
        "-accel",
        config.accel.name(),
        "-cpu",
        "max",
        "-smp",
        PROCESSORS,
        "-m",
        config.memory,
    ]);
    // Before the devices. QEMU refuses vfio devices without caching mode, in which the guest says of each page that it is mapped.
    if config.iommu {
        add(&["-device", "intel-iommu,caching-mode=on,intremap=off"]);
    }
    add(&["-run-with", "exit-with-parent=on", "-action", "reboot=shutdown"]);
    add(&["-qmp", &format!("unix:{},server=on,wait=off", socket("qmp"))]);
    add(&[
        "-chardev",
        &format!("socket,id=console,path={},server=on,wait=off,logfile={}", socket("console"), console_log.display()),
    ]);
    add(&["-serial", "chardev:console"]);
    add(&["-chardev", &format!("socket,id=ctl,path={},server=on,wait=off", socket("ctl"))]);
    add(&["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=ctl,name=ctl"]);
    for (number, nic) in config.nics.iter().enumerate() {
        add(&["-device", &format!("pcie-root-port,id=rp{number},chassis={}", number + 1)]);
        let device = json!({"driver": "vfio-user-pci", "id": format!("nic{number}"), "bus": format!("rp{number}"), "socket": {"type": "unix", "path": nic}});
        add(&["-device", &device.to_string()]);
    }
    add(&["-kernel", &image.kernel.display().to_string(), "-initrd", &initramfs.display().to_string()]);
    // panic=-1: a panic reboots at once, which QEMU turns into its end.
    let iommu = if config.iommu { "intel_iommu=on iommu.passthrough=0 " } else { "" };
    add(&["-append", format!("console=ttyS0 quiet panic=-1 {iommu}{}", config.append).trim_end()]);
    command.args(&config.extra);
}

/// Keeps what QEMU says: it writes two lines for each access once the server is gone, so only the first part goes to the
/// file, and the rest nowhere.
fn keep_log(mut errors: ChildStderr, mut file: File) {
    const KEPT: usize = 4 << 20;
    std::thread::spawn(move || {
        let mut buffer = [0; 16384];
        let mut kept = 0;
        while let Ok(n @ 1..) = errors.read(&mut buffer) {
            if kept < KEPT {
                kept += n;
                let _ = file.write_all(buffer.get(..n).unwrap_or_default());
            }
        }
    });
}

/// Connects to a socket that QEMU is about to make.
fn connect(path: &Path, child: &mut Child, end: Instant) -> Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= end => return Err(error).context("QEMU does not listen"),
            Err(_) => {}
        }
        if let Some(status) = child.try_wait()? {
            bail!("QEMU ended at once: {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A stream of lines with deadlines.
#[derive(Debug)]
pub struct Lines {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` known to hold no line break.
    searched: usize,
}

impl Lines {
    /// The lines of a stream.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), searched: 0 }
    }

    fn send(&mut self, bytes: &[u8], end: Instant) -> Result<()> {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_write_timeout(Some(left))?;
        self.stream.write_all(bytes)?;
        Ok(())
    }

    /// The next line with its line break.
    ///
    /// # Errors
    /// When it does not come until `end`, or the stream ends before it.
    pub fn line(&mut self, end: Instant) -> Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.iter().skip(self.searched).position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(self.searched + at + 1);
                self.searched = 0;
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            self.searched = self.buffer.len();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let part = process::tail(&String::from_utf8_lossy(&self.buffer), 5);
                if part.is_empty() {
                    bail!("no answer in time");
                }
                bail!("no answer in time; so far: {part:?}");
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("the connection has ended"),
                Ok(n) => self.buffer.extend_from_slice(chunk.get(..n).unwrap_or_default()),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// QEMU's machine protocol (QMP): a JSON object a line.
#[derive(Debug)]
struct Monitor {
    lines: Lines,
}

impl Monitor {
    fn connect(path: &Path, child: &mut Child, end: Instant) -> Result<Self> {
        let mut monitor = Self { lines: Lines::new(connect(path, child, end)?) };
        // The greeting.
        monitor.lines.line(end).context("QEMU's monitor")?;
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let end = Instant::now() + Duration::from_secs(30);
        self.lines.send(format!("{}\n", json!({"execute": command, "arguments": arguments})).as_bytes(), end)?;
        loop {
            let line = self.lines.line(end).with_context(|| format!("QEMU's answer to {command}"))?;
            let mut answer: Value = serde_json::from_slice(&line)?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            // An event.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(ours);
        let soon = || Instant::now() + Duration::from_millis(50);
        theirs.write_all(b"one\ntw").unwrap();
        assert_eq!(lines.line(soon()).unwrap(), b"one\n");
        assert!(lines.line(soon()).unwrap_err().to_string().contains("\"tw\""));
        theirs.write_all(b"o\n\nthree\n").unwrap();
        assert_eq!(lines.line(soon()).unwrap(), b"two\n");
        assert_eq!(lines.line(soon()).unwrap(), b"\n");
        assert_eq!(lines.line(soon()).unwrap(), b"three\n");
        drop(theirs);
        assert!(lines.line(soon()).unwrap_err().to_string().contains("ended"));
    }

    #[test]
    fn a_complaint_is_not_a_warning() {
        let warning =
            "qemu: warning: Number of SMP cpus requested (4) exceeds the recommended cpus supported by KVM (2)";
        assert_eq!(complaint(warning), None);
        assert_eq!(complaint("qemu: warning: error reporting is off\n"), None);
        let both = format!("{warning}\n\nKVM internal error. Suberror: 1\nextra data[0]: 0x0\n");
        assert_eq!(complaint(&both), Some("KVM internal error. Suberror: 1"));
        assert_eq!(complaint(""), None);
    }

    #[test]
    fn the_nic_sits_behind_a_root_port_of_its_own() {
        let image = Image {
            id: "x".into(),
            qemu: crate::guest::Qemu::Own("qemu".into()),
            kernel: "/k".into(),
            initrd: "/i".into(),
            user: None,
            no_rdma: None,
        };
        let config = Config::new("t", Accel::Tcg).nic(Path::new("/run/a.sock"));
        let mut command = image.qemu.command();
        arguments(&mut command, &image, &image.initrd, &config, Path::new("/s"), Path::new("/l"));
        let words: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let device = words.iter().find(|w| w.contains("vfio-user-pci")).unwrap();
        let device: Value = serde_json::from_str(device).unwrap();
        assert_eq!(device["bus"], "rp0");
        assert_eq!(device["socket"], json!({"type": "unix", "path": "/run/a.sock"}));
        assert!(words.contains(&"pcie-root-port,id=rp0,chassis=1".to_owned()));
        assert!(words.contains(&"memory-backend-memfd,id=mem0,share=on,size=1G".to_owned()));
        assert_eq!(words.last().unwrap(), "console=ttyS0 quiet panic=-1");
    }
}
