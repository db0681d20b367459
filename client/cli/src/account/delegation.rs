//! Delegations: an owner's signed permission for another key at a relayer. Signed here, listed and revoked
//! there, and used by the delegate's key.
//!
//! The signature covers a text; the relayer's `delegation.rs` specifies it. A delegation is no secret: it is
//! useless without the delegate's key.

use baton_client::AccountKey;
use baton_keys::{contexts::DELEGATION, ids::PublicKey, secret::random_bytes, token::AgentToken};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    args::{DelegateArguments, SCOPES},
    clock::{now_ms, relayer_time},
    failure::Failure,
    out::{Out, clean},
    relayer::{authority::Delegation, client::RelayerClient},
    settings::Settings,
};

/// Longest name of a project that relayers accept.
const MAX_PROJECT_BYTES: usize = 256;
const DAY_S: u64 = 86_400;

/// Lets a key or an agent act for the account; without both, lists the delegations.
pub(crate) async fn run(
    settings: &Settings,
    key: AccountKey,
    arguments: &DelegateArguments,
    out: &Out,
) -> Result<(), Failure> {
    match &arguments.key {
        Some(delegate) => delegate_to(settings, key, delegate, arguments, out).await,
        None if arguments.token => make_token(settings, key, arguments, out).await,
        None => list(settings, key, out).await,
    }
}

/// Signs a delegation to a key, and prints or registers it.
async fn delegate_to(
    settings: &Settings,
    key: AccountKey,
    delegate: &str,
    arguments: &DelegateArguments,
    out: &Out,
) -> Result<(), Failure> {
    let delegation = sign(&key, delegate, arguments, now_ms() / 1_000)?;
    let value = serde_json::to_value(&delegation).unwrap_or_default();
    if !arguments.register {
        out.note("Its key uses it with --delegation FILE.");
        return Ok(out.value(&value)?);
    }
    RelayerClient::of_owner(settings, key)?.json(Method::POST, "/api/delegations", Some(&value)).await?;
    out.note("the relayer knows it: the key needs nothing but --owner");
    let line = format!(
        "{}  {} until {}, to {}",
        delegation.id,
        delegation.scopes.join(","),
        delegation.expires.get(..10).unwrap_or_default(),
        delegation.delegate_key
    );
    Ok(out.answer(&value, &line)?)
}

/// Makes a token for an agent: registers a delegation to the token's key, and shows the token once.
async fn make_token(
    settings: &Settings,
    key: AccountKey,
    arguments: &DelegateArguments,
    out: &Out,
) -> Result<(), Failure> {
    let token = AgentToken::generate(&key.account_id());
    let delegate = token.key().public_key().to_string();
    let delegation = sign(&key, &delegate, arguments, now_ms() / 1_000)?;
    let relayer = RelayerClient::of_owner(settings, key)?;
    let value = serde_json::to_value(&delegation).unwrap_or_default();
    relayer.json(Method::POST, "/api/delegations", Some(&value)).await?;
    let (text, url) = (token.expose(), relayer.agents_url());
    if out.json() {
        return Ok(out.value(&json!({
            "token": text.as_str(), "id": delegation.id, "url": url, "scopes": delegation.scopes,
            "project": delegation.project, "expires": delegation.expires,
        }))?);
    }
    out.line(&text)?;
    out.note("This token is shown once. In an agent's configuration of MCP servers:");
    out.note(&format!("  url     {url}\n  header  Authorization: Bearer TOKEN"));
    let expires = delegation.expires.get(..10).unwrap_or_default();
    out.note(&format!(
        "It allows {} until {expires}. End it: baton account revoke {}",
        delegation.scopes.join(", "),
        delegation.id
    ));
    Ok(())
}

fn sign(
    key: &AccountKey,
    delegate: &str,
    arguments: &DelegateArguments,
    now_s: u64,
) -> Result<Delegation, Failure> {
    let delegate = PublicKey::parse_hex(delegate).map_err(|_| {
        Failure::Usage("the delegate's public key has 64 hex characters; its baton account has it".to_owned())
    })?;
    if delegate == key.public_key() {
        return Err(Failure::Usage("this is the account's own key, which may do everything".to_owned()));
    }
    if arguments.project.as_deref().is_some_and(|project| !is_name(project)) {
        return Err(Failure::Usage(format!(
            "a project's name has 1 to {MAX_PROJECT_BYTES} bytes, not only spaces, and no control characters"
        )));
    }
    let asked = |scope: &&str| arguments.scopes.iter().any(|asked| asked == scope);
    let scopes: Vec<String> = SCOPES.iter().copied().filter(asked).map(str::to_owned).collect();
    let id = hex::encode(random_bytes::<16>());
    let until_s = now_s + u64::from(arguments.days) * DAY_S;
    let project = arguments.project.as_ref().map(|name| format!("project {name}\n")).unwrap_or_default();
    let relayer = arguments.at_relayer.as_deref().map(PublicKey::parse_hex).transpose();
    let relayer = relayer.map_err(|_| {
        Failure::Usage(
            "--at-relayer is the relayer's public key, 64 hex characters; its /relayer has it".to_owned(),
        )
    })?;
    let at = relayer.map(|key| format!("relayer {key}\n")).unwrap_or_default();
    let text = format!(
        "baton delegation v1\nid {id}\nowner {}\ndelegate {delegate}\nscopes {}\n{project}{at}from {now_s}\nuntil {until_s}\n",
        key.account_id(),
        scopes.join(",")
    );
    let signature = key.signing_key().sign(DELEGATION, text.as_bytes());
    Ok(Delegation {
        id,
        owner_key: key.public_key().to_string(),
        delegate_key: delegate.to_string(),
        scopes,
        project: arguments.project.clone(),
        relayer: relayer.map(|key| key.to_string()),
        not_before: relayer_time(now_s),
        expires: relayer_time(until_s),
        signature: hex::encode(signature),
    })
}

