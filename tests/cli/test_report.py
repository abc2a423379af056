"""``jaxcache report``: one file, safe whatever the names are, and drawn by a real Chromium."""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSERS, Browser, open_browser
from conftest import RunCli, clean_environment
from processes import sh

from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.ledger.write import append, pin
from jaxcache.cache.listing import ReadCache
from jaxcache.cache.overview import forecast_sizes, make_overview
from jaxcache.cache.prune.plan import plan_prune
from jaxcache.cache.prune.removable import count_entries, lost_compile_seconds
from jaxcache.cache.scan import scan
from jaxcache.layouts import load_layout
from jaxcache.options import POLICIES, PruneOptions
from jaxcache.store import open_store
from jaxcache.units import format_install, format_size

needs_charts = pytest.mark.skipif(not find_spec("plotly"), reason="plotly is not installed")
HOSTILE = (
    "</script><img src=x onerror=alert(1)>".replace("/", "\u2215"),
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)<",
    "'\"><svg onload=alert(1)>",
    "%{y}{{SCRIPT}}${alert(1)}",
    "<a href='javascript:alert(1)'>x<a>",
    "]]>--><!--",
    "\u202eevil",
    "訓練",
    "<b>bold<br>",
)
#: Elements that such names spell.
FORBIDDEN = "img, iframe, a[href^=javascript], main b"
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@pytest.fixture
def cache(tmp_path: Path, corpus: Path) -> Path:
    """Two platforms, several keys of a module, names that want to do harm."""
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", target)
    mlp = next((corpus / "0.10.2-cpu-zstd").glob("jit_mlp*-cache"))
    for number, name in enumerate((*HOSTILE, *["jit_mlp"] * 4)):
        shutil.copy(mlp, target / f"{name}-{hashlib.sha256(bytes([number])).hexdigest()}-cache")
    for number, file in enumerate(sorted(target.iterdir())):
        at_ns = time.time_ns() - (number + 1) * 86_400 * 10**9
        os.utime(file, ns=(at_ns, at_ns))
    return target


@pytest.fixture
def report(run_cli: RunCli, tmp_path: Path) -> Callable[..., Path]:
    def write(cache: Path, *options: str) -> Path:
        done = run_cli("report", tmp_path / "out.html", "-C", cache, *options)
        assert done.returncode == 0, done.stderr
        return tmp_path / "out.html"

    return write


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if sys.platform == "linux" and not os.path.exists("/proc/self"):
        pytest.skip("Chromium needs /proc")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("neither Chromium nor Chrome is installed")
    with open_browser(program) as opened:
        yield opened


def events(browser: Browser, method: str) -> list[Any]:
    """What the browser has told of one kind of event."""
    return [event["params"] for event in browser.events if event["method"] == method]


def read_data(page: Path) -> Any:
    match = _DATA.search(page.read_text("utf-8"))
    assert match
    return json.loads(match[1])


def test_the_data_of_the_page_are_those_of_the_cache(
    report: Callable[..., Path], run_cli: RunCli, cache: Path
) -> None:
    data = read_data(report(cache))
    listing = json.loads(run_cli("ls", "--json", "-C", cache).stdout)
    assert data["totals"]["entries"] == listing["summary"]["entries"] == len(HOSTILE) + 12
    assert sum(data["entries"]["size"]) == listing["summary"]["size_bytes"]
    columns = (data["entries"][name] for name in ("module", "platform", "size"))
    rows = zip(*columns, strict=True)
    mine = {(data["modules"][m], data["platforms"][p], size) for m, p, size in rows}
    assert mine == {(e["module"], e["platform"], e["size_bytes"]) for e in listing["entries"]}
    (churn,) = (c for c in data["churn"] if c["module"] == "jit_mlp")
    assert churn["keys"] == 5


@needs_charts
def test_no_entry_is_said_and_one_has_ticks_on_both_axes(
    browser: Browser, report: Callable[..., Path], here: Path, corpus: Path
) -> None:
    here.mkdir()
    browser.open(report(here).as_uri())
    assert "The cache is empty." in browser.evaluate("document.body.innerText")
    assert events(browser, "Runtime.exceptionThrown") == []
    shutil.copy(next((corpus / "0.12.0.1-cpu-zstd").glob("jit_mlp-*")), here)
    browser.open(report(here).as_uri())
    for axis in "xy":
        shown = f"[...document.querySelectorAll('#scatter .{axis}tick text')].length"
        assert browser.evaluate(shown) >= 1
    told = browser.evaluate("document.getElementById('rounded').textContent")
    assert told.startswith("1 entry took under a second, and how long is not known")


