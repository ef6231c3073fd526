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
        GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, PutObjectInput, PutObjectOutput,
        StreamingBlob, Timestamp, TimestampFormat,
    },
    s3_error,
    stream::{ByteStream, RemainingLength},
};

use super::{Operations, checksum_headers, etag, only_version};
use crate::{
    checksum::{Digested, Digests},
    conditions::Verdict,
    error::{invalid_range, not_implemented, store as refused, too_large},
    rdma::Transfer,
    request::Context,
};

/// Most bytes that are copied and hashed before the thread is given back. MD5 takes 0.4 ms for it.
const STEP: usize = 256 * 1024;
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
}

impl View {
    fn new(context: &Context, info: &ObjectInfo, part: Option<i32>) -> S3Result<Self> {
        match context.conditions.read(info) {
            Verdict::Proceed => {}
            Verdict::NotModified => return Err(not_modified(info)),
            Verdict::Failed => return Err(S3ErrorCode::PreconditionFailed.into()),
        }
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
            return Ok(Self { range, content_range, parts_count: count });
        }
        match range {
            None => Ok(Self { range: whole, content_range: None, parts_count: None }),
            Some(range) => {
                let range = range.resolve(info.size).map_err(|_| invalid_range(info.size))?;
                Ok(Self { content_range: Some(content_range(&range)), range, parts_count: None })
            }
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
    let mut date = Vec::new();
    if Timestamp::from(info.modified).format(TimestampFormat::HttpDate, &mut date).is_ok() {
        add(header::LAST_MODIFIED, &String::from_utf8_lossy(&date));
    }
    if let Some(cache_control) = &info.meta.cache_control {
        add(header::CACHE_CONTROL, cache_control);
    }
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    error.set_headers(headers);
    error
}

/// What GET and HEAD say alike.
macro_rules! describe {
    ($output:ident, $info:expr, $view:expr) => {
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
            ..Default::default()
        }
    };
}

/// What `s3s` would not write as it came: user metadata, `expires`; and the checksum, if it is asked for and is that of the
/// `sent` bytes.
fn more_headers(info: &ObjectInfo, sent: u64, checksum_mode: Option<&str>, expires: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if checksum_mode.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled")) && sent == info.size {
        headers = checksum_headers(info);
    }
    for (name, value) in &info.meta.user {
        let name = HeaderName::try_from(format!("x-amz-meta-{name}"));
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            headers.insert(name, value);
        }
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
    only_version(input.version_id.as_deref())?;
    let object = ops.store.get(&input.bucket, &input.key, None).await.map_err(refused)?;
    let view = View::new(&context, &object.info, input.part_number)?;
    let mode = input.checksum_mode.as_ref().map(|mode| mode.as_str());
    let mut output = describe!(GetObjectOutput, object.info, view);
    let sent = match &context.rdma {
        Some(exchange) => {
            let mut transfer = Transfer::open(exchange, RemoteAccess::Write).await?;
            let count = transfer.fit(view.len())?;
            let content = object.data.read(view.range.start..view.range.start + count);
            transfer.write(content, count, &context.turn).await?;
            transfer.complete();
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
    let headers = more_headers(&object.info, sent, mode, input.response_expires.is_none());
    Ok(S3Response::with_headers(output, headers))
}

pub(super) async fn head(
    ops: &Operations,
    request: S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    let info = ops.store.head(&input.bucket, &input.key, None).await.map_err(refused)?;
    let view = View::new(&context, &info, input.part_number)?;
    let mode = input.checksum_mode.as_ref().map(|mode| mode.as_str());
    let headers = more_headers(&info, view.len(), mode, true);
    let mut output = describe!(HeadObjectOutput, info, view);
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
    Ok(S3Response::with_headers(output, headers))
}

pub(super) async fn put(ops: &Operations, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    let condition = ops.condition(&input.bucket, &input.key, &context.conditions).await?;
    let size = size(&context)?;
    let options =
        PutOptions { size, meta: context.meta.clone(), condition: condition.clone(), ..PutOptions::default() };
    let writer = ops.store.put(&input.bucket, &input.key, options).await.map_err(refused)?;
    let info = receive(ops, &context, size, writer, condition).await?;
    let output = PutObjectOutput { e_tag: Some(etag(&info.etag)), ..Default::default() };
    Ok(S3Response::with_headers(output, checksum_headers(&info)))
}

/// Bytes of content that are to come, where that is known.
pub(super) fn size(context: &Context) -> S3Result<Option<u64>> {
    match &context.rdma {
        Some(exchange) => exchange.size(context.length).map(Some),
        None => Ok(context.length),
    }
}

/// Takes the content into `writer`, from the body or from the client's memory, checks it and makes it visible.
pub(super) async fn receive(
    ops: &Operations,
    context: &Context,
    size: Option<u64>,
    mut writer: Box<dyn ObjectWriter>,
    condition: Condition,
) -> S3Result<Arc<ObjectInfo>> {
    let mut digests = Digests::new(context.checksum.algorithm, ops.config.etag, context.content_md5.is_some());
    let commit = |digested: Digested| Commit {
        etag: digested.etag,
        checksums: vec![(context.checksum.algorithm.name().to_owned(), digested.sum)],
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
    let mut transfer = Transfer::open(exchange, RemoteAccess::Read).await?;
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

pub(super) async fn delete(
    ops: &Operations,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let context = Context::of(&request)?;
    let input = request.input;
    only_version(input.version_id.as_deref())?;
    if !context.conditions.none_for_write() {
        return Err(not_implemented("A conditional DeleteObject"));
    }
    ops.store.delete(&input.bucket, &input.key, None, Condition::None).await.map_err(refused)?;
    Ok(S3Response::new(DeleteObjectOutput::default()))
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
        let conditional = object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some();
        let done = if conditional {
            Err(not_implemented("A conditional delete"))
        } else if let Err(error) = only_version(object.version_id.as_deref()) {
            Err(error)
        } else {
            ops.store.delete(&input.bucket, &object.key, None, Condition::None).await.map_err(refused)
        };
        match done {
            Ok(_) if quiet => {}
            Ok(_) => deleted.push(DeletedObject { key: Some(object.key), ..Default::default() }),
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
