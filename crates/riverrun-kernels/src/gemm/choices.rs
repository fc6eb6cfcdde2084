//! The choice among several algorithms for a product: by measuring each, and kept in a file.
//!
//! A library's heuristics order their algorithms by an estimate, and the first is not always the fastest. Which one is taken
//! decides the last bits of a product, so nothing is measured unless a program asks for it, and what was measured holds until
//! it is measured again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// The first line of a file; its number changes with the form of the lines.
const HEAD: &str = "riverrun products 1";
/// More algorithms than any search tries.
const MOST: usize = 1 << 10;

/// Rounds over the algorithms; the least time of each counts.
const ROUNDS: usize = 3;
/// An algorithm that takes so many times as long as the fastest is not run again.
const HOPELESS: f64 = 1.5;
/// The part of the first algorithm's time that another has to save to be taken instead: less is within the spread of
/// measurements.
const WORTH: f64 = 0.03;
/// Seconds of launches in a round.
const SAMPLE: f64 = 1e-3;
/// Launches in a round, at most.
const LAUNCHES: f64 = 64.0;

/// A measured choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The number of the algorithm in the library's order.
    pub algorithm: usize,
    /// The number of algorithms that were measured.
    pub of: usize,
    /// Seconds that the library's first algorithm takes.
    pub first: f64,
    /// Seconds that the chosen one takes.
    pub chosen: f64,
}

/// Measures `algorithms` and chooses the first, or the fastest if it saves at least 3 % of the first's time. `time` launches
/// an algorithm a number of times and returns the seconds of one launch, or `None` if the algorithm does not work.
///
/// Returns `None` if no algorithm works.
pub fn search(
    algorithms: usize,
    mut time: impl FnMut(usize, usize) -> Option<f64>,
) -> Option<Choice> {
    let mut times: Vec<(usize, f64)> = (0..algorithms)
        .filter_map(|nth| Some((nth, time(nth, 1)?)))
        .collect();
    let least = |times: &[(usize, f64)]| times.iter().map(|(_, t)| *t).fold(f64::MAX, f64::min);
    for _ in 0..ROUNDS {
        let best = least(&times);
        let launches = (SAMPLE / best.max(1e-9)).clamp(1.0, LAUNCHES) as usize;
        for (nth, seconds) in &mut times {
            if *seconds < HOPELESS * best {
                *seconds = time(*nth, launches).map_or(*seconds, |found| seconds.min(found));
            }
        }
    }
    let &(first, first_time) = times.first()?;
    let best = least(&times);
    let &(fastest, _) = times.iter().find(|(_, seconds)| *seconds == best)?;
    let worth = best < first_time * (1.0 - WORTH);
    Some(Choice {
        algorithm: if worth { fastest } else { first },
        of: times.len(),
        first: first_time,
        chosen: if worth { best } else { first_time },
    })
}

/// Choices by product, as a file keeps them: a line `<number of the algorithm> <product>` each, after a line with the version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choices {
    known: BTreeMap<String, usize>,
}

/// Why a file of choices is not used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unusable {
    /// It cannot be read.
    Read(io::Error),
    /// It has another version, or is another kind of file.
    Version,
    /// The line with this number is no choice, or is cut short.
    Line(usize),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "it cannot be read: {error}"),
            Self::Version => write!(f, "its first line is not '{HEAD}'"),
            Self::Line(number) => write!(f, "line {number} is damaged"),
        }
    }
}

impl std::error::Error for Unusable {}

impl Choices {
    /// The choices of a file; none if there is no such file.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged: none of its choices are used then.
    pub fn read(path: &Path) -> Result<Self, Unusable> {
        match fs::read(path) {
            Ok(bytes) => Self::parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Unusable::Read(error)),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, Unusable> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split_inclusive('\n').enumerate();
        let head = lines.next().map(|(_, line)| line);
        if head.and_then(|line| line.strip_suffix('\n')) != Some(HEAD) {
            return Err(Unusable::Version);
        }
        let mut choices = Self::default();
        for (i, line) in lines {
            let choice = || -> Option<(usize, &str)> {
                let (nth, product) = line.strip_suffix('\n')?.split_once(' ')?;
                let whole = nth.bytes().all(|c| c.is_ascii_digit()) && is_name(product);
                let nth = nth.parse().ok().filter(|nth| *nth < MOST)?;
                whole.then_some((nth, product))
            };
            let (nth, product) = choice().ok_or(Unusable::Line(i + 1))?;
            if choices.known.insert(product.into(), nth).is_some() {
                return Err(Unusable::Line(i + 1));
            }
        }
        Ok(choices)
    }

    /// The number of the algorithm for a product, if it was chosen.
    pub fn get(&self, product: &str) -> Option<usize> {
        self.known.get(product).copied()
    }

    /// Keeps the choice for a product.
    ///
    /// # Panics
    /// For a name that a file cannot hold: an empty one, or one with control characters.
    pub fn set(&mut self, product: &str, algorithm: usize) {
        assert!(is_name(product) && algorithm < MOST, "{product:?}");
        self.known.insert(product.into(), algorithm);
    }

    /// Adds the choices of another, which replace those for the same products.
    pub fn extend(&mut self, other: Self) {
        self.known.extend(other.known);
    }

