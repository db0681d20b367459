//! Use is counted as the work is done, however it ends.

use std::{sync::Arc, time::Duration};

use baton_node::service::ServiceLimits;
use baton_proto::{
    ErrorCode, SignedObject,
    check::CheckOrder,
    receipt::Receipt,
    turn::{CheckInput, ResumePrefix, Sampling},
    wire::ClientFrame,
};
use proptest::prelude::*;
use tempfile::tempdir;

use super::{
    fairness::{counting, granted, run_under, trusting},
    network::{
        World,
        client::{Changes, Client, PreparedTurn, ReplyReader, Session, next_frame},
        node::{Setup, TestNode},
        store::MemoryStore,
        world,
    },
};

/// Tokens an hour of the subnet.
const HOUR: u32 = 100;
/// Words of an ordinary message; the echo of each is a token.
const WORDS: usize = 11;
/// The longest time of a turn, and the words of a message whose answer takes longer.
const TURN_TIME: Duration = Duration::from_millis(150);
const LATE_WORDS: usize = 60;

fn words(count: usize) -> String {
    vec!["word"; count].join(" ")
}

fn limited(tokens_per_hour: u64) -> ServiceLimits {
    ServiceLimits {
        tokens_per_hour,
        max_turn_time: TURN_TIME,
        drain_grace: Duration::ZERO,
        attach_grace: Duration::from_millis(10),
        quotas: trusting(),
        ..Setup::default().limits
    }
}

/// A turn that has at most an answer of the given words, in an attempt.
fn turn(session: &Session, node: &TestNode, count: usize, attempt: u32) -> PreparedTurn {
    let most = u32::try_from(count + 1).unwrap();
    let changes = Changes { attempt, ..Changes::auth(move |auth| auth.max_output_tokens = most) };
    session.prepare(node, &words(count), changes)
}

/// Sends a turn, and leaves its reply after this many tokens. Returns the tokens that arrived, or the refusal.
async fn cut(
    client: &Client,
    node: &TestNode,
    prepared: &PreparedTurn,
    after: u32,
) -> Result<u32, ErrorCode> {
    let mut stream = client.open(node, &ClientFrame::Turn(prepared.request.clone())).await;
    let mut reader = ReplyReader::default();
    while reader.reply.ids().len() < after as usize
        && let Some(frame) = next_frame(&mut stream).await
    {
        reader.take(prepared, frame);
        if let Some((code, _)) = reader.reply.refused {
            return Err(code);
        }
    }
    Ok(u32::try_from(reader.reply.ids().len()).unwrap())
}

/// The ways in which a turn can end.
#[derive(Debug, Clone)]
enum Ending {
    Commit,
    Cut(u32),
    /// The client aborts it after some tokens.
    Abort(u32),
    /// The engine refuses its resumed tokens after the start.
    Failure,
    /// It takes too long.
    Late,
    /// A second attempt of the session takes over.
    TakeOver(u32),
    /// The reply is lost at its end; the same request comes again.
    LostReply,
    /// The node stops after some tokens, and starts again.
    Shutdown(u32),
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        2 => Just(Ending::Commit),
        4 => (0u32..12).prop_map(Ending::Cut),
        2 => (0u32..12).prop_map(Ending::Abort),
        1 => Just(Ending::Failure),
        1 => Just(Ending::Late),
        2 => (0u32..12).prop_map(Ending::TakeOver),
        1 => Just(Ending::LostReply),
        1 => (0u32..12).prop_map(Ending::Shutdown),
    ]
}

async fn start(folder: &std::path::Path, store: &Arc<MemoryStore>, tokens_per_hour: u64) -> TestNode {
    let limits = counting(limited(tokens_per_hour)).limits;
    TestNode::start(folder, store, Setup { limits, ..Setup::slow(4) }).await
}

