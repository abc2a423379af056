"""``jaxcache ci restore``."""

import os
from contextlib import ExitStack
from typing import Annotated, Any

from jaxcache.cli.ci import (
    OutputsFile,
    SummaryFile,
    check_local,
    job_environment,
    note_directory,
    write_outputs,
    write_summary,
)
from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import CacheDir
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import RestoreOptions
from jaxcache.store import is_remote
from jaxcache.store.location import expand_location, locate_cache

EXAMPLE = "jaxcache ci restore cache.jxb --python .venv/bin/python"
EXIT_CODES = (0, 1, 2, 3, 10, 12, 13)


def command(
    source: Annotated[
        str, option("source", TEXT, "A bundle, a directory, or a URL.", metavar="SOURCE")
    ],
    place: CacheDir,
    options: RestoreOptions,
    outputs: OutputsFile = None,
    summary: SummaryFile = None,
    *,
    output: Output,
) -> int:
    """Add the entries that can hit here to the cache, before the job.

    A source that is missing or damaged is a cache miss, not an error.
    """
    target = locate_cache(place.cache_dir).path
    location = expand_location(source)
    check_local(target, location)
    with ExitStack() as opened:
        host: Any = lambda: None  # noqa: E731
        anything = is_remote(location) or location == "-" or os.path.lexists(location)
        if anything and (options.python is not None or not options.everything):
            from jaxcache.warm.child.query import probing_host

            environment = job_environment(options.platform)
            host = opened.enter_context(probing_host(options.python, environment=environment))
        # Imported while the jax of the job starts.
        from jaxcache.cli.ci.places import restore
        from jaxcache.cli.opening import open_handle
        from jaxcache.cli.output import emit
        from jaxcache.render import ci as render

        open_handle(target).refuse_caches_below()
        restored = restore(location, target, options, host)
    emit(output.form, render.restore_view(restored))
    note_directory(restored.cache_dir)
    write_outputs(render.restore_outputs(restored), outputs)
    write_summary(render.restore_summary(restored), summary)
    if options.fail_on_cache_miss and not restored.hit:
        raise JaxcacheError(f"nothing in {source} fits this job", code="cache-miss")
    return ExitCode.PARTIAL if restored.unwritten else ExitCode.DONE
