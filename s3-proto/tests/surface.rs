//! Lane `s3-target`: what S3 has beyond objects that come and go. Buckets, versions, tags, copies, attributes, access control, the
//! table of operations in the docs, and input that means harm.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use common::*;
use ernic_store::{
    BucketInfo, Commit, Condition, Deleted, ListPage, ListQuery, MemoryConfig, MemoryStore, Object, ObjectInfo,
    ObjectWriter, PartInfo, PartName, PutOptions, Result, Store, UploadInfo, UploadOptions, Usage,
};
use md5::Digest;
use s3_proto::{RESERVED_BUCKETS, S3Config, S3Service};

fn md5_hex(data: &[u8]) -> String {
    hex::encode(md5::Md5::digest(data))
}

fn delete(target: &str) -> Request {
    request("DELETE", target)
}

fn post(target: &str, body: impl Into<Vec<u8>>) -> Request {
    request("POST", target).body(body)
}

/// A copy of `source` to `target`.
fn copy(source: &str, target: &str) -> Request {
    request("PUT", target).header("x-amz-copy-source", source)
}

fn set_versioning(bench: &Bench, bucket: &str, status: &str) {
    let document = format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
    bench.call(&put(&format!("/{bucket}?versioning"), document)).expect(200);
}

/// Stores an object and returns its version.
#[track_caller]
fn put_version(bench: &Bench, target: &str, body: &str) -> String {
    let answer = bench.call(&put(target, body));
    answer.expect(200).header("x-amz-version-id").expect("a version").to_owned()
}

// ---------------------------------------------------------------- buckets

#[test]
fn buckets_are_made_and_deleted() {
    let bench = plain();
    let made = bench.call(&put("/second.bucket-2", ""));
    assert_eq!(made.expect(200).header("location"), Some("/second.bucket-2"));
    bench.call(&put("/second.bucket-2/k", "x")).expect(200);
    // Making it again changes nothing.
    bench.call(&request("PUT", "/second.bucket-2")).expect(200);
    assert_eq!(bench.call(&get("/second.bucket-2/k")).text(), "x");
    bench.call(&delete("/second.bucket-2")).expect_error(409, "BucketNotEmpty", "/second.bucket-2");
    bench.call(&delete("/second.bucket-2/k")).expect(204);
    bench.call(&delete("/second.bucket-2")).expect(204);
    bench.call(&delete("/second.bucket-2")).expect_error(404, "NoSuchBucket", "/second.bucket-2");
    assert_eq!(bench.call(&get("/")).xml().child("Buckets").texts("Bucket", "Name"), ["ernic"]);

    let place = |region: &str| {
        let document = format!(
            "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{region}\
             </LocationConstraint></CreateBucketConfiguration>"
        );
        put("/placed", document)
    };
    bench.call(&place("eu-west-1")).expect_error(400, "IllegalLocationConstraintException", "/placed");
    bench.call(&get("/placed")).expect_error(404, "NoSuchBucket", "/placed");
    bench.call(&place("us-east-1")).expect(200);
    bench.call(&place("")).expect(200);
    let tagged =
        "<CreateBucketConfiguration><Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags></CreateBucketConfiguration>";
    bench.call(&put("/tagged", tagged)).expect_error(501, "NotImplemented", "/tagged");
    bench.call(&put("/placed", "<CreateBucketConfiguration>")).expect_error(400, "MalformedXML", "/placed");
    bench.call(&put("/locked", "").header("x-amz-bucket-object-lock-enabled", "true")).expect_error(
        501,
        "NotImplemented",
        "/locked",
    );
    bench.call(&put("/owned", "").header("x-amz-object-ownership", "ObjectWriter")).expect_error(
        501,
        "NotImplemented",
        "/owned",
    );
    bench
        .call(
            &put("/owned", "")
                .header("x-amz-object-ownership", "BucketOwnerEnforced")
                .header("x-amz-bucket-object-lock-enabled", "false"),
        )
        .expect(200);
    let page = bench.call(&get("/?bucket-region=us-east-1")).xml();
    assert_eq!(page.child("Buckets").texts("Bucket", "Name"), ["ernic", "owned", "placed"]);
    let page = bench.call(&get("/?bucket-region=eu-west-1")).xml();
    assert!(page.child("Buckets").children.is_empty());
}

#[test]
fn bucket_names_of_every_wrong_kind() {
    let bench = plain();
    let (long, longest) = ("b".repeat(64), "b".repeat(63));
    for name in [
        "ab",
        "Upper",
        "under_score",
        "-first",
        "last-",
        ".first",
        "last.",
        "two..dots",
        "192.168.1.1",
        "xn--puny",
        "dash-.dot",
        "dot.-dash",
        "sthree-x",
        "amzn-s3-demo-x",
        "my-s3alias",
        "my--ol-s3",
        "my.mrap",
        "my--x-s3",
        "my--table-s3",
        "%C3%A4%C3%B6%C3%BC",
        "a%20b",
        "a%00b",
        "a%0Ab",
        "minio",
        &long,
    ] {
        let answer = bench.call(&request("PUT", &format!("/{name}")));
        answer.expect_error(400, "InvalidBucketName", &format!("/{name}"));
    }
    for name in RESERVED_BUCKETS {
        assert!((400..=405).contains(&bench.call(&request("PUT", &format!("/{name}"))).status), "{name}");
        bench.call(&request("PUT", &format!("/{name}/"))).expect_error(400, "InvalidBucketName", &format!("/{name}/"));
    }
    assert_eq!(bench.call(&get("/")).xml().child("Buckets").texts("Bucket", "Name"), ["ernic"]);
    for name in ["abc", "1-2.3-4", &longest] {
        bench.call(&request("PUT", &format!("/{name}"))).expect(200);
    }
}

#[test]
fn an_expected_owner_is_checked() {
    let bench = plain();
    bench.call(&put("/ernic/k", "x").header("x-amz-expected-bucket-owner", "ernic")).expect(200);
    for request in [get("/ernic/k"), delete("/ernic/k"), put("/ernic/k", "y"), get("/ernic?versioning")] {
        let resource = request.target.split('?').next().unwrap().to_owned();
        bench.call(&request.header("x-amz-expected-bucket-owner", "123456789012")).expect_error(
            403,
            "AccessDenied",
            &resource,
        );
    }
    assert_eq!(bench.call(&get("/ernic/k")).text(), "x");
}

#[test]
fn access_control_is_that_of_one_owner() {
    let bench = plain();
    bench.call(&put("/ernic/k", "x")).expect(200);
    let of = |target: &str| bench.call(&get(target)).expect(200).xml();
    for target in ["/ernic?acl", "/ernic/k?acl"] {
        let list = of(target);
        assert_eq!(list.name, "AccessControlPolicy");
        assert_eq!(list.child("Owner").text_of("ID"), "ernic");
        let grant = list.child("AccessControlList").child("Grant").clone();
        assert_eq!(grant.text_of("Permission"), "FULL_CONTROL");
        assert_eq!(grant.child("Grantee").text_of("ID"), "ernic");
        // Putting back what was read is no change; neither are lists that say the same.
        let document = bench.call(&get(target)).text();
        bench.call(&put(target, document.clone())).expect(200);
        bench.call(&put(target, "").header("x-amz-acl", "private")).expect(200);
        let resource = target.split('?').next().unwrap();
        for list in [
            document.replace("FULL_CONTROL", "READ"),
            document.replace("<ID>ernic</ID>", "<ID>somebody</ID>"),
            "<AccessControlPolicy></AccessControlPolicy>".into(),
        ] {
            bench.call(&put(target, list)).expect_error(400, "AccessControlListNotSupported", resource);
        }
        bench.call(&put(target, "")).expect_error(400, "MissingSecurityHeader", resource);
        for refused in ["public-read", "authenticated-read"] {
            bench.call(&put(target, "").header("x-amz-acl", refused)).expect_error(
                400,
                "AccessControlListNotSupported",
                resource,
            );
        }
        bench.call(&put(target, "").header("x-amz-acl", "nonsense")).expect_error(400, "InvalidArgument", resource);
    }
    for canned in ["private", "bucket-owner-read", "bucket-owner-full-control"] {
        bench.call(&put("/ernic/k", canned).header("x-amz-acl", canned)).expect(200);
    }
    for (name, value) in [("x-amz-acl", "public-read"), ("x-amz-grant-read", "id=ernic")] {
        for request in [put("/ernic/k", "y"), put("/other", ""), request("POST", "/ernic/k?uploads")] {
            let resource = request.target.split('?').next().unwrap().to_owned();
            let answer = bench.call(&request.header(name, value));
            answer.expect_error(400, "AccessControlListNotSupported", &resource);
        }
    }
    assert_eq!(bench.call(&get("/ernic/k")).text(), "bucket-owner-full-control");
    bench.call(&get("/ernic/none?acl")).expect_error(404, "NoSuchKey", "/ernic/none");
    bench.call(&get("/nobucket?acl")).expect_error(404, "NoSuchBucket", "/nobucket");
}

// ---------------------------------------------------------------- versions

