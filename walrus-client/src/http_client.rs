//! The HTTP clients of Baton's programs: which requests go through a proxy of the environment, which redirects are
//! followed, and how a failed request is described.
//!
//! The environment's variables are those of curl: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`. A proxy is
//! for other machines: this machine's own servers are always asked directly.

mod system_roots;

use std::{net::IpAddr, sync::LazyLock};

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{Client, ClientBuilder, Response, Url, header, redirect::Policy};

use self::system_roots::TLS;

/// Most redirects in a row.
const MAX_REDIRECTS: usize = 5;

/// The proxies of the environment, by the rules that the clients use.
static PROXIES: LazyLock<Matcher> = LazyLock::new(Matcher::from_env);

/// The servers that the environment excepts from its proxies.
static EXCEPTED: LazyLock<String> = LazyLock::new(|| {
    ["NO_PROXY", "no_proxy"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default()
});

/// Begins a client for requests to the server of this URL.
pub fn builder(url: &Url) -> ClientBuilder {
    if is_direct(url) { for_any_server().no_proxy() } else { for_any_server() }
}

/// As [`builder`], for a URL as text. Without a URL, the proxies of the environment apply; a request then fails anyway.
pub fn builder_for(url: &str) -> ClientBuilder {
    Url::parse(url).map_or_else(|_| for_any_server(), |url| builder(&url))
}

/// Begins a client that trusts the system's certificates, and uses the proxies of the environment for every server.
pub(crate) fn for_any_server() -> ClientBuilder {
    Client::builder().tls_backend_preconfigured(TLS.clone())
}

/// Whether no proxy leads to the server of a URL.
pub(crate) fn is_direct(url: &Url) -> bool {
    is_loopback(url) || is_excepted(url, &EXCEPTED)
}

/// Whether a list of `NO_PROXY` has the server of a URL by a host with a port, or by a name with the root's dot. The
/// clients know all other forms, and networks.
fn is_excepted(url: &Url, list: &str) -> bool {
    let host = url.host_str().unwrap_or_default().trim_end_matches('.');
    list.split(',').any(|entry| {
        let entry = entry.trim();
        let (name, port) = match entry.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>())) {
            Some((name, Ok(port))) if name.ends_with(']') || !name.contains(':') => (name, Some(port)),
            _ => (entry, None),
        };
        let name = name.trim_start_matches("*.").trim_matches('.').to_ascii_lowercase();
        let is_below = || host.strip_suffix(&name).is_some_and(|rest| rest.ends_with('.'));
        let is_host = !name.is_empty() && (host == name || is_below());
        is_host && port.is_none_or(|port| url.port_or_known_default() == Some(port))
    })
}

/// Whether the server of a URL is on this machine, by its address or the name `localhost`.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_end_matches('.');
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
        Ok(IpAddr::V4(ip)) => ip.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// A failed request in words: the server, the proxy if one was on the way, and the innermost cause. Of a URL, only the
/// host and the port are named, since its path may hold a blob's ID.
#[must_use]
pub fn describe(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let to = error.url().map_or_else(String::new, |url| format!(" to {}{}", server(url), proxy_of(url)));
    let failed = if error.is_connect() && !error.is_timeout() {
        format!("could not connect{to}")
    } else {
        format!("the connection{to} {}", if error.is_timeout() { "timed out" } else { "failed" })
    };
    if error.is_timeout() || std::ptr::addr_eq(cause, error) {
        return failed;
    }
    let cause = cause.to_string();
    let cause = cause.split_once(" (os error").map_or(&*cause, |(words, _)| words);
    format!("{failed} ({cause})")
}

