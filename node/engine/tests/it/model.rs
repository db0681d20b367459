//! Whole models, against a plain reference and against other ways of computing them.

use baton_engine::{
    Chunk, Model, Options, Sequence,
    gguf::{DType, GgufFile},
    kernels::Isa,
};

use crate::support::{
    Random, hash, real_model,
    reference::Reference,
    synthetic::{Shape, open},
    writer::Writer,
};

const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];

fn options() -> Options {
    Options { threads: 1, isa: Isa::best(), kv_budget: 1 << 30 }
}

fn load(file: &GgufFile) -> Model {
    Model::from_file(file, &options()).unwrap()
}

/// The logits after each token, with the tokens cut into chunks.
fn run(model: &mut Model, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut sequence = model.sequence();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let logits =
            model.step(&mut [Chunk { sequence: &mut sequence, tokens, logits: usize::MAX }]).unwrap();
        assert_eq!(logits.rows().len(), tokens.len());
        all.extend(logits.rows().flatten());
    }
    all
}

/// Compares logits with the reference's. Returns the largest distance over the reference's spread, the
/// distributions' mean divergence, and the share of rows with the same largest logit.
fn compare(found: &[f32], wanted: &[Vec<f32>]) -> (f64, f64, f64) {
    let softmax = |row: &[f32]| -> Vec<f64> {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = row.iter().map(|x| f64::from(x - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    };
    let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let (mut error, mut divergence, mut same) = (0.0_f64, 0.0, 0);
    for (found, wanted) in found.chunks_exact(wanted[0].len()).zip(wanted) {
        let mean = wanted.iter().map(|x| f64::from(*x)).sum::<f64>() / wanted.len() as f64;
        let spread: f64 = wanted.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
        let distance: f64 = found.iter().zip(wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        error = error.max((distance / spread).sqrt());
        let (p, q) = (softmax(wanted), softmax(found));
        divergence += p.iter().zip(&q).filter(|(p, _)| **p > 0.0).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
        same += usize::from(best(found) == best(wanted));
    }
    (error, divergence / wanted.len() as f64, same as f64 / wanted.len() as f64)
}

#[test]
fn floating_point_models_agree_with_the_reference() {
    for family in FAMILIES {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let file = open(&Shape::new(family, &[dtype]).writer().finish());
            let tokens = Random::new(3).tokens(45, 72);
            let wanted = Reference::new(&file).logits(&tokens);
            let (error, ..) = compare(&run(&mut load(&file), &tokens, 45), &wanted);
            // Keys and values are rounded to 11 bits.
            assert!(error < 3e-3, "{family} {dtype:?}: {error}");
        }
    }
}

#[test]
fn quantised_models_agree_with_the_reference() {
    for family in FAMILIES {
        for dtype in DType::ALL {
            let file = open(&Shape::new(family, &[dtype]).writer().finish());
            let tokens = Random::new(4).tokens(24, 72);
            let wanted = Reference::new(&file).logits(&tokens);
            let found = run(&mut load(&file), &tokens, 24);
            let (error, divergence, _) = compare(&found, &wanted);
            // Activations are rounded to 8 bits: an error of about 0.4 % of a block's largest in each of 21
            // products.
            assert!(error < 0.2 && divergence < 0.01, "{family} {dtype:?}: {error} {divergence}");
            // Against a reference that also rounds them, only numbers that round to the other side differ.
            let wanted = Reference { bytes: true, ..Reference::new(&file) }.logits(&tokens);
            let (error, divergence, _) = compare(&found, &wanted);
            assert!(error < 0.05 && divergence < 0.001, "{family} {dtype:?}: {error} {divergence}");
        }
    }
}

#[test]
fn rotation_variants_agree_with_the_reference() {
    let change = |name: &str, change: &dyn Fn(&mut Writer)| {
        let mut writer = Shape::new("llama", &[DType::F32]).writer();
        change(&mut writer);
        let file = open(&writer.finish());
        let tokens = Random::new(5).tokens(60, 72);
        let wanted = Reference::new(&file).logits(&tokens);
        let found = run(&mut load(&file), &tokens, 60);
        let (error, ..) = compare(&found, &wanted);
        assert!(error < 3e-3, "{name}: {error}");
        hash(&found)
    };
    let hashes = [
        change("plain", &|_| {}),
        change("linear", &|writer| {
            writer.f32("llama.rope.scaling.factor", 4.0).string("llama.rope.scaling.type", "linear");
        }),
        change("yarn", &|writer| {
            writer.f32("llama.rope.scaling.factor", 4.0).string("llama.rope.scaling.type", "yarn");
            writer.u32("llama.rope.scaling.original_context_length", 64);
        }),
        change("factors", &|writer| {
            writer
                .f32s("rope_freqs.weight", &(0..32).map(|pair| 1.0 + pair as f32 / 4.0).collect::<Vec<_>>());
        }),
        change("part of the dimensions", &|writer| {
            writer.u32("llama.rope.dimension_count", 32);
        }),
    ];
    for (index, hash) in hashes.iter().enumerate() {
        assert!(!hashes[..index].contains(hash), "variant {index} changes something");
    }
}

/// Computes `tokens` in all ways that must not matter, and compares every bit.
fn same_bits(file: &GgufFile, tokens: &[u32], isas: &[Isa], what: &str) {
    let mut model = load(file);
    let vocabulary = model.vocabulary();
    let wanted = run(&mut model, tokens, tokens.len());
    for threads in [1, 2, 3] {
        model.set_threads(threads).unwrap();
        for isa in isas {
            model.set_isa(*isa);
            for chunk in [1, 5, 7, 32, tokens.len()] {
                if (isa.name() == "scalar" || threads == 3) && chunk != 7 {
                    continue;
                }
                let found = run(&mut model, tokens, chunk);
                assert!(found == wanted, "{what}: {isa:?}, {threads} threads, chunks of {chunk}");
            }
            for batch in [3, 8] {
                let found = in_company(&mut model, tokens, batch);
                assert!(
                    found == wanted[wanted.len() - vocabulary..],
                    "{what}: {isa:?}, {threads} threads, {batch} at once"
                );
            }
        }
    }
}

/// The last logits of `tokens` while sequences of other lengths are computed beside it, in steps that mix
/// prompts with single tokens.
fn in_company(model: &mut Model, tokens: &[u32], batch: usize) -> Vec<f32> {
    let mut random = Random::new(batch as u64);
    let vocabulary = model.vocabulary();
    let mut others: Vec<(Sequence, Vec<u32>)> =
        (1..batch).map(|_| (model.sequence(), random.tokens(200, vocabulary))).collect();
    let (mut sequence, mut rest, mut last) = (model.sequence(), tokens, Vec::new());
    while !rest.is_empty() {
        let mut chunks = Vec::new();
        let (now, later) = rest.split_at(rest.len().min(1 + random.below(17) as usize));
        rest = later;
        for (sequence, tokens) in &mut others {
            let length = (1 + random.below(9) as usize).min(tokens.len() - sequence.len());
            if length > 0 {
                let tokens = &tokens[sequence.len()..][..length];
                chunks.push(Chunk { sequence, tokens, logits: 1 });
            }
        }
        let place = random.below(chunks.len() as u64 + 1) as usize;
        chunks.insert(place, Chunk { sequence: &mut sequence, tokens: now, logits: 1 });
        let logits = model.step(&mut chunks).unwrap();
        last = logits.rows().nth(place).unwrap().to_vec();
    }
    last
}

#[test]
fn bits_do_not_depend_on_how_they_are_computed() {
    for dtype in DType::ALL {
        let family = FAMILIES[dtype as usize % 4];
        let file = open(&Shape::new(family, &[dtype]).writer().finish());
        same_bits(&file, &Random::new(8).tokens(41, 72), &Isa::all(), &format!("{family} {dtype:?}"));
    }
}

#[test]
fn bits_do_not_depend_on_how_mixed_models_are_computed() {
    for (family, shared) in [("llama", 4), ("qwen2", 2), ("qwen3", 1), ("gemma3", 4)] {
        let mut shape =
            Shape::new(family, &[DType::Q4K, DType::Q6K, DType::F16, DType::Q5_0, DType::Q8_0, DType::Q4_1]);
        (shape.tied, shape.kv_heads, shape.head_dim, shape.seed) = (true, 4 / shared, 96, 9);
        shape.heads = 8;
        shape.kv_heads *= 2;
        let file = open(&shape.writer().finish());
        same_bits(&file, &Random::new(9).tokens(75, 72), &Isa::all(), family);
    }
}

#[test]
fn a_shared_beginning_gives_the_same_bits() {
    let file = open(&Shape::new("gemma3", &[DType::Q8_0]).writer().finish());
    let mut model = load(&file);
    let tokens = Random::new(10).tokens(90, 72);
    let wanted = run(&mut model, &tokens, 90);
    let mut first = model.sequence();
    model.step(&mut [Chunk { sequence: &mut first, tokens: &tokens[..70], logits: 0 }]).unwrap();
    let mut second = Sequence::from_blocks(model.kv(), first.full_blocks().to_vec(), 64);
    assert_eq!(second.len(), 64);
    let rest = Chunk { sequence: &mut second, tokens: &tokens[64..], logits: 1 };
    let logits = model.step(&mut [rest]).unwrap();
    assert!(logits.rows().next().unwrap() == &wanted[89 * 72..]);
    // Refused drafts leave no trace.
    first.truncate(40);
    let rest = Chunk { sequence: &mut first, tokens: &tokens[40..], logits: 1 };
    let logits = model.step(&mut [rest]).unwrap();
    assert!(logits.rows().next().unwrap() == &wanted[89 * 72..]);
}

#[test]
fn steps_that_cannot_be_made_change_nothing() {
    let file = open(&Shape::new("llama", &[DType::Q4_0]).writer().finish());
    let block = load(&file).kv().shape().block_bytes();
    let mut model = Model::from_file(&file, &Options { kv_budget: 3 * block, ..options() }).unwrap();
    let mut other = load(&file);
    let (mut first, mut second, mut foreign) = (model.sequence(), model.sequence(), other.sequence());
    let mut step = |first: (&mut Sequence, &[u32]), second: (&mut Sequence, &[u32])| {
        let chunk = |(sequence, tokens)| Chunk { sequence, tokens, logits: 1 };
        let result = model.step(&mut [chunk(first), chunk(second)]).map(|logits| logits.rows().len());
        (result.map_err(|error| error.to_string()), model.kv().used())
    };
    let mut refuses = |says: &str, first: (&mut Sequence, &[u32]), second: (&mut Sequence, &[u32])| {
        let (result, used) = step(first, second);
        assert!(result.as_ref().is_err_and(|error| error.contains(says)) && used == 0, "{says}: {result:?}");
    };
    refuses("budget", (&mut first, &[1; 65]), (&mut second, &[1]));
    for (says, tokens) in
        [("without tokens", &[][..]), ("token 72", &[72]), ("context", &[1; 513]), ("a step of", &[1; 2044])]
    {
        refuses(says, (&mut first, &[1; 5]), (&mut second, tokens));
    }
    refuses("another model", (&mut first, &[1; 5]), (&mut foreign, &[1]));
    let long = vec![1; 513];
    let mut sequence = other.sequence();
    let chunk = Chunk { sequence: &mut sequence, tokens: &long, logits: usize::MAX };
    assert!(other.step(&mut [chunk]).unwrap_err().to_string().contains("logits of 513"));
    assert!(first.is_empty() && second.is_empty());
    assert_eq!(step((&mut first, &[1; 5]), (&mut second, &[1; 40])), (Ok(2), 3 * block));
    drop((first, second));
    assert_eq!(model.kv().used(), 0);
}

#[test]
fn models_that_contradict_their_header_are_refused() {
    let refuses = |says: &str, shape: &Shape, change: &dyn Fn(&mut Writer)| {
        let mut writer = shape.writer();
        change(&mut writer);
        let error = Model::from_file(&open(&writer.finish()), &options()).err().expect(says).to_string();
        assert!(error.contains(says), "{error} instead of {says}");
    };
    let llama = Shape::new("llama", &[DType::F32]);
    refuses("not known", &llama, &|writer| {
        writer.f32s("blk.0.attn_sinks", &[1.0; 4]);
    });
    refuses("mixture", &llama, &|writer| {
        writer.u32("llama.expert_count", 8);
    });
    refuses("capping", &llama, &|writer| {
        writer.f32("llama.final_logit_softcapping", 30.0);
    });
    refuses("rotation scaled by", &llama, &|writer| {
        writer.string("llama.rope.scaling.type", "longrope");
    });
    refuses("not above zero", &llama, &|writer| {
        writer.f32("llama.rope.scaling.factor", 0.0);
    });
    refuses("not above zero", &llama, &|writer| {
        writer.f32s("rope_freqs.weight", &[0.0; 32]);
    });
    refuses("32 is needed", &llama, &|writer| {
        writer.f32s("rope_freqs.weight", &[1.0; 31]);
    });
    refuses("family \"mamba\"", &Shape::new("mamba", &[DType::F32]), &|_| {});
    for (says, change) in [
        ("no tensor \"blk.3", &(|shape: &mut Shape| shape.layers = 3) as &dyn Fn(&mut Shape)),
        ("cannot share", &|shape| shape.kv_heads = 3),
        ("multiple of 16", &|shape| shape.head_dim = 40),
        ("multiple of 32", &|shape| shape.feed_forward = 48),
        ("block_count", &|shape| shape.layers = 0),
    ] {
        let mut shape = llama.clone();
        change(&mut shape);
        if says.contains("tensor") {
            // Announces a missing layer: the count follows the key and the value's type.
            let mut bytes = shape.writer().finish();
            let key = b"llama.block_count";
            let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
            bytes[at] = 4;
            let error = Model::from_file(&open(&bytes), &options()).err().unwrap();
            assert!(error.to_string().contains("no tensor"), "{error}");
        } else {
            refuses(says, &shape, &|_| {});
        }
    }
}

/// Checks a real model's logits on a fixed text. They are near a reference's, and nearer to a reference that
/// also rounds activations to bytes. All ways of computing give the same bits.
fn real(file: &str, prompt: &[u32]) {
    let Some(path) = real_model(file) else { return };
    let file = GgufFile::open(&path).unwrap();
    let mut model = load(&file);
    let found = run(&mut model, prompt, prompt.len());
    let reference = |bytes, scale| {
        let mut reference = Reference { bytes, ..Reference::new(&file) };
        reference.config.embedding_scale *= scale;
        reference.logits(prompt)
    };
    // The effect of rounding activations to bytes alone. A change of a millionth makes some round to the
    // other side, and the next layers amplify it.
    let rounded = reference(true, 1.0);
    let own = compare(&reference(true, 1.0 + 1e-6).concat(), &rounded);
    let from_rounded = compare(&found, &rounded);
    let from_exact = compare(&found, &reference(false, 1.0));
    eprintln!(
        "{}: rounding itself {own:?}, from rounded {from_rounded:?}, from exact {from_exact:?}",
        path.display()
    );
    assert!(from_rounded.0 < 2.0 * own.0 && from_rounded.1 < 2.0 * own.1, "{own:?} {from_rounded:?}");
    assert!(from_exact.0 < 0.2 && from_exact.1 < 0.01, "{from_exact:?}");
    for isa in Isa::all() {
        model.set_isa(isa);
        for threads in [1, 2] {
            model.set_threads(threads).unwrap();
            let chunk = if isa.name() == "scalar" { 11 } else { 1 + 6 * threads };
            assert!(run(&mut model, prompt, chunk) == found, "{isa:?}, {threads} threads");
        }
    }
}

#[test]
fn smollm2_agrees_with_the_reference() {
    // "The quick brown fox jumps over the lazy dog. The capital of France is Paris, and the capital of ..."
    let prompt = [
        504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30, 378, 3575, 282, 4649, 314, 7042, 28, 284,
        260, 3575, 282,
    ];
    real("SmolLM2-135M-Instruct.Q4_1.gguf", &prompt);
}

#[test]
fn gemma3_agrees_with_the_reference() {
    let prompt = [2, 818, 5279, 529, 7001, 563, 9079, 236761, 669, 5279, 529];
    real("gemma-3-270m-q4_k_m.gguf", &prompt);
}
