"""JSON of a bundle, which a stranger may have made, read field by field."""

from jaxcache.cache import fields
from jaxcache.errors import JaxcacheError

_HINT = "get the file again, or make it again with: jaxcache export"


class BundleError(JaxcacheError):
    """The file is no bundle, or a damaged or hostile one. Nothing was written."""

    def __init__(self, message: str, *, hint: str | None = _HINT, code: str = "bad-bundle") -> None:
        super().__init__(message, code=code, hint=hint)


class Fields(fields.Fields):
    """One JSON object; what is not as expected is a :class:`BundleError`."""

    def __init__(self, value: object, what: str) -> None:
        super().__init__(value, what, BundleError)
