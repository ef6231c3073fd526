//! Conditional requests: RFC 9110, section 13, as S3 reads it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ernic_store::{Condition, ObjectInfo};
use http::{
    HeaderMap,
    header::{self, AsHeaderName},
};

/// The conditions of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    if_modified_since: Option<SystemTime>,
    if_unmodified_since: Option<SystemTime>,
    if_range: Option<IfRange>,
}

/// How a read ends because of its conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object is to be sent.
    Proceed,
    /// 304
    NotModified,
    /// 412
    Failed,
}

/// A condition on a write that S3 does not define or a store cannot check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsupported;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tags {
    Any,
    List(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum IfRange {
    Tag(String),
    Date(SystemTime),
    /// A weak tag or something unreadable, which never matches.
    Never,
}

impl Conditions {
    /// Takes the conditional headers out of `headers`: `s3s` reads one tag and one form of date only, and refuses what
    /// HTTP says to ignore.
    pub(crate) fn take(headers: &mut HeaderMap) -> Self {
        let names = [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE];
        let if_range = headers.remove(header::IF_RANGE).map(|value| match value.to_str().map(str::trim) {
            Ok(text) if text.starts_with('"') => IfRange::Tag(unquote(text).to_owned()),
            Ok(text) => httpdate::parse_http_date(text).map_or(IfRange::Never, IfRange::Date),
            Err(_) => IfRange::Never,
        });
        Self { if_range, ..Self::take_named(headers, names) }
    }

    /// Takes the conditions on the source of a copy.
    pub(crate) fn take_source(headers: &mut HeaderMap) -> Self {
        let names = ["match", "none-match", "modified-since", "unmodified-since"];
        Self::take_named(headers, names.map(|name| format!("x-amz-copy-source-if-{name}")))
    }

    /// Takes the four conditions that reads of all kinds have: match, none-match, modified-since, unmodified-since.
    fn take_named<N: AsHeaderName + Clone>(headers: &mut HeaderMap, names: [N; 4]) -> Self {
        let [if_match, if_none_match, if_modified_since, if_unmodified_since] = names;
        let mut tags = |name: N| {
            let mut all = None;
            for value in headers.get_all(name.clone()) {
                let tags = Tags::parse(&String::from_utf8_lossy(value.as_bytes()));
                match (&mut all, tags) {
                    (None, tags) => all = Some(tags),
                    (Some(Tags::List(have)), Tags::List(more)) => have.extend(more),
                    (Some(have), _) => *have = Tags::Any,
                }
            }
            headers.remove(name);
            all
        };
        let (if_match, if_none_match) = (tags(if_match), tags(if_none_match));
        // "A recipient MUST ignore the header field if the received value is not a valid HTTP-date" (13.1.3, 13.1.4).
        let mut date =
            |name: N| headers.remove(name).and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
        let (if_modified_since, if_unmodified_since) = (date(if_modified_since), date(if_unmodified_since));
        Self { if_match, if_none_match, if_modified_since, if_unmodified_since, if_range: None }
    }

    /// What becomes of a GET or HEAD of this object, in the order of RFC 9110, section 13.2.2.
    pub(crate) fn read(&self, info: &ObjectInfo) -> Verdict {
        let modified = whole_seconds(info.modified);
        if let Some(tags) = &self.if_match {
            if !tags.contain(&info.etag) {
                return Verdict::Failed;
            }
        } else if self.if_unmodified_since.is_some_and(|limit| modified > limit) {
            return Verdict::Failed;
        }
        if let Some(tags) = &self.if_none_match {
            if tags.contain(&info.etag) {
                return Verdict::NotModified;
            }
        } else if self.if_modified_since.is_some_and(|limit| modified <= limit) {
            return Verdict::NotModified;
        }
        Verdict::Proceed
    }

    /// Whether the `Range` of a GET of this object counts (`If-Range`, section 13.1.5).
    pub(crate) fn range_counts(&self, info: &ObjectInfo) -> bool {
        match &self.if_range {
            None => true,
            Some(IfRange::Tag(tag)) => *tag == info.etag,
            Some(IfRange::Date(date)) => *date == whole_seconds(info.modified),
            Some(IfRange::Never) => false,
        }
    }

    /// What a write asks of the object that is there: one condition, which the store checks in the step that makes the
    /// write visible. S3 itself knows `if-none-match: *` and `if-match`.
    pub(crate) fn write(&self) -> Result<Condition, Unsupported> {
        let one = |tags: &[String]| match tags {
            [tag] => Ok(tag.clone()),
            _ => Err(Unsupported),
        };
        match (&self.if_match, &self.if_none_match) {
            (None, None) => Ok(Condition::None),
            (None, Some(Tags::Any)) => Ok(Condition::Absent),
            (None, Some(Tags::List(tags))) => one(tags).map(Condition::Differs),
            (Some(Tags::Any), None) => Ok(Condition::Present),
            (Some(Tags::List(tags)), None) => one(tags).map(Condition::Match),
            (Some(_), Some(_)) => Err(Unsupported),
        }
    }
}

impl Tags {
    /// A list of entity tags. S3's clients send them bare, too.
    fn parse(text: &str) -> Self {
        if text.trim() == "*" {
            return Self::Any;
        }
        // No ETag of ours has a comma, so a quoted comma need not be understood: it just matches nothing.
        Self::List(text.split(',').map(|tag| unquote(tag.trim()).to_owned()).collect())
    }

    fn contain(&self, etag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::List(tags) => tags.iter().any(|tag| tag == etag),
        }
    }
}

