//! Layers whose sequences are divided among ranks along time, against one process, and what cannot be divided.

mod channels;
mod refusals;
mod state;

use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Device, Gradients, Tensor, TensorData};
use riverrun::nn::{
    BlockDiagonalRnnConfig, GatedDeltaNetConfig, GruConfig, LinearRnnConfig, LstmConfig,
    Mamba2Config, MinGruConfig, MinLstmConfig, Recurrent, RgLruConfig, RnnConfig,
};
use riverrun::ops::SavedStates;
use riverrun::{Neighbours, Sequence};

use crate::common::numbers;
use crate::parameters::parameters;
use channels::on_ranks;
use state::{EXACT, State};

/// Sequences, steps, features.
const SIZES: [usize; 3] = [3, 11, 6];

/// Numbers from -1 to 1, the same in every run, others for each `stream`.
fn wave<const D: usize>(shape: [usize; D], stream: usize) -> Tensor<D> {
    let number = |i: usize| ((i * i * 31 + i * 37 + stream * 11) % 61) as f32 / 30.0 - 1.0;
    let data: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_data(TensorData::new(data, shape), &Device::flex())
}

fn moved<const D: usize>(x: Tensor<D>, device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(x.into_data().convert_dtype(dtype), (device, dtype))
}

fn differentiating() -> Device {
    Device::flex().autodiff()
}

/// Every parameter as a leaf of its own, in a dtype: layers of several threads share no graph.
struct Leaves(DType);

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(moved(param.val(), &differentiating(), self.0))
    }
}

/// What happens along the sequences.
#[derive(Debug, Clone, Default)]
struct Case {
    dtype: Option<DType>,
    /// From a state that is given.
    started: bool,
    /// The steps of the first sequence that restart, and one later each in the next.
    resets: Vec<usize>,
    lengths: Option<Vec<usize>>,
}

impl Case {
    fn dtype(&self) -> DType {
        self.dtype.unwrap_or(DType::F32)
    }

    /// Some steps of the sequences.
    fn piece<S: State>(&self, steps: &Range<usize>) -> Sequence<S> {
        let [batch, all, _] = SIZES;
        let restarts = |sequence: usize, step: usize| {
            let restarts = |at: &usize| (at + sequence) % all == step;
            self.resets.iter().any(restarts)
        };
        let mut sequence = Sequence::new();
        if !self.resets.is_empty() {
            let marks = (0..batch).flat_map(|b| steps.clone().map(move |t| restarts(b, t)));
            let marks = TensorData::new(marks.collect::<Vec<bool>>(), [batch, steps.len()]);
            let marks = Tensor::<2, Bool>::from_data(marks, &differentiating());
            sequence = sequence.with_reset(marks);
        }
        if let Some(lengths) = &self.lengths {
            let own = |length: &usize| length.clamp(&steps.start, &steps.end) - steps.start;
            sequence = sequence.with_lengths(&lengths.iter().map(own).collect::<Vec<_>>());
        }
        sequence
    }
}

/// The outputs and gradients of a piece.
struct Found {
    y: Vec<f64>,
    d_x: Vec<f64>,
    weights: Vec<Vec<f64>>,
    /// The last state, after the last piece.
    last: Option<Vec<Vec<f64>>>,
    /// The gradients of the state given before the first piece.
    d_start: Option<Vec<Vec<f64>>>,
}

/// A piece of one run, with leaves of its own.
struct Piece<L: Recurrent> {
    layer: L,
    x: Tensor<3>,
    y: Tensor<3>,
    start: Option<L::State>,
    last: L::State,
}

impl<L: Module + Recurrent<State: State>> Piece<L> {
    /// From the state of the rank before, from the one given here, or at the beginning from that of the case.
    fn run(
        layer: &L,
        case: &Case,
        steps: &Range<usize>,
        before: Option<L::State>,
        neighbours: Option<Neighbours>,
    ) -> Self {
        let (device, layer) = (
            differentiating(),
            layer.clone().map(&mut Leaves(case.dtype())),
        );
        let x = wave(SIZES, 1).narrow(1, steps.start, steps.len());
        let x = moved(x, &device, case.dtype()).require_grad();
        let mut sequence = case.piece(steps);
        let mut start = None;
        if steps.start == 0 && case.started {
            let (_, like) = layer.forward(x.clone().detach(), None);
            start = Some(like.leaves(7, &device));
            sequence.state = start.clone();
        }
        sequence.state = sequence.state.or(before);
        sequence.neighbours = neighbours;
        let (y, last) = layer.run(x.clone(), sequence);
        Self {
            layer,
            x,
            y,
            start,
            last,
        }
    }

    /// The part of the loss in this piece's outputs, and in the last state.
    fn loss(&self, steps: &Range<usize>) -> Tensor<1> {
        let [batch, _, width] = self.y.dims();
        let weights = wave([batch, SIZES[1], width], 3).narrow(1, steps.start, steps.len());
        let weights = moved(weights, &self.y.device(), self.y.dtype());
        let loss = (self.y.clone() * weights).sum();
        match steps.end == SIZES[1] {
            true => loss + self.last.weighted(5),
            false => loss,
        }
    }

