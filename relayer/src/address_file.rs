//! The file in the data folder with the HTTP address of its relayer, while that runs. So `status` and `doctor`
//! need no `--http` for a relayer that was started with one.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use baton_keys::files::replace_private;

/// Its name.
const ADDRESS_FILE: &str = "http.address";

/// The address file, until it is dropped. A crash leaves it, and the next start replaces it.
pub(crate) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the address of a relayer's listener into its data folder.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(crate) fn write(data_dir: &Path, address: SocketAddr) -> io::Result<Self> {
        let path = data_dir.join(ADDRESS_FILE);
        replace_private(&path, address.to_string().as_bytes())?;
        Ok(Self(path))
    }

    /// The address in a data folder's file.
    pub(crate) fn read(data_dir: &Path) -> Option<SocketAddr> {
        let text = std::fs::read_to_string(data_dir.join(ADDRESS_FILE)).ok()?;
        text.trim().parse().ok()
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

    #[test]
    fn the_address_file_lives_as_long_as_its_relayer() {
        let folder = tempfile::tempdir().unwrap();
        let address = "127.0.0.1:8791".parse().unwrap();
        let file = AddressFile::write(folder.path(), address).unwrap();
        assert_eq!(AddressFile::read(folder.path()), Some(address));
        drop(file);
        assert_eq!(AddressFile::read(folder.path()), None);
        std::fs::write(folder.path().join(ADDRESS_FILE), "no address").unwrap();
        assert_eq!(AddressFile::read(folder.path()), None);
    }
}
