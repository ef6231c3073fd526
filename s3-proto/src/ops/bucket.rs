//! Operations on buckets.

use s3s::{
    S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        Bucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput, GetBucketLocationInput,
        GetBucketLocationOutput, GetBucketVersioningInput, GetBucketVersioningOutput, HeadBucketInput,
        HeadBucketOutput, ListBucketsInput, ListBucketsOutput,
    },
    s3_error,
};

use super::{Operations, owner};
use crate::error::{not_implemented, store as refused};

/// Most buckets on a page (`max-buckets` in the S3 API reference).
const MAX_BUCKETS: i32 = 10_000;

pub(super) async fn list(
    ops: &Operations,
    request: S3Request<ListBucketsInput>,
) -> S3Result<S3Response<ListBucketsOutput>> {
    let input = request.input;
    let max = input.max_buckets.unwrap_or(MAX_BUCKETS);
    if !(1..=MAX_BUCKETS).contains(&max) {
        return Err(s3_error!(InvalidArgument, "max-buckets is a number between 1 and {MAX_BUCKETS}."));
    }
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let prefix = input.prefix.as_deref().unwrap_or_default();
    let after = input.continuation_token.as_deref().unwrap_or_default();
    let mut buckets = ops.store.list_buckets().await.map_err(refused)?;
    buckets.retain(|bucket| bucket.name.starts_with(prefix) && bucket.name.as_str() > after);
    let more = buckets.len() > max;
    buckets.truncate(max);
    Ok(S3Response::new(ListBucketsOutput {
        continuation_token: buckets.last().filter(|_| more).map(|bucket| bucket.name.clone()),
        buckets: Some(
            buckets
                .into_iter()
                .map(|bucket| Bucket {
                    bucket_region: None,
                    creation_date: Some(bucket.created.into()),
                    name: Some(bucket.name),
                })
                .collect(),
        ),
        owner: Some(owner()),
        prefix: input.prefix,
    }))
}

pub(super) async fn location(
    ops: &Operations,
    request: S3Request<GetBucketLocationInput>,
) -> S3Result<S3Response<GetBucketLocationOutput>> {
    ops.store.head_bucket(&request.input.bucket).await.map_err(refused)?;
    // S3 says nothing for us-east-1.
    let region = Some(&ops.config.region).filter(|region| *region != "us-east-1");
    Ok(S3Response::new(GetBucketLocationOutput {
        location_constraint: region.map(|region| BucketLocationConstraint::from(region.clone())),
    }))
}

/// Versioning has never been enabled.
pub(super) async fn versioning(
    ops: &Operations,
    request: S3Request<GetBucketVersioningInput>,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    ops.store.head_bucket(&request.input.bucket).await.map_err(refused)?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}

pub(super) async fn head(
    ops: &Operations,
    request: S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    ops.store.head_bucket(&request.input.bucket).await.map_err(refused)?;
    Ok(S3Response::new(HeadBucketOutput { bucket_region: Some(ops.config.region.clone()), ..Default::default() }))
}

/// Buckets are made by whoever starts the server. Clients that make sure of theirs first understand this answer.
pub(super) async fn create(
    ops: &Operations,
    request: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    match ops.store.head_bucket(&request.input.bucket).await {
        Ok(_) => Err(S3ErrorCode::BucketAlreadyOwnedByYou.into()),
        Err(ernic_store::StoreError::NoSuchBucket) => Err(not_implemented("CreateBucket")),
        Err(error) => Err(refused(error)),
    }
}
