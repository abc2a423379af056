"""``jaxcache export`` and ``import``; what they and ``copy`` print, ask and check."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from jaxcache.cache.archive import write_file
from jaxcache.cache.bundle.compat import XLA_CACHES, Compatibility, Host, forecast
from jaxcache.cache.bundle.format import Bundle, is_bundle, open_bundle, read_whole
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move.bundle_file import check_file_name, check_file_path, spool, written_bundle
from jaxcache.cache.move.export_plan import ExportPlan
from jaxcache.cache.move.import_bundle import after_export
from jaxcache.cache.move.plan import Outcome, Plan
from jaxcache.cache.trust import (
    Verdict,
    check_signatures,
    load_trusted,
)
from jaxcache.cli.opening import open_handle, open_target
from jaxcache.cli.options import Format, Output
from jaxcache.cli.output import emit, note
from jaxcache.cli.terminal import progress_bar
from jaxcache.errors import (
    ExitCode,
    JaxcacheError,
    NoJaxError,
    UntrustedError,
    UsageError,
)
from jaxcache.layouts import load_layout
from jaxcache.model import Problem
from jaxcache.options import CacheLocation, DryRun
from jaxcache.options.declare import TEXT, option
from jaxcache.options.move import ArrivalOptions, CompatibilityOptions, ExportOptions, ImportOptions
from jaxcache.render.move import (
    export_view,
    forecast_line,
    forecast_note,
    import_view,
    left_out_lines,
    trust_lines,
)
from jaxcache.store.location import config_is_set

if TYPE_CHECKING:
    from jaxcache.api import Cache

EXAMPLES = {
    "export": "jaxcache export cache.jxb",
    "import_": "jaxcache import cache.jxb --require-compatible",
}
EXIT_CODES = {
    "export": (0, 1, 2, 3, 10, 12),
    "import_": (0, 1, 2, 3, 10, 12, 13),
}


def export(
    file: Annotated[
        str, option("file", TEXT, "The bundle to write; - for stdout.", metavar="FILE")
    ],
    place: CacheLocation,
    options: ExportOptions,
    output: Output,
) -> int:
    """Write entries to one compressed, checkable file.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    form = output.form
    if file == "-" and (form is Format.TABLE or form.is_json or form is Format.KEYS):
        raise UsageError(
            "a bundle on standard output needs a pipe, without --json, --jsonl or --quiet"
        )
    if file != "-":
        check_file_name(file)
    cache = open_handle(place)
    plan = cache.plan_export(options=options)
    return deliver(cache, plan, file, form, options.level, options.sign)


def import_(
    file: Annotated[
        str,
        option(
            "file",
            TEXT,
            "A bundle, or artifacts saved by torch.compiler; - for stdin.",
            metavar="FILE",
        ),
    ],
    place: CacheLocation,
    options: ImportOptions,
    needed: CompatibilityOptions,
    dry: DryRun,
    output: Output,
) -> int:
    """Check a bundle, and add its entries to a cache.

    The bundle is checked from end to end before anything is written. With --python,
    --require-compatible or --dry-run a jax is started, and what will hit here is forecast.

    JAX 0.4.36 to 0.10 puts the cache's path into its keys: keep the same path, or fill the cache
    from the start with jaxcache warm --portable SCRIPT and use it with --portable, too. For plain
    JAX, set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in both places.
    """
    required = needed.require_compatible
    python = needed.python
    with ExitStack() as opened:
        bundle, left_out = opened.enter_context(open_import(file))
        layout = bundle.manifest.layout
        verdict = check_trust(bundle, required=options.require_signed)
        host: Callable[[], Any] = lambda: None  # noqa: E731
        asks_jax = layout == "jax" and (required or dry.dry_run or python is not None)
        if asks_jax:
            from jaxcache.warm.child.query import probing_host

            host = opened.enter_context(probing_host(python, required=required))
        code = receive(
            open_target(place.cache_dir, place.layout, layout),
            bundle,
            output.form,
            options,
            verdict=verdict,
            host=host,
            needed=needed,
            dry_run=dry.dry_run,
            expect=asks_jax,
        )
    return ExitCode.PARTIAL if left_out and code == ExitCode.DONE else code


def deliver(
    cache: "Cache",
    plan: ExportPlan,
    file: str,
    form: Format,
    level: int | None,
    sign: Sequence[str],
) -> ExitCode:
    """Write the bundle and report it; return the exit code."""
    note_warnings(plan)
    written = cache.write_bundle(plan, file, level=level, sign=sign)
    note(*left_out_lines(written.left))
    emit(form, export_view(written))
    return ExitCode.PARTIAL if written.left_out else ExitCode.DONE


def note_warnings(plan: ExportPlan) -> None:
    """Print the warnings about what a cache offers."""
    note(*(f"warning: {warning}" for warning in plan.warnings))


