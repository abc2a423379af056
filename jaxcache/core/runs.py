"""What the last distinct runs of a program compiled: the history that ``explain`` compares with.

A record is a file ``.jaxcache/runs/<16 hex of the program>``: a line of JSON that names the
program, and the runs as JSON, compressed with zlib. It is small and holds no text of a source file,
no variable of the environment that JAX does not read, and of the command line only what
:func:`hide_values` leaves. A record is a help to the reader and decides nothing: whatever is wrong
with one makes it count as missing.
"""

import contextlib
import hashlib
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .atomic import hold_lock, new_file, open_below, open_directory, remove_all_abandoned
from .names import OWN_DIR, is_key
from .system import READ_FLAGS, is_own_or_roots

RUNS_DIR = f"{OWN_DIR}/runs"
MAX_RUNS = 8
#: Programs that one cache remembers.
MAX_PROGRAMS = 256
MAX_ROWS = 4096
MAX_RECORD_BYTES = 1 << 20
MAX_SOURCES = 64
MAX_SOURCE_BYTES = 4 << 20
_MAX_LINES = 40_000
_MAX_JSON_BYTES = 32 << 20
_MAX_HEADER_BYTES = 4096
_MAX_TEXT = 1024
_MAX_ITEMS = 512
_MAX_NUMBER = 1 << 40
_VERSION = 1
_HEX = frozenset("0123456789abcdef")
_LOCK = "lock"
#: How long a run waits for another that records into the same cache.
_LOCK_SECONDS = 2.0
_SALT_BYTES = 16
ORIGINS = ("environment", "code", "default", "unknown")
#: Values of a command line that are shown: numbers of so many characters, and shorter words.
_MAX_NUMBER_CHARACTERS = 10
_MAX_SHOWN = 3
_IN_OPTIONS = str.maketrans("", "", "-_.")
#: Stands for a value whose digest another cache made, which nothing here can be compared with.
HIDDEN = "#"


class CompileRow(NamedTuple):
    """One distinct key of a run, or a compile that JAX made no key for; hits have a row, too."""

    module: str
    key: str = ""
    """Empty where JAX made none."""
    outcome: str = ""
    """An outcome of :mod:`.compile_event`."""
    reason: str = ""
    kind: str = ""
    """``primal``, ``linearize``, ``backward`` or ``eager``; empty where it is unknown."""
    function: str = ""
    file: str = ""
    """The file of the function: relative to the program's directory, or from the directory of its
    package on for a library; never absolute."""
    line: int = 0
    definition: str = ""
    """Digest of the text of the line that defines the function."""
    call_file: str = ""
    call_line: int = 0
    call: str = ""
    """Digest of the text of the line of the user's code that called it."""
    signature: str = ""
    """Digest of the arguments that were passed, and of the static values."""
    process: int = 0
    """The number of the process in the program."""
    seconds: float = 0.0
    """Of the compile; 0 where they are unknown."""
    written: float = 0.0
    """When a recorded run wrote the entry, in seconds since the epoch; 0 where none did."""


class Run(NamedTuple):
    """What one run of a program depended on, and what it compiled."""

    at: float
    """When it began, in seconds since the epoch."""
    program: str
    """How the reader names it: a script, or ``-m`` and a module."""
    argv: "tuple[str, ...]"
    """The command line as :func:`hide_values` leaves it."""
    hash_seed: str
    versions: "dict[str, str]"
    """Of jax, jaxlib, the platform, and each distribution that a file of a row belongs to."""
    machine: "dict[str, Any]"
    """Facts of :class:`.machine.Machine` by name."""
    settings: "dict[str, list[Any]]"
    """Value and origin of each setting that is not JAX's default: :data:`ORIGINS`."""
    xla_flags: "tuple[str, ...]"
    cache_path: str
    """The path of the cache, where keys contain it."""
    sources: "dict[str, str]"
    """Eight hexadecimal digits for each line of each file that a row names."""
    rows: "tuple[CompileRow, ...]"


class Record(NamedTuple):
    """The content of one file."""

    program: str
    runs: "tuple[Run, ...]"
    """Newest first."""
    travelled: bool = False
    """Whether it came from another cache, and no run here has been added."""


