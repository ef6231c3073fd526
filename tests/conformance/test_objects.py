"""Objects: put, get, head, delete; metadata and headers; ranges; conditions."""

import datetime

from support import KIB, MIB, S3, Case, b64, client, etag, request

import hashlib


class Objects(Case):
    def test_written_read_overwritten_deleted(self):
        self.put("k", b"one")
        self.assertEqual(self.read("k"), b"one")
        self.put("k", b"two, longer")
        self.assertEqual(self.read("k"), b"two, longer")
        self.assertEqual(S3.delete_object(Bucket=self.bucket, Key="k")["ResponseMetadata"]["HTTPStatusCode"], 204)
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_etag_is_the_md5(self):
        self.assertEqual(self.put("k", b"bar")["ETag"], '"37b51d194a7513e45b56f6524f2d51f2"')
        self.assertEqual(self.get("k")["ETag"], etag(b"bar"))

    def test_no_such_key(self):
        answer = self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="none/of these")
        self.assertEqual(answer["Error"].get("Key", "none/of these"), "none/of these")
        self.refused(404, "404", S3.head_object, Bucket=self.bucket, Key="none")

    def test_zero_bytes(self):
        self.put("k", b"")
        head = self.head("k")
        self.assertEqual((head["ContentLength"], head["ETag"]), (0, etag(b"")))
        self.assertEqual(self.read("k"), b"")

    def test_last_modified_is_now(self):
        self.put("k", b"x")
        now = datetime.datetime.now(datetime.timezone.utc)
        self.assertLess(abs((self.head("k")["LastModified"] - now).total_seconds()), 60)

    def test_content_type_by_default(self):
        self.put("k", b"x")
        self.assertEqual(self.head("k")["ContentType"], "binary/octet-stream")

    def test_headers_come_back(self):
        headers = {
            "ContentType": "text/plain; charset=utf-8",
            "CacheControl": "public, max-age=14400",
            "ContentDisposition": 'attachment; filename="x.txt"',
            "ContentEncoding": "gzip",
            "ContentLanguage": "de-DE",
        }
        self.put("k", b"x", **headers)
        for answer in (self.get("k"), self.head("k")):
            self.assertEqual({name: answer[name] for name in headers}, headers)

    def test_expires_comes_back(self):
        when = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc)
        self.put("k", b"x", Expires=when)
        self.assertEqual(self.get("k")["ResponseMetadata"]["HTTPHeaders"]["expires"], "Tue, 06 May 2031 07:08:09 GMT")

    def test_aws_chunked_is_not_kept(self):
        self.put("k", b"x", ContentEncoding="gzip, aws-chunked")
        self.assertEqual(self.head("k")["ContentEncoding"].replace(" ", ""), "gzip")
        self.put("k", b"x", ContentEncoding="aws-chunked")
        self.assertNotIn("ContentEncoding", self.head("k"))

    def test_metadata_comes_back(self):
        self.put("k", b"x", Metadata={"meta1": "mymeta", "with-hyphen": "a, b;c"})
        self.assertEqual(self.get("k")["Metadata"], {"meta1": "mymeta", "with-hyphen": "a, b;c"})

    def test_metadata_names_are_lower_case(self):
        self.answered(request("PUT", self.path("k"), b"x", {"X-Amz-Meta-CamelCase": "V"}), 200)
        self.assertEqual(self.head("k")["Metadata"], {"camelcase": "V"})

    def test_metadata_that_is_empty(self):
        self.put("k", b"x", Metadata={"meta1": ""})
        self.assertEqual(self.get("k")["Metadata"], {"meta1": ""})

    def test_metadata_is_replaced_by_a_put(self):
        self.put("k", b"x", Metadata={"meta1": "bar"})
        self.put("k", b"x", Metadata={"meta2": ""})
        self.assertEqual(self.get("k")["Metadata"], {"meta2": ""})
        self.put("k", b"x")
        self.assertEqual(self.get("k")["Metadata"], {})

    def test_metadata_of_two_kilobytes(self):
        self.put("k", b"x", Metadata={"m": "v" * 2000})
        self.assertEqual(self.head("k")["Metadata"]["m"], "v" * 2000)
        self.refused(
            400, "MetadataTooLarge", S3.put_object, Bucket=self.bucket, Key="k", Body=b"", Metadata={"m": "v" * 2048}
        )

    def test_response_headers_are_overridden(self):
        self.put("k", b"foo", ContentType="image/png")
        answer = self.get(
            "k",
            ResponseCacheControl="no-cache",
            ResponseContentDisposition="bla",
            ResponseContentEncoding="aaa",
            ResponseContentLanguage="esperanto",
            ResponseContentType="foo/bar",
            ResponseExpires=datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        )
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        self.assertEqual(
            [headers[n] for n in ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires")],
            ["no-cache", "bla", "aaa", "esperanto", "foo/bar", "Wed, 02 Jan 2030 03:04:05 GMT"],
        )

    def test_keys_of_1024_bytes(self):
        self.keys("k" * 1024)
        self.assertEqual(self.read("k" * 1024), b"k" * 1024)
        self.refused(400, "KeyTooLongError", S3.put_object, Bucket=self.bucket, Key="k" * 1025, Body=b"")

    def test_key_with_a_slash_at_the_end(self):
        self.put("folder/", b"")
        self.put("folder", b"x")
        self.assertEqual((self.read("folder/"), self.read("folder")), (b"", b"x"))

    def test_nothing_and_then_something_on_one_connection(self):
        """botocore loses its way where a final answer comes instead of 100, and the connection goes on."""
        s3 = client()
        for key, body in (("a", b"x"), ("b", b""), ("c", b"y"), ("d", b"")):
            s3.put_object(Bucket=self.bucket, Key=key, Body=body)
        self.assertEqual([self.read(key) for key in "abcd"], [b"x", b"", b"y", b""])

    def test_chunked_transfer_coding(self):
        # Unsigned, since the length of what is signed is not known to begin with.
        fields = {"Transfer-Encoding": "chunked"}
        body = b"3\r\nfoo\r\n3\r\nbar\r\n0\r\n\r\n"
        answer = request("PUT", self.path("k"), body, fields, payload="UNSIGNED-PAYLOAD", change=lambda f: f.pop("Content-Length", None))
        self.answered(answer, 200)
        self.assertEqual(self.read("k"), b"foobar")

    def test_accepts_ranges(self):
        self.put("k", b"x")
        self.assertEqual(self.head("k")["AcceptRanges"], "bytes")

    def test_a_request_id_is_in_header_and_error(self):
        answer = request("GET", self.path("none"))
        self.answered(answer, 404, "NoSuchKey")
        self.assertEqual(answer.text("RequestId"), answer.headers["x-amz-request-id"])

    def test_put_into_a_bucket_that_is_gone(self):
        S3.delete_bucket(Bucket=self.bucket)
        self.refused(404, "NoSuchBucket", S3.put_object, Bucket=self.bucket, Key="k", Body=b"x")
        self.refused(404, "NoSuchBucket", S3.delete_object, Bucket=self.bucket, Key="k")

    def test_storage_class_standard(self):
        self.put("k", b"x", StorageClass="STANDARD")
        self.assertEqual(self.read("k"), b"x")

    def test_storage_class_that_is_none(self):
        answer = request("PUT", self.path("k"), b"x", {"x-amz-storage-class": "SHELF"})
        self.answered(answer, 400, "InvalidStorageClass")


class Ranges(Case):
    def setUp(self):
        super().setUp()
        self.put("k", b"testcontent")

    def part(self, text, data, content_range):
        answer = self.get("k", Range=text)
        self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 206)
        self.assertEqual((answer["Body"].read(), answer["ContentRange"]), (data, content_range))

    def test_within(self):
        self.part("bytes=4-7", b"cont", "bytes 4-7/11")

    def test_from_an_offset(self):
        self.part("bytes=4-", b"content", "bytes 4-10/11")

    def test_the_last_bytes(self):
        self.part("bytes=-7", b"content", "bytes 4-10/11")

    def test_more_than_there_is(self):
        self.part("bytes=4-1000", b"content", "bytes 4-10/11")
        self.part("bytes=-1000", b"testcontent", "bytes 0-10/11")

    def test_one_byte(self):
        self.part("bytes=0-0", b"t", "bytes 0-0/11")

    def test_of_head(self):
        answer = self.head("k", Range="bytes=4-7")
        self.assertEqual((answer["ResponseMetadata"]["HTTPStatusCode"], answer["ContentLength"]), (206, 4))

    def test_outside(self):
        answer = self.refused(416, "InvalidRange", S3.get_object, Bucket=self.bucket, Key="k", Range="bytes=40-50")
        self.assertEqual(answer["ResponseMetadata"]["HTTPHeaders"]["content-range"], "bytes */11")

    def test_no_last_byte(self):
        self.refused(416, "InvalidRange", S3.get_object, Bucket=self.bucket, Key="k", Range="bytes=-0")

    def test_of_nothing(self):
        self.put("k", b"")
        self.refused(416, "InvalidRange", S3.get_object, Bucket=self.bucket, Key="k", Range="bytes=40-50")
        self.refused(416, "InvalidRange", S3.get_object, Bucket=self.bucket, Key="k", Range="bytes=0-")

    def test_backwards_or_of_another_unit_is_no_range(self):
        for text in ("bytes=7-4", "lines=1-2", "bytes=a-b", "4-7"):
            with self.subTest(text):
                answer = self.get("k", Range=text)
                self.assertEqual((answer["ResponseMetadata"]["HTTPStatusCode"], answer["Body"].read()), (200, b"testcontent"))

    def test_of_eight_megabytes(self):
        data = hashlib.sha512(b"seed").digest() * (8 * MIB // 64)
        self.put("big", data)
        answer = self.get("big", Range=f"bytes=3145728-{5 * MIB - 1}")
        self.assertEqual(answer["ContentRange"], f"bytes 3145728-{5 * MIB - 1}/{8 * MIB}")
        self.same_bytes(answer["Body"].read(), data[3 * MIB : 5 * MIB])


class ConditionalReads(Case):
    PAST = datetime.datetime(1994, 10, 29, 19, 43, 31, tzinfo=datetime.timezone.utc)
    FUTURE = datetime.datetime(2100, 10, 29, 19, 43, 31, tzinfo=datetime.timezone.utc)

    def setUp(self):
        super().setUp()
        self.tag = self.put("k", b"bar")["ETag"]

    def holds(self, **conditions):
        self.assertEqual(self.read("k", **conditions), b"bar")
        self.assertEqual(self.head("k", **conditions)["ContentLength"], 3)

    def fails(self, status, code, **conditions):
        self.refused(status, code, S3.get_object, Bucket=self.bucket, Key="k", **conditions)
        self.refused(status, str(status), S3.head_object, Bucket=self.bucket, Key="k", **conditions)

    def test_if_match(self):
        self.holds(IfMatch=self.tag)

    def test_if_match_one_of_several(self):
        self.holds(IfMatch=f'"abc", {self.tag}')

    def test_if_match_any(self):
        self.holds(IfMatch="*")

    def test_if_match_another(self):
        self.fails(412, "PreconditionFailed", IfMatch='"ABCORZ"')

    def test_if_none_match(self):
        self.holds(IfNoneMatch='"ABCORZ"')

    def test_if_none_match_the_same(self):
        answer = request("GET", self.path("k"), headers={"If-None-Match": self.tag})
        self.answered(answer, 304)
        self.assertEqual((answer.body, answer.headers["etag"]), (b"", self.tag))
        self.fails(304, "304", IfNoneMatch=self.tag)

    def test_if_modified_since_long_ago(self):
        self.holds(IfModifiedSince=self.PAST)

    def test_if_modified_since_now(self):
        self.fails(304, "304", IfModifiedSince=self.head("k")["LastModified"])

    def test_if_modified_since_a_time_to_come_is_no_condition_or_not_modified(self):
        answer = request("GET", self.path("k"), headers={"If-Modified-Since": "Fri, 29 Oct 2100 19:43:31 GMT"})
        self.assertIn(answer.status, (200, 304))

    def test_if_unmodified_since_long_ago(self):
        self.fails(412, "PreconditionFailed", IfUnmodifiedSince=self.PAST)

    def test_if_unmodified_since_a_time_to_come(self):
        self.holds(IfUnmodifiedSince=self.FUTURE)

    def test_a_match_wins_over_a_date(self):
        self.holds(IfMatch=self.tag, IfUnmodifiedSince=self.PAST)

    def test_no_match_wins_over_a_date(self):
        self.fails(304, "304", IfNoneMatch=self.tag, IfModifiedSince=self.PAST)

    def test_a_date_that_is_none_is_no_condition(self):
        answer = request("GET", self.path("k"), headers={"If-Modified-Since": "yesterday"})
        self.answered(answer, 200)

    def test_of_no_object(self):
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="none", IfMatch='"x"')

    def test_range_with_if_range(self):
        answer = request("GET", self.path("k"), headers={"Range": "bytes=1-1", "If-Range": self.tag})
        self.assertEqual((answer.status, answer.body), (206, b"a"))
        answer = request("GET", self.path("k"), headers={"Range": "bytes=1-1", "If-Range": '"other"'})
        self.assertEqual((answer.status, answer.body), (200, b"bar"))


