//! Matrix products `D = A B`, `A [m, k]`, `B [k, n]`, `D [m, n]`, with epilogues: a bias, GELU, GELU's derivative, sums.
//!
//! Sums are in `f32` (`f64` in the oracle), and `D` is rounded to its storage type once, after the epilogue. [`cpu`] computes
//! them in register tiles. On GPUs this crate has no kernel: `vendor` (feature `cuda`) drives NVIDIA's cuBLASLt, where it is
//! installed, on CubeCL's buffers and stream; elsewhere the products are the backend's.

pub mod cpu;
pub mod quantized;
#[cfg(feature = "cuda")]
pub mod vendor;

/// The order of a stored matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The elements of a row are contiguous.
    Rows,
    /// The elements of a column are contiguous.
    Columns,
}

/// The memory layout of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The order.
    pub order: Order,
    /// Elements from one row (or column, in [`Order::Columns`]) to the next.
    pub stride: usize,
}

impl Layout {
    /// The layout of a `[rows, columns]` view with these strides; `None` if neither dimension is contiguous.
    pub fn of(shape: [usize; 2], strides: [usize; 2]) -> Option<Self> {
        let [rows, columns] = shape;
        let layout = |order, stride| Some(Self { order, stride });
        // The stride of a dimension of one element is meaningless.
        match (strides, rows, columns) {
            (_, _, 1) if strides[0] == 1 || rows == 1 => layout(Order::Columns, rows.max(1)),
            (_, _, 1) if strides[0] > 0 => layout(Order::Rows, strides[0]),
            (_, 1, _) if strides[1] == 1 => layout(Order::Rows, columns),
            (_, 1, _) if strides[1] > 0 => layout(Order::Columns, strides[1]),
            ([stride, 1], _, _) if stride >= columns => layout(Order::Rows, stride),
            ([1, stride], _, _) if stride >= rows => layout(Order::Columns, stride),
            _ => None,
        }
    }

    /// The layout of the transposed matrix.
    pub fn transposed(self) -> Self {
        let order = match self.order {
            Order::Rows => Order::Columns,
            Order::Columns => Order::Rows,
        };
        Self { order, ..self }
    }
}

/// The epilogue of a product, applied before its result is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// `D = A B`.
    Plain,
    /// `D = A B + bias`, `bias [n]`.
    Bias,
    /// `D = gelu(A B + bias)`, GELU in its tanh form.
    Gelu {
        /// Whether there is a bias.
        bias: bool,
        /// Whether `A B + bias [m, n]` is stored too, for the backward pass.
        save: bool,
    },
    /// `D = A B ∘ gelu'(pre)`, `pre [m, n]` as [`Epilogue::Gelu`] saved it.
    GeluBackward {
        /// Whether the sums of the columns of `D`, `[n]`, are stored too.
        sums: bool,
    },
    /// `D = A B + C`, `C [m, n]`.
    Add,
    /// `D = A B`, and the sums of `A` along `k`, `[m]`.
    SumsOfA,
    /// `D = A B`, and the sums of `B` along `k`, `[n]`.
    SumsOfB,
}

impl Epilogue {
    /// Every epilogue.
    pub const ALL: [Self; 11] = [
        Self::Plain,
        Self::Bias,
        Self::Gelu {
            bias: false,
            save: false,
        },
        Self::Gelu {
            bias: true,
            save: false,
        },
        Self::Gelu {
            bias: false,
            save: true,
        },
        Self::Gelu {
            bias: true,
            save: true,
        },
        Self::GeluBackward { sums: false },
        Self::GeluBackward { sums: true },
        Self::Add,
        Self::SumsOfA,
        Self::SumsOfB,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Bias => "bias",
            Self::Gelu {
                bias: false,
                save: false,
            } => "gelu",
            Self::Gelu {
                bias: true,
                save: false,
            } => "bias-gelu",
            Self::Gelu {
                bias: false,
                save: true,
            } => "gelu-save",
            Self::Gelu {
                bias: true,
                save: true,
            } => "bias-gelu-save",
            Self::GeluBackward { sums: false } => "dgelu",
            Self::GeluBackward { sums: true } => "dgelu-sums",
            Self::Add => "add",
            Self::SumsOfA => "sums-of-a",
            Self::SumsOfB => "sums-of-b",
        }
    }

    /// Elements of the vector that is read (a bias) or written (sums); 0 if there is none.
    pub fn vector(self, m: usize, n: usize) -> usize {
        match self {
            Self::Bias
            | Self::Gelu { bias: true, .. }
            | Self::GeluBackward { sums: true }
            | Self::SumsOfB => n,
            Self::SumsOfA => m,
            _ => 0,
        }
    }

    /// Whether the vector is written.
    pub fn writes_vector(self) -> bool {
        matches!(
            self,
            Self::GeluBackward { sums: true } | Self::SumsOfA | Self::SumsOfB
        )
    }

    /// Whether there is the input of GELU, a matrix of the shape of `D`.
    pub fn has_pre(self) -> bool {
        matches!(
            self,
            Self::Gelu { save: true, .. } | Self::GeluBackward { .. }
        )
    }

    /// Whether another matrix of the shape of `D` is read: the input of GELU, or `C`.
    pub fn reads_matrix(self) -> bool {
        matches!(self, Self::GeluBackward { .. } | Self::Add)
    }
}

/// The arithmetic of `f32` products. Products of 16-bit elements are exact in `f32` either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Arithmetic {
    /// In `f32`.
    #[default]
    Full,
    /// Rounded to the 11 significant bits of TF32 first, on tensor cores; sums stay `f32`.
    Tf32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_of_views() {
        let rows = |stride| {
            Some(Layout {
                order: Order::Rows,
                stride,
            })
        };
        let columns = |stride| {
            Some(Layout {
                order: Order::Columns,
                stride,
            })
        };
        assert_eq!(Layout::of([3, 4], [4, 1]), rows(4));
        assert_eq!(Layout::of([3, 4], [9, 1]), rows(9));
        assert_eq!(Layout::of([3, 4], [1, 3]), columns(3));
        assert_eq!(Layout::of([3, 4], [1, 7]), columns(7));
        assert_eq!(Layout::of([3, 4], [8, 2]), None);
        // An expanded dimension is no matrix.
        assert_eq!(Layout::of([3, 4], [0, 1]), None);
        // One row or one column: only the other stride counts.
        assert_eq!(Layout::of([1, 4], [77, 1]), rows(4));
        assert_eq!(Layout::of([1, 4], [1, 5]), columns(5));
        assert_eq!(Layout::of([3, 1], [1, 1]), columns(3));
        assert_eq!(Layout::of([3, 1], [6, 1]), rows(6));
        assert_eq!(Layout::of([1, 1], [9, 9]), columns(1));
    }
}
