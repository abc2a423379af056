"""``ci restore`` and ``ci save`` as commands, over real entries and without jax.

What a job does to its cache is done by hand here: a read is an access time, set as the kernel sets
it, because not every file system that these tests run on records reads.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import payload_of
from conftest import CORPUS, RunCli, clean_environment
from object_server import Proxy
from processes import sh
from ways import bundled, names, told

from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store
from jaxcache.store.local import LocalStore

FIRST, SECOND = "0.10.2-cpu-zstd", "0.8.3-cpu-zstd"
CAPPED = "0.12.0.1-cpu-zstd-maxsize"
Step = Callable[..., Any]


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / FIRST, tmp_path / "cache"))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Where the cache of a job comes to be."""
    return tmp_path / "job"


@pytest.fixture
def step(run_cli: RunCli, job: Path) -> Step:
    """Run ``ci restore`` or ``ci save`` in a job's directory and return its document.

    What is restored is on a file system that records reads.
    """

    def run(
        verb: str, place: Path | str, *options: str | Path, job: Path = job, code: int = 0
    ) -> Any:
        all_of_it = ["--everything"] if verb == "restore" else []
        document = told(run_cli, "ci", verb, place, "-C", job, *all_of_it, *options, code=code)
        if verb == "restore":
            witnessed(job, reads=True)
        return document

    return run


@pytest.fixture
def restored(step: Step, bundle: Path, job: Path) -> Path:
    """The cache of a job that has begun with the entries of ``bundle``."""
    step("restore", bundle)
    return job


def witnessed(job: Path, *, reads: bool) -> None:
    """Say whether the file system records reads, whatever it is that the test runs on."""
    path = job / ".jaxcache" / "ci.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "records_reads": reads}))


def read(entry: Path) -> None:
    """What the kernel does to a file that is read."""
    status = entry.stat()
    os.utime(entry, ns=(status.st_atime_ns + 10**9, status.st_mtime_ns))


def compile_new(job: Path, module: str = "jit_mlp-*-cache") -> Path:
    """Let an entry of another cache appear, as if JAX had just written it."""
    (source,) = (CORPUS / SECOND).glob(module)
    return Path(shutil.copyfile(source, job / source.name))


def test_a_job_keeps_what_it_used_and_what_is_new(
    run_cli: RunCli, step: Step, bundle: Path, cache: Path, job: Path
) -> None:
    result = step("restore", bundle)
    assert (result["cache_hit"], result["entries"], result["written"]) == (True, 7, 7)
    assert names(job) == names(cache)
    used = sorted(job.glob("*-cache"))[:2]
    for entry in used:
        read(entry)
    new = compile_new(job)
    dry = run_cli("ci", "save", bundle, "-C", job, "--dry-run").stderr
    assert re.search(r"the job used 2 \(.+\) and not 5, by the files' access times\n", dry), dry
    result = step("save", bundle)
    assert (result["saved"], result["why"], result["witness"]) == (True, "new", "file-system")
    assert {k + "-cache" for k in result["used"]} == {p.name for p in used}
    assert [k + "-cache" for k in result["new"]] == [new.name]
    assert {d["reason"] for d in result["dropped"]} == {"unused"}
    assert bundled(bundle) == {*(p.name for p in used), new.name}
    assert names(job) == names(cache) | {new.name}, "the job's own cache is left alone"


def test_why_a_job_saves_or_not(step: Step, restored: Path, bundle: Path, cache: Path) -> None:
    """A first save has all that the job was restored from, though no JAX used it."""
    before, other, empty = bundle.read_bytes(), bundle.with_name("o.jxb"), bundle.with_name("e.jxb")
    result = step("save", bundle)
    assert (result["saved"], result["why"]) == (False, "nothing-new")
    result = step("save", empty, "--max-size", "1")
    assert (result["saved"], result["why"], empty.exists()) == (False, "empty", False)
    first = step("save", other)
    assert (first["saved"], first["why"], first["dropped"]) == (True, "first", [])
    assert bundled(other) == names(cache)
    result = step("save", other, "--save-if", "always")
    assert (result["saved"], result["why"], result["digest"]) == (True, "always", first["digest"])
    compile_new(restored)
    for text in ("false", "False"):
        result = step("save", bundle, "--save-if", text)
        assert (result["saved"], result["why"]) == (False, "not-wanted")
    assert step("save", bundle, "--save-if", "TRUE", "--dry-run")["saved"] is False
    assert bundle.read_bytes() == before
    result = step("save", bundle, "--save-if", "TRUE")
    assert (result["saved"], result["digest"] == first["digest"]) == (True, False)