class ConditionalWrites(Case):
    def fails(self, status, code, **conditions):
        self.refused(status, code, S3.put_object, Bucket=self.bucket, Key="k", Body=b"new", **conditions)

    def test_put_if_none_match(self):
        self.put("k", b"old", IfNoneMatch="*")
        self.fails(412, "PreconditionFailed", IfNoneMatch="*")
        self.assertEqual(self.read("k"), b"old")

    def test_put_if_match(self):
        tag = self.put("k", b"old")["ETag"]
        self.fails(412, "PreconditionFailed", IfMatch='"ABCORZ"')
        self.assertEqual(self.read("k"), b"old")
        self.put("k", b"new", IfMatch=tag)
        self.assertEqual(self.read("k"), b"new")

    def test_put_if_match_of_no_object(self):
        self.fails(404, "NoSuchKey", IfMatch='"ABCORZ"')
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_put_if_none_match_with_an_etag_is_refused_or_means_what_it_says(self):
        tag = self.put("k", b"old")["ETag"]
        answer = request("PUT", self.path("k"), b"new", {"If-None-Match": tag})
        # S3 itself knows the asterisk only.
        self.assertIn((answer.status, answer.code), [(412, "PreconditionFailed"), (501, "NotImplemented")])
        self.assertEqual(self.read("k"), b"old")

    def test_put_after_a_delete_with_versions(self):
        S3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        self.put("k", b"old")
        self.fails(412, "PreconditionFailed", IfNoneMatch="*")
        S3.delete_object(Bucket=self.bucket, Key="k")
        self.put("k", b"new", IfNoneMatch="*")
        self.assertEqual(self.read("k"), b"new")

    def test_completion_if_none_match(self):
        self.upload("k", [b"one"], complete={"IfNoneMatch": "*"})
        with self.assertRaisesRegex(Exception, "PreconditionFailed"):
            self.upload("k", [b"two"], complete={"IfNoneMatch": "*"})
        self.assertEqual(self.read("k"), b"one")

    def test_completion_if_match(self):
        tag = self.put("k", b"old")["ETag"]
        with self.assertRaisesRegex(Exception, "PreconditionFailed"):
            self.upload("k", [b"new"], complete={"IfMatch": '"ABCORZ"'})
        self.assertEqual(self.read("k"), b"old")
        self.upload("k", [b"new"], complete={"IfMatch": tag})
        self.assertEqual(self.read("k"), b"new")

    def test_completion_if_match_of_no_object(self):
        with self.assertRaisesRegex(Exception, "NoSuchKey"):
            self.upload("k", [b"new"], complete={"IfMatch": '"ABCORZ"'})

    def test_delete_if_match(self):
        tag = self.put("k", b"old")["ETag"]
        self.refused(412, "PreconditionFailed", S3.delete_object, Bucket=self.bucket, Key="k", IfMatch='"ABCORZ"')
        self.assertEqual(self.read("k"), b"old")
        S3.delete_object(Bucket=self.bucket, Key="k", IfMatch=tag)
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")


