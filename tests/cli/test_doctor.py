"""``jaxcache doctor``: each trap set up for real, and each silent where it is absent."""

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acting import acts_on, says
from conftest import CORPUS, RunCli, clean_environment
from processes import sh
from ways import old_copy

SOURCE = CORPUS / "0.12.0.1-cpu-zstd"
CAPPED = CORPUS / "0.12.0.1-cpu-zstd-maxsize"
HASH = "cd" * 32
#: Settings under which nothing is wrong with any of the caches below.
LOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
CAP = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000"}


Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(run_cli: RunCli) -> Doctor:
    """Run ``doctor`` without jax: its findings by trap; tests/integration has it with jax."""

    def run(cache: Path | str, **env: str) -> dict[str, Any]:
        done = run_cli("doctor", "--json", "-C", cache, "--python", "/nonexistent", env=env)
        found = {f["trap"]: f for f in json.loads(done.stdout)["findings"]}
        assert all(f[part] for f in found.values() for part in ("seen", "cost", "fix"))
        missing = "://" not in str(cache) and not Path(cache).is_dir()
        problems = any(f["severity"] == "problem" for f in found.values())
        assert done.returncode == (10 if missing else problems), done.stderr
        return found

    return run


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A healthy cache of JAX 0.12 without a size cap; the golden record has what is said of it."""
    return old_copy(tmp_path / "cache", SOURCE)


@pytest.fixture
def capped(tmp_path: Path) -> Path:
    """A cache with ``-atime`` files and a lock."""
    return old_copy(tmp_path / "capped", CAPPED)


def test_a_healthy_cache_has_no_findings(doctor: Doctor, cache: Path, tmp_path: Path) -> None:
    """A link to the directory is no other one."""
    (tmp_path / "link").symlink_to(cache)
    for path in (cache, tmp_path / "link"):
        found = doctor(cache, **LOW, JAX_COMPILATION_CACHE_DIR=str(path))
        assert not found.keys() - {"directory-spelling"}


VERSIONS = {"python_version": "3.11", "jax_version": "0.10.2", "jaxlib_version": "0.10.2"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("no JSON", "its answer cannot be read"),
        ("{}", "the process that was asked exited with status 0"),
        ('{"jax_version": "0.10.2"}', "its answer cannot be read: python_version is invalid"),
        (json.dumps(VERSIONS), "its answer cannot be read: 'settings'"),
        (json.dumps(VERSIONS | {"settings": {}}), "its answer cannot be read: 'live'"),
    ],
)
def test_a_python_that_answers_badly(
    run_cli: RunCli, cache: Path, tmp_path: Path, answer: str, reason: str
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport os, sys\nos.write(int(sys.argv[3]), {answer.encode()!r})\n"
        "os.write(int(sys.argv[3]), b'\\n')\n"
    )
    python.chmod(0o755)
    done = run_cli("doctor", "-C", cache, "--python", python, env=LOW)
    assert done.returncode == 0, done
    said = f"{python} has no usable jax: {reason}"
    assert said in done.stderr and "checks that need jax were skipped" in done.stderr


def test_foreign_names(doctor: Doctor, capped: Path, cache: Path) -> None:
    for directory in (capped, cache):
        (directory / f"jit_f-{HASH}-cache.sync-conflict-1-cache").write_bytes(b"x")
    (cache / "notes").mkdir()
    found = doctor(cache)
    assert "foreign-name" not in found and "notes" in found["unknown-directory"]["seen"]
    found = doctor(capped, **CAP)["foreign-name"]
    assert len(found["files"]) == 1 and found["fix"].startswith("mv -n ")


def test_missing_atime(doctor: Doctor, capped: Path) -> None:
    """Some have one, so that JAX had a cap once, or it has one now."""
    assert "missing-atime" not in doctor(capped, **CAP)
    next(capped.glob("*-atime")).unlink()
    for env, has_others in (({}, True), (CAP, False)):
        seen = doctor(capped, **env)["missing-atime"]["seen"]
        assert ("next to others that have one" in seen) == has_others
    for stamp in capped.glob("*-atime"):
        stamp.unlink()
    assert "missing-atime" not in doctor(capped)


def test_threshold(doctor: Doctor, cache: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    assert "threshold" in doctor(empty)
    assert "threshold" not in doctor(empty, **LOW)
    assert "threshold" not in doctor(cache)  # it has entries of under a second
    assert not doctor(tmp_path / "not" / "there" / "yet").keys() & {"threshold", "not-writable"}


def test_lock_held(doctor: Doctor, capped: Path) -> None:
    lock = next(capped.glob(".lockfile"))
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        finding = doctor(capped)["lock-held"]
    if Path("/proc/locks").exists():
        assert f"process {os.getpid()} (" in finding["seen"]
    assert "lock-held" not in doctor(capped)
    lock.unlink()
    os.mkfifo(lock)  # it keeps nobody waiting
    assert "lock-held" not in doctor(capped)


def test_not_writable(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path, said in ((file, "not a cache directory"), (file / "cache", "is not a directory")):
        assert said in doctor(path)["not-writable"]["seen"]


def test_foreign_owner(doctor: Doctor, cache: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    entry = next(cache.glob("*-cache"))
    os.chown(entry, 12345, -1)
    finding = doctor(cache)["foreign-owner"]
    seen = "owned by user 12345: 1 file in the cache"
    assert (finding["seen"], finding["files"]) == (seen, [entry.name])


def test_name_too_long(doctor: Doctor, cache: Path) -> None:
    module = "jit_" + "x" * (255 - 6 - 65 - 4)
    shutil.copy(next(cache.glob("*-cache")), cache / f"{module}-{HASH}-cache")
    assert "255 bytes" in doctor(cache)["name-too-long"]["seen"]


def test_a_bucket_is_no_file_system(
    doctor: Doctor, run_cli: RunCli, cache: Path, bucket: str
) -> None:
    assert run_cli("push", bucket, "-C", cache).returncode == 0
    env = {**LOW, "JAX_COMPILATION_CACHE_DIR": f"{bucket}/"}
    assert doctor(bucket, **env).keys() <= {"bucket-unchecked", "xla-caches-in-bucket"}
    told = json.loads(run_cli("doctor", "--json", "-C", bucket, "--python", "/nonexistent").stdout)
    assert (told["entries"], told["decoded"]) == (7, 7)
    assert bucket in doctor(bucket, **env, **CAP)["capped-bucket"]["seen"]
    # A cap over a directory that is pulled into has nothing to do with the bucket.
    elsewhere = LOW | CAP | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    assert doctor(bucket, **elsewhere).keys() <= {"other-directory", "missing-atime"}
    assert f"jaxcache pull {bucket}" in doctor(bucket)["no-cache-dir"]["fix"]


def test_dates_of_the_future_are_reported(doctor: Doctor, run_cli: RunCli, capped: Path) -> None:
    future = time.time() + 9 * 86_400
    wrong = min(capped.glob("*-cache"))
    os.utime(wrong, (future, future))
    assert doctor(capped)["future-dates"]["files"] == [wrong.name]
    stamp = wrong.with_name(wrong.name.replace("-cache", "-atime"))
    stamp.write_bytes(int(future * 1e9).to_bytes(8, "little"))
    done = run_cli("verify", "-C", capped, "--json", "--level", "quick")
    problems = json.loads(done.stdout)["problems"]
    assert {p["file"] for p in problems if p["kind"] == "bad-atime"} == {wrong.name}


def test_a_bucket_out_of_reach_is_no_empty_cache(run_cli: RunCli, bucket: str) -> None:
    for place, env in (
        (bucket, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}),
        ("s3://no-such-bucket", {}),
    ):
        assert run_cli("doctor", "-C", place, "--python", "/x", env=env).returncode == 10


def test_a_directory_that_cannot_be_read(run_cli: RunCli, unprivileged: Path) -> None:
    cache = unprivileged / "cache"
    cache.mkdir(mode=0o000)
    done = run_cli("doctor", "-C", cache, cwd=unprivileged)
    assert done.returncode == 10
    assert "not-writable" in done.stdout
    assert "[permission-denied]" in done.stderr


# ``jaxcache doctor`` on the file system of a cache: read-only, nearly full, or ``noatime``.


def mounted(
    tmp_path: Path, options: str, source: Path = SOURCE, *, before: str = ":"
) -> dict[str, Any]:
    """Run ``doctor`` over a copy of ``source`` on a file system of its own; findings by trap.

    Args:
        before: a command line that runs first; ``$jaxcache``, ``$cache`` and ``$point``, where
            the file system is mounted, stand for these.
    """
    point = tmp_path / "mount"
    point.mkdir(parents=True)
    script = (
        'mount -t tmpfs -o "$1" none "$2" && mkdir "$2/c" && chmod 755 "$2/c" && '
        'cp -p "$3"/* "$2/c" || exit 99; '
        'cd /; python=$4; point=$2; shift 4; jaxcache="$python -m jaxcache"; cache=$point/c; '
        f"{{ {before}; }} >/dev/null; exec $jaxcache doctor --json "
        '-C "$point/c" "$@"'
    )
    command = ["sh", "-c", script, "sh", options, point, source]
    command += [sys.executable, "--python", "/nonexistent"]
    if not shutil.which("unshare"):
        pytest.skip("no unshare")
    done = sh(
        ["unshare", "--user", "--map-root-user", "--mount", *command],
        env=clean_environment(tmp_path),
    )
    if done.returncode not in (0, 1) or not done.stdout:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()[-80:]}")
    return {finding["trap"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_read_only(tmp_path: Path) -> None:
    found = mounted(tmp_path, "rw", before='mount -o remount,ro "$point"')
    assert "read-only" in found["not-writable"]["seen"]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        pytest.param(
            f"size={(sum(-(-p.stat().st_size // 4096) for p in SOURCE.iterdir()) + 3) * 4096}",
            " are free",
            marks=acts_on("jaxcache prune --max-size SIZE -C …, or move the cache"),
        ),
        pytest.param(
            f"nr_inodes={len([*SOURCE.iterdir()]) + 2},size=50m",
            "no inode left",
            marks=acts_on("jaxcache prune --max-entries … -C …, or move the cache"),
        ),
    ],
    ids=["bytes", "inodes"],
)
def test_a_disk_that_is_nearly_full_can_be_pruned(tmp_path: Path, options: str, seen: str) -> None:
    found = mounted(tmp_path / "a", options)["disk-nearly-full"]
    assert seen in found["seen"]
    cure = found["fix"].partition(" -C ")[0].replace("SIZE", "10kB")
    cure = cure.replace("jaxcache ", "$jaxcache ", 1)
    before = f'{cure} -C "$cache" --grace 0s --yes || exit 98'
    assert "disk-nearly-full" not in mounted(tmp_path / "b", options, before=before)
    says(found["fix"])


@acts_on("mount it with relatime, or run programs with jaxcache run, which records each use")
def test_noatime(tmp_path: Path) -> None:
    assert says(mounted(tmp_path / "a", "noatime")["noatime"]["fix"], "mount it with relatime")
    assert "noatime" not in mounted(tmp_path / "b", "relatime")
    assert "noatime" not in mounted(tmp_path / "c", "noatime", CAPPED)  # beside -atime files
