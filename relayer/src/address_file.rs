//! The file in the data folder with the HTTP address and the options of its relayer, while that runs. So
//! `doctor` needs no options for a relayer that was started with some.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use baton_keys::files::replace_private;
use baton_kit::config;
use serde::{Deserialize, Serialize};

use crate::config::Options;

/// Its name.
const ADDRESS_FILE: &str = "http.address";

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunningOptions {
    /// The address of the listener.
    pub(crate) http: SocketAddr,
    /// The options in force, as lines of a configuration file.
    options: String,
}

impl RunningOptions {
    /// These options with the address of the listener.
    pub(crate) fn new(http: SocketAddr, options: &Options) -> Self {
        Self { http, options: config::as_file(options, &[]) }
    }

    /// The options that this version knows.
    pub(crate) fn options(&self) -> Options {
        config::examine(Path::new(ADDRESS_FILE), &self.options).options
    }
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
    use crate::{config::EmbedderSetting, owners::OwnerAdmission};

    #[test]
    fn the_address_file_lives_as_long_as_its_relayer() {
        let folder = tempfile::tempdir().unwrap();
        let http = "127.0.0.1:8791".parse().unwrap();
        let options = Options {
            http: Some("127.0.0.1:8791".to_owned()),
            shards: Some(10),
            owners: Some(OwnerAdmission::Listed),
            embedder: Some(EmbedderSetting::Hashing),
            listen: Some(vec!["/ip4/127.0.0.1/tcp/4101".parse().unwrap()]),
            ..Options::default()
        };
        let running = RunningOptions::new(http, &options);
        assert_eq!(running.options(), options);
        let file = AddressFile::write(folder.path(), &running).unwrap();
        assert_eq!(AddressFile::read(folder.path()), Some(running));
        drop(file);
        assert_eq!(AddressFile::read(folder.path()), None);
        std::fs::write(folder.path().join(ADDRESS_FILE), "no address").unwrap();
        assert_eq!(AddressFile::read(folder.path()), None);
    }
}
