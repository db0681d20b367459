//! Small sealed records that handlers keep for an owner, such as delegations and leftovers of a session's
//! client. A keyed hash names each one.

use super::Memory;
use crate::{
    api::{MemoryError, Result},
    ids::OwnerId,
    limits::{MAX_RECORDS, MAX_TEXT_BYTES},
    owner::{COMMIT_TRIES, CommitOutcome, busy},
};

/// Records by name; `None` removes a record.
pub type RecordChanges = Vec<(String, Option<Vec<u8>>)>;

impl Memory {
    /// Writes a record of at most 512 KiB. `None` removes it, so that its former bytes are unreadable.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`] for a larger one, [`MemoryError::Unavailable`].
    pub async fn put_record(&self, owner: OwnerId, name: &str, bytes: Option<Vec<u8>>) -> Result<()> {
        let changes = vec![(name.to_owned(), bytes)];
        self.change_records(owner, &[], |_| Ok(changes.clone())).await
    }

    /// Reads such a record.
    ///
    /// # Errors
    /// [`MemoryError::Unavailable`], [`MemoryError::Damaged`].
    pub async fn get_record(&self, owner: OwnerId, name: &str) -> Result<Option<Vec<u8>>> {
        self.hold(owner, async |owner| Ok(owner.named_record(name).await?.map(|bytes| bytes.to_vec()))).await
    }

    /// Reads records and changes some of them, all or none. If another writer changes the owner meanwhile, it
    /// reads and decides again.
    ///
    /// `change` gets the records in the order of `names`. A write between two reads may show it one old and
    /// one new record; a decision on such a pair is not written.
    ///
    /// # Errors
    /// The error of `change`; [`MemoryError::Invalid`] for too large or too many records;
    /// [`MemoryError::Unavailable`]; [`MemoryError::Damaged`].
    pub async fn change_records(
        &self,
        owner: OwnerId,
        names: &[String],
        mut change: impl FnMut(&[Option<Vec<u8>>]) -> Result<RecordChanges> + Send,
    ) -> Result<()> {
        self.hold(owner, async |owner| {
            for _ in 0..COMMIT_TRIES {
                let mut read = Vec::with_capacity(names.len());
                for name in names {
                    read.push(owner.named_record(name).await?.map(|bytes| bytes.to_vec()));
                }
                let changes = change(&read)?;
                check(&changes)?;
                match owner.set_named_records(&changes).await? {
                    CommitOutcome::Done => return Ok(()),
                    CommitOutcome::Conflict => {}
                }
            }
            Err(busy())
        })
        .await
    }
}

fn check(changes: &RecordChanges) -> Result<()> {
    let too_long = |bytes: &Option<Vec<u8>>| bytes.as_ref().is_some_and(|bytes| bytes.len() > MAX_TEXT_BYTES);
    if changes.len() > MAX_RECORDS || changes.iter().any(|(_, bytes)| too_long(bytes)) {
        return Err(MemoryError::Invalid(format!(
            "at most {MAX_RECORDS} records at once, of at most {MAX_TEXT_BYTES} bytes each"
        )));
    }
    Ok(())
}
