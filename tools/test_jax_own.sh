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
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
version=$("$python" -c 'import jax; print(jax.__version__)')
git clone --quiet --depth 1 --branch "${3:-jax-v$version}" --no-checkout --filter=blob:none "$sources" "$folder/jax"
git -C "$folder/jax" checkout --quiet HEAD -- tests/compilation_cache_test.py tests/lru_cache_test.py
"$python" -m pip install --quiet --target "$folder/lib" absl-py pytest filelock
mkdir -p "$folder/plugins/jax_plugins"
echo 'from jaxcache.live.plugin import initialize as initialize' > "$folder/plugins/jax_plugins/jaxcache_live.py"

for live in 0 1; do
  (
    cd "$folder/jax/tests"
    JAXCACHE_LIVE=$live JAX_PLATFORMS=cpu PYTHONPATH="$folder/plugins:$OLDPWD:$folder/lib" \
      "$python" -m pytest -q -rA -p no:cacheprovider compilation_cache_test.py lru_cache_test.py
  ) > "$folder/out-$live" || true
  grep -E '^(PASSED|FAILED|SKIPPED|ERROR) ' "$folder/out-$live" | sed 's/ - .*//; s/^SKIPPED \[[0-9]*\]/SKIPPED/' | sort > "$folder/results-$live"
  echo "jax $version, live layer $live: $(tail -1 "$folder/out-$live")"
done
test -s "$folder/results-0"
if ! diff "$folder/results-0" "$folder/results-1"; then
  grep -E '^E  ' "$folder/out-1" | head -40
  exit 1
fi
