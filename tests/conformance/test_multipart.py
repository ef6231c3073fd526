"""Multipart uploads."""

import os

from support import MIB, PART, S3, Case, bucket_name, etag, parts_etag, request


class Uploads(Case):
    def begin(self, key="k", **arguments):
        return S3.create_multipart_upload(Bucket=self.bucket, Key=key, **arguments)["UploadId"]

    def part(self, upload, number, data, key="k"):
        answer = S3.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def complete(self, upload, parts, key="k", **arguments):
        return S3.complete_multipart_upload(
            Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **arguments
        )

    def not_completed(self, status, code, upload, parts, key="k"):
        self.refused(
            status, code, S3.complete_multipart_upload,
            Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts},
        )

    def test_two_parts_with_type_and_metadata(self):
        parts = [os.urandom(PART), os.urandom(1000)]
        done = self.upload("k", parts, ContentType="text/bla", Metadata={"foo": "bar"})
        self.assertEqual(done["ETag"], parts_etag(parts))
        self.assertEqual((done["Bucket"], done["Key"]), (self.bucket, "k"))
        answer = self.get("k")
        self.same_bytes(answer["Body"].read(), b"".join(parts))
        self.assertEqual((answer["ETag"], answer["ContentType"], answer["Metadata"]), (parts_etag(parts), "text/bla", {"foo": "bar"}))
        self.assertEqual(S3.list_objects_v2(Bucket=self.bucket)["Contents"][0]["Size"], PART + 1000)

    def test_one_small_part(self):
        done = self.upload("k", [b"x"])
        self.assertEqual((self.read("k"), done["ETag"]), (b"x", parts_etag([b"x"])))

    def test_one_part_of_nothing(self):
        self.upload("k", [b""])
        self.assertEqual(self.read("k"), b"")

    def test_several_sizes(self):
        for size in (PART, PART + 100 * 1024, 2 * PART + 1, 10 * MIB):
            with self.subTest(size):
                data = os.urandom(size)
                parts = [data[at : at + PART] for at in range(0, size, PART)]
                self.assertEqual(self.upload("k", parts)["ETag"], parts_etag(parts))
                self.same_bytes(self.read("k"), data)

    def test_part_numbers_with_gaps(self):
        upload = self.begin()
        parts = [self.part(upload, 7, b"a" * PART), self.part(upload, 10000, b"b")]
        self.complete(upload, parts)
        self.same_bytes(self.read("k"), b"a" * PART + b"b")

    def test_parts_that_are_not_named_are_dropped(self):
        upload = self.begin()
        self.part(upload, 1, b"dropped")
        self.complete(upload, [self.part(upload, 2, b"kept")])
        self.assertEqual(self.read("k"), b"kept")

    def test_over_an_object(self):
        self.put("k", b"old")
        self.upload("k", [b"new"])
        self.assertEqual(self.read("k"), b"new")

    def test_a_part_sent_again(self):
        upload = self.begin()
        self.part(upload, 1, os.urandom(PART))
        first = self.part(upload, 1, b"b" * PART)
        self.complete(upload, [first, self.part(upload, 2, b"tail")])
        self.same_bytes(self.read("k"), b"b" * PART + b"tail")

    def test_a_part_sent_again_invalidates_the_first(self):
        upload = self.begin()
        old = self.part(upload, 1, b"old")
        self.part(upload, 1, b"new")
        self.not_completed(400, "InvalidPart", upload, [old])

    def test_an_upload_that_finishes_last_wins(self):
        first, second = self.begin(), self.begin()
        one, two = self.part(first, 1, b"first"), self.part(second, 1, b"second")
        self.complete(second, [two])
        self.assertEqual(self.read("k"), b"second")
        self.complete(first, [one])
        self.assertEqual(self.read("k"), b"first")

    def test_nothing_is_there_before_the_end(self):
        upload = self.begin()
        part = self.part(upload, 1, b"x")
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")
        self.assertNotIn("Contents", S3.list_objects_v2(Bucket=self.bucket))
        self.complete(upload, [part])
        self.assertEqual(self.read("k"), b"x")

    def test_the_old_object_is_there_until_the_end(self):
        self.put("k", b"old")
        upload = self.begin()
        part = self.part(upload, 1, b"new")
        self.assertEqual(self.read("k"), b"old")
        self.complete(upload, [part])
        self.assertEqual(self.read("k"), b"new")

    def test_no_part_named(self):
        upload = self.begin()
        self.part(upload, 1, b"x")
        answer = request("POST", self.path("k"), b"<CompleteMultipartUpload/>", query=f"uploadId={upload}")
        self.answered(answer, 400, "MalformedXML")

    def test_not_xml(self):
        upload = self.begin()
        answer = request("POST", self.path("k"), b"once upon a time", query=f"uploadId={upload}")
        self.answered(answer, 400, "MalformedXML")

    def test_a_part_that_was_not_sent(self):
        upload = self.begin()
        part = self.part(upload, 1, b"x")
        self.not_completed(400, "InvalidPart", upload, [{**part, "PartNumber": 9999}])

    def test_a_wrong_etag(self):
        upload = self.begin()
        self.part(upload, 1, b"x")
        self.not_completed(400, "InvalidPart", upload, [{"PartNumber": 1, "ETag": '"ffffffffffffffffffffffffffffffff"'}])

    def test_an_etag_without_quotes(self):
        upload = self.begin()
        part = self.part(upload, 1, b"x")
        self.complete(upload, [{"PartNumber": 1, "ETag": part["ETag"].strip('"')}])
        self.assertEqual(self.read("k"), b"x")

    def test_parts_out_of_order(self):
        upload = self.begin()
        one, two = self.part(upload, 1, b"a" * PART), self.part(upload, 2, b"b" * PART)
        self.not_completed(400, "InvalidPartOrder", upload, [two, one])

    def test_a_part_twice(self):
        upload = self.begin()
        one = self.part(upload, 1, b"a" * PART)
        self.not_completed(400, "InvalidPartOrder", upload, [one, one])

    def test_a_part_too_small(self):
        upload = self.begin()
        parts = [self.part(upload, 1, b"a" * (PART - 1)), self.part(upload, 2, b"b")]
        self.not_completed(400, "EntityTooSmall", upload, parts)

    def test_part_numbers_out_of_range(self):
        upload = self.begin()
        for number in ("0", "10001", "-1", "x", ""):
            with self.subTest(number):
                answer = request("PUT", self.path("k"), b"x", query=f"partNumber={number}&uploadId={upload}")
                self.answered(answer, 400, "InvalidArgument")

    def test_no_upload(self):
        self.not_completed(404, "NoSuchUpload", "none", [{"PartNumber": 1, "ETag": '"x"'}])
        for call, more in [(S3.upload_part, {"PartNumber": 1, "Body": b"x"}), (S3.list_parts, {}), (S3.abort_multipart_upload, {})]:
            with self.subTest(call.__name__):
                self.refused(404, "NoSuchUpload", call, Bucket=self.bucket, Key="k", UploadId="none", **more)

    def test_an_upload_of_another_key(self):
        upload = self.begin("one")
        self.refused(
            404, "NoSuchUpload", S3.upload_part, Bucket=self.bucket, Key="two", UploadId=upload, PartNumber=1, Body=b"x"
        )

    def test_abort(self):
        upload = self.begin()
        part = self.part(upload, 1, os.urandom(PART))
        answer = S3.abort_multipart_upload(Bucket=self.bucket, Key="k", UploadId=upload)
        self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 204)
        self.not_completed(404, "NoSuchUpload", upload, [part])
        self.refused(404, "NoSuchUpload", S3.abort_multipart_upload, Bucket=self.bucket, Key="k", UploadId=upload)
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_list_of_uploads(self):
        self.assertNotIn("Uploads", S3.list_multipart_uploads(Bucket=self.bucket))
        made = sorted([("a", self.begin("a")), ("a", self.begin("a")), ("b", self.begin("b"))])
        listed = S3.list_multipart_uploads(Bucket=self.bucket)["Uploads"]
        self.assertEqual(sorted((u["Key"], u["UploadId"]) for u in listed), made)
        self.assertEqual([u["Key"] for u in listed], ["a", "a", "b"])
        owner = S3.list_buckets()["Owner"]["ID"]
        for upload in listed:
            self.assertEqual((upload["StorageClass"], upload["Initiator"]["ID"], upload["Owner"]["ID"]), ("STANDARD", owner, owner))

    def test_list_of_uploads_in_pages(self):
        made = sorted((key, self.begin(key)) for key in ("a", "b", "b", "c"))
        listed, more = [], {}
        while True:
            page = S3.list_multipart_uploads(Bucket=self.bucket, MaxUploads=1, **more)
            listed += [(u["Key"], u["UploadId"]) for u in page.get("Uploads", [])]
            if not page["IsTruncated"]:
                break
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        self.assertEqual(sorted(listed), made)
        self.assertEqual(len(listed), 4)

    def test_list_of_uploads_with_prefix_and_delimiter(self):
        for key in ("p/a/1", "p/a/2", "p/b", "q"):
            self.begin(key)
        page = S3.list_multipart_uploads(Bucket=self.bucket, Prefix="p/", Delimiter="/")
        self.assertEqual([u["Key"] for u in page["Uploads"]], ["p/b"])
        self.assertEqual([p["Prefix"] for p in page["CommonPrefixes"]], ["p/a/"])

    def test_list_of_parts(self):
        upload = self.begin()
        for number, size in ((1, PART), (3, 10), (7, 20)):
            self.part(upload, number, b"x" * size)
        page = S3.list_parts(Bucket=self.bucket, Key="k", UploadId=upload, MaxParts=2)
        self.assertEqual([(p["PartNumber"], p["Size"], p["ETag"]) for p in page["Parts"]], [(1, PART, etag(b"x" * PART)), (3, 10, etag(b"x" * 10))])
        self.assertEqual((page["IsTruncated"], page["NextPartNumberMarker"], page["MaxParts"]), (True, 3, 2))
        rest = S3.list_parts(Bucket=self.bucket, Key="k", UploadId=upload, PartNumberMarker=3)
        self.assertEqual(([p["PartNumber"] for p in rest["Parts"]], rest["IsTruncated"]), ([7], False))

    def test_list_of_parts_of_an_upload_without_any(self):
        page = S3.list_parts(Bucket=self.bucket, Key="k", UploadId=self.begin())
        self.assertEqual((page.get("Parts", []), page["IsTruncated"]), ([], False))

    def test_a_bucket_with_uploads_can_be_deleted_or_says_why_not(self):
        upload = self.begin()
        try:
            S3.delete_bucket(Bucket=self.bucket)
        except S3.exceptions.ClientError as error:
            self.assertEqual(error.response["Error"]["Code"], "BucketNotEmpty")
            S3.abort_multipart_upload(Bucket=self.bucket, Key="k", UploadId=upload)

    def test_into_no_bucket(self):
        self.refused(404, "NoSuchBucket", S3.create_multipart_upload, Bucket=bucket_name(), Key="k")

    def test_a_wrong_content_md5(self):
        upload = self.begin()
        answer = request("PUT", self.path("k"), b"x", {"Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg=="}, query=f"partNumber=1&uploadId={upload}")
        self.answered(answer, 400, "BadDigest")
        self.assertEqual(S3.list_parts(Bucket=self.bucket, Key="k", UploadId=upload).get("Parts", []), [])


