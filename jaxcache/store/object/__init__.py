"""Caches in object stores, through obstore (extra ``remote``): S3, GCS, Azure, HTTP, memory."""

from jaxcache.store.object.connect import SCHEMES, open_object_store
from jaxcache.store.object.store import ObjectStore
from jaxcache.store.object.traffic import TRAFFIC, Traffic

__all__ = ["SCHEMES", "TRAFFIC", "ObjectStore", "Traffic", "open_object_store"]
