"""Files that go, or cannot be looked at, between two looks of one command."""

import time
from pathlib import Path
from typing import Any, BinaryIO

from jaxcache.cache.bundle.deliver import make_temporary_bundle
from jaxcache.cache.bundle.export import plan_export
from jaxcache.cache.bundle.importing import ImportAction, plan_import
from jaxcache.cache.verify.examine import verify
from jaxcache.core.names import KERNEL_CACHE
from jaxcache.layouts import load_layout
from jaxcache.model import FileInfo
from jaxcache.options import VerifyOptions
from jaxcache.store.base import MissingError, StoreError
from jaxcache.store.local import LocalStore


class Unreachable(LocalStore):
    """A disk that lists files and answers nothing more about them."""

    def info(self, name: str) -> FileInfo:
        raise StoreError(name, "input/output error", code="io-error")


def test_a_file_that_cannot_be_looked_at_again_keeps_its_problem(tmp_path: Path) -> None:
    (tmp_path / f"jit_f-{'a' * 64}-cache").touch()
    found = verify(
        Unreachable(tmp_path),
        load_layout("jax"),
        VerifyOptions(),
        now_ns=time.time_ns(),
        wait=lambda _: None,
    )
    assert found.checked == 1
    assert [p.kind for p in found.problems] == ["empty"]


class Emptied(LocalStore):
    """A directory whose files go after they were listed."""

    def open(self, name: str) -> BinaryIO:
        raise MissingError(name)


def test_a_side_file_that_went_meanwhile_is_written(tmp_path: Path) -> None:
    stores: list[Any] = []
    for name, kind in (("source", LocalStore), ("target", Emptied)):
        (tmp_path / name).mkdir()
        (tmp_path / name / KERNEL_CACHE).write_bytes(name.encode())
        stores.append(kind(tmp_path / name))
    source, target = stores
    bundle, _ = make_temporary_bundle(source, plan_export(source, now_ns=0))
    with bundle.file:
        planned = plan_import(target, bundle, cache_dir=target.url)
    assert [s.action for s in planned.steps] == [ImportAction.WRITE]
