"""What the command-line tools do, with the Python clients: `verbs.py boto3|minio VERB BUCKET [ARGUMENT…]`.

Endpoint and credentials come from ENDPOINT, ACCESS_KEY and SECRET_KEY. Verbs: make, buckets, put FILE KEY, get KEY FILE,
copy FROM TO, up FOLDER PREFIX, down PREFIX FOLDER, list PREFIX, remove KEY, clear, drop.
"""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

ENDPOINT, ACCESS, SECRET = (os.environ[name] for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"))
PART = 5 << 20


def files(folder):
    return sorted(p for p in Path(folder).rglob("*") if p.is_file())


class Boto3:
    def __init__(self):
        import awscrt

        if "dev" in awscrt.__version__:
            # Debian's package does not know its version, and botocore takes it for older than CRC64NVME.
            awscrt.__version__ = "0.24.0"
        import boto3
        from boto3.s3.transfer import TransferConfig

        self.s3 = boto3.client(
            "s3",
            endpoint_url=ENDPOINT,
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
        self.config = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)

    def make(self, bucket):
        self.s3.create_bucket(Bucket=bucket)

    def buckets(self, _bucket):
        for bucket in self.s3.list_buckets()["Buckets"]:
            print(bucket["Name"])

    def put(self, bucket, file, key):
        self.s3.upload_file(file, bucket, key, Config=self.config)

    def get(self, bucket, key, file):
        self.s3.download_file(bucket, key, file, Config=self.config)

    def copy(self, bucket, source, target):
        self.s3.copy({"Bucket": bucket, "Key": source}, bucket, target, Config=self.config)

    def keys(self, bucket, prefix):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [o["Key"] for page in pages for o in page.get("Contents", [])]

    def remove(self, bucket, key):
        self.s3.delete_object(Bucket=bucket, Key=key)

    def clear(self, bucket):
        keys = self.keys(bucket, "")
        gone = self.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        assert sorted(d["Key"] for d in gone["Deleted"]) == sorted(keys), gone

    def drop(self, bucket):
        self.s3.delete_bucket(Bucket=bucket)


class Minio:
    def __init__(self):
        import minio

        self.minio = minio
        self.s3 = minio.Minio(urlsplit(ENDPOINT).netloc, access_key=ACCESS, secret_key=SECRET, secure=False)

    def make(self, bucket):
        self.s3.make_bucket(bucket)
        assert self.s3.bucket_exists(bucket)

    def buckets(self, _bucket):
        for bucket in self.s3.list_buckets():
            print(bucket.name)

    def put(self, bucket, file, key):
        self.s3.fput_object(bucket, key, file, part_size=PART)

    def get(self, bucket, key, file):
        self.s3.fget_object(bucket, key, file)

    def copy(self, bucket, source, target):
        from minio.commonconfig import CopySource

        self.s3.copy_object(bucket, target, CopySource(bucket, source))

    def keys(self, bucket, prefix):
        return [o.object_name for o in self.s3.list_objects(bucket, prefix=prefix, recursive=True)]

    def remove(self, bucket, key):
        self.s3.remove_object(bucket, key)

    def clear(self, bucket):
        from minio.deleteobjects import DeleteObject

        errors = list(self.s3.remove_objects(bucket, [DeleteObject(key) for key in self.keys(bucket, "")]))
        assert not errors, errors

    def drop(self, bucket):
        self.s3.remove_bucket(bucket)
        assert not self.s3.bucket_exists(bucket)


def up(client, bucket, folder, prefix):
    """Makes what is under the prefix the same as the folder."""
    want = {prefix + p.relative_to(folder).as_posix(): p for p in files(folder)}
    for key, path in want.items():
        client.put(bucket, str(path), key)
    for key in set(client.keys(bucket, prefix)) - set(want):
        client.remove(bucket, key)


def down(client, bucket, prefix, folder):
    for key in client.keys(bucket, prefix):
        path = Path(folder) / key.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        client.get(bucket, key, str(path))


def main():
    name, verb, bucket, *arguments = sys.argv[1:]
    client = {"boto3": Boto3, "minio": Minio}[name]()
    match verb:
        case "up":
            up(client, bucket, *arguments)
        case "down":
            down(client, bucket, *arguments)
        case "list":
            for key in client.keys(bucket, *arguments):
                print(key.removeprefix(arguments[0]))
        case _:
            getattr(client, verb)(bucket, *arguments)


main()
