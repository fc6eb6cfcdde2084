//! One member of the ensemble, and the part of its units that a thread has.

use std::ops::Range;

use super::aligned::AlignedRows;
use super::product::{
    AddProduct, AddSignal, Blend, Dot, Entropy, Exponentials, Gates, Largest, PADDING,
};
use crate::rollout::{
    Arguments, CLAMP, DELTAS, Decode, LEAST_LOSS, LEAST_PROBABILITY, LINEAR_ENTROPY, Problem,
};
use crate::simd::level::Level;

/// The data that all threads of a member read.
pub(super) struct Member<'a> {
    problem: &'a Problem,
    arguments: Arguments<'a, f32>,
    level: Level,
    u: &'a [f32],
    h0: &'a [f32],
    /// `[3H]`: the bias and the product of the features that stay.
    base: Vec<f32>,
    /// `[3H]`: the weights of the feature that carries the loss.
    first: Vec<f32>,
    /// `[S]`: where in the state the logits are.
    logits: Vec<usize>,
}

impl<'a> Member<'a> {
    pub(super) fn new(
        problem: &'a Problem,
        arguments: Arguments<'a, f32>,
        m: usize,
        level: Level,
    ) -> Self {
        let [w, u, bias, h0] = arguments.member(problem, m);
        let mut features = arguments.features.to_vec();
        features[0] = 0.0;
        let mut base = bias.to_vec();
        level.dispatch(AddProduct {
            a: w,
            x: &features,
            out: &mut base,
        });
        let first = w.iter().step_by(problem.features).copied().collect();
        Self {
            problem,
            arguments,
            level,
            u,
            h0,
            base,
            first,
            logits: (0..problem.stochastic).map(|i| problem.logit(i)).collect(),
        }
    }

    /// The rows of a gate that belong to some units.
    pub(super) fn rows(&self, gate: usize, units: &Range<usize>) -> &'a [f32] {
        let h = self.problem.hidden;
        &self.u[(gate * h + units.start) * h..(gate * h + units.end) * h]
    }
}

/// The results of a member.
pub(super) struct Finished {
    pub trajectory: Vec<f32>,
    pub state: Vec<f32>,
    pub entropy: f32,
    pub norm: Vec<f32>,
    pub delta: Vec<f32>,
}

/// A thread's units of a member, and its copy of what all need.
pub(super) struct Part {
    units: Range<usize>,
    hidden: usize,
    /// A copy of the recurrent weights of its units, where that is worth its time.
    aligned: Option<AlignedRows>,
    /// The whole state, padded.
    h: Vec<f32>,
    /// `r ∘ h`, whole.
    rh: Vec<f32>,
    /// State of the thread's own units, padded.
    own_h: Vec<f32>,
    own_rh: Vec<f32>,
    z: Vec<f32>,
    keep: Vec<f32>,
    pre: Vec<f32>,
    /// Probabilities.
    p: Vec<f32>,
    logits: Vec<f32>,
    loss: f32,
    entropy: f32,
    trajectory: Vec<f32>,
    norm: Vec<f32>,
}

impl Part {
    pub(super) fn new(member: &Member<'_>, units: Range<usize>) -> Self {
        let p = member.problem;
        let own = vec![0.0; units.len().next_multiple_of(PADDING)];
        let mut own_h = own.clone();
        own_h[..units.len()].copy_from_slice(&member.h0[units.clone()]);
        let loss = member.arguments.loss[0];
        let mut trajectory = Vec::with_capacity(p.steps + 1);
        trajectory.push(loss);
        let gates = [0, 1, 2].map(|gate| member.rows(gate, &units));
        Self {
            hidden: p.hidden,
            aligned: AlignedRows::new(gates, p.hidden, p.steps),
            h: member.h0.to_vec(),
            rh: vec![0.0; p.hidden],
            own_h,
            own_rh: own.clone(),
            z: own.clone(),
            keep: own.clone(),
            pre: own,
            p: vec![0.0; p.stochastic],
            logits: vec![0.0; p.stochastic],
            // The first step sees the features as they are given.
            loss: member.arguments.features[0],
            entropy: 0.0,
            trajectory,
            norm: Vec::with_capacity(p.steps),
            units,
        }
    }

    pub(super) fn units(&self) -> &Range<usize> {
        &self.units
    }

    pub(super) fn h_mut(&mut self) -> &mut [f32] {
        &mut self.h
    }

    pub(super) fn rh_mut(&mut self) -> &mut [f32] {
        &mut self.rh
    }

    pub(super) fn own_h(&self) -> &[f32] {
        &self.own_h[..self.units.len()]
    }

