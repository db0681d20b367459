"""The asyncio interface: `Client` and `Session` with `async` methods."""

from __future__ import annotations

from .client import Client
from .session import Session

__all__ = ["Client", "Session"]
