//! The commit that the program was built from, for the files of `bench` and `verify`; `unknown` outside a repository.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    let output = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    let commit = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().into()
        }
        _ => String::from("unknown"),
    };
    println!("cargo::rustc-env=RIVERRUN_COMMIT={commit}");
}
