"""The object store: the conformance suite against a real S3 server and in memory."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conformance import StoreConformance

from jaxcache.store import open_store
from jaxcache.store.base import Store


class TestS3(StoreConformance):
    """An S3 server keeps every promise, by the means that base.py names."""

    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(bucket)


class TestMemory(StoreConformance):
    """So does a store in memory."""

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Store:
        return open_store(f"memory://{id(request)}-{request.node.nodeid.encode().hex()}")
