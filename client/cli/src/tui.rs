//! The full-screen view of `baton chat`: the conversation, the sessions, an input of several lines.
//!
//! - [`state`] and its parts are pure: keys and messages from tasks change it, and [`draw`] shows it.
//! - This module is the loop around it, which awaits only events.
//! - A task runs each line with the same [`Dialogue`] as the line prompt, and reports through the [`Inbox`].
//! - The view must never write uncleaned text to the terminal ([`wrap`]).
//! - It must always give the terminal back ([`terminal`]).

mod block;
mod conversation;
mod draw;
mod editor;
mod keys;
mod markdown;
mod menu;
mod palette;
mod pane;
mod sidebar;
mod state;
mod terminal;

#[cfg(test)]
mod tests;

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant},
};

use baton_client::{Client, ClientError};
use baton_kit::{signals::StopSignals, terminal::wants_colour};
use baton_proto::ids::SessionId;
use crossterm::event::EventStream;
use futures::StreamExt as _;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use self::{
    conversation::{ConversationSnapshot, load},
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
    out::{
        Out, Tone,
        inbox::{Inbox, ViewMessage},
        short, wrap,
    },
    search::{FAILURE_REMARK, explain_lack_of_nodes},
    session::delete_all,
};

/// Shortest time between two frames.
const FRAME: Duration = Duration::from_millis(25);
/// Time between two ticks while something runs.
const TICK: Duration = Duration::from_millis(120);
/// Ticks between two updates while idle: nodes come and go.
const IDLE_TICKS: u32 = 8;

/// The result of a task.
enum TaskOutcome {
    /// A line was run.
    Line {
        /// The dialogue, for the next line.
        dialogue: Box<Dialogue>,
        /// The next step; `None` if the line failed.
        then: Option<DialogueStep>,
        /// The session after it.
        loaded: Option<ConversationSnapshot>,
    },
    /// The sessions were read.
    Sessions(Vec<SessionEntry>),
    /// Only remarks came of it.
    Remarks,
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
    let loaded = load(client, dialogue.session()).await?;
    let mut view = FullScreenView {
        client: client.clone(),
        out: out.on_screen(inbox.clone()),
        inbox,
        state: State::new(wants_colour(&io::stdout())),
        screen: Screen::open()?,
        dialogue: None,
        session: dialogue.session(),
        tasks: JoinSet::new(),
        began: Instant::now(),
    };
    view.state.set_session(&loaded);
    view.start(Box::new(dialogue), None);
    let (looking, looker) = (client.clone(), view.out.clone());
    view.tasks.spawn(async move {
        tokio::time::sleep(FAILURE_REMARK).await;
        if looking.reported_nodes() == 0 {
            explain_lack_of_nodes(&looking, &looker).await;
        }
        TaskOutcome::Remarks
    });
    let result = Box::pin(view.follow()).await;
    if let Some(dialogue) = &mut view.dialogue {
        dialogue.close().await;
    }
    // Running tasks are dropped, and their message is kept.
    view.tasks.shutdown().await;
    let session = view.session;
    drop(view);
    leave_at_second_interrupt();
    if let Some(command) = out.continuation(&short(&session))
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
    /// The output of its tasks, which goes into the inbox.
    out: Out,
    inbox: Arc<Inbox>,
    state: State,
    screen: Screen,
    /// Present while nothing runs.
    dialogue: Option<Box<Dialogue>>,
    session: SessionId,
    tasks: JoinSet<TaskOutcome>,
    began: Instant,
}

