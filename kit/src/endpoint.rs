//! Addresses of HTTP servers: those to listen on, and whether the way to one is protected.

use std::net::{Ipv4Addr, SocketAddr};

use baton_walrus_client::http_client::is_loopback;
use url::Url;

/// Reads an address to listen on. `localhost:PORT` and `:PORT` are this machine's loopback address, and no other
/// name is looked up: a server listens where the setting says, whatever a name server answers.
///
/// ```
/// use baton_kit::endpoint::listen_address;
///
/// for (text, address) in [
///     ("127.0.0.1:8000", "127.0.0.1:8000"),
///     ("localhost:8000", "127.0.0.1:8000"),
///     (":8000", "127.0.0.1:8000"),
///     ("0.0.0.0:0", "0.0.0.0:0"),
///     ("[::1]:8000", "[::1]:8000"),
/// ] {
///     assert_eq!(listen_address(text), Ok(address.parse().unwrap()), "{text}");
/// }
/// for text in ["", ":", "8000", "localhost", "localhost:", ":65536", ":+1", "host.example:8000", "http://localhost:1"] {
///     assert!(listen_address(text).unwrap_err().contains(":8000"), "{text}");
/// }
/// ```
///
/// # Errors
/// The addresses that it takes, in words.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let address = match text.trim().rsplit_once(':') {
        Some((host, port)) if host.is_empty() || host.eq_ignore_ascii_case("localhost") => {
            // A number may else have a sign.
            let port = Some(port).filter(|port| port.bytes().all(|digit| digit.is_ascii_digit()));
            port.and_then(|port| port.parse().ok()).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        }
        _ => text.trim().parse().ok(),
    };
    address.ok_or_else(|| {
        "expected an address such as localhost:8000 or :8000 (this machine only), or 0.0.0.0:8000 (all its addresses)"
            .to_owned()
    })
}

/// Whether nobody on the way to this server can read or change a request: it goes over TLS, or stays on this
/// machine.
///
/// ```
/// use baton_kit::endpoint::is_protected;
///
/// for (url, protected) in [
///     ("https://relayer.example", true),
///     ("http://127.0.0.1:8000", true),
///     ("http://[::1]:8000", true),
///     ("http://localhost:8000", true),
///     ("http://relayer.example", false),
///     ("http://localhost.example", false),
/// ] {
///     assert_eq!(is_protected(&url.parse().unwrap()), protected, "{url}");
/// }
/// ```
#[must_use]
pub fn is_protected(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback(url))
}
