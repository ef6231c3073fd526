//! The engine for S3 servers: every operation is the remote's operation of the same name.

mod client;
mod uploads;
mod xml;

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rusty_s3::Method;

pub(super) use self::client::http_client;
use self::{
    client::{Failure, Patience, Payload, Request, Server, chunk},
    uploads::Uploads,
};
use super::{
    Engine, PartPlace, Place,
    body::{Body, Pieces, collect},
    url::{Credentials, RemoteError, S3Place},
};
use crate::{
    BucketInfo, Commit, Condition, Deleted, ListPage, ListQuery, Metadata, ObjectInfo, PartInfo, PartName, PutOptions,
    Result, Source, StoreError, Tags, UploadInfo, UploadOptions, Versioning,
};

/// Content up to here waits for its commit and is sent in one go, so that it can be sent again, with its checksum.
const SMALL: u64 = 1024 * 1024;
/// Content of unknown size is sent in parts of this size, the least that S3 takes ("Multipart upload limits" in the S3 user
/// guide). It is the only content that is held in more than four pieces.
const PART: usize = 5 * 1024 * 1024;
/// Most bytes of one PUT (same place).
const MAX_PUT: u64 = 5 * 1024 * 1024 * 1024;
/// Most parts of an upload (same place).
const MAX_PARTS: u16 = 10_000;
/// Most keys of a page, and parts, and uploads (S3 API reference).
const PAGE: usize = 1000;
/// Most uploads in progress that are listed.
const MAX_UPLOADS: usize = 100_000;

/// What a copy source's key and tags keep: RFC 3986's unreserved characters, and the slash of keys.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PLAIN_PATH: &AsciiSet = &PLAIN.remove(b'/');

/// See the module.
#[derive(Debug)]
pub(super) struct S3 {
    server: Server,
    only: Option<String>,
    uploads: Uploads,
}

impl S3 {
    pub(super) fn new(place: &S3Place, credentials: Option<Credentials>) -> Result<Self, RemoteError> {
        let server = Server::new(place, credentials)?;
        Ok(Self { server, only: place.bucket.clone(), uploads: Uploads::default() })
    }

    fn check(&self, bucket: &str) -> Result<()> {
        match &self.only {
            Some(only) if only != bucket => Err(StoreError::NoSuchBucket),
            _ => Ok(()),
        }
    }

    fn object(&self, method: Method, bucket: &str, key: &str) -> Result<Request> {
        self.check(bucket)?;
        Ok(Request::object(method, bucket, key))
    }

    fn bucket(&self, method: Method, bucket: &str) -> Result<Request> {
        self.check(bucket)?;
        Ok(Request::bucket(method, bucket))
    }

    /// The headers that a condition on a write is. What S3's headers cannot say is made of what is there now.
    async fn condition(&self, bucket: &str, key: &str, condition: &Condition) -> Result<Vec<(String, String)>> {
        let matches = |etag: &str| vec![("if-match".to_owned(), format!("\"{etag}\""))];
        let absent = || vec![("if-none-match".to_owned(), "*".to_owned())];
        Ok(match condition {
            Condition::None => Vec::new(),
            Condition::Absent => absent(),
            Condition::Match(etag) => matches(etag),
            Condition::Present => matches(&self.head(bucket, key, None).await?.etag),
            Condition::Differs(etag) => match self.head(bucket, key, None).await {
                Ok(info) if info.etag == *etag => return Err(StoreError::PreconditionFailed),
                Ok(info) => matches(&info.etag),
                Err(StoreError::NoSuchKey | StoreError::DeleteMarker { .. }) => absent(),
                Err(error) => return Err(error),
            },
        })
    }

    /// What is there after a PUT, checked against what was sent.
    async fn made(
        &self,
        place: (&str, &str),
        options: PutOptions,
        size: u64,
        headers: &HeaderMap,
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        let etag = text(headers, "etag").map(xml::etag).unwrap_or_default();
        if encrypted(headers) || agrees(&commit.etag, &etag) {
            return Ok(Arc::new(ObjectInfo {
                size,
                etag,
                modified: text(headers, "date").and_then(http_date).unwrap_or_else(SystemTime::now),
                meta: options.meta,
                checksums: commit.checksums,
                parts: Vec::new(),
                tags: options.tags,
                version: version(headers),
            }));
        }
        let (bucket, key) = place;
        let request = self.object(Method::Delete, bucket, key)?.version(version(headers).as_deref());
        let gone = self.server.call(&request, &Payload::None).await;
        Err(StoreError::Internal(format!(
            "the remote has stored '{key}' with the ETag {etag}, but what was sent has {}: it was damaged on the way; {}",
            commit.etag,
            if gone.is_ok() { "it has been deleted" } else { "deleting it has failed" }
        )))
    }

