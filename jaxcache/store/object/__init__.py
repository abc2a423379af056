"""Caches in object stores, through obstore (extra ``remote``): S3, GCS, Azure, HTTP, memory."""
