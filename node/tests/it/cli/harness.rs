//! The parts of these tests besides the program: a store, a client, and a model file.

pub mod model_file;
pub mod store;
pub mod turn;
