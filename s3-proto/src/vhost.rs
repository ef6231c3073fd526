//! Buckets in the host's name: `Host: bucket.domain` and `/key` is what `/bucket/key` is.

use http::{Uri, header, request::Parts};

/// The target in path style, if the host names a bucket of `domain`. The host may have a port; case does not matter in it.
pub(crate) fn path_style(parts: &Parts, domain: &str) -> Option<Uri> {
    // A target in absolute form has the host itself (RFC 9112, section 3.2.2).
    let host = match parts.uri.authority() {
        Some(authority) => authority.as_str(),
        None => parts.headers.get(header::HOST)?.to_str().ok()?,
    };
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let bucket = host.strip_suffix(&domain.to_ascii_lowercase())?.strip_suffix('.')?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if bucket.is_empty() || !bucket.bytes().all(fits) {
        return None;
    }
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    Uri::try_from(format!("/{bucket}{target}")).ok()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn target(host: &str, target: &str) -> Option<String> {
        let request = Request::builder().uri(target).header(header::HOST, host).body(()).unwrap();
        path_style(&request.into_parts().0, "s3.example").map(|uri| uri.to_string())
    }

    #[test]
    fn a_subdomain_is_a_bucket() {
        for (host, from, to) in [
            ("bench.s3.example", "/", "/bench/"),
            ("bench.s3.example:9000", "/a%2Fb?x=%20", "/bench/a%2Fb?x=%20"),
            ("My.Bucket.S3.EXAMPLE.", "/k", "/my.bucket/k"),
            ("bench.s3.example", "/metrics", "/bench/metrics"),
            ("ignored", "http://bench.s3.example/k", "/bench/k"),
        ] {
            assert_eq!(target(host, from).as_deref(), Some(to), "{host} {from}");
        }
    }

    #[test]
    fn everything_else_is_path_style() {
        for host in
            ["s3.example", "s3.example:80", "xs3.example", ".s3.example", "a/b.s3.example", "[::1]:9000", "10.0.0.1"]
        {
            assert_eq!(target(host, "/bench/k"), None, "{host}");
        }
    }
}
