"""Check a bundle from end to end: every byte against its digests, and every entry as it is."""

from collections.abc import Iterator
from dataclasses import replace

from jaxcache.cache.admission import check_payload_pieces
from jaxcache.cache.archive import hash_chunks
from jaxcache.cache.bundle.format import Bundle, ContentReader, check_stream
from jaxcache.cache.bundle.manifest import BundleError, Manifest
from jaxcache.cache.scan import Progress
from jaxcache.errors import ExitCode, JaxcacheError


def verify_bundle(
    bundle: Bundle,
    progress: Progress | None = None,
    *,
    allow_large: bool = False,
    atomic: bool = False,
) -> Bundle:
    """Compare every byte of a bundle with its digests and check its entries; write nothing.

    Args:
        allow_large: the policy of the target, see :class:`jaxcache.cache.admission.ImportPolicy`.
        atomic: refuse all of it for one entry that must not come in.

    Returns:
        The bundle, which now says what of it must not come in.

    Raises:
        BundleError
        JaxcacheError: ``bad-bundle``, with ``atomic``.
    """
    refused = bundle.refused
    if refused is None:
        check_stream(bundle)
        refused = dict(_damaged(bundle, progress, allow_large))
    if atomic and refused:
        name, reason = next(iter(refused.items()))
        raise JaxcacheError(
            f"{bundle.name}: {name}: {reason}; with --atomic nothing is imported",
            code="bad-bundle",
            exit_code=ExitCode.PROBLEMS,
        )
    return replace(bundle, refused=refused)


def _damaged(
    bundle: Bundle, progress: Progress | None, allow_large: bool
) -> Iterator[tuple[str, str]]:
    content = ContentReader(bundle)
    done = 0
    entries = len(bundle.manifest.items)
    for number, (name, size, expected) in enumerate(_contents(bundle.manifest)):
        pieces = content.take(size)
        error = None
        if number < entries:
            digest, error = check_payload_pieces(name, pieces, allow_large=allow_large)
        else:
            digest = hash_chunks(pieces)
        if digest != expected:
            raise BundleError(f"{bundle.name}: the payload of {name} does not match its digest")
        if error is not None:
            yield name, error.detail
        done += size
        if progress:
            progress(done, bundle.manifest.content_bytes)
    content.end()


def _contents(manifest: Manifest) -> list[tuple[str, int, str]]:
    """(name, bytes, SHA-256) in the order of the stream."""
    return [
        *((i.file, i.payload_bytes, i.payload_sha256) for i in manifest.items),
        *((f.name, f.size_bytes, f.sha256) for f in manifest.files),
    ]