class PartsOfObjects(Case):
    def test_get_by_part_number(self):
        parts = [os.urandom(PART), os.urandom(PART), b"the last"]
        done = self.upload("k", parts)
        for number, data in enumerate(parts, 1):
            answer = self.get("k", PartNumber=number)
            self.assertEqual((answer["ResponseMetadata"]["HTTPStatusCode"], answer["PartsCount"], answer["ETag"]), (206, 3, done["ETag"]))
            self.same_bytes(answer["Body"].read(), data)
            start = PART * (number - 1)
            self.assertEqual(answer["ContentRange"], f"bytes {start}-{start + len(data) - 1}/{2 * PART + 8}")
            head = self.head("k", PartNumber=number)
            self.assertEqual((head["ContentLength"], head["PartsCount"]), (len(data), 3))

    def test_a_part_number_beyond_the_last(self):
        self.upload("k", [b"x"])
        self.refused(416, "InvalidPartNumber", S3.get_object, Bucket=self.bucket, Key="k", PartNumber=5)
        self.refused(416, "416", S3.head_object, Bucket=self.bucket, Key="k", PartNumber=5)

    def test_the_only_part(self):
        self.upload("k", [b"only"])
        answer = self.get("k", PartNumber=1)
        self.assertEqual((answer["Body"].read(), answer["PartsCount"]), (b"only", 1))

    def test_of_an_object_without_parts(self):
        self.put("k", b"body")
        answer = self.get("k", PartNumber=1)
        self.assertEqual((answer["Body"].read(), answer["ETag"], "PartsCount" in answer), (b"body", etag(b"body"), False))
        self.refused(416, "InvalidPartNumber", S3.get_object, Bucket=self.bucket, Key="k", PartNumber=2)

    def test_with_a_range_too(self):
        self.put("k", b"body")
        self.refused(400, "InvalidRequest", S3.get_object, Bucket=self.bucket, Key="k", PartNumber=1, Range="bytes=0-0")

    def test_zero(self):
        self.put("k", b"body")
        self.refused(400, "InvalidArgument", S3.get_object, Bucket=self.bucket, Key="k", PartNumber=0)
