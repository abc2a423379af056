"""Documents of ``jaxcache trust``."""

from typing import TypedDict

from jaxcache.cache.trust import TrustedKey, TrustedProject


class TrustDocument(TypedDict):
    keys: list[TrustedKey]
    projects: list[TrustedProject]
