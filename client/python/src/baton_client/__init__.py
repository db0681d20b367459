"""A client of Baton: conversations with a language model, encrypted, stored and verified by you.

    from baton_client import Client

    with Client(["/ip4/127.0.0.1/tcp/4001/p2p/12D3KooW..."], store="http://127.0.0.1:31415", shards=10) as client:
        session = client.new_session()
        turn = session.turn("What is a relay race?", on_text=lambda text: print(text, end="", flush=True))
        print(turn.node, session.verify())

`baton_client.aio` has the same with `async`. Everything follows docs/PROTOCOL.md of the Baton repository.
"""

from __future__ import annotations

from .errors import (
    BatonError,
    ProtocolError,
    RefusedError,
    SessionError,
    StoreError,
    TransportError,
    TurnFailedError,
    VerificationError,
)
from .events import AttemptStarted, Event, Finished, QueuePosition, Takeover, TextPiece
from .network import NodeStatus
from .objects import Finish, Message, Receipt, Role, Sampling
from .sync import Client, Session
from .views import Turn, VerifyReport

__version__ = "0.1.0"

__all__ = [
    "AttemptStarted", "BatonError", "Client", "Event", "Finish", "Finished", "Message", "NodeStatus", "ProtocolError",
    "QueuePosition", "Receipt", "RefusedError", "Role", "Sampling", "Session", "SessionError", "StoreError", "Takeover",
    "TextPiece", "TransportError", "Turn", "TurnFailedError", "VerificationError", "VerifyReport",
]  # fmt: skip
