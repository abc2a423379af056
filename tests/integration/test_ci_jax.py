"""CI jobs and examples around a real JAX: the key tells hits, and the cache keeps what is used."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on, says
from conftest import PYTHONPATH, REPOSITORY, RunCli, find_jax_pythons, has_modules, jax_version
from object_server import Proxy
from plain_jax import run_workload
from processes import sh

from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.core.machine import hashes_path
from jaxcache.store.local import LocalStore
from tools.ci.caches import CacheStore
from tools.ci.github import GitHub
from tools.ci.others import run_buildkite, run_gitlab
from tools.ci.steps import Run

NO_XLA_CACHES = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}

pytestmark = pytest.mark.jax


def ci(run_cli: RunCli, *args: str | Path, env: dict[str, str] | None = None) -> Any:
    done = run_cli("ci", *args, "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_key_names_the_directory_where_jax_hashes_it(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    """That equal keys are hits is for ``test_machine.py``."""

    def key(cache: str, env: dict[str, str]) -> Any:
        return ci(run_cli, "key", "-C", tmp_path / cache, "--python", each_jax_python, env=env)

    (first, second), free = ([key(c, env) for c in "ab"] for env in ({}, NO_XLA_CACHES))
    words = ("ci", "key", "-C", "a", "--python", each_jax_python)
    assert run_cli(*words, cwd=tmp_path).stdout.strip() == first["key"], "as warm -C names it"
    hashed = [document["components"]["cache_dir_in_key"] for document in (first, second, *free)]
    is_bound = hashes_path(".".join(map(str, jax_version(each_jax_python))))
    both = [str(tmp_path / "a"), str(tmp_path / "b")] if is_bound else [None, None]
    assert hashed == [*both, None, None]
    assert (first["key"] != second["key"], free[0]["key"] == free[1]["key"]) == (is_bound, True)


def test_three_jobs(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> None:
    cache, bundle = tmp_path / "cache", tmp_path / "cache.jxb"
    restore = ("restore", bundle, "-C", cache, "--python", each_jax_python)
    assert ci(run_cli, *restore)["cache_hit"] is False
    cold = run_workload(each_jax_python, cache, tmp_path)
    told = ci(run_cli, "save", bundle, "-C", cache)
    assert (told["saved"], told["entries"]) == (True, cold["cache_misses"])

    shutil.rmtree(cache)
    assert ci(run_cli, *restore)["entries"] == cold["cache_misses"]
    warm = run_workload(each_jax_python, cache, tmp_path)
    assert (warm["cache_misses"], warm["result"]) == (0, cold["result"])
    records_reads = json.loads((cache / ".jaxcache" / "ci.json").read_text())["records_reads"]
    told = ci(run_cli, "save", bundle, "-C", cache)
    assert (told["saved"], told["new"]) == (False, [])
    if records_reads:
        assert len(told["used"]) == cold["cache_misses"]

    shutil.rmtree(cache)
    ci(run_cli, *restore)
    script = "import jax, sys; jax.jit(lambda x: x * 3)(2.0).block_until_ready()"
    low = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = run_cli("run", "-C", cache, "--", each_jax_python, "-c", script, env=low)
    assert done.returncode == 0, done.stderr
    told = ci(run_cli, "save", bundle, "-C", cache)
    assert (told["saved"], len(told["new"])) == (True, 1)
    if records_reads:
        assert (len(told["unused"]), told["written"]) == (cold["cache_misses"], 1)


@acts_on(
    "the CPU, as --xla_cpu_max_isa in XLA_FLAGS may limit it, is part of the key: these never hit"
)
def test_a_bundle_of_another_kind_of_cpu_is_left_out_and_doctor_names_it(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 8, 3) or platform.machine() != "x86_64":
        pytest.skip("needs a CPU whose features XLA limits, in keys")
    cache, bundle = tmp_path / "cache", tmp_path / "avx2.jxb"
    here = ("-C", cache, "--python", each_jax_python)
    theirs, ours = ({"XLA_FLAGS": f"--xla_cpu_max_isa={isa}"} for isa in ("AVX2", "AVX"))
    keys = {ci(run_cli, "key", *here, env=env)["key"] for env in (theirs, ours)}
    assert len(keys) == 2
    compiled = run_workload(each_jax_python, cache, tmp_path, **theirs)["cache_misses"]
    assert ci(run_cli, "save", bundle, "-C", cache, env=theirs)["entries"] == compiled
    shutil.rmtree(cache)

    told = ci(run_cli, "restore", bundle, *here, env=ours)
    assert (told["entries"], told["found"]) == (0, compiled)
    assert "CPU" in told["misses"][0]["reason"]
    assert run_cli("import", bundle, "-C", cache).returncode == 0
    examined = run_cli("doctor", "--json", *here, env=ours)
    found = {f["trap"]: f for f in json.loads(examined.stdout)["findings"]}["cpu-features"]
    assert found["seen"].endswith(", with avx2, fma"), found
    says(found["cost"])
    assert "cpu-features" not in run_cli("doctor", "--json", *here, env=theirs).stdout
    judged = run_workload(each_jax_python, cache, tmp_path, **ours)
    assert (judged["cache_hits"], judged["cache_misses"]) == (0, compiled)


def entries(cache: Path) -> set[str]:
    files = (p.name for p in cache.iterdir() if p.is_file() and p.name != "CACHEDIR.TAG")
    return {n for n in files if not n.startswith(".") and not n.endswith("-atime")}


@acts_on("If other jobs use them, give each environment its own bundle: $(jaxcache ci key).jxb")
def test_a_save_replaces_entries_that_restore_left(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    """After an upgrade, or in another directory, nothing of the bundle can hit."""
    bundle, cache = tmp_path / "cache.jxb", tmp_path / "cache"
    old = corpus / "0.4.38-cpu-zlib"
    assert run_cli("export", bundle, "-C", old).returncode == 0
    told = ci(run_cli, "restore", bundle, "-C", cache, "--python", jax_python)
    assert (told["entries"], told["found"]) == (0, len(entries(old)))
    compiled = run_workload(jax_python, cache, tmp_path)["cache_misses"]
    dry = ci(run_cli, "save", bundle, "-C", cache, "--dry-run")
    assert {d["reason"] for d in dry["dropped"]} == {"cannot-hit"}
    done = run_cli("ci", "save", bundle, "-C", cache)
    assert done.returncode == 0, done.stderr
    number = len(entries(old))
    assert f"also held {number} entries that cannot hit here; they are not kept" in done.stderr
    path = f"{Path(jax_python).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    named = act(done.stderr, tmp_path, until=").jxb", PATH=path, JAX_ENABLE_X64="1")
    assert named.returncode == 0, named
    key = ci(run_cli, "key", "-C", cache, "--python", jax_python)["key"]
    assert len({key, named.stdout.strip()} - {""}) == 2
    shutil.rmtree(cache)
    told = ci(run_cli, "restore", bundle, "-C", cache, "--python", jax_python)
    assert (told["entries"], told["found"]) == (compiled, compiled)


def test_uses_elsewhere_of_entries_that_import_brought_saved_nothing_here(
    run_cli: RunCli, jax_python: str, corpus: Path, tmp_path: Path
) -> None:
    bundle, cache = tmp_path / "cache.jxb", tmp_path / "cache"
    other = Path(shutil.copytree(corpus / "0.4.38-cpu-zlib", tmp_path / "other"))
    (key, *_) = sorted(entries(other))
    hit = Event(key.removesuffix("-cache"), HIT, 1, {"timed": 1, "saved_seconds": 6.2})
    append(LocalStore(other), [hit])
    assert run_cli("export", bundle, "-C", other).returncode == 0
    ci(run_cli, "restore", bundle, "-C", cache, "--python", jax_python)
    assert run_cli("import", bundle, "-C", cache).returncode == 0
    done = run_cli("ci", "save", bundle, "-C", cache, "--dry-run")
    number = len(entries(other))
    used = f"of {number} entries from before it, the job used 0, by the files' access times; "
    assert f"{used}the use of {number} is unknown" in done.stderr
    assert ci(run_cli, "save", bundle, "-C", cache, "--dry-run")["saved_seconds"] == 0


# Every step of ``examples/ci`` and ``examples/container``, in a clean environment.
#
# ``tools/ci`` models the services and says what it models. On PATH are wrappers: ``python`` and
# ``jaxcache`` as a ``pip install`` beside jax gives them, a ``pip`` that checks what it is asked
# and installs nothing, and a ``buildkite-agent`` that keeps what it is told.


EXAMPLES = REPOSITORY / "examples"
TRAIN = """\
import json, jax, jax.numpy as jnp, numpy as np
counts = {"cache_hits": 0, "cache_misses": 0}
def count(event, **_):
    name = event.rpartition("/")[2]
    if name in counts:
        counts[name] += 1
