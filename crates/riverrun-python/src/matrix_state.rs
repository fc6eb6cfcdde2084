//! Recurrences with a matrix for a state, of sequences side by side, or following each other in one row.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use riverrun_kernels::matrix_state::{Erase, Gate, Gradients, Inputs, Problem, Shape, cpu};
use riverrun_kernels::{CpuElement, Element, Error};

use crate::array::{Array, optional, refused, with_type};
use crate::place::{Place, on_cpu};
use crate::{cuda, pool};

/// The arrays that both passes read.
#[derive(FromPyObject)]
pub struct Arguments {
    /// `[B, T, J, K]`.
    pub q: Array,
    /// `[B, T, J, K]`.
    pub k: Array,
    /// `[B, T, H, V]`.
    pub v: Array,
    /// `[B, T, H]` or `[B, T, H, K]`.
    pub g: Option<Array>,
    /// `[B, T, H]`.
    pub beta: Option<Array>,
    /// `[N, H, K, V]`.
    pub initial: Option<Array>,
    /// `[B, T]`.
    pub reset: Option<Array>,
}

/// The form and the sizes.
#[derive(FromPyObject)]
pub struct Form {
    /// `none`, `head` or `row`.
    gate: String,
    /// Whether the key erases.
    erase: bool,
    /// `[B, T, J, H, K, V]`.
    sizes: [usize; 6],
    /// The start of each sequence where they follow each other in one row, then the end of the last.
    bounds: Option<Vec<usize>>,
}

impl Form {
    fn problem(&self) -> PyResult<Problem> {
        let [batch, steps, key_heads, heads, key, value] = self.sizes;
        let gate = match self.gate.as_str() {
            "none" => Gate::None,
            "head" => Gate::Head,
            "row" => Gate::Row,
            other => return Err(PyValueError::new_err(format!("unknown decay `{other}`"))),
        };
        let shape = Shape {
            batch,
            steps,
            key_heads,
            heads,
            key,
            value,
        };
        let erase = if self.erase { Erase::Key } else { Erase::None };
        Ok(Problem {
            shape,
            gate,
            erase,
            bonus: false,
        })
    }

    /// Refuses sequences that follow each other in one row.
    fn one_sequence_each(&self) -> PyResult<()> {
        match self.bounds {
            None => Ok(()),
            Some(_) => Err(PyValueError::new_err("one call for each sequence on a GPU")),
        }
    }

    /// The calls of the kernel: a problem, its steps among all, and its states among all.
    fn calls(&self) -> PyResult<Vec<(Problem, Range<usize>, Range<usize>)>> {
        let whole = self.problem()?;
        let Some(bounds) = &self.bounds else {
            return Ok(vec![(whole, 0..whole.shape.rows(), 0..whole.shape.batch)]);
        };
        let (rows, ordered) = (whole.shape.rows(), bounds.is_sorted());
        if bounds.first() != Some(&0) || bounds.last() != Some(&rows) || !ordered {
            let text = format!(
                "expected sequences that begin at 0, follow each other and end at {rows}, found {bounds:?}"
            );
            return Err(PyValueError::new_err(text));
        }
        let call = |(index, ends): (usize, &[usize])| {
            let shape = Shape {
                batch: 1,
                steps: ends[1] - ends[0],
                ..whole.shape
            };
            (
                Problem { shape, ..whole },
                ends[0]..ends[1],
                index..index + 1,
            )
        };
        Ok(bounds.windows(2).enumerate().map(call).collect())
    }
}

/// Where in a slice the rows or states `at`, of `total`, are.
fn part<T>(slice: &[T], total: usize, at: &Range<usize>) -> Range<usize> {
    // A total of 0 has no elements.
    let each = slice.len().checked_div(total).unwrap_or(0);
    at.start * each..at.end * each
}

/// The elements of these rows or states.
fn of<'a, T>(slice: &'a [T], total: usize, at: &Range<usize>) -> &'a [T] {
    &slice[part(slice, total, at)]
}

