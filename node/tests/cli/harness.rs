//! The parts of these tests: the program, a store, a client, and a model file.

pub mod model_file;
pub mod process;
pub mod store;
pub mod turn;
