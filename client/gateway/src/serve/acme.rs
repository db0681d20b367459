//! Certificates from an authority, by ACME (RFC 8555). The proof of a name is a handshake at the endpoint's own port
//! (TLS-ALPN-01, RFC 8737), so that no other port is open.
//!
//! The account, the certificate and its key are files of the home, which only its owner may read.

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use baton_keys::files;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::{
    ServerConfig,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use x509_parser::{extensions::GeneralName, parse_x509_certificate};
use zeroize::Zeroizing;

use crate::serve::tls::{PROOF_PROTOCOL, TlsIdentity, config_of};

/// Time for one certificate, from the order to the chain.
const ORDER_TIME: Duration = Duration::from_secs(300);
/// Pause after a failed order; twice as long after each further one. Authorities count failures by the hour.
const FIRST_PAUSE: Duration = Duration::from_secs(600);
const LONGEST_PAUSE: Duration = Duration::from_secs(12 * 3600);
/// Orders in a row whose requests an authority refuses for their nonces; then the order has failed.
const NONCE_ATTEMPTS: usize = 10;
/// Pause after such an order. The refusal says nothing of the names, so authorities do not count it.
const NONCE_PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two looks at the certificate.
const LOOK_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Largest file of an account.
const MAX_ACCOUNT_BYTES: u64 = 64 * 1024;

/// An authority, and the names to prove to it.
#[derive(Debug, Clone)]
pub struct AcmeSettings {
    /// The names of the certificate.
    pub domains: Vec<String>,
    /// URL of the authority's directory.
    pub directory: String,
    /// A PEM file with the certificate of the authority's own server; `None` for one that this system trusts.
    pub root: Option<PathBuf>,
    /// The home; its folder `acme` has the account, the certificate and its key.
    pub home: PathBuf,
}

/// Why there is no new certificate. Only a refused nonce is told from other causes: see [`is_nonce_refused`].
type AcmeError = Box<dyn std::error::Error + Send + Sync>;

impl AcmeSettings {
    /// The folder of this authority: an account belongs to one.
    fn folder(&self) -> PathBuf {
        let name: String = blake3::hash(self.directory.as_bytes()).to_hex().chars().take(16).collect();
        self.home.join("acme").join(name)
    }

    fn certificate(&self) -> PathBuf {
        self.folder().join("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder().join("key.pem")
    }

    /// The identity of the kept certificate, or of the one to come. Blocking.
    pub(crate) fn identity(&self) -> TlsIdentity {
        TlsIdentity::expect(&self.certificate(), &self.key())
    }

    /// Time until the certificate must be renewed: after two thirds of its term. None without a certificate of these
    /// names.
    fn time_left(&self) -> Option<Duration> {
        let pem = std::fs::read(self.certificate()).ok()?;
        renewal_time(&pem, &self.domains)?.duration_since(SystemTime::now()).ok()
    }
}

/// When the first certificate of a chain should be renewed. None if it is not for all of these names.
fn renewal_time(pem: &[u8], domains: &[String]) -> Option<SystemTime> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = parse_x509_certificate(&der).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    let has = |domain: &String| {
        names
            .value
            .general_names
            .iter()
            .any(|name| matches!(name, GeneralName::DNSName(name) if name == domain))
    };
    if !domains.iter().all(has) {
        return None;
    }
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let due = from.checked_add(until.checked_sub(from)? / 3 * 2)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(due).ok()?))
}

