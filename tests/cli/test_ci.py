"""``ci restore`` and ``ci save`` as commands, over real entries and without jax.

What a job does to its cache is done by hand here: a read is an access time, set as the kernel sets
it, because not every file system that these tests run on records reads.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from ways import names

from jaxcache.cache.ci.save import parse_job_status
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.write import append
from jaxcache.store.local import LocalStore

FIRST, SECOND = "0.10.2-cpu-zstd", "0.8.3-cpu-zstd"
CAPPED = "0.12.0.1-cpu-zstd-maxsize"
Step = Callable[..., Any]


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / FIRST, tmp_path / "cache"))


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
    dry = run_cli("ci", "save", bundle, "-C", job, "--dry-run").stderr
    assert re.search(r"the job used 2 \(.+\) and not 5, by the files' access times\n", dry), dry
    told = step("save", bundle)
    assert (told["saved"], told["why"], told["witness"]) == (True, "new", "file-system")
    assert {k + "-cache" for k in told["used"]} == {p.name for p in used}
    assert [k + "-cache" for k in told["new"]] == [new.name]
    assert {d["reason"] for d in told["dropped"]} == {"unused"}
    assert in_bundle(run_cli, bundle, tmp_path) == {*(p.name for p in used), new.name}
    assert names(job) == names(cache) | {new.name}, "the job's own cache is left alone"


def test_a_quiet_save_prints_no_entries(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    save = ("ci", "save", tmp_path / "new.jxb", "-C", cache, "-q")
    assert run_cli(*save).stdout == ""


def test_nothing_new_is_not_saved(step: Step, bundle: Path, tmp_path: Path) -> None:
    step("restore", bundle)
    before = bundle.stat()
    told = step("save", bundle)
    assert (told["saved"], told["why"]) == (False, "nothing-new")
    assert bundle.stat().st_mtime_ns == before.st_mtime_ns
    assert step("save", tmp_path / "other.jxb")["why"] == "first"
    told = step("save", bundle, "--save-if", "always")
    assert (told["saved"], told["why"]) == (True, "always")


def test_a_job_without_jax_saves_what_it_was_restored_from(
    run_cli: RunCli, step: Step, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    witnessed(tmp_path / "job", reads=True)
    told = step("save", tmp_path / "other.jxb")
    assert (told["saved"], told["why"], told["dropped"]) == (True, "first", [])
    assert in_bundle(run_cli, tmp_path / "other.jxb", tmp_path) == names(cache)


def test_a_save_that_keeps_nothing_writes_no_bundle(
    step: Step, bundle: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    told = step("save", tmp_path / "other.jxb", "--max-size", "1")
    assert (told["saved"], told["why"]) == (False, "empty")
    assert not (tmp_path / "other.jxb").exists()


def test_the_second_of_two_jobs_does_not_drop_what_the_first_compiled(
    run_cli: RunCli, step: Step, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    job, mine = tmp_path / "job", tmp_path / "mine"
    step("restore", bundle)
    job.rename(mine)
    step("restore", bundle)
    theirs = compile_new(job, corpus)
    assert step("save", bundle)["saved"]
    before = bundle.read_bytes()
    new = compile_new(mine, corpus, "jit_loss-*-cache")
    for dry in ((), ("--dry-run",)):
        done = run_cli("ci", "save", bundle, "-C", mine, *dry)
        assert (done.returncode, "[newer-target]" in done.stderr) == (3, True), done.stderr
        assert theirs.name.removesuffix("-cache") in done.stderr
        assert f"jaxcache import {bundle} " in done.stderr
        assert bundle.read_bytes() == before
    assert run_cli("import", bundle, "-C", mine).returncode == 0
    assert run_cli("ci", "save", bundle, "-C", mine).returncode == 0
    assert {theirs.name, new.name} <= in_bundle(run_cli, bundle, tmp_path)


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


def test_the_ledger_of_one_step_does_not_prove_that_another_used_nothing(
    step: Step, bundle: Path, tmp_path: Path
) -> None:
    """On noatime a plain step leaves no trace, so what it used must stay."""
    job = tmp_path / "job"
    step("restore", bundle)
    witnessed(job, reads=False)
    recorded = min(job.glob("*-cache")).name.removesuffix("-cache")
    append(LocalStore(job), [Event(recorded, "hit", time.time_ns())])
    told = step("save", bundle, "--save-if", "always")
    assert (len(told["used"]), len(told["unused"]), len(told["unknown"])) == (1, 0, 6)
    assert told["entries"] == 7


@pytest.mark.parametrize("reads", [True, False])
def test_what_another_place_brought_is_not_new(
    run_cli: RunCli, step: Step, bundle: Path, corpus: Path, tmp_path: Path, reads: bool
) -> None:
    other = tmp_path / "other.jxb"
    assert run_cli("export", other, "-C", corpus / SECOND).returncode == 0
    step("restore", bundle)
    job = tmp_path / "job"
    assert run_cli("import", other, "-C", job).returncode == 0
    witnessed(job, reads=reads)
    told = step("save", bundle)
    assert (told["new"], told["saved"], told["why"]) == ([], False, "nothing-new")
    assert len(told["unknown"]) >= 7


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
    shutil.copytree(cache, job, dirs_exist_ok=True, copy_function=shutil.copyfile)
    store = LocalStore(job)
    (key, *_) = sorted(p.name.removesuffix("-cache") for p in job.glob("*-cache"))
    append(store, [Event(key, "hit", time.time_ns())])
    done = run_cli("ci", "save", bundle, "-C", job, "--dry-run")
    assert "unknown" not in done.stderr
    told = (
        "7 new (under 1 s of compiling per entry), 1 of them hit since; the cache was empty before"
    )
    assert told in done.stderr
    (job / ".jaxcache" / "ci.json").unlink()
    done = run_cli("ci", "save", bundle, "-C", job, "--dry-run")
    assert "used" not in done.stderr
    assert (
        "of compiling per entry), 1 of them hit since: without jaxcache ci restore before the job, "
        "every entry counts as new\n"
    ) in done.stderr


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
    told = step("save", bundle, "--job-status", status, code=3)
    assert (told["saved"], told["finished"]) == (True, kept == 2)
    found = in_bundle(run_cli, bundle, tmp_path)
    assert (len(found), torn in found, told["left_out"]) == (kept, False, [torn])


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


def forget_arrivals(cache: Path) -> None:
    """Let the entries of a cache have arrived long ago."""
    for path in (cache / ".jaxcache" / "ledger").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"kind":"arrived"' not in line))


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
    forget_arrivals(shared)
    shutil.rmtree(job)
    step("restore", shared)
    told = step("save", shared, "--unused-for", "1h")
    assert told["saved"] is False
    assert names(shared) == {used.name}


def test_nothing_but_a_bundle_is_overwritten(
    run_cli: RunCli, step: Step, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "thesis.jxb"
    other.write_text("chapter one")
    done = run_cli("ci", "save", other, "-C", cache)
    assert (done.returncode, other.read_text()) == (2, "chapter one")


def test_an_exit_status_may_have_any_number_of_digits() -> None:
    assert parse_job_status("000")
    assert not parse_job_status("9" * 5_000)  # more than Python reads as a number


def test_the_same_content_has_the_same_digest(
    step: Step, bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    witnessed(tmp_path / "job", reads=False)
    first = step("save", bundle, "--key", "k")["key"]
    assert step("save", bundle, "--key", "k")["key"] == first
    compile_new(tmp_path / "job", corpus)
    assert step("save", bundle, "--key", "k")["key"] != first


def test_a_baseline_that_makes_no_sense_is_none(step: Step, bundle: Path, tmp_path: Path) -> None:
    for text in ("", "[]", '{"format":2}', '{"format":1,"started_ns":"x"}', "[" * 10_000):
        step("restore", bundle)
        (tmp_path / "job" / ".jaxcache" / "ci.json").write_text(text)
        assert len(step("save", bundle)["new"]) == 7


def test_a_baseline_of_absurdly_many_values_is_none(
    step: Step, bundle: Path, tmp_path: Path
) -> None:
    step("restore", bundle)
    assert not step("save", bundle)["new"]
    path = tmp_path / "job" / ".jaxcache" / "ci.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "more": [[]] * (5 << 20)}))
    assert len(step("save", bundle)["new"]) == 7
