"""The command that a hint prints, with what it names filled in, mends what the command refused."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from acting import act, acts_on, path_of, refused, says
from conftest import RunCli

ENTRIES = 7


@pytest.fixture
def key(filled: Path) -> str:
    return next(filled.glob("*-cache")).name.removesuffix("-cache")


def keys_of(run_cli: RunCli, cache: Path) -> list[str]:
    return run_cli("ls", "-qC", cache).stdout.split()


def _names(cache: Path) -> dict[str, str]:
    return {"JAX_COMPILATION_CACHE_DIR": str(cache)}


Mend = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def mend(run_cli: RunCli, tmp_path: Path) -> Mend:
    """Run a command that is refused with a code, act upon its hint, and run it with success."""

    def run(
        words: tuple[str | Path, ...],
        code: int,
        filled: Mapping[str, str | Path] | None = None,
        *,
        until: str = "\n\n",
        **env: str,
    ) -> "subprocess.CompletedProcess[str]":
        act(refused(run_cli, code, *words), tmp_path, filled, until=until, **env)
        done = run_cli(*words)
        assert done.returncode == 0, done
        return done

    return run


@acts_on("jaxcache ls -q prints every key")
@acts_on("the oldest use was … ago (jaxcache ls shows the last use of each)")
def test_what_is_not_there(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    commands = ("show", "ls", "rm --yes", "pin", "verify", "export x.jxb")
    told = [run_cli(*f"{c} nosuch".split(), "-C", filled).stderr for c in commands]
    (hint,) = {text.partition("hint: ")[2] for text in told}
    used = run_cli("prune", "--unused-for", "99999d", "--yes", "-C", filled).stderr
    for text, until in ((hint, " prints every key"), (used, " shows the last use of each)")):
        listed = act(text, tmp_path, until=until)
        assert len(listed.stdout.splitlines()) == ENTRIES, (text, listed)


@acts_on("jaxcache pin --remove …")
def test_an_entry_that_is_pinned(run_cli: RunCli, filled: Path, key: str, mend: Mend) -> None:
    run_cli("pin", key, "-C", filled)
    mend(("rm", key, "-C", filled, "--yes"), 1)
    assert not (filled / f"{key}-cache").exists()


@acts_on("jaxcache pin lists the pins, and jaxcache pin --remove KEY removes one")
@acts_on("jaxcache pin lists the pins", "… pinned (jaxcache pin lists them)")
def test_pins_above_a_bound(run_cli: RunCli, filled: Path, key: str, tmp_path: Path) -> None:
    run_cli("pin", key, "-C", filled)
    prune = ("prune", "-C", filled, "--yes", "--max-size", "1B")
    hint = refused(run_cli, 1, *prune).partition("hint: ")[2]
    spared = run_cli("prune", "-C", filled, "-n", "--max-entries", "0").stderr
    gone = run_cli("pin", "--remove", "nosuch", "-C", filled).stderr
    for text in (spared, hint, gone):
        assert act(text, tmp_path, until=" lists the").stdout.split()[0] == key
    act(hint.partition(", and ")[2], tmp_path, {"KEY": key}, until=" removes one")
    says(hint)
    assert run_cli(*prune).returncode == 0


@acts_on("the cache is named with -C: …")
@acts_on("name one with -C, such as -C …")
def test_a_directory_in_the_place_of_a_key_or_above_caches(
    run_cli: RunCli, filled: Path, tmp_path: Path
) -> None:
    act(refused(run_cli, 10, "ls", filled), tmp_path)
    told = refused(run_cli, 10, "stats", "-C", tmp_path)
    says(told)
    act(f"jaxcache stats {told.partition('such as ')[2]}", tmp_path)


@acts_on("put its entries into a cache: jaxcache import … -C DIR")
@acts_on("it is a bundle: jaxcache import … adds its entries to the cache")
@acts_on("look into a bundle with: jaxcache show …")
def test_a_bundle_in_the_place_of_a_cache_or_a_recipe(
    run_cli: RunCli, filled: Path, tmp_path: Path
) -> None:
    bundle, one, other = (tmp_path / name for name in ("of mine.jxb", "one", "other"))
    run_cli("export", bundle, "-C", filled)
    listed = act(refused(run_cli, 2, "doctor", "-C", bundle), tmp_path).stdout
    assert len(listed.splitlines()) == ENTRIES
    act(refused(run_cli, 10, "verify", "-C", bundle), tmp_path, {"DIR": one})
    told = refused(run_cli, 1, "compile", bundle, "-C", other)
    act(told, tmp_path, until=" adds its entries", **_names(other))
    assert len(keys_of(run_cli, one)) == len(keys_of(run_cli, other)) == ENTRIES


@acts_on("… is a bundle: jaxcache import --dry-run … checks it, jaxcache ls -C … lists it")
def test_a_bundle_in_the_place_of_a_key(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    run_cli("export", "c.jxb", "-C", filled, cwd=tmp_path)
    lines = [(c, *place) for c in ("ls", "prune", "explain") for place in ((), ("-C", filled))]
    told = [run_cli(*words, "c.jxb", cwd=tmp_path).stderr for words in lines]
    (hint,) = {text.partition("hint: ")[2] for text in told}
    listed = act(hint.partition(" checks it")[2], tmp_path, until=" lists it")
    assert len(listed.stdout.splitlines()) == ENTRIES, (told, listed)
    act(hint, tmp_path, until=" checks it")
    data = (tmp_path / "c.jxb").read_bytes()
    (tmp_path / "c.jxb").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    act(hint, tmp_path, until=" checks it", code=1)


@acts_on("record a recipe of it: jaxcache warm --record ….recipe …")
@acts_on("it is a recipe: jaxcache compile … compiles it into the cache")
@acts_on("run it, and cache what it compiles: jaxcache warm …")
@acts_on("run it and cache what it compiles: jaxcache warm -C DIR …")
@acts_on("check the path, or fill it: jaxcache warm -C … SCRIPT")
@pytest.mark.jax
def test_a_script_in_the_place_of_a_bundle_a_recipe_or_a_cache(
    run_cli: RunCli,
    script: Callable[..., Path],
    jax_python: str,
    here: Path,
    mend: Mend,
    tmp_path: Path,
) -> None:
    path = script("import jax\njax.jit(lambda x: x * 2)(1.0)\n", "a script.py")
    there = tmp_path / "there"
    env = _names(there) | {"PATH": path_of(jax_python)}

    def done(code: int, *words: str | Path, until: str = "\n\n") -> str:
        """What the command of a hint prints."""
        filled = {"DIR": here} if words[0] == "ls" else {}
        return act(refused(run_cli, code, *words), tmp_path, filled, until=until, **env).stdout

    done(1, "import", path, "-C", there)
    assert keys_of(run_cli, there)
    done(1, "compile", path, "-C", there)
    compiled = done(1, "import", f"{path}.recipe", "-C", there, until=" compiles it")
    assert "already-cached" in compiled
    done(10, "ls", "-C", path)
    assert keys_of(run_cli, here)
    words = ("ls", "-q", "-C", tmp_path / "not there")
    assert mend(words, 10, {"SCRIPT": f"'{path}'"}, PATH=env["PATH"]).stdout.strip()


def test_a_directory_in_the_place_of_a_bundle(run_cli: RunCli, filled: Path, here: Path) -> None:
    told = refused(run_cli, 1, "import", filled, "-C", here)
    assert "hint: pull takes the entries of a directory" in told
    assert run_cli("pull", filled, "-C", here).returncode == 0
    assert len(keys_of(run_cli, here)) == ENTRIES


@acts_on("get the file again, or make it again: jaxcache export FILE")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_bundle_that_is_not_there_or_cut_off(
    run_cli: RunCli, filled: Path, here: Path, mend: Mend, is_there: bool
) -> None:
    bundle = here.with_name("c.jxb")
    if is_there:
        run_cli("export", bundle, "-C", filled)
        bundle.write_bytes(bundle.read_bytes()[:3000])
    mend(("import", bundle, "-C", here), 1, {"FILE": bundle}, **_names(filled))


@acts_on("cache not found: …", "or fill it: jaxcache push … -C DIR")
def test_a_source_that_is_not_there(filled: Path, here: Path, mend: Mend) -> None:
    mend(("pull", "not there", "-C", here), 10, {"DIR": f"'{filled}'"})


@acts_on("jaxcache trust keygen NAME makes one")
def test_a_key_that_nobody_made(filled: Path, mend: Mend) -> None:
    words = ("export", "signed.jxb", "--sign", "nobody", "-C", filled)
    mend(words, 2, {"NAME": "nobody"}, until=" makes one")


@acts_on("chmod 600 …, or better a new key: jaxcache trust keygen")
@acts_on("look through it, and then chmod go-w … …")
def test_keys_that_others_may_read_or_write(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    public = run_cli("trust", "keygen", "mine").stdout.split("\t")[1].strip()
    run_cli("trust", "add", "ci", public)
    for name, mode, words in (
        ("mine.key", 0o644, ("export", "signed.jxb", "--sign", "mine", "-C", filled)),
        ("trusted-keys", 0o666, ("trust", "list")),
    ):
        (path,) = tmp_path.rglob(name)
        path.chmod(mode)
        told = refused(run_cli, 12, *words)
        says(told)
        command = re.search(r"chmod [^,\n]+", told)
        assert command, told
        subprocess.run(command[0], shell=True, check=True)
        assert run_cli(*words).returncode == 0


@acts_on("have it made again with: jaxcache … --sign KEY FILE")
@acts_on("if it is the key of somebody that you trust: jaxcache trust add NAME …")
def test_a_bundle_that_must_be_signed(
    run_cli: RunCli, filled: Path, here: Path, mend: Mend, tmp_path: Path
) -> None:
    run_cli("trust", "keygen", "ci")
    run_cli("export", "c.jxb", "-C", filled)
    words = ("import", "c.jxb", "-C", here, "--require-signed")
    told = refused(run_cli, 12, *words)
    (tmp_path / "c.jxb").unlink()
    act(told, tmp_path, {"KEY": "ci", "FILE": "c.jxb"}, **_names(filled))
    mend(words, 12, {"NAME": "ci"})


@acts_on("jaxcache trust here… shows them and asks")
def test_the_settings_of_a_project_above(run_cli: RunCli, clone: Path) -> None:
    below = clone / "a directory"
    below.mkdir()
    told = run_cli("ls", "-q", cwd=below)
    command = told.stderr.partition("; ")[2].partition(" shows them")[0]
    says(told.stderr)
    act(f"{command} --yes", below)
    assert "not trusted" not in run_cli("ls", "-q", cwd=below, env={"HOME": str(below)}).stderr


@acts_on("jaxcache ls -q … prints them")
def test_a_key_of_several_entries(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    told = run_cli("show", "jit_*", "--hlo", "-C", filled)
    assert told.returncode != 0
    keys = act(told.stderr, tmp_path, until=" prints them").stdout.split()
    assert len(keys) > 1 and all(key.startswith("jit_") for key in keys)
    assert "[ambiguous-key]" not in run_cli("show", keys[0], "--hlo", "-C", filled).stderr


@acts_on("jaxcache trust remove …, if that is meant")
def test_a_name_that_another_key_has(run_cli: RunCli, mend: Mend) -> None:
    keys = [run_cli("trust", "keygen", name).stdout.split("\t")[1].strip() for name in ("a", "b")]
    run_cli("trust", "add", "ci", keys[0])
    mend(("trust", "add", "ci", keys[1]), 2, until=", if that")


@acts_on("jaxcache import … -C DIR, and look there")
def test_a_bundle_of_torch(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    made = run_cli("export", "torch.jxb", "-C", torch_cache)
    assert made.returncode == 0, made
    told = run_cli("ls", "-C", tmp_path / "torch.jxb")
    assert told.returncode != 0
    place = tmp_path / "place"
    act(told.stderr, tmp_path, {"DIR": place}, until=", and look")
    # In any order: it is that of their last use, which a copy of a cache that was read keeps.
    assert {*keys_of(run_cli, place)} == {*keys_of(run_cli, torch_cache)} != set()


@acts_on("jaxcache verify reports the problem")
def test_an_entry_that_cannot_be_shown(
    run_cli: RunCli, filled: Path, key: str, tmp_path: Path
) -> None:
    path = filled / f"{key}-cache"
    path.write_bytes(path.read_bytes()[:-9])
    os.utime(path, (1e9, 1e9))
    told = run_cli("show", key, "--hlo", "-C", filled)
    assert "[bad-entry]" in told.stderr, told
    assert key in act(told.stderr, tmp_path, until=" reports", code=1).stdout


@pytest.mark.parametrize(
    ("name", "text", "cure"),
    [
        pytest.param(
            *("AWS_ENDPOINT_URL", "", "unset AWS_ENDPOINT_URL, or set it to http://HOST:PORT"),
            marks=acts_on("unset …, or set it to http://HOST:PORT"),
        ),
        pytest.param(
            *("AWS_CA_BUNDLE", "/nowhere", "unset AWS_CA_BUNDLE"),
            marks=acts_on("name a PEM file of certificates, or unset AWS_CA_BUNDLE"),
        ),
    ],
)
def test_a_variable_of_buckets(run_cli: RunCli, name: str, text: str, cure: str) -> None:
    env = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    words = ("ls", "-C", "s3://bucket/x")
    assert says(run_cli(*words, env=env | {name: text}).stderr, cure)
    assert name not in run_cli(*words, env=env).stderr


@acts_on("no checksum: JAX itself would not notice a changed byte; see jaxcache seal")
def test_entries_without_a_checksum(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    words = ("verify", "--level", "full", "--jsonl", "-C", filled)
    told = run_cli(*words).stdout
    says(told)
    act(
        told.partition("no checksum")[2].partition("see ")[2], tmp_path, until='"', **_names(filled)
    )
    assert "no checksum" not in run_cli(*words).stdout


@acts_on("jaxcache trust keygen makes a pair")
def test_a_key_that_is_none(run_cli: RunCli, tmp_path: Path) -> None:
    told = refused(run_cli, 2, "trust", "add", "ci", "AAAA")
    says(told)
    command = told.partition("hint: ")[2].replace("makes a pair", "mine")
    key = act(command, tmp_path).stdout.split("\t")[1].strip()
    assert run_cli("trust", "add", "ci", key).returncode == 0


@acts_on("see jaxcache trust list")
def test_a_project_that_is_not_trusted(run_cli: RunCli, clone: Path, tmp_path: Path) -> None:
    run_cli("trust", "here", "--yes", cwd=clone)
    told = run_cli("trust", "remove", tmp_path / "pyproject.toml")
    listed = act(told.stderr, tmp_path).stdout.split("\t")[0]
    assert run_cli("trust", "remove", listed).returncode == 0


@acts_on("jaxcache target capture FILE makes one, on the host that it is about")
@pytest.mark.jax
def test_a_profile_that_is_not_there(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    words = ("target", "show", "mine.json")
    told = refused(run_cli, 2, *words)
    act(told, tmp_path, {"FILE": f"mine.json --python {jax_python}"}, until=" makes one")
    assert run_cli(*words).stdout.startswith("devices")


@acts_on("…jaxcache stats lists them")
def test_files_above_a_bound(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    side = filled / "xla_gpu_per_fusion_autotune_cache_dir"
    side.mkdir()
    (side / "a.textproto").write_bytes(b"x" * 9000)
    words = ("prune", "--max-size", "3kB", "--grace", "0s", "-C", filled, "--yes")
    told = refused(run_cli, 1, *words)
    options = [w for w in told.partition("hint: ")[2].split() if w.startswith("--")]
    listed = act(told.partition("files, too; ")[2], tmp_path, until=" lists them")
    says(told)
    assert "9000" in listed.stdout
    assert run_cli(*words, *options).returncode == 0
