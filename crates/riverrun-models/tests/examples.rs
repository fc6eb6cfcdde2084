//! The example runs and checks what it prints.
#![allow(dead_code, reason = "an example's own `main` reads the command line")]
#![cfg(all(feature = "flex", feature = "store"))]

#[path = "../examples/characters.rs"]
mod characters;

/// The example seeds the backend's one generator: in a process of its own.
#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    characters::run(None, 150)
}
