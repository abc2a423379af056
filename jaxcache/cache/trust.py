"""Ed25519 signatures, and the keys and projects that this user trusts.

Keys are text, one line each: ``jaxcache-ed25519 <base64 of 32 bytes>``. A private key is the same
with ``jaxcache-ed25519-private`` and its 32-byte seed, in a file that only its owner may read. The
trusted keys are lines ``<public key> <name>`` in ``trusted-keys`` of the configuration directory.
What a signature of a bundle promises, and what not, is in docs/bundles.md.

Signatures of single entries are in ``.jaxcache/signatures/``, written by ``push --sign``, in the
format of :mod:`jaxcache.core.signing`. Files are written once and never changed, like the ledger's.

Projects whose settings are trusted are listed in ``trusted-projects``. ``core/configuration.py``
reads the list and defines what trust means; this module changes it.
"""

import contextlib
import os
import re
import shlex
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxcache.cache.bundle.format import Bundle, Signature, pack_signature, signed_bytes
from jaxcache.cache.move.plan import MoveAction, MoveSource, Plan, Step
from jaxcache.cache.verify.check import Signed
from jaxcache.core import atomic, configuration, signing
from jaxcache.core.atomic import make_private_directory, open_directory, sync_directory
from jaxcache.core.ledger import MAX_LEDGER_BYTES
from jaxcache.core.system import open_regular
from jaxcache.entry.codec import CodecError
from jaxcache.errors import JaxcacheError, LockedError, UntrustedError, UsageError, system_errors_as
from jaxcache.layouts import Layout
from jaxcache.store.base import Store, StoreError
from jaxcache.store.concurrency import map_ordered
from jaxcache.store.location import config_is_set
from jaxcache.units import format_install

_NAME = re.compile(r"[\w.@+-]{1,100}")
#: How long one command waits for another that changes the list: as long as for JAX's lock.
_TURN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key under the name that this user gave it."""

    name: str
    public_key: bytes

    @property
    def text(self) -> str:
        """The key as one line, to hand to others."""
        return public_key_text(self.public_key)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The signers of a bundle, as far as this user knows them."""

    trusted: tuple[str, ...]
    """Names of trusted keys whose signatures hold."""
    unknown: tuple[str, ...]
    """Public keys whose signatures are valid, but which are not trusted here."""
    unchecked: int = 0
    """Signatures that could not be checked: the ``sign`` extra is not installed."""
    maker: str = "export"
    """The command that makes such bundles."""

    @property
    def warning(self) -> str | None:
        """The warning for the user; None where a trusted key signed."""
        if self.trusted:
            return None
        if self.unchecked:
            return f"its signature was not checked: {format_install('sign')}"
        if self.unknown:
            return f"it is signed by an unknown key, {self.unknown[0]}"
        return "it is not signed"

    @property
    def remedy(self) -> str:
        """What makes a trusted key vouch for it."""
        if not self.unknown:
            return f"have it made again with: jaxcache {self.maker} --sign KEY FILE"
        key = shlex.quote(self.unknown[0])
        return f"if it is the key of somebody that you trust: jaxcache trust add NAME {key}"


def public_key_text(public_key: bytes) -> str:
    """A public key as text."""
    return f"{signing.PUBLIC} {signing.encode(public_key)}"


def parse_key(text: str, kind: str = signing.PUBLIC) -> bytes:
    """Read a key, with or without the word in front.

    Raises:
        UsageError: ``bad-key``.
    """
    key = signing.parse_key(text, kind)
    if key is None:
        raise UsageError(
            f"not a key: a key is a line {kind!r} and {signing.KEY_BYTES} bytes in base64",
            code="bad-key",
            hint="jaxcache trust keygen makes a pair",
        )
    return key


def key_directory() -> Path:
    """Return the directory of this user's keys.

    Raises:
        UsageError: ``bad-path``: no home directory is known.
    """
    with system_errors_as(UsageError, "cannot find the directory of keys", code="bad-path"):
        return Path(configuration.config_directory())


def generate_key(path: Path) -> bytes:
    """Make a key pair; write the private key to a new file and return the public key.

    Raises:
        UsageError: ``no-cryptography``.
        JaxcacheError: ``exists``, or the file cannot be written.
    """
    private = load_ed25519().Ed25519PrivateKey.generate()
    line = f"{signing.PRIVATE} {signing.encode(private.private_bytes_raw())}\n"
    try:
        make_private_directory(str(path.parent))
        with open_directory(str(path.parent)) as directory:
            atomic.remove_all_abandoned(directory)
            with atomic.new_file(directory, [line.encode()], mode=0o600) as file:
                file.give_name(path.name, replace=False)
            sync_directory(directory)
    except FileExistsError as error:
        raise JaxcacheError(
            f"{path} exists already", code="exists", hint="a key is never overwritten"
        ) from error
    except OSError as error:
        raise JaxcacheError(f"cannot write {path}: {error.strerror}", code="io-error") from error
    public: bytes = private.public_key().public_bytes_raw()
    return public


