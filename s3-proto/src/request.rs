//! What a request says, read once before `s3s` sees it.
//!
//! Signatures have been checked before, where authentication is on; where it is off, every SDK signs all the same, and `s3s`
//! without credentials answers 501 to anything signed and decodes `aws-chunked` only while it checks a signature
//! (`ops/signature.rs`). So the signature is taken off here, in the `Authorization` header and in presigned queries, and the body is decoded by [`Payload`]. Headers that `s3s` reads more
//! narrowly than S3 does (`Range`, conditions, `Expires`, metadata) are read here, too; the operations take them from the
//! [`Context`].

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use ernic_store::{Metadata, Tags};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header, request::Parts};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};

use crate::{
    Metrics,
    checksum::{Algorithm, Digested, Digests, Etag},
    conditions::Conditions,
    error::{error, malformed_trailer, not_implemented, too_large},
    payload::Payload,
    range::RangeSpec,
    rdma::{self, Exchange, Rdma},
    route::{self, Op},
    tags,
    turn::Turn,
};

/// Most bytes of an XML document. `DeleteObjects` names up to 1,000 keys of 1,024 bytes, `CompleteMultipartUpload` up to
/// 10,000 parts of some 200 bytes each.
const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// Most bytes of user metadata, names and values together ("Working with object metadata" in the S3 user guide).
const MAX_USER_METADATA: usize = 2048;

/// Id of the one owner of everything.
pub(crate) const OWNER: &str = "ernic";
/// Names the object that is copied.
const COPY_SOURCE: &str = "x-amz-copy-source";
/// The tags of a new object.
const TAGGING: &str = "x-amz-tagging";

/// What the operations need of a request beyond what `s3s` gives them. It travels in the request's extensions.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) payload: Arc<Payload>,
    pub(crate) turn: Turn,
    /// The token, where the request has one: then its content is in the client's memory, and there is nothing in the body.
    pub(crate) rdma: Option<Arc<Exchange>>,
    /// Bytes of content that will come, where the client said.
    pub(crate) length: Option<u64>,
    pub(crate) content_md5: Option<[u8; 16]>,
    pub(crate) checksum: Checksum,
    pub(crate) range: Option<RangeSpec>,
    pub(crate) conditions: Conditions,
    /// The conditions on the object that is copied.
    pub(crate) source_conditions: Conditions,
    pub(crate) meta: Metadata,
    /// What `x-amz-tagging` says.
    pub(crate) tags: Tags,
}

/// Which checksum the content is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub(crate) algorithm: Algorithm,
    pub(crate) expected: Expected,
    /// Whether the client has named the algorithm; else it is the default.
    pub(crate) named: bool,
}

/// Where the checksum's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A header: base64.
    Value(String),
    /// A trailer that `x-amz-trailer` announces.
    Trailer,
    /// Nowhere: it is only computed.
    Nothing,
}

impl Context {
    /// The context of a request that came through [`prepare`].
    pub(crate) fn of<T>(request: &S3Request<T>) -> S3Result<Arc<Self>> {
        request.extensions.get::<Arc<Self>>().cloned().ok_or_else(|| S3ErrorCode::InternalError.into())
    }

    /// Checks what came against Content-MD5 and the client's checksum.
    pub(crate) fn verify(&self, digested: &Digested) -> S3Result<()> {
        if self.content_md5.is_some() && self.content_md5 != digested.md5 {
            return Err(S3ErrorCode::BadDigest.into());
        }
        let name = self.checksum.algorithm.header();
        let expected = match &self.checksum.expected {
            Expected::Nothing => return Ok(()),
            Expected::Value(value) => Cow::Borrowed(value),
            Expected::Trailer => Cow::Owned(self.payload.trailer(name).ok_or_else(malformed_trailer)?),
        };
        if *expected != digested.sum {
            let algorithm = self.checksum.algorithm.name();
            return Err(s3_error!(BadDigest, "The {algorithm} you specified did not match the calculated checksum."));
        }
        Ok(())
    }
}

