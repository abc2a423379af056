#!/usr/bin/env bash
# Make entries for hardware that is not here, and look at them.
#
# usage: tools/test_deviceless.sh TEST_PYTHON cuda|tpu PYTHON PACKAGE...
# Makes .venvs/KIND with the packages, once; they take one to two gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
test_python=$1 kind=$2 python=$3
shift 3

venv=.venvs/$kind
if [ ! -e "$venv/.done" ]; then
  free_kib=$(df --output=avail . | tail -1)
  if [ "$free_kib" -lt $((4 << 20)) ]; then
    echo "4 GiB of disk are needed for $*, and $((free_kib >> 20)) are free" >&2
    exit 1
  fi
  command -v "$python" > /dev/null || { echo "$python is not here" >&2; exit 1; }
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "$@" zstandard filelock
  touch "$venv/.done"
fi

export "JAXCACHE_TEST_${kind^^}_PYTHON=$PWD/$venv/bin/python"
exec "$test_python" -m pytest -q -rs tests/integration/test_crosshost.py -k "$kind"
