"""``jaxcache trust keygen|add|list|remove``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.options import JsonOutput

if TYPE_CHECKING:
    from jaxcache.cache.trust import TrustedKey

EXAMPLES = {
    "keygen": "jaxcache trust keygen ci > ci.pub",
    "add": "jaxcache trust add ci 'jaxcache-ed25519 AAAA…='",
    "show": "jaxcache trust list",
    "remove": "jaxcache trust remove ci",
}
EXIT_CODES = dict.fromkeys(EXAMPLES, (0, 1, 2, 11, 12))

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]


def keygen(name: Name, output: JsonOutput) -> None:
    """Make a key to sign bundles with; print its public half."""
    from jaxcache.cache.trust import TrustedKey, generate_key
    from jaxcache.cli.bundle import key_path
    from jaxcache.cli.output import note

    path = key_path(name)
    key = TrustedKey(path.stem, generate_key(path))
    note(f"the private key is in {path}; pass on only the public one")
    _print([key], output)


def add(
    name: Name,
    key: Annotated[list[str], typer.Argument(metavar="PUBLIC", help="The public key.")],
    output: JsonOutput,
) -> None:
    """Trust a public key from now on."""
    from jaxcache.cache.trust import add_trusted, key_folder

    _print([add_trusted(key_folder(), name, " ".join(key))], output)


def show(output: JsonOutput) -> None:
    """List the keys that you trust."""
    from jaxcache.cache.trust import key_folder, load_trusted

    _print(load_trusted(key_folder()), output)


def remove(name: Name, output: JsonOutput) -> None:
    """Stop trusting a key."""
    from jaxcache.cache.trust import key_folder, remove_trusted

    _print([remove_trusted(key_folder(), name)], output)


def _print(keys: "Sequence[TrustedKey]", output: JsonOutput) -> None:
    from jaxcache.cache.trust import key_folder
    from jaxcache.cli.output import emit
    from jaxcache.render.view import Line, View

    rows = [(k.name, k.text) for k in keys]
    page = [Line(text, f"{name}  ", whole=True) for name, text in rows]
    document = {"cache_dir": str(key_folder()), "keys": keys}
    emit(output.form, View(document, rows, records=keys, page=page))
