"""Signatures on every way in which entries move: what is required, and what is signed there."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bundling import SMALL
from conftest import RunCli
from ways import MOVES, WAYS, names, old_copy, told

from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_sync
from jaxcache.store.base import NewFile
from jaxcache.store.local import LocalStore


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


class Interrupted(LocalStore):
    """A store that is interrupted after some entries were written."""

    left = 3

    def write_many(self, files: Sequence[NewFile]) -> Any:
        for file in files:
            if file.name.endswith("-cache"):
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
            yield from super().write_many([file])


@pytest.mark.parametrize("way", [*MOVES, "restore", "import", "restore-bundle"])
def test_only_what_a_trusted_key_has_signed_comes_where_that_is_required(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    pytest.importorskip("cryptography")
    here, bundle = tmp_path / "here", tmp_path / "b.jxb"
    ways = {
        **WAYS,
        "import": lambda there, here: ("import", bundle, "-C", here),
        "restore-bundle": lambda there, here: ("ci", "restore", bundle, "-C", here, "--everything"),
    }
    public = run_cli("trust", "keygen", "me").stdout.partition("\t")[2].strip()
    assert run_cli("export", bundle, "-C", there).returncode == 0
    words = (*ways[way](there, here), "--require-signed")
    assert run_cli(*words).returncode == 12
    assert not names(here)
    assert run_cli("trust", "add", "me", public).returncode == 0
    assert run_cli("push", there, "-C", SMALL, "--sign", "me").returncode == 0
    assert run_cli("export", bundle, "-C", there, "--sign", "me").returncode == 0
    done = run_cli(*words)
    assert (done.returncode, names(here)) == (0, names(there)), done.stderr


@pytest.mark.parametrize("way", [*MOVES, "save"])
@pytest.mark.parametrize("before", [False, True])
def test_what_is_signed_on_its_way_is_taken_where_signatures_are_required(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str, before: bool
) -> None:
    pytest.importorskip("cryptography")
    here = tmp_path / "here"
    public = run_cli("trust", "keygen", "me").stdout.partition("\t")[2].strip()
    assert run_cli("trust", "add", "me", public).returncode == 0
    if before:
        assert run_cli(*WAYS[way](there, here)).returncode == 0
    assert run_cli(*WAYS[way](there, here), "--sign", "me").returncode == 0
    done = run_cli("pull", here, "-C", tmp_path / "last", "--require-signed")
    assert (done.returncode, names(tmp_path / "last")) == (0, names(there)), done.stderr


def test_a_configured_requirement_of_signatures_binds_a_pull_that_signs(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    assert run_cli("trust", "keygen", "me").returncode == 0
    (tmp_path / ".config/jaxcache/config.toml").write_text("require-signed = true\n")
    done = run_cli("pull", there, "-C", tmp_path / "here", "--sign", "me")
    assert (done.returncode, names(tmp_path / "here")) == (12, set())


def test_what_an_interrupted_push_has_brought_is_signed(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    trust = pytest.importorskip("jaxcache.cache.trust")
    pytest.importorskip("cryptography")
    public = trust.public_key_text(trust.generate_key(tmp_path / "me.key"))
    trust.add_trusted(tmp_path / ".config" / "jaxcache", "me", public)
    here = tmp_path / "here"
    here.mkdir()
    target, source, key = Interrupted(here), LocalStore(there), tmp_path / "me.key"
    plan = plan_sync(source, target, now_ns=time.time_ns())
    with pytest.raises(KeyboardInterrupt):
        signers = [trust.read_private_key(key)]
        sender = make_source(source, plan)
        carry_out(sender, target, plan, now_ns=time.time_ns(), jobs=1, signers=signers)
    pulled = told(run_cli, "pull", here, "-C", tmp_path / "one", "--require-signed")
    assert names(tmp_path / "one") == names(here) != names(there)
    assert pulled["untrusted"] == []
    assert run_cli("push", here, "-C", there, "--sign", key).returncode == 0
    assert told(run_cli, "pull", here, "-C", tmp_path / "two", "--require-signed")
    assert names(tmp_path / "two") == names(there)


def test_what_was_there_unsigned_is_signed_by_the_next_push(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    made = run_cli("trust", "keygen", "me").stdout.split("\t")[1].strip()
    assert run_cli("trust", "add", "me", made).returncode == 0
    here = tmp_path / "here"
    assert run_cli("push", here, "-C", there).returncode == 0
    assert told(run_cli, "push", here, "-C", there, "--sign", "me")["carried"] == []
    signatures = set((here / ".jaxcache" / "signatures").iterdir())
    assert run_cli("push", here, "-C", there, "--sign", "me").returncode == 0
    assert set((here / ".jaxcache" / "signatures").iterdir()) == signatures
    done = told(run_cli, "pull", here, "-C", tmp_path / "place", "--require-signed")
    assert len(done["carried"]) == len(names(there))
