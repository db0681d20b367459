use std::time::Duration;

use baton_proto::ids::BlobId;
use tempfile::TempDir;

use super::{
    super::{Epochs, record::Record},
    *,
};

fn open() -> (TempDir, Folder) {
    let path = TempDir::new().unwrap();
    let folder = Folder::open(path.path()).unwrap();
    (path, folder)
}

fn write(folder: &Folder, number: u128, bytes: &[u8]) -> FileKey {
    let mut writer = folder.create(9, Arc::default()).unwrap();
    bytes.chunks(CHUNK_BYTES).for_each(|chunk| writer.write(chunk).unwrap());
    let file = writer.key(number);
    let record = Record { file, bought: 1, objects: Vec::new() };
    let epochs = Epochs::new(1, Duration::from_secs(9), 5);
    writer.finish(&Trailer { shards: 10, epochs, id: BlobId([3; 32]), record }).unwrap();
    writer.keep();
    file
}

fn read(folder: &Folder, key: FileKey) -> Option<Vec<u8>> {
    let file = folder.read(key).unwrap()?;
    let mut bytes = Vec::new();
    for number in 0..file.chunks() {
        bytes.extend_from_slice(&file.chunk(number).unwrap()?);
    }
    Some(bytes)
}

#[test]
fn what_is_written_is_read_whatever_its_length_and_says_what_it_is() {
    let (_path, folder) = open();
    for (length, number) in
        [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES].iter().zip(0..)
    {
        let bytes: Vec<u8> = (0..=250).cycle().take(*length).collect();
        let key = write(&folder, number, &bytes);
        assert_eq!(read(&folder, key), Some(bytes), "{length}");
        assert_eq!(folder.verify(key).unwrap(), Verdict::Whole, "{length}");
        let trailer = folder.trailer(number).unwrap().unwrap();
        assert_eq!((trailer.id, trailer.record.file), (BlobId([3; 32]), key), "{length}");
    }
    folder.sync().unwrap();
}

#[test]
fn any_changed_missing_or_misplaced_byte_is_found() {
    let (_path, folder) = open();
    let bytes = vec![7; CHUNK_BYTES + 10];
    let key = write(&folder, 1, &bytes);
    let trailer = folder.trailer(1).unwrap().unwrap();
    let path = folder.path_of(1);
    let whole = fs::read(&path).unwrap();
    let hashes_end = bytes.len() + 2 * HASH_BYTES;
    for place in [0, CHUNK_BYTES - 1, CHUNK_BYTES, bytes.len() - 1, bytes.len(), hashes_end - 1] {
        let mut changed = whole.clone();
        changed[place] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert_eq!(read(&folder, key), None, "{place}");
        match folder.verify(key).unwrap() {
            Verdict::HashesChanged(right) => {
                assert!(place >= bytes.len(), "{place}");
                folder.restore_hashes(key, &right).unwrap();
                assert_eq!(fs::read(&path).unwrap(), whole);
            }
            verdict => assert_eq!((verdict, place < bytes.len()), (Verdict::Changed, true), "{place}"),
        }
    }
    for place in [hashes_end, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[place] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert_eq!(folder.trailer(1).unwrap(), None, "{place}");
        assert_eq!(read(&folder, key), Some(bytes.clone()), "{place}");
        folder.restore_trailer(&trailer).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    for length in [0, CHUNK_BYTES, bytes.len(), hashes_end - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(read(&folder, key), None, "{length}");
        assert_eq!(folder.verify(key).unwrap(), Verdict::Changed);
        assert_eq!(folder.trailer(1).unwrap(), None, "{length}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(read(&folder, key), Some(bytes));
    let other = write(&folder, 2, &[8; CHUNK_BYTES + 10]);
    assert_eq!(read(&folder, FileKey { number: 1, ..other }), None);
    // A whole file under another name is refused.
    fs::rename(folder.path_of(2), folder.path_of(3)).unwrap();
    assert_eq!(folder.trailer(3).unwrap(), None);
}

#[test]
fn an_upload_that_is_given_up_leaves_nothing_and_a_finished_one_no_part() {
    let (path, folder) = open();
    folder.create(1, Arc::default()).unwrap().write(b"given up").unwrap();
    assert!(!folder.part_path(1).exists());
    write(&folder, 2, b"kept");
    folder.probe(7).unwrap();
    let names: Vec<String> = folder.names().unwrap().map(Result::unwrap).collect();
    assert_eq!(names, [name_of(2)]);
    for _ in 0..2 {
        folder.remove(&folder.path_of(2)).unwrap();
    }
    let quarantine = path.path().join("quarantine");
    for _ in 0..3 {
        write(&folder, 3, b"again");
        folder.quarantine(3, &quarantine).unwrap();
    }
    assert_eq!(fs::read_dir(quarantine).unwrap().count(), 3);
}

#[test]
fn names_tell_blobs_from_parts_and_from_what_is_not_the_stores() {
    assert_eq!(Name::parse(&name_of(0xab << 64)), Name::Blob(0xab << 64));
    assert_eq!(Name::parse("00000000000000ff.part"), Name::Part(255));
    for name in ["notes.txt", "", "part", "ff.part", "00000000deadbeef", &"+".repeat(32), &"A".repeat(32)] {
        assert_eq!(Name::parse(name), Name::Foreign, "{name}");
    }
}
