//! One text for one kernel: what differs from run to run is put in order.
//!
//! The compiler places and numbers a kernel's arrays in shared memory in the order of a hash map, and the kernel's name
//! ends in a hash that differs from build to build.

use std::collections::HashMap;

/// The text with arrays in the order of their places, values numbered as they appear, and the name without its hash.
pub fn normal(text: &str, name: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let slots: Vec<usize> = (0..lines.len())
        .filter(|&at| offset(lines[at]).is_some())
        .collect();
    let mut placed: Vec<&str> = slots.iter().map(|&at| lines[at]).collect();
    placed.sort_by_key(|line| offset(line));
    for (at, line) in slots.into_iter().zip(placed) {
        lines[at] = line;
    }
    let bare = name.rsplit_once('_').map_or(name, |(bare, _)| bare);
    renumber(&lines.join("\n").replace(name, bare)) + "\n"
}

/// Where a line places an array in shared memory: `T * const v7 = reinterpret_cast<T *>(&v5[8]);` at 8.
fn offset(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("= reinterpret_cast<")?;
    let (_, offset) = rest.split_once("(&v")?.1.split_once('[')?;
    offset.split_once(']')?.0.parse().ok()
}

/// Values `v<number>`, numbered as they appear. What stands in quotes is an instruction, whose `v4` is no value.
fn renumber(text: &str) -> String {
    let mut numbers = HashMap::new();
    let parts = text.split('"').enumerate();
    let parts = parts.map(|(n, part)| match n % 2 {
        0 => renumber_part(part, &mut numbers),
        _ => part.to_string(),
    });
    parts.collect::<Vec<_>>().join("\"")
}

fn renumber_part<'t>(text: &'t str, numbers: &mut HashMap<&'t str, usize>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('v') {
        let (before, after) = rest.split_at(at + 1);
        let inside = before[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let end = after.find(|c: char| !c.is_ascii_digit());
        let (digits, after) = after.split_at(end.unwrap_or(after.len()));
        out.push_str(before);
        if inside || digits.is_empty() {
            out.push_str(digits);
        } else {
            let next = numbers.len();
            out.push_str(&numbers.entry(digits).or_insert(next).to_string());
        }
        rest = after;
    }
    out + rest
}
