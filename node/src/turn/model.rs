//! Holds a turn's model in memory, and loads it if necessary.

use std::sync::Arc;

use baton_limits::Ticket;
use futures::FutureExt as _;

use super::window::engine_refusal;
use crate::{
    core::refusal::Refusal,
    engine::{Engine, Hold},
};

/// Holds the turn's model. During a wait for the model the turn gives up its slot to turns with loaded
/// models. It may have no slot afterwards. Cancel safe.
///
/// # Errors
/// [`Busy`](baton_proto::ErrorCode::Busy) if the model gets no room or time, [`ModelUnavailable`](baton_proto::ErrorCode::ModelUnavailable) if it can no longer
/// be loaded.
pub(crate) async fn hold(engine: &Arc<dyn Engine>, ticket: &Ticket) -> Result<Hold, Refusal> {
    let mut holding = engine.hold();
    let held = match (&mut holding).now_or_never() {
        Some(held) => held,
        None => {
            let yielded = ticket.yield_slot();
            let held = holding.await;
            drop(yielded);
            held
        }
    };
    held.map_err(|error| {
        tracing::info!(model = engine.info().name, %error, "a turn has no model");
        engine_refusal(&error)
    })
}
