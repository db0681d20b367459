//! The sentences about who can read what, made from the settings. The chat page shows them, and `baton serve` prints
//! them at its start, so that neither says anything that the settings do not make true. Pure.

use serde_json::{Value, json};

use crate::{
    keys::Caller,
    memory::{HintExtent, MemorySharing},
    state::Gateway,
};

/// The person whose conversations the sentences are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressee {
    /// The owner of the endpoint, by the owner's key.
    Owner,
    /// Every program of the endpoint's machine: it asks for no key.
    Anybody,
    /// The holder of a key with a name.
    KeyHolder,
    /// The user of a page with the client in it: there is no endpoint.
    PageUser,
}

/// The settings on which privacy depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivacySettings {
    /// The reader.
    pub reader: Addressee,
    /// The host of the relayer through which turns pass, if any.
    pub relayer: Option<String>,
    /// What memory gives away; `None` without memory.
    pub memory: Option<MemorySharing>,
}

impl MemorySharing {
    /// What the relayer gets of each exchange, if it remembers them.
    #[must_use]
    pub fn exchange_line(&self) -> Option<String> {
        let host = self.remembered_at.as_ref()?;
        Some(format!("Each exchange is sent to the relayer {host}, which can read it."))
    }
}

impl PrivacySettings {
    /// The mode of memory, as `/api/defaults` names it.
    fn mode(&self) -> &'static str {
        match &self.memory {
            None => "off",
            Some(MemorySharing { remembered_at: None, .. }) => "recall",
            Some(_) => "recall and remember",
        }
    }

    /// The sentences about relayers, as a front end says them.
    #[must_use]
    pub fn relayer_lines(&self) -> Vec<String> {
        let sealed = self
            .relayer
            .as_ref()
            .map(|host| format!("Each turn passes sealed through the relayer {host}, which cannot read it."));
        let memory = self.memory.as_ref();
        let hint = memory.map(|memory| self.hint_line(memory.hint));
        sealed.into_iter().chain(hint).chain(memory.and_then(MemorySharing::exchange_line)).collect()
    }

    fn hint_line(&self, hint: HintExtent) -> String {
        let host = self.relayer.as_deref().unwrap_or("of this endpoint");
        match hint {
            HintExtent::Message => {
                format!("The relayer {host} reads each message, to search memory with it.")
            }
            HintExtent::Keywords => {
                format!("The relayer {host} gets a few words of each message, to search memory with them.")
            }
            HintExtent::Nothing => format!("The relayer {host} searches memory without words of a message."),
        }
    }

    /// The readers of a message, in a few sentences.
    fn summary(&self) -> String {
        let others = match self.reader {
            Addressee::KeyHolder => Some("The owner of this endpoint can read your conversations."),
            Addressee::Anybody => Some("Everybody who reaches this endpoint can read your conversations."),
            Addressee::Owner | Addressee::PageUser => None,
        };
        let node = Some("The node that answers reads your message.");
        let mut sentences: Vec<String> = node.into_iter().chain(others).map(str::to_owned).collect();
        if let Some(memory) = &self.memory {
            // A relayer that gets the exchange gets its words with it.
            let has_exchange = memory.remembered_at.is_some() && memory.remembered_at == self.relayer;
            if memory.hint != HintExtent::Nothing && !has_exchange {
                sentences.push(self.hint_line(memory.hint));
            }
            sentences.extend(memory.exchange_line());
        }
        sentences.join(" ")
    }

    /// The node's knowledge, the store's and the keys' place.
    fn details(&self) -> Vec<String> {
        let device =
            if self.reader == Addressee::PageUser { "your device" } else { "the device of this endpoint" };
        let address = match (&self.relayer, &self.memory) {
            (None, _) => format!("It sees the network address of {device}, and no name."),
            (Some(_), None) => {
                format!("It sees the relayer, and neither the network address of {device} nor a name.")
            }
            // A turn for which the relayer gives no memory is resumed without the relayer.
            (Some(_), Some(_)) => format!(
                "It sees the relayer, and no name. It sees the network address of {device} where the relayer fails."
            ),
        };
        let keys = match self.reader {
            Addressee::PageUser => {
                "Your device has the only key to this history. Its 24 recovery words are the other way in."
            }
            _ => "The keys to this history are on the device of this endpoint.",
        };
        let node = match &self.memory {
            None => "The node that answers reads that turn and the part of the history that it needs.",
            Some(_) => {
                "The node that answers reads that turn, the part of the history that it needs, and the memories \
                 recalled for it."
            }
        };
        vec![
            format!("{node} {address}"),
            "Its signed receipt states the model and the tokens, and makes it answerable. \
             It does not prove that the model ran."
                .to_owned(),
            "The store keeps sealed bytes. It cannot read or change them.".to_owned(),
            keys.to_owned(),
        ]
    }

    /// The sentences for the page.
    fn describe(&self) -> Value {
        json!({ "summary": self.summary(), "details": self.details(), "relayer": self.relayer_lines() })
    }

    /// The same settings where a person turned memory off.
    fn without_memory(&self) -> Self {
        Self { memory: None, ..self.clone() }
    }

    /// The fields of `/api/defaults`.
    pub(crate) fn fields(&self) -> Value {
        json!({
            "memory": self.mode(),
            "relayer": self.relayer,
            "owner": self.reader != Addressee::KeyHolder,
            "privacy": self.describe(),
            "privacy_without_memory": self.without_memory().describe(),
        })
    }
}

