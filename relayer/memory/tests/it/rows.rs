//! The requirements of memory, row by row; a test of the same name shows each one, on every store.

mod conversation;
mod entities;
mod extraction;
mod layers;
mod leaks;
mod loss;
mod ownership;
mod projects;
mod recall;
mod removal;
mod settings;
mod stores;
mod world;
