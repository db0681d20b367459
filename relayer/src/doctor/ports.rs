//! Checks that the addresses are free, or taken by the running relayer itself.

use baton_kit::doctor::{Socket, SocketCodes, check_socket, is_open, socket_of};

use super::{Check, Subject, codes};
use crate::running::RelayerAnswer;

const CODES: SocketCodes = SocketCodes { taken: codes::PORT_TAKEN, refused: codes::PORT_REFUSED };

pub(super) fn check(subject: &Subject) -> Check {
    let mut check = Check::new("ports");
    check_http(&mut check, subject);
    for address in subject.settings.options.listen() {
        let address = address.to_string();
        match subject.running() {
            Some(relayer) if is_open(&address, &relayer.identity.addresses) => {
                check.saw(format!("{address} is the running relayer's"));
            }
            Some(_) => check.found(codes::PORT_NOT_OPEN, address),
            // The database's check reports the relayer that does not answer; the ports are probably its own.
            None if subject.in_use => check.saw(format!("{address} was not tried")),
            None => check_socket(&mut check, CODES, &address, socket_of(&address)),
        }
    }
    check
}

fn check_http(check: &mut Check, subject: &Subject) {
    let address = subject.settings.http;
    match (&subject.answer, subject.running()) {
        (_, Some(relayer)) => check.saw(format!("HTTP at {} is the running relayer's", relayer.url)),
        (RelayerAnswer::Relayer(other), None) => {
            check.found(codes::HTTP_OTHER, format!("{address}: the relayer {}", other.identity.relayer));
        }
        (RelayerAnswer::OtherProgram { reason, .. }, None) => {
            check.found(codes::HTTP_OTHER, format!("{address}: {reason}"));
        }
        (RelayerAnswer::Silent(_), None) => {
            check_socket(check, CODES, &format!("HTTP at {address}"), Some(Socket::Tcp(address)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{running_relayer, subject},
        *,
    };

    #[test]
    fn another_program_at_the_http_address_is_a_problem() {
        let (url, reason) = ("http://127.0.0.1:8000".to_owned(), "404".to_owned());
        let mut other = subject("", RelayerAnswer::OtherProgram { url, reason });
        other.in_use = true;
        assert_eq!(check(&other).codes(), ["R504"]);
        let relayer = running_relayer(&["/ip4/10.0.0.2/tcp/4101/p2p/P"]);
        let running = |listen: &str| subject(listen, RelayerAnswer::Relayer(Box::new(relayer.clone())));
        assert!(check(&running("")).codes().is_empty());
        let other_port = "listen = [\"/ip4/0.0.0.0/tcp/4102\"]";
        assert_eq!(check(&running(other_port)).codes(), ["R503"]);
    }
}
