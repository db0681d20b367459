//! The terminal of the full-screen view: taken on opening, and always given back.

use std::{
    io::{self, BufWriter, Stdout, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crossterm::{
    cursor::Show,
    event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture},
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Frame, Terminal, backend::CrosstermBackend};

/// Whether the terminal is taken. A process has one, and the panic hook, which has no other state, gives it
/// back.
static TAKEN: AtomicBool = AtomicBool::new(false);

type Hook = Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Send + Sync>;

/// The terminal. It is given back when this is dropped, and before the message of any panic in the process.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    /// The previous panic hook.
    hook: Arc<Hook>,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn open() -> io::Result<Self> {
        let hook: Arc<Hook> = Arc::new(std::panic::take_hook());
        let before = hook.clone();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let opened = Self::take();
        let terminal = opened.inspect_err(|_| {
            give_back();
            put_back(hook.clone());
        })?;
        Ok(Self { terminal, hook })
    }

    fn take() -> io::Result<Terminal<CrosstermBackend<BufWriter<Stdout>>>> {
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, EnableMouseCapture)?;
        Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout())))
    }

    /// Whether a panic in the process already gave it back.
    pub(super) fn is_lost(&self) -> bool {
        !TAKEN.load(Ordering::SeqCst)
    }

    /// Draws a frame; only changes are written.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }

    /// Forgets the screen's content, so that the next frame is written whole.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Writes an escape sequence that shows nothing, between two frames.
    pub(super) fn write_raw(&mut self, sequence: &str) -> io::Result<()> {
        let writer = self.terminal.backend_mut();
        writer.write_all(sequence.as_bytes())?;
        io::Write::flush(writer)
    }

    /// Takes the mouse, or leaves it to the terminal.
    pub(super) fn take_mouse(&mut self, take: bool) -> io::Result<()> {
        if take {
            execute!(io::stdout(), EnableMouseCapture)
        } else {
            execute!(io::stdout(), DisableMouseCapture)
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
        // Within a panic the hook may not be changed, and is no longer needed.
        if !std::thread::panicking() {
            put_back(self.hook.clone());
        }
    }
}

fn put_back(hook: Arc<Hook>) {
    std::panic::set_hook(Box::new(move |panic| hook(panic)));
}

/// Gives the terminal back, once. A terminal that is gone is no error.
fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    let _ = execute!(out, DisableMouseCapture, DisableBracketedPaste, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    let _ = out.flush();
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
