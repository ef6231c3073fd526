"""GetObjectAttributes."""

from support import PART, S3, SUMS, Case, b64, etag, request, seconds

ALL = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]


class Attributes(Case):
    def of(self, key="k", wanted=ALL, **arguments):
        return S3.get_object_attributes(Bucket=self.bucket, Key=key, ObjectAttributes=wanted, **arguments)

    def test_of_an_object(self):
        self.put("k", b"body", ChecksumAlgorithm="SHA256")
        answer = self.of()
        self.assertEqual((answer["ETag"], answer["ObjectSize"], answer["StorageClass"]), (etag(b"body").strip('"'), 4, "STANDARD"))
        self.assertEqual(answer["Checksum"]["ChecksumSHA256"], b64(SUMS["SHA256"](b"body")))
        self.assertEqual(answer["Checksum"].get("ChecksumType"), "FULL_OBJECT")
        self.assertNotIn("ObjectParts", answer)
        self.assertEqual(seconds(answer["LastModified"]), self.head("k")["LastModified"])

    def test_only_what_is_wanted(self):
        self.put("k", b"body")
        answer = self.of(wanted=["ObjectSize"])
        self.assertEqual(set(answer) - {"ResponseMetadata", "LastModified"}, {"ObjectSize"})

    def test_of_no_object(self):
        self.refused(404, "NoSuchKey", S3.get_object_attributes, Bucket=self.bucket, Key="none", ObjectAttributes=ALL)

    def test_nothing_wanted(self):
        self.put("k", b"body")
        self.answered(request("GET", self.path("k"), query="attributes="), 400, {"InvalidArgument", "InvalidRequest"})

    def test_something_unknown_wanted(self):
        self.put("k", b"body")
        answer = request("GET", self.path("k"), headers={"x-amz-object-attributes": "Colour"}, query="attributes=")
        self.answered(answer, 400, "InvalidArgument")

    def test_of_a_version(self):
        S3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        first = self.put("k", b"one")["VersionId"]
        second = self.put("k", b"longer")["VersionId"]
        answer = self.of(VersionId=first)
        self.assertEqual((answer["ObjectSize"], answer["VersionId"]), (3, first))
        answer = self.of()
        self.assertEqual((answer["ObjectSize"], answer["VersionId"]), (6, second))
        marker = S3.delete_object(Bucket=self.bucket, Key="k")["VersionId"]
        self.refused(404, "NoSuchKey", S3.get_object_attributes, Bucket=self.bucket, Key="k", ObjectAttributes=ALL)
        self.refused(
            405, "MethodNotAllowed", S3.get_object_attributes,
            Bucket=self.bucket, Key="k", ObjectAttributes=ALL, VersionId=marker,
        )

    def parts(self, algorithm="SHA256"):
        data = [b"a" * PART, b"b" * PART, b"c" * 100]
        self.upload("k", data, part={"ChecksumAlgorithm": algorithm}, ChecksumAlgorithm=algorithm)
        return data

    def test_of_parts(self):
        data = self.parts()
        answer = self.of()
        parts = answer["ObjectParts"]
        self.assertEqual((parts["TotalPartsCount"], parts["IsTruncated"]), (3, False))
        self.assertEqual(
            [(p["PartNumber"], p["Size"], p["ChecksumSHA256"]) for p in parts["Parts"]],
            [(n, len(d), b64(SUMS["SHA256"](d))) for n, d in enumerate(data, 1)],
        )
        self.assertEqual(answer["Checksum"]["ChecksumType"], "COMPOSITE")
        self.assertTrue(answer["ETag"].endswith("-3"))
        self.assertEqual(answer["ObjectSize"], 2 * PART + 100)

    def test_of_parts_in_pages(self):
        self.parts()
        first = self.of(MaxParts=1)["ObjectParts"]
        self.assertEqual((first["MaxParts"], first["IsTruncated"], first["NextPartNumberMarker"]), (1, True, 1))
        self.assertEqual([p["PartNumber"] for p in first["Parts"]], [1])
        rest = self.of(MaxParts=10, PartNumberMarker=1)["ObjectParts"]
        self.assertEqual(([p["PartNumber"] for p in rest["Parts"]], rest["IsTruncated"]), ([2, 3], False))
        self.assertEqual(rest["PartNumberMarker"], 1)

    def test_of_one_part(self):
        self.upload("k", [b"only"], part={"ChecksumAlgorithm": "CRC32C"}, ChecksumAlgorithm="CRC32C")
        parts = self.of()["ObjectParts"]
        self.assertEqual((parts["TotalPartsCount"], [p["Size"] for p in parts["Parts"]]), (1, [4]))