fn unquote(tag: &str) -> &str {
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag)
}

/// HTTP dates have seconds: compare what the client was told.
fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const BEFORE: &str = "Wed, 21 Oct 2015 07:27:59 GMT";
    const AT: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
    const AFTER: &str = "Wednesday, 21-Oct-15 07:28:01 GMT";

    fn info() -> ObjectInfo {
        ObjectInfo {
            size: 3,
            etag: "abc-1".into(),
            modified: httpdate::parse_http_date(AT).unwrap() + Duration::from_millis(700),
            meta: Default::default(),
            checksums: Vec::new(),
            parts: Vec::new(),
            tags: Vec::new(),
            version: None,
        }
    }

    fn conditions(list: &[(&'static str, &'static str)]) -> Conditions {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers.insert("host", HeaderValue::from_static("h"));
        let conditions = Conditions::take(&mut headers);
        assert_eq!(headers.len(), 1, "conditional headers are taken, others are not");
        conditions
    }

    #[test]
    fn reads_follow_the_order_of_rfc_9110() {
        use Verdict::*;
        for (list, verdict) in [
            (&[][..], Proceed),
            (&[("if-match", "\"abc-1\"")], Proceed),
            (&[("if-match", "abc-1")], Proceed),
            (&[("if-match", "*")], Proceed),
            (&[("if-match", "\"x\", \"abc-1\"")], Proceed),
            (&[("if-match", "\"x\"")], Failed),
            (&[("if-none-match", "\"abc-1\"")], NotModified),
            (&[("if-none-match", "W/\"abc-1\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"x\""), ("if-none-match", "\"abc-1\"")], NotModified),
            (&[("if-none-match", "\"x\"")], Proceed),
            (&[("if-modified-since", BEFORE)], Proceed),
            (&[("if-modified-since", AT)], NotModified),
            (&[("if-modified-since", AFTER)], NotModified),
            (&[("if-modified-since", "yesterday")], Proceed),
            (&[("if-unmodified-since", BEFORE)], Failed),
            (&[("if-unmodified-since", AT)], Proceed),
            (&[("if-unmodified-since", AFTER)], Proceed),
            (&[("if-unmodified-since", "")], Proceed),
            // The tag wins over the date.
            (&[("if-match", "\"abc-1\""), ("if-unmodified-since", BEFORE)], Proceed),
            (&[("if-none-match", "\"abc-1\""), ("if-modified-since", BEFORE)], NotModified),
            (&[("if-none-match", "\"x\""), ("if-modified-since", AFTER)], Proceed),
            // A failed precondition wins over "not modified".
            (&[("if-match", "\"x\""), ("if-none-match", "\"abc-1\"")], Failed),
        ] {
            assert_eq!(conditions(list).read(&info()), verdict, "{list:?}");
        }
    }

    #[test]
    fn conditions_on_a_source_have_names_of_their_own() {
        let mut headers = HeaderMap::new();
        headers.insert("if-match", HeaderValue::from_static("\"x\""));
        headers.insert("x-amz-copy-source-if-match", HeaderValue::from_static("\"abc-1\""));
        headers.insert("x-amz-copy-source-if-unmodified-since", HeaderValue::from_static(BEFORE));
        assert_eq!(Conditions::take_source(&mut headers).read(&info()), Verdict::Proceed, "the tag wins over the date");
        assert_eq!(headers.len(), 1);
        headers.insert("x-amz-copy-source-if-none-match", HeaderValue::from_static("\"abc-1\""));
        assert_eq!(Conditions::take_source(&mut headers).read(&info()), Verdict::NotModified);
        assert_eq!(Conditions::take(&mut headers).read(&info()), Verdict::Failed);
    }

    #[test]
    fn if_range_needs_exactly_what_the_client_has() {
        for (value, counts) in [
            ("\"abc-1\"", true),
            ("\"x\"", false),
            ("W/\"abc-1\"", false),
            (AT, true),
            (BEFORE, false),
            ("nonsense", false),
        ] {
            assert_eq!(conditions(&[("if-range", value)]).range_counts(&info()), counts, "{value}");
        }
        assert!(conditions(&[]).range_counts(&info()));
    }

    #[test]
    fn writes_know_one_condition() {
        for (list, condition) in [
            (&[][..], Ok(Condition::None)),
            (&[("if-none-match", "*")], Ok(Condition::Absent)),
            (&[("if-match", "\"e\"")], Ok(Condition::Match("e".into()))),
            (&[("if-match", "*")], Ok(Condition::Present)),
            (&[("if-match", "\"a\",\"b\"")], Err(Unsupported)),
            (&[("if-none-match", "\"a\"")], Ok(Condition::Differs("a".into()))),
            (&[("if-none-match", "\"a\",\"b\"")], Err(Unsupported)),
            (&[("if-none-match", "*"), ("if-match", "\"a\"")], Err(Unsupported)),
        ] {
            assert_eq!(conditions(list).write(), condition, "{list:?}");
        }
    }
}
