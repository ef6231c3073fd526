//! What S3 has a configuration for and this service has not: a GET says so as S3 does in a bucket where nobody has configured
//! anything. Clients ask out of habit and take that answer well.
//!
//! Access control is the one of a bucket whose owner owns everything in it ("Controlling ownership of objects and disabling
//! ACLs" in the S3 user guide): the only list is the owner's full control.

use http::StatusCode;
use s3s::{
    S3Error, S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        AccessControlPolicy, GetBucketAccelerateConfigurationInput, GetBucketAccelerateConfigurationOutput,
        GetBucketAclInput, GetBucketAclOutput, GetBucketCorsInput, GetBucketCorsOutput, GetBucketEncryptionInput,
        GetBucketEncryptionOutput, GetBucketLifecycleConfigurationInput, GetBucketLifecycleConfigurationOutput,
        GetBucketLoggingInput, GetBucketLoggingOutput, GetBucketNotificationConfigurationInput,
        GetBucketNotificationConfigurationOutput, GetBucketOwnershipControlsInput, GetBucketOwnershipControlsOutput,
        GetBucketPolicyInput, GetBucketPolicyOutput, GetBucketPolicyStatusInput, GetBucketPolicyStatusOutput,
        GetBucketReplicationInput, GetBucketReplicationOutput, GetBucketRequestPaymentInput,
        GetBucketRequestPaymentOutput, GetBucketWebsiteInput, GetBucketWebsiteOutput, GetObjectAclInput,
        GetObjectAclOutput, GetObjectLockConfigurationInput, GetObjectLockConfigurationOutput,
        GetPublicAccessBlockInput, GetPublicAccessBlockOutput, Grant, Grantee, ObjectOwnership, OwnershipControls,
        OwnershipControlsRule, Payer, Permission, PolicyStatus, PutBucketAclInput, PutBucketAclOutput,
        PutObjectAclInput, PutObjectAclOutput, Type,
    },
};

use super::{Operations, owner, version};
use crate::{
    error::{custom, error, store as refused},
    request::{OWNER, no_access_control},
};

/// Operations on a bucket that is there whose answer is always the same.
macro_rules! same_for_every_bucket {
    ($($name:ident: $input:ident => $output:ident, $answer:expr;)*) => {
        $(
            pub(super) async fn $name(
                ops: &Operations,
                request: S3Request<$input>,
            ) -> S3Result<S3Response<$output>> {
                ops.store.head_bucket(&request.input.bucket).await.map_err(refused)?;
                $answer.map(S3Response::new)
            }
        )*
    };
}

/// There is no such configuration: 404.
fn none<T>(code: S3ErrorCode, message: &'static str) -> S3Result<T> {
    let mut error = error(code, message);
    error.set_status_code(StatusCode::NOT_FOUND);
    Err(error)
}