def test_the_second_of_two_jobs_does_not_drop_what_the_first_compiled(
    run_cli: RunCli, step: Step, bundle: Path, restored: Path
) -> None:
    mine = restored.rename(restored.with_name("mine"))
    step("restore", bundle)
    theirs = compile_new(restored)
    assert step("save", bundle)["saved"]
    before = bundle.read_bytes()
    new = compile_new(mine, "jit_loss-*-cache")
    for dry in ((), ("--dry-run",)):
        done = run_cli("ci", "save", bundle, "-C", mine, *dry)
        assert (done.returncode, "[newer-target]" in done.stderr) == (3, True), done.stderr
        assert theirs.name.removesuffix("-cache") in done.stderr
        assert f"jaxcache import {bundle} " in done.stderr
        assert bundle.read_bytes() == before
    assert run_cli("import", bundle, "-C", mine).returncode == 0
    assert run_cli("ci", "save", bundle, "-C", mine).returncode == 0
    assert {theirs.name, new.name} <= bundled(bundle)


def test_where_nobody_records_uses_everything_is_kept(
    step: Step, bundle: Path, restored: Path
) -> None:
    """On noatime a plain step leaves no trace: what the ledger of another proves is too little."""
    witnessed(restored, reads=False)
    new = compile_new(restored)
    result = step("save", bundle, "--dry-run")
    assert (result["witness"], len(result["unknown"]), result["entries"]) == ("nobody", 7, 8)
    recorded = min(p for p in restored.glob("*-cache") if p != new).name.removesuffix("-cache")
    append(LocalStore(restored), [Event(recorded, "hit", time.time_ns())])
    result = step("save", bundle)
    assert (len(result["used"]), len(result["unused"]), len(result["unknown"])) == (1, 0, 6)
    assert result["entries"] == 8


@pytest.mark.parametrize("reads", [True, False])
def test_what_another_place_brought_is_not_new(
    run_cli: RunCli, step: Step, bundle: Path, corpus: Path, restored: Path, reads: bool
) -> None:
    other = restored.with_name("other.jxb")
    assert run_cli("export", other, "-C", corpus / SECOND).returncode == 0
    assert run_cli("import", other, "-C", restored).returncode == 0
    witnessed(restored, reads=reads)
    result = step("save", bundle)
    assert (result["new"], result["saved"], result["why"]) == ([], False, "nothing-new")
    assert len(result["unknown"]) >= 7


def test_stamps_of_a_capped_cache_are_believed(step: Step, corpus: Path, job: Path) -> None:
    step("restore", corpus / CAPPED)
    witnessed(job, reads=False)
    os.utime(min(job.glob("*-atime")))
    result = step("save", job.with_name("b.jxb"))
    assert (result["witness"], len(result["used"]), len(result["unused"])) == ("jax", 1, 6)


def test_what_others_used_lately_may_stay(step: Step, bundle: Path, restored: Path) -> None:
    used = min(restored.glob("*-cache"))
    read(used)
    compile_new(restored)
    step("save", bundle, "--unused-for", "3650d")  # remembers the use, and keeps the rest
    shutil.rmtree(restored)
    assert step("restore", bundle)["entries"] == 8
    compile_new(restored, "jit_loss-*-cache")
    assert step("save", bundle, "--unused-for", "1h")["used"] == []
    assert used.name in bundled(bundle), "its use in the job before is known"


