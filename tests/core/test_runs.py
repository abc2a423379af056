"""The records of a program's runs: their file, its bounds, and whom it is believed."""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import GiveAway
from hypothesis import given
from hypothesis import strategies as st

from jaxcache.core import runs
from jaxcache.core.runs import CompileRow, Record, Run

KEY = f"jit_f-{'0' * 64}"
_TEXTS = st.text(max_size=40)
_DIGESTS = st.text("0123456789abcdef", min_size=8, max_size=8)
_FINITE = st.floats(0, 2e9)


def row(**facts: Any) -> CompileRow:
    return CompileRow(**{"module": "jit_f", "key": KEY, "outcome": "hit", **facts})


def run(at: float = 1.0, **facts: Any) -> Run:
    empty: dict[str, Any] = {name: {} for name in ("versions", "machine", "settings", "sources")}
    empty |= {"argv": (), "xla_flags": (), "hash_seed": "", "cache_path": ""}
    return Run(at=at, **{"program": "main.py", "rows": (row(),), **empty, **facts})


ROWS = st.builds(
    CompileRow,
    module=_TEXTS,
    key=st.sampled_from(["", KEY]),
    function=_TEXTS,
    file=_TEXTS,
    line=st.integers(0, 10**6),
    definition=_DIGESTS,
    signature=_DIGESTS,
    call_line=st.integers(0, 10**6),
    process=st.integers(0, 99),
    seconds=_FINITE,
    written=_FINITE,
)
RUNS = st.builds(
    Run,
    at=_FINITE,
    program=_TEXTS,
    argv=st.lists(_TEXTS, max_size=4).map(tuple),
    hash_seed=_TEXTS,
    versions=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
    machine=st.dictionaries(_TEXTS, st.one_of(_TEXTS, st.integers(0, 9), st.none()), max_size=3),
    settings=st.dictionaries(
        _TEXTS,
        st.tuples(st.one_of(_TEXTS, st.booleans()), st.sampled_from(runs.ORIGINS)).map(list),
        max_size=3,
    ),
    xla_flags=st.lists(_TEXTS, max_size=3).map(tuple),
    cache_path=_TEXTS,
    sources=st.dictionaries(_TEXTS, st.lists(_DIGESTS, max_size=5).map("".join), max_size=3),
    rows=st.lists(ROWS, max_size=5).map(tuple),
)


@given(st.builds(Record, _TEXTS, st.lists(RUNS, min_size=1, max_size=8).map(tuple), st.booleans()))
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert runs.decode(runs.encode(record)) == record


@given(st.binary(max_size=400))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    head = b'{"version":1,"program":"a.py","travelled":false}\n'
    for content in (data, head + data, head + zlib.compress(data)):
        assert runs.decode(content) is None
        assert runs.take_over(content) == b""


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


def with_fact(value: Any, *place: str | int) -> Record | None:
    """Read a record of one run in which another value stands at a place."""
    own = Record("main.py", (run(sources={"a": "0" * 8}),))
    head, _, packed = runs.encode(own).partition(b"\n")
    document = json.loads(zlib.decompress(packed))
    parent = document
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    return runs.decode(head + b"\n" + zlib.compress(json.dumps(document).encode()))


ROW = ("runs", 0, "rows", 0)
#: Where each fact of a run and of its row stands.
PLACES = [("runs", 0, f) for f in Run._fields] + [(*ROW, i) for i in range(len(CompileRow._fields))]


@given(st.sampled_from(PLACES), _JSON)
def test_a_fact_of_another_type_is_no_record(place: tuple[str | int, ...], value: Any) -> None:
    read = with_fact(value, *place)
    if read is not None:
        assert runs.decode(runs.encode(read)) == read
        for one in read.runs[0].rows:
            assert [*map(type, one)] == [*CompileRow.__annotations__.values()]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("runs", 0, "program"), "x" * 1025),
        (("runs", 0, "argv"), ["x"] * 513),
        (("runs", 0, "xla_flags"), ["\ud800"]),
        (("runs", 0, "at"), float(1 << 40)),
        (("runs", 0, "versions"), {str(n): "" for n in range(513)}),
        (("runs", 0, "settings"), {"jax_x": [1, "nowhere"]}),
        ((*ROW, CompileRow._fields.index("function")), "x" * 1025),
        ((*ROW, CompileRow._fields.index("key")), "no key"),
        ((*ROW, CompileRow._fields.index("line")), -1),
        # Digests of lines are whole and bounded.
        (("texts",), ["0" * 7]),
        (("texts",), ["x" * 8]),
        (("texts",), ["0" * 320_008]),
    ],
)
def test_a_fact_out_of_bounds_is_no_record(place: tuple[str | int, ...], value: Any) -> None:
    assert with_fact(value, *place) is None


