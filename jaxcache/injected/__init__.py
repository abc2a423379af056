"""Programs that run inside the user's Python: standard library, ``core`` and jax only.

Nothing here is imported by the rest of jaxcache. The parent starts the user's command with
``startup/`` on ``PYTHONPATH``; ``startup/sitecustomize.py`` loads this package, by path and under
the name ``_jaxcache.injected``, at the moment when jax has been imported. It must run where
jaxcache is not installed, on Python 3.10 and later.
"""
