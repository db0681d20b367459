//! The catalogue: its contents and its refusals.

use baton_node::models::{BUILT_IN_CATALOGUE, Catalogue, DEFAULT_MODEL, ModelError};

#[test]
fn the_built_in_catalogue_is_sound_and_has_the_default() {
    let catalogue = Catalogue::parse(BUILT_IN_CATALOGUE).unwrap();
    assert_eq!(catalogue, Catalogue::built_in());
    let default = catalogue.entry(DEFAULT_MODEL).unwrap();
    assert_eq!(default.size, 98_362_432);
    assert_eq!(catalogue.entry("gemma3-270m").unwrap().parts.len(), 4);
}

#[test]
fn refuses_catalogues_that_are_not_sound() {
    let sound = r#"
        [[model]]
        name = "m"
        file = "m.gguf"
        description = ""
        licence = "MIT"
        size = 5
        sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
        [[model.part]]
        package = "p"
        version = "1.0"
        path = "p/m"
        size = 5
    "#;
    assert_eq!(Catalogue::parse(sound).unwrap().entries().len(), 1);
    for (from, to) in [
        ("file = \"m.gguf\"", "file = \"../m.gguf\""),
        ("file = \"m.gguf\"", "file = \"a/m.gguf\""),
        ("file = \"m.gguf\"", "file = \".hidden\""),
        ("package = \"p\"", "package = \"--index-url=x\""),
        ("package = \"p\"", "package = \"p @ file:x\""),
        ("version = \"1.0\"", "version = \"1.0 --pre\""),
        ("name = \"m\"", "name = \"\""),
        ("size = 5\n        sha256", "size = 6\n        sha256"),
        ("0000\"", "00\""),
        ("licence = \"MIT\"", "licence = \"MIT\"\nurl = \"x\""),
        ("path = \"p/m\"", ""),
    ] {
        let changed = sound.replacen(from, to, 1);
        assert_ne!(changed, sound, "{from}");
        let refused = Catalogue::parse(&changed);
        assert!(matches!(refused, Err(ModelError::Unusable(_))), "{to}");
    }
    assert!(matches!(Catalogue::parse(&format!("{sound}{sound}")), Err(ModelError::Unusable(_))));
}
