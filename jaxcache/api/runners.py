"""What runs programs for one compiler, accounts for its cache and examines it."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from jaxcache.layouts import load_layout


class Runner(NamedTuple):
    """The functions for the programs of one compiler."""

    options: Collection[str] | None
    """The fields of the options of ``run`` and ``warm`` that it knows; None for all."""
    run: Callable[..., Any]
    """Runs a command (words, options, callbacks) and reports what its cache did."""
    warm: Callable[..., Any]
    """Runs programs in the same way, with all of the cache on."""
    explain_script: Callable[..., Any]
    """Runs a script (name, arguments, options) and says why each of its compiles missed."""
    report_view: Callable[..., Any]
    """Makes the view of the report of ``run`` and ``warm``."""


def runner_of(layout: str | None) -> Runner:
    """Return what runs programs of a layout; JAX's by default: none says what a program will use.

    Raises:
        UsageError: ``bad-layout``.
    """
    if layout is not None and load_layout(layout).name == "torch":
        from jaxcache.render.torch import report_view
        from jaxcache.warm.torch.explain import explain_script
        from jaxcache.warm.torch.run import run_command, warm_programs

        options = ("python", "jobs", "timeout_seconds")
        return Runner(options, run_command, warm_programs, explain_script, report_view)
    from jaxcache.render.warm import report_view as jax_view
    from jaxcache.warm.explain import explain_script
    from jaxcache.warm.run import run_command as run_jax
    from jaxcache.warm.run import warm_programs as warm_jax

    return Runner(None, run_jax, warm_jax, explain_script, jax_view)