impl Gateway {
    /// The settings on which the caller's privacy depends.
    #[must_use]
    pub fn privacy(&self) -> PrivacySettings {
        let config = self.config();
        let reader = match &self.caller {
            Caller::Key(_) => Addressee::KeyHolder,
            Caller::Owner if cfg!(target_family = "wasm") => Addressee::PageUser,
            Caller::Owner if config.key.is_none() => Addressee::Anybody,
            Caller::Owner => Addressee::Owner,
        };
        let memory = config.memory.as_ref().filter(|_| self.caller.may_use_memory());
        PrivacySettings {
            reader,
            relayer: config.relayer_name(),
            memory: memory.map(|memory| memory.sharing()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(
        reader: Addressee,
        relayer: Option<&str>,
        memory: Option<(HintExtent, Option<&str>)>,
    ) -> PrivacySettings {
        let memory =
            memory.map(|(hint, host)| MemorySharing { hint, remembered_at: host.map(str::to_owned) });
        PrivacySettings { reader, relayer: relayer.map(str::to_owned), memory }
    }

    const SEALED: &str = "Each turn passes sealed through the relayer r.example, which cannot read it.";
    const WORDS: &str = "The relayer r.example gets a few words of each message, to search memory with them.";
    const MESSAGE: &str = "The relayer r.example reads each message, to search memory with it.";
    const NO_WORDS: &str = "The relayer r.example searches memory without words of a message.";
    const EXCHANGE: &str = "Each exchange is sent to the relayer m.example, which can read it.";
    const SAME: &str = "Each exchange is sent to the relayer r.example, which can read it.";

    #[test]
    fn the_lines_about_a_relayer_stand_beside_the_settings_that_make_them_true() {
        use HintExtent::{Keywords, Message, Nothing};
        let (relayer, memories) = (Some("r.example"), Some("m.example"));
        let all = "recall and remember";
        // The settings, the mode, all lines, and the lines of the summary.
        for (relayer, memory, mode, lines, in_summary) in [
            (None, None, "off", &[][..], &[][..]),
            (relayer, None, "off", &[SEALED], &[]),
            (relayer, Some((Nothing, None)), "recall", &[SEALED, NO_WORDS], &[]),
            (relayer, Some((Keywords, None)), "recall", &[SEALED, WORDS], &[WORDS]),
            (relayer, Some((Message, None)), "recall", &[SEALED, MESSAGE], &[MESSAGE]),
            (relayer, Some((Nothing, memories)), all, &[SEALED, NO_WORDS, EXCHANGE], &[EXCHANGE]),
            (relayer, Some((Keywords, memories)), all, &[SEALED, WORDS, EXCHANGE], &[WORDS, EXCHANGE]),
            (relayer, Some((Message, memories)), all, &[SEALED, MESSAGE, EXCHANGE], &[MESSAGE, EXCHANGE]),
            (relayer, Some((Message, relayer)), all, &[SEALED, MESSAGE, SAME], &[SAME]),
        ] {
            let settings = settings(Addressee::Owner, relayer, memory);
            assert_eq!(settings.mode(), mode);
            assert_eq!(settings.relayer_lines(), lines);
            let summary = settings.summary();
            for line in [SEALED, NO_WORDS, WORDS, MESSAGE, EXCHANGE, SAME] {
                assert_eq!(summary.contains(line), in_summary.contains(&line), "{line} in {summary}");
            }
            // A person who turns memory off gives a relayer no words.
            let off = settings.without_memory();
            assert_eq!(off.mode(), "off");
            assert_eq!(off.relayer_lines(), relayer.map(|_| SEALED).as_slice());
        }
    }

    #[test]
    fn the_readers_of_a_conversation_are_those_of_the_endpoint() {
        let node = "The node that answers reads your message.";
        let keys = "on the device of this endpoint";
        for (reader, said, keys) in [
            (Addressee::Owner, "", keys),
            (Addressee::Anybody, " Everybody who reaches this endpoint can read your conversations.", keys),
            (Addressee::KeyHolder, " The owner of this endpoint can read your conversations.", keys),
            (Addressee::PageUser, "", "Your device has the only key"),
        ] {
            let settings = settings(reader, None, None);
            assert_eq!(settings.summary(), format!("{node}{said}"));
            let details = settings.details().join(" ");
            assert!(details.contains(keys) && details.contains("the network address of"), "{details}");
            let device = if reader == Addressee::PageUser { "your device" } else { "the device of this" };
            assert!(details.contains(device), "{details}");
        }
        let details = |memory| settings(Addressee::Owner, Some("r.example"), memory).details().join(" ");
        assert!(details(Some((HintExtent::Keywords, None))).contains("where the relayer fails"));
        let through = details(None);
        assert!(through.contains("sees the relayer") && !through.contains("It sees the network"));
    }
}
