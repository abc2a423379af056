"""What runs without that which Python lacks on Windows (``tests/windows.py``), and what says no."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import windows
from conftest import REPOSITORY, RunCli, clean_environment

from jaxcache.cli.app import COMMANDS, READING

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_windows(tmp_path: Path) -> Run:
    """Run ``jaxcache ARG…`` without what Windows lacks."""

    def run(*args: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, windows.__file__, *map(str, args)],
            env=clean_environment(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def cache(corpus: Path, tmp_path: Path, run_cli: RunCli) -> Path:
    """A cache with a ledger, a pin, a damaged entry and a file that is none."""
    copied = Path(shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", tmp_path / "cache"))
    for path in copied.iterdir():
        os.utime(path, (1.7e9, 1.7e9))
    assert run_cli("pin", "jit_mlp*", "-C", copied).returncode == 0
    damaged = next(copied.glob("jit_loss-*-cache"))
    os.truncate(damaged, damaged.stat().st_size // 2)
    (copied / "note.txt").write_text("not an entry")
    return copied


def _facts(done: "subprocess.CompletedProcess[str]") -> Any:
    """A document without what follows from the access time of files, and from their owners."""
    out = ("last_used_at", "last_used_from", "by_age", "proven", "not_provable")

    def without(value: Any) -> Any:
        if isinstance(value, list):
            return [without(part) for part in value]
        if isinstance(value, dict):
            return {name: without(part) for name, part in value.items() if name not in out}
        return value

    return without(json.loads(done.stdout))


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--long"),
        ("ls", "--filter", "size>1kB", "--group-by", "platform"),
        ("show", "jit_mlp*"),
        ("stats",),
        ("verify",),
        ("verify", "--level", "quick"),
        ("export", "x.jxb"),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_prints_the_same(
    run_windows: Run, run_cli: RunCli, cache: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    wanted = run_cli(*words, "-C", cache, "--json")
    written = (tmp_path / "x.jxb").read_bytes() if "export" in words else b""
    for _ in range(2 if words == ("ls", "--long") else 1):  # the second time its index is there
        (tmp_path / "x.jxb").unlink(missing_ok=True)
        done = run_windows(*words, "-C", cache, "--json")
        assert (done.returncode, done.stderr) == (wanted.returncode, wanted.stderr)
        assert _facts(done) == _facts(wanted)
    if written:
        assert (tmp_path / "x.jxb").read_bytes() == written


def test_a_bundle_and_a_root_of_caches_are_read(
    run_windows: Run, run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    assert run_cli("export", "x.jxb", "-C", cache).returncode == 3
    shutil.copytree(cache, tmp_path / "root" / "one")
    shutil.copytree(cache, tmp_path / "root" / "two")
    for words in (("ls", "-C", "x.jxb"), ("ls", "-C", "root"), ("stats", "-C", "root")):
        wanted = run_cli(*words, "--json")
        done = run_windows(*words, "--json")
        assert (done.returncode, done.stderr) == (0, wanted.stderr)
        assert _facts(done) == _facts(wanted)


def test_a_cache_of_torch_is_read(run_windows: Run, run_cli: RunCli, torch_cache: Path) -> None:
    for words in (("ls",), ("stats",), ("verify",)):
        wanted = run_cli(*words, "-C", torch_cache, "--json")
        done = run_windows(*words, "-C", torch_cache, "--json")
        assert done.returncode == wanted.returncode, done.stderr
        assert _facts(done) == _facts(wanted)


def test_a_link_is_not_followed_out_of_the_cache(run_windows: Run, cache: Path) -> None:
    entry = next(cache.glob("jit_mlp-*-cache"))
    elsewhere = entry.rename(cache.with_name("elsewhere"))
    entry.symlink_to(elsewhere)
    listed = json.loads(run_windows("ls", "-C", cache, "--json").stdout)
    assert entry.name not in {e["file"] for e in listed["entries"]}


def test_a_directory_that_is_missing_or_a_file_is_named(run_windows: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, code in (("nowhere", "no-cache"), ("file", "not-a-directory")):
        done = run_windows("ls", "-C", tmp_path / place, "--json")
        assert done.returncode == 10
        assert json.loads(done.stderr)["error"]["code"] == code


#: Runs each command line of a JSON list, and prints a JSON list of exit code and error.
RUN_ALL = """
import contextlib, io, json, sys, windows
windows.pretend()
from jaxcache.cli.main import run
ends = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run([*words, "--json"])
    ends.append((code, json.loads(errors.getvalue())["error"]))
print(json.dumps(ends))
"""


def test_what_changes_or_starts_something_says_no_in_one_sentence(
    cache: Path, tmp_path: Path
) -> None:
    before = sorted(cache.rglob("*"))
    lines = [[name, "-C", str(cache)] for name in sorted({n.split()[0] for n in COMMANDS})]
    lines = [line for line in lines if line[0] not in READING]
    parts = (["--fix"], ["--restore"], ["--level", "load"])
    lines += [["verify", "-C", str(cache), *part] for part in parts]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(lines)],
        env=clean_environment(tmp_path)
        | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1, done.stderr
    ends = json.loads(done.stdout)
    assert len(ends) == len(lines) > 20
    for line, (code, error) in zip(lines, ends, strict=True):
        assert (code, error["code"]) == (2, "windows"), line
        assert error["message"].startswith(f"{line[0]} ")
        assert " does not run on Windows" in error["message"]
        assert "WSL" in error["hint"]
    assert sorted(cache.rglob("*")) == before


def test_show_starts_no_python(run_windows: Run, cache: Path) -> None:
    done = run_windows("show", "jit_mlp*", "--hlo", "-C", cache)
    assert (done.returncode, done.stdout) == (2, "")
    assert "show --hlo does not run on Windows" in done.stderr


def test_version_and_help_need_nothing(run_windows: Run) -> None:
    assert run_windows("--version").stdout.startswith("jaxcache ")
    assert "bug-report" in run_windows("--help").stdout


def test_what_windows_lacks_is_refused(tmp_path: Path) -> None:
    """Else nothing above says anything."""
    script = (
        "import os, sys, windows\n"
        "windows.pretend()\n"
        "def fails(call, *args, **keywords):\n"
        "    try:\n"
        "        call(*args, **keywords)\n"
        "    except (ImportError, NotImplementedError, PermissionError, TypeError):\n"
        "        return True\n"
        "print([fails(__import__, name) for name in windows.MODULES])\n"
        "print(hasattr(os, 'getuid'), hasattr(os, 'O_NOFOLLOW'), sys.platform)\n"
        "print(fails(os.stat, 'x', dir_fd=3), fails(os.open, '/', 0), fails(os.scandir, 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(windows.__file__).parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    refused = [True] * len(windows.MODULES)
    assert done.stdout == f"{refused}\nFalse False win32\nTrue True True\n"
