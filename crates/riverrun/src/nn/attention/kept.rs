//! A small cache whose values recordings may read.

/// The most values that no recording reads. A run has a few layers of positions, and sequences of two lengths with those of its
/// validation.
const MOST: usize = 16;

/// Values by their keys, those that were asked for last.
///
/// What is asked for while launches are recorded stays for the life of the process: its memory is read at every replay.
pub(super) struct Kept<K, V> {
    /// The one asked for last is the last.
    entries: Vec<Entry<K, V>>,
}

struct Entry<K, V> {
    key: K,
    value: V,
    recorded: bool,
}

impl<K: PartialEq, V: Clone> Kept<K, V> {
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// The value of a key, made if it is not there.
    pub fn get(&mut self, key: K, recorded: bool, make: impl FnOnce(&K) -> V) -> V {
        let known = self.entries.iter().position(|entry| entry.key == key);
        let mut entry = match known {
            Some(i) => self.entries.remove(i),
            None => Entry {
                value: make(&key),
                key,
                recorded: false,
            },
        };
        entry.recorded |= recorded;
        let value = entry.value.clone();
        self.entries.push(entry);
        let others = self.entries.iter().filter(|entry| !entry.recorded);
        if others.count() > MOST {
            let oldest = self.entries.iter().position(|entry| !entry.recorded);
            self.entries.remove(oldest.expect("there are some"));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ones_asked_for_last_are_kept() {
        let mut kept = Kept::new();
        for key in 0..MOST {
            kept.get(key, false, |&key| key);
        }
        // In use again, and so not the oldest.
        kept.get(0, false, |_| unreachable!("it is kept"));
        kept.get(MOST, false, |&key| key);
        kept.get(0, false, |_| unreachable!("it is kept"));
        let mut made = false;
        kept.get(1, false, |&key| {
            made = true;
            key
        });
        assert!(made);
        assert_eq!(kept.entries.len(), MOST);
    }

    #[test]
    fn what_a_recording_reads_stays() {
        let mut kept = Kept::new();
        kept.get(0, false, |&key| key);
        kept.get(0, true, |_| unreachable!("it is kept"));
        for key in 1..4 * MOST {
            kept.get(key, false, |&key| key);
        }
        assert_eq!(kept.get(0, false, |_| unreachable!("it is kept")), 0);
        assert_eq!(kept.entries.len(), MOST + 1);
    }
}
