//! Digests of content: the MD5 that becomes the ETag, and S3's additional checksums.

use std::str::FromStr;

use base64::{Engine, prelude::BASE64_STANDARD};
use md5::Digest as _;
use s3s::{S3Error, s3_error};

/// What the ETag of an object or part says of its content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Etag {
    /// Its MD5, as S3 has it; of several parts, the MD5 of theirs and their count.
    #[default]
    Md5,
    /// Its CRC64NVME, as `<16 hex digits>-crc64nvme`, of one part or several: no tool takes that for an MD5. It is much
    /// faster to compute.
    Crc64Nvme,
}

/// Why an [`Etag`] is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad etag '{0}': use md5 or crc64nvme")]
pub struct EtagError(String);

impl FromStr for Etag {
    type Err = EtagError;

    fn from_str(text: &str) -> Result<Self, EtagError> {
        match text {
            "md5" => Ok(Self::Md5),
            "crc64nvme" => Ok(Self::Crc64Nvme),
            other => Err(EtagError(other.to_owned())),
        }
    }
}

/// How an ETag of [`Etag::Crc64Nvme`] ends.
const CRC64_SUFFIX: &str = "-crc64nvme";

/// S3's checksum algorithms ("Checking object integrity" in the S3 user guide).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

use Algorithm::{Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [Crc32, Crc32c, Crc64Nvme, Sha1, Sha256];

    /// S3's name, as in `x-amz-sdk-checksum-algorithm` and in [`ObjectInfo::checksums`](ernic_store::ObjectInfo).
    pub(crate) fn name(self) -> &'static str {
        match self {
            Crc32 => "CRC32",
            Crc32c => "CRC32C",
            Crc64Nvme => "CRC64NVME",
            Sha1 => "SHA1",
            Sha256 => "SHA256",
        }
    }

    /// The header (or trailer) that carries the value.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Crc32 => "x-amz-checksum-crc32",
            Crc32c => "x-amz-checksum-crc32c",
            Crc64Nvme => "x-amz-checksum-crc64nvme",
            Sha1 => "x-amz-checksum-sha1",
            Sha256 => "x-amz-checksum-sha256",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// The algorithm that a client names. Errors: there is no such (`InvalidRequest`).
    pub(crate) fn named(name: &str) -> Result<Self, S3Error> {
        Self::from_name(name).ok_or_else(|| s3_error!(InvalidRequest, "Unknown checksum algorithm {name}."))
    }

    /// Whether the checksum of a whole object can be had from those of its parts.
    pub(crate) fn combines(self) -> bool {
        self.crc().is_some()
    }

    pub(crate) fn from_header(header: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.header().eq_ignore_ascii_case(header))
    }

    /// Bytes of a value.
    fn len(self) -> usize {
        match self {
            Crc32 | Crc32c => 4,
            Crc64Nvme => 8,
            Sha1 => 20,
            Sha256 => 32,
        }
    }

    /// Whether `value` is base64 of the right length.
    pub(crate) fn valid(self, value: &str) -> bool {
        BASE64_STANDARD.decode(value).is_ok_and(|bytes| bytes.len() == self.len())
    }

    fn crc(self) -> Option<crc_fast::CrcAlgorithm> {
        match self {
            Crc32 => Some(crc_fast::CrcAlgorithm::Crc32IsoHdlc),
            Crc32c => Some(crc_fast::CrcAlgorithm::Crc32Iscsi),
            Crc64Nvme => Some(crc_fast::CrcAlgorithm::Crc64Nvme),
            Sha1 | Sha256 => None,
        }
    }

    /// The checksum of parts put together, from the parts' own checksums and sizes: `FULL_OBJECT`. `None` where the
    /// algorithm cannot do it or a value is not one of this algorithm.
    pub(crate) fn combine<'a>(self, parts: impl IntoIterator<Item = (&'a str, u64)>) -> Option<String> {
        let crc = self.crc()?;
        let mut whole = None;
        for (value, size) in parts {
            let value = self.number(value)?;
            whole = Some(match whole {
                None => value,
                Some(before) => crc_fast::checksum_combine(crc, before, value, size),
            });
        }
        Some(self.text(whole?))
    }

    /// The checksum of the parts' checksums with their count: `COMPOSITE`, as `<base64>-<count>`.
    pub(crate) fn compose<'a>(self, parts: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let mut sum = Sum::new(self);
        let mut count = 0;
        for value in parts {
            let bytes = BASE64_STANDARD.decode(value).ok().filter(|bytes| bytes.len() == self.len())?;
            sum.update(&bytes);
            count += 1;
        }
        Some(format!("{}-{count}", sum.finish()))
    }

    fn number(self, value: &str) -> Option<u64> {
        let bytes = BASE64_STANDARD.decode(value).ok().filter(|bytes| bytes.len() == self.len())?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Base64 of a CRC's bytes, the most significant first.
    fn text(self, crc: u64) -> String {
        let bytes = crc.to_be_bytes();
        BASE64_STANDARD.encode(&bytes[bytes.len() - self.len()..])
    }
}

