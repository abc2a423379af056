"""Write the starting points of every target: ``python -m tools.fuzz.seeds DIRECTORY``.

Prints the names of the targets. Inputs that once broke one (``tests/data/fuzz``) come along.
"""

import hashlib
import sys
from pathlib import Path

from tools.fuzz.targets import TARGETS

BROKEN = Path(__file__).parents[2] / "tests" / "data" / "fuzz"


def main(directory: Path) -> None:
    """Write each under its digest."""
    for name, target in TARGETS.items():
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        for data in (*target.seeds(), *(p.read_bytes() for p in BROKEN.glob(f"{name}/*"))):
            (place / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        print(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
