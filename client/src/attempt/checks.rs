//! Checks of earlier answers: which ones the next node is asked to check, and the conclusions from all verdicts. Pure.
//!
//! All verdicts are in the receipts of the session's turns, so nothing else is kept for them.

use baton_proto::{
    SignedObject,
    check::{CheckOrder, CheckVerdict, Judgement, judge},
    contradiction::Contradiction,
    ids::{ModelId, NodeId, ReceiptHash},
    limits::MAX_CHECKS,
    receipt::{EngineKind, Receipt},
    turn::{CheckInput, Grant},
};

use crate::session::state::{State, TurnMeta};

/// The latest turns whose answers are checked: the window slides past older ones.
const CHECKED_TURNS: usize = 16;
/// Verdicts without a result after which an answer is not checked any more.
const MOST_GAPS: usize = 2;
/// Verdicts on one answer after which no further one is asked for.
const MOST_VERDICTS: usize = 8;
/// Most tokens of all checked answers of a turn: they travel with the request.
const MOST_TOKENS: usize = 16 * 1024;
/// Verdicts that an answer gets if they agree. The second shows whether the first node computed it.
const VERDICTS: usize = 2;
/// Tokens of a block of the engine's cache. A check that ends with a block has the turn compute nothing again.
const CACHE_BLOCK: u32 = 32;

/// The checks to order with a turn of this grant at a node, oldest answer first.
pub(crate) fn plan(
    state: &State,
    grant: &Grant,
    node: NodeId,
    model: ModelId,
) -> (Vec<CheckOrder>, Vec<CheckInput>) {
    let mut wanted: Vec<(bool, u64, CheckOrder, CheckInput)> = Vec::new();
    let mut tokens = 0;
    // Where the latest window begins: it slides on, and answers to an earlier one are not comparable any more.
    let window_from = state.last().and_then(|(_, meta)| Some(meta.receipt.as_ref()?.window_from));
    for read in grant.records.iter().rev().take(CHECKED_TURNS) {
        let Some((turn, meta)) = state.turn(read.seq) else { continue };
        if meta.receipt.as_ref().map(|receipt| receipt.window_from) < window_from {
            continue;
        }
        let Some((order, input)) = check_of(state, meta, model) else { continue };
        let author = turn.link.author;
        let verdicts = verdicts_on(state, read.seq, &order.receipt);
        let has_spoken = author == node || verdicts.iter().any(|(other, _)| *other == node);
        let gaps = verdicts.iter().filter(|(_, verdict)| !is_result(verdict)).count();
        let judgement = judge(author, &verdicts);
        let is_open = judgement == Judgement::Open;
        let asks = match judgement {
            Judgement::Open => true,
            Judgement::Agreed(count) => count < VERDICTS && gaps < MOST_GAPS,
            Judgement::Decided { .. } => false,
        };
        let fits = verdicts.len() < MOST_VERDICTS && tokens + input.tokens.len() <= MOST_TOKENS;
        if asks && !has_spoken && fits {
            tokens += input.tokens.len();
            wanted.push((is_open, read.seq, order, input));
        }
    }
    // The contradictions first, then the latest answers.
    wanted.sort_by_key(|(is_open, seq, ..)| (!is_open, std::cmp::Reverse(*seq)));
    wanted.truncate(MAX_CHECKS);
    wanted.sort_by_key(|(_, seq, ..)| *seq);
    wanted.into_iter().map(|(_, _, order, input)| (order, input)).unzip()
}

/// The check of the last answer alone, for any node.
pub(crate) fn of_last(state: &State, model: ModelId) -> (Vec<CheckOrder>, Vec<CheckInput>) {
    let check = state.last().and_then(|(_, meta)| check_of(state, meta, model));
    check.into_iter().unzip()
}

/// The check of a turn's answer; none for one that no other node can compute again by this session's next prompt.
fn check_of(state: &State, meta: &TurnMeta, model: ModelId) -> Option<(CheckOrder, CheckInput)> {
    let receipt = meta.receipt.as_ref()?;
    let (sampling, _) = meta.asked.as_ref()?;
    let made = receipt.tokens.output.saturating_sub(receipt.tokens.resumed);
    let comparable = receipt.engine == EngineKind::Native
        && receipt.model == model
        && receipt.session_id == state.session_id
        && receipt.memory_items == 0
        && made > 0
        && meta.tokens.len() == receipt.tokens.output as usize
        && meta.system.as_deref() == Some(&*state.system);
    if !comparable {
        return None;
    }
    let json_schema = match &sampling.json_schema {
        Some(hash) => Some(state.schema(hash)?.to_owned()),
        None => None,
    };
    let hash = receipt.receipt_hash();
    let [a, b, c, d, ..] = draw(state, receipt.node, &hash);
    let drawn = receipt.tokens.resumed + u32::from_le_bytes([a, b, c, d]) % made;
    let in_block = receipt.tokens.input.wrapping_add(drawn) % CACHE_BLOCK;
    let probe = drawn.saturating_sub(in_block).max(receipt.tokens.resumed);
    Some((
        CheckOrder { receipt: hash, probe },
        CheckInput {
            receipt: receipt.bytes().clone(),
            sampling: sampling.clone(),
            json_schema,
            tokens: meta.tokens.clone(),
        },
    ))
}

/// Random bytes of an answer, the same each time, which no node can know: it has no key of the session itself.
fn draw(state: &State, author: NodeId, receipt: &ReceiptHash) -> [u8; 32] {
    state.root.warm_key().tag(&author, &receipt.0)
}

/// The verdicts on the answer of a turn, in the order of the turns that brought them.
fn verdicts_on(state: &State, seq: u64, answer: &ReceiptHash) -> Vec<(NodeId, CheckVerdict)> {
    receipts_on(state, seq, answer).map(|(receipt, verdict)| (receipt.node, verdict)).collect()
}

/// The receipts with these verdicts.
fn receipts_on<'a>(
    state: &'a State,
    seq: u64,
    answer: &ReceiptHash,
) -> impl Iterator<Item = (&'a SignedObject<Receipt>, CheckVerdict)> {
    let later = (seq + 1..state.next_seq()).take(2 * CHECKED_TURNS).filter_map(|later| state.turn(later));
    let receipts = later.filter_map(|(_, meta)| meta.receipt.as_ref());
    receipts.filter_map(|later| Some((later, later.verdict_on(answer)?)))
}

fn is_result(verdict: &CheckVerdict) -> bool {
    !matches!(verdict, CheckVerdict::NotComparable(_))
}

/// The contradictions about answers that the last turn's node checked, if its verdict decides them.
pub(crate) fn contradictions(state: &State) -> Vec<Contradiction> {
    let Some(last) = state.last().and_then(|(_, meta)| meta.receipt.as_ref()) else { return Vec::new() };
    let mut found = Vec::new();
    for check in &last.checks {
        let hash = &check.order.receipt;
        let answer = (state.first_seq()..last.seq).rev().take(2 * CHECKED_TURNS).find_map(|seq| {
            let (_, meta) = state.turn(seq)?;
            meta.receipt.as_ref().filter(|receipt| receipt.receipt_hash() == *hash)
        });
        let Some(answer) = answer else { continue };
        if let Judgement::Decided { .. } = judge(answer.node, &verdicts_on(state, answer.seq, hash)) {
            let compared = receipts_on(state, answer.seq, hash).filter(|(_, verdict)| is_result(verdict));
            found.push(Contradiction::new(answer, compared.map(|(receipt, _)| receipt)));
        }
    }
    found
}
