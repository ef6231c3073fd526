//! Copies: `CopyObject` and `UploadPartCopy`. The store does it itself where it can; else the content goes from the source to a
//! writer in pieces, with a turn of the executor in between, so that memory and the time of a turn stay bounded whatever the
//! size.

use std::ops::Range;

use ernic_store::{Commit, Condition, Object, ObjectInfo, ObjectWriter, PutOptions, Source, StoreError};
use futures_util::StreamExt;
use s3s::{
    S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        ChecksumType, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, CopySource,
        UploadPartCopyInput, UploadPartCopyOutput,
    },
    s3_error,
};

use super::{
    Operations, checksum_type, etag,
    multipart::{part_number, upload_algorithm},
    object::STEP,
    version,
};
use crate::{
    checksum::{Algorithm, Digests},
    conditions::Verdict,
    error::{error, invalid_range, not_implemented, report, store as refused},
    range::RangeSpec,
    request::Context,
    turn::Turn,
};

/// Most bytes that one request copies (S3 API reference, `CopyObject` and `UploadPartCopy`).
const MAX_COPY: u64 = 5 * 1024 * 1024 * 1024;

/// The object that a request copies, as it was found.
struct Found {
    bucket: String,
    key: String,
    /// The version that was named.
    named: Option<String>,
    object: Object,
}

impl Found {
    /// Finds the source and checks the conditions on it.
    async fn new(ops: &Operations, context: &Context, source: CopySource) -> S3Result<Self> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(not_implemented("A copy from an access point"));
        };
        if key.is_empty() {
            return Err(error(S3ErrorCode::InvalidArgument, "The header x-amz-copy-source names no key."));
        }
        let named = version(version_id.as_deref())?;
        let object = ops.store.get(&bucket, &key, named).await.map_err(|error| match error {
            StoreError::DeleteMarker { current: false, .. } => {
                s3_error!(InvalidRequest, "The source of a copy request may not be a delete marker.")
            }
            // Its headers would be about the object that is to be made.
            StoreError::DeleteMarker { .. } => S3ErrorCode::NoSuchKey.into(),
            error => refused(error),
        })?;
        if context.source_conditions.read(&object.info) != Verdict::Proceed {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
        Ok(Self { bucket: bucket.into(), key: key.into(), named: version_id.map(Into::into), object })
    }

    fn info(&self) -> &ObjectInfo {
        &self.object.info
    }

    /// Refuses to copy too much at once.
    fn check_size(size: u64) -> S3Result<()> {
        if size > MAX_COPY {
            return Err(s3_error!(
                InvalidRequest,
                "The specified copy source is larger than the maximum allowable size for a copy source: {MAX_COPY}."
            ));
        }
        Ok(())
    }

    /// The bytes of `range` into `writer`.
    async fn pour(
        &self,
        range: Range<u64>,
        writer: &mut dyn ObjectWriter,
        digests: &mut Digests,
        turn: &Turn,
    ) -> S3Result<()> {
        let size = range.end.saturating_sub(range.start);
        let mut content = self.object.data.read(range);
        let mut step = 0;
        while let Some(piece) = content.next().await {
            let mut piece = piece.map_err(refused)?;
            while !piece.is_empty() {
                let buffer = writer.buffer(piece.len().min(STEP - step)).await.map_err(refused)?;
                let n = buffer.len().min(piece.len());
                let taken = piece.split_to(n);
                buffer[..n].copy_from_slice(&taken);
                writer.advance(n);
                digests.update(&taken);
                step += n;
                if step >= STEP {
                    step = 0;
                    turn.pass().await;
                }
            }
        }
        if writer.written() != size {
            report(&format!("the store gave {} bytes of {size} to a copy", writer.written()));
            return Err(S3ErrorCode::InternalError.into());
        }
        Ok(())
    }
}

/// Whether a directive says `REPLACE`; `COPY` is the default.
fn replaces(name: &str, directive: Option<&str>) -> S3Result<bool> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => Err(s3_error!(InvalidArgument, "{name} is COPY or REPLACE: {other}.")),
    }
}

