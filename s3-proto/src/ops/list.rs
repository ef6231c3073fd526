//! Listings.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ernic_store::{ListPage, ListQuery, ObjectInfo, StoreError, VersionEntry, VersionPage, VersionQuery};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        ChecksumAlgorithm, ChecksumType, CommonPrefix, DeleteMarkerEntry, EncodingType, ListObjectVersionsInput,
        ListObjectVersionsOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Object,
        ObjectStorageClass, ObjectVersion, ObjectVersionStorageClass,
    },
    s3_error,
};

use super::{NULL_VERSION, Operations, checksum_type, etag, owner};
use crate::error::store as refused;

/// Most keys on a page (`max-keys` in the S3 API reference).
pub(super) const MAX_KEYS: i32 = 1000;

/// What `encoding-type=url` leaves as it is: RFC 3986's unreserved characters and the slash. S3 writes a space as `+`; `%20`
/// means the same to every decoder, also to those that leave `+` alone.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// How keys are written into a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoding {
    url: bool,
}

impl Encoding {
    pub(super) fn new(encoding: Option<&EncodingType>) -> S3Result<Self> {
        match encoding.map(EncodingType::as_str) {
            None => Ok(Self { url: false }),
            Some(EncodingType::URL) => Ok(Self { url: true }),
            Some(other) => Err(s3_error!(InvalidArgument, "Invalid Encoding Method specified in Request: {other}.")),
        }
    }

    pub(super) fn write(self, text: &str) -> String {
        if self.url { utf8_percent_encode(text, PLAIN).to_string() } else { text.to_owned() }
    }
}

/// How many entries a page may have: 0..=`most`, where more is cut as S3 does.
pub(super) fn limit(name: &str, asked: Option<i32>, most: i32) -> S3Result<i32> {
    match asked.unwrap_or(most) {
        negative @ ..0 => Err(s3_error!(InvalidArgument, "{name} is {negative}; it must be at least 0.")),
        asked => Ok(asked.min(most)),
    }
}

fn checksum_algorithms(info: &ObjectInfo) -> Option<Vec<ChecksumAlgorithm>> {
    let names = || info.checksums.iter().map(|(name, _)| ChecksumAlgorithm::from(name.clone())).collect();
    (!info.checksums.is_empty()).then(names)
}

fn checksum_type_of(info: &ObjectInfo) -> Option<ChecksumType> {
    (!info.checksums.is_empty()).then(|| ChecksumType::from_static(checksum_type(&info.checksums)))
}

/// A page of a listing as both versions write it.
struct Page {
    objects: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
    next: Option<String>,
}

impl Operations {
    async fn page(&self, bucket: &str, query: &ListQuery, encoding: Encoding, owners: bool) -> S3Result<Page> {
        let page = if query.max == 0 {
            self.store.head_bucket(bucket).await.map_err(refused)?;
            ListPage::default()
        } else {
            self.store.list(bucket, query).await.map_err(refused)?
        };
        let object = |(key, info): (String, Arc<ObjectInfo>)| Object {
            checksum_algorithm: checksum_algorithms(&info),
            checksum_type: checksum_type_of(&info),
            e_tag: Some(etag(&info.etag)),
            key: Some(encoding.write(&key)),
            last_modified: Some(info.modified.into()),
            owner: owners.then(owner),
            size: i64::try_from(info.size).ok(),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Default::default()
        };
        Ok(Page {
            objects: page.objects.into_iter().map(object).collect(),
            prefixes: page
                .prefixes
                .iter()
                .map(|prefix| CommonPrefix { prefix: Some(encoding.write(prefix)) })
                .collect(),
            next: page.next,
        })
    }
}

pub(super) async fn v1(
    ops: &Operations,
    request: S3Request<ListObjectsInput>,
) -> S3Result<S3Response<ListObjectsOutput>> {
    let input = request.input;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let max = limit("max-keys", input.max_keys, MAX_KEYS)?;
    let query = ListQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.unwrap_or_default(),
        after: input.marker.unwrap_or_default(),
        max: usize::try_from(max).unwrap_or_default(),
    };
    let page = ops.page(&input.bucket, &query, encoding, true).await?;
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.write(&query.prefix)),
        marker: Some(encoding.write(&query.after)),
        max_keys: Some(max),
        is_truncated: Some(page.next.is_some()),
        contents: Some(page.objects),
        common_prefixes: Some(page.prefixes),
        delimiter: given(&query.delimiter, encoding),
        next_marker: page.next.map(|next| encoding.write(&next)),
        encoding_type: input.encoding_type,
        ..Default::default()
    }))
}

pub(super) async fn v2(
    ops: &Operations,
    request: S3Request<ListObjectsV2Input>,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let input = request.input;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let max = limit("max-keys", input.max_keys, MAX_KEYS)?;
    let after = match input.continuation_token.as_deref().filter(|token| !token.is_empty()) {
        Some(token) => from_token(token)
            .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect."))?,
        None => input.start_after.clone().unwrap_or_default(),
    };
    let query = ListQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.unwrap_or_default(),
        after,
        max: usize::try_from(max).unwrap_or_default(),
    };
    let page = ops.page(&input.bucket, &query, encoding, input.fetch_owner == Some(true)).await?;
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.write(&query.prefix)),
        max_keys: Some(max),
        key_count: i32::try_from(page.objects.len() + page.prefixes.len()).ok(),
        continuation_token: input.continuation_token,
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.as_deref().map(to_token),
        contents: Some(page.objects),
        common_prefixes: Some(page.prefixes),
        delimiter: given(&query.delimiter, encoding),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|text| encoding.write(&text)),
        ..Default::default()
    }))
}

