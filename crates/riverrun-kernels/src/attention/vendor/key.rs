//! The key of a cached plan, and the problems that cuDNN is not asked for.

use super::{Layout, Sums};
use crate::attention::{Problem, Shape};
use crate::gpu::Dtype;

/// A pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    Forward,
    /// `ordered`: two runs give the same bits.
    Backward {
        ordered: bool,
    },
}

/// A plan's pass and problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub direction: Direction,
    pub layout: Layout,
    pub shape: Shape,
    pub dtype: Dtype,
    pub causal: bool,
    pub window: Option<usize>,
    /// The bits of the scale, which is part of a plan.
    scale: u32,
}

impl Key {
    /// The plan of a problem that [`refusal`] lets pass.
    pub fn new(problem: &Problem, dtype: Dtype, direction: Direction, layout: Layout) -> Self {
        Self {
            direction,
            layout,
            shape: problem.shape,
            dtype,
            causal: problem.causal,
            // A window of all steps hides nothing.
            window: problem.window.filter(|&window| window < problem.shape.keys),
            scale: (problem.scale as f32).to_bits(),
        }
    }

    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale)
    }
}

/// Why this route does not take a problem, before the library is asked.
///
/// # Errors
/// The reason.
pub(super) fn refusal(problem: &Problem, dtype: Dtype, reset: bool) -> Result<(), String> {
    let shape = problem.shape;
    let refuse = |reason: &str| Err(format!("cuDNN's attention is not used {reason}"));
    if dtype == Dtype::F32 {
        return refuse("in f32");
    }
    if reset {
        return refuse("for packed documents");
    }
    if problem.softcap.is_some() {
        return refuse("with a cap");
    }
    if shape.rows() == 0 || shape.queries != shape.keys {
        return refuse("for other than as many keys as queries");
    }
    if problem.window.is_some() && !problem.causal {
        return refuse("for windows to both sides");
    }
    if !shape.dim.is_multiple_of(8) {
        return refuse("for channels that are no multiple of 8");
    }
    // The library's sizes are signed, and an index is an f32 where it meets a window.
    if shape.queries >= 1 << 24 || shape.query_elements() > i64::MAX as usize {
        return refuse("for more than 2^24 steps");
    }
    Ok(())
}

/// As [`refusal`], of a backward pass.
///
/// # Errors
/// The reason.
pub(super) fn refusal_backward(shape: Shape, version: usize) -> Result<(), String> {
    // Up to 9.15.0 the gradients are wrong there, as NVIDIA's own front end says.
    if version <= 91_500 && !shape.queries.is_multiple_of(128) {
        return Err(
            "cuDNN before 9.15.1 has no gradients for steps that are no multiple of 128".into(),
        );
    }
    Ok(())
}

/// How a backward pass adds up the gradients of the queries, with `room` bytes of scratch memory.
///
/// # Errors
/// Why it does not, for a deterministic problem without room.
pub(super) fn sums(problem: &Problem, room: usize) -> Result<Sums, String> {
    let bytes = ordered_bytes(problem.shape);
    match (bytes <= room, problem.deterministic) {
        (true, _) => Ok(Sums::Ordered),
        (false, false) => Ok(Sums::Atomic),
        (false, true) => Err(format!(
            "the same bits each time take cuDNN {bytes} bytes of scratch memory, more than the {room} that it is given              (in any order, with attention that need not be deterministic, it takes less)"
        )),
    }
}

