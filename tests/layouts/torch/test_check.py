"""``verify`` by eight rules: each fault is named, ``--fix`` takes away what torch would fail on."""

import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, first_file
from failing import let_fail
from ways import told

from jaxcache.layouts.torch.check import record_new_code
from jaxcache.layouts.torch.inventory import check_shared_object
from jaxcache.layouts.torch.names import digest_of, paired_file
from jaxcache.store import open_store
from jaxcache.store.base import MissingError, StoreError
from layouts.torch_files import cut, empty, flip, graphs, invert, two_tier_graph

ARGS = ("--grace", "0s")


def useless(path: Path) -> Path:
    """A kernel that was compiled of an empty source."""
    path.write_bytes(path.read_bytes().replace(b"PyInit_", b"PyNone_"))
    return path


def zeros(path: Path) -> Path:
    """A page that never reached the disk."""
    data = path.read_bytes()
    path.write_bytes(data[:1000] + b"\0" * 512 + data[1512:])
    return path


def rename(path: Path) -> Path:
    """A file whose name fits bytes that torch never wrote."""
    return path.rename(path.with_name(digest_of(path.read_bytes())))


def tamper_graph(path: Path) -> Path:
    path.write_bytes(path.read_bytes().replace(b"import torch\n", b"import t0rch\n"))
    return rename(path)


def under_another_key(path: Path) -> Path:
    other = max(p for p in path.parents[2].glob("*/*") if p != path.parent)
    return Path(shutil.copy(path, other / path.name))


def wrong_class(path: Path) -> Path:
    data = pickle.dumps({"not": "a graph"}, 4)
    new = path.with_name(digest_of(data))
    new.write_bytes(data)
    return new


def swap(path: Path) -> Path:
    """A kernel under another's name."""
    other = next(p for p in path.parents[1].glob("*/*.main.so") if p != path)
    path.write_bytes(other.read_bytes())
    return path


def verify(run_cli: RunCli, cache: Path, *args: str, code: int = 0) -> Any:
    return told(run_cli, "verify", "-C", cache, *ARGS, *args, code=code)


@pytest.mark.parametrize(
    ("module", "name", "references"),
    [
        ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCacheEntry", 2),  # 2.9
        ("torch._functorch._aot_autograd.of_tomorrow", "AOTAutogradThing", 0),
        ("torch.nn", "Linear", None),
    ],
)
def test_the_class_of_another_torch_is_no_fault(
    run_cli: RunCli, torch_cache: Path, module: str, name: str, references: int | None
) -> None:
    """Classes have moved between releases, and may again; nothing is taken away for that."""
    path = max(torch_cache.glob("aotautograd/*/*"), key=lambda p: p.stat().st_size)
    data, old = path.read_bytes(), "torch._functorch._aot_autograd.aot_autograd_result"
    for before, after in ((old, module), ("AOTAutogradResult", name)):
        words = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (before, after)]
        assert words[0] in data
        data = data.replace(*words)
    path.write_bytes(data)
    path = rename(path)
    problems = verify(run_cli, torch_cache, code=references is None)["problems"]
    assert {p["kind"] for p in problems} == ({"wrong-class"} if references is None else set())
    (entry,) = (e for e in graphs(run_cli, torch_cache) if torch_cache / e["file"] == path)
    assert len(entry["references"]) == (references or 0)


#: What torch 2.14 and 2.15 write beside what is known here, some of it on a GPU only.
def misspell(path: Path) -> Path:
    """Change a few bytes of code, as no writer that is cut off would."""
    path.write_bytes(path.read_bytes().replace(b"for(", b"f0r(", 1))
    return path


NEWER = (
    *("quack/fingerprint/kernel.o", "flydsl_compile_cache/ab/k.pkl", "autoheuristic/A100/pad.txt"),
    *("cutedsl_compile_cache/k/x.mlir", "memoizer_cache.json", "memoizer_cache.lock"),
    *("unhashed_kernel_inputs/k_run_0/tensor_0.pt", "aoti_eager/aten/cpu/kernel.json"),
    *("ab/what_comes_next.bin", "later/x"),
)


