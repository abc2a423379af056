"""Whom a guard holds for, what it does, and what it costs."""

import asyncio
import contextvars
import pickle
import threading
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from harness import (
    CountedDispatches,
    UnexpectedCompileError,
    case,
    dispatches,
    equal,
    guard,
    main,
    ones,
    refuse,
    xla_compiles,
)

import jaxcache


def jitted() -> Any:
    """A function of its own, warm for one shape."""
    function = jax.jit(lambda x: jnp.tanh(x) * 2)
    function(ones(2))
    return function


def is_refused(call: Any) -> bool:
    try:
        call()
    except UnexpectedCompileError:
        return True
    return False


def in_thread(call: Any) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


@case("threads='this' leaves other threads alone")
def this_thread() -> None:
    step = jitted()
    with guard():
        assert not in_thread(lambda: is_refused(lambda: step(ones(3)))), "refused"


@case("threads='all'")
def all_threads() -> None:
    step = jitted()
    with guard(threads="all"):
        assert in_thread(lambda: is_refused(lambda: step(ones(3)))), "not refused"
    assert not in_thread(lambda: is_refused(lambda: step(ones(3)))), "refused after the block"


@case("four threads, 100 refusals, then fast")
def hammer() -> None:
    functions = [jitted() for _ in range(4)]
    wrong: list[str] = []

    def refuse_many(step: Any) -> None:
        for n in range(3, 28):
            with guard():
                if not is_refused(lambda n=n: step(ones(n))):
                    wrong.append("passed")
            step(ones(2))

    threads = [threading.Thread(target=refuse_many, args=(step,)) for step in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(wrong, [], "what was not refused")
    for step in functions:
        for n in (3, 12, 27):
            equal(xla_compiles(lambda step=step, n=n: step(ones(n))), 1, "compiles when allowed")
            equal(dispatches(lambda step=step, n=n: step(ones(n))), 0, "Python dispatches")


@case("asyncio: its task, its to_thread, no other task")
def tasks() -> None:
    step = jitted()

    async def guarded() -> list[bool]:
        with guard():
            await asyncio.sleep(0.01)
            inside = await asyncio.to_thread(is_refused, lambda: step(ones(3)))
            child = asyncio.create_task(refused_later())
            return [inside, await child, is_refused(lambda: step(ones(4)))]

    async def refused_later() -> bool:
        await asyncio.sleep(0)
        return is_refused(lambda: step(ones(5)))

    async def free() -> bool:
        await asyncio.sleep(0.005)
        return is_refused(lambda: step(ones(6)))

    async def both() -> Any:
        return await asyncio.gather(guarded(), free())

    equal(asyncio.run(both()), [[True, True, True], False], "refused")


@case("decorator of an async function")
def decorated_async() -> None:
    step = jitted()

    @guard()
    async def handler(n: int) -> Any:
        await asyncio.sleep(0)
        return step(ones(n))

    asyncio.run(handler(2))
    for _ in range(3):
        assert is_refused(lambda: asyncio.run(handler(3))), "not refused"
    step(ones(3))
    asyncio.run(handler(3))


@case("decorator")
def decorated() -> None:
    step = jitted()
    counting = guard(action="count")
    handler = counting(lambda n: step(ones(n)))
    handler(2)
    handler(3)
    equal(dict(counting.counts), {"compile": 1}, "counts")


@case("a generator cannot be decorated")
def generators() -> None:
    def plain() -> Any:
        yield

    async def asynchronous() -> Any:
        yield

    for function in (plain, asynchronous):
        try:
            guard()(function)
        except TypeError as error:
            assert "generator" in str(error), error
        else:
            raise AssertionError(f"{function.__name__} was decorated, and would not be guarded")


@case("left in another context than entered")
def contexts() -> None:
    step = jitted()
    one = guard()
    contextvars.copy_context().run(one.__enter__)
    one.__exit__(None, None, None)
    assert not is_refused(lambda: step(ones(3))), "still guarded"


@case("the innermost guard acts first")
def nested() -> None:
    step = jitted()
    with guard(action="count") as counting, guard():
        refuse(lambda: step(ones(3)))
    equal(dict(counting.counts), {}, "counts of the outer guard")


@case("warn, at the user's line")
def warns() -> None:
    step = jitted()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with guard(action="warn"):
            step(ones(3))
    equal([w.filename for w in caught], [__file__], "files of the warnings")


@case("a warning that is an error")
def warning_as_error() -> None:
    step = jitted()
    with warnings.catch_warnings(), jaxcache.watch() as report:
        warnings.simplefilter("error")
        try:
            with guard(action="warn"):
                step(ones(3))
        except UserWarning:
            pass
    equal((report.refused, report.errors), (1, 0), "refused and errors of watch()")
    equal(dispatches(lambda: step(ones(3))), 0, "Python dispatches")


@case("an action that raises its own exception")
def own_exception() -> None:
    step = jitted()

    def act(refused: Any) -> None:
        raise LookupError(refused.function)

    with jaxcache.watch() as report:
        for on in ("compile", "load"):
            try:
                with guard(on, act):
                    step(ones(3))
            except LookupError:
                continue
            raise AssertionError("not raised")
    equal((report.refused, report.errors), (2, 0), "refused and errors of watch()")
    equal(dispatches(lambda: step(ones(3))), 0, "Python dispatches")


@case("an action that compiles")
def compiling_action() -> None:
    step = jitted()
    with guard("trace", lambda _: jnp.ones(61).sum(), threads="all"):
        step(ones(3))


@case("watch() counts refused")
def watched() -> None:
    step = jitted()
    with jaxcache.watch() as report:
        for on in ("compile", "load"):
            with guard(on):
                refuse(lambda: step(ones(3)))
    equal((report.refused, report.errors), (2, 0), "refused and errors")


@case("the error survives pickle")
def pickled() -> None:
    step = jitted()
    with guard():
        error = refuse(lambda: step(ones(3)))
    other = pickle.loads(pickle.dumps(error))
    equal(str(other), str(error), "its text")
    equal((other.reason, other.changed), (error.reason, error.changed), "what changed")


@case("an error that is kept does not keep a call slow")
def kept() -> None:
    step = jitted()
    errors = []
    with guard():
        errors.append(refuse(lambda: step(ones(3))))
    step(ones(3))
    equal(dispatches(lambda: step(ones(3))), 0, "Python dispatches")


@case("eager='allow'")
def eager_allowed() -> None:
    step = jitted()
    with guard(eager="allow"):
        jnp.ones(71)
        refuse(lambda: step(ones(3)))


@case("0 Python dispatches in 100,000 guarded warm calls")
def warm_calls() -> str:
    step = jitted()
    x = jax.device_put(ones(2))
    step(x)

    def block() -> float:
        began = time.perf_counter()
        for _ in range(500):
            step(x)
        return time.perf_counter() - began

    block()
    ratios = []
    for _ in range(200):
        free = block()
        with guard("trace", threads="all"), guard("trace"):
            ratios.append(block() / free)
    with guard("trace", threads="all"), guard("trace"), CountedDispatches() as counted:
        for _ in range(100_000):
            step(x)
    equal(counted.number, 0, "Python dispatches")
    return f"0; ratio of times {sorted(ratios)[100]:.3f}"


if __name__ == "__main__":
    main()