def rewrite(bundle: Bundle, file: str, form: Format) -> None:
    """Write an opened bundle to another file, with its signatures, and report it.

    Raises:
        BundleError: it is damaged; nothing is written.
    """
    with progress_bar("checking", in_bytes=True) as progress:
        refused = verify_bundle(bundle, progress, allow_large=True).refused or {}
    if refused:
        name, reason = next(iter(refused.items()))
        raise BundleError(
            f"{bundle.name} holds {len(refused)} damaged entries, such as {name}: {reason}",
            hint="jaxcache import adds the undamaged ones",
        )
    write_file(file, read_whole(bundle))
    emit(form, export_view(written_bundle(bundle, file)))


def open_input(file: str) -> Bundle:
    """Open the bundle that the user names; ``-`` is standard input."""
    check_file_path(file)
    return spool(sys.stdin.buffer) if file == "-" else open_bundle(file)


@contextmanager
def open_import(file: str) -> Iterator[tuple[Bundle, tuple[Problem, ...]]]:
    """Open a file to import, a bundle or artifacts of torch, and report what is left out."""
    if file != "-" and os.path.isfile(file) and not is_bundle(file):
        from jaxcache.layouts.torch.bundle import as_bundle, is_artifacts

        if is_artifacts(file):
            with as_bundle(file) as (bundle, left_out):
                note(*left_out_lines(left_out))
                yield replace(bundle, name=file), left_out
            return
    bundle = open_input(file)
    with bundle.file:
        yield bundle, ()


def check_trust(bundle: Bundle, *, required: bool = False) -> Verdict:
    """Check the signatures of a bundle, and warn.

    Args:
        required: refuse what no trusted key has signed, as a configuration file can, too.

    Raises:
        UntrustedError
    """
    required = required or config_is_set("require-signed")
    try:
        verdict = check_signatures(bundle, load_trusted(), required=required)
    except UntrustedError:
        bundle.file.close()
        raise
    note(*trust_lines(bundle.name, verdict))
    return verdict


@contextmanager
def interruptible() -> Iterator[None]:
    """Say what an interrupted move has left: whole files, which another run does not repeat.

    Raises:
        JaxcacheError: ``interrupted``.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise JaxcacheError(
            "interrupted",
            code="interrupted",
            exit_code=ExitCode.INTERRUPTED,
            hint="run the command again; it skips the files that are complete",
        ) from error


def receive(
    cache: "Cache",
    bundle: Bundle,
    form: Format,
    options: ArrivalOptions,
    *,
    verdict: Verdict,
    host: Callable[[], Host | None] = lambda: None,
    needed: CompatibilityOptions | None = None,
    export: Outcome | None = None,
    dry_run: bool = False,
    expect: bool = False,
) -> int:
    """Check a bundle, plan, write, and report forecast and result; return the exit code.

    Args:
        cache: where the entries go; its directory need not exist.
        host: waits for the Python that is to use the cache; all other work is done meanwhile.
        needed: what must be known of that Python before anything is written.
        export: how a temporary bundle was made; it counts the files that are not in the bundle.
        expect: report what will hit there, even if nothing is known to miss.

    Raises:
        JaxcacheError: ``incompatible``, ``conflict``, ``bad-bundle``.
    """
    needed = needed or CompatibilityOptions()
    is_jax = load_layout(bundle.manifest.layout).single_file_entries
    if needed.require_compatible and not is_jax:
        raise UsageError(
            "--require-compatible is for JAX's entries; torch alone can check its keys"
        )
    target = cache.location.path
    outlooks: Compatibility | None = None

    def check(_: Plan) -> None:
        nonlocal outlooks
        if needed.require_compatible or needed.python is not None:
            outlooks = forecast(bundle.manifest, host(), target)
        if outlooks and needed.require_compatible:
            _require_compatible(bundle, outlooks)

    with interruptible():
        done = cache.receive(bundle, options=options, check=check, dry_run=dry_run)
    done = done if export is None else after_export(export, done)
    outlooks = outlooks or forecast(bundle.manifest, _answer(host), target)
    if is_jax:
        print_forecast(outlooks, form, expect=expect or needed.require_compatible)
    emit(form, import_view(done, outlooks, verdict, manifest_sha256=bundle.manifest_sha256))
    return done.exit_code


def _require_compatible(bundle: Bundle, outlooks: Compatibility) -> None:
    if not outlooks.compatible:
        raise JaxcacheError(
            f"not every entry of {bundle.name} is known to hit: {forecast_line(outlooks)}",
            code="incompatible",
            hint=f"set {XLA_CACHES}=none for this command and for the program"
            if any(f.portable for f in outlooks.forecasts)
            else "change what the message names, or import without --require-compatible",
        )


def _answer(host: Callable[[], Host | None]) -> Host | None:
    """Wait for the Python that is to use the cache; without jax there, nothing is forecast."""
    try:
        return host()
    except NoJaxError as error:
        note(f"warning: cannot forecast the hits: {error.message}")
        return None


def print_forecast(outlooks: Compatibility, form: Format, *, expect: bool = False) -> None:
    """Say what will hit: in any case, or where something will miss."""
    line = forecast_line(outlooks) if expect else forecast_note(outlooks)
    if line and form.is_text:
        note(line)
