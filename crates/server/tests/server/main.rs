//! The server over real sockets: with the embedded model wherever it can show a thing, with a scripted backend where it
//! cannot.

mod anthropic;
mod bad_input;
mod cached;
mod chat;
mod client;
mod completions;
mod gather;
mod lifecycle;
mod log;
mod operations;
mod replay;
mod responses;
mod roles;
mod scripted;
mod serving;
mod slow_clients;
mod structured;
mod thinking;
mod tokens;
mod tools;
mod web;