#[test]
fn versions_from_start_to_end() {
    let bench = plain();
    let status = || {
        let answer = bench.call(&get("/ernic?versioning")).expect(200).xml();
        answer.children.iter().map(|child| format!("{}={}", child.name, child.text)).collect::<Vec<_>>()
    };
    assert!(status().is_empty());
    let before = bench.call(&put("/ernic/k", "before"));
    assert_eq!(before.header("x-amz-version-id"), None, "there are no versions");
    assert_eq!(bench.call(&get("/ernic/k")).header("x-amz-version-id"), None);
    for document in
        ["", "<VersioningConfiguration/>", "<VersioningConfiguration><Status>On</Status></VersioningConfiguration>"]
    {
        let answer = bench.call(&put("/ernic?versioning", document));
        assert_eq!(answer.status, 400, "{document}");
    }
    let mfa =
        "<VersioningConfiguration><Status>Enabled</Status><MfaDelete>Enabled</MfaDelete></VersioningConfiguration>";
    bench.call(&put("/ernic?versioning", mfa)).expect_error(501, "NotImplemented", "/ernic");
    assert!(status().is_empty());

    set_versioning(&bench, "ernic", "Enabled");
    assert_eq!(status(), ["Status=Enabled"]);
    assert_eq!(bench.call(&get("/ernic/k")).header("x-amz-version-id"), Some("null"));
    let (one, two) = (put_version(&bench, "/ernic/k", "one"), put_version(&bench, "/ernic/k", "two"));
    assert!(one != two && one != "null");
    let read = |version: &str| bench.call(&get(&format!("/ernic/k?versionId={version}")));
    for (version, text) in [(one.as_str(), "one"), (&two, "two"), ("null", "before")] {
        let answer = read(version);
        assert_eq!((answer.expect(200).text(), answer.header("x-amz-version-id")), (text.into(), Some(version)));
        let head = bench.call(&request("HEAD", &format!("/ernic/k?versionId={version}")));
        assert_eq!(head.expect(200).header("x-amz-version-id"), Some(version));
        assert_eq!(head.header("content-length"), Some(text.len().to_string().as_str()));
    }
    read("3141592653").expect_error(404, "NoSuchVersion", "/ernic/k");
    read("").expect_error(400, "InvalidArgument", "/ernic/k");

    // A delete makes a marker; what is under it stays.
    let marked = bench.call(&delete("/ernic/k"));
    assert_eq!(marked.expect(204).header("x-amz-delete-marker"), Some("true"));
    let marker = marked.header("x-amz-version-id").unwrap().to_owned();
    let gone = bench.call(&get("/ernic/k"));
    gone.expect_error(404, "NoSuchKey", "/ernic/k");
    assert_eq!(gone.header("x-amz-delete-marker"), Some("true"));
    assert_eq!(gone.header("x-amz-version-id"), Some(marker.as_str()));
    let of_marker = read(&marker);
    of_marker.expect_error(405, "MethodNotAllowed", "/ernic/k");
    assert_eq!(of_marker.header("allow"), Some("DELETE"));
    assert!(bench.call(&get("/ernic")).xml().all("Contents").is_empty());
    assert_eq!(read(&two).text(), "two");

    let list = bench.call(&get("/ernic?versions")).expect(200).xml();
    assert_eq!(list.name, "ListVersionsResult");
    assert_eq!(list.texts("Version", "VersionId"), [two.as_str(), &one, "null"]);
    assert_eq!(list.texts("Version", "IsLatest"), ["false"; 3]);
    assert_eq!(list.texts("Version", "ETag")[1], format!("\"{}\"", md5_hex(b"one")));
    assert_eq!(list.texts("DeleteMarker", "VersionId"), [marker.as_str()]);
    assert_eq!(list.texts("DeleteMarker", "IsLatest"), ["true"]);
    bench.call(&delete("/ernic")).expect_error(409, "BucketNotEmpty", "/ernic");

    // Deleting the marker brings the object back; deleting a version is for good.
    let undone = bench.call(&delete(&format!("/ernic/k?versionId={marker}")));
    assert_eq!(undone.expect(204).header("x-amz-delete-marker"), Some("true"));
    assert_eq!(undone.header("x-amz-version-id"), Some(marker.as_str()));
    assert_eq!(bench.call(&get("/ernic/k")).text(), "two");
    let gone = bench.call(&delete(&format!("/ernic/k?versionId={two}")));
    assert_eq!(
        (gone.expect(204).header("x-amz-delete-marker"), gone.header("x-amz-version-id")),
        (None, Some(two.as_str()))
    );
    assert_eq!(bench.call(&get("/ernic/k")).text(), "one");
    bench.call(&delete("/ernic/k?versionId=nothing")).expect(204);

    // Suspended: the version `null` is replaced, others stay.
    set_versioning(&bench, "ernic", "Suspended");
    assert_eq!(status(), ["Status=Suspended"]);
    let replaced = bench.call(&put("/ernic/k", "null again"));
    assert_eq!(replaced.expect(200).header("x-amz-version-id"), None, "it has no id of its own");
    assert_eq!(bench.call(&get("/ernic/k")).header("x-amz-version-id"), Some("null"));
    assert_eq!(read("null").text(), "null again");
    let marked = bench.call(&delete("/ernic/k"));
    assert_eq!((marked.header("x-amz-delete-marker"), marked.header("x-amz-version-id")), (Some("true"), Some("null")));
    read("null").expect(405);
    assert_eq!(read(&one).text(), "one");
    for version in ["null", &one] {
        bench.call(&delete(&format!("/ernic/k?versionId={version}"))).expect(204);
    }
    let usage = bench.store.usage();
    assert_eq!((usage.objects, usage.bytes), (0, 0), "nothing is left");
    bench.call(&delete("/ernic")).expect(204);
}

#[test]
fn versions_are_listed_in_pages() {
    let bench = plain();
    for key in ["a", "d/1", "d/2", "z"] {
        bench.call(&put(&format!("/ernic/{key}"), key)).expect(200);
    }
    // Without versioning every object is the version `null`.
    let list = bench.call(&get("/ernic?versions")).expect(200).xml();
    assert_eq!(list.texts("Version", "Key"), ["a", "d/1", "d/2", "z"]);
    assert_eq!(list.texts("Version", "VersionId"), ["null"; 4]);
    assert_eq!(list.texts("Version", "IsLatest"), ["true"; 4]);
    assert_eq!((list.text_of("IsTruncated"), list.text_of("MaxKeys")), ("false".into(), "1000".into()));

    set_versioning(&bench, "ernic", "Enabled");
    let mut expected = Vec::new();
    for key in ["a", "d/1", "z"] {
        for _ in 0..3 {
            put_version(&bench, &format!("/ernic/{key}"), key);
        }
    }
    bench.call(&delete("/ernic/z")).expect(204);
    let entries = |list: &Node| -> Vec<(String, String)> {
        let named = |name: &str| list.texts(name, "Key").into_iter().zip(list.texts(name, "VersionId"));
        named("Version").chain(named("DeleteMarker")).collect()
    };
    let whole = bench.call(&get("/ernic?versions")).xml();
    expected.extend(entries(&whole));
    expected.sort();
    assert_eq!(expected.len(), 4 + 9 + 1);
    for size in [1, 2, 5] {
        let (mut key, mut version, mut seen) = (String::new(), String::new(), Vec::new());
        for _ in 0..20 {
            let mut query = format!("/ernic?versions&max-keys={size}&key-marker={key}");
            if !version.is_empty() {
                query.push_str(&format!("&version-id-marker={version}"));
            }
            let page = bench.call(&get(&query)).expect(200).xml();
            assert!(entries(&page).len() <= size);
            seen.extend(entries(&page));
            if page.text_of("IsTruncated") == "false" {
                break;
            }
            key = page.text_of("NextKeyMarker");
            version = page.all("NextVersionIdMarker").first().map_or_else(String::new, |node| node.text.clone());
        }
        seen.sort();
        assert_eq!(seen, expected, "{size} at a time");
    }
    let page = bench.call(&get("/ernic?versions&delimiter=/&max-keys=2&key-marker=a")).xml();
    assert_eq!(page.child("CommonPrefixes").text_of("Prefix"), "d/");
    assert_eq!((page.text_of("NextKeyMarker"), page.text_of("Delimiter")), ("z".into(), "/".into()));
    let page = bench.call(&get("/ernic?versions&prefix=d/2&encoding-type=url")).xml();
    assert_eq!((page.texts("Version", "Key"), page.text_of("Prefix")), (vec!["d/2".into()], "d/2".into()));
    let page = bench.call(&get("/ernic?versions&max-keys=0")).xml();
    assert_eq!((entries(&page), page.text_of("IsTruncated")), (vec![], "false".into()));
    bench.call(&get("/ernic?versions&version-id-marker=x")).expect_error(400, "InvalidArgument", "/ernic");
    bench.call(&get("/nobucket?versions&max-keys=0")).expect_error(404, "NoSuchBucket", "/nobucket");
}

