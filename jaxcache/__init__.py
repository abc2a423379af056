"""jaxcache manages JAX's persistent compilation cache."""

__version__ = "0.1.0.dev0"
