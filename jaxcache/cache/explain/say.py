"""Every sentence of ``explain``: what a difference is called, what it means, and what undoes it.

A sentence claims no more than its evidence. Cures are made only here, and only for a part of the
key that alone differs and that the environment can set back.
"""

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from jaxcache.units import format_count, format_duration, join_some

_SHOWN_NAMES = 4

FIRST_TIME = "first time"
NOT_KNOWN = "not known: no record of the earlier program"
ALONE_NO_HIT = "undoing this alone brings no hit"
HITS_BY_CHANCE = (
    "hits by chance at most: a name, pointer, constant or the order of a set is another one in "
    "each process"
)
NOTHING_DIFFERS = "not known: the keys differ, and nothing that is recorded of the program does"
NO_KEY = "not known: no key was made on one side: the cache was off there"
DAMAGED_NEAREST = "not known: the entry that it would be compared with is damaged"
REPAIR = "move it to quarantine, so that a run compiles it again: jaxcache verify --fix"
NEVER_CACHED_CURE = (
    "remove debug.print and pure_callback from the compiled function, or use jax 0.11"
)


class Part(NamedTuple):
    """The words for a part of the key."""

    title: str
    meaning: str


NEVER_CACHED = Part(
    "host callbacks", "the program calls back into Python, and JAX before 0.11 never caches such"
)
PARTS = {
    "backend version": Part(
        "runtime of the device", "another runtime: driver, CUDA, cuDNN or libtpu"
    ),
    "accelerator_config": Part("devices", "other devices: their kind, number or topology"),
    "compression": Part("codec", "the codec, whose name is part of the key"),
    "custom_hook": Part(
        "custom hook", "jax's cache_key.custom_hook, set by some code, returned another text"
    ),
    "compile_options": Part("compile options", "the options of the compile"),
    "XLA flags": Part("XLA flags", "the XLA flags; which of them is not recorded"),
    "device count": Part("number of devices", "the number of devices of the process"),
    "placement": Part("devices of the program", "how many devices the program runs on, and which"),
    "pgle": Part(
        "a profile (PGLE)",
        "JAX compiles a function again once it has a profile of its runs, under another key",
    ),
}


def unknown_part(name: str) -> Part:
    """Return the words for a part that is not known here."""
    return Part(name, f"{name}, a part of the key that is not known here")


def version(what: str) -> Part:
    """Return the words for another release."""
    return Part(f"{what} version", f"another {what}: no version reads the entries of another")


def cache_path(*, is_portable: bool) -> Part:
    """Return the words for another path of the cache, or one that only one side hashes."""
    if is_portable:
        meaning = (
            "the path of the cache, which JAX 0.4.36 to 0.10 hash, but not with "
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none (--portable)"
        )
    else:
        meaning = "the path of the cache directory, which JAX 0.4.36 to 0.10 hash"
    return Part("cache path", meaning)


def flags(names: Sequence[str], place: str) -> Part:
    """Return the words for other flags.

    Args:
        place: where they are set: ``XLA_FLAGS``, ``compiler_options``; empty where unknown.
    """
    where = f", from {place}" if place else ""
    return Part(
        "XLA flags", f"the XLA flag{'s' if len(names) > 1 else ''} {list_names(names)}{where}"
    )


# Cures -------------------------------------------------------------------------------------------


def set_variable(name: str, value: str) -> str:
    """Return the command that gives a variable a value, or none."""
    return f"export {name}={shlex.quote(value)}" if value else f"unset {name}"


def install_codec(wanted: str) -> str:
    """Return the command that makes JAX use a codec again."""
    return f"python -m pip {'install' if wanted == 'zstandard' else 'uninstall'} zstandard"


def use_path(path: str, here: str) -> str | None:
    """Return the command that opens the cache by the path that its keys contain."""
    command = set_variable("JAX_COMPILATION_CACHE_DIR", path)
    if not os.path.lexists(path):
        return f"ln -s {shlex.quote(os.path.realpath(here))} {shlex.quote(path)} && {command}"
    return command if os.path.realpath(path) == os.path.realpath(here) else None


