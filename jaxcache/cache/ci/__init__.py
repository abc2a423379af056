"""The steps of a CI job around a cache: name it, bring back what fits, keep what was used.

``restore`` has the key and what comes before the job, ``save`` what the job used, and what is kept.
"""
