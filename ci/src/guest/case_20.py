"""boto3 with its default settings against the endpoint: what is stored is what comes back, byte by byte.

Usage: case_20.py ENDPOINT BUCKET. Prints a line for each check, and at the end how many passed; status 1 at the first that fails.
"""

import hashlib
import io
import os
import sys
import threading
import urllib.error
import urllib.request

import awscrt

if "dev" in awscrt.__version__:
    # Debian's package does not know its version, and botocore takes it for older than CRC64NVME.
    awscrt.__version__ = "0.24.0"

import boto3
import botocore
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

MIB = 1 << 20
ENDPOINT, BUCKET = sys.argv[1:]


def client(**settings):
    """A client as a person makes it; `settings` are for botocore's Config."""
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id="anybody",
        aws_secret_access_key="anything",
        config=Config(**settings) if settings else None,
    )


def as_over_tls(s3):
    """Puts checksums where botocore puts them when the endpoint is https: behind the body, which is unsigned then."""

    def to_trailer(params, **_):
        algorithm = params["context"].get("checksum", {}).get("request_algorithm")
        if isinstance(algorithm, dict):
            algorithm["in"] = "trailer"

    s3.meta.events.register("before-call.s3.PutObject", to_trailer)
    s3.meta.events.register("before-call.s3.UploadPart", to_trailer)
    return s3


def sent_headers(s3, operation):
    """The headers of each request of `operation` from now on."""
    seen = []
    s3.meta.events.register(f"before-send.s3.{operation}", lambda request, **_: seen.append(dict(request.headers)))
    return seen


def header(headers, name):
    value = next((v for k, v in headers.items() if k.lower() == name), None)
    return value.decode() if isinstance(value, bytes) else value


def same(what, got, expected):
    if got != expected:
        if isinstance(expected, bytes):
            got, expected = (f"{len(b)} bytes {hashlib.sha256(b).hexdigest()}" for b in (got, expected))
        raise AssertionError(f"{what}: {got!r} instead of {expected!r}")