# The computation ---------------------------------------------------------------------------------


def list_names(names: Sequence[str]) -> str:
    """Return some names as a phrase."""
    *first, last = names or [""]
    if not first or len(names) > _SHOWN_NAMES:
        return join_some(names, _SHOWN_NAMES)
    return f"{', '.join(first)} and {last}"


def name_argument(name: str, number: int) -> str:
    """Return how an argument is called."""
    return name or f"argument {number}"


def setting(name: str, origin: str) -> Part:
    """Return the words for a setting of JAX."""
    by = {
        "environment": f", by {name.upper()} of the environment",
        "code": ", set in code",
    }.get(origin, "")
    return Part(name, f"the setting {name} of JAX{by}")


def arguments(kind: str, names: Sequence[str]) -> Part:
    """Return the words for arguments with something else: ``shape``, ``dtype``, ``weak type``."""
    many = "s" if len(names) > 1 else ""
    what = f"arguments {list_names(names)}" if many else f"argument {names[0]}"
    if names[0].startswith("argument "):
        what = list_names(names)
    title = f"{kind}{many} of {what}"
    return Part(title, f"the {title}")


def pad(signatures: int) -> str:
    """Return what to do about a function that many shapes were passed to."""
    return f"pad to a few shapes: {signatures} of this call are recorded, each a program of its own"


def structure(gone: Sequence[str], come: Sequence[str]) -> Part:
    """Return the words for arguments that are new or gone."""
    parts = [
        f"{list_names(names)} {'is' if len(names) == 1 else 'are'} {word}"
        for names, word in ((come, "new"), (gone, "gone"))
        if names
    ]
    return Part("other arguments", f"other arguments: {', '.join(parts)}")


def static(names: Sequence[str]) -> Part:
    """Return the words for static values."""
    listed = list_names(names)
    return Part(f"static {listed}", f"the static argument{'s' if len(names) > 1 else ''} {listed}")


NAME = Part("name", "another name, which is part of the program")
NAME_WITH_ADDRESS = Part(
    "name with an address",
    "the name holds an address, which is another one in every process: never a hit",
)
FIXED_NAME = "give the function a fixed __name__ before jit"
ARGUMENT_ORDER = Part("order of arguments", "the arguments, in another order")
DONATION = Part("donated arguments", "the donated arguments")
SHARDING = Part("sharding", "only shardings or the mesh differ")
RESULT_NAMES = Part("names", "only names differ: of results, or of functions inside")
PRECISION = Part("precision", "only the precision of products differs")
BY_X64 = "by jax_enable_x64, or by the caller; the entries do not record which"
ARRAY = Part("array constant", "only the values of an array differ that the program contains")
RESULT = Part("result", "the shape or dtype of the result; the line that sets it is not recorded")


def order(why: str) -> Part:
    """Return that operations come in another order, and what else differs."""
    text = "the same operations, in another order"
    return Part("order of operations", f"{text}: {why}" if why else text)


def moved_lines(setting_name: str) -> Part:
    """Return that lines are in the key."""
    meaning = f"lines of the source moved, and {setting_name} puts them into the key"
    return Part("lines of the source", meaning)


def sharding_of(names: Sequence[str]) -> Part:
    """Return the words for the sharding of arguments."""
    listed = list_names(names)
    return Part(f"sharding of {listed}", f"shardings of arguments: {listed}")


def constants(place: str, edited: str) -> Part:
    """Return the words for constants that differ."""
    at = f" at {place}" if place else ""
    return Part(f"constant{at}", f"only constants differ{edited}")


