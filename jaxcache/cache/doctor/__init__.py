"""What is wrong with a cache, with the settings, or with where it lies, before it costs anything.

``facts`` is what was looked at, ``survey`` looks, each function of ``keys``, ``writes`` and
``place`` knows one trap and is pure over the facts, ``examine`` asks them all, ``mend`` does the
safe repairs.
"""
