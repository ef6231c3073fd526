//! The control socket beside the vfio-user socket: what a running server tells of itself, and takes from its user.
//!
//! A client connects to [`path`], sends one line, gets one line and the end of the stream. `status` is answered with a
//! [`Status`] as JSON; `link up` and `link down` with `{}`; anything else with `{"error": …}`. Who may connect is the
//! matter of the socket's mode, 0600.
//!
//! The loop that serves the guest serves it: nothing here waits, and nobody can make it hold much.

use std::{
    ffi::OsString,
    fmt::Write as _,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use ernic_emu::vfio::{BindError, Listener};
use rustix::{event::PollFlags, io::Errno, net::SendFlags};
use serde::{Deserialize, Serialize};

use crate::{
    options::{LinkState, MAX_SOCKET_PATH},
    recent::Line,
};

/// Clients at a time; one more, and the one that has been there longest is cut off.
const MAX_CLIENTS: usize = 4;
/// Bytes of a request, its line end included.
const MAX_REQUEST: usize = 64;

/// Where the control socket of the server at `socket` is: beside it, with `.ctl` behind its name.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".ctl");
    path.into()
}

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// How the server is.
    Status,
    /// To plug in or pull the guest's cable.
    Link(LinkState),
}

impl Request {
    /// The request of a line without its end.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        match line {
            b"status" => Some(Self::Status),
            b"link up" => Some(Self::Link(LinkState::Up)),
            b"link down" => Some(Self::Link(LinkState::Down)),
            _ => None,
        }
    }

    /// The line, with its end.
    #[must_use]
    pub fn line(self) -> String {
        match self {
            Self::Status => "status\n".to_owned(),
            Self::Link(state) => format!("link {}\n", state.name()),
        }
    }
}

/// How a server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the server.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Its vfio-user socket.
    pub socket: String,
    /// The NIC and its guest.
    pub nic: Nic,
    /// The guest's RDMA objects, and transfers by token.
    pub rdma: Rdma,
    /// The endpoint and its store; none with `-b none`.
    pub s3: Option<S3>,
    /// The last warnings and errors of the log, the oldest first.
    pub errors: Vec<Line>,
}

/// The NIC and its guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// QEMU, or another client, is connected.
    pub guest_attached: bool,
    /// A driver in the guest has initialised the interface.
    pub driver_attached: bool,
    /// `up` or `down`: the guest's cable.
    pub link: String,
    /// Its address.
    pub mac: String,
    /// PCI vendor and device.
    pub pci_id: String,
    /// MTU that the guest has set.
    pub mtu: u32,
    /// Frames and bytes that the guest sent, and frames lost at its rings.
    pub sent: Traffic,
    /// The same of what it received.
    pub received: Traffic,
    /// Interrupts delivered.
    pub interrupts: u64,
    /// Faults of the guest's driver.
    pub guest_errors: u64,
}

/// Frames of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames lost.
    pub lost: u64,
}

/// The guest's RDMA objects, and transfers by token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rdma {
    /// Memory regions.
    pub mrs: u64,
    /// Queue pairs.
    pub qps: u64,
    /// Completion queues.
    pub cqs: u64,
    /// Event queues.
    pub eqs: u64,
    /// Address handles.
    pub ahs: u64,
    /// Transfers under way.
    pub active: u64,
    /// GetObject requests served by RDMA.
    pub reads: u64,
    /// Bytes that they moved.
    pub bytes_read: u64,
    /// PutObject and UploadPart requests served by RDMA.
    pub writes: u64,
    /// Bytes that they moved.
    pub bytes_written: u64,
    /// The guest's own work requests that succeeded.
    pub work_requests: u64,
    /// Those that failed; those that were flushed are in neither.
    pub work_failed: u64,
    /// Bytes that they moved.
    pub work_bytes: u64,
}

/// The endpoint and its store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3 {
    /// Where it answers.
    pub url: String,
    /// The bucket.
    pub bucket: String,
    /// Connections being served.
    pub connections: u64,
    /// Connections that wait for a place.
    pub waiting: u64,
    /// Requests served.
    pub requests: u64,
    /// Objects in the store.
    pub objects: u64,
    /// Bytes of objects and parts.
    pub bytes: u64,
    /// Most bytes that it takes.
    pub capacity: u64,
    /// Multipart uploads in progress.
    pub uploads: u64,
}

/// An answer to what cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Why not.
    pub error: String,
}

/// The control socket, and who is connected to it.
#[derive(Debug)]
pub struct Control {
    listener: Listener,
    clients: Vec<Client>,
}

impl Control {
    /// Listens beside `socket`. `None`, with a warning, where the name would be too long for a socket.
    ///
    /// # Errors
    /// See [`Listener::bind`].
    pub fn bind(socket: &Path) -> Result<Option<Self>, BindError> {
        let path = path(socket);
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            tracing::warn!(
                "no control socket: '{}' would be longer than {MAX_SOCKET_PATH} bytes; 'ernic status' needs a shorter --socket",
                path.display()
            );
            return Ok(None);
        }
        Ok(Some(Self { listener: Listener::bind(path)?, clients: Vec::new() }))
    }

    /// What to wait for.
    pub fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let clients = self.clients.iter().map(|client| (client.fd.as_fd(), client.waits_for()));
        std::iter::once((self.listener.fd(), PollFlags::IN)).chain(clients)
    }

    /// Takes new clients and serves those that are there; `answer` makes the line for a request. Never waits.
    pub fn serve(&mut self, answer: &mut dyn FnMut(Request) -> String) {
        // One a call: a flood of them must not keep the loop.
        match self.listener.accept_socket() {
            Ok(None) => {}
            Ok(Some(fd)) => {
                if self.clients.len() == MAX_CLIENTS {
                    self.clients.remove(0);
                }
                self.clients.push(Client { fd, request: Vec::new(), answer: None });
            }
            Err(error) => ernic_emu::warn_limited!(%error, "cannot accept a client of the control socket"),
        }
        self.clients.retain_mut(|client| client.serve(answer));
    }
}