    fn found(&self, steps: &Range<usize>, of: &Gradients) -> Found {
        let weights = parameters(&self.layer, Some(of)).into_iter();
        Found {
            y: numbers(self.y.clone()),
            d_x: numbers(self.x.grad(of).expect("a gradient")),
            weights: weights.map(|(_, gradient)| gradient).collect(),
            last: (steps.end == SIZES[1]).then(|| self.last.numbers(None)),
            d_start: self.start.as_ref().map(|start| start.numbers(Some(of))),
        }
    }
}

impl Found {
    /// All numbers by their names.
    fn all(&self) -> Vec<(String, Vec<f64>)> {
        let mut all = vec![
            ("y".into(), self.y.clone()),
            ("d_x".into(), self.d_x.clone()),
        ];
        let lists = [
            ("weight", Some(&self.weights)),
            ("last state", self.last.as_ref()),
            ("start", self.d_start.as_ref()),
        ];
        for (name, list) in lists {
            let list = list.into_iter().flatten().enumerate();
            all.extend(list.map(|(i, numbers)| (format!("{name} {i}"), numbers.clone())));
        }
        all
    }
}

fn pieces(ranks: usize) -> Vec<Range<usize>> {
    let steps = SIZES[1];
    let piece = |rank| rank * steps / ranks..(rank + 1) * steps / ranks;
    (0..ranks).map(piece).collect()
}

/// One process that runs the pieces one after the other, each with weights of its own.
fn in_one_process<L: Module + Recurrent<State: State>>(
    layer: &L,
    case: &Case,
    pieces: &[Range<usize>],
) -> Vec<Found> {
    let mut before = None;
    let run = |steps: &Range<usize>| {
        let piece = Piece::run(layer, case, steps, before.take(), None);
        before = Some(piece.last.clone());
        piece
    };
    let parts: Vec<_> = pieces.iter().map(run).collect();
    let losses = parts
        .iter()
        .zip(pieces)
        .map(|(part, steps)| part.loss(steps));
    let of = losses.reduce(|sum, loss| sum + loss).unwrap().backward();
    let found = parts
        .iter()
        .zip(pieces)
        .map(|(part, steps)| part.found(steps, &of));
    found.collect()
}

/// Every rank with its piece.
fn divided<L: Module + Recurrent<State: State> + Sync>(
    layer: &L,
    case: &Case,
    pieces: &[Range<usize>],
) -> Vec<Found> {
    on_ranks(pieces.len(), |neighbours| {
        let steps = &pieces[neighbours.rank()];
        let part = Piece::run(layer, case, steps, None, Some(neighbours.clone()));
        let found = part.found(steps, &part.loss(steps).backward());
        neighbours.check().unwrap();
        found
    })
}

/// Joins rows of steps, `[B, T', ..]` each, to `[B, T, ..]`.
fn joined(found: &[Found], pieces: &[Range<usize>], of: fn(&Found) -> &Vec<f64>) -> Vec<f64> {
    let [batch, ..] = SIZES;
    let row = |b: usize| {
        let part = |(found, steps): (&Found, &Range<usize>)| {
            let numbers = of(found);
            let width = numbers.len() / (batch * steps.len());
            numbers[b * steps.len() * width..][..steps.len() * width].to_vec()
        };
        found
            .iter()
            .zip(pieces)
            .flat_map(part)
            .collect::<Vec<f64>>()
    };
    (0..batch).flat_map(row).collect()
}

fn cases(ragged: bool) -> Vec<Case> {
    let mut cases = vec![
        Case::default(),
        Case {
            started: true,
            ..Case::default()
        },
    ];
    // Two ranks are cut at step 5, three at 3 and 7: restarts at the cut, before, after, and at the first step.
    for resets in [vec![5], vec![4], vec![6, 9], vec![0, 3, 7]] {
        let started = resets.len() == 2;
        cases.push(Case {
            started,
            resets,
            ..Case::default()
        });
    }
    if ragged {
        for lengths in [vec![11, 5, 2], vec![0, 7, 8]] {
            cases.push(Case {
                started: true,
                resets: vec![4],
                lengths: Some(lengths),
                ..Case::default()
            });
        }
    }
    cases
}

/// Asserts that two lists of numbers are the same bits, or within a part of the largest; by the first that differs.
#[track_caller]
fn assert_same(what: &str, found: &[f64], expected: &[f64], within: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0.0f64, |scale, x| scale.max(x.abs()));
    let differs = |(found, expected): (&f64, &f64)| match within {
        0.0 => found.to_bits() != expected.to_bits(),
        _ => (found - expected).abs() > within * scale,
    };
    let at = found.iter().zip(expected).position(differs);
    let at = at.map(|at| format!("[{at}]: {}, not {}", found[at], expected[at]));
    assert!(at.is_none(), "{what}{}", at.unwrap_or_default());
}

