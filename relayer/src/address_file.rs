//! The file in the data folder with the HTTP address and the options of its relayer, while that runs. So `status` and
//! `doctor` need no options for a relayer that was started with some.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use baton_keys::files::replace_private;
use serde::{Deserialize, Serialize};

use crate::config::Options;

/// Its name.
const ADDRESS_FILE: &str = "http.address";

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunningOptions {
    /// The address of the listener.
    pub(crate) http: SocketAddr,
    /// The options in force.
    pub(crate) options: Options,
}

/// The address file, until it is dropped. A crash leaves it, and the next start replaces it.
pub(crate) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the address and the options of a relayer into its data folder.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn write(data_dir: &Path, running: &RunningOptions) -> io::Result<Self> {
        let path = data_dir.join(ADDRESS_FILE);
        replace_private(&path, &serde_json::to_vec(running)?)?;
        Ok(Self(path))
    }

    /// The contents of a data folder's file.
    pub(crate) fn read(data_dir: &Path) -> Option<RunningOptions> {
        serde_json::from_slice(&std::fs::read(data_dir.join(ADDRESS_FILE)).ok()?).ok()
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(%error, "the address file was not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HttpSetting;

    #[test]
    fn the_address_file_lives_as_long_as_its_relayer() {
        let folder = tempfile::tempdir().unwrap();
        let http = "127.0.0.1:8791".parse().unwrap();
        let options = Options {
            http: Some(HttpSetting::At(http)),
            shards: Some(10),
            owners: Some("listed".parse().unwrap()),
            embedder: Some("hashing".parse().unwrap()),
            listen: vec!["/ip4/127.0.0.1/tcp/4101".parse().unwrap()],
            ..Options::default()
        };
        let running = RunningOptions { http, options };
        let file = AddressFile::write(folder.path(), &running).unwrap();
        assert_eq!(AddressFile::read(folder.path()), Some(running));
        drop(file);
        assert_eq!(AddressFile::read(folder.path()), None);
        std::fs::write(folder.path().join(ADDRESS_FILE), "no address").unwrap();
        assert_eq!(AddressFile::read(folder.path()), None);
    }
}
