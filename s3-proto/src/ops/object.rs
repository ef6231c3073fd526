//! Operations on objects.

use std::{
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use bytes::Bytes;
use ernic_store::{ByteStream as StoreStream, Commit, Condition, ObjectInfo, ObjectWriter, PutOptions};
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use rdma_token::RemoteAccess;
use s3s::{
    S3Error, S3ErrorCode, S3Request, S3Response, S3Result,
    dto::{
        DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, Error,
        GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, ObjectIdentifier, PutObjectInput,
        PutObjectOutput, StreamingBlob, Timestamp, TimestampFormat,
    },
    s3_error,
    stream::{ByteStream, RemainingLength},
};

use super::{Checksums, Operations, checksum_headers, checksum_type, etag, version};
use crate::{
    checksum::{Algorithm, Digested, Digests},
    conditions::{Conditions, Verdict},
    error::{error, invalid_range, not_implemented, store as refused, too_large},
    rdma::Transfer,
    request::Context,
};

/// Most bytes that are copied and hashed before the thread is given back. MD5 takes 0.4 ms for it.
pub(super) const STEP: usize = 256 * 1024;
/// Most bytes of content in one piece of an answer: what a connection holds beyond its buffer.
const SLICE: usize = 128 * 1024;
/// Most keys of one `DeleteObjects` (S3 API reference).
const MAX_DELETES: usize = 1000;
/// The content type of what came without one (S3 API reference, `PutObject`).
const DEFAULT_TYPE: &str = "binary/octet-stream";

/// Which bytes of an object a GET or HEAD is about.
struct View {
    range: Range<u64>,
    /// `content-range`, which makes it a 206.
    content_range: Option<String>,
    parts_count: Option<i32>,
    /// Which of its parts this is, counted from 0.
    part: Option<usize>,
}

/// What becomes of a read because of its conditions.
pub(super) fn check_conditions(context: &Context, info: &ObjectInfo) -> S3Result<()> {
    match context.conditions.read(info) {
        Verdict::Proceed => Ok(()),
        Verdict::NotModified => Err(not_modified(info)),
        Verdict::Failed => Err(S3ErrorCode::PreconditionFailed.into()),
    }
}

impl View {
    fn new(context: &Context, info: &ObjectInfo, part: Option<i32>) -> S3Result<Self> {
        check_conditions(context, info)?;
        let range = context.range.filter(|_| context.conditions.range_counts(info));
        let content_range =
            |range: &Range<u64>| format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), info.size);
        let whole = 0..info.size;
        if let Some(part) = part {
            if context.range.is_some() {
                return Err(s3_error!(
                    InvalidRequest,
                    "Cannot specify both Range header and partNumber query parameter."
                ));
            }
            let (range, count) = part_range(info, part)?;
            let content_range = (!range.is_empty()).then(|| content_range(&range));
            let part = count.and_then(|_| usize::try_from(part).ok()?.checked_sub(1));
            return Ok(Self { range, content_range, parts_count: count, part });
        }
        match range {
            None => Ok(Self { range: whole, content_range: None, parts_count: None, part: None }),
            Some(range) => {
                let range = range.resolve(info.size).map_err(|_| invalid_range(info.size))?;
                Ok(Self { content_range: Some(content_range(&range)), range, parts_count: None, part: None })
            }
        }
    }

    /// The checksums of the first `sent` bytes of what is asked for, if there are any.
    fn checksums<'a>(&self, info: &'a ObjectInfo, sent: u64) -> &'a Checksums {
        match self.part.and_then(|part| info.parts.get(part)) {
            Some(part) if sent == part.size => &part.checksums,
            None if sent == info.size => &info.checksums,
            _ => &[],
        }
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The bytes of part `number`, and how many parts there are, where there are parts.
fn part_range(info: &ObjectInfo, number: i32) -> S3Result<(Range<u64>, Option<i32>)> {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let index = index.filter(|index| *index < 10_000).ok_or_else(|| {
        s3_error!(InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive: {number}.")
    })?;
    if info.parts.is_empty() && index == 0 {
        return Ok((0..info.size, None));
    }
    let Some(part) = info.parts.get(index) else {
        let mut error = S3Error::with_message(
            S3ErrorCode::Custom("InvalidPartNumber".into()),
            "The requested partnumber is not satisfiable.",
        );
        error.set_status_code(StatusCode::RANGE_NOT_SATISFIABLE);
        return Err(error);
    };
    let start = info.parts.iter().take(index).map(|part| part.size).sum();
    Ok((start..start + part.size, i32::try_from(info.parts.len()).ok()))
}

/// 304 with what a cache wants to know (RFC 9110, section 15.4.5).
fn not_modified(info: &ObjectInfo) -> S3Error {
    let mut headers = HeaderMap::new();
    let mut add = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    add(header::ETAG, &format!("\"{}\"", info.etag));
    if let Some(date) = http_date(&info.modified.into()) {
        add(header::LAST_MODIFIED, &date);
    }
    if let Some(cache_control) = &info.meta.cache_control {
        add(header::CACHE_CONTROL, cache_control);
    }
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    error.set_headers(headers);
    error
}

/// A time as headers show it: in whole seconds.
fn http_date(time: &Timestamp) -> Option<String> {
    let mut date = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut date).ok()?;
    String::from_utf8(date).ok()
}

