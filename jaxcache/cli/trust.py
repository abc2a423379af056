"""``jaxcache trust``."""

from typing import Annotated

import typer

from jaxcache.cli.options import Format, Json, Jsonl, choose_format
from jaxcache.errors import UsageError

EXAMPLE = "jaxcache trust add ci 'jaxcache-ed25519 AAAA…='"
EXIT_CODES = (0, 1, 2, 11, 12)

_ARGUMENTS = {"keygen": (1, 1), "add": (2, 3), "list": (0, 0), "remove": (1, 1)}


def command(
    verb: Annotated[str, typer.Argument(metavar="keygen|add|list|remove", help="What to do.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME [KEY]]", help="keygen NAME, add NAME KEY, remove NAME."),
    ] = None,
    json: Json = False,
    jsonl: Jsonl = False,
) -> None:
    """Make signing keys, and choose whose signatures count."""
    from jaxcache.cache.trust import TrustedKey, add_trusted, generate_key, load_trusted
    from jaxcache.cache.trust import remove_trusted as remove
    from jaxcache.cli.bundle import key_folder, key_path
    from jaxcache.cli.output import note, print_json, print_json_lines, print_lines
    from jaxcache.render.bundle import key_document
    from jaxcache.render.document import envelope

    form = choose_format(json=json, jsonl=jsonl)
    given = words or []
    least, most = _ARGUMENTS.get(verb, (1, 0))
    if not least <= len(given) <= most:
        raise UsageError(
            "write trust keygen NAME, trust add NAME KEY, trust list, or trust remove NAME"
        )
    if verb == "keygen":
        path = key_path(given[0])
        keys = [TrustedKey(path.stem, generate_key(path))]
        note(f"the private key is in {path}; hand on only the public one")
    elif verb == "add":
        keys = [add_trusted(key_folder(), given[0], " ".join(given[1:]))]
    elif verb == "remove":
        keys = [remove(key_folder(), given[0])]
    else:
        keys = load_trusted(key_folder())
    if form is Format.JSON:
        print_json({**envelope(str(key_folder())), "keys": [key_document(k) for k in keys]})
    elif form is Format.JSONL:
        print_json_lines(map(key_document, keys))
    else:
        print_lines(f"{k.name}\t{k.text}" for k in keys)
