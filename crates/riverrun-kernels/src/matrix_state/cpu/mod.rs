//! On the CPU. Forward, the columns of a state are independent: a task takes some columns of a head through all steps, lanes
//! along the columns. Backward, a task is a head, lanes along the rows.

mod backward;
mod block;
mod forward;
mod reverse;
mod segment;
mod step;

pub use backward::backward;
use backward::states_back;
pub use forward::forward;
use forward::states;

use super::{Gradients, Inputs, Problem};
use crate::element::compiled_here;
use crate::{Element, Error};

compiled_here! {
    Kernels<E> {
        fn matrix_states(
            problem: &Problem,
            inputs: &Inputs<&[E], &[<E as Element>::Acc], &[bool]>,
            o: &mut [E],
            last: &mut [<E as Element>::Acc],
        ) -> Result<(), Error> = states;
        fn matrix_states_back(
            problem: &Problem,
            inputs: &Inputs<&[E], &[<E as Element>::Acc], &[bool]>,
            d_o: &[E],
            d_last: Option<&[<E as Element>::Acc]>,
            d: Gradients<&mut [E], &mut [<E as Element>::Acc]>,
        ) -> Result<(), Error> = states_back;
    }
}

impl<E, A> Inputs<&[E], &[A], &[bool]> {
    fn lengths(&self) -> Inputs<usize, usize, usize> {
        let len = |x: Option<&[E]>| x.map(<[E]>::len);
        Inputs {
            q: self.q.len(),
            k: self.k.len(),
            v: self.v.len(),
            g: len(self.g),
            beta: len(self.beta),
            erase: len(self.erase),
            write: len(self.write),
            bonus: len(self.bonus),
            initial: self.initial.map(<[A]>::len),
            reset: self.reset.map(<[bool]>::len),
        }
    }
}

impl<E, A> Gradients<&mut [E], &mut [A]> {
    fn lengths(&self) -> Gradients<usize, usize> {
        let len = |x: &Option<&mut [E]>| x.as_ref().map(|x| x.len());
        Gradients {
            q: self.q.len(),
            k: self.k.len(),
            v: self.v.len(),
            g: len(&self.g),
            beta: len(&self.beta),
            erase: len(&self.erase),
            write: len(&self.write),
            bonus: len(&self.bonus),
            initial: self.initial.len(),
        }
    }
}