/// One running checksum.
enum Sum {
    Crc(Algorithm, Box<crc_fast::Digest>),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Sum {
    fn new(algorithm: Algorithm) -> Self {
        match (algorithm.crc(), algorithm) {
            (Some(crc), _) => Self::Crc(algorithm, Box::new(crc_fast::Digest::new(crc))),
            (None, Sha1) => Self::Sha1(sha1::Sha1::new()),
            (None, _) => Self::Sha256(sha2::Sha256::new()),
        }
    }

    fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc(_, digest) => digest.update(data),
            Self::Sha1(digest) => digest.update(data),
            Self::Sha256(digest) => digest.update(data),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Crc(algorithm, digest) => algorithm.text(digest.finalize()),
            Self::Sha1(digest) => BASE64_STANDARD.encode(digest.finalize()),
            Self::Sha256(digest) => BASE64_STANDARD.encode(digest.finalize()),
        }
    }

    /// The CRC64NVME so far, if it is that.
    fn crc64(&self) -> Option<u64> {
        match self {
            Self::Crc(Crc64Nvme, digest) => Some(digest.finalize()),
            _ => None,
        }
    }
}

/// What is computed over some content, in one pass: what its ETag needs, its MD5 where that is asked for, and one checksum.
pub(crate) struct Digests {
    md5: Option<md5::Md5>,
    /// CRC64NVME, where the ETag needs it and the checksum is another.
    crc: Option<Sum>,
    sum: Sum,
    etag: Etag,
}

/// What [`Digests`] come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digested {
    /// Without quotes.
    pub(crate) etag: String,
    /// Where it was computed.
    pub(crate) md5: Option<[u8; 16]>,
    /// Base64.
    pub(crate) sum: String,
}

impl Digests {
    /// `md5` says whether that is needed beyond the ETag.
    pub(crate) fn new(algorithm: Algorithm, etag: Etag, md5: bool) -> Self {
        Self {
            md5: (md5 || etag == Etag::Md5).then(md5::Md5::new),
            crc: (etag == Etag::Crc64Nvme && algorithm != Crc64Nvme).then(|| Sum::new(Crc64Nvme)),
            sum: Sum::new(algorithm),
            etag,
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(data);
        }
        if let Some(crc) = &mut self.crc {
            crc.update(data);
        }
        self.sum.update(data);
    }

    pub(crate) fn finish(self) -> Digested {
        let md5 = self.md5.map(|md5| md5.finalize().into());
        let etag = match self.etag {
            Etag::Md5 => hex::encode(md5.unwrap_or_default()),
            Etag::Crc64Nvme => crc64_etag(self.crc.as_ref().unwrap_or(&self.sum).crc64().unwrap_or_default()),
        };
        Digested { etag, md5, sum: self.sum.finish() }
    }
}

fn crc64_etag(crc: u64) -> String {
    format!("{crc:016x}{CRC64_SUFFIX}")
}

