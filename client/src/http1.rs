//! One HTTP/1.1 connection, used by one thread, with control over every byte of the request.
//!
//! A general client would add headers, follow redirects and choose connections by itself; here the request on the wire is
//! what is measured and tested.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// Most bytes of an answer's head.
const MAX_HEAD: usize = 64 * 1024;
/// Most header fields of an answer.
const MAX_HEADERS: usize = 100;
/// Bytes that are read at a time.
const BUFFER: usize = 256 * 1024;
/// Most bytes of a request's body that go out in one write with its head.
const JOINED: usize = 16 * 1024;
/// How long an answer may take that is only wanted for its reason.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes of a streamed body that are sent at a time.
const PIECE: usize = 256 * 1024;

/// Status line and headers of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Names as they came.
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// The values of a header, whatever the case of its name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Content of a request.
pub enum Body<'a> {
    /// None at all; `content-length: 0` where the head says so.
    Empty,
    /// These bytes.
    Bytes(&'a [u8]),
    /// So many bytes, which the function copies out from an offset on.
    Stream(u64, &'a dyn Fn(u64, &mut [u8])),
}

impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Stream(length, _) => write!(f, "Stream({length})"),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum HttpError {
    /// The connection broke.
    Io(&'static str, io::Error),
    /// The peer closed before the first byte of an answer.
    Closed,
    /// What came is not HTTP/1.1.
    Bad(String),
}

/// Called when a request has been sent, before its answer is waited for. Returns whether that is to be waited for as long as
/// usual; if not, it has [`GRACE`].
pub(crate) type During<'a> = &'a mut dyn FnMut() -> bool;

/// Gets the pieces of a body, with the head that they follow. Its error ends the answer.
type Take<'a> = &'a mut dyn FnMut(&Head, &[u8]) -> Result<(), String>;

/// How the end of a body is found (RFC 9112, section 6.3).
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether another request may follow.
    reusable: bool,
}

impl Connection {
    /// Connects to the first of `addresses` that answers. `patience` bounds each wait for the peer from then on.
    pub(crate) fn open(addresses: &[SocketAddr], connect: Duration, patience: Duration) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(address, connect) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(patience))?;
                    stream.set_write_timeout(Some(patience))?;
                    let buffer = vec![0; BUFFER].into_boxed_slice();
                    return Ok(Self { stream, buffer, start: 0, end: 0, reusable: true });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether a request may be sent: the last answer left the connection open, and the peer has not closed it since.
    pub(crate) fn usable(&self) -> bool {
        if !self.reusable || self.start != self.end || self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let idle = matches!(self.stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).is_ok() && idle
    }

    /// Sends a request and reads its answer. `take` gets the body as it comes. Returns the head and the bytes of the body.
    pub(crate) fn exchange(
        &mut self,
        head: &[u8],
        body: &Body<'_>,
        head_only: bool,
        take: Take<'_>,
        during: Option<During<'_>>,
    ) -> Result<(Head, u64), HttpError> {
        self.reusable = false;
        // A server may answer and close before it has read a body: then its answer counts, and not the broken pipe.
        let sent = self.send(head, body);
        let patient = during.is_none_or(|during| sent.is_ok() && during());
        if !patient {
            self.stream
                .set_read_timeout(Some(GRACE))
                .map_err(|error| HttpError::Io("waiting for the answer", error))?;
        }
        let answer = self.head();
        let head = match (sent, answer) {
            (_, Ok(head)) => head,
            (Err(error), Err(_)) => return Err(HttpError::Io("sending the request", error)),
            (Ok(()), Err(error)) => return Err(error),
        };
        let mut close =
            head.all("connection").flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case("close"));
        let framing = framing(&head, head_only).map_err(HttpError::Bad)?;
        close |= matches!(framing, Framing::UntilClose) || !patient;
        let length = self.body(&head, framing, take)?;
        self.reusable = !close;
        if close {
            // The peer may have no more to say than this; the rest is not waited for.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        Ok((head, length))
    }

    fn send(&mut self, head: &[u8], body: &Body<'_>) -> io::Result<()> {
        match body {
            Body::Empty => self.stream.write_all(head),
            Body::Bytes(bytes) if bytes.len() <= JOINED => self.stream.write_all(&[head, bytes].concat()),
            Body::Bytes(bytes) => {
                self.stream.write_all(head)?;
                self.stream.write_all(bytes)
            }
            Body::Stream(length, source) => {
                self.stream.write_all(head)?;
                let mut piece = vec![0; usize::try_from(*length).unwrap_or(PIECE).min(PIECE)];
                let mut offset = 0;
                while offset < *length {
                    let n = usize::try_from(length - offset).unwrap_or(PIECE).min(PIECE);
                    let part = piece.get_mut(..n).unwrap_or_default();
                    source(offset, part);
                    self.stream.write_all(part)?;
                    offset += n as u64;
                }
                Ok(())
            }
        }
    }

    /// What has been read and not used.
    fn ready(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads more into the buffer. Returns how much; 0 at the end of the stream.
    fn fill(&mut self) -> Result<usize, HttpError> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match self.stream.read(room) {
                Ok(n) => {
                    self.end += n;
                    return Ok(n);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What a socket says when its timeout has passed.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(HttpError::Io("waiting for the answer", ErrorKind::TimedOut.into()));
                }
                Err(error) => return Err(HttpError::Io("waiting for the answer", error)),
            }
        }
    }

    /// Reads the head of the final answer.
    fn head(&mut self) -> Result<Head, HttpError> {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut fields);
            match response.parse(self.ready()) {
                Ok(httparse::Status::Complete(used)) => {
                    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                    let headers = response.headers.iter().map(|h| (h.name.to_owned(), text(h.value))).collect();
                    let head = Head { status: response.code.unwrap_or_default(), headers };
                    let old = response.version == Some(0);
                    self.consume(used);
                    match head.status {
                        101 => return Err(HttpError::Bad("status 101 to a request that asks for no upgrade".into())),
                        100..200 => continue,
                        _ if old => return Err(HttpError::Bad("HTTP/1.0".into())),
                        _ => return Ok(head),
                    }
                }
                Ok(httparse::Status::Partial) if self.ready().len() < MAX_HEAD => {}
                Ok(httparse::Status::Partial) => {
                    return Err(HttpError::Bad(format!("a head of over {MAX_HEAD} bytes")));
                }
                Err(error) => return Err(HttpError::Bad(format!("head: {error}"))),
            }
            let nothing = self.ready().is_empty();
            match self.fill() {
                Ok(0) if nothing => return Err(HttpError::Closed),
                Ok(0) => return Err(HttpError::Bad("the head ends early".into())),
                Ok(_) => {}
                Err(HttpError::Io(_, error)) if nothing && error.kind() == ErrorKind::ConnectionReset => {
                    return Err(HttpError::Closed);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads a body to its end.
    fn body(&mut self, head: &Head, framing: Framing, take: Take<'_>) -> Result<u64, HttpError> {
        match framing {
            Framing::Length(length) => {
                let got = self.take(head, length, take)?;
                if got == length { Ok(length) } else { Err(early(got, length)) }
            }
            Framing::UntilClose => self.take(head, u64::MAX, take),
            Framing::Chunked => {
                let mut all = 0;
                loop {
                    let size = self.line()?;
                    let size = size.split(';').next().unwrap_or_default().trim();
                    let size = u64::from_str_radix(size, 16).ok().filter(|_| !size.starts_with('+'));
                    let size = size.ok_or_else(|| HttpError::Bad("a chunk without a size".into()))?;
                    if size == 0 {
                        while !self.line()?.is_empty() {}
                        return Ok(all);
                    }
                    let got = self.take(head, size, take)?;
                    if got != size || !self.line()?.is_empty() {
                        return Err(early(got, size));
                    }
                    all = size.saturating_add(all);
                }
            }
        }
    }

    /// Hands on up to `most` bytes. Returns how many there were.
    fn take(&mut self, head: &Head, most: u64, take: Take<'_>) -> Result<u64, HttpError> {
        let mut left = most;
        while left > 0 {
            if self.ready().is_empty() && self.fill()? == 0 {
                break;
            }
            let ready = self.ready();
            let n = ready.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            take(head, ready.get(..n).unwrap_or_default()).map_err(HttpError::Bad)?;
            self.consume(n);
            left -= n as u64;
        }
        Ok(most - left)
    }

    /// Reads a line, without its end.
    fn line(&mut self) -> Result<String, HttpError> {
        loop {
            if let Some(end) = self.ready().windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(self.ready().get(..end).unwrap_or_default()).into_owned();
                self.consume(end + 2);
                return Ok(line);
            }
            if self.ready().len() > MAX_HEAD || self.fill()? == 0 {
                return Err(HttpError::Bad("a chunked body ends early".into()));
            }
        }
    }
}

