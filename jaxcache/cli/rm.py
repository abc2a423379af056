"""``jaxcache rm``."""

import time

from jaxcache.cli.opening import open_cache
from jaxcache.cli.options import Output, available_cores, index_folder
from jaxcache.options import Consent, Place, RemovalOptions

EXAMPLE = "jaxcache rm 'jit_step*' --dry-run"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def command(options: RemovalOptions, place: Place, consent: Consent, output: Output) -> int:
    """Remove entries."""
    from jaxcache.cache.prune.survey import plan_cache_removal
    from jaxcache.cli.removal import carry_out, require_consent
    from jaxcache.cli.terminal.progress import progress_bar

    form = output.form
    opened = open_cache(place.cache_dir, place.layout)
    with progress_bar("reading entries") as progress:
        plan = plan_cache_removal(
            opened.store,
            opened.layout,
            options.keys,
            options.filters,
            index_folder=index_folder(),
            now_ns=time.time_ns(),
            workers=available_cores(),
            progress=progress,
        )
    require_consent(dry_run=consent.dry_run, yes=consent.yes)
    return carry_out(opened, plan, form, dry_run=consent.dry_run, yes=consent.yes)
