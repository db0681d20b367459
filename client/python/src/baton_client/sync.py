"""The same client without `async`: each call runs on an event loop in a thread of its own.

It works where a loop runs already, such as in a notebook.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from . import client as core
from .errors import SessionError
from .events import Event, TextPiece
from .network import NodeStatus
from .objects import Message, Sampling
from .session import Session as AsyncSession
from .views import Turn, VerifyReport

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="baton-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @staticmethod
    async def _cancel_rest() -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def stop(self) -> None:
        """Ends the tasks that are left, the loop and the thread."""
        self.run(self._cancel_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Session:
    """A conversation, as `baton_client.aio.Session` without `async`."""

    def __init__(self, loop: _Loop, inner: AsyncSession) -> None:
        self._loop = loop
        self._inner = inner

    @property
    def id(self) -> str:
        """The session id in hex."""
        return self._inner.id

    @property
    def words(self) -> str:
        """The 24 recovery words: keep them secret."""
        return self._inner.words

    @property
    def history(self) -> list[Turn]:
        """All turns, oldest first."""
        return self._inner.history

    def events(
        self,
        message: str | Message | Iterable[Message],
        *,
        model: str | None = None,
        node: str | bytes | None = None,
        system: str | None = None,
        sampling: Sampling | None = None,
        max_output_tokens: int = 2048,
        max_price: int | None = None,
    ) -> Iterator[Event]:
        """Sends a turn and yields its events."""
        stream = self._inner.stream(
            message,
            model=model,
            node=node,
            system=system,
            sampling=sampling,
            max_output_tokens=max_output_tokens,
            max_price=max_price,
        )
        return self._iterate(stream)

    def _iterate(self, stream: AsyncGenerator[Event, None]) -> Iterator[Event]:
        async def following() -> Event | None:
            return await anext(stream, None)

        try:
            while (event := self._loop.run(following())) is not None:
                yield event
        finally:
            self._loop.run(stream.aclose())

    def stream(self, message: str | Message | Iterable[Message], **options: Any) -> Iterator[str]:
        """Sends a turn and yields the answer's text as it arrives. Options as for `turn`."""
        for event in self.events(message, **options):
            if isinstance(event, TextPiece):
                yield event.text

    def turn(
        self,
        message: str | Message | Iterable[Message],
        *,
        on_text: Callable[[str], None] | None = None,
        model: str | None = None,
        node: str | bytes | None = None,
        system: str | None = None,
        sampling: Sampling | None = None,
        max_output_tokens: int = 2048,
        max_price: int | None = None,
    ) -> Turn:
        """Sends a turn and returns it once it is verified. `on_text` runs in the client's thread."""
        return self._loop.run(
            self._inner.turn(
                message,
                on_text=on_text,
                model=model,
                node=node,
                system=system,
                sampling=sampling,
                max_output_tokens=max_output_tokens,
                max_price=max_price,
            )
        )

    def resume(self, *, on_text: Callable[[str], None] | None = None, node: str | bytes | None = None) -> Turn:
        """Goes on with the waiting turn."""
        return self._loop.run(self._inner.resume(on_text=on_text, node=node))

    def abandon(self) -> None:
        """Drops the waiting turn."""
        self._loop.run(self._inner.abandon())

    def settled(self) -> None:
        """Waits until the last turn is acknowledged, stored and published, as far as possible."""
        self._loop.run(self._inner.settled())

    def verify(self, *, store: bool = True) -> VerifyReport:
        """Reads the chain back, verifies it, and rebuilds every blob."""
        return self._loop.run(self._inner.verify(store=store))

    def refresh(self) -> int:
        """Takes turns that another device added."""
        return self._loop.run(self._inner.refresh())

    def fix(self) -> int:
        """Stores again what the store lacks."""
        return self._loop.run(self._inner.fix())

    def export(self, path: str | Path | None = None, *, with_root: bool = False) -> str:
        """The session as JSON that anyone can verify."""
        self.settled()
        return self._inner.export(path, with_root=with_root)

    def close(self) -> None:
        """Waits for the last turn's rest, and closes the session."""
        self._loop.run(self._inner.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """As `baton_client.aio.Client`, without `async`. Use it in `with`, or call `close`."""

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
        self._inner = core.Client(nodes, store=store, aggregator=aggregator, heads=heads, shards=shards, home=home)
        self._loop = _Loop()
        self._open = True

    def nodes(self) -> list[NodeStatus]:
        """The named nodes with their models, or why each cannot be asked."""
        return self._loop.run(self._inner.nodes())

    def sessions(self) -> list[str]:
        """Ids of the sessions in this home."""
        return self._inner.sessions()

    async def _do(self, action: Callable[[], T]) -> T:
        return action()

    def new_session(self) -> Session:
        """Begins a session."""
        return Session(self._loop, self._loop.run(self._do(self._inner.new_session)))

    def session(self, session_id: str) -> Session:
        """Opens a session of this home by its id or a prefix of it."""
        return Session(self._loop, self._loop.run(self._do(lambda: self._inner.session(session_id))))

    def restore(self, words: str) -> Session:
        """Restores a session from its 24 words."""
        return Session(self._loop, self._loop.run(self._inner.restore(words)))

    def close(self) -> None:
        """Closes sessions, connections and the thread."""
        if not self._open:
            raise SessionError("Closed", "the client is closed already", "")
        self._open = False
        self._loop.run(self._inner.close())
        self._loop.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.close()
