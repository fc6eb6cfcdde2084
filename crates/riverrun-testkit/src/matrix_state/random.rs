//! Forms of problems, and random data for them.

use super::{Erase, Gate, Inputs, Problem, Shape, States};
use crate::Random;

/// The form of a problem.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// The decay.
    pub gate: Gate,
    /// The erase.
    pub erase: Erase,
    /// Whether there is a bonus.
    pub bonus: bool,
}

impl Form {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Self> {
        Erase::ALL.into_iter().flat_map(Self::of)
    }

    /// Those of an erase.
    pub fn of(erase: Erase) -> impl Iterator<Item = Self> {
        let bonus = [false, true]
            .into_iter()
            .take(if erase == Erase::None { 2 } else { 1 });
        let gates = move |bonus| Gate::ALL.map(|gate| Self { gate, erase, bonus });
        bonus.flat_map(gates)
    }
}

/// The optional arguments of a case.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// An initial state.
    pub initial: bool,
    /// A reset mask.
    pub reset: bool,
    /// A gradient of the last state.
    pub d_last: bool,
    /// Keys that are nearly the same.
    pub correlated: bool,
    /// No strong decays.
    pub weak: bool,
}

impl Options {
    /// Combination `number` modulo 16.
    pub fn nth(n: usize) -> Self {
        Self {
            initial: n & 1 == 0,
            reset: n & 2 != 0,
            d_last: n & 4 == 0,
            correlated: n & 8 != 0,
            weak: false,
        }
    }
}

impl States {
    /// Random data of `[B, T, J, H, K, V]`.
    pub fn random(shape: [usize; 6], form: Form, options: Options, seed: u64) -> Self {
        let [batch, steps, key_heads, heads, key, value] = shape;
        let shape = Shape {
            batch,
            steps,
            key_heads,
            heads,
            key,
            value,
        };
        let Form { gate, erase, bonus } = form;
        let problem = Problem {
            shape,
            gate,
            erase,
            bonus,
        };
        let lengths = problem.lengths();
        let mut random = Random::new(seed);
        let direction = random.vec(key, 1.0);
        let spread = if options.correlated { 0.1 } else { 1.0 };
        let mut unit = |n: usize| {
            let rows = (0..n / key).flat_map(|_| {
                let mut row = random.vec(key, spread);
                if options.correlated {
                    row.iter_mut().zip(&direction).for_each(|(x, d)| *x += d);
                }
                let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                row.into_iter().map(move |x| x / length)
            });
            rows.collect::<Vec<f64>>()
        };
        let (q, k) = (unit(lengths.q), unit(lengths.k));
        // Of a separate erase: what it reads, and the part of that which is taken away.
        let of_heads = (erase == Erase::Separate).then(|| unit(lengths.erase.unwrap()));
        let decay = |random: &mut Random| match random.below(8) {
            0 => 0.0,
            1 | 2 if options.weak => -0.02 * random.within(1.0).abs(),
            1 => -80.0,
            2 => -5.0 * random.within(1.0).abs(),
            _ => -0.1 * random.within(1.0).abs(),
        };
        let beta = |random: &mut Random| match random.below(6) {
            0 => 0.0,
            1 => 1.0,
            2 => 2.0,
            _ => 0.5 + random.within(0.5),
        };
        let some = |n: Option<usize>, f: &mut dyn FnMut() -> f64| {
            n.map(|n| (0..n).map(|_| f()).collect::<Vec<f64>>())
        };
        let g = some(lengths.g, &mut || decay(&mut random));
        let beta = some(lengths.beta, &mut || beta(&mut random));
        let part = |random: &mut Random| 0.5 + random.within(0.5);
        let key_of = |i: usize| {
            let (row, c) = (i / key, i % key);
            (row / heads * key_heads + row % heads / shape.group().max(1)) * key + c
        };
        let (erased, write) = match (lengths.erase, of_heads) {
            (None, _) => (None, None),
            (Some(n), None) => {
                let of_key = (0..n).map(|i| k[key_of(i)] * part(&mut random));
                (Some(of_key.collect()), None)
            }
            (Some(_), Some(a)) => {
                let b = a.iter().map(|a| -a * part(&mut random)).collect();
                (Some(a), Some(b))
            }
        };
        let mark = |random: &mut Random| random.below(8) == 0;
        let reset = options.reset;
        let reset = reset.then(|| (0..shape.rows()).map(|_| mark(&mut random)).collect());
        let mut numbers = |n: usize| random.vec(n, 1.0);
        let inputs = Inputs {
            q,
            k,
            v: numbers(lengths.v),
            g,
            beta,
            erase: erased,
            write,
            bonus: lengths.bonus.map(&mut numbers),
            initial: options.initial.then(|| numbers(shape.state())),
            reset,
        };
        Self {
            problem,
            inputs,
            d_o: numbers(shape.values()),
            d_last: options.d_last.then(|| numbers(shape.state())),
            chunked: false,
            coarse: false,
        }
    }
}
