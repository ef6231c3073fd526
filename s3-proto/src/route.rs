//! Which operation a request asks for.
//!
//! `s3s` has a router of its own, but it answers an unknown sub-resource with the plain operation (a `DELETE` of
//! `/bucket/key?acl` would delete the object) and reads whole bodies for operations that are not implemented. This one runs
//! first and lets only what is implemented pass; the names are those of the S3 API reference.

use http::Method;
use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::error::{error, not_implemented};

/// The implemented operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    ListBuckets,
    GetBucketLocation,
    GetBucketVersioning,
    HeadBucket,
    CreateBucket,
    ListObjects,
    ListMultipartUploads,
    DeleteObjects,
    GetObject,
    HeadObject,
    PutObject,
    DeleteObject,
    CreateMultipartUpload,
    UploadPart,
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
        matches!(self, Self::CreateBucket | Self::DeleteObjects | Self::CompleteMultipartUpload)
    }

    /// Whether the request says what an object is to carry.
    pub(crate) fn takes_metadata(self) -> bool {
        matches!(self, Self::PutObject | Self::CreateMultipartUpload)
    }

    /// Whether S3 over RDMA has a path for it.
    pub(crate) fn has_rdma_path(self) -> bool {
        matches!(self, Self::GetObject | Self::PutObject | Self::UploadPart)
    }
}

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Service,
    Bucket,
    Object,
}

/// Sub-resources of buckets and objects that S3 has and this server has not, apart from those that [`resolve`] handles. A
/// request that names one asks for another operation than the plain one.
const UNKNOWN: &[&str] = &[
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "annotation",
    "attributes",
    "cors",
    "encryption",
    "events",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "versions",
    "website",
];

/// Finds the operation. `path` is decoded, `query` holds the decoded names and values.
pub(crate) fn resolve(method: &Method, path: &str, query: &[(String, String)]) -> Result<Op, S3Error> {
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
    let sub = |allowed: &[&str]| -> Result<Option<&'static str>, S3Error> {
        const KNOWN: &[&str] = &["delete", "location", "uploadId", "uploads", "versioning"];
        let mut named = KNOWN.iter().copied().filter(|name| has(name));
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

        (Resource::Bucket, "GET") => match sub(&["location", "uploads", "versioning"])? {
            Some("location") => Ok(Op::GetBucketLocation),
            Some("uploads") => Ok(Op::ListMultipartUploads),
            Some(_) => Ok(Op::GetBucketVersioning),
            None => match value("list-type") {
                None | Some("2") => Ok(Op::ListObjects),
                Some(other) => {
                    Err(s3_error!(InvalidArgument, "Invalid list-type: {other}. It is 2, or absent for version 1."))
                }
            },
        },
        (Resource::Bucket, "HEAD") => sub(&[]).map(|_| Op::HeadBucket),
        (Resource::Bucket, "PUT") => sub(&[]).map(|_| Op::CreateBucket),
        (Resource::Bucket, "POST") => match sub(&["delete"])? {
            Some(_) => Ok(Op::DeleteObjects),
            None => Err(not_implemented("An upload by HTML form")),
        },
        (Resource::Bucket, "DELETE") => Err(not_implemented("DeleteBucket")),
        (Resource::Bucket, _) => allowed("GET, HEAD, PUT, POST, DELETE"),

        (Resource::Object, "GET") => match sub(&["uploadId"])? {
            Some(_) => Ok(Op::ListParts),
            None => Ok(Op::GetObject),
        },
        (Resource::Object, "HEAD") => sub(&[]).map(|_| Op::HeadObject),
        (Resource::Object, "PUT") => match (sub(&["uploadId"])?.is_some(), has("partNumber")) {
            (false, false) => Ok(Op::PutObject),
            (true, true) => Ok(Op::UploadPart),
            _ => Err(error(S3ErrorCode::InvalidArgument, "A part needs both partNumber and uploadId.")),
        },
        (Resource::Object, "POST") => match sub(&["uploadId", "uploads"])? {
            Some("uploadId") => Ok(Op::CompleteMultipartUpload),
            Some(_) => Ok(Op::CreateMultipartUpload),
            None => allowed("GET, HEAD, PUT, DELETE"),
        },
        (Resource::Object, "DELETE") => match sub(&["uploadId"])? {
            Some(_) => Ok(Op::AbortMultipartUpload),
            None => Ok(Op::DeleteObject),
        },
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
        resolve(&method.parse().unwrap(), path, &query).map_err(|error| error.code().as_str().to_owned())
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
            ("HEAD", "/b", HeadBucket),
            ("PUT", "/b", CreateBucket),
            ("POST", "/b?delete", DeleteObjects),
            ("GET", "/b/k", GetObject),
            ("GET", "/b//", GetObject),
            ("GET", "/b/k?partNumber=3", GetObject),
            ("GET", "/b/k?uploadId=1", ListParts),
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
    }

    #[test]
    fn never_takes_one_operation_for_another() {
        for (method, target, code) in [
            ("GET", "/?x-id=ListDirectoryBuckets", "NotImplemented"),
            ("HEAD", "/", "MethodNotAllowed"),
            ("POST", "/", "MethodNotAllowed"),
            ("DELETE", "/", "MethodNotAllowed"),
            ("OPTIONS", "*", "InvalidURI"),
            ("GET", "/b?acl", "NotImplemented"),
            ("GET", "/b?list-type=3", "InvalidArgument"),
            ("GET", "/b?uploads&location", "NotImplemented"),
            ("GET", "/b?delete", "NotImplemented"),
            ("HEAD", "/b?versioning", "NotImplemented"),
            ("PUT", "/b?versioning", "NotImplemented"),
            ("PUT", "/b?cors", "NotImplemented"),
            ("POST", "/b", "NotImplemented"),
            ("DELETE", "/b", "NotImplemented"),
            ("DELETE", "/b?versioning", "NotImplemented"),
            ("PATCH", "/b", "MethodNotAllowed"),
            ("DELETE", "/b/k?acl", "NotImplemented"),
            ("DELETE", "/b/k?tagging", "NotImplemented"),
            ("DELETE", "/b/k?uploads", "NotImplemented"),
            ("PUT", "/b/k?uploads", "NotImplemented"),
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
