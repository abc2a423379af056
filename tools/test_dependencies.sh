#!/usr/bin/env bash
# The tests that need no JAX, with the lowest versions that pyproject.toml admits, or the newest. pytest
# and the like are always the newest.
#   tools/test_dependencies.sh PYTHON lowest-direct|highest [OPTION OF PYTEST]...
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
resolution=$2
shift 2
venv=$PWD/.venvs/$resolution
uv=${UV:-uv}
extras='.[gpu,remote,sign,report]'
[ -e "$venv/bin/python" ] || "$uv" venv --quiet --python "$python" "$venv"
"$uv" pip install --quiet --python "$venv/bin/python" --resolution "$resolution" --editable "$extras"
"$uv" pip install --quiet --python "$venv/bin/python" pytest pytest-xdist hypothesis pyyaml zstandard \
  types-protobuf filelock jsonschema
"$uv" pip list --quiet --python "$venv/bin/python" |
  grep -E '^(typer|humanize|rich|backports.zstd|protobuf|obstore|cryptography|plotly|cramjam) '
"$venv/bin/python" tools/gen.py --check
# The page of report holds plotly's script, whose size the golden record has.
"$venv/bin/python" -m pytest -q --deselect 'tests/test_golden.py::test_output_is_as_recorded[report]' -n 2 -p no:cacheprovider -m 'not slow and not jax' "$@"
