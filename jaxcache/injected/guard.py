"""``jaxcache.guard()``: a block, a function or a whole process in which JAX may not compile."""

import asyncio
import atexit
import contextlib
import contextvars
import copy
import functools
import importlib.util
import inspect
import os
import sys
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.configuration import report_once
from ..core.seams.tracing import JaxFunctions
from . import channel
from .channel import CHANNEL
from .guard_calls import ArgumentChange, CallHistory, PendingCall

#: The steps of JAX that each ``on`` refuses. A trace leads to a load or a compile, and what is
#: loaded from the cache was requested by the same call.
_REFUSED = {"compile": ("compile",), "load": ("load",), "trace": ("trace", "load")}
_VERBS = {"compile": "compile", "load": "compile or load", "trace": "trace"}
_ACTIONS = ("raise", "warn", "count")
_KEPT_REFUSALS = 100
_SHOWN_CHANGES = 10
#: What JAX calls the operations that index an array.
_INDEXING = ("dynamic_slice", "gather", "slice", "squeeze")
_REASONS = {
    "not-cached-before": "this process has not compiled or loaded this function before",
    "new-function": (
        "another function object of this line was compiled before (a lambda, or jax.jit inside a "
        "function, makes one at each call)"
    ),
    "unknown": (
        "JAX has traced it for such arguments before: commitment to a device or a transformation "
        "(grad, vmap) differs, JAX's own caches were cleared or are full, or the guard came up "
        "during this call"
    ),
}


class UnexpectedCompile:
    """A trace, load or compile that a guard did not expect."""

    def __init__(
        self, step: str, module: "str | None", call: PendingCall, history: CallHistory
    ) -> None:
        self.step = step
        """What JAX was about to do: ``trace``, ``load`` or ``compile``."""
        self.module = module
        """The name of the XLA module; None while tracing."""
        self.function = call.function
        self.file = call.file
        """Where the function is defined; where it is called for an eager operation."""
        self.line = call.line
        self.caller_file = call.caller_file
        self.caller_line = call.caller_line
        self.is_eager = call.is_eager
        self.allow = ""
        """How to allow it, where the code put the guard up itself."""
        reason, changed = call.compare(history)
        self.reason: str = reason
        """As ``jaxcache explain`` names causes: ``argument-shape``, ``static-argument``, …"""
        self.changed: tuple[ArgumentChange, ...] = changed
        """The differences from the most similar earlier compile of the function."""

    def __str__(self) -> str:
        if self.is_eager:
            place = f"{self.file}:{self.line}" if self.file else "JAX"
            operation, fix = self._lines()
            does = f"{place} would {_VERBS[self.step]} {operation}"
            return f"{does}: {self.function}\n  {fix}{self.allow}"
        module = f" {self.module}," if self.module else ""
        called = ""
        if self.caller_file and (self.caller_file, self.caller_line) != (self.file, self.line):
            called = f", called at {self.caller_file}:{self.caller_line}"
        place = f" ({self.file}:{self.line})" if self.file else ""
        heading = f"JAX would {_VERBS[self.step]}{module} function {self.function}{place}{called}"
        return "\n  ".join([heading, *self._lines()])

    @property
    def why(self) -> str:
        """The reason as one line."""
        return "; ".join(self._lines())

    def _lines(self) -> "list[str]":
        if self.is_eager:
            example = " (np.asarray(x)[0] for x[0])" if self.function in _INDEXING else ""
            fix = f"use numpy{example}, or move it into a jitted function"
            return ["an operation outside jax.jit", fix]
        if not self.changed:
            return [_REASONS[self.reason]]
        lines = [str(change) for change in self.changed[:_SHOWN_CHANGES]]
        more = len(self.changed) - len(lines)
        return [*lines, f"and {more} more"] if more else lines


