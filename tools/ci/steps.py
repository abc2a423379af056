"""What a run of a job's steps leaves, and how steps hand something on."""

import re
from dataclasses import dataclass, field


@dataclass
class Step:
    """What became of one step."""

    name: str
    code: int = 0
    output: str = ""
    skipped: bool = False


@dataclass
class Run:
    """What became of a job."""

    steps: list[Step] = field(default_factory=list)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the steps with an id."""
    summary: str = ""

    @property
    def failed(self) -> list[Step]:
        """Steps that ended with another code than 0."""
        return [s for s in self.steps if s.code]


def read_commands(text: str) -> dict[str, str]:
    """What a step wrote to one of the runner's files: ``name=value`` or ``name<<delimiter``."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        head = re.match(r"([^=<]+)(<<|=)(.*)", line)
        if head is None:
            raise ValueError(f"neither name=value nor name<<delimiter: {line!r}")
        if head[2] == "=":
            found[head[1]] = head[3]
            continue
        value = []
        while (inner := next(lines)) != head[3]:
            value.append(inner)
        found[head[1]] = "\n".join(value)
    return found
