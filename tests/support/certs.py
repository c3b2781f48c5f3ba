"""Certificates made with the openssl command: an authority, a server's certificate, one that has expired."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    def __init__(self, root: Path, name: str = "ca") -> None:
        self.root = root
        self.own = Certificate(root / f"{name}.pem", root / f"{name}.key")
        where = ["-keyout", str(self.own.key), "-out", str(self.own.cert)]
        _openssl("req", "-x509", *_KEY, *where, "-days", "2", "-subj", f"/CN={name}")

    def issue(self, name: str, days: int = 2) -> Certificate:
        """For 127.0.0.1 and localhost."""
        made = Certificate(self.root / f"{name}.pem", self.root / f"{name}.key")
        request, extra = self.root / f"{name}.csr", self.root / f"{name}.ext"
        extra.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl("req", *_KEY, "-keyout", str(made.key), "-out", str(request), "-subj", f"/CN={name}")
        signed = ["-CA", str(self.own.cert), "-CAkey", str(self.own.key), "-CAcreateserial", "-days", str(days)]
        _openssl("x509", "-req", "-in", str(request), *signed, "-extfile", str(extra), "-out", str(made.cert))
        return made


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)