class UnexpectedCompileError(RuntimeError):
    """JAX would compile where a guard allows no compile; XLA was not called.

    ``module``, ``function``, ``file``, ``line``, ``changed`` and ``reason`` are those of
    :class:`UnexpectedCompile`, which is ``compile``.
    """

    __module__ = "jaxcache"  # where users find it, in whichever copy it was made

    def __init__(self, compile: UnexpectedCompile) -> None:  # noqa: A002 - the field's name
        super().__init__(str(compile))
        self.compile = compile
        self.module = compile.module
        self.function = compile.function
        self.file = compile.file
        self.line = compile.line
        self.changed = compile.changed
        self.reason = compile.reason

    def __reduce__(self) -> "tuple[Any, ...]":
        return type(self), (self.compile,)


Action = Callable[[UnexpectedCompile], Any]
_F = TypeVar("_F", bound=Callable[..., Any])


class CompileGuard(contextlib.ContextDecorator):
    """A guard that is up in a ``with`` block or while a function runs; see :func:`guard`."""

    #: Whether a variable of the environment put it up, which has no word for ``eager``.
    is_of_process = False

    def __init__(self, on: str, action: "str | Action", threads: str, eager: str) -> None:
        _check_choice("on", on, _REFUSED)
        if not callable(action):
            _check_choice("action", action, _ACTIONS)
        _check_choice("threads", threads, ("this", "all"))
        _check_choice("eager", eager, ("refuse", "allow"))
        self.on = on
        self.action = action
        self.threads = threads
        self.eager = eager
        self.counts: Counter[str] = Counter()
        """How often each step came: ``trace``, ``load``, ``compile``."""
        self.seen: deque[UnexpectedCompile] = deque(maxlen=_KEPT_REFUSALS)
        """The newest of them."""

    def __enter__(self) -> "CompileGuard":
        watcher = watch_jax()
        if self.action == "raise" and not watcher.seams.can_raise:
            report_once(
                f"guard warns instead of raising: after an exception, JAX {watcher.seams.version} "
                "compiles at every later call (0.6 and newer do not)"
            )
            self.action = "warn"
        if self.action == "raise" and watcher.seams.count_processes() > 1:
            report_once(
                f"guard sees {watcher.seams.count_processes()} processes of jax.distributed: where "
                "one refuses a compile, the others wait in their next collective operation; put "
                "the guard up in each of them"
            )
        if self.threads == "this":
            _guards_here.set((*_guards_here.get(), self))
            _guards_somewhere.append(self)
        else:
            _guards_everywhere.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        watch_jax().seams.restore()
        if self.threads == "this":
            guards = list(_guards_here.get())
            if self in guards:  # not where it was put up in another context
                guards.remove(self)
            _guards_here.set(tuple(guards))
            _guards_somewhere.remove(self)
        else:
            _guards_everywhere.remove(self)

    def __call__(self, function: _F) -> _F:
        """Guard each call of a function; of an ``async def``, until its coroutine ends.

        Raises:
            TypeError: a generator function, whose code runs after the call.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                "guard() must decorate a function, not a generator, whose code runs after the "
                "call, between steps of its caller; put `with guard():` into the caller"
            )
        if not (inspect.iscoroutinefunction(function) or asyncio.iscoroutinefunction(function)):
            return super().__call__(function)

        @functools.wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await function(*args, **kwargs)

        return guarded  # type: ignore[return-value]

    def _recreate_cm(self) -> "CompileGuard":
        """A guard for one call, which counts together with this one."""
        return copy.copy(self)

    def meet(self, refused: UnexpectedCompile) -> None:
        """Do what this guard is to do about one step.

        Raises:
            UnexpectedCompileError: the action is ``raise``.
            Exception: what a callable action raises.
        """
        if refused.is_eager and self.eager == "allow":
            return
        if not self.is_of_process:
            refused.allow = ', or allow it by jaxcache.guard(eager="allow")'
        self.counts[refused.step] += 1
        self.seen.append(refused)
        if self.action == "raise":
            raise UnexpectedCompileError(refused)
        if self.action == "warn":
            caller = (refused.caller_file or __file__, refused.caller_line or 0)
            warnings.warn_explicit(f"jaxcache: {refused}", UserWarning, *caller, registry=_warned)
        elif callable(self.action):
            self.action(refused)
        place = {name: getattr(refused, name) for name in ("step", "function", "file", "line")}
        CHANNEL.send({"event": "guard-passed", **place})


def guard(
    on: str = "compile",
    action: "str | Action" = "raise",
    *,
    threads: str = "this",
    eager: str = "refuse",
) -> CompileGuard:
    """Allow no compile in a block, or while a function runs.

    >>> with jaxcache.guard():  # doctest: +SKIP
    ...     serve(request)

    A warm call costs nothing: JAX's C++ dispatch answers it before any guard is reached.

    Args:
        on: ``compile``: what XLA would compile; ``load``: also what the persistent cache has;
            ``trace``: also what JAX would trace again.
        action: ``raise`` (:class:`UnexpectedCompileError`, before XLA is called), ``warn``,
            ``count``, or a function that takes an :class:`UnexpectedCompile`. Below JAX 0.6
            ``raise`` only warns, because an exception would make every later call compile.
        threads: ``this``: the thread or asyncio task that put the guard up; ``all``.
        eager: ``allow`` lets operations outside ``jax.jit`` pass, such as ``x[:n]``.

    Raises:
        ValueError: another word.
        UnknownJaxError: at the ``with``, where nothing is known of this jax.

    Returns:
        The guard: ``counts`` by step, and ``seen``, the newest 100 that it met.
    """
    return CompileGuard(on, action, threads, eager)


_guards_here: "contextvars.ContextVar[tuple[CompileGuard, ...]]" = contextvars.ContextVar(
    "jaxcache-guards", default=()
)
#: Those that guard one thread or task each.
_guards_somewhere: "list[CompileGuard]" = []
_guards_everywhere: "list[CompileGuard]" = []
_lock = threading.RLock()
#: Which warnings were shown, as :mod:`warnings` keeps it.
_warned: "dict[Any, Any]" = {}
_watcher: "_Watcher | None" = None


class _Watcher:
    """Stands in front of JAX's steps, from the first guard to the end of the process."""

    def __init__(self) -> None:
        import jax

        self.seams = JaxFunctions(jax)
        self.history = CallHistory(self.seams)
        self._local = threading.local()
        self._has_noted = False
        self.seams.install(self._check, self._record)

    def _check(self, step: str, module: Any, traced: Any) -> None:
        guards = [
            guard
            for guard in (*reversed(_guards_here.get()), *_guards_everywhere)
            if step in _REFUSED[guard.on]
        ]
        if getattr(self._local, "is_acting", False):
            return  # what an action itself compiles is allowed
        if not guards:
            with contextlib.suppress(Exception):  # not one of a thread that nobody guards
                self._note_unguarded(step, traced)
            return
        call = PendingCall(self.seams, traced)
        refused = UnexpectedCompile(step, _module_name(module), call, self.history)
        self._local.is_acting = True
        try:
            for each in guards:
                each.meet(refused)
        except BaseException as error:
            self.seams.remember_refused(call.refusable, error)
            with contextlib.suppress(Exception):
                # The listener counts such a request as ``refused``, with this detail.
                error.jaxcache_refused = refused.why  # type: ignore[attr-defined]
                if refused.is_eager:  # the function itself is JAX's own
                    place = {"file": refused.file, "line": refused.line}
                    error.jaxcache_place = place  # type: ignore[attr-defined]
            if step == "load":
                _report_refused(module, error)
            raise
        finally:
            self._local.is_acting = False

    def _note_unguarded(self, step: str, traced: Any) -> None:
        """Print once that the guard of another thread or task does not hold here."""
        guards = [g for g in _guards_somewhere if step in _REFUSED[g.on]]
        if self._has_noted or not guards:
            return
        call = PendingCall(self.seams, traced)
        if call.is_eager and all(g.eager == "allow" for g in guards):
            return
        self._has_noted = True
        report_once(
            f"JAX is about to {_VERBS[step]} {call.function} ({call.file}:{call.line}) in "
            f"{threading.current_thread().name}, where no guard is up: a guard holds in the thread "
            'or task that put it up; jaxcache.guard(threads="all") holds in all of them'
        )

    def _record(self, module: Any) -> None:  # noqa: ARG002 - the call's frames have it all
        with contextlib.suppress(Exception):
            PendingCall(self.seams).record(self.history)


