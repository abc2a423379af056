"""Shared by the commands about bundles: write one, receive one, check signatures."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcache.cache.admission import Signed
from jaxcache.cache.archive import read_chunks, write_file
from jaxcache.cache.bundle.check import verify_bundle
from jaxcache.cache.bundle.compat import Compatibility, Host, forecast
from jaxcache.cache.bundle.format import Bundle, is_bundle, open_bundle
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.move.bundle_file import check_file_path, spool, write_bundle, written_bundle
from jaxcache.cache.move.export_plan import ExportPlan
from jaxcache.cache.move.import_bundle import after_export, execute_import
from jaxcache.cache.move.plan import Outcome
from jaxcache.cache.move.signatures import load_signed
from jaxcache.cache.trust import (
    Verdict,
    check_signatures,
    key_directory,
    load_trusted,
    read_private_key,
)
from jaxcache.cli.opening import Opened
from jaxcache.cli.options import Format, require_writable
from jaxcache.cli.output import emit, note
from jaxcache.cli.terminal.progress import progress_bar
from jaxcache.errors import (
    ExitCode,
    JaxcacheError,
    NoJaxError,
    UntrustedError,
    UsageError,
    system_errors_as,
)
from jaxcache.layouts import load_layout
from jaxcache.model import Problem
from jaxcache.options.move import ArrivalOptions, CompatibilityOptions
from jaxcache.render.bundle import (
    export_view,
    forecast_line,
    forecast_note,
    import_view,
    left_out_lines,
)
from jaxcache.store import find_store, is_remote, local_path, make_store
from jaxcache.store.base import Store
from jaxcache.store.location import config_is_set


def key_path(name: str) -> Path:
    """The private key that a name or path means.

    Raises:
        UsageError: it is empty.
    """
    if not name:
        raise UsageError("an empty name names no key", hint="is a variable of the shell not set?")
    return Path(name) if os.sep in name or Path(name).is_file() else key_directory() / f"{name}.key"


def signing_keys(names: Sequence[str]) -> list[Any]:
    """Read the private keys to sign with."""
    return [read_private_key(key_path(name)) for name in names]


def deliver(
    store: Store,
    plan: ExportPlan,
    file: str,
    form: Format,
    level: int | None,
    signers: Sequence[Any],
) -> ExitCode:
    """Write the bundle and say so; return the exit code."""
    note_warnings(plan)
    with (
        system_errors_as(JaxcacheError, f"cannot write {file}", code="io-error"),
        progress_bar("exporting", in_bytes=True) as progress,
    ):
        written = write_bundle(store, plan, file, signers, level=level, progress=progress)
    note(*left_out_lines(written.left))
    emit(form, export_view(written))
    return ExitCode.PARTIAL if written.left_out else ExitCode.DONE


def note_warnings(plan: ExportPlan) -> None:
    """Print the warnings about what a cache offers."""
    note(*(f"warning: {warning}" for warning in plan.warnings))


def rewrite(bundle: Bundle, file: str, form: Format) -> None:
    """Write an opened bundle to another file, its signatures included, and say so.

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
    bundle.file.seek(0)
    write_file(file, read_chunks(bundle.file))
    emit(form, export_view(written_bundle(bundle, file)))


def open_input(file: str) -> Bundle:
    """Open the bundle that the user names; ``-`` is standard input."""
    check_file_path(file)
    return spool(sys.stdin.buffer) if file == "-" else open_bundle(file)


@contextmanager
def open_import(file: str) -> Iterator[tuple[Bundle, tuple[Problem, ...]]]:
    """Open what is to be imported, a bundle or artifacts of torch, and say what is left out."""
    if file != "-" and os.path.isfile(file) and not is_bundle(file):
        from jaxcache.layouts.torch.artifacts import as_bundle, is_artifacts

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
        verdict = check_signatures(bundle, load_trusted(key_directory()), required=required)
    except UntrustedError:
        bundle.file.close()
        raise
    if verdict.warning:
        advice = "use it only if you trust its source, or have it exported with --sign"
        if verdict.unchecked or verdict.unknown:
            advice = "use it only if you trust its signer (jaxcache trust add NAME KEY)"
        warned = f"{verdict.warning}; the entries are machine code: {advice}"
        note(f"warning: {bundle.name}: {warned}")
    return verdict


