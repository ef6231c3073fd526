"""Tags of objects and buckets."""

from support import S3, Case, request


def tag_set(count, key=lambda n: str(n), value=lambda n: str(n)):
    return [{"Key": key(n), "Value": value(n)} for n in range(count)]


class Objects(Case):
    def setUp(self):
        super().setUp()
        self.put("k", b"x")

    def set(self, tags, key="k"):
        return S3.put_object_tagging(Bucket=self.bucket, Key=key, Tagging={"TagSet": tags})

    def tags(self, key="k"):
        return S3.get_object_tagging(Bucket=self.bucket, Key=key)["TagSet"]

    def not_set(self, code, tags):
        self.refused(400, code, S3.put_object_tagging, Bucket=self.bucket, Key="k", Tagging={"TagSet": tags})
        self.assertEqual(self.tags(), [])

    def test_none(self):
        self.assertEqual(self.tags(), [])

    def test_set_changed_deleted(self):
        self.set(tag_set(2))
        self.assertEqual(self.tags(), tag_set(2))
        self.set([{"Key": "other", "Value": ""}])
        self.assertEqual(self.tags(), [{"Key": "other", "Value": ""}])
        answer = S3.delete_object_tagging(Bucket=self.bucket, Key="k")
        self.assertEqual((answer["ResponseMetadata"]["HTTPStatusCode"], self.tags()), (204, []))

    def test_ten(self):
        self.set(tag_set(10))
        self.assertEqual(sorted(self.tags(), key=lambda t: t["Key"]), tag_set(10))

    def test_eleven(self):
        self.not_set({"BadRequest", "InvalidTag"}, tag_set(11))

    def test_the_longest(self):
        tags = tag_set(10, lambda n: f"{n}" * 128, lambda n: f"{n}" * 256)
        self.set(tags)
        self.assertEqual(sorted(self.tags(), key=lambda t: t["Key"]), tags)

    def test_a_key_too_long(self):
        self.not_set("InvalidTag", tag_set(1, lambda n: "k" * 129))

    def test_a_value_too_long(self):
        self.not_set("InvalidTag", tag_set(1, value=lambda n: "v" * 257))

    def test_a_key_twice(self):
        self.not_set("InvalidTag", [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}])

    def test_letters_and_signs(self):
        tags = [{"Key": "caf\u00e9 + - = . _ : / @", "Value": "\u65e5 @:/=+-._"}]
        self.set(tags)
        self.assertEqual(self.tags(), tags)

    def test_with_the_object(self):
        self.put("t", b"x", Tagging="foo=bar&bar=&a%20b=c%2Bd")
        self.assertEqual(
            sorted(self.tags("t"), key=lambda t: t["Key"]),
            [{"Key": "a b", "Value": "c+d"}, {"Key": "bar", "Value": ""}, {"Key": "foo", "Value": "bar"}],
        )

    def test_with_the_object_too_many(self):
        tagging = "&".join(f"k{n}=v" for n in range(11))
        codes = {"BadRequest", "InvalidTag"}
        self.refused(400, codes, S3.put_object, Bucket=self.bucket, Key="t", Body=b"x", Tagging=tagging)
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="t")

    def test_with_an_upload_in_parts(self):
        self.upload("t", [b"x"], Tagging="foo=bar")
        self.assertEqual(self.tags("t"), [{"Key": "foo", "Value": "bar"}])

    def test_count_is_told(self):
        self.assertNotIn("TagCount", self.get("k"))
        self.set(tag_set(3))
        self.assertEqual(self.get("k")["TagCount"], 3)

    def test_do_not_change_the_object(self):
        before = self.head("k")
        self.set(tag_set(1))
        after = self.head("k")
        self.assertEqual((after["ETag"], after["LastModified"]), (before["ETag"], before["LastModified"]))

    def test_are_gone_with_a_new_object(self):
        self.set(tag_set(1))
        self.put("k", b"new")
        self.assertEqual(self.tags(), [])

    def test_of_no_object(self):
        for call, more in [
            (S3.get_object_tagging, {}),
            (S3.put_object_tagging, {"Tagging": {"TagSet": tag_set(1)}}),
            (S3.delete_object_tagging, {}),
        ]:
            with self.subTest(call.__name__):
                self.refused(404, "NoSuchKey", call, Bucket=self.bucket, Key="none", **more)

    def test_not_xml(self):
        self.answered(request("PUT", self.path("k"), b"tags", query="tagging="), 400, "MalformedXML")


class Buckets(Case):
    def set(self, tags):
        S3.put_bucket_tagging(Bucket=self.bucket, Tagging={"TagSet": tags})

    def tags(self):
        return S3.get_bucket_tagging(Bucket=self.bucket)["TagSet"]

    def test_none(self):
        self.refused(404, "NoSuchTagSet", S3.get_bucket_tagging, Bucket=self.bucket)

    def test_set_changed_deleted(self):
        self.set([{"Key": "Hello", "Value": "World"}])
        self.assertEqual(self.tags(), [{"Key": "Hello", "Value": "World"}])
        self.set([{"Key": "other", "Value": "one"}])
        self.assertEqual(self.tags(), [{"Key": "other", "Value": "one"}])
        S3.delete_bucket_tagging(Bucket=self.bucket)
        self.refused(404, "NoSuchTagSet", S3.get_bucket_tagging, Bucket=self.bucket)

    def test_fifty_and_no_more(self):
        self.set(tag_set(50))
        self.assertEqual(len(self.tags()), 50)
        self.refused(400, {"BadRequest", "InvalidTag"}, S3.put_bucket_tagging, Bucket=self.bucket, Tagging={"TagSet": tag_set(51)})
        self.assertEqual(len(self.tags()), 50)

    def test_a_key_twice(self):
        tags = [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]
        self.refused(400, "InvalidTag", S3.put_bucket_tagging, Bucket=self.bucket, Tagging={"TagSet": tags})
