"""Run the steps of GitLab and Buildkite files, as far as the examples need it.

GitLab: ``before_script`` and ``script`` in one bash, ``cache`` with ``fallback_keys``, which a
successful job writes anew, and with ``when: always`` every job, files of ``artifacts`` for the jobs that ``needs`` them, and the report
of dotenv; ``parallel`` and ``tags`` are the caller's. Buildkite: ``commands`` in one bash, after
``pipeline upload`` has replaced ``$NAME`` and ``${NAME}``, and ``$$`` by ``$``.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from tools.ci.caches import CacheStore
from tools.ci.steps import Run, Step, read_commands


def run_gitlab(file: Path, job: str, project: Path, caches: CacheStore, env: dict[str, str]) -> Run:
    """Run one job of a GitLab file."""
    whole = yaml.safe_load(file.read_text())
    document = whole[job]
    env = env | {"CI_PROJECT_DIR": str(project)}
    for name, value in (whole.get("variables", {}) | document.get("variables", {})).items():
        env[name] = _expand(str(value), env)
    for needed in document.get("needs", ()):
        shutil.copytree(caches.directory / f"artifacts {needed}", project, dirs_exist_ok=True)
    cache = document.get("cache", {"key": "", "paths": ()})
    keys = [_expand(k, env) for k in (cache["key"], *cache.get("fallback_keys", ()))]
    paths = [project / p.rstrip("/") for p in cache["paths"]]
    for path in paths:
        there = {name for name, _ in caches.saved(path)}
        if key := next((k for k in keys if k in there), None):
            caches.restore(path, key, [])
    script = "\n".join([*document.get("before_script", ()), *document["script"]])
    run = Run([_script("script", f"set -eo pipefail\n{script}", project, env)])
    if not run.failed or cache.get("when") == "always":
        for path in paths:
            caches.save(path, keys[0], replace=True)
    if not run.failed:
        for name in document.get("artifacts", {}).get("paths", ()):
            kept = caches.directory / f"artifacts {job}" / name
            kept.parent.mkdir(parents=True, exist_ok=True)
            if (project / name).exists():
                shutil.copy(project / name, kept)
    report = document.get("artifacts", {}).get("reports", {}).get("dotenv")
    if report and (project / report).exists():
        run.outputs["dotenv"] = read_commands((project / report).read_text())
    return run


def run_buildkite(file: Path, checkout: Path, env: dict[str, str]) -> Run:
    """Run the commands of every step of a Buildkite pipeline."""
    document = yaml.safe_load(file.read_text())
    env = env | {k: str(v) for k, v in document.get("env", {}).items()}
    run = Run()
    for step in document["steps"]:
        commands = (_interpolate(command, env) for command in step["commands"])
        text = "\n".join(["set -e", *commands])
        run.steps.append(_script(step["label"], text, checkout, env))
    return run


def _script(name: str, text: str, directory: Path, env: dict[str, str]) -> Step:
    done = subprocess.run(
        ["bash", "-c", text],
        env=env,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Step(name, done.returncode, done.stdout)


def _interpolate(text: str, env: Mapping[str, str]) -> str:
    """Replace variables as ``buildkite-agent pipeline upload`` does, before the job's shell."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1] or match[2], "")

    return re.sub(r"\$\$|\$([A-Za-z]\w*)|\$\{(\w+)\}", replaced, text)


def _expand(text: str, env: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda m: env.get(m[1] or m[2], ""), text)
