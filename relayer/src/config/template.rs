//! The commented file that `init` writes.

/// Every option as a comment with its default; options without a default have `""` or an example.
pub(crate) const TEMPLATE: &str = r#"# Configuration of baton-relayer. Lines that begin with # are the defaults.
# Flags (--max-items 1000) and environment variables (BATON_RELAYER_MAX_ITEMS=1000) go before this file.

# ---- HTTP ----

# Address of the HTTP server, or "off". Put a TLS proxy in front before you open it to others.
#http = "127.0.0.1:8000"

# URL under which clients reach it; left out, what they name in Host.
#public_url = ""

# Requests a minute of one owner, and of one key.
#requests_per_minute = 600
#key_requests_per_minute = 300

# Requests a minute from one subnet: a /24 of IPv4, a /48 of IPv6.
#subnet_requests_per_minute = 3000

# Requests in hand at once, and among them bodies of more than 2 MiB. A subnet has a quarter of each, a key a sixteenth.
#max_requests = 256
#max_large_bodies = 4

# Behind a proxy, the header in which it reports the client's address, such as x-forwarded-for.
# It is believed from the addresses and networks of trusted_proxies, such as "127.0.0.1", and ignored from all others.
#client_address_header = ""
#trusted_proxies = []

# Networks of your own machines, such as "192.168.1.0/24": they have no limit by subnet, for requests and sealed turns.
#own_networks = []

# ---- Owners ----

# Who may have memory here: "open" (any account key), "listed" (allowed_owners), or "invited" (also holders of invitations).
# Left out, "open" while http is on loopback without public_url or client_address_header, else "listed". Account keys are free: an open relayer serves everybody.
# Invite with: baton-relayer invite KEY
#owners = "" # open, listed or invited
#allowed_owners = []
#revoked_invitations = []

# Refuse signed requests that do not name this relayer (?relayer=KEY): another relayer of the same owner could have sent them
# on. Clients learn the key from /relayer, and believe it for public_url alone.
#require_audience = false

# Budgets of all owners together; 0 is no limit. Bytes are those of the embedded database and the key files.
#max_owners = 10000
#max_bytes = 68719476736
#blobs_per_hour = 1000

# Calls of model_url an hour: of all owners, and of one.
#model_calls_per_hour = 6000
#owner_model_calls_per_hour = 600

# ---- Memory ----

# Where sealed records lie: "embedded" (in the data folder, one relayer) or "postgres" (with pgvector, several relayers).
#storage = "embedded"

# File (chmod 600) with postgres://user:password@host/database.
#postgres_url_file = ""

# Folder of the owners' key files, never inside the database; left out, keys in the data folder.
# Whoever has this folder, the master key and the database can read everything: back it up apart from the database.
#keys_dir = ""

# Most items of an owner: some 2 KB each while the owner is open.
#max_items = 250000

# What embeds: "auto" ("static" once it was pulled, else "hashing"), "hashing", "static", "minilm" or "endpoint".
# Pull a model with: baton-relayer models pull potion-base-8m
#embedder = "auto"

# Folder of pulled models; left out, models in the data folder.
#model_dir = ""

# An OpenAI-compatible embedding endpoint. The owners' texts are sent to it: never a third party's without their consent.
#embedder_url = ""
#embedder_model = ""
#embedder_dimensions = "" # a number, such as 768
#embedder_key_file = ""

# How that endpoint tells queries from documents: "none", "prefix" (such as "query: ") or "input_type".
#embedder_roles = "none"
#embedder_query_role = ""
#embedder_document_role = ""

# A language model (OpenAI-compatible) that judges, extracts and answers /api/ask. Turns are sent to it.
# Left out, rules decide what is worth keeping.
#model_url = ""
#model = ""
#model_key_file = ""

# Let third-party nodes judge and extract instead, for those owners who allow it (PUT /v1/memory/settings), by this model.
# A node reads the exchange, and not whose it is. Where model_url is set, nodes are not asked.
#through_nodes = false
#through_nodes_model = ""

# ---- Walrus ----

# Where the encrypted contents are kept, the preferred ones first; left out, they are kept here alone.
#publishers = []
#aggregators = []

# Files (chmod 600) with the publishers' bearer token, or the secret that a token is made from for each PUT.
#publisher_token_file = ""
#publisher_secret_file = ""

# Shards of the store's network (1000 on Walrus's mainnet and testnet), and epochs to buy.
#shards = 1000
#epochs = 53

# Base URL where session heads are looked up, for conversations over HTTP (POST /v1/chat).
#heads = ""

# ---- Network ----

# Addresses to listen on for sealed turns, and nodes to know from the start.
#listen = ["/ip4/0.0.0.0/tcp/4101"]
#bootstrap = []

# Find nodes on the local network.
#mdns = true

# Let test engines that only repeat the message serve conversations over HTTP, and answer for through_nodes.
#allow_echo = false

# Seconds that running turns and requests get to end at a stop.
#drain_seconds = 30
"#;
