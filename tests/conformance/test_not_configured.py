"""What this server has no more of than its plain answer: see the page "Operations" of the book."""

from support import S3, Case, request

GRANT_ALL = "http://acs.amazonaws.com/groups/global/AllUsers"


class Answered(Case):
    """S3's own answers where nothing is configured."""

    def test_errors_of_what_is_not_configured(self):
        for call, code in [
            (S3.get_bucket_cors, "NoSuchCORSConfiguration"),
            (S3.get_bucket_encryption, "ServerSideEncryptionConfigurationNotFoundError"),
            (S3.get_bucket_lifecycle_configuration, "NoSuchLifecycleConfiguration"),
            (S3.get_bucket_policy, "NoSuchBucketPolicy"),
            (S3.get_bucket_replication, "ReplicationConfigurationNotFoundError"),
            (S3.get_bucket_website, "NoSuchWebsiteConfiguration"),
            (S3.get_object_lock_configuration, "ObjectLockConfigurationNotFoundError"),
            (S3.get_public_access_block, "NoSuchPublicAccessBlockConfiguration"),
        ]:
            with self.subTest(call.__name__):
                self.refused(404, code, call, Bucket=self.bucket)

    def test_empty_documents(self):
        for call in (
            S3.get_bucket_accelerate_configuration, S3.get_bucket_logging, S3.get_bucket_notification_configuration,
        ):
            with self.subTest(call.__name__):
                self.assertEqual(set(call(Bucket=self.bucket)), {"ResponseMetadata"})

    def test_facts(self):
        self.assertEqual(S3.get_bucket_request_payment(Bucket=self.bucket)["Payer"], "BucketOwner")
        self.assertFalse(S3.get_bucket_policy_status(Bucket=self.bucket)["PolicyStatus"]["IsPublic"])
        rules = S3.get_bucket_ownership_controls(Bucket=self.bucket)["OwnershipControls"]["Rules"]
        self.assertEqual(rules, [{"ObjectOwnership": "BucketOwnerEnforced"}])

    def test_the_owner_has_full_control(self):
        self.put("k", b"x")
        owner = S3.list_buckets()["Owner"]["ID"]
        for answer in (S3.get_bucket_acl(Bucket=self.bucket), S3.get_object_acl(Bucket=self.bucket, Key="k")):
            self.assertEqual(answer["Owner"]["ID"], owner)
            self.assertEqual([(g["Grantee"]["ID"], g["Permission"]) for g in answer["Grants"]], [(owner, "FULL_CONTROL")])

    def test_acl_of_no_object(self):
        self.refused(404, "NoSuchKey", S3.get_object_acl, Bucket=self.bucket, Key="none")

    def test_private_is_accepted(self):
        self.put("k", b"x", ACL="private")
        self.assertEqual(self.read("k"), b"x")
        self.put("k", b"y", ACL="bucket-owner-full-control")
        self.assertEqual(self.read("k"), b"y")


class Refused(Case):
    """Never a wrong success."""

    def not_there(self, call, *codes, **arguments):
        codes = codes or ("NotImplemented",)
        try:
            call(**arguments)
        except S3.exceptions.ClientError as error:
            self.assertIn(error.response["Error"]["Code"], codes)
            return
        self.fail("accepted")

    def test_public_objects(self):
        self.not_there(S3.put_object, "AccessControlListNotSupported", "NotImplemented", Bucket=self.bucket, Key="k", Body=b"x", ACL="public-read")
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_public_buckets(self):
        self.not_there(S3.put_bucket_acl, "AccessControlListNotSupported", "NotImplemented", Bucket=self.bucket, ACL="public-read-write")

    def test_configurations(self):
        rule = {"Rules": [{"ID": "r", "Status": "Enabled", "Prefix": "", "Expiration": {"Days": 1}}]}
        cors = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
        sse = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
        block = {"BlockPublicAcls": True, "IgnorePublicAcls": True, "BlockPublicPolicy": True, "RestrictPublicBuckets": True}
        for call, more in [
            (S3.put_bucket_cors, {"CORSConfiguration": cors}),
            (S3.put_bucket_encryption, {"ServerSideEncryptionConfiguration": sse}),
            (S3.put_bucket_lifecycle_configuration, {"LifecycleConfiguration": rule}),
            (S3.put_bucket_policy, {"Policy": "{}"}),
            (S3.put_bucket_website, {"WebsiteConfiguration": {"IndexDocument": {"Suffix": "index.html"}}}),
            (S3.put_public_access_block, {"PublicAccessBlockConfiguration": block}),
            (S3.put_bucket_notification_configuration, {"NotificationConfiguration": {}}),
            (S3.delete_bucket_cors, {}),
            (S3.delete_bucket_policy, {}),
            (S3.delete_public_access_block, {}),
        ]:
            with self.subTest(call.__name__):
                self.not_there(call, Bucket=self.bucket, **more)

    def test_object_lock(self):
        self.put("k", b"x")
        lock = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}}
        where = {"Bucket": self.bucket, "Key": "k"}
        for call, more in [
            (S3.put_object_lock_configuration, {"Bucket": self.bucket, "ObjectLockConfiguration": lock}),
            (S3.put_object_legal_hold, {**where, "LegalHold": {"Status": "ON"}}),
            (S3.get_object_legal_hold, where),
            (S3.put_object_retention, {**where, "Retention": {"Mode": "GOVERNANCE", "RetainUntilDate": "2030-01-01T00:00:00Z"}}),
            (S3.get_object_retention, where),
            (S3.put_object, {**where, "Body": b"y", "ObjectLockLegalHoldStatus": "ON"}),
            (S3.put_object, {**where, "Body": b"y", "ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": "2030-01-01T00:00:00Z"}),
            (S3.create_bucket, {"Bucket": self.bucket + "-locked", "ObjectLockEnabledForBucket": True}),
        ]:
            with self.subTest(call.__name__):
                self.not_there(call, "NotImplemented", "InvalidRequest", **more)
        self.assertEqual(self.read("k"), b"x")

    def test_encryption(self):
        for more in ({"ServerSideEncryption": "aws:kms"}, {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}):
            with self.subTest(str(list(more))):
                self.not_there(S3.put_object, "NotImplemented", "InvalidArgument", "InvalidRequest", Bucket=self.bucket, Key="k", Body=b"x", **more)
        self.refused(404, "NoSuchKey", S3.get_object, Bucket=self.bucket, Key="k")

    def test_torrents_and_selections(self):
        self.put("k", b"x")
        self.not_there(S3.get_object_torrent, "NotImplemented", "MethodNotAllowed", Bucket=self.bucket, Key="k")
        self.answered(request("POST", self.path("k"), b"<x/>", query="select=&select-type=2"), 501, "NotImplemented")

    def test_uploads_by_form(self):
        body = b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\nk\r\n--x--\r\n'
        answer = request("POST", self.path(), body, {"Content-Type": "multipart/form-data; boundary=x"})
        self.assertIn(answer.status, (405, 501))
