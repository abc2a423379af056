"""``jaxcache where``: the directory alone; what a command uses is in the integration tests."""

import json
import sys
from pathlib import Path

from conftest import RunCli


def test_without_a_command_the_directory_is_printed(run_cli: RunCli, tmp_path: Path) -> None:
    assert run_cli("where").stdout == f"{tmp_path}/.cache/jax\n"
    set_here = {"JAX_COMPILATION_CACHE_DIR": "/srv/jax"}
    assert run_cli("where", env=set_here).stdout == "/srv/jax\n"
    assert run_cli("where", "-C", "s3://b/c", env=set_here).stdout == "s3://b/c\n"
    document = json.loads(run_cli("where", "--json", env=set_here).stdout)
    assert document == {"schema_version": 1, "cache_dir": "/srv/jax", "processes": []}


def test_a_process_that_has_ended_cannot_be_stopped(run_cli: RunCli, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, socket, subprocess\n"
        "gone = subprocess.Popen(['true'])\n"
        "gone.wait()\n"
        "with socket.socket(socket.AF_UNIX) as listener:\n"
        "    listener.connect(os.environ['JAXCACHE_EVENTS'])\n"
        "    for event in (\n"
        "        {'event': 'start', 'pid': gone.pid},\n"
        "        {'event': 'jax', 'jax': '0.10.2'},\n"
        "        {'event': 'settings', 'opened_directory': '/srv/jax'},\n"
        "    ):\n"
        "        listener.sendall(json.dumps(event).encode() + b'\\n')\n"
    )
    done = run_cli("where", "--stop", "--", sys.executable, program)
    assert (done.returncode, done.stdout) == (0, "/srv/jax\n"), done.stderr


def test_a_command_that_ran_out_of_time_is_not_said_to_import_no_jax(run_cli: RunCli) -> None:
    done = run_cli("where", "--timeout", "0.1s", "--", "sleep", "60")
    said = "no Python below it imported jax within 0.1 s"
    assert (done.returncode, said in done.stderr) == (10, True)


def test_a_tilde_that_no_shell_has_expanded(run_cli: RunCli) -> None:
    for command in ("ls", "doctor"):
        done = run_cli(command, env={"JAX_COMPILATION_CACHE_DIR": "~/jax-cache"})
        assert (done.returncode, "JAX does not expand ~" in done.stderr) == (10, True)
