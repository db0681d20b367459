//! Looks for damage of the write-ahead log that a killed process left, before SQLite opens it.
//!
//! SQLite takes the log's frames up to the first one with a wrong checksum, and silently drops the rest. That
//! is its end of an unfinished write. Whole commits behind that frame show damage instead. The log is then
//! copied before SQLite writes over it, and the damage is logged.
//! Formats: <https://sqlite.org/fileformat2.html#walformat>.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read as _},
    path::{Path, PathBuf},
};

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const MAX_PAGE_BYTES: u32 = 65_536;
/// The magic number, without its last bit, which tells the order of bytes of the checksums.
const MAGIC: u32 = 0x377f_0682;

type Checksum = [u32; 2];

/// Names a damaged log in the program's log, and copies it. Blocking.
pub(super) fn inspect(log: &Path) -> io::Result<()> {
    let lost = lost_commits(log)?;
    if lost == 0 {
        return Ok(());
    }
    let copy = free_name(log);
    fs::copy(log, &copy)?;
    let copy = copy.display();
    if lost == 1 {
        // A process that is killed between the two parts of its last write leaves the same bytes.
        tracing::warn!(
            %copy,
            "the last write in memory's log is incomplete, and is left out: if the relayer was killed while it wrote, nobody \
             was told that it was made; otherwise the disk damaged it. A copy of the log stays"
        );
        return Ok(());
    }
    tracing::error!(
        lost,
        %copy,
        "memory is damaged: the end of its log cannot be read, and the last writes before the relayer was killed are lost. \
         A copy of the log stays; `baton-relayer restore` puts back a backup"
    );
    Ok(())
}

fn free_name(log: &Path) -> PathBuf {
    let name = |number: u32| {
        let mut name = log.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        PathBuf::from(name)
    };
    (1..).map(name).find(|name| !name.exists()).expect("numbers do not end")
}

/// The number of commits at or behind the first frame that SQLite does not take.
fn lost_commits(log: &Path) -> io::Result<u64> {
    let mut file = match File::open(log) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut file, &mut header)? {
        return Ok(0);
    }
    let words = words(&header);
    let page_bytes = words[2];
    if words[0] & !1 != MAGIC
        || !page_bytes.is_power_of_two()
        || !(512..=MAX_PAGE_BYTES).contains(&page_bytes)
    {
        // Nothing is known about the frames then; the vault compares the database with the key files.
        return Ok(u64::from(file.get_ref().metadata()?.len() > (HEADER_BYTES + FRAME_HEADER_BYTES) as u64));
    }
    let is_big_endian = words[0] & 1 == 1;
    let salt = [words[4], words[5]];
    let mut is_intact = checksum([0; 2], &header[..24], is_big_endian) == [words[6], words[7]];
    let mut before = [words[6], words[7]];
    let (mut head, mut page) = ([0; FRAME_HEADER_BYTES], vec![0; page_bytes as usize]);
    let mut lost = 0;
    while fill(&mut file, &mut head)? && fill(&mut file, &mut page)? {
        let words = self::words(&head);
        let sum = checksum(checksum(before, &head[..8], is_big_endian), &page, is_big_endian);
        let follows = sum == [words[4], words[5]] && [words[2], words[3]] == salt;
        let is_first_bad = is_intact && !follows;
        is_intact &= follows;
        // A frame behind the first bad one counts if it fits to its predecessor. Frames of an earlier use of
        // the file have another salt.
        let is_of_this_log = [words[2], words[3]] == salt && (follows || is_first_bad);
        if !is_intact && is_of_this_log && words[1] != 0 {
            lost += 1;
        }
        before = [words[4], words[5]];
    }
    Ok(lost)
}

/// Reads a whole buffer; false at the end of the file.
fn fill(file: &mut BufReader<File>, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The big-endian numbers of a header; absent ones are zero.
fn words(header: &[u8]) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(header.chunks_exact(4)) {
        *word = u32::from_be_bytes(bytes.try_into().expect("chunks have four bytes"));
    }
    words
}

/// SQLite's checksum of an even number of words, continued from another.
fn checksum([mut first, mut second]: Checksum, bytes: &[u8], is_big_endian: bool) -> Checksum {
    let word = |bytes: &[u8]| {
        let bytes = bytes.try_into().expect("parts have four bytes");
        if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        let (a, b) = pair.split_at(4);
        first = first.wrapping_add(word(a)).wrapping_add(second);
        second = second.wrapping_add(word(b)).wrapping_add(first);
    }
    [first, second]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{
        Batch, Pseudonym, Record, Space, Storage as _,
        embedded::{EmbeddedConfig, EmbeddedStorage, log_of},
    };

    const COMMITS: u64 = 12;

    /// The files of a process that was killed after some commits.
    async fn killed() -> (tempfile::TempDir, EmbeddedConfig) {
        let folder = tempfile::tempdir().unwrap();
        let [running, killed] =
            ["running", "killed"].map(|name| EmbeddedConfig::new(folder.path().join(name)));
        let storage = EmbeddedStorage::open(&running).unwrap();
        let mut version = 0;
        for number in 0..COMMITS {
            let put = vec![Record { space: Space::Log, number, bytes: vec![7; 3_000] }];
            version =
                storage.commit(Pseudonym([1; 16]), version, Batch { put, ..Batch::default() }).await.unwrap();
        }
        fs::create_dir(&killed.path).unwrap();
        fs::copy(running.file(), killed.file()).unwrap();
        fs::copy(log_of(&running.file()), log_of(&killed.file())).unwrap();
        (folder, killed)
    }

    #[tokio::test]
    async fn the_log_of_a_killed_process_is_intact_and_so_is_one_with_an_unfinished_end() {
        let (_folder, config) = killed().await;
        let log = log_of(&config.file());
        let bytes = fs::read(&log).unwrap();
        assert_eq!(lost_commits(&log).unwrap(), 0);
        for cut in [1, 5_000, bytes.len() - 40, bytes.len() - HEADER_BYTES, bytes.len()] {
            fs::write(&log, &bytes[..bytes.len() - cut]).unwrap();
            assert_eq!(lost_commits(&log).unwrap(), 0, "cut by {cut}");
        }
        fs::remove_file(&log).unwrap();
        assert_eq!(lost_commits(&log).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_flipped_bit_in_the_log_is_named_and_the_log_is_copied_before_it_is_overwritten() {
        let (_folder, config) = killed().await;
        let log = log_of(&config.file());
        let good = fs::read(&log).unwrap();
        let database = fs::read(config.file()).unwrap();
        for part in 0..30 {
            fs::write(config.file(), &database).unwrap();
            let mut bad = good.clone();
            let at = good.len() * part / 30;
            bad[at] ^= 0x10;
            fs::write(&log, &bad).unwrap();
            let lost = lost_commits(&log).unwrap();
            let storage = EmbeddedStorage::open(&config).unwrap();
            let found =
                storage.read(Pseudonym([1; 16]), Space::Log, 0, usize::MAX).await.unwrap_or_default().len()
                    as u64;
            assert!(found == COMMITS || lost > 0, "{at}: {found} are there, and nothing is named");
            let copied = fs::read_dir(&config.path).unwrap().flatten().any(|entry| {
                entry.file_name().to_string_lossy().contains("damaged")
                    && fs::read(entry.path()).unwrap() == bad
            });
            assert_eq!(copied, lost > 0, "{at}");
        }
    }
}