#[test]
fn many_deletes_know_versions_and_conditions() {
    let bench = plain();
    set_versioning(&bench, "ernic", "Enabled");
    let (one, two) = (put_version(&bench, "/ernic/k", "one"), put_version(&bench, "/ernic/k", "two"));
    let objects =
        |inner: &str| bench.call(&post("/ernic?delete", format!("<Delete>{inner}</Delete>"))).expect(200).xml();
    let done = objects(&format!(
        "<Object><Key>k</Key><VersionId>{one}</VersionId></Object><Object><Key>k</Key></Object><Object><Key/></Object>\
         <Object><Key>{}</Key></Object><Object><Key>k</Key><VersionId/></Object>",
        "l".repeat(1025)
    ));
    assert_eq!(done.texts("Deleted", "Key"), ["k", "k"]);
    assert_eq!(done.all("Deleted")[0].text_of("VersionId"), one);
    assert!(done.all("Deleted")[0].all("DeleteMarker").is_empty());
    let marker = done.all("Deleted")[1].text_of("DeleteMarkerVersionId");
    assert_eq!(done.all("Deleted")[1].text_of("DeleteMarker"), "true");
    assert_eq!(done.texts("Error", "Code"), ["UserKeyMustBeSpecified", "KeyTooLongError", "InvalidArgument"]);
    let done = objects(&format!("<Object><Key>k</Key><VersionId>{marker}</VersionId></Object>"));
    let undone = done.child("Deleted");
    assert_eq!((undone.text_of("DeleteMarker"), undone.text_of("DeleteMarkerVersionId")), ("true".into(), marker));
    assert_eq!(bench.call(&get("/ernic/k")).text(), "two");

    // Conditions, one by one and together.
    let modified = bench.call(&get("/ernic/k")).header("last-modified").unwrap().to_owned();
    let etag = md5_hex(b"two");
    for (condition, code) in [
        ("<ETag>00</ETag>".to_owned(), "PreconditionFailed"),
        ("<Size>4</Size>".into(), "PreconditionFailed"),
        (format!("<ETag>{etag}</ETag><Size>4</Size>"), "PreconditionFailed"),
        ("<LastModifiedTime>Wed, 21 Oct 2015 07:28:00 GMT</LastModifiedTime>".into(), "PreconditionFailed"),
    ] {
        let done = objects(&format!("<Object><Key>k</Key>{condition}</Object>"));
        assert_eq!(done.texts("Error", "Code"), [code], "{condition}");
    }
    let done = objects(&format!(
        "<Object><Key>k</Key><ETag>&quot;{etag}&quot;</ETag><Size>3</Size><LastModifiedTime>{modified}</LastModifiedTime>\
         <VersionId>{two}</VersionId></Object>"
    ));
    assert_eq!(done.texts("Deleted", "VersionId"), [two.as_str()]);
    assert_eq!(bench.store.usage().objects, 0);

    // The same in headers.
    bench.call(&put("/ernic/h", "abc")).expect(200);
    let modified = bench.call(&get("/ernic/h")).header("last-modified").unwrap().to_owned();
    let size = |size: &str| delete("/ernic/h").header("x-amz-if-match-size", size);
    let time = |request: Request, time: &str| request.header("x-amz-if-match-last-modified-time", time);
    bench.call(&size("4")).expect_error(412, "PreconditionFailed", "/ernic/h");
    bench.call(&time(size("3"), "Wed, 21 Oct 2015 07:28:00 GMT")).expect_error(412, "PreconditionFailed", "/ernic/h");
    bench.call(&time(size("3"), &modified)).expect(204);
    bench.call(&get("/ernic/h")).expect(404);
}

// ---------------------------------------------------------------- tags

fn tagging(tags: &[(&str, &str)]) -> String {
    let tags: String =
        tags.iter().map(|(key, value)| format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>")).collect();
    format!("<Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TagSet>{tags}</TagSet></Tagging>")
}

#[track_caller]
fn tags_at(bench: &Bench, target: &str) -> Vec<(String, String)> {
    let document = bench.call(&get(target)).expect(200).xml();
    assert_eq!(document.name, "Tagging");
    let set = document.child("TagSet");
    set.texts("Tag", "Key").into_iter().zip(set.texts("Tag", "Value")).collect()
}

fn pairs(tags: &[(&str, &str)]) -> Vec<(String, String)> {
    tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn objects_have_tags() {
    let bench = plain();
    bench.call(&put("/ernic/k", "x").header("x-amz-tagging", "a=1&b+c=%C3%A4&d")).expect(200);
    assert_eq!(tags_at(&bench, "/ernic/k?tagging"), pairs(&[("a", "1"), ("b c", "ä"), ("d", "")]));
    for method in ["GET", "HEAD"] {
        assert_eq!(bench.call(&request(method, "/ernic/k")).header("x-amz-tagging-count"), Some("3"));
    }
    let etag = bench.call(&get("/ernic/k")).header("etag").unwrap().to_owned();
    bench.call(&put("/ernic/k?tagging", tagging(&[("e", "f"), ("g", "&lt;")]))).expect_error(
        400,
        "InvalidTag",
        "/ernic/k",
    );
    bench.call(&put("/ernic/k?tagging", tagging(&[("e", "<![CDATA[f]]>")]))).expect(200);
    assert_eq!(tags_at(&bench, "/ernic/k?tagging"), pairs(&[("e", "f")]));
    assert_eq!(bench.call(&get("/ernic/k")).header("etag"), Some(etag.as_str()), "the content is the same");
    let many: Vec<_> = (0..11).map(|i| format!("k{i}")).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), "v")).collect();
    for (tags, code) in [
        (tagging(&many), "InvalidTag"),
        (tagging(&[("a", "1"), ("a", "2")]), "InvalidTag"),
        ("<Tagging/>".into(), "MalformedXML"),
    ] {
        bench.call(&put("/ernic/k?tagging", tags)).expect_error(400, code, "/ernic/k");
    }
    bench.call(&put("/ernic/k?tagging", tagging(&many[..10]))).expect(200);
    assert_eq!(tags_at(&bench, "/ernic/k?tagging").len(), 10);
    bench.call(&delete("/ernic/k?tagging")).expect(204);
    assert_eq!(tags_at(&bench, "/ernic/k?tagging"), []);
    assert_eq!(bench.call(&get("/ernic/k")).text(), "x");
    for (header, code) in [("a=1&a=2", "InvalidArgument"), ("a=%26", "InvalidTag"), ("aws:x=1", "InvalidTag")] {
        let answer = bench.call(&put("/ernic/refused", "x").header("x-amz-tagging", header));
        answer.expect_error(400, code, "/ernic/refused");
    }
    bench.call(&get("/ernic/refused")).expect(404);
    // Tags of a version, and of an upload.
    set_versioning(&bench, "ernic", "Enabled");
    let version = put_version(&bench, "/ernic/k", "y");
    let tagged = bench.call(&put("/ernic/k?tagging&versionId=null", tagging(&[("old", "1")])));
    assert_eq!(tagged.expect(200).header("x-amz-version-id"), Some("null"));
    assert_eq!(tags_at(&bench, "/ernic/k?tagging"), []);
    assert_eq!(tags_at(&bench, "/ernic/k?tagging&versionId=null"), pairs(&[("old", "1")]));
    let untagged = bench.call(&delete("/ernic/k?tagging"));
    assert_eq!(untagged.expect(204).header("x-amz-version-id"), Some(version.as_str()));
    let upload = start(&bench, &request("POST", "/ernic/multi?uploads").header("x-amz-tagging", "of=upload"));
    let etag = part(&bench, "multi", &upload, 1, b"part");
    complete(&bench, "multi", &upload, &[(1, &etag)]).expect(200);
    assert_eq!(tags_at(&bench, "/ernic/multi?tagging"), pairs(&[("of", "upload")]));
}

#[test]
fn buckets_have_tags() {
    let bench = plain();
    bench.call(&get("/ernic?tagging")).expect_error(404, "NoSuchTagSet", "/ernic");
    let many: Vec<_> = (0..51).map(|i| format!("k{i}")).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), "v")).collect();
    bench.call(&put("/ernic?tagging", tagging(&many))).expect_error(400, "InvalidTag", "/ernic");
    bench.call(&put("/ernic?tagging", tagging(&many[..50]))).expect(200);
    let mut sorted = pairs(&many[..50]);
    sorted.sort();
    assert_eq!(tags_at(&bench, "/ernic?tagging"), sorted, "in the order of their keys");
    let document = tagging(&[("only", "one")]);
    bench
        .call(&put("/ernic?tagging", document.clone()).header("content-md5", BASE64_STANDARD.encode([0; 16])))
        .expect_error(400, "BadDigest", "/ernic");
    let md5 = BASE64_STANDARD.encode(md5::Md5::digest(document.as_bytes()));
    bench.call(&put("/ernic?tagging", document).header("content-md5", md5)).expect(200);
    assert_eq!(tags_at(&bench, "/ernic?tagging"), pairs(&[("only", "one")]));
    bench.call(&delete("/ernic?tagging")).expect(204);
    bench.call(&get("/ernic?tagging")).expect_error(404, "NoSuchTagSet", "/ernic");
    bench.call(&put("/nobucket?tagging", tagging(&[]))).expect_error(404, "NoSuchBucket", "/nobucket");
}

// ---------------------------------------------------------------- copies

fn start(bench: &Bench, request: &Request) -> String {
    bench.call(request).expect(200).xml().text_of("UploadId")
}

#[track_caller]
fn part(bench: &Bench, key: &str, upload: &str, number: u32, body: &[u8]) -> String {
    let answer = bench.call(&put(&format!("/ernic/{key}?partNumber={number}&uploadId={upload}"), body));
    answer.expect(200).header("etag").unwrap().to_owned()
}

fn complete(bench: &Bench, key: &str, upload: &str, parts: &[(u32, &str)]) -> Answer {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"))
        .collect();
    let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    bench.call(&post(&format!("/ernic/{key}?uploadId={upload}"), document))
}

