# The tests of one mutant, for tools/mutation.toml: first those that ran the changed function in their
# own process, as testmon recorded; where they pass, those whose code runs in processes of its own.
tests="python -m pytest -q -x -p no:cacheprovider --hypothesis-seed=0"
$tests --testmon --testmon-forceselect --testmon-nocollect -m "not slow and not jax"
code=$?
[ $code = 0 ] || [ $code = 5 ] || exit $code # 5: no test ran it
case $(git diff --name-only) in
jaxcache/core/*) directories="tests/core tests/live tests/integration" ;;
jaxcache/injected/* | jaxcache/warm/*) directories="tests/inprocess tests/integration" ;;
jaxcache/inprocess/*) directories=tests/inprocess ;;
jaxcache/live/*) directories=tests/live ;;
jaxcache/store/*) directories=tests/store ;;
*) exit 0 ;;
esac
exec $tests -n 2 --dist worksteal -m "not slow and (core or not jax)" $directories
