"""What each part of the layer has of its process: settings, counters, threads, lines to a user.

:class:`Counters` count what the layer does: for ``jax.monitoring``, the closing line, the metrics.

``metrics`` is the path of a file for Prometheus. ``{pid}`` in it becomes the process's number,
because each process has counters of its own. The format is Prometheus' text format 0.0.4, which
needs no package.
"""

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.atomic import hold_lock, open_directory
from ..core.configuration import report_once, working_directory
from ..core.ledger import read_totals
from ..core.names import LIVE_WORDS
from ..core.threads import Background
from .files import own_directory_of, read_file, write_whole
from .loading import FirstRuns
from .settings import ResolvedSettings

EVENT_PREFIX = "/jaxcache/live/"

#: Every counter with its meaning; the names are those of the metrics and the events.
COUNTERS = {
    "hits_local": "entries served from the local directory",
    "hits_tier": "entries served from a tier",
    "misses": "keys that no place has",
    "rotten": "damaged entries refused in the local directory",
    "rotten_tier": "damaged entries refused from a tier",
    "unsealed": "entries without a checksum refused",
    "unsigned": "entries of tiers refused, no trusted key signed them",
    "died_loading": "entries moved to quarantine because a process died loading them",
    "written": "entries written",
    "replaced": "entries written over a damaged or unusable one",
    "present": "entries not written because another process had",
    "write_failed": "entries that could not be written",
    "evicted": "entries evicted",
    "prefetched": "entries fetched before the first request",
    "preloaded": "executables loaded before JAX asked for them",
    "preload_used": "executables loaded ahead that JAX then asked for",
    "preload_dropped": "executables loaded ahead that nobody asked for in time",
    "uploaded": "entries written to a tier",
    "uploads_left": "uploads left to the next process",
    "tier_misses": "requests that a tier answered with a miss",
    "tier_known_misses": "misses known from a tier's listing, without a request",
    "tier_errors": "requests to a tier that failed or took too long",
    "tier_skipped": "requests not sent because the tier is given up for now",
    "waited": "entries that another process compiled while this one waited",
    "troubles": "failures inside the layer, answered by JAX's own code",
}
#: Sums, in the unit that the name ends with.
SUMS = {
    "retrieval_seconds": "time in look-ups that were hits",
    "miss_seconds": "time in look-ups that were misses",
    "compile_seconds": "time in XLA's compiler",
    "preload_hidden_seconds": "elapsed time of loads that the program did not wait for",
    "wait_seconds": "time waiting for another process's compile",
    "read_bytes": "bytes of entries served",
    "written_bytes": "bytes of entries written",
    "uploaded_bytes": "bytes written to tiers",
    "evicted_bytes": "bytes evicted",
}


class Counters:
    """The counts of this process; cheap, and safe between threads.

    Args:
        monitoring: ``jax.monitoring``, which receives the counts too.
    """

    def __init__(self, monitoring: Any = None) -> None:
        self.reset()
        self.tell(monitoring)

    def tell(self, monitoring: Any) -> None:
        """Send later counts to ``jax.monitoring``, too."""
        self._monitoring = monitoring

    def reset(self) -> None:
        """Start from zero in a forked child."""
        self._lock = threading.RLock()
        self._values: dict[str, float] = {}
        self._kept: dict[str, float] = {}
        self.by_tier: dict[str, int] = {}

    def count(self, name: str, number: int = 1) -> None:
        """Count one of :data:`COUNTERS`."""
        with self._lock:
            self._values[name] = self._values.get(name, 0) + number
        if self._monitoring is not None:
            with contextlib.suppress(Exception):  # a listener of the user's may raise
                for _ in range(number):
                    self._monitoring.record_event(EVENT_PREFIX + name)

    def add(self, name: str, amount: float) -> None:
        """Add to one of :data:`SUMS`; durations are events of ``jax.monitoring``, too."""
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount
        if self._monitoring is not None and name.endswith("_seconds"):
            with contextlib.suppress(Exception):
                self._monitoring.record_event_duration_secs(EVENT_PREFIX + name, amount)

    def hit_in(self, tier: str) -> None:
        """Count a hit of a tier under its address."""
        with self._lock:
            self.by_tier[tier] = self.by_tier.get(tier, 0) + 1

    def __getitem__(self, name: str) -> float:
        return self._values.get(name, 0)

    def snapshot(self) -> "dict[str, float]":
        """Every count that is not zero."""
        with self._lock:
            return dict(self._values)

    def save_totals(self, root: str, wait_seconds: float = 0.0) -> None:
        """Add what was counted since the last time to the totals of a cache directory.

        Args:
            wait_seconds: how long to wait for another process that does the same; then the counts
                stay for the next time.

        Raises:
            OSError: the directory cannot be written.
        """
        with (
            own_directory_of(root, "live") as directory,
            hold_lock(directory, "totals.lock", seconds=wait_seconds) as is_held,
        ):
            if is_held:
                self._add_to_totals(directory)

    def _add_to_totals(self, directory: int) -> None:
        values = self.snapshot()
        try:
            data = read_file("totals", 1 << 16, directory=directory)
            totals = read_totals(json.loads(data or b"{}"))
        except (ValueError, RecursionError):
            totals = {}
        for name, value in values.items():
            totals[name] = totals.get(name, 0) + value - self._kept.get(name, 0)
        write_whole(directory, "totals", json.dumps(totals).encode())
        self._kept = values

    def summary(self) -> str:
        """One line about this process."""
        get = self._values.get
        hits = int(get("hits_local", 0) + get("hits_tier", 0))
        parts = [f"{hits} hits"]
        if self.by_tier:
            tiers = ", ".join(f"{n} from {tier}" for tier, n in sorted(self.by_tier.items()))
            parts[0] += f" ({int(get('hits_local', 0))} local, {tiers})"
        parts.append(f"{int(get('misses', 0))} misses")
        for name, word in LIVE_WORDS.items():
            if get(name):
                parts.append(f"{int(get(name, 0))} {word}")
        parts.append(f"{get('retrieval_seconds', 0):.2f} s reading")
        parts.append(f"{get('compile_seconds', 0):.1f} s compiling")
        return ", ".join(parts)