def watch_jax() -> _Watcher:
    """Return the watcher of this process, put in place at the first call.

    Raises:
        UnknownJaxError: nothing is known of this jax.
    """
    global _watcher
    with _lock:
        if _watcher is None:
            _watcher = _Watcher()
        return _watcher


def _report_refused(module: Any, error: BaseException) -> None:
    """Let the listener of this process count a request that never reached it."""
    for name in ("_jaxcache.injected.listener", "jaxcache.injected.listener"):
        listener = getattr(sys.modules.get(name), "LISTENER", None)
        if listener is not None:
            listener.refuse(module, error)


def _module_name(module: Any) -> "str | None":
    if module is None:
        return None
    return str(module.operation.attributes["sym_name"].value)


def _check_choice(name: str, value: Any, choices: Any) -> None:
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(choices)} (got {value!r})")


# A guard for a whole process ----------------------------------------------------------------------

VARIABLE = "JAXCACHE_GUARD"
_FORM = "ON:ACTION[:SECONDS] such as compile:raise or load:warn:60"
_NAME = "injected.guard"
_armed: "CompileGuard | None" = None


def read_variable(text: str) -> "tuple[CompileGuard, float | None]":
    """Return the guard that the variable defines, and after how many seconds it is up.

    Raises:
        ValueError: the text has another form.
    """
    on, _, words = text.strip().partition(":")
    action, _, seconds = words.partition(":")
    try:
        after = float(seconds) if seconds else None
        requested = guard(on, action or "raise", threads="all")
        requested.is_of_process = True
    except ValueError as error:
        raise ValueError(f"{VARIABLE} must be {_FORM} (got {text!r}): {error}") from None
    return requested, after


