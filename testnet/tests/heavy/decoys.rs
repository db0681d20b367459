//! Decoys among nodes that lie about their computation: a coarser file, a shorter window, another seed, a smaller
//! model. Clients find the liars within 60 turns of their owners, while nodes leave and join. No honest node is
//! accused, whatever instruction set its kernels use. The test is a short run; `BATON_FULL=1` makes it the
//! whole one, which prints a line for each client.

mod model;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use baton_client::{Client, ClientConfig, DecoyPolicy, NewSession, ResumeOptions, TurnInput, read_proof};
use baton_engine::kernels::Isa;
use baton_node::engine::{
    Engine,
    native::{NativeConfig, NativeEngine},
};
use baton_proto::{ids::NodeId, turn::Sampling};
use baton_testnet::{
    byzantine::{ByzantineNode, ByzantineOptions, EngineLie, FalseEngine, MisbehaviourLog},
    network::{Network, NodeOptions},
};

use crate::support::Random;

const SHARDS: u16 = 10;
/// Turns of its owner within which a client should find every liar.
const MOST_TURNS: u64 = 60;
/// The name of the model at all nodes.
const MODEL: &str = "small";
/// Words of the owners' messages; decoys have others.
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
            EngineLie::CutsWindow | EngineLie::IgnoresSeed => honest.clone(),
        };
        Arc::new(FalseEngine::new(honest.info(), inner, lie))
    }
}

/// A store, and nodes of this process.
struct World {
    network: Network,
    files: Files,
    folder: PathBuf,
    started: usize,
}

impl World {
    async fn start(folder: &Path) -> Self {
        let network = Network::start(folder, 0, NodeOptions::echo()).await.unwrap();
        Self { network, files: Files::write(folder), folder: folder.to_owned(), started: 0 }
    }

    async fn node(&mut self, engine: Arc<dyn Engine>) -> ByzantineNode {
        self.started += 1;
        let options = ByzantineOptions {
            folder: &self.folder.join(format!("node-{}", self.started)),
            store_url: self.network.store_url(),
            shards: SHARDS,
            echo_delay: Duration::ZERO,
            bootstrap: Vec::new(),
            behaviours: Vec::new(),
            begin: 0,
            log: MisbehaviourLog::default(),
        };
        ByzantineNode::start_with(options, engine).await.unwrap()
    }

    /// Honest nodes, with all instruction sets of this processor in turn.
    async fn honest(&mut self, count: usize) -> Vec<ByzantineNode> {
        let mut nodes = Vec::new();
        for isa in Isa::all().into_iter().cycle().take(count) {
            let engine = self.files.engine("honest", isa);
            nodes.push(self.node(engine).await);
        }
        nodes
    }

