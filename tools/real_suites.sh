#!/usr/bin/env bash
# Run tests of real libraries, from their source distributions, with the pytest plugin: alone and
# with xdist, cold and warm. Compares the outcomes of all tests, and the counts with JAX's own.
#
# usage: tools/real_suites.sh JAXCACHE_PYTHON [LIBRARY...]
# Makes build/real-suites, once; JAX=VERSION in the environment chooses another jax than 0.10.2.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

build=build/real-suites
venv=$build/venv-${JAX:=0.10.2}
if [ ! -e "$venv/.done" ]; then
  "$python" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet "jax==$JAX" chex jmp absl-py pytest pytest-xdist \
    --editable .
  for library in chex==0.1.92 jmp==0.0.4; do
    "$python" -m pip download --quiet --no-deps --no-binary :all: --dest "$build" "$library"
  done
  for archive in "$build"/*.tar.gz; do tar -xzf "$archive" -C "$build"; done
  touch "$venv/.done"
fi
exec "$python" tools/real_suites/compare.py "$venv/bin/python" "$build" "$@"