/// What GET and HEAD say alike.
macro_rules! describe {
    ($output:ident, $info:expr, $view:expr, $version:expr) => {
        $output {
            accept_ranges: Some("bytes".into()),
            cache_control: $info.meta.cache_control.clone(),
            content_disposition: $info.meta.content_disposition.clone(),
            content_encoding: $info.meta.content_encoding.clone(),
            content_language: $info.meta.content_language.clone(),
            content_length: i64::try_from($view.len()).ok(),
            content_range: $view.content_range.clone(),
            content_type: Some($info.meta.content_type.clone().unwrap_or_else(|| DEFAULT_TYPE.into())),
            e_tag: Some(etag(&$info.etag)),
            last_modified: Some($info.modified.into()),
            parts_count: $view.parts_count,
            version_id: $version,
            ..Default::default()
        }
    };
}

/// What `s3s` would not write as it came: user metadata, `expires`; the number of tags; and the checksum, if it is asked for
/// and is that of the `sent` bytes.
fn more_headers(info: &ObjectInfo, view: &View, sent: u64, checksum_mode: Option<&str>, expires: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if checksum_mode.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")) {
        headers = checksum_headers(view.checksums(info, sent));
        // That of a part is shown as the object's kind.
        if let Some(kind) = headers.get_mut("x-amz-checksum-type") {
            *kind = HeaderValue::from_static(checksum_type(&info.checksums));
        }
    }
    for (name, value) in &info.meta.user {
        let name = HeaderName::try_from(format!("x-amz-meta-{name}"));
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            headers.insert(name, value);
        }
    }
    if !info.tags.is_empty() {
        headers.insert("x-amz-tagging-count", info.tags.len().into());
    }
    if expires
        && let Some(value) = &info.meta.expires
        && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
    {
        headers.insert(header::EXPIRES, value);
    }
    headers
}

pub(super) async fn get(ops: &Operations, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    let object = ops.store.get(&input.bucket, &input.key, named).await.map_err(refused)?;
    let view = View::new(&context, &object.info, input.part_number)?;
    let mode = input.checksum_mode.as_ref().map(|mode| mode.as_str());
    let shown = ops.shown_version(&input.bucket, &object.info).await;
    let mut output = describe!(GetObjectOutput, object.info, view, shown);
    let sent = match &context.rdma {
        Some(exchange) => {
            // Only a 200 tells the client where to connect to (rule 2).
            let first = view.content_range.is_none() && input.part_number.is_none();
            let mut transfer = Transfer::open(exchange, RemoteAccess::Write, first).await?;
            let count = transfer.fit(view.len())?;
            let content = object.data.read(view.range.start..view.range.start + count);
            transfer.deliver(content, count, &context.turn).await?;
            output.content_length = Some(0);
            count
        }
        None => {
            let pieces = object.data.read(view.range.clone());
            let content = Content { pieces, piece: Bytes::new(), left: view.len() };
            output.body = Some(StreamingBlob::new(content));
            ops.metrics.body_read();
            view.len()
        }
    };
    let headers = more_headers(&object.info, &view, sent, mode, input.response_expires.is_none());
    Ok(S3Response::with_headers(output, headers))
}

