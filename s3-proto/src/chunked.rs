//! `aws-chunked` bodies: chunks inside an HTTP body, which SDKs use to sign or checksum a body while they send it.
//!
//! ```text
//! chunk    = size-in-hex [;chunk-signature=<hex>] CRLF data CRLF
//! body     = *chunk  "0" [;chunk-signature=<hex>] CRLF  *(name ":" value CRLF)  CRLF
//! ```
//!
//! ("Signature calculations for the authorization header: transferring a payload in multiple chunks" and "… including
//! trailing headers" in the S3 API reference.) Signatures are checked where there is a [`Chain`] to check them with, that is
//! with authentication on, and else ignored.
//!
//! The decoder has no I/O. It takes input in any pieces and gives slices of it back, without copying.

use bytes::{Buf, Bytes};

use crate::auth::{BadSignature, Chain};

/// Longest chunk header: 16 digits and an ECDSA signature fit several times.
const MAX_SIZE_LINE: usize = 1024;
/// Longest trailer section. S3 has two trailers, a checksum and a signature.
const MAX_TRAILER: usize = 8192;

/// Why a body is not valid `aws-chunked`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkedError {
    /// The framing is broken.
    #[error("malformed aws-chunked body: {0}")]
    Malformed(&'static str),
    /// More data than `x-amz-decoded-content-length` says.
    #[error("the chunks hold more than x-amz-decoded-content-length ({0})")]
    TooLong(u64),
    /// The body ended early, or holds less than `x-amz-decoded-content-length` says.
    #[error("the chunks hold {seen} bytes of {length}")]
    Truncated {
        /// Bytes of data seen.
        seen: u64,
        /// `x-amz-decoded-content-length`
        length: u64,
    },
    /// A trailer line is no header, or there are too many.
    #[error("malformed trailer")]
    Trailer,
    /// A chunk, or the trailers, are not what was signed.
    #[error("a signature does not match")]
    Signature,
}

impl From<BadSignature> for ChunkedError {
    fn from(_: BadSignature) -> Self {
        Self::Signature
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a chunk's size line.
    Size,
    /// In its data, with this many bytes to come (not zero).
    Data(u64),
    /// In the CRLF after it: whether CR has come.
    End(bool),
    /// Behind the last chunk.
    Trailer,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    length: u64,
    seen: u64,
    trailer_bytes: usize,
    trailers: Vec<(String, String)>,
    /// Checks the signatures.
    chain: Option<Box<Chain>>,
}

impl Decoder {
    /// A decoder for a body that holds `length` bytes of data (`x-amz-decoded-content-length`); its signatures are checked
    /// with `chain`.
    pub(crate) fn new(length: u64, chain: Option<Box<Chain>>) -> Self {
        Self { state: State::Size, line: Vec::new(), length, seen: 0, trailer_bytes: 0, trailers: Vec::new(), chain }
    }

