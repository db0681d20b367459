//! Checks that the listen addresses are free, or taken by the running node itself.

use baton_kit::doctor::{Check, Socket, SocketCodes, check_socket, is_open, socket_of};

use super::{Subject, codes};
use crate::config::AdminSetting;

const CODES: SocketCodes = SocketCodes { taken: codes::PORT_TAKEN, refused: codes::PORT_REFUSED };
const ADMIN_CODES: SocketCodes = SocketCodes { taken: codes::ADMIN_TAKEN, refused: codes::ADMIN_TAKEN };

pub(super) fn check(subject: &Subject) -> Check {
    let mut check = Check::new("ports");
    let settings = &subject.settings;
    match &subject.running {
        Some(status) => {
            for address in settings.listen().iter().map(ToString::to_string) {
                if is_open(&address, &status.listen) {
                    check.saw(format!("{address} is the running node's"));
                } else if status.listen.is_empty() {
                    check.saw(format!("{address} is not open yet: the node is still starting"));
                } else {
                    check.found(codes::PORT_NOT_OPEN, address);
                }
            }
        }
        // The ports probably belong to the node that does not answer; another check reports it.
        None if subject.in_use => {
            return Check::skipped("ports", "a node that cannot be asked uses the data directory");
        }
        None => {
            for address in settings.listen().iter().map(ToString::to_string) {
                check_socket(&mut check, CODES, &address, socket_of(&address));
            }
        }
    }
    check_admin(&mut check, subject);
    check
}

fn check_admin(check: &mut Check, subject: &Subject) {
    let AdminSetting::At(address) = subject.settings.admin() else {
        check.saw("the admin port is switched off");
        return;
    };
    if subject.running.is_some() {
        check.saw(format!("admin port {address} is the running node's"));
    } else if let Some(other_program) = &subject.other_program {
        check.found(codes::ADMIN_TAKEN, format!("{address}: {other_program}"));
    } else {
        check_socket(check, ADMIN_CODES, &format!("admin port {address}"), Some(Socket::Tcp(address)));
    }
}