#[test]
fn a_copy_carries_what_it_is_told() {
    let bench = plain();
    let body = pattern(700_000);
    let source = put("/ernic/a%20b%3Fc", body.clone())
        .header("content-type", "text/x")
        .header("x-amz-meta-colour", "red")
        .header("x-amz-tagging", "t=1")
        .header("x-amz-checksum-algorithm", "SHA1");
    let etag = bench.call(&source).expect(200).header("etag").unwrap().to_owned();
    bench.call(&put("/other-bucket", "")).expect(200);
    let sha1 = bench.call(&get("/ernic/a%20b%3Fc").header("x-amz-checksum-mode", "ENABLED"));
    let sha1 = sha1.header("x-amz-checksum-sha1").unwrap().to_owned();
    for (source, target) in [("/ernic/a%20b%3Fc", "/other-bucket/plain"), ("ernic/a%20b%3Fc", "/ernic/again")] {
        let answer = bench.call(&copy(source, target)).expect(200).xml();
        assert_eq!(answer.name, "CopyObjectResult");
        assert_eq!((answer.text_of("ETag"), answer.text_of("ChecksumSHA1")), (etag.clone(), sha1.clone()));
        assert_eq!(answer.text_of("LastModified").len(), 24);
        let copied = bench.call(&get(target));
        assert!(copied.expect(200).body == body);
        assert_eq!((copied.header("content-type"), copied.header("x-amz-meta-colour")), (Some("text/x"), Some("red")));
        assert_eq!(tags_at(&bench, &format!("{target}?tagging")), pairs(&[("t", "1")]));
    }
    // REPLACE takes what the request says, and nothing else; COPY takes no notice of the request's metadata.
    let replace = copy("/ernic/again", "/ernic/replaced")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-tagging-directive", "REPLACE")
        .header("x-amz-tagging", "u=2")
        .header("x-amz-meta-size", "big")
        .header("x-amz-checksum-algorithm", "CRC32C");
    let answer = bench.call(&replace).expect(200).xml();
    assert!(answer.all("ChecksumSHA1").is_empty() && answer.all("ChecksumCRC32C").len() == 1);
    let replaced = bench.call(&get("/ernic/replaced"));
    assert!(replaced.body == body);
    assert_eq!(replaced.header("content-type"), Some("binary/octet-stream"));
    assert_eq!((replaced.header("x-amz-meta-colour"), replaced.header("x-amz-meta-size")), (None, Some("big")));
    assert_eq!(tags_at(&bench, "/ernic/replaced?tagging"), pairs(&[("u", "2")]));
    bench.call(&copy("/ernic/again", "/ernic/kept").header("x-amz-meta-size", "big")).expect(200);
    assert_eq!(bench.call(&get("/ernic/kept")).header("x-amz-meta-size"), None);

    // Onto itself it needs a change.
    bench.call(&copy("/ernic/again", "/ernic/again")).expect_error(400, "InvalidRequest", "/ernic/again");
    let onto = copy("/ernic/again", "/ernic/again").header("x-amz-metadata-directive", "REPLACE");
    bench.call(&onto.header("x-amz-meta-new", "1")).expect(200);
    let changed = bench.call(&get("/ernic/again"));
    assert!(changed.body == body);
    assert_eq!((changed.header("x-amz-meta-new"), changed.header("x-amz-meta-colour")), (Some("1"), None));

    for (request, status, code) in [
        (copy("/ernic/none", "/ernic/x"), 404, "NoSuchKey"),
        (copy("/nobucket/k", "/ernic/x"), 404, "NoSuchBucket"),
        (copy("/ernic/again", "/nobucket/x"), 404, "NoSuchBucket"),
        (copy("/ernic/again?versionId=77", "/ernic/x"), 404, "NoSuchVersion"),
        (copy("/ernic/", "/ernic/x"), 400, "InvalidArgument"),
        (copy("/ernic", "/ernic/x"), 400, "InvalidArgument"),
        (copy("", "/ernic/x"), 400, "InvalidRequest"),
        (copy("/Bad_Bucket/k", "/ernic/x"), 400, "InvalidArgument"),
        (copy("/ernic/%ff", "/ernic/x"), 400, "InvalidArgument"),
        (copy("/ernic/again", "/ernic/x").header("x-amz-metadata-directive", "MERGE"), 400, "InvalidArgument"),
        (copy("/ernic/again", "/ernic/x").header("x-amz-tagging-directive", "copy"), 400, "InvalidArgument"),
        (copy("/ernic/again", "/ernic/x").header("x-amz-tagging", "a=b"), 400, "InvalidArgument"),
        (copy("/ernic/again", "/ernic/x").header("x-amz-checksum-algorithm", "MD4"), 400, "InvalidRequest"),
        (copy("/ernic/again", "/ernic/x").header("x-amz-storage-class", "GLACIER"), 400, "InvalidStorageClass"),
        (copy("/ernic/again", "/ernic/x").header("x-amz-source-expected-bucket-owner", "1"), 403, "AccessDenied"),
        (
            copy("/ernic/again", "/ernic/x").header("x-amz-copy-source-server-side-encryption-customer-key", "1"),
            501,
            "NotImplemented",
        ),
        (copy("arn:aws:s3:us-east-1:123456789012:accesspoint/abc/object/k", "/ernic/x"), 501, "NotImplemented"),
        (get("/ernic/again").header("x-amz-copy-source", "/ernic/again"), 501, "NotImplemented"),
    ] {
        let resource = request.target.clone();
        bench.call(&request).expect_error(status, code, &resource);
    }
    bench.call(&get("/ernic/x")).expect_error(404, "NoSuchKey", "/ernic/x");
}

#[test]
fn copies_have_conditions_on_both_ends() {
    let bench = plain();
    let etag = bench.call(&put("/ernic/s", "source")).header("etag").unwrap().to_owned();
    let (past, future) = ("Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT");
    let source = |name: &str, value: &str| {
        let name = format!("x-amz-copy-source-if-{name}");
        bench.call(&copy("/ernic/s", "/ernic/t").header(&name, value)).status
    };
    for (name, value, status) in [
        ("match", etag.as_str(), 200),
        ("match", etag.trim_matches('"'), 200),
        ("match", "\"x\"", 412),
        ("none-match", &etag, 412),
        ("none-match", "\"x\"", 200),
        ("modified-since", past, 200),
        ("modified-since", future, 412),
        ("unmodified-since", past, 412),
        ("unmodified-since", future, 200),
    ] {
        assert_eq!(source(name, value), status, "{name}: {value}");
    }
    // "If x-amz-copy-source-if-match is true and if-unmodified-since is false, S3 returns 200 and copies", and the reverse.
    let both = copy("/ernic/s", "/ernic/t").header("x-amz-copy-source-if-match", &etag);
    bench.call(&both.header("x-amz-copy-source-if-unmodified-since", past)).expect(200);
    let both = copy("/ernic/s", "/ernic/t").header("x-amz-copy-source-if-none-match", &etag);
    bench.call(&both.header("x-amz-copy-source-if-modified-since", past)).expect(412);

    let target =
        |target: &str, name: &str, value: &str| bench.call(&copy("/ernic/s", target).header(name, value)).status;
    assert_eq!(target("/ernic/t", "if-none-match", "*"), 412);
    assert_eq!(target("/ernic/new", "if-none-match", "*"), 200);
    assert_eq!(target("/ernic/new", "if-match", "\"x\""), 412);
    assert_eq!(target("/ernic/new", "if-match", &etag), 200);
    assert_eq!(target("/ernic/absent", "if-match", "*"), 404);
}

#[test]
fn copies_of_versions() {
    let bench = plain();
    set_versioning(&bench, "ernic", "Enabled");
    let (one, two) = (put_version(&bench, "/ernic/k", "one"), put_version(&bench, "/ernic/k", "two"));
    // Restoring an older version is a copy onto itself.
    let restored = bench.call(&copy(&format!("/ernic/k?versionId={one}"), "/ernic/k"));
    assert_eq!(restored.expect(200).header("x-amz-copy-source-version-id"), Some(one.as_str()));
    let three = restored.header("x-amz-version-id").unwrap().to_owned();
    assert!(three != one && three != two);
    assert_eq!(bench.call(&get("/ernic/k")).text(), "one");
    let latest = bench.call(&copy("/ernic/k", "/ernic/l"));
    assert_eq!(latest.header("x-amz-copy-source-version-id"), Some(three.as_str()));
    let marker = bench.call(&delete("/ernic/k")).header("x-amz-version-id").unwrap().to_owned();
    let gone = bench.call(&copy("/ernic/k", "/ernic/l"));
    gone.expect_error(404, "NoSuchKey", "/ernic/l");
    assert_eq!(gone.header("x-amz-delete-marker"), None, "it is the source that is one");
    bench.call(&copy(&format!("/ernic/k?versionId={marker}"), "/ernic/l")).expect_error(
        400,
        "InvalidRequest",
        "/ernic/l",
    );
    let upload = start(&bench, &request("POST", "/ernic/m?uploads"));
    let target = format!("/ernic/m?partNumber=1&uploadId={upload}");
    let answer = bench.call(&copy(&format!("/ernic/k?versionId={two}"), &target));
    assert_eq!(answer.expect(200).header("x-amz-copy-source-version-id"), Some(two.as_str()));
}

