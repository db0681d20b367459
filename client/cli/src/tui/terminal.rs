//! The terminal while the full-screen view has it: taken on opening, and given back whatever happens.

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

/// Whether the terminal is taken. A process has one, and the panic hook, which knows nothing else, gives it back.
static TAKEN: AtomicBool = AtomicBool::new(false);

type Hook = Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Send + Sync>;

/// The terminal. It is given back when this is dropped, and before the message of a panic anywhere in the process.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    /// The panic hook that was there before.
    hook: Arc<Hook>,
}

impl Screen {
    /// Takes the terminal.
    pub fn open() -> io::Result<Self> {
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

    /// Whether it was given back already, since something in the process panicked.
    pub fn is_lost(&self) -> bool {
        !TAKEN.load(Ordering::SeqCst)
    }

    /// Draws a frame; only what changed is written.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }

    /// Forgets what is on the screen, so that the next frame is written whole.
    pub fn clear(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Takes the mouse, or leaves it to the terminal.
    pub fn take_mouse(&mut self, take: bool) -> io::Result<()> {
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
        // Within a panic the hook may not be changed, and is not needed any more.
        if !std::thread::panicking() {
            put_back(self.hook.clone());
        }
    }
}

fn put_back(hook: Arc<Hook>) {
    std::panic::set_hook(Box::new(move |panic| hook(panic)));
}

/// Gives the terminal back, once. It may be gone, which is as good.
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
