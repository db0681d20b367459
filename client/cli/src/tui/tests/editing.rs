//! `/edit`: the message that it takes, and where it stands.

use super::*;

#[test]
fn edit_alone_puts_the_message_into_an_empty_line_and_keeps_what_was_typed() {
    let mut stage = Stage::new();
    stage.types("/edit");
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act("/edit".to_owned())));
    stage.state.begin("/edit", stage.now);
    stage.state.end(true);
    stage.state.prefill("/edit tell me\na story".to_owned());
    let shown = stage.shown();
    assert!(in_order(&shown, &["› /edit tell me", "a story"]), "{shown}");
    stage.types("!");
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act("/edit tell me\na story!".to_owned())));
    stage.types("a new thought");
    stage.state.prefill("/edit tell me".to_owned());
    assert_eq!(stage.state.editor.text(), "a new thought");
}

#[test]
fn a_mistyped_command_stays_in_the_line_with_the_likely_one_below() {
    let mut stage = Stage::new();
    stage.types("/verfy");
    assert_eq!(stage.press(KeyCode::Enter), None);
    assert!(stage.shown().contains("There is no /verfy. Did you mean /verify?"));
    assert_eq!(stage.state.editor.text(), "/verfy");
}
