"""``jaxcache completion``."""

from typing import Annotated

import click

from jaxcache.cli.declared import declare_argument

EXAMPLE = "jaxcache completion bash >> ~/.bashrc"
EXIT_CODES = (0, 2)


#: The completion script of each shell.
_FILES = {"bash": "jaxcache.bash", "zsh": "_jaxcache", "fish": "jaxcache.fish"}


def command(
    shell: Annotated[
        str, declare_argument("bash|zsh|fish", "The shell.", type=click.Choice([*_FILES]))
    ],
) -> None:
    """Print the completion script of a shell.

    bash: eval "$(jaxcache completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, after
    compinit; fish: jaxcache completion fish | source in config.fish.
    """
    from pathlib import Path

    import jaxcache

    package = Path(jaxcache.__file__).parent
    # A wheel carries the scripts inside the package; in a clone they stand beside it.
    directory = next(
        f for f in (package / "completions", package.parent / "completions") if f.is_dir()
    )
    print((directory / _FILES[shell]).read_text("utf-8"), end="")