def test_the_slider_says_what_prune_does(tmp_path: Path, corpus: Path) -> None:
    from benchmarks.make_cache import make_cache

    make_cache(tmp_path / "cache", 300, source=corpus / "0.12.0.1-cpu-zstd")
    (tmp_path / "cache" / "notes.txt").write_bytes(bytes(50_000))
    store, now_ns = open_store(str(tmp_path / "cache")), time.time_ns()
    keys = sorted(e.key for e in scan(store, deep=True).entries)
    # What only the ledger knows: seconds, uses, a pin; and an entry in quarantine.
    for number, key in enumerate(keys[:200]):
        facts = {"compile_seconds": number % 50 + 0.25}
        append(store, [Event(key, COMPILE, now_ns, facts), Event(key, HIT, now_ns - 7 * 10**9)])
    pin(store, load_layout("jax"), keys[:20], now_ns=now_ns)
    gone = tmp_path / "cache" / ".jaxcache" / "quarantine" / "20260101T000000Z"
    gone.mkdir(parents=True)
    shutil.copy(next((tmp_path / "cache").glob("*-cache")), gone)
    young = next(e.file for e in scan(store).entries if e.key == keys[-1])
    os.utime(tmp_path / "cache" / young, ns=(now_ns, now_ns))
    seen = scan(store, deep=True)
    for policy in POLICIES:
        steps = forecast_sizes(seen, policy, now_ns=now_ns)
        assert steps[0].entries == 0
        assert steps[-1].max_size_bytes >= 50_000
        for step in steps:
            bound = step.max_size_bytes
            options = PruneOptions(max_size_bytes=bound, policy=policy, grace_seconds=0)
            plan = plan_prune(seen, options, cache_dir="", now_ns=now_ns)
            assert step.entries == count_entries(plan.removals)
            assert step.others == len(plan.removals) - step.entries
            assert step.lost_compile_seconds == lost_compile_seconds(plan.removals)
            assert step.freed_bytes == plan.size_bytes_before - plan.size_bytes_after
            assert {r.key for r in step.costliest} <= {r.key for r in plan.removals}
            assert {r.kind for r in step.costliest} <= {"entry"}


def test_no_name_leaves_its_place(report: Callable[..., Path], cache: Path) -> None:
    text = report(cache).read_text("utf-8")
    assert text.count("<script") - text.count("'<script") >= 3
    match = _DATA.search(text)
    assert match
    assert "onerror" in match[1] and not set("<>&") & set(match[1])
    assert "onerror" not in text[: match.start()].rpartition("<style>")[0]


@needs_charts
def test_a_real_browser_draws_it_and_moves_it_without_a_word(
    report: Callable[..., Path], browser: Browser, cache: Path
) -> None:
    gone = cache / ".jaxcache" / "quarantine" / "20260101T000000Z"
    gone.mkdir(parents=True)
    shutil.copy2(next(cache.glob("*-cache")), gone)
    append(open_store(str(cache)), [Event(next(cache.glob("jit_*-cache")).name[:-6], HIT, 1)])
    page = report(cache)
    browser.open(page.as_uri())
    assert browser.evaluate("document.querySelectorAll('.js-plotly-plot').length") == 5
    assert "jit_mlp" in browser.evaluate("document.getElementById('treemap').textContent")
    assert browser.evaluate("document.querySelectorAll('#churned tr').length") > 1
    # Names are text, and the elements that they spell are not there.
    assert browser.evaluate(f"document.querySelectorAll({FORBIDDEN!r}).length") == 0
    assert "<svg onload=alert(1)>" in browser.evaluate("document.body.textContent")
    move = (
        "(to) => { const s = document.getElementById('bound'); s.value = to; "
        "s.dispatchEvent(new Event('input')); return document.getElementById('verdict').innerText }"
    )
    assert browser.evaluate(f"({move})(50)") == "Nothing would be removed."
    lowest = browser.evaluate(f"({move})(0)")
    count = len(HOSTILE) + 12
    assert lowest.startswith(f"{count} entries of {count} and 1 other file would be removed: ")
    totals = browser.evaluate("document.getElementById('totals').textContent")
    assert "under 1 s each" in totals
    assert "1 of 1 recorded request" in totals
    browser.evaluate("document.querySelector('[data-value=seconds]').click()")
    assert "less than a second" in browser.evaluate("document.getElementById('treemap').innerText")
    browser.evaluate("document.querySelector('[data-value=lru]').click()")
    assert browser.evaluate("document.querySelector('[data-value=lru]').ariaPressed") == "true"
    told = {event["method"] for event in browser.events}
    said = {"Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening"}
    assert not told & {*said, "Runtime.exceptionThrown"}
    asked = [e["request"]["url"] for e in events(browser, "Network.requestWillBeSent")]
    assert asked == [page.as_uri()]