def start() -> None:
    """Begin to count the seconds, where the variable gives any; never raises."""
    text = os.environ.get(VARIABLE)
    if not text or _first_copy() is not sys.modules[__name__]:
        return
    try:
        requested, after = read_variable(text)
    except ValueError as error:
        report_once(f"this program runs without a guard: {error}")
        return
    if not os.environ.get("JAXCACHE_EVENTS"):  # else ``run`` reports it
        atexit.register(_say_never_up, after)
    if after is None and importlib.util.find_spec("jaxcache") is None:
        report_once(
            f"only jaxcache.warmed_up() puts this guard up, and {sys.executable} has no jaxcache; "
            f"give seconds, such as {requested.on}:{requested.action}:60"
        )
    if after is not None:
        timer = threading.Timer(after, warmed_up)
        timer.daemon = True
        timer.start()


def _say_never_up(after: "float | None") -> None:
    if _armed is None:
        ended = f" and ended within {after:g} s" if after is not None else ""
        report_once(
            f"{VARIABLE} had no effect: the program did not call jaxcache.warmed_up(){ended}"
        )


def _say_counts(armed: CompileGuard) -> None:
    counts = ", ".join(f"{n} × {step}" for step, n in armed.counts.items()) or "nothing"
    report_once(f"the guard counted after the warm-up: {counts}")


def warmed_up() -> "CompileGuard | None":
    """Declare that this process has compiled what it needs: raise the guard of ``JAXCACHE_GUARD``.

    Does nothing if that variable is not set. A variable of another form is reported once on
    standard error.

    Returns:
        The guard, with its ``counts``; None if none is set.
    """
    global _armed
    if (first := _first_copy()) is not sys.modules[__name__]:
        armed: CompileGuard | None = first.warmed_up()
        return armed
    with _lock:
        if _armed is None and (text := os.environ.get(VARIABLE)):
            try:
                _armed = read_variable(text)[0].__enter__()
                if text.split(":")[1:2] == ["count"]:
                    atexit.register(_say_counts, _armed)
                channel.CHANNEL.send({"event": "guarded"})
            except Exception as error:
                report_once(f"this program runs without a guard: {error}")
        return _armed


def _first_copy() -> Any:
    """This module, or the copy that ``jaxcache run`` loaded before by its path."""
    return next(m for name, m in list(sys.modules.items()) if name.endswith(_NAME))
