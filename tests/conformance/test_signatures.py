"""Signatures: in headers, in URLs, wrong, old, missing; bodies that are not what was signed."""

import datetime
import http.client
import time
from unittest import mock
from urllib.parse import urlsplit

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from support import ACCESS, ENDPOINT, S3, SECRET, Case, client, request


def fetch(url, method="GET", data=None, headers=None):
    """Status, body and headers (by lower-case names) of a request as it is."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, data, headers or {})
        response = connection.getresponse()
        return response.status, response.read(), {n.lower(): v for n, v in response.getheaders()}
    finally:
        connection.close()


def code(body):
    return body.split(b"<Code>")[1].split(b"</Code>")[0].decode() if b"<Code>" in body else None


class Headers(Case):
    def test_none(self):
        self.put("k", b"x")
        for method, path, body in [
            ("GET", self.path("k"), b""), ("PUT", self.path("k"), b"new"), ("DELETE", self.path("k"), b""),
            ("GET", self.path(), b""), ("GET", "/", b""), ("PUT", self.path() + "-new", b""),
        ]:
            with self.subTest(f"{method} {path}"):
                self.answered(request(method, path, body, signed=False), 403, "AccessDenied")
        self.assertEqual(self.read("k"), b"x")

    def test_empty(self):
        for method, path in [("PUT", self.path("k")), ("PUT", self.path() + "-new"), ("GET", "/")]:
            answer = request(method, path, headers={"Authorization": ""}, signed=False)
            self.assertIn((answer.status, answer.code), [(403, "AccessDenied"), (400, "InvalidArgument"), (400, "AuthorizationHeaderMalformed")])

    def test_a_wrong_secret(self):
        self.refused(403, "SignatureDoesNotMatch", client(ACCESS, "wrong" + SECRET).list_buckets)
        self.refused(403, "SignatureDoesNotMatch", client(ACCESS, "x").put_object, Bucket=self.bucket, Key="k", Body=b"x")

    def test_an_unknown_key(self):
        self.refused(403, "InvalidAccessKeyId", client("NOBODYSKEY", SECRET).list_buckets)

    def test_changed_after_signing(self):
        for name, value in [("X-Amz-Date", None), ("x-amz-meta-a", "c"), ("Host", "other.example")]:
            with self.subTest(name):
                def change(fields):
                    if name == "X-Amz-Date":
                        fields[name] = fields[name][:-3] + ("00Z" if not fields[name].endswith("00Z") else "01Z")
                    else:
                        fields[name] = value

                answer = request("PUT", self.path("k"), b"x", {"x-amz-meta-a": "b"}, change=change)
                self.answered(answer, 403, "SignatureDoesNotMatch")

    def test_another_path_than_signed(self):
        headers = {}
        request("GET", self.path("one"), change=lambda f: headers.update(f))
        self.answered(request("GET", self.path("two"), headers=headers, signed=False), 403, "SignatureDoesNotMatch")

    def skewed(self, seconds):
        """A request signed at another time."""
        then = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        clock = mock.MagicMock(wraps=datetime)
        clock.datetime = mock.MagicMock(wraps=datetime.datetime)
        clock.datetime.utcnow.return_value = clock.datetime.now.return_value = then
        with mock.patch("botocore.auth.datetime", clock):
            return request("GET", self.path())

    def test_an_old_one(self):
        self.answered(self.skewed(-3600), 403, "RequestTimeTooSkewed")

    def test_one_of_tomorrow(self):
        self.answered(self.skewed(86400), 403, "RequestTimeTooSkewed")

    def test_a_little_skew_is_allowed(self):
        self.answered(self.skewed(-300), 200)
        self.answered(self.skewed(300), 200)

    def test_malformed(self):
        for text in ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=x", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=00"):
            with self.subTest(text):
                answer = request("GET", self.path(), headers={"Authorization": text, "X-Amz-Date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())}, signed=False)
                self.answered(answer, 400, {"AuthorizationHeaderMalformed", "InvalidArgument"})

    def test_the_second_version(self):
        answer = request("GET", self.path(), headers={"Authorization": f"AWS {ACCESS}:frJIUN8DYpKDtOLCwo//yllqDzg="}, signed=False)
        self.answered(answer, 400, "InvalidRequest")

    def test_a_body_that_was_not_signed(self):
        self.put("k", b"old")
        answer = request("PUT", self.path("k"), b"new", payload="0" * 64)
        self.answered(answer, 400, "XAmzContentSHA256Mismatch")
        self.assertEqual(self.read("k"), b"old")

    def test_a_body_hash_that_is_none(self):
        answer = request("PUT", self.path("k"), b"new", payload="bogus")
        self.answered(answer, 400, "InvalidArgument")

    def test_an_unsigned_body(self):
        self.answered(request("PUT", self.path("k"), b"new", payload="UNSIGNED-PAYLOAD"), 200)
        self.assertEqual(self.read("k"), b"new")

    def test_date_in_place_of_amz_date(self):
        from email.utils import formatdate

        answer = request("PUT", self.path("k"), b"x", {"Date": formatdate(usegmt=True)})
        self.answered(answer, 200)
        self.assertEqual(self.read("k"), b"x")

    def test_names_of_all_kinds(self):
        for key in ("a b/c", "!'()*", "{x}", "a+b", "%41", "~-._", "\u00fc", "a//b", "a/../b", "x=y&z", ";:@,$"):
            with self.subTest(key):
                self.put(key, key.encode())
                self.assertEqual(self.read(key), key.encode())
                self.assertEqual([o["Key"] for o in S3.list_objects_v2(Bucket=self.bucket, Prefix=key)["Contents"]], [key])


class Urls(Case):
    def url(self, operation="get_object", seconds=600, s3=S3, **params):
        params = {"Bucket": self.bucket, "Key": "k", **params}
        return s3.generate_presigned_url(operation, Params=params, ExpiresIn=seconds)

    def v4(self):
        return client(signature_version="s3v4")

    def denied(self, url, status, codes, **arguments):
        got, body, _ = fetch(url, **arguments)
        self.assertEqual(got, status, body)
        self.assertIn(code(body), {codes} if isinstance(codes, str) else codes)

    def test_get(self):
        self.put("k", b"content")
        status, body, _ = fetch(self.url(s3=self.v4()))
        self.assertEqual((status, body), (200, b"content"))

    def test_put(self):
        status, _, _ = fetch(self.url("put_object", s3=self.v4()), "PUT", b"content")
        self.assertEqual((status, self.read("k")), (200, b"content"))

    def test_head_and_delete(self):
        self.put("k", b"content")
        status, body, headers = fetch(self.url("head_object", s3=self.v4()), "HEAD")
        self.assertEqual((status, body, headers["content-length"]), (200, b"", "7"))
        self.assertEqual(fetch(self.url("delete_object", s3=self.v4()), "DELETE")[0], 204)

    def test_names_of_all_kinds(self):
        for key in ("a b", "a+b", "!'()*", "\u00fc/x", "100%"):
            with self.subTest(key):
                self.put(key, key.encode())
                self.assertEqual(fetch(self.url(s3=self.v4(), Key=key))[:2], (200, key.encode()))

    def test_response_headers(self):
        self.put("k", b"x")
        _, _, headers = fetch(self.url(s3=self.v4(), ResponseContentType="text/x-y"))
        self.assertEqual(headers["content-type"], "text/x-y")

    def test_no_such_object_or_bucket(self):
        self.denied(self.url(s3=self.v4()), 404, "NoSuchKey")
        url = self.url(s3=self.v4())
        S3.delete_bucket(Bucket=self.bucket)
        self.denied(url, 404, "NoSuchBucket")

    def test_for_another_method(self):
        self.put("k", b"x")
        self.denied(self.url(s3=self.v4()), 403, "SignatureDoesNotMatch", method="DELETE")
        self.assertEqual(self.read("k"), b"x")

    def test_changed(self):
        self.put("k", b"x")
        url = self.url(s3=self.v4())
        self.denied(url.replace("X-Amz-Expires=600", "X-Amz-Expires=601"), 403, "SignatureDoesNotMatch")
        self.denied(url + "&versionId=null", 403, "SignatureDoesNotMatch")
        self.denied(url[:-1] + ("0" if url[-1] != "0" else "1"), 403, "SignatureDoesNotMatch")

    def test_of_nobody(self):
        self.denied(self.url(s3=client("NOBODYSKEY", "x", signature_version="s3v4")), 403, "InvalidAccessKeyId")
        self.denied(self.url(s3=client(ACCESS, "x", signature_version="s3v4")), 403, "SignatureDoesNotMatch")

    def test_expired(self):
        self.put("k", b"x")
        url = self.url(s3=self.v4(), seconds=1)
        put = self.url("put_object", s3=self.v4(), seconds=1)
        # By the server's clock; both end within this time.
        time.sleep(3)
        status, body, _ = fetch(url)
        self.assertEqual((status, code(body)), (403, "AccessDenied"))
        self.assertIn(b"Request has expired", body)
        self.denied(put, 403, "AccessDenied", method="PUT", data=b"new")
        self.assertEqual(self.read("k"), b"x")

    def test_a_week_and_no_longer(self):
        self.put("k", b"x")
        self.assertEqual(fetch(self.url(s3=self.v4(), seconds=604800))[0], 200)
        self.denied(self.url(s3=self.v4(), seconds=604801), 400, "AuthorizationQueryParametersError")

    def by_hand(self, seconds):
        """A URL for a time that boto3 itself refuses."""
        url = AWSRequest(method="GET", url=f"{ENDPOINT}{self.path('k')}")
        S3SigV4QueryAuth(Credentials(ACCESS, SECRET), "s3", "us-east-1", expires=seconds).add_auth(url)
        return url.url

    def test_by_hand(self):
        self.put("k", b"x")
        self.assertEqual(fetch(self.by_hand(60))[:2], (200, b"x"))

    def test_no_time_at_all(self):
        self.put("k", b"x")
        status, body, _ = fetch(self.by_hand(0))
        self.assertIn((status, code(body)), [(403, "AccessDenied"), (400, "AuthorizationQueryParametersError")])

    def test_a_negative_time(self):
        self.denied(self.by_hand(-7), 400, "AuthorizationQueryParametersError")

    def test_a_time_that_is_no_number(self):
        self.denied(self.by_hand("soon"), 400, "AuthorizationQueryParametersError")

    def test_parameters_missing(self):
        url = self.url(s3=self.v4())
        for name in ("X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Credential"):
            with self.subTest(name):
                query = "&".join(p for p in urlsplit(url).query.split("&") if not p.startswith(name))
                self.denied(url.split("?")[0] + "?" + query, 400, "AuthorizationQueryParametersError")

    def test_a_part_of_an_upload(self):
        upload = S3.create_multipart_upload(Bucket=self.bucket, Key="k")["UploadId"]
        url = self.url("upload_part", s3=self.v4(), UploadId=upload, PartNumber=1)
        status, _, headers = fetch(url, "PUT", b"part")
        self.assertEqual(status, 200)
        tag = headers["etag"]
        S3.complete_multipart_upload(
            Bucket=self.bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]}
        )
        self.assertEqual(self.read("k"), b"part")
