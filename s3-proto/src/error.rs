//! Errors as S3 tells them.
//!
//! `s3s` writes `<Code>`, and `<Message>` where there is one. Clients want a message always, and the resource and a request
//! id; [`complete`] adds them on the way out.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use ernic_store::StoreError;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use s3s::{S3Error, S3ErrorCode, s3_error};

/// An error with a code that S3 has.
pub(crate) fn error(code: S3ErrorCode, message: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::with_message(code, message)
}

/// `NotImplemented` (501): S3 has it, this service does not.
pub(crate) fn not_implemented(what: &str) -> S3Error {
    s3_error!(NotImplemented, "{what} is not implemented by this server.")
}

/// An error with a code of our own.
pub(crate) fn custom(code: &'static str, status: StatusCode, message: String) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// `InvalidRange` (416), which tells the size in `content-range`.
pub(crate) fn invalid_range(size: u64) -> S3Error {
    let mut error = s3_error!(InvalidRange, "The requested range is not satisfiable: the object has {size} bytes.");
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{size}")) {
        headers.insert(header::CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error
}

/// `EntityTooLarge` (400).
pub(crate) fn too_large(max_part: u64) -> S3Error {
    s3_error!(EntityTooLarge, "Your proposed upload exceeds the maximum allowed size of {max_part} bytes.")
}

/// `MalformedTrailerError` (400): the trailers of an `aws-chunked` body are broken or not the announced ones.
pub(crate) fn malformed_trailer() -> S3Error {
    let message = "The request contained trailing data that was not well-formed or did not conform to x-amz-trailer.";
    custom("MalformedTrailerError", StatusCode::BAD_REQUEST, message.into())
}

/// What a store refused, to the client.
pub(crate) fn store(error: StoreError) -> S3Error {
    match error {
        StoreError::NoSuchBucket => s3_error!(NoSuchBucket),
        StoreError::NoSuchKey => s3_error!(NoSuchKey),
        StoreError::NoSuchUpload => s3_error!(NoSuchUpload),
        StoreError::NoSuchPart(number) => {
            s3_error!(InvalidPart, "Part {number} has not been uploaded, or its ETag is another one.")
        }
        StoreError::InsufficientStorage { .. } | StoreError::NoSlots(_) => custom(
            "InsufficientStorage",
            StatusCode::INSUFFICIENT_STORAGE,
            format!("The store is full: {error}. Delete objects, or start the server with more room."),
        ),
        StoreError::PreconditionFailed => s3_error!(PreconditionFailed),
        StoreError::NoSuchVersion => s3_error!(NoSuchVersion),
        StoreError::DeleteMarker { version, current, modified } => delete_marker(&version, current, modified),
        StoreError::BucketNotEmpty => s3_error!(BucketNotEmpty),
        StoreError::TooManyBuckets(_) => s3_error!(TooManyBuckets, "{error}."),
        StoreError::NotSupported(what) => not_implemented(&format!("With this store, what needs {what}")),
        StoreError::Unfit(why) => s3_error!(InvalidArgument, "{why}."),
        StoreError::Denied(_) => s3_error!(AccessDenied, "{error}."),
        StoreError::Unavailable(_) => s3_error!(SlowDown, "{error}. Try again."),
        other => {
            report(&other);
            s3_error!(InternalError)
        }
    }
}

/// A delete marker where an object was asked for: as the current version it is 404 `NoSuchKey`, by its id it is 405, and
/// either way the headers say what it is ("Working with delete markers" in the S3 user guide).
fn delete_marker(version: &str, current: bool, modified: SystemTime) -> S3Error {
    let mut error =
        if current { S3Error::new(S3ErrorCode::NoSuchKey) } else { S3Error::new(S3ErrorCode::MethodNotAllowed) };
    let mut headers = HeaderMap::new();
    headers.insert("x-amz-delete-marker", HeaderValue::from_static("true"));
    if let Ok(version) = HeaderValue::from_str(version) {
        headers.insert("x-amz-version-id", version);
    }
    if !current {
        if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(modified)) {
            headers.insert(header::LAST_MODIFIED, date);
        }
        headers.insert(header::ALLOW, HeaderValue::from_static("DELETE"));
    }
    error.set_headers(headers);
    error
}

/// Logs a failure of our own, at most once a second: a client can repeat what causes it.
pub(crate) fn report(failure: &dyn std::fmt::Display) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if LAST.swap(now, Relaxed) != now {
        tracing::error!(%failure, "s3: request failed inside the server");
    }
}

