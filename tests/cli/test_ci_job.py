"""``ci`` as the steps of a job: their order, the places they take, what they tell the next step."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from conftest import CORPUS, RunCli, clean_environment

from jaxcache.cache.files import scratch_directory

FIRST, SECOND = "0.10.2-cpu-zstd", "0.8.3-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / FIRST, tmp_path / "cache"))


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def test_compiles_that_jax_does_not_write_are_told(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    note = "no compile of less than 1 s is here: JAX writes them only with "
    job = tmp_path / "job"
    job.mkdir()
    for known, environment, told in (
        (0, {}, False),
        (3, {}, True),
        (3, {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}, False),
    ):
        entry = next((corpus / FIRST).glob("jit_loss-*-cache"))
        content = zstandard.ZstdDecompressor().decompressobj().decompress(entry.read_bytes())
        shutil.copy(entry, job)
        (job / entry.name).write_bytes(
            zstandard.ZstdCompressor().compress(known.to_bytes(4, "big") + content[4:])
        )
        done = run_cli("ci", "save", tmp_path / "x.jxb", "-C", job, "-n", env=environment)
        assert (done.returncode, note in done.stderr) == (0, told), done.stderr


def test_stats_reports_the_seconds_that_a_save_reports(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    source, job, bundle = tmp_path / "source", tmp_path / "job", tmp_path / "cache.jxb"
    source.mkdir()
    entry = next((corpus / FIRST).glob("jit_loss-*-cache"))
    content = zstandard.ZstdDecompressor().decompressobj().decompress(entry.read_bytes())
    compressed = zstandard.ZstdCompressor().compress((3).to_bytes(4, "big") + content[4:])
    (source / entry.name).write_bytes(compressed)
    assert run_cli("export", bundle, "-C", source).returncode == 0
    assert run_cli("ci", "restore", bundle, "-C", job, "--everything").returncode == 0
    restored = job / entry.name
    status = restored.stat()
    os.utime(restored, ns=(status.st_atime_ns + 10**9, status.st_mtime_ns))  # it was read
    saved = json.loads(run_cli("ci", "save", bundle, "-C", job, "--json").stdout)
    stats = json.loads(run_cli("stats", "-C", job, "--json").stdout)
    assert (saved["saved_seconds"], stats["saved_seconds"]) == (3.0, 3.0)


@pytest.mark.parametrize("named", [None, "elsewhere", "job", "./x/../job"])
def test_a_step_says_what_plain_python_needs(
    run_cli: RunCli, tmp_path: Path, named: str | None
) -> None:
    told = f"plain Python needs JAX_COMPILATION_CACHE_DIR={tmp_path / 'job'}"
    env = {"JAX_COMPILATION_CACHE_DIR": named} if named else {}
    (tmp_path / "x").mkdir()
    for line in ("ci restore none.jxb -C job", "ci save none.jxb -C job"):
        done = run_cli(*line.split(), env=env)
        assert done.returncode == 0, done.stderr
        assert (told in done.stderr) == (named in (None, "elsewhere"))
    # Without the variable, JAX's threshold is not why the cache is empty.
    assert ("no compile of less than 1 s" in done.stderr) == bool(named)


@pytest.mark.parametrize(
    "line",
    ["ci save {} -C cache", "push {} -C cache", "copy cache {}", "pull cache -C {}"],
)
@pytest.mark.parametrize("name", ["out.txt", "place.tar", "logs.ZIP", "-"])
def test_a_name_for_a_file_is_no_directory(
    run_cli: RunCli, cache: Path, tmp_path: Path, line: str, name: str
) -> None:
    for dry in ((), ("--dry-run",)):
        done = run_cli(*line.format(name).split(), *dry)
        assert (done.returncode, (tmp_path / name).exists()) == (2, False), done.stderr
    if name != "-":
        done = run_cli(*line.format(f"{name}/").split())
        assert (done.returncode, (tmp_path / name).is_dir()) == (0, True), done.stderr


def test_a_bundle_by_its_name(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    for number, line in enumerate(("ci save {} -C cache", "copy cache {}", "export {} -C cache")):
        name = f"{number}.jxb"
        assert run_cli(*line.format(name).split()).returncode == 0
        assert (tmp_path / name).read_bytes()[:4] == (tmp_path / "0.jxb").read_bytes()[:4]
    done = run_cli("push", "9.jxb", "-C", cache)
    assert (done.returncode, "as FILE.jxb" in done.stderr) == (2, True)


def test_a_state_that_no_job_has(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    for status in ("", "running", "-1"):
        done = run_cli("ci", "save", tmp_path / "b.jxb", "-C", cache, "--job-status", status)
        assert (done.returncode, "[bad-job-status]" in done.stderr) == (2, True)


def test_the_cache_is_no_place_to_save_it(run_cli: RunCli, cache: Path) -> None:
    for verb in ("restore", "save"):
        done = run_cli("ci", verb, cache, "-C", cache)
        assert (done.returncode, "[same-directory]" in done.stderr) == (2, True)


def runner_files(directory: Path) -> dict[str, str]:
    return {
        "GITHUB_OUTPUT": str(directory / "output"),
        "GITHUB_STEP_SUMMARY": str(directory / "summary"),
    }


def parse_github_outputs(text: str) -> dict[str, str]:
    """Read the file as the runner does: ``name<<delimiter``, lines, the delimiter."""
    found, lines = {}, iter(text.splitlines())
    for line in lines:
        name, _, delimiter = line.partition("<<")
        value = []
        while (inner := next(lines)) != delimiter:
            value.append(inner)
        found[name] = "\n".join(value)
    return found


def test_outputs_for_the_steps_that_follow(
    run_cli: RunCli, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    env, job = runner_files(tmp_path), tmp_path / "job"
    done = run_cli("ci", "restore", bundle, "-C", job, "--everything", env=env)
    assert done.stdout.splitlines()[:2] == ["cache-hit\ttrue", "entries\t7"]
    assert parse_github_outputs((tmp_path / "output").read_text())["cache-hit"] == "true"
    new = next((corpus / "0.8.3-cpu-zstd").glob("jit_mlp-*-cache"))
    shutil.copyfile(new, job / new.name)
    done = run_cli(
        "ci", "save", bundle, "-C", job, "--key", "k", "--outputs", tmp_path / "env", env=env
    )
    assert done.returncode == 0, done.stderr
    told = parse_github_outputs((tmp_path / "output").read_text())
    assert (told["saved"], told["new-entries"]) == ("true", "1")
    assert told["key"] == f"k-{told['digest']}"
    assert float(told["saved-seconds"]) >= 0
    lines = (tmp_path / "env").read_text().splitlines()
    assert "JAXCACHE_SAVED=true" in lines
    assert all(line.replace("_", "").partition("=")[0].isalnum() for line in lines)
    summary = (tmp_path / "summary").read_text()
    assert summary.count("### ") == 2
    assert "| jit&#95;mlp |" in summary


def test_names_from_a_cache_are_text_in_a_summary(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    source = min(cache.glob("*-cache"))
    hostile = "<img src=x>|`[a](http:__www.b.de)*#\x1b[31m\n## pwned"
    shutil.copyfile(source, cache / f"{hostile}-{source.name[-70:]}")
    env = runner_files(tmp_path)
    done = run_cli("ci", "save", tmp_path / "b.jxb", "-C", cache, env=env)
    assert "\x1b" not in done.stdout + done.stderr
    summary = (tmp_path / "summary").read_text()
    assert not {"<", "`", "[", "*", "\x1b"} & set(summary)
    assert [line for line in summary.splitlines() if line.startswith("#")] == [
        "### JAX compilation cache: used and saved"
    ]
    assert all(line.count("|") == 4 for line in summary.splitlines() if line.startswith("|"))


_KILLED = """
import os
from jaxcache.cache.files import scratch_directory
with scratch_directory("probe") as directory:
    open(f"{directory}/entry", "w").close()
    os.kill(os.getpid(), 9)
