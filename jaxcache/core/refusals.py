"""Entries that the live layer refused from a tier: how many, why, and how to mend the tier.

The record, ``.jaxcache/live/refused`` of the local directory, is a JSON object: by the address of a
tier, ``at_ns`` and the number of entries by reason. It describes the last program that took entries
of that tier, or refused some.
"""

import json
from typing import NamedTuple

RECORD = "live/refused"
MAX_RECORD_BYTES = 1 << 16
#: What is wrong with several entries and with one, and the command that mends the tier.
_REASONS = {
    "unsealed": ("have no checksum", "has no checksum", "seal -C {tier}"),
    "unsigned": (
        "are signed by no trusted key",
        "is signed by no trusted key",
        "push {tier} --sign KEY",
    ),
    "damaged": ("are damaged", "is damaged", "verify --fix -C {tier}"),
}
_MAX_NUMBER = 10**9


class TierRefusal(NamedTuple):
    """Entries of one tier that were refused for one reason."""

    tier: str
    reason: str
    """``unsealed``, ``unsigned`` or ``damaged``."""
    entries: int
    at_ns: int


def describe_refusal(refusal: TierRefusal) -> str:
    """Say which entries were refused: ``6 entries of s3://team/jax, which have no checksum``."""
    entries = "1 entry" if refusal.entries == 1 else f"{refusal.entries:,} entries"
    fault = _REASONS[refusal.reason][refusal.entries == 1]
    return f"{entries} of {refusal.tier}, which {fault}"


def refusal_fix(refusal: TierRefusal) -> str:
    """Name the command that mends the tier: ``to mend it: jaxcache seal -C s3://team/jax``."""
    import shlex  # rarely needed, and this module is imported in the user's process

    command = _REASONS[refusal.reason][2].format(tier=shlex.quote(refusal.tier))
    return f"to mend it: jaxcache {command}"


def read_record(data: bytes) -> "tuple[TierRefusal, ...]":
    """Read a record; what cannot be read in it is left out."""
    try:
        tiers = json.loads(data)
        rows = [(tier, row) for tier, row in tiers.items() if isinstance(row, dict)]
    except (ValueError, AttributeError, RecursionError):
        return ()
    refusals = []
    for tier, row in rows:
        at_ns = row.get("at_ns")
        if type(at_ns) is int and 0 <= at_ns < 1 << 63:
            for reason in _REASONS:
                number = row.get(reason)
                if type(number) is int and 0 < number < _MAX_NUMBER:
                    refusals.append(TierRefusal(str(tier), reason, number, at_ns))
    return tuple(refusals)


def write_record(refusals: "tuple[TierRefusal, ...]") -> bytes:
    """Write a record."""
    tiers: dict[str, dict[str, int]] = {}
    for refusal in refusals:
        row = tiers.setdefault(refusal.tier, {"at_ns": refusal.at_ns})
        row[refusal.reason] = refusal.entries
    return json.dumps(tiers).encode()