/// Shows the delegations that the relayer knows.
async fn list(settings: &Settings, key: AccountKey, out: &Out) -> Result<(), Failure> {
    let answer = RelayerClient::of_owner(settings, key)?.json(Method::GET, "/api/delegations", None).await?;
    if out.json() {
        return Ok(out.value(&answer)?);
    }
    let listed = answer["delegations"].as_array().map(Vec::as_slice).unwrap_or_default();
    if listed.is_empty() {
        out.note("the relayer knows of none; those that are only shown to it with requests are not listed");
    }
    let now = relayer_time(now_ms() / 1_000);
    for known in listed {
        out.line(&clean(&row(known, &now)))?;
    }
    Ok(())
}

/// Whether a relayer takes a text as a project's name.
fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= MAX_PROJECT_BYTES && !text.chars().any(char::is_control)
}

/// One line of a table.
fn row(known: &Value, now: &str) -> String {
    let text = |field: &str| known["delegation"][field].as_str().unwrap_or_default();
    let id = known["id"].as_str().unwrap_or_default();
    let taken_back = known["revoked"].as_bool().unwrap_or_default();
    if known["delegation"].is_null() {
        return format!("{id}  taken back before the relayer saw it");
    }
    let state = if taken_back {
        "taken back"
    } else if text("expires") <= now {
        "ended"
    } else {
        "counts"
    };
    let scopes = known["delegation"]["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let project =
        if text("project").is_empty() { String::new() } else { format!("  in {}", text("project")) };
    format!(
        "{id}  {state:<10}  until {}  {:<21}  {}{project}",
        text("expires").get(..10).unwrap_or_default(),
        scopes.collect::<Vec<_>>().join(","),
        text("delegate_key"),
    )
}

/// Revokes a delegation.
pub(crate) async fn revoke(
    settings: &Settings,
    account: AccountKey,
    id: &str,
    key: Option<&str>,
    out: &Out,
) -> Result<(), Failure> {
    if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Failure::Usage(format!("{id} is no delegation's id; baton account delegate lists them")));
    }
    let query = match key {
        None => String::new(),
        Some(key) => {
            let key = PublicKey::parse_hex(key)
                .map_err(|_| Failure::Usage("--key has 64 hex characters".to_owned()))?;
            format!("?key={key}")
        }
    };
    let path = format!("/api/delegations/{}{query}", id.to_lowercase());
    RelayerClient::of_owner(settings, account)?.text(Method::DELETE, &path, String::new()).await?;
    let id = id.to_lowercase();
    Ok(out.answer(&json!({ "revoked": id }), &format!("{id}  taken back, at once and for good"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_seen_and_has_bounds() {
        assert!(is_name(" a garden ") && is_name(&"x".repeat(MAX_PROJECT_BYTES)));
        for text in ["", " ", "\u{a0}", "a\n", &"x".repeat(MAX_PROJECT_BYTES + 1)] {
            assert!(!is_name(text), "{text:?}");
        }
    }

    #[test]
    fn a_row_says_whether_it_counts() {
        let known = |revoked: bool, expires: &str| {
            json!({ "id": "ab", "revoked": revoked, "delegation": {
                "expires": expires, "scopes": ["read"], "delegate_key": "cd", "project": "garden",
            } })
        };
        let now = "2026-11-21T00:00:00.000Z";
        let good = row(&known(false, "2026-12-21T00:00:00.000Z"), now);
        assert!(good.contains("counts") && good.contains("until 2026-12-21") && good.ends_with("in garden"));
        assert!(row(&known(true, "2026-12-21T00:00:00.000Z"), now).contains("taken back"));
        assert!(row(&known(false, "2026-11-20T00:00:00.000Z"), now).contains("ended"));
    }
}