    /// Stores content that is all there.
    async fn put_whole(
        &self,
        bucket: &str,
        key: &str,
        options: PutOptions,
        (content, commit): (Bytes, Commit),
    ) -> Result<Arc<ObjectInfo>> {
        let request = self
            .object(Method::Put, bucket, key)?
            .headers(meta_headers(&options.meta))
            .headers(tag_header(&options.tags))
            .headers(checksum_headers(&commit.checksums))
            .headers(self.condition(bucket, key, &commit.condition).await?);
        let size = content.len() as u64;
        let payload = Payload::Whole(content);
        // Done a second time, a conditional PUT would fail because of the first.
        let (headers, _) = if commit.condition == Condition::None {
            self.server.call(&request, &payload).await?
        } else {
            self.server.call_once(&request, &payload).await?
        };
        self.made((bucket, key), options, size, &headers, commit).await
    }

    /// Stores content whose size nobody knows, in parts.
    async fn put_in_parts(
        &self,
        bucket: &str,
        key: &str,
        options: PutOptions,
        first: Bytes,
        body: &mut Body,
    ) -> Result<Arc<ObjectInfo>> {
        let started = UploadOptions { meta: options.meta, tags: options.tags, checksum: None };
        let upload = self.create_upload(bucket, key, started).await?;
        let done = self.fill(bucket, key, &upload, first, body).await;
        if done.is_err() {
            // The reason is the first error; a remote that is away keeps the parts until its own rules remove them.
            let _ = self.abort_upload(bucket, key, &upload).await;
        }
        done
    }

    async fn fill(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        first: Bytes,
        body: &mut Body,
    ) -> Result<Arc<ObjectInfo>> {
        let (mut content, mut commit, mut parts) = (first, None, Vec::new());
        loop {
            let number =
                u16::try_from(parts.len() + 1).ok().filter(|number| *number <= MAX_PARTS).ok_or_else(|| {
                    StoreError::Unfit("The content has no length and is longer than 10,000 parts of 5 MiB".into())
                })?;
            let request = self
                .object(Method::Put, bucket, key)?
                .query("partNumber", number.to_string())
                .query("uploadId", upload);
            let payload = Payload::Whole(std::mem::take(&mut content));
            let (headers, _) = self.server.call(&request, &payload).await?;
            parts.push(PartName { number, etag: text(&headers, "etag").map(xml::etag).unwrap_or_default() });
            if let Some(commit) = commit {
                // What was computed is the ETag of a single PUT.
                let commit = Commit { etag: String::new(), ..commit };
                return self.complete_upload(bucket, key, upload, &parts, commit).await;
            }
            let (pieces, _, end) = collect(body, PART).await?;
            (content, commit) = (join(pieces), end);
        }
    }

    /// One page of the remote's listing.
    async fn page(&self, bucket: &str, query: &ListQuery, after: &str, max: usize) -> Result<xml::Objects> {
        let mut request = self
            .bucket(Method::Get, bucket)?
            .query("list-type", "2")
            .query("encoding-type", "url")
            .query("max-keys", max.to_string());
        for (name, value) in [("prefix", &*query.prefix), ("delimiter", &query.delimiter), ("start-after", after)] {
            if !value.is_empty() {
                request = request.query(name, value);
            }
        }
        let (_, document) = self.server.call(&request, &Payload::None).await?;
        xml::read("listing", &document)
    }

    /// What a HEAD's refusal means, which has no document to say so.
    async fn missing(&self, bucket: &str, error: StoreError) -> StoreError {
        match error {
            StoreError::NoSuchKey => match self.head_bucket(bucket).await {
                Err(StoreError::NoSuchBucket) => StoreError::NoSuchBucket,
                _ => StoreError::NoSuchKey,
            },
            error => error,
        }
    }

    /// Checks a condition before content is sent. A remote that refuses answers and hangs up, and its answer is lost if the
    /// content is still on its way then; so only a change between this check and its own may come to that.
    async fn check_first(&self, bucket: &str, key: &str, condition: &Condition) -> Result<()> {
        // `condition` has looked for the others.
        if !matches!(condition, Condition::Absent | Condition::Match(_)) {
            return Ok(());
        }
        let there = match self.head(bucket, key, None).await {
            Ok(info) => Some(info),
            Err(StoreError::NoSuchKey | StoreError::DeleteMarker { .. }) => None,
            Err(error) => return Err(error),
        };
        condition.check(there.as_ref().map(|info| info.etag.as_str()))
    }

