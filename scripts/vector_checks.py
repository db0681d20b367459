"""Checks of the known-answer vectors in proto/vectors: section 18 of docs/PROTOCOL.md. Run by verify_export.py --vectors."""

import hashlib
import importlib.util
import json
import struct
from pathlib import Path

from baton_format import (
    CryptoError, blake3, nacl,
    CLIENT_FRAME, EMBED_ANSWER, EMBED_FRAME, EMBED_TEXTS, ENCAPSULATION, GENESIS, GRANT, HEAD_INNER, HEAD_OUTER, ITEMS, KIND, MANIFEST, MAX_RECORD, MESSAGE,
    MIN_RECORD, NODE_FRAME, PAYLOAD, RECORD, REPLY_EVENT, SAMPLING, SIGNED, SIGNED_TYPES, STORAGE, Enum, Fixed,
    List, Option, Refused, Struct, blob_ad, blob_salt, chacha_open, commit_input, commit_memory,
    commit_output, commitment_key, decode, encode, encoded_length, genesis_hash, identity, is_closed, kdf,
    labelled, make_blob, need, open_blob, open_encoded, open_record, pad, pad_block, running_hash, seal, signed_hash, u64, unpad,
    unpad_block, unseal, verify_signature,
)


# --- Section 18: the vectors ---------------------------------------------------------------------------------------

PLAIN_TYPES = {
    "Record": RECORD, "Grant": GRANT, "Payload": PAYLOAD, "Sampling": SAMPLING, "ModelManifest": MANIFEST,
    "HeadOuter": HEAD_OUTER, "HeadInner": HEAD_INNER, "StoragePolicy": STORAGE,
    "MemoryItems": ITEMS, "RecordKind": KIND, "ClientFrame": CLIENT_FRAME, "NodeFrame": NODE_FRAME,
    "ReplyEvent": REPLY_EVENT, "EmbedTexts": EMBED_TEXTS, "EmbedFrame": EMBED_FRAME, "EmbedAnswer": EMBED_ANSWER,
}
BLOCKS = {"payload": 1024, "reply event": 128, "head outer": 1024, "head inner": 512}
HASHES = {"Right": "right-hash", "Link": "link-hash", "TurnAuth": "auth-hash", "Receipt": "receipt-hash",
          "EmbedAuth": "embed-auth-hash"}


def render(kind, value):
    """A value as the vectors show `fields`."""
    if isinstance(value, bytes):
        return value.hex() if len(value) >= 16 else list(value)
    if isinstance(kind, Option):
        return None if value is None else render(kind.inner, value)
    if isinstance(kind, List):
        return [render(kind.inner, item) for item in value]
    if isinstance(kind, Enum):
        if isinstance(value, str):
            return value
        name, carried = value
        return {name: render(dict(kind.variants)[name], carried)}
    if isinstance(kind, Struct):
        shown = {name: render(inner, value[name]) for name, inner in kind.fields}
        if kind is SIGNED:
            shown["signature"] = [value["signature"][:32].hex(), value["signature"][32:].hex()]
        return shown
    return value


def same(found, expected, what):
    if isinstance(found, bytes) and isinstance(expected, str):
        found = found.hex()
    need(found == expected, "Mismatch", what)


def refuses(code, what, action):
    try:
        action()
    except Refused as refused:
        need(refused.code == code, "Mismatch", "%s: refused as %s, not %s" % (what, refused.code, code))
        return
    raise Refused("Mismatch", "%s was not refused" % what)


def unhex(text):
    return bytes.fromhex(text)


def check_kdf(v):
    for item in v["contexts"]:
        same("baton 2026-11-21 %s v1" % item["name"].lower().replace("_", "-"), item["context"], item["name"])
        found = blake3(unhex(item["input"]), derive_key_context=item["context"]).digest()
        same(found, item["output"], item["name"])
    public, secret = nacl.crypto_sign_seed_keypair(unhex(v["seed"]))
    same(public, v["public_key"], "public key")
    for item in v["labels"]:
        label = item["label"][len("baton/v1/"):]
        signed = nacl.crypto_sign(labelled(label, unhex(item["message"])), secret)
        same(signed[:64], item["signature"], item["name"])
        verify_signature(label, public, unhex(item["message"]), signed[:64], "Mismatch", item["name"])
    same(hashlib.blake2b(b"\x00" + public, digest_size=32).digest(), v["sui_address"], "owner's address")
    return len(v["contexts"]) + len(v["labels"]) + 2


