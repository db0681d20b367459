"""Errors: a small hierarchy, each with a code, a cause and a hint.

Codes are the names of docs/PROTOCOL.md, section 14, and a few names for local causes. Callers catch a class; programs
compare `code`.
"""

from __future__ import annotations

# Codes of a refusal: number, name, and where another try may succeed (section 14): here (the same node after a pause),
# elsewhere, or never.
CODES: dict[int, tuple[str, str]] = {
    1: ("FrameTooLarge", "never"),
    2: ("NonCanonical", "never"),
    3: ("UnsupportedVersion", "elsewhere"),
    4: ("SessionIdMismatch", "never"),
    5: ("BadSignature", "never"),
    6: ("WrongAudience", "elsewhere"),
    7: ("KxExpired", "here"),
    8: ("Expired", "here"),
    9: ("NotYetValid", "here"),
    10: ("Replayed", "elsewhere"),
    11: ("IdempotencyConflict", "never"),
    12: ("PayloadRejected", "never"),
    20: ("BlobUnavailable", "here"),
    21: ("BlobTooLarge", "never"),
    22: ("BlobHashMismatch", "elsewhere"),
    27: ("HeadMismatch", "elsewhere"),
    40: ("StatusUnknown", "elsewhere"),
    41: ("Aborted", "elsewhere"),
    42: ("ContextOverflow", "never"),
    43: ("ModelUnavailable", "elsewhere"),
    44: ("QuotaExceeded", "elsewhere"),
    45: ("RateLimited", "here"),
    46: ("Busy", "elsewhere"),
    47: ("Internal", "elsewhere"),
    48: ("GrantRequired", "elsewhere"),
    49: ("BackendDenied", "elsewhere"),
    50: ("ContentRefused", "never"),
    60: ("MemUnauthorized", "never"),
}
RETRY = dict(CODES.values())

HINTS = {
    "BadSignature": "check the key; the object is forged or damaged",
    "BlobHashMismatch": "ask another aggregator for the blob",
    "BlobUnavailable": "check the aggregator; `Session.fix` stores this machine's copy again",
    "Busy": "try again in some seconds, or name more nodes",
    "ContextOverflow": "send a shorter message or system text, or choose a model with a larger context",
    "Expired": "check this machine's clock",
    "ForkDetected": "another device wrote this session too: merge with `baton session sync` on that device",
    "GrantRequired": "this node serves only holders of a grant from its operator; name another node",
    "KxExpired": "check this machine's clock",
    "ModelUnavailable": "name a model of `Client.nodes`, or more nodes",
    "NotYetValid": "check this machine's clock",
    "QuotaExceeded": "order fewer tokens or epochs, raise `max_price`, or name another node",
    "RateLimited": "wait a minute, or name more nodes",
    "RollbackDetected": "another device wrote this session, or the head index is old: read it with `Session.refresh`",
    "UnsupportedVersion": "update the older of the two programs",
}


class BatonError(Exception):
    """The base of all errors of this package.

    `code` is a name of section 14 or of a local cause, `cause` says what happened, `hint` the next step (may be empty).
    """

    def __init__(self, code: str, cause: str, hint: str | None = None) -> None:
        self.code = code
        self.cause = cause
        self.hint = HINTS.get(code, "") if hint is None else hint
        super().__init__(f"{code}: {cause}" + (f" ({self.hint})" if self.hint else ""))


class ProtocolError(BatonError):
    """Bytes of a peer or a store that the protocol does not allow."""


class VerificationError(ProtocolError):
    """A signed object, blob or chain that does not hold. Nothing of it is used."""


class RefusedError(BatonError):
    """A node's refusal of a request, by its code. `retry_after_ms` is the pause that the node asks for."""

    def __init__(self, code: str, cause: str, retry_after_ms: int = 0) -> None:
        super().__init__(code, cause)
        self.retry_after_ms = retry_after_ms

    @property
    def elsewhere(self) -> bool:
        """Another node may serve the turn, as a new attempt."""
        return RETRY.get(self.code, "never") != "never"


class TransportError(BatonError):
    """A connection that failed or ended."""

    def __init__(self, cause: str, hint: str = "check the node's address, and that it runs") -> None:
        super().__init__("Transport", cause, hint)


class StoreError(BatonError):
    """A publisher, aggregator or head index that did not do as asked."""

    def __init__(self, cause: str, hint: str = "check the store's URL, and that it runs") -> None:
        super().__init__("Store", cause, hint)


class SessionError(BatonError):
    """A session that cannot be opened or used now: unknown, in use, or in conflict."""


class TurnFailedError(BatonError):
    """A turn that no node served. `attempts` says why, one error for each attempt.

    The message stays in the journal: `Session.resume` sends it again, `Session.abandon` drops it.
    """

    def __init__(self, attempts: list[BatonError]) -> None:
        self.attempts = attempts
        last = attempts[-1] if attempts else None
        causes = "; ".join(str(error) for error in attempts[-3:]) or "no node is known"
        super().__init__(
            last.code if last else "NoNode",
            f"no node served the turn: {causes}",
            (last.hint if last else "") or "name nodes with `Client(nodes=[...])`",
        )


def refusal(number: int, retry_after_ms: int) -> RefusedError:
    """The error of a `Refused` frame. An unknown number is NonCanonical (section 17)."""
    known = CODES.get(number)
    if known is None:
        raise ProtocolError("NonCanonical", f"unknown error code {number}")
    return RefusedError(known[0], "the node refused the request", retry_after_ms)