/// What a query names, as it is given back.
fn given(text: &str, encoding: Encoding) -> Option<String> {
    (!text.is_empty()).then(|| encoding.write(text))
}

pub(super) async fn versions(
    ops: &Operations,
    request: S3Request<ListObjectVersionsInput>,
) -> S3Result<S3Response<ListObjectVersionsOutput>> {
    let input = request.input;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let max = limit("max-keys", input.max_keys, MAX_KEYS)?;
    let after = input.key_marker.unwrap_or_default();
    let after_version = input.version_id_marker.filter(|marker| !marker.is_empty());
    if after.is_empty() && after_version.is_some() {
        return Err(s3_error!(InvalidArgument, "A version-id marker cannot be specified without a key marker."));
    }
    let query = VersionQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.unwrap_or_default(),
        after,
        after_version,
        max: usize::try_from(max).unwrap_or_default(),
    };
    let page = ops.version_page(&input.bucket, &query).await?;
    let (mut versions, mut markers) = (Vec::new(), Vec::new());
    for entry in page.versions {
        let (key, version) = (encoding.write(&entry.key), entry.version.unwrap_or_else(|| NULL_VERSION.into()));
        match entry.info {
            Some(info) => versions.push(ObjectVersion {
                checksum_algorithm: checksum_algorithms(&info),
                checksum_type: checksum_type_of(&info),
                e_tag: Some(etag(&info.etag)),
                is_latest: Some(entry.latest),
                key: Some(key),
                last_modified: Some(entry.modified.into()),
                owner: Some(owner()),
                size: i64::try_from(info.size).ok(),
                storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
                version_id: Some(version),
                ..Default::default()
            }),
            None => markers.push(DeleteMarkerEntry {
                is_latest: Some(entry.latest),
                key: Some(key),
                last_modified: Some(entry.modified.into()),
                owner: Some(owner()),
                version_id: Some(version),
            }),
        }
    }
    let (next_key, next_version) = page.next.unzip();
    let prefixes = page.prefixes.iter().map(|prefix| CommonPrefix { prefix: Some(encoding.write(prefix)) });
    Ok(S3Response::new(ListObjectVersionsOutput {
        common_prefixes: Some(prefixes.collect()),
        delete_markers: Some(markers),
        delimiter: given(&query.delimiter, encoding),
        encoding_type: input.encoding_type,
        is_truncated: Some(next_key.is_some()),
        key_marker: Some(encoding.write(&query.after)),
        max_keys: Some(max),
        name: Some(input.bucket),
        next_key_marker: next_key.map(|key| encoding.write(&key)),
        next_version_id_marker: next_version.flatten(),
        prefix: Some(encoding.write(&query.prefix)),
        request_charged: None,
        version_id_marker: Some(query.after_version.unwrap_or_default()),
        versions: Some(versions),
    }))
}

impl Operations {
    /// One page of versions. Of a store that has none, every object is the one version `null`.
    async fn version_page(&self, bucket: &str, query: &VersionQuery) -> S3Result<VersionPage> {
        if query.max == 0 {
            self.store.head_bucket(bucket).await.map_err(refused)?;
            return Ok(VersionPage::default());
        }
        match self.store.list_versions(bucket, query).await {
            Err(StoreError::NotSupported(_)) => {}
            page => return page.map_err(refused),
        }
        let query = ListQuery {
            prefix: query.prefix.clone(),
            delimiter: query.delimiter.clone(),
            after: query.after.clone(),
            max: query.max,
        };
        let page = self.store.list(bucket, &query).await.map_err(refused)?;
        let entry = |(key, info): (String, Arc<ObjectInfo>)| VersionEntry {
            key,
            latest: true,
            version: None,
            modified: info.modified,
            info: Some(info),
        };
        let version_of = |key: &String| page.objects.last().is_some_and(|(last, _)| last == key);
        Ok(VersionPage {
            next: page.next.map(|key| {
                let version = version_of(&key).then(|| NULL_VERSION.to_owned());
                (key, version)
            }),
            versions: page.objects.into_iter().map(entry).collect(),
            prefixes: page.prefixes,
        })
    }
}

/// A continuation token: where the page ended, in letters that need no escape anywhere. The leading letter leaves room for
/// another form.
fn to_token(after: &str) -> String {
    format!("k{}", BASE64_URL_SAFE_NO_PAD.encode(after))
}

fn from_token(token: &str) -> Option<String> {
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token.strip_prefix('k')?).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_17_keys_are_encoded_once() {
        let url = Encoding { url: true };
        assert_eq!(url.write("a+ b.txt"), "a%2B%20b.txt");
        assert_eq!(url.write("\x01/ä%20~*'()"), "%01/%C3%A4%2520~%2A%27%28%29");
        assert_eq!(Encoding { url: false }.write("a+ b"), "a+ b");
    }

    #[test]
    fn tokens_come_back() {
        for key in ["", "a", "ä/\u{1}+", &"x".repeat(1024)] {
            assert_eq!(from_token(&to_token(key)).as_deref(), Some(key));
        }
        for token in ["", "x", "k*", "kA", "k_w"] {
            assert_eq!(from_token(token), None, "{token}");
        }
    }
}
