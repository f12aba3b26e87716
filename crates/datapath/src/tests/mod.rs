//! The datapath as a whole, on ports made of memory.

mod changing;
mod checksums;
mod connections;
mod fake;
mod flows;
mod fragments;
mod hierarchy;
mod limits;
mod moves;
mod observer;
mod ports;
mod raced;
mod recirc;
mod tunnels;
mod waiting;

pub(crate) use fake::{FakePort, Tally, Toy, ToyRule, udp};
