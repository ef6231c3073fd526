"""Checksums: five algorithms, in headers and trailers, of objects, parts and wholes; Content-MD5."""

import hashlib
import os

from support import PART, S3, SUMS, Case, b64, client, plain, request

FULL = ("CRC32", "CRC32C", "CRC64NVME")


def composite(algorithm, parts):
    return f"{b64(SUMS[algorithm](b''.join(SUMS[algorithm](part) for part in parts)))}-{len(parts)}"


def over_tls(s3):
    """botocore puts checksums behind the body when the endpoint is https; here too."""

    def to_trailer(params, **_):
        algorithm = params["context"].get("checksum", {}).get("request_algorithm")
        if isinstance(algorithm, dict):
            algorithm["in"] = "trailer"

    s3.meta.events.register("before-call.s3.PutObject", to_trailer)
    s3.meta.events.register("before-call.s3.UploadPart", to_trailer)
    return s3


class Objects(Case):
    DATA = b"0123456789" * 1000

    def test_asked_for_by_name(self):
        for algorithm, sum_of in SUMS.items():
            for where, s3 in (("header", S3), ("trailer", over_tls(client()))):
                with self.subTest(algorithm=algorithm, where=where):
                    name, expected = f"Checksum{algorithm}", b64(sum_of(self.DATA))
                    s3.put_object(Bucket=self.bucket, Key="k", Body=self.DATA, ChecksumAlgorithm=algorithm)
                    for answer in (self.get("k", ChecksumMode="ENABLED"), self.head("k", ChecksumMode="ENABLED")):
                        self.assertEqual(answer[name], expected)
                        self.assertEqual(answer.get("ChecksumType", "FULL_OBJECT"), "FULL_OBJECT")
                    self.assertEqual(self.read("k"), self.DATA)

    def test_given_with_its_value(self):
        for algorithm, sum_of in SUMS.items():
            with self.subTest(algorithm):
                answer = self.put("k", self.DATA, **{f"Checksum{algorithm}": b64(sum_of(self.DATA))})
                self.assertEqual(answer[f"Checksum{algorithm}"], b64(sum_of(self.DATA)))

    def test_a_wrong_one(self):
        self.put("k", b"old")
        for algorithm, sum_of in SUMS.items():
            with self.subTest(algorithm):
                self.refused(
                    400, {"BadDigest", "XAmzContentChecksumMismatch"}, S3.put_object,
                    Bucket=self.bucket, Key="k", Body=self.DATA, **{f"Checksum{algorithm}": b64(sum_of(b"other"))},
                )
        self.assertEqual(self.read("k"), b"old")

    def test_one_that_is_none(self):
        for value in ("bad", "", "AAAA"):
            with self.subTest(value):
                answer = request("PUT", self.path("k"), b"x", {"x-amz-checksum-sha256": value})
                self.answered(answer, 400, {"InvalidRequest", "InvalidArgument"})

    def test_two_at_once(self):
        sums = {f"x-amz-checksum-{a.lower()}": b64(SUMS[a](b"x")) for a in ("CRC32", "SHA256")}
        self.answered(request("PUT", self.path("k"), b"x", sums), 400, "InvalidRequest")

    def test_an_algorithm_that_is_none(self):
        answer = request("PUT", self.path("k"), b"x", {"x-amz-sdk-checksum-algorithm": "MD4"})
        self.answered(answer, 400, "InvalidRequest")

    def test_without_one_there_is_crc64nvme(self):
        self.answered(request("PUT", self.path("k"), b"x"), 200)
        self.assertEqual(self.head("k", ChecksumMode="ENABLED")["ChecksumCRC64NVME"], b64(SUMS["CRC64NVME"](b"x")))

    def test_not_told_unless_asked(self):
        self.put("k", b"x", ChecksumAlgorithm="SHA256")
        answer = request("GET", self.path("k"))
        self.assertEqual([name for name in answer.headers if name.startswith("x-amz-checksum")], [])

    def test_of_no_part_of_an_object(self):
        self.put("k", self.DATA, ChecksumAlgorithm="SHA256")
        answer = request("GET", self.path("k"), headers={"Range": "bytes=0-9", "x-amz-checksum-mode": "ENABLED"})
        self.assertEqual((answer.status, answer.headers.get("x-amz-checksum-sha256")), (206, None))

    def test_kept_by_a_copy(self):
        self.put("k", self.DATA, ChecksumAlgorithm="SHA256")
        S3.copy_object(Bucket=self.bucket, Key="copy", CopySource={"Bucket": self.bucket, "Key": "k"})
        self.assertEqual(self.head("copy", ChecksumMode="ENABLED")["ChecksumSHA256"], b64(SUMS["SHA256"](self.DATA)))

    def test_another_one_for_a_copy(self):
        self.put("k", self.DATA, ChecksumAlgorithm="SHA256")
        answer = S3.copy_object(
            Bucket=self.bucket, Key="copy", CopySource={"Bucket": self.bucket, "Key": "k"}, ChecksumAlgorithm="CRC32C"
        )
        expected = b64(SUMS["CRC32C"](self.DATA))
        self.assertEqual(answer["CopyObjectResult"]["ChecksumCRC32C"], expected)
        self.assertEqual(self.head("copy", ChecksumMode="ENABLED")["ChecksumCRC32C"], expected)

    def test_listings_name_the_algorithm(self):
        self.put("k", b"x", ChecksumAlgorithm="SHA1")
        self.assertEqual(S3.list_objects_v2(Bucket=self.bucket)["Contents"][0]["ChecksumAlgorithm"], ["SHA1"])


