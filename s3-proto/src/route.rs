//! Which operation a request asks for.
//!
//! `s3s` has a router of its own, but it answers an unknown sub-resource with the plain operation (a `DELETE` of
//! `/bucket/key?acl` would delete the object) and reads whole bodies for operations that are not implemented. This one runs
//! first and lets only what is implemented pass; the names are those of the S3 API reference.

use http::Method;
use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::error::{error, not_implemented};

/// The operations that are answered with more than "not implemented".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    ListBuckets,
    HeadBucket,
    CreateBucket,
    DeleteBucket,
    GetBucketLocation,
    GetBucketVersioning,
    PutBucketVersioning,
    GetBucketTagging,
    PutBucketTagging,
    DeleteBucketTagging,
    PutBucketAcl,
    /// One of the sub-resources in [`CONFIGURATIONS`], whose answer is that nothing has been configured.
    GetBucketConfiguration,
    ListObjects,
    ListObjectVersions,
    ListMultipartUploads,
    DeleteObjects,
    GetObject,
    HeadObject,
    GetObjectAttributes,
    GetObjectTagging,
    PutObjectTagging,
    DeleteObjectTagging,
    GetObjectAcl,
    PutObjectAcl,
    PutObject,
    CopyObject,
    DeleteObject,
    CreateMultipartUpload,
    UploadPart,
    UploadPartCopy,
    CompleteMultipartUpload,
    AbortMultipartUpload,
    ListParts,
}

impl Op {
    /// Whether the body is an object's or part's content.
    pub(crate) fn takes_content(self) -> bool {
        matches!(self, Self::PutObject | Self::UploadPart)
    }

    /// Whether the body is a document.
    pub(crate) fn takes_document(self) -> bool {
        self.takes_checked_document() || self == Self::CompleteMultipartUpload
    }

    /// Whether the body is a document that the request's checksum headers are about.
    /// Those of `CompleteMultipartUpload` are about the object.
    pub(crate) fn takes_checked_document(self) -> bool {
        matches!(
            self,
            Self::CreateBucket
                | Self::PutBucketVersioning
                | Self::PutBucketTagging
                | Self::PutBucketAcl
                | Self::DeleteObjects
                | Self::PutObjectTagging
                | Self::PutObjectAcl
        )
    }

    /// Whether the request says what an object is to carry.
    pub(crate) fn takes_metadata(self) -> bool {
        matches!(self, Self::PutObject | Self::CopyObject | Self::CreateMultipartUpload)
    }

    /// Whether the content is that of an object that the request names.
    pub(crate) fn takes_source(self) -> bool {
        matches!(self, Self::CopyObject | Self::UploadPartCopy)
    }

    /// Whether S3 over RDMA has a path for it.
    pub(crate) fn has_rdma_path(self) -> bool {
        matches!(self, Self::GetObject | Self::PutObject | Self::UploadPart)
    }
}

/// Sub-resources of buckets that clients ask for out of habit, and that are never configured here: a GET says so as S3 does.
const CONFIGURATIONS: &[&str] = &[
    "accelerate",
    "acl",
    "cors",
    "encryption",
    "lifecycle",
    "logging",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "website",
];

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Service,
    Bucket,
    Object,
}

/// Sub-resources of buckets and objects that S3 has and this server has not, whatever the method. A request that names one
/// asks for another operation than the plain one.
const UNKNOWN: &[&str] = &[
    "abac",
    "analytics",
    "annotation",
    "events",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "renameObject",
    "restore",
    "retention",
    "select",
    "session",
    "torrent",
];

