//! What the service answers itself: pages that are no S3, and a protocol that it may not speak.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use prometheus_client::encoding::prometheus_text;
use rdma_token::names;
use s3s::{Body, HttpResponse, S3Error};

use crate::{Metrics, error::not_implemented, route::method_not_allowed};

/// Buckets that must not be: their names are those of the service's own pages.
pub const RESERVED_BUCKETS: [&str; 2] = ["metrics", "minio"];

/// Where [`Metrics::page`] is.
const METRICS: &str = "/metrics";
/// Where AIStor has its metrics of RDMA.
const AISTOR: &str = "/minio/metrics/v3/api/rdma";
/// Where `hipobj-rc-v2` has its requests (wire document "S3 over RDMA", section 5).
const HIPOBJ_RC: &str = "/.hipobj-rc";

/// The answer to a request that is no S3.
pub(crate) fn answer(method: &Method, path: &str, metrics: &Metrics) -> Option<Result<HttpResponse, S3Error>> {
    let page = match path {
        METRICS => Metrics::page,
        AISTOR => Metrics::aistor_page,
        path => {
            let rest = path.strip_prefix(HIPOBJ_RC)?;
            return (rest.is_empty() || rest.starts_with('/')).then(|| Err(unsupported()));
        }
    };
    if method != Method::GET && method != Method::HEAD {
        return Some(Err(method_not_allowed("GET, HEAD")));
    }
    let page = page(metrics);
    let mut response = HttpResponse::default();
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(prometheus_text::CONTENT_TYPE));
    headers.insert(header::CONTENT_LENGTH, page.len().into());
    *response.body_mut() = Body::from(page);
    Some(Ok(response))
}

/// Tells a client of `hipobj-rc-v2` that it is off, or that the client is none that can be served.
pub(crate) fn unsupported() -> S3Error {
    let mut error = not_implemented("The protocol hipobj-rc-v2");
    let marker = (HeaderName::from_static(names::PROTOCOL_STATUS), HeaderValue::from_static("unsupported"));
    error.set_headers(HeaderMap::from_iter([marker]));
    error
}
