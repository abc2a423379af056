"""Many files of zeros that take no space on the disk are not read, whatever they announce."""

import os
from pathlib import Path

import pytest
from conftest import RunCli
from ways import old_copy

from jaxcache.cache.ledger.record import HIT, PIN, Event
from jaxcache.cache.ledger.segments import MAX_SEGMENT_BYTES, Ledger
from jaxcache.cache.ledger.write import append
from jaxcache.cache.trust import TrustedKey, load_signed
from jaxcache.core.ledger import MAX_LEDGER_BYTES
from jaxcache.core.names import LEDGER_DIR
from jaxcache.core.signing import MAX_SIGNATURES_BYTES, SIGNATURES_DIR
from jaxcache.errors import UntrustedError
from jaxcache.live.uses import compact, read_digests, read_ledger
from jaxcache.store.local import LocalStore

_FILES = 100


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = old_copy(tmp_path / "cache")
    key = min(path.glob("*-cache")).name.removesuffix("-cache")
    append(LocalStore(path), [Event(key, PIN, 10**18), Event(key, HIT, 10**18)])
    return path


def write_sparse(directory: Path, size_bytes: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(_FILES):
        path = directory / f"{10**17 + number:020d}-{number:016x}.jsonl"
        path.touch()
        os.truncate(path, size_bytes)


class ReadBytes:
    """How much this process has read, as the system counts it."""

    def __init__(self) -> None:
        self._before = self._total()

    def _total(self) -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    @property
    def total(self) -> int:
        return self._total() - self._before


pytestmark = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts")


@pytest.mark.parametrize("command", [("ls",), ("stats",), ("verify", "--level", "quick")])
def test_a_ledger_of_sparse_files_is_reported_and_ignored(
    run_cli: RunCli, cache: Path, command: tuple[str, ...]
) -> None:
    expected = run_cli(*command, "-C", cache)
    write_sparse(cache / LEDGER_DIR, MAX_SEGMENT_BYTES)
    read = ReadBytes()
    done = run_cli(*command, "-C", cache)
    assert read.total < MAX_SEGMENT_BYTES
    assert (done.returncode, expected.returncode) == (0, 0), done.stderr
    assert "the ledger holds more than 256 MiB and is ignored" in done.stderr
    assert bool(done.stdout) == bool(expected.stdout)
    assert len(Ledger.load(LocalStore(cache))) == 0


def test_no_prune_goes_on_where_such_a_ledger_may_hold_pins(run_cli: RunCli, cache: Path) -> None:
    write_sparse(cache / LEDGER_DIR, MAX_SEGMENT_BYTES)
    done = run_cli("prune", "--max-size", "1KB", "--yes", "-C", cache)
    assert done.returncode != 0
    assert "it may hold pins, so nothing is removed [pins-unread]" in done.stderr
    assert len(list(cache.glob("*-cache"))) == 7


def test_a_live_program_reads_no_more_of_it_than_of_any_ledger(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sparse(cache / LEDGER_DIR, MAX_SEGMENT_BYTES)
    read = ReadBytes()
    assert read_ledger(str(cache)) == {} and read_digests(str(cache)) == {}
    assert read.total < 2 * (MAX_LEDGER_BYTES + 2 * MAX_SEGMENT_BYTES)
    assert "its ledger is too large" in capsys.readouterr().err


def test_a_live_program_compacts_no_more_than_a_moment_takes(cache: Path) -> None:
    write_sparse(cache / LEDGER_DIR, 4 << 20)
    read = ReadBytes()
    compact(str(cache))
    assert read.total < MAX_SEGMENT_BYTES


def test_such_signatures_count_for_nothing(cache: Path) -> None:
    write_sparse(cache / SIGNATURES_DIR, MAX_SIGNATURES_BYTES)
    read = ReadBytes()
    with pytest.raises(UntrustedError, match="more signatures"):
        load_signed(LocalStore(cache), [TrustedKey("ci", bytes(32))])
    assert read.total < MAX_SEGMENT_BYTES
