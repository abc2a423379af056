"""Differences between two runs, two keys, or a run and a cache.

``sides`` is what is compared, ``logs`` and ``reports`` read runs, ``known`` adds what the cache
and its ledger hold, ``matching`` finds what belongs together, ``compare`` names the differing
components, ``programs`` looks into the computation, ``churn`` finds modules with many keys.
"""
