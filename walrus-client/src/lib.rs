//! Walrus blob IDs, HTTP client and embedded store.
