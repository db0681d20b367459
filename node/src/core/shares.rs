//! Memory for large frames: bounded for all together, and for one subnet to a part of it, so that a few streams which
//! announce much and send nothing leave room for others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use baton_mesh::Subnet;
use baton_proto::{ErrorCode, limits::MAX_FRAME_BYTES};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::lock::lock;

/// Of all memory for large frames, one in so many parts is the most that one subnet has; the largest request always fits.
const SUBNET_PART: usize = 4;
/// A unit of memory, in bytes.
const UNIT_BYTES: usize = 1024;
/// Subnets in the table from which on those without a share are looked for and forgotten.
const SWEEP_FROM: usize = 64;

/// The memory.
#[derive(Debug)]
pub(crate) struct FrameShares {
    all: Arc<Semaphore>,
    subnet_units: usize,
    subnets: Mutex<HashMap<Subnet, Weak<Semaphore>>>,
}

/// A part of it. Dropping gives it back.
#[derive(Debug)]
pub(crate) struct FrameShare {
    all: OwnedSemaphorePermit,
    /// With the subnet's quota, which lives as long as any of its shares.
    subnet: Option<(OwnedSemaphorePermit, Arc<Semaphore>)>,
}

impl FrameShares {
    pub(crate) fn new(bytes: usize) -> Self {
        let subnet_bytes = (bytes / SUBNET_PART).max(2 * MAX_FRAME_BYTES).min(bytes);
        Self {
            all: Arc::new(Semaphore::new(bytes / UNIT_BYTES)),
            subnet_units: subnet_bytes / UNIT_BYTES,
            subnets: Mutex::default(),
        }
    }

    /// A share of so many bytes, waited for until the deadline: first what the subnet has, then what there is.
    pub(crate) async fn take(
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

    fn of(&self, subnet: Subnet) -> Arc<Semaphore> {
        let mut subnets = lock(&self.subnets);
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
    /// Gives back what is beyond so many bytes.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
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

    use baton_mesh::Origin;

    use super::*;

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
        // Whoever is not counted by subnet has all that is left.
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
        assert!(lock(&shares.subnets).len() <= SWEEP_FROM);
    }
}
