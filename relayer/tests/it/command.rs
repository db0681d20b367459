//! The `baton` command against a running relayer, both as processes: delegations, settings, and deleting
//! everything.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::SystemTime,
};

use baton_proto::right::RightChain;
use serde_json::Value;

use crate::program::{self, Program};

/// The last change of a file, or of the newest file in a folder.
fn changed(path: &Path) -> Option<SystemTime> {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().filter_map(|entry| changed(&entry.unwrap().path())).max();
    }
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// The client's command beside the relayer's; built here if the workspace build is missing or old.
fn baton() -> PathBuf {
    let command = Path::new(env!("CARGO_BIN_EXE_baton-relayer")).with_file_name("baton");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/cli/src");
    if changed(&command) > changed(&sources) {
        return command;
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "baton-cli", "--bin", "baton"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success(), "the command does not build");
    command
}

fn start(folder: &Path) -> Program {
    Program::start(folder, &["--through-nodes", "some-model"])
}

/// A person with a home folder and an account key.
struct Person<'a> {
    command: &'a Path,
    folder: tempfile::TempDir,
    url: String,
    account: String,
    key: String,
}

impl<'a> Person<'a> {
    fn new(command: &'a Path, relayer: &Program) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = relayer.url.clone();
        let mut person = Self { command, folder, url, account: String::new(), key: String::new() };
        let made: Value = serde_json::from_str(&person.says(&["account", "new", "--json"])).unwrap();
        person.account = made["account"].as_str().unwrap().to_owned();
        person.key = made["public_key"].as_str().unwrap().to_owned();
        person
    }