/// The ETag of a multipart object, from those of its parts and their sizes: S3's, an MD5 of the parts' MD5s and their
/// count, or the CRC64NVME of the whole. `None` if the parts' are of neither kind, or of both.
pub(crate) fn multipart_etag<'a>(parts: impl IntoIterator<Item = (&'a str, u64)> + Clone) -> Option<String> {
    let crc = |etag: &str| u64::from_str_radix(etag.strip_suffix(CRC64_SUFFIX)?, 16).ok();
    let mut whole = None;
    let all = parts.clone().into_iter().try_for_each(|(etag, size)| {
        let crc = crc(etag)?;
        whole =
            Some(whole.map_or(crc, |before| {
                crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc64Nvme, before, crc, size)
            }));
        Some(())
    });
    if let (Some(()), Some(whole)) = (all, whole) {
        return Some(crc64_etag(whole));
    }
    let mut md5 = md5::Md5::new();
    let mut count = 0;
    for (etag, _) in parts {
        let mut bytes = [0; 16];
        hex::decode_to_slice(etag, &mut bytes).ok()?;
        md5.update(bytes);
        count += 1;
    }
    Some(format!("{}-{count}", hex::encode(md5.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(algorithm: Algorithm, data: &[u8]) -> Digested {
        digest_of(algorithm, Etag::Md5, data)
    }

    fn digest_of(algorithm: Algorithm, etag: Etag, data: &[u8]) -> Digested {
        let mut digests = Digests::new(algorithm, etag, false);
        for piece in data.chunks(5) {
            digests.update(piece);
        }
        digests.finish()
    }

    #[test]
    fn case_15_check_values() {
        // The CRC catalogue's check values over "123456789"; FIPS 180-4 and RFC 1321 for the others.
        for (algorithm, check) in [
            (Crc32, "cbf43926"),
            (Crc32c, "e3069283"),
            (Crc64Nvme, "ae8b14860a799888"),
            (Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
            (Sha256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
        ] {
            let digested = digest(algorithm, b"123456789");
            assert_eq!(digested.sum, BASE64_STANDARD.encode(hex::decode(check).unwrap()), "{algorithm:?}");
            assert_eq!(hex::encode(digested.md5.unwrap()), "25f9e794323b453885f5181f1b624d0b");
            assert_eq!(digested.etag, "25f9e794323b453885f5181f1b624d0b");
            // The other kind of ETag, whichever checksum is asked for, without MD5 or with it.
            let sum = digested.sum;
            let digested = digest_of(algorithm, Etag::Crc64Nvme, b"123456789");
            assert_eq!(digested, Digested { etag: "ae8b14860a799888-crc64nvme".into(), md5: None, sum });
            let mut both = Digests::new(algorithm, Etag::Crc64Nvme, true);
            both.update(b"123456789");
            assert_eq!(hex::encode(both.finish().md5.unwrap()), "25f9e794323b453885f5181f1b624d0b");
            assert!(algorithm.valid(&digested.sum));
            assert!(!algorithm.valid("AAA="));
            assert!(!algorithm.valid("?"));
        }
    }

    #[test]
    fn crcs_of_parts_combine_to_the_whole() {
        let data: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
        let parts: Vec<_> = [&data[..1], &data[1..1500], &data[1500..], &[]].to_vec();
        for algorithm in [Crc32, Crc32c, Crc64Nvme] {
            let sums: Vec<_> = parts.iter().map(|part| digest(algorithm, part).sum).collect();
            let combined =
                algorithm.combine(sums.iter().zip(&parts).map(|(sum, part)| (sum.as_str(), part.len() as u64)));
            assert_eq!(combined, Some(digest(algorithm, &data).sum), "{algorithm:?}");
        }
        assert_eq!(Sha1.combine([("2jmj7l5rSw0yVb/vlWAYkK/YBwk=", 0)]), None);
        assert_eq!(Crc32.combine([("bogus", 0)]), None);
        assert_eq!(Crc32.combine([]), None);
    }

    #[test]
    fn composites_are_sums_of_sums() {
        let (a, b) = (digest(Sha256, b"a"), digest(Sha256, b"b"));
        let mut both = BASE64_STANDARD.decode(&a.sum).unwrap();
        both.extend(BASE64_STANDARD.decode(&b.sum).unwrap());
        assert_eq!(Sha256.compose([a.sum.as_str(), &b.sum]), Some(format!("{}-2", digest(Sha256, &both).sum)));
        assert_eq!(Sha256.compose(["AAAA"]), None);
    }

    #[test]
    fn case_18_etag_is_md5_of_md5s() {
        // printf of the two digests' bytes | md5sum
        let etags = ["0cc175b9c0f1b6a831c399e269772661", "92eb5ffee6ae2fec3ad71c777531578f"];
        assert_eq!(multipart_etag(etags.map(|etag| (etag, 1))).unwrap(), "96e024ba2074fe77e8e965ba43a704be-2");
        assert_eq!(multipart_etag([("no md5", 1)]), None);
    }

    #[test]
    fn a_crc64_etag_of_parts_is_that_of_the_whole() {
        let etag = |data: &[u8]| digest_of(Sha1, Etag::Crc64Nvme, data).etag;
        let (a, b) = (etag(b"12345"), etag(b"6789"));
        assert_eq!(multipart_etag([(a.as_str(), 5), (&b, 4)]).unwrap(), "ae8b14860a799888-crc64nvme");
        assert_eq!(multipart_etag([(a.as_str(), 5)]), Some(a.clone()));
        let md5 = "0cc175b9c0f1b6a831c399e269772661";
        assert_eq!(multipart_etag([(a.as_str(), 5), (md5, 4)]), None);
        assert_eq!(multipart_etag([(md5, 5), (a.as_str(), 4)]), None);
    }

    #[test]
    fn etags_are_named() {
        assert_eq!("md5".parse(), Ok(Etag::Md5));
        assert_eq!("crc64nvme".parse(), Ok(Etag::Crc64Nvme));
        let error = "MD5".parse::<Etag>().unwrap_err();
        assert_eq!(error.to_string(), "bad etag 'MD5': use md5 or crc64nvme");
    }
}
