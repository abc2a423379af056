"""``warm`` and ``run`` of a cache in a bucket, held to what JAX counts in a Python of its own."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import RunCli
from live.conftest import live_environment
from object_server import CREDENTIALS, Proxy, make_bucket

pytestmark = pytest.mark.jax
#: Prints JAX's own counters.
PROGRAM = """
import json, jax, jax.numpy as jnp
counts = {}
def count(name, **_):
    counts[name] = counts.get(name, 0) + 1
jax.monitoring.register_event_listener(count)
jax.jit(lambda x: jnp.sin(x) @ x.T + 1)(jnp.ones((4, 4)))
prefix = "/jax/compilation_cache/cache_"
print(json.dumps({word: counts.get(prefix + word, 0) for word in ("hits", "misses")}))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_plain_jax_hits_what_warm_has_put_into_a_bucket(
    run_cli: RunCli, s3: Proxy, each_jax_python: str, program: Path, tmp_path: Path
) -> None:
    make_bucket(s3.endpoint, "filled")
    url = "s3://filled/jax"
    warm = ("warm", "--json", "-C", url, "--python", each_jax_python, program)
    done = run_cli(*warm, env={"XDG_CACHE_HOME": str(tmp_path / "here")})
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["summary"]["written"]
    assert written == len(run_cli("ls", "-q", "-C", url).stdout.splitlines()) > 0

    elsewhere = {
        "XDG_CACHE_HOME": str(tmp_path / "elsewhere"),
        "AWS_ENDPOINT_URL": s3.endpoint,
        **CREDENTIALS,
    }
    environment = live_environment(each_jax_python, tmp_path, url) | elsewhere
    plain = subprocess.run(
        [each_jax_python, program], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(plain.stdout) == {"hits": written, "misses": 0}

    variable = {"XDG_CACHE_HOME": str(tmp_path / "third"), "JAX_COMPILATION_CACHE_DIR": url}
    ran = run_cli("run", "--json", "--fail-on-miss", "--", each_jax_python, program, env=variable)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["summary"]["hits"] == written


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "did not reach s3://lost/jax"),
        ({"JAXCACHE_LIVE": "0"}, "JAX could not open s3://lost/jax"),
    ],
    ids=["unreachable", "live-layer-off"],
)
def test_a_bucket_that_gets_nothing_fails_the_run(
    run_cli: RunCli,
    s3: Proxy,
    environment: dict[str, str],
    said: str,
    program: Path,
    tmp_path: Path,
) -> None:
    make_bucket(s3.endpoint, "lost")
    home = {"XDG_CACHE_HOME": str(tmp_path / "here"), "PYTHONWARNINGS": ""}
    done = run_cli("warm", "-C", "s3://lost/jax", program, env=home | environment)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]


def test_doctor_names_a_bucket_as_the_user_writes_it(
    run_cli: RunCli, s3: Proxy, program: Path, tmp_path: Path
) -> None:
    make_bucket(s3.endpoint, "named")
    url = "s3://named/jax"
    env = {"XDG_CACHE_HOME": str(tmp_path / "here")}
    assert run_cli("warm", "-C", url, program, env=env).returncode == 0
    doctor = ("doctor", "--json", "-C", url, "--python", "/nonexistent")
    findings = json.loads(run_cli(*doctor, env=env).stdout)["findings"]
    assert "s3:/named" not in json.dumps(findings)
    assert "cache-dir-in-key" not in {finding["trap"] for finding in findings}
    (directory,) = (finding for finding in findings if finding["trap"] == "no-cache-dir")
    assert f"export JAX_COMPILATION_CACHE_DIR={url} JAXCACHE_LIVE=1" in directory["fix"]
