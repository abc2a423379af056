"""``doctor`` for torch's caches: the settings of the environment, the directory, what a run met.

Names of variables are those of ``torch/_inductor/config.py``, ``torch/_functorch/config.py`` and
``torch/compiler/config.py`` of torch 2.9 to 2.13.
"""

import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcache.cache.doctor import inputs
from jaxcache.cache.doctor.run_checks import Diagnosis, collect_host_facts
from jaxcache.errors import NoCacheError
from jaxcache.layouts.torch.names import AOT_DIR, FX_DIR, HEADER_DIR, default_directory
from jaxcache.layouts.torch.scan import TorchScan, scan
from jaxcache.store import open_store
from jaxcache.store.base import Store, StoreError
from jaxcache.units import format_count, format_size

_DISABLING = ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES")
_SWITCHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": FX_DIR, "TORCHINDUCTOR_AUTOGRAD_CACHE": AOT_DIR}
_REMOTE = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
)
_SERVER = ("TORCHINDUCTOR_REDIS_URL", "TORCHINDUCTOR_REDIS_HOST")
_FREEZING = "TORCHINDUCTOR_FREEZING"
_TOLD = ("TORCHINDUCTOR_CACHE_DIR", *_DISABLING, *_SWITCHES, *_REMOTE, _FREEZING)
_NOTABLE_BYTES = 1_000_000_000
#: What GCC and Clang leave in the section ``.comment`` of what they compile.
_COMPILER = re.compile(rb"GCC: \([^)\0]{0,80}\) [\d.]{1,20}|clang version [\d.]{1,20}")
_MOST_KERNELS = 100
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Facts:
    path: str
    env: Mapping[str, str]
    host: inputs.HostFacts
    store: Store | None = None
    seen: TorchScan | None = None
    refused: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def finding(self, rule: str, **values: Any) -> inputs.Finding:
        path = shlex.quote(self.path)
        return inputs.make_finding(
            inputs.read_rules(__file__), rule, facts=self, path=path, **values
        )


def diagnose(
    path: str, env: Mapping[str, str], refused: Mapping[tuple[str, str], int]
) -> Diagnosis:
    """Examine a cache, whether or not it exists yet.

    Args:
        env: the environment that programs run in.
        refused: of a run, how often a cache was ``off`` or ``bypassed``, with the reason.
    """
    try:
        store: Store | None = open_store(path)
    except NoCacheError:
        store = None
    scan_result = scan(store) if store else None
    facts = _Facts(path, env, collect_host_facts(path, env), store, scan_result, refused)
    findings = [f for find in _CHECKS for f in find(facts)]
    entries = scan_result.entries if scan_result else ()
    decoded: Mapping[str, Any] = scan_result.facts if scan_result else {}
    settings = tuple(
        inputs.Setting(n, env.get(n), "environment" if env.get(n) is not None else "default")
        for n in _TOLD
    )
    cache = inputs.CacheFacts(path, exists=store is not None, entries=entries, contents=decoded)
    return Diagnosis(
        inputs.Facts(cache, settings, host=facts.host),
        tuple(sorted(findings, key=lambda f: f.severity != "problem")),
    )


def find_caches_off(facts: _Facts) -> Iterator[inputs.Finding]:
    """Settings that keep torch from looking."""
    names = [n for n in _DISABLING if facts.env.get(n) == "1"]
    names += [n for n in _SWITCHES if facts.env.get(n) == "0"]
    reasons = [f"{n}={facts.env[n]} in the environment" for n in names]
    if not names:
        reasons = [f"{why} in the program" for kind, why in facts.refused if kind == "off"]
    if reasons:
        fix = f"unset {' '.join(names)}" if names else "leave the setting at its default"
        yield facts.finding("caches-off", reasons=", ".join(reasons), step=fix)


def find_bypasses(facts: _Facts) -> Iterator[inputs.Finding]:
    """Settings and functions that make torch bypass its caches."""
    if facts.env.get(_FREEZING) == "1":
        yield facts.finding("freezing")
    bypassed = Counter({why: n for (kind, why), n in facts.refused.items() if kind == "bypassed"})
    for reason, count in bypassed.most_common():
        cure = _CURES.get(next((word for word in _CURES if word in reason), ""), _CURE)
        graphs = format_count(count, "graph")
        yield facts.finding("bypassed", graphs=graphs, reason=reason, cure=cure)


_CURE = "change the function so that torch can make a key, or compile that part eagerly"
_CURES = {
    "autograd_function_apply": "set TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=1, if the "
    "custom autograd function depends on nothing but its source and arguments",
    "FX graph cache is not enabled": "set TORCHINDUCTOR_FX_GRAPH_CACHE=1",
    "freezing": f"unset {_FREEZING}",
}


def find_remote(facts: _Facts) -> Iterator[inputs.Finding]:
    """Caches on a server, whose entries are unpickled as they come."""
    names = ", ".join(n for n in _REMOTE if facts.env.get(n) == "1")
    server = next((n for n in _SERVER if n in facts.env), None)
    if names and server:
        yield facts.finding("remote-cache", names=names, server=server)
    elif names:
        yield facts.finding("local-server", names=names)


def find_temporary(facts: _Facts) -> Iterator[inputs.Finding]:
    """A directory that is empty after a reboot."""
    temporary = os.path.realpath(tempfile.gettempdir())
    is_below = os.path.realpath(facts.path).startswith(f"{temporary}{os.sep}")
    if is_below or facts.host.filesystem == "tmpfs":
        where = "in memory" if facts.host.filesystem == "tmpfs" else f"below {temporary}"
        yield facts.finding("temporary-directory", where=where)


def find_size(facts: _Facts) -> Iterator[inputs.Finding]:
    """A directory that nothing bounds."""
    if facts.seen is None:
        return
    size = sum(info.size_bytes for _, info in facts.seen.inventory.files())
    headers = os.path.join(default_directory(), HEADER_DIR)
    if size >= _NOTABLE_BYTES:
        yield facts.finding("no-bound", size=format_size(size), headers=headers)


def find_mixed_versions(facts: _Facts) -> Iterator[inputs.Finding]:
    """Graphs of several torch, or kernels of several compilers, in one directory."""
    if facts.seen is None or facts.store is None:
        return
    versions = Counter(
        e.torch_version for e in facts.seen.entries if e.module == FX_DIR and e.torch_version
    )
    compilers = Counter(_compilers(facts.store, facts.seen))
    for rule, kinds in (("mixed-torch", versions), ("mixed-compilers", compilers)):
        if len(kinds) > 1:
            each = ", ".join(f"{kind} ({n:,})" for kind, n in kinds.most_common())
            yield facts.finding(rule, count=len(kinds), each=each)


def _compilers(store: Store, scan_result: TorchScan) -> Iterator[str]:
    """The compiler of each of the newest kernels, as it wrote into them."""
    kernels = sorted(scan_result.inventory.kernels.values(), key=lambda info: -info.mtime_ns)
    for info in kernels[:_MOST_KERNELS]:
        if info.size_bytes <= _MOST_BYTES:
            try:
                match = _COMPILER.search(store.read(info.name, limit=_MOST_BYTES))
            except StoreError:
                continue
            if match:
                yield match[0].decode("ascii", "replace")


#: Every check, in the order of the report.
_CHECKS = (
    find_caches_off,
    find_bypasses,
    find_remote,
    find_temporary,
    find_size,
    find_mixed_versions,
)
