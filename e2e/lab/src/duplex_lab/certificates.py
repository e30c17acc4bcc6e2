"""Certificates of one lab: two authorities, and a leaf for each component and client (RFC 5280).

Layout and names follow Kubernetes' "PKI certificates and requirements" page, which kubeadm follows too.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = dt.timedelta(days=3650)
_CLOCK_SKEW: Final = dt.timedelta(minutes=5)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(_private_pem(key))


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(
    subject: x509.Name, public_key: ec.EllipticCurvePublicKey, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True)
class KeyPair:
    """The files of one certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority made for one lab; `directory` gets `<name>.crt` and `<name>.key` files."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _certificate(self._subject, self._key.public_key(), self._subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=True), critical=True)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        self.pair = self._write(name, self._key, builder.sign(self._key, hashes.SHA256()))

    @property
    def certificate(self) -> Path:
        """The authority's own certificate, which clients and servers trust."""
        return self.pair.certificate

    def client(self, file: str, user: str, groups: Iterable[str] = ()) -> KeyPair:
        """Issue a client certificate: Kubernetes reads the common name as the user, organizations as the groups."""
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        names.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._issue(file, x509.Name(names), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, file: str, name: str, alternative_names: Iterable[str]) -> KeyPair:
        """Issue a server certificate for these addresses and DNS names."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._issue(file, subject, ExtendedKeyUsageOID.SERVER_AUTH, alternative_names)

    def _issue(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, alternative_names: Iterable[str]
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(subject, key.public_key(), self._subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        names = [_alternative_name(name) for name in alternative_names]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return self._write(file, key, builder.sign(self._key, hashes.SHA256()))

    def _write(self, file: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> KeyPair:
        pair = KeyPair(self._directory / f"{file}.crt", self._directory / f"{file}.key")
        _write_private(pair.key, key)
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair


def signing_pair(directory: Path, file: str) -> tuple[Path, Path]:
    """Make the key that signs service-account tokens; returns (private, public), PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = directory / f"{file}.key", directory / f"{file}.pub"
    _write_private(private, key)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def write_kubeconfig(path: Path, server: str, authority: Path, user: KeyPair) -> Path:
    """Write a kubeconfig with everything inline; readable by the owner only, because it holds a private key."""

    def inline(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": inline(authority)}}],
        "users": [
            {
                "name": "lab",
                "user": {
                    "client-certificate-data": inline(user.certificate),
                    "client-key-data": inline(user.key),
                },
            }
        ],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path