jax.monitoring.register_event_listener(count)
x = jax.jit(lambda a: a + 1)(np.ones(3))
print(float(jax.jit(lambda a: jnp.tanh(a).sum())(x)))
print("counted", json.dumps(counts))
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The whole environment of a machine."""
    if sys.executable not in find_jax_pythons():
        pytest.skip("the examples install jaxcache beside jax, and this Python has none")
    directory = tmp_path / "bin"
    directory.mkdir()
    wrappers = {
        "python": f'exec {sys.executable} "$@"',
        "jaxcache": f'exec {sys.executable} -m jaxcache "$@"',
        "pip": 'echo "pip $*"; [ "$1" = install ] || exit 1; echo "$*" >> "$HOME/pip"',
        "buildkite-agent": 'echo "$*" >> "$HOME/agent"; cat >> "$HOME/agent"',
    }
    for name, text in wrappers.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    path = f"{directory}:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": PYTHONPATH}


class Project:
    """A checkout, on a machine that is new for each job."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.text = TRAIN

    def check_out(self) -> Path:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        (self.directory / "train.py").write_text(self.text)
        (self.directory / "requirements.txt").write_text("jax\n")
        return self.directory


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def counted(run: Run, fails: bool = False) -> tuple[bool, bool]:
    """Whether the job's JAX had hits, and misses."""
    assert bool(run.failed) is fails, [step.output for step in run.failed]
    (line,) = re.findall("^counted (.*)", "\n".join(s.output for s in run.steps), re.M)
    told = json.loads(line)
    return told["cache_hits"] > 0, told["cache_misses"] > 0


