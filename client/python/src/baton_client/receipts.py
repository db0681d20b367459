"""Commitments, running hashes, and what a client checks before it accepts a turn: docs/PROTOCOL.md, sections 6 and 8."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import limits
from .codec import Text, encode, layout_of, u32le, u64le
from .crypto import kdf, keyed
from .errors import VerificationError
from .objects import Engine, Finish, Link, Message, ModelOffer, Receipt, Sampling, SignedBytes, TurnAuth
from .signed import PROGRESS_NOTE

_MESSAGES = layout_of(list[Message])
_TEXT = layout_of(Text)


def commit_input(commitment_key: bytes, system: list[Message], window_from: int, messages: list[Message]) -> bytes:
    """The commitment to a turn's input."""
    data = encode(system, _MESSAGES) + u64le(window_from) + encode(messages, _MESSAGES)
    return keyed(commitment_key, b"\x01" + data)


def commit_output(commitment_key: bytes, answer: str, finish: Finish) -> bytes:
    """The commitment to a turn's answer."""
    return keyed(commitment_key, b"\x02" + encode(answer, _TEXT) + encode(finish))


def sampling_digest(commitment_key: bytes, sampling: Sampling) -> bytes:
    """The digest of the sampling settings."""
    return kdf("sampling-digest", commitment_key, encode(sampling))


def resume_hash(commitment_key: bytes, tokens: list[int]) -> bytes:
    """The hash of a resume prefix's tokens."""
    return kdf("resume-tokens", commitment_key, b"".join(map(u32le, tokens)))


def running_hash_start(commitment_key: bytes, auth_hash: bytes) -> bytes:
    """The running hash of no tokens."""
    return kdf("progress-start", commitment_key, auth_hash)


class TokenHash:
    """The running hash over an answer's tokens."""

    def __init__(self, commitment_key: bytes, auth_hash: bytes, prefix: list[int]) -> None:
        self.value = running_hash_start(commitment_key, auth_hash)
        self.count = 0
        # Hashes at whole numbers of PROGRESS_TOKENS, where a progress note may stand.
        self._marks: dict[int, bytes] = {0: self.value}
        for token in prefix:
            self.push(token)

    def push(self, token: int) -> None:
        """Takes the next token."""
        self.value = kdf("progress-step", self.value, u32le(token))
        self.count += 1
        if self.count % limits.PROGRESS_TOKENS == 0:
            self._marks[self.count] = self.value

    def at(self, count: int) -> bytes | None:
        """The hash after `count` tokens, if a note may stand there."""
        return self.value if count == self.count else self._marks.get(count)


def check_note(signed: SignedBytes, auth: TurnAuth, auth_hash: bytes, tokens: TokenHash) -> None:
    """A progress note: of this node and order, and over the tokens that arrived (ids permitting)."""
    note = PROGRESS_NOTE.open(signed)
    if note.node != auth.audience or note.auth_hash != auth_hash:
        raise VerificationError("ReceiptMismatch", "a progress note of another turn")
    known = tokens.at(note.token_count) if tokens.count else None
    if known is not None and known != note.running_hash:
        raise VerificationError("ReceiptMismatch", "a progress note over other tokens")


