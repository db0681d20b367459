"""The store: Walrus's HTTP interface for blobs, and the head index beside it.

Sources: Walrus's publisher and aggregator API (`PUT /v1/blobs?epochs=N`, `GET /v1/blobs/ID`), and docs/PROTOCOL.md,
section 12, for heads. Nothing that a store answers is believed: a caller checks each blob against its digest.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from .errors import StoreError
from .limits import MAX_BLOB_BYTES, MAX_HEAD_BYTES, MAX_HTTP_TEXT_BYTES, SIGNED_OVERHEAD, STORE_TIMEOUT_S

_STEP = 64 * 1024


def blob_id_text(blob_id: bytes) -> str:
    """A Walrus blob ID as text: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(blob_id).decode().rstrip("=")


def parse_blob_id(text: str) -> bytes:
    """The 32 bytes of a Walrus blob ID."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if len(data) != 32 or blob_id_text(data) != text:
        raise StoreError(f"{text[:64]!r} is no blob ID", "the publisher does not answer as Walrus's does")
    return data


class Store:
    """A publisher, an aggregator and a head index, by their URLs."""

    def __init__(self, publisher: str, aggregator: str | None = None, heads: str | None = None) -> None:
        self.publisher = publisher.rstrip("/")
        self.aggregator = (aggregator or publisher).rstrip("/")
        self.heads = (heads or publisher).rstrip("/")

    async def get_blob(self, blob_id: bytes) -> bytes | None:
        """The bytes under an ID, or None where the aggregator has none. Not verified."""
        status, body = await _request("GET", f"{self.aggregator}/v1/blobs/{blob_id_text(blob_id)}", None, MAX_BLOB_BYTES)
        if status == 404:
            return None
        if status != 200:
            raise StoreError(f"the aggregator answered {status}: {_text(body)}")
        return body

    async def put_blob(self, blob: bytes, epochs: int) -> bytes:
        """Stores a blob; returns the ID that the publisher computed."""
        status, body = await _request("PUT", f"{self.publisher}/v1/blobs?epochs={epochs}", blob, MAX_HTTP_TEXT_BYTES)
        if status != 200:
            raise StoreError(f"the publisher answered {status}: {_text(body)}", "check the publisher's quota and settings")
        answer = _json(body)
        created = answer.get("newlyCreated")
        found = created.get("blobObject", {}).get("blobId") if isinstance(created, dict) else None
        if found is None and isinstance(answer.get("alreadyCertified"), dict):
            found = answer["alreadyCertified"].get("blobId")
        if not isinstance(found, str):
            raise StoreError("the publisher's answer names no blob", "the publisher does not answer as Walrus's does")
        return parse_blob_id(found)

    async def get_head(self, key: bytes) -> bytes | None:
        """The encoded head record under an index key, or None. Not verified."""
        limit = MAX_HEAD_BYTES + SIGNED_OVERHEAD
        status, body = await _request("GET", f"{self.heads}/v1/baton/heads/{key.hex()}", None, limit)
        if status == 404:
            return None
        if status != 200:
            raise StoreError(f"the head index answered {status}: {_text(body)}")
        return body

    async def put_head(self, record: bytes) -> None:
        """Publishes an encoded head record."""
        status, body = await _request("PUT", f"{self.heads}/v1/baton/heads", record, MAX_HTTP_TEXT_BYTES)
        if status != 200:
            raise StoreError(f"the head index refused a head: {status}, {_text(body)}")


def _text(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace")


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StoreError("the store's answer is not a JSON object", "is this URL a Walrus publisher?")
    return value


async def _request(method: str, url: str, body: bytes | None, limit: int) -> tuple[int, bytes]:
    """One request in a thread. An answer of more than `limit` bytes is refused where it exceeds them."""
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await asyncio.to_thread(_blocking_request, method, url, body, limit)
    except TimeoutError:
        raise StoreError(f"{url.split('?')[0]} did not answer within {STORE_TIMEOUT_S:g} s") from None


def _blocking_request(method: str, url: str, body: bytes | None, limit: int) -> tuple[int, bytes]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StoreError(f"{url!r} is not an HTTP URL", "write http://HOST:PORT")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=STORE_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=STORE_TIMEOUT_S)
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = {"Content-Type": "application/octet-stream"} if body is not None else {}
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        out = bytearray()
        end = time.monotonic() + STORE_TIMEOUT_S
        while piece := answer.read(_STEP):
            out += piece
            if time.monotonic() > end:
                raise StoreError(f"{parts.hostname} sends too slowly")
            if len(out) > limit:
                raise StoreError(f"an answer of more than {limit} bytes from {parts.hostname}")
        return answer.status, bytes(out)
    except (OSError, http.client.HTTPException) as error:
        raise StoreError(f"no answer from {parts.scheme}://{parts.netloc}: {error}") from None
    finally:
        connection.close()
