//! Why a dial failed, in plain words.

use std::io;

use libp2p::{TransportError, swarm::DialError};

use crate::{error::OpenError, transport::split_identity};

/// The error of a failed dial, as the caller of an open sees it.
pub(crate) fn open_error(error: &DialError) -> OpenError {
    match error {
        DialError::WrongPeerId { address, .. } | DialError::LocalPeerId { address } => {
            OpenError::WrongIdentity { address: split_identity(address.clone()).0 }
        }
        DialError::Denied { .. } => OpenError::Busy,
        DialError::NoAddresses => {
            OpenError::Unreachable { reason: "no usable address of it is known".to_owned() }
        }
        DialError::Transport(failures) => {
            let causes: Vec<_> =
                failures.iter().map(|(address, error)| (address.clone(), cause(error))).collect();
            let declined = causes.iter().any(|(_, cause)| *cause == DECLINED);
            let each =
                causes.into_iter().map(|(address, cause)| format!("{}: {cause}", split_identity(address).0));
            let reason = each.collect::<Vec<_>>().join("; ");
            if declined { OpenError::Declined { reason } } else { OpenError::Unreachable { reason } }
        }
        DialError::DialPeerConditionFalse(_) | DialError::Aborted => {
            OpenError::Unreachable { reason: "the dial was given up".to_owned() }
        }
    }
}

/// Why a dial failed, in a few words. A dial of one address does not repeat it.
pub(crate) fn dial_reason(error: &DialError) -> String {
    match error {
        DialError::Transport(failures) if failures.len() == 1 => {
            failures.iter().map(|(_, error)| cause(error)).collect()
        }
        DialError::WrongPeerId { .. } => "other node".to_owned(),
        other => open_error(other).to_string(),
    }
}

/// The word for a listener at its limits, which ends a connection before the handshake.
const DECLINED: &str = "closed";

/// The words for causes: the system's, QUIC's, a transport's timer's and the resolver's. libp2p hides the system's
/// numbers below its layers, and passes the texts on.
const WORDS: [(&str, &str); 14] = [
    ("Connection refused", "refused"),
    ("Connection timed out", "timed out"),
    ("Handshake with the remote timed out", "timed out"),
    ("Timeout has been reached", "timed out"),
    ("Connection reset by peer", DECLINED),
    ("aborted by peer: the application or application protocol", DECLINED),
    ("Network is unreachable", "unreachable"),
    ("No route to host", "unreachable"),
    ("Cannot assign requested address", "unreachable"),
    ("Unsupported resolved address", NOT_DIALABLE),
    ("Too many DNS lookups", NO_NAME),
    ("no record", NO_NAME),
    ("No Matching Records", NO_NAME),
    ("request timed out", NO_NAME),
];

const NOT_DIALABLE: &str = "not dialable from here";
const NO_NAME: &str = "name not found";

/// Why one address failed, in a word or two.
fn cause(error: &TransportError<io::Error>) -> &'static str {
    match error {
        TransportError::MultiaddrNotSupported(_) => NOT_DIALABLE,
        TransportError::Other(error) => word(&innermost(error)),
    }
}

/// The innermost cause in a chain of errors; the outer ones only name libp2p's layers.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    current.to_string()
}

fn word(text: &str) -> &'static str {
    WORDS.iter().find(|(part, _)| text.contains(part)).map_or("no connection", |(_, word)| word)
}

#[cfg(test)]
mod tests {
    use std::io;

    use libp2p::TransportError;

    use super::*;

    #[test]
    fn each_cause_is_a_word_or_two() {
        for (cause, expected) in [
            ("Handshake with the remote timed out.", "timed out"),
            ("Timeout has been reached", "timed out"),
            ("aborted by peer: the application or application protocol closed it", "closed"),
            (
                "Multiple dial errors occurred:\n - Unsupported resolved address: /ip4/127.0.0.1/tcp/1",
                NOT_DIALABLE,
            ),
            ("no records found for Query { name: Name(\"a.\") }", NO_NAME),
            ("an error of some later version", "no connection"),
            ("", "no connection"),
        ] {
            assert_eq!(word(cause), expected, "{cause}");
        }
        let address = "/dns4/localhost/tcp/1".parse().unwrap();
        assert_eq!(cause(&TransportError::MultiaddrNotSupported(address)), NOT_DIALABLE);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_listener_that_resets_is_told_from_a_host_without_one() {
        // Linux's numbers: ECONNRESET, ECONNREFUSED and ENETUNREACH.
        let failed = |os_error: i32| {
            let address = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
            let error = TransportError::Other(io::Error::other(io::Error::from_raw_os_error(os_error)));
            open_error(&DialError::Transport(vec![(address, error)]))
        };
        let reason = |word: &str| format!("/ip4/192.0.2.1/tcp/1: {word}");
        assert_eq!(failed(104), OpenError::Declined { reason: reason("closed") });
        assert_eq!(failed(111), OpenError::Unreachable { reason: reason("refused") });
        assert_eq!(failed(101), OpenError::Unreachable { reason: reason("unreachable") });
    }
}
