"""s3fs: a bucket as a folder, in a mount namespace that ends with this process: `mount.py S3FS BUCKET TREE`.

TREE is a folder whose files are copied in. Endpoint and credentials come from ENDPOINT, ACCESS_KEY and SECRET_KEY. Prints
`SKIPPED: reason` where this machine has no FUSE for us.
"""

import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENDPOINT, ACCESS, SECRET = (os.environ[name] for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"))
S3FS, BUCKET, TREE = sys.argv[1:]
MIB = 1 << 20
# mount(2)
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def same(what, got, expected):
    if got != expected:
        raise AssertionError(f"{what}: {got!r} instead of {expected!r}")


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(0)


def enter_namespace():
    """Mounts that nobody else sees."""
    user, group = os.geteuid(), os.getegid()
    try:
        if user == 0:
            os.unshare(os.CLONE_NEWNS)
        else:
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        skip(f"no mount namespace: {error}")
    if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        skip(f"mounts cannot be made private: {os.strerror(ctypes.get_errno())}")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        skip(f"/dev/fuse: {error.strerror}")


def start(folder, extra=()):
    """Mounts the bucket on `folder` and waits until it is there."""
    folder.mkdir(exist_ok=True)
    passwords = folder.with_suffix(".passwd")
    passwords.touch(0o600)
    passwords.write_text(f"{ACCESS}:{SECRET}\n")
    options = [f"url={ENDPOINT}", "use_path_request_style", f"passwd_file={passwords}", "endpoint=us-east-1"]
    # Parts of 5 MiB, and files above 10 MiB in parts.
    options += ["multipart_size=10", "max_stat_cache_size=0", *extra]
    log = open(folder.with_suffix(".log"), "w")
    server = subprocess.Popen(
        [S3FS, BUCKET, str(folder), "-f", *(w for o in options for w in ("-o", o))], stdout=log, stderr=log
    )
    device = folder.parent.stat().st_dev
    end = time.monotonic() + 60
    while folder.stat().st_dev == device:
        if server.poll() is not None or time.monotonic() > end:
            said = folder.with_suffix(".log").read_text()
            raise AssertionError(f"s3fs does not mount ({server.poll()}):\n{said}")
        time.sleep(0.05)
    return server


def stop(server):
    """s3fs unmounts by itself on SIGTERM."""
    server.send_signal(signal.SIGTERM)
    server.wait(60)


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in Path(folder).rglob("*") if p.is_file())


def check(top):
    data = os.urandom(100_003)
    (top / "small").write_bytes(data)
    same("small", (top / "small").read_bytes(), data)
    big = os.urandom(40 * MIB)
    (top / "big").write_bytes(big)
    digest = hashlib.sha256(big).hexdigest()
    same("big", hashlib.sha256((top / "big").read_bytes()).hexdigest(), digest)
    shutil.copyfile(top / "small", top / "copied")
    same("copied", (top / "copied").read_bytes(), data)
    os.rename(top / "copied", top / "renamed")
    same("renamed", (top / "renamed").read_bytes(), data)
    same("gone by renaming", (top / "copied").exists(), False)
    with open(top / "small", "ab") as file:
        file.write(b"more")
    same("appended", (top / "small").read_bytes(), data + b"more")
    shutil.copytree(TREE, top / "tree")
    same("names in the tree", names(top / "tree"), names(TREE))
    for name in names(TREE):
        same(name, (top / "tree" / name).read_bytes(), (Path(TREE) / name).read_bytes())
    return data + b"more", digest


def main():
    enter_namespace()
    with tempfile.TemporaryDirectory(prefix="ernic-s3fs-") as folder:
        top = Path(folder) / "mount"
        server = start(top)
        try:
            small, digest = check(top)
        finally:
            stop(server)
        # Nothing of this is in a cache of the first.
        again = Path(folder) / "again"
        server = start(again)
        try:
            same("small, mounted again", (again / "small").read_bytes(), small)
            same("big, mounted again", hashlib.sha256((again / "big").read_bytes()).hexdigest(), digest)
            same("names, mounted again", names(again / "tree"), names(TREE))
            shutil.rmtree(again / "tree")
            for name in ("small", "big", "renamed"):
                (again / name).unlink()
            same("names at the end", names(again), [])
        finally:
            stop(server)
    print("ok")


main()
