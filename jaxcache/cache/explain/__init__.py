"""Differences between two runs, two keys, or a run and a cache.

``sides`` is what is compared, ``arguments`` reads saved runs, ``cached_facts`` adds what the cache
and its ledger hold, ``matching`` finds what belongs together, ``compare`` names the differing
components, ``options`` looks into flags, options and devices, ``programs`` and ``sketches`` into
the computation, ``churn`` finds modules with many keys.
"""