/// Keeps a certificate: gets the first one, and a new one in time. It does not end.
pub(crate) async fn keep(settings: AcmeSettings, identity: TlsIdentity) {
    let mut pause = FIRST_PAUSE;
    loop {
        // A process that ended between the two writes left a key that does not belong to the certificate.
        if let Some(left) = settings.time_left().filter(|_| identity.config().is_some()) {
            sleep(left.min(LOOK_INTERVAL)).await;
            continue;
        }
        let ordered = timeout(ORDER_TIME, despite_nonces(NONCE_PAUSE, || order(&settings, &identity))).await;
        identity.proofs().clear();
        let too_late = |_| Err(format!("the authority took longer than {} s", ORDER_TIME.as_secs()).into());
        match ordered.unwrap_or_else(too_late) {
            Ok(()) => {
                identity.refresh();
                tracing::info!(names = settings.domains.join(", "), "the authority gave a certificate");
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                let next_s = pause.as_secs();
                tracing::warn!(%error, next_s, "there is no new certificate");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Whether an authority refused a request for its nonce (RFC 8555 section 6.5). The library sends the request again
/// twice; authorities whose servers do not share their nonces refuse it more often.
fn is_nonce_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let kind = match error.downcast_ref() {
        Some(instant_acme::Error::Api(problem)) => problem.r#type.as_deref(),
        _ => None,
    };
    kind == Some("urn:ietf:params:acme:error:badNonce")
}

/// Orders until no request was refused for its nonce, [`NONCE_ATTEMPTS`] times at most.
async fn despite_nonces<F>(pause: Duration, mut order: impl FnMut() -> F) -> Result<(), AcmeError>
where
    F: Future<Output = Result<(), AcmeError>>,
{
    for _ in 1..NONCE_ATTEMPTS {
        match order().await {
            Err(error) if is_nonce_refused(&*error) => {
                tracing::debug!(%error, "the order begins again");
                sleep(pause).await;
            }
            ordered => return ordered,
        }
    }
    order().await
}

/// Gets a certificate, and writes it and its key.
async fn order(settings: &AcmeSettings, identity: &TlsIdentity) -> Result<(), AcmeError> {
    let file = |error: io::Error| format!("a file of the account or certificate: {error}");
    files::create_private_folder(&settings.folder()).map_err(file)?;
    let account = account(settings).await?;
    let names: Vec<Identifier> = settings.domains.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await?;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let name = authorization.identifier().to_string();
        let mut challenge = authorization
            .challenge(ChallengeType::TlsAlpn01)
            .ok_or_else(|| format!("the authority offers no proof by TLS-ALPN-01 for {name}"))?;
        let proof = proof(&name, challenge.key_authorization().digest().as_ref())?;
        identity.proofs().insert(name.to_ascii_lowercase(), proof);
        challenge.set_ready().await?;
    }
    let problem = match order.poll_ready(&RetryPolicy::default()).await {
        Ok(OrderStatus::Ready) => None,
        Ok(_) => Some(String::new()),
        Err(error @ instant_acme::Error::Api(_)) if !is_nonce_refused(&error) => Some(error.to_string()),
        Err(error) => return Err(error.into()),
    };
    if let Some(problem) = problem {
        let refusals = refusals(&mut order).await?;
        let cause = if refusals.is_empty() { problem } else { refusals };
        let next = "it must reach this endpoint at port 443 of each name";
        return Err(format!("the authority refused the proof: {cause}; {next}").into());
    }
    let key = Zeroizing::new(order.finalize().await?);
    let chain = order.poll_certificate(&RetryPolicy::default()).await?;
    // Between the two, the former pair is used: the new key does not belong to the former certificate.
    files::replace_private(&settings.key(), key.as_bytes()).map_err(file)?;
    Ok(files::replace_private(&settings.certificate(), chain.as_bytes()).map_err(file)?)
}

/// Why the authority refused the proofs of an order.
async fn refusals(order: &mut Order) -> Result<String, AcmeError> {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let state = authorization.refresh().await?;
        let errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(errors.map(ToString::to_string));
    }
    Ok(reasons.join("; "))
}

/// The account at the authority: the kept one, or a new one.
async fn account(settings: &AcmeSettings) -> Result<Account, AcmeError> {
    // The library takes the provider of the process. The tree has two, so none is the process's by itself; a second
    // installation changes nothing.
    let _ = default_provider().install_default();
    let builder = || match &settings.root {
        Some(root) => Account::builder_with_root(root),
        None => Account::builder(),
    };
    let path = settings.folder().join("account.json");
    if let Some(kept) = files::read_secret(&path, "account at the authority", MAX_ACCOUNT_BYTES)? {
        let unreadable = |error| format!("{} cannot be read: {error}", path.display());
        let credentials: AccountCredentials = serde_json::from_slice(&kept).map_err(unreadable)?;
        return Ok(builder()?.from_credentials(credentials).await?);
    }
    let new = NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
    let (account, credentials) = builder()?.create(&new, settings.directory.clone(), None).await?;
    let text = Zeroizing::new(serde_json::to_string(&credentials)?);
    files::replace_private(&path, text.as_bytes())?;
    Ok(account)
}

/// The answer to an authority that asks for the proof of a name: a certificate with the hash of the proof.
fn proof(name: &str, digest: &[u8]) -> Result<Arc<ServerConfig>, AcmeError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let key = default_provider().key_provider.load_private_key(key.into())?;
    // The library refuses the certificate as one of a server: the hash is in a critical extension.
    Ok(config_of(CertifiedKey::new(vec![certificate.der().clone()], key), PROOF_PROTOCOL)?)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use serde_json::json;

    use super::*;

    /// The outcome of orders of which the first `refused` end with a problem of this type, and their number.
    async fn ordered(kind: &str, refused: usize) -> (Result<(), AcmeError>, usize) {
        let mut orders = 0;
        let outcome = despite_nonces(Duration::ZERO, || {
            orders += 1;
            if orders > refused {
                return ready(Ok(()));
            }
            let kind = format!("urn:ietf:params:acme:error:{kind}");
            let problem = serde_json::from_value(json!({ "type": kind, "status": 400 })).unwrap();
            ready(Err(instant_acme::Error::Api(problem).into()))
        });
        let outcome = outcome.await;
        (outcome, orders)
    }

    #[tokio::test]
    async fn an_order_begins_again_only_after_a_refused_nonce_and_not_for_ever() {
        assert!(matches!(ordered("badNonce", 3).await, (Ok(()), 4)));
        assert!(matches!(ordered("badNonce", 100).await, (Err(_), NONCE_ATTEMPTS)));
        assert!(matches!(ordered("rateLimited", 3).await, (Err(_), 1)));
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_term_and_for_other_names() {
        let mut params =
            CertificateParams::new(vec!["chat.example".to_owned(), "www.chat.example".to_owned()]).unwrap();
        let begin = SystemTime::now() - Duration::from_secs(1000);
        (params.not_before, params.not_after) = (begin.into(), (begin + Duration::from_secs(9000)).into());
        let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        let due = |names: &[&str]| {
            let names: Vec<String> = names.iter().copied().map(str::to_owned).collect();
            renewal_time(pem.as_bytes(), &names)
        };
        let left = due(&["chat.example"]).unwrap().duration_since(begin).unwrap();
        assert!(left.abs_diff(Duration::from_secs(6000)) < Duration::from_secs(2), "{left:?}");
        assert_eq!(due(&["other.example"]), None);
        assert_eq!(due(&["chat.example", "other.example"]), None);
        assert_eq!(renewal_time(b"no certificate", &["chat.example".to_owned()]), None);
    }
}
