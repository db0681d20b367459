"""Encoding, seals, signatures and objects of the session chain: sections 3 to 7 of docs/PROTOCOL.md.

Used by verify_export.py and vector_checks.py. Written from that page alone; it shares no code with the Rust
implementation, so that one of them would have to make the other's mistakes.

Ed25519 is libsodium's verification: it refuses non-canonical S, non-canonical or small-order keys and small-order R, and
uses no cofactor.
"""

import math
import struct
import sys

try:
    from blake3 import blake3
    from nacl import bindings as nacl
    from nacl.exceptions import CryptoError
except ImportError as missing:
    sys.stderr.write("error: %s; run pip install -r scripts/requirements.txt\n" % missing)
    sys.exit(2)

# Section 15.
MAX_OBJECT = 8 * 1024 * 1024
MAX_MESSAGE, MAX_MESSAGES, MAX_NAME = 512 * 1024, 4096, 128
MIN_RECORD, MAX_RECORD = 256, 1024 * 1024
SEGMENT_TURNS, SEGMENT_BYTES = 16, 256 * 1024
MIN_SEGMENT, MAX_SEGMENT = 1024, 2 * 1024 * 1024
MAX_BLOB = MAX_SEGMENT + 16 + 48
MAX_SIGNED, MAX_HEAD, MAX_MEMORY = 16 * 1024, 4096, 64 * 1024
MAX_HINT, MAX_PLACE = 2048, 256
MAX_EMBED_TEXTS, MAX_EMBED_DIMENSIONS, MAX_EMBED_REPLY = 64, 4096, 1050368
MAX_RECORD_LIST, MAX_RECORD_KEYS = 16, 4
MAX_OUTPUT_TOKENS = 32 * 1024
MAX_CHECKS = 4
# Section 4: the cipher suite, and the sizes of an exchange.
SUITE, EXCHANGE_KEY, ENCAPSULATION = 2, 1216, 1120
MAX_HEAD_LIFETIME_MS = 400 * 24 * 3600 * 1000
MAX_KEY_LIFETIME_MS = 24 * 3600 * 1000
MAX_CLOCK_SKEW_MS, MAX_TURN_MS = 30_000, 24 * 3600 * 1000


class Refused(Exception):
    """What was checked does not hold. `code` is a name of section 14, or Malformed for JSON that is no export."""

    def __init__(self, code, detail):
        super().__init__("%s: %s" % (code, detail))
        self.code, self.detail = code, detail


def need(condition, code, detail):
    if not condition:
        raise Refused(code, detail)


# --- Section 3: encoding -------------------------------------------------------------------------------------------

class Fixed:
    def __init__(self, size):
        self.size = size


class Option:
    def __init__(self, inner):
        self.inner = inner


class List:
    def __init__(self, inner):
        self.inner = inner


class Enum:
    """Variants in order: a name alone, or a name and the type that it carries."""

    def __init__(self, *variants):
        self.variants = [(v, None) if isinstance(v, str) else v for v in variants]


class Struct:
    def __init__(self, *fields):
        self.fields = fields


INTEGERS = {"u8": (1, "<B"), "u16": (2, "<H"), "u32": (4, "<I"), "u64": (8, "<Q"), "i32": (4, "<i")}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        need(count <= len(self.data) - self.at, "NonCanonical", "bytes are missing")
        piece = self.data[self.at:self.at + count]
        self.at += count
        return piece

    def value(self, kind):
        if isinstance(kind, str):
            if kind in INTEGERS:
                size, form = INTEGERS[kind]
                return struct.unpack(form, self.take(size))[0]
            if kind == "f32":
                return struct.unpack("<f", self.take(4))[0]
            if kind == "bool":
                return self.tag("bool") == 1
            if kind == "bytes":
                return self.take(self.value("u64"))
            if kind == "string":
                try:
                    return self.take(self.value("u64")).decode("utf-8")
                except UnicodeDecodeError:
                    raise Refused("NonCanonical", "text is not UTF-8") from None
        if isinstance(kind, Fixed):
            return self.take(kind.size)
        if isinstance(kind, Option):
            return self.value(kind.inner) if self.tag("option") else None
        if isinstance(kind, List):
            # A lying count ends at the first missing element; nothing is allocated for it.
            return [self.value(kind.inner) for _ in iter_count(self.value("u64"))]
        if isinstance(kind, Enum):
            index = self.value("u32")
            need(index < len(kind.variants), "NonCanonical", "unknown variant")
            name, inner = kind.variants[index]
            return name if inner is None else (name, self.value(inner))
        return {name: self.value(inner) for name, inner in kind.fields}

    def tag(self, what):
        byte = self.take(1)[0]
        need(byte < 2, "NonCanonical", "%s is neither 0 nor 1" % what)
        return byte


