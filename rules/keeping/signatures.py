"""Signatures of stored results, made by a key and held against allowed signers: OpenSSH's `ssh-keygen -Y`."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

NAMESPACE = "modelyard-result"  # a signature made for anything else signs no result
PATIENCE_S = 30.0  # an agent may ask its user
LIMIT = 64 << 10  # characters of a signature; one of a large RSA key takes three thousand
PRINCIPALS = 20  # names of one key that are tried
KEPT = ("PATH", "HOME", "SSH_AUTH_SOCK")


class Unsigned(Exception):
    """Nobody who is trusted has signed it; the text says what is there instead."""


class Unsignable(Exception):
    """The key does not sign; the text says why."""


def sign(message: bytes, key: Path) -> str:
    """The signature of a private key, or of an agent's for a public one. Raises Unsignable."""
    try:
        done = _keygen(["-Y", "sign", "-n", NAMESPACE, "-f", str(key)], message)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsignable(f"{key}: {_reason(error)}") from None
    if done.returncode:
        raise Unsignable(f"{key}: {_last(done)}")
    return done.stdout.decode("ascii")


def signer(message: bytes, signature: str, allowed: Path) -> str:
    """Who of the file of allowed signers signed the message. Raises Unsigned."""
    if not signature:
        raise Unsigned("it is not signed")
    if len(signature) > LIMIT or not signature.isascii():
        raise Unsigned("what it has for a signature is none")
    try:
        with TemporaryDirectory(prefix="modelyard-") as folder:
            path = Path(folder) / "signature"
            path.write_text(signature)
            return _signer(message, path, allowed)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsigned(f"its signature cannot be checked: {_reason(error)}") from None


def _signer(message: bytes, signature: Path, allowed: Path) -> str:
    given = ["-f", str(allowed), "-s", str(signature)]
    known = _keygen(["-Y", "find-principals", *given], b"")
    names = known.stdout.decode(errors="replace").splitlines() if known.returncode == 0 else []
    if not names:
        raise Unsigned("it is signed by a key that is not there")
    for name in names[:PRINCIPALS]:
        if _keygen(["-Y", "verify", "-n", NAMESPACE, "-I", name, *given], message).returncode == 0:
            return name
    raise Unsigned(f"the signature, by a key of {names[0][:80]}, is not valid for it")


def _keygen(arguments: Sequence[str], message: bytes) -> "subprocess.CompletedProcess[bytes]":
    # In a session of its own it has no terminal to ask for a passphrase, which would wait for ever.
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.run(
        ["ssh-keygen", *arguments],
        input=message,
        capture_output=True,
        env={**environment, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"},
        start_new_session=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _last(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines = done.stderr.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "ssh-keygen failed")[:200]


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "OpenSSH's ssh-keygen is not installed"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"ssh-keygen did not end within {PATIENCE_S:g} s"
    return str(error)