def check_keys(v):
    root, who = unhex(v["root"]), v["identity"]
    head = kdf("head-period", root, u64(v["head_period"]))
    same(head, v["head_secret"], "head secret")
    for name, seed in (("session", kdf("session-sign", root)), ("head", kdf("head-sign", head))):
        same(seed, v[name + "_seed"], name + " seed")
        same(nacl.crypto_sign_seed_keypair(seed)[0], v[name + "_key"], name + " key")
    session_id = kdf("session-id", unhex(v["session_key"]))
    same(session_id, v["session_id"], "session id")
    same(kdf("head-index", unhex(v["head_key"])), v["head_index_key"], "head index key")
    same(kdf("head-locate", head), v["head_locate_key"], "head locate key")
    seed = kdf("head-sign", kdf("head-period", root, u64(v["head_period"] + 1)))
    same(kdf("head-index", nacl.crypto_sign_seed_keypair(seed)[0]), v["next_head_index_key"], "next head index key")
    same(kdf("head-inner", root), v["head_inner_key"], "head inner key")
    same(kdf("client-journal", root), v["journal_key"], "journal key")
    same(kdf("segment", root, u64(0)), v["segment_0"], "segment 0")
    secret = kdf("segment", root, u64(who["segment"]))
    same(secret, v["segment_2"], "segment 2")
    link = dict(who, **{name: unhex(who[name]) for name in ("session_id", "turn_id", "author")})
    same(identity(link), who["bytes"], "identity")
    record_key = kdf("record", secret, identity(link))
    same(record_key, v["record_key"], "record key")
    same(blob_salt(record_key), v["blob_salt"], "blob salt")
    same(kdf("blob", secret, blob_salt(record_key)), v["blob_key"], "blob key")
    same(kdf("memory-fence", record_key)[:8], v["memory_fence"], "memory fence")
    same(commitment_key(record_key), v["commitment_key"], "commitment key")
    return 19


def check_sealing(v):
    for item in v["siv"]:
        key, ad, text = (unhex(item[name]) for name in ("key", "associated", "text"))
        same(kdf("siv-mac", key), item["mac_key"], "mac key")
        same(kdf("siv-encrypt", key), item["encrypt_key"], "encrypt key")
        sealed = seal(key, ad, text)
        same(sealed, item["sealed"], "SIV of %d bytes" % len(text))
        same(unseal(key, ad, sealed, "vector"), item["text"], "SIV opened")
        changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
        refuses("PayloadRejected", "a changed seal", lambda: unseal(key, ad, changed, "vector"))
    item = v["blob"]
    ad = blob_ad(unhex(item["salt"]), unhex(item["session_id"]), item["segment"])
    same(seal(unhex(item["key"]), ad, unhex(item["text"])), item["sealed"], "blob seal")
    for item in v["padding"]:
        padded = pad(b"\x62" * item["length"], item["smallest"], MAX_RECORD, "FrameTooLarge")
        same(padded, item["padded"], "padding")
        same(unpad(padded, item["smallest"]), (b"\x62" * item["length"]).hex(), "unpadded")
        refuses("NonCanonical", "longer padding", lambda: unpad(padded + bytes(len(padded)), item["smallest"]))
    return len(v["siv"]) + 1 + len(v["padding"])


