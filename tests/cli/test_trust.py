"""``trust``, and what signatures allow."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from conftest import CAN_GIVE_AWAY, GiveAway, RunCli
from ways import told

from jaxcache.core import configuration


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / "0.4.38-cpu-zstd", tmp_path / "cache"))


@pytest.fixture
def key(run_cli: RunCli) -> str:
    pytest.importorskip("cryptography")
    done = run_cli("trust", "keygen", "ci")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition("\t")[2]


def require_signed(tmp_path: Path) -> None:
    directory = tmp_path / ".config" / "jaxcache"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text("require-signed = true\n")


def test_trust(run_cli: RunCli, key: str, cache: Path, tmp_path: Path) -> None:
    private = tmp_path / ".config" / "jaxcache" / "ci.key"
    assert private.stat().st_mode & 0o777 == 0o600
    unsigned, signed = tmp_path / "unsigned.jxb", tmp_path / "signed.jxb"
    run_cli("export", unsigned, "-C", cache)
    assert run_cli("export", signed, "--sign", "ci", "-C", cache).returncode == 0
    warned = run_cli("import", signed, "-C", tmp_path / "w")
    assert (warned.returncode, "unknown key" in warned.stderr) == (0, True)
    assert f"jaxcache trust add NAME '{key}'" in warned.stderr
    require_signed(tmp_path)
    for bundle in (unsigned, signed):
        assert run_cli("import", bundle, "-C", tmp_path / "new").returncode == 12
        assert not (tmp_path / "new").exists()
    assert run_cli("trust", "add", "builders", key).returncode == 0
    trusted = {"name": "builders", "public_key": key}
    assert told(run_cli, "trust", "list")["keys"] == [trusted]
    assert told(run_cli, "import", signed, "-C", tmp_path / "new")["signed_by"] == ["builders"]
    assert run_cli("import", unsigned, "-C", tmp_path / "new").returncode == 12
    assert run_cli("copy", unsigned, tmp_path / "other").returncode == 12
    assert run_cli("trust", "remove", "builders").returncode == 0
    assert run_cli("import", signed, "-C", tmp_path / "new").returncode == 12


def test_a_broken_signature_is_refused_even_where_none_is_required(
    run_cli: RunCli, key: str, cache: Path, tmp_path: Path
) -> None:
    signed = tmp_path / "signed.jxb"
    run_cli("export", signed, "--sign", "ci", "-C", cache)
    data = bytearray(signed.read_bytes())
    data[60] ^= 1
    signed.write_bytes(data)
    refused = run_cli("import", signed, "-C", tmp_path / "new")
    assert (refused.returncode, "bad-signature" in refused.stderr) == (12, True)


def test_no_project_takes_the_switch_back(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "cache.jxb"
    assert run_cli("export", bundle, "-C", cache).returncode == 0
    require_signed(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.jaxcache]\nrequire-signed = false\n")
    assert run_cli("import", bundle, "-C", tmp_path / "new").returncode == 12


def test_an_empty_name_names_no_key(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    for command in (("trust", "keygen", ""), ("export", "a.jxb", "--sign", "", "-C", cache)):
        done = run_cli(*command)
        assert (done.returncode, "an empty name" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / ".config" / "jaxcache" / ".key").exists()


def test_keys_are_looked_after(run_cli: RunCli, key: str, tmp_path: Path) -> None:
    private = tmp_path / ".config" / "jaxcache" / "ci.key"
    before = private.read_bytes()
    assert (run_cli("trust", "keygen", "ci").returncode, private.read_bytes()) == (1, before)
    run_cli("trust", "add", "a", key)
    assert run_cli("trust", "add", "a", key).returncode == 0
    for words in (["add", "b", "junk"], ["add", "b"], ["frobnicate"], ["add", "a b", key]):
        assert run_cli("trust", *words).returncode == 2


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


def test_a_clone_does_not_choose_the_cache(run_cli: RunCli, clone: Path, own_cache: Path) -> None:
    assert located(run_cli, clone) == (
        str(own_cache),
        f"jaxcache: ignored cache-dir and live of {clone}/pyproject.toml: this file is not "
        "trusted; jaxcache trust here shows them and asks\n",
    )
    (clone / "below").mkdir()
    cache, said = located(run_cli, clone / "below")
    assert (cache, f"jaxcache trust here {clone} shows" in said) == (str(own_cache), True)


def test_trust_here_shows_the_settings_and_lets_them_count(run_cli: RunCli, clone: Path) -> None:
    done = run_cli("trust", "here", "--yes", cwd=clone)
    assert done.returncode == 0, done.stderr
    assert f"{clone}/pyproject.toml:" in done.stderr
    for line in ('cache-dir = ".c"', "live.enabled = true", 'live.tiers = ["./.c:ro"]'):
        assert f"  {line}\n" in done.stderr
    assert located(run_cli, clone) == (str(clone / ".c"), "")
    (clone / "below").mkdir()
    assert located(run_cli, clone / "below") == (str(clone / ".c"), "")


@pytest.mark.usefixtures("own_cache")
def test_a_changed_file_is_not_trusted_again(run_cli: RunCli, clone: Path) -> None:
    assert run_cli("trust", "here", clone, "--yes").returncode == 0
    with (clone / "pyproject.toml").open("a") as file:
        file.write("# a comment\n")
    cache, said = located(run_cli, clone)
    assert cache != str(clone / ".c")
    assert "not trusted" in said
    (project,) = told(run_cli, "trust", "list")["projects"]
    assert (project["path"], project["changed"]) == (str(clone / "pyproject.toml"), True)
    assert run_cli("trust", "here", "-y", cwd=clone).returncode == 0
    assert located(run_cli, clone) == (str(clone / ".c"), "")


@pytest.mark.usefixtures("own_cache")
def test_trust_is_for_one_place(run_cli: RunCli, clone: Path, tmp_path: Path) -> None:
    assert run_cli("trust", "here", "--yes", cwd=clone).returncode == 0
    clone.rename(tmp_path / "moved")
    assert "not trusted" in located(run_cli, tmp_path / "moved")[1]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_worktree_and_a_submodule_are_not_trusted_with_the_repository(
    run_cli: RunCli, clone: Path, own_cache: Path, tmp_path: Path
) -> None:
    """Another branch or repository, perhaps of somebody else, writes their files."""

    def git(*words: str | Path) -> None:
        settings = ("user.name=x", "user.email=x@y", "protocol.file.allow=always")
        options = [word for setting in settings for word in ("-c", setting)]
        subprocess.run(["git", *options, *words], cwd=clone, check=True, capture_output=True)

    for words in (("init",), ("add", "pyproject.toml"), ("commit", "-m", "x")):
        git(*words)
    git("worktree", "add", tmp_path / "worktree")
    git("submodule", "add", clone, "submodule")
    assert run_cli("trust", "here", "--yes", cwd=clone).returncode == 0
    assert located(run_cli, clone) == (str(clone / ".c"), "")
    cache, said = located(run_cli, tmp_path / "worktree")
    assert (cache, f"{tmp_path}/worktree/pyproject.toml" in said) == (str(own_cache), True)
    cache, said = located(run_cli, clone / "submodule")  # which belongs to what is trusted
    assert (cache, f"{clone}/submodule/pyproject.toml" in said) == (str(clone / ".c"), True)


@pytest.mark.parametrize("spelling", ["{}", "{}/pyproject.toml"])
def test_trust_can_be_taken_back(
    run_cli: RunCli, clone: Path, own_cache: Path, spelling: str
) -> None:
    assert run_cli("trust", "here", "--yes", cwd=clone).returncode == 0
    path = spelling.format(clone)
    assert run_cli("trust", "remove", path).returncode == 0
    assert located(run_cli, clone)[0] == str(own_cache)
    assert run_cli("trust", "remove", path).returncode == 1


def test_trust_here_asks(run_cli: RunCli, clone: Path, tmp_path: Path) -> None:
    done = run_cli("trust", "here", cwd=clone)
    assert (done.returncode, "[needs-yes]" in done.stderr) == (2, True)
    assert not (tmp_path / ".config").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run_cli("trust", "here", "--yes", cwd=empty).returncode == 2


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
        assert cache == str(own_cache)
        assert said.count("\n") == 1
        assert "it belongs to another user; jaxcache trust here" in said


def test_a_file_that_others_may_write_counts_for_nothing(
    run_cli: RunCli, clone: Path, own_cache: Path, tmp_path: Path
) -> None:
    user = tmp_path / ".config" / "jaxcache" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text(f'cache-dir = "{clone}/.c"\nrequire-signed = true\n')
    assert located(run_cli, tmp_path)[0] == str(clone / ".c")
    user.chmod(0o666)
    cache, said = located(run_cli, tmp_path)
    assert (cache, "every user may write it" in said) == (str(own_cache), True)
    user.chmod(0o664)
    os.chown(user, -1, os.getgid())
    private = os.getgid() == os.getuid()
    assert (located(run_cli, tmp_path)[0] == str(clone / ".c")) == private


def test_a_file_in_a_directory_that_others_may_write_counts_for_nothing(
    run_cli: RunCli, clone: Path, own_cache: Path, tmp_path: Path
) -> None:
    """They may put a link to another of the user's files in its place."""
    directory = tmp_path / ".config" / "jaxcache"
    directory.mkdir(parents=True)
    (clone / "settings").write_text(f'cache-dir = "{clone}/.c"\n')
    (directory / "config.toml").symlink_to(clone / "settings")
    assert located(run_cli, tmp_path)[0] == str(clone / ".c")
    directory.chmod(0o777)
    cache, said = located(run_cli, tmp_path)
    assert (cache, "every user may write its directory" in said) == (str(own_cache), True)


