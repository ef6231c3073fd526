//! Uploads that have been completed lately.
//!
//! A client that has lost the answer to `CompleteMultipartUpload` sends the request again, and S3 gives the same answer again
//! ("CompleteMultipartUpload" in the S3 API reference). A store knows nothing of an upload that has become an object, so the
//! last of them are remembered here.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ernic_store::ObjectInfo;
use s3s::dto::CompletedPart;

/// How many are remembered: more than a server has clients that wait for an answer.
const KEPT: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Completions(Mutex<VecDeque<Entry>>);

#[derive(Debug)]
struct Entry {
    bucket: String,
    key: String,
    upload: String,
    /// Of the list of parts in the request.
    parts: u64,
    done: Done,
}

/// What came of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) etag: String,
    pub(super) checksums: Vec<(String, String)>,
    pub(super) version: Option<String>,
}

impl Done {
    pub(super) fn new(info: &ObjectInfo) -> Self {
        Self { etag: info.etag.clone(), checksums: info.checksums.clone(), version: info.version.clone() }
    }
}

impl Completions {
    /// What came of an upload that was completed with these parts.
    pub(super) fn find(&self, bucket: &str, key: &str, upload: &str, parts: &[CompletedPart]) -> Option<Done> {
        let parts = fingerprint(parts);
        let entries = self.entries();
        let mut same = entries.iter().filter(|entry| entry.upload == upload && entry.parts == parts);
        same.find(|entry| entry.bucket == bucket && entry.key == key).map(|entry| entry.done.clone())
    }

    /// Remembers what came of an upload.
    pub(super) fn add(&self, bucket: &str, key: &str, upload: &str, parts: &[CompletedPart], done: Done) {
        let (bucket, key, upload) = (bucket.to_owned(), key.to_owned(), upload.to_owned());
        let entry = Entry { bucket, key, upload, parts: fingerprint(parts), done };
        let mut entries = self.entries();
        if entries.len() == KEPT {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of a list of parts, however its ETags are quoted.
fn fingerprint(parts: &[CompletedPart]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        part.part_number.hash(&mut hasher);
        part.e_tag.as_ref().map(|etag| etag.value().trim_matches('"')).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use s3s::dto::ETag;

    use super::*;

    #[test]
    fn the_last_are_remembered() {
        let completions = Completions::default();
        let parts = |etag: &str| {
            vec![CompletedPart { part_number: Some(1), e_tag: Some(ETag::Strong(etag.into())), ..Default::default() }]
        };
        let done = |etag: &str| Done { etag: etag.into(), checksums: Vec::new(), version: None };
        for upload in 0..=KEPT {
            completions.add("b", "k", &upload.to_string(), &parts("e"), done(&upload.to_string()));
        }
        assert_eq!(completions.find("b", "k", "0", &parts("e")), None, "the oldest is forgotten");
        assert_eq!(completions.find("b", "k", "1", &parts("\"e\"")), Some(done("1")));
        for (bucket, key, upload, etag) in
            [("c", "k", "1", "e"), ("b", "l", "1", "e"), ("b", "k", "x", "e"), ("b", "k", "1", "f")]
        {
            assert_eq!(completions.find(bucket, key, upload, &parts(etag)), None);
        }
        assert_eq!(completions.entries().len(), KEPT);
    }
}
