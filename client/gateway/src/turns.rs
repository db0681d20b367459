//! The turn of a request, from its body to the answer.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod response;
