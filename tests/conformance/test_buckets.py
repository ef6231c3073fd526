"""Buckets: make, list, look at, delete; names."""

import datetime

from support import S3, Case, bucket_name, request


class Buckets(Case):
    def test_made_then_listed_then_deleted(self):
        S3.head_bucket(Bucket=self.bucket)
        self.assertIn(self.bucket, [b["Name"] for b in S3.list_buckets()["Buckets"]])
        self.assertEqual(S3.delete_bucket(Bucket=self.bucket)["ResponseMetadata"]["HTTPStatusCode"], 204)
        self.assertNotIn(self.bucket, [b["Name"] for b in S3.list_buckets()["Buckets"]])
        self.refused(404, "404", S3.head_bucket, Bucket=self.bucket)

    def test_creation_answers_with_the_location(self):
        name = bucket_name()
        self.buckets.append(name)
        self.assertEqual(S3.create_bucket(Bucket=name)["Location"], f"/{name}")

    def test_creation_time_is_now(self):
        now = datetime.datetime.now(datetime.timezone.utc)
        made = next(b["CreationDate"] for b in S3.list_buckets()["Buckets"] if b["Name"] == self.bucket)
        self.assertLess(abs((made - now).total_seconds()), 60)

    def test_names_are_listed_in_order(self):
        self.new_bucket(), self.new_bucket()
        names = [b["Name"] for b in S3.list_buckets()["Buckets"]]
        self.assertEqual(names, sorted(names))

    def test_owner_is_told(self):
        self.assertTrue(S3.list_buckets()["Owner"]["ID"])

    def test_list_in_pages(self):
        mine = sorted([self.bucket, self.new_bucket(), self.new_bucket()])
        prefix = self.bucket.rsplit("-", 1)[0]
        found, token, pages = [], {}, 0
        while True:
            page = S3.list_buckets(MaxBuckets=1, Prefix=prefix, **token)
            self.assertLessEqual(len(page["Buckets"]), 1)
            self.assertEqual(page.get("Prefix"), prefix)
            found += [b["Name"] for b in page["Buckets"]]
            pages += 1
            if "ContinuationToken" not in page:
                break
            token = {"ContinuationToken": page["ContinuationToken"]}
        self.assertEqual(found, mine)
        self.assertGreaterEqual(pages, 3)

    def test_list_with_a_prefix_that_none_has(self):
        self.assertEqual(S3.list_buckets(Prefix="zz-none").get("Buckets", []), [])

    def test_made_again_keeps_its_objects(self):
        self.keys("kept")
        S3.create_bucket(Bucket=self.bucket)
        self.assertEqual(self.read("kept"), b"kept")

    def test_delete_of_one_with_objects(self):
        self.keys("x")
        self.refused(409, "BucketNotEmpty", S3.delete_bucket, Bucket=self.bucket)
        self.assertEqual(self.read("x"), b"x")

    def test_delete_of_none(self):
        self.refused(404, "NoSuchBucket", S3.delete_bucket, Bucket=bucket_name())

    def test_delete_twice(self):
        S3.delete_bucket(Bucket=self.bucket)
        self.refused(404, "NoSuchBucket", S3.delete_bucket, Bucket=self.bucket)

    def test_head_of_none(self):
        self.refused(404, "404", S3.head_bucket, Bucket=bucket_name())

    def test_location_of_the_first_region_is_empty(self):
        self.assertIsNone(S3.get_bucket_location(Bucket=self.bucket)["LocationConstraint"])

    def test_location_of_none(self):
        self.refused(404, "NoSuchBucket", S3.get_bucket_location, Bucket=bucket_name())

    def test_everything_in_a_bucket_that_is_not_there(self):
        none = bucket_name()
        for call, more in [
            (S3.list_objects, {}),
            (S3.list_objects_v2, {}),
            (S3.list_object_versions, {}),
            (S3.list_multipart_uploads, {}),
            (S3.get_object, {"Key": "k"}),
            (S3.put_object, {"Key": "k", "Body": b"x"}),
            (S3.delete_object, {"Key": "k"}),
            (S3.create_multipart_upload, {"Key": "k"}),
            (S3.get_bucket_versioning, {}),
            (S3.get_bucket_tagging, {}),
        ]:
            with self.subTest(call.__name__):
                self.refused(404, "NoSuchBucket", call, Bucket=none, **more)

    def test_bucket_region_is_in_the_answer_to_head(self):
        answer = S3.head_bucket(Bucket=self.bucket)
        self.assertEqual(answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region"), "us-east-1")

    def test_another_owner_is_expected(self):
        self.keys("x")
        for call, more in [(S3.head_bucket, {}), (S3.list_objects_v2, {}), (S3.get_object, {"Key": "x"})]:
            with self.subTest(call.__name__):
                codes = {"AccessDenied", "403"}
                self.refused(403, codes, call, Bucket=self.bucket, ExpectedBucketOwner="999999999999", **more)


class Names(Case):
    def good(self, name):
        S3.create_bucket(Bucket=name)
        self.buckets.append(name)
        S3.put_object(Bucket=name, Key="k", Body=b"x")
        self.assertEqual(S3.get_object(Bucket=name, Key="k")["Body"].read(), b"x")

    def bad(self, name):
        answer = request("PUT", f"/{name}")
        self.answered(answer, 400, "InvalidBucketName")

    def test_63_characters(self):
        self.good((self.bucket + "-long" * 20)[:62] + "z")

    def test_64_characters(self):
        self.bad((self.bucket + "-long" * 20)[:63] + "z")

    def test_one_character(self):
        self.bad("a")

    def test_two_characters(self):
        self.bad("ab")

    def test_a_digit_first(self):
        self.good("0" + self.bucket)

    def test_a_letter_first(self):
        self.good("a" + self.bucket)

    def test_a_hyphen_within(self):
        self.good(self.bucket + "-a-b")

    def test_a_period_within(self):
        self.good(self.bucket + ".a.b")

    def test_upper_case(self):
        self.bad("Upper" + self.bucket)

    def test_an_underscore(self):
        self.bad("under_" + self.bucket)

    def test_a_hyphen_first(self):
        self.bad("-" + self.bucket)

    def test_a_hyphen_last(self):
        self.bad(self.bucket + "-")

    def test_two_periods_in_a_row(self):
        self.bad(self.bucket + "..a")

    def test_an_address(self):
        self.bad("192.168.5.4")

    def test_reserved_prefix(self):
        self.bad("xn--" + self.bucket)

    def test_reserved_suffix(self):
        self.bad(self.bucket + "-s3alias")
