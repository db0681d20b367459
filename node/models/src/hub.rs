//! GGUF files of a model hub, by name: `hf:OWNER/REPO/FILE.gguf[@REVISION]`.
//!
//! The hub states the commit of a revision, and the size and SHA-256 of the file. The fetcher of wheels does
//! the rest: it resumes downloads, stops at the stated size, and accepts only the stated hash. A file without
//! a stated hash is not fetched.

use std::{fmt, fs, path::Path, str::FromStr, time::Duration};

use baton_walrus_client::http_client;
use reqwest::{Response, StatusCode, Url, header, redirect};

use super::{
    MAX_MODEL_BYTES, ModelError, PullProgress, WeightsHash, hash_of, is_plain_name,
    own::{self, AddedFile, Check, Origin},
    pull::{
        RetryPolicy, WorkFolder, install, io_error,
        resume::{self, RemoteFile},
    },
};

/// Prefix of hub names.
const SCHEME: &str = "hf:";
/// Time for the hub to describe a file.
const LOCATE_LIMIT: Duration = Duration::from_secs(60);
/// A renamed repository redirects once; many redirects are a loop.
const MAX_REDIRECTS: usize = 5;
/// Folders in a file's path; hubs have one or two.
const MAX_FOLDERS: usize = 8;

/// The commit of the revision.
const COMMIT: &str = "x-repo-commit";
/// SHA-256 of a file that is stored outside the repository, as all large ones are.
const LINKED_HASH: &str = "x-linked-etag";
/// Its size in bytes.
const LINKED_SIZE: &str = "x-linked-size";

/// A file of a model hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    owner: String,
    repo: String,
    file: String,
    revision: String,
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, repo, file, revision } = self;
        write!(f, "{SCHEME}{owner}/{repo}/{file}@{revision}")
    }
}

impl FromStr for HubFile {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let refuse = || {
            let name = text.chars().take(200).filter(|c| !c.is_control()).collect();
            let reason =
                "a file of the hub is named hf:OWNER/REPO/FILE.gguf or hf:OWNER/REPO/FILE.gguf@REVISION";
            ModelError::Name { name, reason }
        };
        let rest = text.strip_prefix(SCHEME).ok_or_else(refuse)?;
        let (path, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let [owner, repo, file @ ..] = &path.split('/').collect::<Vec<_>>()[..] else {
            return Err(refuse());
        };
        let plain = [owner, repo].into_iter().chain(file).all(|part| is_plain_name(part));
        let model = file.last().is_some_and(|name| name.to_ascii_lowercase().ends_with(".gguf"));
        let revision_is_plain = revision.split('/').all(is_plain_name) && revision.len() <= 256;
        if !plain || !model || !revision_is_plain || file.len() > MAX_FOLDERS {
            return Err(refuse());
        }
        Ok(Self {
            owner: (*owner).to_owned(),
            repo: (*repo).to_owned(),
            file: file.join("/"),
            revision: revision.to_owned(),
        })
    }
}

/// The hub's description of a file.
#[derive(Debug, PartialEq, Eq)]
struct FileDescription {
    commit: String,
    sha256: WeightsHash,
    size: u64,
}

