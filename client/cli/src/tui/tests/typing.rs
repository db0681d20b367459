//! Keys: the input, the history, the list of sessions, leaving.

use baton_proto::ids::SessionId;
use crossterm::event::{MouseEvent, MouseEventKind};
use ratatui::style::{Color, Modifier};

use super::*;
use crate::out::inbox::Inbox;

#[test]
fn the_input_is_edited_by_characters_as_a_reader_sees_them() {
    let mut stage = Stage::new();
    stage.types("ab👩\u{200d}👧e\u{301}");
    stage.press(KeyCode::Left);
    stage.press(KeyCode::Backspace);
    assert_eq!(stage.state.editor.text(), "abe\u{301}", "one picture, one key");
    stage.press(KeyCode::Delete);
    assert_eq!(stage.state.editor.text(), "ab");
    stage.control('a');
    stage.types("x");
    stage.control('e');
    stage.types(" one two");
    stage.control('w');
    assert_eq!(stage.state.editor.text(), "xab one ");
    stage.alt(KeyCode::Char('b'));
    stage.control('k');
    stage.control('u');
    assert_eq!(stage.state.editor.text(), "");
}

#[test]
fn lines_begin_anew_by_alt_enter_and_ctrl_j_and_pasted_text_is_not_sent() {
    let mut stage = Stage::new();
    stage.types("one");
    assert_eq!(stage.alt(KeyCode::Enter), None);
    stage.types("two");
    assert_eq!(stage.control('j'), None);
    assert_eq!(stage.state.input(Event::Paste("three\r\nfour\x1b[31m\t5".to_owned())), None);
    assert_eq!(stage.state.editor.text(), "one\ntwo\nthree\nfour[31m\t5");
    let screen = stage.screen(40, 20);
    assert!(in_order(&screen.join("\n"), &["› one", "  two", "  three", "  four[31m    5"]));
    stage.press(KeyCode::Up);
    stage.press(KeyCode::Home);
    stage.types(">");
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act("one\ntwo\n>three\nfour[31m\t5".to_owned())));
}

#[test]
fn a_message_that_is_too_long_is_cut_and_said_so() {
    let mut stage = Stage::new();
    stage.state.input(Event::Paste("é".repeat(300 * 1024)));
    assert_eq!(stage.state.editor.text().len(), 512 * 1024);
    assert!(stage.shown().contains("one message has at most 512 KiB"));
}

#[test]
fn up_and_down_go_through_what_was_sent_and_back_to_what_is_written() {
    let mut stage = Stage::new();
    for text in ["first", "second"] {
        stage.types(text);
        stage.press(KeyCode::Enter);
    }
    stage.types("draft");
    let steps = [
        (KeyCode::Up, "second"),
        (KeyCode::Up, "first"),
        (KeyCode::Up, "first"),
        (KeyCode::Down, "second"),
        (KeyCode::Down, "draft"),
        (KeyCode::Down, "draft"),
    ];
    for (key, text) in steps {
        stage.press(key);
        assert_eq!(stage.state.editor.text(), text);
    }
}

#[test]
fn commands_open_what_they_name_and_an_unknown_one_is_not_sent() {
    let mut stage = Stage::new();
    stage.types("/help");
    assert_eq!(stage.press(KeyCode::Enter), None);
    let shown = stage.shown();
    assert!(shown.contains("Ctrl-L") && shown.contains("/regenerate"), "{shown}");
    stage.types("/nosuch x");
    assert_eq!(stage.press(KeyCode::Enter), None);
    assert!(stage.shown().contains("There is no /nosuch."));
    assert_eq!(stage.state.editor.text(), "/nosuch x", "to be fixed");
    stage.control('u');
    stage.types("/quit");
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Leave));
}

#[test]
fn control_c_ends_what_runs_then_empties_the_input_then_leaves() {
    let mut stage = Stage::new();
    stage.ask("hello");
    stage.types("words");
    assert_eq!(stage.control('c'), Some(Effect::Stop));
    stage.state.end(true);
    assert_eq!(stage.control('c'), None);
    assert_eq!(stage.state.editor.text(), "");
    assert_eq!(stage.control('c'), Some(Effect::Leave));
}

#[test]
fn control_d_deletes_and_leaves_on_an_empty_line() {
    let mut stage = Stage::new();
    stage.types("ab");
    stage.control('a');
    assert_eq!(stage.control('d'), None);
    assert_eq!(stage.state.editor.text(), "b");
    stage.control('k');
    assert_eq!(stage.control('d'), Some(Effect::Leave));
}