    /// What is behind `error`, with which a remote has hung up in the middle of content, as far as one question can tell.
    async fn hung_up(&self, bucket: &str, error: StoreError) -> StoreError {
        let Ok(request) = self.bucket(Method::Head, bucket) else { return error };
        match self.server.once(&request, &Payload::None).await {
            Err(Failure::Final(StoreError::NoSuchKey | StoreError::NoSuchBucket)) => StoreError::NoSuchBucket,
            Err(Failure::Final(denied @ StoreError::Denied(_))) => denied,
            _ => error,
        }
    }

    /// The same of a part: is there still an upload that it could be of?
    async fn hung_up_part(&self, at: &PartPlace, error: StoreError) -> StoreError {
        let Ok(request) = self.asked_upload(&at.bucket, &at.key, &at.upload) else { return error };
        match self.server.once(&request, &Payload::None).await {
            Err(Failure::Final(
                gone @ (StoreError::NoSuchKey
                | StoreError::NoSuchUpload
                | StoreError::NoSuchBucket
                | StoreError::Denied(_)),
            )) => no_upload(gone),
            _ => error,
        }
    }

    /// Asks for little of an upload, only whether it is there.
    fn asked_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<Request> {
        Ok(self.object(Method::Get, bucket, key)?.query("uploadId", upload).query("max-parts", "1"))
    }

    async fn tags(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Tags> {
        let request = self.object(Method::Get, bucket, key)?.query("tagging", "").version(version);
        let (_, document) = self.server.call(&request, &Payload::None).await?;
        let tagging: xml::Tagging = xml::read("list of tags", &document)?;
        Ok(tagging.tag_set.tag.into_iter().map(|tag| (tag.key, tag.value)).collect())
    }

    /// One answer to a read, from `range.start` on. Returns how many bytes have been passed on, and what ended it.
    async fn read_some(
        &self,
        at: &Place,
        info: &ObjectInfo,
        range: &Range<u64>,
        out: &Pieces,
    ) -> (u64, Result<bool, Failure>) {
        let mut passed = 0;
        let done = self.pump(at, info, range, out, &mut passed).await;
        (passed, done)
    }

    async fn pump(
        &self,
        at: &Place,
        info: &ObjectInfo,
        range: &Range<u64>,
        out: &Pieces,
        passed: &mut u64,
    ) -> Result<bool, Failure> {
        let request = self
            .object(Method::Get, &at.bucket, &at.key)?
            .version(at.version.as_deref())
            .header("if-match", format!("\"{}\"", info.etag))
            .header("range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        let changed =
            || StoreError::Unavailable(format!("'{}' was replaced or deleted while it was being read", at.key));
        let mut response = match self.server.once(&request, &Payload::None).await {
            Err(Failure::Final(StoreError::PreconditionFailed | StoreError::NoSuchKey)) => {
                return Err(changed().into());
            }
            other => other?,
        };
        let headers = response.headers();
        if text(headers, "etag").is_some_and(|etag| xml::etag(etag) != info.etag) {
            return Err(changed().into());
        }
        let from = match response.status() {
            StatusCode::PARTIAL_CONTENT => text(headers, "content-range")
                .and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok()),
            _ => Some(0),
        };
        if from != Some(range.start) {
            return Err(StoreError::Internal(format!(
                "the remote was asked for bytes from {} on and answers with {}",
                range.start,
                text(headers, "content-range").unwrap_or("all")
            ))
            .into());
        }
        let len = range.end - range.start;
        while let Some(mut piece) = chunk(&mut response).await? {
            piece.truncate(usize::try_from(len - *passed).unwrap_or(usize::MAX));
            *passed += piece.len() as u64;
            if !out.send(piece).await {
                return Ok(false);
            }
            if *passed == len {
                return Ok(true);
            }
        }
        Err(Failure::Unknown(format!("its answer ended {} bytes early", len - *passed)))
    }
}

#[async_trait]
impl Engine for S3 {
    fn only_bucket(&self) -> Option<&str> {
        self.only.as_deref()
    }

