//! What neighbours send each other: a state or its gradient, behind a label that says which.

use std::fmt;

use burn::tensor::{DType, Shape, TensorData};
use half::{bf16, f16};

use crate::Error;

/// Numbers of a label.
const LABEL: usize = 4;

/// Labels count up to here, and then from 0 again: `f32` has all integers below.
const NUMBERS: u32 = 1 << 24;

/// `f32`s of an `f64`, each with 16 of its bits as an integer: that survives every transport.
const PIECES: usize = 4;

/// The number of the hand-over after this one.
pub(super) fn after(number: u32) -> u32 {
    (number + 1) % NUMBERS
}

/// The way of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A state, to the rank after.
    Forward,
    /// The gradient of a state, to the rank before.
    Backward,
}

/// The recurrence of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateKind {
    /// The state of a linear recurrence.
    Scan,
    /// The state of a block-diagonal recurrence.
    BlockDiagonal,
    /// The state of a cell.
    Cell,
    /// The last inputs of a short convolution.
    Convolution,
    /// The matrices.
    Matrix,
}

const KINDS: [(StateKind, &str); 5] = [
    (StateKind::Scan, "linear recurrence"),
    (StateKind::BlockDiagonal, "block-diagonal recurrence"),
    (StateKind::Cell, "cell"),
    (StateKind::Convolution, "short convolution"),
    (StateKind::Matrix, "matrix state"),
];

/// The name of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub direction: Direction,
    pub kind: StateKind,
    /// The number of the hand-over.
    pub number: u32,
    /// Whether the sender waits for the gradient of what it sends.
    pub answer: bool,
}

impl Label {
    fn numbers(self) -> [f32; LABEL] {
        let kind = KINDS.iter().position(|(kind, _)| *kind == self.kind);
        let direction = match self.direction {
            Direction::Forward => 1.0,
            Direction::Backward => 2.0,
        };
        let answer = f32::from(u8::from(self.answer));
        let kind = kind.expect("every kind is listed") as f32;
        [direction, kind, self.number as f32, answer]
    }

    fn read(numbers: &[f32]) -> Option<Self> {
        let [direction, kind, number, answer] = *numbers else {
            return None;
        };
        let label = Self {
            direction: match direction {
                1.0 => Direction::Forward,
                2.0 => Direction::Backward,
                _ => return None,
            },
            kind: KINDS.get(kind as usize)?.0,
            number: number as u32,
            answer: answer == 1.0,
        };
        (label.numbers() == *numbers).then_some(label)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.direction {
            Direction::Forward => "state",
            Direction::Backward => "gradient of the state",
        };
        let name = KINDS.iter().find(|(kind, _)| *kind == self.kind);
        let name = name.map_or("", |(_, name)| name);
        write!(f, "the {what} of hand-over {}, a {name}", self.number)
    }
}

fn width(dtype: DType) -> usize {
    match dtype {
        DType::F64 => PIECES,
        _ => 1,
    }
}

/// The numbers of a message.
pub(super) fn length(shape: &Shape, dtype: DType) -> usize {
    LABEL + shape.num_elements() * width(dtype)
}

/// The message: exact in every dtype.
pub(super) fn numbers(label: Label, data: &TensorData) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(length(data.shape(), data.dtype()));
    numbers.extend(label.numbers());
    match data.dtype() {
        DType::F64 => numbers.extend(data.iter::<f64>().flat_map(pieces)),
        _ => numbers.extend(data.iter::<f32>()),
    }
    numbers
}

/// The data of a message, and whether it asks for an answer.
///
/// # Errors
/// A message of another label.
pub(super) fn read(
    numbers: &[f32],
    expected: Label,
    shape: &Shape,
    dtype: DType,
    from: usize,
) -> Result<(TensorData, bool), Error> {
    let (label, numbers) = numbers.split_at(LABEL);
    let found = Label::read(label);
    let answer = found.is_some_and(|found| found.answer);
    if found != Some(Label { answer, ..expected }) {
        let found = found.map_or("something else".into(), |found| found.to_string());
        return Err(Error::HandOver(format!(
            "the ranks do different things: this one waits for {expected}, rank {from} of the group sent {found}"
        )));
    }
    let data = match dtype {
        DType::F64 => {
            let numbers = numbers.chunks_exact(PIECES).map(joined);
            TensorData::new(numbers.collect::<Vec<f64>>(), shape.clone())
        }
        _ => typed(numbers.to_vec(), shape, dtype),
    };
    Ok((data, answer))
}