class Deletes(Case):
    def test_of_no_object_is_done(self):
        self.assertEqual(S3.delete_object(Bucket=self.bucket, Key="none")["ResponseMetadata"]["HTTPStatusCode"], 204)

    def delete(self, keys, **arguments):
        return S3.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": k} for k in keys], **arguments})

    def test_several(self):
        keys = ["a", "b c", "d+e", "\u00fc", "<f>&"]
        self.keys(*keys, "left")
        answer = self.delete(keys)
        self.assertEqual(sorted(d["Key"] for d in answer["Deleted"]), sorted(keys))
        self.assertNotIn("Errors", answer)
        self.assertEqual([o["Key"] for o in S3.list_objects_v2(Bucket=self.bucket)["Contents"]], ["left"])

    def test_several_again_is_done(self):
        self.keys("a")
        for _ in range(2):
            self.assertEqual([d["Key"] for d in self.delete(["a"])["Deleted"]], ["a"])

    def test_several_quietly(self):
        self.keys("a", "b")
        answer = self.delete(["a", "b"], Quiet=True)
        self.assertNotIn("Deleted", answer)
        self.assertNotIn("Contents", S3.list_objects_v2(Bucket=self.bucket))

    def test_a_thousand_at_once_and_no_more(self):
        self.keys("left")
        self.refused(400, "MalformedXML", self.delete_many, count=1001)
        self.assertEqual(self.read("left"), b"left")
        self.assertEqual(len(self.delete_many(1000)["Deleted"]), 1000)

    def delete_many(self, count):
        return self.delete([f"k{i}" for i in range(count - 1)] + ["left"])

    def test_none(self):
        body = b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></Delete>'
        headers = {"Content-MD5": b64(hashlib.md5(body).digest())}
        self.answered(request("POST", self.path(), body, headers, query="delete="), 400, "MalformedXML")

    def test_without_an_integrity_check(self):
        body = b"<Delete><Object><Key>k</Key></Object></Delete>"
        answer = request("POST", self.path(), body, query="delete=")
        # S3 wants Content-MD5 or a checksum here; a signed body is checked as well as by them.
        self.assertIn((answer.status, answer.code), [(400, "InvalidRequest"), (400, "MissingContentMD5"), (200, None)])

    def test_with_a_wrong_md5(self):
        self.keys("k")
        body = b"<Delete><Object><Key>k</Key></Object></Delete>"
        headers = {"Content-MD5": b64(hashlib.md5(b"other").digest())}
        self.answered(request("POST", self.path(), body, headers, query="delete="), 400, "BadDigest")
        self.assertEqual(self.read("k"), b"k")


