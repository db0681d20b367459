//! The turn of a request, from its body to the steps of its answer.

pub(crate) mod answer;
pub(crate) mod body;