pub(super) async fn head(
    ops: &Operations,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    let info = ops.store.head(&input.bucket, &input.key, named).await.map_err(refused)?;
    let view = View::new(&context, &info, input.part_number)?;
    let mode = input.checksum_mode.as_ref().map(|mode| mode.as_str());
    let headers = more_headers(&info, &view, view.len(), mode, input.response_expires.is_none());
    let shown = ops.shown_version(&input.bucket, &info).await;
    let mut output = describe!(HeadObjectOutput, info, view, shown);
    // `s3s` overrides the headers of a GET itself.
    let replace = |header: &mut Option<String>, with: Option<String>| {
        if with.is_some() {
            *header = with;
        }
    };
    replace(&mut output.cache_control, input.response_cache_control);
    replace(&mut output.content_disposition, input.response_content_disposition);
    replace(&mut output.content_encoding, input.response_content_encoding);
    replace(&mut output.content_language, input.response_content_language);
    replace(&mut output.content_type, input.response_content_type);
    output.expires = input.response_expires;
    Ok(S3Response::with_headers(output, headers))
}

pub(super) async fn put(ops: &Operations, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let condition = ops.condition(&input.bucket, &input.key, &context.conditions).await?;
    let size = size(&context)?;
    let options =
        PutOptions { size, meta: context.meta.clone(), tags: context.tags.clone(), condition: condition.clone() };
    let writer = ops.store.put(&input.bucket, &input.key, options).await.map_err(refused)?;
    let info = receive(ops, &context, size, context.checksum.algorithm, writer, condition).await?;
    let output =
        PutObjectOutput { e_tag: Some(etag(&info.etag)), version_id: info.version.clone(), ..Default::default() };
    Ok(S3Response::with_headers(output, checksum_headers(&info.checksums)))
}

/// Bytes of content that are to come, where that is known.
pub(super) fn size(context: &Context) -> S3Result<Option<u64>> {
    match &context.rdma {
        Some(exchange) => exchange.size(context.length).map(Some),
        None => Ok(context.length),
    }
}

/// Takes the content into `writer`, from the body or from the client's memory, checks it and makes it visible with a checksum
/// of `algorithm`, which is that of the client's checksum if there is one.
pub(super) async fn receive(
    ops: &Operations,
    context: &Context,
    size: Option<u64>,
    algorithm: Algorithm,
    mut writer: Box<dyn ObjectWriter>,
    condition: Condition,
) -> S3Result<Arc<ObjectInfo>> {
    let mut digests = Digests::new(algorithm, ops.config.etag, context.content_md5.is_some());
    let commit = |digested: Digested| Commit {
        etag: digested.etag,
        checksums: vec![(algorithm.name().to_owned(), digested.sum)],
        condition,
    };
    let Some(exchange) = &context.rdma else {
        from_body(context, &mut *writer, &mut digests, ops.config.max_part).await?;
        let digested = digests.finish();
        context.verify(&digested)?;
        let info = writer.commit(commit(digested)).await.map_err(refused)?;
        ops.metrics.body_write();
        return Ok(info);
    };
    let mut transfer = Transfer::open(exchange, RemoteAccess::Read, false).await?;
    let size = size.unwrap_or_default();
    transfer.check_fits(size)?;
    transfer.read(&mut *writer, size, &mut digests, &context.turn).await?;
    let digested = digests.finish();
    context.verify(&digested).map_err(|error| transfer.refuse("checksum", error))?;
    let info = writer.commit(commit(digested)).await.map_err(|error| transfer.refuse("store", refused(error)))?;
    transfer.complete();
    Ok(info)
}

