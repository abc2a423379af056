"""The steps of a CI job around a cache: name it, bring back what fits, keep what was used.

``restore`` computes the key and fills the cache before the job; ``save`` finds what the job used
and writes the next bundle.
"""
