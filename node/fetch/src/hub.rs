//! GGUF files of a model hub, by name: `hf:OWNER/REPO/FILE.gguf[@REVISION]`.
//!
//! The hub says which commit a revision is, and size and SHA-256 of the file; the rest is the fetcher that wheels come by, so
//! that a download goes on where an earlier one ended, is bounded by the stated size, and counts only with the stated hash.
//! A file without a stated hash is not fetched.

use std::{fmt, fs, panic::resume_unwind, path::Path, str::FromStr, thread, time::Duration};

use reqwest::{Client, Response, StatusCode, Url, header, redirect};

use super::{
    MAX_MODEL_BYTES, ModelError, PullProgress, WeightsHash, hash_file, is_plain_name,
    own::{self, Added, Check, Origin},
    pull::{
        Patience, WorkFolder, install, io_error,
        resume::{self, FetchError, Remote},
    },
};

/// What its names begin with.
const SCHEME: &str = "hf:";
/// Time for the hub to say what a file is.
const LOCATE_LIMIT: Duration = Duration::from_secs(60);
/// A renamed repository is redirected to once; more is a loop.
const MAX_REDIRECTS: usize = 5;
/// Folders that a file may lie in; hubs have one or two.
const MAX_FOLDERS: usize = 8;

/// Commit that the revision is now.
const COMMIT: &str = "x-repo-commit";
/// SHA-256 of a file that is stored apart from the repository, as all large ones are.
const LINKED_HASH: &str = "x-linked-etag";
/// Its size in bytes.
const LINKED_SIZE: &str = "x-linked-size";

/// A file of a hub.
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

/// What the hub says of a file.
#[derive(Debug, PartialEq, Eq)]
struct Located {
    commit: String,
    sha256: WeightsHash,
    size: u64,
}