#[test]
fn the_list_of_sessions_opens_one_and_not_while_an_answer_comes() {
    let mut stage = Stage::new();
    stage.state.sidebar.set(vec![listed(1, "title 1"), listed(2, "title 2")]);
    assert!(stage.screen(100, 20).join("\n").contains("• title 1"));
    assert!(!stage.shown().contains("title 1"), "a narrow one is not shared");
    stage.press(KeyCode::Tab);
    assert!(stage.shown().contains("title 2"), "but given to it");
    stage.press(KeyCode::Down);
    let switch = format!("/switch {}", SessionId([2; 32]));
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act(switch)));
    stage.press(KeyCode::Tab);
    assert_eq!(stage.press(KeyCode::Char('n')), Some(Effect::Act("/new".to_owned())));
    stage.ask("hello");
    stage.press(KeyCode::Tab);
    assert_eq!(stage.press(KeyCode::Char('n')), None);
    assert!(stage.shown().contains("still at work"));
    stage.press(KeyCode::Esc);
    assert_eq!(stage.press(KeyCode::Esc), Some(Effect::Stop));
}

#[test]
fn a_title_and_a_deletion_are_asked_for_in_a_box_and_never_in_the_message_line() {
    let mut stage = Stage::new();
    stage.state.sidebar.set(vec![listed(1, "title 1"), listed(2, "title 2")]);
    stage.types("a draft");
    stage.press(KeyCode::Tab);
    stage.press(KeyCode::Down);
    assert_eq!(stage.press(KeyCode::Char('r')), None, "no other session is opened");
    let shown = ["┌─ title ─", "│ title 2", "Enter saves · Esc leaves it", "› a draft"];
    assert!(in_order(&stage.shown(), &shown), "{}", stage.shown());
    stage.control('u');
    stage.types("/secret plan");
    assert_eq!(stage.state.input(Event::Paste("\nB".to_owned())), None);
    let renamed = Effect::Rename(SessionId([2; 32]), "/secret plan B".to_owned());
    assert_eq!(stage.press(KeyCode::Enter), Some(renamed));
    assert_eq!(stage.state.editor.text(), "a draft");
    stage.press(KeyCode::Tab);
    stage.press(KeyCode::Down);
    for (key, effect) in [
        (KeyCode::Char('n'), None),
        (KeyCode::Esc, None),
        (KeyCode::Enter, None),
        (KeyCode::Char('y'), Some(Effect::Delete(SessionId([2; 32])))),
    ] {
        stage.press(KeyCode::Char('d'));
        assert!(stage.shown().contains("Delete \"title 2\"?"));
        assert_eq!(stage.press(key), effect, "{key:?}");
        assert!(!stage.shown().contains("Delete"), "{key:?}");
    }
    stage.press(KeyCode::Up);
    stage.press(KeyCode::Char('d'));
    let here = Some(Effect::Act("/delete yes".to_owned()));
    assert_eq!(stage.press(KeyCode::Char('y')), here, "the one on the screen");
    stage.press(KeyCode::Tab);
    for (command, shown) in [("/delete", "┌─ delete ─"), ("/rename", "┌─ title ─")] {
        stage.state.editor.set(command.to_owned());
        stage.state.close_menu();
        assert_eq!(stage.press(KeyCode::Enter), None, "{command}");
        assert!(stage.shown().contains(shown), "{command}");
        assert_eq!(stage.control('c'), None);
    }
    stage.state.ask_title(SessionId([1; 32]));
    for (width, height) in [(20, 5), (4, 2), (1, 1), (120, 40)] {
        stage.screen(width, height);
    }
}

