"""Coverage-guided fuzzing of one target; see ``make fuzz``.

``python -m tools.fuzz.fuzz TARGET [LIBFUZZER-OPTION…] CORPUS…``. libFuzzer's own limits watch time
(``-timeout``) and memory (``-rss_limit_mb``); a limit on the address space watches single
allocations, too.
"""

import resource
import sys

import atheris

with atheris.instrument_imports(include=["jaxcache"]):
    from tools.fuzz.targets import TARGETS

_MEMORY_BYTES = 4 << 30

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target.run)
    atheris.Fuzz()
