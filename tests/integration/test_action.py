"""``action.yml`` on a runner that has no jaxcache: what it installs, and what a later step can do.

Only the download is missing: the ``pip`` of the new environment links what the real one would
install. Everything else of the steps is executed as it stands.
"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from conftest import REPOSITORY, find_jax_pythons
from packaging.requirements import Requirement

pytest.importorskip("yaml")
from tools.ci.caches import CacheStore
from tools.ci.github import GitHub
from tools.ci.steps import Run

pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(
        sys.executable not in find_jax_pythons(),
        reason="the job's Python gets the jax of this Python, which has none",
    ),
]

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


def link_requirements(directory: Path) -> None:
    """Make a directory of the packages that jaxcache requires, and no others."""
    directory.mkdir()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["gpu"]]
    waiting = [Requirement(text) for text in needed]
    linked = set()
    while waiting:
        requirement = waiting.pop()
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name in linked or not is_needed:
            continue
        linked.add(requirement.name)
        package = distribution(requirement.name)
        waiting += map(Requirement, package.requires or [])
        for file in package.files or []:
            top = file.parts[0]
            link = directory / top
            if top not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(str(package.locate_file(top))))


@pytest.fixture
def toolcache(tmp_path: Path) -> Path:
    """A Python as setup-python gives one, with the job's jax in it."""
    prefix = tmp_path / "toolcache"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (site,) = prefix.glob("lib/python3*/site-packages")
    (site / "jax.pth").write_text(f"{distribution('jax').locate_file('')}\n")
    link_requirements(tmp_path / "packages")
    text = MAKE_ENVIRONMENT.format(
        python=sys.executable, repository=REPOSITORY, packages=tmp_path / "packages"
    )
    python3 = prefix / "bin" / "python3"
    python3.unlink()
    python3.write_text(f"#!/bin/sh\n{text}")
    python3.chmod(0o755)
    return prefix


def run_job(directory: Path, toolcache: Path) -> Run:
    project = directory / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "print(jax.jit(lambda x: jnp.tanh(x) @ x.T)(jnp.eye(3)).sum())\n"
    )
    workflow = project / "workflow.yml"
    workflow.write_text(WORKFLOW)
    env = {"PATH": f"{toolcache}/bin:/usr/bin:/bin", "HOME": str(directory), "LANG": "C.UTF-8"}
    return GitHub(project, CacheStore(directory / "caches"), env).run(workflow)


def test_a_step_after_it_runs_programs_in_the_python_of_the_job(
    tmp_path: Path, toolcache: Path
) -> None:
    job = run_job(tmp_path, toolcache)
    outputs = {step.name: step.output for step in job.steps if not step.skipped}
    assert not job.failed, job.failed
    assert f"using {toolcache}/bin/python (PATH)" in outputs["jaxcache warm train.py"]
    assert outputs["command -v python"] == f"{toolcache}/bin/python\n"
    assert re.fullmatch(r"jaxcache \d\S*\n", outputs["Install jaxcache"])
    temporary = tmp_path / "_runner" / "temp"
    assert [path.name for path in (temporary / "jaxcache-bin").iterdir()] == ["jaxcache"]
