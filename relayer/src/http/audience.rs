//! The relayer that a signed request names, in the query parameter `relayer`. Pure.
//!
//! The signature covers path and query, so another relayer cannot use the request. The parameter is taken out
//! before a route reads its query.

use axum::http::{Uri, uri::PathAndQuery};
use baton_keys::{account::RELAYER_PARAMETER, ids::PublicKey};

use super::api_error::{ApiError, UNNAMED, WRONG_RELAYER};

/// The name of this relayer in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audience {
    /// The relayer's key.
    pub relayer: PublicKey,
    /// Whether a request without a name is refused.
    pub required: bool,
}

impl Audience {
    /// Checks the name in a request's URI; returns the URI without it.
    ///
    /// # Errors
    /// A 421 for another relayer's name, a 401 for none where it is required.
    pub(super) fn check(&self, uri: &Uri) -> Result<Uri, ApiError> {
        let is_name = |part: &&str| part.split_once('=').is_some_and(|(name, _)| name == RELAYER_PARAMETER);
        let parts: Vec<&str> = uri.query().unwrap_or_default().split('&').collect();
        let names: Vec<&str> = parts.iter().copied().filter(is_name).collect();
        if names.is_empty() {
            return if self.required { Err(ApiError::new(UNNAMED)) } else { Ok(uri.clone()) };
        }
        let own = format!("{RELAYER_PARAMETER}={}", self.relayer);
        if names.iter().any(|name| !name.eq_ignore_ascii_case(&own)) {
            return Err(ApiError::new(WRONG_RELAYER));
        }
        let rest: Vec<&str> = parts.iter().copied().filter(|part| !is_name(part)).collect();
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        let path = PathAndQuery::try_from(format!("{}{query}", uri.path()));
        let mut without = uri.clone().into_parts();
        without.path_and_query = Some(path.map_err(|_| ApiError::bad("the query cannot be read"))?);
        Uri::from_parts(without).map_err(|_| ApiError::bad("the query cannot be read"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_relayer_is_compared_and_taken_out() {
        let own = PublicKey([0xab; 32]);
        let (name, other) = (format!("relayer={own}"), format!("relayer={}", PublicKey([2; 32])));
        let check = |required, query: &str| {
            let uri: Uri = format!("/v1/x{query}").parse().unwrap();
            let checked = Audience { relayer: own, required }.check(&uri);
            checked.map(|uri| uri.to_string()).map_err(|error| error.code())
        };
        let open = |query: &str| check(false, query);
        assert_eq!(open(""), Ok("/v1/x".to_owned()));
        assert_eq!(open("?a=1"), Ok("/v1/x?a=1".to_owned()));
        assert_eq!(open(&format!("?{name}")), Ok("/v1/x".to_owned()));
        assert_eq!(
            open(&format!("?{}", name.to_uppercase().replace("RELAYER", "relayer"))),
            Ok("/v1/x".to_owned())
        );
        assert_eq!(open(&format!("?a=1&{name}&b=%20")), Ok("/v1/x?a=1&b=%20".to_owned()));
        for wrong in [format!("?{other}"), format!("?{name}&{other}"), "?relayer=".to_owned()] {
            assert_eq!(open(&wrong), Err("wrong_relayer"), "{wrong}");
        }
        assert_eq!(check(true, ""), Err("relayer_unnamed"));
        assert_eq!(check(true, "?a=relayer"), Err("relayer_unnamed"));
        assert_eq!(check(true, &format!("?{name}")), Ok("/v1/x".to_owned()));
    }
}
