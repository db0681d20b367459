//! Memory for large frames, bounded in total and for each subnet. So streams that announce large frames and
//! send nothing leave room for other streams.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use baton_proto::{ErrorCode, limits::MAX_FRAME_BYTES};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::subnet::Subnet;

/// Divisor of the total for one subnet's limit; the largest request always fits.
const SUBNET_PART: usize = 4;
/// A unit of memory, in bytes.
const UNIT_BYTES: usize = 1024;
/// Number of subnets in the table above which subnets without a share are removed.
const SWEEP_FROM: usize = 64;

/// The memory for large frames.
#[derive(Debug)]
pub struct FrameShares {
    all: Arc<Semaphore>,
    subnet_units: usize,
    subnets: Mutex<HashMap<Subnet, Weak<Semaphore>>>,
}

/// A share of the memory; dropping it returns it.
#[derive(Debug)]
pub struct FrameShare {
    all: OwnedSemaphorePermit,
    /// The subnet's quota lives as long as any of its shares.
    subnet: Option<(OwnedSemaphorePermit, Arc<Semaphore>)>,
}

impl FrameShares {
    /// Memory of this many bytes, at least for one frame of each subnet.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let subnet_bytes = (bytes / SUBNET_PART).max(2 * MAX_FRAME_BYTES).min(bytes);
        Self {
            all: Arc::new(Semaphore::new(bytes / UNIT_BYTES)),
            subnet_units: subnet_bytes / UNIT_BYTES,
            subnets: Mutex::default(),
        }
    }

    /// Takes a share of `bytes` before the deadline: first from the subnet's quota, then from the total.
    ///
    /// # Errors
    /// [`ErrorCode::Busy`] after the deadline; [`ErrorCode::FrameTooLarge`] for more than the total can count.
    pub async fn take(
        &self,
        bytes: usize,
        subnet: Option<Subnet>,
        deadline: Instant,
    ) -> Result<FrameShare, ErrorCode> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).map_err(|_| ErrorCode::FrameTooLarge)?;
        let take = |of: Arc<Semaphore>| async move {
            match timeout_at(deadline, of.acquire_many_owned(units)).await {
                Ok(permit) => permit.map_err(|_| ErrorCode::Busy),
                Err(_) => Err(ErrorCode::Busy),
            }
        };
        let subnet = match subnet.map(|subnet| self.of(subnet)) {
            Some(quota) => Some((take(quota.clone()).await?, quota)),
            None => None,
        };
        Ok(FrameShare { all: take(self.all.clone()).await?, subnet })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subnet, Weak<Semaphore>>> {
        self.subnets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, subnet: Subnet) -> Arc<Semaphore> {
        let mut subnets = self.lock();
        if let Some(quota) = subnets.get(&subnet).and_then(Weak::upgrade) {
            return quota;
        }
        if subnets.len() >= SWEEP_FROM {
            subnets.retain(|_, quota| quota.strong_count() > 0);
        }
        let quota = Arc::new(Semaphore::new(self.subnet_units));
        subnets.insert(subnet, Arc::downgrade(&quota));
        quota
    }
}

impl FrameShare {
    /// Returns all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let units = bytes.div_ceil(UNIT_BYTES);
        let permits = [Some(&mut self.all), self.subnet.as_mut().map(|(permit, _)| permit)];
        for permit in permits.into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(units)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::subnet::Origin;

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
        assert_eq!(shares.all.available_permits(), 256 * 1024);
    }

    #[tokio::test]
    async fn what_is_not_needed_goes_back_and_the_largest_request_fits_anywhere() {
        let shares = FrameShares::new(20 * MIB);
        let mut held = take(&shares, 2 * MAX_FRAME_BYTES / MIB, subnet(1)).await.unwrap();
        assert_eq!(take(&shares, 5, None).await.unwrap_err(), ErrorCode::Busy);
        held.shrink_to(MIB);
        let second = take(&shares, 15, subnet(1)).await.unwrap();
        drop((held, second));
        assert_eq!(shares.all.available_permits(), 20 * 1024);
    }

    #[tokio::test]
    async fn subnets_without_a_share_are_forgotten() {
        let shares = FrameShares::new(64 * MIB);
        for number in 0..=u8::MAX {
            drop(take(&shares, 1, subnet(number)).await.unwrap());
        }
        assert!(shares.lock().len() <= SWEEP_FROM);
    }
}
