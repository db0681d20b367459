//! Blob IDs of sources.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering},
};

use baton_walrus_client::{BlobSource, BlobSourceError, ShardCount, blob_id_of};

const TEN: ShardCount = ShardCount::TESTBED;

/// Claims a length and counts the reads.
struct Claim {
    length: u64,
    reads: AtomicU32,
}

impl BlobSource for Claim {
    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[test]
fn refuses_too_large_sources_before_any_read() {
    for length in [TEN.max_blob_length() + 1, u64::MAX] {
        let source = Claim { length, reads: AtomicU32::new(0) };
        assert!(matches!(blob_id_of(&source, TEN), Err(BlobSourceError::TooLarge(_))));
        assert_eq!(source.reads.into_inner(), 0);
    }
}

#[test]
fn reports_a_source_that_cannot_be_read() {
    for length in [1, 1000, TEN.max_blob_length()] {
        let source = Claim { length, reads: AtomicU32::new(0) };
        let error = blob_id_of(&source, TEN).unwrap_err();
        assert!(
            matches!(error, BlobSourceError::Read(error) if error.kind() == io::ErrorKind::PermissionDenied)
        );
    }
}
