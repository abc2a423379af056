"""Every step of ``examples/ci`` and ``examples/container`` is executed, in a clean environment.

``tools/ci`` models the services and says what it models. On ``PATH`` are wrappers: ``python`` and
``jaxcache`` as a ``pip install`` beside jax would give them, a ``pip`` that checks what is asked of
it and installs nothing, and a ``buildkite-agent`` that keeps what it is told.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import PYTHONPATH, REPOSITORY, RunCli, find_jax_pythons, has_modules, jax_version
from processes import sh

pytest.importorskip("yaml")
from tools.ci.caches import CacheStore
from tools.ci.github import GitHub
from tools.ci.others import run_buildkite, run_gitlab
from tools.ci.steps import Run

if TYPE_CHECKING:
    from object_server import Proxy

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

pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(
        sys.executable not in find_jax_pythons(),
        reason="the examples install jaxcache beside jax, and this Python has none",
    ),
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The whole environment of a machine."""
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


@pytest.mark.parametrize("name", ["github-cache.yml", "github-action.yml"])
def test_github(name: str, env: dict[str, str], project: Project, tmp_path: Path) -> None:
    caches = CacheStore(tmp_path / "caches")

    def job(ref: str = "refs/heads/main") -> Run:
        runner = GitHub(project.check_out(), caches, env, {"github": {"ref": ref}})
        return runner.run(EXAMPLES / "ci" / name)

    restore = "jax" if "action" in name else "restore"

    def archives() -> int:
        return len(list(caches.directory.rglob("* jaxcache-*")))

    first = job()
    assert counted(first) == (False, True)
    assert (first.outputs[restore]["cache-hit"], archives()) == ("false", 1)
    assert "### JAX compilation cache: used and saved" in first.summary
    second = job()
    assert counted(second) == (True, False)
    assert (second.outputs[restore]["cache-hit"], archives()) == ("true", 1)
    project.text = TRAIN.replace("tanh", "sinh")
    assert counted(job("refs/pull/7/merge")) == (True, True)
    assert archives() == 1, "a pull request saves nothing"
    assert counted(job()) == (True, True)
    assert archives() == 2
    assert "install -r requirements.txt" in (Path(env["HOME"]) / "pip").read_text()


@pytest.mark.slow
def test_a_failing_job_saves_what_it_compiled(
    env: dict[str, str], project: Project, tmp_path: Path
) -> None:
    project.text = TRAIN + "raise SystemExit(1)\n"
    runner = GitHub(project.check_out(), CacheStore(tmp_path / "caches"), env)
    run = runner.run(EXAMPLES / "ci" / "github-cache.yml")
    assert [s.name for s in run.failed] == ["python train.py"]
    assert run.outputs["save"]["saved"] == "true"
    assert runner.caches.size_bytes() > 0


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

    first = job("main")
    assert counted(first) == (False, True)
    assert first.outputs["dotenv"]["JAXCACHE_SAVED"] == "true"
    project.text = TRAIN.replace("tanh", "sinh")
    assert counted(job("feature")) == (True, True), "a branch begins with what main compiled"
    project.text += "raise SystemExit(1)\n"
    assert counted(job("main"), fails=True) == (True, True), "main has not seen what a branch did"
    project.text = TRAIN.replace("tanh", "sinh")
    assert counted(job("main")) == (True, False), "a job that fails saves what it compiled"


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
        variables = {
            "RUNNER": "pool",
            "CI_COMMIT_REF_SLUG": "main",
            "CI_DEFAULT_BRANCH": "main",
        }
        file = EXAMPLES / "ci" / "gitlab-fleet.yml"
        return run_gitlab(file, name, directory, self.caches, env | variables)


@pytest.fixture(params=["github", "gitlab"])
def fleet(
    env: dict[str, str], project: Project, tmp_path: Path, request: pytest.FixtureRequest
) -> Fleet:
    return Fleet(request.param, env, project, tmp_path)


def test_each_kind_of_cpu_in_a_fleet_hits_its_own(fleet: Fleet) -> None:
    """Also where runners of one label, and of one cache of GitLab, differ."""
    if not has_modules(sys.executable, "xdist"):
        pytest.skip("pytest-xdist is not installed")
    fleet.env |= {"PYTEST_XDIST_AUTO_NUM_WORKERS": "1", "PYTEST_ADDOPTS": "-p no:hypothesispytest"}
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


def reach(s3: "Proxy", bucket: str, example: str, directory: Path) -> tuple[Path, dict[str, str]]:
    """An example with a bucket that exists, and what its machine needs to reach it."""
    text = (EXAMPLES / "ci" / example).read_text()
    assert "s3://my-bucket/jax" in text
    path = directory / example
    path.write_text(text.replace("s3://my-bucket/jax", bucket))
    return path, {k: v for k, v in os.environ.items() if k.startswith("AWS_")}


@pytest.mark.slow
def test_github_with_a_bucket(
    env: dict[str, str], project: Project, s3: "Proxy", bucket: str, tmp_path: Path
) -> None:
    workflow, access = reach(s3, bucket, "github-bucket.yml", tmp_path)
    secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

    def job(ref: str) -> Run:
        contexts: dict[str, Any] = {"github": {"ref": ref}, "secrets": secrets}
        caches = CacheStore(tmp_path / "caches")
        return GitHub(project.check_out(), caches, env | access, contexts).run(workflow)

    assert counted(job("refs/pull/7/merge")) == (False, True)
    assert not s3.names("put"), "a pull request writes nothing"
    assert counted(job("refs/heads/main")) == (False, True)
    assert counted(job("refs/heads/main")) == (True, False)


def test_buildkite(
    env: dict[str, str], project: Project, s3: "Proxy", bucket: str, tmp_path: Path
) -> None:
    pipeline, access = reach(s3, bucket, "buildkite.yml", tmp_path)

    def job(branch: str) -> Run:
        variables = env | access | {"BUILDKITE_BRANCH": branch}
        return run_buildkite(pipeline, project.check_out(), variables)

    assert counted(job("feature")) == (False, True)
    assert counted(job("main")) == (False, True)
    assert counted(job("feature")) == (True, False)
    told = (Path(env["HOME"]) / "agent").read_text()
    assert "annotate --context jaxcache" in told
    assert told.count("### JAX compilation cache: restored") == 3


def test_container(env: dict[str, str], project: Project, tmp_path: Path) -> None:
    """Each instruction, with a directory of ours for the image's /app; no image is built."""
    import subprocess

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
