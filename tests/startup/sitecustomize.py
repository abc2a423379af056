"""On PYTHONPATH of the Pythons that tests start: no search for garbage in what jax makes."""

import atexit
import gc

gc.set_threshold(200_000)
atexit.register(gc.freeze)  # the search at a Python's end takes a quarter of a small program's time
