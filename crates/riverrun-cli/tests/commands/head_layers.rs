//! Models of layers with heads: trained, planned, continued and heard.

use std::fs;

use riverrun_models::HeadKind;

use crate::{Scratch, corpus};

#[test]
fn layers_with_heads_are_trained_continued_and_speak() {
    let scratch = Scratch::new("heads");
    fs::write(scratch.path("fox.txt"), corpus()).unwrap();
    let sizes = [
        "fox.txt",
        "--width",
        "16",
        "--layers",
        "3",
        "--heads",
        "2",
        "--context",
        "12",
        "--batch",
        "4",
        "--device",
        "cpu",
        "--attention-every",
        "3",
    ];
    for kind in HeadKind::ALL {
        let model = [&sizes[..], &["--model", kind.name()]].concat();
        let planned = scratch.done(&[&["plan"], &model[..]].concat());
        assert!(planned.contains("activations"), "{planned}");
        let name = kind.name();
        let out = ["--steps", "2", "--out", name];
        let said = scratch.done(&[&["train"], &model[..], &out].concat());
        let line = format!("model   {name}, 3 layers of width 16");
        assert!(said.contains(&line), "{said}");
        let go_on = ["train", "--resume", "--out", name, "--device", "cpu"];
        scratch.done(&[&go_on[..], &["--steps", "4"]].concat());
        let other = [&go_on[..], &["--attention-every", "2"]].concat();
        scratch.refused(&other, "attention_every");
        // More symbols than the context.
        let words = ["generate", name, "--device", "cpu", "--prompt", "fox"];
        let speak = || scratch.run(&[&words[..], &["--tokens", "20"]].concat());
        let fox = speak();
        assert!(fox.status.success(), "{name}: {fox:?}");
        assert!(fox.stdout.starts_with(b"fox"), "{name}: {fox:?}");
        assert_eq!(fox.stdout, speak().stdout, "{name}");
    }
    let train = |more: &[&'static str]| {
        let words = ["train", "fox.txt", "--device", "cpu"];
        words.iter().chain(more).copied().collect::<Vec<_>>()
    };
    for (words, refusal) in [
        (
            &["--model", "kda", "--heads", "3"][..],
            "a divisor of the width 128",
        ),
        (
            &["--model", "kda", "--window", "3"],
            "kda has no use for --window",
        ),
        (
            &["--model", "kda", "--time-scale", "3"],
            "no use for --time-scale",
        ),
        (
            &["--model", "rwkv7", "--expansion", "2"],
            "no use for --expansion",
        ),
        (
            &["--model", "gpt2", "--attention-every", "2"],
            "no use for --attention-every",
        ),
        (&["--attention-every", "0"], "attention_every"),
    ] {
        scratch.refused(&train(words), refusal);
    }
}