#[test]
fn parts_are_copied() {
    let bench = plain();
    let body = pattern(900_000);
    bench.call(&put("/ernic/s", body.clone())).expect(200);
    let upload = start(&bench, &request("POST", "/ernic/m?uploads").header("x-amz-checksum-algorithm", "SHA256"));
    let target = |number: u32| format!("/ernic/m?partNumber={number}&uploadId={upload}");
    let range = |number: u32, range: &str| copy("/ernic/s", &target(number)).header("x-amz-copy-source-range", range);
    let first = bench.call(&range(1, "bytes=0-599999")).expect(200).xml();
    assert_eq!(first.name, "CopyPartResult");
    assert_eq!(first.text_of("ETag"), format!("\"{}\"", md5_hex(&body[..600_000])));
    assert_eq!(first.text_of("ChecksumSHA256"), BASE64_STANDARD.encode(sha2::Sha256::digest(&body[..600_000])));
    let second = bench.call(&range(2, "bytes=600000-899999")).expect(200).xml();
    let third = bench.call(&copy("/ernic/s", &target(3))).expect(200).xml();
    for (bad, status, code) in [
        ("bytes=0-900000", 416, "InvalidRange"),
        ("bytes=900000-900001", 416, "InvalidRange"),
        ("bytes=5-", 400, "InvalidArgument"),
        ("bytes=-5", 400, "InvalidArgument"),
        ("0-5", 400, "InvalidArgument"),
        ("bytes=5-4", 400, "InvalidArgument"),
        ("bytes=0-2,3-5", 400, "InvalidArgument"),
        ("bytes=hello-world", 400, "InvalidArgument"),
    ] {
        bench.call(&range(4, bad)).expect_error(status, code, "/ernic/m");
    }
    let condition = copy("/ernic/s", &target(4)).header("x-amz-copy-source-if-match", "\"x\"");
    bench.call(&condition).expect_error(412, "PreconditionFailed", "/ernic/m");
    bench.call(&copy("/ernic/none", &target(4))).expect_error(404, "NoSuchKey", "/ernic/m");
    bench.call(&copy("/ernic/s", "/ernic/m?partNumber=1&uploadId=none")).expect_error(404, "NoSuchUpload", "/ernic/m");
    bench.call(&copy("/ernic/s", &target(10_001))).expect_error(400, "InvalidArgument", "/ernic/m");
    let etags = [first, second, third].map(|xml| xml.text_of("ETag"));
    complete(&bench, "m", &upload, &[(1, &etags[0]), (2, &etags[1]), (3, &etags[2])]).expect(200);
    assert!(bench.call(&get("/ernic/m")).body == [&body[..], &body].concat());

    // A copy of several parts is an object of one, with the ETag of its content.
    let flat = bench.call(&copy("/ernic/m", "/ernic/flat")).expect(200).xml();
    assert_eq!(flat.text_of("ETag"), format!("\"{}\"", md5_hex(&[&body[..], &body].concat())));
    assert_eq!(bench.call(&get("/ernic/flat?partNumber=1")).header("x-amz-mp-parts-count"), None);
}

#[test]
fn a_copy_gives_the_thread_back() {
    let bench = plain();
    // Two parts, so that the store cannot share the content.
    let upload = start(&bench, &request("POST", "/ernic/m?uploads"));
    let body = pattern(4 * MIB);
    let etags = [part(&bench, "m", &upload, 1, &body), part(&bench, "m", &upload, 2, &body)];
    complete(&bench, "m", &upload, &[(1, &etags[0]), (2, &etags[1])]).expect(200);
    let mut client = bench.client();
    client.call(&copy("/ernic/m", "/ernic/c")).expect(200);
    assert!(client.turns >= 32, "{} turns for 8 MiB", client.turns);
    // A client that leaves in the middle leaves nothing behind.
    let before = bench.store.usage();
    let mut client = bench.client();
    client.push(&copy("/ernic/m", "/ernic/d").bytes());
    for _ in 0..5 {
        assert!(client.turn());
    }
    assert!(bench.store.usage().bytes > before.bytes);
    drop(client);
    assert_eq!(bench.store.usage(), before);
}

// ---------------------------------------------------------------- attributes, checksums, parts

#[test]
fn attributes_of_objects() {
    let bench = plain();
    bench.call(&put("/ernic/k", "123456789").header("x-amz-checksum-algorithm", "CRC32")).expect(200);
    let ask = |target: &str, names: &str| bench.call(&get(target).header("x-amz-object-attributes", names));
    let all = ask("/ernic/k?attributes", "ETag,Checksum, ObjectParts,StorageClass,ObjectSize");
    assert!(all.expect(200).header("last-modified").is_some());
    let xml = all.xml();
    assert_eq!(xml.name, "GetObjectAttributesResponse");
    assert_eq!((xml.text_of("ETag"), xml.text_of("ObjectSize")), (md5_hex(b"123456789"), "9".into()), "without quotes");
    assert_eq!(xml.text_of("StorageClass"), "STANDARD");
    assert!(xml.all("ObjectParts").is_empty());
    let sum = xml.child("Checksum");
    assert_eq!((sum.text_of("ChecksumCRC32"), sum.text_of("ChecksumType")), ("y/Q5Jg==".into(), "FULL_OBJECT".into()));
    assert_eq!(ask("/ernic/k?attributes", "ObjectSize").xml().children.len(), 1);
    for bad in ["", "Colour", "ETag,Colour"] {
        ask("/ernic/k?attributes", bad).expect_error(400, "InvalidArgument", "/ernic/k");
    }
    assert_eq!(bench.call(&get("/ernic/k?attributes")).status, 400);
    ask("/ernic/none?attributes", "ETag").expect_error(404, "NoSuchKey", "/ernic/none");

    let upload = start(&bench, &request("POST", "/ernic/m?uploads").header("x-amz-checksum-algorithm", "SHA1"));
    let etags: Vec<_> =
        (1..=5).map(|number| part(&bench, "m", &upload, number * 2, &pattern(number as usize))).collect();
    let parts: Vec<_> = (1..).map(|number| number * 2).zip(etags.iter().map(String::as_str)).collect();
    complete(&bench, "m", &upload, &parts).expect(200);
    let page = |marker: &str, max: &str| {
        let request = get("/ernic/m?attributes").header("x-amz-object-attributes", "ObjectParts,Checksum");
        let request = request.header("x-amz-part-number-marker", marker).header("x-amz-max-parts", max);
        bench.call(&request).expect(200).xml()
    };
    let whole = page("0", "1000");
    let (parts, sum) = (whole.child("ObjectParts").clone(), whole.child("Checksum").clone());
    assert_eq!(parts.text_of("PartsCount"), "5");
    assert_eq!(parts.texts("Part", "PartNumber"), ["2", "4", "6", "8", "10"]);
    assert_eq!(parts.texts("Part", "Size"), ["1", "2", "3", "4", "5"]);
    assert_eq!(parts.texts("Part", "ChecksumSHA1").len(), 5);
    assert_eq!((sum.text_of("ChecksumType"), sum.text_of("ChecksumSHA1").ends_with("-5")), ("COMPOSITE".into(), true));
    let some = page("4", "2").child("ObjectParts").clone();
    assert_eq!(some.texts("Part", "PartNumber"), ["6", "8"]);
    assert_eq!((some.text_of("IsTruncated"), some.text_of("NextPartNumberMarker")), ("true".into(), "8".into()));
    let last = page("8", "2").child("ObjectParts").clone();
    assert_eq!((last.text_of("IsTruncated"), last.texts("Part", "PartNumber")), ("false".into(), vec!["10".into()]));
    // A part shows its own checksum.
    let one = bench.call(&get("/ernic/m?partNumber=3").header("x-amz-checksum-mode", "ENABLED"));
    assert_eq!(one.expect(206).header("x-amz-checksum-sha1"), Some(parts.texts("Part", "ChecksumSHA1")[2].as_str()));
    assert_eq!(one.header("x-amz-checksum-type"), Some("COMPOSITE"), "the object's");
}