@pytest.mark.parametrize(
    ("status", "kept"),
    [("success", 2), ("000", 2), ("failure", 8), ("Cancelled", 8), ("143", 8), ("9" * 5_000, 8)],
)
def test_a_job_that_did_not_finish_throws_nothing_out(
    step: Step, bundle: Path, restored: Path, status: str, kept: int
) -> None:
    """It was cancelled behind its first step: the entries of the others are as good as before."""
    read(min(restored.glob("*-cache")))
    compile_new(restored)
    torn = f"jit_torn-{1:064x}-cache"  # JAX was killed while it wrote
    (restored / torn).write_bytes(min(restored.glob("*-cache")).read_bytes()[:-20])
    result = step("save", bundle, "--job-status", status, code=3)
    assert (result["saved"], result["finished"]) == (True, kept == 2)
    found = bundled(bundle)
    assert (len(found), torn in found, result["left_out"]) == (kept, False, [torn])


def test_a_bound_keeps_the_costliest(step: Step, bundle: Path, restored: Path) -> None:
    witnessed(restored, reads=False)
    compile_new(restored)
    result = step("save", bundle, "--max-size", "8kB")
    assert 0 < sum((restored / name).stat().st_size for name in bundled(bundle)) <= 8000
    assert {d["reason"] for d in result["dropped"]} == {"max-size"}


def forget_arrivals(cache: Path) -> None:
    """Let the entries of a cache have arrived long ago."""
    for path in (cache / ".jaxcache" / "ledger").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"kind":"arrived"' not in line))


def test_a_shared_directory_grows_and_ages(
    run_cli: RunCli, step: Step, cache: Path, job: Path
) -> None:
    shared = job.with_name("shared")
    assert step("save", shared, job=cache)["written"] == 7
    assert step("restore", shared)["written"] == 7
    used = min(job.glob("*-cache"))
    read(used)
    new = compile_new(job)
    result = step("save", shared)
    assert (result["written"], result["pruned"]) == (1, 0)
    assert names(shared) == names(cache) | {new.name}
    assert all(entry["sealed"] for entry in told(run_cli, "ls", "-C", shared)["entries"])
    # The next job uses nothing; what no job has used for a while goes.
    for entry in shared.glob("*-cache"):
        os.utime(entry, (1, 1))
    forget_arrivals(shared)
    shutil.rmtree(job)
    step("restore", shared)
    assert step("save", shared, "--unused-for", "1h")["saved"] is False
    assert names(shared) == {used.name}


def test_a_baseline_that_makes_no_sense_is_none(step: Step, bundle: Path, restored: Path) -> None:
    baseline = restored / ".jaxcache" / "ci.json"
    many = json.dumps({**json.loads(baseline.read_text()), "more": [[]] * (5 << 20)})
    for text in ("", "[]", '{"format":2}', '{"format":1,"started_ns":"x"}', "[" * 10_000, many):
        step("restore", bundle)
        baseline.write_text(text)
        assert len(step("save", bundle)["new"]) == 7


# ``ci restore`` and ``ci save`` against a real S3 server, and through a proxy that fails.


def test_there_and_back(
    run_cli: RunCli, step: Step, s3: Proxy, bucket: str, cache: Path, job: Path
) -> None:
    result = step("save", bucket, job=cache)
    assert (result["saved"], result["written"]) == (True, 7)
    result = step("restore", bucket)
    assert (result["cache_hit"], result["written"], result["entries"]) == (True, 7, 7)
    assert names(job) == names(cache)
    verified = told(run_cli, "verify", "-C", job, "--grace", "0s")
    assert (verified["ok"], verified["problems"]) == (7, [])
    new = compile_new(job)
    result = step("save", bucket)
    assert (result["why"], result["written"]) == ("new", 1)
    listed = told(run_cli, "ls", "-C", bucket)["entries"]
    assert {e["file"] for e in listed} == names(cache) | {new.name}
    s3.forget()
    result = step("restore", bucket)
    assert (result["cache_hit"], result["present"], result["written"]) == (True, 8, 0)
    assert step("save", bucket)["saved"] is False
    assert not [s for s in s3.seen if s.name.endswith("-cache")], "nothing fetched, nothing sent"