def test_what_a_newer_torch_writes(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    probe = next(p for p in torch_cache.glob("*/*.so") if ".main." not in p.name)
    empty(probe.with_name(f"{probe.name}.load_ok"))
    for name in NEWER:
        (torch_cache / name).parent.mkdir(parents=True, exist_ok=True)
        (torch_cache / name).write_bytes(b"\x80new")
    (torch_cache / "later" / "link").symlink_to("/etc/passwd")
    assert verify(run_cli, torch_cache, code=0)["problems"] == []
    kinds = {f["kind"]: f["files"] for f in told(run_cli, "stats", "-C", torch_cache)["files"]}
    assert kinds["unread"] == len(NEWER) + 1
    fixed = run_cli("verify", "-C", torch_cache, "--fix", *ARGS)
    assert fixed.returncode == 0 and (torch_cache / NEWER[0]).exists()
    bundle, there = tmp_path / "all.jxb", tmp_path / "there"
    done = run_cli("export", "-C", torch_cache, bundle)
    assert done.returncode == 0 and "that jaxcache does not know are carried unread" in done.stderr
    assert run_cli("import", bundle, "-C", there).returncode == 0
    assert all((there / name).read_bytes() == b"\x80new" for name in NEWER)
    assert (there / probe.relative_to(torch_cache)).with_suffix(".so.load_ok").exists()
    assert not (there / "later" / "link").exists()


@pytest.mark.parametrize("name", ["fxgraph/x.txt", "aotautograd/other/entry", "aa/c{key}.py"])
def test_strays_of_torch(run_cli: RunCli, torch_cache: Path, name: str) -> None:
    """As a graph beside others: torch unpickles all that is in the directory of a key."""
    path = torch_cache / name.format(key="z" * 51)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    kinds = {p["kind"] for p in verify(run_cli, torch_cache, code=1)["problems"]}
    assert kinds == {"stray-file"}


def test_a_real_cache_is_sound(run_cli: RunCli, torch_cache: Path) -> None:
    found = verify(run_cli, torch_cache, code=0)
    assert found["problems"] == []
    # 9 graphs and 4 generated files prove themselves; kernels, probes and their sources cannot.
    assert (found["checked"], found["proven"]) == (33, 13)
    assert verify(run_cli, torch_cache, code=0)["proven"] == 33  # the first time recorded the rest


@pytest.mark.parametrize(
    ("pattern", "fault", "kind", "recorded"),
    [
        ("aotautograd/*/*", cut, "truncated", False),
        ("aotautograd/*/*", wrong_class, "wrong-class", False),
        ("fxgraph/*/*/*", cut, "truncated", False),
        ("fxgraph/*/*/*", empty, "empty", False),
        ("fxgraph/*/*/*", flip, "digest-mismatch", False),
        ("fxgraph/*/*/*", wrong_class, "wrong-class", False),
        ("fxgraph/*/*/*", tamper_graph, "source-mismatch", False),
        ("fxgraph/*/*/*", under_another_key, "key-mismatch", False),
        ("*/*.py", cut, "digest-mismatch", False),
        ("*/*.py", empty, "empty", False),
        ("*/*.main.so", cut, "truncated", False),
        ("*/*.main.so", empty, "empty", False),
        ("*/*.main.so", useless, "source-mismatch", False),
        ("*/*.main.cpp", empty, "empty", False),
        ("*/*.main.cpp", cut, "source-mismatch", False),
        ("*/*.main.cpp", zeros, "bad-payload", False),
        ("*/*.main.cpp", misspell, "source-mismatch", False),
        ("*/c" + "?" * 51 + ".cpp", empty, "empty", False),
        # Nothing but a record shows these.
        ("*/*.main.cpp", partial(cut, keep=0.99), "digest-mismatch", True),
        ("*/*.main.so", swap, "digest-mismatch", True),
        ("*/*.main.so", invert, "digest-mismatch", True),
        ("*/c" + "?" * 51 + ".so", flip, "digest-mismatch", True),  # torch tried the compiler
        ("*/c" + "?" * 51 + ".cpp", flip, "digest-mismatch", True),
    ],
)
def test_each_fault_is_named_and_taken_away(
    run_cli: RunCli,
    torch_cache: Path,
    pattern: str,
    fault: Callable[[Path], Path],
    kind: str,
    recorded: bool,
) -> None:
    if recorded:
        verify(run_cli, torch_cache)
    bad = fault(first_file(torch_cache, pattern))
    name = str(bad.relative_to(torch_cache))
    found = verify(run_cli, torch_cache, code=1)
    assert kind in {p["kind"] for p in found["problems"] if p["file"] == name}
    # nothing else is accused, but for who refers to what is damaged, and the source of a kernel or
    # the kernel of a source, of which torch would take the one that is left
    others = {p["file"]: p["kind"] for p in found["problems"] if p["file"] != name}
    twin = paired_file(name) or ""
    assert others.pop(twin, None) == ("source-mismatch" if twin else None)
    assert set(others.values()) <= {"dangling-reference"}
    fixed = verify(run_cli, torch_cache, "--fix", code=0)  # with all that belongs to it
    gone = {p["action"] for p in fixed["problems"] if p["file"] in (name, twin)}
    assert gone == {"quarantine"}
    assert not bad.exists() and not (twin and (torch_cache / twin).exists())
    again = verify(run_cli, torch_cache, code=0)
    assert {p["kind"] for p in again["problems"]} <= {"missing-source"}
    assert list((torch_cache / ".jaxcache" / "quarantine").glob(f"*/{name}"))


@pytest.mark.parametrize(
    "error", [StoreError("x", "input/output error", code="io-error"), MissingError("x")]
)
def test_a_kernel_that_cannot_be_read_stops_no_check(
    run_cli: RunCli, torch_cache: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    let_fail(monkeypatch, "read", first_file(torch_cache, "*/*.main.so").name, error)
    went = isinstance(error, MissingError)  # meanwhile, so that it is no finding
    found = verify(run_cli, torch_cache, code=not went)
    assert {p["kind"] for p in found["problems"]} == (set() if went else {"unreadable"})
    assert found["checked"] == 33 - went


def test_what_refers_to_nothing_is_named(run_cli: RunCli, torch_cache: Path) -> None:
    shutil.rmtree(torch_cache / "fxgraph")
    (torch_cache / "fxgraph").mkdir()
    found = verify(run_cli, torch_cache, code=1)
    assert [p["kind"] for p in found["problems"]] == ["dangling-reference"] * 4


def test_a_missing_py_accuses_nobody(run_cli: RunCli, torch_cache: Path) -> None:
    first_file(torch_cache, "*/*.py").unlink()
    found = verify(run_cli, torch_cache, code=0)
    assert {p["kind"] for p in found["problems"]} == {"missing-source"}
    assert found["ok"] == found["checked"]


def test_what_is_damaged_stays_in_quarantine(run_cli: RunCli, torch_cache: Path) -> None:
    bad = cut(first_file(torch_cache, "*/*.main.so"))
    source = bad.with_suffix(".cpp")
    text = source.read_bytes()
    verify(run_cli, torch_cache, "--fix", code=0)
    assert not bad.exists() and not source.exists()
    document = told(run_cli, "verify", "--restore", "-C", torch_cache, code=3)
    assert (len(document["restored"]), len(document["left"])) == (1, 1)
    assert not bad.exists() and source.read_bytes() == text
    assert not list((torch_cache / ".jaxcache" / "quarantine").rglob("ledger"))


def test_one_key_is_verified_with_what_it_needs(run_cli: RunCli, torch_cache: Path) -> None:
    loss = two_tier_graph(run_cli, torch_cache)
    found = verify(run_cli, torch_cache, loss["hash"], code=0)
    assert found["checked"] == 9  # AOT, two FX, two .py, two kernels with their sources


def test_a_young_graph_whose_bytes_are_others_is_taken(run_cli: RunCli, torch_cache: Path) -> None:
    bad = flip(first_file(torch_cache, "fxgraph/*/*/*"))
    problems = told(run_cli, "verify", "-C", torch_cache, "--fix")["problems"]
    assert {(p["kind"], p["action"]) for p in problems} == {
        *(("digest-mismatch", "quarantine"), ("dangling-reference", "quarantine"))
    }
    assert not bad.exists()


def test_a_kernel_whose_lock_is_held_is_left_alone(run_cli: RunCli, torch_cache: Path) -> None:
    bad = cut(first_file(torch_cache, "*/*.main.so"))
    lock = torch_cache / "locks" / f"{bad.name.partition('.')[0]}.lock"
    lock.parent.mkdir(exist_ok=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fixed = verify(run_cli, torch_cache, "--fix", code=1)
        assert fixed["problems"][0]["action"] == "leave-young"
        assert bad.exists()
    verify(run_cli, torch_cache, "--fix", code=0)
    assert not bad.exists()
    assert lock.exists()  # others may be waiting on it


def test_quick_reads_no_graph(run_cli: RunCli, torch_cache: Path) -> None:
    flip(first_file(torch_cache, "fxgraph/*/*/*"))
    assert verify(run_cli, torch_cache, "--level", "quick", code=0)["proven"] == 0
    empty(first_file(torch_cache, "fxgraph/*/*/*"))
    assert verify(run_cli, torch_cache, "--level", "quick", code=1)


def test_a_kernel_that_was_compiled_anew(run_cli: RunCli, torch_cache: Path) -> None:
    """Its source is written with it; a kernel that alone is younger is damaged."""
    kernel = first_file(torch_cache, "*/*.main.so")
    source = torch_cache / str(paired_file(str(kernel.relative_to(torch_cache))))
    record_new_code(open_store(str(torch_cache)), 0, unrecorded=False)
    proven = verify(run_cli, torch_cache)["proven"]
    kernel.write_bytes(kernel.read_bytes() + b"of another compiler")
    assert verify(run_cli, torch_cache, code=1)["problems"][0]["kind"] == "digest-mismatch"
    os.utime(source)
    found = verify(run_cli, torch_cache, code=0)
    assert [p["kind"] for p in found["problems"]] == ["changed-since-recorded"]
    assert found["proven"] == proven - 1


def test_a_kernel_of_an_empty_source(run_cli: RunCli, torch_cache: Path) -> None:
    verify(run_cli, torch_cache, code=0)  # records both
    kernel = useless(first_file(torch_cache, "*/*.main.so"))
    empty(kernel.with_suffix(".cpp"))
    found = verify(run_cli, torch_cache, code=1)
    kinds = [p["kind"] for p in found["problems"] if torch_cache / p["file"] == kernel]
    assert kinds == ["changed-since-recorded", "source-mismatch"]
    verify(run_cli, torch_cache, "--fix", code=0)
    assert not kernel.exists()


def test_a_kernel_stays_for_the_next_run_where_its_source_could_not_go(
    run_cli: RunCli, torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = cut(first_file(torch_cache, "*/*.main.so"))
    source = kernel.with_suffix(".cpp")
    fix = ("verify", "-C", torch_cache, *ARGS, "--fix", "--delete", "--yes")
    with monkeypatch.context() as patched:
        let_fail(patched, "delete", ".main.cpp")
        assert run_cli(*fix).returncode != 0
    assert kernel.exists() and source.exists()
    assert run_cli(*fix).returncode == 0
    assert not kernel.exists() and not source.exists()


@pytest.mark.parametrize(
    ("bits", "word", "offset_at", "counts_at"), [(1, 4, 32, 46), (2, 8, 40, 58)]
)
@pytest.mark.parametrize(("number", "order"), [(1, "little"), (2, "big")])
def test_a_header_of_any_bytes_is_judged(
    bits: int, word: int, offset_at: int, counts_at: int, number: int, order: Any
) -> None:
    """Of 32 and of 64 bits, in either order of bytes."""
    good = bytearray(b"\x7fELF" + bytes([bits, number]) + bytes(58))
    good[offset_at : offset_at + word] = (4096).to_bytes(word, order)
    good[counts_at : counts_at + 4] = (64).to_bytes(2, order) + (10).to_bytes(2, order)
    assert check_shared_object(bytes(good), 4736) is None
    assert check_shared_object(bytes(good), 4735) == (
        "truncated",
        "4,735 bytes, and its sections end at 4,736",
    )
    for at in (4, 5):
        other = bytes(good[:at]) + b"\x03" + bytes(good[at + 1 :])
        assert check_shared_object(other, 10_000) == ("bad-header", "its header is damaged")
    for bad in (b"", b"\x7fELF", b"MZ" * 32, bytes(good[:6]) + b"\0" * 58):
        found = check_shared_object(bad, 10_000)
        assert found and found[0] in ("empty", "bad-header")
    assert check_shared_object(b"\xcf\xfa\xed\xfe" + b"\0" * 60, 100) is None
