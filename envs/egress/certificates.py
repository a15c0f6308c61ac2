"""Certificates for hosts that this process serves under their true names.

Each process has a key of its own, in its memory alone. Its browsers accept certificates of this key
(`trust_args`) and no others that no authority has signed; no other browser accepts them.
"""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256

DAYS = 365
"""Days for which a certificate is valid; it ends with the process."""


class LocalKey:
    """A private key, and certificates of it."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives import serialization  # 0.1 s
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.fingerprint = b64encode(sha256(public).digest()).decode()
        """SHA-256 of the public key, as Chromium takes it."""

    def server_context(self, hosts: Iterable[str]) -> ssl.SSLContext:
        """Return the TLS settings of a server that has these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        handle = os.memfd_create("certificate", os.MFD_CLOEXEC)  # OpenSSL reads files only
        try:
            os.write(handle, self._pem(list(hosts)))
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
        return context

    def _pem(self, hosts: list[str]) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import NameOID

        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Rollwright, this process alone")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder(name, name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=DAYS))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        secret = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return secret + certificate.public_bytes(serialization.Encoding.PEM)


@cache
def local_key() -> LocalKey:
    """Return the key of this process."""
    return LocalKey()


def trust_args() -> tuple[str, ...]:
    """Return the arguments of a Chromium that accepts this process's certificates."""
    return (f"--ignore-certificate-errors-spki-list={local_key().fingerprint}",)