def required_signatures(source: Opened, *, wanted: bool = False) -> Signed | None:
    """Load what trusted keys have signed in a cache; None where no signature is required.

    Raises:
        UntrustedError: nothing there can be signed, or the list of keys cannot be trusted.
    """
    if not (wanted or config_is_set("require-signed")):
        return None
    if not source.layout.single_file_entries:
        raise UntrustedError(
            f"files of {source.layout.name} are not signed one by one",
            hint="jaxcache export --sign KEY",
        )
    return load_signed(source.store, load_trusted(key_directory()))


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


@contextmanager
def probing_host(
    python: str | None, *, required: bool = False, environment: Mapping[str, str] = os.environ
) -> Iterator[Callable[[], Host | None]]:
    """Start a probe of the Python that is to use the cache, and yield what waits for its answer.

    The answer is None where no Python was named and ours has no jax.

    Raises:
        NoJaxError: of the answer, too.
    """
    from jaxcache.warm.query import has_jax, probing

    if not has_jax(python) and not required:
        yield lambda: None
        return
    with probing(python, environment) as answer:
        yield answer


def receive(
    bundle: Bundle,
    target: str,
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
    """Check a bundle, plan, write, say what to expect and what was done; return the exit code.

    Args:
        host: waits for the Python that is to use the cache, beside which everything else is done.
        needed: what must be known of that Python before anything is written.
        export: how a temporary bundle was made; it counts the files that are not in the bundle.
        expect: say what will hit there, even where nothing is known to miss.

    Raises:
        JaxcacheError: ``incompatible``, ``conflict``, ``bad-bundle``.
    """
    needed = needed or CompatibilityOptions()
    layout = load_layout(bundle.manifest.layout)
    if needed.require_compatible and not layout.single_file_entries:
        raise UsageError(
            "--require-compatible is for JAX's entries; torch alone can check its keys"
        )
    with progress_bar("checking", in_bytes=True) as progress:
        bundle = verify_bundle(
            bundle, progress, allow_large=options.allow_large, atomic=options.atomic
        )
    outlooks = None
    if needed.require_compatible or needed.python is not None:
        outlooks = forecast(bundle.manifest, host(), target)
    if outlooks and needed.require_compatible:
        _require_compatible(bundle, outlooks)
    if store := find_store(target):
        require_writable(store)
    with progress_bar("comparing") as progress:
        plan = layout.plan_import(
            store,
            bundle,
            cache_dir=place_of(target),
            on_conflict=options.on_conflict,
            side_caches=options.side_caches,
            progress=progress,
        )
    with interruptible(), progress_bar("importing") as progress:
        done = execute_import(
            None if dry_run else store or make_store(target),
            bundle,
            plan,
            level=options.level,
            atomic=options.atomic,
            jobs=options.jobs,
            progress=progress,
        )
    if export is not None:
        done = after_export(export, done)
    outlooks = outlooks or forecast(bundle.manifest, _answer(host), target)
    if layout.single_file_entries:
        print_forecast(outlooks, form, expect=expect)
    emit(form, import_view(done, outlooks, verdict, manifest_sha256=bundle.manifest_sha256))
    return done.exit_code


def place_of(location: str) -> str:
    """Return a URL, or the absolute path of a directory that need not exist."""
    return location if is_remote(location) else os.path.abspath(local_path(location))


def _require_compatible(bundle: Bundle, outlooks: Compatibility) -> None:
    if not outlooks.compatible:
        raise JaxcacheError(
            f"not everything in {bundle.name} will hit here: {forecast_line(outlooks)}",
            code="incompatible",
            hint="change what the message names, or import without --require-compatible",
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
