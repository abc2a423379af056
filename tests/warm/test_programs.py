"""The rule of JAX's thresholds: who lifts them, and what then holds in the program."""

import pytest

from jaxcache.options.run import RunOptions, WarmOptions
from jaxcache.warm.programs import effective_thresholds

SECONDS = "jax_persistent_cache_min_compile_time_secs"


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        (WarmOptions(), 0.0),
        (RunOptions(scratch="/tmp/scratch"), 0.0),
        (RunOptions(), 5.0),
    ],
    ids=["warm", "a run that keeps nothing", "run"],
)
def test_warm_lifts_the_threshold_and_run_leaves_it(
    options: RunOptions, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECONDS.upper(), "5")
    assert effective_thresholds(options)[SECONDS] == seconds


def test_without_a_setting_jax_has_its_own_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECONDS.upper(), raising=False)
    assert effective_thresholds(RunOptions())[SECONDS] == 1.0
