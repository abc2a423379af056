"""``action.yml``, and what ``examples`` has for MaxText, vLLM, SLURM and Kubernetes, as run there.

What a platform does is a short script on ``PATH`` (``docker``, ``srun``), or a function here for a
pod; of an action only the download is missing: the ``pip`` of the new environment links what the
real one would install. The programs set their cache as the real ones do, and print JAX's counts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment, find_jax_pythons
from plain_jax import run_plain
from processes import sh

from tools.oracle.world import Counts

pytest.importorskip("yaml")
import yaml

from tools.ci.caches import CacheStore
from tools.ci.github import GitHub

pytestmark = pytest.mark.jax
needs_jax = pytest.mark.skipif(
    sys.executable not in find_jax_pythons(),
    reason="the images of the examples have jaxcache beside jax, and this Python has no jax",
)

EXAMPLES = REPOSITORY / "examples"
MANIFESTS = sorted(
    path
    for path in EXAMPLES.rglob("*.yaml")
    if path.read_text().partition("apiVersion:")[1] == "apiVersion:"
)

#: Compiles two modules, and prints JAX's own counts.
WORK = """
import json, os, sys
import jax
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
{prepare}
jax.jit(lambda x: x + 1)(2.0)
jax.jit(lambda x: x * 3)(2.0)
counts = [events.count("/jax/compilation_cache/cache_" + name) for name in ("hits", "misses")]
# One write, for tasks that share the output.
print("counted " + json.dumps(counts) + "\\n", end="", flush=True)
sys.exit(int(os.environ.get("END_WITH", "0")))
"""
COLD, WARM = Counts(0, 2), Counts(2, 0)
#: MaxText reads its options from the command line, and hands JAX the directory itself.
MAXTEXT = """
options = dict(word.split("=", 1) for word in sys.argv[2:])
from jax.experimental.compilation_cache import compilation_cache
compilation_cache.set_cache_dir(os.path.expanduser(options["jax_cache_dir"]))
"""
#: vLLM on TPU takes the directory from a variable of its own.
VLLM = """
jax.config.update("jax_compilation_cache_dir", os.environ["VLLM_XLA_CACHE_PATH"])
"""
#: Runs the command of a container here.
DOCKER = """
[ "$1" = run ] || exit 64
shift
while :; do
  case $1 in
    -e) export "$2"; shift 2 ;;
    -v) shift 2 ;;
    --*) shift ;;
    *) break ;;
  esac
done
shift
exec "$@"
"""
#: Runs a command in one task.
SRUN = """
while :; do
  case $1 in
    --*) shift ;;
    *) break ;;
  esac