@dataclass(frozen=True)
class Terms:
    """The offer that the client chose, with the node's storage price and the ordered units."""

    offer: ModelOffer
    storage_price: int
    units: int

    def most(self, input_tokens: int, output_tokens: int, resumed: int) -> int:
        """The highest price for so many tokens (section 6, Receipt)."""
        tokens = input_tokens * self.offer.input_price + (output_tokens - resumed) * self.offer.output_price
        return -(-tokens // 1000) + self.units * self.storage_price


@dataclass
class Facts:
    """What the client itself saw of a turn."""

    auth: TurnAuth
    auth_hash: bytes
    system: list[Message]
    messages: list[Message]
    commitment_key: bytes
    seed: int
    terms: Terms
    answer: str = ""
    # Of the tokens that arrived; none where an engine sends no ids.
    tokens: TokenHash | None = None
    # Where the reply was lost, and the answer comes from the sealed turn: bytes of the answer that did not arrive.
    unseen: int | None = None
    notes: list[SignedBytes] = field(default_factory=list)


def _need(condition: bool, cause: str) -> None:
    if not condition:
        raise VerificationError("ReceiptMismatch", cause)


def _check_lost(receipt: Receipt, arrived: TokenHash, unseen: int, finish: Finish) -> None:
    """Whether count and hash fit the part that arrived before the reply was lost. A token has a byte at least."""
    output = receipt.tokens.output
    if receipt.engine is Engine.PROXIED and arrived.count == 0:
        return
    hidden = limits.MAX_STOP_BYTES if finish is Finish.STOP_STRING else 0
    _need(arrived.count <= output <= arrived.count + unseen + hidden, "the receipt counts other tokens than the answer has")
    _need(output != arrived.count or receipt.running_hash == arrived.value, "the receipt hashes other tokens")


def check_receipt(receipt: Receipt, facts: Facts, finish: Finish) -> None:
    """Whether a receipt fits its order and what the client saw; else ReceiptMismatch."""
    auth, tokens = facts.auth, receipt.tokens
    same = ("session_id", "seq", "turn_id", "attempt", "model", "sampling")
    _need(all(getattr(receipt, name) == getattr(auth, name) for name in same), "the receipt is of another turn")
    _need(receipt.auth_hash == facts.auth_hash and receipt.node == auth.audience, "the receipt is of another order")
    _need(receipt.seed == facts.seed, "the receipt names another seed")
    _need(receipt.window_from <= receipt.seq, "the receipt's window begins after its turn")
    _need(receipt.price <= auth.max_price and tokens.output <= auth.max_output_tokens, "the receipt is beyond its caps")
    _need(receipt.memory_items == 0 or auth.memory_from is not None, "the receipt names memory that was not ordered")
    _need(tokens.memory <= auth.memory_tokens, "the receipt names more memory than ordered")
    _need(tokens.memory == 0 or receipt.memory_items > 0, "the receipt counts memory without items")
    _need((receipt.commitments.memory is not None) == (receipt.memory_items > 0), "the receipt's memory contradicts itself")
    resumed = auth.resume.token_count if auth.resume else 0
    _need(tokens.resumed == resumed <= tokens.output, "the receipt counts another prefix")
    _need([check.order for check in receipt.checks] == auth.checks, "the receipt has checks that were not ordered")
    nothing = running_hash_start(facts.commitment_key, facts.auth_hash)
    _need(tokens.output > 0 or receipt.running_hash == nothing, "the receipt hashes tokens of no answer")
    _need(receipt.engine is facts.terms.offer.engine, "the receipt names another engine than the offer")
    _need(tokens.input <= facts.terms.offer.context_tokens, "the receipt counts more input than the model's context")
    _need(receipt.price <= facts.terms.most(tokens.input, tokens.output, resumed), "the receipt's price is above the offer")
    if facts.unseen is not None and facts.tokens is not None:
        _check_lost(receipt, facts.tokens, facts.unseen, finish)
    elif facts.tokens is not None and facts.tokens.count > 0:
        _need(tokens.output == facts.tokens.count, "the receipt counts other tokens than arrived")
        _need(receipt.running_hash == facts.tokens.value, "the receipt hashes other tokens")
    else:
        _need(receipt.engine is Engine.PROXIED or tokens.output == 0, "an answer without token ids")
    given = commit_input(facts.commitment_key, facts.system, receipt.window_from, facts.messages)
    _need(receipt.commitments.input == given, "the receipt commits to another input")
    output = commit_output(facts.commitment_key, facts.answer, finish)
    _need(receipt.commitments.output == output, "the receipt commits to another answer")


def check_link(
    link: Link, auth: TurnAuth, auth_hash: bytes, receipt_hash: bytes, place: tuple[int, int], now_ms: int
) -> None:
    """Whether a link is the one that the client ordered; else ReceiptMismatch. `place` is segment and index."""
    same = ("session_id", "seq", "turn_id", "attempt", "prev_link", "prev_blob")
    _need(all(getattr(link, name) == getattr(auth, name) for name in same), "the link is of another turn")
    _need(link.author == auth.audience and link.auth_hash == auth_hash, "the link is of another order")
    _need((link.segment, link.index) == place, "the link stands in another place")
    _need(link.receipt_hash == receipt_hash, "the link names another receipt")
    _need(link.time_ms >= auth.issued_ms - limits.MAX_CLOCK_SKEW_MS, "the link's time is before its order")
    _need(link.time_ms <= now_ms + limits.MAX_LINK_LEAD_MS, "the link's time is in the future")
