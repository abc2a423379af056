"""Each module that a layout names as a group of functions has the group's protocol, says mypy."""

from jaxcache.cache import diff, scan, show
from jaxcache.cache.explain import keys
from jaxcache.cache.move import export_plan, import_bundle
from jaxcache.cache.prune import removable
from jaxcache.cache.verify import check
from jaxcache.layouts import base
from jaxcache.layouts.torch import bundle, explain, units
from jaxcache.layouts.torch import check as torch_check
from jaxcache.layouts.torch import scan as torch_scan

scans: tuple[base.Scans, base.Scans] = (scan, torch_scan)
shows: tuple[base.Shows, base.Shows] = (show, explain)
checks: tuple[base.Checks, base.Checks] = (check, torch_check)
removals: tuple[base.Removals, base.Removals] = (removable, units)
exports: tuple[base.Exports, base.Exports] = (export_plan, bundle)
imports: tuple[base.Imports, base.Imports] = (import_bundle, bundle)
compared: tuple[base.Sides, base.Sides] = (diff, torch_scan)
explains: tuple[base.Explains, base.Explains] = (keys, explain)