#[test]
fn edit_alone_puts_the_message_into_an_empty_line_and_keeps_what_was_typed() {
    let mut stage = Stage::new();
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
fn a_text_for_the_clipboard_waits_for_the_loop_and_changes_nothing_on_the_screen() {
    let (inbox, mut stage) = (Inbox::default(), Stage::new());
    let before = stage.shown();
    inbox.push(ViewMessage::Raw("\x1b]52;c;aGk=\x07".to_owned()));
    let taken = inbox.take();
    assert!(matches!(&taken[..], [ViewMessage::Raw(sequence)] if sequence.ends_with('\x07')));
    taken.into_iter().for_each(|message| stage.say(message));
    assert_eq!(stage.shown(), before);
}

#[test]
fn the_mouse_scrolls() {
    let mut stage = Stage::new();
    let turns: Vec<_> = (0..30).map(|n| journal_turn(n, &format!("question {n}"), "answer")).collect();
    stage.open(1, &turns);
    let wheel = |kind| Event::Mouse(MouseEvent { kind, column: 0, row: 0, modifiers: KeyModifiers::NONE });
    stage.shown();
    stage.state.input(wheel(MouseEventKind::ScrollUp));
    assert!(stage.shown().contains("↓ 3 more · End"));
    stage.state.input(wheel(MouseEventKind::ScrollDown));
    assert!(!stage.shown().contains("more · End"));
    assert_eq!(stage.control('l'), Some(Effect::Redraw));
}

#[test]
fn rows_of_one_line_are_gone_through_before_what_was_sent() {
    let mut stage = Stage::new();
    stage.types("sent");
    stage.press(KeyCode::Enter);
    stage.state.input(Event::Paste("one two three".to_owned()));
    stage.screen(10, 20);
    // Seven cells: "one two", "three".
    assert_eq!(stage.state.editor.cursor_position(7), (1, 5));
    for (key, position) in [(KeyCode::Up, (0, 5)), (KeyCode::Down, (1, 5)), (KeyCode::Up, (0, 5))] {
        stage.press(key);
        assert_eq!(stage.state.editor.cursor_position(7), position);
    }
    stage.press(KeyCode::Up);
    assert_eq!(stage.state.editor.text(), "sent");
}

#[test]
fn the_menu_of_commands_is_gone_through_taken_and_closed() {
    let mut stage = Stage::new();
    stage.open(1, &[journal_turn(1, "hello", "there")]);
    stage.types("/re");
    let selected = |stage: &mut Stage| {
        let buffer = stage.buffer(80, 40);
        let area = buffer.area;
        let row = (0..area.height)
            .find(|y| buffer.cell((1, *y)).is_some_and(|cell| cell.modifier.contains(Modifier::REVERSED)));
        row.map(|y| (1..20).filter_map(|x| Some(buffer.cell((x, y))?.symbol())).collect::<String>())
    };
    assert!(selected(&mut stage).unwrap().starts_with("/rename TITLE"));
    stage.press(KeyCode::Down);
    assert!(selected(&mut stage).unwrap().starts_with("/regenerate"));
    stage.press(KeyCode::Down);
    stage.press(KeyCode::Down);
    stage.press(KeyCode::Down);
    assert!(selected(&mut stage).unwrap().starts_with("/retry"), "the last one");
    stage.press(KeyCode::Up);
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act("/regenerate".to_owned())));
    // A command that needs more waits for it.
    stage.types("/ren");
    assert_eq!(stage.press(KeyCode::Enter), None);
    assert_eq!(stage.state.editor.text(), "/rename ");
    assert_eq!(selected(&mut stage), None);
    stage.control('u');
    // What may stand alone runs.
    stage.types("/ver");
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act("/verify".to_owned())));
    // Escape closes it, and more input opens it again.
    stage.types("/s");
    stage.press(KeyCode::Esc);
    assert_eq!(selected(&mut stage), None);
    assert_eq!(stage.press(KeyCode::Enter), None, "no choice without a menu");
    assert!(stage.shown().contains("There is no /s."));
    stage.types("y");
    assert!(selected(&mut stage).unwrap().starts_with("/system"));
    // The history is gone through, and not the menu of one of its entries.
    stage.control('u');
    stage.press(KeyCode::Up);
    stage.press(KeyCode::Up);
    stage.press(KeyCode::Up);
    assert_eq!(stage.state.editor.text(), "/regenerate");
}

#[test]
fn tab_takes_the_selected_command() {
    let mut stage = Stage::new();
    stage.types("/se");
    stage.press(KeyCode::Tab);
    assert_eq!(stage.state.editor.text(), "/sessions");
    stage.control('u');
    stage.types("/r");
    stage.press(KeyCode::Down);
    stage.press(KeyCode::Tab);
    assert_eq!(stage.state.editor.text(), "/regenerate");
}

#[test]
fn the_menu_hides_the_conversation_below_it_and_scrolls() {
    let mut stage = Stage::new();
    let turns: Vec<_> = (0..30).map(|n| journal_turn(n, &format!("question {n}"), "answer")).collect();
    stage.open(1, &turns);
    stage.types("/");
    let buffer = stage.buffer(60, 20);
    let row = |y: u16| (0..60).filter_map(|x| Some(buffer.cell((x, y))?.symbol())).collect::<String>();
    let first = (0..20).find(|y| row(*y).contains("/new")).unwrap();
    for y in first + 1..first + 7 {
        let of_text = (0..60).filter_map(|x| buffer.cell((x, y))).filter(|cell| cell.symbol() != " ");
        assert!(
            of_text.into_iter().all(|cell| cell.fg == Color::Reset && cell.modifier.is_empty()),
            "{}",
            row(y)
        );
    }
    for _ in 0..40 {
        stage.press(KeyCode::Down);
    }
    let shown = stage.screen(60, 20).join("\n");
    assert!(shown.contains("/quit") && !shown.contains("/new"), "{shown}");
}