def test_a_bundle_as_one_object(
    run_cli: RunCli, step: Step, bucket: str, cache: Path, job: Path
) -> None:
    url = f"{bucket}/main.jxb"
    assert step("restore", url)["cache_hit"] is False
    result = step("save", url, job=cache)
    assert (result["why"], result["written"]) == ("new", 7)
    looked = run_cli("ci", "restore", url, "-C", job, "--lookup-only")
    assert f"{url}: it is not signed; " in looked.stderr
    assert "warning" not in looked.stderr  # no key is trusted here, so that it is in each job
    assert step("restore", url)["written"] == 7
    assert names(job) == names(cache)
    saved = run_cli("ci", "save", url, "-C", job)
    assert "not saved: the job compiled nothing new" in saved.stderr
    assert "signed" not in saved.stderr


def test_a_bucket_out_of_reach_is_a_miss(
    run_cli: RunCli, bucket: str, cache: Path, job: Path
) -> None:
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    done = run_cli("ci", "restore", bucket, "-C", job, "--json", env=env)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["cache_hit"], bool(result["trouble"])) == (False, True)
    assert run_cli("ci", "save", bucket, "-C", cache, env=env).returncode in (3, 10)


def test_what_is_damaged_or_cannot_be_read_stays_in_the_bucket(
    step: Step, s3: Proxy, bucket: str, cache: Path, job: Path
) -> None:
    step("save", bucket, job=cache)
    damaged, unread, *_ = sorted(names(cache))
    open_store(bucket).write(damaged, [(cache / damaged).read_bytes()[:-20]])
    s3.fault = lambda seen: 400 if seen.name.endswith(unread) else None
    result = step("restore", bucket)
    assert (result["left_out"], [f["file"] for f in result["failed"]]) == (1, [unread])
    assert names(job) == names(cache) - {damaged, unread}


# ``ci`` as the steps of a job: their order, the places they take, what they tell the next step.


def compile_for(seconds: int, cache: Path) -> Path:
    """Write an entry whose header says that its compile took so long."""
    cache.mkdir(exist_ok=True)
    (entry,) = (CORPUS / FIRST).glob("jit_loss-*-cache")
    content = seconds.to_bytes(4, "big") + payload_of(entry)
    (cache / entry.name).write_bytes(zstandard.compress(content))
    return cache / entry.name


def test_compiles_that_jax_does_not_write_are_told(run_cli: RunCli, job: Path) -> None:
    note = "no compile of less than 1 s is here: JAX writes them only with "
    for seconds, environment, noted in (
        (0, {}, False),
        (1, {}, True),
        (3, {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}, False),
    ):
        compile_for(seconds, job)
        done = run_cli("ci", "save", "x.jxb", "-C", job, "-n", env=environment)
        assert (done.returncode, note in done.stderr) == (0, noted), done.stderr


def test_stats_reports_the_seconds_that_a_save_reports(
    run_cli: RunCli, step: Step, job: Path
) -> None:
    source = job.with_name("source")
    entry = compile_for(3, source)
    step("restore", source)
    read(job / entry.name)
    saved, stats = step("save", source), told(run_cli, "stats", "-C", job)
    assert (saved["saved_seconds"], stats["saved_seconds"]) == (3.0, 3.0)


