"""Find problems of a cache, its settings and its place before they cost anything.

``inputs`` has the facts that checks read, and ``collect`` reads them from the system. Each function
``find_…`` of ``keys``, ``writes`` and ``place`` is one check and uses nothing but the facts.
``run_checks`` runs them all, and ``fixes`` makes the safe repairs.
"""