class Atomicity(Case):
    """What is read is one object as a whole, whatever is written meanwhile."""

    def read_while_overwritten(self, size):
        old, new = b"A" * size, b"B" * size
        self.put("k", old)
        body = self.get("k")["Body"]
        first = body.read(10 * KIB)
        self.put("k", new)
        self.same_bytes(first + body.read(), old)
        self.same_bytes(self.read("k"), new)

    def test_read_of_1_megabyte(self):
        self.read_while_overwritten(MIB)

    def test_read_of_4_megabytes(self):
        self.read_while_overwritten(4 * MIB)

    def test_read_of_8_megabytes(self):
        self.read_while_overwritten(8 * MIB)

    def test_read_while_deleted(self):
        data = b"A" * (4 * MIB)
        self.put("k", data)
        body = self.get("k")["Body"]
        first = body.read(10)
        S3.delete_object(Bucket=self.bucket, Key="k")
        self.same_bytes(first + body.read(), data)

    def written_while_read(self, size):
        """The old object is there until the last byte of the new one."""
        import io

        old, case = b"A" * size, self

        class Body(io.BytesIO):
            looked = False

            def read(self, count=-1):
                data = super().read(count)
                if self.watch and not self.looked and self.tell() > size // 2:
                    self.looked = True
                    case.same_bytes(case.read("k"), old)
                return data

        self.put("k", old)
        body = Body(b"B" * size)
        body.watch = False
        s3 = client(request_checksum_calculation="when_required", signature_version="s3v4", s3={"payload_signing_enabled": False})
        watch = lambda **_: setattr(body, "watch", True)
        s3.meta.events.register("before-send.s3.PutObject", watch)
        s3.put_object(Bucket=self.bucket, Key="k", Body=body)
        self.assertTrue(body.looked)
        self.same_bytes(self.read("k"), b"B" * size)

    def test_write_of_1_megabyte(self):
        self.written_while_read(MIB)

    def test_write_of_4_megabytes(self):
        self.written_while_read(4 * MIB)

    def test_write_of_8_megabytes(self):
        self.written_while_read(8 * MIB)

    def written_twice(self, size):
        import threading

        bodies = [bytes([letter]) * size for letter in b"ABCD"]
        threads = [threading.Thread(target=self.put, args=("k", body)) for body in bodies]
        for thread in threads:
            thread.start()
        seen = []
        while any(thread.is_alive() for thread in threads):
            try:
                seen.append(self.read("k"))
            except Exception as error:
                self.assertIn("NoSuchKey", str(error))
        for thread in threads:
            thread.join()
        seen.append(self.read("k"))
        for data in seen:
            self.assertIn(data[:1] * size, bodies)
            self.same_bytes(data, data[:1] * size)

    def test_writes_at_once_of_1_megabyte(self):
        self.written_twice(MIB)

    def test_writes_at_once_of_4_megabytes(self):
        self.written_twice(4 * MIB)

    def test_writes_at_once_of_8_megabytes(self):
        self.written_twice(8 * MIB)
