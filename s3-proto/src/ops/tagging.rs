//! Operations on the tags of objects and buckets.

use ernic_store::Tags;
use s3s::{
    S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        DeleteBucketTaggingInput, DeleteBucketTaggingOutput, DeleteObjectTaggingInput, DeleteObjectTaggingOutput,
        GetBucketTaggingInput, GetBucketTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
        PutBucketTaggingInput, PutBucketTaggingOutput, PutObjectTaggingInput, PutObjectTaggingOutput,
    },
};

use super::{Operations, version};
use crate::{
    error::{error, store as refused},
    tags,
};

pub(super) async fn get_bucket(
    ops: &Operations,
    request: S3Request<GetBucketTaggingInput>,
) -> S3Result<S3Response<GetBucketTaggingOutput>> {
    let tags = ops.store.bucket_tags(&request.input.bucket).await.map_err(refused)?;
    if tags.is_empty() {
        return Err(error(S3ErrorCode::NoSuchTagSet, "The TagSet does not exist."));
    }
    Ok(S3Response::new(GetBucketTaggingOutput { tag_set: tags::to_document(&tags) }))
}

pub(super) async fn put_bucket(
    ops: &Operations,
    request: S3Request<PutBucketTaggingInput>,
) -> S3Result<S3Response<PutBucketTaggingOutput>> {
    let input = request.input;
    let tags = tags::of_document(input.tagging.tag_set, tags::MAX_OF_BUCKET)?;
    ops.store.set_bucket_tags(&input.bucket, tags).await.map_err(refused)?;
    Ok(S3Response::new(PutBucketTaggingOutput::default()))
}

pub(super) async fn delete_bucket(
    ops: &Operations,
    request: S3Request<DeleteBucketTaggingInput>,
) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
    ops.store.set_bucket_tags(&request.input.bucket, Tags::new()).await.map_err(refused)?;
    Ok(S3Response::new(DeleteBucketTaggingOutput::default()))
}

pub(super) async fn get(
    ops: &Operations,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    let info = ops.store.head(&input.bucket, &input.key, named).await.map_err(refused)?;
    Ok(S3Response::new(GetObjectTaggingOutput {
        tag_set: tags::to_document(&info.tags),
        version_id: ops.shown_version(&input.bucket, &info).await,
    }))
}

pub(super) async fn put(
    ops: &Operations,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let input = request.input;
    let tags = tags::of_document(input.tagging.tag_set, tags::MAX_OF_OBJECT)?;
    let named = version(input.version_id.as_deref())?;
    let info = ops.store.set_tags(&input.bucket, &input.key, named, tags).await.map_err(refused)?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id: ops.shown_version(&input.bucket, &info).await }))
}

pub(super) async fn delete(
    ops: &Operations,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    let info = ops.store.set_tags(&input.bucket, &input.key, named, Tags::new()).await.map_err(refused)?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id: ops.shown_version(&input.bucket, &info).await }))
}
