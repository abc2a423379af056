"""What the layer counts is seen: in `stats`, by Prometheus, by the program, at the end."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import REPOSITORY, RunCli

from jaxcache.live.process import COUNTERS, SUMS, Counters, Metrics, text_format
from live.conftest import PROGRAM, RunLive, entries


def counted() -> Counters:
    """Some counts."""
    counters = Counters()
    counters.count("hits_local", 3)
    counters.add("compile_seconds", 1.25)
    counters.hit_in('s3://a/"b"\\c')
    return counters


def test_the_text_format_has_every_counter_with_help_and_type() -> None:
    counters = counted()
    counters.add("read_bytes", 12_345_678_901_234)
    text = text_format(counters).decode()
    for name in (*COUNTERS, *SUMS):
        full = f"jaxcache_live_{name}_total"
        assert f"# HELP {full} " in text
        assert f"# TYPE {full} counter\n{full} " in text
    samples = {line.removeprefix("jaxcache_live_") for line in text.splitlines()}
    assert samples >= {
        "hits_local_total 3",
        "compile_seconds_total 1.25",
        "read_bytes_total 12345678901234",
        'tier_hits_total{tier="s3://a/\\"b\\"\\\\c"} 1',
    }


def test_the_documented_counters_exist() -> None:
    page = (REPOSITORY / "docs" / "live.md").read_text()
    text = page.partition("## Counters")[2].partition("## Take it away")[0]
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", text.partition("Among them:")[2]))
    assert named <= {*COUNTERS, *SUMS}
    assert len(named) > 10


def test_the_closing_line_has_what_is_not_zero() -> None:
    counters = Counters()
    counters.hit_in("/a")
    assert counters.summary().startswith("0 hits (0 local, 1 from /a), 0 misses, ")
    counters = Counters()
    counters.count("hits_local", 3)
    counters.add("compile_seconds", 1.25)
    assert counters.summary() == "3 hits, 0 misses, 0.00 s reading, 1.2 s compiling"
    for name, number in (("hits_tier", 2), ("misses", 1), ("evicted", 4), ("rotten", 5)):
        counters.count(name, number)
    for tier in ("/nfs", "/a", "/nfs"):
        counters.hit_in(tier)
    assert counters.summary() == (
        "5 hits (3 local, 1 from /a, 2 from /nfs), 1 misses, 5 damaged, 4 evicted, "
        "0.00 s reading, 1.2 s compiling"
    )


def test_counts_are_events_of_jax_and_its_listeners_stop_nobody() -> None:
    events: list[tuple[object, ...]] = []

    def listen(*event: object) -> None:
        events.append(event)
        raise RuntimeError("a listener of the user's")

    counters = Counters()
    counters.count("misses")  # before jax is imported
    monitoring = {"record_event": listen, "record_event_duration_secs": listen}
    counters.tell(SimpleNamespace(**monitoring))
    counters.count("misses")
    counters.add("miss_seconds", 0.5)
    counters.add("read_bytes", 7)
    assert counters.snapshot() == {"misses": 2, "miss_seconds": 0.5, "read_bytes": 7}
    assert events == [("/jaxcache/live/misses",), ("/jaxcache/live/miss_seconds", 0.5)]
    counters.reset()
    assert counters.snapshot() == {}


def test_totals_have_each_count_once(tmp_path: Path) -> None:
    counters = counted()
    for _ in range(2):
        counters.save_totals(str(tmp_path))
    counters.count("hits_local")
    counters.save_totals(str(tmp_path))
    counted().save_totals(str(tmp_path))
    totals = json.loads((tmp_path / ".jaxcache" / "live" / "totals").read_text())
    assert totals == {"hits_local": 7, "compile_seconds": 2.5}


@pytest.mark.parametrize("number", ["Infinity", "1" + "0" * 400, "-5"])
def test_absurd_totals_are_replaced(tmp_path: Path, run_cli: RunCli, number: str) -> None:
    directory = tmp_path / "cache" / ".jaxcache" / "live"
    directory.mkdir(parents=True)
    (directory / "totals").write_text(f'{{"hits_local": {number}, "evicted": 2}}')
    assert run_cli("stats", "--json", "-C", tmp_path / "cache").returncode == 0
    counted().save_totals(str(tmp_path / "cache"))
    kept = json.loads((directory / "totals").read_text())
    assert (kept["hits_local"], kept["evicted"]) == (3, 2)


@pytest.mark.parametrize("target", ["0.0.0.0:9464", ":9464", "otel"])
def test_what_is_not_a_path_is_no_file_of_metrics(target: str) -> None:
    with pytest.raises(ValueError, match="must be a file with its directory"):
        Metrics(target, counted())


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere/jax.prom cannot be written"):
        Metrics(str(tmp_path / "nowhere" / "jax.prom"), counted())


@pytest.mark.jax
def test_a_program_reads_its_own_counters(run_live: RunLive) -> None:
    before = "import jaxcache\nassert jaxcache.counters() == {}\n"
    after = "result = jaxcache.counters()\n"
    ran = run_live(before + PROGRAM + after, JAXCACHE_LIVE_METRICS=":9464")
    counters = ran.result
    assert set(counters) == {*COUNTERS, *SUMS}
    assert counters == dict.fromkeys(counters, 0) | ran.document["counts"]
    assert counters["written"] > 0 == counters["evicted"]
    assert ran.err.startswith("jaxcache: live: no metrics: metrics must be a file ")


#: Another process saves its totals while this one ends.
BUSY = """
import os, subprocess
directory = os.environ["JAX_COMPILATION_CACHE_DIR"] + "/.jaxcache/live"
os.makedirs(directory, exist_ok=True)
hold = "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.lockf(file, 2)"
hold += "; print(flush=True); time.sleep(1)"
holder = subprocess.Popen([sys.executable, "-c", hold, directory + "/totals.lock"], stdout=-1)
holder.stdout.readline()
"""


@pytest.mark.jax
def test_every_view_shows_the_counts(run_live: RunLive, run_cli: RunCli, tmp_path: Path) -> None:
    """Those of processes that end at once, too."""
    cache = tmp_path / "cache"
    file = {"JAXCACHE_LIVE_METRICS": str(tmp_path / "jax-{pid}.prom")}
    first = run_live(**file)
    damaged = entries(cache, "first")[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    second = run_live(PROGRAM + BUSY, **file, JAXCACHE_LIVE_SUMMARY="1")
    number = len(entries(cache))
    # The closing line, and the file of each process.
    hits = second["hits_local"]
    (line,) = (line for line in second.err.splitlines() if line.startswith("jaxcache: "))
    assert line.startswith(f"jaxcache: {hits} hits, 1 misses, 1 replaced, 1 damaged, ")
    texts = [path.read_text() for path in tmp_path.glob("jax-*.prom")]
    for counter, counts in (("written", (0, number)), ("rotten", (0, 1))):
        lines = [f"jaxcache_live_{counter}_total {count}\n" for count in counts]
        assert [sum(line in text for text in texts) for line in lines] == [1, 1]
    # The totals of all processes.
    totals = json.loads(run_cli("stats", "-C", cache, "--json").stdout)["live"]
    for name in ("misses", "written", "rotten", "replaced", "hits_local"):
        assert totals[name] == first[name] + second[name], name
    assert totals["compile_seconds"] > 0
    page = run_cli("stats", "-C", cache).stdout.splitlines()
    assert "live\trotten\t1\t\t" in page
    prometheus = run_cli("stats", "-C", cache, "--prometheus").stdout
    assert re.search(r'^jaxcache_live\{cache_dir="[^"]+",counter="rotten"\} 1$', prometheus, re.M)
