//! The operations, over a [`Store`].

mod bucket;
mod list;
mod multipart;
mod object;

use std::sync::Arc;

use async_trait::async_trait;
use ernic_store::{Condition, ObjectInfo, Store};
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{
    S3, S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
        CompleteMultipartUploadOutput, CreateBucketInput, CreateBucketOutput, CreateMultipartUploadInput,
        CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput,
        ETag, GetBucketLocationInput, GetBucketLocationOutput, GetBucketVersioningInput, GetBucketVersioningOutput,
        GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput,
        ListBucketsInput, ListBucketsOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListObjectsInput,
        ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, ListPartsInput, ListPartsOutput, Owner,
        PutObjectInput, PutObjectOutput, UploadPartInput, UploadPartOutput,
    },
};

use crate::{
    Metrics, S3Config,
    checksum::Algorithm,
    conditions::Conditions,
    error::{not_implemented, store as refused},
};

/// The S3 operations that `s3s` calls.
pub(crate) struct Operations {
    store: Arc<dyn Store>,
    config: S3Config,
    metrics: Arc<Metrics>,
}

impl Operations {
    pub(crate) fn new(store: Arc<dyn Store>, config: S3Config, metrics: Arc<Metrics>) -> Self {
        Self { store, config, metrics }
    }

    /// The condition of a write. What already fails is refused here, before a body is read; the store checks it again in the
    /// step that makes the object visible.
    async fn condition(&self, bucket: &str, key: &str, conditions: &Conditions) -> S3Result<Condition> {
        let condition = conditions.write().map_err(|_| {
            not_implemented("A condition other than if-none-match: * or if-match: <one ETag> on a write")
        })?;
        if condition != Condition::None {
            let there = match self.store.head(bucket, key, None).await {
                Ok(info) => Some(info),
                Err(ernic_store::StoreError::NoSuchKey | ernic_store::StoreError::DeleteMarker { .. }) => None,
                Err(error) => return Err(refused(error)),
            };
            condition.check(there.as_ref().map(|info| info.etag.as_str())).map_err(refused)?;
        }
        Ok(condition)
    }
}

/// There are no versions: only the one that S3 calls `null` may be named.
fn only_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(S3ErrorCode::NoSuchVersion.into()),
    }
}

/// An ETag as `s3s` writes it.
fn etag(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

/// Who owns everything.
fn owner() -> Owner {
    Owner { display_name: Some("ernic".into()), id: Some("ernic".into()) }
}

/// The checksum headers of an object or part.
fn checksum_headers(info: &ObjectInfo) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &info.checksums {
        let Some(algorithm) = Algorithm::from_name(name) else { continue };
        let Ok(value) = HeaderValue::from_str(value) else { continue };
        headers.insert(HeaderName::from_static(algorithm.header()), value);
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(checksum_type(info)));
    }
    headers
}

/// How the checksum of an object of several parts was made. A composite one has the number of parts behind a dash, which
/// base64 does not have.
fn checksum_type(info: &ObjectInfo) -> &'static str {
    if info.checksums.iter().any(|(_, value)| value.contains('-')) { "COMPOSITE" } else { "FULL_OBJECT" }
}

/// The value of one checksum of an object or part.
fn checksum_of(info: &ObjectInfo, algorithm: Algorithm) -> Option<&str> {
    info.checksums.iter().find(|(name, _)| name == algorithm.name()).map(|(_, value)| value.as_str())
}

macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident in $implementation:path;)*) => {
        #[async_trait]
        impl S3 for Operations {
            $(
                async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    $implementation(self, request).await
                }
            )*
        }
    };
}

operations! {
    list_buckets: ListBucketsInput => ListBucketsOutput in bucket::list;
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput in bucket::location;
    get_bucket_versioning: GetBucketVersioningInput => GetBucketVersioningOutput in bucket::versioning;
    head_bucket: HeadBucketInput => HeadBucketOutput in bucket::head;
    create_bucket: CreateBucketInput => CreateBucketOutput in bucket::create;
    list_objects: ListObjectsInput => ListObjectsOutput in list::v1;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output in list::v2;
    get_object: GetObjectInput => GetObjectOutput in object::get;
    head_object: HeadObjectInput => HeadObjectOutput in object::head;
    put_object: PutObjectInput => PutObjectOutput in object::put;
    delete_object: DeleteObjectInput => DeleteObjectOutput in object::delete;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput in object::delete_many;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput in multipart::create;
    upload_part: UploadPartInput => UploadPartOutput in multipart::upload_part;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput in multipart::complete;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput in multipart::abort;
    list_parts: ListPartsInput => ListPartsOutput in multipart::list_parts;
    list_multipart_uploads: ListMultipartUploadsInput => ListMultipartUploadsOutput in multipart::list_uploads;
}