def iter_count(count):
    done = 0
    while done < count:
        yield done
        done += 1


def decode(kind, data, limit=MAX_OBJECT):
    need(len(data) <= limit, "FrameTooLarge", "%d bytes, at most %d" % (len(data), limit))
    reader = Reader(data)
    value = reader.value(kind)
    need(reader.at == len(data), "NonCanonical", "trailing bytes")
    return value


def u64(number):
    return struct.pack("<Q", number)


def encode(kind, value):
    if isinstance(kind, str):
        if kind in INTEGERS:
            return struct.pack(INTEGERS[kind][1], value)
        if kind == "f32":
            return struct.pack("<f", value)
        if kind == "bool":
            return b"\x01" if value else b"\x00"
        if kind == "string":
            value = value.encode("utf-8")
        return u64(len(value)) + value
    if isinstance(kind, Fixed):
        return value
    if isinstance(kind, Option):
        return b"\x00" if value is None else b"\x01" + encode(kind.inner, value)
    if isinstance(kind, List):
        return u64(len(value)) + b"".join(encode(kind.inner, item) for item in value)
    if isinstance(kind, Enum):
        name, carried = value if isinstance(value, tuple) else (value, None)
        index = [known for known, _ in kind.variants].index(name)
        inner = kind.variants[index][1]
        return struct.pack("<I", index) + (b"" if inner is None else encode(inner, carried))
    return b"".join(encode(inner, value[name]) for name, inner in kind.fields)


def bucket(length, smallest):
    size = smallest
    while size < length + 4:
        size *= 2
    return size


def pad(data, smallest, largest, code):
    size = bucket(len(data), smallest)
    need(size <= largest, code, "padded form of %d bytes exceeds %d" % (size, largest))
    return struct.pack("<I", len(data)) + data + bytes(size - len(data) - 4)


def unpad(padded, smallest):
    need(len(padded) >= 4, "NonCanonical", "padding without a length")
    length = struct.unpack("<I", padded[:4])[0]
    need(length + 4 <= len(padded), "NonCanonical", "padding shorter than its length")
    right = len(padded) == bucket(length, smallest) and not any(padded[4 + length:])
    need(right, "NonCanonical", "padding in another form")
    return padded[4:4 + length]


def pad_block(data, block):
    return struct.pack("<I", len(data)) + data + bytes(-(len(data) + 4) % block)


def unpad_block(padded, block):
    need(len(padded) >= 4, "NonCanonical", "padding without a length")
    length = struct.unpack("<I", padded[:4])[0]
    need(padded == pad_block(padded[4:4 + length], block), "NonCanonical", "padding in another form")
    return padded[4:4 + length]


# --- Section 4: cryptography ---------------------------------------------------------------------------------------

def kdf(name, *parts):
    return blake3(b"".join(parts), derive_key_context="baton 2026-11-21 %s v1" % name).digest()


def keyed(key, data):
    return blake3(data, key=key).digest()


def siv(key, ad, text):
    return keyed(kdf("siv-mac", key), u64(len(ad)) + ad + text)


def seal(key, ad, text):
    head = siv(key, ad, text)
    sealed = nacl.crypto_aead_xchacha20poly1305_ietf_encrypt(text, head + ad, head[:24], kdf("siv-encrypt", key))
    return head + sealed


def unseal(key, ad, sealed, what):
    need(len(sealed) >= 48, "PayloadRejected", "%s is too short to be sealed" % what)
    head, body = sealed[:32], sealed[32:]
    try:
        text = nacl.crypto_aead_xchacha20poly1305_ietf_decrypt(body, head + ad, head[:24], kdf("siv-encrypt", key))
    except CryptoError:
        raise Refused("PayloadRejected", "%s does not open" % what) from None
    need(siv(key, ad, text) == head, "PayloadRejected", "%s does not commit to its key" % what)
    return text


def chacha_open(key, nonce, sealed, what):
    try:
        return nacl.crypto_aead_chacha20poly1305_ietf_decrypt(sealed, b"", nonce, key)
    except CryptoError:
        raise Refused("PayloadRejected", "%s does not open" % what) from None


