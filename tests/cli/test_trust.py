"""``trust``: keys and projects, and what signatures allow."""

import errno
import fcntl
import json
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundling import copy_of
from conftest import CAN_GIVE_AWAY, CORPUS, GiveAway, RunCli
from ways import names, told

from jaxcache.cache.trust import (
    TrustedKey,
    add_trusted,
    generate_key,
    load_signed,
    load_trusted,
    public_key_text,
    read_private_key,
    write_signatures,
)
from jaxcache.core import configuration
from jaxcache.core.signing import SIGNATURES_DIR, TRUSTED_KEYS
from jaxcache.errors import JaxcacheError, LockedError, UntrustedError, UsageError
from jaxcache.store.local import LocalStore

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
ONE, TWO = bytes(range(32)), bytes(32)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return copy_of(CORPUS / "0.4.38-cpu-zstd", tmp_path / "cache")


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """The directory of the user's configuration."""
    path = tmp_path / ".config" / "jaxcache"
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


@pytest.fixture
def key(run_cli: RunCli) -> str:
    done = run_cli("trust", "keygen", "ci")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition("\t")[2]


def test_trust(run_cli: RunCli, key: str, cache: Path, configured: Path, tmp_path: Path) -> None:
    assert (configured / "ci.key").stat().st_mode & 0o777 == 0o600
    unsigned, signed, new = tmp_path / "unsigned.jxb", tmp_path / "signed.jxb", tmp_path / "new"
    run_cli("export", unsigned, "-C", cache)
    assert run_cli("export", signed, "--sign", "ci", "-C", cache).returncode == 0
    warned = run_cli("import", signed, "-C", tmp_path / "w")
    assert (warned.returncode, "unknown key" in warned.stderr) == (0, True)
    assert f"jaxcache trust add NAME '{key}'" in warned.stderr
    (configured / "config.toml").write_text("require-signed = true\n")
    for bundle in (unsigned, signed):
        assert run_cli("import", bundle, "-C", new).returncode == 12
        assert not new.exists()
    assert run_cli("trust", "add", "builders", key).returncode == 0
    assert told(run_cli, "trust", "list")["keys"] == [{"name": "builders", "public_key": key}]
    assert told(run_cli, "import", signed, "-C", new)["signed_by"] == ["builders"]
    for words in (("import", unsigned, "-C", new), ("copy", unsigned, tmp_path / "other")):
        assert run_cli(*words).returncode == 12
    (configured / TRUSTED_KEYS).chmod(0o666)
    refused = run_cli("import", signed, "-C", new)
    assert (refused.returncode, "every user may write it" in refused.stderr) == (12, True)
    (configured / TRUSTED_KEYS).chmod(0o600)
    assert run_cli("trust", "remove", "builders").returncode == 0
    assert run_cli("import", signed, "-C", new).returncode == 12
    (configured / "config.toml").unlink()
    data = signed.read_bytes()
    signed.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    refused = run_cli("import", signed, "-C", tmp_path / "broken")  # though none is required
    assert (refused.returncode, "bad-signature" in refused.stderr) == (12, True)


def test_a_switch_for_safety_is_neither_hidden_nor_misspelt(
    run_cli: RunCli, cache: Path, configured: Path, tmp_path: Path
) -> None:
    project, inner = tmp_path / "pyproject.toml", tmp_path / "package"
    inner.mkdir()
    copy = ("copy", cache, tmp_path / "here")
    (configured / "config.toml").write_text("require-signed = true\n")
    project.write_text("[tool.jaxcache]\nrequire-signed = false\n")
    assert run_cli(*copy, cwd=inner).returncode == 12
    (configured / "config.toml").unlink()
    # What restricts counts anyway; the rest of a file that nobody trusts does not.
    project.write_text("[tool.jaxcache]\nrequire-signed = true\nlive.enabled = true\n")
    for text in ("", "[project]\nname = 'x'\n", f"[tool.jaxcache]\ncache-dir = '{cache}'\n"):
        (inner / "pyproject.toml").write_text(text)
        assert run_cli(*copy, cwd=inner).returncode == 12
    for line in ("require_signed = true", "require-sigend = true", 'require-signed = "true"'):
        project.write_text(f"[tool.jaxcache]\n{line}\n")
        done = run_cli(*copy, cwd=inner)
        assert (done.returncode, "[bad-config]" in done.stderr) == (2, True), line
        assert "require-signed" in done.stderr
    assert names(tmp_path / "here") == set()


