//! Recurrences with a matrix for a state, forward and every gradient.
//!
//! A number passes if it is within one rounding to storage of the reference, plus `eps / 2 sqrt(12 (16 + K + V) T)` of the
//! largest size of its tensor, with the `eps` of the arithmetic; states, which are not rounded to storage, without the first. In
//! `f64`, where the reference rounds as well, the second counts twice.
//!
//! A step rounds some 16 times, and the products of a row and a column of the state. Each rounding errs by at most `eps / 2` of
//! what it rounds, `eps / 2 sqrt(1 / 3)` on average; errors are independent, and no step amplifies them: keys have length 1, `β`
//! is at most 2, and what a vector of its own erases is a part of what the key reads. So the second term is six standard
//! deviations of their sum. The size of a number is that of the terms of its step, the root of the sum of their squares, in which
//! every element of a state counts as the largest: terms may cancel, and their errors do not. By chunks the gradient of a log decay is
//! `q ∘ dq - k ∘ dk` and so on, summed over the steps: its size is that of these terms at least.
//!
//! Tensor cores round the operands of products to storage, states among them: the second term counts these too, eight in each chunk
//! of 64 steps and of a side, forward or backward.

mod number;
#[cfg(feature = "gpu")]
mod on_gpu;
#[cfg(feature = "ops")]
mod on_tensors;
pub mod oracle;
mod random;

pub use riverrun_kernels::matrix_state::*;

use number::Number;
pub use random::{Form, Options};

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Report, Storage, Tensors,
    by_storage, largest, roundings, stored, wide,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "matrix-state",
    about: "Recurrences with a matrix for a state",
    storages: &Storage::ALL,
    forms: |_| Erase::ALL.map(name).to_vec(),
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 9,
    shared: crate::storage::HALVES,
    long: Some("300 steps of states of 128 x 128"),
};

/// The name of the form.
fn name(erase: Erase) -> &'static str {
    match erase {
        Erase::None => "no erase",
        Erase::Key => "delta rule",
        Erase::Free => "free erase",
        Erase::Separate => "separate erase",
    }
}

/// `[B, T, J, H, K, V]`: nothing, single steps, one segment of the backward pass and parts of it, groups of heads, states that are
/// no multiples of a register.
const SHAPES: [[usize; 6]; 10] = [
    [0, 5, 1, 1, 4, 4],
    [2, 0, 1, 2, 3, 5],
    [1, 1, 1, 1, 1, 1],
    [2, 1, 2, 4, 7, 3],
    [1, 16, 1, 1, 16, 16],
    [2, 37, 1, 3, 5, 9],
    [1, 33, 1, 1, 33, 17],
    [1, 35, 1, 1, 20, 70],
    [2, 20, 2, 2, 4, 130],
    [1, 5, 1, 1, 130, 65],
];

/// Shapes that tensor cores take: one chunk, parts of chunks, groups of heads, the largest states.
const CHUNKED: [[usize; 6]; 4] = [
    [2, 64, 1, 1, 32, 16],
    [1, 100, 2, 4, 64, 64],
    [1, 150, 1, 1, 32, 48],
    [1, 130, 1, 2, 128, 128],
];

/// One that they divide.
const SEGMENTED: [usize; 6] = [1, 4160, 1, 1, 64, 64];

/// One that they divide into halves for its outputs.
const HALVED: [usize; 6] = [1, 2080, 1, 2, 32, 32];

/// One of more heads than a GPU has multiprocessors.
const MANY: [usize; 6] = [2, 70, 40, 80, 32, 32];

/// The problems of these shapes that tensor cores take.
pub fn for_tensor_cores(erase: Erase) -> impl Iterator<Item = States> {
    let forms = Form::of(erase).filter(|form| !form.bonus);
    let takes = move |form: &Form| match erase {
        Erase::None | Erase::Key => true,
        Erase::Separate => form.gate == Gate::Row,
        Erase::Free => false,
    };
    let forms: Vec<Form> = forms.filter(takes).collect();
    CHUNKED.into_iter().enumerate().flat_map(move |(n, shape)| {
        let forms = forms.clone().into_iter().enumerate();
        forms.map(move |(m, form)| {
            let options = Options::nth(n + 5 * m);
            // Strong decays of rows leave little of the steps of another half of a chunk. Without them, keys that are nearly the
            // same would carry the error of a step to all others, which counts as if errors did not meet.
            let weak = form.gate == Gate::Row && n % 2 == 1;
            let options = Options {
                weak,
                correlated: options.correlated && !weak,
                ..options
            };
            States::random(shape, form, options, n as u64)
        })
    })
}

