//! The examples run, and each checks what it prints.
#![allow(dead_code, reason = "an example's own `main` reads the command line")]
#![cfg(all(feature = "flex", feature = "store"))]

#[path = "../examples/own_model.rs"]
mod own_model;
#[path = "../examples/streaming.rs"]
mod streaming;
#[path = "../examples/variable_lengths.rs"]
mod variable_lengths;

/// The examples seed the backend's one generator: one at a time.
#[test]
fn the_examples_run() -> Result<(), Box<dyn std::error::Error>> {
    own_model::main();
    variable_lengths::main();
    streaming::run(streaming::KNOWN, "", 4, 5)
}
