//! Who asks: AWS Signature Version 4, in the `Authorization` header, in a presigned query, and over the chunks of a body.
//!
//! A request is checked as it came, before anything of it is rewritten. What is signed: the method, the path, the query, the
//! headers that `SignedHeaders` names, and the payload by its hash in `x-amz-content-sha256`, which is checked while the body
//! is read, before anything is made visible. `host` and every `x-amz-…` and `x-cuobj-…` header must be among the signed ones:
//! a token that is not signed could be anybody's (rule 17 of the wire document "S3 over RDMA").
//!
//! The rules are those of "Authenticating Requests (AWS Signature Version 4)" in the S3 API reference, the codes and statuses
//! those of its "Error responses". Any region is taken: its name is part of what is signed, and means nothing here.

mod canonical;
mod chunks;
mod key;

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hmac::Mac;
use http::{HeaderMap, StatusCode, header, request::Parts};
use s3s::{S3Error, S3ErrorCode, s3_error};
use sha2::{Digest, Sha256};

pub(crate) use self::chunks::{BadSignature, Chain};
use self::{
    canonical::{Pair, pairs},
    key::{Scope, SigningKey, mac, signature},
};
use crate::error::{custom, error};

/// How far a client's clock may be off.
const SKEW: Duration = Duration::from_secs(15 * 60);
/// Longest life of a presigned request: seven days.
const MAX_EXPIRES: u64 = 7 * 24 * 60 * 60;
/// The one algorithm.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// `x-amz-content-sha256` of a payload that is not signed.
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
/// The same, with checksums in trailers.
const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
/// Chunks that are signed.
const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
/// The same, with signed trailers.
const SIGNED_CHUNKS_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";

/// Access keys, and the secret of each.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials(HashMap<String, String>);

/// Why an access key or a secret is refused. The texts do not show secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Not what `Credential=` could name.
    #[error("bad access key '{0}': use printable ASCII without spaces, commas and quotes")]
    Access(String),
    /// Nothing to sign with.
    #[error("the secret of access key '{0}' is empty")]
    Secret(String),
    /// One access key, two secrets.
    #[error("access key '{0}' is given twice")]
    Twice(String),
}

impl Credentials {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an access key.
    ///
    /// # Errors
    ///
    /// See [`CredentialsError`].
    pub fn add(&mut self, access: &str, secret: &str) -> Result<(), CredentialsError> {
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"');
        if access.is_empty() || !access.bytes().all(fits) {
            return Err(CredentialsError::Access(access.to_owned()));
        }
        if secret.is_empty() {
            return Err(CredentialsError::Secret(access.to_owned()));
        }
        if self.0.insert(access.to_owned(), secret.to_owned()).is_some() {
            return Err(CredentialsError::Twice(access.to_owned()));
        }
        Ok(())
    }

    /// How many access keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Only how many there are.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("keys", &self.len()).finish_non_exhaustive()
    }
}

/// What tells the time.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Checks requests against credentials.
pub(crate) struct Auth {
    credentials: Credentials,
    clock: Clock,
}

/// A request that was let in.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Whose key signed it; `None` where nobody has to.
    pub(crate) access: Option<String>,
    pub(crate) signed: Signed,
}

impl Admitted {
    /// One that nobody had to sign.
    pub(crate) const UNSIGNED: Self = Self { access: None, signed: Signed::Unsigned };
}

/// What a request that was let in says about its payload.
#[derive(Debug)]
pub(crate) enum Signed {
    /// Nothing.
    Unsigned,
    /// The SHA-256 of the body.
    Hash([u8; 32]),
    /// Its chunks are signed, each with the one before.
    Chunks(Box<Chain>),
}

/// A signature, and what it is said to be of.
#[derive(Debug, PartialEq, Eq)]
struct Claim<'a> {
    scope: Scope<'a>,
    /// `host;x-amz-date`
    signed_headers: &'a str,
    signature: &'a str,
}

impl Auth {
    pub(crate) fn new(credentials: Credentials, clock: Clock) -> Self {
        Self { credentials, clock }
    }

    /// Lets a request in, or says why not. `parts` is as it came.
    pub(crate) fn check(&self, parts: &Parts) -> Result<Admitted, S3Error> {
        let headers = &parts.headers;
        let query = pairs(parts.uri.query().unwrap_or_default());
        let named = |names: &[&str]| query.iter().any(|pair| names.contains(&pair.name.as_str()));
        let v4 = named(&["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature"]);
        let v2 = named(&["AWSAccessKeyId", "Signature"]);
        let authorization: Vec<_> = headers.get_all(header::AUTHORIZATION).iter().collect();
        match (authorization.as_slice(), v4, v2) {
            ([], false, false) => Err(error(S3ErrorCode::AccessDenied, "Access Denied.")),
            ([value], false, false) => {
                let value = value.to_str().map_err(|_| malformed("it is not ASCII"))?;
                self.check_header(parts, &query, value)
            }
            ([], true, false) => self.check_query(parts, query),
            ([], false, true) => Err(version_2()),
            _ => Err(error(
                S3ErrorCode::InvalidArgument,
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or \
                 the Authorization header should be specified.",
            )),
        }
    }

