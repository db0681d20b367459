//! Blob IDs of sources and of bytes in pieces.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering},
};

use baton_walrus_client::{
    BlobIdHasher, BlobLengthError, BlobSource, BlobSourceError, ShardCount, blob_id, blob_id_of,
};

const TEN: ShardCount = ShardCount::TESTBED;

fn bytes(length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut out);
    out
}

#[test]
fn slices_and_pieces_have_the_same_id() {
    for length in [0, 1, 56, 57, 10_000, 1_834_952] {
        let bytes = bytes(length);
        let id = blob_id(&bytes, TEN).unwrap();
        assert_eq!(blob_id_of(&&bytes[..], TEN).unwrap(), id);

        for piece in [1, 999, 1 << 20, usize::MAX] {
            if length / piece > 10_000 {
                continue;
            }
            let mut hasher = BlobIdHasher::new(length as u64, TEN).unwrap();
            bytes.chunks(piece).for_each(|piece| hasher.update(piece).unwrap());
            assert_eq!(hasher.finish().unwrap(), id, "{length} bytes in pieces of {piece}");
        }
    }
}

#[test]
fn refuses_more_or_fewer_bytes_than_announced() {
    let error = |announced, given| BlobLengthError { announced, given };
    let mut hasher = BlobIdHasher::new(10, TEN).unwrap();
    hasher.update(&[1; 7]).unwrap();
    assert_eq!(hasher.update(&[1; 4]), Err(error(10, 11)));
    assert_eq!(hasher.finish(), Err(error(10, 7)));
    let mut hasher = BlobIdHasher::new(10, TEN).unwrap();
    hasher.update(&[1; 7]).unwrap();
    assert!(hasher.update(&[1; 4]).is_err());
    hasher.update(&[1; 3]).unwrap();
    assert_eq!(hasher.finish().unwrap(), blob_id(&[1; 10], TEN).unwrap());
}

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
        assert!(BlobIdHasher::new(length, TEN).is_err());
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
