"""Documents of ``jaxcache trust``."""

from typing import TypedDict

from jaxcache.cache.trust import TrustedKey
from jaxcache.cache.trusted_projects import TrustedProject


class TrustDocument(TypedDict):
    keys: list[TrustedKey]
    projects: list[TrustedProject]
