//! `Range` of a GET or HEAD.

use std::ops::Range;

/// One range of bytes as the client wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeSpec {
    /// `bytes=a-`
    From(u64),
    /// `bytes=a-b`, both inclusive
    FromTo(u64, u64),
    /// `bytes=-n`: the last n bytes
    Suffix(u64),
}

/// The range lies outside the object (416).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsatisfiable;

impl RangeSpec {
    /// Reads a `Range` header. `None` means that the header is to be ignored: another unit, no valid syntax (RFC 9110,
    /// section 14.2), or several ranges, which S3 answers with the whole object.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (unit, set) = value.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = set.trim().split_once('-')?;
        match (first.trim_end(), last.trim_start()) {
            ("", n) => Some(Self::Suffix(number(n)?)),
            (a, "") => Some(Self::From(number(a)?)),
            (a, b) => {
                let (a, b) = (number(a)?, number(b)?);
                (a <= b).then_some(Self::FromTo(a, b))
            }
        }
    }

    /// The bytes of an object of `size` bytes that are meant.
    pub(crate) fn resolve(self, size: u64) -> Result<Range<u64>, Unsatisfiable> {
        let range = match self {
            Self::From(a) => a..size,
            Self::FromTo(a, b) => a..size.min(b.saturating_add(1)),
            Self::Suffix(n) => size.saturating_sub(n)..size,
        };
        if range.is_empty() { Err(Unsatisfiable) } else { Ok(range) }
    }
}

/// A decimal number of any length; more than 64 bits is as good as 64 bits here.
fn number(s: &str) -> Option<u64> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(s.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_rfc_9110_allows_and_ignores_the_rest() {
        for (text, spec) in [
            ("bytes=0-0", Some(RangeSpec::FromTo(0, 0))),
            ("bytes=1024-1535", Some(RangeSpec::FromTo(1024, 1535))),
            ("Bytes=5-", Some(RangeSpec::From(5))),
            ("bytes=-7", Some(RangeSpec::Suffix(7))),
            ("bytes= 1 - 2 ", Some(RangeSpec::FromTo(1, 2))),
            ("bytes=0-99999999999999999999999", Some(RangeSpec::FromTo(0, u64::MAX))),
            ("bytes=9-3", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("bytes=", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("lines=1-2", None),
            ("bytes", None),
            ("", None),
        ] {
            assert_eq!(RangeSpec::parse(text), spec, "{text:?}");
        }
    }

    #[test]
    fn resolves_against_the_size() {
        assert_eq!(RangeSpec::FromTo(2, 100).resolve(10), Ok(2..10));
        assert_eq!(RangeSpec::From(9).resolve(10), Ok(9..10));
        assert_eq!(RangeSpec::From(10).resolve(10), Err(Unsatisfiable));
        assert_eq!(RangeSpec::Suffix(3).resolve(10), Ok(7..10));
        assert_eq!(RangeSpec::Suffix(30).resolve(10), Ok(0..10));
        assert_eq!(RangeSpec::Suffix(0).resolve(10), Err(Unsatisfiable));
        assert_eq!(RangeSpec::From(0).resolve(0), Err(Unsatisfiable));
        assert_eq!(RangeSpec::Suffix(1).resolve(0), Err(Unsatisfiable));
        assert_eq!(RangeSpec::FromTo(0, u64::MAX).resolve(u64::MAX), Ok(0..u64::MAX));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Against the definition, byte by byte.
        #[test]
        fn names_exactly_the_bytes_meant(size in 0u64..40, a in 0u64..50, b in 0u64..50, kind in 0..3) {
            let (text, meant): (_, Vec<u64>) = match kind {
                0 => (format!("bytes={a}-{b}"), (0..size).filter(|i| (a..=b).contains(i)).collect()),
                1 => (format!("bytes={a}-"), (0..size).filter(|i| *i >= a).collect()),
                _ => (format!("bytes=-{a}"), (0..size).filter(|i| size - i <= a).collect()),
            };
            match RangeSpec::parse(&text) {
                None => prop_assert!(kind == 0 && a > b),
                Some(spec) => {
                    let got: Vec<u64> = spec.resolve(size).map(Iterator::collect).unwrap_or_default();
                    prop_assert_eq!(got, meant);
                }
            }
        }

        #[test]
        fn takes_any_text(text in ".*", size: u64) {
            if let Some(spec) = RangeSpec::parse(&text) && let Ok(range) = spec.resolve(size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