#[test]
fn an_upload_has_the_checksum_that_it_was_declared_to_have() {
    let bench = plain();
    let create = |algorithm: &str, kind: &str| {
        let mut request = request("POST", "/ernic/m?uploads");
        for (name, value) in [("x-amz-checksum-algorithm", algorithm), ("x-amz-checksum-type", kind)] {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        bench.call(&request)
    };
    for (algorithm, kind) in [
        ("SHA1", "FULL_OBJECT"),
        ("SHA256", "FULL_OBJECT"),
        ("CRC64NVME", "COMPOSITE"),
        ("CRC32", "HALF"),
        ("", "COMPOSITE"),
        ("MD4", ""),
    ] {
        create(algorithm, kind).expect_error(400, "InvalidRequest", "/ernic/m");
    }
    for (algorithm, kind, shown) in [
        ("CRC32", "", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT", "FULL_OBJECT"),
        ("CRC32C", "", "COMPOSITE"),
        ("CRC64NVME", "", "FULL_OBJECT"),
        ("SHA1", "COMPOSITE", "COMPOSITE"),
        ("SHA256", "", "COMPOSITE"),
    ] {
        let answer = create(algorithm, kind);
        assert_eq!(answer.expect(200).header("x-amz-checksum-algorithm"), Some(algorithm));
        assert_eq!(answer.header("x-amz-checksum-type"), Some(shown));
        let upload = answer.xml().text_of("UploadId");
        let target = |number: u32| format!("/ernic/m?partNumber={number}&uploadId={upload}");
        // Another checksum is refused; without one it is computed.
        let other = if algorithm == "CRC32" { "SHA1" } else { "CRC32" };
        let refused = put(&target(1), "a").header("x-amz-sdk-checksum-algorithm", other);
        bench.call(&refused).expect_error(400, "InvalidRequest", "/ernic/m");
        let header = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
        let etags = [1, 2].map(|number| {
            let answer = bench.call(&put(&target(number), "a"));
            assert!(answer.expect(200).header(&header).is_some(), "{algorithm}");
            answer.header("etag").unwrap().to_owned()
        });
        let list = bench.call(&get(&format!("/ernic/m?uploadId={upload}"))).xml();
        assert_eq!((list.text_of("ChecksumAlgorithm"), list.text_of("ChecksumType")), (algorithm.into(), shown.into()));
        assert_eq!(list.child("Initiator").text_of("ID"), "ernic");
        let uploads = bench.call(&get("/ernic?uploads")).xml();
        let entry =
            uploads.all("Upload").into_iter().find(|entry| entry.text_of("UploadId") == upload).unwrap().clone();
        assert_eq!(
            (entry.text_of("ChecksumAlgorithm"), entry.text_of("ChecksumType")),
            (algorithm.into(), shown.into())
        );
        let parts = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part><Part><PartNumber>2</PartNumber>\
             <ETag>{}</ETag></Part></CompleteMultipartUpload>",
            etags[0], etags[1]
        );
        let complete = post(&format!("/ernic/m?uploadId={upload}"), parts);
        let wrong = if shown == "COMPOSITE" { "FULL_OBJECT" } else { "COMPOSITE" };
        bench.call(&complete.clone().header("x-amz-checksum-type", wrong)).expect_error(
            400,
            "InvalidRequest",
            "/ernic/m",
        );
        let xml = bench.call(&complete).expect(200).xml();
        let value = xml.text_of(&format!("Checksum{algorithm}"));
        assert_eq!((xml.text_of("ChecksumType"), value.ends_with("-2")), (shown.into(), shown == "COMPOSITE"));
        if shown == "FULL_OBJECT" {
            let put = bench.call(&put("/ernic/same", "aa").header("x-amz-checksum-algorithm", algorithm));
            assert_eq!(put.header(&header), Some(value.as_str()));
        }
        let listing = bench.call(&get("/ernic?prefix=m")).xml();
        let entry = listing.child("Contents");
        assert_eq!(
            (entry.text_of("ChecksumAlgorithm"), entry.text_of("ChecksumType")),
            (algorithm.into(), shown.into())
        );
    }
}

#[test]
fn a_completion_that_comes_again_is_answered_again() {
    let bench = plain();
    let upload = start(&bench, &request("POST", "/ernic/m?uploads"));
    let etags = [part(&bench, "m", &upload, 1, b"one"), part(&bench, "m", &upload, 2, b"two")];
    let both = [(1, etags[0].as_str()), (2, &etags[1])];
    let first = complete(&bench, "m", &upload, &both);
    bench.call(&put("/ernic/m", "replaced since")).expect(200);
    let again = complete(&bench, "m", &upload, &both);
    assert_eq!((first.status, &first.body), (again.status, &again.body));
    complete(&bench, "m", &upload, &both[..1]).expect_error(404, "NoSuchUpload", "/ernic/m");
    complete(&bench, "n", &upload, &both).expect_error(404, "NoSuchUpload", "/ernic/n");
    assert_eq!(bench.call(&get("/ernic/m")).text(), "replaced since");
}

#[test]
fn all_parts_but_the_last_have_a_least_size() {
    let bench = bench_of(256 * MIB as u64, 100, S3Config::default());
    let upload = start(&bench, &request("POST", "/ernic/m?uploads"));
    let big = vec![7; 5 * MIB];
    let bodies = [&big[1..], &big, b"end"];
    let etags = bodies.iter().zip(1..).map(|(body, number)| part(&bench, "m", &upload, number, body));
    let etags: Vec<_> = etags.collect();
    let complete = |parts: &[u32]| {
        let parts: Vec<_> = parts.iter().map(|number| (*number, etags[*number as usize - 1].as_str())).collect();
        complete(&bench, "m", &upload, &parts)
    };
    complete(&[1, 2, 3]).expect_error(400, "EntityTooSmall", "/ernic/m");
    complete(&[1, 3]).expect_error(400, "EntityTooSmall", "/ernic/m");
    complete(&[2, 3]).expect(200);
    assert_eq!(bench.call(&request("HEAD", "/ernic/m")).header("content-length"), Some("5242883"));
}

#[test]
fn ten_thousand_parts_are_completed_at_once() {
    let bench = bench_of(MIB as u64, 20, S3Config { min_part: 0, ..S3Config::default() });
    let create = request("POST", "/ernic/m?uploads").header("x-amz-checksum-algorithm", "SHA256");
    let upload = start(&bench, &create);
    let mut client = bench.client();
    let (mut parts, mut whole, mut digests) = (String::new(), Vec::new(), Vec::new());
    for number in 1..=10_000_u32 {
        let body = number.to_le_bytes();
        let answer = client.call(&put(&format!("/ernic/m?partNumber={number}&uploadId={upload}"), body));
        let etag = answer.expect(200).header("etag").unwrap();
        let sum = answer.header("x-amz-checksum-sha256").unwrap();
        parts.push_str(&format!(
            "<Part><ETag>{etag}</ETag><ChecksumSHA256>{sum}</ChecksumSHA256><PartNumber>{number}</PartNumber></Part>"
        ));
        whole.extend(body);
        digests.extend(md5::Md5::digest(body));
    }
    let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let before = client.turns;
    let xml = client.call(&post(&format!("/ernic/m?uploadId={upload}"), document)).expect(200).xml();
    assert!(client.turns - before < 100, "{} turns", client.turns - before);
    assert_eq!(xml.text_of("ETag"), format!("\"{}-10000\"", md5_hex(&digests)));
    assert!(xml.text_of("ChecksumSHA256").ends_with("-10000"));
    assert!(client.call(&get("/ernic/m")).body == whole);
    let last = client.call(&get("/ernic/m?partNumber=10000"));
    assert_eq!((last.status, last.body.as_slice()), (206, &10_000_u32.to_le_bytes()[..]));
}

// ---------------------------------------------------------------- input that means harm

#[test]
fn documents_that_mean_harm() {
    let bench = plain();
    bench.call(&put("/ernic/k", "x")).expect(200);
    let bomb = "<!DOCTYPE lolz [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\"><!ENTITY c \"&b;&b;&b;&b;\">]>";
    let outside = "<!DOCTYPE x [<!ENTITY f SYSTEM \"file:///etc/passwd\">]>";
    for (target, method, root) in [
        ("/ernic?delete", "POST", "Delete"),
        ("/ernic?tagging", "PUT", "Tagging"),
        ("/ernic/k?tagging", "PUT", "Tagging"),
        ("/ernic?versioning", "PUT", "VersioningConfiguration"),
        ("/ernic?acl", "PUT", "AccessControlPolicy"),
        ("/new-bucket", "PUT", "CreateBucketConfiguration"),
        ("/ernic/k?uploadId=u", "POST", "CompleteMultipartUpload"),
    ] {
        let resource = target.split('?').next().unwrap();
        let send = |document: Vec<u8>| bench.call(&request(method, target).body(document));
        let inner = match root {
            "Delete" => "<Object><Key>&c;</Key></Object>",
            "Tagging" => "<TagSet><Tag><Key>&c;</Key><Value>v</Value></Tag></TagSet>",
            "VersioningConfiguration" => "<Status>&c;</Status>",
            "AccessControlPolicy" => "<Owner><ID>&c;</ID></Owner>",
            "CreateBucketConfiguration" => "<LocationConstraint>&c;</LocationConstraint>",
            _ => "<Part><ETag>&c;</ETag><PartNumber>1</PartNumber></Part>",
        };
        for document in [
            format!("{bomb}<{root}>{inner}</{root}>").into_bytes(),
            format!("{outside}<{root}>{}</{root}>", inner.replace("&c;", "&f;")).into_bytes(),
            format!("<{root}>{}", "<x>".repeat(200_000)).into_bytes(),
            format!("<{root}>{inner}").into_bytes(),
            format!("<{root}><").into_bytes(),
            b"\xff\xfe<\x00D".to_vec(),
            b"not XML at all".to_vec(),
            vec![b'<'; 100_000],
            "<other/>".into(),
        ] {
            let start = String::from_utf8_lossy(&document[..document.len().min(80)]).into_owned();
            let answer = send(document);
            assert_eq!(answer.status, 400, "{target} {start} {}", answer.text());
            assert_eq!(answer.xml().text_of("Code"), "MalformedXML", "{target} {start}");
        }
        assert_eq!(bench.call(&get("/")).xml().child("Buckets").texts("Bucket", "Name"), ["ernic"]);
        // Elements nested deeply in what is skipped come to nothing.
        let deep = format!("<{root}><x>{}{}</x></{root}>", "<y>".repeat(100_000), "</y>".repeat(100_000));
        assert!(send(deep.into_bytes()).status < 500, "{target}");
        bench.call(&delete("/new-bucket"));
        // Ten megabytes are refused by their length, or where they exceed what a document may have.
        let mut huge = request(method, target);
        huge.length = Some(10 * MIB);
        let mut client = bench.client();
        client.send(&huge.head());
        client.answer(method).expect_error(400, "MaxMessageLengthExceeded", resource);
        assert!(client.closed());
        let chunked = request(method, target).chunked(&vec![b'<'; 10 * MIB], MIB);
        let mut client = bench.client();
        client.send(&chunked.bytes());
        client.answer(method).expect_error(400, "MaxMessageLengthExceeded", resource);
    }
    assert_eq!(bench.call(&get("/ernic/k")).text(), "x");
    bench.call(&get("/ernic?tagging")).expect(404);
}

#[test]
fn keys_and_lengths_that_mean_harm() {
    let bench = plain();
    // Dots are characters, and nothing else.
    for key in [
        "..",
        ".",
        "../ernic/x",
        "a/../../b",
        "./a",
        "a//b",
        "/",
        "//",
        "%2e%2e/x",
        "-",
        "a\\b",
        "*",
        "\u{1}\u{1f}",
        "\u{7f}",
        "\u{feff}x",
        "\u{10ffff}",
    ] {
        let target: String = key.bytes().map(|b| format!("%{b:02x}")).collect();
        bench.call(&put(&format!("/ernic/{target}"), key)).expect(200);
        assert_eq!(bench.call(&get(&format!("/ernic/{target}"))).expect(200).text(), key);
        let listing = bench.call(&get(&format!("/ernic?prefix={target}&encoding-type=url"))).expect(200).xml();
        assert_eq!(listing.all("Contents").len(), 1, "{key:?}");
        bench.call(&delete(&format!("/ernic/{target}"))).expect(204);
    }
    let usage = bench.store.usage();
    assert_eq!((usage.objects, usage.bytes), (0, 0));
    let (longest, long) = ("k".repeat(1024), "k".repeat(1025));
    bench.call(&put(&format!("/ernic/{longest}"), "x")).expect(200);
    for request in
        [put(&format!("/ernic/{long}"), "x"), get(&format!("/ernic/{long}")), delete(&format!("/ernic/{long}"))]
    {
        let resource = request.target.clone();
        bench.call(&request).expect_error(400, "KeyTooLongError", &resource);
    }
    let multibyte = "%C3%A4".repeat(512);
    bench.call(&put(&format!("/ernic/{multibyte}"), "x")).expect(200);
    bench.call(&put(&format!("/ernic/{multibyte}a"), "x")).expect_error(
        400,
        "KeyTooLongError",
        &format!("/ernic/{multibyte}a"),
    );
    for path in ["/ernic/%ff%fe", "/ernic/%c3", "/%ff/k", "/ernic/a%ed%a0%80"] {
        bench.call(&put(path, "x")).expect_error(400, "InvalidURI", path);
    }
    // Five gigabytes are refused by their length, before a byte of them.
    for target in ["/ernic/big", "/ernic/big?partNumber=1&uploadId=u", "/ernic?delete", "/ernic/k?tagging"] {
        let method = if target.ends_with("delete") { "POST" } else { "PUT" };
        let mut big = request(method, target).header("expect", "100-continue");
        big.length = Some(5 << 30);
        let mut client = bench.client();
        client.send(&big.head());
        let answer = client.answer(method);
        assert_eq!(answer.status, 400, "{target}");
        assert!(["EntityTooLarge", "MaxMessageLengthExceeded"].contains(&answer.xml().text_of("Code").as_str()));
        assert!(client.closed());
        let coded = request(method, target)
            .header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
            .header("x-amz-decoded-content-length", (5_u64 << 30).to_string())
            .body("5\r\nhello\r\n");
        assert_eq!(bench.call(&coded).status, 400, "{target}");
    }
    assert_eq!(bench.store.usage().objects, 2);
}

// ---------------------------------------------------------------- the table in the docs

/// Every operation of the S3 API reference, and a request that asks for it.
fn operations() -> Vec<(&'static str, Request)> {
    let versioning = "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";
    let mut all = vec![
        ("ListBuckets", get("/")),
        ("ListDirectoryBuckets", get("/?x-id=ListDirectoryBuckets")),
        ("CreateBucket", put("/created", "")),
        ("HeadBucket", request("HEAD", "/ernic")),
        ("DeleteBucket", delete("/empty")),
        ("CreateSession", get("/ernic?session")),
        ("ListObjects", get("/ernic")),
        ("ListObjectsV2", get("/ernic?list-type=2")),
        ("ListObjectVersions", get("/ernic?versions")),
        ("ListMultipartUploads", get("/ernic?uploads")),
        ("DeleteObjects", post("/ernic?delete", "<Delete><Object><Key>none</Key></Object></Delete>")),
        ("PostObject", post("/ernic", "").header("content-type", "multipart/form-data; boundary=x")),
        ("WriteGetObjectResponse", post("/WriteGetObjectResponse", "").header("x-amz-request-route", "r")),
        ("GetBucketLocation", get("/ernic?location")),
        ("GetBucketVersioning", get("/ernic?versioning")),
        ("PutBucketVersioning", put("/ernic?versioning", versioning)),
        ("GetBucketTagging", get("/tagged?tagging")),
        ("PutBucketTagging", put("/ernic?tagging", tagging(&[("a", "b")]))),
        ("DeleteBucketTagging", delete("/ernic?tagging")),
        ("PutBucketAcl", put("/ernic?acl", "").header("x-amz-acl", "private")),
        ("PutObject", put("/ernic/put", "x")),
        ("GetObject", get("/ernic/k")),
        ("HeadObject", request("HEAD", "/ernic/k")),
        ("DeleteObject", delete("/ernic/none")),
        ("CopyObject", copy("/ernic/k", "/ernic/copy")),
        ("RenameObject", put("/ernic/renamed?renameObject", "").header("x-amz-rename-source", "/ernic/k")),
        ("GetObjectAttributes", get("/ernic/k?attributes").header("x-amz-object-attributes", "ETag")),
        ("GetObjectTagging", get("/ernic/k?tagging")),
        ("PutObjectTagging", put("/ernic/k?tagging", tagging(&[("a", "b")]))),
        ("DeleteObjectTagging", delete("/ernic/k?tagging")),
        ("GetObjectAcl", get("/ernic/k?acl")),
        ("PutObjectAcl", put("/ernic/k?acl", "").header("x-amz-acl", "private")),
        ("GetObjectTorrent", get("/ernic/k?torrent")),
        ("GetObjectRetention", get("/ernic/k?retention")),
        ("PutObjectRetention", put("/ernic/k?retention", "<Retention/>")),
        ("GetObjectLegalHold", get("/ernic/k?legal-hold")),
        ("PutObjectLegalHold", put("/ernic/k?legal-hold", "<LegalHold/>")),
        ("RestoreObject", post("/ernic/k?restore", "<RestoreRequest/>")),
        ("SelectObjectContent", post("/ernic/k?select&select-type=2", "<SelectObjectContentRequest/>")),
        ("UpdateObjectEncryption", put("/ernic/k?encryption", "<ObjectEncryption/>")),
        ("CreateMultipartUpload", request("POST", "/ernic/m?uploads")),
        ("UploadPart", put("/ernic/m?partNumber=1&uploadId=UPLOAD", "x")),
        ("UploadPartCopy", copy("/ernic/k", "/ernic/m?partNumber=2&uploadId=UPLOAD")),
        ("ListParts", get("/ernic/m?uploadId=UPLOAD")),
        (
            "CompleteMultipartUpload",
            post(
                "/ernic/m?uploadId=UPLOAD",
                format!(
                    "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
                    md5_hex(b"x")
                ),
            ),
        ),
        ("AbortMultipartUpload", delete("/ernic/other?uploadId=OTHER")),
        ("ListBucketAnalyticsConfigurations", get("/ernic?analytics")),
        ("ListBucketIntelligentTieringConfigurations", get("/ernic?intelligent-tiering")),
        ("ListBucketInventoryConfigurations", get("/ernic?inventory")),
        ("ListBucketMetricsConfigurations", get("/ernic?metrics")),
        ("CreateBucketMetadataConfiguration", post("/ernic?metadataConfiguration", "<MetadataConfiguration/>")),
        ("GetBucketMetadataConfiguration", get("/ernic?metadataConfiguration")),
        ("DeleteBucketMetadataConfiguration", delete("/ernic?metadataConfiguration")),
        ("CreateBucketMetadataTableConfiguration", post("/ernic?metadataTable", "<MetadataTableConfiguration/>")),
        ("GetBucketMetadataTableConfiguration", get("/ernic?metadataTable")),
        ("DeleteBucketMetadataTableConfiguration", delete("/ernic?metadataTable")),
        ("UpdateBucketMetadataInventoryTableConfiguration", put("/ernic?metadataInventoryTable", "<x/>")),
        ("UpdateBucketMetadataJournalTableConfiguration", put("/ernic?metadataJournalTable", "<x/>")),
        ("GetBucketAbac", get("/ernic?abac")),
        ("PutBucketAbac", put("/ernic?abac", "<AbacStatus/>")),
    ];
    // What has a get, a put and a delete alike; some lack one.
    for (get_name, put_name, delete_name, sub) in [
        ("GetBucketAccelerateConfiguration", "PutBucketAccelerateConfiguration", "", "accelerate"),
        ("GetBucketAcl", "", "", "acl"),
        (
            "GetBucketAnalyticsConfiguration",
            "PutBucketAnalyticsConfiguration",
            "DeleteBucketAnalyticsConfiguration",
            "analytics&id=1",
        ),
        ("GetBucketCors", "PutBucketCors", "DeleteBucketCors", "cors"),
        ("GetBucketEncryption", "PutBucketEncryption", "DeleteBucketEncryption", "encryption"),
        (
            "GetBucketIntelligentTieringConfiguration",
            "PutBucketIntelligentTieringConfiguration",
            "DeleteBucketIntelligentTieringConfiguration",
            "intelligent-tiering&id=1",
        ),
        (
            "GetBucketInventoryConfiguration",
            "PutBucketInventoryConfiguration",
            "DeleteBucketInventoryConfiguration",
            "inventory&id=1",
        ),
        ("GetBucketLifecycleConfiguration", "PutBucketLifecycleConfiguration", "DeleteBucketLifecycle", "lifecycle"),
        ("GetBucketLogging", "PutBucketLogging", "", "logging"),
        (
            "GetBucketMetricsConfiguration",
            "PutBucketMetricsConfiguration",
            "DeleteBucketMetricsConfiguration",
            "metrics&id=1",
        ),
        ("GetBucketNotificationConfiguration", "PutBucketNotificationConfiguration", "", "notification"),
        (
            "GetBucketOwnershipControls",
            "PutBucketOwnershipControls",
            "DeleteBucketOwnershipControls",
            "ownershipControls",
        ),
        ("GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy", "policy"),
        ("GetBucketPolicyStatus", "", "", "policyStatus"),
        ("GetBucketReplication", "PutBucketReplication", "DeleteBucketReplication", "replication"),
        ("GetBucketRequestPayment", "PutBucketRequestPayment", "", "requestPayment"),
        ("GetBucketWebsite", "PutBucketWebsite", "DeleteBucketWebsite", "website"),
        ("GetObjectLockConfiguration", "PutObjectLockConfiguration", "", "object-lock"),
        ("GetPublicAccessBlock", "PutPublicAccessBlock", "DeletePublicAccessBlock", "publicAccessBlock"),
    ] {
        let target = format!("/ernic?{sub}");
        for (name, request) in
            [(get_name, get(&target)), (put_name, put(&target, "<x/>")), (delete_name, delete(&target))]
        {
            if !name.is_empty() {
                all.push((name, request));
            }
        }
    }
    all
}

/// The rows of the table in the docs: operation, what becomes of it, notes.
fn table() -> Vec<[String; 3]> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/reference/operations.md");
    let page = std::fs::read_to_string(page).expect("the page of operations");
    let row = |line: &str| {
        let mut cells =
            line.strip_prefix("| `")?.split(" | ").map(|cell| cell.trim_matches(['|', ' ', '`']).to_owned());
        Some([
            cells.next()?,
            cells.next()?,
            line.rsplit_once(" | ").map(|(_, notes)| notes.trim_end_matches([' ', '|']).to_owned())?,
        ])
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_table_of_operations_is_true() {
    let bench = plain();
    for bucket in ["empty", "tagged"] {
        bench.call(&put(&format!("/{bucket}"), "")).expect(200);
    }
    bench.call(&put("/tagged?tagging", tagging(&[("a", "b")]))).expect(200);
    bench.call(&put("/ernic/k", "x")).expect(200);
    let uploads = ["m", "other"].map(|key| start(&bench, &request("POST", &format!("/ernic/{key}?uploads"))));
    let rows = table();
    let operations = operations();
    let mut in_table: Vec<_> = rows.iter().map(|[name, ..]| name.as_str()).collect();
    let mut in_code: Vec<_> = operations.iter().map(|(name, _)| *name).collect();
    in_table.sort_unstable();
    in_code.sort_unstable();
    assert_eq!(in_table, in_code);
    for (name, mut request) in operations {
        request.target = request.target.replace("UPLOAD", &uploads[0]).replace("OTHER", &uploads[1]);
        let [_, class, notes] = rows.iter().find(|[row, ..]| row == name).unwrap();
        let answer = bench.call(&request);
        match class.as_str() {
            "supported" => assert!((200..300).contains(&answer.status), "{name}: {}", answer.text()),
            "not implemented" => {
                assert_eq!(answer.status, 501, "{name}");
                assert_eq!(answer.xml().text_of("Code"), "NotImplemented", "{name}");
            }
            "answered" => {
                // The notes begin with the error's code, or with the name of the document.
                let said = notes.split('`').nth(1).unwrap_or_default();
                match answer.status {
                    200 if answer.body.is_empty() => assert_eq!(said, "200", "{name}"),
                    200 => assert_eq!(answer.xml().name, said, "{name}"),
                    404 => assert_eq!(answer.xml().text_of("Code"), said, "{name}"),
                    other => panic!("{name}: {other} {}", answer.text()),
                }
                // It is about a bucket that is there.
                if request.method == "GET" && !request.target.contains("/k?") {
                    let nowhere = get(&request.target.replace("/ernic", "/nobucket"));
                    bench.call(&nowhere).expect_error(404, "NoSuchBucket", "/nobucket");
                }
            }
            other => panic!("{name} is {other}"),
        }
    }
}

// ---------------------------------------------------------------- a store that can do less

/// A memory store that only does what every store must.
struct Simple(MemoryStore);

#[async_trait]
impl Store for Simple {
    async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        self.0.list_buckets().await
    }
    async fn head_bucket(&self, bucket: &str) -> Result<BucketInfo> {
        self.0.head_bucket(bucket).await
    }
    async fn create_bucket(&self, bucket: &str) -> Result<bool> {
        Store::create_bucket(&self.0, bucket).await
    }
    async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        self.0.delete_bucket(bucket).await
    }
    async fn head(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Arc<ObjectInfo>> {
        self.0.head(bucket, key, version).await
    }
    async fn get(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object> {
        self.0.get(bucket, key, version).await
    }
    async fn put(&self, bucket: &str, key: &str, options: PutOptions) -> Result<Box<dyn ObjectWriter>> {
        self.0.put(bucket, key, options).await
    }
    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>, condition: Condition) -> Result<Deleted> {
        self.0.delete(bucket, key, version, condition).await
    }
    async fn list(&self, bucket: &str, query: &ListQuery) -> Result<ListPage> {
        self.0.list(bucket, query).await
    }
    async fn create_upload(&self, bucket: &str, key: &str, options: UploadOptions) -> Result<String> {
        self.0.create_upload(bucket, key, options).await
    }
    async fn head_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<UploadInfo> {
        self.0.head_upload(bucket, key, upload).await
    }
    async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u16,
        size: Option<u64>,
    ) -> Result<Box<dyn ObjectWriter>> {
        self.0.put_part(bucket, key, upload, number, size).await
    }
    async fn list_parts(&self, bucket: &str, key: &str, upload: &str) -> Result<Vec<PartInfo>> {
        self.0.list_parts(bucket, key, upload).await
    }
    async fn list_uploads(&self, bucket: &str) -> Result<Vec<UploadInfo>> {
        self.0.list_uploads(bucket).await
    }
    async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[PartName],
        commit: Commit,
    ) -> Result<Arc<ObjectInfo>> {
        self.0.complete_upload(bucket, key, upload, parts, commit).await
    }
    async fn abort_upload(&self, bucket: &str, key: &str, upload: &str) -> Result<()> {
        self.0.abort_upload(bucket, key, upload).await
    }
    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

