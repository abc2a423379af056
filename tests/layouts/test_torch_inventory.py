"""Shared objects that ``verify`` judges by their headers."""

from jaxcache.layouts.torch.inventory import check_shared_object


def test_a_header_of_any_bytes_is_judged() -> None:
    good = bytearray(64)
    good[:6] = b"\x7fELF\x02\x01"
    good[40:48] = (4096).to_bytes(8, "little")
    good[58:62] = (64).to_bytes(2, "little") + (10).to_bytes(2, "little")
    assert check_shared_object(bytes(good), 4736) is None
    assert check_shared_object(bytes(good), 4735) == (
        "truncated",
        "4,735 bytes, and its sections end at 4,736",
    )
    for bad in (b"", b"\x7fELF", b"MZ" * 32, bytes(good[:6]) + b"\0" * 58):
        found = check_shared_object(bad, 10_000)
        assert found and found[0] in ("empty", "bad-header")
    assert check_shared_object(b"\xcf\xfa\xed\xfe" + b"\0" * 60, 100) is None
