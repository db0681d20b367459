//! The links of the chat page, with a key behind `#`, and their QR codes.
//!
//! `baton serve` writes down at its start where the page is. `baton serve --link` and `baton serve keys add` read that, so
//! that they print links also where the endpoint has no terminal.

use std::{
    io::{self, IsTerminal as _},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use baton_client::ClientError;
use baton_gateway::is_loopback;
use baton_keys::files;
use qrcode::{EcLevel, QrCode, render::unicode::Dense1x2};
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use crate::{failure::Failure, out::Out, settings::Settings};

/// Largest key file.
const MAX_KEY_BYTES: u64 = 4096;

/// The file of the page's address in the home folder.
const PAGE_FILE: &str = "serve.page.json";
/// Largest file of the page's address.
const MAX_PAGE_BYTES: u64 = 64 * 1024;
/// Reaches a server that listens at all addresses.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The address of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageAddress {
    /// The page's URL for programs of this machine, and for all if the endpoint has a certificate.
    pub local: String,
    /// The page's URL for other devices; that of this machine if no name is allowed.
    pub shared: String,
    /// The file of the owner's key; `None` if no key is needed.
    pub key_file: Option<PathBuf>,
}

impl PageAddress {
    /// The address of the page of an endpoint at an address, with a certificate or not. `name` is the most public one
    /// under which others reach it, and `certified` that of its own certificate.
    pub(crate) fn of(
        address: SocketAddr,
        has_tls: bool,
        name: Option<&String>,
        certified: Option<&String>,
        key_file: Option<&Path>,
    ) -> Self {
        let scheme = if has_tls { "https" } else { "http" };
        let at = |name: &str| match (address.port(), has_tls) {
            (443, true) | (80, false) => format!("{scheme}://{name}/"),
            (port, _) => format!("{scheme}://{name}:{port}/"),
        };
        // Nothing can connect to the address that stands for all.
        let reached: SocketAddr =
            if address.ip().is_unspecified() { (LOCALHOST, address.port()).into() } else { address };
        let local = certified.map_or_else(|| format!("{scheme}://{reached}/"), |name| at(name));
        let shared = match certified.or(name) {
            None => local.clone(),
            // Other devices reach a loopback address through a proxy, which has the certificate.
            Some(name) if is_loopback(&address) && !has_tls => format!("https://{name}/"),
            Some(name) => at(name),
        };
        Self {
            local,
            shared,
            key_file: key_file.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.into())),
        }
    }

    /// Writes the address into a home folder.
    pub(crate) fn save(&self, home: &Path) -> Result<(), Failure> {
        let path = home.join(PAGE_FILE);
        let text = serde_json::to_string(self).map_err(io::Error::from)?;
        files::replace_private(&path, format!("{text}\n").as_bytes())
            .map_err(|source| ClientError::File { action: "write", path, source }.into())
    }

    /// The address in a home folder; `None` before the first `baton serve`.
    pub(crate) fn load(home: &Path) -> Result<Option<Self>, Failure> {
        let path = home.join(PAGE_FILE);
        let read =
            files::read_secret(&path, "the page's address", MAX_PAGE_BYTES).map_err(ClientError::from)?;
        let Some(bytes) = read else { return Ok(None) };
        let address = serde_json::from_slice(&bytes).map_err(|error| {
            Failure::usage(
                format!("{} is not the address of a page: {error}", path.display()),
                "start baton serve again; it writes the file anew",
            )
        })?;
        Ok(Some(address))
    }

    /// The link for other devices, with a key.
    pub(crate) fn link(&self, key: Option<&str>) -> Zeroizing<String> {
        link_to(&self.shared, key)
    }

    /// Whether the link works on this machine alone.
    pub(crate) fn is_only_here(&self) -> bool {
        let host = self.shared.split("//").nth(1).unwrap_or_default();
        ["127.", "localhost", "[::1]"].iter().any(|name| host.starts_with(name))
    }
}

/// A link to a page, with a key in its fragment, which browsers do not send.
pub(crate) fn link_to(url: &str, key: Option<&str>) -> Zeroizing<String> {
    Zeroizing::new(key.map_or_else(|| url.to_owned(), |key| format!("{url}#key={key}")))
}

/// `baton serve --link`: the owner's link, and its QR code at a terminal.
pub(crate) fn run(settings: &Settings, out: &Out) -> Result<(), Failure> {
    let page = PageAddress::load(settings.home())?.ok_or_else(|| {
        Failure::usage("baton serve has not run with this home yet.", "start it: baton serve")
    })?;
    let key = match &page.key_file {
        None => None,
        Some(path) => Some(read_key(path)?.ok_or_else(|| {
            Failure::usage(
                format!("there is no key file {}", path.display()),
                "start baton serve again; it makes a key",
            )
        })?),
    };
    let link = page.link(key.as_ref().map(|key| key.as_str()));
    if out.json() {
        return Ok(out.value(&json!({ "link": *link, "key_file": page.key_file }))?);
    }
    out.line(&link)?;
    show_code(&page, &link, out);
    Ok(())
}