fn inputs_of<'a, E: Element>(
    all: &Inputs<&'a [E], &'a [E::Acc], &'a [bool]>,
    [rows, states]: [usize; 2],
    steps: &Range<usize>,
    of_states: &Range<usize>,
) -> Inputs<&'a [E], &'a [E::Acc], &'a [bool]> {
    Inputs {
        q: of(all.q, rows, steps),
        k: of(all.k, rows, steps),
        v: of(all.v, rows, steps),
        g: all.g.map(|g| of(g, rows, steps)),
        beta: all.beta.map(|beta| of(beta, rows, steps)),
        initial: all.initial.map(|state| of(state, states, of_states)),
        reset: all.reset.map(|reset| of(reset, rows, steps)),
        ..Inputs::default()
    }
}

/// Takes the first elements off a slice.
fn take<'a, T>(slice: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    slice.split_off_mut(..count).unwrap_or_default()
}

/// Binds the arrays of both passes, after a check that they have as many elements as all calls together take.
macro_rules! bind {
    ($arguments:expr, $whole:expr, $states:expr, $E:ident => $inputs:ident) => {
        let arguments = $arguments;
        // SAFETY: the promise of the module `array`.
        let $inputs: Inputs<&[$E], &[<$E as Element>::Acc], &[bool]> = unsafe {
            Inputs {
                q: arguments.q.read()?,
                k: arguments.k.read()?,
                v: arguments.v.read()?,
                g: optional!(arguments.g, read),
                beta: optional!(arguments.beta, read),
                initial: optional!(arguments.initial, read),
                reset: optional!(arguments.reset, flags),
                ..Inputs::default()
            }
        };
        check(&$whole, $states, &$inputs).map_err(refused)?;
    };
}

/// Checks the arrays against the sizes, with states for `states` sequences.
fn check<E: Element>(
    whole: &Problem,
    states: usize,
    inputs: &Inputs<&[E], &[E::Acc], &[bool]>,
) -> Result<(), Error> {
    let each = Shape {
        batch: states,
        ..whole.shape
    }
    .state();
    let state = whole.shape.state();
    whole.check(&Inputs {
        q: inputs.q.len(),
        k: inputs.k.len(),
        v: inputs.v.len(),
        g: inputs.g.map(<[E]>::len),
        beta: inputs.beta.map(<[E]>::len),
        reset: inputs.reset.map(<[bool]>::len),
        // The number of sequences is not the batch where they follow each other.
        initial: inputs.initial.map(|found| {
            if found.len() == each {
                state
            } else {
                found.len()
            }
        }),
        ..Inputs::default()
    })
}

fn expect(what: &str, expected: usize, found: usize) -> PyResult<()> {
    if expected == found {
        return Ok(());
    }
    let text = format!("{what}: expected {expected} elements, found {found}");
    Err(PyValueError::new_err(text))
}

/// Computes `o` and the last states.
#[pyfunction]
pub fn matrix_state(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    form: Form,
    arguments: Arguments,
    o: Array,
    last: Array,
) -> PyResult<()> {
    let (whole, calls) = (form.problem()?, form.calls()?);
    let threads = on_cpu!(place, stream => {
        form.one_sequence_each()?;
        cuda::matrix_state(py, &stream, dtype, whole, &arguments, [o, last])
    });
    let states = form
        .bounds
        .as_ref()
        .map_or(whole.shape.batch, |bounds| bounds.len() - 1);
    let totals = [whole.shape.rows(), states];
    with_type!(dtype, E => {
        bind!(arguments, whole, states, E => inputs);
        // SAFETY: the promise of the module `array`.
        let (mut o, mut last) = unsafe { (o.write::<E>()?, last.write::<<E as Element>::Acc>()?) };
        expect("o", whole.shape.values(), o.len())?;
        expect("the last state", Shape { batch: states, ..whole.shape }.state(), last.len())?;
        let kernel = || calls.iter().try_for_each(|(problem, steps, of_states)| {
            let inputs = inputs_of(&inputs, totals, steps, of_states);
            let o = take(&mut o, problem.shape.values());
            cpu::forward(problem, &inputs, o, take(&mut last, problem.shape.state()))
        });
        pool::run(py, threads, kernel)?.map_err(refused)
    })
}