def refused(what, status, codes, call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        same(f"{what}, status", error.response["ResponseMetadata"]["HTTPStatusCode"], status)
        if error.response["Error"]["Code"] not in codes:
            raise AssertionError(f"{what}: error code {error.response['Error']['Code']!r}") from error
        return
    raise AssertionError(f"{what} was accepted")


def fetch(s3, key, **arguments):
    return s3.get_object(Bucket=BUCKET, Key=key, **arguments)["Body"].read()


def etag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


def case_20_buckets():
    s3 = client()
    same("buckets", [b["Name"] for b in s3.list_buckets()["Buckets"]], [BUCKET])
    s3.head_bucket(Bucket=BUCKET)
    s3.get_bucket_location(Bucket=BUCKET)
    refused("HEAD of another bucket", 404, ["404", "NoSuchBucket"], s3.head_bucket, Bucket="nobodys")


def case_20_put_get_head():
    s3 = client()
    sent = sent_headers(s3, "PutObject")
    data = os.urandom(MIB + 1)
    answer = s3.put_object(
        Bucket=BUCKET, Key="dir/one a+b.bin", Body=data, Metadata={"colour": "blue"}, ContentType="image/png"
    )
    if not header(sent[0], "x-amz-checksum-crc32"):
        raise AssertionError(f"this boto3 sends no CRC32 by default: {sent[0]}")
    same("PUT, ETag", answer["ETag"], etag(data))
    got = s3.get_object(Bucket=BUCKET, Key="dir/one a+b.bin")
    same("GET", got["Body"].read(), data)
    same("GET, ETag", got["ETag"], etag(data))
    head = s3.head_object(Bucket=BUCKET, Key="dir/one a+b.bin")
    same("HEAD, length", head["ContentLength"], len(data))
    same("HEAD, metadata", (head["Metadata"], head["ContentType"]), ({"colour": "blue"}, "image/png"))
    refused("GET of no object", 404, ["NoSuchKey"], s3.get_object, Bucket=BUCKET, Key="none")
    refused("HEAD of no object", 404, ["404"], s3.head_object, Bucket=BUCKET, Key="none")


def case_20_empty_and_stream():
    s3 = client()
    s3.put_object(Bucket=BUCKET, Key="empty")
    same("GET of nothing", fetch(s3, "empty"), b"")
    data = os.urandom(300_000)
    s3.put_object(Bucket=BUCKET, Key="stream", Body=io.BytesIO(data))
    same("GET of a stream", fetch(s3, "stream"), data)


def case_20_ranges():
    s3 = client()
    data = os.urandom(200_000)
    s3.put_object(Bucket=BUCKET, Key="ranges", Body=data)
    for words, part in [
        ("bytes=0-0", data[:1]),
        ("bytes=1000-150000", data[1000:150001]),
        ("bytes=199999-", data[-1:]),
        ("bytes=-5", data[-5:]),
        ("bytes=100-9999999", data[100:]),
    ]:
        got = s3.get_object(Bucket=BUCKET, Key="ranges", Range=words)
        same(f"{words}, status", got["ResponseMetadata"]["HTTPStatusCode"], 206)
        same(words, got["Body"].read(), part)
    refused("a range behind the end", 416, ["InvalidRange"], s3.get_object, Bucket=BUCKET, Key="ranges", Range="bytes=200000-")


def case_20_conditions():
    s3 = client()
    tag = s3.put_object(Bucket=BUCKET, Key="tag", Body=b"one")["ETag"]
    same("If-Match", fetch(s3, "tag", IfMatch=tag), b"one")
    refused("If-Match", 412, ["PreconditionFailed"], s3.get_object, Bucket=BUCKET, Key="tag", IfMatch='"other"')
    refused("If-None-Match", 304, ["304"], s3.get_object, Bucket=BUCKET, Key="tag", IfNoneMatch=tag)


def case_20_checksums():
    data = os.urandom(100_003)
    for algorithm in ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]:
        for where, s3 in [("header", client()), ("trailer", as_over_tls(client()))]:
            what, key = f"{algorithm} in a {where}", f"sum-{algorithm}-{where}"
            sent = sent_headers(s3, "PutObject")
            answer = s3.put_object(Bucket=BUCKET, Key=key, Body=data, ChecksumAlgorithm=algorithm)
            name = f"x-amz-checksum-{algorithm.lower()}"
            if where == "trailer":
                same(f"{what}, announced", header(sent[0], "x-amz-trailer"), name)
                same(f"{what}, coding", header(sent[0], "content-encoding"), "aws-chunked")
            else:
                same(f"{what}, answer", answer.get(f"Checksum{algorithm}"), header(sent[0], name))
            got = s3.get_object(Bucket=BUCKET, Key=key)
            same(what, got["Body"].read(), data)
            if "aws-chunked" in got.get("ContentEncoding", ""):
                raise AssertionError(f"{what}: the transfer's coding was kept as the object's")
            same(f"{what}, kept", got.get(f"Checksum{algorithm}"), answer.get(f"Checksum{algorithm}"))


def case_20_wrong_checksum():
    s3 = client()
    s3.put_object(Bucket=BUCKET, Key="right", Body=b"123456789")
    refused(
        "a wrong CRC32", 400, ["BadDigest", "XAmzContentChecksumMismatch"],
        s3.put_object, Bucket=BUCKET, Key="right", Body=b"other", ChecksumCRC32="y/Q5Jg==",
    )
    same("GET after a refused PUT", fetch(s3, "right"), b"123456789")
    s3.put_object(Bucket=BUCKET, Key="right", Body=b"123456789", ChecksumCRC32="y/Q5Jg==")


def case_20_multipart():
    for where, s3 in [("header", client()), ("trailer", as_over_tls(client()))]:
        parts = [os.urandom(5 * MIB), os.urandom(MIB + 7)]
        key = f"parts-{where}"
        upload = s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        tags = [
            s3.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=i, Body=part)["ETag"]
            for i, part in enumerate(parts, 1)
        ]
        same("part ETags", tags, [etag(part) for part in parts])
        listed = s3.list_parts(Bucket=BUCKET, Key=key, UploadId=upload)["Parts"]
        same("parts", [(p["PartNumber"], p["Size"]) for p in listed], [(1, 5 * MIB), (2, MIB + 7)])
        refused("GET before the end", 404, ["NoSuchKey"], s3.get_object, Bucket=BUCKET, Key=key)
        done = s3.complete_multipart_upload(
            Bucket=BUCKET,
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": i, "ETag": tag} for i, tag in enumerate(tags, 1)]},
        )
        whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
        same("ETag of the whole", done["ETag"], f'"{whole}-2"')
        same("GET of the whole", fetch(s3, key), b"".join(parts))


