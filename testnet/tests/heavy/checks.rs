//! Checks of answers among nodes that lie about their computation: a coarser file, a shorter window, another seed, a
//! smaller model, verdicts without work. Clients find the liars within 60 turns, while nodes leave and join. No
//! honest node is accused, whatever instruction set its kernels use. The test is a short run; `BATON_FULL=1` makes it
//! the whole one, which prints a line for each client.

mod model;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_client::{Client, NewSession, RouteOptions, TurnInput, TurnOutcome};
use baton_engine::kernels::Isa;
use baton_node::engine::{
    Engine,
    native::{NativeConfig, NativeEngine},
};
use baton_proto::{
    check::{AnswerCheck, CheckGap, CheckVerdict},
    ids::NodeId,
    turn::Sampling,
};
use baton_testnet::{
    byzantine::{EngineLie, FalseEngine, NodeInProcess},
    network::{Network, NodeOptions},
};

use crate::support::Random;

/// Turns within which a client should find every liar.
const MOST_TURNS: u64 = 60;
/// The name of the model at all nodes.
const MODEL: &str = "small";
/// Words of the owners' messages.
const WORDS: [&str; 24] = [
    "how", "do", "I", "fix", "the", "roof", "of", "a", "shed", "when", "rain", "comes", "from", "two",
    "sides", "and", "my", "ladder", "is", "too", "short", "for", "it", "please",
];

fn is_full() -> bool {
    std::env::var_os("BATON_FULL").is_some_and(|full| full == "1")
}

/// The files of the models.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn write(folder: &Path) -> Self {
        let files = Self { folder: folder.to_owned() };
        std::fs::write(files.path("honest"), model::file(model::LAYERS, false)).unwrap();
        std::fs::write(files.path("coarse"), model::file(model::LAYERS, true)).unwrap();
        std::fs::write(files.path("smaller"), model::file(model::LAYERS - 1, false)).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.gguf"))
    }

    fn engine(&self, name: &str, isa: Isa) -> Arc<dyn Engine> {
        let config = NativeConfig {
            threads: Some(1),
            slots: 2,
            kv_bytes: 16 << 20,
            isa,
            ..NativeConfig::new(MODEL, self.path(name))
        };
        Arc::new(NativeEngine::load(&config).unwrap())
    }

    /// The engine of a liar.
    fn lying(&self, lie: EngineLie) -> Arc<dyn Engine> {
        let honest = self.engine("honest", Isa::best());
        let inner = match lie {
            EngineLie::SwapsFile => self.engine("coarse", Isa::best()),
            EngineLie::SmallerModel => self.engine("smaller", Isa::best()),
            _ => honest.clone(),
        };
        Arc::new(FalseEngine::new(honest.info(), inner, lie))
    }
}

/// A store, and nodes of this process.
struct World {
    network: Network,
    files: Files,
    started: usize,
}

impl World {
    async fn start(folder: &Path) -> Self {
        let network = Network::start(folder, 0, NodeOptions::echo()).await.unwrap();
        Self { network, files: Files::write(folder), started: 0 }
    }

    async fn node(&mut self, engine: Arc<dyn Engine>) -> NodeInProcess {
        self.started += 1;
        let name = format!("node-{}", self.started);
        NodeInProcess::start(&self.network, &name, engine).await.unwrap()
    }

    /// Honest nodes, with all instruction sets of this processor in turn.
    async fn honest(&mut self, count: usize) -> Vec<NodeInProcess> {
        let mut nodes = Vec::new();
        for isa in Isa::all().into_iter().cycle().take(count) {
            let engine = self.files.engine("honest", isa);
            nodes.push(self.node(engine).await);
        }
        nodes
    }

    async fn client(&self, name: &str, nodes: &[&NodeInProcess]) -> Client {
        let mut config = self.network.client_config(Some(&self.network.folder.join(name))).unwrap();
        config.bootstrap = nodes.iter().flat_map(|node| node.addresses.clone()).collect();
        config.timeouts.author_stores = Duration::from_secs(5);
        let client = Client::open(config).await.unwrap();
        let all = async { while client.nodes().await.len() < nodes.len() {} };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("all nodes are found");
        client
    }
}

/// An owner who talks without pause.
struct Owner {
    client: Client,
    draws: Random,
    turns: u64,
    session: Option<baton_proto::ids::SessionId>,
}

impl Owner {
    fn new(client: Client, seed: u64) -> Self {
        Self { client, draws: Random::new(seed), turns: 0, session: None }
    }

    /// One turn: most sessions go on after it.
    async fn turn(&mut self) -> TurnOutcome {
        if self.session.is_none() || self.draws.below(16) == 0 {
            self.session = Some(self.client.new_session(NewSession::default()).await.unwrap());
        }
        let words = 4 + self.draws.below(16);
        let text: Vec<&str> = (0..words).map(|_| WORDS[self.draws.below(24) as usize]).collect();
        let sampling = Sampling { temperature: 0.8, seed: self.draws.next(), ..Sampling::default() };
        let input = TurnInput {
            sampling,
            max_output_tokens: 40,
            route: RouteOptions { model: Some(MODEL.to_owned()), ..RouteOptions::default() },
            ..TurnInput::user(text.join(" "))
        };
        let session = self.client.session(self.session.unwrap());
        let outcome = session.turn(input, |_| {}).await.unwrap();
        self.turns += 1;
        outcome
    }