/// A request that may be run.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) op: Op,
    pub(crate) context: Arc<Context>,
    /// Whether the body carries a checksum of its own: `CompleteMultipartUpload`'s headers are about the object.
    pub(crate) verify_document: bool,
}

/// What [`prepare`] needs of the service, and of the connection.
pub(crate) struct Surroundings<'a> {
    pub(crate) turn: &'a Turn,
    pub(crate) max_part: u64,
    pub(crate) rdma: Option<&'a Arc<Rdma>>,
    /// The connection over which the payload goes, in place of what a token names.
    pub(crate) paired: Option<&'a Arc<Exchange>>,
    pub(crate) metrics: &'a Metrics,
    /// The connection's number.
    pub(crate) connection: u64,
}

/// Reads `parts` and leaves in them what `s3s` is to see. Everything that can be refused without the body is refused here.
/// A token goes into `exchange` as soon as it is understood: what follows may refuse the request, and the answer has to say
/// so to RDMA.
pub(crate) fn prepare(
    parts: &mut Parts,
    payload: &Arc<Payload>,
    around: &Surroundings<'_>,
    exchange: &mut Option<Arc<Exchange>>,
) -> Result<Prepared, S3Error> {
    check_host(parts)?;
    let query = take_signature(parts)?;
    let path = percent_decode_str(parts.uri.path()).decode_utf8().map_err(|_| S3ErrorCode::InvalidURI)?;
    let copies = parts.headers.contains_key(COPY_SOURCE);
    let op = route::resolve(&parts.method, &path, &query, copies)?;
    let headers = &mut parts.headers;
    *exchange = match around.paired {
        Some(paired) => Some(Arc::clone(paired)).filter(|_| op.has_rdma_path()),
        None => rdma::claim(headers, op, around.rdma, around.metrics, around.connection)?,
    };
    let token = exchange.is_some();
    refuse_unknown_features(headers, op)?;
    refuse_access_control(headers)?;
    refuse_other_owner(headers)?;

    let aws_chunked = is_aws_chunked(headers)?;
    let length = length(headers, aws_chunked)?;
    let content = op.takes_content() && !token;
    let max_part = around.max_part;
    if content && length.is_none() && !headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(S3ErrorCode::MissingContentLength.into());
    }
    if content && length.is_some_and(|length| length > max_part) {
        return Err(too_large(max_part));
    }
    if op.takes_document() && length.is_some_and(|length| length > MAX_DOCUMENT) {
        return Err(S3ErrorCode::MaxMessageLengthExceeded.into());
    }
    if aws_chunked && !token {
        payload.decode(length.unwrap_or_default());
    }

    let body = content || op.takes_document();
    let verify_document = op.takes_checked_document();
    let context = Context {
        payload: Arc::clone(payload),
        turn: around.turn.clone(),
        rdma: exchange.clone(),
        length,
        // With a token it would be that of the empty body (rule 16 of the wire document).
        content_md5: if body { content_md5(headers)? } else { None },
        checksum: match op.takes_content() || verify_document {
            true => checksum(headers, aws_chunked)?,
            false => Checksum::default(),
        },
        range: take_range(headers),
        conditions: Conditions::take(headers),
        source_conditions: if op.takes_source() { Conditions::take_source(headers) } else { Conditions::default() },
        meta: if op.takes_metadata() { take_metadata(headers)? } else { Metadata::default() },
        tags: match headers.get(TAGGING) {
            Some(value) => tags::of_header(value.as_bytes())?,
            None => Tags::new(),
        },
    };
    for name in [header::AUTHORIZATION, header::CONTENT_ENCODING, header::EXPIRES] {
        headers.remove(name);
    }
    headers.remove("x-amz-decoded-content-length");
    if parts.method == http::Method::POST {
        // `s3s` takes a POST of multipart/form-data for an HTML form, whatever the operation.
        headers.remove(header::CONTENT_TYPE);
    }
    if token && context.checksum.expected == Expected::Trailer {
        return Err(error(
            S3ErrorCode::InvalidRequest,
            "There is no trailing checksum where the content comes by RDMA.",
        ));
    }
    let context = Arc::new(context);
    parts.extensions.insert(Arc::clone(&context));
    Ok(Prepared { op, context, verify_document })
}

