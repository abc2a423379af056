"""``ci restore`` and ``ci save`` as commands, over real entries and without jax.

What a job does to its cache is done by hand here: a read is an access time, set as the kernel sets
it, because not every file system that these tests run on records reads.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import CORPUS, RunCli, clean_environment

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import append
from jaxcache.store.local import LocalStore

FIRST, SECOND = "0.10.2-cpu-zstd", "0.8.3-cpu-zstd"
CAPPED = "0.12.0.1-cpu-zstd-maxsize"
Step = Callable[..., Any]


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / FIRST, tmp_path / "cache"))


@pytest.fixture
def bundle(run_cli: RunCli, cache: Path, tmp_path: Path) -> Path:
    path = tmp_path / "cache.jxb"
    assert run_cli("export", path, "-C", cache).returncode == 0
    return path


@pytest.fixture
def step(run_cli: RunCli, tmp_path: Path) -> Step:
    """Run ``ci restore`` or ``ci save`` in a job's directory and return its document."""

    def run(verb: str, place: Path, *options: str | Path, code: int = 0) -> Any:
        all_of_it = ["--everything"] if verb == "restore" else []
        done = run_cli("ci", verb, place, "-C", tmp_path / "job", "--json", *all_of_it, *options)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    return run


def witnessed(job: Path, *, reads: bool) -> None:
    """Say whether the file system records reads, whatever it is that the test runs on."""
    path = job / ".jaxcache" / "ci.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "records_reads": reads}))


def read(entry: Path) -> None:
    """What the kernel does to a file that is read."""
    status = entry.stat()
    os.utime(entry, ns=(status.st_atime_ns + 10**9, status.st_mtime_ns))


def compile_new(job: Path, corpus: Path, module: str = "jit_mlp-*-cache") -> Path:
    """Let an entry of another cache appear, as if JAX had just written it."""
    (source,) = (corpus / SECOND).glob(module)
    return Path(shutil.copyfile(source, job / source.name))


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def in_bundle(run_cli: RunCli, bundle: Path, tmp_path: Path) -> set[str]:
    target = tmp_path / f"unpacked-{len(list(tmp_path.iterdir()))}"
    assert run_cli("import", bundle, "-C", target).returncode == 0
    return names(target)


def test_a_job_keeps_what_it_used_and_what_is_new(
    run_cli: RunCli, step: Step, bundle: Path, cache: Path, corpus: Path, tmp_path: Path
) -> None:
    told = step("restore", bundle)
    assert (told["cache_hit"], told["entries"], told["written"]) == (True, 7, 7)
    job = tmp_path / "job"
    assert names(job) == names(cache)
    witnessed(job, reads=True)
    used = sorted(job.glob("*-cache"))[:2]
    for entry in used:
        read(entry)
    new = compile_new(job, corpus)
    told = step("save", bundle)
    assert (told["saved"], told["why"], told["witness"]) == (True, "new", "file-system")
    assert {k + "-cache" for k in told["used"]} == {p.name for p in used}
    assert [k + "-cache" for k in told["new"]] == [new.name]
    assert {d["reason"] for d in told["dropped"]} == {"unused"}
    assert in_bundle(run_cli, bundle, tmp_path) == {*(p.name for p in used), new.name}
    assert names(job) == names(cache) | {new.name}, "the job's own cache is left alone"


def test_nothing_new_is_not_saved(step: Step, bundle: Path, tmp_path: Path) -> None:
    step("restore", bundle)
    before = bundle.stat()
    told = step("save", bundle)
    assert (told["saved"], told["why"]) == (False, "nothing-new")
    assert bundle.stat().st_mtime_ns == before.st_mtime_ns
    assert step("save", tmp_path / "other.jxb")["why"] == "first"
    told = step("save", bundle, "--save-if", "always")
    assert (told["saved"], told["why"]) == (True, "always")


