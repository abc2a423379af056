"""Sum up a buffer assignment as XLA does for ``memory_analysis()``.

Source: ``CompiledMemoryStats`` in xla/pjrt/pjrt_executable.cc.
"""

from collections.abc import Iterable

from jaxcache.entry.contents import Memory
from jaxcache.entry.schema import parse


def sum_buffers(allocations: Iterable[memoryview], code_bytes: int | None) -> Memory:
    """Sum the ``BufferAllocation`` messages of a program.

    An argument that is also an output is aliased: 0.6.2 and later say so, before it follows.

    Raises:
        WireError: one of them does not parse.
    """
    argument = output = temp = alias = constant = 0
    for data in allocations:
        buffer = parse("BufferAllocation", data)
        size = max(buffer.size, 0)
        is_argument = buffer.is_entry_computation_parameter
        if is_argument:
            argument += size
            if buffer.maybe_live_out or buffer.is_parameter_aliased_with_output:
                alias += size
        if buffer.maybe_live_out:
            output += size
        if buffer.is_constant:
            constant += size
        elif not (is_argument or buffer.maybe_live_out or buffer.is_thread_local):
            temp += size
    return Memory(argument, output, temp, alias, constant, code_bytes)
