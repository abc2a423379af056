"""The earlier run that a compile is compared with, and what differs between both runs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from jaxcache.cache.explain import say
from jaxcache.cache.explain.edits import Edits, find_edits
from jaxcache.core.runs import CompileRow, Run

_NUMBERS = ("", "", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Past:
    """What is known of both runs; nothing where none is recorded."""

    old: Run | None = None
    new: Run | None = None
    row: CompileRow | None = None
    """The earlier compile."""
    age: int = 1
    """1 for the last run, 2 for the one before."""
    signatures: int = 0
    """How many signatures of this call are recorded."""

    @property
    def since(self) -> str:
        """When the earlier run began; empty where none is recorded."""
        return show_time(self.old.at) if self.old else ""

    @property
    def name(self) -> str | None:
        """The earlier run as the reader knows it: ``run of 10:02, two runs ago``."""
        if self.old is None:
            return None
        ago = f", {_NUMBERS[self.age]} runs ago" if 1 < self.age < len(_NUMBERS) else ""
        return f"run of {self.since}{ago}"

    @cached_property
    def edits(self) -> Edits | None:
        """The lines that were edited between both; None where the sources are not recorded."""
        if not (self.old and self.new and self.old.sources and self.new.sources):
            return None
        return find_edits(self.old.sources, self.new.sources)

    def is_unedited(self, file: str) -> bool:
        """Return whether no recorded file was edited, a given one of the user's among them."""
        if self.old is None or self.edits is None or self.edits:
            return False
        return not file or any(file == n or file.endswith(f"/{n}") for n in self.old.sources)

    @property
    def is_same_program(self) -> bool:
        """Whether the sources and the command line are known to be the same."""
        is_same = self.old is not None and self.new is not None and self.old.argv == self.new.argv
        return is_same and self.edits is not None and not self.edits

    @property
    def outside(self) -> str:
        """What else differs between both runs: the command line, or versions of libraries."""
        if self.old is None or self.new is None:
            return ""
        if words := say.command_line(self.old.argv, self.new.argv):
            return words
        return say.libraries(changed_versions(self.old.versions, self.new.versions))

    def origin_of(self, setting: str) -> str:
        """Return who made a setting that differs: ``environment``, ``code``, or empty."""
        for run in (self.new, self.old):
            if run and setting in run.settings:
                return str(run.settings[setting][1])
        return ""

    def count_signatures(self) -> int:
        """Return how many signatures of this call are recorded."""
        return self.signatures

    def name_library(self, file: str) -> str:
        """Return the package and version of a library's file, as far as they are recorded."""
        package = _package_of(file)
        before, now = (
            (run.versions if run else {}).get(package.lower()) for run in (self.old, self.new)
        )
        if now and before and before != now:
            return f"{package} {before} → {now}"
        return f"{package} {now}" if now else package


def changed_versions(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the libraries of which both runs had another version: ``optax 0.2.1 → 0.2.2``."""
    return [f"{n} {old[n]} → {v}" for n, v in new.items() if n in old and old[n] != v]


def _package_of(file: str) -> str:
    path = file.replace("\\", "/")
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2].partition("/")[0].removesuffix(".py")
    return "Python" if "/lib/python3" in path else ""


def show_time(at: float) -> str:
    """Return a time of day, with the date where it is another day."""
    then = time.localtime(at)
    is_today = time.strftime("%F", then) == time.strftime("%F")
    return time.strftime("%H:%M" if is_today else "%b %d %H:%M", then)
