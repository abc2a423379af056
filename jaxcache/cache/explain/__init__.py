"""Differences between two runs, two keys, or a run and the history of its program.

``sides`` is what is compared, ``arguments`` reads saved runs, ``cached_facts`` adds what the cache
and its ledger hold, ``past`` what the records say of an earlier run. ``choose`` finds what a
compile is compared with, ``parts`` names the parts of the key that differ, ``program``, ``lines``
and ``edits`` what differs in the computation, ``answer`` answers for a whole run, ``churn`` finds
modules with many keys. All sentences are in ``say``.
"""
