"""``compile``: the requests of a recipe, compiled by children that have the user's jax.

:mod:`.worker` decides what is compiled and in which order, and compiles one request at a time in
child processes that it replaces when they die; :mod:`.pool` runs several workers here or on dask,
and brings what they wrote into the cache; :mod:`.run` puts them together.
"""
