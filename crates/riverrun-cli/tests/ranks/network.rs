//! Ranks on two networks whose link is cut, as namespaces of the machine: with Linux and the right to make them.

use std::process::{Command, Stdio};

use crate::support::{COPY, Process, Scratch, tiny, until};

/// Two namespaces with a link between them, 10.77.0.1 and 10.77.0.2.
struct Link([String; 2]);

impl Link {
    /// `None` where there may be none.
    fn new() -> Option<Self> {
        let name = |end: &str| format!("riverrun-{}-{end}", std::process::id());
        let link = Self([name("a"), name("b")]);
        let [a, b] = link.0.each_ref().map(String::as_str);
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&[
                "-n", a, "link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", b,
            ])
            && [(a, "10.77.0.1/24"), (b, "10.77.0.2/24")]
                .iter()
                .all(|(name, address)| {
                    ip(&["-n", name, "addr", "add", address, "dev", "eth"])
                        && ip(&["-n", name, "link", "set", "lo", "up"])
                        && ip(&["-n", name, "link", "set", "eth", "up"])
                });
        // `exec` mounts, which the others need not.
        let made = made
            && link
                .0
                .iter()
                .all(|name| ip(&["netns", "exec", name, "true"]));
        made.then_some(link)
    }

    fn cut(&self) {
        assert!(ip(&["-n", &self.0[0], "link", "set", "eth", "down"]));
    }

    /// A rank of two at its end of the link.
    fn rank(&self, scratch: &Scratch, rank: usize, words: &[&str]) -> Process {
        let alone = scratch.rank_command(rank, 29_400, words);
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0[rank]])
            .arg(alone.get_program())
            .args(alone.get_args())
            .current_dir(&scratch.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in alone.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.envs([
            ("MASTER_ADDR", "10.77.0.1"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
        ]);
        Process(command.spawn().unwrap())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&["netns", "del", name]);
        }
    }
}

/// Whether `ip` does this.
fn ip(words: &[&str]) -> bool {
    let done = Command::new("ip").args(words).output();
    done.is_ok_and(|output| output.status.success())
}

#[test]
fn a_cut_link_ends_both_ranks_by_name() {
    let Some(link) = Link::new() else {
        println!("skipped: no network namespaces here");
        return;
    };
    let scratch = Scratch::new("cut");
    let words = tiny(&COPY, &["--steps", "1000000", "--out", "run"]);
    let ranks = [0, 1].map(|rank| link.rank(&scratch, rank, &words));
    let saved = scratch.0.join("run/checkpoint");
    until("a checkpoint", || saved.exists());
    link.cut();
    for (rank, process) in ranks.into_iter().enumerate() {
        let end = process.end();
        assert_eq!(end.code, Some(1), "{end:?}");
        let (lost, said) = (format!("error: rank {} (", 1 - rank), "the network is cut");
        assert!(
            end.errors.contains(&lost) && end.errors.contains(said),
            "{end:?}"
        );
    }
    assert!(saved.join("model.bpk").is_file());
}
