//! The settings of a running node, from its admin port to `doctor`: lines of a configuration file.
//!
//! The text has no secrets. An option with a redacted part is left out, so that nobody uses the rest of it.

use std::path::{Path, PathBuf};

use baton_kit::config;

use super::{RunFlags, Settings};

/// Options that say nothing about the node's surroundings, or that the asking program knows better.
const LEFT_OUT: [&str; 3] = ["data_dir", "admin", "json"];

impl Settings {
    /// The options in force as lines of a configuration file.
    #[must_use]
    pub(crate) fn running_text(&self) -> String {
        config::as_file(&self.options, &LEFT_OUT)
    }

    /// The options with other values than in `other`.
    #[must_use]
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let pairs = self.shown().into_iter().zip(other.shown());
        let differing = pairs.filter(|(own, other)| own.value != other.value);
        differing.map(|(own, _)| own.key).filter(|key| !LEFT_OUT.contains(key)).collect()
    }
}

/// Reads the text of [`Settings::running_text`]. Ignores what this version does not know, and relative paths,
/// because the node may run in another folder.
#[must_use]
pub(crate) fn parse_running(text: &str) -> RunFlags {
    let mut options = config::examine::<RunFlags>(Path::new("running node"), text).options;
    let paths: [&mut Option<PathBuf>; 4] = [
        &mut options.model_dir,
        &mut options.publisher_token_file,
        &mut options.publisher_secret_file,
        &mut options.proxied_key_file,
    ];
    for path in paths {
        if path.as_ref().is_some_and(|path| path.is_relative()) {
            *path = None;
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        let options = config::examine::<RunFlags>(Path::new("c"), text);
        assert!(options.problems.is_empty(), "{:?}", options.problems);
        Settings::resolve(options.options, RunFlags::default(), None).unwrap()
    }

    #[test]
    fn the_settings_of_a_running_node_are_read_back_without_its_secrets() {
        let running = settings(
            "listen = [\"/ip4/127.0.0.1/tcp/7\"]\npublisher = \"https://p\"\naggregator = \"https://a/?key=x\"\n\
             slots = 3\ndata_dir = \"/d\"\nmodel_dir = \"models\"\nproxied_key_file = \"/k\"\nadmin = \"none\"\n\
             engine = \"proxied\"\nproxied_url = \"http://q\"\nproxied_model = \"m\"\njson = true\n",
        );
        let text = running.running_text();
        assert!(!text.contains("REDACTED") && !text.contains("/d"), "{text}");
        let read = parse_running(&format!("{text}a_new_option = 1\n"));
        assert_eq!((read.slots, read.publisher.as_deref()), (Some(3), Some(&["https://p".to_owned()][..])));
        assert_eq!(read.listen.unwrap(), running.listen());
        assert_eq!(read.proxied_key_file.as_deref(), Some(Path::new("/k")));
        assert!(read.aggregator.is_none() && read.model_dir.is_none() && read.data_dir.is_none());
        assert!(read.admin.is_none() && read.json.is_none());
    }

    #[test]
    fn only_options_about_the_surroundings_differ() {
        let (one, other) = (settings("slots = 3\n"), settings("slots = 4\njson = true\nadmin = \"none\"\n"));
        assert_eq!(one.differences(&other), ["slots"]);
        assert!(one.differences(&one).is_empty());
    }
}
