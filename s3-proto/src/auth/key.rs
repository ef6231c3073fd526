//! Keys, scopes and times of signatures.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

/// What a key is good for: `ACCESS/20130524/us-east-1/s3/aws4_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scope<'a> {
    pub(super) access: &'a str,
    pub(super) day: &'a str,
    pub(super) region: &'a str,
}

impl<'a> Scope<'a> {
    /// Reads a `Credential`. The error follows "…:".
    pub(super) fn read(credential: &'a str) -> Result<Self, &'static str> {
        // The access key may have slashes itself.
        let mut fields = credential.rsplitn(5, '/');
        let mut next = || fields.next().filter(|field| !field.is_empty());
        let (Some(end), Some(service), Some(region), Some(day), Some(access)) =
            (next(), next(), next(), next(), next())
        else {
            return Err("Credential is not <access key>/<date>/<region>/s3/aws4_request");
        };
        if end != "aws4_request" || service != "s3" {
            return Err("Credential does not end in s3/aws4_request");
        }
        if day.len() != 8 || !day.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err("the date in Credential is not yyyyMMdd");
        }
        Ok(Self { access, day, region })
    }

    /// As it is signed.
    pub(super) fn name(&self) -> String {
        format!("{}/{}/s3/aws4_request", self.day, self.region)
    }
}

/// The key of one scope.
#[derive(Clone)]
pub(super) struct SigningKey([u8; 32]);

impl SigningKey {
    pub(super) fn new(secret: &str, scope: &Scope<'_>) -> Self {
        let first = mac(format!("AWS4{secret}").as_bytes(), scope.day.as_bytes());
        let next = |key: Hmac<Sha256>, text: &str| mac(&key.finalize().into_bytes(), text.as_bytes());
        let last = ["s3", "aws4_request"].into_iter().fold(next(first, scope.region), next);
        Self(last.finalize().into_bytes().into())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// HMAC-SHA256 of `text`, not finished, so that it can be compared in constant time.
pub(super) fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    // Longer ones are hashed first, as HMAC has it; that is the only difference of lengths, and no error.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| Hmac::new(&Default::default()));
    mac.update(text);
    mac
}

/// Reads a signature or hash: 64 digits, in lower case as they are signed.
pub(super) fn signature(text: &str) -> Option<[u8; 32]> {
    let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut bytes = [0; 32];
    (lower && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

/// Reads `20130524T000000Z`.
pub(super) fn time(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes.get(8) != Some(&b'T') || bytes.get(15) != Some(&b'Z') {
        return None;
    }
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse::<u16>().ok())?
    };
    let small = |from: usize| u8::try_from(number(from, from + 2)?).ok();
    let month = Month::try_from(small(4)?).ok()?;
    let date = Date::from_calendar_date(number(0, 4)?.into(), month, small(6)?).ok()?;
    let time = Time::from_hms(small(9)?, small(11)?, small(13)?).ok()?;
    let seconds = u64::try_from(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp()).ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Writes a time as [`time`] reads it.
pub(super) fn date(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let (y, mo, d) = (time.year(), u8::from(time.month()), time.day());
    let (h, mi, s) = time.to_hms();
    format!("{y:04}{mo:02}{d:02}T{h:02}{mi:02}{s:02}Z")
}