@pytest.mark.parametrize("save_if", ["false", "False"])
def test_save_if(step: Step, bundle: Path, corpus: Path, tmp_path: Path, save_if: str) -> None:
    step("restore", bundle)
    compile_new(tmp_path / "job", corpus)
    before = bundle.read_bytes()
    told = step("save", bundle, "--save-if", save_if)
    assert (told["saved"], told["why"]) == (False, "not-wanted")
    assert bundle.read_bytes() == before
    assert step("save", bundle, "--save-if", "TRUE", "--dry-run")["saved"] is False
    assert bundle.read_bytes() == before
    assert step("save", bundle, "--save-if", "TRUE")["saved"] is True


def test_where_nobody_records_uses_everything_is_kept(
    step: Step, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    witnessed(tmp_path / "job", reads=False)
    compile_new(tmp_path / "job", corpus)
    told = step("save", bundle)
    assert (told["witness"], len(told["unknown"]), told["entries"]) == ("nobody", 7, 8)


def test_without_a_restore_everything_is_new(step: Step, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(cache, tmp_path / "job")
    told = step("save", tmp_path / "deep" / "er" / "first.jxb")
    assert (len(told["new"]), told["written"]) == (7, 7)


def test_hits_of_new_entries_are_told(
    run_cli: RunCli, step: Step, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    """A job that compiles and then hits its own entries; with a restore before it and without."""
    job = tmp_path / "job"
    step("restore", tmp_path / "nothing.jxb")
    shutil.copytree(cache, job, dirs_exist_ok=True)
    store = LocalStore(job)
    (key, *_) = sorted(p.name.removesuffix("-cache") for p in job.glob("*-cache"))
    append(store, [Event(key, "hit", time.time_ns())])
    done = run_cli("ci", "save", bundle, "-C", job, "--dry-run")
    assert "of 0 entries from before the job, 0 used" in done.stderr
    assert "7 new (" in done.stderr
    assert "of compiling), 1 of them hit since\n" in done.stderr
    (job / ".jaxcache" / "ci.json").unlink()
    done = run_cli("ci", "save", bundle, "-C", job, "--dry-run")
    assert "used" not in done.stderr
    assert (
        "of compiling), 1 of them hit since: without jaxcache ci restore before the job, every "
        "entry counts as new\n"
    ) in done.stderr


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


def test_stamps_of_a_capped_cache_are_believed(step: Step, corpus: Path, tmp_path: Path) -> None:
    step("restore", corpus / CAPPED)
    job = tmp_path / "job"
    witnessed(job, reads=False)
    stamp = min(job.glob("*-atime"))
    os.utime(stamp)
    told = step("save", tmp_path / "b.jxb")
    assert (told["witness"], len(told["used"]), len(told["unused"])) == ("jax", 1, 6)


def test_what_others_used_lately_may_stay(
    run_cli: RunCli, step: Step, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    step("restore", bundle)
    witnessed(job, reads=True)
    used = min(job.glob("*-cache"))
    read(used)
    compile_new(job, corpus)
    step("save", bundle, "--unused-for", "3650d")  # remembers the use, and keeps the rest
    shutil.rmtree(job)
    assert step("restore", bundle)["entries"] == 8
    witnessed(job, reads=True)
    compile_new(job, corpus, "jit_loss-*-cache")
    told = step("save", bundle, "--unused-for", "1h")
    kept = in_bundle(run_cli, bundle, tmp_path)
    assert used.name in kept, "its use in the job before is known"
    assert told["used"] == []


@pytest.mark.parametrize(
    ("status", "kept"),
    [("success", 2), ("0", 2), ("failure", 8), ("Cancelled", 8), ("canceled", 8), ("143", 8)],
)
def test_a_job_that_did_not_finish_throws_nothing_out(
    run_cli: RunCli, step: Step, bundle: Path, corpus: Path, tmp_path: Path, status: str, kept: int
) -> None:
    """It was cancelled behind its first step: the entries of the others are as good as before."""
    step("restore", bundle)
    job = tmp_path / "job"
    witnessed(job, reads=True)
    read(min(job.glob("*-cache")))
    compile_new(job, corpus)
    torn = f"jit_torn-{1:064x}-cache"  # JAX was killed while it wrote
    (job / torn).write_bytes(min(job.glob("*-cache")).read_bytes()[:-20])
    told = step("save", bundle, "--job-status", status)
    assert (told["saved"], told["finished"]) == (True, kept == 2)
    found = in_bundle(run_cli, bundle, tmp_path)
    assert (len(found), torn in found, told["left_out"]) == (kept, False, [torn])


def test_a_state_that_no_job_has(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    for status in ("", "running", "-1"):
        done = run_cli("ci", "save", tmp_path / "b.jxb", "-C", cache, "--job-status", status)
        assert (done.returncode, "[bad-job-status]" in done.stderr) == (2, True)


def test_a_bound_keeps_the_costliest(
    run_cli: RunCli, step: Step, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    witnessed(tmp_path / "job", reads=False)
    compile_new(tmp_path / "job", corpus)
    told = step("save", bundle, "--max-size", "8kB")
    job = tmp_path / "job"
    kept = in_bundle(run_cli, bundle, tmp_path)
    assert 0 < sum((job / name).stat().st_size for name in kept) <= 8000
    assert {d["reason"] for d in told["dropped"]} == {"max-size"}


def test_a_missing_or_damaged_source_is_a_miss(
    run_cli: RunCli, step: Step, bundle: Path, tmp_path: Path
) -> None:
    damaged, empty = tmp_path / "damaged.jxb", tmp_path / "empty.jxb"
    data = bytearray(bundle.read_bytes())
    data[-20] ^= 1
    damaged.write_bytes(data)
    empty.write_bytes(b"")
    for source in (tmp_path / "none.jxb", damaged, empty, tmp_path / "no" / "folder"):
        told = step("restore", source)
        assert (told["cache_hit"], told["entries"], bool(told["trouble"])) == (False, 0, True)
        assert names(tmp_path / "job") == set()
        failed = run_cli("ci", "restore", source, "-C", tmp_path / "job", "--fail-on-cache-miss")
        assert (failed.returncode, "[cache-miss]" in failed.stderr) == (1, True)
        assert "cache-hit\tfalse" in failed.stdout


def test_lookup_only(step: Step, bundle: Path, tmp_path: Path) -> None:
    told = step("restore", bundle, "--lookup-only", "--fail-on-cache-miss")
    assert (told["cache_hit"], told["written"], told["lookup_only"]) == (True, 0, True)
    assert not (tmp_path / "job").exists()


def test_damaged_entries_of_a_directory_stay_there(step: Step, cache: Path, tmp_path: Path) -> None:
    victim = min(cache.glob("*-cache"))
    victim.write_bytes(victim.read_bytes()[:-8])
    told = step("restore", cache)
    assert (told["entries"], told["left_out"]) == (6, 1)
    assert victim.name not in names(tmp_path / "job")


def test_a_shared_directory_grows_and_ages(
    run_cli: RunCli, step: Step, cache: Path, corpus: Path, tmp_path: Path
) -> None:
    shared, job = tmp_path / "shared", tmp_path / "job"
    shutil.copytree(cache, job)
    assert step("save", shared)["written"] == 7
    shutil.rmtree(job)
    assert step("restore", shared)["written"] == 7
    witnessed(job, reads=True)
    used = min(job.glob("*-cache"))
    read(used)
    new = compile_new(job, corpus)
    told = step("save", shared)
    assert (told["written"], told["pruned"]) == (1, 0)
    assert names(shared) == names(cache) | {new.name}
    sealed = json.loads(run_cli("ls", "-C", shared, "--json").stdout)["entries"]
    assert all(entry["sealed"] for entry in sealed)
    # The next job uses nothing; what no job has used for a while goes.
    for entry in shared.glob("*-cache"):
        os.utime(entry, (1, 1))
    shutil.rmtree(job)
    step("restore", shared)
    told = step("save", shared, "--unused-for", "1h")
    assert told["saved"] is False
    assert names(shared) == {used.name}


def test_the_cache_is_no_place_to_save_it(run_cli: RunCli, cache: Path) -> None:
    for verb in ("restore", "save"):
        done = run_cli("ci", verb, cache, "-C", cache)
        assert (done.returncode, "[same-directory]" in done.stderr) == (2, True)


def test_nothing_but_a_bundle_is_overwritten(
    run_cli: RunCli, step: Step, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "thesis.jxb"
    other.write_text("chapter one")
    done = run_cli("ci", "save", other, "-C", cache)
    assert (done.returncode, other.read_text()) == (2, "chapter one")


def runner_files(folder: Path) -> dict[str, str]:
    return {
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
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
    compile_new(job, corpus)
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


def test_the_same_content_has_the_same_digest(
    step: Step, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    witnessed(tmp_path / "job", reads=False)
    first = step("save", bundle, "--key", "k")["key"]
    assert step("save", bundle, "--key", "k")["key"] == first
    compile_new(tmp_path / "job", corpus)
    assert step("save", bundle, "--key", "k")["key"] != first


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
import os, sys
from jaxcache.cache.ci import publish
publish.plan_sync = lambda *_, **__: os.kill(os.getpid(), 9)
from jaxcache.cli.main import run
run(sys.argv[1:])
"""


def test_the_next_command_removes_what_a_killed_one_left(
    run_cli: RunCli, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    save = ["ci", "save", "shared", "-C", "cache"]
    env = clean_environment(tmp_path) | {"TMPDIR": str(temporary)}
    words = [sys.executable, "-c", _KILLED, *save]
    done = subprocess.run(words, env=env, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    assert names(left), "the entries that were to be saved"
    stranger, alive = temporary / "jaxcache-ci-mine", temporary / f"{left.name}-alive"
    for folder in (stranger, alive):
        folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    assert run_cli(*save).returncode == 0
    assert left.exists(), "it may be so young that nobody has locked it yet"
    for folder in (left, stranger, alive):
        os.utime(folder, (1, 1))
    assert run_cli(*save, "--save-if", "always").returncode == 0
    assert set(temporary.iterdir()) == {stranger, alive}
    os.close(lock)


def test_the_help_shows_the_steps_in_their_order(run_cli: RunCli, tmp_path: Path) -> None:
    """Pasted into a shell, they do as they say; ``key`` alone needs a jax."""
    said = run_cli("ci", "--help", env={"COLUMNS": "80"}).stdout
    assert "no compile that takes less than 1 s" in said
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


def test_a_baseline_that_makes_no_sense_is_none(step: Step, bundle: Path, tmp_path: Path) -> None:
    for text in ("", "[]", '{"format":2}', '{"format":1,"started_ns":"x"}', "[" * 10_000):
        step("restore", bundle)
        (tmp_path / "job" / ".jaxcache" / "ci.json").write_text(text)
        assert len(step("save", bundle)["new"]) == 7


def test_signed_bundles_and_nothing_else(
    run_cli: RunCli, step: Step, cache: Path, corpus: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    public = run_cli("trust", "keygen", "ci").stdout.strip().partition("\t")[2]
    config = tmp_path / ".config" / "jaxcache" / "config.toml"
    config.write_text("require-signed = true\n")
    signed, unsigned = tmp_path / "signed.jxb", tmp_path / "unsigned.jxb"
    assert run_cli("ci", "save", signed, "-C", cache, "--sign", "ci").returncode == 0
    assert run_cli("ci", "save", unsigned, "-C", cache).returncode == 0
    assert run_cli("ci", "save", tmp_path / "dir", "-C", cache, "--sign", "ci").returncode == 0
    for source in (signed, unsigned, tmp_path / "dir", cache):
        refused = run_cli("ci", "restore", source, "-C", tmp_path / "job", "--everything")
        assert refused.returncode == 12
        assert not (tmp_path / "job").exists()
    assert run_cli("trust", "add", "builders", public).returncode == 0
    assert step("restore", signed)["entries"] == 7
    assert run_cli("ci", "restore", unsigned, "-C", tmp_path / "job").returncode == 12
    shutil.rmtree(tmp_path / "job")
    stranger = compile_new(tmp_path / "dir", corpus)
    told = step("restore", tmp_path / "dir")
    assert (told["written"], told["untrusted"]) == (7, 1)
    assert stranger.name not in names(tmp_path / "job")