/// The layer to check, and what its cases are.
struct Layer<'a, L> {
    name: &'a str,
    layer: L,
    /// Whether sequences may have several lengths.
    ragged: bool,
    /// The ways from the input to the output: the gradients of several are added up in the order of the graph, which is another one in
    /// another process.
    ways: usize,
}

/// Every rank has, bit for bit, what one process has that runs the pieces one after the other, and with that the whole sequence's
/// outputs and gradients of inputs and states.
fn check<L: Module + Recurrent<State: State> + Sync>(of: &Layer<'_, L>) {
    for case in cases(of.ragged) {
        for dtype in EXACT {
            let case = Case {
                dtype: Some(dtype),
                ..case.clone()
            };
            let precision = match dtype {
                DType::F64 => f64::EPSILON,
                _ => f32::EPSILON.into(),
            };
            let within = match of.ways {
                1 => 0.0,
                ways => 2.0 * ways as f64 * precision,
            };
            let whole = in_one_process(&of.layer, &case, &pieces(1)).remove(0);
            for ranks in [2, 3, 4] {
                let (name, pieces) = (of.name, pieces(ranks));
                let assert_same = |what: &str, found: &[f64], expected: &[f64]| {
                    let within = if what == "d_x" { within } else { 0.0 };
                    let what = format!("{name}, {ranks} ranks, {case:?}, {what}");
                    assert_same(&what, found, expected, within);
                };
                let found = divided(&of.layer, &case, &pieces);
                let one = in_one_process(&of.layer, &case, &pieces);
                for (found, one) in found.iter().zip(&one) {
                    for ((what, found), (_, one)) in found.all().iter().zip(one.all()) {
                        assert_same(what, found, &one);
                    }
                }
                let of_all = |part: fn(&Found) -> &Vec<f64>| joined(&found, &pieces, part);
                assert_same("y", &of_all(|found| &found.y), &whole.y);
                assert_same("d_x", &of_all(|found| &found.d_x), &whole.d_x);
                let (first, last) = (&found[0], &found[ranks - 1]);
                assert_same("last", &flat(&last.last), &flat(&whole.last));
                assert_same("d_start", &flat(&first.d_start), &flat(&whole.d_start));
            }
        }
    }
}

fn flat(state: &Option<Vec<Vec<f64>>>) -> Vec<f64> {
    state.iter().flatten().flatten().copied().collect()
}

/// A layer with one way from the input to the output.
fn check_one<L: Module + Recurrent<State: State> + Sync>(name: &str, layer: L, ragged: bool) {
    check(&Layer {
        name,
        layer,
        ragged,
        ways: 1,
    });
}

#[test]
fn scans_on_ranks_are_those_of_one_process() {
    let (device, [_, _, features]) = (Device::flex(), SIZES);
    let min_gru = MinGruConfig::new(features, 5);
    check_one("minGRU", min_gru.init(&device), true);
    let recomputing = min_gru.with_saved_states(SavedStates::None);
    check_one("minGRU, recomputed", recomputing.init(&device), true);
    let min_lstm = MinLstmConfig::new(features, 5);
    check_one("minLSTM", min_lstm.init(&device), true);
    let linear = LinearRnnConfig::new(features, 5);
    check_one("linear", linear.init(&device), true);
    let rg_lru = RgLruConfig::new(features, features);
    check_one("RG-LRU", rg_lru.init(&device), true);
    let unscaled = RgLruConfig::new(features, 8).with_scale_first(false);
    check_one("RG-LRU, unscaled", unscaled.init(&device), false);
    let blocks = BlockDiagonalRnnConfig::new(features, 8);
    check_one("block-diagonal", blocks.init(&device), true);
}

#[test]
fn cells_on_ranks_are_those_of_one_process() {
    let (device, [_, _, features]) = (Device::flex(), SIZES);
    check_one("GRU", GruConfig::new(features, 8).init(&device), true);
    let stack = GruConfig::new(features, 8).with_layers(3).with_heads(2);
    check_one("GRUs", stack.init(&device), true);
    let stack = LstmConfig::new(features, 8).with_layers(2);
    check_one("LSTMs", stack.init(&device), true);
    check_one("Elman", RnnConfig::new(features, 8).init(&device), true);
}

#[test]
fn matrix_states_on_ranks_are_those_of_one_process() {
    let (device, [_, _, features]) = (Device::flex(), SIZES);
    check(&Layer {
        name: "Gated DeltaNet",
        layer: GatedDeltaNetConfig::new(features, 2, 4, 3).init(&device),
        ragged: false,
        ways: 3,
    });
    let mamba = Mamba2Config::new(features, 2, 4).with_d_state(3);
    check(&Layer {
        name: "Mamba-2",
        layer: mamba.init(&device),
        ragged: false,
        ways: 3,
    });
}
