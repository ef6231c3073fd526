//! Uploads in parts, where the service has none: hidden files, put together at the end.
//!
//! `.ernic-uploads/<id>/upload.json` says what the upload is. A part is a file of its own and `<number>.json`, which names
//! it: so a part that is uploaded again replaces the earlier one in one step.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::StreamExt;
use opendal::{EntryMode, ErrorKind, options::WriteOptions};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Files, Fill, OWN, failed};
use crate::{
    Commit, Condition, Metadata, ObjectInfo, PartInfo, PartName, Result, StoreError, Tags, UploadChecksum, UploadInfo,
    UploadOptions,
    remote::{PartPlace, body::Body},
};

/// [`Metadata`] in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct MetaFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    user: BTreeMap<String, String>,
}

impl From<&Metadata> for MetaFile {
    fn from(meta: &Metadata) -> Self {
        let Metadata {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            expires,
            user,
        } = meta.clone();
        Self { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    }
}

impl From<MetaFile> for Metadata {
    fn from(file: MetaFile) -> Self {
        let MetaFile {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            expires,
            user,
        } = file;
        Self { content_type, content_encoding, content_language, content_disposition, cache_control, expires, user }
    }
}

/// Metadata as a file's attribute has it.
pub(super) fn write_meta(meta: &Metadata) -> String {
    serde_json::to_string(&MetaFile::from(meta)).unwrap_or_default()
}

pub(super) fn read_meta(text: &str) -> Option<Metadata> {
    serde_json::from_str::<MetaFile>(text).ok().map(Metadata::from)
}

#[derive(Debug, Serialize, Deserialize)]
struct UploadFile {
    key: String,
    started: u64,
    meta: MetaFile,
    checksum: Option<(String, bool)>,
}

/// What `<number>.json` has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PartFile {
    number: u16,
    size: u64,
    etag: String,
    checksums: Vec<(String, String)>,
    /// Seconds since 1970.
    written: u64,
    /// Name of the file with the content.
    file: String,
}

impl PartFile {
    pub(super) fn info(&self) -> PartInfo {
        PartInfo {
            number: self.number,
            info: Arc::new(ObjectInfo {
                size: self.size,
                etag: self.etag.clone(),
                modified: SystemTime::UNIX_EPOCH + Duration::from_secs(self.written),
                meta: Metadata::default(),
                checksums: self.checksums.clone(),
                parts: Vec::new(),
                tags: Tags::new(),
                version: None,
            }),
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Content that is put together of files.
struct Joined<'a> {
    files: &'a Files,
    paths: Vec<(String, u64)>,
    commit: Option<Commit>,
}

#[async_trait]
impl Fill for Joined<'_> {
    async fn fill(&mut self, writer: &mut opendal::Writer) -> Result<Commit> {
        for (path, size) in &self.paths {
            if *size == 0 {
                continue;
            }
            let reader = self.files.op.reader(path).await.map_err(|error| failed(&error))?;
            let mut stream = reader.into_stream(0..*size).await.map_err(|error| failed(&error))?;
            let mut left = *size;
            while let Some(piece) = stream.next().await {
                let piece = piece.map_err(|error| failed(&error))?;
                left = left.saturating_sub(piece.len() as u64);
                writer.write(piece).await.map_err(|error| failed(&error))?;
            }
            if left > 0 {
                return Err(StoreError::Internal(format!("the part {path} is {left} bytes too short")));
            }
        }
        Ok(self.commit.take().unwrap_or_default())
    }
}

impl Files {
    /// The folder of an upload.
    fn upload_folder(&self, bucket: &str, upload: &str) -> Result<String> {
        if upload.len() != 32 || !upload.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(StoreError::NoSuchUpload);
        }
        Ok(format!("{}{OWN}{upload}/", self.root(bucket)?))
    }

