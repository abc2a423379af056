"""``jaxcache prune``."""

import time
from typing import Annotated

import typer

from jaxcache.cli.opening import LayoutName, open_cache
from jaxcache.cli.options import (
    CacheDir,
    DryRun,
    Json,
    Jsonl,
    Quiet,
    Yes,
    available_cores,
    choose_format,
    index_folder,
)  # fmt: skip

EXAMPLE = "jaxcache prune --max-size 10GB --unused-for 30d --dry-run"
EXIT_CODES = (0, 1, 2, 3, 10, 11)


def _text(metavar: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar=metavar, help=text)
    return option


def command(
    cache_dir: CacheDir = None,
    layout: LayoutName = None,
    max_size: Annotated[
        str | None, _text("SIZE", "Bound the whole directory, such as 10GB.")
    ] = None,
    max_entries: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Keep at most N entries.")
    ] = None,
    unused_for: Annotated[
        str | None, _text("DURATION", "What was not used for so long, such as 30d.")
    ] = None,
    older_than: Annotated[str | None, _text("DURATION", "What was written longer ago.")] = None,
    used_since: Annotated[
        str | None,
        _text("TIME|FILE", "Keep only what was used since a time, or since FILE was touched."),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of each module, keep the N entries used last."),
    ] = None,
    policy: Annotated[
        str,
        _text(
            "lru|cost",
            "What goes first under a bound: the least recently used, or the fewest compile "
            "seconds per byte that are likely to be needed again.",
        ),
    ] = "cost",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="KEY", help="Never remove these; repeatable."),
    ] = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="-atime files without entry, broken temporary files.")
    ] = False,
    legacy: Annotated[
        bool, typer.Option("--legacy", help="Entries that only JAX up to 0.4.30 reads.")
    ] = False,
    untuned: Annotated[
        bool,
        typer.Option("--untuned", help="Entries that warm --target made without their GPU."),
    ] = False,
    side_caches: Annotated[
        bool, typer.Option("--side-caches", help="Let the bounds take XLA's own caches too.")
    ] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="What verify moved away.")
    ] = False,
    grace: Annotated[
        str, _text("DURATION", "Leave younger files alone: they may be half written.")
    ] = "60s",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    jsonl: Jsonl = False,
    quiet: Quiet = False,
) -> int:
    """Remove the least valuable entries until the given limits hold."""
    from jaxcache.cache.prune.plan import PruneOptions
    from jaxcache.cache.prune.policy import parse_policy
    from jaxcache.cli.moment import read_moment
    from jaxcache.cli.removal import carry_out, require_consent
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.units import parse_duration_seconds, parse_size_bytes

    form = choose_format(json=json, jsonl=jsonl, quiet=quiet)
    now_ns = time.time_ns()
    options = PruneOptions(
        max_size_bytes=None if max_size is None else parse_size_bytes(max_size),
        max_entries=max_entries,
        unused_for_seconds=None if unused_for is None else parse_duration_seconds(unused_for),
        older_than_seconds=None if older_than is None else parse_duration_seconds(older_than),
        used_since_ns=None if used_since is None else read_moment(used_since, now_ns),
        keep_last=keep_last,
        policy=parse_policy(policy),
        orphans=orphans,
        legacy=legacy,
        untuned=untuned,
        side_caches=side_caches,
        quarantine=quarantine,
        grace_seconds=parse_duration_seconds(grace),
    )
    options.check()
    require_consent(dry_run=dry_run, yes=yes)
    opened = open_cache(cache_dir, layout)
    with progress_bar("reading entries") as progress:
        plan = opened.layout.plan_prune(
            opened.store, options, keep=keep or [], index_folder=index_folder(),
            now_ns=now_ns, workers=available_cores(), progress=progress,
        )  # fmt: skip
    return carry_out(opened, plan, form, dry_run=dry_run, yes=yes)
