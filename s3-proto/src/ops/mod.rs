//! The operations, over a [`Store`].

/// An answer, or a part of one, with its checksum fields filled from `$sums`.
macro_rules! with_checksums {
    ($($answer:ident)::+, $sums:expr, { $($fields:tt)* }) => {{
        let sum = |algorithm| $crate::ops::checksum_of($sums, algorithm).map(str::to_owned);
        $($answer)::+ {
            checksum_crc32: sum($crate::checksum::Algorithm::Crc32),
            checksum_crc32c: sum($crate::checksum::Algorithm::Crc32c),
            checksum_crc64nvme: sum($crate::checksum::Algorithm::Crc64Nvme),
            checksum_sha1: sum($crate::checksum::Algorithm::Sha1),
            checksum_sha256: sum($crate::checksum::Algorithm::Sha256),
            $($fields)*
        }
    }};
}

/// The checksums that are set in the fields of an input.
macro_rules! declared_checksums {
    ($input:expr) => {
        [
            ($crate::checksum::Algorithm::Crc32, &$input.checksum_crc32),
            ($crate::checksum::Algorithm::Crc32c, &$input.checksum_crc32c),
            ($crate::checksum::Algorithm::Crc64Nvme, &$input.checksum_crc64nvme),
            ($crate::checksum::Algorithm::Sha1, &$input.checksum_sha1),
            ($crate::checksum::Algorithm::Sha256, &$input.checksum_sha256),
        ]
        .into_iter()
        .filter_map(|(algorithm, value)| Some((algorithm, value.as_deref()?)))
    };
}

mod attributes;
mod bucket;
mod completions;
mod config;
mod copy;
mod list;
mod multipart;
mod object;
mod tagging;

use std::sync::Arc;

use async_trait::async_trait;
use ernic_store::{Condition, ObjectInfo, Store, Versioning};
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{
    S3, S3Request, S3Response, S3Result,
    dto::{self, ChecksumType, ETag, Initiator, Owner},
    s3_error,
};

use self::completions::Completions;
use crate::{
    Metrics, S3Config,
    checksum::Algorithm,
    conditions::Conditions,
    error::{not_implemented, store as refused},
    request::OWNER,
};

/// The S3 operations that `s3s` calls.
pub(crate) struct Operations {
    store: Arc<dyn Store>,
    config: S3Config,
    metrics: Arc<Metrics>,
    completions: Completions,
}

impl Operations {
    pub(crate) fn new(store: Arc<dyn Store>, config: S3Config, metrics: Arc<Metrics>) -> Self {
        Self { store, config, metrics, completions: Completions::default() }
    }

    /// The condition of a write. What already fails is refused here, before a body is read; the store checks it again in the
    /// step that makes the object visible.
    async fn condition(&self, bucket: &str, key: &str, conditions: &Conditions) -> S3Result<Condition> {
        let condition = conditions.write().map_err(|_| {
            not_implemented("A condition on a write other than one if-match or one if-none-match with one ETag or *")
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

    /// The version of an object that is read, as the answer shows it: not at all where there have never been versions. The
    /// answer to a write shows what has an id of its own only, as in S3.
    async fn shown_version(&self, bucket: &str, info: &ObjectInfo) -> Option<String> {
        if info.version.is_some() {
            return info.version.clone();
        }
        // The object has been found: that its bucket has gone in the meantime does not make the answer wrong.
        let versioning = self.store.versioning(bucket).await.unwrap_or_default();
        (versioning != Versioning::Off).then(|| NULL_VERSION.to_owned())
    }
}

/// How S3 spells the version that was written while versioning was off or suspended.
const NULL_VERSION: &str = "null";

/// The version that a request names.
fn version(named: Option<&str>) -> S3Result<Option<&str>> {
    match named {
        Some("") => Err(s3_error!(InvalidArgument, "Version id cannot be the empty string.")),
        named => Ok(named),
    }
}

/// An ETag as `s3s` writes it.
fn etag(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

/// Who owns everything.
fn owner() -> Owner {
    Owner { display_name: Some(OWNER.into()), id: Some(OWNER.into()) }
}

/// Who has started every upload.
fn initiator() -> Initiator {
    Initiator { display_name: Some(OWNER.into()), id: Some(OWNER.into()) }
}

/// Checksums of an object or part: algorithm and value.
type Checksums = [(String, String)];

/// The headers that show checksums.
fn checksum_headers(checksums: &Checksums) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in checksums {
        let Some(algorithm) = Algorithm::from_name(name) else { continue };
        let Ok(value) = HeaderValue::from_str(value) else { continue };
        headers.insert(HeaderName::from_static(algorithm.header()), value);
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(checksum_type(checksums)));
    }
    headers
}

/// How the checksum of an object of several parts was made. A composite one has the number of parts behind a dash, which
/// base64 does not have.
fn checksum_type(checksums: &Checksums) -> &'static str {
    if checksums.iter().any(|(_, value)| value.contains('-')) {
        ChecksumType::COMPOSITE
    } else {
        ChecksumType::FULL_OBJECT
    }
}

/// The value of one checksum of an object or part.
fn checksum_of(checksums: &Checksums, algorithm: Algorithm) -> Option<&str> {
    checksums.iter().find(|(name, _)| name == algorithm.name()).map(|(_, value)| value.as_str())
}

macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident in $implementation:path;)*) => {
        #[async_trait]
        impl S3 for Operations {
            $(
                async fn $name(&self, request: S3Request<dto::$input>) -> S3Result<S3Response<dto::$output>> {
                    $implementation(self, request).await
                }
            )*
        }
    };
}

