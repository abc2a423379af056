"""Bundles: a cache as one portable file.

``format`` is the file with its manifest, ``reader`` looks into one as into a cache, and ``compat``
forecasts which entries hit. ``cache/move`` writes bundles, and brings them in.
"""