def test_the_directory_of_the_configuration_is_the_users_alone_under_any_umask(
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


def test_a_list_of_trusted_projects_that_others_may_write_trusts_nothing(
    run_cli: RunCli, clone: Path, own_cache: Path, tmp_path: Path
) -> None:
    assert run_cli("trust", "here", "--yes", cwd=clone).returncode == 0
    (tmp_path / ".config" / "jaxcache" / "trusted-projects").chmod(0o666)
    cache, said = located(run_cli, clone)
    assert cache == str(own_cache)
    assert "trusted-projects: every user may write it" in said


def test_what_only_restricts_counts_without_trust(
    run_cli: RunCli, clone: Path, own_cache: Path
) -> None:
    (clone / "pyproject.toml").write_text(
        "[tool.jaxcache]\nrequire-signed = true\n[tool.jaxcache.live]\nenabled = true\n"
    )
    done = run_cli("copy", clone / ".c", own_cache, cwd=clone)
    assert done.returncode == 12
    assert "signed" in done.stderr


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("text", ['dependencies = ["jaxcache"]\n', "[tool.jaxcache]\n"])
def test_a_file_that_every_user_may_write_is_named_where_it_has_settings(
    run_cli: RunCli, clone: Path, text: str
) -> None:
    (clone / "pyproject.toml").write_text(text)
    (clone / "pyproject.toml").chmod(0o666)
    said = located(run_cli, clone)[1]
    assert ("every user may write it" in said) == ("tool" in text)


@pytest.mark.skipif(not CAN_GIVE_AWAY, reason="only root can give a file away")
def test_the_owner_is_that_of_the_content_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    evil = b'[tool.jaxcache]\ncache-dir = "/evil"\n'
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for owner, text in ((65534, evil), (0, b"[tool.jaxcache]\n")):
                new = tmp_path / "new"
                new.write_bytes(text)
                os.chown(new, owner, owner)
                new.rename(path)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(3000):
            file = configuration.read_config_file(str(path))
            assert file is None or (file.text == evil) == bool(file.unsafe)
    finally:
        stop.set()
        thread.join()
