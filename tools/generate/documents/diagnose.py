"""Documents of the commands under *Diagnose*."""

from typing import Annotated, NotRequired, TypedDict

from jaxcache.cache.diff import ContentMismatch, DiffEntry
from jaxcache.cache.doctor.inputs import Finding
from jaxcache.cache.explain.churn import Churn
from jaxcache.cache.explain.sides import Comparison, Difference
from jaxcache.model import Problem
from jaxcache.warm.where import Use


class InModules(TypedDict):
    modules: list[str]


class Caused(TypedDict):
    cause: str


class ExplainDocument(TypedDict):
    left: str
    right: str
    same: int
    differences: list[Annotated[Difference, InModules]]
    comparisons: list[Comparison]
    verdict: list[str]
    hits: NotRequired[list[Annotated[Comparison, Caused]]]
    advice: NotRequired[list[Finding]]


class ChurnDocument(TypedDict):
    modules: list[Churn]


class WhereDocument(TypedDict):
    processes: list[Use]


class DiffedSide(TypedDict):
    location: str
    entries: int
    only_size_bytes: int
    only_compile_seconds: float
    damaged: list[Problem]


class DiffDocument(TypedDict):
    left: DiffedSide
    right: DiffedSide
    equal: bool
    same: int
    only_left: list[DiffEntry]
    only_right: list[DiffEntry]
    differing: list[ContentMismatch]
