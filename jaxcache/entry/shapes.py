"""XLA's element types and shapes in NumPy's terms."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

from jaxcache.entry.contents import ArrayType
from jaxcache.entry.wire import WireError

_TUPLE = 13
#: ``PrimitiveType`` (xla/xla_data.proto) to the names of NumPy and ml_dtypes.
_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16",
    8: "uint32", 9: "uint64", 10: "float16", 11: "float32", 12: "float64", 13: "tuple",
    14: "opaque", 15: "complex64", 16: "bfloat16", 17: "token", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn", 21: "int4", 22: "uint4", 23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz", 25: "float8_e4m3fnuz", 26: "int2", 27: "uint2", 28: "float8_e4m3",
    29: "float8_e3m4", 30: "int1", 31: "uint1", 32: "float4_e2m1fn", 33: "float8_e8m0fnu",
    34: "buffer",
}  # fmt: skip
#: HLO's own short names, where they differ from the rule of letter and bits.
_SHORT = {"bool": "pred", "bfloat16": "bf16", "opaque": "opaque", "token": "token"}
#: Far more than the largest programs take or give, which a few megabytes of empty shapes surpass.
_MAX_ARRAYS = 200_000
_LETTERS = {"int": "s", "uint": "u", "float": "f", "complex": "c"}


def array_types(shapes: Iterable[Any]) -> tuple[ArrayType, ...]:
    """The arrays of ``Shape`` messages, the leaves of tuples in order.

    Raises:
        WireError: more of them than any compiler writes.
    """
    arrays = tuple(islice((leaf for s in shapes for leaf in _leaves(s)), _MAX_ARRAYS + 1))
    if len(arrays) > _MAX_ARRAYS:
        raise WireError("more arrays than any compiler writes")
    return arrays


def _leaves(shape: Any) -> Iterator[ArrayType]:
    if shape.element_type == _TUPLE:
        for inner in shape.tuple_shapes:
            yield from _leaves(inner)
    else:
        name = _DTYPES.get(shape.element_type, f"type{shape.element_type}")
        yield ArrayType(name, tuple(shape.dimensions))


def short_type(array: ArrayType) -> str:
    """An array in HLO's notation: ``f32[8,16]``, ``bf16[]``, ``pred[4]``."""
    dims = ",".join(map(str, array.shape))
    return f"{_short_dtype(array.dtype)}[{dims}]"


def _short_dtype(dtype: str) -> str:
    if dtype in _SHORT:
        return _SHORT[dtype]
    word = dtype.rstrip("0123456789")
    if word in _LETTERS:
        return _LETTERS[word] + dtype[len(word) :]
    if dtype.startswith("float"):  # float8_e4m3fn -> f8e4m3fn
        return "f" + dtype[5:].replace("_", "")
    return dtype


_ARRAY = re.compile(r"(?P<dtype>[a-z][a-z0-9_]*)\[(?P<dims>\s*\d+\s*(,\s*\d+\s*)*)?\]")
#: No array that a program declares has more, and dimensions are 64 bits.
_MAX_RANK = 64
_MAX_DIM_DIGITS = 18


def parse_short_type(text: str) -> ArrayType | None:
    """Read an array in HLO's, JAX's or NumPy's notation; None if it is none.

    ``f32[8,16]``, ``i32[]``, ``s32[]``, ``bool[4]``, ``float8_e4m3fn[2]``.
    """
    match = _ARRAY.fullmatch(text.strip())
    dtype = dtype_names().get(match["dtype"]) if match else None
    if match is None or dtype is None:
        return None
    dims = match["dims"].split(",") if match["dims"] else []
    if len(dims) > _MAX_RANK or any(len(d.strip()) > _MAX_DIM_DIGITS for d in dims):
        return None
    return ArrayType(dtype, tuple(map(int, dims)))


@cache
def dtype_names() -> dict[str, str]:
    """Every way to write a dtype, to its name."""
    arrays = [d for d in _DTYPES.values() if d not in ("tuple", "opaque", "token", "buffer")]
    names = {d: d for d in arrays} | {_short_dtype(d): d for d in arrays}
    return names | {f"i{d[3:]}": d for d in arrays if d.startswith("int")}


def signature(parameters: tuple[ArrayType, ...], results: tuple[ArrayType, ...]) -> str:
    """One line: ``f32[8,16], f32[16,32] → f32[8,32]``."""
    return f"{_join(parameters)} → {_join(results)}"


def _join(arrays: tuple[ArrayType, ...]) -> str:
    return ", ".join(map(short_type, arrays)) or "()"
