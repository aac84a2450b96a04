//! The real binary, driven as a user or a script drives it, on locks in a directory of its own.

mod admin;
mod command;
mod database;
mod death;
mod exit_codes;
mod harness;
mod input;
mod lab;
mod loss;
mod pty;
mod redis;
mod schedule;
mod sharing;
mod signals;
mod terminal;