/// Reads an XML document to its end and checks it.
pub(crate) async fn document(prepared: &Prepared) -> Result<Bytes, S3Error> {
    let context = &prepared.context;
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    let verified = prepared.verify_document && context.checksum.expected != Expected::Nothing;
    let needed = verified || context.content_md5.is_some();
    let mut digests = needed.then(|| Digests::new(context.checksum.algorithm, Etag::Md5, true));
    while let Some(piece) = context.payload.next().await? {
        if (first.len() + more.len() + piece.len()) as u64 > MAX_DOCUMENT {
            return Err(S3ErrorCode::MaxMessageLengthExceeded.into());
        }
        if let Some(digests) = &mut digests {
            digests.update(&piece);
        }
        if first.is_empty() {
            first = piece;
        } else {
            more.extend_from_slice(&piece);
        }
    }
    if let Some(digested) = digests.map(Digests::finish) {
        context.verify(&digested)?;
    }
    let document: Bytes = if more.is_empty() { first } else { [first, more.freeze()].concat().into() };
    if prepared.op == Op::CreateBucket && find(&document, b"<Tags").is_some() {
        // `s3s` knows nothing of them.
        return Err(not_implemented("What Tags in a CreateBucketConfiguration asks for"));
    }
    Ok(without_cdata(&document).map_or(document, Bytes::from))
}

/// Writes the CDATA sections of a document as ordinary text, because `s3s` takes no notice of them. `None` if there are none.
fn without_cdata(document: &[u8]) -> Option<Vec<u8>> {
    const START: &[u8] = b"<![CDATA[";
    const END: &[u8] = b"]]>";
    let mut rest = document;
    let mut out = Vec::new();
    while let Some(start) = find(rest, START) {
        let section = &rest[start + START.len()..];
        let end = find(section, END)?;
        out.extend_from_slice(&rest[..start]);
        for &byte in &section[..end] {
            match byte {
                b'<' => out.extend_from_slice(b"&lt;"),
                b'>' => out.extend_from_slice(b"&gt;"),
                b'&' => out.extend_from_slice(b"&amp;"),
                byte => out.push(byte),
            }
        }
        rest = &section[end + END.len()..];
    }
    if out.is_empty() && rest.len() == document.len() {
        return None;
    }
    out.extend_from_slice(rest);
    Some(out)
}

/// Where `what` is in `text`.
fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    let first = what.first()?;
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| byte == first) {
        if text[from + at..].starts_with(what) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// HTTP/1.1 needs exactly one `Host` (RFC 9112, section 3.2).
fn check_host(parts: &Parts) -> Result<(), S3Error> {
    let hosts = parts.headers.get_all(header::HOST).iter().count();
    if hosts > 1 || hosts == 0 && parts.version == Version::HTTP_11 {
        return Err(error(S3ErrorCode::InvalidRequest, "An HTTP/1.1 request has exactly one Host header."));
    }
    Ok(())
}

/// Takes a presigned signature out of the query and turns other `x-amz-…` parameters into the headers that they stand for,
/// as presigning SDKs move them there. Returns the rest of the query, decoded.
fn take_signature(parts: &mut Parts) -> Result<Vec<(String, String)>, S3Error> {
    let Some(query) = parts.uri.query() else {
        return Ok(Vec::new());
    };
    let mut pairs = Vec::new();
    let mut kept = Vec::new();
    let mut rewritten = false;
    let v2 = query.split('&').any(|pair| pair.starts_with("Signature="));
    for raw in query.split('&').filter(|raw| !raw.is_empty()) {
        let Some((name, value)) = form_urlencoded::parse(raw.as_bytes()).next() else { continue };
        let lower = name.to_ascii_lowercase();
        if let Some(parameter) = lower.strip_prefix("x-amz-") {
            rewritten = true;
            let signature = matches!(
                parameter,
                "algorithm" | "credential" | "date" | "expires" | "signature" | "signedheaders" | "security-token"
            );
            if !signature && !parts.headers.contains_key(lower.as_str()) {
                let invalid = || s3_error!(InvalidArgument, "The query parameter {name} is no valid header.");
                let header = HeaderName::from_bytes(lower.as_bytes()).map_err(|_| invalid())?;
                let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid())?;
                parts.headers.insert(header, value);
            }
        } else if v2 && matches!(&*name, "AWSAccessKeyId" | "Signature" | "Expires") {
            rewritten = true;
        } else {
            kept.push(raw);
            pairs.push((name.into_owned(), value.into_owned()));
        }
    }
    if rewritten {
        let path = parts.uri.path();
        let target = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
        parts.uri = Uri::try_from(target).map_err(|_| S3ErrorCode::InvalidURI)?;
    }
    Ok(pairs)
}