/// Finds the operation. `path` is decoded, `query` holds the decoded names and values; `copies` says whether there is a
/// header `x-amz-copy-source`.
pub(crate) fn resolve(method: &Method, path: &str, query: &[(String, String)], copies: bool) -> Result<Op, S3Error> {
    let Some(rest) = path.strip_prefix('/') else {
        return Err(S3ErrorCode::InvalidURI.into());
    };
    let resource = match rest.split_once('/') {
        None if rest.is_empty() => Resource::Service,
        None | Some((_, "")) => Resource::Bucket,
        Some(_) => Resource::Object,
    };
    let value = |name: &str| query.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str());
    let has = |name: &str| value(name).is_some();
    if resource != Resource::Service
        && let Some((name, _)) = query.iter().find(|(name, _)| UNKNOWN.contains(&name.as_str()))
    {
        return Err(not_implemented(&format!("{method} with ?{name}")));
    }

    // What the sub-resources that are known say the operation is; at most one may be named.
    let sub = |allowed: &[&str]| -> Result<Option<&str>, S3Error> {
        const KNOWN: &[&str] =
            &["attributes", "delete", "location", "tagging", "uploadId", "uploads", "versioning", "versions"];
        let mut named = KNOWN.iter().chain(CONFIGURATIONS).copied().filter(|name| has(name));
        let first = named.next();
        if let Some(name) = first.filter(|name| !allowed.contains(name)).or_else(|| named.next()) {
            return Err(not_implemented(&format!("{method} with ?{name}")));
        }
        Ok(first)
    };
    let allowed = |methods: &'static str| -> Result<Op, S3Error> { Err(method_not_allowed(methods)) };

    match (resource, method.as_str()) {
        (Resource::Service, "GET") => match value("x-id") {
            Some("ListDirectoryBuckets") => Err(not_implemented("ListDirectoryBuckets")),
            _ => Ok(Op::ListBuckets),
        },
        (Resource::Service, _) => allowed("GET"),

        (Resource::Bucket, "GET") => {
            let plain = ["location", "tagging", "uploads", "versioning", "versions"];
            match sub(&[&plain[..], CONFIGURATIONS].concat())? {
                Some("location") => Ok(Op::GetBucketLocation),
                Some("tagging") => Ok(Op::GetBucketTagging),
                Some("uploads") => Ok(Op::ListMultipartUploads),
                Some("versioning") => Ok(Op::GetBucketVersioning),
                Some("versions") => Ok(Op::ListObjectVersions),
                Some(_) => Ok(Op::GetBucketConfiguration),
                None => match value("list-type") {
                    None | Some("2") => Ok(Op::ListObjects),
                    Some(other) => {
                        Err(s3_error!(InvalidArgument, "Invalid list-type: {other}. It is 2, or absent for version 1."))
                    }
                },
            }
        }
        (Resource::Bucket, "HEAD") => sub(&[]).map(|_| Op::HeadBucket),
        (Resource::Bucket, "PUT") => Ok(match sub(&["acl", "tagging", "versioning"])? {
            Some("acl") => Op::PutBucketAcl,
            Some("tagging") => Op::PutBucketTagging,
            Some(_) => Op::PutBucketVersioning,
            None => Op::CreateBucket,
        }),
        (Resource::Bucket, "POST") => match sub(&["delete"])? {
            Some(_) => Ok(Op::DeleteObjects),
            None => Err(not_implemented("An upload by HTML form")),
        },
        (Resource::Bucket, "DELETE") => Ok(match sub(&["tagging"])? {
            Some(_) => Op::DeleteBucketTagging,
            None => Op::DeleteBucket,
        }),
        (Resource::Bucket, _) => allowed("GET, HEAD, PUT, POST, DELETE"),

        (Resource::Object, "GET") => Ok(match sub(&["acl", "attributes", "tagging", "uploadId"])? {
            Some("acl") => Op::GetObjectAcl,
            Some("attributes") => Op::GetObjectAttributes,
            Some("tagging") => Op::GetObjectTagging,
            Some(_) => Op::ListParts,
            None => Op::GetObject,
        }),
        (Resource::Object, "HEAD") => sub(&[]).map(|_| Op::HeadObject),
        (Resource::Object, "PUT") => match (sub(&["acl", "tagging", "uploadId"])?, has("partNumber")) {
            (Some("acl"), false) => Ok(Op::PutObjectAcl),
            (Some("tagging"), false) => Ok(Op::PutObjectTagging),
            (Some("uploadId"), true) => Ok(if copies { Op::UploadPartCopy } else { Op::UploadPart }),
            (None, false) => Ok(if copies { Op::CopyObject } else { Op::PutObject }),
            _ => Err(error(S3ErrorCode::InvalidArgument, "A part needs both partNumber and uploadId.")),
        },
        (Resource::Object, "POST") => match sub(&["uploadId", "uploads"])? {
            Some("uploadId") => Ok(Op::CompleteMultipartUpload),
            Some(_) => Ok(Op::CreateMultipartUpload),
            None => allowed("GET, HEAD, PUT, DELETE"),
        },
        (Resource::Object, "DELETE") => Ok(match sub(&["tagging", "uploadId"])? {
            Some("tagging") => Op::DeleteObjectTagging,
            Some(_) => Op::AbortMultipartUpload,
            None => Op::DeleteObject,
        }),
        (Resource::Object, _) => allowed("GET, HEAD, PUT, POST, DELETE"),
    }
}

