//! One device's access to a head index: open, away, read-only, or stuck at old heads like an index that
//! withholds.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use baton_proto::{
    ids::HeadIndexKey,
    store::{HeadIndex, StoreFuture},
};
use parking_lot::Mutex;

use tokio::sync::watch;

use super::store::{MemoryStore, down};
use crate::{ClientConfig, NamedIndex};

enum GateMode {
    Open,
    Away,
    /// Never answers.
    Silent,
    /// Shows its heads and accepts none.
    ReadOnly,
    /// Accepts everything and still shows these heads.
    Stuck(HashMap<HeadIndexKey, Vec<u8>>),
}

pub struct Gate {
    index: MemoryStore,
    mode: Mutex<GateMode>,
    resolves: AtomicUsize,
    /// Notified of every record that the index accepted.
    taken: watch::Sender<()>,
}

impl Gate {
    pub fn new(index: &MemoryStore) -> Arc<Self> {
        Arc::new(Self {
            index: index.clone(),
            mode: Mutex::new(GateMode::Open),
            resolves: AtomicUsize::new(0),
            taken: watch::Sender::default(),
        })
    }

    pub fn open(&self) {
        *self.mode.lock() = GateMode::Open;
    }

    pub fn away(&self) {
        *self.mode.lock() = GateMode::Away;
    }

    pub fn silence(&self) {
        *self.mode.lock() = GateMode::Silent;
    }

    pub fn read_only(&self) {
        *self.mode.lock() = GateMode::ReadOnly;
    }

    /// Waits until the index has exactly these heads.
    pub async fn has(&self, heads: &HashMap<HeadIndexKey, Vec<u8>>) {
        let mut taken = self.taken.subscribe();
        while self.index.heads() != *heads {
            taken.changed().await.unwrap();
        }
    }

    pub fn stick(&self) {
        *self.mode.lock() = GateMode::Stuck(self.index.heads());
    }

    pub fn resolves(&self) -> usize {
        self.resolves.load(Ordering::Relaxed)
    }
}

impl HeadIndex for Gate {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        match &*self.mode.lock() {
            GateMode::Open => Box::pin(async move {
                self.index.publish(record).await?;
                self.taken.send_replace(());
                Ok(())
            }),
            GateMode::Away | GateMode::ReadOnly => Box::pin(async { Err(down()) }),
            GateMode::Stuck(_) => Box::pin(async { Ok(()) }),
            GateMode::Silent => Box::pin(std::future::pending()),
        }
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        self.resolves.fetch_add(1, Ordering::Relaxed);
        match &*self.mode.lock() {
            GateMode::Open | GateMode::ReadOnly => self.index.resolve(key),
            GateMode::Away => Box::pin(async { Err(down()) }),
            GateMode::Silent => Box::pin(std::future::pending()),
            GateMode::Stuck(heads) => {
                let shown = heads.get(&key).cloned();
                Box::pin(async { Ok(shown) })
            }
        }
    }
}

/// A configuration with these head indexes, named by their positions.
pub fn with_indexes(mut config: ClientConfig, gates: &[Arc<Gate>]) -> ClientConfig {
    let mut named = gates
        .iter()
        .enumerate()
        .map(|(place, gate)| NamedIndex { name: format!("index {place}"), index: gate.clone() });
    let first = named.next().unwrap();
    (config.heads_name, config.heads) = (first.name, first.index);
    config.more_heads = named.collect();
    config
}