class ContentMd5(Case):
    def send(self, value, body=b"bar"):
        return request("PUT", self.path("k"), body, {"Content-MD5": value})

    def test_right(self):
        self.answered(self.send(b64(hashlib.md5(b"bar").digest())), 200)

    def test_wrong(self):
        self.answered(self.send(b64(hashlib.md5(b"rab").digest())), 400, "BadDigest")
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_too_short(self):
        self.answered(self.send("YWJyYWNhZGFicmE="), 400, "InvalidDigest")

    def test_not_base64(self):
        self.answered(self.send("***"), 400, "InvalidDigest")

    def test_empty(self):
        self.answered(self.send(""), 400, "InvalidDigest")

    def test_none(self):
        self.answered(request("PUT", self.path("k"), b"bar"), 200)


class Uploads(Case):
    PARTS = [b"a" * PART, b"b" * PART, b"the end"]

    def test_composite(self):
        for algorithm in ("CRC32", "CRC32C", "SHA1", "SHA256"):
            with self.subTest(algorithm):
                done = self.upload(
                    "k", self.PARTS, part={"ChecksumAlgorithm": algorithm}, ChecksumAlgorithm=algorithm, ChecksumType="COMPOSITE"
                )
                expected = composite(algorithm, self.PARTS)
                self.assertEqual((done[f"Checksum{algorithm}"], done["ChecksumType"]), (expected, "COMPOSITE"))
                head = self.head("k", ChecksumMode="ENABLED")
                self.assertEqual((head[f"Checksum{algorithm}"], head["ChecksumType"]), (expected, "COMPOSITE"))

    def test_sha_is_composite_by_default(self):
        done = self.upload("k", self.PARTS, part={"ChecksumAlgorithm": "SHA256"}, ChecksumAlgorithm="SHA256")
        self.assertEqual((done["ChecksumSHA256"], done["ChecksumType"]), (composite("SHA256", self.PARTS), "COMPOSITE"))

    def test_of_the_whole(self):
        for algorithm in FULL:
            with self.subTest(algorithm):
                expected = b64(SUMS[algorithm](b"".join(self.PARTS)))
                done = self.upload(
                    "k", self.PARTS, part={"ChecksumAlgorithm": algorithm},
                    complete={f"Checksum{algorithm}": expected, "ChecksumType": "FULL_OBJECT"},
                    ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT",
                )
                self.assertEqual((done[f"Checksum{algorithm}"], done["ChecksumType"]), (expected, "FULL_OBJECT"))
                head = self.head("k", ChecksumMode="ENABLED")
                self.assertEqual((head[f"Checksum{algorithm}"], head["ChecksumType"]), (expected, "FULL_OBJECT"))

    def test_crc64nvme_is_of_the_whole_by_default(self):
        done = self.upload("k", self.PARTS, part={"ChecksumAlgorithm": "CRC64NVME"}, ChecksumAlgorithm="CRC64NVME")
        self.assertEqual(
            (done["ChecksumCRC64NVME"], done["ChecksumType"]), (b64(SUMS["CRC64NVME"](b"".join(self.PARTS))), "FULL_OBJECT")
        )

    def test_a_wrong_one_of_the_whole(self):
        with self.assertRaisesRegex(Exception, "BadDigest|InvalidRequest"):
            self.upload(
                "k", [b"x"], part={"ChecksumAlgorithm": "CRC32"},
                complete={"ChecksumCRC32": b64(SUMS["CRC32"](b"y")), "ChecksumType": "FULL_OBJECT"},
                ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT",
            )
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_sha_of_the_whole_is_not_there(self):
        self.refused(
            400, "InvalidRequest", S3.create_multipart_upload,
            Bucket=self.bucket, Key="k", ChecksumAlgorithm="SHA256", ChecksumType="FULL_OBJECT",
        )

    def test_crc64nvme_of_parts_is_not_there(self):
        self.refused(
            400, "InvalidRequest", S3.create_multipart_upload,
            Bucket=self.bucket, Key="k", ChecksumAlgorithm="CRC64NVME", ChecksumType="COMPOSITE",
        )

    def begin(self, **arguments):
        answer = S3.create_multipart_upload(Bucket=self.bucket, Key="k", **arguments)
        return answer["UploadId"], answer

    def test_the_algorithm_is_told(self):
        upload, answer = self.begin(ChecksumAlgorithm="SHA1")
        self.assertEqual((answer["ChecksumAlgorithm"], answer["ChecksumType"]), ("SHA1", "COMPOSITE"))
        listed = S3.list_multipart_uploads(Bucket=self.bucket)["Uploads"][0]
        self.assertEqual((listed["UploadId"], listed["ChecksumAlgorithm"]), (upload, "SHA1"))
        S3.upload_part(Bucket=self.bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="SHA1")
        page = S3.list_parts(Bucket=self.bucket, Key="k", UploadId=upload)
        self.assertEqual((page["ChecksumAlgorithm"], page["Parts"][0]["ChecksumSHA1"]), ("SHA1", b64(SUMS["SHA1"](b"x"))))

    def test_a_part_with_another_algorithm(self):
        upload, _ = self.begin(ChecksumAlgorithm="SHA256")
        self.refused(
            400, "InvalidRequest", S3.upload_part,
            Bucket=self.bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="CRC32C",
        )

    def test_a_wrong_one_of_a_part(self):
        upload, _ = self.begin(ChecksumAlgorithm="SHA256")
        self.refused(
            400, {"BadDigest", "XAmzContentChecksumMismatch"}, S3.upload_part,
            Bucket=self.bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumSHA256=b64(SUMS["SHA256"](b"y")),
        )
        self.assertEqual(S3.list_parts(Bucket=self.bucket, Key="k", UploadId=upload).get("Parts", []), [])

    def test_a_wrong_one_of_a_part_at_the_end(self):
        upload, _ = self.begin(ChecksumAlgorithm="SHA256")
        part = S3.upload_part(Bucket=self.bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="SHA256")
        named = {"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": b64(SUMS["SHA256"](b"y"))}
        self.refused(
            400, {"InvalidPart", "BadDigest"}, S3.complete_multipart_upload,
            Bucket=self.bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": [named]},
        )

    def test_a_part_sent_again(self):
        upload, _ = self.begin(ChecksumAlgorithm="SHA256")
        for data in (b"first", b"second"):
            part = S3.upload_part(Bucket=self.bucket, Key="k", UploadId=upload, PartNumber=1, Body=data, ChecksumAlgorithm="SHA256")
        named = {"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}
        done = S3.complete_multipart_upload(Bucket=self.bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": [named]})
        self.assertEqual(done["ChecksumSHA256"], composite("SHA256", [b"second"]))

    def test_managed_uploads(self):
        import io

        from boto3.s3.transfer import TransferConfig

        data = os.urandom(3 * PART + 1)
        config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)
        for where, s3 in (("header", S3), ("trailer", over_tls(client()))):
            for algorithm in SUMS:
                with self.subTest(algorithm=algorithm, where=where):
                    s3.upload_fileobj(
                        io.BytesIO(data), self.bucket, "k", Config=config, ExtraArgs={"ChecksumAlgorithm": algorithm}
                    )
                    got = io.BytesIO()
                    s3.download_fileobj(self.bucket, "k", got, Config=config)
                    self.same_bytes(got.getvalue(), data)
                    self.assertIn(f"Checksum{algorithm}", self.head("k", ChecksumMode="ENABLED"))

    def test_without_any(self):
        s3 = plain(client(request_checksum_calculation="when_required"))
        self.upload("k", [b"x"], s3=s3)
        self.assertEqual(self.read("k"), b"x")
