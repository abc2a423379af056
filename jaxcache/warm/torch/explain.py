"""``explain SCRIPT`` for torch: run it on a copy of the cache, and compare what missed."""

import contextlib
import os
import shutil
from dataclasses import replace

from jaxcache.cache.explain.sides import Comparison, Compile, Difference, Explanation
from jaxcache.cache.files import scratch_directory
from jaxcache.layouts.torch.explain import compare_with_nearest
from jaxcache.layouts.torch.scan import scan
from jaxcache.model import Depth
from jaxcache.options.run import WarmOptions
from jaxcache.store import open_store
from jaxcache.warm.programs import WarmProgram
from jaxcache.warm.report.report import require_observed
from jaxcache.warm.torch.run import Lookup, warm_program


def explain_script(program: WarmProgram, options: WarmOptions) -> tuple[Explanation, int]:
    """Run a script on a copy of torch's cache, and explain why each graph missed.

    An FX graph is compared with the nearest that the cache has; torch keeps no parts of an AOT key,
    so that an AOT graph has a row only where it missed or was bypassed alone.

    Returns:
        The explanation, with the cache on the left, and the exit code.

    Raises:
        UsageError, NoJaxError: see :func:`jaxcache.warm.torch.run.warm_program`.
        NoJaxError: ``unknown-torch`` where nobody here can listen to it.
        JaxcacheError: ``program-failed`` where it failed before that.
    """
    with scratch_directory("explain") as scratch:
        copy = os.path.join(scratch, "cache")
        os.mkdir(copy)
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(options.cache_dir, copy, dirs_exist_ok=True, symlinks=True)
        store = open_store(copy)
        before = {g.info.name for g in scan(store, depth=Depth.LISTED).inventory.graphs}
        run_options = options.replace(cache_dir=copy)
        report = warm_program(program, run_options)
        if report.interrupted:
            raise KeyboardInterrupt
        require_observed(report, "torch")
        scan_result = scan(store, depth=Depth.LISTED)
        old = [g for g in scan_result.inventory.graphs if g.info.name in before]
        new = {g.name: g for g in scan_result.inventory.graphs if g.info.name not in before}
        missed = {g.compile_id for g in report.modules if g.key in new and g.tier == "fxgraph"}
        comparisons = []
        for look in report.modules:
            is_aot = look.tier == "aotautograd"
            if look.outcome == "hit" or (
                is_aot and look.outcome == "miss" and look.compile_id in missed
            ):
                continue
            file = None if is_aot else new.get(look.key or "")
            comparison = None
            if file and old:
                among = replace(
                    scan_result, inventory=replace(scan_result.inventory, graphs=[*old, file])
                )
                comparison = compare_with_nearest(store, among, file)
            comparisons.append(comparison or _unmatched(look))
    same = report.count("hit")
    explanation = Explanation(options.cache_dir, program.name, same, tuple(comparisons), hits=same)
    return explanation, report.script_exit_code


_NAMED = "jaxcache doctor --layout torch -- CMD names the reason"
#: Why a look-up failed, where no part of a key shows it: its meaning, and the step to take.
_UNMATCHED = {
    "bypassed": ("torch bypassed its cache", _NAMED),
    "off": ("the cache is off", _NAMED),
    "miss": ("the cache has nothing like it", None),
}


def _unmatched(look: Lookup) -> Comparison:
    meaning, fix = _UNMATCHED[look.outcome]
    if look.outcome == "miss" and look.tier == "aotautograd":
        meaning = "its key differs, whose parts torch does not keep; its FX graphs were hit"
    source = f"{look.file}:{look.line}" if look.file else None
    compile_ = Compile(look.function or look.tier, look.key, source=source)
    return Comparison(None, compile_, (Difference(look.tier, None, look.reason, meaning, fix),))
