//! Whether the way to an HTTP server is protected.

use url::{Host, Url};

/// Whether nobody on the way to this server can read or change a request: it goes over TLS, or stays on this
/// machine.
///
/// ```
/// use baton_command::endpoint::is_protected;
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
    let stays_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && stays_here)
}
