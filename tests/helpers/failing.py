"""Lets operations of local stores fail, as a bad disk does."""

from typing import Any

import pytest

from jaxcache.store.base import StoreError
from jaxcache.store.local import LocalStore


def let_fail(
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    suffix: str = "",
    error: StoreError | None = None,
) -> None:
    """Let a method of all local stores fail for names that end so.

    Args:
        error: what it raises, in the place of an error of input and output.
    """
    real = getattr(LocalStore, operation)

    def fail(store: LocalStore, name: str, *args: Any, **options: Any) -> Any:
        if name.endswith(suffix):
            raise error or StoreError(name, "input/output error", code="io-error")
        return real(store, name, *args, **options)

    monkeypatch.setattr(LocalStore, operation, fail)
