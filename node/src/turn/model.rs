//! A turn's model: brought into memory where it is not, and kept there.

use std::sync::Arc;

use baton_proto::ErrorCode;
use futures::FutureExt as _;

use super::window::engine_code;
use crate::{
    core::slots::Place,
    engine::{Engine, Hold},
};

/// Holds the turn's model. Where it has to be waited for, the turn steps aside meanwhile: its slot is for turns whose model is
/// there. It may have no slot afterwards. Cancel safe.
///
/// # Errors
/// [`ErrorCode::Busy`] for a model that there is no room or time for, [`ErrorCode::ModelUnavailable`] for one that cannot be
/// loaded any more.
pub(crate) async fn hold(engine: &Arc<dyn Engine>, place: &Place) -> Result<Hold, ErrorCode> {
    let mut holding = engine.hold();
    let held = match (&mut holding).now_or_never() {
        Some(held) => held,
        None => {
            let aside = place.step_aside();
            let held = holding.await;
            drop(aside);
            held
        }
    };
    held.map_err(|error| {
        tracing::info!(model = engine.info().name, %error, "a turn has no model");
        engine_code(&error)
    })
}
