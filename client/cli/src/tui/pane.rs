//! The conversation on the screen: blocks, their rows for the present width, and the visible part. Pure.

use std::time::Duration;

use baton_client::TurnEvent;
use baton_proto::ids::LinkHash;
use ratatui::text::Line;

use super::{
    block::{AnswerStatus, Content, Turn},
    conversation::{ConversationSnapshot, MAX_TURNS},
    wrap,
};
use crate::out::{Tone, count, inbox::FinishedTurn, short};

/// Most blocks: the turns, and remarks between them. The oldest are dropped first.
const MAX_BLOCKS: usize = 4 * MAX_TURNS;

struct Block {
    /// Keeps the visible part in place while other blocks come and go.
    number: u64,
    content: Content,
    /// Its rows for a width.
    laid: Option<(usize, Vec<Line<'static>>)>,
}

/// The visible part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Scroll {
    /// The end, as it grows.
    #[default]
    Follow,
    /// From this row of this block on.
    At { number: u64, row: usize },
}

/// The conversation.
#[derive(Default)]
pub(super) struct Pane {
    blocks: Vec<Block>,
    next: u64,
    scroll: Scroll,
    /// Cells of a row, and rows, at the last draw.
    size: (usize, usize),
}

impl Pane {
    /// Takes a session from its journal. Within the same session, known turns keep their remarks, and turns
    /// that no longer count are removed.
    pub(super) fn set(&mut self, loaded: &ConversationSnapshot, same: bool) {
        let mut old = std::mem::take(&mut self.blocks);
        if !same {
            old.clear();
            self.scroll = Scroll::Follow;
        }
        // Turns without a link stay, beside that with the given one.
        let stays = |block: &Block, link: Option<LinkHash>| match &block.content {
            Content::Turn(turn) => turn.link.is_none() || turn.link == link,
            Content::Remark(..) => true,
            Content::Earlier(_) => false,
        };
        if loaded.earlier > 0 {
            let id = loaded.status.session.as_ref().map(short).unwrap_or_default();
            let turns = count(loaded.earlier as u64, "turn");
            let note = format!("{turns} before this: baton session show {id}");
            self.push(Content::Earlier(note));
        }
        for turn in &loaded.turns {
            let is_known = |block: &Block| block.content.turn().is_some_and(|known| known.link == turn.link);
            match old.iter().position(is_known) {
                Some(position) => {
                    let shown = old.drain(..=position).filter(|block| stays(block, turn.link));
                    self.blocks.extend(shown);
                }
                None => self.push(Content::Turn(Box::new(turn.clone()))),
            }
        }
        self.blocks.extend(old.into_iter().filter(|block| stays(block, None)));
        self.bound();
    }

    /// Adds a remark: within the running turn, or else at the end.
    pub(super) fn remark(&mut self, tone: Tone, text: &str) {
        match self.running_turn_mut() {
            Some(turn) => turn.remark(tone, text),
            None => {
                self.push(Content::Remark(tone, wrap::clean(text)));
                self.bound();
            }
        }
    }

    /// Begins a turn. It replaces an unanswered turn with the same text; any other is given up.
    pub(super) fn begin(&mut self, message: &str) {
        self.blocks.retain(|block| block.content.turn().is_none_or(|turn| !turn.is_unanswered(message)));
        self.give_up();
        self.push(Content::Turn(Box::new(Turn::begin(message))));
        self.bound();
    }

    /// Takes an event of the running turn.
    pub(super) fn turn(&mut self, event: &TurnEvent, now: Duration) {
        if self.running_turn_mut().is_none() {
            // A pending turn is finished without a new message.
            self.begin("");
        }
        if let Some(turn) = self.running_turn_mut() {
            turn.take(event, now);
        }
    }

    /// The running turn was accepted.
    pub(super) fn finish(&mut self, finished: &FinishedTurn) {
        if let Some(turn) = self.running_turn_mut() {
            turn.finish(finished);
        }
    }

    /// Nothing runs any more: a turn that was not accepted is unanswered. `is_kept` says that its message is in the
    /// journal.
    pub(super) fn end(&mut self, stopped: bool, is_kept: bool) {
        if let Some(turn) = self.running_turn_mut() {
            turn.status = match (stopped, is_kept) {
                (true, true) => AnswerStatus::Stopped,
                (true, false) => AnswerStatus::Dropped,
                (false, is_kept) => AnswerStatus::Failed { is_kept },
            };
        }
    }

