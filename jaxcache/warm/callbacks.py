"""Functions that a run calls on its way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxcache.core.compile_event import RunEvent


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Functions to call while it runs."""

    on_start: Callable[[], None] | None = None
    """Called once the first program has started, to import what the end of the run needs."""
    on_event: "Callable[[RunEvent], None] | None" = None
    on_tick: Callable[[], None] | None = None
    on_known: Callable[[Mapping[str, float]], None] | None = None
    """Told, from another thread, the compile seconds by key that earlier runs took."""
