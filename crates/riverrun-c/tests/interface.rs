//! The header is that of the source, and a C program works with it, compiled as on Unix.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_generated_from_the_source() {
    let config =
        cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("a configuration");
    let bindings = cbindgen::Builder::new()
        .with_src(root().join("src/lib.rs"))
        .with_config(config)
        .generate()
        .expect("bindings");
    let mut found = Vec::new();
    bindings.write(&mut found);
    let found = String::from_utf8(found).expect("text");
    let file = root().join("include/riverrun.h");
    if std::env::var_os("RIVERRUN_WRITE_HEADER").is_some() {
        std::fs::write(&file, &found).expect("writing the header");
    }
    let expected = std::fs::read_to_string(file).expect("the header");
    assert!(
        found == expected,
        "include/riverrun.h is not that of the source; RIVERRUN_WRITE_HEADER=1 cargo test -p riverrun-c writes it:\n{found}"
    );
}

/// The folder with the library that this test's build has made.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a running test");
    test.parent().expect("a folder").to_path_buf()
}

/// The compiler, with an example.
fn compiler(example: &str) -> Command {
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compiler.arg("-O1").arg("-I").arg(root().join("include"));
    compiler.arg(root().join("examples").join(example));
    compiler
}

fn compiled(compiler: &mut Command) {
    let made = compiler.output();
    let made = made.unwrap_or_else(|error| panic!("{compiler:?}: {error}"));
    let errors = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{errors}");
}

/// Against declarations of its own in the place of CUDA's headers.
#[test]
fn a_cuda_program_fits_the_header() {
    let mut compiler = compiler("cuda.c");
    compiler.arg("-I").arg(root().join("tests/stub"));
    compiled(compiler.arg("-fsyntax-only"));
}

#[test]
fn a_c_program_runs() {
    let folder = libraries();
    let library = |name: &std::ffi::OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("libriverrun_c") && name.ends_with(".a")
    };
    let made = std::fs::read_dir(&folder).expect("a folder").flatten();
    let newest = made
        .filter(|entry| library(&entry.file_name()))
        .max_by_key(|entry| entry.metadata().and_then(|it| it.modified()).ok())
        .expect("the static library beside the test");
    let program = std::env::temp_dir().join(format!("riverrun-c-{}", std::process::id()));
    let mut compiler = compiler("cells.c");
    compiler.arg(newest.path());
    compiler.args(["-lpthread", "-ldl", "-lm"]);
    compiled(compiler.arg("-o").arg(&program));
    let run = Command::new(&program).output().expect("the program runs");
    std::fs::remove_file(&program).expect("removing the program");
    let (out, errors) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{errors}");
    assert_eq!(
        out,
        "1.875 1\n1.875 1.75\ngate: unknown name `no such gate`\ndtype: expected 0 to 3, found 9\nh: expected 8 elements, found NULL\n"
    );
}
