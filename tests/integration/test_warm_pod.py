"""``warm --target DIR``: entries that are made on one machine for all processes of a pod."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting import acts_on, says
from conftest import RunCli, clean_environment

from jaxcache.warm.child.child import free_port
from jaxcache.warm.crosshost.target_profile import read_profile

pytestmark = pytest.mark.jax

TWO_DEVICES = "--xla_force_host_platform_device_count=2"
#: One program of all devices, and one of the devices of each process.
PROGRAM = """
import jax, numpy as np
jax.distributed.initialize()
from jax.sharding import Mesh, NamedSharding, PartitionSpec
split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
data = np.arange(8, dtype=np.float32)
def whole(x): return (x * x).sum()
def single(x): return x * 3
x = jax.make_array_from_callback((8,), split, lambda i: data[i])
assert np.asarray(jax.jit(whole)(x)) == 140
assert np.asarray(jax.jit(single)(np.ones(3, np.float32)))[0] == 3
"""


def together(directory: Path, *words: object) -> list[tuple[int, str, str]]:
    """Run a command as both processes of a pod, as on two hosts; exit code, output and errors."""
    port, running = free_port(), []
    for number in "01":
        env = clean_environment(directory) | {
            "XLA_FLAGS": TWO_DEVICES,
            "JAX_PLATFORMS": "cpu",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": number,
        }
        command = [sys.executable, "-m", "jaxcache", *map(str, words)]
        running.append(
            subprocess.Popen(
                command,
                cwd=directory,
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    said = [child.communicate(timeout=300) for child in running]
    return [(child.returncode, *s) for child, s in zip(running, said, strict=True)]


def counts(document: Any) -> Counter[tuple[str, str, str]]:
    return Counter((m["module"], m["outcome"], m["reason"]) for m in document["modules"])


@pytest.fixture
def python(each_jax_python: str, run_cli: RunCli) -> str:
    """A Python whose jax rebuilds topologies."""
    shown = json.loads(run_cli("target", "capture", "--python", each_jax_python).stdout)
    if tuple(map(int, shown["jax_version"].split(".")[:2])) < (0, 11):
        pytest.skip(f"jax {shown['jax_version']} cannot rebuild a topology")
    return each_jax_python


@acts_on("on every host, as process of the pod: jaxcache target capture DIR/")
def test_every_process_of_a_pod_hits_what_was_made_for_it(
    run_cli: RunCli, python: str, tmp_path: Path, script: Any
) -> None:
    (tmp_path / "pod").mkdir()
    path = script(PROGRAM)
    warm = ("warm", "--json", "-C", "cache", "--python", python)
    told = run_cli(*warm, "--target", "pod", path)
    assert told.returncode != 0 and says(told.stderr, "on every host"), told
    words = json.loads(told.stderr)["error"]["hint"].partition("jaxcache ")[2].split()
    words = ["pod/" if word == "DIR/" else word for word in words]
    captured = together(tmp_path, *words, "--python", python)
    assert [code for code, *_ in captured] == [0, 0], captured
    files = sorted(p.name for p in (tmp_path / "pod").iterdir())
    assert files == ["process-0-of-2.json", "process-1-of-2.json"]
    made = json.loads(run_cli(*warm, "--target", "pod", path).stdout)
    written = "written", "not-in-cache"
    assert counts(made) == {("jit_whole", *written): 2, ("jit_single", *written): 2}
    hosts = ("--processes", "2", "--devices", "2", "--fail-on-miss", "--timeout", "200s")
    there = run_cli(*warm, *hosts, path)
    assert there.returncode == 0, there.stderr
    assert counts(json.loads(there.stdout)) == {
        ("jit_whole", "hit", "in-cache"): 2,
        ("jit_single", "hit", "in-cache"): 2,
    }
    checked = together(
        tmp_path, "target", "check", "pod", "-C", "cache", "--json", "--python", python
    )
    assert [code for code, *_ in checked] == [0, 0], checked
    for _, document, _ in checked:  # the other two are of the other process
        found = json.loads(document)
        assert (found["entries"], found["for_target"], found["looked_up"]) == (4, 2, 2)


def test_a_key_that_processes_share_is_made_once(
    run_cli: RunCli, python: str, tmp_path: Path, script: Any
) -> None:
    # A pod in which each process knows the whole topology, as on GPUs and TPUs.
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    assert run_cli("target", "capture", "four.json", "--python", python, env=env).returncode == 0
    four = replace(
        read_profile(str(tmp_path / "four.json")), process_count=2, device_processes=(0, 0, 1, 1)
    )
    (tmp_path / "pod").mkdir()
    for number in (0, 1):
        profile = replace(four, process_index=number).to_bytes()
        (tmp_path / "pod" / f"{number}.json").write_bytes(profile)
    warm = ("warm", "--json", "-C", "cache", "--python", python)
    made = json.loads(run_cli(*warm, "--target", "pod", script(PROGRAM)).stdout)
    assert counts(made) == {
        ("jit_whole", "written", "not-in-cache"): 1,
        ("jit_whole", "hit", "in-cache"): 1,
        ("jit_single", "written", "not-in-cache"): 2,  # of one device each, named in the key
    }
    alone = script(PROGRAM.replace("jax.distributed.initialize()", ""), "alone.py")
    there = json.loads(run_cli(*warm, alone, env=env).stdout)
    assert {o for _, o, _ in counts(there)} == {"hit"}
