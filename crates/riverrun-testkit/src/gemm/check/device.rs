//! Runs a case with the vendor's library, with every output filled with NaN first.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Case;
use crate::Tensors;
use crate::gemm::oracle::{Outputs, transpose};
use crate::gemm::vendor::{Buffers, Problem, Vendor};
use crate::gemm::{Epilogue, Layout, Order};
use crate::gpu::Dtype;
use crate::transfer::{bytes, numbers};

/// How a case's matrices are laid out: the order of each, and elements between its lines beyond their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orders {
    /// The order of `A`.
    pub a: Order,
    /// The order of `B`.
    pub b: Order,
    /// Unused elements, NaN, after every row or column of both.
    pub gap: usize,
}

impl Orders {
    /// Rows contiguous, no gaps.
    pub const ROWS: Self = Self {
        a: Order::Rows,
        b: Order::Rows,
        gap: 0,
    };
}

/// The matrix in this order, its lines `gap` apart, and the layout.
fn store(x: &[f64], [rows, columns]: [usize; 2], order: Order, gap: usize) -> (Vec<f64>, Layout) {
    let (lines, length) = match order {
        Order::Rows => (x.to_vec(), columns),
        Order::Columns => (transpose(x, rows, columns), rows),
    };
    let stride = length + gap;
    let mut stored = Vec::with_capacity(x.len() / length * stride);
    for line in lines.chunks_exact(length) {
        stored.extend_from_slice(line);
        stored.resize(stored.len() + gap, f64::NAN);
    }
    (stored, Layout { order, stride })
}

impl Case {
    /// The problem, for matrices in this layout.
    pub fn problem(&self, dtype: Dtype, orders: Orders) -> Problem {
        let [m, k, n] = self.sizes;
        let layout = |order, rows, columns| Layout {
            order,
            stride: orders.gap
                + match order {
                    Order::Rows => columns,
                    Order::Columns => rows,
                },
        };
        Problem {
            a: layout(orders.a, m, k),
            b: layout(orders.b, k, n),
            arithmetic: self.arithmetic,
            ..Problem::new(self.sizes, dtype, self.epilogue)
        }
    }

    /// Runs the case with the vendor's library.
    ///
    /// # Errors
    /// If the library is absent or has no algorithm for the problem.
    pub fn vendor(&self, client: &Client, dtype: Dtype, orders: Orders) -> Result<Tensors, String> {
        let vendor = Vendor::of(client)?;
        let problem = self.problem(dtype, orders);
        vendor.supports(&problem)?;
        let [m, k, n] = self.sizes;
        let upload = |x: &[f64]| client.create_from_slice(&bytes(dtype, x));
        let poison = |elements: usize| upload(&vec![f64::NAN; elements]);
        let (a, layout_a) = store(&self.a, [m, k], orders.a, orders.gap);
        let (b, layout_b) = store(&self.b, [k, n], orders.b, orders.gap);
        assert_eq!((layout_a, layout_b), (problem.a, problem.b));
        let (d, epilogue) = (poison(m * n), self.epilogue);
        let vector = match (epilogue.vector(m, n), epilogue.writes_vector()) {
            (0, _) => None,
            (elements, true) => Some(poison(elements)),
            (_, false) => Some(upload(&self.bias)),
        };
        let saves = matches!(epilogue, Epilogue::Gelu { .. });
        let other = epilogue.has_pre() || epilogue.reads_matrix();
        let pre = other.then(|| match saves {
            true => poison(m * n),
            false => upload(&self.pre),
        });
        let buffers = Buffers {
            a: upload(&a),
            b: upload(&b),
            d: d.clone(),
            vector: vector.clone(),
            pre: pre.clone(),
        };
        vendor.launch(client, &problem, buffers)?;
        let download = |handle: Handle| {
            let bytes = client.read_one(handle).map_err(|error| error.to_string())?;
            Ok::<_, String>(numbers(dtype, &bytes))
        };
        let outputs = Outputs {
            d: download(d)?,
            pre: pre.filter(|_| saves).map(download).transpose()?,
            sums: vector
                .filter(|_| epilogue.writes_vector())
                .map(download)
                .transpose()?,
        };
        Ok(outputs.named())
    }
}
