"""Options that several commands share, and what they mean."""

import sys
from enum import StrEnum

from jaxcache.errors import UsageError
from jaxcache.options.declare import FLAG, Options, option


class Format(StrEnum):
    """The format of a result on standard output."""

    JSON = "json"
    JSONL = "jsonl"
    KEYS = "keys"
    TSV = "tsv"
    TABLE = "table"

    @property
    def is_json(self) -> bool:
        """Whether standard output holds nothing but JSON."""
        return self in (Format.JSON, Format.JSONL)

    @property
    def is_text(self) -> bool:
        """Whether people read along: a table, or TSV with notes beside it."""
        return self in (Format.TABLE, Format.TSV)


_FLAGS = {Format.JSON: "json", Format.JSONL: "jsonl", Format.KEYS: "quiet"}


class JsonOutput(Options, panel="Output"):
    """JSON instead of text."""

    json: bool = option("--json", FLAG, "Print one JSON document.")
    jsonl: bool = option("--jsonl", FLAG, "Print one JSON object per line.")

    @property
    def form(self) -> Format:
        """Return the requested format, else a table on a terminal, TSV in a pipe.

        Raises:
            UsageError: more than one was requested.
        """
        forms = [f for f in (Format.JSON, Format.JSONL, Format.KEYS) if getattr(self, _FLAGS[f], 0)]
        if len(forms) > 1:
            raise UsageError("--json, --jsonl and --quiet cannot be combined")
        return forms[0] if forms else Format.TABLE if sys.stdout.isatty() else Format.TSV


class Output(JsonOutput, panel="Output"):
    """JSON or keys instead of text."""

    quiet: bool = option("--quiet -q", FLAG, "Print keys only.")
