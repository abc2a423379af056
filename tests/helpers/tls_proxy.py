"""A proxy of a company's network: clients tunnel through it, and it ends their TLS itself.

No system trusts its certificate, as where a firewall reads along or where a bucket is served inside
a cluster. What arrives is passed on without TLS.
"""

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PART_BYTES = 1 << 16


@dataclass
class TlsProxy:
    """Where it listens, whom to trust, and who was asked for."""

    address: str
    authority: Path
    """The authority's certificate, as PEM."""
    tunnels: list[str] = field(default_factory=list)
    """``HOST:PORT`` of each tunnel, in order."""


@contextlib.contextmanager
def run_tls_proxy(upstream: str, host: str, directory: Path) -> Iterator[TlsProxy]:
    """Run a proxy through which ``https://HOST`` is the upstream server.

    Args:
        directory: where the certificates are written.
    """
    authority, chain = _make_certificates(host, directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = TlsProxy(f"http://127.0.0.1:{listener.getsockname()[1]}", authority)
    target = urlsplit(upstream)

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            proxy.tunnels.append(_read_tunnel(client))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with (
                context.wrap_socket(client, server_side=True) as inner,
                socket.create_connection((target.hostname, target.port)) as server,
            ):
                back = threading.Thread(target=_copy, args=(server, inner), daemon=True)
                back.start()
                _copy(inner, server)
                back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        listener.close()


def _read_tunnel(client: socket.socket) -> str:
    """Read the request for a tunnel; its target."""
    head = client.recv(_PART_BYTES)
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(_PART_BYTES)
    method, target, _ = head.split(b" ", 2)
    assert method == b"CONNECT", head
    return target.decode()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(_PART_BYTES):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _make_certificates(host: str, directory: Path) -> tuple[Path, Path]:
    """Write the host's certificate, which is its own authority, and a file with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    kind = serialization.PrivateFormat.PKCS8
    trusted, chain = directory / "authority.pem", directory / "server.pem"
    trusted.write_bytes(certificate.public_bytes(pem))
    private = key.private_bytes(pem, kind, serialization.NoEncryption())
    chain.write_bytes(private + trusted.read_bytes())
    return trusted, chain
