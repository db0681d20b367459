use clap::{Args, Command, FromArgMatches as _, ValueEnum};

use super::*;
use crate::options;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shape {
    Box,
    #[default]
    Delta,
}

options! {
    /// Options of a kite.
    #[derive(Args, Clone, Debug, Default, PartialEq)]
    struct KiteOptions, "KITE_", table {
        "" {
            /// Folder of kites
            folder: Option<PathBuf> = path("DIR"), text("a folder").in_words("here");
        }
        "Flight" {
            /// Length of the line; repeat for more
            line_length: Option<u16> = number(), range(1, 500).default("30");
            /// Shape
            shape: Option<Shape> = choice("SHAPE"), text("\"box\" or \"delta\"").default("\"delta\"");
            /// Colours
            colours: Option<Vec<String>> = words("COLOUR"), list(2, "colours").default("[]").in_words("none");
            /// Let it fly at night
            night: Option<bool> = SWITCH, switch("false");
            /// For tests
            [hide = true] wind: Option<u8>;
        }
    }
}

fn file(text: &str) -> Result<KiteOptions, ConfigError> {
    examine(std::path::Path::new("k.toml"), text).into_options()
}

#[test]
fn flags_go_before_the_environment_the_file_and_the_defaults() {
    let command = || KiteOptions::augment_args(Command::new("kite"));
    let matches = command().get_matches_from(["kite", "--colours", "red,blue", "--shape", "box"]);
    let flags = KiteOptions::from_arg_matches(&matches).unwrap();
    let file = file("shape = \"delta\"\nline_length = 7").unwrap();
    let origins = Origins::of_matches::<KiteOptions>(&matches)
        .or(Origins::of_file(std::path::Path::new("k.toml"), &[("shape", 1), ("line_length", 2)]));
    let all = flags.or(file).or(KiteOptions::defaults());
    assert_eq!((all.shape, all.line_length, all.night), (Some(Shape::Box), Some(7), Some(false)));
    let lines: Vec<String> = shown(&all)
        .into_iter()
        .map(|OptionValue { key, value }| {
            let value = value.map(|value| value.to_string()).unwrap_or_default();
            format!("{key} = {value} ({})", origins.of(key).describe::<KiteOptions>(key))
        })
        .collect();
    assert_eq!(
        lines,
        [
            "folder =  (default)",
            "line_length = 7 (file k.toml:2)",
            "shape = \"box\" (flag --shape)",
            "colours = [\"red\", \"blue\"] (flag --colours)",
            "night = false (default)",
        ]
    );
    let variables: Vec<_> =
        command().get_arguments().filter_map(|flag| flag.get_env().map(ToOwned::to_owned)).collect();
    assert_eq!(
        variables,
        ["KITE_FOLDER", "KITE_LINE_LENGTH", "KITE_SHAPE", "KITE_COLOURS", "KITE_NIGHT", "KITE_WIND"]
    );
    assert_eq!(Origin::Environment.describe::<KiteOptions>("shape"), "environment KITE_SHAPE");
}

#[test]
fn refuses_a_broken_line_with_its_number_its_key_and_the_allowed_values() {
    let cases = [
        (
            "\nline_length = 0",
            "k.toml:2: `line_length` cannot be used: expected a whole number from 1 to 500",
        ),
        ("shap = \"box\"", "k.toml:1: there is no option `shap`; did you mean `shape`?"),
        (
            "wind = 1",
            "k.toml:1: there is no option `wind`; the options are: folder, line_length, shape, colours, night",
        ),
        ("shape = \"ball\"", "k.toml:1: `shape` cannot be used: expected one of \"box\", \"delta\""),
        (
            "colours = [\"a\", \"b\", \"c\"]",
            "k.toml:1: `colours` cannot be used: expected a list of at most 2 colours, found a value of type array",
        ),
        ("folder = \" \"", "k.toml:1: `folder` cannot be used: expected a folder"),
    ];
    for (text, expected) in cases {
        assert_eq!(file(text).unwrap_err().to_string(), expected, "{text}");
    }
    let report = examine::<KiteOptions>(std::path::Path::new("k.toml"), "shap = 1\nnight = true\nshape = \n");
    let lines: Vec<_> = report.problems.iter().map(ConfigError::line).collect();
    assert_eq!((lines, report.options.night), (vec![Some(1), Some(3)], Some(true)));
}

#[test]
fn the_commented_file_has_every_option_and_changes_nothing() {
    let text = commented_file::<KiteOptions>("# Kites.\n", "Places", &[("night", Value::Boolean(true))]);
    assert!(text.starts_with("# Kites.\n\n# ---- Places ----\n\n# Folder of kites.\n# Allowed: a folder. Default: here.\n#folder = \"\"\n"), "{text}");
    assert!(
        text.contains(
            "\n# Length of the line.\n# Allowed: a whole number from 1 to 500.\n#line_length = 30\n"
        ),
        "{text}"
    );
    assert_eq!(file(&text).unwrap(), KiteOptions { night: Some(true), ..KiteOptions::default() });
}

#[test]
fn a_missing_file_is_an_error_only_if_it_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.toml");
    assert_eq!(read_text(&path, false).unwrap(), None);
    assert!(matches!(read_text(&path, true), Err(ConfigError::Read { .. })));
    std::fs::write(&path, "#".repeat(300_000)).unwrap();
    assert!(read_text(&path, false).unwrap_err().to_string().ends_with("it is longer than 262144 bytes"));
}