    async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        if let Some(only) = &self.only {
            return Ok(vec![self.head_bucket(only).await?]);
        }
        let mut buckets = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut request = Request::service(Method::Get);
            if let Some(token) = token {
                request = request.query("continuation-token", token);
            }
            let (_, document) = self.server.call(&request, &Payload::None).await?;
            let page: xml::Buckets = xml::read("list of buckets", &document)?;
            buckets.extend(page.buckets.bucket.into_iter().map(|bucket| BucketInfo {
                created: xml::time(&bucket.creation_date),
                name: bucket.name,
                versioning: Versioning::Off,
            }));
            token = page.continuation_token.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
        buckets.sort_by(|a, b| a.name.cmp(&b.name));
        buckets.dedup_by(|a, b| a.name == b.name);
        Ok(buckets)
    }

    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo> {
        let request = self.bucket(Method::Head, bucket)?;
        match self.server.call(&request, &Payload::None).await {
            // S3 does not tell here when it was made.
            Ok(_) => {
                Ok(BucketInfo { name: bucket.to_owned(), created: SystemTime::UNIX_EPOCH, versioning: Versioning::Off })
            }
            Err(StoreError::NoSuchKey) => Err(StoreError::NoSuchBucket),
            Err(error) => Err(error),
        }
    }

    async fn create_bucket(&self, bucket: &str) -> Result<bool> {
        match self.head_bucket(bucket).await {
            Ok(_) => return Ok(false),
            Err(StoreError::NoSuchBucket) if self.only.is_some() => {
                return Err(StoreError::NotSupported("buckets other than the one in the remote's URL"));
            }
            Err(StoreError::NoSuchBucket) => {}
            Err(error) => return Err(error),
        }
        let region = self.server.region();
        let document = if region == "us-east-1" { String::new() } else { xml::location(region) };
        let request = self.bucket(Method::Put, bucket)?;
        self.server.call(&request, &Payload::Whole(document.into())).await?;
        Ok(true)
    }