operations! {
    list_buckets: ListBucketsInput => ListBucketsOutput in bucket::list;
    head_bucket: HeadBucketInput => HeadBucketOutput in bucket::head;
    create_bucket: CreateBucketInput => CreateBucketOutput in bucket::create;
    delete_bucket: DeleteBucketInput => DeleteBucketOutput in bucket::delete;
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput in bucket::location;
    get_bucket_versioning: GetBucketVersioningInput => GetBucketVersioningOutput in bucket::versioning;
    put_bucket_versioning: PutBucketVersioningInput => PutBucketVersioningOutput in bucket::set_versioning;
    get_bucket_tagging: GetBucketTaggingInput => GetBucketTaggingOutput in tagging::get_bucket;
    put_bucket_tagging: PutBucketTaggingInput => PutBucketTaggingOutput in tagging::put_bucket;
    delete_bucket_tagging: DeleteBucketTaggingInput => DeleteBucketTaggingOutput in tagging::delete_bucket;
    get_bucket_accelerate_configuration: GetBucketAccelerateConfigurationInput
        => GetBucketAccelerateConfigurationOutput in config::accelerate;
    get_bucket_acl: GetBucketAclInput => GetBucketAclOutput in config::acl;
    put_bucket_acl: PutBucketAclInput => PutBucketAclOutput in config::put_acl;
    get_bucket_cors: GetBucketCorsInput => GetBucketCorsOutput in config::cors;
    get_bucket_encryption: GetBucketEncryptionInput => GetBucketEncryptionOutput in config::encryption;
    get_bucket_lifecycle_configuration: GetBucketLifecycleConfigurationInput
        => GetBucketLifecycleConfigurationOutput in config::lifecycle;
    get_bucket_logging: GetBucketLoggingInput => GetBucketLoggingOutput in config::logging;
    get_bucket_notification_configuration: GetBucketNotificationConfigurationInput
        => GetBucketNotificationConfigurationOutput in config::notification;
    get_bucket_ownership_controls: GetBucketOwnershipControlsInput
        => GetBucketOwnershipControlsOutput in config::ownership;
    get_bucket_policy: GetBucketPolicyInput => GetBucketPolicyOutput in config::policy;
    get_bucket_policy_status: GetBucketPolicyStatusInput => GetBucketPolicyStatusOutput in config::policy_status;
    get_bucket_replication: GetBucketReplicationInput => GetBucketReplicationOutput in config::replication;
    get_bucket_request_payment: GetBucketRequestPaymentInput
        => GetBucketRequestPaymentOutput in config::request_payment;
    get_bucket_website: GetBucketWebsiteInput => GetBucketWebsiteOutput in config::website;
    get_object_lock_configuration: GetObjectLockConfigurationInput
        => GetObjectLockConfigurationOutput in config::object_lock;
    get_public_access_block: GetPublicAccessBlockInput => GetPublicAccessBlockOutput in config::public_access;
    list_objects: ListObjectsInput => ListObjectsOutput in list::v1;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output in list::v2;
    list_object_versions: ListObjectVersionsInput => ListObjectVersionsOutput in list::versions;
    get_object: GetObjectInput => GetObjectOutput in object::get;
    head_object: HeadObjectInput => HeadObjectOutput in object::head;
    put_object: PutObjectInput => PutObjectOutput in object::put;
    copy_object: CopyObjectInput => CopyObjectOutput in copy::object;
    delete_object: DeleteObjectInput => DeleteObjectOutput in object::delete;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput in object::delete_many;
    get_object_attributes: GetObjectAttributesInput => GetObjectAttributesOutput in attributes::get;
    get_object_tagging: GetObjectTaggingInput => GetObjectTaggingOutput in tagging::get;
    put_object_tagging: PutObjectTaggingInput => PutObjectTaggingOutput in tagging::put;
    delete_object_tagging: DeleteObjectTaggingInput => DeleteObjectTaggingOutput in tagging::delete;
    get_object_acl: GetObjectAclInput => GetObjectAclOutput in config::object_acl;
    put_object_acl: PutObjectAclInput => PutObjectAclOutput in config::put_object_acl;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput in multipart::create;
    upload_part: UploadPartInput => UploadPartOutput in multipart::upload_part;
    upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput in copy::part;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput in multipart::complete;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput in multipart::abort;
    list_parts: ListPartsInput => ListPartsOutput in multipart::list_parts;
    list_multipart_uploads: ListMultipartUploadsInput => ListMultipartUploadsOutput in multipart::list_uploads;
}
