"""Commands on URLs: what they do there, and what they ask for."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import show_on_terminal
from conftest import RunCli
from object_server import Proxy, S3Server, times
from tls_proxy import TlsProxy, run_tls_proxy
from ways import names, told

ENTRIES = 7


def test_a_bucket_is_listed_without_reading(run_cli: RunCli, remote: str, s3: Proxy) -> None:
    found = told(run_cli, "ls", "-C", remote, "--requests")
    assert found["cache_dir"] == remote
    facts = [(e["compile_seconds"], e["platform"]) for e in found["entries"]]
    assert facts == [(None, "unknown")] * ENTRIES
    assert found["remote"]["requests"] == {"list": 1} == s3.counts()
    long = told(run_cli, "ls", "-C", remote, "--long", "--requests")
    assert {e["platform"] for e in long["entries"]} == {"cpu"}
    # The index knows them from now on, and so a plain listing tells them, too.
    s3.forget()
    assert told(run_cli, "ls", "-C", remote)["entries"] == long["entries"]
    assert s3.counts() == {"list": 1}
    assert "use --long" not in run_cli("ls", "-C", remote).stderr


def test_compile_time_that_was_not_read_is_not_called_short(remote: str, tmp_path: Path) -> None:
    for line, said in (
        ("ls", "7 entries"),
        ("ls --group-by module", "7 entries"),
        ("stats", "compile time not read (--long reads it)"),
        ("stats --long", "<1 s each"),
    ):
        shown = show_on_terminal((*line.split(), "-C", remote), home=tmp_path, width=80).stdout
        assert said in shown
        assert "1 s" not in shown or "--long" in line


def test_ls_names_the_caches_below(run_cli: RunCli, bucket: str, local: Path) -> None:
    for name in ("one", "two"):
        assert run_cli("push", f"{bucket}/{name}", "-C", local).returncode == 0
    done = run_cli("ls", "-C", bucket)
    assert done.stdout == ""
    for name in ("one", "two"):
        assert f"7 files of another cache; to read that one, add /{name} to -C" in done.stderr
    assert "another program" not in done.stderr


def test_requests_of_listings(run_cli: RunCli, bucket: str, s3: Proxy, s3_server: S3Server) -> None:
    s3_server.fill(bucket, [f"jit_f-{i:064x}-cache" for i in range(2_100)])
    for command in ("ls", "stats"):
        s3.forget()
        found = told(run_cli, command, "-C", bucket, "--requests")
        assert len(found.get("entries", range(2_100))) == 2_100
        assert found["remote"]["requests"] == s3.counts() == {"list": 3}
    s3.forget()
    key = f"jit_f-{2_077:064x}"
    assert told(run_cli, "show", key, "-C", bucket, code=1)["entry"]["key"] == key
    assert s3.counts()["list"] == 2  # for a whole key not all of it: a page, and the ledger
    s3.forget()
    prune = "prune --max-entries 1100 --policy lru --grace 0s --yes --requests"
    assert len(told(run_cli, *prune.split(), "-C", bucket)["removed"]) == 1_000
    # The ledger, the cache, once more the stretch of names that goes, and one for all of them.
    assert s3.counts()["delete"] == 1
    assert s3.counts()["list"] <= 3 + 1 + 3
    assert set(s3.counts()) == {"list", "delete"}


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (("stats",), {"list": 2}),
        (("ls", "--long"), {"list": 1, "get": ENTRIES}),
        (("stats", "--long"), {"list": 2, "get": ENTRIES + 1}),
        (("show", "jit_mlp*"), {"list": 2, "get": 2}),
        (("verify",), {"list": 4, "get": ENTRIES}),
        (("rm", "jit_mlp*", "-y"), {"list": 2, "head": 1, "delete": 1}),
        (("prune", "--unused-for", "1d", "-y"), {"list": 2}),
        (("pull", "URL"), {"list": 3, "get": ENTRIES}),
        (("export", "out.jxb"), {"list": 2, "get": ENTRIES}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_each_command_costs(
    run_cli: RunCli, remote: str, s3: Proxy, command: tuple[str, ...], most: dict[str, int]
) -> None:
    place = () if "URL" in command else ("-C", remote)
    done = run_cli(*(remote if a == "URL" else a for a in command), *place, "--requests")
    assert done.returncode == 0, done.stderr
    assert all(s3.counts()[verb] <= most.get(verb, 0) for verb in s3.counts()), s3.counts()
    line = re.search(r"(\d+) requests? \((.*?)\), .* sent, .* received", done.stderr)
    assert line, done.stderr
    counted = {v: int(n) for n, v in (w.split() for w in line[2].split(", "))}
    assert (int(line[1]), counted) == (s3.counts().total(), dict(s3.counts()))


def test_a_local_cache_costs_nothing(run_cli: RunCli, local: Path) -> None:
    assert told(run_cli, "ls", "-C", local, "--requests")["remote"]["requests_total"] == 0
    assert "remote" not in told(run_cli, "ls", "-C", local)


def test_the_other_commands(run_cli: RunCli, remote: str, local: Path, tmp_path: Path) -> None:
    here, there = (told(run_cli, "show", "jit_mlp*", "-C", cache) for cache in (local, remote))
    assert there["program"] == here["program"]
    assert run_cli("diff", local, remote).returncode == 0
    assert run_cli("export", tmp_path / "b.jxb", "-C", remote).returncode == 0
    assert run_cli("diff", tmp_path / "b.jxb", remote).returncode == 0
    copied = f"{remote}-copy"
    assert run_cli("copy", remote, copied).returncode == 0
    assert run_cli("copy", copied, tmp_path / "back").returncode == 0
    assert run_cli("diff", local, tmp_path / "back").returncode == 0
    assert run_cli("import", tmp_path / "b.jxb", "-C", f"{remote}-import").returncode == 0
    assert run_cli("diff", local, f"{remote}-import").returncode == 0
    assert run_cli("rm", "jit_mlp*", "-C", copied, "--yes").returncode == 0
    assert run_cli("diff", local, copied).returncode == 1


def test_a_rotten_object(run_cli: RunCli, remote: str, local: Path, s3_server: S3Server) -> None:
    victim = min(names(local))
    s3_server.put(remote, victim, (local / victim).read_bytes()[:-9])
    found = told(run_cli, "verify", "-C", remote, "--grace", "0s", code=1)
    assert {p["kind"] for p in found["problems"]} == {"truncated"}
    for options in (("--fix", "--grace", "0s"), ()):
        assert run_cli("verify", "-C", remote, *options).returncode == 0
    assert len(told(run_cli, "ls", "-C", remote)["entries"]) == ENTRIES - 1
    # What is missing comes back with the next push.
    assert told(run_cli, "push", remote, "-C", local)["carried"][0]["file"] == victim
    assert run_cli("diff", local, remote).returncode == 0


def test_seal_and_pins_in_a_bucket(run_cli: RunCli, remote: str, local: Path) -> None:
    assert run_cli("seal", "-C", remote).returncode == 0
    assert "7 match their checksum" in run_cli("verify", "-C", remote).stderr
    assert run_cli("diff", local, remote).returncode == 0  # the same payloads
    assert run_cli("pin", "jit_mlp*", "-C", remote).returncode == 0
    prune = ("prune", "--max-entries", "1", "--grace", "0s", "--yes")
    assert run_cli(*prune, "-C", remote).returncode == 0
    (left,) = told(run_cli, "ls", "-C", remote)["entries"]
    assert left["module"] == "jit_mlp"


def test_errors_are_sentences_and_have_codes(
    run_cli: RunCli,
    remote: str,
    local: Path,
    tmp_path: Path,
    s3: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def code(*args: str | Path, **env: str) -> tuple[int, str]:
        done = run_cli(*args, "--json", env=env)
        assert "Traceback" not in done.stderr
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["exit_code"] == done.returncode
        return done.returncode, error["code"]

    assert code("ls", "-C", "s3://no-such-bucket") == (10, "no-bucket")
    assert code("push", "s3://no-such-bucket", "-C", local) == (10, "no-bucket")
    (tmp_path / "here").mkdir()
    for line in (
        *("pull {}", "ls -C {}", "prune --max-size 1 -C {}", "rm jit_f -C {}"),
        *("push there -C {}", "diff {} here", "copy {} there"),
    ):
        assert code(*line.format(f"{remote}-nothing").split()) == (10, "no-cache"), line
    assert "check the path in the URL" in run_cli("ls", "-C", f"{remote}-nothing").stderr
    with monkeypatch.context() as patch:
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        assert code("ls", "-C", remote) == (10, "no-credentials")
    assert code("ls", "-C", remote, AWS_ENDPOINT_URL="http://127.0.0.1:9") == (10, "no-network")
    for line, refused, error in (
        (f"ls -C {remote.replace('s3', 's3a', 1)}", "401 list", "no-credentials"),
        (f"ls -C {remote}", "403 list", "permission-denied"),
        (f"ls -C {remote}", "405 list", "no-listing"),
        (f"verify -C {remote}", "403 get", "permission-denied"),
        (f"push {remote}-new -C {local}", "403 put", "read-only"),
    ):
        status, verb = refused.split()
        s3.forget()
        s3.fault = times(99, int(status), verb)
        assert code(*line.split()) == (10, error), line
        refused_names = [seen.name for seen in s3.seen if seen.status == int(status)]
        assert len(refused_names) == len({*refused_names}) > 0  # each was asked for once
    assert code("push", "https://127.0.0.1:9/x", "-C", local) == (10, "read-only")


def test_throttling_is_told_once_and_waited_for(spawn_cli: RunCli, remote: str, s3: Proxy) -> None:
    statuses = {"list": [503, 503], "get": [429]}
    s3.fault = lambda seen: (
        next(iter(statuses.get(seen.verb, ())), None) and (statuses[seen.verb].pop())
    )
    done = spawn_cli("ls", "-C", remote, "--long", "-q", "--requests")
    assert done.returncode == 0
    assert done.stderr.count(f"{remote} asks to slow down; waiting") == 1
    assert f"{4 + ENTRIES} requests ({1 + ENTRIES} get, 3 list)" in done.stderr
    assert "3 sent again, 3 throttled" in done.stderr


# Buckets behind a proxy whose certificate only a private authority vouches for.


pytest.importorskip("cryptography")


#: A name of Kubernetes, as where MinIO serves a cluster; only the proxy knows it.
HOST = "objects.team.svc.cluster.local"


@pytest.fixture
def behind(s3: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsProxy]:
    """A proxy through which the bucket is reached, and which nobody trusts yet."""
    for name in ("AWS_ALLOW_HTTP", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with run_tls_proxy(s3.endpoint, HOST, tmp_path) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://{HOST}")
        yield proxy


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_push_and_pull_through_a_proxy_with_a_private_authority(
    spawn_cli: RunCli, bucket: str, local: Path, tmp_path: Path, behind: TlsProxy, variable: str
) -> None:
    trust = {variable: str(behind.authority)}
    assert spawn_cli("push", bucket, "-C", local, env=trust).returncode == 0
    assert spawn_cli("pull", bucket, "-C", tmp_path / "new", env=trust).returncode == 0
    assert names(tmp_path / "new") == names(local)
    assert set(behind.tunnels) == {f"{HOST}:443"}


def test_nobody_trusts_it(spawn_cli: RunCli, bucket: str, local: Path, behind: TlsProxy) -> None:
    done = spawn_cli("push", bucket, "-C", local)
    assert (done.returncode, "certificate" in done.stderr) == (10, True), done.stderr
    assert "AWS_CA_BUNDLE" in done.stderr


def test_a_bundle_without_certificates_is_refused_by_name(
    run_cli: RunCli, bucket: str, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authorities.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    for fault in ("cannot be read", "holds no certificate"):
        done = run_cli("push", bucket, "-C", local)
        assert done.returncode == 2, done.stderr
        assert f"AWS_CA_BUNDLE names {path}, which {fault}" in done.stderr
        path.write_text("text")
