# %% [markdown]
# # A conversation over Baton
#
# Runs as a script, and cell by cell as a notebook (VS Code and Jupytext read the `# %%` marks).
# Start a network first: `baton-testnet up --json`, and put its one line of JSON into the variable `BATON_NETWORK`.

# %%
import json
import os

from baton_client import BatonError, Client, Takeover, TextPiece

network = json.loads(os.environ["BATON_NETWORK"])
nodes = [address for address in network["nodes"] if "/tcp/" in address]
client = Client(nodes, store=network["store"], shards=network["shards"])
for node in client.nodes():
    print(node.peer_id, ", ".join(node.models) or node.error)

# %% [markdown]
# One call is a turn. The answer is verified and journaled before `turn` returns it.

# %%
session = client.new_session()
turn = session.turn("What is a relay race?", on_text=lambda text: print(text, end="", flush=True))
print(f"\nserved by {turn.node}, {turn.receipt.tokens.output} tokens")

# %% [markdown]
# Text as it arrives, with what happens on the way. If the node dies, another one continues the sentence.

# %%
for event in session.events("Who runs first?", max_output_tokens=200):
    if isinstance(event, TextPiece):
        print(event.text, end="", flush=True)
    elif isinstance(event, Takeover):
        print(f"\n[{event.node} failed; {event.kept_tokens} tokens are kept]")
print()

# %% [markdown]
# The chain from the store: every signature, every receipt, and every blob rebuilt byte for byte.

# %%
print(session.verify())
for turn in session.history:
    print(turn.number, turn.question, "->", turn.text[:60])

# %% [markdown]
# The session belongs to the holder of its 24 words. Any client restores it from them.

# %%
with Client(nodes, store=network["store"], shards=network["shards"]) as other:
    try:
        print(f"restored {len(other.restore(session.words).history)} turns")
    except BatonError as error:
        print(error.code, error.cause, error.hint)

# %%
client.close()
