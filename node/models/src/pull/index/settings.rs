//! pip's settings, as far as they name places of packages.

use std::{
    ffi::OsString,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The Python whose pip is asked for its index.
pub(crate) const PYTHON: &str = "python3";
/// The configuration files of the whole machine, the strongest first.
pub(crate) const MACHINE_FILES: &[&str] =
    &["/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/Library/Application Support/pip/pip.conf"];
/// Bytes of a configuration file.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Bytes of pip's help.
const MAX_HELP_BYTES: u64 = 256 << 10;
/// The sections of a configuration file that count, the strongest first.
const SECTIONS: [&str; 3] = ["download", "install", "global"];

/// What the process was started with; tests set other values.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    /// The value of an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The Python whose pip is asked for its index.
    pub(crate) python: &'a str,
    /// The configuration files of the whole machine, the strongest first.
    pub(crate) machine_files: &'a [&'a str],
}

impl Environment<'_> {
    /// The value of a variable that is set and not empty.
    fn text(&self, name: &str) -> Option<String> {
        let value = (self.variable)(name)?.into_string().ok()?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }
}

/// The settings of the environment and the files.
pub(super) struct PipSettings<'a> {
    environment: Environment<'a>,
    /// The lines of the files as section, key and value, the strongest file first.
    lines: Vec<(String, String, String)>,
}

impl<'a> PipSettings<'a> {
    pub(super) fn read(environment: &Environment<'a>) -> Self {
        let mut lines = Vec::new();
        for path in files(environment) {
            let mut text = String::new();
            let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
            if read.is_ok() {
                lines.extend(parse(&text));
            }
        }
        Self { environment: *environment, lines }
    }

    /// A setting: of the environment, or else of the files.
    pub(super) fn value(&self, key: &str) -> Option<String> {
        let variable = format!("PIP_{}", key.replace('-', "_").to_uppercase());
        self.environment.text(&variable).or_else(|| {
            let of =
                |section: &&str| self.lines.iter().find(|(found, name, _)| found == section && name == key);
            SECTIONS.iter().find_map(of).map(|(_, _, value)| value.clone())
        })
    }

    /// The parts of a setting that is a list.
    pub(super) fn values(&self, key: &str) -> Vec<String> {
        self.value(key).iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
    }
}

/// pip's configuration files, the strongest first. `PIP_CONFIG_FILE=/dev/null` means none.
fn files(environment: &Environment<'_>) -> Vec<PathBuf> {
    let named = environment.text("PIP_CONFIG_FILE").map(PathBuf::from);
    if named.as_deref() == Some(Path::new("/dev/null")) {
        return Vec::new();
    }
    let below = |variable: &str, path: &str| Some(PathBuf::from(environment.text(variable)?).join(path));
    let site = below("VIRTUAL_ENV", "pip.conf");
    let user = below("XDG_CONFIG_HOME", "pip/pip.conf").or_else(|| below("HOME", ".config/pip/pip.conf"));
    let mac = below("HOME", "Library/Application Support/pip/pip.conf");
    let early = below("HOME", ".pip/pip.conf");
    let machine = environment.machine_files.iter().map(PathBuf::from);
    [named, site, user, mac, early].into_iter().flatten().chain(machine).collect()
}

/// The lines of a configuration file. A line that begins with white space continues the value above it.
fn parse(text: &str) -> Vec<(String, String, String)> {
    let (mut section, mut lines) = (String::new(), Vec::<(String, String, String)>::new());
    for line in text.lines() {
        let words = line.trim();
        if words.is_empty() || words.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with(char::is_whitespace) {
            if let Some((_, _, value)) = lines.last_mut() {
                value.push('\n');
                value.push_str(words);
            }
        } else if let Some(name) = words.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if let Some((key, value)) = words.split_once(['=', ':']) {
            let key = key.trim().to_lowercase().replace('_', "-");
            lines.push((section.clone(), key, value.trim().to_owned()));
        }
    }
    lines
}

/// The index of an installed pip, from its help: `Base URL of the Python Package Index (default URL)`.
pub(super) fn default_index(environment: &Environment<'_>) -> Option<String> {
    let mut pip = Command::new(environment.python)
        // Isolated: it would else run a `pip.py` of the present folder.
        .args(["-I", "-m", "pip", "download", "--help"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut help = String::new();
    let read = pip.stdout.take()?.take(MAX_HELP_BYTES).read_to_string(&mut help);
    // It has written all, or nobody reads the rest.
    let _ = pip.wait();
    read.ok()?;
    index_in(&help)
}

fn index_in(help: &str) -> Option<String> {
    let words = help.split_whitespace().skip_while(|word| *word != "--index-url");
    // The words of this option alone.
    let mut words = words.take(12).skip_while(|word| *word != "(default");
    let url = words.nth(1)?.trim_end_matches(['.', ')']);
    url.starts_with("http").then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn variables_go_before_files_and_a_section_of_the_command_before_the_global_one() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "machine.conf",
            "[global]\nindex-url = http://machine\nextra-index-url: http://one\n   http://two\n",
        );
        let machine = folder.path().join("machine.conf").display().to_string();
        let read = |variables: &[(&str, &str)]| {
            let variables: BTreeMap<&str, OsString> =
                variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
            let variable = |name: &str| variables.get(name).cloned();
            let machine_files = [machine.as_str()];
            let environment = Environment { variable: &variable, python: "", machine_files: &machine_files };
            let pip = PipSettings::read(&environment);
            (pip.value("index-url").unwrap_or_default(), pip.values("extra-index-url"))
        };
        let both = vec!["http://one".to_owned(), "http://two".to_owned()];
        assert_eq!(read(&[]), ("http://machine".to_owned(), both.clone()));
        write(
            ".config/pip/pip.conf",
            "; mine\n[global]\nindex_url = http://user\n[list]\nindex-url = http://no\n",
        );
        assert_eq!(read(&[("HOME", &home)]).0, "http://user");
        write("venv/pip.conf", "[global]\nindex-url = http://site\n");
        let site = format!("{home}/venv");
        assert_eq!(read(&[("HOME", &home), ("VIRTUAL_ENV", &site)]).0, "http://site");
        write("machine.conf", "[download]\nindex-url = http://command\n");
        assert_eq!(
            read(&[("HOME", &home), ("VIRTUAL_ENV", &site)]),
            ("http://command".to_owned(), Vec::new())
        );
        let given = [
            ("HOME", &*home),
            ("PIP_INDEX_URL", " http://variable "),
            ("PIP_EXTRA_INDEX_URL", "http://one http://two"),
        ];
        assert_eq!(read(&given), ("http://variable".to_owned(), both));
        assert_eq!(read(&[("HOME", &home), ("PIP_CONFIG_FILE", "/dev/null")]).0, "");
    }

    #[test]
    fn the_index_is_read_from_the_help_of_pip() {
        let help = "General:\n  -i, --index-url <url>       Base URL of the Python Package Index (default\n\
                    \x20                             https://index.example/simple). This should point to a\n\
                    \x20 --other (default http://no)\n";
        assert_eq!(index_in(help).as_deref(), Some("https://index.example/simple"));
        for none in ["", "--index-url <url>  Base URL", "--index-url (default None)", "(default http://x)"] {
            assert_eq!(index_in(none), None, "{none}");
        }
    }
}
