"""Find problems of a cache, its settings and its place before they cost anything.

``facts`` is what was looked at, ``survey`` looks, each function of ``keys``, ``writes`` and
``place`` knows one trap and is pure over the facts, ``examine`` asks them all, ``mend`` does the
safe repairs.
"""