def test_an_empty_name_names_no_key(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    for command in (("trust", "keygen", ""), ("export", "a.jxb", "--sign", "", "-C", cache)):
        done = run_cli(*command)
        assert (done.returncode, "an empty name" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / ".config" / "jaxcache" / ".key").exists()


def test_keys_are_looked_after(run_cli: RunCli, key: str, tmp_path: Path) -> None:
    private = tmp_path / ".config" / "jaxcache" / "ci.key"
    before = private.read_bytes()
    assert (run_cli("trust", "keygen", "ci").returncode, private.read_bytes()) == (1, before)
    for name in ("me@home", "a", "a"):
        assert run_cli("trust", "add", name, key).returncode == 0
    for words in (["add", "b"], ["frobnicate"], ["add", "a b", key]):
        assert run_cli("trust", *words).returncode == 2
    for text in ("", "jaxcache-ed25519", "AAAA", "!" * 44, "é" * 44):
        done = run_cli("trust", "add", "b", text)
        assert (done.returncode, "[bad-key]" in done.stderr) == (2, True), done.stderr
    taken = run_cli("trust", "add", "a", public_key_text(ONE))
    assert (taken.returncode, "another key is trusted as a" in taken.stderr) == (2, True)
    assert [key.name for key in load_trusted(private.parent)] == ["me@home", "a"]


@pytest.mark.parametrize("locks", [True, False])
def test_keys_that_are_trusted_at_the_same_time_are_all_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """Also where there is no ``flock``."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "flock")

    if not locks:
        monkeypatch.setattr(fcntl, "flock", refuse)
    writers = 12 if locks else 2  # a claim is held for seconds at most, and each write syncs
    keys = {f"key{n}": public_key_text(bytes([n]) * 32) for n in range(writers)}
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda item: add_trusted(tmp_path, *item), keys.items()))
    assert {k.name for k in load_trusted(tmp_path)} == keys.keys()


def test_a_stopped_command_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcache.cache.trust._TURN_SECONDS", 0.1)
    with (tmp_path / ".lockfile").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process is changing"):
            add_trusted(tmp_path, "friend", public_key_text(ONE))
    assert load_trusted(tmp_path) == []


def test_lines_that_are_no_keys_do_not_count(tmp_path: Path) -> None:
    good = f"{public_key_text(ONE)} ci"
    lines = ["# a note", "", public_key_text(TWO), f"{public_key_text(TWO)} a/b", "junk x", good]
    (tmp_path / TRUSTED_KEYS).write_text("\n".join(lines))
    assert load_trusted(tmp_path) == [TrustedKey("ci", ONE)]


def test_a_list_that_would_be_cut_off_is_refused(tmp_path: Path) -> None:
    line = f"{public_key_text(ONE)} ci\n".encode()
    path, left = tmp_path / TRUSTED_KEYS, tmp_path / ".jaxcache-tmp-1-left"
    path.write_bytes(line.rjust(1 << 20, b"#"))
    left.write_bytes(b"half")
    add_trusted(tmp_path, "more", public_key_text(TWO))
    assert not left.exists(), "of a writer that was killed"
    path.write_bytes(line.rjust((1 << 20) + 1, b"#"))
    with pytest.raises(UntrustedError, match="larger than 1048576 bytes"):
        add_trusted(tmp_path, "more", public_key_text(TWO))
    assert path.stat().st_size == (1 << 20) + 1


def test_a_private_key_is_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for data in (b"\xff\xfe", b"", b"jaxcache-ed25519-private AAAA"):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(UsageError, match="not a key"):
            read_private_key(path)
    path.chmod(0o640)
    with pytest.raises(UntrustedError, match="others may read"):
        read_private_key(path)
    for none in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot read the key"):
            read_private_key(none)


def test_a_private_key_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "keys" / "ci.key"
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(JaxcacheError, match="No space left"):
            generate_key(path)
    assert not list(path.parent.iterdir())
    assert generate_key(path)


# Signatures of single entries: of as many as there may be, and of nothing that was not signed.


KEY = ed25519.Ed25519PrivateKey.generate()
ME = TrustedKey("me", KEY.public_key().public_bytes_raw())


def test_a_cache_of_any_size_can_be_signed(tmp_path: Path) -> None:
    module = "jit_" + "x" * 180
    digests = {f"{module}-{n:064x}-cache": f"{n:064x}" for n in range(110_000)}
    store = LocalStore(tmp_path)
    write_signatures(store, digests, [KEY], now_ns=1)
    assert load_signed(store, [ME]) == {name: {digest} for name, digest in digests.items()}


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_no_name_has_another_file_signed(tmp_path: Path, end: str) -> None:
    store = LocalStore(tmp_path)
    hostile = f"jit_x{end}{'e' * 64} jit_f-{'0' * 64}-cache"
    write_signatures(store, {hostile: "1" * 64}, [KEY], now_ns=1)
    assert load_signed(store, [ME]) == {hostile: {"1" * 64}}


#: Each makes other text of a document of signatures.
SPOIL: dict[str, Callable[[Any], str]] = {
    "other content": lambda d: json.dumps(d).replace("a-cache", "b-cache"),
    "one signature": lambda d: json.dumps(d | {"signatures": d["signatures"][:1]}),
    "another's signature": lambda d: json.dumps(
        d | {"signatures": [d["signatures"][0] | {"public_key": d["signatures"][1]["public_key"]}]}
    ),
    "a list": lambda d: json.dumps([d]),
    "junk in signatures": lambda d: json.dumps(d).replace('=="', '!=="'),
    "cut": lambda d: json.dumps(d)[:-5],
    "deep": lambda d: "[" * 100_000,
}


@pytest.mark.parametrize("spoil", SPOIL)
def test_what_was_changed_counts_for_nothing(tmp_path: Path, spoil: str) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    store = LocalStore(tmp_path)
    write_signatures(store, {"a-cache": "0" * 64}, [other, KEY], now_ns=1)
    (path,) = (tmp_path / SIGNATURES_DIR).iterdir()
    assert load_signed(store, [ME]) == {"a-cache": {"0" * 64}}
    path.write_text(SPOIL[spoil](json.loads(path.read_text())))
    assert load_signed(store, [ME]) == {}


@pytest.mark.parametrize(("others", "counts"), [(15, True), (16, False)])
def test_sixteen_signatures_of_a_file_are_read(tmp_path: Path, others: int, counts: bool) -> None:
    keys = [ed25519.Ed25519PrivateKey.generate() for _ in range(others)]
    write_signatures(LocalStore(tmp_path), {"a-cache": "0" * 64}, [*keys, KEY], now_ns=1)
    assert bool(load_signed(LocalStore(tmp_path), [ME])) == counts


def test_millions_of_values_are_not_parsed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    directory = tmp_path / SIGNATURES_DIR
    directory.mkdir(parents=True)
    (directory / "1").write_text(f"[{'[],' * 1_000_000}[]]")
    tracemalloc.start()
    try:
        assert load_signed(store, [ME]) == {}
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # a buffer of the most that is read
    finally:
        tracemalloc.stop()


# Whose settings count: ``trust here``, a clone, and a file of another user.


@pytest.fixture
def own_cache(tmp_path: Path) -> Path:
    """The user's own cache, which is the default."""
    path = tmp_path / ".cache" / "jax"
    path.mkdir(parents=True)
    return path


def located(run_cli: RunCli, directory: Path) -> tuple[str, str]:
    """The cache that a command takes there, and its standard error."""
    done = run_cli("ls", "--json", cwd=directory)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["cache_dir"], done.stderr


def test_a_clone_chooses_the_cache_once_its_settings_were_shown_and_trusted(
    run_cli: RunCli, clone: Path, own_cache: Path, tmp_path: Path
) -> None:
    assert located(run_cli, clone) == (
        str(own_cache),
        f"jaxcache: ignored cache-dir and live of {clone}/pyproject.toml: this file is not "
        "trusted; jaxcache trust here shows them and asks\n",
    )
    (clone / "below").mkdir()
    cache, said = located(run_cli, clone / "below")
    assert (cache, f"jaxcache trust here {clone} shows" in said) == (str(own_cache), True)
    done = run_cli("trust", "here", cwd=clone)
    assert (done.returncode, "[needs-yes]" in done.stderr) == (2, True)
    assert not (tmp_path / ".config").exists()
    done = run_cli("trust", "here", "--yes", cwd=clone)
    assert done.returncode == 0, done.stderr
    assert f"{clone}/pyproject.toml:" in done.stderr
    for line in ('cache-dir = ".c"', "live.enabled = true", 'live.tiers = ["./.c:ro"]'):
        assert f"  {line}\n" in done.stderr
    for directory in (clone, clone / "below"):
        assert located(run_cli, directory) == (str(clone / ".c"), "")
    clone.rename(tmp_path / "moved")  # trust is for one place
    assert "not trusted" in located(run_cli, tmp_path / "moved")[1]
    broken = (tmp_path / "moved").rename(tmp_path / "two\nlines")  # the list has a line for each
    done = run_cli("trust", "here", "--yes", cwd=broken)
    assert (done.returncode, "[bad-path]" in done.stderr) == (2, True)


@pytest.mark.parametrize("spelling", ["{}", "{}/pyproject.toml"])
def test_a_changed_file_is_not_trusted_again_and_trust_is_taken_back(
    run_cli: RunCli, clone: Path, own_cache: Path, spelling: str
) -> None:
    assert run_cli("trust", "here", clone, "--yes").returncode == 0
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# a comment\n")
    cache, said = located(run_cli, clone)
    assert (cache, "not trusted" in said) == (str(own_cache), True)
    (project,) = told(run_cli, "trust", "list")["projects"]
    assert (project["path"], project["changed"]) == (str(clone / "pyproject.toml"), True)
    assert run_cli("trust", "here", "-y", cwd=clone).returncode == 0
    assert located(run_cli, clone) == (str(clone / ".c"), "")
    for code in (0, 1):
        assert run_cli("trust", "remove", spelling.format(clone)).returncode == code
        assert located(run_cli, clone)[0] == str(own_cache)
    (clone / "pyproject.toml").unlink()
    assert run_cli("trust", "here", "--yes", cwd=clone).returncode == 2, "it has no settings"


def test_a_file_of_another_user_neither_chooses_nor_stops(
    run_cli: RunCli, clone: Path, own_cache: Path, give_away: GiveAway
) -> None:
    for text in (
        (clone / "pyproject.toml").read_text(),
        "[tool.jaxcache]\nx = 1\n",
        "[tool.jaxcache\n",
    ):
        (clone / "pyproject.toml").write_text(text)
        give_away(clone / "pyproject.toml")
        cache, said = located(run_cli, clone)
        assert (cache, said.count("\n")) == (str(own_cache), 1)
        assert "it belongs to another user; jaxcache trust here" in said


def test_a_file_that_others_may_write_counts_for_nothing(
    run_cli: RunCli, clone: Path, own_cache: Path, configured: Path, tmp_path: Path
) -> None:
    """They may also put a link to another of the user's files in its place."""
    user, theirs = configured / "config.toml", str(clone / ".c")
    (clone / "settings").write_text(f'cache-dir = "{theirs}"\nrequire-signed = true\n')
    user.symlink_to(clone / "settings")
    assert located(run_cli, tmp_path)[0] == theirs
    for path, name in ((configured, "its directory"), (clone / "settings", "it")):
        path.chmod(0o777)
        cache, said = located(run_cli, tmp_path)
        assert (cache, f"every user may write {name}" in said) == (str(own_cache), True)
        path.chmod(0o700)
    (clone / "settings").chmod(0o664)
    os.chown(clone / "settings", -1, os.getgid())
    private = os.getgid() == os.getuid()
    assert (located(run_cli, tmp_path)[0] == theirs) == private


def test_the_configuration_is_the_users_alone_under_any_umask_or_trusts_nothing(
    run_cli: RunCli, clone: Path, own_cache: Path, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        assert run_cli("trust", "here", "--yes", cwd=clone).returncode == 0
        assert run_cli("ls", cwd=clone).returncode == 0
    finally:
        os.umask(before)
    for directory in (".config", ".config/jaxcache", ".cache/jaxcache"):
        assert (tmp_path / directory).stat().st_mode & 0o022 == 0, directory
    (tmp_path / ".config" / "jaxcache" / "trusted-projects").chmod(0o666)
    cache, said = located(run_cli, clone)
    assert (cache, "trusted-projects: every user may write it" in said) == (str(own_cache), True)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("text", ['dependencies = ["jaxcache"]\n', "[tool.jaxcache]\n"])
def test_an_unsafe_file_with_settings_is_named(run_cli: RunCli, clone: Path, text: str) -> None:
    (clone / "pyproject.toml").write_text(text)
    (clone / "pyproject.toml").chmod(0o666)
    assert ("every user may write it" in located(run_cli, clone)[1]) == ("tool" in text)


@pytest.mark.skipif(not CAN_GIVE_AWAY, reason="only root can give a file away")
def test_the_owner_is_that_of_the_content_that_was_read(
    tmp_path: Path, give_away: GiveAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's file takes its place before its owner is looked up."""
    path, evil = tmp_path / "pyproject.toml", tmp_path / "evil"
    path.write_bytes(b"[tool.jaxcache]\n")
    evil.write_bytes(b'[tool.jaxcache]\ncache-dir = "/evil"\n')
    give_away(evil)
    fstat = os.fstat

    def swap(descriptor: int) -> os.stat_result:
        if evil.exists():
            evil.rename(path)
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", swap)
    for is_evil in (False, True):
        file = configuration.read_config_file(str(path))
        assert file and (b"/evil" in file.text, bool(file.unsafe)) == (is_evil, is_evil)