def read_private_key(path: Path) -> Any:
    """Read a private key for :func:`sign`.

    Raises:
        UsageError: no such file, or no key in it.
        UntrustedError: others may read it.
    """
    failure = f"cannot read the key {path}"
    hint = "jaxcache trust keygen NAME makes one"
    with system_errors_as(UsageError, failure, code="bad-key", hint=hint), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(signing.MAX_KEYS_BYTES).decode("utf-8", "replace")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UntrustedError(
            f"others may read the private key {path}",
            code="unsafe-permissions",
            hint=f"chmod 600 {path}, or better a new key: jaxcache trust keygen",
        )
    return load_ed25519().Ed25519PrivateKey.from_private_bytes(parse_key(text, signing.PRIVATE))


def sign_header(header: bytes, private_keys: Sequence[Any]) -> bytes:
    """Sign a header, which contains the number of signatures; return it with them."""
    message = signed_bytes(header)
    return header + b"".join(
        pack_signature(Signature(k.public_key().public_bytes_raw(), k.sign(message)))
        for k in private_keys
    )


def load_trusted(directory: str | os.PathLike[str] | None = None) -> list[TrustedKey]:
    """Return the trusted keys; none if the list does not exist.

    Args:
        directory: of the list; by default the user's.

    Raises:
        UntrustedError: the list cannot be read, is absurdly long, or others may write it.
    """
    try:
        path = (
            Path(configuration.config_directory() if directory is None else directory)
            / signing.TRUSTED_KEYS
        )
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            data = file.read(signing.MAX_KEYS_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UntrustedError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > signing.MAX_KEYS_BYTES:  # cut off, it would be written back without its end
        raise UntrustedError(f"{path} is larger than {signing.MAX_KEYS_BYTES} bytes")
    if reason := configuration.find_writer(str(path), status):
        raise UntrustedError(
            f"{path} cannot define trust: {reason}",
            code="unsafe-permissions",
            hint=f"look through it, and then chmod go-w {path} {path.parent}",
        )
    keys = []
    for line in data.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(UsageError):
            key, _, name = line.strip().rpartition(" ")
            if key and _NAME.fullmatch(name):
                keys.append(TrustedKey(name, parse_key(key)))
    return keys


def add_trusted(directory: Path, name: str, key_text: str) -> TrustedKey:
    """Trust a public key from now on.

    Raises:
        UsageError: ``bad-key``, or the name is taken or none.
        LockedError: another process is changing the list.
        JaxcacheError: ``io-error``.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for a key: use letters, digits and . @ + - _")
    key = TrustedKey(name, parse_key(key_text))
    with _changing(directory) as keys:
        if any(k.name == name and k.public_key != key.public_key for k in keys):
            raise UsageError(
                f"another key is trusted as {name}",
                code="exists",
                hint=f"jaxcache trust remove {name}, if that is meant",
            )
        keys[:] = [k for k in keys if k.name != name] + [key]
    return key


def remove_trusted(directory: Path, name: str) -> TrustedKey:
    """Trust a key no longer.

    Raises:
        LockedError: another process is changing the list.
        JaxcacheError: ``no-match``, ``io-error``.
    """
    with _changing(directory) as keys:
        for key in keys:
            if key.name == name:
                keys.remove(key)
                return key
        raise JaxcacheError(f"no key is trusted as {name}", code="no-match")


@contextlib.contextmanager
def _changing(directory: Path) -> Iterator[list[TrustedKey]]:
    """Yield the list, to be changed in place, then rewrite it; one process at a time."""
    with changing_alone(directory / signing.TRUSTED_KEYS) as replace:
        keys = load_trusted(directory)
        yield keys
        replace([f"{k.text} {k.name}\n".encode() for k in keys])


@contextlib.contextmanager
def changing_alone(path: Path) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Hold the lock of a file of the user's configuration; give a function that replaces it.

    Raises:
        LockedError: another process is changing it.
        JaxcacheError: ``io-error``.
    """
    with system_errors_as(JaxcacheError, f"cannot write {path}", code="io-error"):
        make_private_directory(str(path.parent))
        with (
            open_directory(str(path.parent)) as fd,
            atomic.hold_lockfile(fd, timeout_seconds=_TURN_SECONDS) as alone,
        ):
            if not alone:
                raise LockedError(
                    f"another process is changing {path}",
                    hint="end it if it hangs or is stopped, and try again",
                )
            with atomic.claimed(fd, path.name):  # the lock has no effect without flock
                yield lambda chunks: atomic.replace_file(path, chunks, mode=0o600)


def check_signatures(bundle: Bundle, trusted: Sequence[TrustedKey], *, required: bool) -> Verdict:
    """Check every signature of a bundle.

    Args:
        required: refuse what no trusted key has signed.

    Raises:
        UntrustedError: a signature does not hold, whether or not one is required; or none of a
            trusted key is there and one is required.
    """
    names = {k.public_key: k.name for k in trusted}
    key_names: list[str] = []
    unknown: list[str] = []
    unchecked = 0
    for public_key, signature in bundle.signatures:
        if find_spec("cryptography") is None:
            unchecked += 1
        elif not signing.holds(public_key, signature, signed_bytes(bundle.head)):
            raise UntrustedError(
                f"{bundle.name}: a signature does not hold: it was changed after signing",
                code="bad-signature",
                hint="get it again from where it was made",
            )
        elif public_key in names:
            key_names.append(names[public_key])
        else:
            unknown.append(public_key_text(public_key))
    verdict = Verdict(tuple(key_names), tuple(unknown), unchecked, bundle.maker)
    if required and verdict.warning:
        raise UntrustedError(
            f"{bundle.name}: {verdict.warning}, and require-signed is set",
            code="unsigned" if not bundle.signatures else "untrusted",
            hint=verdict.remedy,
        )
    return verdict


def load_ed25519() -> Any:
    """Import what signs and verifies.

    Raises:
        UsageError: ``no-cryptography``.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UsageError(
            "signatures need jaxcache[sign]", code="no-cryptography", hint=format_install("sign")
        ) from error
    return ed25519


def key_path(name: str) -> Path:
    """The private key that a name or path means.

    Raises:
        UsageError: it is empty.
    """
    if not name:
        raise UsageError("an empty name names no key", hint="is a variable of the shell not set?")
    return Path(name) if os.sep in name or Path(name).is_file() else key_directory() / f"{name}.key"


def signing_keys(names: Sequence[str]) -> list[Any]:
    """Read the private keys to sign with."""
    return [read_private_key(key_path(name)) for name in names]


@dataclass(frozen=True, slots=True)
class TrustedProject:
    """A project's configuration file that this user trusts."""

    path: str
    digest: str
    changed: bool
    """Whether the file was changed or removed since, so that its settings are ignored."""


def find_project(directory: str | None) -> configuration.ConfigFile:
    """Return the nearest pyproject.toml, from a directory upwards, with settings of jaxcache.

    Raises:
        UsageError: ``no-settings``, or ``bad-path`` where the list cannot hold the path.
    """
    start = os.path.realpath(directory or os.curdir)
    projects = [file for file in configuration.find_config_files(start) if file.is_project]
    if not projects:
        raise UsageError(
            f"no pyproject.toml in {start} or above it has a table [tool.jaxcache]",
            code="no-settings",
        )
    if "\n" in projects[0].path:
        raise UsageError(f"{projects[0].path!r} has a line break in its name", code="bad-path")
    return projects[0]


def list_trusted_projects() -> list[TrustedProject]:
    """Return the trusted projects, sorted by path."""
    projects = []
    for path, digest in sorted(configuration.read_trusted_projects().items()):
        file = configuration.read_config_file(path)
        projects.append(TrustedProject(path, digest, file is None or not file.is_trusted))
    return projects


def trust_project(file: configuration.ConfigFile) -> TrustedProject:
    """Trust a file with exactly the content that was read.

    Raises:
        LockedError, JaxcacheError
    """
    digest = configuration.digest_of(file.text)
    _replace(file.path, digest)
    return TrustedProject(file.path, digest, changed=False)


def distrust_project(path: str) -> TrustedProject:
    """Trust a project no longer.

    Args:
        path: its pyproject.toml, or the directory of it.

    Raises:
        LockedError, JaxcacheError: ``no-match`` where it is not trusted.
    """
    path = os.path.abspath(path)
    for project in list_trusted_projects():
        if project.path in (path, os.path.join(path, "pyproject.toml")):
            _replace(project.path, None)
            return project
    raise JaxcacheError(f"{path} is not trusted", code="no-match", hint="see jaxcache trust list")


def _replace(path: str, digest: str | None) -> None:
    with changing_alone(key_directory() / configuration.TRUSTED_PROJECTS) as replace:
        digests = configuration.read_trusted_projects()
        digests.pop(path, None)
        if digest is not None:
            digests[path] = digest
        replace([os.fsencode(f"{d} {p}\n") for p, d in sorted(digests.items())])


#: A line has 900 bytes at the most, escaped, so that this many stay well below the largest file.
_ENTRIES_PER_FILE = 25_000


def required_signatures(
    store: Store,
    layout: Layout,
    trusted: str | os.PathLike[str] | None = None,
    *,
    wanted: bool,
) -> Signed | None:
    """Load what trusted keys have signed in a cache; None where no signature is required.

    Args:
        trusted: the directory of their list; by default the user's.
        wanted: whether a caller requires them; a configuration file can, too.

    Raises:
        UntrustedError: nothing there can be signed, or the list of keys cannot be trusted.
    """
    if not (wanted or config_is_set("require-signed")):
        return None
    if not layout.single_file_entries:
        raise UntrustedError(
            f"files of {layout.name} are not signed one by one",
            hint="make a bundle of them: jaxcache export --sign KEY FILE",
        )
    return load_signed(store, load_trusted(trusted))


def make_signer(
    target: Store, source: MoveSource, plan: Plan, private_keys: Sequence[Any], *, now_ns: int
) -> Callable[[Mapping[str, Step]], None]:
    """Return a function that signs the entries that were written, and those already there."""
    if not private_keys:
        return lambda _: None
    vouched = _unsigned_digests(target, source, plan, private_keys)

    def sign(written: Mapping[str, Step]) -> None:
        digests = vouched | {name: step.item.sha256 or "" for name, step in written.items()}
        write_signatures(target, digests, private_keys, now_ns=now_ns)

    return sign


def _unsigned_digests(
    target: Store, source: MoveSource, plan: Plan, private_keys: Sequence[Any]
) -> dict[str, str]:
    """Return the digests of entries that the target has already and that some key has not signed.

    They may come from a run that was interrupted. Each digest is that of the source's entry, even
    if the target's entry of that name differs; damaged entries of the source stay unsigned.
    """
    keys = [TrustedKey("", key.public_key().public_bytes_raw()) for key in private_keys]
    signed = [load_signed(target, [key]) for key in keys]
    steps = plan.of(MoveAction.PRESENT, MoveAction.SAME)
    unsigned = [s for s in steps if not all(s.name in names for names in signed)]

    def read(step: Step) -> str | None:
        try:
            with contextlib.closing(source.open(step, source.take(step))) as parcel:
                return parcel.facts.sha256
        except (CodecError, StoreError):
            return None

    digests = zip((s.name for s in unsigned), map_ordered(read, unsigned), strict=True)
    return {name: digest for name, digest in digests if digest is not None}


def write_signatures(
    store: Store, digests: Mapping[str, str], private_keys: Sequence[Any], *, now_ns: int
) -> None:
    """Vouch for files.

    Args:
        digests: by file, of payloads or of XLA's files; no name has a line feed.
        private_keys: of cryptography's Ed25519.

    Raises:
        StoreError
    """
    names = sorted(digests)
    for start in range(0, len(names), _ENTRIES_PER_FILE):
        some = names[start : start + _ENTRIES_PER_FILE]
        text = "".join(f"{digests[name]} {name}\n" for name in some)
        path = f"{signing.SIGNATURES_DIR}/{now_ns:020d}-{os.urandom(8).hex()}.json"
        store.write(path, [signing.sign_text(text, private_keys)], replace=False)


def load_signed(store: Store, trusted: Sequence[TrustedKey]) -> dict[str, Collection[str]]:
    """Return the digests, by file, that keys which this user trusts have signed.

    Signatures that are damaged or made with other keys do not count.

    Raises:
        NoCacheError
    """
    keys = {key.public_key for key in trusted}
    signers: defaultdict[str, set[str]] = defaultdict(set)
    files = [i for i in store.list(signing.SIGNATURES_DIR) if i.type == "file"]
    names = [i.name for i in files]
    if sum(min(i.size_bytes, signing.MAX_SIGNATURES_BYTES) for i in files) > MAX_LEDGER_BYTES:
        raise UntrustedError(f"{store.url} holds more signatures than {MAX_LEDGER_BYTES} bytes")
    if keys and names:
        load_ed25519()
    for data in store.read_many(names, limit=signing.MAX_SIGNATURES_BYTES + 1):
        if isinstance(data, bytes) and len(data) <= signing.MAX_SIGNATURES_BYTES:
            for name, digests in signing.read_signed(data, keys).items():
                signers[name] |= digests
    return dict(signers)
