"""One run of pytest with the cache on: an account of each test, and a table at the end."""

import os
import sys
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from jaxcache.injected.hook import when_imported
from jaxcache.inprocess.watch import Observation, find_listener
from jaxcache.render.columns import count_column, seconds_column, text_column
from jaxcache.render.typeset import set_blocks
from jaxcache.render.view import Block, Column, Table
from jaxcache.store import is_remote, make_store
from jaxcache.store.location import expand_location, locate_cache
from jaxcache.units import format_count, format_duration
from jaxcache.warm.report.report import Module, Report

#: The facts reported of each test; as JUnit properties ``jaxcache_NAME``.
NAMES = (
    "compile_requests",
    "hits",
    "written",
    "skipped",
    "refused",
    "compile_seconds",
    "retrieval_seconds",
)
_PREFIX = "jaxcache_"
_SHOWN_TESTS = 20
_SHOWN_MISSES = 5
_FILLED = (
    "\nthe misses are in the cache now, so a retry passes (--jaxcache-no-write leaves the cache "
    "unchanged)"
)
Counts = Counter[str]


class PytestSession:
    """The plugin while it is on; under xdist there is one in each worker and one at the terminal.

    Args:
        directory: a path or URL; None for the cache that JAX would use.
        fail_on_miss: fail tests that compile what the cache has not.
        no_write: leave the cache as it is.

    Raises:
        UsageError: ``bad-url``
        NoCacheError: the directory cannot be made.
    """

    def __init__(self, directory: str | None, *, fail_on_miss: bool, no_write: bool) -> None:
        self._directory = directory and expand_location(directory, os.getcwd())
        self._fail_on_miss = fail_on_miss
        self._no_write = no_write
        self._tests: dict[str, Counts] = {}
        self._outside = Counts()
        self._now = Observation()
        self._failed = False
        self._trouble: dict[str, None] = {}
        self._listener: Any = None
        if self._directory:  # also for the processes that tests start
            if not is_remote(self._directory):
                make_store(self._directory)
            os.environ["JAX_COMPILATION_CACHE_DIR"] = self._directory
        when_imported(self._listen)

    @property
    def place(self) -> str:
        """The cache; before jax is imported, the requested one."""
        try:
            if "jax" in sys.modules:
                return str(sys.modules["jax"].config.jax_compilation_cache_dir)
            return self._directory or locate_cache(None).path
        except Exception as error:
            return str(error)

    def _listen(self, jax: Any) -> None:
        """Listen to the jax that has just been imported, and switch its cache on."""
        try:
            self._listener = find_listener(jax, self._take)
            self._listener.no_write = self._no_write
        except Exception as error:
            self._trouble[str(error)] = None
        try:
            from jaxcache.live.layer import enable

            if self._directory:
                jax.config.update("jax_compilation_cache_dir", self._directory)
            with warnings.catch_warnings():  # the tests' own filters may make them errors
                warnings.simplefilter("ignore")
                enable()
        except Exception as error:
            self._trouble[f"the cache is not enabled: {error}"] = None

    def _take(self, event: "dict[str, Any]") -> None:
        if event.get("event") in ("trouble", "unobserved"):
            self._trouble[str(event.get("detail"))] = None
        self._now.take(event)

    def _count(self) -> Counts:
        """Count what was compiled since the last change of tests; never raises."""
        try:
            self._now.keep()
            return _counts(self._now.report)
        except Exception as error:
            self._trouble[f"{type(error).__name__}: {error}"] = None
            return Counts()

    # One test ---------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Count for this test; what is compiled between tests is counted apart."""
        self._outside += self._count()
        self._now = Observation()
        self._failed = False
        try:
            return (yield)
        finally:
            self._now = Observation()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fail a test for its misses."""
        result = yield
        self._check(item)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fail a test for misses during its teardown."""
        result = yield
        if not self._failed and self._now.misses():
            self._check(item)
        return result

    def _check(self, item: pytest.Item) -> None:
        if not self._fail_on_miss or item.get_closest_marker("jaxcache_may_miss"):
            return
        if self._trouble:
            self._failed = True
            trouble = next(iter(self._trouble))
            pytest.fail(f"not every compile could be observed: {trouble}", pytrace=False)
        misses = self._now.misses()
        if not misses:
            return
        self._failed = True
        lines = [_describe(m) for m in misses.modules[:_SHOWN_MISSES]]
        if more := len(misses.modules) - len(lines):
            lines.append(f"and {more} more")
        pytest.fail(
            f"{format_count(len(misses), 'compile')} not served by the cache:\n  "
            + "\n  ".join(lines)
            + ("\nrun once without --jaxcache-no-write to fill it" if self._no_write else _FILLED)
            + ", or mark the test with jaxcache_may_miss",
            pytrace=False,
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        """Add the counts to the test's report, for JUnit files and the controller of xdist."""
        if call.when == "teardown":
            properties = [p for p in item.user_properties if not p[0].startswith(_PREFIX)]
            counts = self._count()
            if counts["compile_requests"]:
                properties += [(_PREFIX + name, round(counts[name], 6)) for name in NAMES]
            item.user_properties[:] = properties

    # The end ----------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the counts of each test, also from the workers of xdist."""
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "teardown" and _PREFIX + NAMES[0] in properties:
            counts = Counts({name: properties[_PREFIX + name] for name in NAMES})
            self._tests.setdefault(report.nodeid, Counts()).update(counts)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send a worker's counts from outside of tests to the controller of xdist."""
        self._outside += self._count()
        self._now = Observation()
        output = getattr(session.config, "workeroutput", None)
        if output is None and self._listener is not None:
            # Its end records this run, of which a worker of xdist runs a part.
            Observation().start().stop()
        if output is not None:
            output["jaxcache"] = {"outside": dict(self._outside), "trouble": [*self._trouble]}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts that a worker sent."""
        sent = getattr(node, "workeroutput", {}).get("jaxcache", {})
        self._outside.update(sent.get("outside", {}))
        self._trouble.update(dict.fromkeys(sent.get("trouble", ())))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        width = terminalreporter._tw.fullwidth
        verbose = terminalreporter.config.get_verbosity() > 0
        terminalreporter.section("jaxcache")
        for line in set_blocks(self._page(verbose), width=width, color=False):
            terminalreporter.write_line(line)

    def _page(self, verbose: bool) -> Iterator[Block]:
        total = Counts(self._outside)
        for counts in self._tests.values():
            total.update(counts)
        yield _headline(total, self.place)
        rows = sorted(self._tests.items(), key=lambda row: (-row[1]["compile_seconds"], row[0]))
        if self._outside["compile_requests"]:
            rows.append(("outside of tests", self._outside))
        if rows:
            limit = None if verbose else _SHOWN_TESTS
            yield Table(_columns(total), rows, limit=limit, more="; -v shows them")
        for trouble in self._trouble:
            yield f"note: {trouble}"

    def pytest_unconfigure(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.remove(self._take)


def _counts(report: Report) -> Counts:
    counts = Counts({name: getattr(report, name) for name in NAMES})
    counts["skipped"] += report.uncacheable + report.errors
    return counts


def _headline(total: Counts, place: str) -> str:
    if not total["compile_requests"]:
        return f"no compiles · {place}"
    refused = f"{total['refused']} refused · " if total["refused"] else ""
    return (
        f"{total['hits']} of {total['compile_requests']} hits · {total['written']} written · "
        f"{refused}{format_duration(total['compile_seconds'])} compiling · "
        f"{format_duration(total['retrieval_seconds'])} retrieving · {place}"
    )


def _columns(total: Counts) -> list[Column]:
    def of(name: str) -> Any:
        return lambda row: row[1][name]

    def show(seconds: float) -> str:
        return f"{seconds:.2f} s" if seconds else ""

    return [
        text_column("TEST", lambda row: row[0], elastic=True, least=30),
        count_column("COMPILES", of("compile_requests")),
        count_column("HITS", of("hits")),
        count_column("WRITTEN", of("written")),
        count_column("SKIPPED", of("skipped")),
        *([count_column("REFUSED", of("refused"))] if total["refused"] else ()),
        seconds_column(of("compile_seconds"), show),
        seconds_column(of("retrieval_seconds"), show, "RETRIEVE"),
    ]


def _describe(module: Module) -> str:
    place = f" ({module.file}:{module.line})" if module.file and module.line else ""
    why = module.cause or module.detail or module.reason
    return f"{module.module}{place}: {why}"