/// The gradients.
#[derive(FromPyObject)]
pub struct Into {
    pub q: Array,
    pub k: Array,
    pub v: Array,
    pub g: Option<Array>,
    pub beta: Option<Array>,
    pub initial: Array,
}

fn back<E: CpuElement>(
    problem: &Problem,
    inputs: &Inputs<&[E], &[E::Acc], &[bool]>,
    d_o: &[E],
    d_last: Option<&[E::Acc]>,
    d: &mut Gradients<&mut [E], &mut [E::Acc]>,
) -> Result<(), Error> {
    let lengths = problem.lengths();
    let part = Gradients {
        q: take(&mut d.q, lengths.q),
        k: take(&mut d.k, lengths.k),
        v: take(&mut d.v, lengths.v),
        g: d.g.as_mut().map(|g| take(g, lengths.g.unwrap_or(0))),
        beta: d
            .beta
            .as_mut()
            .map(|beta| take(beta, lengths.beta.unwrap_or(0))),
        erase: None,
        write: None,
        bonus: None,
        initial: take(&mut d.initial, problem.shape.state()),
    };
    cpu::backward(problem, inputs, d_o, d_last, part)
}

/// Computes the gradients.
#[pyfunction]
pub fn matrix_state_back(
    py: Python<'_>,
    place: Place,
    dtype: &str,
    form: Form,
    arguments: Arguments,
    d_o: Array,
    d_last: Option<Array>,
    into: Into,
) -> PyResult<()> {
    let (whole, calls) = (form.problem()?, form.calls()?);
    let threads = on_cpu!(place, stream => {
        form.one_sequence_each()?;
        cuda::matrix_state_back(py, &stream, dtype, whole, &arguments, d_o, d_last, &into)
    });
    let states = form
        .bounds
        .as_ref()
        .map_or(whole.shape.batch, |bounds| bounds.len() - 1);
    let totals = [whole.shape.rows(), states];
    with_type!(dtype, E => {
        bind!(arguments, whole, states, E => inputs);
        let lengths = whole.lengths();
        // SAFETY: the promise of the module `array`.
        let d_o = unsafe { d_o.read::<E>() }?;
        let d_last = optional!(d_last, read::<<E as Element>::Acc>);
        // SAFETY: as above.
        let mut d = unsafe {
            Gradients {
                q: into.q.write::<E>()?,
                k: into.k.write::<E>()?,
                v: into.v.write::<E>()?,
                g: optional!(into.g, write::<E>),
                beta: optional!(into.beta, write::<E>),
                erase: None,
                write: None,
                bonus: None,
                initial: into.initial.write::<<E as Element>::Acc>()?,
            }
        };
        let state = Shape { batch: states, ..whole.shape }.state();
        expect("d_o", whole.shape.values(), d_o.len())?;
        expect("d_last", state, d_last.map_or(state, <[_]>::len))?;
        expect("d_initial", state, d.initial.len())?;
        expect("d_q", lengths.q, d.q.len())?;
        expect("d_k", lengths.k, d.k.len())?;
        expect("d_v", lengths.v, d.v.len())?;
        expect("d_g", lengths.g.unwrap_or(0), d.g.as_ref().map_or(0, |g| g.len()))?;
        expect("d_beta", lengths.beta.unwrap_or(0), d.beta.as_ref().map_or(0, |beta| beta.len()))?;
        let kernel = || calls.iter().try_for_each(|(problem, steps, of_states)| {
            let inputs = inputs_of(&inputs, totals, steps, of_states);
            let d_o = of(d_o, totals[0], steps);
            let d_last = d_last.map(|d_last| of(d_last, totals[1], of_states));
            back(problem, &inputs, d_o, d_last, &mut d)
        });
        pool::run(py, threads, kernel)?.map_err(refused)
    })
}
