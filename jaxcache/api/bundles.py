"""A bundle as an open file: who signed it, and what it holds."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxcache.errors import InterruptError
from jaxcache.store.location import config_is_set

if TYPE_CHECKING:
    from jaxcache.cache.bundle.format import Bundle as Bundle
    from jaxcache.cache.move.bundle_file import WrittenBundle as WrittenBundle
    from jaxcache.cache.trust import Verdict as Verdict


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Say what an interrupted move has left: whole files, which another run does not repeat.

    Raises:
        JaxcacheError: ``interrupted``.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        hint = "run the command again; it skips the files that are complete"
        raise InterruptError("interrupted", hint=hint) from error


@contextlib.contextmanager
def open_input(file: str) -> "Iterator[Bundle]":
    """Open a bundle; ``-`` is standard input."""
    from jaxcache.cache.bundle.format import open_bundle
    from jaxcache.cache.move.bundle_file import check_file_path, spool

    check_file_path(file)
    with contextlib.closing(
        spool(sys.stdin.buffer) if file == "-" else open_bundle(file)
    ) as bundle:
        yield bundle


def check_signed(
    bundle: "Bundle", trusted: str | os.PathLike[str] | None = None, *, required: bool = False
) -> "Verdict":
    """Check the signatures of a bundle.

    Args:
        trusted: the directory of the list of keys; by default the user's.
        required: refuse what no trusted key has signed, as a configuration file can, too.

    Raises:
        UntrustedError
    """
    from jaxcache.cache.trust import check_signatures, load_trusted

    required = required or trusted is not None or config_is_set("require-signed")
    return check_signatures(bundle, load_trusted(trusted), required=required)


def rewrite_bundle(bundle: "Bundle", file: str) -> "WrittenBundle":
    """Write an opened bundle to another file, with its signatures.

    Raises:
        BundleError: it is damaged; nothing is written.
    """
    from jaxcache.cache.archive import write_file
    from jaxcache.cache.bundle.format import BundleError, read_whole
    from jaxcache.cache.bundle.reader import verify_bundle
    from jaxcache.cache.move.bundle_file import check_file_name, written_bundle

    check_file_name(file)
    if refused := verify_bundle(bundle, allow_large=True).refused or {}:
        name, reason = next(iter(refused.items()))
        raise BundleError(
            f"{bundle.name} holds {len(refused)} damaged entries, such as {name}: {reason}",
            hint=f"import the undamaged ones: jaxcache import {shlex.quote(bundle.name)} -C DIR",
        )
    write_file(file, read_whole(bundle))
    return written_bundle(bundle, file)
