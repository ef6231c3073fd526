//! The documents of S3, as far as they are needed here ("Data types" in the S3 API reference).

use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use quick_xml::{de::from_reader, escape::escape};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{PartName, Result, StoreError};

/// Why the remote has refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
pub(super) struct Refusal {
    pub code: String,
    pub message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Buckets {
    pub buckets: BucketList,
    pub continuation_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct BucketList {
    pub bucket: Vec<Bucket>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Bucket {
    pub name: String,
    pub creation_date: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Objects {
    pub is_truncated: bool,
    pub next_continuation_token: Option<String>,
    pub encoding_type: Option<String>,
    pub contents: Vec<Entry>,
    pub common_prefixes: Vec<Prefix>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Entry {
    pub key: String,
    pub size: u64,
    pub last_modified: String,
    #[serde(rename = "ETag")]
    pub etag: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Prefix {
    pub prefix: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Started {
    pub upload_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Parts {
    pub is_truncated: bool,
    pub next_part_number_marker: Option<String>,
    pub part: Vec<Part>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Part {
    pub part_number: u16,
    pub size: u64,
    pub last_modified: String,
    #[serde(rename = "ETag")]
    pub etag: String,
    #[serde(rename = "ChecksumCRC32")]
    pub crc32: Option<String>,
    #[serde(rename = "ChecksumCRC32C")]
    pub crc32c: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    pub crc64nvme: Option<String>,
    #[serde(rename = "ChecksumSHA1")]
    pub sha1: Option<String>,
    #[serde(rename = "ChecksumSHA256")]
    pub sha256: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Uploads {
    pub is_truncated: bool,
    pub next_key_marker: Option<String>,
    pub next_upload_id_marker: Option<String>,
    pub encoding_type: Option<String>,
    pub upload: Vec<Upload>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Upload {
    pub key: String,
    pub upload_id: String,
    pub initiated: String,
}

/// What a copy or a completion has made.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Made {
    #[serde(rename = "ETag")]
    pub etag: String,
    pub last_modified: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Tagging {
    pub tag_set: TagSet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct TagSet {
    pub tag: Vec<Tag>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Tag {
    pub key: String,
    pub value: String,
}

/// Reads a document.
pub(super) fn read<T: DeserializeOwned>(what: &str, document: &[u8]) -> Result<T> {
    from_reader(document).map_err(|error| {
        let begin = String::from_utf8_lossy(document.get(..200).unwrap_or(document)).into_owned();
        StoreError::Internal(format!("the remote's {what} is no S3 document ({error}): {begin}"))
    })
}

/// The refusal that a document is, if it is one. S3 sends them even with status 200, once it has begun to answer.
pub(super) fn error(document: &[u8]) -> Option<Refusal> {
    let text = std::str::from_utf8(document).ok()?;
    let body = text.trim_start();
    let body = if body.starts_with("<?") { body.split_once("?>")?.1.trim_start() } else { body };
    let name = body.strip_prefix("<Error")?;
    name.starts_with(['>', ' ']).then(|| from_reader(document).ok()).flatten()
}

/// A key or prefix as a listing with `encoding-type=url` writes it. S3 writes a space as `+`.
pub(super) fn key(text: &str, encoding: Option<&str>) -> Result<String> {
    if encoding != Some("url") {
        return Ok(text.to_owned());
    }
    let text = text.replace('+', " ");
    let key = percent_decode_str(&text).decode_utf8();
    key.map(std::borrow::Cow::into_owned)
        .map_err(|_| StoreError::Internal(format!("a key of the remote is no UTF-8: {text}")))
}

/// A time as S3's documents have it.
pub(super) fn time(text: &str) -> SystemTime {
    text.parse::<jiff::Timestamp>().map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

/// An ETag without its quotes.
pub(super) fn etag(text: &str) -> String {
    text.strip_prefix("W/").unwrap_or(text).trim_matches('"').to_owned()
}

/// The document of `CompleteMultipartUpload`.
pub(super) fn complete(parts: &[PartName]) -> String {
    let mut document = String::from("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for PartName { number, etag } in parts {
        let etag = escape(etag.as_str());
        document.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag></Part>"));
    }
    document.push_str("</CompleteMultipartUpload>");
    document
}

/// The document of `CreateBucket` outside of `us-east-1`.
pub(super) fn location(region: &str) -> String {
    format!(
        "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{}\
         </LocationConstraint></CreateBucketConfiguration>",
        escape(region)
    )
}

/// The document of `PutObjectTagging`.
pub(super) fn tagging(tags: &[(String, String)]) -> String {
    let tags: String = tags
        .iter()
        .map(|(key, value)| {
            format!("<Tag><Key>{}</Key><Value>{}</Value></Tag>", escape(key.as_str()), escape(value.as_str()))
        })
        .collect();
    format!("<Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TagSet>{tags}</TagSet></Tagging>")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn documents() {
        let listing = br#"<?xml version="1.0"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><EncodingType>url</EncodingType>
            <IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>
            <Contents><Key>a+b%2F%2B</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>
            <LastModified>1970-01-01T00:00:01.500Z</LastModified></Contents>
            <CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>
            <Contents><Key>x</Key></Contents></ListBucketResult>"#;
        let listing: Objects = read("listing", listing).unwrap();
        assert!(listing.is_truncated);
        assert_eq!(listing.next_continuation_token.as_deref(), Some("t"));
        assert_eq!(key(&listing.contents[0].key, listing.encoding_type.as_deref()).unwrap(), "a b/+");
        assert_eq!(etag(&listing.contents[0].etag), "e");
        assert_eq!(time(&listing.contents[0].last_modified), SystemTime::UNIX_EPOCH + Duration::from_millis(1500));
        assert_eq!((listing.contents[0].size, listing.contents.len()), (7, 2));
        assert_eq!(listing.common_prefixes.iter().map(|prefix| &prefix.prefix[..]).collect::<Vec<_>>(), ["c/", "d/"]);
        assert_eq!(key("a+b", None).unwrap(), "a+b");
        assert!(key("%ff", Some("url")).is_err());
        let error = read::<Objects>("listing", b"<html>").unwrap_err().to_string();
        assert!(error.contains("listing") && error.contains("<html>"), "{error}");
    }

    #[test]
    fn refusals() {
        let refusal =
            error(b"<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>m &amp; n</Message></Error>");
        assert_eq!(refusal.map(|refusal| (refusal.code, refusal.message)), Some(("NoSuchKey".into(), "m & n".into())));
        assert!(error(b"<ErrorFree/>").is_none());
        assert!(error(b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>").is_none());
        assert!(error(b"").is_none());
    }

    #[test]
    fn what_is_sent_is_escaped() {
        let document = complete(&[PartName { number: 3, etag: "a<\"".into() }]);
        assert!(document.contains("<PartNumber>3</PartNumber><ETag>&quot;a&lt;&quot;&quot;</ETag>"), "{document}");
        let document = tagging(&[("<k>".into(), "&".into())]);
        let back: Tagging = read("tags", document.as_bytes()).unwrap();
        assert_eq!((&back.tag_set.tag[0].key[..], &back.tag_set.tag[0].value[..]), ("<k>", "&"));
    }
}