/// Bytes of scratch memory that a backward pass in order takes: `ds` in the storage type.
pub(super) fn ordered_bytes(shape: Shape) -> usize {
    let steps = shape.queries.saturating_mul(shape.queries);
    2usize
        .saturating_mul(shape.batch)
        .saturating_mul(shape.heads)
        .saturating_mul(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> Problem {
        let mut problem = Problem::new(Shape::same(2, 256, 4, 64));
        problem.causal = true;
        problem
    }

    #[test]
    fn what_changes_a_plan_changes_its_key() {
        let of = |problem: &Problem, dtype, direction| {
            Key::new(problem, dtype, direction, Layout::Separate)
        };
        let key = |problem: &Problem| of(problem, Dtype::Bf16, Direction::Forward);
        let plain = problem();
        assert_eq!(key(&plain), key(&plain.clone()));
        assert_eq!(key(&plain).scale(), 0.125);
        let changes: [fn(&mut Problem); 5] = [
            |problem| problem.scale = 0.5,
            |problem| problem.causal = false,
            |problem| problem.window = Some(17),
            |problem| problem.shape.batch = 3,
            |problem| problem.shape.key_heads = 2,
        ];
        for change in changes {
            let mut other = plain;
            change(&mut other);
            assert_ne!(key(&other), key(&plain));
        }
        let wide = Problem {
            window: Some(256),
            ..plain
        };
        assert_eq!(key(&wide), key(&plain));
        for direction in [true, false].map(|ordered| Direction::Backward { ordered }) {
            assert_ne!(of(&plain, Dtype::Bf16, direction), key(&plain));
        }
        assert_ne!(of(&plain, Dtype::F16, Direction::Forward), key(&plain));
        let packed = Key {
            layout: Layout::Packed,
            ..key(&plain)
        };
        assert_ne!(packed, key(&plain));
    }

    #[test]
    fn what_the_library_has_not_is_refused_with_a_reason() {
        let taken = |problem: &Problem, dtype, reset| refusal(problem, dtype, reset);
        let plain = problem();
        assert_eq!(taken(&plain, Dtype::Bf16, false), Ok(()));
        assert!(
            taken(&plain, Dtype::F32, false)
                .unwrap_err()
                .contains("f32")
        );
        assert!(
            taken(&plain, Dtype::F16, true)
                .unwrap_err()
                .contains("documents")
        );
        let changes: [(fn(&mut Problem), &str); 6] = [
            (|problem| problem.softcap = Some(2.0), "cap"),
            (|problem| problem.shape.keys = 300, "as many keys"),
            (|problem| problem.shape.batch = 0, "as many keys"),
            (|problem| problem.shape.dim = 20, "multiple of 8"),
            (
                |problem| {
                    problem.causal = false;
                    problem.window = Some(3);
                },
                "both sides",
            ),
            (
                |problem| problem.shape = Shape::same(1, 1 << 24, 1, 8),
                "2^24",
            ),
        ];
        for (change, reason) in changes {
            let mut other = plain;
            change(&mut other);
            assert!(
                taken(&other, Dtype::Bf16, false)
                    .unwrap_err()
                    .contains(reason)
            );
        }
        let short = Shape::same(1, 320, 1, 8);
        assert!(refusal_backward(short, 91_400).is_err());
        assert!(refusal_backward(short, 91_900).is_ok());
        assert!(refusal_backward(Shape::same(1, 384, 1, 8), 91_400).is_ok());
    }

    #[test]
    fn what_has_to_be_deterministic_is_never_summed_up_in_any_order() {
        let plain = problem();
        let bytes = ordered_bytes(plain.shape);
        assert_eq!(sums(&plain, bytes), Ok(Sums::Ordered));
        assert!(sums(&plain, bytes - 1).unwrap_err().contains("same bits"));
        let loose = Problem {
            deterministic: false,
            ..plain
        };
        assert_eq!(sums(&loose, bytes), Ok(Sums::Ordered));
        assert_eq!(sums(&loose, bytes - 1), Ok(Sums::Atomic));
    }

    #[test]
    fn scratch_memory_grows_with_the_square_of_the_steps() {
        assert_eq!(ordered_bytes(Shape::same(2, 4096, 16, 128)), 1 << 30);
        assert_eq!(ordered_bytes(Shape::same(usize::MAX, 2, 2, 2)), usize::MAX);
    }
}