def labelled(label, body):
    name = ("baton/v1/" + label).encode()
    return bytes([len(name)]) + name + body


def verify_signature(label, key, body, signature, code, what):
    try:
        nacl.crypto_sign_open(signature + labelled(label, body), key)
    except (CryptoError, ValueError):
        raise Refused(code, "signature of %s" % what) from None


# --- Section 6: objects --------------------------------------------------------------------------------------------

ID, ID16 = Fixed(32), Fixed(16)
SIGNED = Struct(("body", "bytes"), ("signature", Fixed(64)))
BLOB_REF = Struct(("blob_id", ID), ("digest", ID), ("length", "u32"))
BRANCH = Struct(("session_id", ID), ("link_hash", ID))
GENESIS = Struct(("session_key", ID), ("n_shards", "u16"), ("branch", Option(BRANCH)))
LINK = Struct(
    ("version", "u8"), ("session_id", ID), ("seq", "u64"), ("segment", "u64"), ("index", "u8"), ("turn_id", ID16),
    ("attempt", "u32"), ("prev_link", ID), ("prev_blob", Option(BLOB_REF)), ("record_hash", ID),
    ("record_length", "u32"), ("auth_hash", ID), ("receipt_hash", ID), ("author", ID), ("time_ms", "u64"))
ROLE = Enum("System", "User", "Assistant", "Tool")
KIND = Enum("Turn", "Edit", "Summary", "Tombstone")
FINISH = Enum("Stop", "StopString", "Length", "ToolCall", "None")
MESSAGE = Struct(("role", ROLE), ("name", Option("string")), ("call_id", Option("string")), ("text", "string"))
RECORD = Struct(
    ("version", "u8"), ("kind", KIND), ("supersedes_from", Option("u64")), ("messages", List(MESSAGE)),
    ("finish", FINISH))
RESUME = Struct(("author", ID), ("attempt", "u32"), ("token_count", "u32"), ("tokens_hash", ID))
CHECK_ORDER = Struct(("receipt", ID), ("probe", "u32"))
TURN_AUTH = Struct(
    ("version", "u8"), ("suite", "u8"), ("session_id", ID), ("session_key", ID), ("device_id", ID16),
    ("seq", "u64"), ("turn_id", ID16), ("attempt", "u32"), ("prev_link", ID), ("prev_blob", Option(BLOB_REF)),
    ("n_shards", "u16"), ("branch", Option(BRANCH)), ("audience", ID), ("audience_key", ID), ("payload_hash", ID),
    ("model", ID), ("sampling", ID), ("max_output_tokens", "u32"), ("max_price", "u64"), ("memory_from", Option(ID)),
    ("memory_tokens", "u32"), ("grant_hash", ID), ("resume", Option(RESUME)), ("checks", List(CHECK_ORDER)), ("issued_ms", "u64"),
    ("expires_ms", "u64"))
READ_BLOB = Struct(("segment", "u64"), ("blob", Option(BLOB_REF)), ("author", Option(ID)), ("key", ID))
READ_RECORD = Struct(("seq", "u64"), ("key", ID))
GRANT = Struct(
    ("segment", "u64"), ("index", "u8"), ("record_key", ID), ("blob_key", ID), ("blobs", List(READ_BLOB)),
    ("records", List(READ_RECORD)), ("head", Option(Struct(("index_key", ID), ("key", ID)))))
SAMPLING = Struct(
    ("temperature", "f32"), ("top_p", "f32"), ("top_k", "u32"), ("min_p", "f32"),
    ("repetition_penalty", "f32"), ("seed", "u64"), ("stop", List("string")), ("json_schema", Option(ID)), ("logprobs", "u8"), ("presence_penalty", "f32"),
    ("frequency_penalty", "f32"), ("token_biases", List(Struct(("token", "u32"), ("bias", "f32")))))
# Their numbers, stop strings with their lengths, and biases.
MAX_SAMPLING = 128 + 16 * (256 + 8) + 300 * 9
STORAGE = Struct(("open_epochs", "u32"), ("closed_epochs", "u32"), ("send_object_to", Option(ID)))
CHECK_INPUT = Struct(
    ("receipt", SIGNED), ("sampling", SAMPLING), ("json_schema", Option("string")), ("tokens", List("u32")))