/// Refuses what would otherwise be silently ignored: the client would believe that it has been done.
fn refuse_unknown_features(headers: &HeaderMap, op: Op) -> Result<(), S3Error> {
    for (name, value) in headers {
        let refused = match name.as_str() {
            "x-amz-website-redirect-location" | "x-amz-write-offset-bytes" | "x-amz-rename-source" => true,
            TAGGING => !op.takes_metadata(),
            COPY_SOURCE => !op.takes_source(),
            "x-amz-copy-source-range" => op != Op::UploadPartCopy,
            "x-amz-if-match-last-modified-time" | "x-amz-if-match-size" => op != Op::DeleteObject,
            "x-amz-bucket-object-lock-enabled" => !value.as_bytes().eq_ignore_ascii_case(b"false"),
            "x-amz-object-ownership" => value != "BucketOwnerEnforced",
            name if name.starts_with("x-amz-copy-source-if-") => !op.takes_source(),
            name => ["x-amz-copy-source-", "x-amz-server-side-encryption", "x-amz-object-lock-", "x-amz-if-match-"]
                .iter()
                .any(|prefix| name.starts_with(prefix)),
        };
        if refused {
            return Err(not_implemented(&format!("What the header {name} asks for")));
        }
    }
    if op.takes_metadata()
        && let Some(class) = headers.get("x-amz-storage-class")
        && class != "STANDARD"
    {
        return Err(error(S3ErrorCode::InvalidStorageClass, "The only storage class is STANDARD."));
    }
    Ok(())
}

/// Buckets are as S3 makes them since 2023: the owner owns everything in them, and there are no access control lists. S3
/// takes a canned one that says just that and refuses all others ("Controlling ownership of objects and disabling ACLs" in
/// the S3 user guide).
fn refuse_access_control(headers: &HeaderMap) -> Result<(), S3Error> {
    const CANNED: [&str; 8] = [
        "private",
        "bucket-owner-read",
        "bucket-owner-full-control",
        "public-read",
        "public-read-write",
        "authenticated-read",
        "aws-exec-read",
        "log-delivery-write",
    ];
    if let Some(value) = headers.get("x-amz-acl") {
        match CANNED.iter().position(|canned| value == canned) {
            Some(0..3) => {}
            Some(_) => return Err(no_access_control()),
            None => return Err(error(S3ErrorCode::InvalidArgument, "The header x-amz-acl is no canned ACL.")),
        }
    }
    if headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-")) {
        return Err(no_access_control());
    }
    Ok(())
}

/// `AccessControlListNotSupported` (400).
pub(crate) fn no_access_control() -> S3Error {
    error(
        S3ErrorCode::AccessControlListNotSupported,
        "The bucket does not allow ACLs: everything belongs to the one owner, who has full control.",
    )
}

/// A client that names the owner it expects wants to be refused where it is another ("Verifying bucket ownership" in the S3
/// user guide).
fn refuse_other_owner(headers: &HeaderMap) -> Result<(), S3Error> {
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        if headers.get(name).is_some_and(|expected| expected != OWNER) {
            return Err(s3_error!(AccessDenied, "The bucket's owner is {OWNER}, and not the one in {name}."));
        }
    }
    Ok(())
}

