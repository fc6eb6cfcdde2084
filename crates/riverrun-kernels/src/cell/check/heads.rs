//! A case with several heads as cases with one head each.

use super::{Case, Results};
use crate::cell::Problem;
use crate::{Element, Error};

/// The place of the heads in a tensor's rows: the groups that contain all heads, and the numbers of each head in a group.
struct Layout {
    groups: usize,
    own: usize,
    heads: usize,
}

impl Layout {
    fn of(problem: &Problem, groups: usize) -> Self {
        Self {
            groups,
            own: problem.depth(),
            heads: problem.heads,
        }
    }

    /// That of the recurrent weights, as one row.
    fn of_u(problem: &Problem) -> Self {
        Self {
            own: problem.depth() * problem.depth(),
            ..Self::of(problem, problem.cell.gates())
        }
    }

    /// Where the head's numbers begin, those of a group and a row together.
    fn places(&self, head: usize, len: usize) -> impl Iterator<Item = usize> + use<> {
        let all = self.heads * self.own;
        let first = head * self.own;
        (0..len / all.max(1)).map(move |group| group * all + first)
    }

    fn take<E: Copy>(&self, from: &[E], head: usize) -> Vec<E> {
        assert!(
            from.len()
                .is_multiple_of(self.groups * self.heads * self.own)
        );
        self.places(head, from.len())
            .flat_map(|at| from[at..][..self.own].iter().copied())
            .collect()
    }

    fn put<E: Copy>(&self, to: &mut [E], from: &[E], head: usize) {
        let places = self.places(head, to.len());
        for (at, from) in places.zip(from.chunks_exact(self.own)) {
            to[at..][..self.own].copy_from_slice(from);
        }
    }
}

impl<E: Element> Case<E> {
    /// The case of one head alone.
    fn head(&self, head: usize) -> Self {
        let p = self.problem;
        let (gates, one) = (Layout::of(&p, p.cell.gates()), Layout::of(&p, 1));
        let state = |x: &Option<Vec<E>>| x.as_ref().map(|x| one.take(x, head));
        Self {
            problem: Problem::new(p.cell, p.batch, p.steps, p.depth()).reversed(p.reverse),
            xg: gates.take(&self.xg, head),
            u: Layout::of_u(&p).take(&self.u, head),
            bias: self.bias.as_ref().map(|bias| gates.take(bias, head)),
            h0: state(&self.h0),
            c0: state(&self.c0),
            reset: self.reset.clone(),
            lengths: self.lengths.clone(),
            d_h: state(&self.d_h),
            d_h_last: state(&self.d_h_last),
            d_c_last: state(&self.d_c_last),
        }
    }
}

/// Runs each head by itself and puts the results together.
pub(super) fn by_head<E: Element, R: Element>(
    case: &Case<E>,
    run: impl Fn(&Case<E>) -> Result<Results<R>, Error>,
) -> Result<Results<R>, Error> {
    let p = case.problem;
    if p.heads == 1 {
        return run(case);
    }
    let zeros = |len: usize| vec![R::ZERO; len];
    let mut all = Results {
        h: zeros(p.outputs()),
        h_last: zeros(p.state()),
        c_last: zeros(p.cell_state()),
        d_xg: zeros(p.batch * p.steps * p.gate_width()),
        d_u: zeros(p.gate_width() * p.depth()),
        d_bias: zeros(p.gate_width()),
        d_h0: zeros(p.state()),
        d_c0: zeros(p.cell_state()),
    };
    let (gates, one) = (Layout::of(&p, p.cell.gates()), Layout::of(&p, 1));
    for head in 0..p.heads {
        let own = run(&case.head(head))?;
        one.put(&mut all.h, &own.h, head);
        one.put(&mut all.h_last, &own.h_last, head);
        one.put(&mut all.c_last, &own.c_last, head);
        gates.put(&mut all.d_xg, &own.d_xg, head);
        Layout::of_u(&p).put(&mut all.d_u, &own.d_u, head);
        gates.put(&mut all.d_bias, &own.d_bias, head);
        one.put(&mut all.d_h0, &own.d_h0, head);
        one.put(&mut all.d_c0, &own.d_c0, head);
    }
    Ok(all)
}
