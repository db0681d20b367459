//! `baton-node` as a program: its commands, and a running node as a process.

mod commands;
mod config;
mod doctor;
mod harness;
mod keys;
mod models;
mod run;
