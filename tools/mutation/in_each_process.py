"""Start coverage in each process that a test starts, and name the test of one that is forked.

A file of the environment imports it: a Python started without its ``site`` would run unseen, and so
would one that is killed, which is first asked to end. A server that forks for each program of a
test began with another test, whose name coverage's configuration would give to all of them.
"""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

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

    class _Process(subprocess.Popen[Any]):
        def __init__(self, args: Any, *others: Any, **options: Any) -> None:
            if isinstance(args, list):
                args = [arg for arg in args if arg != "-S"]
            super().__init__(args, *others, **options)

        def kill(self) -> None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(2)
            super().kill()

    subprocess.Popen = _Process  # type: ignore[misc]
