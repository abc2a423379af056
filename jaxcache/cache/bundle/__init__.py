"""Bundles: a cache as one portable file, written (``export``) and brought in (``importing``).

``format`` is the file's outer shape, ``manifest`` what it announces, ``stream`` and ``parts`` how
its bytes run; ``pack`` and ``deliver`` write, ``unpack`` reads, ``compat`` tells what will hit.
"""
