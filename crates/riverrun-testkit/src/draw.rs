//! Draws of symbols: exactly those of the definition. Uniform numbers are in the middle of what draws a symbol, so that no rounding
//! draws another.

use riverrun_kernels::draw::{Rule, cpu};

use crate::{
    Case, CpuElement, Element, Error, Failure, Operation, Part, Random, Report, Storage, Tensors,
    by_storage,
};

/// The entry in the table.
pub const OPERATION: Operation = Operation {
    name: "draw",
    about: "draws of symbols from logits",
    storages: &[Storage::F32, Storage::F16, Storage::Bf16],
    forms: |_| vec!["draw"],
    check: |part, report| by_storage!(part.storage, check(part, report)),
    weight: 1,
    shared: None,
    long: None,
};

fn check<E: CpuElement>(part: &Part<'_>, report: &mut dyn Report) -> Result<(), Failure> {
    // Rows, symbols, numbers beside them; temperature; symbols that are kept.
    let problems = [
        ([1, 65, 0], 0.8, None),
        ([3, 65, 7], 1.0, Some(5)),
        ([2, 1, 0], 1.0, None),
        ([2, 300, 1], 0.0, Some(3)),
        ([4, 257, 0], 2.0, Some(300)),
        ([2, 5000, 3], 1.5, None),
        ([2, 10_000, 0], 0.7, Some(40)),
        ([1, 10_000, 0], 0.0, None),
    ];
    let cases = problems
        .into_iter()
        .enumerate()
        .map(|(n, (sizes, temperature, top_k))| {
            Draw::random(sizes, Rule { temperature, top_k }, n as u64)
        });
    part.run_all::<E, _>("draw", cases, report)
}

/// Draws that the log has room for.
const SLOTS: usize = 3;

/// What the log has where nothing is written.
const BEFORE: f64 = 7.0;

/// Rows of logits, after some draws.
#[derive(Debug, Clone)]
pub struct Draw {
    symbols: usize,
    rule: Rule,
    /// `[rows, stride]`.
    logits: Vec<f64>,
    /// The draws of each row before.
    counts: Vec<usize>,
    /// Which of the symbols that may be drawn is, of 1.
    picks: Vec<f64>,
}

impl Draw {
    /// Random logits; from 257 symbols on, the last of several rows has some that are not finite.
    pub fn random([rows, symbols, beside]: [usize; 3], rule: Rule, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut logits = random.vec(rows * (symbols + beside), 8.0);
        if rows > 1 && symbols > 256 {
            let last = logits.len() - symbols - beside;
            logits[last + 200] = f64::INFINITY;
            logits[last + 250] = f64::NAN;
        }
        Self {
            symbols,
            rule,
            logits,
            counts: (0..rows).map(|row| 2 * row + 1).collect(),
            picks: random.vec(rows, 1.0).into_iter().map(f64::abs).collect(),
        }
    }

    fn rows(&self) -> impl Iterator<Item = &[f64]> {
        let stride = self.logits.len() / self.counts.len();
        let rows = self.logits.chunks_exact(stride);
        rows.map(|row| &row[..self.symbols])
    }

    /// The draw of a row of finite logits, and a uniform number that makes it.
    fn drawn(&self, logits: &[f64], pick: f64) -> (usize, f32) {
        let largest = logits.iter().copied().fold(f64::MIN, f64::max);
        let place = |x: f64| logits.iter().position(|&logit| logit == x);
        if self.rule.temperature == 0.0 {
            return (place(largest).expect("one of them"), 0.5);
        }
        let mut order = logits.to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        let least = order[self.rule.top_k.unwrap_or(usize::MAX).min(order.len()) - 1];
        let weight = |&logit: &f64| match logit >= least {
            true => ((logit - largest) / self.rule.temperature).exp(),
            false => 0.0,
        };
        let weights: Vec<f64> = logits.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let likely: Vec<usize> = (0..weights.len())
            .filter(|&i| weights[i] > 1e-5 * total)
            .collect();
        let drawn = likely[((pick * likely.len() as f64) as usize).min(likely.len() - 1)];
        let before: f64 = weights[..drawn].iter().sum();
        (drawn, ((before + 0.5 * weights[drawn]) / total) as f32)
    }