PAYLOAD = Struct(
    ("version", "u8"), ("grant", GRANT), ("kind", KIND), ("supersedes_from", Option("u64")), ("system", List(MESSAGE)),
    ("messages", List(MESSAGE)), ("sampling", SAMPLING), ("json_schema", Option("string")), ("storage", STORAGE),
    ("resume_tokens", List("u32")), ("checks", List(CHECK_INPUT)))
ENGINE = Enum("Native", "Proxied", "Echo", "Embedding", "Library")
CHECK_GAP = Enum("Window", "Memory", "Model", "Refused")
ANSWER_CHECK = Struct(("order", CHECK_ORDER), ("verdict", Enum(
    ("Same", Struct(("logits", ID))), ("Different", Struct(("token", "u32"), ("logits", ID))),
    ("NotComparable", CHECK_GAP))))
RECEIPT = Struct(
    ("version", "u8"), ("session_id", ID), ("seq", "u64"), ("turn_id", ID16), ("attempt", "u32"), ("auth_hash", ID),
    ("node", ID), ("model", ID), ("engine", ENGINE), ("sampling", ID), ("seed", "u64"), ("window_from", "u64"),
    ("tokens", Struct(("input", "u32"), ("output", "u32"), ("memory", "u32"), ("resumed", "u32"))),
    ("memory_items", "u16"),
    ("commitments", Struct(("input", ID), ("output", ID), ("memory", Option(ID)))),
    ("running_hash", ID), ("checks", List(ANSWER_CHECK)),
    ("timings", Struct(("queue_ms", "u32"), ("prefill_ms", "u32"), ("first_token_ms", "u32"), ("decode_ms", "u32"))),
    ("price", "u64"), ("time_ms", "u64"))
PROGRESS = Struct(
    ("version", "u8"), ("node", ID), ("auth_hash", ID), ("token_count", "u32"), ("running_hash", ID),
    ("time_ms", "u64"))
ACKNOWLEDGEMENT = Struct(("link_hash", ID), ("blob_digest", ID), ("receipt_hash", ID))
TURN_NOTE = Struct(
    ("version", "u8"), ("session_id", ID), ("session_key", ID), ("seq", "u64"), ("turn_id", ID16), ("attempt", "u32"),
    ("node", ID), ("time_ms", "u64"), ("kind", Enum(("Ack", ACKNOWLEDGEMENT), "Abort", "Status")))
EXPORT_STATEMENT = Struct(
    ("version", "u8"), ("session_id", ID), ("session_key", ID), ("seq", "u64"), ("link_hash", ID))
HEAD = Struct(
    ("version", "u8"), ("head_key", ID), ("sequence", "u64"), ("issued_ms", "u64"), ("expires_ms", "u64"),
    ("outer", "bytes"), ("inner", "bytes"))
SEGMENT_REF = Struct(("segment", "u64"), ("blob", BLOB_REF))
HEAD_OUTER = Struct(
    ("n_shards", "u16"), ("branch", Option(BRANCH)), ("seq", "u64"), ("link_hash", ID),
    ("blobs", List(SEGMENT_REF)))
BRANCH_HEAD = Struct(
    ("seq", "u64"), ("link_hash", ID), ("turn_id", ID16), ("attempt", "u32"), ("author", ID),
    ("end", SEGMENT_REF))
HEAD_INNER = Struct(
    ("turn_id", ID16), ("attempt", "u32"), ("author", ID),
    ("devices", List(Struct(("device", ID16), ("expires_ms", "u64")))), ("branches", List(BRANCH_HEAD)),
    ("tombstone", "bool"))
ENVELOPE = Struct(
    ("version", "u8"), ("auth_hash", ID), ("relayer", ID), ("node", ID), ("encapsulation", Fixed(ENCAPSULATION)),
    ("sealed", "bytes"), ("budget_tokens", "u32"), ("issued_ms", "u64"), ("expires_ms", "u64"))
RECALL_SCOPE = Enum(
    "Full", "NeutralAndRelationship", "RelationshipOnly", "NeutralOnly", "InsightsOnly", "None")
HINT = Struct(
    ("version", "u8"), ("auth_hash", ID), ("owner", ID), ("key", ID), ("hint", "string"), ("session", Option("string")),
    ("project", Option("string")), ("persona", Option("string")), ("scope", RECALL_SCOPE))
