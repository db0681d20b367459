"""The package against proto/vectors: every part that a client needs, from the Rust implementation's known answers."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any

from baton_client import frames, heads, mlkem, objects, signed, walrus
from baton_client.chain import is_closed, make_blob, open_blob, open_record, read_chain, record_hash, seal_record
from baton_client.codec import decode, decode_layout, encode, layout_of, pad, pad_block, unpad, unpad_block
from baton_client.crypto import (  # fmt: skip
    Secret,
    chacha_open,
    digest,
    ed25519_public,
    ed25519_sign,
    ed25519_verify,
    kdf,
    labelled,
    seal,
    unseal,
    x25519,
    x25519_public,
)
from baton_client.errors import BatonError, ProtocolError, VerificationError
from baton_client.journal import JOURNAL_VERSION, Journal, Opened
from baton_client.keys import SessionKeys, root_of_words, words_of_root
from baton_client.network import Network
from baton_client.objects import BlobRef, BranchPoint, Finish, Message, Payload, Role
from baton_client.receipts import TokenHash, commit_input, commit_output, resume_hash, sampling_digest
from baton_client.sealing import EXCHANGE_BYTES, ReplyOpener, agree, key_id, payload_hash, turn_secret
from baton_client.session import Session

from .vectors import FOLDER, accepted, blob_id, h, load, root_keys

STRUCTS = {
    "Record": objects.Record, "Grant": objects.Grant, "Payload": objects.Payload, "Sampling": objects.Sampling,
    "HeadOuter": heads.HeadOuter, "HeadInner": heads.HeadInner, "StoragePolicy": objects.StoragePolicy,
    "RecordKind": objects.RecordKind,
}  # fmt: skip
SIGNED = {
    "Link": signed.LINK, "TurnAuth": signed.TURN_AUTH, "Receipt": signed.RECEIPT, "ProgressNote": signed.PROGRESS_NOTE,
    "TurnNote": signed.TURN_NOTE, "ExportStatement": signed.EXPORT_STATEMENT, "HeadRecord": heads.HEAD_RECORD,
    "NodeRecord": signed.NODE_RECORD,
}  # fmt: skip
HASHES = {"Link": "link-hash", "TurnAuth": "auth-hash", "Receipt": "receipt-hash"}
# Objects of relayers, quotas and manifests: a client that uses none of them does not read them.
UNUSED = {"MemEnvelope", "RecallHint", "QuotaProof", "Right", "ModelManifest", "MemoryItems"}
UNUSED_FRAMES = {"Quota"}


class Vectors(unittest.TestCase):
    def refuses(self, code: str, action: Any, *arguments: Any) -> None:
        with self.assertRaises(BatonError) as caught:
            action(*arguments)
        self.assertEqual(caught.exception.code, code)

    def test_contexts_and_labels(self) -> None:
        vectors = load("kdf")
        for item in vectors["contexts"]:
            name = item["name"].lower().replace("_", "-")
            self.assertEqual(kdf(name, h(item["input"])).hex(), item["output"], name)
        seed = h(vectors["seed"])
        self.assertEqual(ed25519_public(seed).hex(), vectors["public_key"])
        for item in vectors["labels"]:
            message = labelled(item["label"].removeprefix("baton/v1/"), h(item["message"]))
            self.assertEqual(ed25519_sign(seed, message).hex(), item["signature"], item["name"])
            self.assertTrue(ed25519_verify(ed25519_public(seed), message, h(item["signature"])))
            self.assertFalse(ed25519_verify(ed25519_public(seed), message + b"x", h(item["signature"])))

    def test_key_schedule_and_words(self) -> None:
        vectors = load("keys")
        keys, who = root_keys(), vectors["identity"]
        week, next_week = keys.head_keys(vectors["head_period"]), keys.head_keys(vectors["head_period"] + 1)
        shown = {
            "session_key": keys.session_key, "session_id": keys.session_id, "journal_key": keys.journal_key,
            "head_key": week.head_key, "head_index_key": week.index_key, "head_locate_key": week.locate_key,
            "head_inner_key": keys.head_inner_key, "next_head_index_key": next_week.index_key,
        }  # fmt: skip
        for name, found in shown.items():
            self.assertEqual(found.hex(), vectors[name], name)
        identity = signed.identity(
            h(who["session_id"]), who["segment"], who["seq"], h(who["turn_id"]), who["attempt"], h(who["author"])
        )
        self.assertEqual(identity.hex(), who["bytes"])
        own = keys.record_keys(who["segment"], identity)
        self.assertEqual(own.record_key.hex(), vectors["record_key"])
        self.assertEqual(own.salt.hex(), vectors["blob_salt"])
        self.assertEqual(own.blob_key.hex(), vectors["blob_key"])
        self.assertEqual(own.commitment_key.hex(), vectors["commitment_key"])
        self.assertEqual(words_of_root(keys.root), vectors["words"])
        self.assertEqual(root_of_words(vectors["words"].upper()).expose(), keys.root.expose())
        words = vectors["words"].split()
        self.refuses("Words", root_of_words, " ".join([*words[:-1], "abandon"]))
        self.refuses("Words", root_of_words, " ".join(words[:12]))
        self.refuses("Words", root_of_words, " ".join([*words[:-1], "notaword"]))

    def test_deterministic_sealing(self) -> None:
        for item in load("sealing")["siv"]:
            key, ad, text = h(item["key"]), h(item["associated"]), h(item["text"])
            sealed = seal(key, ad, text)
            self.assertEqual(sealed.hex(), item["sealed"])
            self.assertEqual(unseal(key, ad, sealed, "a vector"), text)
            for at in (0, 31, len(sealed) - 1):
                changed = bytearray(sealed)
                changed[at] ^= 1
                self.refuses("PayloadRejected", unseal, key, ad, bytes(changed), "a vector")
            self.refuses("PayloadRejected", unseal, key, ad + b"x", sealed, "a vector")

    def test_padding(self) -> None:
        for item in load("sealing")["padding"]:
            text = b"\x62" * item["length"]
            padded = pad(text, item["smallest"], 2**21)
            self.assertEqual(padded.hex(), item["padded"])
            self.assertEqual(unpad(padded, item["smallest"]), text)
            self.refuses("NonCanonical", unpad, padded + bytes(len(padded)), item["smallest"])
            if item["length"] + 4 < len(padded):
                self.refuses("NonCanonical", unpad, padded[:-1] + b"\x01", item["smallest"])
        for item in load("exchange")["padded"]:
            padded = pad_block(h(item["body"]), item["block"])
            self.assertEqual(padded.hex(), item["padded"])
            self.assertEqual(unpad_block(padded, item["block"]).hex(), item["body"])
            self.refuses("NonCanonical", unpad_block, padded + bytes(item["block"]), item["block"])
        self.refuses("FrameTooLarge", pad, bytes(2000), 256, 1024)

    def test_exchange_and_stream(self) -> None:
        vectors = load("exchange")
        node, bound = h(vectors["node_key"]), h(vectors["binding"])
        opening, secret = agree(node, bound, h(vectors["ephemeral_secret"]))
        self.assertEqual(opening.hex(), vectors["encapsulation"])
        self.assertEqual(key_id(node).hex(), vectors["node_key_id"])
        self.assertEqual(secret.expose().hex(), vectors["turn_secret"])
        self.assertEqual(mlkem.hybrid_public(h(vectors["node_secret"]), x25519_public).hex(), vectors["node_key"])
        share = mlkem.hybrid_decapsulate(h(vectors["node_secret"]), opening, x25519, x25519_public)
        self.assertEqual(turn_secret(share, opening, node, bound).hex(), vectors["turn_secret"])
        key = kdf("turn-payload", secret.expose())
        self.assertEqual(chacha_open(key, bytes(12), h(vectors["sealed_payload"]), "payload").hex(), vectors["payload"])
        opener = ReplyOpener(secret, h(vectors["reply_nonce"]), h(vectors["auth_hash"]))
        for chunk in vectors["reply_chunks"]:
            self.assertFalse(opener.ended)
            self.assertEqual(opener.open_bytes(h(chunk["sealed"])).hex(), chunk["text"])
        self.assertTrue(opener.ended)
        self.refuses("StreamTruncated", opener.open_bytes, h(vectors["reply_chunks"][0]["sealed"]))
        swapped = ReplyOpener(secret, h(vectors["reply_nonce"]), h(vectors["auth_hash"]))
        self.refuses("PayloadRejected", swapped.open_bytes, h(vectors["reply_chunks"][1]["sealed"]))
        for weak in vectors["refused_keys"]:
            self.refuses("PayloadRejected", agree, h(weak), bound)
        for weak in vectors["refused_encapsulations"]:
            self.refuses(
                "PayloadRejected", mlkem.hybrid_decapsulate, h(vectors["node_secret"]), h(weak), x25519, x25519_public
            )
        turn = vectors["session_turn_0"]
        sealed = h(turn["sealed_payload"])
        self.assertEqual(payload_hash(sealed).hex(), turn["payload_hash"])
        opened = chacha_open(kdf("turn-payload", h(turn["turn_secret"])), bytes(12), sealed[EXCHANGE_BYTES:], "payload")
        self.assertEqual(encode(decode(Payload, unpad_block(opened, 1024))).hex(), turn["payload"])

    def test_hashes(self) -> None:
        vectors = load("hashes")
        for item in vectors["genesis"]:
            start = item["fields"]
            branch = start["branch"]
            parent = BranchPoint(h(branch["session_id"]), h(branch["link_hash"])) if branch else None
            found = signed.genesis_hash(h(start["session_key"]), start["n_shards"], parent)
            self.assertEqual(found.hex(), item["link_hash"])
        run = vectors["running_hash"]
        key = kdf("commitment", h(run["record_key"]))
        tokens = TokenHash(key, h(run["auth_hash"]), [])
        self.assertEqual(tokens.value.hex(), run["start"])
        for step in run["steps"]:
            tokens.push(step["token"])
            self.assertEqual(tokens.value.hex(), step["hash"])
        for item in vectors["resume_tokens"]:
            self.assertEqual(resume_hash(key, item["tokens"]).hex(), item["hash"])
        proof = vectors["fetch_proof"]
        self.assertEqual(kdf("blob-fetch", h(proof["blob_key"]), h(proof["digest"])).hex(), proof["proof"])
        given = vectors["commitments"]
        key = kdf("commitment", h(given["record_key"]))

        def messages(shown: list[dict[str, Any]]) -> list[Message]:
            return [Message(Role[m["role"].upper()], m["name"], m["call_id"], m["text"]) for m in shown]

        found = commit_input(key, messages(given["system"]), given["window_from"], messages(given["messages"]))
        self.assertEqual(found.hex(), given["input"])
        self.assertEqual(commit_output(key, given["answer"], Finish[given["finish"].upper()]).hex(), given["output"])

    def check_form(self, layout: Any, item: dict[str, Any]) -> Any:
        body = h(item["body"])
        value = decode_layout(layout, body)
        self.assertEqual(encode(value, layout), body, item["type"])
        self.refuses("NonCanonical", decode_layout, layout, body + b"\0")
        self.refuses("NonCanonical", decode_layout, layout, body[:-1])
        self.refuses("FrameTooLarge", decode_layout, layout, body, len(body) - 1)
        return value

    def test_objects(self) -> None:
        checked = 0
        for item in load("objects")["objects"]:
            kind = SIGNED.get(item["type"])
            if kind is not None:
                value = self.check_form(layout_of(kind.kind), item)
                encoded = h(item["encoded"])
                opened, envelope = kind.open_encoded(encoded)
                self.assertEqual(opened, value)
                self.assertEqual(getattr(value, kind.signer).hex(), item["signer"])
                if item["type"] in HASHES:
                    self.assertEqual(signed.signed_hash(HASHES[item["type"]], envelope).hex(), item["hash"])
                self.refuses(kind.code, kind.open_encoded, encoded[:-1] + bytes([encoded[-1] ^ 1]))
                other = encoded[:8] + bytes([encoded[8] + 1]) + encoded[9:]
                self.refuses("UnsupportedVersion", kind.open_encoded, other)
            elif item["type"] in STRUCTS:
                value = self.check_form(layout_of(STRUCTS[item["type"]]), item)
                self.check_sealed(item, value)
            else:
                self.assertIn(item["type"], UNUSED)
                continue
            checked += 1
        self.assertGreater(checked, 35)

    def check_sealed(self, item: dict[str, Any], value: Any) -> None:
        if item["type"] == "Record":
            key, identity = h(item["record_key"]), h(item["identity"])
            sealed = seal_record(key, identity, value)
            self.assertEqual(sealed.hex(), item["sealed"])
            self.assertEqual(record_hash(sealed).hex(), item["hash"])
            self.assertEqual(open_record(key, identity, sealed, struct.unpack("<Q", identity[40:48])[0]), value)
        elif item["type"] == "Grant" and item["hash"] is not None:
            self.assertEqual(kdf("grant-hash", encode(value)).hex(), item["hash"])
        elif item["type"] == "Sampling":
            self.assertEqual(sampling_digest(kdf("commitment", h(item["record_key"])), value).hex(), item["hash"])

    def test_minus_zero_is_no_setting(self) -> None:
        for name in ("temperature", "presence_penalty", "frequency_penalty"):
            with self.assertRaises(ProtocolError):
                objects.Sampling(**{name: -0.0})
        with self.assertRaises(ProtocolError):
            objects.Sampling(token_biases=[objects.TokenBias(1, -0.0)])

    def test_frames(self) -> None:
        layouts = {"ClientFrame": frames.CLIENT_FRAME, "NodeFrame": frames.NODE_FRAME, "ReplyEvent": frames.REPLY_EVENT}
        for item in load("frames")["frames"]:
            if item["name"] not in UNUSED_FRAMES:
                self.check_form(layouts[item["type"]], item)

    def test_head_record_opens_with_the_root_alone(self) -> None:
        keys = root_keys()
        item = next(item for item in load("objects")["objects"] if item["type"] == "HeadRecord")
        encoded, week = h(item["encoded"]), heads.period_of(item["fields"]["sequence"])
        self.assertEqual(keys.head_keys(week).index_key.hex(), item["hash"])
        head = heads.open_record(keys, encoded, week)
        self.assertGreaterEqual(head.outer.seq, 0)
        fields = item["fields"]
        lifetime = fields["expires_ms"] - fields["issued_ms"]
        made = heads.make(keys, head.sequence, fields["issued_ms"], lifetime, head.outer, head.inner)
        self.assertEqual(made, encoded)
        self.refuses("BadSignature", heads.open_record, SessionKeys(Secret(bytes(32))), encoded, week)
        self.refuses("BadSignature", heads.open_record, keys, encoded, week + 1)

    def test_blobs_are_rebuilt_byte_for_byte(self) -> None:
        keys = root_keys()
        for item in load("blobs")["blobs"]:
            blob = h(item["blob"])
            segment = open_blob(blob, keys, item["segment"])
            self.assertEqual(len(segment.entries), item["entries"])
            self.assertEqual(is_closed(segment.entries), item["closed"])
            last = signed.LINK.open(segment.entries[-1].link)
            own = keys.keys_of(last)
            self.assertEqual(make_blob(keys.session_id, item["segment"], segment.entries, own.blob_key, own.salt), blob)
            self.assertEqual(digest(blob).hex(), item["digest"])
            self.refuses("PayloadRejected", open_blob, blob, keys, item["segment"] + 1)


class Export(unittest.TestCase):
    """The exported session of 20 turns: read back as from a store, and exported again."""

    def setUp(self) -> None:
        self.export = load("export-20")
        self.keys = root_keys()
        self.blobs = {blob_id(s["blob_id"]): base64.b64decode(s["blob"]) for s in self.export["segments"]}
        self.genesis = signed.genesis_hash(self.keys.session_key, self.export["n_shards"], None)
        last = self.export["segments"][-1]
        blob = base64.b64decode(last["blob"])
        self.segment = last["segment"]
        self.reference = BlobRef(blob_id(last["blob_id"]), digest(blob), len(blob))
        self.head = (self.export["head"]["seq"], h(self.export["head"]["link_hash"]))

    async def fetch(self, reference: BlobRef) -> bytes:
        return self.blobs[reference.blob_id]

    def read(self, **changed: Any) -> Any:
        given = {"head": self.head, "segment": self.segment, "reference": self.reference, "genesis": self.genesis, **changed}
        return asyncio.run(
            read_chain(self.keys, given["genesis"], given["head"], given["segment"], given["reference"], self.fetch)
        )

    def refuses(self, code: str, **changed: Any) -> None:
        with self.assertRaises(ProtocolError) as caught:
            self.read(**changed)
        self.assertEqual(caught.exception.code, code)

    def test_chain_reads_back_to_the_genesis(self) -> None:
        chain = self.read()
        self.assertEqual([turn.link.seq for turn in chain], list(range(20)))
        for turn, item in zip(chain, self.export["turns"], strict=True):
            self.assertEqual(turn.blob.blob_id, blob_id(item["blob_id"]))

    def test_another_head_genesis_or_byte_is_refused(self) -> None:
        self.refuses("HeadMismatch", head=(self.head[0] - 1, self.head[1]))
        self.refuses("HeadMismatch", head=(self.head[0], bytes(32)))
        self.refuses("BadGenesis", genesis=bytes(32))
        self.refuses("PayloadRejected", segment=self.segment + 1)
        for name, blob in list(self.blobs.items()):
            self.blobs[name] = blob[:100] + bytes([blob[100] ^ 1]) + blob[101:]
            self.refuses("BlobHashMismatch")
            self.blobs[name] = blob

    def test_session_exports_the_same_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            journal = Journal(Path(folder) / "journal", self.keys.journal_key)
            journal.append(Opened(JOURNAL_VERSION, self.export["n_shards"], bytes(16), 0))
            session = Session(Path(folder), self.keys, journal, Network([]), None)
            chain = self.read()
            items = self.export["turns"]
            session.note(*(accepted(item, turn.entry, turn.blob) for item, turn in zip(items, chain, strict=True)))
            again = json.loads(session.export())
            self.assertEqual(again, self.export)
            report = asyncio.run(session.verify(store=False))
            self.assertEqual((report.turns, report.receipts, report.blobs_rebuilt), (20, 20, 20))
            journal.close()
            reopened = Journal(Path(folder) / "journal", self.keys.journal_key)
            self.assertEqual(Session(Path(folder), self.keys, reopened, Network([]), None).head, self.head)
            reopened.close()


class WalrusIds(unittest.TestCase):
    """The answers of Walrus's own encoder in walrus-client/vectors."""

    def test_ids_are_those_of_walrus(self) -> None:
        vectors = json.loads((FOLDER.parents[1] / "walrus-client/vectors/walrus.json").read_text(encoding="utf-8"))
        checked: set[int] = set()
        for item in vectors["vectors"]:
            if item["n_shards"] > 20 or "error" in item or not item["generator"].startswith("byte[i]"):
                continue
            blob = bytes((i * 31 + 7) % 251 for i in range(item["length"]))
            if walrus.can_compute(len(blob), item["n_shards"]):
                self.assertEqual(walrus.blob_id(blob, item["n_shards"]), blob_id(item["blob_id"]), item)
                checked.add(item["n_shards"])
        self.assertEqual(checked, {4, 7, 10, 13})
        anchor = vectors["independent_anchors"][0]
        self.assertEqual(walrus.blob_id(anchor["input_utf8"].encode(), 10), blob_id(anchor["blob_id"]))

    def test_work_without_bound_is_declined(self) -> None:
        for length, n_shards in ((5, 1000), (2**21, 10), (1, 3), (1, 5000)):
            with self.assertRaises(ProtocolError):
                walrus.blob_id(bytes(length), n_shards)


class Secrets(unittest.TestCase):
    def test_a_wiped_secret_is_gone_and_never_shown(self) -> None:
        secret = Secret(b"\x07" * 32)
        self.assertNotIn("7", repr(secret))
        with secret:
            self.assertEqual(secret.expose(), b"\x07" * 32)
        with self.assertRaises(ValueError):
            secret.expose()

    def test_a_verification_error_is_a_protocol_error_with_a_cause(self) -> None:
        error = VerificationError("ReceiptMismatch", "a cause")
        self.assertIsInstance(error, ProtocolError)
        self.assertEqual((error.code, error.cause), ("ReceiptMismatch", "a cause"))


if __name__ == "__main__":
    unittest.main()
