//! Delegations: an account's right to its memory for another key ([`baton_proto::right`]). A request presents it
//! in the header `x-delegation`, or the owner registers it. A registered key needs no header: the `memwal` SDK
//! sends only an account id and a public key.

pub mod registry;

use baton_proto::ErrorCode;
pub(crate) use baton_proto::right::Permission as Scope;

/// Longest header `x-delegation`: a chain of four rights with names.
pub(crate) const MAX_HEADER_BYTES: usize = 4 * 1024;

/// Why a right does not count here, in words for its holder.
pub(crate) fn refusal_reason(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NonCanonical => "is damaged, or no such text",
        ErrorCode::WrongAudience => "is for another owner or another relayer",
        ErrorCode::Expired => "has expired, or is for more than 366 days",
        ErrorCode::NotYetValid => "is not valid yet",
        ErrorCode::QuotaExceeded => "was revoked, or is by another key",
        _ => "does not verify",
    }
}