    async fn client(&self, name: &str, nodes: &[&ByzantineNode], share: u32) -> Client {
        let url = self.network.store_url();
        let home = self.folder.join(name);
        let mut config = ClientConfig::with_http(Some(&home), url, url, Some(url), SHARDS).unwrap();
        config.bootstrap = nodes.iter().flat_map(|node| node.addresses.clone()).collect();
        config.timeouts.author_stores = Duration::from_secs(5);
        // The test sends each decoy when it is due: the times are those of turns, not of a clock.
        let hour = Duration::from_secs(3600);
        config.decoys = DecoyPolicy { share, min_delay: hour, max_delay: hour, max_pause: Duration::ZERO };
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

    /// One turn: half of the sessions go on after each turn. Returns the node.
    async fn turn(&mut self) -> NodeId {
        if self.session.is_none() || self.draws.below(2) == 0 {
            self.session = Some(self.client.new_session(NewSession::default()).await.unwrap());
        }
        let words = 4 + self.draws.below(16);
        let text: Vec<&str> = (0..words).map(|_| WORDS[self.draws.below(24) as usize]).collect();
        let sampling = Sampling { temperature: 0.8, seed: self.draws.next(), ..Sampling::default() };
        let input = TurnInput {
            sampling,
            max_output_tokens: 40,
            model: Some(MODEL.to_owned()),
            ..TurnInput::user(text.join(" "))
        };
        let session = self.client.session(self.session.unwrap());
        let outcome = session.turn(input, |_| {}).await.unwrap();
        self.turns += 1;
        outcome.node
    }

    /// Sends decoys while any is due, at most `most`; returns the nodes that are avoided for a contradiction from
    /// now on.
    async fn check(&self, most: usize) -> Vec<NodeId> {
        let mut liars = Vec::new();
        for _ in 0..most {
            let Some(report) = self.client.check_nodes().await.unwrap() else { break };
            assert!(report.cutters.is_empty(), "no window is cut openly: {report:?}");
            liars.extend(report.liars);
            if report.nodes.len() < 2 {
                break;
            }
        }
        liars
    }

    /// The nodes that are avoided for a lie of any kind.
    async fn avoided(&self) -> BTreeSet<NodeId> {
        let rows = self.client.explain(None, &ResumeOptions::default()).await.unwrap();
        let now_ms = self.client.now_ms();
        let avoided = rows.into_iter().filter(|row| row.evidence.lied_until_ms > now_ms);
        avoided.map(|row| row.node).collect()
    }
}

/// The result of one client.
#[derive(Debug)]
struct Row {
    /// The owner's turns until each liar was found.
    found: BTreeMap<EngineLie, u64>,
    turns: u64,
    decoy_turns: u64,
    real_tokens: u64,
    decoy_tokens: u64,
    honest_accused: usize,
}

async fn until_all_are_found(
    mut owner: Owner,
    lies: BTreeMap<NodeId, EngineLie>,
    leave: impl AsyncFn(u64),
) -> Row {
    let (mut found, mut honest_accused) = (BTreeMap::new(), 0);
    while found.len() < lies.len() && owner.turns < MOST_TURNS {
        owner.turn().await;
        leave(owner.turns).await;
        // As in the background: one decoy for two turns.
        let most = usize::from(owner.turns.is_multiple_of(2));
        for liar in owner.check(most).await {
            match lies.get(&liar) {
                Some(lie) => drop(found.insert(*lie, owner.turns)),
                None => honest_accused += 1,
            }
        }
    }
    let avoided = owner.avoided().await;
    honest_accused += avoided.iter().filter(|node| !lies.contains_key(node)).count();
    for proof in owner.client.proofs().await.unwrap() {
        let report = read_proof(&proof).unwrap().check().unwrap();
        assert!(!report.is_decided() || lies.contains_key(&report.accused), "{report:?}");
    }
    let totals = owner.client.decoys();
    owner.client.shutdown(Duration::from_secs(5)).await;
    Row {
        found,
        turns: owner.turns,
        decoy_turns: totals.turns,
        real_tokens: totals.real_tokens,
        decoy_tokens: totals.decoy_tokens,
        honest_accused,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_find_liars_within_60_turns_and_accuse_no_honest_node() {
    let _guard = crate::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::start(folder.path()).await;
    let mut honest = world.honest(4).await;
    let mut liars = Vec::new();
    for lie in EngineLie::ALL {
        let engine = world.files.lying(lie);
        liars.push((lie, world.node(engine).await));
    }
    let lies: BTreeMap<NodeId, EngineLie> = liars.iter().map(|(lie, node)| (node.node, *lie)).collect();
    let clients = if is_full() { 8 } else { 2 };
    let mut rows = Vec::new();
    for number in 0..clients {
        let nodes: Vec<&ByzantineNode> = honest.iter().chain(liars.iter().map(|(_, node)| node)).collect();
        let client = world.client(&format!("client-{number}"), &nodes, 30).await;
        let owner = Owner::new(client, 100 + number);
        // Churn: one of the honest nodes leaves after some turns, and another joins before the next client.
        let leaving = std::sync::Mutex::new(honest.pop());
        let leave = async |turns: u64| {
            let node = if turns == 10 { leaving.lock().unwrap().take() } else { None };
            if let Some(node) = node {
                node.stop().await.unwrap();
            }
        };
        let row = Box::pin(until_all_are_found(owner, lies.clone(), leave)).await;
        let Row { found, turns, decoy_turns, real_tokens, decoy_tokens, honest_accused } = &row;
        eprintln!(
            "client {number}: found {found:?} in {turns} turns ({real_tokens} tokens), by {decoy_turns} turns of decoys ({decoy_tokens} tokens); honest nodes accused: {honest_accused}"
        );
        if let Some(node) = leaving.into_inner().unwrap() {
            node.stop().await.unwrap();
        }
        honest.extend(world.honest(1).await);
        rows.push(row);
    }
    let found: usize = rows.iter().map(|row| row.found.len()).sum();
    let all = rows.len() * EngineLie::ALL.len();
    eprintln!("{found} of {all} lies found within {MOST_TURNS} turns of the client's owner");
    assert!(rows.iter().all(|row| row.honest_accused == 0), "{rows:?}");
    for lie in EngineLie::ALL {
        assert!(rows.iter().any(|row| row.found.contains_key(&lie)), "{lie:?} was never found: {rows:?}");
    }
    // Chance draws nodes, and the number of a decoy's turns. A cut window shows in second turns alone.
    assert!(!is_full() || 10 * found >= 9 * all, "{rows:?}");
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
    let client =
        world.client("client", &honest.iter().collect::<Vec<_>>(), baton_client::MAX_DECOY_SHARE).await;
    let mut owner = Owner::new(client, 7);
    let mut totals = owner.client.decoys();
    while owner.turns + totals.turns < wanted {
        owner.turn().await;
        assert_eq!(owner.check(usize::MAX).await, []);
        totals = owner.client.decoys();
    }
    assert_eq!(owner.avoided().await, BTreeSet::new());
    assert_eq!((totals.contradictions, totals.undecided), (0, 0), "{totals:?}");
    assert!(totals.turns > 20, "{totals:?}");
    let sets: Vec<&str> = Isa::all().into_iter().map(Isa::name).collect();
    eprintln!("{} turns and {} turns of decoys at nodes with {sets:?}", owner.turns, totals.turns);
    owner.client.shutdown(Duration::from_secs(5)).await;
    for node in honest {
        node.stop().await.unwrap();
    }
    world.network.stop().await.unwrap();
}
