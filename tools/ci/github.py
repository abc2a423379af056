"""Run the steps of a GitHub workflow here, as far as the examples of this project need it.

``python -m tools.ci.github examples/ci/github-cache.yml --workspace DIR --caches DIR`` runs every
step of every job. What is modelled, and how:

* ``run`` steps: real bash in an environment of its own, with the runner's files (``GITHUB_OUTPUT``,
  ``GITHUB_ENV``, ``GITHUB_PATH``, ``GITHUB_STEP_SUMMARY``) read back as GitHub documents them.
* ``${{ }}``: the contexts, operators and functions that the examples use, and no others.
* ``actions/cache/restore`` and ``/save``: an archive of the path under its key; an exact match
  first, then the newest whose key begins with the key, then so with each restore key; a key that
  is taken is not saved again; the path is part of what is looked up.
* ``actions/checkout`` and ``actions/setup-python``: nothing. The workspace is there, and the
  Python is the one that ``PATH`` finds.
* ``actions/upload-artifact`` and ``/download-artifact``: one file by the artifact's name.
* the action of this repository: its steps, with its inputs and outputs.

A matrix, ``needs`` and the labels of runners are the caller's: it names the jobs to run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.ci.caches import CacheStore
from tools.ci.expressions import evaluate, show, truthy
from tools.ci.steps import Run, Step, read_commands

ACTION = Path(__file__).parents[2] / "action.yml"
_NOTHING_TO_DO = ("actions/checkout@", "actions/setup-python@")


class GitHub:
    """A runner for one job after the other, each beginning with what the workspace holds.

    Args:
        env: the machine's environment; nothing else reaches a step.
        contexts: ``github`` and ``secrets``, where an example asks for more than the defaults.
    """

    def __init__(
        self,
        workspace: Path,
        caches: CacheStore,
        env: Mapping[str, str],
        contexts: Mapping[str, Any] | None = None,
    ) -> None:
        self.workspace, self.caches = workspace, caches
        # On every machine the same path, and empty.
        self._temp = workspace.parent / "_runner"
        shutil.rmtree(self._temp, ignore_errors=True)
        self._env = dict(env)
        given = {k: dict(v) for k, v in (contexts or {}).items()}
        self._contexts: dict[str, Any] = {
            "github": {
                "workspace": str(workspace),
                "ref": "refs/heads/main",
                "event_name": "push",
            }
            | given.pop("github", {}),
            "runner": {"temp": str(self._temp / "temp"), "os": "Linux"},
            "secrets": {},
            "steps": {},
            **given,
        }
        (self._temp / "temp").mkdir(parents=True)

    def run(self, workflow: Path, only: str = "") -> Run:
        """Run every job of a workflow, one after the other, or only one of them."""
        document = yaml.safe_load(workflow.read_text())
        run = Run()
        for name, job in document["jobs"].items():
            if only not in ("", name):
                continue
            env = (document.get("env") or {}) | (job.get("env") or {})
            self._env |= {k: self._fill(v) for k, v in env.items()}
            for step in job["steps"]:
                self._step(step, run, self._contexts)
        run.outputs = {k: v["outputs"] for k, v in self._contexts["steps"].items()}
        return run

    def _fill(self, value: Any, contexts: Mapping[str, Any] | None = None) -> str:
        contexts = contexts or self._contexts
        text = str(value)
        return re.sub(r"\$\{\{(.*?)\}\}", lambda m: show(evaluate(m[1], contexts)), text)

    def _step(self, step: dict[str, Any], run: Run, contexts: dict[str, Any]) -> None:
        name = step.get("name") or step.get("uses") or step["run"].splitlines()[0]
        contexts = {**contexts, "job": {"status": "failure" if run.failed else "success"}}
        state = {**contexts, "failed": bool(run.failed)}
        condition = str(step.get("if", "success()")).strip()
        if condition.startswith("${{"):
            condition = condition[3:-2]
        if not re.search(r"\b(always|success|failure)\(\)", condition):
            condition = f"success() && ({condition})"
        if not truthy(evaluate(condition, state)):
            run.steps.append(Step(name, skipped=True))
            return
        env = {k: self._fill(v, contexts) for k, v in (step.get("env") or {}).items()}
        given = {k: self._fill(v, contexts) for k, v in (step.get("with") or {}).items()}
        outputs: dict[str, str] = {}
        if "run" in step:
            run.steps.append(
                self._bash(name, self._fill(step["run"], contexts), step, env, run, outputs)
            )
        else:
            self._use(step["uses"], given, run, outputs)
        if "id" in step:
            contexts["steps"][step["id"]] = {"outputs": outputs}

    def _bash(
        self,
        name: str,
        text: str,
        step: dict[str, Any],
        env: dict[str, str],
        run: Run,
        outputs: dict[str, str],
    ) -> Step:
        script = self._temp / "step.sh"
        script.write_text(text)
        files = {
            n: self._temp / n
            for n in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
        }
        for path in files.values():
            path.write_text("")
        shell = ["bash", "-e"]
        if step.get("shell") == "bash":
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]
        done = subprocess.run(
            [*shell, str(script)],
            env=self._env
            | env
            | {n: str(p) for n, p in files.items()}
            | {
                "RUNNER_TEMP": str(self._temp / "temp"),
                "GITHUB_ACTION_PATH": str(ACTION.parent),
                "GITHUB_WORKSPACE": str(self.workspace),
                "CI": "true",
            },
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        outputs |= read_commands(files["GITHUB_OUTPUT"].read_text())
        self._env |= read_commands(files["GITHUB_ENV"].read_text())
        for line in files["GITHUB_PATH"].read_text().splitlines():
            self._env["PATH"] = f"{line}{os.pathsep}{self._env['PATH']}"
        run.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        return Step(name, done.returncode, done.stdout)

    def _use(self, uses: str, given: dict[str, str], run: Run, outputs: dict[str, str]) -> None:
        if uses.startswith(_NOTHING_TO_DO):
            run.steps.append(Step(uses))
        elif uses.startswith("actions/cache/restore@"):
            path = self.workspace / given["path"]
            looser = [k for k in given.get("restore-keys", "").split("\n") if k]
            matched = self.caches.restore(path, given["key"], looser)
            outputs |= {
                "cache-primary-key": given["key"],
                "cache-matched-key": matched,
                "cache-hit": show(matched == given["key"]) if matched else "",
            }
            run.steps.append(Step(uses, output=f"restored {matched}"))
        elif uses.startswith("actions/cache/save@"):
            saved = self.caches.save(self.workspace / given["path"], given["key"])
            run.steps.append(Step(uses, output=f"saved {given['key']}: {saved}"))
        elif uses.startswith("actions/upload-artifact@"):
            artifact = self.caches.directory / f"artifact {given['name']}"
            artifact.mkdir(parents=True)
            shutil.copy(self.workspace / given["path"], artifact)
            run.steps.append(Step(uses))
        elif uses.startswith("actions/download-artifact@"):
            artifact = self.caches.directory / f"artifact {given['name']}"
            shutil.copytree(artifact, self.workspace, dirs_exist_ok=True)
            run.steps.append(Step(uses))
        elif re.fullmatch(r"[\w-]+/jaxcache@\S+", uses):
            self._composite(given, run, outputs)
        else:
            raise NotImplementedError(f"uses: {uses}")

    def _composite(self, given: dict[str, str], run: Run, outputs: dict[str, str]) -> None:
        action = yaml.safe_load(ACTION.read_text())
        unknown = given.keys() - action["inputs"].keys()
        if unknown:
            raise KeyError(f"the action has no inputs {unknown}")
        inputs = {n: given.get(n, show(v.get("default"))) for n, v in action["inputs"].items()}
        contexts = {**self._contexts, "inputs": inputs, "steps": {}}
        for step in action["runs"]["steps"]:
            self._step(step, run, contexts)
        for name, output in action["outputs"].items():
            outputs[name] = self._fill(output["value"], contexts)


def main() -> int:
    """Run a GitHub workflow and show what each step said."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workflow", type=Path)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--caches", type=Path, required=True, help="where archives are kept")
    args = parser.parse_args()
    runner = GitHub(args.workspace.resolve(), CacheStore(args.caches.resolve()), os.environ)
    run = runner.run(args.workflow)
    for step in run.steps:
        print(f"--- {step.name}: {'skipped' if step.skipped else step.code}\n{step.output}", end="")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