/// A form of an erase that tensor cores take, if they take it.
fn on_tensor_cores(erase: Erase) -> Option<Form> {
    let gate = match erase {
        Erase::None | Erase::Key => Gate::Head,
        Erase::Separate => Gate::Row,
        Erase::Free => return None,
    };
    Some(Form {
        gate,
        erase,
        bonus: false,
    })
}

/// A sequence of one head so long that tensor cores divide it into segments.
pub fn in_segments(erase: Erase) -> Option<States> {
    lasting(erase, SEGMENTED)
}

/// A sequence of two heads that tensor cores divide into halves.
pub fn in_halves(erase: Erase) -> Option<States> {
    lasting(erase, HALVED)
}

/// A problem whose states last over thousands of steps.
fn lasting(erase: Erase, sizes: [usize; 6]) -> Option<States> {
    let form = on_tensor_cores(erase)?;
    let options = Options {
        initial: true,
        reset: false,
        d_last: true,
        correlated: false,
        weak: true,
    };
    let mut case = States::random(sizes, form, options, 1);
    let inputs = &mut case.inputs;
    let scale = |numbers: &mut Option<Vec<f64>>, by: f64| {
        numbers.iter_mut().flatten().for_each(|x| *x *= by);
    };
    inputs.g.iter_mut().flatten().for_each(|g| *g = g.max(-1.0));
    scale(&mut inputs.g, 2e-3);
    scale(&mut inputs.beta, 0.02);
    scale(&mut inputs.write, 0.02);
    Some(case)
}

/// So many heads that a backward pass walks along the chunks one way after the other.
pub fn of_many_heads(erase: Erase) -> Option<States> {
    let form = on_tensor_cores(erase)?;
    Some(States::random(MANY, form, Options::nth(0), 2))
}

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    let mut all = Erase::ALL.into_iter();
    let erase = all.find(|erase| name(*erase) == part.form);
    let erase = erase.expect("one of the forms");
    let on_cpu = part.target.is_cpu();
    let mut shapes = SHAPES.to_vec();
    if part.long {
        shapes.push([1, 300, 1, 1, 128, 128]);
    }
    // On a GPU each has kernels of its own to compile: a fifth of the forms, other ones for each shape and type, and a third of
    // those for tensor cores.
    let all = on_cpu || part.long;
    let turn = move |n: usize, of: usize| all || (n + E::NAME.len()).is_multiple_of(of);
    let shapes = shapes.into_iter().enumerate();
    let cases = shapes.flat_map(|(n, shape)| {
        let forms = Form::of(erase).enumerate();
        let forms = forms.filter(move |(m, _)| turn(n + m, 5));
        forms.map(move |(m, form)| {
            let options = Options::nth(5 * n + 7 * m);
            States::random(shape, form, options, n as u64).in_chunks(!on_cpu)
        })
    });
    let mut cases: Vec<States> = cases.collect();
    let in_chunks = for_tensor_cores(erase).map(|case| case.in_chunks(!on_cpu));
    // Three gates for each shape.
    let in_turn = in_chunks.enumerate().filter(|(n, _)| turn(n / 3 + n, 3));
    cases.extend(in_turn.map(|(_, case)| case));
    if !on_cpu {
        let large = [in_segments(erase), in_halves(erase), of_many_heads(erase)];
        cases.extend(large.into_iter().flatten().map(|case| case.in_chunks(true)));
    }
    #[cfg(feature = "gpu")]
    if let Some((client, dtype)) = part.gpu() {
        for case in &mut cases {
            case.coarse = case.on_tensor_cores(client, dtype);
        }
        // Without tensor cores, they are large problems of kernels that the others check.
        let large = |sizes| [SEGMENTED, HALVED, MANY].contains(&sizes) || CHUNKED.contains(&sizes);
        cases.retain(|case| case.coarse || !large(case.sizes()));
    }
    #[cfg(feature = "ops")]
    {
        // Burn has no products of no numbers.
        let mut some = cases.clone();
        some.retain(|case| case.problem.shape.values() > 0);
        // On a GPU with a state, as the kernels below: others have kernels of their own to compile.
        some.retain(|case| on_cpu || case.inputs.initial.is_some());
        part.run_ops::<E, _>(part.form, some, report)?;
    }
    part.run_all::<E, _>(part.form, cases, report)
}

