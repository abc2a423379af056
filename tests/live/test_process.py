"""What the layer counts is seen: in `stats`, by Prometheus, by the program, at the end."""

import json
import re
from pathlib import Path

import pytest
from conftest import RunCli

from jaxcache.live.process import COUNTERS, SUMS, Counters, Metrics, text_format
from live.conftest import PROGRAM, RunLive, entries

SAMPLE = re.compile(r'jaxcache_live_(\w+?)(?:\{tier="([^"]*)"\})? (\S+)')


def samples(text: str) -> dict[str, float]:
    """Prometheus' text format, read."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    matches = [SAMPLE.fullmatch(line) for line in lines]
    assert all(matches), text
    return {m[2] or m[1]: float(m[3]) for m in matches if m}


def counted() -> Counters:
    """Some counts."""
    counters = Counters()
    counters.count("hits_local", 3)
    counters.add("compile_seconds", 1.25)
    counters.hit_in('s3://a/"b"\\c')
    return counters


def test_the_text_format_has_every_counter_with_help_and_type() -> None:
    text = text_format(counted()).decode()
    for name in (*COUNTERS, *SUMS):
        full = f"jaxcache_live_{name}_total"
        assert f"# HELP {full} " in text
        assert f"# TYPE {full} counter\n{full} " in text
    assert "jaxcache_live_hits_local_total 3\n" in text
    assert "jaxcache_live_compile_seconds_total 1.25\n" in text
    counters = Counters()
    counters.add("read_bytes", 12_345_678_901_234)
    assert "jaxcache_live_read_bytes_total 12345678901234\n" in text_format(counters).decode()
    assert 'tier_hits_total{tier="s3://a/\\"b\\"\\\\c"} 1\n' in text


@pytest.mark.parametrize("number", ["Infinity", "1" + "0" * 400, "-5"])
def test_absurd_totals_are_replaced_and_stop_nobody(
    tmp_path: Path, run_cli: RunCli, number: str
) -> None:
    directory = tmp_path / "cache" / ".jaxcache" / "live"
    directory.mkdir(parents=True)
    (directory / "totals").write_text(f'{{"hits_local": {number}, "evicted": 2}}')
    assert run_cli("stats", "--json", "-C", tmp_path / "cache").returncode == 0
    counted().save_totals(str(tmp_path / "cache"))
    kept = json.loads((directory / "totals").read_text())
    assert (kept["hits_local"], kept["evicted"]) == (3, 2)


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere/jax.prom cannot be written"):
        Metrics(str(tmp_path / "nowhere" / "jax.prom"), counted())


@pytest.mark.jax
@pytest.mark.parametrize(
    "value", ["0.0.0.0:9464", *(pytest.param(v, marks=pytest.mark.slow) for v in (":9464", "otel"))]
)
def test_what_is_not_a_path_is_refused_in_one_line(
    run_live: RunLive, tmp_path: Path, value: str
) -> None:
    ran = run_live(JAXCACHE_LIVE_METRICS=value)
    assert ran.err == (
        "jaxcache: live: no metrics: metrics must be a file with its directory, "
        f"such as /run/jax-{{pid}}.prom (got {value!r})\n"
    )
    assert ran["written"] > 0
    assert not (tmp_path / value).exists()


@pytest.mark.jax
def test_a_program_reads_its_own_counters(run_live: RunLive) -> None:
    before = "import jaxcache\nassert jaxcache.counters() == {}\n"
    after = "result = jaxcache.counters()\n"
    ran = run_live(before + PROGRAM + after)
    counters = ran.result
    assert set(counters) == {*COUNTERS, *SUMS}
    assert counters == dict.fromkeys(counters, 0) | ran.document["counts"]
    assert counters["written"] > 0 == counters["evicted"]
    assert run_live(before + PROGRAM + after, JAXCACHE_LIVE="0").result == {}


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
def test_processes_that_end_at_once_all_count(run_live: RunLive, tmp_path: Path) -> None:
    ran = run_live(PROGRAM + BUSY)
    totals = json.loads((tmp_path / "cache" / ".jaxcache" / "live" / "totals").read_text())
    assert totals["written"] == ran["written"] > 0


@pytest.mark.jax
def test_every_view_shows_what_two_runs_have_counted(
    run_live: RunLive, run_cli: RunCli, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    file = {"JAXCACHE_LIVE_METRICS": str(tmp_path / "jax-{pid}.prom")}
    first = run_live(**file)
    damaged = entries(cache, "first")[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    second = run_live(**file, JAXCACHE_LIVE_SUMMARY="1")
    number = len(entries(cache))
    # The closing line, and the file of each process.
    hits = second["hits_local"]
    said = [line for line in second.err.splitlines() if line.startswith("jaxcache: ")]
    (line,) = said
    assert line.startswith(f"jaxcache: {hits} hits, 1 misses, 1 replaced, 1 damaged, ")
    files = [samples(p.read_text()) for p in tmp_path.glob("jax-*.prom")]
    assert sorted(f["written_total"] for f in files) == [0, number]
    assert sorted(f["rotten_total"] for f in files) == [0, 1]
    listed = json.loads(run_cli("ls", "-C", cache, "--json").stdout)["entries"]
    used = {e["key"]: e["last_used_from"] for e in listed}
    assert used.pop(damaged.name.removesuffix("-cache")) == "mtime"
    assert set(used.values()) == {"ledger"}
    # The totals of all processes.
    totals = json.loads(run_cli("stats", "-C", cache, "--json").stdout)["live"]
    for name in ("misses", "written", "rotten", "replaced", "hits_local"):
        assert totals[name] == first[name] + second[name], name
    assert totals["compile_seconds"] > 0
    page = run_cli("stats", "-C", cache).stdout.splitlines()
    assert "live\trotten\t1\t\t" in page
    prometheus = run_cli("stats", "-C", cache, "--prometheus").stdout
    assert re.search(r'^jaxcache_live\{cache_dir="[^"]+",counter="rotten"\} 1$', prometheus, re.M)


@pytest.mark.jax
def test_where_tells_the_live_settings_of_each_process_and_who_made_them(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {
        "JAXCACHE_LIVE": "1",
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PLATFORMS": "cpu",
        "PYTHONWARNINGS": "",
    }
    command = ("where", "--json", "--", jax_python, tmp_path / "program.py")
    done = run_cli(*command, env=env)
    (process,) = json.loads(done.stdout)["processes"]
    assert process["live"] == {
        "enabled": {"value": True, "origin": "JAXCACHE_LIVE"},
        "max-size": {"value": 1_000_000_000, "origin": "JAXCACHE_LIVE_MAX_SIZE"},
    }
    plain = run_cli(*command, env=env | {"JAXCACHE_LIVE": "0"})
    assert json.loads(plain.stdout)["processes"][0]["live"] is None
