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

    /// An archive with the client for the guest.
    fn client(&self, profile: &str) -> Result<PathBuf> {
        guest::payload::client(&self.server.client(profile)?)
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

/// The server's back end: room for the largest object of the sweep and the one that replaces it.
const BACKEND: &str = "s3:size=2G";

/// Longest time of a command in the guest.
const LIMIT: Duration = Duration::from_secs(300);

/// The guest, and where what it says is shown.
struct Stage<'a> {
    guest: Guest,
    out: &'a mut dyn Write,
}

impl Stage<'_> {
    /// Shows a command as typed in the guest, and its output. It must succeed.
    fn show(&mut self, line: &str) -> Result<String> {
        writeln!(self.out, "guest# {line}")?;
        let outcome = self.guest.sh_for(line, LIMIT)?;
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

    /// The same store by RDMA: the client checks it byte for byte, and measures.
    fn rdma(&mut self) -> Result<()> {
        self.show("rm /tmp/sent /tmp/got; modprobe ionic_rdma; ibv_devices")?;
        // Work queues of the kernel fill the GID table.
        let gids =
            "n=0; until ibv_devinfo -v | grep -q ::ffff:; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.1; done";
        self.guest.ok(gids)?;
        let said = self.show("ernic-bench --functional")?;
        if !said.trim_end().ends_with("all checks passed") {
            bail!("the client's checks did not pass");
        }
        // The table, and how many transfers went by RDMA: two for each size and iteration.
        let said = self.show("ernic-bench --sweep 4K,64K,1M,16M,256M -n 3 >/tmp/sweep && tail -n 13 /tmp/sweep")?;
        if !said.contains("transfers: 30 by RDMA, 0 by HTTP") {
            bail!("the sweep was not by RDMA");
        }
        Ok(())
    }
}

/// `cargo xtask demo`.
///
/// # Errors
/// When any step of it fails.
pub fn demo(args: &VmArgs, keep: bool) -> Result<()> {
    let parts = args.prepare("quick")?;
    let client = args.client("quick")?;
    run(args, &parts, "demo", Some(client), keep, &mut std::io::stdout())?;
    println!("demo: ok");
    Ok(())
}

/// The demo itself: logs under `name`, the guest's words to `out`. With the archive `client`, also by RDMA.
///
/// # Errors
/// When any step of it fails; the error has the server's last lines.
pub fn run(
    args: &VmArgs,
    parts: &Parts,
    name: &str,
    client: Option<PathBuf>,
    keep: bool,
    out: &mut dyn Write,
) -> Result<()> {
    vm::clear_logs(name)?;
    let mut server = Server::start(&parts.program, name, BACKEND, &args.server_options()?)?;
    writeln!(out, "QEMU's accelerator: {}", parts.chosen)?;
    let by_rdma = client.is_some();
    let payloads = client.into_iter().collect();
    let mut config = Config { payloads, ..Config::new(name, parts.chosen.accel).nic(server.socket()) };
    if keep {
        config.append = terminal::shell_word();
    }
    let guest = Guest::boot(&parts.image, &config)?;
    say!("guest ready after {:.1} s", guest.boot_seconds());
    let mut stage = Stage { guest, out };
    let mut shown = stage.session();
    if by_rdma && shown.is_ok() {
        if stage.guest.sh("modinfo ionic_rdma")?.rc == 0 {
            shown = stage.rdma();
        } else {
            let why = parts.image.no_rdma.as_deref().unwrap_or("there is none in the --initrd");
            writeln!(stage.out, "not by RDMA: the guest has no driver for it: {why}")?;
        }
    }
    shown.map_err(|error| anyhow!("{error:#}\n{}", server.last_words()))?;
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

/// `cargo xtask vm`: the guest with its NIC up, with `rxe` also with soft-RoCE on it, and a shell.
///
/// # Errors
/// When it cannot be started.
pub fn interactive(args: &VmArgs, rxe: bool) -> Result<()> {
    let parts = args.prepare("quick")?;
    let payloads = vec![args.client("quick")?];
    let server = Server::start(&parts.program, "vm", BACKEND, &args.server_options()?)?;
    println!("QEMU's accelerator: {}", parts.chosen);
    let mut config = Config { payloads, ..Config::new("vm", parts.chosen.accel).nic(server.socket()) };
    config.append = terminal::shell_word();
    let mut guest = Guest::boot(&parts.image, &config)?;
    let outcome = guest.sh("ernic-net")?;
    println!("{}", outcome.text.trim_end());
    if rxe {
        println!("{}", guest.ok("ernic-rxe")?.trim_end());
    }
    println!(
        "The bucket is {BUCKET}/. `modprobe ionic_rdma` makes an RDMA device, and `ernic-bench` is there. `poweroff -f` or Ctrl-] ends the guest."
    );
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
