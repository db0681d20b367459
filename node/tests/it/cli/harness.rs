//! The parts of these tests besides the program: a store, a client, and a model file.

pub(super) mod model_file;
pub(super) mod store;
pub(super) mod turn;
