"""Start-up, ``ls`` and ``stats``, against the listings that other caches' tools give of as much.

``python -m benchmarks.start``. Every cache holds 1,000 things of its own kind; what was listed
before may be remembered, on both sides. Peers that are not on PATH are said to be absent.
"""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.make_cache import make_cache, settle
from benchmarks.measure import (
    Absent,
    Row,
    Setting,
    command,
    compare,
    environment,
    jaxcache,
    missing,
    run_alone,
)

_THINGS = 1_000
_COMPLETED = 100_000
#: Starts are short, so that more of them fit in and more are needed.
_ROUNDS_PER_PAIR = 4


def measure(setting: Setting) -> Iterator[Row]:
    """Against a bare import first, then against each peer that is here."""
    cache = setting.scratch("start")
    make_cache(cache, _THINGS)
    settle(cache)
    pairs = _ROUNDS_PER_PAIR * setting.pairs
    typer = [sys.executable, "-c", "import typer"]
    ls, stats = jaxcache("ls", "-C", cache), jaxcache("stats", "-C", cache)
    yield compare(
        "`jaxcache --version` / `python -c 'import typer'`",
        command(jaxcache("--version")),
        command(typer),
        pairs=pairs,
        at_most=1.5,
    )
    yield compare(
        f"`ls` of {_THINGS:,} entries / `python -c 'import typer'`",
        command(ls),
        command(typer),
        pairs=pairs,
        at_most=1.5,
    )
    yield compare(
        "`ls --help` / `python -c 'import typer'`",
        command(jaxcache("ls", "--help")),
        command(typer),
        pairs=pairs,
        at_most=1.3,
    )
    many, crowded = setting.count(_COMPLETED), setting.scratch("tab")
    make_cache(crowded, many, atimes=False)
    tab = jaxcache("--complete", "keys", "jit_mlp-0", "-C", crowded)
    yield compare(
        f"a key at Tab among {many:,} entries / `python -c 'import typer'`",
        command(tab),
        command(typer),
        pairs=pairs,
        ours_at_most=0.06,
    )
    peers = [
        ("ls", ls, ["pip", "cache", "list"], _fill_pip),
        ("stats", stats, ["ccache", "-s"], _fill_ccache),
        ("ls", ls, ["hf", "cache", "ls"], _fill_hf),
        ("stats", stats, ["uv", "cache", "size", "--preview-features", "cache-size"], _fill_uv),
    ]
    for ours, args, peer, fill in peers:
        shown = " ".join(peer[:3])
        claim = f"`{ours}` of {_THINGS:,} entries / `{shown}` of as many"
        if missing(peer[0]):
            yield Absent(claim, f"no {peer[0]} here")
            continue
        env = fill(setting.scratch(peer[0]))
        failure = _failure(peer, env)
        if failure:
            yield Absent(claim, failure)
            continue
        yield compare(claim, command(args), command(peer, env), pairs=pairs)


def _failure(args: Sequence[str], env: dict[str, str]) -> str | None:
    done = subprocess.run(args, env=environment(env), capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it fails"])[-1]


def _digests() -> Iterator[str]:
    return (hashlib.sha256(number.to_bytes(8, "big")).hexdigest() for number in range(_THINGS))


def _fill_pip(directory: Path) -> dict[str, str]:
    """Wheels that pip has built, as it keeps them."""
    for digest in _digests():
        place = directory / "wheels" / digest[:2] / digest[2:4] / digest[4:6] / digest[6:]
        place.mkdir(parents=True)
        (place / f"pkg_{digest[:8]}-1.0-py3-none-any.whl").write_bytes(b"wheel")
    return {"PIP_CACHE_DIR": str(directory), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _fill_ccache(directory: Path) -> dict[str, str]:
    """Results under two levels of directories; their counters are ccache's own affair."""
    for digest in _digests():
        place = directory / digest[0] / digest[1]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{digest[2:34]}R").write_bytes(bytes(6_000))
    env = {"CCACHE_DIR": str(directory)}
    subprocess.run(["ccache", "-c"], env=environment(env), capture_output=True, check=True)
    return env


def _fill_hf(directory: Path) -> dict[str, str]:
    """Models of one small file each."""
    for digest in _digests():
        repository = directory / "hub" / f"models--org--m{digest[:12]}"
        commit = digest[:40]
        for name in ("blobs", "refs", f"snapshots/{commit}"):
            (repository / name).mkdir(parents=True)
        (repository / "blobs" / digest[:40]).write_bytes(b"{}")
        (repository / "refs" / "main").write_text(commit)
        link = repository / "snapshots" / commit / "config.json"
        link.symlink_to(f"../../blobs/{digest[:40]}")
    return {"HF_HOME": str(directory), "HF_HUB_OFFLINE": "1"}


def _fill_uv(directory: Path) -> dict[str, str]:
    """Files in the directory of wheels."""
    for digest in _digests():
        place = directory / "wheels-v5" / "pypi" / digest[:8]
        place.mkdir(parents=True)
        (place / "1.0-py3-none-any.msgpack").write_bytes(bytes(6_000))
    return {"UV_CACHE_DIR": str(directory)}


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