# Making the parts of a run -----------------------------------------------------------------------


def identify(place: str) -> str:
    """Return the name of a program's record.

    Args:
        place: the real path of a script; a module and its directory; or a notebook's name.
    """
    text = f"{os.geteuid()}\0{place}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def digest_line(line: bytes) -> str:
    """Return eight hexadecimal digits of a line's text, without the blanks at its end."""
    return hashlib.blake2b(line.rstrip(), digest_size=4).hexdigest()


def digest_lines(source: bytes) -> str:
    """Return the digests of all lines of a file, one after another."""
    return "".join(map(digest_line, source.splitlines()[:_MAX_LINES]))


def hide_values(argv: "Iterable[str]", salt: bytes) -> "tuple[str, ...]":
    """Return a command line without what may be private.

    The names of options, numbers and words of up to three characters stay. Each other value
    becomes ``#`` and a digest that only this cache can make again.

    Args:
        argv: without what :func:`.remote.hide_secrets` replaces.
    """
    return tuple(_hide_word(word, salt) for word in [*argv][:_MAX_ITEMS])


def _hide_word(word: str, salt: bytes) -> str:
    option, equals, value = word.partition("=")
    if option[:2] == "--" and option.translate(_IN_OPTIONS).isalnum():
        return option + (f"={_hide(value, salt)}" if equals else "")
    if word[:1] == "-" and word[1:2].isalpha():
        return word[:2] + (_hide(word[2:], salt) if word[2:] else "")
    return _hide(word, salt)


def _hide(value: str, salt: bytes) -> str:
    if len(value) <= _MAX_SHOWN or _is_number(value):
        return value
    data = value.encode("utf-8", "surrogatepass")
    return f"{HIDDEN}{hashlib.blake2b(data, digest_size=4, key=salt).hexdigest()}"


def _is_number(value: str) -> bool:
    if len(value) > _MAX_NUMBER_CHARACTERS or value.lstrip("+-.")[:1] not in _HEX:
        return False
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


# Reading and writing -----------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """Return the content of a record's file, as many of its newest runs as fit into it.

    Returns:
        Empty where not even the newest run fits.
    """
    head = {"version": _VERSION, "program": _clean(record.program), "travelled": record.travelled}
    start = _json(head) + b"\n"
    runs = record.runs[:MAX_RUNS]
    while runs:
        sources = [dict([*run.sources.items()][:MAX_SOURCES]) for run in runs]
        texts = list(dict.fromkeys(text for files in sources for text in files.values()))
        documents = [
            {
                **_clean(run._replace(sources={}, rows=())._asdict()),
                "machine": _keep_readable(run.machine, _read_fact),
                "settings": _keep_readable(run.settings, _read_setting),
                "sources": {_clean(file): texts.index(text) for file, text in files.items()},
                "rows": [
                    _clean(row._replace(seconds=float(row.seconds), written=float(row.written)))
                    for row in run.rows[:MAX_ROWS]
                ],
            }
            for run, files in zip(runs, sources)  # noqa: B905 - Python 3.10
        ]
        text = _json({"texts": texts, "runs": documents})
        data = start + zlib.compress(text, 1)  # by a program that ends
        if len(text) <= _MAX_JSON_BYTES and len(data) <= MAX_RECORD_BYTES:
            return data
        if len(runs) == 1 and runs[0].sources:
            runs = (runs[0]._replace(sources={}),)
        else:
            runs = runs[: len(runs) // 2]
    return b""


def decode(data: bytes) -> "Record | None":
    """Read the content of a record's file; None for anything else."""
    try:
        head = read_head(data)
        if head is None or len(data) > MAX_RECORD_BYTES:
            return None
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data[data.index(b"\n") + 1 :], _MAX_JSON_BYTES)
        if not unpacker.eof or unpacker.unused_data:
            return None
        document = json.loads(text)
        texts = dict(enumerate(map(_lines, _list(document["texts"], MAX_RUNS * MAX_SOURCES))))
        runs = tuple(_read_run(one, texts) for one in _list(document["runs"], MAX_RUNS))
    except (ValueError, TypeError, LookupError, AttributeError, zlib.error, RecursionError):
        return None
    return head._replace(runs=runs)


