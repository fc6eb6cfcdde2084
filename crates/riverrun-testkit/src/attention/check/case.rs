//! A problem with its data.

#[cfg(feature = "gpu")]
use cubecl::client::Client;

#[cfg(feature = "gpu")]
use crate::attention::gpu;
#[cfg(all(feature = "cuda", unix))]
use crate::attention::vendor;
use crate::attention::{Problem, Shape, cpu, oracle};
use crate::check::{Random, stored, wide};
#[cfg(feature = "gpu")]
use crate::gpu::Dtype;
#[cfg(feature = "gpu")]
use crate::transfer::{download, poison, upload};
use crate::{CpuElement, Element, Tensors};

/// The options of a case.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Keys after a query are hidden.
    pub causal: bool,
    /// The window.
    pub window: Option<usize>,
    /// The cap.
    pub softcap: Option<f64>,
    /// Whether there are marks.
    pub reset: bool,
}

impl Options {
    /// One of sixteen, by its number; later ones start over. The window is a third of the keys.
    pub fn nth(n: usize, keys: usize) -> Self {
        Self {
            causal: n & 1 != 0,
            window: (n & 2 != 0).then_some(keys / 3 + 1),
            reset: n & 4 != 0,
            softcap: (n & 8 != 0).then_some(2.0),
        }
    }
}

/// A problem and its data, in `f64`.
#[derive(Debug, Clone)]
pub struct Case {
    /// The problem.
    pub problem: Problem,
    /// `[B, T, H, D]`.
    pub q: Vec<f64>,
    /// `[B, S, Hk, D]`.
    pub k: Vec<f64>,
    /// `[B, S, Hk, D]`.
    pub v: Vec<f64>,
    /// `[B, S]`.
    pub reset: Option<Vec<bool>>,
    /// `[B, T, H, D]`.
    pub d_o: Vec<f64>,
}

/// By name: `o`, `[B, T, H, D]`; `lse`, `[B, H, T]`; `d_q`, `[B, T, H, D]`; `d_k` and `d_v`, `[B, S, Hk, D]`.
///
/// A query that sees no key has the least number as `lse`: -∞ has no distance from itself.
fn named([o, lse, d_q, d_k, d_v]: [Vec<f64>; 5]) -> Tensors {
    let lse = lse.into_iter().map(|x| match x {
        f64::NEG_INFINITY => f64::MIN,
        x => x,
    });
    let lse = lse.collect();
    let names = ["o", "lse", "d_q", "d_k", "d_v"];
    Tensors::new(names.into_iter().zip([o, lse, d_q, d_k, d_v]))
}

impl Case {
    /// Random numbers, some of them 0 and some far out; marks at about every ninth position.
    pub fn random(shape: Shape, options: Options, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut some = |n: usize| -> Vec<f64> {
            let spike = |i: usize| match i % 41 {
                5 => 0.0,
                17 => 4.0,
                _ => 1.0,
            };
            (0..n).map(|i| spike(i) * random.within(1.5)).collect()
        };
        let problem = Problem {
            causal: options.causal,
            window: options.window,
            softcap: options.softcap,
            ..Problem::new(shape)
        };
        let (q, d_o) = (some(shape.query_elements()), some(shape.query_elements()));
        let (k, v) = (some(shape.key_elements()), some(shape.key_elements()));
        let marks = |_| random.below(9) == 0;
        Self {
            problem,
            q,
            k,
            v,
            reset: options
                .reset
                .then(|| (0..shape.marks()).map(marks).collect()),
            d_o,
        }
    }

    /// [`random`](Self::random) with queries and keys `factor` times as large: with a large one, most queries have all their weight
    /// on one key.
    pub fn sharp(shape: Shape, options: Options, factor: f64, seed: u64) -> Self {
        let mut case = Self::random(shape, options, seed);
        let numbers = case.q.iter_mut().chain(&mut case.k);
        numbers.for_each(|x| *x *= factor);
        case
    }

    /// The same with every number rounded to a storage type.
    pub fn rounded<E: Element>(&self) -> Self {
        crate::Case::rounded::<E>(self.clone())
    }

