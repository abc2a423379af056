"""A program that calls what is public, rightly and wrongly; ``make check`` has mypy read it."""

import datetime
import pathlib

import jaxcache
from jaxcache.cache import diff, scan, show
from jaxcache.cache.explain import keys
from jaxcache.cache.move import export_plan, import_bundle
from jaxcache.cache.prune import removable
from jaxcache.cache.verify import check
from jaxcache.layouts import base
from jaxcache.layouts.torch import bundle, explain, units
from jaxcache.layouts.torch import check as torch_check
from jaxcache.layouts.torch import scan as torch_scan
from jaxcache.options.move import SyncOptions

# Each module that a layout names as a group of functions has the protocol of the group.
scans: tuple[base.Scans, base.Scans] = (scan, torch_scan)
shows: tuple[base.Shows, base.Shows] = (show, explain)
checks: tuple[base.Checks, base.Checks] = (check, torch_check)
removals: tuple[base.Removals, base.Removals] = (removable, units)
exports: tuple[base.Exports, base.Exports] = (export_plan, bundle)
imports: tuple[base.Imports, base.Imports] = (import_bundle, bundle)
compared: tuple[base.Sides, base.Sides] = (diff, torch_scan)
explains: tuple[base.Explains, base.Explains] = (keys, explain)


def look(cache: jaxcache.Cache) -> list[str]:
    cache.select("jit_*", filters="size>1MB", sort="size:desc", limit=3, details=False)
    cache.select(colour="red")  # type: ignore[call-arg]
    cache.select(limit="three")  # type: ignore[arg-type]
    hits: int | None = cache.stats(long=True).uses.hits
    page: str = cache.report(pathlib.Path("report.html"), charts=False)
    print(hits, page, b"".join(cache.payload("jit_step")))
    return [*cache.pins(), *(entry.key for entry in cache.entries())]


def change(cache: jaxcache.Cache) -> None:
    used_since = datetime.datetime.now(datetime.UTC)
    pruned = cache.plan_prune(max_size="10GB", unused_for=86_400.0, used_since=used_since)
    removed: int = len(cache.execute(pruned).removed)
    cache.plan_prune(max_size=10_000, policy="fifo")  # type: ignore[arg-type]
    cache.plan_prune(options=jaxcache.PruneOptions(max_entries=3))
    print(removed, cache.execute(cache.plan_seal(recompress=19), jobs=2).sealed)


def move(cache: jaxcache.Cache, other: jaxcache.Cache) -> bool:
    cache.export("cache.jxb", since="old.jxb", sign=["key"])
    other.import_("cache.jxb", on_conflict="keep", accept=lambda plan: bool(plan.writes))
    cache.push(other, include="jit_*", max_size="1GB", trusted=pathlib.Path("keys"))
    whole: bool = cache.carry(cache.plan_push(other, exclude=["jit_debug*"]), other).complete
    copied: bool = cache.copy(other, options=SyncOptions(), dry_run=True).done.complete
    return whole and copied


def run(cache: jaxcache.Cache) -> int:
    code = cache.warm("train.py", "--steps", "1", timeout="10m", tiers=["s3://b/c"]).count("hit")
    cache.warm_function("train.py:step", "f32[8]", static=("n=3",), platform="cpu")
    cache.run("python", "train.py", python="python3")  # type: ignore[call-arg]
    cache.compile("train.recipe", jobs=8, check=True, max_memory=2_000_000_000)
    return code


def main() -> None:
    cache = jaxcache.open(pathlib.Path("cache"), create=True, layout="jax", workers=4)
    try:
        print(jaxcache.__version__, look(cache), move(cache, jaxcache.open()), run(cache))
        change(cache)
    except jaxcache.JaxcacheError as error:
        print(error.code, error.hint)
    with jaxcache.watch() as report, jaxcache.guard(on="compile"):
        print(report.hits, jaxcache.last_misses(), jaxcache.explain_miss(print, 1))
    jaxcache.enable("cache", max_size="1GB")
    print(sum(jaxcache.counters().values()))
