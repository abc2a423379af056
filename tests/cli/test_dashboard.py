"""``examples/grafana``: each query asks for what ``stats --prometheus`` exports."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli

from jaxcache.cache.ledger.record import HIT, MISS, Event
from jaxcache.cache.ledger.write import append
from jaxcache.live.process import COUNTERS, SUMS
from jaxcache.store import open_store

DASHBOARD: dict[str, Any] = json.loads(
    (REPOSITORY / "examples" / "grafana" / "jaxcache.json").read_text()
)
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)(=~|!=|!~|=)"((?:[^"\\]|\\.)*)"')
#: Labels whose values the exporter writes itself.
_FIXED = ("counter", "kind")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.fixture
def exported(run_cli: RunCli, capped_cache: Path) -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric, of a cache with uses and live totals."""
    store = open_store(str(capped_cache))
    key = min(path.name for path in capped_cache.glob("*-cache")).removesuffix("-cache")
    append(store, [Event(key, kind, 10**18, {"compile_seconds": 2.5}) for kind in (HIT, MISS)])
    (capped_cache / "jit_torn-cache").write_bytes(b"")
    quarantine = capped_cache / ".jaxcache" / "quarantine" / "20260101T000000Z"
    quarantine.mkdir(parents=True)
    (quarantine / f"{key}-cache").write_bytes(b"torn")
    live = capped_cache / ".jaxcache" / "live"
    live.mkdir()
    (live / "totals").write_text(json.dumps(dict.fromkeys([*COUNTERS, *SUMS], 1)))
    text = run_cli("stats", "--prometheus", "-C", capped_cache).stdout
    found: dict[str, dict[str, set[str]]] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            labels = found.setdefault(match[1], defaultdict(set))
            for name, _, value in _LABEL.findall(match[2] or ""):
                labels[name].add(value)
    return found


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_asks_for_what_is_exported(
    query: str, exported: dict[str, dict[str, set[str]]]
) -> None:
    metrics = set(re.findall(r"\bjaxcache_\w+", query))
    assert metrics
    assert metrics <= exported.keys()
    for metric, matchers in re.findall(r"\b(jaxcache_\w+)\{([^}]*)\}", query):
        for label, operator, value in _LABEL.findall(matchers):
            assert label in exported[metric]
            if label in _FIXED:
                wanted = value.split("|") if operator == "=~" else [value]
                assert set(wanted) <= exported[metric][label]
    (metric, *_) = sorted(metrics)
    for label in re.findall(r"\bby \((\w+)\)", query):
        assert label in exported[metric]
    assert query.count("(") == query.count(")")


def test_every_panel_is_complete_and_no_two_overlap() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        squares = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not squares & covered
        covered |= squares
    for panel in panels():
        assert panel["title"]
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_name_in_a_query_is_a_variable() -> None:
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    asked = {name for query in queries() for name in re.findall(r"\$(\w+)", query)}
    assert asked - {"__rate_interval"} <= known
