"""The pytest plugin: ``--jaxcache``, its marker and its fixture.

pytest imports this module in every run where jaxcache is installed, so it imports nothing but
pytest and the standard library until an option or the fixture asks for more.
"""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jaxcache.inprocess.watch import Observation

#: ``--jaxcache`` without a directory: the cache that JAX, or jaxcache.enable(), would use.
DEFAULT = "default"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("jaxcache", "JAX's compilation cache")
    group.addoption(
        "--jaxcache",
        nargs="?",
        const=DEFAULT,
        metavar="DIR",
        help="Use one compilation cache for all tests, and report the compiles of each; write the "
        "directory as --jaxcache=DIR.",
    )
    group.addoption(
        "--jaxcache-fail-on-miss",
        action="store_true",
        help="Fail tests that miss the cache; implies --jaxcache.",
    )
    group.addoption(
        "--jaxcache-no-write",
        action="store_true",
        help="Write nothing into the cache, so that a retry misses, too; implies --jaxcache.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; it may be used where the plugin is off."""
    config.addinivalue_line(
        "markers", "jaxcache_may_miss: may compile under --jaxcache-fail-on-miss"
    )
    config.addinivalue_line(
        "markers",
        "jaxcache_guard(on='compile', action='raise', threads='this', eager='refuse'): fails where "
        "JAX compiles (see jaxcache.guard)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Begin on request, before any conftest can compile."""
    if "--jaxcache" in args:  # or it would take the next argument, a test, for its directory
        args[args.index("--jaxcache")] = f"--jaxcache={DEFAULT}"
        known_args = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
        early_config.known_args_namespace = known_args
    options = early_config.known_args_namespace
    asserted = options.jaxcache_fail_on_miss or options.jaxcache_no_write
    if options.jaxcache is not None or asserted:
        from jaxcache.errors import JaxcacheError
        from jaxcache.inprocess.pytest_session import PytestSession

        directory = None if options.jaxcache in (None, DEFAULT) else options.jaxcache
        try:
            session = PytestSession(
                directory,
                fail_on_miss=options.jaxcache_fail_on_miss,
                no_write=options.jaxcache_no_write,
            )
        except JaxcacheError as error:
            raise pytest.UsageError(f"--jaxcache: {error}") from None
        early_config.pluginmanager.register(session, "jaxcache-session")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Guard a marked test; not its fixtures, which may warm up."""
    marker = item.get_closest_marker("jaxcache_guard")
    if marker is None:
        yield
        return
    from jaxcache.injected.guard import guard

    with guard(*marker.args, **marker.kwargs):
        yield


@pytest.fixture
def compile_report() -> "Iterator[Observation]":
    """Count the compiles of the test since this fixture was set up; see ``jaxcache.watch()``."""
    from jaxcache.inprocess.watch import Observation

    with Observation() as observation:
        yield observation


def pytest_report_header(config: pytest.Config) -> Any:
    """Name the cache."""
    session = config.pluginmanager.get_plugin("jaxcache-session")
    return f"jaxcache: {session.place}" if session else None
