//! The guest: `tests/driver` on the server's socket, with an HTTP client.

use std::{
    io,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use ernic_emu::vfio::client::{Client, ClientError};
use ionic_driver::{Config, GuestNet, GuestRam, Ionic, VfioUser, http::Response, net::NetConfig, vfio_user::Maps};
use smoltcp::iface::SocketHandle;

use crate::{bus::GuestBus, server::Server};

/// Where the endpoint answers by default.
pub const ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);
const PORT: u16 = 9000;
/// Guest memory, bytes: rings with jumbo buffers need a third of it. Its place is that of RAM above 4 GiB.
const RAM: usize = 64 << 20;
const RAM_AT: u64 = 1 << 32;

/// A guest with one interface.
pub type Net = GuestNet<GuestBus>;

/// The driver bound to the server's device, its interface down.
pub fn driver(server: &Server) -> anyhow::Result<Ionic<GuestBus>> {
    driver_with(server, RAM)
}

/// As [`driver`], with so much memory.
pub fn driver_with(server: &Server, ram: usize) -> anyhow::Result<Ionic<GuestBus>> {
    let start = Instant::now();
    let client = loop {
        match Client::connect(server.socket()) {
            // Bound, and not yet listening.
            Err(ClientError::Io(error))
                if error.kind() == io::ErrorKind::ConnectionRefused && start.elapsed() < Duration::from_secs(5) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => break other.context("cannot attach to the server")?,
        }
    };
    let bus = VfioUser::start(client, GuestRam::new(ram, RAM_AT)?, Maps::Whole)?;
    Ok(Ionic::attach(GuestBus::new(bus)?, Config::default())?)
}

/// A guest with an address from DHCP.
pub fn guest(server: &Server, mtu: u32, buffer: usize) -> anyhow::Result<Net> {
    guest_with(server, mtu, buffer, 0)
}

/// As [`guest`], with room in its memory for `more` bytes.
pub fn guest_with(server: &Server, mtu: u32, buffer: usize, more: usize) -> anyhow::Result<Net> {
    let mut net = GuestNet::new(driver_with(server, RAM + more)?, NetConfig { buffer, ..NetConfig::default() })?;
    net.dhcp()?;
    if mtu != net.nic.config.mtu {
        net.set_mtu(mtu)?;
    }
    Ok(net)
}

/// No frame was refused, and none was lost for want of a buffer.
pub fn check(net: &Net) -> anyhow::Result<()> {
    ensure!(net.refused() == 0, "the guest refused frames: {:?}", net.stats.refused);
    ensure!(net.nic.stats.rx_dropped == 0, "{} frames came with an error", net.nic.stats.rx_dropped);
    Ok(())
}

/// An HTTP connection to the endpoint.
#[derive(Debug)]
pub struct Http(SocketHandle);

/// What came, and when its last byte was there.
#[derive(Debug)]
pub struct Answer {
    /// Status, header fields, length of the body.
    pub response: Response,
    /// When it was complete.
    pub at: Instant,
}

impl Http {
    /// Connects.
    pub fn connect(net: &mut Net) -> anyhow::Result<Self> {
        Ok(Self(net.connect(ENDPOINT, PORT)?))
    }

    /// Closes the connection, and waits until both sides have.
    pub fn close(self, net: &mut Net) -> anyhow::Result<()> {
        Ok(net.close(self.0)?)
    }

    /// The head of a request, with curl's fields.
    pub fn request(method: &str, path: &str, length: Option<usize>) -> String {
        let length = length.map_or_else(String::new, |n| format!("Content-Length: {n}\r\n"));
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {ENDPOINT}:{PORT}\r\nUser-Agent: bench\r\nAccept: */*\r\n{length}\r\n"
        )
    }

    /// Sends `request` and `body`, and gives each piece of the answer's body to `take`. Any status but 2xx is an error.
    pub fn exchange(
        &mut self,
        net: &mut Net,
        request: &str,
        body: &[u8],
        take: &mut dyn FnMut(&[u8]),
    ) -> anyhow::Result<Answer> {
        let mut last = None;
        let response = net.http(self.0, request, body, &mut |piece| {
            take(piece);
            last = Some(Instant::now());
        })?;
        let at = last.unwrap_or_else(Instant::now);
        if !(200..300).contains(&response.status) {
            bail!("{}: {response:?}", request.lines().next().unwrap_or(""));
        }
        Ok(Answer { response, at })
    }

    /// GETs `path`; the body must be exactly `expected`.
    pub fn get_and_compare(&mut self, net: &mut Net, path: &str, expected: &[u8]) -> anyhow::Result<()> {
        let (mut at, mut same) = (0, true);
        self.exchange(net, &Self::request("GET", path, None), &[], &mut |piece| {
            same &= expected.get(at..at + piece.len()) == Some(piece);
            at += piece.len();
        })?;
        ensure!(same && at == expected.len(), "GET {path} is not what was put");
        Ok(())
    }

    /// PUTs `body` at `path`; the ETag must be its MD5.
    pub fn put(&mut self, net: &mut Net, path: &str, body: &[u8], etag: &str) -> anyhow::Result<Answer> {
        let answer = self.exchange(net, &Self::request("PUT", path, Some(body.len())), body, &mut |_| {})?;
        ensure!(answer.response.header("etag") == Some(etag), "PUT {path}: ETag is not {etag}: {answer:?}");
        Ok(answer)
    }
}
