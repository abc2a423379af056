"""``jaxcache show`` as a person and as a script meets it."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import RunCli, clean_environment

from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store.local import LocalStore

GPU, CPU, OLD = "0.12.0.1-cuda13-h200-zstd", "0.12.0.1-cpu-zstd", "0.4.38-cpu-zlib"
HASH = "cd" * 32


def shown(run_cli: RunCli, *args: str | Path) -> dict[str, Any]:
    done = run_cli("show", "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def page(home: Path, *args: str | Path, columns: int = 90) -> str:
    """What a terminal of that width gets."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", "show", *map(str, args)],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=clean_environment(home) | {"COLUMNS": str(columns), "TERM": "xterm"},
    )
    os.close(follower)
    text = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        text += data
    os.close(leader)
    child.wait()
    return text.decode().replace("\r\n", "\n")


def test_the_document_has_every_field_of_the_contract(run_cli: RunCli, corpus: Path) -> None:
    document = shown(run_cli, "jit_mlp*", "-C", corpus / CPU)
    assert document["schema_version"] == 1
    assert document["cache_dir"] == str(corpus / CPU)
    assert document["entry"]["platform"] == "cpu"
    assert document["entry"]["target"] == "rocketlake"
    assert set(document["program"]) >= {
        "module",
        "parameters",
        "results",
        "instructions",
        "computations",
        "opcodes",
    }
    assert document["program"]["parameters"][0] == {"dtype": "float32", "shape": [8, 16]}
    assert document["source"] == [{"file": "/tmp/fmt/wl.py", "line": 15, "function": "mlp"}]
    memory = document["memory"]
    assert memory == {
        "argument_bytes": 3072,
        "output_bytes": 128,
        "temp_bytes": 1024,
        "alias_bytes": 0,
        "constant_bytes": 4,
        "code_bytes": 14472,
        "total_bytes": 4228,
    }
    assert set(document["device"]) == {
        "platform",
        "name",
        "compute_capability",
        "toolkit",
        "cudnn",
        "cpu_triple",
        "cpu_name",
        "cpu_features",
    }
    assert "+avx2" in document["device"]["cpu_features"]
    assert document["compile_options"] == {
        "num_replicas": 1,
        "num_partitions": 1,
        "device_assignment": [[0]],
        "flags_changed": {"xla_force_host_platform_device_count": 4},
        "profile_guided": False,
    }
    assert document["format"] == {"ifrt_version": 3, "abi": None, "container": "ifrt+proto"}
    assert document["written_in_cache_dir"] == f"/tmp/fmt/corpus/{CPU}"
    assert document["provenance"] is None
    assert document["problems"] == []


def test_a_gpu_entry_names_its_target(run_cli: RunCli, corpus: Path) -> None:
    document = shown(run_cli, "jit_mlp*", "-C", corpus / GPU)
    device = document["device"]
    assert device["platform"] == "gpu" and device["compute_capability"] == "9.0a"
    assert (device["toolkit"], device["cudnn"]) == ("12.8.0", "9.10.0")
    assert document["entry"]["target"] == "sm_90a"
    assert "GpuXlaExecutableAbiVersion" in document["format"]["abi"]


def test_the_page_for_people(corpus: Path, tmp_path: Path) -> None:
    text = page(tmp_path, "jit_mlp*", "-C", corpus / GPU)
    for words in (
        "Takes       bf16[64,128], bf16[128,256], bf16[256,64]",
        "Returns     bf16[64,64]",
        "sm_90a",
        "CUDA 12.8.0",
        "cuDNN 9.10.0",
        "/tmp/fmt/gpuwl.py:18 in mlp",
        "52 instructions in 9 computations",
        "NVIDIA H200",
    ):
        assert words in text
    for columns in (60, 90, 150):
        plain = page(tmp_path, "jit_mlp*", "-C", corpus / CPU, columns=columns)
        lines = plain.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
        assert all(len(line) <= columns for line in lines[1:])  # the key stands alone


