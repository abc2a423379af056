"""``jaxcache bug-report`` and ``jaxcache --version --json``."""

import getpass
import json
import platform
import shutil
from pathlib import Path

import pytest
from conftest import RunCli

import jaxcache
from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store

SECRET = "aliceberg"
KEY = f"jit_{SECRET}-{'ab' * 32}"


@pytest.fixture
def planted(corpus: Path, tmp_path: Path) -> dict[str, str]:
    """Settings, files and records that all hold a secret."""
    home = tmp_path / SECRET
    cache = home / f"{SECRET} | `cache`\x1b[31m\n# heading"
    shutil.copytree(corpus / "0.10.2-cpu-zstd", cache)
    entry = next(cache.glob("jit_mlp-*-cache"))
    shutil.copy(entry, cache / f"{KEY}-cache")
    (cache / f"{SECRET}.txt").write_text("a stray file")
    (cache / "jit_loss-0").write_text(f"damaged {SECRET}")
    facts = {
        "run": SECRET,
        "jax_version": f"0.10.2+{SECRET}",
        "jaxlib_version": SECRET,
        "script": f"/home/{SECRET}/train.py",
        "compile_seconds": 2.5,
    }
    hit = Event(KEY, HIT, 2_000 * 10**9, facts)
    other = Event(entry.name.removesuffix("-cache"), COMPILE, 10**9, {"run": f"{SECRET}2"})
    append(open_store(str(cache)), [other, Event(KEY, COMPILE, 10**9, facts), hit])
    configuration = home / "jaxcache"
    configuration.mkdir()
    (configuration / "config.toml").write_text(
        f'[live]\nenabled = true\ntiers = ["s3://{SECRET}:{SECRET}@{SECRET}.example.com/jax"]\n'
        f'metrics = "/var/{SECRET}"\n'
    )
    return {
        "HOME": str(home),
        "USER": SECRET,
        "XDG_CONFIG_HOME": str(home),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": SECRET,
        "JAX_COMPILATION_CACHE_MAX_SIZE": "123456",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "XLA_FLAGS": f"--xla_dump_to=/tmp/{SECRET}",
    }


@pytest.mark.parametrize(
    ("form", "python"),
    [
        ((), "/nonexistent"),
        (("--json",), "/nonexistent"),
        (("--jsonl",), "/nonexistent"),
        pytest.param(("--json",), "", marks=pytest.mark.jax),
    ],
)
def test_no_name_path_or_credential_is_printed(
    run_cli: RunCli, planted: dict[str, str], form: tuple[str, ...], python: str
) -> None:
    done = run_cli("bug-report", *(("--python", python) if python else ()), *form, env=planted)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.0" in done.stdout and '_version": "<' not in done.stdout
    hidden = [SECRET, "ab" * 6, str(planted["HOME"]), "heading", "\x1b", "\\u001b"]
    hidden += [name for name in (platform.node().lower(), getpass.getuser()) if len(name) > 4]
    assert [text for text in hidden if text in done.stdout.lower()] == []


@pytest.mark.parametrize(
    "place", [f"s3://{SECRET}:pass{SECRET}@{SECRET}/jax?sig={SECRET}", f"{SECRET}://x", SECRET]
)
def test_a_cache_that_cannot_be_opened_is_not_named(
    run_cli: RunCli, tmp_path: Path, place: str
) -> None:
    (tmp_path / SECRET).write_text("not a directory")
    env = {"AWS_ACCESS_KEY_ID": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
    env |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true"}
    env["JAX_COMPILATION_CACHE_DIR"] = place
    done = run_cli("bug-report", "--json", "--python", "/nonexistent", env=env)
    assert (done.returncode, SECRET in done.stdout + done.stderr) == (0, False)
    document = json.loads(done.stdout)
    assert bool(document["error"]) == ("://" in place)  # of a file, doctor has a finding
    assert document["versions"]["jaxcache"] == jaxcache.__version__


def test_settings_have_values_and_origins_and_findings_are_those_of_doctor(
    run_cli: RunCli, planted: dict[str, str]
) -> None:
    report, doctor = (
        json.loads(run_cli(name, "--json", "--python", "/nonexistent", env=planted).stdout)
        for name in ("bug-report", "doctor")
    )
    assert {
        ("jax_compilation_cache_dir", "<path>", "environment"),
        ("jax_compilation_cache_max_size", 123456, "environment"),
        ("jax_persistent_cache_enable_xla_caches", "<text>", "environment"),
        ("jax_enable_compilation_cache", True, "default"),
    } <= {(s["name"], s["value"], s["origin"]) for s in report["settings"]}
    said, found = (
        [(f["trap"], f["severity"], f["upstream"], len(f["files"])) for f in d["findings"]]
        for d in (report, doctor)
    )
    assert said == found
    assert report["cache"]["entries"] == doctor["entries"] == 8
    assert report["cache"]["kind"] == "directory"


def test_the_report_is_markdown_of_a_few_tables(run_cli: RunCli, planted: dict[str, str]) -> None:
    lines = run_cli("bug-report", "--python", "/nonexistent", env=planted).stdout.splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "#### jaxcache and its own packages",
        "#### The Python that runs JAX",
        "#### Settings that differ from their defaults",
        "#### Cache",
        "#### Findings of doctor",
    ]
    assert f"| jaxcache | {jaxcache.__version__} |" in lines
    assert all(not line or line[0] in "#|" or line == "none" for line in lines)


def test_the_versions_are_one_document(run_cli: RunCli) -> None:
    own, python = jaxcache.__version__, platform.python_version()
    for words in (("--version", "--json"), ("--json", "--version")):
        told = json.loads(run_cli(*words).stdout)
        assert (told["schema_version"], told["jaxcache"], told["python"]) == (1, own, python)
        assert told["packages"]["rich"]


def test_json_before_the_command_is_refused(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("--json", "ls", "-C", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json belongs after the command" in done.stderr
