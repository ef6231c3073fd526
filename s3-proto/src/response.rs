//! The last touch on an answer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use http_body::{Frame, SizeHint};
use s3s::{Body, HttpResponse, S3Error};

use crate::{Metrics, error};

/// An answer on its way out, with what is to be told when it has gone.
pub(crate) type Response<G> = http::Response<ResponseBody<G>>;

/// The body of an answer, which counts what it hands out.
#[derive(Debug)]
pub struct ResponseBody<G> {
    body: Body,
    metrics: Arc<Metrics>,
    /// hyper drops a body when it has taken the last of it.
    _serving: G,
}

/// The content could not be read to its end; the connection breaks, so that the client sees it.
#[derive(Debug, thiserror::Error)]
#[error("the content ends early: {0}")]
pub struct ResponseBodyError(Box<dyn std::error::Error + Send + Sync>);

impl<G: Unpin> http_body::Body for ResponseBody<G> {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.metrics.sent(data.len());
        }
        Poll::Ready(frame.map(|frame| frame.map_err(ResponseBodyError)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Makes an answer out of what the operation gave.
pub(crate) fn finish<G>(
    answer: Result<HttpResponse, S3Error>,
    method: &Method,
    resource: &str,
    id: u64,
    server: Option<&HeaderValue>,
    metrics: &Arc<Metrics>,
    serving: G,
) -> Response<G> {
    let internal = || {
        let mut response = HttpResponse::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    };
    let response = answer.or_else(S3Error::to_http_response).unwrap_or_else(|error| {
        error::report(&error);
        internal()
    });
    let (mut parts, mut body) = response.into_parts();
    let headers = &mut parts.headers;
    let id = format!("{id:016X}");
    if parts.status == StatusCode::NOT_MODIFIED || method == Method::HEAD {
        if !parts.status.is_success() {
            headers.remove(header::CONTENT_TYPE);
        }
        body = Body::empty();
    } else if parts.status.is_client_error() || parts.status.is_server_error() {
        let document = body.bytes().unwrap_or_default();
        body = Body::from(error::complete(&document, resource, &id));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    } else if headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/xml")
        && let Some(document) = body.bytes()
        && let Some(escaped) = escape_controls(&document)
    {
        body = Body::from(escaped);
    }
    if let Some(server) = server {
        headers.insert(header::SERVER, server.clone());
    }
    if let Ok(id) = HeaderValue::try_from(id) {
        headers.insert("x-amz-request-id", id);
    }
    http::Response::from_parts(parts, ResponseBody { body, metrics: Arc::clone(metrics), _serving: serving })
}

/// Says that the connection ends with this answer. hyper ends it by itself, but does not say so.
pub(crate) fn close<G>(response: &mut Response<G>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Takes the quotes off the ETag of a document: S3 writes them everywhere but in that of `GetObjectAttributes`, `s3s` everywhere.
pub(crate) fn bare_etag(response: &mut HttpResponse) {
    let Some(document) = response.body().bytes() else { return };
    let document = String::from_utf8_lossy(&document);
    let bare = document.replacen("<ETag>\"", "<ETag>", 1).replacen("\"</ETag>", "</ETag>", 1);
    *response.body_mut() = Body::from(bare);
}

/// Writes control characters in a document as character references, as S3 does: `s3s` writes them as they are, and then an
/// XML reader takes a CR in a key for a line end. `None` if there are none. `s3s` itself puts none between elements.
fn escape_controls(document: &[u8]) -> Option<Vec<u8>> {
    if !document.iter().any(|&b| b < 0x20) {
        return None;
    }
    let mut out = Vec::with_capacity(document.len() + 64);
    for &b in document {
        if b < 0x20 {
            out.extend_from_slice(format!("&#x{b:X};").as_bytes());
        } else {
            out.push(b);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_references() {
        assert_eq!(escape_controls("<Key>a é</Key>".as_bytes()), None);
        assert_eq!(escape_controls(b"<Key>\x01\r\n</Key>").unwrap(), b"<Key>&#x1;&#xD;&#xA;</Key>");
    }
}
