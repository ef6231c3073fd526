//! A minimal HTTP/1.1 client over the guest's TCP: enough for tests and figures, without an allocation per frame.

use smoltcp::iface::SocketHandle;

use crate::{
    bus::Bus,
    error::DriverError,
    net::{GuestNet, PATIENCE},
};

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// Status.
    pub status: u16,
    /// Header fields in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body that were received.
    pub length: u64,
}

impl Response {
    /// The first header of that name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// How much of the answer is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    /// Bytes of a body whose length is known.
    Body(u64),
    /// The line in front of a chunk.
    ChunkSize,
    /// Bytes of a chunk, and of the line end behind it.
    Chunk(u64),
    /// Lines behind the last chunk.
    Trailer,
    /// A body that ends with the connection.
    UntilClose,
    Done,
}

/// Reads an answer in pieces.
#[derive(Debug)]
struct Parser {
    stage: Stage,
    /// The head, or one line of the chunked coding, as far as it is there.
    line: Vec<u8>,
    response: Response,
    /// The request was HEAD: a length is announced and nothing follows.
    no_body: bool,
}

/// Longest head that is read.
const MAX_HEAD: usize = 64 << 10;

fn bad(text: impl Into<String>) -> DriverError {
    DriverError::Http(text.into())
}

impl Parser {
    fn new(no_body: bool) -> Self {
        Self { stage: Stage::Head, line: Vec::new(), response: Response::default(), no_body }
    }

    /// Takes bytes up to the end of the answer; how many those were.
    fn feed(&mut self, bytes: &[u8], on_body: &mut dyn FnMut(&[u8])) -> Result<usize, DriverError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = rest.len();
            match self.stage {
                Stage::Done => break,
                Stage::Head => {
                    if let Some(used) = self.until(rest, b"\r\n\r\n")? {
                        rest = &rest[used..];
                        self.head()?;
                        continue;
                    }
                    rest = &[];
                }
                Stage::Body(left) | Stage::Chunk(left) if left == 0 => self.end_of_piece(),
                Stage::Body(left) => {
                    let here = n.min(usize::try_from(left).unwrap_or(usize::MAX));
                    on_body(&rest[..here]);
                    self.response.length += here as u64;
                    rest = &rest[here..];
                    self.stage = Stage::Body(left - here as u64);
                    if left == here as u64 {
                        self.stage = Stage::Done;
                    }
                }
                Stage::Chunk(left) => {
                    // The last two bytes are the line end.
                    let body = left.saturating_sub(2);
                    let here = n.min(usize::try_from(if body > 0 { body } else { left }).unwrap_or(usize::MAX));
                    if body > 0 {
                        on_body(&rest[..here]);
                        self.response.length += here as u64;
                    }
                    rest = &rest[here..];
                    self.stage = Stage::Chunk(left - here as u64);
                    if left == here as u64 {
                        self.end_of_piece();
                    }
                }
                Stage::ChunkSize => {
                    let Some(used) = self.until(rest, b"\r\n")? else { break };
                    rest = &rest[used..];
                    let line = String::from_utf8_lossy(&self.line).into_owned();
                    self.line.clear();
                    let size = u64::from_str_radix(line.trim_end().split(';').next().unwrap_or_default().trim(), 16)
                        .map_err(|_| bad(format!("chunk size {line:?}")))?;
                    self.stage = if size == 0 { Stage::Trailer } else { Stage::Chunk(size + 2) };
                }
                Stage::Trailer => {
                    let Some(used) = self.until(rest, b"\r\n")? else { break };
                    rest = &rest[used..];
                    if self.line == b"\r\n" {
                        self.stage = Stage::Done;
                    }
                    self.line.clear();
                }
                Stage::UntilClose => {
                    on_body(rest);
                    self.response.length += rest.len() as u64;
                    rest = &[];
                }
            }
        }
        Ok(if self.stage == Stage::Done { bytes.len() - rest.len() } else { bytes.len() })
    }

    fn end_of_piece(&mut self) {
        self.stage = if matches!(self.stage, Stage::Chunk(_)) { Stage::ChunkSize } else { Stage::Done };
    }

    /// Collects bytes until they end with `end`; how many were taken if they do.
    fn until(&mut self, bytes: &[u8], end: &[u8]) -> Result<Option<usize>, DriverError> {
        for (i, byte) in bytes.iter().enumerate() {
            self.line.push(*byte);
            if self.line.ends_with(end) {
                return Ok(Some(i + 1));
            }
        }
        if self.line.len() > MAX_HEAD {
            return Err(bad("a head that does not end"));
        }
        Ok(None)
    }

    fn head(&mut self) -> Result<(), DriverError> {
        let text = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|s| s.get(..3)).and_then(|s| s.parse().ok());
        let status: u16 = status.ok_or_else(|| bad(format!("status line {first:?}")))?;
        if status == 100 {
            return Ok(());
        }
        self.response.status = status;
        for line in lines.filter(|l| !l.is_empty()) {
            let (name, value) = line.split_once(':').ok_or_else(|| bad(format!("header {line:?}")))?;
            self.response.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let chunked = self.response.header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
        self.stage = match self.response.header("content-length") {
            _ if self.no_body || matches!(status, 204 | 304) => Stage::Done,
            _ if chunked => Stage::ChunkSize,
            Some(length) => match length.parse().map_err(|_| bad(format!("content-length {length:?}")))? {
                0 => Stage::Done,
                length => Stage::Body(length),
            },
            None => Stage::UntilClose,
        };
        Ok(())
    }
}

