"""The compiler and target of an entry, from its decoded payload."""

from jaxcache.cache.bundle.manifest import Origin
from jaxcache.entry.contents import Contents
from jaxcache.units import printable


def make_origin(found: Contents) -> Origin:
    """Read from a payload which compiler made it, and for which device."""
    device = found.device
    return Origin(
        platform=device.platform,
        target=_text(device.target),
        device_name=_text(device.name),
        cpu_triple=_text(device.cpu_triple),
        cpu_name=_text(device.cpu_name),
        cpu_features=device.cpu_features,
        compute_capability=_text(device.compute_capability),
        toolkit=_text(device.toolkit),
        cudnn=_text(device.cudnn),
        ifrt_version=found.format.ifrt_version,
        abi=_text(found.format.abi),
        container=found.format.container,
        like_jaxlib=found.like_jaxlib,
        written_in_cache_dir=_text(found.written_in_cache_dir),
        kernel_cache=found.kernel_cache or None,
    )


def _text(value: str | None) -> str | None:
    return None if value is None else printable(value)
