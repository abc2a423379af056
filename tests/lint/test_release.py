"""What is released: built from the sdist, installed into an empty environment, used there.

What the workflows mean was looked up in the documentation of their actions; no runner is here.
"""

import os
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY, clean_environment
from processes import sh

import jaxcache
from jaxcache.cli.commands import COMMANDS

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]


def run(*args: str | Path, home: Path, cwd: Path | None = None) -> str:
    env = {k: v for k, v in clean_environment(home).items() if not k.startswith("PYTHON")}
    done = sh([str(a) for a in args], env=env, cwd=cwd or home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was built from it."""
    directory, home = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("home")
    run(sys.executable, "-m", "build", "--outdir", directory, REPOSITORY, home=home)
    return directory


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it, as pipx makes one."""
    target = tmp_path_factory.mktemp("tool") / "venv"
    venv.create(target, with_pip=True)
    (wheel,) = built.glob("*.whl")
    run(target / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}[gpu]", home=target)
    return target


@pytest.mark.slow
def test_the_archives_hold_what_they_must_and_nothing_else(built: Path) -> None:
    version = jaxcache.__version__
    wheel, sdist = sorted(built.iterdir())
    assert wheel.name == f"jaxcache-{version}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= {
        "jaxcache/py.typed",
        "jaxcache/entry/xla_subset.proto",
        "jaxcache/render/report/report.js",
        "jaxcache/core/eviction.py",
        "jaxcache/injected/startup/sitecustomize.py",
    }
    tops = {name.split("/")[0] for name in names}
    data = {f"jaxcache-{version}.dist-info", f"jaxcache-{version}.data"}
    assert tops == {"jaxcache", "jaxcache.pth", *data}
    assert sdist.name == f"jaxcache-{version}.tar.gz"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "tools/gen.py", "docs/index.md"} <= inside


@pytest.mark.slow
def test_it_works_in_an_environment_of_its_own(
    installed: Path, tmp_path: Path, corpus: Path
) -> None:
    tool = installed / "bin" / "jaxcache"
    assert run(tool, "--version", home=tmp_path) == f"jaxcache {jaxcache.__version__}\n"
    cache = corpus / "0.12.0.1-cuda13-h200-zstd"
    assert len(run(tool, "ls", "-q", "-C", cache, home=tmp_path).splitlines()) == 8
    assert "sm_90a" in run(tool, "show", "jit_mlp*", "-C", cache, home=tmp_path)
    share = installed / "share"
    assert (share / "bash-completion" / "completions" / "jaxcache").is_file()
    assert (share / "zsh" / "site-functions" / "_jaxcache").is_file()
    assert (share / "fish" / "vendor_completions.d" / "jaxcache.fish").is_file()
    assert len(list((share / "man" / "man1").glob("jaxcache*.1"))) == len(COMMANDS) + 1


def test_the_conda_recipe_requires_what_the_wheel_does() -> None:
    recipe = yaml.safe_load((REPOSITORY / "examples/conda/recipe.yaml").read_text("utf-8"))
    python, *packages = recipe["requirements"]["run"]
    assert python == f"python {PROJECT['requires-python']}"
    wheel = [d.partition(";")[0] for d in PROJECT["dependencies"]]
    wheel += PROJECT["optional-dependencies"]["gpu"]  # conda has no extras
    assert [p.replace(" ", "") for p in packages] == wheel
    (entry_point,) = recipe["build"]["python"]["entry_points"]
    assert entry_point == f"jaxcache = {PROJECT['scripts']['jaxcache']}"


@pytest.mark.slow
def test_rattler_build_renders_the_conda_recipe() -> None:
    rattler = pytest.importorskip("rattler_build", reason="no wheel for this system: group dev")
    recipe = rattler.Stage0Recipe.from_file(REPOSITORY / "examples/conda/recipe.yaml")
    (variant,) = recipe.render(rattler.VariantConfig())
    assert str(variant.recipe.package.version) == jaxcache.__version__
    assert variant.recipe.build.noarch == "python"


@pytest.mark.slow
@pytest.mark.jax
def test_it_warms_a_python_that_knows_nothing_of_it(
    installed: Path, tmp_path: Path, jax_python: str
) -> None:
    (tmp_path / "job.py").write_text("import jax; print(jax.jit(lambda x: x + 1)(1.0))\n")
    for option, outcome in (("--strict", "0 of 1 hits"), ("--fail-on-miss", "1 of 1 hits")):
        warm = (installed / "bin" / "jaxcache", "warm", "--python", jax_python, option)
        done = sh(
            [*warm, "-C", tmp_path / "cache", tmp_path / "job.py"],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        )
        assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
        assert outcome in done.stderr


# What the workflows promise: order and permissions of a release, the Pythons of the tests.


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / ".github" / "workflows" / name).read_text("utf-8"))


def test_the_job_that_publishes_alone_may_sign_and_attests_before_it_publishes() -> None:
    workflow = read("release.yml")
    build, job = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    *before, last = job["steps"]
    assert sum("actions/attest" in step["uses"] for step in before) == 2
    assert "pypa/gh-action-pypi-publish@" in last["uses"]
    assert (job["needs"], workflow["permissions"]) == ("build", {"contents": "read"})
    rights = {"id-token": "write", "attestations": "write", "contents": "read"}
    assert (build.get("permissions"), job["permissions"]) == (None, rights)


def test_the_tests_run_on_each_python_that_the_package_names() -> None:
    prefix = "Programming Language :: Python :: "
    named = [text.removeprefix(prefix) for text in PROJECT["classifiers"] if prefix in text]
    assert read("test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
