"""What installing jaxcache beside jax changes: nothing that JAX's keys depend on.

Each environment is a real one of Python's ``venv``, with links to the packages of a Python with jax
and to those that a case adds, so that no network is needed.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import REPOSITORY, has_modules
from processes import sh

from tests.inprocess.conftest import OWN_COUNTS

pytestmark = pytest.mark.jax

#: What ``pip install jax`` brings, as the names of directories.
_JAX = ("jax", "jaxlib", "ml_dtypes", "numpy", "numpy.libs", "opt_einsum", "scipy", "scipy.libs")
#: What jaxcache requires.
_REQUIRED = (
    *("typer", "shellingham", "humanize", "cramjam"),
    *("rich", "markdown_it", "mdurl", "pygments", "google", "backports"),
)
#: Prints what JAX itself counts.
PLAIN = f"""{OWN_COUNTS}
import jax.numpy as jnp
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8)))
print(json.dumps([_own["hits"], _own["written"]]))
"""


class Environment:
    """A virtual environment of a Python with jax, with jax alone at first."""

    def __init__(self, jax_python: str, home: Path, variables: dict[str, str]) -> None:
        self.home = home
        self.variables = variables
        self.python = home / "venv" / "bin" / "python"
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        subprocess.run([jax_python, "-m", "venv", "--without-pip", home / "venv"], check=True)
        self._all = Path(self._output(jax_python, ask))
        self._own = Path(self._output(self.python, ask))
        self.add(_JAX)

    def _output(self, python: str | Path, program: str) -> str:
        done = sh([python, "-c", program], env=self.variables, cwd=self.home)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def add(self, packages: Iterable[str], source: Path | None = None) -> None:
        """Install packages, as far as their source has them; with their metadata."""
        for name in packages:
            stem = name.replace(".", "_")
            for path in (source or self._all).glob("*"):
                if path.name == name or path.name.startswith(f"{stem}-"):
                    (self._own / path.name).symlink_to(path)

    def add_jaxcache(self) -> None:
        """Install jaxcache without what it requires."""
        self.add(["jaxcache"], REPOSITORY)
        metadata = self._own / "jaxcache-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxcache\nVersion: 1\n")
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
        groups = project["entry-points"].items()
        points = [f"[{group}]\njaxcache = {named['jaxcache']}\n" for group, named in groups]
        (metadata / "entry_points.txt").write_text("".join(points))
        startup = REPOSITORY / "jaxcache" / "injected" / "startup" / "jaxcache.pth"
        (self._own / "jaxcache.pth").symlink_to(startup)

    def sh(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run its Python."""
        return sh([self.python, *words], env=self.variables, cwd=self.home)

    def run(self, program: str) -> object:
        """Run a program and return the JSON of its last line."""
        return json.loads(self._output(self.python, program).splitlines()[-1])


@pytest.fixture
def environment(jax_python: str, tmp_path: Path, inside_environment: dict[str, str]) -> Environment:
    """An environment with nothing but jax and what it requires."""
    if not has_modules(jax_python, "tomllib"):
        pytest.skip("jaxcache needs Python 3.11")
    return Environment(jax_python, tmp_path, inside_environment)


def test_plain_jax_hits_with_jaxcache_beside_it(environment: Environment) -> None:
    hits, misses = environment.run(PLAIN)  # type: ignore[misc]
    assert (hits, misses > 0) == (0, True)
    environment.add_jaxcache()
    environment.add(_REQUIRED, Path(sysconfig.get_path("purelib")))
    assert environment.run(PLAIN) == [misses, 0]
    environment.add(["zstandard"])
    if not (environment._own / "zstandard").exists():
        pytest.skip("this Python has no zstandard")
    # Else JAX no longer has the trap, and the above shows nothing.
    assert environment.run(PLAIN) == [0, misses]


