"""Runs inside a program on the CPU, and also compiles all its modules for the target.

The program does not notice. The results go into files that the parent writes into the cache. A
failure here is reported to the parent and never reaches the program, except for a target that
nothing can be compiled for: then the process ends.
"""

import contextlib
import fcntl
import itertools
import json
import os
import threading
import time
import weakref
from typing import Any, NamedTuple

from ..core import sketching
from ..core.compile_event import RunOutcome
from ..core.seams import UnknownJaxError, first_line, hide_frames
from ..core.seams.listening import Jax, join_processes
from ..core.seams.targets import Hooks, PlatformQueryDetector, Target, TargetError, UntunedError
from . import channel
from .channel import safely
from .process_observer import CompileRequest, entry_file
from .recording import is_profile_guided

#: The parent's request: a JSON file.
_REQUEST = "JAXCACHE_TARGET"
_REFUSED_EXIT_CODE = 3
#: How long an entry waits for the sketch of its program.
_SKETCHING_SECONDS = 5.0


class LoweringFailure(NamedTuple):
    """The reason why nothing is made of a lowering."""

    outcome: RunOutcome
    reason: str
    detail: str


#: By the error that lowering for the target raises: the outcome and its reason.
_FAILURES: "tuple[tuple[type[Exception], tuple[RunOutcome, str]], ...]" = (
    (NotImplementedError, ("uncacheable", "no-rule")),
    (LookupError, ("skipped", "no-such-device")),
    (Exception, ("error", "lowering-failed")),
)


class CrossLowering:
    """One lowering for the target: what came out, or why nothing did."""

    def __init__(self, computation: Any, failure: "LoweringFailure | None") -> None:
        self.computation = computation
        self.failure = failure
        self.made: set[str] = set()


