"""The compressed frame of an entry: what is fixed about it, and how much may come out of it.

JAX compresses an entry with zstd (RFC 8878) or zlib; the content is 4 bytes of compile seconds and
the payload (``jax/_src/compilation_cache.py``). The decoders are elsewhere.
"""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Bit 2 of the frame header descriptor: the content's checksum follows the last block.
CHECKSUM_FLAG = 1 << 2
CHECKSUM_BYTES = 4
#: The compile time, in whole seconds, before the payload.
HEADER_BYTES = 4
#: A payload may be this much larger than its file (constants of zeros compress that well) …
FREE_PAYLOAD_BYTES = 256 << 20
#: … and beyond that this many times as large. JAX's own entries reach 30.
_MAX_RATIO = 64


def max_payload_bytes(size_bytes: int) -> int:
    """The largest payload that an entry of this size from elsewhere is believed to hold."""
    return FREE_PAYLOAD_BYTES + _MAX_RATIO * size_bytes