@pytest.mark.parametrize("named", [None, "elsewhere", "job", "./x/../job"])
def test_a_step_says_what_plain_python_needs(
    run_cli: RunCli, tmp_path: Path, named: str | None
) -> None:
    needed = f"plain Python needs JAX_COMPILATION_CACHE_DIR={tmp_path / 'job'}"
    (tmp_path / "x").mkdir()
    for line in ("ci restore none.jxb -C job", "ci save none.jxb -C job"):
        done = run_cli(*line.split(), env={"JAX_COMPILATION_CACHE_DIR": named} if named else {})
        assert done.returncode == 0, done.stderr
        assert (needed in done.stderr) == (named in (None, "elsewhere"))
    # Without the variable, JAX's threshold is not why the cache is empty.
    assert ("no compile of less than 1 s" in done.stderr) == bool(named)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("ci save {} -C cache", "logs.ZIP"),
        ("push {} -C cache", "out.txt"),
        ("copy cache {}", "place.tar"),
        ("pull cache -C {}", "-"),
    ],
)
def test_a_name_for_a_file_is_no_directory(
    run_cli: RunCli, cache: Path, tmp_path: Path, line: str, name: str
) -> None:
    for dry in ((), ("--dry-run",)):
        done = run_cli(*line.format(name).split(), *dry)
        assert (done.returncode, (tmp_path / name).exists()) == (2, False), done.stderr
    if name != "-":
        done = run_cli(*line.format(f"{name}/").split())
        assert (done.returncode, (tmp_path / name).is_dir()) == (0, True), done.stderr


def runner_files(directory: Path) -> dict[str, str]:
    return {
        "GITHUB_OUTPUT": str(directory / "output"),
        "GITHUB_STEP_SUMMARY": str(directory / "summary"),
    }


def github_outputs(directory: Path) -> dict[str, str]:
    """Read the file as the runner does: ``name<<delimiter``, lines, the delimiter."""
    text = (directory / "output").read_text()
    found = re.findall(r"^(.+?)<<(.+)\n((?:.*\n)*?)\2$", text, re.MULTILINE)
    return {name: value.removesuffix("\n") for name, _, value in found}