class CrossObserver:
    """The observer that :class:`~core.seams.targets.Hooks` calls."""

    def __init__(self, module: Any, request: "dict[str, Any]", send: Any, process: int = 0) -> None:
        self._send = send
        self._module = module
        self._jax = Jax(module)
        hide_frames()
        self.asked = self._jax.asked
        self._send({"event": "jax", **self._jax.describe()})
        self._process = process
        self._target = Target(module, request, process)
        self._spool = request["spool"]
        self._directory = request["directory"]
        self._numbers = itertools.count(1)
        self._opening = threading.RLock()
        self._lowerings: weakref.WeakKeyDictionary[Any, CrossLowering] = weakref.WeakKeyDictionary()
        self._local = threading.local()
        self._sketcher = sketching.Sketcher()
        same = self._target.platforms == {"cpu"}
        self.platform_queries = PlatformQueryDetector(module, same_platform=same)
        self._hooks = Hooks(module, self._target, self)

    # Lowering ---------------------------------------------------------------------------------

    def around_lowering(self, lower: Any, args: Any, kwargs: Any) -> Any:
        """The program lowers something: lower it for the target as well, or instead."""
        if self._hooks.is_crossing:
            return lower(*args, **kwargs)
        self._open()
        alone = getattr(self._local, "alone", False)
        result = None
        if not alone:
            result = self.platform_queries.suspended(lambda: lower(*args, **kwargs))
        lowering = self._lower_across(lower, args, kwargs)
        if alone:
            if lowering.computation is None and lowering.failure is not None:
                raise RuntimeError(f"{lowering.failure.reason}: {lowering.failure.detail}")
            result = lowering.computation
        self._lowerings[result] = lowering
        return result

    def _lower_across(self, lower: Any, args: Any, kwargs: Any) -> CrossLowering:
        try:
            places = self.platform_queries.find(args[0] if args else kwargs["closed_jaxpr"])
            failure = LoweringFailure("skipped", "platform-asked", places) if places else None
            with self._hooks.crossing():
                return CrossLowering(lower(*args, **kwargs), failure)
        except Exception as error:
            outcome, reason = next(why for kind, why in _FAILURES if isinstance(error, kind))
            return CrossLowering(None, LoweringFailure(outcome, reason, first_line(error)))

    def lowered(self, module: Any, args: Any, kwargs: Any) -> None:
        """JAX has made a module for the target."""

        def remember() -> None:
            self._jax.remember_lowering(module, self._jax.describe_lowering(args, kwargs))

        safely(self._send, remember)

    def lower_for_target_only(self, work: Any) -> Any:
        """Do something in which lowering is for the target alone, and nothing can run here."""
        self._local.alone = True
        try:
            return work()
        finally:
            self._local.alone = False

    # Compiling --------------------------------------------------------------------------------

    def around_compile(self, compile_: Any, args: Any, kwargs: Any) -> Any:
        """The program compiles what it has lowered: so does the target."""
        if self._hooks.is_crossing:
            return compile_(*args, **kwargs)
        result = compile_(*args, **kwargs)
        safely(self._send, lambda: self.make(args[0], args[1:], kwargs))
        return result

    def make(self, computation: Any, args: Any = (), kwargs: Any = None) -> None:
        """Make the target's entry of a lowering, once for each set of compiler options."""
        lowering = self._lowerings.get(computation)
        if lowering is None:
            return
        options = repr((args, sorted((kwargs or {}).items(), key=str)))
        if options in lowering.made:
            return
        lowering.made.add(options)
        hlo = getattr(lowering.computation or computation, "_hlo", None)
        request = CompileRequest(number=next(self._numbers), at=time.time())
        request.module = self._jax.module_name(hlo) if hlo is not None else ""
        self._send(request.wire_begin())
        try:
            self._make(request, lowering, args, kwargs or {})
        except Exception as error:
            request.key = None
            request.fail("error", "compile-failed", first_line(error))
        self._send_module_event(request, lowering)

    def _make(
        self, request: CompileRequest, lowering: CrossLowering, args: Any, kwargs: Any
    ) -> None:
        if lowering.failure is not None or lowering.computation is None:
            request.fail(*(lowering.failure or ("error", "lowering-failed", "")))
            return
        compile_ = self._hooks.request(lowering.computation, args, kwargs)
        if is_profile_guided(self._module, compile_.options):
            request.fail("skipped", "profile-guided", "its key follows a profile")
            return
        key, request.components = self._target.key(
            compile_.module, compile_.devices, compile_.options
        )
        request.key = key
        request.outcome = "hit"
        request.reason = "in-cache"
        if entry_file(self._directory, key) is not None:
            return
        path = os.path.join(self._spool, f"{os.getpid()}-{threading.get_ident()}-{key[-64:]}")
        with open(os.path.join(self._spool, f"{key[-64:]}.made"), "ab+") as claim:
            # Another process of a pod may want the same: one makes it, the others wait for that.
            with contextlib.suppress(OSError):  # a file system without flock: several make it
                fcntl.flock(claim, fcntl.LOCK_EX)
            claim.seek(0)
            if claim.read():
                return
            blobs: list[str] = []
            safely(self._send, lambda: self._sketch(compile_.module, blobs.append))
            started = time.time()
            try:
                compiled = self._target.compile(compile_)
            except UntunedError as error:
                request.fail("skipped", error.reason, str(error))
                return
            self._sketcher.finish(_SKETCHING_SECONDS)
            with open(path, "wb") as file:
                file.write(compiled.payload)
            claim.write(b"made")
        request.outcome = "written"
        request.reason = "not-in-cache"
        request.spool = path
        request.spans["compile"] = (started, compiled.seconds)
        request.tuning = compiled.tuning
        request.sketch = blobs[0] if blobs else None

    def _sketch(self, computation: Any, take: sketching.Take) -> None:
        self._sketcher.sketch(computation, self._jax.describe_for_sketch(computation), take)

    # What is sent -----------------------------------------------------------------------------

    def _send_module_event(self, request: CompileRequest, lowering: CrossLowering) -> None:
        if (hlo := getattr(lowering.computation, "_hlo", None)) is not None:
            request.add(self._jax.lowering_of(hlo))
        request.thread = threading.get_ident()
        request.process_id = self._process
        request.backend = 0
        request.cache_dir = self._directory
        request.seconds = time.time() - request.at
        self._send(request.wire())

    def _open(self) -> None:
        """Build the target's devices, once; without them the program has nothing to do here."""
        with self._opening:
            if self._target.devices:
                return
            try:
                self._target.open()
            except TargetError as error:
                refuse(error, self._send)
            self._send({"event": "backend", "backend": 0, **self._target.describe()})

    def on_exit(self) -> None:
        """The process ends in good order."""
        platform_queries = (
            () if self._target.platforms == {"cpu"} else self.platform_queries.outside
        )
        for place in platform_queries:
            self._send(
                {
                    "event": "trouble",
                    "detail": f"{place} queried the platform and got cpu; code that depends on it "
                    "differs from what the target compiles",
                }
            )
        self._send({"event": "end", "counters": {}})


def refuse(error: TargetError, send: Any) -> None:
    """Tell the parent that nothing can be made, and end the process."""
    send({"event": "refused", "code": error.code, "detail": str(error), "hint": error.hint})
    os._exit(_REFUSED_EXIT_CODE)


#: The observer of this process, once jax has been imported.
OBSERVER: "CrossObserver | None" = None


def attach(module: Any) -> None:
    """Observe the jax that has just been imported."""
    global OBSERVER
    import atexit

    send = channel.CHANNEL.send
    with open(os.environ[_REQUEST], encoding="utf-8") as file:
        request = json.load(file)
    try:
        OBSERVER = CrossObserver(module, request, send, join_processes(module))
    except TargetError as error:
        refuse(error, send)
    except UnknownJaxError as error:
        refuse(TargetError("unknown-jax", str(error)), send)
    except Exception as error:
        refuse(TargetError("unknown-jax", f"{type(error).__name__}: {error}"), send)
    assert OBSERVER is not None  # noqa: S101 - refuse does not return
    atexit.register(OBSERVER.on_exit)