/// Tokens that leave a node in turns with these endings.
async fn tokens_of(endings: Vec<Ending>) -> u32 {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempdir().unwrap());
    let mut node = start(folder.path(), &store, HOUR.into()).await;
    let client = Client::start().await;
    let mut sum = 0;
    for ending in endings {
        let session = Session::new();
        let prepared = turn(&session, &node, WORDS, 0);
        let run = async |prepared: &PreparedTurn| {
            u32::try_from(client.run(&node, prepared).await.ids().len()).unwrap()
        };
        sum += match ending {
            Ending::Commit => run(&prepared).await,
            Ending::Cut(after) => cut(&client, &node, &prepared, after).await.unwrap_or(0),
            Ending::Abort(after) => {
                let got = cut(&client, &node, &prepared, after).await.unwrap_or(0);
                client.ask(&node, &ClientFrame::Note(session.abort(&prepared))).await;
                got
            }
            Ending::Failure => {
                // The test client fills in the hash.
                let (author, tokens_hash) = (node.node, [0; 32]);
                let prefix = ResumePrefix { author, attempt: 0, token_count: 2, tokens_hash };
                let changes = Changes::payload(|payload| payload.resume_tokens = vec![1, 2])
                    .and_auth(|auth| auth.resume = Some(prefix));
                run(&session.prepare(&node, &words(WORDS), changes)).await
            }
            Ending::Late => run(&turn(&session, &node, LATE_WORDS, 0)).await,
            Ending::TakeOver(after) => {
                let got = cut(&client, &node, &prepared, after).await.unwrap_or(0);
                got + run(&turn(&session, &node, WORDS, 1)).await
            }
            Ending::LostReply => {
                let got = cut(&client, &node, &prepared, u32::MAX).await.unwrap_or(0);
                client.run(&node, &prepared).await;
                got
            }
            Ending::Shutdown(after) => {
                let got = cut(&client, &node, &prepared, after).await.unwrap_or(0);
                node.stop().await;
                node = start(folder.path(), &store, HOUR.into()).await;
                got
            }
        };
    }
    node.stop().await;
    sum
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn tokens_that_leave_a_node_in_an_hour_stay_within_the_quota(
        endings in proptest::collection::vec(ending(), 4..24)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let tokens = runtime.block_on(tokens_of(endings));
        // A case takes seconds, in which the use of a part of a token decays.
        prop_assert!(tokens <= HOUR + 1, "{tokens} tokens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cuts_its_turns_is_refused_when_its_hour_is_used() {
    let limits = ServiceLimits { max_turn_time: Duration::from_secs(20), ..limited(200) };
    let World { node, .. } = world(counting(limits)).await;
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        let (client, session) = (Client::start().await, Session::new());
        let prepared = turn(&session, &node, 90, 0);
        outcomes.push(cut(&client, &node, &prepared, 89).await);
    }
    let refused = Err(ErrorCode::QuotaExceeded);
    assert_eq!(outcomes, [Ok(89), Ok(89), refused, refused, refused]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_were_never_computed_come_back_and_a_cut_turn_counts_at_its_grant() {
    let limits = ServiceLimits { max_turn_time: Duration::from_secs(60), ..limited(100) };
    let Setup { limits, .. } = counting(limits);
    let World { node, client, session, .. } = world(Setup { limits, ..Setup::slow(100) }).await;
    assert_eq!(cut(&client, &node, &turn(&session, &node, 90, 0), 1).await, Ok(1));
    node.until(|counts| counts.failed.len() == 1).await;
    let (next, grant) = (Session::new(), granted(1, Vec::new()));
    let whole = turn(&next, &node, 20, 0);
    assert!(client.run(&node, &whole).await.committed().is_some(), "some 90 tokens came back");

    let first = turn(&Session::new(), &node, 20, 0);
    let (quota, frame) = (ClientFrame::Quota(grant.used(&first.auth)), ClientFrame::Turn(first.request));
    let mut stream = client.open_with(&node, &quota, &frame).await;
    for _ in 0..2 {
        next_frame(&mut stream).await.expect("Accepted and a token");
    }
    drop(stream);
    node.until(|counts| counts.failed.len() == 2).await;
    let second = turn(&Session::new(), &node, 20, 0);
    let refused = run_under(&client, &node, &second, grant.used(&second.auth)).await;
    assert_eq!(refused.code(), Some(ErrorCode::QuotaExceeded), "its only turn was begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_counts_for_a_sixteenth_of_its_tokens() {
    let World { node, client, .. } = world(counting(limited(100))).await;
    // The 1,000 words and the two of the system text cost 63 tokens, and the answer one.
    let mut codes = Vec::new();
    for _ in 0..2 {
        let one = Changes::auth(|auth| auth.max_output_tokens = 1);
        let prepared = Session::new().prepare(&node, &words(1000), one);
        codes.push(client.run(&node, &prepared).await.code());
    }
    assert_eq!(codes, [None, Some(ErrorCode::QuotaExceeded)]);
}

/// Also of a turn without an answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_of_a_turn_counts_before_its_first_check() {
    tokio::join!(refuses_the_second_turn_with_checks(1), refuses_the_second_turn_with_checks(0));
}

async fn refuses_the_second_turn_with_checks(most_tokens: u32) {
    let World { node, client, mut session, .. } = world(counting(limited(100))).await;
    let first = turn(&session, &node, 1, 0);
    let reply = client.run(&node, &first).await;
    let committed = reply.committed().unwrap();
    let receipt = SignedObject::<Receipt>::verify(committed.receipt.clone()).unwrap();
    session.accept(&first, committed, &reply.text(), &[]).unwrap();
    // No node checks an answer of this engine: the turn ends at its first check.
    let mut codes = Vec::new();
    for _ in 0..2 {
        let order = CheckOrder { receipt: receipt.receipt_hash(), probe: 0 };
        let input = CheckInput {
            receipt: receipt.bytes().clone(),
            sampling: Sampling::default(),
            json_schema: None,
            tokens: reply.ids(),
        };
        let changes = Changes::payload(|payload| payload.checks = vec![input]).and_auth(|auth| {
            auth.max_output_tokens = most_tokens;
            auth.checks = vec![order];
        });
        codes.push(client.run(&node, &session.prepare(&node, &words(800), changes)).await.code());
    }
    assert_eq!(codes, [ErrorCode::PayloadRejected, ErrorCode::QuotaExceeded].map(Some), "{most_tokens}");
}
