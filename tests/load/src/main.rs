//! The load and its check as a program, for a guest whose power is going to fail (lane `vm-store-power`).

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Parser, Subcommand};
use ernic_load::{Book, CLIENTS, Event};

/// Writes to a server that is going to be killed, and checks what is left.
#[derive(Debug, Parser)]
#[command(name = "ernic-load", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Write until the server is gone; what is asked for and acknowledged goes to RECORD, a line each, as it happens
    Run {
        /// The server
        address: SocketAddr,
        /// What the writes are made from
        seed: u64,
        /// File or device that is written to, a line at a time
        record: PathBuf,
    },
    /// Check a server against the book, and print the book with what is known now
    Check(Against),
    /// Check, delete everything, and check again
    Clear(Against),
}

#[derive(Debug, Args)]
struct Against {
    /// The server
    address: SocketAddr,
    /// The folder of its store
    store: PathBuf,
    /// Words of the book
    book: Vec<String>,
}

impl Against {
    fn check(&self) -> Result<Book> {
        let mut book = self.book.join(" ").parse()?;
        ernic_load::check(self.address, &mut book)?;
        ernic_load::settles(&self.store, &book)?;
        Ok(book)
    }
}

fn run(address: SocketAddr, seed: u64, record: &PathBuf) -> Result<()> {
    let file = File::options().append(true).open(record).with_context(|| record.display().to_string())?;
    let file = Mutex::new(file);
    let note = |event: Event| -> Result<()> {
        let mut file = file.lock().map_err(|_| anyhow!("a client has panicked"))?;
        file.write_all(format!("{event}\n").as_bytes()).context("the record")
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let seed = seed.wrapping_mul(31).wrapping_add(u64::try_from(client).unwrap_or_default() * 7919);
            let (note, stop) = (&note, &stop);
            scope.spawn(move || {
                if let Err(error) = ernic_load::load(address, client, seed, note, stop) {
                    let _ = note(Event::Failed(format!("client {client}: {error:#}")));
                }
            });
        }
    });
    note(Event::Failed("the server is gone".to_owned()))
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Task::Run { address, seed, record } => run(address, seed, &record),
        Task::Check(against) => against.check().map(|book| println!("{book}")),
        Task::Clear(against) => against.check().and_then(|mut book| {
            ernic_load::clear(against.address, &mut book)?;
            ernic_load::check(against.address, &mut book)?;
            ernic_load::settles(&against.store, &book)
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
