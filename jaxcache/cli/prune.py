"""``jaxcache prune``."""

import time

from jaxcache.cli.opening import open_cache
from jaxcache.cli.options import Output, available_cores, index_folder
from jaxcache.options import Consent, Place, PruneOptions

EXAMPLE = "jaxcache prune --max-size 10GB --unused-for 30d --dry-run"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def command(place: Place, options: PruneOptions, consent: Consent, output: Output) -> int:
    """Remove the least valuable entries until the given limits hold."""
    from jaxcache.cache.prune.survey import plan_cache_prune
    from jaxcache.cli.removal import carry_out, require_consent
    from jaxcache.cli.terminal.progress import progress_bar

    form = output.form
    options.check()
    require_consent(dry_run=consent.dry_run, yes=consent.yes)
    opened = open_cache(place.cache_dir, place.layout)
    with progress_bar("reading entries") as progress:
        plan = plan_cache_prune(
            opened.store,
            opened.layout,
            options,
            keep=options.keep,
            index_folder=index_folder(),
            now_ns=time.time_ns(),
            workers=available_cores(),
            progress=progress,
        )
    return carry_out(opened, plan, form, dry_run=consent.dry_run, yes=consent.yes)
