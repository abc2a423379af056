"""Read a pickle without unpickling it: an inert machine over ``pickletools.genops``.

Python's unpickler is a stack machine whose opcodes name functions and call them. This one has the
same stack, memo and marks, and calls nothing: a global becomes a :class:`Global`, a name; a call
becomes a :class:`Record` of what would have been called with what. Nothing is imported.

Every bound holds before memory is taken: the bytes, the operations, the nesting. Memory is linear
in the operations, because a memo reference adds a reference and no copy; what walks the result
must therefore remember where it was (:func:`walk` does), or a few hundred bytes that refer to each
other make 2^100 leaves.
"""

import io
import pickletools
from dataclasses import dataclass
from typing import Any

from jaxcache.layouts.torch.machine import Machine, PickleError

#: Torch's entries are some 100 kB; one with embedded constants may be larger.
MAX_BYTES = 64 << 20
#: An entry has about 5,000. A million take 3 s.
MAX_OPERATIONS = 1_000_000
#: Containers within containers; an entry has about 12.
MAX_DEPTH = 200
#: What pickletools says of bytes that end too early.
_ENDED = ("exhausted", "remain", "no newline", "not enough data")


@dataclass(frozen=True, slots=True)
class Pickle:
    """The objects that a pickle would build, and the names it would import."""

    root: Any
    globals: tuple[str, ...]
    """Dotted names, each once, in order of appearance."""
    operations: int


def read_pickle(data: bytes, *, max_operations: int = MAX_OPERATIONS) -> Pickle:
    """Read one pickle that fills ``data``.

    Raises:
        PickleError: for any bytes that are not one whole pickle within the bounds.
    """
    if len(data) > MAX_BYTES:
        raise PickleError(f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    stream = io.BytesIO(data)
    machine = Machine(MAX_DEPTH)
    count = 0
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            count += 1
            if count > max_operations:
                raise PickleError(f"more than {max_operations} operations")
            machine.run(opcode.name, argument)
    except (ValueError, OverflowError, MemoryError) as error:
        text = str(error)
        ended = any(sign in text for sign in _ENDED)
        raise PickleError(text[:200], truncated=ended) from error
    if rest := len(data) - stream.tell():
        raise PickleError(f"{rest} bytes behind its end")
    return Pickle(machine.result, tuple(dict.fromkeys(map(str, machine.globals))), count)
