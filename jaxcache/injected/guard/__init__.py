"""Refuse compiles where none may happen: ``jaxcache.guard()``, standard library and jax alone.

``jax_functions.py`` holds JAX's private names, ``calls.py`` describes what JAX is about to do,
``guard.py`` decides, and arms a guard for a whole process.
"""
