//! The session of a request: found by its messages, named, or new.

pub(crate) mod carried_history;
pub(crate) mod choice;
pub(crate) mod unanswered;
