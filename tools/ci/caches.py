"""A CI service's cache, as GitHub's and GitLab's are: archives by key."""

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass
class CacheStore:
    """Where a CI service keeps caches: tar files by key, in the order of their making."""

    directory: Path

    def restore(self, path: Path, key: str, looser: list[str]) -> str:
        """Unpack what fits best; return the key it was saved under, or nothing."""
        saved = self.saved(path)
        for wanted in [key, *looser]:
            exact = [s for s in saved if s[0] == wanted]
            for name, archive in exact or [s for s in saved if wanted and s[0].startswith(wanted)]:
                self.unpack(archive, path)
                return name
        return ""

    def unpack(self, archive: Path, path: Path) -> None:
        """Put the content of an archive back where it was."""
        with tarfile.open(archive) as tar:
            tar.extractall(path.parent, filter="tar")

    def save(self, path: Path, key: str, *, replace: bool = False) -> bool:
        """Pack the path under a key; where it is taken, only if it may be replaced."""
        taken = [archive for name, archive in self.saved(path) if name == key]
        if not path.exists() or (taken and not replace):
            return False
        for archive in taken:
            archive.unlink()
        directory = self._directory(path)
        directory.mkdir(parents=True, exist_ok=True)
        number = max((int(p.name[:6]) + 1 for p in directory.iterdir()), default=0)
        with tarfile.open(directory / f"{number:06d} {key}", "w:gz") as tar:
            tar.add(path, path.name)
        return True

    def size_bytes(self) -> int:
        """Of all archives."""
        return sum(p.stat().st_size for p in self.directory.rglob("*") if p.is_file())

    def _directory(self, path: Path) -> Path:
        return self.directory / re.sub(r"\W", "_", str(path))

    def saved(self, path: Path) -> list[tuple[str, Path]]:
        """(key, archive), the newest first."""
        files = sorted(self._directory(path).glob("*"), reverse=True)
        return [(p.name.partition(" ")[2], p) for p in files]
