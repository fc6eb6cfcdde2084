//! Backward: a task for each head, whose gradients are added up over groups of heads and sequences afterwards.

use pulp::Arch;

use super::super::{Gradients, Inputs, Problem};
use super::Kernels;
use super::reverse::{Reverse, Targets};
use super::step::Head;
use crate::buffer::Buffer;
use crate::error::expect_length;
use crate::simd::real::Real;
use crate::threads::pieces::{InPieces, Pieces};
use crate::threads::{Shared, parallel_for};
use crate::{Element, Error};

/// Computes the gradients from those of `o` (`d_o`, `[B, T, H, V]`) and of the last state (`d_last`, `[B, H, K, V]`, zero if
/// absent). Every element is written.
///
/// Beside the inputs it takes memory for a state every 16 steps of the heads that are under way.
///
/// # Errors
/// [`Error::MatrixState`], [`Error::Length`]; then nothing has been written.
pub fn backward<E: Kernels<E>>(
    problem: &Problem,
    inputs: &Inputs<&[E], &[E::Acc], &[bool]>,
    d_o: &[E],
    d_last: Option<&[E::Acc]>,
    d: Gradients<&mut [E], &mut [E::Acc]>,
) -> Result<(), Error> {
    E::matrix_states_back(problem, inputs, d_o, d_last, d)
}

pub(super) fn states_back<E: Element>(
    problem: &Problem,
    inputs: &Inputs<&[E], &[E::Acc], &[bool]>,
    d_o: &[E],
    d_last: Option<&[E::Acc]>,
    d: Gradients<&mut [E], &mut [E::Acc]>,
) -> Result<(), Error> {
    problem.check(&inputs.lengths())?;
    problem.check_gradients(&d.lengths())?;
    let shape = problem.shape;
    expect_length("d_o", shape.values(), d_o.len())?;
    let state = shape.state();
    expect_length("d_last", state, d_last.map_or(state, <[E::Acc]>::len))?;

    let (key, group) = (shape.key, shape.group());
    let apart = if group > 1 {
        shape.head_rows() * key
    } else {
        0
    };
    let [mut q, mut k] = [(); 2].map(|()| Buffer::scratch(apart));
    let of_states = if problem.bonus {
        shape.states() * key
    } else {
        0
    };
    let mut bonus = Buffer::zeroed(of_states);
    let to = &Targets {
        d: Gradients {
            q: Shared::new(&mut *d.q),
            k: Shared::new(&mut *d.k),
            v: Shared::new(d.v),
            g: d.g.map(Shared::new),
            beta: d.beta.map(Shared::new),
            erase: d.erase.map(Shared::new),
            write: d.write.map(Shared::new),
            bonus: None,
            initial: Shared::new(d.initial),
        },
        apart: (group > 1).then(|| [&mut q, &mut k].map(|x| Shared::new(x.as_mut_slice()))),
        bonus: Shared::new(bonus.as_mut_slice()),
    };
    let arch = Arch::new();
    parallel_for(shape.states(), |index| {
        let head = Head::new(problem, inputs, index);
        arch.dispatch(Reverse {
            head,
            d_o,
            d_last,
            to,
        });
    });

    if group > 1 {
        for (d, terms) in [(d.q, &q), (d.k, &k)] {
            let terms = terms.as_slice().par_chunks(group * key);
            let rows = d.par_chunks_mut(key).zip(terms);
            rows.for_each(|(d, terms)| add_up(d, terms));
        }
    }
    if let Some(d) = d.bonus {
        add_up(d, bonus.as_slice());
    }
    Ok(())
}

/// The sum of parts as long as itself, in order.
fn add_up<E: Element>(to: &mut [E], parts: &[E::Acc]) {
    let len = to.len();
    for (i, to) in to.iter_mut().enumerate() {
        let mut sum = E::Acc::ZERO;
        for part in parts.chunks_exact(len) {
            sum += part[i];
        }
        *to = E::narrow(sum);
    }
}