    async fn read_file<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let text = self.op.read(path).await.map_err(|error| failed(&error))?.to_bytes();
        serde_json::from_slice(&text).map_err(|error| StoreError::Internal(format!("{path} is damaged: {error}")))
    }

    async fn write_file<T: Serialize + Sync>(&self, path: &str, content: &T) -> Result<()> {
        let text = serde_json::to_vec(content).map_err(|error| StoreError::Internal(error.to_string()))?;
        self.op.write(path, text).await.map_err(|error| failed(&error)).map(drop)
    }

    pub(super) async fn start_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        self.path(bucket, key).await?;
        self.head_bucket_of(bucket).await?;
        // What the object cannot have is refused now, not after all of the content.
        self.options(&options.meta, &options.tags, &Condition::None)?;
        let upload = format!("{:032x}", fastrand::u128(..));
        let file = UploadFile {
            key: key.to_owned(),
            started: now(),
            meta: MetaFile::from(&options.meta),
            checksum: options.checksum.map(|checksum| (checksum.algorithm, checksum.full_object)),
        };
        self.write_file(&format!("{}upload.json", self.upload_folder(bucket, &upload)?), &file).await?;
        Ok(upload)
    }

    async fn head_bucket_of(&self, bucket: &str) -> Result<()> {
        super::Engine::head_bucket(self, bucket).await.map(drop)
    }

    pub(super) async fn upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        let folder = self.upload_folder(bucket, upload)?;
        let file: UploadFile = match self.read_file(&format!("{folder}upload.json")).await {
            Ok(file) => file,
            Err(StoreError::NoSuchKey) => {
                self.head_bucket_of(bucket).await?;
                return Err(StoreError::NoSuchUpload);
            }
            Err(error) => return Err(error),
        };
        if file.key != key {
            return Err(StoreError::NoSuchUpload);
        }
        Ok(UploadInfo {
            upload: upload.to_owned(),
            key: file.key,
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(file.started),
            options: UploadOptions {
                meta: file.meta.into(),
                tags: Tags::new(),
                checksum: file.checksum.map(|(algorithm, full_object)| UploadChecksum { algorithm, full_object }),
            },
        })
    }

    pub(super) async fn uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        self.head_bucket_of(bucket).await?;
        let folder = format!("{}{OWN}", self.root(bucket)?);
        let entries = match self.op.list(&folder).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(&error)),
        };
        let mut uploads = Vec::new();
        for entry in entries.iter().filter(|entry| entry.metadata().mode() == EntryMode::DIR) {
            let id = entry.name().trim_end_matches('/');
            let Ok(folder) = self.upload_folder(bucket, id) else { continue };
            match self.read_file::<UploadFile>(&format!("{folder}upload.json")).await {
                Ok(file) => uploads.push(self.upload(bucket, &file.key, id).await?),
                Err(StoreError::NoSuchKey) => {}
                Err(error) => return Err(error),
            }
        }
        uploads.sort_by(|a, b| (&a.key, &a.upload).cmp(&(&b.key, &b.upload)));
        Ok(uploads)
    }

    pub(super) async fn write_part(&self, at: &PartPlace, mut body: Body) -> Result<Arc<ObjectInfo>> {
        self.upload(&at.bucket, &at.key, &at.upload).await?;
        let folder = self.upload_folder(&at.bucket, &at.upload)?;
        let file = format!("{:05}-{:016x}", at.number, fastrand::u64(..));
        let path = format!("{folder}{file}");
        let (there, commit) = self.write(&path, WriteOptions::default(), &Condition::None, &mut body).await?;
        let part = PartFile {
            number: at.number,
            size: there.size,
            // A part's ETag is the MD5 that was computed here: clients compare it.
            etag: commit.etag,
            checksums: commit.checksums,
            written: now(),
            file,
        };
        let name = format!("{folder}{:05}.json", at.number);
        let lock = self.lock(&folder).await;
        // The upload may have ended meanwhile, and then nothing of it may stay.
        if let Err(error) = self.upload(&at.bucket, &at.key, &at.upload).await {
            self.delete_path(&path).await?;
            let _ = self.delete_path(&folder).await;
            return Err(error);
        }
        let earlier = self.read_file::<PartFile>(&name).await.ok();
        self.write_file(&name, &part).await?;
        if let Some(earlier) = earlier {
            self.delete_path(&format!("{folder}{}", earlier.file)).await?;
        }
        drop(lock);
        Ok(part.info().info)
    }

    pub(super) async fn parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartFile>> {
        self.upload(bucket, key, upload).await?;
        let folder = self.upload_folder(bucket, upload)?;
        let entries = self.op.list(&folder).await.map_err(|error| failed(&error))?;
        let mut parts: Vec<PartFile> = Vec::new();
        for entry in entries {
            if entry.name().strip_suffix(".json").is_some_and(|name| name.len() == 5) {
                parts.push(self.read_file(entry.path()).await?);
            }
        }
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    pub(super) async fn join_parts(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        names: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        let path = self.path(bucket, key).await?;
        let folder = self.upload_folder(bucket, upload)?;
        let lock = self.lock(&folder).await;
        let info = self.upload(bucket, key, upload).await?;
        let parts = self.parts(bucket, key, upload).await?;
        let mut paths = Vec::with_capacity(names.len());
        let mut named = BTreeSet::new();
        for name in names {
            let part = parts.binary_search_by_key(&name.number, |part| part.number).ok().and_then(|at| parts.get(at));
            let part = part.filter(|part| part.etag == name.etag && named.insert(name.number));
            let part = part.ok_or(StoreError::NoSuchPart(name.number))?;
            paths.push((format!("{folder}{}", part.file), part.size));
        }
        let meta = info.options.meta;
        let condition = commit.condition.clone();
        let checksums = commit.checksums.clone();
        let options = self.options(&meta, &Tags::new(), &condition)?;
        let mut content = Joined { files: self, paths, commit: Some(commit) };
        // The lock of the upload's folder may be the one of the object's path.
        drop(lock);
        let (made, _) = self.write(&path, options, &condition, &mut content).await?;
        self.remove_upload(bucket, upload).await?;
        Ok(Arc::new(ObjectInfo { checksums, meta, ..made }))
    }

    /// Takes an upload away: first what makes it one, then the rest.
    pub(super) async fn remove_upload(&self, bucket: &str, upload: &str) -> Result<()> {
        let folder = self.upload_folder(bucket, upload)?;
        let _lock = self.lock(&folder).await;
        self.delete_path(&format!("{folder}upload.json")).await?;
        self.op.delete_with(&folder).recursive(true).await.map_err(|error| failed(&error))
    }
}
