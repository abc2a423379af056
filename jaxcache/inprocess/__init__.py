"""jaxcache inside the user's program: blocks that are watched, notebooks, pytest.

Runs in the process that has jax, where jaxcache is installed beside it, and joins the listener
(``injected/``), the report of its events (``warm/report/builder.py``) and the renderers. Nothing
here is imported before the program uses it, and no failure here reaches the program as an exception
that it did not request.
"""
