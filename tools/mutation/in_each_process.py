"""Start coverage in each process that a test starts, and name the test of one that is forked.

A child that is killed is first asked to end, or nobody learned what it ran. A file of the environment imports it. A server that forks for each program of a test began with
another test, whose name coverage's configuration would give to all of them.
"""

import contextlib
import os
import subprocess
from pathlib import Path

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()

    def _name_test() -> None:
        recorder = coverage.Coverage.current()
        current = Path(os.environ["MUTATION_CURRENT"], os.environ.get("PYTEST_XDIST_WORKER", ""))
        if recorder is not None:
            with contextlib.suppress(OSError):  # between two tests
                recorder.switch_context(current.read_text(encoding="utf-8"))

    os.register_at_fork(after_in_child=_name_test)
    _kill = subprocess.Popen.kill

    def _ask_to_end(process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        _kill(process)

    subprocess.Popen.kill = _ask_to_end  # type: ignore[method-assign]
