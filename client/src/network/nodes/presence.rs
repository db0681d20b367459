//! The presence of a node: a small state machine over its signs of life. Pure; the clock is a parameter.
//!
//! A node counts as gone by evidence, when a request gets no answer, or without any sign for [`SILENT_MS`].
//! The end of its connection alone is no evidence, since idle connections end too; it is a reason to check.
//! No node is banned: a node that answers is back at once.

/// A node silent for this long counts as gone, unless its connection is open.
const SILENT_MS: u64 = 30_000;
/// A node quiet for this long is checked, so that the result is there before [`SILENT_MS`].
const QUIET_MS: u64 = 20_000;
/// First pause before a node that did not answer is asked again; doubled by each further failed check.
const ASK_AGAIN_MS: u64 = 2000;
/// Longest such pause.
const MAX_ASK_AGAIN_MS: u64 = 60_000;

/// The known presence of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Presence {
    connected: bool,
    /// When it was last heard of, in milliseconds since the Unix epoch; 0 for never.
    heard_ms: u64,
    /// Since when it does not answer.
    gone_since_ms: Option<u64>,
    /// An event makes a check worthwhile now.
    doubtful: bool,
    /// A background check is running.
    asking: bool,
    /// Failed checks since it last gave its record.
    in_vain: u32,
    /// Earliest time of the next check.
    ask_from_ms: u64,
}

impl Presence {
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// When it was last heard of; 0 for never.
    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Whether it counts as gone.
    pub(super) fn is_gone(&self, now_ms: u64) -> bool {
        let silent = !self.connected && now_ms.saturating_sub(self.heard_ms) > SILENT_MS;
        self.gone_since_ms.is_some() || silent
    }

    /// Whether it was asked and did not give its record.
    pub(super) fn was_asked_in_vain(&self) -> bool {
        self.in_vain > 0
    }

    /// Whether no check is running, and the pause after a failed check is over.
    pub(super) fn may_ask(&self, now_ms: u64) -> bool {
        !self.asking && self.ask_from_ms <= now_ms
    }

    /// The order in which nodes are checked, if a check of it is due: after an event, before it counts as gone, and while it
    /// is gone.
    pub(super) fn check_rank(&self, now_ms: u64) -> Option<u8> {
        let is_quiet = now_ms.saturating_sub(self.heard_ms) >= QUIET_MS;
        match self.gone_since_ms {
            _ if self.asking => None,
            _ if self.doubtful => Some(0),
            _ if self.ask_from_ms > now_ms => None,
            None => is_quiet.then_some(1),
            // Many lost nodes, whose silence takes long, must not delay the checks of the others.
            Some(_) => Some(2),
        }
    }

    /// A background check starts.
    pub(super) fn ask(&mut self) {
        self.asking = true;
        self.doubtful = false;
    }

    /// It gave its record, or served.
    pub(super) fn heard(&mut self, now_ms: u64) {
        *self = Self { connected: self.connected, heard_ms: now_ms, ..Self::default() };
    }

    /// Others passed on a record that it signed at `signed_ms`: a sign of life if recent, but no answer. It
    /// does not bring a lost node back.
    pub(super) fn note_gossip(&mut self, signed_ms: u64, now_ms: u64) {
        if now_ms.saturating_sub(signed_ms) <= SILENT_MS {
            self.heard_ms = self.heard_ms.max(signed_ms.min(now_ms));
        }
    }

    /// It answered, but gave no valid record.
    pub(super) fn answered_otherwise(&mut self, now_ms: u64) {
        let before = *self;
        self.heard(now_ms);
        self.in_vain = before.in_vain;
        self.wait(now_ms);
    }

    /// It did not answer.
    pub(super) fn unanswered(&mut self, now_ms: u64) {
        self.asking = false;
        self.doubtful = false;
        self.gone_since_ms.get_or_insert(now_ms);
        self.wait(now_ms);
    }

    /// It was not asked after all.
    pub(super) fn not_asked(&mut self) {
        self.asking = false;
    }

    /// An event that may mean that it is gone.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// Sets whether a connection is open. A new connection is a sign of life; an ended one is a reason to
    /// check.
    pub(super) fn set_connected(&mut self, connected: bool, now_ms: u64) {
        if connected == self.connected {
            return;
        }
        self.connected = connected;
        if connected && self.gone_since_ms.is_none() {
            self.heard_ms = self.heard_ms.max(now_ms);
        }
        // A lost node with a new connection is checked at once, and is back with its answer.
        if !connected || self.gone_since_ms.is_some() {
            self.doubtful = true;
        }
    }

    fn wait(&mut self, now_ms: u64) {
        let pause = (ASK_AGAIN_MS << self.in_vain.min(8)).min(MAX_ASK_AGAIN_MS);
        self.in_vain = self.in_vain.saturating_add(1);
        self.ask_from_ms = now_ms.saturating_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn present() -> Presence {
        let mut presence = Presence::default();
        presence.set_connected(true, NOW);
        presence.heard(NOW);
        presence
    }

    #[test]
    fn leaves_with_the_first_question_in_vain_and_is_back_with_the_first_answer() {
        let mut presence = present();
        assert!(!presence.is_gone(NOW) && presence.check_rank(NOW).is_none());
        presence.set_connected(false, NOW);
        assert!(!presence.is_gone(NOW), "an idle connection ends too");
        assert_eq!(presence.check_rank(NOW), Some(0), "but it is asked at once");
        presence.ask();
        assert_eq!(presence.check_rank(NOW), None, "and not twice at a time");
        presence.unanswered(NOW);
        assert!(presence.is_gone(NOW));
        presence.heard(NOW + 1);
        assert_eq!((presence.is_gone(NOW + 1), presence.may_ask(NOW + 1)), (false, true));
    }

    #[test]
    fn without_any_sign_it_leaves_after_half_a_minute_and_is_asked_before() {
        let mut presence = present();
        assert_eq!(presence.check_rank(NOW + QUIET_MS), Some(1));
        assert!(!presence.is_gone(NOW + 10 * SILENT_MS), "its connection is probed by the mesh");
        presence.set_connected(false, NOW);
        assert!(!presence.is_gone(NOW + SILENT_MS));
        assert!(presence.is_gone(NOW + SILENT_MS + 1));
    }

    #[test]
    fn gossip_keeps_a_node_on_the_list_and_brings_nobody_back() {
        let mut presence = present();
        presence.set_connected(false, NOW);
        let later = NOW + SILENT_MS + 1;
        presence.note_gossip(NOW - 1, later);
        assert!(presence.is_gone(later), "an old record says nothing");
        presence.note_gossip(later - 1, later);
        assert!(!presence.is_gone(later));
        presence.unanswered(later);
        presence.note_gossip(later, later);
        assert!(presence.is_gone(later));
    }

    #[test]
    fn is_asked_ever_more_rarely_but_at_once_when_it_connects() {
        let mut presence = present();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            presence.unanswered(NOW);
            pauses.push((presence.ask_from_ms - NOW) / 1000);
            let wait = presence.ask_from_ms;
            assert_eq!((presence.check_rank(wait - 1), presence.check_rank(wait)), (None, Some(2)));
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
        presence.set_connected(false, NOW);
        presence.unanswered(NOW);
        presence.set_connected(true, NOW);
        assert!(presence.is_gone(NOW), "a connection alone is no answer");
        assert_eq!(presence.check_rank(NOW), Some(0));
    }
}
