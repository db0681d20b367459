"""The client: a home folder of sessions, the named nodes, and a store."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from . import heads, limits
from .chain import read_chain
from .crypto import Secret
from .errors import SessionError, StoreError
from .journal import JOURNAL_VERSION, Journal, Opened, Published, private_file, private_folder
from .keys import ROOT_BYTES, SessionKeys, root_of_words
from .network import Network, NodeStatus, now_ms
from .objects import BlobRef
from .session import Session, accepted_of
from .signed import genesis_hash
from .store import Store

_ID = re.compile(r"[0-9a-f]{1,64}")


def _small_text(path: Path) -> str:
    """The text of a small file of this client's own."""
    with path.open("rb") as file:
        return file.read(limits.MAX_SMALL_FILE_BYTES).decode("ascii", "replace").strip()


class Client:
    """Opens sessions. Use it in `async with`, or call `close`.

    `nodes` are TCP addresses (`/ip4/HOST/tcp/PORT/p2p/ID`). `store` is the URL of a publisher that is also aggregator and
    head index; `aggregator` and `heads` name others. `shards` is the store's shard count (1000 on Walrus).
    `home` holds the sessions, in files of their owner alone; without it they are in a temporary folder, removed at the end.
    """

    def __init__(
        self,
        nodes: list[str],
        *,
        store: str | None = None,
        aggregator: str | None = None,
        heads: str | None = None,
        shards: int = 1000,
        home: str | Path | None = None,
    ) -> None:
        if not limits.MIN_SHARDS <= shards <= limits.MAX_SHARDS:
            raise SessionError("BadGenesis", f"{shards} shards", f"from {limits.MIN_SHARDS} to {limits.MAX_SHARDS}")
        self.network = Network(nodes)
        self.store = Store(store, aggregator, heads) if store else None
        self.shards = shards
        self._temporary = tempfile.TemporaryDirectory(prefix="baton-") if home is None else None
        self.home = Path(self._temporary.name if self._temporary else home or "")
        private_folder(self.home)
        self._sessions: dict[str, Session] = {}

    def _device_id(self) -> bytes:
        """This home's device id, made at its first use."""
        path = self.home / "device"
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                private_file(path, os.urandom(16).hex().encode())
        found = _small_text(path)
        if len(found) != 32 or not _ID.fullmatch(found):
            raise SessionError("Damaged", f"{path} is no device id", "remove the file; a new one is made")
        return bytes.fromhex(found)

    async def nodes(self) -> list[NodeStatus]:
        """The named nodes with their models, or why each cannot be asked."""
        return await self.network.statuses()

    def sessions(self) -> list[str]:
        """Ids of the sessions in this home."""
        return sorted(path.parent.name for path in self.home.glob("*/root") if _ID.fullmatch(path.parent.name))

    def new_session(self) -> Session:
        """Begins a session. Its root is drawn here and written to the home before any use."""
        return self._begin(Secret.random(ROOT_BYTES), self.shards)

    def _begin(self, root: Secret, shards: int) -> Session:
        keys = SessionKeys(root)
        folder = self.home / keys.session_id.hex()
        if folder.exists():
            raise SessionError("Exists", "this home has that session already", "open it with Client.session")
        private_folder(folder)
        private_file(folder / "root", root.expose().hex().encode())
        journal = Journal(folder / "journal", keys.journal_key)
        journal.append(Opened(JOURNAL_VERSION, shards, self._device_id(), now_ms()))
        return self._open(folder, keys, journal)

    def _open(self, folder: Path, keys: SessionKeys, journal: Journal) -> Session:
        try:
            session = Session(folder, keys, journal, self.network, self.store)
        except BaseException:
            journal.close()
            raise
        self._sessions[session.id] = session
        return session

    def session(self, session_id: str) -> Session:
        """Opens a session of this home by its id or a prefix of it."""
        found = [known for known in self.sessions() if known.startswith(session_id)] if _ID.fullmatch(session_id) else []
        if len(found) != 1:
            hint = "Client.sessions lists them" if not found else "write more digits of the id"
            raise SessionError("NoSession", f"{len(found)} sessions of this home begin with {session_id!r}", hint)
        folder = self.home / found[0]
        text = _small_text(folder / "root")
        if len(text) != 2 * ROOT_BYTES or not _ID.fullmatch(text):
            raise SessionError("Damaged", f"{folder / 'root'} is no root", "restore the session from its words")
        keys = SessionKeys(Secret(bytes.fromhex(text)))
        if keys.session_id.hex() != found[0]:
            raise SessionError("SessionIdMismatch", "the root is of another session", "restore the session from its words")
        return self._open(folder, keys, Journal(folder / "journal", keys.journal_key))

    async def restore(self, words: str) -> Session:
        """Restores a session from its 24 words: finds its head, reads the chain from the store, and verifies it whole."""
        if self.store is None:
            raise StoreError("no store is named", "open the client with store=URL")
        store, root = self.store, root_of_words(words)
        keys = SessionKeys(Secret(root.expose()))
        head = await heads.find(store.get_head, keys, 0, now_ms())
        if head is None:
            raise SessionError("NoHead", "the index has no head of this session", "name the index that the session used")
        if head.inner.tombstone:
            raise SessionError("Deleted", "the session was deleted", "")
        if head.outer.branch is not None:
            raise SessionError("Unsupported", "the session is a branch", "restore it with `baton session restore`")

        async def fetch(reference: BlobRef) -> bytes:
            found = await store.get_blob(reference.blob_id)
            if found is None:
                raise StoreError("the store lacks a blob of this session", "it expired, or another aggregator has it")
            return found

        start = genesis_hash(keys.session_key, head.outer.n_shards, None)
        newest = head.outer.blobs[0]
        end = (head.outer.seq, head.outer.link_hash)
        chain = await read_chain(keys, start, end, newest.segment, newest.blob, fetch)
        keys.wipe()
        session = self._begin(root, head.outer.n_shards)
        session.note(*accepted_of(chain), Published(head.sequence, head.outer.seq))
        await session.publish()
        return session

    async def close(self) -> None:
        """Closes sessions and connections."""
        for session in list(self._sessions.values()):
            if not session.closed:
                await session.close()
        self._sessions.clear()
        await self.network.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
