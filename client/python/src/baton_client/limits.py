"""Limits of docs/PROTOCOL.md, section 15, and of this client. Bytes unless the name says otherwise."""

from __future__ import annotations

from typing import Final

# --- Section 15 -----------------------------------------------------------------------------------------------------

VERSION: Final = 1
# The cipher suite: X25519 with ML-KEM-768, by X-Wing.
SUITE: Final = 2
NODE_RECORD_VERSION: Final = 3
TURN_AUTH_VERSION: Final = 4
PAYLOAD_VERSION: Final = 5
RECEIPT_VERSION: Final = 3
HEAD_RECORD_VERSION: Final = 3
MAX_OBJECT_BYTES: Final = 8 * 1024 * 1024
MAX_NODE_FRAME_BYTES: Final = 2_101_312
MAX_MESSAGE_BYTES: Final = 512 * 1024
MAX_MESSAGES: Final = 4096
MAX_NAME_BYTES: Final = 128
MIN_RECORD_BUCKET: Final = 256
MAX_RECORD_BUCKET: Final = 1024 * 1024
SEGMENT_TURNS: Final = 16
SEGMENT_BYTES: Final = 256 * 1024
MIN_SEGMENT_BUCKET: Final = 1024
MAX_SEGMENT_BUCKET: Final = 2 * 1024 * 1024
MAX_BLOB_BYTES: Final = 2_097_216
MAX_READ_BLOBS: Final = 9
MAX_READ_RECORDS: Final = 144
MAX_INLINE_BLOBS: Final = 2
MAX_PAYLOAD_BYTES: Final = 2_162_688
PAYLOAD_BLOCK: Final = 1024
REPLY_BLOCK: Final = 128
HEAD_OUTER_BLOCK: Final = 1024
HEAD_INNER_BLOCK: Final = 512
MAX_REASON_BYTES: Final = 256
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_LOGPROBS: Final = 20
MAX_SIGNED_BYTES: Final = 16 * 1024
MAX_STOP_STRINGS: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_TOKEN_BIASES: Final = 300
MAX_OUTPUT_TOKENS: Final = 32 * 1024
MAX_RESUME_TOKENS: Final = 32 * 1024
MAX_AUTH_LIFETIME_MS: Final = 120_000
MAX_CLOCK_SKEW_MS: Final = 30_000
MAX_LINK_LEAD_MS: Final = 120_000
MAX_TURN_MS: Final = 24 * 3600 * 1000
MAX_EXCHANGE_KEY_LIFETIME_MS: Final = 24 * 3600 * 1000
MAX_HEAD_LIFETIME_MS: Final = 400 * 24 * 3600 * 1000
HEAD_PERIOD_MS: Final = 7 * 24 * 3600 * 1000
MAX_HEAD_PERIODS: Final = 60
MAX_HEAD_BYTES: Final = 4096
MAX_BRANCHES: Final = 8
MAX_DEVICES: Final = 16
MIN_BILLED_MIB: Final = 13
MAX_RECORD_LIST: Final = 16
MAX_RECORD_KEYS: Final = 4
MAX_RECORD_TEXT_BYTES: Final = 256
PROGRESS_TOKENS: Final = 32
# A signed object's encoding has the body's length and a signature beside the body (section 3).
SIGNED_OVERHEAD: Final = 72
DEVICE_LEASE_MS: Final = 24 * 3600 * 1000
MIN_SHARDS: Final = 4
MAX_SHARDS: Final = 2048

# --- This client ----------------------------------------------------------------------------------------------------

# Text of an answer: far above any answer of MAX_OUTPUT_TOKENS tokens that still fits a record.
MAX_ANSWER_BYTES: Final = MAX_MESSAGE_BYTES
# Events of one reply: each token may come alone, with a progress note every 32, and some for the queue and the end.
MAX_REPLY_EVENTS: Final = 4 * MAX_OUTPUT_TOKENS
# Turns of one session that this client reads: 4,096 full segments, each a blob of at most 2 MiB read one at a time.
MAX_SESSION_SEGMENTS: Final = 4096
# One entry of the journal: an accepted turn with its sealed record, or an order with its messages.
MAX_ENTRY_BYTES: Final = 4 * 1024 * 1024
# The journal of a session; a session of MAX_SESSION_SEGMENTS ordinary segments is far smaller.
MAX_JOURNAL_BYTES: Final = 1024 * 1024 * 1024
# Answers of a store beside blobs: JSON of a PUT, error texts, and a head record.
MAX_HTTP_TEXT_BYTES: Final = 64 * 1024
# Places of a head record that are looked in at once: the two newest periods first, then eight at a time (section 12).
FIRST_PLACES: Final = 2
LATER_PLACES: Final = 8
# Most that a turn may cost, in millionths of the node's unit: ten units. A node's offer alone never decides it.
DEFAULT_MAX_PRICE: Final = 10_000_000
# Attempts at one turn before the error goes to the caller.
MAX_ATTEMPTS: Final = 6
# A small file of this client's own: a root or a device id.
MAX_SMALL_FILE_BYTES: Final = 1024
# Nodes named by the caller.
MAX_NODES: Final = 256

# Seconds: one deadline for each wait.
CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 15.0
# How long an author is asked for the state of a turn whose reply broke (section 9, "Asking and going on").
STATUS_TIMEOUT_S: Final = 0.5
# Silence of a node after `Accepted`: section 10 allows 10 s to 180 s for the first token.
FIRST_TOKEN_TIMEOUT_S: Final = 180.0
TOKEN_TIMEOUT_S: Final = 60.0
# A turn may wait this long in a node's queue.
QUEUE_TIMEOUT_S: Final = 600.0
STORE_TIMEOUT_S: Final = 30.0
# After this time without `Stored` the client stores its own copy (section 9, step 5).
AUTHOR_STORES_ALONE_S: Final = 60.0

# Transport (libp2p: noise, yamux, multistream-select).
MAX_NOISE_MESSAGE: Final = 65535
MAX_NEGOTIATION_LINE: Final = 1024
MAX_NEGOTIATION_LINES: Final = 16
YAMUX_WINDOW: Final = 256 * 1024
MAX_YAMUX_FRAME: Final = 1024 * 1024
# How often a connection is probed, and after which silence it is given up: a machine without power sends no end.
PROBE_INTERVAL_S: Final = 10.0
PROBE_TIMEOUT_S: Final = 20.0
# Streams that the peer opens here: ping, identify, and protocols that are declined.
MAX_INBOUND_STREAMS: Final = 64
MAX_HANDSHAKE_PAYLOAD: Final = 4096
