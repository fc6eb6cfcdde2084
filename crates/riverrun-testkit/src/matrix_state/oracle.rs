//! The reference: the recurrence and its gradients in `f64`, a head at a time from the formulas, with all states kept.

use riverrun_kernels::matrix_state::{Erase, Gate, Gradients, Problem};

use super::Data;
use super::number::{Matrix, Number, add_to, dot, minus, numbers, product, scaled};

/// A result: outputs and gradients.
pub struct Outcome {
    /// `[B, T, H, V]`.
    pub o: Vec<Number>,
    /// `[B, H, K, V]`.
    pub last: Vec<Number>,
    /// The gradients of the inputs.
    pub d: Gradients<Vec<Number>, Vec<Number>>,
}

/// What a step reads and makes.
struct Step {
    q: Vec<Number>,
    k: Vec<Number>,
    v: Vec<Number>,
    alpha: Vec<Number>,
    beta: Number,
    /// What `read` is read by: `k`, or an input.
    erase: Vec<Number>,
    write: Vec<Number>,
    bonus: Vec<Number>,
    reset: bool,
    before: Matrix,
    decayed: Matrix,
    after: Matrix,
    read: Vec<Number>,
    u: Vec<Number>,
}

/// The places of a step among the rows of `[B, T, H, ..]`, of `[B, T, J, ..]` and of `[H, ..]`.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    key_row: usize,
    head: usize,
}

/// The outputs, and the gradients of a loss from those of `o` and of the last state.
pub fn run(problem: &Problem, inputs: &Data, d_o: &[f64], d_last: Option<&[f64]>) -> Outcome {
    let shape = problem.shape;
    let (value, size) = (shape.value, shape.key * shape.value);
    let lengths = problem.lengths();
    let zeros = |n: usize| vec![Number::default(); n];
    let mut found = Outcome {
        o: zeros(lengths.v),
        last: zeros(shape.state()),
        d: Gradients {
            q: zeros(lengths.q),
            k: zeros(lengths.k),
            v: zeros(lengths.v),
            g: lengths.g.map(zeros),
            beta: lengths.beta.map(zeros),
            erase: lengths.erase.map(zeros),
            write: lengths.write.map(zeros),
            bonus: lengths.bonus.map(zeros),
            initial: zeros(shape.state()),
        },
    };
    let of_head = |states: Option<&[f64]>, index: usize| {
        let mut state = Matrix::zeros(shape.key, value);
        if let Some(states) = states {
            state.x = numbers(&states[index * size..][..size]);
        }
        state
    };
    for index in 0..shape.states() {
        let (sequence, head) = (index / shape.heads, index % shape.heads);
        let place = |t: usize| {
            let step = sequence * shape.steps + t;
            Place {
                row: step * shape.heads + head,
                key_row: step * shape.key_heads + head / shape.group(),
                head,
            }
        };
        let mut state = of_head(inputs.initial.as_deref(), index);
        let mut steps = Vec::new();
        for t in 0..shape.steps {
            let step = forward(problem, inputs, place(t), state.levelled());
            let o = &mut found.o[place(t).row * value..][..value];
            if problem.bonus {
                add_to(o, &step.before.transposed_times(&step.q));
                let factor = dot(&product(&step.q, &step.k), &step.bonus);
                add_to(o, &scaled(&step.v, factor));
            } else {
                add_to(o, &step.after.transposed_times(&step.q));
            }
            state = step.after.clone();
            steps.push(step);
        }
        found.last[index * size..][..size].copy_from_slice(&state.x);

        let mut later = of_head(d_last, index);
        for (t, step) in steps.iter().enumerate().rev() {
            let d_o = numbers(&d_o[place(t).row * value..][..value]);
            let d_after = later.levelled();
            later = backward(problem, step, &d_o, d_after, &mut found.d, place(t));
        }
        found.d.initial[index * size..][..size].copy_from_slice(&later.x);
    }
    found
}

