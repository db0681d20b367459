//! The full-screen view of `baton chat`: the conversation, the sessions, an input of several lines.
//!
//! - [`state`] and its parts are pure: keys and messages from tasks change it, and [`draw`] shows it.
//! - This module is the loop around it, which awaits only events.
//! - A task runs each line with the same [`Dialogue`] as the line prompt, and reports through the [`inbox`].
//! - The view must never write uncleaned text to the terminal ([`wrap`]).
//! - It must always give the terminal back ([`terminal`]).

mod block;
pub(crate) mod conversation;
mod draw;
mod editor;
mod help;
pub(crate) mod inbox;
mod keys;
mod markdown;
mod menu;
mod palette;
mod pane;
mod question;
pub(crate) mod sidebar;
mod state;
mod terminal;

#[cfg(test)]
mod tests;

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::{Client, ClientError};
use baton_proto::ids::SessionId;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyModifiers};
use futures::StreamExt as _;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use self::{
    conversation::load,
    inbox::{Inbox, ViewMessage},
    palette::Palette,
    sidebar::SessionEntry,
    state::{Effect, State},
    terminal::Screen,
};
use crate::{
    args::ChatArguments,
    chat::{
        dialogue::{Dialogue, DialogueStep},
        line::parse,
        options::TurnOptions,
    },
    clock,
    failure::Failure,
    interrupt::leave_at_second_interrupt,
    out::{Out, Tone, short_session, wrap},
};

/// Shortest time between two frames.
const FRAME: Duration = Duration::from_millis(25);
/// Time between two ticks while something runs.
const TICK: Duration = Duration::from_millis(120);
/// Ticks between two updates while idle: nodes come and go.
const IDLE_TICKS: u32 = 8;

/// A view without a node for this long says why.
const NODES_REMARK: Duration = Duration::from_secs(3);

/// The result of a task.
enum TaskOutcome {
    /// A line was run.
    Line {
        /// The dialogue, for the next line.
        dialogue: Box<Dialogue>,
        /// The next step; `None` if the line failed.
        then: Option<DialogueStep>,
    },
    /// The list of sessions was read.
    SessionList,
    /// A session has another title, or is gone.
    SessionsChanged,
    /// The lack of nodes was explained, if there is one.
    NodesExplained,
}

/// The view, from opening to leaving.
pub(crate) async fn run(
    client: &Client,
    options: TurnOptions,
    arguments: &ChatArguments,
    out: &Out,
) -> Result<(), Failure> {
    let inbox = Arc::new(Inbox::default());
    // Errors in the call appear on the plain screen.
    let dialogue = Dialogue::open(client, options, arguments, out.on_screen(inbox.clone())).await?;
    let session = dialogue.session();
    let screen = Screen::open()?;
    let mut view = FullScreenView {
        client: client.clone(),
        inbox,
        state: State::new(Palette::new(!out.no_color())),
        screen,
        dialogue: None,
        session,
        tasks: JoinSet::new(),
        listed: Vec::new(),
        listing: false,
        list_again: false,
        began: Instant::now(),
    };
    view.start(Box::new(dialogue), None);
    view.tasks.spawn(explain_lack_of_nodes(client.clone(), view.inbox.clone()));
    let result = Box::pin(view.follow()).await;
    if let Some(dialogue) = &mut view.dialogue {
        dialogue.close().await;
    }
    // Running tasks are dropped, and their message is kept.
    view.tasks.shutdown().await;
    let session = view.session;
    drop(view);
    leave_at_second_interrupt();
    let id = short_session(&session);
    if let Some(command) = out.continuation(&id)
        && let Ok(info) = client.session(session).info().await
        && (info.turns > 0 || info.pending)
    {
        let kept = if info.pending { "; the message without an answer is sent again first" } else { "" };
        out.note(&format!("Continue with: {command}{kept}"));
    }
    result
}

/// The view with the parts that it drives.
struct FullScreenView {
    client: Client,
    inbox: Arc<Inbox>,
    state: State,
    screen: Screen,
    /// Present while nothing runs.
    dialogue: Option<Box<Dialogue>>,
    session: SessionId,
    tasks: JoinSet<TaskOutcome>,
    listed: Vec<SessionEntry>,
    /// Whether the list is being read, and whether it is already stale.
    listing: bool,
    list_again: bool,
    began: Instant,
}

