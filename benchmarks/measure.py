"""Paired timings of commands: each round runs every side once, in turn, so that drift hits all."""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the peer's figure ours is, over paired rounds."""

    claim: str
    ours: float
    """Median, in seconds."""
    peer: float
    """Median, in seconds."""
    ratio: float
    """Median of the rounds' own ratios ours/peer."""
    spread: tuple[float, float]
    """Smallest and largest of them."""
    target: str
    """What was promised, in words."""

    def row(self) -> str:
        """One line of the Markdown table."""
        low, high = self.spread
        return (
            f"| {self.claim} | {self.ours:.3f} s | {self.peer:.3f} s | {self.ratio:.2f} × "
            f"({low:.2f} to {high:.2f}) | {self.target} |"
        )


HEADER = "| ours against peer | ours | peer | ratio (range) | target |\n|---|---|---|---|---|"

Side = Callable[[], float]


def command(args: Sequence[str], env: Mapping[str, str] | None = None) -> Side:
    """A side that runs a command, its output thrown away, and returns wall seconds."""

    def run() -> float:
        started = time.perf_counter()
        subprocess.run(
            args, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})}
        )
        return time.perf_counter() - started

    return run


def reported(args: Sequence[str]) -> Side:
    """A side that runs a command which prints its own seconds as its last line."""

    def run() -> float:
        done = subprocess.run(args, check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1])

    return run


def compare(claim: str, ours: Side, peer: Side, *, rounds: int, target: str) -> Ratio:
    """Time both sides in turn, after one round that does not count."""
    ours()
    peer()
    pairs = [(ours(), peer()) for _ in range(rounds)]
    ratios = sorted(a / b for a, b in pairs)
    return Ratio(
        claim,
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(ratios),
        (ratios[0], ratios[-1]),
        target,
    )