pub(super) async fn object(
    ops: &Operations,
    request: S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let (bucket, key) = (&input.bucket, &input.key);
    let directive = input.metadata_directive.as_ref().map(|directive| directive.as_str());
    let new_meta = replaces("x-amz-metadata-directive", directive)?;
    let directive = input.tagging_directive.as_ref().map(|directive| directive.as_str());
    let new_tags = replaces("x-amz-tagging-directive", directive)?;
    if !new_tags && !context.tags.is_empty() {
        return Err(s3_error!(InvalidArgument, "x-amz-tagging needs x-amz-tagging-directive: REPLACE."));
    }
    let asked = match &input.checksum_algorithm {
        Some(name) => Some(Algorithm::named(name.as_str())?),
        None => None,
    };
    let found = Found::new(ops, &context, input.copy_source).await?;
    let info = found.info();
    Found::check_size(info.size)?;
    let changed = new_meta || new_tags || asked.is_some() || found.named.is_some();
    if !changed && found.bucket == *bucket && found.key == *key {
        return Err(s3_error!(
            InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without changing the \
             object's metadata, storage class, website redirect location or encryption attributes."
        ));
    }
    let condition = ops.condition(bucket, key, &context.conditions).await?;
    let options = PutOptions {
        size: Some(info.size),
        meta: if new_meta { context.meta.clone() } else { info.meta.clone() },
        tags: if new_tags { context.tags.clone() } else { info.tags.clone() },
        condition: condition.clone(),
    };

    let had = info.checksums.first().and_then(|(name, _)| Algorithm::from_name(name));
    let algorithm = asked.or(had).unwrap_or(Algorithm::Crc64Nvme);
    let mut copied = None;
    // A copy of an object of several parts is one of a single part, with another ETag and other checksums.
    if info.parts.is_empty() && had.is_none_or(|had| had == algorithm) {
        let source = Source {
            bucket: found.bucket.clone(),
            key: found.key.clone(),
            version: found.named.clone(),
            etag: info.etag.clone(),
        };
        let commit =
            Commit { etag: info.etag.clone(), checksums: info.checksums.clone(), condition: condition.clone() };
        copied = ops.store.copy(&source, bucket, key, &options, &commit).await.map_err(refused)?;
    }
    let copied = match copied {
        Some(copied) => copied,
        None => {
            let mut digests = Digests::new(algorithm, ops.config.etag, false);
            let mut writer = ops.store.put(bucket, key, options).await.map_err(refused)?;
            found.pour(0..info.size, &mut *writer, &mut digests, &context.turn).await?;
            let digested = digests.finish();
            let checksums = vec![(algorithm.name().to_owned(), digested.sum)];
            writer.commit(Commit { etag: digested.etag, checksums, condition }).await.map_err(refused)?
        }
    };

    let result = with_checksums!(CopyObjectResult, &copied.checksums, {
        checksum_type: (!copied.checksums.is_empty())
            .then(|| ChecksumType::from_static(checksum_type(&copied.checksums))),
        e_tag: Some(etag(&copied.etag)),
        last_modified: Some(copied.modified.into()),
    });
    Ok(S3Response::new(CopyObjectOutput {
        copy_object_result: Some(result),
        copy_source_version_id: ops.shown_version(&found.bucket, info).await,
        version_id: copied.version.clone(),
        ..Default::default()
    }))
}

pub(super) async fn part(
    ops: &Operations,
    request: S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let number = part_number(input.part_number)?;
    let upload = ops.store.head_upload(&input.bucket, &input.key, &input.upload_id).await.map_err(refused)?;
    let found = Found::new(ops, &context, input.copy_source).await?;
    let whole = found.info().size;
    let range = match input.copy_source_range.as_deref() {
        None => 0..whole,
        Some(text) => source_range(text, whole)?,
    };
    let size = range.end - range.start;
    Found::check_size(size)?;

    let algorithm = upload_algorithm(&upload.options).unwrap_or(Algorithm::Crc64Nvme);
    let mut digests = Digests::new(algorithm, ops.config.etag, false);
    let writer = ops.store.put_part(&input.bucket, &input.key, &input.upload_id, number, Some(size)).await;
    let mut writer = writer.map_err(refused)?;
    found.pour(range, &mut *writer, &mut digests, &context.turn).await?;
    let digested = digests.finish();
    let checksums = vec![(algorithm.name().to_owned(), digested.sum)];
    let commit = Commit { etag: digested.etag, checksums, condition: Condition::None };
    let info = writer.commit(commit).await.map_err(refused)?;

    let result = with_checksums!(CopyPartResult, &info.checksums, {
        e_tag: Some(etag(&info.etag)),
        last_modified: Some(info.modified.into()),
    });
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: ops.shown_version(&found.bucket, found.info()).await,
        ..Default::default()
    }))
}

/// `x-amz-copy-source-range`: `bytes=first-last`, and within the source ("UploadPartCopy" in the S3 API reference).
fn source_range(text: &str, size: u64) -> S3Result<Range<u64>> {
    match RangeSpec::parse(text) {
        Some(RangeSpec::FromTo(first, last)) if last < size => Ok(first..last + 1),
        Some(RangeSpec::FromTo(..)) => Err(invalid_range(size)),
        _ => Err(s3_error!(
            InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last: {text}."
        )),
    }
}