impl HubFile {
    /// Whether a name has the hub prefix, valid or not.
    #[must_use]
    pub fn is_named_by(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Its default name in the model folder.
    #[must_use]
    pub fn local_name(&self) -> Option<String> {
        own::name_of(Path::new(&self.file))
    }

    /// Ensures that the correct file is in `directory` as `name`, fetching it from the hub at `endpoint` if
    /// necessary. Blocks until done.
    ///
    /// # Errors
    /// - [`ModelError::Unusable`] if the hub lacks the file, serves another than it stated, states no hash, or `check`
    ///   refuses the file; or if another call may resume.
    /// - [`ModelError::Name`]; [`ModelError::Io`].
    pub fn pull(
        &self,
        endpoint: &str,
        name: &str,
        directory: &Path,
        check: Check<'_>,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<AddedFile, ModelError> {
        self.pull_with(endpoint, name, directory, check, RetryPolicy::default(), progress)
    }

    fn pull_with(
        &self,
        endpoint: &str,
        name: &str,
        directory: &Path,
        check: Check<'_>,
        retries: RetryPolicy,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<AddedFile, ModelError> {
        let target = own::file_of(name, directory)?;
        let located = self.locate(endpoint)?;
        fs::create_dir_all(directory).map_err(io_error(directory))?;
        let work = WorkFolder::open(directory)?;
        if target.exists() {
            let mut report = |bytes| progress(PullProgress::Verifying { bytes, total: located.size });
            let sha256 = hash_of(&target, &mut report).map_err(io_error(&target))?;
            if sha256 == located.sha256 {
                return Ok(AddedFile { path: target, sha256, linked: false });
            }
            return Err(own::name_conflict(name));
        }
        let fetched = own::fetched_file(name, directory);
        self.fetch(endpoint, &located, &fetched, retries, progress)?;
        let bytes = fs::metadata(&fetched).map_err(io_error(&fetched))?.len();
        if bytes != located.size {
            fs::remove_file(&fetched).map_err(io_error(&fetched))?;
            let reason = format!("it has {bytes} bytes instead of {}", located.size);
            return Err(self.refused(endpoint, &reason));
        }
        if let Err(error) = own::check_model(&fetched, check) {
            fs::remove_file(&fetched).map_err(io_error(&fetched))?;
            return Err(error);
        }
        let pinned = Self { revision: located.commit, ..self.clone() };
        let origin =
            Origin { source: pinned.to_string(), sha256: located.sha256.to_string(), size: located.size };
        own::write_origin(&target, &origin)?;
        let file = fs::File::open(&fetched).map_err(io_error(&fetched))?;
        install(file, &fetched, &target, directory)?;
        drop(work);
        Ok(AddedFile { path: target, sha256: located.sha256, linked: false })
    }

    /// Fetches the file as the hub described it.
    fn fetch(
        &self,
        endpoint: &str,
        located: &FileDescription,
        target: &Path,
        retries: RetryPolicy,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<(), ModelError> {
        let remote = RemoteFile {
            url: self.url(endpoint, &located.commit)?,
            sha256: located.sha256,
            roots: Vec::new(),
        };
        let mut report = |bytes, total: Option<u64>| {
            let total = Some(total.unwrap_or(located.size));
            progress(PullProgress::Downloading { part: 0, parts: 1, bytes, total });
        };
        let fetched = resume::fetch(&remote, target, located.size, retries, &mut report);
        fetched.map_err(|error| {
            error.of_model(&self.to_string(), target, |reason| self.refused(endpoint, &reason))
        })
    }

    fn refused(&self, endpoint: &str, reason: &str) -> ModelError {
        ModelError::Unusable(format!("cannot get {self} from {endpoint}: {reason}"))
    }

    /// URL of the file at a revision.
    fn url(&self, endpoint: &str, revision: &str) -> Result<Url, ModelError> {
        let unusable = || self.refused(endpoint, "this is no HTTP URL of a hub");
        let mut url = Url::parse(endpoint).map_err(|_| unusable())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(unusable());
        }
        {
            let mut path = url.path_segments_mut().map_err(|()| unusable())?;
            // A revision with a slash is one segment; the slash is escaped.
            path.pop_if_empty().extend([&self.owner, &self.repo, "resolve", revision]);
            path.extend(self.file.split('/'));
        }
        Ok(url)
    }

    /// Asks the hub to describe the file.
    fn locate(&self, endpoint: &str) -> Result<FileDescription, ModelError> {
        let url = self.url(endpoint, &self.revision)?;
        let description = resume::block_on(async {
            let request = tokio::time::timeout(LOCATE_LIMIT, request_description(url));
            request.await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
        });
        let description = description.unwrap_or_else(|error| Err(error.to_string()));
        description.map_err(|reason| self.refused(endpoint, &reason))
    }
}

/// Requests a file's head. It follows redirects within the hub only; the location of the bytes does not
/// matter yet.
async fn request_description(mut url: Url) -> Result<FileDescription, String> {
    let client = http_client::builder(&url).redirect(redirect::Policy::none()).build();
    let client = client.map_err(|error| http_client::describe(&error))?;
    for _ in 0..=MAX_REDIRECTS {
        let request = client.head(url.clone()).header(header::ACCEPT_ENCODING, "identity");
        let response = request.send().await.map_err(|error| http_client::describe(&error))?;
        if let Some(located) = read_head(&response)? {
            return Ok(located);
        }
        let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        let next = location.and_then(|location| url.join(location).ok());
        match next.filter(|next| next.origin() == url.origin()) {
            Some(next) if response.status().is_redirection() => url = next,
            _ => return Err("it states no SHA-256 of the file; a small file or another hub".to_owned()),
        }
    }
    Err("it redirects in circles".to_owned())
}

/// The description in a hub's response; `None` if it has none.
fn read_head(response: &Response) -> Result<Option<FileDescription>, String> {
    match response.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err("the repository is private, gated, or not there; fetch the file by hand, then `models add` it"
                .to_owned());
        }
        StatusCode::NOT_FOUND => return Err("there is no such repository, revision or file".to_owned()),
        status if status.is_success() || status.is_redirection() => {}
        status => return Err(format!("it said {status}")),
    }
    let text = |name: &str| response.headers().get(name)?.to_str().ok();
    let Some(hash) = text(LINKED_HASH) else { return Ok(None) };
    let hash = hash.trim_start_matches("W/").trim_matches('"');
    let sha256 = WeightsHash::parse_hex(hash).map_err(|_| "it states no SHA-256 of the file".to_owned())?;
    let size = text(LINKED_SIZE).and_then(|size| size.parse().ok()).unwrap_or(0);
    if size == 0 || size > MAX_MODEL_BYTES {
        return Err(format!("it states a size of {size} bytes; at most {MAX_MODEL_BYTES} are fetched"));
    }
    let commit = text(COMMIT).filter(|commit| is_plain_name(commit));
    let commit = commit.ok_or_else(|| "it does not say which commit the revision is".to_owned())?.to_owned();
    Ok(Some(FileDescription { commit, sha256, size }))
}

#[cfg(test)]
mod tests;