def read_head(start: bytes) -> "Record | None":
    """Read what a record's file begins with: its program, without the runs."""
    end = start.find(b"\n", 0, _MAX_HEADER_BYTES)
    try:
        head = json.loads(start[: max(end, 0)])
        if head["version"] != _VERSION or type(head["travelled"]) is not bool:
            return None
        return Record(_text(head["program"]), (), head["travelled"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _clean(value: Any) -> Any:
    """Return a value as JSON, a terminal and a reader take it, with no more of anything."""
    if isinstance(value, str):
        return value[:_MAX_TEXT].encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(str(n)): _clean(v) for n, v in [*value.items()][:_MAX_ITEMS]}
    if isinstance(value, (list, tuple)):
        return [_clean(one) for one in value[:_MAX_ITEMS]]
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0
    return value


def _keep_readable(values: "dict[str, Any]", read: "Callable[[Any], Any]") -> "dict[str, Any]":
    """Return what a reader takes of some facts."""
    kept = {}
    for name, value in _clean(values).items():
        with contextlib.suppress(ValueError, TypeError):
            kept[name] = read(value)
    return kept


def _read_run(value: Any, texts: "dict[int, str]") -> Run:
    sources = {file: texts[n] for file, n in _dict(value["sources"], MAX_SOURCES).items()}
    settings = {name: _read_setting(one) for name, one in _dict(value["settings"]).items()}
    return Run(
        at=_number(value["at"]),
        program=_text(value["program"]),
        argv=tuple(map(_text, _list(value["argv"]))),
        hash_seed=_text(value["hash_seed"]),
        versions={name: _text(text) for name, text in _dict(value["versions"]).items()},
        machine={name: _read_fact(one) for name, one in _dict(value["machine"]).items()},
        settings=settings,
        xla_flags=tuple(map(_text, _list(value["xla_flags"]))),
        cache_path=_text(value["cache_path"]),
        sources=sources,
        rows=tuple(map(_read_row, _list(value["rows"], MAX_ROWS))),
    )


def _read_row(values: Any) -> CompileRow:
    """Read one of the many rows: all of its texts are checked at once."""
    if [*map(type, values)] != _TYPES:
        raise ValueError("no row")
    row = CompileRow._make(values)
    texts = [value for value in row if isinstance(value, str)]
    "".join(texts).encode()  # no half of a surrogate pair
    is_bounded = all(0 <= value < _MAX_NUMBER for value in row if not isinstance(value, str))
    if not is_bounded or max(map(len, texts)) > _MAX_TEXT or (row.key and not is_key(row.key)):
        raise ValueError("no row")
    return row


_TYPES = [*CompileRow.__annotations__.values()]


def _require(is_valid: bool) -> None:
    """Refuse a value that no record has.

    Raises:
        ValueError
    """
    if not is_valid:
        raise ValueError("not a record")


def _text(value: Any) -> str:
    _require(type(value) is str and len(value) <= _MAX_TEXT)
    value.encode()  # no half of a surrogate pair
    return str(value)


def _lines(value: Any) -> str:
    _require(type(value) is str and len(value) <= 8 * _MAX_LINES and not len(value) % 8)
    _require(_HEX.issuperset(value))
    return str(value)


def _number(value: Any) -> float:
    _require(type(value) in (int, float) and 0 <= value < _MAX_NUMBER)
    return float(value)


def _list(value: Any, most: int = _MAX_ITEMS) -> "list[Any]":
    _require(type(value) is list and len(value) <= most)
    return list(value)


def _dict(value: Any, most: int = _MAX_ITEMS) -> "dict[str, Any]":
    _require(type(value) is dict and len(value) <= most)
    return {_text(name): one for name, one in value.items()}


def _read_setting(value: Any) -> "list[Any]":
    setting, origin = _list(value)
    _require(origin in ORIGINS)
    return [_scalar(setting), origin]


def _read_fact(value: Any) -> Any:
    return [*map(_text, _list(value))] if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    _require(value is None or -_MAX_NUMBER < value < _MAX_NUMBER)
    return value


# Distinct runs -----------------------------------------------------------------------------------


def add_run(record: "Record | None", run: Run) -> "Record | None":
    """Return a record with one more run, which replaces one that differs in no cause from it.

    It also replaces what was recorded of the same run earlier, while it went on. What earlier runs
    know of a key stays: when its entry was written, and how long that took.

    Returns:
        None where the run does not fit into a file.
    """
    earlier = record.runs if record else ()
    known = {row.key: row for old in reversed(earlier) for row in old.rows if row.key}
    rows = tuple(_with_known(row, run.at, known) for row in run.rows)
    fitting = decode(encode(Record(run.program, (run._replace(rows=rows),))))
    if fitting is None:
        return None
    (new,) = fitting.runs
    distinct = [old for old in earlier if old.at != new.at and not _request_same(old, new)]
    return Record(new.program, (new, *distinct)[:MAX_RUNS])


def _with_known(row: CompileRow, at: float, known: "dict[str, CompileRow]") -> CompileRow:
    old = known.get(row.key)
    written = at if row.outcome == "written" else old.written if old else 0.0
    if old and not row.kind:  # this run was not observed closely enough
        row = old._replace(outcome=row.outcome, reason=row.reason, seconds=row.seconds)
    return row._replace(written=written, seconds=row.seconds or (old.seconds if old else 0.0))


def _request_same(left: Run, right: Run) -> bool:
    """Return whether two runs differ at most in their dates, outcomes and seconds."""
    heads = [run._replace(at=0.0, program="", rows=()) for run in (left, right)]
    return heads[0] == heads[1] and _requests(left) == _requests(right)


def _requests(run: Run) -> "list[CompileRow]":
    return sorted(r._replace(outcome="", reason="", seconds=0.0, written=0.0) for r in run.rows)


def is_repeated(run: Run, other: Run) -> bool:
    """Whether two runs had the same program, command line, versions, machine and settings."""
    shared = run.sources.keys() & other.sources.keys()
    heads = [
        r._replace(at=0.0, rows=(), sources={file: r.sources[file] for file in shared})
        for r in (run, other)
    ]
    return heads[0] == heads[1]


def take_over(data: bytes, own: bytes = b"") -> bytes:
    """Return the content of a record that came from another cache, as this one keeps it.

    Args:
        own: the content of the record that is here by the same name.

    Returns:
        Empty where it is damaged, or adds nothing.
    """
    brought = decode(data)
    if brought is None:
        return b""
    here = decode(own) if own else None
    merged: list[Run] = []
    hidden = map(_without_digests, brought.runs)
    for run in sorted([*(here.runs if here else ()), *hidden], key=lambda run: -run.at):
        plain = _without_digests(run)
        if not any(_request_same(_without_digests(newer), plain) for newer in merged):
            merged.append(run)
    record = (here or Record(brought.program, (), travelled=True))._replace(
        runs=tuple(merged[:MAX_RUNS])
    )
    return b"" if record == here else encode(record)


def _without_digests(run: Run) -> Run:
    """Return a run without the digests of values, which another cache's salt made."""
    return run._replace(argv=tuple("".join(word.partition(HIDDEN)[:2]) for word in run.argv))


# The files ---------------------------------------------------------------------------------------


def record_run(
    root: str,
    identity: str,
    run: Run,
    complete: "Callable[[Run, Sequence[Run]], Run] | None" = None,
) -> None:
    """Add a run to the record of its program, whole or not at all.

    Args:
        complete: adds what only the earlier runs name.

    Raises:
        OSError: the cache cannot be written.
    """
    with (
        _opened(root, make=True) as directory,
        hold_lock(directory, _LOCK, seconds=_LOCK_SECONDS) as is_held,
    ):
        if not is_held:  # whoever holds it does not end
            return
        earlier = _read(directory, identity)
        if complete is not None:
            run = complete(run, earlier.runs if earlier else ())
        record = add_run(earlier, run)
        if record is None:
            return
        data = encode(record)
        with new_file(directory, [data], like=directory, durable=False) as file:
            file.give_name(identity)
        names = _records(directory)
        if len(names) > MAX_PROGRAMS:
            _remove_oldest(directory, names)


def read_history(
    root: str, identity: str, program: str, *, before: float = math.inf
) -> "tuple[Run, ...]":
    """Return the earlier runs of a program: its own, else those that travelled under its name.

    Args:
        before: runs that began then or later are left out.

    Returns:
        The newest first.

    Raises:
        OSError: the cache cannot be read.
    """
    runs: list[Run] = []
    with contextlib.suppress(FileNotFoundError), _opened(root) as directory:
        own = _read(directory, identity)
        names = [] if own else sorted(_records(directory))[: 2 * MAX_PROGRAMS]
        runs = [*own.runs] if own else []
        base = os.path.basename(program)
        for name in names:
            head = read_head(_read_file(directory, name, _MAX_HEADER_BYTES))
            if head and head.travelled and os.path.basename(head.program) == base:
                record = _read(directory, name)
                runs += record.runs if record else ()
    earlier = sorted((run for run in runs if run.at < before), key=lambda run: -run.at)
    return tuple(earlier[:MAX_RUNS])


def read_records(root: str) -> "Iterator[Record]":
    """Yield the records of all programs of a cache; nothing where it cannot be read."""
    with contextlib.suppress(OSError), _opened(root) as directory:
        for name in sorted(_records(directory))[: 2 * MAX_PROGRAMS]:
            if record := _read(directory, name):
                yield record


def find_writer(records: "Iterable[Record]", key: str) -> "tuple[Run, list[Run]] | None":
    """Return the run that made a key, with the earlier runs of its program."""
    for record in records:
        runs = [run for run in record.runs if any(row.key == key for row in run.rows)]
        if runs:
            written = max((r.written for run in runs for r in run.rows if r.key == key), default=0)
            writer = next((run for run in runs if run.at == written), runs[-1])
            return writer, [run for run in record.runs if run.at < writer.at]
    return None


def is_record(name: str) -> bool:
    """Return whether a file below :data:`RUNS_DIR` is a record, by its name."""
    base = name.rpartition("/")[2]
    return len(base) == 16 and _HEX.issuperset(base)


def read_salt(root: str, *, make: bool = True) -> bytes:
    """Return this user's salt for :func:`hide_values`; make it once. It never leaves the cache.

    Args:
        make: write one where there is none; else it is good for this call alone.

    Raises:
        OSError: the cache cannot be written.
    """
    name = f"salt-{os.geteuid()}"
    fresh = os.urandom(_SALT_BYTES)
    with contextlib.suppress(FileNotFoundError), _opened(root, make=make) as directory:
        salt = _read_file(directory, name, _SALT_BYTES)
        if make and not salt:
            with (
                contextlib.suppress(FileExistsError),  # another process was first
                new_file(directory, [fresh], mode=0o600, durable=False) as file,
            ):
                file.give_name(name, replace=False)
            salt = _read_file(directory, name, _SALT_BYTES)
        return salt or fresh
    return fresh


@contextlib.contextmanager
def _opened(root: str, *, make: bool = False) -> "Iterator[int]":
    with open_directory(root) as cache, open_below(cache, RUNS_DIR, make=make) as directory:
        yield directory


def _records(directory: int) -> "list[str]":
    return [name for name in os.listdir(directory) if is_record(name)]


def _read(directory: int, name: str) -> "Record | None":
    data = _read_file(directory, name, MAX_RECORD_BYTES + 1)
    return decode(data) if data else None


def _read_file(directory: int, name: str, most: int) -> bytes:
    """Return the first bytes of a regular file of this user's or root's; else nothing."""
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=directory)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        is_ours = stat.S_ISREG(status.st_mode) and is_own_or_roots(status.st_uid)
        return os.read(fd, most) if is_ours else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def _remove_oldest(directory: int, names: "list[str]") -> None:
    remove_all_abandoned(directory)
    dated = []
    for name in names:
        with contextlib.suppress(OSError):
            dated.append((os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime, name))
    for _, name in sorted(dated)[: max(0, len(dated) - MAX_PROGRAMS)]:
        with contextlib.suppress(OSError):  # another user's
            os.unlink(name, dir_fd=directory)
