#!/usr/bin/env bash
# Run the integration tests against every JAX that we claim.
#
# usage: tools/test_matrix.sh TEST_PYTHON PYTHON:JAX... [-- PYTEST_ARGUMENT...]
# Makes .venvs/jax-VERSION for each pair, once, and hands them all to one pytest run.
# A pair whose Python is not on this machine is skipped, and said so.
set -euo pipefail
cd "$(dirname "$0")/.."
test_python=$1
shift

find_python() {
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c 'import venv' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

pythons=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  pair=$1
  shift
  version=${pair#*:}
  venv=.venvs/jax-$version
  if [ ! -e "$venv/.done" ]; then
    if ! python=$(find_python "${pair%%:*}"); then
      echo "skipped: jax $version needs Python ${pair%%:*}, which is not here" >&2
      continue
    fi
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "jax==$version" zstandard filelock rich humanize \
      protobuf cramjam
    touch "$venv/.done"
  fi
  pythons+=("$PWD/$venv/bin/python")
done

export JAXCACHE_TEST_JAX_PYTHONS
JAXCACHE_TEST_JAX_PYTHONS=$(IFS=:; echo "${pythons[*]}")
shift || set -- -m jax tests
exec "$test_python" -m pytest -q "$@"
