//! Checks the running relayer: its health, readiness, version and settings.

use baton_kit::output::span;

use super::{Check, Subject, codes};
use crate::{running::RelayerAnswer, serve::memory_facts};

pub(super) fn check(subject: &Subject) -> Check {
    let Some(relayer) = subject.running() else {
        return match &subject.answer {
            RelayerAnswer::Silent(url) => Check::skipped("relayer", format!("no relayer answers at {url}")),
            // The check of the ports reports them.
            RelayerAnswer::OtherProgram { url, .. } => {
                Check::skipped("relayer", format!("another program answers at {url}"))
            }
            RelayerAnswer::Relayer(other) => {
                Check::skipped("relayer", format!("another relayer answers at {}", other.url))
            }
        };
    };
    let mut check = Check::new("relayer");
    let identity = &relayer.identity;
    let name = identity.relayer.get(..16).unwrap_or(&identity.relayer);
    check.saw(format!("{name}... runs at {}, up {}", relayer.url, span(identity.uptime_seconds)));
    if let Some(reason) = &relayer.not_ready {
        check.found(codes::NOT_READY, reason.clone());
    } else if let Some(reason) = &relayer.degraded {
        check.found(codes::DEGRADED, reason.clone());
    }
    if let Some(warning) = &relayer.warning {
        check.found(codes::OWNERS_REFUSED, warning.clone());
    }
    let here = env!("CARGO_PKG_VERSION");
    if identity.version != here {
        check.found(codes::OTHER_VERSION, format!("{} runs, this is {here}", identity.version));
    }
    let wanted = memory_facts(&subject.settings, &identity.memory.embedder);
    for (name, runs, wanted) in [
        ("storage", &identity.memory.storage, wanted.storage),
        ("judge", &identity.memory.judge, wanted.judge),
        ("contents", &identity.memory.contents, wanted.contents),
    ] {
        if *runs != wanted {
            check.found(codes::OTHER_SETTINGS, format!("{name} is {runs} there and {wanted} here"));
        }
    }
    check
}

#[cfg(test)]
mod tests {
    use super::{
        super::{running_relayer, subject},
        *,
    };

    fn codes_with(text: &str, change: impl FnOnce(&mut crate::running::RunningRelayer)) -> Vec<&'static str> {
        let mut relayer = running_relayer(&[]);
        change(&mut relayer);
        check(&subject(text, RelayerAnswer::Relayer(Box::new(relayer)))).codes()
    }

    #[test]
    fn the_running_relayer_is_judged_by_its_answers() {
        assert!(codes_with("", |_| {}).is_empty());
        assert_eq!(codes_with("", |relayer| relayer.not_ready = Some("full".to_owned())), ["R601"]);
        assert_eq!(codes_with("", |relayer| relayer.degraded = Some("full".to_owned())), ["R602"]);
        assert_eq!(codes_with("", |relayer| relayer.warning = Some("some".to_owned())), ["R605"]);
        assert_eq!(codes_with("", |relayer| relayer.identity.version = "9".to_owned()), ["R603"]);
        let stores = "publishers = [\"http://x\"]\naggregators = [\"http://x\"]";
        assert_eq!(codes_with(stores, |_| {}), ["R604"]);
    }

    #[test]
    fn a_relayer_of_another_key_is_not_this_one() {
        let answer = RelayerAnswer::Relayer(Box::new(running_relayer(&[])));
        let mut subject = subject("", answer);
        subject.own_key = Some("cd".repeat(32));
        assert!(subject.running().is_none());
        let skipped = serde_json::to_value(check(&subject)).unwrap();
        assert_eq!(skipped["state"], "skipped");
    }
}