    /// Marks kept messages without an answer as given up: nothing is pending any more.
    pub(super) fn give_up(&mut self) {
        for block in &mut self.blocks {
            if let Content::Turn(turn) = &mut block.content
                && matches!(turn.status, AnswerStatus::Stopped | AnswerStatus::Failed { is_kept: true })
            {
                turn.status = AnswerStatus::Dropped;
                block.laid = None;
            }
        }
    }

    /// The running turn.
    pub(super) fn running_turn(&self) -> Option<&Turn> {
        let last = self.blocks.iter().rev().find_map(|block| block.content.turn());
        last.filter(|turn| turn.is_running())
    }

    /// Scrolls by this many rows.
    pub(super) fn scroll(&mut self, by: isize) {
        let (cells, height) = self.size;
        self.lay(cells);
        let last = self.total().saturating_sub(height);
        let top = self.top(height).saturating_add_signed(by).min(last);
        self.scroll_to(top, last);
    }

    /// Scrolls by this many half pages.
    pub(super) fn scroll_page(&mut self, halves: isize) {
        let half = isize::try_from(self.size.1 / 2).unwrap_or(1).max(1);
        self.scroll(half.saturating_mul(halves));
    }

    /// Shows the end, and stays there.
    pub(super) fn follow(&mut self) {
        self.scroll = Scroll::Follow;
    }

    /// The visible rows for this width and height, and the number of rows below them.
    pub(super) fn visible_rows(&mut self, cells: usize, height: usize) -> (Vec<&Line<'static>>, usize) {
        self.size = (cells, height);
        self.lay(cells);
        let (top, total) = (self.top(height), self.total());
        if top + height >= total {
            self.scroll = Scroll::Follow;
        }
        let rows = self.blocks.iter().filter_map(|block| block.laid.as_ref()).flat_map(|(_, rows)| rows);
        (rows.skip(top).take(height).collect(), total.saturating_sub(top + height))
    }

    fn push(&mut self, content: Content) {
        self.blocks.push(Block { number: self.next, content, laid: None });
        self.next += 1;
    }

    fn bound(&mut self) {
        let over = self.blocks.len().saturating_sub(MAX_BLOCKS);
        self.blocks.drain(..over);
    }

    /// The last turn, if it runs; its rows are laid out again.
    fn running_turn_mut(&mut self) -> Option<&mut Turn> {
        let turns = self.blocks.iter_mut().rev().filter_map(|block| match &mut block.content {
            Content::Turn(turn) => Some((turn, &mut block.laid)),
            Content::Remark(..) | Content::Earlier(_) => None,
        });
        let (turn, laid) = turns.take(1).find(|(turn, _)| turn.is_running())?;
        *laid = None;
        Some(turn)
    }

    fn lay(&mut self, cells: usize) {
        for block in &mut self.blocks {
            if block.laid.as_ref().is_none_or(|(width, _)| *width != cells) {
                block.laid = Some((cells, block.content.rows(cells)));
            }
        }
    }

    fn total(&self) -> usize {
        self.blocks.iter().map(Block::height).sum()
    }

    /// The first visible row.
    fn top(&self, height: usize) -> usize {
        let last = self.total().saturating_sub(height);
        let Scroll::At { number, row } = self.scroll else { return last };
        let Some(position) = self.blocks.iter().position(|block| block.number == number) else { return last };
        let start: usize = self.blocks.iter().take(position).map(Block::height).sum();
        let own = self.blocks.get(position).map_or(0, Block::height);
        (start + row.min(own.saturating_sub(1))).min(last)
    }

    fn scroll_to(&mut self, top: usize, last: usize) {
        self.scroll = Scroll::Follow;
        if top >= last {
            return;
        }
        let mut start = 0;
        for block in &self.blocks {
            let height = block.height();
            if top < start + height {
                self.scroll = Scroll::At { number: block.number, row: top - start };
                return;
            }
            start += height;
        }
    }
}

impl Block {
    fn height(&self) -> usize {
        self.laid.as_ref().map_or(0, |(_, rows)| rows.len())
    }
}