    /// The draw of each row, or the first symbol whose logit is not finite, with the uniform numbers.
    fn all(&self) -> Vec<(Result<usize, usize>, f32)> {
        let rows = self.rows().zip(&self.picks);
        rows.map(
            |(logits, &pick)| match logits.iter().position(|logit| !logit.is_finite()) {
                Some(symbol) => (Err(symbol), 0.5),
                None => {
                    let (drawn, uniform) = self.drawn(logits, pick);
                    (Ok(drawn), uniform)
                }
            },
        )
        .collect()
    }

    /// What is in memory after these draws.
    fn tensors(&self, drawn: impl IntoIterator<Item = Result<usize, usize>>) -> Tensors {
        let rows = self.counts.len();
        let (mut tokens, mut log) = (Vec::new(), vec![BEFORE; SLOTS * rows]);
        for (row, drawn) in drawn.into_iter().enumerate() {
            log[self.counts[row] % SLOTS * rows + row] = match drawn {
                Ok(token) => token as f64,
                Err(symbol) => -1.0 - symbol as f64,
            };
            tokens.push(drawn.unwrap_or(0) as f64);
        }
        let counts = self
            .counts
            .iter()
            .map(|&count| count as f64 + 1.0)
            .collect();
        Tensors::new([
            ("tokens", tokens),
            ("log", log),
            ("counts", counts),
            ("position", vec![BEFORE + 1.0]),
        ])
    }
}

impl Case for Draw {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.logits]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        self.tensors(self.all().into_iter().map(|(drawn, _)| drawn))
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        truth.map(|_, _, _| 0.0)
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, Error> {
        let rows = self.rows().zip(self.all());
        let drawn = rows.map(|(logits, (_, uniform))| {
            let logits: Vec<f32> = logits.iter().map(|&logit| logit as f32).collect();
            cpu::draw(&logits, &self.rule, f64::from(uniform))
        });
        Ok(self.tensors(drawn))
    }

    #[cfg(feature = "gpu")]
    fn gpu(
        &self,
        client: &cubecl::client::Client,
        dtype: riverrun_kernels::gpu::Dtype,
    ) -> Result<Tensors, Error> {
        use cubecl::ir::{ElemType, IntKind};
        use riverrun_kernels::draw::gpu::{Buffers, Problem, run};

        use crate::transfer::upload;
        let rows = self.counts.len();
        let integers = |numbers: Vec<i32>| client.create_from_slice(bytemuck::cast_slice(&numbers));
        let mut uniforms = vec![f32::NAN; SLOTS * rows];
        for (row, (_, uniform)) in self.all().into_iter().enumerate() {
            uniforms[self.counts[row] % SLOTS * rows + row] = uniform;
        }
        let buffers = Buffers {
            logits: upload(client, dtype, &self.logits),
            uniforms: client.create_from_slice(bytemuck::cast_slice(&uniforms)),
            index: ElemType::Int(IntKind::I32),
            tokens: integers(vec![BEFORE as i32; rows]),
            log: integers(vec![BEFORE as i32; SLOTS * rows]),
            counts: integers(self.counts.iter().map(|&count| count as i32).collect()),
            position: integers(vec![BEFORE as i32]),
        };
        let problem = Problem {
            rows,
            symbols: self.symbols,
            stride: self.logits.len() / rows,
            slots: SLOTS,
            rule: self.rule,
        };
        run(client, &problem, dtype, &buffers)?;
        let read = |handle| {
            let bytes = client.read_one(handle).expect("a buffer");
            let numbers = bytemuck::cast_slice::<u8, i32>(&bytes);
            numbers.iter().copied().map(f64::from).collect()
        };
        Ok(Tensors::new([
            ("tokens", read(buffers.tokens)),
            ("log", read(buffers.log)),
            ("counts", read(buffers.counts)),
            ("position", read(buffers.position)),
        ]))
    }
}
