//! Keys: the input, the history, the list of sessions, leaving.

use baton_proto::ids::SessionId;
use crossterm::event::{MouseEvent, MouseEventKind};
use ratatui::style::{Color, Modifier};

use super::*;
use crate::tui::sidebar::SessionEntry;

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
    stage.control('y');
    assert_eq!(stage.state.editor.text(), "xab one two");
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
fn up_takes_back_what_waits() {
    let mut stage = Stage::new();
    stage.ask("first");
    stage.types("second");
    stage.press(KeyCode::Enter);
    stage.press(KeyCode::Up);
    assert_eq!(stage.state.editor.text(), "second");
    assert_eq!(stage.state.end(true), None);
}

#[test]
fn commands_open_what_they_name_and_an_unknown_one_is_not_sent() {
    let mut stage = Stage::new();
    stage.types("/help");
    assert_eq!(stage.press(KeyCode::Enter), None);
    let shown = stage.shown();
    assert!(shown.contains("help") && shown.contains("/regenerate") && shown.contains("Alt-Enter"));
    stage.press(KeyCode::Esc);
    assert!(!stage.shown().contains("/regenerate"));
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
fn control_d_deletes_leaves_and_asks_again_while_an_answer_comes() {
    let mut stage = Stage::new();
    stage.types("ab");
    stage.control('a');
    assert_eq!(stage.control('d'), None);
    assert_eq!(stage.state.editor.text(), "b");
    stage.control('u');
    stage.control('k');
    stage.ask("hello");
    assert_eq!(stage.control('d'), None);
    assert!(stage.shown().contains("the same key again leaves"));
    stage.types("x");
    stage.press(KeyCode::Backspace);
    assert_eq!(stage.control('d'), None, "not the second one in a row");
    assert_eq!(stage.control('d'), Some(Effect::Leave));
    stage.state.end(false);
    stage.state.begin("/verify", stage.now);
    assert_eq!(stage.control('d'), Some(Effect::Leave), "nothing is lost");
}

#[test]
fn the_list_of_sessions_opens_one_and_not_while_an_answer_comes() {
    let mut stage = Stage::new();
    let listed = |byte: u8| SessionEntry {
        session: SessionId([byte; 32]),
        title: format!("title {byte}"),
        turns: 2,
        used_ms: 0,
    };
    stage.say(ViewMessage::Sessions(vec![listed(1), listed(2)]));
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
    assert!(stage.shown().contains("An answer is running"));
    stage.press(KeyCode::Esc);
    assert_eq!(stage.press(KeyCode::Esc), Some(Effect::Stop));
}

#[test]
fn the_list_of_sessions_is_filtered_by_words_and_shown_whole_again() {
    let mut stage = Stage::new();
    let listed = |byte: u8, title: &str| SessionEntry {
        session: SessionId([byte; 32]),
        title: title.to_owned(),
        turns: 1,
        used_ms: 0,
    };
    let all = vec![listed(1, "A poem about the Sea"), listed(2, "Taxes"), listed(3, "The sea in winter")];
    stage.say(ViewMessage::Sessions(all));
    stage.press(KeyCode::Tab);
    stage.press(KeyCode::Down);
    stage.press(KeyCode::Char('/'));
    stage.types("sea nn");
    assert_eq!(stage.state.sidebar.listed().len(), 0);
    assert!(stage.shown().contains("/sea nn"));
    for _ in 0..3 {
        stage.press(KeyCode::Backspace);
    }
    let shown = stage.shown();
    assert!(shown.contains("A poem") && shown.contains("winter") && !shown.contains("Taxes"), "{shown}");
    // The first Enter takes the words; keys are commands again.
    assert_eq!(stage.press(KeyCode::Enter), None);
    stage.press(KeyCode::Down);
    let switch = format!("/switch {}", SessionId([3; 32]));
    assert_eq!(stage.press(KeyCode::Enter), Some(Effect::Act(switch)));
    stage.press(KeyCode::Tab);
    assert_eq!(stage.state.sidebar.listed().len(), 3, "another look begins with all");
    stage.press(KeyCode::Char('/'));
    stage.types("03");
    assert_eq!(stage.state.sidebar.choice(), Some(SessionId([3; 32])), "by its id");
    stage.press(KeyCode::Esc);
    assert!(stage.state.sidebar.focused && stage.state.sidebar.listed().len() == 3);
    stage.press(KeyCode::Esc);
    assert!(!stage.state.sidebar.focused);
}

#[test]
fn a_title_and_a_deletion_are_asked_for_in_a_box_and_never_in_the_message_line() {
    let mut stage = Stage::new();
    let listed = |byte: u8| SessionEntry {
        session: SessionId([byte; 32]),
        title: format!("title {byte}"),
        turns: 2,
        used_ms: 0,
    };
    stage.say(ViewMessage::Sessions(vec![listed(1), listed(2)]));
    stage.types("a draft");
    stage.press(KeyCode::Tab);
    stage.press(KeyCode::Down);
    assert_eq!(stage.press(KeyCode::Char('r')), None, "no other session is opened");
    assert!(in_order(&stage.shown(), &["┌─ title", "│ title 2", "Enter saves · Esc leaves it"]));
    stage.control('u');
    stage.types("My /secret plan");
    assert_eq!(stage.state.input(Event::Paste("\nB".to_owned())), None);
    let renamed = Effect::Rename(SessionId([2; 32]), "My /secret plan B".to_owned());
    assert_eq!(stage.press(KeyCode::Enter), Some(renamed));
    assert_eq!(stage.state.editor.text(), "a draft");
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
    assert_eq!(
        stage.press(KeyCode::Char('y')),
        Some(Effect::Act("/delete yes".to_owned())),
        "the one on the screen"
    );
    stage.press(KeyCode::Tab);
    stage.control('u');
    stage.control('k');
    for (command, box_of) in [("/delete", "┌─ delete"), ("/rename", "┌─ title")] {
        stage.state.editor.set(command.to_owned());
        stage.state.close_menu();
        assert_eq!(stage.press(KeyCode::Enter), None, "{command}");
        assert!(stage.shown().contains(box_of), "{command}");
        assert_eq!(stage.control('c'), None);
    }
    for (width, height) in [(20, 5), (4, 2), (1, 1), (40, 10), (120, 40)] {
        stage.state.ask_title(SessionId([1; 32]));
        stage.screen(width, height);
        stage.state.ask_deletion(SessionId([1; 32]));
        stage.screen(width, height);
    }
}

#[test]
fn a_text_for_the_clipboard_waits_for_the_loop_and_changes_nothing_on_the_screen() {
    use crate::{out::FullScreen as _, tui::inbox::Inbox};
    let (inbox, mut stage) = (Inbox::default(), Stage::new());
    let before = stage.shown();
    inbox.write_raw("\x1b]52;c;aGk=\x07".to_owned());
    let taken = inbox.take();
    assert!(matches!(&taken[..], [ViewMessage::Raw(sequence)] if sequence.ends_with('\x07')));
    taken.into_iter().for_each(|message| stage.say(message));
    assert_eq!(stage.shown(), before);
}

#[test]
fn the_mouse_scrolls_and_can_be_left_to_the_terminal() {
    let mut stage = Stage::new();
    let turns: Vec<_> = (0..30).map(|n| journal_turn(n, &format!("question {n}"), "answer")).collect();
    stage.say(ViewMessage::Session(Box::new(loaded(1, &turns))));
    let wheel = |kind| Event::Mouse(MouseEvent { kind, column: 0, row: 0, modifiers: KeyModifiers::NONE });
    stage.shown();
    stage.state.input(wheel(MouseEventKind::ScrollUp));
    assert!(stage.shown().contains("↓ 3 more · End"));
    stage.state.input(wheel(MouseEventKind::ScrollDown));
    assert!(!stage.shown().contains("more · End"));
    assert_eq!(stage.press(KeyCode::F(2)), Some(Effect::Mouse(false)));
    assert_eq!(stage.press(KeyCode::F(2)), Some(Effect::Mouse(true)));
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
    stage.say(ViewMessage::Session(Box::new(loaded(1, &[journal_turn(1, "hello", "there")]))));
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
fn tab_completes_what_is_certain_and_then_takes_the_selected_command() {
    let mut stage = Stage::new();
    stage.types("/se");
    stage.press(KeyCode::Tab);
    assert_eq!(stage.state.editor.text(), "/sessions");
    stage.control('u');
    stage.types("/r");
    stage.press(KeyCode::Tab);
    assert_eq!(stage.state.editor.text(), "/re", "of three");
    stage.press(KeyCode::Down);
    stage.press(KeyCode::Tab);
    assert_eq!(stage.state.editor.text(), "/regenerate");
}

#[test]
fn the_menu_hides_the_conversation_below_it_and_says_how_much_more_there_is() {
    let mut stage = Stage::new();
    let turns: Vec<_> = (0..30).map(|n| journal_turn(n, &format!("question {n}"), "answer")).collect();
    stage.say(ViewMessage::Session(Box::new(loaded(1, &turns))));
    stage.types("/");
    let buffer = stage.buffer(60, 20);
    let row = |y: u16| (0..60).filter_map(|x| Some(buffer.cell((x, y))?.symbol())).collect::<String>();
    let last = (0..20).rev().find(|y| row(*y).contains("more")).unwrap();
    assert!(row(last).contains("↓ 11 more"), "{}", row(last));
    for y in last - 6..last {
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
    assert!(shown.contains("/quit") && shown.contains("↑ 11 more") && !shown.contains("/new"), "{shown}");
}

#[test]
fn a_second_command_stays_in_the_line_while_one_waits() {
    let mut stage = Stage::new();
    stage.ask("first");
    stage.types("/verify");
    stage.press(KeyCode::Enter);
    stage.types("/copy");
    stage.press(KeyCode::Enter);
    assert_eq!(stage.state.editor.text(), "/copy");
    assert!(stage.shown().contains("One line waits already. Send this one after the answer."));
}