    async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        if self.only.is_some() {
            self.check(bucket)?;
            return Err(StoreError::NotSupported("leave to delete its only bucket"));
        }
        // A bucket with uploads in progress can be deleted in S3 only once they are gone.
        for upload in self.list_uploads(bucket).await? {
            self.abort_upload(bucket, &upload.key, &upload.upload).await?;
        }
        let request = self.bucket(Method::Delete, bucket)?;
        self.server.call_once(&request, &Payload::None).await.map(drop)
    }

    async fn head(&self, bucket: &str, key: &str, wanted: Option<&str>) -> Result<Arc<ObjectInfo>> {
        let request = self.object(Method::Head, bucket, key)?.version(wanted).header("x-amz-checksum-mode", "ENABLED");
        let headers = match self.server.call(&request, &Payload::None).await {
            Ok((headers, _)) => headers,
            Err(error) => return Err(self.missing(bucket, error).await),
        };
        let mut info = info(&headers)?;
        if text(&headers, "x-amz-tagging-count").is_some_and(|count| count != "0") {
            info.tags = self.tags(bucket, key, wanted).await?;
        }
        Ok(Arc::new(info))
    }

    async fn read(&self, at: &Place, info: &ObjectInfo, mut range: Range<u64>, out: &Pieces) -> Result<()> {
        let mut patience = Patience::new();
        loop {
            let (passed, end) = self.read_some(at, info, &range, out).await;
            range.start += passed;
            match end {
                Ok(_) => return Ok(()),
                // All that is missing is the end of an answer.
                Err(_) if range.is_empty() => return Ok(()),
                Err(failure) => {
                    if passed > 0 {
                        patience = Patience::new();
                    }
                    patience.again(failure).await?;
                }
            }
        }
    }

    async fn put(&self, bucket: &str, key: &str, options: PutOptions, mut body: Body) -> Result<Arc<ObjectInfo>> {
        let size = match options.size {
            Some(size) if size > MAX_PUT => {
                return Err(StoreError::Unfit(format!(
                    "{size} bytes are more than the 5 GiB that S3 takes in one PUT"
                )));
            }
            Some(size) if size > SMALL => size,
            known => {
                let most = if known.is_some() { usize::MAX } else { PART };
                let (pieces, _, commit) = collect(&mut body, most).await?;
                return match commit {
                    Some(commit) => self.put_whole(bucket, key, options, (join(pieces), commit)).await,
                    None => self.put_in_parts(bucket, key, options, join(pieces), &mut body).await,
                };
            }
        };
        let request = self
            .object(Method::Put, bucket, key)?
            .headers(meta_headers(&options.meta))
            .headers(tag_header(&options.tags))
            .headers(self.condition(bucket, key, &options.condition).await?);
        self.check_first(bucket, key, &options.condition).await?;
        let (headers, commit) = match self.server.pass(&request, size, body).await {
            Err(error @ StoreError::Unavailable(_)) => return Err(self.hung_up(bucket, error).await),
            passed => passed?,
        };
        self.made((bucket, key), options, size, &headers, commit).await
    }

    async fn copy(
        &self,
        source: &Source,
        bucket: &str,
        key: &str,
        options: &PutOptions,
        commit: &Commit,
    ) -> Result<Option<Arc<ObjectInfo>>> {
        self.check(&source.bucket)?;
        let mut from = format!("/{}/{}", source.bucket, utf8_percent_encode(&source.key, PLAIN_PATH));
        if let Some(version) = &source.version {
            from.push_str(&format!("?versionId={}", utf8_percent_encode(version, PLAIN)));
        }
        let request = self
            .object(Method::Put, bucket, key)?
            .header("x-amz-copy-source", from)
            .header("x-amz-copy-source-if-match", format!("\"{}\"", source.etag))
            .header("x-amz-metadata-directive", "REPLACE")
            .header("x-amz-tagging-directive", "REPLACE")
            .headers(meta_headers(&options.meta))
            .headers(tag_header(&options.tags))
            .headers(self.condition(bucket, key, &commit.condition).await?);
        let document = match self.server.call_once(&request, &Payload::Whole(Bytes::new())).await {
            Ok((_, document)) => document,
            // It has no copies, or not of such an object: the content goes through here then.
            Err(StoreError::NotSupported(_) | StoreError::Unfit(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(refusal) = xml::error(&document) {
            return Err(client::failure(StatusCode::OK, &HeaderMap::new(), Some(&refusal)).end());
        }
        self.head(bucket, key, None).await.map(Some)
    }

    async fn delete(&self, bucket: &str, key: &str, wanted: Option<&str>, condition: Condition) -> Result<Deleted> {
        let mut request = self.object(Method::Delete, bucket, key)?.version(wanted);
        match &condition {
            Condition::None => {}
            Condition::Match(etag) => request = request.header("if-match", format!("\"{etag}\"")),
            _ => return Err(StoreError::NotSupported("conditions other than if-match on a delete")),
        }
        let (headers, _) = self.server.call(&request, &Payload::None).await?;
        Ok(Deleted {
            // S3 does not tell.
            existed: true,
            marker: text(&headers, "x-amz-delete-marker") == Some("true"),
            version: text(&headers, "x-amz-version-id").map(str::to_owned),
        })
    }

    async fn set_tags(&self, bucket: &str, key: &str, wanted: Option<&str>, tags: Tags) -> Result<Arc<ObjectInfo>> {
        let method = if tags.is_empty() { Method::Delete } else { Method::Put };
        let payload = if tags.is_empty() { Payload::None } else { Payload::Whole(xml::tagging(&tags).into()) };
        let request = self.object(method, bucket, key)?.query("tagging", "").version(wanted);
        self.server.call(&request, &payload).await?;
        self.head(bucket, key, wanted).await
    }

    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage> {
        let mut entries: BTreeMap<String, Option<Arc<ObjectInfo>>> = BTreeMap::new();
        let mut after = query.after.clone();
        let mut more = true;
        while more && entries.len() < query.max {
            // S3 compares keys, not groups, with `start-after`: behind a group is behind the last key that it can have.
            let group = !query.delimiter.is_empty()
                && after.strip_prefix(&query.prefix).is_some_and(|rest| rest.ends_with(&query.delimiter));
            let start = if group { format!("{after}{}", char::MAX) } else { after.clone() };
            // One more than is missing tells whether there is more, and makes up for a group that has been passed.
            let page = self.page(bucket, query, &start, (query.max - entries.len() + 1).min(PAGE)).await?;
            let encoding = page.encoding_type.as_deref();
            let before = entries.len();
            let mut last = String::new();
            for entry in page.contents {
                let key = xml::key(&entry.key, encoding)?;
                last = last.max(key.clone());
                entries.insert(key, Some(Arc::new(listed(entry.size, &entry.etag, &entry.last_modified))));
            }
            for prefix in page.common_prefixes {
                let prefix = xml::key(&prefix.prefix, encoding)?;
                last = last.max(prefix.clone());
                if prefix > query.after {
                    entries.insert(prefix, None);
                }
            }
            more = page.is_truncated;
            if more && (last.is_empty() || last <= after && entries.len() == before) {
                return Err(StoreError::Internal("the remote's listing does not advance".into()));
            }
            after = last;
        }
        let mut page = ListPage::default();
        let rest = entries.len() > query.max || more && !entries.is_empty();
        let shown = entries.into_iter().take(query.max);
        let mut last = None;
        for (key, info) in shown {
            last = Some(key.clone());
            match info {
                Some(info) => page.objects.push((key, info)),
                None => page.prefixes.push(key),
            }
        }
        page.next = last.filter(|_| rest);
        Ok(page)
    }

    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        let request = self
            .object(Method::Post, bucket, key)?
            .query("uploads", "")
            .headers(meta_headers(&options.meta))
            .headers(tag_header(&options.tags));
        let (_, document) = self.server.call_once(&request, &Payload::Whole(Bytes::new())).await?;
        let started: xml::Started = xml::read("upload", &document)?;
        if started.upload_id.is_empty() {
            return Err(StoreError::Internal("the remote has started an upload without an id".into()));
        }
        let info = UploadInfo { upload: started.upload_id, key: key.to_owned(), started: SystemTime::now(), options };
        let id = info.upload.clone();
        self.uploads.start(bucket, info);
        Ok(id)
    }

    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        let known = self.uploads.get(bucket, key, upload);
        // Whether it is still there only the remote knows.
        let request = self.asked_upload(bucket, key, upload)?;
        self.server.call(&request, &Payload::None).await.map_err(no_upload)?;
        Ok(known.unwrap_or_else(|| UploadInfo {
            upload: upload.to_owned(),
            key: key.to_owned(),
            started: SystemTime::UNIX_EPOCH,
            options: UploadOptions::default(),
        }))
    }

    async fn put_part(&self, at: &PartPlace, size: Option<u64>, mut body: Body) -> Result<Arc<ObjectInfo>> {
        let request = self
            .object(Method::Put, &at.bucket, &at.key)?
            .query("partNumber", at.number.to_string())
            .query("uploadId", &*at.upload);
        let (size, headers, commit) = match size {
            Some(size) if size > SMALL => {
                let (headers, commit) = match self.server.pass(&request, size, body).await {
                    Err(error @ StoreError::Unavailable(_)) => return Err(self.hung_up_part(at, error).await),
                    passed => passed.map_err(no_upload)?,
                };
                (size, headers, commit)
            }
            Some(_) => {
                let (pieces, len, commit) = collect(&mut body, usize::MAX).await?;
                let payload = Payload::Whole(join(pieces));
                let (headers, _) = self.server.call(&request, &payload).await.map_err(no_upload)?;
                (len as u64, headers, commit.unwrap_or_default())
            }
            None => {
                let (pieces, len, commit) = collect(&mut body, PART).await?;
                let commit = commit.ok_or_else(|| {
                    StoreError::Unfit("A part of more than 5 MiB needs a content-length with this store".into())
                })?;
                let payload = Payload::Whole(join(pieces));
                let (headers, _) = self.server.call(&request, &payload).await.map_err(no_upload)?;
                (len as u64, headers, commit)
            }
        };
        let etag = text(&headers, "etag").map(xml::etag).unwrap_or_default();
        if !encrypted(&headers) && !agrees(&commit.etag, &etag) {
            return Err(StoreError::Internal(format!(
                "the remote has stored part {} of '{}' with the ETag {etag}, but what was sent has {}: upload it again",
                at.number, at.key, commit.etag
            )));
        }
        self.uploads.part(at, &etag, &commit.checksums);
        Ok(Arc::new(ObjectInfo { checksums: commit.checksums, ..simple(size, etag, SystemTime::now()) }))
    }

    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>> {
        let mut parts = Vec::new();
        let mut marker: Option<String> = None;
        loop {
            let mut request =
                self.object(Method::Get, bucket, key)?.query("uploadId", upload).query("max-parts", PAGE.to_string());
            if let Some(marker) = &marker {
                request = request.query("part-number-marker", marker);
            }
            let (_, document) = self.server.call(&request, &Payload::None).await.map_err(no_upload)?;
            let page: xml::Parts = xml::read("list of parts", &document)?;
            parts.extend(page.part.into_iter().map(|part| {
                let mut info = listed(part.size, &part.etag, &part.last_modified);
                info.checksums = part.checksums();
                if info.checksums.is_empty() {
                    info.checksums = self.uploads.checksums(upload, part.part_number, &info.etag);
                }
                PartInfo { number: part.part_number, info: Arc::new(info) }
            }));
            let next = page.next_part_number_marker.filter(|next| page.is_truncated && Some(next) != marker.as_ref());
            if next.is_none() || parts.len() >= usize::from(MAX_PARTS) {
                break;
            }
            marker = next;
        }
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        let mut uploads = Vec::new();
        let mut markers: Option<(String, String)> = None;
        loop {
            let mut request = self
                .bucket(Method::Get, bucket)?
                .query("uploads", "")
                .query("encoding-type", "url")
                .query("max-uploads", PAGE.to_string());
            if let Some((key, id)) = &markers {
                request = request.query("key-marker", key).query("upload-id-marker", id);
            }
            let (_, document) = self.server.call(&request, &Payload::None).await?;
            let page: xml::Uploads = xml::read("list of uploads", &document)?;
            let encoding = page.encoding_type.as_deref();
            for upload in page.upload {
                let key = xml::key(&upload.key, encoding)?;
                let known = self.uploads.get(bucket, &key, &upload.upload_id);
                uploads.push(UploadInfo {
                    key,
                    started: xml::time(&upload.initiated),
                    options: known.map(|known| known.options).unwrap_or_default(),
                    upload: upload.upload_id,
                });
            }
            let key = page.next_key_marker.map(|key| xml::key(&key, encoding)).transpose()?;
            let next = key.map(|key| (key, page.next_upload_id_marker.unwrap_or_default()));
            let next = next.filter(|next| page.is_truncated && Some(next) != markers.as_ref());
            if next.is_none() || uploads.len() >= MAX_UPLOADS {
                break;
            }
            markers = next;
        }
        uploads.sort_by(|a, b| (&a.key, &a.upload).cmp(&(&b.key, &b.upload)));
        Ok(uploads)
    }

    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        let request = self
            .object(Method::Post, bucket, key)?
            .query("uploadId", upload)
            .headers(self.condition(bucket, key, &commit.condition).await?);
        let payload = Payload::Whole(xml::complete(parts).into());
        let (headers, document) = match self.server.call_once(&request, &payload).await {
            Ok(answer) => answer,
            Err(StoreError::NoSuchPart(_)) => {
                return Err(StoreError::NoSuchPart(parts.first().map_or(0, |part| part.number)));
            }
            Err(error) => return Err(no_upload(error)),
        };
        if let Some(refusal) = xml::error(&document) {
            return Err(client::failure(StatusCode::OK, &HeaderMap::new(), Some(&refusal)).end());
        }
        let made: xml::Made = xml::read("completed upload", &document)?;
        self.uploads.end(upload);
        let info = self.head(bucket, key, version(&headers).as_deref()).await?;
        let etag = xml::etag(&made.etag);
        if !encrypted(&headers) && !agrees(&commit.etag, &etag) {
            return Err(StoreError::Internal(format!(
                "the remote has made '{key}' with the ETag {etag}, but the parts make {}",
                commit.etag
            )));
        }
        let mut info = ObjectInfo::clone(&info);
        if info.checksums.is_empty() {
            info.checksums = commit.checksums;
        }
        Ok(Arc::new(info))
    }

    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        let request = self.object(Method::Delete, bucket, key)?.query("uploadId", upload);
        self.server.call(&request, &Payload::None).await.map_err(no_upload)?;
        self.uploads.end(upload);
        Ok(())
    }
}

