"""``--requests``: what a command has asked of object stores."""

import sys
from typing import Any

_NAMES = """
ls show stats verify seal prune rm pin export import push pull diff copy report compile explain
"""
#: Commands that may talk to an object store; each takes ``--requests``.
REMOTE_COMMANDS = frozenset({*_NAMES.split(), "ci restore", "ci save"})

_wanted = False


def want(value: bool) -> None:
    """Note that ``--requests`` was given."""
    global _wanted
    _wanted = value


def document() -> dict[str, Any] | None:
    """Return the ``remote`` object of ``--json``; None if it was not requested."""
    if not _wanted:
        return None
    from jaxcache.store.object.retry import TRAFFIC

    return {
        "requests": {verb: TRAFFIC.requests[verb] for verb in sorted(TRAFFIC.requests)},
        "requests_total": TRAFFIC.requests.total(),
        "sent_bytes": TRAFFIC.sent_bytes,
        "received_bytes": TRAFFIC.received_bytes,
        "retries": TRAFFIC.retries,
        "throttled": TRAFFIC.throttled,
    }


def report() -> None:
    """Report the requests on standard error, with any form of output."""
    traffic = document()
    if traffic is None:
        return
    from jaxcache.units import format_count, format_size

    kinds = ", ".join(f"{count:,} {verb}" for verb, count in traffic["requests"].items())
    total = traffic["requests_total"]
    line = format_count(total, "request") + (f" ({kinds})" if kinds else "")
    line += f", {format_size(traffic['sent_bytes'])} sent"
    line += f", {format_size(traffic['received_bytes'])} received"
    for name, text in (("retries", "sent again"), ("throttled", "throttled")):
        line += f", {traffic[name]:,} {text}" if traffic[name] else ""
    print(line, file=sys.stderr)
