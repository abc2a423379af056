"""``jaxcache show`` as a person and as a script meets it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from conftest import RunCli

GPU, CPU, OLD = "0.12.0.1-cuda13-h200-zstd", "0.12.0.1-cpu-zstd", "0.4.38-cpu-zlib"


@pytest.mark.parametrize("name", ["as it is", "renamed"])
def test_a_plain_file_will_do(run_cli: RunCli, corpus: Path, tmp_path: Path, name: str) -> None:
    path = next((corpus / GPU).glob("jit_sort*"))
    if name == "renamed":
        path = tmp_path / "copy.bin"
        shutil.copy(next((corpus / GPU).glob("jit_sort*")), path)
    document = json.loads(run_cli("show", "--json", path).stdout)
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
