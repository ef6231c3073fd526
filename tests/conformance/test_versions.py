"""Versioning."""

import threading

from support import S3, Case, etag, request


class Versions(Case):
    def setUp(self):
        super().setUp()
        self.set("Enabled")

    def set(self, status):
        S3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": status})

    def listed(self, **arguments):
        """(key, version, current) of versions, and of delete markers."""
        page = S3.list_object_versions(Bucket=self.bucket, **arguments)
        names = lambda kind: [(v["Key"], v["VersionId"], v["IsLatest"]) for v in page.get(kind, [])]
        return names("Versions"), names("DeleteMarkers")

    def delete(self, key="k", version=None):
        return S3.delete_object(Bucket=self.bucket, Key=key, **({"VersionId": version} if version else {}))

    def test_state(self):
        other = self.new_bucket()
        self.assertNotIn("Status", S3.get_bucket_versioning(Bucket=other))
        self.assertEqual(S3.get_bucket_versioning(Bucket=self.bucket)["Status"], "Enabled")
        self.set("Suspended")
        self.assertEqual(S3.get_bucket_versioning(Bucket=self.bucket)["Status"], "Suspended")

    def test_state_that_is_none(self):
        body = b"<VersioningConfiguration><Status>Perhaps</Status></VersioningConfiguration>"
        self.answered(request("PUT", self.path(), body, query="versioning="), 400, {"MalformedXML", "IllegalVersioningConfigurationException"})

    def test_each_put_is_a_version(self):
        ids = [self.put("k", data)["VersionId"] for data in (b"one", b"two", b"three")]
        self.assertEqual(len(set(ids)), 3)
        self.assertEqual(self.read("k"), b"three")
        for version, data in zip(ids, (b"one", b"two", b"three")):
            answer = self.get("k", VersionId=version)
            self.assertEqual((answer["Body"].read(), answer["VersionId"]), (data, version))
            self.assertEqual(self.head("k", VersionId=version)["ETag"], etag(data))
        versions, markers = self.listed()
        self.assertEqual((versions, markers), ([("k", ids[2], True), ("k", ids[1], False), ("k", ids[0], False)], []))

    def test_what_is_told_of_a_version(self):
        self.put("k", b"content")
        entry = S3.list_object_versions(Bucket=self.bucket)["Versions"][0]
        self.assertEqual((entry["Size"], entry["ETag"], entry["StorageClass"]), (7, etag(b"content"), "STANDARD"))
        self.assertEqual(entry["Owner"]["ID"], S3.list_buckets()["Owner"]["ID"])

    def test_a_delete_makes_a_marker(self):
        version = self.put("k", b"one")["VersionId"]
        answer = self.delete()
        self.assertTrue(answer["DeleteMarker"])
        marker = answer["VersionId"]
        refusal = self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")
        headers = refusal["ResponseMetadata"]["HTTPHeaders"]
        self.assertEqual((headers.get("x-amz-delete-marker"), headers.get("x-amz-version-id")), ("true", marker))
        self.refused(404, "404", S3.head_object, Bucket=self.bucket, Key="k")
        self.assertEqual(self.read("k", VersionId=version), b"one")
        self.assertNotIn("Contents", S3.list_objects_v2(Bucket=self.bucket))
        self.assertEqual(self.listed(), ([("k", version, False)], [("k", marker, True)]))

    def test_a_marker_cannot_be_read(self):
        self.put("k", b"one")
        marker = self.delete()["VersionId"]
        self.refused(405, "MethodNotAllowed", S3.get_object, Bucket=self.bucket, Key="k", VersionId=marker)
        refusal = self.refused(405, "405", S3.head_object, Bucket=self.bucket, Key="k", VersionId=marker)
        self.assertEqual(refusal["ResponseMetadata"]["HTTPHeaders"].get("x-amz-delete-marker"), "true")

    def test_a_marker_can_be_deleted(self):
        self.put("k", b"one")
        marker = self.delete()["VersionId"]
        answer = self.delete(version=marker)
        self.assertEqual((answer["DeleteMarker"], answer["VersionId"]), (True, marker))
        self.assertEqual(self.read("k"), b"one")

    def test_a_version_can_be_deleted(self):
        one, two = self.put("k", b"one")["VersionId"], self.put("k", b"two")["VersionId"]
        answer = self.delete(version=two)
        self.assertEqual((answer["VersionId"], answer.get("DeleteMarker", False)), (two, False))
        self.assertEqual(self.read("k"), b"one")
        self.assertEqual(self.listed(), ([("k", one, True)], []))
        self.refused(404, "NoSuchVersion", S3.get_object, Bucket=self.bucket, Key="k", VersionId=two)

    def test_a_delete_of_no_key_makes_a_marker(self):
        marker = self.delete("none")["VersionId"]
        self.assertEqual(self.listed(), ([], [("none", marker, True)]))

    def test_two_deletes_make_two_markers(self):
        self.put("k", b"one")
        self.assertNotEqual(self.delete()["VersionId"], self.delete()["VersionId"])
        self.assertEqual([current for _, _, current in self.listed()[1]], [True, False])

    def test_a_put_after_a_delete(self):
        self.put("k", b"one")
        self.delete()
        self.put("k", b"two")
        self.assertEqual(self.read("k"), b"two")

    def test_a_version_that_is_none(self):
        self.put("k", b"x")
        answer = request("GET", self.path("k"), query="versionId=none%20such")
        self.assertIn((answer.status, answer.code), [(400, "InvalidArgument"), (404, "NoSuchVersion")])

    def test_objects_of_before(self):
        self.bucket = self.new_bucket()
        self.put("k", b"before")
        self.set("Enabled")
        version = self.put("k", b"after")["VersionId"]
        self.assertEqual(self.listed()[0], [("k", version, True), ("k", "null", False)])
        self.assertEqual(self.read("k", VersionId="null"), b"before")
        self.delete(version=version)
        self.assertEqual((self.read("k"), self.get("k")["VersionId"]), (b"before", "null"))
        self.delete(version="null")
        self.assertEqual(self.listed(), ([], []))

    def test_suspended_writes_replace_the_null_version(self):
        version = self.put("k", b"versioned")["VersionId"]
        self.set("Suspended")
        self.put("k", b"null one")
        self.put("k", b"null two")
        self.assertEqual(self.read("k"), b"null two")
        self.assertEqual(self.listed()[0], [("k", "null", True), ("k", version, False)])

    def test_suspended_deletes_replace_the_null_version(self):
        version = self.put("k", b"versioned")["VersionId"]
        self.set("Suspended")
        self.put("k", b"null")
        for _ in range(2):
            answer = self.delete()
            self.assertEqual((answer["DeleteMarker"], answer["VersionId"]), (True, "null"))
            self.assertEqual(self.listed(), ([("k", version, False)], [("k", "null", True)]))
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_never_enabled(self):
        bucket = self.new_bucket()
        put = S3.put_object(Bucket=bucket, Key="k", Body=b"x")
        self.assertNotIn("VersionId", put)
        page = S3.list_object_versions(Bucket=bucket)
        self.assertEqual([(v["Key"], v["VersionId"], v["IsLatest"]) for v in page["Versions"]], [("k", "null", True)])
        self.assertNotIn("VersionId", S3.get_object(Bucket=bucket, Key="k"))
        answer = S3.delete_object(Bucket=bucket, Key="k")
        self.assertNotIn("DeleteMarker", answer)
        self.assertNotIn("Versions", S3.list_object_versions(Bucket=bucket))

    def test_a_bucket_with_a_version_is_not_empty(self):
        version = self.put("k", b"x")["VersionId"]
        marker = self.delete()["VersionId"]
        self.refused(409, "BucketNotEmpty", S3.delete_bucket, Bucket=self.bucket)
        self.delete(version=version)
        self.refused(409, "BucketNotEmpty", S3.delete_bucket, Bucket=self.bucket)
        self.delete(version=marker)
        S3.delete_bucket(Bucket=self.bucket)

    def test_several_deleted_at_once(self):
        one, two = self.put("k", b"1")["VersionId"], self.put("k", b"2")["VersionId"]
        self.put("m", b"3")
        objects = [{"Key": "k", "VersionId": one}, {"Key": "k", "VersionId": two}, {"Key": "m"}]
        deleted = S3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})["Deleted"]
        self.assertEqual({d.get("VersionId") for d in deleted if d["Key"] == "k"}, {one, two})
        marker = next(d for d in deleted if d["Key"] == "m")
        self.assertTrue(marker["DeleteMarker"])
        versions, markers = self.listed()
        self.assertEqual(([k for k, _, _ in versions], markers), (["m"], [("m", marker["DeleteMarkerVersionId"], True)]))
        objects = [{"Key": "m", "VersionId": marker["DeleteMarkerVersionId"]}]
        again = S3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})["Deleted"][0]
        self.assertEqual((again["DeleteMarker"], again["DeleteMarkerVersionId"]), (True, marker["DeleteMarkerVersionId"]))
        self.assertEqual(self.read("m"), b"3")

    def test_uploads_in_parts_are_versions(self):
        ids = [self.upload("k", [data])["VersionId"] for data in (b"one", b"two")]
        self.assertEqual([self.read("k", VersionId=v) for v in ids], [b"one", b"two"])

    def test_list_in_pages(self):
        made = []
        for key in ("a", "b", "c"):
            made += reversed([(key, self.put(key, bytes([n]))["VersionId"]) for n in range(3)])
        listed, more, pages = [], {}, 0
        while True:
            page = S3.list_object_versions(Bucket=self.bucket, MaxKeys=2, **more)
            listed += [(v["Key"], v["VersionId"]) for v in page["Versions"]]
            pages += 1
            if not page["IsTruncated"]:
                break
            more = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
        self.assertEqual((listed, pages), (made, 5))

    def test_list_after_a_key(self):
        for key in ("a", "b", "c"):
            self.put(key)
        self.assertEqual([k for k, _, _ in self.listed(KeyMarker="a")[0]], ["b", "c"])

    def test_list_with_prefix_and_delimiter(self):
        for key in ("p/a/1", "p/a/2", "p/b", "q"):
            self.put(key)
        page = S3.list_object_versions(Bucket=self.bucket, Prefix="p/", Delimiter="/")
        self.assertEqual([v["Key"] for v in page["Versions"]], ["p/b"])
        self.assertEqual([p["Prefix"] for p in page["CommonPrefixes"]], ["p/a/"])

    def test_list_with_a_version_but_no_key_to_start_at(self):
        answer = request("GET", self.path(), query="versions=&version-id-marker=x")
        self.answered(answer, 400, "InvalidArgument")

    def test_tags_of_versions(self):
        one = self.put("k", b"1", Tagging="n=1")["VersionId"]
        two = self.put("k", b"2", Tagging="n=2")["VersionId"]
        tags = lambda **more: S3.get_object_tagging(Bucket=self.bucket, Key="k", **more)
        self.assertEqual(tags()["TagSet"], [{"Key": "n", "Value": "2"}])
        self.assertEqual((tags(VersionId=one)["TagSet"], tags(VersionId=one)["VersionId"]), ([{"Key": "n", "Value": "1"}], one))
        S3.delete_object_tagging(Bucket=self.bucket, Key="k", VersionId=two)
        self.assertEqual((tags()["TagSet"], tags(VersionId=one)["TagSet"]), ([], [{"Key": "n", "Value": "1"}]))

    def at_once(self, work, count=5):
        errors = []

        def run(number):
            try:
                work(number)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_made_and_removed_at_once(self):
        for _ in range(5):
            self.at_once(lambda number: self.put("k", str(number).encode()))
            versions, markers = self.listed()
            self.assertEqual((len(versions), markers, sum(current for _, _, current in versions)), (5, [], 1))
            self.at_once(lambda number: self.delete(version=versions[number][1]))
            self.assertEqual(self.listed(), ([], []))

    def test_made_while_others_are_removed(self):
        before = [self.put("k", b"old")["VersionId"] for _ in range(5)]
        self.at_once(lambda n: self.delete(version=before[n]) if n < 5 else self.put("k", str(n).encode()), 10)
        versions, _ = self.listed()
        self.assertEqual(len(versions), 5)
        self.assertFalse({v for _, v, _ in versions} & set(before))