#[derive(Debug)]
struct Client {
    fd: OwnedFd,
    request: Vec<u8>,
    /// The answer, and how much of it is sent.
    answer: Option<(Vec<u8>, usize)>,
}

impl Client {
    fn waits_for(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// `false`: it is done, or gone.
    fn serve(&mut self, answer: &mut dyn FnMut(Request) -> String) -> bool {
        if self.answer.is_none() {
            let mut buffer = [0; MAX_REQUEST];
            let room = MAX_REQUEST - self.request.len();
            match rustix::io::read(&self.fd, &mut buffer[..room]) {
                Ok(0) => return false,
                Ok(n) => self.request.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
            let line = self.request.split(|&byte| byte == b'\n').next().unwrap_or_default();
            if line.len() == self.request.len() && line.len() < MAX_REQUEST {
                return true;
            }
            let mut text = match Request::parse(line) {
                Some(request) => answer(request),
                None => refusal(line),
            };
            text.push('\n');
            self.answer = Some((text.into_bytes(), 0));
        }
        let Some((bytes, sent)) = &mut self.answer else { return true };
        while let Some(rest) = bytes.get(*sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(&self.fd, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => *sent += n,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

fn refusal(line: &[u8]) -> String {
    let mut error = String::new();
    // Writing to a string cannot fail.
    let _ = write!(error, "unknown request '{}': use status, link up or link down", line.escape_ascii());
    json(&Refused { error })
}

/// As JSON. These types have no maps and no keys but names, so that it cannot fail.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
        time::Duration,
    };

    use super::*;

    fn control() -> (tempfile::TempDir, Control, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let control = Control::bind(&socket).unwrap().unwrap();
        (dir, control, path(&socket))
    }

    fn connect(path: &Path) -> UnixStream {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn rest(mut stream: &UnixStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_read_back() {
        for request in [Request::Status, Request::Link(LinkState::Up), Request::Link(LinkState::Down)] {
            assert_eq!(Request::parse(request.line().trim_end().as_bytes()), Some(request));
        }
    }

    #[test]
    fn one_line_in_and_one_line_out_in_any_pieces() {
        let (_dir, mut control, path) = control();
        assert!(path.to_str().unwrap().ends_with("/s.ctl"));
        let mut asked = Vec::new();
        let mut stream = connect(&path);
        for piece in [&b"sta"[..], b"tus", b"\nlink down\n"] {
            control.serve(&mut |_| unreachable!("no whole line yet"));
            assert_eq!(control.fds().count(), 2);
            stream.write_all(piece).unwrap();
        }
        control.serve(&mut |request| {
            asked.push(request);
            "x".repeat(10)
        });
        assert_eq!(asked, [Request::Status], "one request a connection");
        assert_eq!(rest(&stream), format!("{}\n", "x".repeat(10)));
        assert_eq!(control.fds().count(), 1, "closed");
    }

    #[test]
    fn a_reader_that_is_slow_gets_everything_and_holds_nobody() {
        let (_dir, mut control, path) = control();
        let mut stream = connect(&path);
        stream.write_all(b"status\n").unwrap();
        // More than a socket's buffer.
        let long = "y".repeat(4 << 20);
        control.serve(&mut |_| long.clone());
        assert_eq!(control.fds().map(|(_, flags)| flags).collect::<Vec<_>>(), [PollFlags::IN, PollFlags::OUT]);
        let mut other = connect(&path);
        other.write_all(b"link up\n").unwrap();
        control.serve(&mut |request| format!("{request:?}"));
        assert_eq!(rest(&other), "Link(Up)\n");
        let reader = std::thread::spawn(move || rest(&stream));
        while control.fds().count() > 1 {
            control.serve(&mut |_| unreachable!("asked before"));
            std::thread::yield_now();
        }
        assert_eq!(reader.join().unwrap().len(), long.len() + 1);
    }

    #[test]
    fn nonsense_is_refused_and_the_silent_make_room() {
        let (_dir, mut control, path) = control();
        let answer = &mut |_| unreachable!("nothing valid was asked");
        for (sent, named) in [(&b"\n"[..], "''"), (b"sta\xfftus\n", r"'sta\\xfftus'"), (b"STATUS\r\n", r"'STATUS\\r'")]
        {
            let mut stream = connect(&path);
            stream.write_all(sent).unwrap();
            control.serve(answer);
            let said = rest(&stream);
            assert!(said.starts_with(&format!(r#"{{"error":"unknown request {named}: use "#)), "{said}");
        }
        let mut stream = connect(&path);
        stream.write_all(&[b'z'; MAX_REQUEST]).unwrap();
        control.serve(answer);
        assert!(rest(&stream).contains("unknown request 'zzz"), "a line without end");
        // One that says nothing is cut off when others come.
        let silent = connect(&path);
        control.serve(answer);
        let others: Vec<_> = (0..MAX_CLIENTS).map(|_| connect(&path)).collect();
        for _ in &others {
            control.serve(answer);
        }
        assert_eq!(rest(&silent), "");
        assert_eq!(control.fds().count(), 1 + MAX_CLIENTS);
        drop(others);
        control.serve(answer);
        assert_eq!(control.fds().count(), 1, "those that have gone are forgotten");
    }

    #[test]
    fn a_name_that_is_too_long_is_done_without() {
        let socket = PathBuf::from(format!("/{}", "x".repeat(MAX_SOCKET_PATH - 4)));
        assert!(Control::bind(&socket).unwrap().is_none());
    }
}
