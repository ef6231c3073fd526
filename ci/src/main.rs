//! `cargo xtask`: everything a person or CI runs — the guest image, the demo, test lanes.

mod abi;
mod apt;
mod bench;
mod cache;
mod cpio;
mod demo;
mod disk;
mod ext4;
mod formats;
mod guest;
mod lanes;
mod native;
mod peers;
mod process;
mod progress;
mod server;
mod source;
mod terminal;
mod tools;
mod tree;
mod vm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Runs what a person or CI runs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Boot a stock Linux guest on the emulated NIC, store and fetch objects with its curl and by RDMA
    Demo {
        #[command(flatten)]
        args: demo::VmArgs,
        /// Leave a shell in the guest at the end
        #[arg(long)]
        keep: bool,
    },
    /// Boot the same guest and give a shell in it
    Vm {
        #[command(flatten)]
        args: demo::VmArgs,
        /// Set soft-RoCE (rdma_rxe) up on the NIC's interface
        #[arg(long)]
        rxe: bool,
    },
    /// Run the test lanes
    Test {
        #[command(flatten)]
        args: lanes::TestArgs,
    },
    /// Measure the figures of the benchmark schema
    Bench {
        #[command(flatten)]
        args: bench::BenchArgs,
    },
    /// Compare the wire structures with the kernel's own headers
    AbiCheck {
        #[command(flatten)]
        args: abi::AbiArgs,
    },
    /// Fetch QEMU and make the guest's kernel and initramfs, and no more
    Guest {
        #[command(flatten)]
        args: guest::GuestArgs,
        /// Accelerator of the trial boot
        #[arg(long, value_enum)]
        accel: Option<vm::Accel>,
    },
    /// Fetch the S3 tools of the lanes and print the folder that they can be run from
    Tools {
        /// Fetch Debian packages from this mirror instead of the one that this machine's apt uses
        #[arg(long, value_name = "URL", env = "ERNIC_MIRROR")]
        mirror: Option<String>,
    },
}

/// The root of the workspace.
fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Cargo, in the workspace.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}

fn run() -> Result<()> {
    match Cli::parse().command {
        Task::Demo { args, keep } => demo::demo(&args, keep),
        Task::Vm { args, rxe } => demo::interactive(&args, rxe),
        Task::Test { args } => lanes::test(&args),
        Task::Bench { args } => bench::run(&args),
        Task::AbiCheck { args } => abi::run(&args),
        Task::Guest { args, accel } => demo::image_only(&args, accel),
        Task::Tools { mirror } => tools::print(mirror.as_deref()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