/// Adds to an error document of `s3s` what it lacks: a message, the resource (the request's path), the request id.
pub(crate) fn complete(document: &[u8], resource: &str, request_id: &str) -> Vec<u8> {
    const END: &str = "</Error>";
    let text = String::from_utf8_lossy(document);
    let mut out = String::with_capacity(text.len() + resource.len() + 128);
    let body =
        text.strip_suffix(END).unwrap_or("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>InternalError</Code>");
    out.push_str(body);
    if !body.contains("<Message>") {
        let code =
            body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code);
        element(&mut out, "Message", default_message(code));
    }
    element(&mut out, "Resource", resource);
    element(&mut out, "RequestId", request_id);
    out.push_str(END);
    out.into_bytes()
}

fn element(out: &mut String, name: &str, text: &str) {
    out.push_str(&format!("<{name}>"));
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out.push_str(&format!("</{name}>"));
}

/// S3's own sentences for its codes ("Error responses" in the S3 API reference), shortened.
fn default_message(code: &str) -> &'static str {
    match code {
        "BadDigest" => "The digest you specified did not match what we received.",
        "BucketNotEmpty" => "The bucket you tried to delete is not empty.",
        "BucketAlreadyOwnedByYou" => "The bucket you tried to create already exists, and you own it.",
        "IncompleteBody" => "You did not provide the number of bytes specified by the Content-Length HTTP header.",
        "InternalError" => "We encountered an internal error. Please try again.",
        "InvalidBucketName" => "The specified bucket is not valid.",
        "InvalidDigest" => "The Content-MD5 you specified is not valid.",
        "InvalidURI" => "The specified URI could not be parsed.",
        "KeyTooLongError" => "Your key is too long.",
        "MalformedXML" => "The XML you provided was not well-formed or did not validate against our published schema.",
        "MaxMessageLengthExceeded" => "Your request was too big.",
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "MissingContentLength" => "You must provide the Content-Length HTTP header.",
        "MissingRequestBodyError" => "Request body is empty.",
        "NoSuchBucket" => "The specified bucket does not exist.",
        "NoSuchKey" => "The specified key does not exist.",
        "NoSuchUpload" => "The specified upload does not exist. It may have been aborted or completed.",
        "NoSuchVersion" => "The specified version does not exist.",
        "NotImplemented" => "This operation is not implemented by this server.",
        "PreconditionFailed" => "At least one of the preconditions you specified did not hold.",
        _ => "The request was refused.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_what_is_missing() {
        let done = complete(b"<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>", "/b/<k>&", "1F");
        assert_eq!(
            String::from_utf8(done).unwrap(),
            "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message>\
             <Resource>/b/&lt;k&gt;&amp;</Resource><RequestId>1F</RequestId></Error>"
        );
        let done = String::from_utf8(complete(b"<Error><Code>X</Code><Message>m</Message></Error>", "/", "2")).unwrap();
        assert_eq!(
            done,
            "<Error><Code>X</Code><Message>m</Message><Resource>/</Resource><RequestId>2</RequestId></Error>"
        );
        let done = String::from_utf8(complete(b"", "/", "3")).unwrap();
        assert!(done.contains("<Code>InternalError</Code><Message>We encountered"), "{done}");
    }
}
