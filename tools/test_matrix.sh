#!/usr/bin/env bash
# Try every JAX that we claim.
#
# usage: tools/test_matrix.sh TEST_PYTHON PYTHON:JAX... [-- PYTEST_ARGUMENT...]
# Makes .venvs/jax-VERSION for each pair, once. Without arguments of pytest a table of capability x
# version is printed (tools/matrix.py, or the module MATRIX_TABLE); with them, one pytest run takes all of these JAX.
# A pair whose Python is not on this machine is skipped, and said so. JAXCACHE_TEST_JAX_PYTHONS,
# paths with colons between, takes these interpreters instead. JAX "newest" is the newest
# release, "pre" the newest pre-release, from PIP_EXTRA_INDEX_URL too.
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
[ -z "${JAXCACHE_TEST_JAX_PYTHONS:-}" ] || IFS=: read -ra pythons <<<"$JAXCACHE_TEST_JAX_PYTHONS"
given=${#pythons[@]}
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  pair=$1
  shift
  [ "$given" -eq 0 ] || continue
  version=${pair#*:}
  venv=.venvs/jax-$version
  if [ ! -e "$venv/.done" ]; then
    if ! python=$(find_python "${pair%%:*}"); then
      echo "skipped: jax $version needs Python ${pair%%:*}, which is not here" >&2
      continue
    fi
    case $version in
      newest) wanted=(jax) ;;
      pre) wanted=(--pre jax jaxlib) ;;
      *) wanted=("jax==$version") ;;
    esac
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet "${wanted[@]}"
    "$venv/bin/python" -m pip install --quiet zstandard backports.zstd filelock typer rich humanize \
      protobuf cramjam obstore cryptography pytest pytest-xdist nbconvert ipykernel
    touch "$venv/.done"
  fi
  pythons+=("$PWD/$venv/bin/python")
done

if [ $# -eq 0 ]; then
  unset JAXCACHE_TEST_JAX_PYTHONS
  exec "$test_python" -m "${MATRIX_TABLE:-tools.matrix}" "${pythons[@]}"
fi
shift
export JAXCACHE_TEST_JAX_PYTHONS
JAXCACHE_TEST_JAX_PYTHONS=$(IFS=:; echo "${pythons[*]}")
exec "$test_python" -m pytest -q "$@"