    fn check_header(&self, parts: &Parts, query: &[Pair], value: &str) -> Result<Admitted, S3Error> {
        let headers = &parts.headers;
        let claim = Claim::of_header(value)?;
        let payload = single(headers, "x-amz-content-sha256")?.ok_or_else(|| {
            s3_error!(MissingSecurityHeader, "Your request was missing a required header: x-amz-content-sha256.")
        })?;
        let (time, date) = header_time(headers)?;
        let now = (self.clock)();
        if distance(now, time) > SKEW {
            return Err(error(
                S3ErrorCode::RequestTimeTooSkewed,
                "The difference between the request time and the server's time is too large: more than 15 minutes.",
            ));
        }
        if !date.starts_with(claim.scope.day) {
            return Err(malformed("the date in Credential is not the day of the request's date"));
        }
        self.check_signature(parts, query, &claim, &date, payload)
    }

    fn check_query(&self, parts: &Parts, mut query: Vec<Pair>) -> Result<Admitted, S3Error> {
        let bad = |message: String| error(S3ErrorCode::AuthorizationQueryParametersError, message);
        let take = |name: &str| -> Result<String, S3Error> {
            let mut values = query.iter().filter(|pair| pair.name == name).map(|pair| pair.value.clone());
            match (values.next(), values.next()) {
                (Some(value), None) => Ok(value),
                _ => Err(bad(format!(
                    "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, \
                     X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters, each once; {name} is not."
                ))),
            }
        };
        let algorithm = take("X-Amz-Algorithm")?;
        let [credential, date, expires, signed_headers, signature] =
            ["X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"].map(take);
        let (credential, date, expires) = (credential?, date?, expires?);
        let (signed_headers, signature) = (signed_headers?, signature?);
        if algorithm != ALGORITHM {
            return Err(bad(format!("X-Amz-Algorithm only supports {ALGORITHM:?}.")));
        }
        let scope = Scope::read(&credential).map_err(|why| bad(format!("Error parsing X-Amz-Credential: {why}.")))?;
        let time = key::time(&date)
            .ok_or_else(|| bad("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\".".to_owned()))?;
        if !date.starts_with(scope.day) {
            return Err(bad("The date in X-Amz-Credential is not the day of X-Amz-Date.".to_owned()));
        }
        let seconds =
            expires.bytes().all(|digit| digit.is_ascii_digit()).then(|| expires.parse::<u64>().ok()).flatten();
        let seconds = seconds.ok_or_else(|| bad("X-Amz-Expires should be a number.".to_owned()))?;
        if seconds > MAX_EXPIRES {
            return Err(bad(format!("X-Amz-Expires must be less than a week, {MAX_EXPIRES} seconds.")));
        }
        let now = (self.clock)();
        if time > now + SKEW {
            return Err(error(S3ErrorCode::AccessDenied, "Request is not valid yet."));
        }
        if now > time + Duration::from_secs(seconds) {
            return Err(error(S3ErrorCode::AccessDenied, "Request has expired."));
        }
        let of_query = query.iter().find(|pair| pair.name.eq_ignore_ascii_case("x-amz-content-sha256"));
        let payload = match (single(&parts.headers, "x-amz-content-sha256")?, of_query) {
            (Some(payload), _) => payload.to_owned(),
            (None, Some(pair)) => pair.value.clone(),
            (None, None) => UNSIGNED_PAYLOAD.to_owned(),
        };
        query.retain(|pair| pair.name != "X-Amz-Signature");
        let claim = Claim { scope, signed_headers: &signed_headers, signature: &signature };
        self.check_signature(parts, &query, &claim, &date, &payload)
    }

    /// The check itself. `date` is as it is signed.
    fn check_signature(
        &self,
        parts: &Parts,
        query: &[Pair],
        claim: &Claim<'_>,
        date: &str,
        payload: &str,
    ) -> Result<Admitted, S3Error> {
        let hash = match payload {
            UNSIGNED_PAYLOAD | UNSIGNED_TRAILER | SIGNED_CHUNKS | SIGNED_CHUNKS_TRAILER => None,
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD" | "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER" => {
                return Err(unsupported());
            }
            hash => Some(signature(hash).ok_or_else(|| {
                s3_error!(
                    InvalidArgument,
                    "x-amz-content-sha256 must be {UNSIGNED_PAYLOAD}, {UNSIGNED_TRAILER}, {SIGNED_CHUNKS}, \
                     {SIGNED_CHUNKS_TRAILER}, or a valid sha256 value."
                )
            })?),
        };
        let signed: Vec<_> = claim.signed_headers.split(';').collect();
        check_signed(&parts.headers, &signed)?;
        let Some(secret) = self.credentials.0.get(claim.scope.access) else {
            return Err(error(
                S3ErrorCode::InvalidAccessKeyId,
                "The AWS access key ID you provided does not exist in our records.",
            ));
        };
        let request = canonical::request(parts, query, &signed, claim.signed_headers, payload);
        let scope = claim.scope.name();
        let text = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hex::encode(Sha256::digest(&request)));
        let key = SigningKey::new(secret, &claim.scope);
        // Whoever has the right signature may see it compared; nobody else learns how far theirs is right.
        let right = signature(claim.signature)
            .is_some_and(|given| mac(key.bytes(), text.as_bytes()).verify_slice(&given).is_ok());
        if !right {
            tracing::debug!(%request, "signature refused; this is the canonical request");
            return Err(mismatch());
        }
        let signed = match (hash, payload) {
            (Some(hash), _) => Signed::Hash(hash),
            (None, SIGNED_CHUNKS) => Signed::Chunks(Chain::new(key, date, &scope, claim.signature, false).into()),
            (None, SIGNED_CHUNKS_TRAILER) => {
                Signed::Chunks(Chain::new(key, date, &scope, claim.signature, true).into())
            }
            _ => Signed::Unsigned,
        };
        Ok(Admitted { access: Some(claim.scope.access.to_owned()), signed })
    }
}

