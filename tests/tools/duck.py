"""DuckDB's httpfs: tables written to the store and read back, by name and by pattern: `duck.py BUCKET`.

Endpoint and credentials come from ENDPOINT, ACCESS_KEY and SECRET_KEY.
"""

import os
import sys
from urllib.parse import urlsplit

import duckdb
import duckdb_extension_httpfs

ENDPOINT, ACCESS, SECRET = (os.environ[name] for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"))
(BUCKET,) = sys.argv[1:]
ROWS = 300_000


def same(what, got, expected):
    if got != expected:
        raise AssertionError(f"{what}: {got!r} instead of {expected!r}")


def main():
    print("duckdb", duckdb.__version__)
    db = duckdb.connect(config={"autoinstall_known_extensions": False})
    folder = os.path.dirname(duckdb_extension_httpfs.__file__)
    db.execute(f"LOAD '{folder}/extensions/v{duckdb.__version__}/httpfs.duckdb_extension'")
    db.execute(
        f"CREATE SECRET s3 (TYPE s3, KEY_ID '{ACCESS}', SECRET '{SECRET}', REGION 'us-east-1', "
        f"ENDPOINT '{urlsplit(ENDPOINT).netloc}', URL_STYLE 'path', USE_SSL false)"
    )
    one = lambda text: db.execute(text).fetchone()
    # Uploaded in parts; the numbers do not compress.
    table = f"SELECT i, hash(i) AS h, md5(i::VARCHAR) AS t FROM range({ROWS}) r(i)"
    db.execute(f"COPY ({table}) TO 's3://{BUCKET}/t/all.parquet' (FORMAT parquet)")
    facts = "count(*), sum(i), bit_xor(h), max(t)"
    expected = one(f"SELECT {facts} FROM ({table})")
    same("all of it", one(f"SELECT {facts} FROM read_parquet('s3://{BUCKET}/t/all.parquet')"), expected)
    # Only the row groups that can hold it are read, with ranges.
    same("one row", one(f"SELECT t FROM 's3://{BUCKET}/t/all.parquet' WHERE i = 123456"), one("SELECT md5('123456')"))
    db.execute(
        f"COPY (SELECT i, i % 3 AS part FROM range(9000) r(i)) TO 's3://{BUCKET}/parts' (FORMAT csv, PARTITION_BY (part))"
    )
    same("a pattern", one(f"SELECT count(*), sum(i) FROM read_csv('s3://{BUCKET}/parts/*/*.csv')"), (9000, 40495500))
    names = db.execute(f"SELECT file FROM glob('s3://{BUCKET}/t/*') ORDER BY file").fetchall()
    same("names", names, [(f"s3://{BUCKET}/t/all.parquet",)])
    try:
        one(f"SELECT * FROM read_parquet('s3://{BUCKET}/t/none.parquet')")
    except duckdb.Error as error:
        same("no such object", "404" in str(error) or "No files found" in str(error), True)
    else:
        raise AssertionError("a table that is not there was read")
    print("ok")


main()
