"""What documents say of the live layer's settings, and the manifests, are as the code has them."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY

from jaxcache import enable
from jaxcache.live.process import COUNTERS, SUMS
from jaxcache.live.settings import SETTINGS, resolve

PAGE = (REPOSITORY / "docs" / "live.md").read_text()


def settings_of(table: str) -> set[str]:
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}


def test_every_setting_and_only_they_are_documented() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    table = page.partition("## The live layer")[2].partition("\n## ")[0]
    assert settings_of(table) == set(SETTINGS)


def test_the_settings_that_the_page_explains_exist() -> None:
    named = settings_of(PAGE.partition("## Settings")[2].partition("## What happens")[0])
    assert named <= set(SETTINGS)
    assert len(named) > 10


def test_the_help_of_enable_names_every_setting() -> None:
    told = inspect.getdoc(enable) or ""
    own = {*inspect.signature(enable).parameters, "enabled", "portable_keys"}
    for name in (setting.replace("-", "_") for setting in SETTINGS):
        assert name in own or re.search(rf"\b{name}\b", told), name
    assert "docs/" not in told


def test_the_counters_that_are_named_exist() -> None:
    text = PAGE.partition("## Counters")[2].partition("## Take it away")[0]
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", text.partition("Among them:")[2]))
    assert named <= {*COUNTERS, *SUMS}
    assert len(named) > 10


MANIFESTS = sorted((REPOSITORY / "examples" / "kubernetes").glob("*.yaml"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_the_manifests_set_what_exists(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    (manifest,) = (each for each in documents if each["kind"] == "Deployment")
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    volumes = {v["name"] for v in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        assert {m["name"] for m in container["volumeMounts"]} <= volumes
        for variable in container.get("env", []):
            monkeypatch.setenv(variable["name"], variable["value"])
    assert resolve()["enabled"] is ("JAXCACHE_LIVE" in path.read_text())
    assert (
        manifest["spec"]["selector"]["matchLabels"]
        == (manifest["spec"]["template"]["metadata"]["labels"])
    )