def case_20_multipart_abort():
    s3 = client()
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="aborted")["UploadId"]
    s3.upload_part(Bucket=BUCKET, Key="aborted", UploadId=upload, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=BUCKET, Key="aborted", UploadId=upload)
    refused(
        "a part after the abort", 404, ["NoSuchUpload"],
        s3.upload_part, Bucket=BUCKET, Key="aborted", UploadId=upload, PartNumber=2, Body=b"x",
    )
    refused("GET after the abort", 404, ["NoSuchKey"], s3.get_object, Bucket=BUCKET, Key="aborted")


def case_20_transfer_manager():
    """upload_fileobj and download_fileobj: several threads, parts with CRC32 in CompleteMultipartUpload."""
    settings = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    data = os.urandom(12 * MIB + 5)
    for where, s3 in [("header", client()), ("trailer", as_over_tls(client()))]:
        key = f"managed-{where}"
        s3.upload_fileobj(io.BytesIO(data), BUCKET, key, Config=settings)
        got = io.BytesIO()
        s3.download_fileobj(BUCKET, key, got, Config=settings)
        same(f"a managed transfer, {where}", got.getvalue(), data)
        if not s3.head_object(Bucket=BUCKET, Key=key)["ETag"].endswith('-3"'):
            raise AssertionError("the managed upload was not one of three parts")


def case_20_listing():
    s3 = client()
    names = [f"list/{i:02}/x" for i in range(7)] + ["list/a+ b.txt", "list/\u00e9"]
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=name.encode())
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="list/", PaginationConfig={"PageSize": 2})
    listed = [o for page in pages for o in page.get("Contents", [])]
    same("keys", [o["Key"] for o in listed], sorted(names, key=str.encode))
    same("sizes", [o["Size"] for o in listed], [len(o["Key"].encode()) for o in listed])
    old = s3.get_paginator("list_objects").paginate(Bucket=BUCKET, Prefix="list/", PaginationConfig={"PageSize": 4})
    same("keys, V1", [o["Key"] for page in old for o in page["Contents"]], [o["Key"] for o in listed])
    folders = s3.list_objects_v2(Bucket=BUCKET, Prefix="list/", Delimiter="/")
    same("folders", [p["Prefix"] for p in folders["CommonPrefixes"]], [f"list/{i:02}/" for i in range(7)])
    same("files", sorted(o["Key"] for o in folders["Contents"]), sorted(names[7:]))


def case_20_presigned():
    data = os.urandom(70_000)
    for name, s3 in [("default", client()), ("s3v4", client(signature_version="s3v4"))]:
        key = f"signed {name}"
        put = s3.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=600)
        urllib.request.urlopen(urllib.request.Request(put, data=data, method="PUT")).read()
        get = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=600)
        same(f"presigned GET, {name}", urllib.request.urlopen(get).read(), data)
        gone = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "none"}, ExpiresIn=600)
        try:
            urllib.request.urlopen(gone)
        except urllib.error.HTTPError as error:
            same("presigned GET of no object", error.code, 404)
        else:
            raise AssertionError("presigned GET of no object was answered")


def case_20_threads():
    """One client in many threads, as applications have it: the pool reuses its connections."""
    s3 = client(max_pool_connections=16)
    data = {f"thread-{i}": os.urandom(20_000 + i) for i in range(16)}
    wrong = []

    def work(key):
        try:
            for _ in range(3):
                s3.put_object(Bucket=BUCKET, Key=key, Body=data[key])
                same(key, fetch(s3, key), data[key])
        except Exception as error:  # reported by the main thread
            wrong.append(f"{key}: {error}")

    threads = [threading.Thread(target=work, args=(key,)) for key in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same("errors in threads", wrong, [])


def case_20_delete():
    s3 = client()
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    for key in [o["Key"] for page in pages for o in page.get("Contents", [])]:
        same("DELETE", s3.delete_object(Bucket=BUCKET, Key=key)["ResponseMetadata"]["HTTPStatusCode"], 204)
    s3.delete_object(Bucket=BUCKET, Key="never was")
    same("objects left", s3.list_objects_v2(Bucket=BUCKET)["KeyCount"], 0)


def main():
    print("boto3", boto3.__version__, "botocore", botocore.__version__)
    checks = [check for name, check in globals().items() if name.startswith("case_20_")]
    for check in checks:
        check()
        print(check.__name__, "ok", flush=True)
    print(len(checks), "checks passed")


main()