@pytest.mark.parametrize(("written", "at"), [(3.0, 3), (2.5, 2)], ids=["kept", "forgotten"])
def test_who_wrote_a_key_is_found_with_the_earlier_runs(written: float, at: int) -> None:
    """Of a run that is no longer kept the oldest one with the key takes the place."""
    of_key = {"rows": (row(written=written), row(key=KEY.replace("0", "1"), written=9.0))}
    some = run(5, **of_key), run(3, **of_key), run(2, **of_key), run(1, rows=())
    records = [Record("other.py", (run(4, rows=()),)), Record("main.py", some)]
    found = runs.find_writer(records, KEY)
    assert found is not None
    assert (found[0].at, [one.at for one in found[1]]) == (at, [*range(at - 1, 0, -1)])
    assert runs.find_writer(records, f"jit_g-{'0' * 64}") is None


def test_a_record_keeps_within_its_bounds() -> None:
    rows = tuple(
        row(key=f"jit_f-{os.urandom(32).hex()}", function="é" * 2000)
        for _ in range(runs.MAX_ROWS + 9)
    )
    sources = {f"f{n}.py": os.urandom(40_000).hex() for n in range(80)}
    many = run(rows=rows, sources=sources, argv=("x" * 5000,) * 600)
    data = runs.encode(Record("main.py", (many, *[run()] * 20)))
    record = runs.decode(data)
    assert len(data) <= runs.MAX_RECORD_BYTES
    assert record is not None
    assert [(len(one.rows), one.sources) for one in record.runs] == [(runs.MAX_ROWS, {})]
    few = [run(sources={"f.py": "0" * 8})] * 20
    kept = Record("main.py", (*few[: runs.MAX_RUNS],))
    assert runs.decode(runs.encode(Record("main.py", (*few,)))) == kept


def test_a_bomb_is_no_record() -> None:
    head = b'{"version":1,"program":"a.py","travelled":false}\n'
    bomb = zlib.compress(b'{"runs":[],"texts":["' + b"0" * (64 << 20) + b'"]}', 9)
    assert len(head + bomb) < runs.MAX_RECORD_BYTES
    assert runs.decode(head + bomb) is None


# Distinct runs -----------------------------------------------------------------------------------


def recorded(*given_runs: Run) -> Record:
    record: Record | None = None
    for one in given_runs:
        record = runs.add_run(record, one)
    assert record is not None
    return record


def test_the_last_eight_distinct_runs_are_kept() -> None:
    record = recorded(*(run(n, argv=(str(n),)) for n in range(12)))
    assert [r.argv[0] for r in record.runs] == ["11", "10", "9", "8", "7", "6", "5", "4"]


def test_an_equal_run_takes_the_place_of_the_earlier_one() -> None:
    cold = run(1, rows=(row(outcome="written", reason="not-in-cache", seconds=2.5),))
    rows = (row(seconds=2.5, written=1),)
    kept = (run(3, rows=rows), run(2, rows=rows, argv=("-v",)))
    assert recorded(cold, run(2, argv=("-v",)), run(3)).runs == kept


# Privacy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "hidden"),
    [
        *((word, word) for word in ("--epochs", "--epochs=12", "--mode=xyz", "-v", "-n8", "1024")),
        *((word, word) for word in ("--rate=1.5e-4", "--no-x.y_z", "-", "--", "abc", "1234567890")),
        ("hunter2", "#"),
        ("12345678901", "#"),
        ("--name=hunter2", "--name=#"),
        ("-phunter2", "-p#"),
        ("-hunter2=1", "-h#"),
        ("--=hunter2", "#"),
        ("=hunter2", "#"),
        ("nan1", "#"),
        ("infinity", "#"),
        ("1e999", "#"),
    ],
)
def test_options_and_numbers_stay_and_values_are_hidden(word: str, hidden: str) -> None:
    (shown,) = runs.hide_values([word], b"salt")
    assert re.sub("#[0-9a-f]{8}", "#", shown) == hidden
    assert runs.hide_values([word], b"salt") == (shown,)
    assert (runs.hide_values([word], b"other") == (shown,)) is (word == hidden)


def test_a_salt_is_made_once_and_is_the_users(tmp_path: Path) -> None:
    salt = runs.read_salt(str(tmp_path))
    assert len(salt) == 16
    assert runs.read_salt(str(tmp_path)) == salt
    (file,) = (tmp_path / runs.RUNS_DIR).iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert not runs.is_record(file.name)


# The files ---------------------------------------------------------------------------------------


def history(root: Path, identity: str = "0" * 16, program: str = "main.py") -> tuple[Run, ...]:
    return runs.read_history(str(root), identity, program)


def record_file(root: Path, identity: str = "0" * 16) -> Path:
    return root / runs.RUNS_DIR / identity


