"""Print what ``doctor`` found."""

from jaxcache.cache.doctor.examine import Diagnosis
from jaxcache.cli import output
from jaxcache.cli.options import Format
from jaxcache.render import doctor as render


def print_diagnosis(diagnosis: Diagnosis, form: Format, *, verbose: bool) -> None:
    """Print settings and findings; in a pipe the findings alone."""
    if form is Format.JSON:
        output.print_json(render.doctor_document(diagnosis))
    elif form is Format.JSONL:
        output.print_json_lines(map(render.finding_document, diagnosis.findings))
    elif form is Format.TSV:
        output.print_lines(render.doctor_tsv(diagnosis))
    else:
        width, color = output.terminal_width(), output.wants_color()
        print(render.doctor_page(diagnosis, width=width, color=color, verbose=verbose))
    if diagnosis.no_jax and form is Format.TSV:
        output.note(f"{diagnosis.no_jax}; checks that need jax were skipped")