/// The inputs in `f64`.
pub type Data = Inputs<Vec<f64>, Vec<f64>, Vec<bool>>;

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct States {
    /// Sizes and form.
    pub problem: Problem,
    /// The inputs.
    pub inputs: Data,
    /// `[B, T, H, V]`.
    pub d_o: Vec<f64>,
    /// `[B, H, K, V]`.
    pub d_last: Option<Vec<f64>>,
    /// Whether the gradient of a log decay is computed as a difference of sums over the steps, as by chunks.
    pub chunked: bool,
    /// Whether the operands of products are rounded to storage, as on tensor cores.
    pub coarse: bool,
}

impl States {
    #[cfg(feature = "gpu")]
    fn sizes(&self) -> [usize; 6] {
        let Shape {
            batch,
            steps,
            key_heads,
            heads,
            key,
            value,
        } = self.problem.shape;
        [batch, steps, key_heads, heads, key, value]
    }

    /// The same, for a form that computes in chunks.
    pub fn in_chunks(mut self, chunked: bool) -> Self {
        self.chunked = chunked;
        self
    }

    /// The largest term of such a difference: `q ∘ dq`, and as many times again as there are other vectors.
    fn term(&self, truth: &Tensors) -> f64 {
        let most = |x: &[f64]| largest(x.iter().map(|x| x.abs()));
        let given = &self.inputs;
        let product = |x: Option<&Vec<f64>>, d: &str| match x {
            Some(x) if self.chunked => most(x) * most(truth.get(d)),
            _ => 0.0,
        };
        product(Some(&given.q), "d_q")
            + product(Some(&given.k), "d_k")
            + product(given.erase.as_ref(), "d_erase")
            + product(given.write.as_ref(), "d_write")
    }

    fn tensors<T>(o: T, last: T, d: Gradients<T, T>, numbers: impl Fn(T) -> Vec<f64>) -> Tensors {
        let all = [
            ("o", Some(o)),
            ("last", Some(last)),
            ("d_q", Some(d.q)),
            ("d_k", Some(d.k)),
            ("d_v", Some(d.v)),
            ("d_g", d.g),
            ("d_beta", d.beta),
            ("d_erase", d.erase),
            ("d_write", d.write),
            ("d_bonus", d.bonus),
            ("d_initial", Some(d.initial)),
        ];
        let given = all.into_iter().filter_map(|(name, x)| Some((name, x?)));
        Tensors::new(given.map(|(name, x)| (name, numbers(x))))
    }

    /// Every number of the reference, or something else of it.
    fn reference(&self, of: fn(&Number) -> f64) -> Tensors {
        let d_last = self.d_last.as_deref();
        let found = oracle::run(&self.problem, &self.inputs, &self.d_o, d_last);
        let numbers = |x: Vec<Number>| x.iter().map(of).collect();
        Self::tensors(found.o, found.last, found.d, numbers)
    }
}

