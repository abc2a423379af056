"""``ls``, ``show``, ``stats``, ``explain`` and ``doctor`` in a cache of torch's compilers."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on, says
from conftest import RunCli, clean_environment, first_file
from torch_files import Trap, graphs, two_tier_graph
from ways import told

import jaxcache
from jaxcache.cache.index import read_checked, write_checked
from jaxcache.layouts.torch.doctor import diagnose
from jaxcache.layouts.torch.graph import decode_graph
from jaxcache.layouts.torch.names import digest_of
from jaxcache.layouts.torch.scan import GraphIndex


def test_graphs_of_a_function(run_cli: RunCli, golden: Path, torch_cache: Path) -> None:
    keys = {e["key"] for e in graphs(run_cli, golden) if e["function"] == "loss"}
    assert keys
    for args in (("loss",), ("los[s]",), ("--filter", "function=loss")):
        assert {e["key"] for e in told(run_cli, "ls", "-C", golden, *args)["entries"]} == keys
    shown = told(run_cli, "show", "-C", golden, "loss")["entries"]
    assert {s["entry"]["key"] for s in shown} == keys
    assert told(run_cli, "verify", "-C", golden, "loss", "--level", "quick")["checked"] > 0
    gone = told(run_cli, "rm", "-C", torch_cache, "loss", "--yes")["removed"]
    assert {r["key"] for r in gone if r["key"]} == keys
    groups = told(run_cli, "ls", "-C", golden, "--group-by", "function")["groups"]
    assert {g["name"] for g in groups} == {"scale", "loss", "spread"}


def test_a_pipe_says_how_many_files_it_leaves_out(run_cli: RunCli, torch_cache: Path) -> None:
    key = two_tier_graph(run_cli, torch_cache)["key"]
    files = told(run_cli, "show", "-C", torch_cache, key)["files"]
    inner = next(torch_cache / f["file"] for f in files if f["file"].startswith("fxgraph/"))
    for letter in "ab":  # other graphs under its key
        shutil.copy(inner, inner.with_name(letter * 51))
    count = len(told(run_cli, "show", "-C", torch_cache, key)["files"])
    lines = run_cli("show", "-C", torch_cache, key).stdout.splitlines()
    assert f"files.more\t{count - 8} (--verbose lists all)" in lines
    lines = run_cli("show", "-C", torch_cache, key, "--verbose").stdout.splitlines()
    assert sum(line.startswith("files[") and ".file\t" in line for line in lines) == count


def test_kernels_alone_are_known_by_their_locks(run_cli: RunCli, torch_cache: Path) -> None:
    """Where graphs are kept elsewhere, or were removed."""
    kernel = first_file(torch_cache, "*/*.main.so")
    (torch_cache / "locks").mkdir(exist_ok=True)
    (torch_cache / "locks" / f"{kernel.name.partition('.')[0]}.lock").touch()
    for tier in ("aotautograd", "fxgraph"):
        shutil.rmtree(torch_cache / tier)
    counts = {f["kind"]: f["files"] for f in told(run_cli, "stats", "-C", torch_cache)["files"]}
    assert counts["kernel"] == 4
    other = torch_cache.parent / "locks-of-others"
    (other / "locks").mkdir(parents=True)
    (other / "locks" / "mine.lock").touch()
    assert "kernel" not in run_cli("stats", "-C", other).stdout


def test_seconds_are_counted_once(run_cli: RunCli, golden: Path) -> None:
    """AOT's seconds include Inductor's, so a sum over both tiers must leave those out."""
    listed = told(run_cli, "ls", "-C", golden)
    backward = next(e for e in listed["entries"] if len(e["references"]) == 2)
    shown = told(run_cli, "show", "-C", golden, backward["hash"])
    inner = sum(
        told(run_cli, "show", "-C", golden, key)["seconds"]["total"]
        for key in backward["references"]
    )
    assert shown["seconds"]["forward"] + shown["seconds"]["backward"] == pytest.approx(
        shown["seconds"]["total"]
    )
    assert backward["compile_seconds"] == pytest.approx(shown["seconds"]["total"] - inner)
    total = sum(e["compile_seconds"] for e in listed["entries"])
    assert listed["summary"]["compile_seconds"] == pytest.approx(total)
    # Two files have one key, with guards of their own, and so have the FX graphs below them.
    entries = told(run_cli, "ls", "-C", golden, "aotautograd-azx*")["entries"]
    assert sorted(round(e["compile_seconds"], 1) for e in entries) == [1.1, 1.7]


def test_filters_sorting_and_keys_are_those_of_every_layout(run_cli: RunCli, golden: Path) -> None:
    slow = run_cli("ls", "-C", golden, "-q", "--filter", "compile>10s").stdout.split()
    assert {k.partition("-")[0] for k in slow} == {"fxgraph"}
    first = told(run_cli, "ls", "-C", golden, "--sort", "compile", "--limit", "1")
    assert first["entries"][0]["function"] == "scale"
    assert len(run_cli("ls", "-C", golden, "-q", "aot*").stdout.split()) == 4
    for words in (("ls", "-q", "f"), ("explain", "fnothing")):
        assert run_cli(*words, "-C", golden).returncode == 1
    for words in (("show", "f*", "--hlo"), ("verify", "--level", "load")):  # for JAX's
        assert run_cli(*words, "-C", golden).returncode == 2


def test_a_plain_listing_opens_no_file(run_cli: RunCli, torch_cache: Path) -> None:
    for path in (torch_cache / "fxgraph").glob("*/*/*"):
        path.write_bytes(b"\0" * path.stat().st_size)
    done = run_cli("ls", "-q", "-C", torch_cache)
    assert done.returncode == 0
    assert len(done.stdout.split()) == 9


def test_an_index_of_other_fields(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    before = told(run_cli, "ls", "-C", torch_cache)
    (path,) = tmp_path.rglob("*.idx")
    body = bytes(read_checked(path, GraphIndex.magic)).replace(b'"function": ', b'"callable": ')
    write_checked(path, b"jaxcache-torch-index 5\n", [body])  # as a version without it wrote it
    assert told(run_cli, "ls", "-C", torch_cache) == before


def test_the_index_spares_reading_and_notices_changes(run_cli: RunCli, torch_cache: Path) -> None:
    before = told(run_cli, "ls", "-C", torch_cache)
    path = first_file(torch_cache, "fxgraph/*/*/*")
    status = path.stat()
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert told(run_cli, "ls", "-C", torch_cache) == before  # not opened
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert told(run_cli, "ls", "-C", torch_cache) != before


def test_a_graph_is_compared_with_the_nearest_other(run_cli: RunCli, golden: Path) -> None:
    """Here the forward graph of a function with its backward graph; what differs comes first."""
    loss = two_tier_graph(run_cli, golden)
    assert told(run_cli, "show", "-C", golden, loss["hash"][:9])["nearest"] is None
    forward, backward = loss["references"]
    nearest = told(run_cli, "show", "-C", golden, forward)["nearest"]
    assert nearest["key"] == f"fxgraph-{backward}"
    assert "example_inputs[2]" in {d["component"] for d in nearest["differences"]}
    page = run_cli("show", "-C", golden, forward).stdout
    assert page.index("nearest.differences[0].component\texample_inputs") < page.index(
        "seconds.total"
    )


def test_a_hostile_entry_is_not_run(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    data = pickle.dumps(Trap(trap), 4)
    directory = first_file(torch_cache, "fxgraph/*/*/*").parent
    (directory / digest_of(data)).write_bytes(data)  # under a name that fits its bytes
    hostile = next(e for e in graphs(run_cli, torch_cache) if e["file"].endswith(digest_of(data)))
    assert hostile["problems"] == ["foreign-globals", "wrong-class"]
    (torch_cache / "ab").mkdir(exist_ok=True)
    (torch_cache / "ab" / "\x1b[31mred\n").write_bytes(b"")
    for line in ("ls --long", f"show {directory.name}", "stats", "verify", "ls --sort compile"):
        done = run_cli(*line.split(), "-C", torch_cache)
        assert done.returncode in (0, 1), done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    shown = run_cli("show", directory / digest_of(data))
    assert "posix.mkdir" in shown.stdout
    assert not trap.exists()
    pickle.loads(data)  # the trap is real
    assert trap.exists()


def test_the_layout_can_be_chosen(
    run_cli: RunCli, spawn_cli: RunCli, golden: Path, tmp_path: Path
) -> None:
    assert run_cli("ls", "-q", "-C", golden, "--layout", "jax").stdout == ""
    assert run_cli("ls", "-C", golden, "--layout", "tf").returncode == 2
    shutil.copytree(golden, tmp_path / "torchinductor_ann")
    found = run_cli("ls", "-q", "--layout", "torch", env={"TORCHINDUCTOR_CACHE_DIR": str(golden)})
    assert len(found.stdout.split()) == 9
    env = {"TMPDIR": str(tmp_path), "LOGNAME": "ann"}  # which a Python reads once
    assert len(spawn_cli("ls", "-q", "--layout", "torch", env=env).stdout.split()) == 9


def test_a_directory_of_two_layouts(run_cli: RunCli, torch_cache: Path, corpus: Path) -> None:
    """What one compiler wrote is no finding about the cache of the other."""
    shutil.copytree(corpus / "0.10.2-cpu-zstd", torch_cache, dirs_exist_ok=True)
    done = run_cli("ls", "-C", torch_cache)
    assert done.returncode == 2
    assert "two-layouts" in done.stderr
    for layout, number in (("jax", 7), ("torch", 9)):
        place = ("-C", torch_cache, "--layout", layout)
        assert len(run_cli("ls", "-q", *place).stdout.split()) == number
        assert {p["kind"] for p in told(run_cli, "verify", *place)["problems"]} <= {"unsealed"}


# ``explain`` between two FX graphs: by the hashes of their keys' parts.


def explain(run_cli: RunCli, cache: Path, *keys: str) -> Any:
    return told(run_cli, "explain", "-C", cache, *keys)


def fx_graphs(run_cli: RunCli, cache: Path, function: str) -> list[Any]:
    found = [e for e in graphs(run_cli, cache) if e["module"] == "fxgraph"]
    return [e for e in found if e["function"] == function]


def test_parts_that_differ_are_named(run_cli: RunCli, golden: Path) -> None:
    scale = fx_graphs(run_cli, golden, "scale")[0]["hash"]
    backward, forward = (
        e["hash"]
        for e in sorted(fx_graphs(run_cli, golden, "loss"), key=lambda e: -len(e["signature"]))
    )
    found = explain(run_cli, golden, forward, backward)
    parts = {d["component"]: d for d in found["differences"]}
    assert {d["cause"] for d in parts.values()} == {"argument", "code", "config"}
    assert parts["example_inputs[2]"]["right"].startswith("TensorMetadata(dtype=torch.float32")
    assert {"gm", "fx_kwargs[is_backward]"} < parts.keys()
    assert all("this alone brings no hit" in d["meaning"] for d in parts.values())
    assert not [d["fix"] for d in parts.values() if d["fix"]]
    assert "inductor_config[max_autotune]" not in parts
    assert explain(run_cli, golden, scale, scale)["same"] == 1


def test_an_aot_graph_stands_for_its_fx_graphs(run_cli: RunCli, golden: Path) -> None:
    loss = two_tier_graph(run_cli, golden)
    found = explain(run_cli, golden, loss["hash"], loss["references"][0])
    assert found["same"] == 1
    plain = run_cli("explain", "-C", golden, loss["hash"], loss["references"][0])
    said = f"no difference in 1 module between {loss['hash']} and {loss['references'][0]}\n"
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "", said)
    # one alone is compared with the nearest of those that another stands for
    backward = explain(run_cli, golden, loss["hash"], loss["references"][1])
    assert backward["same"] == 1


def test_a_graph_that_cannot_be_read(run_cli: RunCli, golden: Path, torch_cache: Path) -> None:
    for path in torch_cache.glob("fxgraph/*/*/*"):
        path.write_bytes(b"no pickle")
    key = run_cli("ls", "-q", "-C", golden, "fx*").stdout.split()[0]
    done = run_cli("explain", "-C", torch_cache, key)
    assert (done.returncode, "bad-entry" in done.stderr) == (1, True)


def test_a_function_with_several_keys(run_cli: RunCli, torch_cache: Path) -> None:
    """Forward and backward of one function are no churn."""

    def churn() -> Any:
        return explain(run_cli, torch_cache, "--churn")["modules"]

    assert churn() == []
    (graph,) = fx_graphs(run_cli, torch_cache, "spread")
    path = torch_cache / graph["file"]
    path.write_bytes(path.read_bytes().replace(b"in spread", b"in scale\n"))
    (found,) = churn()
    assert (found["module"], found["keys"]) == ("scale", 2)
    assert found["size_bytes"] > graph["size_bytes"] and found["compile_seconds"] > 0
    causes = {c["component"]: (c["meaning"], c["count"]) for c in found["causes"]}
    assert found["causes"][0]["cause"] == "argument"
    assert causes["example_inputs[0]"][0].startswith("an input: its dtype")
    page = run_cli("explain", "--churn", "-C", torch_cache, env={"COLUMNS": "100"})
    assert page.stdout.split("\t")[:2] == ["scale", "2"]
    assert [c.module for c in jaxcache.open(torch_cache).churn()] == ["scale"]


def change_parts(cache: Path, *parts: str, renamed: str = "") -> tuple[str, str]:
    """Copy a graph to another key, with other hashes of some parts; return both keys.

    Args:
        renamed: the name of a new part, in place of one with a name as long, or longer.
    """
    path = next(p for p in cache.glob("fxgraph/*/*/*") if b"] gm: " in p.read_bytes())
    data = path.read_bytes()
    for part in parts:
        end = data.index(f"] {part}: ".encode())
        data = data[: end - 3] + b"zzz" + data[end:]
    if renamed:
        names = (c.name for c in decode_graph(path.read_bytes(), "fxgraph").components)
        old = next(n for n in names if len(n) >= len(renamed) and n not in parts)
        new = f"] {renamed}: ".ljust(len(old) + 4, "x")
        data = data.replace(f"] {old}: ".encode(), new.encode())
    other = path.parent.with_name(path.parent.name[:-1] + "z")
    other.mkdir()
    (other / path.name).write_bytes(data)
    return path.parent.name, other.name


@pytest.mark.parametrize(
    ("part", "cause", "has_fix"),
    [
        ("gm", "code", True),
        ("torch_version", "torch-version", True),
        ("system_info[hash]", "device", False),
    ],
)
def test_a_part_that_alone_differs_is_the_cause(
    run_cli: RunCli, torch_cache: Path, part: str, cause: str, has_fix: bool
) -> None:
    keys = change_parts(torch_cache, part)
    (found,) = explain(run_cli, torch_cache, *keys)["differences"]
    assert (found["component"], found["cause"]) == (part, cause)
    assert "alone" not in found["meaning"]
    assert (found["fix"] is not None) is has_fix


def test_another_version_and_another_program(run_cli: RunCli, torch_cache: Path) -> None:
    keys = change_parts(torch_cache, "torch_version", "inductor_config[debug]", "gm")
    found = explain(run_cli, torch_cache, *keys)["differences"]
    named = {d["component"]: d["cause"] for d in found}
    assert named == {
        "torch_version": "torch-version",
        "inductor_config[debug]": "config",
        "gm": "code",
    }
    assert all("this alone brings no hit" in d["meaning"] for d in found)
    assert not [d["fix"] for d in found if d["fix"]]


@pytest.mark.parametrize("name", ["nested_inductor_config_patches", "compile_on_one_rank"])
def test_an_unknown_part_is_named(run_cli: RunCli, torch_cache: Path, name: str) -> None:
    """Beside the program, and in the place of a part that only the other torch has."""
    keys = change_parts(torch_cache, "gm", renamed=name)
    found = {d["component"]: d for d in explain(run_cli, torch_cache, *keys)["differences"]}
    assert (found[name]["cause"], found[name]["left"]) == ("unknown", None)
    assert found[name]["meaning"].startswith("a part of the key that is not known here")
    assert (len(found), found["gm"]["cause"]) == (3, "code")


def test_the_program_of_a_large_model_is_kept_whole(golden: Path) -> None:
    file = next(p for p in (golden / "fxgraph").rglob("*") if p.is_file() and p.suffix != ".lock")
    program = "\n".join(f"def forward_{n}(self): pass" for n in range(1000))
    key_line = f"[{'a' * 51}] gm: {program}"
    (component,) = replace(
        decode_graph(file.read_bytes(), "fxgraph"), key_lines=(key_line,)
    ).components
    assert component.text == program


# ``doctor``: settings, place, size, versions.


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
    ],
)
def test_a_setting_is_found_and_its_absence_is_not(
    run_cli: RunCli, torch_cache: Path, env: dict[str, str], trap: str, code: int
) -> None:
    assert trap not in findings(run_cli, torch_cache)
    found = findings(run_cli, torch_cache, env, code)[trap]
    assert next(iter(env)) in found["seen"]


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
    done = subprocess.run(
        shell,
        shell=True,
        env=clean_environment(home) | env | {"TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(done.stdout)
    assert document["cache_dir"] == str(home / ".cache" / "torchinductor")


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
    refused = Counter(
        {
            ("bypassed", "Unsupported autograd_function_apply"): 2,
            ("off", "fx_graph_cache = False"): 1,
        }
    )
    found = {f.trap: f for f in diagnose(str(torch_cache), {}, refused).findings}
    assert "2 graphs bypassed a cache: Unsupported" in found["bypassed"].seen
    assert "ALLOW_CUSTOM_AUTOGRAD" in found["bypassed"].fix
    assert "fx_graph_cache = False in the program" in found["caches-off"].seen
