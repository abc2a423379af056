"""Side-by-side measurements against named peers; run with ``python -m benchmarks.NAME``."""