def test_outputs_for_the_steps_that_follow(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    env, job = runner_files(tmp_path), tmp_path / "job"
    done = run_cli("ci", "restore", bundle, "-C", job, "--everything", env=env)
    assert done.stdout.splitlines()[:2] == ["cache-hit\ttrue", "entries\t7"]
    assert github_outputs(tmp_path)["cache-hit"] == "true"
    compile_new(job)
    words = ("ci", "save", bundle, "-C", job, "--key", "k", "--outputs", tmp_path / "env")
    done = run_cli(*words, env=env)
    assert done.returncode == 0, done.stderr
    outputs = github_outputs(tmp_path)
    assert (outputs["saved"], outputs["new-entries"]) == ("true", "1")
    assert outputs["key"] == f"k-{outputs['digest']}" and float(outputs["saved-seconds"]) >= 0
    lines = (tmp_path / "env").read_text().splitlines()
    assert "JAXCACHE_SAVED=true" in lines
    assert all(line.replace("_", "").partition("=")[0].isalnum() for line in lines)
    summary = (tmp_path / "summary").read_text()
    assert (summary.count("### "), "| jit&#95;mlp |" in summary) == (2, True)
    env["GITHUB_OUTPUT"] = str(tmp_path / "no" / "where")
    done = run_cli("ci", "restore", bundle, "-C", job, "--everything", env=env)
    assert (done.returncode, "[cannot-write]" in done.stderr) == (2, True)


def test_names_from_a_cache_are_text_in_a_summary(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    source = min(cache.glob("*-cache"))
    hostile = "<img src=x>|`[a](http:__www.b.de)*#\x1b[31m\n## pwned"
    shutil.copyfile(source, cache / f"{hostile}-{source.name[-70:]}")
    done = run_cli("ci", "save", tmp_path / "b.jxb", "-C", cache, env=runner_files(tmp_path))
    assert "\x1b" not in done.stdout + done.stderr
    summary = (tmp_path / "summary").read_text()
    assert not {"<", "`", "[", "*", "\x1b"} & set(summary)
    assert [line for line in summary.splitlines() if line.startswith("#")] == [
        "### JAX compilation cache: used and saved"
    ]
    assert all(line.count("|") == 4 for line in summary.splitlines() if line.startswith("|"))


def test_the_steps_that_the_help_shows_do_as_they_say(run_cli: RunCli, tmp_path: Path) -> None:
    """Pasted into a shell; ``key`` alone needs a jax."""
    said = run_cli("ci", "--help", env={"COLUMNS": "80"}).stdout
    steps = said.partition("in this order:\n")[2].partition("\n\n")[0]
    steps = steps.replace("$(jaxcache ci key)", "abc")
    steps = steps.replace("python train.py", 'mkdir -p jax-cache; cp "$ENTRY" jax-cache')
    script = f'set -e\njaxcache() {{ "$PYTHON" -m jaxcache "$@"; }}\n{steps}'
    entry = next((CORPUS / FIRST).glob("jit_loss-*-cache"))
    env = clean_environment(tmp_path) | {"PYTHON": sys.executable, "ENTRY": str(entry)}
    done = sh(["sh", "-c", script], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "store" / "abc.jxb").is_file()


# ``ci restore``: what comes, what does not, and what a job is told of it.


def test_a_missing_or_damaged_source_is_a_miss(
    run_cli: RunCli, step: Step, bundle: Path, job: Path, tmp_path: Path
) -> None:
    damaged, empty = tmp_path / "damaged.jxb", tmp_path / "empty.jxb"
    data = bytearray(bundle.read_bytes())
    data[-20] ^= 1
    damaged.write_bytes(data)
    empty.write_bytes(b"")
    for source in (tmp_path / "none.jxb", damaged, empty, tmp_path / "no" / "directory"):
        result = step("restore", source)
        assert (result["cache_hit"], result["entries"], bool(result["trouble"])) == (False, 0, True)
        assert names(job) == set()
        failed = run_cli("ci", "restore", source, "-C", job, "--fail-on-cache-miss")
        assert (failed.returncode, "[cache-miss]" in failed.stderr) == (1, True)
        assert "cache-hit\tfalse" in failed.stdout
        (said,) = (s for s in failed.stderr.splitlines() if s.startswith("nothing restored"))
        assert said.count(str(source)) == 1
        assert ("jaxcache ci key --json shows what" in failed.stderr) != source.exists()


def test_a_bundle_that_is_there_may_have_any_name(step: Step, bundle: Path, tmp_path: Path) -> None:
    assert step("restore", bundle.rename(tmp_path / "saved"))["written"] == 7


@pytest.fixture
def theirs(run_cli: RunCli, corpus: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """``source`` and ``cache`` of a user who may not write everywhere and runs the test."""
    source = corpus / "0.12.0.1-cpu-zstd"
    # Once as the user who can read every module that it imports.
    run_cli("ci", "restore", source, "-C", tmp_path / "new", "--everything")
    directory = Path(request.getfixturevalue("unprivileged"))
    for name in ("source", "cache"):
        shutil.copytree(source, directory / name, copy_function=shutil.copyfile)
    return directory


def test_a_cache_that_cannot_be_written_is_said(run_cli: RunCli, theirs: Path) -> None:
    cache = theirs / "cache"
    cache.chmod(0o555)
    line = ("ci", "restore", theirs / "source", "-C", cache, "--everything")
    done = run_cli(*line, cwd=theirs)
    assert done.returncode == 10, done.stderr
    assert f"{cache} cannot be written [read-only]" in done.stderr
    assert run_cli(*line, "--lookup-only", cwd=theirs).returncode == 0


def test_an_entry_that_cannot_be_read_here_is_left_out_once(run_cli: RunCli, theirs: Path) -> None:
    """Whether it is the same, or cut short, nobody knows: so the move is no success."""
    cache = theirs / "cache"
    unread = next(cache.glob("jit_mlp-*-cache"))
    unread.write_bytes(unread.read_bytes()[:700])
    os.utime(unread, (1, 1))
    unread.chmod(0)
    words = (theirs / "source", "-C", cache, "--json")
    done = run_cli("pull", *words, cwd=theirs)
    (left_out,) = json.loads(done.stdout)["left_out"]
    assert (done.returncode, unread.name in left_out["file"]) == (3, True)
    result = json.loads(run_cli("ci", "restore", *words, "--everything", cwd=theirs).stdout)
    assert (result["found"], result["left_out"]) == (6, 1)
