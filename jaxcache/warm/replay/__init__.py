"""``compile``: the requests of a recipe, compiled by children that have the user's jax.

:mod:`.plan` decides what is compiled and in which order, :mod:`.worker` is one child,
:mod:`.pool` several of them, :mod:`jaxcache.warm.delivery` brings what they wrote into the cache,
and :mod:`.run` puts them together.
"""
