#!/usr/bin/env bash
# Generates completions and manual under each Typer that we claim: not a byte may differ.
#   tools/test_typer.sh PYTHON 0.26 0.27 0.28
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
for version in "$@"; do
  venv=.venvs/typer-$version
  if [ ! -e "$venv/.ready" ]; then
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --editable . "typer==$version.*"
    touch "$venv/.ready"
  fi
  "$venv/bin/python" tools/gen.py --check
  "$venv/bin/jaxcache" --color never ls --debug --cache-dir tests/data/corpus/0.10.2-cpu-zstd |
    wc -l | grep -qx 7
  echo "typer $("$venv/bin/python" -c 'import typer; print(typer.__version__)'): the same"
done
