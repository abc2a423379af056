"""Manual pages, and the reference in the documentation."""

from jaxcache.cli.app import SUMMARY
from jaxcache.errors import EXIT_MEANINGS
from tools.generate.commands import Command


def man_root(commands: list[Command]) -> str:
    """The page jaxcache(1)."""
    parts = [
        _man_head("jaxcache", SUMMARY.rstrip(".")),
        ".SH SYNOPSIS",
        ".B jaxcache",
        ".I COMMAND",
    ]
    parts += [".SH DESCRIPTION", _roff(SUMMARY), ".SH COMMANDS"]
    for c in commands:
        parts += [".TP", f".BR {_roff(page_of(c))} (1)", _roff(c.headline)]
    parts += [".SH EXIT STATUS", *_man_codes(tuple(EXIT_MEANINGS))]
    parts += [".SH ENVIRONMENT", ".TP", ".B JAX_COMPILATION_CACHE_DIR"]
    parts += ["The cache, where no \\fB\\-\\-cache\\-dir\\fR is given."]
    return "\n".join(parts) + "\n"


def page_of(command: Command) -> str:
    """The name of its manual page."""
    return "-".join(["jaxcache", *command.name.split()])


def man_command(command: Command) -> str:
    """The page of one command."""
    words = " ".join(_roff(metavar) for metavar, _ in command.arguments)
    parts = [_man_head(page_of(command), command.headline), ".SH SYNOPSIS"]
    parts += [f".B jaxcache {_roff(command.name)}", f"[\\fIOPTION\\fR]... {words}".rstrip()]
    parts += [".SH DESCRIPTION", _roff(command.summary), ".SH OPTIONS"]
    for metavar, text in command.arguments:
        parts += [".TP", f".I {_roff(metavar)}", _roff(text) or "\\&"]
    for option in command.options:
        names = ", ".join(f"\\fB{_roff(n)}\\fR" for n in option.names)
        value = f" \\fI{_roff(option.metavar)}\\fR" if option.metavar else ""
        parts += [".TP", names + value, _roff(option.help) or "\\&"]
    parts += [".SH EXIT STATUS", *_man_codes(command.exit_codes)]
    parts += [".SH EXAMPLES", ".EX", _roff(command.example), ".EE"]
    parts += [".SH SEE ALSO", ".BR jaxcache (1)"]
    return "\n".join(parts) + "\n"


def _man_head(name: str, headline: str) -> str:
    title = f'.TH {_roff(name.upper())} 1 "" jaxcache "jaxcache manual"'
    return f"{title}\n.SH NAME\n{_roff(name)} \\- {_roff(headline)}"


def _man_codes(codes: tuple[int, ...]) -> list[str]:
    return [line for code in codes for line in (".TP", f".B {code}", _roff(EXIT_MEANINGS[code]))]


def _roff(text: str) -> str:
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("×", "\\(mu").replace("→", "\\(->")
    return "\\&" + safe if safe.startswith((".", "'")) else safe


def reference(commands: list[Command]) -> str:
    """The page of the documentation that lists every command with its options."""
    parts = [
        "# Commands\n",
        "`jaxcache COMMAND --help` says the same; each command has a manual page,"
        " `man jaxcache-COMMAND`.\n",
    ]
    for c in commands:
        words = " ".join(metavar for metavar, _ in c.arguments)
        parts += [f"## `{c.name}`\n", f"{_markdown(c.summary)}\n"]
        parts += [f"```text\njaxcache {c.name} [OPTION]... {words}".rstrip() + "\n```\n"]
        rows = [f"| `{_cell(m)}` | {_markdown(t)} |" for m, t in c.arguments]
        for o in c.options:
            names = ", ".join(f"`{_cell(f'{n} {o.metavar}'.rstrip())}`" for n in o.names)
            rows.append(f"| {names} | {_markdown(o.help)} |")
        parts.append("\n".join(["| | |", "|---|---|", *rows]) + "\n")
        codes = " · ".join(f"{code} {EXIT_MEANINGS[code]}" for code in c.exit_codes)
        parts.append(f"Example: `{c.example}`. Exit codes: {codes}.\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown(text: str) -> str:
    for character in "\\`*_[]<|":
        text = text.replace(character, f"\\{character}")
    return text
