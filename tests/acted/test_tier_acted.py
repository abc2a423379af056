"""A tier that the program's Python cannot open is an error before the program starts."""

import json
import os
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest
from acting import act, acts_on, make_wheel, says
from conftest import REPOSITORY, clean_environment, has_modules
from processes import sh

pytestmark = pytest.mark.jax

PROGRAM = """
import sys
open(sys.argv[1], "w").close()
import jax
jax.jit(lambda x: x * 3 + 1)(1.0)
"""
#: Loads the real package, as if it had been installed here.
SHIM = """
__path__ = [{real!r}]
exec(compile(open({real!r} + "/__init__.py").read(), __file__, "exec"))
"""
LIFTED = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONWARNINGS": ""}


def real_obstore(python: str) -> str:
    """The directory of obstore beside the jax of the tests."""
    done = sh((python, "-c", "import obstore; print(obstore.__path__[0])"))
    if done.returncode or not has_modules(python, "pip"):
        pytest.skip(f"{python} has no obstore, or no pip")
    return done.stdout.strip()


@pytest.fixture
def lacking(jax_python: str, tmp_path: Path) -> Path:
    """A Python with jax and pip, and without obstore."""
    root = tmp_path / "no-obstore"
    subprocess.run((jax_python, "-m", "venv", "--without-pip", root), check=True)
    (site,) = root.glob("lib/python3*/site-packages")
    for path in Path(real_obstore(jax_python)).parent.iterdir():
        is_left_out = path.suffix == ".pth" or path.name.startswith(("obstore", "jaxcache"))
        if not is_left_out and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    return root / "bin" / "python"


@acts_on("… -m pip install …")
def test_what_is_printed_lets_the_program_share(
    run_cli, jax_python: str, lacking: Path, bucket: str, script, tmp_path: Path
) -> None:
    """However the bucket is named: ``--tier``, ``-C`` or a variable."""
    started = tmp_path / "started"
    program = ("--", lacking, script(PROGRAM), started)
    live = {"JAXCACHE_LIVE": "1", "JAXCACHE_LIVE_TIERS": f"{bucket}-variable"}
    commands = {
        "option": (("--tier", f"{bucket}-option", "-C", tmp_path / "cache", "--portable"), {}),
        "cache": (("-C", f"{bucket}-cache"), {}),
        "variable": (("-C", tmp_path / "other", "--portable"), live),
    }
    for words, env in commands.values():
        told = run_cli("run", *words, *program, env=LIFTED | env)
        assert (told.returncode, "[no-obstore]" in told.stderr) == (1, True), told
        assert not started.exists()

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "obstore", code=SHIM.format(real=real_obstore(jax_python)))
    hint = told.stderr.partition("hint: ")[2]
    act(hint, tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PYTHONWARNINGS="")

    for name, (words, env) in commands.items():
        env = LIFTED | {"JAXCACHE_LIVE_FLUSH": "60s"} | env
        done = run_cli("run", *words, *program, env=env)
        assert done.returncode == 0, done
        assert started.exists()
        assert run_cli("ls", "-C", f"{bucket}-{name}", "--quiet").stdout.strip()


@acts_on("install jaxcache in that Python, or start programs with jaxcache run --live -- CMD")
def test_a_layer_that_is_not_installed(run_cli, lacking: Path, script, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    cache = tmp_path / "cache"
    env = LIFTED | {"JAXCACHE_LIVE": "1", "JAXCACHE_LIVE_TIERS": str(tier)}
    env |= {"JAX_COMPILATION_CACHE_DIR": str(cache)}

    def fix() -> str | None:
        done = run_cli("doctor", "--json", "--python", lacking, env=env)
        findings = {f["trap"]: f["fix"] for f in json.loads(done.stdout)["findings"]}
        return findings.get("live-not-installed")

    printed = fix()
    assert printed
    program = (str(lacking), str(script(PROGRAM)), str(tmp_path / "started"))
    plain = clean_environment(tmp_path) | env
    subprocess.run(program, env={n: t for n, t in plain.items() if n != "PYTHONPATH"}, check=True)
    assert [*cache.glob("*-cache")] and not [*tier.glob("*-cache")]
    shutil.rmtree(cache)
    says(printed)
    act(printed.partition(", or ")[2], tmp_path, {"CMD": " ".join(program)}, **env)
    assert [*tier.glob("*-cache")]

    (site,) = lacking.parents[1].glob("lib/python3*/site-packages")
    (site / "jaxcache").symlink_to(REPOSITORY / "jaxcache")
    about = Path(str(distribution("jaxcache").locate_file("."))).glob("jaxcache-*.dist-info")
    for path in about:
        (site / path.name).symlink_to(path)
    assert fix() is None


def test_a_python_that_a_shell_starts_is_reported_at_the_end(
    run_cli, lacking: Path, bucket: str, script, tmp_path: Path
) -> None:
    shell = ("sh", "-c", '"$@"; true', "sh", lacking, script(PROGRAM), tmp_path / "started")
    done = run_cli("run", "--tier", bucket, "-C", tmp_path / "cache", "--", *shell, env=LIFTED)
    assert done.returncode == 1, done
    assert (tmp_path / "started").exists()
    assert f"failed: a process could not use {bucket}" in " ".join(done.stderr.split())


def test_a_launcher_without_jax_needs_no_obstore(
    run_cli, jax_python: str, bucket: str, script, tmp_path: Path
) -> None:
    real_obstore(jax_python)  # or the test is skipped
    root = tmp_path / "launcher"
    subprocess.run((jax_python, "-m", "venv", "--without-pip", root), check=True)
    launch = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    command = (root / "bin" / "python", "-c", launch, jax_python, script(PROGRAM))
    place = ("-C", tmp_path / "cache", "--portable")
    env = LIFTED | {"JAXCACHE_LIVE_FLUSH": "60s"}
    done = run_cli(*("run", "--tier", bucket, *place, "--", *command, os.devnull), env=env)
    assert done.returncode == 0, done
    assert run_cli("ls", "-C", bucket, "--quiet").stdout.strip()