impl<B: Bus> GuestNet<B> {
    /// Sends a request and reads its answer: `head` is everything up to and including the empty line, `body` what follows, and
    /// `on_body` sees the answer's body in pieces as they come.
    ///
    /// # Errors
    /// The connection ends too early, nothing moves for [`PATIENCE`], or the answer makes no sense.
    pub fn http(
        &mut self,
        connection: SocketHandle,
        head: &str,
        body: &[u8],
        on_body: &mut dyn FnMut(&[u8]),
    ) -> Result<Response, DriverError> {
        let mut parser = Parser::new(head.starts_with("HEAD "));
        let mut parts = [head.as_bytes(), body];
        loop {
            let done = self.wait_for("HTTP answer", PATIENCE, &mut |net| {
                let socket = net.socket(connection);
                let mut moved = false;
                for part in &mut parts {
                    while !part.is_empty() && socket.can_send() {
                        let n = socket.send_slice(part).map_err(|_| DriverError::Connection("cannot send"))?;
                        moved |= n > 0;
                        *part = &part[n..];
                    }
                    if !part.is_empty() {
                        break;
                    }
                }
                while parser.stage != Stage::Done && socket.can_recv() {
                    let fed = socket.recv(|bytes| match parser.feed(bytes, on_body) {
                        Ok(n) => (n, Ok(())),
                        Err(e) => (bytes.len(), Err(e)),
                    });
                    fed.map_err(|_| DriverError::Connection("cannot receive"))??;
                    moved = true;
                }
                if parser.stage == Stage::UntilClose && !socket.may_recv() {
                    parser.stage = Stage::Done;
                }
                if parser.stage == Stage::Done {
                    return Ok(Some(true));
                }
                if !socket.may_recv() && !moved {
                    return Err(DriverError::Connection("ended before the answer did"));
                }
                Ok(moved.then_some(false))
            })?;
            if done {
                return Ok(parser.response);
            }
        }
    }

    /// GET.
    ///
    /// # Errors
    /// As [`GuestNet::http`].
    pub fn http_get(
        &mut self,
        connection: SocketHandle,
        path: &str,
        on_body: &mut dyn FnMut(&[u8]),
    ) -> Result<Response, DriverError> {
        self.http(connection, &format!("GET {path} HTTP/1.1\r\nhost: ernic\r\n\r\n"), &[], on_body)
    }

    /// PUT.
    ///
    /// # Errors
    /// As [`GuestNet::http`].
    pub fn http_put(&mut self, connection: SocketHandle, path: &str, body: &[u8]) -> Result<Response, DriverError> {
        let head = format!("PUT {path} HTTP/1.1\r\nhost: ernic\r\ncontent-length: {}\r\n\r\n", body.len());
        self.http(connection, &head, body, &mut |_| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of `step` bytes; the answer, its body, and what was left over.
    fn read(text: &[u8], step: usize, no_body: bool) -> Result<(Response, Vec<u8>, usize), DriverError> {
        let mut parser = Parser::new(no_body);
        let mut body = Vec::new();
        let mut used = 0;
        for piece in text.chunks(step) {
            used += parser.feed(piece, &mut |b| body.extend_from_slice(b))?;
            if parser.stage == Stage::Done {
                break;
            }
        }
        assert!(matches!(parser.stage, Stage::Done | Stage::UntilClose), "{:?}", parser.stage);
        Ok((parser.response, body, text.len() - used))
    }

    #[test]
    fn answers_split_anywhere() {
        /// Text, status, body, bytes left over, answer to HEAD.
        type Case = (&'static [u8], u16, &'static [u8], usize, bool);
        let cases: [Case; 6] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1", 200, b"hello", 8, false),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", 201, b"", 0, false),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\na: b\r\n\r\n", 200, b"abc0123456789", 0, false),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", 0, false),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", 200, b"", 0, true),
            (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end", 0, false),
        ];
        for (text, status, body, left, no_body) in cases {
            for step in 1..=text.len() {
                let (response, got, rest) = read(text, step, no_body).unwrap();
                assert_eq!((response.status, got.as_slice()), (status, body), "step {step}");
                assert_eq!(response.length, body.len() as u64);
                // What is behind the answer stays with the connection, as far as it came in the same piece.
                if step == text.len() {
                    assert_eq!(rest, left);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["HTP/1.1 200\r\n\r\n", "HTTP/1.1 200 OK\r\nx\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"]
        {
            assert!(Parser::new(false).feed(text.as_bytes(), &mut |_| {}).is_err(), "{text:?}");
        }
    }
}