impl FullScreenView {
    /// Handles events until the user leaves.
    async fn follow(&mut self) -> Result<(), Failure> {
        let mut events = EventStream::new();
        let mut signals = StopSignals::listen()?;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut idle = 0;
        let inbox = self.inbox.clone();
        let (mut stale, mut next) = (true, tokio::time::Instant::now());
        loop {
            let effect = tokio::select! {
                biased;
                // A signal from outside: the terminal sends Ctrl-C as a key.
                () = signals.next() => return Err(Failure::Interrupted),
                () = tokio::time::sleep_until(next), if stale => {
                    // A slow terminal, or a huge conversation, gets fewer frames.
                    let (began, state) = (Instant::now(), &mut self.state);
                    self.screen.terminal.draw(|frame| draw::draw(state, frame))?;
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
            if let ViewMessage::Raw(sequence) = &message {
                io::stdout().write_all(sequence.as_bytes())?;
            }
            self.state.take(message, now);
        }
        Ok(())
    }

    /// Takes a task's result.
    fn finish_task(&mut self, outcome: TaskOutcome) -> Option<Effect> {
        match outcome {
            TaskOutcome::Line { mut dialogue, then, loaded } => {
                self.session = dialogue.session();
                if let Some(loaded) = loaded {
                    self.state.set_session(&loaded);
                }
                self.list();
                let given_back = dialogue.take_given_back();
                self.state.end(given_back.is_none());
                if let Some(text) = given_back {
                    self.state.give_back(text);
                }
                match then {
                    Some(DialogueStep::Leave) => return Some(Effect::Leave),
                    Some(DialogueStep::Greet) => {
                        self.start(dialogue, None);
                        return None;
                    }
                    Some(DialogueStep::Prefill(text)) => self.state.prefill(text),
                    Some(DialogueStep::On) | None => {}
                }
                self.dialogue = Some(dialogue);
            }
            TaskOutcome::Sessions(listed) => self.state.sidebar.set(listed),
            TaskOutcome::Remarks => {}
        }
        None
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
            // The next frame is then written whole.
            Effect::Redraw => self.screen.terminal.clear()?,
            Effect::Leave => return Ok(true),
        }
        Ok(false)
    }

    /// Runs a line; without one, greets.
    fn start(&mut self, dialogue: Box<Dialogue>, line: Option<String>) {
        self.inbox.renew();
        self.state.begin(line.as_deref().unwrap_or_default(), self.now());
        self.tasks.spawn(Box::pin(step(self.client.clone(), dialogue, line)));
    }

    /// Gives a session a title, or deletes it without one, and then lists the sessions again.
    fn change(&mut self, session: SessionId, title: Option<String>) {
        let (client, out) = (self.client.clone(), self.out.clone());
        let known = self.state.sidebar.listed.clone();
        let is_here = session == self.session;
        self.tasks.spawn(async move {
            let handle = client.session(session);
            let changed = match &title {
                Some(title) => handle.rename(Some(title.as_str())).await.map_err(Failure::from),
                None => delete_all(&client, &[session], &out).await,
            };
            if let Err(failure) = changed {
                failure.report(&out);
            }
            if !is_here {
                handle.release();
            }
            listed(&client, &known, &out).await
        });
    }

    /// Reads the list of sessions.
    fn list(&mut self) {
        let (client, out) = (self.client.clone(), self.out.clone());
        let known = self.state.sidebar.listed.clone();
        self.tasks.spawn(async move { listed(&client, &known, &out).await });
    }
}

/// Reads the list of sessions; `known` is the list of before.
async fn listed(client: &Client, known: &[SessionEntry], out: &Out) -> TaskOutcome {
    match sidebar::list(client, known).await {
        Ok(listed) => TaskOutcome::Sessions(listed),
        Err(error) => {
            out.warn(&format!("the conversations cannot be listed: {error}"));
            TaskOutcome::Remarks
        }
    }
}

/// Runs a line, or else greets; then reads the session for the view.
async fn step(client: Client, mut dialogue: Box<Dialogue>, line: Option<String>) -> TaskOutcome {
    let done = match &line {
        Some(line) => Box::pin(dialogue.act(parse(line))).await,
        None => Box::pin(dialogue.greet()).await.map(|()| DialogueStep::On),
    };
    let then = match done {
        Ok(then) => Some(then),
        Err(Failure::Interrupted) => {
            dialogue.out().note("cancelled");
            None
        }
        Err(failure) => {
            failure.report(dialogue.out());
            None
        }
    };
    let loaded = load(&client, dialogue.session()).await;
    let unread = |error: &ClientError| {
        dialogue.out().say(Tone::Bad, &format!("the conversation cannot be read: {error}"));
    };
    let loaded = loaded.inspect_err(unread).ok();
    TaskOutcome::Line { dialogue, then, loaded }
}