    pub(super) fn own_rh(&self) -> &[f32] {
        &self.own_rh[..self.units.len()]
    }

    fn whole(&self) -> bool {
        self.units.len() == self.hidden
    }

    /// The rows of a gate that belong to its units, times `x`, and what the features add.
    fn gate(&self, member: &Member<'_>, gate: usize, x: &[f32], out: &mut [f32]) {
        let first = gate * self.hidden;
        let rows = first + self.units.start..first + self.units.end;
        let out = &mut out[..self.units.len()];
        member.level.dispatch(AddSignal {
            base: &member.base[rows.clone()],
            first: &member.first[rows],
            signal: self.loss,
            out: &mut *out,
        });
        let a = match &self.aligned {
            Some(aligned) => aligned.gate(gate),
            None => member.rows(gate, &self.units),
        };
        member.level.dispatch(AddProduct { a, x, out });
    }

    /// The first half of a step: `z` and `r ∘ h` of its own units.
    pub(super) fn gates(&mut self, member: &Member<'_>) {
        let [mut z, mut r] = [&mut self.z, &mut self.pre].map(std::mem::take);
        self.gate(member, 0, &self.h, &mut z);
        self.gate(member, 1, &self.h, &mut r);
        (self.z, self.pre) = (z, r);
        member.level.dispatch(Gates {
            z: &mut self.z,
            keep: &mut self.keep,
            r: &self.pre,
            h: &self.own_h,
            rh: &mut self.own_rh,
        });
        if self.whole() {
            self.rh.copy_from_slice(&self.own_rh[..self.hidden]);
        }
    }

    /// The second half: the candidate and the new state of its own units.
    pub(super) fn candidate(&mut self, member: &Member<'_>) {
        let mut c = std::mem::take(&mut self.pre);
        self.gate(member, 2, &self.rh, &mut c);
        self.pre = c;
        member.level.dispatch(Blend {
            z: &self.z,
            keep: &self.keep,
            c: &self.pre,
            h: &mut self.own_h,
        });
        if self.whole() {
            self.h.copy_from_slice(&self.own_h[..self.hidden]);
        }
    }

    /// The classes' probabilities; returns the entropy.
    fn classes(&mut self, member: &Member<'_>) -> f32 {
        let problem = member.problem;
        if problem.decode == Decode::Linear {
            self.p.copy_from_slice(&self.h);
            return LINEAR_ENTROPY as f32;
        }
        for (s, place) in self.logits.iter_mut().zip(&member.logits) {
            *s = self.h[*place];
        }
        let most = member.level.dispatch(Largest(&self.logits));
        let sum = member.level.dispatch(Exponentials {
            s: &self.logits,
            most,
            e: &mut self.p,
        });
        member.level.dispatch(Entropy {
            e: &mut self.p,
            s: &self.logits,
            most,
            inverse: sum.recip(),
            log: sum.ln(),
            least: (LEAST_PROBABILITY as f32).next_up(),
        })
    }

    /// The outputs of a step: the predicted loss, the entropy and the norm.
    pub(super) fn decode(&mut self, member: &Member<'_>) {
        if self.trajectory.len() > member.problem.steps {
            return;
        }
        self.entropy += self.classes(member);
        let (head, _) = member.arguments.heads(member.problem);
        let dot = |a: &[f32], b: &[f32]| member.level.dispatch(Dot { a, b });
        let y = dot(&head[..self.hidden], &self.h) + dot(&head[self.hidden..], &self.p);
        self.loss = match member.problem.decode {
            Decode::Linear => y,
            Decode::LogLoss => {
                // `clamp` and comparisons keep a NaN; `max` would not.
                let loss = y.clamp(-CLAMP as f32, CLAMP as f32).exp();
                if loss < LEAST_LOSS as f32 {
                    LEAST_LOSS as f32
                } else {
                    loss
                }
            }
        };
        self.norm.push(dot(&self.h, &self.h).sqrt());
        self.trajectory.push(self.loss);
    }

    /// The results, after the last step.
    pub(super) fn finish(&mut self, member: &Member<'_>) -> Finished {
        self.classes(member);
        let mut state = self.h.clone();
        state.extend(&self.p);
        let mut delta = vec![0.0; DELTAS];
        member.level.dispatch(AddProduct {
            a: member.arguments.heads(member.problem).1,
            x: &state,
            out: &mut delta,
        });
        Finished {
            trajectory: std::mem::take(&mut self.trajectory),
            state,
            entropy: self.entropy,
            norm: std::mem::take(&mut self.norm),
            delta,
        }
    }
}
