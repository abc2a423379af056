"""The layers that tell two programs apart, as JAX lowers them."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import clean_environment

pytestmark = pytest.mark.jax


def test_the_layers_that_differ_are_those_of_the_edit(each_jax_python: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("layers_program.py")
    env = clean_environment(tmp_path) | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run([each_jax_python, program], env=env, capture_output=True, check=True)
    assert json.loads(done.stdout) == {}