"""


def test_the_next_command_removes_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = clean_environment(tmp_path) | {"TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", _KILLED], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    stranger, alive = temporary / "jaxcache-ci-mine", temporary / f"{left.name}-alive"
    for directory in (stranger, alive):
        directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    with scratch_directory("probe"):
        assert left.exists(), "it may be so young that nobody has locked it yet"
    for directory in (left, stranger, alive):
        os.utime(directory, (1, 1))
    with scratch_directory("probe"):
        pass
    assert set(temporary.iterdir()) == {stranger, alive}
    os.close(lock)


def test_the_help_shows_the_steps_in_their_order(run_cli: RunCli, tmp_path: Path) -> None:
    """Pasted into a shell, they do as they say; ``key`` alone needs a jax."""
    said = run_cli("ci", "--help", env={"COLUMNS": "80"}).stdout
    assert "keys of JAX before 0.11 contain the cache's path: give it the same" in said
    assert "does not cache compiles shorter than 1 s" in said
    lines = [
        x.strip() for x in said.partition("in this order:\n")[2].partition("\n\n")[0].split("\n")
    ]
    words = [line.partition("=")[0].replace('"store/$key.jxb"', "…") for line in lines]
    assert words == [
        "export JAX_COMPILATION_CACHE_DIR",
        "export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
        "key",
        "jaxcache ci restore …",
        "python train.py",
        "jaxcache ci save …",
    ]
    script = "\n".join(["set -e", 'jaxcache() { "$PYTHON" -m jaxcache "$@"; }', *lines])
    script = script.replace("$(jaxcache ci key)", "abc").replace(
        "python train.py", 'mkdir -p jax-cache; cp "$ENTRY" jax-cache'
    )
    entry = next((CORPUS / FIRST).glob("jit_loss-*-cache"))
    env = clean_environment(tmp_path) | {"PYTHON": sys.executable, "ENTRY": str(entry)}
    done = subprocess.run(
        ["sh", "-c", script], env=env, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "store" / "abc.jxb").is_file()


def test_where_outputs_cannot_go(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    env = {"GITHUB_OUTPUT": str(tmp_path / "no" / "where")}
    done = run_cli("ci", "restore", bundle, "-C", tmp_path / "job", "--everything", env=env)
    assert (done.returncode, "[cannot-write]" in done.stderr) == (2, True)
