"""Work in the background of the user's program."""

import functools
import weakref

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
