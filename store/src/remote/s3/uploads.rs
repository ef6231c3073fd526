//! What is known of the uploads that were started here: what S3 does not tell of them.
//!
//! Clients name the checksums of the parts when they complete an upload. S3 keeps those of parts only where the upload was
//! started with the algorithm, and they can be sent only ahead of the content; so they are remembered here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::PartPlace;
use crate::UploadInfo;

/// Most uploads that are remembered.
const UPLOADS: usize = 4096;
/// Most parts of all of them together; one takes about 200 bytes.
const PARTS: usize = 200_000;

type Checksums = Vec<(String, String)>;

#[derive(Debug, Default)]
struct Known {
    bucket: String,
    info: Option<UploadInfo>,
    /// ETag and checksums of the parts.
    parts: BTreeMap<u16, (String, Checksums)>,
    /// Order of the uploads.
    age: u64,
}

#[derive(Debug, Default)]
struct State {
    uploads: HashMap<String, Known>,
    parts: usize,
    ages: u64,
}

impl State {
    fn remove(&mut self, upload: &str) {
        if let Some(known) = self.uploads.remove(upload) {
            self.parts -= known.parts.len();
        }
    }

    /// Forgets the oldest upload but `keep`.
    fn forget(&mut self, keep: &str) {
        let others = self.uploads.iter().filter(|(id, _)| *id != keep);
        if let Some(oldest) = others.min_by_key(|(_, known)| known.age).map(|(id, _)| id.clone()) {
            self.remove(&oldest);
        }
    }

    fn known(&mut self, bucket: &str, upload: &str) -> &mut Known {
        if !self.uploads.contains_key(upload) {
            if self.uploads.len() >= UPLOADS {
                self.forget(upload);
            }
            self.ages += 1;
            let known = Known { bucket: bucket.to_owned(), age: self.ages, ..Known::default() };
            self.uploads.insert(upload.to_owned(), known);
        }
        self.uploads.entry(upload.to_owned()).or_default()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    state: Mutex<State>,
}

impl Uploads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, bucket: &str, info: UploadInfo) {
        let upload = info.upload.clone();
        self.state().known(bucket, &upload).info = Some(info);
    }

    pub(super) fn get(&self, bucket: &str, key: &str, upload: &str) -> Option<UploadInfo> {
        let state = self.state();
        let known = state.uploads.get(upload).filter(|known| known.bucket == bucket)?;
        known.info.clone().filter(|info| info.key == key)
    }

    pub(super) fn part(&self, at: &PartPlace, etag: &str, checksums: &Checksums) {
        if checksums.is_empty() {
            return;
        }
        let mut state = self.state();
        if state.parts >= PARTS {
            state.forget(&at.upload);
        }
        let known = state.known(&at.bucket, &at.upload);
        if known.parts.insert(at.number, (etag.to_owned(), checksums.clone())).is_none() {
            state.parts += 1;
        }
    }

    /// The checksums of a part, if it is still the one of `etag`.
    pub(super) fn checksums(&self, upload: &str, number: u16, etag: &str) -> Checksums {
        let state = self.state();
        let part = state.uploads.get(upload).and_then(|known| known.parts.get(&number));
        part.filter(|part| part.0 == etag).map(|part| part.1.clone()).unwrap_or_default()
    }

    pub(super) fn end(&self, upload: &str) {
        self.state().remove(upload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let uploads = Uploads::default();
        let sums = |n: u16| vec![("CRC32".to_owned(), n.to_string())];
        for id in 0..50 {
            for number in 1..=10_000 {
                let at = PartPlace { bucket: "b".into(), key: "k".into(), upload: format!("u{id}"), number };
                uploads.part(&at, "e", &sums(number));
            }
        }
        {
            let state = uploads.state();
            assert!(state.parts <= PARTS);
            assert_eq!(state.parts, state.uploads.values().map(|known| known.parts.len()).sum::<usize>());
        }
        assert_eq!(uploads.checksums("u49", 7, "e"), sums(7));
        assert!(uploads.checksums("u49", 7, "other").is_empty() && uploads.checksums("u0", 7, "e").is_empty());
        uploads.end("u49");
        assert!(uploads.checksums("u49", 7, "e").is_empty());
        for id in 0..UPLOADS + 10 {
            let at = PartPlace { bucket: "b".into(), key: "k".into(), upload: format!("v{id}"), number: 1 };
            uploads.part(&at, "e", &sums(1));
        }
        assert_eq!(uploads.state().uploads.len(), UPLOADS);
    }
}
