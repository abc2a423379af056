"""``jaxcache trust keygen|add|list|remove``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from jaxcache.cli.options import Format, JsonOutput

if TYPE_CHECKING:
    from jaxcache.cache.trust import TrustedKey

EXAMPLES = {
    "keygen": "jaxcache trust keygen ci > ci.pub",
    "add": "jaxcache trust add ci 'jaxcache-ed25519 AAAA…='",
    "show": "jaxcache trust list",
    "remove": "jaxcache trust remove ci",
}
EXIT_CODES = (0, 1, 2, 11, 12)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.")]


def keygen(name: Name, output: JsonOutput) -> None:
    """Make a key to sign bundles with; print its public half."""
    from jaxcache.cache.trust import TrustedKey, generate_key
    from jaxcache.cli.bundle import key_path
    from jaxcache.cli.output import note

    form = output.form
    path = key_path(name)
    key = TrustedKey(path.stem, generate_key(path))
    note(f"the private key is in {path}; pass on only the public one")
    _print([key], form)


def add(
    name: Name,
    key: Annotated[list[str], typer.Argument(metavar="PUBLIC", help="The public key.")],
    output: JsonOutput,
) -> None:
    """Trust a public key from now on."""
    from jaxcache.cache.trust import add_trusted
    from jaxcache.cli.bundle import key_folder

    form = output.form
    _print([add_trusted(key_folder(), name, " ".join(key))], form)


def show(output: JsonOutput) -> None:
    """List the keys that you trust."""
    from jaxcache.cache.trust import load_trusted
    from jaxcache.cli.bundle import key_folder

    form = output.form
    _print(load_trusted(key_folder()), form)


def remove(name: Name, output: JsonOutput) -> None:
    """Stop trusting a key."""
    from jaxcache.cache.trust import remove_trusted
    from jaxcache.cli.bundle import key_folder

    form = output.form
    _print([remove_trusted(key_folder(), name)], form)


def _print(keys: "Sequence[TrustedKey]", form: Format) -> None:
    from jaxcache.cli.bundle import key_folder
    from jaxcache.cli.output import print_json, print_json_lines, print_lines
    from jaxcache.render.bundle import key_document
    from jaxcache.render.document import envelope

    if form is Format.JSON:
        print_json({**envelope(str(key_folder())), "keys": [key_document(k) for k in keys]})
    elif form is Format.JSONL:
        print_json_lines(map(key_document, keys))
    else:
        print_lines(f"{k.name}\t{k.text}" for k in keys)
