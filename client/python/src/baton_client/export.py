"""The export of a session: docs/PROTOCOL.md, section 13. Made here; `scripts/verify_export.py` and `baton session verify
--file` are the verifiers.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import limits
from .chain import ChainTurn
from .codec import encode
from .errors import SessionError, VerificationError
from .journal import AcceptedTurn, private_file
from .keys import SessionKeys
from .objects import Ack, ExportStatement, Message, Receipt, Role, SignedBytes, TurnAuth
from .receipts import commit_input, commit_output, sampling_digest
from .signed import EXPORT_STATEMENT, RECEIPT, TURN_AUTH, TURN_NOTE, signed_hash
from .store import blob_id_text

if TYPE_CHECKING:
    from .session import Session

FORMAT = "baton-export-v2"
_ROLES = {Role.SYSTEM: "System", Role.USER: "User", Role.ASSISTANT: "Assistant", Role.TOOL: "Tool"}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _signed(signed: SignedBytes | None) -> str | None:
    return None if signed is None else _base64(encode(signed))


def _message(message: Message) -> dict[str, Any]:
    return {"role": _ROLES[message.role], "name": message.name, "call_id": message.call_id, "text": message.text}


def make(session: Session, with_root: bool) -> str:
    """The export of a session up to its head, as one JSON object."""
    if not session.turns:
        raise SessionError("Empty", "a session without turns has nothing to export", "send a message first")
    if not session.turns[-1].accepted.blob_id_known:
        raise SessionError("Unsettled", "the last blob is not stored yet", "await Session.settled() first")
    keys = session.keys
    seq, link_hash = session.head
    statement = keys.sign(
        EXPORT_STATEMENT, ExportStatement(limits.VERSION, keys.session_id, keys.session_key, seq, link_hash)
    )
    segments: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for turn in session.turns:
        own, link, accepted = keys.keys_of(turn.link), turn.link, turn.accepted
        item: dict[str, Any] = {
            "seq": link.seq,
            "record_key": own.record_key.hex(),
            "blob_key": own.blob_key.hex(),
            "blob_id": blob_id_text(turn.blob.blob_id),
            "auth": _signed(accepted.auth),
            "receipt": _signed(accepted.receipt),
            "ack": _signed(accepted.ack),
            "system": None if accepted.system is None else [_message(message) for message in accepted.system],
        }
        if accepted.sampling is not None:
            item["sampling"] = _base64(encode(accepted.sampling))
        turns.append(item)
        if link.seq + 1 == len(session.turns) or session.turns[link.seq + 1].link.segment != link.segment:
            segments.append(
                {
                    "segment": link.segment,
                    "blob": _base64(session.blob_bytes(link.seq)),
                    "blob_id": blob_id_text(turn.blob.blob_id),
                    "blob_key": own.blob_key.hex(),
                }
            )
    export = {
        "format": FORMAT,
        "session_id": keys.session_id.hex(),
        "session_key": keys.session_key.hex(),
        "n_shards": session.n_shards,
        "branch": None,
        "head": {"seq": seq, "link_hash": link_hash.hex(), "statement": _signed(statement)},
        "root": keys.root.expose().hex() if with_root else None,
        "segments": segments,
        "turns": turns,
    }
    return json.dumps(export, ensure_ascii=False, indent=1)


def write(path: Path, text: str) -> None:
    """Writes an export to a new file that only its owner can read."""
    try:
        private_file(path, text.encode())
    except FileExistsError:
        raise SessionError("Exists", f"{path} exists already", "name another file") from None


def check_signed_objects(keys: SessionKeys, turn: ChainTurn, accepted: AcceptedTurn) -> int:
    """Section 13, steps 5 to 7, for one turn: order, receipt and acknowledgement, as far as they are here.

    Returns 1 if there is a receipt, else 0.
    """
    link, own = turn.link, keys.keys_of(turn.link)
    auth = TURN_AUTH.open(accepted.auth) if accepted.auth is not None else None
    if auth is not None and accepted.auth is not None:
        _check_auth(turn, auth, signed_hash("auth-hash", accepted.auth))
    if accepted.receipt is None:
        return 0
    receipt = RECEIPT.open(accepted.receipt)
    same = ("session_id", "seq", "turn_id", "attempt", "auth_hash")
    held = all(getattr(receipt, name) == getattr(link, name) for name in same) and receipt.node == link.author
    held = held and signed_hash("receipt-hash", accepted.receipt) == link.receipt_hash
    output = commit_output(own.commitment_key, turn.answer, turn.record.finish)
    held = held and receipt.commitments.output == output
    if accepted.system is not None:
        given = commit_input(own.commitment_key, accepted.system, receipt.window_from, turn.record.messages[:-1])
        held = held and receipt.commitments.input == given
    if accepted.sampling is not None:
        held = held and receipt.sampling == sampling_digest(own.commitment_key, accepted.sampling)
    if not held or (auth is not None and not _fits(receipt, auth)):
        raise VerificationError("ReceiptMismatch", f"receipt of turn {link.seq + 1}")
    if accepted.ack is not None:
        note = TURN_NOTE.open(accepted.ack)
        ack = Ack(turn.link_hash, turn.blob.digest, link.receipt_hash)
        if (note.seq, note.turn_id, note.attempt, note.node, note.kind) != (
            link.seq, link.turn_id, link.attempt, link.author, ack,
        ):  # fmt: skip
            raise VerificationError("ReceiptMismatch", f"acknowledgement of turn {link.seq + 1}")
    return 1


def _check_auth(turn: ChainTurn, auth: TurnAuth, auth_hash: bytes) -> None:
    link = turn.link
    same = ("session_id", "seq", "turn_id", "attempt", "prev_link")
    held = all(getattr(auth, name) == getattr(link, name) for name in same) and auth.audience == link.author
    held = held and auth_hash == link.auth_hash and auth.prev_blob in (None, link.prev_blob)
    begin, end = auth.issued_ms - limits.MAX_CLOCK_SKEW_MS, auth.expires_ms + limits.MAX_TURN_MS
    if not held or not begin <= link.time_ms <= end:
        raise VerificationError("ReceiptMismatch", f"authorisation of turn {link.seq + 1}")


def _fits(receipt: Receipt, auth: TurnAuth) -> bool:
    return (
        receipt.model == auth.model
        and receipt.sampling == auth.sampling
        and receipt.price <= auth.max_price
        and receipt.tokens.output <= auth.max_output_tokens
        and receipt.tokens.resumed == (auth.resume.token_count if auth.resume else 0)
        and [check.order for check in receipt.checks] == auth.checks
    )