    /// Takes from the front of `input` and gives the next piece of data, never an empty one; `None` when all of `input` is
    /// taken.
    pub(crate) fn decode(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, ChunkedError> {
        while !input.is_empty() {
            match self.state {
                State::Size => {
                    let Some(line) = take_line(&mut self.line, input, MAX_SIZE_LINE)
                        .ok_or(ChunkedError::Malformed("a chunk header is too long"))?
                    else {
                        break;
                    };
                    let size = size(&line).ok_or(ChunkedError::Malformed("a chunk header is no size"))?;
                    if size > self.length - self.seen {
                        return Err(ChunkedError::TooLong(self.length));
                    }
                    self.seen += size;
                    if let Some(chain) = &mut self.chain {
                        chain.begin(&line)?;
                    }
                    self.state = if size > 0 { State::Data(size) } else { State::Trailer };
                    if size == 0 && self.seen < self.length {
                        return Err(ChunkedError::Truncated { seen: self.seen, length: self.length });
                    }
                    if size == 0
                        && let Some(chain) = &mut self.chain
                    {
                        chain.end()?;
                    }
                }
                State::Data(left) => {
                    let n = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    let left = left - n as u64;
                    self.state = if left > 0 { State::Data(left) } else { State::End(false) };
                    let data = input.split_to(n);
                    if let Some(chain) = &mut self.chain {
                        chain.update(&data);
                        if left == 0 {
                            chain.end()?;
                        }
                    }
                    return Ok(Some(data));
                }
                State::End(cr) => {
                    let expected = if cr { b'\n' } else { b'\r' };
                    if input.get_u8() != expected {
                        return Err(ChunkedError::Malformed("a chunk's data is not followed by CRLF"));
                    }
                    self.state = if cr { State::Size } else { State::End(true) };
                }
                State::Trailer => {
                    let before = input.len();
                    let line = take_line(&mut self.line, input, MAX_TRAILER).ok_or(ChunkedError::Trailer)?;
                    self.trailer_bytes += before - input.len();
                    if self.trailer_bytes > MAX_TRAILER {
                        return Err(ChunkedError::Trailer);
                    }
                    let Some(line) = line else { break };
                    // S3's own examples have blank lines between trailers: the body's end is the only end.
                    if !line.is_empty() {
                        self.trailers.push(trailer(&line).ok_or(ChunkedError::Trailer)?);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Says that the HTTP body has ended; gives the trailers with their names in lower case.
    pub(crate) fn finish(&mut self) -> Result<Vec<(String, String)>, ChunkedError> {
        if self.state != State::Trailer {
            let missing = if let State::Data(left) = self.state { left } else { 0 };
            return Err(ChunkedError::Truncated { seen: self.seen - missing, length: self.length });
        }
        if !self.line.is_empty() {
            return Err(ChunkedError::Trailer);
        }
        if let Some(chain) = &mut self.chain {
            chain.trailers(&self.trailers)?;
        }
        Ok(std::mem::take(&mut self.trailers))
    }
}

/// Takes a line out of `partial` and `input`, without its end. The inner `None` says that the line's end has not come,
/// the outer one that the line is longer than `max`.
fn take_line(partial: &mut Vec<u8>, input: &mut Bytes, max: usize) -> Option<Option<Vec<u8>>> {
    let end = input.iter().position(|&b| b == b'\n');
    let n = end.map_or(input.len(), |end| end + 1);
    if partial.len() + n > max {
        return None;
    }
    partial.extend_from_slice(&input.split_to(n));
    if end.is_none() {
        return Some(None);
    }
    let mut line = std::mem::take(partial);
    line.pop();
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Some(Some(line))
}

/// The size of a chunk header line. Extensions, of which S3 has only the signature, are not looked at.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&b| b == b';').next()?.trim_ascii();
    if digits.is_empty() || digits.len() > 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

fn trailer(line: &[u8]) -> Option<(String, String)> {
    let (name, value) = str::from_utf8(line).ok()?.split_once(':')?;
    let name = name.trim();
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        return None;
    }
    Some((name.to_ascii_lowercase(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Decoded = (Vec<u8>, Vec<(String, String)>);

    /// Feeds `pieces` to a decoder until it refuses or the body has ended.
    fn decode<'a>(length: u64, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Decoded, ChunkedError> {
        let mut decoder = Decoder::new(length, None);
        let mut data = Vec::new();
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            while let Some(piece) = decoder.decode(&mut input)? {
                assert!(!piece.is_empty());
                data.extend_from_slice(&piece);
            }
            assert!(input.is_empty());
        }
        Ok((data, decoder.finish()?))
    }

    fn encode(chunks: &[Vec<u8>], signed: bool, trailers: &[(&str, &str)]) -> Vec<u8> {
        let signature = if signed { format!(";chunk-signature={}", "ab".repeat(32)) } else { String::new() };
        let mut body = Vec::new();
        for chunk in chunks {
            body.extend_from_slice(format!("{:x}{signature}\r\n", chunk.len()).as_bytes());
            body.extend_from_slice(chunk);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("0{signature}\r\n").as_bytes());
        for (name, value) in trailers {
            body.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
        }
        body.extend_from_slice(b"\r\n");
        body
    }

    #[test]
    fn case_10_aws_chunked_split_at_every_byte() {
        let chunks = [b"hello, ".to_vec(), vec![b'x'; 300], b"world".to_vec()];
        let data = chunks.concat();
        for signed in [false, true] {
            let body =
                encode(&chunks, signed, &[("X-Amz-Checksum-CRC32", " AAAAAA== "), ("x-amz-trailer-signature", "ff")]);
            let trailers = vec![
                ("x-amz-checksum-crc32".to_owned(), "AAAAAA==".to_owned()),
                ("x-amz-trailer-signature".to_owned(), "ff".to_owned()),
            ];
            for at in 0..=body.len() {
                let (a, b) = body.split_at(at);
                assert_eq!(decode(312, [a, b]), Ok((data.clone(), trailers.clone())), "split at {at}");
            }
            assert_eq!(decode(312, body.chunks(1)), Ok((data.clone(), trailers)));
        }
    }

    #[test]
    fn takes_the_spellings_of_the_field() {
        // S3's documentation ends a trailer with LF and puts a blank line before the signature.
        let body: &[u8] = b"3\r\nabc\r\n0\r\nx-amz-checksum-crc32c:sOO8/Q==\n\r\nx-amz-trailer-signature:6\r\n\r\n";
        let (data, trailers) = decode(3, [body]).unwrap();
        assert_eq!((data.as_slice(), trailers.len()), (&b"abc"[..], 2));
        // No blank line at the end, leading zeros, upper case, a space before the extension.
        assert_eq!(decode(10, [&b"0000A ;x=1\r\n0123456789\r\n0\r\n"[..]]).unwrap().0, b"0123456789");
        assert_eq!(decode(0, [&b"0\r\n\r\n"[..]]), Ok((Vec::new(), Vec::new())));
    }

    #[test]
    fn refuses_broken_bodies() {
        let truncated = |seen, length| Err(ChunkedError::Truncated { seen, length });
        for (length, body, error) in [
            (3, &b""[..], truncated(0, 3)),
            (0, b"", truncated(0, 0)),
            (3, b"3\r\nab", truncated(2, 3)),
            (3, b"3\r\nabc", truncated(3, 3)),
            (3, b"3\r\nabc\r\n", truncated(3, 3)),
            (3, b"3\r\nabc\r\n0", truncated(3, 3)),
            (4, b"3\r\nabc\r\n0\r\n\r\n", truncated(3, 4)),
            (2, b"3\r\nabc\r\n0\r\n\r\n", Err(ChunkedError::TooLong(2))),
            (u64::MAX, b"ffffffffffffffff\r\na\r\n", truncated(3, u64::MAX)),
            (3, b"ffffffffffffffff\r\na", Err(ChunkedError::TooLong(3))),
            (3, b"10000000000000000\r\na", Err(ChunkedError::Malformed("a chunk header is no size"))),
            (3, b"\r\nabc", Err(ChunkedError::Malformed("a chunk header is no size"))),
            (3, b"-3\r\nabc", Err(ChunkedError::Malformed("a chunk header is no size"))),
            (3, b"0x3\r\nabc", Err(ChunkedError::Malformed("a chunk header is no size"))),
            (3, b"3\r\nabcd\r\n", Err(ChunkedError::Malformed("a chunk's data is not followed by CRLF"))),
            (3, b"3\r\nabc\r0\r\n", Err(ChunkedError::Malformed("a chunk's data is not followed by CRLF"))),
            (3, b"3\r\nabc\n0\r\n", Err(ChunkedError::Malformed("a chunk's data is not followed by CRLF"))),
            (3, &[b'0'; 1025], Err(ChunkedError::Malformed("a chunk header is too long"))),
            (0, b"0\r\nno trailer\r\n\r\n", Err(ChunkedError::Trailer)),
            (0, b"0\r\n:x\r\n\r\n", Err(ChunkedError::Trailer)),
            (0, b"0\r\nx-amz-checksum-crc32:AA", Err(ChunkedError::Trailer)),
        ] {
            assert_eq!(decode(length, [body]), error, "{}", body.escape_ascii());
            assert_eq!(decode(length, body.chunks(1)), error, "byte by byte: {}", body.escape_ascii());
        }
        let many = [b"0\r\n".to_vec(), b"a:b\r\n".repeat(2000)].concat();
        assert_eq!(decode(0, [&many[..]]), Err(ChunkedError::Trailer));
        assert_eq!(decode(0, many.chunks(1)), Err(ChunkedError::Trailer));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn case_10_any_chunks_in_any_pieces(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..8),
            signed: bool,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let data = chunks.concat();
            let body = encode(&chunks, signed, &[("x-amz-checksum-sha1", "Zm9v")]);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &body[cut[0]..cut[1]]).collect();
            let length = data.len() as u64;
            let (decoded, trailers) = decode(length, pieces.iter().copied()).unwrap();
            prop_assert_eq!(decoded, data);
            prop_assert_eq!(trailers, vec![("x-amz-checksum-sha1".to_owned(), "Zm9v".to_owned())]);
            prop_assert!(decode(length + 1, pieces.iter().copied()).is_err());
            if length > 0 {
                prop_assert_eq!(decode(length - 1, pieces), Err(ChunkedError::TooLong(length - 1)));
            }
        }

        /// No prefix of a body is a body, apart from its last line end.
        #[test]
        fn a_cut_body_is_refused(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 1..4), cut: prop::sample::Index) {
            let body = encode(&chunks, true, &[]);
            let length = chunks.concat().len() as u64;
            let cut = cut.index(body.len() - 2);
            prop_assert!(decode(length, [&body[..cut]]).is_err(), "cut at {} of {}", cut, body.len());
        }

        #[test]
        fn never_gives_more_than_declared(body in prop::collection::vec(prop_oneof![
            3 => prop::sample::select(&b"0123456789abcdefABCDEF;\r\n:"[..]), 1 => any::<u8>(),
        ], 0..300), length in 0u64..40) {
            let mut decoder = Decoder::new(length, None);
            let mut input = Bytes::from(body);
            let mut seen = 0;
            while let Ok(Some(piece)) = decoder.decode(&mut input) {
                seen += piece.len() as u64;
                prop_assert!(seen <= length);
            }
            let _ = decoder.finish();
        }
    }
}