impl FullScreenView {
    /// Handles events until the user leaves.
    async fn follow(&mut self) -> Result<(), Failure> {
        let mut events = EventStream::new();
        let mut signals = Signals::new()?;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut idle = 0;
        let inbox = self.inbox.clone();
        let (mut stale, mut next) = (true, tokio::time::Instant::now());
        loop {
            let effect = tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    Signal::End => return Err(Failure::Interrupted),
                    // A signal from outside: the terminal sends Ctrl-C as a key.
                    Signal::Interrupt => self.state.input(control_c()),
                },
                () = tokio::time::sleep_until(next), if stale => {
                    // A slow terminal, or a huge conversation, gets fewer frames.
                    let (began, state) = (Instant::now(), &mut self.state);
                    self.screen.draw(|frame| draw::draw(state, frame))?;
                    next = tokio::time::Instant::now() + FRAME.max(began.elapsed());
                    stale = false;
                    continue;
                }
                event = events.next() => match event {
                    Some(event) => self.state.input(event?),
                    // No more input can arrive.
                    None => return Ok(()),
                },
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.take_all()?;
                    self.finish_task(done.map_err(|_| ClientError::TaskEnded)?)
                }
                () = inbox.arrived() => {
                    self.take_all()?;
                    None
                }
                _ = ticks.tick() => {
                    if self.screen.is_lost() {
                        return Err(ClientError::TaskEnded.into());
                    }
                    idle = (idle + 1) % IDLE_TICKS;
                    if self.state.busy.is_none() && idle > 0 {
                        continue;
                    }
                    self.tick().await;
                    None
                }
            };
            stale = true;
            if let Some(effect) = effect
                && self.act(effect)?
            {
                return Ok(());
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn tick(&mut self) {
        let nodes = self.client.reported_nodes();
        let mut unstored = None;
        // While a task runs, the session may soon be another one. While idle, it is open, and read from
        // memory.
        if self.state.busy.is_none() {
            unstored = self.client.session(self.session).info().await.ok().map(|info| info.unstored);
        }
        self.state.wall_ms = clock::now_ms();
        self.state.tick(self.now(), nodes, unstored);
    }

    /// Takes the messages of tasks.
    fn take_all(&mut self) -> io::Result<()> {
        let now = self.now();
        for message in self.inbox.take() {
            match &message {
                ViewMessage::Session(loaded) => self.session = loaded.session,
                ViewMessage::Sessions(listed) => self.listed.clone_from(listed),
                ViewMessage::Raw(sequence) => self.screen.write_raw(sequence)?,
                _ => {}
            }
            self.state.take(message, now);
        }
        Ok(())
    }

    /// Takes a task's result.
    fn finish_task(&mut self, outcome: TaskOutcome) -> Option<Effect> {
        match outcome {
            TaskOutcome::Line { mut dialogue, then } => {
                let given_back = dialogue.take_given_back();
                self.dialogue = Some(dialogue);
                self.list();
                if given_back.is_some() {
                    self.state.pane.end(false, false);
                }
                let effect = self.state.end(then.is_some());
                if let Some(text) = given_back {
                    self.state.give_back(text);
                }
                match then {
                    Some(DialogueStep::Leave) => Some(Effect::Leave),
                    Some(DialogueStep::Prefill(text)) => {
                        self.state.prefill(text);
                        effect
                    }
                    _ => effect,
                }
            }
            TaskOutcome::SessionList => {
                self.listing = false;
                if std::mem::take(&mut self.list_again) {
                    self.list();
                }
                None
            }
            TaskOutcome::SessionsChanged => {
                self.list();
                None
            }
            TaskOutcome::NodesExplained => None,
        }
    }

    /// Performs an effect of the state; true to leave.
    fn act(&mut self, effect: Effect) -> io::Result<bool> {
        match effect {
            Effect::Act(line) => {
                // The state requests no line while one runs.
                if let Some(dialogue) = self.dialogue.take() {
                    self.start(dialogue, Some(line));
                }
            }
            Effect::Rename(session, title) => self.change(session, Some(title)),
            Effect::Delete(session) => self.change(session, None),
            Effect::Stop => self.inbox.stop(),
            Effect::Mouse(take) => self.screen.take_mouse(take)?,
            Effect::Redraw => self.screen.clear()?,
            Effect::Leave => return Ok(true),
        }
        Ok(false)
    }

    /// Runs a line; without one, greets.
    fn start(&mut self, dialogue: Box<Dialogue>, line: Option<String>) {
        self.inbox.renew();
        self.state.begin(line.as_deref().unwrap_or_default(), self.now());
        let (client, inbox) = (self.client.clone(), self.inbox.clone());
        self.tasks.spawn(Box::pin(step(client, inbox, dialogue, line)));
    }

    /// Gives a session a title, or deletes it without one, and then lists the sessions again.
    fn change(&mut self, session: SessionId, title: Option<String>) {
        let (client, inbox) = (self.client.clone(), self.inbox.clone());
        let is_here = session == self.session;
        self.tasks.spawn(async move {
            let handle = client.session(session);
            let changed = match &title {
                Some(title) => handle.rename(Some(title.as_str())).await.map(|()| None),
                None => handle.delete().await.map(|deletion| deletion.unpublished),
            };
            let remark = match changed {
                Ok(None) if title.is_some() => None,
                Ok(None) => Some((Tone::Note, "The conversation is deleted.".to_owned())),
                Ok(Some(error)) => Some((
                    Tone::Warn,
                    format!("Deleted on this device. The head index was not informed: {error}"),
                )),
                Err(error) => Some((Tone::Bad, format!("error: {error}"))),
            };
            if let Some((tone, text)) = remark {
                inbox.push(ViewMessage::Remark(tone, text));
            }
            if !is_here {
                handle.release();
            }
            TaskOutcome::SessionsChanged
        });
    }

    /// Reads the list of sessions.
    fn list(&mut self) {
        if self.listing {
            self.list_again = true;
            return;
        }
        self.listing = true;
        let (client, inbox, known) = (self.client.clone(), self.inbox.clone(), self.listed.clone());
        self.tasks.spawn(async move {
            inbox.push(match sidebar::list(&client, &known).await {
                Ok(listed) => ViewMessage::Sessions(listed),
                Err(error) => {
                    ViewMessage::Remark(Tone::Warn, format!("the conversations cannot be listed: {error}"))
                }
            });
            TaskOutcome::SessionList
        });
    }
}

