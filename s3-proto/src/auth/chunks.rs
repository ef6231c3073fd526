//! Signatures over the chunks of a body: each is made over the one before it.

use std::fmt;

use hmac::Mac;
use sha2::{Digest, Sha256};

use super::key::{SigningKey, mac, signature};

/// The SHA-256 of nothing.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A signature is not that of what came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadSignature;

/// Checks the signatures of a body, chunk by chunk ("Transferring Payload in Multiple Chunks" in the S3 API reference).
pub(crate) struct Chain {
    key: SigningKey,
    date: String,
    scope: String,
    /// The signature before.
    previous: String,
    /// That of the chunk that is being read.
    claimed: String,
    hash: Sha256,
    trailer: bool,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("scope", &self.scope).field("trailer", &self.trailer).finish_non_exhaustive()
    }
}

impl Chain {
    /// A chain that begins with the signature `seed` of the request's head; with `trailer`, one more follows the trailers.
    pub(super) fn new(key: SigningKey, date: &str, scope: &str, seed: &str, trailer: bool) -> Self {
        Self {
            key,
            date: date.to_owned(),
            scope: scope.to_owned(),
            previous: seed.to_owned(),
            claimed: String::new(),
            hash: Sha256::new(),
            trailer,
        }
    }

    /// A chunk begins, with the line `size;chunk-signature=…`.
    pub(crate) fn begin(&mut self, line: &[u8]) -> Result<(), BadSignature> {
        let extension = line.split(|&byte| byte == b';').skip(1).map(<[u8]>::trim_ascii);
        let mut signatures = extension.filter_map(|extension| extension.strip_prefix(b"chunk-signature="));
        match (signatures.next().and_then(|signature| str::from_utf8(signature).ok()), signatures.next()) {
            (Some(signature), None) => self.claimed = signature.to_owned(),
            _ => return Err(BadSignature),
        }
        Ok(())
    }

    /// Data of the chunk.
    pub(crate) fn update(&mut self, data: &[u8]) {
        self.hash.update(data);
    }

    /// The chunk has ended.
    pub(crate) fn end(&mut self) -> Result<(), BadSignature> {
        let hash = hex::encode(self.hash.finalize_reset());
        let (date, scope, previous) = (&self.date, &self.scope, &self.previous);
        let text = format!("AWS4-HMAC-SHA256-PAYLOAD\n{date}\n{scope}\n{previous}\n{EMPTY}\n{hash}");
        self.follow(&text)
    }

    /// The trailers have come, of which one is their signature. Without it there must be none that it would cover.
    pub(crate) fn trailers(&mut self, trailers: &[(String, String)]) -> Result<(), BadSignature> {
        const SIGNATURE: &str = "x-amz-trailer-signature";
        let mut covered: Vec<_> = trailers.iter().filter(|(name, _)| name != SIGNATURE).collect();
        let mut signatures = trailers.iter().filter(|(name, _)| name == SIGNATURE).map(|(_, value)| value);
        if !self.trailer {
            return if trailers.is_empty() { Ok(()) } else { Err(BadSignature) };
        }
        let (Some(claimed), None) = (signatures.next(), signatures.next()) else {
            return Err(BadSignature);
        };
        self.claimed.clone_from(claimed);
        covered.sort();
        let lines: String = covered.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let hash = hex::encode(Sha256::digest(lines));
        let (date, scope, previous) = (&self.date, &self.scope, &self.previous);
        let text = format!("AWS4-HMAC-SHA256-TRAILER\n{date}\n{scope}\n{previous}\n{hash}");
        self.follow(&text)
    }

    /// Checks the claimed signature, which the next one is made over.
    fn follow(&mut self, text: &str) -> Result<(), BadSignature> {
        let given = signature(&self.claimed).ok_or(BadSignature)?;
        mac(self.key.bytes(), text.as_bytes()).verify_slice(&given).map_err(|_| BadSignature)?;
        self.previous = std::mem::take(&mut self.claimed);
        Ok(())
    }
}