    /// The nodes that are avoided for a lie.
    async fn avoided(&self) -> BTreeSet<NodeId> {
        let rows = self.client.explain(None, &RouteOptions::default()).await.unwrap();
        let now_ms = self.client.now_ms();
        let avoided = rows.into_iter().filter(|row| row.evidence.lied_until_ms > now_ms);
        avoided.map(|row| row.node).collect()
    }
}

/// The result of one client.
#[derive(Debug)]
struct Row {
    /// The turns until each liar was found.
    found: BTreeMap<EngineLie, u64>,
    turns: u64,
    checks: usize,
    honest_accused: usize,
}

async fn until_all_are_found(
    mut owner: Owner,
    lies: BTreeMap<NodeId, EngineLie>,
    leave: impl AsyncFn(u64),
) -> Row {
    let (mut found, mut honest_accused, mut checks) = (BTreeMap::new(), 0, 0);
    while found.len() < lies.len() && owner.turns < MOST_TURNS {
        checks += owner.turn().await.receipt.checks.len();
        leave(owner.turns).await;
        let avoided = owner.avoided().await;
        honest_accused = avoided.iter().filter(|node| !lies.contains_key(node)).count();
        for lie in avoided.iter().filter_map(|node| lies.get(node)) {
            found.entry(*lie).or_insert(owner.turns);
        }
    }
    owner.client.shutdown(Duration::from_secs(5)).await;
    Row { found, turns: owner.turns, checks, honest_accused }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_find_liars_within_60_turns_and_accuse_no_honest_node() {
    let _guard = crate::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::start(folder.path()).await;
    let mut honest = world.honest(6).await;
    let mut liars = Vec::new();
    for lie in EngineLie::ALL {
        let engine = world.files.lying(lie);
        liars.push((lie, world.node(engine).await));
    }
    let lies: BTreeMap<NodeId, EngineLie> = liars.iter().map(|(lie, node)| (node.node, *lie)).collect();
    let clients = if is_full() { 8 } else { 2 };
    let mut rows = Vec::new();
    for number in 0..clients {
        let nodes: Vec<&NodeInProcess> = honest.iter().chain(liars.iter().map(|(_, node)| node)).collect();
        let client = world.client(&format!("client-{number}"), &nodes).await;
        let owner = Owner::new(client, 100 + number);
        // Churn: one of the honest nodes leaves after some turns, and another joins before the next client.
        let leaving = parking_lot::Mutex::new(honest.pop());
        let leave = async |turns: u64| {
            let node = if turns == 10 { leaving.lock().take() } else { None };
            if let Some(node) = node {
                node.stop().await.unwrap();
            }
        };
        let row = Box::pin(until_all_are_found(owner, lies.clone(), leave)).await;
        let Row { found, turns, checks, honest_accused } = &row;
        eprintln!(
            "client {number}: found {found:?} in {turns} turns by {checks} checks; honest nodes accused: {honest_accused}"
        );
        if let Some(node) = leaving.into_inner() {
            node.stop().await.unwrap();
        }
        honest.extend(world.honest(1).await);
        rows.push(row);
    }
    assert!(rows.iter().all(|row| row.honest_accused == 0), "{rows:?}");
    // Chance draws nodes, so a liar may serve too few turns.
    let found: usize = rows.iter().map(|row| row.found.len()).sum();
    assert!(10 * found >= 9 * rows.len() * lies.len(), "{rows:?}");
    for lie in EngineLie::ALL {
        assert!(rows.iter().any(|row| row.found.contains_key(&lie)), "{lie:?} was never found: {rows:?}");
    }
    for node in honest.into_iter().chain(liars.into_iter().map(|(_, node)| node)) {
        node.stop().await.unwrap();
    }
    world.network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_nodes_with_every_instruction_set_are_never_accused() {
    let _guard = crate::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::start(folder.path()).await;
    let honest = world.honest(2 * Isa::all().len()).await;
    let wanted = if is_full() { 10_000 } else { 100 };
    let client = world.client("client", &honest.iter().collect::<Vec<_>>()).await;
    let mut owner = Owner::new(client, 7);
    let (mut same, mut gaps) = (0, 0);
    while owner.turns < wanted {
        for AnswerCheck { verdict, .. } in owner.turn().await.receipt.checks.iter() {
            match verdict {
                CheckVerdict::Same { .. } => same += 1,
                CheckVerdict::NotComparable(CheckGap::Window) => gaps += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(owner.avoided().await, BTreeSet::new());
    assert!(same > wanted / 2 && gaps < same / 10, "{same} of {} checks have a result", same + gaps);
    let sets: Vec<&str> = Isa::all().into_iter().map(Isa::name).collect();
    eprintln!("{} turns, {same} answers the same at nodes with {sets:?}, {gaps} not comparable", owner.turns);
    owner.client.shutdown(Duration::from_secs(5)).await;
    for node in honest {
        node.stop().await.unwrap();
    }
    world.network.stop().await.unwrap();
}
