//! The folders of a user, by the specification of XDG.

use std::{env, path::PathBuf};

/// A path below the folder of a variable of the environment, or else below the `usual` folder of the home directory; `None`
/// without both.
#[must_use]
pub fn user_path(variable: &str, usual: &str, path: &str) -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from);
    below(folder(variable), folder("HOME"), usual, path)
}

/// As [`user_path`], for values of the environment. The specification ignores relative paths.
#[must_use]
pub fn below(set: Option<PathBuf>, home: Option<PathBuf>, usual: &str, path: &str) -> Option<PathBuf> {
    let absolute = |folder: Option<PathBuf>| folder.filter(|path| path.is_absolute());
    Some(absolute(set).or_else(|| Some(absolute(home)?.join(usual)))?.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_folder_goes_before_that_of_the_home_directory() {
        let folder = |text: &str| Some(PathBuf::from(text));
        for (set, home, expected) in [
            (folder("/d"), folder("/h"), folder("/d/p")),
            (None, folder("/h"), folder("/h/.local/share/p")),
            (folder("relative"), folder("/h"), folder("/h/.local/share/p")),
            (None, folder("h"), None),
        ] {
            assert_eq!(below(set, home, ".local/share", "p"), expected);
        }
    }
}
