//! Models of other architectures by candle: their answers, and refused files.

mod families;
mod refusals;
mod small;