def test_what_is_long_takes_verbose(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    where = ("jit_mlp*", "-C", corpus / CPU)
    plain, whole = page(tmp_path, *where), page(tmp_path, *where, "--verbose")
    assert "CPU features:" in whole and "CPU features" not in plain
    order = [plain.index(f"\n{word} ") for word in ("Size", "Compiled", "Used", "Target", "Takes")]
    assert order == sorted(order)
    short, long = (run_cli("show", *where, *v).stdout for v in ((), ("--verbose",)))
    assert "avx2" in long and "program.opcodes.dot" in long
    assert "avx2" not in short and "opcodes" not in short


def test_an_entry_of_an_old_version_is_not_guessed_at(corpus: Path, tmp_path: Path) -> None:
    assert "cpu: not recorded in entries of this version" in page(
        tmp_path, "jit_mlp*", "-C", corpus / OLD
    )


def test_a_pipe_gets_paths_and_values(run_cli: RunCli, corpus: Path) -> None:
    lines = run_cli("show", "jit_mlp*", "-C", corpus / CPU).stdout.splitlines()
    values = dict(line.split("\t") for line in lines)
    assert values["program.parameters[1].shape"] == "16,32"
    assert values["entry.platform"] == "cpu"
    assert values["provenance"] == ""


def test_a_glob_may_mean_several(run_cli: RunCli, corpus: Path) -> None:
    document = shown(run_cli, "jit_*", "-C", corpus / CPU)
    assert len(document["entries"]) == 7
    lines = run_cli("show", "jit_*", "-C", corpus / CPU, "--jsonl").stdout.splitlines()
    assert len([json.loads(line)["entry"]["key"] for line in lines]) == 7


def test_the_argument_in_which_entries_of_a_module_differ_comes_first(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    """``f32[4,16]`` is the second argument of this entry, and ``f32[8,16]`` that of the other."""
    (file,) = (corpus / CPU).glob("jit_loss-*-cache")
    payload = zstandard.decompress(file.read_bytes(), max_output_size=1 << 24)
    other = payload.replace(b"\x1a\x02\x04\x10", b"\x1a\x02\x08\x10")
    assert other != payload
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.copy(file, cache)
    alone = shown(run_cli, "jit_loss*", "-C", cache)
    (cache / f"jit_loss-{HASH}-cache").write_bytes(zstandard.compress(other))
    both = shown(run_cli, f"jit_loss-{HASH}", "-C", cache)
    assert (alone["differing_arguments"], both["differing_arguments"]) == ([], [1])
    text = page(tmp_path, f"jit_loss-{HASH}", "-C", cache)
    assert "Takes       argument 1 f32[8,16], which differs in other entries of the module" in text
    assert "            all: f32[16,16], f32[8,16]" in text


def test_a_key_its_hash_and_their_beginnings_mean_it(run_cli: RunCli, corpus: Path) -> None:
    cache = corpus / "0.12.0.1-cpu-zstd"
    key = min(p.name for p in cache.glob("jit_mlp-*")).removesuffix("-cache")
    digest = key.rpartition("-")[2]
    for text in (key, key[:-50], digest, digest[:12]):
        done = run_cli("show", text, "-C", cache, "--json")
        assert json.loads(done.stdout)["entry"]["key"] == key
    assert run_cli("show", f"jit_mlp-{0:064x}", "-C", cache).returncode == 1


@pytest.mark.parametrize("name", ["as it is", "renamed"])
def test_a_plain_file_will_do(run_cli: RunCli, corpus: Path, tmp_path: Path, name: str) -> None:
    path = next((corpus / GPU).glob("jit_sort*"))
    if name == "renamed":
        path = tmp_path / "copy.bin"
        path.write_bytes(next((corpus / GPU).glob("jit_sort*")).read_bytes())
    document = shown(run_cli, path)
    assert document["program"]["module"] == "jit_sort"
    assert document["entry"]["file"] == path.name


def test_the_payload_is_written_whole_or_not_at_all(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    entry = next((corpus / CPU).glob("jit_mlp*"))
    done = run_cli("show", "jit_mlp*", "-C", corpus / CPU, "--payload", tmp_path / "out")
    assert done.returncode == 0
    whole = zstandard.ZstdDecompressor().decompress(entry.read_bytes())
    assert (tmp_path / "out").read_bytes() == whole[4:]
    damaged = tmp_path / "damaged"
    damaged.write_bytes(entry.read_bytes()[:-100])
    done = run_cli("show", damaged, "--payload", tmp_path / "out2")
    assert done.returncode == 1 and "bad-entry" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged", "out"]


def test_a_pipe_stays_a_pipe(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    """As ``/dev/null`` stays what it is, whoever may replace it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        done = run_cli("show", "jit_mlp*", "-C", corpus / CPU, "--payload", pipe)
        if not pipe.is_fifo():
            reader.kill()
        read = reader.communicate()[0]
    assert (done.returncode, pipe.is_fifo()) == (0, True), done.stderr
    entry = next((corpus / CPU).glob("jit_mlp*"))
    assert read == zstandard.ZstdDecompressor().decompress(entry.read_bytes())[4:]


def test_damage_is_a_finding(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    entry = next((corpus / CPU).glob("jit_mlp*"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / f"jit_cut-{HASH}-cache").write_bytes(entry.read_bytes()[:-100])
    (tmp_path / "c" / f"jit_other-{HASH}-cache").write_bytes(entry.read_bytes())
    junk = zstandard.ZstdCompressor().compress(b"\0\0\0\0" + b"no executable" * 10)
    (tmp_path / "c" / f"jit_junk-{HASH}-cache").write_bytes(junk)
    for name, kind in (
        ("cut", "truncated"),
        ("other", "module-mismatch"),
        ("junk", "bad-payload"),
    ):
        done = run_cli("show", f"jit_{name}*", "-C", tmp_path / "c", "--json")
        assert done.returncode == 1
        assert [p["kind"] for p in json.loads(done.stdout)["problems"]] == [kind]
    assert "Traceback" not in page(tmp_path, "jit_*", "-C", tmp_path / "c")


def test_hlo_takes_jaxlib(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = run_cli("show", "jit_mlp", "-C", corpus / OLD, "--hlo", "--python", bare)
    assert done.returncode == 13
    assert "jaxlib" in done.stderr and "--python" in done.stderr


def test_a_child_that_answers_nonsense_is_named(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    liar = tmp_path / "liar"
    liar.write_text('#!/bin/sh\necho "{nonsense" > /dev/fd/$3\nsleep 9\n')
    liar.chmod(0o755)
    done = run_cli("show", "jit_mlp", "-C", corpus / OLD, "--hlo", "--python", liar)
    assert (done.returncode, "hlo-failed" in done.stderr) == (1, True), done.stderr


@pytest.mark.jax
def test_hlo_is_text(run_cli: RunCli, corpus: Path, jax_python: str) -> None:
    done = run_cli("show", "jit_mlp", "-C", corpus / OLD, "--hlo", "--python", jax_python)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("HloModule jit_mlp")
    assert "ENTRY" in done.stdout and "f32[8,16]" in done.stdout


def test_what_the_ledger_knows_is_shown(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(corpus / CPU, cache)
    key = next(cache.glob("jit_mlp*-cache")).name[:-6]
    facts = {
        "jax_version": "0.12.0.1",
        "components": {"computation": "ab" * 32},
        "jaxlib_digest": "cd",
        "compile_seconds": 0.25,
    }
    append(LocalStore(cache), [Event(key, COMPILE, 1_700_000_000 * 10**9, facts)])
    known = shown(run_cli, "-C", cache, key)["provenance"]
    assert known["components"] == {"computation": "ab" * 32}
    assert known["extra"] == {"jaxlib_digest": "cd"}
    assert known["compile_seconds"] == 0.25
    text = page(tmp_path, "-C", cache, key)
    assert "jax 0.12.0.1" in text
    assert "ab" * 32 not in text


def test_a_name_without_jit_is_near_one(run_cli: RunCli, corpus: Path) -> None:
    cache = corpus / "0.12.0.1-cpu-zstd"
    for text in ("mlp", "jit_mpl"):
        done = run_cli("show", text, "-C", cache)
        assert "hint: did you mean 'jit_mlp'?" in done.stderr
    assert f"ls -C {cache} -q prints every key" in run_cli("show", "zzz", "-C", cache).stderr