/// NaN in the place of data.
pub(super) fn missing(shape: &Shape, dtype: DType) -> TensorData {
    let count = shape.num_elements();
    match dtype {
        DType::F64 => TensorData::new(vec![f64::NAN; count], shape.clone()),
        _ => typed(vec![f32::NAN; count], shape, dtype),
    }
}

fn typed(numbers: Vec<f32>, shape: &Shape, dtype: DType) -> TensorData {
    let shape = shape.clone();
    match dtype {
        DType::F16 => {
            let numbers = numbers.into_iter().map(f16::from_f32);
            TensorData::new(numbers.collect::<Vec<_>>(), shape)
        }
        DType::BF16 => {
            let numbers = numbers.into_iter().map(bf16::from_f32);
            TensorData::new(numbers.collect::<Vec<_>>(), shape)
        }
        _ => TensorData::new(numbers, shape),
    }
}

fn pieces(number: f64) -> [f32; PIECES] {
    let bits = number.to_bits();
    [0, 16, 32, 48].map(|shift| f32::from((bits >> shift) as u16))
}

fn joined(pieces: &[f32]) -> f64 {
    let bits = pieces.iter().rev();
    f64::from_bits(bits.fold(0, |bits, piece| bits << 16 | u64::from(*piece as u16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL_OF_TEST: Label = Label {
        direction: Direction::Backward,
        kind: StateKind::Matrix,
        number: NUMBERS - 1,
        answer: false,
    };

    #[test]
    fn every_bit_arrives() {
        let doubles = vec![
            0.0,
            -0.0,
            1.0 / 3.0,
            f64::MIN_POSITIVE / 8.0,
            -f64::MAX,
            f64::NEG_INFINITY,
        ];
        let data = TensorData::new(doubles.clone(), [2, 3]);
        let sent = numbers(LABEL_OF_TEST, &data);
        assert_eq!(sent.len(), length(data.shape(), DType::F64));
        let (read, answer) = read(&sent, LABEL_OF_TEST, data.shape(), DType::F64, 0).unwrap();
        let bits =
            |numbers: Vec<f64>| -> Vec<u64> { numbers.into_iter().map(f64::to_bits).collect() };
        assert_eq!(bits(read.iter::<f64>().collect()), bits(doubles));
        assert!(!answer);
        let halves: Vec<bf16> = [0.1, -3e38].map(bf16::from_f32).to_vec();
        let data = TensorData::new(halves, [2]);
        let sent = numbers(LABEL_OF_TEST, &data);
        let found = super::read(&sent, LABEL_OF_TEST, data.shape(), DType::BF16, 0);
        assert_eq!(found.unwrap().0, data);
    }

    #[test]
    fn another_label_is_refused() {
        let data = TensorData::new(vec![1.0f32], [1]);
        let sent = numbers(LABEL_OF_TEST, &data);
        let others = [
            Label {
                number: 0,
                ..LABEL_OF_TEST
            },
            Label {
                kind: StateKind::Cell,
                ..LABEL_OF_TEST
            },
            Label {
                direction: Direction::Forward,
                ..LABEL_OF_TEST
            },
        ];
        for other in others {
            let error = read(&sent, other, data.shape(), DType::F32, 3).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("rank 3 of the group sent the gradient of the state of hand-over 16777215, a matrix state"), "{text}");
        }
        let strange = [0.5, 9.0, f32::NAN, 2.0, 1.0];
        let error = read(&strange, LABEL_OF_TEST, data.shape(), DType::F32, 0).unwrap_err();
        assert!(error.to_string().contains("sent something else"));
        // The answer is the sender's to ask for.
        let asking = Label {
            answer: true,
            ..LABEL_OF_TEST
        };
        let sent = numbers(asking, &data);
        assert!(
            read(&sent, LABEL_OF_TEST, data.shape(), DType::F32, 0)
                .unwrap()
                .1
        );
    }
}