    /// By the reference.
    pub fn oracle(&self) -> Tensors {
        let inputs = [&self.q[..], &self.k, &self.v];
        let reset = self.reset.as_deref();
        let [q, k, v] = inputs;
        let output = oracle::forward(&self.problem, q, k, v, reset);
        let d = oracle::backward(&self.problem, inputs, reset, &output, &self.d_o);
        named([output.o, output.lse, d.q, d.k, d.v])
    }

    /// By the CPU kernels, with every output filled with NaN beforehand.
    ///
    /// # Errors
    /// The errors of the kernels.
    pub fn cpu<E: cpu::Kernels<E>>(&self) -> Result<Tensors, crate::Error> {
        use riverrun_kernels::Real;
        let shape = self.problem.shape;
        let poison = |n: usize| vec![E::from_f64(f64::NAN); n];
        let (queries, keys) = (shape.query_elements(), shape.key_elements());
        let (q, d_o) = (stored::<E>(&self.q), stored::<E>(&self.d_o));
        let (k, v) = (stored::<E>(&self.k), stored::<E>(&self.v));
        let reset = self.reset.as_deref();
        let (mut o, mut lse) = (
            poison(queries),
            vec![E::Acc::from_f64(f64::NAN); shape.rows()],
        );
        let args = cpu::Forward {
            q: &q,
            k: &k,
            v: &v,
            reset,
            o: &mut o,
            lse: &mut lse,
        };
        cpu::forward(&self.problem, args)?;
        let (mut d_q, mut d_k, mut d_v) = (poison(queries), poison(keys), poison(keys));
        let args = cpu::Backward {
            q: &q,
            k: &k,
            v: &v,
            reset,
            o: &o,
            lse: &lse,
            d_o: &d_o,
            d_q: &mut d_q,
            d_k: &mut d_k,
            d_v: &mut d_v,
        };
        cpu::backward(&self.problem, args)?;
        let lse = lse.iter().map(|x| x.to_f64()).collect();
        Ok(named([wide(&o), lse, wide(&d_q), wide(&d_k), wide(&d_v)]))
    }

    /// By the GPU kernels, with every output filled with NaN beforehand.
    ///
    /// # Errors
    /// The errors of the kernels.
    #[cfg(feature = "gpu")]
    pub fn gpu(
        &self,
        client: &Client,
        dtype: Dtype,
        tuning: Option<gpu::Tuning>,
    ) -> Result<Tensors, crate::Error> {
        let problem = &self.problem;
        self.on_gpu(
            client,
            dtype,
            |args| gpu::forward(client, problem, dtype, args, tuning),
            |args| gpu::backward(client, problem, dtype, args, tuning),
        )
    }

    /// By cuDNN, likewise, with sums of its own choice or these, from inputs in one tensor or in several.
    ///
    /// # Errors
    /// The reason why the library is missing or does not take the problem.
    #[cfg(all(feature = "cuda", unix))]
    pub fn vendor(
        &self,
        client: &Client,
        dtype: Dtype,
        sums: Option<vendor::Sums>,
        layout: vendor::Layout,
    ) -> Result<Tensors, String> {
        let vendor = vendor::Vendor::of(client)?;
        let problem = &self.problem;
        let forward = |args: &_| vendor.forward(client, problem, dtype, args, layout);
        let backward = |args: &_| vendor.backward(client, problem, dtype, args, sums, layout);
        if layout == vendor::Layout::Separate {
            return self.on_gpu(client, dtype, forward, backward);
        }
        let shape = problem.shape;
        let row = shape.packed_heads() * shape.dim;
        let elements = shape.marks() * row;
        let qkv = upload(client, dtype, &self.packed());
        let d_qkv = poison(client, dtype, elements);
        let parts = |qkv| vendor::packed_parts(qkv, shape, dtype);
        let ([q, k, v], [d_q, d_k, d_v]) = (parts(&qkv), parts(&d_qkv));
        let forward_packed = |args: &gpu::Forward| {
            forward(&gpu::Forward {
                q: q.clone(),
                k: k.clone(),
                v: v.clone(),
                ..args.clone()
            })
        };
        let backward_packed = |args: &gpu::Backward| {
            backward(&gpu::Backward {
                q: q.clone(),
                k: k.clone(),
                v: v.clone(),
                d_q: d_q.clone(),
                d_k: d_k.clone(),
                d_v: d_v.clone(),
                ..args.clone()
            })
        };
        let outcome = self.on_gpu(client, dtype, forward_packed, backward_packed)?;
        let d_qkv = download(client, dtype, d_qkv, elements);
        let (keys, dim) = (shape.key_heads, shape.dim);
        let part = |first: usize, heads: usize| -> Vec<f64> {
            let rows = d_qkv.chunks(row);
            rows.flat_map(|row| row[first * dim..][..heads * dim].iter().copied())
                .collect()
        };
        let [o, lse] = ["o", "lse"].map(|name| outcome.get(name).to_vec());
        let [d_q, d_k, d_v] = [
            part(0, shape.heads),
            part(shape.heads, keys),
            part(shape.heads + keys, keys),
        ];
        Ok(named([o, lse, d_q, d_k, d_v]))
    }