def test_a_run_is_observed_by_who_started_it(environment: Environment, tmp_path: Path) -> None:
    """Another version beside jax, whose code may not fit, takes no part."""
    environment.add_jaxcache()
    (environment._own / "jaxcache").unlink()
    other = environment._own / "jaxcache"
    shutil.copytree(REPOSITORY / "jaxcache", other)
    for name in ("listener.py", "channel.py"):
        (other / "injected" / name).write_text("raise RuntimeError('another version')\n")
    program = tmp_path / "program.py"
    program.write_text(PLAIN)
    words = ("warm", "--json", "-C", tmp_path / "warm", "--python", environment.python, program)
    done = sh(
        [sys.executable, "-m", "jaxcache", *words],
        env={k: v for k, v in environment.variables.items() if k != "PYTHONPATH"},
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    hits, misses = json.loads(done.stderr.splitlines()[0])
    assert (document["summary"]["hits"], document["summary"]["misses"]) == (hits, misses)
    assert misses > 0 and not document["unobserved"]


INSIDE = """
import json, re, sys
import jaxcache
enabled = jaxcache.enable()
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    return jnp.sin(x) @ x

x, y = jnp.ones((8, 8)), jnp.ones((5, 5))
with jaxcache.watch() as report:
    step(x)
assert "jit_step" in str(report) and report._repr_html_()
assert [m.module for m in report.modules if m.function == "step"] == ["jit_step"]
with jaxcache.guard():
    step(x)
    try:
        step(y)
        refused = False
    except jaxcache.UnexpectedCompileError:
        refused = True
explained = jaxcache.explain_miss(step, y).summary
from jaxcache.inprocess.notebook import Status
from jaxcache.inprocess.watch import Observation
assert re.search(r"holds +\\d+ entr", str(Status(Observation().start())))
try:
    jaxcache.open().verify()
    code = None
except jaxcache.JaxcacheError as error:
    code = error.code
others = {"typer", "rich", "google.protobuf", "backports", "zstandard", "cramjam"} & {*sys.modules}
print(json.dumps([enabled.live, report.written > 0, refused, bool(explained), code, [*others]]))
"""


def test_the_interface_needs_the_standard_library_alone(environment: Environment) -> None:
    environment.add_jaxcache()
    assert environment.run(INSIDE) == [True, True, True, True, "missing-package", []]


def test_the_pytest_plugin_needs_pytest_alone(environment: Environment) -> None:
    environment.add_jaxcache()
    environment.add(("pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments"))
    if not (environment._own / "_pytest").exists():
        pytest.skip("this Python has no pytest")
    (environment.home / "test_step.py").write_text(
        "import jax\ndef test_step():\n    jax.jit(lambda x: x + 1)(1.0)\n"
    )
    done = environment.sh("-m", "pytest", "--jaxcache=pytest-cache", "test_step.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 hits" in done.stdout


def test_the_command_says_what_it_lacks_or_leaves_its_work_to_another(
    environment: Environment,
) -> None:
    environment.add_jaxcache()
    for words in (["ls", "--help"], ["ls"], ["run", "--", "echo", "begun"]):
        done = environment.sh("-m", "jaxcache", *words)
        assert (done.returncode, done.stdout) == (1, "")
        sentence, hint = done.stderr.splitlines()
        lacks = f"this needs typer, which is not installed in {environment.python}"
        assert sentence.startswith(f"jaxcache: {lacks}")
        assert "hint: install jaxcache there without --no-deps, or use the command " in hint

    # It leaves its work to one later on PATH, which was installed as a tool.
    script = "#!{}\nimport sys\n{}\n"
    main = "from jaxcache.cli.main import main; main()"
    texts = {
        environment.python.parent: (environment.python, main),
        environment.home / "tools": ("/usr/bin/env python3", "print(sys.argv[1:])"),
    }
    for directory, text in texts.items():
        directory.mkdir(exist_ok=True)
        (directory / "jaxcache").write_text(script.format(*text))
        (directory / "jaxcache").chmod(0o755)
    path = os.pathsep.join(map(str, [*texts, os.environ["PATH"]]))
    done = sh(["jaxcache", "ls", "-C", "a b"], env=environment.variables | {"PATH": path})
    assert (done.stdout, done.stderr) == ("['ls', '-C', 'a b']\n", "")