/// Runs a line, and then sends the session's state to the view.
async fn step(
    client: Client,
    inbox: Arc<Inbox>,
    mut dialogue: Box<Dialogue>,
    line: Option<String>,
) -> TaskOutcome {
    let done = match &line {
        Some(line) => Box::pin(dialogue.act(parse(line))).await,
        None => Ok(DialogueStep::Greet),
    };
    let done = match done {
        Ok(DialogueStep::Greet) => {
            // The view must show the conversation before the greeting adds to it.
            send_session(&client, &inbox, dialogue.session()).await;
            Box::pin(dialogue.greet()).await.map(|()| DialogueStep::On)
        }
        other => other,
    };
    let then = match done {
        Ok(then) => Some(then),
        Err(Failure::Interrupted) => {
            inbox.push(ViewMessage::Remark(Tone::Note, "cancelled".to_owned()));
            None
        }
        Err(failure) => {
            failure.report(dialogue.out());
            None
        }
    };
    send_session(&client, &inbox, dialogue.session()).await;
    TaskOutcome::Line { dialogue, then }
}

/// Says why there is no node, if there is none after a while.
async fn explain_lack_of_nodes(client: Client, inbox: Arc<Inbox>) -> TaskOutcome {
    tokio::time::sleep(NODES_REMARK).await;
    if client.reported_nodes() == 0 {
        let error = ClientError::NoNode(client.why_no_node().await);
        inbox.push(ViewMessage::Remark(Tone::Warn, format!("0 nodes: {error}")));
        if let Some(hint) = error.hint() {
            inbox.push(ViewMessage::Remark(Tone::Note, format!("  try: {hint}")));
        }
    }
    TaskOutcome::NodesExplained
}

/// Sends a session's present state to the view.
async fn send_session(client: &Client, inbox: &Inbox, session: SessionId) {
    inbox.push(match load(client, session).await {
        Ok(loaded) => ViewMessage::Session(Box::new(loaded)),
        Err(error) => ViewMessage::Remark(Tone::Bad, format!("the conversation cannot be read: {error}")),
    });
}

fn control_c() -> Event {
    Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL))
}

/// The effect of a signal.
enum Signal {
    /// End the running task.
    Interrupt,
    /// Leave at once.
    End,
}

/// Signals from outside.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal. Cancel safe.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::End,
            // The terminal is gone.
            _ = self.hangup.recv() => Signal::End,
        }
    }
}

/// Signals from outside.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    #[expect(clippy::unnecessary_wraps, reason = "as where there are signals")]
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    /// The next signal. Cancel safe.
    async fn next(&mut self) -> Signal {
        let _ = tokio::signal::ctrl_c().await;
        Signal::Interrupt
    }
}
