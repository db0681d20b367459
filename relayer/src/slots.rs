//! Slots that callers share. The HTTP gate and the sealed endpoint use them.

use baton_limits::{Full, Key, SlotLimits, Slots, Ticket};
use tokio::time::{Instant, timeout_at};

/// Waiting callers for each slot. A waiting caller holds what it sent so far.
const WAITING_FOR_EACH_SLOT: usize = 2;

/// This many slots, of which a subnet has a quarter.
pub(crate) fn slots(slots: usize) -> Slots {
    Slots::new(SlotLimits::in_quarters(slots, WAITING_FOR_EACH_SLOT * slots.max(1)))
}

/// Takes a slot; waits for it until the deadline. Cancel safe.
///
/// # Errors
/// [`Full`], at once if the caller's part of the queue is full.
pub(crate) async fn take_slot(slots: &Slots, key: Key, deadline: Instant) -> Result<Ticket, Full> {
    let ticket = slots.enter(key, 1)?;
    match timeout_at(deadline, ticket.granted()).await {
        Ok(Ok(())) => Ok(ticket),
        _ => Err(Full),
    }
}