def test_the_policy_of_the_page_stops_what_would_leave_it(
    report: Callable[..., Path], browser: Browser, cache: Path
) -> None:
    page = report(cache)
    added = "<img src='https://example.org/x.png'><script>document.title=1</script>"
    page.write_text(page.read_text("utf-8").replace("<body>", f"<body>{added}"))
    browser.open(page.as_uri())
    assert browser.evaluate("document.title") == "jaxcache report"
    assert len(events(browser, "Log.entryAdded")) >= 2
    answered = [e["response"]["url"] for e in events(browser, "Network.responseReceived")]
    assert answered == [page.as_uri()]


def test_only_a_report_is_replaced_without_asking(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "thesis.html"
    mine.write_text("years of work")
    done = run_cli("report", mine, "-C", cache)
    assert (done.returncode, "add --force" in done.stderr) == (2, True)
    assert mine.read_text() == "years of work"
    done = run_cli("report", mine, "-C", cache, "--force")
    held = sum(f.stat().st_size for f in cache.glob("*-cache"))
    sizes = f"({format_size(mine.stat().st_size)}): 22 entries, {format_size(held)}"
    assert (done.returncode, sizes in done.stderr) == (0, True), done.stderr
    assert run_cli("report", mine, "-C", cache).returncode == 0
    assert run_cli("report", tmp_path, "-C", cache, "--force").returncode == 2
    lost = run_cli("report", tmp_path / "no" / "such.html", "-C", cache)
    assert (lost.returncode, "[cannot-write]" in lost.stderr) == (1, True)
    assert not list(tmp_path.glob(".jaxcache-tmp-*"))


def test_without_plotly_the_report_has_bars_tables_and_the_slider(
    tmp_path: Path, cache: Path, browser: Browser
) -> None:
    script = (
        "import sys; sys.modules['plotly'] = None\n"
        "from jaxcache.cli.main import run\n"
        f"sys.exit(run(['report', 'x.html', '-C', {str(cache)!r}]))"
    )
    done = sh([sys.executable, "-c", script], cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.returncode == 0
    assert done.stderr.splitlines()[1:] == [f"charts are left out: {format_install('report')}"]
    browser.open((tmp_path / "x.html").as_uri())
    shown = browser.evaluate("document.body.innerText")
    assert "charts are left out: pip install 'jaxcache[report]'" in shown
    assert "Compile time against size" not in shown
    drawn = read_data(tmp_path / "x.html")["entries"]
    modules = set(zip(drawn["module"], drawn["platform"], strict=True))
    assert browser.evaluate("document.querySelectorAll('#treemap .bar').length") == len(modules)
    move = "s.value = 0; s.dispatchEvent(new Event('input'))"
    browser.evaluate(f"(() => {{ const s = document.getElementById('bound'); {move} }})()")
    assert "would be removed" in browser.evaluate("document.getElementById('verdict').innerText")
    assert browser.evaluate("document.querySelectorAll('#dropped tr').length") > 5
    assert browser.evaluate("document.querySelectorAll('#churned tr').length") > 1
    assert browser.evaluate(f"document.querySelectorAll({FORBIDDEN!r}).length") == 0
    assert events(browser, "Runtime.exceptionThrown") == []


def test_a_cache_of_torch_is_drawn_and_its_forecast_is_that_of_prune(
    run_cli: RunCli, report: Callable[..., Path], torch_cache: Path
) -> None:
    data = read_data(report(torch_cache))
    listing = json.loads(run_cli("ls", "-C", torch_cache, "--json").stdout)
    assert sorted(data["entries"]["size"]) == sorted(e["size_bytes"] for e in listing["entries"])
    assert set(data["modules"]) == {"aotautograd", "fxgraph"}
    layout, store = load_layout("torch"), open_store(str(torch_cache))
    overview = make_overview(ReadCache(store, layout, time.time_ns() + 10**12))
    for _, steps in overview.forecasts:
        assert steps[0].entries <= 2 < steps[-1].entries  # duplicates go in any case
        bound = steps[-1].max_size_bytes
        done = run_cli("prune", "-C", torch_cache, "--max-size", bound, "--dry-run", "--json")
        assert json.loads(done.stdout)["freed_bytes"] == steps[-1].freed_bytes