#[test]
fn a_store_without_versions_tags_and_copies() {
    let store = MemoryStore::new(MemoryConfig { capacity: 64 * MIB as u64, objects: 100 });
    let service = S3Service::new(Arc::new(Simple(store)), S3Config::default());
    let mut client = Client::new(&service);
    client.call(&put("/ernic", "")).expect(200);
    for key in ["a", "d/1", "d/2", "e"] {
        client.call(&put(&format!("/ernic/{key}"), key)).expect(200);
    }
    // Every object is the one version `null`, in pages too.
    let (mut query, mut seen) = ("/ernic?versions&max-keys=1&delimiter=/".to_owned(), Vec::new());
    for _ in 0..3 {
        let page = client.call(&get(&query)).expect(200).xml();
        seen.extend(page.texts("Version", "Key"));
        seen.extend(page.texts("CommonPrefixes", "Prefix"));
        assert!(page.texts("Version", "VersionId").iter().all(|version| version == "null"));
        if page.text_of("IsTruncated") == "true" {
            query = format!("/ernic?versions&max-keys=1&delimiter=/&key-marker={}", page.text_of("NextKeyMarker"));
            if let Some(version) = page.all("NextVersionIdMarker").first() {
                query.push_str(&format!("&version-id-marker={}", version.text));
            }
        }
    }
    assert_eq!(seen, ["a", "d/", "e"]);
    // A copy streams where the store cannot do it.
    let body = pattern(2 * MIB);
    client.call(&put("/ernic/big", body.clone())).expect(200);
    let before = client.turns;
    client.call(&copy("/ernic/big", "/ernic/copy")).expect(200);
    assert!(client.turns - before >= 8);
    assert!(client.call(&get("/ernic/copy")).body == body);
    // What it has not is said.
    for request in [
        put("/ernic?versioning", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"),
        put("/ernic?tagging", tagging(&[("a", "b")])),
        get("/ernic?tagging"),
        put("/ernic/a?tagging", tagging(&[("a", "b")])),
        delete("/ernic/a?tagging"),
    ] {
        let resource = request.target.split('?').next().unwrap().to_owned();
        client.call(&request).expect_error(501, "NotImplemented", &resource);
    }
}
