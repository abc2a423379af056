"""The rule of the last use in docs/eviction.md, and the seconds that an entry saves."""

import pytest

from jaxcache.core.eviction import (
    FileDates,
    LastUse,
    LastUses,
    find_reads,
    find_writes,
    mean_seconds,
    saved_seconds,
)

NS = 10**9
MS = 10**6
DAY = 86_400 * NS
NOW = 1_700_000_000 * NS


def used(hit_ns: int | None = None, **dates: int | None) -> LastUse:
    rule = LastUses(NOW)
    files = rule.of(FileDates(**{"written_ns": NOW - 40 * DAY, **dates}))
    return rule.with_record(files, hit_ns=hit_ns)


@pytest.mark.parametrize(
    ("dates", "at_ns", "source"),
    [
        ({}, NOW - 40 * DAY, "mtime"),
        ({"read_ns": NOW - 3 * DAY}, NOW - 3 * DAY, "fs-atime"),
        ({"read_ns": NOW - 50 * DAY}, NOW - 40 * DAY, "mtime"),
        ({"stamp_ns": NOW - 20 * DAY, "read_ns": NOW}, NOW, "fs-atime"),
        ({"stamp_ns": NOW - 20 * DAY, "read_ns": NOW - 30 * DAY}, NOW - 20 * DAY, "atime-file"),
        ({"stamp_ns": NOW - 20 * DAY, "hit_ns": NOW - DAY}, NOW - DAY, "ledger"),
        ({"hit_ns": NOW - 2 * DAY, "read_ns": NOW - DAY}, NOW - DAY, "fs-atime"),
        ({"written_ns": NOW - DAY, "hit_ns": NOW - 2 * DAY}, NOW - DAY, "mtime"),
    ],
)
def test_the_latest_date_counts(dates: dict[str, int], at_ns: int, source: str) -> None:
    assert used(**dates) == (at_ns, source)


def test_of_the_dates_of_one_use_the_best_source_is_named() -> None:
    hit_ns = NOW - DAY
    later = {"stamp_ns": hit_ns + NS, "read_ns": hit_ns + 59 * NS}
    assert used(hit_ns=hit_ns, **later) == (hit_ns, "ledger")
    assert used(**later) == (hit_ns + NS, "atime-file")
    assert used(hit_ns=hit_ns, read_ns=hit_ns + 61 * NS) == (hit_ns + 61 * NS, "fs-atime")


@pytest.mark.parametrize("date", ["read_ns", "stamp_ns", "hit_ns"])
def test_a_date_of_the_future_says_nothing(date: str) -> None:
    assert used(**{date: NOW + 2 * DAY}) == (NOW - 40 * DAY, "mtime")
    assert used(**{date: NOW + 3600 * NS})[0] == NOW + 3600 * NS


def test_an_entry_written_in_the_future_is_as_old_as_its_inode() -> None:
    assert used(written_ns=NOW + 9 * DAY, changed_ns=NOW - 3 * DAY) == (NOW - 3 * DAY, "mtime")
    assert used(written_ns=NOW + 9 * DAY, changed_ns=NOW + 9 * DAY) == (0, "mtime")
    assert used(written_ns=-1, changed_ns=NOW - DAY) == (NOW - DAY, "mtime")


def dates_of(*parts: tuple[int, int, int]) -> list[int]:
    """Ascending dates from parts of (first, number, distance)."""
    return sorted(first + n * step for first, number, step in parts for n in range(number))


NIGHT = NOW - DAY // 2
BACKUP = (NIGHT, 40, MS // 10)


READS = {
    "a backup": ([BACKUP], True),
    "later uses": ([BACKUP, (NIGHT + DAY // 4, 7, 30 * MS)], True),
    # which ``relatime`` keeps
    "uses of the day before": ([BACKUP, (NIGHT - DAY // 2, 7, 30 * MS)], True),
    "a file that was left out": ([BACKUP, (NIGHT - 2 * DAY, 1, 1)], False),
    "too few files": ([(NIGHT, 4, MS // 10)], False),
    "a program that loads fast": ([(NIGHT, 40, 5 * MS)], False),
    "a program that loads slowly": ([(NIGHT, 40, 20 * MS)], False),
    "no file": ([], False),
}


@pytest.mark.parametrize(("reads", "is_sweep"), READS.values(), ids=READS)
def test_a_backup_is_told_from_programs(reads: list[tuple[int, int, int]], is_sweep: bool) -> None:
    sweeps = find_reads((NOW - 40 * DAY, read_ns) for read_ns in dates_of(*reads))
    assert bool(sweeps) is is_sweep
    assert (NIGHT in sweeps) is is_sweep
    assert (NIGHT - MS) not in sweeps


def test_files_that_were_written_at_once_were_not_read() -> None:
    assert not find_reads((at_ns, at_ns) for at_ns in dates_of(BACKUP))
    unread = [(NIGHT - 9 * DAY, NIGHT - 9 * DAY)]
    assert not find_reads([*unread, *((0, read_ns) for read_ns in dates_of(BACKUP))])


def test_the_reads_of_a_backup_are_no_uses() -> None:
    rule = LastUses(NOW, reads=find_reads((0, read_ns) for read_ns in dates_of(BACKUP)))
    old = FileDates(written_ns=NOW - 40 * DAY, read_ns=NIGHT)
    assert rule.of(old) == (NOW - 40 * DAY, "mtime")
    assert rule.of(old._replace(read_ns=NIGHT + 3600 * NS)) == (NIGHT + 3600 * NS, "fs-atime")


def test_a_copied_file_was_used_when_the_copied_records_say() -> None:
    rule = LastUses(NOW, writes=find_writes(dates_of(BACKUP)))
    then_ns = NOW - 40 * DAY
    assert rule.of(FileDates(NIGHT, stamp_ns=then_ns)) == (then_ns, "atime-file")
    copy = rule.of(FileDates(NIGHT))
    assert copy == (NIGHT, "mtime")
    assert rule.with_record(copy, hit_ns=None, compiled_ns=then_ns) == (then_ns, "mtime")
    hit_ns = NOW - 9 * DAY
    assert rule.with_record(copy, hit_ns=hit_ns, compiled_ns=then_ns) == (hit_ns, "ledger")


def test_one_older_file_shows_that_the_others_were_not_copied() -> None:
    writes = find_writes(dates_of(BACKUP, (NIGHT - DAY // 9, 1, 1)))
    rule = LastUses(NOW, writes=writes)
    written = rule.of(FileDates(NIGHT))
    assert rule.with_record(written, hit_ns=None, compiled_ns=NOW - 40 * DAY) == written


def test_an_unmeasured_compile_took_as_long_as_the_measured_ones_of_its_header() -> None:
    means = mean_seconds([0.03, 0.09, 2.5])
    assert saved_seconds(0.7, 0.0, means) == 0.7
    assert saved_seconds(None, 0.0, means) == pytest.approx(0.06)
    assert saved_seconds(None, 2.0, means) == 2.5
    assert saved_seconds(None, 3.0, means) == 3.5
    assert saved_seconds(None, None, {}) == 0.5
