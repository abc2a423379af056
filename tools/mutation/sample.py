"""Keep a random sample of the pending work of a cosmic-ray session: ``SESSION SAMPLE SEED``.

A place is drawn first and the change second, so that a number, which has two replacements, counts
no more than a ``not``. No place is an annotation, an argument of a decorator, what only a type
checker runs, or ``strict`` of ``zip``: a change of these changes no behaviour.
"""

import ast
import random
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_Span = tuple[tuple[int, int], tuple[int, int]]


def _without_behaviour(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if isinstance(part := getattr(node, field, None), ast.AST):
                yield part
        yield from getattr(node, "decorator_list", ())
        if isinstance(node, ast.keyword) and node.arg == "strict":
            yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node


@cache
def _spans(path: str) -> list[_Span]:
    nodes = _without_behaviour(ast.parse(Path(path).read_text()))
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in nodes]


def main(session: str, sample: int, seed: int) -> None:
    """Remove all pending work but the sample, and what the filters have skipped."""
    database = sqlite3.connect(session)
    rows = database.execute(
        "SELECT job_id, module_path, start_pos_row, start_pos_col FROM mutation_specs"
        " WHERE job_id NOT IN (SELECT job_id FROM work_results)"
        " ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence"
    )
    places = defaultdict(list)
    for job, path, *start in rows:
        if not any(first <= tuple(start) < last for first, last in _spans(path)):
            places[path, *start].append(job)
    chance = random.Random(seed)
    chosen = chance.sample(list(places.values()), min(sample, len(places)))
    jobs = [chance.choice(jobs) for jobs in chosen]
    print(f"{len(jobs)} of {len(places)} places")
    kept = ",".join("?" * len(jobs))
    for table in ("work_results", "mutation_specs", "work_items"):
        database.execute(f"DELETE FROM {table} WHERE job_id NOT IN ({kept})", jobs)
    database.commit()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