def operations(place: str, *, since: str, edited: Sequence[str], is_edited: bool, why: str) -> Part:
    """Return the words for a line whose operations differ.

    Args:
        place: the line, as ``main.py:10``.
        since: when the earlier program ran; empty where its sources are not recorded.
        edited: the lines that were edited since, as far as they are near.
        is_edited: whether that line is one of them.
        why: what else differs, where nothing was edited.
    """
    title = f"code at {place}"
    if is_edited:
        return Part(title, f"since {since}, {place} was edited, and its operations differ")
    file, _, line = place.partition(" ")[0].rpartition(":")
    other = f"line {line} of {file}" if line.isdigit() else place
    if edited:
        return Part(title, f"{edited_since(since, edited)}; the operations of {other} differ")
    if since:
        text = f"the operations of {other} differ, though no recorded file was edited since {since}"
        return Part(title, f"{text}: {why or 'the value came from elsewhere'}")
    return Part(title, f"the operations of {other} differ")


def edited_since(since: str, edited: Sequence[str]) -> str:
    """Return a clause about lines that were edited."""
    return f"since {since}, {list_names(edited)} {'was' if len(edited) == 1 else 'were'} edited"


def hash_seeds(old: str, new: str) -> str:
    """Return a clause about two hash seeds of Python; empty where they are equal or not known."""
    if old == new == "random":
        return "PYTHONHASHSEED is not set, so that each process may order a set otherwise"
    words = f"PYTHONHASHSEED was {old}, and is {new}, which may order a set otherwise"
    return words if old and new and old != new else ""


def command_line(old: Sequence[str], new: Sequence[str]) -> str:
    """Return a clause about another command line, or nothing."""
    before = [word for word in old if word not in new]
    after = [word for word in new if word not in old]
    if not (before or after):
        return ""
    return f"the arguments were {' '.join(before) or 'none'}, and are {' '.join(after) or 'none'}"


# First times and losses --------------------------------------------------------------------------


def first_time(program: str, others: Sequence[str]) -> str:
    """Return that nothing of a program is recorded, or nothing before the run that made a key."""
    if program in ("", "-"):
        return FIRST_TIME
    elsewhere = f" ({list_names(others)} has one of that name)" if others else ""
    return f"{FIRST_TIME} in {program}{elsewhere}"


def new_signature(since: str, place: str, now: str, earlier: str) -> str:
    """Return that a call uses one more signature."""
    return f"new since {since}: {place} uses {now}; {earlier} hits"


def new_function(since: str) -> str:
    """Return that a function is new."""
    return f"new since {since}: the program did not compile it then"


DAMAGED = Part("the entry is damaged", "the same key: the entry is damaged")
UNUSED = Part(
    "the entry was not used",
    "the same key: its entry is there now; JAX could not read it, or it was written meanwhile",
)


def lost(since: str) -> Part:
    """Return that an entry is gone."""
    when = f"at {since} " if since else "earlier "
    meaning = f"was written {when}and is gone: removed, or evicted by JAX's limit"
    return Part("the entry is gone", meaning)


def one_more(since: str, place: str, others: int) -> str:
    """Return that a place compiles a program that it did not compile in an earlier run."""
    more = f"; its other programs hit: {others}" if others else ""
    return f"new since {since}: {place} compiles a program that it did not compile then{more}"


def written_at(since: str) -> str:
    """Return when an entry was written."""
    return f"written at {since}"


def unreadable(reason: str) -> str:
    """Return that an entry is there and was not read."""
    return f"the same key: the entry cannot be read: {reason}"


def make_readable(key: str) -> str:
    """Return what to do about an entry of another user."""
    return f"make it readable for the user of the program: {key}-cache"


def verdict(title: str, count: int, seconds: float, hits: int, total: int, cure: str) -> str:
    """Return what one cause costs a run.

    Args:
        hits: how many of all would hit with the cure.
    """
    took = f", {format_duration(seconds)}" if seconds else ""
    if cure:
        return f"{hits:,} of {total:,} hit after: {cure} ({title}{took})"
    return f"{format_count(count, 'compile')}{took}: {title}"


def below_threshold(what: str, since: str) -> Part:
    """Return that a threshold of JAX's kept an entry from being written."""
    then = f"at {since} it was" if since else "it was"
    return Part(what, f"the same key, but {then} {what}")


def not_written_because(reason: str) -> str:
    """Return JAX's own reason for writing no entry."""
    why = "a guard refused the compile" if reason == "guard" else reason
    return f"the same key, but it was not written: {why}"