pub(crate) fn method_not_allowed(methods: &'static str) -> S3Error {
    let mut error: S3Error = S3ErrorCode::MethodNotAllowed.into();
    let headers = [(http::header::ALLOW, http::HeaderValue::from_static(methods))];
    error.set_headers(headers.into_iter().collect());
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, target: &str) -> Result<Op, String> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        resolve(&method.parse().unwrap(), path, &query, false).map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn finds_every_operation() {
        use Op::*;
        for (method, target, op) in [
            ("GET", "/", ListBuckets),
            ("GET", "/?x-id=ListBuckets", ListBuckets),
            ("GET", "/b", ListObjects),
            ("GET", "/b/", ListObjects),
            ("GET", "/b?list-type=2&prefix=a", ListObjects),
            ("GET", "/b?location", GetBucketLocation),
            ("GET", "/b/?location=", GetBucketLocation),
            ("GET", "/b?versioning", GetBucketVersioning),
            ("GET", "/b?uploads", ListMultipartUploads),
            ("GET", "/b?versions&prefix=a", ListObjectVersions),
            ("GET", "/b?tagging", GetBucketTagging),
            ("GET", "/b?acl", GetBucketConfiguration),
            ("GET", "/b?policyStatus", GetBucketConfiguration),
            ("HEAD", "/b", HeadBucket),
            ("PUT", "/b", CreateBucket),
            ("PUT", "/b?versioning", PutBucketVersioning),
            ("PUT", "/b?tagging", PutBucketTagging),
            ("PUT", "/b?acl", PutBucketAcl),
            ("DELETE", "/b", DeleteBucket),
            ("DELETE", "/b/?tagging", DeleteBucketTagging),
            ("POST", "/b?delete", DeleteObjects),
            ("GET", "/b/k", GetObject),
            ("GET", "/b//", GetObject),
            ("GET", "/b/k?partNumber=3", GetObject),
            ("GET", "/b/k?uploadId=1", ListParts),
            ("GET", "/b/k?attributes&versionId=3", GetObjectAttributes),
            ("GET", "/b/k?acl", GetObjectAcl),
            ("GET", "/b/k?tagging", GetObjectTagging),
            ("PUT", "/b/k?acl", PutObjectAcl),
            ("PUT", "/b/k?tagging", PutObjectTagging),
            ("DELETE", "/b/k?tagging&versionId=null", DeleteObjectTagging),
            ("HEAD", "/b/k", HeadObject),
            ("PUT", "/b/k", PutObject),
            ("PUT", "/b/k?partNumber=1&uploadId=u", UploadPart),
            ("POST", "/b/k?uploads", CreateMultipartUpload),
            ("POST", "/b/k?uploadId=u", CompleteMultipartUpload),
            ("DELETE", "/b/k", DeleteObject),
            ("DELETE", "/b/k?uploadId=u", AbortMultipartUpload),
        ] {
            assert_eq!(route(method, target), Ok(op), "{method} {target}");
        }
        let part = [("partNumber", "1"), ("uploadId", "u")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (query, op) in [(&[][..], CopyObject), (&part, UploadPartCopy)] {
            assert_eq!(resolve(&Method::PUT, "/b/k", query, true).ok(), Some(op));
        }
        assert_eq!(resolve(&Method::GET, "/b/k", &[], true).ok(), Some(GetObject));
    }

    #[test]
    fn never_takes_one_operation_for_another() {
        for (method, target, code) in [
            ("GET", "/?x-id=ListDirectoryBuckets", "NotImplemented"),
            ("HEAD", "/", "MethodNotAllowed"),
            ("POST", "/", "MethodNotAllowed"),
            ("DELETE", "/", "MethodNotAllowed"),
            ("OPTIONS", "*", "InvalidURI"),
            ("GET", "/b?acl&cors", "NotImplemented"),
            ("GET", "/b?versions&versioning", "NotImplemented"),
            ("GET", "/b?inventory&id=1", "NotImplemented"),
            ("GET", "/b?list-type=3", "InvalidArgument"),
            ("GET", "/b?uploads&location", "NotImplemented"),
            ("GET", "/b?delete", "NotImplemented"),
            ("HEAD", "/b?versioning", "NotImplemented"),
            ("PUT", "/b?policy", "NotImplemented"),
            ("PUT", "/b?cors", "NotImplemented"),
            ("POST", "/b", "NotImplemented"),
            ("DELETE", "/b?cors", "NotImplemented"),
            ("DELETE", "/b?versioning", "NotImplemented"),
            ("PATCH", "/b", "MethodNotAllowed"),
            ("DELETE", "/b/k?acl", "NotImplemented"),
            ("DELETE", "/b/k?tagging&uploadId=u", "NotImplemented"),
            ("DELETE", "/b/k?uploads", "NotImplemented"),
            ("PUT", "/b/k?uploads", "NotImplemented"),
            ("PUT", "/b/k?attributes", "NotImplemented"),
            ("PUT", "/b/k?tagging&partNumber=1", "InvalidArgument"),
            ("GET", "/b/k?versions", "NotImplemented"),
            ("GET", "/b/k?policy", "NotImplemented"),
            ("PUT", "/b/k?uploadId=u", "InvalidArgument"),
            ("PUT", "/b/k?partNumber=1", "InvalidArgument"),
            ("GET", "/b/k?uploads", "NotImplemented"),
            ("GET", "/b/k?torrent", "NotImplemented"),
            ("HEAD", "/b/k?uploadId=u", "NotImplemented"),
            ("POST", "/b/k", "MethodNotAllowed"),
            ("POST", "/b/k?select&select-type=2", "NotImplemented"),
            ("POST", "/b/k?uploads&uploadId=u", "NotImplemented"),
            ("OPTIONS", "/b/k", "MethodNotAllowed"),
            ("BREW", "/b/k", "MethodNotAllowed"),
        ] {
            assert_eq!(route(method, target), Err(code.to_owned()), "{method} {target}");
        }
    }
}
