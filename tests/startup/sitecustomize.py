"""On PYTHONPATH of the Pythons that tests start: an import of jax makes no garbage to look for."""

import gc

gc.set_threshold(200_000)
