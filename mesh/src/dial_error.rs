//! Why a dial failed, in plain words.

use libp2p::swarm::DialError;

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
                failures.iter().map(|(address, error)| (address.clone(), innermost(error))).collect();
            let declined = causes.iter().any(|(_, cause)| DECLINED.contains(&cause.as_str()));
            let each =
                causes.into_iter().map(|(address, cause)| format!("{}: {cause}", split_identity(address).0));
            let reason = each.collect::<Vec<_>>().join("; ");
            if declined { OpenError::Declined { reason } } else { OpenError::Unreachable { reason } }
        }
        other => OpenError::Unreachable { reason: other.to_string() },
    }
}

/// Why a dial failed, in a few words. A dial of one address does not repeat it.
pub(crate) fn dial_reason(error: &DialError) -> String {
    match error {
        DialError::Transport(failures) if failures.len() == 1 => {
            failures.iter().map(|(_, error)| innermost(error)).collect()
        }
        DialError::WrongPeerId { .. } => "another node answers at this address".to_owned(),
        other => open_error(other).to_string(),
    }
}

/// The innermost cause in a chain of errors, in plain words; the outer ones only name libp2p's layers.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    plain_cause(&current.to_string())
}

/// The words of QUIC and of a transport's timer for silence.
const SILENCE: [&str; 2] = ["Handshake with the remote timed out", "Timeout has been reached"];

/// The words of QUIC for a listener that ended a connection before the handshake.
const QUIC_CLOSED: &str = "aborted by peer: the application or application protocol";

/// The causes of a listener at its limits: TCP's, and QUIC's.
const DECLINED: [&str; 2] = ["connection reset by peer", "closed before the handshake"];

/// A cause in plain words: without the system's number, and with one sentence for silence.
fn plain_cause(cause: &str) -> String {
    if SILENCE.iter().any(|silence| cause.starts_with(silence)) {
        return "no answer".to_owned();
    }
    if cause.starts_with(QUIC_CLOSED) {
        return DECLINED[1].to_owned();
    }
    let cause = cause.split_once(" (os error").map_or(cause, |(words, _)| words).trim_end_matches('.');
    let mut letters = cause.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use std::io;

    use libp2p::TransportError;

    use super::*;

    #[test]
    fn causes_are_plain_words() {
        for (cause, words) in [
            ("Handshake with the remote timed out.", "no answer"),
            ("Timeout has been reached", "no answer"),
            ("Connection refused (os error 111)", "connection refused"),
            ("Network is unreachable (os error 101)", "network is unreachable"),
            ("", ""),
        ] {
            assert_eq!(plain_cause(cause), words);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_listener_that_resets_is_told_from_a_host_without_one() {
        // Linux's numbers: ECONNRESET and ECONNREFUSED.
        let failed = |os_error: i32| {
            let address = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
            let error = TransportError::Other(io::Error::other(io::Error::from_raw_os_error(os_error)));
            DialError::Transport(vec![(address, error)])
        };
        let reset = open_error(&failed(104));
        let reason = "/ip4/192.0.2.1/tcp/1: connection reset by peer".to_owned();
        assert_eq!(reset, OpenError::Declined { reason });
        let nobody = open_error(&failed(111));
        assert!(matches!(nobody, OpenError::Unreachable { .. }), "{nobody}");
    }
}