    /// Writes the file, and its folder where there is none. Programs that read it at the same time find the choices before or
    /// after, never a part.
    ///
    /// # Errors
    /// Where the folder or the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let lines = self
            .known
            .iter()
            .map(|(product, nth)| format!("{nth} {product}\n"));
        let text = format!("{HEAD}\n{}", lines.collect::<String>());
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }
}

fn is_name(product: &str) -> bool {
    !product.is_empty()
        && !product.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Searches among algorithms that take these times.
    fn among(times: &[Option<f64>]) -> Option<Choice> {
        search(times.len(), |nth, _| times[nth])
    }

    fn chosen(times: &[f64]) -> usize {
        let times: Vec<_> = times.iter().map(|time| Some(*time)).collect();
        among(&times).unwrap().algorithm
    }

    #[test]
    fn the_first_stays_unless_another_is_clearly_faster() {
        assert_eq!(chosen(&[1.0, 0.98, 2.0]), 0);
        assert_eq!(chosen(&[1.0, 0.9, 0.8, 0.85]), 2);
        assert_eq!(chosen(&[1.0, 0.5, 0.5]), 1);
        assert_eq!(among(&[]), None);
    }

    #[test]
    fn algorithms_that_do_not_work_are_left_out() {
        let choice = among(&[None, Some(1.0), Some(1.5), None]).unwrap();
        assert_eq!((choice.algorithm, choice.of), (1, 2));
        assert_eq!(among(&[None, None]), None);
        // One that stops working keeps the time that it had.
        let mut calls = 0;
        let choice = search(1, |_, _| {
            calls += 1;
            (calls == 1).then_some(2.0)
        });
        assert_eq!(choice.unwrap().chosen, 2.0);
    }

    #[test]
    fn slow_algorithms_are_launched_once_and_short_ones_often() {
        let mut launches = [0; 3];
        let times = [1e-4, 1e-3, 1.2e-4];
        search(3, |nth, count| {
            launches[nth] += count;
            Some(times[nth])
        });
        assert_eq!(launches, [31, 1, 31]);
    }

    #[test]
    fn an_outlier_does_not_decide() {
        // The first launch of an algorithm loads its kernel.
        let mut calls = [0; 2];
        let choice = search(2, |nth, _| {
            calls[nth] += 1;
            Some(if nth == 1 && calls[nth] == 1 {
                1.4
            } else {
                [1.0, 0.5][nth]
            })
        });
        assert_eq!(choice.unwrap().algorithm, 1);
    }

    fn file(name: &str) -> PathBuf {
        let folder = format!("riverrun-choices-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&folder);
        folder.join("below").join("products.txt")
    }

    #[test]
    fn a_file_holds_what_was_chosen() {
        let path = file("holds");
        assert_eq!(Choices::read(&path).unwrap(), Choices::default());
        let mut choices = Choices::default();
        choices.set("bf16 16x64x64", 3);
        choices.set("f32 1x2x3", 0);
        choices.write(&path).unwrap();
        let mut more = Choices::read(&path).unwrap();
        assert_eq!(more, choices);
        assert_eq!(more.get("bf16 16x64x64"), Some(3));
        assert_eq!(more.get("bf16 16x64"), None);
        let mut newer = Choices::default();
        newer.set("f32 1x2x3", 2);
        more.extend(newer);
        more.write(&path).unwrap();
        let found = Choices::read(&path).unwrap();
        assert_eq!(
            (found.get("f32 1x2x3"), found.get("bf16 16x64x64")),
            (Some(2), Some(3))
        );
        // Nothing else is left in the folder.
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(path.parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_refused_with_the_place() {
        let said = |text: &[u8]| Choices::parse(text).unwrap_err().to_string();
        for text in [
            &b""[..],
            b"riverrun products 1",
            b"riverrun products 2\n",
            b"\xff\xfe\n",
        ] {
            assert!(said(text).contains("first line"), "{text:?}");
        }
        for line in [
            &b"3\n"[..],
            b"x a product\n",
            b" a product\n",
            b"-1 a product\n",
            b"+1 a product\n",
            b"4096 a product\n",
            b"1 \n",
            b"1 cut sho",
            b"1 a\x00product\n",
            b"1 a\xffproduct\n",
            b"\n",
        ] {
            let text = [b"riverrun products 1\n0 good\n", line].concat();
            assert_eq!(said(&text), "line 3 is damaged", "{line:?}");
        }
        // Two choices for one product: which one holds?
        assert_eq!(
            said(b"riverrun products 1\n0 a\n1 a\n"),
            "line 3 is damaged"
        );
    }

    #[test]
    fn every_file_cut_short_is_refused_or_has_whole_choices() {
        let text = b"riverrun products 1\n12 a b\n3 c\n";
        for end in 0..text.len() {
            if let Ok(choices) = Choices::parse(&text[..end]) {
                assert_eq!(text[end - 1], b'\n');
                assert!(choices.get("a b").is_none_or(|nth| nth == 12));
            }
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let path = file("no-folder");
        let below = path.parent().unwrap();
        fs::create_dir_all(below.parent().unwrap()).unwrap();
        fs::write(below, "a file where the folder would be").unwrap();
        Choices::default().write(&path).unwrap_err();
        assert!(matches!(
            Choices::read(&path),
            Ok(_) | Err(Unusable::Read(_))
        ));
        fs::remove_dir_all(below.parent().unwrap()).unwrap();
    }
}
