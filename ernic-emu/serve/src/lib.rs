//! `ernic`, the server: options, log, sockets, signals, and the loop that joins the NIC, the endpoint and the store.
//!
//! The library exists so that all of it can be tested; its only user is the binary of the same name.

pub mod ask;
pub mod backend;
pub mod cable;
pub mod control;
pub mod counters;
pub mod credentials;
pub mod event_loop;
pub mod host;
pub mod logging;
pub mod mac;
pub mod options;
pub mod pcap;
pub mod rdma;
pub mod recent;
pub mod signals;
pub mod size;
pub mod startup;
pub mod stores;
pub mod tap;
pub mod values;
pub mod wire;

use anyhow::Context;
use control::Control;
use ernic_emu::vfio::Listener;
use event_loop::Server;
use options::{Command, Options};
use pcap::Pcap;
use recent::Recent;
use signals::Signals;
use tap::Tap;

/// Everything the loop is given: what can fail has been opened.
#[derive(Debug)]
pub struct Parts {
    /// The command line.
    pub options: Options,
    /// Requests to end.
    pub signals: Signals,
    /// Where QEMU connects; the socket goes when this is dropped.
    pub listener: Listener,
    /// Where the user asks, unless its name would be too long; it goes likewise.
    pub control: Option<Control>,
    /// The host's side of the wire, with `--tap`.
    pub tap: Option<Tap>,
    /// The recording, with `--pcap`.
    pub pcap: Option<Pcap>,
    /// What the log keeps for the user.
    pub recent: Recent,
}

/// Opens everything that the options name. What fails, fails before anything of value is touched: the recording, which
/// replaces a file, comes last, when the socket has shown that no other server runs here.
pub fn open(options: Options, recent: Recent) -> anyhow::Result<Parts> {
    let signals = Signals::install().context("cannot take over SIGINT and SIGTERM")?;
    let tap = options.tap.as_deref().map(Tap::open).transpose()?;
    let listener = Listener::bind(&options.socket)?;
    let control = Control::bind(&options.socket)?;
    let pcap = options.pcap.as_deref().map(Pcap::create).transpose()?;
    Ok(Parts { options, signals, listener, control, tap, pcap, recent })
}

/// Serves until SIGINT or SIGTERM; or does what else the options say.
pub fn run(options: Options) -> anyhow::Result<()> {
    match &options.command {
        None => {}
        Some(Command::Serve(serve)) => {
            serve.log.start()?;
            return host::run(serve);
        }
        Some(Command::Status { json }) => return ask::status(&options, *json),
        Some(Command::Link { state }) => return ask::link(&options, *state),
    }
    let recent = options.log.start()?;
    let parts = open(options, recent)?;
    let options = parts.options.clone();
    let mut server = Server::new(parts)?;
    startup::announce(&options);
    server.run()
}
