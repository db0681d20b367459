//! all-MiniLM-L6-v2 (sentence-transformers) through candle, on its own thread. A message takes some
//! milliseconds of all cores, so one runs at a time.

use std::{path::Path, sync::Mutex, thread};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use tokenizers::Tokenizer;
use tokio::sync::{mpsc, oneshot};
use zeroize::Zeroizing;

use crate::embed::{
    CountedFuture, CountedVector, EmbedError, EmbedFuture, EmbedRole, Embedder, OwnedTexts,
    bert::{Bert, Shape},
    models::ALL_MINILM_L6_V2,
    owned,
    static_table::{broken, read_model_file},
};

const SHAPE: Shape = Shape {
    pieces: 30_522,
    positions: 512,
    types: 2,
    width: 384,
    inner: 1_536,
    heads: 12,
    layers: 6,
    epsilon: 1e-12,
};

/// Most word pieces of a text, as in the published model.
const MAX_PIECES: usize = 256;

/// Texts of one forward pass: some 50 MB of activations at their longest.
const BATCH: usize = 16;

/// Requests that wait for the thread. When full, callers wait too, up to their own deadline.
const QUEUE: usize = 64;

/// Most bytes of the files.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The transformer embedder. Its thread ends when it is dropped.
pub struct MiniLm {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

struct Job {
    texts: OwnedTexts,
    reply: oneshot::Sender<Result<Vec<CountedVector>, EmbedError>>,
}

impl std::fmt::Debug for MiniLm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MiniLm")
    }
}

impl MiniLm {
    /// Its id.
    pub const ID: &'static str = "all-minilm-l6-v2-384";
    /// Most tokens of a text that are embedded.
    pub const MAX_TOKENS: usize = MAX_PIECES;

    /// Opens the model from the models folder. Blocks.
    ///
    /// # Errors
    /// [`EmbedError::Unusable`], which names the fix.
    pub fn open(directory: &Path) -> Result<Self, EmbedError> {
        let model = Model::open(directory)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = thread::Builder::new()
            .name("minilm".into())
            .spawn(move || model.serve(queue))
            .map_err(|error| EmbedError::Unusable(format!("no thread can be started: {error}")))?;
        Ok(Self { jobs: Some(jobs), thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for MiniLm {
    fn drop(&mut self) {
        // The thread sees the end of its queue after its current pass.
        self.jobs = None;
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the embedder panicked");
        }
    }
}

impl Embedder for MiniLm {
    fn id(&self) -> &str {
        Self::ID
    }

    fn dimensions(&self) -> usize {
        SHAPE.width
    }

    fn embed<'a>(&'a self, role: EmbedRole, texts: &'a [&'a str]) -> EmbedFuture<'a> {
        Box::pin(async move {
            let counted = self.embed_counted(role, texts).await?;
            Ok(counted.into_iter().map(|counted| counted.vector).collect())
        })
    }

    fn embed_counted<'a>(&'a self, _role: EmbedRole, texts: &'a [&'a str]) -> CountedFuture<'a> {
        let gone = || EmbedError::Unavailable("the embedder's thread has ended".into());
        Box::pin(async move {
            let jobs = self.jobs.as_ref().ok_or_else(gone)?;
            let (reply, answer) = oneshot::channel();
            jobs.send(Job { texts: owned(texts), reply }).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        })
    }
}

struct Model {
    bert: Bert,
    tokenizer: Tokenizer,
}

impl Model {
    fn open(directory: &Path) -> Result<Self, EmbedError> {
        let name = ALL_MINILM_L6_V2.name;
        let [weights, tokenizer] = ALL_MINILM_L6_V2.paths(directory);
        let bytes = read_model_file(name, &weights, MAX_FILE_BYTES)?;
        let load = |bytes| {
            Bert::load(&SHAPE, &VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu)?)
        };
        let bert = load(bytes).map_err(|error| broken(name, &weights, &error.to_string()))?;
        let bytes = read_model_file(name, &tokenizer, MAX_FILE_BYTES)?;
        let mut reader =
            Tokenizer::from_bytes(bytes).map_err(|error| broken(name, &tokenizer, &error.to_string()))?;
        reader.with_padding(None);
        let truncation = tokenizers::TruncationParams { max_length: MAX_PIECES, ..Default::default() };
        reader
            .with_truncation(Some(truncation))
            .map_err(|error| broken(name, &tokenizer, &error.to_string()))?;
        if reader.get_vocab_size(true) != SHAPE.pieces {
            return Err(broken(name, &tokenizer, "it has another number of word pieces"));
        }
        Ok(Self { bert, tokenizer: reader })
    }

    /// Serves requests until all senders are dropped.
    fn serve(self, mut queue: mpsc::Receiver<Job>) {
        while let Some(job) = queue.blocking_recv() {
            // The caller may have given up while the job waited.
            if job.reply.is_closed() {
                continue;
            }
            let left = || job.reply.is_closed();
            let Some(answer) = self.embed(&job.texts, left) else { continue };
            let _ = job.reply.send(answer);
        }
    }

    /// `None` if the caller gave up meanwhile.
    fn embed(
        &self,
        texts: &OwnedTexts,
        left: impl Fn() -> bool,
    ) -> Option<Result<Vec<CountedVector>, EmbedError>> {
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            if left() {
                return None;
            }
            match self.embed_batch(batch) {
                Ok(embedded) => vectors.extend(embedded),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(vectors))
    }

    fn embed_batch(&self, batch: &[Zeroizing<String>]) -> Result<Vec<CountedVector>, EmbedError> {
        let pieces = batch.iter().map(|text| self.pieces(text)).collect::<Result<Vec<_>, _>>()?;
        let embedded = self.pass(&pieces);
        let embedded =
            embedded.map_err(|error| EmbedError::Unavailable(format!("the model failed: {error}")))?;
        let counted = pieces.iter().zip(embedded).map(|(pieces, vector)| {
            // Only the begin and end markers: no word.
            let vector = if pieces.len() > 2 { vector } else { vec![0.0; SHAPE.width] };
            CountedVector { vector, tokens: pieces.len() }
        });
        Ok(counted.collect())
    }

    fn pieces(&self, text: &str) -> Result<Zeroizing<Vec<u32>>, EmbedError> {
        let encoding = self.tokenizer.encode_fast(text, true);
        let encoding =
            encoding.map_err(|error| EmbedError::Unavailable(format!("the tokenizer failed: {error}")))?;
        Ok(Zeroizing::new(encoding.get_ids().to_vec()))
    }

    fn pass(&self, pieces: &[Zeroizing<Vec<u32>>]) -> candle_core::Result<Vec<Vec<f32>>> {
        let length = pieces.iter().map(|pieces| pieces.len()).max().unwrap_or(0);
        let padded = |pieces: &Zeroizing<Vec<u32>>| {
            pieces.iter().copied().chain(std::iter::repeat(0)).take(length).collect::<Vec<_>>()
        };
        let ids: Vec<u32> = pieces.iter().flat_map(padded).collect();
        let marks = |pieces: &Zeroizing<Vec<u32>>| {
            let own = pieces.len();
            (0..length).map(move |at| if at < own { 1.0_f32 } else { 0.0 })
        };
        let mask: Vec<f32> = pieces.iter().flat_map(marks).collect();
        let shape = (pieces.len(), length);
        let ids = Tensor::from_vec(ids, shape, &Device::Cpu)?;
        let mask = Tensor::from_vec(mask, shape, &Device::Cpu)?;
        self.bert.embed(&ids, &mask)?.to_vec2()
    }
}
