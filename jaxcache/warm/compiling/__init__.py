"""``compile``: the requests of a recipe, compiled by children that have the user's jax.

:mod:`.plan` decides what is compiled and in which order; a :mod:`.worker` compiles one request at a
time in child processes that it replaces when they die; :mod:`.pool` runs several workers here
or on dask; :mod:`.session` brings what they wrote into the cache; :mod:`.run` puts
them together.
"""