fn is_aws_chunked(headers: &HeaderMap) -> Result<bool, S3Error> {
    let encoded = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.trim().eq_ignore_ascii_case("aws-chunked"));
    // Some clients write the coding without applying it: then they do not give the length that it needs.
    let encoded = encoded && headers.contains_key("x-amz-decoded-content-length");
    let Some(value) = headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok()) else {
        return Ok(encoded);
    };
    match value.strip_prefix("STREAMING-") {
        None => Ok(encoded),
        Some(
            "AWS4-HMAC-SHA256-PAYLOAD"
            | "AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
            | "UNSIGNED-PAYLOAD-TRAILER"
            | "AWS4-ECDSA-P256-SHA256-PAYLOAD"
            | "AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER",
        ) => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "Unknown x-amz-content-sha256: {value}.")),
    }
}

/// Bytes of content, where the client said.
fn length(headers: &HeaderMap, aws_chunked: bool) -> Result<Option<u64>, S3Error> {
    let number = |name: &str| -> Result<Option<u64>, S3Error> {
        let Some(value) = headers.get(name) else { return Ok(None) };
        match value.to_str().ok().and_then(|value| value.trim().parse().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(s3_error!(InvalidArgument, "{name} is not a number.")),
        }
    };
    if !aws_chunked {
        return number("content-length");
    }
    match number("x-amz-decoded-content-length")? {
        Some(length) => Ok(Some(length)),
        None => {
            Err(error(S3ErrorCode::MissingContentLength, "An aws-chunked body needs x-amz-decoded-content-length."))
        }
    }
}

fn content_md5(headers: &HeaderMap) -> Result<Option<[u8; 16]>, S3Error> {
    let Some(value) = headers.get("content-md5") else { return Ok(None) };
    let bytes = BASE64_STANDARD.decode(value.as_bytes()).map_err(|_| S3ErrorCode::InvalidDigest)?;
    Ok(Some(bytes.try_into().map_err(|_| S3ErrorCode::InvalidDigest)?))
}

impl Default for Checksum {
    /// What S3 computes where the client asks for nothing.
    fn default() -> Self {
        Self { algorithm: Algorithm::Crc64Nvme, expected: Expected::Nothing, named: false }
    }
}

/// The checksum that the headers name.
fn checksum(headers: &HeaderMap, aws_chunked: bool) -> Result<Checksum, S3Error> {
    let unknown = |name: &str| s3_error!(InvalidRequest, "Unknown checksum {name}.");
    let mut found: Option<Checksum> = None;
    let mut add = |checksum| match found.replace(checksum) {
        None => Ok(()),
        Some(_) => Err(error(S3ErrorCode::InvalidRequest, "Expecting a single x-amz-checksum- header or trailer.")),
    };
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with("x-amz-checksum-")
            || matches!(name, "x-amz-checksum-algorithm" | "x-amz-checksum-mode" | "x-amz-checksum-type")
        {
            continue;
        }
        let algorithm = Algorithm::from_header(name).ok_or_else(|| unknown(name))?;
        let value = value.to_str().ok().map(str::trim).filter(|value| algorithm.valid(value));
        let value = value.ok_or_else(|| s3_error!(InvalidRequest, "Value for {name} header is invalid."))?;
        add(Checksum { algorithm, expected: Expected::Value(value.to_owned()), named: true })?;
    }
    for value in headers.get_all("x-amz-trailer") {
        for name in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            if name.to_ascii_lowercase().starts_with("x-amz-checksum-") {
                let algorithm = Algorithm::from_header(name).ok_or_else(|| unknown(name))?;
                if !aws_chunked {
                    return Err(error(S3ErrorCode::InvalidRequest, "A trailing checksum needs an aws-chunked body."));
                }
                add(Checksum { algorithm, expected: Expected::Trailer, named: true })?;
            }
        }
    }
    if let Some(found) = found {
        return Ok(found);
    }
    match headers.get("x-amz-sdk-checksum-algorithm").or_else(|| headers.get("x-amz-checksum-algorithm")) {
        None => Ok(Checksum::default()),
        Some(name) => {
            let name = name.to_str().unwrap_or_default();
            let algorithm = Algorithm::from_name(name).ok_or_else(|| unknown(name))?;
            Ok(Checksum { algorithm, expected: Expected::Nothing, named: true })
        }
    }
}

