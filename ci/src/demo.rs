//! `cargo xtask demo` and `cargo xtask vm`: the stock guest on the emulated NIC, for a person to see.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Args;

use crate::guest::{self, GuestArgs, Image};
use crate::process;
use crate::say;
use crate::server::{ADDRESS, BUCKET, Server, ServerArgs};
use crate::terminal;
use crate::vm::{self, Accel, Chosen, Config, Guest};

/// Options of every command that starts a VM with the NIC.
#[derive(Debug, Clone, Default, Args)]
pub struct VmArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Accelerator of QEMU [default: KVM if a short probing boot works, else TCG]
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
    /// Write every frame to this file, readable by tcpdump
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

impl VmArgs {
    /// Image, accelerator and server program, fetched and built where missing.
    ///
    /// # Errors
    /// When one of them cannot be had; the message says how to go on.
    pub fn prepare(&self, profile: &str) -> Result<Parts> {
        let image = guest::acquire(&self.guest, self.accel)?;
        let program = self.server.program(profile)?;
        let chosen = vm::choose(&image, self.accel)?;
        Ok(Parts { image, chosen, program })
    }

    fn server_options(&self) -> Result<Vec<String>> {
        Ok(match &self.pcap {
            Some(path) => vec!["--pcap".to_owned(), std::path::absolute(path)?.display().to_string()],
            None => Vec::new(),
        })
    }
}

/// What a VM with the NIC is made of.
#[derive(Debug)]
pub struct Parts {
    /// The guest image.
    pub image: Image,
    /// The accelerator.
    pub chosen: Chosen,
    /// The server's program.
    pub program: PathBuf,
}

/// Bytes of the demo's object.
const OBJECT: u64 = 64 << 20;

/// The guest, and where what it says is shown.
struct Stage<'a> {
    guest: Guest,
    out: &'a mut dyn Write,
}

impl Stage<'_> {
    /// Shows a command as typed in the guest, and its output. It must succeed.
    fn show(&mut self, line: &str) -> Result<String> {
        writeln!(self.out, "guest# {line}")?;
        let outcome = self.guest.sh_for(line, Duration::from_secs(300))?;
        writeln!(self.out, "{}", outcome.text.trim_end())?;
        if outcome.rc != 0 {
            bail!("`{line}` ended with status {} in the guest: {}", outcome.rc, process::tail(&outcome.text, 5));
        }
        Ok(outcome.text)
    }

    /// The session that the demo shows.
    fn session(&mut self) -> Result<()> {
        self.show("uname -sr; lspci -nn -d 1dd8:")?;
        self.show("ernic-net")?;
        self.show(&format!("ping -c 3 {ADDRESS}"))?;
        self.show(&format!("curl -sSf {BUCKET}/"))?;
        self.show(&format!("head -c {OBJECT} /dev/urandom >/tmp/sent; sha256sum /tmp/sent"))?;
        let said = |direction: &str| {
            format!(
                "{direction} %{{http_code}}: %{{size_{0}}} bytes, %{{speed_{0}}} bytes/s\\n",
                if direction == "PUT" { "upload" } else { "download" }
            )
        };
        self.show(&format!("curl -sSf -T /tmp/sent {BUCKET}/demo.bin -w '{}'", said("PUT")))?;
        self.show(&format!("curl -sSf -o /tmp/got {BUCKET}/demo.bin -w '{}'", said("GET")))?;
        self.show("cmp /tmp/sent /tmp/got && sha256sum /tmp/got")?;
        let listing = self.show(&format!("curl -sSf {BUCKET}/"))?;
        if !listing.contains("<Key>demo.bin</Key>") || !listing.contains(&format!("<Size>{OBJECT}</Size>")) {
            bail!("the listing does not have demo.bin with {OBJECT} bytes");
        }
        Ok(())
    }
}

/// `cargo xtask demo`.
///
/// # Errors
/// When any step of it fails.
pub fn demo(args: &VmArgs, keep: bool) -> Result<()> {
    let parts = args.prepare("release")?;
    run(args, &parts, "demo", keep, &mut std::io::stdout())?;
    println!("demo: ok");
    Ok(())
}

/// The demo itself: logs under `name`, the guest's words to `out`.
///
/// # Errors
/// When any step of it fails; the error has the server's last lines.
pub fn run(args: &VmArgs, parts: &Parts, name: &str, keep: bool, out: &mut dyn Write) -> Result<()> {
    vm::clear_logs(name)?;
    let mut server = Server::start(&parts.program, name, "s3", &args.server_options()?)?;
    writeln!(out, "QEMU's accelerator: {}", parts.chosen)?;
    let mut config = Config::new(name, parts.chosen.accel).nic(server.socket());
    if keep {
        config.append = terminal::shell_word();
    }
    let guest = Guest::boot(&parts.image, &config)?;
    say!("guest ready after {:.1} s", guest.boot_seconds());
    let mut stage = Stage { guest, out };
    stage.session().map_err(|error| anyhow!("{error:#}\n{}", server.last_words()))?;
    server.check()?;
    let mut guest = stage.guest;
    if keep {
        println!("demo: the session is over; this is the guest's shell (`poweroff -f` or Ctrl-] ends it)");
        guest.terminal()?;
        guest.kill()?;
    } else {
        guest.poweroff()?;
    }
    server.stop()
}

/// `cargo xtask vm`: the guest with its NIC up, and a shell.
///
/// # Errors
/// When it cannot be started.
pub fn interactive(args: &VmArgs) -> Result<()> {
    let parts = args.prepare("release")?;
    let server = Server::start(&parts.program, "vm", "s3", &args.server_options()?)?;
    println!("QEMU's accelerator: {}", parts.chosen);
    let mut config = Config::new("vm", parts.chosen.accel).nic(server.socket());
    config.append = terminal::shell_word();
    let mut guest = Guest::boot(&parts.image, &config)?;
    let outcome = guest.sh("ernic-net")?;
    println!("{}", outcome.text.trim_end());
    println!("The bucket is {BUCKET}/. `poweroff -f` or Ctrl-] ends the guest.");
    guest.terminal()?;
    guest.kill()?;
    server.stop()
}

/// `cargo xtask guest`: only the image.
///
/// # Errors
/// When it cannot be made.
pub fn image_only(args: &GuestArgs, accel: Option<Accel>) -> Result<()> {
    let image = guest::acquire(args, accel)?;
    println!("qemu:   {}", process::display(&image.qemu.command()));
    println!("kernel: {}", image.kernel.display());
    println!("initrd: {}", image.initrd.display());
    println!("guest: ok");
    Ok(())
}
