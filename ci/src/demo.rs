//! `cargo xtask demo` and `cargo xtask vm`: the stock guest on the emulated NIC, for a person to see.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
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
    pub fn prepare(&self, profile: &str) -> Result<(Image, Chosen, PathBuf)> {
        let image = guest::acquire(&self.guest, self.accel)?;
        let program = self.server.program(profile)?;
        let chosen = vm::choose(&image, self.accel)?;
        Ok((image, chosen, program))
    }

    fn server_options(&self) -> Result<Vec<String>> {
        Ok(match &self.pcap {
            Some(path) => vec!["--pcap".to_owned(), std::path::absolute(path)?.display().to_string()],
            None => Vec::new(),
        })
    }
}

/// Bytes of the demo's object.
const OBJECT: u64 = 64 << 20;

/// Shows a command as typed in the guest, and its output. It must succeed.
fn show(guest: &mut Guest, line: &str) -> Result<String> {
    println!("guest# {line}");
    let outcome = guest.sh_for(line, Duration::from_secs(300))?;
    println!("{}", outcome.text.trim_end());
    if outcome.rc != 0 {
        bail!("`{line}` ended with status {} in the guest", outcome.rc);
    }
    Ok(outcome.text)
}

/// The session that the demo shows.
fn session(guest: &mut Guest) -> Result<()> {
    show(guest, "uname -sr; lspci -nn -d 1dd8:")?;
    show(guest, "ernic-net")?;
    show(guest, &format!("ping -c 3 {ADDRESS}"))?;
    show(guest, &format!("curl -sSf {BUCKET}/"))?;
    show(guest, &format!("head -c {OBJECT} /dev/urandom >/tmp/sent; sha256sum /tmp/sent"))?;
    show(
        guest,
        &format!(
            "curl -sSf -T /tmp/sent {BUCKET}/demo.bin -w 'PUT %{{http_code}} %{{size_upload}} bytes, %{{speed_upload}} bytes/s\\n'"
        ),
    )?;
    show(
        guest,
        &format!(
            "curl -sSf -o /tmp/got {BUCKET}/demo.bin -w 'GET %{{http_code}} %{{size_download}} bytes, %{{speed_download}} bytes/s\\n'"
        ),
    )?;
    show(guest, "cmp /tmp/sent /tmp/got && sha256sum /tmp/got")?;
    let listing = show(guest, &format!("curl -sSf {BUCKET}/"))?;
    if !listing.contains("<Key>demo.bin</Key>") || !listing.contains(&format!("<Size>{OBJECT}</Size>")) {
        bail!("the listing does not have demo.bin with {OBJECT} bytes");
    }
    Ok(())
}

/// `cargo xtask demo`.
///
/// # Errors
/// When any step of it fails.
pub fn demo(args: &VmArgs, keep: bool) -> Result<()> {
    let (image, chosen, program) = args.prepare("release")?;
    run(args, &image, &chosen, &program, "demo", keep)?;
    println!("demo: ok");
    Ok(())
}

/// The demo itself, with logs under `name`.
///
/// # Errors
/// When any step of it fails.
pub fn run(
    args: &VmArgs,
    image: &Image,
    chosen: &Chosen,
    program: &std::path::Path,
    name: &str,
    keep: bool,
) -> Result<()> {
    let mut server = Server::start(program, name, "s3", &args.server_options()?)?;
    println!("QEMU's accelerator: {chosen}");
    let mut config = Config::new(name, chosen.accel).nic(server.socket());
    if keep {
        config.append = terminal::shell_word();
    }
    let mut guest = Guest::boot(image, &config)?;
    say!("guest ready after {:.1} s", guest.boot_seconds());
    if let Err(error) = session(&mut guest) {
        return Err(error.context(format!(
            "the server's last lines:\n{}\n(logs in {})",
            process::tail(&server.log(), 10),
            guest.logs().display()
        )));
    }
    server.check()?;
    if keep {
        println!("demo: ok so far; this is the guest's shell (`poweroff -f` or Ctrl-] ends it)");
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
    let (image, chosen, program) = args.prepare("release")?;
    let server = Server::start(&program, "vm", "s3", &args.server_options()?)?;
    println!("QEMU's accelerator: {chosen}");
    let mut config = Config::new("vm", chosen.accel).nic(server.socket());
    config.append = terminal::shell_word();
    let mut guest = Guest::boot(&image, &config)?;
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
