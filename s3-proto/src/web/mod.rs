//! The page for people, at `/` of a browser: buckets, objects and figures.
//!
//! It is one document without outside assets. Its policy lets it run its own script, known by hash, and ask this server; what
//! comes from the store becomes text. It lists with the S3 API and without a signature, so that it browses only where
//! authentication is off; where it is on, it says so and shows the figures.

use std::sync::LazyLock;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use s3s::{Body, HttpResponse};
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The page where authentication is off, and where it is on.
static PAGES: LazyLock<[String; 2]> = LazyLock::new(|| {
    ["off", "on"].map(|auth| PAGE.replace("@AUTH@", auth).replace("@STYLE@", STYLE).replace("@SCRIPT@", SCRIPT))
});

/// Its policy (Content Security Policy Level 3): nothing, but for what is listed.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Whether a request is a browser's for the page, and not one for the list of buckets.
pub(crate) fn is_wanted(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> bool {
    let html = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("text/html"));
    (method == Method::GET || method == Method::HEAD)
        && path == "/"
        && query.is_none_or(str::is_empty)
        && !headers.contains_key(header::AUTHORIZATION)
        && headers.get_all(header::ACCEPT).iter().any(html)
}

/// The page.
pub(crate) fn page(auth: bool) -> HttpResponse {
    let [off, on] = &*PAGES;
    let page = if auth { on } else { off };
    let mut response = HttpResponse::new(Body::from(Bytes::from_static(page.as_bytes())));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, page.len().into());
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::VARY, "accept"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_has_nothing_that_its_policy_forbids() {
        for (page, auth) in PAGES.iter().zip(["off", "on"]) {
            assert!(!page.contains("@STYLE@") && !page.contains("@SCRIPT@"));
            assert!(page.contains(&format!("data-auth=\"{auth}\"")));
            assert_eq!((page.matches("<script>").count(), page.matches("</script>").count()), (1, 1));
            assert!(!page.contains("http:") && !page.contains("https:"), "no outside assets");
        }
        assert!(!PAGE.contains(" on") && !PAGE.contains("style="), "no handlers and styles in the markup");
        for dangerous in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "setAttribute(\"on"]
        {
            assert!(!SCRIPT.contains(dangerous), "{dangerous}");
        }
        // What the markup would end early with.
        assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
    }
}
