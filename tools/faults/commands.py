"""The table: every command that changes something. A new one is a new row."""

from dataclasses import dataclass

#: Entries of the world that commands are told to take; see :mod:`tools.faults.world`.
_ENTRY, _PINNED = "jit_sharded_sum", "jit_loss-1ffb"


@dataclass(frozen=True, slots=True)
class Row:
    """One command line, as run in the root of a world."""

    name: str
    argv: tuple[str, ...]
    timely: bool = False
    """Whether what it does depends on how old things are."""
    chooses: bool = False
    """Whether what goes and comes depends on all that is there, so that beside another command, at
    another time or after a fault it may rightly be another entry."""
    may_miss: bool = False
    """Whether it ends with 0 where its source cannot be read."""
    frees_less: bool = False
    """Whether it removes more entries where a file cannot be read: it removes until a limit holds,
    and what belongs to that file stays."""
    torch: bool = False
    """Whether its world is a cache of torch's compilers."""


def _row(name: str, line: str, **more: bool) -> Row:
    return Row(name, tuple(line.split()), **more)


ROWS: tuple[Row, ...] = (
    _row("seal", "seal -C cache --jobs 1"),
    _row("seal again", "seal -C cache --jobs 2 --recompress 3"),
    _row("verify --fix", "verify -C cache --fix", timely=True),
    _row("verify --fix --delete", "verify -C cache --fix --delete --yes --atimes", timely=True),
    _row("verify --restore", "verify -C cache --restore"),
    _row(
        "prune by rules",
        "prune -C cache --unused-for 25d --orphans --legacy --quarantine --yes",
        timely=True,
    ),
    _row(
        "prune by bounds",
        "prune -C cache --max-entries 4 --policy lru --yes",
        timely=True,
        chooses=True,
    ),
    _row(
        "prune by size",
        "prune -C cache --max-size 40kB --side-caches --yes",
        timely=True,
        chooses=True,
    ),
    _row("rm", f"rm -C cache {_ENTRY} --yes"),
    _row("pin", f"pin -C cache {_ENTRY}"),
    _row("pin --remove", f"pin --remove -C cache {_PINNED}"),
    _row("import", "import in.jxb -C cache --json"),
    _row("import replacing", "import in.jxb -C cache --on-conflict replace"),
    _row("import --atomic", "import in.jxb -C cache --on-conflict replace --atomic --json"),
    _row("import --require-signed", "import in.jxb -C cache --require-signed --json"),
    _row("import into nothing", "import in.jxb -C new --json"),
    _row("copy to a cache", "copy cache other --on-conflict replace"),
    _row("copy from a cache", "copy other cache --atomic"),
    _row("copy --sign", "copy cache other --sign ours --json"),
    _row("copy to a bundle", "copy cache out/new.jxb"),
    _row("export", "export out/new.jxb -C cache --json"),
    _row("export --sign", "export out/old.jxb -C cache --sign ours --json"),
    _row("export over a bundle", "export out/old.jxb -C cache"),
    _row("push", "push other -C cache --json"),
    _row(
        "push into a bound",
        "push other -C cache --max-size 30kB --prune-remote -y",
        timely=True,
        chooses=True,
    ),
    _row("push --sign", "push other -C cache --sign ours --json"),
    _row("pull", "pull source -C cache --json"),
    _row("pull --require-signed", "pull signed -C cache --require-signed --json"),
    _row("ci save", "ci save out/old.jxb -C cache --save-if always --json"),
    _row("ci save --sign", "ci save out/old.jxb -C cache --save-if always --sign ours --json"),
    _row("ci save, shared", "ci save other -C cache --save-if always --json", chooses=True),
    _row("ci save, shared, --sign", "ci save other -C cache --save-if always --sign ours --json"),
    _row("ci restore", "ci restore in.jxb -C cache --everything --json", may_miss=True),
    _row(
        "ci restore of a directory",
        "ci restore source -C cache --everything --json",
        may_miss=True,
    ),
    _row(
        "ci restore --require-signed",
        "ci restore signed -C cache --everything --require-signed --json",
        may_miss=True,
    ),
    _row("trust keygen", "trust keygen mine"),
    _row("trust add", f"trust add friend jaxcache-ed25519 {'A' * 43}="),
    _row("trust remove", "trust remove foe"),
    _row("ls", "ls -C cache --long"),
    _row("torch verify --fix", "verify -C cache --fix", torch=True),
    _row("torch verify --delete", "verify -C cache --fix --delete --yes", torch=True),
    _row("torch verify --restore", "verify -C cache --restore", torch=True),
    _row(
        "torch prune",
        "prune -C cache --max-size 700kB --yes",
        torch=True,
        timely=True,
        chooses=True,
        frees_less=True,
    ),
    _row("torch rm", "rm -C cache aotautograd-atk --yes", torch=True, chooses=True),
    _row("torch export", "export out/new.jxb -C cache", torch=True),
    _row("torch import", "import in.jxb -C new", torch=True),
    _row("torch copy", "copy cache new --json", torch=True),
    _row("torch push", "push new -C cache --json", torch=True),
)