fn take_range(headers: &mut HeaderMap) -> Option<RangeSpec> {
    let mut values = headers.get_all(header::RANGE).iter();
    let range = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().and_then(RangeSpec::parse),
        _ => None,
    };
    headers.remove(header::RANGE);
    range
}

fn take_metadata(headers: &mut HeaderMap) -> Result<Metadata, S3Error> {
    let names: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("x-amz-meta-")).cloned().collect();
    let mut user = BTreeMap::new();
    let mut bytes = 0;
    for name in names {
        let Some(value) = take_joined(headers, &name)? else { continue };
        let name = &name.as_str()["x-amz-meta-".len()..];
        if !name.is_empty() {
            bytes += name.len() + value.len();
            user.insert(name.to_owned(), value);
        }
    }
    if bytes > MAX_USER_METADATA {
        return Err(s3_error!(MetadataTooLarge, "User metadata of {bytes} bytes exceeds {MAX_USER_METADATA} bytes."));
    }
    let content_encoding = take_joined(headers, &header::CONTENT_ENCODING)?.map(|value| {
        let aws_chunked = |coding: &str| coding.trim().eq_ignore_ascii_case("aws-chunked");
        if !value.split(',').any(aws_chunked) {
            return value;
        }
        value.split(',').filter(|coding| !aws_chunked(coding)).map(str::trim).collect::<Vec<_>>().join(",")
    });
    let filled = |value: Option<String>| value.filter(|value| !value.is_empty());
    Ok(Metadata {
        content_type: filled(take_joined(headers, &header::CONTENT_TYPE)?),
        content_encoding: filled(content_encoding),
        content_language: filled(take_joined(headers, &header::CONTENT_LANGUAGE)?),
        content_disposition: filled(take_joined(headers, &header::CONTENT_DISPOSITION)?),
        cache_control: filled(take_joined(headers, &header::CACHE_CONTROL)?),
        expires: filled(take_joined(headers, &header::EXPIRES)?),
        user,
    })
}

/// Takes the values of a header as one, as HTTP allows (RFC 9110, section 5.3).
fn take_joined(headers: &mut HeaderMap, name: &HeaderName) -> Result<Option<String>, S3Error> {
    let mut all: Option<String> = None;
    for value in headers.get_all(name) {
        let value = str::from_utf8(value.as_bytes())
            .map_err(|_| s3_error!(InvalidArgument, "The header {name} is not UTF-8."))?;
        match &mut all {
            None => all = Some(value.to_owned()),
            Some(all) => {
                all.push(',');
                all.push_str(value);
            }
        }
    }
    headers.remove(name);
    Ok(all)
}

/// The body of a request that has just come.
pub(crate) fn payload(body: Incoming, metrics: &Arc<Metrics>) -> Arc<Payload> {
    Arc::new(Payload::new(body, Arc::clone(metrics)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdata_is_text() {
        for (document, expected) in [
            ("<a>b</a>", None),
            ("", None),
            ("<a><![CDATA[<b>&]]></a>", Some("<a>&lt;b&gt;&amp;</a>")),
            ("<![CDATA[]]>", Some("")),
            ("x<![CDATA[]]]]>y<![CDATA[z]]>", Some("x]]yz")),
            // One that never ends is left for the reader to refuse.
            ("<a><![CDATA[b</a>", None),
            ("<![CDATA", None),
        ] {
            let expanded = without_cdata(document.as_bytes()).map(|text| String::from_utf8(text).unwrap());
            assert_eq!(expanded.as_deref(), expected, "{document}");
        }
    }
}