/// Takes the body into `writer`. One copy, and one pass of the digests over what is still in the cache.
async fn from_body(
    context: &Context,
    writer: &mut dyn ObjectWriter,
    digests: &mut Digests,
    max_part: u64,
) -> S3Result<()> {
    let mut step = 0;
    while let Some(mut piece) = context.payload.next().await? {
        if writer.written() + piece.len() as u64 > max_part {
            return Err(too_large(max_part));
        }
        while !piece.is_empty() {
            let buffer = writer.buffer(piece.len().min(STEP)).await.map_err(refused)?;
            let n = buffer.len().min(piece.len());
            let taken = piece.split_to(n);
            buffer[..n].copy_from_slice(&taken);
            writer.advance(n);
            digests.update(&taken);
            step += n;
            if step >= STEP {
                step = 0;
                context.turn.pass().await;
            }
        }
    }
    if context.length.is_some_and(|length| length != writer.written()) {
        return Err(S3ErrorCode::IncompleteBody.into());
    }
    Ok(())
}

/// What a delete asks of the object that is there.
struct Asked {
    condition: Condition,
    size: Option<i64>,
    modified: Option<Timestamp>,
}

impl Asked {
    /// The condition for the store. It knows ETags only: whatever else is asked for is looked at here, and then the ETag is
    /// to be that of the object that was looked at.
    async fn condition(self, ops: &Operations, bucket: &str, key: &str, named: Option<&str>) -> S3Result<Condition> {
        if self.size.is_none() && self.modified.is_none() {
            return Ok(self.condition);
        }
        let info = ops.store.head(bucket, key, named).await.map_err(refused)?;
        let same_size = self.size.is_none_or(|size| u64::try_from(size) == Ok(info.size));
        let same_time = self.modified.is_none_or(|asked| http_date(&asked) == http_date(&info.modified.into()));
        if !same_size || !same_time {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
        self.condition.check(Some(&info.etag)).map_err(refused)?;
        Ok(Condition::Match(info.etag.clone()))
    }
}

/// The condition on a delete in the headers: S3 has `if-match` only.
fn delete_condition(conditions: &Conditions) -> S3Result<Condition> {
    match conditions.write() {
        Ok(condition @ (Condition::None | Condition::Match(_) | Condition::Present)) => Ok(condition),
        _ => Err(not_implemented("A condition on a delete other than if-match with one ETag or *")),
    }
}

pub(super) async fn delete(
    ops: &Operations,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let named = version(input.version_id.as_deref())?;
    let asked = Asked {
        condition: delete_condition(&context.conditions)?,
        size: input.if_match_size,
        modified: input.if_match_last_modified_time,
    };
    let condition = asked.condition(ops, &input.bucket, &input.key, named).await?;
    let deleted = ops.store.delete(&input.bucket, &input.key, named, condition).await.map_err(refused)?;
    Ok(S3Response::new(DeleteObjectOutput {
        delete_marker: deleted.marker.then_some(true),
        version_id: deleted.version,
        ..Default::default()
    }))
}

pub(super) async fn delete_many(
    ops: &Operations,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    if input.delete.objects.is_empty() || input.delete.objects.len() > MAX_DELETES {
        return Err(s3_error!(MalformedXML, "DeleteObjects takes 1 to {MAX_DELETES} keys."));
    }
    ops.store.head_bucket(&input.bucket).await.map_err(refused)?;
    let quiet = input.delete.quiet == Some(true);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (index, object) in input.delete.objects.into_iter().enumerate() {
        if index % 64 == 63 {
            context.turn.pass().await;
        }
        match delete_one(ops, &input.bucket, &object).await {
            Ok(_) if quiet => {}
            Ok(done) => deleted.push(done),
            Err(error) => errors.push(Error {
                code: Some(error.code().as_str().to_owned()),
                message: error.message().map(str::to_owned),
                key: Some(object.key),
                version_id: object.version_id,
            }),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), request_charged: None }))
}

