"""``jaxcache doctor`` on the file system of a cache: read-only, nearly full, or ``noatime``."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from acting import acts_on, says
from conftest import CORPUS, clean_environment

SOURCE = CORPUS / "0.12.0.1-cpu-zstd"
CAPPED = CORPUS / "0.12.0.1-cpu-zstd-maxsize"


def mounted(
    tmp_path: Path, options: str, source: Path, *args: str, before: str = ":"
) -> dict[str, Any]:
    """Run ``doctor`` over a copy of ``source`` on a file system of its own.

    Args:
        before: a command line that runs first; ``$jaxcache`` and ``$cache`` stand for these.
    """
    point = tmp_path / "mount"
    point.mkdir(parents=True)
    readonly = "ro" in options.split(",")
    script = (
        'mount -t tmpfs -o "$1" none "$2" || exit 99; mkdir "$2/c" && chmod 755 "$2/c" && '
        'cp -p "$3"/* "$2/c" && { [ -z "$4" ] || mount -o remount,ro "$2"; } || exit 99; '
        'cd /; python=$5; point=$2; shift 5; jaxcache="$python -m jaxcache"; cache=$point/c; '
        f"{{ {before}; }} >/dev/null; exec $jaxcache doctor --json "
        '-C "$point/c" "$@"'
    )
    plain = ",".join(o for o in options.split(",") if o != "ro") or "rw"
    command = ["sh", "-c", script, "sh", plain, str(point), str(source)]
    command += ["yes" if readonly else "", sys.executable, "--python", "/nonexistent", *args]
    if not shutil.which("unshare"):
        pytest.skip("no unshare")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *command],
        capture_output=True,
        text=True,
        env=clean_environment(tmp_path),
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()[-80:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def traps(document: dict[str, Any]) -> set[str]:
    return {f["trap"] for f in document["findings"]}


def test_read_only(tmp_path: Path) -> None:
    findings = {f["trap"]: f for f in mounted(tmp_path, "ro", SOURCE)["findings"]}
    assert "read-only" in findings["not-writable"]["seen"]


@acts_on("jaxcache prune --max-size SIZE -C …, or move the cache")
def test_disk_nearly_full(tmp_path: Path) -> None:
    pages = sum(-(-p.stat().st_size // 4096) for p in SOURCE.iterdir())
    options = f"size={(pages + 3) * 4096}"
    found = {f["trap"]: f for f in mounted(tmp_path / "a", options, SOURCE)["findings"]}
    cure = found["disk-nearly-full"]["fix"].partition(" -C ")[0]
    cure = cure.replace("jaxcache ", "$jaxcache ", 1).replace("SIZE", "10kB")
    document = mounted(
        tmp_path / "b", options, SOURCE, before=f'{cure} -C "$cache" --grace 0s --yes || exit 98'
    )
    assert "disk-nearly-full" not in traps(document)
    says(found["disk-nearly-full"]["fix"])


@acts_on("jaxcache prune --max-entries … -C …, or move the cache")
def test_a_disk_without_inodes_can_prune(tmp_path: Path) -> None:
    sources = len([*SOURCE.iterdir()])
    options = f"nr_inodes={sources + 2},size=50m"
    found = {f["trap"]: f for f in mounted(tmp_path / "a", options, SOURCE)["findings"]}
    assert "no inode left" in found["disk-nearly-full"]["seen"]
    cure = found["disk-nearly-full"]["fix"].partition(", or")[0]
    cure = cure.replace("jaxcache ", "$jaxcache ", 1).partition(" -C ")[0]
    document = mounted(
        tmp_path / "b", options, SOURCE, before=f'{cure} -C "$cache" --grace 0s --yes || exit 98'
    )
    assert "disk-nearly-full" not in traps(document)
    says(found["disk-nearly-full"]["fix"])


def test_disk_with_room(tmp_path: Path) -> None:
    assert "disk-nearly-full" not in traps(mounted(tmp_path, "size=50m", SOURCE))


@acts_on("mount it with relatime, or run programs with jaxcache run, which records each use")
def test_noatime(tmp_path: Path) -> None:
    found = {f["trap"]: f for f in mounted(tmp_path / "a", "noatime", SOURCE)["findings"]}
    assert says(found["noatime"]["fix"], "mount it with relatime")
    assert "noatime" not in traps(mounted(tmp_path / "b", "relatime", SOURCE))


def test_noatime_matters_not_beside_atime_files(tmp_path: Path) -> None:
    assert "noatime" not in traps(mounted(tmp_path, "noatime", CAPPED))
