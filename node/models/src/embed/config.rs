//! The operator's choice of embedder, and its opening.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

#[cfg(feature = "embedders")]
use crate::embed::{CombinedEmbedder, MiniLm, StaticTable, models::POTION_BASE_8M};
use crate::embed::{EmbedError, EmbedRole, Embedder, Hashing, Remote, RemoteConfig};

/// The configured embedder. As TOML: `kind = "hashing"`, `"potion"`, `"minilm"`, or `"remote"` with the
/// fields of [`RemoteConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EmbedderConfig {
    /// `hashing-384-v1`: no model files.
    Hashing {},
    /// potion-base-8M: a static table, once fetched.
    Potion {},
    /// all-MiniLM-L6-v2: a transformer, once fetched.
    Minilm {},
    /// An OpenAI-compatible endpoint. Texts leave this machine.
    Remote(RemoteConfig),
}

impl Default for EmbedderConfig {
    /// The embedder without model files.
    fn default() -> Self {
        Self::Hashing {}
    }
}

/// Opens an embedder and probes it, so that an unusable one is refused at the start and never silently off
/// (D4).
///
/// `models_dir` is the folder of fetched models. The transformer and the endpoint know no single words; if
/// the static table is installed, it supplies their related words.
///
/// # Errors
/// [`EmbedError::Unusable`], which names the fix.
pub async fn open(config: &EmbedderConfig, models_dir: &Path) -> Result<Arc<dyn Embedder>, EmbedError> {
    let embedder: Arc<dyn Embedder> = match config {
        EmbedderConfig::Hashing {} => Arc::new(Hashing),
        EmbedderConfig::Remote(config) => Arc::new(Remote::open(config).await?),
        EmbedderConfig::Potion {} | EmbedderConfig::Minilm {} => local(config, models_dir).await?,
    };
    probe(&*embedder).await?;
    with_table(config, models_dir, embedder).await
}

/// Opens a model that runs on this machine.
#[cfg(feature = "embedders")]
async fn local(config: &EmbedderConfig, models_dir: &Path) -> Result<Arc<dyn Embedder>, EmbedError> {
    let folder = models_dir.to_owned();
    if matches!(config, EmbedderConfig::Minilm {}) {
        return Ok(Arc::new(blocking(move || MiniLm::open(&folder)).await?));
    }
    Ok(Arc::new(blocking(move || StaticTable::open_potion(&folder)).await?))
}

#[cfg(not(feature = "embedders"))]
async fn local(_: &EmbedderConfig, _: &Path) -> Result<Arc<dyn Embedder>, EmbedError> {
    let text = "this program was built without embedding models: build it with the feature `models`, or take the hashing \
                embedder or an endpoint";
    Err(EmbedError::Unusable(text.to_owned()))
}

#[cfg(not(feature = "embedders"))]
async fn with_table(
    _: &EmbedderConfig,
    _: &Path,
    embedder: Arc<dyn Embedder>,
) -> Result<Arc<dyn Embedder>, EmbedError> {
    Ok(embedder)
}

/// Adds the static table as the source of related words, if the embedder knows no single words.
#[cfg(feature = "embedders")]
async fn with_table(
    config: &EmbedderConfig,
    models_dir: &Path,
    embedder: Arc<dyn Embedder>,
) -> Result<Arc<dyn Embedder>, EmbedError> {
    let knows_no_words = matches!(config, EmbedderConfig::Minilm {} | EmbedderConfig::Remote(_));
    if !knows_no_words || !POTION_BASE_8M.is_installed(models_dir) {
        return Ok(embedder);
    }
    let folder = models_dir.to_owned();
    let table = blocking(move || StaticTable::open_potion(&folder)).await?;
    Ok(Arc::new(CombinedEmbedder::new(embedder, table)))
}

#[cfg(feature = "embedders")]
async fn blocking<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, EmbedError> + Send + 'static,
) -> Result<T, EmbedError> {
    let opened = tokio::task::spawn_blocking(open).await;
    opened.map_err(|_| EmbedError::Unusable("opening it was stopped".into()))?
}