impl Case for States {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        let Inputs {
            q,
            k,
            v,
            g,
            beta,
            erase,
            write,
            bonus,
            initial,
            ..
        } = &mut self.inputs;
        let mut all = vec![q, k, v, &mut self.d_o];
        let given = [g, beta, erase, write, bonus, initial, &mut self.d_last];
        all.extend(given.into_iter().flatten());
        all
    }

    fn oracle<E: Element>(&self) -> Tensors {
        self.reference(|number| number.x)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        let (storage, arithmetic) = roundings::<E>();
        let sizes = self.reference(|number| number.size);
        let Shape {
            steps, key, value, ..
        } = self.problem.shape;
        let roundings = ((16 + key + value) * steps.max(1)) as f64;
        let sides = if E::NAME == "f64" { 2.0 } else { 1.0 };
        let term = self.term(truth);
        let rule = |(name, truth): (&'static str, &[f64])| {
            let mut size = largest(sizes.get(name).iter().copied());
            if name == "d_g" {
                size = size.max(term);
            }
            let mut error = sides * arithmetic / 2.0 * (12.0 * roundings).sqrt() * size;
            if self.coarse {
                let sides = if matches!(name, "o" | "last") { 1 } else { 2 };
                let products = (8 * sides * steps.div_ceil(64)) as f64;
                error += storage(1.0) * (12.0 * products).sqrt() * size;
            }
            let rounded = !matches!(name, "last" | "d_initial");
            let of = |x: &f64| error + if rounded { storage(*x) } else { 0.0 };
            (name, truth.iter().map(of).collect())
        };
        Tensors::new(truth.iter().map(rule))
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let lengths = self.problem.lengths();
        let given = &self.inputs;
        let some = |x: &Option<Vec<f64>>| x.as_deref().map(stored::<E>);
        let [q, k, v] = [&given.q, &given.k, &given.v].map(|x| stored::<E>(x));
        let options = [
            &given.g,
            &given.beta,
            &given.erase,
            &given.write,
            &given.bonus,
        ]
        .map(some);
        let [g, beta, erase, write, bonus] = options.each_ref().map(|x| x.as_deref());
        let initial = given.initial.as_deref().map(states::<E>);
        let inputs = Inputs {
            q: &q[..],
            k: &k[..],
            v: &v[..],
            g,
            beta,
            erase,
            write,
            bonus,
            initial: initial.as_deref(),
            reset: given.reset.as_deref(),
        };
        let poison = |n: usize| vec![E::from_f64(f64::NAN); n];
        let poisoned = |n: usize| states::<E>(&vec![f64::NAN; n]);
        let mut o = poison(lengths.v);
        let mut last = poisoned(self.problem.shape.state());
        cpu::forward(&self.problem, &inputs, &mut o, &mut last)?;
        let mut d = Gradients {
            q: poison(lengths.q),
            k: poison(lengths.k),
            v: poison(lengths.v),
            g: lengths.g.map(poison),
            beta: lengths.beta.map(poison),
            erase: lengths.erase.map(poison),
            write: lengths.write.map(poison),
            bonus: lengths.bonus.map(poison),
            initial: poisoned(self.problem.shape.state()),
        };
        let d_last = self.d_last.as_deref().map(states::<E>);
        let to = Gradients {
            q: &mut d.q[..],
            k: &mut d.k[..],
            v: &mut d.v[..],
            g: d.g.as_deref_mut(),
            beta: d.beta.as_deref_mut(),
            erase: d.erase.as_deref_mut(),
            write: d.write.as_deref_mut(),
            bonus: d.bonus.as_deref_mut(),
            initial: &mut d.initial[..],
        };
        let d_o = stored::<E>(&self.d_o);
        cpu::backward(&self.problem, &inputs, &d_o, d_last.as_deref(), to)?;
        let some = |x: Option<Vec<E>>| x.map(|x| wide(&x));
        let d = Gradients {
            q: wide(&d.q),
            k: wide(&d.k),
            v: wide(&d.v),
            g: some(d.g),
            beta: some(d.beta),
            erase: some(d.erase),
            write: some(d.write),
            bonus: some(d.bonus),
            initial: numbers::<E>(&d.initial),
        };
        Ok(Self::tensors(wide(&o), numbers::<E>(&last), d, |x| x))
    }

    #[cfg(feature = "ops")]
    fn op<E: Element>(&self, on: &crate::op::Place) -> Result<Tensors, Failure> {
        self.on_tensors::<E>(on)
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        self.on_gpu(client, dtype)
    }
}

/// States in the arithmetic type.
fn states<E: Element>(x: &[f64]) -> Vec<E::Acc> {
    use riverrun_kernels::Real;
    x.iter().map(|x| E::Acc::from_f64(*x)).collect()
}

fn numbers<E: Element>(x: &[E::Acc]) -> Vec<f64> {
    use riverrun_kernels::Real;
    x.iter().map(|x| x.to_f64()).collect()
}