@pytest.mark.parametrize(
    "name", [pytest.param("github-cache.yml", marks=pytest.mark.slow), "github-action.yml"]
)
def test_github(name: str, env: dict[str, str], project: Project, tmp_path: Path) -> None:
    caches = CacheStore(tmp_path / "caches")

    def job(ref: str = "refs/heads/main") -> Run:
        runner = GitHub(project.check_out(), caches, env, {"github": {"ref": ref}})
        return runner.run(EXAMPLES / "ci" / name)

    restore = "jax" if "action" in name else "restore"

    def archives() -> int:
        return len(list(caches.directory.rglob("* jaxcache-*")))

    fails = "action" not in name  # the model runs no step of an action after a failure
    project.text = TRAIN + f"raise SystemExit({int(fails)})\n"
    first = job()
    assert counted(first, fails) == (False, True)
    assert (first.outputs[restore]["cache-hit"], archives()) == ("false", 1), "it saves, too"
    assert "### JAX compilation cache: used and saved" in first.summary
    project.text = TRAIN.replace("tanh", "sinh")
    second = job("refs/pull/7/merge")
    assert counted(second) == (True, True)
    assert (second.outputs[restore]["cache-hit"], archives()) == ("true", 1), "it saves nothing"
    assert "install -r requirements.txt" in (Path(env["HOME"]) / "pip").read_text()


def test_inputs_of_the_action(env: dict[str, str], project: Project, tmp_path: Path) -> None:
    shared, caches = tmp_path / "shared", CacheStore(tmp_path / "caches")

    def job(restore: str = "", save: str = "") -> Run:
        workflow = project.check_out() / "workflow.yml"
        workflow.write_text(
            f"""\
jobs:
  test:
    steps:
      - id: restore
        uses: somebody/jaxcache@v1
        with: {{step: restore, store: {shared}, hash-files: "*.txt", {restore}}}
      - run: python train.py
      - id: save
        uses: somebody/jaxcache@v1
        with: {{step: save, store: {shared}, max-size: 10MB, unused-for: 7d, {save}}}
"""
        )
        return GitHub(project.directory, caches, env).run(workflow)

    missed = job("fail-on-cache-miss: 'true'")
    assert missed.failed
    assert missed.outputs["restore"]["cache-hit"] == "false"
    assert not shared.exists(), "nothing was compiled, nothing is saved"
    assert job().outputs["save"]["saved"] == "true"
    looked = job("lookup-only: 'true'", "save-if: 'false'")
    assert looked.outputs["restore"]["cache-hit"] == "true"
    assert counted(looked) == (False, True)
    last = job("fail-on-cache-miss: 'true'")
    assert counted(last) == (True, False)
    assert int(last.outputs["restore"]["entries"]) > 0
    assert float(last.outputs["save"]["saved-seconds"]) >= 0
    assert last.outputs["restore"]["key"].startswith("jaxcache-v2-")
    assert caches.size_bytes() == 0


