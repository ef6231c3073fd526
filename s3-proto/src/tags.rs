//! Tags of objects and buckets ("Categorizing your objects using tags" and "Cost allocation tags" in the S3 user guide).

use ernic_store::Tags;
use s3s::{S3Error, S3ErrorCode, S3Result, dto::Tag, s3_error};

use crate::error::error;

/// Most tags of an object.
pub(crate) const MAX_OF_OBJECT: usize = 10;
/// Most tags of a bucket.
pub(crate) const MAX_OF_BUCKET: usize = 50;
/// Most characters of a key.
const MAX_KEY: usize = 128;
/// Most characters of a value.
const MAX_VALUE: usize = 256;

/// The tags in a header `x-amz-tagging`: `name=value&…`, encoded as a query is.
pub(crate) fn of_header(header: &[u8]) -> S3Result<Tags> {
    let tags = form_urlencoded::parse(header).into_owned().collect();
    check(tags, MAX_OF_OBJECT, S3ErrorCode::InvalidArgument)
}

/// The tags of a document, at most `most`.
pub(crate) fn of_document(tags: Vec<Tag>, most: usize) -> S3Result<Tags> {
    let tags = tags.into_iter().map(|tag| {
        let key = tag.key.ok_or_else(|| error(S3ErrorCode::MalformedXML, "A tag has no key."))?;
        Ok((key, tag.value.unwrap_or_default()))
    });
    check(tags.collect::<S3Result<_>>()?, most, S3ErrorCode::InvalidTag)
}

/// Tags as a document has them.
pub(crate) fn to_document(tags: &Tags) -> Vec<Tag> {
    tags.iter().map(|(key, value)| Tag { key: Some(key.clone()), value: Some(value.clone()) }).collect()
}

/// Checks the limits and puts the tags in the order of their keys; `twice` is the code for a key that comes twice.
fn check(mut tags: Tags, most: usize, twice: S3ErrorCode) -> S3Result<Tags> {
    let invalid = |why: String| -> S3Error { s3_error!(InvalidTag, "{why}") };
    if tags.len() > most {
        return Err(invalid(format!("There are {} tags, and there may be {most}.", tags.len())));
    }
    tags.sort();
    let allowed = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c.is_whitespace() || "+-=._:/@".contains(c));
    let mut last = None;
    for (key, value) in &tags {
        let characters = key.chars().count();
        if !(1..=MAX_KEY).contains(&characters) || !allowed(key) {
            return Err(invalid(format!(
                "The tag key '{key}' is invalid: it has 1 to {MAX_KEY} letters, digits, spaces and + - = . _ : / @."
            )));
        }
        if key.starts_with("aws:") {
            return Err(invalid(format!("The tag key '{key}' begins with aws:, which is reserved.")));
        }
        if value.chars().count() > MAX_VALUE || !allowed(value) {
            return Err(invalid(format!(
                "The value of the tag '{key}' is invalid: it has at most {MAX_VALUE} letters, digits, spaces and + - = . _ : / @."
            )));
        }
        if last.replace(key) == Some(key) {
            return Err(error(twice, format!("The tag key '{key}' is there more than once.")));
        }
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(tags: &[(&str, &str)], most: usize) -> Result<usize, String> {
        let tags = tags.iter().map(|(key, value)| Tag { key: Some((*key).into()), value: Some((*value).into()) });
        of_document(tags.collect(), most).map(|tags| tags.len()).map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn limits_are_those_of_s3() {
        let (long_key, long_value) = ("é".repeat(128), "é".repeat(256));
        assert_eq!(codes(&[(&long_key, &long_value), ("a b+-=._:/@", "")], 2), Ok(2));
        assert_eq!(codes(&[], 1), Ok(0));
        for tags in [
            &[("a", ""), ("b", ""), ("c", "")][..],
            &[("a", "1"), ("a", "2")],
            &[("", "v")],
            &[("aws:x", "v")],
            &[("a&b", "v")],
            &[("k", "\u{1}")],
            &[(&"k".repeat(129), "v")],
            &[("k", &"v".repeat(257))],
        ] {
            assert_eq!(codes(tags, 2), Err("InvalidTag".into()), "{tags:?}");
        }
        let keyless = of_document(vec![Tag { key: None, value: None }], 1).unwrap_err();
        assert_eq!(keyless.code(), &S3ErrorCode::MalformedXML);
    }

    #[test]
    fn the_header_is_a_query() {
        let tags = of_header(b"a+b=c%26d&%C3%A9=&plain").unwrap_err();
        assert_eq!(tags.code(), &S3ErrorCode::InvalidTag, "an ampersand is no character of a tag");
        let tags = of_header(b"a+b=c%3Dd&%C3%A9=&plain").unwrap();
        let expected = [("a b", "c=d"), ("plain", ""), ("é", "")];
        assert_eq!(tags, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(of_header(b"").unwrap(), []);
        assert_eq!(of_header(b"k=1&k=2").unwrap_err().code(), &S3ErrorCode::InvalidArgument);
        let eleven: String = (0..11).map(|i| format!("k{i}=v&")).collect();
        assert_eq!(of_header(eleven.as_bytes()).unwrap_err().code(), &S3ErrorCode::InvalidTag);
        assert_eq!(to_document(&tags).len(), 3);
    }
}