RIGHT_SCOPE = Enum(
    ("Turns", Struct(("models", List(ID)), ("turns_per_hour", "u32"), ("tokens_per_hour", "u64"), ("concurrent", "u16"))),
    ("Memory", Struct(("permissions", "u8"), ("project", Option("string")))), "Ownership")
RIGHT = Struct(
    ("version", "u8"), ("grantor", ID), ("id", ID16), ("parent", Option(ID)), ("holder", ID), ("places", List(ID)),
    ("scope", RIGHT_SCOPE), ("from_ms", "u64"), ("until_ms", "u64"), ("depth", "u8"))
QUOTA_PROOF = Struct(("version", "u8"), ("holder", ID), ("grant", ID), ("auth_hash", ID))
QUOTA_USE = Struct(("chain", List(SIGNED)), ("proof", SIGNED))
EMBED_AUTH = Struct(
    ("version", "u8"), ("suite", "u8"), ("client_key", ID), ("request", ID16), ("audience", ID), ("audience_key", ID),
    ("model", ID), ("texts_hash", ID), ("issued_ms", "u64"), ("expires_ms", "u64"))
EMBED_TEXTS = Struct(("version", "u8"), ("texts", List("string")))
EMBED_REPLY = Struct(
    ("version", "u8"), ("node", ID), ("auth_hash", ID), ("model", ID), ("dimensions", "u32"), ("tokens", List("u32")),
    ("components", List("f32")))
ITEMS = List(Struct(("text", "string"), ("source", "string"), ("time_ms", "u64")))
KEY_WINDOW = Struct(("key", Fixed(EXCHANGE_KEY)), ("from_ms", "u64"), ("until_ms", "u64"))
OFFER = Struct(
    ("model", ID), ("name", "string"), ("engine", ENGINE), ("context_tokens", "u32"), ("input_price", "u64"),
    ("output_price", "u64"))
NODE_LIMITS = Struct(("slots", "u32"), ("queue", "u32"), ("turns_per_minute", "u32"), ("max_output_tokens", "u32"))
STORAGE_OFFER = Struct(("price", "u64"), ("max_epochs", "u32"), ("unknown_max_epochs", "u32"))
NODE_RECORD = Struct(
    ("version", "u8"), ("node", ID), ("sequence", "u64"), ("addresses", List("string")), ("keys", List(KEY_WINDOW)),
    ("models", List(OFFER)), ("limits", NODE_LIMITS), ("storage", STORAGE_OFFER), ("versions", List("u8")),
    ("software", "string"), ("issued_ms", "u64"), ("expires_ms", "u64"))
MANIFEST = Struct(
    ("version", "u8"), ("architecture", "string"), ("weights_sha256", ID), ("tokenizer_hash", ID),
    ("template_hash", ID), ("engine_revision", "u32"))
# Section 7.
SEGMENT = Struct(
    ("version", "u8"), ("session_id", ID), ("segment", "u64"),
    ("entries", List(Struct(("link", SIGNED), ("record", "bytes")))))
# Section 9.
COMMITTED = Struct(
    ("link", SIGNED), ("receipt", SIGNED), ("blob_digest", ID), ("blob_length", "u32"), ("finish", FINISH))
STORE = Enum(("Stored", Struct(("blob_id", ID), ("end_epoch", Option("u64")))), "Pending", "GivenUp")
TURN_STATUS = Enum("Accepted", ("Sealed", Struct(("committed", COMMITTED), ("store", STORE))), "Aborted")
REQUEST = Struct(
    ("auth", SIGNED), ("payload", "bytes"), ("inline", List("bytes")), ("memory", Option(SIGNED)))
RECALL = Struct(("hint", SIGNED), ("node_key", Fixed(EXCHANGE_KEY)))
CLIENT_FRAME = Enum(
    ("Turn", REQUEST), ("Relay", Struct(("request", REQUEST), ("recall", Option(RECALL)))), ("Note", SIGNED),
    ("FetchBlob", Struct(("digest", ID), ("proof", ID))),
    "NodeRecord", ("Quota", Struct(("chain", List(SIGNED)), ("proof", SIGNED))))
NODE_FRAME = Enum(
    ("Accepted", Struct(("nonce", ID))), ("Chunk", "bytes"),
    ("Refused", Struct(("code", "u16"), ("retry_after_ms", "u32"))), ("Status", TURN_STATUS), "Done", ("Blob", "bytes"),
    ("NodeRecord", SIGNED), ("Memory", ITEMS))
