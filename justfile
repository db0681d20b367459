# The one list of recipes, for people and for CI. `just` alone shows it; `just --list` too.

set shell := ["bash", "-euo", "pipefail", "-c"]

default:
    @just --list --unsorted

# Build, fetch the model, and run the demo: a network on this machine that attacks itself
demo *arguments:
    ./scripts/testnet.sh {{arguments}}

# Run every test; long matrices as samples (add --full for all of them)
test *arguments:
    ./scripts/test.sh {{arguments}}

# Run everything that CI runs, in its order
ci: format structure deny
    ./scripts/test.sh --lint

# Check that the code is formatted, and that the fuzz targets' lock files are up to date
format:
    cargo fmt --all --check
    for fuzz in walrus-client/fuzz node/engine/fuzz; do \
      cargo fmt --manifest-path "$fuzz/Cargo.toml" --check; \
      cargo metadata --locked --format-version 1 --manifest-path "$fuzz/Cargo.toml" >/dev/null; \
    done

# Run clippy on all targets, with warnings denied
lint:
    cargo clippy --locked --workspace --all-targets -- -D warnings

# Run clippy on the demo's programs without their options, as scripts/testnet.sh builds them
lint-plain:
    cargo clippy --locked --no-default-features -p baton-node -p baton-relayer -p baton-testnet -- -D warnings

# Build the documentation, with warnings denied
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# Count module cycles and the size of the tree, measure the prose, check names, and look for unused dependencies, missing files and messages that no program says
structure:
    python3 scripts/crates.py
    python3 scripts/cycles.py
    python3 scripts/words.py
    python3 scripts/names.py
    python3 scripts/unused_deps.py
    python3 scripts/paths.py
    python3 scripts/messages.py
    python3 scripts/size.py

# Check licences, bans and sources of the dependencies
deny:
    python3 scripts/deny.py

# Check the dependencies against RustSec's advisories (needs a network, and cargo-deny)
advisories:
    cargo deny check advisories

# Build the browser client (@baton/client), and use it in Chromium
browser *arguments:
    ./scripts/browser.sh {{arguments}}

# Benchmarks: what the network adds to a turn, the engine beside llama.cpp, blob IDs, the exchange
bench:
    cargo run --release --bin baton-testnet -- bench turn
    ./scripts/bench-engine.sh
    cargo bench -p baton-walrus-client
    cargo bench -p baton-keys