def test_gitlab(env: dict[str, str], project: Project, tmp_path: Path) -> None:
    caches = CacheStore(tmp_path / "caches")

    def job(branch: str) -> Run:
        variables = {"CI_COMMIT_REF_SLUG": branch, "CI_DEFAULT_BRANCH": "main"}
        directory = project.check_out()
        return run_gitlab(
            EXAMPLES / "ci" / "gitlab-ci.yml", "test", directory, caches, env | variables
        )

    project.text = TRAIN + "raise SystemExit(1)\n"
    first = job("main")
    assert counted(first, fails=True) == (False, True)
    assert first.outputs["dotenv"]["JAXCACHE_SAVED"] == "true", "a job that fails saves, too"
    project.text = TRAIN.replace("tanh", "sinh")
    assert counted(job("feature")) == (True, True), "a branch begins with what main compiled"
    saved = [key for key, _ in caches.saved(project.directory / ".jaxcache-bundles")]
    assert saved == ["jaxcache-feature", "jaxcache-main"], "main does not see what a branch did"


IN_PYTEST = """\
import json, pathlib, runpy
def test_train():
    counts = runpy.run_path("train.py")["counts"]
    pathlib.Path("counts.json").write_text(json.dumps(counts))
"""


class Fleet:
    """The two files for a fleet, on runners that differ in the CPU that XLA may use."""

    def __init__(self, service: str, env: dict[str, str], project: Project, top: Path) -> None:
        self.service, self.env, self.project = service, env, project
        self.caches = CacheStore(top / "caches")

    def job(self, name: str, isa: str, profile: str = "{}") -> Run:
        directory = self.project.check_out()
        (directory / "test_train.py").write_text(IN_PYTEST)
        (directory / "gpu.json").write_text(profile)
        env = self.env | {"XLA_FLAGS": f"--xla_cpu_max_isa={isa}", "JAX_PLATFORMS": "cpu"}
        if self.service == "github":
            runner = GitHub(directory, self.caches, env)
            return runner.run(EXAMPLES / "ci" / "github-fleet.yml", name)
        variables = {"RUNNER": "pool", "CI_COMMIT_REF_SLUG": "main", "CI_DEFAULT_BRANCH": "main"}
        file = EXAMPLES / "ci" / "gitlab-fleet.yml"
        return run_gitlab(file, name, directory, self.caches, env | variables)


@pytest.fixture(params=[pytest.param("github", marks=pytest.mark.slow), "gitlab"])
def fleet(
    env: dict[str, str], project: Project, tmp_path: Path, request: pytest.FixtureRequest
) -> Fleet:
    return Fleet(request.param, env, project, tmp_path)


def test_each_kind_of_cpu_in_a_fleet_hits_its_own(fleet: Fleet) -> None:
    """Also where runners of one label, and of one cache of GitLab, differ."""
    if not has_modules(sys.executable, "xdist"):
        pytest.skip("pytest-xdist is not installed")
    # What workers count is for the tests of the plugin.
    fleet.env |= {"PYTEST_XDIST_AUTO_NUM_WORKERS": "0", "PYTEST_ADDOPTS": "-p no:hypothesispytest"}
    cold, hot = {"cache_hits": 0, "cache_misses": 2}, {"cache_hits": 2, "cache_misses": 0}
    for isa, expected in (("AVX", cold), ("AVX2", cold), ("AVX", hot)):
        run = fleet.job("cpu", isa)
        assert not run.failed, run.failed[0].output
        counts = json.loads((fleet.project.directory / "counts.json").read_text())
        assert counts == expected, (isa, [step.output for step in run.steps])