EMBED_FRAME = Enum(
    ("Request", Struct(("auth", SIGNED), ("texts", "bytes"), ("quota", Option(QUOTA_USE)))))
EMBED_ANSWER = Enum(
    ("Embedded", Struct(("nonce", ID), ("sealed", "bytes"))),
    ("Refused", Struct(("code", "u16"), ("retry_after_ms", "u32"))))
LOGPROB = Struct(("token", "u32"), ("millinats", "i32"), ("bytes", "bytes"))
REPLY_EVENT = Enum(
    ("Waiting", "u32"),
    ("Tokens", Struct(("index", "u32"), ("ids", List("u32")), ("text", "string"), ("logprobs", List(LOGPROB)))),
    ("Progress", SIGNED), ("Committed", COMMITTED), ("Store", STORE),
    ("Failed", Struct(("code", "u16"), ("retry_after_ms", "u32"), ("reason", "string"))),
    ("Checked", SIGNED))


def own_session(value):
    same = kdf("session-id", value["session_key"]) == value["session_id"]
    need(same, "SessionIdMismatch", "session id is not of this key")


def genesis_hash(session_key, n_shards, branch):
    start = kdf("session-id", session_key) + session_key + struct.pack("<H", n_shards)
    if branch is not None:
        start += branch["session_id"] + branch["link_hash"]
    return kdf("genesis", start)


def link_rule(link):
    place = link["index"] < SEGMENT_TURNS and link["index"] <= link["seq"] and link["segment"] <= link["seq"]
    need(place, "BadSequence", "link %d has no such place" % link["seq"])
    first = link["seq"] == 0
    need((link["prev_blob"] is None) == first, "BadGenesis", "only the first link has no blob before it")


def auth_rule(auth):
    need(auth["suite"] == SUITE, "UnsupportedVersion", "cipher suite %d" % auth["suite"])
    own_session(auth)
    if auth["seq"] == 0:
        start = genesis_hash(auth["session_key"], auth["n_shards"], auth["branch"])
        need(auth["prev_blob"] is None and auth["prev_link"] == start, "BadGenesis", "authorisation of the first turn")
    answers = [check["receipt"] for check in auth["checks"]]
    need(len(answers) == len(set(answers)) <= MAX_CHECKS, "NonCanonical", "checks of an authorisation")
    need(auth["max_output_tokens"] <= MAX_OUTPUT_TOKENS, "QuotaExceeded", "output tokens of an authorisation")


def head_rule(head):
    lifetime = head["expires_ms"] - head["issued_ms"]
    need(0 <= lifetime <= MAX_HEAD_LIFETIME_MS, "Expired", "lifetime of a head record")


def node_rule(record):
    lists = all(len(record[name]) <= MAX_RECORD_LIST for name in ("addresses", "models", "versions"))
    lists = lists and len(record["keys"]) <= MAX_RECORD_KEYS
    texts = record["addresses"] + [offer["name"] for offer in record["models"]] + [record["software"]]
    need(lists and all(len(text.encode()) <= 256 for text in texts), "FrameTooLarge", "node record")
    windows = all(0 <= key["until_ms"] - key["from_ms"] <= MAX_KEY_LIFETIME_MS for key in record["keys"])
    need(windows and record["issued_ms"] < record["expires_ms"], "KxExpired", "times of a node record")


def hint_rule(hint):
    names = [hint[field] for field in ("session", "project", "persona") if hint[field] is not None]
    fits = len(hint["hint"].encode()) <= MAX_HINT and all(len(name.encode()) <= MAX_PLACE for name in names)
    need(fits, "MemUnauthorized", "a hint for memory")


def right_rule(right):
    kind, scope = right["scope"] if isinstance(right["scope"], tuple) else (right["scope"], {})
    need(len(right["places"]) <= 16 and len(scope.get("models", [])) <= 16, "FrameTooLarge", "lists of a right")
    if kind == "Memory":
        name = scope["project"]
        is_name = name is None or (name.strip() and len(name.encode()) <= MAX_PLACE and name.isprintable())
        need(0 < scope["permissions"] < 32 and is_name, "NonCanonical", "a right to memory")
        need(right["until_ms"] - right["from_ms"] <= 366 * 86_400_000, "Expired", "a right to memory")
    need(right["depth"] < 4 and right["from_ms"] < right["until_ms"], "QuotaExceeded", "a right")


