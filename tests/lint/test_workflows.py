"""What the workflows promise: order and permissions of a release, the Pythons of the tests.

What the workflows mean was looked up in the documentation of their actions; no runner is here.
"""

import tomllib
from typing import Any

import yaml
from conftest import REPOSITORY

WORKFLOWS = REPOSITORY / ".github" / "workflows"


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text("utf-8"))


def index_of_step(steps: list[dict[str, Any]], text: str) -> int:
    """Return the index of the only step that has the text in its command, action or inputs."""
    indexes = [index for index, step in enumerate(steps) if text in str(step)]
    assert len(indexes) == 1, (text, indexes)
    return indexes[0]


def test_a_release_is_tested_before_it_is_built_and_its_sbom_is_of_the_built_wheel() -> None:
    steps = read("release.yml")["jobs"]["build"]["steps"]
    order = [
        index_of_step(steps, text)
        for text in (
            "actions/checkout@",
            "the changelog has it",
            "'make test'",
            "'make test-jax'",
            "python -m build",
            "'name': 'dist'",
            "cyclonedx-py environment",
            "'name': 'sbom'",
        )
    ]
    assert order == sorted(order)
    commands = steps[index_of_step(steps, "cyclonedx-py environment")]["run"].splitlines()
    installation = next(i for i, line in enumerate(commands) if "install dist/*.whl" in line)
    assert commands[-1].startswith("cyclonedx-py environment")
    assert installation < len(commands) - 1


def test_a_release_is_attested_before_it_is_published() -> None:
    job = read("release.yml")["jobs"]["publish"]
    assert job["needs"] == "build"
    steps = job["steps"]
    attest_sbom = index_of_step(steps, "sbom-path")
    attest_provenance = index_of_step(steps, "'subject-path': 'dist/*'}")
    publish = index_of_step(steps, "pypa/gh-action-pypi-publish@")
    downloads = [index for index, step in enumerate(steps) if "download-artifact" in step["uses"]]
    assert max(downloads) < attest_provenance < publish
    assert max(downloads) < attest_sbom < publish
    assert publish == len(steps) - 1


def test_the_sbom_is_not_in_the_directory_that_is_published() -> None:
    steps = read("release.yml")["jobs"]["publish"]["steps"]
    sbom = steps[index_of_step(steps, "'name': 'sbom'")]["with"]
    assert "path" not in sbom
    assert steps[index_of_step(steps, "sbom-path")]["with"]["sbom-path"] == "sbom.json"


def test_only_the_job_that_publishes_may_sign() -> None:
    workflow = read("release.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["build"]
    assert workflow["jobs"]["publish"]["permissions"] == {
        "id-token": "write",
        "attestations": "write",
        "contents": "read",
    }


def test_the_tests_run_on_each_python_that_the_package_names() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    named = [text.removeprefix(prefix) for text in project["classifiers"] if prefix in text]
    assert read("test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