/// Deletes one of the objects of a `DeleteObjects`.
async fn delete_one(ops: &Operations, bucket: &str, object: &ObjectIdentifier) -> S3Result<DeletedObject> {
    let key = &object.key;
    if key.is_empty() {
        return Err(error(S3ErrorCode::UserKeyMustBeSpecified, "The key is empty."));
    }
    if !s3s::path::check_key(key) {
        return Err(S3ErrorCode::KeyTooLongError.into());
    }
    let named = version(object.version_id.as_deref())?;
    let etag = object.e_tag.as_ref().map(|etag| etag.value());
    let asked = Asked {
        condition: match etag {
            None => Condition::None,
            Some("*") => Condition::Present,
            Some(etag) => Condition::Match(etag.to_owned()),
        },
        size: object.size,
        modified: object.last_modified_time.clone(),
    };
    let condition = asked.condition(ops, bucket, key, named).await?;
    let done = ops.store.delete(bucket, key, named, condition).await.map_err(refused)?;
    Ok(DeletedObject {
        delete_marker: done.marker.then_some(true),
        delete_marker_version_id: done.version.filter(|_| done.marker),
        key: Some(key.clone()),
        version_id: object.version_id.clone(),
    })
}

/// An object's bytes on their way out, in pieces of at most [`SLICE`] bytes. The store is asked for more only when the
/// connection has taken what there was.
struct Content {
    pieces: StoreStream,
    piece: Bytes,
    left: u64,
}

impl Stream for Content {
    type Item = Result<Bytes, s3s::StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        while self.piece.is_empty() {
            match ready!(self.pieces.as_mut().poll_next(cx)) {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(Some(Err(format!("the store gave {} bytes too few", self.left).into()))),
            }
        }
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let n = self.piece.len().min(SLICE).min(left);
        let slice = self.piece.split_to(n);
        self.left -= n as u64;
        Poll::Ready(Some(Ok(slice)))
    }
}

impl ByteStream for Content {
    fn remaining_length(&self) -> RemainingLength {
        usize::try_from(self.left).map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Waker};

    use ernic_store::StoreError;

    use super::*;

    fn content(pieces: Vec<Result<Bytes, StoreError>>, left: u64) -> Content {
        Content { pieces: Box::pin(futures_util::stream::iter(pieces)), piece: Bytes::new(), left }
    }

    /// The lengths of the pieces, and what ended them.
    fn drain(content: Content) -> (Vec<usize>, Option<String>) {
        let mut content = pin!(content);
        let mut lengths = Vec::new();
        loop {
            match content.as_mut().poll_next(&mut TaskContext::from_waker(Waker::noop())) {
                Poll::Ready(Some(Ok(piece))) => lengths.push(piece.len()),
                Poll::Ready(Some(Err(error))) => return (lengths, Some(error.to_string())),
                Poll::Ready(None) => return (lengths, None),
                Poll::Pending => panic!("nothing to wait for"),
            }
        }
    }

    #[test]
    fn content_is_cut_into_slices() {
        let mib = Bytes::from(vec![7; 1024 * 1024]);
        let whole = content(vec![Ok(mib.clone()), Ok(Bytes::new()), Ok(mib.slice(..1000))], 1024 * 1024 + 1000);
        assert_eq!(whole.remaining_length().exact(), Some(1024 * 1024 + 1000));
        assert_eq!(drain(whole), ([vec![SLICE; 8], vec![1000]].concat(), None));
        // A store that gives too much does not break the answer's framing.
        assert_eq!(drain(content(vec![Ok(mib)], 5)), (vec![5], None));
    }

    #[test]
    fn content_that_ends_early_is_an_error() {
        let piece = Bytes::from_static(b"abc");
        let (lengths, error) = drain(content(vec![Ok(piece.clone())], 4));
        assert_eq!((lengths, error.unwrap().as_str()), (vec![3], "the store gave 1 bytes too few"));
        let failed = Err(StoreError::Internal("disk gone".into()));
        let (lengths, error) = drain(content(vec![Ok(piece), failed], 4));
        assert_eq!((lengths, error.unwrap().as_str()), (vec![3], "store failure: disk gone"));
    }
}
