//! Memory for large frames, bounded in total and for each subnet. So streams that announce large frames and
//! send nothing leave room for other streams.

use baton_limits::{Key, SlotLimits, Slots, Subnet, Ticket};
use baton_proto::{ErrorCode, limits::MAX_FRAME_BYTES};
use tokio::time::{Instant, timeout_at};

/// A unit of memory, in bytes.
const UNIT_BYTES: usize = 1024;
/// Streams that wait for memory: as many as may be open.
const MAX_WAITING: usize = 512;

/// The memory for large frames.
#[derive(Debug)]
pub(crate) struct FrameShares(Slots);

/// A share of the memory; dropping it returns it.
#[derive(Debug)]
pub struct FrameShare(Ticket);

impl FrameShares {
    /// Memory of this many bytes. A subnet has a quarter, but at least enough for the largest request.
    pub(crate) fn new(bytes: usize) -> Self {
        let limits = SlotLimits::in_quarters(bytes / UNIT_BYTES, MAX_WAITING);
        let per_key = limits.per_key.max(2 * MAX_FRAME_BYTES / UNIT_BYTES).min(limits.units);
        Self(Slots::new(SlotLimits { per_key, ..limits }))
    }

    /// Takes a share of `bytes` before the deadline.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] after the deadline, or if too many wait.
    pub(crate) async fn take(
        &self,
        bytes: usize,
        subnet: Option<Subnet>,
        deadline: Instant,
    ) -> Result<FrameShare, ErrorCode> {
        let entered = self.0.enter(Key::of(subnet), bytes.div_ceil(UNIT_BYTES));
        let ticket = entered.map_err(|_| ErrorCode::Busy)?;
        match timeout_at(deadline, ticket.granted()).await {
            Ok(Ok(())) => Ok(FrameShare(ticket)),
            _ => Err(ErrorCode::Busy),
        }
    }
}

impl FrameShare {
    /// Returns all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.0.shrink_to(bytes.div_ceil(UNIT_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Origin;

    const MIB: usize = 1024 * 1024;

    fn subnet(third: u8) -> Option<Subnet> {
        Origin::Direct([203, 0, third, 1].into()).subnet()
    }

    async fn take(shares: &FrameShares, mib: usize, of: Option<Subnet>) -> Result<FrameShare, ErrorCode> {
        shares.take(mib * MIB, of, Instant::now() + Duration::from_millis(20)).await
    }

    #[tokio::test]
    async fn one_subnet_has_a_quarter_and_others_the_rest() {
        let shares = FrameShares::new(256 * MIB);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(take(&shares, 16, subnet(1)).await.unwrap());
        }
        assert_eq!(take(&shares, 1, subnet(1)).await.unwrap_err(), ErrorCode::Busy);
        held.push(take(&shares, 16, subnet(2)).await.unwrap());
        // A caller that is not counted by subnet may use all of the rest.
        held.push(take(&shares, 176, None).await.unwrap());
        assert_eq!(take(&shares, 1, subnet(3)).await.unwrap_err(), ErrorCode::Busy);
        held.clear();
        drop(take(&shares, 64, subnet(1)).await.unwrap());
        drop(take(&shares, 256, None).await.unwrap());
    }

    #[tokio::test]
    async fn what_is_not_needed_goes_back_and_the_largest_request_fits_anywhere() {
        let shares = FrameShares::new(20 * MIB);
        let mut held = take(&shares, 2 * MAX_FRAME_BYTES / MIB, subnet(1)).await.unwrap();
        assert_eq!(take(&shares, 5, None).await.unwrap_err(), ErrorCode::Busy);
        held.shrink_to(MIB);
        let second = take(&shares, 15, subnet(1)).await.unwrap();
        drop((held, second));
        drop(take(&shares, 20, None).await.unwrap());
    }
}