/// Names the proxy of the environment that a request to this URL passes, without its password.
pub(crate) fn proxy_of(url: &Url) -> String {
    let proxy = || {
        let proxy = PROXIES.intercept(&url.as_str().parse().ok()?)?;
        Url::parse(&proxy.uri().to_string()).ok()
    };
    let proxy = if is_direct(url) { None } else { proxy() };
    proxy.map_or_else(String::new, |proxy| format!(" through the proxy {}", server(&proxy)))
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// The client's error; `None` if the body is longer.
pub async fn read_bounded(mut response: Response, limit: u64) -> Result<Vec<u8>, Option<reqwest::Error>> {
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(None);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Some)? {
        if (body.len() + chunk.len()) as u64 > limit {
            return Err(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The server of a URL, without user, password and path.
#[must_use]
pub fn server(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Follows a few redirects, but none that gives up encryption or leads from another machine into this one.
pub(crate) fn redirects() -> Policy {
    Policy::custom(|attempt| {
        let follows = may_follow(attempt.previous(), attempt.url());
        if follows { attempt.follow() } else { attempt.stop() }
    })
}

/// Where an answer redirects a request with a body, after the requests to these URLs. A 303 is none of them: its
/// location describes the outcome.
pub(crate) fn next_location(answer: &Response, previous: &[Url]) -> Option<Url> {
    if !matches!(answer.status().as_u16(), 301 | 302 | 307 | 308) {
        return None;
    }
    let location = answer.headers().get(header::LOCATION)?.to_str().ok()?;
    let next = answer.url().join(location).ok()?;
    may_follow(previous, &next).then_some(next)
}

fn may_follow(previous: &[Url], next: &Url) -> bool {
    let Some(last) = previous.last() else { return false };
    let keeps_encryption = match next.scheme() {
        "https" => true,
        "http" => last.scheme() == "http",
        _ => false,
    };
    previous.len() <= MAX_REDIRECTS && keeps_encryption && (is_loopback(last) || !is_loopback(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn this_machine_is_known_by_its_addresses_and_its_name() {
        for own in [
            "http://127.0.0.1:1",
            "http://127.9.8.7",
            "http://[::1]:1",
            "http://[::ffff:127.0.0.1]",
            "https://LocalHost:1",
            "http://localhost.",
            "http://a.localhost/",
            "http://127.1:5",
        ] {
            assert!(is_loopback(&url(own)), "{own}");
        }
        for other in
            ["http://10.0.0.1", "http://localhost.example", "http://[fe80::1]", "http://notlocalhost"]
        {
            assert!(!is_loopback(&url(other)), "{other}");
        }
    }

    #[test]
    fn a_server_is_excepted_by_its_name_its_port_and_with_the_roots_dot() {
        for (list, server, excepted) in [
            ("a.example:8080", "http://a.example:8080/x", true),
            ("a.example:8080", "http://a.example:8081", false),
            ("a.example:80", "http://a.example", true),
            ("b, a.example.", "https://a.example:1", true),
            ("a.example", "https://a.example./", true),
            (".example.", "https://a.example", true),
            ("*.example:443", "https://a.example", true),
            ("A.Example:443", "https://a.example", true),
            ("10.0.0.5:9000", "http://10.0.0.5:9000", true),
            ("[fd00::1]:80", "http://[fd00::1]", true),
            ("fd00::1", "http://[fd00::2]", false),
            ("example", "https://badexample", false),
            ("", "https://a.example", false),
            (",:80, .", "http://a.example", false),
        ] {
            assert_eq!(is_excepted(&url(server), list), excepted, "{list} {server}");
        }
    }

    #[test]
    fn a_redirect_keeps_encryption_and_leads_not_into_this_machine() {
        for (from, to, follows) in [
            ("http://a.example", "http://b.example/x", true),
            ("http://a.example", "https://a.example", true),
            ("https://a.example", "https://b.example", true),
            ("https://a.example", "http://a.example", false),
            ("http://a.example", "http://127.0.0.1:1", false),
            ("http://127.0.0.1:1", "http://127.0.0.1:2", true),
            ("http://127.0.0.1:1", "http://a.example", true),
            ("http://a.example", "ftp://a.example", false),
        ] {
            assert_eq!(may_follow(&[url(from)], &url(to)), follows, "{from} {to}");
        }
        let long = vec![url("http://a.example"); MAX_REDIRECTS + 1];
        assert!(!may_follow(&long, &url("http://a.example")));
    }

    #[test]
    fn a_server_is_named_without_its_password() {
        assert_eq!(server(&url("http://user:word@proxy.example:3128/path?x")), "http://proxy.example:3128");
    }
}
