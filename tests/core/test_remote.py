"""What is shown of URLs and command lines has no secret; what names credentials, and a server."""

import os
from pathlib import Path

import pytest

from jaxcache.core import remote
from jaxcache.core.remote import RemoteError, check_endpoints, has_credentials, hide_secrets, redact


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--token abc --name abc", "--token *** --name abc"),
        ("--api-key=abc --tokenizer abc", "--api-key=*** --tokenizer abc"),
        ("--token --verbose abc", "--token --verbose abc"),
        ("--max_tokens=8 token abc a/token=abc", "--max_tokens=8 token abc a/token=abc"),
        ("WANDB_API_KEY=abc s3://user:abc@host/x", "WANDB_API_KEY=*** s3://***@host/x"),
        ("https://host/x?part=1&sig=abc#top", "https://host/x?part=1&sig=***#top"),
    ],
)
def test_words_that_look_secret_are_hidden(words: str, shown: str) -> None:
    assert hide_secrets(words.split()) == shown.split()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://user:abc@bucket/x?key=abc", "s3://bucket/x"),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("gs://bucket", "gs://bucket"),
        ("/nfs/a@b?c", "/nfs/a@b?c"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_a_process_that_was_forked_from_one_with_a_bucket_opens_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "_opener", 0)
    remote.connection("memory", {})
    remote.connection("memory", {})
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(RemoteError, match="this one was forked from has opened a bucket"):
        remote.connection("memory", {})


@pytest.mark.parametrize(
    ("service", "line", "expected"),
    [
        ("s3", "AWS_ACCESS_KEY_ID=x", True),
        ("s3", "AWS_ACCESS_KEY_ID=", False),
        ("s3", "AWS_REGION=x", False),
        ("s3", "JAXCACHE_INSTANCE_CREDENTIALS=true", True),
        ("gs", "GOOGLE_SERVICE_ACCOUNT_PATH=x", True),
        ("gs", "AWS_ACCESS_KEY_ID=x", False),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY=x", True),
        ("az", "AZURE_STORAGE_ACCOUNT_NAME=x", False),
        ("http", "AWS_REGION=x", True),
    ],
)
def test_what_names_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, line: str, expected: bool
) -> None:
    """Google's own file does, too, for its buckets."""
    monkeypatch.setenv("HOME", str(tmp_path))
    name, _, value = line.partition("=")
    monkeypatch.setenv(name, value)
    assert has_credentials(service) is expected
    file = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    file.parent.mkdir(parents=True)
    file.touch()
    assert has_credentials(service) is (expected or service == "gs")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is empty"),
        ("ftp://host", "is not a URL of a server"),
        ("http://", "is not a URL of a server"),
        ("http://host:0", "is not a URL of a server"),
        ("http://[::1", "is not a URL of a server"),
        ("http://a b", "is not a URL of a server"),
        ("http://user:abc@host", "credentials do not belong into AWS_ENDPOINT_URL"),
        ("http://host?abc", "credentials do not belong into AWS_ENDPOINT_URL"),
    ],
)
def test_an_endpoint_is_the_url_of_a_server_without_credentials(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    for sound in ("http://127.0.0.1:9", "https://[::1]:9/x"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", sound)
        check_endpoints()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(RemoteError, match=said) as caught:
        check_endpoints()
    assert "abc" not in f"{caught.value}{caught.value.hint}"