def receipt_rule(receipt):
    need(receipt["engine"] != "Embedding", "NonCanonical", "a receipt of what serves no turns")


def embed_auth_rule(auth):
    need(auth["suite"] == SUITE, "UnsupportedVersion", "cipher suite %d" % auth["suite"])


def embed_reply_rule(reply):
    counts = 1 <= len(reply["tokens"]) <= MAX_EMBED_TEXTS and 1 <= reply["dimensions"] <= MAX_EMBED_DIMENSIONS
    need(counts, "FrameTooLarge", "vectors of a reply")
    whole = len(reply["components"]) == reply["dimensions"] * len(reply["tokens"])
    need(whole and all(map(math.isfinite, reply["components"])), "ReceiptMismatch", "vectors of a reply")


def no_rule(_):
    return None


# Type: layout, label, field that names the signer, code of a bad signature, largest body, rule.
SIGNED_TYPES = {
    "Link": (LINK, "link", "author", "BadNodeSignature", MAX_SIGNED, link_rule),
    "TurnAuth": (TURN_AUTH, "turn-auth", "session_key", "BadSignature", MAX_SIGNED, auth_rule),
    "Receipt": (RECEIPT, "receipt", "node", "BadNodeSignature", MAX_SIGNED, receipt_rule),
    "ProgressNote": (PROGRESS, "progress", "node", "BadNodeSignature", MAX_SIGNED, no_rule),
    "TurnNote": (TURN_NOTE, "turn-note", "session_key", "BadSignature", MAX_SIGNED, own_session),
    "ExportStatement": (EXPORT_STATEMENT, "export-head", "session_key", "BadSignature", MAX_SIGNED, own_session),
    "HeadRecord": (HEAD, "head", "head_key", "BadSignature", MAX_HEAD, head_rule),
    "NodeRecord": (NODE_RECORD, "node-record", "node", "BadNodeSignature", MAX_SIGNED, node_rule),
    "MemEnvelope": (ENVELOPE, "memory", "relayer", "MemUnauthorized", MAX_MEMORY, no_rule),
    "RecallHint": (HINT, "recall-hint", "key", "MemUnauthorized", MAX_SIGNED, hint_rule),
    "Right": (RIGHT, "right", "grantor", "BadSignature", MAX_SIGNED, right_rule),
    "QuotaProof": (QUOTA_PROOF, "quota-proof", "holder", "BadSignature", MAX_SIGNED, no_rule),
    "EmbedAuth": (EMBED_AUTH, "embed-auth", "client_key", "BadSignature", MAX_SIGNED, embed_auth_rule),
    "EmbedReply": (EMBED_REPLY, "embed-reply", "node", "BadNodeSignature", MAX_EMBED_REPLY, embed_reply_rule),
}


# Section 17: the objects of another version than 1.
VERSIONS = {"NodeRecord": 3, "TurnAuth": 4, "Receipt": 3, "HeadRecord": 3, "MemEnvelope": 2, "EmbedAuth": 2}


def open_signed(kind, signed):
    """Section 3, signed objects: version, form, rule, signature. Returns the object."""
    layout, label, signer, code, limit, rule = SIGNED_TYPES[kind]
    body = signed["body"]
    need(body, "NonCanonical", "%s without a body" % kind)
    need(body[0] == VERSIONS.get(kind, 1), "UnsupportedVersion", "%s of version %d" % (kind, body[0]))
    value = decode(layout, body, limit)
    rule(value)
    verify_signature(label, value[signer], body, signed["signature"], code, kind)
    return value


def open_encoded(kind, data):
    signed = decode(SIGNED, data, SIGNED_TYPES[kind][4] + 72)
    return open_signed(kind, signed), signed


def signed_hash(name, signed):
    return kdf(name, signed["body"] + signed["signature"])


def identity(link):
    return (link["session_id"] + u64(link["segment"]) + u64(link["seq"]) + link["turn_id"]
            + struct.pack("<I", link["attempt"]) + link["author"])


def message_rule(message):
    names = [message["name"] or "", message["call_id"] or ""]
    short = len(message["text"].encode()) <= MAX_MESSAGE and all(len(name.encode()) <= MAX_NAME for name in names)
    need(short, "FrameTooLarge", "a message exceeds its limit")


