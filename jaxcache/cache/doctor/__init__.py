"""Find problems of a cache, its settings and its place before they cost anything.

``inputs`` has the facts that checks read. Each function ``find_…`` of ``keys``, ``writes`` and
``directory`` is one check and uses nothing but the facts; the sentences of each of its rules are a
table of ``findings.toml``. ``run_checks`` reads the facts from the system, runs all checks, makes
the safe repairs, and redacts them for a bug report.
"""
