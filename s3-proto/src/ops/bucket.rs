//! Operations on buckets.

use ernic_store::Versioning;
use s3s::{
    S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        Bucket, BucketLocationConstraint, BucketVersioningStatus, CreateBucketInput, CreateBucketOutput,
        DeleteBucketInput, DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput,
        GetBucketVersioningInput, GetBucketVersioningOutput, HeadBucketInput, HeadBucketOutput, ListBucketsInput,
        ListBucketsOutput, MFADelete, PutBucketVersioningInput, PutBucketVersioningOutput,
    },
    s3_error,
};

use super::{Operations, owner};
use crate::{
    RESERVED_BUCKETS,
    error::{error, not_implemented, store as refused},
};

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
    let elsewhere = input.bucket_region.as_ref().is_some_and(|region| *region != ops.config.region);
    let mut buckets = ops.store.list_buckets().await.map_err(refused)?;
    buckets.retain(|bucket| !elsewhere && bucket.name.starts_with(prefix) && bucket.name.as_str() > after);
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

pub(super) async fn versioning(
    ops: &Operations,
    request: S3Request<GetBucketVersioningInput>,
) -> S3Result<S3Response<GetBucketVersioningOutput>> {
    let status = match ops.store.head_bucket(&request.input.bucket).await.map_err(refused)?.versioning {
        Versioning::Off => None,
        Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
        Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    let status = status.map(BucketVersioningStatus::from_static);
    Ok(S3Response::new(GetBucketVersioningOutput { mfa_delete: None, status }))
}

pub(super) async fn set_versioning(
    ops: &Operations,
    request: S3Request<PutBucketVersioningInput>,
) -> S3Result<S3Response<PutBucketVersioningOutput>> {
    let input = request.input;
    let wanted = input.versioning_configuration;
    if wanted.mfa_delete.as_ref().is_some_and(|mfa| mfa.as_str() != MFADelete::DISABLED) {
        return Err(not_implemented("MFA delete"));
    }
    let versioning = match wanted.status.as_ref().map(|status| status.as_str()) {
        Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
        _ => {
            return Err(error(
                S3ErrorCode::IllegalVersioningConfigurationException,
                "The Versioning element must be specified: its Status is Enabled or Suspended.",
            ));
        }
    };
    ops.store.set_versioning(&input.bucket, versioning).await.map_err(refused)?;
    Ok(S3Response::new(PutBucketVersioningOutput::default()))
}

pub(super) async fn head(
    ops: &Operations,
    request: S3Request<HeadBucketInput>,
) -> S3Result<S3Response<HeadBucketOutput>> {
    ops.store.head_bucket(&request.input.bucket).await.map_err(refused)?;
    Ok(S3Response::new(HeadBucketOutput { bucket_region: Some(ops.config.region.clone()), ..Default::default() }))
}

/// Making a bucket that is there succeeds and changes nothing, as in us-east-1.
pub(super) async fn create(
    ops: &Operations,
    request: S3Request<CreateBucketInput>,
) -> S3Result<S3Response<CreateBucketOutput>> {
    let input = request.input;
    let bucket = input.bucket;
    check_name(&bucket)?;
    if let Some(configuration) = input.create_bucket_configuration {
        if configuration.bucket.is_some() || configuration.location.is_some() {
            return Err(not_implemented("A directory bucket"));
        }
        let asked = configuration.location_constraint.as_ref().map_or("", |region| region.as_str());
        if !asked.is_empty() && asked != ops.config.region {
            return Err(s3_error!(
                IllegalLocationConstraintException,
                "The {asked} location constraint is incompatible with the region of this server, {}.",
                ops.config.region
            ));
        }
    }
    ops.store.create_bucket(&bucket).await.map_err(refused)?;
    Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
}

/// The rules for new names beyond those that every request is checked for ("General purpose buckets naming rules" in the S3
/// user guide), and the names of our own pages.
fn check_name(bucket: &str) -> S3Result<()> {
    const PREFIXES: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
    const SUFFIXES: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
    let why = if RESERVED_BUCKETS.contains(&bucket) {
        "it is that of a page of this server"
    } else if bucket.split('.').any(|label| label.is_empty() || label.starts_with('-') || label.ends_with('-')) {
        "a dot has a hyphen or another dot beside it"
    } else if PREFIXES.iter().any(|prefix| bucket.starts_with(prefix)) {
        "its beginning is reserved"
    } else if SUFFIXES.iter().any(|suffix| bucket.ends_with(suffix)) {
        "its end is reserved"
    } else {
        return Ok(());
    };
    Err(s3_error!(InvalidBucketName, "No bucket can have the name {bucket}: {why}."))
}

pub(super) async fn delete(
    ops: &Operations,
    request: S3Request<DeleteBucketInput>,
) -> S3Result<S3Response<DeleteBucketOutput>> {
    ops.store.delete_bucket(&request.input.bucket).await.map_err(refused)?;
    Ok(S3Response::new(DeleteBucketOutput::default()))
}
