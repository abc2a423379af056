"""Options that can stand alone: ``--fail-on-miss`` means ``--fail-on-miss=0``, and the like."""

import re
from typing import Any

from jaxcache.cli.declared import PanelCommand

#: What each means alone. A number or a duration may follow; what else does is the next argument.
#: A recipe is best collected with modules of 40 to 60 operations running for real.
_ALONE = {"--fail-on-miss": "0", "--collect-only": "50"}
_LIMIT = re.compile(r"\d+(\.\d+)?\s*(ms|s|m|h|d|w)?")


class OptionalValueCommand(PanelCommand):
    """A command some of whose options take a number, a duration, or nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give an option that stands alone its value; what follows the program is not ours."""
        with_value = {
            name
            for p in self.params
            if p.param_type_name == "option" and not getattr(p, "is_flag", False)
            for name in p.opts
        }
        position = 0
        while position < len(args) and args[position] != "--":
            option = args[position]
            following = args[position + 1] if position + 1 < len(args) else ""
            if not option.startswith("-"):
                if not self.takes_options_after(option):
                    if not ctx.resilient_parsing:
                        self._note_lost_options(option, args[position + 1 :])
                    break
                ctx.allow_interspersed_args = True
                position += 1
            elif option == "-m" and following:
                args.insert(position + 2, "--")  # the rest is the module's own, as for python -m
                if not ctx.resilient_parsing:
                    self._note_lost_options(following, args[position + 3 :])
                break
            elif option in _ALONE and not _LIMIT.fullmatch(following):
                args[position] = f"{option}={_ALONE[option]}"
                position += 1
            else:
                position += 2 if option in with_value else 1
        return super().parse_args(ctx, args)

    def _note_lost_options(self, program: str, arguments: list[str]) -> None:
        """Say which options of ours the program gets; once, and only what is spelt the same."""
        ours = {name for p in self.params if p.param_type_name == "option" for name in p.opts}
        lost = [a for a in arguments if a.partition("=")[0] in ours - {"--help"}]
        if lost:
            from jaxcache.cli.output import note

            was = "was" if len(lost) == 1 else "were"
            names = ", ".join(dict.fromkeys(a.partition("=")[0] for a in lost))
            note(f"note: {names} {was} passed to {program}; options for jaxcache go before it")

    def takes_options_after(self, program: str) -> bool:  # noqa: ARG002
        """Whether what follows the program is ours, too."""
        return False


class WarmCommand(OptionalValueCommand):
    """``warm``: what follows a script is the script's own, what follows a function is ours."""

    def takes_options_after(self, program: str) -> bool:
        """A function has arguments of its own only as options of ours."""
        from jaxcache.cli.running import is_function

        return is_function(program)
