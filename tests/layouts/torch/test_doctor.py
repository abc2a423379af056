"""``doctor`` of a cache of torch's compilers: settings, place, size, versions."""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on, says
from conftest import RunCli, clean_environment, first_file
from processes import sh

from jaxcache.layouts.torch.doctor import diagnose


def findings(
    run_cli: RunCli, cache: Path, env: dict[str, str] | None = None, code: int = 0
) -> dict[str, Any]:
    done = run_cli("doctor", "--layout", "torch", "-C", cache, "--json", env=env)
    assert done.returncode == code, done.stderr
    return {f["trap"]: f for f in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("env", "trap", "code"),
    [
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, "caches-off", 1),
        ({"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}, "caches-off", 1),
        ({"TORCHINDUCTOR_FREEZING": "1"}, "freezing", 1),
        ({"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1"}, "remote-cache", 0),
        (
            {"TORCHINDUCTOR_REDIS_URL": "redis://h", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1"},
            *("remote-cache", 0),
        ),
    ],
)
def test_a_setting_is_found_and_its_absence_is_not(
    run_cli: RunCli, torch_cache: Path, env: dict[str, str], trap: str, code: int
) -> None:
    server = {name: text for name, text in env.items() if text != "1"} if not code else {}
    assert trap not in findings(run_cli, torch_cache, server)
    found = findings(run_cli, torch_cache, env, code)[trap]
    assert all(name in found["seen"] for name in env)
    assert ("localhost" in found["seen"]) is (trap == "remote-cache" and not server)


@acts_on("unset TORCHINDUCTOR_FREEZING, or accept that such graphs are compiled in every process")
def test_freezing_ends_where_its_variable_is_unset(run_cli: RunCli, torch_cache: Path) -> None:
    env = {"TORCHINDUCTOR_FREEZING": "1"}
    fix = findings(run_cli, torch_cache, env, 1)["freezing"]["fix"]
    says(fix)
    del env[fix.removeprefix("unset ").partition(",")[0]]
    assert "freezing" not in findings(run_cli, torch_cache, env)


@acts_on("export TORCHINDUCTOR_CACHE_DIR=~/.cache/torchinductor")
def test_a_temporary_directory(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    env = {"TMPDIR": str(torch_cache.parent)}
    fix = findings(run_cli, torch_cache, env)["temporary-directory"]["fix"]
    says(fix)
    home = tmp_path / "home"
    shell = f"{fix} && exec {sys.executable} -m jaxcache doctor --layout torch --json"
    temporary = {"TMPDIR": str(tmp_path / "temporary")}
    done = sh(["sh", "-c", shell], env=clean_environment(home) | env | temporary)
    assert json.loads(done.stdout)["cache_dir"] == str(home / ".cache" / "torchinductor")


@acts_on("jaxcache prune -C … --max-size 10GB, from time to time")
def test_a_large_directory_has_no_bound(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    assert "no-bound" not in findings(run_cli, torch_cache)
    os.truncate(first_file(torch_cache, "*/*.main.so"), 2_000_000_000)  # takes no room
    found = findings(run_cli, torch_cache)["no-bound"]
    assert "2.0 GB" in found["seen"]
    os.truncate(first_file(torch_cache, "*/*.main.so"), 11_000_000_000)
    says(found["fix"])
    done = act(found["fix"].replace(", from", " --grace 0s --yes, from"), tmp_path, until=", from")
    assert done.returncode == 0, done
    assert sum(p.stat().st_size for p in torch_cache.rglob("*") if p.is_file()) < 10_000_000_000


@acts_on("or remove unused graphs: jaxcache prune -C … --unused-for 30d")
def test_kernels_of_two_compilers(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    assert "mixed-compilers" not in findings(run_cli, torch_cache)
    kernels = sorted(torch_cache.glob("*/*.main.so"))
    for kernel, compiler in zip(
        kernels, (b"GCC: (Debian 9) 9.9.9", b"clang version 21.1"), strict=False
    ):
        kernel.write_bytes(kernel.read_bytes() + compiler)
    data = kernels[0].read_bytes()
    kernels[0].write_bytes(data.replace(b"GCC: (", b"GCC: [", data.count(b"GCC: (") - 1))
    long_ago = time.time() - 40 * 86_400
    for path in torch_cache.rglob("*"):
        os.utime(path, (long_ago - hash(path) % 86_400, long_ago))
    mixed = findings(run_cli, torch_cache)["mixed-compilers"]
    assert "GCC: (Debian 9) 9.9.9 (1)" in mixed["seen"]
    done = act(f"{mixed['fix']} --yes", tmp_path)
    assert done.returncode == 0, done
    assert "mixed-compilers" not in findings(run_cli, torch_cache)


def test_what_a_run_met_is_found(torch_cache: Path) -> None:
    bypassed = ("bypassed", "Unsupported autograd_function_apply")
    refused = Counter([bypassed, bypassed, ("off", "fx_graph_cache = False")])
    found = {f.trap: f for f in diagnose(str(torch_cache), {}, refused).findings}
    assert "2 graphs bypassed a cache: Unsupported" in found["bypassed"].seen
    assert "ALLOW_CUSTOM_AUTOGRAD" in found["bypassed"].fix
    assert "fx_graph_cache = False in the program" in found["caches-off"].seen
