"""A cosmic-ray session in two parts, one for each clone: ``split SESSION`` and ``join SESSION``."""

import shutil
import sqlite3
import sys
from pathlib import Path

_WORKERS = (1, 2)


def split(session: str) -> None:
    """Write ``SESSION.1`` and ``SESSION.2``, unless an earlier run left them."""
    for worker in _WORKERS:
        part = f"{session}.{worker}"
        if Path(part).exists():
            continue
        shutil.copyfile(session, part)
        database = sqlite3.connect(part)
        for table in ("work_results", "mutation_specs", "work_items"):
            database.execute(
                f"DELETE FROM {table} WHERE job_id IN"
                " (SELECT job_id FROM main.work_items WHERE rowid % 2 = ?)",
                (worker % 2,),
            )
        database.commit()


def join(session: str) -> None:
    """Bring what the parts found back into ``SESSION``."""
    database = sqlite3.connect(session)
    for worker in _WORKERS:
        database.execute("ATTACH ? AS part", (f"{session}.{worker}",))
        database.execute("INSERT OR REPLACE INTO work_results SELECT * FROM part.work_results")
        database.commit()
        database.execute("DETACH part")


if __name__ == "__main__":
    {"split": split, "join": join}[sys.argv[1]](sys.argv[2])
