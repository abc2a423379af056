"""Options that can stand alone: ``--fail-on-miss`` means ``--fail-on-miss=0``."""

import re
from typing import Any

from typer.core import TyperCommand

_FAIL_ON_MISS = "--fail-on-miss"
#: A number or a duration; what else follows the option is the next argument.
_LIMIT = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|d|w)?")


class FailOnMissCommand(TyperCommand):
    """A command whose ``--fail-on-miss`` takes a number, a duration, or nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a lone ``--fail-on-miss`` its value; what follows the program is not ours."""
        with_value = {
            name for p in self.params if p.param_type_name == "option"
            and not getattr(p, "is_flag", False) for name in p.opts
        }  # fmt: skip
        position = 0
        while position < len(args) and args[position] != "--":
            option = args[position]
            following = args[position + 1] if position + 1 < len(args) else ""
            if not option.startswith("-"):
                if not self.takes_options_after(option):
                    break
                ctx.allow_interspersed_args = True
                position += 1
            elif option == _FAIL_ON_MISS and not _LIMIT.fullmatch(following):
                args[position] = f"{_FAIL_ON_MISS}=0"
                position += 1
            else:
                position += 2 if option in with_value else 1
        return super().parse_args(ctx, args)

    def takes_options_after(self, program: str) -> bool:  # noqa: ARG002
        """Whether what follows the program is ours, too."""
        return False


class WarmCommand(FailOnMissCommand):
    """``warm``: what follows a script is the script's own, what follows a function is ours."""

    def takes_options_after(self, program: str) -> bool:
        """A function has arguments of its own only as options of ours."""
        from jaxcache.cli.output_warm import is_function

        return is_function(program)
