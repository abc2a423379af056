"""The steps of a CI job around a cache: name it, bring back what fits, keep what was used.

``key`` names what JAX's own keys depend on; ``baseline`` is what lay there before the job, and
``usage`` what the job did with it; ``restore`` and ``save`` are the two ends of the job.
"""