done
SLURM_PROCID=0 exec "$@"
"""


@dataclass
class Machine:
    """A directory of a machine's own, with commands on its ``PATH``."""

    home: Path
    env: dict[str, str]

    def run(self, *command: str | Path, code: int = 0, **env: str) -> str:
        """Run a command to its expected end; what it printed. It may use the test's bucket."""
        access = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        done = sh(
            list(map(str, command)),
            cwd=self.home,
            env=self.env | access | env,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


def counted(output: str) -> list[Counts]:
    """The counts of each process, in the order of their ends."""
    return [Counts(*json.loads(line)) for line in re.findall("^counted (.*)", output, re.M)]


def program(prepare: str = "") -> str:
    return WORK.replace("{prepare}", prepare)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    commands = tmp_path / "bin"
    commands.mkdir()
    scripts = {
        "python": f'exec {sys.executable} "$@"',
        "python3": f'exec {sys.executable} "$@"',
        "jaxcache": f'exec {sys.executable} -m jaxcache "$@"',
        "docker": DOCKER,
        "srun": SRUN,
    }
    for name, text in scripts.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    (tmp_path / "serve.py").write_text(program())
    env = clean_environment(tmp_path) | {
        "PATH": f"{commands}:/usr/bin:/bin",
        "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    env.pop("PYTHONWARNINGS")
    return Machine(tmp_path, env)


@needs_jax
def test_a_second_host_hits_what_the_first_compiled_and_shares_what_it_adds(
    machine: Machine, run_cli: RunCli, bucket: str
) -> None:
    maxtext = machine.home / "maxtext" / "trainers" / "pre_train" / "train.py"
    maxtext.parent.mkdir(parents=True)
    maxtext.write_text(program(MAXTEXT + "jax.jit(lambda x: x * 7)(2.0)\n"))
    (machine.home / "serve.py").write_text(program(VLLM))
    machine.env["PYTHONPATH"] += f":{machine.home}"
    root = machine.home / "persist"

    def start(*words: str, code: int = 0) -> Counts:
        store = {"JAX_CACHE_STORE": bucket, "JAX_CACHE_ROOT": str(root), "END_WITH": str(code)}
        command = ("sh", EXAMPLES / "starts" / words[0], *words[1:])
        (counts,) = counted(machine.run(*command, code=code, **store))
        return counts

    # A failed run shares what it compiled, and stays a failed run.
    assert start("tpu-inference.sh", "vllm:1", "python", "serve.py", code=3) == COLD
    (directory,) = root.iterdir()
    assert directory.name.startswith("jaxcache-v2-cpu-")
    shutil.rmtree(root)
    assert start("maxtext.sh", "base.yml", "steps=2") == Counts(2, 1)
    assert len(run_cli("ls", "-q", "-C", f"{bucket}/{directory.name}").stdout.split()) == 3


@needs_jax
def test_a_job_of_slurm_compiles_in_one_task_and_hits_in_another(machine: Machine) -> None:
    (machine.home / "train.py").write_text(program())
    printed = machine.run(
        *("bash", EXAMPLES / "slurm" / "train.sbatch"),
        PROJECT=str(machine.home),
        SLURM_JOB_PARTITION="cpu",
        SLURM_NTASKS="1",
    )
    assert counted(printed) == [COLD, WARM]


@pytest.mark.parametrize(("nodes", "notes"), [("2", 1), ("1", 0)])
def test_a_run_of_srun_says_that_other_nodes_do_not_report(
    machine: Machine, run_cli: RunCli, nodes: str, notes: int
) -> None:
    words = ("run", "--json", "-C", "cache", "--", "srun", "--ntasks=1", "true")
    done = run_cli(*words, env={"PATH": machine.env["PATH"], "SLURM_JOB_NUM_NODES": nodes})
    assert done.stdout.count("processes of this node") == notes


def test_the_page_on_slurm_shows_the_file() -> None:
    page = (REPOSITORY / "docs" / "hosts.md").read_text()
    assert (EXAMPLES / "slurm" / "train.sbatch").read_text() in page


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.stem)
def test_kubernetes_accepts_every_manifest(path: Path) -> None:
    checker = pytest.importorskip("kubernetes_validate")  # has the schemas of its releases
    for manifest in yaml.safe_load_all(path.read_text()):
        checker.validate(manifest, checker.latest_version(), strict=True)


def run_pod(
    machine: Machine, name: str, volume: str = "cache", *, ends: bool = True, **changes: str
) -> Counts:
    """Start the containers of a manifest's Deployment, the program as the server, and end them.

    Args:
        volume: the directory that is mounted as ``/cache``.
        ends: whether what is to run before the end runs, too.
        changes: values of variables that have to be others here, such as a bucket's address.
    """
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text())
    (deployment,) = (d for d in documents if d["kind"] == "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    (machine.home / volume).mkdir(exist_ok=True)
    mounts = {"/cache": volume, "/bundles/cache.jaxcache": "cache.jaxcache"}
    places = {path: str(machine.home / here) for path, here in mounts.items()}

    def execute(container: dict[str, Any], command: list[str]) -> str:
        env = {e["name"]: places.get(e["value"], e["value"]) for e in container.get("env", [])}
        env |= {name: value for name, value in changes.items() if name in env}
        return machine.run(*(places.get(word, word) for word in command), **env)

    for container in spec.get("initContainers", []):
        execute(container, container["command"])
    (server,) = spec["containers"]
    (counts,) = counted(execute(server, ["python", "serve.py"]))
    if ends and (hook := server.get("lifecycle")):
        execute(server, hook["preStop"]["exec"]["command"])
    return counts


@needs_jax
def test_pods_share_a_bucket_as_a_tier(machine: Machine, bucket: str) -> None:
    here = {"JAXCACHE_LIVE_TIERS": bucket, "JAXCACHE_LIVE_METRICS": "127.0.0.1:0"}
    assert run_pod(machine, "deployment.yaml", "first", **here) == COLD
    assert run_pod(machine, "deployment.yaml", "second", **here) == WARM


@needs_jax
def test_a_pod_pulls_what_the_end_of_another_pushed(machine: Machine, bucket: str) -> None:
    assert run_pod(machine, "init-container.yaml", STORE=bucket) == COLD
    shutil.rmtree(machine.home / "cache")
    assert run_pod(machine, "init-container.yaml", ends=False, STORE=bucket) == WARM


@needs_jax
def test_pods_that_start_together_on_one_volume_compile_once(machine: Machine) -> None:
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(run_pod, [machine] * 2, ["shared-volume.yaml"] * 2)
    assert first.hits + second.hits == first.misses + second.misses == 2


@needs_jax
def test_an_init_container_unpacks_a_bundle(machine: Machine, run_cli: RunCli) -> None:
    cache = machine.home / "cache"
    built = machine.env | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    run_plain([sys.executable, machine.home / "serve.py"], env=built)
    assert run_cli("export", machine.home / "cache.jaxcache", "-C", cache).returncode == 0
    shutil.rmtree(cache)
    assert run_pod(machine, "airgapped.yaml") == WARM


# ``action.yml`` on a runner that has no jaxcache.


WORKFLOW = """\
jobs:
  test:
    steps:
      - uses: actions/setup-python@v5
      - uses: somebody/jaxcache@v1
        with: {step: restore}
      - run: jaxcache warm train.py
      - run: command -v python
      - uses: somebody/jaxcache@v1
        with: {step: save}
"""


#: What ``python3 -m venv`` makes on the runner, but with a pip that needs no network.
MAKE_ENVIRONMENT = """
if [ "$1 $2" != "-m venv" ]; then exec {python} "$@"; fi
{python} -m venv --without-pip "$3"
cat > "$3/bin/pip" <<END
#!/bin/sh
[ "\\$*" = "install --quiet {repository}[gpu]" ] || exit 64
echo {packages} > "\\$(echo "$3"/lib/python3*/site-packages)/installed.pth"
echo {repository} >> "\\$(echo "$3"/lib/python3*/site-packages)/installed.pth"
printf '#!%s\\nfrom jaxcache.cli.main import main\\nmain()\\n' "$3/bin/python" > "$3/bin/jaxcache"
chmod +x "$3/bin/jaxcache"
END
chmod +x "$3/bin/pip"
"""


@pytest.fixture
def toolcache(tmp_path: Path) -> Path:
    """A Python as setup-python gives one, with the job's jax in it."""
    prefix = tmp_path / "toolcache"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (site,) = prefix.glob("lib/python3*/site-packages")
    installed = Path(str(distribution("jax").locate_file("")))
    (site / "jax.pth").write_text(f"{installed}\n")
    packages = tmp_path / "packages"  # what jaxcache's own environment has: no jax
    packages.mkdir()
    for path in installed.iterdir():
        if not path.name.startswith("jax"):
            (packages / path.name).symlink_to(path)
    text = MAKE_ENVIRONMENT.format(python=sys.executable, repository=REPOSITORY, packages=packages)
    python3 = prefix / "bin" / "python3"
    python3.unlink()
    python3.write_text(f"#!/bin/sh\n{text}")
    python3.chmod(0o755)
    return prefix


@needs_jax
def test_a_step_after_the_action_runs_programs_in_the_python_of_the_job(
    tmp_path: Path, toolcache: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("import jax\njax.jit(lambda x: x * 2)(1.0)\n")
    workflow = project / "workflow.yml"
    workflow.write_text(WORKFLOW)
    env = {"PATH": f"{toolcache}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    job = GitHub(project, CacheStore(tmp_path / "caches"), env).run(workflow)
    outputs = {step.name: step.output for step in job.steps if not step.skipped}
    assert not job.failed, job.failed
    assert f"using {toolcache}/bin/python (PATH)" in outputs["jaxcache warm train.py"]
    assert outputs["command -v python"] == f"{toolcache}/bin/python\n"
    assert re.fullmatch(r"jaxcache \d\S*\n", outputs["Install jaxcache"])
    temporary = tmp_path / "_runner" / "temp"
    assert [path.name for path in (temporary / "jaxcache-bin").iterdir()] == ["jaxcache"]
