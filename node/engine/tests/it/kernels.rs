//! Each kernel gives the same bits on every instruction set, for any input.

use baton_engine::{
    gguf::DType,
    half::{f16_to_f32, f32_to_f16},
    kernels::{
        Isa, Kernel, LANES, Simd,
        attention::{Attend, KV_BLOCK, Rows, SLICE, Score, Weigh},
        dot::{Acts, DIRECT_ROWS, Epilogue, Panel, SpreadBlock, TileRef},
        math,
        rows::{ActBlock, AddNormed, NormQuantise, Pairing, PrepareHead, ToHalf},
    },
    tiles::Tiles,
};
use proptest::prelude::*;

use crate::support::{Random, reference::dequantise, synthetic::weights};

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Returns the common result of all instruction sets.
fn same<T: PartialEq + std::fmt::Debug>(compute: impl Fn(Isa) -> T) -> T {
    let wanted = compute(Isa::SCALAR);
    for isa in Isa::all() {
        assert_eq!(compute(isa), wanted, "{isa:?}");
    }
    wanted
}

/// Every operation on floats, in sequence.
struct Floats<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [f32; LANES]);

impl Kernel for Floats<'_> {
    type Output = Vec<[f32; LANES]>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (a, b, c) = (s.load(self.0), s.load(self.1), s.load(self.2));
        let mut bytes = [0; 64];
        for (bytes, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            *bytes = number.to_le_bytes();
        }
        let of = |value| math::lanes(s, value);
        vec![
            of(s.add(a, b)),
            of(s.sub(a, b)),
            of(s.mul(a, b)),
            of(s.div(a, b)),
            of(s.max(a, b)),
            of(s.min(a, b)),
            of(s.abs(a)),
            of(s.fma(a, b, c)),
            of(s.keep(a, 3, 11, 7.5)),
            of(s.keep(a, 0, 16, 7.5)),
            of(s.keep(a, 5, 4, 7.5)),
            of(s.keep(a, 15, 40, 7.5)),
            of(s.where_at_least(a, b, 0.25)),
            of(s.to_float(s.round(a))),
            of(math::exp(s, a)),
            of(math::silu(s, a)),
            of(math::gelu(s, a)),
            of(s.load_bytes(&bytes)),
            of(s.load_bf16_bytes(bytes.first_chunk().unwrap())),
            of(s.pow2(s.round(s.max(s.min(a, s.splat(127.0)), s.splat(-126.0))))),
        ]
    }
}

/// Every operation on integers and bytes.
struct Integers<'a>(&'a [u8; 64], i32, &'a [f32; LANES]);

impl Kernel for Integers<'_> {
    type Output = (Vec<[u8; 64]>, Vec<Vec<u32>>, [i32; 8], i32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let bytes = s.load_b(self.0);
        let (x, numbers) = (self.1, s.round(s.load(self.2)));
        let minus: i32 = x.to_le_bytes().iter().map(|x| -i32::from(*x as i8)).sum();
        let mut stored = Vec::new();
        for value in [
            bytes,
            s.and(bytes, 15),
            s.or(s.and(bytes, 15), s.and(bytes, 48)),
            s.and(s.shr(bytes, 4), 15),
            s.shl(bytes, 3),
            s.shr(bytes, 3),
        ] {
            let mut to = [0; 64];
            s.store_b(value, &mut to);
            stored.push(to);
        }
        let lanes = |value| bits(&math::lanes(s, s.to_float(value)));
        let quarter = self.0.first_chunk().unwrap();
        let numbers_out = vec![
            lanes(s.dot(numbers, s.and(bytes, 63), x)),
            lanes(s.dot_wide(s.wide_start(minus), bytes, x)),
            lanes(s.shift(numbers, 3)),
            lanes(s.splat_i(x)),
            bits(&math::lanes(s, s.load_u8(quarter))),
            bits(&math::lanes(s, s.load_i8(quarter))),
        ];
        (stored, numbers_out, s.pack(numbers, s.shift(numbers, 1)), s.sum_i(numbers))
    }
}

