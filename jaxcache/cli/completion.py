"""``jaxcache completion``."""

from enum import StrEnum

from jaxcache.options import Kind, option


class Shell(StrEnum):
    """A shell that there is a completion script for; the value ends the script's file name."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_FILES = {Shell.BASH: "jaxcache.bash", Shell.ZSH: "_jaxcache", Shell.FISH: "jaxcache.fish"}


def completion(
    *,
    shell: Shell = option("shell bash|zsh|fish", "The shell.", Kind(Shell)),
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