def test_the_runs_of_another_program_are_not_its_own(tmp_path: Path) -> None:
    runs.record_run(str(tmp_path), "0" * 16, run())
    runs.record_run(str(tmp_path), "1" * 16, run(program="lib/other.py"))
    assert history(tmp_path) == (run(),)
    assert history(tmp_path, "2" * 16) == ()
    assert history(tmp_path / "gone") == ()


def test_the_newest_run_comes_first_and_none_from_after_the_time_asked_for(tmp_path: Path) -> None:
    for number in (1, 3, 2):
        runs.record_run(str(tmp_path), "0" * 16, run(at=float(number), argv=(str(number),)))
    assert [r.at for r in history(tmp_path)] == [3, 2, 1]
    earlier = runs.read_history(str(tmp_path), "0" * 16, "main.py", before=3.0)
    assert [r.at for r in earlier] == [2, 1]


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"{}\n", b'{"version":1}\n' + b"x" * 99])
def test_a_damaged_record_counts_as_missing(tmp_path: Path, content: bytes) -> None:
    runs.record_run(str(tmp_path), "0" * 16, run())
    record_file(tmp_path).write_bytes(content)
    assert history(tmp_path) == ()
    runs.record_run(str(tmp_path), "0" * 16, run(2))
    assert history(tmp_path) == (run(2),)


def test_a_link_a_pipe_a_huge_file_and_one_of_another_user_count_as_missing(
    tmp_path: Path, give_away: GiveAway
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    runs.record_run(str(cache), "0" * 16, run())
    record_file(cache).rename(tmp_path / "elsewhere")
    record_file(cache).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(record_file(cache, "1" * 16))
    shutil.copy(tmp_path / "elsewhere", record_file(cache, "2" * 16))
    os.truncate(record_file(cache, "2" * 16), 1 << 40)
    runs.record_run(str(cache), "3" * 16, run())
    give_away(record_file(cache, "3" * 16))
    assert [history(cache, digit * 16) for digit in "0123"] == [(), (), (), ()]


def test_the_last_programs_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_PROGRAMS", 3)
    for number in range(5):
        identity = f"{number:016x}"
        runs.record_run(str(tmp_path), identity, run(program=f"{number}.py"))
        os.utime(record_file(tmp_path, identity), (number, number))
    remembered = [record.program for record in runs.read_records(str(tmp_path))]
    assert remembered == ["2.py", "3.py", "4.py"]


def record_runs(root: Path, ats: Iterable[int], word: str = "") -> None:
    for at in ats:
        runs.record_run(str(root), "0" * 16, run(at, argv=(word or str(at),)))


def test_processes_at_once_lose_no_run(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    words = ("--a", "--e", "--i", "--m")
    children = [
        fork.Process(target=record_runs, args=(tmp_path, range(10 * n, 10 * n + 4), word))
        for n, word in enumerate(words)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert sorted(r.argv for r in history(tmp_path)) == [(word,) for word in words]


def test_a_killed_writer_leaves_a_whole_record(tmp_path: Path) -> None:
    record_runs(tmp_path, [0])
    for attempt in range(5):
        writer = multiprocessing.get_context("fork").Process(
            target=record_runs, args=(tmp_path, itertools.count())
        )
        writer.start()
        time.sleep(0.02 + 0.003 * attempt)
        writer.kill()
        writer.join()
        assert history(tmp_path)
        record_runs(tmp_path, [10**6], "after")
        assert history(tmp_path)[0].argv == ("after",)


# Travelling --------------------------------------------------------------------------------------


def test_a_record_that_travelled_is_found_by_the_scripts_name(tmp_path: Path) -> None:
    (tmp_path / runs.RUNS_DIR).mkdir(parents=True)
    sent = runs.encode(Record("main.py", (run(argv=("--key=#12345678", "#12345678", "3")),)))
    record_file(tmp_path).write_bytes(runs.take_over(sent))
    (found,) = history(tmp_path, "1" * 16, "src/main.py")
    assert found.argv == ("--key=#", "#", "3")
    assert history(tmp_path, "1" * 16, "other.py") == ()
    runs.record_run(str(tmp_path), "1" * 16, run(9, program="src/main.py"))
    assert [r.at for r in history(tmp_path, "1" * 16, "src/main.py")] == [9]


def test_of_a_record_that_is_here_the_runs_are_merged() -> None:
    own = run(3, argv=("#aaaaaaaa",)), run(1, argv=("1",))
    sent = run(4, argv=("4",)), run(2, argv=("#bbbbbbbb",))
    before, came = (runs.encode(Record("main.py", some)) for some in (own, sent))
    merged = runs.take_over(came, before)
    assert runs.decode(merged) == Record("main.py", (sent[0], *own))
    assert runs.take_over(merged, merged) == b""
