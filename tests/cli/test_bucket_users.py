"""``prune`` of a bucket goes by what its clients told of their use."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import error_of
from conftest import RunCli

from jaxcache.cache.ledger.record import PIN, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, compact, pinned_keys
from jaxcache.core.ledger import COMPACT_ABOVE, DAY_NS, day_segment
from jaxcache.core.names import LEDGER_DIR
from jaxcache.store import open_store

if TYPE_CHECKING:
    from object_server import Proxy


@pytest.fixture
def prune(run_cli: RunCli, bucket: str) -> Callable[..., Any]:
    def run(*options: str, code: int = 0) -> Any:
        done = run_cli("prune", "-C", bucket, "--grace", "0s", "-y", "--json", *options)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done

    return run


@pytest.fixture
def filled(run_cli: RunCli, bucket: str, local: Path) -> list[str]:
    """Seven entries in the bucket; their keys."""
    shutil.rmtree(local / ".jaxcache", ignore_errors=True)
    assert run_cli("push", bucket, "-C", local).returncode == 0
    return sorted(p.name.removesuffix("-cache") for p in local.glob("*-cache"))


def tell(bucket: str, client: int, days_ago: int, keys: list[str]) -> None:
    """Write what a client leaves at the end of a day."""
    day = time.time_ns() // DAY_NS - days_ago
    at_ns = time.time_ns() - days_ago * DAY_NS
    hits = [{"key": key, "kind": "hit", "at_ns": at_ns, "count": 2} for key in keys]
    text = "".join(f"{json.dumps(hit)}\n" for hit in hits)
    name = f"{LEDGER_DIR}/{day_segment(day, f'{client:016x}')}"
    open_store(bucket).write(name, [text.encode()])


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_what_clients_use_outlives_what_nobody_uses(
    bucket: str, filled: list[str], prune: Callable[..., Any], policy: str
) -> None:
    time.sleep(1.1)  # the times of objects are whole seconds
    tell(bucket, 1, 0, filled[:2])
    tell(bucket, 2, 0, filled[1:4])
    document = prune("--max-entries", "4", "--policy", policy)
    assert {r["key"] for r in document["removed"]} == set(filled[4:])
    assert document["evidence"] == {"mtime": 3}


def test_rules_about_use_need_a_record_of_it(
    run_cli: RunCli, bucket: str, filled: list[str], prune: Callable[..., Any]
) -> None:
    time.sleep(1.1)
    for rule in (("--unused-for", "1s"), ("--used-since", "0s")):
        done = run_cli("prune", "-C", bucket, "--grace", "0s", "-y", "--json", *rule)
        assert (done.returncode, error_of(done)) == (1, "no-record-of-use")
    tell(bucket, 1, 0, filled[:2])
    assert {r["key"] for r in prune("--used-since", "1s")["removed"]} <= set(filled[2:])


def test_prune_makes_one_segment_of_the_days_that_are_over(
    bucket: str, filled: list[str], prune: Callable[..., Any], s3: "Proxy"
) -> None:
    """Requests grow with the clients of the days since the last prune, not with all of them."""
    clients = COMPACT_ABOVE + 10
    for client in range(clients):
        tell(bucket, client, 3, filled[:4])
    tell(bucket, 0, 0, filled[:1])
    assert len(prune("--max-entries", "6", "--policy", "lru")["removed"]) == 1
    ledger = Ledger.load(open_store(bucket))
    record = ledger.record(filled[1])
    assert record is not None
    assert record.hits == 2 * clients
    today = [name for name in ledger.segments if int(name.partition("-")[0]) % DAY_NS == 0]
    assert len(ledger.segments) <= 4
    assert len(today) >= 1
    s3.seen.clear()
    prune("--max-entries", "5", "--policy", "lru")
    assert s3.counts().get("get", 0) <= 10


def test_pins_that_were_compacted_since_the_listing_count(bucket: str, filled: list[str]) -> None:
    store = open_store(bucket)
    for key in filled[:2]:
        assert append(store, [Event(key, PIN, time.time_ns())])
    listed = list(store.list(LEDGER_DIR))
    compact(store)
    assert {*store.list(LEDGER_DIR)}.isdisjoint(listed)
    assert sorted(pinned_keys(Ledger.load(store, listed=listed))) == filled[:2]
