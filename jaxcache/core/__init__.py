"""What the command line and the code inside the user's Python share, so that each exists once.

``jaxcache.live`` and ``jaxcache.injected`` also run where jaxcache is not installed. There they and
this package are loaded by path, as ``_jaxcache.live``, ``_jaxcache.injected`` and
``_jaxcache.core``, and import each other by relative imports alone. So this package imports the
standard library and nothing else, runs on Python 3.10, and each module is cheap to import.
"""