impl HubFile {
    /// Whether a name is one of a hub's file, right or wrong.
    #[must_use]
    pub fn is_named_by(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The name that it has in the model folder unless it is given another.
    #[must_use]
    pub fn local_name(&self) -> Option<String> {
        own::name_of(Path::new(&self.file))
    }

    /// Makes sure that the file is in `directory` as `name` and right, fetching it from the hub at `endpoint` if need be.
    /// Blocks for as long as that takes.
    ///
    /// # Errors
    /// [`ModelError::Hub`] where the hub does not have it, gives something else than it stated, or states no hash;
    /// [`ModelError::Interrupted`] where another call may go on; [`ModelError::NotAModel`] as `check` says;
    /// [`ModelError::Name`]; [`ModelError::Io`].
    pub fn pull(
        &self,
        endpoint: &str,
        name: &str,
        directory: &Path,
        check: Check<'_>,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<Added, ModelError> {
        self.pull_with(endpoint, name, directory, check, Patience::default(), progress)
    }

    fn pull_with(
        &self,
        endpoint: &str,
        name: &str,
        directory: &Path,
        check: Check<'_>,
        patience: Patience,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<Added, ModelError> {
        let target = own::file_of(name, directory)?;
        let located = self.locate(endpoint)?;
        fs::create_dir_all(directory).map_err(io_error(directory))?;
        let work = WorkFolder::open(directory)?;
        if target.exists() {
            let mut report = |bytes| progress(PullProgress::Verifying { bytes, total: located.size });
            let sha256 = hash_file(&target, &mut report).map_err(io_error(&target))?;
            if sha256 == located.sha256 {
                return Ok(Added { path: target, sha256, linked: false });
            }
            return Err(own::taken(name));
        }
        let fetched = own::fetched_file(name, directory);
        self.fetch(endpoint, &located, &fetched, patience, progress)?;
        let bytes = fs::metadata(&fetched).map_err(io_error(&fetched))?.len();
        if bytes != located.size {
            fs::remove_file(&fetched).map_err(io_error(&fetched))?;
            let reason = format!("it has {bytes} bytes instead of {}", located.size);
            return Err(self.refused(endpoint, reason));
        }
        if let Err(error) = own::checked(&fetched, check) {
            fs::remove_file(&fetched).map_err(io_error(&fetched))?;
            return Err(error);
        }
        let pinned = Self { revision: located.commit, ..self.clone() };
        let origin =
            Origin { source: pinned.to_string(), sha256: located.sha256.to_string(), size: located.size };
        own::note(&target, &origin)?;
        let file = fs::File::open(&fetched).map_err(io_error(&fetched))?;
        install(file, &fetched, &target, directory)?;
        drop(work);
        Ok(Added { path: target, sha256: located.sha256, linked: false })
    }

    /// Fetches the file as the hub described it.
    fn fetch(
        &self,
        endpoint: &str,
        located: &Located,
        target: &Path,
        patience: Patience,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<(), ModelError> {
        let remote = Remote { url: self.url(endpoint, &located.commit)?, sha256: located.sha256 };
        let mut report = |bytes, total: Option<u64>| {
            let total = Some(total.unwrap_or(located.size));
            progress(PullProgress::Downloading { part: 0, parts: 1, bytes, total });
        };
        let fetched = resume::fetch(&remote, target, located.size, patience, &mut report);
        match fetched {
            Ok(()) => Ok(()),
            Err(FetchError::Refused { reason }) => {
                // Whatever came, going on with it would not help.
                let _ = fs::remove_file(resume::part_file(target));
                Err(self.refused(endpoint, reason))
            }
            Err(FetchError::Interrupted { bytes, reason }) => {
                Err(ModelError::Interrupted { package: self.to_string(), bytes, reason })
            }
            Err(FetchError::Io { path, source }) => Err(ModelError::Io { path, source }),
        }
    }

    fn refused(&self, endpoint: &str, reason: String) -> ModelError {
        ModelError::Hub { file: self.to_string(), hub: endpoint.to_owned(), reason }
    }

    /// Where the hub has the file at a revision.
    fn url(&self, endpoint: &str, revision: &str) -> Result<Url, ModelError> {
        let unusable = || self.refused(endpoint, "this is no HTTP URL of a hub".to_owned());
        let mut url = Url::parse(endpoint).map_err(|_| unusable())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(unusable());
        }
        {
            let mut path = url.path_segments_mut().map_err(|()| unusable())?;
            // A revision with a slash is one segment, in which the slash is escaped.
            path.pop_if_empty().extend([&self.owner, &self.repo, "resolve", revision]);
            path.extend(self.file.split('/'));
        }
        Ok(url)
    }

    /// Asks the hub what the file is.
    fn locate(&self, endpoint: &str) -> Result<Located, ModelError> {
        let url = self.url(endpoint, &self.revision)?;
        // A thread of its own, as for the download: the caller's may belong to a runtime.
        let asked = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| error.to_string())?;
                runtime.block_on(async {
                    let asked = tokio::time::timeout(LOCATE_LIMIT, ask(url));
                    asked.await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
                })
            });
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        asked.map_err(|reason| self.refused(endpoint, reason))
    }
}

/// Asks for a file's head. Redirections within the hub are followed; where the file's bytes are does not matter yet.
async fn ask(mut url: Url) -> Result<Located, String> {
    let client = Client::builder().redirect(redirect::Policy::none()).build();
    let client = client.map_err(|error| resume::describe(&error))?;
    for _ in 0..=MAX_REDIRECTS {
        let request = client.head(url.clone()).header(header::ACCEPT_ENCODING, "identity");
        let response = request.send().await.map_err(|error| resume::describe(&error))?;
        if let Some(located) = read_head(&response)? {
            return Ok(located);
        }
        let place = response.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
        let next = place.and_then(|place| url.join(place).ok());
        match next.filter(|next| next.origin() == url.origin()) {
            Some(next) if response.status().is_redirection() => url = next,
            _ => return Err("it states no SHA-256 of the file; a small file or another hub".to_owned()),
        }
    }
    Err("it redirects in circles".to_owned())
}

/// What a hub's answer says of a file; `None` where it says nothing of it.
fn read_head(response: &Response) -> Result<Option<Located>, String> {
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
    Ok(Some(Located { commit, sha256, size }))
}

#[cfg(test)]
mod tests;
