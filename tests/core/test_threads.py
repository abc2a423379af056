"""Work in the background of the user's program."""

import functools
import threading
import weakref
from types import SimpleNamespace

import pytest

from jaxcache.core import sketch, sketching
from jaxcache.core.threads import Background


class _Held:
    """Stands for what keeps JAX's backend alive, such as an executable."""

    def use(self, _: object) -> None:
        """Do nothing."""


def test_what_was_done_is_not_kept() -> None:
    """The end of a program waits for what its backend computes, unless something keeps it."""
    background = Background("test", lambda _: None)
    held = _Held()
    is_kept = weakref.ref(held)
    background.submit(functools.partial(held.use, None))
    del held
    background.finish(60)
    assert is_kept() is None


def test_calls_run_in_turn_those_that_wait_once_and_failures_are_reported() -> None:
    errors: list[BaseException] = []
    done: list[str] = []
    background = Background("test", errors.append)
    background.finish(60)  # nothing was submitted
    go = threading.Event()

    def wait() -> None:
        go.wait(60)
        done.append(threading.current_thread().name)

    def fail() -> None:
        done.append("fail")
        raise ValueError("broken")

    for call in (wait, fail, fail):
        background.submit(call)
    background.finish(0.01)
    assert done == []
    go.set()
    background.finish(60)
    assert done == ["jaxcache-test", "fail"]
    assert [str(error) for error in errors] == ["broken"]
    background.submit(fail)
    background.finish(60)
    assert done == ["jaxcache-test", "fail", "fail"]


def test_modules_that_wait_for_their_sketch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(sketching, "_MAX_WAITING_CHARACTERS", 8)
    monkeypatch.setattr(sketch, "make_sketch", lambda text, _: go.wait(60) and text)
    sketcher = sketching.Sketcher()
    taken: list[str] = []

    def submit(text: str) -> None:
        module = SimpleNamespace(operation=SimpleNamespace(get_asm=lambda **_: text))
        sketcher.sketch(module, {}, taken.append)

    for text in ("first", "dropped", "two"):
        submit(text)
    go.set()
    sketcher.finish(60)
    submit("as long.")
    sketcher.finish(60)
    assert taken == ["first", "two", "as long."]
