"""``jaxcache push``."""

from typing import Annotated

import typer

from jaxcache.cli.opening import locate_target, open_cache
from jaxcache.cli.options import Output
from jaxcache.options import Consent, Place
from jaxcache.options.move import PushOptions

EXAMPLE = "jaxcache push s3://bucket/team/jax --exclude 'jit_debug*'"
EXIT_CODES = (0, 1, 2, 3, 10, 11, 12, 130)


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://, gs://, az://, or a path.")],
    place: Place,
    options: PushOptions,
    consent: Consent,
    output: Output,
) -> int:
    """Upload the entries that another cache lacks.

    What is there already is never replaced.
    """
    from jaxcache.cli.removal import require_consent
    from jaxcache.cli.sync import carry_files, carry_over
    from jaxcache.errors import UsageError

    form = output.form
    if options.make_room:
        if options.max_size_bytes is None:
            hint = "say what may be held there"
            raise UsageError("--prune-remote goes with --max-size", hint=hint)
        require_consent(dry_run=consent.dry_run, yes=consent.yes)
    opened = open_cache(place.cache_dir, place.layout)
    if not opened.layout.stands_alone:
        return carry_files(opened, url, options, form, dry_run=consent.dry_run)
    target = locate_target(url, place.layout, opened.layout.name)
    return carry_over(opened, target, options, form, consent)