same_for_every_bucket! {
    accelerate: GetBucketAccelerateConfigurationInput => GetBucketAccelerateConfigurationOutput,
        S3Result::Ok(GetBucketAccelerateConfigurationOutput::default());
    acl: GetBucketAclInput => GetBucketAclOutput,
        S3Result::Ok(GetBucketAclOutput { grants: Some(full_control()), owner: Some(owner()) });
    cors: GetBucketCorsInput => GetBucketCorsOutput,
        none(S3ErrorCode::NoSuchCORSConfiguration, "The CORS configuration does not exist.");
    encryption: GetBucketEncryptionInput => GetBucketEncryptionOutput,
        none(
            S3ErrorCode::ServerSideEncryptionConfigurationNotFoundError,
            "The server side encryption configuration was not found.",
        );
    lifecycle: GetBucketLifecycleConfigurationInput => GetBucketLifecycleConfigurationOutput,
        none(S3ErrorCode::NoSuchLifecycleConfiguration, "The lifecycle configuration does not exist.");
    logging: GetBucketLoggingInput => GetBucketLoggingOutput,
        S3Result::Ok(GetBucketLoggingOutput::default());
    notification: GetBucketNotificationConfigurationInput => GetBucketNotificationConfigurationOutput,
        S3Result::Ok(GetBucketNotificationConfigurationOutput::default());
    object_lock: GetObjectLockConfigurationInput => GetObjectLockConfigurationOutput,
        none(
            S3ErrorCode::ObjectLockConfigurationNotFoundError,
            "Object Lock configuration does not exist for this bucket.",
        );
    ownership: GetBucketOwnershipControlsInput => GetBucketOwnershipControlsOutput,
        S3Result::Ok(bucket_owner_enforced());
    policy: GetBucketPolicyInput => GetBucketPolicyOutput,
        none(S3ErrorCode::NoSuchBucketPolicy, "The bucket policy does not exist.");
    policy_status: GetBucketPolicyStatusInput => GetBucketPolicyStatusOutput,
        S3Result::Ok(GetBucketPolicyStatusOutput { policy_status: Some(PolicyStatus { is_public: Some(false) }) });
    public_access: GetPublicAccessBlockInput => GetPublicAccessBlockOutput,
        Err::<GetPublicAccessBlockOutput, _>(no_public_access_block());
    replication: GetBucketReplicationInput => GetBucketReplicationOutput,
        none(S3ErrorCode::ReplicationConfigurationNotFoundError, "The replication configuration was not found.");
    request_payment: GetBucketRequestPaymentInput => GetBucketRequestPaymentOutput,
        S3Result::Ok(GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) });
    website: GetBucketWebsiteInput => GetBucketWebsiteOutput,
        none(S3ErrorCode::NoSuchWebsiteConfiguration, "The specified bucket does not have a website configuration.");
}

fn no_public_access_block() -> S3Error {
    custom(
        "NoSuchPublicAccessBlockConfiguration",
        StatusCode::NOT_FOUND,
        "The public access block configuration was not found.".into(),
    )
}

fn bucket_owner_enforced() -> GetBucketOwnershipControlsOutput {
    let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
    let rules = vec![OwnershipControlsRule { object_ownership }];
    GetBucketOwnershipControlsOutput { ownership_controls: Some(OwnershipControls { rules }) }
}

/// The list that everything has.
fn full_control() -> Vec<Grant> {
    let owner = owner();
    let grantee = Grantee {
        display_name: owner.display_name,
        email_address: None,
        id: owner.id,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    vec![Grant { grantee: Some(grantee), permission: Some(Permission::from_static(Permission::FULL_CONTROL)) }]
}

/// Checks that a list is the one that everything has. The headers have been checked before.
fn check(policy: Option<&AccessControlPolicy>, canned: bool) -> S3Result<()> {
    let Some(policy) = policy else {
        let message = "Your request was missing a required header: x-amz-acl, or a list in the body.";
        return if canned { Ok(()) } else { Err(error(S3ErrorCode::MissingSecurityHeader, message)) };
    };
    let owners = |grant: &Grant| {
        let id = grant.grantee.as_ref().and_then(|grantee| grantee.id.as_deref());
        id == Some(OWNER)
            && grant.permission.as_ref().map(|permission| permission.as_str()) == Some(Permission::FULL_CONTROL)
    };
    match policy.grants.as_deref() {
        Some(grants) if !grants.is_empty() && grants.iter().all(owners) => Ok(()),
        _ => Err(no_access_control()),
    }
}

pub(super) async fn put_acl(
    ops: &Operations,
    request: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let input = request.input;
    ops.store.head_bucket(&input.bucket).await.map_err(refused)?;
    check(input.access_control_policy.as_ref(), input.acl.is_some())?;
    Ok(S3Response::new(PutBucketAclOutput::default()))
}

pub(super) async fn object_acl(
    ops: &Operations,
    request: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    ops.store.head(&input.bucket, &input.key, named).await.map_err(refused)?;
    let output = GetObjectAclOutput { grants: Some(full_control()), owner: Some(owner()), request_charged: None };
    Ok(S3Response::new(output))
}

pub(super) async fn put_object_acl(
    ops: &Operations,
    request: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    ops.store.head(&input.bucket, &input.key, named).await.map_err(refused)?;
    check(input.access_control_policy.as_ref(), input.acl.is_some())?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}
