"""``push`` and ``pull`` against a plain copy loop and ``aws s3 sync``, all at the same server.

``python -m benchmarks.remote`` starts moto's S3 server (of the development dependencies) on this
machine; what is compared is the clients' overhead and how many requests they make, not a network.
``aws`` is taken from PATH.
"""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from benchmarks.make_cache import make_cache
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    compare,
    jaxcache,
    missing,
    run_alone,
    seconds_of,
)

_ENTRIES = 500
_SERVER = Path(__file__).parents[1] / "tests" / "s3_process.py"
#: One request after the other with the usual client.
_LOOP = """
import os, sys, boto3
how, bucket, folder = sys.argv[1:]
client = boto3.client("s3")
if how == "push":
    for name in sorted(os.listdir(folder)):
        client.upload_file(os.path.join(folder, name), bucket, name)
else:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page["Contents"]:
            client.download_file(bucket, item["Key"], os.path.join(folder, item["Key"]))
"""


def measure(setting: Setting) -> Iterator[Row]:
    """Push into empty buckets, pull into empty directories."""
    entries = setting.count(_ENTRIES)
    folder = setting.scratch("remote")
    cache = folder / "cache"
    make_cache(cache, entries, atimes=False)
    process = subprocess.Popen(
        [sys.executable, str(_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    try:
        port = process.stdout.readline().strip()
        if not port:
            yield Absent("`push`, `pull` / `aws s3 sync`", "moto's server does not start")
            return
        yield from _measure(setting, folder, cache, f"http://127.0.0.1:{port}", entries)
    finally:
        process.kill()
        process.communicate()


def _measure(
    setting: Setting, folder: Path, cache: Path, endpoint: str, entries: int
) -> Iterator[Row]:
    env = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    numbers = count()

    def bucket() -> str:
        name = f"bucket-{next(numbers)}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
        return name

    full = bucket()
    seconds_of([sys.executable, "-c", _LOOP, "push", full, str(cache)], env)

    def push(command: Callable[[str], list[str]]) -> float:
        return seconds_of(command(bucket()), env)

    def pull(command: Callable[[str], list[str]]) -> float:
        target = folder / f"pulled-{next(numbers)}"
        target.mkdir()
        seconds = seconds_of(command(str(target)), env)
        found = sum(1 for item in os.scandir(target) if item.name.endswith("-cache"))
        assert found == entries, f"{found} of {entries} entries arrived"
        return seconds

    source = str(cache)
    peers = {
        "a loop of boto3": (
            lambda b: [sys.executable, "-c", _LOOP, "push", b, source],
            lambda t: [sys.executable, "-c", _LOOP, "pull", full, t],
        ),
        "`aws s3 sync`": (
            lambda b: ["aws", "s3", "sync", "--quiet", source, f"s3://{b}"],
            lambda t: ["aws", "s3", "sync", "--quiet", f"s3://{full}", t],
        ),
    }
    for name, (push_peer, pull_peer) in peers.items():
        if name.startswith("`aws") and missing("aws"):
            yield Absent(f"`push`, `pull` / {name}", "no aws here")
            continue
        yield compare(
            f"`push` of {entries:,} entries / {name}",
            lambda: push(lambda b: jaxcache("push", f"s3://{b}", "-C", source)),
            lambda peer=push_peer: push(peer),
            pairs=setting.pairs,
        )
        yield compare(
            f"`pull` of {entries:,} entries / {name}",
            lambda: pull(lambda t: jaxcache("pull", f"s3://{full}", "-C", t)),
            lambda peer=pull_peer: pull(peer),
            pairs=setting.pairs,
        )


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