_FILE_SECONDS = 15.0


def text_format(counters: Counters) -> bytes:
    """Every counter in Prometheus' text format."""
    values = counters.snapshot()
    lines = []
    for name, meaning in {**COUNTERS, **SUMS}.items():
        full = f"jaxcache_live_{name}_total"
        lines += [f"# HELP {full} {meaning}", f"# TYPE {full} counter"]
        lines.append(f"{full} {values.get(name, 0):.15g}")
    full = "jaxcache_live_tier_hits_total"
    lines += [f"# HELP {full} entries served, by tier", f"# TYPE {full} counter"]
    for tier, number in sorted(counters.by_tier.items()):
        label = tier.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines.append(f'{full}{{tier="{label}"}} {number}')
    return ("\n".join(lines) + "\n").encode(errors="replace")  # a path need not be text


class Metrics:
    """The file of this process's counters.

    Raises:
        OSError: the file cannot be written.
        ValueError: ``target`` names no directory.
    """

    def __init__(self, target: str, counters: Counters) -> None:
        if os.sep not in target:
            raise ValueError(
                "metrics must be a file with its directory, such as /run/jax-{pid}.prom "
                f"(got {target!r})"
            )
        self._counters = counters
        self._path = os.path.abspath(target.replace("{pid}", str(os.getpid())))
        if not os.access(os.path.dirname(self._path), os.W_OK | os.X_OK):
            raise OSError(f"{self._path} cannot be written")
        threading.Thread(target=self._write_often, name="jaxcache-metrics", daemon=True).start()

    def _write_often(self) -> None:
        while True:
            time.sleep(_FILE_SECONDS)
            self.write()

    def write(self) -> None:
        """Write the file now."""
        with contextlib.suppress(OSError):
            root, name = os.path.split(self._path)
            with open_directory(root) as directory:
                write_whole(directory, name, text_format(self._counters))


class ThreadState(threading.local):
    """The state of the current thread between two calls of JAX."""

    loading = False
    """JAX looks an entry up to load it."""
    key = ""
    """The key of that entry."""
    decoded: "tuple[bytes, bytes] | None" = None
    """The entry that was checked last, and its content."""
    unmarked: Any = None
    """Where that entry is; None where its load is marked."""
    seconds: "float | None" = None
    """Duration of the compile whose entry is being written."""
    missed: "tuple[Any, str] | None" = None
    """The last look-up that missed, until its entry is written."""

    def __init__(self) -> None:
        self.leases: list[tuple[Any, str]] = []
        """Keys that this thread is about to compile, for all processes."""


class LiveProcess:
    """A process with the layer.

    Args:
        adapter: of the imported jax, or what is known of one that is about to be imported.
    """

    def __init__(self, settings: ResolvedSettings, adapter: Any) -> None:
        self.settings = settings
        self.adapter = adapter
        self.counters = Counters(adapter.monitoring)
        self.background = Background("live", self.trouble)
        self.now = ThreadState()
        self.first_runs = FirstRuns()
        self._said: dict[str, None] = {}

    def facts(self) -> "dict[str, str]":
        """The versions and the script, which the ledger keeps of every compile of this process."""
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        return {**self.adapter.versions, **({"script": str(script)} if script else {})}

    def program(self) -> str:
        """A name for this program with this JAX, the same on every machine."""
        from ..core.call_site import name_program

        name = name_program([str(word) for word in sys.argv], working_directory()).name
        text = "\0".join([os.path.basename(name), *self.adapter.versions.values()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def say(self, text: str) -> None:
        """Print a line on standard error, once; not before jax is imported."""
        self._said[text] = None
        if self.adapter.monitoring is not None:
            report_once(text)

    def trouble(self, error: BaseException) -> None:
        """Count a failure of the layer, and print each kind once."""
        self.counters.count("troubles")
        self.say(f"live: {type(error).__name__}: {error}")

    def run(self, call: "Callable[[str], Any]", key: str) -> None:
        """Do something about a key whose failure is not the user's."""
        try:
            call(key)
        except Exception as error:
            self.trouble(error)