fn early(got: u64, length: u64) -> HttpError {
    HttpError::Bad(format!("the body ends after {got} of {length} bytes"))
}

fn framing(head: &Head, head_only: bool) -> Result<Framing, String> {
    if head_only || matches!(head.status, 204 | 304) {
        return Ok(Framing::Length(0));
    }
    let codings: Vec<_> = head.all("transfer-encoding").collect();
    match codings.as_slice() {
        [] => {}
        [coding] if coding.trim().eq_ignore_ascii_case("chunked") => return Ok(Framing::Chunked),
        other => return Err(format!("unknown transfer-encoding {other:?}")),
    }
    let mut length = None;
    for value in head.all("content-length") {
        let plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value.parse::<u64>().ok().filter(|_| plain);
        let number = number.ok_or_else(|| format!("content-length is '{value}'"))?;
        if length.replace(number).is_some_and(|before| before != number) {
            return Err("two values of content-length".into());
        }
    }
    Ok(length.map_or(Framing::UntilClose, Framing::Length))
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        thread::{self, JoinHandle},
    };

    use super::*;

    /// A peer that reads one request head and then sends `pieces`, one write each, and closes.
    fn peer(pieces: &[&[u8]]) -> (Connection, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            for piece in pieces {
                stream.write_all(&piece).unwrap();
            }
        });
        let second = Duration::from_secs(20);
        (Connection::open(&[address], second, second).unwrap(), thread)
    }

    fn ask(pieces: &[&[u8]], head_only: bool) -> Result<(Head, Vec<u8>), HttpError> {
        let (mut connection, thread) = peer(pieces);
        let mut body = Vec::new();
        let answer = connection.exchange(
            b"GET / HTTP/1.1\r\n\r\n",
            &Body::Empty,
            head_only,
            &mut |_, piece| {
                body.extend_from_slice(piece);
                Ok(())
            },
            None,
        );
        thread.join().unwrap();
        let (head, length) = answer?;
        assert_eq!(length, body.len() as u64);
        Ok((head, body))
    }

    fn bad(pieces: &[&[u8]]) -> String {
        match ask(pieces, false) {
            Err(HttpError::Bad(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let (head, body) =
            ask(&[b"HTTP/1.1 20", b"0 OK\r\nX-A: b\r\ncontent-le", b"ngth: 5\r\n\r\nhel", b"lo"], false).unwrap();
        assert_eq!((head.status, body.as_slice()), (200, &b"hello"[..]));
        assert_eq!(head.headers[0], ("X-A".to_owned(), "b".to_owned()));
        assert_eq!(head.all("x-a").collect::<Vec<_>>(), ["b"]);
        let chunks =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nt: v\r\n\r\n";
        assert_eq!(ask(&[chunks], false).unwrap().1, b"hello");
        let bytes: Vec<&[u8]> = chunks.chunks(1).collect();
        assert_eq!(ask(&bytes, false).unwrap().1, b"hello");
        assert_eq!(ask(&[b"HTTP/1.1 200 OK\r\n\r\nhello"], false).unwrap().1, b"hello");
        assert_eq!(ask(&[b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"], true).unwrap().1, b"");
        assert_eq!(ask(&[b"HTTP/1.1 204 No Content\r\n\r\n"], false).unwrap().0.status, 204);
        assert_eq!(
            ask(&[b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n"], false).unwrap().0.status,
            304
        );
    }

    #[test]
    fn what_is_no_whole_answer_is_an_error() {
        assert!(matches!(ask(&[], false), Err(HttpError::Closed)));
        assert_eq!(bad(&[b"HTTP/1.1 200 OK\r\ncontent-le"]), "the head ends early");
        assert_eq!(bad(&[b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell"]), "the body ends after 4 of 5 bytes");
        assert_eq!(bad(&[b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello"]), "content-length is '+5'");
        assert_eq!(
            bad(&[b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"]),
            "two values of content-length"
        );
        assert!(bad(&[b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n"]).contains("gzip"));
        assert_eq!(bad(&[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+5\r\n"]), "a chunk without a size");
        assert!(bad(&[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"]).contains("ends early"));
        assert_eq!(bad(&[b"HTTP/1.0 200 OK\r\n\r\n"]), "HTTP/1.0");
        assert!(bad(&[b"SSH-2.0-OpenSSH\r\n\r\n"]).starts_with("head: "));
        assert!(bad(&[b"HTTP/1.1 101 Switching Protocols\r\n\r\n"]).contains("101"));
        let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'y'; MAX_HEAD]].concat();
        assert!(bad(&[&endless]).contains("over 65536"));
    }

    #[test]
    fn an_early_answer_counts_though_the_body_could_not_be_sent() {
        // The peer never reads the body: with enough of it, sending fails.
        let (mut connection, thread) =
            peer(&[b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"]);
        let zeros = |_: u64, _: &mut [u8]| {};
        let mut body = Vec::new();
        let answer = connection.exchange(
            b"PUT / HTTP/1.1\r\n\r\n",
            &Body::Stream(1 << 30, &zeros),
            false,
            &mut |_, piece| {
                body.extend_from_slice(piece);
                Ok(())
            },
            None,
        );
        thread.join().unwrap();
        // The reset that a close with unread bytes causes may overtake the answer; then there is none.
        match answer {
            Ok((head, _)) => assert_eq!((head.status, body.as_slice()), (400, &b"no"[..])),
            Err(HttpError::Io("sending the request", _)) => {}
            Err(other) => panic!("{other:?}"),
        }
        assert!(!connection.usable());
    }

    #[test]
    fn a_connection_is_used_again_only_while_the_peer_keeps_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = Duration::from_secs(20);
        let mut connection = Connection::open(&[listener.local_addr().unwrap()], second, second).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        assert!(connection.usable());
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        let (head, _) =
            connection.exchange(b"GET / HTTP/1.1\r\n\r\n", &Body::Empty, false, &mut |_, _| Ok(()), None).unwrap();
        assert_eq!(head.status, 204);
        assert!(connection.usable());
        // Bytes that nobody asked for are not taken for the next answer.
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut byte = [0];
        connection.stream.peek(&mut byte).unwrap();
        assert!(!connection.usable());
    }
}
