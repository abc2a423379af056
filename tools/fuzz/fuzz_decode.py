"""Coverage-guided fuzzing of everything that reads bytes of an entry; see ``make fuzz``.

Nothing may be raised, whatever the bytes: damage is a finding. libFuzzer's own limits watch time
(``-timeout``) and memory (``-rss_limit_mb``).
"""

import io
import sys

import atheris

with atheris.instrument_imports(include=["jaxcache"]):
    from jaxcache.entry.brief import read_brief
    from jaxcache.entry.decode import decode_payload
    from jaxcache.entry.kernels import read_kernel_cache
    from jaxcache.entry.read import read_contents


def fuzz_one(data: bytes) -> None:
    """The first byte chooses what the rest is taken for."""
    kind, rest = data[:1], data[1:]
    if kind == b"\x01":
        read_contents(io.BytesIO(rest), len(rest), "jit_f")
    elif kind == b"\x02":
        read_kernel_cache(rest)
    elif kind == b"\x03":
        read_brief(io.BytesIO(rest), len(rest), None)
    else:
        # Hashes would hide what lies behind them from the fuzzer: half of the runs do not check.
        decode_payload(rest, "jit_f", check=kind == b"\x04")


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz_one)
    atheris.Fuzz()
