"""Entries of a tier without a checksum: what vouches for them instead, and who is told."""

import hashlib
import io
import json
import shutil
from pathlib import Path

import pytest
from conftest import CAN_GIVE_AWAY, GiveAway, RunCli
from ways import told

from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.cache.trust import (
    add_trusted,
    generate_key,
    public_key_text,
    read_private_key,
    write_signatures,
)
from jaxcache.entry.decode import read_payload
from jaxcache.store import open_store
from live.conftest import RunLive, entries
from live.machines import PORTABLE

pytestmark = pytest.mark.jax


@pytest.fixture
def tier(run_live: RunLive, tmp_path: Path) -> Path:
    """A directory with entries as plain JAX writes them, which other machines share."""
    run_live(cache_dir=tmp_path / "tier", JAXCACHE_LIVE="0", **PORTABLE)
    return tmp_path / "tier"


def digests(directory: Path) -> dict[str, str]:
    """The SHA-256 of the payload of each entry, by file."""
    found = {}
    for path in entries(directory):
        data = path.read_bytes()
        payload = read_payload(io.BytesIO(data), len(data))
        found[path.name] = hashlib.sha256(payload).hexdigest()
    return found


def test_a_tier_without_checksums_is_named_with_the_command_that_mends_it(
    run_live: RunLive, run_cli: RunCli, tier: Path, tmp_path: Path
) -> None:
    number = len(entries(tier))
    settings = {"JAXCACHE_LIVE_TIERS": f"{tier}:ro", **PORTABLE}
    refused = run_live(cache_dir=tmp_path / "one", **settings)
    assert (refused["unsealed"], refused["hits_tier"]) == (number, 0)
    said = f"refused {number} entries of {tier}, which have no checksum"
    command = f"jaxcache seal -C {tier}"
    assert f"{said}; to mend it: {command}\n" in refused.err
    assert (
        f"refused-unsealed\t{tier}\t{number}\t" in run_cli("stats", "-C", tmp_path / "one").stdout
    )
    (row,) = told(run_cli, "stats", "-C", tmp_path / "one")["refused"]
    assert (row["tier"], row["reason"], row["entries"]) == (str(tier), "unsealed", number)
    doctor = ("doctor", "-C", tmp_path / "one", "--json", "--python", "/nonexistent")
    findings = json.loads(run_cli(*doctor).stdout)["findings"]
    (finding,) = (f for f in findings if f["trap"] == "tier-refused")
    assert said in finding["seen"] and command in finding["fix"]

    assert run_cli(*command.split()[1:]).returncode == 0
    mended = run_live(cache_dir=tmp_path / "two", **settings)
    assert (mended["misses"], mended["hits_tier"] + mended["hits_local"]) == (0, number)
    assert "refused" not in mended.err


def test_a_tier_that_the_program_has_mended_needs_no_command(
    run_live: RunLive, run_cli: RunCli, tier: Path, tmp_path: Path
) -> None:
    settings = {"JAXCACHE_LIVE_TIERS": str(tier), "JAXCACHE_LIVE_FLUSH": "60s", **PORTABLE}
    ran = run_live(cache_dir=tmp_path / "one", **settings)
    assert "which have no checksum; replaced there by this program\n" in ran.err
    assert "refused" not in told(run_cli, "stats", "-C", tmp_path / "one")


def test_a_signature_of_a_trusted_key_is_as_good_as_a_checksum(
    run_live: RunLive, tier: Path, tmp_path: Path
) -> None:
    key = generate_key(tmp_path / "key")
    private = read_private_key(tmp_path / "key")
    write_signatures(open_store(str(tier)), digests(tier), [private], now_ns=1)
    settings = {"JAXCACHE_LIVE_TIERS": f"{tier}:ro", "XDG_CONFIG_HOME": str(tmp_path), **PORTABLE}
    assert run_live(cache_dir=tmp_path / "stranger", **settings)["hits_tier"] == 0
    add_trusted(tmp_path / "jaxcache", "ci", public_key_text(key))
    for required in ("0", "1"):
        trusting = run_live(
            cache_dir=tmp_path / required, JAXCACHE_LIVE_REQUIRE_SIGNED=required, **settings
        )
        assert (trusting["misses"], trusting["unsealed"]) == (0, 0)


def test_a_digest_that_was_recorded_here_is_as_good_as_a_checksum(
    run_live: RunLive, run_cli: RunCli, tier: Path, tmp_path: Path, give_away: GiveAway
) -> None:
    wrongs = {"right": "", "wrong": "0", "foreign": ""}
    for name, wrong in wrongs.items():
        directory = tmp_path / name
        directory.mkdir()
        append(
            open_store(str(directory)),
            [
                Event(file.removesuffix("-cache"), COMPILE, 1, {"payload_sha256": wrong or sha256})
                for file, sha256 in digests(tier).items()
            ],
        )
        if name == "foreign":
            if not CAN_GIVE_AWAY:
                continue
            give_away(directory / ".jaxcache" / "ledger")
        ran = run_live(cache_dir=directory, JAXCACHE_LIVE_TIERS=f"{tier}:ro", **PORTABLE)
        is_refused = name != "right"
        assert (ran["misses"] > 0, ran["unsealed"] > 0) == (is_refused, is_refused)
    # What arrives is sealed, so that the local copy is checked from now on.
    listed = told(run_cli, "ls", "-C", tmp_path / "right")["entries"]
    assert {entry["sealed"] for entry in listed} == {True}


def test_a_record_of_refusals_that_is_no_record_is_ignored(
    run_cli: RunCli, tier: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(tier, cache)
    (cache / ".jaxcache" / "live").mkdir(parents=True)
    for text in ("", "[]", '{"a": 1, "b": {"at_ns": -1}, "c": {"at_ns": 1, "unsealed": "x"}}'):
        (cache / ".jaxcache" / "live" / "refused").write_text(text)
        assert "refused" not in told(run_cli, "stats", "-C", cache)