impl xml::Part {
    fn checksums(&self) -> Vec<(String, String)> {
        [
            ("CRC32", &self.crc32),
            ("CRC32C", &self.crc32c),
            ("CRC64NVME", &self.crc64nvme),
            ("SHA1", &self.sha1),
            ("SHA256", &self.sha256),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value.clone().filter(|value| !value.is_empty())?)))
        .collect()
    }
}

/// 404 on an upload, where the remote gives no code.
fn no_upload(error: StoreError) -> StoreError {
    if matches!(error, StoreError::NoSuchKey) { StoreError::NoSuchUpload } else { error }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn http_date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text).ok()
}

/// The version that an answer names; S3 writes `null` for none.
fn version(headers: &HeaderMap) -> Option<String> {
    text(headers, "x-amz-version-id").filter(|version| *version != "null").map(str::to_owned)
}

/// Whether the remote encrypts with keys that make its ETags something else than MD5 ("Object" in the S3 API reference).
fn encrypted(headers: &HeaderMap) -> bool {
    text(headers, "x-amz-server-side-encryption").is_some_and(|kind| kind.starts_with("aws:kms"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
}

/// Whether two ETags can be of the same content: they differ only if both are made of MD5 in the same way.
fn agrees(computed: &str, got: &str) -> bool {
    let kind = |etag: &str| {
        let (hash, parts) = etag.split_once('-').map_or((etag, None), |(hash, parts)| (hash, Some(parts.to_owned())));
        (hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(parts)
    };
    match (kind(computed), kind(got)) {
        (Some(a), Some(b)) if a == b => computed.eq_ignore_ascii_case(got),
        _ => true,
    }
}

/// Puts pieces together; a single one stays what it is.
fn join(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.remove(0),
        _ => pieces.concat().into(),
    }
}

fn simple(size: u64, etag: String, modified: SystemTime) -> ObjectInfo {
    ObjectInfo {
        size,
        etag,
        modified,
        meta: Metadata::default(),
        checksums: Vec::new(),
        parts: Vec::new(),
        tags: Tags::new(),
        version: None,
    }
}

fn listed(size: u64, etag: &str, modified: &str) -> ObjectInfo {
    simple(size, xml::etag(etag), xml::time(modified))
}

/// The headers of metadata that a request has.
fn meta_headers(meta: &Metadata) -> Vec<(String, String)> {
    let own = [
        ("content-type", &meta.content_type),
        ("content-encoding", &meta.content_encoding),
        ("content-language", &meta.content_language),
        ("content-disposition", &meta.content_disposition),
        ("cache-control", &meta.cache_control),
        ("expires", &meta.expires),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
    own.chain(meta.user.iter().map(|(name, value)| (format!("x-amz-meta-{name}"), value.clone()))).collect()
}

fn tag_header(tags: &Tags) -> Option<(String, String)> {
    let pairs = tags
        .iter()
        .map(|(key, value)| format!("{}={}", utf8_percent_encode(key, PLAIN), utf8_percent_encode(value, PLAIN)));
    (!tags.is_empty()).then(|| ("x-amz-tagging".to_owned(), pairs.collect::<Vec<_>>().join("&")))
}

const CHECKSUMS: [&str; 5] = ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"];

fn checksum_headers(checksums: &[(String, String)]) -> Vec<(String, String)> {
    let known = checksums.iter().filter(|(name, _)| CHECKSUMS.contains(&name.as_str()));
    known.map(|(name, value)| (format!("x-amz-checksum-{}", name.to_lowercase()), value.clone())).collect()
}

/// What the headers of a HEAD say.
fn info(headers: &HeaderMap) -> Result<ObjectInfo> {
    let own = |name: &str| text(headers, name).map(str::to_owned);
    let size = text(headers, "content-length").and_then(|length| length.parse().ok());
    let size = size.ok_or_else(|| StoreError::Internal("the remote's HEAD has no content-length".into()))?;
    let user = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix("x-amz-meta-")?;
        Some((name.to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
    });
    let checksums = CHECKSUMS
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), own(&format!("x-amz-checksum-{}", name.to_lowercase()))?)));
    Ok(ObjectInfo {
        size,
        etag: text(headers, "etag").map(xml::etag).unwrap_or_default(),
        modified: text(headers, "last-modified").and_then(http_date).unwrap_or(SystemTime::UNIX_EPOCH),
        meta: Metadata {
            content_type: own("content-type"),
            content_encoding: own("content-encoding"),
            content_language: own("content-language"),
            content_disposition: own("content-disposition"),
            cache_control: own("cache-control"),
            expires: own("expires"),
            user: user.collect(),
        },
        checksums: checksums.collect(),
        parts: Vec::new(),
        tags: Tags::new(),
        version: version(headers),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_of_different_kinds_cannot_disagree() {
        let (a, b) = ("0".repeat(32), "f".repeat(32));
        assert!(agrees(&a, &a) && !agrees(&a, &b) && agrees(&b, &b.to_uppercase()));
        assert!(!agrees(&format!("{a}-2"), &format!("{b}-2")));
        assert!(agrees(&a, &format!("{b}-2")) && agrees(&a, "crc64") && agrees("", &b));
    }

    #[test]
    fn metadata_becomes_headers_and_comes_back() {
        let meta = Metadata {
            content_type: Some("text/x".into()),
            content_language: Some("de".into()),
            expires: Some("never".into()),
            user: BTreeMap::from([("a".into(), "ä  b".into())]),
            ..Metadata::default()
        };
        let mut headers = HeaderMap::new();
        for (name, value) in meta_headers(&meta) {
            headers.insert(
                http::HeaderName::try_from(name).unwrap(),
                http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        headers.insert("content-length", http::HeaderValue::from_static("7"));
        headers.insert("etag", http::HeaderValue::from_static("\"e\""));
        headers.insert("x-amz-version-id", http::HeaderValue::from_static("null"));
        headers.insert("x-amz-checksum-crc32", http::HeaderValue::from_static("AAAAAA=="));
        let info = info(&headers).unwrap();
        assert_eq!((info.size, &info.etag[..], info.version, info.meta), (7, "e", None, meta));
        assert_eq!(info.checksums, [("CRC32".to_owned(), "AAAAAA==".to_owned())]);
        assert_eq!(tag_header(&vec![("a b".into(), "c&d".into())]).unwrap().1, "a%20b=c%26d");
    }
}
