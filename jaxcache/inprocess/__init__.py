"""jaxcache inside the user's program: blocks that are watched, notebooks, pytest.

Runs in the process that has jax, where jaxcache is installed beside it, and joins the listener
(``jaxside/``), the fold of its events (``warm/recorder.py``) and the renderers. Nothing here is
imported before it is asked for, and nothing of it reaches the program as an exception that the
program did not ask for.
"""
