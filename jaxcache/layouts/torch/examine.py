"""Look into one graph's file: what it tells, and which of the rules it breaks."""

from typing import NamedTuple

from jaxcache.layouts.torch.graph import ROOTS, Graph, Tier, decode_graph
from jaxcache.layouts.torch.inventory import GraphFile
from jaxcache.layouts.torch.names import digest_of
from jaxcache.layouts.torch.pickled import MAX_BYTES, PickleError
from jaxcache.model import ProblemKind
from jaxcache.store.base import Store, StoreError

#: Names of a hostile pickle's globals that a finding shows.
_SHOWN_GLOBALS = 5

Found = tuple[ProblemKind, str]


class Facts(NamedTuple):
    """The facts of a graph that a listing shows and an index keeps."""

    seconds: float | None = None
    devices: tuple[str, ...] = ()
    guards: str | None = None
    torch_version: str | None = None
    references: tuple[str, ...] = ()
    bundled: bool = False
    source_key: str | None = None
    source: str | None = None
    function: str | None = None
    signature: str | None = None
    environment: tuple[str, ...] = ()
    """Names of environment variables whose values it holds."""
    problems: tuple[Found, ...] = ()
    gone: bool = False
    """It vanished since it was listed."""


class Examined(NamedTuple):
    """One file with everything that can be said of it alone."""

    graph: Graph | None
    """None where it could not be read as a pickle."""
    problems: tuple[Found, ...]


def examine_file(store: Store, file: GraphFile) -> Examined:
    """Read and judge one file.

    Raises:
        MissingError: it is gone.
    """
    size = file.info.size_bytes
    if size > MAX_BYTES:
        return Examined(None, (("unreadable", f"{size:,} bytes are too many to be read"),))
    try:
        data = store.read(file.info.name, limit=MAX_BYTES + 1)
    except StoreError as error:
        if error.code == "missing":
            raise
        return Examined(None, (("unreadable", error.reason),))
    return examine(data, file.tier, file.key, file.digest)


def examine(data: bytes, tier: Tier, key: str, digest: str) -> Examined:
    """Judge the bytes of a graph that is stored under a key and a digest."""
    if not data:
        return Examined(None, (("empty", "no bytes: torch fails on it and compiles anew"),))
    whole = digest_of(data) == digest
    try:
        graph = decode_graph(data, tier)
    except PickleError as error:
        kind: ProblemKind = "truncated" if error.truncated else "bad-payload"
        return Examined(None, ((kind, error.detail),))
    problems = tuple(_problems(graph, tier, key))
    if not whole:
        detail = "its bytes are not the ones that it is named by"
        problems = (("digest-mismatch", detail), *problems)
    return Examined(graph, problems)


def _problems(graph: Graph, tier: Tier, key: str) -> "list[Found]":
    found: list[Found] = []
    if unexpected := graph.unexpected_globals:
        more = len(unexpected) - _SHOWN_GLOBALS
        names = ", ".join(name[:80] for name in unexpected[:_SHOWN_GLOBALS])
        tail = f" and {more} more" if more > 0 else ""
        found.append(("foreign-globals", f"torch would import {names}{tail} to read it"))
    if graph.root != ROOTS[tier] and not graph.bundled:
        detail = f"holds {graph.root[:120]}, which torch cannot use there"
        found.append(("wrong-class", detail))
        return found
    if tier == "fxgraph" and graph.own_key is not None and graph.own_key != key:
        found.append(("key-mismatch", f"was stored under {graph.own_key[:60]}"))
    if graph.source_key and graph.source_digest and graph.source_key[1:] != graph.source_digest:
        detail = f"its code is not the {graph.source_key[:60]} that it names"
        found.append(("source-mismatch", detail))
    return found


def facts_of(examined: Examined) -> Facts:
    """Return the facts that a listing needs."""
    graph = examined.graph
    if graph is None:
        return Facts(problems=examined.problems)
    told = {name: getattr(graph, name) for name in Facts._fields if hasattr(graph, name)}
    return Facts(**told | {"problems": examined.problems})
