"""Certificates for tests."""

from __future__ import annotations

import subprocess


def make_certificate(folder, name: str, *names: str) -> tuple[str, str]:
    """Make a certificate that signs itself; return its file and that of its key."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem")
    alternatives = ["-addext", "subjectAltName=" + ",".join(names)] if names else []
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    ]
    subprocess.run([*command, "-keyout", key, "-out", cert, *alternatives], check=True, capture_output=True)
    return cert, key
