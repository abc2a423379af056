#!/usr/bin/env bash
# Run JAX's own tests of its compilation cache and LRU cache, without the live layer and with it, and
# compare test by test.
#
# usage: tools/test_jax_own.sh PYTHON [SOURCES [REVISION]]
# PYTHON has jax; the tests come from SOURCES, JAX's repository by default, at the tag of its release
# or another branch or tag.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "$1")
[[ $python = /* ]] || python=$PWD/$python
sources=${2:-https://github.com/jax-ml/jax}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
version=$("$python" -c 'import jax; print(jax.__version__)')
git clone --quiet --depth 1 --branch "${3:-jax-v$version}" --no-checkout --filter=blob:none "$sources" "$directory/jax"
git -C "$directory/jax" checkout --quiet HEAD -- tests/compilation_cache_test.py tests/lru_cache_test.py
"$python" -m pip install --quiet --target "$directory/lib" absl-py pytest filelock
mkdir -p "$directory/plugins/jax_plugins"
echo 'from jaxcache.live.plugin import initialize as initialize' > "$directory/plugins/jax_plugins/jaxcache_live.py"

for live in 0 1; do
  (
    cd "$directory/jax/tests"
    JAXCACHE_LIVE=$live JAX_PLATFORMS=cpu PYTHONPATH="$directory/plugins:$OLDPWD:$directory/lib" \
      "$python" -m pytest -q -rA -p no:cacheprovider compilation_cache_test.py lru_cache_test.py
  ) > "$directory/out-$live" || true
  grep -E '^(PASSED|FAILED|SKIPPED|ERROR) ' "$directory/out-$live" | sed 's/ - .*//; s/^SKIPPED \[[0-9]*\]/SKIPPED/' | sort > "$directory/results-$live"
  echo "jax $version, live layer $live: $(tail -1 "$directory/out-$live")"
done
test -s "$directory/results-0"
if ! diff "$directory/results-0" "$directory/results-1"; then
  grep -E '^E  ' "$directory/out-1" | head -40
  exit 1
fi
