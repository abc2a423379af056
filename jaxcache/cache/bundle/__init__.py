"""Bundles: a cache as one portable file, written (``export``) and brought in (``importing``).

``format`` is the file's outer shape, ``manifest`` what it announces; ``export`` and ``importing``
plan, ``pack`` and ``deliver`` write, ``unpack`` reads, ``look`` shows, ``compat`` forecasts hits.
"""