def open_record(key, ad, sealed, seq):
    text = unpad(unseal(key, ad, sealed, "record %d" % seq), MIN_RECORD)
    record = decode(RECORD, text, MAX_RECORD)
    need(record["version"] == 1, "UnsupportedVersion", "record %d" % seq)
    need(len(record["messages"]) <= MAX_MESSAGES, "FrameTooLarge", "messages of record %d" % seq)
    for message in record["messages"]:
        message_rule(message)
    start = record["supersedes_from"]
    plain = record["kind"] == "Turn" and start is None
    replaces = record["kind"] != "Turn" and start is not None and start < seq
    need(plain or replaces, "BadSequence", "supersedes_from of record %d" % seq)
    return record


def commitment_key(record_key):
    return kdf("commitment", record_key)


def commit_input(record_key, system, window_from, new):
    data = encode(List(MESSAGE), system) + u64(window_from) + encode(List(MESSAGE), new)
    return keyed(commitment_key(record_key), b"\x01" + data)


def commit_output(record_key, answer, finish):
    return keyed(commitment_key(record_key), b"\x02" + encode("string", answer) + encode(FINISH, finish))


def sampling_digest(record_key, sampling):
    return kdf("sampling-digest", commitment_key(record_key), encode(SAMPLING, sampling))


def check_sampling(sampling):
    """Section 6, Sampling: numbers within their ranges."""
    numbers = 0 <= sampling["temperature"] <= 5 and 0 < sampling["top_p"] <= 1
    numbers = numbers and 0 < sampling["repetition_penalty"] <= 10 and sampling["logprobs"] <= 20
    numbers = numbers and 0 <= sampling["min_p"] <= 1 and abs(sampling["presence_penalty"]) <= 2 and abs(sampling["frequency_penalty"]) <= 2
    tokens = [bias["token"] for bias in sampling["token_biases"]]
    numbers = numbers and len(tokens) <= 300 and tokens == sorted(set(tokens))
    numbers = numbers and all(abs(bias["bias"]) <= 100 for bias in sampling["token_biases"])
    zeros = [sampling[name] for name in ("temperature", "min_p", "presence_penalty", "frequency_penalty")]
    zeros += [bias["bias"] for bias in sampling["token_biases"]]
    numbers = numbers and not any(value == 0 and math.copysign(1, value) < 0 for value in zeros)
    stops = len(sampling["stop"]) <= 16 and all(0 < len(stop.encode("utf-8")) <= 256 for stop in sampling["stop"])
    need(numbers and stops, "PayloadRejected", "sampling settings out of range")


def commit_memory(record_key, items):
    return keyed(commitment_key(record_key), b"\x03" + encode(ITEMS, items)) if items else None


def running_hash(record_key, auth_hash, tokens):
    found = kdf("progress-start", commitment_key(record_key), auth_hash)
    for token in tokens:
        found = kdf("progress-step", found, struct.pack("<I", token))
    return found


# --- Section 7: segments and blobs ---------------------------------------------------------------------------------

def encoded_length(entries):
    return 49 + sum(8 + len(entry["link"]["body"]) + 64 + 8 + len(entry["record"]) for entry in entries)


def is_closed(entries):
    return len(entries) >= SEGMENT_TURNS or encoded_length(entries) >= SEGMENT_BYTES


def blob_ad(salt, session_id, number):
    return salt + session_id + u64(number)


def blob_salt(record_key):
    return kdf("blob-salt", record_key)[:16]


def open_blob(blob, key, session_id, number):
    need(len(blob) <= MAX_BLOB, "BlobTooLarge", "blob of segment %d" % number)
    need(len(blob) >= 16, "NonCanonical", "blob without a salt")
    padded = unseal(key, blob_ad(blob[:16], session_id, number), blob[16:], "blob of segment %d" % number)
    segment = decode(SEGMENT, unpad(padded, MIN_SEGMENT), MAX_SEGMENT)
    need(segment["version"] == 1, "UnsupportedVersion", "segment %d" % number)
    placed = segment["session_id"] == session_id and segment["segment"] == number
    need(placed and 1 <= len(segment["entries"]) <= SEGMENT_TURNS, "BadSequence", "segment %d" % number)
    return segment


def make_blob(session_id, number, entries, key, salt):
    text = encode(SEGMENT, {"version": 1, "session_id": session_id, "segment": number, "entries": entries})
    padded = pad(text, MIN_SEGMENT, MAX_SEGMENT, "BlobTooLarge")
    return salt + seal(key, blob_ad(salt, session_id, number), padded)