    /// The same person at another relayer.
    fn at(self, relayer: &Program) -> Self {
        Self { url: relayer.url.clone(), ..self }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(self.command)
            .args(arguments)
            .args(["--home", "home", "--relayer-url", &self.url])
            .env_clear()
            .env("HOME", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Its output, after a check for success.
    #[track_caller]
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {out} {err}");
        out
    }

    /// Its error output, after a check of the exit code.
    #[track_caller]
    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
        err
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

#[test]
fn a_delegation_is_signed_used_listed_and_taken_back() {
    let (data, command) = (tempfile::tempdir().unwrap(), baton());
    let relayer = start(data.path());
    let owner = Person::new(&command, &relayer);
    let friend = Person::new(&command, &relayer);
    owner.says(&["memory", "add", "My dog is called Biscuit."]);
    friend.fails(9, &["memory", "list", "--owner", &owner.account]);

    // With read access, by a file that each request presents.
    let file = friend.file("agent.txt");
    let text = owner.says(&["account", "delegate", &friend.key]);
    let shown = text.parse::<RightChain>().unwrap().last().id.to_string();
    std::fs::write(&file, &text).unwrap();
    let found = friend.says(&["memory", "search", "what is my dog called", "--delegation", &file]);
    assert!(found.contains("Biscuit"), "{found}");
    let refused = friend.fails(9, &["memory", "add", "x is y", "--delegation", &file]);
    assert!(refused.contains("`write`"), "{refused}");
    assert_eq!(owner.says(&["account", "delegate"]), "", "the relayer keeps none that is only shown");
    assert!(friend.fails(2, &["account", "delegate", "abc"]).contains("64 hex"));
    friend.fails(2, &["account", "delegate", &owner.key, "--scopes", "fly"]);
    owner.fails(2, &["account", "delegate", &owner.key]);
    owner.fails(2, &["account", "delegate", "--scopes", "read"]);

    // Beside the account key it needs no flag; and it works for no other account.
    std::fs::copy(&file, friend.file("home/account.delegation")).unwrap();
    assert!(friend.says(&["memory", "list", "--all"]).contains("Biscuit"));
    let nobodys = format!("0x{}", "b".repeat(64));
    assert!(friend.fails(9, &["memory", "list", "--owner", &nobodys]).len() > 1);
    std::fs::remove_file(friend.file("home/account.delegation")).unwrap();
    let thief = Person::new(&command, &relayer);
    let other = thief.fails(2, &["memory", "list", "--delegation", &file]);
    assert!(other.contains("--account"), "{other}");
    std::fs::write(friend.file("cut.txt"), &text[..200]).unwrap();
    let cut = friend.fails(2, &["memory", "list", "--delegation", &friend.file("cut.txt")]);
    assert!(cut.contains("damaged"), "{cut}");

    // A registered key needs only the account; for one project.
    let scopes =
        ["account", "delegate", &friend.key, "--scopes", "write,read", "--project", "garden", "--register"];
    let json = owner.says(&[&scopes[..], &["--days", "3", "--json"]].concat());
    let delegation: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(delegation["memory"]["scopes"], serde_json::json!(["read", "write"]));
    let id = delegation["id"].as_str().unwrap();
    friend.says(&["memory", "add", "The shed is green.", "--owner", &owner.account, "--project", "garden"]);
    assert!(!friend.says(&["memory", "list", "--owner", &owner.account]).contains("Biscuit"));
    let listed = owner.says(&["account", "delegate"]);
    assert!(listed.contains(id) && listed.contains("in garden"), "{listed}");
    let told = owner.says(&["account", "revoke", id]);
    assert!(told.contains("taken back"), "{told}");
    friend.fails(9, &["memory", "list", "--owner", &owner.account]);
    assert!(owner.says(&["account", "delegate"]).contains("taken back"));
    // A delegation that the relayer has only seen is revoked, too.
    friend.says(&["memory", "list", "--delegation", &file]);
    owner.says(&["account", "revoke", &shown]);
    friend.fails(9, &["memory", "list", "--delegation", &file]);
    assert!(owner.says(&["account", "delegate"]).contains(&shown));
}

#[test]
fn an_export_counts_memories_and_brings_authors_back_after_everything_was_forgotten() {
    let (data, command) = (tempfile::tempdir().unwrap(), baton());
    let relayer = start(data.path());
    let owner = Person::new(&command, &relayer);
    owner.says(&["memory", "add", "My dog is called Biscuit.", "--project", "home"]);
    owner.says(&["memory", "add", "My boat is called Marigold.", "--project", "home"]);
    let items = |person: &Person<'_>| {
        let listed: Value =
            serde_json::from_str(&person.says(&["memory", "list", "--all", "--json"])).unwrap();
        let mut items: Vec<(String, String, String)> = listed["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| {
                let text = |field: &str| item[field].as_str().unwrap().to_owned();
                (text("text"), text("author"), text("id"))
            })
            .collect();
        items.sort();
        items
    };
    // Entities are written after the answer, so an export is complete once a later one has no more of them.
    let (file, before) = (owner.file("memory.jsonl"), items(&owner));
    let told = owner.says(&["memory", "export", "--out", &file]);
    let lines = std::fs::read_to_string(&file).unwrap();
    let count = lines.lines().filter(|line| line.starts_with("{\"item\"")).count();
    assert!(told.starts_with(&format!("{count} memories written")), "{told}");
    assert!(count >= 2 && count < lines.lines().count() - 3, "{lines}");

    owner.says(&["memory", "delete", "--everything", "--yes"]);
    assert_eq!(owner.says(&["memory", "list", "--all"]), "");
    owner.says(&["memory", "import", &file]);
    let after = items(&owner);
    assert!(before.iter().all(|item| after.contains(item)), "{before:?} {after:?}");
    assert!(after.iter().all(|(_, author, _)| author != "import"), "{after:?}");