def load_mlkem():
    """ML-KEM-768 and X-Wing of the Python client: that module needs nothing but Python itself."""
    path = Path(__file__).resolve().parent.parent / "client/python/src/baton_client/mlkem.py"
    spec = importlib.util.spec_from_file_location("mlkem", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def x25519(secret, public):
    try:
        share = nacl.crypto_scalarmult(secret, public)
    except (CryptoError, RuntimeError):
        raise Refused("PayloadRejected", "a weak exchange key") from None
    need(share != bytes(32), "PayloadRejected", "a weak exchange key")
    return share


def initiate(name, key, randomness, binding):
    """The sender's side of section 4's exchange: the encapsulation and the secret."""
    mlkem = load_mlkem()
    try:
        message, share = mlkem.hybrid_encapsulate(key, randomness, x25519, nacl.crypto_scalarmult_base)
    except mlkem.MalformedKeyError as error:
        raise Refused("PayloadRejected", str(error)) from None
    return message, kdf(name, share, message, kdf("exchange-key-id", key), binding)


def respond(name, seed, key, message, binding):
    """The node's side."""
    share = load_mlkem().hybrid_decapsulate(seed, message, x25519, nacl.crypto_scalarmult_base)
    return kdf(name, share, message, kdf("exchange-key-id", key), binding)


def both_sides(name, node, randomness, message, binding, expected):
    """Checks key, encapsulation and secret from both sides; `node` is seed and key. Returns the secret."""
    seed, key = node
    same(load_mlkem().hybrid_public(seed, nacl.crypto_scalarmult_base), key.hex(), "node key")
    made, secret = initiate(name, key, randomness, binding)
    same(made, message.hex(), "encapsulation, " + name)
    same(secret, expected, "secret of the sender, " + name)
    same(respond(name, seed, key, message, binding), expected, "secret of the node, " + name)
    return secret


def check_exchange(v):
    get = {name: unhex(text) for name, text in v.items() if isinstance(text, str)}
    node, binding = (get["node_secret"], get["node_key"]), get["binding"]
    same(kdf("exchange-key-id", get["node_key"]), v["node_key_id"], "id of the node key")
    secret = both_sides("turn-exchange", node, get["ephemeral_secret"], get["encapsulation"], binding, v["turn_secret"])
    key = kdf("turn-payload", secret)
    same(key, v["payload_key"], "payload key")
    same(chacha_open(key, bytes(12), get["sealed_payload"], "payload"), v["payload"], "payload")
    reply = kdf("turn-reply", secret, get["reply_nonce"], get["auth_hash"])
    same(reply, v["reply_key"], "reply key")
    for counter, chunk in enumerate(v["reply_chunks"]):
        nonce = bytes(3) + struct.pack(">Q", counter) + bytes([chunk["last"]])
        same(chacha_open(reply, nonce, unhex(chunk["sealed"]), "chunk"), chunk["text"], "chunk %d" % counter)
        wrong = nonce[:-1] + bytes([not chunk["last"]])
        refuses("PayloadRejected", "a chunk's final flag",
                lambda: chacha_open(reply, wrong, unhex(chunk["sealed"]), "chunk"))
    memory = both_sides("memory-exchange", node, get["memory_ephemeral_secret"], get["memory_encapsulation"],
                        get["memory_binding"], v["memory_secret"])
    same(chacha_open(memory, bytes(12), get["sealed_memory"], "memory"), v["memory"], "memory")
    for weak in v["refused_keys"]:
        refuses("PayloadRejected", "an unusable key",
                lambda: initiate("turn-exchange", unhex(weak), get["ephemeral_secret"], binding))
    for weak in v["refused_encapsulations"]:
        refuses("PayloadRejected", "a weak encapsulation",
                lambda: respond("turn-exchange", *node, unhex(weak), binding))
    turn = {name: unhex(text) for name, text in v["session_turn_0"].items()}
    same(kdf("payload-hash", turn["sealed_payload"]), v["session_turn_0"]["payload_hash"], "payload hash")
    sealed = turn["sealed_payload"][ENCAPSULATION:]
    opened = chacha_open(kdf("turn-payload", turn["turn_secret"]), bytes(12), sealed, "payload")
    same(unpad_block(opened, BLOCKS["payload"]), v["session_turn_0"]["payload"], "payload of turn 0")
    for item in v["padded"]:
        body, block = unhex(item["body"]), item["block"]
        need(block == BLOCKS[item["what"]], "Mismatch", "block of a %s" % item["what"])
        same(pad_block(body, block), item["padded"], "padded " + item["what"])
        same(unpad_block(unhex(item["padded"]), block), item["body"], "unpadded " + item["what"])
        refuses("NonCanonical", "a block more", lambda: unpad_block(unhex(item["padded"]) + bytes(block), block))
    decode(PAYLOAD, unpad_block(opened, BLOCKS["payload"]))
    return 13 + len(v["padded"]) + len(v["reply_chunks"]) + len(v["refused_keys"]) + len(v["refused_encapsulations"])


def from_fields(kind, shown):
    """The value behind `fields`, for hashing."""
    if isinstance(kind, Fixed) or kind == "bytes":
        return unhex(shown) if isinstance(shown, str) else bytes(shown)
    if isinstance(kind, Option):
        return None if shown is None else from_fields(kind.inner, shown)
    if isinstance(kind, List):
        return [from_fields(kind.inner, item) for item in shown]
    if isinstance(kind, Struct):
        return {name: from_fields(inner, shown[name]) for name, inner in kind.fields}
    return shown


def check_hashes(v):
    for item in v["genesis"]:
        start = from_fields(GENESIS, item["fields"])
        found = genesis_hash(start["session_key"], start["n_shards"], start["branch"])
        same(found, item["link_hash"], "genesis")
    run = v["running_hash"]
    tokens = [step["token"] for step in run["steps"]]
    for count, shown in enumerate([run["start"]] + [step["hash"] for step in run["steps"]]):
        found = running_hash(unhex(run["record_key"]), unhex(run["auth_hash"]), tokens[:count])
        same(found, shown, "running hash")
    for item in v["resume_tokens"]:
        tokens = b"".join(struct.pack("<I", token) for token in item["tokens"])
        key = commitment_key(unhex(run["record_key"]))
        same(kdf("resume-tokens", key, tokens), item["hash"], "resume tokens")
    f, schema = v["fetch_proof"], v["json_schema"]
    same(kdf("blob-fetch", unhex(f["blob_key"]), unhex(f["digest"])), f["proof"], "fetch proof")
    same(kdf("json-schema", schema["text"].encode()), schema["hash"], "JSON schema")
    c = v["commitments"]
    key = unhex(c["record_key"])
    found = commit_input(key, from_fields(List(MESSAGE), c["system"]), c["window_from"],
                         from_fields(List(MESSAGE), c["messages"]))
    same(found, c["input"], "input commitment")
    same(commit_output(key, c["answer"], c["finish"]), c["output"], "output commitment")
    same(commit_memory(key, from_fields(ITEMS, c["items"])), c["memory"], "memory commitment")
    same(commit_memory(key, []), c["no_memory"], "no memory")
    return (len(v["genesis"]) + len(run["steps"]) + len(v["resume_tokens"]) + 7)


def check_form(kind, item):
    """Decodes to the fields shown, encodes back, and refuses near misses."""
    body, what = unhex(item["body"]), item["type"]
    value = decode(kind, body)
    same(render(kind, value), item["fields"], "fields of " + what)
    same(encode(kind, value), item["body"], "encoding of " + what)
    refuses("NonCanonical", what + " with a byte more", lambda: decode(kind, body + b"\x00"))
    refuses("NonCanonical", what + " with a byte less", lambda: decode(kind, body[:-1]))
    refuses("FrameTooLarge", what + " over its limit", lambda: decode(kind, body, len(body) - 1))
    return value


def check_signed_object(item):
    layout, label, signer, code, _, _ = SIGNED_TYPES[item["type"]]
    value = check_form(layout, item)
    encoded = unhex(item["encoded"])
    same("baton/v1/" + label, item["label"], "label")
    same(value[signer], item["signer"], "signer of " + item["type"])
    _, signed = open_encoded(item["type"], encoded)
    same(signed["body"], item["body"], "body")
    if item["type"] in HASHES:
        same(signed_hash(HASHES[item["type"]], signed), item["hash"], "hash of " + item["type"])
    if item["type"] == "HeadRecord":
        same(kdf("head-index", value["head_key"]), item["hash"], "index key")
    forged = encoded[:-1] + bytes([encoded[-1] ^ 1])
    refuses(code, "a forged " + item["type"], lambda: open_encoded(item["type"], forged))
    other = encoded[:8] + bytes([encoded[8] + 1]) + encoded[9:]
    refuses("UnsupportedVersion", item["type"] + " of another version", lambda: open_encoded(item["type"], other))


def check_objects(v):
    for item in v["objects"]:
        if item["type"] in SIGNED_TYPES:
            check_signed_object(item)
            continue
        check_form(PLAIN_TYPES[item["type"]], item)
        body = unhex(item["body"])
        if item["type"] == "Record":
            key, ad = unhex(item["record_key"]), unhex(item["identity"])
            sealed = seal(key, ad, pad(body, MIN_RECORD, MAX_RECORD, "FrameTooLarge"))
            same(sealed, item["sealed"], "sealed record")
            same(kdf("record-hash", sealed), item["hash"], "record hash")
            open_record(key, ad, sealed, struct.unpack("<Q", ad[40:48])[0])
        elif item["hash"] is not None:
            name = {"Grant": "grant-hash", "Sampling": "sampling-digest", "ModelManifest": "model-manifest"}
            key = [commitment_key(unhex(item["record_key"]))] if item["type"] == "Sampling" else []
            same(kdf(name[item["type"]], *key, body), item["hash"], "hash of " + item["type"])
    return len(v["objects"])


def check_frames(v):
    same(v["protocol"], "/baton/turn/2", "protocol")
    for item in v["frames"]:
        check_form(PLAIN_TYPES[item["type"]], item)
        body = unhex(item["body"])
        same(struct.pack("<I", len(body)) + body, item["framed"], "frame " + item["name"])
    return len(v["frames"])


def check_blobs(v):
    root = unhex(v["root"])
    for item in v["blobs"]:
        blob, session_id, number = unhex(item["blob"]), unhex(item["session_id"]), item["segment"]
        salt = blob_salt(unhex(item["record_key"]))
        same(salt, item["blob_salt"], "salt")
        same(kdf("blob", kdf("segment", root, u64(number)), salt), item["blob_key"], "blob key")
        same(blake3(blob).digest(), item["digest"], "digest")
        segment = open_blob(blob, unhex(item["blob_key"]), session_id, number)
        entries = segment["entries"]
        shown = {"length": len(blob), "entries": len(entries), "encoded_length": encoded_length(entries),
                 "closed": is_closed(entries)}
        for name, found in shown.items():
            same(found, item[name], "%s after %d turns" % (name, item["turns"]))
        same(signed_hash("link-hash", entries[-1]["link"]), item["link_hash"], "link hash")
        rebuilt = make_blob(session_id, number, entries, unhex(item["blob_key"]), salt)
        same(rebuilt, item["blob"], "blob after %d turns" % item["turns"])
    return len(v["blobs"])


def check_embed(v):
    get = {name: unhex(text) for name, text in v.items() if isinstance(text, str) and name != "protocol"}
    same(v["protocol"], "/baton/embed/1", "protocol")
    signed = {item["type"]: item for item in v["objects"]}
    for item in v["objects"]:
        if item["type"] in SIGNED_TYPES:
            check_signed_object(item)
        else:
            check_form(PLAIN_TYPES[item["type"]], item)
    for item in v["frames"]:
        check_form(PLAIN_TYPES[item["type"]], item)
        same(struct.pack("<I", len(unhex(item["body"]))) + unhex(item["body"]), item["framed"], "frame " + item["name"])
    auth, _ = open_encoded("EmbedAuth", unhex(signed["EmbedAuth"]["encoded"]))
    binding = bytes([auth["suite"]]) + b"".join(auth[name] for name in ("client_key", "request", "model", "audience"))
    same(binding, v["binding"], "binding")
    same(kdf("exchange-key-id", get["node_key"]), auth["audience_key"].hex(), "id of the node key")
    message, sealed_texts = get["sealed_texts"][:ENCAPSULATION], get["sealed_texts"][ENCAPSULATION:]
    node = (get["node_secret"], get["node_key"])
    secret = both_sides("embed-exchange", node, get["ephemeral_secret"], message, binding, v["embed_secret"])
    same(kdf("embed-texts", secret), v["texts_key"], "key of the texts")
    same(kdf("embed-texts-hash", get["sealed_texts"]), auth["texts_hash"], "hash of the sealed texts")
    texts = chacha_open(get["texts_key"], bytes(12), sealed_texts, "texts")
    same(unpad_block(texts, 1024), v["texts"], "texts")
    auth_hash = unhex(signed["EmbedAuth"]["hash"])
    same(kdf("embed-reply-key", secret, get["reply_nonce"], auth_hash), v["reply_key"], "key of the reply")
    reply = unpad_block(chacha_open(get["reply_key"], bytes(12), get["sealed_reply"], "reply"), 1024)
    same(reply, v["reply"], "reply")
    value, _ = open_encoded("EmbedReply", reply)
    same(value["auth_hash"], auth_hash, "order of the reply")
    return len(v["objects"]) + len(v["frames"]) + 10


VECTOR_FILES = {
    "kdf.json": check_kdf, "keys.json": check_keys, "sealing.json": check_sealing, "exchange.json": check_exchange,
    "hashes.json": check_hashes, "objects.json": check_objects, "frames.json": check_frames, "blobs.json": check_blobs,
    "embed.json": check_embed,
}


def verify_vectors(folder, verifier):
    """Checks every file in the folder, by the functions of verify_export.py where they know more. Returns how many vectors each has; raises Refused."""
    report = {}
    for name, check in VECTOR_FILES.items():
        try:
            value = json.loads((folder / name).read_text(encoding="utf-8"))
            report[name] = check(value)
        except Refused as refused:
            raise Refused(refused.code, "%s: %s" % (name, refused.detail)) from None
        except (KeyError, ValueError, TypeError) as error:
            raise Refused("Malformed", "%s: %r" % (name, error)) from None
    report["export-20.json"] = verifier.verify_export((folder / "export-20.json").read_bytes())["turns"]
    proof = verifier.verify_evidence((folder / "contradiction.json").read_bytes())
    report["contradiction.json"] = 1 + len(proof["nodes"])
    return report
