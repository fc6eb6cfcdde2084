//! Slurm's shorthand: `node[01-03,7],gpu5` for hosts, `2(x3),1` for tasks a node.

use crate::{Error, Result};

/// The first host of a list such as `node[01-03,7],gpu5`.
///
/// # Errors
///
/// [`Error::Environment`] with the list, where it is no list of hosts.
pub(super) fn first(list: &str) -> Result<String> {
    expand(list).map(|mut hosts| hosts.swap_remove(0))
}

/// All hosts of a list, in its order; never none.
fn expand(list: &str) -> Result<Vec<String>> {
    parts(list)
        .and_then(|parts| {
            let hosts: Option<Vec<_>> = parts.into_iter().map(expand_one).collect();
            Some(hosts?.concat())
        })
        .ok_or_else(|| Error::Environment(format!("{list:?} is not a list of nodes")))
}

/// Cuts at the commas outside brackets.
fn parts(list: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut inside, mut start) = (false, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            c if c.is_whitespace() => return None,
            ',' if !inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    (!inside && parts.iter().all(|p| !p.is_empty())).then_some(parts)
}

/// `rack[1-2]n[1-2]` is four hosts: the last brackets count fastest.
fn expand_one(part: &str) -> Option<Vec<String>> {
    const MOST: usize = 1 << 16;
    let mut hosts = vec![String::new()];
    let mut rest = part;
    while let Some((plain, tail)) = rest.split_once('[') {
        let (ranges, tail) = tail.split_once(']')?;
        let mut numbers = Vec::new();
        for range in ranges.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (from, to): (usize, usize) = (low.parse().ok()?, high.parse().ok()?);
            if from > to || to - from >= MOST {
                return None;
            }
            numbers.extend((from..=to).map(|n| format!("{n:0width$}", width = low.len())));
        }
        if hosts.len() * numbers.len() > MOST {
            return None;
        }
        let longer = |host: &String| {
            numbers
                .iter()
                .map(move |n| format!("{host}{plain}{n}"))
                .collect::<Vec<_>>()
        };
        hosts = hosts.iter().flat_map(longer).collect();
        rest = tail;
    }
    hosts.iter_mut().for_each(|host| host.push_str(rest));
    Some(hosts)
}

/// The number of tasks on a node, from `2(x3),1`: two on each of the first three nodes, one on the fourth.
pub(super) fn tasks_on(counts: &str, node: usize) -> Option<usize> {
    let mut end = 0;
    for part in counts.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1_usize),
        };
        end += nodes;
        if node < end {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes() {
        let all = |list| expand(list).unwrap().join(" ");
        assert_eq!(all("a"), "a");
        assert_eq!(all("a,b-1"), "a b-1");
        assert_eq!(all("node[01-04,7]"), "node01 node02 node03 node04 node7");
        assert_eq!(all("n[9-11],gpu5"), "n9 n10 n11 gpu5");
        assert_eq!(all("r[1-2]n[1-2].x"), "r1n1.x r1n2.x r2n1.x r2n2.x");
        assert_eq!(first("n[098-100]").unwrap(), "n098");
        for bad in [
            "",
            ",",
            "a,",
            "a[",
            "a]",
            "a[1",
            "a[]",
            "a[x]",
            "a[3-1]",
            "a[1-]",
            "a b",
            "a[[1]]",
            "a[0-99999999]",
            "a[1-9999]b[1-9999]",
        ] {
            assert!(expand(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tasks_of_a_node() {
        let of = |node| tasks_on("2(x3),1", node);
        assert_eq!(
            [of(0), of(2), of(3), of(4)],
            [Some(2), Some(2), Some(1), None]
        );
        assert_eq!(tasks_on("x", 0), None);
        assert_eq!(tasks_on("2(x", 0), None);
    }
}
