//! The terminal of the full-screen view: taken on opening, and always given back.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use crossterm::{
    cursor::Show,
    event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture},
    execute,
};
use ratatui::DefaultTerminal;

/// Whether the terminal is taken: the panic hook has no other state. Given back twice, it would be cleared of the message
/// of a panic.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal. It is given back when this is dropped, and before the message of any panic in the process.
pub(super) struct Screen {
    /// Draws frames, of which only changes are written.
    pub terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn open() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        TAKEN.store(true, Ordering::SeqCst);
        let opened = ratatui::try_init().and_then(|terminal| {
            execute!(io::stdout(), EnableBracketedPaste, EnableMouseCapture)?;
            Ok(Self { terminal })
        });
        opened.inspect_err(|_| give_back())
    }

    /// Whether a panic in the process already gave it back.
    pub(super) fn is_lost(&self) -> bool {
        !TAKEN.load(Ordering::SeqCst)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once. A terminal that is gone is no error.
fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(io::stdout(), DisableMouseCapture, DisableBracketedPaste, Show);
    let _ = ratatui::try_restore();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "it takes the terminal: scripts/tui.sh runs it at one, and looks at what is left"]
    fn a_panic_gives_the_terminal_back() {
        let screen = Screen::open().expect("there is a terminal");
        let panicked = std::thread::spawn(|| panic!("on purpose")).join();
        assert!(panicked.is_err() && screen.is_lost());
        assert!(!crossterm::terminal::is_raw_mode_enabled().expect("crossterm knows"));
    }
}
