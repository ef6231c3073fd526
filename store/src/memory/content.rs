//! Content of objects: chunks in a row.

use std::{
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, stream};

use crate::{ByteStream, Result};

/// What an object or a part holds. Reading and cloning it copies no bytes.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// At most one piece: most objects, which so need no list.
    One(Bytes),
    /// Several pieces, shared with readers.
    Many(Arc<[Piece]>),
}

/// One of several pieces.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    /// Where the piece ends in the object.
    end: u64,
    bytes: Bytes,
}

impl Content {
    /// Content made of `pieces`, none of them empty.
    pub(super) fn new(mut pieces: Vec<Bytes>) -> Self {
        if pieces.len() < 2 {
            return Self::One(pieces.pop().unwrap_or_default());
        }
        let mut end = 0;
        let piece = |bytes: Bytes| {
            end += bytes.len() as u64;
            Piece { end, bytes }
        };
        Self::Many(pieces.into_iter().map(piece).collect())
    }

    /// Appends the pieces, without copying them.
    pub(super) fn append_to(&self, all: &mut Vec<Bytes>) {
        match self {
            Self::One(bytes) if bytes.is_empty() => {}
            Self::One(bytes) => all.push(bytes.clone()),
            Self::Many(pieces) => all.extend(pieces.iter().map(|piece| piece.bytes.clone())),
        }
    }

    /// See [`ObjectData::read`](crate::ObjectData::read).
    pub(super) fn read(&self, range: Range<u64>) -> ByteStream {
        match self {
            Self::One(bytes) => {
                let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let (start, end) = (within(range.start), within(range.end));
                Box::pin(stream::iter((start < end).then(|| Ok(bytes.slice(start..end)))))
            }
            Self::Many(pieces) => {
                let end = range.end.min(pieces.last().map_or(0, |piece| piece.end));
                let next = pieces.partition_point(|piece| piece.end <= range.start);
                Box::pin(Reader { pieces: Arc::clone(pieces), next, at: range.start, end })
            }
        }
    }
}

/// Reads a range of several pieces.
struct Reader {
    pieces: Arc<[Piece]>,
    /// Piece that holds `at`.
    next: usize,
    at: u64,
    end: u64,
}

impl Stream for Reader {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.at >= this.end {
            return Poll::Ready(None);
        }
        let Some(piece) = this.pieces.get(this.next) else {
            return Poll::Ready(None);
        };
        // Both offsets are within one chunk.
        let start = piece.end - piece.bytes.len() as u64;
        let within = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
        let range = within(this.at)..within(this.end.min(piece.end));
        let bytes = piece.bytes.slice(range);
        this.at = piece.end;
        this.next += 1;
        Poll::Ready(Some(Ok(bytes)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.at >= self.end {
            return (0, Some(0));
        }
        let last = self.pieces.partition_point(|piece| piece.end < self.end);
        let left = (last + 1).saturating_sub(self.next);
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    fn read(content: &Content, range: Range<u64>) -> Vec<Bytes> {
        let stream = content.read(range);
        let (least, most) = stream.size_hint();
        let pieces: Vec<_> = stream.map(Result::unwrap).collect().now_or_never().unwrap();
        assert_eq!((least, most), (pieces.len(), Some(pieces.len())));
        pieces
    }

    #[test]
    fn ranges_are_clipped_and_cut() {
        let whole = b"abcdefghij";
        let parts = [&whole[..3], &whole[3..4], &whole[4..]].map(Bytes::copy_from_slice);
        let many = Content::new(parts.into());
        let one = Content::new(vec![Bytes::from_static(whole)]);
        for start in 0..=12u64 {
            for end in 0..=12u64 {
                let (from, to) = (start.min(10) as usize, end.min(10) as usize);
                let expected = whole.get(from..to).unwrap_or_default();
                assert_eq!(read(&many, start..end).concat(), expected, "{start}..{end}");
                assert_eq!(read(&one, start..end).concat(), expected, "{start}..{end}");
            }
        }
        assert_eq!(read(&many, 0..u64::MAX).len(), 3);
        assert_eq!(read(&many, 3..4).len(), 1);
        assert!(read(&Content::new(Vec::new()), 0..5).is_empty());
    }

    #[test]
    fn reading_copies_nothing() {
        let bytes = Bytes::from(vec![1u8; 100]);
        let content = Content::new(vec![bytes.clone()]);
        let got = read(&content, 10..20);
        assert_eq!(got[0].as_ptr(), bytes[10..].as_ptr());
    }
}
