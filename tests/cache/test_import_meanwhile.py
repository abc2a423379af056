"""What comes between the plan of an import and its end: another writer, an interrupt, an error."""

import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import first_entry, make_bundle, opened, padded, payload_of
from ways import OLD_NS, names, old_copy

from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import execute_import, plan_import
from jaxcache.cache.move.plan import MoveAction, Outcome
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_copy
from jaxcache.store.base import StoreError
from jaxcache.store.local import LocalStore


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "fail"])
def test_an_import_replaces_nothing_that_came_since_its_plan(
    there: Path, tmp_path: Path, on_conflict: str, atomic: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    old = here / first_entry(there).name
    if on_conflict == "replace":
        content = bytes(4) + padded(payload_of(first_entry(there)), 1 << 15)
        old.write_bytes(zstandard.compress(content))
    store, bundle = LocalStore(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict=on_conflict)
    old.write_bytes(b"written by JAX meanwhile")
    os.utime(old, ns=(OLD_NS, OLD_NS + 1))
    done = execute_import(store, bundle, plan, atomic=atomic)
    assert old.read_bytes() == b"written by JAX meanwhile"
    assert [step.name for step in done.failed] == [old.name]
    assert done.exit_code == 3
    assert done.rolled_back == atomic
    assert_adds_up(done)


def assert_adds_up(done: Outcome) -> None:
    """Each step ended once, as exactly one of these."""
    assert [s.name for s in done.steps] == [s.name for s in done.plan.steps]
    written = len(done.written)
    others = [
        a for a in MoveAction if a not in (MoveAction.WRITE, MoveAction.HEAL, MoveAction.REPLACE)
    ]
    assert written + done.count(*others) == len(done.plan.steps)


class InterruptedCommit(LocalStore):
    """A store that is interrupted while the files of an atomic import get their names."""

    left = 3

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        super().rename(name, new_name, replace=replace)


def test_an_interrupted_atomic_import_puts_back_what_was_there(there: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    old = here / first_entry(there).name
    old.write_bytes(zstandard.compress(bytes(4) + b"other"))
    before = old.read_bytes()
    store, bundle = InterruptedCommit(here), verify_bundle(opened(make_bundle(there)))
    plan = plan_import(store, bundle, cache_dir=str(here), on_conflict="replace")
    with pytest.raises(KeyboardInterrupt):
        execute_import(store, bundle, plan, atomic=True)
    assert {p.name: p.read_bytes() for p in here.glob("*-*")} == {old.name: before}


class Unreadable(LocalStore):
    """A store of which one entry cannot be read."""

    def fetch(self, name: str, **options: Any) -> Any:
        if name == first_entry(Path(self.path)).name:
            raise StoreError(name, "input/output error", code="io-error")
        return super().fetch(name, **options)


def test_an_atomic_copy_leaves_out_what_cannot_be_read(there: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    source, target = Unreadable(there), LocalStore(tmp_path / "here")
    plan = plan_copy(source, plan_export(source, now_ns=OLD_NS), target, cache_dir="here")
    done = carry_out(make_source(source, plan), target, plan, now_ns=OLD_NS, atomic=True)
    assert (done.exit_code, done.rolled_back) == (3, False)
    assert names(tmp_path / "here") == names(there) - {first_entry(there).name}
