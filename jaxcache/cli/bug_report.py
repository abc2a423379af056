"""``jaxcache bug-report``."""

from jaxcache import __version__
from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import JsonOutput
from jaxcache.errors import JaxcacheError
from jaxcache.options import CacheDir
from jaxcache.options.query import DoctorOptions, PythonChoice

EXAMPLE = "jaxcache bug-report > report.md"
EXIT_CODES = (0, 2)


def command(*, place: CacheDir, chosen: PythonChoice, output: JsonOutput) -> None:
    """Print what a bug report needs, as Markdown, without paths, names or keys."""
    from jaxcache.cache.doctor.bug_report import make_bug_report, read_versions
    from jaxcache.cli.output import emit
    from jaxcache.render.doctor import bug_report_view

    diagnosis = error_code = None
    try:
        cache = open_handle(place.cache_dir, "jax")
        cache.refuse_caches_below()
        diagnosis = cache.diagnose(options=DoctorOptions(python=chosen.python))
    except JaxcacheError as error:
        error_code = error.code
    report = make_bug_report(read_versions(__version__), diagnosis, error_code)
    emit(output.form, bug_report_view(report))