def test_a_runner_fills_the_cache_of_another_kind(
    fleet: Fleet, run_cli: RunCli, tmp_path: Path
) -> None:
    """Another CPU is in the place of the GPU, which is not here."""
    pythons = [p for p in find_jax_pythons() if jax_version(p) >= (0, 11)]
    if not pythons:
        pytest.skip("needs JAX 0.11 or newer: set JAXCACHE_TEST_JAX_PYTHONS")
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {pythons[0]} "$@"\n')
    fleet.env["VIRTUAL_ENV"] = str(Path(pythons[0]).parents[1])
    host = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAX_PLATFORMS": "cpu"}
    words = ("target", "capture", tmp_path / "gpu.json", "--python", pythons[0])
    assert run_cli(*words, env=host).returncode == 0
    profile = (tmp_path / "gpu.json").read_text()
    filled = fleet.job("fill", "AVX", profile)
    assert not filled.failed, filled.failed[0].output
    assert counted(fleet.job("gpu", "AVX2", profile)) == (True, False)
    (failed,) = fleet.job("gpu", "SSE4_2", profile).failed
    assert "xla_cpu_max_isa=SSE4_2" in failed.output


def reach(s3: Proxy, bucket: str, example: str, directory: Path) -> tuple[Path, dict[str, str]]:
    """An example with a bucket that exists, and what its machine needs to reach it."""
    text = (EXAMPLES / "ci" / example).read_text()
    path = directory / example
    path.write_text(text.replace("s3://my-bucket/jax", bucket))
    return path, {k: v for k, v in os.environ.items() if k.startswith("AWS_")}


@pytest.mark.slow
def test_github_with_a_bucket(
    env: dict[str, str], project: Project, s3: Proxy, bucket: str, tmp_path: Path
) -> None:
    workflow, access = reach(s3, bucket, "github-bucket.yml", tmp_path)
    secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

    def job(ref: str) -> Run:
        contexts: dict[str, Any] = {"github": {"ref": ref}, "secrets": secrets}
        caches = CacheStore(tmp_path / "caches")
        return GitHub(project.check_out(), caches, env | access, contexts).run(workflow)

    assert counted(job("refs/heads/main")) == (False, True)
    written = s3.names("put")
    project.text = TRAIN.replace("tanh", "sinh")
    assert counted(job("refs/pull/7/merge")) == (True, True)
    assert s3.names("put") == written, "a pull request writes nothing"


@pytest.mark.slow
def test_buildkite(
    env: dict[str, str], project: Project, s3: Proxy, bucket: str, tmp_path: Path
) -> None:
    pipeline, access = reach(s3, bucket, "buildkite.yml", tmp_path)

    def job(branch: str) -> Run:
        variables = env | access | {"BUILDKITE_BRANCH": branch}
        return run_buildkite(pipeline, project.check_out(), variables)

    assert counted(job("main")) == (False, True)
    written = s3.names("put")
    project.text = TRAIN.replace("tanh", "sinh")
    assert counted(job("feature")) == (True, True)
    assert s3.names("put") == written, "a branch writes nothing"
    told = (Path(env["HOME"]) / "agent").read_text()
    assert "annotate --context jaxcache" in told
    assert told.count("### JAX compilation cache: restored") == 2


@pytest.mark.slow
def test_container(env: dict[str, str], project: Project, tmp_path: Path) -> None:
    """Each instruction, with a directory of ours for the image's /app; no image is built."""
    image, context = tmp_path / "app", project.check_out()
    shutil.copy(EXAMPLES / "container" / "start.sh", context)
    image.mkdir()

    def execute(command: str | list[str]) -> "subprocess.CompletedProcess[str]":
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        return sh(words, env=env, cwd=image)

    start: list[str] = []
    text = (EXAMPLES / "container" / "Containerfile").read_text().replace("/app", str(image))
    for line in (x for x in text.splitlines() if x and not x.startswith("#")):
        instruction, _, rest = line.partition(" ")
        if instruction == "ENV":
            name, _, value = rest.partition("=")
            env[name] = value
        elif instruction == "COPY":
            *sources, target = rest.split()
            assert target == "./"
            for source in sources:
                shutil.copy(context / source, image)
        elif instruction == "RUN":
            done = execute(rest)
            assert done.returncode == 0, done.stdout + done.stderr
        elif instruction in ("ENTRYPOINT", "CMD"):
            start += json.loads(rest)
        else:
            assert instruction in ("FROM", "WORKDIR"), line
    done = execute(start)
    assert done.returncode == 0, done.stderr
    assert '"cache_misses": 0' in done.stdout
    victim = min((image / "jax-cache").glob("*-cache"))
    victim.write_bytes(victim.read_bytes()[:-4])
    done = execute(start)
    assert done.returncode == 0, done.stderr
    assert "going on without it" in done.stderr
    assert '"cache_hits": 0' in done.stdout