    // Without the account's line, with another file's line, or for another account, it proves nothing.
    let bare: String = lines
        .lines()
        .filter(|line| !line.contains("\"endorsement\""))
        .map(|line| format!("{line}\n"))
        .collect();
    let other = Person::new(&command, &relayer);
    for (name, text, taken) in [
        ("bare.jsonl", bare.clone(), true),
        ("changed.jsonl", lines.replace("Biscuit", "Rex"), false),
        ("moved.jsonl", format!("{bare}{}", lines.lines().last().unwrap()), true),
    ] {
        std::fs::write(owner.file(name), text).unwrap();
        owner.says(&["memory", "delete", "--everything", "--yes"]);
        if taken {
            owner.says(&["memory", "import", &owner.file(name)]);
        } else {
            owner.fails(9, &["memory", "import", &owner.file(name)]);
        }
        let imported = items(&owner).iter().any(|(_, author, _)| author == "import");
        assert_eq!(imported, name == "bare.jsonl", "{name}");
    }
    other.says(&["memory", "import", &file]);
    assert!(items(&other).iter().all(|(_, author, _)| author == "import"), "{:?}", items(&other));
}

/// Runs the relayer's own command on a data folder.
fn relayer_command(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let output = program::command(folder).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_an_error_and_a_closed_one_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["--help"][..], &["man"], &["completions", "bash"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let full = program::command(folder.path()).args(words).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&full.stderr);
        assert!(
            full.status.code() == Some(1) && said.contains("No space left on device"),
            "{words:?}: {said}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = program::command(folder.path()).args(words).stdout(writer).output().unwrap();
        assert!(closed.status.success() && closed.stderr.is_empty(), "{words:?}: {closed:?}");
    }
}

#[test]
fn a_backup_beside_the_running_relayer_brings_memory_to_a_new_machine() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (data, other, file) = (folder.path().join("relayer"), folder.path().join("other"), at("backup"));
    let relayer = start(&data);
    let command = baton();
    let owner = Person::new(&command, &relayer);
    owner.says(&["memory", "add", "My dog is called Biscuit."]);
    let (made, text) = relayer_command(&data, &["backup", &file]);
    // The person, and the relayer's own records of its owners.
    assert!(made && text.contains("2 owners") && text.contains("2 key files"), "{text}");
    let (again, text) = relayer_command(&data, &["backup", &file]);
    assert!(!again && text.contains("exists"), "{text}");
    let (replaced, text) = relayer_command(&data, &["restore", &file]);
    assert!(!replaced && text.contains("another process"), "{text}");
    drop(relayer);

    let (restored, text) = relayer_command(&other, &["restore", &file]);
    assert!(!restored && text.contains("master key"), "{text}");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::copy(data.join("master.key"), other.join("master.key")).unwrap();
    let (restored, text) = relayer_command(&other, &["restore", &file]);
    assert!(restored && text.contains("key files are those of the backup"), "{text}");
    let relayer = start(&other);
    let owner = owner.at(&relayer);
    assert!(owner.says(&["memory", "search", "Who is Biscuit?"]).contains("called Biscuit"));
}

#[test]
fn doctor_asks_the_running_relayer_of_its_folder_and_no_other() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let relayer = start(folder.path());
    let doctor = |folder: &Path| {
        let output = program::command(folder).args(["doctor", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let checks = report["checks"].as_array().unwrap().clone();
        let findings = checks.iter().flat_map(|check| check["findings"].as_array().unwrap().clone());
        // Files and disk depend on the machine.
        let codes = findings.map(|finding| finding["code"].as_str().unwrap().to_owned());
        let codes: Vec<_> = codes.filter(|code| !code.starts_with("R1")).collect();
        (output.status.code(), codes, report.to_string())
    };
    // It is not told the options of `run`: the data folder has them while the relayer runs. The relayer is to use nodes,
    // and can find none.
    let (code, codes, report) = doctor(folder.path());
    assert_eq!((code, codes), (Some(1), vec!["R701".to_owned()]), "{report}");
    assert!(report.contains(&relayer.url), "{report}");
    // An address that a crash left behind names no other relayer.
    drop(start(other.path()));
    std::fs::copy(folder.path().join("http.address"), other.path().join("http.address")).unwrap();
    let (_, _, report) = doctor(other.path());
    assert!(!report.contains(&relayer.url), "{report}");
}
