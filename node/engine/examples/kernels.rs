//! Measures the kernels on one thread: products of 1,536 x 576 weights, by encoding, rows and instruction
//! set.

#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::time::Instant;

use baton_engine::{
    gguf::DType,
    kernels::{
        Isa,
        dot::{Acts, DIRECT_ROWS, Epilogue, Panel, SpreadBlock, TileRef},
        rows::{ActBlock, NormQuantise},
    },
    tiles::Tiles,
};

const OUTPUTS: usize = 1536;
const INPUTS: usize = 768;

fn main() {
    for dtype in DType::ALL {
        let (block, bytes) = dtype.block();
        // Small numbers as scales: bytes 0x11 0x11 are a half-precision 6e-4.
        let tiles = Tiles::repack(dtype, OUTPUTS, INPUTS, &vec![0x11; OUTPUTS * INPUTS / block * bytes])
            .expect("memory");
        for isa in Isa::all() {
            print!("{dtype:?} {isa:?}");
            for rows in [1, 2, 4, 8, 64, 512] {
                let floats: Vec<f32> = (0..rows * INPUTS).map(|at| (at % 97) as f32 - 48.0).collect();
                let mut blocks = vec![ActBlock::default(); rows * INPUTS / 32];
                isa.run(NormQuantise {
                    rows: &floats,
                    width: INPUTS,
                    norm: None,
                    scratch: &mut [],
                    blocks: &mut blocks,
                    floats: &mut [],
                });
                let mut out = vec![0.0; rows * OUTPUTS];
                let mut spread = vec![SpreadBlock::EMPTY; 2 * INPUTS / 32];
                let mut best = f64::MAX;
                for _ in 0..if isa.name() == "scalar" { 1 } else { 12 } {
                    let start = Instant::now();
                    for (panel, out) in out.chunks_exact_mut(rows * 32).enumerate() {
                        Panel {
                            tiles: [0, 1].map(|tile| TileRef { matrix: &tiles, tile: 2 * panel + tile }),
                            acts: Acts { blocks: &blocks, floats: &floats },
                            rows,
                            direct: rows <= DIRECT_ROWS,
                            epilogue: Epilogue::Both,
                            out,
                            spread: &mut spread,
                        }
                        .run(isa);
                    }
                    best = best.min(start.elapsed().as_secs_f64());
                }
                print!("  {rows}: {:.1}", (rows * INPUTS * OUTPUTS) as f64 / best / 1e9);
            }
            println!(" GMAC/s");
        }
    }
}
