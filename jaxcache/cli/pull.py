"""``jaxcache pull``."""

from typing import Annotated

import typer

from jaxcache.cli.opening import locate_target, open_cache
from jaxcache.cli.options import Output
from jaxcache.options import Consent, DryRun, Place
from jaxcache.options.move import PullOptions

EXAMPLE = "jaxcache pull s3://bucket/team/jax --include 'jit_train*'"
EXIT_CODES = (0, 1, 2, 3, 10, 12, 130)


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, or a path.")],
    place: Place,
    options: PullOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Download the entries that this cache lacks.

    Each entry is checked on arrival; a sound one here is never replaced.
    """
    from jaxcache.cli.sync import carry_files, carry_over

    form = output.form
    opened = open_cache(url, place.layout)
    if not opened.layout.stands_alone:
        return carry_files(opened, place.cache_dir, options, form, dry_run=dry.dry_run)
    target = locate_target(place.cache_dir, place.layout, opened.layout.name)
    consent = Consent(dry_run=dry.dry_run, yes=True)
    return carry_over(opened, target, options, form, consent, pulls=True)