fn lanes_of(size: f32) -> impl Strategy<Value = [f32; LANES]> {
    prop::array::uniform16((-size..size).prop_map(move |x| if x.abs() < size / 64.0 { x / 1e30 } else { x }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn operations_on_floats(a in lanes_of(120.0), b in lanes_of(3.0), c in lanes_of(1e4)) {
        same(|isa| isa.run(Floats(&a, &b, &c)).iter().map(|lanes| bits(lanes)).collect::<Vec<_>>());
        same(|isa| isa.run(Floats(&c, &a, &b)).iter().map(|lanes| bits(lanes)).collect::<Vec<_>>());
    }

    #[test]
    fn operations_on_integers(seed: u64, x in prop::array::uniform4(-127..=127_i8), a in lanes_of(200.0)) {
        let mut random = Random::new(seed);
        let bytes: [u8; 64] = std::array::from_fn(|_| random.byte());
        let word = i32::from_le_bytes(x.map(i8::cast_unsigned));
        let (_, numbers, ..) = same(|isa| isa.run(Integers(&bytes, word, &a)));
        // The wide product matches its definition.
        for (lane, found) in numbers[1].iter().enumerate() {
            let wanted: i32 = (0..4).map(|at| (i32::from(bytes[4 * lane + at]) - 128) * i32::from(x[at])).sum();
            prop_assert_eq!(f32::from_bits(*found), wanted as f32);
        }
    }

    #[test]
    fn rows(seed: u64, blocks in 1..9_usize, count in 1..5_usize, size in prop::sample::select(vec![1e-20_f32, 1e-3, 1.0, 1e4])) {
        let width = 32 * blocks;
        let mut random = Random::new(seed);
        let (rows, weight) = (random.floats(width * count, size), random.floats(width, 2.0));
        let quantised = |isa: Isa, norm| {
            let (mut scratch, mut acts) = (vec![0.0; width], vec![ActBlock::default(); blocks * count]);
            let mut floats = vec![0.0; width * count];
            let (blocks, to) = (&mut acts[..], &mut floats[..]);
            isa.run(NormQuantise { rows: &rows, width, norm, scratch: &mut scratch, blocks, floats: to });
            (acts, bits(&floats))
        };
        same(|isa| quantised(isa, Some((&weight[..], 1e-5))));
        let (acts, _) = same(|isa| quantised(isa, None));
        for (block, from) in acts.iter().zip(rows.chunks(32)) {
            for (at, x) in from.iter().enumerate() {
                let q = block.q[at / 4].to_le_bytes()[at % 4] as i8;
                prop_assert!((f32::from(q) * block.scale - x).abs() <= block.scale * 0.501);
            }
        }
        same(|isa| {
            let (mut row, mut other) = (rows[..width].to_vec(), weight.clone());
            isa.run(AddNormed { row: &mut row, other: &mut other, norm: Some((&rows[..width], 1e-6)) });
            bits(&row)
        });
        for pairing in [Pairing::Neighbours, Pairing::Halves] {
            same(|isa| {
                let mut head = rows[..width].to_vec();
                let (cosines, sines) = weight.split_at(width / 2);
                let norm = Some((&weight[..], 1e-6));
                isa.run(PrepareHead { head: &mut head, norm, cosines, sines, pairing, factor: 0.125 });
                bits(&head)
            });
        }
    }

    #[test]
    fn products(seed: u64, dtype in prop::sample::select(DType::ALL.to_vec()), other in prop::sample::select(DType::ALL.to_vec()),
                rows in 1..15_usize, epilogue in prop::sample::select(vec![Epilogue::Both, Epilogue::Silu, Epilogue::Gelu]), mixed: bool) {
        let columns = 512;
        let mut random = Random::new(seed);
        let types = [dtype, if mixed { other } else { dtype }];
        let raw = types.map(|dtype| weights(&mut random, dtype, 32 * columns, 0.1));
        let tiles: Vec<Tiles> =
            types.iter().zip(&raw).map(|(dtype, raw)| Tiles::repack(*dtype, 32, columns, raw).unwrap()).collect();
        let floats = random.floats(rows * columns, 2.0);
        let compute = |isa: Isa, direct: bool, rows: std::ops::Range<usize>| {
            let floats = &floats[rows.start * columns..rows.end * columns];
            let mut blocks = vec![ActBlock::default(); floats.len() / 32];
            isa.run(NormQuantise { rows: floats, width: columns, norm: None, scratch: &mut [], blocks: &mut blocks, floats: &mut [] });
            let mut out = vec![0.0; rows.len() * epilogue.width()];
            Panel {
                tiles: [TileRef { matrix: &tiles[0], tile: 1 }, TileRef { matrix: &tiles[1], tile: 0 }],
                acts: Acts { blocks: &blocks, floats },
                rows: rows.len(),
                direct,
                epilogue,
                out: &mut out,
                spread: &mut vec![SpreadBlock::EMPTY; 2 * columns / 32],
            }
            .run(isa);
            out
        };
        let all = same(|isa| bits(&compute(isa, false, 0..rows)));
        for isa in Isa::all() {
            for row in 0..rows {
                let of = &all[row * epilogue.width()..][..epilogue.width()];
                prop_assert_eq!(&bits(&compute(isa, true, row..row + 1)), of);
            }
            if rows <= DIRECT_ROWS {
                prop_assert_eq!(&bits(&compute(isa, true, 0..rows)), &all);
            }
        }
        if epilogue == Epilogue::Both {
            // The results are also products.
            let first = dequantise(types[0], &raw[0]);
            for row in 0..rows {
                let x = &floats[row * columns..][..columns];
                let wanted: f64 = first[16 * columns..][..columns].iter().zip(x).map(|(w, x)| f64::from(w * x)).sum();
                let found = f64::from(f32::from_bits(all[row * 32]));
                prop_assert!((found - wanted).abs() < 0.15, "{} instead of {}", found, wanted);
            }
        }
    }

    #[test]
    fn tiles_keep_the_weights(seed: u64, dtype in prop::sample::select(DType::ALL.to_vec()), rows in 1..50_usize) {
        let mut random = Random::new(seed);
        let raw = weights(&mut random, dtype, rows * 256, 0.3);
        let tiles = Tiles::repack(dtype, rows, 256, &raw).unwrap();
        let wanted = dequantise(dtype, &raw);
        let mut found = vec![0.0; 256];
        for row in 0..rows {
            tiles.dequantise_row(row, &mut found);
            for (found, wanted) in found.iter().zip(&wanted[row * 256..]) {
                prop_assert!((found - wanted).abs() <= 1e-6, "{} instead of {}", found, wanted);
            }
        }
    }

    #[test]
    fn attention(seed: u64, position in 0..150_usize, rows in 1..6_usize, heads in 1..5_usize, dims in 1..7_usize,
                 window in prop::sample::select(vec![1_usize, 20, 64, usize::MAX])) {
        let head_dim = 16 * dims;
        let mut random = Random::new(seed);
        let half = KV_BLOCK * head_dim;
        let blocks: Vec<Vec<u16>> = (0..(position + rows).div_ceil(KV_BLOCK))
            .map(|_| random.floats(2 * half, 2.0).iter().map(|x| f32_to_f16(*x)).collect())
            .collect();
        let queries = random.floats(rows * heads * head_dim, 0.5);
        let compute = |isa: Isa, from: usize, rows: usize| {
            let slices: Vec<&[f32]> = queries[from * heads * head_dim..].chunks(head_dim).take(rows * heads).collect();
            let mut out = vec![0.0; rows * heads * head_dim];
            let position = position + from;
            let rows = Rows { position, count: rows, window };
            let block = |at: usize| blocks[at].split_at(half);
            let groups = rows.groups();
            let mut scores = vec![0.0; slices.len() * groups.len() * LANES];
            isa.run(Attend { rows, queries: &slices, head_dim, block, scores: &mut scores, out: &mut out });
            // In parts: some positions' scores, some dimensions' values.
            let middle = groups.start.midpoint(groups.end);
            scores.fill(f32::NAN);
            let width = groups.len() * LANES;
            for part in [groups.start..middle, middle..groups.end] {
                let mut some = vec![0.0; slices.len() * part.len() * LANES];
                isa.run(Score { queries: &slices, groups: part.clone(), head_dim, block, scores: &mut some });
                for (scores, some) in scores.chunks_mut(width).zip(some.chunks((part.len() * LANES).max(1))) {
                    scores[(part.start - groups.start) * LANES..][..some.len()].copy_from_slice(some);
                }
            }
            let cut = head_dim / 2 / SLICE * SLICE;
            for dims in [0..cut, cut..head_dim].into_iter().filter(|dims| !dims.is_empty()) {
                let (mut scores, mut some) = (scores.clone(), vec![0.0; slices.len() * dims.len()]);
                isa.run(Weigh { rows, heads, head_dim, dims: dims.clone(), block, scores: &mut scores, out: &mut some });
                for (out, some) in out.chunks(head_dim).zip(some.chunks(dims.len())) {
                    assert_eq!(bits(&out[dims.clone()]), bits(some));
                }
            }
            out
        };
        let all = same(|isa| bits(&compute(isa, 0, rows)));
        for row in 0..rows {
            for isa in Isa::all() {
                prop_assert_eq!(&bits(&compute(isa, row, 1)), &all[row * heads * head_dim..][..heads * head_dim]);
            }
        }
        // The result is also attention.
        let seen = (position + 1).saturating_sub(window)..position + 1;
        let number = |at: usize, index: usize| f64::from(f16_to_f32(blocks[at / KV_BLOCK][index]));
        let scores: Vec<f64> = seen.clone().map(|at| {
            let within = at % KV_BLOCK;
            let key = |dim: usize| number(at, (within / 16 * head_dim + dim) * 16 + within % 16);
            (0..head_dim).map(|dim| f64::from(queries[dim]) * key(dim)).sum::<f64>().exp()
        }).collect();
        let value: f64 = seen.zip(&scores).map(|(at, score)| score * number(at, half + at % KV_BLOCK * SLICE.min(head_dim))).sum();
        let wanted = value / scores.iter().sum::<f64>();
        prop_assert!((f64::from(f32::from_bits(all[0])) - wanted).abs() < 1e-4);
    }
}

#[test]
fn half_precision_is_the_same_for_every_pattern() {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    struct All<'a>(&'a [u16]);
    impl Kernel for All<'_> {
        type Output = Vec<u32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<u32> {
            let lanes = self.0.as_chunks::<LANES>().0.iter();
            lanes.flat_map(|patterns| bits(&math::lanes(s, s.load_f16(patterns)))).collect()
        }
    }
    let numbers = same(|isa| isa.run(All(&patterns)));
    for (pattern, number) in patterns.iter().zip(&numbers) {
        let number = f32::from_bits(*number);
        if number.is_finite() {
            assert_eq!(f32_to_f16(number), *pattern);
        }
    }
    // Between two neighbours, at the middle and beside it; and beyond the largest.
    let mut between = vec![
        65_504.0,
        65_519.9,
        65_520.0,
        1e9,
        f32::INFINITY,
        f32::NAN,
        -1e9,
        f32::NEG_INFINITY,
        1e-9,
        -1e-9,
        0.0,
        -0.0,
    ];
    for pattern in (0..0x7bff_u16).step_by(7) {
        let (low, high) = (f16_to_f32(pattern), f16_to_f32(pattern + 1));
        let middle = (low + high) / 2.0;
        between.extend([
            middle,
            -middle,
            f32::from_bits(middle.to_bits() + 1),
            f32::from_bits(middle.to_bits() - 1),
        ]);
    }
    between.resize(between.len().next_multiple_of(LANES), 1.0);
    let patterns = same(|isa| {
        let mut to = vec![0; between.len()];
        isa.run(ToHalf { from: &between, to: &mut to });
        to
    });
    assert_eq!(
        patterns[..12],
        [0x7bff, 0x7bff, 0x7bff, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 0xfbff, 0, 0x8000, 0, 0x8000]
    );
    for (number, pattern) in between.iter().zip(&patterns).skip(12) {
        let distance = |pattern: u16| (f64::from(f16_to_f32(pattern)) - f64::from(*number)).abs();
        let found = distance(*pattern);
        assert!(
            found <= distance(pattern + 1) && (*pattern & 0x7fff == 0 || found <= distance(pattern - 1)),
            "{number}"
        );
    }
}

#[test]
fn exp_is_accurate() {
    struct Exp<'a>(&'a [f32]);
    impl Kernel for Exp<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let lanes = self.0.as_chunks::<LANES>().0.iter();
            lanes.flat_map(|x| math::lanes(s, math::exp(s, s.load(x)))).collect()
        }
    }
    let xs: Vec<f32> = (0..160_000).map(|step| (step as f32 - 79_600.0) * 0.001_093).collect();
    let found = Isa::best().run(Exp(&xs));
    for (x, found) in xs.iter().zip(found) {
        let wanted = f64::from(x.min(88.0)).exp();
        if *x >= -87.0 {
            let error = (f64::from(found) / wanted - 1.0).abs();
            assert!(error < 2.0 * f64::from(f32::EPSILON), "{x}: {found} instead of {wanted}");
        } else {
            assert_eq!(found, 0.0);
        }
    }
}