fn forward(problem: &Problem, inputs: &Data, place: Place, state: Matrix) -> Step {
    let (key, value) = (problem.shape.key, problem.shape.value);
    let row = |x: &[f64], row: usize, len: usize| numbers(&x[row * len..][..len]);
    let own = |x: &Option<Vec<f64>>, at: usize| x.as_ref().map_or(vec![], |x| row(x, at, key));
    let k = row(&inputs.k, place.key_row, key);
    let v = row(&inputs.v, place.row, value);
    let g = match (problem.gate, &inputs.g) {
        (Gate::Head, Some(g)) => vec![g[place.row]; key],
        (Gate::Row, Some(g)) => g[place.row * key..][..key].to_vec(),
        _ => vec![0.0; key],
    };
    let alpha: Vec<Number> = g.iter().map(|g| g.exp().into()).collect();
    let reset = inputs.reset.as_ref();
    let reset = reset.is_some_and(|reset| reset[place.row / problem.shape.heads]);
    let before = match reset {
        true => Matrix::zeros(key, value),
        false => state,
    };
    let decayed = before.scaled(&alpha);
    let erase = match problem.erase {
        Erase::Key => k.clone(),
        _ => own(&inputs.erase, place.row),
    };
    let read = match problem.erase {
        Erase::None => vec![Number::default(); value],
        Erase::Key | Erase::Free => decayed.transposed_times(&erase),
        Erase::Separate => before.transposed_times(&erase),
    };
    let beta = inputs.beta.as_ref().map_or(1.0, |beta| beta[place.row]);
    let beta = Number::from(beta);
    let u = match problem.erase {
        Erase::None | Erase::Separate => v.clone(),
        Erase::Key | Erase::Free => scaled(&rest(&v, &read), beta),
    };
    let write = own(&inputs.write, place.row);
    let mut after = decayed.clone().plus_outer(&k, &u);
    if problem.erase == Erase::Separate {
        after = after.plus_outer(&write, &read);
    }
    Step {
        q: row(&inputs.q, place.key_row, key),
        k,
        v,
        alpha,
        beta,
        erase,
        write,
        bonus: own(&inputs.bonus, place.head),
        reset,
        before,
        decayed,
        after,
        read,
        u,
    }
}

/// `v - read`.
fn rest(v: &[Number], read: &[Number]) -> Vec<Number> {
    v.iter().zip(read).map(|(v, read)| *v + -*read).collect()
}

/// From the gradient of the state after a step to that of the state before it.
fn backward(
    problem: &Problem,
    step: &Step,
    d_o: &[Number],
    mut d_after: Matrix,
    d: &mut Gradients<Vec<Number>, Vec<Number>>,
    place: Place,
) -> Matrix {
    let Step { q, k, v, .. } = step;
    let add = |to: &mut [Number], at: usize, x: &[Number]| {
        add_to(&mut to[at * x.len()..][..x.len()], x);
    };
    let add_some = |to: &mut Option<Vec<Number>>, at: usize, x: &[Number]| {
        add(to.as_mut().expect("a gradient of an input"), at, x);
    };
    let Place { row, key_row, head } = place;
    let mut d_before = Matrix::zeros(problem.shape.key, problem.shape.value);
    if problem.bonus {
        let factor = dot(&product(q, k), &step.bonus);
        let d_factor = dot(d_o, v);
        let of = |x: &[Number], y: &[Number]| scaled(&product(x, y), d_factor);
        add(&mut d.q, key_row, &step.before.times(d_o));
        add(&mut d.q, key_row, &of(k, &step.bonus));
        add(&mut d.k, key_row, &of(q, &step.bonus));
        add(&mut d.v, row, &scaled(d_o, factor));
        add_some(&mut d.bonus, head, &of(q, k));
        d_before = d_before.plus_outer(q, d_o);
    } else {
        add(&mut d.q, key_row, &step.after.times(d_o));
        d_after = d_after.plus_outer(q, d_o);
    }
    let d_u = d_after.transposed_times(k);
    let d_rest = scaled(&d_u, step.beta);
    add(&mut d.k, key_row, &d_after.times(&step.u));
    add(&mut d.v, row, &d_rest);
    let mut d_decayed = d_after.clone();
    match problem.erase {
        Erase::None => {}
        Erase::Key | Erase::Free => {
            d_decayed = d_decayed.plus_outer(&step.erase, &minus(&d_rest));
            let d_erase = minus(&step.decayed.times(&d_rest));
            if problem.erase == Erase::Free {
                add_some(&mut d.erase, row, &d_erase);
            } else {
                add(&mut d.k, key_row, &d_erase);
                add_some(&mut d.beta, row, &[dot(&d_u, &rest(v, &step.read))]);
            }
        }
        Erase::Separate => {
            let d_read = d_after.transposed_times(&step.write);
            add_some(&mut d.write, row, &d_after.times(&step.read));
            add_some(&mut d.erase, row, &step.before.times(&d_read));
            d_before = d_before.plus_outer(&step.erase, &d_read);
        }
    }
    let rows = d_decayed.rows().zip(step.decayed.rows());
    let d_g: Vec<Number> = rows.map(|(d, decayed)| dot(d, decayed)).collect();
    match problem.gate {
        Gate::None => {}
        Gate::Head => d_g.iter().for_each(|x| add_some(&mut d.g, row, &[*x])),
        Gate::Row => add_some(&mut d.g, row, &d_g),
    }
    add_to(&mut d_before.x, &d_decayed.scaled(&step.alpha).x);
    match step.reset {
        true => Matrix::zeros(problem.shape.key, problem.shape.value),
        false => d_before,
    }
}
