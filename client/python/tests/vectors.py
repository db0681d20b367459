"""The known-answer vectors of proto/vectors, and a session made from one of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from baton_client.codec import decode
from baton_client.crypto import Secret
from baton_client.journal import AcceptedTurn
from baton_client.keys import SessionKeys
from baton_client.objects import Message, Role, Sampling, SignedBytes

FOLDER = Path(__file__).resolve().parents[3] / "proto" / "vectors"
ROLES = {"System": Role.SYSTEM, "User": Role.USER, "Assistant": Role.ASSISTANT, "Tool": Role.TOOL}


def load(name: str) -> Any:
    """A file of vectors."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def h(text: str) -> bytes:
    """Bytes of hex."""
    return bytes.fromhex(text)


def root_keys() -> SessionKeys:
    """The keys of the session that the vectors show."""
    return SessionKeys(Secret(h(load("keys")["root"])))


def blob_id(text: str) -> bytes:
    """The bytes of a Walrus ID."""
    return base64.urlsafe_b64decode(text + "=")


def signed(text: str | None) -> SignedBytes | None:
    """A signed object of an export."""
    return None if text is None else decode(SignedBytes, base64.b64decode(text))


def accepted(item: dict[str, Any], entry: Any, blob: Any) -> AcceptedTurn:
    """The journal entry of an exported turn."""
    system = None
    if item["system"] is not None:
        system = [Message(ROLES[m["role"]], m["name"], m["call_id"], m["text"]) for m in item["system"]]
    sampling = decode(Sampling, base64.b64decode(item["sampling"])) if "sampling" in item else None
    return AcceptedTurn(
        entry, blob, True, signed(item["auth"]), signed(item["receipt"]), signed(item["ack"]), system, sampling
    )