/// Checks that vectors have the announced length, are finite and of norm one, and that similar texts have
/// similar vectors.
async fn probe(embedder: &dyn Embedder) -> Result<(), EmbedError> {
    let unusable =
        |what: &str| EmbedError::Unusable(format!("{} {what}; fetch or configure another", embedder.id()));
    let texts =
        ["The cat sleeps on the sofa.", "A cat is sleeping on a sofa.", "Interest rates rose in March.", ""];
    let vectors = embedder.embed(EmbedRole::Document, &texts).await?;
    let [same, alike, other, nothing] = vectors.as_slice() else {
        return Err(unusable("gives another number of vectors than it got texts"));
    };
    if vectors
        .iter()
        .any(|vector| vector.len() != embedder.dimensions() || vector.iter().any(|x| !x.is_finite()))
    {
        return Err(unusable("gives vectors that are not as long as it says"));
    }
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    if [same, alike, other].into_iter().any(|vector| (cosine(vector, vector) - 1.0).abs() > 0.01)
        || nothing.iter().any(|x| *x != 0.0)
    {
        return Err(unusable("gives vectors that are not of length one"));
    }
    if cosine(same, alike) <= cosine(same, other) {
        return Err(unusable("holds unlike texts for more similar than like ones"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn refusal(config: &EmbedderConfig, folder: &Path) -> String {
        match open(config, folder).await {
            Ok(embedder) => panic!("{} was not refused", embedder.id()),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn c11_the_default_needs_nothing() {
        let embedder = open(&EmbedderConfig::default(), Path::new("/nonexistent")).await.unwrap();
        assert_eq!((embedder.id(), embedder.dimensions()), ("hashing-384-v1", 384));
    }

    #[tokio::test]
    async fn d4_a_missing_or_broken_model_is_refused_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        for (config, name) in
            [(EmbedderConfig::Potion {}, "potion-base-8m"), (EmbedderConfig::Minilm {}, "all-minilm-l6-v2")]
        {
            let advice = format!("models pull {name}");
            let missing = refusal(&config, folder.path()).await;
            assert!(missing.contains(&advice), "{missing}");
            for bytes in [&b""[..], b"not a model", &[0xff; 64]] {
                fs::write(folder.path().join(format!("{name}.safetensors")), bytes).unwrap();
                let broken = refusal(&config, folder.path()).await;
                assert!(broken.contains(&advice) && broken.contains("remove it"), "{broken}");
            }
        }
    }

    #[tokio::test]
    async fn d4_an_embedder_that_answers_nonsense_is_refused() {
        struct Nonsense(Vec<f32>, usize);
        impl Embedder for Nonsense {
            fn id(&self) -> &str {
                "nonsense"
            }
            fn dimensions(&self) -> usize {
                2
            }
            fn embed<'a>(&'a self, _: EmbedRole, _: &'a [&'a str]) -> crate::embed::EmbedFuture<'a> {
                Box::pin(async { Ok(vec![self.0.clone(); self.1]) })
            }
        }
        for (vector, count) in [
            (vec![1.0, 0.0], 3),
            (vec![1.0], 4),
            (vec![f32::NAN, 0.0], 4),
            (vec![2.0, 0.0], 4),
            (vec![1.0, 0.0], 4),
            (vec![0.0, 0.0], 4),
        ] {
            let error = probe(&Nonsense(vector.clone(), count)).await.unwrap_err();
            assert!(error.to_string().contains("nonsense"), "{vector:?}: {error}");
        }
    }

    #[test]
    fn configurations_name_their_kind_and_nothing_unknown() {
        let read = |text: &str| serde_json::from_str::<EmbedderConfig>(text);
        assert_eq!(read(r#"{"kind":"potion"}"#).unwrap(), EmbedderConfig::Potion {});
        let remote = r#"{"kind":"remote","base_url":"http://127.0.0.1:1/v1","model":"m","dimensions":8,
            "roles":{"by":"prefix","query":"q: ","document":"d: "}}"#;
        assert!(
            matches!(read(remote).unwrap(), EmbedderConfig::Remote(config) if config.dimensions == 8 && config.batch == 64)
        );
        for bad in [r#"{}"#, r#"{"kind":"x"}"#, r#"{"kind":"potion","model":"m"}"#, r#"{"kind":"remote"}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
