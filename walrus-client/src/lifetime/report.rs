//! The ends of all blobs, for people and programs.

use std::fmt;

use baton_proto::ids::BlobId;
use serde::Serialize;

use super::{
    clock::{EpochBounds, TimeBounds},
    ledger::{Ledger, Trouble, blob_id_text},
};
use crate::http_store::ObjectOwner;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The state of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlobState {
    /// It is alive, at least until the earlier bound of its end.
    Kept,
    /// It was found stored; its end is unknown.
    EndUnknown,
    /// The earlier bound of its end is past, but not the later one.
    MayHaveEnded,
    /// Its lifetime is over.
    Ended,
    /// Every reachable aggregator said that it lacks the blob.
    Lost,
}

/// One blob of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlobLine {
    /// Its ID.
    #[serde(serialize_with = "blob_id_text::serialize")]
    pub blob_id: BlobId,
    /// Its length in bytes.
    pub length: u64,
    /// Its state.
    pub state: BlobState,
    /// The first epoch without it, if known.
    pub end_epoch: Option<u64>,
    /// Bounds of its end; the later bound is the largest number if unknown.
    pub ends: TimeBounds,
    /// Whether it cannot be deleted earlier.
    pub permanent: bool,
    /// The intended owner of the object, which may delete it if it is not permanent.
    pub owner: ObjectOwner,
    /// The problem of its renewal.
    pub trouble: Option<Trouble>,
}

/// The ends of all blobs. Its text form is a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LifetimeReport {
    /// The time of the report, Unix time in milliseconds.
    pub now_ms: u64,
    /// The epoch, if anything is known.
    pub epoch: Option<EpochBounds>,
    /// All blobs, the first to end at the front.
    pub blobs: Vec<BlobLine>,
    /// The sum of their bytes.
    pub bytes: u64,
}

impl Ledger {
    /// Makes the report.
    #[must_use]
    pub fn report(&self, now_ms: u64) -> LifetimeReport {
        let mut blobs: Vec<BlobLine> = self
            .blobs()
            .map(|blob| {
                let ends = self.ends(blob);
                let state = match (&blob.trouble, blob.end_epoch) {
                    (Some(Trouble::Lost { .. }), _) => BlobState::Lost,
                    _ if ends.latest_ms <= now_ms => BlobState::Ended,
                    (_, None) => BlobState::EndUnknown,
                    _ if ends.earliest_ms <= now_ms => BlobState::MayHaveEnded,
                    _ => BlobState::Kept,
                };
                // The end of an epoch alone does not end a blob of unknown end.
                let state = match (state, blob.end_epoch) {
                    (BlobState::Ended, None) => BlobState::EndUnknown,
                    (state, _) => state,
                };
                BlobLine {
                    blob_id: blob.blob_id,
                    length: blob.length,
                    state,
                    end_epoch: blob.end_epoch,
                    ends,
                    permanent: blob.permanent,
                    owner: blob.owner,
                    trouble: blob.trouble.clone(),
                }
            })
            .collect();
        blobs.sort_by_key(|line| (line.ends.earliest_ms, line.blob_id));
        let bytes = blobs.iter().map(|line| line.length).fold(0, u64::saturating_add);
        LifetimeReport { now_ms, epoch: self.clock().epoch_at(now_ms), blobs, bytes }
    }
}

impl fmt::Display for LifetimeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.blobs.len() == 1 { "" } else { "s" };
        write!(f, "{} blob{plural}, {} bytes", self.blobs.len(), self.bytes)?;
        match self.epoch {
            Some(EpochBounds { earliest, latest }) if earliest == latest => {
                writeln!(f, ", epoch {earliest}")?
            }
            Some(EpochBounds { earliest, latest }) => writeln!(f, ", epoch {earliest} to {latest}")?,
            None => writeln!(f, ", epoch unknown")?,
        }
        for line in &self.blobs {
            let kind = if line.permanent { "permanent" } else { "deletable" };
            write!(f, "{}  {:>10} bytes  {kind}  ", line.blob_id, line.length)?;
            match (line.state, line.end_epoch) {
                (BlobState::Lost, _) => write!(f, "lost: no aggregator has it")?,
                (BlobState::EndUnknown, _) | (_, None) => write!(f, "end unknown")?,
                (BlobState::Ended, Some(end)) => write!(f, "ended with epoch {end}")?,
                (BlobState::MayHaveEnded, Some(end)) => write!(f, "ends with epoch {end}, perhaps already")?,
                (BlobState::Kept, Some(end)) => {
                    let left = RemainingTime(line.ends.earliest_ms.saturating_sub(self.now_ms));
                    write!(f, "ends with epoch {end}, not before {left}")?;
                }
            }
            match &line.trouble {
                Some(Trouble::Failed { reason, .. }) => writeln!(f, "; not renewed: {reason}")?,
                Some(Trouble::Uncertain { reason, .. }) => writeln!(f, "; perhaps renewed: {reason}")?,
                Some(Trouble::Lost { .. }) | None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// A time from now, in the two largest units.
struct RemainingTime(u64);

impl fmt::Display for RemainingTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0;
        let (days, hours, minutes) = (ms / DAY_MS, ms % DAY_MS / HOUR_MS, ms % HOUR_MS / MINUTE_MS);
        match (days, hours) {
            (0, 0) => write!(f, "in {minutes} min"),
            (0, _) => write!(f, "in {hours} h {minutes} min"),
            _ => write!(f, "in {days} d {hours} h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ledger::tests::*, *};

    #[test]
    fn tells_what_ends_when_the_most_urgent_first() {
        let mut ledger = ledger();
        ledger.note(BlobId([4; 32]), Some(Trouble::Failed { reason: "HTTP 402".to_owned(), at_ms: NOW }));
        let report = ledger.report(NOW + DAY);
        let states: Vec<(u8, BlobState)> =
            report.blobs.iter().map(|line| (line.blob_id.0[0], line.state)).collect();
        use BlobState::{EndUnknown, Ended, Kept};
        assert_eq!(states, [(2, Ended), (3, EndUnknown), (1, Kept), (4, Kept)]);
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "4 blobs, 40 bytes, epoch 11 to 12");
        for (line, end) in [
            (lines[1], "deletable  ended with epoch 11"),
            (lines[2], "deletable  end unknown"),
            (lines[3], "deletable  ends with epoch 13, not before in 23 h 50 min"),
            (lines[4], "deletable  ends with epoch 40, not before in 27 d 23 h; not renewed: HTTP 402"),
        ] {
            assert!(line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn an_end_between_its_bounds_is_said_to_be_uncertain() {
        let report = ledger().report(NOW);
        assert_eq!(report.blobs[0].state, BlobState::MayHaveEnded);
        assert!(report.to_string().contains("ends with epoch 11, perhaps already"));
    }

    #[test]
    fn what_is_lost_is_said_to_be_lost() {
        let mut ledger = ledger();
        ledger.note(BlobId([1; 32]), Some(Trouble::Lost { at_ms: NOW }));
        let report = ledger.report(NOW);
        assert!(report.blobs.iter().any(|line| line.state == BlobState::Lost));
        assert!(report.to_string().contains("lost: no aggregator has it"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["blobs"][2]["state"], "lost");
    }
}
