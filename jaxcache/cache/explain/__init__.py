"""Why a compile missed: its difference from an earlier one, as far as that is known.

``sides`` is what is compared, and what a cache and its ledger know of it. ``past`` is what changed
since the earlier run, ``parts`` names the parts of the key that differ, ``program`` what differs in
the computation. ``answer`` finds what a compile is compared with, and answers for a whole run,
``keys`` for the keys of a cache. All sentences are in ``say``.
"""
