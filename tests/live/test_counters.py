"""What the layer counts is seen: in `stats` and `top`, by Prometheus, OpenTelemetry, at the end."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from conftest import RunCli

from jaxcache.live.counters import COUNTERS, SUMS, Counters
from jaxcache.live.metrics import Metrics, text_format
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


def test_the_endpoint_listens_on_loopback_and_answers_scrapes() -> None:
    metrics = Metrics(":0", counted())
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read() == text_format(counted())
    with pytest.raises(OSError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/other", timeout=10)
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
        socket.create_connection(("127.0.0.2", metrics.port), timeout=5)  # one address, not all
    with pytest.raises(OSError, match="in use"):
        Metrics(f"127.0.0.1:{metrics.port}", counted())


def test_the_endpoint_listens_on_an_address_of_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    port = Metrics("[::1]:0", counted()).port
    with urllib.request.urlopen(f"http://[::1]:{port}/metrics", timeout=10) as answer:
        assert answer.read() == text_format(counted())


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


def test_opentelemetry_reads_the_counters() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import metrics as api
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    api.set_meter_provider(MeterProvider([reader]))
    Metrics("otel", counted())
    data = reader.get_metrics_data()
    assert data is not None
    points = {
        m.name: m.data.data_points[0].value
        for m in data.resource_metrics[0].scope_metrics[0].metrics
    }
    assert points["jaxcache.live.hits_local"] == 3
    assert points["jaxcache.live.compile_seconds"] == 1.25
    assert set(points) == {f"jaxcache.live.{n}" for n in (*COUNTERS, *SUMS)}


@pytest.mark.jax
def test_a_missing_package_is_one_line(run_live: RunLive) -> None:
    hidden = "import sys\nsys.modules['opentelemetry'] = None\n"
    ran = run_live(hidden + PROGRAM, JAXCACHE_LIVE_METRICS="otel")
    assert ran.err.startswith("jaxcache: live: no metrics: ")
    assert len(ran.err.splitlines()) == 1
    assert ran["written"] > 0


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
    top = json.loads(run_cli("top", "--once", "--json", "-C", cache).stdout)
    assert top["live"] == totals


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
