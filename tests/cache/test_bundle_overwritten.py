"""Files that another user, who owns them, overwrites between their check and their use."""

import io
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import contents, first_entry, make_bundle, opened, padded, payload_of
from conftest import GiveAway, RunCli
from ways import OLD_NS, old_copy

import jaxcache
from jaxcache.cache.bundle.format import Bundle, BundleError, open_bundle, read_bundle
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_sync
from jaxcache.cache.verify.check import BUFFERED_BYTES
from jaxcache.options.move import ImportOptions, RestoreOptions
from jaxcache.store.local import LocalStore
from jaxcache.store.location import locate_cache

_NOISE_BYTES = 1 << 18


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


def write_padded(entry: Path, padding: bytes) -> None:
    """Make an entry larger by bytes that do not compress."""
    payload = padded(payload_of(entry), len(padding) + (1 << 16))[: -len(padding)] + padding
    entry.write_bytes(zstandard.compress(bytes(4) + payload))
    os.utime(entry, ns=(OLD_NS, OLD_NS))


class OverwrittenBundle:
    """A bundle in a file, of which another stream can take the place."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path = path
        self.contents = contents(cache)
        self._bytes = make_bundle(cache)
        entry = first_entry(cache)
        self.entry = entry.name
        changed = bytearray(self.contents[entry.name])
        changed[-1] ^= 1
        entry.write_bytes(zstandard.compress(changed))
        os.utime(entry, ns=(OLD_NS, OLD_NS))
        other = make_bundle(cache)
        at = opened(self._bytes).stream_at
        stream = other[opened(other).stream_at :]
        self._other_bytes = self._bytes[:at] + stream
        assert len(self._other_bytes) == len(self._bytes)
        path.write_bytes(self._bytes)

    def overwrite(self, *_: object) -> None:
        with self.path.open("r+b") as file:
            file.write(self._other_bytes)


@pytest.fixture
def bundle(there: Path, tmp_path: Path) -> OverwrittenBundle:
    write_padded(first_entry(there), os.urandom(_NOISE_BYTES))
    return OverwrittenBundle(tmp_path / "cache.jxb", there)


@pytest.mark.parametrize("atomic", [False, True])
def test_an_import_writes_the_bytes_of_the_bundle_that_it_has_checked(
    bundle: OverwrittenBundle, tmp_path: Path, atomic: bool
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with open_bundle(str(bundle.path)).file as file:
        opened_bundle = read_bundle(file, "test")
        with pytest.raises(BundleError, match=f"{bundle.entry} does not match its digest"):
            jaxcache.open(here).receive(
                opened_bundle, options=ImportOptions(atomic=atomic), check=bundle.overwrite
            )
    assert contents(here).items() <= bundle.contents.items()
    assert bundle.entry not in contents(here)
    assert not [path for path in here.glob(".jaxcache/incoming/*") if path.stat().st_size]


def test_a_restore_writes_the_bytes_of_the_bundle_that_it_has_checked(
    bundle: OverwrittenBundle, tmp_path: Path
) -> None:
    here = tmp_path / "here"

    def overwrite(title: str, **_: bool) -> nullcontext[None]:
        if title == "restoring":  # it was checked
            bundle.overwrite()
        return nullcontext()

    cache = jaxcache.Cache(locate_cache(str(here)), progress=overwrite)
    restored = cache.ci.restore(str(bundle.path), RestoreOptions(everything=True))
    assert "does not match its digest" in restored.trouble
    assert bundle.entry not in contents(here)


def test_a_bundle_is_copied_as_it_was_checked(
    bundle: OverwrittenBundle, run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify_then_overwrite(*words: Any, **options: Any) -> Bundle:
        verified = verify_bundle(*words, **options)
        bundle.overwrite()
        return verified

    monkeypatch.setattr("jaxcache.cache.bundle.reader.verify_bundle", verify_then_overwrite)
    done = run_cli("copy", bundle.path, tmp_path / "new.jxb")
    assert (done.returncode, "its stream is damaged" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "new.jxb").exists()


class RewoundFile(io.BytesIO):
    """A file whose first bytes are other ones once it was rewound for the second time."""

    def __init__(self, data: bytes, later: bytes) -> None:
        super().__init__(data)
        self._later = later
        self._rewinds = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        if (offset, whence) == (0, 0):
            self._rewinds += 1
            if self._rewinds > 1:
                self.getbuffer()[: len(self._later)] = self._later
        return super().seek(offset, whence)


def test_a_signature_is_held_against_the_header_that_was_used(there: Path) -> None:
    data = make_bundle(there)
    later = bytes(byte ^ 1 for byte in data[:48])
    assert read_bundle(RewoundFile(data, later), "test").head == opened(data).head


@pytest.mark.parametrize("writable", ["owner", "group"])
def test_a_large_entry_of_another_user_goes_on_as_it_was_checked(
    there: Path, tmp_path: Path, give_away: GiveAway, writable: str
) -> None:
    entry = first_entry(there)
    write_padded(entry, os.urandom(BUFFERED_BYTES))
    data = entry.read_bytes()
    entry.chmod(0o664 if writable == "group" else 0o644)
    if writable == "owner":
        give_away(entry)
    source = LocalStore(there)
    plan = plan_sync(source, None, target_url="here", now_ns=OLD_NS)
    step = next(step for step in plan.steps if step.name == entry.name)
    parcel = make_source(source, plan).open(step)
    with entry.open("r+b") as file:
        file.write(bytes(len(data)))
    os.utime(entry, ns=(OLD_NS, OLD_NS))
    frame = b"".join(parcel.frame())
    parcel.close()
    assert zstandard.ZstdDecompressor().decompress(frame) == zstandard.decompress(data)
