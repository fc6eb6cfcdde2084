//! Names on the command line: a wrong one is refused with the list of those that are known, and nothing is checked or
//! measured in its place.
#![cfg(feature = "flex")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn riverrun(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_riverrun"))
        .args(words)
        .env_remove("RUST_LOG")
        .env("XDG_RUNTIME_DIR", std::env::temp_dir())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs, and expects exit code 2 and an error with `message` in it.
fn refused(words: &[&str], message: &str) {
    let output = riverrun(words);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
    assert!(error.contains(message), "{words:?}: {error}");
    assert!(output.stdout.is_empty(), "{words:?}");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    refused(&["verify", "--dtype", "fp16"], "f32, f16, bf16, f64");
    refused(&["train", "--tokens", "words"], "chars, bytes or bpe");
    refused(
        &["train", "--model", "gpt5"],
        "griffin, gpt2, decoder, rwkv, linear",
    );
    refused(&["verify", "--op", "recurence"], "recurrence, recompute");
    let form = ["verify", "--device", "cpu", "--op", "cell", "--only", "gur"];
    refused(&form, "one of: gru");
    let recurrence =
        |words: &[&'static str]| [&["bench", "recurrence", "--device", "cpu"], words].concat();
    refused(&recurrence(&["--dtypes", "f32,foo"]), "f32, f16, bf16, f64");
    refused(&recurrence(&["--gates", "foo"]), "min-lstm");
    refused(&recurrence(&["--routine", "foo"]), "possible values");
    refused(&["bench", "norm", "--dtypes", "foo"], "f32, f16, bf16, f64");
    refused(
        &["bench", "linear", "--routes", "foo"],
        "choice, vendor, backend",
    );
    refused(&["bench", "cell", "--cells", "foo"], "gru, lstm, rnn");
    let attention = |shape| ["bench", "attention", "--device", "cpu", "--shapes", shape];
    refused(&attention("2x8x64"), "4 positive sizes");
    refused(&attention("2x8/3x64x16"), "multiple of the key heads");
    refused(&attention("2x8x64x16@0"), "BxHxTxD@W");
    refused(&attention("1024x8x1048576x64"), "of memory");
}

#[test]
fn attention_is_measured_after_it_was_checked() {
    let path = std::env::temp_dir().join(format!("riverrun-bench-{}.json", std::process::id()));
    let shape = "1x2/1x48x16@8";
    let words = ["bench", "attention", "--device", "cpu", "--shapes", shape];
    let file = ["--budget", "0.02", "--json", path.to_str().unwrap()];
    let output = riverrun(&[&words[..], &file].concat());
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{error}");
    let found: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    // On a busy machine a row may be refused as unsteady; then its name is in the file.
    let count = |field: &str| found[field].as_array().unwrap().len();
    assert_eq!(count("rows") + count("refused"), 2, "{said}{error}");
    for row in found["rows"].as_array().unwrap() {
        assert_eq!(
            (row["window"].as_u64(), row["key_heads"].as_u64()),
            (Some(8), Some(1))
        );
        assert!(row["tflop_per_s"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn layers_are_measured_over_steps_and_drawn() {
    let folder = std::env::temp_dir().join(format!("riverrun-layer-{}", std::process::id()));
    let output = riverrun(&[
        "bench",
        "layer",
        "--device",
        "cpu",
        "--budget",
        "0.01",
        "--layers",
        "min-gru,gru",
        "--shapes",
        "1x8x4x8,1x16x4x8,1x32x4x8",
        "--out",
        folder.to_str().unwrap(),
    ]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}");
    // On a busy machine rows may be refused as unsteady.
    for name in ["layer.json", "layer.svg", "layer.png"] {
        assert!(folder.join(name).is_file(), "{name}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let heads = ["bench", "layer", "--device", "cpu", "--layers", "kda"];
    let with = |shape: &'static str, heads_of: &'static str| {
        [&heads[..], &["--shapes", shape, "--heads", heads_of]].concat()
    };
    refused(
        &with("1x4x16x24", "2"),
        "a multiple of the 16 inputs, found 24",
    );
    refused(&with("1x4x16x16", "3"), "heads");
}

#[test]
fn sizes_and_budgets_out_of_range_are_refused() {
    let shapes = |shapes| ["bench", "recurrence", "--device", "cpu", "--shapes", shapes];
    refused(&shapes("18446744073709551615x2x2"), "2^40 elements");
    refused(&shapes("4x0x2"), "3 positive sizes");
    refused(&shapes("1048576x65536x16"), "of memory");
    for budget in ["nan", "-1", "0", "inf"] {
        refused(
            &["bench", "cell", "--device", "cpu", "--budget", budget],
            "number of seconds",
        );
    }
}

#[test]
fn what_the_cpu_does_not_have_is_refused() {
    let look_back = riverrun_kernels::recurrence::Routine::ALL[1].name();
    refused(
        &[
            "bench",
            "recurrence",
            "--device",
            "cpu",
            "--routine",
            look_back,
        ],
        "for GPUs",
    );
    refused(
        &["bench", "norm", "--device", "cpu", "--dtypes", "bf16"],
        "measures f32",
    );
    refused(&["verify", "--device", "quantum:0"], "quantum:0");
}

#[test]
fn checking_nothing_is_a_failure() {
    let output = riverrun(&["verify", "--device", "cpu", "--op", "training"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nothing was checked"));
}

#[test]
fn a_process_checks_the_parts_that_its_input_asks_for() {
    let part = |op: &str, form: &str| {
        let long = false;
        serde_json::json!({ "device": "cpu", "op": op, "form": form, "storage": "f32", "long": long })
    };
    let asked = |parts: &[serde_json::Value]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_riverrun"))
            .args(["verify", "--worker"])
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input: String = parts.iter().map(|part| format!("{part}\n")).collect();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(input.as_bytes()).unwrap();
        drop(pipe);
        child.wait_with_output().unwrap()
    };
    let output = asked(&[part("norm", "rms-norm"), part("activation", "swiglu")]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(said.lines().filter(|line| *line == "end").count(), 2);
    let (first, second) = said.split_once("end").unwrap();
    for (rows, what) in [(first, "rms-norm"), (second, "swiglu")] {
        assert!(rows.contains(&format!("\"what\":\"{what}\"")), "{said}");
        assert!(rows.contains("\"wrong\":0"), "{said}");
    }
    let output = asked(&[part("norm", "no-norm")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no-norm"));
}

#[test]
fn every_operation_is_right_on_the_cpu_and_in_the_file() {
    let path = std::env::temp_dir().join(format!("riverrun-verify-{}.json", std::process::id()));
    let output = riverrun(&[
        "verify",
        "--device",
        "cpu",
        // The kernels' own tests have every type.
        "--dtype",
        "f32",
        "--json",
        path.to_str().unwrap(),
    ]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("not checked without --long"), "{said}");
    let file: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lines = file["lines"].as_array().unwrap();
    for what in [
        "raw",
        "recompute raw",
        "second derivative",
        "block-diagonal",
        "gru",
        "rms-norm",
        "gelu",
        "cross-entropy",
        "embedding",
        "attention",
        "adamw",
        "mlp",
        "refill",
    ] {
        assert!(
            lines.iter().any(|line| line["what"] == what),
            "{what}: {said}"
        );
    }
}

#[test]
fn devices_name_the_library_of_their_matmuls_when_asked() {
    let said = text(&riverrun(&["devices"]).stdout);
    assert!(!said.contains("matmuls in"), "{said}");
    let said = text(&riverrun(&["devices", "-v"]).stdout);
    assert!(said.contains("matmuls in f32: "), "{said}");
}

/// Every GPU feature switches on the program's own `gpu`, without which its commands would run on the CPU.
#[test]
fn every_gpu_feature_has_the_gpu_commands() {
    let manifest = include_str!("../Cargo.toml");
    let feature = |name: &str| {
        let start = format!("{name} = [");
        let line = manifest.lines().find(|line| line.starts_with(&start));
        line.unwrap_or_else(|| panic!("no feature {name}"))
            .to_string()
    };
    for name in ["cuda", "rocm", "wgpu"] {
        assert!(feature(name).contains("\"gpu\""), "{name}");
    }
    for name in ["vulkan", "metal", "webgpu"] {
        assert!(feature(name).contains("[\"wgpu\""), "{name}");
    }
}

/// On a GPU the parts run in processes of their own; their rows come together in one table.
#[cfg(feature = "gpu")]
#[test]
fn parts_on_a_gpu_make_one_table() {
    let listed = text(&riverrun(&["devices"]).stdout);
    let gpu = listed.lines().find_map(|line| {
        let name = line.split(": ").next()?;
        (name.contains(':') && !name.starts_with(' ')).then(|| name.to_string())
    });
    let Some(gpu) = gpu else {
        eprintln!("skipped parts_on_a_gpu_make_one_table: there is no GPU");
        return;
    };
    let output = riverrun(&["verify", "--device", &gpu, "--op", "norm", "--dtype", "f32"]);
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{error}");
    assert!(
        said.contains("rms-norm") && said.contains("layer-norm"),
        "{said}"
    );
    assert!(said.contains("2 right, 0 wrong"), "{said}");
    assert!(error.contains("2 of 2 parts"), "{error}");
}