impl<'a> Claim<'a> {
    /// Reads `AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`.
    fn of_header(value: &'a str) -> Result<Self, S3Error> {
        let (algorithm, rest) = value.trim().split_once(' ').unwrap_or((value, ""));
        match algorithm {
            ALGORITHM => {}
            "AWS" => return Err(version_2()),
            other if other.starts_with("AWS4-") => return Err(unsupported()),
            _ => return Err(error(S3ErrorCode::InvalidArgument, "Unsupported Authorization Type.")),
        }
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for field in rest.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').ok_or_else(|| malformed("a field has no value"))?;
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => return Err(malformed("it has an unknown field")),
            };
            if place.replace(value).is_some() {
                return Err(malformed("it has a field twice"));
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) = (credential, signed_headers, signature) else {
            return Err(malformed("it needs Credential, SignedHeaders and Signature"));
        };
        let scope = Scope::read(credential).map_err(malformed)?;
        Ok(Self { scope, signed_headers, signature })
    }
}

/// What must be signed is: the host, and all that S3 gives a meaning to.
fn check_signed(headers: &HeaderMap, signed: &[&str]) -> Result<(), S3Error> {
    let must = |name: &str| ["x-amz-", "x-cuobj-"].iter().any(|prefix| name.starts_with(prefix));
    let unsigned = headers.keys().map(header::HeaderName::as_str).find(|name| must(name) && !signed.contains(name));
    let unsigned = if signed.contains(&"host") { unsigned } else { Some("host") };
    match unsigned {
        None => Ok(()),
        Some(name) => {
            Err(s3_error!(AccessDenied, "There were headers present in the request which were not signed: {name}."))
        }
    }
}

/// When the request was made: as a time, and as it is signed.
fn header_time(headers: &HeaderMap) -> Result<(SystemTime, String), S3Error> {
    let denied = || error(S3ErrorCode::AccessDenied, "AWS authentication requires a valid Date or x-amz-date header.");
    if let Some(date) = single(headers, "x-amz-date")? {
        return Ok((key::time(date).ok_or_else(denied)?, date.to_owned()));
    }
    let date = single(headers, "date")?.ok_or_else(denied)?;
    // botocore writes GMT as RFC 2822 does.
    let gmt = ["-0000", "+0000"].into_iter().find_map(|zone| date.strip_suffix(zone)).map(|rest| format!("{rest}GMT"));
    let http = gmt.as_deref().unwrap_or(date);
    let time = key::time(date).or_else(|| httpdate::parse_http_date(http).ok()).ok_or_else(denied)?;
    Ok((time, key::date(time)))
}

/// The value of a header that may be there once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, S3Error> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| s3_error!(InvalidArgument, "The header {name} is not ASCII."))?;
            Ok(Some(text.trim()))
        }
        (Some(_), Some(_)) => Err(s3_error!(InvalidArgument, "The header {name} is there twice.")),
    }
}

fn distance(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|error| error.duration())
}

fn malformed(why: &str) -> S3Error {
    s3_error!(AuthorizationHeaderMalformed, "The authorization header is malformed: {why}.")
}

fn version_2() -> S3Error {
    s3_error!(InvalidRequest, "The authorization mechanism you have provided is not supported. Please use {ALGORITHM}.")
}

fn unsupported() -> S3Error {
    s3_error!(InvalidRequest, "This server knows no asymmetric signatures. Please use {ALGORITHM}.")
}

/// `SignatureDoesNotMatch` (403).
pub(crate) fn mismatch() -> S3Error {
    error(
        S3ErrorCode::SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
    )
}

/// `XAmzContentSHA256Mismatch` (400): the body is not the one that was signed.
pub(crate) fn hash_mismatch() -> S3Error {
    let message = "The provided 'x-amz-content-sha256' header does not match what was computed.";
    custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, message.to_owned())
}

#[cfg(test)]
mod tests;
