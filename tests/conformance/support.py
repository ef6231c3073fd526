"""What the tests share: clients, requests by hand, a bucket for each test, and comparisons.

Endpoint and credentials come from ENDPOINT, ACCESS_KEY and SECRET_KEY. Run with `python3 -m unittest discover tests/conformance`.
"""

import base64
import hashlib
import http.client
import itertools
import os
import secrets
import unittest
import xml.etree.ElementTree as ElementTree
import zlib
from urllib.parse import quote, urlsplit

import awscrt

if "dev" in awscrt.__version__:
    # Debian's package does not know its version, and botocore takes it for older than CRC64NVME.
    awscrt.__version__ = "0.24.0"

import awscrt.checksums
import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = (os.environ[name] for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"))
HOST = urlsplit(ENDPOINT).netloc
KIB, MIB = 1 << 10, 1 << 20
PART = 5 * MIB
RUN = secrets.token_hex(3)
NUMBERS = itertools.count()


def client(access=ACCESS, secret=SECRET, **settings):
    """A client as a person makes it, that does not try again; `settings` are for botocore's Config."""
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=32, **settings)
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        config=config,
    )


S3 = client()


def plain(s3):
    """A client that adds no checksum of its own."""
    s3.meta.events.register("before-call.s3.*", lambda params, **_: params["context"].pop("checksum", None))
    return s3


class Answer:
    """What came back over the wire."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def code(self):
        return self.text("Code")

    def text(self, name):
        """The text of the first element of that name, with or without a namespace."""
        for element in ElementTree.fromstring(self.body).iter():
            if element.tag.split("}")[-1] == name:
                return element.text or ""
        return None


def fields_of(method, path, body=b"", headers=None, signed=True, query="", access=ACCESS, secret=SECRET, payload=None):
    """The header fields of a request made by hand. `payload` replaces the body's SHA-256 among what is signed."""
    target = path + (f"?{query}" if query else "")
    fields = {"Host": HOST, **(headers or {})}
    if signed:
        aws = AWSRequest(method=method, url=ENDPOINT + target, data=body, headers=dict(fields))
        signer = S3SigV4Auth(Credentials(access, secret), "s3", "us-east-1")
        # botocore itself leaves the body unsigned or not by the endpoint's scheme.
        signer.payload = lambda _request: payload or hashlib.sha256(body).hexdigest()
        signer.add_auth(aws)
        fields = {**dict(aws.headers.items()), "Host": HOST}
    if not any(name.lower() in ("content-length", "transfer-encoding") for name in fields):
        if body or method in ("PUT", "POST"):
            fields["Content-Length"] = str(len(body))
    return fields


def request(method, path, body=b"", headers=None, query="", change=None, **arguments):
    """One request made by hand: `path` and `query` go on the wire as they are. `change` gets the fields after signing; the
    other arguments are those of `fields_of`."""
    target = path + (f"?{query}" if query else "")
    fields = fields_of(method, path, body, headers, query=query, **arguments)
    if change:
        change(fields)
    connection = http.client.HTTPConnection(HOST, timeout=60)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in fields.items():
            connection.putheader(name, value)
        try:
            connection.endheaders(body if body else None)
        except (BrokenPipeError, ConnectionResetError):
            # Refused before all of it was sent; the answer is there all the same.
            pass
        return Answer(connection.getresponse())
    finally:
        connection.close()


def md5(data):
    return hashlib.md5(data).hexdigest()


def etag(data):
    return f'"{md5(data)}"'


def parts_etag(parts):
    whole = md5(b"".join(hashlib.md5(part).digest() for part in parts))
    return f'"{whole}-{len(parts)}"'


def b64(data):
    return base64.b64encode(data).decode()


SUMS = {
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "CRC32C": lambda data: awscrt.checksums.crc32c(data).to_bytes(4, "big"),
    "CRC64NVME": lambda data: awscrt.checksums.crc64nvme(data).to_bytes(8, "big"),
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}


def bucket_name():
    return f"conf-{RUN}-{next(NUMBERS)}"


def empty(bucket):
    """Deletes all versions and uploads of a bucket."""
    while True:
        page = S3.list_object_versions(Bucket=bucket)
        gone = [
            {"Key": v["Key"], "VersionId": v["VersionId"]}
            for kind in ("Versions", "DeleteMarkers")
            for v in page.get(kind, [])
        ]
        if not gone:
            break
        answer = S3.delete_objects(Bucket=bucket, Delete={"Objects": gone, "Quiet": True})
        if answer.get("Errors"):
            raise AssertionError(f"{bucket} cannot be emptied: {answer['Errors'][:3]}")
    for upload in S3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        S3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def seconds(time):
    """Without what headers do not tell."""
    return time.replace(microsecond=0)


class Case(unittest.TestCase):
    """A test with a bucket of its own, which is gone afterwards."""

    maxDiff = 2000

    def setUp(self):
        self.buckets = []
        self.bucket = self.new_bucket()

    def tearDown(self):
        for bucket in self.buckets:
            try:
                empty(bucket)
                S3.delete_bucket(Bucket=bucket)
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchBucket":
                    raise

    def new_bucket(self):
        bucket = bucket_name()
        S3.create_bucket(Bucket=bucket)
        self.buckets.append(bucket)
        return bucket

    def put(self, key, body=b"", **arguments):
        return S3.put_object(Bucket=self.bucket, Key=key, Body=body, **arguments)

    def keys(self, *keys):
        for key in keys:
            self.put(key, key.encode())

    def get(self, key, **arguments):
        return S3.get_object(Bucket=self.bucket, Key=key, **arguments)

    def read(self, key, **arguments):
        return self.get(key, **arguments)["Body"].read()

    def head(self, key, **arguments):
        return S3.head_object(Bucket=self.bucket, Key=key, **arguments)

    def same_bytes(self, got, expected):
        """As assertEqual, without printing megabytes."""
        if got != expected:
            self.fail(f"{len(got)} bytes {md5(got)} instead of {len(expected)} bytes {md5(expected)}")

    def refused(self, status, codes, call, **arguments):
        """The call must fail with this status and one of these codes; returns the error's answer."""
        codes = {codes} if isinstance(codes, str) else set(codes)
        try:
            answer = call(**arguments)
        except ClientError as error:
            got = (error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"])
            self.assertEqual(got[0], status, got)
            self.assertIn(got[1], codes)
            return error.response
        self.fail(f"accepted: {answer['ResponseMetadata']['HTTPStatusCode']}")

    def answered(self, answer, status, code=None):
        """The same for a request made by hand."""
        self.assertEqual(answer.status, status, answer.body[:600])
        if code is not None:
            codes = {code} if isinstance(code, str) else set(code)
            self.assertIn(answer.code, codes)
        return answer

    def upload(self, key, parts, s3=S3, part=None, complete=None, **arguments):
        """A multipart upload of `parts`; `part` and `complete` are arguments of the calls for parts and the last one."""
        upload = s3.create_multipart_upload(Bucket=self.bucket, Key=key, **arguments)["UploadId"]
        done = []
        for number, data in enumerate(parts, 1):
            answer = s3.upload_part(
                Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data, **(part or {})
            )
            sums = {name: value for name, value in answer.items() if name.startswith("Checksum") and name != "ChecksumType"}
            done.append({"PartNumber": number, "ETag": answer["ETag"], **sums})
        return s3.complete_multipart_upload(
            Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": done}, **(complete or {})
        )

    def path(self, key=""):
        return f"/{self.bucket}/{quote(key)}" if key else f"/{self.bucket}"