/// Shows the QR code of a link to people at a terminal.
pub(crate) fn show_code(page: &PageAddress, link: &str, out: &Out) {
    if page.is_only_here() {
        out.note(
            "This link works on this machine alone; for other devices: baton serve --listen ADDRESS --allow-host NAME",
        );
    }
    if !out.json() && io::stderr().is_terminal() {
        out.blocks(&code(link));
    }
}

/// A text as QR code: lines of half blocks, which are the light modules. No lines for a text that is too long.
fn code(text: &str) -> Vec<String> {
    let Ok(code) = QrCode::with_error_correction_level(text, EcLevel::L) else { return Vec::new() };
    let image = code.render().dark_color(Dense1x2::Light).light_color(Dense1x2::Dark).build();
    image.lines().map(str::to_owned).collect()
}

/// The bearer key in a file, if the file exists.
pub(crate) fn read_key(path: &Path) -> Result<Option<Zeroizing<String>>, Failure> {
    let read = files::read_secret(path, "bearer key", MAX_KEY_BYTES).map_err(ClientError::from)?;
    let Some(bytes) = read else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    // A header carries only visible characters, and an empty key would protect nothing.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::wrong(format!(
            "the key file {} holds no key: one line of visible characters; remove it, and a new one is made",
            path.display()
        )));
    }
    Ok(Some(Zeroizing::new(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_address_by_which_others_reach_it() {
        let name = "chat.example".to_owned();
        for (address, has_tls, allowed, certified, local, shared) in [
            ("127.0.0.1:8788", false, None, None, "http://127.0.0.1:8788/", "http://127.0.0.1:8788/"),
            ("[::1]:8788", false, None, None, "http://[::1]:8788/", "http://[::1]:8788/"),
            // A proxy with TLS stands before a loopback address.
            ("127.0.0.1:8788", false, Some(&name), None, "http://127.0.0.1:8788/", "https://chat.example/"),
            ("0.0.0.0:8788", false, Some(&name), None, "http://127.0.0.1:8788/", "http://chat.example:8788/"),
            (
                "0.0.0.0:8788",
                true,
                Some(&name),
                None,
                "https://127.0.0.1:8788/",
                "https://chat.example:8788/",
            ),
            ("0.0.0.0:443", true, Some(&name), Some(&name), "https://chat.example/", "https://chat.example/"),
            (
                "0.0.0.0:8443",
                true,
                None,
                Some(&name),
                "https://chat.example:8443/",
                "https://chat.example:8443/",
            ),
        ] {
            let page = PageAddress::of(address.parse().unwrap(), has_tls, allowed, certified, None);
            assert_eq!((page.local.as_str(), page.shared.as_str()), (local, shared), "{address}");
            assert_eq!(page.is_only_here(), !shared.contains(&name), "{shared}");
        }
    }

    #[test]
    fn an_address_is_kept_for_later_commands_and_a_damaged_one_names_the_fix() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(PageAddress::load(home.path()).unwrap(), None);
        let address = "127.0.0.1:8788".parse().unwrap();
        let page = PageAddress::of(address, false, None, None, Some(Path::new("/home/key")));
        page.save(home.path()).unwrap();
        page.save(home.path()).unwrap();
        assert_eq!(PageAddress::load(home.path()).unwrap().as_ref(), Some(&page));
        assert_eq!(*page.link(Some("sk-a")), "http://127.0.0.1:8788/#key=sk-a");
        assert_eq!(*page.link(None), "http://127.0.0.1:8788/");
        files::replace_private(&home.path().join(PAGE_FILE), b"{}").unwrap();
        assert!(PageAddress::load(home.path()).unwrap_err().is_usage());
    }

    #[test]
    fn a_code_fits_a_terminal_and_its_margin_is_light() {
        let lines = code(&format!("http://127.0.0.1:8788/#key=sk-baton-{}", "0".repeat(64)));
        let width = lines[0].chars().count();
        assert!(width <= 80 && lines.len() <= 23, "{width} columns and {} lines", lines.len());
        assert!(lines[0].chars().all(|c| c == '█') && lines[4].contains(' '), "{}", lines.join("\n"));
        assert!(code(&"x".repeat(8_000)).is_empty());
    }
}
