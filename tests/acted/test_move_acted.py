"""What bundles, signatures, ``prune``, ``verify`` and CI's commands say to do lets them succeed."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from acting import act, acts_on, make_wheel, path_of, refused, says
from bundling import SMALL, first_entry, forged, forged_entry, payload_of
from conftest import CORPUS, RunCli, clean_environment
from processes import sh
from terminal import run_on_terminal, without_style
from ways import OLD_NS, names, old_copy

from jaxcache.api import Cache
from jaxcache.cache.ledger.record import COMPILE, PAYLOAD, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store
from jaxcache.warm.report.notes import bucket_notes


@acts_on("import the undamaged ones: jaxcache import … -C DIR")
def test_a_copy_of_a_bundle_with_a_damaged_entry(run_cli: RunCli, tmp_path: Path) -> None:
    entry = first_entry(SMALL)
    module = entry.name.partition("-")[0]
    sound, damaged = payload_of(entry), b"no executable"
    entries = [forged_entry(module, sound), forged_entry("jit_g", damaged, "b")]
    bundle = tmp_path / "of mine.jxb"
    bundle.write_bytes(forged(lambda made: made.update(entries=entries), sound + damaged))
    told = refused(run_cli, 1, "copy", bundle, tmp_path / "other.jxb")
    act(told, tmp_path, {"DIR": "place"}, code=3)
    assert [name.partition("-")[0] for name in names(tmp_path / "place")] == [module]


@acts_on("have it made again with: jaxcache … --sign KEY FILE")
def test_the_warning_of_a_restore(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    run_cli("trust", "keygen", "ci")
    run_cli("ci", "save", "c.jxb", "-C", filled)
    words = ("ci", "restore", "c.jxb", "-C", filled)  # so that nothing is new
    assert "--sign" not in run_cli(*words).stderr  # nobody here checks signatures
    run_cli("trust", "add", "other", run_cli("trust", "keygen", "o").stdout.partition("\t")[2])
    told = run_cli(*words)
    assert "jaxcache ci save --save-if always --sign KEY FILE" in told.stderr
    env = {"JAX_COMPILATION_CACHE_DIR": str(filled)}
    act(told.stderr, tmp_path, {"KEY": "ci", "FILE": "c.jxb"}, **env)
    assert "signed by an unknown key" in run_cli(*words).stderr


@acts_on("trust the key here: jaxcache trust add NAME KEY")
def test_a_restore_of_a_directory_that_nobody_signed(
    run_cli: RunCli, filled: Path, tmp_path: Path
) -> None:
    public = run_cli("trust", "keygen", "ci").stdout.strip().partition("\t")[2]
    run_cli("trust", "add", "other", run_cli("trust", "keygen", "o").stdout.partition("\t")[2])
    run_cli("ci", "save", "shared", "-C", filled)
    words = ("ci", "restore", "shared", "-C", tmp_path / "job", "--everything", "--require-signed")
    told = refused(run_cli, 12, *words)
    assert says(told, "sign it where it is saved (--sign KEY)")
    shutil.rmtree(tmp_path / "shared")
    run_cli("ci", "save", "shared", "-C", filled, "--sign", "ci")
    act(told, tmp_path, {"NAME": "ci", "KEY": f"'{public}'"})
    assert run_cli(*words).returncode == 0


@acts_on("make a bundle of them: jaxcache export --sign KEY FILE")
def test_files_of_torch_that_must_be_signed(
    run_cli: RunCli, torch_cache: Path, tmp_path: Path
) -> None:
    public = run_cli("trust", "keygen", "ci").stdout.strip().partition("\t")[2]
    run_cli("trust", "add", "ci", public)
    told = refused(run_cli, 12, "pull", torch_cache, "-C", tmp_path / "other", "--require-signed")
    env = {"JAX_COMPILATION_CACHE_DIR": str(torch_cache)}
    act(told, tmp_path, {"KEY": "ci", "FILE": "t.jxb"}, **env)
    words = ("import", "t.jxb", "-C", tmp_path / "other", "--require-signed")
    assert run_cli(*words).returncode == 0


@acts_on("or run programs with jaxcache run, which records each use")
@pytest.mark.jax
def test_a_cache_without_a_record_of_use(
    run_cli: RunCli, script: Callable[..., Path], jax_python: str, tmp_path: Path
) -> None:
    cache = old_copy(tmp_path / "cache", CORPUS / "0.10.2-cpu-zstd")
    program = script("import jax\njax.jit(lambda x: x * 2)(1.0)\n")
    env = {"JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONWARNINGS": ""}
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    now_ns = time.time_ns()
    old_ns = now_ns - 40 * 86_400 * 10**9
    for number, path in enumerate(cache.glob("*-cache")):  # as cp -r reads them
        os.utime(path, ns=(now_ns + number * 1000, old_ns + number * 10**9))
        append(open_store(str(cache)), [Event(path.name.removesuffix("-cache"), COMPILE, old_ns)])
    prune = ("prune", "--unused-for", "7d", "--yes", "-C", cache)
    told = run_cli(*prune)
    assert "[no-record-of-use]" in told.stderr
    says(told.stderr)
    for _ in range(2):
        assert run_cli("run", "--", jax_python, program, env=env).returncode == 0
    assert run_cli(*prune).returncode == 0
    assert len([*cache.glob("*-cache")]) == 1


@acts_on("untuned: compiled without the GPU; to remove all such: jaxcache prune --untuned")
def test_an_entry_that_is_untuned(run_cli: RunCli, tmp_path: Path) -> None:
    cache = old_copy(tmp_path / "gpu", CORPUS / "0.12.0.1-cuda13-h200-zstd")
    path = first_entry(cache)
    facts = {"tuning": "untuned", "tuning_mtime_ns": OLD_NS}
    key = path.name.removesuffix("-cache")
    event = Event(key, COMPILE, 1, {**facts, "tuning_size_bytes": path.stat().st_size})
    assert append(open_store(str(cache)), [event])
    _, told = run_on_terminal("show", key, "-C", cache, home=tmp_path, width=300)
    lines = without_style(told).splitlines()
    act(f"{next(line for line in lines if 'to remove all such' in line)} --yes", tmp_path)
    assert not path.exists()


@acts_on("to have one compiled again: jaxcache rm …")
def test_an_entry_with_another_payload_than_recorded(
    run_cli: RunCli, filled: Path, tmp_path: Path
) -> None:
    path = first_entry(filled)
    facts = {"payload_sha256": "ab" * 32, "payload_bytes": 7}
    event = Event(path.name.removesuffix("-cache"), PAYLOAD, path.stat().st_mtime_ns + 1, facts)
    assert append(open_store(str(filled)), [event])
    told = run_cli("verify", "-C", filled)
    line = next(s for s in told.stderr.splitlines() if "another digest than recorded" in s)
    act(f"{line} --yes", tmp_path)
    assert not path.exists()
    assert "another digest" not in run_cli("verify", "-C", filled).stderr


@acts_on("jaxcache ci key --json shows what that depends on")
@pytest.mark.jax
def test_a_restore_from_a_file_that_is_not_there(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    told = run_cli("ci", "restore", "none.jxb", "-C", tmp_path / "job", "--python", jax_python)
    env = {"PATH": path_of(jax_python)}
    plain, other = (
        json.loads(act(told.stderr, tmp_path, until=" shows", **env, **more).stdout)
        for more in ({}, {"JAX_ENABLE_X64": "1"})
    )
    differing = {name for name in plain if plain[name] != other[name]}
    assert "key" in differing and differing - {"key", "fallbacks", "restore_keys"}


@acts_on("…: without jaxcache ci restore before the job, every entry counts as new")
def test_a_save_without_a_restore(run_cli: RunCli, filled: Path) -> None:
    told = run_cli("ci", "save", "b.jxb", "-C", filled)
    says(told.stderr)
    assert "7 new" in told.stderr
    run_cli("ci", "restore", "b.jxb", "-C", filled, "--everything")
    told = run_cli("ci", "save", "b.jxb", "-C", filled)
    assert "0 new" in told.stderr and "of 7 entries from before it" in told.stderr, told


@acts_on("please report the output of jaxcache --debug COMMAND and of jaxcache bug-report")
def test_a_mistake_of_ours(
    run_cli: RunCli, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cache, "stats", lambda *_, **__: 1 / 0)
    hint, debugged = (run_cli(*words, "stats", "-C", filled).stderr for words in ((), ("--debug",)))
    assert "[internal-error]" in hint and "ZeroDivisionError" in hint
    assert "Traceback" not in hint and "Traceback" in debugged
    assert "jaxcache" in act(f"{hint.rstrip()} --python /nonexistent", tmp_path).stdout


@acts_on("… not uploaded yet; to send them: …")
def test_entries_that_are_not_uploaded(
    run_cli: RunCli, filled: Path, bucket: str, tmp_path: Path
) -> None:
    (line,) = bucket_notes(bucket, (), {str(filled): 7})
    act(line, tmp_path)
    assert len(run_cli("ls", "-q", "-C", bucket).stdout.split()) == 7


@pytest.mark.parametrize(
    "installer",
    [
        pytest.param("pip", marks=[acts_on("… -m pip install"), pytest.mark.slow]),
        pytest.param("uv", marks=acts_on("uv pip install --python …")),
    ],
)
def test_an_extra_that_is_not_installed(tmp_path: Path, installer: str) -> None:
    wheels, own = tmp_path / "wheels", tmp_path / "own"
    wheels.mkdir()
    make_wheel(wheels, "cramjam")
    extra = "Provides-Extra: gpu\nRequires-Dist: cramjam; extra == 'gpu'\n"
    mine = make_wheel(tmp_path, "jaxcache", extra)  # on no index
    if not (command := shutil.which(installer)):
        pytest.skip(f"no {installer}")
    options = ("--without-pip",) if installer == "uv" else ()
    subprocess.run((sys.executable, "-m", "venv", *options, own), check=True)
    python = own / "bin" / "python"
    install = (command, "pip", "install", "--python", python)
    install = install if installer == "uv" else (python, "-m", "pip", "install")
    env = clean_environment(tmp_path) | {"PIP_NO_INDEX": "1", "PYTHONWARNINGS": ""}
    env |= {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(wheels), "PIP_FIND_LINKS": str(wheels)}
    subprocess.run((*install, mine), env=env, check=True)
    code = "from jaxcache.units import format_install; print(format_install('gpu'))"
    act(sh((python, "-c", code), env=env, check=True).stdout, tmp_path, **env)
    assert [*own.glob("lib/python3*/site-packages/cramjam")]