    /// Queries, keys and values of each step beside each other.
    #[cfg(all(feature = "cuda", unix))]
    fn packed(&self) -> Vec<f64> {
        let shape = self.problem.shape;
        let rows = |x: &[f64], heads: usize| -> Vec<Vec<f64>> {
            x.chunks(heads * shape.dim).map(<[f64]>::to_vec).collect()
        };
        let keys = shape.key_heads;
        let (q, k, v) = (
            rows(&self.q, shape.heads),
            rows(&self.k, keys),
            rows(&self.v, keys),
        );
        let rows = q.into_iter().zip(k).zip(v);
        rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
    }

    #[cfg(feature = "gpu")]
    fn on_gpu<F>(
        &self,
        client: &Client,
        dtype: Dtype,
        forward: impl Fn(&gpu::Forward) -> Result<(), F>,
        backward: impl Fn(&gpu::Backward) -> Result<(), F>,
    ) -> Result<Tensors, F> {
        let shape = self.problem.shape;
        let (queries, keys) = (shape.query_elements(), shape.key_elements());
        let up = |data: &[f64]| upload(client, dtype, data);
        let blank = |elements: usize| poison(client, dtype, elements);
        let down = |handle, elements: usize| download(client, dtype, handle, elements);
        let reset = self.reset.as_ref().map(|reset| up(&crate::marks(reset)));
        let (q, k, v) = (up(&self.q), up(&self.k), up(&self.v));
        let (o, lse) = (blank(queries), poison(client, Dtype::F32, shape.rows()));
        forward(&gpu::Forward {
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
            reset: reset.clone(),
            o: o.clone(),
            lse: lse.clone(),
        })?;
        let (d_q, d_k, d_v) = (blank(queries), blank(keys), blank(keys));
        backward(&gpu::Backward {
            q,
            k,
            v,
            reset,
            o: o.clone(),
            lse: lse.clone(),
            d_o: up(&self.d_o),
            d_q: d_q.clone(),
            d_k: d_k.clone(),
            d_v: d_v.clone(),
        })?;
        Ok(named([
            down(o, queries),
            download(client, Dtype::F32, lse, shape.rows()),
            down(d_q, queries),
            down(d_k, keys),
            down(d_v, keys),
        ]))
    }
}

impl crate::Case for Case {
    fn numbers(&mut self) -> Vec<&mut Vec<f64>> {
        vec![&mut self.q, &mut self.k, &mut self.v, &mut self.d_o]
    }

    fn oracle<E: Element>(&self) -> Tensors {
        Case::oracle(self)
    }

    fn allowed<E: Element>(&self, truth: &Tensors) -> Tensors {
        self.limits::<E>(truth)
    }

    fn cpu<E: CpuElement>(&self) -> Result<Tensors, crate::Error> {
        Case::cpu::<E>(self)
    }

    #[cfg(feature = "gpu")]
    fn gpu(&self, client: &Client, dtype: Dtype) -> Result<Tensors, crate::Error> {
        Case::gpu(self, client, dtype, None)
    }
}
