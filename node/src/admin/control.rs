//! The routes of the admin port that change something: `baton-node drain` and `baton-node keys rotate` call them.
//!
//! Being on this machine is not enough for that: other users are, and so is every page in a browser here. A request must
//! carry the token of a file that only the node's user can read, and must not come from a page of another site.

use std::{path::Path, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use baton_keys::{
    files::{self, KeyFileError},
    secret::random_bytes,
};
use zeroize::Zeroizing;

use super::{Source, Status};

/// The token's file in the data directory.
pub(crate) const TOKEN_FILE: &str = "admin.token";
/// Hexadecimal digits of a token: 32 random bytes.
const TOKEN_DIGITS: usize = 64;
/// What it calls itself in errors.
const TOKEN_KIND: &str = "the admin port";
/// Bytes of the token's file: 64 hex digits and the end of the line.
const MAX_TOKEN_BYTES: u64 = 128;
/// Path of the request for no new turns.
pub(crate) const DRAIN: &str = "/control/drain";
/// Path of the request for turns again.
pub(crate) const CANCEL_DRAIN: &str = "/control/cancel-drain";
/// Path of the request for new exchange keys.
pub(crate) const ROTATE_EXCHANGE: &str = "/control/rotate-exchange-keys";

/// What can be changed.
pub(crate) trait Control: Send + Sync {
    /// Takes no new turns from now on, or takes them again. Answers at once.
    fn drain(&self, on: bool);
    /// Makes new exchange keys and erases the old ones. Blocking.
    ///
    /// # Errors
    /// In words, for the operator.
    fn rotate_exchange(&self) -> Result<(), String>;
}

/// The control of a node, and the token that it takes.
#[derive(Clone)]
pub(crate) struct ControlAccess {
    control: Arc<dyn Control>,
    /// Compared instead of the token: equality of hashes takes the same time for all.
    token: blake3::Hash,
}

impl ControlAccess {
    /// Access to `control` for the holder of a token.
    #[must_use]
    pub(crate) fn new(control: Arc<dyn Control>, token: &str) -> Self {
        Self { control, token: blake3::hash(token.as_bytes()) }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = bearer.and_then(|value| value.split_once(' '));
        let token = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")).map(|(_, token)| token);
        token.is_some_and(|token| blake3::hash(token.trim().as_bytes()) == self.token)
    }
}

/// The token in a data directory, made where there is none.
///
/// # Errors
/// [`KeyFileError`]: it cannot be read or written, or others may read it.
pub(crate) fn open_token(data_dir: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    let path = data_dir.join(TOKEN_FILE);
    if let Some(token) = read_token(data_dir)? {
        return Ok(token);
    }
    let token = Zeroizing::new(hex::encode(Zeroizing::new(random_bytes::<32>())));
    let text = Zeroizing::new(format!("{}\n", *token));
    let written = files::write_private(&path, text.as_bytes());
    written.map_err(|source| KeyFileError::Io { action: "create", path, source })?;
    Ok(token)
}

/// The token in a data directory; `None` where there is none.
///
/// # Errors
/// [`KeyFileError`]: it cannot be read, or others may read it.
pub(crate) fn read_token(data_dir: &Path) -> Result<Option<Zeroizing<String>>, KeyFileError> {
    let path = data_dir.join(TOKEN_FILE);
    let Some(bytes) = files::read_secret(&path, TOKEN_KIND, MAX_TOKEN_BYTES)? else { return Ok(None) };
    let format = || KeyFileError::Format { path: path.clone(), kind: TOKEN_KIND.to_owned() };
    if bytes.is_empty() {
        return Err(KeyFileError::Empty { path });
    }
    let token = std::str::from_utf8(&bytes).map_err(|_| format())?.trim();
    // The beginning of a token that a full disk cut would be easier to guess.
    let whole = token.len() == TOKEN_DIGITS && token.bytes().all(|digit| digit.is_ascii_hexdigit());
    if whole { Ok(Some(Zeroizing::new(token.to_owned()))) } else { Err(format()) }
}

#[derive(Clone)]
struct ControlState {
    access: ControlAccess,
    source: Source,
}

/// The routes.
pub(super) fn routes(access: ControlAccess, source: Source) -> Router {
    let state = ControlState { access, source };
    Router::new()
        .route(DRAIN, post(|State(state): State<ControlState>| drain(state, true)))
        .route(CANCEL_DRAIN, post(|State(state): State<ControlState>| drain(state, false)))
        .route(ROTATE_EXCHANGE, post(rotate_exchange))
        .route_layer(middleware::from_fn_with_state(state.clone(), guard))
        .with_state(state)
}

async fn drain(state: ControlState, on: bool) -> Json<Status> {
    state.access.control.drain(on);
    Json(state.source.status())
}

async fn rotate_exchange(State(state): State<ControlState>) -> Response {
    let control = state.access.control.clone();
    match tokio::task::spawn_blocking(move || control.rotate_exchange()).await {
        Ok(Ok(())) => Json(state.source.status()).into_response(),
        Ok(Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn guard(State(state): State<ControlState>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if is_from_another_site(headers) {
        return (StatusCode::FORBIDDEN, "pages of other sites may not ask for this\n").into_response();
    }
    if !state.access.admits(headers) {
        let said = format!("send the token of {TOKEN_FILE} in the data directory as a bearer token\n");
        return (StatusCode::UNAUTHORIZED, said).into_response();
    }
    next.run(request).await
}

/// Whether a browser sent it for a page that this port did not serve. Browsers say so with every POST.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"));
    let own = format!("http://{}", text("host").unwrap_or_default());
    text("origin").is_some_and(|origin| origin != own)
        || text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::PermissionsExt as _,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::{
        super::{serve, tests::FixedStatus},
        *,
    };

    #[derive(Default)]
    struct Counting {
        drained: AtomicUsize,
        rotated: AtomicUsize,
    }

    impl Control for Counting {
        fn drain(&self, on: bool) {
            self.drained.fetch_add(if on { 1 } else { 100 }, Ordering::SeqCst);
        }

        fn rotate_exchange(&self) -> Result<(), String> {
            match self.rotated.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err("the disk is full".to_owned()),
            }
        }
    }

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[tokio::test]
    async fn changes_something_only_for_the_token_and_never_for_a_page_of_another_site() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (node, stop) = (Arc::new(Counting::default()), CancellationToken::new());
        let access = ControlAccess::new(node.clone(), TOKEN);
        let task =
            tokio::spawn(serve(listener, Arc::new(FixedStatus::default()), Some(access), stop.clone()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let post = |path: &str, headers: &[(&str, &str)]| {
            let mut request = client.post(format!("http://{address}{path}"));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            async { request.send().await.unwrap() }
        };
        let bearer = format!("Bearer {TOKEN}");
        let own = format!("http://{address}");
        let good = ("authorization", bearer.as_str());
        for (headers, status) in [
            (&[][..], 401),
            (&[("authorization", "Bearer 0123")], 401),
            (&[("authorization", TOKEN)], 401),
            (&[good, ("origin", "https://evil.example")], 403),
            (&[good, ("origin", "null")], 403),
            (&[good, ("origin", "http://127.0.0.1:1")], 403),
            (&[good, ("sec-fetch-site", "cross-site")], 403),
            (&[good, ("sec-fetch-site", "same-site")], 403),
            (&[good, ("host", "rebound.example")], 403),
        ] {
            for path in [DRAIN, CANCEL_DRAIN, ROTATE_EXCHANGE] {
                assert_eq!(post(path, headers).await.status(), status, "{path} {headers:?}");
            }
        }
        let get = client.get(format!("http://{address}{DRAIN}")).header(good.0, good.1).send().await.unwrap();
        assert_eq!(get.status(), 405);
        assert_eq!((node.drained.load(Ordering::SeqCst), node.rotated.load(Ordering::SeqCst)), (0, 0));

        assert_eq!(post(DRAIN, &[good, ("origin", &own)]).await.status(), 200);
        let answer = post(CANCEL_DRAIN, &[good, ("sec-fetch-site", "same-origin")]).await;
        assert!(answer.json::<Status>().await.unwrap().healthy);
        assert_eq!(node.drained.load(Ordering::SeqCst), 101);
        let small = format!("bearer {TOKEN}");
        assert_eq!(post(ROTATE_EXCHANGE, &[("authorization", &small)]).await.status(), 200);
        let refused = post(ROTATE_EXCHANGE, &[good]).await;
        assert_eq!(
            (refused.status().as_u16(), refused.text().await.unwrap().as_str()),
            (503, "the disk is full")
        );
        stop.cancel();
        task.await.unwrap().unwrap();
    }

    #[test]
    fn the_token_is_private_kept_and_never_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_token(folder.path()).unwrap().is_none());
        let token = open_token(folder.path()).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(*open_token(folder.path()).unwrap(), *token);
        let path = folder.path().join(TOKEN_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "").unwrap();
        assert!(matches!(open_token(folder.path()), Err(KeyFileError::Empty { .. })));
        for damaged in ["\n", &token[..63], &token[..32], &format!("{}\n", &token[1..]), &"x".repeat(64)] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(open_token(folder.path()), Err(KeyFileError::Format { .. })), "{damaged:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(open_token(folder.path()), Err(KeyFileError::Permissions { .. })));
    }
}
