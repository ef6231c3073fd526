//! Digests of content: the MD5 that becomes the ETag, and S3's additional checksums.

use base64::{Engine, prelude::BASE64_STANDARD};
use md5::Digest as _;

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
}

/// MD5 and one checksum over the same content.
pub(crate) struct Digests {
    md5: md5::Md5,
    sum: Sum,
}

/// What [`Digests`] come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digested {
    pub(crate) md5: [u8; 16],
    /// Base64.
    pub(crate) sum: String,
}

impl Digests {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        Self { md5: md5::Md5::new(), sum: Sum::new(algorithm) }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.md5.update(data);
        self.sum.update(data);
    }

    pub(crate) fn finish(self) -> Digested {
        Digested { md5: self.md5.finalize().into(), sum: self.sum.finish() }
    }
}

/// S3's ETag of a multipart object: MD5 of the parts' MD5s, and their count. `None` if an ETag is no MD5.
pub(crate) fn multipart_etag<'a>(etags: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut md5 = md5::Md5::new();
    let mut count = 0;
    for etag in etags {
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
        let mut digests = Digests::new(algorithm);
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
            assert_eq!(hex::encode(digested.md5), "25f9e794323b453885f5181f1b624d0b");
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
        assert_eq!(multipart_etag(etags).unwrap(), "96e024ba2074fe77e8e965ba43a704be-2");
        assert_eq!(multipart_etag(["no md5"]), None);
    }
}
